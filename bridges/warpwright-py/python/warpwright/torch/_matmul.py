"""Products of matrices as operators; `warpwright.torch` has them for users."""

from typing import Any, Optional, Sequence, Tuple

import torch
from torch import Tensor

from .. import _native
from .._errors import DeviceError, DtypeError, Error, ShapeError, misranked, misshapen, renamed
from .._native import Repeated
from . import _operators
from ._common import narrow, row_major
from ._differentiable import Differentiable
from ._registry import Operator, direct, refuse_tangents


def _fake(a: Tensor, b: Tensor, *bias: Any) -> Tensor:
    return a.new_empty((*a.shape[:-1], b.shape[-1]))


def _factors(a: Optional[Tensor], b: Tensor, dy: Tensor, wanted: Sequence[bool], alpha: float = 1.0) -> Any:
    of_a, of_b = wanted
    da = _native.matmul(dy, b.mT, alpha=alpha) if of_a else None
    if not of_b:
        return da, None
    if b.dim() == 2 and a.dim() > 2:
        # One matrix for all: its gradient is a sum over the rows of all.
        a, dy = a.flatten(0, -2), dy.flatten(0, -2)
    return da, _native.matmul(a.mT, dy, alpha=alpha)


def _fake_factors(a: Optional[Tensor], b: Tensor, dy: Tensor, wanted: Sequence[bool]) -> Any:
    of_a, of_b = wanted
    da = dy.new_empty((*dy.shape[:-1], b.shape[-2])) if of_a else None
    return da, b.new_empty(b.shape) if of_b else None


_matmul = Differentiable(
    Operator("matmul(Tensor a, Tensor b) -> Tensor", native=_native.matmul, fake=_fake),
    Operator(
        "matmul_backward(Tensor? a, Tensor b, Tensor dy, bool[] output_mask) -> (Tensor, Tensor)",
        native=_factors,
        fake=_fake_factors,
    ),
    # The number of dimensions of b says what its own gradient is.
    read_by=((1,), (0, 1)),
).function()


def of_parameters(x: Optional[Tensor], dy: Tensor, of_weight: bool, of_bias: bool) -> Tuple[Optional[Tensor], Optional[Tensor]]:
    """The gradients of the weight and the bias of a linear layer, one product if both are wanted."""
    rows = dy.flatten(0, -2)
    if of_weight and of_bias:
        return _native.linear_weight_backward(x.flatten(0, -2), rows)
    dweight = _native.matmul(rows.mT, x.flatten(0, -2)) if of_weight else None
    return dweight, rows.sum(0) if of_bias else None


# The gradients of the weight and the bias of rows dy [rows, n] of x [rows, k], as calls are made where nothing watches, and for what traces.
weight_and_bias = Repeated(_native.linear_weight_backward)
traced_weight_and_bias = Operator(
    "linear_weight_backward(Tensor x, Tensor dy) -> (Tensor, Tensor)",
    native=_native.linear_weight_backward,
    fake=lambda x, dy: (dy.new_empty((dy.shape[1], x.shape[1])), dy.new_empty(dy.shape[1:])),
).register().inner


def _gradients(x: Optional[Tensor], weight: Optional[Tensor], dy: Tensor, wanted: Sequence[bool]) -> Any:
    of_x, of_weight, of_bias = wanted
    dx = _native.matmul(dy, weight) if of_x else None
    return dx, *of_parameters(x, dy, of_weight, of_bias)


def _fake_gradients(x: Optional[Tensor], weight: Optional[Tensor], dy: Tensor, wanted: Sequence[bool]) -> Any:
    of_x, of_weight, of_bias = wanted
    dx = dy.new_empty((*dy.shape[:-1], weight.shape[1])) if of_x else None
    dweight = dy.new_empty((dy.shape[-1], x.shape[-1])) if of_weight else None
    return dx, dweight, dy.new_empty(dy.shape[-1:]) if of_bias else None


