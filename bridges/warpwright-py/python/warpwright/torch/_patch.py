"""`patch`: what a model computes with PyTorch, computed with our operators."""

import functools
from collections import Counter
from dataclasses import dataclass
from typing import Any, Callable, Collection, Dict, List, Optional, Set, Tuple

import torch

from .._errors import ArgumentError
from . import _patch_libraries as libraries
from . import _patch_losses as losses
from ._patch_blocks import Block, block_class, kinds_of
from ._patch_graphs import Captured, captured_class, graphs_of, uncapture
from ._patch_modules import RECIPES, Recipe, Replaced, Replacement, base_of, recipe_of, replaced_class
from ._replacements import expect_kinds, expect_names, table

KINDS = tuple(
    sorted(
        {recipe.kind for recipe in RECIPES.values()}
        | {"attention", "attention_mask", "causal_conv1d", "chunk_scan", "fused", "gated_linear", "linear_bias", "linear_cross_entropy", "mlp", "packed_attention"}
        | {"rotary_embedding", "selective_scan"}
    )
)
_OF_BLOCKS = (
    "fused", "gated_linear", "mlp", "attention", "attention_mask", "rotary_embedding", "resize", "causal_conv1d", "chunk_scan",
    "selective_scan",
)  # fmt: skip
_BLOCKS_OF_TORCH = (torch.nn.Sequential, torch.nn.TransformerEncoderLayer, torch.nn.TransformerDecoderLayer)
SOURCES = ("transformers", "diffusers", "timm", "torchvision")


@dataclass
class Entry:
    """A line of the report. `why`: a reason to leave the module alone; a replacement has none."""

    name: str
    cls: str
    kind: str
    why: Optional[str] = None
    replacement: Optional[Replacement] = None


