"""`warpwright.torch.optim.AdamW8bit` and `Adam8bit`, held against their definition in f64 and, where it is installed, against bitsandbytes."""

from __future__ import annotations

import copy
import io

import numpy as np
import pytest

import warpwright as ww

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import warpwright.torch as wt  # noqa: E402

SHAPES = [(64, 80), (5, 7), (4096,), (3, 40, 50), (0, 3)]
QUANT = "__bnb_optimizer_quant_state__"


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(4)


def dynamic_map(signed):
    """From its definition: the means of neighbouring cuts of [0.1, 1] in every decade, and 0 and 1."""
    found = [torch.tensor([0.0, 1.0])]
    for i in range(7):
        cuts = torch.linspace(0.1, 1, 2 ** (i if signed else i + 1) + 1, dtype=torch.float32)
        means = 10 ** (i - 6) * ((cuts[:-1] + cuts[1:]) / 2.0)
        found += [means, -means] if signed else [means]
    return torch.cat(found).sort().values


def dequantized(codes, absmax, signed):
    values = dynamic_map(signed).to(codes.device)[codes.flatten().long()]
    return (values.double() * absmax.double().repeat_interleave(256)[: codes.numel()]).reshape(codes.shape)


def quantized(x, signed):
    """Codes of a moment in f64, and how near to a threshold its place in the map is."""
    flat = torch.nn.functional.pad(x.flatten(), (0, -x.numel() % 256)).reshape(-1, 256)
    absmax = flat.abs().amax(1, keepdim=True)
    t = (flat / absmax.clamp(min=1e-38)).flatten()[: x.numel()]
    values = dynamic_map(signed).to(x.device).double()
    bounds = (values[1:] + values[:-1]) / 2
    codes = torch.bucketize(t, bounds)
    if signed:
        codes = torch.where((t < 0) & (codes == 127), 126, codes)
    margin = (t[:, None] - bounds[None]).abs().amin(1) if x.numel() else t
    return codes.reshape(x.shape), absmax.flatten(), margin.reshape(x.shape)


def expected_step(p, grad, state, count, lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2):
    """A step in f64 from a state as we keep it: the parameter and both moments."""
    if state["state1"].dtype == torch.uint8:
        m, v = (dequantized(state[f"state{i}"], state[f"absmax{i}"], i == 1) for i in (1, 2))
    else:
        m, v = state["state1"].double(), state["state2"].double()
    g = grad.double()
    m, v = betas[0] * m + (1 - betas[0]) * g, betas[1] * v + (1 - betas[1]) * g * g
    root = (v / (1 - betas[1] ** count)).sqrt() + eps
    return p.double() * (1 - lr * weight_decay) - lr / (1 - betas[0] ** count) * m / root, m, v


def parameters(dtype, device, shapes=SHAPES):
    return [torch.nn.Parameter(torch.randn(shape, device=device).to(dtype)) for shape in shapes]


def give(params, scale=1.0):
    for p in params:
        p.grad = (scale * torch.randn(p.shape, device=p.device)).to(p.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["AdamW8bit", "Adam8bit"])
def test_steps(kind, dtype, torch_device):
    params = parameters(dtype, torch_device)
    ours = getattr(wt.optim, kind)(params, lr=1e-2, **({"weight_decay": 0.1} if kind == "AdamW8bit" else {}))
    for count in range(1, 6):
        give(params)
        before = [(p.detach().clone(), copy.deepcopy(ours.state.get(p))) for p in params]
        ours.step()
        for p, (old, state) in zip(params, before):
            new = ours.state[p]
            eight_bit = p.numel() >= 4096
            assert new["state1"].dtype == new["state2"].dtype == (torch.uint8 if eight_bit else torch.float32)
            if state is None:
                state = {name: torch.zeros_like(value) for name, value in new.items()}
            decay = 0.1 if kind == "AdamW8bit" else 0.0
            want, *moments = expected_step(old, p.grad, state, count, 1e-2, weight_decay=decay)
            eps = {torch.float32: 2e-6, torch.float16: 6e-4, torch.bfloat16: 5e-3}[dtype]
            assert float((p.detach().double() - want).norm()) <= eps * float(want.norm())
            assert float(new["step"]) == count
            if not eight_bit:
                continue
            for i, moment in zip((1, 2), moments):
                codes, absmax, margin = quantized(moment, i == 1)
                assert torch.allclose(new[f"absmax{i}"].double(), absmax, rtol=1e-6)
                # Roundings of f32 decide where the threshold is next to the moment.
                differ = new[f"state{i}"].long() != codes
                assert not (differ & (margin > 2e-7)).any()
                assert ((new[f"state{i}"].long() - codes).abs() <= 1).all()


