"""First derivatives by the functional transforms of PyTorch (`torch.func`)."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import warpwright.torch as wt  # noqa: E402
from scans import selective_scan  # noqa: E402

F = torch.nn.functional
CELLS = ("lstm", "gru", "rnn")


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(11)


def ends(x):
    return torch.tensor([3, 3, 10, 20], dtype=torch.int32, device=x.device)


def by_loop(a, b):
    return torch.cat([a[:3] @ b[0], a[3:10] @ b[2], a[10:] @ b[3]])


def target(x):
    return torch.tensor([0, 3, 1], device=x.device)


def ours_recurrent(cell):
    return lambda x, *weights: getattr(wt, cell)(x, [weights])[0]


def theirs_recurrent(cell):
    function = {"lstm": torch.lstm, "gru": torch.gru, "rnn": torch.rnn_tanh}[cell]

    def call(x, *weights):
        zeros = [x.new_zeros(1, 2, 3) for _ in range(2)]
        # cuDNN asks for the storage of its weights, which tensors of transforms do not have.
        with torch.backends.cudnn.flags(enabled=False):
            return function(x, zeros if cell == "lstm" else zeros[0], weights, True, 1, 0.0, False, False, False)[0]

    return call


def recurrent_shapes(cell):
    rows = {"lstm": 12, "gru": 9, "rnn": 3}[cell]
    return ((5, 2, 4), (rows, 4), (rows, 3), (rows,), (rows,))


def attended(function):
    return lambda q, k, v: function(q, k, v, is_causal=True)


# Ours, PyTorch's, shapes.
ALL = {
    "silu": (wt.silu, F.silu, ((3, 4),)),
    "softplus": (wt.softplus, F.softplus, ((3, 4),)),
    "swiglu": (wt.swiglu, lambda g, u: F.silu(g) * u, ((3, 4), (3, 4))),
    "softmax": (wt.softmax, lambda x: F.softmax(x, -1), ((3, 4),)),
    "log_softmax": (wt.log_softmax, lambda x: F.log_softmax(x, -1), ((3, 4),)),
    "layer_norm": (
        lambda x, w, b: wt.layer_norm(x, 4, w, b),
        lambda x, w, b: F.layer_norm(x, (4,), w, b),
        ((3, 4), (4,), (4,)),
    ),
    "add_layer_norm": (
        lambda x, r, w, b: sum(wt.add_layer_norm(x, r, 4, w, b)),
        lambda x, r, w, b: F.layer_norm(x + r, (4,), w, b) + x + r,
        ((3, 4), (3, 4), (4,), (4,)),
    ),
    "rms_norm": (lambda x, w: wt.rms_norm(x, 4, w), lambda x, w: F.rms_norm(x, (4,), w), ((3, 4), (4,))),
    "group_norm": (
        lambda x, w, b: wt.group_norm(x, 2, w, b),
        lambda x, w, b: F.group_norm(x, 2, w, b),
        ((3, 4, 5), (4,), (4,)),
    ),
    "batch_norm": (
        lambda x, w, b: wt.batch_norm(x, None, None, w, b, True),
        lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
        ((6, 4), (4,), (4,)),
    ),
    "batch_norm_inference": (
        lambda x, w, b: wt.batch_norm(x, torch.zeros(4, device=x.device), torch.ones(4, device=x.device), w, b),
        lambda x, w, b: F.batch_norm(x, torch.zeros(4).to(x), torch.ones(4).to(x), w, b),
        ((6, 4), (4,), (4,)),
    ),
    "local_response_norm": (
        lambda x: wt.local_response_norm(x, 2),
        lambda x: F.local_response_norm(x, 2),
        ((3, 4, 5),),
    ),
    "cross_entropy": (
        lambda x: wt.cross_entropy(x, target(x)),
        lambda x: F.cross_entropy(x, target(x)),
        ((3, 4),),
    ),
    "matmul": (wt.matmul, torch.matmul, ((2, 5, 7), (7, 3))),
    "linear": (wt.linear, F.linear, ((2, 5, 7), (3, 7), (3,))),
    "addmm": (wt.addmm, torch.addmm, ((3,), (5, 7), (7, 3))),
    "conv2d": (
        lambda *t: wt.conv2d(*t, stride=(1, 2), padding=1, groups=2),
        lambda *t: F.conv2d(*t, stride=(1, 2), padding=1, groups=2),
        ((2, 4, 3, 4), (2, 2, 2, 3), (2,)),
    ),
    "conv_transpose1d": (
        lambda *t: wt.conv_transpose1d(*t, stride=2, output_padding=1),
        lambda *t: F.conv_transpose1d(*t, stride=2, output_padding=1),
        ((2, 3, 4), (3, 2, 3), (2,)),
    ),
    "causal_conv1d": (
        lambda *t: wt.causal_conv1d(*t, activation="silu"),
        lambda x, w, b: F.silu(F.conv1d(F.pad(x, (2, 0)), w[:, None], b, groups=4)),
        ((2, 4, 5), (4, 3), (4,)),
    ),
    "selective_scan": (
        lambda u, s, a, b, c: wt.selective_scan(u, s, -a.exp(), b, c, delta_softplus=True),
        lambda u, s, a, b, c: selective_scan(u, s, -a.exp(), b, c, None, None, None, None),
        ((2, 4, 5), (2, 4, 5), (4, 3), (2, 3, 5), (2, 3, 5)),
    ),
    "max_pool2d": (lambda x: wt.max_pool2d(x, 3, 2, 1), lambda x: F.max_pool2d(x, 3, 2, 1), ((2, 3, 5, 4),)),
    "max_pool1d with indices": (
        lambda x: wt.max_pool1d(x, 2, return_indices=True)[0],
        lambda x: F.max_pool1d(x, 2),
        ((2, 3, 5),),
    ),
    "avg_pool2d": (lambda x: wt.avg_pool2d(x, 3, 2, 1), lambda x: F.avg_pool2d(x, 3, 2, 1), ((2, 3, 5, 4),)),
    "adaptive_max_pool1d": (
        lambda x: wt.adaptive_max_pool1d(x, 2),
        lambda x: F.adaptive_max_pool1d(x, 2),
        ((2, 3, 5),),
    ),
    "adaptive_avg_pool1d": (
        lambda x: wt.adaptive_avg_pool1d(x, 2),
        lambda x: F.adaptive_avg_pool1d(x, 2),
        ((2, 3, 5),),
    ),
    "interpolate": (
        lambda x: wt.interpolate(x, scale_factor=1.7, mode="bilinear"),
        lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear"),
        ((2, 3, 4, 3),),
    ),
    "grouped_mm": (lambda a, b: wt.grouped_mm(a, b, ends(a)), by_loop, ((20, 8), (4, 8, 6))),
    "attention": (
        attended(wt.scaled_dot_product_attention),
        attended(F.scaled_dot_product_attention),
        ((2, 1, 3, 16), (2, 1, 3, 16), (2, 1, 3, 16)),
    ),
    "attention with a bias": (
        wt.scaled_dot_product_attention,
        F.scaled_dot_product_attention,
        ((2, 1, 3, 16), (2, 1, 3, 16), (2, 1, 3, 16), (2, 1, 3, 3)),
    ),
    **{cell: (ours_recurrent(cell), theirs_recurrent(cell), recurrent_shapes(cell)) for cell in CELLS},
}


def drawn(name, device):
    _, _, shapes = ALL[name]
    return [torch.randn(shape, device=device) for shape in shapes]


def loss(function):
    """A sum with different weights of the results, so that they do not cancel."""

    def call(*tensors):
        y = function(*tensors)
        return (y * torch.linspace(1, 2, y.numel(), device=y.device).to(y.dtype).view_as(y)).sum()

    return call


def close(ours, theirs):
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a.double(), b.double(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ALL)
def test_grad(name, torch_device):
    ours, theirs, _ = ALL[name]
    tensors = drawn(name, torch_device)
    places = tuple(range(len(tensors)))
    found = torch.func.grad_and_value(loss(ours), argnums=places)(*tensors)
    expected = torch.func.grad_and_value(loss(theirs), argnums=places)(*(t.double() for t in tensors))
    close(found[0], expected[0])
    close(found[1:], expected[1:])
    # Of some arguments, the others being constants.
    for place in places:
        one = torch.func.grad(loss(ours), argnums=place)(*tensors)
        torch.testing.assert_close(one, found[0][place], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ALL)
def test_vjp(name, torch_device):
    ours, theirs, _ = ALL[name]
    tensors = drawn(name, torch_device)
    y, pull = torch.func.vjp(ours, *tensors)
    wide, pull_wide = torch.func.vjp(theirs, *(t.double() for t in tensors))
    close([y], [wide])
    dy = torch.randn_like(y)
    # The transform is over when its function is called.
    close(pull(dy), pull_wide(dy.double()))


@pytest.mark.parametrize("name", ["silu", "layer_norm", "softmax", "matmul", "linear", "conv2d", "lstm", "cross_entropy"])
def test_outside_gradients_are_recorded_through_a_transform(name, torch_device):
    """What a transform holds constant may have a gradient of PyTorch's own, and results of transforms too."""
    ours, theirs, _ = ALL[name]
    found = []
    for function, kind in ((ours, torch.float32), (theirs, torch.float64)):
        torch.manual_seed(4)
        first, *rest = (t.to(kind).requires_grad_() for t in drawn(name, torch_device))
        value, pull = torch.func.vjp(lambda x: loss(function)(x, *rest), first)
        value.backward()
        found.append([t.grad for t in (first, *rest)])
    close(*found)


