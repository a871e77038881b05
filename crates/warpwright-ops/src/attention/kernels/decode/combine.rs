//! Combines the results of blocks for their parts of the keys.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{WARP, kernel_args};

use crate::attention::score::Sink;

kernel_args! {
    /// `o` and `lse` from parts of them: `splits` times `rows` rows.
    pub(in crate::attention) struct CombineArgs => CombineParams {
        parts: In<Elem>, part_lse: In<Elem>, splits: u32, rows: u64,
        sinks: Optional<In<f32>>, o: Strided<Out<Elem>, 3>, lse: Out<Elem>,
        queries: u32, heads: u32, width: u32,
    }
}

/// A block for each row: its warps share the parts, and their sums are added in order.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct Combine {
    pub(in crate::attention) dtype: DType,
    /// Elements of an access.
    pub(in crate::attention) vector: u32,
}

/// Warps of a block.
const WARPS: u32 = 8;

impl AccumulateKernel for Combine {
    type Args = CombineArgs;

    fn spec(&self) -> KernelSpec {
        // Left alone, the assembler gives these fewer registers than they need.
        let min_blocks_per_sm = (self.dtype == DType::F64).then_some(4);
        KernelSpec::new(
            format!("attention_combine_{}_x{}", self.dtype, self.vector),
            BlockDim::x(WARPS * WARP),
        )
        .dtypes(DTypes::all(crate::attention::statistics_type(self.dtype)).with("o", self.dtype))
        .min_blocks_per_sm(min_blocks_per_sm)
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: CombineParams<'k>) {
        k.after_previous_grid();
        let sink = Sink::of(a.sinks);
        let shared = k.shared_elem(crate::attention::statistics_type(self.dtype), WARPS * WARP * self.vector);
        let parts = Parts { a, sink, shared, number: k.block_idx_x(), vector: self.vector };
        parts.join::<A>(k);
    }
}

/// The parts of one row, and where they are put together.
struct Parts<'k> {
    a: CombineParams<'k>,
    sink: Sink<'k>,
    shared: Ptr<'k, Shared, Elem>,
    number: U32<'k>,
    /// Elements of an access.
    vector: u32,
}

/// The exponentials of a row, as a warp knows them.
struct Row<'k, A: Accumulate> {
    /// That of the lane's part, of the first 32.
    mine: Reg<'k, A>,
    reference: Reg<'k, A>,
    /// Their sum over all parts.
    sum: Reg<'k, A>,
}

impl<'k> Parts<'k> {
    fn lse(&self, split: U32<'k>) -> Ptr<'k, Read, Elem> {
        self.a.part_lse.at(split.to_u64() * self.a.rows + self.number.to_u64())
    }

    fn part<A: Accumulate>(&self, split: U32<'k>, column: U32<'k>) -> Lanes<'k, A> {
        let from = (split.to_u64() * self.a.rows + self.number.to_u64()) * self.a.width.to_u64();
        let there = split.lt(self.a.splits) & column.lt(self.a.width);
        self.a.parts.at(from).at(column).only_where(there, Fill::Zero).load::<A>(self.vector)
    }

    /// Puts the parts together: the warps of the block share them, `vector` columns a lane, and their sums are added in order.
    fn join<A: Accumulate>(&self, k: K<'k>) {
        let (splits, vector) = (self.a.splits, self.vector);
        let (warp, lane) = (k.warp_idx(), k.lane_idx());
        // Parts that a warp loads before anything waits; the lanes have the powers of all warps' together.
        let first_parts = WARP / WARPS;
        let early = |column: U32<'k>| -> Vec<Lanes<'k, A>> {
            (0..first_parts).map(|i| self.part(warp + i * WARPS, column)).collect()
        };
        let (step, column) = (WARP * vector, lane * vector);
        let first = early(column);
        let lowest = k.lit::<A>(f64::NEG_INFINITY);
        let there = lane.lt(splits);
        let mine = there.select(self.lse(lane).only_where(there, Fill::Zero).get::<A>(), lowest);
        let others = k.range(lane + WARP, splits, WARP);
        let top = k.fold(others, mine, |split, top| top.max(self.lse(split).get::<A>()));
        let top = k.warp_combine(WARP, top, |a, b| a.max(b));
        let reference = top.eq(f64::NEG_INFINITY).select(0.0, top);
        let mine = (mine - reference).exp();
        let sum = k.fold(others, mine, |split, sum| sum + (self.lse(split).get::<A>() - reference).exp());
        let sum = k.warp_combine(WARP, sum, |a, b| a + b);
        let row = Row { mine, reference, sum };
        let add = |column: U32<'k>, early: Vec<Lanes<'k, A>>| {
            let zeros: Lanes<'k, A> = (0..vector).map(|_| k.lit::<A>(0.0)).collect();
            let values = (0..).zip(early).fold(zeros, |sum, (i, part)| {
                let factor = k.from_lane(warp + i * WARPS, &row.mine);
                part.zip(sum, |part, sum| part.mul_add(factor, sum))
            });
            let late = k.range(warp + first_parts * WARPS, splits, WARPS);
            let values = k.fold(late, values, |split, sum| {
                let factor = (self.lse(split).get::<A>() - row.reference).exp();
                self.part(split, column).zip(sum, |part: Reg<'k, A>, sum| part.mul_add(factor, sum))
            });
            self.write(k, &row, column, values);
        };
        add(column, first);
        k.for_each(k.range(step, self.a.width, step), |first| {
            // What the warps left before has been read.
            k.barrier();
            add(first + column, early(first + column));
        });
    }

    /// Adds what the warps have of a row, and writes it.
    fn write<A: Accumulate>(&self, k: K<'k>, row: &Row<'k, A>, column: U32<'k>, values: Lanes<'k, A>) {
        let (a, vector) = (&self.a, self.vector);
        let (warp, lane) = (k.warp_idx(), k.lane_idx());
        let mine = self.shared.at((warp * WARP + lane) * vector);
        mine.store(values);
        k.barrier();
        k.if_(warp.eq(0) & column.lt(a.width), || {
            let nothing = row.sum.eq(0.0);
            let whole = nothing.select(f64::NEG_INFINITY, row.reference + row.sum.log());
            let inverse = nothing.select(0.0, 1.0 / row.sum);
            let rest = self.number / a.queries;
            let batch = rest / a.heads;
            let (head, query) = (rest - batch * a.heads, self.number - rest * a.queries);
            let of_warp = |warp: u32| mine.at(u64::from(warp * WARP * vector)).load::<A>(vector);
            let total = (1..WARPS).fold(of_warp(0), |sum, w| sum.zip(of_warp(w), |a, b| a + b));
            let (lse, values) = self.sink.applied(head, whole, total.map(|v| v * inverse));
            a.o.at([batch, query, head]).at(column).store(values);
            a.lse.at(self.number).only_where(column.eq(0), Fill::Zero).set(lse);
        });
    }
}
