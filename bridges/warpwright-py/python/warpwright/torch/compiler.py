"""A backend of `torch.compile` that puts operators of ours into a model's graph where they are faster, and leaves the rest to Inductor.

    >>> import torch
    >>> model = torch.compile(model, backend="warpwright")

It needs no import and takes the modes and options of Inductor. Options of its own: "warpwright.enable" and "warpwright.disable", sets of kinds that are to be
replaced where they are slower, too, or to be left; "warpwright.emulator": that tensors on the CPU go to the emulator, which is for tests. With `disable` of
`KINDS` it is Inductor.

`report()` says what became of the graphs that were compiled so far.

What is replaced: attention of 16 bits, where a mask that is causal in every call becomes part of the kernel, heads of keys are no longer repeated for those of queries, and
views of one product share a gradient; feed-forward layers of 16 bits, whose activations or gated units become part of the products beside them; cross entropy, of logits before
they are converted to float32; large products of 16 bits whose extents 8 does not divide, and the gradients of weights and biases of wide layers, as one; and of images whose channels come last
convolution in 16 bits, max pooling, batch norm in training with the sum and the ReLU behind it, group norm with SiLU. On demand: embedding, layer and RMS norm with
the sum before them, and the cross entropy of a linear layer whose logits are then never in memory ("linear_cross_entropy").

Unlike `warpwright.torch.patch` it sees functions, not modules, and changes nothing of the model.
"""

from __future__ import annotations

import operator
from collections import deque
from dataclasses import dataclass
from typing import Any, Callable, Collection, Deque, Dict, List, Optional, Tuple

import torch
from torch.fx import GraphModule, Node
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .._errors import ParameterError
from ._graph_nodes import Change, tensor
from ._graph_rules import KINDS as _RULES
from ._graph_rules import Kind
from ._patch_modules import FLOATS
from ._replacements import expect_kinds, table

__all__ = ["KINDS", "Line", "Report", "backend", "report", "reports", "rewrite"]

KINDS: Tuple[str, ...] = tuple(sorted(_RULES))
_OWN = "warpwright."
_KEPT = 256


@dataclass(frozen=True)
class Line:
    """A call of a graph that there is an operator of ours for. about: more of what was put in; why: a reason that it was not."""

    name: str
    kind: str
    why: Optional[str] = None
    about: str = ""


class Report:
    """What became of a graph's calls, in order."""

    def __init__(self, lines: List[Line]) -> None:
        self.lines = lines

    @property
    def replaced(self) -> List[Line]:
        """The lines of what was replaced."""
        return [line for line in self.lines if line.why is None]

    def __str__(self) -> str:
        if not self.lines:
            return "nothing to replace"
        head = ("call", "kind", "", "left to Inductor")
        lines = ((line.name, line.kind, line.about if line.why is None else "-", line.why or "") for line in self.lines)
        return table(head, lines, [line.kind for line in self.replaced])

    def __repr__(self) -> str:
        return f"<Report: {len(self.replaced)} of {len(self.lines)} replaced>"


reports: Deque[Report] = deque(maxlen=_KEPT)
"""The reports of the last graphs, the newest last."""


def report() -> str:
    """The reports of the graphs that were compiled so far, of the last 256."""
    return "\n\n".join(f"graph {number}\n{found}" for number, found in enumerate(reports)) or "no graphs"


def _elsewhere(node: Node, emulator: bool) -> Optional[str]:
    """Why there is nothing to decide on: what stands for the result is not where kernels run, or of no type of theirs."""
    found = tensor(node)
    if found is None:
        return "not a tensor"
    if is_traceable_wrapper_subclass(found):
        return f"a {type(found).__name__}"
    if not found.is_cuda and not (emulator and found.device.type == "cpu"):
        return "not on a GPU"
    return None if found.dtype in FLOATS else f"{str(found.dtype).split('.')[-1]} is not taken"


