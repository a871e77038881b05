"""Rotary position embedding; `warpwright.jax` has it for users."""

from typing import Any, Optional

from jax import Array
from jax.typing import ArrayLike

from ._call import Fold, Operand, call
from ._common import documented, given, no_gradient
from ._differentiable import differentiable


def _rotated(name: str, arrays: Any, tables: Any, options: Any) -> Any:
    # Tables and positions of each batch take no further samples.
    cos, _, positions = tables
    kind = Operand if cos.ndim > 2 or (positions is not None and positions.ndim > 1) else Fold
    q, k = (given(kind, a) for a in arrays)
    cos, sin, positions = (given(Operand, a) for a in tables)
    return call(name, q, k, cos, sin, positions=positions, **options)


def _forward(q: Array, k: Optional[Array], *tables: Any, save: bool, **options: Any) -> Any:
    return _rotated("rotary_embedding", (q, k), tables, options), tables


def _backward(tables: Any, dys: Any, wanted: Any, **options: Any) -> Any:
    _, _, *of_tables = wanted
    for name, is_wanted in zip(("cos", "sin"), of_tables):
        if is_wanted:
            raise no_gradient("rotary_embedding", name)
    dys = dys if isinstance(dys, (tuple, list)) else (dys, None)
    found = _rotated("rotary_embedding_backward", dys, tables, options)
    return (*(found if isinstance(found, tuple) else (found, None)), None, None, None)


_rotary_embedding = differentiable(_forward, _backward)


def rotary_embedding(
    q: ArrayLike,
    k: Optional[ArrayLike],
    cos: ArrayLike,
    sin: ArrayLike,
    *,
    pairing: str = "half",
    positions: Optional[ArrayLike] = None,
    offset: int = 0,
    rotary_dim: Optional[int] = None,
) -> Any:
    options = {"pairing": pairing, "offset": int(offset), "rotary_dim": rotary_dim}
    return _rotary_embedding(q, k, cos, sin, positions, **options)


documented(
    rotary_embedding,
    "rotary_embedding",
    "Here a position without a row gives NaN on the host too. Differentiable in q and k. Raises `ShapeError`, `DtypeError` and `ParameterError`.",
)
