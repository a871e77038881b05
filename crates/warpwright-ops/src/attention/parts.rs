//! Puts together what blocks have found in their parts of the keys.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{Readable, WARP, accumulate, kernel_args};

use super::score::{Sink, View};

kernel_args! {
    /// `o` and `lse` from parts of them: `splits` times `rows` rows.
    pub(super) struct CombineArgs => CombineParams {
        parts: In<Elem>, part_lse: In<Elem>, splits: u32, rows: u64,
        sinks: In<f32>, has_sinks: u32,
        o: Out<Elem>, o_batch: u64, o_row: u64, o_head: u64, lse: Out<Elem>,
        queries: u32, heads: u32, width: u32,
    }
}

/// A block for each row: its warps share the parts, and their sums are added in order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Combine {
    pub(super) dtype: DType,
    /// Elements of an access.
    pub(super) vector: u32,
}

impl Combine {
    const WARPS: u32 = 8;
}

impl KernelDef for Combine {
    type Args = CombineArgs;

    fn name(&self) -> String {
        format!("attention_combine_{}_x{}", self.dtype, self.vector)
    }

    fn block(&self) -> BlockDim {
        BlockDim::x(Self::WARPS * WARP)
    }

    fn dtypes(&self) -> DTypes {
        DTypes::all(super::statistics_type(self.dtype)).with("o", self.dtype)
    }

    fn build<'k>(&self, k: K<'k>, a: CombineParams<'k>) {
        k.after_previous_grid();
        accumulate!(self.dtype, |A| self.body::<A>(k, a));
    }
}

impl Combine {
    fn body<'k, A: Float>(&self, k: K<'k>, a: CombineParams<'k>)
    where
        Elem: Access<A>,
    {
        let parts = Parts {
            values: a.parts,
            lse: a.part_lse,
            splits: a.splits,
            rows: a.rows,
            sink: Sink { sinks: a.sinks, there: a.has_sinks.ne(0) },
            o: View { data: a.o, strides: [a.o_batch, a.o_row, a.o_head] },
            o_lse: a.lse,
            queries: a.queries,
            heads: a.heads,
            width: a.width,
        };
        let shared = k.shared_elem(super::statistics_type(self.dtype), Self::WARPS * WARP * self.vector);
        parts.join::<A>(k, k.block_idx_x(), (self.vector, Self::WARPS), shared);
    }
}

/// Parts of a result, and where it goes.
#[derive(Clone, Copy)]
pub(super) struct Parts<'k, S: Readable> {
    pub(super) values: Ptr<'k, S, Elem>,
    pub(super) lse: Ptr<'k, S, Elem>,
    pub(super) splits: U32<'k>,
    /// Rows of a part.
    pub(super) rows: U64<'k>,
    pub(super) sink: Sink<'k>,
    pub(super) o: View<'k, Write>,
    pub(super) o_lse: Ptr<'k, Write, Elem>,
    pub(super) queries: U32<'k>,
    pub(super) heads: U32<'k>,
    pub(super) width: U32<'k>,
}

/// What a warp knows of a row.
struct Row<'k, A: Float> {
    /// The power of the lane's part, of the first 32.
    mine: Reg<'k, A>,
    reference: Reg<'k, A>,
    /// Of all parts' powers.
    sum: Reg<'k, A>,
    number: U32<'k>,
}

