"""Appending to the cache of keys and values, on arrays of numpy and tensors of PyTorch on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import numpy_dtype

import warpwright as ww

DTYPES = ["float32", "float64", "float16", "bfloat16"]
BATCH, STEPS, HEADS, KEY_HEADS, WIDTH, VALUE_WIDTH = 3, 2, 4, 2, 16, 24
LENGTHS = np.array([5, 2, 33], dtype=np.int32)
# The second sequence has one page.
TABLE = np.array([[3, 6, 0], [1, 0, 0], [5, 2, 4]], dtype=np.int32)


def drawn(random, dtype, *shape):
    return random.standard_normal(shape).astype(numpy_dtype(dtype))


def problem(dtype, paged):
    random = np.random.default_rng(3)
    shape = (7, 16) if paged else (BATCH, 40)
    new = [drawn(random, dtype, BATCH, STEPS, heads, width) for heads, width in ((HEADS, WIDTH), (KEY_HEADS, WIDTH), (KEY_HEADS, VALUE_WIDTH))]
    caches = [drawn(random, dtype, *shape, KEY_HEADS, width) for width in (WIDTH, VALUE_WIDTH)]
    angles = random.uniform(0, 6, (40, WIDTH // 2))
    return new, caches, [f(angles).astype(np.float32 if dtype != "float64" else np.float64) for f in (np.cos, np.sin)]


def appended(cache, new, paged):
    """The cache with new rows in their places."""
    cache = cache.copy()
    for b in range(BATCH):
        for step in range(STEPS):
            at = LENGTHS[b] - STEPS + step
            page, row = (TABLE[b, at // 16], at % 16) if paged else (b, at)
            cache[page, row] = new[b, step]
    return cache


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_new_tokens_are_where_lengths_say(dtype, paged):
    (q, k, v), (k_cache, v_cache), (cos, sin) = problem(dtype, paged)
    positions = (LENGTHS[:, None] - STEPS + np.arange(STEPS)).astype(np.int32)
    rotated_q, rotated_k = ww.rotary_embedding(q, k, cos, sin, positions=positions)
    expected = appended(k_cache, rotated_k, paged), appended(v_cache, v, paged)
    table = TABLE if paged else None
    found = ww.append_kv_cache(k, v, k_cache, v_cache, key_lengths=LENGTHS, block_table=table, q=q, cos=cos, sin=sin)
    np.testing.assert_array_equal(found, rotated_q)
    np.testing.assert_array_equal(k_cache, expected[0])
    np.testing.assert_array_equal(v_cache, expected[1])


def test_without_rotation_keys_are_copied():
    (_, k, v), (k_cache, v_cache), _ = problem("float32", False)
    expected = appended(k_cache, k, False), appended(v_cache, v, False)
    assert ww.append_kv_cache(k, v, k_cache, v_cache, key_lengths=LENGTHS) is None
    np.testing.assert_array_equal(k_cache, expected[0])
    np.testing.assert_array_equal(v_cache, expected[1])
    ww.append_kv_cache(k, v, k_cache, v_cache)
    np.testing.assert_array_equal(k_cache[:, :STEPS], k)


def test_queries_may_be_rotated_in_place():
    (q, k, v), caches, (cos, sin) = problem("float32", False)
    expected = ww.append_kv_cache(k, v, *(c.copy() for c in caches), key_lengths=LENGTHS, q=q, cos=cos, sin=sin)
    found = ww.append_kv_cache(k, v, *caches, key_lengths=LENGTHS, q=q, cos=cos, sin=sin, out=q)
    assert found is q
    np.testing.assert_array_equal(q, expected)


def test_what_does_not_fit_is_refused():
    (q, k, v), (k_cache, v_cache), (cos, sin) = problem("float32", False)
    options = {"key_lengths": LENGTHS, "q": q, "cos": cos, "sin": sin}

    def refused(argument, kind=ww.Error, k=k, v=v, k_cache=k_cache, v_cache=v_cache, **changed):
        with pytest.raises(kind) as caught:
            ww.append_kv_cache(k, v, k_cache, v_cache, **{**options, **changed})
        assert caught.value.op == "append_kv_cache" and caught.value.argument == argument, caught.value

    refused("v", v=v[:, :1])
    refused("k_cache", k_cache=k_cache[:2])
    refused("v_cache", v_cache=k_cache)
    refused("k_cache", k_cache=k_cache.astype(np.float64))
    refused("k_cache", k_cache=np.ascontiguousarray(k_cache.swapaxes(1, 2)).swapaxes(1, 2))
    refused("key_lengths", key_lengths=np.array([1, 2, 41], dtype=np.int32))
    refused("key_lengths", key_lengths=LENGTHS.astype(np.int64))
    refused("key_lengths", key_lengths=LENGTHS[:2])
    refused("sin", sin=None)
    refused("q", cos=None, sin=None)
    refused("cos", cos=cos[:, :3], sin=sin[:, :3])
    refused("pairing", pairing="whole")
    before = k_cache.copy()
    with pytest.raises(ww.Error):
        ww.append_kv_cache(k, v, k_cache, v_cache, **{**options, "rotary_dim": 15})
    np.testing.assert_array_equal(k_cache, before)


def test_steps_of_pytorch_are_attended_to():
    torch = pytest.importorskip("torch")
    import warpwright.torch as wt

    (q, k, v), caches, (cos, sin) = ([torch.from_numpy(x) for x in each] for each in problem("float32", True))
    tokens, table, v = 3, torch.from_numpy(TABLE[:, :1].copy()), v[..., :WIDTH].contiguous()
    cache = torch.zeros(2, 7, 16, KEY_HEADS, WIDTH)
    new = [torch.randn(BATCH, tokens, heads, WIDTH) for heads in (HEADS, KEY_HEADS, KEY_HEADS)]
    lengths = torch.zeros(BATCH, dtype=torch.int32)
    with torch.no_grad():
        rotated_q, rotated_k = wt.rotary_embedding(*new[:2], cos, sin)
        expected = wt.attention(rotated_q, rotated_k, new[2], causal=True)
        found = []
        for token in range(tokens):
            lengths += 1
            q, k, v = (x[:, token : token + 1] for x in new)
            q = wt.append_kv_cache(k, v, *cache, key_lengths=lengths, block_table=table, q=q, cos=cos, sin=sin)
            found.append(wt.attention(q, *cache, key_lengths=lengths, block_table=table))
    torch.testing.assert_close(torch.cat(found, 1), expected, rtol=1e-5, atol=1e-6)
    assert wt.append_kv_cache(k, v, *cache, key_lengths=lengths, block_table=table) is None
    with pytest.raises(RuntimeError, match="no gradient"):
        wt.append_kv_cache(k.clone().requires_grad_(), v, *cache, key_lengths=lengths, block_table=table)
    compiled = torch.ops.warpwright.append_kv_cache_of_queries
    again = compiled(q, k, v, *cache, lengths, table, cos, sin, "half", None)
    assert again.shape == q.shape
    torch.ops.warpwright.append_kv_cache(k, v, *cache, lengths, table, None, None, "half", None)
