"""Times `warpwright.jax` beside what JAX makes of the same function, and models with its norms, attention and loss beside the same with JAX's,
all under `jax.jit`, on one GPU.

    python bench/compare_jax.py [--json FILE] [NAME...]

A row is the time of a call in microseconds: many are enqueued, the last is waited for, and of several such rounds the median counts.
`forward` is the function, `training` its result and the gradients of all float arguments for a given gradient of the result. JAX's
attention is cuDNN's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, Callable, NamedTuple

import jax
import jax.numpy as jnp
import warpwright.jax as wj
from comparison.sources import commit

ROUNDS = 15
# Calls of a round. All that are enqueued have their results in memory.
CALLS = 24


class Case(NamedTuple):
    about: str
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    # Shapes of the float arguments, and what else there is.
    shapes: list[tuple[int, ...]]
    others: tuple[Any, ...] = ()


def layer_norm(x: Any, w: Any, b: Any) -> Any:
    wide = x.astype(jnp.float32)
    centred = wide - wide.mean(-1, keepdims=True)
    y = centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return (y * w + b).astype(x.dtype)


def rms_norm(x: Any, w: Any) -> Any:
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-6) * w).astype(x.dtype)


def group_norm(x: Any, w: Any, b: Any) -> Any:
    wide = x.astype(jnp.float32).reshape(x.shape[0], 32, -1)
    centred = wide - wide.mean(-1, keepdims=True)
    y = (centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)).reshape(x.shape)
    return (y * w[:, None, None] + b[:, None, None]).astype(x.dtype)


def cross_entropy(x: Any, target: Any) -> Any:
    wide = x.astype(jnp.float32)
    own = jnp.take_along_axis(wide, target[:, None], 1)[:, 0]
    return (jax.nn.logsumexp(wide, 1) - own).mean().astype(x.dtype)


def convolution(x: Any, w: Any) -> Any:
    return jax.lax.conv_general_dilated(x, w, (1, 1), ((1, 1), (1, 1)), dimension_numbers=("NHWC", "OHWI", "NHWC"))


def cases() -> dict[str, Case]:
    rows, classes = 32768, 32000
    target = jax.random.randint(jax.random.key(7), (4096,), 0, classes)
    heads = [(4, 4096, 16, 128)] * 3
    return {
        "layer_norm": Case(
            f"{rows} x 4096", lambda x, w, b: wj.layer_norm(x, 4096, w, b), layer_norm, [(rows, 4096), (4096,), (4096,)]
        ),
        "rms_norm": Case(f"{rows} x 4096", lambda x, w: wj.rms_norm(x, 4096, w, 1e-6), rms_norm, [(rows, 4096), (4096,)]),
        "group_norm": Case(
            "16 x 320 x 64 x 64, 32 groups",
            lambda x, w, b: wj.group_norm(x, 32, w, b),
            group_norm,
            [(16, 320, 64, 64), (320,), (320,)],
        ),
        "softmax": Case(f"{rows} x 4096", wj.softmax, jax.nn.softmax, [(rows, 4096)]),
        "cross_entropy": Case(f"4096 x {classes}", wj.cross_entropy, cross_entropy, [(4096, classes)], (target,)),
        "gelu_tanh": Case(f"{rows} x 8192", wj.gelu_tanh, lambda x: jax.nn.gelu(x, approximate=True), [(rows, 8192)]),
        "swiglu": Case(f"{rows} x 8192", wj.swiglu, lambda a, b: jax.nn.silu(a) * b, [(rows, 8192)] * 2),
        "attention_causal": Case(
            "4 x 4096, 16 heads of 128",
            lambda q, k, v: wj.attention(q, k, v, causal=True),
            lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn"),
            heads,
        ),
        "linear": Case(
            "8192 x 4096 x 4096", lambda x, w, b: wj.linear(x, w, b), lambda x, w, b: x @ w.T + b, [(8192, 4096), (4096, 4096), (4096,)]
        ),
        "conv2d": Case(
            "32 x 56 x 56 x 256, 256 filters of 3 x 3",
            lambda x, w: wj.conv2d(x, w, padding=1, channels_last=True),
            convolution,
            [(32, 56, 56, 256), (256, 3, 3, 256)],
        ),
    }


class Pieces(NamedTuple):
    """The functions of which a model is made, ours or JAX's."""

    norm: Callable[..., Any]
    rms_norm: Callable[..., Any]
    attention: Callable[..., Any]
    cross_entropy: Callable[..., Any]


