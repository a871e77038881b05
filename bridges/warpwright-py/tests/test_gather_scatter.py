"""`gather_rows`, `scatter_rows` and `row_dots`, held against numpy and PyTorch in f64."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from conftest import BUDGETS

import warpwright as ww

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import warpwright.torch as wt  # noqa: E402
from images import DTYPES, agrees, close, compile_anew, results  # noqa: E402


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(5)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_numpy(dtype, random):
    for row, index_dtype, with_factors in itertools.product([(8,), (3, 5), ()], ("int32", "int64"), (False, True)):
        x = random.standard_normal((9, *row)).astype(dtype)
        index = random.integers(0, 9, (4, 3)).astype(index_dtype)
        wide = {"float16": "float32"}.get(dtype, dtype)
        factors = random.standard_normal((4, 3)).astype(wide) if with_factors else None
        times = np.ones((4, 3)) if factors is None else factors.astype(np.float64)
        times = times.reshape(4, 3, *(1 for _ in row))
        y, exact = ww.gather_rows(x, index, factors), x.astype(np.float64)[index] * times
        assert y.dtype == x.dtype and y.shape == exact.shape
        budget = 2 * BUDGETS[dtype]
        assert np.linalg.norm(y - exact) <= budget * np.linalg.norm(exact)
        base = random.standard_normal((9, *row)).astype(dtype)
        for onto in (None, base):
            z = ww.scatter_rows(y, index, 9, factors, onto)
            exact = np.zeros((9, *row)) if onto is None else onto.astype(np.float64)
            np.add.at(exact, index, y.astype(np.float64) * times)
            assert z.dtype == x.dtype and np.linalg.norm(z - exact) <= budget * np.linalg.norm(exact)
        p = ww.row_dots(y, x, index, dtype=wide)
        exact = (y.astype(np.float64) * x.astype(np.float64)[index]).reshape(4, 3, -1).sum(-1)
        assert p.dtype == wide and np.linalg.norm(p - exact) <= budget * np.linalg.norm(exact)
    out = base.copy()
    assert ww.scatter_rows(y, index, 9, base=out, out=out) is out
    exact = base.astype(np.float64)
    np.add.at(exact, index, y.astype(np.float64))
    assert np.linalg.norm(out - exact) <= budget * np.linalg.norm(exact)


def gathered(x, index, factors):
    return x[index] if factors is None else x[index] * factors[..., None].to(x.dtype)


def scattered(x, index, factors, base):
    x = x if factors is None else x * factors[..., None].to(x.dtype)
    return base.index_add(0, index.reshape(-1), x.reshape(-1, x.shape[-1]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_both_passes(dtype, torch_device):
    index = torch.randint(9, (4, 5), device=torch_device)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    for kind, turned in itertools.product((None, dtype, wide), (False, True)):
        factors = None if kind is None else torch.rand(4, 5, device=torch_device).to(kind) + 0.5
        x = torch.randn(9, 12, device=torch_device).to(dtype)
        x = x.mT.contiguous().mT if turned else x
        given = [x] if factors is None else [x, factors]
        found, dy = results(lambda x, f=None: wt.gather_rows(x, index, f), given)
        exact, _ = results(lambda x, f=None: gathered(x, index, f), given, dy, torch.float64)
        for a, b, like in zip(found, exact, [x, *given]):
            close([a], [b], like.dtype)
        source, base = (
            torch.randn(4, 5, 12, device=torch_device).to(dtype),
            torch.randn(9, 12, device=torch_device).to(dtype),
        )
        given = [source, base] if factors is None else [source, base, factors]
        found, dy = results(lambda x, b, f=None: wt.scatter_rows(x, index, 9, factors=f, base=b), given)
        exact, _ = results(lambda x, b, f=None: scattered(x, index, f, b), given, dy, torch.float64)
        for a, b, like in zip(found, exact, [source, *given]):
            close([a], [b], like.dtype)


def test_only_wanted_gradients(torch_device):
    index = torch.tensor([2, 0], device=torch_device)
    x, factors = torch.randn(3, 4, device=torch_device), torch.rand(2, device=torch_device, requires_grad=True)
    wt.gather_rows(x, index, factors).sum().backward()
    assert torch.allclose(factors.grad, x[index].sum(1))
    base = torch.zeros(3, 4, device=torch_device, requires_grad=True)
    wt.scatter_rows(x[:2], index, 3, base=base).sum().backward()
    assert bool((base.grad == 1).all())


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(dynamic, torch_device):
    """Tokens to experts and back, weighted."""

    def function(x, factors, index):
        return wt.scatter_rows(wt.gather_rows(x, index).square(), index, x.shape[0], factors=factors, base=x)

    compiled = compile_anew(function, dynamic=dynamic)
    for rows in (4, 5) if dynamic else (4,):
        index = torch.randint(rows, (7,), device=torch_device)
        x, factors = torch.randn(rows, 6, device=torch_device), torch.rand(7, device=torch_device)
        ours, theirs = (lambda x, f, of=of: of(x, f, index) for of in (compiled, function))  # noqa: B023
        assert agrees(ours, theirs, [x, factors])


def test_opcheck_and_gradcheck(torch_device):
    index = torch.tensor([2, 0, 2, 1], device=torch_device)
    x = torch.randn(3, 4, dtype=torch.float64, device=torch_device, requires_grad=True)
    factors = torch.rand(4, dtype=torch.float64, device=torch_device, requires_grad=True)
    y = torch.randn(4, 4, dtype=torch.float64, device=torch_device, requires_grad=True)
    operators = torch.ops.warpwright
    for f in (None, factors):
        torch.library.opcheck(operators.gather_rows.default, (x, index, f, 3))
        torch.library.opcheck(operators.scatter_rows.default, (y, index, f, x, 3))
    torch.library.opcheck(operators.scatter_rows.default, (y, index, None, None, 3))
    assert torch.autograd.gradcheck(lambda x, f: wt.gather_rows(x, index, f), (x, factors))
    assert torch.autograd.gradcheck(lambda y, f, b: wt.scatter_rows(y, index, 3, factors=f, base=b), (y, factors, x))


def test_the_same_in_every_run(torch_device):
    x, index = torch.randn(5000, 16, device=torch_device), torch.randint(7, (5000,), device=torch_device)
    first = wt.scatter_rows(x, index, 7)
    assert all(torch.equal(wt.scatter_rows(x, index, 7), first) for _ in range(3))


X, I = np.ones((2, 3), np.float32), np.array([1, 0, 1])  # noqa: E741
REFUSED = [
    (lambda: ww.gather_rows(X, I + 1), ww.ParameterError, "gather_rows", "index"),
    (lambda: ww.gather_rows(X, I - 1), ww.ParameterError, "gather_rows", "index"),
    (lambda: ww.gather_rows(X, I.astype(np.uint8)), ww.DtypeError, "gather_rows", "index"),
    (lambda: ww.gather_rows(X.astype(np.int32), I), ww.DtypeError, "gather_rows", "x"),
    (lambda: ww.gather_rows(X[0, 0], I), ww.ShapeError, "gather_rows", "x"),
    (lambda: ww.gather_rows(X, I, np.ones(2, np.float32)), ww.ShapeError, "gather_rows", "factors"),
    (lambda: ww.gather_rows(X, I, np.ones(3, np.float64)), ww.DtypeError, "gather_rows", "factors"),
    (lambda: ww.scatter_rows(X, I, 2), ww.ShapeError, "scatter_rows", "x"),
    (lambda: ww.scatter_rows(X, I[:2], 1), ww.ParameterError, "scatter_rows", "index"),
    (lambda: ww.scatter_rows(X, I[:2], 2, base=X.T), ww.ShapeError, "scatter_rows", "base"),
    (lambda: ww.scatter_rows(X, I[:2], 2, base=X.astype(np.float64)), ww.DtypeError, "scatter_rows", "base"),
    (lambda: ww.row_dots(X, X, I), ww.ShapeError, "row_dots", "a"),
    (lambda: ww.row_dots(X, X, I[:2], dtype="float64"), ww.DtypeError, "row_dots", "y"),
    (
        lambda: wt.gather_rows(torch.ones(2, dtype=torch.int32), torch.tensor([0])),
        ww.DtypeError,
        "gather_rows",
        "input",
    ),
    (lambda: wt.scatter_rows(torch.ones(2, 3), torch.tensor([0, 5]), 2), ww.ParameterError, "scatter_rows", "index"),
]


@pytest.mark.parametrize("call, error, op, argument", REFUSED)
def test_what_is_refused(call, error, op, argument):
    with pytest.raises(error) as info:
        call()
    assert (info.value.op, info.value.argument) == (op, argument)