_linear = Differentiable(
    Operator(
        "linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor",
        native=lambda x, weight, bias: _native.matmul(x, weight.mT, bias=bias),
        fake=lambda x, weight, bias: x.new_empty((*x.shape[:-1], weight.shape[0])),
    ),
    Operator(
        "linear_backward(Tensor? x, Tensor? weight, Tensor dy, bool[] output_mask) -> (Tensor, Tensor, Tensor)",
        native=_gradients,
        fake=_fake_gradients,
    ),
    read_by=((1,), (0,), ()),
).function()


def _times(x: Tensor, factor: float) -> Tensor:
    return x if factor == 1 else x * factor


def _row(x: Tensor) -> Optional[Tensor]:
    """The row that all rows of x are, if they are one in memory."""
    before = x.shape[:-1]
    if before.numel() and all(extent == 1 or step == 0 for extent, step in zip(before, x.stride())):
        return x[(0,) * len(before)]
    return None


def _sum(x: Tensor, a: Tensor, b: Tensor, beta: float, alpha: float) -> Tensor:
    if beta == 0:
        # x counts for nothing even where it is not finite.
        return _native.matmul(a, b, alpha=alpha)
    row = _row(x)
    if row is not None:
        return _native.matmul(a, b, alpha=alpha, bias=_times(row, beta))
    return _native.matmul(a, b, c=x, alpha=alpha, beta=beta)


def _terms(a: Optional[Tensor], b: Tensor, dy: Tensor, beta: float, alpha: float, wanted: Sequence[bool]) -> Any:
    return None, *_factors(a, b, dy, wanted[1:], alpha)


def _shared_terms(found: Any, dys: Any, parameters: Any, wanted: Any) -> Any:
    beta, _ = parameters
    return _times(dys[0], beta) if wanted[0] else None, *found[1:]


def _fake_terms(a: Optional[Tensor], b: Tensor, dy: Tensor, *factors: Any) -> Any:
    return None, *_fake_factors(a, b, dy, factors[-1][1:])


_addmm = Differentiable(
    Operator(
        "addmm(Tensor x, Tensor a, Tensor b, float beta, float alpha) -> Tensor",
        native=_sum,
        fake=lambda x, a, b, *factors: _fake(a, b),
    ),
    Operator(
        "addmm_backward(Tensor? a, Tensor b, Tensor dy, float beta, float alpha, bool[] output_mask)"
        " -> (Tensor, Tensor, Tensor)",
        native=_terms,
        fake=_fake_terms,
    ),
    shared=_shared_terms,
    read_by=((), (2,), (1, 2)),
).function()


def _expect_rank(op: str, rank: int, **arguments: Tensor) -> None:
    """Refuses tensors of other numbers of dimensions."""
    for argument, x in arguments.items():
        if x.dim() != rank:
            raise misranked(op, argument, x.dim(), rank)


def _broadcast(a: Tensor, b: Tensor) -> Tuple[Tensor, Tensor]:
    """Matrices of as many leading dimensions each."""
    before, of_b = a.shape[:-2], b.shape[:-2]
    if len(of_b) <= len(before) and of_b.numel() == 1:
        return a, b.reshape(b.shape[-2:])
    try:
        before = torch.broadcast_shapes(before, of_b)
    except RuntimeError as error:
        raise misshapen("matmul", "b", b.shape, (*before, a.shape[-1], b.shape[-1])) from error
    return a.expand(*before, *a.shape[-2:]), b.expand(*before, *b.shape[-2:])


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """`torch.matmul`: a [..., m, k] times b [..., k, n] is [..., m, n]; both of one dtype, float32, float64, float16 or bfloat16.

    Leading dimensions broadcast. An a of [k] is a matrix of one row, a b of [k] of one column, and the result lacks that dimension.
    Differentiable in both. Raises `ShapeError`, `DtypeError` and `DeviceError`.
    """
    a, b = narrow(a, b)
    if a.dim() == 1:
        return matmul(a.unsqueeze(0), b).squeeze(-1 if b.dim() == 1 else -2)
    if b.dim() == 1:
        return matmul(a, b.unsqueeze(1)).squeeze(-1)
    if a.dim() > 0 and b.dim() > 2 and a.shape[:-2] != b.shape[:-2]:
        a, b = _broadcast(a, b)
    return _matmul(a, b)


