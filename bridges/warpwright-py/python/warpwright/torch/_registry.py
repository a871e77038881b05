"""Operators of PyTorch's dispatcher (`torch.ops.warpwright`), and whether a call needs them."""

from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Any, Callable, List, Optional

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .._native import torch_route
from ._transforms import break_graph_of_transform, no_forward_mode, takes_derivatives, transformable

_library = torch.library.Library("warpwright", "FRAGMENT")
# The strides of a result follow from those of the arguments, so a compiler must keep them.
_TAGS = tuple(
    getattr(torch.Tag, name) for name in ("pt2_compliant_tag", "needs_exact_strides") if hasattr(torch.Tag, name)
)
# Of what compiles, the tracer alone is not seen by `torch_route`: it does not run this code but reads it.
is_compiling = torch.compiler.is_dynamo_compiling
# `torch_route` says how a call is made: through the dispatcher, or directly.
_DISPATCH, DIRECT = range(2)


@dataclass(frozen=True)
class Operator:
    """An operator of the dispatcher.

    schema: as PyTorch writes it; arguments that are tensors come before those that are not. Of a backward direction, the last may be
    `bool[] output_mask`: which gradients are wanted, of the tensors of the forward direction. native: the function behind it. fake:
    the same for tensors without elements, for tracers. functional: the same without a change to an argument and without an argument
    among the results, which operators must not have, where `native` has them.
    """

    schema: str
    native: Callable[..., Any]
    fake: Callable[..., Any]
    functional: Optional[Callable[..., Any]] = None

    @property
    def name(self) -> str:
        return self.schema.split("(")[0]

    @property
    def _arguments(self) -> List[str]:
        arguments, _ = self.schema.split("->")
        return [a.strip() for a in arguments[arguments.index("(") + 1 : arguments.rindex(")")].split(",")]

    @cached_property
    def tensors(self) -> int:
        """How many arguments are tensors, or None in their place."""
        return len(list(takewhile(lambda a: a.startswith("Tensor"), self._arguments)))

    @cached_property
    def arguments(self) -> int:
        """How many arguments there are."""
        return len(self._arguments)

    @cached_property
    def has_parameters(self) -> bool:
        """Whether there are arguments that are no tensors."""
        return self.tensors < len(self._arguments)

    @cached_property
    def has_mask(self) -> bool:
        """Whether the last argument says which gradients are wanted."""
        return self._arguments[-1] == "bool[] output_mask"

    @cached_property
    def has_tuple(self) -> bool:
        """Whether the result is a tuple."""
        return "(" in self.schema.split("->")[1]

    @cached_property
    def results(self) -> int:
        """How many results there are."""
        return self.schema.split("->")[1].count("Tensor")

    def register(self) -> Any:
        """The operator, without a gradient."""
        name, function = self.name, self.functional or self.native

        def run(*arguments: Any) -> Any:
            refuse_tangents(name, arguments)
            with torch.no_grad():
                return function(*arguments)

        _library.define(self.schema, tags=_TAGS)
        for key in ("CPU", "CUDA"):
            _library.impl(name, run, key)
        torch.library.register_fake(f"warpwright::{name}", self.fake, lib=_library)
        return getattr(torch.ops.warpwright, name).default


def register_gradient(
    operator: Any, differentiate: Callable[..., Any], setup_context: Callable[..., Any]
) -> Callable[..., Any]:
    """Gives an operator its gradient. The operator as functional transforms take derivatives of it, too."""
    qualified = operator.name().split(".")[0]
    torch.library.register_autograd(qualified, differentiate, setup_context=setup_context, lib=_library)
    transformed = transformable(qualified.split("::")[1], operator, differentiate, setup_context)

    def call(*arguments: Any) -> Any:
        if is_compiling():
            break_graph_of_transform()
            return operator(*arguments)
        return transformed(*arguments) if takes_derivatives() else operator(*arguments)

    return call


def refuse_tangents(name: str, arguments: Any) -> None:
    """Refuses a tensor with a tangent, which would be taken for a constant."""
    if forward_ad._current_level < 0:
        return
    for argument in arguments:
        if isinstance(argument, (list, tuple)):
            refuse_tangents(name, argument)
        elif isinstance(argument, Tensor) and forward_ad.unpack_dual(argument).tangent is not None:
            raise no_forward_mode(name)


def direct(*tensors: Any) -> bool:
    """Whether the native function may be called without the dispatcher, in code that records no gradient."""
    if is_compiling() or any(t is not None and t.is_meta for t in tensors):
        return False
    return torch_route(*tensors) != _DISPATCH
