"""`addmm` and `baddbmm` of `warpwright.torch` against PyTorch in f64: values, gradients, tracing."""

from __future__ import annotations

import pytest
from conftest import BUDGETS

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import warpwright as ww  # noqa: E402
import warpwright.torch as wt  # noqa: E402

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
FACTORS = [{}, {"beta": 0.25, "alpha": -2}, {"beta": 3}, {"alpha": 0.5}, {"beta": 0, "alpha": 1.5}]
OPERATOR = torch.ops.warpwright.addmm.default
BACKWARD = torch.ops.warpwright.addmm_backward.default


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(3)


def arguments(name, addend, device, dtype=torch.float32):
    before = (2,) if name == "baddbmm" else ()
    return [torch.randn(s, device=device, dtype=dtype) for s in (addend, (*before, 5, 7), (*before, 7, 3))]


def run(function, tensors, dy, **options):
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    y = function(*leaves, **options)
    return [y.detach(), *torch.autograd.grad(y, leaves, dy.to(y.dtype))]


CASES = [("addmm", s) for s in ((5, 3), (3,), (1, 3), (5, 1), (1,), ())]
CASES += [("baddbmm", s) for s in ((2, 5, 3), (5, 3), (2, 1, 3), (3,), (1, 5, 1), ())]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name, addend", CASES)
def test_values_and_gradients(name, addend, dtype, torch_device):
    tensors = arguments(name, addend, torch_device, dtype)
    dy = torch.randn_like(getattr(torch, name)(*tensors))
    for options in FACTORS:
        ours = run(getattr(wt, name), tensors, dy, **options)
        exact = run(getattr(torch, name), [t.double() for t in tensors], dy, **options)
        # Sums of magnitudes are what roundings are relative to: two of each term, of a product and of the sum.
        factors = {factor: abs(value) for factor, value in options.items()}
        magnitudes = run(getattr(torch, name), [t.double().abs() for t in tensors], dy.abs(), **factors)
        for found, expected, magnitude in zip(ours, exact, magnitudes):
            assert found.shape == expected.shape and found.dtype == dtype
            budget = 2 * BUDGETS[str(dtype).replace("torch.", "")] * magnitude
            assert bool(((found.double() - expected).abs() <= budget).all()), options


def test_gradcheck(torch_device):
    for name, addend in (("addmm", (3,)), ("baddbmm", (5, 1))):
        tensors = [t.double().requires_grad_() for t in arguments(name, addend, torch_device)]
        assert torch.autograd.gradcheck(lambda *t: getattr(wt, name)(*t, beta=0.5, alpha=-2), tensors)


def test_opcheck(torch_device):
    x, a, b = arguments("addmm", (5, 3), torch_device)
    for addend in (x, x[:1].expand(5, 3)):
        for factors in ((1.0, 1.0), (0.5, 2.0), (0.0, 1.0)):
            torch.library.opcheck(OPERATOR, (addend, a, b, *factors))
            torch.library.opcheck(OPERATOR, (*(t.detach().requires_grad_() for t in (addend, a, b)), *factors))
    for dy in (x, x.mT.contiguous().mT, x[:1].expand(5, 3)):
        for beta in (1.0, 0.5):
            for wanted in ((True, True, True), (True, False, True), (False, True, False), (False, False, False)):
                torch.library.opcheck(BACKWARD, (a if wanted[2] else None, b, dy, beta, 2.0, wanted))


@pytest.mark.parametrize("name, addend", [("addmm", (3,)), ("baddbmm", (2, 5, 3))])
def test_compile_without_graph_breaks(name, addend, torch_device):
    # On the CPU, inductor would need a C++ compiler.
    backend = "inductor" if torch_device == "cuda" else "aot_eager"
    torch._dynamo.reset()
    function = getattr(wt, name)
    compiled = torch.compile(function, fullgraph=True, backend=backend)
    tensors = arguments(name, addend, torch_device)
    for options in ({}, {"beta": 0.5, "alpha": 2}):
        dy = torch.randn_like(function(*tensors))
        for a, b in zip(run(compiled, tensors, dy, **options), run(function, tensors, dy, **options)):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name, addend", [("addmm", (5, 3)), ("baddbmm", (3,))])