OURS = Pieces(
    lambda x, w, b: wj.layer_norm(x, x.shape[-1], w, b),
    lambda x, w: wj.rms_norm(x, x.shape[-1], w, 1e-6),
    lambda q, k, v, causal: wj.attention(q, k, v, causal=causal),
    lambda x, target: wj.cross_entropy(x, target, dtype=jnp.float32),
)
THEIRS = Pieces(
    layer_norm,
    rms_norm,
    lambda q, k, v, causal: jax.nn.dot_product_attention(q, k, v, is_causal=causal, implementation="cudnn"),
    lambda x, target: cross_entropy(x.astype(jnp.float32), target),
)


def heads_of(x: Any, weight: Any, dim: int) -> Any:
    return (x @ weight).reshape(*x.shape[:2], -1, dim)


def rotated(x: Any) -> Any:
    places, half = jnp.arange(x.shape[1], dtype=jnp.float32), x.shape[-1] // 2
    angles = places[:, None] * 10000 ** (-jnp.arange(half, dtype=jnp.float32) / half)
    cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    a, b = x[..., :half].astype(jnp.float32), x[..., half:].astype(jnp.float32)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)


def decoder(pieces: Pieces, weights: Any, tokens: Any, target: Any) -> Any:
    """The loss of a decoder of the shape of Llama."""
    x = weights["embedding"][tokens]
    for w in weights["layers"]:
        h = pieces.rms_norm(x, w["norm1"])
        q, k, v = (heads_of(h, w[name], 128) for name in ("q", "k", "v"))
        x = x + pieces.attention(rotated(q), rotated(k), v, True).reshape(x.shape) @ w["o"]
        h = pieces.rms_norm(x, w["norm2"])
        x = x + (jax.nn.silu(h @ w["gate"]) * (h @ w["up"])) @ w["down"]
    logits = pieces.rms_norm(x, weights["norm"]) @ weights["embedding"].T
    return pieces.cross_entropy(logits.reshape(-1, logits.shape[-1]), target.reshape(-1))


def encoder(pieces: Pieces, weights: Any, x: Any, target: Any) -> Any:
    """The loss of an encoder of the shape of ViT-B, whose patches are embedded."""
    for w in weights["layers"]:
        h = pieces.norm(x, w["norm1"], w["bias1"])
        q, k, v = (heads_of(h, w[name], 64) for name in ("q", "k", "v"))
        x = x + pieces.attention(q, k, v, False).reshape(x.shape) @ w["o"]
        h = pieces.norm(x, w["norm2"], w["bias2"])
        x = x + jax.nn.gelu(h @ w["up"], approximate=True) @ w["down"]
    return pieces.cross_entropy(pieces.norm(x.mean(1), weights["norm"], weights["bias"]) @ weights["head"], target)


def models() -> dict[str, tuple[str, Callable[..., Any], Any, tuple[Any, ...]]]:
    """About it, its loss, its weights and the arguments after them."""
    keys = iter(jax.random.split(jax.random.key(3), 400))

    def matrix(rows: int, columns: int) -> Any:
        return (jax.random.normal(next(keys), (rows, columns)) / rows**0.5).astype(jnp.bfloat16)

    def layer(width: int, inner: int, gated: bool) -> dict[str, Any]:
        ones, zeros = jnp.ones(width, jnp.bfloat16), jnp.zeros(width, jnp.bfloat16)
        names = {name: matrix(width, width) for name in "qkvo"} | {"up": matrix(width, inner), "down": matrix(inner, width)}
        gate = {"gate": matrix(width, inner)} if gated else {"bias1": zeros, "bias2": zeros}
        return names | gate | {"norm1": ones, "norm2": ones}

    tokens = jax.random.randint(next(keys), (4, 2048), 0, 32000)
    llama = {"embedding": matrix(32000, 2048), "norm": jnp.ones(2048, jnp.bfloat16)}
    llama |= {"layers": [layer(2048, 5632, True) for _ in range(8)]}
    vit = {"head": matrix(768, 1000), "norm": jnp.ones(768, jnp.bfloat16), "bias": jnp.zeros(768, jnp.bfloat16)}
    vit |= {"layers": [layer(768, 3072, False) for _ in range(12)]}
    patches = jax.random.normal(next(keys), (64, 256, 768), jnp.bfloat16)
    classes = jax.random.randint(next(keys), (64,), 0, 1000)
    return {
        "llama": ("8 layers of 2048, 4 x 2048 tokens", decoder, llama, (tokens, jnp.roll(tokens, -1, 1))),
        "vit": ("12 layers of 768, 64 x 256 patches", encoder, vit, (patches, classes)),
    }


