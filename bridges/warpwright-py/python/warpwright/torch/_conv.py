"""Convolutions as operators; `warpwright.torch` has them for users."""

from functools import lru_cache
from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from .. import _native
from .._errors import Error, ShapeError, misshapen, refused, renamed
from . import _operators
from ._common import expect_dtype, narrow
from ._differentiable import Differentiable
from ._images import (
    FORMATS,
    each,
    expect_rank,
    is_recorded,
    memory_format,
    remembered,
    result,
    suggests_channels_last,
)
from ._registry import Operator, direct, refuse_tangents
from ._transforms import is_transformed

Numbers = Union[int, Sequence[int]]

# What a convolution is fused with where nothing is recorded, and followed by otherwise.
_ACTIVATIONS = {name: getattr(_operators, name) for name in ("gelu_erf", "gelu_tanh", "silu", "sigmoid", "tanh")}


def _gradient_of_weight(weight: Tensor) -> Tensor:
    form = FORMATS.get(weight.dim(), torch.contiguous_format)
    last = not weight.is_contiguous() and weight.is_contiguous(memory_format=form)
    return result(weight, weight.shape, last)


@lru_cache(maxsize=None)
def _has_tf32(device: torch.device) -> bool:
    """Whether a device has products of tf32 that PyTorch's convolutions may use; the emulator is none."""
    return device.type == "cuda" and torch.cuda.is_available() and torch.cuda.get_device_capability(device) >= (8, 0)


# What is compiled keeps the value that it was traced with.
@torch.compiler.assume_constant_result
def precision_of_pytorch(device: torch.device) -> str:
    """The precision of PyTorch's convolutions of float32 on a device."""
    if not _has_tf32(device):
        return "full"
    cudnn = torch.backends.cudnn
    # Before PyTorch 2.9 cuDNN has one setting for all that it does, which later raises an error where its parts differ.
    own = getattr(cudnn, "conv", None)
    allowed = cudnn.allow_tf32 if own is None else own.fp32_precision == "tf32"
    return "tf32" if allowed else "full"


def _precision(precision: Optional[str], x: Tensor) -> str:
    """The precision of a convolution of x that was asked for, or else that of PyTorch."""
    if precision is not None:
        return precision
    return precision_of_pytorch(x.device) if x.dtype == torch.float32 else "full"


def _options(stride: Any, padding: Any, dilation: Any, groups: int, precision: str, channels_last: bool) -> Any:
    """Keywords of the native functions."""
    return {
        "stride": stride,
        "padding": list(zip(padding[::2], padding[1::2])),
        "dilation": dilation,
        "groups": groups,
        "precision": precision,
        "memory_format": memory_format(channels_last),
    }


def _sum(dy: Tensor) -> Tensor:
    """The gradient of a bias."""
    return dy.sum([0, *range(2, dy.dim())])


def _outputs(x: Tensor, weight: Tensor, stride: Any, padding: Any, dilation: Any) -> List[Any]:
    """Extents of a convolution of x."""
    ends = zip(x.shape[2:], weight.shape[2:], stride, padding[::2], padding[1::2], dilation)
    return [(n + before + behind - d * (k - 1) - 1) // s + 1 for n, k, s, before, behind, d in ends]


def _forward(
    x: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    precision: str,
    activation: Optional[str],
    channels_last: bool,
) -> Tensor:
    options = _options(stride, padding, dilation, groups, precision, channels_last)
    return _native.conv(x, weight, bias, activation=activation, **options)


def _fake(x: Tensor, weight: Tensor, bias: Any, stride: Any, padding: Any, dilation: Any, *rest: Any) -> Tensor:
    shape = (x.shape[0], weight.shape[0], *_outputs(x, weight, stride, padding, dilation))
    return result(x, shape, rest[-1])


def _forward_with_ends(
    x: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],
    scale: Optional[Tensor],
    residual: Optional[Tensor],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    precision: str,
    activation: Optional[str],
    channels_last: bool,
) -> Tensor:
    options = _options(stride, padding, dilation, groups, precision, channels_last)
    return _native.conv(x, weight, bias, scale=scale, residual=residual, activation=activation, **options)


def _gradients(
    x: Optional[Tensor],
    weight: Optional[Tensor],
    y: Optional[Tensor],
    dy: Tensor,
    image: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    precision: str,
    activation: Optional[str],
    channels_last: bool,
    wanted: Sequence[bool],
) -> Any:
    if activation not in (None, "relu"):
        raise RuntimeError(f"warpwright: conv has no gradient through {activation}: apply it to the result")
    of_x, of_weight, of_bias = wanted
    if y is not None:
        # Where the result of a ReLU is positive, its argument was.
        dy = _native.relu_backward(y, dy)
    if not (of_x or of_weight):
        return None, None, _sum(dy) if of_bias else None
    options = _options(stride, padding, dilation, groups, precision, channels_last)
    given = (dy.shape[0], weight.shape[1] * groups, *image) if x is None else x
    return _native.conv_backward(
        given, weight, dy, x_gradient=of_x, weight_gradient=of_weight, bias_gradient=of_bias, **options
    )


