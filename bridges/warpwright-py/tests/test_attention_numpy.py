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


def formula(q, k, v, sinks=None, factors=1, **options):
    s = scores(q, k, **options)
    sink = np.full(q.shape[2], -np.inf) if sinks is None else sinks
    sink = sink[:, None, None]
    top = np.maximum(s.max(-1, keepdims=True, initial=-np.inf), sink)
    top = np.where(np.isfinite(top), top, 0)
    e = np.exp(s - top)
    total = e.sum(-1, keepdims=True) + np.exp(sink - top)
    p = e / np.where(total == 0, 1, total) * factors
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
    "sinks": {"sinks": True, "causal": True},
    "bias of all heads": {"bias": (2, 1, 5, 9)},
    "bias of all queries": {"bias": (1, 4, 1, 9), "softcap": 2.0},
    "bias and sinks": {"bias": (1, 1, 5, 1), "sinks": True},
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
        shape = (1, 4, 5, 9) if theirs["bias"] is True else theirs["bias"]
        ours["bias"] = random.standard_normal(shape).astype(numpy_dtype(dtype))
        theirs["bias"] = ours["bias"].astype(np.float64)
    if "slopes" in theirs:
        ours["slopes"] = np.array([0.5, 0.25, 0.125, 1.0], np.float32)
        theirs["slopes"] = ours["slopes"].astype(np.float64)
    if "sinks" in theirs:
        ours["sinks"] = np.array([0.5, -1.0, 2.0, 0.0], np.float32)
        theirs["sinks"] = ours["sinks"].astype(np.float64)
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
    more = [name for name in ("bias", "sinks") if name in ours]
    found = ww.attention_backward(q, k, v, o, lse, dy, **ours, **{f"{name}_gradient": True for name in more})
    tensors = {"q": q, "k": k, "v": v, **theirs}
    assert len(found) == 3 + len(more)
    h = 1e-6
    for name, gradient in zip(["q", "k", "v", *more], found):
        assert gradient.shape == tensors[name].shape
        direction = random.standard_normal(tensors[name].shape)
        values = []
        for sign in (1, -1):
            moved = {**tensors, name: tensors[name] + sign * h * direction}
            values.append((formula(**moved)[0] * dy).sum())
        expected = (values[0] - values[1]) / (2 * h)
        # The gradients of sinks are float32.
        assert abs((gradient * direction).sum() - expected) < 1e-6 * max(1, abs(expected)), name


