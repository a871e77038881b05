"""Sums and means as operators; `warpwright.torch` has them for users."""

from typing import Any, Callable, List, Optional, Sequence, Union

import torch
from torch import Tensor

from .. import _native
from .._errors import Error, refused, renamed
from .._native import Entry
from ._common import of_dtype
from ._registry import Operator, is_compiling, refuse_tangents, register_gradient


def _shape(x: Tensor, dims: Sequence[int], keepdim: bool) -> List[Any]:
    """That of a result."""
    return [1 if axis in dims else n for axis, n in enumerate(x.shape) if keepdim or axis not in dims]


def _sum(name: str) -> Callable[..., Tensor]:
    native = getattr(_native, name)

    def run(x: Tensor, dims: Sequence[int], keepdim: bool, dtype: torch.dtype) -> Tensor:
        return native(x, tuple(dims), keepdim, dtype=dtype)

    def fake(x: Tensor, dims: Sequence[int], keepdim: bool, dtype: torch.dtype) -> Tensor:
        return x.new_empty(_shape(x, dims, keepdim), dtype=dtype)

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, dims, _, _ = inputs
        ctx.shape, ctx.dims, ctx.dtype = x.shape, dims, x.dtype

    def differentiate(ctx: Any, dy: Tensor) -> Any:
        # Each element of the result is the sum of all that it stands for.
        if name == "mean":
            count = 1
            for axis in ctx.dims:
                count = count * ctx.shape[axis]
            dy = dy / count
        kept = [1 if axis in ctx.dims else n for axis, n in enumerate(ctx.shape)]
        return dy.to(ctx.dtype).reshape(kept).expand(ctx.shape), None, None, None

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Tensor:
            setup_context(ctx, inputs, None)
            return run(*inputs)

        backward = staticmethod(differentiate)

    Function.__name__ = Function.__qualname__ = f"{name}Function"
    operator = Operator(f"{name}(Tensor x, int[] dim, bool keepdim, ScalarType dtype) -> Tensor", native=run, fake=fake)
    call = register_gradient(operator.register(), differentiate, setup_context)

    def dispatched(*inputs: Any) -> Tensor:
        refuse_tangents(name, inputs)
        return call(*inputs)

    # What `Function.apply` comes down to where no functional transform is active.
    apply = super(torch.autograd.Function, Function).apply
    entry = Entry(1, run, apply, dispatched)

    def function(
        input: Tensor,
        dim: Optional[Union[int, Sequence[int]]] = None,
        keepdim: bool = False,
        *,
        dtype: Optional[torch.dtype] = None,
    ) -> Tensor:
        rank = input.dim()
        given = () if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
        if any(not -max(rank, 1) <= d < max(rank, 1) for d in given):
            raise refused(name, "dim", dim, f"dimensions of the {rank} of input")
        dims = [d % rank for d in given] if rank else []
        if len(set(dims)) != len(dims):
            raise refused(name, "dim", dim, "each dimension once")
        dims = sorted(dims) if given else list(range(rank))
        # Autocast has sums in float32.
        input, dtype = of_dtype(input, dtype, name == "sum")
        try:
            return (dispatched if is_compiling() else entry)(input, dims, keepdim, dtype)
        except Error as error:
            raise renamed(error, name, x="input") from None

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""`torch.{name}` of float32, float64, float16 or bfloat16, summed in a fixed order. Differentiable in input, any number
    of times."""
    return function


sum, mean = _sum("sum"), _sum("mean")
