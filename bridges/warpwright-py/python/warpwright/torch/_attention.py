"""Attention as operators; `warpwright.torch` has it for users."""

import math
from typing import Any, Literal, Optional, Tuple, Union, overload

import torch
from torch import Tensor

from .. import _native
from .._errors import Error, renamed
from ._block_mask import as_block_mask
from ._common import gradient_of, narrow, random_numbers, row_major, statistics
from ._differentiable import Differentiable
from ._registry import Operator, direct, refuse_tangents

# Those that have gradients come first.
_TENSORS = (
    "Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? sinks, Tensor? slopes, Tensor? key_lengths,"
    " Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? block_table, Tensor? key_tiles, Tensor? query_tiles, Tensor? mask_bits,"
    " Tensor? random"
)
_COUNT = 14
# The last two say whether bias and sinks want their gradients.
_PARAMETERS = (
    "float softmax_scale, bool causal, SymInt left, SymInt right, bool top_left, float softcap,"
    " SymInt? max_seqlen_q, SymInt? max_seqlen_k, float dropout_p, bool bias_gradient, bool sinks_gradient"
)
_FLOAT8 = torch.float8_e4m3fn, torch.float8_e5m2
_MASK = "key_tiles", "query_tiles", "mask_bits"
_NAMES = ("bias", "sinks", "slopes", "key_lengths", "cu_seqlens_q", "cu_seqlens_k", "block_table", *_MASK, "random")


def _options(tensors: Any, parameters: Any) -> Any:
    softmax_scale, causal, left, right, top_left, softcap, max_seqlen_q, max_seqlen_k, dropout_p, *_ = parameters
    return {
        **dict(zip(_NAMES, tensors)),
        "softmax_scale": softmax_scale,
        "causal": causal,
        "window": (left, right),
        "alignment": "top_left" if top_left else "bottom_right",
        "softcap": softcap or None,
        "max_seqlen_q": max_seqlen_q,
        "max_seqlen_k": max_seqlen_k,
        "dropout_p": dropout_p,
    }


def _check_alignment(op: str, alignment: str) -> None:
    if alignment not in ("bottom_right", "top_left"):
        raise ValueError(f"{op}: alignment is '{alignment}', expected 'bottom_right' or 'top_left'")


def _forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Any:
    return _native.attention(q, k, v, **_options(rest[: _COUNT - 3], rest[_COUNT - 3 :]))


def _backward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Any:
    tensors, (o, lse, dy, *parameters) = rest[: _COUNT - 3], rest[_COUNT - 3 :]
    *_, dbias, dsinks = parameters
    wanted = {"bias_gradient": dbias, "sinks_gradient": dsinks}
    dq, dk, dv, *more = _native.attention_backward(q, k, v, o, lse, dy, **_options(tensors, parameters), **wanted)
    more.reverse()
    return dq, dk, dv, more.pop() if dbias else None, more.pop() if dsinks else None


def _fake(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Any:
    batch, queries, heads, _ = q.shape
    return q.new_empty((batch, queries, heads, v.shape[3])), statistics(q, (batch, heads, queries))


def _fake_backward(q: Tensor, k: Tensor, v: Tensor, bias: Any, sinks: Any, *rest: Any) -> Any:
    *_, dbias, dsinks = rest
    further = [gradient_of(t if wanted else None, q) for t, wanted in ((bias, dbias), (sinks, dsinks))]
    return (row_major(q), row_major(k), row_major(v), *further)


_attention = Differentiable(
    Operator(f"attention({_TENSORS}, {_PARAMETERS}) -> (Tensor, Tensor)", native=_forward, fake=_fake),
    Operator(
        f"attention_backward({_TENSORS}, Tensor o, Tensor lse, Tensor dy, {_PARAMETERS})"
        " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
        native=_backward,
        fake=_fake_backward,
    ),
    save=lambda inputs, found: (*inputs[:_COUNT], *found),
    returned=2,
).function()


def _forward_float8(*arguments: Any) -> Any:
    (q, k, v, *rest), (k_scale, v_scale, *parameters) = arguments[:_COUNT], arguments[_COUNT:]
    return _native.attention(q, k, v, **_options(rest, parameters), k_scale=k_scale, v_scale=v_scale)


_attention_float8 = Operator(
    f"attention_float8_cache({_TENSORS}, Tensor? k_scale, Tensor? v_scale, {_PARAMETERS}) -> (Tensor, Tensor)",
    native=_forward_float8,
    fake=_fake,
).register().without_gradient()


def _of_float8_cache(tensors: Any, scales: Any, parameters: Any) -> Any:
    """Attention over a cache of 8-bit floats, without a gradient."""
    everything = (*tensors, *scales)
    refuse_tangents("attention", everything)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in everything):
        raise RuntimeError("warpwright: attention has no gradient with k_scale and v_scale: call it under torch.no_grad()")
    function = _forward_float8 if direct(*everything) else _attention_float8
    try:
        return function(*everything, *parameters, False, False)
    except Error as error:
        raise renamed(error, "attention") from None


