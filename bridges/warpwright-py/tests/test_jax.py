"""`warpwright.jax`, held against what `jax.numpy` gives in f64. Runs where JAX's default device is: on the CPU in the emulator."""

from __future__ import annotations

import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax_cases import CASES, arrays, as_tuple, check, close, gradients, wide  # noqa: E402

import warpwright as ww  # noqa: E402
import warpwright.jax as wj  # noqa: E402


@pytest.fixture(autouse=True)
def wide_numbers():
    """Arrays of 64 bits, for the references, whose factors nobody rounds."""
    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        yield


@pytest.mark.parametrize("name, dtype", [(name, dtype) for name, case in CASES.items() for dtype in case.dtypes])
def test_results_and_gradients(name, dtype):
    check(CASES[name], arrays(CASES[name], dtype, 1), dtype)


@pytest.mark.parametrize("name", CASES)
def test_jit_changes_nothing(name):
    case = CASES[name]
    items, count = arrays(case, "float32", 2), len(case.shapes)
    results, dys, found = gradients(case.ours, items, count)
    eager, pull = jax.vjp(lambda *floats: as_tuple(case.ours(*floats, *items[count:])), *items[:count])
    for a, b in zip((*results, *found), (*eager, *pull(tuple(dys)))):
        # What XLA makes of sums around a call is up to it.
        close(a, b, "float32", name)
    for a, b in zip(results, as_tuple(case.ours(*items))):
        close(a, b, "float32", name)


@pytest.mark.parametrize("name", CASES)
def test_vmap_takes_samples_of_everything(name):
    case = CASES[name]
    items = arrays(case, "float32", 3, (2, 3))
    check(case, items, "float32", jax.vmap(jax.vmap(case.ours)), jax.vmap(jax.vmap(case.reference)))


@pytest.mark.parametrize("name", CASES)
def test_vmap_takes_one_array_of_samples(name):
    case, count = CASES[name], len(CASES[name].shapes)
    items = arrays(case, "float32", 4)
    # Of the many arrays of a recurrent net, three.
    for at in range(count) if count < 5 else (0, 3, count - 1):
        samples = [*items[:at], jnp.stack([items[at], -items[at], 2 * items[at]], 1), *items[at + 1 :]]
        axes = [1 if i == at else None for i in range(len(items))]
        check(case, samples, "float32", *(jax.vmap(f, axes) for f in (case.ours, case.reference)))


@pytest.mark.parametrize("name", CASES)
def test_vmap_of_gradients(name):
    case, count = CASES[name], len(CASES[name].shapes)
    items = arrays(case, "float32", 5)
    samples = [jnp.stack([items[0], 0.5 * items[0]]), *items[1:]]
    axes = [0, *[None] * (len(items) - 1)]

    def of(function):
        def loss(*items):
            return sum((y * jnp.cos(jnp.arange(y.size).reshape(y.shape)).astype(y.dtype)).sum() for y in as_tuple(function(*items)))

        return jax.vmap(jax.grad(loss, tuple(range(count))), axes)

    for i, (a, b) in enumerate(zip(of(case.ours)(*samples), of(case.reference)(*wide(samples)))):
        close(a, b, "float32", i, 1.0)


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_single_arrays(name):
    case, count = CASES[name], len(CASES[name].shapes)
    items = arrays(case, "float32", 6)
    _, dys, every = gradients(case.ours, items, count)
    for at in range(count):
        _, pull = jax.vjp(lambda x: as_tuple(case.ours(*items[:at], x, *items[at + 1 :])), items[at])
        close(pull(tuple(dys))[0], every[at], "float32", at)


def test_attention_of_packed_sequences():
    q, k, v = (jnp.asarray(a) for a in jax.random.normal(jax.random.key(1), (3, 1, 9, 2, 8), jnp.float32))
    offsets = jnp.array([0, 4, 9], jnp.int32)

    def packed(q, k, v):
        return wj.attention(q, k, v, causal=True, cu_seqlens_q=offsets, cu_seqlens_k=offsets, max_seqlen_q=5, max_seqlen_k=5)

    def apart(q, k, v):
        parts = [wj.attention(*(x[:, a:b] for x in (q, k, v)), causal=True) for a, b in ((0, 4), (4, 9))]
        return jnp.concatenate(parts, 1)

    mine, other = (gradients(f, [q, k, v], 3) for f in (packed, apart))
    for a, b in zip((*mine[0], *mine[2]), (*other[0], *other[2])):
        close(a, b, "float32", "packed")
    samples = [jnp.stack([x, -x]) for x in (q, k, v)]
    for a, b in zip(jax.vmap(packed)(*samples), (packed(q, k, v), packed(-q, -k, -v))):
        close(a, b, "float32", "samples")


def test_attention_of_pages():
    q, k, v = jax.random.normal(jax.random.key(2), (3, 2, 32, 2, 8), jnp.float32)
    lengths, table = jnp.array([20, 32], jnp.int32), jnp.array([[3, 0], [1, 2]], jnp.int32)
    pages = [jnp.zeros((4, 16, 2, 8), jnp.float32).at[table].set(x.reshape(2, 2, 16, 2, 8)) for x in (k, v)]
    mine = wj.attention(q[:, :1], *pages, key_lengths=lengths, block_table=table)
    close(mine, wj.attention(q[:, :1], k, v, key_lengths=lengths), "float32", "pages")


