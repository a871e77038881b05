"""`cumsum`, held against numpy and PyTorch in f64."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from conftest import BUDGETS

import warpwright as ww

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import warpwright.torch as wt  # noqa: E402
from images import DTYPES, agrees, close, compile_anew, results  # noqa: E402

OPTIONS = list(itertools.product((False, True), repeat=2))


def expected(x, dim, exclusive, reverse):
    """Of numpy arrays, in the type of x."""
    x = np.flip(x, dim) if reverse else x
    y = np.cumsum(x, dim)
    if exclusive:
        y = np.roll(y, 1, dim)
        np.moveaxis(y, dim, 0)[:1] = 0
    return np.flip(y, dim) if reverse else y


def reference(x, dim, exclusive, reverse):
    """Of tensors, with gradients."""
    x = x.flip(dim) if reverse else x
    y = x.cumsum(dim)
    if exclusive:
        y = torch.cat([torch.zeros_like(x.narrow(dim, 0, 1)), y.narrow(dim, 0, x.shape[dim] - 1)], dim)
    return y.flip(dim) if reverse else y


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(5)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "int64"])
def test_numpy(dtype, random):
    whole = dtype.startswith("int")
    for shape in ((4, 5, 6), (3, 333), (2, 20000), (130, 7)):
        x = (random.standard_normal(shape) * (50 if whole else 1)).astype(dtype)
        wide = x.astype(np.int64 if whole else np.float64)
        for order, dim, (exclusive, reverse) in itertools.product("CF", range(-1, len(shape)), OPTIONS):
            y = ww.cumsum(np.asarray(x, order=order), dim, exclusive=exclusive, reverse=reverse)
            exact = expected(wide, dim, exclusive, reverse)
            assert y.dtype == x.dtype and y.shape == x.shape
            if whole:
                assert (y == exact).all()
            else:
                assert np.linalg.norm(y.astype(np.float64) - exact) <= 2 * BUDGETS[dtype] * np.linalg.norm(exact)
    x = np.arange(6, dtype=np.float32)
    assert ww.cumsum(x, out=x) is x and (x == [0, 1, 3, 6, 10, 15]).all()
    assert ww.cumsum(np.float32(3).reshape(())) == 3


def test_special_numbers():
    x = np.array([1.0, np.inf, 2.0, -np.inf, 1.0], np.float32)
    y = ww.cumsum(x)
    assert y[0] == 1 and y[1] == y[2] == np.inf and np.isnan(y[3:]).all()
    assert ww.cumsum(np.ones((0, 3), np.float32), 0).shape == (0, 3)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_both_passes(dtype, torch_device):
    x = torch.randn(4, 3, 5, 6, device=torch_device).to(dtype)
    views = [lambda t: t, lambda t: t.to(memory_format=torch.channels_last), lambda t: t[:, :, ::2], lambda t: t.mT]
    for view, dim, options in itertools.product(views, range(-1, 3), OPTIONS):
        found, dy = results(lambda t: wt.cumsum(t, dim, exclusive=options[0], reverse=options[1]), [view(x)])
        exact, _ = results(lambda t: reference(t, dim, *options), [view(x)], dy, torch.float64)
        close(found, exact, dtype)
    assert wt.cumsum(torch.tensor(3.0, device=torch_device, dtype=dtype), 0) == 3


def test_long_rows(torch_device):
    x = torch.rand(3, 70001, device=torch_device)
    found, dy = results(lambda t: wt.cumsum(t, 1), [x])
    exact, _ = results(lambda t: torch.cumsum(t, 1), [x], dy, torch.float64)
    close(found, exact, torch.float32)
    assert all(torch.equal(wt.cumsum(x, 1), found[0]) for _ in range(3))


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(dynamic, torch_device):
    function = lambda x: wt.cumsum(x, 0, reverse=True) * wt.cumsum(x.square(), 1)  # noqa: E731
    compiled = compile_anew(function, dynamic=dynamic)
    for rows in (4, 5) if dynamic else (4,):
        assert agrees(compiled, function, [torch.randn(rows, 6, device=torch_device)])


def test_opcheck_and_gradcheck(torch_device):
    x = torch.randn(3, 4, dtype=torch.float64, device=torch_device, requires_grad=True)
    for exclusive, reverse in OPTIONS:
        torch.library.opcheck(torch.ops.warpwright.cumsum.default, (x, 1, exclusive, reverse))
        ours = lambda t: wt.cumsum(t.square(), 1, exclusive=exclusive, reverse=reverse).square()  # noqa: B023, E731
        assert torch.autograd.gradcheck(ours, x) and torch.autograd.gradgradcheck(ours, x)
    ours, theirs = (
        torch.func.vmap(torch.func.grad(lambda t: f(t.square(), 0).square().sum()))(x.detach())
        for f in (wt.cumsum, torch.cumsum)
    )  # noqa: B023
    assert torch.allclose(ours, theirs)


def test_types(torch_device):
    counts = torch.tensor([3, 0, 2], device=torch_device, dtype=torch.int32)
    assert wt.cumsum(counts, 0).dtype == torch.int64 and wt.cumsum(counts, 0).tolist() == [3, 3, 5]
    starts = wt.cumsum(counts, 0, dtype=torch.int32, exclusive=True)
    assert starts.dtype == torch.int32 and starts.tolist() == [0, 3, 3]
    x = torch.ones(2, 3000, device=torch_device, dtype=torch.float16, requires_grad=True)
    with torch.autocast(torch_device, dtype=torch.bfloat16):
        y = wt.cumsum(x, 1)
    assert y.dtype == torch.float32 and bool((y[:, -1] == 3000).all())
    y.sum().backward()
    assert x.grad.dtype == torch.float16 and x.grad[0, -1] == 1


X = np.ones((2, 3), np.float32)
REFUSED = [
    (lambda: ww.cumsum(X, 2), ww.ParameterError, "cumsum", "dim"),
    (lambda: ww.cumsum(X.astype(np.uint8)), ww.DtypeError, "cumsum", "x"),
    (lambda: ww.cumsum(X, 0, out=np.empty((3, 2), np.float32)), ww.ShapeError, "cumsum", "out"),
    (lambda: wt.cumsum(torch.ones(2, 3), -3), ww.ParameterError, "cumsum", "dim"),
    (lambda: wt.cumsum(torch.ones(2, dtype=torch.complex64), 0), ww.DtypeError, "cumsum", "input"),
]


@pytest.mark.parametrize("call, error, op, argument", REFUSED)
def test_what_is_refused(call, error, op, argument):
    with pytest.raises(error) as info:
        call()
    assert (info.value.op, info.value.argument) == (op, argument)