def _added(op: str, names: Sequence[str], input: Tensor, a: Tensor, b: Tensor, beta: float, alpha: float) -> Tensor:
    input, a, b = narrow(input, a, b)
    for what, kind in (("dtype", DtypeError), ("device", DeviceError)):
        got, expected = (str(getattr(x, what)).replace("torch.", "") for x in (input, a))
        if got != expected:
            message = f"{op}: input has {what} {got}, expected {expected}"
            raise kind(message, op=op, argument="input", expected=expected, got=got)
    shape = (*a.shape[:-1], b.shape[-1])
    try:
        input = input.expand(shape)
    except RuntimeError as error:
        raise misshapen(op, "input", input.shape, shape) from error
    try:
        return _addmm(input, a, b, float(beta), float(alpha))
    except Error as error:
        raise renamed(error, op, a=names[0], b=names[1]) from None


def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """`torch.addmm`: beta input + alpha mat1 @ mat2, of mat1 [m, k], mat2 [k, n] and an input that broadcasts to [m, n].

    All of one dtype, float32, float64, float16 or bfloat16. The sum is rounded once, behind beta times an input of one row, which is
    rounded by itself. With a beta of 0 the input counts for nothing, even where it is not finite. Differentiable in all tensors.
    Raises `ShapeError`, `DtypeError` and `DeviceError`.
    """
    _expect_rank("addmm", 2, mat1=mat1, mat2=mat2)
    return _added("addmm", ("mat1", "mat2"), input, mat1, mat2, beta, alpha)


def baddbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """`torch.baddbmm`: `addmm` for each matrix of batch1 [b, m, k] and batch2 [b, k, n], with an input that broadcasts to [b, m, n]."""
    _expect_rank("baddbmm", 3, batch1=batch1, batch2=batch2)
    return _added("baddbmm", ("batch1", "batch2"), input, batch1, batch2, beta, alpha)


def linear(x: Tensor, weight: Tensor, bias: Optional[Tensor] = None) -> Tensor:
    """`torch.nn.functional.linear`: x [..., k] times the transpose of weight [n, k], plus bias [n]. Differentiable in all."""
    if weight.dim() == 1:
        # One result for each row, without a dimension of its own.
        return linear(x, weight.unsqueeze(0), None if bias is None else bias.reshape(1)).squeeze(-1)
    x, weight, bias = narrow(x, weight, bias)
    try:
        return _linear(x.unsqueeze(0), weight, bias).squeeze(0) if x.dim() == 1 else _linear(x, weight, bias)
    except Error as error:
        raise renamed(error, "linear", a="x", b="weight.mT") from None


_unit = Operator(
    "gated_linear(Tensor x, Tensor gate, Tensor up, str activation, Tensor? gate_bias, Tensor? up_bias) -> Tensor",
    native=lambda x, gate, up, activation, *biases: _gated(x, gate, up, activation, *biases),
    fake=lambda x, gate, up, *rest: x.new_empty((*x.shape[:-1], gate.shape[0])),
).register()
_gated_linear = _unit.without_gradient()
# The operator for those who record no gradient.
of_unit = _unit.inner
UNITS = {"swiglu": _operators.swiglu, "geglu": _operators.geglu, "geglu_tanh": _operators.geglu_tanh}


def _gated(x: Tensor, gate: Tensor, up: Tensor, activation: str, gate_bias: Any, up_bias: Any) -> Tensor:
    return _native.gated_linear(x, gate, up, activation, gate_bias=gate_bias, up_bias=up_bias)


