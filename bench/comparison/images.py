"""Pooling, images at other extents, and causal convolutions along time: what each library calls for a case.

Shape is (batch, channels, ..), of images of one to three dimensions. Options of pooling are `kernel`, `stride` and `padding`, the same in every
dimension, or `output`, the extent of each dimension of adaptive windows; of `resize` `scale` and `mode`, as PyTorch calls it; of
`causal_conv1d`, whose shape is (batch, channels, positions), `width` and `silu`. Of maxima the forward pass is that without numbers, as it runs
where no gradient is recorded, or with `argmax` the one that keeps a byte for each; the backward pass takes these.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from .contender import installed
from .norms import Draw, Function, Problem
from .suites import Case

# Modes of PyTorch as `warpwright.resize` calls them.
MODES = {"nearest": "nearest", "nearest-exact": "nearest_exact", "bilinear": "linear", "bicubic": "cubic", "area": "area"}


class OfImages(Problem):
    """Its reference reads contiguous tensors: with channels last PyTorch's gradient of padded means is wrong in some releases."""

    def wide(self, x: torch.Tensor) -> torch.Tensor:
        return x.double().contiguous()


class Pooling(OfImages):
    """Windows of one size."""

    def __init__(self, case: Case, draw: Draw) -> None:
        super().__init__(case, draw)
        self.dims, self.maxima = len(case.shape) - 2, "max" in case.op
        self.windows = {name: case.option(name, value) for name, value in (("stride", case.option("kernel")), ("padding", 0))}
        if case.direction == "backward":
            self.called = f"{case.op}_backward"

    def theirs(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        return getattr(F, f"{self.case.op}{self.dims}d")(x, self.case.option("kernel"), **self.windows)

    def ours(self, ww: Any) -> Function:
        function, options = getattr(ww, self.case.op), dict(self.windows)
        if self.maxima and (self.case.option("argmax") or self.case.direction == "backward"):
            options["argmax"] = "tap"
        return lambda out=None: function(self.x, self.case.option("kernel"), out=out, **options)

    def ours_backward(self, ww: Any, dy: torch.Tensor) -> Function:
        kernel, shape = self.case.option("kernel"), tuple(self.x.shape)
        if not self.maxima:
            return lambda out=None: ww.avg_pool_backward(dy, shape, kernel, out=out, **self.windows)
        _, taps = self.ours(ww)()
        return lambda out=None: ww.max_pool_backward(dy, taps, shape, kernel, out=out, **self.windows)


class AdaptivePooling(OfImages):
    """As many windows as the result has elements."""

    def __init__(self, case: Case, draw: Draw) -> None:
        super().__init__(case, draw)
        self.dims, self.output, self.maxima = len(case.shape) - 2, case.option("output"), "max" in case.op
        if case.direction == "backward":
            self.called = f"{case.op}_backward"

    def theirs(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        return getattr(F, f"{self.case.op}{self.dims}d")(x, self.output)

    def ours(self, ww: Any) -> Function:
        return lambda out=None: getattr(ww, self.case.op)(self.x, self.output, out=out)

    def ours_backward(self, ww: Any, dy: torch.Tensor) -> Function:
        shape = tuple(self.x.shape)
        if not self.maxima:
            return lambda out=None: ww.adaptive_avg_pool_backward(dy, shape, out=out)
        _, indices = ww.adaptive_max_pool(self.x, self.output, argmax="index")
        return lambda out=None: ww.adaptive_max_pool_backward(dy, indices, shape, out=out)


class Resize(OfImages):
    def __init__(self, case: Case, draw: Draw) -> None:
        super().__init__(case, draw)
        self.scale, self.mode = case.option("scale"), case.option("mode")
        if case.direction == "backward":
            self.called = "resize_backward"

    def theirs(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        return F.interpolate(x, scale_factor=self.scale, mode=self.mode)

    def ours(self, ww: Any) -> Function:
        return lambda out=None: ww.resize(self.x, scale=self.scale, mode=MODES[self.mode], out=out)

    def ours_backward(self, ww: Any, dy: torch.Tensor) -> Function:
        options = {"scale": self.scale, "mode": MODES[self.mode]}
        return lambda out=None: ww.resize_backward(dy, tuple(self.x.shape), out=out, **options)


class CausalConv(Problem):
    """PyTorch has a convolution of padded samples for it, the package causal-conv1d a kernel."""

    differentiable = 3

    def __init__(self, case: Case, draw: Draw) -> None:
        super().__init__(case, draw)
        self.width, channels = case.option("width"), case.shape[1]
        self.activation = "silu" if case.option("silu") else None
        self.inputs += [draw((channels, self.width)), draw((channels,))]
        if case.direction == "backward":
            self.called = "causal_conv1d_backward"

    def theirs(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        weight, bias = rest
        y = F.conv1d(F.pad(x, (self.width - 1, 0)), weight[:, None], bias, groups=x.shape[1])
        return F.silu(y) if self.activation else y

    def ours(self, ww: Any) -> Function:
        return lambda out=None: ww.causal_conv1d(*self.inputs, activation=self.activation, out=out)

    def ours_backward(self, ww: Any, dy: torch.Tensor) -> Function:
        x, weight, bias = self.inputs

        def call(out: Any = None) -> Any:
            # There are no initial states, and so no gradient of them.
            found = ww.causal_conv1d_backward(x, weight, dy, bias=bias, activation=self.activation, out=out)
            return found[:3]

        return call

    def others(self) -> dict[str, Function]:
        if not installed("causal_conv1d"):
            return {}
        from causal_conv1d import causal_conv1d_fn

        return {"causal-conv1d": lambda x, weight, bias: causal_conv1d_fn(x, weight, bias, activation=self.activation)}


PROBLEMS: dict[str, type[Problem]] = {
    "max_pool": Pooling,
    "avg_pool": Pooling,
    "adaptive_max_pool": AdaptivePooling,
    "adaptive_avg_pool": AdaptivePooling,
    "resize": Resize,
    "causal_conv1d": CausalConv,
}