def philox(seed, offset, number):
    """Four words of Philox 4x32-10 for each number, as Salmon et al. (2011) define it."""
    word = np.uint64(0xFFFFFFFF)
    key = [np.uint64(seed) & word, np.uint64(seed) >> np.uint64(32)]
    number = number.astype(np.uint64)
    upper = [np.full_like(number, v) for v in (np.uint64(offset) & word, np.uint64(offset) >> np.uint64(32))]
    c = [number & word, number >> np.uint64(32), *upper]
    for _ in range(10):
        first, second = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        high = [p >> np.uint64(32) for p in (first, second)]
        c = [high[1] ^ c[1] ^ key[0], second & word, high[0] ^ c[3] ^ key[1], first & word]
        key = [(k + np.uint64(step)) & word for k, step in zip(key, (0x9E3779B9, 0xBB67AE85))]
    return np.stack(c, -1)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_dropout(dtype, random):
    q, k, v = drawn(random, dtype, queries=20, keys=38)
    seed, offset, p = 0x123456789ABCDEF0, 3, 0.4
    options = {"dropout_p": p, "random": np.array([seed, offset], np.int64), "causal": True}
    row, key = np.meshgrid(np.arange(2 * 4 * 20), np.arange(38), indexing="ij")
    words = philox(seed, offset, (row << 26) + key // 4)
    kept = np.take_along_axis(words, (key % 4)[..., None], -1)[..., 0] >= round(float(np.float32(p)) * 2**32)
    factors = np.where(kept, 1 / (1 - p), 0).reshape(2, 4, 20, 38)
    assert abs(kept.mean() - (1 - p)) < 0.02
    o, lse = ww.attention(q, k, v, **options)
    wide = [t.astype(np.float64) for t in (q, k, v)]
    reference, sums = formula(*wide, causal=True, factors=factors)
    assert distance(o, reference) < 2 * BUDGETS[dtype] and distance(lse, sums) < BUDGETS[dtype]
    if dtype == "float64":
        dy = random.standard_normal(o.shape)
        tensors = {"q": q, "k": k, "v": v}
        for name, gradient in zip("qkv", ww.attention_backward(q, k, v, o, lse, dy, **options)):
            direction, h, values = random.standard_normal(tensors[name].shape), 1e-6, []
            for sign in (1, -1):
                moved = {**tensors, name: tensors[name] + sign * h * direction}
                values.append((formula(**moved, causal=True, factors=factors)[0] * dy).sum())
            expected = (values[0] - values[1]) / (2 * h)
            assert abs((gradient * direction).sum() - expected) < 1e-6 * max(1, abs(expected)), name


def sequences_of(random, dtype, lengths, heads=4, kv_heads=2, width=16, value_width=24):
    """Packed tensors, two rows longer than the sequences, and where these begin and end."""
    offsets = [np.cumsum([0, *(pair[which] for pair in lengths)]).astype(np.int32) for which in (0, 1)]
    rows = [int(o[-1]) + 2 for o in offsets]
    shapes = [(1, rows[0], heads, width), (1, rows[1], kv_heads, width), (1, rows[1], kv_heads, value_width)]
    return [random.standard_normal(s).astype(numpy_dtype(dtype)) for s in shapes], offsets


LENGTHS = [(5, 9), (0, 4), (3, 0), (1, 20), (17, 17)]


@pytest.mark.parametrize("longest", [None, (17, 20)])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_packed_sequences(dtype, longest, random):
    (q, k, v), (queries, keys) = sequences_of(random, dtype, LENGTHS)
    most = {} if longest is None else {"max_seqlen_q": longest[0], "max_seqlen_k": longest[1]}
    options = {"causal": True, "cu_seqlens_q": queries, "cu_seqlens_k": keys, **most}
    o, lse = ww.attention(q, k, v, **options)
    dy = random.standard_normal(o.shape).astype(q.dtype)
    gradients = ww.attention_backward(q, k, v, o, lse, dy, **options)
    for i, (count, of_keys) in enumerate(LENGTHS):
        own, other = slice(queries[i], queries[i] + count), slice(keys[i], keys[i] + of_keys)
        alone = [q[:, own], k[:, other], v[:, other]]
        if of_keys:
            reference, sums = formula(*(t.astype(np.float64) for t in alone), causal=True)
            assert distance(o[:, own], reference) < 2 * BUDGETS[dtype], i
            assert np.allclose(np.where(np.isfinite(sums), sums, -1e9), np.where(np.isfinite(sums), lse[..., own], -1e9), atol=1e-2)
        else:
            assert np.all(np.asarray(o[:, own], np.float64) == 0)
        # A sequence alone is computed in the same order.
        again = ww.attention_backward(*alone, o[:, own], lse[..., own], dy[:, own], causal=True)
        for gradient, expected, rows in zip(gradients, again, (own, other, other)):
            assert distance(gradient[:, rows], np.asarray(expected, np.float64)) < 2 * BUDGETS[dtype], i


@pytest.mark.parametrize("queries", [1, 20])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_pages_of_a_cache(dtype, queries, random):
    batch, rows, pages, lengths = 3, 16, 4, [64, 21, 0]
    q, k, v = drawn(random, dtype, batch=batch, queries=queries, keys=rows * pages)
    # Pages in another order, with one between them that nobody has.
    order = random.permutation(batch * pages + 1)[: batch * pages].astype(np.int32)
    paged = []
    for t in (k, v):
        cache = np.full((batch * pages + 1, rows, *t.shape[2:]), np.nan, np.float32).astype(t.dtype)
        cache[order] = t.reshape(batch * pages, rows, *t.shape[2:])
        paged.append(cache)
    options = {"key_lengths": np.array(lengths, np.int32), "causal": True}
    o, lse = ww.attention(q, *paged, block_table=order.reshape(batch, pages), **options)
    reference, _ = formula(*(t.astype(np.float64) for t in (q, k, v)), causal=True, lengths=lengths)
    assert distance(o, reference) < 2 * BUDGETS[dtype]
    expected = ww.attention(q, k, v, **options)
    assert distance(o, np.asarray(expected[0], np.float64)) < 2 * BUDGETS[dtype]


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


def ints(*values):
    return np.array(values, np.int32)


def packed(queries, keys, **more):
    return {"cu_seqlens_q": queries, "cu_seqlens_k": keys, **more}


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
        (lambda q, k, v: ((q, k, v), {"sinks": np.zeros(3, np.float32)}), ww.ShapeError),
        (lambda q, k, v: ((q, k, v), {"sinks": np.zeros(4)}), ww.DtypeError),
        (lambda q, k, v: ((q, k, v), {"dropout_p": 0.5}), ww.ArgumentError),
        (lambda q, k, v: ((q, k, v), {"random": np.zeros(2, np.int64)}), ww.ArgumentError),
        (lambda q, k, v: ((q, k, v), {"dropout_p": 0.5, "random": ints(0, 1)}), ww.DtypeError),
        (lambda q, k, v: ((q, k, v), {"dropout_p": 0.5, "random": np.zeros(3, np.int64)}), ww.ShapeError),
        (lambda q, k, v: ((q, k, v), {"dropout_p": 1.5, "random": np.zeros(2, np.int64)}), ww.ParameterError),
        (lambda q, k, v: ((q, k, v), {"cu_seqlens_q": ints(0, 5)}), ww.ArgumentError),
        (lambda q, k, v: ((q, k, v), {"cu_seqlens_k": ints(0, 5)}), ww.ArgumentError),
        (lambda q, k, v: ((q, k, v), {"max_seqlen_q": 5}), ww.ArgumentError),
        (lambda q, k, v: ((q, k, v), {"cu_seqlens_q": ints(0, 5), "cu_seqlens_k": ints(0, 9)}), ww.ParameterError),
        (lambda q, k, v: ((q[:1], k[:1], v[:1]), packed(ints(0, 5), ints(0, 2, 9))), ww.ShapeError),
        (lambda q, k, v: ((q[:1], k[:1], v[:1]), packed(ints([0, 5]), ints([0, 9]))), ww.ShapeError),
        (lambda q, k, v: ((q[:1], k[:1], v[:1]), packed(ints(0, 4, 3), ints(0, 2, 9))), ww.ParameterError),
        (lambda q, k, v: ((q[:1], k[:1], v[:1]), packed(ints(0, 5), ints(0, 10))), ww.ParameterError),
        (lambda q, k, v: ((q[:1], k[:1], v[:1]), packed(ints(), ints())), ww.ParameterError),
        (lambda q, k, v: ((q[:1], k[:1], v[:1]), packed(ints(0, 5), ints(0, 9), max_seqlen_k=8)), ww.ParameterError),
        (lambda q, k, v: ((q[:1], k[:1], v[:1]), packed(ints(0, 5), ints(0, 9), max_seqlen_q=6)), ww.ParameterError),
        (lambda q, k, v: ((q, k, v), {"block_table": ints([0], [1])}), ww.ParameterError),
        (lambda q, k, v: ((q, k, v), {"block_table": ints(0, 1)}), ww.ShapeError),
        (lambda q, k, v: ((q, k, v), {"block_table": ints([0], [1]), "key_lengths": ints(9, 9)}), ww.ParameterError),
    ],
)
def test_errors(change, error, random):
    arguments, options = change(*drawn(random, "float32"))
    with pytest.raises(error):
        ww.attention(*arguments, **options)


def test_gradients_that_there_are_not(random):
    q, k, v = drawn(random, "float32")
    o, lse = ww.attention(q, k, v)
    for flag in ("bias_gradient", "sinks_gradient"):
        with pytest.raises(ww.ParameterError):
            ww.attention_backward(q, k, v, o, lse, o, **{flag: True})
    sinks = np.zeros(4, np.float32)
    with pytest.raises(ww.ArgumentError):
        ww.attention_backward(q, k, v, o, lse, o, sinks=sinks, sinks_gradient=True, out=(q, k, v))