def test_a_hundred_steps_go_where_adam_goes(torch_device):
    """A quadratic valley: moments of 8 bits lead to the same place."""
    target = torch.linspace(-1, 1, 4096, device=torch_device)
    found = []
    for kind in (wt.optim.AdamW8bit, torch.optim.AdamW):
        p = torch.nn.Parameter(torch.zeros(4096, device=torch_device))
        optimizer = kind([p], lr=3e-2, weight_decay=0.0)
        for _ in range(100):
            optimizer.zero_grad()
            (p - target).square().sum().backward()
            optimizer.step()
        found.append(p.detach())
    assert float((found[0] - target).abs().max()) < 0.1
    assert float((found[0] - found[1]).norm() / found[1].norm()) < 0.05


def test_groups_rates_and_missing_gradients(torch_device):
    params = parameters(torch.float32, torch_device)
    rate = torch.tensor(1e-2, device=torch_device)
    groups = [{"params": params[:1], "weight_decay": 0.5}, {"params": params[1:], "lr": rate, "betas": (0.8, 0.9)}]
    ours = wt.optim.AdamW8bit(groups, lr=1e-3, weight_decay=0.0)
    for number in range(3):
        give(params)
        if number == 1:
            params[2].grad = None
        old = [(p.detach().clone(), copy.deepcopy(ours.state.get(p))) for p in params]
        rate.fill_(0.1 / (number + 1))
        ours.step()
        for i, (p, (before, state)) in enumerate(zip(params, old)):
            if p.grad is None:
                assert torch.equal(p, before)
                continue
            count = number + 1 - (i == 2 and number == 2)
            state = state or {n: torch.zeros_like(v) for n, v in ours.state[p].items()}
            lr, betas, decay = (1e-3, (0.9, 0.999), 0.5) if i == 0 else (float(rate), (0.8, 0.9), 0.0)
            want, *_ = expected_step(before, p.grad, state, count, lr, betas, weight_decay=decay)
            assert float((p.detach().double() - want).norm()) <= 2e-6 * float(want.norm())
            assert float(ours.state[p]["step"]) == count


def test_gradient_scaler(torch_device):
    p = torch.nn.Parameter(torch.ones(5000, device=torch_device))
    ours = wt.optim.AdamW8bit([p], lr=0.1)
    scaler = torch.amp.GradScaler(torch_device, init_scale=8.0)
    states = []
    for factor in (1.0, float("inf"), 2.0):
        ours.zero_grad()
        scaler.scale((p * factor).square().sum()).backward()
        scaler.step(ours)
        scaler.update()
        states.append({name: value.clone() for name, value in ours.state[p].items()})
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert float(states[2]["step"]) == 2 and bool(p.isfinite().all())
    # The gradient was 2 p before it was scaled.
    assert torch.allclose(states[0]["absmax1"], torch.full((20,), 0.2, device=torch_device), rtol=1e-6)


