"""Attention; `warpwright.jax` has it for users."""

import math
from typing import Any, Optional, Tuple

import jax.numpy as jnp
from jax.typing import ArrayLike

from ._call import Fold, Operand, call
from ._common import documented, given, no_gradient
from ._differentiable import differentiable

# Beside queries, keys and values, in the order of the function below.
_NAMES = ("bias", "sinks", "slopes", "key_lengths", "cu_seqlens_q", "cu_seqlens_k", "block_table")


def _operands(arrays: Any, further: Any = (), of_bias: bool = False, of_sinks: bool = False) -> Any:
    """Queries, keys, values and further arrays of their batch as operands, and the others as keywords. of_bias, of_sinks: whether their
    gradients are wanted."""
    q, *_ = arrays
    named = dict(zip(_NAMES, arrays[3:]))
    # Beside batches, not for all of them together.
    of_batch = {n for n in ("bias", "key_lengths") if named[n] is not None and named[n].shape[:1] == q.shape[:1]}
    if named["slopes"] is not None and named["slopes"].ndim > 1:
        of_batch.add("slopes")
    # What all samples share has a gradient for each; pages and packed sequences have no place for further ones.
    is_apart = of_sinks or (of_bias and "bias" not in of_batch)
    is_apart = is_apart or any(named[n] is not None for n in ("cu_seqlens_q", "block_table"))
    kind = Operand if is_apart else Fold
    others = {n: given(kind if n in of_batch else Operand, a) for n, a in named.items()}
    return [kind(a) for a in (*arrays[:3], *further)], others


def _forward(*arrays: Any, save: bool, **options: Any) -> Any:
    operands, others = _operands(arrays)
    o, lse = call("attention", *operands, **others, **options)
    return (o, lse), (arrays, o, lse)


def _backward(saved: Any, dys: Any, wanted: Any, **options: Any) -> Any:
    arrays, o, lse = saved
    _, _, _, of_bias, of_sinks, of_slopes, *_ = wanted
    if of_slopes:
        raise no_gradient("attention", "slopes")
    operands, others = _operands(arrays, (o, lse, dys[0]), of_bias, of_sinks)
    flags = {"bias_gradient": of_bias, "sinks_gradient": of_sinks}
    dq, dk, dv, *more = call("attention_backward", *operands, **others, **options, **flags)
    more.reverse()
    gradients = dq, dk, dv, more.pop() if of_bias else None, more.pop() if of_sinks else None
    return (*gradients, *[None] * (len(arrays) - len(gradients)))


_attention = differentiable(_forward, _backward)


def attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window: Tuple[int, int] = (-1, -1),
    alignment: str = "bottom_right",
    softcap: Optional[float] = None,
    bias: Optional[ArrayLike] = None,
    slopes: Optional[ArrayLike] = None,
    key_lengths: Optional[ArrayLike] = None,
    cu_seqlens_q: Optional[ArrayLike] = None,
    cu_seqlens_k: Optional[ArrayLike] = None,
    max_seqlen_q: Optional[int] = None,
    max_seqlen_k: Optional[int] = None,
    block_table: Optional[ArrayLike] = None,
    sinks: Optional[ArrayLike] = None,
    return_lse: bool = False,
) -> Any:
    q, bias = jnp.asarray(q), None if bias is None else jnp.asarray(bias)
    others = bias, sinks, slopes, key_lengths, cu_seqlens_q, cu_seqlens_k, block_table
    o, lse = _attention(
        q,
        k,
        v,
        *others,
        softmax_scale=1 / math.sqrt(max(q.shape[-1], 1)) if softmax_scale is None and q.ndim else softmax_scale,
        causal=bool(causal),
        window=(int(window[0]), int(window[1])),
        alignment=alignment,
        softcap=softcap or None,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
    )
    return (o, lse) if return_lse else o


documented(
    attention,
    "attention",
    """Here the result is o alone, or (o, lse) with return_lse, of which lse has no gradient. There is no dropout, and no number in an array is looked at on
the host either: those that lead outside are cut. The layout is that of `jax.nn.dot_product_attention`. Differentiable in q, k, v, bias and sinks,
without block_table. Raises `ShapeError`, `DtypeError` and `ParameterError`.""",
)
