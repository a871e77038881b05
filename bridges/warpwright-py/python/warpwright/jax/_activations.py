"""Activations; `warpwright.jax` has them for users."""

from typing import Any, Callable

from jax import Array
from jax.typing import ArrayLike

from ._call import Lead, call
from ._common import documented
from ._differentiable import differentiable

_UNARY = "Differentiable in x. Raises `DtypeError`."
_GATED = "Differentiable in both. Raises `DtypeError` and `ShapeError`."


def _operation(name: str) -> Callable[..., Any]:
    """A native function of arrays of one shape, then of numbers, and its gradient."""

    def forward(*arrays: Array, save: bool, numbers: Any = ()) -> Any:
        return call(name, *map(Lead, arrays), *numbers), arrays

    def backward(arrays: Any, dy: Array, wanted: Any, *, numbers: Any = ()) -> Any:
        found = call(f"{name}_backward", *map(Lead, arrays), Lead(dy), *numbers)
        return found if isinstance(found, tuple) else (found,)

    return differentiable(forward, backward)


def _unary(name: str) -> Callable[[ArrayLike], Array]:
    operation = _operation(name)

    def function(x: ArrayLike) -> Array:
        return operation(x)

    return documented(function, name, _UNARY)


def _gated(name: str) -> Callable[[ArrayLike, ArrayLike], Array]:
    operation = _operation(name)

    def function(gate: ArrayLike, up: ArrayLike) -> Array:
        return operation(gate, up)

    return documented(function, name, _GATED)


relu, gelu_tanh, gelu_erf = _unary("relu"), _unary("gelu_tanh"), _unary("gelu_erf")
silu, sigmoid, tanh = _unary("silu"), _unary("sigmoid"), _unary("tanh")
swiglu, geglu, geglu_tanh = _gated("swiglu"), _gated("geglu"), _gated("geglu_tanh")
_leaky_relu, _softplus = _operation("leaky_relu"), _operation("softplus")


def leaky_relu(x: ArrayLike, negative_slope: float = 0.01) -> Array:
    return _leaky_relu(x, numbers=(float(negative_slope),))


def softplus(x: ArrayLike, beta: float = 1.0) -> Array:
    return _softplus(x, numbers=(float(beta),))


for _function in (leaky_relu, softplus):
    documented(_function, _function.__name__, _UNARY)
