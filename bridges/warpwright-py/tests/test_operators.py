"""Operators of PyTorch's dispatcher without Python: what they pass on, and that a call is repeated only where it is the same."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest
from conftest import torch_cuda

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import warpwright.torch as wt  # noqa: E402
from warpwright import _native  # noqa: E402
from warpwright._errors import ShapeError  # noqa: E402

TYPES = {
    "x": "Tensor",
    "w": "Tensor?",
    "more": "Tensor[]",
    "n": "SymInt",
    "shape": "SymInt[]",
    "eps": "float",
    "scale": "float?",
    "flag": "bool",
    "mask": "bool[]",
    "mode": "str",
    "name": "str?",
    "dtype": "ScalarType",
    "factors": "float[]?",
}


@pytest.fixture(scope="module")
def passed() -> Any:
    """An operator of every type of argument that there is, on the CPU; what came through to Python; the next exception there."""
    library = torch.library.Library("warpwright_test", "FRAGMENT")
    schema = f"({', '.join(f'{kind} {name}' for name, kind in TYPES.items())}) -> (Tensor, Tensor)"
    came: list[Any] = []
    errors: list[Exception] = []

    def in_python(*arguments: Any) -> Any:
        came.append(arguments)
        if errors:
            _native.operator_failed(errors.pop())
            return torch.empty(0), torch.empty(0)
        return arguments[0] * 2, arguments[0] + 1

    library.define("mixed" + schema)
    library.define("mixed_in_python" + schema)
    library.impl("mixed_in_python", in_python, "CPU")
    made = _native.implement_operator(
        "warpwright_test", "mixed", list(TYPES.values()), 2, "warpwright_test::mixed_in_python", "CPU"
    )
    if not made:
        pytest.skip(f"PyTorch {torch.__version__} has no stable C interface for this")
    yield torch.ops.warpwright_test.mixed.default, came, errors
    library._destroy()


@pytest.mark.parametrize(
    "rest",
    [
        (None, [], 0, [], 0.0, None, False, [], "", None, torch.float32, None),
        (torch.ones(2), [torch.ones(1)], -5, [3, 4], 1e-5, 0.5, True, [True, False, True], "mean", "tanh", torch.bfloat16, [0.5]),
        (None, [torch.ones(3), torch.zeros(2, 2)], 2**40, [-1], -0.0, 0.0, True, [False], "ä" * 30, "", torch.int64, []),
    ],
    ids=["nothing", "something", "edges"],
)
def test_arguments_pass_as_they_are(passed: Any, rest: Any) -> None:
    operator, came, _ = passed
    x = torch.arange(6.0).reshape(2, 3).t()
    twice, more = operator(x, *rest)
    assert torch.equal(twice, x * 2) and torch.equal(more, x + 1)
    got = came.pop()
    assert got[0].data_ptr() == x.data_ptr() and got[0].stride() == x.stride()
    for one, other in zip(got[1:], rest):
        if isinstance(other, torch.Tensor):
            assert one.data_ptr() == other.data_ptr()
        elif isinstance(other, list) and other and isinstance(other[0], torch.Tensor):
            assert [t.data_ptr() for t in one] == [t.data_ptr() for t in other]
        else:
            assert one == other and type(one) is type(other)


def test_an_exception_keeps_its_class(passed: Any) -> None:
    operator, _, errors = passed
    rest = (None, [], 0, [], 0.0, None, False, [], "", None, torch.float32, None)
    error = ShapeError("op: x has shape [2], expected [3]", op="op", argument="x", expected=(3,), got=(2,))
    errors.append(error)
    with pytest.raises(RuntimeError, match=r"op: x has shape \[2\], expected \[3\]") as raised:
        operator(torch.ones(2), *rest)
    assert _native.operator_error(raised.value) is error
    assert _native.operator_error(raised.value) is raised.value, "it is told once"
    # It is over with the next call, and what tells of something else is left as it is.
    errors.append(error)
    with pytest.raises(RuntimeError):
        operator(torch.ones(2), *rest)
    other = RuntimeError("something else")
    assert _native.operator_error(other) is other
    assert torch.equal(operator(torch.ones(2), *rest)[0], torch.full((2,), 2.0))


def test_an_exception_is_let_go_with_the_interpreter_held(passed: Any) -> None:
    operator, _, errors = passed
    rest = (None, [], 0, [], 0.0, None, False, [], "", None, torch.float32, None)
    # Below a function of the native module, which holds the interpreter, while the operator does not.
    entry = _native.Entry(1, operator, operator, operator)
    for _ in range(50):
        errors.append(ShapeError("no", op="op", argument="x", expected=(3,), got=(2,)))
        with pytest.raises(RuntimeError, match="no"):
            operator(torch.ones(2), *rest)
        assert torch.equal(entry(torch.ones(2), *rest)[0], torch.full((2,), 2.0))
    errors.append(ShapeError("no", op="op", argument="x", expected=(3,), got=(2,)))
    with pytest.raises(ShapeError, match="no"):
        entry(torch.ones(2), *rest)


def test_nothing_is_kept(passed: Any) -> None:
    operator, came, errors = passed
    for fails in (False, True):
        tensors = [torch.ones(100) for _ in range(4)]
        watched = [weakref.ref(t.untyped_storage()) for t in tensors]
        if fails:
            errors.append(ValueError("no"))
        x, w, *more = tensors
        try:
            found = operator(x, w, more, 1, [1], 1.0, 1.0, True, [True], "a", "b", torch.float32, [1.0])
            watched += [weakref.ref(t.untyped_storage()) for t in found]
            del found
        except RuntimeError:
            assert fails
        came.clear()
        del tensors, x, w, more
        gc.collect()
        assert all(t() is None for t in watched)


def test_types_without_a_place_are_refused() -> None:
    made = [
        _native.implement_operator("warpwright_test", "never", [kind], 1, "warpwright_test::never", "CPU")
        for kind in ("Tensor(a!)", "Scalar", "Device", "Dict(str, int)")
    ]
    assert made == [False] * 4


def _cuda() -> Any:
    torch = torch_cuda()
    if not _native.implement_operator("warpwright_test", "never", [], 0, "warpwright_test::never", "CPU"):
        pytest.skip(f"PyTorch {torch.__version__} has no stable C interface for this")
    return torch


def _norm(x: Any, w: Any, b: Any, eps: float = 1e-5) -> Any:
    return torch.ops.warpwright._layer_norm(x, w, b, [x.shape[-1]], eps)


def _reference(x: Any, w: Any, b: Any, eps: float = 1e-5) -> Any:
    wide = [t.double().cpu() for t in (x, w, b)]
    return torch.nn.functional.layer_norm(wide[0], [x.shape[-1]], *wide[1:], eps)


def _close(y: Any, reference: Any) -> bool:
    return float((y.double().cpu() - reference).abs().max()) < 1e-4


def test_a_call_is_repeated_on_other_tensors() -> None:
    _cuda()
    w, b = (torch.randn(96, device="cuda") for _ in range(2))
    before = _native.operator_calls()
    found = []
    for _ in range(4):
        x = torch.randn(40, 96, device="cuda")
        found.append((_norm(x, w, b), _reference(x, w, b)))
    assert all(_close(y[0], reference) for y, reference in found)
    assert len({y.data_ptr() for results, _ in found for y in results}) == 12, "results are new"
    assert _native.operator_calls() == (before[0] + 1, before[1])


@pytest.mark.parametrize("change", ["rows", "dtype", "stride", "alignment", "parameter", "absent"])
def test_calls_of_another_kind_are_told_apart(change: str) -> None:
    _cuda()
    w, b = (torch.randn(64, device="cuda") for _ in range(2))
    x = torch.randn(33, 64, device="cuda")
    for _ in range(2):
        assert _close(_norm(x, w, b)[0], _reference(x, w, b))
    eps = 1e-5
    if change == "rows":
        x = torch.randn(32, 64, device="cuda")
    elif change == "dtype":
        x, w, b = x.double(), w.double(), b.double()
    elif change == "stride":
        x = torch.randn(64, 33, device="cuda").t()
    elif change == "alignment":
        x = torch.randn(33 * 64 + 1, device="cuda")[1:].view(33, 64)
    elif change == "parameter":
        eps = 0.5
    else:
        b = None
    for _ in range(3):
        y = torch.ops.warpwright._layer_norm(x, w, b, [64], eps)[0]
        bias = torch.zeros_like(w) if b is None else b
        assert _close(y, _reference(x, w, bias, eps))


def test_tensors_that_share_memory() -> None:
    _cuda()
    packed = torch.randn(64, 256, device="cuda")
    # One tensor twice, halves of rows, and two tensors: three kinds of call on the same shapes.
    cases = [lambda: (packed[:, :128], packed[:, :128]), lambda: packed.chunk(2, 1), lambda: packed.flip(0).chunk(2, 1)]
    for _ in range(3):
        for case in cases:
            gate, up = (t.contiguous() if _ == 2 else t for t in case())
            y = torch.ops.warpwright._swiglu(gate, up)
            assert _close(y, (torch.nn.functional.silu(gate.double()) * up.double()).cpu())
            packed.add_(0.1)


def test_tensors_that_begin_together() -> None:
    """An empty tensor, or one that two others overlap, does not stand for the one that begins where it does."""
    _cuda()

    def native(a: Any, b: Any, c: Any) -> Any:
        return _native.relu(c)

    repeated = _native.Repeated(native)
    for _ in range(3):
        x, other = torch.randn(64, device="cuda"), torch.randn(64, device="cuda")
        whole, empty = x[:48], x[:0]
        assert torch.equal(repeated(empty, other, whole), whole.relu())
        assert torch.equal(repeated(other[:0], other, whole), whole.relu())
        # `whole` begins where the second does, which lies elsewhere in the next call.
        assert torch.equal(repeated(x[32:], x[:16], whole), whole.relu())
        assert torch.equal(repeated(x[32:], other[:16], whole), whole.relu())


def test_streams_threads_and_graphs() -> None:
    _cuda()
    w, b = (torch.randn(128, device="cuda") for _ in range(2))
    x = torch.randn(512, 128, device="cuda")
    expected = _norm(x, w, b)[0]
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        # A stream of its own works while the default one is held up.
        y = _norm(x, w, b)[0]
    side.synchronize()
    assert torch.equal(y, expected)
    found: list[Any] = []

    def many() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            results = [_norm(x, w, b)[0] for _ in range(200)]
            torch.cuda.current_stream().synchronize()
        found.append(all(torch.equal(y, expected) for y in results))

    threads = [threading.Thread(target=many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 4
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = _norm(x, w, b)[0]
    x.mul_(3).add_(1)
    graph.replay()
    torch.cuda.synchronize()
    assert _close(y, _reference(x, w, b))


def test_direct_calls_are_repeated() -> None:
    _cuda()
    calls = []

    def native(x: Any, scale: Any, more: Any, flag: bool) -> Any:
        calls.append(1)
        y = _native.softmax(x, -1, scale=scale)
        return (y, None, _native.relu(more[0])) if flag else y

    repeated = _native.Repeated(native)
    for _ in range(3):
        x, more = torch.randn(8, 32, device="cuda"), [torch.randn(4, device="cuda")]
        y, absent, z = repeated(x, 0.5, more, True)
        assert absent is None and _close(y, torch.softmax(x.double() * 0.5, -1).cpu()) and torch.equal(z, more[0].relu())
        assert _close(repeated(x, 2.0, more, False), torch.softmax(x.double() * 2, -1).cpu())
    assert len(calls) == 2 and repeated.counts() == (2, 0)
    # What cannot be told apart is not repeated, nor is what lies on the host.
    repeated(x, 0.5, (more[0],), True)
    assert len(calls) == 3
    for _ in range(2):
        repeated(x.cpu(), 0.5, more, False)
    assert len(calls) == 5


@pytest.mark.parametrize("does", ["copies", "reads", "returns an argument", "returns twice", "writes on the host"])
def test_calls_that_do_more_are_not_repeated(does: str) -> None:
    _cuda()
    calls = []

    def native(x: Any) -> Any:
        calls.append(1)
        if does == "copies":
            return _native.relu(x.clone())
        y = _native.relu(x)
        if does == "reads":
            return y * float(x.sum())
        if does == "returns an argument":
            return y, x
        if does == "returns twice":
            return y, y
        return y, y.cpu()

    repeated = _native.Repeated(native)
    for count in range(1, 4):
        x = torch.randn(16, device="cuda")
        found = repeated(x)
        found = found if isinstance(found, tuple) else (found,)
        expected = x.relu() * (x.sum() if does == "reads" else 1)
        assert torch.allclose(found[0], expected) and len(calls) == count
    assert repeated.counts() == (0, 1)


def test_errors_of_eager_calls_have_their_class() -> None:
    _cuda()
    x, w = torch.randn(4, 8, device="cuda"), torch.randn(9, device="cuda")
    for _ in range(2):
        with pytest.raises(ShapeError, match=r"weight has shape \[9\], expected \[8\]"):
            wt.layer_norm(x, (8,), w)
    assert wt.layer_norm(x, (8,)).shape == (4, 8)


def test_compiled_code_repeats_calls() -> None:
    _cuda()

    @torch.compile
    def step(x: Any, w: Any, b: Any) -> Any:
        return wt.layer_norm(wt.silu(x) + 1, (64,), w, b)

    w, b = (torch.randn(64, device="cuda", requires_grad=True) for _ in range(2))
    for _ in range(3):
        x = torch.randn(32, 64, device="cuda", requires_grad=True)
        y = step(x, w, b)
        leaves = [t.detach().double().requires_grad_() for t in (x, w, b)]
        wide = torch.nn.functional.layer_norm(torch.nn.functional.silu(leaves[0]) + 1, (64,), *leaves[1:])
        dy = torch.randn_like(y)
        found = torch.autograd.grad(y, (x, w, b), dy)
        expected = torch.autograd.grad(wide, leaves, dy.double())
        assert _close(y.detach(), wide.detach().cpu())
        assert all(_close(a, b.cpu()) for a, b in zip(found, expected))
