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
from typing import Any, Callable, Dict, Optional, Sequence, Set, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.modules.module import _has_any_global_hook

from . import _batch, _groups, _operators, _patch_folds, _patch_scans, _resize, _rows
from ._attention import scaled_dot_product_attention
from ._feed_forward import gated_mlp as gated_feed_forward
from ._feed_forward import mlp as feed_forward
from ._images import is_recorded
from ._matmul import gated_linear
from ._patch_attention import attention_of_views, of_parts, of_views, packed_attention
from ._patch_modules import Replaced, Replacement, _unlike
from ._patch_rules import attention_refusal, attention_rule, gated_linear_rule, mlp_rule, resize_reason
from ._patch_scans import convolve, convolve_step, scan, scan_chunks, scan_heads_step, scan_step  # noqa: F401
from ._patch_sites import HELPERS, KIND_OF, Rewriter
from ._registry import is_compiling
from ._rotary import apply_rotary_pos_emb

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

    # By the kind.
    _warpwright_block: Dict[str, Replacement]
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
        return block._warpwright_block["fused"].run(ours, lambda: act(norm._original.forward(norm, x)), norm, x, _unlike)
    return block._warpwright_block["fused"].run(
        lambda: _batch_norm_relu(norm, x, None), lambda: act(norm._original.forward(norm, x)), norm, x, None
    )


def _are_folded(conv: Any, norm: Any) -> bool:
    """Whether a convolution and a norm are one operation where statistics are known."""
    return _norm(conv, "conv") and _norm(norm, "batch_norm") and _patch_folds.is_pair(conv, norm)


def _folded(block: Any, conv: Any, norm: Any, act: Any, x: Any, residual: Optional[Tensor] = None) -> Any:
    """A convolution with the norm, a tensor and the activation behind it as one; None where they are not."""
    if not _are_folded(conv, norm) or not _patch_folds.fits(conv, norm, x, residual):
        return None
    if not is_compiling() and _has_any_global_hook():
        return None
    replacement, name = block._warpwright_block["fused"], _patch_folds.ACTIVATIONS.get(_activation(act)) if act is not None else None
    rule = None if conv._warpwright.forced else conv._recipe.rule.call
    if (act is not None and name is None) or replacement.refusal(conv, x, rule) is not None:
        return None

    def apart() -> Tensor:
        y = norm(conv(x))
        y = y if residual is None else y + residual
        return y if act is None else act(y)

    return replacement.run(lambda: _patch_folds.run(conv, norm, name, x, residual), apart, conv, x, None)


def _behind(modules: Sequence[Any], at: int) -> int:
    """Where the next module behind one is that computes something."""
    at += 1
    while at < len(modules) and type(modules[at]) is torch.nn.Identity and _plain(modules[at]):
        at += 1
    return at


def _folded_in(block: Any, modules: Sequence[Any], at: int, x: Any) -> Any:
    """What a convolution and the modules behind it give as one operation, and where the next module is."""
    of_norm = _behind(modules, at)
    if of_norm >= len(modules) or not _are_folded(modules[at], modules[of_norm]):
        return None
    of_act = _behind(modules, of_norm)
    act = modules[of_act] if of_act < len(modules) and _activation(modules[of_act]) in _patch_folds.ACTIVATIONS else None
    y = _folded(block, modules[at], modules[of_norm], act, x)
    return None if y is None else (y, (of_norm if act is None else of_act) + 1)


def chain(block: Any, modules: Sequence[Any], x: Any) -> Any:
    """Modules one after the other, with pairs of them as one."""
    at, kinds = 0, block._warpwright_block
    while at < len(modules):
        module = modules[at]
        layers = _mlp_at(modules, at) if "mlp" in kinds else 0
        if layers:
            x = _mlp(block, modules[at : at + layers], x)
            at += layers
            continue
        if isinstance(module, Replaced) and "fused" in kinds:
            folded = _folded_in(block, modules, at, x)
            if folded is not None:
                x, at = folded
                continue
            behind = _behind(modules, at)
            if behind < len(modules) and _is_pair(module, modules[behind]):
                x = _pair(block, module, modules[behind], x)
                at = behind + 1
                continue
        x = module(x)
        at += 1
    return x


_IDLE = (torch.nn.Identity, torch.nn.Dropout)


def _class_of(module: Any) -> type:
    return module._original if isinstance(module, Replaced) else type(module)


def _is_transposed(module: Any) -> bool:
    """Whether a layer is one of transformers whose weight is the transpose of a linear layer's."""
    cls = _class_of(module)
    return (cls.__module__, cls.__name__) == ("transformers.pytorch_utils", "Conv1D")


def _is_linear(module: Any) -> bool:
    return _class_of(module) is torch.nn.Linear or _is_transposed(module)


