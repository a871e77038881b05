"""Products of matrices; `warpwright.jax` has them for users."""

from typing import Any, Optional, Tuple

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from .._errors import Error, ParameterError, ShapeError, misshapen, renamed
from ._call import Either, Lead, Operand, call
from ._common import given
from ._differentiable import differentiable

_ACTIVATIONS = ("relu", "gelu_erf", "gelu_tanh", "silu", "sigmoid", "tanh")


def _factor(b: Array, transposed: bool = False) -> Operand:
    """A second factor: one matrix for all, or one for each."""
    return (Either if b.ndim == 2 else Lead)(b, transposed)


def _forward(a: Array, b: Array, *, save: bool, precision: str) -> Any:
    return call("matmul", Lead(a), _factor(b), precision=precision), (a, b)


def _backward(saved: Any, dy: Array, wanted: Any, *, precision: str) -> Any:
    a, b = saved
    of_a, of_b = wanted
    da = call("matmul", Lead(dy), _factor(b, transposed=True), precision=precision) if of_a else None
    db = call("matmul", Lead(a, transposed=True), Lead(dy), precision=precision) if of_b else None
    return da, db


_matmul = differentiable(_forward, _backward)


def _broadcast(a: Array, b: Array) -> Tuple[Array, Array]:
    """Matrices of as many leading dimensions each."""
    try:
        before = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError as error:
        raise misshapen("matmul", "b", b.shape, (*a.shape[:-2], a.shape[-1], b.shape[-1])) from error
    return tuple(jnp.broadcast_to(x, (*before, *x.shape[-2:])) for x in (a, b))


def matmul(a: ArrayLike, b: ArrayLike, *, precision: str = "full") -> Array:
    """`jax.numpy.matmul`: a [..., m, k] times b [..., k, n] is [..., m, n]; both of one dtype, float32, float64, float16 or bfloat16.

    Leading dimensions broadcast. An a of [k] is a matrix of one row, a b of [k] of one column, and the result lacks that dimension. float16 and
    bfloat16 are summed in float32. precision: "full", or "tf32", for float32 from sm_80 on: factors are rounded to 11 bits. Differentiable in
    both. Raises `ShapeError` and `DtypeError`.
    """
    a, b = jnp.asarray(a), jnp.asarray(b)
    if a.ndim == 1:
        return matmul(a[None], b, precision=precision).squeeze(-1 if b.ndim == 1 else -2)
    if b.ndim == 1:
        return matmul(a, b[:, None], precision=precision).squeeze(-1)
    if a.ndim > 2 and b.ndim == 2:
        # Rows that follow one another are one matrix.
        rows = _matmul(a.reshape(-1, a.shape[-1]), b, precision=precision)
        return rows.reshape(*a.shape[:-1], b.shape[-1])
    if a.ndim > 1 and b.ndim > 2 and a.shape[:-2] != b.shape[:-2]:
        a, b = _broadcast(a, b)
    return _matmul(a, b, precision=precision)


def _linear_forward(
    x: Array, weight: Array, bias: Optional[Array], *, save: bool, activation: Optional[str], precision: str
) -> Any:
    options = {"bias": given(Operand, bias), "precision": precision}
    # The gradient needs what the activation was taken of.
    fused = None if save else activation
    z = call("matmul", Lead(x), Either(weight, transposed=True), activation=fused, **options)
    if not save:
        return z, None
    return (call(activation, Lead(z)) if activation else z), (x, weight, z if activation else None)


def _linear_backward(saved: Any, dy: Array, wanted: Any, *, activation: Optional[str], precision: str) -> Any:
    x, weight, z = saved
    of_x, of_weight, of_bias = wanted
    if activation:
        dy = call(f"{activation}_backward", Lead(z), Lead(dy))
    dx = call("matmul", Lead(dy), Either(weight), precision=precision) if of_x else None
    dweight = call("matmul", Lead(dy, transposed=True), Lead(x), precision=precision) if of_weight else None
    return dx, dweight, dy.sum(0) if of_bias else None


_linear = differentiable(_linear_forward, _linear_backward)


def linear(
    x: ArrayLike,
    weight: ArrayLike,
    bias: Optional[ArrayLike] = None,
    *,
    activation: Optional[str] = None,
    precision: str = "full",
) -> Array:
    """`torch.nn.functional.linear`: x [..., k] times the transpose of weight [n, k], plus bias [n], then an activation if there is one.

    All of one dtype, float32, float64, float16 or bfloat16. activation: None, "relu", "gelu_erf", "gelu_tanh", "silu", "sigmoid" or "tanh", in
    the same pass where no gradient is taken. precision: as of `matmul`. The result is [..., n]. Differentiable in all. Raises `ShapeError`,
    `DtypeError` and `ParameterError`.
    """
    x, weight = jnp.asarray(x), jnp.asarray(weight)
    if activation not in (None, *_ACTIVATIONS):
        expected = ", ".join(_ACTIVATIONS)
        message = f"linear: activation is '{activation}', expected one of {expected}"
        raise ParameterError(message, op="linear", argument="activation", expected=expected, got=activation)
    for name, array, least in (("x", x, 1), ("weight", weight, 2)):
        if array.ndim < least or (name == "weight" and array.ndim != 2):
            message = f"linear: {name} has {array.ndim} dimensions, expected {'at least ' * (name == 'x')}{least}"
            raise ShapeError(message, op="linear", argument=name, expected=least, got=array.ndim)
    try:
        rows = _linear(x.reshape(-1, x.shape[-1]), weight, bias, activation=activation, precision=precision)
    except Error as error:
        raise renamed(error, "linear", a="x", b="weight.mT") from None
    return rows.reshape(*x.shape[:-1], weight.shape[0])
