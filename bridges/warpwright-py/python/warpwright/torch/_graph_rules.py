"""Where graphs of PyTorch's calls have one of ours put in, and why not elsewhere."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Node

from . import _batch, _conv, _cross_entropy, _embedding, _graph_feed_forward, _groups, _linear_cross_entropy, _matmul, _pool, _rows
from ._attention import scaled_dot_product_attention
from ._graph_nodes import (
    Change, Decision, Reason, are_recorded, calls, constant, given, hindrance, moved, names_of, only_user, other_summand, retyped, same, tensor,
)  # fmt: skip
from ._linear_bias import traced_linear
from ._patch_attention import attention_of_views
from ._patch_rules import LOW, attention_reason, attention_refusal, conv_reason, one_launch_reason

_RELU = {F.relu, torch.relu, F.relu_, torch.relu_}
_FLOAT = ("float", "to", "type")
_VIEWS = ("view", "reshape", "flatten", "contiguous", "unflatten", "squeeze", "unsqueeze")


def _even(*extents: Any) -> bool:
    return all(isinstance(n, int) and n % 8 == 0 for n in extents)


_CONVOLUTIONS = {torch.conv2d, torch.conv3d, F.conv2d, F.conv3d}


def _other_layout(node: Node, x: Tensor) -> Reason:
    """Whether Inductor would have images in another order than they are in, which ours keep: where channels come first, and it convolves."""
    if x.dim() not in (4, 5) or same((x.stride(1),), (1,)):
        return None
    if any(calls(n, _CONVOLUTIONS) for n in node.graph.nodes):
        return "Inductor gives images whose channels come first another order"
    return None


def _of_images(node: Node, x: Any, *others: Any) -> Reason:
    """Why an operation of images, or of what else has channels, is left."""
    found = tensor(x)
    return "not of a tensor" if found is None else retyped(x, *others, node) or _other_layout(node, found)


# Attention.

_ATTENTION = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


def _unrepeated(node: Any) -> Tuple[Any, int]:
    """Heads of keys or values before each was repeated for the queries of its group, and how often it was."""
    if calls(node, methods=("repeat_interleave",)) or calls(node, (torch.repeat_interleave,)):
        a = given(node, ("input", "repeats", "dim"))
        times = a.get("repeats")
        return (a["input"], times) if isinstance(times, int) and a.get("dim") in (1, -3) else (node, 1)
    if not calls(node, methods=("reshape",)):
        return node, 1
    wide = node.args[0]
    if not calls(wide, methods=("expand",)):
        return node, 1
    lifted = wide.args[0]
    inserted = calls(lifted, (operator.getitem,)) and lifted.args[1][:3] == (slice(None), slice(None), None)
    if not (inserted or (calls(lifted, methods=("unsqueeze",)) and lifted.args[1:] == (2,))):
        return node, 1
    source = lifted.args[0]
    one, spread, all_ = tensor(source), tensor(wide), tensor(node)
    if one is None or spread is None or all_ is None or one.dim() != 4 or spread.dim() != 5 or all_.dim() != 4:
        return node, 1
    b, h, s, d = one.shape
    times = spread.shape[2]
    if not isinstance(h, int) or not isinstance(times, int):
        return node, 1
    right = same(spread.shape, (b, h, times, s, d)) and same(all_.shape, (b, h * times, s, d))
    return (source, times) if right else (node, 1)


def _uncopied(node: Any, at: Node) -> Any:
    """What `contiguous` copies, if the call `at` may read that itself: kernels take heads in any order."""
    if not calls(node, methods=("contiguous",)) or len(node.args) != 1 or node.kwargs or hindrance(node, at, (), node.args) is not None:
        return node
    return node.args[0]


def _masked(mask: Tensor, queries: int, keys: int) -> Optional[str]:
    """Which mask a tensor of a graph is: "none", "causal", or another."""
    if mask.dtype == torch.bool:
        seen = mask
    else:
        # Added to scores: nothing, or what leaves none of them.
        seen = mask == 0
        if not bool((seen | (mask <= torch.finfo(mask.dtype).min / 2)).all()):
            return None
    seen = seen.expand(*seen.shape[:-2], queries, keys) if seen.dim() >= 2 else seen.expand(queries, keys)
    if bool(seen.all()):
        return "none"
    return "causal" if bool((seen == torch.ones(queries, keys, dtype=torch.bool).tril()).all()) else None


def _fixed(mask: Node, queries: Any, keys: Any) -> Optional[str]:
    """The same of a node, if its result is the same in every call. Layers share masks: each is looked at once."""
    if not isinstance(queries, int) or not isinstance(keys, int):
        return None
    known = mask.meta.setdefault("warpwright_masks", {})
    if (queries, keys) not in known:
        found = constant(mask)
        known[queries, keys] = None if found is None else _masked(found, queries, keys)
    return known[queries, keys]


def _attention(node: Node) -> Decision:
    a = given(node, _ATTENTION)
    q, k, v = (tensor(a[name]) for name in _ATTENTION[:3])
    if q is None or k is None or v is None or not q.dim() == k.dim() == v.dim() == 4:
        return "not of four dimensions"
    if a.get("dropout_p", 0.0) != 0.0:
        return "dropout would drop other elements than PyTorch's"
    if not all(isinstance(t.shape[i], int) for t in (q, k, v) for i in (1, 3)):
        return "heads and their elements are not the same in every call"
    why = retyped(*(a[name] for name in _ATTENTION[:3]), node) or attention_refusal(q, k, v) or attention_reason(q.shape[-1], q, k, v)
    if why is None and q.dtype not in LOW:
        why = "attention of 32 and 64 bits is left to PyTorch"
    if why is not None:
        return why
    mask, causal, about = a.get("attn_mask"), bool(a.get("is_causal", False)), ""
    if isinstance(mask, Node):
        which = _fixed(mask, q.shape[-2], k.shape[-2])
        if which is not None:
            mask, causal, about = None, causal or which == "causal", f"a mask that is {which} in every call"
    queries, all_keys, all_values = (_uncopied(a[name], node) for name in _ATTENTION[:3])
    (keys, of_keys), (values, of_values) = _unrepeated(all_keys), _unrepeated(all_values)
    grouped = bool(a.get("enable_gqa", False))
    if of_keys != of_values or of_keys == 1:
        keys, values = all_keys, all_values
    else:
        grouped, about = True, ", ".join(filter(None, (about, f"keys of {of_keys} heads of queries")))
    if mask is None:
        return Change(attention_of_views, (queries, keys, values, causal, a.get("scale"), grouped), node, about=about)
    options = {"attn_mask": mask, "is_causal": causal, "scale": a.get("scale"), "enable_gqa": grouped}
    return Change(scaled_dot_product_attention, (queries, keys, values), node, options=options, about=about)


# Norms.

_BATCH_NORM = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")


def _relu_of(node: Node) -> Optional[Node]:
    """The ReLU of a result, if nothing else reads it."""
    user = only_user(node)
    return user if calls(user, _RELU, ("relu", "relu_")) else None


def _batch_norm(node: Node) -> Decision:
    a = given(node, _BATCH_NORM)
    if a.get("training") is not True:
        return "of inference: one of many operations on elements"
    why = _of_images(node, a["input"])
    if why is not None:
        return why
    at, absorbed, residual = node, [], None
    behind = only_user(node)
    other = other_summand(behind, node)
    if other is not None and behind is not None and _relu_of(behind) is not None:
        absorbed, at, residual = [node], behind, other
    relu = _relu_of(at)
    if relu is not None:
        absorbed, at = [*absorbed, at], relu
    arguments = tuple(a.get(name, default) for name, default in zip(_BATCH_NORM, (None, None, None, None, None, False, 0.1, 1e-5)))
    change = Change(_batch.batch_norm, arguments, at, absorbed, {"relu": relu is not None, "residual": residual})
    change.about = "with " + " and ".join(["residual"] * (residual is not None) + ["relu"]) if relu is not None else ""
    return moved(node, change) or change


def _group_norm(node: Node) -> Decision:
    a = given(node, names_of(F.group_norm))
    why = _of_images(node, a["input"], a.get("weight"))
    if why is not None:
        return why
    user = only_user(node)
    arguments = (a["input"], a["num_groups"], a.get("weight"), a.get("bias"), a.get("eps", 1e-5))
    if not calls(user, (F.silu,)) or user is None:
        return Change(_groups.group_norm, arguments, node)
    change = Change(_groups.group_norm, arguments, user, [node], {"silu": True}, about="with silu")
    return moved(node, change) or change


def _row_norm(node: Node, arguments: Tuple[Any, ...], alone: Any, with_sum: Any) -> Decision:
    why = retyped(arguments[0], *arguments[2:4], node)
    if why is not None:
        return why
    x, *rest = arguments
    # Of a sum that is read by more than the norm, too; one that is written over another tensor stays.
    if calls(x, (operator.add, torch.add), ("add",)) and len(x.args) == 2 and isinstance(x.args[0], Node):
        a, b = x.args[0], other_summand(x, x.args[0])
        early: List[bool] = []
        torch.fx.node.map_arg(rest, lambda n: early.append(n.op == "placeholder"))
        if isinstance(b, Node) and all(early) and hindrance(x, node, (), (x, *rest)) is None:
            return Change(with_sum, (a, b, *rest), node, also=x, about="with the sum before it")
    return Change(alone, arguments, node)


def _layer_norm(node: Node) -> Decision:
    a = given(node, names_of(F.layer_norm))
    arguments = (a["input"], a["normalized_shape"], a.get("weight"), a.get("bias"), a.get("eps", 1e-5))
    return _row_norm(node, arguments, _rows.layer_norm, _rows.add_layer_norm)


def _rms_norm(node: Node) -> Decision:
    a = given(node, ("input", "normalized_shape", "weight", "eps"))
    arguments = (a["input"], a["normalized_shape"], a.get("weight"), a.get("eps"))
    return _row_norm(node, arguments, _rows.rms_norm, _rows.add_rms_norm)


# Products.

_CONVOLUTION = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")


_CONVOLUTION_DEFAULTS = (None, None, None, 1, 0, 1, 1)
_OURS = {torch.conv2d: _conv.conv2d, torch.conv3d: _conv.conv3d}


def _convolution_reason(node: Node, a: Dict[str, Any]) -> Reason:
    x, weight = tensor(a["input"]), tensor(a["weight"])
    if x is None or weight is None or retyped(a["input"], a["weight"], node) is not None:
        return "of several types"
    groups, stride = a.get("groups", 1), a.get("stride", 1)
    if (groups != 1 or x.dtype not in LOW) and not all(isinstance(n, int) for n in (groups, *weight.shape)):
        return "a weight that is not the same in every call"
    strides = [stride] if isinstance(stride, int) else stride
    filters, channels, *kernel = weight.shape
    why = conv_reason(x, groups * channels, filters, groups, kernel, strides, are_recorded(a["input"], a["weight"]))
    return why or _other_layout(node, x)


def _convolution(node: Node) -> Decision:
    a = given(node, _CONVOLUTION)
    why = _convolution_reason(node, a)
    if why is not None:
        return why
    arguments = tuple(a.get(name, default) for name, default in zip(_CONVOLUTION, _CONVOLUTION_DEFAULTS))
    return _folded(node, a) or Change(_OURS[node.target], arguments, node)


def _conv_norm(
    x: Tensor, weight: Tensor, bias: Optional[Tensor], options: Any, vectors: Any, eps: float, residual: Optional[Tensor], activation: Optional[str]
) -> Tensor:
    """A convolution, and the batch norm of known statistics behind it as what it ends with; vectors: those of the norm."""
    function = _conv.conv3d if weight.dim() == 5 else _conv.conv2d
    mean, var, of_weight, of_bias = (None if v is None else v.float() for v in vectors)
    scale = torch.rsqrt(var + eps)
    scale = scale if of_weight is None else scale * of_weight
    shift = -mean if bias is None else bias.float() - mean
    shift = shift * scale if of_bias is None else shift * scale + of_bias
    return function(x, weight, shift, *options, scale=scale, residual=residual, activation=activation)


def _folded(node: Node, made: Dict[str, Any]) -> Optional[Change]:
    """A convolution with the batch norm of known statistics behind it, and with a sum and an activation behind that, if that is what there is."""
    norm = only_user(node)
    if norm is None or not calls(norm, (F.batch_norm,)):
        return None
    a = given(norm, _BATCH_NORM)
    vectors = tuple(a.get(name) for name in _BATCH_NORM[1:5])
    recorded = are_recorded(made["input"], made["weight"], made.get("bias"), *vectors)
    if a.get("training", False) is not False or a["input"] is not node or None in vectors[:2] or recorded:
        return None
    at, absorbed, about = norm, [node], ["batch norm"]
    behind = only_user(at)
    residual = other_summand(behind, at)
    if residual is not None and behind is not None:
        absorbed, at = [*absorbed, at], behind
        about.append("residual")
    act, activation = only_user(at), None
    for name, functions, methods in (("relu", _RELU, ("relu", "relu_")), ("silu", {F.silu}, ())):
        if act is not None and calls(act, functions, methods):
            absorbed, at, activation = [*absorbed, at], act, name
            about.append(name)
            break
    weight, bias, *options = (made.get(name, default) for name, default in zip(_CONVOLUTION[1:], _CONVOLUTION_DEFAULTS[1:]))
    arguments = (made["input"], weight, bias, tuple(options), vectors, a.get("eps", 1e-5), residual, activation)
    if hindrance(node, at, absorbed, (made["input"], weight, bias, *vectors, residual)) is not None:
        return None
    last = f" and {about.pop()}" if len(about) > 1 else ""
    return Change(_conv_norm, arguments, at, absorbed, about=f"with {', '.join(about)}{last}")


# Elements of a weight from which on it costs more to make its extents even than to multiply as they are.
_LARGE = 1 << 20


def _linear(node: Node) -> Decision:
    a = given(node, ("input", "weight", "bias"))
    x, weight = tensor(a["input"]), tensor(a["weight"])
    if x is None or weight is None or retyped(a["input"], a["weight"], node) is not None:
        return "of several types"
    if x.dtype not in LOW:
        return "products of 32 and 64 bits are left to PyTorch"
    if _even(*weight.shape):
        return _of_both(node, a, x, weight)
    if weight.numel() < _LARGE:
        return "Inductor makes small extents even"
    return Change(_matmul.linear, (a["input"], a["weight"], a.get("bias")), node)


def _of_both(node: Node, a: Dict[str, Any], x: Tensor, weight: Tensor) -> Decision:
    """The layer whose weight and bias have gradients of one launch, where that pays."""
    bias = a.get("bias")
    if bias is None or retyped(bias, node) is not None or not (are_recorded(a["weight"]) and are_recorded(bias)):
        return "products of 16 bits are as fast in cuBLAS if 8 divides their extents"
    rows = math.prod(x.shape[:-1]) if all(isinstance(n, int) for n in x.shape) else None
    why = one_launch_reason(x, rows, weight)
    return why or Change(traced_linear, (a["input"], a["weight"], bias), node, about="gradients of weight and bias at once")


# Losses.


def _loss(node: Node) -> Tuple[Dict[str, Any], Reason]:
    a = given(node, names_of(F.cross_entropy))
    logits, target = tensor(a["input"]), tensor(a["target"])
    if logits is None or target is None:
        return a, "not of tensors"
    if a.get("size_average") is not None or a.get("reduce") is not None:
        return a, "of options that PyTorch has given up"
    return a, None


def _before_views(node: Any) -> Tuple[Any, List[Node]]:
    """The tensor that a node is a view of which nothing else reads, and the views, the last first."""
    views: List[Node] = []
    while calls(node, methods=_VIEWS) and only_user(node) is not None:
        views.append(node)
        node = node.args[0]
    return node, views


def _before_float(node: Any) -> Tuple[Any, List[Node]]:
    """What logits of 32 bits were made of, of 16 bits, and the views behind that; the node itself if that is not how they came about."""
    at, views = _before_views(node)
    source = at.args[0] if calls(at, methods=_FLOAT) and only_user(at) is not None else None
    before, after = tensor(source), tensor(at)
    if before is None or after is None or before.dtype not in LOW or after.dtype != torch.float32 or before.device != after.device:
        return node, []
    return source, [*views, at]


def _cross_entropy_of(node: Node) -> Decision:
    a, why = _loss(node)
    if why is not None:
        return why
    source, converted = _before_float(a["input"])
    options = {
        "weight": a.get("weight"), "ignore_index": a.get("ignore_index", -100), "reduction": a.get("reduction", "mean"),
        "label_smoothing": a.get("label_smoothing", 0.0), "dtype": torch.float32 if converted else None,
    }  # fmt: skip
    change = Change(_cross_entropy.cross_entropy, (source, a["target"]), node, list(reversed(converted)), options)
    if not converted:
        return change
    change.about, change.views = "of logits before they are converted", list(reversed(converted[:-1]))
    return moved(converted[-1], change) or change


def _linear_cross_entropy_of(node: Node) -> Decision:
    a, why = _loss(node)
    if why is not None:
        return why
    source, converted = _before_float(a["input"])
    if not converted:
        source, converted = _before_views(source)
    absorbed = list(reversed(converted))
    if not calls(source, (F.linear,)) or only_user(source) is None:
        return "its logits are not those of a linear layer alone"
    made = given(source, ("input", "weight", "bias"))
    x, logits, target = tensor(made["input"]), tensor(a["input"]), tensor(a["target"])
    if x is None or logits is None or target is None or retyped(made["input"], made["weight"], source) is not None:
        return "of several types"
    if a.get("weight") is not None or target.is_floating_point():
        return "weights of classes, or probabilities, are not taken"
    if logits.dim() != 2 or not same(logits.shape[1:], tensor(made["weight"]).shape[:1]):
        return "its logits are not rows of the layer's results"
    arguments = (made["input"], made["weight"], a["target"], made.get("bias"))
    options = {"ignore_index": a.get("ignore_index", -100), "reduction": a.get("reduction", "mean"), "label_smoothing": a.get("label_smoothing", 0.0)}
    change = Change(_rows_of_loss, arguments, node, [source, *absorbed], options, about="without logits")
    return moved(source, change) or change


def _rows_of_loss(input: Tensor, weight: Tensor, target: Tensor, bias: Optional[Tensor], **options: Any) -> Tensor:  # noqa: A002
    return _linear_cross_entropy.linear_cross_entropy(input.reshape(-1, input.shape[-1]), weight, target, bias, **options)


# Images and tables.


_POOL = ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")


def _max_pool(node: Node) -> Decision:
    a = given(node, _POOL)
    if a.pop("return_indices", False):
        return "its indices are wanted"
    return _of_images(node, a["input"]) or Change(_pool.max_pool2d, (a.pop("input"),), node, options=a)


def _embedding_of(node: Node) -> Decision:
    a = given(node, names_of(F.embedding))
    weight = tensor(a["weight"])
    if weight is None or not (weight.requires_grad and torch.is_grad_enabled()):
        return "rows are read as fast by PyTorch"
    if a.get("sparse") or a.get("max_norm") is not None:
        return "sparse gradients and max_norm are not taken"
    return Change(_embedding.embedding, (a["input"], a["weight"], a.get("padding_idx")), node, options={"scale_grad_by_freq": a.get("scale_grad_by_freq", False)})


@dataclass(frozen=True)
class Kind:
    """Calls of PyTorch's that a rule decides on. usual: whether it does so unless it is told otherwise; concerns(node): whether there is anything
    to decide at a call; early: whether it does so before kinds that are not, of which it takes several calls."""

    functions: Tuple[Any, ...]
    decide: Callable[[Node], Decision]
    usual: bool
    concerns: Callable[[Node], bool] = lambda node: True
    early: bool = False


KINDS: Dict[str, Kind] = {
    "attention": Kind((F.scaled_dot_product_attention,), _attention, True),
    "batch_norm": Kind((F.batch_norm,), _batch_norm, True),
    "conv": Kind((torch.conv2d, torch.conv3d), _convolution, True),
    # Before the loss alone.
    "linear_cross_entropy": Kind((F.cross_entropy,), _linear_cross_entropy_of, False),
    "cross_entropy": Kind((F.cross_entropy,), _cross_entropy_of, True),
    "gated_mlp": Kind((F.silu, F.gelu, torch.tanh), _graph_feed_forward.decide, True, _graph_feed_forward.is_gated_mlp, True),
    "mlp": Kind((F.gelu, F.relu, F.silu, torch.relu, torch.tanh), _graph_feed_forward.decide, True, _graph_feed_forward.is_mlp, True),
    "embedding": Kind((F.embedding,), _embedding_of, False),
    "group_norm": Kind((F.group_norm,), _group_norm, True),
    "layer_norm": Kind((F.layer_norm,), _layer_norm, False),
    "linear": Kind((F.linear,), _linear, True),
    "pool": Kind((F.max_pool2d,), _max_pool, True),
    # PyTorch has it from 2.4 on.
    "rms_norm": Kind(tuple(of.rms_norm for of in (torch, F) if hasattr(of, "rms_norm")), _rms_norm, False),
}
