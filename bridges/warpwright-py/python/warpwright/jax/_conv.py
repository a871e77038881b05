"""Convolutions; `warpwright.jax` has them for users."""

from typing import Any, Callable, Optional, Sequence, Tuple, Union

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from .._errors import Error, misranked, renamed
from ._call import Fold, Operand, call
from ._common import given
from ._differentiable import differentiable

Numbers = Union[int, Sequence[int]]


def _forward(x: Array, weight: Array, bias: Any, *, save: bool, activation: Optional[str], **options: Any) -> Any:
    # The gradient needs what the activation was taken of.
    fused = None if save else activation
    z = call("conv", Fold(x), Operand(weight), given(Operand, bias), activation=fused, **options)
    if not save:
        return z, None
    return (call(activation, Fold(z)) if activation else z), (x, weight, z if activation else None)


def _backward(saved: Any, dy: Array, wanted: Any, *, activation: Optional[str], **options: Any) -> Any:
    x, weight, z = saved
    if activation:
        dy = call(f"{activation}_backward", Fold(z), Fold(dy))
    of_x, of_weight, of_bias = wanted
    # Each sample has gradients of parameters of its own.
    kind = Operand if of_weight or of_bias else Fold
    flags = {"x_gradient": of_x, "weight_gradient": of_weight, "bias_gradient": of_bias}
    return call("conv_backward", kind(x), Operand(weight), kind(dy), **options, **flags)


_conv = differentiable(_forward, _backward)


def _hashable(numbers: Any) -> Any:
    return tuple(_hashable(n) for n in numbers) if isinstance(numbers, (list, tuple)) else numbers


def _of_dimensions(dims: int) -> Callable[..., Array]:
    op, pixels = f"conv{dims}d", ", ".join("DHW"[3 - dims :])

    def function(
        input: ArrayLike,
        weight: ArrayLike,
        bias: Optional[ArrayLike] = None,
        stride: Numbers = 1,
        padding: Union[int, Sequence[Union[int, Tuple[int, int]]]] = 0,
        dilation: Numbers = 1,
        groups: int = 1,
        *,
        activation: Optional[str] = None,
        precision: str = "full",
        channels_last: bool = False,
    ) -> Array:
        input = jnp.asarray(input)
        if input.ndim != dims + 2:
            raise misranked(op, "input", input.ndim, dims + 2)
        options = {
            "stride": _hashable(stride),
            "padding": _hashable(padding),
            "dilation": _hashable(dilation),
            "groups": int(groups),
            "activation": activation,
            "precision": precision,
            "channels_last": bool(channels_last),
        }
        try:
            return _conv(input, weight, bias, **options)
        except Error as error:
            raise renamed(error, op, x="input") from None

    function.__name__ = function.__qualname__ = op
    function.__doc__ = f"""`torch.nn.functional.{op}`, then an activation if there is one.

    input: float32, float64, float16 or bfloat16, [N, C, {pixels}], or [N, {pixels}, C] with channels_last; weight: [filters, C / groups,
    {pixels}], or [filters, {pixels}, C / groups] with it, of its dtype; bias: [filters]. stride, dilation: a number, or one for each dimension; padding:
    the same, or pairs of zeros before and behind. activation: None, "relu", "gelu_erf", "gelu_tanh", "silu", "sigmoid" or "tanh", in the same
    pass where no gradient is taken. precision: "full", or "tf32", for float32 from sm_80 on: factors may be rounded to 11 bits. Differentiable
    in all arrays. Raises `ShapeError`, `DtypeError` and `ParameterError`.
    """
    return function


conv1d, conv2d, conv3d = (_of_dimensions(dims) for dims in (1, 2, 3))
