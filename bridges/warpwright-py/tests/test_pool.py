"""Pooling of `warpwright.torch`, held against PyTorch's in f64."""

from __future__ import annotations

import copy
import itertools
import math
import random

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import warpwright as ww  # noqa: E402
import warpwright.torch as wt  # noqa: E402
from images import DTYPES, FORMATS, close, compile_anew, leaves, results  # noqa: E402

F = torch.nn.functional
SLIDING = [f"{name}_pool{dims}d" for name in ("max", "avg") for dims in (1, 2, 3)]
ADAPTIVE = [f"adaptive_{name}" for name in SLIDING]
MAXIMA = [name for name in (*SLIDING, *ADAPTIVE) if "max" in name]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(5)


def case(r, name, dtype, device):
    """Images, and what the function takes beside them."""
    dims = int(name[-2])
    choose = lambda *of: [r.choice(of) for _ in range(dims)]  # noqa: E731
    batch, channels = r.choice([[], [1], [2]]), r.choice([1, 3, 4, 8])
    if "adaptive" in name:
        image, output = choose(1, 3, 5, 6), choose(1, 2, 3, 7)
        output = r.choice([output, output[0], [None if n == 3 else n for n in output]])
        options = {"output_size": 1 if dims == 1 and output == [None] else output}
        if dims == 1 and isinstance(output, list):
            options = {"output_size": [output[0] or 2]}
    else:
        kernel, stride = choose(1, 2, 3, 4), choose(1, 1, 2, 3)
        options = {"kernel_size": kernel, "stride": r.choice([stride, None, stride[0]]), "ceil_mode": r.random() < 0.5}
        dilation = choose(1, 1, 2, 3) if "max" in name else [1] * dims
        options["padding"] = [r.randint(0, k // 2) for k in kernel]
        # Each window has a cell: PyTorch does not survive the gradient of one without, which dilation can make.
        spans = [max(d * (k - 1) + 1 - 2 * p, d) for d, k, p in zip(dilation, kernel, options["padding"])]
        # PyTorch's means of three dimensions are of images that hold a window without padding.
        spans = kernel if name == "avg_pool3d" else spans
        image = [span + r.choice([0, 1, 3]) for span in spans]
        if "max" in name:
            options["dilation"] = dilation
        else:
            options["count_include_pad"] = r.random() < 0.5
            if dims > 1:
                options["divisor_override"] = r.choice([None, None, 3, -2])
    x = torch.randn(*batch, channels, *image, device=device, dtype=dtype)
    return x.contiguous(memory_format=r.choice(FORMATS[x.dim()])) if batch else x, options


@pytest.mark.parametrize("name", [*SLIDING, *ADAPTIVE])
def test_random_cases(name, torch_device):
    r = random.Random(name)
    for number in range(16):
        dtype = DTYPES[number % 4]
        x, options = case(r, name, dtype, torch_device)
        found, dy = results(lambda t: getattr(wt, name)(t, **options), [x])
        # PyTorch's gradient of padded means with channels last is wrong on GPUs in some releases.
        exact, _ = results(lambda t: getattr(F, name)(t, **options), [x.contiguous()], dy, torch.float64)
        close(found, exact, dtype)
        if name in MAXIMA:
            # A maximum is one of the numbers.
            assert torch.equal(found[0].double(), exact[0])


@pytest.mark.parametrize("name", ["max_pool2d", "max_pool3d", "avg_pool2d", "avg_pool3d"])
def test_padding_in_each_format(name, torch_device):
    """With windows that overlap, and windows that do not."""
    for form, stride in itertools.product(FORMATS[int(name[-2]) + 2], (1, 2, 3)):
        x = torch.randn(2, 8, *(7, 6, 5)[: int(name[-2])], device=torch_device).contiguous(memory_format=form)
        found, dy = results(lambda t: getattr(wt, name)(t, 3, stride, 1), [x])
        exact, _ = results(lambda t: getattr(F, name)(t, 3, stride, 1), [x.contiguous()], dy, torch.float64)
        close(found, exact, torch.float32)


@pytest.mark.parametrize("name", MAXIMA)
def test_indices_are_those_of_pytorch(name, torch_device):
    r = random.Random(name)
    for number in range(12):
        x, options = case(r, name, DTYPES[number % 4], torch_device)
        # Few values, so that maxima are equal.
        x = x.mul(1.5).round()
        given, other = leaves([x]), leaves([x])
        y, indices = getattr(wt, name)(*given, **options, return_indices=True)
        expected, where = getattr(F, name)(*other, **options, return_indices=True)
        assert torch.equal(y, expected) and torch.equal(indices, where) and indices.dtype == torch.int64
        assert not indices.requires_grad
        dy = torch.randn_like(y)
        y.backward(dy), expected.backward(dy)
        close([given[0].grad], [other[0].grad.double()], x.dtype)


@pytest.mark.parametrize("name", MAXIMA)
def test_a_maximum_is_nan_where_there_is_one(name, torch_device):
    """And its index is that of the last one, as PyTorch has it."""
    dims = int(name[-2])
    for form in FORMATS[dims + 2]:
        x = torch.randn(2, 8, *[(30,), (7, 6), (4, 5, 3)][dims - 1], device=torch_device)
        x[torch.rand_like(x) < 0.2] = math.nan
        x[:, 0] = -math.inf
        x = x.contiguous(memory_format=form)
        arguments = (2,) if "adaptive" in name else (3, 2, 1)
        found = [t.cpu() for t in getattr(wt, name)(x, *arguments, return_indices=True)]
        # PyTorch's max_pool2d on GPUs has other indices where all of a window is -inf.
        expected = getattr(F, name)(x.cpu(), *arguments, return_indices=True)
        assert bool(found[0].isnan().any()) and bool(found[0].isinf().any())
        assert torch.equal(found[0].nan_to_num(9.0), expected[0].nan_to_num(9.0)) and torch.equal(found[1], expected[1])


def test_windows_of_every_size(torch_device):
    """Numbers of windows, and what the last ones have, with ceil_mode and without."""
    x = torch.randn(1, 2, 9, device=torch_device)
    for length, kernel, stride, dilation, ceil in itertools.product((1, 4, 7, 9), (1, 2, 3, 5), (1, 2, 4), (1, 2), (True, False)):
        for padding in range(kernel // 2 + 1):
            if dilation * (kernel - 1) + 1 > length + 2 * padding:
                continue
            part, options = x[..., :length], {"kernel_size": kernel, "stride": stride, "padding": padding, "ceil_mode": ceil}
            assert torch.equal(wt.max_pool1d(part, **options, dilation=dilation), F.max_pool1d(part, **options, dilation=dilation))
            if dilation == 1:
                for include in (True, False):
                    found, expected = (f(part, **options, count_include_pad=include) for f in (wt.avg_pool1d, F.avg_pool1d))
                    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["max_pool2d", "avg_pool2d", "adaptive_max_pool2d", "adaptive_avg_pool2d"])
def test_strides_are_those_of_pytorch(name, torch_device):
    """Of results, of gradients and of indices, where strides leave the format open too."""
    argument = (2, 1) if "adaptive" in name else 2
    for batch, channels, image in itertools.product((1, 2), (1, 3), ((4, 5), (2, 2))):
        for form in FORMATS[4]:
            x = torch.randn(batch, channels, *image, device=torch_device).contiguous(memory_format=form)
            (y, dx), dy = results(lambda t: getattr(wt, name)(t, argument), [x])
            (other, other_dx), _ = results(lambda t: getattr(F, name)(t, argument), [x], dy)
            assert (y.stride(), dx.stride()) == (other.stride(), other_dx.stride()), x.stride()
            if name in MAXIMA:
                (_, a), (_, b) = (f(x, argument, return_indices=True) for f in (getattr(wt, name), getattr(F, name)))
                assert a.stride() == b.stride()


def test_strides_of_films(torch_device):
    for form in FORMATS[5]:
        x = torch.randn(2, 3, 4, 4, 5, device=torch_device).contiguous(memory_format=form)
        for function in (wt.max_pool3d, wt.avg_pool3d, wt.adaptive_max_pool3d, wt.adaptive_avg_pool3d):
            (y, dx), _ = results(lambda t: function(t, 2), [x])
            assert y.is_contiguous(memory_format=form) and dx.is_contiguous(memory_format=form)


def test_other_strides(torch_device):
    """Slices, permuted images and gradients that are expanded."""
    x = torch.randn(2, 6, 5, 8, device=torch_device)
    for view in (lambda t: t[:, 1:4, :, ::2], lambda t: t.permute(3, 1, 0, 2), lambda t: t[:, :3].mT):
        for name in ("max_pool2d", "avg_pool2d"):
            (given,), (wide,) = leaves([x]), leaves([x], torch.float64)
            y, expected = getattr(wt, name)(view(given), 2, 1), getattr(F, name)(view(wide), 2, 1)
            y.sum().backward(), expected.sum().backward()
            close([y.detach(), given.grad], [expected.detach(), wide.grad], torch.float32)


@pytest.mark.parametrize("name", ["max_pool2d", "avg_pool1d", "adaptive_max_pool2d", "adaptive_avg_pool3d"])
def test_gradcheck(name, torch_device):
    dims = int(name[-2])
    x = torch.randperm(2 * 4**dims, device=torch_device).double().reshape(1, 2, *[4] * dims).requires_grad_()
    arguments = (3,) if "adaptive" in name else (3, 2, 1)
    assert torch.autograd.gradcheck(lambda t: getattr(wt, name)(t, *arguments), [x])




def test_what_is_kept_of_maxima(torch_device):
    """A byte for each where it is enough, an index where it is not or is asked for, and nothing where no gradient is."""
    x = torch.randn(2, 3, 20, 20, device=torch_device)
    for options, dtype in (
        ({"kernel_size": 2}, torch.uint8), ({"kernel_size": 16}, torch.uint8), ({"kernel_size": 17}, torch.int64),
        ({"kernel_size": 2, "dilation": 2}, torch.int64), ({"kernel_size": 2, "return_indices": True}, torch.int64),
    ):  # fmt: skip
        for compiled in (False, True):
            function = lambda t: wt.max_pool2d(t, **options)  # noqa: E731
            function = compile_anew(function) if compiled else function
            packed = []
            with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t.dtype) or t, lambda t: t):
                function(x.detach().requires_grad_())
            assert packed == [dtype]
    assert ww.max_pool(x, 2).shape == (2, 3, 10, 10)
    assert ww.max_pool(x, 2, argmax="tap")[1].dtype == torch.uint8
    with pytest.raises(ww.ParameterError, match="argmax is Tap, must be Index"):
        ww.max_pool(x, 17, argmax="tap")


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", [*SLIDING, *ADAPTIVE])
def test_compiled(name, dynamic, torch_device):
    """The same values and strides, and of all extents from one graph if it is asked for."""
    dims = int(name[-2])
    options = {"output_size": 2} if "adaptive" in name else {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True}
    function = lambda t: getattr(wt, name)(t, **options)  # noqa: E731
    compiled = compile_anew(function, dynamic=dynamic)
    for extent in (5, 6) if dynamic else (5,):
        x = torch.randn(2, 4, *[extent] * dims, device=torch_device).contiguous(memory_format=FORMATS[dims + 2][-1])
        found, dy = results(compiled, [x])
        for a, b in zip(found, results(function, [x], dy)[0]):
            assert torch.equal(a, b) and a.stride() == b.stride()
        with torch.no_grad():
            assert torch.equal(compiled(x), found[0])