def _apply(graph: torch.fx.Graph, change: Change) -> None:
    place = change.at if change.also is None else change.also
    with graph.inserting_before(place):
        x, *rest = change.arguments
        for view in change.views:
            x = graph.create_node(view.op, view.target, (x, *view.args[1:]), view.kwargs)
        call = graph.call_function(change.function, (x, *rest), change.options)
        if change.also is None:
            results = [(change.at, call)]
        else:
            first, second = (graph.call_function(operator.getitem, (call, i)) for i in range(2))
            results = [(change.at, first), (change.also, second)]
    for old, new in results:
        new.meta = dict(old.meta)
        old.replace_all_uses_with(new)
    for old in [*(old for old, _ in results), *reversed(change.absorbed)]:
        graph.erase_node(old)


def rewrite(graph: GraphModule, *, enable: Collection[str] = (), disable: Collection[str] = (), emulator: bool = False) -> Report:
    """Puts operators of ours into a graph of calls of PyTorch's as Dynamo makes it, in place, for backends of one's own.

    enable, disable: kinds, of `KINDS`, that are replaced where they are slower, too, or are left. emulator: whether tensors on the CPU are taken. Raises
    `ParameterError` for a kind that there is not, and `ArgumentError` for what is no set.
    """
    enabled, disabled = (expect_kinds("compiler", *named, KINDS) for named in (("enable", enable), ("disable", disable)))
    chosen = {kind: rule for kind, rule in _RULES.items() if kind not in disabled and (rule.usual or kind in enabled)}
    said: List[Tuple[Node, Line]] = []
    # Calls that are part of what is put in, and the call that it was decided on.
    gone: Dict[Node, Node] = {}
    order = list(graph.graph.nodes)
    for early in (True, False):
        found: Dict[Any, List[Tuple[str, Kind]]] = {}
        for kind, rule in chosen.items():
            for function in rule.functions if rule.early == early else ():
                found.setdefault(function, []).append((kind, rule))
        for node in order:
            if node.op != "call_function" or node in gone:
                continue
            for kind, rule in found.get(node.target, ()):
                if not rule.concerns(node):
                    continue
                elsewhere = _elsewhere(node, emulator)
                decision = rule.decide(node) if elsewhere is None else elsewhere
                if isinstance(decision, str):
                    said.append((node, Line(node.name, kind, decision)))
                    continue
                said.append((node, Line(node.name, kind, about=decision.about)))
                _apply(graph.graph, decision)
                gone.update(dict.fromkeys((*decision.absorbed, decision.at), node))
                break
    place = {node: at for at, node in enumerate(order)}
    said.sort(key=lambda line: place[line[0]])
    # What nothing reads any more is Inductor's to drop: here calls that write in place look as if nothing did.
    graph.graph.lint()
    graph.recompile()
    return Report([line for node, line in said if line.why is None or gone.get(node, node) is node])


# Rows that Inductor makes longer than they are have not the strides that operators were traced with: it would copy each argument.
_UNPADDED = {"comprehensive_padding": False}


def _has_ours(graph: GraphModule, found: Report) -> bool:
    """Whether there are operators of ours in a graph, as those of patched models are before it is rewritten."""
    return bool(found.replaced) or any(getattr(node.target, "namespace", "") == "warpwright" for node in graph.graph.nodes)


def backend(graph: GraphModule, inputs: Any, *, mode: Optional[str] = None, options: Optional[Dict[str, Any]] = None) -> Callable[..., Any]:
    """`torch.compile`'s backend of the name "warpwright": `rewrite`, then Inductor with the mode and the options that are not ours."""
    from torch._inductor import list_mode_options
    from torch._inductor.compile_fx import compile_fx

    given = dict(options or {})
    own = {name[len(_OWN) :]: given.pop(name) for name in list(given) if name.startswith(_OWN)}
    for name in own:
        if name not in ("enable", "disable", "emulator"):
            expected = ("warpwright.enable", "warpwright.disable", "warpwright.emulator")
            raise ParameterError(
                f"compiler: option {_OWN + name!r}, expected one of {', '.join(expected)}", op="compiler", argument="options", expected=expected, got=_OWN + name
            )
    reports.append(rewrite(graph, **own))
    patches = {**(_UNPADDED if _has_ours(graph, reports[-1]) else {}), **(list_mode_options(mode) if mode else {}), **given}
    return compile_fx(graph, inputs, config_patches=patches or None)
