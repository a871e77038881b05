"""`warpwright.torch`'s recurrent nets against `torch.nn`, in the emulator and, where there is one, on the GPU."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import warpwright.torch as wt  # noqa: E402
from warpwright.torch import nn  # noqa: E402

NETS = {"LSTM": {}, "GRU": {}, "RNN": {"nonlinearity": "relu"}}


@pytest.fixture(params=["cpu", "cuda"])
def device(request):
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("PyTorch sees no GPU")
    torch.manual_seed(11)
    return request.param


def pair(kind, device, *args, **kwargs):
    """A module of ours with the parameters of PyTorch's, which is on the CPU, the judge."""
    theirs = getattr(torch.nn, kind)(*args, dtype=torch.float64, **kwargs)
    ours = getattr(nn, kind)(*args, dtype=torch.float64, **kwargs).to(device)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def flat(result):
    """All tensors of a result."""
    if isinstance(result, torch.nn.utils.rnn.PackedSequence):
        return [result.data]
    if isinstance(result, torch.Tensor):
        return [result]
    return [t for part in result for t in flat(part)]


def compare(ours, theirs, device, x, hx, call=None):
    """Results and all gradients of both modules."""
    call = call or (lambda module, x, hx: module(x, hx))

    def leaves(where):
        moved = [t.detach().to(where).requires_grad_() for t in (x, *hx)]
        return moved, (None if not hx else tuple(moved[1:]) if len(hx) > 1 else moved[1])

    results, gradients = [], []
    dys = None
    for module, where in ((theirs, "cpu"), (ours, device)):
        tensors, state = leaves(where)
        found = flat(call(module, tensors[0], state))
        dys = dys or [torch.randn_like(f) for f in found]
        wanted = [*tensors, *module.parameters()]
        gradients.append(torch.autograd.grad(found, wanted, [d.to(where) for d in dys], allow_unused=True))
        results.append(found)
    for a, b in zip(results[1], results[0]):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-10, atol=1e-10)
    for a, b in zip(gradients[1], gradients[0]):
        torch.testing.assert_close(None if a is None else a.cpu(), b, rtol=1e-9, atol=1e-9)


def states(kind, shape, given):
    count = (2 if kind.startswith("LSTM") else 1) if given else 0
    return [torch.randn(shape, dtype=torch.float64) for _ in range(count)]


@pytest.mark.parametrize("seed", range(100))
def test_random_configurations(device, seed):
    # The emulator takes seconds where the GPU takes none.
    if device == "cpu" and seed >= 16:
        pytest.skip("on a GPU only")
    chance = random.Random(seed)
    kind = chance.choice(list(NETS))
    large = device == "cuda"
    inputs, hidden = (chance.randint(1, 70 if large else 6) for _ in range(2))
    layers, both = chance.randint(1, 3), chance.random() < 0.4
    options = {"num_layers": layers, "bidirectional": both, "bias": chance.random() < 0.8,
               "batch_first": chance.random() < 0.5}
    options |= NETS[kind] if chance.random() < 0.5 else {}
    projection = chance.randint(1, hidden - 1) if kind == "LSTM" and hidden > 1 and chance.random() < 0.4 else 0
    options |= {"proj_size": projection} if projection else {}
    ours, theirs = pair(kind, device, inputs, hidden, **options)
    steps, batch = chance.randint(1, 40 if large else 4), chance.randint(1, 9 if large else 3)
    form = chance.choice(["batched", "lone", "packed"])
    shape = (batch, steps, inputs) if options["batch_first"] else (steps, batch, inputs)
    x = torch.randn((steps, inputs) if form == "lone" else shape, dtype=torch.float64)
    ends = [layers * (1 + both)] + ([] if form == "lone" else [batch])
    hx = states(kind, (*ends, hidden), chance.random() < 0.5)
    if projection and hx:
        hx[0] = hx[0][..., :projection].clone()
    if form != "packed":
        compare(ours, theirs, device, x, hx)
        return
    lengths = torch.tensor([chance.randint(1, steps) for _ in range(batch)])

    def packed(module, x, hx):
        from torch.nn.utils.rnn import pack_padded_sequence

        return module(pack_padded_sequence(x, lengths, options["batch_first"], enforce_sorted=False), hx)

    compare(ours, theirs, device, x, hx, packed)


