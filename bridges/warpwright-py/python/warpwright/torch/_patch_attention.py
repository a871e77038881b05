"""Queries, keys and values that one product has made: their attention has a gradient in one piece, where PyTorch puts three together.

`warpwright.torch.patch` is for users.
"""

from typing import Any, Optional

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from ._attention import attention_qkvpacked, scaled_dot_product_attention
from ._registry import is_compiling, register_composite
from ._transforms import is_wrapped

# Tensors that a tracer calls with know as much of their views as those with elements.
_PLAIN = (Tensor, FakeTensor, FunctionalTensor)


def of_parts(parts: Any, query: Tensor, key: Tensor, value: Tensor) -> Optional[Tensor]:
    """[batch, rows, 3, heads, head_dim]: of what `parts` of `_patch_blocks` took apart, if these are its parts as they were."""
    if parts is None:
        return None
    whole, found = parts
    if whole.dim() != 5 or len(found) != 3 or not (query is found[0] and key is found[1] and value is found[2]):
        return None
    return whole.permute(1, 3, 0, 2, 4) if _recorded(query) else None


def of_views(query: Tensor, key: Tensor, value: Tensor) -> Optional[Tensor]:
    """[batch, rows, heads + 2 key_heads, head_dim]: the tensor that queries [batch, heads, rows, head_dim], keys and values are views of, one
    behind the other, and nothing else is in. Code that a compiler reads knows no views: there `attention_of_views` is a call that does."""
    if is_compiling() or query.dim() != 4 or not _recorded(query) or is_wrapped(query):
        return None
    whole, parts = query._base, (query, key, value)
    if whole is None or type(whole) not in _PLAIN or not whole.requires_grad or not whole.is_contiguous() or whole.dtype != query.dtype:
        return None
    batch, heads, rows, width = query.shape
    others = key.shape[1]
    row = (heads + 2 * others) * width
    if key.shape != (batch, others, rows, width) or value.shape != key.shape or whole.numel() != batch * rows * row:
        return None
    strides, at = (rows * row, width, row, 1), whole.storage_offset()
    for part, offset in zip(parts, (0, heads * width, (heads + others) * width)):
        placed = part.storage_offset() == at + offset and all(
            found == wanted for found, wanted, n in zip(part.stride(), strides, part.shape) if n > 1
        )
        # Who looks at the gradient of a part would see none.
        watched = part._backward_hooks or part.retains_grad or not part.requires_grad
        if part._base is not whole or not placed or watched or part.is_neg() or part.is_conj():
            return None
    return whole.view(batch, rows, heads + 2 * others, width)


def _recorded(query: Tensor) -> bool:
    return torch.is_grad_enabled() and query.requires_grad


def packed_attention(packed: Tensor, heads: int, is_causal: bool, scale: Optional[float], dropout_p: float = 0.0) -> Tensor:
    """Attention of what `of_parts` and `of_views` give, as `scaled_dot_product_attention` has it."""
    o = attention_qkvpacked(packed, heads, softmax_scale=scale, causal=is_causal, alignment="top_left", dropout_p=dropout_p)
    return o.transpose(1, 2)


def _of_views(query: Tensor, key: Tensor, value: Tensor, is_causal: bool, scale: Optional[float], enable_gqa: bool) -> Tensor:
    packed = of_views(query, key, value) if query.shape[1] == key.shape[1] or enable_gqa else None
    if packed is not None:
        return packed_attention(packed, query.shape[1], is_causal, scale)
    return scaled_dot_product_attention(query, key, value, None, 0.0, is_causal, scale, enable_gqa)


attention_of_views = register_composite(
    "attention_of_views(Tensor query, Tensor key, Tensor value, bool is_causal, float? scale, bool enable_gqa) -> Tensor", _of_views
)
"""Attention without a mask, whose gradient is in one piece where queries, keys and values are views of one tensor: of tensors as a tracer of
operators sees them, which knows that."""
