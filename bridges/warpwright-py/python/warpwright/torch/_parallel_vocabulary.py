"""Embedding and cross entropy over a vocabulary that is split over the ranks of a process group (Shoeybi et al. 2019, arXiv:1909.08053);
`warpwright.torch.parallel` has them for users."""

from __future__ import annotations

from typing import Any, Optional, Tuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .. import _native
from .._errors import misranked, misshapen, refused
from ._common import of_dtype
from ._parallel_group import Ranks, described


def vocabulary_part(vocabulary: int, rank: int, size: int) -> Tuple[int, int]:
    """The first word of a rank of `size` ranks, and that behind its last: parts are as even as it goes, larger ones first."""
    each, more = divmod(vocabulary, size)
    start = rank * each + min(rank, more)
    return start, start + each + (rank < more)


def _check_words(op: str, argument: str, words: Tensor, vocabulary: int, allowed: Optional[int] = None) -> None:
    """Refuses what is no word where that costs nothing: on the CPU."""
    if words.is_floating_point() or words.is_complex() or words.dtype == torch.bool:
        raise refused(op, argument, str(words.dtype), "of an integer type")
    if words.device.type != "cpu" or not words.numel():
        return
    wrong = (words < 0) | (words >= vocabulary)
    if allowed is not None:
        wrong &= words != allowed
    if wrong.any():
        raise refused(op, argument, int(words[wrong][0]), f"from 0 to {vocabulary - 1}")


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, words: Tensor, start: int, vocabulary: int, padding_idx: Optional[int], ranks: Ranks
    ) -> Tensor:
        rows = words - start
        others = (rows < 0) | (rows >= weight.shape[0])
        skipped = others if padding_idx is None else others | (words == padding_idx)
        # The gradient leaves out the row behind the last.
        ctx.save_for_backward(rows.masked_fill(skipped, weight.shape[0]))
        ctx.rows = weight.shape[0]
        y = _native.embedding(weight, rows.masked_fill(others, 0))
        # What is no word is NaN.
        none = (words < 0) | (words >= vocabulary)
        instead = torch.zeros_like(words, dtype=y.dtype).masked_fill_(none, float("nan"))
        y = torch.where(others.unsqueeze(-1), instead.unsqueeze(-1), y)
        ranks.all_reduce(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        (rows,) = ctx.saved_tensors
        found = _native.embedding_backward(dy, rows, ctx.rows + 1, padding_idx=ctx.rows)
        return found[: ctx.rows], None, None, None, None, None


@torch.compiler.disable
def vocab_parallel_embedding(
    input: Tensor,  # noqa: A002
    weight: Tensor,
    num_embeddings: int,
    process_group: Any = None,
    *,
    padding_idx: Optional[int] = None,
) -> Tensor:
    """`warpwright.torch.embedding` of a table whose rows are split over the ranks; the result is the same on all of them.

    input: int64 or int32 of any shape, the same on all ranks; weight: [rows of this rank, dim], the part of `num_embeddings` rows that
    `vocabulary_part` gives. One all_reduce of the result; nothing in the backward pass. Differentiable in weight; the gradient of the row
    `padding_idx` is 0. An index that is no row is refused on the CPU and gives NaN on a GPU. Raises `ShapeError`, `ParameterError`, and `RankError` on
    every rank if ranks call differently.
    """
    op = "vocab_parallel_embedding"
    ranks = Ranks(op, process_group)
    start, end = _own(ranks, op, num_embeddings)
    if weight.dim() != 2:
        raise misranked(op, "weight", weight.dim(), 2)
    if weight.shape[0] != end - start:
        raise misshapen(op, "weight", weight.shape, (end - start, weight.shape[1]))
    if padding_idx is not None and not 0 <= padding_idx < num_embeddings:
        raise refused(op, "padding_idx", padding_idx, f"a row of {num_embeddings}")
    _check_words(op, "input", input, num_embeddings)
    ranks.agree(weight.device, num_embeddings=num_embeddings, weight=described(weight, 1), padding_idx=padding_idx)
    return _Embedding.apply(weight, input, start, num_embeddings, padding_idx, ranks)


def _own(ranks: Ranks, op: str, vocabulary: int) -> Tuple[int, int]:
    if vocabulary < ranks.size:
        raise refused(op, "num_embeddings", vocabulary, f"as many as the {ranks.size} ranks, or more")
    return vocabulary_part(vocabulary, ranks.rank, ranks.size)


class VocabParallelEmbedding(torch.nn.Module):
    """An embedding whose rows are split over the ranks: as evenly as it goes, `vocabulary_part` says how.

    The result is the same on all ranks. Initialised as `torch.nn.Embedding`: ranks with the same seed have parts of one table. weight: [rows of this
    rank, embedding_dim], which is what a `state_dict` holds.
    """

    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: Optional[int] = None, process_group: Any = None, *, device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        table = torch.nn.Embedding(num_embeddings, embedding_dim, padding_idx, device=device, dtype=dtype)
        self.num_embeddings, self.embedding_dim, self.padding_idx = num_embeddings, embedding_dim, table.padding_idx
        self.process_group: Any = process_group
        self._take(table)

    def _take(self, table: torch.nn.Embedding) -> None:
        ranks = Ranks(type(self).__name__, self.process_group)
        self.start, self.end = _own(ranks, ranks.op, self.num_embeddings)
        self.weight = torch.nn.Parameter(table.weight.detach()[self.start : self.end].clone(), table.weight.requires_grad)

    @classmethod
    def from_embedding(cls, table: torch.nn.Embedding, process_group: Any = None) -> VocabParallelEmbedding:
        """This rank's part of an embedding that every rank has, without max_norm, scale_grad_by_freq and sparse."""
        for argument, value in (("max_norm", table.max_norm), ("scale_grad_by_freq", table.scale_grad_by_freq), ("sparse", table.sparse)):
            if value:
                raise refused("VocabParallelEmbedding", argument, value, "none")
        made = cls(table.num_embeddings, table.embedding_dim, table.padding_idx, process_group, device="meta")
        made._take(table)
        return made.train(table.training)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return vocab_parallel_embedding(input, self.weight, self.num_embeddings, self.process_group, padding_idx=self.padding_idx)

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}, rows={self.start}..{self.end}"


