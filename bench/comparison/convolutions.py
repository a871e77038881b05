"""Convolutions: what each library calls for a case.

Shape is (batch, channels, ..), of images of one to three dimensions; options `filters`, `kernel`, `stride`, `padding`, `dilation`, the same in
every dimension, `groups`, `relu`: a bias and a ReLU behind, and `precision`: "tf32" of f32, as PyTorch's setting has it. Directions are
`forward`, and `dx` and `dweight`, the gradients, each alone.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from .norms import Draw, Function, Problem, channels_last
from .suites import Case


class Convolution(Problem):
    def __init__(self, case: Case, draw: Draw) -> None:
        self.case = case
        # Algorithms by measurement; products of f32 are those of f32, unless the case says otherwise.
        torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = True, case.factors == "tf32"
        channels, groups = case.shape[1], case.option("groups", 1)
        self.dims, self.relu = len(case.shape) - 2, bool(case.option("relu"))
        self.options = {name: case.option(name, value) for name, value in
                        (("stride", 1), ("padding", 0), ("dilation", 1), ("groups", 1))}
        self.our_options = self.options | ({"precision": "tf32"} if case.factors == "tf32" else {})
        kernel = [case.option("kernel")] * self.dims
        x, weight = draw(case.shape), draw((case.option("filters"), channels // groups, *kernel))
        if case.option("channels_last"):
            x, weight = channels_last(x), channels_last(weight)
        self.inputs = [x, weight, draw(weight.shape[:1])] if self.relu else [x, weight]
        if case.direction == "dweight":
            # What a gradient is taken of comes first.
            self.inputs.reverse()
        if case.direction != "forward":
            self.called = "conv_backward"

    def theirs(self, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        (weight, *bias) = rest
        if self.case.direction == "dweight":
            x, weight = weight, x
        y = (F.conv1d, F.conv2d, F.conv3d)[self.dims - 1](x, weight, *(bias or [None]), **self.options)
        return F.relu(y) if self.relu else y

    def ours(self, ww: Any) -> Function:
        activation = "relu" if self.relu else None
        return lambda out=None: ww.conv(*self.inputs, activation=activation, out=out, **self.our_options)

    def ours_backward(self, ww: Any, dy: torch.Tensor) -> Function:
        of_x = self.case.direction == "dx"
        x, weight = self.inputs if of_x else reversed(self.inputs)
        wanted = {"x_gradient": of_x, "weight_gradient": not of_x, "bias_gradient": False}

        def call(out: Any = None) -> torch.Tensor:
            dx, dweight, _ = ww.conv_backward(x, weight, dy, out=out, **wanted, **self.our_options)
            return dx if of_x else dweight

        return call


PROBLEMS: dict[str, type[Problem]] = {"conv": Convolution}
