"""`chunk_scan` of `warpwright.torch`, held against a loop over positions in f64."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import warpwright as ww  # noqa: E402
import warpwright.torch as wt  # noqa: E402
from conftest import BUDGETS  # noqa: E402
from images import compile_anew, leaves, results  # noqa: E402
from scans import chunk_scan as theirs  # noqa: E402

DTYPES = [torch.float16, torch.bfloat16]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(5)


def close(found, exact, dtype):
    """Operands of products are rounded to `dtype`, whatever the result is."""
    for a, b in zip(found, exact):
        assert a.shape == b.shape
        assert float((a.double() - b).norm()) <= 2 * BUDGETS[str(dtype).replace("torch.", "")] * float(b.norm()) + 1e-30


def drawn(dtype, device, batch=2, length=9, heads=4, dim=8, groups=2, state=8):
    """All tensors, in the order of the operator's."""
    new = lambda *shape: torch.randn(shape, device=device)  # noqa: E731
    x, dt, B, C = new(batch, length, heads, dim), new(batch, length, heads), *new(2, batch, length, groups, state)
    x, dt, B, C = (t.to(dtype) for t in (x, dt, B, C))
    return [x, dt, -torch.exp(new(heads) / 2) / 4, B, C, new(heads), new(heads), new(batch, heads, dim, state)]


def ours(x, dt, A, B, C, D=None, dt_bias=None, initial_states=None, **options):
    return wt.chunk_scan(x, dt, A, B, C, 256, D=D, dt_bias=dt_bias, initial_states=initial_states, dt_softplus=True, **options)


