"""Operations with gradients.

Each exists twice. As operators of the dispatcher (`torch.ops.warpwright`), forward and backward, for whatever traces,
transforms or watches: `torch.compile`, fake tensors, functional transforms, modes. And as direct calls of the native functions
under a plain `torch.autograd.Function`, for eager code that nothing watches: the dispatcher's detour through Python costs
several times as much as the call itself. Both give the same tensors with the same strides.
"""

import inspect
from dataclasses import dataclass, replace
from typing import Any, Callable, Optional, Tuple

import torch
from torch import Tensor

from .._native import Backward, Entry, Forward, Repeated
from ._registry import Operator, is_compiling, refuse_tangents, register_gradient

# PyTorch looks these up on the class in every call, by strings of its own that no cache knows: found sooner on the class itself
# than on its bases.
_LOOKED_UP = [a for a in ("setup_context", "clear_saved_tensors_on_access") if hasattr(torch.autograd.Function, a)]
# Of a context, the gradients of the results, and the parameters.
Gradients = Callable[[Any, Any, Any], Any]


@dataclass(frozen=True)
class Differentiable:
    """An operation with a gradient: an operator for each direction, and how they hang together.

    forward: its first `results` results have gradients. The first `returned` of all are those of the operation (by default those with
    gradients alone), the rest is for the gradient.

    backward: takes the saved tensors, the gradients of the results, the parameters of `forward`, and which gradients are wanted if it
    has such a mask; gives the gradients of the first tensors of `forward`, one or a tuple, None where there is none.

    save(inputs, found): the saved tensors, of the arguments and all results of `forward`; without it they are its tensors.

    read_by: of each tensor of `forward`, the gradients that are computed from it. None is saved in place of one that no wanted gradient
    is computed from, and nothing for one that no gradient is. keep(inputs, found) has further ones.

    shared(gradients, dys, parameters, wanted): the gradients with those that are others of them, or made of gradients of the results,
    in place of what `backward`, an operator, must leave out.

    noted(inputs): what `backward` takes for parameters, where they are not those of `forward`.

    inference: makes the results alone, where nothing is recorded.

    finish(inputs, found): makes the changes to arguments that `forward.functional` leaves out.
    """

    forward: Operator
    backward: Operator
    save: Optional[Callable[[Any, Any], Tuple[Any, ...]]] = None
    read_by: Optional[Tuple[Tuple[int, ...], ...]] = None
    keep: Optional[Callable[[Any, Any], Tuple[Any, ...]]] = None
    shared: Optional[Callable[[Any, Any, Any, Any], Tuple[Any, ...]]] = None
    noted: Optional[Callable[[Any], Tuple[Any, ...]]] = None
    inference: Optional[Callable[..., Any]] = None
    finish: Optional[Callable[[Any, Any], None]] = None
    results: int = 1
    returned: Optional[int] = None

    def function(self) -> Callable[..., Any]:
        """Registers the operators. The operation as a function of tensors, then of parameters."""
        forward = self.forward
        gradients = self._gradients()
        dispatched = self._dispatched(gradients)
        # What `Function.apply` comes down to where no functional transform is active.
        apply = super(torch.autograd.Function, self._node(gradients)).apply
        entry = Entry(forward.tensors, self._unrecorded(), apply, dispatched)

        def of_many(*inputs: Any) -> Any:
            return dispatched(*inputs) if is_compiling() else entry(*inputs)

        def of_one(x: Tensor) -> Tensor:
            return dispatched(x) if is_compiling() else entry(x)

        function = of_many if forward.tensors > 1 or forward.has_parameters else of_one
        function.__name__ = function.__qualname__ = forward.name
        function.__doc__ = f"{forward.native.__doc__}\n\nDifferentiable."
        return function

    @property
    def _is_plain(self) -> bool:
        """Whether there are tensors alone, and nothing is put behind the gradients."""
        forward = self.forward
        is_plain = self.save is None and not forward.has_parameters and not forward.has_tuple
        return is_plain and self.backward.results == forward.tensors and self.shared is None

    @property
    def _given(self) -> int:
        """How many results the operation has."""
        return self.results if self.returned is None else self.returned

    def _selection(self) -> Callable[[Any], Any]:
        """Takes the results of the operation out of all that `forward` gives."""
        given = self._given
        if not self.forward.has_tuple:
            return lambda found: found
        return (lambda found: found[0]) if given == 1 else (lambda found: found[:given])

    def _saved(self, ctx: Any, inputs: Any, found: Any) -> Tuple[Any, ...]:
        """The tensors that the gradients need."""
        results = found if self.forward.has_tuple else (found,)
        if self.save is not None:
            return self.save(inputs, results)
        if self.read_by is None:
            return inputs[: self.forward.tensors]
        wanted = ctx.needs_input_grad
        read = zip(inputs, self.read_by)
        saved = tuple(x if any(wanted[g] for g in gradients) else None for x, gradients in read if gradients)
        return saved if self.keep is None else (*saved, *self.keep(inputs, results))

    def _parameters(self, inputs: Any) -> Any:
        """The parameters that `backward` takes behind the tensors."""
        return inputs[self.forward.tensors :] if self.noted is None else self.noted(inputs)

    def _mask(self, ctx: Any) -> Tuple[Any, ...]:
        """What `backward` takes last."""
        return (ctx.needs_input_grad[: self.forward.tensors],) if self.backward.has_mask else ()

    def _for_inputs(self, gradients: Any) -> Any:
        """The gradients, and None for the arguments that have none."""
        gradients = gradients if self.backward.has_tuple else (gradients,)
        return (*gradients, *([None] * (self.forward.arguments - len(gradients))))

    def _repeated(self, operator: Operator) -> Callable[..., Any]:
        """The native function, whose calls are repeated if it changes no argument. Those of nothing but tensors are as fast."""
        return operator.native if self._is_plain or operator.functional is not None else Repeated(operator.native)

    def _unrecorded(self) -> Callable[..., Any]:
        """The operation where nothing watches and nothing is recorded."""
        select = self._selection()
        if self.inference is not None:
            return Repeated(self.inference)
        native = self._repeated(self.forward)
        return (lambda *inputs: select(native(*inputs))) if self.forward.has_tuple else native

    def _gradients(self) -> Gradients:
        """The gradients by way of the dispatcher: registers the operator of the backward direction."""
        mask, wanted_of = self._mask, self._wanted()

        def without_none(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any) -> Any:
                found = function(*arguments)
                present = next(t for t in (*found, *arguments) if t is not None)
                # A schema has no place for None: an empty tensor stands for it.
                return tuple(present.new_empty(0) if g is None else g for g in found)

            return call if self.backward.has_tuple else function

        whole = replace(
            self.backward, native=without_none(self.backward.native), fake=without_none(self.backward.fake)
        )

        def twice(ctx: Any, *grads: Any) -> Any:
            raise RuntimeError(f"warpwright: {self.forward.name} has no second derivative")

        call = register_gradient(whole.register(), twice, lambda ctx, inputs, output: None)

        def gradients(ctx: Any, dys: Any, parameters: Any) -> Any:
            found = call(*ctx.saved_tensors, *dys, *parameters, *mask(ctx))
            return wanted_of(found, dys, parameters, ctx.needs_input_grad)

        return gradients

    def _wanted(self) -> Callable[[Any, Any, Any, Any], Any]:
        """Of what `backward` gives, the gradients that are wanted, and None in place of others."""
        if not self.backward.has_tuple:
            return lambda found, dys, parameters, wanted: found
        shared = self.shared

        def of(found: Any, dys: Any, parameters: Any, wanted: Any) -> Any:
            all_of_them = found if shared is None else shared(found, dys, parameters, wanted)
            return tuple(g if need else None for g, need in zip(all_of_them, wanted))

        return of

    def _dispatched(self, gradients: Gradients) -> Callable[..., Any]:
        """The operation by way of the dispatcher: registers the operator of the forward direction."""
        forward, results = self.forward, self.results
        name, operator, finish, select = forward.name, forward.register(), self.finish, self._selection()

        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(*self._saved(ctx, inputs, output))
            if forward.has_tuple:
                ctx.mark_non_differentiable(*output[results:])
            ctx.parameters = self._parameters(inputs)

        def differentiate(ctx: Any, *dys: Any) -> Any:
            return self._for_inputs(gradients(ctx, dys[:results], ctx.parameters))

        call = register_gradient(operator, differentiate, setup_context)

        def dispatched(*inputs: Any) -> Any:
            # Below a functional transform the operator sees tensors without their tangents.
            refuse_tangents(name, inputs)
            found = call(*inputs)
            if finish is not None:
                finish(inputs, found)
            return select(found)

        return dispatched

    def _node(self, gradients: Gradients) -> Any:
        """The node of the graph that a direct call leaves. What takes microseconds to compute feels every line of Python: both directions
        are objects of the native module."""
        forward, backward, for_inputs = self.forward, self.backward, self._for_inputs
        results, given, arguments, has_parameters = self.results, self._given, forward.arguments, forward.has_parameters

        class Function(torch.autograd.Function):
            @staticmethod
            def backward(ctx: Any, *dys: Any) -> Any:
                dys = dys[:results]
                if given > results and all(dy is None for dy in dys):
                    return (None,) * arguments
                return for_inputs(gradients(ctx, dys, ctx.parameters if has_parameters else ()))

        shape = forward.tensors, results, given
        Function.forward = staticmethod(
            Forward(
                self._repeated(forward), (*shape, forward.has_tuple), self.save, self.read_by, self.keep, self.noted
            )
        )
        Function.__name__ = Function.__qualname__ = f"{forward.name}Function"
        for attribute in _LOOKED_UP:
            setattr(Function, attribute, inspect.getattr_static(Function, attribute))
        # What a node's own `apply` does.
        Function._backward_cls.apply = Backward(
            self._repeated(backward), Function.backward, (*shape, backward.has_tuple), arguments, backward.has_mask, self.shared
        )
        return Function