class Patched:
    """The changes that `patch` made to a model. A context manager: at its end the model is as before."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.entries: List[Entry] = []
        # Whether calls without gradients are captured in graphs.
        self.captured = False
        # What puts each thing back, and what must hold before anything is.
        self._back: List[Callable[[], None]] = []
        self._checks: Dict[int, Callable[[], None]] = {}

    def __enter__(self) -> "Patched":
        return self

    def __exit__(self, *error: Any) -> None:
        self.undo()

    def undo(self) -> None:
        """Puts back what the model had. A second time it does nothing. Copies of the model stay as they are. An `ArgumentError` names a module
        that was given another class since, as FSDP does, and nothing changes."""
        for check in self._checks.values():
            check()
        self._checks.clear()
        while self._back:
            self._back.pop()()

    @functools.cached_property
    def tables_reason(self) -> Optional[str]:
        """Why rotary embeddings stay."""
        return libraries.tables_reason(self.model)

    @property
    def replaced(self) -> List[Entry]:
        """The lines of what was replaced."""
        return [entry for entry in self.entries if entry.why is None]

    def report(self) -> str:
        """A table of the modules that there are operators for: the name, the class, what became of it and why, and the calls so far, with
        those that PyTorch had and the reason. Calls in compiled code and in CUDA graphs are not counted. With graphs, how many calls were
        replays, and why others were not."""
        return "\n".join([self._table(), *self._graphs()])

    def _table(self) -> str:
        if not self.entries:
            return f"{type(self.model).__name__}: nothing to replace"
        head = ("module", "class", "replaced by", "calls", "left to PyTorch")
        return table(head, map(self._line, self.entries), [entry.kind for entry in self.replaced])

    def left(self) -> Dict[str, int]:
        """How many calls PyTorch had so far, by the reason."""
        found: Counter = Counter()
        for entry in self.replaced:
            found.update(entry.replacement.left if entry.replacement else {})
        return dict(found)

    @staticmethod
    def _line(entry: Entry) -> Tuple[str, ...]:
        if entry.replacement is None:
            return entry.name, entry.cls, "-", "", entry.why or ""
        left = "; ".join(f"{count} calls: {why}" for why, count in entry.replacement.left.items())
        return entry.name, entry.cls, entry.kind, str(entry.replacement.ran), left

    def _graphs(self) -> List[str]:
        if not self.captured:
            return []
        graphs = graphs_of(self.model)
        return ["", "calls without gradients:", graphs.report() if graphs is not None else "no calls"]

    def __repr__(self) -> str:
        return f"<Patched {type(self.model).__name__}: {len(self.replaced)} of {len(self.entries)} replaced>"


def _known_classes(model: torch.nn.Module) -> Set[str]:
    names = {cls.__name__ for cls in RECIPES}
    return names | {cls.__name__ for module in model.modules() for cls in type(module).__mro__}


def _names(model: torch.nn.Module, argument: str, value: Collection[str]) -> Set[str]:
    return expect_kinds("patch", argument, value, KINDS, _known_classes(model), " or classes of modules of the model")


@dataclass(frozen=True)
class _Choice:
    """The options of `patch`."""

    enable: Set[str]
    disable: Set[str]
    strict: bool
    emulator: bool

    def names(self, names: Set[str], cls: type, kind: str) -> bool:
        return kind in names or any(base.__name__ in names for base in cls.__mro__)

    def replacement(self, cls: type, kind: str) -> Replacement:
        packed, bias = (not self.names(self.disable, cls, name) for name in ("packed_attention", "linear_bias"))
        return Replacement(kind, self.emulator, self.strict, self.names(self.enable, cls, kind), packed, bias)


def _own_method(module: Any, recipe: Recipe) -> Optional[str]:
    for name in ("forward", recipe.method):
        if name in module.__dict__:
            return f"{name} was put on the module itself"
    return None


def _expect_class(name: str, module: Any, ours: type) -> None:
    """Refuses to take back a class that something else was derived from since, as FSDP does."""
    if type(module) is not ours:
        raise ArgumentError(
            f"patch: {name or 'the model'} was given the class {type(module).__name__} since: take that back first",
            op="patch",
            argument="model",
            expected=ours.__name__,
            got=type(module).__name__,
        )


def _chosen(module: Any, recipe: Recipe, choice: _Choice) -> Tuple[Recipe, Optional[str]]:
    """How a module is to be replaced, or a reason why it is not."""
    cls = type(module)
    why = _own_method(module, recipe) or recipe.fits(module)
    if choice.names(choice.disable, cls, recipe.kind):
        why = "disabled"
    elif why is None and not choice.names(choice.enable, cls, recipe.kind):
        why = recipe.rule.module(module)
        if why is not None and recipe.otherwise is not None:
            other, refused = _chosen(module, recipe.otherwise, choice)
            return (other, None) if refused is None else (recipe, why)
    return recipe, why


def _replace(patched: Patched, name: str, module: Any, choice: _Choice) -> None:
    cls = type(module)
    if isinstance(module, Replaced):
        patched.entries.append(Entry(name, cls.__name__, cls._recipe.kind, "replaced already"))
        return
    recipe = recipe_of(cls)
    if recipe is None:
        base = base_of(cls)
        if base is not None:
            why = f"has a forward of its own, not that of {base.__name__}"
            patched.entries.append(Entry(name, cls.__name__, RECIPES[base].kind, why))
        return
    recipe, why = _chosen(module, recipe, choice)
    if why is not None:
        patched.entries.append(Entry(name, cls.__name__, recipe.kind, why))
        return
    ours = replaced_class(cls, recipe)
    replacement = choice.replacement(cls, recipe.kind)
    module.__class__ = ours
    module._warpwright = replacement
    patched.entries.append(Entry(name, cls.__name__, recipe.kind, replacement=replacement))

    patched._checks[id(module)] = lambda: _expect_class(name, module, ours)

    def back() -> None:
        module.__class__ = cls
        del module._warpwright

    patched._back.append(back)


def _replace_block(patched: Patched, name: str, module: Any, choice: _Choice, sources: Collection[str]) -> None:
    """Pairs of operations within a block, and attention that it calls as a function."""
    if "processor" in getattr(module, "__dict__", ()):
        # Objects of diffusers that attention modules call.
        _replace_block(patched, f"{name}.processor", module.processor, choice, sources)
    cls = type(module)
    from_torch = cls in _BLOCKS_OF_TORCH
    known = from_torch or cls.__module__.split(".")[0] in sources
    if not known or isinstance(module, (Block, Replaced)) or "forward" in getattr(module, "__dict__", ()):
        return
    wanted = tuple(kind for kind in _OF_BLOCKS if not choice.names(choice.disable, cls, kind))
    kinds = kinds_of(module, wanted)
    if "rotary_embedding" in kinds:
        why = patched.tables_reason
        if why is not None:
            patched.entries.append(Entry(name, cls.__name__, "rotary_embedding", why))
            kinds = kinds_of(module, tuple(kind for kind in wanted if kind != "rotary_embedding"))
    if not kinds:
        return
    ours = block_class(cls, kinds)
    module.__class__ = ours
    module._warpwright_block = {kind: choice.replacement(cls, kind) for kind in kinds}
    for kind, replacement in module._warpwright_block.items():
        patched.entries.append(Entry(name, cls.__name__, kind, replacement=replacement))

    patched._checks[id(module)] = lambda: _expect_class(name, module, ours)

    def back() -> None:
        module.__class__ = cls
        del module._warpwright_block

    patched._back.append(back)


def _replace_attention(patched: Patched, choice: _Choice) -> None:
    """Attention and losses of models of transformers."""
    found = libraries.models(patched.model)
    if found and not libraries.register_attention():
        return
    configs: Dict[int, Any] = {}
    for name, model in found:
        cls = type(model)
        before = getattr(model.config, "_attn_implementation", None)
        if before == libraries.NAME or id(model.config) in configs:
            continue
        configs[id(model.config)] = model.config
        why = None
        if choice.names(choice.disable, cls, "attention"):
            why = "disabled"
        elif before not in ("sdpa", "eager", None):
            why = f"attention is {before!r}, which was asked for"
        elif not cls._can_set_attn_implementation():
            why = "has attention of its own"
        if why is not None:
            patched.entries.append(Entry(name, cls.__name__, "attention", why))
            continue
        replacement = choice.replacement(cls, "attention")
        _set_attention(patched, model, replacement, before)
        patched.entries.append(Entry(name, cls.__name__, "attention", replacement=replacement))


def _set_attention(patched: Patched, model: Any, replacement: Replacement, before: Any) -> None:
    config = model.config
    attending = [m for m in model.modules() if getattr(m, "config", None) is config and "_warpwright_attention" not in m.__dict__]
    config._attn_implementation_internal = libraries.NAME
    for module in attending:
        module._warpwright_attention = replacement

    def back() -> None:
        config._attn_implementation_internal = before
        for module in attending:
            del module._warpwright_attention

    patched._back.append(back)


def _capture(patched: Patched) -> None:
    """Has the model's calls without gradients captured in graphs."""
    model: Any = patched.model
    cls = type(model)
    if isinstance(model, Captured):
        patched.captured = True
        return
    if "forward" in model.__dict__:
        raise ArgumentError(
            "patch: graphs=True expects a model whose forward is its class's, and not put on the model itself",
            op="patch",
            argument="graphs",
            expected="a forward of the class",
            got="a forward of the model",
        )
    ours = captured_class(cls)
    model.__class__ = ours
    patched.captured = True

    def back() -> None:
        uncapture(model, cls)
        patched.captured = False

    patched._checks[id(model)] = lambda: _expect_class("", model, ours)
    patched._back.append(back)


