"""Gradients that nobody requires are not computed, and those that are required stay what they are."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import warpwright as ww  # noqa: E402
import warpwright.torch as wt  # noqa: E402

F = torch.nn.functional
OFFS = [3, 3, 10, 20]
COUNTED = ("matmul", "linear_weight_backward", "grouped_matmul", "grouped_matmul_k")


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(5)


def grouped(function):
    return lambda a, b: function(a, b, torch.tensor(OFFS, dtype=torch.int32, device=a.device))


def grouped_by_loop(a, b):
    parts = list(zip([0, *OFFS[:-1]], OFFS))
    if b.dim() == 3:
        return torch.cat([a[begin:end] @ b[at] for at, (begin, end) in enumerate(parts)])
    return torch.stack([a[:, begin:end] @ b[begin:end] for begin, end in parts])


# Ours, PyTorch's, shapes, and how many products the gradient of each argument takes.
PRODUCTS = {
    "matmul": (wt.matmul, torch.matmul, ((5, 7), (7, 3)), (1, 1)),
    "matmul by one for all": (wt.matmul, torch.matmul, ((2, 5, 7), (7, 3)), (1, 1)),
    "matmul of a batch": (wt.matmul, torch.matmul, ((2, 5, 7), (2, 7, 3)), (1, 1)),
    "linear": (wt.linear, F.linear, ((2, 5, 7), (3, 7), (3,)), (1, 1, 0)),
    "linear without bias": (wt.linear, F.linear, ((5, 7), (3, 7)), (1, 1)),
    "addmm": (wt.addmm, torch.addmm, ((5, 3), (5, 7), (7, 3)), (0, 1, 1)),
    "addmm of a row": (wt.addmm, torch.addmm, ((3,), (5, 7), (7, 3)), (0, 1, 1)),
    "baddbmm": (
        lambda *t: wt.baddbmm(*t, beta=0.5, alpha=-2),
        lambda *t: torch.baddbmm(*t, beta=0.5, alpha=-2),
        ((2, 5, 3), (2, 5, 7), (2, 7, 3)),
        (0, 1, 1),
    ),
    "grouped_mm": (grouped(wt.grouped_mm), grouped_by_loop, ((20, 8), (4, 8, 6)), (1, 1)),
    "grouped_mm of the common dimension": (grouped(wt.grouped_mm), grouped_by_loop, ((8, 20), (20, 6)), (1, 1)),
}


@pytest.fixture
def launches(monkeypatch):
    """The names of the native products that are called; what is repeated calls none."""
    ww._native.forget_calls()
    found = []
    for name in COUNTED:
        native = getattr(ww._native, name)

        def counted(*arguments, _name=name, _native=native, **options):
            found.append(_name)
            return _native(*arguments, **options)

        monkeypatch.setattr(ww._native, name, counted)
    return found


def subsets(count):
    """Which arguments require a gradient: all choices but none."""
    return [wanted for wanted in itertools.product((True, False), repeat=count) if any(wanted)]


def leaves(tensors, wanted):
    return [t.detach().clone().requires_grad_(need) for t, need in zip(tensors, wanted)]


def gradients(function, tensors, wanted, dy):
    """Of each argument its gradient, or None."""
    given = leaves(tensors, wanted)
    y = function(*given)
    y.backward(dy.to(y.dtype))
    return [t.grad for t in given]


def called(function, compiled):
    """The function as it is, or compiled anew."""
    if not compiled:
        return function
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager")


def compared(found, exact, wanted):
    assert [g is not None for g in found] == list(wanted)
    for a, b in zip(found, exact):
        if a is not None:
            torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name, compiled, torch_device, launches):
    ours, theirs, shapes, products = PRODUCTS[name]
    tensors = [torch.randn(shape, device=torch_device) for shape in shapes]
    wide = [t.double() for t in tensors]
    dy = torch.randn_like(theirs(*tensors))
    for wanted in subsets(len(shapes)):
        function = called(ours, compiled)
        given = leaves(tensors, wanted)
        y = function(*given)
        launches.clear()
        y.backward(dy)
        assert len(launches) == sum(itertools.compress(products, wanted)), (wanted, launches)
        compared([t.grad for t in given], gradients(theirs, wide, wanted, dy), wanted)


@pytest.mark.parametrize("name", PRODUCTS)
def test_what_no_wanted_gradient_is_computed_from_is_not_saved(name, torch_device):
    ours, _, shapes, products = PRODUCTS[name]
    tensors = [torch.randn(shape, device=torch_device) for shape in shapes]
    of_left, of_right = (at for at, product in enumerate(products) if product)
    for wanted in subsets(len(shapes)):
        packed, given = [], leaves(tensors, wanted)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t.data_ptr()) or t, lambda t: t):
            ours(*given)
        assert (given[of_left].data_ptr() in packed) == wanted[of_right]


def test_what_is_not_saved_may_change(torch_device):
    """As in PyTorch: the input of a frozen layer, and a weight behind an input without a gradient."""
    for wanted in ((True, False, False), (False, True, True), (False, False, True)):
        tensors = [torch.randn(shape, device=torch_device) for shape in ((5, 7), (3, 7), (3,))]
        found = []
        for function in (wt.linear, F.linear):
            given = leaves(tensors, wanted)
            y = function(*given)
            with torch.no_grad():
                for t, read_by in zip(given, ((1,), (0,), ())):
                    if not any(wanted[at] for at in read_by):
                        t.zero_()
            y.backward(torch.ones_like(y))
            found.append([t.grad for t in given])
        for a, b in zip(*found):
            assert (a is None) == (b is None)
            assert a is None or torch.allclose(a, b, rtol=1e-5, atol=1e-5)


def counted_sums(y, dy):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        y.backward(dy)
    return sum(event.count for event in profile.key_averages() if event.key == "aten::sum")


def test_a_frozen_bias_is_not_summed(torch_device, launches):
    x, weight, bias = (torch.randn(shape, device=torch_device) for shape in ((5, 7), (3, 7), (3,)))
    dy = torch.randn(5, 3, device=torch_device)
    # The sums come with the gradient of the weight, if that is wanted.
    for wanted, sums, last in (
        ((True, True, True), 0, "linear_weight_backward"),
        ((True, True, False), 0, "matmul"),
        ((False, False, True), 1, "matmul"),
    ):
        assert counted_sums(wt.linear(*leaves((x, weight, bias), wanted)), dy) == sums
        assert launches[-1] == last


def test_adapters_of_a_frozen_layer(torch_device, launches):
    """LoRA: the weight takes no product, the adapters take theirs."""
    frozen = wt.nn.Linear(8, 6, device=torch_device).requires_grad_(False)
    down, up = (wt.nn.Linear(*sizes, bias=False, device=torch_device) for sizes in ((8, 2), (2, 6)))
    x, dy = torch.randn(4, 8, device=torch_device), torch.randn(4, 6, device=torch_device)
    y = frozen(x) + up(down(x))
    launches.clear()
    y.backward(dy)
    # Of the adapters alone, and of what lies between them.
    assert len(launches) == 3 and frozen.weight.grad is None
    torch.testing.assert_close(up.weight.grad, dy.T @ (x @ down.weight.detach().T), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(down.weight.grad, (dy @ up.weight.detach()).T @ x, rtol=1e-5, atol=1e-5)


# Ours, PyTorch's, shapes, and the arguments whose gradients can be left out.
NORMS = {
    "layer_norm": (
        lambda x, w, b: wt.layer_norm(x, 6, w, b),
        lambda x, w, b: F.layer_norm(x, (6,), w, b),
        ((4, 6), (6,), (6,)),
        (2,),
    ),
    "add_layer_norm": (
        lambda x, r, w, b: wt.add_layer_norm(x, r, 6, w, b)[0],
        lambda x, r, w, b: F.layer_norm(x + r, (6,), w, b),
        ((4, 6), (4, 6), (6,), (6,)),
        (3,),
    ),
    "add_rms_norm": (
        lambda x, r, w: wt.add_rms_norm(x, r, 6, w)[0],
        lambda x, r, w: F.rms_norm(x + r, (6,), w),
        ((4, 6), (4, 6), (6,)),
        (),
    ),
    "group_norm": (
        lambda x, w, b: wt.group_norm(x, 2, w, b, silu=True),
        lambda x, w, b: F.silu(F.group_norm(x, 2, w, b)),
        ((3, 4, 5), (4,), (4,)),
        (1, 2),
    ),
    "instance_norm": (
        lambda x, w, b: wt.instance_norm(x, None, None, w, b),
        lambda x, w, b: F.instance_norm(x, None, None, w, b),
        ((3, 4, 5), (4,), (4,)),
        (1, 2),
    ),
    "batch_norm": (
        lambda x, w, b, r: wt.batch_norm(x, None, None, w, b, True, relu=True, residual=r),
        lambda x, w, b, r: F.relu(F.batch_norm(x, None, None, w, b, True) + r),
        ((6, 4, 5), (4,), (4,), (6, 4, 5)),
        (2, 3),
    ),
    "batch_norm without relu": (
        lambda x, w, b, r: wt.batch_norm(x, None, None, w, b, True, residual=r),
        lambda x, w, b, r: F.batch_norm(x, None, None, w, b, True) + r,
        ((6, 4, 5), (4,), (4,), (6, 4, 5)),
        (2, 3),
    ),
    "batch_norm_inference": (
        lambda x, w, b, r: wt.batch_norm(x, torch.zeros_like(w), torch.ones_like(w), w, b, relu=True, residual=r),
        lambda x, w, b, r: F.relu(F.batch_norm(x, torch.zeros_like(w), torch.ones_like(w), w, b) + r),
        ((6, 4, 5), (4,), (4,), (6, 4, 5)),
        (2, 3),
    ),
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", NORMS)
def test_norms(name, compiled, torch_device):
    ours, theirs, shapes, left_out = NORMS[name]
    tensors = [torch.randn(shape, device=torch_device) for shape in shapes]
    wide = [t.double() for t in tensors]
    dy = torch.randn_like(theirs(*tensors))
    for wanted in subsets(len(shapes)):
        function = called(ours, compiled)
        compared(gradients(function, tensors, wanted, dy), gradients(theirs, wide, wanted, dy), wanted)
        if not compiled:
            # The sum of the two terms is a result too.
            dys = (dy, torch.zeros_like(dy)) if name.startswith("add_") else (dy,)
            # The result keeps what it has saved.
            y = ours(*leaves(tensors, wanted))
            found = y.grad_fn.apply(*dys)
            assert all(found[at] is None for at in left_out if not wanted[at]), wanted


def test_native_gradients_that_are_left_out(torch_device):
    x, weight, bias = (torch.randn(shape, device=torch_device) for shape in ((3, 4, 5), (4,), (4,)))
    y, mean, rstd = ww.group_norm(x, 2, weight, bias, silu=True, statistics=True)
    whole = ww.group_norm_backward(x, y, mean, rstd, 2, weight, bias, silu=True)
    for of_weight, of_bias in ((True, False), (False, True), (False, False)):
        flags = {"weight_gradient": of_weight, "bias_gradient": of_bias}
        found = ww.group_norm_backward(x, y, mean, rstd, 2, weight, bias, silu=True, **flags)
        for part, expected, wanted in zip(found, whole, (True, of_weight, of_bias)):
            assert (part is not None) == wanted
            assert part is None or torch.equal(part, expected)
