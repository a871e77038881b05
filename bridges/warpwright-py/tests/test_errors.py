"""Refusals: which exception, and its data."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import numpy as np
import pytest

import warpwright as ww

X = np.ones((2, 3), dtype=np.float32)


def raised(kind, call):
    with pytest.raises(kind) as info:
        call()
    assert isinstance(info.value, ww.Error)
    return info.value


def test_shape():
    e = raised(ww.ShapeError, lambda: ww.silu_backward(X, X.T))
    assert (e.op, e.argument, e.expected, e.got) == ("silu_backward", "dy", (2, 3), (3, 2))
    assert isinstance(e, ValueError) and "silu_backward" in str(e) and "(3, 2)".strip("()") in str(e)
    e = raised(ww.ShapeError, lambda: ww.relu(X, out=np.empty(6, np.float32)))
    assert (e.argument, e.expected, e.got) == ("out", (2, 3), (6,))
    e = raised(ww.ShapeError, lambda: ww.relu(np.ones((1,) * 9, np.float32)))
    assert (e.argument, e.expected, e.got) == ("x", 8, 9)


def test_dtype():
    e = raised(ww.DtypeError, lambda: ww.relu(X.astype(np.int32)))
    assert (e.op, e.argument, e.expected, e.got) == ("relu", "x", ("f32", "f64", "f16", "bf16"), "i32")
    assert isinstance(e, TypeError)
    e = raised(ww.DtypeError, lambda: ww.swiglu(X, X.astype(np.float16)))
    assert (e.argument, e.expected, e.got) == ("up", "f32", "f16")
    for bad in (np.zeros(3, bool), np.zeros(3, complex), np.zeros(3, "S4"), X.astype(">f4"), np.zeros(2, "datetime64[s]")):
        raised(ww.DtypeError, lambda bad=bad: ww.relu(bad))
    e = raised(ww.DtypeError, lambda: ww.dequantize_nf4(*ww.quantize_nf4(X), dtype="int8"))
    assert e.got == "i8"
    raised(ww.DtypeError, lambda: ww.dequantize_nf4(*ww.quantize_nf4(X), dtype="no such type"))


def test_layout():
    fixed = X.copy()
    fixed.flags.writeable = False
    e = raised(ww.LayoutError, lambda: ww.relu(X, out=fixed))
    assert (e.op, e.argument) == ("relu", "out") and "read-only" in str(e)
    ww.relu(fixed)


def test_parameters():
    e = raised(ww.ParameterError, lambda: ww.quantize_nf4(X, 0))
    assert (e.op, e.argument, e.got) == ("quantize_nf4", "group_size", "0")
    e = raised(ww.ParameterError, lambda: ww.quantize_nf4(X, order="sideways"))
    assert (e.argument, e.got) == ("order", "sideways")
    e = raised(ww.ParameterError, lambda: ww.leaky_relu(X, float("inf")))
    assert e.argument == "negative_slope"
    images = np.zeros((1, 4, 2, 2), np.float32)
    for call in (
        lambda: ww.quantize_nf4(X, -1),
        lambda: ww.group_norm(images, -2),
        lambda: ww.local_response_norm(images, -3),
    ):
        e = raised(ww.ParameterError, call)
        assert int(e.got) < 0 and "not negative" in str(e)
    e = raised(ww.ShapeError, lambda: ww.layer_norm(np.zeros((3, 4), np.float32), 3))
    assert (e.argument, e.expected, e.got) == ("normalized_shape", (4,), (3,))


def test_arguments():
    for bad in (None, 3.0, "array", [1.0, 2.0], object()):
        e = raised(ww.ArgumentError, lambda bad=bad: ww.relu(bad))
        assert (e.op, e.argument, e.expected) == ("relu", "x", "array") and e.got == type(bad).__name__
    e = raised(ww.ArgumentError, lambda: ww.swiglu_backward(X, X, X, out=(X,)))
    assert (e.argument, e.expected, e.got) == ("out", 2, 1)
    raised(ww.ArgumentError, lambda: ww.relu(X, stream="main"))
    with pytest.raises(TypeError):
        ww.relu()


def refused_by_the_library():
    """Calls that the library refuses, not what Python's arguments go through before: by the name of the function."""
    wide, codes = X.astype(np.float64), np.ones((4, 8), np.int8)
    one, weights = np.ones((), np.float32), [(np.ones((8, 3), np.float32), np.ones((8, 2), np.float32))]
    steps, ends = np.ones((5, 2, 3), np.float32), np.array([1, 5], np.int32)
    y, _, _, reserve = ww.lstm(steps, weights, training=True)
    lengths = {"lengths": np.array([9, 1], np.int32)}
    q = np.ones((2, 3, 1, 16), np.float32)
    o, lse = ww.attention(q, q, q)
    key_lengths = {"key_lengths": np.array([9, 1], np.int32)}
    images = np.ones((2, 4, 3), np.float32)
    return {
        "matmul": lambda: ww.matmul(wide, wide.T, precision="tf32"),
        "grouped_matmul": lambda: ww.grouped_matmul(X, np.ones((2, 3, 4), np.float32), ends),
        "grouped_matmul_k": lambda: ww.grouped_matmul_k(wide, wide, np.array([2], np.int32)),
        "scaled_matmul": lambda: ww.scaled_matmul(codes, codes, one, one, "float64", scaling_a="tensor", scaling_b="tensor"),
        "quantize8": lambda: ww.quantize8(wide),
        "lstm": lambda: ww.lstm(steps, weights, **lengths),
        "lstm_backward": lambda: ww.lstm_backward(steps, weights, y, reserve, y, **lengths),
        "rnn": lambda: ww.rnn(steps, [(weights[0][0][:2], weights[0][1][:2])], **lengths),
        "attention": lambda: ww.attention(q, q, q, **key_lengths),
        "attention_backward": lambda: ww.attention_backward(q, q, q, o, lse, o, **key_lengths),
        "instance_norm": lambda: ww.instance_norm(images, eps=float("nan")),
        "group_norm_backward": lambda: ww.group_norm_backward(images, images, np.ones((2, 3), np.float32), np.ones((2, 3), np.float32), 3),
        "cross_entropy_backward": lambda: ww.cross_entropy_backward(
            X, np.array([0, 7]), np.ones(2, np.float32), np.ones(2, np.float32), one, one
        ),
        "leaky_relu_backward": lambda: ww.leaky_relu_backward(X, X, float("inf")),
        "dequantize_nf4": lambda: ww.dequantize_nf4(np.ones(3, np.uint8), np.ones(1, np.float32), 6, 0),
    }


