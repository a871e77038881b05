"""Helpers of the tests of operators on images of PyTorch."""

from __future__ import annotations

import torch
from conftest import BUDGETS

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
FORMATS = {3: [torch.contiguous_format], 4: [torch.contiguous_format, torch.channels_last],
           5: [torch.contiguous_format, torch.channels_last_3d]}  # fmt: skip


def leaves(tensors, dtype=None):
    return [None if t is None else t.detach().to(dtype or t.dtype).requires_grad_() for t in tensors]


def results(function, tensors, dy=None, dtype=None):
    """The result and the gradients of the tensors, and the gradient of the result."""
    given = leaves(tensors, dtype)
    y = function(*given)
    dy = torch.randn_like(y) if dy is None else dy.to(y.dtype)
    return [y.detach(), *torch.autograd.grad(y, [t for t in given if t is not None], dy)], dy


def close(found, exact, dtype):
    for a, b in zip(found, exact):
        assert a.shape == b.shape and a.dtype == dtype
        # A bias behind a transposed convolution is added to a rounded result.
        budget = 2 * BUDGETS[str(dtype).replace("torch.", "")] + (2e-6 if dtype == torch.float32 else 0)
        assert float((a.double() - b).norm()) <= budget * float(b.norm()) + 1e-30


def compile_anew(function, **options):
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager", **options)


def agrees(compiled, function, tensors):
    """Whether a compiled function has the results and the gradients of the function."""
    found, dy = results(compiled, tensors)
    return all(torch.allclose(a, b) for a, b in zip(found, results(function, tensors, dy)[0]))
