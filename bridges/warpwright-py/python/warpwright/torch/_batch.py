"""`batch_norm` as operators; `warpwright.torch` has it for users."""

from typing import Any, Optional, Sequence

import torch
from torch import Tensor

from .. import _native
from ._common import gradient_of, image, more_than_one, statistics
from ._differentiable import Differentiable
from ._registry import Operator


def _batch_norm_in_place(
    x: Tensor,
    weight: Any,
    bias: Any,
    residual: Any,
    running_mean: Any,
    running_var: Any,
    momentum: float,
    eps: float,
    relu: bool,
) -> Any:
    return _native.batch_norm(
        x, running_mean, running_var, weight, bias, True, momentum, eps, relu=relu, residual=residual, statistics=True
    )


def _batch_norm_functional(*arguments: Any) -> Any:
    running = [None if r is None else r.clone() for r in arguments[4:6]]
    found = _batch_norm_in_place(*arguments[:4], *running, *arguments[6:])
    return *found, *(arguments[0].new_empty(0) if r is None else r for r in running)


def _fake_batch_norm(
    x: Tensor, weight: Any, bias: Any, residual: Any, running_mean: Any, running_var: Any, *_: Any
) -> Any:
    saved = (statistics(x, (x.shape[1],)) for _ in range(2))
    return image(x), *saved, gradient_of(running_mean, x), gradient_of(running_var, x)


def _mark(residual: Optional[Tensor]) -> Optional[Tensor]:
    """All that the gradient needs of a residual: whether there was one."""
    return None if residual is None else residual.new_empty(0)


def _update(inputs: Any, found: Any) -> None:
    with torch.no_grad():
        for running, new in zip(inputs[4:6], found[3:]):
            if running is not None:
                running.copy_(new)


def _shared(found: Any, dys: Any, parameters: Any, wanted: Any) -> Any:
    """The gradients with that of the residual, which is `dy` itself without a ReLU."""
    *_, relu = parameters
    return found if relu else (*found[:3], dys[0])


def _batch_norm_gradients(
    x: Tensor,
    weight: Any,
    bias: Any,
    residual: Any,
    y: Any,
    mean: Tensor,
    rstd: Tensor,
    dy: Tensor,
    momentum: float,
    eps: float,
    relu: bool,
    wanted: Sequence[bool],
) -> Any:
    of_bias, of_residual = wanted[2:4]
    bias = bias if of_bias else None
    own = of_residual and relu
    found = _native.batch_norm_backward(x, dy, mean, rstd, weight, bias, y=y, residual=own)
    return found if own else (*found, None)


def _fake_batch_norm_gradients(x: Tensor, weight: Any, bias: Any, residual: Any, *rest: Any) -> Any:
    *_, relu, wanted = rest
    of_bias, of_residual = wanted[2:4]
    dbias = gradient_of(bias if of_bias else None, x)
    return image(x), gradient_of(weight, x), dbias, image(x) if of_residual and relu else None


_batch_norm = Differentiable(
    Operator(
        "batch_norm(Tensor x, Tensor? weight, Tensor? bias, Tensor? residual, Tensor? running_mean, Tensor? running_var, "
        "float momentum, float eps, bool relu) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
        native=_batch_norm_in_place,
        fake=_fake_batch_norm,
        functional=_batch_norm_functional,
    ),
    Operator(
        "batch_norm_backward(Tensor x, Tensor? weight, Tensor? bias, Tensor? residual, Tensor? y, Tensor mean, "
        "Tensor rstd, Tensor dy, float momentum, float eps, bool relu, bool[] output_mask)"
        " -> (Tensor, Tensor, Tensor, Tensor)",
        native=_batch_norm_gradients,
        fake=_fake_batch_norm_gradients,
    ),
    save=lambda inputs, found: (*inputs[:3], _mark(inputs[3]), found[0] if inputs[8] else None, *found[1:3]),
    shared=_shared,
    finish=_update,
).function()


def _inference(
    x: Tensor, weight: Any, bias: Any, residual: Any, mean: Tensor, var: Tensor, eps: float, relu: bool
) -> Tensor:
    return _native.batch_norm(x, mean, var, weight, bias, False, 0.0, eps, relu=relu, residual=residual)


def _inference_gradients(
    x: Tensor,
    weight: Any,
    bias: Any,
    residual: Any,
    mean: Tensor,
    var: Tensor,
    y: Any,
    dy: Tensor,
    eps: float,
    relu: bool,
    wanted: Sequence[bool],
) -> Any:
    of_bias, of_residual = wanted[2:4]
    bias = bias if of_bias else None
    own = of_residual and relu
    found = _native.batch_norm_inference_backward(x, dy, mean, var, weight, bias, eps, y=y, residual=own)
    return found if own else (*found, None)


_batch_norm_inference = Differentiable(
    Operator(
        "batch_norm_inference(Tensor x, Tensor? weight, Tensor? bias, Tensor? residual, Tensor running_mean, "
        "Tensor running_var, float eps, bool relu) -> Tensor",
        native=_inference,
        fake=lambda x, *rest: image(x),
    ),
    Operator(
        "batch_norm_inference_backward(Tensor x, Tensor? weight, Tensor? bias, Tensor? residual, Tensor running_mean, "
        "Tensor running_var, Tensor? y, Tensor dy, float eps, bool relu, bool[] output_mask)"
        " -> (Tensor, Tensor, Tensor, Tensor)",
        native=_inference_gradients,
        fake=_fake_batch_norm_gradients,
    ),
    save=lambda inputs, found: (*inputs[:3], _mark(inputs[3]), *inputs[4:6], found[0] if inputs[7] else None),
    shared=_shared,
).function()


def batch_norm(
    x: Tensor,
    running_mean: Optional[Tensor],
    running_var: Optional[Tensor],
    weight: Optional[Tensor] = None,
    bias: Optional[Tensor] = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    relu: bool = False,
    residual: Optional[Tensor] = None,
) -> Tensor:
    """`torch.nn.functional.batch_norm`, then `+ residual`, then ReLU, as far as they are wanted. Differentiable in x,
    weight, bias and residual."""
    if x.dim() < 2:
        if x.shape != (0,):
            raise ValueError(f"batch_norm: expected an input [N, C, ...], got {list(x.shape)}")
        # PyTorch takes an empty tensor without channels.
        flat = batch_norm(
            x.reshape(0, 0), running_mean, running_var, weight, bias, training, momentum, eps, relu=relu,
            residual=None if residual is None else residual.reshape(0, 0),
        )
        return flat.reshape(0)
    if training:
        if not eps > 0:
            raise ValueError(f"batch_norm eps must be positive during training, but got {eps}")
        more_than_one(x, x.numel() // max(x.shape[1], 1), "channel")
        return _batch_norm(x, weight, bias, residual, running_mean, running_var, momentum, eps, relu)
    return _batch_norm_inference(x, weight, bias, residual, running_mean, running_var, eps, relu)
