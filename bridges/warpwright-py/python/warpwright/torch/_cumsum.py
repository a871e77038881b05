"""Cumulative sums as operators; `warpwright.torch` has them for users."""

from typing import Any, Optional

import torch
from torch import Tensor

from .. import _native
from .._errors import Error, renamed
from .._native import Entry
from ._common import wide
from ._registry import Operator, is_compiling, refuse_tangents, register_gradient


def _run(x: Tensor, dim: int, exclusive: bool, reverse: bool) -> Tensor:
    return _native.cumsum(x, dim, exclusive=exclusive, reverse=reverse)


def _setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.parameters = inputs[1:]


def _differentiate(ctx: Any, dy: Tensor) -> Any:
    # An element is in the sums that begin at it, in the other direction.
    dim, exclusive, reverse = ctx.parameters
    return _call(dy, dim, exclusive, not reverse), None, None, None


class _Cumsum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        _setup_context(ctx, inputs, None)
        return _run(*inputs)

    backward = staticmethod(_differentiate)


_registered = register_gradient(
    Operator(
        "cumsum(Tensor x, SymInt dim, bool exclusive, bool reverse) -> Tensor",
        native=_run,
        fake=lambda x, *_: torch.empty_like(x),
    ).register(),
    _differentiate,
    _setup_context,
)


def _dispatched(*inputs: Any) -> Tensor:
    refuse_tangents("cumsum", inputs)
    return _registered(*inputs)


# What `Function.apply` comes down to where no functional transform is active.
_entry = Entry(1, _run, super(torch.autograd.Function, _Cumsum).apply, _dispatched)


def _call(*inputs: Any) -> Tensor:
    return (_dispatched if is_compiling() else _entry)(*inputs)


def cumsum(
    input: Tensor, dim: int, *, dtype: Optional[torch.dtype] = None, exclusive: bool = False, reverse: bool = False
) -> Tensor:
    """`torch.cumsum` of float32, float64, float16, bfloat16 or integers, summed in a fixed order; integers give int64 where no dtype is given.

    exclusive: each sum is without its own element; reverse: sums go from the last element to the first. Differentiable in input, any
    number of times; the result has the strides of `torch.empty_like(input)`.
    """
    if dtype is None:
        whole = not input.dtype.is_floating_point and not input.dtype.is_complex
        (input,) = (input.to(torch.int64),) if whole else wide(input)
    else:
        input = input.to(dtype)
    try:
        return _call(input, dim, exclusive, reverse)
    except Error as error:
        raise renamed(error, "cumsum", x="input") from None
