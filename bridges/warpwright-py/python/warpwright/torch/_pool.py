"""Pooling as operators; `warpwright.torch` has it for users."""

import math
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from .. import _native
from .._errors import Error, refused, renamed
from ._differentiable import Differentiable
from ._images import Parameters, each, is_recorded, linear_operator, remembered, result, with_batch
from ._registry import Operator

Numbers = Union[int, Sequence[int]]

_DTYPES = {"index": torch.int64, "tap": torch.uint8}
# Arguments of native functions as PyTorch calls them.
_NAMES = {"x": "input", "kernel": "kernel_size", "output": "output_size", "divisor": "divisor_override"}


def _sliding(
    image: Sequence[Any], kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> List[Any]:
    """Extents of the result of windows that slide over an image."""
    found = []
    for n, k, s, p, d in zip(image, kernel, stride, padding, dilation):
        room = n + 2 * p - d * (k - 1) - 1
        windows = (room + s - 1 if ceil_mode else room) // s + 1
        # The last one must begin before the padding behind.
        found.append(windows - 1 if ceil_mode and (windows - 1) * s >= n + p else windows)
    return found


_WINDOWS = {"kernel": "SymInt[]", "stride": "SymInt[]", "padding": "SymInt[]"}


def _maxima(
    name: str, types: Dict[str, str], natives: Sequence[Callable[..., Any]], extents: Callable[..., Any], indices: bool
) -> Callable[..., Any]:
    """The operator for maxima, with the indices among its results or not. The last of its parameters is `argmax`: without one there is no
    gradient."""
    forward, backward = natives
    parameters = Parameters({**types, "argmax": "str?"})

    def run(x: Tensor, *values: Any) -> Any:
        found = forward(x, **parameters.options(values))
        return (found, x.new_empty(0)) if values[-2] is None else found

    def fake(x: Tensor, *values: Any) -> Any:
        *given, argmax, last = values
        shape = (*x.shape[:2], *extents(x.shape[2:], *given))
        kept = x.new_empty(0) if argmax is None else result(x, shape, last, _DTYPES[argmax])
        return result(x, shape, last), kept

    def run_back(where: Tensor, dy: Tensor, image: Sequence[int], *values: Any) -> Tensor:
        if values[-2] is None:
            raise RuntimeError(f"warpwright: {name} has no gradient without argmax")
        return backward(dy, where, (*dy.shape[:2], *image), **parameters.backward(values))

    def fake_back(where: Tensor, dy: Tensor, image: Sequence[Any], *values: Any) -> Tensor:
        return result(dy, (*dy.shape[:2], *image), values[-1])

    return Differentiable(
        Operator(f"{name}(Tensor x, {parameters.schema}) -> (Tensor, Tensor)", native=run, fake=fake),
        Operator(
            f"{name}_backward(Tensor indices, Tensor dy, SymInt[] image, {parameters.schema}) -> Tensor",
            native=run_back,
            fake=fake_back,
        ),
        save=lambda inputs, found: (found[1],),
        noted=lambda inputs: (list(inputs[0].shape[2:]), *inputs[1:]),
        inference=None if indices else lambda x, *values: forward(x, **parameters.options((*values[:-2], None, values[-1]))),
        returned=2 if indices else 1,
    ).function()


def _both(
    name: str, types: Dict[str, str], natives: Sequence[Callable[..., Any]], extents: Callable[..., Any]
) -> Tuple[Callable[..., Any], Callable[..., Any]]:
    """The operator for maxima, and the one for maxima and indices."""
    return _maxima(name, types, natives, extents, False), _maxima(f"{name}_with_indices", types, natives, extents, True)


_max_pool, _max_pool_with_indices = _both(
    "max_pool",
    {**_WINDOWS, "dilation": "SymInt[]", "ceil_mode": "bool"},
    (_native.max_pool, _native.max_pool_backward),
    _sliding,
)
_adaptive_max_pool, _adaptive_max_pool_with_indices = _both(
    "adaptive_max_pool",
    {"output": "SymInt[]"},
    (_native.adaptive_max_pool, _native.adaptive_max_pool_backward),
    lambda image, output: output,
)
_avg_pool = linear_operator(
    "avg_pool",
    {**_WINDOWS, "ceil_mode": "bool", "count_include_pad": "bool", "divisor": "int?"},
    (_native.avg_pool, _native.avg_pool_backward),
    lambda image, kernel, stride, padding, ceil_mode, *_: _sliding(
        image, kernel, stride, padding, [1] * len(kernel), ceil_mode
    ),
)
_adaptive_avg_pool = linear_operator(
    "adaptive_avg_pool",
    {"output": "SymInt[]"},
    (_native.adaptive_avg_pool, _native.adaptive_avg_pool_backward),
    lambda image, output: output,
)


def _windows(op: str, dims: int, kernel_size: Any, stride: Any, padding: Any, dilation: Any) -> Any:
    """Kernel, stride, padding and dilation as the operators take them, and whether a byte holds a place in a window."""
    kernel = each(op, "kernel_size", kernel_size, dims, 1)
    # PyTorch takes an empty list for none.
    strides = kernel if stride is None or stride in ((), []) else each(op, "stride", stride, dims, 1)
    paddings, dilations = each(op, "padding", padding, dims, 0), each(op, "dilation", dilation, dims, 1)
    return kernel, strides, paddings, dilations, all(d == 1 for d in dilations) and math.prod(kernel) <= 256


_settled = remembered(_windows)


def _called(op: str, function: Callable[..., Any], x: Tensor, alone: bool, *parameters: Any) -> Any:
    """The result of an operator, without a batch where `x` had none."""
    try:
        found = function(x, *parameters)
    except Error as error:
        raise renamed(error, op, **_NAMES) from None
    if not alone:
        return found
    return found.squeeze(0) if isinstance(found, Tensor) else tuple(t.squeeze(0) for t in found)


_FORMATS = """Images with their channels last in memory are read as they are, and the result lies as they do. float32, float64, float16 or
    bfloat16. Differentiable in input."""


def _named(function: Callable[..., Any], name: str, more: str = "") -> Callable[..., Any]:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"`torch.nn.functional.{name}`.{more} {_FORMATS}"
    return function


def _max(dims: int) -> Callable[..., Any]:
    name = f"max_pool{dims}d"

    def function(
        input: Tensor,
        kernel_size: Numbers,
        stride: Optional[Numbers] = None,
        padding: Numbers = 0,
        dilation: Numbers = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        *windows, fits = _settled(name, dims, kernel_size, stride, padding, dilation)
        x, alone, last = with_batch(name, dims, input)
        argmax = "tap" if fits and not return_indices else "index"
        kept = argmax if return_indices or is_recorded(x) else None
        function = _max_pool_with_indices if return_indices else _max_pool
        return _called(name, function, x, alone, *windows, ceil_mode, kept, last)

    return _named(function, name, " Of a window with NaN the maximum is NaN.")


def _adaptive_max(dims: int) -> Callable[..., Any]:
    name = f"adaptive_max_pool{dims}d"

    def function(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
        x, alone, last = with_batch(name, dims, input)
        kept = "index" if return_indices or is_recorded(x) else None
        output = _output(name, dims, output_size, x)
        function = _adaptive_max_pool_with_indices if return_indices else _adaptive_max_pool
        return _called(name, function, x, alone, output, kept, last)

    return _named(function, name, " Of a window with NaN the maximum is NaN.")


def _mean(dims: int) -> Callable[..., Tensor]:
    name = f"avg_pool{dims}d"

    def pooled(
        input: Tensor,
        kernel_size: Numbers,
        stride: Optional[Numbers],
        padding: Numbers,
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: Optional[int],
    ) -> Tensor:
        kernel, strides, paddings, _, _ = _settled(name, dims, kernel_size, stride, padding, 1)
        x, alone, last = with_batch(name, dims, input)
        parameters = kernel, strides, paddings, ceil_mode, count_include_pad, divisor_override
        return _called(name, _avg_pool, x, alone, *parameters, last)

    def of_one(
        input: Tensor,
        kernel_size: Numbers,
        stride: Optional[Numbers] = None,
        padding: Numbers = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> Tensor:
        return pooled(input, kernel_size, stride, padding, ceil_mode, count_include_pad, None)

    def of_more(
        input: Tensor,
        kernel_size: Numbers,
        stride: Optional[Numbers] = None,
        padding: Numbers = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: Optional[int] = None,
    ) -> Tensor:
        return pooled(input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)

    return _named(of_one if dims == 1 else of_more, name)


def _adaptive_mean(dims: int) -> Callable[..., Tensor]:
    name = f"adaptive_avg_pool{dims}d"

    def function(input: Tensor, output_size: Any) -> Tensor:
        x, alone, last = with_batch(name, dims, input)
        return _called(name, _adaptive_avg_pool, x, alone, _output(name, dims, output_size, x), last)

    return _named(function, name)


def _output(op: str, dims: int, output_size: Any, x: Tensor) -> List[Any]:
    """The extents of a result; None is the extent that x has."""
    given = list(output_size) if isinstance(output_size, (tuple, list)) else [output_size]
    given = given * dims if len(given) == 1 else given
    if len(given) != dims:
        raise refused(op, "output_size", output_size, f"a number, or one for each of {dims} dimensions")
    return each(op, "output_size", [n if o is None else o for n, o in zip(x.shape[2:], given)], dims, 1)


max_pool1d, max_pool2d, max_pool3d = map(_max, (1, 2, 3))
avg_pool1d, avg_pool2d, avg_pool3d = map(_mean, (1, 2, 3))
adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = map(_adaptive_max, (1, 2, 3))
adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = map(_adaptive_mean, (1, 2, 3))