def _mlp_at(modules: Sequence[Any], at: int) -> int:
    """How many modules from one on are a linear layer, an activation, what does nothing, and another linear layer; 0 if they are not."""
    if at + 2 >= len(modules) or not _is_linear(modules[at]) or _activation(modules[at + 1]) not in _patch_folds.ACTIVATIONS:
        return 0
    behind = at + 2
    while behind < len(modules) and type(modules[behind]) in _IDLE and _plain(modules[behind]):
        behind += 1
    return behind + 1 - at if behind < len(modules) and _is_linear(modules[behind]) else 0


def _weight(layer: Any) -> Tensor:
    """The weight of a layer as that of a linear one."""
    return layer.weight.t() if _is_transposed(layer) else layer.weight


def _layers_reason(*layers: Any) -> Optional[str]:
    """Why layers are no products with weights and biases alone."""
    return next(filter(None, (_layer_reason(layer) for layer in layers)), None)


def _mlp(block: Any, modules: Sequence[Any], x: Tensor) -> Tensor:
    """A feed-forward part: a linear layer, an activation, what does nothing, and another linear layer."""
    replacement = block._warpwright_block["mlp"]
    first, act, *between, second = modules

    def apart() -> Tensor:
        y = x
        for module in modules:
            y = module(y)
        return y

    why = _layers_reason(first, second)
    if why is None and any(type(m) is torch.nn.Dropout and m.training and m.p > 0 for m in between):
        why = "a dropout lies between the layers"
    if why is not None:
        return replacement.leave(why, apart)
    activation, rule = _patch_folds.ACTIVATIONS[_activation(act)], mlp_rule(first.weight, second.weight)
    ours = lambda: feed_forward(x, _weight(first), first.bias, _weight(second), second.bias, activation)  # noqa: E731
    return replacement.run(ours, apart, block, x, rule)


def _alike(a: Any, b: Any) -> bool:
    return isinstance(a, Tensor) and isinstance(b, Tensor) and a.shape == b.shape and a.dtype == b.dtype


def add_norm(block: Any, norm: Any, a: Tensor, b: Tensor) -> Tuple[Tensor, Tensor]:
    """The norm of a sum, and the sum."""

    def apart() -> Tuple[Tensor, Tensor]:
        z = a + b
        return norm(z), z

    if not (_norm(norm, "rms_norm") or _norm(norm, "layer_norm")) or not _alike(a, b):
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

    return block._warpwright_block["fused"].run(ours, theirs, norm, a, _unlike)


def add_act(block: Any, norm: Any, act: Any, x: Tensor, other: Tensor) -> Tensor:
    """An activation of what comes out of a norm and another tensor."""

    def apart(result: Tensor) -> Tensor:
        result += other
        return act(result)

    if not (_norm(norm, "batch_norm") and _activation(act) == "relu" and x.shape == other.shape and x.dtype == other.dtype):
        return apart(norm(x))
    return block._warpwright_block["fused"].run(
        lambda: _batch_norm_relu(norm, x, other), lambda: apart(norm._original.forward(norm, x)), norm, x, None
    )


def conv_add_act(block: Any, conv: Any, norm: Any, act: Any, x: Tensor, other: Tensor) -> Tensor:
    """An activation of what comes out of a convolution, a norm, and another tensor."""
    y = _folded(block, conv, norm, act, x, other) if isinstance(other, Tensor) else None
    return add_act(block, norm, act, conv(x), other) if y is None else y


_GATES = {"silu": _operators.swiglu, "gelu": _operators.geglu, "gelu_tanh": _operators.geglu_tanh}
_UNITS = {"silu": "swiglu", "gelu": "geglu", "gelu_tanh": "geglu_tanh"}


def gate(block: Any, act: Callable[[Tensor], Tensor], x: Tensor, other: Any) -> Tensor:
    """`act(x) * other`."""
    function = _GATES.get(_activation(act))
    if function is None or not isinstance(other, Tensor) or x.shape != other.shape or x.dtype != other.dtype:
        return act(x) * other
    return block._warpwright_block["fused"].run(lambda: function(x, other), lambda: act(x) * other, block, x, None)


def _product_reason(module: Any) -> Optional[str]:
    """Why a factor of a gated unit is no product with a weight and a bias alone."""
    if _class_of(module) is not torch.nn.Linear:
        return f"a factor is a {_class_of(module).__name__} with a forward pass of its own"
    return _layer_reason(module)


def _layer_reason(module: Any) -> Optional[str]:
    """Why a layer is no product with a weight and a bias alone."""
    if not _is_linear(module) or "forward" in module.__dict__:
        return f"a factor is a {_class_of(module).__name__} with a forward pass of its own"
    if not _plain(module) or (not is_compiling() and _has_any_global_hook()):
        return "a factor has a hook"
    plain = type(module.weight) in (torch.nn.Parameter, Tensor)
    return None if plain else f"a weight is a {type(module.weight).__name__}"


