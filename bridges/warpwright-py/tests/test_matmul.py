"""Products of matrices: numpy arrays in the emulator, and `warpwright.torch` against PyTorch in f64."""

from __future__ import annotations

import math
import random as chance

import numpy as np
import pytest
from conftest import BUDGETS, distance, numpy_dtype, torch_cuda

import warpwright as ww

DTYPES = ["float32", "float64", "float16", "bfloat16"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shapes",
    [((5, 7), (7, 3)), ((33, 64), (64, 40)), ((2, 3, 4, 8), (2, 3, 8, 5)), ((3, 4, 8), (8, 6)), ((1, 9), (9, 1))],
)
def test_products(shapes, dtype, random):
    a, b = (random.standard_normal(s).astype(numpy_dtype(dtype)) for s in shapes)
    y = ww.matmul(a, b)
    expected = np.matmul(a.astype(np.float64), b.astype(np.float64))
    assert y.dtype == a.dtype and y.shape == expected.shape
    assert distance(y, expected) < BUDGETS[dtype]


def test_layouts_are_read_as_they_are(random):
    a, b = random.standard_normal((6, 8)).astype(np.float32), random.standard_normal((8, 4)).astype(np.float32)
    expected = ww.matmul(a, b)
    wide = np.zeros((6, 24), np.float32)
    wide[:, 8:16] = a
    turned = np.ascontiguousarray(a.T).T
    spread = np.repeat(b, 2, 1)[:, ::2]
    for left in (a, wide[:, 8:16], turned):
        for right in (b, np.asfortranarray(b), spread):
            # Elements that lie alone are multiplied by other units than rows.
            assert distance(ww.matmul(left, right), expected.astype(np.float64)) < BUDGETS["float32"]
    assert np.array_equal(ww.matmul(a[::-1], b), expected[::-1])
    assert np.array_equal(ww.matmul(a[:, ::-1].copy()[:, ::-1], b), expected)
    assert np.array_equal(ww.matmul(a, b[:, ::-1]), expected[:, ::-1])
    out = np.empty((6, 4), np.float32)
    assert ww.matmul(a, b, out=out) is out and np.array_equal(out, expected)


def test_bias_and_activation(random):
    a, b = random.standard_normal((6, 8)), random.standard_normal((8, 4))
    bias = random.standard_normal(4)
    assert distance(ww.matmul(a, b, bias=bias), a @ b + bias) < 1e-14
    assert distance(ww.matmul(a, b, bias=bias, activation="relu"), np.maximum(a @ b + bias, 0)) < 1e-14


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shapes", [((5, 7), (7, 3)), ((33, 64), (64, 40)), ((3, 4, 8), (8, 6)), ((2, 5, 7), (2, 7, 3)), ((4, 0), (0, 3))])
def test_factors_and_an_addend(shapes, dtype, random):
    a, b = (random.standard_normal(s).astype(numpy_dtype(dtype)) for s in shapes)
    product = np.matmul(a.astype(np.float64), b.astype(np.float64))
    c, bias = (random.standard_normal(s).astype(numpy_dtype(dtype)) for s in (product.shape, product.shape[-1:]))
    wide, added = c.astype(np.float64), bias.astype(np.float64)
    for options, expected in (
        ({"alpha": -1.5}, -1.5 * product),
        ({"c": c}, product + wide),
        ({"c": c, "alpha": 0.5, "beta": -2.0}, 0.5 * product - 2 * wide),
        ({"c": c, "beta": 0.25, "bias": bias, "activation": "relu"}, np.maximum(product + 0.25 * wide + added, 0)),
        # Elements that lie in another order.
        ({"c": c.swapaxes(-1, -2).copy().swapaxes(-1, -2)}, product + wide),
        # What counts for nothing is not read.
        ({"c": np.full_like(c, np.nan), "beta": 0.0}, product),
    ):
        y = ww.matmul(a, b, **options)
        assert y.dtype == a.dtype and y.shape == product.shape
        assert distance(y, expected) < 2 * BUDGETS[dtype], options


