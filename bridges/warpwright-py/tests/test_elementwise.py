"""`elementwise`, `dropout` and `dropout_add`, held against numpy and PyTorch in f64."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import BUDGETS, distance

import warpwright as ww

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import warpwright.torch as wt  # noqa: E402
from images import DTYPES, close, compile_anew, results  # noqa: E402


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(5)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_numpy(dtype, random):
    x, y = random.standard_normal((4, 1, 6)).astype(dtype), random.standard_normal((3, 6)).astype(dtype)
    found = ww.elementwise("div(add(x0, mul(x1, s0)), 3)", x, y, scalars=[0.5])
    exact = (x.astype(np.float64) + y.astype(np.float64) * 0.5) / 3
    assert found.dtype == x.dtype and found.shape == (4, 3, 6) and distance(found, exact) <= 2 * BUDGETS[dtype]
    # Views, masks, types, and a place for the result.
    mask = (x > 0).astype(np.uint8)
    assert (ww.elementwise("where(x0, x1, 0)", mask, x) == np.where(mask, x, 0).astype(dtype)).all()
    assert (ww.elementwise("gt(x0, x1)", x.T[::2], x.T[1::2], dtype="uint8") == (x.T[::2] > x.T[1::2])).all()
    into = x.copy()
    assert ww.elementwise("neg(x0)", into, out=into) is into and (into == -x).all()
    assert ww.elementwise("exp(x0)", x, dtype=np.float64).dtype == np.float64


def test_torch(torch_device):
    x = torch.randn(3, 4, device=torch_device)
    y = torch.randn(4, device=torch_device, dtype=torch.bfloat16)
    close([wt.elementwise("mul(silu(x0), x1)", x, y)], [torch.nn.functional.silu(x.double()) * y.double()], torch.float32)
    mask = x > 0
    assert torch.equal(wt.elementwise("where(x0, x1, s0)", mask, x, scalars=[7]), torch.where(mask, x, 7.0))
    assert torch.equal(wt.elementwise("le(x0, 0)", x, dtype=torch.bool), ~mask)
    function = lambda x, y: wt.elementwise("add(x0, x1)", x.mT, x.mT) * 2  # noqa: E731
    assert torch.equal(compile_anew(function)(x, y), function(x, y))
    torch.library.opcheck(torch.ops.warpwright.elementwise.default, ([x, y], "add(x0, x1)", [], torch.float32))
    with pytest.raises(RuntimeError, match=r"elementwise has no gradient: call it under torch.no_grad\(\)"):
        wt.elementwise("neg(x0)", x.clone().requires_grad_())
    with torch.no_grad():
        assert torch.equal(wt.elementwise("neg(x0)", x.clone().requires_grad_()), -x)


X = np.ones((2, 3), np.float32)
REFUSED = [
    (("add(x0, x1", X, X), {}, ww.ParameterError, "expr"),
    (("pow(x0, x1)", X, X), {}, ww.ParameterError, "expr"),
    (("neg(x0)", X, X), {}, ww.ParameterError, "expr"),
    (("mul(x0, s0)", X), {}, ww.ParameterError, "expr"),
    (("dropout(x0)", X), {}, ww.ParameterError, "expr"),
    (("add(x0, x1)", X, X[:, :2]), {}, ww.ParameterError, "shape"),
    (("add(x0, x1)", X, X.astype(np.int32)), {}, ww.DtypeError, "x1"),
    (("neg(x0)", X), {"dtype": "int64"}, ww.DtypeError, "y0"),
    (("neg(x0)", X), {"out": X[:1].copy()}, ww.ShapeError, "out"),
    (("1",), {}, ww.ArgumentError, "arrays"),
    (("x0", *[X] * 7), {}, ww.ArgumentError, "arrays"),
]


@pytest.mark.parametrize("arguments, options, error, argument", REFUSED)
def test_what_is_refused(arguments, options, error, argument):
    with pytest.raises(error) as info:
        ww.elementwise(*arguments, **options)
    assert (info.value.op, info.value.argument) == ("elementwise", argument)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dropout(dtype, torch_device):
    """The gradient drops what the result has dropped, and the rest is divided by the probability to stay."""
    x = torch.randn(40, 25, device=torch_device, dtype=dtype).clamp(min=0.1)
    for p in (0.25, 1.0):
        (y, dx), dy = results(lambda x: wt.dropout(x, p), [x], torch.ones_like(x))
        kept = y != 0
        factor = 1 / (1 - p) if p < 1 else 0.0
        close([y, dx], [x.double() * kept * factor, kept.double() * factor], dtype)
        assert abs(float(kept.double().mean()) - (1 - p)) < 0.07 and torch.equal(dx != 0, kept)
    assert wt.dropout(x, 0.3, training=False) is x and wt.dropout(x, 0.0) is x


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dropout_add(dtype, torch_device):
    x, residual = (torch.randn(30, 20, device=torch_device, dtype=dtype) for _ in range(2))
    # Normal numbers of 16 bits are 0 at times.
    (y, dx, dresidual), dy = results(lambda x, r: wt.dropout_add(x, r, 0.4), [x, residual], torch.ones_like(x))
    kept = dx != 0
    exact = [x.double() * kept / 0.6 + residual.double(), dy.double() * kept / 0.6, dy.double()]
    close([y, dx, dresidual], exact, dtype)
    assert 0.4 < float(kept.double().mean()) < 0.8
    assert torch.equal(wt.dropout_add(x, residual, 0.4, training=False), x + residual)


def test_layouts_and_strides(torch_device):
    """A result lies like its argument, and the gradient finds the elements wherever its own argument has them."""
    x = torch.rand(3, 4, 5, 6, device=torch_device) + 0.5
    for view in (lambda t: t, lambda t: t.to(memory_format=torch.channels_last), lambda t: t.permute(2, 0, 3, 1), lambda t: t[:, ::2]):
        (given,) = (view(x).detach().requires_grad_(),)
        y = wt.dropout(given)
        assert y.shape == given.shape and y.stride() == torch.empty_like(given).stride()
        dy = torch.ones(y.shape[::-1], device=torch_device).permute(3, 2, 1, 0)
        (dx,) = torch.autograd.grad(y, given, dy)
        assert torch.equal(dx != 0, y != 0) and 0.3 < float((y != 0).double().mean()) < 0.7
        both = given.detach().clone().requires_grad_()
        z = wt.dropout_add(both, torch.zeros_like(given).contiguous())
        assert torch.equal(torch.autograd.grad(z, both, dy)[0] != 0, z != 0)


def test_seeds(torch_device):
    """They follow from PyTorch's generator, call by call."""
    x = torch.ones(500, device=torch_device)
    torch.manual_seed(1)
    first, second = wt.dropout(x), wt.dropout(x)
    torch.manual_seed(1)
    assert torch.equal(wt.dropout(x), first) and not torch.equal(first, second)
    module = wt.nn.Dropout(0.5)
    assert isinstance(module, torch.nn.Dropout)
    torch.manual_seed(1)
    assert torch.equal(module(x), first) and module.eval()(x) is x


