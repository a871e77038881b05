"""Convolutions of `warpwright.torch`, held against PyTorch's in f64."""

from __future__ import annotations

import copy
import itertools
import random

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import warpwright as ww  # noqa: E402
import warpwright.torch as wt  # noqa: E402
from conftest import BUDGETS, rounds  # noqa: E402
from images import DTYPES, FORMATS, close, compile_anew, leaves, results  # noqa: E402
from warpwright.torch import _conv  # noqa: E402

F = torch.nn.functional
NAMES = [f"{name}{dims}d" for name in ("conv", "conv_transpose") for dims in (1, 2, 3)]

@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(5)


def case(r, name, dtype, device):
    """Tensors and options."""
    dims, is_transposed = int(name[-2]), "transpose" in name
    choose = lambda *of: [r.choice(of) for _ in range(dims)]  # noqa: E731
    groups = r.choice([1, 1, 2, 3])
    channels, filters = (groups * r.choice([1, 2, 3, 4]) for _ in range(2))
    kernel, stride, dilation = choose(1, 2, 3), choose(1, 1, 2, 3), choose(1, 1, 2)
    options = {"stride": stride, "dilation": dilation, "padding": choose(0, 1, 2), "groups": groups}
    image = [d * (k - 1) + 1 + r.choice([0, 1, 3]) for d, k in zip(dilation, kernel)]
    if is_transposed:
        options["output_padding"] = [r.randrange(max(s, d)) for s, d in zip(stride, dilation)]
        image = [n + 2 * p for n, p in zip(choose(1, 2, 3), options["padding"])]
    elif r.random() < 0.3:
        options["padding"] = r.choice(["same", "valid"])
        if options["padding"] == "same":
            options["stride"] = 1
    batch = r.choice([[], [1], [2]])
    new = lambda *shape: torch.randn(shape, device=device, dtype=dtype)  # noqa: E731
    x = new(*batch, filters if is_transposed else channels, *image)
    weight, bias = new(filters, channels // groups, *kernel), new(channels if is_transposed else filters)
    if batch:
        x = x.contiguous(memory_format=r.choice(FORMATS[x.dim()]))
    return (x, weight.contiguous(memory_format=r.choice(FORMATS[weight.dim()])), r.choice([bias, None])), options


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("name", NAMES)
def test_random_cases(name, torch_device):
    r = random.Random(name)
    for number in range(12):
        dtype = DTYPES[number % 4]
        tensors, options = case(r, name, dtype, torch_device)
        found, dy = results(lambda *t: getattr(wt, name)(*t, **options), tensors)
        exact, _ = results(lambda *t: getattr(F, name)(*t, **options), tensors, dy, torch.float64)
        close(found, exact, dtype)


def test_strides_are_those_of_pytorch(torch_device):
    """Of results and of gradients of images, where strides leave the format open too."""
    function = lambda *t: F.conv2d(*t, padding=1)  # noqa: E731
    shapes = itertools.product((1, 2), (1, 3), ((4, 5), (1, 1)), ((3, 3), (1, 1)))
    for batch, channels, image, kernel in shapes:
        for of_x, of_weight in itertools.product(FORMATS[4], repeat=2):
            x = torch.randn(batch, channels, *image, device=torch_device).contiguous(memory_format=of_x)
            weight = torch.randn(2, channels, *kernel, device=torch_device).contiguous(memory_format=of_weight)
            (y, dx, dweight), dy = results(lambda *t: wt.conv2d(*t, padding=1), (x, weight))
            (other, other_dx, _), _ = results(function, (x, weight), dy)
            assert (y.stride(), dx.stride()) == (other.stride(), other_dx.stride()), (x.stride(), weight.stride())
            # That of the weight lies as the weight, so that no optimizer makes a copy.
            assert dweight.is_contiguous(memory_format=of_weight)


def test_strides_of_films(torch_device):
    last = torch.channels_last_3d
    for name in ("conv3d", "conv_transpose3d"):
        x, weight = torch.randn(2, 4, 3, 3, 4, device=torch_device), torch.randn(4, 4, 2, 1, 2, device=torch_device)
        for of_x, of_weight in itertools.product(FORMATS[5], repeat=2):
            given = x.contiguous(memory_format=of_x), weight.contiguous(memory_format=of_weight)
            (y, dx, dweight), _ = results(getattr(wt, name), given)
            expected = last if last in (of_x, of_weight) else torch.contiguous_format
            assert all(t.is_contiguous(memory_format=expected) for t in (y, dx))
            assert dweight.is_contiguous(memory_format=of_weight)


def test_other_strides(torch_device):
    """Slices, permuted images and gradients that are expanded."""
    x, weight = torch.randn(2, 6, 5, 8, device=torch_device), torch.randn(3, 4, 3, 6, device=torch_device)
    for view in (lambda t: t[:, 1:4, :, ::2], lambda t: t.permute(3, 1, 0, 2)[:2, :3], lambda t: t[:, :3].mT):
        kernel = weight.permute(0, 2, 1, 3)[:, :, :2, ::3]
        given = leaves((x, kernel))
        wide = leaves((x, kernel), torch.float64)
        y, expected = (f(view(t), w, padding=2) for f, (t, w) in ((wt.conv2d, given), (F.conv2d, wide)))
        y.sum().backward(), expected.sum().backward()
        close([y.detach(), *(t.grad for t in given)], [expected.detach(), *(t.grad for t in wide)], torch.float32)
    sound = torch.randn(2, 9, 3, device=torch_device).mT
    assert wt.conv1d(sound, torch.randn(4, 3, 3, device=torch_device)).is_contiguous()


def test_asymmetric_padding(torch_device):
    x, weight = torch.randn(2, 3, 5, 4, device=torch_device), torch.randn(4, 3, 3, 2, device=torch_device)
    found, dy = results(lambda *t: wt.conv2d(*t, padding=((2, 0), (0, 1))), (x, weight))
    exact, _ = results(lambda x, w: F.conv2d(F.pad(x, (0, 1, 2, 0)), w), (x, weight), dy, torch.float64)
    close(found, exact, torch.float32)
    weight = weight.transpose(0, 1)
    found, dy = results(lambda *t: wt.conv_transpose2d(*t, padding=((2, 0), (0, 1))), (x, weight))
    exact, _ = results(lambda *t: F.conv_transpose2d(*t)[..., 2:, :-1], (x, weight), dy, torch.float64)
    close(found, exact, torch.float32)


ACTIVATIONS = {
    "relu": F.relu,
    "gelu_erf": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


@pytest.mark.parametrize("name, compiled", [*((name, False) for name in ACTIVATIONS), ("relu", True), ("silu", True)])
def test_activations(name, compiled, torch_device):
    tensors = [torch.randn(shape, device=torch_device) for shape in ((2, 3, 4), (4, 3, 2), (4,))]
    ours = lambda *t: wt.conv1d(*t, padding=1, activation=name)  # noqa: E731
    ours = compile_anew(ours) if compiled else ours
    found, dy = results(ours, tensors)
    exact, _ = results(lambda *t: ACTIVATIONS[name](F.conv1d(*t, padding=1)), tensors, dy, torch.float64)
    close(found, exact, torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(ours(*tensors), found[0], rtol=1e-5, atol=1e-6)
    transform = torch.func.grad(lambda x: (wt.conv1d(x, *tensors[1:], padding=1, activation=name) * dy).sum())
    transform = torch.compile(transform, backend="aot_eager") if compiled else transform
    torch.testing.assert_close(transform(tensors[0]), found[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_scales_and_residuals(scaled, compiled, torch_device):
    shapes = ((2, 3, 4, 5), (4, 3, 3, 3), (4,), (2, 4, 4, 5), *[(4,)] * scaled)
    tensors = [torch.randn(shape, device=torch_device) for shape in shapes]

    def ours(x, weight, bias, residual, scale=None):
        return wt.conv2d(x, weight, bias, padding=1, scale=scale, residual=residual, activation="silu")

    def theirs(x, weight, bias, residual, *scale):
        y = F.conv2d(x, weight, padding=1)
        y = y * scale[0][:, None, None] if scale else y
        return F.silu(y + bias[:, None, None] + residual)

    ours = compile_anew(ours) if compiled else ours
    found, dy = results(ours, tensors)
    exact, _ = results(theirs, tensors, dy, torch.float64)
    close(found, exact, torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(ours(*tensors), found[0], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(ours(tensors[0][0], *tensors[1:3], tensors[3][0], *tensors[4:]), found[0][0], rtol=1e-5, atol=1e-6)


def test_scales_of_16_bits_are_refused(torch_device):
    x, weight = (torch.randn(1, 4, 3, 3, device=torch_device).half() for _ in range(2))
    with pytest.raises(ww.DtypeError) as raised:
        wt.conv2d(x, weight, scale=torch.ones(1, device=torch_device).half())
    assert (raised.value.op, raised.value.argument) == ("conv2d", "scale")
    with pytest.raises(ww.ShapeError) as raised:
        wt.conv2d(x, weight, residual=torch.ones(1, 1, 1, 2, device=torch_device).half())
    assert raised.value.argument == "residual"


def test_opcheck_of_scales_and_residuals(torch_device):
    new = lambda *shape: torch.randn(shape, device=torch_device)  # noqa: E731
    tensors = new(2, 3, 4, 5), new(4, 3, 3, 3), new(4), new(4), new(2, 4, 4, 5)
    rest = ([1, 1], [1, 1, 1, 1], [1, 1], 1, "full", "relu", False)
    torch.library.opcheck(torch.ops.warpwright.conv_with_ends.default, (*tensors, *rest))


def test_an_operator_has_no_gradient_through_what_it_does_not_save(torch_device):
    x = torch.randn(2, 3, 4, device=torch_device, requires_grad=True)
    weight = torch.randn(4, 3, 2, device=torch_device)
    y = torch.ops.warpwright.conv(x, weight, None, [1], [0, 0], [1], 1, "full", "silu", False)
    with pytest.raises(RuntimeError, match="no gradient through silu"):
        y.sum().backward()


@pytest.mark.parametrize("name, dynamic", [*((name, False) for name in NAMES), ("conv2d", True), ("conv_transpose1d", True)])
def test_compiled(name, dynamic, torch_device):
    """The same values and strides, and of all extents from one graph if it is asked for."""
    dims = int(name[-2])
    options = {"stride": 2, "padding": 1, "groups": 2}
    options |= {"output_padding": 1} if "transpose" in name else {"dilation": 2}
    function = lambda *t: getattr(wt, name)(*t, **options)  # noqa: E731
    compiled = compile_anew(function, dynamic=dynamic)
    for extent in (5, 6) if dynamic else (5,):
        x, weight = torch.randn(2, 4, *[extent] * dims), torch.randn(4, 2, *[3, 2, 2][:dims])
        tensors = [t.to(torch_device, memory_format=FORMATS[dims + 2][-1]) for t in (x, weight)]
        found, dy = results(compiled, [*tensors, torch.randn(4, device=torch_device)])
        expected, _ = results(function, [*tensors, torch.randn(4, device=torch_device)], dy)
        for a, b in zip(found[1:], expected[1:]):
            assert torch.equal(a, b) and a.stride() == b.stride()
        assert found[0].stride() == expected[0].stride()


def operator_arguments(form, device):
    new = lambda *shape: torch.randn(shape, device=device).contiguous(memory_format=form)  # noqa: E731
    last, bias = form == torch.channels_last, torch.randn(4, device=device)
    sides = [[2, 1], [1, 0, 1, 1], [1, 1]]
    return {
        "conv": (new(2, 4, 5, 3), new(4, 2, 3, 2), bias, *sides, 2, "full", "relu", last),
        "conv_transpose": (new(2, 4, 2, 3), new(4, 2, 3, 2), bias, *sides, 2, "full", [4, 2], last),
    }


@pytest.mark.parametrize("form", FORMATS[4], ids=str)
@pytest.mark.parametrize("name", ["conv", "conv_transpose"])
def test_opcheck(name, form, torch_device):
    *tensors, bias = operator_arguments(form, torch_device)[name][:3]
    rest = operator_arguments(form, torch_device)[name][3:]
    for wanted in ((True, True, True), (True, False, False), (False, True, False)):
        given = [t.detach().requires_grad_(need) for t, need in zip((*tensors, bias), wanted)]
        torch.library.opcheck(getattr(torch.ops.warpwright, name).default, (*given, *rest))


@pytest.mark.parametrize("name", ["conv2d", "conv_transpose2d"])
def test_gradcheck(name, torch_device):
    new = lambda *shape: torch.randn(shape, device=torch_device, dtype=torch.float64, requires_grad=True)  # noqa: E731
    tensors = new(1, 2, 3, 3), new(2, 1, 2, 3), new(2)
    assert torch.autograd.gradcheck(lambda *t: getattr(wt, name)(*t, stride=2, padding=1, groups=2), tensors)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", ["conv2d", "conv_transpose2d"])
def test_gradients_that_nobody_wants(name, compiled, torch_device, monkeypatch):
    """They are not computed, and what they alone are computed from is not saved, but for weights."""
    asked = []
    native = ww._native.conv_backward

    def counted(*arguments, **options):
        asked.append(tuple(options.get(f"{of}_gradient", True) for of in ("x", "weight", "bias")))
        return native(*arguments, **options)

    tensors = [torch.randn(shape, device=torch_device) for shape in ((2, 4, 5, 3), (4, 4, 2, 3), (4,))]
    for wanted in itertools.product((True, False), repeat=3):
        if not any(wanted):
            continue
        given = [t.detach().requires_grad_(need) for t, need in zip(tensors, wanted)]
        function, packed = getattr(wt, name), []
        function = compile_anew(function) if compiled else function
        with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t.data_ptr()) or t, lambda t: t):
            y = function(*given)
        if not compiled:
            assert [t.data_ptr() in packed for t in given] == [wanted[1], wanted[0] or wanted[1], False]
        dy = torch.randn_like(y)
        monkeypatch.setattr(ww._native, "conv_backward", counted)
        asked.clear()
        y.backward(dy)
        monkeypatch.undo()
        if name == "conv2d":
            assert asked == ([wanted] if wanted[0] or wanted[1] else [])
        else:
            assert asked == ([(False, True, False)] if wanted[1] else [])
        wide = [t.detach().double().requires_grad_(need) for t, need in zip(tensors, wanted)]
        getattr(F, name)(*wide).backward(dy.double())
        for a, b in zip(given, wide):
            assert (a.grad is None) == (b.grad is None)
            assert a.grad is None or torch.allclose(a.grad.double(), b.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["conv2d", "conv_transpose2d"])
def test_autocast(name, torch_device):
    x, weight, bias = (torch.randn(shape, device=torch_device) for shape in ((2, 4, 5, 3), (4, 4, 2, 2), (4,)))
    x, weight = x.to(memory_format=torch.channels_last), weight.requires_grad_()
    found = []
    for function in (getattr(wt, name), getattr(F, name)):
        weight.grad = None
        with torch.autocast(torch_device, dtype=torch.bfloat16):
            y = function(x, weight, bias)
        y.float().square().sum().backward()
        found.append((y.detach(), weight.grad))
    for a, b in zip(*found):
        assert (a.dtype, a.stride()) == (b.dtype, b.stride())
        assert float((a.double() - b.double()).norm() / b.double().norm()) < 2e-2


@pytest.fixture
def tf32(monkeypatch, torch_device):
    """The device has products of tf32: on the CPU the emulator is taken for a GPU."""
    if torch_device == "cpu":
        monkeypatch.setattr(_conv, "_has_tf32", lambda device: True)
    elif torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("the GPU has no tf32")


def factors(device, dtype=torch.float32):
    """Images and a weight whose products are rounded in every pass if they may be."""
    tensors = torch.randn(2, 8, 6, 5, device=device), torch.randn(8, 8, 3, 2, device=device)
    return [t.to(dtype) for t in tensors]


def is_rounded(name, found, tensors, dy):
    """Whether the result and all gradients are, or none of them."""
    exact, _ = results(getattr(F, name), tensors, dy, torch.float64)
    distances = [float((a.double() - b).norm() / b.norm()) for a, b in zip(found, exact)]
    rounded = [1e-5 < d < 2e-3 for d in distances]
    assert all(rounded) or max(distances) < 2 * BUDGETS["float32"], distances
    return all(rounded)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", ["conv2d", "conv_transpose2d"])
def test_precision(name, compiled, torch_device, tf32):
    """That of PyTorch, unless it is asked for."""
    tensors = factors(torch_device)
    for allowed, precision in itertools.product((True, False), (None, "full", "tf32")):
        function = lambda *t: getattr(wt, name)(*t, precision=precision)  # noqa: B023, E731
        function = compile_anew(function) if compiled else function
        with rounds(allowed):
            found, dy = results(function, tensors)
            assert is_rounded(name, found, tensors, dy) == (allowed if precision is None else precision == "tf32")
            with torch.no_grad():
                assert torch.equal(function(*tensors), found[0])


@pytest.mark.skipif(not hasattr(torch.backends.cudnn, "conv"), reason="cuDNN has one setting for all that it does")
def test_precision_of_convolutions_alone(torch_device, tf32):
    """A setting that recurrent nets do not share."""
    tensors = factors(torch_device)
    with rounds(True):
        for precision in ("ieee", "tf32"):
            torch.backends.cudnn.conv.fp32_precision = precision
            found, dy = results(wt.conv2d, tensors)
            assert is_rounded("conv2d", found, tensors, dy) == (precision == "tf32")


@pytest.mark.parametrize("name", ["conv2d", "conv_transpose2d"])
def test_gradients_have_the_precision_of_the_result(name, torch_device, tf32):
    tensors = factors(torch_device)
    for allowed in (True, False):
        given = leaves(tensors)
        with rounds(allowed):
            y = getattr(wt, name)(*given)
        dy = torch.randn_like(y)
        with rounds(not allowed):
            gradients = torch.autograd.grad(y, given, dy)
        assert is_rounded(name, [y.detach(), *gradients], tensors, dy) == allowed


@pytest.mark.parametrize("name", ["conv2d", "conv_transpose2d"])
def test_precision_under_transforms(name, torch_device, tf32):
    tensors = factors(torch_device)
    for allowed in (True, False):
        with rounds(allowed):
            y, gradients = torch.func.vjp(getattr(wt, name), *tensors)
        dy = torch.randn_like(y)
        assert is_rounded(name, [y, *gradients(dy)], tensors, dy) == allowed


@pytest.mark.parametrize("name", ["conv2d", "conv_transpose2d"])
def test_other_types_are_not_rounded(name, torch_device, tf32):
    for dtype in DTYPES[1:]:
        tensors = factors(torch_device, dtype)
        with rounds(True):
            found, dy = results(getattr(wt, name), tensors)
        close(found, results(getattr(F, name), tensors, dy, torch.float64)[0], dtype)
        with pytest.raises(ww.ParameterError, match=f"^{name}: precision is tf32, must be full for"):
            getattr(wt, name)(*tensors, precision="tf32")
    with rounds(True), torch.autocast(torch_device, dtype=torch.bfloat16):
        assert getattr(wt, name)(*factors(torch_device)).dtype == torch.bfloat16


def test_the_emulator_does_not_round():
    tensors = factors("cpu")
    with rounds(True):
        found, dy = results(wt.conv2d, tensors)
    assert not is_rounded("conv2d", found, tensors, dy)


@pytest.mark.parametrize("name", ["conv2d", "conv_transpose2d"])
def test_precision_of_modules(name, torch_device, tf32):
    kind = {"conv2d": "Conv2d", "conv_transpose2d": "ConvTranspose2d"}[name]
    x, weight = factors(torch_device)
    for allowed, precision in itertools.product((True, False), (None, "full", "tf32")):
        module = getattr(wt.nn, kind)(8, 8, (3, 2), bias=False, precision=precision).to(torch_device)
        module.weight = torch.nn.Parameter(weight)
        with rounds(allowed):
            found, dy = results(module, [x])
        exact, _ = results(lambda x: getattr(F, name)(x, weight.to(x.dtype)), [x], dy, torch.float64)
        rounded = [float((a.double() - b).norm() / b.norm()) > 1e-5 for a, b in zip(found, exact)]
        assert rounded == [allowed if precision is None else precision == "tf32"] * 2


def test_second_derivatives_are_refused(torch_device):
    x, weight = (torch.randn(shape, device=torch_device, requires_grad=True) for shape in ((1, 2, 4), (2, 2, 3)))
    for function in (wt.conv1d, wt.conv_transpose1d):
        (dx,) = torch.autograd.grad(function(x, weight).square().sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="no second derivative"):
            dx.sum().backward()


def test_a_result_may_change_in_place(torch_device):
    """A ReLU behind a convolution writes over its result, as PyTorch's users have it."""
    for form in FORMATS[4]:
        x = torch.randn(2, 3, 4, 4, device=torch_device).contiguous(memory_format=form)
        weight = torch.randn(4, 3, 3, 3, device=torch_device)
        found, dy = results(lambda *t: F.relu(wt.conv2d(*t), inplace=True), (x, weight))
        exact, _ = results(lambda *t: F.relu(F.conv2d(*t)), (x, weight), dy, torch.float64)
        close(found, exact, torch.float32)


MODULES = [
    ("Conv1d", (4, 6, 3), {"stride": 2, "padding": 1, "groups": 2}, (2, 4, 9), {}),
    ("Conv1d", (4, 6, 4), {"padding": "same", "padding_mode": "circular"}, (4, 9), {}),
    ("Conv2d", (4, 6, 3), {"padding": "same", "dilation": 2, "bias": False}, (2, 4, 6, 5), {}),
    ("Conv2d", (4, 6, (3, 2)), {"padding": (1, 2), "padding_mode": "reflect"}, (2, 4, 6, 5), {}),
    ("Conv2d", (4, 6, 3), {"padding": 1, "padding_mode": "replicate", "stride": (2, 1)}, (2, 4, 6, 5), {}),
    ("Conv3d", (2, 4, 2), {"padding": (1, 0, 1), "padding_mode": "circular"}, (1, 2, 3, 4, 3), {}),
    ("ConvTranspose1d", (4, 6, 3), {"stride": 2, "output_padding": 1, "groups": 2}, (2, 4, 5), {}),
    ("ConvTranspose2d", (4, 6, 3), {"stride": 2, "padding": 1}, (2, 4, 4, 3), {"output_size": (8, 6)}),
    ("ConvTranspose3d", (2, 4, 2), {"stride": (1, 2, 1), "bias": False}, (2, 3, 2, 3), {}),
]


@pytest.mark.parametrize("name, arguments, options, shape, further", MODULES)
def test_modules(name, arguments, options, shape, further, torch_device):
    mine, other = (getattr(nn, name)(*arguments, **options).to(torch_device) for nn in (wt.nn, torch.nn))
    assert isinstance(mine, type(other)) and repr(mine) == repr(other)
    assert mine.load_state_dict(other.state_dict()) and mine.state_dict().keys() == other.state_dict().keys()
    other = other.double()
    a = torch.randn(shape, device=torch_device, requires_grad=True)
    b = a.detach().double().requires_grad_()
    y, expected = mine(a, **further), other(b, **further)
    dy = torch.randn_like(y)
    y.backward(dy), expected.backward(dy.double())
    found = [y.detach(), a.grad, *(p.grad for p in mine.parameters())]
    close(found, [expected.detach(), b.grad, *(p.grad for p in other.parameters())], torch.float32)


def test_transposed_modules_know_no_other_padding():
    with pytest.raises(ValueError, match="zeros"):
        wt.nn.ConvTranspose2d(2, 2, 2, padding_mode="circular")


def network():
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=4, bias=False),
        nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 12, 1), nn.ReLU(inplace=True), nn.ConvTranspose2d(12, 4, 2, stride=2),
        nn.AvgPool2d(8), nn.Flatten(), nn.Linear(4, 5),
    )  # fmt: skip


def swapped(model):
    """A copy whose convolutions are ours, with the same parameters."""
    model = copy.deepcopy(model)
    for name, theirs in model.named_children():
        if type(theirs).__name__ in wt.nn.__all__ and "Conv" in type(theirs).__name__:
            # The same attributes, the other forward pass.
            theirs.__class__ = getattr(wt.nn, type(theirs).__name__)
    return model


def losses(model, x, target, steps=4):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        found.append(loss.detach().double().cpu())
    return torch.stack(found)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("form", FORMATS[4], ids=str)
def test_training_is_that_of_pytorch(form, compiled, torch_device):
    theirs = network()
    x, target = torch.randn(4, 3, 8, 8), torch.tensor([0, 3, 1, 4])
    exact = losses(copy.deepcopy(theirs).double(), x.double(), target)
    ours = swapped(theirs).to(torch_device, memory_format=form)
    assert sum(type(m).__module__.startswith("warpwright") for m in ours) == 4
    if compiled:
        torch._dynamo.reset()
        # On the CPU, inductor would need a C++ compiler.
        ours.compile(fullgraph=True, backend="inductor" if torch_device == "cuda" else "aot_eager")
    found = losses(ours, x.to(torch_device), target.to(torch_device))
    assert exact[-1] < exact[0] and torch.allclose(found, exact, rtol=1e-5)


def ones(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype)


IMAGE, WEIGHT = ones(2, 4, 5, 6), ones(6, 4, 3, 3)
# Operator, tensors, options, error, argument.
REFUSED = [
    ("conv2d", (ones(5, 6), WEIGHT), {}, ww.ShapeError, "input"),
    ("conv2d", (ones(1, 2, 4, 5, 6), WEIGHT), {}, ww.ShapeError, "input"),
    ("conv2d", (IMAGE, ones(6, 4, 3)), {}, ww.ShapeError, "weight"),
    ("conv1d", (ones(2, 4, 5), ones(6, 3, 3)), {}, ww.ShapeError, "weight"),
    ("conv2d", (IMAGE, WEIGHT), {"groups": 2}, ww.ShapeError, "weight"),
    ("conv2d", (IMAGE, WEIGHT), {"groups": 3}, ww.ParameterError, "groups"),
    ("conv2d", (IMAGE, ones(6, 1, 3, 3)), {"groups": 4}, ww.ParameterError, "groups"),
    ("conv2d", (IMAGE, WEIGHT), {"groups": 0}, ww.ParameterError, "groups"),
    ("conv2d", (IMAGE, WEIGHT, ones(5)), {}, ww.ShapeError, "bias"),
    ("conv2d", (IMAGE, WEIGHT, ones(6, 1)), {}, ww.ShapeError, "bias"),
    ("conv2d", (IMAGE, WEIGHT.double()), {}, ww.DtypeError, "weight"),
    ("conv2d", (IMAGE, WEIGHT, ones(6, dtype=torch.float64)), {}, ww.DtypeError, "bias"),
    ("conv2d", (IMAGE, ones(6, 4, 6, 3)), {}, ww.ShapeError, "weight"),
    ("conv2d", (IMAGE, WEIGHT), {"dilation": (1, 3)}, ww.ShapeError, "weight"),
    ("conv3d", (ones(1, 1, 2, 2, 2), ones(1, 1, 1, 3, 1)), {}, ww.ShapeError, "weight"),
    ("conv2d", (IMAGE, WEIGHT), {"stride": 0}, ww.ParameterError, "stride"),
    ("conv2d", (IMAGE, WEIGHT), {"stride": (1, 1, 1)}, ww.ParameterError, "stride"),
    ("conv2d", (IMAGE, WEIGHT), {"dilation": 0}, ww.ParameterError, "dilation"),
    ("conv2d", (IMAGE, WEIGHT), {"padding": -1}, ww.ParameterError, "padding"),
    ("conv2d", (IMAGE, WEIGHT), {"padding": ((1, 2, 3), 1)}, ww.ParameterError, "padding"),
    ("conv2d", (IMAGE, WEIGHT), {"padding": 1.5}, ww.ParameterError, "padding"),
    ("conv2d", (IMAGE, WEIGHT), {"padding": "full"}, ww.ParameterError, "padding"),
    ("conv2d", (IMAGE, WEIGHT), {"padding": "same", "stride": 2}, ww.ParameterError, "padding"),
    ("conv2d", (IMAGE, WEIGHT), {"precision": "half"}, ww.ParameterError, "precision"),
    ("conv_transpose2d", (ones(2, 6, 5, 5), WEIGHT), {"precision": "half"}, ww.ParameterError, "precision"),
    ("conv_transpose2d", (ones(4, 5), WEIGHT), {}, ww.ShapeError, "input"),
    ("conv_transpose2d", (IMAGE, WEIGHT), {}, ww.ShapeError, "input"),
    ("conv_transpose2d", (ones(2, 6, 5, 5), WEIGHT), {"groups": 4}, ww.ParameterError, "groups"),
    ("conv_transpose2d", (ones(2, 6, 5, 5), WEIGHT, ones(6)), {}, ww.ShapeError, "bias"),
    ("conv_transpose2d", (ones(2, 6, 5, 5), WEIGHT, ones(4).half()), {}, ww.DtypeError, "bias"),
    ("conv_transpose2d", (ones(2, 6, 5, 5), WEIGHT.double()), {}, ww.DtypeError, "weight"),
    ("conv_transpose2d", (ones(2, 6, 5, 5), WEIGHT), {"output_padding": 1}, ww.ParameterError, "output_padding"),
    ("conv_transpose2d", (ones(2, 6, 1, 1), WEIGHT), {"padding": 2}, ww.ShapeError, "input"),
    ("conv_transpose1d", (ones(1, 1, 3), ones(1, 1, 2)), {"stride": 0}, ww.ParameterError, "stride"),
]


@pytest.mark.parametrize("name, tensors, options, error, argument", REFUSED)
def test_both_refuse(name, tensors, options, error, argument, torch_device):
    tensors = [t.to(torch_device) for t in tensors]
    with pytest.raises(Exception):
        getattr(F, name)(*tensors, **options)
    with pytest.raises(error) as info:
        getattr(wt, name)(*tensors, **options)
    e = info.value
    assert (e.op, e.argument) == (name, argument) and str(e).startswith(f"{name}: {argument} ")


def test_what_the_messages_say(torch_device):
    image, weight = IMAGE.to(torch_device), WEIGHT.to(torch_device)
    for match, call in (
        (r"conv2d: weight has shape \[6, 4, 3, 3\], expected \[6, 2, 3, 3\]", lambda: wt.conv2d(image, weight, groups=2)),
        ("conv2d: input has 2 dimensions, expected 3 or 4", lambda: wt.conv2d(image[0, 0], weight)),
        ("3 taps over 5 pixels in spatial dimension 0, expected from 1 to 4", lambda: wt.conv2d(image[:, :, :4], weight, dilation=2)),
        ("conv2d: padding is 'same', expected numbers", lambda: wt.conv2d(image, weight, padding="same", stride=2)),
        (r"conv_transpose2d: input has shape \[2, 4, 5, 6\], expected \[2, 6, 5, 6\]", lambda: wt.conv_transpose2d(image, weight)),
        ("conv2d: input is i32, expected f32, f64, f16, bf16", lambda: wt.conv2d(image.int(), weight.int())),
    ):
        with pytest.raises(ww.Error, match=match):
            call()


def test_native_functions_in_the_formats_of_pytorch(torch_device):
    x, weight = torch.randn(2, 4, 5, 3, device=torch_device), torch.randn(6, 4, 2, 2, device=torch_device)
    last = x.to(memory_format=torch.channels_last)
    expected = F.conv2d(x.double(), weight.double()).float()
    for given, options, is_last in (
        (x, {}, False), (last, {}, True), (x, {"memory_format": "channels_last"}, True),
        (last, {"memory_format": "contiguous_format"}, False),
    ):  # fmt: skip
        y = ww.conv(given, weight, **options)
        assert y.is_contiguous(memory_format=torch.channels_last) == is_last
        torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
        dx, dweight, dbias = ww.conv_backward(given, weight, torch.ones_like(y), **options)
        assert dx.is_contiguous(memory_format=torch.channels_last) == is_last and dweight.is_contiguous()
    moved = ww.conv(last.movedim(1, -1), weight.movedim(1, -1), channels_last=True)
    torch.testing.assert_close(moved.movedim(-1, 1), expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(ww.ParameterError, match="memory_format"):
        ww.conv(x[..., 0], weight[..., 0], memory_format="channels_last")


def test_no_images(torch_device):
    """Gradients of parameters are zeros."""
    x, weight, bias = (torch.randn(shape, device=torch_device) for shape in ((0, 3, 4, 4), (2, 3, 3, 3), (2,)))
    for ours, theirs, given in ((wt.conv2d, F.conv2d, weight), (wt.conv_transpose2d, F.conv_transpose2d, weight.transpose(0, 1))):
        found, dy = results(ours, (x, given, bias))
        expected, _ = results(theirs, (x, given, bias), dy)
        for a, b in zip(found, expected):
            assert a.shape == b.shape and torch.equal(a, b)