def _fake_parameters(weight: Any, dy: Tensor, of_weight: bool, of_bias: bool) -> Any:
    """The gradients of the weight and the bias that are wanted."""
    return _gradient_of_weight(weight) if of_weight else None, dy.new_empty(dy.shape[1]) if of_bias else None


def _fake_gradients(x: Any, weight: Any, y: Any, dy: Tensor, image: Any, *rest: Any) -> Any:
    *_, groups, _, _, channels_last, (of_x, of_weight, of_bias) = rest
    dx = result(dy, (dy.shape[0], weight.shape[1] * groups, *image), channels_last) if of_x else None
    return dx, *_fake_parameters(weight, dy, of_weight, of_bias)


_PARAMETERS = "SymInt[] stride, SymInt[] padding, SymInt[] dilation, SymInt groups, str precision"

_conv = Differentiable(
    Operator(
        f"conv(Tensor x, Tensor weight, Tensor? bias, {_PARAMETERS}, str? activation, bool channels_last) -> Tensor",
        native=_forward,
        fake=_fake,
    ),
    Operator(
        f"conv_backward(Tensor? x, Tensor? weight, Tensor? y, Tensor dy, SymInt[] image, {_PARAMETERS}, str? activation, "
        "bool channels_last, bool[] output_mask) -> (Tensor, Tensor, Tensor)",
        native=_gradients,
        fake=_fake_gradients,
    ),
    # The gradient of the weight has the shape of the weight, and lies as it does.
    read_by=((1,), (0, 1), ()),
    keep=lambda inputs, found: (found[0] if inputs[8] == "relu" else None,),
    noted=lambda inputs: (list(inputs[0].shape[2:]), *inputs[3:]),
).function()


_conv_with_ends = Operator(
    f"conv_with_ends(Tensor x, Tensor weight, Tensor? bias, Tensor? scale, Tensor? residual, {_PARAMETERS}, str? activation, "
    "bool channels_last) -> Tensor",
    native=_forward_with_ends,
    fake=lambda x, weight, bias, scale, residual, *rest: _fake(x, weight, bias, *rest),
).register().without_gradient()


def _ended(y: Tensor, bias: Optional[Tensor], scale: Optional[Tensor], residual: Optional[Tensor], activation: Optional[str]) -> Tensor:
    """What a convolution ends with, as operations that have gradients."""
    across = (-1, *[1] * (y.dim() - 2))
    found = y if scale is None else y * scale.reshape(across)
    found = found if bias is None else found + bias.reshape(across)
    found = (found if residual is None else found + residual).to(y.dtype)
    if activation is None:
        return found
    if activation != "relu" and activation not in _ACTIVATIONS:
        raise refused("conv", "activation", activation, f"'relu', {', '.join(map(repr, _ACTIVATIONS))}")
    return torch.relu(found) if activation == "relu" else _ACTIVATIONS[activation](found)


def _with_ends(
    x: Tensor, weight: Tensor, bias: Optional[Tensor], scale: Optional[Tensor], residual: Optional[Tensor], parameters: Any, ending: Any
) -> Tensor:
    """A convolution with a scale or a residual; ending: the activation, and whether channels are last."""
    activation, channels_last = ending
    tensors = (x, weight, bias, scale, residual)
    if is_recorded(*tensors) or is_transformed():
        # A bias behind a scale is no part of the convolution.
        alone = bias if scale is None else None
        y = _conv(x, weight, alone, *parameters, None, channels_last)
        return _ended(y, None if scale is None else bias, scale, residual, activation)
    refuse_tangents("conv", tensors)
    with torch.no_grad():
        function = _forward_with_ends if direct(*tensors) else _conv_with_ends
        return function(*tensors, *parameters, activation, channels_last)


def _transposed(
    x: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    precision: str,
    output: Sequence[int],
    channels_last: bool,
) -> Tensor:
    options = _options(stride, padding, dilation, groups, precision, channels_last)
    shape = (x.shape[0], weight.shape[1] * groups, *output)
    y, _, _ = _native.conv_backward(shape, weight, x, weight_gradient=False, bias_gradient=False, **options)
    return y if bias is None else y.add_(bias.reshape(-1, *[1] * len(output)))


def _fake_transposed(x: Tensor, weight: Tensor, bias: Any, *rest: Any) -> Tensor:
    *_, groups, _, output, channels_last = rest
    return result(x, (x.shape[0], weight.shape[1] * groups, *output), channels_last)


