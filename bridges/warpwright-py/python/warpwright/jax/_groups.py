"""Normalisation of groups of channels; `warpwright.jax` has it for users."""

from typing import Any, Optional

from jax import Array
from jax.typing import ArrayLike

from ._call import Fold, Operand, call
from ._common import given
from ._differentiable import differentiable


def _forward(x: Array, weight: Any, bias: Any, *, save: bool, groups: int, eps: float, silu: bool) -> Any:
    parameters = given(Operand, weight), given(Operand, bias)
    found = call("group_norm", Fold(x), groups, *parameters, eps, silu=silu, statistics=save)
    return (found[0], (x, weight, bias, *found[1:])) if save else (found, None)


def _backward(saved: Any, dy: Array, wanted: Any, *, groups: int, eps: float, silu: bool) -> Any:
    x, weight, bias, mean, rstd = saved
    _, of_weight, of_bias = wanted
    # Each sample has gradients of parameters of its own.
    kind = Operand if of_weight or of_bias else Fold
    rows = [kind(a) for a in (x, dy, mean, rstd)]
    parameters = given(Operand, weight), given(Operand, bias)
    flags = {"weight_gradient": of_weight, "bias_gradient": of_bias}
    return call("group_norm_backward", *rows, groups, *parameters, silu=silu, **flags)


_group_norm = differentiable(_forward, _backward)


def group_norm(
    x: ArrayLike,
    num_groups: int,
    weight: Optional[ArrayLike] = None,
    bias: Optional[ArrayLike] = None,
    eps: float = 1e-5,
    *,
    silu: bool = False,
) -> Array:
    """`(x - mean) / sqrt(variance + eps) weight + bias` over groups of channels, then `silu` if it is wanted, as
    `torch.nn.functional.group_norm`.

    x: float32, float64, float16 or bfloat16, [N, C, ...]; num_groups: a divisor of C; weight, bias: [C], of the dtype of x. The result is like x.
    Differentiable in x, weight and bias. Raises `ShapeError`, `DtypeError` and `ParameterError`.
    """
    return _group_norm(x, weight, bias, groups=int(num_groups), eps=float(eps), silu=bool(silu))
