"""Attention on numpy arrays, in the emulator, against f64 and its difference quotients."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import BUDGETS, distance, numpy_dtype

import warpwright as ww


def scores(q, k, causal=False, top_left=False, window=(-1, -1), softcap=None, bias=None, slopes=None, lengths=None):
    """The scores [batch, heads, queries, keys] of f64 arrays, minus infinity where a query does not see a key."""
    batch, queries, heads, width = q.shape
    keys, group = k.shape[1], heads // k.shape[2]
    s = np.einsum("bqhd,bkhd->bhqk", q, np.repeat(k, group, 2)) / np.sqrt(width)
    if softcap:
        s = softcap * np.tanh(s / softcap)
    if bias is not None:
        s = s + bias
    key = np.arange(keys)
    for b in range(batch):
        count = keys if lengths is None else lengths[b]
        position = np.arange(queries)[:, None] + (0 if top_left else count - queries)
        if slopes is not None:
            s[b] -= slopes[:, None, None] * np.abs(position - key)
        seen = np.broadcast_to(key < count, (queries, keys)).copy()
        if causal:
            seen &= key <= position
        left, right = window
        if left >= 0:
            seen &= key >= position - left
        if right >= 0:
            seen &= key <= position + right
        s[b] = np.where(seen, s[b], -np.inf)
    return s


def formula(q, k, v, **options):
    s = scores(q, k, **options)
    top = np.where(np.isfinite(s.max(-1, keepdims=True)), s.max(-1, keepdims=True), 0)
    e = np.exp(s - top)
    total = e.sum(-1, keepdims=True)
    p = e / np.where(total == 0, 1, total)
    o = np.einsum("bhqk,bkhd->bqhd", p, np.repeat(v, q.shape[2] // k.shape[2], 2))
    with np.errstate(divide="ignore"):
        return o, (np.log(total) + top)[..., 0]


def drawn(random, dtype, batch=2, queries=5, keys=9, heads=4, kv_heads=2, width=16, value_width=24):
    shapes = [(batch, queries, heads, width), (batch, keys, kv_heads, width), (batch, keys, kv_heads, value_width)]
    return [random.standard_normal(s).astype(numpy_dtype(dtype)) for s in shapes]


CASES = {
    "plain": {},
    "causal": {"causal": True},
    "causal from the top": {"causal": True, "top_left": True},
    "window": {"window": (2, 1)},
    "softcap": {"softcap": 1.5},
    "bias": {"bias": True},
    "slopes": {"slopes": True},
    "lengths": {"lengths": [9, 3]},
}


def arguments(case, random, dtype):
    """The options of the formula, and ours."""
    theirs, ours = dict(CASES[case]), {}
    for name in ("causal", "window", "softcap"):
        if name in theirs:
            ours[name] = theirs[name]
    if theirs.get("top_left"):
        ours["alignment"] = "top_left"
    if "bias" in theirs:
        ours["bias"] = random.standard_normal((1, 4, 5, 9)).astype(numpy_dtype(dtype))
        theirs["bias"] = ours["bias"].astype(np.float64)
    if "slopes" in theirs:
        ours["slopes"] = np.array([0.5, 0.25, 0.125, 1.0], np.float32)
        theirs["slopes"] = ours["slopes"].astype(np.float64)
    if "lengths" in theirs:
        ours["key_lengths"] = np.array(theirs["lengths"], np.int32)
    return theirs, ours


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("case", CASES)
def test_results(case, dtype, random):
    q, k, v = drawn(random, dtype)
    theirs, ours = arguments(case, random, dtype)
    o, lse = ww.attention(q, k, v, **ours)
    reference, sums = formula(*(t.astype(np.float64) for t in (q, k, v)), **theirs)
    assert o.dtype == q.dtype and o.shape == (2, 5, 4, 24)
    assert distance(o, reference) < 2 * BUDGETS[dtype]
    seen = np.isfinite(sums)
    assert distance(np.where(seen, lse, 0), np.where(seen, sums, 0)) < max(BUDGETS[dtype], 1e-12)
    assert np.all(lse[~seen] == -np.inf) and np.all(np.asarray(o, np.float64).transpose(0, 2, 1, 3)[~seen] == 0)


@pytest.mark.parametrize("case", CASES)
def test_gradients(case, random):
    q, k, v = drawn(random, "float64")
    theirs, ours = arguments(case, random, "float64")
    o, lse = ww.attention(q, k, v, **ours)
    dy = random.standard_normal(o.shape)
    found = ww.attention_backward(q, k, v, o, lse, dy, **ours)
    h = 1e-6
    for place, gradient in enumerate(found):
        tensors = [q, k, v]
        direction = random.standard_normal(tensors[place].shape)
        values = []
        for sign in (1, -1):
            moved = list(tensors)
            moved[place] = tensors[place] + sign * h * direction
            values.append((formula(*moved, **theirs)[0] * dy).sum())
        expected = (values[0] - values[1]) / (2 * h)
        assert abs((gradient * direction).sum() - expected) < 1e-6 * max(1, abs(expected)), place


def test_other_strides_and_out(random):
    q, k, v = drawn(random, "float32")
    whole = ww.attention(q, k, v)
    turned = ww.attention(*(t.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3) for t in (q, k, v)))
    out = np.empty_like(whole[0]), np.empty_like(whole[1])
    given = ww.attention(q, k, v, out=out)
    for a, b, c in zip(whole, turned, given):
        assert np.array_equal(a, b) and np.array_equal(a, c)
    assert given[0] is out[0] and given[1] is out[1]


def test_no_keys_and_no_queries(random):
    q, k, v = drawn(random, "float32", keys=0)
    o, lse = ww.attention(q, k, v)
    assert np.all(o == 0) and np.all(lse == -np.inf)
    q, k, v = drawn(random, "float32", queries=0)
    o, lse = ww.attention(q, k, v)
    assert o.shape == (2, 0, 4, 24) and lse.shape == (2, 4, 0)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda q, k, v: ((q[0], k, v), {}), ww.ShapeError),
        (lambda q, k, v: ((q, k.astype(np.float64), v), {}), ww.DtypeError),
        (lambda q, k, v: ((q[:, :, :3], k, v), {}), ww.ParameterError),
        (lambda q, k, v: ((q, k[..., :8], v), {}), ww.ParameterError),
        (lambda q, k, v: ((q, k, v[:, :5]), {}), ww.ParameterError),
        (lambda q, k, v: ((q, k, v), {"alignment": "middle"}), ww.ParameterError),
        (lambda q, k, v: ((q, k, v), {"softmax_scale": -1.0}), ww.ParameterError),
        (lambda q, k, v: ((q, k, v), {"key_lengths": np.array([1, 2], np.int64)}), ww.DtypeError),
        (lambda q, k, v: ((q, k, v), {"key_lengths": np.array([1], np.int32)}), ww.ShapeError),
        (lambda q, k, v: ((q, k, v), {"out": (q,)}), ww.ArgumentError),
    ],
)
def test_errors(change, error, random):
    arguments, options = change(*drawn(random, "float32"))
    with pytest.raises(error):
        ww.attention(*arguments, **options)
