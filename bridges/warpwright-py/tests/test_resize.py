"""`interpolate` of `warpwright.torch`, held against PyTorch's in f64."""

from __future__ import annotations

import itertools
import math
import random

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import warpwright as ww  # noqa: E402
import warpwright.torch as wt  # noqa: E402
from conftest import BUDGETS  # noqa: E402
from images import DTYPES, FORMATS, compile_anew, leaves, results  # noqa: E402

F = torch.nn.functional
# Modes, and of how many dimensions.
MODES = [
    *itertools.product(("nearest", "nearest-exact", "area"), (1, 2, 3)),
    ("linear", 1), ("bilinear", 2), ("trilinear", 3), ("bicubic", 2),
]  # fmt: skip
ALIGNED = ("linear", "bilinear", "trilinear", "bicubic")


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(5)


def close(found, exact, dtype):
    """Places of every type but f64 are found in f32, and weights are differences of them."""
    budget = 2 * BUDGETS[str(dtype).replace("torch.", "")] + (0 if dtype == torch.float64 else 4e-6)
    for a, b in zip(found, exact):
        assert a.shape == b.shape and a.dtype == dtype
        assert float((a.double() - b).norm()) <= budget * float(b.norm()) + 1e-30


def is_sure(n, factor):
    """Whether PyTorch takes the same cells on the CPU in both directions: where the extent stays or doubles it goes by that in one of them
    alone."""
    output = math.floor(n * factor)
    return output > 0 and (output not in (n, 2 * n) or factor in (1, 2))


def case(r, mode, dims, dtype, device):
    choose = lambda *of: [r.choice(of) for _ in range(dims)]  # noqa: E731
    image, options = choose(1, 2, 3, 5, 6), {"mode": mode}
    how = r.choice(["size", "size", "scale", "recomputed"])
    if how == "size":
        options["size"] = r.choice([choose(1, 2, 4, 7, 9), r.choice([3, 8])])
    else:
        factors = 0.5, 0.7, 1.0, 1.3, 1.6, 2.0, 2.5
        scales = [r.choice([f for f in factors if is_sure(n, f)]) for n in image]
        shared = [f for f in factors if all(is_sure(n, f) for n in image)]
        options["scale_factor"] = r.choice([scales, r.choice(shared)])
        if how == "recomputed":
            options["recompute_scale_factor"] = True
    if mode in ALIGNED:
        options["align_corners"] = r.choice([True, False, None])
    x = torch.randn(r.choice([1, 2]), r.choice([1, 3, 8]), *image, device=device, dtype=dtype)
    return x.contiguous(memory_format=r.choice(FORMATS[x.dim()])), options


@pytest.mark.parametrize("mode, dims", MODES)
def test_random_cases(mode, dims, torch_device):
    r = random.Random(f"{mode} {dims}")
    for number in range(16):
        dtype = DTYPES[number % 4]
        x, options = case(r, mode, dims, dtype, torch_device)
        found, dy = results(lambda t: wt.interpolate(t, **options), [x])
        # PyTorch's gradient of nearest cells takes others than its result does on a GPU, where factors meet the ends of cells.
        exact, _ = results(lambda t: F.interpolate(t, **options), [x.cpu()], dy.cpu(), torch.float64)
        close([t.cpu() for t in found], exact, dtype)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_nearest_cells_are_those_of_pytorch(mode, torch_device):
    x = torch.arange(1.0, 65.0, device=torch_device)
    for length, output in itertools.product((1, 2, 3, 7, 10, 33, 64), (1, 2, 3, 5, 9, 30, 49, 64, 100)):
        part = x[None, None, :length]
        assert torch.equal(wt.interpolate(part, output, mode=mode), F.interpolate(part, output, mode=mode)), (length, output)
    for factor in (0.1, 0.3, 1 / 3, 0.7, 1.1, 1.9, 2.3, 3.0, 7.7):
        part = x[None, None, :33]
        for again in (None, True):
            options = {"scale_factor": factor, "mode": mode, "recompute_scale_factor": again}
            assert torch.equal(wt.interpolate(part, **options), F.interpolate(part, **options)), factor


