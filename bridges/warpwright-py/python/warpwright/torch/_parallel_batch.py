"""Batch norm with the statistics of the batches of all ranks; `warpwright.torch.parallel` has it for users."""

from __future__ import annotations

from typing import Any, Optional

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm, _LazyNormBase

from .. import _native
from .._errors import misshapen, refused
from . import _batch
from ._parallel_group import Ranks, described
from ._patch_modules import Replaced
from .nn import _BatchNorm as _Ours

_OP = "sync_batch_norm"


class _SyncBatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Any, bias: Any, running: Any, momentum: float, eps: float, ranks: Ranks
    ) -> Tensor:
        own = _native.batch_moments(x)
        moments = own.new_empty((ranks.size, own.numel()))
        dist.all_gather_into_tensor(moments.view(-1), own, group=ranks.group)
        y, mean, rstd, count = _native.batch_norm_merged(x, moments, *running, weight, bias, momentum, eps)
        ctx.save_for_backward(x, weight, mean, rstd, count)
        ctx.ranks, ctx.of_bias = ranks, None if bias is None else bias.dtype
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, weight, mean, rstd, count = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad[:3]
        sums = _native.batch_norm_sums(x, dy, mean, rstd)
        # Those of the parameters are of this rank, as of other layers.
        dweight = sums[0].to(weight.dtype) if of_weight else None
        dbias = sums[1].to(ctx.of_bias) if of_bias else None
        dx = None
        if of_x:
            total = sums.clone() if of_weight or of_bias else sums
            ctx.ranks.all_reduce(total)
            dx = _native.batch_norm_gradient(x, dy, mean, rstd, count, total, weight)
        return dx, dweight, dbias, None, None, None, None


@torch.compiler.disable
def sync_batch_norm(
    x: Tensor,
    running_mean: Optional[Tensor] = None,
    running_var: Optional[Tensor] = None,
    weight: Optional[Tensor] = None,
    bias: Optional[Tensor] = None,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    process_group: Any = None,
) -> Tensor:
    """`warpwright.torch.batch_norm` in training, with the statistics of the batches of all ranks of a process group.

    x: [N, C, ...] of float32, float64, float16 or bfloat16, in any memory format; N may differ from rank to rank and be 0. weight, bias, running_mean
    and running_var: [C], of the dtype of x or float32. The result is like x. Means, sums of squared distances from them, and counts of all ranks
    are merged exactly (Chan, Golub and LeVeque 1979), to the same bits on every rank: one all_gather of 2 C + 1 numbers, and in the backward pass one
    all_reduce of 2 C. Running statistics move towards those of all ranks, and stay where these have one value of a channel or none.

    Differentiable in x, weight and bias. Gradients of weight and bias are those of this rank's values, which data parallelism averages as it does
    others. Raises `ShapeError`, `DtypeError`, `ParameterError`, and on every rank `RankError` if ranks have different channels or dtypes.
    """
    ranks = Ranks(_OP, process_group)
    if x.dim() < 2 or x.shape[1] == 0:
        raise misshapen(_OP, "x", x.shape, ("N", "C", "..."))
    for argument, vector in (("running_mean", running_mean), ("running_var", running_var), ("weight", weight), ("bias", bias)):
        if vector is not None and vector.shape != x.shape[1:2]:
            raise misshapen(_OP, argument, vector.shape, x.shape[1:2])
    if not eps > 0:
        raise refused(_OP, "eps", eps, "more than 0")
    if ranks.size == 1:
        return _batch.batch_norm(x, running_mean, running_var, weight, bias, True, momentum, eps)
    ranks.agree(x.device, x=described(x, 1), weight=described(weight), bias=described(bias))
    return _SyncBatchNorm.apply(x, weight, bias, (running_mean, running_var), momentum, eps, ranks)


class SyncBatchNorm(torch.nn.SyncBatchNorm):
    """`torch.nn.SyncBatchNorm` over `warpwright.torch.parallel.sync_batch_norm`, on CPUs too; in eval mode, in a group of one, and without
    torch.distributed as `warpwright.torch.nn.BatchNorm2d`."""

    process_group: Any

    def forward(self: Any, input: Tensor) -> Tensor:  # noqa: A002
        if not (self.training and dist.is_available() and dist.is_initialized()):
            return _Ours.forward(self, input)
        momentum = 0.0 if self.momentum is None else self.momentum
        if self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                momentum = 1.0 / float(self.num_batches_tracked)
        running = (self.running_mean, self.running_var) if self.track_running_stats else (None, None)
        return sync_batch_norm(
            input, *running, self.weight, self.bias, momentum, self.eps, process_group=self.process_group
        )

    @classmethod
    def convert_sync_batchnorm(cls, module: torch.nn.Module, process_group: Any = None) -> torch.nn.Module:
        """As `warpwright.torch.parallel.convert_sync_batchnorm`."""
        return convert_sync_batchnorm(module, process_group)


# Forward functions of batch norms that can be converted.
_FORWARDS = (_BatchNorm.forward, _Ours.forward, torch.nn.SyncBatchNorm.forward, SyncBatchNorm.forward)


def _why_not(module: Any) -> Optional[str]:
    """The reason why a batch norm cannot be converted, if there is one."""
    if isinstance(module, _LazyNormBase):
        return "a module that has seen no input yet"
    cls = module._original if isinstance(module, Replaced) else type(module)
    if cls.forward not in _FORWARDS or "forward" in module.__dict__:
        return f"{cls.__name__} with a forward of its own"
    return None


def convert_sync_batchnorm(module: torch.nn.Module, process_group: Any = None) -> torch.nn.Module:
    """A model with `SyncBatchNorm` in place of each batch norm: of `torch.nn`, `warpwright.torch.nn` and `torch.nn.SyncBatchNorm`, patched or not.

    The model is changed and returned; a model that is itself a batch norm gives a new module. Parameters, buffers, their names, hooks and flags stay
    the same objects. process_group: by default that of a `SyncBatchNorm` that is there, or all ranks. Of a patched model, `undo()` puts the other
    modules back and leaves these. Raises `ParameterError`, before anything is changed, for a batch norm with a forward of its own.
    """
    for name, norm in module.named_modules():
        why = _why_not(norm) if isinstance(norm, _BatchNorm) else None
        if why is not None:
            raise refused("convert_sync_batchnorm", f"module {name}".strip(), why, "a batch norm that normalises and nothing more")
    made: dict = {}

    def converted(found: Any) -> Any:
        if not isinstance(found, _BatchNorm):
            return found
        if id(found) not in made:
            made[id(found)] = new = SyncBatchNorm.__new__(SyncBatchNorm)
            new.__dict__.update({name: value for name, value in found.__dict__.items() if name != "_warpwright"})
            new.process_group = getattr(found, "process_group", None) if process_group is None else process_group
        return made[id(found)]

    for parent in list(module.modules()):
        for name, child in parent._modules.items():
            if child is not None:
                parent._modules[name] = converted(child)
    return converted(module)
