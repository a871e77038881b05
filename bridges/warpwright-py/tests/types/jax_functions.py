"""Uses of `warpwright.jax` that type checkers must accept, and wrong ones, each with an ignored error that must be one. Nothing here runs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import warpwright.jax as wj
from jax import Array
from typing_extensions import assert_type


@jax.jit
def loss(weight: Array, x: Array, target: Array) -> Array:
    h = wj.linear(wj.rms_norm(x, x.shape[-1]), weight, activation="silu")
    return wj.cross_entropy(h, target)


def functions(x: Array, ids: Array) -> None:
    assert_type(wj.silu(x), Array)
    assert_type(wj.swiglu(x, x), Array)
    assert_type(wj.leaky_relu(x, negative_slope=0.2), Array)
    assert_type(wj.softmax(x, 0, scale=0.5), Array)
    assert_type(wj.matmul(x, x), Array)
    assert_type(wj.embedding(x, ids), Array)
    y, h_n, c_n = wj.lstm(x, [[x, x, x, x]])
    assert_type(c_n, Array)
    o: Array = wj.attention(y, h_n, x, causal=True)
    print(jax.grad(loss)(x, jnp.ones(3), ids), o)

    wj.silu("x")  # type: ignore
    wj.silu(x, x)  # type: ignore
    wj.leaky_relu(x, "0.2")  # type: ignore
    wj.linear(x)  # type: ignore
    wj.linear(x, x, activate="silu")  # type: ignore
    wj.attention(x, x)  # type: ignore
    wj.gelu(x)  # type: ignore
