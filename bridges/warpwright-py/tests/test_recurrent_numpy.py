"""Recurrent nets on numpy arrays, in the emulator, against the definition in numpy."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import distance

import warpwright as ww

GATES = {"lstm": 4, "gru": 3, "tanh": 1, "relu": 1}


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def step(cell, x, h, c, weights):
    """A step of a cell: the new h and c."""
    w_ih, w_hh, *biases = weights
    w_hr = biases.pop() if biases and biases[-1].ndim == 2 else None
    b_ih, b_hh = (*biases, 0.0, 0.0)[:2]
    a, b = x @ w_ih.T + b_ih, h @ w_hh.T + b_hh
    if cell == "lstm":
        i, f, g, o = np.split(a + b, 4, axis=-1)
        c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
        h = _sigmoid(o) * np.tanh(c)
        return (h if w_hr is None else h @ w_hr.T), c
    if cell == "gru":
        (ar, az, an), (br, bz, bn) = np.split(a, 3, axis=-1), np.split(b, 3, axis=-1)
        z = _sigmoid(az + bz)
        return (1 - z) * np.tanh(an + _sigmoid(ar + br) * bn) + z * h, c
    return (np.tanh if cell == "tanh" else lambda v: np.maximum(v, 0))(a + b), c


def reference(cell, x, weights, h0, c0, bidirectional, lengths):
    """y, h_n, c_n of [steps, batch, input]."""
    steps, batch, _ = x.shape
    directions = 2 if bidirectional else 1
    ends = []
    for layer in range(len(weights) // directions):
        parts = []
        for direction in range(directions):
            index = layer * directions + direction
            rows, output = weights[index][1].shape
            hidden = rows // GATES[cell]
            y = np.zeros((steps, batch, output), x.dtype)
            last = [np.zeros((batch, output), x.dtype), np.zeros((batch, hidden), x.dtype)]
            for n in range(batch):
                h = np.zeros(output, x.dtype) if h0 is None else h0[index, n]
                c = np.zeros(hidden, x.dtype) if c0 is None else c0[index, n]
                length = steps if lengths is None else int(lengths[n])
                order = range(length) if direction == 0 else reversed(range(length))
                for t in order:
                    h, c = step(cell, x[t, n], h, c, weights[index])
                    y[t, n] = h
                last[0][n], last[1][n] = h, c
            parts.append(y)
            ends.append(last)
        x = np.concatenate(parts, axis=-1)
    return x, np.stack([h for h, _ in ends]), np.stack([c for _, c in ends])


def made(cell, rng, steps=3, batch=2, inputs=5, hidden=4, layers=1, directions=1, biases=2, dtype=np.float64, projection=0):
    rows, output = GATES[cell] * hidden, projection or hidden
    x = rng.standard_normal((steps, batch, inputs)).astype(dtype)
    shapes = [(rows, None), (rows, output), (rows,), (rows,)][: 2 + biases]
    shapes += [(projection, hidden)] if projection else []
    weights = []
    for index in range(layers * directions):
        columns = inputs if index < directions else directions * output
        full = [(rows, columns) if s[-1] is None else s for s in shapes]
        weights.append(tuple((rng.standard_normal(s) / 2).astype(dtype) for s in full))
    h0, c0 = (rng.standard_normal((layers * directions, batch, width)).astype(dtype) for width in (output, hidden))
    return x, weights, h0, c0


def call(cell, x, weights, h0, c0, **options):
    if cell == "lstm":
        return ww.lstm(x, weights, h0, c0, **options)
    if cell == "gru":
        return ww.gru(x, weights, h0, **options)
    return ww.rnn(x, weights, h0, nonlinearity=cell, **options)


def call_backward(cell, x, weights, y, reserve, dy, dh_n, dc_n, h0, c0, **options):
    if cell == "lstm":
        return ww.lstm_backward(x, weights, y, reserve, dy, dh_n, dc_n, h0, c0, **options)
    if cell == "gru":
        return ww.gru_backward(x, weights, y, reserve, dy, dh_n, h0, **options)
    return ww.rnn_backward(x, weights, y, reserve, dy, dh_n, h0, nonlinearity=cell, **options)


def differences(pairs, loss, rng):
    """Holds elements of each tensor's gradient against what the loss changes by with them."""
    for tensor, gradient in pairs:
        assert tensor.shape == gradient.shape
        for _ in range(3):
            at = tuple(rng.integers(n) for n in tensor.shape)
            kept, step = tensor[at], 1e-6
            tensor[at] = kept + step
            above = loss()
            tensor[at] = kept - step
            difference = (above - loss()) / (2 * step)
            tensor[at] = kept
            assert abs(gradient[at] - difference) <= 1e-6 * max(1.0, abs(difference))


