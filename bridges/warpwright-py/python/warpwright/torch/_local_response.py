"""`local_response_norm` as an operator; `warpwright.torch` has it for users."""

import torch
from torch import Tensor

from .. import _native
from ._common import wide
from ._differentiable import Differentiable
from ._registry import Operator

_local_response_norm = Differentiable(
    Operator(
        "local_response_norm(Tensor x, SymInt size, float alpha, float beta, float k) -> Tensor",
        native=_native.local_response_norm,
        fake=lambda x, *parameters: torch.empty_like(x),
    ),
    Operator(
        "local_response_norm_backward(Tensor x, Tensor dy, SymInt size, float alpha, float beta, float k) -> Tensor",
        native=_native.local_response_norm_backward,
        fake=lambda x, dy, *parameters: torch.empty_like(x),
    ),
).function()


def local_response_norm(
    x: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Tensor:
    """`torch.nn.functional.local_response_norm`. Differentiable in x."""
    return _local_response_norm(*wide(x), size, alpha, beta, k)
