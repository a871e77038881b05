"""Blocks whose forward passes call operations of ours in place of several of PyTorch's; `warpwright.torch.patch` is for users.

The forward pass of a class is its own source with some places rewritten (`_patch_sites`), compiled with the globals of the original. Whether a
place is one operation is decided in each call: where modules are not ours, have hooks, or the operation refuses its arguments,
PyTorch's come one after the other.
"""

import __future__
import ast
import functools
import inspect
import sys
import textwrap
from typing import Any, Callable, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

from . import _batch, _groups, _operators, _rows
from ._attention import scaled_dot_product_attention
from ._patch_modules import Replaced, Replacement, _unlike
from ._patch_rules import attention_reason
from ._patch_sites import HELPERS, Rewriter

_OF_TRANSFORMERS = {
    "SiLUActivation": "silu",
    "GELUActivation": "gelu",
    "NewGELUActivation": "gelu_tanh",
    "GELUTanh": "gelu_tanh",
    "PytorchGELUTanh": "gelu_tanh",
}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Block:
    """The first base of the classes of rewritten blocks."""

    _warpwright_block: Replacement
    _original: type
    _kinds: Tuple[str, ...]

    def __reduce_ex__(self, protocol: Any) -> Any:
        _, (_, *rest), *state = super().__reduce_ex__(protocol)
        return _rebuilt, (self._original, self._kinds, *rest), *state


def _rebuilt(original: type, kinds: Tuple[str, ...], *rest: Any) -> Any:
    cls = block_class(original, kinds)
    return cls.__new__(cls, *rest)


def _plain(module: Any) -> bool:
    """Whether nothing looks on when a module is called."""
    return isinstance(module, torch.nn.Module) and not any(module.__dict__[hooks] for hooks in _HOOKS)


def _norm(module: Any, kind: str) -> bool:
    return isinstance(module, Replaced) and module._recipe.kind == kind and _plain(module)


def _activation(act: Any) -> str:
    """The name of an activation: a module's or a function's."""
    if act is F.silu:
        return "silu"
    if act is F.gelu:
        return "gelu"
    method = getattr(act, "__func__", None)
    if method is not None and (method.__module__, method.__qualname__) == ("diffusers.models.activations", "GEGLU.gelu"):
        return "gelu"
    if not _plain(act):
        return ""
    original = act._original if isinstance(act, Replaced) else type(act)
    name = original.__name__
    if original is torch.nn.GELU:
        return "gelu_tanh" if act.approximate == "tanh" else "gelu"
    if original in (torch.nn.SiLU, torch.nn.ReLU):
        return name.lower()
    if original.__module__ == "transformers.activations":
        return _OF_TRANSFORMERS.get(name, "")
    return ""


def _is_pair(norm: Any, act: Any) -> bool:
    """Whether a norm and an activation behind it are one operation."""
    return (_norm(norm, "group_norm") and _activation(act) == "silu") or (_norm(norm, "batch_norm") and _activation(act) == "relu")


def _batch_norm_relu(norm: Any, x: Tensor, residual: Optional[Tensor]) -> Tensor:
    norm._check_input_dim(x)
    training = norm.training or norm.running_mean is None
    counted = norm.num_batches_tracked if norm.training and norm.track_running_stats else None
    momentum = 0.0 if norm.momentum is None else norm.momentum
    if counted is not None and norm.momentum is None:
        momentum = 1.0 / float(counted + 1)
    running = (norm.running_mean, norm.running_var) if not norm.training or norm.track_running_stats else (None, None)
    y = _batch.batch_norm(
        x, *running, norm.weight, norm.bias, training, momentum, norm.eps, relu=True, residual=residual
    )
    if counted is not None:
        counted.add_(1)
    return y


