"""Softmax; `warpwright.jax` has it for users."""

from typing import Any, Callable

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from ._call import Lead, call
from ._common import documented, from_end
from ._differentiable import differentiable


def _softmax(name: str) -> Callable[..., Array]:
    def forward(x: Array, *, save: bool, axis: int, scale: float) -> Any:
        y = call(name, Lead(x), axis, scale=scale)
        return y, y

    def backward(y: Array, dy: Array, wanted: Any, *, axis: int, scale: float) -> Any:
        return (call(f"{name}_backward", Lead(y), Lead(dy), axis, scale=scale),)

    operation = differentiable(forward, backward)

    def function(x: ArrayLike, dim: int = -1, *, scale: float = 1.0) -> Array:
        return operation(x, axis=from_end(dim, jnp.ndim(x)), scale=float(scale))

    more = f"As `jax.nn.{name}` of `scale * x` with axis `dim`. Differentiable in x. Raises `DtypeError` and `ParameterError`."
    return documented(function, name, more)


softmax, log_softmax = _softmax("softmax"), _softmax("log_softmax")
