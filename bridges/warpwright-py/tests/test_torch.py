"""`warpwright.torch`: operators, gradients, tracing. On the CPU in the emulator, on the GPU where there is one."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import torch.nn.functional as F  # noqa: E402

import warpwright as ww  # noqa: E402
import warpwright.torch as wt  # noqa: E402
from warpwright import _interop  # noqa: E402

BUDGETS = {torch.float32: 1e-6, torch.float64: 1e-13, torch.float16: 6e-4, torch.bfloat16: 5e-3}
THEIRS = {
    "relu": F.relu,
    "gelu_erf": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.01),
    "softplus": F.softplus,
}
GATES = {
    "swiglu": lambda g, u: F.silu(g) * u,
    "geglu": lambda g, u: F.gelu(g) * u,
    "geglu_tanh": lambda g, u: F.gelu(g, approximate="tanh") * u,
}
ALL = {**THEIRS, **GATES}


def inputs(name, shape, device, dtype=torch.float32, grad=False):
    count = 2 if name in GATES else 1
    return [torch.randn(shape, device=device, dtype=dtype).requires_grad_(grad) for _ in range(count)]


def distance(result, reference):
    result, reference = result.detach().double(), reference.detach().double()
    scale = reference.norm()
    return float((result - reference).norm() / (scale if scale else 1))


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(3)


def agrees(name, given, dtype):
    """Values and gradients are those of PyTorch in f64; returns the result."""
    mine = [x.detach().requires_grad_() for x in given]
    wide = [x.detach().double().requires_grad_() for x in given]
    y, reference = getattr(wt, name)(*mine), ALL[name](*wide)
    assert y.dtype == dtype
    assert distance(y, reference) <= BUDGETS[dtype]
    dy = torch.randn_like(y)
    y.backward(dy)
    reference.backward(dy.double())
    for x, w in zip(mine, wide):
        assert x.grad.dtype == dtype
        assert distance(x.grad, w.grad) <= 2 * BUDGETS[dtype]
    return y


@pytest.mark.parametrize("dtype", BUDGETS, ids=str)
@pytest.mark.parametrize("name", ALL)
def test_values_and_gradients(name, dtype, torch_device):
    y = agrees(name, inputs(name, (7, 33), torch_device, dtype), dtype)
    assert y.device.type == torch_device


@pytest.mark.parametrize("name", ALL)
def test_gradcheck(name, torch_device):
    x = inputs(name, (3, 5), torch_device, torch.float64, grad=True)
    # Away from the kink of relu, where no gradient exists.
    x = [(t.detach().sign() * (t.detach().abs() + 0.1)).requires_grad_() for t in x]
    assert torch.autograd.gradcheck(getattr(wt, name), x)


@pytest.mark.parametrize("name", ALL)
def test_opcheck(name, torch_device):
    operator = getattr(torch.ops.warpwright, name).default
    extra = {"leaky_relu": (0.01,), "softplus": (1.0,)}.get(name, ())
    for shape in ((4, 6), (0, 3)):
        x = inputs(name, shape, torch_device, grad=True)
        torch.library.opcheck(operator, (*x, *extra))
    x = [t.detach() for t in inputs(name, (4, 6), torch_device)]
    backward = getattr(torch.ops.warpwright, name + "_backward").default
    torch.library.opcheck(backward, (*x, torch.randn_like(x[0]), *extra))
    transposed = [t.t() for t in x]
    torch.library.opcheck(operator, (*transposed, *extra))


@pytest.mark.parametrize("name", ["nf4", "fp4", "int4", "int4_asymmetric"])
def test_quantization(name, torch_device):
    quantize, dequantize = getattr(wt, f"quantize_{name}"), getattr(wt, f"dequantize_{name}")
    x = torch.randn(6, 50, device=torch_device, dtype=torch.bfloat16)
    packed = quantize(x, 64)
    y = dequantize(*packed, x.shape, 64, torch.bfloat16)
    assert y.shape == x.shape and y.dtype == x.dtype
    assert distance(y, x) < 0.2
    torch.library.opcheck(getattr(torch.ops.warpwright, f"quantize_{name}").default, (x, 64))
    back = getattr(torch.ops.warpwright, f"dequantize_{name}").default
    torch.library.opcheck(back, (*packed, [6, 50], 64, torch.bfloat16))
    same = getattr(ww, f"quantize_{name}")(x.cpu(), 64)
    for a, b in zip(packed, same):
        assert torch.equal(a.cpu(), b)


@pytest.mark.parametrize("name", ["silu", "swiglu"])
def test_strides(name, torch_device):
    base = torch.randn(2, 8, 6, 10, device=torch_device)
    views = [
        base,
        base.contiguous(memory_format=torch.channels_last),
        base.transpose(0, 2),
        base[:, ::2],
        base[..., 1:],
        base[0, 0, 0].expand(4, 10),
        base.permute(3, 1, 0, 2)[:, :, :1],
    ]
    for x in views:
        arguments = [x] if name == "silu" else [x, torch.randn(x.shape, device=torch_device)]
        leaves = [a.detach().requires_grad_() for a in arguments]
        y = getattr(wt, name)(*leaves)
        assert y.stride() == torch.empty_like(x).stride()
        torch.testing.assert_close(y, ALL[name](*arguments))
        # The gradient of a sum is one number seen everywhere, with strides of 0.
        y.sum().backward()
        wide = [a.detach().requires_grad_() for a in arguments]
        ALL[name](*wide).sum().backward()
        for a, b in zip(leaves, wide):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", BUDGETS, ids=str)
@pytest.mark.parametrize("columns", [40, 33])
@pytest.mark.parametrize("name", ["silu", "gelu_erf", "gelu_tanh", *GATES])
def test_halves_of_rows(name, columns, dtype, torch_device, monkeypatch):
    """They are read where they lie: what a projection makes for several is not copied first."""
    monkeypatch.setattr(_interop, "closed_up", lambda tensor: pytest.fail(f"a copy of {tuple(tensor.shape)}"))
    both = torch.randn(3, 5, 2 * columns, device=torch_device, dtype=dtype).chunk(2, -1)
    halves = both if name in GATES else both[1:]
    # The second of a gate may as well lie by itself.
    for given in (halves, [*halves[:1], *(half.contiguous() for half in halves[1:])]):
        assert agrees(name, given, dtype).is_contiguous()


def test_zero_size(torch_device):
    x = torch.empty(0, 5, device=torch_device, requires_grad=True)
    y = wt.gelu_erf(x)
    assert y.shape == (0, 5)
    y.sum().backward()
    assert x.grad.shape == (0, 5)


@pytest.mark.parametrize("name", ["silu", "swiglu"])
def test_second_derivatives_are_refused_not_dropped(name, torch_device):
    for function in (getattr(wt, name), getattr(torch.ops.warpwright, name)):
        x = inputs(name, (4,), torch_device, grad=True)
        (first, *_) = torch.autograd.grad(function(*x).sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="no second derivative"):
            first.sum().backward()


def test_checkpointing_and_subclasses(torch_device):
    from torch.utils.checkpoint import checkpoint

    x = torch.randn(6, device=torch_device, requires_grad=True)
    checkpoint(wt.silu, x, use_reentrant=False).sum().backward()
    expected = torch.autograd.grad(F.silu(x).sum(), x)[0]
    torch.testing.assert_close(x.grad, expected)

    class Mine(torch.Tensor):
        pass

    assert type(wt.silu(x.detach().as_subclass(Mine))) is Mine
    with torch.inference_mode():
        torch.testing.assert_close(wt.silu(x), F.silu(x))


def test_what_watches_sees_the_calls(torch_device):
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Dispatch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(function.name())
            return function(*args, **(kwargs or {}))

    class Function(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(getattr(function, "__name__", ""))
            return function(*args, **(kwargs or {}))

    x = torch.randn(3, 4, device=torch_device, requires_grad=True)
    expected = torch.autograd.grad(F.silu(x).sum(), x)[0]
    with Dispatch():
        wt.silu(x).sum().backward()
    assert {"warpwright::_silu", "warpwright::_silu_backward"} <= set(seen)
    torch.testing.assert_close(x.grad, expected)
    seen.clear()
    with Function():
        wt.silu(x)
    assert "silu.default" in seen or "silu" in seen
    torch.testing.assert_close(torch.func.vmap(wt.silu)(x.detach()), F.silu(x.detach()))
    with torch.no_grad():
        traced = torch.jit.trace(wt.silu, (x.detach(),), check_trace=False)
    assert "warpwright::silu" in str(traced.graph)


def test_gradients_in_other_threads_and_twice(torch_device):
    from concurrent.futures import ThreadPoolExecutor

    def work(n):
        x = torch.full((n, 3), n / 4 - 1, device=torch_device, requires_grad=True)
        for _ in range(20):
            y = wt.silu(wt.silu(x))
            (dx,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
            assert torch.equal(dx, torch.autograd.grad(y.sum(), x)[0])
        return dx, torch.autograd.grad(F.silu(F.silu(x)).sum(), x)[0]

    with ThreadPoolExecutor(3) as pool:
        for mine, theirs in pool.map(work, range(1, 7)):
            torch.testing.assert_close(mine, theirs)


def test_saved_tensors_are_those_of_pytorch(torch_device):
    x = torch.randn(5, device=torch_device, requires_grad=True)
    z = x * 1
    y = wt.silu(z)
    z.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    packed = []

    def pack(t):
        packed.append(t)
        return t.detach() + 1

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t - 1):
        y = wt.silu(x)
    y.sum().backward()
    assert len(packed) == 1
    torch.testing.assert_close(x.grad, torch.autograd.grad(F.silu(x).sum(), x)[0])
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()
    (grad,) = torch.autograd.grad(wt.relu(x), x, torch.ones(()).to(torch_device).expand(5))
    assert torch.equal(grad, (x > 0).float())


def test_autocast_promotes_the_gate(torch_device):
    layer = torch.nn.Linear(8, 8).to(torch_device)
    x = torch.randn(3, 8, device=torch_device)
    with torch.autocast(torch_device, dtype=torch.bfloat16):
        gate = layer(x)
        assert gate.dtype == torch.bfloat16
        assert wt.silu(gate).dtype == torch.bfloat16
        y = wt.swiglu(gate, x)
        torch.testing.assert_close(y, F.silu(gate.float()) * x)
        y.sum().backward()
    assert layer.weight.grad is not None


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.gate, self.down = (torch.nn.Linear(16, 16) for _ in range(3))
        self.act, self.last = wt.nn.SwiGLU(), wt.nn.GELU(approximate="tanh")

    def forward(self, x):
        return self.last(self.down(self.act(self.gate(x), self.up(x))))


def test_compile_without_graph_breaks(torch_device):
    # On the CPU, inductor would need a C++ compiler.
    backend = "inductor" if torch_device == "cuda" else "aot_eager"
    torch._dynamo.reset()
    model = Model().to(torch_device)
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    for rows in (4, 9):
        x = torch.randn(rows, 16, device=torch_device)
        expected = model(x)
        torch.testing.assert_close(compiled(x), expected, rtol=1e-4, atol=1e-5)
        expected.sum().backward()
        mine = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        compiled(x).sum().backward()
        for a, p in zip(mine, model.parameters()):
            torch.testing.assert_close(a, p.grad, rtol=1e-4, atol=1e-5)
        model.zero_grad()


def test_modules_have_the_parameters_of_pytorch():
    x = torch.randn(20)
    for mine, theirs in [
        (wt.nn.ReLU(), torch.nn.ReLU()),
        (wt.nn.LeakyReLU(0.3), torch.nn.LeakyReLU(0.3)),
        (wt.nn.GELU(), torch.nn.GELU()),
        (wt.nn.GELU(approximate="tanh"), torch.nn.GELU(approximate="tanh")),
        (wt.nn.SiLU(), torch.nn.SiLU()),
        (wt.nn.Sigmoid(), torch.nn.Sigmoid()),
        (wt.nn.Tanh(), torch.nn.Tanh()),
    ]:
        torch.testing.assert_close(mine(x), theirs(x))
        assert type(mine).__name__ == type(theirs).__name__
    with pytest.raises(ValueError):
        wt.nn.ReLU(inplace=True)
    with pytest.raises(ValueError):
        wt.nn.GELU(approximate="cosh")


def test_native_functions_take_tensors(torch_device):
    x = torch.randn(4, 6, device=torch_device)
    y = torch.empty_like(x)
    assert ww.relu(x, out=y) is y
    assert torch.equal(y, F.relu(x))
    assert type(ww.relu(torch.nn.Parameter(x, requires_grad=False))) is torch.Tensor
    image = torch.randn(2, 3, 4, 5, device=torch_device).contiguous(memory_format=torch.channels_last)
    assert ww.relu(image).stride() == image.stride()
    assert torch.equal(ww.relu(image), F.relu(image))
    assert torch.equal(ww.relu_backward(image, torch.ones(2, 3, 4, 5, device=torch_device)), (image > 0).float())


def test_native_functions_do_not_lose_gradients(torch_device):
    x = torch.randn(4, device=torch_device, requires_grad=True)
    with pytest.raises(ww.ArgumentError, match="requires a gradient") as info:
        ww.silu(x)
    assert info.value.argument == "x"
    with torch.no_grad():
        ww.silu(x)
    ww.silu(x.detach())


def test_errors_come_through_the_operators(torch_device):
    with pytest.raises(ww.DtypeError):
        wt.silu(torch.ones(3, dtype=torch.int32, device=torch_device))
    with pytest.raises(ww.ShapeError):
        wt.swiglu(torch.ones(3, device=torch_device), torch.ones(4, device=torch_device))