def test_compiled_with_indices(torch_device):
    x = torch.randn(2, 4, 6, 5, device=torch_device)
    for function in (lambda t: wt.max_pool2d(t, 3, 2, 1, return_indices=True), lambda t: wt.adaptive_max_pool2d(t, 2, True)):
        (given,), (other,) = leaves([x]), leaves([x])
        found, expected = compile_anew(function)(given), function(other)
        assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
        found[0].sum().backward(), expected[0].sum().backward()
        assert torch.equal(given.grad, other.grad)


def test_exported_for_images_of_any_size():
    nn, any_size = wt.nn, {0: torch.export.Dim("n"), 2: torch.export.Dim("h", min=8)}
    modules = nn.MaxPool2d(3, 2, 1), nn.Upsample(scale_factor=1.5, mode="bilinear"), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d((2, 1))
    model = torch.nn.Sequential(*modules)
    exported = torch.export.export(model, (torch.randn(2, 3, 8, 6),), dynamic_shapes=(any_size,)).module()
    x = torch.randn(5, 3, 11, 6)
    assert torch.equal(exported(x), model(x))


def operators(last):
    of_windows = [3, 2], [2, 1], [1, 0]
    return {
        "max_pool": (*of_windows, [1, 1], True, "tap", last),
        "max_pool_with_indices": (*of_windows, [1, 2], False, "index", last),
        "avg_pool": (*of_windows, True, False, None, last),
        "adaptive_max_pool": ([2, 3], "index", last),
        "adaptive_max_pool_with_indices": ([2, 3], "index", last),
        "adaptive_avg_pool": ([2, 3], last),
    }