def _replace_losses(patched: Patched, choice: _Choice) -> None:
    for name, model in libraries.models(patched.model):
        named = getattr(model, "loss_type", None)
        # Without a name it is this one, too.
        causal = named == "ForCausalLM" or (named is None and type(model).__name__.endswith("LMHeadModel"))
        theirs = getattr(model, "loss_function", None) if causal else None
        if theirs is None or isinstance(theirs, losses.CausalLoss):
            continue
        cls = type(model)
        if "_loss_function" in model.__dict__:
            patched.entries.append(Entry(name, cls.__name__, "cross_entropy", "has a loss function of its own"))
            continue
        if "linear_cross_entropy" in choice.enable and _leave_logits_out(patched, name, model, choice, theirs):
            continue
        if choice.names(choice.disable, cls, "cross_entropy"):
            patched.entries.append(Entry(name, cls.__name__, "cross_entropy", "disabled"))
            continue
        replacement = choice.replacement(cls, "cross_entropy")
        model._loss_function = losses.CausalLoss(replacement, theirs)
        patched._back.append(lambda model=model: model.__dict__.pop("_loss_function"))
        patched.entries.append(Entry(name, cls.__name__, "cross_entropy", replacement=replacement))


def _leave_logits_out(patched: Patched, name: str, model: Any, choice: _Choice, theirs: Any) -> bool:
    """Has the loss of a model made from the input of its last layer."""
    cls = type(model)
    why = losses.refusal(model)
    if why is not None:
        patched.entries.append(Entry(name, cls.__name__, "linear_cross_entropy", why))
        return False
    replacement = choice.replacement(cls, "linear_cross_entropy")
    head, of_head, ours = model.lm_head, type(model.lm_head), losses.model_class(cls)
    passing = losses.head_class(of_head)
    head.__class__, head._warpwright_passes, model.__class__ = passing, False, ours
    model._loss_function = losses.HeadLoss(replacement, theirs, head)
    patched._checks[id(model)] = lambda: _expect_class(name, model, ours)
    patched._checks[id(head)] = lambda: _expect_class(f"{name}.lm_head".strip("."), head, passing)
    patched.entries.append(Entry(name, cls.__name__, "linear_cross_entropy", replacement=replacement))

    def back() -> None:
        head.__class__, model.__class__ = of_head, cls
        del head._warpwright_passes, model._loss_function

    patched._back.append(back)
    return True


