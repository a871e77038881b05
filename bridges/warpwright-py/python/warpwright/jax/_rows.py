"""Normalisation of rows; `warpwright.jax` has it for users."""

from typing import Any, Callable, Optional, Sequence, Tuple, Union

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from ._call import Lead, Operand, call
from ._common import given
from ._differentiable import differentiable

Shape = Union[int, Sequence[int]]


def _shape(shape: Shape) -> Tuple[int, ...]:
    return (shape,) if isinstance(shape, int) else tuple(shape)


def _row_norm(name: str, residual: bool) -> Callable[..., Any]:
    """`layer_norm` or `rms_norm`, or the same of a sum that is a second result."""
    layer = name == "layer_norm"

    def forward(x: Array, *rest: Any, save: bool, shape: Any, eps: float) -> Any:
        other, *parameters = rest if residual else (None, *rest)
        parameters = [given(Operand, p) for p in parameters]
        options = {"eps": eps, "residual": given(Lead, other), "statistics": save}
        found = call(name, Lead(x), shape, *parameters, **options)
        if not save:
            return found, None
        results, saved = (found[:2], found[2:]) if residual else (found[0], found[1:])
        z = results[1] if residual else x
        return results, (z, rest[1 if residual else 0 :], saved)

    def backward(saved: Any, dy: Any, wanted: Any, *, shape: Any, eps: float) -> Any:
        z, (weight, *bias), statistics = saved
        dy, dz = dy if residual else (dy, None)
        # Each sample has gradients of parameters of its own.
        kind = Operand if weight is not None or (layer and wanted[-1]) else Lead
        rows = [kind(a) for a in (z, dy, *statistics)]
        of_bias = (bias[0] is not None and wanted[-1],) if layer else ()
        found = call(f"{name}_backward", *rows, shape, given(Operand, weight), *of_bias, dz=given(kind, dz))
        return (found[0], *found) if residual else found

    return differentiable(forward, backward)


_layer_norm, _add_layer_norm = (_row_norm("layer_norm", residual) for residual in (False, True))
_rms_norm, _add_rms_norm = (_row_norm("rms_norm", residual) for residual in (False, True))


def layer_norm(
    x: ArrayLike,
    normalized_shape: Shape,
    weight: Optional[ArrayLike] = None,
    bias: Optional[ArrayLike] = None,
    eps: float = 1e-5,
) -> Array:
    """`(x - mean) / sqrt(variance + eps) weight + bias` over the last dimensions, as `torch.nn.functional.layer_norm`.

    x: float32, float64, float16 or bfloat16, whose last dimensions are normalized_shape; weight, bias: of that shape and the dtype of x.
    The result is like x. Differentiable in x, weight and bias. Raises `ShapeError` and `DtypeError`.
    """
    return _layer_norm(x, weight, bias, shape=_shape(normalized_shape), eps=float(eps))


def add_layer_norm(
    x: ArrayLike,
    residual: ArrayLike,
    normalized_shape: Shape,
    weight: Optional[ArrayLike] = None,
    bias: Optional[ArrayLike] = None,
    eps: float = 1e-5,
) -> Tuple[Array, Array]:
    """`layer_norm(x + residual)` and the sum, in one pass. Differentiable in all four."""
    return _add_layer_norm(x, residual, weight, bias, shape=_shape(normalized_shape), eps=float(eps))


def _rms_eps(x: ArrayLike, eps: Optional[float]) -> float:
    """The eps of PyTorch where None is given: the machine epsilon of the type that it computes in, which is 32 bits for 16."""
    return float(jnp.finfo(jnp.float64 if jnp.result_type(x) == jnp.float64 else jnp.float32).eps if eps is None else eps)


def rms_norm(
    x: ArrayLike, normalized_shape: Shape, weight: Optional[ArrayLike] = None, eps: Optional[float] = None
) -> Array:
    """`x / sqrt(mean(x^2) + eps) weight` over the last dimensions, as `torch.nn.functional.rms_norm`.

    x: float32, float64, float16 or bfloat16, whose last dimensions are normalized_shape; weight: of that shape and the dtype of x. eps: None is
    the machine epsilon of the type that is computed in, float32 or float64. The result is like x. Differentiable in x and weight. Raises
    `ShapeError` and `DtypeError`.
    """
    return _rms_norm(x, weight, shape=_shape(normalized_shape), eps=_rms_eps(x, eps))


def add_rms_norm(
    x: ArrayLike,
    residual: ArrayLike,
    normalized_shape: Shape,
    weight: Optional[ArrayLike] = None,
    eps: Optional[float] = None,
) -> Tuple[Array, Array]:
    """`rms_norm(x + residual)` and the sum, in one pass. Differentiable in all three."""
    return _add_rms_norm(x, residual, weight, shape=_shape(normalized_shape), eps=_rms_eps(x, eps))
