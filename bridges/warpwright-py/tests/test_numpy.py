"""Every function on numpy arrays, in the emulator, against f64."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import BETA, BUDGETS, FUNCTIONS, GATES, SLOPE, derivative, distance, numpy_dtype

import warpwright as ww

DTYPES = ["float32", "float64", "float16", "bfloat16"]


def extra(name: str) -> tuple[float, ...]:
    return {"leaky_relu": (SLOPE,), "softplus": (BETA,)}.get(name, ())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_activations(name, dtype, random):
    x = random.standard_normal((5, 77)).astype(numpy_dtype(dtype)) * 3
    dy = random.standard_normal(x.shape).astype(x.dtype)
    wide, slope = x.astype(np.float64), extra(name)
    y = getattr(ww, name)(x, *slope)
    assert type(y) is np.ndarray and y.dtype == x.dtype and y.shape == x.shape
    assert distance(y, FUNCTIONS[name](wide)) <= BUDGETS[dtype]
    dx = getattr(ww, name + "_backward")(x, dy, *slope)
    assert dx.dtype == x.dtype and dx.shape == x.shape
    # The reference is a difference quotient, which limits what f64 can show.
    budget = max(BUDGETS[dtype], 1e-9)
    assert distance(dx, dy.astype(np.float64) * derivative(FUNCTIONS[name], wide)) <= budget


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", GATES)
def test_gated_units(name, dtype, random):
    gate, up, dy = (random.standard_normal((3, 41)).astype(numpy_dtype(dtype)) for _ in range(3))
    f = FUNCTIONS[GATES[name]]
    g, u, d = (a.astype(np.float64) for a in (gate, up, dy))
    assert distance(getattr(ww, name)(gate, up), f(g) * u) <= BUDGETS[dtype]
    dgate, dup = getattr(ww, name + "_backward")(gate, up, dy)
    assert dgate.dtype == dup.dtype == gate.dtype
    budget = max(2 * BUDGETS[dtype], 1e-9)
    assert distance(dgate, d * u * derivative(f, g)) <= budget
    assert distance(dup, d * f(g)) <= budget


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (1, 1, 1), (2, 3, 4, 5), (257,)])
def test_any_shape(shape):
    x = np.full(shape, -2.0, dtype=np.float32)
    y = ww.leaky_relu(x, 0.25)
    assert y.shape == shape
    np.testing.assert_array_equal(y, np.full(shape, -0.5, dtype=np.float32))


def test_out_is_returned_and_may_be_the_argument(random):
    x = random.standard_normal(100).astype(np.float32)
    expected = np.maximum(x, 0)
    y = np.full_like(x, np.nan)
    assert ww.relu(x, out=y) is y
    np.testing.assert_array_equal(y, expected)
    assert ww.relu(x, out=x) is x
    np.testing.assert_array_equal(x, expected)


def test_strided_arguments_and_results(random):
    base = random.standard_normal((20, 30)).astype(np.float32)
    views = [base.T, base[::2, ::3], base[:, ::-1], np.broadcast_to(base[0], (4, 30)), np.asfortranarray(base)]
    for x in views:
        np.testing.assert_array_equal(ww.relu(x), np.maximum(x, 0))
        dy = np.asfortranarray(random.standard_normal(x.shape).astype(np.float32))
        np.testing.assert_array_equal(ww.relu_backward(x, dy), np.where(x > 0, dy, 0))
    out = np.full((30, 40), np.nan, dtype=np.float32)
    view = out[:, ::2].T
    assert ww.relu(base, out=view) is view
    np.testing.assert_array_equal(view, np.maximum(base, 0))
    assert np.isnan(out[:, 1::2]).all()


def test_gated_out_is_a_pair(random):
    gate, up, dy = (random.standard_normal(64).astype(np.float32) for _ in range(3))
    expected = ww.swiglu_backward(gate, up, dy)
    pair = np.empty_like(gate), np.empty_like(gate)
    result = ww.swiglu_backward(gate, up, dy, out=pair)
    assert result[0] is pair[0] and result[1] is pair[1]
    np.testing.assert_array_equal(pair[0], expected[0])
    np.testing.assert_array_equal(pair[1], expected[1])
    some = ww.swiglu_backward(gate, up, dy, out=(None, pair[1]))
    assert some[1] is pair[1] and some[0] is not pair[0]


def test_special_values():
    x = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0], dtype=np.float32)
    np.testing.assert_array_equal(ww.relu(x), [np.nan, np.inf, 0, 0, 0])
    np.testing.assert_array_equal(ww.sigmoid(x), [np.nan, 1, 0, 0.5, 0.5])
    assert np.isnan(ww.silu(x)[[0, 2]]).all() and ww.silu(x)[1] == np.inf


def test_results_are_the_same_from_call_to_call(random):
    x = random.standard_normal(1000).astype(np.float32)
    assert ww.gelu_erf(x).tobytes() == ww.gelu_erf(x).tobytes()


def test_threads_do_not_disturb_each_other(random):
    from concurrent.futures import ThreadPoolExecutor

    arrays = [random.standard_normal(200 + i).astype(np.float32) for i in range(16)]
    with ThreadPoolExecutor(8) as pool:
        for x, y in zip(arrays, pool.map(ww.relu, arrays)):
            np.testing.assert_array_equal(y, np.maximum(x, 0))
