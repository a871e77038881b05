"""Single steps of recurrent nets on numpy arrays, in the emulator, against the definition in numpy."""

from __future__ import annotations

import numpy as np
import pytest
from test_recurrent_numpy import GATES, differences, made, step

import warpwright as ww


def given(cell, seed, **sizes):
    """x, h, c and weights of a step."""
    x, (weights,), h0, c0 = made(cell, np.random.default_rng(seed), steps=1, **sizes)
    return x[0], h0[0], c0[0], weights


def call(cell, x, h, c, weights, **options):
    if cell == "lstm":
        return ww.lstm_cell(x, h, c, weights, **options)
    if cell == "gru":
        return ww.gru_cell(x, h, weights, **options)
    return ww.rnn_cell(x, h, weights, nonlinearity=cell, **options)


def call_backward(cell, x, h, c, weights, reserve, dh, dc):
    if cell == "lstm":
        return ww.lstm_cell_backward(x, h, c, weights, reserve, dh, dc)
    if cell == "gru":
        return ww.gru_cell_backward(x, h, weights, reserve, dh)
    return ww.rnn_cell_backward(x, h, weights, reserve, dh, nonlinearity=cell)


@pytest.mark.parametrize("sizes", [{}, {"batch": 1, "biases": 0}, {"batch": 5, "hidden": 33, "inputs": 1, "biases": 1}])
@pytest.mark.parametrize("cell", GATES)
def test_a_step_is_the_definition(cell, sizes):
    x, h, c, weights = given(cell, 3, **sizes)
    found = call(cell, x, h, c, weights)
    found = found if cell == "lstm" else (found,)
    assert all(isinstance(f, np.ndarray) for f in found)
    for f, expected in zip(found, step(cell, x, h, c, weights)):
        np.testing.assert_allclose(f, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("of_c", [True, False])
@pytest.mark.parametrize("cell", GATES)
def test_gradients_are_differences(cell, of_c):
    x, h, c, weights = given(cell, 4, batch=3)
    rng = np.random.default_rng(5)
    reserve = call(cell, x, h, c, weights, training=True)[-1]
    dh, dc = rng.standard_normal(h.shape), rng.standard_normal(c.shape)
    found = call_backward(cell, x, h, c, weights, reserve, dh, dc if of_c else None)
    assert len(found) == (4 if cell == "lstm" else 3)

    def loss():
        h_next, c_next = step(cell, x, h, c, weights)
        return (h_next * dh).sum() + ((c_next * dc).sum() if of_c and cell == "lstm" else 0.0)

    states = (x, h, c) if cell == "lstm" else (x, h)
    differences([*zip(states, found), *zip(weights, found[-1])], loss, rng)


def test_steps_are_those_of_a_sequence():
    x, weights, h0, c0 = made("lstm", np.random.default_rng(6), steps=4, dtype=np.float32)
    y, h_n, c_n = ww.lstm(x, weights, h0, c0)
    h, c = h0[0], c0[0]
    for t in range(4):
        out = np.empty_like(h), np.empty_like(c)
        found = ww.lstm_cell(x[t], h, c, weights[0], out=out)
        assert all(f is o for f, o in zip(found, out))
        h, c = found
        np.testing.assert_allclose(h, y[t], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(c, c_n[0], rtol=1e-6, atol=1e-6)


def test_what_is_refused():
    x, h, c, weights = given("lstm", 7, dtype=np.float32)
    w_ih, w_hh, b_ih, b_hh = weights
    with pytest.raises(ww.ShapeError, match="lstm_cell: w_ih"):
        ww.lstm_cell(x, h, c, (w_ih[:, :-1].copy(), w_hh))
    with pytest.raises(ww.ShapeError, match="gru_cell: w_ih"):
        ww.gru_cell(x, h, weights)
    with pytest.raises(ww.ShapeError, match="x has 3 dimensions"):
        ww.lstm_cell(x[None], h, c, weights)
    with pytest.raises(ww.ShapeError, match="lstm_cell: h "):
        ww.lstm_cell(x, h[:1].copy(), c, weights)
    with pytest.raises(ww.DtypeError, match="lstm_cell: c "):
        ww.lstm_cell(x, h, c.astype(np.float64), weights)
    with pytest.raises(ww.ArgumentError, match="projection"):
        ww.lstm_cell(x, h, c, (w_ih, w_hh, np.zeros((2, 4), np.float32)))
    with pytest.raises(ww.ArgumentError, match="weights"):
        ww.lstm_cell(x, h, c, (w_ih,))
    with pytest.raises(ww.ParameterError, match="nonlinearity"):
        ww.rnn_cell(x, h, weights, nonlinearity="sigmoid")
    reserve = ww.lstm_cell(x, h, c, weights, training=True)[-1]
    with pytest.raises(ww.ShapeError, match="lstm_cell_backward: reserve"):
        ww.lstm_cell_backward(x, h, c, weights, reserve[:-1].copy(), h)
