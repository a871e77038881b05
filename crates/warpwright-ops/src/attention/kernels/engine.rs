//! The interface between the kernels and the units that multiply: tiles in shared memory, and the products of a block's rows with them.
//!
//! A block owns `rows` rows and walks over tiles of `columns` columns. A thread holds a few *slots*, which are rows, and a
//! few columns of each; the threads of a slot are neighbouring lanes of one warp. Forward the rows are queries and the
//! columns keys; in the sweep for the gradients of keys and values they change places.

use warpwright_dsl::SmemUniform;
use warpwright_dsl::prelude::*;

use super::dropout::{DrawLanes, Keys};
#[cfg(doc)]
use super::softmax::OnlineSoftmax;

/// 0, from the number of a row or column, none of which is negative; but the assembler does not know that, and computes again for each number
/// what it would else keep in registers.
pub(in crate::attention) fn opaque_zero(number: I32<'_>) -> U32<'_> {
    number.to_u32() >> 31
}

/// Rows of one head in global memory.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct Source<'k> {
    /// The first row.
    pub(in crate::attention) data: Ptr<'k, Read, Elem>,
    /// Elements from one row to the next.
    pub(in crate::attention) stride: U64<'k>,
    /// Rows that exist; others count as zeros.
    pub(in crate::attention) rows: I32<'k>,
    /// Elements of a row that exist; others count as zeros.
    pub(in crate::attention) width: U32<'k>,
    pub(in crate::attention) form: Form<'k>,
    /// The factor of each tile of rows, if they are [copied](super::split_f16).
    pub(in crate::attention) factors: Option<Ptr<'k, Read, f32>>,
}

/// Where the rows of a [`Source`] lie.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) enum Form<'k> {
    /// Every `stride` elements.
    Even,
    /// Rows of several heads: row `r` is row `r / members` of the head `r % members` after the first.
    Heads {
        members: U32<'k>,
        /// Elements from one head to the next.
        step: U64<'k>,
    },
    /// In pages.
    Pages(Pages<'k>),
}

/// Pages of a cache: row `r` is row `r % rows` of the page `table[r / rows]`, if there is a table.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct Pages<'k> {
    pub(in crate::attention) table: Ptr<'k, Read, i32>,
    /// Whether there is a table; without, all rows are in one page.
    pub(in crate::attention) any: Pred<'k>,
    /// The base-2 logarithm of the rows of a page.
    pub(in crate::attention) shift: U32<'k>,
    /// Elements from one page to the next.
    pub(in crate::attention) step: U64<'k>,
    /// Pages that exist.
    pub(in crate::attention) count: I32<'k>,
}

impl<'k> Source<'k> {
    /// Elements from the first row to row `row`; with pages also to the rows after it in its page. `there` says whether
    /// the row exists.
    pub(in crate::attention) fn offset(&self, row: I32<'k>, there: Pred<'k>) -> U64<'k> {
        match self.form {
            Form::Even => row.to_u64() * self.stride,
            Form::Heads { members, step } => {
                let row = row.to_u32();
                let of_head = row / members;
                of_head.to_u64() * self.stride + (row - of_head * members).to_u64() * step
            }
            Form::Pages(pages) => {
                let (page, within) = pages.found(row, there);
                page.to_u64() * pages.step + within.to_u64() * self.stride
            }
        }
    }
}

impl<'k> Pages<'k> {
    /// The page of row `row`, and the row in it. `there` says whether the row exists.
    fn found(&self, row: I32<'k>, there: Pred<'k>) -> (I32<'k>, U32<'k>) {
        let number = row.to_u32() >> self.shift;
        let page = self.table.at(number).only_where(self.any & there, Fill::Zero).get::<i32>();
        // A number that names no page reads a page that exists.
        let page = page.min(self.count - 1).max(0);
        let before = self.any.select(number << self.shift, 0);
        (page, row.to_u32() - before)
    }

    /// The batch and the row in it of row `row`, which exists, of a sequence whose batch is `batch` without a table.
    pub(in crate::attention) fn place(&self, batch: U32<'k>, row: I32<'k>) -> (U32<'k>, U32<'k>) {
        let (page, within) = self.found(row, row.k().lit(true));
        (self.any.select(page.to_u32(), batch), within)
    }
}

