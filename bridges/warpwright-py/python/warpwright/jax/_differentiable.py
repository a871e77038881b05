"""Operations with gradients."""

from functools import lru_cache
from typing import Any, Callable, Tuple

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import CustomVJPPrimal, SymbolicZero


def differentiable(forward: Callable[..., Any], backward: Callable[..., Any]) -> Callable[..., Any]:
    """A function of arrays, or trees of them, any of which may be None, and of hashable keywords.

    forward(*arrays, save, **keywords): the result, one or a tuple, and what the gradient needs, if `save`. backward(saved, dy, wanted,
    **keywords): the gradients of the arrays, None where there is none; dy: the gradient of the result, or a tuple of theirs; wanted: of which
    arrays gradients are wanted.
    """

    @lru_cache(maxsize=4096)
    def of(keywords: Tuple[Tuple[str, Any], ...]) -> Callable[..., Any]:
        options = dict(keywords)

        @jax.custom_vjp
        def function(*arrays: Any) -> Any:
            return _leading(forward(*arrays, save=False, **options)[0])

        def record(*arrays: Any) -> Any:
            found, saved = forward(*_each(lambda a: a.value, arrays), save=True, **options)
            # Flags as a structure: as values they would be traced.
            wanted = tuple(() if any(jax.tree.leaves(_each(lambda a: a.perturbed, a))) else None for a in arrays)
            return _leading(found), (saved, wanted)

        def differentiate(recorded: Any, dy: Any) -> Any:
            saved, flags = recorded
            wanted = tuple(flag is not None for flag in flags)
            dy = jax.tree.map(_instantiated, dy, is_leaf=lambda d: isinstance(d, SymbolicZero))
            gradients = backward(saved, dy, wanted, **options)
            return tuple(g if w else None for g, w in zip(gradients, wanted))

        function.defvjp(record, differentiate, symbolic_zeros=True)
        return jax.jit(function)

    def operation(*arrays: Any, **keywords: Any) -> Any:
        return of(tuple(keywords.items()))(*jax.tree.map(jnp.asarray, arrays))

    return operation


@custom_vmap
def _leading(results: Any) -> Any:
    """Results whose dimensions of samples come first. JAX takes where those of a recorded call are from a call that is not recorded, so that
    they must be at one place in both."""
    return results


@_leading.def_vmap
def _(size: int, in_batched: Any, results: Any) -> Any:
    # Again, for a `jax.vmap` around this one.
    return _leading(results), in_batched[0]


def _each(function: Callable[[Any], Any], arrays: Any) -> Any:
    return jax.tree.map(function, arrays, is_leaf=lambda a: isinstance(a, CustomVJPPrimal))


def _instantiated(dy: Any) -> Any:
    return jnp.zeros(dy.aval.shape, dy.aval.dtype) if isinstance(dy, SymbolicZero) else dy
