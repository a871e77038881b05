//! Which tiles of queries a block takes that is_persistent for several: one of each round, in which every block takes one.

use warpwright_dsl::Range;
use warpwright_dsl::prelude::*;

/// Tiles of a head up to which they are few.
const FEW: u32 = 4;

/// All tiles of all heads.
#[derive(Clone, Copy)]
pub(in crate::attention) struct TileOrder<'k> {
    k: K<'k>,
    /// Tiles of a head, and of all heads of all batches.
    tiles: U32<'k>,
    all: U32<'k>,
    /// Heads of a batch.
    heads: U32<'k>,
    blocks: U32<'k>,
}

impl<'k> TileOrder<'k> {
    pub(in crate::attention) fn new(k: K<'k>, tiles: U32<'k>, all: U32<'k>, heads: U32<'k>) -> Self {
        Self { k, tiles, all, heads, blocks: k.grid_dim_x() }
    }

    /// The rounds in which the block has a tile.
    pub(in crate::attention) fn rounds(self) -> Range<'k, u32> {
        let block = self.k.block_idx_x();
        self.k.range(0u32, (self.all - block + (self.blocks - 1)) / self.blocks, 1u32)
    }

    /// Tile, head and batch of the block in a round. Blocks at work at the same time share the keys of few heads. Where later tiles
    /// of a head have `more` keys, all blocks get about as many of them.
    pub(in crate::attention) fn place(self, round: U32<'k>, more: bool) -> [U32<'k>; 3] {
        let Self { k, tiles, heads, .. } = self;
        let (tile, head) = if more {
            k.if_else(tiles.le(FEW), || self.rotated(round), || self.folded(round))
        } else {
            self.in_order(self.number(round))
        };
        let batch = head / heads;
        [tile, head - batch * heads, batch]
    }

    fn number(self, round: U32<'k>) -> U32<'k> {
        round * self.blocks + self.k.block_idx_x()
    }

    /// Tiles of a head one after the other: tile, and head among those of all batches.
    fn in_order(self, number: U32<'k>) -> (U32<'k>, U32<'k>) {
        let head = number / self.tiles;
        (number - head * self.tiles, head)
    }

    /// The same, but that the first tile of a head is another one in each round: a block gets each tile as often.
    fn rotated(self, round: U32<'k>) -> (U32<'k>, U32<'k>) {
        let (tile, head) = self.in_order(self.number(round));
        let tile = tile + head * self.tiles / self.blocks;
        (tile - tile / self.tiles * self.tiles, head)
    }

    /// Heads in sections of half as many as blocks, the last tile of each first, and every other round from its last block to
    /// its first: what a block gets more in one round it gets less in the next.
    fn folded(self, round: U32<'k>) -> (U32<'k>, U32<'k>) {
        let Self { tiles, all, blocks, .. } = self;
        let begin = round * blocks;
        let last = begin + (blocks - 1);
        let turned = (round & 1).ne(0) & last.lt(all);
        let number = turned.select(last - self.k.block_idx_x(), self.number(round));
        let heads = all / tiles;
        let section = ((blocks + 1) >> 1).min(heads);
        let first = number / (section * tiles) * section;
        let width = section.min(heads - first);
        let within = number - first * tiles;
        let back = within / width;
        (tiles - 1 - back, first + (within - back * width))
    }
}