@pytest.mark.parametrize("function, dynamic", [
    (lambda x, r: wt.dropout(x, 0.5) + r, False), (lambda x, r: wt.dropout_add(x, r, 0.5), True),
], ids=["plain", "add"])  # fmt: skip
def test_compiled(function, dynamic, torch_device):
    """The same values and strides, of whatever lies in an order that networks have."""
    whole = [torch.rand(2, 3, 4, 5, device=torch_device) + 0.5 for _ in range(2)]
    compiled = compile_anew(function, dynamic=dynamic)
    for view in (lambda t: t, lambda t: t.to(memory_format=torch.channels_last), lambda t: t.transpose(1, 2), lambda t: t.mT):
        tensors = [view(t) for t in whole]
        torch.manual_seed(2)
        found, dy = results(compiled, tensors)
        torch.manual_seed(2)
        again, _ = results(function, tensors, dy)
        assert all(torch.equal(a, b) for a, b in zip(found, again))
        # That of the residual is what PyTorch's compiler makes of the gradient of the result.
        assert all(a.stride() == b.stride() for a, b in zip(found[:2], again))
        kept = found[1] != 0
        close(found, [tensors[0].double() * kept * 2 + tensors[1].double(), dy.double() * kept * 2, dy.double()], torch.float32)


def test_opcheck_and_gradcheck(torch_device):
    x, residual = (torch.randn(3, 4, dtype=torch.float64, device=torch_device, requires_grad=True) for _ in range(2))
    random = torch.tensor([5, 7], device=torch_device)
    ops = torch.ops.warpwright
    torch.library.opcheck(ops.dropout.default, (x, random, 0.5))
    torch.library.opcheck(ops.dropout_add.default, (x, residual, random, 0.5))
    assert torch.autograd.gradcheck(lambda x, r: ops.dropout_add(x, r, random, 0.5), (x, residual))
    assert torch.autograd.gradcheck(lambda x: ops.dropout(x, random, 0.5), x)


def test_autocast(torch_device):
    """Dtypes stay as they are, and those of a sum are promoted."""
    x, residual = torch.ones(9, device=torch_device, dtype=torch.bfloat16), torch.ones(9, device=torch_device)
    with torch.autocast(torch_device, dtype=torch.bfloat16):
        assert wt.dropout(x).dtype == torch.bfloat16
        assert wt.dropout_add(x, residual).dtype == torch.float32


def test_native_dropout(random):
    x = (random.random((7, 30)) + 0.5).astype(np.float32)
    numbers = np.array([3, 4])
    y = ww.dropout(x, numbers, 0.5)
    assert ((y == 0) | (y == 2 * x)).all() and 60 < (y == 0).sum() < 150
    assert (ww.dropout(x.T.copy().T, numbers, 0.5) == y).all()
    assert (ww.dropout_add(x, x, numbers, 0.5) == y + x).all()


def test_what_dropout_refuses():
    x, numbers = X, np.zeros(2, np.int64)
    for call, error, argument in (
        (lambda: ww.dropout(x, numbers, 1.5), ww.ParameterError, "p"),
        (lambda: ww.dropout(x, numbers, float("nan")), ww.ParameterError, "p"),
        (lambda: ww.dropout(x, numbers[:1], 0.5), ww.ShapeError, "random"),
        (lambda: ww.dropout(x, numbers.astype(np.int32), 0.5), ww.DtypeError, "random"),
        (lambda: ww.dropout(x.astype(np.int32), numbers, 0.5), ww.DtypeError, "x"),
        (lambda: ww.dropout_add(x, x[:1], numbers, 0.5), ww.ShapeError, "residual"),
        (lambda: wt.dropout(torch.ones(2), -0.1), ww.ParameterError, "p"),
        (lambda: wt.dropout_add(torch.ones(2), torch.ones(3)), ww.ShapeError, "residual"),
    ):
        with pytest.raises(error) as info:
            call()
        assert info.value.argument == argument
    with pytest.raises(ValueError, match="inplace"):
        wt.nn.Dropout(0.5, inplace=True)
