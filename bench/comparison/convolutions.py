"""Convolutions: what each library calls for a case.

Shape is (batch, channels, ..), of images of one to three dimensions; options `filters`, `kernel`, `stride`, `padding`, `dilation`, the same in
every dimension, `groups`, `relu`: a bias and a ReLU behind, `scale`: a factor of each filter and a shift in place of the bias, `residual`: a
tensor that is added before the ReLU, and `precision`: "tf32" of f32, as PyTorch's setting has it. Directions are
`forward`, and `dx` and `dweight`, the gradients, each alone.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from .norms import Draw, Function, Problem, channels_last
from .suites import Case


# What norms add to a variance.
EPS = 2.0**-16


class Convolution(Problem):
    def __init__(self, case: Case, draw: Draw) -> None:
        self.case = case
        # Algorithms by measurement; products of f32 are those of f32, unless the case says otherwise.
        torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = True, case.factors == "tf32"
        channels, groups = case.shape[1], case.option("groups", 1)
        self.dims, self.relu = len(case.shape) - 2, bool(case.option("relu"))
        self.scale, self.residual = bool(case.option("scale")), bool(case.option("residual"))
        self.options = {name: case.option(name, value) for name, value in
                        (("stride", 1), ("padding", 0), ("dilation", 1), ("groups", 1))}
        self.our_options = self.options | ({"precision": "tf32"} if case.factors == "tf32" else {})
        kernel = [case.option("kernel")] * self.dims
        x, weight = draw(case.shape), draw((case.option("filters"), channels // groups, *kernel))
        if case.option("channels_last"):
            x, weight = channels_last(x), channels_last(weight)
        self.inputs = [x, weight, draw(weight.shape[:1])] if self.relu else [x, weight]
        self.ends: dict[str, torch.Tensor] = {}
        if self.scale:
            self.ends["scale"] = draw(weight.shape[:1]).float()
            self.known = torch.zeros_like(self.ends["scale"]), torch.full_like(self.ends["scale"], 1 - EPS)
            # It and the shift are what a norm with known statistics is, in f32.
            self.inputs[2:] = [draw(weight.shape[:1]).float()]
        if self.residual:
            image = (self.extent(n, kernel[0]) for n in case.shape[2:])
            residual = draw((case.shape[0], weight.shape[0], *image))
            self.ends["residual"] = channels_last(residual) if case.option("channels_last") else residual
        self.inputs += self.ends.values()
        if case.direction == "dweight":
            # What a gradient is taken of comes first.
            self.inputs.reverse()
        if case.direction != "forward":
            self.called = "conv_backward"

    def extent(self, n: int, kernel: int) -> int:
        """Of a result, by that of an image."""
        span = self.options["dilation"] * (kernel - 1) + 1
        return int((n + 2 * self.options["padding"] - span) // self.options["stride"] + 1)

    def theirs_with_ends(self, x: torch.Tensor, weight: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        """A convolution, a norm with known statistics, an addition and a ReLU."""
        ends = list(rest)
        bias = ends.pop(0) if self.relu or self.scale else None
        convolved = (F.conv1d, F.conv2d, F.conv3d)[self.dims - 1](x, weight, None if self.scale else bias, **self.options)
        if self.scale:
            mean, variance = (known.to(bias.dtype) for known in self.known)
            convolved = F.batch_norm(convolved, mean, variance, ends.pop(0), bias, eps=EPS)
        if self.residual:
            convolved = convolved.add_(ends.pop(0))
        return F.relu_(convolved) if self.relu else convolved

    def theirs(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        if self.ends:
            return self.theirs_with_ends(x, *rest)
        (weight, *bias) = rest
        if self.case.direction == "dweight":
            x, weight = weight, x
        y = (F.conv1d, F.conv2d, F.conv3d)[self.dims - 1](x, weight, *(bias or [None]), **self.options)
        return F.relu(y) if self.relu else y

    def beside(self, dy: Any) -> dict[str, Any]:
        """cuDNN's one launch of a convolution, a bias, an addition and a ReLU, whose weight has been multiplied by the factors before."""
        if not (self.residual and self.relu):
            return {}
        x, weight, bias, *_ = self.inputs
        if self.scale:
            across = (-1, *[1] * (weight.dim() - 1))
            folded = (weight * self.ends["scale"].reshape(across)).to(weight.dtype)
            weight = channels_last(folded) if self.case.option("channels_last") else folded
        steps = ([self.options[name]] * self.dims for name in ("stride", "padding", "dilation"))
        given = (x, weight, self.ends["residual"], 1.0, bias.to(x.dtype), *steps, self.options["groups"])
        return {"cudnn_convolution_add_relu": lambda: torch.cudnn_convolution_add_relu(*given)}

    def ours(self, ww: Any) -> Function:
        activation = "relu" if self.relu else None
        given = self.inputs[: len(self.inputs) - len(self.ends)]
        return lambda out=None: ww.conv(*given, activation=activation, out=out, **self.ends, **self.our_options)

    def ours_backward(self, ww: Any, dy: torch.Tensor) -> Function:
        of_x = self.case.direction == "dx"
        x, weight = self.inputs if of_x else reversed(self.inputs)
        wanted = {"x_gradient": of_x, "weight_gradient": not of_x, "bias_gradient": False}

        def call(out: Any = None) -> torch.Tensor:
            dx, dweight, _ = ww.conv_backward(x, weight, dy, out=out, **wanted, **self.our_options)
            return dx if of_x else dweight

        return call


PROBLEMS: dict[str, type[Problem]] = {"conv": Convolution}
