"""Dropout and elementwise expressions as operators; `warpwright.torch` has them for users."""

from typing import Any, Callable, Iterable, List, Optional, Sequence

import torch
from torch import Tensor

from .. import _native
from .._errors import refused
from ._common import random_numbers, row_major
from ._differentiable import Differentiable
from ._registry import Operator, direct, is_compiling, refuse_tangents

_dropout = Differentiable(
    Operator(
        "dropout(Tensor x, Tensor random, float p) -> Tensor",
        native=_native.dropout,
        fake=lambda x, *_: row_major(x),
    ),
    Operator(
        "dropout_backward(Tensor random, Tensor dy, float p) -> Tensor",
        native=lambda random, dy, p: _native.dropout(dy, random, p),
        fake=lambda random, dy, p: row_major(dy),
    ),
    save=lambda inputs, found: inputs[1:2],
).function()


def _gradients(random: Tensor, dy: Tensor, p: float, mask: Any) -> Any:
    return _native.dropout(dy, random, p) if mask[0] else None, None


_dropout_add = Differentiable(
    Operator(
        "dropout_add(Tensor x, Tensor residual, Tensor random, float p) -> Tensor",
        native=_native.dropout_add,
        fake=lambda x, *_: row_major(x),
    ),
    Operator(
        "dropout_add_backward(Tensor random, Tensor dy, float p, bool[] output_mask) -> (Tensor, Tensor)",
        native=_gradients,
        fake=lambda random, dy, p, mask: (row_major(dy) if mask[0] else None, None),
    ),
    save=lambda inputs, found: inputs[2:3],
    shared=lambda found, dys, parameters, wanted: (found[0], dys[0]),
).function()


def _orders(x: Tensor) -> Iterable[Sequence[int]]:
    """In which the axes may lie in memory."""
    axes = range(x.dim())
    if not is_compiling():
        return (sorted(axes, key=x.stride, reverse=True),)
    # Strides that are symbols cannot be sorted: channels last, matrices transposed, heads before positions.
    swaps = ((x.dim() - 2, x.dim() - 1), (1, 2)) if x.dim() > 2 else ((0, 1),)
    swapped = [tuple(b if axis == a else a if axis == b else axis for axis in axes) for a, b in swaps]
    return ((0, *axes[2:], 1), *swapped) if x.dim() > 1 else ()


def _as_it_lies(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """The function of tensors with their axes in the order of those of the first in memory, so that its result lies like it."""
    x = tensors[0]
    if not x.is_contiguous():
        for order in _orders(x):
            if x.permute(order).is_contiguous():
                back = [order.index(axis) for axis in range(x.dim())]
                return function(*(t.permute(order) for t in tensors)).permute(back)
    return function(*tensors)


def _drops(op: str, p: float, training: bool) -> bool:
    if not 0 <= p <= 1:
        raise refused(op, "p", p, "from 0 to 1")
    return training and p > 0


def dropout(x: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """`torch.nn.functional.dropout`. Differentiable in x: the gradient finds the same elements again, no mask is kept.

    Which elements are dropped follows from PyTorch's default generator of the device, but is not what PyTorch would drop.
    """
    if not _drops("dropout", p, training):
        return x
    return _as_it_lies(lambda x: _dropout(x, random_numbers(x), p), x)


def dropout_add(x: Tensor, residual: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """`dropout(x, p, training) + residual` in one launch, of one shape; different dtypes are promoted as PyTorch does.
    Differentiable in x and residual.
    """
    if not _drops("dropout_add", p, training):
        return x + residual
    if x.dtype != residual.dtype:
        # Autocast leaves one of them in another type where only one came out of a matrix product.
        dtype = torch.promote_types(x.dtype, residual.dtype)
        x, residual = x.to(dtype), residual.to(dtype)
    if x.shape != residual.shape:
        return _dropout_add(x, residual, random_numbers(x), p)
    return _as_it_lies(lambda x, residual: _dropout_add(x, residual, random_numbers(x), p), x, residual)


class Dropout(torch.nn.Dropout):
    """`torch.nn.Dropout` over `warpwright.torch.dropout`, not in place."""

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__(p, inplace)
        if inplace:
            raise ValueError("inplace=True is not supported: the result is a new tensor")

    def forward(self, input: Tensor) -> Tensor:
        return dropout(input, self.p, self.training)


def _dtype_of(tensors: Sequence[Tensor]) -> torch.dtype:
    dtype = tensors[0].dtype
    for t in tensors[1:]:
        # A mask has the type of what it stands beside.
        masks = dtype == torch.uint8, t.dtype == torch.uint8
        dtype = torch.promote_types(dtype, t.dtype) if not any(masks) else (t.dtype if masks[0] else dtype)
    return dtype


def _run(tensors: List[Tensor], expr: str, scalars: Sequence[float], dtype: torch.dtype) -> Tensor:
    return _native.elementwise(expr, *tensors, scalars=list(scalars), dtype=dtype)


def _fake(tensors: List[Tensor], expr: str, scalars: Sequence[float], dtype: torch.dtype) -> Tensor:
    return tensors[0].new_empty(torch.broadcast_shapes(*(t.shape for t in tensors)), dtype=dtype)


_operator = Operator(
    "elementwise(Tensor[] tensors, str expr, float[] scalars, ScalarType dtype) -> Tensor", native=_run, fake=_fake
).register().without_gradient()


def elementwise(
    expr: str, *tensors: Tensor, scalars: Sequence[float] = (), dtype: Optional[torch.dtype] = None
) -> Tensor:
    op = "elementwise"
    refuse_tangents(op, tensors)
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        raise RuntimeError(f"warpwright: {op} has no gradient: call it under torch.no_grad(), or pass detached tensors")
    if not tensors:
        raise refused(op, "tensors", 0, "from 1 to 6 tensors")
    given = [t.view(torch.uint8) if t.dtype == torch.bool else t for t in tensors]
    kept = [float(s) for s in scalars]
    function = _run if direct(*given) else _operator
    found = function(given, expr, kept, torch.uint8 if dtype == torch.bool else dtype or _dtype_of(given))
    return found.view(torch.bool) if dtype == torch.bool else found


elementwise.__doc__ = f"""{_native.elementwise.__doc__}

Tensors of bool are masks, and so is a result with dtype=torch.bool. Has no gradient, and refuses tensors that require one where gradients are
recorded."""