@pytest.mark.parametrize("name", refused_by_the_library())
def test_errors_name_the_function_that_was_called(name):
    e = raised(ww.Error, refused_by_the_library()[name])
    assert e.op == name and str(e).startswith(f"{name}: "), e


def test_an_overlap_names_the_function_that_was_called():
    square = np.ones((3, 3), np.float32)
    e = raised(ww.LayoutError, lambda: ww.matmul(square, square, out=square))
    assert e.op == "matmul" and str(e).startswith("matmul: ")


def test_wrong_number_of_codes():
    codes, scales = ww.quantize_nf4(np.ones(128, np.float32))
    e = raised(ww.ShapeError, lambda: ww.dequantize_nf4(codes, scales, 200))
    assert (e.argument, e.expected, e.got) == ("codes", 100, 64)
    e = raised(ww.ShapeError, lambda: ww.dequantize_nf4(codes, scales, 128, 32))
    assert (e.argument, e.expected, e.got) == ("scales", 4, 2)
    raised(ww.ShapeError, lambda: ww.dequantize_nf4(codes, scales, (1 << 40, 1 << 40)))


def test_a_stream_needs_a_gpu():
    e = raised(ww.DeviceError, lambda: ww.relu(X, stream=1))
    assert isinstance(e, RuntimeError)


def test_devices_end_with_the_emulator():
    found = ww.devices()
    assert found[-1]["device"] == "emulator" and found[-1]["sm"] == 90
    assert all(d["device"].startswith("cuda:") for d in found[:-1])


def test_everything_is_documented():
    for name in ww.__all__:
        value = getattr(ww, name)
        if callable(value):
            assert value.__doc__, name
    assert ww.__version__.count(".") == 2


def test_stubs_have_the_parameters_of_the_functions():
    stubs = ast.parse((Path(ww.__file__).parent / "_native.pyi").read_text(encoding="utf-8"))
    functions = {node.name: node.args for node in stubs.body if isinstance(node, ast.FunctionDef)}
    # A function of a family is declared as an instance of the family's protocol.
    for node in stubs.body:
        if isinstance(node, ast.AnnAssign) and node.target.id != "__version__":
            (family,) = (c for c in stubs.body if isinstance(c, ast.ClassDef) and c.name == node.annotation.id)
            call = family.body[-1].args
            functions[node.target.id] = ast.arguments(call.posonlyargs, call.args[1:], None, call.kwonlyargs,
                                                      call.kw_defaults, None, call.defaults)
    classes = {node.name: node for node in stubs.body if isinstance(node, ast.ClassDef)}

    def options(args):
        """The names of a dictionary type, with those that it extends."""
        dictionary = classes.get(args.kwarg.annotation.slice.id) if args.kwarg else None
        while dictionary:
            yield from (line.target.id for line in dictionary.body)
            dictionary = classes.get(dictionary.bases[0].id)

    # Between the two halves of the package only.
    for name in (
        "forget_calls",
        "forget_planned_calls",
        "implement_operator",
        "operator_calls",
        "operator_error",
        "operator_failed",
        "plan_call",
        "planned_calls",
        "recorded",
        "recording_wanted",
        "repeat_first_calls",
        "torch_route",
        "xla_handlers",
    ):
        del functions[name]
    native = {name for name in ww.__all__ if inspect.isbuiltin(getattr(ww, name))}
    assert native == set(functions)
    for name, args in functions.items():
        found = inspect.signature(getattr(ww, name)).parameters.values()
        positional = [p for p in found if p.kind is not p.KEYWORD_ONLY]
        keyword = [p for p in found if p.kind is p.KEYWORD_ONLY]
        further = [args.vararg] if args.vararg else []
        assert [a.arg for a in (*args.args, *further)] == [p.name for p in positional], name
        further = set(options(args))
        assert further <= {p.name for p in keyword}, name
        keyword = [p for p in keyword if p.name not in further]
        assert [a.arg for a in args.kwonlyargs] == [p.name for p in keyword], name
        expected = [p.default for p in positional if p.default is not p.empty] + [p.default for p in keyword]
        defaults = [ast.literal_eval(d) for d in (*args.defaults, *args.kw_defaults)]
        # A negative default is an ellipsis in the signature.
        assert [d for d, e in zip(defaults, expected) if e is not ...] == [e for e in expected if e is not ...], name
