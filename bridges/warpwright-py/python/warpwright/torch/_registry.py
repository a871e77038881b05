"""How an operation becomes a PyTorch operator.

Every operation exists twice. As operators of the dispatcher (`torch.ops.warpwright`), forward and backward, for whatever
traces, transforms or watches: `torch.compile`, fake tensors, functional transforms, modes. And as direct calls of the
native functions under a plain `torch.autograd.Function`, for eager code that nothing watches: the dispatcher's detour
through Python costs several times what the whole call does. Both give the same tensors with the same strides.
"""

import inspect
from typing import Any, Callable, Optional, Tuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .._native import Backward, Entry, Forward, torch_route

_library = torch.library.Library("warpwright", "FRAGMENT")
# The strides of a result follow from those of the arguments, so a compiler must keep them.
_TAGS = tuple(
    getattr(torch.Tag, name) for name in ("pt2_compliant_tag", "needs_exact_strides") if hasattr(torch.Tag, name)
)
# Of what compiles, the tracer alone is not seen by `torch_route`: it does not run this code but reads it.
_is_compiling = torch.compiler.is_dynamo_compiling
# What `torch_route` says: a call goes through the dispatcher, or is made directly.
_DISPATCH, _DIRECT = range(2)
# What PyTorch looks up on the class in every call, by strings of its own that no cache knows: found sooner on the class itself
# than on its bases.
_LOOKED_UP = [a for a in ("setup_context", "clear_saved_tensors_on_access") if hasattr(torch.autograd.Function, a)]


