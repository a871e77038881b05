"""The operators and their registrations; `warpwright.torch` has them for users."""

from typing import Any, Callable, List, Tuple

import torch
from torch import Tensor

from .. import _native


def _operator(name: str, function: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """Registers `warpwright::name`; its schema is that of the annotations of `function`."""
    operator = torch.library.custom_op(f"warpwright::{name}", function, mutates_args=())
    operator.register_fake(fake)
    return operator


def _dense(x: Tensor) -> Tensor:
    """The tensor with the strides of a result: itself, or a copy if it has gaps or overlaps."""
    if x.is_contiguous():
        return x
    like = torch.empty_like(x)
    return x if like.stride() == x.stride() else like.copy_(x)


def _unary(name: str) -> Callable[[Tensor], Tensor]:
    native, native_backward = getattr(_native, name), getattr(_native, name + "_backward")

    def forward(x: Tensor) -> Tensor:
        return native(_dense(x.detach()))

    def backward(x: Tensor, dy: Tensor) -> Tensor:
        return native_backward(_dense(x.detach()), dy.detach())

    operator = _operator(name, forward, torch.empty_like)
    gradient = _operator(name + "_backward", backward, lambda x, dy: torch.empty_like(x))

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    def differentiate(ctx: Any, dy: Tensor) -> Tensor:
        return gradient(*ctx.saved_tensors, dy)

    operator.register_autograd(differentiate, setup_context=setup_context)

    def function(x: Tensor) -> Tensor:
        return operator(x)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{native.__doc__}\n\nDifferentiable; the result has the strides of `torch.empty_like(x)`."
    return function


relu = _unary("relu")
gelu_tanh = _unary("gelu_tanh")
gelu_erf = _unary("gelu_erf")
silu = _unary("silu")
sigmoid = _unary("sigmoid")
tanh = _unary("tanh")


def _leaky_relu(x: Tensor, negative_slope: float) -> Tensor:
    return _native.leaky_relu(_dense(x.detach()), negative_slope)


def _leaky_relu_backward(x: Tensor, dy: Tensor, negative_slope: float) -> Tensor:
    return _native.leaky_relu_backward(_dense(x.detach()), dy.detach(), negative_slope)


_leaky_relu_operator = _operator("leaky_relu", _leaky_relu, lambda x, negative_slope: torch.empty_like(x))
_leaky_relu_gradient = _operator(
    "leaky_relu_backward", _leaky_relu_backward, lambda x, dy, negative_slope: torch.empty_like(x)
)


def _leaky_relu_context(ctx: Any, inputs: Any, output: Any) -> None:
    x, ctx.negative_slope = inputs
    ctx.save_for_backward(x)


def _leaky_relu_differentiate(ctx: Any, dy: Tensor) -> Tuple[Tensor, None]:
    (x,) = ctx.saved_tensors
    return _leaky_relu_gradient(x, dy, ctx.negative_slope), None


_leaky_relu_operator.register_autograd(_leaky_relu_differentiate, setup_context=_leaky_relu_context)


def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """`x` if `x > 0`, else `negative_slope x`, elementwise. Differentiable in x."""
    return _leaky_relu_operator(x, negative_slope)


def _gated(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    native, native_backward = getattr(_native, name), getattr(_native, name + "_backward")

    def forward(gate: Tensor, up: Tensor) -> Tensor:
        return native(_dense(gate.detach()), up.detach())

    def backward(gate: Tensor, up: Tensor, dy: Tensor) -> Tuple[Tensor, Tensor]:
        return native_backward(_dense(gate.detach()), up.detach(), dy.detach())

    operator = _operator(name, forward, lambda gate, up: torch.empty_like(gate))
    gradient = _operator(
        name + "_backward", backward, lambda gate, up, dy: (torch.empty_like(gate), torch.empty_like(gate))
    )

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    def differentiate(ctx: Any, dy: Tensor) -> Tuple[Tensor, Tensor]:
        return gradient(*ctx.saved_tensors, dy)

    operator.register_autograd(differentiate, setup_context=setup_context)

    def function(gate: Tensor, up: Tensor) -> Tensor:
        # Autocast leaves one factor in another type where only one came out of a matrix product.
        dtype = torch.promote_types(gate.dtype, up.dtype)
        return operator(gate.to(dtype), up.to(dtype))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{native.__doc__}\n\nDifferentiable; different dtypes are promoted as PyTorch does."
    return function


swiglu = _gated("swiglu")
geglu = _gated("geglu")
geglu_tanh = _gated("geglu_tanh")


def _scale_dtype(name: str, dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if name.startswith("int4") and dtype == torch.float64 else torch.float32


def _quantizer(name: str) -> Tuple[Callable[..., Any], Callable[..., Any]]:
    """The operators `quantize_<name>` and `dequantize_<name>`."""
    native, native_back = getattr(_native, f"quantize_{name}"), getattr(_native, f"dequantize_{name}")

    def fake(x: Tensor, group_size: int) -> Any:
        codes = x.new_empty([(x.numel() + 1) // 2], dtype=torch.uint8)
        groups = (x.numel() + group_size - 1) // group_size
        scales = x.new_empty([groups], dtype=_scale_dtype(name, x.dtype))
        if name == "int4_asymmetric":
            return codes, scales, x.new_empty([groups], dtype=torch.uint8)
        return codes, scales

    def fake_back(codes: Tensor, *rest: Any) -> Tensor:
        *_, shape, _, dtype = rest
        return codes.new_empty(shape, dtype=dtype)

    if name == "int4_asymmetric":

        def quantize3(x: Tensor, group_size: int) -> Tuple[Tensor, Tensor, Tensor]:
            return native(x.detach(), group_size)

        def dequantize3(
            codes: Tensor,
            scales: Tensor,
            zero_points: Tensor,
            shape: List[int],
            group_size: int,
            dtype: torch.dtype,
        ) -> Tensor:
            return native_back(codes, scales, zero_points, shape, group_size, dtype=dtype)

        forward = _operator(f"quantize_{name}", quantize3, fake)
        back = _operator(f"dequantize_{name}", dequantize3, fake_back)

        def dequantize_with(
            codes: Tensor,
            scales: Tensor,
            zero_points: Tensor,
            shape: Any,
            group_size: int = 64,
            dtype: torch.dtype = torch.float32,
        ) -> Tensor:
            return back(codes, scales, zero_points, list(shape), group_size, dtype)

        dequantize: Callable[..., Any] = dequantize_with
    else:

        def quantize2(x: Tensor, group_size: int) -> Tuple[Tensor, Tensor]:
            return native(x.detach(), group_size)

        def dequantize2(
            codes: Tensor, scales: Tensor, shape: List[int], group_size: int, dtype: torch.dtype
        ) -> Tensor:
            return native_back(codes, scales, shape, group_size, dtype=dtype)

        forward = _operator(f"quantize_{name}", quantize2, fake)
        back = _operator(f"dequantize_{name}", dequantize2, fake_back)

        def dequantize_without(
            codes: Tensor, scales: Tensor, shape: Any, group_size: int = 64, dtype: torch.dtype = torch.float32
        ) -> Tensor:
            return back(codes, scales, list(shape), group_size, dtype)

        dequantize = dequantize_without

    def quantize(x: Tensor, group_size: int = 64) -> Any:
        return forward(x, group_size)

    quantize.__name__ = quantize.__qualname__ = f"quantize_{name}"
    quantize.__doc__ = native.__doc__
    dequantize.__name__ = dequantize.__qualname__ = f"dequantize_{name}"
    dequantize.__doc__ = native_back.__doc__
    return quantize, dequantize


quantize_nf4, dequantize_nf4 = _quantizer("nf4")
quantize_fp4, dequantize_fp4 = _quantizer("fp4")
quantize_int4, dequantize_int4 = _quantizer("int4")
quantize_int4_asymmetric, dequantize_int4_asymmetric = _quantizer("int4_asymmetric")
