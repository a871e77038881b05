"""Softmax as operators; `warpwright.torch` has them for users."""

from typing import Any, Callable, Optional

import torch
from torch import Tensor

from .. import _native
from ._common import wide
from ._differentiable import Differentiable
from ._registry import Operator


def _softmax(name: str) -> Callable[..., Tensor]:
    native, native_backward = getattr(_native, name), getattr(_native, f"{name}_backward")

    def run(x: Tensor, dim: int, scale: float) -> Tensor:
        return native(x, dim, scale=scale)

    def gradient(y: Tensor, dy: Tensor, dim: int, scale: float) -> Tensor:
        return native_backward(y, dy, dim, scale=scale)

    operator = Differentiable(
        Operator(
            f"{name}(Tensor x, SymInt dim, float scale) -> Tensor",
            native=run,
            fake=lambda x, dim, scale: torch.empty_like(x),
        ),
        Operator(
            f"{name}_backward(Tensor y, Tensor dy, SymInt dim, float scale) -> Tensor",
            native=gradient,
            fake=lambda y, dy, dim, scale: torch.empty_like(y),
        ),
        save=lambda inputs, found: found[:1],
    ).function()

    def function(x: Tensor, dim: int = -1, dtype: Optional[torch.dtype] = None, *, scale: float = 1.0) -> Tensor:
        (x,) = wide(x) if dtype is None else (x.to(dtype),)
        return operator(x, dim, scale)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = (
        f"{native.__doc__}\n\nAs `torch.nn.functional.{name}` of `scale * x`. Differentiable in x; the result has the "
        "strides of `torch.empty_like(x)`."
    )
    return function


softmax, log_softmax = _softmax("softmax"), _softmax("log_softmax")
