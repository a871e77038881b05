"""Modules with the names and parameters of `torch.nn`, over the operators of `warpwright.torch`."""

from typing import Any, Optional

import torch
from torch import Tensor

from . import _batch, _cross_entropy, _groups, _local_response, _matmul, _operators, _rows, _softmax
from ._conv_nn import Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from ._dropout import Dropout
from ._embedding import Embedding
from ._linear_4bit import Linear4bit
from ._pool_nn import (
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AdaptiveAvgPool3d,
    AdaptiveMaxPool1d,
    AdaptiveMaxPool2d,
    AdaptiveMaxPool3d,
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
    Upsample,
)
from ._recurrent_nn import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell

__all__ = [
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "CrossEntropyLoss",
    "Dropout",
    "Embedding",
    "GEGLU",
    "GELU",
    "GRU",
    "GRUCell",
    "GroupNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LSTM",
    "LSTMCell",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "Linear4bit",
    "LocalResponseNorm",
    "LogSoftmax",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "RMSNorm",
    "RNN",
    "RNNCell",
    "ReLU",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softmax2d",
    "Softplus",
    "SwiGLU",
    "Tanh",
    "Upsample",
]


def _refuse_in_place(inplace: bool) -> None:
    if inplace:
        raise ValueError("inplace=True is not supported: the result is a new tensor")


class ReLU(torch.nn.Module):
    """`max(x, 0)`."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        _refuse_in_place(inplace)

    def forward(self, x: Tensor) -> Tensor:
        return _operators.relu(x)


class LeakyReLU(torch.nn.Module):
    """`x` if `x > 0`, else `negative_slope x`."""

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        super().__init__()
        _refuse_in_place(inplace)
        self.negative_slope = negative_slope

    def forward(self, x: Tensor) -> Tensor:
        return _operators.leaky_relu(x, self.negative_slope)

    def extra_repr(self) -> str:
        return f"negative_slope={self.negative_slope}"


class Softplus(torch.nn.Module):
    """`log(1 + exp(beta x)) / beta`, exact for every x: beyond PyTorch's threshold it differs by less than its rounding in float32."""

    def __init__(self, beta: float = 1.0) -> None:
        super().__init__()
        self.beta = beta

    def forward(self, x: Tensor) -> Tensor:
        return _operators.softplus(x, self.beta)

    def extra_repr(self) -> str:
        return f"beta={self.beta}"


class GELU(torch.nn.Module):
    """`x Phi(x)`; with approximate="tanh" its approximation by tanh."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        if approximate not in ("none", "tanh"):
            raise ValueError(f"approximate is {approximate!r}, expected 'none' or 'tanh'")
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        return _operators.gelu_tanh(x) if self.approximate == "tanh" else _operators.gelu_erf(x)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class SiLU(torch.nn.Module):
    """`x / (1 + exp(-x))`."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        _refuse_in_place(inplace)

    def forward(self, x: Tensor) -> Tensor:
        return _operators.silu(x)


class Sigmoid(torch.nn.Module):
    """`1 / (1 + exp(-x))`."""

    def forward(self, x: Tensor) -> Tensor:
        return _operators.sigmoid(x)


class Tanh(torch.nn.Module):
    """`tanh(x)`."""

    def forward(self, x: Tensor) -> Tensor:
        return _operators.tanh(x)


class SwiGLU(torch.nn.Module):
    """`silu(gate) up`."""

    def forward(self, gate: Tensor, up: Tensor) -> Tensor:
        return _operators.swiglu(gate, up)


