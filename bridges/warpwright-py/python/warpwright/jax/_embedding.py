"""Embeddings; `warpwright.jax` has them for users."""

from typing import Any, Optional

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from .._errors import Error, refused, renamed
from ._call import Lead, Operand, call
from ._differentiable import differentiable


def _forward(weight: Array, indices: Array, *, save: bool, **options: Any) -> Any:
    # The shape is kept, the weight itself is not.
    return call("embedding", Operand(weight), Lead(indices)), (jnp.empty((weight.shape[0], 0)), indices)


def _backward(saved: Any, dy: Array, wanted: Any, **options: Any) -> Any:
    rows, indices = saved
    return call("embedding_backward", Operand(dy), Operand(indices), rows.shape[0], **options), None


_embedding = differentiable(_forward, _backward)


def embedding(
    input: ArrayLike, weight: ArrayLike, padding_idx: Optional[int] = None, scale_grad_by_freq: bool = False
) -> Array:
    """`torch.nn.functional.embedding`: the rows of weight [num_embeddings, dim] that input names, [..., dim].

    input: int32 or int64, any shape; weight: float32, float64, float16 or bfloat16. An index that is no row gives NaN. padding_idx: a row that has
    no gradient; scale_grad_by_freq: gradients of a row are divided by how often it is named. Differentiable in weight, whose gradient is the
    same in every run. Raises `ShapeError`, `DtypeError` and `ParameterError`.
    """
    weight = jnp.asarray(weight)
    if padding_idx is not None and weight.ndim:
        count = weight.shape[0]
        if not -count <= padding_idx < count:
            raise refused("embedding", "padding_idx", padding_idx, f"a row of {count}")
        padding_idx = int(padding_idx) % count
    try:
        return _embedding(weight, input, padding_idx=padding_idx, scale_grad_by_freq=bool(scale_grad_by_freq))
    except Error as error:
        raise renamed(error, "embedding", indices="input") from None
