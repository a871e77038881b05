"""Modules of convolutions; `warpwright.torch.nn` has them for users."""

from typing import Any, List, Optional

import torch
from torch import Tensor

from . import _conv


class _Module:
    """The keyword that is ours: `precision`, "full", "tf32" or None, as of the functions."""

    # Of modules that were made as PyTorch's.
    precision: Optional[str] = None

    def __init__(self, *args: Any, precision: Optional[str] = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.precision = precision


class _Convolution(_Module):
    """The forward pass of the modules below."""

    def _conv_forward(self: Any, input: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
        function = (_conv.conv1d, _conv.conv2d, _conv.conv3d)[len(self.kernel_size) - 1]
        padding = self.padding
        if self.padding_mode != "zeros":
            input = torch.nn.functional.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = 0
        return function(
            input, weight, bias, self.stride, padding, self.dilation, self.groups, precision=self.precision
        )


class Conv1d(_Convolution, torch.nn.Conv1d):
    """`torch.nn.Conv1d` over `warpwright.torch.conv1d`."""


class Conv2d(_Convolution, torch.nn.Conv2d):
    """`torch.nn.Conv2d` over `warpwright.torch.conv2d`."""


class Conv3d(_Convolution, torch.nn.Conv3d):
    """`torch.nn.Conv3d` over `warpwright.torch.conv3d`."""


class _TransposedConvolution(_Module):
    """The forward pass of the modules below."""

    def forward(self: Any, input: Tensor, output_size: Optional[List[int]] = None) -> Tensor:
        dims = len(self.kernel_size)
        function = (_conv.conv_transpose1d, _conv.conv_transpose2d, _conv.conv_transpose3d)[dims - 1]
        output_padding = self._output_padding(
            input, output_size, self.stride, self.padding, self.kernel_size, dims, self.dilation
        )
        parameters = self.stride, self.padding, output_padding, self.groups, self.dilation
        return function(input, self.weight, self.bias, *parameters, precision=self.precision)


class ConvTranspose1d(_TransposedConvolution, torch.nn.ConvTranspose1d):
    """`torch.nn.ConvTranspose1d` over `warpwright.torch.conv_transpose1d`."""


class ConvTranspose2d(_TransposedConvolution, torch.nn.ConvTranspose2d):
    """`torch.nn.ConvTranspose2d` over `warpwright.torch.conv_transpose2d`."""


class ConvTranspose3d(_TransposedConvolution, torch.nn.ConvTranspose3d):
    """`torch.nn.ConvTranspose3d` over `warpwright.torch.conv_transpose3d`."""
