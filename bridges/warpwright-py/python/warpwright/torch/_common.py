"""Helpers of the operators of several files."""

from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from .._errors import DtypeError

_NAMES = {torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16"}


def expect_dtype(op: str, argument: str, x: Tensor, dtype: torch.dtype) -> None:
    """Refuses a tensor of another type than `dtype`, as native functions do."""
    if x.dtype != dtype:
        expected, got = (_NAMES.get(t, str(t).replace("torch.", "")) for t in (dtype, x.dtype))
        raise DtypeError(f"{op}: {argument} is {got}, expected {expected}", op=op, argument=argument, expected=expected, got=got)


def _casts(kind: str) -> bool:
    """Whether autocast is on for a kind of device; tensors without memory have none."""
    return kind != "meta" and torch.is_autocast_enabled(kind)


def wide(*tensors: Any) -> Tuple[Any, ...]:
    """The arguments as autocast makes them for a function that it runs in float32."""
    if not _casts(tensors[0].device.type):
        return tensors
    low = (torch.float16, torch.bfloat16)
    return tuple(t.float() if t is not None and t.dtype in low else t for t in tensors)


def of_dtype(x: Tensor, dtype: Optional[torch.dtype], autocast: bool = True) -> Tuple[Tensor, torch.dtype]:
    """`x` and the type of a result that is `dtype`, by default that of `x` or, if the function is one that autocast runs in float32, that.
    Functions make float32 of 16 bits without a copy; before another type `x` is converted."""
    low = x.dtype in (torch.float16, torch.bfloat16)
    if dtype is None:
        return x, torch.float32 if low and autocast and _casts(x.device.type) else x.dtype
    return (x if dtype == x.dtype or (low and dtype == torch.float32) else x.to(dtype)), dtype


def narrow(*tensors: Any) -> Tuple[Any, ...]:
    """The arguments as autocast makes them for a function that it runs in its own type."""
    kind = tensors[0].device.type
    if not _casts(kind):
        return tensors
    dtype, floats = torch.get_autocast_dtype(kind), (torch.float32, torch.float16, torch.bfloat16)
    return tuple(t.to(dtype) if t is not None and t.dtype in floats else t for t in tensors)


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The type of sums and statistics of elements of a type."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def statistics(x: Tensor, shape: Any) -> Tensor:
    """A tensor for statistics of `x`."""
    return x.new_empty(shape, dtype=accumulator(x.dtype))


def random_numbers(x: Tensor) -> Tensor:
    """Seed and offset of a dropout, from PyTorch's default generator of the device."""
    return torch.randint(-(2**63), 2**63 - 1, (2,), dtype=torch.int64, device=x.device)


def row_major(x: Tensor) -> Tensor:
    """A result like `x` in row-major order."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def gradient_of(parameter: Optional[Tensor], x: Tensor) -> Tensor:
    """A gradient of a parameter; without the parameter, an empty tensor."""
    return x.new_empty(0) if parameter is None else row_major(parameter)


def image(x: Tensor) -> Tensor:
    """A result like the image `x`: with its channels last in memory if it has them there, otherwise in row-major order."""
    if x.is_contiguous() or (x.dim() > 2 and x.movedim(1, -1).is_contiguous()):
        return torch.empty_like(x)
    return row_major(x)


def more_than_one(x: Tensor, values: int, of: str) -> None:
    """Refuses statistics of one value, as PyTorch does."""
    if values == 1:
        raise ValueError(f"Expected more than 1 value per {of} when training, got input size {x.size()}")
