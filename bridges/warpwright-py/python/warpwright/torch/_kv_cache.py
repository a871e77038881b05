"""The cache of keys and values as operators; `warpwright.torch` has them for users."""

from typing import Any, Optional

import torch
from torch import Tensor

from .. import _native
from .._errors import Error, refused, renamed
from ._common import row_major
from ._registry import Operator, direct, refuse_tangents

_CACHE = "Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor? key_lengths, Tensor? block_table"
_PARAMETERS = "str pairing, SymInt? rotary_dim, Tensor? k_scale=None, Tensor? v_scale=None"


def _append(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    key_lengths: Optional[Tensor],
    block_table: Optional[Tensor],
    cos: Optional[Tensor],
    sin: Optional[Tensor],
    pairing: str,
    rotary_dim: Optional[int],
    k_scale: Optional[Tensor] = None,
    v_scale: Optional[Tensor] = None,
    q: Optional[Tensor] = None,
) -> Any:
    return _native.append_kv_cache(
        k, v, k_cache, v_cache, key_lengths=key_lengths, block_table=block_table,
        q=q, cos=cos, sin=sin, pairing=pairing, rotary_dim=rotary_dim, k_scale=k_scale, v_scale=v_scale,
    )  # fmt: skip


def _append_of_queries(q: Tensor, *rest: Any) -> Any:
    return _append(*rest, q=q)


_append_operator = Operator(
    f"append_kv_cache({_CACHE}, Tensor? cos, Tensor? sin, {_PARAMETERS}) -> ()",
    native=_append,
    fake=lambda *_: None,
).register().without_gradient()

_append_of_queries_operator = Operator(
    f"append_kv_cache_of_queries(Tensor q, {_CACHE}, Tensor cos, Tensor sin, {_PARAMETERS}) -> Tensor",
    native=_append_of_queries,
    fake=lambda q, *_: row_major(q),
).register().without_gradient()


def append_kv_cache(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    key_lengths: Optional[Tensor] = None,
    block_table: Optional[Tensor] = None,
    q: Optional[Tensor] = None,
    cos: Optional[Tensor] = None,
    sin: Optional[Tensor] = None,
    pairing: str = "half",
    rotary_dim: Optional[int] = None,
    k_scale: Optional[Tensor] = None,
    v_scale: Optional[Tensor] = None,
) -> Optional[Tensor]:
    op = "append_kv_cache"
    tensors, scales = (k, v, k_cache, v_cache, key_lengths, block_table, cos, sin), (k_scale, v_scale)
    refuse_tangents(op, (q, *tensors, *scales))
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (q, *tensors, *scales)):
        raise RuntimeError(f"warpwright: {op} has no gradient: call it under torch.no_grad()")
    if (cos is None) != (sin is None) or (q is not None and cos is None):
        raise refused(op, "cos" if cos is None else "sin", None, "a tensor beside the other, and beside q")
    try:
        if q is None:
            (_append if direct(*tensors, *scales) else _append_operator)(*tensors, pairing, rotary_dim, *scales)
            return None
        function = _append_of_queries if direct(q, *tensors, *scales) else _append_of_queries_operator
        return function(q, *tensors, pairing, rotary_dim, *scales)
    except Error as error:
        raise renamed(error, op) from None


append_kv_cache.__doc__ = f"""{_native.append_kv_cache.__doc__}

Has no gradient, and refuses tensors that require one where gradients are recorded."""
