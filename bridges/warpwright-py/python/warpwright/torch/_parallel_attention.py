"""Attention over sequences that are split over the ranks of a process group (Liu, Zaharia and Abbeel 2023, arXiv:2310.01889);
`warpwright.torch.parallel` has it for users."""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .. import _native
from .._errors import Error, misranked, misshapen, refused, renamed
from ._common import accumulator, expect_dtype, narrow
from ._parallel_group import Ranks, described

_OP = "context_parallel_attention"


def _plus(total: Tensor, part: Tensor, dtype: torch.dtype, out: Optional[Tensor] = None) -> Tensor:
    """Their sum in a dtype, added in float32, or float64 for float64."""
    return _native.elementwise("add(x0, x1)", total, part, dtype=dtype, out=out)


class _Rows:
    """The positions of a rank. Of each sequence they are two halves: a chunk from its beginning and one from its end. Sequences lie along dimension
    1 of tensors, the only one or one after the other, as `offsets` of the whole sequences say."""

    def __init__(self, ranks: Ranks, positions: int, offsets: Optional[Tensor] = None, longest: Optional[int] = None) -> None:
        self.size, self.positions = ranks.size, positions
        self.offsets, self._longest = offsets, longest
        # Where sequences of one chunk of each begin.
        self._chunks = None if offsets is None else offsets // (2 * ranks.size)
        self._places: Dict[bool, Tensor] = {}

    def bounds(self, chunks: int) -> Optional[Tensor]:
        """Where sequences begin that have so many of the chunks of the whole ones."""
        if self._chunks is None or chunks == 2 * self.size:
            return self.offsets
        return self._chunks * chunks

    def longest(self, chunks: int) -> Optional[int]:
        """The length of the longest of these at most."""
        if self._longest is None or chunks == 2 * self.size:
            return self._longest
        return self._longest // (2 * self.size) * chunks

    def within(self, chunks: int) -> Tuple[Tensor, Tensor, Tensor]:
        """Of each row of sequences that have so many chunks: the sequence, the chunk, and the place in the chunk."""
        assert self._chunks is not None
        bounds = self._chunks.long()
        row = torch.arange(self.positions // 2 * chunks, device=bounds.device)
        # Rows behind the last sequence are those of no sequence, and stay within the tensor.
        sequence = (torch.searchsorted(bounds * chunks, row, right=True) - 1).clamp(0, max(len(bounds) - 2, 0))
        chunk_length = bounds.diff()[sequence].clamp_min(1)
        within = row - bounds[sequence] * chunks
        return sequence, within // chunk_length, within % chunk_length

    def rows(self, sequence: Tensor, chunk: Tensor, place: Tensor, chunks: int) -> Tensor:
        """The rows where these are, of sequences that have so many chunks."""
        assert self._chunks is not None
        bounds = self._chunks.long()
        return bounds[sequence] * chunks + chunk * bounds.diff()[sequence] + place

    def whole(self, rank: int) -> Tensor:
        """The rows of the whole sequences that a rank has."""
        sequence, half, place = self.within(2)
        return self.rows(sequence, torch.where(half == 0, rank, 2 * self.size - 1 - rank), place, 2 * self.size)

    def gathered(self, chunks: int) -> Tensor:
        """The rows of the first chunks of all sequences, sequence by sequence, among the rows of all ranks, one after the other."""
        sequence, chunk, place = self.within(chunks)
        last = chunk >= self.size
        rank = torch.where(last, 2 * self.size - 1 - chunk, chunk)
        return rank * self.positions + self.rows(sequence, last.long(), place, 2)

    def _at(self, second: bool) -> Tensor:
        if second not in self._places:
            sequence, _, place = self.within(1)
            self._places[second] = self.rows(sequence, torch.full_like(place, int(second)), place, 2)
        return self._places[second]

    def half(self, x: Tensor, second: bool, dim: int = 1) -> Tensor:
        """The first halves of all sequences, or the second ones: a view of a single sequence."""
        if self.offsets is not None:
            return x.index_select(dim, self._at(second))
        length = self.positions // 2
        return x.narrow(dim, length if second else 0, length)

    def write_half(self, x: Tensor, second: bool, part: Tensor, dim: int = 1) -> None:
        if self.offsets is not None:
            x.index_copy_(dim, self._at(second), part)
        else:
            self.half(x, second, dim).copy_(part)

    def change_half(self, x: Tensor, second: bool, change: Callable[[Tensor, Optional[Tensor]], Tensor]) -> None:
        """Writes over a half what a function makes of it, which writes to its second argument if there is one."""
        half = self.half(x, second)
        in_place = self.offsets is None and half.is_contiguous()
        changed = change(half, half if in_place else None)
        if not in_place:
            self.write_half(x, second, changed)

    def add_half(self, x: Tensor, second: bool, part: Tensor) -> None:
        self.change_half(x, second, lambda half, out: _plus(half, part, x.dtype, out))


class _Options:
    """The ranks, their positions, the mask, and the scale of scores, for both directions."""

    def __init__(self, ranks: Ranks, rows: _Rows, causal: bool, scale: float) -> None:
        self.ranks, self.rows, self.causal, self.scale = ranks, rows, causal, scale

    def parts(self, other: int) -> Tuple[bool, bool, bool]:
        """Of the keys of another rank: whether a mask is within them, whether only the first half of them is seen, and whether only the second
        half of the queries sees them. A rank's halves are a chunk from the beginning of the sequence and one from its end."""
        if not self.causal:
            return False, False, False
        rank = self.ranks.rank
        return other == rank, other < rank, other > rank

    def _scores(self, chunks: Tuple[int, int], causal: bool) -> Dict[str, Any]:
        """Of so many chunks of the queries and of the keys of each sequence."""
        scores: Dict[str, Any] = {"softmax_scale": self.scale, "causal": causal}
        if self.rows.offsets is not None:
            for which, count in zip("qk", chunks):
                scores[f"cu_seqlens_{which}"], scores[f"max_seqlen_{which}"] = self.rows.bounds(count), self.rows.longest(count)
        return scores

    def forward(self, q: Tensor, k: Tensor, v: Tensor, chunks: Tuple[int, int], causal: bool, **out: Any) -> Tuple[Tensor, Tensor]:
        return _native.attention(q, k, v, **self._scores(chunks, causal), **out)

    def backward(self, tensors: Sequence[Tensor], chunks: Tuple[int, int], causal: bool, **out: Any) -> Any:
        """Of q, k, v, o, lse and dy: the gradients of q, k and v."""
        return _native.attention_backward(*tensors, **self._scores(chunks, causal), **out)[:3]

    def around(self, k: Tensor, v: Tensor) -> Iterator[Tuple[int, Tensor, Tensor]]:
        """Keys and values of every rank, this rank's own first, then those of the ranks before it. The next ones are on their way meanwhile."""
        size = self.ranks.size
        held: Any = (k, v)
        for step in range(size):
            coming = self.ranks.pass_on(held) if step + 1 < size else None
            yield ((self.ranks.rank - step) % size, *held)
            if coming is not None:
                held = coming.wait()


def _merged(o: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor, out: Optional[Tensor]) -> Tensor:
    """With what further keys give: `o + sigmoid(lse_b - lse) (o_b - o)`."""
    beside, of_part = (t.transpose(1, 2).unsqueeze(-1) for t in (lse, part_lse))
    expr = "add(x0, mul(sigmoid(sub(x3, x1)), sub(x2, x0)))"
    return _native.elementwise(expr, o, beside, part, of_part, dtype=o.dtype, out=out)


def _merged_lse(lse: Tensor, part_lse: Tensor) -> Tensor:
    return _native.elementwise("add(x0, softplus(sub(x1, x0)))", lse, part_lse)


class _Ring(torch.autograd.Function):
    """Keys and values travel around the ranks; of two ranks' keys and values there is memory."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, options: _Options) -> Tensor:
        rows = options.rows
        around = options.around(k, v)
        _, keys, values = next(around)
        o, lse = options.forward(q, keys, values, (2, 2), options.causal)
        if options.ranks.size > 2:
            # One merge alone is rounded to the type of the result anyway.
            o = o.to(accumulator(q.dtype))
        for other, keys, values in around:
            _, first_keys, last_queries = options.parts(other)
            if first_keys:
                keys, values = rows.half(keys, False), rows.half(values, False)
            chunks = 1 if last_queries else 2, 1 if first_keys else 2
            of_q = rows.half(q, True) if last_queries else q
            part, part_lse = options.forward(of_q, keys, values, chunks, False)
            if last_queries:
                before = rows.half(lse, True, 2)
                rows.change_half(o, True, lambda half, out: _merged(half, before, part, part_lse, out))
                rows.write_half(lse, True, _merged_lse(before, part_lse), 2)
            else:
                _merged(o, lse, part, part_lse, o)
                lse = _merged_lse(lse, part_lse)
        o = o.to(q.dtype)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.options = options
        return o

    @staticmethod
    def _pieces(q: Tensor, k: Tensor) -> List[Tuple[slice, slice]]:
        """Heads of queries, and their heads of keys. The work between this rank's own queries and keys is done in two pieces, so that keys and
        values come while the first one runs, and gradients come home while the last one does."""
        heads, kv_heads = q.shape[2], k.shape[2]
        cut = (kv_heads + 1) // 2
        ends = [(0, cut), (cut, kv_heads)] if kv_heads > 1 else [(0, kv_heads)]
        return [(slice(begin * (heads // kv_heads), end * (heads // kv_heads)), slice(begin, end)) for begin, end in ends]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        q, k, v, o, lse = ctx.saved_tensors
        options = ctx.options
        ranks, rows, wide = options.ranks, options.rows, accumulator(q.dtype)
        own = dq, dk, dv = [torch.empty_like(t, memory_format=torch.contiguous_format) for t in (q, k, v)]

        def of_own(piece: Tuple[slice, slice]) -> None:
            heads, of_keys = piece
            tensors = [q[:, :, heads], k[:, :, of_keys], v[:, :, of_keys], o[:, :, heads], lse[:, heads].contiguous(), dy[:, :, heads]]
            out = tuple(t[:, :, which] for t, which in zip(own, (heads, of_keys, of_keys)))
            options.backward(tensors, (2, 2), options.causal, out=out)

        around = options.around(k, v)
        next(around)
        first, *later = _Ring._pieces(q, k)
        of_own(first)
        of_last: Any = None
        # Of the gradient of the queries: what other ranks' keys give to all of them, and to the second half.
        further: List[Optional[Tensor]] = [None, None]
        coming = None
        for other, keys, values in around:
            _, first_keys, last_queries = options.parts(other)
            if first_keys:
                keys, values = rows.half(keys, False), rows.half(values, False)
            if last_queries and of_last is None:
                of_last = rows.half(q, True), rows.half(o, True), rows.half(lse, True, 2).contiguous(), rows.half(dy, True)
            of_q, *of_rest = of_last if last_queries else (q, o, lse, dy)
            chunks = 1 if last_queries else 2, 1 if first_keys else 2
            dq_part, *parts = options.backward((of_q, keys, values, *of_rest), chunks, False)
            before = further[last_queries]
            further[last_queries] = dq_part if before is None else _plus(before, dq_part, wide)
            # The sums travel with the keys and values that they belong to, and at the end home.
            if coming is not None:
                sums = [total.to(wide) for total in coming.wait()]
                for total, part in zip(sums, parts):
                    if first_keys:
                        rows.add_half(total, False, part)
                    else:
                        _plus(total, part, wide, out=total)
            elif first_keys:
                sums = [torch.zeros_like(t) for t in (dk, dv)]
                for total, part in zip(sums, parts):
                    rows.write_half(total, False, part)
            else:
                sums = parts
            coming = ranks.pass_on(sums)
        for piece in later:
            of_own(piece)
        of_all, of_half = further
        if of_all is not None and of_half is not None:
            of_all = of_all.to(wide)
            rows.add_half(of_all, True, of_half)
        elif of_half is not None:
            rows.add_half(dq, True, of_half)
        if of_all is not None:
            _plus(dq, of_all, dq.dtype, out=dq)
        if coming is not None:
            for mine, arrived in zip((dk, dv), coming.wait()):
                _plus(mine, arrived, mine.dtype, out=mine)
        return dq, dk, dv, None


def _in_order(x: Tensor, ranks: Ranks, causal: bool) -> Tensor:
    """The parts of all ranks, in the order of the sequence."""
    size = ranks.size
    of_ranks = ranks.gather(x.unsqueeze(0)).wait()
    if not causal or size == 1:
        return of_ranks.transpose(0, 1).flatten(1, 2)
    batch, positions = x.shape[:2]
    whole = x.new_empty((batch, 2 * size, positions // 2, *x.shape[2:]))
    for rank, part in enumerate(of_ranks):
        whole[:, rank], whole[:, 2 * size - 1 - rank] = part.tensor_split(2, 1)
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
            options.forward(q[:, piece], keys[:, :end], values[:, :end], (2, 2), causal, out=(o[:, piece], lse[:, :, piece]))
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
            dq, *parts = options.backward((of_q, keys[:, :end], values[:, :end], of_o, of_lse, of_dy), (2, 2), masked)
            dqs.append(dq)
            for total, part in zip(sums, parts):
                total[:, :end] += part
        coming = [ranks.scatter_sum(_by_rank(total, ranks, causal)) for total in sums]
        dk, dv = (c.wait().squeeze(0) for c in coming)
        return torch.cat(dqs, 1), dk.to(k.dtype), dv.to(v.dtype), None


class _PackedAllGather(torch.autograd.Function):
    """The same of sequences one after the other, whose keys and values are brought into the order of the sequences."""

    @staticmethod
    def _pieces(options: _Options) -> List[Tuple[Optional[bool], int]]:
        """Which half of the queries, if not all of them, and how many chunks of its sequence each sees."""
        rank, size = options.ranks.rank, options.ranks.size
        return [(False, rank + 1), (True, 2 * size - rank)] if options.causal else [(None, 2 * size)]

    @staticmethod
    def _of(rows: _Rows, x: Tensor, half: Optional[bool], dim: int = 1) -> Tensor:
        return x if half is None else rows.half(x, half, dim).contiguous()

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, options: _Options) -> Tensor:
        rows, heads = options.rows, q.shape[2]
        everyone = [options.ranks.gather(t, 1) for t in (k, v)]
        keys, values = (gathered.wait() for gathered in everyone)
        o = q.new_empty((*q.shape[:3], v.shape[-1]))
        lse = q.new_empty((1, heads, rows.positions), dtype=accumulator(q.dtype))
        for half, chunks in _PackedAllGather._pieces(options):
            of_q = _PackedAllGather._of(rows, q, half)
            seen = rows.gathered(chunks)
            queries = 2 if half is None else 1
            part, part_lse = options.forward(
                of_q, keys.index_select(1, seen), values.index_select(1, seen), (queries, chunks), options.causal
            )
            if half is None:
                o, lse = part, part_lse
            else:
                rows.write_half(o, half, part)
                rows.write_half(lse, half, part_lse, 2)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.options = options
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        q, k, v, o, lse = ctx.saved_tensors
        options = ctx.options
        rows, wide = options.rows, accumulator(q.dtype)
        everyone = [options.ranks.gather(t, 1) for t in (k, v)]
        keys, values = (gathered.wait() for gathered in everyone)
        sums = [torch.zeros_like(t, dtype=wide) for t in (keys, values)]
        dq = torch.empty_like(q, memory_format=torch.contiguous_format)
        for half, chunks in _PackedAllGather._pieces(options):
            seen = rows.gathered(chunks)
            of_q, of_o, of_dy = (_PackedAllGather._of(rows, t, half) for t in (q, o, dy))
            of_lse = _PackedAllGather._of(rows, lse, half, 2)
            tensors = of_q, keys.index_select(1, seen), values.index_select(1, seen), of_o, of_lse, of_dy
            part, *parts = options.backward(tensors, (2 if half is None else 1, chunks), options.causal)
            if half is None:
                dq = part
            else:
                rows.write_half(dq, half, part)
            for total, of_seen in zip(sums, parts):
                total.index_copy_(1, seen, _plus(total.index_select(1, seen), of_seen, wide))
        coming = [options.ranks.scatter_sum(total, 1) for total in sums]
        dk, dv = (c.wait() for c in coming)
        return dq, dk.to(k.dtype), dv.to(v.dtype), None


def _check_offsets(ranks: Ranks, cu_seqlens: Optional[Tensor], length: int, on_device: bool) -> None:
    """That all ranks have as much of each sequence, and the sequences that length; `on_device`: even if that waits for a GPU."""
    if cu_seqlens is None:
        return
    expect_dtype(ranks.op, "cu_seqlens", cu_seqlens, torch.int32)
    if cu_seqlens.dim() != 1 or len(cu_seqlens) == 0:
        raise misshapen(ranks.op, "cu_seqlens", cu_seqlens.shape, ("sequences + 1",))
    if cu_seqlens.device.type != "cpu" and (not on_device or torch.cuda.is_current_stream_capturing()):
        return
    ends, multiple = cu_seqlens.tolist(), 2 * ranks.size if ranks.size > 1 else 1
    if ends[0] != 0 or ends[-1] != length or ends != sorted(ends) or any(end % multiple for end in ends):
        expected = f"numbers from 0 to {length} that do not decrease, multiples of {multiple}"
        raise refused(ranks.op, "cu_seqlens", ends, expected)


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
    cu_seqlens: Optional[Tensor] = None,
    max_seqlen: Optional[int] = None,
) -> Tensor:
    """`warpwright.torch.attention` of this rank's queries over the keys of all ranks.

    q: [batch, positions, heads, head_dim]; k, v: [batch, positions, num_kv_heads, head_dim], of float32, float64, float16 or bfloat16, as many positions on
    each rank. Without causal each rank has any part of the sequence; with it the two chunks that `zig_zag_split` gives, so that all have the same
    work. The result is like q.

    method: "ring" passes keys and values from rank to rank while attention with those before runs, and merges what each rank's keys give in
    float32 (float64 for float64); "all_gather" has all keys and values in memory, exchanged at once before. Differentiable in all; the gradients of
    keys and values are summed in float32. Both are the same in every run.

    cu_seqlens: int32, [sequences + 1], the same on all ranks: the batch is 1 and holds packed sequences, one after the other, which begin and end there
    before they are split; the length of each is a multiple of twice the ranks, as padding makes it. A rank has two chunks of each sequence, one after
    the other: those that `zig_zag_split` gives with these cu_seqlens, with a causal mask or without. max_seqlen: the length of the longest sequence at
    most, all of them by default. On a GPU only the first cu_seqlens of a kind are looked at; with others that no ranks divide the result is undefined.

    Raises `ShapeError`, `DtypeError`, `ParameterError`, and `RankError` on every rank if ranks call differently.
    """
    ranks = Ranks(_OP, process_group)
    if method not in ("ring", "all_gather"):
        raise refused(_OP, "method", method, "'ring' or 'all_gather'")
    for argument, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 4:
            raise misranked(_OP, argument, x.dim(), 4)
        if x.shape[:2] != q.shape[:2]:
            raise misshapen(_OP, argument, x.shape, (*q.shape[:2], *x.shape[2:]))
    if (causal or cu_seqlens is not None) and ranks.size > 1 and q.shape[1] % 2:
        raise refused(_OP, "the number of positions", q.shape[1], "an even one: two chunks")
    if cu_seqlens is None and max_seqlen is not None:
        raise refused(_OP, "max_seqlen", max_seqlen, "None without cu_seqlens")
    if cu_seqlens is not None and q.shape[0] != 1:
        raise misshapen(_OP, "q", q.shape, (1, *q.shape[1:]))
    q, k, v = narrow(q, k, v)
    if not q.dtype == k.dtype == v.dtype:
        raise refused(_OP, "dtype of q, k and v", [str(t.dtype) for t in (q, k, v)], "one dtype")
    scale = 1 / math.sqrt(max(q.shape[-1], 1)) if softmax_scale is None else softmax_scale
    packed = {} if cu_seqlens is None else {"cu_seqlens": described(cu_seqlens), "max_seqlen": max_seqlen}
    asked = ranks.agree(
        q.device, q=described(q), k=described(k), v=described(v), causal=causal, method=method, softmax_scale=scale, **packed
    )
    _check_offsets(ranks, cu_seqlens, q.shape[1] * ranks.size, asked)
    gathered = _AllGather if cu_seqlens is None else _PackedAllGather
    function: Any = _Ring if method == "ring" else gathered
    try:
        return function.apply(q, k, v, _Options(ranks, _Rows(ranks, q.shape[1], cu_seqlens, max_seqlen), causal, scale))
    except Error as error:
        raise renamed(error, _OP) from None


def zig_zag_split(x: Tensor, process_group: Any = None, dim: int = 1, cu_seqlens: Optional[Tensor] = None) -> Tensor:
    """This rank's part of a sequence that every rank has: of two chunks for each of n ranks along `dim`, chunks r and 2 n - 1 - r of rank r. Positions
    are split like that too. cu_seqlens: int32, [sequences + 1], of packed sequences along `dim`, each of which is split. Differentiable. Raises
    `ParameterError` if the chunks are not of one length."""
    ranks = Ranks("zig_zag_split", process_group)
    length = x.shape[dim]
    if length % (2 * ranks.size) and not (cu_seqlens is not None and ranks.size == 1):
        raise refused(ranks.op, f"the length along dimension {dim}", length, f"a multiple of {2 * ranks.size}")
    if cu_seqlens is not None:
        _check_offsets(ranks, cu_seqlens, length, False)
        if ranks.size == 1:
            return x
        return x.index_select(dim, _Rows(ranks, length // ranks.size, cu_seqlens).whole(ranks.rank))
    chunks = x.unflatten(dim, (2 * ranks.size, -1))
    dim %= x.dim()
    return _both_chunks(chunks, ranks.rank, dim)


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks, dim: int, cu_seqlens: Optional[Tensor]) -> Tensor:
        ctx.group, ctx.dim, ctx.cu_seqlens = ranks.group, dim, cu_seqlens
        if cu_seqlens is not None:
            if ranks.size == 1:
                return x.clone()
            rows = _Rows(ranks, x.shape[dim], cu_seqlens).gathered(2 * ranks.size)
            return ranks.gather(x, dim).wait().index_select(dim, rows)
        return _in_order(x.movedim(dim, 0).unsqueeze(0), ranks, True).squeeze(0).movedim(0, dim)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        return zig_zag_split(dy, ctx.group, ctx.dim, ctx.cu_seqlens), None, None, None


@torch.compiler.disable
def zig_zag_join(x: Tensor, process_group: Any = None, dim: int = 1, cu_seqlens: Optional[Tensor] = None) -> Tensor:
    """The whole sequence on every rank, of the parts along `dim` that `zig_zag_split` gave, with the same cu_seqlens; of one length on all ranks.
    Differentiable: what is computed from the whole is taken to be the same on every rank. Raises `ParameterError` for an odd length, and `RankError`
    on every rank if ranks call differently."""
    ranks = Ranks("zig_zag_join", process_group)
    if ranks.size > 1 and x.shape[dim] % 2:
        raise refused(ranks.op, f"the length along dimension {dim}", x.shape[dim], "an even one: two chunks")
    asked = ranks.agree(x.device, x=described(x), dim=dim, cu_seqlens=described(cu_seqlens))
    _check_offsets(ranks, cu_seqlens, x.shape[dim] * ranks.size, asked)
    return _Join.apply(x, ranks, dim, cu_seqlens)