# The parameters are those of the definition below.
@overload
def attention(q: Tensor, k: Tensor, v: Tensor, *, return_lse: Literal[False] = False, **options: Any) -> Tensor: ...
@overload
def attention(q: Tensor, k: Tensor, v: Tensor, *, return_lse: Literal[True], **options: Any) -> Tuple[Tensor, Tensor]: ...
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window: Tuple[int, int] = (-1, -1),
    alignment: str = "bottom_right",
    softcap: Optional[float] = None,
    bias: Optional[Tensor] = None,
    slopes: Optional[Tensor] = None,
    key_lengths: Optional[Tensor] = None,
    cu_seqlens_q: Optional[Tensor] = None,
    cu_seqlens_k: Optional[Tensor] = None,
    max_seqlen_q: Optional[int] = None,
    max_seqlen_k: Optional[int] = None,
    block_table: Optional[Tensor] = None,
    sinks: Optional[Tensor] = None,
    dropout_p: float = 0.0,
    random: Optional[Tensor] = None,
    k_scale: Optional[Tensor] = None,
    v_scale: Optional[Tensor] = None,
    block_mask: Any = None,
    return_lse: bool = False,
) -> Union[Tensor, Tuple[Tensor, Tensor]]:
    _check_alignment("attention", alignment)
    if slopes is not None and slopes.requires_grad and torch.is_grad_enabled():
        raise ValueError("attention gives no gradient of slopes: pass slopes.detach()")
    q, k, v = narrow(q, k, v)
    scale = 1 / math.sqrt(max(q.shape[-1], 1)) if softmax_scale is None else softmax_scale
    if bias is not None:
        bias = bias.to(q.dtype)
    if sinks is not None:
        sinks = sinks.float()
    if dropout_p and random is None:
        random = random_numbers(q)
    mask: Any = (None,) * len(_MASK)
    if block_mask is not None:
        mask = as_block_mask(block_mask, "attention", q.shape[1], k.shape[1]).tensors
    tensors = q, k, v, bias, sinks, slopes, key_lengths, cu_seqlens_q, cu_seqlens_k, block_table, *mask, random
    gradients = (t is not None and t.requires_grad for t in (bias, sinks))
    top_left = alignment == "top_left"
    parameters = scale, causal, *window, top_left, softcap or 0.0, max_seqlen_q, max_seqlen_k, dropout_p
    if k_scale is not None or v_scale is not None or k.dtype in _FLOAT8 or v.dtype in _FLOAT8:
        o, lse = _of_float8_cache(tensors, (k_scale, v_scale), parameters)
    else:
        o, lse = _attention(*tensors, *parameters, *gradients)
    return (o, lse) if return_lse else o


attention.__doc__ = f"""{_native.attention.__doc__}

Here the result is o alone, or (o, lse) with return_lse, of which lse has no gradient. With dropout_p and no random, seed and
offset are drawn from PyTorch's default generator of the device. Differentiable in q, k, v, bias and sinks; not over caches of 8-bit floats. block_mask takes the place of key_tiles, query_tiles and
mask_bits: a `BlockMask`, or one of `torch.nn.attention.flex_attention`, which is converted in every call; convert it once with
`BlockMask.from_flex` where it is used again."""


# The options of packed queries, keys and values.
_PACKED_PARAMETERS = (
    "SymInt num_heads, float softmax_scale, bool causal, SymInt left, SymInt right, bool top_left, float softcap, float dropout_p"
)


def _split(qkv: Tensor, heads: int) -> Tuple[Tensor, Tensor, Tensor]:
    others = (qkv.shape[2] - heads) // 2
    return qkv[:, :, :heads], qkv[:, :, heads : heads + others], qkv[:, :, heads + others :]


def _packed_options(random: Optional[Tensor], parameters: Any) -> Any:
    *common, dropout_p = parameters
    return _options((*[None] * (len(_NAMES) - 1), random), (*common, None, None, dropout_p))


def _packed_forward(qkv: Tensor, random: Optional[Tensor], heads: int, *parameters: Any) -> Any:
    return _native.attention(*_split(qkv, heads), **_packed_options(random, parameters))


def _packed_backward(qkv: Tensor, random: Any, o: Tensor, lse: Tensor, dy: Tensor, heads: int, *parameters: Any) -> Any:
    dqkv = row_major(qkv)
    _native.attention_backward(
        *_split(qkv, heads), o, lse, dy, **_packed_options(random, parameters), out=_split(dqkv, heads)
    )
    return dqkv


def _packed_fake(qkv: Tensor, random: Any, heads: int, *_: Any) -> Any:
    batch, rows, _, head_dim = qkv.shape
    return qkv.new_empty((batch, rows, heads, head_dim)), statistics(qkv, (batch, heads, rows))


