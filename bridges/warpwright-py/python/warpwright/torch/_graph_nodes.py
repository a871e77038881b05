"""Nodes of the graphs that Dynamo makes of Python: what they call, with which arguments, and whether a call may move to a later place."""

from __future__ import annotations

import inspect
import operator
from dataclasses import dataclass, field
from typing import Any, Callable, Collection, Dict, Iterable, List, Optional, Sequence, Set, Tuple, Union

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Node

Reason = Optional[str]
_IN_PLACE = {
    operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv, operator.imod, operator.ipow, operator.iand, operator.ior,
    operator.ixor, operator.ilshift, operator.irshift, operator.imatmul, operator.setitem, operator.delitem,
}  # fmt: skip
# Their statistics are written.
_NORMS = {F.batch_norm: 5, F.instance_norm: 5, torch.batch_norm: 5, torch.instance_norm: 5}


@dataclass
class Change:
    """A call of ours in place of calls of PyTorch's.

    at: the call whose result it has, in whose place it is put; absorbed: those before it that go. also: a call before `at` that has the second of two results, in
    whose place it is put then. views: calls that the first argument passes before. about: more of it, for the report.
    """

    function: Callable[..., Any]
    arguments: Tuple[Any, ...]
    at: Node
    absorbed: List[Node] = field(default_factory=list)
    options: Dict[str, Any] = field(default_factory=dict)
    also: Optional[Node] = None
    views: List[Node] = field(default_factory=list)
    about: str = ""


Decision = Union[Change, str]


def value(argument: Any) -> Any:
    """An argument, or what stands for the result of the node that it is."""
    return argument.meta.get("example_value") if isinstance(argument, Node) else argument


def tensor(argument: Any) -> Optional[Tensor]:
    found = value(argument)
    return found if isinstance(found, Tensor) else None


def calls(node: Any, functions: Collection[Any] = (), methods: Collection[str] = ()) -> bool:
    """Whether a node is a call of one of these."""
    if not isinstance(node, Node):
        return False
    return (node.op == "call_function" and node.target in functions) or (node.op == "call_method" and node.target in methods)


def given(node: Node, names: Sequence[str]) -> Dict[str, Any]:
    """The arguments of a call by their names; those that are not there are missing."""
    return {**dict(zip(names, node.args)), **node.kwargs}


def names_of(function: Callable[..., Any]) -> List[str]:
    """The parameters of a function that is written in Python."""
    return list(inspect.signature(function).parameters)


