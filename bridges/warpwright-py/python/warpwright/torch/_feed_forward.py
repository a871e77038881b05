"""Feed-forward layers whose activations are part of the products beside them; `warpwright.torch` has them for users.

A node of autograd's graph stands for all of a layer: its backward pass multiplies by the second weight, and what the activation took makes the
gradient behind it in the same launch. Products that have no activation beside them are PyTorch's.
"""

from typing import Any, Callable, Dict, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from .. import _native
from .._errors import Error, misshapen, refused, renamed
from .._native import Repeated
from ._common import expect_dtype, narrow
from ._images import is_recorded
from ._matmul import UNITS, gated_linear, linear
from ._registry import direct, refuse_tangents
from ._transforms import is_transformed

_layer, _behind = Repeated(_native.linear_activation), Repeated(_native.activation_linear_backward)
_unit, _behind_unit = Repeated(_native.gated_linear_factors), Repeated(_native.gated_activation_linear_backward)
_both, _sum = Repeated(_native.linear_weight_backward), Repeated(_native.sum)

ACTIVATIONS: Dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "gelu_erf": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


def _known(op: str, activation: str, known: Any) -> None:
    if activation not in known:
        raise refused(op, "activation", activation, f"one of {', '.join(map(repr, known))}")


def _expect(op: str, x: Tensor, shape: Sequence[int], **weight: Optional[Tensor]) -> None:
    """Refuses a tensor of a layer behind the activation that has another shape or dtype. It is given by its name."""
    for name, t in weight.items():
        if t is not None:
            if tuple(t.shape) != tuple(shape):
                raise misshapen(op, name, t.shape, shape)
            expect_dtype(op, name, t, x.dtype)


def _of_layer(x: Tensor, dy: Tensor, weight: Tensor, wanted: Sequence[bool]) -> Tuple[Optional[Tensor], Optional[Tensor]]:
    """The gradients of the weight and the bias of a layer; of a weight that is a transpose, as one too."""
    of_weight, of_bias = wanted
    x = x.reshape(-1, x.shape[-1])
    if of_weight and of_bias and weight.is_contiguous():
        return _both(x, dy)
    dweight = None
    if of_weight:
        dweight = torch.mm(dy.t(), x) if weight.is_contiguous() else torch.mm(x.t(), dy).t()
    return dweight, _sum(dy, (0,), False) if of_bias else None