_attention_qkvpacked = Differentiable(
    Operator(
        f"attention_qkvpacked(Tensor qkv, Tensor? random, {_PACKED_PARAMETERS}) -> (Tensor, Tensor)",
        native=_packed_forward,
        fake=_packed_fake,
    ),
    Operator(
        f"attention_qkvpacked_backward(Tensor qkv, Tensor? random, Tensor o, Tensor lse, Tensor dy, {_PACKED_PARAMETERS}) -> Tensor",
        native=_packed_backward,
        fake=lambda qkv, *_: row_major(qkv),
    ),
    save=lambda inputs, found: (*inputs[:2], *found),
    returned=1,
).function()


def attention_qkvpacked(
    qkv: Tensor,
    num_heads: Optional[int] = None,
    *,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window: Tuple[int, int] = (-1, -1),
    alignment: str = "bottom_right",
    softcap: Optional[float] = None,
    dropout_p: float = 0.0,
    random: Optional[Tensor] = None,
) -> Tensor:
    """`attention` of queries, keys and values that one product has made, whose gradient comes in one piece as well.

    qkv: [batch, rows, 3, heads, head_dim], as `flash_attn_qkvpacked_func` takes it; or, with num_heads, [batch, rows, num_heads + 2
    num_kv_heads, head_dim], the heads of the queries before those of keys and of values. The options are those of `attention`. The result is
    [batch, rows, heads, head_dim]. Differentiable in qkv.
    """
    if qkv.dim() == 5 and qkv.shape[2] == 3 and num_heads in (None, qkv.shape[3]):
        num_heads, qkv = qkv.shape[3], qkv.flatten(2, 3)
    elif qkv.dim() != 4 or num_heads is None or not 0 < num_heads < qkv.shape[2] or (qkv.shape[2] - num_heads) % 2:
        raise ValueError(
            f"attention_qkvpacked: qkv is {list(qkv.shape)} and num_heads {num_heads}, expected [batch, rows, 3, heads, head_dim], or"
            " [batch, rows, num_heads + 2 num_kv_heads, head_dim] with num_heads"
        )
    _check_alignment("attention_qkvpacked", alignment)
    (qkv,) = narrow(qkv)
    if dropout_p and random is None:
        random = random_numbers(qkv)
    scale = 1 / math.sqrt(max(qkv.shape[-1], 1)) if softmax_scale is None else softmax_scale
    parameters = scale, causal, *window, alignment == "top_left", softcap or 0.0, dropout_p
    return _attention_qkvpacked(qkv, random, num_heads, *parameters)


@overload
def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, *rest: Any, return_lse: Literal[False] = False, **options: Any
) -> Tensor: ...
@overload
def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, *rest: Any, return_lse: Literal[True], **options: Any
) -> Tuple[Tensor, Tensor]: ...
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Optional[Tensor] = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Optional[float] = None,
    enable_gqa: bool = False,
    *,
    return_lse: bool = False,
) -> Union[Tensor, Tuple[Tensor, Tensor]]:
    """`torch.nn.functional.scaled_dot_product_attention`. Differentiable in query, key, value and attn_mask.

    query: [batch, heads, queries, head_dim]; key, value: [batch, heads, keys, head_dim]; without the batch as well. attn_mask:
    boolean (True takes part) or added to the scores, of a shape that broadcasts to [batch, heads, queries, keys]. A query that
    takes no part in anything gives zeros. What dropout drops follows from PyTorch's default generator of the device, but is not what
    PyTorch would drop. The result has the strides of [batch, queries, heads, head_dim] in row-major order. With return_lse the result is
    (o, lse): lse [batch, heads, queries] holds the logarithm of each query's sum of exponentials, -inf for a query that takes no part in
    anything, in float32 (float64 for float64), without a gradient.
    """
    if is_causal and attn_mask is not None:
        raise ValueError("scaled_dot_product_attention takes either attn_mask or is_causal")
    if query.dim() == key.dim() == value.dim() == 3:
        mask = attn_mask if attn_mask is None or attn_mask.dim() < 3 else attn_mask.unsqueeze(0)
        one = (t.unsqueeze(0) for t in (query, key, value))
        o, lse = scaled_dot_product_attention(*one, mask, dropout_p, is_causal, scale, enable_gqa, return_lse=True)
        return (o.squeeze(0), lse.squeeze(0)) if return_lse else o.squeeze(0)
    if not enable_gqa and query.dim() == 4 and key.dim() == 4 and query.shape[1] != key.shape[1]:
        heads = f"{query.shape[1]} heads of queries and {key.shape[1]} of keys"
        raise ValueError(f"scaled_dot_product_attention: {heads} need enable_gqa=True")
    bias = attn_mask
    if bias is not None:
        if bias.dtype == torch.bool:
            bias = torch.zeros_like(bias, dtype=query.dtype).masked_fill_(~bias, -math.inf)
        bias = bias[(None,) * (4 - bias.dim())]
    q, k, v = (t.transpose(1, 2) if t.dim() == 4 else t for t in (query, key, value))
    options = {"softmax_scale": scale, "causal": is_causal, "alignment": "top_left", "bias": bias}
    o, lse = attention(q, k, v, dropout_p=dropout_p, return_lse=True, **options)
    return (o.transpose(1, 2), lse) if return_lse else o.transpose(1, 2)