@pytest.mark.parametrize("form", FORMATS[4], ids=str)
@pytest.mark.parametrize("name", list(operators(False)))
def test_opcheck(name, form, torch_device):
    x = torch.randn(2, 3, 5, 4, device=torch_device).contiguous(memory_format=form).requires_grad_()
    arguments = operators(form == torch.channels_last)[name]
    torch.library.opcheck(getattr(torch.ops.warpwright, name).default, (x, *arguments))


def test_an_operator_has_no_gradient_through_what_it_does_not_save(torch_device):
    x = torch.randn(2, 3, 4, device=torch_device, requires_grad=True)
    y, _ = torch.ops.warpwright.max_pool(x, [2], [2], [0], [1], False, None, False)
    with pytest.raises(RuntimeError, match="max_pool has no gradient without argmax"):
        y.sum().backward()


def test_second_derivatives_are_refused(torch_device):
    x = torch.randn(1, 2, 4, device=torch_device, requires_grad=True)
    for name in ("max_pool1d", "avg_pool1d", "adaptive_max_pool1d", "adaptive_avg_pool1d"):
        (dx,) = torch.autograd.grad(getattr(wt, name)(x, 2).square().sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="no second derivative"):
            dx.sum().backward()


def test_no_images(torch_device):
    x = torch.randn(0, 3, 4, 4, device=torch_device)
    for name in ("max_pool2d", "avg_pool2d", "adaptive_avg_pool2d"):
        found, dy = results(lambda t: getattr(wt, name)(t, 2), [x])
        for a, b in zip(found, results(lambda t: getattr(F, name)(t, 2), [x], dy)[0]):
            assert a.shape == b.shape