def test_gradients_that_are_not_finite_count_as_0(torch_device):
    p = torch.nn.Parameter(torch.randn(4096 + 100, device=torch_device))
    ours = wt.optim.AdamW8bit([p], lr=0.1, weight_decay=0.0)
    give([p])
    p.grad[::7] = float("nan")
    p.grad[3::7] = float("-inf")
    before = p.detach().clone()
    ours.step()
    assert bool(p.isfinite().all()) and torch.equal(p[::7], before[::7])
    assert bool(ours.state[p]["absmax1"].isfinite().all()) and bool(ours.state[p]["absmax2"].isfinite().all())
    assert bool((ours.state[p]["state1"][3::7] == 127).all())


def test_states_are_saved_and_loaded(torch_device):
    params = parameters(torch.bfloat16, torch_device)
    ours = wt.optim.AdamW8bit(params, lr=1e-2)
    give(params)
    ours.step()
    file = io.BytesIO()
    torch.save(ours.state_dict(), file)
    file.seek(0)
    saved = torch.load(file)
    kept = saved["state"][0]
    assert kept["step"] == 1 and isinstance(kept["step"], int)
    names = {"state1", "state2", "absmax1", "absmax2", "qmap1", "qmap2"}
    assert kept[QUANT].keys() == names and saved["state"][1][QUANT].keys() == {"state1", "state2"}
    assert torch.equal(kept[QUANT]["qmap1"].cpu(), dynamic_map(True))
    assert torch.equal(kept[QUANT]["qmap2"].cpu(), dynamic_map(False))
    # As bitsandbytes saved it before it wrapped it, too.
    flat = {n: {**{k: v for k, v in x.items() if k != QUANT}, **x[QUANT]} for n, x in saved["state"].items()}
    for state in (saved["state"], flat):
        twins = [torch.nn.Parameter(p.detach().clone()) for p in params]
        other = wt.optim.AdamW8bit(twins, lr=5.0)
        other.load_state_dict({**saved, "state": state})
        copied_params, copied = copy.deepcopy((twins, other))
        give(params)
        now = [p.detach().clone() for p in params]
        ours_again = copy.deepcopy((params, ours))
        for p, q, r in zip(params, twins, copied_params):
            q.grad, r.grad = p.grad.clone(), p.grad.clone()
        other.step(), copied.step()
        for p, s in zip(ours_again[0], params):
            p.grad = s.grad
        ours_again[1].step()
        for p, q, r in zip(ours_again[0], twins, copied_params):
            assert torch.equal(p, q) and torch.equal(q, r)
            for name, value in other.state[q].items():
                assert torch.equal(value, ours_again[1].state[p][name]), name
        assert all(torch.equal(p, before) for p, before in zip(params, now))
        assert len(other._batches(other.param_groups[0])) == 1 and copied.min_8bit_size == 4096


def test_states_that_do_not_fit_are_refused(torch_device):
    p = torch.nn.Parameter(torch.ones(5000, device=torch_device))
    ours = wt.optim.AdamW8bit([p])
    give([p])
    ours.step()
    for name, value in [
        ("state1", torch.zeros(4999, dtype=torch.uint8)),
        ("state2", torch.zeros(5000)),
        ("absmax1", torch.zeros(19)),
        ("qmap2", dynamic_map(True)),
        ("absmax2", None),
    ]:
        saved = ours.state_dict()
        saved["state"][0][QUANT][name] = value
        with pytest.raises(ValueError, match=f"{name} of a parameter"):
            ours.load_state_dict(saved)
    assert float(ours.state[p]["step"]) == 1


@pytest.mark.parametrize("options", [{"amsgrad": True}, {"optim_bits": 8}, {"is_paged": True}, {"lr": -1.0}, {"betas": (1.0, 0.9)}])
def test_what_is_refused(options):
    with pytest.raises(ValueError, match="AdamW8bit: .*expected"):
        wt.optim.AdamW8bit([torch.nn.Parameter(torch.ones(3))], **options)


