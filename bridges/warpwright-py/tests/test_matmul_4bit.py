"""Products with 4-bit weights: numpy arrays in the emulator, and `warpwright.torch` against PyTorch."""

from __future__ import annotations

import json

import numpy as np
import pytest
from conftest import distance

import warpwright as ww

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=np.float64)


@pytest.fixture
def weight(random):
    return random.standard_normal((24, 64)).astype(np.float32)


@pytest.mark.parametrize("format", ["nf4", "fp4"])
@pytest.mark.parametrize("rows", [(), (3,), (2, 20)])
def test_products_are_those_of_what_codes_stand_for(random, weight, format, rows):
    codes, scales = getattr(ww, f"quantize_{format}")(weight, 64)
    numbers = getattr(ww, f"dequantize_{format}")(codes, scales, weight.shape, 64).astype(np.float64)
    x = random.standard_normal((*rows, 64)).astype(np.float32)
    bias = random.standard_normal(24).astype(np.float32)
    y = ww.matmul_4bit(x, codes, scales, weight.shape, format, bias=bias)
    assert y.shape == (*rows, 24) and distance(y, x @ numbers.T + bias) < 1e-6
    dy = random.standard_normal((*rows, 24)).astype(np.float32)
    dx = ww.matmul_4bit_backward(dy, codes, scales, weight.shape, format)
    assert dx.shape == x.shape and distance(dx, dy @ numbers) < 1e-6


def test_half_types_are_rounded_once(random, weight):
    codes, scales = ww.quantize_nf4(weight, 64)
    numbers = ww.dequantize_nf4(codes, scales, weight.shape, 64).astype(np.float64)
    x = random.standard_normal((5, 64)).astype(np.float16)
    assert distance(ww.matmul_4bit(x, codes, scales, weight.shape), x @ numbers.T) < 4e-4


def test_nested_scales(random, weight):
    codes, scales = ww.quantize_nf4(weight, 64)
    nested, absmax, offset = ww.quantize_nested(scales)
    back = ww.dequantize_nested(nested, absmax, offset)
    numbers = ww.dequantize_nf4(codes, back, weight.shape, 64).astype(np.float64)
    x = random.standard_normal((2, 64)).astype(np.float32)
    y = ww.matmul_4bit(x, codes, nested, weight.shape, nested_absmax=absmax, offset=offset)
    assert distance(y, x @ numbers.T) < 1e-6


@pytest.mark.parametrize("asymmetric", [False, True])
def test_integers_in_groups_of_a_row(random, asymmetric):
    q = random.integers(0, 16, (10, 90), dtype=np.uint8)
    scales = random.random((10, 3)).astype(np.float16) + np.float16(0.5)
    zeros = random.integers(0, 16, (10, 3), dtype=np.uint8) if asymmetric else np.full((10, 3), 8, np.uint8)
    numbers = (q.astype(np.float64) - np.repeat(zeros, 32, 1)[:, :90]) * np.repeat(scales, 32, 1)[:, :90]
    codes = q[:, ::2] | q[:, 1::2] << 4
    x = random.standard_normal((3, 90)).astype(np.float32)
    form = {"format": "int4_asymmetric", "zero_points": zeros} if asymmetric else {"format": "int4"}
    y = ww.matmul_4bit(x, codes, scales, (10, 90), group_size=32, **form)
    assert distance(y, x @ numbers.T) < 1e-6


@pytest.mark.parametrize("rows", [3, 12])
def test_integers_in_groups_of_any_columns(random, rows):
    q = random.integers(0, 16, (10, 96), dtype=np.uint8)
    scales = random.random((10, 3)).astype(np.float16) + np.float16(0.5)
    order = random.permutation(np.repeat(np.arange(3, dtype=np.int32), 32))
    numbers = (q.astype(np.float64) - 8) * scales.astype(np.float64)[:, order]
    x = random.standard_normal((rows, 96)).astype(np.float32)
    weight = {"codes": q[:, ::2] | q[:, 1::2] << 4, "scales": scales, "shape": (10, 96), "format": "int4", "group_size": 32}
    assert distance(ww.matmul_4bit(x, **weight, group_index=order), x @ numbers.T) < 1e-6
    dy = random.standard_normal((rows, 10)).astype(np.float32)
    assert distance(ww.matmul_4bit_backward(dy, **weight, group_index=order), dy @ numbers) < 1e-6
    # One that no group has stands for the last.
    order[order == 2] = -1
    assert distance(ww.matmul_4bit(x, **weight, group_index=order), x @ numbers.T) < 1e-6
    torch = pytest.importorskip("torch")
    from warpwright import torch as wt

    tensors = {name: torch.from_numpy(weight[name]) for name in ("codes", "scales")}
    x = torch.from_numpy(x).requires_grad_()
    y = wt.linear_4bit(x, **{**weight, **tensors}, group_index=torch.from_numpy(order))
    assert distance(y.detach().numpy(), x.detach().numpy() @ numbers.T) < 1e-6
    (dx,) = torch.autograd.grad(y, x, torch.from_numpy(dy))
    assert distance(dx.numpy(), dy @ numbers) < 1e-6