def _transposed_gradients(
    x: Optional[Tensor],
    weight: Optional[Tensor],
    dy: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    precision: str,
    output: Sequence[int],
    channels_last: bool,
    wanted: Sequence[bool],
) -> Any:
    of_x, of_weight, of_bias = wanted
    options = _options(stride, padding, dilation, groups, precision, channels_last)
    dx = _native.conv(dy, weight, **options) if of_x else None
    dweight = None
    if of_weight:
        # Of the convolution that this is the transpose of, with argument and result exchanged.
        _, dweight, _ = _native.conv_backward(dy, weight, x, x_gradient=False, bias_gradient=False, **options)
    return dx, dweight, _sum(dy) if of_bias else None


def _fake_transposed_gradients(x: Any, weight: Any, dy: Tensor, *rest: Any) -> Any:
    stride, padding, dilation, _, _, _, channels_last, (of_x, of_weight, of_bias) = rest
    dx = None
    if of_x:
        shape = (dy.shape[0], weight.shape[0], *_outputs(dy, weight, stride, padding, dilation))
        dx = result(dy, shape, channels_last)
    return dx, *_fake_parameters(weight, dy, of_weight, of_bias)


_conv_transpose = Differentiable(
    Operator(
        f"conv_transpose(Tensor x, Tensor weight, Tensor? bias, {_PARAMETERS}, SymInt[] output, bool channels_last) -> Tensor",
        native=_transposed,
        fake=_fake_transposed,
    ),
    Operator(
        f"conv_transpose_backward(Tensor? x, Tensor? weight, Tensor dy, {_PARAMETERS}, SymInt[] output, bool channels_last, "
        "bool[] output_mask) -> (Tensor, Tensor, Tensor)",
        native=_transposed_gradients,
        fake=_fake_transposed_gradients,
    ),
    read_by=((1,), (0, 1), ()),
).function()