@pytest.mark.parametrize("mode, dims", [("nearest", 2), ("bilinear", 2), ("bicubic", 2), ("area", 2), ("trilinear", 3)])
def test_strides_are_those_of_images(mode, dims, torch_device):
    for batch, channels, form in itertools.product((1, 2), (1, 3), FORMATS[dims + 2]):
        x = torch.randn(batch, channels, *[3, 4, 2][:dims], device=torch_device).contiguous(memory_format=form)
        (y, dx), dy = results(lambda t: wt.interpolate(t, 5, mode=mode), [x])
        (other, other_dx), _ = results(lambda t: F.interpolate(t, 5, mode=mode), [x], dy)
        assert y.is_contiguous(memory_format=form) and dx.is_contiguous(memory_format=form)
        if channels > 1 and dims == 2:
            # PyTorch's gradient of bicubic images is contiguous on the CPU.
            assert y.stride() == other.stride() and (mode == "bicubic" or dx.stride() == other_dx.stride())


def test_other_strides(torch_device):
    """Slices, permuted images and gradients that are expanded."""
    x = torch.randn(2, 6, 5, 8, device=torch_device)
    for view in (lambda t: t[:, 1:4, :, ::2], lambda t: t.permute(3, 1, 0, 2), lambda t: t[:, :3].mT):
        for mode in ("nearest", "bilinear"):
            (given,), (wide,) = leaves([x]), leaves([x], torch.float64)
            y, expected = wt.interpolate(view(given), 7, mode=mode), F.interpolate(view(wide), 7, mode=mode)
            y.sum().backward(), expected.sum().backward()
            close([y.detach(), given.grad], [expected.detach(), wide.grad], torch.float32)


def test_what_is_not_finite(torch_device):
    """A weight of 0 makes NaN of an infinity, as PyTorch has it."""
    x = torch.randn(1, 2, 5, 6, device=torch_device)
    x[0, 0, 2, 3], x[0, 1, 1, 1] = math.inf, math.nan
    for mode, size in itertools.product(("nearest", "bilinear"), ((5, 6), (10, 12), (3, 4))):
        found, expected = (f(x, size, mode=mode) for f in (wt.interpolate, F.interpolate))
        assert torch.equal(found.isfinite(), expected.isfinite())


def test_the_same_extents(torch_device):
    """Images are copied, whatever the factor is."""
    x = torch.randn(2, 3, 2, 3, device=torch_device)
    for mode, image in (("linear", x[0]), ("bilinear", x), ("trilinear", x[None]), ("bicubic", x)):
        found, dy = results(lambda t: wt.interpolate(t, scale_factor=1.3, mode=mode), [image])
        assert torch.equal(found[0], image) and torch.equal(found[1], dy)
        if mode != "bicubic":
            assert torch.equal(F.interpolate(image, scale_factor=1.3, mode=mode), image)


@pytest.mark.parametrize("mode, dims", MODES)
def test_gradcheck(mode, dims, torch_device):
    x = torch.randn(1, 2, *[3, 2, 2][:dims], device=torch_device, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: wt.interpolate(t, scale_factor=1.7, mode=mode), [x])


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("mode, dims", MODES)
def test_compiled(mode, dims, dynamic, torch_device):
    """The same values and strides, and of all extents from one graph if it is asked for."""
    for options in ({"scale_factor": 1.5}, {"size": 4}):
        function = lambda t: wt.interpolate(t, **options, mode=mode)  # noqa: B023,E731
        compiled = compile_anew(function, dynamic=dynamic)
        for extent in (3, 5) if dynamic else (3,):
            x = torch.randn(2, 3, *[extent] * dims, device=torch_device).contiguous(memory_format=FORMATS[dims + 2][-1])
            found, dy = results(compiled, [x])
            for a, b in zip(found, results(function, [x], dy)[0]):
                assert torch.equal(a, b) and a.stride() == b.stride()


@pytest.mark.parametrize("form", FORMATS[4], ids=str)
@pytest.mark.parametrize("mode, scale", [("nearest", [1.5, 2.0]), ("linear", None), ("cubic", None), ("area", None)])
def test_opcheck(mode, scale, form, torch_device):
    x = torch.randn(2, 3, 4, 3, device=torch_device).contiguous(memory_format=form).requires_grad_()
    arguments = ([6, 6], scale, mode, mode == "linear", form == torch.channels_last)
    torch.library.opcheck(torch.ops.warpwright.resize.default, (x, *arguments))


