//! Which tiles of columns a block visits: those of a [`Walk`], or those that a mask lists.
//!
//! A mask has a list for each tile of [`MASK_TILE`] rows: how many tiles of columns it sees, and of each the number and that of its bits, if it
//! is seen in part. Nothing follows a number of a list out of the tensors: what is too large is cut.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{carry, kernel_args};

use crate::attention::kernels::dropout::Keys;
use crate::attention::kernels::engine::{Next, Place, Walk};

/// Queries and keys of a tile of a mask.
pub const MASK_TILE: u32 = 128;
/// Words of a row of its bits.
const WORDS: u32 = MASK_TILE / u32::BITS;
/// Words of a tile that is seen in part: a row for each query, then the same bits with a row for each key.
pub(in crate::attention) const PART_WORDS: u32 = 2 * MASK_TILE * WORDS;

kernel_args! {
    /// A mask as a kernel reads it whose rows are queries, or keys.
    pub(in crate::attention) struct BlockMaskArgs => BlockMaskParams {
        lists: In<i32>, bits: In<i32>,
        /// Lists from one batch, and from one head, to the next.
        of_batch: u32, of_head: u32,
        /// Tiles of columns that there are, and tiles with bits.
        tiles: u32, parts: u32,
    }
}

/// The tiles that a block visits.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) enum Tiles<'k> {
    /// One beside the other.
    Walked(Walk<'k>),
    /// Those of a list.
    Listed(MaskTiles<'k>),
}

/// The list of the tiles of columns that some rows see, in tiles of a kernel.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct MaskTiles<'k> {
    /// Behind the number of entries.
    list: Ptr<'k, Read, i32>,
    /// Tiles of the kernel in all entries.
    pub(in crate::attention) count: U32<'k>,
    /// The bits of the block's first row.
    bits: Ptr<'k, Read, i32>,
    tiles: U32<'k>,
    parts: U32<'k>,
    columns: u32,
}

/// A tile of a list: its first column, and the number of the bits.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct MaskTile<'k> {
    pub(in crate::attention) at: I32<'k>,
    pub(in crate::attention) part: U32<'k>,
}

carry!(MaskTile { at, part });

impl<'k> MaskTile<'k> {
    /// The number of the bits of a tile of which nothing is seen.
    pub(in crate::attention) const NOTHING: u32 = u32::MAX - 1;

    /// Whether all pairs see each other.
    pub(in crate::attention) fn is_whole(self) -> Pred<'k> {
        self.part.eq(u32::MAX)
    }
}

