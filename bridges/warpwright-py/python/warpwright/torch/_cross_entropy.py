"""`cross_entropy` as operators; `warpwright.torch` has it for users."""

from typing import Any, Optional

import torch
from torch import Tensor

from .. import _native
from .._errors import misshapen, refused
from ._common import of_dtype, row_major, statistics
from ._differentiable import Differentiable
from ._registry import Operator
from ._softmax import log_softmax


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


def _as_rows(x: Tensor) -> Tensor:
    """[C] or [N, C, ...] as [rows, C]: classes are the second dimension, and the only one of one."""
    if x.dim() == 2:
        return x
    return x.movedim(1, -1).flatten(0, -2) if x.dim() > 2 else x.unsqueeze(0)


def _reduced(losses: Tensor, count: Any, reduction: str) -> Tensor:
    """Losses of rows, of which a mean divides the sum by `count`."""
    if reduction == "none":
        return losses
    return losses.sum() / count if reduction == "mean" else losses.sum()


def _expect_shape(argument: str, x: Tensor, *expected: int) -> None:
    if tuple(x.shape) != expected:
        raise misshapen("cross_entropy", argument, x.shape, expected)


def _weighted(
    rows: Tensor, target: Tensor, weight: Tensor, ignore_index: int, reduction: str, label_smoothing: float, dtype: torch.dtype
) -> Tensor:
    """The loss of classes that have weights."""
    classes, wide = rows.shape[1], torch.promote_types(dtype, torch.float32)
    weight, ignored = weight.to(wide), target == ignore_index
    # A class that does not exist has a loss of NaN, not a weight.
    counted = torch.where(ignored, 0.0, weight[target.clamp(0, classes - 1).long()])
    losses = _cross_entropy(rows, target, ignore_index, 0.0, "none", wide) * counted
    if label_smoothing != 0:
        # No kernel adds the weighted logarithms of all classes.
        uniform = torch.where(ignored, 0.0, log_softmax(rows, 1, wide) @ weight) / classes
        losses = (1 - label_smoothing) * losses - label_smoothing * uniform
    return _reduced(losses, counted.sum(), reduction).to(dtype)


def _of_probabilities(
    rows: Tensor, target: Tensor, weight: Optional[Tensor], reduction: str, label_smoothing: float, dtype: torch.dtype
) -> Tensor:
    """The loss of distributions over the classes as targets."""
    wide = torch.promote_types(dtype, torch.float32)
    target = target.to(wide)
    if label_smoothing != 0:
        target = target * (1 - label_smoothing) + label_smoothing / rows.shape[1]
    if weight is not None:
        target = target * weight.to(wide)
    losses = -(log_softmax(rows, 1, wide) * target).sum(1)
    return _reduced(losses, rows.shape[0], reduction).to(dtype)


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
    """`torch.nn.functional.cross_entropy`. Differentiable in the logits, and in a target of probabilities.

    logits: [C] or [N, C, ...]; target: a class for each position, [] or [N, ...], or probabilities of the classes, floats in the shape of the
    logits; weight: [C]. Classes without weights are one kernel; so are classes with weights and no smoothing but for what follows of numbers
    of rows, everything else goes over `log_softmax` and takes memory for it.
    dtype: the type of the loss, as if the logits were converted to it before; float32 of float16 and bfloat16 logits takes no copy of them
    where classes are the targets.
    A target that is neither a class nor `ignore_index` is refused on the CPU and gives NaN on a GPU; see
    `warpwright.validate_indices`.
    """
    op = "cross_entropy"
    logits, dtype = of_dtype(logits, dtype)
    if logits.dim() == 0:
        raise ValueError("cross_entropy: expected logits [C] or [N, C, ...], got []")
    rows = _as_rows(logits)
    if weight is not None or target.is_floating_point():
        if reduction not in ("mean", "sum", "none"):
            raise refused(op, "reduction", reduction, "'mean', 'sum' or 'none'")
        if not 0 <= label_smoothing <= 1:
            raise refused(op, "label_smoothing", label_smoothing, "from 0 to 1")
    if weight is not None:
        _expect_shape("weight", weight, rows.shape[1])
    if target.is_floating_point():
        _expect_shape("target", target, *logits.shape)
        if ignore_index >= 0:
            raise refused(op, "ignore_index", ignore_index, "none beside probabilities as targets")
        loss = _of_probabilities(rows, _as_rows(target), weight, reduction, label_smoothing, dtype)
        kept = (*logits.shape[:1], *logits.shape[2:]) if logits.dim() > 1 else ()
    else:
        kept = target.shape
        if logits.dim() != 2:
            target = target.reshape(-1)
        if weight is None:
            loss = _cross_entropy(rows, target, ignore_index, label_smoothing, reduction, dtype)
        else:
            _expect_shape("target", target, rows.shape[0])
            loss = _weighted(rows, target, weight, ignore_index, reduction, label_smoothing, dtype)
    return loss.reshape(kept) if reduction == "none" and logits.dim() != 2 else loss
