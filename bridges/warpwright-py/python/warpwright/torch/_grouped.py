"""Products of groups of rows as operators; `warpwright.torch` has them for users."""

from typing import Any, Optional, Sequence

from torch import Tensor

from .. import _native
from .._errors import Error, renamed
from ._common import narrow
from ._differentiable import Differentiable
from ._matmul import matmul
from ._registry import Operator


def _like_stored(stored: Tensor, a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    """For each group the transposed rows of a times those of b, in the order that `stored`, which they are the gradient of, has in
    memory."""
    if stored.stride(-1) == 1 or stored.stride(-2) != 1:
        return _native.grouped_matmul_k(a, b, ends)
    return _native.grouped_matmul_k(b, a, ends).mT


def _fake_like_stored(stored: Tensor) -> Tensor:
    if stored.stride(-1) == 1 or stored.stride(-2) != 1:
        return stored.new_empty(stored.shape)
    return stored.new_empty(stored.mT.shape).mT


def _row_gradients(a: Optional[Tensor], b: Tensor, ends: Tensor, dy: Tensor, wanted: Sequence[bool]) -> Any:
    of_a, of_b, _ = wanted
    da = _native.grouped_matmul(dy, b.mT, ends) if of_a else None
    return da, _like_stored(b, a, dy, ends) if of_b else None


def _fake_row_gradients(a: Optional[Tensor], b: Tensor, ends: Tensor, dy: Tensor, wanted: Sequence[bool]) -> Any:
    of_a, of_b, _ = wanted
    da = dy.new_empty((dy.shape[0], b.shape[1])) if of_a else None
    return da, _fake_like_stored(b) if of_b else None


_rows = Differentiable(
    Operator(
        "grouped_mm(Tensor a, Tensor b, Tensor ends) -> Tensor",
        native=_native.grouped_matmul,
        fake=lambda a, b, ends: a.new_empty((a.shape[0], b.shape[2])),
    ),
    Operator(
        "grouped_mm_backward(Tensor? a, Tensor b, Tensor ends, Tensor dy, bool[] output_mask) -> (Tensor, Tensor)",
        native=_row_gradients,
        fake=_fake_row_gradients,
    ),
    # The order of b in memory is that of its gradient.
    read_by=((1,), (0, 1), (0, 1)),
).function()


def _common_gradients(
    a: Optional[Tensor], b: Optional[Tensor], ends: Tensor, dy: Tensor, wanted: Sequence[bool]
) -> Any:
    of_a, of_b, _ = wanted
    da = _native.grouped_matmul(b, dy.mT, ends) if of_a else None
    return da, _native.grouped_matmul(a, dy, ends) if of_b else None


def _fake_common_gradients(
    a: Optional[Tensor], b: Optional[Tensor], ends: Tensor, dy: Tensor, wanted: Sequence[bool]
) -> Any:
    of_a, of_b, _ = wanted
    da = dy.new_empty((b.shape[0], dy.shape[1])) if of_a else None
    return da, dy.new_empty((a.shape[0], dy.shape[2])) if of_b else None


_common = Differentiable(
    Operator(
        "k_grouped_mm(Tensor a, Tensor b, Tensor ends) -> Tensor",
        native=_native.grouped_matmul_k,
        fake=lambda a, b, ends: a.new_empty((ends.shape[0], a.shape[1], b.shape[1])),
    ),
    Operator(
        "k_grouped_mm_backward(Tensor? a, Tensor? b, Tensor ends, Tensor dy, bool[] output_mask) -> (Tensor, Tensor)",
        native=_common_gradients,
        fake=_fake_common_gradients,
    ),
    read_by=((1,), (0,), (0, 1)),
).function()


def grouped_mm(mat_a: Tensor, mat_b: Tensor, offs: Optional[Tensor] = None) -> Tensor:
    """`torch.nn.functional.grouped_mm`: products of the groups that end at offs, int32 [groups], of a dimension that all groups share. Each
    begins where the one before it ends, may be empty, and has any size.

    mat_a [m, k] and mat_b [groups, k, n], best as the transpose of weights [groups, n, k]: the rows of mat_a and of the result [m, n] are in
    groups. mat_a [groups, m, k] and mat_b [k, n]: the columns of mat_b and of the result [m, n] are. mat_a [m, k] and mat_b [k, n]: k is, and
    the result is [groups, m, n]. What belongs to no group is zero. Without offs, both have matrices for each group: `matmul`.
    Differentiable in mat_a and mat_b."""
    dims = (mat_a.dim(), mat_b.dim())
    if (offs is None) != (dims == (3, 3)):
        raise ValueError(f"grouped_mm: offs is {'None' if offs is None else 'given'} for mat_a and mat_b of {dims[0]} and {dims[1]} dimensions")
    if offs is None:
        return matmul(mat_a, mat_b)
    mat_a, mat_b = narrow(mat_a, mat_b)
    names = {(2, 3): ("mat_a", "mat_b"), (3, 2): ("mat_b.mT", "mat_a.mT"), (2, 2): ("mat_a.mT", "mat_b")}.get(dims)
    try:
        if dims == (2, 3):
            return _rows(mat_a, mat_b, offs)
        if dims == (3, 2):
            return _rows(mat_b.mT, mat_a.mT, offs).mT
        if dims == (2, 2):
            return _common(mat_a.mT, mat_b, offs)
    except Error as error:
        a, b = names
        raise renamed(error, "grouped_mm", a=a, b=b, ends="offs") from None
    raise ValueError(f"grouped_mm: mat_a and mat_b have {dims[0]} and {dims[1]} dimensions, expected 2 and 3, 3 and 2, or 2 and 2")
