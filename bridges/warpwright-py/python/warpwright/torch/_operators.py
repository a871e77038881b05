"""The operators and their registrations; `warpwright.torch` has them for users.

Every operation exists twice. As operators of the dispatcher (`torch.ops.warpwright`), forward and backward, for whatever
traces, transforms or watches: `torch.compile`, fake tensors, functional transforms, modes. And as direct calls of the
native functions under a plain `torch.autograd.Function`, for eager code that nothing watches: the dispatcher's detour
through Python costs several times what the whole call does. Both give the same tensors with the same strides.
"""

from typing import Any, Callable, Tuple

import torch
from torch import Tensor

from .. import _native

_library = torch.library.Library("warpwright", "FRAGMENT")
# The strides of a result follow from those of the arguments, so a compiler must keep them.
_TAGS = tuple(
    getattr(torch.Tag, name) for name in ("pt2_compliant_tag", "needs_exact_strides") if hasattr(torch.Tag, name)
)


def _operator(schema: str, function: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    name = schema.split("(")[0]
    _library.define(schema, tags=_TAGS)
    for key in ("CPU", "CUDA"):
        _library.impl(name, function, key)
    torch.library.register_fake(f"warpwright::{name}", fake, lib=_library)
    return getattr(torch.ops.warpwright, name).default


def _differentiable(operator: Any, differentiate: Callable[..., Any], setup_context: Callable[..., Any]) -> None:
    name = operator.name().split(".")[0]
    torch.library.register_autograd(name, differentiate, setup_context=setup_context, lib=_library)


def _nobody_watches() -> Callable[[], bool]:
    """A function that tells whether no mode, transform or tracer is active."""
    try:
        dispatch_modes = torch._C._len_torch_dispatch_stack
        function_modes = torch._C._len_torch_function_stack
        transforms = torch._C._functorch.peek_interpreter_stack
        tracer = torch._C._get_tracing_state
        if dispatch_modes() or function_modes() or transforms() is not None or tracer() is not None:
            raise AttributeError
    except (AttributeError, TypeError):
        # A PyTorch without these, or an import in the middle of something: the dispatcher is always right.
        return lambda: False

    def nobody() -> bool:
        return not dispatch_modes() and not function_modes() and transforms() is None and tracer() is None

    return nobody


_unwatched = _nobody_watches()
_PLAIN = (Tensor, torch.nn.Parameter)


def _eager(*tensors: Tensor) -> bool:
    """Whether the native function may be called directly."""
    if torch.compiler.is_compiling():
        return False
    return all(type(t) in _PLAIN for t in tensors) and _unwatched()


def _records(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def _dense(x: Tensor) -> Tensor:
    """The tensor with the strides of a result: itself, or a copy if it has gaps or overlaps."""
    if x.is_contiguous():
        return x
    like = torch.empty_like(x)
    return x if like.stride() == x.stride() else like.copy_(x)


def _pair(
    name: str, arguments: str, results: int, scalar: str = ""
) -> Tuple[Callable[..., Any], Callable[..., Any]]:
    """Registers `name` and `name_backward` of tensors `arguments` of one shape, and a scalar parameter; the two as Python
    functions."""
    native, native_backward = getattr(_native, name), getattr(_native, name + "_backward")
    count = len(arguments.split())
    inputs = ", ".join(f"Tensor {a}" for a in arguments.split())
    parameter = f", float {scalar}" if scalar else ""
    gradients = "Tensor" if results == 1 else f"({', '.join(['Tensor'] * results)})"

    def run(first: Tensor, *rest: Any) -> Tensor:
        with torch.no_grad():
            return native(_dense(first), *rest)

    def run_backward(first: Tensor, *rest: Any) -> Any:
        with torch.no_grad():
            return native_backward(_dense(first), *rest)

    def fake_backward(first: Tensor, *rest: Any) -> Any:
        made = tuple(torch.empty_like(first) for _ in range(results))
        return made if results > 1 else made[0]

    operator = _operator(f"{name}({inputs}{parameter}) -> Tensor", run, lambda first, *rest: torch.empty_like(first))
    gradient_operator = _operator(
        f"{name}_backward({inputs}, Tensor dy{parameter}) -> {gradients}", run_backward, fake_backward
    )

    def gradient(*arguments: Any) -> Any:
        tensors = arguments[: count + 1]
        if _eager(*tensors) and not _records(*tensors):
            return run_backward(*arguments)
        return gradient_operator(*arguments)

    def twice(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(f"warpwright: {name} has no second derivative")

    _differentiable(gradient_operator, twice, lambda ctx, inputs, output: None)

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[:count])
        ctx.parameters = inputs[count:]

    def differentiate(ctx: Any, dy: Tensor) -> Any:
        found = gradient(*ctx.saved_tensors, dy, *ctx.parameters)
        found = found if isinstance(found, tuple) else (found,)
        return (*found, *(None for _ in ctx.parameters))

    _differentiable(operator, differentiate, setup_context)

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Tensor:
            ctx.save_for_backward(*inputs[:count])
            ctx.parameters = inputs[count:]
            return native(_dense(inputs[0]), *inputs[1:])

        @staticmethod
        def backward(ctx: Any, dy: Tensor) -> Any:
            return differentiate(ctx, dy)

    Function.__name__ = Function.__qualname__ = f"{name}Function"

    def function(*inputs: Any) -> Tensor:
        tensors = inputs[:count]
        if not _eager(*tensors):
            return operator(*inputs)
        return Function.apply(*inputs) if _records(*tensors) else native(_dense(inputs[0]), *inputs[1:])

    return function, gradient


def _unary(name: str) -> Callable[[Tensor], Tensor]:
    forward, _ = _pair(name, "x", 1)

    def function(x: Tensor) -> Tensor:
        return forward(x)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = (
        f"{getattr(_native, name).__doc__}\n\nDifferentiable; the result has the strides of `torch.empty_like(x)`."
    )
    return function


relu = _unary("relu")
gelu_tanh = _unary("gelu_tanh")
gelu_erf = _unary("gelu_erf")
silu = _unary("silu")
sigmoid = _unary("sigmoid")
tanh = _unary("tanh")

_leaky_relu, _ = _pair("leaky_relu", "x", 1, scalar="negative_slope")


def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """`x` if `x > 0`, else `negative_slope x`, elementwise. Differentiable in x."""
    return _leaky_relu(x, negative_slope)


def _gated(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    forward, _ = _pair(name, "gate up", 2)

    def function(gate: Tensor, up: Tensor) -> Tensor:
        if gate.dtype != up.dtype:
            # Autocast leaves one factor in another type where only one came out of a matrix product.
            dtype = torch.promote_types(gate.dtype, up.dtype)
            gate, up = gate.to(dtype), up.to(dtype)
        return forward(gate, up)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{getattr(_native, name).__doc__}\n\nDifferentiable; different dtypes are promoted as PyTorch does."
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
    operator = _operator(f"quantize_{name}(Tensor x, SymInt group_size) -> {results}", run, fake)
    back_operator = _operator(
        f"dequantize_{name}({packed}, SymInt[] shape, SymInt group_size, ScalarType dtype) -> Tensor",
        run_back,
        fake_back,
    )

    def quantize(x: Tensor, group_size: int = 64) -> Any:
        return run(x, group_size) if _eager(x) else operator(x, group_size)

    def back(tensors: Any, shape: Any, group_size: int, dtype: torch.dtype) -> Tensor:
        function = run_back if _eager(*tensors) else back_operator
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