impl<'k, S: Readable> Parts<'k, S> {
    fn lse_of(&self, split: U32<'k>, row: U32<'k>) -> Ptr<'k, S, Elem> {
        self.lse.at(split.to_u64() * self.rows + row.to_u64())
    }

    fn part<A: Float>(&self, split: U32<'k>, row: U32<'k>, column: U32<'k>, vector: u32) -> Lanes<'k, A>
    where
        Elem: Access<A>,
    {
        let from = (split.to_u64() * self.rows + row.to_u64()) * self.width.to_u64();
        let there = split.lt(self.splits) & column.lt(self.width);
        self.values.at(from).at(column).only_where(there, Fill::Zero).load::<A>(vector)
    }

    /// Puts the parts of one row together: the warps of the block share them, `vector` columns a lane, and their sums are added in
    /// order, in `shared`.
    pub(super) fn join<A: Float>(
        &self,
        k: K<'k>,
        number: U32<'k>,
        (vector, warps): (u32, u32),
        shared: Ptr<'k, Shared, Elem>,
    ) where
        Elem: Access<A>,
    {
        let (warp, lane) = (k.warp_idx(), k.lane_idx());
        // Parts that a warp loads before anything waits; the lanes have the powers of all warps' together.
        let first_parts = WARP / warps;
        let early = |column: U32<'k>| -> Vec<Lanes<'k, A>> {
            (0..first_parts).map(|i| self.part(warp + i * warps, number, column, vector)).collect()
        };
        let (step, column) = (WARP * vector, lane * vector);
        let first = early(column);
        let lowest = k.lit::<A>(f64::NEG_INFINITY);
        let there = lane.lt(self.splits);
        let lse = |split: U32<'k>| self.lse_of(split, number);
        let mine = there.select(lse(lane).only_where(there, Fill::Zero).get::<A>(), lowest);
        let others = k.range(lane + WARP, self.splits, WARP);
        let top = k.fold(others, mine, |split, top| top.max(lse(split).get::<A>()));
        let top = k.warp_combine(WARP, top, |a, b| a.max(b));
        let reference = top.eq(f64::NEG_INFINITY).select(0.0, top);
        let mine = (mine - reference).exp();
        let sum = k.fold(others, mine, |split, sum| sum + (lse(split).get::<A>() - reference).exp());
        let sum = k.warp_combine(WARP, sum, |a, b| a + b);
        let row = Row { mine, reference, sum, number };
        let add = |column: U32<'k>, early: Vec<Lanes<'k, A>>| {
            let zeros: Lanes<'k, A> = (0..vector).map(|_| k.lit::<A>(0.0)).collect();
            let values = (0..).zip(early).fold(zeros, |sum, (i, part)| {
                let factor = k.from_lane(warp + i * warps, &row.mine);
                part.zip(sum, |part, sum| part.mul_add(factor, sum))
            });
            let late = k.range(warp + first_parts * warps, self.splits, warps);
            let values = k.fold(late, values, |split, sum| {
                let factor = (lse(split).get::<A>() - row.reference).exp();
                self.part(split, number, column, vector)
                    .zip(sum, |part: Reg<'k, A>, sum| part.mul_add(factor, sum))
            });
            self.write(k, &row, column, values, (vector, warps), shared);
        };
        add(column, first);
        k.for_each(k.range(step, self.width, step), |first| {
            // What the warps left before has been read.
            k.barrier();
            add(first + column, early(first + column));
        });
    }

    /// Adds what the warps have of a row, and writes it.
    fn write<A: Float>(
        &self,
        k: K<'k>,
        row: &Row<'k, A>,
        column: U32<'k>,
        values: Lanes<'k, A>,
        (vector, warps): (u32, u32),
        shared: Ptr<'k, Shared, Elem>,
    ) where
        Elem: Access<A>,
    {
        let (warp, lane) = (k.warp_idx(), k.lane_idx());
        let mine = shared.at((warp * WARP + lane) * vector);
        mine.store(values);
        k.barrier();
        k.if_(warp.eq(0) & column.lt(self.width), || {
            let nothing = row.sum.eq(0.0);
            let whole = nothing.select(f64::NEG_INFINITY, row.reference + row.sum.log());
            let inverse = nothing.select(0.0, 1.0 / row.sum);
            let rest = row.number / self.queries;
            let batch = rest / self.heads;
            let (head, query) = (rest - batch * self.heads, row.number - rest * self.queries);
            let of_warp = |warp: u32| mine.at(u64::from(warp * WARP * vector)).load::<A>(vector);
            let total = (1..warps).fold(of_warp(0), |sum, w| sum.zip(of_warp(w), |a, b| a + b));
            let (lse, values) = self.sink.applied(head, whole, total.map(|v| v * inverse));
            let [of_batch, of_row, of_head] = self.o.strides;
            let to = batch.to_u64() * of_batch + query.to_u64() * of_row + head.to_u64() * of_head;
            self.o.data.at(to).at(column).store(values);
            self.o_lse.at(row.number).only_where(column.eq(0), Fill::Zero).set(lse);
        });
    }
}