def same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Whether extents are the same in every call; symbols are not asked for numbers, which would make a condition of the graph."""
    return len(a) == len(b) and all(x == y if isinstance(x, int) and isinstance(y, int) else str(x) == str(y) for x, y in zip(a, b))


def only_user(node: Node) -> Optional[Node]:
    """What takes the result of a node, if nothing else does."""
    return next(iter(node.users)) if len(node.users) == 1 else None


def other_summand(node: Optional[Node], term: Node) -> Any:
    """What a node adds to `term`, a tensor of its shape and dtype, with or without writing over it; None if it does something else."""
    if not calls(node, (operator.add, operator.iadd, torch.add), ("add", "add_")):
        return None
    if node is None or len(node.args) != 2 or node.kwargs:
        return None
    first, second = node.args
    written = node.target in (operator.iadd, "add_")
    other = second if first is term else first
    if other is term or (written and first is not term):
        return None
    a, b = tensor(other), tensor(term)
    return other if a is not None and b is not None and same(a.shape, b.shape) and a.dtype == b.dtype else None


def _written(node: Node) -> Iterable[Any]:
    """The arguments that a call writes into."""
    if node.op not in ("call_function", "call_method"):
        return ()
    first = node.args[:1]
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    found: List[Any] = [node.kwargs["out"]] if "out" in node.kwargs else []
    if node.target in _NORMS:
        return (*found, *node.args[1:3], *(node.kwargs.get(n) for n in ("running_mean", "running_var")))
    # An argument `inplace` may be given by position: of functions whose second is a number or a flag.
    flag = any(argument is True for argument in node.args[1:]) and node.op == "call_function" and hasattr(F, name)
    # Python's own `and_` and its like write nothing.
    named = name.endswith("_") and not name.endswith("__") and getattr(node.target, "__module__", "") != "_operator"
    if node.target in _IN_PLACE or named or node.kwargs.get("inplace") is True or flag:
        found.extend(first)
    return found


def _line(node: Any) -> Iterable[Node]:
    """A node, and those whose memory its result may be a view of: views are taken of first arguments."""
    while isinstance(node, Node):
        yield node
        node = next(iter(node.all_input_nodes), None)


def hindrance(first: Node, last: Node, absorbed: Collection[Node], read: Iterable[Any]) -> Optional[str]:
    """Why what `first` reads may not be read at `last` only: something between them that is not `absorbed` may write to it. Inputs of the graph do not
    share memory with one another."""
    held = {n for argument in read for n in _line(argument)}
    node = first.next
    while node is not last:
        if node.op == "root":
            return "its parts are not in order"
        if node not in absorbed:
            for target in _written(node):
                separate = isinstance(target, Node) and target.op in ("placeholder", "get_attr") and target not in held
                if target is not None and not separate:
                    return f"{node.name} writes in place between its parts"
        node = node.next
    return None


def retyped(*nodes: Any) -> Reason:
    """Autocast, or types that PyTorch makes one of."""
    dtypes = {t.dtype for t in map(tensor, nodes) if t is not None}
    return None if len(dtypes) == 1 else f"of several types: {', '.join(sorted(str(d).split('.')[-1] for d in dtypes))}"


def are_recorded(*nodes: Any) -> bool:
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in map(tensor, nodes))


def moved(first: Node, change: Change) -> Reason:
    """A reason why a change that takes several calls may not be at the last of them."""
    if first is change.at:
        return None
    read = [*change.arguments, *change.options.values()]
    return hindrance(first, change.at, change.absorbed, read)


_RANDOM = ("rand", "dropout", "bernoulli", "multinomial", "normal", "uniform", "exponential", "poisson", "seed")
_MOST_NODES, _MOST_ELEMENTS = 400, 1 << 26


def constant(node: Node) -> Optional[Tensor]:
    """The tensor that a node gives in every call, if no input of the graph has part in it: computed on the CPU."""
    example = tensor(node)
    if example is None or any(not isinstance(n, int) for n in example.shape) or example.numel() > _MOST_ELEMENTS:
        return None
    order: List[Node] = []
    seen: Set[Node] = set()

    def visit(n: Node) -> bool:
        if n in seen:
            return True
        seen.add(n)
        name = n.target if isinstance(n.target, str) else getattr(n.target, "__name__", "")
        if n.op not in ("call_function", "call_method") or any(part in name for part in _RANDOM) or any(True for _ in _written(n)):
            return False
        if len(seen) > _MOST_NODES or not all(visit(parent) for parent in n.all_input_nodes):
            return False
        order.append(n)
        return True

    if not visit(node):
        return None
    # Neither may what it is made of be written to, nor a view of that.
    if any(n in seen for user in node.graph.nodes for target in _written(user) for n in _line(target)):
        return None
    found: Dict[Node, Any] = {}
    with torch._subclasses.fake_tensor.unset_fake_temporarily(), torch.no_grad(), torch.device("cpu"):
        for n in order:
            arguments, options = torch.fx.node.map_aggregate((n.args, n.kwargs), lambda a: _on_cpu(found.get(a, a) if isinstance(a, Node) else a))
            try:
                if n.op == "call_method":
                    found[n] = getattr(arguments[0], n.target)(*arguments[1:], **options)
                else:
                    found[n] = n.target(*arguments, **options)
            except Exception:  # What does not run here is no constant.
                return None
    result = found[node]
    return result if isinstance(result, Tensor) and result.shape == example.shape else None


def _on_cpu(argument: Any) -> Any:
    if isinstance(argument, torch.device) or (isinstance(argument, str) and argument.split(":")[0] == "cuda"):
        return torch.device("cpu")
    return argument
