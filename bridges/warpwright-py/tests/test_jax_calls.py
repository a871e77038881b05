"""Calls of `warpwright.jax` as such: what is refused, and when; threads; other processes; memory."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")
import jax.numpy as jnp  # noqa: E402

import warpwright as ww  # noqa: E402
import warpwright.jax as wj  # noqa: E402
from warpwright import _native  # noqa: E402

X = np.linspace(-2, 2, 24, dtype=np.float32).reshape(4, 6)
W = np.linspace(0.5, 1.5, 6, dtype=np.float32)

REFUSED = {
    "dtype": (lambda x: wj.relu(x.astype(jnp.int32)), ww.DtypeError, "relu", "x"),
    "bool": (lambda x: wj.silu(x > 0), ww.DtypeError, "silu", "x"),
    "dtype of a weight": (lambda x: wj.layer_norm(x, 6, W.astype(np.float16)), ww.DtypeError, "layer_norm", "weight"),
    "shape of a weight": (lambda x: wj.layer_norm(x, 6, W[:5]), ww.ShapeError, "layer_norm", "weight"),
    "rank": (lambda x: wj.group_norm(x[0], 2), ww.ShapeError, "group_norm", "x"),
    "too many dimensions": (lambda x: wj.relu(x.reshape((4, *[1] * 8, 6))), ww.ShapeError, "relu", "x"),
    "normalized shape": (lambda x: wj.rms_norm(x, (4, 5)), ww.ShapeError, "rms_norm", "normalized_shape"),
    "groups": (lambda x: wj.group_norm(x, 4), ww.ParameterError, "group_norm", "groups"),
    "dim": (lambda x: wj.softmax(x, 2), ww.ParameterError, "softmax", "dim"),
    "two shapes": (lambda x: wj.swiglu(x, x[:3]), ww.ShapeError, "swiglu", "up"),
    "two types": (lambda x: wj.geglu(x, x.astype(jnp.bfloat16)), ww.DtypeError, "geglu", "up"),
    "target": (lambda x: wj.cross_entropy(x, x[:, 0]), ww.DtypeError, "cross_entropy", "target"),
    "rows of a target": (lambda x: wj.cross_entropy(x, np.zeros(3, np.int32)), ww.ShapeError, "cross_entropy", "target"),
    "heads": (lambda x: wj.attention(*[x.reshape(1, 2, 3, 4)] * 2, x.reshape(1, 3, 2, 4)), ww.ParameterError, "attention", "k"),
    "dtype of keys": (lambda x: wj.attention(x.reshape(1, 2, 3, 4), *[np.zeros((1, 2, 3, 4), np.float16)] * 2), ww.DtypeError, "attention", "k"),
    "inner dimensions": (lambda x: wj.matmul(x, x), ww.ShapeError, "matmul", "b"),
    "leading dimensions": (lambda x: wj.matmul(x.reshape(2, 2, 6), jnp.zeros((3, 6, 2))), ww.ShapeError, "matmul", "b"),
    "dtype of a factor": (lambda x: wj.linear(x, np.zeros((2, 6), np.float16)), ww.DtypeError, "linear", "weight"),
    "shape of a factor": (lambda x: wj.linear(x, np.zeros((2, 5), np.float32)), ww.ShapeError, "linear", "weight"),
    "rank of a factor": (lambda x: wj.linear(x, W), ww.ShapeError, "linear", "weight"),
    "activation": (lambda x: wj.linear(x, x, activation="gelu"), ww.ParameterError, "linear", "activation"),
    "precision": (lambda x: wj.matmul(x, x.T, precision="half"), ww.ParameterError, "matmul", "precision"),
    "tables": (lambda x: wj.rotary_embedding(x.reshape(1, 4, 1, 6), None, *[np.ones((3, 3), np.float32)] * 2), ww.ShapeError, "rotary_embedding", "cos"),
    "pairing": (lambda x: wj.rotary_embedding(x.reshape(1, 4, 1, 6), None, *[np.ones((4, 3), np.float32)] * 2, pairing="other"), ww.ParameterError, "rotary_embedding", "pairing"),
    "indices": (lambda x: wj.embedding(x, x), ww.DtypeError, "embedding", "input"),
    "padding": (lambda x: wj.embedding(np.zeros(3, np.int32), x, padding_idx=4), ww.ParameterError, "embedding", "padding_idx"),
    "rank of images": (lambda x: wj.conv2d(x, x), ww.ShapeError, "conv2d", "input"),
    "dtype of filters": (lambda x: wj.conv1d(x[None], np.ones((2, 4, 3), np.float16)), ww.DtypeError, "conv1d", "weight"),
    "channels": (lambda x: wj.conv1d(x[None], np.ones((2, 3, 3), np.float32)), ww.ShapeError, "conv1d", "weight"),
    "gates": (lambda x: wj.gru(x[:, None], [(np.ones((6, 5), np.float32), np.ones((6, 2), np.float32))]), ww.ShapeError, "gru", "w_ih"),
    "layers": (lambda x: wj.lstm(x[:, None], []), ww.ArgumentError, "lstm", "weights"),
    "dtype to quantize": (lambda x: wj.quantize_nf4(x.astype(jnp.int32))[1], ww.DtypeError, "quantize_nf4", "x"),
    "codes": (lambda x: wj.linear_4bit(x, x, x[0, :1], (4, 6)), ww.DtypeError, "linear_4bit", "codes"),
    "rows of 4 bits": (lambda x: wj.linear_4bit(x, *wj.quantize_nf4(np.ones((4, 5), np.float32)), (4, 5)), ww.ShapeError, "linear_4bit", "input"),
    "reduction": (lambda x: wj.cross_entropy(x, np.zeros(4, np.int32), reduction="all"), ww.ParameterError, "cross_entropy", "reduction"),
}


@pytest.mark.parametrize("how", ["eager", "jit", "grad", "vmap", "eval_shape"])
@pytest.mark.parametrize("name", REFUSED)
def test_refused_when_traced(name, how):
    function, error, op, argument = REFUSED[name]
    ways = {
        "eager": lambda: function(jnp.asarray(X)),
        "jit": lambda: jax.jit(function).lower(X),
        "grad": lambda: jax.jit(jax.grad(lambda x: jax.tree.leaves(function(x))[0].sum())).lower(X),
        "vmap": lambda: jax.vmap(function)(jnp.stack([X, X])),
        "eval_shape": lambda: jax.eval_shape(function, X),
    }
    with pytest.raises(error) as caught:
        ways[how]()
    assert (caught.value.op, caught.value.argument) == (op, argument)


def test_no_second_derivative_and_no_forward_mode():
    x = jnp.asarray(X)
    with pytest.raises(ValueError, match="warpwright.* cannot be differentiated"):
        jax.grad(lambda x: jax.grad(lambda x: wj.silu(x).sum())(x).sum())(x)
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(wj.silu, (x,), (x,))


def test_empty_arrays():
    y, pull = jax.vjp(lambda x, w: wj.layer_norm(x, 6, w), jnp.zeros((0, 6)), jnp.ones(6))
    dx, dw = pull(y)
    assert (y.shape, dx.shape, dw.shape) == ((0, 6), (0, 6), (6,)) and (dw == 0).all()
    assert wj.relu(jnp.zeros((3, 0))).shape == (3, 0)
    assert (wj.matmul(jnp.ones((2, 0)), jnp.ones((0, 3))) == 0).all()


def test_targets_that_are_no_class_give_nan():
    loss = wj.cross_entropy(X, np.array([0, 6, -1, 5], np.int32), reduction="none")
    assert np.isnan(loss).tolist() == [False, True, True, False]


def test_what_is_given_as_numpy_or_numbers():
    assert (wj.relu(X) == np.maximum(X, 0)).all()
    assert float(wj.relu(-1.5)) == 0.0 and wj.relu(2.0).shape == ()


def test_a_call_that_was_forgotten_is_planned_again():
    function = jax.jit(lambda x, w: wj.layer_norm(wj.silu(x), 6, w))
    first = function(X, W)
    assert _native.planned_calls() > 0
    _native.forget_planned_calls()
    assert (function(X, W) == first).all()
    assert _native.planned_calls() == 2


def test_no_call_is_kept_for_ever():
    for length in range(1, 40):
        wj.relu(jnp.zeros(length))
    before = _native.planned_calls()
    for length in range(1, 40):
        wj.relu(jnp.ones(length))
    assert _native.planned_calls() == before


def test_remat_scan_and_loops():
    weights = jnp.stack([jnp.asarray(W), 2 * jnp.asarray(W)])

    def deep(layer, x):
        return jax.lax.scan(lambda x, w: (layer(x, w), None), x, weights)[0].sum()

    ours = jax.checkpoint(lambda x, w: wj.silu(wj.rms_norm(x, 6, w, 1e-5)))
    theirs = lambda x, w: jax.nn.silu(x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w)  # noqa: E731
    for f in (lambda layer: jax.jit(jax.grad(lambda x: deep(layer, x))), lambda layer: jax.grad(lambda x: deep(layer, x))):
        np.testing.assert_allclose(f(ours)(X), f(theirs)(X), atol=2e-5)


def test_threads_that_plan_and_run_do_not_wait_for_ever():
    """Threads trace, run, and make the calls forget what was planned, so that XLA's threads ask for the interpreter."""
    failed = []

    def work(seed):
        random = np.random.default_rng(seed)
        try:
            for round in range(12):
                x = random.standard_normal((3 + seed, 4 + round % 3)).astype(np.float32)
                y, dx = jax.jit(jax.value_and_grad(lambda x: wj.gelu_tanh(wj.softmax(x)).sum()))(x)
                _native.forget_planned_calls()
                want = jax.value_and_grad(lambda x: jax.nn.gelu(jax.nn.softmax(x), approximate=True).sum())(x)
                np.testing.assert_allclose(y, want[0], rtol=1e-5)
                np.testing.assert_allclose(dx, want[1], atol=1e-5)
        except BaseException as error:  # noqa: BLE001
            failed.append(error)

    threads = [threading.Thread(target=work, args=(seed,), daemon=True) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert not any(thread.is_alive() for thread in threads)
    assert not failed, failed


def resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="the system does not tell how much memory is resident")
def test_calls_leak_nothing():
    step = jax.jit(jax.grad(lambda x, w: wj.layer_norm(x, 6, w).sum(), (0, 1)))
    x, w = jnp.asarray(X), jnp.asarray(W)

    def many(count):
        for _ in range(count):
            found = step(x, w)
        jax.block_until_ready(found)
        gc.collect()

    many(1000)
    before, planned = resident(), _native.planned_calls()
    # Two calls each.
    many(5000)
    # A byte of an array for each call would be more.
    assert resident() - before < 4 << 20
    assert _native.planned_calls() == planned