def test_lse_of_attention_has_no_gradient():
    q, k, v = jax.random.normal(jax.random.key(3), (3, 1, 4, 2, 8), jnp.float32)
    o, lse = wj.attention(q, k, v, return_lse=True)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * 8**-0.5
    close(lse, jax.nn.logsumexp(scores, -1), "float32", "lse")
    assert (jax.grad(lambda q: wj.attention(q, k, v, return_lse=True)[1].sum())(q) == 0).all()


def test_what_has_no_gradient_says_so():
    q = jax.random.normal(jax.random.key(4), (1, 4, 2, 8), jnp.float32)
    slopes, angles = jnp.ones(2, jnp.float32), jnp.ones((4, 4), jnp.float32)
    with pytest.raises(ValueError, match="stop_gradient.slopes"):
        jax.grad(lambda s: wj.attention(q, q, q, slopes=s).sum())(slopes)
    with pytest.raises(ValueError, match="stop_gradient.cos"):
        jax.grad(lambda c: wj.rotary_embedding(q, None, c, angles).sum())(angles)
    assert jnp.isfinite(jax.grad(lambda q: wj.attention(q, q, q, slopes=slopes).sum())(q)).all()


def test_softmax_of_every_dimension():
    x = jax.random.normal(jax.random.key(5), (3, 4, 5), jnp.float32)
    for dim in range(-3, 3):
        close(wj.softmax(x, dim), jax.nn.softmax(x, dim), "float32", dim)
        close(jax.vmap(lambda x, d=dim: wj.softmax(x, d))(x[None]), jax.nn.softmax(x, dim)[None], "float32", dim)


@pytest.mark.parametrize("name", ["nf4", "fp4", "int4", "int4_asymmetric"])
def test_quantization(name):
    x = jax.random.normal(jax.random.key(6), (6, 64), jnp.float32)
    found = jax.jit(lambda x: getattr(wj, f"quantize_{name}")(x, 64))(x)
    wanted = getattr(ww, f"quantize_{name}")(np.asarray(x), 64)
    for a, b in zip(found, wanted):
        np.testing.assert_array_equal(a, b)
    back = jax.jit(lambda *packed: getattr(wj, f"dequantize_{name}")(*packed, x.shape, 64, jnp.bfloat16))(*found)
    assert back.dtype == jnp.bfloat16
    np.testing.assert_array_equal(back.astype(jnp.float32), getattr(ww, f"dequantize_{name}")(*wanted, x.shape, 64, dtype="bfloat16"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_linear_of_4_bits(dtype):
    x, weight = (jax.random.normal(jax.random.key(k), s, jnp.float32).astype(dtype) for k, s in ((7, (2, 3, 64)), (8, (5, 64))))
    bias = jnp.arange(5).astype(dtype)
    codes, scales = wj.quantize_nf4(weight)
    exact = wj.dequantize_nf4(codes, scales, weight.shape, 64)

    def ours(x, bias):
        return wj.linear_4bit(x, codes, scales, weight.shape, bias)

    def theirs(x, bias):
        return x @ exact.T.astype(x.dtype) + bias

    mine, other = gradients(ours, [x, bias], 2), gradients(theirs, wide([x, bias]), 2, gradients(ours, [x, bias], 2)[1])
    rounded = gradients(theirs, [x, bias], 2, mine[1])
    for a, b, c in zip((*mine[0], *mine[2]), (*other[0], *other[2]), (*rounded[0], *rounded[2])):
        close(a, b, dtype, "4 bits", 1.0, c)
    close(jax.vmap(ours, (0, None))(x, bias), theirs(*wide([x, bias])), dtype, "samples", 0.0, rounded[0][0])


@pytest.mark.parametrize("as_bits", [False, True])
def test_linear_of_nvfp4(as_bits):
    x = jax.random.normal(jax.random.key(7), (2, 3, 48), jnp.float32)
    codes = jax.random.randint(jax.random.key(8), (5, 24), 0, 256, jnp.int32).astype(jnp.uint8)
    scales = (jnp.arange(15, dtype=jnp.float32).reshape(5, 3) / 8 + 0.25).astype(jnp.float8_e4m3fn)
    numbers = jnp.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], jnp.float32)
    weight = numbers[jnp.stack([codes & 15, codes >> 4], -1).reshape(5, 48)] * jnp.repeat(scales.astype(jnp.float32), 16, 1) * 0.125
    stored = scales.view(jnp.uint8) if as_bits else scales

    def ours(x):
        return wj.linear_4bit(x, codes, stored, (5, 48), format="nvfp4", tensor_scale=jnp.array([0.125], jnp.float32))

    close(jax.jit(ours)(x), x @ weight.T, "float32", "nvfp4")
    close(jax.grad(lambda x: ours(x).sum())(x), jnp.broadcast_to(weight.sum(0), x.shape), "float32", "nvfp4")


def test_lengths_of_sequences():
    x = jax.random.normal(jax.random.key(9), (4, 2, 5), jnp.float32)
    weights = [tuple(jax.random.normal(jax.random.key(10 + n), s, jnp.float32) for n, s in enumerate(((16, 5), (16, 4))))]
    y, h_n, c_n = wj.lstm(x, weights, lengths=jnp.array([4, 2], jnp.int32))
    whole, part = wj.lstm(x, weights), wj.lstm(x[:2], weights)
    for a, b in ((h_n[:, 0], whole[1][:, 0]), (h_n[:, 1], part[1][:, 1]), (c_n[:, 1], part[2][:, 1]), (y[:2, 1], part[0][:, 1])):
        close(a, b, "float32", "lengths")
    assert (y[2:, 1] == 0).all()