def _gated(
    block: Any,
    act: Callable[[Tensor], Tensor],
    layers: Sequence[Any],
    x: Tensor,
    weights: Callable[[], Sequence[Any]],
    products: Callable[[], Sequence[Tensor]],
) -> Tensor:
    """A gated unit of two products, which are of the weights and biases of one or two layers."""
    replacement = block._warpwright_block["gated_linear"]

    def apart() -> Tensor:
        first, other = products()
        return gate(block, act, first, other) if "fused" in block._warpwright_block else act(first) * other

    unit, why = _UNITS.get(_activation(act)), next(filter(None, map(_product_reason, layers)), None)
    if unit is None or why is not None:
        return replacement.leave(why or "another activation", apart)
    rule = gated_linear_rule(*(layer.weight for layer in layers))

    def ours() -> Tensor:
        gated, up, *biases = weights()
        return gated_linear(x, gated, up, unit, *biases)

    return replacement.run(ours, apart, block, x, rule)


def gate_linear(block: Any, act: Callable[[Tensor], Tensor], gated: Any, up: Any, x: Tensor) -> Tensor:
    """`act(gated(x)) * up(x)`."""
    weights = lambda: (gated.weight, up.weight, gated.bias, up.bias)  # noqa: E731
    return _gated(block, act, (gated, up), x, weights, lambda: (gated(x), up(x)))


def gated_mlp(block: Any, act: Callable[[Tensor], Tensor], gated: Any, up: Any, down: Any, x: Tensor) -> Tensor:
    """`down(act(gated(x)) * up(x))`."""
    apart = lambda: down(gate_linear(block, act, gated, up, x))  # noqa: E731
    layers = (gated, up, down)
    if not is_recorded(x, *(layer.weight for layer in layers if _is_linear(layer))):
        # The unit with its products is an operation of its own.
        return apart()
    replacement = block._warpwright_block["mlp"]
    unit, why = _UNITS.get(_activation(act)), _layers_reason(*layers)
    if unit is None or why is not None:
        return replacement.leave(why or "another activation", apart)
    rule = mlp_rule(*(layer.weight for layer in layers))

    def ours() -> Tensor:
        return gated_feed_forward(x, gated.weight, up.weight, down.weight, gated.bias, up.bias, down.bias, unit)

    return replacement.run(ours, apart, block, x, rule)


def gate_halves(block: Any, act: Callable[[Tensor], Tensor], both: Any, x: Tensor) -> Tensor:
    """`act(gated) * up`, of the halves of what `both(x)` gives."""

    def weights() -> Sequence[Any]:
        biases = (None, None) if both.bias is None else both.bias.chunk(2)
        return (*both.weight.chunk(2), *biases)

    return _gated(block, act, (both,), x, weights, lambda: both(x).chunk(2, -1))


def parts(whole: Tensor) -> Tuple[Any, Any]:
    """The parts of a tensor along its first dimension; and these with the tensor, for `attend`."""
    found = whole.unbind(0)
    return found, (whole, found)


def attend(
    block: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Optional[Tensor] = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Optional[float] = None,
    parts: Any = None,  # noqa: A002
    **options: Any,
) -> Tensor:
    """`torch.nn.functional.scaled_dot_product_attention`. parts: what queries, keys and values may be the parts of."""
    replacement, packed = block._warpwright_block["attention"], None
    if replacement.packed and attn_mask is None and (query.shape[1] == key.shape[1] or options.get("enable_gqa")):
        packed = of_parts(parts, query, key, value)
        packed = of_views(query, key, value) if packed is None else packed
    arguments = (query, key, value, attn_mask, dropout_p, is_causal)

    def ours() -> Tensor:
        if packed is None:
            if is_compiling() and replacement.packed and attn_mask is None and dropout_p == 0:
                return attention_of_views(query, key, value, is_causal, scale, bool(options.get("enable_gqa")))
            return scaled_dot_product_attention(*arguments, scale=scale, **options)
        return packed_attention(packed, query.shape[1], is_causal, scale, dropout_p)

    theirs = lambda: F.scaled_dot_product_attention(*arguments, scale=scale, **options)  # noqa: E731
    refused = attention_refusal(query, key, value)
    return replacement.run(ours, theirs, block, query, attention_rule(packed is not None), refused)


