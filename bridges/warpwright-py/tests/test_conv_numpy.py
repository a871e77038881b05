"""Convolutions on arrays of numpy, held against sums in f64."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from conftest import BUDGETS, FUNCTIONS, distance, numpy_dtype

import warpwright as ww

DTYPES = ["float32", "float64", "float16", "bfloat16"]
# Sums of products in f32 may differ more than by one rounding.
SUMS = {"float32": 2e-6, "float64": 1e-14, "float16": 2e-6, "bfloat16": 2e-6}


def pairs(padding, dims):
    padding = [padding] * dims if isinstance(padding, int) else padding
    return [(p, p) if isinstance(p, int) else tuple(p) for p in padding]


def each(number, dims):
    return [number] * dims if isinstance(number, int) else list(number)


def places(weight, image, stride, padding, dilation):
    """Each tap with the slices of a padded image [N, C, ...] that it is multiplied by, one for each output."""
    dims = weight.ndim - 2
    stride, dilation = each(stride, dims), each(dilation, dims)
    room = [n + sum(p) for n, p in zip(image, pairs(padding, dims))]
    ends = [(r - d * (k - 1) - 1) // s + 1 for r, k, s, d in zip(room, weight.shape[2:], stride, dilation)]
    for tap in itertools.product(*map(range, weight.shape[2:])):
        yield tap, tuple(slice(t * d, t * d + (n - 1) * s + 1, s) for t, d, n, s in zip(tap, dilation, ends, stride))


def wide(x):
    return np.asarray(x, dtype=np.float64)


def padded(x, padding):
    return np.pad(wide(x), [(0, 0), (0, 0), *pairs(padding, x.ndim - 2)])


def grouped(x, groups, axis):
    return np.split(x, groups, axis)


def rows(x):
    """Images [N, C, ...] with their pixels in one dimension."""
    return x.reshape(*x.shape[:2], int(np.prod(x.shape[2:])))


def conv(x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    """[N, C, ...] and [F, C / groups, ...], tap by tap."""
    whole, y = padded(x, padding), 0.0
    for tap, at in places(weight, x.shape[2:], stride, padding, dilation):
        seen = grouped(whole[(..., *at)], groups, 1)
        of_tap = grouped(wide(weight)[(..., *tap)], groups, 0)
        y = y + np.concatenate([np.einsum("nc...,fc->nf...", a, b) for a, b in zip(seen, of_tap)], 1)
    return y if bias is None else y + wide(bias).reshape(-1, *[1] * (x.ndim - 2))


def gradients(x, weight, dy, stride=1, padding=0, dilation=1, groups=1):
    whole, dweight = padded(x, padding), np.zeros(weight.shape)
    dx = np.zeros_like(whole)
    dys = grouped(wide(dy), groups, 1)
    for tap, at in places(weight, x.shape[2:], stride, padding, dilation):
        seen, of_tap = grouped(whole[(..., *at)], groups, 1), grouped(wide(weight)[(..., *tap)], groups, 0)
        dx[(..., *at)] += np.concatenate([np.einsum("nf...,fc->nc...", a, b) for a, b in zip(dys, of_tap)], 1)
        dweight[(..., *tap)] = np.concatenate([np.einsum("nfp,ncp->fc", rows(a), rows(b)) for a, b in zip(dys, seen)], 0)
    inner = tuple(slice(p, p + n) for (p, _), n in zip(pairs(padding, x.ndim - 2), x.shape[2:]))
    return dx[(..., *inner)], dweight, wide(dy).sum((0, *range(2, dy.ndim)))


# Shapes of x and weight, options.
CASES = [
    ((2, 3, 9), (4, 3, 3), {}),
    ((2, 4, 11), (6, 2, 3), {"stride": 2, "padding": [(2, 0)], "dilation": 2, "groups": 2}),
    ((1, 5, 8), (5, 1, 4), {"padding": [(3, 0)], "groups": 5}),
    ((2, 3, 6, 5), (4, 3, 3, 2), {"stride": (2, 1), "padding": 1}),
    ((1, 8, 5, 6), (8, 8, 3, 3), {"padding": ((0, 2), (1, 0)), "dilation": (1, 2)}),
    ((3, 4, 4, 4), (8, 4, 1, 1), {"stride": 2}),
    ((2, 6, 5, 7), (6, 1, 3, 3), {"padding": 1, "groups": 6}),
    ((1, 3, 8, 8), (16, 3, 4, 4), {"stride": 4}),
    ((1, 2, 2, 3), (2, 2, 2, 2), {"stride": 3, "padding": 2}),
    ((1, 2, 3, 4, 5), (4, 2, 2, 3, 2), {"stride": (1, 2, 1), "padding": (0, 1, (1, 0))}),
    ((0, 3, 4, 4), (2, 3, 3, 3), {"padding": 1}),
]


def drawn(random, dtype, *shapes):
    return [random.standard_normal(shape).astype(numpy_dtype(dtype)) for shape in shapes]


def last(x):
    """The same array with its channels as the last dimension."""
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))


def close(found, expected, dtype):
    assert found.shape == expected.shape and found.dtype == numpy_dtype(dtype)
    assert distance(found, expected) <= BUDGETS[dtype] + SUMS[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("x, weight, options", CASES)
def test_both_passes_in_both_layouts(random, dtype, x, weight, options):
    x, weight, bias = drawn(random, dtype, x, weight, weight[0])
    expected = conv(x, weight, bias, **options)
    y = ww.conv(x, weight, bias, **options)
    close(y, expected, dtype)
    assert np.array_equal(y, ww.conv(x, weight, bias, out=np.empty_like(y), **options))
    (dy,) = drawn(random, dtype, y.shape)
    wanted = gradients(x, weight, dy, **options)
    for a, b in zip(ww.conv_backward(x, weight, dy, **options), wanted):
        close(a, b, dtype)
    options = options | {"channels_last": True}
    close(np.moveaxis(ww.conv(last(x), last(weight), bias, **options), -1, 1), expected, dtype)
    *found, dbias = ww.conv_backward(last(x), last(weight), last(dy), **options)
    for a, b in zip([*(np.moveaxis(g, -1, 1) for g in found), dbias], wanted):
        close(a, b, dtype)


@pytest.mark.parametrize("activation", ["relu", "gelu_erf", "gelu_tanh", "silu", "sigmoid", "tanh"])
def test_activations(random, activation):
    x, weight, bias = drawn(random, "float32", (2, 3, 5, 4), (4, 3, 3, 3), (4,))
    y = ww.conv(x, weight, bias, padding=1, activation=activation)
    close(y, FUNCTIONS[activation](conv(x, weight, bias, padding=1)), "float32")


def test_arrays_of_other_orders(random):
    """A weight is read in either order; what lies otherwise is copied."""
    x, weight, dy = drawn(random, "float32", (2, 4, 6, 5), (6, 4, 3, 2), (2, 6, 4, 4))
    y, found = ww.conv(x, weight), ww.conv_backward(x, weight, dy)
    turned = np.moveaxis(last(weight), -1, 1)
    for same in (turned, np.asfortranarray(weight)):
        assert not same.flags.c_contiguous
        close(ww.conv(np.asfortranarray(x), same), wide(y), "float32")
        for a, b in zip(ww.conv_backward(x[::-1][::-1], same, np.asfortranarray(dy)), found):
            assert a.flags.c_contiguous and np.allclose(a, b, rtol=1e-5, atol=1e-5)
    moved = np.moveaxis(weight, 1, -1)
    close(ww.conv(last(x), moved, channels_last=True), wide(last(y)), "float32")
    out = np.empty((4, 4, 6, 2), dtype=np.float32).transpose(3, 2, 0, 1)
    assert ww.conv(x, weight, out=out) is out
    assert np.array_equal(out, y)


def test_gradients_that_are_left_out(random):
    x, weight, dy = drawn(random, "float64", (2, 4, 6, 5), (6, 2, 3, 2), (2, 6, 4, 4))
    whole = ww.conv_backward(x, weight, dy, groups=2)
    for wanted in itertools.product((True, False), repeat=3):
        if not any(wanted):
            continue
        flags = dict(zip(("x_gradient", "weight_gradient", "bias_gradient"), wanted))
        # What no wanted gradient is computed from, is there as its shape.
        given = (x if wanted[1] else x.shape, weight if wanted[0] else list(weight.shape))
        out = [np.empty_like(g) for g, need in zip(whole, wanted) if need]
        found = ww.conv_backward(*given, dy, groups=2, **flags, out=out if len(out) > 1 else out[0])
        kept = [g for g in found if g is not None]
        assert [g is not None for g in found] == list(wanted) and all(a is b for a, b in zip(kept, out))
        for a, b in zip(kept, (g for g, need in zip(whole, wanted) if need)):
            assert np.allclose(a, b, rtol=1e-13, atol=1e-13)


# Of which every pass has sums of rounded factors.
ROUNDED = [
    ((1, 8, 5, 6), (8, 8, 3, 3), {"padding": ((0, 2), (1, 0)), "dilation": (1, 2)}),
    ((3, 4, 4, 4), (8, 4, 1, 1), {"stride": 2}),
    ((2, 16, 9), (16, 8, 3), {"groups": 2, "padding": 1}),
    ((1, 4, 3, 4, 5), (4, 4, 2, 3, 2), {"padding": (0, 1, (1, 0))}),
]


def rounded_passes(x, weight, dy, options):
    """Results and gradients in tf32 in both layouts."""
    options = options | {"precision": "tf32"}
    yield ww.conv(x, weight, **options), *ww.conv_backward(x, weight, dy, **options)
    options = options | {"channels_last": True}
    y = ww.conv(last(x), last(weight), **options)
    *found, dbias = ww.conv_backward(last(x), last(weight), last(dy), **options)
    yield *(np.moveaxis(a, -1, 1) for a in (y, *found)), dbias


@pytest.mark.parametrize("x, weight, options", ROUNDED)
def test_rounded_factors(random, x, weight, options):
    x, weight = drawn(random, "float32", x, weight)
    (dy,) = drawn(random, "float32", ww.conv(x, weight, **options).shape)
    for *found, dbias in rounded_passes(x, weight, dy, options):
        *wanted, exact_dbias = conv(x, weight, **options), *gradients(x, weight, dy, **options)
        for a, b in zip(found, wanted):
            assert a.shape == b.shape and a.dtype == np.float32
            assert 1e-6 < distance(a, b) < 2e-3
        close(dbias, exact_dbias, "float32")


@pytest.mark.parametrize("x, weight, options", [*ROUNDED, *CASES])
def test_factors_that_rounding_leaves(random, x, weight, options):
    """Numbers of 8 bits are numbers of 11."""
    x, weight = (a.astype(np.float32) for a in drawn(random, "bfloat16", x, weight))
    dy = drawn(random, "bfloat16", conv(x, weight, **options).shape)[0].astype(np.float32)
    for found in rounded_passes(x, weight, dy, options):
        for a, b in zip(found, (conv(x, weight, **options), *gradients(x, weight, dy, **options))):
            close(a, b, "float32")


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_other_types_are_not_rounded(dtype):
    arguments = [a.astype(numpy_dtype(dtype)) for a in (X, WEIGHT, DY)]
    for op, given in (("conv", arguments[:2]), ("conv_backward", arguments)):
        with pytest.raises(ww.ParameterError, match=f"^{op}: precision is tf32, must be full for elements other than f32") as info:
            getattr(ww, op)(*given, groups=2, precision="tf32")
        assert (info.value.op, info.value.argument, info.value.got) == (op, "precision", "tf32")


X, WEIGHT = np.ones((2, 4, 6, 5), np.float32), np.ones((6, 2, 3, 3), np.float32)
GROUPS = {"groups": 2}
DY = np.ones((2, 6, 4, 3), np.float32)
# Arguments, options, error, argument, part of the message.
REFUSED = [
    ((X[0, 0], WEIGHT), GROUPS, ww.ShapeError, "x", "has 2 dimensions, expected 3, 4 or 5"),
    ((X, WEIGHT[..., 0]), GROUPS, ww.ShapeError, "weight", "has 3 dimensions, expected 4"),
    ((X, WEIGHT), {}, ww.ShapeError, "weight", "has shape [6, 2, 3, 3], expected [6, 4, 3, 3]"),
    ((X, WEIGHT), {"groups": 3}, ww.ParameterError, "groups", "is 3, expected a divisor of 4 channels"),
    ((X, WEIGHT), {"groups": 0}, ww.ParameterError, "groups", "is 0, expected a divisor of 4 channels"),
    ((X, WEIGHT[:5]), GROUPS, ww.ParameterError, "groups", "is 2, expected a divisor of 5 filters"),
    ((X[:, :0], WEIGHT[:, :0]), GROUPS, ww.ShapeError, "x", "has no channels"),
    ((X, WEIGHT[:0]), GROUPS, ww.ShapeError, "weight", "has no filters"),
    ((X[..., :2], WEIGHT), GROUPS, ww.ShapeError, "weight", "3 taps over 3 pixels in spatial dimension 1, expected from 1 to 2"),
    ((X, WEIGHT), GROUPS | {"dilation": (3, 1)}, ww.ShapeError, "weight", "3 taps over 7 pixels in spatial dimension 0"),
    ((X, WEIGHT[..., :0]), GROUPS, ww.ShapeError, "weight", "a kernel of 0 taps"),
    ((X, WEIGHT), GROUPS | {"stride": 0}, ww.ParameterError, "stride", "is 0"),
    ((X, WEIGHT), GROUPS | {"dilation": 0}, ww.ParameterError, "dilation", "is 0"),
    ((X, WEIGHT), GROUPS | {"stride": (1, 1, 1)}, ww.ParameterError, "stride", "is (1, 1, 1), expected 2 numbers"),
    ((X, WEIGHT), GROUPS | {"stride": -1}, ww.ParameterError, "stride", "is -1, expected 2 numbers that are not negative"),
    ((X, WEIGHT), GROUPS | {"stride": (1, 1.5)}, ww.ParameterError, "stride", "is (1, 1.5)"),
    ((X, WEIGHT), GROUPS | {"padding": ((1, 2, 3), 1)}, ww.ParameterError, "padding", "or pairs of them"),
    ((X, WEIGHT), GROUPS | {"precision": "half"}, ww.ParameterError, "precision", "is 'half', expected 'full' or 'tf32'"),
    ((X, WEIGHT), GROUPS | {"padding": "same"}, ww.ParameterError, "padding", "is 'same'"),
    ((X, WEIGHT), GROUPS | {"memory_format": "channels_last"}, ww.ParameterError, "memory_format", "for tensors of PyTorch"),
    ((X.astype(np.int32), WEIGHT.astype(np.int32)), GROUPS, ww.DtypeError, "x", "is i32, expected f32, f64, f16, bf16"),
    ((X, WEIGHT.astype(np.float64)), GROUPS, ww.DtypeError, "weight", "is f64, expected f32"),
]


@pytest.mark.parametrize("arguments, options, error, argument, message", REFUSED)
def test_what_is_refused(arguments, options, error, argument, message):
    for op, further in (("conv", ()), ("conv_backward", (DY,))):
        with pytest.raises(error) as info:
            getattr(ww, op)(*arguments, *further, **options)
        e = info.value
        assert (e.op, e.argument) == (op, argument)
        assert str(e).startswith(f"{op}: {argument} ") and message in str(e)


def test_what_one_pass_refuses():
    for options, error, argument in (
        ({"bias": np.ones(5, np.float32)}, ww.ShapeError, "bias"),
        ({"bias": np.ones(6)}, ww.DtypeError, "bias"),
        ({"activation": "leaky_relu"}, ww.ParameterError, "activation"),
        ({"activation": "swish"}, ww.ParameterError, "activation"),
        ({"out": np.ones((2, 6, 4, 4), np.float32)}, ww.ShapeError, "out"),
    ):
        with pytest.raises(error) as info:
            ww.conv(X, WEIGHT, **options, groups=2)
        assert (info.value.op, info.value.argument) == ("conv", argument)
    for x, weight, dy, error, argument in (
        (X, WEIGHT, DY[:1], ww.ShapeError, "dy"),
        (X, WEIGHT, DY.astype(np.float64), ww.DtypeError, "dy"),
        (X.shape, WEIGHT, DY, ww.ArgumentError, "x"),
        (X, WEIGHT.shape, DY, ww.ArgumentError, "weight"),
        ((2, 4, "a", 5), WEIGHT, DY, ww.ShapeError, "x"),
    ):
        with pytest.raises(error) as info:
            ww.conv_backward(x, weight, dy, groups=2)
        assert (info.value.op, info.value.argument) == ("conv_backward", argument)
    # Numbers of outputs that the shape of x does not have.
    with pytest.raises(ww.ShapeError, match="dy has shape"):
        ww.conv_backward((2, 4, 7, 5), WEIGHT, DY, groups=2, weight_gradient=False)
    with pytest.raises(ww.ShapeError, match="x has 3 dimensions"):
        ww.conv_backward((2, 4, 7), WEIGHT, DY, groups=2, weight_gradient=False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("groups", "kernel"), [(1, 3), (1, 1), (2, 3), (8, 3)])
def test_what_a_convolution_ends_with(dtype, channels_last, groups, kernel):
    rng = np.random.default_rng(11)
    own = lambda *shape: rng.standard_normal(shape).astype(numpy_dtype(dtype))  # noqa: E731
    x, weight, residual = own(2, 8, 6, 5), own(8, 8 // groups, kernel, kernel), own(2, 8, 6, 5)
    factors = "float64" if dtype == "float64" else "float32"
    scale, bias = (rng.standard_normal(8).astype(factors) for _ in range(2))
    last = (lambda t: np.ascontiguousarray(np.moveaxis(t, 1, -1))) if channels_last else lambda t: t
    options = {"padding": kernel // 2, "groups": groups, "channels_last": channels_last}
    y = ww.conv(last(x), last(weight), bias, scale=scale, residual=last(residual), activation="relu", **options)
    of_filters = (wide(t)[None, :, None, None] for t in (scale, bias))
    of_scale, of_bias = of_filters
    wanted = np.maximum(conv(x, weight, padding=kernel // 2, groups=groups) * of_scale + of_bias + wide(residual), 0)
    found = np.moveaxis(wide(y), -1, 1) if channels_last else wide(y)
    assert distance(found, wanted) <= SUMS[dtype] + BUDGETS[dtype]
    added = ww.conv(last(x), last(weight), residual=last(residual), **options)
    found = np.moveaxis(wide(added), -1, 1) if channels_last else wide(added)
    wanted = conv(x, weight, padding=kernel // 2, groups=groups) + wide(residual)
    assert distance(found, wanted) <= SUMS[dtype] + BUDGETS[dtype]


@pytest.mark.parametrize(
    ("argument", "shape", "dtype", "error"),
    [
        ("scale", (5,), "float32", ww.ShapeError),
        ("scale", (4,), "float16", ww.DtypeError),
        ("bias", (4,), "float16", ww.DtypeError),
        ("residual", (1, 4, 3, 2), "float16", ww.ShapeError),
        ("residual", (1, 4, 3, 3), "float32", ww.DtypeError),
    ],
)
def test_refusals_of_what_a_convolution_ends_with(argument, shape, dtype, error):
    x, weight = np.zeros((1, 4, 3, 3), "float16"), np.zeros((4, 4, 1, 1), "float16")
    given = {"scale": np.ones(4, "float32"), argument: np.zeros(shape, dtype)}
    with pytest.raises(error) as raised:
        ww.conv(x, weight, **given)
    assert (raised.value.op, raised.value.argument) == ("conv", argument)
