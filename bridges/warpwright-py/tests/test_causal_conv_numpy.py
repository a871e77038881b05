"""Causal convolutions on arrays of numpy, held against sums in f64."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import BUDGETS, FUNCTIONS, derivative, distance, numpy_dtype

import warpwright as ww

DTYPES = ["float32", "float64", "float16", "bfloat16"]
# Sums of products in f32 may differ more than by one rounding.
SUMS = {"float32": 2e-6, "float64": 1e-9, "float16": 2e-6, "bfloat16": 2e-6}


def last(x):
    """The same array with its channels as the last dimension."""
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))


def wide(x):
    return np.asarray(x, dtype=np.float64)


def whole(x, weight, states):
    before = np.zeros((*x.shape[:2], weight.shape[1] - 1)) if states is None else wide(states)
    return np.concatenate([before, wide(x)], -1)


def sums(x, weight, bias=None, states=None):
    seen, length = whole(x, weight, states), x.shape[-1]
    y = sum(wide(weight)[:, tap, None] * seen[..., tap : tap + length] for tap in range(weight.shape[1]))
    return y if bias is None else y + wide(bias)[:, None]


def gradients(x, weight, dy, states=None, dlast=None):
    """Of x, weight, bias and states, from the gradient of the sums."""
    seen, length, before = whole(x, weight, states), x.shape[-1], weight.shape[1] - 1
    of_seen, dweight = np.zeros_like(seen), np.zeros(weight.shape)
    if dlast is not None:
        of_seen[..., length:] = wide(dlast)
    for tap in range(weight.shape[1]):
        part = slice(tap, tap + length)
        of_seen[..., part] += wide(weight)[:, tap, None] * dy
        dweight[:, tap] = (seen[..., part] * dy).sum((0, 2))
    return of_seen[..., before:], dweight, dy.sum((0, 2)), of_seen[..., :before]


def drawn(random, dtype, *shapes):
    return [random.standard_normal(shape).astype(numpy_dtype(dtype)) for shape in shapes]


def close(found, expected, dtype):
    assert found.shape == expected.shape and found.dtype == numpy_dtype(dtype)
    assert distance(found, expected) <= 2 * BUDGETS[dtype] + SUMS[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("shape, width", [((2, 5, 7), 4), ((1, 8, 1), 3), ((3, 1, 9), 2), ((1, 16, 20), 4)])
def test_both_passes_in_both_layouts(random, dtype, activation, shape, width):
    batch, channels, length = shape
    of_states = (batch, channels, width - 1)
    x, weight, bias, states, dy, dlast = drawn(random, dtype, shape, (channels, width), (channels,), of_states, shape, of_states)
    z = sums(x, weight, bias, states)
    expected = z if activation is None else FUNCTIONS["silu"](z)
    final = whole(x, weight, states)[..., length:]
    dz = wide(dy) if activation is None else wide(dy) * derivative(FUNCTIONS["silu"], z)
    wanted = gradients(x, weight, dz, states, dlast)
    options = {"activation": activation}
    y, kept = ww.causal_conv1d(x, weight, bias, initial_states=states, final_states=True, **options)
    close(y, expected, dtype), close(kept, final, dtype)
    found = ww.causal_conv1d_backward(x, weight, dy, dlast, bias=bias, initial_states=states, **options)
    for a, b in zip(found, wanted):
        close(a, b, dtype)
    options["channels_last"] = True
    y, kept = ww.causal_conv1d(last(x), weight, bias, initial_states=last(states), final_states=True, **options)
    close(np.moveaxis(y, -1, 1), expected, dtype), close(np.moveaxis(kept, -1, 1), final, dtype)
    dx, dweight, dbias, dinitial = ww.causal_conv1d_backward(
        last(x), weight, last(dy), last(dlast), bias=bias, initial_states=last(states), **options
    )
    for a, b in zip((np.moveaxis(dx, -1, 1), dweight, dbias, np.moveaxis(dinitial, -1, 1)), wanted):
        close(a, b, dtype)


def test_what_is_left_out(random):
    x, weight, dy = drawn(random, "float32", (2, 5, 7), (5, 4), (2, 5, 7))
    close(ww.causal_conv1d(x, weight), sums(x, weight), "float32")
    dx, dweight, dbias, dinitial = ww.causal_conv1d_backward(x, weight, dy)
    wanted = gradients(x, weight, wide(dy))
    close(dx, wanted[0], "float32"), close(dweight, wanted[1], "float32")
    assert dbias is None and dinitial is None
    out = [np.empty_like(x), np.empty_like(weight)]
    assert all(a is b for a, b in zip(ww.causal_conv1d_backward(x, weight, dy, out=out), out))
    assert np.array_equal(out[0], dx)


def test_sequences(random):
    """Each is convolved as if it were alone."""
    x, weight = drawn(random, "float64", (1, 3, 9), (3, 3))
    ids = np.array([[0, 0, 0, 4, 4, -1, 2, 2, 2]], np.int32)
    y = ww.causal_conv1d(x, weight, seq_idx=ids)
    for begin, end in ((0, 3), (3, 5), (6, 9)):
        close(y[..., begin:end], sums(x[..., begin:end], weight), "float64")
    assert not y[..., 5].any()


@pytest.mark.parametrize("channels_last", [False, True])
def test_update(random, channels_last):
    x, weight, bias, states = drawn(random, "float32", (2, 5, 7), (5, 4), (5,), (2, 5, 3))
    expected, final = ww.causal_conv1d(x, weight, bias, initial_states=states, final_states=True)
    turn = last if channels_last else np.ascontiguousarray
    kept = turn(states)
    for begin, end in ((0, 1), (1, 3), (3, 7)):
        y = ww.causal_conv1d_update(turn(x[..., begin:end]), kept, weight, bias, channels_last=channels_last)
        assert np.allclose(y, turn(expected[..., begin:end]), rtol=1e-5, atol=1e-5)
    assert np.array_equal(kept, turn(final))


X, WEIGHT, STATES = np.ones((2, 4, 5), np.float32), np.ones((4, 3), np.float32), np.ones((2, 4, 2), np.float32)
IDS = np.zeros((2, 5), np.int32)
# Function, arguments, options, error, argument, part of the message.
REFUSED = [
    ("causal_conv1d", (X[0], WEIGHT), {}, ww.ShapeError, "x", "has 2 dimensions, expected 3"),
    ("causal_conv1d", (X, WEIGHT[:3]), {}, ww.ShapeError, "weight", "has shape [3, 3], expected [4, 3]"),
    ("causal_conv1d", (X, np.ones((4, 5), np.float32)), {}, ww.ShapeError, "weight", "has 5 taps, expected from 2 to 4"),
    ("causal_conv1d", (X, WEIGHT.astype(np.float64)), {}, ww.DtypeError, "weight", "is f64, expected f32"),
    ("causal_conv1d", (X, WEIGHT), {"activation": "relu"}, ww.ParameterError, "activation", "is 'relu', expected None or 'silu'"),
    ("causal_conv1d", (X, WEIGHT), {"initial_states": X}, ww.ShapeError, "initial_states", "expected [2, 4, 2]"),
    ("causal_conv1d", (X, WEIGHT), {"seq_idx": IDS.astype(np.int64)}, ww.DtypeError, "seq_idx", "is i64, expected i32"),
    ("causal_conv1d", (X, WEIGHT), {"seq_idx": IDS, "final_states": True}, ww.ArgumentError, "seq_idx", "where there are states"),
    ("causal_conv1d", (X[..., :0], WEIGHT), {"final_states": True}, ww.ShapeError, "x", "has no positions"),
    ("causal_conv1d", (X, WEIGHT), {"memory_format": "channels_last"}, ww.ParameterError, "memory_format", "for tensors of PyTorch"),
    ("causal_conv1d_backward", (X, WEIGHT, X[:1]), {}, ww.ShapeError, "dy", "expected [2, 4, 5]"),
    ("causal_conv1d_backward", (X, WEIGHT, X, X), {}, ww.ShapeError, "dfinal_states", "expected [2, 4, 2]"),
    ("causal_conv1d_update", (X, X, WEIGHT), {}, ww.ShapeError, "states", "expected [2, 4, 2]"),
    ("causal_conv1d_update", (X, np.asfortranarray(STATES), WEIGHT), {}, ww.LayoutError, "states", "must be contiguous"),
    ("causal_conv1d_update", (X[..., :0], STATES, WEIGHT), {}, ww.ParameterError, "len", "is 0, must be at least 1"),
]


@pytest.mark.parametrize("name, arguments, options, error, argument, message", REFUSED)
def test_what_is_refused(name, arguments, options, error, argument, message):
    with pytest.raises(error) as info:
        getattr(ww, name)(*arguments, **options)
    e = info.value
    assert (e.op, e.argument) == (name, argument)
    assert str(e).startswith(f"{name}: {argument} ") and message in str(e)
