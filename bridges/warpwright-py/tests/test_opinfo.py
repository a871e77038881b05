"""Products, convolutions and pooling of `warpwright.torch` on the samples that PyTorch tests its own with."""

from __future__ import annotations

import itertools

import pytest
from conftest import BUDGETS

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
# Its own imports are those of PyTorch's tests, which a user's environment does not have.
samples = pytest.importorskip("torch.testing._internal.common_methods_invocations")

import warpwright.torch as wt  # noqa: E402
from torch.testing._internal.common_modules import module_db  # noqa: E402

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
POOLING = [f"{kind}_pool{dims}d" for kind, dims in itertools.product(("max", "avg", "adaptive_max", "adaptive_avg"), (1, 2, 3))]
IMAGES = [op for op in samples.op_db if op.name in [f"nn.functional.{name}" for name in (*POOLING, "interpolate")]]
MODULES = [m for m in module_db if m.module_cls.__name__.lower() in [name.replace("_", "") for name in POOLING]]
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
    # Of interpolate one for each mode.
    assert len(IMAGES) == len(POOLING) + 7 and len(MODULES) == len(POOLING)


def some(items, device):
    """On the CPU, where the emulator takes its time, a part of them."""
    items = list(items)
    return items[:: max(len(items) // 24, 1)] if device == "cpu" else items


def pooled(function, x, dy=None):
    """The result, where maxima are from if that is told, and the gradient."""
    x = x.detach().clone().requires_grad_()
    found = function(x)
    y, *indices = found if isinstance(found, tuple) else (found,)
    return y.detach(), indices, torch.autograd.grad(y, x, torch.ones_like(y) if dy is None else dy.to(y.dtype))[0]


def alike(ours, theirs, x):
    """Whether two functions of images do the same, ours in the type of `x` and PyTorch's in f64."""
    y, indices, _ = pooled(ours, x)
    dy = torch.randn_like(y)
    y, indices, dx = pooled(ours, x, dy)
    exact, where, exact_dx = pooled(theirs, x.double(), dy)
    # Weights of interpolate come of places in f32.
    budget = 2 * BUDGETS[str(x.dtype).replace("torch.", "")] + (0 if x.dtype == torch.float64 else 4e-6)
    assert all(torch.equal(a, b) for a, b in zip(indices, where)) and len(indices) == len(where)
    assert y.stride() == exact.stride()
    for a, b in ((y, exact), (dx, exact_dx)):
        assert a.shape == b.shape and a.dtype == x.dtype
        if not torch.equal(a.double(), b):
            assert float((a.double() - b).norm()) <= budget * float(b.norm())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", IMAGES, ids=lambda op: op.formatted_name)
def test_samples_of_images(op, dtype, torch_device):
    torch.manual_seed(9)
    function = getattr(wt, op.name.split(".")[-1])
    for sample in some(op.sample_inputs(torch_device, dtype), torch_device):
        alike(*(lambda x, f=f: f(x, *sample.args, **sample.kwargs) for f in (function, op.op)), sample.input)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.module_cls.__name__)
def test_samples_of_modules(module, dtype, torch_device):
    torch.manual_seed(9)
    for training in (False, True):
        given = module.module_inputs_func(module, torch_device, dtype, requires_grad=False, training=training)
        for sample in some(given, torch_device):
            made = sample.constructor_input
            alike(*(getattr(nn, module.module_cls.__name__)(*made.args, **made.kwargs) for nn in (wt.nn, torch.nn)),
                  *sample.forward_input.args)  # fmt: skip


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
