"""Selective scans on arrays of numpy, held against a loop over positions in f64."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import BUDGETS, distance, numpy_dtype

import warpwright as ww

DTYPES = ["float32", "float64", "float16", "bfloat16"]
# Sums over positions, and exponentials in f32, may differ more than by one rounding.
SUMS = {"float32": 4e-6, "float64": 1e-9, "float16": 4e-6, "bfloat16": 4e-6}
SAMPLES, ROWS = ("u", "delta", "z"), ("B", "C")
NAMES = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias", "initial_state")


def wide(x):
    return np.asarray(x, dtype=np.float64)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


class Loop:
    """The scan of some arrays and its gradients, position by position; channels come first."""

    def __init__(self, given, softplus):
        self.given = {name: wide(x) for name, x in given.items()}
        g = self.given
        self.groups = g["B"].shape[1]
        self.each = g["u"].shape[1] // self.groups
        self.raw = g["delta"] + (g["delta_bias"][:, None] if "delta_bias" in g else 0)
        self.softplus = softplus
        self.step = np.logaddexp(self.raw, 0) if softplus else self.raw
        self.b, self.c = (np.repeat(g[name], self.each, 1) for name in ROWS)
        shape = (*g["u"].shape[:2], g["A"].shape[1])
        self.states = [g.get("initial_state", np.zeros(shape))]
        for t in range(g["u"].shape[2]):
            self.states.append(self.decay(t) * self.states[-1] + (self.step * g["u"])[..., t, None] * self.b[..., t])

    def decay(self, t):
        return np.exp(self.step[..., t, None] * self.given["A"])

    @property
    def before_gate(self):
        positions = range(self.given["u"].shape[2])
        y = np.stack([(self.c[..., t] * self.states[t + 1]).sum(-1) for t in positions], -1)
        return y + (self.given["D"][:, None] * self.given["u"] if "D" in self.given else 0)

    @property
    def y(self):
        z = self.given.get("z")
        return self.before_gate if z is None else self.before_gate * z * sigmoid(z)

    def gradients(self, dy, dlast=None):
        g, dy = self.given, wide(dy)
        u, z = g["u"], g.get("z")
        of = {}
        if z is not None:
            of["z"] = dy * self.before_gate * sigmoid(z) * (1 + z * (1 - sigmoid(z)))
            dy = dy * z * sigmoid(z)
        du = dy * g["D"][:, None] if "D" in g else np.zeros_like(u)
        dstep, of["A"], db, dc = np.zeros_like(u), np.zeros_like(g["A"]), np.zeros_like(self.b), np.zeros_like(self.c)
        dh = np.zeros_like(self.states[0]) if dlast is None else wide(dlast)
        for t in reversed(range(u.shape[2])):
            dh = dh + dy[..., t, None] * self.c[..., t]
            dc[..., t] = dy[..., t, None] * self.states[t + 1]
            exponent = dh * self.decay(t) * self.states[t]
            dstep[..., t] = (exponent * g["A"] + dh * self.b[..., t] * u[..., t, None]).sum(-1)
            of["A"] += (exponent * self.step[..., t, None]).sum(0)
            du[..., t] += self.step[..., t] * (dh * self.b[..., t]).sum(-1)
            db[..., t] = dh * (self.step * u)[..., t, None]
            dh = dh * self.decay(t)
        ddelta = dstep * sigmoid(self.raw) if self.softplus else dstep
        batch, _, state, length = db.shape
        of["B"], of["C"] = (d.reshape(batch, self.groups, self.each, state, length).sum(2) for d in (db, dc))
        of |= {"u": du, "delta": ddelta, "D": (dy * u).sum((0, 2)), "delta_bias": ddelta.sum((0, 2)), "initial_state": dh}
        return [of[name] if name in g else None for name in NAMES]


def drawn(random, dtype, batch, channels, length, state, groups, optional=("D", "z", "delta_bias", "initial_state")):
    """Arrays by name. Rates of decay are such that states neither vanish nor grow."""
    of_sums = numpy_dtype("float64" if dtype == "float64" else "float32")
    shapes = {name: (batch, channels, length) for name in SAMPLES} | {name: (batch, groups, state, length) for name in ROWS}
    shapes |= {"A": (channels, state), "D": (channels,), "delta_bias": (channels,), "initial_state": (batch, channels, state)}
    found = {}
    for name in NAMES:
        if name in optional or name in ("u", "delta", "A", "B", "C"):
            x = random.standard_normal(shapes[name])
            x = -np.exp(x / 2) if name == "A" else x
            found[name] = x.astype(numpy_dtype(dtype) if name in SAMPLES + ROWS else of_sums)
    return found


def last(name, x):
    """The same array with its channels as the last dimension, if it has positions."""
    if name in SAMPLES:
        return np.ascontiguousarray(np.moveaxis(x, 1, 2))
    return np.ascontiguousarray(np.moveaxis(x, 3, 1)) if name in ROWS else x


def first(name, x):
    if name in SAMPLES:
        return np.moveaxis(x, 1, 2)
    return np.moveaxis(x, 1, 3) if name in ROWS else x


def close(found, expected, dtype):
    assert found.shape == expected.shape and found.dtype == numpy_dtype(dtype)
    assert distance(found, expected) <= 2 * BUDGETS[dtype] + SUMS[dtype]


def split(given):
    """Those in front, and options."""
    return [given[name] for name in NAMES[:5]], {name: x for name, x in given.items() if name not in NAMES[:5]}


# Samples, channels, positions, numbers of state, groups.
SHAPES = [(2, 5, 7, 4, 1), (1, 8, 1, 16, 2), (2, 4, 40, 3, 4), (1, 3, 33, 20, 1), (2, 6, 9, 1, 3)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("softplus", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_both_passes_in_both_layouts(random, dtype, softplus, shape):
    given = drawn(random, dtype, *shape)
    if not softplus:
        # Steps are positive, as those behind softplus are.
        given["delta"], given["delta_bias"] = (abs(given[name]) for name in ("delta", "delta_bias"))
    dy, dlast = random.standard_normal(given["u"].shape).astype(given["u"].dtype), random.standard_normal(given["initial_state"].shape)
    dlast = dlast.astype(given["A"].dtype)
    loop, of_sums = Loop(given, softplus), "float64" if dtype == "float64" else "float32"
    wanted = loop.gradients(dy, dlast)
    for channels_last in (False, True):
        to, back = (last, first) if channels_last else (lambda name, x: x,) * 2
        turned = {name: to(name, x) for name, x in given.items()}
        front, options = split(turned)
        options |= {"delta_softplus": softplus, "channels_last": channels_last}
        y, state, states = ww.selective_scan(*front, last_state=True, training=True, **options)
        close(back("u", y), loop.y, dtype), close(state, loop.states[-1], of_sums)
        found = ww.selective_scan_backward(*front, states, to("u", dy), dlast, **options)
        for name, a, b in zip(NAMES, found, wanted):
            close(back(name, a), b, dtype if name in SAMPLES + ROWS else of_sums)


def test_gradients_of_the_loop(random):
    """Those that the others are held against, by central differences."""
    given = drawn(random, "float64", 1, 2, 3, 2, 1)
    dy, dlast = random.standard_normal((1, 2, 3)), random.standard_normal((1, 2, 2))
    value = lambda g: (Loop(g, True).y * dy).sum() + (Loop(g, True).states[-1] * dlast).sum()  # noqa: E731
    for name, of in zip(NAMES, Loop(given, True).gradients(dy, dlast)):
        for at in np.ndindex(of.shape):
            ends = []
            for h in (1e-5, -1e-5):
                moved = {**given, name: given[name].copy()}
                moved[name][at] += h
                ends.append(value(moved))
            assert abs((ends[0] - ends[1]) / 2e-5 - of[at]) < 1e-8


@pytest.mark.parametrize("optional", [(), ("D",), ("z",), ("delta_bias",), ("initial_state",)])
def test_what_is_left_out(random, optional):
    given = drawn(random, "float32", 2, 4, 5, 3, 2, optional)
    front, options = split(given)
    loop = Loop(given, True)
    y = ww.selective_scan(*front, **options, delta_softplus=True)
    close(y, loop.y, "float32")
    pair = ww.selective_scan(*front, **options, delta_softplus=True, training=True)
    assert len(pair) == 2 and np.array_equal(pair[0], y)
    dy = random.standard_normal(y.shape).astype(np.float32)
    found = ww.selective_scan_backward(*front, pair[1], dy, **options, delta_softplus=True)
    assert len(found) == len(NAMES)
    for a, b in zip(found, loop.gradients(dy)):
        assert (a is None) == (b is None)
        if b is not None:
            close(a, b, "float32")
    out = [np.empty_like(a) for a in found if a is not None]
    again = ww.selective_scan_backward(*front, pair[1], dy, **options, delta_softplus=True, out=out)
    assert all(a is b for a, b in zip([a for a in again if a is not None], out))
    assert all(np.array_equal(a, b) for a, b in zip(out, [a for a in found if a is not None]))


def test_no_positions(random):
    given = drawn(random, "float32", 2, 4, 0, 3, 1)
    front, options = split(given)
    y, state = ww.selective_scan(*front, **options, last_state=True)
    assert y.shape == (2, 4, 0) and np.array_equal(state, given["initial_state"])


@pytest.mark.parametrize("channels_last", [False, True])
def test_update(random, channels_last):
    given = drawn(random, "float32", 2, 4, 7, 5, 2, ("D", "z", "delta_bias"))
    front, options = split(given)
    expected, final = ww.selective_scan(*front, **options, delta_softplus=True, last_state=True)
    state, to = np.zeros((2, 4, 5), np.float32), last if channels_last else (lambda name, x: np.ascontiguousarray(x))
    for begin, end in ((0, 1), (1, 3), (3, 7)):
        part = {name: to(name, x[..., begin:end]) if name in SAMPLES + ROWS else x for name, x in given.items()}
        front, options = split(part)
        y = ww.selective_scan_update(*front, state, **options, delta_softplus=True, channels_last=channels_last)
        assert np.allclose(y, to("u", expected[..., begin:end]), rtol=1e-5, atol=1e-5)
    assert np.allclose(state, final, rtol=1e-5, atol=1e-6)
    close(state, Loop(given, True).states[-1], "float32")


def arrays(**changed):
    """Arguments by name, some of them others."""
    shapes = {"u": (2, 4, 5), "delta": (2, 4, 5), "A": (4, 3), "B": (2, 2, 3, 5), "C": (2, 2, 3, 5)}
    found = {name: np.ones(shape, np.float32) for name, shape in shapes.items()} | changed
    return [found[name] for name in shapes]


ONES = lambda *shape: np.ones(shape, np.float32)  # noqa: E731
# Function, arguments, options, error, argument, part of the message.
REFUSED = [
    ("selective_scan", arrays(u=ONES(4, 5)), {}, ww.ShapeError, "u", "has 2 dimensions, expected 3"),
    ("selective_scan", arrays(delta=ONES(2, 4, 4)), {}, ww.ShapeError, "delta", "has shape [2, 4, 4], expected [2, 4, 5]"),
    ("selective_scan", arrays(delta=np.ones((2, 4, 5))), {}, ww.DtypeError, "delta", "is f64, expected f32"),
    ("selective_scan", arrays(A=ONES(3, 3)), {}, ww.ShapeError, "A", "has shape [3, 3], expected [4, 3]"),
    ("selective_scan", arrays(A=np.ones((4, 3), np.float16)), {}, ww.DtypeError, "A", "is f16, expected f32"),
    ("selective_scan", arrays(A=ONES(4, 65), B=ONES(2, 1, 65, 5), C=ONES(2, 1, 65, 5)), {}, ww.ParameterError, "state", "from 1 to 64"),
    ("selective_scan", arrays(B=ONES(2, 3, 5)), {}, ww.ShapeError, "B", "has 3 dimensions, expected 4"),
    ("selective_scan", arrays(B=ONES(2, 2, 4, 5)), {}, ww.ShapeError, "B", "expected [2, 2, 3, 5]"),
    ("selective_scan", arrays(B=ONES(2, 3, 3, 5), C=ONES(2, 3, 3, 5)), {}, ww.ParameterError, "groups", "a divisor of the channels"),
    ("selective_scan", arrays(C=ONES(2, 1, 3, 5)), {}, ww.ShapeError, "C", "expected [2, 2, 3, 5]"),
    ("selective_scan", arrays(), {"D": ONES(3)}, ww.ShapeError, "D", "has shape [3], expected [4]"),
    ("selective_scan", arrays(), {"z": ONES(2, 4)}, ww.ShapeError, "z", "expected [2, 4, 5]"),
    ("selective_scan", arrays(), {"delta_bias": np.ones(4)}, ww.DtypeError, "delta_bias", "is f64, expected f32"),
    ("selective_scan", arrays(), {"initial_state": ONES(2, 4, 4)}, ww.ShapeError, "initial_state", "expected [2, 4, 3]"),
    ("selective_scan", arrays(), {"channels_last": True}, ww.ShapeError, "A", "expected [5, 3]"),
    ("selective_scan", arrays(), {"training": True, "out": [ONES(2, 4, 5)] * 3}, ww.ArgumentError, "out", "holds 3 arrays, expected 2"),
    ("selective_scan_backward", (*arrays(), ONES(2, 2, 4, 3), ONES(2, 4, 5)), {}, ww.ShapeError, "states", "expected [2, 1, 4, 3]"),
    ("selective_scan_backward", (*arrays(), ONES(2, 1, 4, 3), ONES(2, 4, 6)), {}, ww.ShapeError, "dy", "expected [2, 4, 5]"),
    (
        "selective_scan_backward", (*arrays(), ONES(2, 1, 4, 3), ONES(2, 4, 5), ONES(2, 4, 2)), {}, ww.ShapeError, "dlast_state",
        "expected [2, 4, 3]",
    ),
    ("selective_scan_update", (*arrays(), ONES(2, 4, 2)), {}, ww.ShapeError, "state", "expected [2, 4, 3]"),
    ("selective_scan_update", (*arrays(), np.asfortranarray(ONES(2, 4, 3))), {}, ww.LayoutError, "state", "must be contiguous"),
    ("selective_scan_update", (*arrays(), np.ones((2, 4, 3))), {}, ww.DtypeError, "state", "is f64, expected f32"),
]  # fmt: skip


@pytest.mark.parametrize("name, arguments, options, error, argument, message", REFUSED)
def test_what_is_refused(name, arguments, options, error, argument, message):
    with pytest.raises(error) as info:
        getattr(ww, name)(*arguments, **options)
    e = info.value
    assert (e.op, e.argument) == (name, argument)
    assert str(e).startswith(f"{name}: {argument} ") and message in str(e)