/// Where a thread's elements lie: row of each slot, first column, and how far from it the others are.
#[derive(Clone, Debug)]
pub(in crate::attention) struct Place<'k> {
    pub(in crate::attention) rows: Vec<U32<'k>>,
    pub(in crate::attention) first: U32<'k>,
    pub(in crate::attention) columns: Vec<u32>,
}

/// The columns that a block walks over, in tiles: from, below; and those in between where no pair is masked, whole tiles.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct Walk<'k> {
    pub(in crate::attention) from: I32<'k>,
    pub(in crate::attention) end: I32<'k>,
    /// Where tiles without masked pairs begin; `None` is at once.
    pub(in crate::attention) whole_from: Option<I32<'k>>,
    pub(in crate::attention) whole_end: I32<'k>,
    /// Where these are kept, if they are: where tiles begin to be whole, where they cease to be, and where they end.
    pub(in crate::attention) shared: Option<SmemUniform<'k, i32, 4>>,
}

impl<'k> Walk<'k> {
    /// The same, if some of its columns are limited, with what is known of them kept [in shared memory](K::smem_uniform).
    pub(in crate::attention) fn in_shared_memory(self, k: K<'k>) -> Self {
        let shared = |from| k.smem_uniform([from, self.whole_end, self.end, self.end]);
        Self { shared: self.whole_from.map(shared), ..self }
    }

    /// Where tiles begin to be whole, where they cease to be, and where they end.
    fn bound(&self, number: usize) -> I32<'k> {
        let known = [self.whole_from.unwrap_or(self.from), self.whole_end, self.end];
        self.shared.map_or(known[number], |shared| shared.get()[number])
    }

    /// Where tiles end.
    pub(in crate::attention) fn end(&self) -> I32<'k> {
        self.bound(2)
    }

    /// A loop over tiles of `columns` columns with carried state: `body` takes the first column, whether pairs may be
    /// masked, and the state.
    pub(in crate::attention) fn fold<C: Carry<'k>>(
        &self,
        k: K<'k>,
        columns: u32,
        init: C,
        body: impl Fn(I32<'k>, bool, C) -> C,
    ) -> C {
        let step = columns.cast_signed();
        let part = |from, to, masked, state| {
            k.fold_until(from, || self.bound(to), step, state, |at, state| body(at, masked, state))
        };
        let (mut from, mut state) = (self.from, init);
        if self.whole_from.is_some() {
            state = part(from, 0, true, state);
            from = self.bound(0);
        }
        state = part(from, 1, false, state);
        part(self.bound(1), 2, true, state)
    }
}

/// Which tile of columns comes behind another.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) enum Next<'k> {
    /// That of the columns beside it, as far as they are below this one.
    Below(I32<'k>),
    /// That of the columns from this one on, if there is one.
    Listed(I32<'k>, Pred<'k>),
}

impl<'k> Next<'k> {
    /// The first column of the tile behind that of the columns from `at` on, of `columns` columns, and whether there is one.
    pub(in crate::attention) fn behind(self, at: I32<'k>, columns: u32) -> (I32<'k>, Pred<'k>) {
        match self {
            Self::Below(end) => {
                let next = at + columns.cast_signed();
                (next, next.lt(end))
            }
            Self::Listed(next, there) => (next, there),
        }
    }
}