class _Mlp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight1: Tensor, bias1: Optional[Tensor], weight2: Tensor, bias2: Optional[Tensor], activation: str
    ) -> Tensor:
        h, z = _layer(x, weight1, bias1, activation)
        ctx.save_for_backward(x, weight1, weight2, z, h)
        ctx.activation = activation
        return F.linear(h, weight2, bias2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, weight1, weight2, z, h = ctx.saved_tensors
        of_x, of_weight1, of_bias1, of_weight2, of_bias2, _ = ctx.needs_input_grad
        dy = dy.reshape(-1, dy.shape[-1])
        dx = dweight1 = dbias1 = None
        if of_x or of_weight1 or of_bias1:
            dz = _behind(dy, weight2, z.view(-1, z.shape[-1]), ctx.activation)
            dweight1, dbias1 = _of_layer(x, dz, weight1, (of_weight1, of_bias1))
            dx = torch.mm(dz, weight1).view(x.shape) if of_x else None
        dweight2, dbias2 = _of_layer(h, dy, weight2, (of_weight2, of_bias2))
        return dx, dweight1, dbias1, dweight2, dbias2, None


def mlp(
    x: Tensor,
    weight1: Tensor,
    bias1: Optional[Tensor],
    weight2: Tensor,
    bias2: Optional[Tensor] = None,
    activation: str = "gelu_erf",
) -> Tensor:
    """linear(activation(linear(x, weight1, bias1)), weight2, bias2): a feed-forward layer of x [..., k], weight1 [n, k] and weight2 [m, n], or
    transposes of [k, n] and [n, m], bias1 [n] and bias2 [m], of one dtype, float32, float64, float16 or bfloat16. The result is [..., m].

    activation: "relu", "gelu_erf", "gelu_tanh", "silu", "sigmoid" or "tanh". On sm_90 large products of float16 and bfloat16 have the
    activation, and its derivative, in the same launch. Differentiable in all tensors; what the activation took and gave is kept for that.
    Raises `ShapeError`, `DtypeError`, `DeviceError` and `ParameterError`.
    """
    _known("mlp", activation, ACTIVATIONS)
    tensors = narrow(x, weight1, bias1, weight2, bias2)
    x, weight1, bias1, weight2, bias2 = tensors
    if not direct(*tensors) or is_transformed():
        return linear(ACTIVATIONS[activation](linear(x, weight1, bias1)), weight2, bias2)
    refuse_tangents("mlp", tensors)
    _expect("mlp", x, (*weight2.shape[:1], *weight1.shape[:1]), weight2=weight2)
    _expect("mlp", x, weight2.shape[:1], bias2=bias2)
    try:
        if is_recorded(*tensors):
            return _Mlp.apply(*tensors, activation)
        with torch.no_grad():
            return F.linear(_native.matmul(x, weight1.mT, bias=bias1, activation=activation), weight2, bias2)
    except Error as error:
        raise renamed(error, "mlp", a="x", b="weight1.mT", weight="weight1", bias="bias1") from None


class _GatedMlp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        gate: Tensor,
        gate_bias: Optional[Tensor],
        up: Tensor,
        up_bias: Optional[Tensor],
        down: Tensor,
        down_bias: Optional[Tensor],
        activation: str,
    ) -> Tensor:
        h, gated, factor = _unit(x, gate, up, activation, gate_bias=gate_bias, up_bias=up_bias)
        ctx.save_for_backward(x, gate, up, down, gated, factor, h)
        ctx.activation = activation
        return F.linear(h, down, down_bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, gate, up, down, gated, factor, h = ctx.saved_tensors
        of_x, of_gate, of_gate_bias, of_up, of_up_bias, of_down, of_down_bias, _ = ctx.needs_input_grad
        dy = dy.reshape(-1, dy.shape[-1])
        dx = None
        of_gates = of_ups = (None, None)
        if of_x or of_gate or of_gate_bias or of_up or of_up_bias:
            columns = gated.shape[-1]
            dgate, dup = _behind_unit(dy, down, gated.view(-1, columns), factor.view(-1, columns), ctx.activation)
            of_gates = _of_layer(x, dgate, gate, (of_gate, of_gate_bias))
            of_ups = _of_layer(x, dup, up, (of_up, of_up_bias))
            # The second product is added to the first in its own launch.
            dx = torch.addmm(torch.mm(dgate, gate), dup, up).view(x.shape) if of_x else None
        return dx, *of_gates, *of_ups, *_of_layer(h, dy, down, (of_down, of_down_bias)), None


def gated_mlp(
    x: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    gate_bias: Optional[Tensor] = None,
    up_bias: Optional[Tensor] = None,
    down_bias: Optional[Tensor] = None,
    activation: str = "swiglu",
) -> Tensor:
    """linear(activation(linear(x, gate, gate_bias)) * linear(x, up, up_bias), down, down_bias): a gated feed-forward layer of x [..., k], gate
    and up [n, k], down [m, n], biases of gate and up [n], of both or of none, and of down [m], of one dtype, float32, float64, float16 or
    bfloat16. The result is [..., m].

    activation: "swiglu" (of silu), "geglu" (of the exact gelu) or "geglu_tanh". On sm_90 large products of float16 and bfloat16 have the unit,
    and its gradients, in the same launch. Differentiable in all tensors; both factors and the unit are kept for that. Raises `ShapeError`,
    `DtypeError`, `DeviceError` and `ParameterError`.
    """
    _known("gated_mlp", activation, UNITS)
    tensors = narrow(x, gate, gate_bias, up, up_bias, down, down_bias)
    x, gate, gate_bias, up, up_bias, down, down_bias = tensors
    if not direct(*tensors) or is_transformed():
        return linear(UNITS[activation](linear(x, gate, gate_bias), linear(x, up, up_bias)), down, down_bias)
    refuse_tangents("gated_mlp", tensors)
    _expect("gated_mlp", x, (*down.shape[:1], *gate.shape[:1]), down=down)
    _expect("gated_mlp", x, down.shape[:1], down_bias=down_bias)
    try:
        if is_recorded(*tensors):
            return _GatedMlp.apply(*tensors, activation)
        with torch.no_grad():
            return F.linear(gated_linear(x, gate, up, activation, gate_bias, up_bias), down, down_bias)
    except Error as error:
        raise renamed(error, "gated_mlp") from None
