//! Orders: of the tiles of queries of a persistent block, which takes one in each round; of the tiles of keys of a tile of queries; and of
//! the warpgroups whose products alternate.

use warpwright_dsl::Range;
use warpwright_dsl::prelude::*;

use super::super::engine::Walk;
use super::GROUP;
use super::layouts::Wgmma;
use crate::attention::score::Span;

/// Tiles of a head up to which they are few.
const FEW: u32 = 4;

/// All tiles of all heads.
#[derive(Clone, Copy)]
pub(in crate::attention) struct TileOrder<'k> {
    /// Tiles of a head, and of all heads of all batches.
    tiles: U32<'k>,
    all: U32<'k>,
    /// Heads of a batch.
    heads: U32<'k>,
    blocks: U32<'k>,
}

impl<'k> TileOrder<'k> {
    pub(in crate::attention) fn new(tiles: U32<'k>, all: U32<'k>, heads: U32<'k>) -> Self {
        Self { tiles, all, heads, blocks: all.k().grid_dim_x() }
    }

    /// The rounds in which the block has a tile.
    pub(in crate::attention) fn rounds(self) -> Range<'k, u32> {
        let k = self.all.k();
        let block = k.block_idx_x();
        k.range(0u32, (self.all - block + (self.blocks - 1)) / self.blocks, 1u32)
    }

    /// Tile, head and batch of the block in a round. Blocks at work at the same time share the keys of few heads. Where later tiles
    /// of a head have `more` keys, all blocks get about as many of them.
    pub(in crate::attention) fn place(self, round: U32<'k>, more: bool) -> [U32<'k>; 3] {
        let Self { tiles, heads, .. } = self;
        let (tile, head) = if more {
            round.k().if_else(tiles.le(FEW), || self.rotated(round), || self.folded(round))
        } else {
            self.in_order(self.number(round))
        };
        let batch = head / heads;
        [tile, head - batch * heads, batch]
    }

    fn number(self, round: U32<'k>) -> U32<'k> {
        round * self.blocks + round.k().block_idx_x()
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
        let number = turned.select(last - round.k().block_idx_x(), self.number(round));
        let heads = all / tiles;
        let section = ((blocks + 1) >> 1).min(heads);
        let first = number / (section * tiles) * section;
        let width = section.min(heads - first);
        let within = number - first * tiles;
        let back = within / width;
        (tiles - 1 - back, first + (within - back * width))
    }
}

/// The tiles of keys of a block from the last one down: there is at least one, behind all keys if none is seen.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyTiles<'k> {
    /// The first key of the last tile.
    pub(super) last: I32<'k>,
    /// Keys of all tiles.
    pub(super) all: I32<'k>,
    /// After so many keys from the last tile down, tiles begin that have no masked pairs, and those that have again.
    pub(super) whole_from: I32<'k>,
    pub(super) whole_end: I32<'k>,
}

impl<'k> KeyTiles<'k> {
    pub(super) fn new(walk: &Walk<'k>, span: &Span<'k>, columns: u32) -> Self {
        let up = |x: I32<'k>| ((x.max(0i32).to_u32() + (columns - 1)) / columns * columns).to_i32();
        let step = columns.cast_signed();
        let seen = up(walk.end - walk.from);
        let any = seen.gt(0i32);
        let last = any.select(walk.from + seen - step, up(span.keys));
        let all = any.select(seen, step);
        let down_to = |key: I32<'k>| (last + step - key).max(step).min(all);
        Self {
            last,
            all,
            whole_from: down_to(walk.whole_end),
            whole_end: walk.whole_from.map_or(all, |key| down_to(key).max(down_to(walk.whole_end))),
        }
    }
}

/// The first of the named barriers at which groups take turns.
const TURNS: u32 = 2;

/// The order in which warpgroups start their products.
#[derive(Clone, Copy)]
pub(super) struct PingPong<'k> {
    pub(super) k: K<'k>,
    pub(super) group: U32<'k>,
    pub(super) config: Wgmma,
}

impl<'k> PingPong<'k> {
    /// Threads that meet where a group waits for its turn.
    const PAIR: u32 = 2 * GROUP;

    /// The first group does not wait for the last one before it begins.
    pub(super) fn begin(self) {
        if self.config.ping_pong {
            let last = self.group.eq(self.config.groups - 1);
            self.k.if_(last, || self.k.barrier_arrive(TURNS, Self::PAIR));
        }
    }

    /// Waits until the group before has started its products.
    pub(super) fn wait(self) {
        if self.config.ping_pong {
            self.k.barrier_of(self.group + TURNS, Self::PAIR);
        }
    }

    /// Lets the next group start its products.
    pub(super) fn pass(self) {
        if self.config.ping_pong {
            let next = self.group + 1;
            let next = next.eq(self.config.groups).select(0, next);
            self.k.barrier_arrive(next + TURNS, Self::PAIR);
        }
    }

    /// The first group has begun without being let, so it waits once more than it began.
    pub(super) fn end(self) {
        if self.config.ping_pong {
            self.k.if_(self.group.eq(0), || self.wait());
        }
    }
}
