"""Normalisation, softmax and loss in `warpwright.torch`, held against PyTorch in f64."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import norms  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from conftest import torch_cuda  # noqa: E402

import warpwright as ww  # noqa: E402
import warpwright.torch as wt  # noqa: E402

BUDGETS = {torch.float32: 2e-6, torch.float64: 1e-12, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def leaves(tensors, dtype=None):
    """Tensors of their own that record, with the strides of the given ones; wide ones as a reference."""
    found = []
    for t in tensors:
        if t is None or not t.is_floating_point():
            found.append(t)
        else:
            found.append((t.detach() if dtype is None else t.detach().to(dtype)).requires_grad_())
    return found


def gradients(function, tensors, dys=None):
    """The results, and the gradients of the tensors."""
    results = function(*tensors)
    results = results if isinstance(results, tuple) else (results,)
    if dys is None:
        dys = [torch.randn_like(y) for y in results]
    wanted = [t for t in tensors if t is not None and t.requires_grad]
    return results, dys, torch.autograd.grad(results, wanted, [d.to(y.dtype) for d, y in zip(dys, results)])


def distance(result, reference, scale):
    return float((result.detach().double() - reference.detach().double()).norm()) / max(scale, 1e-30)


def check(case, dtype):
    tensors = leaves(case.tensors)
    results, dys, grads = gradients(case.ours, tensors)
    wide = gradients(case.theirs, leaves(case.tensors, torch.float64), dys)
    try:
        narrow = gradients(case.theirs, leaves(case.tensors), dys)
    except RuntimeError:
        # A mixture of types that PyTorch does not take on the CPU.
        assert dys[0].device.type == "cpu"
        narrow = None
    dy = max(float(d.double().norm()) for d in dys)
    for name, mine, exact, which in (("result", results, wide[0], 0), ("gradient", grads, wide[2], 2)):
        for i, (a, b) in enumerate(zip(mine, exact)):
            assert a.shape == b.shape, (name, i, case.about)
            scale = float(b.detach().norm()) + (dy if name == "gradient" else 0.0)
            error, other = distance(a, b, scale), 0.0
            if narrow is not None:
                assert a.dtype == narrow[which][i].dtype, (name, i, case.about)
                other = distance(narrow[which][i], b, scale)
            assert error <= BUDGETS[dtype] + 1.5 * other, (name, i, error, other, case.about)


@pytest.mark.parametrize("name", norms.CASES)
def test_random_cases_in_the_emulator(name):
    r = random.Random(f"{name} on the host")
    torch.manual_seed(1)
    for number in range(8):
        dtype = norms.DTYPES[number % 4]
        check(norms.CASES[name](r, {"dtype": dtype}), dtype)


@pytest.mark.parametrize("name", norms.CASES)
def test_random_cases_on_the_gpu(name):
    torch_cuda()
    r = random.Random(f"{name} on the GPU")
    torch.manual_seed(2)
    for number in range(200):
        dtype = norms.DTYPES[number % 4]
        check(norms.CASES[name](r, {"dtype": dtype, "device": "cuda"}), dtype)


@pytest.mark.parametrize("name", norms.CASES)
def test_gradcheck(name, torch_device):
    r = random.Random(f"gradcheck {name}")
    torch.manual_seed(3)
    done = 0
    while done < 2:
        case = norms.CASES[name](r, {"dtype": torch.float64})
        # Differences go element by element, and know no kinks.
        if sum(t.numel() for t in case.tensors if t is not None) < 60 and not case.about.get("relu"):
            tensors = [t if t is None else t.to(torch_device) for t in case.tensors]
            assert torch.autograd.gradcheck(case.ours, leaves(tensors))
            done += 1


OPERATORS = {
    "group_norm": lambda x, c: (x, c, c, 2, 1e-5, True),
    "batch_norm": lambda x, c: (x, c, None, x, c.detach(), c.detach().abs(), 0.1, 1e-5, True),
    "batch_norm_inference": lambda x, c: (x, c, c, None, c.detach(), c.detach().abs(), 1e-5, False),
    "layer_norm": lambda x, c: (x, None, c[:3], [3], 1e-5),
    "rms_norm": lambda x, c: (x, c[:3], [3], None),
    "add_layer_norm": lambda x, c: (x, x.detach(), c[:3], None, [3], 1e-5),
    "add_rms_norm": lambda x, c: (x, x.detach(), c[:3], [3], 1e-5),
    "local_response_norm": lambda x, c: (x, 3, 0.1, 0.75, 1.0),
    "cross_entropy": lambda x, c: (x.flatten(1), torch.tensor([3, 1], device=x.device), -100, 0.1, "mean", x.dtype),
    "softmax": lambda x, c: (x, 1, 0.5),
    "log_softmax": lambda x, c: (x, -1, 1.0),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_opcheck(name, torch_device):
    operator = getattr(torch.ops.warpwright, name).default
    torch.manual_seed(4)
    plain = torch.randn(2, 4, 2, 3, device=torch_device)
    for x in (plain, plain.contiguous(memory_format=torch.channels_last)):
        c = torch.randn(4, device=torch_device, requires_grad=True)
        arguments = OPERATORS[name](x.detach().requires_grad_(), c)
        torch.library.opcheck(operator, tuple(a.detach().requires_grad_(a.requires_grad) if isinstance(a, torch.Tensor)
                                              else a for a in arguments))


IMAGE, SOUND, FILM = (4, 6, 5, 7), (4, 6, 9), (2, 6, 3, 4, 5)
MODULES = [
    ("GroupNorm", (3, 6), {}, IMAGE),
    ("GroupNorm", (2, 6), {"affine": False, "eps": 1e-3}, SOUND),
    ("InstanceNorm1d", (6,), {"affine": True}, SOUND),
    ("InstanceNorm2d", (6,), {}, IMAGE),
    ("InstanceNorm2d", (6,), {"affine": True}, IMAGE[1:]),
    ("InstanceNorm3d", (6,), {"track_running_stats": True, "momentum": 0.3}, FILM),
    ("BatchNorm1d", (6,), {}, (5, 6)),
    ("BatchNorm1d", (6,), {"affine": False}, SOUND),
    ("BatchNorm2d", (6,), {"momentum": None}, IMAGE),
    ("BatchNorm2d", (6,), {"track_running_stats": False}, IMAGE),
    ("BatchNorm3d", (6,), {"eps": 1e-2, "momentum": 0.4}, FILM),
    ("LayerNorm", ([5, 7],), {}, IMAGE),
    ("LayerNorm", (7,), {"bias": False}, IMAGE),
    ("LayerNorm", (7,), {"elementwise_affine": False}, IMAGE),
    ("RMSNorm", ([5, 7],), {}, IMAGE),
    ("RMSNorm", (7,), {"eps": 1e-3, "elementwise_affine": False}, IMAGE),
    ("LocalResponseNorm", (3,), {"alpha": 0.2, "k": 2.0}, IMAGE),
    ("Softmax", (1,), {}, IMAGE),
    ("Softmax", (), {}, IMAGE),
    ("Softmax2d", (), {}, IMAGE),
    ("LogSoftmax", (-2,), {}, IMAGE),
]


@pytest.mark.filterwarnings("ignore:Implicit dimension")
@pytest.mark.parametrize("name, arguments, options, shape", MODULES)
def test_modules_are_those_of_pytorch(name, arguments, options, shape, torch_device):
    torch.manual_seed(5)
    mine, other = (getattr(nn, name)(*arguments, **options).to(torch_device) for nn in (wt.nn, torch.nn))
    assert isinstance(mine, type(other)) and repr(mine) == repr(other)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.normal_()
    mine.load_state_dict(other.state_dict())
    for training in (True, True, False):
        mine.train(training), other.train(training)
        x = torch.randn(shape, device=torch_device)
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        y, expected = mine(a), other(b)
        torch.testing.assert_close(y, expected)
        dy = torch.randn_like(y)
        y.backward(dy), expected.backward(dy)
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5)
        for p, q in zip(mine.parameters(), other.parameters()):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-5)
    state = other.state_dict()
    assert state.keys() == mine.state_dict().keys()
    for key, value in mine.state_dict().items():
        torch.testing.assert_close(value, state[key])


def test_the_loss_module(torch_device):
    target = torch.tensor([[2, 0, -100], [1, 1, 3]], device=torch_device)
    for options in ({}, {"reduction": "sum", "label_smoothing": 0.2}, {"reduction": "none"}):
        mine, other = wt.nn.CrossEntropyLoss(**options), torch.nn.CrossEntropyLoss(**options)
        x = torch.randn(2, 4, 3, device=torch_device)
        torch.testing.assert_close(mine(x, target), other(x, target))
        torch.testing.assert_close(mine(x[0, :, 0], target[0, 0]), other(x[0, :, 0], target[0, 0]))
        weight = torch.tensor([0.5, 2, 0, 1], device=torch_device)
        mine, other = wt.nn.CrossEntropyLoss(weight, **options), torch.nn.CrossEntropyLoss(weight, **options)
        torch.testing.assert_close(mine(x, target), other(x, target))
    stray = torch.tensor([9, 1], device=torch_device)
    if torch_device == "cpu":
        with pytest.raises(ww.ParameterError, match="9 at 0"):
            ww.cross_entropy(x[..., 0], stray, reduction="none")
    else:
        assert ww.cross_entropy(x[..., 0], stray, reduction="none").isnan().tolist() == [True, False]


def test_memory_formats_are_kept(torch_device):
    x = torch.randn(2, 6, 4, 5, device=torch_device).contiguous(memory_format=torch.channels_last)
    c = torch.ones(6, device=torch_device)
    calls = [
        lambda: wt.group_norm(x, 2, c, c),
        lambda: ww.group_norm(x, 3, statistics=True)[0],
        lambda: wt.instance_norm(x),
        lambda: wt.batch_norm(x, c, c),
        lambda: wt.batch_norm(x, c.clone(), c.clone(), training=True),
        lambda: wt.local_response_norm(x, 3),
        lambda: wt.softmax(x, 1),
    ]
    for call in calls:
        assert call().stride() == x.stride()
    turned = torch.randn(4, 5, device=torch_device).t()
    assert wt.log_softmax(turned).stride() == turned.stride()
    assert wt.layer_norm(turned, 4).is_contiguous()


@pytest.mark.parametrize("shape", [(0, 4, 3), (2, 4, 0)])
def test_zero_sizes(shape, torch_device):
    x = torch.empty(shape, device=torch_device, requires_grad=True)
    c = torch.ones(4, device=torch_device, requires_grad=True)
    pairs = [
        lambda f: f.batch_norm(x, c.detach(), c.detach(), c, c),
        lambda f: f.softmax(x, 1),
        lambda f: f.log_softmax(x, -1),
    ]
    if shape[-1]:
        # Of empty groups, PyTorch's gradients of weights are NaN on the CPU.
        pairs += [
            lambda f: f.group_norm(x, 2, c, c),
            lambda f: f.layer_norm(x, shape[-1:]),
            lambda f: f.rms_norm(x, shape[-1:]),
        ]
    for call in pairs:
        y, expected = call(wt), call(F)
        assert y.shape == expected.shape
        mine = torch.autograd.grad(y.sum(), (x, c), allow_unused=True)
        theirs = torch.autograd.grad(expected.sum(), (x, c), allow_unused=True)
        for a, b in zip(mine, theirs):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a, b)


LAYERS = [
    ("BatchNorm2d", (4,)),
    ("GroupNorm", (2, 4)),
    ("InstanceNorm2d", (4, 1e-5, 0.1, True)),
    ("LayerNorm", (6,)),
    ("RMSNorm", ([6, 6],)),
    ("LocalResponseNorm", (3,)),
    ("Softmax", (1,)),
    ("LogSoftmax", (-1,)),
]


class Block(torch.nn.Module):
    def __init__(self, nn):
        super().__init__()
        self.layers = torch.nn.Sequential(*(getattr(nn, name)(*a) for name, a in LAYERS))

    def forward(self, x):
        return self.layers(x)


def test_compile_without_graph_breaks(torch_device):
    backend = "inductor" if torch_device == "cuda" else "aot_eager"
    torch._dynamo.reset()
    torch.manual_seed(6)
    mine, other = Block(wt.nn).to(torch_device), Block(torch.nn).to(torch_device)
    compiled = torch.compile(mine, fullgraph=True, backend=backend)
    for batch in (2, 3):
        x = torch.randn(batch, 4, 6, 6, device=torch_device)
        y, expected = compiled(x), other(x)
        torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
        dy = torch.randn_like(y)
        y.backward(dy), expected.backward(dy)
    for p, q in zip(mine.parameters(), other.parameters()):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-4)
    for a, b in zip(mine.buffers(), other.buffers()):
        torch.testing.assert_close(a, b)


def test_graph_of_a_training_step(cuda):
    model = Block(wt.nn).cuda()
    x = torch.randn(2, 4, 6, 6, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            model.zero_grad(set_to_none=True)
            model(x).square().sum().backward()
    torch.cuda.current_stream().wait_stream(side)
    model.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(x).square().sum().backward()
    x.normal_()
    graph.replay()
    captured = [p.grad.clone() for p in model.parameters()]
    model.zero_grad(set_to_none=True)
    model(x).square().sum().backward()
    for a, p in zip(captured, model.parameters()):
        assert torch.equal(a, p.grad)


def test_autocast_gives_the_types_of_pytorch(cuda):
    x = torch.randn(2, 4, 6, device="cuda", dtype=torch.bfloat16)
    c = torch.ones(4, device="cuda")
    pairs = [
        lambda f: f.group_norm(x, 2, c, c),
        lambda f: f.instance_norm(x, None, None, c, c),
        lambda f: f.batch_norm(x, None, None, c, c, True),
        lambda f: f.layer_norm(x, (6,)),
        lambda f: f.rms_norm(x, (6,)),
        lambda f: f.local_response_norm(x, 3),
        lambda f: f.softmax(x, 1),
        lambda f: f.log_softmax(x, 1),
    ]
    for call in pairs:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            mine, theirs = call(wt), call(F)
        assert mine.dtype == theirs.dtype
        torch.testing.assert_close(mine.float(), theirs.float(), rtol=2e-2, atol=2e-2)


def test_errors(torch_device):
    x = torch.randn(2, 4, 6, device=torch_device)
    wide = torch.ones(6, device=torch_device, dtype=torch.float64)
    wrong = [
        (ww.ParameterError, lambda: ww.group_norm(x, 3)),
        (ww.ShapeError, lambda: ww.group_norm(x, 2, torch.ones(5, device=torch_device))),
        (ww.ShapeError, lambda: ww.layer_norm(x, (4, 5))),
        (ww.DtypeError, lambda: ww.layer_norm(x, 6, wide)),
        (ww.ParameterError, lambda: ww.rms_norm(x, 6, eps=-1.0)),
        (ww.ParameterError, lambda: ww.softmax(x, 3)),
        (ww.DtypeError, lambda: ww.softmax(torch.ones(3, dtype=torch.int32, device=torch_device))),
        (ww.ParameterError, lambda: ww.local_response_norm(x, 0)),
        (ww.ArgumentError, lambda: ww.batch_norm(x)),
        (ww.ShapeError, lambda: ww.batch_norm(wide, training=True)),
        (ww.DtypeError, lambda: ww.batch_norm(x, weight=wide[:4], training=True)),
        (ValueError, lambda: wt.batch_norm(torch.ones(1, 4, device=torch_device), None, None, training=True)),
    ]
    for error, call in wrong:
        with pytest.raises(error):
            call()


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_losses_of_weighted_classes_and_of_probabilities(dtype, reduction, smoothing, torch_device):
    generator = torch.Generator().manual_seed(5)
    options = {"reduction": reduction, "label_smoothing": smoothing}
    weight = torch.rand(7, generator=generator).to(torch_device, dtype)
    for shape in ((7,), (5, 7), (2, 7, 3), (2, 7, 3, 2)):
        logits = (3 * torch.randn(shape, generator=generator)).to(torch_device, dtype)
        places = (*shape[:1], *shape[2:]) if len(shape) > 1 else ()
        classes = torch.randint(0, 7, places, generator=generator)
        if classes.dim() > 0:
            classes.view(-1)[1] = -100
        probabilities = torch.rand(shape, generator=generator).softmax(int(len(shape) > 1)).to(torch_device, dtype)
        cases = [(classes, weight), (classes.int(), weight), (probabilities, None), (probabilities, weight)]
        for target, of_classes in cases:
            found = []
            for function, kind in ((wt.cross_entropy, dtype), (F.cross_entropy, torch.float64)):
                given = [logits, target.to(torch_device)]
                if function is F.cross_entropy and not target.is_floating_point():
                    given[1] = given[1].long()
                given = [t.to(kind).detach().clone().requires_grad_() if t.is_floating_point() else t for t in given]
                loss = function(*given, None if of_classes is None else of_classes.to(kind), **options)
                dy = torch.linspace(1, 2, loss.numel(), dtype=torch.float64, device=torch_device).reshape(loss.shape)
                leaves = [t for t in given if t.requires_grad]
                found.append((loss.detach(), *torch.autograd.grad((loss.double() * dy).sum(), leaves)))
            for ours, exact in zip(*found):
                assert ours.dtype == dtype and ours.shape == exact.shape
                error = float((ours.double() - exact).norm())
                assert error <= 2 * BUDGETS[dtype] * max(float(exact.norm()), 1e-3)


def test_refusals_of_weighted_losses(torch_device):
    x, target = torch.randn(3, 4, device=torch_device), torch.tensor([0, 3, 1], device=torch_device)
    weight, probabilities = torch.ones(4, device=torch_device), torch.full((3, 4), 0.25, device=torch_device)
    with pytest.raises(ww.ShapeError, match=r"weight has shape \[3\], expected \[4\]"):
        wt.cross_entropy(x, target, weight[:3])
    with pytest.raises(ww.ShapeError, match=r"target has shape \[3, 3\], expected \[3, 4\]"):
        wt.cross_entropy(x, probabilities[:, :3])
    with pytest.raises(ww.ShapeError, match=r"target has shape \[2\], expected \[3\]"):
        wt.cross_entropy(x, target[:2], weight)
    for options in ({"reduction": "most"}, {"label_smoothing": 1.5}):
        for what, of_classes in ((target, weight), (probabilities, None)):
            with pytest.raises(ww.ParameterError, match=next(iter(options))):
                wt.cross_entropy(x, what, of_classes, **options)
    with pytest.raises(ww.ParameterError, match="ignore_index"):
        wt.cross_entropy(x, probabilities, ignore_index=2)
