"""Native functions as custom calls of XLA programs.

When a call is traced, the native function is called on arrays without memory: it checks its arguments, says what its results are, and
leaves a plan. The compiled program holds one custom call, with the text of the call as its attribute; the function behind it finds the
plan by the text and runs it on XLA's buffers, without Python.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Callable, Optional, Sequence, Tuple

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from .._native import plan_call, xla_handlers
from .._planned import Operand, encode

_TARGET = "warpwright"


def _register() -> None:
    if not hasattr(jax, "ffi"):
        raise ImportError(f"warpwright.jax needs JAX 0.5 or later, found {jax.__version__}")
    for handler, platform in zip(xla_handlers(), ("cpu", "CUDA")):
        jax.ffi.register_ffi_target(_TARGET, jax.ffi.pycapsule(handler), platform=platform)


_register()


@dataclass(frozen=True)
class Lead(Operand):
    """An array that may have a further dimension before the others, if all arrays of this kind have it."""


@dataclass(frozen=True)
class Either(Lead):
    """The same, but if it is the same for all samples it need not have one."""


@dataclass(frozen=True)
class Fold(Operand):
    """An array whose first dimension takes further samples behind those that there are."""


def call(function: str, *arguments: Any, **keywords: Any) -> Any:
    """Calls a native function. Its arrays are wrapped in an `Operand`, whose kind says what `jax.vmap` does with it: all of a call are of
    one kind beside plain ones, which have to be the same for all samples. Otherwise `jax.vmap` makes one call after the other."""
    text, operands = encode(function, arguments, keywords)
    kinds = tuple(type(o) for o in operands)
    return _mapped(text, kinds)(*(o.array for o in operands))


def _device() -> Optional[int]:
    """The GPU whose target calls are planned for; None for the host. A program that then runs elsewhere is planned again there."""
    return jax.local_devices()[0].local_hardware_id if jax.default_backend() == "gpu" else None


def _made(text: str, arrays: Sequence[Any]) -> Any:
    """The call in a program that is being traced."""
    found, structure = plan_call(text, [(str(a.dtype), a.shape) for a in arrays], _device())
    results = [jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for dtype, shape in found]
    made = jax.ffi.ffi_call(_TARGET, results)(*arrays, call=text)

    def at(numbers: Any) -> Any:
        return tuple(at(n) for n in numbers) if isinstance(numbers, tuple) else None if numbers is None else made[numbers]

    return at(structure)


@lru_cache(maxsize=4096)
def _mapped(text: str, kinds: Tuple[type, ...]) -> Callable[..., Any]:
    """The call as a function of its arrays."""
    function = custom_vmap(lambda *arrays: _made(text, arrays))

    def rule(size: int, in_batched: Sequence[bool], *arrays: Any) -> Any:
        if not all(issubclass(kind, (Lead, Fold)) for kind, batched in zip(kinds, in_batched) if batched):
            found = _one_by_one(function, in_batched, arrays)
        else:
            of_all = [_of_all(kind, size, batched, a) for kind, batched, a in zip(kinds, in_batched, arrays)]
            found = function(*of_all)
            if Fold in kinds:
                found = jax.tree.map(lambda y: y.reshape(size, y.shape[0] // size, *y.shape[1:]), found)
        return found, jax.tree.map(lambda _: True, found)

    function.def_vmap(rule)
    return function


def _of_all(kind: type, size: int, batched: bool, array: Any) -> Any:
    """An array of all samples, as the function takes it."""
    if not batched and kind in (Lead, Fold):
        array = jnp.broadcast_to(array, (size, *array.shape))
    return array.reshape(size * array.shape[1], *array.shape[2:]) if kind is Fold else array


def _one_by_one(function: Callable[..., Any], in_batched: Sequence[bool], arrays: Sequence[Any]) -> Any:
    """The call for one sample after the other."""

    def one(samples: Sequence[Any]) -> Any:
        samples = iter(samples)
        return function(*(next(samples) if batched else a for batched, a in zip(in_batched, arrays)))

    return jax.lax.map(one, [a for batched, a in zip(in_batched, arrays) if batched])