def test_an_addend_that_counts_for_nothing_is_not_read(name, addend, torch_device):
    tensors = arguments(name, addend, torch_device)
    tensors[0].fill_(float("nan"))
    y = getattr(wt, name)(*tensors, beta=0, alpha=2)
    exact = 2 * (tensors[1].double() @ tensors[2].double())
    torch.testing.assert_close(y.double(), exact, rtol=1e-5, atol=1e-5)
    leaves = [t.requires_grad_() for t in tensors]
    getattr(wt, name)(*leaves, beta=0).sum().backward()
    assert torch.equal(leaves[0].grad, torch.zeros(addend, device=torch_device))


@pytest.mark.parametrize("name, addend", [("addmm", (5, 3)), ("addmm", (3,)), ("baddbmm", (2, 5, 3))])
def test_the_sum_is_made_by_the_product(name, addend, torch_device):
    """No pass of PyTorch over a matrix goes before or after."""
    tensors = [t.requires_grad_() for t in arguments(name, addend, torch_device)]
    dy = torch.randn(tensors[1].shape[:-1] + (3,), device=torch_device)
    for options in ({}, {"alpha": -2}, {"beta": 0, "alpha": 2}) + (({"beta": 0.5},) if len(addend) > 1 else ()):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            y = getattr(wt, name)(*tensors, **options)
        passes = [e.key for e in profile.key_averages() if e.key in ("aten::add", "aten::mul", "aten::copy_", "aten::clone")]
        assert not passes, options
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            torch.autograd.grad(y, tensors[1:], dy)
        # PyTorch asks for the gradient of the addend, too, whose factor is beta alone.
        passes = [e.key for e in profile.key_averages() if e.key == "aten::mul" and options.get("beta", 1) == 1]
        assert not passes, options


def test_arguments_and_gradients_keep_their_elements(torch_device):
    tensors = [t.requires_grad_() for t in arguments("addmm", (5, 3), torch_device)]
    before = [t.detach().clone() for t in tensors]
    y, dy = wt.addmm(*tensors), torch.ones(5, 3, device=torch_device)
    y.backward(dy)
    tensors[0].grad.mul_(7)
    assert torch.equal(dy, torch.ones_like(dy))
    assert all(torch.equal(t, b) for t, b in zip(tensors, before))
    # As in PyTorch, the addend may change after it is read.
    y = wt.addmm(*tensors)
    with torch.no_grad():
        tensors[0].zero_()
    y.sum().backward()
    with torch.no_grad():
        torch.testing.assert_close(wt.addmm(*tensors), before[1] @ before[2])


def test_autocast(torch_device):
    tensors = arguments("addmm", (5, 3), torch_device)
    with torch.autocast(torch_device, dtype=torch.bfloat16):
        y = wt.addmm(*tensors)
        assert y.dtype == torch.bfloat16 == torch.addmm(*tensors).dtype
    exact = torch.addmm(*(t.double() for t in tensors))
    assert float((y.double() - exact).norm() / exact.norm()) < 3 * BUDGETS["bfloat16"]


def test_errors_carry_data(torch_device):
    x, a, b = arguments("addmm", (4,), torch_device)
    for tensors, expected in (
        ((x, a, b), (ww.ShapeError, "input", (5, 3), (4,))),
        ((x, a[0], b), (ww.ShapeError, "mat1", 2, 1)),
        ((x.double()[:3], a, b), (ww.DtypeError, "input", "float32", "float64")),
        ((x.to("meta")[:3], a, b), (ww.DeviceError, "input", str(a.device), "meta")),
    ):
        with pytest.raises(ww.Error) as info:
            wt.addmm(*tensors)
        e = info.value
        assert (type(e), e.argument, e.expected, e.got) == expected and e.op == "addmm"
