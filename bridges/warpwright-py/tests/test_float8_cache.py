"""Caches of e4m3: numpy arrays in the emulator, and `warpwright.torch` against PyTorch."""

from __future__ import annotations

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import warpwright as ww  # noqa: E402
import warpwright.torch as wt  # noqa: E402

BATCH, CAPACITY, KEY_HEADS, HEADS, WIDTH = 2, 48, 2, 6, 64
PAGE = 16
# Scales that leave some numbers beyond 448.
SCALES = {"tensor": [0.003], "head": [0.02, 0.004]}


def problem(dtype, paged, scaling, queries=1):
    torch.manual_seed(3)
    q = torch.randn(BATCH, queries, HEADS, WIDTH).to(dtype)
    k, v = (torch.randn(BATCH, CAPACITY, KEY_HEADS, WIDTH).to(dtype) for _ in range(2))
    shape = (BATCH * CAPACITY // PAGE + 1, PAGE) if paged else (BATCH, CAPACITY)
    caches = [torch.zeros(*shape, KEY_HEADS, WIDTH).to(torch.float8_e4m3fn) for _ in range(2)]
    scales = [torch.tensor(SCALES[scaling]), torch.tensor(SCALES[scaling][::-1])]
    table = torch.randperm(BATCH * CAPACITY // PAGE).to(torch.int32).view(BATCH, -1) if paged else None
    lengths = torch.full((BATCH,), CAPACITY, dtype=torch.int32)
    return q, (k, v), caches, scales, {"key_lengths": lengths, "block_table": table}


def codes(x, scale):
    return (x.float() / scale[:, None]).clamp(-448, 448).to(torch.float8_e4m3fn)


def rows(cache, table):
    return cache if table is None else cache[table.long()].flatten(1, 2)


def attended(q, k, v, causal=False):
    k, v = (x.double().repeat_interleave(HEADS // KEY_HEADS, 2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q.double(), k) / math.sqrt(WIDTH)
    if causal:
        scores += torch.full(scores.shape[-2:], -math.inf).triu(scores.shape[-1] - scores.shape[-2] + 1)
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v), scores.logsumexp(-1)


@pytest.mark.parametrize("scaling", SCALES)
@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_codes_are_those_of_pytorch_and_attention_reads_them(dtype, paged, scaling):
    q, (k, v), caches, (k_scale, v_scale), places = problem(dtype, paged, scaling, queries=2)
    scales = {"k_scale": k_scale, "v_scale": v_scale}
    assert wt.append_kv_cache(k, v, *caches, **places, **scales) is None
    expected = codes(k, k_scale), codes(v, v_scale)
    for cache, code in zip(caches, expected):
        assert torch.equal(rows(cache, places["block_table"]).contiguous().view(torch.uint8), code.view(torch.uint8))
    assert any((code.float().abs() == 448).any() for code in expected)
    o, lse = wt.attention(q, *caches, causal=True, return_lse=True, **places, **scales)
    read = [code.double() * scale.double()[:, None] for code, scale in zip(expected, (k_scale, v_scale))]
    want, want_lse = attended(q, *read, causal=True)
    assert o.dtype == dtype
    assert (o.double() - want).norm() <= (3.5e-3 if dtype == torch.bfloat16 else 4.5e-4) * want.norm()
    assert torch.allclose(lse.double(), want_lse, atol=1e-4)


def test_keys_are_rotated_before_they_are_rounded():
    q, (k, v), caches, (k_scale, v_scale), places = problem(torch.bfloat16, False, "head", queries=CAPACITY)
    angles = torch.rand(CAPACITY, WIDTH // 2) * 6
    cos, sin = angles.cos(), angles.sin()
    options = {"q": q, "cos": cos, "sin": sin, "k_scale": k_scale, "v_scale": v_scale}
    turned = wt.append_kv_cache(k, v, *caches, **places, **options)
    assert torch.equal(turned, wt.rotary_embedding(q, None, cos, sin))
    x, y = k.float().chunk(2, -1)
    cos, sin = cos[:, None], sin[:, None]
    expected = torch.cat([x * cos - y * sin, y * cos + x * sin], -1)
    assert torch.equal(caches[0].view(torch.uint8), codes(expected, k_scale).view(torch.uint8))


def test_compiled_functions_have_them_too():
    q, (k, v), caches, (k_scale, v_scale), places = problem(torch.bfloat16, False, "tensor")
    scales = {"k_scale": k_scale, "v_scale": v_scale}

    def step(q, k, v, k_cache, v_cache):
        wt.append_kv_cache(k, v, k_cache, v_cache, **places, **scales)
        return wt.attention(q, k_cache, v_cache, **places, **scales)

    with torch.no_grad():
        expected = step(q, k, v, *(cache.clone() for cache in caches))
        found = torch.compile(step, backend="aot_eager", fullgraph=True)(q, k, v, *caches)
    assert torch.equal(found, expected)


def test_arrays_of_numpy():
    types = pytest.importorskip("ml_dtypes")
    _, (k, v), _, _, _ = problem(torch.bfloat16, False, "tensor")
    k, v = (x.float().numpy().astype(types.bfloat16) for x in (k, v))
    caches = [np.zeros(k.shape, types.float8_e4m3fn) for _ in range(2)]
    scale = np.array([0.5], np.float32)
    ww.append_kv_cache(k, v, *caches, k_scale=scale, v_scale=scale)
    assert np.array_equal(caches[0].view(np.uint8), (k.astype(np.float32) / 0.5).astype(caches[0].dtype).view(np.uint8))
    q = k[:, :1].copy()
    o, _ = ww.attention(q, *caches, k_scale=scale, v_scale=scale)
    read = [cache.astype(np.float32) * 0.5 for cache in caches]
    want, _ = ww.attention(q.astype(np.float32), *read)
    assert np.linalg.norm(o.astype(np.float32) - want) <= 3.5e-3 * np.linalg.norm(want)


def test_what_does_not_fit_is_refused():
    q, (k, v), caches, (scale, _), _ = problem(torch.bfloat16, False, "tensor")
    good = {"k_scale": scale, "v_scale": scale}

    def refused(argument, word, caches=caches, kind=ww.Error, q=q, k=k, v=v, **changed):
        options = {**good, **changed}
        name = {"k": "k_cache", "v": "v_cache"}.get(argument, argument)
        with pytest.raises(kind, match=word) as caught:
            ww.attention(q, *caches, **options)
        assert caught.value.argument == argument
        with pytest.raises(kind, match=word) as caught:
            ww.append_kv_cache(k, v, *caches, **options)
        assert caught.value.argument == name

    e5m2 = [cache.to(torch.float8_e5m2) for cache in caches]
    refused("k", "f8e5m2|float8_e5m2", e5m2)
    refused("v", "f8e5m2|float8_e5m2", [caches[0], e5m2[1]])
    refused("v", "bf16|bfloat16", [caches[0], v])
    refused("k_scale", "k_scale", k_scale=None)
    refused("v_scale", "v_scale", v_scale=torch.ones(5))
    refused("v_scale", "v_scale", v_scale=torch.ones(1, 2))
    refused("k_scale", "k_scale", k_scale=scale.half())
    with pytest.raises(ww.Error, match="k_scale"):
        ww.attention(q, k, v, k_scale=scale)
    with pytest.raises(ww.Error, match="float8"):
        ww.attention(q, *caches, **good, dropout_p=0.5, random=torch.tensor([1, 2]))
    with pytest.raises(ww.Error, match="float32|f32"):
        ww.attention(q.float(), *caches, **good)
    with pytest.raises(RuntimeError, match="no gradient"):
        wt.attention(q.requires_grad_(), *caches, **good)