impl<'k> MaskTiles<'k> {
    /// The list of the rows from `first` on, in tiles of `columns` columns. Both rows of a block and columns of a tile divide [`MASK_TILE`].
    pub(in crate::attention) fn new(
        mask: BlockMaskParams<'k>,
        keys: Keys,
        [head, batch]: [U32<'k>; 2],
        first: I32<'k>,
        columns: u32,
    ) -> Self {
        Self::new_where(mask, keys, [head, batch], first, columns, None)
    }

    /// The same, and nothing unless `there` says that there are such rows.
    pub(in crate::attention) fn new_where(
        mask: BlockMaskParams<'k>,
        keys: Keys,
        [head, batch]: [U32<'k>; 2],
        first: I32<'k>,
        columns: u32,
        there: Option<Pred<'k>>,
    ) -> Self {
        let first = first.to_u32();
        let number = batch * mask.of_batch + head * mask.of_head + (first >> MASK_TILE.trailing_zeros());
        let list = mask.lists.at(number.mul_wide(mask.tiles * 2 + 1));
        let counted = there.map_or(list, |there| list.only_where(there, Fill::Zero));
        let entries = counted.get::<i32>().max(0).to_u32().min(mask.tiles);
        let rows_before = if keys == Keys::Rows { MASK_TILE } else { 0 };
        let row = (first & (MASK_TILE - 1)) + rows_before;
        Self {
            list: list.at(1u64),
            count: entries * (MASK_TILE / columns),
            bits: mask.bits.at(row * WORDS),
            tiles: mask.tiles,
            parts: mask.parts,
            columns,
        }
    }

    /// Tile `number`, if there is one.
    pub(in crate::attention) fn get(&self, number: U32<'k>) -> MaskTile<'k> {
        let of_entry = MASK_TILE / self.columns;
        let (entry, within) = (number >> of_entry.trailing_zeros(), number & (of_entry - 1));
        let at = self.list.at(entry * 2);
        let there = number.lt(self.count);
        let load = |at: Ptr<'k, Read, i32>| at.only_where(there, Fill::Zero).get::<i32>();
        let tile = load(at).max(0).to_u32().min(self.tiles - 1);
        let part = load(at.at(1u64)).to_u32();
        let part = part.lt(self.parts).select(part, u32::MAX);
        MaskTile { at: (tile * MASK_TILE + within * self.columns).to_i32(), part }
    }

    /// Whether not all pairs of a tile see each other.
    pub(in crate::attention) fn is_partial(&self, tile: MaskTile<'k>) -> Pred<'k> {
        tile.part.lt(self.parts)
    }

    /// The bits of row `row` of the block for a thread whose first column of the tile is `first`: bit `column % 32` of word `column / 32`
    /// says whether the column so far from it is seen. The first column is below 8, and others are that far behind multiples of 8.
    pub(in crate::attention) fn row(&self, tile: MaskTile<'k>, row: U32<'k>, first: U32<'k>) -> MaskRow<'k> {
        self.row_where(tile, row, first, |at| at.get::<i32>().to_u32())
    }

    fn row_where(
        &self,
        tile: MaskTile<'k>,
        row: U32<'k>,
        first: U32<'k>,
        load: impl Fn(Ptr<'k, Read, i32>) -> U32<'k>,
    ) -> MaskRow<'k> {
        let within = tile.at.to_u32() & (MASK_TILE - 1);
        let word = row * WORDS + (within >> u32::BITS.trailing_zeros());
        let at = self.bits.at(tile.part.mul_wide(PART_WORDS) + word.to_u64());
        let shift = if self.columns < u32::BITS { first + (within & (u32::BITS - 1)) } else { first };
        let word = |word: u32| load(at.at(u64::from(word))) >> shift;
        MaskRow { words: (0..self.columns.div_ceil(u32::BITS)).map(word).collect() }
    }

    /// The first column of a tile behind all columns, of which there are `all`.
    pub(in crate::attention) fn end(&self, all: I32<'k>) -> I32<'k> {
        (all + (self.columns - 1).cast_signed()) & -self.columns.cast_signed()
    }

    /// The same as [`row`](Self::row) of a tile that is not seen as a whole.
    pub(in crate::attention) fn row_of_some(
        &self,
        tile: MaskTile<'k>,
        row: U32<'k>,
        first: U32<'k>,
    ) -> MaskRow<'k> {
        let partial = self.is_partial(tile);
        self.row_where(tile, row, first, |at| at.only_where(partial, Fill::Zero).get::<i32>().to_u32())
    }

    /// The same of any tile.
    pub(in crate::attention) fn row_of_any(
        &self,
        tile: MaskTile<'k>,
        row: U32<'k>,
        first: U32<'k>,
    ) -> MaskRow<'k> {
        let partial = self.is_partial(tile);
        let otherwise = tile.is_whole().select(u32::MAX, 0);
        self.row_where(tile, row, first, |at| {
            partial.select(at.only_where(partial, Fill::Zero).get::<i32>().to_u32(), otherwise)
        })
    }

    /// Scores, minus infinity where a tile's bits say that the pair is not seen.
    pub(in crate::attention) fn masked<A: Accumulate>(
        &self,
        k: K<'k>,
        tile: MaskTile<'k>,
        scores: RegTile<'k, A>,
        place: &Place<'k>,
    ) -> RegTile<'k, A> {
        let masked = || self.select(&scores, place, |row| self.row(tile, row, place.first));
        k.if_else(self.is_partial(tile), masked, || scores.clone())
    }

    /// Scores, minus infinity where the bits of a row say that the pair is not seen.
    pub(in crate::attention) fn select<A: Accumulate>(
        &self,
        scores: &RegTile<'k, A>,
        place: &Place<'k>,
        bits: impl Fn(U32<'k>) -> MaskRow<'k>,
    ) -> RegTile<'k, A> {
        scores.map_rows(|slot, scores| {
            let row = bits(place.rows[slot]);
            let of =
                |(score, column): (&Reg<'k, A>, &u32)| row.sees(*column).select(*score, f64::NEG_INFINITY);
            scores.iter().zip(&place.columns).map(of).collect()
        })
    }
}

/// Which columns of a tile a row sees.
#[derive(Clone, Debug)]
pub(in crate::attention) struct MaskRow<'k> {
    words: Vec<U32<'k>>,
}

impl<'k> MaskRow<'k> {
    /// Whether the column so far from the thread's first one is seen.
    pub(in crate::attention) fn sees(&self, column: u32) -> Pred<'k> {
        (self.words[(column / u32::BITS) as usize] & (1 << (column % u32::BITS))).ne(0)
    }
}

/// A tile at which a block is.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct Visit<'k> {
    /// The first column.
    pub(in crate::attention) at: I32<'k>,
    seen: Seen<'k>,
}

/// The pairs of a tile that see each other, and the tile behind it.
#[derive(Clone, Copy, Debug)]
enum Seen<'k> {
    /// Whether positions decide.
    ByPosition(Walk<'k>, bool),
    Listed {
        list: MaskTiles<'k>,
        tile: MaskTile<'k>,
        next: Next<'k>,
    },
}

impl<'k> Visit<'k> {
    /// The tile behind it.
    pub(in crate::attention) fn next(&self) -> Next<'k> {
        match self.seen {
            Seen::ByPosition(walk, _) => Next::Below(walk.end()),
            Seen::Listed { next, .. } => next,
        }
    }