MODULES = [
    ("MaxPool1d", (3,), {"stride": 2, "padding": 1}, (2, 4, 9)),
    ("MaxPool2d", ((3, 2),), {"padding": (1, 0), "dilation": 2, "ceil_mode": True}, (2, 4, 9, 6)),
    ("MaxPool2d", (2,), {}, (4, 6, 5)),
    ("MaxPool3d", (2,), {"stride": (1, 2, 1)}, (1, 2, 3, 4, 3)),
    ("AvgPool1d", (3,), {"stride": 2, "padding": 1, "count_include_pad": False}, (2, 4, 9)),
    ("AvgPool2d", ((3, 2),), {"padding": (1, 0), "ceil_mode": True}, (2, 4, 9, 6)),
    ("AvgPool2d", (2, 1), {"divisor_override": 3}, (4, 6, 5)),
    ("AvgPool3d", (2,), {"stride": (1, 2, 1), "divisor_override": 5}, (1, 2, 3, 4, 3)),
    ("AdaptiveMaxPool1d", (3,), {}, (2, 4, 7)),
    ("AdaptiveMaxPool2d", ((3, None),), {}, (2, 4, 7, 5)),
    ("AdaptiveMaxPool3d", (2,), {}, (2, 4, 3, 5, 4)),
    ("AdaptiveAvgPool1d", (3,), {}, (4, 7)),
    ("AdaptiveAvgPool2d", ((None, 2),), {}, (2, 4, 7, 5)),
    ("AdaptiveAvgPool3d", ((1, 2, 3),), {}, (2, 4, 3, 5, 4)),
]


