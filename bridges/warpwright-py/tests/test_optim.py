"""`warpwright.torch.optim`, `clip_grad_norm_` and the native steps, held against those of PyTorch in f64."""

from __future__ import annotations

import copy
import io

import numpy as np
import pytest

import warpwright as ww

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import warpwright.torch as wt  # noqa: E402

OPTIMIZERS = {
    "adamw": ("AdamW", {"lr": 1e-2, "weight_decay": 0.1}),
    "adamw amsgrad": ("AdamW", {"lr": 1e-2, "amsgrad": True, "betas": (0.8, 0.9), "eps": 1e-6}),
    "adam": ("Adam", {"lr": 1e-2, "weight_decay": 0.1, "maximize": True}),
    "sgd": ("SGD", {"lr": 1e-1, "weight_decay": 0.1}),
    "sgd momentum": ("SGD", {"lr": 1e-1, "momentum": 0.9, "dampening": 0.3}),
    "sgd nesterov": ("SGD", {"lr": 1e-1, "momentum": 0.9, "nesterov": True, "maximize": True}),
}
SHAPES = [(5, 7), (3,), (), (2, 3, 4, 4), (0, 3)]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(3)


def parameters(dtype, device):
    found = [torch.nn.Parameter(torch.randn(shape, device=device).to(dtype)) for shape in SHAPES]
    # One of images, whose channels are last.
    found[3].data = found[3].data.to(memory_format=torch.channels_last)
    return found


def twins(params, dtype=torch.float64):
    return [torch.nn.Parameter(p.detach().to(dtype, copy=True)) for p in params]


def give(params, others, without=()):
    """Gradients of their own to both."""
    for number, (p, q) in enumerate(zip(params, others)):
        grad = torch.randn(p.shape, device=p.device).to(p.dtype)
        p.grad, q.grad = (None, None) if number in without else (grad, grad.to(q.dtype, copy=True))


def close(params, others, rtol=2e-6):
    for p, q in zip(params, others):
        assert float((p.detach().double() - q.detach().double()).norm()) <= rtol * float(q.detach().norm().double()) + 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps(name, dtype, torch_device):
    kind, options = OPTIMIZERS[name]
    params = parameters(dtype, torch_device)
    others = twins(params)
    ours, theirs = getattr(wt.optim, kind)(params, **options), getattr(torch.optim, kind)(others, **options)
    assert isinstance(ours, getattr(torch.optim, kind))
    # Some have no gradient in some steps, and count none.
    for without in ((1,), (), (0, 1), (2,)):
        give(params, others, without)
        ours.step(), theirs.step()
        close(params, others, 1e-13 if dtype == torch.float64 else 2e-6)
    assert params[3].is_contiguous(memory_format=torch.channels_last)
    for p, q in zip(params, others):
        mine, other = ours.state[p], theirs.state[q]
        assert mine.keys() == other.keys()
        close([v for v in mine.values() if v is not None], [v for v in other.values() if v is not None])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["adamw amsgrad", "sgd momentum"])
def test_half_types(name, dtype, torch_device):
    """Moments are in f32, and parameters are rounded once a step."""
    kind, options = OPTIMIZERS[name]
    params = parameters(dtype, torch_device)
    ours = getattr(wt.optim, kind)(params, **options)
    for _ in range(3):
        others = twins(params)
        theirs = getattr(torch.optim, kind)(others, **options)
        theirs.load_state_dict(ours.state_dict())
        for q in others:
            # Loading has made the state that of f64.
            assert all(v.dtype != dtype for v in theirs.state[q].values() if torch.is_tensor(v))
        give(params, others)
        ours.step(), theirs.step()
        close(params, others, 4e-3 if dtype == torch.bfloat16 else 5e-4)
    for p in params:
        assert all(v.dtype == torch.float32 for v in ours.state[p].values())


