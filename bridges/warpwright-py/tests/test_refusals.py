"""Products that `warpwright.torch` refuses, as PyTorch does, and where the two differ."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import warpwright as ww  # noqa: E402
import warpwright.torch as wt  # noqa: E402

F = torch.nn.functional


def ones(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype)


def codes(*shape):
    return ones(*shape, dtype=torch.int8)


def floats8(*shape):
    return ones(*shape).to(torch.float8_e4m3fn)


double, one = torch.float64, torch.ones(())
PAIRS = {"int_mm": torch._int_mm, "linear": F.linear, "scaled_mm": torch._scaled_mm}
# Operator, arguments, options, error.
REFUSED = [
    ("matmul", (ones(), ones(3)), {}, ww.ShapeError),
    ("matmul", (ones(3), ones()), {}, ww.ShapeError),
    ("matmul", (ones(), ones(2, 2, 3, 3)), {}, ww.ShapeError),
    ("matmul", (ones(3), ones(4)), {}, ww.ShapeError),
    ("matmul", (ones(2, 3), ones(4)), {}, ww.ShapeError),
    ("matmul", (ones(3), ones(4, 2)), {}, ww.ShapeError),
    ("matmul", (ones(2, 3), ones(4, 2)), {}, ww.ShapeError),
    ("matmul", (ones(2, 4, 3), ones(3, 3, 4)), {}, ww.ShapeError),
    ("matmul", (ones(2, 4, 3), ones(1, 4, 3)), {}, ww.ShapeError),
    ("matmul", (ones(2, 3), ones(3, 2, dtype=double)), {}, ww.DtypeError),
    ("linear", (ones(8, 3), ones(4, 2)), {}, ww.ShapeError),
    ("linear", (ones(8, 3), ones(2)), {}, ww.ShapeError),
    ("linear", (ones(8, 3), ones(2, 4, 3)), {}, ww.ShapeError),
    ("linear", (ones(), ones(4, 3)), {}, ww.ShapeError),
    ("linear", (ones(8, 3), ones()), {}, ww.ShapeError),
    ("linear", (ones(8, 3), ones(4, 3), ones(3)), {}, ww.ShapeError),
    ("linear", (ones(8, 3), ones(4, 3, dtype=double)), {}, ww.DtypeError),
    ("linear", (ones(8, 3), ones(4, 3), ones(4, dtype=double)), {}, ww.DtypeError),
    ("addmm", (ones(3), ones(3), ones(3, 3)), {}, ww.ShapeError),
    ("addmm", (ones(3), ones(2, 3), ones(3)), {}, ww.ShapeError),
    ("addmm", (ones(3), ones(1, 2, 3), ones(3, 3)), {}, ww.ShapeError),
    ("addmm", (ones(4), ones(2, 3), ones(2, 4)), {}, ww.ShapeError),
    ("addmm", (ones(3), ones(2, 3), ones(3, 4)), {}, ww.ShapeError),
    ("addmm", (ones(1, 2, 4), ones(2, 3), ones(3, 4)), {}, ww.ShapeError),
    ("addmm", (ones(5, 4), ones(1, 3), ones(3, 4)), {}, ww.ShapeError),
    ("addmm", (ones(4, dtype=double), ones(2, 3), ones(3, 4)), {}, ww.DtypeError),
    ("addmm", (ones(4), ones(2, 3), ones(3, 4, dtype=double)), {}, ww.DtypeError),
    ("addmm", (ones(4), ones(2, 3), ones(3, 4)), {"beta": 1j}, TypeError),
    ("addmm", (ones(4), ones(2, 3), ones(3, 4)), {"alpha": 1j}, TypeError),
    ("baddbmm", (ones(4), ones(2, 3), ones(3, 4)), {}, ww.ShapeError),
    ("baddbmm", (ones(4), ones(2, 2, 3), ones(3, 4)), {}, ww.ShapeError),
    ("baddbmm", (ones(4), ones(2, 2, 3), ones(1, 3, 4)), {}, ww.ShapeError),
    ("baddbmm", (ones(4), ones(2, 2, 3), ones(2, 2, 4)), {}, ww.ShapeError),
    ("baddbmm", (ones(3, 2, 4), ones(2, 2, 3), ones(2, 3, 4)), {}, ww.ShapeError),
    ("baddbmm", (ones(4, dtype=double), ones(2, 2, 3), ones(2, 3, 4)), {}, ww.DtypeError),
    ("int_mm", (codes(16), codes(16, 8)), {}, ww.ShapeError),
    ("int_mm", (codes(8, 16), codes(8)), {}, ww.ShapeError),
    ("int_mm", (codes(1, 8, 16), codes(16, 8)), {}, ww.ShapeError),
    ("int_mm", (codes(8, 16), codes(24, 8)), {}, ww.ShapeError),
    ("int_mm", (ones(8, 16), ones(16, 8)), {}, ww.DtypeError),
    ("int_mm", (codes(8, 16), ones(16, 8)), {}, ww.DtypeError),
    ("scaled_mm", (floats8(32), floats8(16, 32).mT, one, one), {}, ww.ShapeError),
    ("scaled_mm", (floats8(1, 16, 32), floats8(16, 32).mT, one, one), {}, ww.ShapeError),
    ("scaled_mm", (floats8(16, 32), floats8(16), one, one), {}, ww.ShapeError),
    ("scaled_mm", (floats8(16, 32), floats8(16, 16).mT, one, one), {}, ww.ShapeError),
    ("scaled_mm", (floats8(16, 32), floats8(16, 32).mT, ones(15, 1), ones(1, 16)), {}, ww.ShapeError),
    ("scaled_mm", (floats8(16, 32), floats8(16, 32).mT, ones(16, 1), ones(16, 1)), {}, ww.ShapeError),
    ("scaled_mm", (floats8(16, 32), floats8(16, 32).mT, one, ones(3)), {}, ww.ShapeError),
    ("scaled_mm", (ones(16, 32), ones(16, 32).mT, one, one), {}, ww.DtypeError),
    ("scaled_mm", (floats8(16, 32), floats8(16, 32).mT, one, one, ones(3).bfloat16()), {}, ww.ShapeError),
]


@pytest.mark.parametrize("name, tensors, options, error", REFUSED)
def test_both_refuse(name, tensors, options, error, torch_device):
    tensors = [t.to(torch_device) for t in tensors]
    with pytest.raises(Exception):
        PAIRS.get(name, getattr(torch, name, None))(*tensors, **options)
    with pytest.raises(error) as info:
        getattr(wt, name)(*tensors, **options)
    e = info.value
    assert not isinstance(e, ww.Error) or (e.op == name and str(e).startswith(f"{name}: ")), e


ENDS = torch.tensor([1, 2], dtype=torch.int32)
# Operator, arguments, and of the error argument, expectation and what was found.
NAMED = [
    ("linear", (ones(8, 3), ones(4, 2)), ("weight", (4, 3), (4, 2))),
    ("linear", (ones(3), ones(4, 2)), ("weight", (4, 3), (4, 2))),
    ("linear", (ones(8, 3), ones(4, 3), ones(3)), ("bias", (4,), (3,))),
    ("linear", (ones(8, 3).int(), ones(4, 3).int()), ("x", ("f32", "f64", "f16", "bf16"), "i32")),
    ("addmm", (ones(4), ones(2, 3), ones(2, 4)), ("mat2", (3, 4), (2, 4))),
    ("baddbmm", (ones(4), ones(2, 2, 3), ones(1, 3, 4)), ("batch2", (2, 3, 4), (1, 3, 4))),
    ("int_mm", (codes(8, 16), codes(24, 8)), ("mat_b", (16, 8), (24, 8))),
    ("int_mm", (ones(8, 16), ones(16, 8)), ("mat_a", "i8", "f32")),
    ("scaled_mm", (floats8(16, 32), floats8(16, 16).mT, one, one), ("mat_b", (32, 16), (16, 16))),
    ("grouped_mm", (ones(4, 3), ones(2, 5, 6), ENDS), ("mat_b", (2, 3, 6), (2, 5, 6))),
    ("grouped_mm", (ones(2, 5, 6), ones(3, 4), ENDS), ("mat_a", (2, 5, 3), (2, 5, 6))),
    ("grouped_mm", (ones(4, 3), ones(2, 6), ENDS), ("mat_b", (3, 6), (2, 6))),
    ("grouped_mm", (ones(4, 3), ones(3, 3, 6), ENDS), ("offs", (3,), (2,))),
]


@pytest.mark.parametrize("name, tensors, expected", NAMED)
def test_errors_have_the_arguments_of_the_operator(name, tensors, expected, torch_device):
    with pytest.raises(ww.Error) as info:
        getattr(wt, name)(*(t.to(torch_device) for t in tensors))
    e = info.value
    assert (e.op, e.argument, e.expected, e.got) == (name, *expected)
    assert str(e).startswith(f"{name}: {e.argument} ")
    if isinstance(e, ww.ShapeError):
        assert str(e).endswith(f"has shape {list(e.got)}, expected {list(e.expected)}")


# What the two take differently, and why.
TAKEN_BY_PYTORCH = [
    # There are no kernels of integers wider than 8 bits, nor of complex numbers.
    ("matmul", (ones(2, 3).int(), ones(3, 2).int()), ww.DtypeError),
    ("addmm", (ones(2, dtype=torch.complex64), *(ones(2, 2, dtype=torch.complex64) for _ in range(2))), ww.DtypeError),
    # A bias is that of the columns: PyTorch documents no other.
    ("linear", (ones(8, 3), ones(4, 3), ones(1)), ww.ShapeError),
    ("linear", (ones(8, 3), ones(4, 3), ones(8, 4)), ww.ShapeError),
]


@pytest.mark.parametrize("name, tensors, error", TAKEN_BY_PYTORCH)
def test_what_pytorch_alone_takes_is_refused(name, tensors, error):
    PAIRS.get(name, getattr(torch, name, None))(*tensors)
    with pytest.raises(error):
        getattr(wt, name)(*tensors)


def test_a_weight_of_one_row_has_a_bias():
    """PyTorch refuses a bias beside a weight of one dimension if there are several rows."""
    x, weight, bias = torch.randn(8, 3), torch.randn(3), torch.randn(())
    with pytest.raises(RuntimeError):
        F.linear(x, weight, bias)
    torch.testing.assert_close(wt.linear(x, weight, bias), x @ weight + bias)


def test_scales_of_f64_are_refused():
    """PyTorch refuses them in some releases and takes them in others."""
    with pytest.raises(ww.DtypeError):
        wt.scaled_mm(floats8(16, 32), floats8(16, 32).mT, one.double(), one)