@pytest.mark.parametrize("name", ["silu", "layer_norm", "softmax", "matmul", "linear", "conv2d"])
def test_gradients_of_each_sample(name, torch_device):
    ours, theirs, shapes = ALL[name]
    samples = torch.randn(3, *shapes[0], device=torch_device)
    rest = drawn(name, torch_device)[1:]
    dims = (0, *[None] * len(rest))
    places = tuple(range(len(shapes)))
    each = [torch.func.vmap(torch.func.grad(loss(f), argnums=places), in_dims=dims) for f in (ours, theirs)]
    close(each[0](samples, *rest), each[1](samples.double(), *(t.double() for t in rest)))
    # The gradient of a sum over samples: the transforms the other way round.
    sums = [
        torch.func.grad(lambda *t, f=f: torch.func.vmap(loss(f), in_dims=dims)(*t).sum(), argnums=places)
        for f in (ours, theirs)
    ]
    close(sums[0](samples, *rest), sums[1](samples.double(), *(t.double() for t in rest)))


def test_gradients_of_no_samples_are_refused(torch_device):
    with pytest.raises(ValueError, match="silu.* at least one sample"):
        torch.func.vmap(torch.func.grad(loss(wt.silu)))(torch.empty(0, 3, device=torch_device))


def test_jacobian(torch_device):
    x = torch.randn(4, device=torch_device)
    close([torch.func.jacrev(wt.softmax)(x)], [torch.func.jacrev(lambda x: F.softmax(x, -1))(x.double())])


