"""`selective_scan` and `selective_state_update` of `warpwright.torch`, held against a loop over positions in f64."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import warpwright as ww  # noqa: E402
import warpwright.torch as wt  # noqa: E402
from conftest import BUDGETS  # noqa: E402
from images import DTYPES, compile_anew, leaves, results  # noqa: E402
from scans import selective_scan as theirs  # noqa: E402

NAMES = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias", "initial_state")


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(5)


def last(x):
    """The same [N, C, L] with its channels last in memory."""
    return x.mT.contiguous().mT


def close(found, exact, dtypes):
    for a, b, dtype in zip(found, exact, dtypes):
        budget = 2 * BUDGETS[str(dtype).replace("torch.", "")] + (1e-13 if dtype == torch.float64 else 4e-6)
        assert a.shape == b.shape and a.dtype == dtype
        assert float((a.double() - b).norm()) <= budget * float(b.norm()) + 1e-30


def drawn(dtype, device, batch=2, channels=4, length=7, state=3, groups=1, form=False):
    """All tensors, in the order of the operator's; B and C have no dimension for a single group."""
    sums = torch.float64 if dtype == torch.float64 else torch.float32
    new = lambda *shape, of=dtype: torch.randn(shape, device=device).to(of)  # noqa: E731
    rows = (batch, state, length) if groups == 1 else (batch, groups, state, length)
    place = last if form else lambda x: x
    u, delta, z = (place(new(batch, channels, length)) for _ in range(3))
    A, D, bias = -torch.exp(new(channels, state, of=sums) / 2), new(channels, of=sums), new(channels, of=sums)
    return [u, delta, A, new(*rows), new(*rows), D, z, bias, new(batch, channels, state, of=sums)]


def dtypes_of(tensors):
    return [t.dtype for t in tensors if t is not None]


def ours(*tensors, **options):
    return wt.selective_scan(*tensors[:8], True, initial_state=tensors[8], **options)