SHAPES = [(2, 66, 4, 8, 2, 16), (1, 1, 2, 5, 1, 3), (2, 7, 3, 4, 3, 8), (1, 64, 2, 16, 1, 8)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_both_passes(dtype, torch_device):
    for number, shape in enumerate(SHAPES):
        tensors = drawn(dtype, torch_device, *shape)
        # One after the other is left out.
        left = [None, 5, 6, 7][number]
        tensors = [None if at == left else t for at, t in enumerate(tensors)]
        found, dy = results(ours, tensors)
        exact, _ = results(theirs, tensors, dy, torch.float64)
        close(found, exact, dtype)
        assert [t.dtype for t in found[1:]] == [t.dtype for t in tensors if t is not None] and found[0].dtype == dtype
        with torch.no_grad():
            assert torch.equal(ours(*tensors), found[0])


def test_without_softplus(torch_device):
    x, dt, *rest = drawn(torch.float16, torch_device)
    tensors = [x, dt.abs(), *rest[:3]]
    found, dy = results(wt.chunk_scan, tensors)
    exact, _ = results(lambda *t: theirs(*t, softplus=False), tensors, dy, torch.float64)
    close(found, exact, torch.float16)


def test_final_states(torch_device):
    """They have a gradient of their own."""
    tensors = drawn(torch.float16, torch_device)
    given, exactly = leaves(tensors), leaves(tensors, torch.float64)
    pair, expected = ours(*given, return_final_states=True), theirs(*exactly, last_state=True)
    assert pair[1].dtype == torch.float32
    close([t.detach() for t in pair], [t.detach() for t in expected], torch.float16)
    dys = [torch.randn_like(t) for t in pair]
    for which in ((0, 1), (0,), (1,)):
        found, exact = (
            torch.autograd.grad([t[i] for i in which], of, [dys[i].to(t[i].dtype) for i in which], retain_graph=True, allow_unused=True)
            for t, of in ((pair, given), (expected, exactly))
        )
        for a, b, t in zip(found, exact, given):
            close(*([torch.zeros_like(t) if g is None else g] for g in (a, b)), torch.float16)


def test_parts_of_a_tensor(torch_device):
    """As projections leave them."""
    whole = torch.randn(2, 9, 32 + 8 + 8 + 4, device=torch_device, dtype=torch.float16)
    A, found = -torch.rand(4, device=torch_device), []
    for function, dtype in ((ours, None), (theirs, torch.float64)):
        given = leaves([whole, A], dtype)
        x, B, C, dt = given[0].split([32, 8, 8, 4], -1)
        y = function(x.unflatten(-1, (4, 8)), dt, given[1], B.unflatten(-1, (1, 8)), C.unflatten(-1, (1, 8)))
        found.append([y.detach(), *torch.autograd.grad(y.sum(), given)])
    close(*found, torch.float16)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(dynamic, torch_device):
    def function(*tensors):
        y, final = ours(*tensors, return_final_states=True)
        return y * final.sum(-1).to(y.dtype)[:, None] + ours(*tensors)

    compiled = compile_anew(function, dynamic=dynamic)
    for length in (5, 70) if dynamic else (5,):
        tensors = drawn(torch.float16, torch_device, length=length)
        found, dy = results(compiled, tensors)
        close(found, [t.double() for t in results(function, tensors, dy)[0]], torch.float16)


def test_opcheck(torch_device):
    tensors = drawn(torch.float16, torch_device, length=66)
    for name, left in itertools.product(("chunk_scan", "chunk_scan_with_state"), ((), (5, 6, 7))):
        given = [None if at in left else t.detach().requires_grad_() for at, t in enumerate(tensors)]
        torch.library.opcheck(getattr(torch.ops.warpwright, name).default, (*given, True))


def test_parameters_of_16_bits(torch_device):
    """They are taken in float32, and their gradients are of their own type; so are samples under autocast."""
    tensors = [t.bfloat16() for t in drawn(torch.bfloat16, torch_device)]
    found, dy = results(ours, tensors)
    exact, _ = results(theirs, tensors, dy, torch.float64)
    close(found, exact, torch.bfloat16)
    assert all(t.dtype == torch.bfloat16 for t in found)
    with torch.autocast(torch_device, dtype=torch.bfloat16):
        assert torch.equal(ours(*(t.float() for t in tensors)), found[0])


def given(**changed):
    shapes = {"x": (2, 5, 4, 8), "dt": (2, 5, 4), "A": (4,), "B": (2, 5, 2, 3), "C": (2, 5, 2, 3)}
    return {name: torch.ones(shape, dtype=torch.float32 if name == "A" else torch.float16) for name, shape in shapes.items()} | changed


HALF = lambda *shape: torch.ones(shape, dtype=torch.float16)  # noqa: E731
REFUSED = [
    ({"x": HALF(5, 4, 8)}, ww.ShapeError, "x", "has 3 dimensions, expected 4"),
    ({"x": torch.ones(2, 5, 4, 8)}, ww.DtypeError, "x", "f32"),
    ({"dt": HALF(2, 5)}, ww.ShapeError, "dt", "has 2 dimensions, expected 3"),
    ({"dt": torch.ones(2, 5, 4)}, ww.DtypeError, "dt", "is f32, expected f16"),
    ({"A": torch.ones(4, 1)}, ww.ShapeError, "A", "expected [4]"),
    ({"B": HALF(2, 4, 2, 3)}, ww.ShapeError, "B", "expected [2, 5, 2, 3]"),
    ({"C": HALF(2, 5, 1, 3)}, ww.ShapeError, "C", "expected [2, 5, 2, 3]"),
    ({"B": HALF(2, 5, 3, 3), "C": HALF(2, 5, 3, 3)}, ww.ParameterError, "groups", "a divisor of the heads"),
    ({"D": torch.ones(4, 8)}, ww.ShapeError, "D", "expected [4]"),
    ({"dt_bias": torch.ones(5)}, ww.ShapeError, "dt_bias", "expected [4]"),
    ({"initial_states": torch.ones(2, 4, 8, 2)}, ww.ShapeError, "initial_states", "expected [2, 4, 8, 3]"),
]


@pytest.mark.parametrize("changed, error, argument, message", REFUSED)
def test_what_is_refused(changed, error, argument, message, torch_device):
    tensors = {name: t.to(torch_device) for name, t in given(**changed).items()}
    with pytest.raises(error) as info:
        wt.chunk_scan(**tensors)
    e = info.value
    assert (e.op, e.argument) == ("chunk_scan", argument)
    assert str(e).startswith(f"chunk_scan: {argument} ") and message in str(e)
