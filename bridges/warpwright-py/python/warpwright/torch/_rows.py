"""Normalisation of rows as operators; `warpwright.torch` has them for users."""

from typing import Any, Callable, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from .. import _native
from ._common import accumulator, gradient_of, row_major, statistics, wide
from ._differentiable import Differentiable
from ._registry import Operator

Shape = Union[int, Sequence[int]]


def _shape(shape: Shape) -> Sequence[int]:
    return [shape] if isinstance(shape, int) else list(shape)


def _row_norm(name: str, residual: bool) -> Callable[..., Any]:
    """`layer_norm` or `rms_norm`, or the same of a sum that is returned too."""
    layer = name == "layer_norm"
    native, native_backward = getattr(_native, name), getattr(_native, f"{name}_backward")
    # x, then the residual, weight and bias that there are.
    at_weight = 2 if residual else 1
    count = at_weight + (2 if layer else 1)

    def call(*arguments: Any, save: bool) -> Any:
        tensors, (shape, eps) = arguments[:count], arguments[count:]
        other = tensors[1] if residual else None
        return native(
            tensors[0], shape, *tensors[at_weight:], eps=eps, residual=other, statistics=save
        )

    def run(*arguments: Any) -> Any:
        return call(*arguments, save=True)

    def inference(*arguments: Any) -> Any:
        return call(*arguments, save=False)

    def fake(x: Tensor, *rest: Any) -> Any:
        shape = rest[-2]
        rows = x.shape[: x.dim() - len(shape)]
        saved = [statistics(x, rows) for _ in range(2 if layer else 1)]
        return (row_major(x), *([row_major(x)] if residual else []), *saved)

    def save(inputs: Any, found: Any) -> Any:
        z = found[1] if residual else inputs[0]
        return (z, *inputs[at_weight:count], *found[2 if residual else 1 :])

    def gradients(z: Tensor, *arguments: Any) -> Any:
        *rest, shape, _, wanted = arguments
        dz = rest.pop() if residual else None
        dy = rest.pop()
        if layer:
            weight, bias, mean, rstd = rest
            found = native_backward(z, dy, mean, rstd, shape, weight, bias is not None and wanted[-1], dz=dz)
        else:
            weight, rstd = rest
            found = native_backward(z, dy, rstd, shape, weight, dz=dz)
        return (found[0], None, *found[1:]) if residual else found

    def shared(found: Any, dys: Any, parameters: Any, wanted: Any) -> Any:
        # The sum has the gradient of both its terms.
        return found[0], found[0], *found[2:]

    def fake_gradients(z: Tensor, weight: Any, *rest: Any) -> Any:
        wanted = rest[-1]
        of_residual = (None,) if residual else ()
        # One pass gives the others, wanted or not.
        of_bias = (gradient_of(rest[0] if wanted[-1] else None, z),) if layer else ()
        return row_major(z), *of_residual, gradient_of(weight, z), *of_bias

    tensors = "Tensor? weight" + (", Tensor? bias" if layer else "")
    saved = ("Tensor mean, " if layer else "") + "Tensor rstd"
    options = "SymInt[] normalized_shape, float? eps"
    results = 1 + residual + (2 if layer else 1)
    operator = f"add_{name}" if residual else name
    return Differentiable(
        Operator(
            f"{operator}(Tensor x, {'Tensor residual, ' if residual else ''}{tensors}, {options})"
            f" -> ({', '.join(['Tensor'] * results)})",
            native=run,
            fake=fake,
        ),
        Operator(
            f"{operator}_backward(Tensor z, {tensors}, {saved}, Tensor dy, {'Tensor dz, ' if residual else ''}{options}, "
            "bool[] output_mask)"
            f" -> ({', '.join(['Tensor'] * count)})",
            native=gradients,
            fake=fake_gradients,
        ),
        save=save,
        shared=shared if residual else None,
        inference=inference,
        results=2 if residual else 1,
    ).function()


_layer_norm, _add_layer_norm = (_row_norm("layer_norm", residual) for residual in (False, True))
_rms_norm, _add_rms_norm = (_row_norm("rms_norm", residual) for residual in (False, True))


def layer_norm(
    x: Tensor,
    normalized_shape: Shape,
    weight: Optional[Tensor] = None,
    bias: Optional[Tensor] = None,
    eps: float = 1e-5,
) -> Tensor:
    """`torch.nn.functional.layer_norm`. Differentiable in x, weight and bias."""
    return _layer_norm(*wide(x, weight, bias), _shape(normalized_shape), eps)


def add_layer_norm(
    x: Tensor,
    residual: Tensor,
    normalized_shape: Shape,
    weight: Optional[Tensor] = None,
    bias: Optional[Tensor] = None,
    eps: float = 1e-5,
) -> Tuple[Tensor, Tensor]:
    """`layer_norm(x + residual)` and the sum, in one pass. Differentiable in all four."""
    return _add_layer_norm(*wide(x, residual, weight, bias), _shape(normalized_shape), eps)


def _alike(*tensors: Optional[Tensor]) -> Tuple[Optional[Tensor], ...]:
    """The arguments as autocast makes them for a function that it leaves alone: types that differ are widened."""
    return wide(*tensors) if len({t.dtype for t in tensors if t is not None}) > 1 else tensors


def _rms_eps(x: Tensor, eps: Optional[float]) -> float:
    """The eps of PyTorch where None is given: the machine epsilon of the type that it computes in, which is 32 bits for 16."""
    return torch.finfo(accumulator(x.dtype)).eps if eps is None else eps


def rms_norm(
    x: Tensor, normalized_shape: Shape, weight: Optional[Tensor] = None, eps: Optional[float] = None
) -> Tensor:
    """`torch.nn.functional.rms_norm`. eps: None is the machine epsilon of the type that is computed in, float32 or float64. Differentiable in
    x and weight."""
    return _rms_norm(*_alike(x, weight), _shape(normalized_shape), _rms_eps(x, eps))


def add_rms_norm(
    x: Tensor,
    residual: Tensor,
    normalized_shape: Shape,
    weight: Optional[Tensor] = None,
    eps: Optional[float] = None,
) -> Tuple[Tensor, Tensor]:
    """`rms_norm(x + residual)` and the sum, in one pass. Differentiable in all three."""
    return _add_rms_norm(*_alike(x, residual, weight), _shape(normalized_shape), _rms_eps(x, eps))