EXPORTED = """
import sys
import jax
from jax import export
import numpy as np
import warpwright.jax
from warpwright import _native

with open(sys.argv[1], "rb") as file:
    program = export.deserialize(bytearray(file.read()))
assert _native.planned_calls() == 0
print(np.asarray(program.call(np.linspace(-2, 2, 24, dtype=np.float32).reshape(4, 6))).tolist())
"""


def test_an_exported_program_runs_in_another_process(tmp_path):
    from jax import export

    pytest.importorskip("flatbuffers", reason="JAX exports with flatbuffers")

    def function(x):
        return wj.rms_norm(wj.silu(x), 6, W)

    allowed = [export.DisabledSafetyCheck.custom_call("warpwright")]
    program = export.export(jax.jit(function), disabled_checks=allowed)(jax.ShapeDtypeStruct(X.shape, X.dtype))
    path = tmp_path / "program"
    path.write_bytes(program.serialize())
    run = subprocess.run(
        [sys.executable, "-c", EXPORTED, str(path)], capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stderr
    np.testing.assert_array_equal(np.array(eval(run.stdout), np.float32), np.asarray(function(X)))


def test_a_program_that_was_changed_is_refused():
    """A call whose results are not those of the function writes nothing."""

    def changed(shape):
        call = jax.ffi.ffi_call("warpwright", jax.ShapeDtypeStruct(shape, jnp.float32))
        return jax.jit(lambda x: call(x, call='["relu",[{"array":0}],{}]'))

    assert (changed((4, 6))(X) == np.maximum(X, 0)).all()
    with pytest.raises(jax.errors.JaxRuntimeError, match="results are"):
        jax.block_until_ready(changed((4, 5))(X))
    unknown = jax.ffi.ffi_call("warpwright", jax.ShapeDtypeStruct((4, 6), jnp.float32))
    for text in ('["no such function",[{"array":0}],{}]', "no text of a call", '["relu",[{"array":1}],{}]'):
        with pytest.raises(jax.errors.JaxRuntimeError, match="warpwright"):
            jax.block_until_ready(jax.jit(lambda x: unknown(x, call=text))(X))  # noqa: B023
    with pytest.raises(jax.errors.JaxRuntimeError, match="no attribute"):
        jax.block_until_ready(jax.jit(unknown)(X))
