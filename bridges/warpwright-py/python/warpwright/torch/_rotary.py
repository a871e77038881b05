"""Rotary position embedding as operators; `warpwright.torch` has it for users."""

from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from .. import _native
from .._errors import Error, misranked, misshapen, renamed
from ._common import row_major
from ._differentiable import Differentiable
from ._registry import Operator

_TABLES = "Tensor cos, Tensor sin, Tensor? positions"
_PARAMETERS = "str pairing, SymInt offset, SymInt? rotary_dim"


def _options(positions: Optional[Tensor], pairing: str, offset: int, rotary_dim: Optional[int]) -> Any:
    return {"positions": positions, "pairing": pairing, "offset": offset, "rotary_dim": rotary_dim}


def _forward(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *rest: Any) -> Any:
    return _native.rotary_embedding(q, k, cos, sin, **_options(*rest))


def _backward(cos: Tensor, sin: Tensor, positions: Any, dq: Tensor, dk: Tensor, *rest: Any) -> Any:
    *parameters, mask = rest
    options = _options(positions, *parameters)
    if mask[0] and mask[1]:
        return _native.rotary_embedding_backward(dq, dk, cos, sin, **options)
    one = _native.rotary_embedding_backward(dq if mask[0] else dk, None, cos, sin, **options)
    return (one, None) if mask[0] else (None, one)


def _fake_backward(cos: Tensor, sin: Tensor, positions: Any, dq: Tensor, dk: Tensor, *rest: Any) -> Any:
    mask = rest[-1]
    return (row_major(dq) if mask[0] else None, row_major(dk) if mask[1] else None)


_rotary_embedding = Differentiable(
    Operator(
        f"rotary_embedding(Tensor q, Tensor k, {_TABLES}, {_PARAMETERS}) -> (Tensor, Tensor)",
        native=_forward,
        fake=lambda q, k, *rest: (row_major(q), row_major(k)),
    ),
    Operator(
        f"rotary_embedding_backward({_TABLES}, Tensor dq, Tensor dk, {_PARAMETERS}, bool[] output_mask) -> (Tensor, Tensor)",
        native=_backward,
        fake=_fake_backward,
    ),
    save=lambda inputs, found: inputs[2:5],
    results=2,
).function()

_rotary_embedding_of_one = Differentiable(
    Operator(
        f"rotary_embedding_of_one(Tensor q, {_TABLES}, {_PARAMETERS}) -> Tensor",
        native=lambda q, cos, sin, *rest: _native.rotary_embedding(q, None, cos, sin, **_options(*rest)),
        fake=lambda q, *rest: row_major(q),
    ),
    Operator(
        f"rotary_embedding_of_one_backward({_TABLES}, Tensor dq, {_PARAMETERS}) -> Tensor",
        native=lambda cos, sin, positions, dq, *rest: _native.rotary_embedding_backward(
            dq, None, cos, sin, **_options(positions, *rest)
        ),
        fake=lambda cos, sin, positions, dq, *rest: row_major(dq),
    ),
    save=lambda inputs, found: inputs[1:4],
).function()


def rotary_embedding(
    q: Tensor,
    k: Optional[Tensor],
    cos: Tensor,
    sin: Tensor,
    *,
    pairing: str = "half",
    positions: Optional[Tensor] = None,
    offset: int = 0,
    rotary_dim: Optional[int] = None,
) -> Any:
    op = "rotary_embedding"
    for name, table in (("cos", cos), ("sin", sin)):
        if table.requires_grad and torch.is_grad_enabled():
            raise ValueError(f"{op} gives no gradient of {name}: pass {name}.detach()")
    rest = cos, sin, positions, pairing, offset, rotary_dim
    if k is None:
        try:
            return _rotary_embedding_of_one(q, *rest)
        except Error as error:
            raise renamed(error, op) from None
    return _rotary_embedding(q, k, *rest)


rotary_embedding.__doc__ = f"""{_native.rotary_embedding.__doc__}

Differentiable in q and k. Autocast does not change the dtypes; results are in row-major order."""


def apply_rotary_pos_emb(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
) -> Tuple[Tensor, Tensor]:
    """`apply_rotary_pos_emb` of the Llama of transformers: `q cos + rotate_half(q) sin`, and the same of k.

    q, k: [batch, heads, steps, head_dim], or [batch, steps, heads, head_dim] with unsqueeze_dim=2, of any strides whose last is 1; cos, sin:
    [batch, steps, rotary_dim] or [1, steps, rotary_dim], of which the second half repeats the first, in float32 or the dtype of q.
    Elements of a head from rotary_dim on stay as they are. The results have the dtype of q, and lie in memory as [batch, steps, heads,
    head_dim] do. Differentiable in q and k.
    """
    op = "apply_rotary_pos_emb"
    if unsqueeze_dim not in (1, 2):
        raise ValueError(f"{op}: unsqueeze_dim is {unsqueeze_dim}, expected 1 or 2")
    for name, x, rank in (("q", q, 4), ("k", k, 4), ("cos", cos, 3)):
        if x.dim() != rank:
            raise misranked(op, name, x.dim(), rank)
    steps = q.shape[3 - unsqueeze_dim]
    if cos.shape[1] != steps:
        raise misshapen(op, "cos", cos.shape, (cos.shape[0], steps, cos.shape[2]))
    if unsqueeze_dim == 1:
        q, k = q.transpose(1, 2), k.transpose(1, 2)
    try:
        q, k = rotary_embedding(q, k, cos, sin, rotary_dim=cos.shape[2])
    except Error as error:
        raise renamed(error, op) from None
    return (q.transpose(1, 2), k.transpose(1, 2)) if unsqueeze_dim == 1 else (q, k)
