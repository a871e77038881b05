"""Products of matrices as operators; `warpwright.torch` has them for users."""

from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from .. import _native
from ._common import narrow
from ._differentiable import Differentiable
from ._registry import Operator, direct, refuse_tangents


def _fake(a: Tensor, b: Tensor, *bias: Any) -> Tensor:
    return a.new_empty((*a.shape[:-1], b.shape[-1]))


def _factors(a: Tensor, b: Tensor, dy: Tensor) -> Any:
    da = _native.matmul(dy, b.mT)
    if b.dim() == 2 and a.dim() > 2:
        # One matrix for all: its gradient is a sum over the rows of all.
        a, dy = a.flatten(0, -2), dy.flatten(0, -2)
    return da, _native.matmul(a.mT, dy)


_matmul = Differentiable(
    Operator("matmul(Tensor a, Tensor b) -> Tensor", native=_native.matmul, fake=_fake),
    Operator(
        "matmul_backward(Tensor a, Tensor b, Tensor dy) -> (Tensor, Tensor)",
        native=_factors,
        fake=lambda a, b, dy: (a.new_empty(a.shape), b.new_empty(b.shape)),
    ),
).function()


def _gradients(x: Tensor, weight: Tensor, bias: Optional[Tensor], dy: Tensor) -> Any:
    dx = _native.matmul(dy, weight)
    rows, dy = x.flatten(0, -2), dy.flatten(0, -2)
    return dx, _native.matmul(dy.mT, rows), None if bias is None else dy.sum(0)


_linear = Differentiable(
    Operator(
        "linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor",
        native=lambda x, weight, bias: _native.matmul(x, weight.mT, bias=bias),
        fake=lambda x, weight, bias: x.new_empty((*x.shape[:-1], weight.shape[0])),
    ),
    Operator(
        "linear_backward(Tensor x, Tensor weight, Tensor? bias, Tensor dy) -> (Tensor, Tensor, Tensor)",
        native=_gradients,
        fake=lambda x, weight, bias, dy: (
            x.new_empty(x.shape),
            weight.new_empty(weight.shape),
            x.new_empty(0) if bias is None else bias.new_empty(bias.shape),
        ),
    ),
).function()


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """`a @ b`: [..., m, k] times [..., k, n] with the same leading dimensions, or times [k, n]. Differentiable in both."""
    return _matmul(*narrow(a, b))


def linear(x: Tensor, weight: Tensor, bias: Optional[Tensor] = None) -> Tensor:
    """`torch.nn.functional.linear`: x [..., k] times the transpose of weight [n, k], plus bias [n]. Differentiable in all."""
    if weight.dim() == 1:
        # One result for each row, without a dimension of its own.
        return linear(x, weight.unsqueeze(0), None if bias is None else bias.reshape(1)).squeeze(-1)
    x, weight, bias = narrow(x, weight, bias)
    if x.dim() == 1:
        return _linear(x.unsqueeze(0), weight, bias).squeeze(0)
    return _linear(x, weight, bias)


def _recipe(scale: Tensor, rows: int, k: int) -> str:
    """What a scale of a matrix [rows, k] is of, by the shape of its scales, as `torch._scaled_mm` tells."""
    blocks = -(-k // 128)
    known = {
        (1, 1): "tensor",
        (rows, 1): "row",
        (rows, blocks): "1x128",
        (-(-rows // 128), blocks): "128x128",
    }
    found = "tensor" if scale.numel() == 1 else known.get(tuple(scale.shape))
    if found is None:
        expected = ", ".join(str(list(shape)) for shape in known)
        raise ValueError(
            f"scaled_mm: scales of {rows} rows of {k} elements have the shape {list(scale.shape)}, expected one of {expected}; "
            "those of mat_b transposed"
        )
    return found


def _scaled(
    mat_a: Tensor,
    mat_b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Optional[Tensor],
    out_dtype: torch.dtype,
    use_fast_accum: bool,
) -> Tensor:
    def scales(scale: Tensor, rows: int) -> Tuple[Tensor, str]:
        recipe = _recipe(scale, rows, mat_a.shape[1])
        # Scales of neighbouring rows lie together in memory.
        return (scale.mT.contiguous() if recipe == "1x128" else scale), recipe

    of_a, recipe_a = scales(scale_a, mat_a.shape[0])
    of_b, recipe_b = scales(scale_b if scale_b.numel() == 1 else scale_b.mT, mat_b.shape[1])
    return _native.scaled_matmul(
        mat_a,
        mat_b.mT,
        of_a,
        of_b.contiguous(),
        out_dtype,
        scaling_a=recipe_a,
        scaling_b=recipe_b,
        bias=bias,
        accumulation="fast" if use_fast_accum else "promoted",
    )


_scaled_mm = Operator(
    "scaled_mm(Tensor mat_a, Tensor mat_b, Tensor scale_a, Tensor scale_b, Tensor? bias, ScalarType out_dtype, "
    "bool use_fast_accum) -> Tensor",
    native=_scaled,
    fake=lambda a, b, sa, sb, bias, dtype, fast: a.new_empty((a.shape[0], b.shape[1]), dtype=dtype),
).register()


def _int(mat_a: Tensor, mat_b: Tensor) -> Tensor:
    return _native.int8_matmul(mat_a, mat_b.mT)


_int_mm = Operator(
    "int_mm(Tensor mat_a, Tensor mat_b) -> Tensor",
    native=_int,
    fake=lambda a, b: a.new_empty((a.shape[0], b.shape[1]), dtype=torch.int32),
).register()


def scaled_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Optional[Tensor] = None,
    out_dtype: torch.dtype = torch.bfloat16,
    use_fast_accum: bool = False,
) -> Tensor:
    """`torch._scaled_mm`: (scale_a mat_a) @ (scale_b mat_b) + bias of 8-bit floats, or of int8, with float32 scales. mat_a [m, k], mat_b [k, n],
    best as the transpose of a weight [n, k]. A scale is of what its shape says: of the tensor [], of rows of mat_a [m, 1] and columns of
    mat_b [1, n], of 128 elements of them [m, ceil(k / 128)] and [ceil(k / 128), n], or of 128 x 128 elements. Not differentiable."""
    tensors = (mat_a, mat_b, scale_a, scale_b, bias)
    refuse_tangents("scaled_mm", tensors)
    with torch.no_grad():
        return (_scaled if direct(*tensors) else _scaled_mm)(*tensors, out_dtype, use_fast_accum)


def int_mm(mat_a: Tensor, mat_b: Tensor) -> Tensor:
    """`torch._int_mm`: mat_a [m, k] @ mat_b [k, n] of int8, exactly, as int32; mat_b best as the transpose of a weight [n, k]."""
    return (_int if direct(mat_a, mat_b) else _int_mm)(mat_a, mat_b)