def _pair(block: Any, norm: Any, act: Any, x: Tensor) -> Tensor:
    if norm._recipe.kind == "group_norm":
        ours = lambda: _groups.group_norm(x, norm.num_groups, norm.weight, norm.bias, norm.eps, silu=True)  # noqa: E731
        return block._warpwright_block.run(ours, lambda: act(norm._original.forward(norm, x)), norm, x, _unlike)
    return block._warpwright_block.run(
        lambda: _batch_norm_relu(norm, x, None), lambda: act(norm._original.forward(norm, x)), norm, x, None
    )


def chain(block: Any, modules: Sequence[Any], x: Any) -> Any:
    """Modules one after the other, with pairs of them as one."""
    at = 0
    while at < len(modules):
        module, behind = modules[at], at + 1
        if isinstance(module, Replaced):
            while behind < len(modules) and type(modules[behind]) is torch.nn.Identity and _plain(modules[behind]):
                behind += 1
            if behind < len(modules) and _is_pair(module, modules[behind]):
                x = _pair(block, module, modules[behind], x)
                at = behind + 1
                continue
        x = module(x)
        at += 1
    return x


def add_norm(block: Any, norm: Any, a: Tensor, b: Tensor) -> Tuple[Tensor, Tensor]:
    """The norm of a sum, and the sum."""

    def apart() -> Tuple[Tensor, Tensor]:
        z = a + b
        return norm(z), z

    if not (_norm(norm, "rms_norm") or _norm(norm, "layer_norm")) or a.shape != b.shape or a.dtype != b.dtype:
        return apart()
    eps = norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps
    shape = norm.weight.shape if norm.weight is not None else norm.normalized_shape
    # Under autocast ours would widen what PyTorch adds in 16 bits.
    if norm._recipe.name != "weight" or (torch.is_autocast_enabled(a.device.type) and a.dtype != torch.float32):
        return apart()

    def ours() -> Tuple[Tensor, Tensor]:
        if norm._recipe.kind == "rms_norm":
            return _rows.add_rms_norm(a, b, shape, norm.weight, eps)
        return _rows.add_layer_norm(a, b, shape, norm.weight, norm.bias, eps)

    def theirs() -> Tuple[Tensor, Tensor]:
        z = a + b
        return norm._original.forward(norm, z), z

    return block._warpwright_block.run(ours, theirs, norm, a, _unlike)


def add_act(block: Any, norm: Any, act: Any, x: Tensor, other: Tensor) -> Tensor:
    """An activation of what comes out of a norm and another tensor."""

    def apart(result: Tensor) -> Tensor:
        result += other
        return act(result)

    if not (_norm(norm, "batch_norm") and _activation(act) == "relu" and x.shape == other.shape and x.dtype == other.dtype):
        return apart(norm(x))
    return block._warpwright_block.run(
        lambda: _batch_norm_relu(norm, x, other), lambda: apart(norm._original.forward(norm, x)), norm, x, None
    )


_GATES = {"silu": _operators.swiglu, "gelu": _operators.geglu, "gelu_tanh": _operators.geglu_tanh}


def gate(block: Any, act: Callable[[Tensor], Tensor], x: Tensor, other: Any) -> Tensor:
    """`act(x) * other`."""
    function = _GATES.get(_activation(act))
    if function is None or not isinstance(other, Tensor) or x.shape != other.shape or x.dtype != other.dtype:
        return act(x) * other
    return block._warpwright_block.run(lambda: function(x, other), lambda: act(x) * other, block, x, None)


def attend(block: Any, query: Tensor, *arguments: Any, **options: Any) -> Tensor:
    """`torch.nn.functional.scaled_dot_product_attention`."""
    return block._warpwright_attention.run(
        lambda: scaled_dot_product_attention(query, *arguments, **options),
        lambda: F.scaled_dot_product_attention(query, *arguments, **options),
        block,
        query,
        lambda module, q: attention_reason(q),
    )


def _sequential(self: Any, input: Any) -> Any:  # noqa: A002
    return chain(self, tuple(self), input)