@pytest.mark.parametrize("name, arguments, options, shape", MODULES)
def test_modules(name, arguments, options, shape, torch_device):
    mine, other = (getattr(nn, name)(*arguments, **options) for nn in (wt.nn, torch.nn))
    assert isinstance(mine, type(other)) and repr(mine) == repr(other)
    x = torch.randn(shape, device=torch_device)
    found, dy = results(mine, [x])
    close(found, results(other, [x], dy, torch.float64)[0], torch.float32)
    if "Max" in name:
        pair = getattr(wt.nn, name)(*arguments, **options, return_indices=True)(x)
        expected = getattr(torch.nn, name)(*arguments, **options, return_indices=True)(x)
        assert all(torch.equal(a, b) for a, b in zip(pair, expected))


def network(nn, upsample):
    conv = torch.nn.Conv2d
    return torch.nn.Sequential(
        conv(3, 8, 3, padding=1), nn.MaxPool2d(3, 2, 1), conv(8, 8, 1), upsample(scale_factor=2, mode="bilinear"),
        nn.AvgPool2d(2, ceil_mode=True), conv(8, 8, 1), nn.AdaptiveMaxPool2d(3), nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(),
        torch.nn.Linear(8, 5),
    )  # fmt: skip


def losses(model, x, target):
    optimizer, found = torch.optim.SGD(model.parameters(), lr=0.2), []
    for _ in range(3):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        found.append(loss.detach().double().cpu())
    return torch.stack(found)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("form", FORMATS[4], ids=str)
def test_training_is_that_of_pytorch(form, compiled, torch_device):
    theirs = network(torch.nn, torch.nn.Upsample)
    ours = network(wt.nn, wt.nn.Upsample)
    ours.load_state_dict(theirs.state_dict())
    x, target = torch.randn(4, 3, 7, 6), torch.tensor([0, 3, 1, 4])
    exact = losses(copy.deepcopy(theirs).double(), x.double(), target)
    ours = ours.to(torch_device, memory_format=form)
    if compiled:
        torch._dynamo.reset()
        # On the CPU, inductor would need a C++ compiler.
        ours.compile(fullgraph=True, backend="inductor" if torch_device == "cuda" else "aot_eager")
    found = losses(ours, x.to(torch_device, memory_format=form), target.to(torch_device))
    assert exact[-1] < exact[0] and torch.allclose(found, exact, rtol=1e-5)


