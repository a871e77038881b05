//! What the kernels ask of the units that multiply: tiles in shared memory, and the products of a block's rows with them.
//!
//! A block owns `rows` rows and walks over tiles of `columns` columns. A thread holds a few *slots*, which are rows, and a
//! few columns of each; the threads of a slot are neighbouring lanes of one warp. Forward the rows are queries and the
//! columns keys; in the sweep for the gradients of keys and values they change places.

use warpwright_dsl::prelude::*;

/// Elements that a thread holds: `[slot][column]`.
pub(super) type Matrix<'k, A> = Vec<Vec<Reg<'k, A>>>;

/// Rows of one head in global memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source<'k> {
    /// The first row.
    pub(super) data: Ptr<'k, Read, Elem>,
    /// Elements from one row to the next.
    pub(super) stride: U64<'k>,
    /// Rows that exist; others count as zeros.
    pub(super) rows: I32<'k>,
    /// Elements of a row that exist; others count as zeros.
    pub(super) width: U32<'k>,
}

/// Where a thread's elements lie: row of each slot, first column, and how far from it the others are.
#[derive(Clone, Debug)]
pub(super) struct Place<'k> {
    pub(super) rows: Vec<U32<'k>>,
    pub(super) first: U32<'k>,
    pub(super) columns: Vec<u32>,
}

/// The columns that a block walks over, in tiles: from, below; and those in between where no pair is masked, whole tiles.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walk<'k> {
    pub(super) from: I32<'k>,
    pub(super) end: I32<'k>,
    /// Where tiles without masked pairs begin; `None` is at once.
    pub(super) whole_from: Option<I32<'k>>,
    pub(super) whole_end: I32<'k>,
}

impl<'k> Walk<'k> {
    /// A loop over tiles of `columns` columns with carried state: `body` takes the first column, whether pairs may be
    /// masked, and the state.
    pub(super) fn fold<C: Carry<'k>>(
        &self,
        k: K<'k>,
        columns: u32,
        init: C,
        body: impl Fn(I32<'k>, bool, C) -> C,
    ) -> C {
        let step = columns.cast_signed();
        let part = |from, end, masked, state| {
            k.fold(k.range(from, end, step), state, |at, state| body(at, masked, state))
        };
        let mut state = init;
        if let Some(whole_from) = self.whole_from {
            state = part(self.from, whole_from, true, state);
        }
        state = part(self.whole_from.unwrap_or(self.from), self.whole_end, false, state);
        part(self.whole_end, self.end, true, state)
    }
}

/// The units that multiply, and the shared memory that they read.
pub(super) trait Engine<'k, A: Float> {
    /// A tile in shared memory.
    type Tile: Copy;

    /// Lanes that share a slot.
    fn lanes(&self) -> u32;

    /// Where the elements of a product with a tile lie.
    fn product_place(&self, k: K<'k>) -> Place<'k>;

    /// The tile of the block's own rows, `index` 0 or 1, loaded from row `first` on. It may be read after the next
    /// [`first`](Self::first).
    fn own(&self, k: K<'k>, source: Source<'k>, first: I32<'k>, index: u32) -> Self::Tile;

    /// Begins to load the columns of two sources from column `at` on, if `there` are any.
    fn start(&self, k: K<'k>, sources: [Source<'k>; 2], at: I32<'k>, there: Pred<'k>);

    /// The first source's tile of the columns from `at` on, ready to be read. Nothing reads the tiles of earlier columns
    /// any more. If there are `more`, those after it begin to be loaded.
    fn first(&self, k: K<'k>, sources: [Source<'k>; 2], at: I32<'k>, more: Pred<'k>) -> Self::Tile;

    /// The second source's tile of the same columns. The first one's must be asked for [`again`](Self::again) after that.
    fn second(&self, k: K<'k>, sources: [Source<'k>; 2], at: I32<'k>) -> Self::Tile;

    /// The first source's tile of the same columns.
    fn again(&self, k: K<'k>, sources: [Source<'k>; 2], at: I32<'k>) -> Self::Tile;

    /// Rows of `own` times the rows of `tile`, over the width.
    fn product(&self, k: K<'k>, own: Self::Tile, tile: Self::Tile) -> Matrix<'k, A>;

    /// Zeros of the shape that [`accumulate`](Self::accumulate) adds to.
    fn zero(&self, k: K<'k>) -> Matrix<'k, A>;

    /// `sum + weights tile`: weights as [`product`](Self::product) gives them, times the rows of the tile.
    fn accumulate(
        &self,
        k: K<'k>,
        weights: &Matrix<'k, A>,
        tile: Self::Tile,
        sum: Matrix<'k, A>,
    ) -> Matrix<'k, A>;

    /// Waits for what is still on its way; after the last tile.
    fn finish(&self, k: K<'k>);

    /// Writes a sum to rows from `first` on, as far as there are `rows` and `width`.
    fn store(&self, k: K<'k>, sum: &Matrix<'k, A>, to: Destination<'k>, first: I32<'k>);
}

/// Rows of one head in global memory that are written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Destination<'k> {
    pub(super) data: Ptr<'k, Write, Elem>,
    pub(super) stride: U64<'k>,
    pub(super) rows: I32<'k>,
    pub(super) width: U32<'k>,
}
