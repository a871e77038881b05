"""A training step of a transformer in `warpwright.jax`, and of the same in `jax.numpy`."""

from __future__ import annotations

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")
import jax.numpy as jnp  # noqa: E402
from jax_cases import attention, cross_entropy, rotate  # noqa: E402

import warpwright.jax as wj  # noqa: E402

BATCH, ROWS, HEADS, KV_HEADS, WIDTH, HIDDEN, CLASSES = 2, 7, 4, 2, 32, 48, 19
DIM = WIDTH // HEADS


class Ours:
    rms_norm = staticmethod(lambda x, w: wj.rms_norm(x, WIDTH, w, 1e-5))
    linear = staticmethod(wj.linear)
    rotary = staticmethod(lambda q, k, cos, sin: wj.rotary_embedding(q, k, cos, sin))
    attention = staticmethod(lambda q, k, v: wj.attention(q, k, v, causal=True))
    swiglu = staticmethod(wj.swiglu)
    embedding = staticmethod(wj.embedding)
    loss = staticmethod(lambda x, t: wj.cross_entropy(x, t, ignore_index=0, label_smoothing=0.1))


class Theirs:
    rms_norm = staticmethod(lambda x, w: x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w)
    linear = staticmethod(lambda x, w: x @ w.T)
    rotary = staticmethod(lambda q, k, cos, sin: (rotate(q, cos, sin), rotate(k, cos, sin)))
    attention = staticmethod(lambda q, k, v: attention(q, k, v, scale=DIM**-0.5, causal=True))
    swiglu = staticmethod(lambda gate, up: jax.nn.silu(gate) * up)
    embedding = staticmethod(lambda i, w: w[i])
    loss = staticmethod(lambda x, t: cross_entropy(x, t, 0, "mean", 0.1))


def parameters(random):
    heads = (HEADS + 2 * KV_HEADS) * DIM
    layer = {"n1": WIDTH, "qkv": (heads, WIDTH), "o": (WIDTH, WIDTH), "n2": WIDTH}
    layer |= {"gate": (HIDDEN, WIDTH), "up": (HIDDEN, WIDTH), "down": (WIDTH, HIDDEN)}

    def of(shape):
        if isinstance(shape, int):
            return jnp.asarray(random.uniform(0.5, 1.5, shape), jnp.float32)
        return jnp.asarray(random.standard_normal(shape) * shape[1] ** -0.5, jnp.float32)

    model = {"table": of((CLASSES, WIDTH)), "norm": of(WIDTH), "layers": [{n: of(s) for n, s in layer.items()} for _ in range(2)]}
    return model


def model(f, p, tokens):
    angles = jnp.outer(jnp.arange(ROWS), 0.1 ** jnp.arange(DIM // 2)).astype(jnp.float32)
    x = f.embedding(tokens, p["table"])
    for layer in p["layers"]:
        qkv = f.linear(f.rms_norm(x, layer["n1"]), layer["qkv"]).reshape(BATCH, ROWS, -1, DIM)
        q, k, v = jnp.split(qkv, [HEADS, HEADS + KV_HEADS], 2)
        q, k = f.rotary(q, k, jnp.cos(angles), jnp.sin(angles))
        x = x + f.linear(f.attention(q, k, v).reshape(BATCH, ROWS, WIDTH), layer["o"])
        h = f.rms_norm(x, layer["n2"])
        x = x + f.linear(f.swiglu(f.linear(h, layer["gate"]), f.linear(h, layer["up"])), layer["down"])
    return f.linear(f.rms_norm(x, p["norm"]), p["table"])


def training(f):
    def loss(p, tokens, target):
        return f.loss(model(f, p, tokens).reshape(-1, CLASSES), target.reshape(-1))

    @jax.jit
    def step(p, tokens, target):
        value, gradients = jax.value_and_grad(loss)(p, tokens, target)
        return value, gradients, jax.tree.map(lambda x, g: x - 0.3 * g, p, gradients)

    return step


def test_steps_of_training():
    with jax.default_matmul_precision("highest"):
        train()


def train():
    random = np.random.default_rng(3)
    first = parameters(random)
    tokens = jnp.asarray(random.integers(0, CLASSES, (BATCH, ROWS)), jnp.int32)
    target = jnp.asarray(random.integers(0, CLASSES, (BATCH, ROWS)), jnp.int32)
    ours, theirs = first, first
    losses = []
    for _ in range(4):
        mine, of_mine, ours = training(Ours)(ours, tokens, target)
        exact, of_exact, theirs = training(Theirs)(theirs, tokens, target)
        np.testing.assert_allclose(mine, exact, rtol=2e-6)
        for a, b in zip(jax.tree.leaves(of_mine), jax.tree.leaves(of_exact)):
            np.testing.assert_allclose(a, b, atol=2e-5 * max(1e-3, float(jnp.abs(b).max())) + 1e-6)
        losses.append(float(mine))
    assert losses[-1] < losses[0] - 0.1


def test_donated_parameters():
    """XLA may put a new parameter where an old one was, while a call still reads it."""
    random = np.random.default_rng(4)
    x, w = (jnp.asarray(random.standard_normal(s), jnp.float32) for s in ((8, 16), (16,)))

    def step(w, x):
        return w - 0.1 * jax.grad(lambda w: wj.layer_norm(x, 16, w).var())(w)

    want = step(w, x)
    donated = jax.jit(step, donate_argnums=0)
    np.testing.assert_allclose(donated(jnp.array(w), x), want, rtol=1e-6)