def _sides(op: str, padding: Any, dims: int, stride: List[Any], dilation: List[Any], kernel: Sequence[Any]) -> List[Any]:
    """Padding before and behind each dimension, one after the other."""
    if padding == "valid":
        return [0] * (2 * dims)
    if padding == "same":
        if any(s != 1 for s in stride):
            raise refused(op, "padding", "same", "numbers: with a stride no padding keeps the extents")
        whole = [d * (k - 1) for d, k in zip(dilation, kernel)]
        return [side for total in whole for side in (total // 2, total - total // 2)]
    if isinstance(padding, str):
        raise refused(op, "padding", padding, "'same', 'valid' or numbers")
    if isinstance(padding, (tuple, list)) and any(isinstance(p, (tuple, list)) for p in padding):
        if len(padding) != dims or any(not isinstance(p, (tuple, list)) or len(p) != 2 or min(p) < 0 for p in padding):
            raise refused(op, "padding", padding, f"{dims} pairs of numbers that are not negative")
        return [side for pair in padding for side in pair]
    return [side for number in each(op, "padding", padding, dims, 0) for side in (number, number)]


def _steps(op: str, dims: int, stride: Any, padding: Any, dilation: Any, kernel: Sequence[Any]) -> Any:
    """Stride, padding and dilation as the operators take them."""
    strides, dilations = each(op, "stride", stride, dims, 1), each(op, "dilation", dilation, dims, 1)
    return strides, _sides(op, padding, dims, strides, dilations, kernel), dilations


_settled = remembered(_steps)


def _expect_ranks(op: str, dims: int, input: Tensor, weight: Tensor) -> None:
    expect_rank(op, "input", input, dims + 1, dims + 2)
    expect_rank(op, "weight", weight, dims + 2)


def _with_batch(dims: int, *tensors: Any) -> Tuple[Any, ...]:
    """The arguments as autocast has them, images with a batch; whether they had none; whether channels are last in memory."""
    x, weight, bias = narrow(*tensors)
    alone = x.dim() == dims + 1
    x = x.unsqueeze(0) if alone else x
    # Images of one dimension have no such format.
    return x, weight, bias, alone, dims > 1 and (suggests_channels_last(x) or suggests_channels_last(weight))


_COMMON = """Padding may be pairs too, before and behind. Images and weights with their channels last in memory are read as they are, and the result
    lies as PyTorch's. Of one dtype, float32, float64, float16 or bfloat16. Differentiable in input, weight and bias.

    precision: "full", or "tf32", for float32 from sm_80 on: factors may be rounded to 11 bits, in gradients too. By default it is that of PyTorch's
    own convolutions on the GPU, `torch.backends.cudnn.conv.fp32_precision`, which `torch.backends.cudnn.allow_tf32` sets and which is "tf32" unless
    it was changed, and "full" in the emulator. Compiled code keeps what it was traced with."""


def _convolution(dims: int) -> Callable[..., Tensor]:
    name = f"conv{dims}d"

    def function(
        input: Tensor,
        weight: Tensor,
        bias: Optional[Tensor] = None,
        stride: Numbers = 1,
        padding: Union[str, int, Sequence[Any]] = 0,
        dilation: Numbers = 1,
        groups: int = 1,
        *,
        scale: Optional[Tensor] = None,
        residual: Optional[Tensor] = None,
        activation: Optional[str] = None,
        precision: Optional[str] = None,
    ) -> Tensor:
        _expect_ranks(name, dims, input, weight)
        strides, sides, dilations = _settled(name, dims, stride, padding, dilation, weight.shape[2:])
        x, weight, narrowed, alone, channels_last = _with_batch(dims, input, weight, bias if scale is None else None)
        precision, behind = _precision(precision, x), None
        if scale is not None or residual is not None:
            bias = narrowed if scale is None else bias
            residual = residual.unsqueeze(0) if residual is not None and alone else residual
            parameters = (strides, sides, dilations, groups, precision)
            try:
                y = _with_ends(x, weight, bias, scale, residual, parameters, (activation, channels_last))
            except Error as error:
                raise renamed(error, name, x="input") from None
            return y.squeeze(0) if alone else y
        bias = narrowed
        if activation in _ACTIVATIONS and is_recorded(x, weight, bias):
            # Its gradient needs what it is applied to.
            activation, behind = None, _ACTIVATIONS[activation]
        try:
            y = _conv(x, weight, bias, strides, sides, dilations, groups, precision, activation, channels_last)
        except Error as error:
            raise renamed(error, name, x="input") from None
        y = y if behind is None else behind(y)
        return y.squeeze(0) if alone else y

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""`torch.nn.functional.{name}`, then an activation, "relu", "gelu_erf", "gelu_tanh", "silu", "sigmoid" or "tanh".

    scale: a factor of each filter, [filters], and residual: a tensor like the result: `activation(scale * conv(input, weight) + bias +
    residual)`. With a scale it and the bias are of float32, or float64 for float64. All of that is one launch where no gradient is recorded.

    {_COMMON}
    """
    return function


def _transposed_convolution(dims: int) -> Callable[..., Tensor]:
    name = f"conv_transpose{dims}d"

    def function(
        input: Tensor,
        weight: Tensor,
        bias: Optional[Tensor] = None,
        stride: Numbers = 1,
        padding: Union[int, Sequence[Any]] = 0,
        output_padding: Numbers = 0,
        groups: int = 1,
        dilation: Numbers = 1,
        *,
        precision: Optional[str] = None,
    ) -> Tensor:
        _expect_ranks(name, dims, input, weight)
        if isinstance(padding, str):
            raise refused(name, "padding", padding, "numbers")
        strides, sides, dilations = _settled(name, dims, stride, padding, dilation, weight.shape[2:])
        further = each(name, "output_padding", output_padding, dims, 0)
        if any(n >= max(s, d) for n, s, d in zip(further, strides, dilations)):
            raise refused(name, "output_padding", output_padding, "less than the stride or the dilation")
        x, weight, bias, alone, channels_last = _with_batch(dims, input, weight, bias)
        if bias is not None:
            _expect_bias(name, bias, x.dtype, weight.shape[1] * groups)
        more = [n // s for n, s in zip(further, strides)]
        if any(more):
            # Pixels that far behind are those of an input that goes on with zeros.
            x = torch.nn.functional.pad(x, [side for n in reversed(more) for side in (0, n)])
        room = [before + behind for before, behind in zip(sides[::2], sides[1::2])]
        ends = zip(x.shape[2:], weight.shape[2:], strides, room, dilations, further)
        output = [(n - 1) * s - p + d * (k - 1) + f % s + 1 for n, k, s, p, d, f in ends]
        if any(n < 1 for n in output):
            message = f"{name}: input has extents {list(x.shape[2:])}, of which the result has {output}"
            raise ShapeError(message, op=name, argument="input", expected="extents of the result from 1 on", got=tuple(output))
        precision = _precision(precision, x)
        try:
            y = _conv_transpose(x, weight, bias, strides, sides, dilations, groups, precision, output, channels_last)
        except Error as error:
            raise renamed(error, name, x="input", dy="input") from None
        return y.squeeze(0) if alone else y

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""`torch.nn.functional.{name}`: the gradient that a convolution has of its argument, as a function of that of its result.

    {_COMMON}
    """
    return function


def _expect_bias(op: str, bias: Tensor, dtype: torch.dtype, filters: Any) -> None:
    expect_dtype(op, "bias", bias, dtype)
    if tuple(bias.shape) != (filters,):
        raise misshapen(op, "bias", bias.shape, (filters,))


conv1d, conv2d, conv3d = map(_convolution, (1, 2, 3))
conv_transpose1d, conv_transpose2d, conv_transpose3d = map(_transposed_convolution, (1, 2, 3))
