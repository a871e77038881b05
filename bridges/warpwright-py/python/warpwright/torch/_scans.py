"""Operators that scans along time have in common: with the state behind the last position and without."""

from typing import Any, Callable, Tuple

import torch

from ._common import gradient_of
from ._differentiable import Differentiable
from ._registry import Operator


def operators(
    name: str,
    tensors: str,
    parameters: str,
    forward: Callable[..., Any],
    gradients: Callable[..., Any],
    fake: Callable[..., Tuple[torch.Tensor, torch.Tensor, torch.Tensor]],
) -> Tuple[Any, Any]:
    """The functions `name` and `name_with_state` of a scan of `tensors` with `parameters`, both as in a schema. fake: the result, the last
    state, and the states that `gradients` takes."""
    inputs = tensors.count(",") + 1

    def operator(last_state: bool) -> Any:
        named = f"{name}_with_state" if last_state else name

        def results(*arguments: Any) -> Any:
            y, last, states = fake(*arguments)
            return (y, last, states) if last_state else (y, states)

        return Differentiable(
            Operator(
                f"{named}({tensors}, {parameters}) -> ({'Tensor, ' if last_state else ''}Tensor, Tensor)",
                native=lambda *arguments: forward(*arguments, last_state=last_state, training=True),
                fake=results,
            ),
            Operator(
                f"{named}_backward({tensors}, Tensor states, Tensor dy, {'Tensor dlast_state, ' if last_state else ''}{parameters}) "
                f"-> ({', '.join(['Tensor'] * inputs)})",
                native=gradients,
                fake=lambda *arguments: tuple(
                    None if given is None else gradient_of(given, arguments[0]) for given in arguments[:inputs]
                ),
            ),
            save=lambda given, found: (*given[:inputs], found[-1]),
            inference=lambda *arguments: forward(*arguments, last_state=last_state),
            results=2 if last_state else 1,
        ).function()

    return operator(False), operator(True)


def wide(dtype: torch.dtype, *tensors: Any) -> Tuple[Any, ...]:
    """Parameters and states, which are of the type of sums; what is not of floats stays for the operator to refuse."""
    return tuple(t.to(dtype) if t is not None and t.is_floating_point() else t for t in tensors)
