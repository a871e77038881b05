"""Products and convolutions of `warpwright.torch` on the samples that PyTorch tests its own with."""

from __future__ import annotations

import itertools

import pytest
from conftest import BUDGETS

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
# Its own imports are those of PyTorch's tests, which a user's environment does not have.
samples = pytest.importorskip("torch.testing._internal.common_methods_invocations")

import warpwright.torch as wt  # noqa: E402

OURS = {
    "__rmatmul__": lambda a, b: wt.matmul(b, a),
    "addmm": wt.addmm,
    "baddbmm": wt.baddbmm,
    "bmm": wt.matmul,
    "matmul": wt.matmul,
    "mm": wt.matmul,
    "nn.functional.linear": wt.linear,
    **{
        f"nn.functional.{name}{dims}d": getattr(wt, f"{name}{dims}d")
        for name, dims in itertools.product(("conv", "conv_transpose"), (1, 2, 3))
    },
}
OPERATORS = [op for op in samples.op_db if op.name in OURS]
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def results(function, tensors, dy, options):
    """The result and the gradients of the tensors; None is no tensor."""
    leaves = [t if t is None else t.detach().clone().requires_grad_() for t in tensors]
    y = function(*leaves, **options)
    return [y.detach(), *torch.autograd.grad(y, [t for t in leaves if t is not None], dy.to(y.dtype))]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.formatted_name)
def test_samples(op, dtype, torch_device):
    if "conv" in op.name and torch_device == "cpu" and dtype != torch.float32:
        pytest.skip("in the emulator the samples take a minute; test_conv.py has all types")
    torch.manual_seed(9)
    # Two roundings of each term: of a product and of the sum.
    budget = 2 * BUDGETS[str(dtype).replace("torch.", "")]
    # Below the normal numbers each rounds to a multiple of the smallest there is.
    step = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    for sample in op.sample_inputs(torch_device, dtype):
        tensors = [sample.input, *sample.args, *(v for v in sample.kwargs.values() if torch.is_tensor(v))]
        options = {k: v for k, v in sample.kwargs.items() if not torch.is_tensor(v)}
        wide = [t if t is None else t.double() for t in tensors]
        dy = torch.randn_like(op(*wide, **options)).to(dtype)
        ours = results(OURS[op.name], tensors, dy, options)
        exact = results(op, wide, dy, options)
        # All are sums of products with positive factors: those of magnitudes are what a rounding is relative to.
        magnitudes = results(op, [t if t is None else t.abs() for t in wide], dy.abs(), options)
        for found, expected, magnitude in zip(ours, exact, magnitudes):
            assert found.shape == expected.shape and found.dtype == dtype
            assert bool(((found.double() - expected).abs() <= budget * magnitude + step).all()), sample


def test_every_operator_has_samples():
    assert {op.name for op in OPERATORS} == set(OURS)


def test_samples_of_scaled_products(torch_device):
    (op,) = (op for op in samples.op_db if op.name == "torch._scaled_mm")
    if torch_device == "cuda" and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("the GPU has no 8-bit floats")
    torch.manual_seed(9)
    found = list(op.sample_inputs(torch_device, torch.float8_e4m3fn))
    assert found
    for sample in found:
        a, (b, scale_a, scale_b) = sample.input, sample.args
        expected = (a.double() * scale_a.double()) @ (b.double() * scale_b.double())
        # Tensor cores add products of 8-bit floats with about 14 bits.
        for dtype, budget in ((torch.float32, 3e-4), (torch.bfloat16, BUDGETS["bfloat16"])):
            y = wt.scaled_mm(a, b, scale_a, scale_b, out_dtype=dtype, **sample.kwargs)
            assert y.dtype == dtype and float((y.double() - expected).norm() / expected.norm()) < budget
