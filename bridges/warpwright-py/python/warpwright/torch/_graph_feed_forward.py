"""Feed-forward layers in the graphs that Dynamo makes of Python: products with an activation, or a gated unit, between them that are one call of ours."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Node

from ._feed_forward import gated_mlp, mlp
from ._graph_nodes import Change, Decision, Reason, are_recorded, calls, given, moved, names_of, retyped, same, tensor
from ._patch_rules import gated_rows_reason, mlp_reason

_UNITS = {"silu": "swiglu", "gelu_erf": "geglu", "gelu_tanh": "geglu_tanh"}
_VIEWS = ("view", "reshape", "flatten", "unflatten", "contiguous")


@dataclass(frozen=True)
class _Product:
    """A linear layer of x. transposed: whether its weight is [in, out]."""

    node: Node
    x: Any
    weight: Any
    bias: Any
    transposed: bool

    @property
    def columns(self) -> Any:
        """How many elements a row of the result has."""
        shape = tensor(self.weight).shape  # type: ignore[union-attr]
        return shape[1] if self.transposed else shape[0]


@dataclass(frozen=True)
class _Activation:
    """activation(x), which the calls of `nodes` give, the result last."""

    name: str
    x: Any
    nodes: Tuple[Node, ...]


@dataclass(frozen=True)
class _Layers:
    """A linear layer, an activation of it, in gated ones the product with another layer, and a linear layer of that. nodes: all calls but the last;
    half: which half of one layer's columns the activation is of, if the other half is the other factor."""

    activation: str
    first: _Product
    last: _Product
    nodes: List[Node]
    other: Optional[_Product] = None
    half: Optional[int] = None


def _product(node: Any) -> Optional[_Product]:
    if calls(node, (F.linear,)):
        a = given(node, ("input", "weight", "bias"))
        found = _Product(node, a["input"], a["weight"], a.get("bias"), False)
    elif calls(node, (torch.addmm,)) and len(node.args) == 3 and not node.kwargs:
        found = _Product(node, node.args[1], node.args[2], node.args[0], True)
    else:
        return None
    x, weight, bias = tensor(found.x), tensor(found.weight), tensor(found.bias)
    is_layer = x is not None and x.dim() > 1 and weight is not None and weight.dim() == 2
    return found if is_layer and (found.bias is None or (bias is not None and bias.dim() == 1)) else None


def _other_factor(node: Any, factor: float) -> Any:
    """What a node multiplies by a number, None if it does something else."""
    if not calls(node, (operator.mul, torch.mul)) or len(node.args) != 2 or node.kwargs:
        return None
    for number, other in (node.args, reversed(node.args)):
        if isinstance(number, float) and math.isclose(number, factor, rel_tol=1e-6) and isinstance(other, Node):
            return other
    return None


def _other_term(node: Any, term: Any) -> Any:
    """What a node adds to a number or a node, None if it does something else."""
    if not calls(node, (operator.add, torch.add)) or len(node.args) != 2 or node.kwargs:
        return None
    first, second = node.args
    is_term = (lambda a: a is term) if isinstance(term, Node) else (lambda a: isinstance(a, (int, float)) and a == term)
    return second if is_term(first) else first if is_term(second) else None


def _written_out(node: Node) -> Optional[_Activation]:
    """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), of its tanh."""
    inner = node.args[0]
    total = _other_factor(inner, math.sqrt(2 / math.pi))
    if not calls(total, (operator.add, torch.add)) or len(total.args) != 2:
        return None
    for x, cubic in (total.args, reversed(total.args)):
        cube = _other_factor(cubic, 0.044715)
        if calls(cube, (torch.pow, operator.pow)) and cube.args[0] is x and cube.args[1] == 3:
            break
    else:
        return None
    more = next(iter(node.users), None)
    if _other_term(more, 1) is not node or not isinstance(more, Node):
        return None
    last = next(iter(more.users), None)
    if not isinstance(last, Node) or not calls(last, (operator.mul, torch.mul)) or len(last.args) != 2:
        return None
    half = last.args[1] if last.args[0] is more else last.args[0]
    if _other_factor(half, 0.5) is not x:
        return None
    return _Activation("gelu_tanh", x, (cube, cubic, total, inner, node, more, half, last))


