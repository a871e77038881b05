"""`causal_conv1d` and `causal_conv1d_update` of `warpwright.torch`, held against a convolution of PyTorch in f64."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import warpwright as ww  # noqa: E402
import warpwright.torch as wt  # noqa: E402
from conftest import BUDGETS  # noqa: E402
from images import DTYPES, compile_anew, leaves, results  # noqa: E402

F = torch.nn.functional
ACTIVATIONS = [None, "silu", "swish"]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(5)


def last(x):
    """The same [N, C, L] with its channels last in memory."""
    return x.mT.contiguous().mT


def theirs(x, weight, bias=None, initial_states=None, seq_idx=None, activation=None, final_states=False):
    width = weight.shape[1]
    before = x.new_zeros(*x.shape[:2], width - 1) if initial_states is None else initial_states
    whole = torch.cat([before, x], -1)
    if seq_idx is None:
        y = F.conv1d(whole, weight[:, None], bias, groups=x.shape[1])
    else:
        # Tap by tap: one counts where its position has the number of the result's.
        ids = F.pad(seq_idx, (width - 1, 0), value=-1)
        y = 0.0 if bias is None else bias[:, None]
        for tap in range(width):
            part = slice(tap, tap + x.shape[-1])
            y = y + weight[:, tap, None] * whole[..., part] * (ids[:, part] == seq_idx)[:, None]
    y = F.silu(y) if activation else y
    if seq_idx is not None:
        y = torch.where((seq_idx < 0)[:, None], 0.0, y)
    return (y, whole[..., -(width - 1) :]) if final_states else y


def close(found, exact, dtype):
    budget = 2 * BUDGETS[str(dtype).replace("torch.", "")] + (2e-6 if dtype == torch.float32 else 0)
    for a, b in zip(found, exact):
        assert a.shape == b.shape and a.dtype == dtype
        assert float((a.double() - b).norm()) <= budget * float(b.norm()) + 1e-30


def drawn(dtype, device, batch=2, channels=5, length=7, width=4, form=None):
    """x, weight, bias and initial states."""
    new = lambda *shape: torch.randn(shape, device=device, dtype=dtype)  # noqa: E731
    x, states = new(batch, channels, length), new(batch, channels, width - 1)
    return [last(x) if form else x, new(channels, width), new(channels), last(states) if form else states]


SHAPES = [(2, 5, 7, 4), (1, 8, 1, 3), (3, 1, 9, 2), (1, 16, 33, 4), (2, 3, 2, 4)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", [False, True], ids=["channels first", "channels last"])
def test_both_passes(form, dtype, torch_device):
    for (number, shape), given in itertools.product(enumerate(SHAPES), itertools.product((True, False), repeat=2)):
        x, weight, bias, states = drawn(dtype, torch_device, *shape, form)
        tensors = [x, weight, bias if given[0] else None, states if given[1] else None]
        activation = ACTIVATIONS[number % 3]
        options = {"activation": activation}
        found, dy = results(lambda x, w, b, s: wt.causal_conv1d(x, w, b, initial_states=s, **options), tensors)
        exact, _ = results(lambda *t: theirs(*t, **options), tensors, dy, torch.float64)
        close(found, exact, dtype)
        for y in found[:2]:
            assert (y.mT if form else y).is_contiguous()


@pytest.mark.parametrize("form", [False, True], ids=["channels first", "channels last"])
def test_final_states(form, torch_device):
    """They have gradients of their own."""
    for number, shape in enumerate(SHAPES):
        tensors, activation = drawn(torch.float32, torch_device, *shape, form), ACTIVATIONS[number % 3]
        given, wide = leaves(tensors), leaves(tensors, torch.float64)
        x, weight, bias, initial = given
        pair = wt.causal_conv1d(x, weight, bias, None, initial, True, activation=activation)
        expected = theirs(*wide, activation=activation, final_states=True)
        close([t.detach() for t in pair], [t.detach() for t in expected], torch.float32)
        # One position lies in either order.
        assert shape[2] == 1 or (pair[1].mT if form else pair[1]).is_contiguous()
        dys = [torch.randn_like(t) for t in pair]
        for which in ((0, 1), (0,), (1,)):
            found, exact = (
                torch.autograd.grad([t[i] for i in which], of, [dys[i].to(t[i].dtype) for i in which], retain_graph=True,
                                    allow_unused=True)
                for t, of in ((pair, given), (expected, wide))
            )  # fmt: skip
            for a, b in zip(found, exact):
                a, b = (torch.zeros((), device=torch_device) if g is None else g for g in (a, b))
                torch.testing.assert_close(a.double(), b.double().expand_as(a), rtol=1e-4, atol=1e-5)
        out = torch.empty_like(pair[1])
        with torch.no_grad():
            _, states = wt.causal_conv1d(x, weight, bias, None, initial, True, out, activation)
        assert states is out and torch.equal(out, pair[1])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("form", [False, True], ids=["channels first", "channels last"])
def test_sequences(form, dtype, torch_device):
    x, weight, bias, _ = drawn(torch.float32, torch_device, 2, 5, 9, 4, form)
    ids = torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2, 2], [3, 4, 4, 4, 4, 4, -1, -1, -1]], device=torch_device, dtype=dtype)
    for activation in (None, "silu"):
        tensors, options = [x, weight, bias], {"seq_idx": ids, "activation": activation}
        found, dy = results(lambda *t: wt.causal_conv1d(*t, **options), tensors)
        exact, _ = results(lambda x, w, b: theirs(x, w, b, **options), tensors, dy, torch.float64)
        close(found, exact, torch.float32)


def test_other_strides(torch_device):
    x, weight = torch.randn(2, 9, 6, device=torch_device), torch.randn(6, 3, device=torch_device)
    for view in (lambda t: t.mT[:, :, ::2], lambda t: t.permute(1, 2, 0), lambda t: t[:, :, :1].expand(-1, -1, 6).mT):
        (given,), (wide,) = leaves([x]), leaves([x], torch.float64)
        y, expected = wt.causal_conv1d(view(given), weight.mT.contiguous().mT), theirs(view(wide), weight.double())
        y.sum().backward(), expected.sum().backward()
        close([y.detach(), given.grad], [expected.detach(), wide.grad], torch.float32)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", [False, True], ids=["channels first", "channels last"])
def test_update(form, dtype, torch_device):
    """Steps of one or a few positions are what whole samples are."""
    x, weight, bias, states = drawn(dtype, torch_device, 2, 5, 7, 4, form)
    y, final = wt.causal_conv1d(x, weight, bias, None, states, True, activation="silu")
    kept, parts = states.clone(), []
    for begin, end in ((0, 1), (1, 2), (2, 4), (4, 7)):
        step = x[..., begin] if end - begin == 1 else x[..., begin:end]
        parts.append(wt.causal_conv1d_update(step, kept, weight, bias, "swish"))
        assert parts[-1].shape == step.shape
        parts[-1] = parts[-1].reshape(2, 5, end - begin)
    assert torch.equal(kept, final) and kept.stride() == states.stride()
    close([torch.cat(parts, -1)], [y.double()], dtype)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("form", [False, True], ids=["channels first", "channels last"])
def test_compiled(form, dynamic, torch_device):
    """The same values and strides, and of all lengths from one graph if it is asked for."""
    def function(x, weight, bias, states):
        y, final = wt.causal_conv1d(x, weight, bias, None, states, True, activation="silu")
        return torch.cat([y, final, wt.causal_conv1d(y, weight)], -1)

    compiled = compile_anew(function, dynamic=dynamic)
    for length in (5, 6) if dynamic else (5,):
        tensors = drawn(torch.float32, torch_device, 2, 4, length, 3, form)
        found, dy = results(compiled, tensors)
        for a, b in zip(found, results(function, tensors, dy)[0]):
            assert torch.allclose(a, b) and a.stride() == b.stride()


@pytest.mark.parametrize("form", [False, True], ids=["channels first", "channels last"])
def test_compiled_update(form, torch_device):
    x, weight, bias, states = drawn(torch.float32, torch_device, 2, 4, 1, 3, form)
    function = lambda x, states: wt.causal_conv1d_update(x.squeeze(-1), states, weight, bias, "silu") * 2  # noqa: E731
    kept, other = states.clone(), states.clone()
    for _ in range(2):
        assert torch.equal(compile_anew(function)(x, kept), function(x, other)) and torch.equal(kept, other)
    assert not torch.equal(kept, states)


@pytest.mark.parametrize("form", [False, True], ids=["channels first", "channels last"])
def test_opcheck(form, torch_device):
    x, weight, bias, states = drawn(torch.float32, torch_device, 2, 4, 5, 3, form)
    ids = torch.zeros(2, 5, dtype=torch.int32, device=torch_device)
    ops = torch.ops.warpwright
    for name, rest in (
        ("causal_conv1d", (bias, states, None)), ("causal_conv1d", (None, None, ids)), ("causal_conv1d_with_states", (bias, None, None)),
        ("causal_conv1d_with_states", (None, states, None)),
    ):  # fmt: skip
        given = [t if t is None or t is ids else t.detach().requires_grad_() for t in (x, weight, *rest)]
        torch.library.opcheck(getattr(ops, name).default, (*given, "silu", form))
    torch.library.opcheck(ops.causal_conv1d_update.default, (x, states, weight, bias, "silu", form))


def test_gradcheck(torch_device):
    tensors = [t.requires_grad_() for t in drawn(torch.float64, torch_device, 1, 2, 4, 3)]
    function = lambda x, w, b, s: wt.causal_conv1d(x, w, b, None, s, True, activation="silu")  # noqa: E731
    assert torch.autograd.gradcheck(function, tensors)


def test_transforms(torch_device):
    x, weight, bias, states = drawn(torch.float32, torch_device, 3, 4, 5, 3)
    loss = lambda f: lambda w, x: f(x[None], w, bias, activation="silu").square().sum()  # noqa: E731
    found, expected = (
        torch.func.vmap(torch.func.grad(loss(f)), (None, 0))(weight, x) for f in (wt.causal_conv1d, theirs)
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_part_of_what_a_projection_makes(torch_device):
    """Channels that are last beside others: the result has them last, as x would alone."""
    whole, weight = torch.randn(2, 9, 12, device=torch_device), torch.randn(6, 3, device=torch_device)
    found, dy = results(lambda whole, w: wt.causal_conv1d(whole.mT.chunk(2, 1)[1], w), [whole, weight])
    exact, _ = results(lambda whole, w: theirs(whole.mT.chunk(2, 1)[1], w), [whole, weight], dy, torch.float64)
    close(found, exact, torch.float32)
    assert found[0].mT.is_contiguous()


def test_update_of_longer_states(torch_device):
    """The last positions of them are read, and all move on."""
    x, weight, bias, _ = drawn(torch.float32, torch_device, 2, 5, 7, 3)
    for longer in (3, 5):
        states = torch.randn(2, 5, longer, device=torch_device)
        kept, parts = states.clone(), []
        y = theirs(x.double(), weight.double(), bias.double(), states[..., -2:].double(), activation="silu")
        for begin, end in ((0, 1), (1, 3), (3, 7)):
            step = x[..., begin] if end - begin == 1 else x[..., begin:end]
            parts.append(wt.causal_conv1d_update(step, kept, weight, bias, "silu"))
            assert parts[-1].shape == step.shape
            parts[-1] = parts[-1].reshape(2, 5, -1)
        close([torch.cat(parts, -1)], [y], torch.float32)
        assert torch.equal(kept, torch.cat([states, x], -1)[..., -longer:])


def test_autocast(torch_device):
    x, weight, bias, states = drawn(torch.float32, torch_device)
    with torch.autocast(torch_device, dtype=torch.bfloat16):
        y, final = wt.causal_conv1d(x, weight.requires_grad_(), bias, None, states, True)
    assert y.dtype == final.dtype == torch.bfloat16
    y.float().sum().backward()
    assert weight.grad.dtype == torch.float32
    exact = theirs(*(t.detach().double() for t in (x, weight, bias, states)))
    assert float((y.detach().double() - exact).norm() / exact.norm()) < 2e-2


def test_what_has_no_gradient(torch_device):
    x, weight, bias, states = drawn(torch.float32, torch_device)
    with pytest.raises(RuntimeError, match=r"causal_conv1d_update has no gradient: call it under torch.no_grad\(\)"):
        wt.causal_conv1d_update(x, states, weight.requires_grad_())
    with torch.no_grad():
        assert wt.causal_conv1d_update(x, states, weight).shape == x.shape
    with pytest.raises(RuntimeError, match="no second derivative"):
        (dweight,) = torch.autograd.grad(wt.causal_conv1d(x, weight).square().sum(), weight, create_graph=True)
        dweight.sum().backward()


X, WEIGHT, STATES = torch.ones(2, 4, 5), torch.ones(4, 3), torch.ones(2, 4, 2)
IDS = torch.zeros(2, 5, dtype=torch.int32)
# Arguments, options, error, argument.
REFUSED = [
    ((X[0], WEIGHT), {}, ww.ShapeError, "x"),
    ((X, WEIGHT[:3]), {}, ww.ShapeError, "weight"),
    ((X, WEIGHT[0]), {}, ww.ShapeError, "weight"),
    ((X, WEIGHT.double()), {}, ww.DtypeError, "weight"),
    ((X.int(), WEIGHT.int()), {}, ww.DtypeError, "x"),
    ((X, torch.ones(4, 5)), {}, ww.ShapeError, "weight"),
    ((X, torch.ones(4, 1)), {}, ww.ShapeError, "weight"),
    ((X, WEIGHT, torch.ones(3)), {}, ww.ShapeError, "bias"),
    ((X, WEIGHT), {"activation": "gelu"}, ww.ParameterError, "activation"),
    ((X, WEIGHT), {"initial_states": torch.ones(2, 4, 3)}, ww.ShapeError, "initial_states"),
    ((X, WEIGHT), {"initial_states": STATES.double()}, ww.DtypeError, "initial_states"),
    ((X, WEIGHT), {"seq_idx": IDS[:1]}, ww.ShapeError, "seq_idx"),
    ((X, WEIGHT), {"seq_idx": IDS.float()}, ww.DtypeError, "seq_idx"),
    ((X, WEIGHT), {"seq_idx": IDS, "initial_states": STATES}, ww.ArgumentError, "seq_idx"),
    ((X[..., :0], WEIGHT), {"return_final_states": True}, ww.ShapeError, "x"),
    ((X, WEIGHT), {"final_states_out": STATES}, ww.ParameterError, "return_final_states"),
]


@pytest.mark.parametrize("arguments, options, error, argument", REFUSED)
def test_what_is_refused(arguments, options, error, argument, torch_device):
    to = lambda t: t.to(torch_device) if torch.is_tensor(t) else t  # noqa: E731
    with pytest.raises(error) as info:
        wt.causal_conv1d(*map(to, arguments), **{k: to(v) for k, v in options.items()})
    e = info.value
    assert (e.op, e.argument) == ("causal_conv1d", argument) and str(e).startswith(f"causal_conv1d: {argument} ")


def test_what_updates_refuse(torch_device):
    x, weight, states = (t.to(torch_device) for t in (X, WEIGHT, STATES))
    for arguments, error, argument in (
        ((x[0, 0], states, weight), ww.ShapeError, "x"),
        ((x, states[..., :1], weight), ww.ShapeError, "conv_state"),
        ((x, states.double(), weight), ww.DtypeError, "conv_state"),
        ((x, torch.ones(2, 4, 4, device=torch_device)[..., ::2], weight), ww.LayoutError, "conv_state"),
        ((x, states, weight, None, "relu"), ww.ParameterError, "activation"),
        ((x, torch.ones(2, 3, 4, device=torch_device), weight), ww.ShapeError, "conv_state"),
        ((x, torch.ones(2, 4, 4, device=torch_device).double(), weight), ww.DtypeError, "conv_state"),
        ((x, torch.ones(2, 4, 4, device=torch_device), weight, weight), ww.ShapeError, "bias"),
    ):
        with pytest.raises(error) as info:
            wt.causal_conv1d_update(*arguments)
        assert (info.value.op, info.value.argument) == ("causal_conv1d_update", argument)
    with pytest.raises(ww.DtypeError, match="conv_state is f64, expected f32"):
        wt.causal_conv1d_update(x, torch.ones(2, 4, 4, device=torch_device).double(), weight)
    with pytest.raises(ww.ShapeError, match=r"conv_state has shape \[2, 4, 1\], expected \[2, 4, 2\]"):
        wt.causal_conv1d_update(x, states[..., :1].contiguous(), weight)
