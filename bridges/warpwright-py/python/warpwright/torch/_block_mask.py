"""Masks of attention as tiles."""

from typing import Any, Callable, List, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

# Queries, and keys, of a tile.
_TILE = 128
# Tiles whose pairs are held as booleans at a time.
_AT_ONCE = 256
_Extents = Tuple[int, int, int, int]


def _tiles(extent: int) -> int:
    return -(-extent // _TILE)


class BlockMask:
    """Which pairs of queries and keys see each other, for `attention`: tiles of 128 queries and 128 keys that none of, all of, or some of the
    pairs do, the latter with a bit for each pair.

    Made once by `from_dense` or `from_flex`, and used in any number of calls, forward and backward. shape: (batch, heads, queries, keys), of which
    batch and heads may be 1 for all. key_tiles: int32, [batch, heads, query_tiles, 1 + 2 key_tiles], how many tiles of keys a tile of queries sees,
    then of each, in ascending order, its number and that of its bits, -1 where all pairs see each other; query_tiles: int32, [batch, heads,
    key_tiles, 1 + 2 query_tiles], the same listed for each tile of keys; mask_bits: int32, [tiles, 2, 128, 4], bit `key % 32` of word
    `key // 32` of row `query` of the first half, and the other way round in the second.
    """

    def __init__(self, shape: _Extents, key_tiles: Tensor, query_tiles: Tensor, mask_bits: Tensor) -> None:
        self.shape = shape
        self.key_tiles = key_tiles
        self.query_tiles = query_tiles
        self.mask_bits = mask_bits

    @property
    def tensors(self) -> Tuple[Tensor, Tensor, Tensor]:
        """The three tables."""
        return self.key_tiles, self.query_tiles, self.mask_bits

    def to(self, device: Any) -> "BlockMask":
        """The same mask on another device."""
        return BlockMask(self.shape, *(t.to(device) for t in self.tensors))

    @staticmethod
    def from_dense(mask: Tensor) -> "BlockMask":
        """The mask of a boolean tensor (True is a pair) whose shape broadcasts to [batch, heads, queries, keys]; leading dimensions that are missing
        are 1."""
        if mask.dtype != torch.bool or not 2 <= mask.dim() <= 4:
            raise ValueError(f"BlockMask.from_dense: mask is {mask.dtype} {list(mask.shape)}, expected torch.bool [batch, heads, queries, keys]")
        mask = mask[(None,) * (4 - mask.dim())]
        batch, heads, queries, keys = mask.shape
        rows, columns = _tiles(queries), _tiles(keys)
        mask = F.pad(mask, (0, columns * _TILE - keys, 0, rows * _TILE - queries))
        tiles = mask.view(batch, heads, rows, _TILE, columns, _TILE).transpose(3, 4)
        candidates = tiles.any(-1).any(-1)
        at = candidates.nonzero()
        return _of_tiles((batch, heads, queries, keys), at, lambda part: tiles[tuple(part.unbind(1))])

    @staticmethod
    def from_flex(block_mask: Any) -> "BlockMask":
        """The mask of a `torch.nn.attention.flex_attention.BlockMask` whose blocks are multiples of 128 x 128. Its `mask_mod` is evaluated for blocks
        that are not full alone."""
        batch, heads, queries, keys = block_mask.shape
        sizes = block_mask.BLOCK_SIZE
        if any(size % _TILE for size in sizes):
            raise ValueError(f"BlockMask.from_flex: BLOCK_SIZE is {tuple(sizes)}, expected multiples of {_TILE}")
        shape = batch, heads, queries, keys
        listed = _listed(block_mask.kv_num_blocks, block_mask.kv_indices, sizes, shape)
        full = torch.zeros_like(listed)
        if block_mask.full_kv_num_blocks is not None:
            full = _listed(block_mask.full_kv_num_blocks, block_mask.full_kv_indices, sizes, shape)
        sees = _of_pairs(block_mask.mask_mod)
        offsets = torch.arange(_TILE, device=listed.device)

        def pairs(part: Tensor) -> Tensor:
            b, h, row, column = part.unbind(1)
            # The function may look up positions, of which there are no others.
            query = (row[:, None] * _TILE + offsets).clamp(max=max(queries - 1, 0))
            key = (column[:, None] * _TILE + offsets).clamp(max=max(keys - 1, 0))
            return sees(b, h, query, key) | full[b, h, row, column][:, None, None]

        at = (listed | full).nonzero()
        whole = full[tuple(at.unbind(1))] & ((at[:, 3] + 1) * _TILE <= keys)
        return _of_tiles(shape, at, pairs, whole)


def _listed(counts: Tensor, indices: Tensor, sizes: Any, shape: _Extents) -> Tensor:
    """Which tiles are in blocks that are listed."""
    *_, queries, keys = shape
    columns = -(-keys // sizes[1])
    there = torch.arange(indices.shape[-1], device=indices.device) < counts[..., None]
    blocks = torch.zeros((*indices.shape[:-1], columns + 1), dtype=torch.bool, device=indices.device)
    blocks.scatter_(-1, torch.where(there, indices, columns).long(), True)
    tiles = blocks[..., :columns].repeat_interleave(sizes[0] // _TILE, -2).repeat_interleave(sizes[1] // _TILE, -1)
    return tiles[..., : _tiles(queries), : _tiles(keys)]


def _of_pairs(mask_mod: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function of single numbers as one of tiles: of [n], [n], [n, queries] and [n, keys]."""
    of_keys = torch.vmap(mask_mod, in_dims=(None, None, None, 0))
    of_queries = torch.vmap(of_keys, in_dims=(None, None, 0, None))
    return torch.vmap(of_queries, in_dims=(0, 0, 0, 0))


def _words(pairs: Tensor) -> Tensor:
    """32 booleans in each number, the first in the lowest bit."""
    bits = torch.arange(32, dtype=torch.int32, device=pairs.device)
    return (pairs.unflatten(-1, (-1, 32)).int() << bits).sum(-1, dtype=torch.int32)


def _lists(seen: Tensor, number: Tensor) -> Tensor:
    # Those that are seen come first, in ascending order.
    order = torch.argsort((~seen).byte(), dim=-1, stable=True)
    entries = torch.stack((order.int(), number.gather(-1, order)), -1).flatten(-2)
    return torch.cat((seen.sum(-1, dtype=torch.int32)[..., None], entries), -1)


def _of_tiles(
    shape: _Extents, at: Tensor, pairs: Callable[[Tensor], Tensor], whole: Optional[Tensor] = None
) -> BlockMask:
    """The mask of tiles at `at`, [n, 4], whose pairs `pairs` gives as booleans, but for those that are known to be whole."""
    batch, heads, queries, keys = shape
    device = at.device
    offsets = torch.arange(_TILE, device=device)
    number = torch.full((batch, heads, _tiles(queries), _tiles(keys)), -1, dtype=torch.int32, device=device)
    seen = torch.zeros(number.shape, dtype=torch.bool, device=device)
    if whole is not None:
        seen[tuple(at[whole].unbind(1))] = True
        at = at[~whole]
    bits: List[Tensor] = []
    count = 0
    for part in at.split(_AT_ONCE):
        if not len(part):
            continue
        there = (part[:, 2, None] * _TILE + offsets < queries)[:, :, None]
        found = pairs(part) & there & (part[:, 3, None] * _TILE + offsets < keys)[:, None, :]
        some = found.flatten(1).any(1)
        # Rows that do not exist leave a tile whole; keys that do not exist cut it.
        partial = some & ~(found | ~there).flatten(1).all(1)
        seen[tuple(part[some].unbind(1))] = True
        kept = found[partial]
        number[tuple(part[partial].unbind(1))] = torch.arange(count, count + len(kept), dtype=torch.int32, device=device)
        count += len(kept)
        bits.append(torch.stack((_words(kept), _words(kept.transpose(1, 2))), 1))
    # Kernels are planned for room, of which there are few sizes.
    room = 1 << max(count - 1, 0).bit_length()
    table = torch.zeros((room, 2, _TILE, _TILE // 32), dtype=torch.int32, device=device)
    if bits:
        torch.cat(bits, out=table[:count])
    turned = seen.transpose(-1, -2), number.transpose(-1, -2)
    return BlockMask(shape, _lists(seen, number), _lists(*turned), table)


def as_block_mask(mask: Any, op: str, queries: int, keys: int) -> BlockMask:
    """A mask for so many queries and keys, from one of ours or one of FlexAttention."""
    if not isinstance(mask, BlockMask):
        if not hasattr(mask, "kv_num_blocks"):
            raise TypeError(f"{op}: block_mask is {type(mask).__name__}, expected BlockMask, or that of torch.nn.attention.flex_attention")
        mask = BlockMask.from_flex(mask)
    if mask.shape[2:] != (queries, keys):
        raise ValueError(f"{op}: block_mask is for {mask.shape[2]} queries and {mask.shape[3]} keys, expected {queries} and {keys}")
    return mask
