"""The largest elements of rows as an operator; `warpwright.torch` has it for users."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import _native
from .._errors import Error, refused, renamed
from ._differentiable import Differentiable
from ._registry import Operator


class TopK(NamedTuple):
    """The results of `topk`."""

    values: Tensor
    indices: Tensor


def _fake(x: Tensor, k: int, largest: bool) -> Any:
    shape = (*x.shape[:-1], k)
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.int64)


_topk = Differentiable(
    Operator(
        "topk(Tensor x, SymInt k, bool largest) -> (Tensor, Tensor)",
        native=lambda x, k, largest: _native.topk(x, k, largest=largest),
        fake=_fake,
    ),
    Operator(
        "topk_backward(Tensor index, Tensor dvalues, SymInt n) -> Tensor",
        native=lambda index, dvalues, n: _native.topk_backward(dvalues, index, n),
        fake=lambda index, dvalues, n: dvalues.new_empty((*dvalues.shape[:-1], n)),
    ),
    save=lambda inputs, found: found[1:2],
    noted=lambda inputs: (inputs[0].shape[-1],),
    returned=2,
).function()


def topk(input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> TopK:
    """`torch.topk` of float32, float64, float16 or bfloat16, always sorted; of equal elements the first is first. k is at most 128 where a row has
    more than 1024 elements. Differentiable in input."""
    op, rank = "topk", max(input.dim(), 1)
    if not -rank <= dim < rank:
        raise refused(op, "dim", dim, f"a dimension of the {input.dim()} of input")
    moved = input.reshape(1) if input.dim() == 0 else input.movedim(dim, -1)
    try:
        values, indices = _topk(moved, k, largest)
    except Error as error:
        raise renamed(error, op, x="input") from None
    if input.dim() == 0:
        return TopK(values.reshape(()) if k == 1 else values, indices.reshape(()) if k == 1 else indices)
    return TopK(values.movedim(-1, dim), indices.movedim(-1, dim))
