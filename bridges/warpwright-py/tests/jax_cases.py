"""The functions of `warpwright.jax`, written out in `jax.numpy`, and how far apart the two may be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Sequence

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")
import jax.numpy as jnp  # noqa: E402

import warpwright.jax as wj  # noqa: E402

DTYPES = ("float32", "float64", "float16", "bfloat16")
# Those of `warpwright.torch`.
BUDGETS = {"float32": 2e-6, "float64": 1e-12, "float16": 1e-3, "bfloat16": 8e-3}


@dataclass(frozen=True)
class Case:
    """ours, reference: functions of the arrays; shapes: of those that have a gradient; integers: arrays behind them, as shape and bound;
    dtypes: those that the budgets hold for."""

    ours: Callable[..., Any]
    reference: Callable[..., Any]
    shapes: Sequence[Any]
    integers: Sequence[Any] = ()
    dtypes: Sequence[str] = DTYPES


def norm(x: Any, axes: Any, eps: float, centred: bool = True) -> Any:
    x = x - x.mean(axes, keepdims=True) if centred else x
    return x / jnp.sqrt((x * x).mean(axes, keepdims=True) + eps)


def group_norm(x: Any, groups: int, weight: Any, bias: Any, eps: float) -> Any:
    parts = x.reshape(x.shape[0], groups, -1)
    y = norm(parts, -1, eps).reshape(x.shape)
    columns = (-1, *[1] * (x.ndim - 2))
    y = y if weight is None else y * weight.reshape(columns)
    return y if bias is None else y + bias.reshape(columns)


def cross_entropy(logits: Any, target: Any, ignore_index: int, reduction: str, label_smoothing: float) -> Any:
    log_p = jax.nn.log_softmax(logits, -1)
    counts = target != ignore_index
    picked = jnp.take_along_axis(log_p, jnp.where(counts, target, 0)[:, None], 1)[:, 0]
    loss = -(1 - label_smoothing) * picked - label_smoothing * log_p.mean(-1)
    loss = jnp.where(counts, loss, 0)
    return {"none": loss, "sum": loss.sum(), "mean": loss.sum() / counts.sum()}[reduction]


def attention(
    q: Any,
    k: Any,
    v: Any,
    bias: Any = None,
    sinks: Any = None,
    *,
    scale: float,
    causal: bool = False,
    window: Any = (-1, -1),
    softcap: Any = None,
    key_lengths: Any = None,
) -> Any:
    """All queries and keys, with a score that is masked at minus infinity."""
    group = q.shape[2] // k.shape[2]
    k, v = jnp.repeat(k, group, 2), jnp.repeat(v, group, 2)
    scores = scale * jnp.einsum("bqhd,bkhd->bhqk", q, k)
    if softcap:
        scores = softcap * jnp.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    rows, columns = jnp.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1], jnp.arange(k.shape[1])[None]
    seen = jnp.ones((1, 1, *scores.shape[2:]), bool)
    if causal:
        seen &= columns <= rows
    if window[0] >= 0:
        seen &= columns >= rows - window[0]
    if window[1] >= 0:
        seen &= columns <= rows + window[1]
    if key_lengths is not None:
        seen = seen & (columns < key_lengths[:, None, None, None])
    scores = jnp.where(seen, scores, -jnp.inf)
    if sinks is not None:
        of_sinks = jnp.broadcast_to(sinks[None, :, None, None], (*scores.shape[:3], 1))
        scores = jnp.concatenate([scores, of_sinks], -1)
    p = jax.nn.softmax(scores, -1)[..., : k.shape[1]]
    return jnp.einsum("bhqk,bkhd->bqhd", p, v)


def rotate(x: Any, cos: Any, sin: Any) -> Any:
    """Rows x.shape[1] of tables [.., head_dim / 2]."""
    a, b = jnp.split(x, 2, -1)
    cos, sin = (t[None, :, None] if t.ndim == 2 else t[:, :, None] for t in (cos, sin))
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def conv(x: Any, weight: Any, bias: Any = None, *, layout: str, **options: Any) -> Any:
    """A convolution of x [N, C, ...] or [N, ..., C], whichever the layout says."""
    pixels = "DHW"[5 - x.ndim :]
    spec = (f"N{pixels}C", f"O{pixels}I", f"N{pixels}C") if layout == "last" else (f"NC{pixels}", f"OI{pixels}", f"NC{pixels}")
    y = jax.lax.conv_general_dilated(x, weight, dimension_numbers=spec, **options)
    if bias is None:
        return y
    return y + (bias if layout == "last" else bias.reshape(-1, *[1] * (x.ndim - 2)))


def step(cell: str, x: Any, h: Any, c: Any, w_ih: Any, w_hh: Any, b_ih: Any = 0.0, b_hh: Any = 0.0) -> Any:
    a, b, sigmoid = x @ w_ih.T + b_ih, h @ w_hh.T + b_hh, jax.nn.sigmoid
    if cell == "lstm":
        i, f, g, o = jnp.split(a + b, 4, -1)
        c = sigmoid(f) * c + sigmoid(i) * jnp.tanh(g)
        return sigmoid(o) * jnp.tanh(c), c
    if cell == "gru":
        (ar, az, an), (br, bz, bn) = jnp.split(a, 3, -1), jnp.split(b, 3, -1)
        z = sigmoid(az + bz)
        return (1 - z) * jnp.tanh(an + sigmoid(ar + br) * bn) + z * h, c
    return jnp.maximum(a + b, 0), c


def recurrent(cell: str, x: Any, layers: Any, h0: Any = None, c0: Any = None, bidirectional: bool = False) -> Any:
    """y, h_n and c_n of x [steps, batch, input]."""
    directions, ends = 1 + bidirectional, []
    for layer in range(len(layers) // directions):
        outputs = []
        for direction in range(directions):
            weights = layers[layer * directions + direction]
            zero = jnp.zeros((x.shape[1], weights[1].shape[1]), x.dtype)
            h = zero if h0 is None else h0[len(ends)]
            c = zero if c0 is None else c0[len(ends)]
            of_steps = []
            for t in range(x.shape[0])[:: -1 if direction else 1]:
                h, c = step(cell, x[t], h, c, *weights)
                of_steps.append(h)
            outputs.append(jnp.stack(of_steps[:: -1 if direction else 1]))
            ends.append((h, c))
        x = jnp.concatenate(outputs, -1)
    return x, jnp.stack([h for h, _ in ends]), jnp.stack([c for _, c in ends])


def arrays(case: Case, dtype: str, seed: int, leading: Any = ()) -> Any:
    """Random arrays of a case, rounded to a type, and the integers behind them."""
    random = np.random.default_rng(seed)
    floats = [jnp.asarray(random.standard_normal((*leading, *shape)), dtype) for shape in case.shapes]
    return floats + [jnp.asarray(random.integers(0, bound, (*leading, *shape)), jnp.int32) for shape, bound in case.integers]


def wide(items: Any) -> Any:
    return [x.astype(jnp.float64) if jnp.issubdtype(x.dtype, jnp.floating) else x for x in items]


def as_tuple(found: Any) -> tuple[Any, ...]:
    return tuple(found) if isinstance(found, (tuple, list)) else (found,)


def gradients(function: Callable[..., Any], items: Any, count: int, dys: Any = None) -> Any:
    """The results, their gradients, which are random if they are not given, and those of the first arrays."""

    def of_floats(*floats: Any) -> Any:
        return as_tuple(function(*floats, *items[count:]))

    def of_all(floats: Any, dys: Any) -> Any:
        results, pull = jax.vjp(of_floats, *floats)
        return results, pull(tuple(d.astype(y.dtype) for d, y in zip(dys, results)))

    if dys is None:
        random = np.random.default_rng(11)
        shapes = jax.eval_shape(of_floats, *items[:count])
        dys = [jnp.asarray(random.standard_normal(y.shape), y.dtype) for y in shapes]
    # One program compiles sooner than each operation by itself.
    results, found = jax.jit(of_all)(items[:count], dys)
    return results, dys, found


def close(mine: Any, exact: Any, dtype: str, about: Any, scale: float = 0.0, rounded: Any = None) -> None:
    """That an array is within the budget of its type, or of what the same in its own type has for an error."""
    assert mine.shape == exact.shape, about
    exact = np.asarray(exact, np.float64)
    scale = max(float(np.linalg.norm(exact)) + scale, 1e-30)
    error = float(np.linalg.norm(np.asarray(mine, np.float64) - exact)) / scale
    other = 0.0 if rounded is None else float(np.linalg.norm(np.asarray(rounded, np.float64) - exact)) / scale
    assert error <= BUDGETS[dtype] + 1.5 * other, (about, error, other)


def check(case: Case, items: Any, dtype: str, ours: Any = None, reference: Any = None) -> None:
    """That results and gradients of a case are as in f64."""
    ours, reference, count = ours or case.ours, reference or case.reference, len(case.shapes)
    results, dys, found = gradients(ours, items, count)
    exact, _, exact_found = gradients(reference, wide(items), count, dys)
    rounded, _, rounded_found = gradients(reference, items, count, dys)
    dy = max(float(np.linalg.norm(np.asarray(d, np.float64))) for d in dys)
    for i, (a, b, c) in enumerate(zip(results, exact, rounded)):
        close(a, b, dtype, ("result", i), 0.0, c)
    assert len(results) == len(exact)
    for i, (x, a, b, c) in enumerate(zip(items, found, exact_found, rounded_found)):
        assert a.dtype == x.dtype, ("gradient", i)
        close(a, b, dtype, ("gradient", i), dy, c)


_SLOPE, _BETA = 0.02, 0.7


def _tables(rows: int, pairs: int) -> Any:
    angles = np.outer(np.arange(rows), 0.3 ** np.arange(pairs))
    return jnp.asarray(np.cos(angles), jnp.float32), jnp.asarray(np.sin(angles), jnp.float32)


def _rotary(q: Any, k: Any) -> Any:
    return wj.rotary_embedding(q, k, *_tables(9, 4), offset=2)


def _rotary_reference(q: Any, k: Any) -> Any:
    tables = [t[2 : 2 + q.shape[1]].astype(q.dtype) for t in _tables(9, 4)]
    return rotate(q, *tables), rotate(k, *tables)


CASES: dict[str, Case] = {
    "relu": Case(wj.relu, jax.nn.relu, [(5, 7)]),
    "leaky_relu": Case(lambda x: wj.leaky_relu(x, _SLOPE), lambda x: jnp.where(x > 0, x, _SLOPE * x), [(5, 7)]),
    "gelu_tanh": Case(wj.gelu_tanh, lambda x: jax.nn.gelu(x, approximate=True), [(5, 7)]),
    "gelu_erf": Case(wj.gelu_erf, lambda x: jax.nn.gelu(x, approximate=False), [(3, 5, 7)]),
    "silu": Case(wj.silu, jax.nn.silu, [(35,)]),
    "sigmoid": Case(wj.sigmoid, jax.nn.sigmoid, [(5, 7)]),
    "tanh": Case(wj.tanh, jnp.tanh, [(5, 7)]),
    "softplus": Case(lambda x: wj.softplus(x, _BETA), lambda x: jax.nn.softplus(_BETA * x) / _BETA, [(5, 7)]),
    "swiglu": Case(wj.swiglu, lambda g, u: jax.nn.silu(g) * u, [(4, 9)] * 2),
    "geglu": Case(wj.geglu, lambda g, u: jax.nn.gelu(g, approximate=False) * u, [(4, 9)] * 2),
    "geglu_tanh": Case(wj.geglu_tanh, lambda g, u: jax.nn.gelu(g, approximate=True) * u, [(4, 9)] * 2),
    "softmax": Case(lambda x: wj.softmax(x, 1, scale=0.6), lambda x: jax.nn.softmax(0.6 * x, 1), [(3, 6, 4)]),
    "log_softmax": Case(wj.log_softmax, jax.nn.log_softmax, [(5, 33)]),
    "layer_norm": Case(
        lambda x, w, b: wj.layer_norm(x, (3, 5), w, b, 1e-3),
        lambda x, w, b: norm(x, (-2, -1), 1e-3) * w + b,
        [(4, 3, 5), (3, 5), (3, 5)],
    ),
    "layer_norm_plain": Case(lambda x: wj.layer_norm(x, 17), lambda x: norm(x, -1, 1e-5), [(2, 3, 17)]),
    "layer_norm_of_bias": Case(
        lambda x, b: wj.layer_norm(x, 17, None, b), lambda x, b: norm(x, -1, 1e-5) + b, [(5, 17), (17,)]
    ),
    "add_layer_norm": Case(
        lambda x, r, w, b: wj.add_layer_norm(x, r, 17, w, b),
        lambda x, r, w, b: (norm(x + r, -1, 1e-5) * w + b, x + r),
        [(5, 17), (5, 17), (17,), (17,)],
    ),
    "rms_norm": Case(
        lambda x, w: wj.rms_norm(x, 17, w, 1e-5), lambda x, w: norm(x, -1, 1e-5, False) * w, [(2, 3, 17), (17,)]
    ),
    "rms_norm_plain": Case(lambda x: wj.rms_norm(x, 17, eps=1e-2), lambda x: norm(x, -1, 1e-2, False), [(5, 17)]),
    "add_rms_norm": Case(
        lambda x, r, w: wj.add_rms_norm(x, r, [17], w, 1e-4),
        lambda x, r, w: (norm(x + r, -1, 1e-4, False) * w, x + r),
        [(5, 17), (5, 17), (17,)],
    ),
    "group_norm": Case(
        lambda x, w, b: wj.group_norm(x, 3, w, b),
        lambda x, w, b: group_norm(x, 3, w, b, 1e-5),
        [(2, 6, 5, 2), (6,), (6,)],
    ),
    "group_norm_silu": Case(
        lambda x, w, b: wj.group_norm(x, 2, w, b, 1e-3, silu=True),
        lambda x, w, b: jax.nn.silu(group_norm(x, 2, w, b, 1e-3)),
        [(3, 4, 7), (4,), (4,)],
    ),
    "group_norm_plain": Case(
        lambda x: wj.group_norm(x, 2), lambda x: group_norm(x, 2, None, None, 1e-5), [(3, 4, 7)]
    ),
    **{
        f"cross_entropy_{reduction}": Case(
            lambda x, t, r=reduction: wj.cross_entropy(x, t, ignore_index=3, reduction=r, label_smoothing=0.1),
            lambda x, t, r=reduction: cross_entropy(x, t, 3, r, 0.1),
            [(6, 11)],
            [((6,), 11)],
        )
        for reduction in ("mean", "sum", "none")
    },
    "attention": Case(
        lambda q, k, v: wj.attention(q, k, v),
        lambda q, k, v: attention(q, k, v, scale=8**-0.5),
        [(2, 5, 4, 8), (2, 6, 4, 8), (2, 6, 4, 8)],
    ),
    "attention_causal_gqa": Case(
        lambda q, k, v: wj.attention(q, k, v, causal=True, softmax_scale=0.3, softcap=1.5, window=(3, -1)),
        lambda q, k, v: attention(q, k, v, causal=True, scale=0.3, softcap=1.5, window=(3, -1)),
        [(2, 5, 4, 8), (2, 6, 2, 8), (2, 6, 2, 8)],
    ),
    "attention_bias": Case(
        lambda q, k, v, b: wj.attention(q, k, v, bias=b),
        lambda q, k, v, b: attention(q, k, v, b, scale=4**-0.5),
        [(2, 3, 2, 4), (2, 5, 2, 4), (2, 5, 2, 4), (2, 2, 3, 5)],
    ),
    "attention_shared_bias": Case(
        lambda q, k, v, b: wj.attention(q, k, v, bias=b),
        lambda q, k, v, b: attention(q, k, v, b, scale=4**-0.5),
        [(2, 3, 2, 4), (2, 5, 2, 4), (2, 5, 2, 4), (1, 1, 3, 5)],
    ),
    "attention_sinks": Case(
        lambda q, k, v, s: wj.attention(q, k, v, causal=True, sinks=s.astype(jnp.float32)),
        lambda q, k, v, s: attention(q, k, v, None, s.astype(jnp.float32), scale=4**-0.5, causal=True),
        [(2, 3, 2, 4), (2, 5, 2, 4), (2, 5, 2, 4), (2,)],
        # Sinks and their gradient are in f32.
        dtypes=("float32", "float16", "bfloat16"),
    ),
    "attention_lengths": Case(
        lambda q, k, v, n: wj.attention(q, k, v, key_lengths=n + 1),
        lambda q, k, v, n: attention(q, k, v, scale=4**-0.5, key_lengths=n + 1),
        [(2, 3, 2, 4), (2, 5, 2, 4), (2, 5, 2, 4)],
        [((2,), 5)],
    ),
    "matmul": Case(wj.matmul, jnp.matmul, [(5, 7), (7, 3)]),
    "matmul_of_stacks": Case(wj.matmul, jnp.matmul, [(2, 5, 7), (2, 7, 3)]),
    "matmul_of_one": Case(wj.matmul, jnp.matmul, [(2, 5, 7), (7, 3)]),
    "matmul_broadcast": Case(wj.matmul, jnp.matmul, [(2, 1, 5, 7), (3, 7, 4)]),
    "matmul_of_vectors": Case(wj.matmul, jnp.matmul, [(7,), (7, 3)]),
    "linear": Case(wj.linear, lambda x, w, b: x @ w.T + b, [(2, 4, 7), (3, 7), (3,)]),
    "linear_gelu": Case(
        lambda x, w, b: wj.linear(x, w, b, activation="gelu_tanh"),
        lambda x, w, b: jax.nn.gelu(x @ w.T + b, approximate=True),
        [(4, 7), (3, 7), (3,)],
    ),
    "linear_silu": Case(
        lambda x, w: wj.linear(x, w, activation="silu"), lambda x, w: jax.nn.silu(x @ w.T), [(7,), (3, 7)]
    ),
    "rotary_embedding": Case(_rotary, _rotary_reference, [(2, 5, 3, 8), (2, 5, 1, 8)]),
    "rotary_embedding_of_positions": Case(
        lambda q, p: wj.rotary_embedding(q, None, *_tables(9, 4), positions=p),
        lambda q, p: rotate(q, *(t[p].astype(q.dtype) for t in _tables(9, 4))),
        [(2, 5, 3, 8)],
        [((2, 5), 9)],
    ),
    "embedding": Case(
        lambda w, i: wj.embedding(i, w), lambda w, i: w[i], [(6, 5)], [((4, 3), 6)]
    ),
    "embedding_padding": Case(
        lambda w, i: wj.embedding(i, w, padding_idx=-4),
        lambda w, i: jnp.where((i == 2)[..., None], jax.lax.stop_gradient(w)[i], w[i]),
        [(6, 5)],
        [((20,), 6)],
    ),
    "conv2d": Case(
        lambda x, w, b: wj.conv2d(x, w, b, stride=(2, 1), padding=1, groups=2),
        lambda x, w, b: conv(
            x, w, b, layout="first", window_strides=(2, 1), padding=[(1, 1), (1, 1)], feature_group_count=2
        ),
        [(2, 4, 6, 5), (6, 2, 3, 3), (6,)],
    ),
    "conv2d_channels_last": Case(
        lambda x, w, b: wj.conv2d(x, w, b, padding=[(0, 1), 1], dilation=2, activation="silu", channels_last=True),
        lambda x, w, b: jax.nn.silu(
            conv(x, w, b, layout="last", window_strides=(1, 1), padding=[(0, 1), (1, 1)], rhs_dilation=(2, 2))
        ),
        [(2, 6, 5, 4), (3, 2, 2, 4), (3,)],
    ),
    "conv1d": Case(
        lambda x, w: wj.conv1d(x, w, padding=2),
        lambda x, w: conv(x, w, layout="first", window_strides=(1,), padding=[(2, 2)]),
        [(2, 3, 9), (4, 3, 4)],
    ),
    "conv3d": Case(
        lambda x, w: wj.conv3d(x, w),
        lambda x, w: conv(x, w, layout="first", window_strides=(1, 1, 1), padding="VALID"),
        [(1, 2, 3, 4, 3), (2, 2, 2, 2, 2)],
    ),
    "lstm": Case(
        lambda x, h, c, *w: wj.lstm(x, [w[:4], w[4:]], h, c),
        lambda x, h, c, *w: recurrent("lstm", x, [w[:4], w[4:]], h, c),
        [(3, 2, 5), (2, 2, 4), (2, 2, 4), (16, 5), (16, 4), (16,), (16,), (16, 4), (16, 4), (16,), (16,)],
    ),
    "lstm_bidirectional": Case(
        lambda x, *w: wj.lstm(x.transpose(1, 0, 2), [w[:2], w[2:]], bidirectional=True, batch_first=True)[0].transpose(1, 0, 2),
        lambda x, *w: recurrent("lstm", x, [w[:2], w[2:]], bidirectional=True)[0],
        [(3, 2, 5), (16, 5), (16, 4), (16, 5), (16, 4)],
    ),
    "gru": Case(
        lambda x, h, *w: wj.gru(x, [w], h),
        lambda x, h, *w: recurrent("gru", x, [w], h)[:2],
        [(4, 2, 5), (1, 2, 3), (9, 5), (9, 3), (9,), (9,)],
    ),
    "rnn": Case(
        lambda x, *w: wj.rnn(x, [w], nonlinearity="relu"),
        lambda x, *w: recurrent("relu", x, [w])[:2],
        [(4, 2, 5), (3, 5), (3, 3)],
    ),
    "cross_entropy_of_pixels": Case(
        lambda x, t: wj.cross_entropy(x, t, reduction="none"),
        lambda x, t: cross_entropy(jnp.moveaxis(x, 1, -1).reshape(-1, 5), t.reshape(-1), -100, "none", 0).reshape(t.shape),
        [(2, 5, 3)],
        [((2, 3), 5)],
    ),
}
