"""`group_norm` and `instance_norm` as operators; `warpwright.torch` has them for users."""

from typing import Any, Optional, Sequence

import torch
from torch import Tensor

from .. import _native
from ._batch import batch_norm
from ._common import gradient_of, image, more_than_one, statistics, wide
from ._differentiable import Differentiable
from ._registry import Operator


def _group_norm_saved(x: Tensor, weight: Any, bias: Any, groups: int, eps: float, silu: bool) -> Any:
    return _native.group_norm(x, groups, weight, bias, eps, silu=silu, statistics=True)


def _group_norm_alone(x: Tensor, weight: Any, bias: Any, groups: int, eps: float, silu: bool) -> Any:
    return _native.group_norm(x, groups, weight, bias, eps, silu=silu)


def _group_norm_gradients(
    x: Tensor,
    weight: Any,
    bias: Any,
    mean: Tensor,
    rstd: Tensor,
    dy: Tensor,
    groups: int,
    eps: float,
    silu: bool,
    wanted: Sequence[bool],
) -> Any:
    _, of_weight, of_bias = wanted
    flags = {"weight_gradient": of_weight, "bias_gradient": of_bias}
    return _native.group_norm_backward(x, dy, mean, rstd, groups, weight, bias, silu=silu, **flags)


def _fake_group_norm(x: Tensor, weight: Any, bias: Any, groups: int, *_: Any) -> Any:
    return image(x), *(statistics(x, (x.shape[0], groups)) for _ in range(2))


def _fake_gradients(x: Tensor, weight: Any, bias: Any, *rest: Any) -> Any:
    _, of_weight, of_bias = rest[-1]
    return image(x), gradient_of(weight if of_weight else None, x), gradient_of(bias if of_bias else None, x)


_group_norm = Differentiable(
    Operator(
        "group_norm(Tensor x, Tensor? weight, Tensor? bias, SymInt groups, float eps, bool silu)"
        " -> (Tensor, Tensor, Tensor)",
        native=_group_norm_saved,
        fake=_fake_group_norm,
    ),
    Operator(
        "group_norm_backward(Tensor x, Tensor? weight, Tensor? bias, Tensor mean, Tensor rstd, Tensor dy, SymInt groups, "
        "float eps, bool silu, bool[] output_mask) -> (Tensor, Tensor, Tensor)",
        native=_group_norm_gradients,
        fake=_fake_gradients,
    ),
    save=lambda inputs, found: (*inputs[:3], *found[1:]),
    inference=_group_norm_alone,
).function()


def group_norm(
    x: Tensor,
    num_groups: int,
    weight: Optional[Tensor] = None,
    bias: Optional[Tensor] = None,
    eps: float = 1e-5,
    *,
    silu: bool = False,
) -> Tensor:
    """`torch.nn.functional.group_norm`, then `silu` if it is wanted. Differentiable in x, weight and bias."""
    return _group_norm(*wide(x, weight, bias), num_groups, eps, silu)


def instance_norm(
    x: Tensor,
    running_mean: Optional[Tensor] = None,
    running_var: Optional[Tensor] = None,
    weight: Optional[Tensor] = None,
    bias: Optional[Tensor] = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """`torch.nn.functional.instance_norm`. Differentiable in x, weight and bias.

    Running statistics, where there are any, are brought up to date by PyTorch, with a pass of its own.
    """
    if not use_input_stats:
        return batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)
    pixels = x.shape[2:].numel()
    more_than_one(x, pixels, "spatial element")
    if running_mean is not None and running_var is not None:
        with torch.no_grad():
            wide_x = x.detach().to(running_mean.dtype)
            axes = list(range(2, x.dim()))
            running_mean.lerp_(wide_x.mean(axes).mean(0), momentum)
            running_var.lerp_(wide_x.var(axes).mean(0), momentum)
    if weight is not None and weight.dtype != x.dtype:
        weight, bias = weight.to(x.dtype), None if bias is None else bias.to(x.dtype)
    return _group_norm(x, weight, bias, x.shape[1], eps, False)