def gated_linear(
    x: Tensor,
    gate: Tensor,
    up: Tensor,
    activation: str = "swiglu",
    gate_bias: Optional[Tensor] = None,
    up_bias: Optional[Tensor] = None,
) -> Tensor:
    """activation(x @ gate.T + gate_bias) * (x @ up.T + up_bias): a gated linear unit of x [..., k], weights gate and up [n, k], and biases [n]
    of both or of none, of one dtype.

    activation: "swiglu" (of silu), "geglu" (of the exact gelu) or "geglu_tanh". Where no gradient is recorded, on sm_90 large products of
    float16 and bfloat16 are one launch that writes neither product to memory; otherwise two products and the unit, differentiable in all.
    Raises `ShapeError`, `DtypeError`, `DeviceError` and `ParameterError`.
    """
    x, gate, up, gate_bias, up_bias = narrow(x, gate, up, gate_bias, up_bias)
    tensors = (x, gate, up, gate_bias, up_bias)
    recorded = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    if recorded and activation in UNITS:
        return UNITS[activation](linear(x, gate, gate_bias), linear(x, up, up_bias))
    refuse_tangents("gated_linear", tensors)
    with torch.no_grad():
        function = _gated if direct(*tensors) else _gated_linear
        return function(x, gate, up, activation, gate_bias, up_bias)


def _recipe(argument: str, scale: Tensor, rows: int, k: int) -> str:
    """What a scale of a matrix [rows, k] is of, by the shape of its scales, as `torch._scaled_mm` tells."""
    blocks = -(-k // 128)
    known = {
        (1, 1): "tensor",
        (rows, 1): "row",
        (rows, blocks): "1x128",
        (-(-rows // 128), blocks): "128x128",
    }
    shape = tuple(scale.shape)
    found = "tensor" if scale.numel() == 1 else known.get(shape)
    if found is None:
        expected = tuple(known)
        shapes = ", ".join(str(list(shape)) for shape in expected)
        raise ShapeError(
            f"scaled_mm: scales of {rows} rows of {k} elements have the shape {list(shape)}, expected one of {shapes}; "
            "those of mat_b transposed",
            op="scaled_mm",
            argument=argument,
            expected=expected,
            got=shape,
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
    def scales(argument: str, scale: Tensor, rows: int) -> Tuple[Tensor, str]:
        recipe = _recipe(argument, scale, rows, mat_a.shape[1])
        # Scales of neighbouring rows lie together in memory.
        return (scale.mT.contiguous() if recipe == "1x128" else scale), recipe

    of_a, recipe_a = scales("scale_a", scale_a, mat_a.shape[0])
    of_b, recipe_b = scales("scale_b", scale_b.mT if scale_b.dim() > 1 else scale_b, mat_b.shape[1])
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
).register().without_gradient()


def _int(mat_a: Tensor, mat_b: Tensor) -> Tensor:
    return _native.int8_matmul(mat_a, mat_b.mT)


_int_mm = Operator(
    "int_mm(Tensor mat_a, Tensor mat_b) -> Tensor",
    native=_int,
    fake=lambda a, b: a.new_empty((a.shape[0], b.shape[1]), dtype=torch.int32),
).register().without_gradient()


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
    _expect_rank("scaled_mm", 2, mat_a=mat_a, mat_b=mat_b)
    tensors = (mat_a, mat_b, scale_a, scale_b, bias)
    refuse_tangents("scaled_mm", tensors)
    try:
        with torch.no_grad():
            return (_scaled if direct(*tensors) else _scaled_mm)(*tensors, out_dtype, use_fast_accum)
    except Error as error:
        raise renamed(error, "scaled_mm", a="mat_a", b="mat_b.mT") from None


def int_mm(mat_a: Tensor, mat_b: Tensor) -> Tensor:
    """`torch._int_mm`: mat_a [m, k] @ mat_b [k, n] of int8, exactly, as int32; mat_b best as the transpose of a weight [n, k]."""
    _expect_rank("int_mm", 2, mat_a=mat_a, mat_b=mat_b)
    try:
        return (_int if direct(mat_a, mat_b) else _int_mm)(mat_a, mat_b)
    except Error as error:
        raise renamed(error, "int_mm", a="mat_a", b="mat_b.mT") from None
