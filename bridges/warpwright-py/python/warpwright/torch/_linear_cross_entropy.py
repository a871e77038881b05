"""`linear_cross_entropy` as operators; `warpwright.torch` has it for users."""

from typing import Any, Optional

import torch
from torch import Tensor

from .. import _native
from ._common import gradient_of, narrow, statistics
from ._cross_entropy import cross_entropy_options
from ._differentiable import Differentiable
from ._registry import Operator


def _native_loss(x: Tensor, weight: Tensor, bias: Optional[Tensor], target: Tensor, *parameters: Any) -> Any:
    *options, gradients = parameters
    found = _native.linear_cross_entropy(x, weight, target, bias, gradients=gradients, **cross_entropy_options(*options))
    if not gradients:
        return (found, *(x.new_empty(0) for _ in range(3)))
    return found if len(found) == 4 else (*found, x.new_empty(0))


def _fake(x: Tensor, weight: Tensor, bias: Optional[Tensor], target: Tensor, *parameters: Any) -> Any:
    *_, reduction, gradients = parameters
    loss = statistics(x, x.shape[:1] if reduction == "none" else ())
    given = (x, weight, bias) if gradients else (None, None, None)
    return (loss, *(gradient_of(tensor, x) for tensor in given))


def _scaled(dx: Tensor, dweight: Tensor, dbias: Tensor, dloss: Tensor, output_mask: Any) -> Any:
    """The gradients for another gradient of the loss than 1."""
    all = zip((dx, dweight, dbias), output_mask)
    return tuple((gradient * dloss).to(gradient.dtype) if wanted else None for gradient, wanted in all)


def _fake_scaled(dx: Tensor, dweight: Tensor, dbias: Tensor, dloss: Tensor, output_mask: Any) -> Any:
    return tuple(torch.empty_like(g) if wanted else None for g, wanted in zip((dx, dweight, dbias), output_mask))


_linear_cross_entropy = Differentiable(
    Operator(
        "linear_cross_entropy(Tensor x, Tensor weight, Tensor? bias, Tensor target, SymInt ignore_index, "
        "float label_smoothing, str reduction, bool gradients) -> (Tensor, Tensor, Tensor, Tensor)",
        native=_native_loss,
        fake=_fake,
    ),
    Operator(
        "linear_cross_entropy_backward(Tensor dx, Tensor dweight, Tensor dbias, Tensor dloss, bool[] output_mask)"
        " -> (Tensor, Tensor, Tensor)",
        native=_scaled,
        fake=_fake_scaled,
    ),
    save=lambda inputs, found: found[1:],
    noted=lambda inputs: (),
    inference=lambda *inputs: _native_loss(*inputs[:-1], False)[0],
).function()


def linear_cross_entropy(
    input: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Optional[Tensor] = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """`cross_entropy(linear(input, weight, bias), target)`, with the logits of a part of the rows in memory at a time.

    input: [..., features]; weight: [classes, features]; target: classes, [...]. Differentiable in input, weight and bias: the gradients
    are made together with the loss, which must be a mean or a sum then, and multiplied by the gradient of the loss in the backward
    pass. The loss is float32, or float64 of float64. Under autocast `input`, `weight` and `bias` are those of `linear`.
    """
    tensors = (input, weight, bias)
    gradients = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    if gradients and reduction == "none":
        raise ValueError("linear_cross_entropy: reduction is 'none', expected 'mean' or 'sum' where gradients are recorded")
    input, weight, bias = narrow(*tensors)
    rows, classes = input.reshape(-1, input.shape[-1]), target.reshape(-1)
    loss = _linear_cross_entropy(
        rows, weight, bias, classes, ignore_index, label_smoothing, reduction, gradients
    )
    return loss.reshape(target.shape) if reduction == "none" else loss