@pytest.mark.parametrize("kind", ["LSTMCell", "GRUCell", "RNNCell"])
@pytest.mark.parametrize("bias", [True, False])
def test_cells(device, kind, bias):
    ours, theirs = pair(kind, device, 5, 4, bias=bias)
    compare(ours, theirs, device, torch.randn(3, 5, dtype=torch.float64), states(kind, (3, 4), True))
    compare(ours, theirs, device, torch.randn(5, dtype=torch.float64), states(kind, (4,), False))


@pytest.mark.parametrize("kind", NETS)
def test_rounded_factors(device, kind):
    theirs = getattr(torch.nn, kind)(24, 16, 2, dtype=torch.float64)
    x, dy = torch.randn(5, 6, 24, dtype=torch.float64), torch.randn(5, 6, 16, dtype=torch.float64)

    def run(module, where, dtype):
        module = module.to(where, dtype)
        tensor = x.to(where, dtype).requires_grad_()
        y = module(tensor)[0]
        gradients = torch.autograd.grad(y, [tensor, *module.parameters()], dy.to(where, dtype))
        return [t.detach().double().cpu() for t in (y, *gradients)]

    exact, errors = run(theirs, "cpu", torch.float64), {}
    for precision in ("full", "tf32"):
        ours = getattr(nn, kind)(24, 16, 2, precision=precision)
        ours.load_state_dict(theirs.state_dict())
        found = run(ours, device, torch.float32)
        errors[precision] = [float((a - e).norm() / e.norm()) for a, e in zip(found, exact)]
    assert max(errors["full"]) < 3e-6
    assert min(errors["tf32"]) > 1e-5 and max(errors["tf32"]) < 7.5e-4


def test_dropout_between_layers(device):
    x = torch.randn(3, 2, 5, dtype=torch.float64)
    # Everything is dropped: what is left of the second layer is known.
    ours, theirs = pair("GRU", device, 5, 4, num_layers=2, bidirectional=True, dropout=1.0)
    compare(ours, theirs, device, x, states("GRU", (4, 2, 4), True))
    compare(ours.eval(), theirs.eval(), device, x, [])
    ours = nn.LSTM(5, 64, num_layers=2, dropout=0.5, device=device)
    first, second = (ours(x.float().to(device))[0] for _ in range(2))
    assert not torch.equal(first, second)
    torch.manual_seed(5)
    first = ours(x.float().to(device))[0]
    torch.manual_seed(5)
    assert torch.equal(first, ours(x.float().to(device))[0])


def test_what_is_dropped(device):
    """Units that give one in every layer show which of them the next one reads."""
    torch.manual_seed(7)
    of = lambda *shape: torch.zeros(*shape, device=device, dtype=torch.float64)  # noqa: E731
    hidden, p, random = 64, 0.25, torch.tensor([3, 4], device=device)
    # The second layer hands its inputs on.
    first = [of(hidden, 1), of(hidden, hidden), of(hidden) + 1.0, of(hidden)]
    second = [torch.eye(hidden, device=device, dtype=torch.float64), of(hidden, hidden), of(hidden), of(hidden)]
    first[0].requires_grad_()
    x = torch.ones(40, 2, 1, device=device, dtype=torch.float64)
    run = lambda r: wt.rnn(x, [first, second], nonlinearity="relu", dropout_p=p, random=r)[0]  # noqa: E731
    y = run(random)
    torch.testing.assert_close(y.unique().cpu(), torch.tensor([0.0, 1 / (1 - p)], dtype=torch.float64))
    assert abs((y > 0).double().mean().item() - (1 - p)) < 0.03
    assert torch.equal(y, run(random)) and not torch.equal(y, run(random + 1))
    # Its gradient is what was kept.
    y.sum().backward()
    torch.testing.assert_close(first[0].grad[:, 0], y.detach().sum((0, 1)))