IMAGE = torch.ones(2, 4, 5, 6)
# Function, images, further arguments, options, error, argument.
REFUSED = [
    ("max_pool2d", IMAGE[0, 0], (2,), {}, ww.ShapeError, "input"),
    ("max_pool2d", IMAGE[None], (2,), {}, ww.ShapeError, "input"),
    ("max_pool2d", IMAGE, (6,), {}, ww.ParameterError, "kernel_size"),
    ("max_pool2d", IMAGE, (0,), {}, ww.ParameterError, "kernel_size"),
    ("max_pool2d", IMAGE, ((2, 2, 2),), {}, ww.ParameterError, "kernel_size"),
    ("max_pool2d", IMAGE, (2, 0), {}, ww.ParameterError, "stride"),
    ("max_pool2d", IMAGE, (2, 1, 2), {}, ww.ParameterError, "padding"),
    ("max_pool2d", IMAGE, (2, 1, -1), {}, ww.ParameterError, "padding"),
    ("max_pool2d", IMAGE, (2, 1, 0, 0), {}, ww.ParameterError, "dilation"),
    ("max_pool2d", IMAGE, (2, 1, 0, 5), {}, ww.ParameterError, "kernel_size"),
    ("max_pool2d", IMAGE, (2.5,), {}, ww.ParameterError, "kernel_size"),
    ("max_pool1d", IMAGE, (2,), {}, ww.ShapeError, "input"),
    ("max_pool3d", IMAGE[..., :0], (2,), {}, ww.ParameterError, "input"),
    ("avg_pool2d", IMAGE.int(), (2,), {}, ww.DtypeError, "input"),
    ("avg_pool2d", IMAGE, (2,), {"divisor_override": 0}, ww.ParameterError, "divisor_override"),
    ("avg_pool2d", IMAGE, (2,), {"padding": 2}, ww.ParameterError, "padding"),
    ("avg_pool3d", IMAGE, (5,), {}, ww.ParameterError, "kernel_size"),
    ("adaptive_max_pool2d", IMAGE, ((2, 2, 2),), {}, ww.ParameterError, "output_size"),
    ("adaptive_avg_pool2d", IMAGE, (-1,), {}, ww.ParameterError, "output_size"),
    ("adaptive_avg_pool2d", IMAGE.bool(), (2,), {}, ww.DtypeError, "input"),
    ("adaptive_avg_pool1d", IMAGE[0, 0, 0], (2,), {}, ww.ShapeError, "input"),
]


@pytest.mark.parametrize("name, image, arguments, options, error, argument", REFUSED)
def test_both_refuse(name, image, arguments, options, error, argument, torch_device):
    image = image.to(torch_device)
    with pytest.raises(Exception):
        getattr(F, name)(image, *arguments, **options)
    with pytest.raises(error) as info:
        getattr(wt, name)(image, *arguments, **options)
    e = info.value
    assert (e.op, e.argument) == (name, argument) and str(e).startswith(f"{name}: {argument} ")


def test_what_the_messages_say(torch_device):
    image = IMAGE.to(torch_device)
    for match, call in (
        ("max_pool2d: kernel_size is 6, must be so small that a window fits the padded input", lambda: wt.max_pool2d(image, 6)),
        ("avg_pool2d: padding is 2, must be at most half of what a window spans", lambda: wt.avg_pool2d(image, 2, padding=2)),
        ("max_pool2d: input has 2 dimensions, expected 3 or 4", lambda: wt.max_pool2d(image[0, 0], 2)),
        (r"max_pool2d: stride is \(1, 2, 3\), expected a number from 1 on", lambda: wt.max_pool2d(image, 2, (1, 2, 3))),
        # There are no maxima of integers, and no results without elements.
        ("max_pool2d: input is i32, expected f32, f64, f16, bf16", lambda: wt.max_pool2d(image.int(), 2)),
        ("adaptive_avg_pool2d: output_size is .*, expected a number from 1 on", lambda: wt.adaptive_avg_pool2d(image, 0)),
    ):
        with pytest.raises(ww.Error, match=match):
            call()


def test_native_functions_in_the_formats_of_pytorch(torch_device):
    x = torch.randn(2, 4, 5, 3, device=torch_device)
    last = x.to(memory_format=torch.channels_last)
    expected = F.max_pool2d(x, 2)
    for given, options, is_last in (
        (x, {}, False), (last, {}, True), (x, {"memory_format": "channels_last"}, True),
        (last, {"memory_format": "contiguous_format"}, False),
    ):  # fmt: skip
        y, indices = ww.max_pool(given, 2, argmax="index", **options)
        dx = ww.max_pool_backward(torch.ones_like(y), indices, x.shape, 2, **options)
        assert torch.equal(y, expected)
        for found in (y, indices, dx):
            assert found.is_contiguous(memory_format=torch.channels_last) == is_last
    y = ww.max_pool(last.movedim(1, -1), 2, channels_last=True)
    assert torch.equal(y.movedim(-1, 1), expected)
