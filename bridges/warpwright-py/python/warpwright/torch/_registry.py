"""Operators of PyTorch's dispatcher (`torch.ops.warpwright`), and whether a call needs them."""

from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Any, Callable, List, Optional

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .._native import implement_operator, operator_failed, recorded, recording_wanted, torch_route
from ._allocations import observed
from ._transforms import break_graph_of_transform, no_forward_mode, takes_derivatives, transformable

_NAMESPACE = "warpwright"
_library = torch.library.Library(_NAMESPACE, "FRAGMENT")
# The strides of a result follow from those of the arguments, so a compiler must keep them.
_TAGS = tuple(
    getattr(torch.Tag, name) for name in ("pt2_compliant_tag", "needs_exact_strides") if hasattr(torch.Tag, name)
)
# Of what compiles, the tracer alone is not seen by `torch_route`: it does not run this code but reads it.
is_compiling = torch.compiler.is_dynamo_compiling
# `torch_route` says how a call is made: through the dispatcher, or directly.
_DISPATCH, DIRECT = range(2)
# What a gradient that is registered runs under; None in a release without it.
_below_autograd = getattr(torch._C, "_AutoDispatchBelowAutograd", None)


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

    @cached_property
    def _types(self) -> List[str]:
        """The types of the arguments."""
        return [a.split(" ")[0] for a in self._arguments]

    def register(self) -> "Registered":
        """Registers the operator, without a gradient, and behind it one that does the work."""
        name, inner_name, function = self.name, f"_{self.name}", self.functional or self.native

        def run(*arguments: Any) -> Any:
            with torch.no_grad():
                return function(*arguments)

        inner = self._define(inner_name)
        _library.impl(inner_name, run, "CPU")
        # Who calls it records no gradient.
        _library.impl(inner_name, torch.library.fallthrough_kernel, "Autograd")
        if not self._implement(inner_name, run):
            _library.impl(inner_name, run, "CUDA")
        outer = self._define(name)
        for key in ("CPU", "CUDA"):
            _library.impl(name, inner, key)
        return Registered(outer, inner)

    def _define(self, name: str) -> Any:
        """The operator of this schema under a name, for tracers too."""
        _library.define(name + self.schema[len(self.name) :], tags=_TAGS)
        torch.library.register_fake(f"{_NAMESPACE}::{name}", self.fake, lib=_library)
        return getattr(getattr(torch.ops, _NAMESPACE), name).default

    def _implement(self, name: str, run: Callable[..., Any]) -> bool:
        """Puts a function without Python behind the operator `name` on GPUs, if this PyTorch has the interface for it. Calls that are
        like none before go to `run`, by way of an operator of its own."""
        results, in_python = self.results, f"{name}_in_python"
        if not results or "Tensor[]" in self.schema.split("->")[1]:
            return False
        if not implement_operator(_NAMESPACE, name, self._types, results, f"{_NAMESPACE}::{in_python}", "CUDA"):
            return False

        def call(*arguments: Any) -> Any:
            try:
                if not recording_wanted():
                    return run(*arguments)
                found, allocations = observed(run, arguments)
                recorded(allocations)
                return found
            except Exception as error:
                # It must not pass the functions of C on its way: `operator_error` finds it again.
                operator_failed(error)
                nothing = [torch.empty(0) for _ in range(results)]
                return tuple(nothing) if self.has_tuple else nothing[0]

        _library.define(in_python + self.schema[len(self.name) :])
        _library.impl(in_python, call, "CUDA")
        return True


@dataclass(frozen=True)
class Registered:
    """An operator of the dispatcher.

    outer: with its gradient. inner: the same without, which is what compiled code calls.
    """

    outer: Any
    inner: Any

    def without_gradient(self) -> Any:
        """The operator, if it is to have none."""
        name, inner = _name_of(self.outer), self.inner

        def call(*arguments: Any) -> Any:
            refuse_tangents(name, arguments)
            with _below_autograd():
                return inner(*arguments)

        if _below_autograd is not None:
            _library.impl(name, call, "Autograd")
        return self.outer


def _name_of(operator: Any) -> str:
    return operator.name().split(".")[0].split("::")[1]


def register_gradient(
    operator: Registered, differentiate: Callable[..., Any], setup_context: Callable[..., Any]
) -> Callable[..., Any]:
    """Gives an operator its gradient. The operator as functional transforms take derivatives of it, too."""
    outer, inner = operator.outer, operator.inner
    name = _name_of(outer)
    if _below_autograd is None or "Tensor[]" in str(outer._schema):
        qualified = f"{_NAMESPACE}::{name}"
        torch.library.register_autograd(qualified, differentiate, setup_context=setup_context, lib=_library)
    else:
        _library.impl(name, _recorder(name, inner, differentiate, setup_context), "Autograd")
    transformed = transformable(name, outer, differentiate, setup_context)

    def call(*arguments: Any) -> Any:
        if is_compiling():
            break_graph_of_transform()
            return outer(*arguments)
        return transformed(*arguments) if takes_derivatives() else outer(*arguments)

    return call


def _recorder(
    name: str, inner: Any, differentiate: Callable[..., Any], setup_context: Callable[..., Any]
) -> Callable[..., Any]:
    """What `torch.library.register_autograd` registers, but that it calls `inner`: a graph that is traced then has no operator with
    a gradient in it, which would ask in every call of compiled code whether one is wanted."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> Any:
            with _below_autograd():
                found = inner(*arguments)
                setup_context(ctx, arguments, found)
            return found

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return differentiate(ctx, *grads)

    Function.__name__ = Function.__qualname__ = f"{name}Gradient"

    def call(*arguments: Any) -> Any:
        refuse_tangents(name, arguments)
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*arguments):
            return Function.apply(*arguments)
        with _below_autograd():
            return inner(*arguments)

    return call


def register_composite(schema: str, function: Callable[..., Any]) -> Any:
    """An operator that is made of others, which do what autograd, tracers and devices want of it: `function` runs wherever it is called."""
    name = schema.split("(")[0]
    _library.define(schema, tags=_TAGS)

    def call(*arguments: Any) -> Any:
        refuse_tangents(name, arguments)
        return function(*arguments)

    _library.impl(name, call, "CompositeImplicitAutograd")
    return getattr(getattr(torch.ops, _NAMESPACE), name).default


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