def test_a_product_is_added_in_place(random):
    a, b, c = (random.standard_normal(s) for s in ((5, 7), (7, 3), (5, 3)))
    expected, y = a @ b + 0.5 * c, c.copy()
    assert ww.matmul(a, b, c=y, beta=0.5, out=y) is y
    assert distance(y, expected) < 1e-14
    # Into a view with gaps.
    wide = np.zeros((5, 6))
    wide[:, ::2] = c
    ww.matmul(a, b, c=wide[:, ::2], beta=0.5, out=wide[:, ::2])
    assert distance(wide[:, ::2], expected) < 1e-14 and not wide[:, 1::2].any()
    memory = np.zeros(20)
    before, behind = memory[:15].reshape(5, 3), memory[5:].reshape(5, 3)
    with pytest.raises(ww.LayoutError) as info:
        ww.matmul(a, b, c=before, out=behind)
    assert info.value.op == "matmul" and not memory.any()


def test_rounded_factors(random):
    a, b = (random.standard_normal(s).astype(np.float32) for s in ((48, 72), (72, 40)))
    expected = a.astype(np.float64) @ b.astype(np.float64)
    assert 1e-5 < distance(ww.matmul(a, b, precision="tf32"), expected) < 5e-4
    assert distance(ww.matmul(a, b, precision="full"), expected) < BUDGETS["float32"]


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize(("rows", "n", "k"), [(40, 24, 16), (37, 5, 9), (0, 3, 4), (3, 4, 0)])
def test_gradients_of_a_weight_and_a_bias(random, dtype, rows, n, k):
    x, dy = (random.standard_normal(s).astype(dtype) for s in ((rows, k), (rows, n)))
    wide, exact = x.astype(np.float64), dy.astype(np.float64)
    for given in (x, x.T.copy().T, np.repeat(x, 2, 1)[:, ::2]):
        dweight, dbias = ww.linear_weight_backward(given, dy[::-1][::-1])
        assert (dweight.shape, dbias.shape, dweight.dtype, dbias.dtype) == ((n, k), (n,), x.dtype, x.dtype)
        if rows == 0:
            assert not dweight.any() and not dbias.any()
            continue
        assert distance(dbias, exact.sum(0)) < 2 * BUDGETS[dtype]
        assert k == 0 or distance(dweight, exact.T @ wide) < 2 * BUDGETS[dtype]
    with pytest.raises(ww.ShapeError):
        ww.linear_weight_backward(x, dy[1:] if rows else np.ones((1, n), dtype))
    with pytest.raises(ww.DtypeError):
        ww.linear_weight_backward(x, dy.astype(np.float32 if dtype != "float32" else np.float64))


UNITS = {
    "swiglu": lambda g: g / (1 + np.exp(-g)),
    "geglu": lambda g: g * np.vectorize(lambda v: 0.5 * (1 + math.erf(v / math.sqrt(2))))(g),
    "geglu_tanh": lambda g: 0.5 * g * (1 + np.tanh(math.sqrt(2 / math.pi) * (g + 0.044715 * g**3))),
}


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("unit", UNITS)
def test_gated_units(random, dtype, unit):
    x, gate, up = (random.standard_normal(s).astype(dtype) for s in ((2, 21, 40), (72, 40), (72, 40)))
    g, u = (x.astype(np.float64) @ w.astype(np.float64).T for w in (gate, up))
    out = np.empty((2, 21, 72), dtype)
    assert ww.gated_linear(x, gate, up, unit, out=out) is out
    assert distance(out, UNITS[unit](g) * u) < 3 * BUDGETS[dtype]
    # Parts of one weight, and columns that do not follow one another.
    both = np.concatenate([gate, up])
    again = ww.gated_linear(np.repeat(x, 2, -1)[..., ::2], both[:72], both[72:], unit)
    assert np.array_equal(again, out)
    for wrong in ((x, gate, up[:-1]), (x, gate[:, :-1], up[:, :-1]), (x[..., :-1], gate, up)):
        with pytest.raises(ww.ShapeError):
            ww.gated_linear(*wrong, unit)
    with pytest.raises(ww.DtypeError):
        ww.gated_linear(x, gate, up.astype(np.float32 if dtype != "float32" else np.float64), unit)
    with pytest.raises(ww.ParameterError):
        ww.gated_linear(x, gate, up, "silu")


