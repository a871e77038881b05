"""`local_response_norm` as an operator; `warpwright.torch` has it for users."""

import torch
from torch import Tensor

from .. import _native
from ._common import wide
from ._registry import differentiable

_local_response_norm = differentiable(
    "local_response_norm(Tensor x, SymInt size, float alpha, float beta, float k) -> Tensor",
    lambda x, *parameters: _native.local_response_norm(x, *parameters),
    lambda x, *parameters: torch.empty_like(x),
    "local_response_norm_backward(Tensor x, Tensor dy, SymInt size, float alpha, float beta, float k) -> Tensor",
    lambda x, dy, *parameters: _native.local_response_norm_backward(x, dy, *parameters),
    lambda x, dy, *parameters: torch.empty_like(x),
    1,
)


def local_response_norm(
    x: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Tensor:
    """`torch.nn.functional.local_response_norm`. Differentiable in x."""
    return _local_response_norm(*wide(x), size, alpha, beta, k)
