"""The scan of Mamba 2 on arrays of numpy, held against a loop over positions in f64."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import BUDGETS, distance, numpy_dtype

import warpwright as ww
from warpwright import _interop

NAMES = ("x", "dt", "A", "B", "C", "D", "dt_bias", "initial_state")
SAMPLES = ("x", "dt", "B", "C")
DTYPES = ["float16", "bfloat16"]


class Loop:
    """The scan of some arrays and its gradients, position by position."""

    def __init__(self, given, softplus=True):
        self.given = {name: np.asarray(x, np.float64) for name, x in given.items()}
        g = self.given
        self.each = g["x"].shape[2] // g["B"].shape[2]
        self.raw, self.softplus = g["dt"] + g.get("dt_bias", 0), softplus
        self.step = np.logaddexp(self.raw, 0) if softplus else self.raw
        self.b, self.c = (np.repeat(g[name], self.each, 2) for name in ("B", "C"))
        batch, self.length, *rest = g["x"].shape
        self.decay = np.exp(self.step * g["A"])
        self.states = [g.get("initial_state", np.zeros((batch, *rest, g["B"].shape[3])))]
        self.y = g.get("D", np.zeros(rest[0]))[:, None] * g["x"]
        for t in range(self.length):
            new = (self.step[:, t, :, None] * g["x"][:, t])[..., None] * self.b[:, t, :, None]
            self.states.append(self.decay[:, t, :, None, None] * self.states[-1] + new)
            self.y[:, t] += (self.states[-1] * self.c[:, t, :, None]).sum(-1)

    def gradients(self, dy, dlast):
        g, x = self.given, self.given["x"]
        dy, dh = np.asarray(dy, np.float64), np.asarray(dlast, np.float64)
        dx, dstep, da, db, dc = (np.zeros_like(a) for a in (x, self.step, self.step, self.b, self.c))
        for t in reversed(range(self.length)):
            dh = dh + dy[:, t, ..., None] * self.c[:, t, :, None]
            dc[:, t] = (dy[:, t, ..., None] * self.states[t + 1]).sum(2)
            exponent = (dh * self.states[t]).sum((2, 3)) * self.decay[:, t]
            of_row = (dh * self.b[:, t, :, None]).sum(-1)
            dstep[:, t] = exponent * g["A"] + (of_row * x[:, t]).sum(-1)
            da[:, t] = exponent * self.step[:, t]
            dx[:, t] = self.step[:, t, :, None] * of_row
            db[:, t] = (dh * (self.step[:, t, :, None] * x[:, t])[..., None]).sum(2)
            dh = dh * self.decay[:, t, :, None, None]
        ddt = dstep / (1 + np.exp(-self.raw)) if self.softplus else dstep
        db, dc = (d.reshape(*d.shape[:2], -1, self.each, d.shape[3]).sum(3) for d in (db, dc))
        dx = dx + g["D"][:, None] * dy if "D" in g else dx
        of = {"x": dx, "dt": ddt, "A": da.sum((0, 1)), "B": db, "C": dc, "D": (dy * x).sum((0, 1, 3)), "dt_bias": ddt.sum((0, 1))}
        return [{**of, "initial_state": dh}[name] if name in g else None for name in NAMES]


def drawn(random, dtype, batch, length, heads, dim, groups, state, optional=NAMES[5:]):
    """Arrays by name. Rates of decay are such that states neither vanish nor grow."""
    rows = (batch, length, groups, state)
    shapes = {"x": (batch, length, heads, dim), "dt": (batch, length, heads), "A": (heads,), "B": rows, "C": rows}
    shapes |= {"D": (heads,), "dt_bias": (heads,), "initial_state": (batch, heads, dim, state)}
    found = {}
    for name in (*NAMES[:5], *optional):
        a = random.standard_normal(shapes[name])
        a = -np.exp(a / 2) / 4 if name == "A" else a
        found[name] = a.astype(numpy_dtype(dtype if name in SAMPLES else "float32"))
    return found


def split(given):
    """Those in front, and options."""
    return [given[name] for name in NAMES[:5]], {name: a for name, a in given.items() if name not in NAMES[:5]}


def close(found, expected, name, dtype):
    """Operands of products are rounded to `dtype`, whatever the result is."""
    of_result = numpy_dtype(dtype if name in SAMPLES else "float32")
    assert found.shape == expected.shape and found.dtype == of_result
    assert distance(found, expected) <= 2 * BUDGETS[dtype], name


def test_gradients_of_the_loop(random):
    """Those that the others are held against, by central differences."""
    given = {name: np.asarray(a, np.float64) for name, a in drawn(random, "float16", 1, 3, 2, 2, 1, 2).items()}
    dy, dlast = random.standard_normal((1, 3, 2, 2)), random.standard_normal((1, 2, 2, 2))
    value = lambda g: (Loop(g).y * dy).sum() + (Loop(g).states[-1] * dlast).sum()  # noqa: E731
    for name, of in zip(NAMES, Loop(given).gradients(dy, dlast)):
        for at in np.ndindex(of.shape):
            ends = []
            for h in (1e-5, -1e-5):
                moved = {**given, name: given[name].copy()}
                moved[name][at] += h
                ends.append(value(moved))
            assert abs((ends[0] - ends[1]) / 2e-5 - of[at]) < 1e-7


# Samples, positions, heads, elements, groups, numbers of state; what is left out.
SHAPES = [
    ((2, 70, 4, 8, 2, 16), ()),
    ((1, 1, 1, 1, 1, 1), ("D",)),
    ((2, 9, 3, 5, 1, 7), ("dt_bias",)),
    ((1, 65, 2, 16, 2, 8), ("initial_state",)),
    ((1, 20, 2, 16, 1, 24), ("D", "dt_bias", "initial_state")),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape, left", SHAPES)
def test_both_passes(random, dtype, shape, left):
    given = drawn(random, dtype, *shape, [name for name in NAMES[5:] if name not in left])
    loop, (front, options) = Loop(given), split(given)
    y, last, states = ww.chunk_scan(*front, **options, dt_softplus=True, last_state=True, training=True)
    close(y, loop.y, "x", dtype), close(last, loop.states[-1], "initial_state", dtype)
    assert np.array_equal(ww.chunk_scan(*front, **options, dt_softplus=True), y)
    dy, dlast = random.standard_normal(y.shape).astype(y.dtype), random.standard_normal(last.shape).astype(np.float32)
    found = ww.chunk_scan_backward(*front, states, dy, dlast, **options, dt_softplus=True)
    wanted = loop.gradients(dy, dlast)
    assert len(found) == len(wanted) and [a is None for a in found] == [b is None for b in wanted]
    for name, a, b in zip(NAMES, found, wanted):
        if b is not None:
            close(a, b, name, dtype)
    out = [np.empty_like(a) for a in found if a is not None]
    ww.chunk_scan_backward(*front, states, dy, dlast, **options, dt_softplus=True, out=out)
    assert all(np.array_equal(a, b) for a, b in zip(out, [a for a in found if a is not None]))


def test_without_softplus(random):
    given = drawn(random, "float16", 2, 12, 2, 8, 1, 8)
    given["dt"], given["dt_bias"] = abs(given["dt"]), abs(given["dt_bias"])
    front, options = split(given)
    close(ww.chunk_scan(*front, **options), Loop(given, False).y, "x", "float16")


@pytest.mark.parametrize("dim, state", [(8, 16), (5, 3)])
def test_positions_that_lie_apart(random, monkeypatch, dim, state):
    """Parts of one array give, bit for bit, what copies of them do, as do those in an order that is copied."""
    length, heads = 66, 2
    given = drawn(random, "float16", 2, length, heads, dim, 1, state)
    widths = [heads * dim, state, state, heads]
    whole = np.concatenate([given[name].reshape(2, length, -1) for name in ("x", "B", "C", "dt")], 2)
    parts = dict(zip(("x", "B", "C", "dt"), np.split(whole, np.cumsum(widths)[:-1], 2)))
    parts = given | {name: part.reshape(given[name].shape) if name == "dt" else np.lib.stride_tricks.as_strided(
        part, given[name].shape, (*part.strides[:2], part.itemsize * given[name].shape[3], part.itemsize)) for name, part in parts.items()}  # fmt: skip
    turned = given | {name: np.asfortranarray(given[name]) for name in SAMPLES}
    found, copied, contiguous = [], [], _interop.contiguous
    monkeypatch.setattr(_interop, "contiguous", lambda *arguments: copied.append(1) or contiguous(*arguments))
    for each, copies in ((given, 0), (parts, 0), (turned, 8)):
        copied.clear()
        front, options = split(each)
        y, states = ww.chunk_scan(*front, **options, dt_softplus=True, training=True)
        found.append([y, states, *ww.chunk_scan_backward(*front, states, y, **options, dt_softplus=True)])
        assert len(copied) == copies
    assert not parts["x"].flags.c_contiguous
    close(found[0][0], Loop(given).y, "x", "float16")
    for other in found[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(found[0], other))


def test_no_positions(random):
    front, options = split(drawn(random, "float16", 2, 0, 2, 4, 1, 3))
    y, state = ww.chunk_scan(*front, **options, last_state=True)
    assert y.shape == (2, 0, 2, 4) and np.array_equal(state, options["initial_state"])


HALF = lambda *shape: np.ones(shape, np.float16)  # noqa: E731
ONES = lambda *shape: np.ones(shape, np.float32)  # noqa: E731


def arrays(**changed):
    """Arguments by name, some of them others."""
    found = {"x": HALF(2, 5, 4, 8), "dt": HALF(2, 5, 4), "A": ONES(4), "B": HALF(2, 5, 2, 3), "C": HALF(2, 5, 2, 3)}
    return list((found | changed).values())


REFUSED = [
    ("chunk_scan", arrays(x=HALF(5, 4, 8)), {}, ww.ShapeError, "x", "has 3 dimensions, expected 4"),
    ("chunk_scan", arrays(x=ONES(2, 5, 4, 8)), {}, ww.DtypeError, "x", "f32"),
    ("chunk_scan", arrays(dt=HALF(2, 5, 3)), {}, ww.ShapeError, "dt", "has shape [2, 5, 3], expected [2, 5, 4]"),
    ("chunk_scan", arrays(dt=ONES(2, 5, 4)), {}, ww.DtypeError, "dt", "is f32, expected f16"),
    ("chunk_scan", arrays(A=ONES(3)), {}, ww.ShapeError, "A", "expected [4]"),
    ("chunk_scan", arrays(A=HALF(4)), {}, ww.DtypeError, "A", "is f16, expected f32"),
    ("chunk_scan", arrays(B=HALF(2, 5, 3)), {}, ww.ShapeError, "B", "has 3 dimensions, expected 4"),
    ("chunk_scan", arrays(B=HALF(2, 4, 2, 3)), {}, ww.ShapeError, "B", "expected [2, 5, 2, 3]"),
    ("chunk_scan", arrays(B=HALF(2, 5, 3, 3), C=HALF(2, 5, 3, 3)), {}, ww.ParameterError, "groups", "a divisor of the heads"),
    ("chunk_scan", arrays(C=HALF(2, 5, 1, 3)), {}, ww.ShapeError, "C", "expected [2, 5, 2, 3]"),
    ("chunk_scan", arrays(x=HALF(2, 5, 4, 129)), {}, ww.ParameterError, "head_dim", "from 1 to 128"),
    ("chunk_scan", arrays(B=HALF(2, 5, 2, 257), C=HALF(2, 5, 2, 257)), {}, ww.ParameterError, "state", "from 1 to 256"),
    ("chunk_scan", arrays(), {"D": ONES(3)}, ww.ShapeError, "D", "has shape [3], expected [4]"),
    ("chunk_scan", arrays(), {"dt_bias": HALF(4)}, ww.DtypeError, "dt_bias", "is f16, expected f32"),
    ("chunk_scan", arrays(), {"initial_state": ONES(2, 4, 8, 2)}, ww.ShapeError, "initial_state", "expected [2, 4, 8, 3]"),
    ("chunk_scan", arrays(), {"training": True, "out": [HALF(2, 5, 4, 8)]}, ww.ArgumentError, "out", "holds 1 arrays, expected 2"),
    ("chunk_scan_backward", (*arrays(), HALF(2, 2, 4, 8, 3), HALF(2, 5, 4, 8)), {}, ww.ShapeError, "states", "expected [2, 1, 4, 8, 3]"),
    ("chunk_scan_backward", (*arrays(), HALF(2, 1, 4, 8, 3), HALF(2, 5, 4)), {}, ww.ShapeError, "dy", "expected [2, 5, 4, 8]"),
]  # fmt: skip


@pytest.mark.parametrize("name, arguments, options, error, argument, message", REFUSED)
def test_what_is_refused(name, arguments, options, error, argument, message):
    with pytest.raises(error) as info:
        getattr(ww, name)(*arguments, **options)
    e = info.value
    assert (e.op, e.argument) == (name, argument)
    assert str(e).startswith(f"{name}: {argument} ") and message in str(e)
