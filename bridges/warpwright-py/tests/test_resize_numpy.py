"""Images at other extents on arrays of numpy, held against weights in f64."""

from __future__ import annotations

import math

import numpy as np
import pytest
from conftest import BUDGETS, distance, numpy_dtype

import warpwright as ww

DTYPES = ["float32", "float64", "float16", "bfloat16"]


def last(x):
    """The same array with its channels as the last dimension."""
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))


def weights(n, m, mode, align_corners=False, scale=None):
    """The matrix from the cells of an axis to those of the result."""
    found = np.zeros((m, n))
    for o in range(m):
        step = n / m if scale is None else 1 / scale
        if align_corners:
            step = (n - 1) / (m - 1) if m > 1 else 0
        if mode == "area":
            first, end = o * n // m, -(-(o + 1) * n // m)
            found[o, first:end] = 1 / (end - first)
        elif mode.startswith("nearest"):
            found[o, min(math.floor((o + (mode == "nearest_exact") / 2) * step), n - 1)] = 1
        else:
            place = o * step if align_corners else (o + 0.5) * step - 0.5
            place = max(place, 0) if mode == "linear" else place
            cell, t = math.floor(place), place - math.floor(place)
            near = lambda x: (1.25 * x - 2.25) * x * x + 1  # noqa: E731
            far = lambda x: ((-0.75 * x + 3.75) * x - 6) * x + 3  # noqa: E731
            of = [far(1 + t), near(t), near(1 - t), far(2 - t)] if mode == "cubic" else [0, 1 - t, t]
            for at, weight in enumerate(of):
                found[o, min(max(cell + at - 1, 0), n - 1)] += weight
    return found


def resized(x, matrices):
    for axis, matrix in enumerate(matrices):
        x = np.moveaxis(np.tensordot(matrix, x, (1, axis + 2)), 0, axis + 2)
    return x


# Shape, extents, options.
CASES = [
    ((2, 3, 7), 12, {"mode": "nearest"}),
    ((1, 8, 5, 6), (9, 4), {"mode": "nearest_exact"}),
    ((1, 2, 3, 4, 2), (5, 4, 3), {"mode": "nearest"}),
    ((2, 3, 7), 4, {"mode": "linear"}),
    ((1, 8, 5, 6), (9, 4), {"mode": "linear", "align_corners": True}),
    ((1, 2, 3, 4, 2), (5, 3, 3), {"mode": "linear"}),
    ((1, 8, 5, 6), (9, 4), {"mode": "cubic"}),
    ((1, 3, 4, 3), (1, 7), {"mode": "cubic", "align_corners": True}),
    ((1, 8, 5, 6), None, {"mode": "linear", "scale": (1.7, 0.6)}),
    ((1, 3, 5, 6), None, {"mode": "cubic", "scale": 1.5}),
    ((1, 3, 5, 6), (3, 8), {"mode": "area"}),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape, output, options", CASES)
def test_both_passes_in_both_layouts(random, dtype, shape, output, options):
    dims, scale = len(shape) - 2, options.get("scale")
    scales = [scale] * dims if scale is None or isinstance(scale, float) else scale
    extents = [math.floor(n * s) for n, s in zip(shape[2:], scales)] if output is None else output
    extents = [extents] * dims if isinstance(extents, int) else extents
    rule = {k: v for k, v in options.items() if k != "scale"}
    matrices = [weights(n, m, scale=s, **rule) for n, m, s in zip(shape[2:], extents, scales)]
    x = random.standard_normal(shape).astype(numpy_dtype(dtype))
    dy = random.standard_normal((*shape[:2], *extents)).astype(numpy_dtype(dtype))
    y, dx = resized(x.astype(np.float64), matrices), resized(dy.astype(np.float64), [m.T for m in matrices])

    def close(found, expected):
        assert found.shape == expected.shape and found.dtype == numpy_dtype(dtype)
        # Places of every type but f64 are found in f32.
        assert distance(found, expected) <= 2 * BUDGETS[dtype] + (0 if dtype == "float64" else 4e-6)

    close(ww.resize(x, output, **options), y)
    close(ww.resize_backward(dy, shape, **options), dx)
    options = options | {"channels_last": True}
    close(np.moveaxis(ww.resize(last(x), output, **options), -1, 1), y)
    close(np.moveaxis(ww.resize_backward(last(dy), last(x).shape, **options), -1, 1), dx)


X, DY = np.ones((2, 4, 6, 5), np.float32), np.ones((2, 4, 3, 10), np.float32)
# Function, arguments, options, error, argument, part of the message.
REFUSED = [
    ("resize", (X[0, 0], 2), {}, ww.ShapeError, "x", "has 2 dimensions, expected 3, 4 or 5"),
    ("resize", (X.astype(np.int32), 2), {}, ww.DtypeError, "x", "is i32, expected f32, f64, f16, bf16"),
    ("resize", (X,), {}, ww.ParameterError, "output", "is None, expected the extents of the result, or their scale"),
    ("resize", (X, 0), {}, ww.ParameterError, "output", "is 0, must be from 1"),
    ("resize", (X, (2, 2, 2)), {}, ww.ParameterError, "output", "is (2, 2, 2), expected 2 numbers"),
    ("resize", (X, 2), {"mode": "lanczos"}, ww.ParameterError, "mode", "is 'lanczos', expected 'nearest', 'nearest_exact', 'linear'"),
    ("resize", (X, 2), {"align_corners": True}, ww.ParameterError, "align_corners", "is true, must be false but for linear and cubic"),
    ("resize", (X, 2), {"mode": "area", "align_corners": True}, ww.ParameterError, "align_corners", "False but for linear and cubic"),
    ("resize", (X[..., None], 2), {"mode": "cubic"}, ww.ParameterError, "mode", "must be another for three dimensions"),
    ("resize", (X,), {"scale": (1.0, 2.0, 3.0)}, ww.ParameterError, "scale", "expected 2 numbers, or one for all"),
    ("resize", (X, 7), {"scale": 1.0}, ww.ParameterError, "scale", "such that floor(input * scale) is the output"),
    ("resize", (X, 3), {"out": X}, ww.ShapeError, "out", "expected [2, 4, 3, 3]"),
    ("resize_backward", (DY, X.shape[1:]), {}, ww.ShapeError, "shape", "expected a shape of 4 dimensions"),
    ("resize_backward", (DY, (2, 3, 6, 5)), {}, ww.ShapeError, "dy", "has shape [2, 4, 3, 10], expected [2, 3, 3, 10]"),
    ("resize_backward", (DY, X.shape), {"scale": 2.0}, ww.ParameterError, "scale", "such that floor(input * scale) is the output"),
]


@pytest.mark.parametrize("name, arguments, options, error, argument, message", REFUSED)
def test_what_is_refused(name, arguments, options, error, argument, message):
    with pytest.raises(error) as info:
        getattr(ww, name)(*arguments, **options)
    e = info.value
    assert (e.op, e.argument) == (name, argument)
    assert str(e).startswith(f"{name}: {argument} ") and message in str(e)