@pytest.mark.parametrize("unit", UNITS)
def test_gated_units_of_torch(unit):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    import warpwright.torch as wt

    act = {"swiglu": torch.nn.functional.silu, "geglu": torch.nn.functional.gelu}.get(
        unit, lambda g: torch.nn.functional.gelu(g, approximate="tanh")
    )
    torch.manual_seed(3)
    x, gate, up = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((3, 5, 8), (6, 8), (6, 8)))
    expected = act(x @ gate.T) * (x @ up.T)
    torch.testing.assert_close(wt.gated_linear(x, gate, up, unit), expected)
    with torch.no_grad():
        torch.testing.assert_close(wt.gated_linear(x, gate, up, unit), expected)
        compiled = torch.compile(lambda *t: wt.gated_linear(*t, unit), backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(x, gate, up), expected)
    assert torch.autograd.gradcheck(lambda *t: wt.gated_linear(*t, unit), (x, gate, up))
    torch.library.opcheck(torch.ops.warpwright.gated_linear.default, (*(t.detach() for t in (x, gate, up)), unit, None, None))
    for grad in (False, True):
        with torch.set_grad_enabled(grad), pytest.raises(ww.ParameterError):
            wt.gated_linear(x, gate, up, "silu")
        with torch.set_grad_enabled(grad), pytest.raises(ww.ShapeError):
            wt.gated_linear(x, gate[:, 1:], up[:, 1:], unit)


def test_nothing_to_add():
    assert ww.matmul(np.ones((0, 3)), np.ones((3, 2))).shape == (0, 2)
    assert np.array_equal(ww.matmul(np.ones((2, 0)), np.ones((0, 3))), np.zeros((2, 3)))


@pytest.mark.parametrize(
    ("a", "b", "options", "error"),
    [
        ((3,), (3, 2), {}, ww.ShapeError),
        ((2, 3), (4, 2), {}, ww.ShapeError),
        ((2, 2, 3), (3, 3, 2), {}, ww.ShapeError),
        ((2, 3), (3, 2), {"bias": np.ones(3)}, ww.ShapeError),
        ((2, 3), (3, 2), {"c": np.ones(2)}, ww.ShapeError),
        ((2, 3), (3, 2), {"c": np.ones((2, 3)), "beta": 0.0}, ww.ShapeError),
        ((2, 3), (3, 2), {"c": np.ones((2, 2), np.float32)}, ww.DtypeError),
        ((2, 3), (3, 2), {"beta": 0.5}, ww.ArgumentError),
        ((2, 3), (3, 2), {"activation": "softmax"}, ww.ParameterError),
        ((2, 3), (3, 2), {"precision": "tf32"}, ww.ParameterError),
        ((2, 3), (3, 2), {"precision": "half"}, ww.ParameterError),
        ((2, 3), (3, 2), {"out": np.ones((2, 3))}, ww.ShapeError),
        ((2, 3), (3, 2), {"bias": np.ones(2, np.float32)}, ww.DtypeError),
    ],
)
def test_errors(a, b, options, error):
    with pytest.raises(error):
        ww.matmul(np.ones(a), np.ones(b), **options)


