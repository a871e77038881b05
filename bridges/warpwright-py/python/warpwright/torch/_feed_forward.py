"""Feed-forward layers whose activations are part of the products beside them; `warpwright.torch` has them for users.

A node of autograd's graph stands for all of a layer: its backward pass multiplies by the second weight, and what the activation took makes the
gradient behind it in the same launch. Products that have no activation beside them are PyTorch's. For what traces a layer is an operator that
is made of others: those of its launches, and PyTorch's products.
"""

from dataclasses import dataclass
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
from ._matmul import UNITS, gated_linear, linear, of_unit, traced_weight_and_bias, weight_and_bias
from ._registry import Operator, direct, refuse_tangents, register_composite
from ._transforms import is_transformed


@dataclass(frozen=True)
class _Launches:
    """What layers are made of, beside products of PyTorch's."""

    # activation(x weight.T + bias), without and with what the activation took.
    activated: Callable[..., Tensor]
    layer: Callable[..., Tuple[Tensor, Tensor]]
    # The gradient of what an activation took, of that of the layer behind it.
    behind: Callable[..., Tensor]
    # A gated unit, without and with its factors, and their gradients.
    unit: Callable[..., Tensor]
    factors: Callable[..., Tuple[Tensor, Tensor, Tensor]]
    behind_unit: Callable[..., Tuple[Tensor, Tensor]]
    # The gradients of a weight and a bias, and that of a bias.
    both: Callable[..., Tuple[Tensor, Tensor]]
    sum: Callable[[Tensor], Tensor]


def _activated(x: Tensor, weight: Tensor, bias: Optional[Tensor], activation: str) -> Tensor:
    return _native.matmul(x, weight.mT, bias=bias, activation=activation)


def _factors(x: Tensor, gate: Tensor, up: Tensor, activation: str, gate_bias: Optional[Tensor], up_bias: Optional[Tensor]) -> Any:
    return _native.gated_linear_factors(x, gate, up, activation, gate_bias=gate_bias, up_bias=up_bias)


_sum = Repeated(_native.sum)
_DIRECT = _Launches(
    _activated,
    Repeated(_native.linear_activation),
    Repeated(_native.activation_linear_backward),
    gated_linear,
    Repeated(_factors),
    Repeated(_native.gated_activation_linear_backward),
    weight_and_bias,
    lambda dy: _sum(dy, (0,), False),
)


def _operator(schema: str, native: Callable[..., Any], fake: Callable[..., Any]) -> Callable[..., Any]:
    """An operator of a launch, whose results have no gradients."""
    return Operator(schema, native, fake).register().inner


def _rows(x: Tensor, columns: Any) -> Tensor:
    """A result with the rows of x."""
    return x.new_empty((*x.shape[:-1], columns))


_TRACED = _Launches(
    _operator(
        "linear_activated(Tensor x, Tensor weight, Tensor? bias, str activation) -> Tensor",
        _activated,
        lambda x, weight, *_: _rows(x, weight.shape[0]),
    ),
    _operator(
        "linear_activation(Tensor x, Tensor weight, Tensor? bias, str activation) -> (Tensor, Tensor)",
        _native.linear_activation,
        lambda x, weight, *_: tuple(_rows(x, weight.shape[0]) for _ in range(2)),
    ),
    _operator(
        "activation_linear_backward(Tensor dy, Tensor weight, Tensor z, str activation) -> Tensor",
        _native.activation_linear_backward,
        lambda dy, weight, *_: _rows(dy, weight.shape[1]),
    ),
    of_unit,
    _operator(
        "gated_linear_factors(Tensor x, Tensor gate, Tensor up, str activation, Tensor? gate_bias, Tensor? up_bias) -> (Tensor, Tensor, Tensor)",
        _factors,
        lambda x, gate, *_: tuple(_rows(x, gate.shape[0]) for _ in range(3)),
    ),
    _operator(
        "gated_activation_linear_backward(Tensor dy, Tensor weight, Tensor gate, Tensor up, str activation) -> (Tensor, Tensor)",
        _native.gated_activation_linear_backward,
        lambda dy, weight, *_: tuple(_rows(dy, weight.shape[1]) for _ in range(2)),
    ),
    traced_weight_and_bias,
    lambda dy: dy.sum(0),
)

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


def _of_layer(
    launches: _Launches, x: Tensor, dy: Tensor, weight: Tensor, wanted: Sequence[bool]
) -> Tuple[Optional[Tensor], Optional[Tensor]]:
    """The gradients of the weight and the bias of a layer of rows; of a weight that is a transpose, as one too."""
    of_weight, of_bias = wanted
    if of_weight and of_bias and weight.is_contiguous():
        return launches.both(x, dy)
    dweight = None
    if of_weight:
        dweight = torch.mm(dy.t(), x) if weight.is_contiguous() else torch.mm(x.t(), dy).t()
    return dweight, launches.sum(dy) if of_bias else None