SHAPES = [(2, 5, 7, 4, 1), (1, 8, 1, 16, 2), (2, 4, 40, 3, 4), (1, 3, 33, 20, 1)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", [False, True], ids=["channels first", "channels last"])
def test_both_passes(form, dtype, torch_device):
    for number, shape in enumerate(SHAPES):
        tensors = drawn(dtype, torch_device, *shape, form)
        # One after the other is left out.
        left = [None, 5, 6, 7, 8][number]
        tensors = [None if at == left else t for at, t in enumerate(tensors)]
        found, dy = results(ours, tensors)
        exact, _ = results(theirs, tensors, dy, torch.float64)
        close(found, exact, [dtype, *dtypes_of(tensors)])
        assert shape[2] == 1 or (found[0].mT if form else found[0]).is_contiguous()
        with torch.no_grad():
            assert torch.equal(ours(*tensors), found[0])


def test_without_softplus(torch_device):
    u, delta, *rest = drawn(torch.float32, torch_device)
    tensors = [u, delta.abs(), *rest[:5]]
    found, dy = results(wt.selective_scan, tensors)
    exact, _ = results(lambda *t: theirs(*t, softplus=False), tensors, dy, torch.float64)
    close(found, exact, [torch.float32] * len(found))


@pytest.mark.parametrize("form", [False, True], ids=["channels first", "channels last"])
def test_last_state(form, torch_device):
    """It has a gradient of its own."""
    tensors = drawn(torch.float32, torch_device, 2, 4, 9, 5, 2, form)
    given, exactly = leaves(tensors), leaves(tensors, torch.float64)
    pair, expected = ours(*given, return_last_state=True), theirs(*exactly, last_state=True)
    close([t.detach() for t in pair], [t.detach() for t in expected], [torch.float32] * 2)
    dys = [torch.randn_like(t) for t in pair]
    for which in ((0, 1), (0,), (1,)):
        found, exact = (
            torch.autograd.grad([t[i] for i in which], of, [dys[i].to(t[i].dtype) for i in which], retain_graph=True, allow_unused=True)
            for t, of in ((pair, given), (expected, exactly))
        )
        for a, b in zip(found, exact):
            a, b = (torch.zeros((), device=torch_device) if g is None else g for g in (a, b))
            torch.testing.assert_close(a.double(), b.double().expand_as(a), rtol=1e-4, atol=1e-5)


def test_other_strides(torch_device):
    """Samples and gate as halves of one tensor, with channels last as projections leave them, and rows out of another."""
    whole, rows = torch.randn(2, 9, 8, device=torch_device), torch.randn(2, 9, 10, device=torch_device)
    delta, A = torch.randn(2, 9, 4, device=torch_device), -torch.rand(4, 5, device=torch_device)
    found = []
    for function, dtype in ((ours, torch.float32), (theirs, torch.float64)):
        given = leaves([whole, rows, delta, A], dtype)
        u, z = given[0].mT.chunk(2, 1)
        B, C = (t.mT for t in given[1].split(5, -1))
        y = function(u, given[2].mT, given[3], B, C, None, z, None, None)
        found.append([y.detach(), *torch.autograd.grad(y.sum(), given)])
    close(*found, [torch.float32] * 5)
    assert found[0][0].mT.is_contiguous()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_steps(dtype, torch_device):
    """Positions one by one, from the first on, are all of them at once."""
    u, delta, A, B, C, D, z, bias, _ = drawn(dtype, torch_device, 2, 4, 6, 5, 2)
    y, final = theirs(*(t.double() for t in (u, delta, A, B, C, D, z, bias)), last_state=True)
    state = torch.zeros(2, 4, 5, device=torch_device, dtype=A.dtype)
    steps = [
        wt.selective_state_update(state, u[..., t], delta[..., t], A, B[..., t], C[..., t], D, z[..., t], bias, True)
        for t in range(u.shape[2])
    ]
    assert steps[0].shape == (2, 4)
    close([torch.stack(steps, -1), state], [y, final], [dtype, A.dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("strided", [False, True])
def test_steps_of_heads(dtype, strided, torch_device):
    """Heads are neighbouring channels, and a state of 16 bits is rounded behind each step."""
    x, dt, z = (torch.randn(2, 3, 4, device=torch_device) for _ in range(3))
    A, D, bias = -torch.rand(3, 4, 5, device=torch_device), torch.randn(3, 4, device=torch_device), torch.randn(3, 4, device=torch_device)
    B, C = (torch.randn(2, 3, 5, device=torch_device) for _ in range(2))
    state = torch.randn(2, 3, 4, 10 if strided else 5, device=torch_device, dtype=dtype)
    whole, state = state.clone(), state[..., ::2] if strided else state
    flat = [t.flatten(1).unsqueeze(-1).double() for t in (x, dt)]
    rest = [A.flatten(0, 1).double(), *(t.unsqueeze(-1).double() for t in (B, C)), D.flatten().double(), z.flatten(1).unsqueeze(-1).double()]
    y, final = theirs(*flat, *rest, bias.flatten().double(), state.flatten(1, 2).double(), last_state=True)
    found = wt.selective_state_update(state, x, dt, A, B, C, D, z, bias, dt_softplus=True)
    assert found.shape == x.shape
    close([found.flatten(1).unsqueeze(-1), state.flatten(1, 2)], [y, final], [torch.float32, dtype])
    assert not strided or not torch.equal(whole[..., ::2], state)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("form", [False, True], ids=["channels first", "channels last"])
def test_compiled(form, dynamic, torch_device):
    """The same values and strides, and of all lengths from one graph if it is asked for."""

    def function(*tensors):
        y, final = ours(*tensors, return_last_state=True)
        return torch.cat([y * final.sum(-1, keepdim=True), ours(y, *tensors[1:])], -1)

    compiled = compile_anew(function, dynamic=dynamic)
    for length in (5, 34) if dynamic else (5,):
        tensors = drawn(torch.float32, torch_device, 2, 4, length, 3, 2, form)
        found, dy = results(compiled, tensors)
        for a, b in zip(found, results(function, tensors, dy)[0]):
            assert torch.allclose(a, b, atol=1e-6) and a.stride() == b.stride()


def test_compiled_steps(torch_device):
    u, delta, A, B, C, D, z, bias, state = drawn(torch.float32, torch_device, length=1)
    step = [t[..., 0] for t in (u, delta, B, C, z)]
    function = lambda state, x, dt, B, C, z: wt.selective_state_update(state, x, dt, A, B, C, D, z, bias, True) * 2  # noqa: E731
    kept, other = state.clone(), state.clone()
    for _ in range(2):
        assert torch.equal(compile_anew(function)(kept, *step), function(other, *step)) and torch.equal(kept, other)
    assert not torch.equal(kept, state)


@pytest.mark.parametrize("form", [False, True], ids=["channels first", "channels last"])
def test_opcheck(form, torch_device):
    tensors = drawn(torch.float32, torch_device, length=33)
    tensors[3:5] = [t.unsqueeze(1) for t in tensors[3:5]]
    if form:
        tensors = [t if name in ("A", "D", "delta_bias", "initial_state") else t.movedim(-1, 1).contiguous() for name, t in zip(NAMES, tensors)]
    ops = torch.ops.warpwright
    for name, left in itertools.product(("selective_scan", "selective_scan_with_state"), ((), (5, 6, 7, 8))):
        given = [None if at in left else t.detach().requires_grad_() for at, t in enumerate(tensors)]
        torch.library.opcheck(getattr(ops, name).default, (*given, True, form))
    u, delta, A, B, C, D, z, bias, state = (t.detach() for t in tensors)
    if form:
        torch.library.opcheck(ops.selective_scan_update.default, (u, delta, A, B, C, state, D, z, bias, True))


def test_gradcheck(torch_device):
    tensors = [t.requires_grad_() for t in drawn(torch.float64, torch_device, 1, 2, 4, 2)]
    assert torch.autograd.gradcheck(lambda *t: ours(*t, return_last_state=True), tensors)


def test_autocast(torch_device):
    tensors = leaves(drawn(torch.float32, torch_device))
    with torch.autocast(torch_device, dtype=torch.bfloat16):
        y, state = ours(*tensors, return_last_state=True)
    assert y.dtype == torch.bfloat16 and state.dtype == torch.float32
    y.float().sum().backward()
    assert all(t.grad.dtype == torch.float32 for t in tensors)
    exact = theirs(*(t.detach().double() for t in tensors))
    assert float((y.detach().double() - exact).norm() / exact.norm()) < 2e-2


def test_parameters_of_16_bits(torch_device):
    """They are taken in float32, and their gradients are of their own type."""
    tensors = drawn(torch.bfloat16, torch_device)
    tensors = [t.bfloat16() for t in tensors]
    found, dy = results(ours, tensors)
    exact, _ = results(theirs, tensors, dy, torch.float64)
    close(found, exact, [torch.bfloat16] * 10)


def test_what_has_no_gradient(torch_device):
    u, delta, A, B, C, *_, state = drawn(torch.float32, torch_device)
    step = [t[..., 0] for t in (u, delta)]
    rows = [t[..., 0] for t in (B, C)]
    with pytest.raises(RuntimeError, match=r"selective_state_update has no gradient: call it under torch.no_grad\(\)"):
        wt.selective_state_update(state, *step, A.requires_grad_(), *rows)
    with torch.no_grad():
        assert wt.selective_state_update(state, *step, A, *rows).shape == (2, 4)
    with pytest.raises(RuntimeError, match="no second derivative"):
        (dA,) = torch.autograd.grad(wt.selective_scan(u, delta, A, B, C).square().sum(), A, create_graph=True)
        dA.sum().backward()


def given(**changed):
    shapes = {"u": (2, 4, 5), "delta": (2, 4, 5), "A": (4, 3), "B": (2, 3, 5), "C": (2, 3, 5)}
    return {name: torch.ones(shape) for name, shape in shapes.items()} | changed


ONES = torch.ones
# Arguments that differ, error, argument, part of the message.
REFUSED = [
    ({"u": ONES(4, 5)}, ww.ShapeError, "u", "has 2 dimensions, expected 3"),
    ({"u": ONES(2, 4, 5).int()}, ww.DtypeError, "u", "i32"),
    ({"delta": ONES(2, 4, 6)}, ww.ShapeError, "delta", "has shape [2, 4, 6], expected [2, 4, 5]"),
    ({"delta": ONES(2, 4, 5).double()}, ww.DtypeError, "delta", "is f64, expected f32"),
    ({"A": ONES(3, 3)}, ww.ShapeError, "A", "expected [4, 3]"),
    ({"A": ONES(4, 3).to(torch.complex64)}, ww.DtypeError, "A", "expected"),
    ({"B": ONES(4, 3)}, ww.ShapeError, "B", "has 2 dimensions, expected 3 or 4"),
    ({"B": ONES(2, 4, 5)}, ww.ShapeError, "B", "expected [2, 1, 3, 5]"),
    ({"B": ONES(2, 3, 3, 5), "C": ONES(2, 3, 3, 5)}, ww.ParameterError, "groups", "a divisor of the channels"),
    ({"C": ONES(2, 2, 3, 5)}, ww.ShapeError, "C", "expected [2, 1, 3, 5]"),
    ({"D": ONES(5)}, ww.ShapeError, "D", "expected [4]"),
    ({"z": ONES(2, 4, 1)}, ww.ShapeError, "z", "expected [2, 4, 5]"),
    ({"delta_bias": ONES(1)}, ww.ShapeError, "delta_bias", "expected [4]"),
    ({"initial_state": ONES(2, 4, 5)}, ww.ShapeError, "initial_state", "expected [2, 4, 3]"),
    ({name: ONES(2 if rows else 4, 65, *rows) for name, rows in (("A", ()), ("B", (5,)), ("C", (5,)))}, ww.ParameterError, "state", "from 1 to 64"),
]


@pytest.mark.parametrize("form", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("changed, error, argument, message", REFUSED)
def test_what_is_refused(changed, error, argument, message, form, torch_device):
    tensors = {name: t.to(torch_device) for name, t in given(**changed).items()}
    if form and tensors["u"].dim() == 3:
        tensors["u"] = last(tensors["u"])
    with pytest.raises(error) as info:
        wt.selective_scan(**tensors)
    e = info.value
    assert (e.op, e.argument) == ("selective_scan", argument)
    assert str(e).startswith(f"selective_scan: {argument} ") and message in str(e)


STEP = {"state": (2, 4, 3), "x": (2, 4), "dt": (2, 4), "A": (4, 3), "B": (2, 3), "C": (2, 3)}
REFUSED_STEPS = [
    ({"state": ONES(2, 4)}, ww.ShapeError, "state", "has 2 dimensions, expected 3 or 4"),
    ({"state": ONES(2, 4, 2)}, ww.ShapeError, "state", "expected [2, 4, 3]"),
    ({"x": ONES(2, 4, 1)}, ww.ShapeError, "x", "has 3 dimensions, expected 2"),
    ({"dt": ONES(2, 3)}, ww.ShapeError, "dt", "has shape [2, 3], expected [2, 4]"),
    ({"dt": ONES(2, 4).double()}, ww.DtypeError, "dt", "is f64, expected f32"),
    ({"A": ONES(3, 3)}, ww.ShapeError, "A", "expected [4, 3]"),
    ({"B": ONES(2, 4)}, ww.ShapeError, "B", "expected [2, 1, 3]"),
    ({"C": ONES(2)}, ww.ShapeError, "C", "has 1 dimensions, expected 2 or 3"),
    ({"D": ONES(3)}, ww.ShapeError, "D", "expected [4]"),
    ({"z": ONES(2, 5)}, ww.ShapeError, "z", "expected [2, 4]"),
    ({"dt_bias": ONES(2)}, ww.ShapeError, "dt_bias", "expected [4]"),
]


@pytest.mark.parametrize("changed, error, argument, message", REFUSED_STEPS)
def test_what_steps_refuse(changed, error, argument, message, torch_device):
    tensors = {name: t.to(torch_device) for name, t in ({name: ONES(shape) for name, shape in STEP.items()} | changed).items()}
    with pytest.raises(error) as info:
        wt.selective_state_update(**tensors)
    e = info.value
    assert (e.op, e.argument) == ("selective_state_update", argument)
    assert str(e).startswith(f"selective_state_update: {argument} ") and message in str(e)
