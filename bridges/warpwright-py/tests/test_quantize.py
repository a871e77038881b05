"""Quantization on numpy arrays, against a plain implementation of the formats."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import numpy_dtype

import warpwright as ww

NF4 = np.array(
    [
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
        -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
        0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    ],
    dtype=np.float32,
)  # fmt: skip


def unpack(codes, n, order="high_first"):
    high, low = codes >> 4, codes & 15
    pair = (high, low) if order == "high_first" else (low, high)
    return np.stack(pair, axis=1).ravel()[:n]


def grouped(flat, size):
    return [flat[i : i + size] for i in range(0, len(flat), size)]


def nf4(x, size):
    """Codes and maxima: the number of midpoints between neighbours that x / absmax exceeds."""
    middles = (NF4[1:] + NF4[:-1]) * np.float32(0.5)
    codes, scales = [], []
    for group in grouped(x.ravel().astype(np.float32), size):
        absmax = np.abs(group).max()
        scaled = group * (np.float32(1) / absmax) if absmax else np.zeros_like(group)
        codes.append((scaled[:, None] > middles).sum(axis=1))
        scales.append(absmax)
    return np.concatenate(codes), np.array(scales, dtype=np.float32)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("order", ["high_first", "low_first"])
@pytest.mark.parametrize("shape, size", [((4, 64), 64), ((3, 50), 64), ((7, 33), 32), ((1,), 64), ((256,), 100)])
def test_nf4(shape, size, order, dtype, random):
    x = random.standard_normal(shape).astype(numpy_dtype(dtype))
    codes, scales = ww.quantize_nf4(x, size, order=order)
    expected, maxima = nf4(x, size)
    assert codes.dtype == np.uint8 and codes.shape == ((x.size + 1) // 2,)
    np.testing.assert_array_equal(scales, maxima)
    np.testing.assert_array_equal(unpack(codes, x.size, order), expected)
    back = ww.dequantize_nf4(codes, scales, shape, size, dtype=x.dtype, order=order)
    assert back.dtype == x.dtype and back.shape == shape
    values = (NF4[expected] * np.repeat(maxima, size)[: x.size]).astype(x.dtype)
    np.testing.assert_array_equal(back.ravel(), values)


def test_int4(random):
    x = random.standard_normal(200).astype(np.float32)
    codes, scales = ww.quantize_int4(x, 32, order="low_first")
    groups = grouped(x, 32)
    np.testing.assert_allclose(scales, [np.abs(g).max() / 7 for g in groups], rtol=1e-6)
    expected = np.concatenate([np.clip(np.rint(g / s), -8, 7) + 8 for g, s in zip(groups, scales)])
    np.testing.assert_array_equal(unpack(codes, 200, "low_first"), expected)
    back = ww.dequantize_int4(codes, scales, 200, 32, order="low_first")
    np.testing.assert_array_equal(back, (expected - 8).astype(np.float32) * np.repeat(scales, 32)[:200])


def test_int4_asymmetric(random):
    x = (random.standard_normal((5, 40)) + 3).astype(np.float64)
    codes, scales, zeros = ww.quantize_int4_asymmetric(x, 50)
    assert scales.dtype == np.float64 and zeros.dtype == np.uint8 and scales.shape == zeros.shape == (4,)
    back = ww.dequantize_int4_asymmetric(codes, scales, zeros, x.shape, 50)
    assert back.dtype == np.float64 and back.shape == x.shape
    steps = np.repeat(scales, 50).reshape(x.shape)
    assert (np.abs(back - x) <= 0.5000001 * steps).all()


def test_fp4_round_trip(random):
    x = random.standard_normal(640).astype(np.float32)
    back = ww.dequantize_fp4(*ww.quantize_fp4(x), 640)
    error = np.linalg.norm(back - x) / np.linalg.norm(x)
    assert 0.10 < error < 0.14


def test_nested_statistics(random):
    absmax = np.abs(random.standard_normal(1000)).astype(np.float32)
    codes, nested, offset = ww.quantize_nested(absmax)
    assert codes.shape == (1000,) and nested.shape == (4,) and offset.shape == (1,)
    np.testing.assert_allclose(offset[0], absmax.astype(np.float64).mean(), rtol=1e-6)
    back = ww.dequantize_nested(codes, nested, offset)
    assert np.linalg.norm(back - absmax) / np.linalg.norm(absmax) < 0.02


def test_out_and_defaults(random):
    x = random.standard_normal((2, 128)).astype(np.float32)
    expected = ww.quantize_nf4(x)
    out = np.zeros(128, np.uint8), np.zeros(4, np.float32)
    result = ww.quantize_nf4(x, out=out)
    assert result[0] is out[0] and result[1] is out[1]
    np.testing.assert_array_equal(out[0], expected[0])
    y = np.empty_like(x)
    assert ww.dequantize_nf4(*out, out=y) is y
    assert ww.dequantize_nf4(*out).shape == (256,)
    np.testing.assert_array_equal(ww.dequantize_nf4(*out).reshape(x.shape), y)
    assert ww.dequantize_nf4(*out, x.shape, dtype="float64").dtype == np.float64
    assert ww.dequantize_nf4(*out, x.shape, dtype=np.float16).dtype == np.float16


def test_empty():
    codes, scales = ww.quantize_nf4(np.empty((0, 4), np.float32))
    assert codes.shape == (0,) and scales.shape == (0,)
    assert ww.dequantize_nf4(codes, scales, (0, 4)).shape == (0, 4)