@pytest.mark.parametrize("name", ["adamw", "sgd momentum"])
def test_state_goes_both_ways(name, torch_device):
    """PyTorch's optimizers load what ours saved, and ours what theirs saved; copies and pickles go on alike."""
    kind, options = OPTIMIZERS[name]
    params = parameters(torch.float32, torch_device)
    others = twins(params, torch.float32)
    ours, theirs = getattr(wt.optim, kind)(params, **options), getattr(torch.optim, kind)(others, **options)
    for without in ((1,), ()):
        give(params, others, without)
        ours.step(), theirs.step()
    file = io.BytesIO()
    torch.save(ours.state_dict(), file)
    file.seek(0)
    states = torch.load(file), copy.deepcopy(theirs.state_dict())
    ours.load_state_dict(states[1]), theirs.load_state_dict(states[0])
    give(params, others)
    ours.step(), theirs.step()
    close(params, others)
    both = copy.deepcopy((params, ours))
    give(params, both[0])
    ours.step(), both[1].step()
    assert all(torch.equal(p, q) for p, q in zip(params, both[0]))
    # Parameters that have made as many steps are one call's again.
    assert len(ours._batches(ours.param_groups[0])) == (2 if kind == "AdamW" else 1)


def test_moments_are_loaded_as_they_are(torch_device):
    params = [torch.nn.Parameter(torch.randn(9, device=torch_device).bfloat16())]
    ours = wt.optim.AdamW(params)
    give(params, params)
    ours.step()
    other = wt.optim.AdamW([torch.nn.Parameter(params[0].detach().clone())])
    other.load_state_dict(copy.deepcopy(ours.state_dict()))
    (mine,), (loaded,) = ours.state.values(), other.state.values()
    assert loaded["exp_avg"].dtype == torch.float32 and torch.equal(mine["exp_avg"], loaded["exp_avg"])


def test_groups_rates_and_schedules(torch_device):
    params = parameters(torch.float32, torch_device)
    others = twins(params)
    made = []
    for module, given in ((wt.optim, params), (torch.optim, others)):
        rate = torch.tensor(0.02)
        groups = [{"params": given[:2], "lr": 0.05}, {"params": given[2:4], "weight_decay": 0.3, "lr": rate}]
        optimizer = module.AdamW(groups, lr=0.1)
        optimizer.add_param_group({"params": given[4:]})
        made.append((optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)))
    for _ in range(3):
        give(params, others)
        for optimizer, schedule in made:
            optimizer.step(), schedule.step()
        close(params, others)