class GEGLU(torch.nn.Module):
    """`gelu(gate) up`; with approximate="tanh" by the approximation."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        if approximate not in ("none", "tanh"):
            raise ValueError(f"approximate is {approximate!r}, expected 'none' or 'tanh'")
        self.approximate = approximate

    def forward(self, gate: Tensor, up: Tensor) -> Tensor:
        return _operators.geglu_tanh(gate, up) if self.approximate == "tanh" else _operators.geglu(gate, up)


class Linear(torch.nn.Linear):
    """`torch.nn.Linear` over `warpwright.torch.linear`."""

    def forward(self, input: Tensor) -> Tensor:
        return _matmul.linear(input, self.weight, self.bias)


class LayerNorm(torch.nn.LayerNorm):
    """`torch.nn.LayerNorm` over `warpwright.torch.layer_norm`."""

    def forward(self, input: Tensor) -> Tensor:
        return _rows.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)


class RMSNorm(torch.nn.RMSNorm):
    """`torch.nn.RMSNorm` over `warpwright.torch.rms_norm`."""

    def forward(self, x: Tensor) -> Tensor:
        return _rows.rms_norm(x, self.normalized_shape, self.weight, self.eps)


class GroupNorm(torch.nn.GroupNorm):
    """`torch.nn.GroupNorm` over `warpwright.torch.group_norm`."""

    def forward(self, input: Tensor) -> Tensor:
        return _groups.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)


class _BatchNorm:
    """The forward pass of the modules below."""

    def forward(self: Any, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        running = (self.running_mean, self.running_var)
        training = self.training or (self.running_mean is None and self.running_var is None)
        momentum = 0.0 if self.momentum is None else self.momentum
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                momentum = 1.0 / float(self.num_batches_tracked)
        # In training they are there to be brought up to date, if they are to be followed at all.
        followed = running if not self.training or self.track_running_stats else (None, None)
        return _batch.batch_norm(input, *followed, self.weight, self.bias, training, momentum, self.eps)


class BatchNorm1d(_BatchNorm, torch.nn.BatchNorm1d):
    """`torch.nn.BatchNorm1d` over `warpwright.torch.batch_norm`."""


class BatchNorm2d(_BatchNorm, torch.nn.BatchNorm2d):
    """`torch.nn.BatchNorm2d` over `warpwright.torch.batch_norm`."""


class BatchNorm3d(_BatchNorm, torch.nn.BatchNorm3d):
    """`torch.nn.BatchNorm3d` over `warpwright.torch.batch_norm`."""


class _InstanceNorm:
    """Stands in for PyTorch's function in the modules below; an input without a batch gets one there."""

    def _apply_instance_norm(self: Any, input: Tensor) -> Tensor:
        statistics = self.training or not self.track_running_stats
        momentum = 0.0 if self.momentum is None else self.momentum
        running = (self.running_mean, self.running_var)
        return _groups.instance_norm(input, *running, self.weight, self.bias, statistics, momentum, self.eps)


class InstanceNorm1d(_InstanceNorm, torch.nn.InstanceNorm1d):
    """`torch.nn.InstanceNorm1d` over `warpwright.torch.instance_norm`."""


class InstanceNorm2d(_InstanceNorm, torch.nn.InstanceNorm2d):
    """`torch.nn.InstanceNorm2d` over `warpwright.torch.instance_norm`."""


class InstanceNorm3d(_InstanceNorm, torch.nn.InstanceNorm3d):
    """`torch.nn.InstanceNorm3d` over `warpwright.torch.instance_norm`."""


class LocalResponseNorm(torch.nn.LocalResponseNorm):
    """`torch.nn.LocalResponseNorm` over `warpwright.torch.local_response_norm`."""

    def forward(self, input: Tensor) -> Tensor:
        return _local_response.local_response_norm(input, self.size, self.alpha, self.beta, self.k)


class Softmax(torch.nn.Softmax):
    """`torch.nn.Softmax` over `warpwright.torch.softmax`."""

    def forward(self, input: Tensor) -> Tensor:
        return _softmax.softmax(input, _dimension(self.dim, input))


class Softmax2d(torch.nn.Softmax2d):
    """`torch.nn.Softmax2d` over `warpwright.torch.softmax`."""

    def forward(self, input: Tensor) -> Tensor:
        if input.dim() not in (3, 4):
            raise ValueError(f"Softmax2d: expected input to be 3D or 4D, got {input.dim()}D instead")
        return _softmax.softmax(input, -3)


class LogSoftmax(torch.nn.LogSoftmax):
    """`torch.nn.LogSoftmax` over `warpwright.torch.log_softmax`."""

    def forward(self, input: Tensor) -> Tensor:
        return _softmax.log_softmax(input, _dimension(self.dim, input))


class CrossEntropyLoss(torch.nn.CrossEntropyLoss):
    """`torch.nn.CrossEntropyLoss` over `warpwright.torch.cross_entropy`."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return _cross_entropy.cross_entropy(
            input, target, self.weight, self.ignore_index, self.reduction, self.label_smoothing
        )


def _dimension(dim: Optional[int], x: Tensor) -> int:
    """The dimension that PyTorch takes if none is named."""
    if dim is not None:
        return dim
    return 0 if x.dim() in (0, 1, 3) else 1
