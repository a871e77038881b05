"""8-bit quantization and products of 8-bit matrices: numpy arrays in the emulator, and `warpwright.torch` against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import distance, torch_cuda

import warpwright as ww

SCALINGS = ["tensor", "row", "1x128", "128x128"]


def spread(scales, scaling, shape):
    """Scales, one for each element of a matrix."""
    rows, cols = shape
    if scaling == "tensor":
        return np.full(shape, scales[0])
    if scaling == "row":
        return np.broadcast_to(scales[:, None], shape)
    blocks = scales.T if scaling == "1x128" else np.repeat(scales, 128, axis=0)[:rows]
    return np.repeat(blocks, 128, axis=1)[:, :cols]


@pytest.mark.parametrize("scaling", SCALINGS)
def test_integers_come_back(random, scaling):
    x = random.standard_normal((150, 200)).astype(np.float32)
    codes, scales = ww.quantize8(x, "int8", scaling)
    assert codes.dtype == np.int8 and scales.dtype == np.float32
    wide = spread(scales, scaling, x.shape)
    assert np.all(np.abs(codes * wide - x) <= 0.501 * wide)
    assert np.array_equal(ww.dequantize8(codes, scales, "float32", scaling), codes * wide)


@pytest.mark.parametrize("scaling_a", SCALINGS)
@pytest.mark.parametrize("scaling_b", SCALINGS)
def test_products_are_those_of_what_codes_stand_for(random, scaling_a, scaling_b):
    a, b = (random.standard_normal(shape).astype(np.float32) for shape in ((70, 144), (40, 144)))
    bias = random.standard_normal(40).astype(np.float32)
    qa, sa = ww.quantize8(a, "int8", scaling_a)
    qb, sb = ww.quantize8(b, "int8", scaling_b)
    left = qa * spread(sa, scaling_a, a.shape).astype(np.float64)
    right = qb * spread(sb, scaling_b, b.shape).astype(np.float64)
    options = {"scaling_a": scaling_a, "scaling_b": scaling_b}
    y = ww.scaled_matmul(qa, qb, sa, sb, "float32", **options)
    assert y.shape == (70, 40) and distance(y, left @ right.T) < 1e-6
    y = ww.scaled_matmul(qa, qb, sa, sb, np.float32, bias=bias, activation="relu", **options)
    assert distance(y, np.maximum(left @ right.T + bias, 0)) < 1e-6


def test_integers_are_exact(random):
    a, b = (random.integers(-128, 128, shape, dtype=np.int8) for shape in ((2, 9, 80), (33, 80)))
    expected = a.astype(np.int32) @ b.T.astype(np.int32)
    assert np.array_equal(ww.int8_matmul(a, b), expected) and ww.int8_matmul(a, b).dtype == np.int32
    assert np.array_equal(ww.int8_matmul(a[:, ::-1], b[::-1]), expected[:, ::-1, ::-1])


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"a": np.zeros((4, 16), np.float32)}, ww.DtypeError, "a"),
        ({"b": np.zeros((5, 15), np.int8)}, ww.ShapeError, "b"),
        ({"scale_a": np.ones(3, np.float32)}, ww.ShapeError, "scale_a"),
        ({"scale_b": np.ones(5)}, ww.DtypeError, "scale_b"),
        ({"dtype": "float64"}, ww.DtypeError, "y"),
        ({"scaling_a": "column"}, ww.ParameterError, "'tensor', 'row', '1x128' or '128x128'"),
        ({"accumulation": "slow"}, ww.ParameterError, "'promoted' or 'fast'"),
        ({"bias": np.ones(4, np.float32)}, ww.ShapeError, "bias"),
    ],
)
def test_errors(change, error, text):
    arguments = {
        "a": np.zeros((4, 16), np.int8),
        "b": np.zeros((5, 16), np.int8),
        "scale_a": np.ones(4, np.float32),
        "scale_b": np.ones(5, np.float32),
        "dtype": "float32",
    }
    with pytest.raises(error, match=text):
        ww.scaled_matmul(**{**arguments, **change})


def test_formats_have_names():
    with pytest.raises(ww.ParameterError, match="'e4m3', 'e5m2' or 'int8'"):
        ww.quantize8(np.ones((2, 2), np.float32), "fp8")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_scaled_mm(device):
    torch = torch_cuda() if device == "cuda" else pytest.importorskip("torch", reason="PyTorch is not installed")
    import warpwright.torch as wt

    torch.manual_seed(5)
    m, n, k = 80, 48, 256
    a, b = (torch.randn(rows, k, device=device).mul_(4).to(torch.float8_e4m3fn) for rows in (m, n))
    exact = a.double() @ b.double().mT

    def scales(*shape):
        return torch.rand(shape, device=device) + 0.5

    def wide(scale, rows):
        blocks = scale.repeat_interleave(-(-rows // scale.shape[0]), 0)[:rows]
        return blocks.repeat_interleave(-(-k // scale.shape[1]), 1)[:, :k].double()

    for shape_a, shape_b in (
        ((1, 1), (1, 1)),
        ((m, 1), (n, 1)),
        ((m, 2), (1, 2)),
        ((m, 2), (n, 2)),
        ((1, 2), (n, 1)),
    ):
        sa, sb = scales(*shape_a), scales(*shape_b)
        want = (a.double() * wide(sa, m)) @ (b.double() * wide(sb, n)).mT
        for fast in (False, True):
            y = wt.scaled_mm(a, b.mT, sa, sb.mT, out_dtype=torch.bfloat16, use_fast_accum=fast)
            assert y.dtype == torch.bfloat16 and float((y.double() - want).norm() / want.norm()) < 3e-3
    one = torch.ones((), device=device)
    bias = torch.randn(n, device=device, dtype=torch.float16)
    y = wt.scaled_mm(a, b.mT, one, one, bias=bias, out_dtype=torch.float16)
    assert float((y.double() - exact - bias.double()).norm() / exact.norm()) < 1e-3
    compiled = torch.compile(wt.scaled_mm, fullgraph=True, backend="eager")
    assert torch.equal(compiled(a, b.mT, one, one, bias=bias, out_dtype=torch.float16), y)
    with pytest.raises(ww.ShapeError, match="expected one of") as info:
        wt.scaled_mm(a, b.mT, one, scales(1, 3))
    assert (info.value.argument, info.value.got) == ("scale_b", (3, 1))
    with pytest.raises(ww.ShapeError, match="mat_a has 3 dimensions, expected 2"):
        wt.scaled_mm(a[None], b.mT, one, one)
    if device == "cuda":
        sa, sb = scales(m, 1), scales(1, n)
        theirs = torch._scaled_mm(a, b.mT, sa, sb, out_dtype=torch.bfloat16)
        ours = wt.scaled_mm(a, b.mT, sa, sb)
        assert float((ours.double() - theirs.double()).norm() / theirs.double().norm()) < 3e-3


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_int_mm(device):
    torch = torch_cuda() if device == "cuda" else pytest.importorskip("torch", reason="PyTorch is not installed")
    import warpwright.torch as wt

    a, b = (torch.randint(-128, 128, shape, dtype=torch.int8, device=device) for shape in ((33, 72), (40, 72)))
    y = wt.int_mm(a, b.mT)
    assert torch.equal(y.cpu(), a.cpu().int() @ b.cpu().int().mT)
    compiled = torch.compile(wt.int_mm, fullgraph=True, backend="eager")
    assert torch.equal(compiled(a, b.mT), y)
    with pytest.raises(ww.ShapeError, match="mat_b has 1 dimensions, expected 2"):
        wt.int_mm(a, b[0])
    if device == "cuda":
        assert torch.equal(torch._int_mm(a, b.mT), y)


@pytest.mark.parametrize("m, k, n", [(1, 1, 1), (17, 8, 16), (32, 40, 24), (5, 0, 3), (0, 8, 8), (8, 8, 0), (3, 130, 9)])
def test_int_mm_of_every_layout(m, k, n, torch_device):
    torch = pytest.importorskip("torch")
    import warpwright.torch as wt

    a, b = (torch.randint(-128, 128, shape, dtype=torch.int8) for shape in ((m, k), (k, n)))
    expected = (a.long() @ b.long()).int()
    assert torch.equal(torch._int_mm(a, b), expected)
    for x in (a, a.mT.contiguous().mT):
        for y in (b, b.mT.contiguous().mT):
            assert torch.equal(wt.int_mm(x.to(torch_device), y.to(torch_device)).cpu(), expected)
