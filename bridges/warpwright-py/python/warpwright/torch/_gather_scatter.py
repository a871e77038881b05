"""Rows by their indices as operators; `warpwright.torch` has them for users."""

from typing import Any, Optional

from torch import Tensor

from .. import _native
from .._errors import Error, renamed
from ._differentiable import Differentiable
from ._registry import Operator


def _of_gathered(
    x: Optional[Tensor], index: Tensor, factors: Optional[Tensor], dy: Tensor, rows: int, output_mask: Any
) -> Any:
    dx = _native.scatter_rows(dy, index, rows, factors) if output_mask[0] else None
    wanted = factors is not None and output_mask[2]
    return dx, None, _native.row_dots(dy, x, index, dtype=factors.dtype) if wanted else None


def _fake_of_gathered(
    x: Optional[Tensor], index: Tensor, factors: Optional[Tensor], dy: Tensor, rows: int, output_mask: Any
) -> Any:
    dx = dy.new_empty((rows, *dy.shape[index.dim() :])) if output_mask[0] else None
    wanted = factors is not None and output_mask[2]
    return dx, None, factors.new_empty(factors.shape) if wanted else None


_gather_rows = Differentiable(
    Operator(
        "gather_rows(Tensor x, Tensor index, Tensor? factors, SymInt rows) -> Tensor",
        native=lambda x, index, factors, rows: _native.gather_rows(x, index, factors),
        fake=lambda x, index, factors, rows: x.new_empty((*index.shape, *x.shape[1:])),
    ),
    Operator(
        "gather_rows_backward(Tensor? x, Tensor index, Tensor? factors, Tensor dy, SymInt rows, bool[] output_mask)"
        " -> (Tensor, Tensor, Tensor)",
        native=_of_gathered,
        fake=_fake_of_gathered,
    ),
    save=lambda inputs, found: (None if inputs[2] is None else inputs[0], *inputs[1:3]),
).function()


def _of_scattered(x: Optional[Tensor], index: Tensor, factors: Optional[Tensor], dy: Tensor, output_mask: Any) -> Any:
    dx = _native.gather_rows(dy, index, factors) if output_mask[0] else None
    wanted = factors is not None and output_mask[2]
    return dx, None, _native.row_dots(x, dy, index, dtype=factors.dtype) if wanted else None, None


def _fake_of_scattered(
    x: Optional[Tensor], index: Tensor, factors: Optional[Tensor], dy: Tensor, output_mask: Any
) -> Any:
    dx = dy.new_empty((*index.shape, *dy.shape[1:])) if output_mask[0] else None
    wanted = factors is not None and output_mask[2]
    return dx, None, factors.new_empty(factors.shape) if wanted else None, None


_scatter_rows = Differentiable(
    Operator(
        "scatter_rows(Tensor x, Tensor index, Tensor? factors, Tensor? base, SymInt rows) -> Tensor",
        native=lambda x, index, factors, base, rows: _native.scatter_rows(x, index, rows, factors, base),
        fake=lambda x, index, factors, base, rows: x.new_empty((rows, *x.shape[index.dim() :])),
    ),
    Operator(
        "scatter_rows_backward(Tensor? x, Tensor index, Tensor? factors, Tensor dy, bool[] output_mask)"
        " -> (Tensor, Tensor, Tensor, Tensor)",
        native=_of_scattered,
        fake=_fake_of_scattered,
    ),
    save=lambda inputs, found: (None if inputs[2] is None else inputs[0], *inputs[1:3]),
    noted=lambda inputs: (),
    # What is added to has the gradient of the result.
    shared=lambda gradients, dys, parameters, wanted: (*gradients[:3], dys[0] if wanted[3] else None),
).function()


def gather_rows(input: Tensor, index: Tensor, factors: Optional[Tensor] = None) -> Tensor:
    """`input[index]`, as `torch.index_select` along the first dimension with an index of any shape, each row times its factor if there are
    factors: of the shape of index, in the dtype of input or float32. Differentiable in input and factors, with the same gradient in every run.

    An index that is no row is refused on the CPU and gives NaN on a GPU; see `warpwright.validate_indices`.
    """
    try:
        # The gradient is of as many rows, of which nothing else is known.
        return _gather_rows(input, index, factors, input.shape[0] if input.dim() else 1)
    except Error as error:
        raise renamed(error, "gather_rows", x="input") from None


def scatter_rows(
    source: Tensor, index: Tensor, rows: int, *, factors: Optional[Tensor] = None, base: Optional[Tensor] = None
) -> Tensor:
    """`torch.index_add(base, 0, index, source)`, onto zeros of `rows` rows without a base, with an index of any shape, each row of source times its
    factor if there are factors: of the shape of index, in the dtype of source or float32. Differentiable in source, factors and base; the result
    is the same in every run.

    An index that is no row is refused on the CPU and passed over on a GPU; see `warpwright.validate_indices`.
    """
    try:
        return _scatter_rows(source, index, factors, base, rows)
    except Error as error:
        raise renamed(error, "scatter_rows", x="source") from None