def test_operators_pass_opcheck(device):
    for kind, c0 in (("lstm", True), ("gru", False), ("rnn_relu", False)):
        gates = {"lstm": 4, "gru": 3}.get(kind, 1)
        of = lambda *shape: torch.randn(*shape, device=device, requires_grad=True)  # noqa: E731
        weights = []
        for columns in (5, 5, 8, 8):
            weights += [of(gates * 4, columns), of(gates * 4, 4), of(gates * 4), of(gates * 4)]
        # What the backward pass is left is compared too, and nothing is written there for places past the end of a sequence,
        # and between its parts: whole sequences, and parts of multiples of 16 bytes.
        lengths = torch.tensor([3, 3], dtype=torch.int32, device=device)
        x, state = of(3, 2, 5), [of(4, 2, 4), of(4, 2, 4) if c0 else None]
        arguments = (x, weights, *state, lengths, None, kind, 2, False, True, False, 0.0, "full", True)
        torch.library.opcheck(torch.ops.warpwright.recurrent.default, arguments)
    weights = [of(16, 5), of(16, 4), of(4, 4)]
    arguments = (of(4, 2, 5), weights, of(1, 2, 4), of(1, 2, 4), None, None, "lstm", 0, True, False, False, 0.0, "full", True)
    torch.library.opcheck(torch.ops.warpwright.recurrent.default, arguments)


def test_gradcheck(device):
    of = lambda *shape: torch.randn(*shape, device=device, dtype=torch.float64, requires_grad=True)  # noqa: E731
    weights = [of(8, 3), of(8, 2), of(8), of(8)]
    run = lambda x, h0, c0, *w: wt.lstm(x, [w], h0, c0)  # noqa: E731
    assert torch.autograd.gradcheck(run, (of(3, 1, 3), of(1, 1, 2), of(1, 1, 2), *weights))


@pytest.mark.parametrize("projection", [0, 3])
def test_compiled_whole(device, projection):
    ours, theirs = pair("LSTM", device, 5, 4, batch_first=True, proj_size=projection)
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    compare(compiled, theirs, device, torch.randn(2, 3, 5, dtype=torch.float64), [])


def test_autocast_and_inference(device):
    ours = nn.LSTM(8, 16, device=device)
    x = torch.randn(3, 2, 8, device=device)
    with torch.autocast(device, torch.bfloat16):
        y, (h, c) = ours(x)
    assert y.dtype == h.dtype == c.dtype == torch.bfloat16
    y.float().sum().backward()
    assert ours.weight_ih_l0.grad.dtype == torch.float32
    expected = ours(x)[0]
    torch.testing.assert_close(y.float(), expected, rtol=2e-2, atol=2e-2)
    with torch.no_grad():
        torch.testing.assert_close(ours(x)[0], expected)


def test_what_is_refused(device):
    with pytest.raises((RuntimeError, ValueError), match="cell size"):
        nn.LSTM(4, 4, proj_size=2, device=device)(torch.randn(2, 1, 4, device=device), (torch.randn(1, 1, 2),) * 2)
    ours = nn.GRU(4, 3, device=device)
    x = torch.randn(2, 1, 5, device=device)
    with pytest.raises((RuntimeError, ValueError), match="5"):
        ours(x)
    with pytest.raises((RuntimeError, ValueError)):
        ours(x[..., :4], torch.randn(1, 2, 3, device=device))
    with pytest.raises(ValueError, match="2D or 3D"):
        ours(x[None])
    with pytest.raises(ValueError, match="nonlinearity"):
        wt.rnn(x, [(x, x)], nonlinearity="sine")
    with pytest.raises(ValueError, match="empty"):
        wt.gru(x, [])
