//! The way from the sums of persistent blocks to results.

use warpwright_dsl::SharedTile;
use warpwright_dsl::prelude::*;

use super::BesideParams;
use crate::gemm::epilogue::{Columns, Even, ResultParams};

/// The way from sums to results.
pub(crate) trait Epilogue<'k> {
    /// Values that the columns of the lane's two rows share.
    type Rows;

    /// Them, where `row(0)` and `row(8)` are the rows of a matrix of the batch.
    fn rows(&self, batch: U32<'k>, row: &dyn Fn(u32) -> U32<'k>) -> Self::Rows;

    /// The pairs to finish of a lane's sums, which begin at column `col` of the tiles, and the column of the result that they begin at.
    /// Results may have several sums.
    fn joined(&self, _dtype: DType, sums: Vec<Pair<'k>>, col: U32<'k>) -> (Vec<Joined<'k>>, U32<'k>) {
        (sums.into_iter().map(|(down, right, sums)| (down, right, vec![sums])).collect(), col)
    }

    /// Where results beside `y` go.
    fn beside(&self) -> Vec<BesideParams<'k>> {
        Vec::new()
    }

    /// The results of the sums of two neighbours: those [beside](Self::beside) `y`, and that of `y` behind them, unless it is the
    /// [last](Self::last). `read` are the numbers of the tensors that it [reads](Self::reads), where panels bring them, or none.
    fn results(
        &self,
        to: &ResultParams<'k>,
        rows: &Self::Rows,
        at: ((U32<'k>, u32), U32<'k>),
        sums: &[[F32<'k>; 2]],
        _read: &[[F32<'k>; 2]],
        even: Even,
    ) -> Vec<[F32<'k>; 2]> {
        sums.iter().map(|sums| self.pair(to, rows, at, *sums, even)).collect()
    }

    /// The result of `y` that is made of those beside it, behind whose stores: fewer values wait for theirs then.
    fn last(&self, _dtype: DType, beside: &[[F32<'k>; 2]]) -> [F32<'k>; 2] {
        beside[0]
    }

    /// The results of two neighbouring sums of row (`row`, `down`), which is the one at `down`, 0 or 8, of the lane's; the first is at
    /// column `col`. The sums themselves where an epilogue does nothing with them.
    fn pair(
        &self,
        _to: &ResultParams<'k>,
        _rows: &Self::Rows,
        _at: ((U32<'k>, u32), U32<'k>),
        sums: [F32<'k>; 2],
        _even: Even,
    ) -> [F32<'k>; 2] {
        sums
    }

    /// The tensors that results are made of beside sums and that lie as `y` does. Panels bring them where they can; of sums that are not
    /// [joined](Self::joined).
    fn reads(&self, _to: &ResultParams<'k>) -> Vec<Ptr<'k, Read, Elem>> {
        Vec::new()
    }

    /// Factors and biases of two neighbouring columns from `col` on, where they are loaded once for the lane's two rows; `None` where
    /// [`pair`](Self::pair) does so. Of tiles that are stored whole.
    fn columns(&self, _to: &ResultParams<'k>, _col: U32<'k>) -> Option<Columns<'k>> {
        None
    }

    /// The results of two neighbouring sums of such columns, with their numbers of the tensor that it [reads](Self::reads) if there is one.
    fn pair_onto(
        &self,
        _to: &ResultParams<'k>,
        _columns: &Columns<'k>,
        sums: [F32<'k>; 2],
        _residual: Option<[F32<'k>; 2]>,
    ) -> [F32<'k>; 2] {
        sums
    }

    /// Puts right in a panel what `sums`, those that its results were made of, do not give. The warp has just written its rows there.
    fn mend(
        &self,
        _to: &ResultParams<'k>,
        _rows: &Self::Rows,
        _panel: &ResultPanel<'k>,
        _sums: &[Joined<'k>],
    ) {
    }

    /// Whether the sums of each slice are added to the others by the threads, in `f32`: those of tensor cores have fewer bits for 8-bit
    /// floats.
    fn promotes(&self) -> bool {
        false
    }

    /// The scales that make the factors of such sums of slice `step`, for the lane whose first sum is `right` of column `col`: loaded
    /// while the slice before is multiplied.
    fn load_factors(
        &self,
        _step: U32<'k>,
        _row: &dyn Fn(u32) -> U32<'k>,
        _col: U32<'k>,
        _right: U32<'k>,
    ) -> Vec<F32<'k>> {
        Vec::new()
    }

    /// The factors that have been `loaded`; nothing is multiplied where there are none.
    fn factors(&self, _loaded: &[F32<'k>]) -> Factors<'k> {
        Box::new(|_, _| None)
    }
}

/// Factors of the pair of sums so far down, 0 or 8, and right from the first of the lane.
pub(crate) type Factors<'k> = Box<dyn Fn(u32, u32) -> Option<[F32<'k>; 2]> + 'k>;

/// Two neighbouring sums, and how far down and right of the lane's first they are.
pub(crate) type Pair<'k, T = [F32<'k>; 2]> = (u32, u32, T);

/// The same of the sums that two neighbouring results have.
pub(crate) type Joined<'k> = Pair<'k, Vec<[F32<'k>; 2]>>;

/// A panel of results in shared memory, before it is stored.
pub(crate) struct ResultPanel<'k> {
    pub(crate) tile: SharedTile<'k>,
    /// The row and column of the result that are its first.
    pub(crate) row: U32<'k>,
    pub(crate) col: U32<'k>,
    /// How far its first column is from that of the block's tile.
    pub(crate) right: u32,
    pub(crate) batch: U32<'k>,
}

/// The number of the lowest bit that is set.
fn lowest(bits: U32<'_>) -> U32<'_> {
    bits.reverse_bits().leading_zeros()
}

impl<'k> ResultPanel<'k> {
    /// Puts results in the place of those whose sums the lane has marked: bit `2 i + j` of `doubtful` is number `j` of its pair `i`. The sums of
    /// a lane begin so far down and right. For a warp, whose lanes together make the `results` at a row and a column, and its neighbour's.
    pub(crate) fn mend(
        &self,
        (lane, down, right): (U32<'k>, U32<'k>, U32<'k>),
        doubtful: U32<'k>,
        results: impl Fn((U32<'k>, U32<'k>)) -> [F32<'k>; 2],
    ) {
        let k = lane.k();
        let any = |left: &U32<'k>| left.ne(0).vote_any();
        let _ = k.while_(doubtful, any, |left| {
            let owner = lowest(left.ne(0).ballot());
            let bit = lowest(left.shfl_idx(owner));
            // Where the sums of the owner's lane begin, and this one further on.
            let [first_down, first_right] = [down, right].map(|place| place.shfl_idx(owner));
            let down = (k.warp_idx() & 3) * 16 + first_down + ((bit >> 1) & 1) * 8;
            let right = first_right + (bit >> 2) * 8 + (bit & 1);
            let [first, second] = results((self.row + down, self.col + right));
            // Its own lane has stored what this replaces.
            let mine = lane.eq(owner);
            k.if_(mine, || self.tile.at(down, right).set((bit & 1).eq(0).select(first, second)));
            mine.select(left & (left - 1), left)
        });
    }
}