class _Losses(torch.autograd.Function):
    """The losses of rows of this rank's logits: `lse - x_target` over the words of all ranks, and 0 for rows that do not count."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, ranges: Any, ignore_index: int, dtype: torch.dtype, ranks: Ranks) -> Tensor:
        start, vocabulary = ranges
        rows, words = logits.shape
        wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
        own = target.long() - start
        others = (own < 0) | (own >= words)
        within = own.masked_fill(others, 0)
        _, lse, _ = _native.cross_entropy(logits, within, reduction="none", statistics=True, ignore_index=-1)
        logit = logits.gather(1, within.unsqueeze(1)).squeeze(1).to(wide).masked_fill_(others, 0.0)
        both = torch.stack((lse, logit))
        every = both.new_empty((ranks.size, 2, rows))
        torch.distributed.all_gather_into_tensor(every.view(-1, rows), both, group=ranks.group)
        lse, logit = every[:, 0].logsumexp(0), every[:, 1].sum(0)
        ignored = target == ignore_index
        loss = (lse - logit).masked_fill_(ignored, 0.0)
        none = ((target < 0) | (target >= vocabulary)) & ~ignored
        loss = loss.masked_fill_(none, float("nan"))
        ctx.save_for_backward(logits, own, lse, loss, ignored)
        return loss.to(dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dloss: Tensor) -> Any:
        logits, own, lse, loss, ignored = ctx.saved_tensors
        # Where the target is all but certain, its probability less 1 has few digits; the loss has all of them.
        of_target = torch.expm1(-loss)
        dloss = dloss.to(lse.dtype).masked_fill(ignored, 0.0)
        classes = torch.arange(logits.shape[1], device=logits.device, dtype=lse.dtype)
        # Whole numbers up to 2^24 are exact in float32; those of other ranks are no class here.
        number = own.clamp(-1, logits.shape[1]).to(lse.dtype)
        columns = (t.unsqueeze(1) for t in (number, lse, of_target, dloss))
        expr = "mul(where(eq(x1, x2), x4, exp(sub(x0, x3))), x5)"
        return _native.elementwise(expr, logits, classes, *columns, dtype=logits.dtype), None, None, None, None, None


@torch.compiler.disable
def vocab_parallel_cross_entropy(
    logits: Tensor,
    target: Tensor,
    num_classes: int,
    process_group: Any = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    dtype: Optional[torch.dtype] = None,
) -> Tensor:
    """`warpwright.torch.cross_entropy` of logits whose classes are split over the ranks; the result is the same on all of them.

    logits: [..., classes of this rank], the part of `num_classes` that `vocabulary_part` gives, of float32, float64, float16 or bfloat16; target: int64
    or int32 [...], the same on all ranks. Each rank's log-sum-exp and the target's logit are exchanged, two numbers a row in one all_gather;
    nothing in the backward pass. reduction: "mean" over the rows that count, "sum" or "none". dtype: of the loss, as of `cross_entropy`.
    Differentiable in logits. A target that is neither a class nor ignore_index is refused on the CPU and gives NaN on a GPU. Raises `ShapeError`,
    `ParameterError`, and `RankError` on every rank if ranks call differently.
    """
    op = "vocab_parallel_cross_entropy"
    ranks = Ranks(op, process_group)
    if num_classes < ranks.size:
        raise refused(op, "num_classes", num_classes, f"as many as the {ranks.size} ranks, or more")
    start, end = vocabulary_part(num_classes, ranks.rank, ranks.size)
    if end - start >= 1 << 24:
        raise refused(op, "num_classes", num_classes, "less than 2^24 on each rank")
    if logits.shape != (*target.shape, end - start):
        raise misshapen(op, "logits", logits.shape, (*target.shape, end - start))
    if reduction not in ("mean", "sum", "none"):
        raise refused(op, "reduction", reduction, "'mean', 'sum' or 'none'")
    _check_words(op, "target", target, num_classes, ignore_index)
    logits, dtype = of_dtype(logits, dtype)
    ranks.agree(logits.device, num_classes=num_classes, logits=described(logits, logits.dim()), ignore_index=ignore_index)
    losses = _Losses.apply(logits.reshape(-1, end - start), target.reshape(-1), (start, num_classes), ignore_index, dtype, ranks)
    if reduction == "none":
        return losses.reshape(target.shape)
    total = losses.sum()
    return total if reduction == "sum" else total / (target != ignore_index).sum()
