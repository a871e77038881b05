"""Graphs with operators of ours in them, as a compiler makes them, against PyTorch's; for tests."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch._dynamo.backends.debugging import aot_eager

from warpwright.torch import compiler

# Of bf16 against f64, on top of twice what PyTorch errs.
BUDGET = 1e-3


@pytest.fixture(autouse=True)
def alone():
    """Small tensors gain nothing from threads of PyTorch's that wait for each other; what one test compiled is of no use to another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch._dynamo.reset()
    torch.manual_seed(1)
    yield
    torch.set_num_threads(before)


class Function(nn.Module):
    """A function of tensors that are parameters, and of others."""

    def __init__(self, function, *parameters):
        super().__init__()
        self.function = function
        self.weights = nn.ParameterList(parameters)

    def forward(self, *inputs):
        # PyTorch 2.11 does not trace the iterator of a list of parameters.
        weights = [self.weights[i] for i in range(len(self.weights))]
        return self.function(*weights, *inputs)


def to(dtype, x):
    return x.to(dtype) if torch.is_tensor(x) and x.is_floating_point() else x


def step(call, module, inputs):
    found = call(*inputs)
    results = [t for t in (found if isinstance(found, tuple) else (found,)) if t.is_floating_point()]
    weighted = [(t.double() * torch.linspace(-1, 1, t.numel(), dtype=torch.float64).reshape(t.shape)).sum() for t in results]
    if any(p.requires_grad for p in module.parameters()):
        sum(weighted).backward()
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    return [t.detach().double() for t in (*results, *gradients, *module.buffers())]


def compare(module, inputs, expected, enable=(), dtype=torch.bfloat16, dynamic=None, disable=()):
    """What PyTorch computes in f64, in `dtype`, and compiled with ours in it; and that the report says what is expected: for each call of a kind that is looked at
    whether it was replaced and with what, or a part of the reason why not."""
    exact, plain, ours = (copy.deepcopy(module).to(t) for t in (torch.float64, dtype, dtype))
    wanted = step(exact, exact, [to(torch.float64, x) for x in inputs])
    before = step(plain, plain, [to(dtype, x) for x in inputs])
    reports = []

    def backend(graph, given):
        reports.append(compiler.rewrite(graph, enable=enable, disable=disable, emulator=True))
        return aot_eager(graph, given)

    inputs = [to(dtype, x) for x in inputs]
    if dynamic is not None:
        torch._dynamo.mark_dynamic(inputs[0], dynamic)
    after = step(torch.compile(ours, backend=backend), ours, inputs)
    lines = [line for report in reports for line in report.lines]
    found = [(line.kind, line.about if line.why is None else f"no: {line.why}") for line in lines]
    assert len(found) == len(expected), "\n".join(map(str, reports))
    for (kind, text), (kind_, text_) in zip(found, expected):
        assert kind == kind_ and (text_ in text if text_.startswith("no: ") else text == text_), "\n".join(map(str, reports))
    assert len(wanted) == len(before) == len(after)
    for w, b, a in zip(wanted, before, after):
        size = w.norm() if w.numel() else torch.ones(())
        assert a.shape == w.shape
        assert (a - w).norm() <= 2 * (b - w).norm() + BUDGET * size
    return reports


def normal(*shape):
    return torch.randn(shape)


def last(*shape):
    return normal(*shape).to(memory_format=torch.channels_last)