CASES = [
    {},
    {"steps": 1, "batch": 1, "biases": 0},
    {"layers": 2, "biases": 1},
    {"layers": 2, "directions": 2, "lengths": (3, 1)},
    {"directions": 2, "batch": 3, "hidden": 7, "inputs": 1, "lengths": (0, 3, 2), "state": False},
    {"batch_first": True, "directions": 2},
]


PROJECTED = [
    {"projection": 3, "layers": 2, "directions": 2, "lengths": (3, 0)},
    {"projection": 1, "biases": 0, "batch_first": True},
    {"projection": 4, "biases": 1, "state": False},
]


@pytest.mark.parametrize("case", PROJECTED, ids=range(len(PROJECTED)))
def test_projections_are_the_definition(case):
    test_forward_is_the_definition("lstm", case)


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
@pytest.mark.parametrize("cell", GATES)
def test_forward_is_the_definition(cell, case):
    case = dict(case)
    rng = np.random.default_rng(3)
    lengths, state, batch_first = case.pop("lengths", None), case.pop("state", True), case.pop("batch_first", False)
    x, weights, h0, c0 = made(cell, rng, **case)
    if not state:
        h0 = c0 = None
    both = case.get("directions", 1) == 2
    y, h_n, c_n = reference(cell, x, weights, h0, c0, both, lengths)
    given = np.ascontiguousarray(x.swapaxes(0, 1)) if batch_first else x
    lengths = None if lengths is None else np.array(lengths, np.int32)
    found = call(cell, given, weights, h0, c0, bidirectional=both, batch_first=batch_first, lengths=lengths)
    assert len(found) == (3 if cell == "lstm" else 2) and all(isinstance(f, np.ndarray) for f in found)
    got = found[0].swapaxes(0, 1) if batch_first else found[0]
    np.testing.assert_allclose(got, y, rtol=1e-12, atol=1e-12)
    for f, expected in zip(found[1:], (h_n, c_n)):
        np.testing.assert_allclose(f, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("cell", "projection"), [*((cell, 0) for cell in GATES), ("lstm", 2)])
def test_gradients_are_differences(cell, projection):
    rng = np.random.default_rng(4)
    x, weights, h0, c0 = made(cell, rng, layers=2, directions=2, batch=2, hidden=3, inputs=2, projection=projection)
    lengths = np.array([3, 2], np.int32)
    options = {"bidirectional": True, "lengths": lengths}
    y, h_n, *rest = call(cell, x, weights, h0, c0, training=True, **options)
    reserve = rest[-1]
    dy, dh_n, dc_n = (rng.standard_normal(a.shape) for a in (y, h_n, c0))
    dx, dh0, dc0, dweights = call_backward(cell, x, weights, y, reserve, dy, dh_n, dc_n, h0, c0, **options)
    assert (dc0 is None) == (cell != "lstm") and len(dweights) == len(weights)

    def loss():
        found = reference(cell, x, weights, h0, c0, True, lengths)
        total = (found[0] * dy).sum() + (found[1] * dh_n).sum()
        return total + (found[2] * dc_n).sum() if cell == "lstm" else total

    pairs = [(x, dx), (h0, dh0), *((w, g) for one, grads in zip(weights, dweights) for w, g in zip(one, grads))]
    if cell == "lstm":
        pairs.append((c0, dc0))
    differences(pairs, loss, rng)


