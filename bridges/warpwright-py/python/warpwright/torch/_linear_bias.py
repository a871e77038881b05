"""PyTorch's products with a bias whose gradient is ours: a sum, whose columns take 0.3 to 0.8 of the time that PyTorch takes, and in compiled code part
of the product that is the gradient of the weight."""

from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from .. import _native
from ._common import narrow
from ._images import is_recorded
from ._matmul import traced_weight_and_bias
from ._patch_rules import LOW, one_launch_reason, rows_of, used_dtype
from ._registry import is_compiling, register_composite


class _Bias(torch.autograd.Function):
    """Rows as they are, and the gradient of a bias that has been added to each of them without being recorded. Marked as changed, they are the
    same tensor behind, and no view of it: what looks for the tensor that queries, keys and values are views of would find the one before."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, bias: Tensor) -> Tensor:
        ctx.dtype = bias.dtype
        ctx.mark_dirty(y)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Tuple[Tensor, Optional[Tensor]]:
        if not ctx.needs_input_grad[1]:
            return dy, None
        if dy.numel() and dy.is_contiguous():
            return dy, _native.sum(dy, (0,), False, dtype=ctx.dtype)
        return dy, dy.sum(0, dtype=ctx.dtype)


class _Linear(torch.autograd.Function):
    """A layer of rows whose weight and bias have gradients of one launch."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.addmm(bias, x, weight.t())

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Tuple[Optional[Tensor], Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return torch.mm(dy, weight) if ctx.needs_input_grad[0] else None, *traced_weight_and_bias(x, dy)


def _layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    if not (torch.is_grad_enabled() and weight.requires_grad and bias.requires_grad):
        return torch.nn.functional.linear(x, weight, bias)
    # A view that is made behind the node is one of what has a gradient.
    return _Linear.apply(x.reshape(-1, x.shape[-1]), weight, bias).view(*x.shape[:-1], weight.shape[0])


traced_linear = register_composite("linear_bias(Tensor x, Tensor weight, Tensor bias) -> Tensor", _layer)
"""`torch.nn.functional.linear`, whose weight and bias have gradients of one launch, for what traces."""


def is_idle() -> bool:
    """Whether there is nothing to gain: outside of a graph the node costs the host more than its kernel saves. In compiled code rules tell."""
    return not is_compiling() and not (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


def reason(bias: Optional[Tensor], x: Tensor, weight: Optional[Tensor] = None) -> Optional[str]:
    """A reason to leave the gradient of a bias to PyTorch; weight: that of the layer, if it is as `linear` has it."""
    if is_compiling():
        if bias is None or weight is None or not (is_recorded(weight) and is_recorded(bias)):
            return "sums of bias gradients are part of kernels beside them in compiled code"
        if not weight.dtype == bias.dtype == x.dtype:
            return "weights of another type than the products"
        return one_launch_reason(x, rows_of(x), weight)
    if not x.is_cuda or is_idle():
        return "bias gradients are sums of ours in CUDA graphs alone"
    if not is_recorded(bias):
        return "no gradient of a bias is asked for"
    if used_dtype(x) not in LOW:
        return "sums of bias gradients of 32 and 64 bits are as fast in PyTorch"
    return None


def addmm(bias: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """`torch.addmm` of a bias to each row, with a gradient of ours."""
    if not is_recorded(bias):
        return torch.addmm(bias, x, weight)
    return _Bias.apply(torch.addmm(bias.detach(), x, weight), bias)


def linear(x: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
    """`torch.nn.functional.linear`, whose bias has a gradient of ours."""
    if bias is None or not is_recorded(bias):
        return torch.nn.functional.linear(x, weight, bias)
    if is_compiling():
        return traced_linear(*narrow(x, weight, bias))
    return addmm(bias, x.reshape(-1, x.shape[-1]), weight.t()).view(*x.shape[:-1], weight.shape[0])


def linear_in_graphs(x: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
    """The same where it pays."""
    return (torch.nn.functional.linear if reason(bias, x, weight) else linear)(x, weight, bias)
