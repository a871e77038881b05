"""Helpers of operators on images [N, C, ...]."""

from functools import lru_cache
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from .._errors import misranked, refused
from ._differentiable import Differentiable
from ._registry import Operator, is_compiling
from ._transforms import break_graph_of_transform, takes_derivatives

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def suggests_channels_last(x: Tensor) -> bool:
    """Whether PyTorch takes x [N, C, ...] to have its channels last in memory: strides leave that open where extents are 1, and it goes
    by all of them."""
    shape, strides = x.shape, x.stride()
    if len(shape) not in FORMATS or strides[1] == 0 or strides[1] > strides[-1]:
        return False
    least = 0
    for axis in (1, *range(len(shape) - 1, 1, -1), 0):
        step, extent = strides[axis], shape[axis]
        if extent == 0 or step < least or (axis == 0 and least == strides[1]):
            return False
        least = step * extent if extent > 1 else step
    return True


def result(like: Tensor, shape: Sequence[Any], channels_last: bool, dtype: Optional[torch.dtype] = None) -> Tensor:
    """A new tensor [N, C, ...]."""
    form = FORMATS[len(shape)] if channels_last else torch.contiguous_format
    return torch.empty(shape, dtype=dtype or like.dtype, device=like.device, memory_format=form)


def memory_format(channels_last: bool) -> str:
    """The name that native functions have for it."""
    return "channels_last" if channels_last else "contiguous_format"


def each(op: str, argument: str, value: Any, dims: int, least: int) -> List[Any]:
    """A number for each dimension."""
    given = list(value) if isinstance(value, (tuple, list)) else [value]
    given = given * dims if len(given) == 1 else given
    if len(given) != dims or any(n < least for n in given):
        raise refused(op, argument, value, f"a number from {least} on, or one for each of {dims} dimensions")
    return given


def remembered(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose results in eager code are found again: layers call with the same arguments each time."""
    known = lru_cache(function)

    def call(*arguments: Any) -> Any:
        if is_compiling():
            return function(*arguments)
        try:
            return known(*arguments)
        except TypeError:
            # Lists and symbolic numbers have no hash.
            return function(*arguments)

    return call


def expect_rank(op: str, argument: str, x: Tensor, *ranks: int) -> None:
    if x.dim() not in ranks:
        raise misranked(op, argument, x.dim(), " or ".join(map(str, ranks)))


def is_recorded(*tensors: Optional[Tensor]) -> bool:
    """Whether a gradient may be asked for."""
    if is_compiling():
        break_graph_of_transform()
    elif takes_derivatives():
        return True
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def with_batch(op: str, dims: int, x: Tensor) -> Tuple[Tensor, bool, bool]:
    """Images with a batch; whether they had none; whether channels are last in memory."""
    expect_rank(op, "input", x, dims + 1, dims + 2)
    alone = x.dim() == dims + 1
    x = x.unsqueeze(0) if alone else x
    # Images of one dimension have no such format.
    return x, alone, dims > 1 and suggests_channels_last(x)


class Parameters:
    """Parameters of an operator on images, which the native functions of both directions take as keywords. Behind them comes whether
    channels are last in memory."""

    # Those that the backward direction does not take: its arguments say as much.
    FORWARD = ("output", "argmax")

    def __init__(self, types: Dict[str, str]) -> None:
        self.names = tuple(types)
        self.schema = ", ".join(f"{kind} {name}" for name, kind in (*types.items(), ("channels_last", "bool")))

    def options(self, values: Sequence[Any]) -> Dict[str, Any]:
        """Keywords of the forward direction."""
        *parameters, channels_last = values
        return {**dict(zip(self.names, parameters)), "memory_format": memory_format(channels_last)}

    def backward(self, values: Sequence[Any]) -> Dict[str, Any]:
        """Keywords of the backward direction."""
        return {name: value for name, value in self.options(values).items() if name not in self.FORWARD}


def linear_operator(
    name: str, types: Dict[str, str], natives: Sequence[Callable[..., Any]], extents: Callable[..., Any]
) -> Callable[..., Tensor]:
    """A differentiable operator of images and of parameters that makes images of other extents, whose gradient depends on no element of the
    images. natives: the functions of both directions; extents(image, *parameters): of the result."""
    forward, backward = natives
    parameters = Parameters(types)

    def run(x: Tensor, *values: Any) -> Tensor:
        return forward(x, **parameters.options(values))

    def fake(x: Tensor, *values: Any) -> Tensor:
        return result(x, (*x.shape[:2], *extents(x.shape[2:], *values[:-1])), values[-1])

    def run_back(dy: Tensor, image: Sequence[int], *values: Any) -> Tensor:
        return backward(dy, (*dy.shape[:2], *image), **parameters.backward(values))

    def fake_back(dy: Tensor, image: Sequence[Any], *values: Any) -> Tensor:
        return result(dy, (*dy.shape[:2], *image), values[-1])

    return Differentiable(
        Operator(f"{name}(Tensor x, {parameters.schema}) -> Tensor", native=run, fake=fake),
        Operator(
            f"{name}_backward(Tensor dy, SymInt[] image, {parameters.schema}) -> Tensor", native=run_back, fake=fake_back
        ),
        save=lambda inputs, found: (),
        noted=lambda inputs: (list(inputs[0].shape[2:]), *inputs[1:]),
    ).function()
