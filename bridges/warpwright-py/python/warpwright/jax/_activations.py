"""Activations; `warpwright.jax` has them for users."""

from typing import Any, Callable

from jax import Array
from jax.typing import ArrayLike

from .. import _native
from ._call import Lead, call
from ._differentiable import differentiable


def _operation(name: str) -> Callable[..., Any]:
    """A native function of arrays of one shape, then of numbers, and its gradient."""

    def forward(*arrays: Array, save: bool, numbers: Any = ()) -> Any:
        return call(name, *map(Lead, arrays), *numbers), arrays

    def backward(arrays: Any, dy: Array, wanted: Any, *, numbers: Any = ()) -> Any:
        found = call(f"{name}_backward", *map(Lead, arrays), Lead(dy), *numbers)
        return found if isinstance(found, tuple) else (found,)

    return differentiable(forward, backward)


def _documented(function: Callable[..., Any], name: str, arguments: str) -> Callable[..., Any]:
    function.__name__ = function.__qualname__ = name
    first, rest = getattr(_native, name).__doc__.split("\n\n")
    rest = rest.split("`out`")[0].rstrip(" ;\n").rstrip(".")
    function.__doc__ = f"{first}\n\n{rest}.\nDifferentiable in {arguments}. Raises `DtypeError` and `ShapeError`."
    return function


def _unary(name: str) -> Callable[[ArrayLike], Array]:
    operation = _operation(name)

    def function(x: ArrayLike) -> Array:
        return operation(x)

    return _documented(function, name, "x")


def _gated(name: str) -> Callable[[ArrayLike, ArrayLike], Array]:
    operation = _operation(name)

    def function(gate: ArrayLike, up: ArrayLike) -> Array:
        return operation(gate, up)

    return _documented(function, name, "both")


relu, gelu_tanh, gelu_erf = _unary("relu"), _unary("gelu_tanh"), _unary("gelu_erf")
silu, sigmoid, tanh = _unary("silu"), _unary("sigmoid"), _unary("tanh")
swiglu, geglu, geglu_tanh = _gated("swiglu"), _gated("geglu"), _gated("geglu_tanh")
_leaky_relu, _softplus = _operation("leaky_relu"), _operation("softplus")


def leaky_relu(x: ArrayLike, negative_slope: float = 0.01) -> Array:
    return _leaky_relu(x, numbers=(float(negative_slope),))


def softplus(x: ArrayLike, beta: float = 1.0) -> Array:
    return _softplus(x, numbers=(float(beta),))


leaky_relu, softplus = _documented(leaky_relu, "leaky_relu", "x"), _documented(softplus, "softplus", "x")