def test_closure_and_gradient_scaler(torch_device):
    params = [torch.nn.Parameter(torch.ones(4, device=torch_device))]
    others = twins(params, torch.float32)
    ours, theirs = wt.optim.AdamW(params, lr=0.1), torch.optim.AdamW(others, lr=0.1)
    scalers = [torch.amp.GradScaler(torch_device, init_scale=8.0) for _ in range(2)]
    for factor in (1.0, float("inf"), 2.0):
        for optimizer, scaler, (p,) in ((ours, scalers[0], params), (theirs, scalers[1], others)):
            optimizer.zero_grad()
            scaler.scale((p * factor).square().sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        close(params, others)
    assert float(ours.state[params[0]]["step"]) == 2
    def closure():
        assert torch.is_grad_enabled()
        return torch.tensor(7.0)
    assert float(ours.step(closure)) == 7


def test_saved_tensors_are_found_to_have_changed(torch_device):
    p = torch.nn.Parameter(torch.ones(4, device=torch_device))
    y = p.square().sum()
    p.grad = torch.ones_like(p)
    wt.optim.SGD([p]).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_sharded_parameters():
    """Each process steps its part; here there is one."""
    distributed = pytest.importorskip("torch.distributed")
    tensors = pytest.importorskip("torch.distributed.tensor")
    if not distributed.is_available() or distributed.is_initialized():
        pytest.skip("no group of processes of its own")
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = distributed.init_device_mesh("cpu", (1,))
        for name in ("adamw amsgrad", "sgd momentum"):
            kind, options = OPTIMIZERS[name]
            plain = torch.randn(6, 4)
            params = [torch.nn.Parameter(tensors.distribute_tensor(plain.clone(), mesh, [tensors.Shard(0)]))]
            others = [torch.nn.Parameter(plain.double())]
            ours, theirs = getattr(wt.optim, kind)(params, **options), getattr(torch.optim, kind)(others, **options)
            for _ in range(2):
                grad = torch.randn(6, 4)
                params[0].grad, others[0].grad = tensors.distribute_tensor(grad, mesh, [tensors.Shard(0)]), grad.double()
                norms = [f(t, 0.5) for f, t in ((wt.clip_grad_norm_, params), (torch.nn.utils.clip_grad_norm_, others))]
                assert abs(float(norms[0].full_tensor()) - float(norms[1])) < 1e-5
                ours.step(), theirs.step()
            close([params[0].full_tensor()], others)
            assert all(hasattr(v, "to_local") for n, v in ours.state[params[0]].items() if n != "step")
    finally:
        distributed.destroy_process_group()


def test_a_step_in_a_graph(cuda):
    """Replays count their steps, and read the rate anew."""
    rate = torch.tensor(0.1, device="cuda")
    params = [torch.nn.Parameter(torch.randn(100, device="cuda"))]
    others = twins(params)
    ours, theirs = wt.optim.AdamW(params, lr=rate), torch.optim.AdamW(others, lr=0.1)
    give(params, others)
    ours.step(), theirs.step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ours.step()
    for lr in (0.1, 0.01):
        rate.fill_(lr)
        theirs.param_groups[0]["lr"] = lr
        graph.replay(), theirs.step()
    close(params, others)


def test_steps_are_repeated(cuda, monkeypatch):
    """From the third of a kind on, whatever memory gradients and parameters have."""
    calls = []

    def native(*arguments, **options):
        calls.append(1)
        ww._native.adamw_step(*arguments, **options)

    repeated = ww._native.Repeated(native, in_place=True)
    monkeypatch.setattr(wt.optim, "_adamw_step", repeated)
    all_params = [[torch.nn.Parameter(torch.randn(shape, device="cuda")) for shape in SHAPES] for _ in range(3)]
    all_others = [twins(params) for params in all_params]
    steps = [(wt.optim.AdamW(p), torch.optim.AdamW(q)) for p, q in zip(all_params, all_others)]
    for _ in range(3):
        for params, others, both in zip(all_params, all_others, steps):
            give(params, others)
            for one in both:
                one.step()
            close(params, others)
    assert len(calls) == 2 and repeated.counts() == (1, 0)
    # Schedules of more than the rate.
    for beta in (0.8, 0.81, 0.82, 0.8, 0.8):
        for one in steps[0]:
            one.param_groups[0]["betas"] = (beta, 0.99)
        give(all_params[0], all_others[0])
        steps[0][0].step(), steps[0][1].step()
        close(all_params[0], all_others[0])
    assert len(calls) == 6 and repeated.counts() == (2, 2)


def test_gradients_that_share_memory_are_told_apart(torch_device):
    """In the fourth step of a kind one is its parameter, and two are one."""
    params = [torch.nn.Parameter(torch.randn(1000, device=torch_device)) for _ in range(40)]
    others = twins(params)
    ours, theirs = wt.optim.SGD(params, lr=0.25), torch.optim.SGD(others, lr=0.25)
    for number in range(6):
        give(params, others)
        if number > 2:
            params[7].grad, others[7].grad = params[7].detach(), others[7].detach().clone()
            params[9].grad, others[9].grad = params[8].grad, others[8].grad
        ours.step(), theirs.step()
        close(params, others)


@pytest.mark.parametrize("norm_type", [2.0, float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_clipping(dtype, norm_type, torch_device):
    budget = {torch.float32: 2e-6, torch.float64: 1e-13, torch.bfloat16: 4e-3}[dtype]
    for max_norm in (0.5, 1e6):
        params = parameters(dtype, torch_device)
        others = twins(params)
        # PyTorch has no largest magnitude of nothing.
        give(params, others, (1, 4) if norm_type > 2 else (1,))
        before = [p.grad.clone() for p in params if p.grad is not None]
        ours = wt.clip_grad_norm_(params, max_norm, norm_type)
        theirs = torch.nn.utils.clip_grad_norm_(others, max_norm, norm_type)
        assert abs(float(ours) - float(theirs)) <= 2e-6 * float(theirs)
        close([p.grad for p in params if p.grad is not None], [q.grad for q in others if q.grad is not None], budget)
        if max_norm > 1e5:
            assert all(torch.equal(p.grad, b) for p, b in zip((p for p in params if p.grad is not None), before))


def test_clipping_of_other_gradients(torch_device):
    """Of several types, and with gaps."""
    wide = torch.randn(4, 6, device=torch_device)
    params = [torch.nn.Parameter(torch.empty(4, 3, device=torch_device)), torch.nn.Parameter(torch.empty(5, device=torch_device).double())]
    params[0].grad, params[1].grad = wide[:, ::2], torch.randn(5, device=torch_device).double()
    others = twins(params)
    for p, q in zip(params, others):
        q.grad = p.grad.to(torch.float64, copy=True)
    for some in (slice(0, 1), slice(None)):
        ours, theirs = (f(list(t[some]), 0.1) for f, t in ((wt.clip_grad_norm_, params), (torch.nn.utils.clip_grad_norm_, others)))
        assert abs(float(ours) - float(theirs)) <= 2e-6 * float(theirs)
        close([p.grad for p in params], [q.grad for q in others])
    assert float(wt.clip_grad_norm_([torch.nn.Parameter(torch.ones(2))], 1.0)) == 0
    params[1].grad[0] = float("nan")
    with pytest.raises(RuntimeError, match="non-finite"):
        wt.clip_grad_norm_(params, 1.0, error_if_nonfinite=True)
    assert bool(torch.isfinite(params[0].grad).all())


def test_numpy(random):
    new = lambda *shape: random.standard_normal(shape).astype(np.float32)  # noqa: E731
    params, grads = [new(4, 3), new(5)], [new(4, 3), new(5)]
    moments = [[np.zeros_like(p) for p in params] for _ in range(2)]
    step, lr = np.zeros((), np.float32), np.full((), 0.1, np.float32)
    others = [torch.nn.Parameter(torch.tensor(p).double()) for p in params]
    theirs = torch.optim.Adam(others, lr=0.1)
    for q, grad in zip(others, grads):
        q.grad = torch.tensor(grad).double()
    for _ in range(2):
        assert ww.adam_step(params, grads, *moments, step, lr) is None
        theirs.step()
    close([torch.tensor(p) for p in params], others)
    assert float(step) == 2
    assert abs(float(ww.grad_norm(grads)) - np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in grads))) < 1e-5
    # Parameters of half types beside those in f32.
    half, master, grad = new(6).astype(np.float16), new(6), new(6)
    kept = master.copy()
    ww.sgd_step([half], [grad], None, step, lr, masters=[master])
    assert np.allclose(master, kept - 0.1 * grad, atol=1e-6) and (half == master.astype(np.float16)).all()


ONE, LR = np.ones(3, np.float32), np.ones((), np.float32)
# Lists, step, rate, error, argument.
REFUSED = [
    (([], [], [], []), LR, LR, ww.ArgumentError, "params"),
    (([ONE], [], [ONE], [ONE]), LR, LR, ww.ArgumentError, "grads"),
    (([ONE], [ONE], [ONE, ONE], [ONE]), LR, LR, ww.ArgumentError, "exp_avgs"),
    (([ONE], [ONE[:2]], [ONE], [ONE]), LR, LR, ww.ShapeError, "grads"),
    (([ONE], [ONE], [ONE], [ONE[:2]]), LR, LR, ww.ShapeError, "exp_avg_sqs"),
    (([ONE], [ONE.astype(np.float64)], [ONE], [ONE]), LR, LR, ww.DtypeError, "grad"),
    (([ONE], [ONE], [ONE.astype(np.float16)], [ONE]), LR, LR, ww.DtypeError, "exp_avgs"),
    (([np.ones(6, np.float32)[::2]], [ONE], [ONE], [ONE]), LR, LR, ww.LayoutError, "params"),
    (([ONE], [ONE], [ONE], [ONE]), LR.astype(np.int32), LR, ww.DtypeError, "step"),
    (([ONE], [ONE], [ONE], [ONE]), LR, ONE, ww.ShapeError, "lr"),
]


@pytest.mark.parametrize("lists, step, lr, error, argument", REFUSED)
def test_what_is_refused(lists, step, lr, error, argument):
    with pytest.raises(error) as info:
        ww.adamw_step(*lists, step, lr)
    assert (info.value.op, info.value.argument) == ("adamw_step", argument)


def test_what_else_is_refused():
    p = torch.nn.Parameter(torch.ones(2))
    with pytest.raises(ValueError, match="differentiable=True is not supported"):
        wt.optim.SGD([p], differentiable=True)
    with pytest.raises(ValueError, match="Invalid learning rate"):
        wt.optim.AdamW([p], lr=-1.0)
    p.grad = torch.ones(2)
    with pytest.raises(ww.ParameterError, match="torch.nn.utils.clip_grad_norm_ has the others"):
        wt.clip_grad_norm_([p], 1.0, 3)
    with pytest.raises(ww.ParameterError, match="max_norm"):
        wt.clip_grad_norm_([p], -1.0)
    with pytest.raises(ww.ArgumentError, match="momentum_buffers is missing beside momentum"):
        ww.sgd_step([ONE.copy()], [ONE], None, LR.copy(), LR, momentum=0.9)
