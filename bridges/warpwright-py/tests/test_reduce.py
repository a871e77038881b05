"""`sum`, `mean`, `amax`, `amin`, `argmax` and `argmin`, held against numpy and PyTorch in f64."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from conftest import BUDGETS, distance

import warpwright as ww

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import warpwright.torch as wt  # noqa: E402
from images import DTYPES, agrees, close, compile_anew, results  # noqa: E402

DIMS = [None, 0, -1, (0, 2), (1,), (-1, 0, 1)]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(5)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_numpy(dtype, random):
    x = random.standard_normal((4, 5, 6)).astype(dtype)
    for order, dim, keepdim in itertools.product("CF", DIMS, (False, True)):
        given, wide = np.asarray(x, order=order), x.astype(np.float64)
        for name, theirs in (("sum", np.sum), ("mean", np.mean), ("amax", np.max), ("amin", np.min)):
            y, exact = getattr(ww, name)(given, dim, keepdim), theirs(wide, dim, keepdims=keepdim)
            assert y.dtype == x.dtype and y.shape == exact.shape
            # Sums cancel, so that theirs are as exact as what is summed.
            assert np.linalg.norm(y.astype(np.float64) - exact) <= 2 * BUDGETS[dtype] * np.linalg.norm(np.abs(wide).sum(dim))
        if dim is None or isinstance(dim, int):
            for name in ("argmax", "argmin"):
                y, exact = getattr(ww, name)(given, dim, keepdim), getattr(np, name)(wide, dim, keepdims=keepdim)
                assert y.dtype == np.int64 and (y == exact).all() and y.shape == exact.shape
    out = np.empty(5, x.dtype)
    assert ww.sum(x, (0, 2), out=out) is out and distance(out, x.astype(np.float64).sum((0, 2))) <= 4 * BUDGETS[dtype]
    assert ww.sum(x[0, 0, 0:1].reshape(())) == x[0, 0, 0]


def test_types_of_results():
    x = np.full((3, 4), 0.5, np.float16)
    assert ww.sum(x, 1, dtype="float32").dtype == np.float32
    nan = np.array([1.0, np.nan, 3.0, np.nan], np.float32)
    assert np.isnan(ww.amax(nan)) and ww.argmin(nan) == 1
    assert np.isnan(ww.mean(x[:0])) and ww.sum(x[:0]) == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["sum", "mean"])
def test_both_passes(name, dtype, torch_device):
    x = torch.rand(4, 3, 5, 6, device=torch_device).to(dtype) + 0.5
    ours, theirs = getattr(wt, name), getattr(torch, name)
    views = [lambda t: t, lambda t: t.to(memory_format=torch.channels_last), lambda t: t[:, :, ::2]]
    for view, dim, keepdim in itertools.product(views, (None, 1, (0, 2, 3), (-1, -2)), (False, True)):
        given = view(x)
        found, dy = results(lambda t: ours(t, dim, keepdim), [given])
        exact, _ = results(lambda t: theirs(t, dim, keepdim), [given], dy, torch.float64)
        close(found, exact, dtype)
    single = torch.tensor(3.0, device=torch_device, dtype=dtype)
    assert ours(single) == 3 and ours(single, -1) == 3


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(dynamic, torch_device):
    function = lambda x: wt.sum(x, 0) * wt.mean(x, (0, 1), keepdim=True)  # noqa: E731
    compiled = compile_anew(function, dynamic=dynamic)
    for rows in (4, 5) if dynamic else (4,):
        assert agrees(compiled, function, [torch.randn(rows, 6, device=torch_device)])


def test_opcheck_and_gradcheck(torch_device):
    x = torch.randn(3, 4, dtype=torch.float64, device=torch_device, requires_grad=True)
    for name in ("sum", "mean"):
        ours = getattr(wt, name)
        torch.library.opcheck(getattr(torch.ops.warpwright, name).default, (x, [1], False, torch.float64))
        assert torch.autograd.gradcheck(lambda x: ours(x, 1), x)  # noqa: B023
        assert torch.autograd.gradgradcheck(lambda x: ours(x.square(), 0).square(), x)  # noqa: B023
        found, exact = (torch.func.vmap(torch.func.grad(lambda x: f(x.square())))(x.detach()) for f in (ours, getattr(torch, name)))  # noqa: B023
        assert torch.allclose(found, exact)


def test_types(torch_device):
    """Autocast has sums in float32, as PyTorch on a GPU, without a copy."""
    x = torch.ones(2, 3000, device=torch_device, dtype=torch.float16, requires_grad=True)
    with torch.autocast(torch_device, dtype=torch.bfloat16):
        y = wt.sum(x, 1)
    assert y.dtype == torch.float32 and bool((y == 3000).all())
    y.sum().backward()
    assert x.grad.dtype == torch.float16 and bool((x.grad == 1).all())
    assert wt.sum(x, dtype=torch.float32).dtype == torch.float32
    assert wt.mean(x, 0, dtype=torch.float64).dtype == torch.float64


X = np.ones((2, 3), np.float32)
REFUSED = [
    (lambda: ww.sum(X, 2), ww.ParameterError, "sum", "dim"),
    (lambda: ww.sum(X, (0, -2)), ww.ParameterError, "sum", "dim"),
    (lambda: ww.sum(X.astype(np.int32)), ww.DtypeError, "sum", "x"),
    (lambda: ww.mean(X, dtype="float16"), ww.DtypeError, "mean", "y"),
    (lambda: ww.amax(X[:0]), ww.ParameterError, "amax", "shape"),
    (lambda: ww.argmax(X[:0], 0), ww.ParameterError, "argmax", "n"),
    (lambda: ww.argmin(X, -3), ww.ParameterError, "argmin", "dim"),
    (lambda: ww.sum(X, 0, out=np.empty(2, np.float32)), ww.ShapeError, "sum", "out"),
    (lambda: wt.sum(torch.ones(2, 3), 2), ww.ParameterError, "sum", "dim"),
    (lambda: wt.sum(torch.ones(2, 3), (0, 0)), ww.ParameterError, "sum", "dim"),
    (lambda: wt.mean(torch.ones(2, dtype=torch.int32)), ww.DtypeError, "mean", "input"),
]


@pytest.mark.parametrize("call, error, op, argument", REFUSED)
def test_what_is_refused(call, error, op, argument):
    with pytest.raises(error) as info:
        call()
    assert (info.value.op, info.value.argument) == (op, argument)