def interpolate(block: Any, input: Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest", **options: Any) -> Tensor:  # noqa: A002
    """`torch.nn.functional.interpolate`."""
    replacement = block._warpwright_block["resize"]
    rule = lambda _, x: resize_reason(mode, x, size, scale_factor)  # noqa: E731
    ours, theirs = (functools.partial(f, input, size, scale_factor, mode, **options) for f in (_resize.interpolate, F.interpolate))
    return replacement.run(ours, theirs, block, input, rule)


@functools.lru_cache(maxsize=None)
def _rotates_halves(function: Callable[..., Any]) -> bool:
    """Whether a function computes `x cos + rotate_half(x) sin` of its two first arguments, which is tried on numbers: libraries have hundreds
    of copies, and others of the same name."""
    drawn = torch.Generator().manual_seed(1)
    q, k = torch.randn(1, 2, 3, 8, generator=drawn), torch.randn(1, 1, 3, 8, generator=drawn)
    cos, sin = (torch.randn(1, 3, 4, generator=drawn).repeat(1, 1, 2) for _ in range(2))
    try:
        found = function(q, k, cos, sin)
        for x, y in zip((q, k), found):
            a, b = x.chunk(2, -1)
            if not torch.allclose(y, x * cos[:, None] + torch.cat((-b, a), -1) * sin[:, None], rtol=1e-5, atol=1e-6):
                return False
        return len(found) == 2
    except Exception:
        # One that wants more than tables is another.
        return False


def rotate(block: Any, function: Callable[..., Any], q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, **options: Any) -> Any:
    """Queries and keys rotated by tables of their positions, whose second half is as the first. options: unsqueeze_dim."""

    def rule(module: Any, x: Tensor) -> Optional[str]:
        if is_compiling():
            return "a compiler puts rotary embeddings into the kernels beside them"
        if not _rotates_halves(function):
            return "no rotation of halves"
        return None if x.dtype == k.dtype == cos.dtype == sin.dtype else "tables of another type"

    ours = lambda: apply_rotary_pos_emb(q, k, cos, sin, **options)  # noqa: E731
    return block._warpwright_block["rotary_embedding"].run(ours, lambda: function(q, k, cos, sin, **options), block, q, rule)


def given(block: Any, positions: Optional[Tensor]) -> Optional[Tensor]:
    """The positions that a caller gave."""
    if positions is None and not is_compiling():
        block._warpwright_block["attention_mask"].ran += 1
    return positions


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
    if kind in _patch_scans.HELPERS:
        function = inspect.unwrap(type(module).forward).__globals__.get(paths[0])
        return _patch_scans.is_one(kind, function)
    if kind in ("gate", "gate_linear", "gate_halves"):
        act = _resolved(module, paths[0]) if paths[0].startswith("self.") else F.silu
        return _activation(act) in _GATES and not any(map(_product_reason, (_resolved(module, path) for path in paths[1:])))
    if kind in KIND_OF and kind != "gated_mlp":
        return True
    parts = [_resolved(module, path) for path in paths]
    if kind == "gated_mlp":
        act, *layers = [part if path.startswith("self.") else F.silu for part, path in zip(parts, paths)]
        return _activation(act) in _GATES and not any(map(_layer_reason, layers))
    if kind == "add_norm":
        return _norm(parts[0], "rms_norm") or _norm(parts[0], "layer_norm")
    if kind == "conv_add_act":
        return _are_folded(*parts[:2]) or _pays(module, "add_act", paths[1:])
    if kind == "add_act":
        return _norm(parts[0], "batch_norm") and _activation(parts[1]) == "relu"
    return False


def _of_chain(modules: Sequence[Any]) -> Set[str]:
    """The kinds that there are operations of among modules one after the other."""
    mlp = any(_mlp_at(modules, at) for at in range(len(modules)))
    return {kind for kind, there in (("fused", _has_pair(modules)), ("mlp", mlp)) if there}


def _has_pair(parts: Sequence[Any]) -> bool:
    seen = [part for part in parts if type(part) is not torch.nn.Identity]
    return any(_is_pair(a, b) or _are_folded(a, b) for a, b in zip(seen, seen[1:]))


def kinds_of(module: Any, kinds: Tuple[str, ...]) -> Tuple[str, ...]:
    """Which of some kinds there are places for in a module."""
    cls = type(module)
    if _is_sequence(cls):
        return tuple(kind for kind in kinds if kind in _of_chain(list(module)))
    called = "forward" if isinstance(module, torch.nn.Module) else "__call__"
    found = rewritten(cls, kinds, called) if hasattr(cls, called) else None
    paying: Set[str] = set()
    for kind, paths in found[1] if found else ():
        if kind == "chain":
            paying |= _of_chain([_resolved(module, path) for path in paths])
        elif _pays(module, kind, paths):
            paying.add(KIND_OF.get(kind, "fused"))
    return tuple(kind for kind in kinds if kind in paying)
