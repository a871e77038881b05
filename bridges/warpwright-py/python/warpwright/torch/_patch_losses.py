"""Losses of causal language models of transformers, with and without their last layer; `warpwright.torch.patch` is for users."""

import ast
import functools
import inspect
import textwrap
from typing import Any, Callable, Optional

import torch
from torch import Tensor

from ._cross_entropy import cross_entropy
from ._linear_cross_entropy import linear_cross_entropy
from ._patch_modules import Replaced, Replacement


class CausalLoss:
    """The loss of the next token, as transformers' `ForCausalLMLoss`."""

    def __init__(self, replacement: Replacement, theirs: Callable[..., Tensor]) -> None:
        self.replacement, self.theirs = replacement, theirs

    def __call__(
        self,
        logits: Tensor,
        labels: Any,
        vocab_size: int,
        num_items_in_batch: Any = None,
        ignore_index: int = -100,
        shift_labels: Optional[Tensor] = None,
        **options: Any,
    ) -> Tensor:
        def ours() -> Tensor:
            target = shift_labels
            if target is None:
                target = torch.nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
            reduction = "mean" if num_items_in_batch is None else "sum"
            loss = self._of_rows(logits, vocab_size, target.reshape(-1).to(logits.device), ignore_index, reduction)
            if num_items_in_batch is None:
                return loss
            items = num_items_in_batch
            return loss / (items.to(loss.device) if isinstance(items, Tensor) else items)

        def theirs() -> Tensor:
            found = self._logits(logits)
            return self.theirs(found, labels, vocab_size, num_items_in_batch, ignore_index, shift_labels, **options)

        return self.replacement.run(ours, theirs, self, logits, None)

    def _of_rows(self, logits: Tensor, classes: int, target: Tensor, ignore_index: int, reduction: str) -> Tensor:
        # The loss in 32 bits, whatever the logits.
        rows, dtype = logits.view(-1, classes), torch.float32
        return cross_entropy(rows, target, ignore_index=ignore_index, reduction=reduction, dtype=dtype)

    def _logits(self, logits: Tensor) -> Tensor:
        return logits


class HeadLoss(CausalLoss):
    """The same of the input of the model's last layer, which leaves its product to the loss."""

    def __init__(self, replacement: Replacement, theirs: Callable[..., Tensor], head: Any) -> None:
        super().__init__(replacement, theirs)
        self.head = head

    def _of_rows(self, logits: Tensor, classes: int, target: Tensor, ignore_index: int, reduction: str) -> Tensor:
        if not self.head._warpwright_passes:
            return super()._of_rows(logits, classes, target, ignore_index, reduction)
        weight, bias = self.head.weight, self.head.bias
        rows = logits.reshape(-1, logits.shape[-1])
        return linear_cross_entropy(rows, weight, target, bias, ignore_index, reduction)

    def _logits(self, logits: Tensor) -> Tensor:
        return torch.nn.functional.linear(logits, self.head.weight, self.head.bias) if self.head._warpwright_passes else logits


class _Derived:
    """The first base of the classes that are made here: copies and pickles have them, too."""

    # The class that there was, and what derives from it.
    _of: type
    _derive: Callable[[type], type]

    def __reduce_ex__(self, protocol: Any) -> Any:
        make, arguments, *rest = super().__reduce_ex__(protocol)
        arguments = tuple(self._of if a is type(self) else a for a in arguments)
        return _rebuilt, (type(self)._derive, make, arguments), *rest


def _rebuilt(derive: Callable[[type], type], make: Callable[..., Any], arguments: Any) -> Any:
    module = make(*arguments)
    module.__class__ = derive(type(module))
    return module


def _derived(cls: type, forward: Callable[..., Any], derive: Callable[[type], type]) -> type:
    names = {"forward": forward, "_of": cls, "_derive": staticmethod(derive), "__module__": cls.__module__}
    return type(cls.__name__, (_Derived, cls), names)


@functools.lru_cache(maxsize=None)
def head_class(cls: type) -> type:
    """The class of last layers of `cls` that pass their input on where the loss makes their product."""
    theirs = cls.forward  # type: ignore[attr-defined]

    def forward(self: Any, x: Tensor) -> Tensor:
        return x if self._warpwright_passes else theirs(self, x)

    return _derived(cls, forward, head_class)


@functools.lru_cache(maxsize=None)
def model_class(cls: type) -> type:
    """The class of models of `cls` without logits."""
    theirs = cls.forward  # type: ignore[attr-defined]

    @functools.wraps(theirs)
    def forward(self: Any, *arguments: Any, **options: Any) -> Any:
        head = self.lm_head
        listed = options.get("return_dict") is False or not getattr(self.config, "return_dict", True)
        if options.get("labels") is None or listed or not (self.training and torch.is_grad_enabled()):
            return theirs(self, *arguments, **options)
        head._warpwright_passes = True
        try:
            found = theirs(self, *arguments, **options)
        finally:
            head._warpwright_passes = False
        found.logits = None
        return found

    return _derived(cls, forward, model_class)


def refusal(model: Any) -> Optional[str]:
    """Why a model has to make its logits."""
    head = getattr(model, "lm_head", None)
    plain = type(head) is torch.nn.Linear or (isinstance(head, Replaced) and isinstance(head, torch.nn.Linear))
    if not plain:
        return "its last layer is no torch.nn.Linear under the name lm_head"
    if head._forward_hooks or head._forward_pre_hooks or "forward" in head.__dict__ or "forward" in model.__dict__:
        return "a forward pass of its own, or hooks of its last layer"
    if not _only_loss_reads(type(model)):
        return "its logits are read by more than the loss"
    return None


@functools.lru_cache(maxsize=None)
def _only_loss_reads(cls: Any) -> bool:
    """Whether the forward pass makes `logits` by `lm_head`, once, and gives them to the loss and the output alone."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(cls.forward))))
    except (OSError, TypeError, SyntaxError):
        return False
    made, read, given = 0, 0, 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == "logits":
            stored = isinstance(node.ctx, ast.Store)
            made, read = made + stored, read + (not stored)
        elif isinstance(node, ast.Call):
            arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
            function = ast.unparse(node.func)
            takes = function == "self.loss_function" or function.endswith(("Output", "OutputWithPast", "OutputWithCrossAttentions"))
            given += takes * sum(isinstance(a, ast.Name) and a.id == "logits" for a in arguments)
    by_head = any(isinstance(node, ast.Assign) and _is_product_of_head(node) for node in ast.walk(tree))
    return by_head and made == 1 and read == given


def _is_product_of_head(node: ast.Assign) -> bool:
    """Whether it is `logits = self.lm_head(hidden_states)`, of all positions or of some."""
    value, targets = node.value, [ast.unparse(target) for target in node.targets]
    if targets != ["logits"] or not isinstance(value, ast.Call) or ast.unparse(value.func) != "self.lm_head":
        return False
    return len(value.args) == 1 and not value.keywords and ast.unparse(value.args[0]).startswith("hidden_states")
