"""Products of matrices as operators; `warpwright.torch` has them for users."""

from typing import Any, Optional

from torch import Tensor

from .. import _native
from ._common import narrow
from ._differentiable import Differentiable
from ._registry import Operator


def _fake(a: Tensor, b: Tensor, *bias: Any) -> Tensor:
    return a.new_empty((*a.shape[:-1], b.shape[-1]))


def _factors(a: Tensor, b: Tensor, dy: Tensor) -> Any:
    da = _native.matmul(dy, b.mT)
    if b.dim() == 2 and a.dim() > 2:
        # One matrix for all: its gradient is a sum over the rows of all.
        a, dy = a.flatten(0, -2), dy.flatten(0, -2)
    return da, _native.matmul(a.mT, dy)


_matmul = Differentiable(
    Operator("matmul(Tensor a, Tensor b) -> Tensor", native=_native.matmul, fake=_fake),
    Operator(
        "matmul_backward(Tensor a, Tensor b, Tensor dy) -> (Tensor, Tensor)",
        native=_factors,
        fake=lambda a, b, dy: (a.new_empty(a.shape), b.new_empty(b.shape)),
    ),
).function()


def _gradients(x: Tensor, weight: Tensor, bias: Optional[Tensor], dy: Tensor) -> Any:
    dx = _native.matmul(dy, weight)
    rows, dy = x.flatten(0, -2), dy.flatten(0, -2)
    return dx, _native.matmul(dy.mT, rows), None if bias is None else dy.sum(0)


_linear = Differentiable(
    Operator(
        "linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor",
        native=lambda x, weight, bias: _native.matmul(x, weight.mT, bias=bias),
        fake=lambda x, weight, bias: x.new_empty((*x.shape[:-1], weight.shape[0])),
    ),
    Operator(
        "linear_backward(Tensor x, Tensor weight, Tensor? bias, Tensor dy) -> (Tensor, Tensor, Tensor)",
        native=_gradients,
        fake=lambda x, weight, bias, dy: (
            x.new_empty(x.shape),
            weight.new_empty(weight.shape),
            x.new_empty(0) if bias is None else bias.new_empty(bias.shape),
        ),
    ),
).function()


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """`a @ b`: [..., m, k] times [..., k, n] with the same leading dimensions, or times [k, n]. Differentiable in both."""
    return _matmul(*narrow(a, b))


def linear(x: Tensor, weight: Tensor, bias: Optional[Tensor] = None) -> Tensor:
    """`torch.nn.functional.linear`: x [..., k] times the transpose of weight [n, k], plus bias [n]. Differentiable in all."""
    if weight.dim() == 1:
        # One result for each row, without a dimension of its own.
        return linear(x, weight.unsqueeze(0), None if bias is None else bias.reshape(1)).squeeze(-1)
    x, weight, bias = narrow(x, weight, bias)
    if x.dim() == 1:
        return _linear(x.unsqueeze(0), weight, bias).squeeze(0)
    return _linear(x, weight, bias)