def define(schema: str, function: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """A new operator without a gradient."""
    name = schema.split("(")[0]

    def run(*arguments: Any) -> Any:
        refuse_tangents(name, arguments)
        with torch.no_grad():
            return function(*arguments)

    _library.define(schema, tags=_TAGS)
    for key in ("CPU", "CUDA"):
        _library.impl(name, run, key)
    torch.library.register_fake(f"warpwright::{name}", fake, lib=_library)
    return getattr(torch.ops.warpwright, name).default


def refuse_tangents(name: str, arguments: Any) -> None:
    """Refuses a tensor with a tangent, which would be taken for a constant."""
    if forward_ad._current_level < 0:
        return
    for argument in arguments:
        if isinstance(argument, (list, tuple)):
            refuse_tangents(name, argument)
        elif isinstance(argument, Tensor) and forward_ad.unpack_dual(argument).tangent is not None:
            raise NotImplementedError(
                f"warpwright: {name} has no forward-mode derivative: use reverse mode, or detach the tensor"
            )


def direct(*tensors: Any) -> bool:
    """Whether the native function may be called without the dispatcher, in code that records no gradient."""
    if _is_compiling() or any(t is not None and t.is_meta for t in tensors):
        return False
    return torch_route(*tensors) != _DISPATCH


def register_gradient(operator: Any, differentiate: Callable[..., Any], setup_context: Callable[..., Any]) -> None:
    """Gives an operator its gradient."""
    name = operator.name().split(".")[0]
    torch.library.register_autograd(name, differentiate, setup_context=setup_context, lib=_library)


def differentiable(
    forward: str,
    native: Callable[..., Any],
    fake: Callable[..., Any],
    backward: str,
    native_backward: Callable[..., Any],
    fake_backward: Callable[..., Any],
    count: int,
    save: Optional[Callable[[Any, Any], Tuple[Any, ...]]] = None,
    inference: Optional[Callable[..., Any]] = None,
    functional: Optional[Callable[..., Any]] = None,
    dispatched_backward: Optional[Callable[..., Any]] = None,
    finish: Optional[Callable[[Any, Any], None]] = None,
    results: int = 1,
    returned: Optional[int] = None,
) -> Callable[..., Any]:
    """An operation as a function whose first `results` results have gradients: one tensor, or a tuple. It returns the first
    `returned`, of which the others have no gradient; by default those with gradients alone.

    forward, backward: the schemas. The first `count` arguments are tensors or None, the rest parameters. What `native`
    gives beyond the results is for the gradient. `save(inputs, all)` names the tensors that it takes (the tensors among
    the inputs, if it is None): `native_backward(*saved, *dys, *parameters)` gives the gradients of the first arguments,
    one or a tuple, None where there is none. `inference` makes the results alone, where nothing is recorded. Where `native`
    changes its arguments, `functional` is the same without, and `finish(inputs, all)` makes the changes. Where
    `native_backward` gives one tensor twice, `dispatched_backward` gives a copy, as operators must.
    """
    name = forward.split("(")[0]
    several = "(" in backward.split("->")[1]
    has_parameters = forward.split("->")[0].count(",") >= count
    many_results = "(" in forward.split("->")[1]
    saved_of = save or (lambda inputs, all_of: inputs[:count])
    given = results if returned is None else returned

    def wanted(found: Any) -> Any:
        """The results among all that was computed."""
        if not many_results:
            return found
        return found[0] if given == 1 else found[:given]

    def unsaved(*inputs: Any) -> Any:
        return wanted(native(*inputs))

    plain = inference or (unsaved if many_results else native)

    def whole_backward(*arguments: Any) -> Any:
        found = (dispatched_backward or native_backward)(*arguments)
        if not several:
            return found
        # A schema has no place for None.
        nothing = next(g for g in found if g is not None)
        return tuple(nothing.new_empty(0) if g is None else g for g in found)

    operator = define(forward, functional or native, fake)

    def dispatched(*inputs: Any) -> Any:
        # Below a functional transform the operator sees tensors without their tangents.
        refuse_tangents(name, inputs)
        found = operator(*inputs)
        if finish is not None:
            finish(inputs, found)
        return wanted(found)

    gradient_operator = define(backward, whole_backward, fake_backward)

    def twice(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(f"warpwright: {name} has no second derivative")

    register_gradient(gradient_operator, twice, lambda ctx, inputs, output: None)

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        found = output if many_results else (output,)
        ctx.save_for_backward(*saved_of(inputs, found))
        if many_results:
            ctx.mark_non_differentiable(*found[results:])
        ctx.parameters = inputs[count:]

    def through_operator(ctx: Any, dys: Any, parameters: Any) -> Any:
        found = gradient_operator(*ctx.saved_tensors, *dys, *parameters)
        # Where there is no gradient, the operator has an empty tensor.
        return tuple(g if need else None for g, need in zip(found, ctx.needs_input_grad)) if several else found

    def for_inputs(found: Any, parameters: Any) -> Any:
        """Gradients for the tensors, None for the rest."""
        found = found if several else (found,)
        return (*found, *([None] * (count - len(found) + len(parameters))))

    def differentiate(ctx: Any, *dys: Any) -> Any:
        return for_inputs(through_operator(ctx, dys[:results], ctx.parameters), ctx.parameters)

    register_gradient(operator, differentiate, setup_context)

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            found = native(*inputs)
            if save is None:
                ctx.save_for_backward(*inputs[:count])
            else:
                ctx.save_for_backward(*save(inputs, found if many_results else (found,)))
            if has_parameters:
                ctx.parameters = inputs[count:]
            if given > results:
                ctx.mark_non_differentiable(*found[results:given])
                # No zeros for gradients that nobody takes.
                ctx.set_materialize_grads(False)
            return wanted(found)

        @staticmethod
        def backward(ctx: Any, *dys: Any) -> Any:
            saved, dys = ctx.saved_tensors, dys[:results]
            parameters = ctx.parameters if has_parameters else ()
            if given > results and all(dy is None for dy in dys):
                return (None,) * (count + len(parameters))
            if not _is_compiling() and torch_route(*saved, *dys) == _DIRECT:
                found = native_backward(*saved, *dys, *parameters)
            else:
                found = through_operator(ctx, dys, parameters)
            return for_inputs(found, parameters) if several or parameters else found

    class Plain(torch.autograd.Function):
        """The same where there is nothing but tensors: what takes microseconds to compute feels every line of Python."""

        forward = staticmethod(Forward(native))

        @staticmethod
        def backward(ctx: Any, dy: Tensor) -> Any:
            return through_operator(ctx, (dy,), ())

    plain_inputs = save is None and not has_parameters and not many_results
    if plain_inputs:
        Function = Plain  # type: ignore[misc]
    Function.__name__ = Function.__qualname__ = f"{name}Function"
    for attribute in _LOOKED_UP:
        setattr(Function, attribute, inspect.getattr_static(Function, attribute))
    # What `Function.apply` comes down to where no functional transform is active, and what a node's own `apply` does.
    apply = super(torch.autograd.Function, Function).apply
    node_apply = Backward(native_backward, Function.backward) if plain_inputs else Function.backward
    Function._backward_cls.apply = node_apply  # type: ignore[attr-defined]

    entry = Entry(count, plain, apply, dispatched)

    def of_many(*inputs: Any) -> Any:
        return dispatched(*inputs) if _is_compiling() else entry(*inputs)

    def of_one(x: Tensor) -> Tensor:
        return dispatched(x) if _is_compiling() else entry(x)

    function = of_many if count > 1 or has_parameters else of_one
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{native.__doc__}\n\nDifferentiable."
    return function
