"""`cross_entropy` as operators; `warpwright.torch` has it for users."""

from typing import Any, Optional

from torch import Tensor

from .. import _native
from ._common import row_major, statistics, wide
from ._differentiable import Differentiable
from ._registry import Operator


def cross_entropy_options(ignore_index: int, label_smoothing: float, reduction: str) -> Any:
    """Keywords of the native functions."""
    return {"ignore_index": ignore_index, "label_smoothing": label_smoothing, "reduction": reduction}


def _saved(logits: Tensor, target: Tensor, *options: Any) -> Any:
    found = _native.cross_entropy(logits, target, statistics=True, **cross_entropy_options(*options))
    # Only a mean counts rows.
    return found if len(found) == 4 else (*found, statistics(logits, 0))


def _fake(logits: Tensor, target: Tensor, ignore_index: int, label_smoothing: float, reduction: str) -> Any:
    rows = logits.shape[:1]
    loss = logits.new_empty(rows if reduction == "none" else ())
    count = statistics(logits, () if reduction == "mean" else 0)
    return loss, statistics(logits, rows), statistics(logits, rows), count


def _gradient(
    logits: Tensor, target: Tensor, lse: Tensor, nll: Tensor, count: Tensor, dloss: Tensor, *options: Any
) -> Any:
    chosen = cross_entropy_options(*options)
    counted = count if chosen["reduction"] == "mean" else None
    return _native.cross_entropy_backward(logits, target, lse, nll, dloss, counted, **chosen)


_cross_entropy = Differentiable(
    Operator(
        "cross_entropy(Tensor logits, Tensor target, SymInt ignore_index, float label_smoothing, str reduction)"
        " -> (Tensor, Tensor, Tensor, Tensor)",
        native=_saved,
        fake=_fake,
    ),
    Operator(
        "cross_entropy_backward(Tensor logits, Tensor target, Tensor lse, Tensor nll, Tensor count, Tensor dloss, "
        "SymInt ignore_index, float label_smoothing, str reduction) -> Tensor",
        native=_gradient,
        fake=lambda logits, *rest: row_major(logits),
    ),
    save=lambda inputs, found: (*inputs[:2], *found[1:]),
    inference=lambda logits, target, *options: _native.cross_entropy(logits, target, **cross_entropy_options(*options)),
).function()


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    weight: Optional[Tensor] = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """`torch.nn.functional.cross_entropy` for classes as targets, without class weights. Differentiable in the logits.

    A target that is neither a class nor `ignore_index` is refused on the CPU and gives NaN on a GPU; see
    `warpwright.validate_indices`.
    """
    if weight is not None or target.is_floating_point():
        raise ValueError("cross_entropy takes neither class weights nor probabilities as targets")
    (logits,) = wide(logits)
    if logits.dim() == 2:
        return _cross_entropy(logits, target, ignore_index, label_smoothing, reduction)
    if logits.dim() == 0:
        raise ValueError("cross_entropy: expected logits [C] or [N, C, ...], got []")
    # Classes are the second dimension of more, and the only one of one.
    rows = logits.movedim(1, -1).flatten(0, -2) if logits.dim() > 2 else logits.unsqueeze(0)
    loss = _cross_entropy(rows, target.reshape(-1), ignore_index, label_smoothing, reduction)
    return loss.reshape(target.shape) if reduction == "none" else loss
