"""The operators; `warpwright.torch` has them for users."""

from typing import Any, Callable, Tuple

import torch
from torch import Tensor

from .. import _native
from ._differentiable import Differentiable
from ._registry import Operator, direct, refuse_tangents


def _elementwise(name: str, arguments: str, scalar: str = "") -> Callable[..., Tensor]:
    """The function `name` of tensors `arguments` of one shape and of a scalar parameter."""
    count = len(arguments.split())
    inputs = ", ".join(f"Tensor {a}" for a in arguments.split())
    parameter = f", float {scalar}" if scalar else ""
    gradients = "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"

    def fake_backward(first: Tensor, *rest: Any) -> Any:
        made = tuple(torch.empty_like(first) for _ in range(count))
        return made if count > 1 else made[0]

    function = Differentiable(
        Operator(
            f"{name}({inputs}{parameter}) -> Tensor",
            native=getattr(_native, name),
            fake=lambda first, *rest: torch.empty_like(first),
        ),
        Operator(
            f"{name}_backward({inputs}, Tensor dy{parameter}) -> {gradients}",
            native=getattr(_native, name + "_backward"),
            fake=fake_backward,
        ),
    ).function()
    function.__doc__ = f"{function.__doc__} The result has the strides of `torch.empty_like` of the first argument."
    return function


relu = _elementwise("relu", "x")
gelu_tanh = _elementwise("gelu_tanh", "x")
gelu_erf = _elementwise("gelu_erf", "x")
silu = _elementwise("silu", "x")
sigmoid = _elementwise("sigmoid", "x")
tanh = _elementwise("tanh", "x")

_leaky_relu = _elementwise("leaky_relu", "x", scalar="negative_slope")
_softplus = _elementwise("softplus", "x", scalar="beta")


def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """`x` if `x > 0`, else `negative_slope x`, elementwise. Differentiable in x."""
    return _leaky_relu(x, negative_slope)


def softplus(x: Tensor, beta: float = 1.0) -> Tensor:
    """`log(1 + exp(beta x)) / beta`, elementwise. Differentiable in x."""
    return _softplus(x, beta)


def _gated(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    forward = _elementwise(name, "gate up")

    def function(gate: Tensor, up: Tensor) -> Tensor:
        if gate.dtype != up.dtype:
            # Autocast leaves one factor in another type where only one came out of a matrix product.
            dtype = torch.promote_types(gate.dtype, up.dtype)
            gate, up = gate.to(dtype), up.to(dtype)
        return forward(gate, up)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{forward.__doc__} Different dtypes are promoted as PyTorch does."
    return function


swiglu = _gated("swiglu")
geglu = _gated("geglu")
geglu_tanh = _gated("geglu_tanh")


def _quantizer(name: str) -> Tuple[Callable[..., Any], Callable[..., Any]]:
    """The operators `quantize_<name>` and `dequantize_<name>`."""
    native, native_back = getattr(_native, f"quantize_{name}"), getattr(_native, f"dequantize_{name}")
    zeros = name == "int4_asymmetric"
    packed = "Tensor codes, Tensor scales" + (", Tensor zero_points" if zeros else "")

    def run(x: Tensor, group_size: int) -> Any:
        with torch.no_grad():
            return native(x, group_size)

    def fake(x: Tensor, group_size: int) -> Any:
        wide = name.startswith("int4") and x.dtype == torch.float64
        groups = (x.numel() + group_size - 1) // group_size
        codes = x.new_empty([(x.numel() + 1) // 2], dtype=torch.uint8)
        scales = x.new_empty([groups], dtype=torch.float64 if wide else torch.float32)
        return (codes, scales, x.new_empty([groups], dtype=torch.uint8)) if zeros else (codes, scales)

    def run_back(*arguments: Any) -> Tensor:
        *tensors, shape, group_size, dtype = arguments
        with torch.no_grad():
            return native_back(*tensors, shape, group_size, dtype=dtype)

    def fake_back(codes: Tensor, *rest: Any) -> Tensor:
        *_, shape, _, dtype = rest
        return codes.new_empty(shape, dtype=dtype)

    results = "(Tensor, Tensor, Tensor)" if zeros else "(Tensor, Tensor)"
    operator = Operator(f"quantize_{name}(Tensor x, SymInt group_size) -> {results}", run, fake).register().without_gradient()
    back_operator = Operator(
        f"dequantize_{name}({packed}, SymInt[] shape, SymInt group_size, ScalarType dtype) -> Tensor", run_back, fake_back
    ).register().without_gradient()

    def quantize(x: Tensor, group_size: int = 64) -> Any:
        refuse_tangents(f"quantize_{name}", (x,))
        return run(x, group_size) if direct(x) else operator(x, group_size)

    def back(tensors: Any, shape: Any, group_size: int, dtype: torch.dtype) -> Tensor:
        refuse_tangents(f"dequantize_{name}", tensors)
        function = run_back if direct(*tensors) else back_operator
        return function(*tensors, list(shape), group_size, dtype)

    dequantize: Callable[..., Any]
    if zeros:

        def dequantize(
            codes: Tensor,
            scales: Tensor,
            zero_points: Tensor,
            shape: Any,
            group_size: int = 64,
            dtype: torch.dtype = torch.float32,
        ) -> Tensor:
            return back((codes, scales, zero_points), shape, group_size, dtype)

    else:

        def dequantize(
            codes: Tensor, scales: Tensor, shape: Any, group_size: int = 64, dtype: torch.dtype = torch.float32
        ) -> Tensor:
            return back((codes, scales), shape, group_size, dtype)

    quantize.__name__ = quantize.__qualname__ = f"quantize_{name}"
    quantize.__doc__ = native.__doc__
    dequantize.__name__ = dequantize.__qualname__ = f"dequantize_{name}"
    dequantize.__doc__ = native_back.__doc__
    return quantize, dequantize


quantize_nf4, dequantize_nf4 = _quantizer("nf4")
quantize_fp4, dequantize_fp4 = _quantizer("fp4")
quantize_int4, dequantize_int4 = _quantizer("int4")
quantize_int4_asymmetric, dequantize_int4_asymmetric = _quantizer("int4_asymmetric")