def test_a_step_in_a_graph(cuda):
    rate = torch.tensor(0.1, device="cuda")
    params = parameters(torch.float32, "cuda")
    ours = wt.optim.AdamW8bit(params, lr=rate)
    give(params)
    ours.step()
    other_params, other = copy.deepcopy((params, ours))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ours.step()
    for p, q in zip(params, other_params):
        q.grad = p.grad
    for lr in (0.1, 0.01):
        rate.fill_(lr)
        other.param_groups[0]["lr"] = lr
        graph.replay(), other.step()
    assert all(torch.equal(p, q) for p, q in zip(params, other_params))


def test_against_bitsandbytes(torch_device):
    """The same codes but where roundings decide, and states that go both ways."""
    bnb = pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    params = parameters(torch.float32, torch_device, SHAPES[:-1])
    others = [torch.nn.Parameter(p.detach().clone()) for p in params]
    ours, theirs = wt.optim.AdamW8bit(params, lr=1e-2), bnb.optim.AdamW8bit(others, lr=1e-2)

    def same(mine, other, signed, exact=torch_device == "cuda"):
        """Codes but for steps of roundings. Its CPU code finds codes in a table of 2^16 entries, which small numbers share."""
        found = [dynamic_map(signed).to(codes.device)[codes.long()] for codes in (mine, other)]
        assert float((mine != other).float().mean()) < (0.02 if exact else 0.15)
        assert float((found[0] - found[1]).abs().max()) < 0.02

    def step():
        give(params)
        for p, q in zip(params, others):
            q.grad = p.grad.clone()
        ours.step(), theirs.step()
        for p, q in zip(params, others):
            assert float((p - q).detach().norm() / q.detach().norm()) < 2e-4
            for i in "12":
                mine, other = ours.state[p], theirs.state[q]
                if mine["state" + i].dtype == torch.uint8:
                    same(mine["state" + i], other["state" + i], i == "1")
                    assert torch.allclose(mine["absmax" + i], other["absmax" + i], rtol=2e-2)

    for _ in range(3):
        step()
    saved, other = copy.deepcopy(ours.state_dict()), copy.deepcopy(theirs.state_dict())
    ours.load_state_dict(other), theirs.load_state_dict(saved)
    assert all(int(theirs.state[q]["step"]) == 3 == int(ours.state[p]["step"]) for p, q in zip(params, others))
    for p, q in zip(params, others):
        q.data.copy_(p.data)
    step()
    x = torch.randn(5000, device=torch_device)
    for signed in (True, False):
        values = x if signed else x.abs()
        code = dynamic_map(signed).to(torch_device)
        codes, state = bnb.functional.quantize_blockwise(values, code=code, blocksize=256)
        mine, absmax = ww.quantize_dynamic(values, signed)
        assert torch.equal(absmax, state.absmax)
        same(mine, codes, signed)
        back = ww.dequantize_dynamic(codes, state.absmax, torch.float32, signed)
        assert torch.equal(back, bnb.functional.dequantize_blockwise(codes, state))


def test_numpy():
    """The functions on arrays: every code, thresholds, and parts of blocks."""
    for signed in (True, False):
        values = dynamic_map(signed).numpy()
        codes, absmax = ww.quantize_dynamic(np.concatenate([values, values[:100] * np.float32(0.5), [2.0]]).astype(np.float32), signed)
        assert codes.dtype == np.uint8 and absmax.shape == (2,) and absmax.tolist() == [1.0, 2.0]
        assert codes[:256].tolist() == list(range(256))
        back = ww.dequantize_dynamic(codes, absmax, "float32", signed)
        assert np.array_equal(back[:256], values) and back[-1] == 2.0
    codes, absmax = ww.quantize_dynamic(np.ones((3, 2000), np.float16), block_size=4096)
    assert codes.shape == (3, 2000) and absmax.tolist() == [1.0, 1.0] and (codes == 255).all()
    with pytest.raises(ww.Error, match="block_size"):
        ww.quantize_dynamic(np.ones(3, np.float32), block_size=100)
    with pytest.raises(ww.Error, match="absmax"):
        ww.dequantize_dynamic(codes, np.ones(3, np.float32), "float32", block_size=4096)