def test_second_derivatives_are_refused(torch_device):
    x = torch.randn(1, 2, 4, device=torch_device, requires_grad=True)
    (dx,) = torch.autograd.grad(wt.interpolate(x, 7).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        dx.sum().backward()


@pytest.mark.parametrize("options", [
    {"size": 5}, {"scale_factor": 2}, {"scale_factor": (1.5, 2), "mode": "bilinear", "align_corners": True},
    {"size": (4, 7), "mode": "bicubic"}, {"scale_factor": 1.7, "recompute_scale_factor": True, "mode": "nearest-exact"},
    {"scale_factor": 0.5, "mode": "area"},
])  # fmt: skip
def test_module(options, torch_device):
    mine, other = wt.nn.Upsample(**options), torch.nn.Upsample(**options)
    assert isinstance(mine, type(other)) and repr(mine) == repr(other)
    x = torch.randn(2, 3, 4, 5, device=torch_device)
    found, dy = results(mine, [x])
    close(found, results(other, [x], dy, torch.float64)[0], torch.float32)


IMAGE = torch.ones(2, 3, 4, 5)
# Images, options, error, argument.
REFUSED = [
    (IMAGE[0, 0], {"size": 2}, ww.ShapeError, "input"),
    (IMAGE, {}, ww.ParameterError, "size"),
    (IMAGE, {"size": 2, "scale_factor": 2.0}, ww.ParameterError, "size"),
    (IMAGE, {"size": (2, 2, 2)}, ww.ParameterError, "size"),
    (IMAGE, {"size": 0}, ww.ParameterError, "size"),
    (IMAGE, {"size": 2, "recompute_scale_factor": True}, ww.ParameterError, "recompute_scale_factor"),
    (IMAGE, {"scale_factor": (2.0,) * 3}, ww.ParameterError, "scale_factor"),
    (IMAGE, {"scale_factor": -1.0}, ww.ParameterError, "scale_factor"),
    (IMAGE, {"scale_factor": 0.1}, ww.ParameterError, "size"),
    (IMAGE, {"scale_factor": math.nan}, ww.ParameterError, "scale_factor"),
    (IMAGE, {"size": 2, "mode": "linear"}, ww.ParameterError, "mode"),
    (IMAGE, {"size": 2, "mode": "trilinear"}, ww.ParameterError, "mode"),
    (IMAGE[0], {"size": 2, "mode": "bicubic"}, ww.ParameterError, "mode"),
    (IMAGE, {"size": 2, "mode": "cubic"}, ww.ParameterError, "mode"),
    (IMAGE, {"size": 2, "align_corners": False}, ww.ParameterError, "align_corners"),
    (IMAGE, {"size": 2, "mode": "area", "align_corners": True}, ww.ParameterError, "align_corners"),
    (IMAGE.int(), {"size": 2}, ww.DtypeError, "input"),
    (IMAGE, {"size": 2, "antialias": True}, ww.ParameterError, "antialias"),
]


@pytest.mark.parametrize("image, options, error, argument", REFUSED)
def test_both_refuse(image, options, error, argument, torch_device):
    with pytest.raises(Exception):
        F.interpolate(image.to(torch_device), **options)
    with pytest.raises(error) as info:
        wt.interpolate(image.to(torch_device), **options)
    e = info.value
    assert (e.op, e.argument) == ("interpolate", argument) and str(e).startswith(f"interpolate: {argument} ")


def test_what_the_messages_say(torch_device):
    image = IMAGE.to(torch_device)
    for match, options in (
        ("antialias is True, expected False: there is no filter against aliasing", {"mode": "bilinear", "antialias": True}),
        ("mode is 'linear', expected 'nearest' or 'nearest-exact' or 'bilinear' or 'bicubic' or 'area' for 4 dimensions",
         {"mode": "linear"}),
        ("align_corners is True, expected None with mode 'nearest'", {"align_corners": True}),
    ):  # fmt: skip
        with pytest.raises(ww.ParameterError, match=match):
            wt.interpolate(image, 2, **options)
    with pytest.raises(ww.ParameterError, match="size is None, expected extents, or a scale_factor"):
        wt.interpolate(image)


def test_native_functions_in_the_formats_of_pytorch(torch_device):
    x = torch.randn(2, 4, 5, 3, device=torch_device)
    last = x.to(memory_format=torch.channels_last)
    expected = F.interpolate(x, 7)
    for given, options, is_last in (
        (x, {}, False), (last, {}, True), (x, {"memory_format": "channels_last"}, True),
        (last, {"memory_format": "contiguous_format"}, False),
    ):  # fmt: skip
        y = ww.resize(given, 7, **options)
        dx = ww.resize_backward(torch.ones_like(y), x.shape, **options)
        assert torch.equal(y, expected)
        for found in (y, dx):
            assert found.is_contiguous(memory_format=torch.channels_last) == is_last
    moved = ww.resize(last.movedim(1, -1), 7, channels_last=True)
    assert torch.equal(moved.movedim(-1, 1), expected)