@pytest.mark.parametrize("cell", ["lstm", "gru", "tanh"])
def test_rounded_factors(cell):
    wide = made(cell, np.random.default_rng(8), steps=4, batch=6, inputs=24, hidden=16, layers=2, directions=2)
    x, weights, h0, c0 = wide[0], [tuple(w / 4 for w in one) for one in wide[1]], *wide[2:]
    lengths = np.array([4, 1, 0, 3, 4, 2], np.int32)
    dy, found = np.random.default_rng(9).standard_normal((4, 6, 32)), {}
    for name, dtype, precision in (("f64", "f8", "full"), ("full", "f4", "full"), ("tf32", "f4", "tf32")):
        x, h0, c0, dy = (np.ascontiguousarray(a, dtype) for a in (x, h0, c0, dy))
        flat = [tuple(np.ascontiguousarray(w, dtype) for w in one) for one in weights]
        options = {"bidirectional": True, "lengths": lengths, "precision": precision}
        y, h_n, *rest = call(cell, x, flat, h0, c0, training=True, **options)
        *inputs, of_weights = call_backward(cell, x, flat, y, rest[-1], dy, None, None, h0, c0, **options)
        gradients = [a for a in inputs if a is not None] + [a for one in of_weights for a in one]
        found[name] = [a.astype(np.float64) for a in (y, h_n, *gradients)]
    exact = found.pop("f64")
    errors = {name: [distance(a, e) for a, e in zip(found[name], exact)] for name in found}
    assert max(errors["full"]) < 3e-6
    assert min(errors["tf32"]) > 1e-5 and max(errors["tf32"]) < 7.5e-4


def test_out_and_no_gradient_of_the_input():
    x, weights, h0, c0 = made("lstm", np.random.default_rng(5), dtype=np.float32)
    expected = ww.lstm(x, weights, h0, c0)
    out = tuple(np.empty_like(e) for e in expected)
    found = ww.lstm(x, weights, h0, c0, out=out)
    for f, o, e in zip(found, out, expected):
        assert f is o
        np.testing.assert_array_equal(o, e)
    y, h_n, c_n, reserve = ww.lstm(x, weights, training=True)
    dx, dh0, dc0, _ = ww.lstm_backward(x, weights, y, reserve, np.ones_like(y), input_gradient=False)
    assert dx is None and dh0 is None and dc0 is None


def test_what_is_refused():
    x, weights, h0, c0 = made("lstm", np.random.default_rng(6), dtype=np.float32)
    (w_ih, w_hh, b_ih, b_hh), = weights
    with pytest.raises(ww.ShapeError, match="w_ih"):
        ww.lstm(x, [(w_ih[:, :-1].copy(), w_hh, b_ih, b_hh)])
    with pytest.raises(ww.ShapeError, match="w_ih"):
        ww.gru(x, weights)
    with pytest.raises(ww.ShapeError, match="w_hh"):
        ww.lstm(x, [(w_ih, w_hh[:-1].copy(), b_ih, b_hh)])
    with pytest.raises(ww.DtypeError, match="b_ih"):
        ww.lstm(x, [(w_ih, w_hh, b_ih.astype(np.float64), b_hh)])
    with pytest.raises(ww.ShapeError, match="h0"):
        ww.lstm(x, weights, h0[:, :1].copy(), c0)
    with pytest.raises(ww.ShapeError, match="x has 2 dimensions"):
        ww.lstm(x[0], weights)
    with pytest.raises(ww.ArgumentError, match="weights"):
        ww.lstm(x, [])
    with pytest.raises(ww.ArgumentError, match="weights"):
        ww.lstm(x, [(w_ih,)])
    with pytest.raises(ww.ArgumentError, match="random"):
        ww.lstm(x, weights, dropout_p=0.5)
    with pytest.raises(ww.ParameterError, match="dropout"):
        ww.lstm(x, weights, dropout_p=1.5, random=np.zeros(2, np.int64))
    with pytest.raises(ww.ShapeError, match="w_hh"):
        ww.lstm(x, [(w_ih, w_hh, np.zeros((2, 4), np.float32))])
    with pytest.raises(ww.ArgumentError, match="weights"):
        ww.lstm(x, weights * 3, bidirectional=True)
    with pytest.raises(ww.DtypeError, match="lengths"):
        ww.lstm(x, weights, lengths=np.array([1, 2], np.int64))
    with pytest.raises(ww.ParameterError, match="precision"):
        ww.lstm(x, weights, precision="half")
    with pytest.raises(ww.ParameterError, match="precision"):
        ww.gru(*made("gru", np.random.default_rng(6))[:2], precision="tf32")
    with pytest.raises(ww.ParameterError, match="nonlinearity"):
        ww.rnn(x, weights, nonlinearity="sigmoid")
    y, _, _, reserve = ww.lstm(x, weights, training=True)
    with pytest.raises(ww.ShapeError, match="reserve"):
        ww.lstm_backward(x, weights, y, reserve[:-1].copy(), y)