def _activation(node: Node) -> Optional[_Activation]:
    if calls(node, (torch.tanh,)):
        return _written_out(node)
    if calls(node, (F.gelu,)):
        a = given(node, ("input", "approximate"))
        return _Activation("gelu_tanh" if a.get("approximate") == "tanh" else "gelu_erf", a["input"], (node,))
    a = given(node, ("input", "inplace"))
    return None if a.get("inplace") else _Activation("silu" if calls(node, (F.silu,)) else "relu", a["input"], (node,))


def _is_nothing(node: Any) -> bool:
    """Whether a call leaves rows as they are: a view of as many columns, or a dropout of nothing."""
    if calls(node, (F.dropout,)):
        a = given(node, names_of(F.dropout))
        return not a.get("training", True) or a.get("p", 0.5) == 0
    before, after = (tensor(n) for n in (node.args[0], node)) if calls(node, methods=_VIEWS) else (None, None)
    return before is not None and after is not None and before.dim() > 0 and after.dim() > 0 and same(before.shape[-1:], after.shape[-1:])


def _made(node: Any) -> Tuple[Optional[_Product], List[Node]]:
    """The product that a node is the rows of, and the calls from it on."""
    passed: List[Node] = []
    while isinstance(node, Node) and _is_nothing(node):
        passed.append(node)
        node = node.args[0]
    found = _product(node)
    return found, [] if found is None else [found.node, *reversed(passed)]


def _read(node: Node) -> Tuple[Node, List[Node]]:
    """What reads the rows of a node, and the calls between."""
    passed: List[Node] = []
    while len(node.users) == 1:
        node = next(iter(node.users))
        if not _is_nothing(node):
            return node, passed
        passed.append(node)
    return node, passed


def _halves(gated: Any, up: Any) -> Optional[Tuple[_Product, List[Node]]]:
    """The product that `gated` and `up` are the halves of, and the calls from it on."""
    if not all(calls(n, (operator.getitem,)) for n in (gated, up)) or gated.args[0] is not up.args[0] or {up.args[1], gated.args[1]} != {0, 1}:
        return None
    chunk = up.args[0]
    if not (calls(chunk, methods=("chunk",)) or calls(chunk, (torch.chunk,))):
        return None
    a = given(chunk, ("input", "chunks", "dim"))
    whole = tensor(a["input"])
    if whole is None or a.get("chunks") != 2 or a.get("dim", 0) not in (-1, whole.dim() - 1):
        return None
    found, nodes = _made(a["input"])
    return None if found is None else (found, [*nodes, chunk, up, gated])


def layers_at(node: Node) -> Optional[_Layers]:
    """The layers around an activation, if there are such."""
    act = _activation(node)
    if act is None:
        return None
    result = act.nodes[-1]
    first, nodes = _made(act.x)
    user, behind = _read(result)
    other, half = None, None
    if calls(user, (operator.mul, torch.mul)) and len(user.args) == 2 and not user.kwargs and not behind:
        factor = user.args[1] if user.args[0] is result else user.args[0]
        both = _halves(act.x, factor)
        if both is not None:
            (first, nodes), half = both, act.x.args[1]
        else:
            other, others = _made(factor)
            nodes = [*nodes, *others]
        if first is None or (other is None and half is None) or act.name not in _UNITS:
            return None
        nodes = [*nodes, user]
        user, behind = _read(user)
    last = _product(user)
    if first is None or last is None or not isinstance(last.x, Node) or last.x not in [*behind, *nodes, result]:
        return None
    if other is not None and (other.x is not first.x or other.transposed != first.transposed or (other.bias is None) != (first.bias is None)):
        return None
    all_nodes = list(dict.fromkeys([*nodes, *act.nodes, *behind]))
    # Nothing else reads what is between.
    inside = {*all_nodes, user}
    if any(reader not in inside for n in all_nodes for reader in n.users):
        return None
    order = {n: at for at, n in enumerate(node.graph.nodes)}
    return _Layers(act.name, first, last, sorted(all_nodes, key=order.__getitem__), other, half)