def time_of(function: Callable[[], Any]) -> float:
    """Microseconds of a call."""
    jax.block_until_ready(function())
    found = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(CALLS):
            last = function()
        jax.block_until_ready(last)
        found.append((time.perf_counter() - start) / CALLS)
    return 1e6 * statistics.median(found)


def programs(function: Callable[..., Any], count: int) -> dict[str, Callable[..., Any]]:
    """The function, and its result with gradients for that of the result, which is an argument before the others."""

    def training(dy: Any, *arguments: Any) -> Any:
        y, pull = jax.vjp(lambda *floats: function(*floats, *arguments[count:]), *arguments[:count])
        return y, pull(dy)

    return {"forward": jax.jit(lambda dy, *arguments: function(*arguments)), "training": jax.jit(training)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="operations and models to time; all if none is named")
    parser.add_argument("--json", type=Path, help="append the rows to this file, a JSON object a line")
    given = parser.parse_args()
    if jax.default_backend() != "gpu":
        parser.error("JAX finds no GPU: times of the emulator say nothing of one")
    found, whole = cases(), models()
    if unknown := [name for name in given.names if name not in {**found, **whole}]:
        parser.error(f"there is no row {unknown[0]!r}; there are {', '.join([*found, *whole])}")
    head = commit()
    device = jax.devices()[0].device_kind
    print(f"{device}, JAX {jax.__version__}, bfloat16; microseconds a call")
    print(f"{'':18}{'':10}{'ours':>10}{'JAX':>10}{'ratio':>8}  shape")

    def row(name: str, kind: str, about: str, ours: Callable[[], Any], theirs: Callable[[], Any]) -> None:
        times = [time_of(ours), time_of(theirs)]
        print(f"{name:18}{kind:10}{times[0]:10.1f}{times[1]:10.1f}{times[1] / times[0]:8.2f}  {about}", flush=True)
        found = {"op": name, "kind": kind, "shape": about, "dtype": "bf16", "ours_us": times[0], "jax_us": times[1]}
        found |= {"device": device, "jax": jax.__version__, "date": date.today().isoformat(), "commit": head}
        if given.json:
            with given.json.open("a") as file:
                file.write(json.dumps(found) + "\n")

    for name, case in found.items():
        if given.names and name not in given.names:
            continue
        keys = jax.random.split(jax.random.key(1), len(case.shapes))
        arrays = [jax.random.normal(key, shape, jnp.bfloat16) for key, shape in zip(keys, case.shapes)]
        arguments = (*arrays, *case.others)
        shape = jax.eval_shape(case.ours, *arguments)
        arguments = (jax.random.normal(jax.random.key(2), shape.shape, shape.dtype), *arguments)
        ours, theirs = (programs(f, len(arrays)) for f in (case.ours, case.theirs))
        for kind in ours:
            row(name, kind, case.about, *(partial(f[kind], *arguments) for f in (ours, theirs)))
    for name, (about, loss, weights, others) in whole.items():
        if given.names and name not in given.names:
            continue
        steps = [jax.jit(jax.value_and_grad(partial(loss, pieces))) for pieces in (OURS, THEIRS)]
        values = [float(step(weights, *others)[0]) for step in steps]
        if abs(values[0] - values[1]) > 1e-2 * abs(values[1]):
            raise SystemExit(f"{name}: the losses are {values[0]} and {values[1]}")
        row(name, "training", about, *(partial(step, weights, *others) for step in steps))


if __name__ == "__main__":
    main()