    /// Whether positions decide which pairs see each other.
    pub(in crate::attention) fn by_position(&self) -> bool {
        matches!(self.seen, Seen::ByPosition(_, true))
    }

    /// Whether all columns exist.
    pub(in crate::attention) fn is_whole(&self) -> bool {
        matches!(self.seen, Seen::ByPosition(_, false))
    }

    /// The scores of the tile, minus infinity where bits say that a pair is not seen.
    pub(in crate::attention) fn masked<A: Accumulate>(
        &self,
        k: K<'k>,
        scores: RegTile<'k, A>,
        place: &Place<'k>,
    ) -> RegTile<'k, A> {
        match self.seen {
            Seen::ByPosition(..) => scores,
            Seen::Listed { list, tile, .. } => list.masked(k, tile, scores, place),
        }
    }
}

impl<'k> Tiles<'k> {
    /// The first tile, as [`Engine::start`](crate::attention::kernels::engine::Engine::start) takes it.
    pub(in crate::attention) fn first(&self) -> (I32<'k>, Next<'k>) {
        match self {
            Self::Walked(walk) => (walk.from, Next::Below(walk.end)),
            Self::Listed(list) => {
                let first = list.get(list.count.k().lit(0u32)).at;
                (first, Next::Listed(first, list.count.gt(0)))
            }
        }
    }

    /// A loop over the tiles of `columns` columns with carried state.
    pub(in crate::attention) fn fold<C: Carry<'k>>(
        &self,
        k: K<'k>,
        columns: u32,
        init: C,
        body: impl Fn(Visit<'k>, C) -> C,
    ) -> C {
        let list = match *self {
            Self::Walked(walk) => {
                return walk.fold(k, columns, init, |at, masked, state| {
                    body(Visit { at, seen: Seen::ByPosition(walk, masked) }, state)
                });
            }
            Self::Listed(list) => list,
        };
        let known = (list.get(k.lit(0u32)), list.get(k.lit(1u32)));
        let all = k.range(0u32, list.count, 1u32);
        let (state, _) = k.fold(all, (init, known), |number, (state, (tile, next))| {
            // One tile is copied ahead, so what comes behind it is looked up two ahead.
            let later = list.get(number + 2);
            let there = (number + 1).lt(list.count);
            let seen = Seen::Listed { list, tile, next: Next::Listed(next.at, there) };
            (body(Visit { at: tile.at, seen }, state), (next, later))
        });
        state
    }
}