def test_mxfp4(random):
    q = random.integers(0, 16, (8, 96), dtype=np.uint8)
    exponents = random.integers(120, 130, (8, 3), dtype=np.uint8)
    numbers = np.where(q < 8, 1, -1) * E2M1[q & 7] * np.repeat(2.0 ** (exponents.astype(int) - 127), 32, 1)
    x = random.standard_normal((4, 96)).astype(np.float32)
    y = ww.matmul_4bit(x, q[:, ::2] | q[:, 1::2] << 4, exponents, (8, 96), "mxfp4")
    assert distance(y, x @ numbers.T) < 1e-6


def nvfp4(random, n, k):
    """Codes, scales as bits of e4m3, what both stand for, and the scale of the whole that ModelOpt's files have."""
    q = random.integers(0, 16, (n, k), dtype=np.uint8)
    bits = random.integers(0, 0x7F, (n, -(-k // 16)), dtype=np.uint8)
    exponents, mantissas = bits >> 3, bits & 7
    scales = np.where(exponents > 0, (8 + mantissas) * 2.0 ** (exponents.astype(int) - 10), mantissas * 2.0**-9)
    numbers = np.where(q < 8, 1, -1) * E2M1[q & 7] * np.repeat(scales, 16, 1)[:, :k]
    padded = np.pad(q, ((0, 0), (0, k % 2)))
    return padded[:, ::2] | padded[:, 1::2] << 4, bits, numbers, np.array([0.7 / 2688], np.float32)


@pytest.mark.parametrize("k", [96, 41])
def test_nvfp4(random, k):
    codes, bits, numbers, scale = nvfp4(random, 8, k)
    x = random.standard_normal((4, k)).astype(np.float32)
    numbers = numbers * scale.astype(np.float64)
    types = pytest.importorskip("ml_dtypes")
    for scales in (bits, bits.view(types.float8_e4m3fn)):
        y = ww.matmul_4bit(x, codes, scales, (8, k), "nvfp4", tensor_scale=scale)
        assert distance(y, x @ numbers.T) < 1e-6
    dy = random.standard_normal((3, 8)).astype(np.float32)
    dx = ww.matmul_4bit_backward(dy, codes, bits, (8, k), "nvfp4", tensor_scale=scale)
    assert distance(dx, dy @ numbers) < 1e-6


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"tensor_scale": None}, ww.ArgumentError, "tensor_scale"),
        ({"tensor_scale": np.ones(2, np.float32)}, ww.ShapeError, "tensor_scale has 2 elements, expected 1"),
        ({"tensor_scale": np.ones(1, np.float16)}, ww.DtypeError, "tensor_scale"),
        ({"scales": np.ones((8, 6), np.float32)}, ww.DtypeError, "scales"),
        ({"scales": np.ones((8, 3), np.uint8)}, ww.ShapeError, "scales has 24 elements, expected 48"),
        ({"format": "mxfp4", "scales": np.ones((8, 3), np.uint8)}, ww.Error, "tensor_scale"),
    ],
)
def test_what_is_refused_of_nvfp4(random, change, error, text):
    codes, bits, _, scale = nvfp4(random, 8, 96)
    given = {"x": np.zeros((2, 96), np.float32), "codes": codes, "scales": bits, "shape": (8, 96), "format": "nvfp4"}
    with pytest.raises(error, match=text):
        ww.matmul_4bit(**{**given, "tensor_scale": scale, **change})