def check(r, torch, dtype, device):
    import warpwright.torch as wt

    most = 9 if device == "cuda" else 5
    m, n, k = (max(1, round(2 ** r.uniform(0, most))) for _ in range(3))
    batch = r.choice(((), (), (3,), (2, 2)))
    like = {"dtype": dtype, "device": device}

    def matrix(before, rows, cols):
        form = r.choice(("plain", "turned", "part"))
        if form == "plain":
            return torch.randn(*before, rows, cols, **like)
        if form == "turned":
            return torch.randn(*before, cols, rows, **like).mT
        return torch.randn(*before, rows, cols + 8, **like)[..., 8:]

    kind = r.choice(("matmul", "shared", "linear", "linear with bias"))
    if kind.startswith("linear"):
        tensors = [matrix(batch, m, k), matrix((), n, k)]
        tensors += [torch.randn(n, **like)] if kind.endswith("bias") else []
        ours, theirs = wt.linear, torch.nn.functional.linear
    else:
        tensors = [matrix(batch, m, k), matrix(() if kind == "shared" else batch, k, n)]
        ours, theirs = wt.matmul, torch.matmul
    mine = [t.detach().requires_grad_() for t in tensors]
    wide = [t.detach().double().requires_grad_() for t in tensors]
    y, exact = ours(*mine), theirs(*wide)
    dy = torch.randn_like(y)
    found, expected = torch.autograd.grad(y, mine, dy), torch.autograd.grad(exact, wide, dy.double())
    budget = 2 * BUDGETS[str(dtype).removeprefix("torch.")]
    for a, b in zip([y.detach(), *found], [exact.detach(), *expected]):
        assert a.shape == b.shape and a.dtype == dtype
        error = float((a.double() - b).norm()) / max(float(b.norm()), 1e-30)
        # A sum of few terms may cancel.
        assert error <= budget * (1 if b.numel() > 16 else 10), (error, kind, m, n, k, batch, dtype)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_random_cases(device):
    torch = torch_cuda() if device == "cuda" else pytest.importorskip("torch", reason="PyTorch is not installed")
    r = chance.Random(f"matmul on {device}")
    torch.manual_seed(3)
    for number in range(200 if device == "cuda" else 24):
        dtype = (torch.float32, torch.float64, torch.float16, torch.bfloat16)[number % 4]
        check(r, torch, dtype, device)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_gradcheck(device):
    torch = torch_cuda() if device == "cuda" else pytest.importorskip("torch", reason="PyTorch is not installed")
    import warpwright.torch as wt

    x, w, b = (torch.randn(s, dtype=torch.float64, device=device, requires_grad=True) for s in ((2, 3, 4), (5, 4), (5,)))
    assert torch.autograd.gradcheck(wt.linear, (x, w, b))
    assert torch.autograd.gradcheck(wt.matmul, (x, w.mT))


BROADCAST = [
    ((3,), (3,)),
    ((2, 3), (3,)),
    ((5, 2, 3), (3,)),
    ((3,), (3, 2)),
    ((3,), (2, 3, 4)),
    ((2, 3), (1, 3, 4)),
    ((2, 3), (5, 3, 4)),
    ((2, 5, 3), (1, 3, 4)),
    ((2, 1, 5, 3), (4, 3, 2)),
    ((5, 1, 2, 3), (1, 4, 3, 2)),
]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_vectors_and_leading_dimensions(compiled, torch_device):
    torch = pytest.importorskip("torch")
    import warpwright.torch as wt

    torch.manual_seed(3)
    for shapes in BROADCAST:
        torch._dynamo.reset()
        options = {"fullgraph": True, "backend": "aot_eager", "dynamic": True, "disable": not compiled}
        function = torch.compile(wt.matmul, **options)
        leaves = [torch.randn(s, device=torch_device, requires_grad=True) for s in shapes]
        wide = [t.detach().double().requires_grad_() for t in leaves]
        y, exact = function(*leaves), torch.matmul(*wide)
        dy = torch.randn_like(y)
        found, expected = torch.autograd.grad(y, leaves, dy), torch.autograd.grad(exact, wide, dy.double())
        for a, b in zip([y, *found], [exact, *expected]):
            assert a.shape == b.shape, shapes
            torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5)
