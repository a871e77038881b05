"""Derivatives that functional transforms of PyTorch take (`torch.func`).

They refuse the gradient that `torch.library` registers. What they take is a `torch.autograd.Function` whose context is set up apart from
its forward pass; each level of a transform makes a node of its own from it.
"""

from typing import Any, Callable, Tuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

_functorch = getattr(torch._C, "_functorch", None)
_levels = getattr(_functorch, "get_interpreter_stack", lambda: None)


def takes_derivatives() -> bool:
    """Whether a functional transform that is active takes derivatives, at any level."""
    return any(level.key() == _functorch.TransformType.Grad for level in _levels() or ())


def is_transformed() -> bool:
    """Whether a functional transform is active."""
    return _functorch is not None and _functorch.maybe_current_level() is not None


def break_graph_of_transform() -> None:
    """Ends the graph that is being compiled if a functional transform is active: registered gradients refuse its tensors, at which some
    releases of PyTorch stop with an error."""
    if is_transformed():
        torch._dynamo.graph_break()


def is_wrapped(x: Tensor) -> bool:
    """Whether a tensor is one of a functional transform, which may be over."""
    return _functorch is not None and _functorch.is_functorch_wrapped_tensor(x)


def no_forward_mode(name: str) -> NotImplementedError:
    return NotImplementedError(
        f"warpwright: {name} has no forward-mode derivative: use reverse mode, or detach the tensor"
    )


def _is_leaf(argument: Any) -> bool:
    """Whether an argument is not a list of tensors, of which nodes see each."""
    return not (isinstance(argument, (list, tuple)) and argument and all(isinstance(t, Tensor) for t in argument))


def _flat(arguments: Any) -> Tuple[Any, ...]:
    """The arguments with those that are lists of tensors taken apart, and behind them how they hang together."""
    all_of_them = list(arguments)
    flat, structure = tree_flatten(all_of_them, is_leaf=lambda a: a is not all_of_them and _is_leaf(a))
    return *flat, structure


def _whole(flat: Any) -> Any:
    *arguments, structure = flat
    return tree_unflatten(arguments, structure)


def transformable(
    name: str, operator: Callable[..., Any], differentiate: Callable[..., Any], setup_context: Callable[..., Any]
) -> Callable[..., Any]:
    """The operator with its gradient as transforms take it; `differentiate` and `setup_context` are what `torch.library` takes."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(*flat: Any) -> Any:
            return operator(*_whole(flat))

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            setup_context(ctx, tuple(_whole(inputs)), output)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            *gradients, _ = _flat(differentiate(ctx, *grads))
            return *gradients, None

        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> Any:
            raise no_forward_mode(name)

        @staticmethod
        def vmap(info: Any, in_dims: Any, *flat: Any) -> Any:
            # One sample after the other, as PyTorch does with operators that it knows nothing of.
            if not info.batch_size:
                raise ValueError(f"warpwright: {name} under vmap takes at least one sample")

            def at(index: int) -> Any:
                return [x if dim is None else x.select(dim, index) for x, dim in zip(flat, dims)]

            dims = [dim if isinstance(x, Tensor) else None for x, dim in zip(flat, in_dims)]
            found = [Function.apply(*at(index)) for index in range(info.batch_size)]
            if isinstance(found[0], Tensor):
                return torch.stack(found), 0
            return tuple(torch.stack(each) for each in zip(*found)), (0,) * len(found[0])

    Function.__name__ = Function.__qualname__ = f"{name}Transformed"
    return lambda *arguments: Function.apply(*_flat(arguments))