class _Mlp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, launches: _Launches, x: Tensor, weight1: Tensor, bias1: Optional[Tensor], weight2: Tensor, bias2: Optional[Tensor], activation: str
    ) -> Tensor:
        h, z = launches.layer(x, weight1, bias1, activation)
        ctx.save_for_backward(x, weight1, weight2, z, h)
        ctx.launches, ctx.activation = launches, activation
        return F.linear(h, weight2, bias2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, weight1, weight2, z, h = ctx.saved_tensors
        _, of_x, of_weight1, of_bias1, of_weight2, of_bias2, _ = ctx.needs_input_grad
        launches = ctx.launches
        dx = dweight1 = dbias1 = None
        if of_x or of_weight1 or of_bias1:
            dz = launches.behind(dy, weight2, z, ctx.activation)
            dweight1, dbias1 = _of_layer(launches, x, dz, weight1, (of_weight1, of_bias1))
            dx = torch.mm(dz, weight1) if of_x else None
        dweight2, dbias2 = _of_layer(launches, h, dy, weight2, (of_weight2, of_bias2))
        return None, dx, dweight1, dbias1, dweight2, dbias2, None


def _of_rows(apply: Callable[..., Tensor], launches: _Launches, x: Tensor, *rest: Any) -> Tensor:
    """What a node gives for the rows of x; a view of its result that was made within it could not be written to."""
    y = apply(launches, x.reshape(-1, x.shape[-1]), *rest)
    return y if x.dim() == 2 else y.view(*x.shape[:-1], y.shape[-1])


def _run_mlp(launches: _Launches, *arguments: Any) -> Tensor:
    """The layer of tensors and an activation, with a node of autograd's graph if it is recorded."""
    x, weight1, bias1, weight2, bias2, activation = arguments
    if is_recorded(*arguments[:-1]):
        return _of_rows(_Mlp.apply, launches, *arguments)
    with torch.no_grad():
        return F.linear(launches.activated(x, weight1, bias1, activation), weight2, bias2)


_traced_mlp = register_composite(
    "mlp(Tensor x, Tensor weight1, Tensor? bias1, Tensor weight2, Tensor? bias2, str activation) -> Tensor",
    lambda *arguments: _run_mlp(_TRACED, *arguments),
)


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
    if is_transformed():
        return linear(ACTIVATIONS[activation](linear(x, weight1, bias1)), weight2, bias2)
    refuse_tangents("mlp", tensors)
    _expect("mlp", x, (*weight2.shape[:1], *weight1.shape[:1]), weight2=weight2)
    _expect("mlp", x, weight2.shape[:1], bias2=bias2)
    if not direct(*tensors):
        return _traced_mlp(*tensors, activation)
    try:
        return _run_mlp(_DIRECT, *tensors, activation)
    except Error as error:
        raise renamed(error, "mlp", a="x", b="weight1.mT", weight="weight1", bias="bias1") from None


class _GatedMlp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        launches: _Launches,
        x: Tensor,
        gate: Tensor,
        gate_bias: Optional[Tensor],
        up: Tensor,
        up_bias: Optional[Tensor],
        down: Tensor,
        down_bias: Optional[Tensor],
        activation: str,
    ) -> Tensor:
        h, gated, factor = launches.factors(x, gate, up, activation, gate_bias, up_bias)
        ctx.save_for_backward(x, gate, up, down, gated, factor, h)
        ctx.launches, ctx.activation = launches, activation
        return F.linear(h, down, down_bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, gate, up, down, gated, factor, h = ctx.saved_tensors
        _, of_x, of_gate, of_gate_bias, of_up, of_up_bias, of_down, of_down_bias, _ = ctx.needs_input_grad
        launches, dx = ctx.launches, None
        of_gates = of_ups = (None, None)
        if of_x or of_gate or of_gate_bias or of_up or of_up_bias:
            dgate, dup = launches.behind_unit(dy, down, gated, factor, ctx.activation)
            of_gates = _of_layer(launches, x, dgate, gate, (of_gate, of_gate_bias))
            of_ups = _of_layer(launches, x, dup, up, (of_up, of_up_bias))
            # The second product is added to the first in its own launch.
            dx = torch.addmm(torch.mm(dgate, gate), dup, up) if of_x else None
        return None, dx, *of_gates, *of_ups, *_of_layer(launches, h, dy, down, (of_down, of_down_bias)), None


def _run_gated_mlp(launches: _Launches, *arguments: Any) -> Tensor:
    """The same of a gated layer."""
    x, gate, gate_bias, up, up_bias, down, down_bias, activation = arguments
    if is_recorded(*arguments[:-1]):
        return _of_rows(_GatedMlp.apply, launches, *arguments)
    with torch.no_grad():
        return F.linear(launches.unit(x, gate, up, activation, gate_bias, up_bias), down, down_bias)


_traced_gated_mlp = register_composite(
    "gated_mlp(Tensor x, Tensor gate, Tensor? gate_bias, Tensor up, Tensor? up_bias, Tensor down, Tensor? down_bias, str activation) -> Tensor",
    lambda *arguments: _run_gated_mlp(_TRACED, *arguments),
)


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
    if is_transformed():
        return linear(UNITS[activation](linear(x, gate, gate_bias), linear(x, up, up_bias)), down, down_bias)
    refuse_tangents("gated_mlp", tensors)
    _expect("gated_mlp", x, (*down.shape[:1], *gate.shape[:1]), down=down)
    _expect("gated_mlp", x, down.shape[:1], down_bias=down_bias)
    if not direct(*tensors):
        return _traced_gated_mlp(*tensors, activation)
    try:
        return _run_gated_mlp(_DIRECT, *tensors, activation)
    except Error as error:
        raise renamed(error, "gated_mlp") from None
