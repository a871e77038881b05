"""Weights of 4 bits; `warpwright.jax` has them for users."""

from typing import Any, Callable, Optional, Sequence, Tuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from .._errors import Error, renamed
from ._call import Lead, Operand, call
from ._common import documented, given
from ._differentiable import differentiable

_MORE = "Here the first of two elements is in the high half of a byte. There is no gradient."
# Those of the arrays of a weight that not every format has come behind the first two.
_FURTHER = ("zero_points", "nested_absmax", "offset", "tensor_scale", "group_index")


def _quantizer(name: str) -> Tuple[Callable[..., Any], Callable[..., Any]]:
    """The functions `quantize_<name>` and `dequantize_<name>`."""

    def run(x: ArrayLike, group_size: int) -> Any:
        return call(f"quantize_{name}", Operand(jax.lax.stop_gradient(jnp.asarray(x))), group_size)

    def run_back(*arguments: Any) -> Array:
        *arrays, shape, group_size, dtype = arguments
        operands = [Operand(jax.lax.stop_gradient(jnp.asarray(a))) for a in arrays]
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        return call(f"dequantize_{name}", *operands, shape, group_size, dtype=jnp.dtype(dtype).name)

    quantize = documented(lambda x, group_size=64: run(x, group_size), f"quantize_{name}", _MORE)
    if name == "int4_asymmetric":

        def back(
            codes: ArrayLike, scales: ArrayLike, zero_points: ArrayLike, shape: Any, group_size: int = 64, dtype: Any = jnp.float32
        ) -> Array:
            return run_back(codes, scales, zero_points, shape, group_size, dtype)

    else:

        def back(codes: ArrayLike, scales: ArrayLike, shape: Any, group_size: int = 64, dtype: Any = jnp.float32) -> Array:
            return run_back(codes, scales, shape, group_size, dtype)

    return quantize, documented(back, f"dequantize_{name}", f"There is no out: shape has to be given, and dtype is float32 without it. {_MORE}")


quantize_nf4, dequantize_nf4 = _quantizer("nf4")
quantize_fp4, dequantize_fp4 = _quantizer("fp4")
quantize_int4, dequantize_int4 = _quantizer("int4")
quantize_int4_asymmetric, dequantize_int4_asymmetric = _quantizer("int4_asymmetric")


def _product(name: str, x: Array, weight: Any, options: Any, **further: Any) -> Array:
    codes, scales, *others = (given(Operand, a) for a in weight)
    shape, format, group_size = options
    return call(name, Lead(x), codes, scales, shape, format, group_size, **dict(zip(_FURTHER, others)), **further)


def _forward(x: Array, bias: Any, *weight: Any, save: bool, options: Any) -> Any:
    return _product("matmul_4bit", x, weight, options, bias=given(Operand, bias)), weight


def _backward(weight: Any, dy: Array, wanted: Any, *, options: Any) -> Any:
    dx = _product("matmul_4bit_backward", dy, weight, options) if wanted[0] else None
    dbias = dy.reshape(-1, dy.shape[-1]).sum(0) if wanted[1] else None
    return dx, dbias, *[None] * len(weight)


_linear_4bit = differentiable(_forward, _backward)


def linear_4bit(
    input: ArrayLike,
    codes: ArrayLike,
    scales: ArrayLike,
    shape: Sequence[int],
    bias: Optional[ArrayLike] = None,
    *,
    format: str = "nf4",
    group_size: int = 64,
    zero_points: Optional[ArrayLike] = None,
    nested_absmax: Optional[ArrayLike] = None,
    offset: Optional[ArrayLike] = None,
    tensor_scale: Optional[ArrayLike] = None,
    group_index: Optional[ArrayLike] = None,
) -> Array:
    """`linear` with a weight of 4 bits, as `warpwright.matmul_4bit` describes it: input [..., k], a weight that stands for shape, [n, k].

    The weight is a constant. Differentiable in input and bias. Raises `ShapeError`, `DtypeError` and `ParameterError`.
    """
    weight = codes, scales, zero_points, nested_absmax, offset, tensor_scale, group_index
    weight = (None if a is None else jax.lax.stop_gradient(jnp.asarray(a)) for a in weight)
    options = tuple(int(n) for n in shape), format, int(group_size)
    try:
        return _linear_4bit(input, bias, *weight, options=options)
    except Error as error:
        raise renamed(error, "linear_4bit", x="input") from None