def is_mlp(node: Node) -> bool:
    """Whether an activation is between two layers."""
    found = layers_at(node)
    return found is not None and found.other is None and found.half is None


def is_gated_mlp(node: Node) -> bool:
    """Whether an activation is part of a gated unit between layers."""
    found = layers_at(node)
    return found is not None and (found.other is not None or found.half is not None)


def _reason(found: _Layers) -> Reason:
    """Why layers are left."""
    parts = [found.first, found.last, *([] if found.other is None else [found.other])]
    tensors = [n for part in parts for n in (part.weight, part.bias) if n is not None]
    why = retyped(found.first.x, *tensors, found.last.node)
    if why is not None:
        return why
    x, result = tensor(found.first.x), tensor(found.last.node)
    weights = [tensor(part.weight) for part in parts]
    if not all(isinstance(n, int) for w in weights if w is not None for n in w.shape):
        return "weights are not of the same extents in every call"
    if x is None or result is None or not same((*x.shape[:-1], found.last.columns), result.shape):
        return "its rows are of another shape before it"
    recorded = are_recorded(found.first.x, *tensors)
    known = all(isinstance(n, int) for n in x.shape)
    rows = math.prod(x.shape[:-1]) if known else None
    if found.other is None and found.half is None:
        why = mlp_reason(x, x.dtype, rows, weights)
    elif recorded:
        why = "halves of one product have one gradient" if found.half is not None else mlp_reason(x, x.dtype, rows, weights)
    else:
        why = gated_rows_reason(x, x.dtype, rows, weights)
    if why is None and rows is None and not recorded:
        return "rows are not as many in every call"
    return why


def decide(node: Node) -> Decision:
    """What becomes of the layers around an activation."""
    found = layers_at(node)
    if found is None:
        return "no layers are beside it"
    why = _reason(found)
    if why is not None:
        return why
    first, other, last = found.first, found.other, found.last
    turned = (first.transposed, last.transposed)
    ends = (last.weight, last.bias, turned)
    if found.half is not None:
        function, arguments = _of_halves, (first.x, first.weight, first.bias, *ends, found.half, _UNITS[found.activation])
    elif other is not None:
        function, arguments = _gated, (first.x, first.weight, first.bias, other.weight, other.bias, *ends, _UNITS[found.activation])
    else:
        function, arguments = _between, (first.x, first.weight, first.bias, *ends, found.activation)
    change = Change(function, arguments, last.node, found.nodes, about=f"of {arguments[-1]}")
    return moved(found.nodes[0], change) or change


def _turn(weight: Tensor, turned: bool) -> Tensor:
    return weight.t() if turned else weight


def _between(
    x: Tensor, weight1: Tensor, bias1: Optional[Tensor], weight2: Tensor, bias2: Optional[Tensor], turned: Sequence[bool], activation: str
) -> Tensor:
    return mlp(x, _turn(weight1, turned[0]), bias1, _turn(weight2, turned[1]), bias2, activation)


def _gated(
    x: Tensor, gate: Tensor, gate_bias: Optional[Tensor], up: Tensor, up_bias: Optional[Tensor], down: Tensor, down_bias: Optional[Tensor],
    turned: Sequence[bool], unit: str,
) -> Tensor:  # fmt: skip
    gate, up = (_turn(weight, turned[0]) for weight in (gate, up))
    return gated_mlp(x, gate, up, _turn(down, turned[1]), gate_bias, up_bias, down_bias, unit)


def _of_halves(
    x: Tensor, weight: Tensor, bias: Optional[Tensor], down: Tensor, down_bias: Optional[Tensor], turned: Sequence[bool], half: int, unit: str
) -> Tensor:
    parts, biases = _turn(weight, turned[0]).chunk(2), (None, None) if bias is None else bias.chunk(2)
    (gate, up), (gate_bias, up_bias) = ((both[half], both[1 - half]) for both in (parts, biases))
    return gated_mlp(x, gate, up, _turn(down, turned[1]), gate_bias, up_bias, down_bias, unit)
