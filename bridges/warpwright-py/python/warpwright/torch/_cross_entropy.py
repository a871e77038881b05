"""`cross_entropy` as operators; `warpwright.torch` has it for users."""

from typing import Any, Optional

import torch
from torch import Tensor

from .. import _native
from ._common import of_dtype, row_major, statistics
from ._differentiable import Differentiable
from ._registry import Operator


def cross_entropy_options(ignore_index: int, label_smoothing: float, reduction: str) -> Any:
    """Keywords of the native functions."""
    return {"ignore_index": ignore_index, "label_smoothing": label_smoothing, "reduction": reduction}


def _saved(logits: Tensor, target: Tensor, *options: Any) -> Any:
    *chosen, dtype = options
    found = _native.cross_entropy(logits, target, statistics=True, dtype=dtype, **cross_entropy_options(*chosen))
    # Only a mean counts rows.
    return found if len(found) == 4 else (*found, statistics(logits, 0))


def _fake(
    logits: Tensor, target: Tensor, ignore_index: int, label_smoothing: float, reduction: str, dtype: torch.dtype
) -> Any:
    rows = logits.shape[:1]
    loss = logits.new_empty(rows if reduction == "none" else (), dtype=dtype)
    count = statistics(logits, () if reduction == "mean" else 0)
    return loss, statistics(logits, rows), statistics(logits, rows), count


def _gradient(
    logits: Tensor, target: Tensor, lse: Tensor, nll: Tensor, count: Tensor, dloss: Tensor, *options: Any
) -> Any:
    chosen = cross_entropy_options(*options[:-1])
    counted = count if chosen["reduction"] == "mean" else None
    return _native.cross_entropy_backward(logits, target, lse, nll, dloss, counted, **chosen)


def _without_gradient(logits: Tensor, target: Tensor, *options: Any) -> Any:
    *chosen, dtype = options
    return _native.cross_entropy(logits, target, dtype=dtype, **cross_entropy_options(*chosen))


_OPTIONS = "SymInt ignore_index, float label_smoothing, str reduction, ScalarType dtype"

_cross_entropy = Differentiable(
    Operator(
        f"cross_entropy(Tensor logits, Tensor target, {_OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor)",
        native=_saved,
        fake=_fake,
    ),
    Operator(
        f"cross_entropy_backward(Tensor logits, Tensor target, Tensor lse, Tensor nll, Tensor count, Tensor dloss, {_OPTIONS}) -> Tensor",
        native=_gradient,
        fake=lambda logits, *rest: row_major(logits),
    ),
    save=lambda inputs, found: (*inputs[:2], *found[1:]),
    inference=_without_gradient,
).function()


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    weight: Optional[Tensor] = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    *,
    dtype: Optional[torch.dtype] = None,
) -> Tensor:
    """`torch.nn.functional.cross_entropy` for classes as targets, without class weights. Differentiable in the logits.

    dtype: the type of the loss, as if the logits were converted to it before; float32 of float16 and bfloat16 logits takes no copy of them.
    A target that is neither a class nor `ignore_index` is refused on the CPU and gives NaN on a GPU; see
    `warpwright.validate_indices`.
    """
    if weight is not None or target.is_floating_point():
        raise ValueError("cross_entropy takes neither class weights nor probabilities as targets")
    logits, dtype = of_dtype(logits, dtype)
    if logits.dim() == 2:
        return _cross_entropy(logits, target, ignore_index, label_smoothing, reduction, dtype)
    if logits.dim() == 0:
        raise ValueError("cross_entropy: expected logits [C] or [N, C, ...], got []")
    # Classes are the second dimension of more, and the only one of one.
    rows = logits.movedim(1, -1).flatten(0, -2) if logits.dim() > 2 else logits.unsqueeze(0)
    loss = _cross_entropy(rows, target.reshape(-1), ignore_index, label_smoothing, reduction, dtype)
    return loss.reshape(target.shape) if reduction == "none" else loss