/// The units that multiply, and the shared memory that they read.
pub(in crate::attention) trait Engine<'k, A: Accumulate> {
    /// A tile in shared memory.
    type Tile: Copy;

    /// Lanes that share a row of a product.
    fn lanes(&self) -> u32;

    /// Where the elements of a product with a tile lie.
    fn product_place(&self, k: K<'k>) -> Place<'k>;

    /// Whether a softmax [rescales lazily](OnlineSoftmax::update).
    fn lazy_rescale(&self) -> bool {
        false
    }

    /// Whether the draws of dropout are made for one row after the other: slower than for all beside each other, but in few registers.
    fn row_by_row(&self) -> bool {
        false
    }

    /// Whether registers limit the kernel: then block-uniform values are kept [in shared memory](K::smem_uniform), and a thread computes
    /// addresses again for each tile.
    fn register_bound(&self) -> bool {
        false
    }

    /// The lanes that hold four neighbouring keys.
    fn draw_lanes(&self, keys: Keys) -> DrawLanes;

    /// Loads the block's stationary rows from row `first` on, as tile `index`, 0 or 1. It may be read after the next
    /// [`wait_k`](Self::wait_k).
    fn load_stationary(&self, k: K<'k>, source: Source<'k>, first: I32<'k>, index: u32) -> Self::Tile;

    /// Makes the stationary rows, which all threads have loaded, visible to them.
    fn publish_stationary(&self, k: K<'k>) {
        k.barrier();
    }

    /// The state that a loop over tiles carries beside the sums: a stage and its parity.
    fn pipeline_state(&self) -> Vec<U32<'k>> {
        Vec::new()
    }

    /// Continues from `state`, which a loop has carried.
    fn resume(&self, state: &[U32<'k>]) {
        let _ = state;
    }

    /// Begins to load the columns of two sources, `k` and `v` of the forward kernel, from column `at` on, as far as `first` says: for
    /// columns of a list it is that tile itself.
    fn start(&self, k: K<'k>, sources: [Source<'k>; 2], at: I32<'k>, first: Next<'k>);

    /// The first source's tile of the columns from `at` on, ready to be read. Nothing reads the tiles before it any more; the `next`
    /// begins to be loaded.
    fn wait_k(&self, k: K<'k>, sources: [Source<'k>; 2], at: I32<'k>, next: Next<'k>) -> Self::Tile;

    /// The second source's tile of the same columns. After that the first one's is the result of [`reuse_k`](Self::reuse_k).
    fn wait_v(&self, k: K<'k>, sources: [Source<'k>; 2], at: I32<'k>) -> Self::Tile;

    /// The first source's tile of the same columns.
    fn reuse_k(&self, k: K<'k>, sources: [Source<'k>; 2], at: I32<'k>) -> Self::Tile;

    /// `rows tile^T`: stationary rows times the rows of `tile`, over the width.
    fn product(&self, k: K<'k>, rows: Self::Tile, tile: Self::Tile) -> RegTile<'k, A>;

    /// Zeros of the shape that [`accumulate`](Self::accumulate) adds to.
    fn zero(&self, k: K<'k>) -> RegTile<'k, A>;

    /// `sum + weights tile`: weights as [`product`](Self::product) returns them, times the rows of the tile.
    fn accumulate(
        &self,
        k: K<'k>,
        weights: &RegTile<'k, A>,
        tile: Self::Tile,
        sum: RegTile<'k, A>,
    ) -> RegTile<'k, A>;

    /// Waits for the copies still in flight, after the last tile.
    fn finish(&self, k: K<'k>);

    /// Where the elements of a sum lie: for each slot and each of its parts the number of elements, and how many columns
    /// from [`sum_column`](Self::sum_column) on they begin.
    fn sum_parts(&self) -> (u32, Vec<u32>);

    /// The column of the thread's first element of a sum.
    fn sum_column(&self, k: K<'k>) -> U32<'k>;

    /// The elements of a part of a sum in the order of their columns.
    fn in_order(&self, part: &[Reg<'k, A>]) -> Vec<Reg<'k, A>> {
        part.to_vec()
    }

    /// Writes a sum to rows from `first` on, as far as there are `rows` and `width`.
    fn store(&self, k: K<'k>, sum: &RegTile<'k, A>, to: Destination<'k>, first: I32<'k>) {
        let (rows, column) = (self.product_place(k).rows, self.sum_column(k));
        let (count, parts) = self.sum_parts();
        for (row, sums) in rows.into_iter().zip(sum.rows()) {
            let row = first + row.to_i32();
            let exists = row.lt(to.rows);
            let data = to.data.at(row.to_u64() * to.stride).at(column);
            for (at, lanes) in parts.iter().zip(sums.chunks(count as usize)) {
                let inside = exists & (column + *at).lt(to.width);
                data.at(u64::from(*at)).only_where(inside, Fill::Zero).store(Lanes::from(lanes.to_vec()));
            }
        }
    }
}

/// Rows of one head in global memory that are written.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct Destination<'k> {
    pub(in crate::attention) data: Ptr<'k, Write, Elem>,
    pub(in crate::attention) stride: U64<'k>,
    pub(in crate::attention) rows: I32<'k>,
    pub(in crate::attention) width: U32<'k>,
}
