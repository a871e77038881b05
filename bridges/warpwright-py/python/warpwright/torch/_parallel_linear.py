"""Linear layers whose weights are split over the ranks of a process group (Shoeybi et al. 2019, arXiv:1909.08053), and whose rows are split between
them where that is asked for (Korthikanti et al. 2022, arXiv:2205.05198); `warpwright.torch.parallel` has them for users."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .. import _native
from .._errors import Error, misranked, misshapen, refused, renamed
from ._common import narrow
from ._matmul import of_parameters
from ._parallel_group import Ranks, described


class _Column(torch.autograd.Function):
    """`x weight^T + bias` of this rank's rows of the weight; of the rows of all ranks if `dim` says along which dimension each has a part."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Any, ranks: Ranks, dim: Optional[int]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.ranks, ctx.dim = ranks, dim
        every = x if dim is None else ranks.gather(x, dim).wait()
        return _native.matmul(every, weight.mT, bias=bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        ranks, dim = ctx.ranks, ctx.dim
        of_x, of_weight, of_bias = ctx.needs_input_grad[:3]
        # What is exchanged runs beside the products: the rows beside that of dx, dx beside that of the weight.
        every = ranks.gather(x, dim) if of_weight and dim is not None else None
        dx = coming = summed = None
        if of_x:
            dx = _native.matmul(dy, weight)
            if dim is None:
                summed = ranks.all_reduce(dx, async_op=True)
            else:
                coming = ranks.scatter_sum(dx, dim)
        dweight, dbias = of_parameters(x if every is None else every.wait(), dy, of_weight, of_bias)
        if summed is not None:
            summed.wait()
        return dx if coming is None else coming.wait(), dweight, dbias, None, None


class _Row(torch.autograd.Function):
    """The sum over the ranks of `x weight^T`, plus the bias; this rank's part of it along a dimension if `dim` says which."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Any, ranks: Ranks, dim: Optional[int]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.ranks, ctx.dim = ranks, dim
        y = _native.matmul(x, weight.mT)
        if dim is None:
            ranks.all_reduce(y)
        else:
            y = ranks.scatter_sum(y, dim).wait()
        return y if bias is None else y.add_(bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad[:3]
        # The rows of all ranks, so that the gradient of the bias is complete as well.
        every = dy if ctx.dim is None else ctx.ranks.gather(dy, ctx.dim).wait()
        dx = _native.matmul(every, weight) if of_x else None
        return dx, *of_parameters(x, every, of_weight, of_bias), None, None


class _Gather(torch.autograd.Function):
    """The parts of all ranks along a dimension; the gradient of this rank's part is a part of that of the whole, which all ranks have."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks, dim: int) -> Tensor:
        ctx.ranks, ctx.dim = ranks, dim
        return ranks.gather(x, dim).wait()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        return ctx.ranks.own(dy, ctx.dim, "dy"), None, None


class _Scatter(torch.autograd.Function):
    """This rank's part along a dimension of what all ranks have; the gradient of the whole is that of all parts."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks, dim: int) -> Tensor:
        ctx.ranks, ctx.dim = ranks, dim
        return ranks.own(x, dim, "x").clone()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        return ctx.ranks.gather(dy, ctx.dim).wait(), None, None


def _linear(function: Any, op: str, x: Tensor, weight: Tensor, bias: Optional[Tensor], ranks: Ranks, dim: Optional[int]) -> Tensor:
    if weight.dim() != 2:
        raise misranked(op, "weight", weight.dim(), 2)
    if x.dim() < 2:
        raise misranked(op, "x", x.dim(), "2 or more")
    if x.shape[-1] != weight.shape[1]:
        raise misshapen(op, "x", x.shape, (*x.shape[:-1], weight.shape[1]))
    # A bias of another shape would be broadcast.
    if bias is not None and bias.shape != weight.shape[:1]:
        raise misshapen(op, "bias", bias.shape, weight.shape[:1])
    if dim is not None:
        if not -x.dim() <= dim < x.dim() - 1 or dim == -1:
            raise refused(op, "sequence_dim", dim, f"one of the {x.dim()} dimensions of x before the last")
        dim %= x.dim()
    x, weight, bias = narrow(x, weight, bias)
    # Ranks may have different numbers of features, and of rows from call to call.
    shared = 1 if function is _Column else 0
    ranks.agree(x.device, x=described(x, x.dim()), weight=described(weight, shared), bias=bias is not None, sequence_dim=dim)
    try:
        return function.apply(x, weight, bias, ranks, dim)
    except Error as error:
        raise renamed(error, op, a="x", b="weight.mT") from None


@torch.compiler.disable
def column_parallel_linear(
    x: Tensor,
    weight: Tensor,
    bias: Optional[Tensor] = None,
    process_group: Any = None,
    *,
    sequence_dim: Optional[int] = None,
) -> Tensor:
    """`warpwright.torch.linear` of this rank's output features.

    x: [..., in_features], the same on all ranks, or with sequence_dim this rank's part along that dimension; weight: [features of this rank,
    in_features]; bias: [features of this rank]. The result is [..., features of this rank] of all rows. float32, float64, float16 or bfloat16.
    Differentiable in all: the gradient of x is the sum over the ranks, or this rank's part of it, exchanged while that of the weight is
    computed. Raises `ShapeError`, `DtypeError`, `ParameterError`, and `RankError` on every rank if ranks call differently.
    """
    op = "column_parallel_linear"
    return _linear(_Column, op, x, weight, bias, Ranks(op, process_group), sequence_dim)


@torch.compiler.disable
def row_parallel_linear(
    x: Tensor,
    weight: Tensor,
    bias: Optional[Tensor] = None,
    process_group: Any = None,
    *,
    sequence_dim: Optional[int] = None,
) -> Tensor:
    """`warpwright.torch.linear` of this rank's input features, summed over the ranks.

    x: [..., features of this rank], as `column_parallel_linear` leaves it; weight: [out_features, features of this rank]; bias: [out_features], the
    same on all ranks, added once. The result is [..., out_features], the same on all ranks, or with sequence_dim this rank's part along that
    dimension, which the number of ranks divides. Differentiable in all; the gradient of bias is that of all rows on every rank. Raises as
    `column_parallel_linear`.
    """
    op = "row_parallel_linear"
    ranks = Ranks(op, process_group)
    if sequence_dim is not None and -x.dim() <= sequence_dim < x.dim():
        ranks.part(x.shape[sequence_dim], f"the length of x along dimension {sequence_dim}")
    return _linear(_Row, op, x, weight, bias, ranks, sequence_dim)


class _Parallel(torch.nn.Module):
    """A linear layer of which each rank has a part. `in_features` and `out_features` are those of the whole, `weight` and `bias` the part: what a
    `state_dict` holds is this rank's."""

    # The dimension of the weight that is split. The bias is split with the first.
    _dim = 0
    process_group: Any
    bias: Optional[torch.nn.Parameter]

    def __init__(
        self, in_features: int, out_features: int, bias: bool, process_group: Any, sequence_dim: Optional[int], device: Any, dtype: Any
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.process_group, self.sequence_dim = process_group, sequence_dim
        self._take(torch.nn.Linear(in_features, out_features, bias, device, dtype))

    def _take(self, whole: torch.nn.Linear) -> None:
        """Has this rank's part of the parameters of a layer."""
        ranks = Ranks(type(self).__name__, self.process_group)
        ranks.part(whole.weight.shape[self._dim], ("out_features", "in_features")[self._dim])
        weight, bias = whole.weight.detach(), whole.bias
        self.weight = torch.nn.Parameter(ranks.own(weight, self._dim, "weight").clone(), whole.weight.requires_grad)
        if bias is not None:
            own = bias.detach() if self._dim else ranks.own(bias.detach(), 0, "bias")
            bias = torch.nn.Parameter(own.clone(), bias.requires_grad)
        self.register_parameter("bias", bias)

    @classmethod
    def from_linear(cls, linear: torch.nn.Linear, process_group: Any = None, **options: Any) -> Any:
        """This rank's part of a layer that every rank has."""
        make: Any = cls
        made = make(linear.in_features, linear.out_features, linear.bias is not None, process_group, device="meta", **options)
        made._take(linear)
        return made.train(linear.training)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, sequence_dim={self.sequence_dim}"


class ColumnParallelLinear(_Parallel):
    """A linear layer whose output features are split over the ranks, which their number divides.

    The result is [..., out_features / ranks], or with gather_output [..., out_features] on every rank. sequence_dim: the dimension of the input that
    each rank has a part of (sequence parallelism); without it the input is the same on all ranks. Initialised as `torch.nn.Linear`: ranks with the
    same seed have parts of one layer. weight: [out_features / ranks, in_features]; bias: [out_features / ranks].
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, process_group: Any = None, *, gather_output: bool = False,
        sequence_dim: Optional[int] = None, device: Any = None, dtype: Any = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, process_group, sequence_dim, device, dtype)
        self.gather_output = gather_output

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        y = column_parallel_linear(input, self.weight, self.bias, self.process_group, sequence_dim=self.sequence_dim)
        return _Gather.apply(y, Ranks("ColumnParallelLinear", self.process_group), y.dim() - 1) if self.gather_output else y


class RowParallelLinear(_Parallel):
    """A linear layer whose input features are split over the ranks, which their number divides.

    The input is [..., in_features / ranks], as `ColumnParallelLinear` leaves it, or without input_is_parallel [..., in_features], the same on all
    ranks. The result is [..., out_features] on every rank, or with sequence_dim this rank's part of it along that dimension. Initialised as
    `torch.nn.Linear`: ranks with the same seed have parts of one layer, and must have the same bias. weight: [out_features, in_features / ranks];
    bias: [out_features].
    """

    _dim = 1

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, process_group: Any = None, *, input_is_parallel: bool = True,
        sequence_dim: Optional[int] = None, device: Any = None, dtype: Any = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, process_group, sequence_dim, device, dtype)
        self.input_is_parallel = input_is_parallel

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        if not self.input_is_parallel:
            input = _Scatter.apply(input, Ranks("RowParallelLinear", self.process_group), input.dim() - 1)
        return row_parallel_linear(input, self.weight, self.bias, self.process_group, sequence_dim=self.sequence_dim)
