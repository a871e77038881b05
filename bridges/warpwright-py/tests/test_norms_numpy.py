"""Normalisation and softmax on numpy arrays, in the emulator, against f64 and its difference quotients."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import BUDGETS, distance, numpy_dtype

import warpwright as ww

DTYPES = ["float32", "float64", "float16", "bfloat16"]
EPS = 1e-3


def gradient(function, x, dy):
    """The gradient of `sum(function(x) dy)` by central differences."""
    found, h = np.empty_like(x), 1e-6
    for i in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[i] += h
        down[i] -= h
        found[i] = ((function(up) - function(down)) * dy).sum() / (2 * h)
    return found


def normalised(x, axes, eps=EPS):
    mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    return (x - mean) / np.sqrt(var + eps)


def column(c, rank):
    return c.reshape(-1, *[1] * (rank - 2))


def group(x, w, b):
    shape = x.shape
    grouped = x.reshape(shape[0], 2, -1)
    return normalised(grouped, 2).reshape(shape) * column(w, len(shape)) + column(b, len(shape))


def softmax(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def response(x, size, alpha, beta, k):
    channels = x.shape[1]
    sums = np.stack(
        [np.square(x[:, max(c - size // 2, 0) : c + (size - 1) // 2 + 1]).sum(1) for c in range(channels)], 1
    )
    return x / (k + alpha / size * sums) ** beta


class Op:
    """Our two functions and the formula in numpy, all of the same tensors."""

    def __init__(self, formula, forward, backward, shapes):
        self.formula, self.forward, self.backward, self.shapes = formula, forward, backward, shapes



OPS = {
    "layer_norm": Op(
        lambda x, w, b: normalised(x, 2) * w + b,
        lambda x, w, b: ww.layer_norm(x, 5, w, b, EPS),
        lambda x, w, b, dy: ww.layer_norm_backward(
            x, dy, *ww.layer_norm(x, 5, w, b, EPS, statistics=True)[1:], 5, w, b
        ),
        [(2, 3, 5), (5,), (5,)],
    ),
    "rms_norm": Op(
        lambda x, w: x / np.sqrt(np.square(x).mean((1, 2), keepdims=True) + EPS) * w,
        lambda x, w: ww.rms_norm(x, (3, 5), w, EPS),
        lambda x, w, dy: ww.rms_norm_backward(x, dy, ww.rms_norm(x, (3, 5), w, EPS, statistics=True)[1], (3, 5), w),
        [(2, 3, 5), (3, 5)],
    ),
    "group_norm": Op(
        group,
        lambda x, w, b: ww.group_norm(x, 2, w, b, EPS),
        lambda x, w, b, dy: ww.group_norm_backward(
            x, dy, *ww.group_norm(x, 2, w, b, EPS, statistics=True)[1:], 2, w, b
        ),
        [(2, 4, 3), (4,), (4,)],
    ),
    "instance_norm": Op(
        lambda x, w, b: normalised(x, 2) * column(w, 3) + column(b, 3),
        lambda x, w, b: ww.instance_norm(x, w, b, EPS),
        lambda x, w, b, dy: ww.instance_norm_backward(x, dy, *ww.instance_norm(x, w, b, EPS, statistics=True)[1:], w, b),
        [(2, 3, 5), (3,), (3,)],
    ),
    "batch_norm": Op(
        lambda x, w, b: normalised(x, (0, 2)) * column(w, 3) + column(b, 3),
        lambda x, w, b: ww.batch_norm(x, None, None, w, b, True, eps=EPS),
        lambda x, w, b, dy: ww.batch_norm_backward(
            x, dy, *ww.batch_norm(x, None, None, w, b, True, eps=EPS, statistics=True)[1:], w, b
        ),
        [(4, 3, 2), (3,), (3,)],
    ),
    "softmax": Op(
        lambda x: softmax(x, 1),
        lambda x: ww.softmax(x, 1),
        lambda x, dy: (ww.softmax_backward(ww.softmax(x, 1), dy, 1),),
        [(2, 5, 3)],
    ),
    "log_softmax": Op(
        lambda x: np.log(softmax(x / 2, -1)),
        lambda x: ww.log_softmax(x, scale=0.5),
        lambda x, dy: (ww.log_softmax_backward(ww.log_softmax(x, scale=0.5), dy, scale=0.5),),
        [(3, 7)],
    ),
    "local_response_norm": Op(
        lambda x: response(x, 3, 0.4, 0.75, 2.0),
        lambda x: ww.local_response_norm(x, 3, 0.4, 0.75, 2.0),
        lambda x, dy: (ww.local_response_norm_backward(x, dy, 3, 0.4, 0.75, 2.0),),
        [(2, 6, 2)],
    ),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPS)
def test_values_and_gradients(name, dtype, random):
    op = OPS[name]
    tensors = [random.standard_normal(shape).astype(numpy_dtype(dtype)) for shape in op.shapes]
    wide = [t.astype(np.float64) for t in tensors]
    y, expected = op.forward(*tensors), op.formula(*wide)
    assert type(y) is np.ndarray and y.dtype == tensors[0].dtype and y.shape == expected.shape
    budget = 2 * BUDGETS[dtype]
    assert distance(y, expected) <= budget
    dy = random.standard_normal(y.shape).astype(y.dtype)
    gradients = op.backward(*tensors, dy)
    for i, found in enumerate(gradients):
        assert found.dtype == tensors[i].dtype and found.shape == tensors[i].shape

        def of_one(value, i=i):
            return op.formula(*wide[:i], value, *wide[i + 1 :])

        # The reference is a difference quotient; a softmax's gradient takes the rounded result.
        assert distance(found, gradient(of_one, wide[i], dy.astype(np.float64))) <= max(2 * budget, 1e-8), i


def test_losses(random):
    logits = random.standard_normal((5, 7))
    target = np.array([1, 0, -100, 6, 3])
    logs = np.log(softmax(logits, 1))
    counts = target != -100
    known = np.where(counts, target, 0)
    each = np.where(counts, -0.9 * logs[range(5), known] - 0.1 * logs.mean(1), 0)
    options = {"label_smoothing": 0.1}
    for reduction, expected in (("none", each), ("sum", each.sum()), ("mean", each.sum() / 4)):
        loss, lse, nll, *count = ww.cross_entropy(logits, target, reduction=reduction, statistics=True, **options)
        np.testing.assert_allclose(loss, expected, rtol=1e-12)
        dloss = np.ones_like(loss)
        found = ww.cross_entropy_backward(logits, target, lse, nll, dloss, *count, reduction=reduction, **options)
        hot = np.zeros((5, 7))
        hot[range(5), known] = 0.9
        reference = np.where(counts[:, None], np.exp(logs) - hot - 0.1 / 7, 0) / (4 if reduction == "mean" else 1)
        np.testing.assert_allclose(found, reference, atol=1e-12)
    single = ww.cross_entropy(logits.astype(np.float32), target.astype(np.int32))
    assert single.shape == () and single.dtype == np.float32
    half = logits.astype(np.float16)
    wide, lse, nll, count = ww.cross_entropy(half, target, dtype="float32", statistics=True)
    np.testing.assert_allclose(wide, ww.cross_entropy(half.astype(np.float32), target), rtol=1e-6)
    found = ww.cross_entropy_backward(half, target, lse, nll, wide, count)
    narrow = ww.cross_entropy_backward(half, target, lse, nll, wide.astype(np.float16), count)
    assert wide.dtype == np.float32 and found.dtype == np.float16
    np.testing.assert_allclose(found, narrow, rtol=2e-3)
    with pytest.raises(ww.DtypeError, match="loss"):
        ww.cross_entropy(half, target, dtype="float64")
    with pytest.raises(ww.DtypeError, match="dloss"):
        ww.cross_entropy_backward(half, target, lse, nll, wide.astype(np.float64), count)
    with pytest.raises(ww.ParameterError):
        ww.cross_entropy(logits, target, reduction="most")
    with pytest.raises(ww.DtypeError):
        ww.cross_entropy(logits, target.astype(np.float64))


def test_running_statistics_follow(random):
    x = random.standard_normal((4, 3, 5))
    mean, var = random.standard_normal(3), random.standard_normal(3) ** 2
    expected = (0.75 * mean + 0.25 * x.mean((0, 2)), 0.75 * var + 0.25 * x.var((0, 2), ddof=1))
    ww.batch_norm(x, mean, var, training=True, momentum=0.25)
    np.testing.assert_allclose(mean, expected[0], rtol=1e-12)
    np.testing.assert_allclose(var, expected[1], rtol=1e-12)
    y = ww.batch_norm(x, mean, var, eps=EPS, relu=True)
    np.testing.assert_allclose(y, np.maximum((x - column(mean, 3)) / np.sqrt(column(var, 3) + EPS), 0), atol=1e-12)
    with pytest.raises(ww.LayoutError):
        ww.batch_norm(x, np.zeros(6)[::2], np.zeros(6)[::2], training=True)


def test_results_go_where_the_caller_wants(random):
    x = random.standard_normal((3, 8)).astype(np.float32)
    y, mean, rstd = np.empty_like(x), np.empty(3, np.float32), np.empty(3, np.float32)
    found = ww.layer_norm(x, 8, statistics=True, out=(y, mean, rstd))
    assert found[0] is y and found[1] is mean and found[2] is rstd
    np.testing.assert_allclose(mean, x.mean(1), atol=1e-6)
    assert ww.softmax(x, out=x) is x
    np.testing.assert_allclose(x.sum(1), 1, rtol=1e-6)
    with pytest.raises(ww.ArgumentError):
        ww.layer_norm(x, 8, statistics=True, out=(y, mean))
    total, residual = ww.rms_norm(x, 8, residual=y), x + y
    np.testing.assert_allclose(total[1], residual, rtol=1e-6)


def test_statistics_of_nothing():
    """Channels and groups of no values have statistics all the same, and leave running ones as they are."""
    mean, var = np.full(3, 5, np.float32), np.full(3, 7, np.float32)
    for shape in ((0, 3), (0, 3, 4), (2, 3, 0)):
        x = np.zeros(shape, np.float32)
        wanted = x.copy(), np.full(3, 9, np.float32), np.full(3, 9, np.float32)
        y, m, r = ww.batch_norm(x, mean, var, training=True, statistics=True, out=wanted)
        assert y.shape == shape and m is wanted[1] and not m.any() and np.isnan(r).all()
        assert (mean == 5).all() and (var == 7).all()
        wanted = x.copy(), np.full(3, 9, np.float32), np.full(3, 9, np.float32)
        ww.batch_norm_backward(x, x, m, r, mean, var, out=wanted)
        assert not wanted[1].any() and not wanted[2].any()
    x = np.zeros((2, 4, 0), np.float32)
    wanted = x.copy(), np.full((2, 2), 9, np.float32), np.full((2, 2), 9, np.float32)
    _, m, r = ww.group_norm(x, 2, statistics=True, out=wanted)
    assert not m.any() and np.isnan(r).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5, 3), (2, 4, 6), (3, 5, 4, 2)])
def test_parts_of_batch_norm(dtype, shape, random):
    """Two batches whose moments are merged, and gradients from the sums of both, are one batch."""
    x, dy = (random.standard_normal(shape).astype(numpy_dtype(dtype)) for _ in range(2))
    channels, rank = shape[1], len(shape)
    axes = (0, *range(2, rank))
    wide, wide_dy = x.astype(np.float64), dy.astype(np.float64)
    statistics = "float64" if dtype == "float64" else "float32"
    budget = BUDGETS[statistics]
    parts = [(x[:1], dy[:1]), (x[1:], dy[1:]), (x[:0], dy[:0])]
    moments = np.stack([ww.batch_moments(part) for part, _ in parts])
    assert moments.dtype == statistics and moments.shape == (3, 2 * channels + 1)
    weight, bias, running_mean, running_var = (random.standard_normal(channels).astype(statistics) for _ in range(4))
    running = running_mean.copy(), running_var.copy()
    found = [ww.batch_norm_merged(part, moments, *running, weight, bias, 0.25, EPS) for part, _ in parts[:1]]
    found += [ww.batch_norm_merged(part, moments, None, None, weight, bias, eps=EPS) for part, _ in parts[1:]]
    y = np.concatenate([result[0] for result in found])
    assert all(np.array_equal(a, b) for result in found[1:] for a, b in zip(result[1:], found[0][1:]))
    _, mean, rstd, count = found[0]
    total = x.size // channels
    assert count.tolist() == [total]
    exact_rstd = 1 / np.sqrt(wide.var(axes) + EPS)
    normal = (wide - column(wide.mean(axes), rank)) * column(exact_rstd, rank)
    assert distance(mean, wide.mean(axes)) < budget
    assert distance(rstd, exact_rstd) < 2 * budget
    assert y.dtype == x.dtype
    assert distance(y, normal * column(weight, rank) + column(bias, rank)) < 4 * BUDGETS[dtype]
    assert distance(running[0], 0.75 * running_mean + 0.25 * wide.mean(axes)) < 2 * budget
    assert distance(running[1], 0.75 * running_var + 0.25 * wide.var(axes) * total / (total - 1)) < 2 * budget

    sums = [ww.batch_norm_sums(*part, mean, rstd) for part in parts]
    assert all(s.shape == (2, channels) and s.dtype == statistics for s in sums)
    dweight, dbias = both = sum(sums)
    size = np.linalg.norm(wide_dy)
    assert np.linalg.norm(dweight - (wide_dy * normal).sum(axes)) < 4 * budget * size
    assert np.linalg.norm(dbias - wide_dy.sum(axes)) < 4 * budget * size
    dx = np.concatenate([ww.batch_norm_gradient(*part, mean, rstd, count, both, weight) for part in parts])
    exact = wide_dy - column(dbias / total, rank) - normal * column(dweight / total, rank)
    assert dx.dtype == x.dtype
    assert distance(dx, exact * column(exact_rstd * weight, rank)) < 4 * BUDGETS[dtype]


def test_parts_of_batch_norm_that_do_not_fit():
    x, c, one = np.zeros((2, 3, 4), np.float32), np.zeros(3, np.float32), np.ones(1, np.float32)
    for argument, call in (
        ("moments", lambda: ww.batch_norm_merged(x, np.zeros((2, 6), np.float32))),
        ("rstd", lambda: ww.batch_norm_sums(x, x, c, c[:2])),
        ("dy", lambda: ww.batch_norm_sums(x, x[:1], c, c)),
        ("count", lambda: ww.batch_norm_gradient(x, x, c, c, c, np.zeros((2, 3), np.float32))),
        ("sums", lambda: ww.batch_norm_gradient(x, x, c, c, one, c)),
    ):
        with pytest.raises(ww.ShapeError) as raised:
            call()
        assert raised.value.argument == argument
    for argument, call in (
        ("batches", lambda: ww.batch_norm_merged(x, np.zeros((0, 7), np.float32))),
        ("running_mean", lambda: ww.batch_norm_merged(x, np.zeros((1, 7), np.float32), c)),
    ):
        with pytest.raises(ww.ParameterError) as raised:
            call()
        assert raised.value.argument == argument
    with pytest.raises(ww.DtypeError):
        ww.batch_moments(x.astype(np.int32))