@pytest.mark.parametrize("name", ["silu", "layer_norm", "softmax"])
def test_second_derivatives_are_refused(name, torch_device):
    ours, _, _ = ALL[name]
    first, *rest = drawn(name, torch_device)
    once = torch.func.grad(lambda x: loss(ours)(x, *rest))
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.func.grad(lambda x: once(x).sum())(first)


def test_a_product_has_no_second_derivative_in_one_factor(torch_device):
    a, b = drawn("matmul", torch_device)
    once = torch.func.grad(lambda a: wt.matmul(a, b).sum())
    assert torch.equal(torch.func.grad(lambda a: once(a).sum())(a), torch.zeros_like(a))
    # Of both, it has.
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.func.grad(lambda b: torch.func.grad(lambda a: wt.matmul(a, b).sum())(a).sum())(b)


@pytest.mark.parametrize("name", ["silu", "layer_norm", "matmul", "lstm"])
def test_forward_mode_over_reverse_mode_is_refused(name, torch_device):
    ours, _, _ = ALL[name]
    first, *rest = drawn(name, torch_device)
    once = torch.func.grad(lambda x: loss(ours)(x, *rest))
    with pytest.raises(NotImplementedError, match="forward-mode"):
        torch.func.jvp(once, (first,), (torch.ones_like(first),))


def test_a_transform_under_compile(torch_device):
    """The graph breaks there, and nothing else does."""
    torch._dynamo.reset()
    tensors = drawn("linear", torch_device)
    function = torch.func.grad(lambda *t: loss(wt.linear)(*map(wt.silu, t)), argnums=(0, 1, 2))
    close(torch.compile(function, backend="aot_eager")(*tensors), function(*tensors))


def test_a_model_by_functional_call(torch_device):
    """Gradients of a module's parameters as a dictionary."""
    model = torch.nn.Sequential(wt.nn.Linear(6, 8), wt.nn.LayerNorm(8), wt.nn.GELU(), wt.nn.Linear(8, 4)).to(torch_device)
    parameters, x = dict(model.named_parameters()), torch.randn(3, 6, device=torch_device)

    def value(parameters):
        return F.cross_entropy(torch.func.functional_call(model, parameters, (x,)).float(), target(x))

    found = torch.func.grad(value)({name: p.detach() for name, p in parameters.items()})
    value(parameters).backward()
    for name, p in parameters.items():
        torch.testing.assert_close(found[name], p.grad, rtol=1e-5, atol=1e-6)
