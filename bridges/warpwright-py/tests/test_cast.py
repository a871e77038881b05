"""Conversions of numpy arrays, against numpy's and ml_dtypes' own."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import numpy_dtype

import warpwright as ww

DTYPES = ["float32", "float64", "float16", "bfloat16"]


@pytest.mark.parametrize("to", DTYPES)
@pytest.mark.parametrize("source", DTYPES)
def test_cast(source, to, random):
    x = (random.standard_normal((7, 33)) * 2.0 ** random.integers(-30, 30, (7, 33))).astype(numpy_dtype(source))
    x[0, :5] = [np.inf, -np.inf, np.nan, 0.0, -0.0]
    with np.errstate(over="ignore"):
        # From f64, ml_dtypes rounds to bfloat16 by way of f32.
        single = to == "bfloat16" and source == "float64"
        x = x.astype(np.float32).astype(np.float64) if single else x
        expected = x.astype(numpy_dtype(to))
    y = ww.cast(x, to)
    assert y.dtype == expected.dtype and y.shape == x.shape
    np.testing.assert_array_equal(y.astype(np.float64), expected.astype(np.float64))
    assert np.signbit(y[0, 4].astype(np.float64))
    out = np.empty_like(y)
    assert ww.cast(x, y.dtype, out=out) is out
    np.testing.assert_array_equal(out.astype(np.float64), y.astype(np.float64))


def test_one_rounding_from_double():
    # Just above the midpoint of two neighbors: f32 cannot tell it from the midpoint.
    x = np.array([1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-11 + 2.0**-40])
    assert ww.cast(x[:1], "bfloat16").astype(np.float64) == 1 + 2.0**-7
    assert ww.cast(x[1:], "float16").astype(np.float64) == 1 + 2.0**-10


def test_arguments():
    x = np.ones((2, 6), np.float32)
    np.testing.assert_array_equal(ww.cast(x[:, ::2], "float64"), np.ones((2, 3)))
    with pytest.raises(ww.DtypeError):
        ww.cast(x, "int32")
    with pytest.raises(ww.DtypeError):
        ww.cast(x.astype(np.int32), "float32")
    with pytest.raises(ww.ShapeError):
        ww.cast(x, "float16", out=np.empty(12, np.float16))
