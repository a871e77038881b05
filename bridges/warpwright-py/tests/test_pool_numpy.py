"""Pooling on arrays of numpy, held against maxima and sums in f64."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from conftest import BUDGETS, distance, numpy_dtype

import warpwright as ww

DTYPES = ["float32", "float64", "float16", "bfloat16"]


def last(x):
    """The same array with its channels as the last dimension."""
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))


def each(number, dims):
    return [number] * dims if isinstance(number, int) else list(number)


def sliding(image, kernel, stride=None, padding=0, dilation=1, ceil_mode=False):
    """For each dimension, for each window, its cells within the image, and how many it has in the padded image."""
    dims = len(image)
    kernel = each(kernel, dims)
    stride = kernel if stride is None else each(stride, dims)
    for n, k, s, p, d in zip(image, kernel, stride, each(padding, dims), each(dilation, dims)):
        room = n + 2 * p - d * (k - 1) - 1
        count = (-(-room // s) if ceil_mode else room // s) + 1
        if ceil_mode and (count - 1) * s >= n + p:
            count -= 1
        starts = [o * s - p for o in range(count)]
        yield [([c for c in range(b, b + d * k, d) if 0 <= c < n], min(b + k, n + p) - b) for b in starts]


def adaptive(image, output):
    for n, m in zip(image, each(output, len(image))):
        cells = [list(range(o * n // m, -(-(o + 1) * n // m))) for o in range(m)]
        yield [(c, len(c)) for c in cells]


def windows(axes):
    """Each window: where its result is, the cells that it has, and its cells in the padded image."""
    axes = list(axes)
    for at in itertools.product(*(range(len(axis)) for axis in axes)):
        of = [axis[o] for axis, o in zip(axes, at)]
        yield at, list(itertools.product(*(cells for cells, _ in of))), int(np.prod([n for _, n in of]))


def extents(axes):
    return [len(axis) for axis in axes]


def maxima(x, axes):
    """Of images [N, C, ...], with the number of the cell of each in its plane."""
    axes = list(axes)
    shape, image = (*x.shape[:2], *extents(axes)), x.shape[2:]
    y, indices = np.empty(shape), np.empty(shape, np.int64)
    for at, cells, _ in windows(axes):
        values = np.stack([x[(..., *cell)] for cell in cells], -1).astype(np.float64)
        first = values.argmax(-1)
        numbers = np.array([np.ravel_multi_index(cell, image) for cell in cells])
        y[(..., *at)], indices[(..., *at)] = values.max(-1), numbers[first]
    return y, indices


def means(x, axes, padded=True, divisor=None):
    axes = list(axes)
    y = np.empty((*x.shape[:2], *extents(axes)))
    for at, cells, count in windows(axes):
        count = divisor or (count if padded else len(cells))
        y[(..., *at)] = sum(x[(..., *cell)].astype(np.float64) for cell in cells) / count
    return y


def gradient_of_maxima(dy, indices, shape):
    dx = np.zeros((*shape[:2], int(np.prod(shape[2:]))))
    for n, c in np.ndindex(*shape[:2]):
        np.add.at(dx[n, c], indices[n, c].ravel(), dy[n, c].astype(np.float64).ravel())
    return dx.reshape(shape)


def gradient_of_means(dy, shape, axes, padded=True, divisor=None):
    dx = np.zeros(shape)
    for at, cells, count in windows(axes):
        count = divisor or (count if padded else len(cells))
        for cell in cells:
            dx[(..., *cell)] += dy[(..., *at)].astype(np.float64) / count
    return dx


def drawn(random, dtype, shape):
    return random.standard_normal(shape).astype(numpy_dtype(dtype))


def close(found, expected, dtype):
    assert found.shape == expected.shape and found.dtype == numpy_dtype(dtype)
    assert distance(found, expected) <= 2 * BUDGETS[dtype]


# Shape, kernel, options.
SLIDING = [
    ((2, 3, 9), 3, {}),
    ((1, 8, 11), [4], {"stride": 2, "padding": 2, "ceil_mode": True}),
    ((2, 3, 6, 5), (3, 2), {"stride": (2, 1), "padding": (1, 0)}),
    ((1, 8, 7, 6), 3, {"stride": 2, "padding": 1, "ceil_mode": True}),
    ((1, 2, 3, 4, 5), (2, 1, 3), {"stride": (1, 2, 2), "padding": (1, 0, 1)}),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape, kernel, options", [*SLIDING, ((1, 4, 9, 8), 2, {"stride": 1, "dilation": (3, 2)})])
def test_maxima_in_both_layouts(random, dtype, shape, kernel, options):
    x = drawn(random, dtype, shape)
    expected, where = maxima(x, sliding(shape[2:], kernel, **options))
    y, indices = ww.max_pool(x, kernel, argmax="index", **options)
    close(y, expected, dtype)
    assert np.array_equal(indices, where) and np.array_equal(ww.max_pool(x, kernel, **options), y)
    out = [np.empty_like(y), np.empty_like(indices)]
    assert all(a is b for a, b in zip(ww.max_pool(x, kernel, argmax="index", out=out, **options), out))
    dy = drawn(random, dtype, y.shape)
    wanted = gradient_of_maxima(dy, where, shape)
    close(ww.max_pool_backward(dy, indices, shape, kernel, **options), wanted, dtype)
    if "dilation" not in options:
        y, taps = ww.max_pool(x, kernel, argmax="tap", **options)
        assert taps.dtype == np.uint8
        close(ww.max_pool_backward(dy, taps, shape, kernel, **options), wanted, dtype)
    options = options | {"channels_last": True}
    y, indices = ww.max_pool(last(x), kernel, argmax="index", **options)
    close(np.moveaxis(y, -1, 1), expected, dtype)
    assert np.array_equal(np.moveaxis(indices, -1, 1), where)
    dx = ww.max_pool_backward(last(dy), indices, last(x).shape, kernel, **options)
    close(np.moveaxis(dx, -1, 1), wanted, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape, kernel, options", SLIDING)
def test_means_in_both_layouts(random, dtype, shape, kernel, options):
    for further in ({}, {"count_include_pad": False}, {"divisor": -3}):
        rule = {"padded": further.get("count_include_pad", True), "divisor": further.get("divisor")}
        x = drawn(random, dtype, shape)
        expected = means(x, sliding(shape[2:], kernel, **options), **rule)
        y = ww.avg_pool(x, kernel, **options, **further)
        close(y, expected, dtype)
        dy = drawn(random, dtype, y.shape)
        wanted = gradient_of_means(dy, shape, sliding(shape[2:], kernel, **options), **rule)
        close(ww.avg_pool_backward(dy, shape, kernel, **options, **further), wanted, dtype)
        moved = options | further | {"channels_last": True}
        close(np.moveaxis(ww.avg_pool(last(x), kernel, **moved), -1, 1), expected, dtype)
        dx = ww.avg_pool_backward(last(dy), last(x).shape, kernel, **moved)
        close(np.moveaxis(dx, -1, 1), wanted, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape, output", [((2, 3, 7), 3), ((1, 8, 5, 6), (1, 4)), ((1, 2, 3, 4, 5), (2, 6, 1)), ((2, 3, 4, 4), 1)])
def test_adaptive_windows_in_both_layouts(random, dtype, shape, output):
    x = drawn(random, dtype, shape)
    axes = list(adaptive(shape[2:], output))
    expected, where = maxima(x, axes)
    y, indices = ww.adaptive_max_pool(x, output, argmax="index")
    close(y, expected, dtype)
    assert np.array_equal(indices, where)
    dy = drawn(random, dtype, y.shape)
    wanted = gradient_of_maxima(dy, where, shape)
    close(ww.adaptive_max_pool_backward(dy, indices, shape), wanted, dtype)
    y, indices = ww.adaptive_max_pool(last(x), output, argmax="index", channels_last=True)
    close(np.moveaxis(y, -1, 1), expected, dtype)
    dx = ww.adaptive_max_pool_backward(last(dy), indices, last(x).shape, channels_last=True)
    close(np.moveaxis(dx, -1, 1), wanted, dtype)
    wanted = gradient_of_means(dy, shape, axes)
    close(ww.adaptive_avg_pool(x, output), means(x, axes), dtype)
    close(ww.adaptive_avg_pool_backward(dy, shape), wanted, dtype)
    moved = ww.adaptive_avg_pool(last(x), output, channels_last=True)
    close(np.moveaxis(moved, -1, 1), means(x, axes), dtype)
    close(np.moveaxis(ww.adaptive_avg_pool_backward(last(dy), last(x).shape, channels_last=True), -1, 1), wanted, dtype)


def test_arrays_of_other_orders(random):
    x = drawn(random, "float32", (2, 4, 6, 5))
    y, indices = ww.max_pool(x, 2, argmax="index")
    dx = ww.max_pool_backward(y, indices, x.shape, 2)
    turned = [np.asfortranarray(t) for t in (x, y, indices)]
    assert np.array_equal(ww.max_pool(turned[0], 2), y)
    assert np.array_equal(ww.max_pool_backward(turned[1], turned[2], list(x.shape), 2), dx)
    out = np.empty((4, 2, 3, 2), dtype=np.float32).transpose(1, 0, 2, 3)
    assert ww.avg_pool(x, 2, out=out) is out
    assert np.array_equal(out, ww.avg_pool(x, 2))


X = np.ones((2, 4, 6, 5), np.float32)
DY, INDICES = np.ones((2, 4, 3, 2), np.float32), np.zeros((2, 4, 3, 2), np.int64)
# Function, arguments, options, error, argument, part of the message.
REFUSED = [
    ("max_pool", (X[0, 0], 2), {}, ww.ShapeError, "x", "has 2 dimensions, expected 3, 4 or 5"),
    ("max_pool", (X.astype(np.int32), 2), {}, ww.DtypeError, "x", "is i32, expected f32, f64, f16, bf16"),
    ("max_pool", (X, 7), {}, ww.ParameterError, "kernel", "is 7, must be so small that a window fits"),
    ("max_pool", (X, 0), {}, ww.ParameterError, "kernel", "is 0, must be from 1"),
    ("max_pool", (X, (2, 2, 2)), {}, ww.ParameterError, "kernel", "is (2, 2, 2), expected 2 numbers that are not negative"),
    ("max_pool", (X, 2), {"stride": 1.5}, ww.ParameterError, "stride", "is 1.5, expected 2 numbers"),
    ("max_pool", (X, 2), {"padding": 2}, ww.ParameterError, "padding", "is 2, must be at most half"),
    ("max_pool", (X, 2), {"argmax": "place"}, ww.ParameterError, "argmax", "is 'place', expected None, 'index' or 'tap'"),
    ("max_pool", (X, 2), {"argmax": "tap", "dilation": 2}, ww.ParameterError, "argmax", "is Tap, must be Index"),
    ("max_pool", (X, 2), {"memory_format": "channels_last"}, ww.ParameterError, "memory_format", "for tensors of PyTorch"),
    ("adaptive_max_pool", (X, 2), {"argmax": "tap"}, ww.ParameterError, "argmax", "is Tap, must be Index"),
    ("adaptive_avg_pool", (X, 0), {}, ww.ParameterError, "output", "is 0, must be from 1"),
    ("avg_pool", (X, 2), {"divisor": 0}, ww.ParameterError, "divisor", "must be not 0"),
    ("avg_pool", (X, 2), {"out": DY[:1]}, ww.ShapeError, "out", "expected [2, 4, 3, 2]"),
    ("max_pool_backward", (DY, INDICES, X.shape[1:], 2), {}, ww.ShapeError, "shape", "expected a shape of 4 dimensions"),
    ("max_pool_backward", (DY, INDICES[:1], X.shape, 2), {}, ww.ShapeError, "indices", "expected [2, 4, 3, 2]"),
    ("max_pool_backward", (DY, DY, X.shape, 2), {}, ww.DtypeError, "indices", "is f32, expected i64, u8"),
    ("max_pool_backward", (DY, INDICES, X.shape, 3), {}, ww.ShapeError, "dy", "has shape [2, 4, 3, 2], expected [2, 4, 2, 1]"),
    ("avg_pool_backward", (DY, (2, 3, 6, 5), 2), {}, ww.ShapeError, "dy", "has shape [2, 4, 3, 2], expected [2, 3, 3, 2]"),
    ("adaptive_avg_pool_backward", (DY, "shape"), {}, ww.ShapeError, "shape", "expected a shape of 4 dimensions"),
]


@pytest.mark.parametrize("name, arguments, options, error, argument, message", REFUSED)
def test_what_is_refused(name, arguments, options, error, argument, message):
    with pytest.raises(error) as info:
        getattr(ww, name)(*arguments, **options)
    e = info.value
    assert (e.op, e.argument) == (name, argument)
    assert str(e).startswith(f"{name}: {argument} ") and message in str(e)