def test_nvfp4_of_both_kinds_of_files(random):
    torch = pytest.importorskip("torch")
    from warpwright import torch as wt

    codes, bits, numbers, scale = nvfp4(random, 24, 64)
    codes, scales = torch.from_numpy(codes), torch.from_numpy(bits).view(torch.float8_e4m3fn)
    numbers = torch.from_numpy(numbers * scale.astype(np.float64)).float()
    x = torch.randn(3, 64, requires_grad=True)
    bias = torch.randn(24, requires_grad=True)
    global_scale = 1 / torch.from_numpy(scale)
    for factor in (torch.from_numpy(scale), 1 / global_scale):
        y = wt.linear_4bit(x, codes, scales, (24, 64), bias, format="nvfp4", tensor_scale=factor)
        assert torch.allclose(y, x @ numbers.T + bias, rtol=1e-4, atol=1e-5)
        dx, dbias = torch.autograd.grad(y.sum(), (x, bias))
        assert torch.allclose(dx, numbers.sum(0).expand_as(x), rtol=1e-4, atol=1e-5)
        assert torch.equal(dbias, torch.full((24,), 3.0))


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"format": "nf5"}, ww.ParameterError, "format is 'nf5'"),
        ({"shape": (24, 63)}, ww.ShapeError, "codes has 768 elements, expected 756|scales has"),
        ({"shape": (24,)}, ww.ShapeError, "shape"),
        ({"x": np.zeros((2, 63), np.float32)}, ww.ShapeError, "x has shape"),
        ({"x": np.zeros((2, 64), np.float64)}, ww.DtypeError, "x"),
        ({"group_size": 32}, ww.ShapeError, "scales has 24 elements, expected 48"),
        ({"bias": np.zeros(23, np.float32)}, ww.ShapeError, "bias"),
        ({"codes": np.zeros(768, np.int8)}, ww.DtypeError, "codes"),
        ({"group_index": np.zeros(64, np.int32)}, ww.ParameterError, "group_index"),
        ({"group_index": np.zeros(63, np.int32)}, ww.ShapeError, "group_index has 63 elements, expected 64"),
        ({"group_index": np.zeros(64, np.int64)}, ww.DtypeError, "group_index"),
    ],
)
def test_what_is_refused(weight, change, error, text):
    codes, scales = ww.quantize_nf4(weight, 64)
    given = {"x": np.zeros((2, 64), np.float32), "codes": codes, "scales": scales, "shape": weight.shape, **change}
    with pytest.raises(error, match=text):
        ww.matmul_4bit(**given)


def test_a_layer_of_pytorch():
    torch = pytest.importorskip("torch")
    from warpwright import torch as wt

    torch.manual_seed(0)
    linear = torch.nn.Linear(64, 24)
    for options in ({}, {"quant_type": "fp4", "compress_statistics": False, "blocksize": 128}):
        layer = wt.nn.Linear4bit.from_linear(linear, **options)
        x = torch.randn(3, 64, requires_grad=True)
        y = layer(x)
        assert (y - linear(x)).norm() < 0.2 * linear(x).norm()
        y.square().sum().backward()
        # The rows of the weight, one by one.
        numbers = layer(torch.eye(64)).detach() - layer.bias.detach()
        assert torch.allclose(x.grad, 2 * y.detach() @ numbers.T, rtol=1e-4, atol=1e-5)
        assert torch.allclose(layer.bias.grad, 2 * y.detach().sum(0), rtol=1e-5, atol=1e-5)

        state = layer.state_dict()
        kind = layer.quant_type
        packed = json.loads(bytes(state[f"weight.quant_state.bitsandbytes__{kind}"].tolist()))
        assert packed["shape"] == [24, 64] and packed["quant_type"] == kind and packed["dtype"] == "float32"
        assert state["weight"].shape == (768, 1) and ("weight.nested_absmax" in state) == layer.compress_statistics
        other = wt.nn.Linear4bit(64, 24)
        assert not any(other.load_state_dict(state))
        assert torch.equal(other(x), y) and torch.equal(other.half().scales, layer.scales)
        del state["weight.absmax"]
        with pytest.raises(RuntimeError, match="Missing key"):
            other.load_state_dict(state)


def test_an_operator_of_pytorch():
    torch = pytest.importorskip("torch")
    from warpwright import torch as wt

    weight = torch.randn(24, 64)
    codes, scales = wt.quantize_nf4(weight, 64)
    numbers = wt.dequantize_nf4(codes, scales, weight.shape, 64)
    x = torch.randn(2, 5, 64, requires_grad=True)
    function = torch.compile(lambda x: wt.linear_4bit(x, codes, scales, weight.shape), backend="eager")
    y = function(x)
    assert torch.allclose(y, x @ numbers.T, rtol=1e-4, atol=1e-5)
    (dx,) = torch.autograd.grad(y.sum(), x)
    assert torch.allclose(dx, numbers.sum(0).expand_as(x), rtol=1e-4, atol=1e-5)
    arguments = (x, None, codes, scales, None, None, None, None, None, 24, 64, "nf4", 64)
    torch.library.opcheck(torch.ops.warpwright.linear_4bit.default, arguments)
