"""Modules of pooling and of images at other extents; `warpwright.torch.nn` has them for users."""

from typing import Any

import torch
from torch import Tensor

from . import _pool, _resize


class _MaxPool:
    """The forward pass of the modules below."""

    def forward(self: Any, input: Tensor) -> Any:
        return self._function(
            input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices
        )


class MaxPool1d(_MaxPool, torch.nn.MaxPool1d):
    """`torch.nn.MaxPool1d` over `warpwright.torch.max_pool1d`."""

    _function = staticmethod(_pool.max_pool1d)


class MaxPool2d(_MaxPool, torch.nn.MaxPool2d):
    """`torch.nn.MaxPool2d` over `warpwright.torch.max_pool2d`."""

    _function = staticmethod(_pool.max_pool2d)


class MaxPool3d(_MaxPool, torch.nn.MaxPool3d):
    """`torch.nn.MaxPool3d` over `warpwright.torch.max_pool3d`."""

    _function = staticmethod(_pool.max_pool3d)


class AvgPool1d(torch.nn.AvgPool1d):
    """`torch.nn.AvgPool1d` over `warpwright.torch.avg_pool1d`."""

    def forward(self, input: Tensor) -> Tensor:
        return _pool.avg_pool1d(
            input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad
        )


class _AvgPool:
    """The forward pass of the modules below."""

    def forward(self: Any, input: Tensor) -> Tensor:
        windows = self.kernel_size, self.stride, self.padding, self.ceil_mode
        return self._function(input, *windows, self.count_include_pad, self.divisor_override)


class AvgPool2d(_AvgPool, torch.nn.AvgPool2d):
    """`torch.nn.AvgPool2d` over `warpwright.torch.avg_pool2d`."""

    _function = staticmethod(_pool.avg_pool2d)


class AvgPool3d(_AvgPool, torch.nn.AvgPool3d):
    """`torch.nn.AvgPool3d` over `warpwright.torch.avg_pool3d`."""

    _function = staticmethod(_pool.avg_pool3d)


class _AdaptiveMaxPool:
    """The forward pass of the modules below."""

    def forward(self: Any, input: Tensor) -> Any:
        return self._function(input, self.output_size, self.return_indices)


class AdaptiveMaxPool1d(_AdaptiveMaxPool, torch.nn.AdaptiveMaxPool1d):
    """`torch.nn.AdaptiveMaxPool1d` over `warpwright.torch.adaptive_max_pool1d`."""

    _function = staticmethod(_pool.adaptive_max_pool1d)


class AdaptiveMaxPool2d(_AdaptiveMaxPool, torch.nn.AdaptiveMaxPool2d):
    """`torch.nn.AdaptiveMaxPool2d` over `warpwright.torch.adaptive_max_pool2d`."""

    _function = staticmethod(_pool.adaptive_max_pool2d)


class AdaptiveMaxPool3d(_AdaptiveMaxPool, torch.nn.AdaptiveMaxPool3d):
    """`torch.nn.AdaptiveMaxPool3d` over `warpwright.torch.adaptive_max_pool3d`."""

    _function = staticmethod(_pool.adaptive_max_pool3d)


class _AdaptiveAvgPool:
    """The forward pass of the modules below."""

    def forward(self: Any, input: Tensor) -> Tensor:
        return self._function(input, self.output_size)


class AdaptiveAvgPool1d(_AdaptiveAvgPool, torch.nn.AdaptiveAvgPool1d):
    """`torch.nn.AdaptiveAvgPool1d` over `warpwright.torch.adaptive_avg_pool1d`."""

    _function = staticmethod(_pool.adaptive_avg_pool1d)


class AdaptiveAvgPool2d(_AdaptiveAvgPool, torch.nn.AdaptiveAvgPool2d):
    """`torch.nn.AdaptiveAvgPool2d` over `warpwright.torch.adaptive_avg_pool2d`."""

    _function = staticmethod(_pool.adaptive_avg_pool2d)


class AdaptiveAvgPool3d(_AdaptiveAvgPool, torch.nn.AdaptiveAvgPool3d):
    """`torch.nn.AdaptiveAvgPool3d` over `warpwright.torch.adaptive_avg_pool3d`."""

    _function = staticmethod(_pool.adaptive_avg_pool3d)


class Upsample(torch.nn.Upsample):
    """`torch.nn.Upsample` over `warpwright.torch.interpolate`."""

    def forward(self, input: Tensor) -> Tensor:
        return _resize.interpolate(
            input, self.size, self.scale_factor, self.mode, self.align_corners, self.recompute_scale_factor
        )
