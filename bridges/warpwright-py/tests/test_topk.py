"""`topk`, held against numpy and PyTorch."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import warpwright as ww

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import warpwright.torch as wt  # noqa: E402
from images import DTYPES, agrees, compile_anew, results  # noqa: E402


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(5)


def first(x, k, largest):
    """Positions in each row: a stable sort has the first of equal elements first."""
    order = np.argsort(-x if largest else x, axis=-1, kind="stable")
    return order[..., :k]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_numpy(dtype, random):
    for (shape, k), largest, ties in itertools.product(
        [
            ((4, 5, 6), 3),
            ((3, 100), 100),
            ((2, 300), 8),
            ((5, 1000), 130),
            ((2, 9001), 50),
            ((1, 20000), 128),
            ((2, 0), 0),
        ],
        (True, False),
        (True, False),
    ):
        x = random.standard_normal(shape)
        x = (np.round(x * 4) / 4 if ties else x).astype(dtype)
        for order in "CF":
            values, index = ww.topk(np.asarray(x, order=order), k, largest=largest)
            expected = first(x.astype(np.float64), k, largest)
            assert values.dtype == x.dtype and index.dtype == np.int64 and index.shape == (*shape[:-1], k)
            assert (index == expected).all() and (values == np.take_along_axis(x, expected, -1)).all()
            dx = ww.topk_backward(values, index, shape[-1])
            kept = np.zeros_like(x)
            np.put_along_axis(kept, expected, values, -1)
            assert (dx == kept).all()


def test_special_numbers():
    x = np.array([[1.0, np.nan, np.inf, -np.inf, 0.0, -0.0]], np.float32)
    assert ww.topk(x, 6)[1].tolist() == [[1, 2, 0, 4, 5, 3]]
    values, index = ww.topk(x, 6, largest=False)
    assert index.tolist() == [[3, 4, 5, 0, 2, 1]] and np.signbit(values[0, 2]) and not np.signbit(values[0, 1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_both_passes(dtype, torch_device):
    # All different, so that there is one answer.
    x = torch.randperm(4 * 3 * 20, device=torch_device).reshape(4, 3, 20).to(dtype)
    views = [lambda t: t, lambda t: t.mT, lambda t: t[:, :, ::2]]
    for view, dim, k, largest in itertools.product(views, range(-3, 3), (1, 3), (True, False)):
        given = view(x)
        ours, theirs = (f(given, k, dim, largest) for f in (wt.topk, torch.topk))
        assert torch.equal(ours.values, theirs.values) and torch.equal(ours.indices, theirs.indices)
        (y, dx), dy = results(lambda t: wt.topk(t, k, dim, largest)[0], [given])
        (z, exact), _ = results(lambda t: torch.topk(t, k, dim, largest)[0], [given], dy)
        assert torch.equal(y, z) and torch.equal(dx, exact)
    single = torch.tensor(3.0, device=torch_device, dtype=dtype)
    assert wt.topk(single, 1).values == 3 and wt.topk(single, 1).indices == 0


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(dynamic, torch_device):
    function = lambda x: wt.topk(x, 3, 0)[0].sum(1) * wt.topk(x.square(), 3)[0].sum()  # noqa: E731
    compiled = compile_anew(function, dynamic=dynamic)
    for rows in (4, 5) if dynamic else (4,):
        assert agrees(compiled, function, [torch.randn(rows, 6, device=torch_device)])


def test_opcheck_and_gradcheck(torch_device):
    x = torch.randperm(12, device=torch_device).reshape(3, 4).double().requires_grad_()
    torch.library.opcheck(torch.ops.warpwright.topk.default, (x, 2, True))
    assert torch.autograd.gradcheck(lambda x: wt.topk(x, 2)[0], x)
    ours, theirs = (
        torch.func.vmap(torch.func.grad(lambda t: f(t, 2)[0].square().sum()))(x.detach()) for f in (wt.topk, torch.topk)
    )  # noqa: B023
    assert torch.equal(ours, theirs)


def test_a_vocabulary(torch_device):
    logits = torch.randn(3, 50257, device=torch_device, dtype=torch.bfloat16)
    values, index = wt.topk(logits, 50)
    assert torch.equal(values, logits.topk(50).values) and torch.equal(logits.gather(1, index), values)
    assert all(torch.equal(wt.topk(logits, 50).indices, index) for _ in range(3))


X = np.ones((2, 3), np.float32)
LONG = np.ones((1, 2000), np.float32)
REFUSED = [
    (lambda: ww.topk(X, 4), ww.ParameterError, "topk", "k"),
    (lambda: ww.topk(LONG, 129), ww.ParameterError, "topk", "k"),
    (lambda: ww.topk(X.astype(np.int32), 1), ww.DtypeError, "topk", "x"),
    (lambda: ww.topk(X[0, 0], 1), ww.ShapeError, "topk", "x"),
    (lambda: ww.topk_backward(X, np.zeros((2, 2), np.int64), 9), ww.ShapeError, "topk_backward", "index"),
    (lambda: wt.topk(torch.ones(2, 3), 1, 2), ww.ParameterError, "topk", "dim"),
    (lambda: wt.topk(torch.ones(2, 3), 4), ww.ParameterError, "topk", "k"),
    (lambda: wt.topk(torch.ones(2, dtype=torch.int32), 1), ww.DtypeError, "topk", "input"),
]


@pytest.mark.parametrize("call, error, op, argument", REFUSED)
def test_what_is_refused(call, error, op, argument):
    with pytest.raises(error) as info:
        call()
    assert (info.value.op, info.value.argument) == (op, argument)
