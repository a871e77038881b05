"""Attention over sequences that are split over the ranks of a process group (Liu, Zaharia and Abbeel 2023, arXiv:2310.01889);
`warpwright.torch.parallel` has it for users."""

from __future__ import annotations

import math
from typing import Any, Iterator, List, Optional, Tuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .. import _native
from .._errors import Error, misranked, misshapen, refused, renamed
from ._common import accumulator, narrow
from ._parallel_group import Ranks, described

_OP = "context_parallel_attention"


def _first(x: Tensor, dim: int = 1) -> Tensor:
    return x.narrow(dim, 0, x.shape[dim] // 2)


def _second(x: Tensor, dim: int = 1) -> Tensor:
    return x.narrow(dim, x.shape[dim] // 2, x.shape[dim] // 2)


class _Options:
    """The ranks, the mask, and the scale of scores, for both directions."""

    def __init__(self, ranks: Ranks, causal: bool, scale: float) -> None:
        self.ranks, self.causal, self.scale = ranks, causal, scale

    def parts(self, other: int) -> Tuple[bool, bool, bool]:
        """Of the keys of another rank: whether a mask is within them, whether only the first half of them is seen, and whether only the second
        half of the queries sees them. A rank's halves are a chunk from the beginning of the sequence and one from its end."""
        if not self.causal:
            return False, False, False
        rank = self.ranks.rank
        return other == rank, other < rank, other > rank

    def forward(self, q: Tensor, k: Tensor, v: Tensor, causal: bool, **out: Any) -> Tuple[Tensor, Tensor]:
        return _native.attention(q, k, v, softmax_scale=self.scale, causal=causal, **out)

    def backward(self, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, dy: Tensor, causal: bool) -> Any:
        return _native.attention_backward(q, k, v, o, lse, dy, softmax_scale=self.scale, causal=causal)

    def around(self, k: Tensor, v: Tensor) -> Iterator[Tuple[int, Tensor, Tensor]]:
        """Keys and values of every rank, this rank's own first, then those of the ranks before it. The next ones are on their way meanwhile."""
        size = self.ranks.size
        held: Any = (k, v)
        for step in range(size):
            coming = self.ranks.pass_on(held) if step + 1 < size else None
            yield ((self.ranks.rank - step) % size, *held)
            if coming is not None:
                held = coming.wait()


def _merge(o: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor) -> Tuple[Tensor, Tensor]:
    """With what further keys give: `o + sigmoid(lse_b - lse) (o_b - o)`, and `lse + softplus(lse_b - lse)`."""
    beside, of_part = (t.transpose(1, 2).unsqueeze(-1) for t in (lse, part_lse))
    merged = _native.elementwise("add(x0, mul(sigmoid(sub(x3, x1)), sub(x2, x0)))", o, beside, part, of_part)
    return merged, _native.elementwise("add(x0, softplus(sub(x1, x0)))", lse, part_lse)


class _Ring(torch.autograd.Function):
    """Keys and values travel around the ranks; of two ranks' keys and values there is memory."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, options: _Options) -> Tensor:
        o = lse = None
        for other, keys, values in options.around(k, v):
            masked, first_keys, last_queries = options.parts(other)
            if first_keys:
                keys, values = _first(keys), _first(values)
            part, part_lse = options.forward(_second(q) if last_queries else q, keys, values, masked)
            if o is None:
                o, lse = part.to(accumulator(q.dtype)), part_lse
            elif last_queries:
                halves = _second(o), _second(lse, 2)
                for half, merged in zip(halves, _merge(*halves, part, part_lse)):
                    half.copy_(merged)
            else:
                o, lse = _merge(o, lse, part, part_lse)
        o = o.to(q.dtype)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.options = options
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        q, k, v, o, lse = ctx.saved_tensors
        options = ctx.options
        ranks, wide = options.ranks, accumulator(q.dtype)
        dq = torch.zeros_like(q, dtype=wide, memory_format=torch.contiguous_format)
        of_last = None
        sums: List[Tensor] = []
        coming = None
        for other, keys, values in options.around(k, v):
            masked, first_keys, last_queries = options.parts(other)
            if first_keys:
                keys, values = _first(keys), _first(values)
            if last_queries:
                if of_last is None:
                    of_last = _second(q), _second(o), _second(lse, 2).contiguous(), _second(dy)
                of_q, of_o, of_lse, of_dy = of_last
            else:
                of_q, of_o, of_lse, of_dy = q, o, lse, dy
            dq_part, *parts = options.backward(of_q, keys, values, of_o, of_lse, of_dy, masked)[:3]
            (_second(dq) if last_queries else dq).add_(dq_part)
            if coming is None:
                # The own ones are always whole.
                sums = [part.to(wide) for part in parts]
            else:
                sums = coming.wait()
                for total, part in zip(sums, parts):
                    (_first(total) if first_keys else total).add_(part)
            # They travel with the keys and values that they belong to, and at the end home.
            coming = ranks.pass_on(sums) if ranks.size > 1 else None
        dk, dv = sums if coming is None else coming.wait()
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None


def _in_order(x: Tensor, ranks: Ranks, causal: bool) -> Tensor:
    """The parts of all ranks, in the order of the sequence."""
    size = ranks.size
    of_ranks = ranks.gather(x.unsqueeze(0)).wait()
    if not causal or size == 1:
        return of_ranks.transpose(0, 1).flatten(1, 2)
    batch, positions = x.shape[:2]
    whole = x.new_empty((batch, 2 * size, positions // 2, *x.shape[2:]))
    for rank, part in enumerate(of_ranks):
        whole[:, rank], whole[:, 2 * size - 1 - rank] = _first(part), _second(part)
    return whole.flatten(1, 2)


def _both_chunks(chunks: Tensor, rank: int, dim: int) -> Tensor:
    """The chunks of a rank, one after the other, of all of them along a dimension."""
    return torch.cat([chunks.select(dim, chunk) for chunk in (rank, chunks.shape[dim] - 1 - rank)], dim)


def _by_rank(x: Tensor, ranks: Ranks, causal: bool) -> Tensor:
    """The parts of each rank, one after the other, of what is in the order of the sequence: [ranks, batch, positions of a rank, ...]."""
    size = ranks.size
    if not causal or size == 1:
        return x.unflatten(1, (size, -1)).transpose(0, 1)
    chunks = x.unflatten(1, (2 * size, -1))
    return torch.stack([_both_chunks(chunks, rank, 1) for rank in range(size)])


class _AllGather(torch.autograd.Function):
    """Each rank has all keys and values while it computes: one exchange before, and nothing to merge."""

    @staticmethod
    def _chunks(options: _Options, positions: int) -> List[Tuple[slice, int, bool]]:
        """Pieces of the queries, and how many keys each sees."""
        ranks = options.ranks
        if not options.causal:
            return [(slice(0, positions), ranks.size * positions, False)]
        if ranks.size == 1:
            return [(slice(0, positions), positions, True)]
        half = positions // 2
        ends = (ranks.rank + 1) * half, (2 * ranks.size - ranks.rank) * half
        return [(slice(0, half), ends[0], True), (slice(half, positions), ends[1], True)]

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, options: _Options) -> Tensor:
        batch, positions, heads, _ = q.shape
        keys, values = (_in_order(t, options.ranks, options.causal) for t in (k, v))
        o = q.new_empty((batch, positions, heads, v.shape[-1]))
        lse = q.new_empty((batch, heads, positions), dtype=accumulator(q.dtype))
        for piece, end, causal in _AllGather._chunks(options, positions):
            options.forward(q[:, piece], keys[:, :end], values[:, :end], causal, out=(o[:, piece], lse[:, :, piece]))
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.options = options
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        q, k, v, o, lse = ctx.saved_tensors
        options = ctx.options
        ranks, causal = options.ranks, options.causal
        keys, values = (_in_order(t, ranks, causal) for t in (k, v))
        sums = [torch.zeros_like(t, dtype=accumulator(q.dtype)) for t in (keys, values)]
        dqs = []
        for piece, end, masked in _AllGather._chunks(options, q.shape[1]):
            of_q, of_o, of_dy = (t[:, piece] for t in (q, o, dy))
            of_lse = lse[:, :, piece].contiguous()
            dq, *parts = options.backward(of_q, keys[:, :end], values[:, :end], of_o, of_lse, of_dy, masked)[:3]
            dqs.append(dq)
            for total, part in zip(sums, parts):
                total[:, :end] += part
        coming = [ranks.scatter_sum(_by_rank(total, ranks, causal)) for total in sums]
        dk, dv = (c.wait().squeeze(0) for c in coming)
        return torch.cat(dqs, 1), dk.to(k.dtype), dv.to(v.dtype), None


@torch.compiler.disable
def context_parallel_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    process_group: Any = None,
    causal: bool = False,
    method: str = "ring",
    *,
    softmax_scale: Optional[float] = None,
) -> Tensor:
    """`warpwright.torch.attention` of this rank's queries over the keys of all ranks.

    q: [batch, positions, heads, head_dim]; k, v: [batch, positions, num_kv_heads, head_dim], of float32, float64, float16 or bfloat16, as many positions on
    each rank. Without causal each rank has any part of the sequence; with it the two chunks that `zig_zag_split` gives, so that all have the same
    work. The result is like q.

    method: "ring" passes keys and values from rank to rank while attention with those before runs, and merges what each rank's keys give in
    float32 (float64 for float64); "all_gather" has all keys and values in memory, exchanged at once before. Differentiable in all; the gradients of
    keys and values are summed in float32. Both are the same in every run. Raises `ShapeError`, `DtypeError`, `ParameterError`, and `RankError` on every
    rank if ranks call differently.
    """
    ranks = Ranks(_OP, process_group)
    if method not in ("ring", "all_gather"):
        raise refused(_OP, "method", method, "'ring' or 'all_gather'")
    for argument, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 4:
            raise misranked(_OP, argument, x.dim(), 4)
        if x.shape[:2] != q.shape[:2]:
            raise misshapen(_OP, argument, x.shape, (*q.shape[:2], *x.shape[2:]))
    if causal and ranks.size > 1 and q.shape[1] % 2:
        raise refused(_OP, "the number of positions", q.shape[1], "an even one: two chunks")
    q, k, v = narrow(q, k, v)
    if not q.dtype == k.dtype == v.dtype:
        raise refused(_OP, "dtype of q, k and v", [str(t.dtype) for t in (q, k, v)], "one dtype")
    scale = 1 / math.sqrt(max(q.shape[-1], 1)) if softmax_scale is None else softmax_scale
    ranks.agree(q.device, q=described(q), k=described(k), v=described(v), causal=causal, method=method, softmax_scale=scale)
    function: Any = _Ring if method == "ring" else _AllGather
    try:
        return function.apply(q, k, v, _Options(ranks, causal, scale))
    except Error as error:
        raise renamed(error, _OP) from None


def zig_zag_split(x: Tensor, process_group: Any = None, dim: int = 1) -> Tensor:
    """This rank's part of a sequence that every rank has: of two chunks for each of n ranks along `dim`, chunks r and 2 n - 1 - r of rank r. Positions
    are split like that too. Differentiable. Raises `ParameterError` if the chunks are not of one length."""
    ranks = Ranks("zig_zag_split", process_group)
    length = x.shape[dim]
    if length % (2 * ranks.size):
        raise refused(ranks.op, f"the length along dimension {dim}", length, f"a multiple of {2 * ranks.size}")
    chunks = x.unflatten(dim, (2 * ranks.size, -1))
    dim %= x.dim()
    return _both_chunks(chunks, ranks.rank, dim)


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks, dim: int) -> Tensor:
        ctx.group, ctx.dim = ranks.group, dim
        return _in_order(x.movedim(dim, 0).unsqueeze(0), ranks, True).squeeze(0).movedim(0, dim)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        return zig_zag_split(dy, ctx.group, ctx.dim), None, None


@torch.compiler.disable
def zig_zag_join(x: Tensor, process_group: Any = None, dim: int = 1) -> Tensor:
    """The whole sequence on every rank, of the parts along `dim` that `zig_zag_split` gave; of one length on all ranks. Differentiable: what
    is computed from the whole is taken to be the same on every rank. Raises `ParameterError` for an odd length, and `RankError` on every rank if
    ranks call differently."""
    ranks = Ranks("zig_zag_join", process_group)
    if ranks.size > 1 and x.shape[dim] % 2:
        raise refused(ranks.op, f"the length along dimension {dim}", x.shape[dim], "an even one: two chunks")
    ranks.agree(x.device, x=described(x), dim=dim)
    return _Join.apply(x, ranks, dim)
