"""Cross entropy; `warpwright.jax` has it for users."""

from typing import Any, Optional

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from ._call import Fold, Operand, call
from ._common import given
from ._differentiable import differentiable


def _forward(logits: Array, target: Array, *, save: bool, dtype: Optional[str], **options: Any) -> Any:
    kind = Fold if options["reduction"] == "none" else Operand
    found = call("cross_entropy", kind(logits), kind(target), dtype=dtype, statistics=save, **options)
    return (found[0], (logits, target, *found[1:])) if save else (found, None)


def _backward(saved: Any, dloss: Array, wanted: Any, *, dtype: Optional[str], **options: Any) -> Any:
    logits, target, lse, nll, *count = saved
    kind = Fold if options["reduction"] == "none" else Operand
    rows = [kind(a) for a in (logits, target, lse, nll, dloss)]
    return call("cross_entropy_backward", *rows, given(Operand, count[0] if count else None), **options), None


_cross_entropy = differentiable(_forward, _backward)


def cross_entropy(
    logits: ArrayLike,
    target: ArrayLike,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    *,
    dtype: Any = None,
) -> Array:
    """`torch.nn.functional.cross_entropy` for classes as targets, without class weights.

    logits: float32, float64, float16 or bfloat16, [N, C] or [N, C, ...] or [C]; target: int32 or int64, [N], [N, ...] or []. A target that is
    `ignore_index` does not count; one that is neither a class nor that gives NaN. label_smoothing: the share of the target distribution that is
    spread over all classes. reduction: "mean" over the targets that count, "sum" or "none". dtype: the type of the loss, that of logits, or
    float32 for float16 and bfloat16 logits. Differentiable in the logits. Raises `ShapeError`, `DtypeError` and `ParameterError`.
    """
    logits, target = jnp.asarray(logits), jnp.asarray(target)
    # Classes are the second dimension of more, and the only one of one.
    rows, classes = logits, target
    if logits.ndim == 1:
        rows, classes = logits[None], target[None]
    elif logits.ndim > 2:
        rows, classes = jnp.moveaxis(logits, 1, -1).reshape(-1, logits.shape[1]), target.reshape(-1)
    loss = _cross_entropy(
        rows,
        classes,
        dtype=None if dtype is None else jnp.dtype(dtype).name,
        ignore_index=int(ignore_index),
        label_smoothing=float(label_smoothing),
        reduction=reduction,
    )
    return loss.reshape(target.shape) if reduction == "none" else loss
