"""Queries, keys and values that one product has made: their attention has a gradient in one piece, where PyTorch puts three together.

`warpwright.torch.patch` is for users.
"""

from typing import Any, Optional

import torch
from torch import Tensor

from ._registry import is_compiling
from ._transforms import is_wrapped


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
    behind the other, and nothing else is in. A compiler knows no views."""
    if is_compiling() or query.dim() != 4 or not _recorded(query) or is_wrapped(query):
        return None
    whole, parts = query._base, (query, key, value)
    if whole is None or type(whole) is not Tensor or not whole.is_contiguous() or whole.dtype != query.dtype:
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