def patch(
    model: torch.nn.Module,
    *,
    enable: Collection[str] = (),
    disable: Collection[str] = (),
    strict: bool = False,
    emulator: bool = False,
    graphs: bool = False,
    sources: Collection[str] = SOURCES,
) -> Patched:
    """Has a model computed with our operators, in place, wherever they are faster: modules of `torch.nn`, norms, activations, attention
    and losses of transformers, and pairs of operations that blocks of libraries have one behind the other.

    Parameters, buffers, `state_dict`, hooks, flags and `isinstance` stay as they are; `type(module)` becomes a class derived from the one
    that was there. A module that has a forward of its own is left alone. A call that our operator does not take is PyTorch's: tensors on the
    CPU, types that are none of float32, float64, float16 and bfloat16, options without a counterpart.

    enable: kinds or classes that are to be replaced where they are slower, too; and "linear_cross_entropy", which has causal language
    models of transformers make no logits in training where labels are given: those of the output are None then. disable: kinds or classes to leave. Kinds are those of
    `Patched.report()`. strict: what our operator refuses is an error. emulator: tensors on the CPU go to the emulator, which is for
    tests. graphs: calls of the model that record no gradient are captured in CUDA graphs and replayed, as `graphed` does, while hooks of
    its modules run only where they are captured; a training step is captured as a whole by `graphed(step)`. sources: packages whose blocks
    are read for pairs of operations; `torch.nn.Sequential` always is.
    """
    if not isinstance(model, torch.nn.Module):
        raise ArgumentError(
            f"patch: model is a {type(model).__name__}, expected a torch.nn.Module",
            op="patch",
            argument="model",
            expected="torch.nn.Module",
            got=type(model).__name__,
        )
    choice = _Choice(_names(model, "enable", enable), _names(model, "disable", disable), strict, emulator)
    packages = expect_names("patch", "sources", sources, "names of packages")
    patched = Patched(model)
    try:
        for name, module in list(model.named_modules()):
            _replace(patched, name, module, choice)
        for name, module in list(model.named_modules()):
            _replace_block(patched, name, module, choice, packages)
        _replace_attention(patched, choice)
        _replace_losses(patched, choice)
        if graphs:
            _capture(patched)
    except BaseException:
        patched.undo()
        raise
    return patched