@functools.lru_cache(maxsize=None)
def rewritten(cls: type, kinds: Tuple[str, ...], method: str = "forward") -> Any:
    """The method of a class with its places rewritten, and the places; None if there are none or it cannot be read."""
    function = inspect.unwrap(getattr(cls, method))
    code = getattr(function, "__code__", None)
    if code is None or not set(code.co_freevars) <= {"__class__"}:
        return None
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return None
    definition = tree.body[0]
    private = (n.attr for n in ast.walk(definition) if isinstance(n, ast.Attribute))
    if not isinstance(definition, ast.FunctionDef) or any(name.startswith("__") and not name.endswith("__") for name in private):
        return None
    rewriter = Rewriter(kinds)
    rewriter.visit(definition)
    if not rewriter.sites:
        return None
    # Calls without arguments of `super` read a cell of this name.
    arguments = [ast.arg(HELPERS), ast.arg("__class__")]
    wrapper = ast.FunctionDef(
        "_make",
        ast.arguments([], arguments, None, [], [], None, []),
        [definition, ast.Return(ast.Name(definition.name, ast.Load()))],
        [],
    )
    wrapper.type_params = []
    module = ast.increment_lineno(ast.fix_missing_locations(ast.Module([wrapper], [])), code.co_firstlineno - 1)
    flags = code.co_flags & __future__.annotations.compiler_flag
    names: dict = {}
    defining = next(base for base in cls.__mro__ if method in base.__dict__)
    exec(compile(module, code.co_filename, "exec", flags, True), function.__globals__, names)
    try:
        made = names["_make"](sys.modules[__name__], defining)
    except Exception:
        # A decorator that takes no second function.
        return None
    return made, tuple(rewriter.sites)


@functools.lru_cache(maxsize=None)
def block_class(original: type, kinds: Tuple[str, ...]) -> type:
    """The class of blocks of `original` that are rewritten: modules, or objects that are called."""
    name = "forward" if issubclass(original, torch.nn.Module) else "__call__"
    method = _sequential if _is_sequence(original) else rewritten(original, kinds, name)[0]
    return type(original.__name__, (Block, original), {name: method, "_original": original, "_kinds": kinds, "__module__": original.__module__})


def _is_sequence(cls: type) -> bool:
    return issubclass(cls, torch.nn.Sequential) and cls.forward is torch.nn.Sequential.forward


def _resolved(module: Any, path: str) -> Any:
    found = module
    for name in path.split(".")[1:]:
        found = getattr(found, name, None)
    return found


def _pays(module: Any, kind: str, paths: Sequence[str]) -> bool:
    """Whether a place of a module is one operation, as the module is now."""
    if kind == "attend":
        return True
    if kind == "gate":
        act = _resolved(module, paths[0]) if paths[0].startswith("self.") else None
        return not paths[0].startswith("self.") or _activation(act) in _GATES
    parts = [_resolved(module, path) for path in paths]
    if kind == "add_norm":
        return _norm(parts[0], "rms_norm") or _norm(parts[0], "layer_norm")
    if kind == "add_act":
        return _norm(parts[0], "batch_norm") and _activation(parts[1]) == "relu"
    return _has_pair(parts)


def _has_pair(parts: Sequence[Any]) -> bool:
    seen = [part for part in parts if type(part) is not torch.nn.Identity]
    return any(_is_pair(a, b) for a, b in zip(seen, seen[1:]))


def kinds_of(module: Any, kinds: Tuple[str, ...]) -> Tuple[str, ...]:
    """Which of "fused" and "attention" there are places for in a module."""
    cls = type(module)
    if _is_sequence(cls):
        return ("fused",) if "fused" in kinds and _has_pair(list(module)) else ()
    called = "forward" if isinstance(module, torch.nn.Module) else "__call__"
    found = rewritten(cls, kinds, called) if hasattr(cls, called) else None
    paying = [kind for kind, paths in found[1] if _pays(module, kind, paths)] if found else []
    return tuple(k for k in kinds if any((kind == "attend") == (k == "attention") for kind in paying))
