//! Sums of rows, and the rounding of sums.

use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;

use crate::recurrent::sums_of;

/// Threads of a block.
pub(in crate::recurrent) const THREADS: u32 = 128;

kernel_args! {
    /// `y[i] = sums[i] + sums[stride + i] + ..`, `parts` of them.
    pub(in crate::recurrent) struct RoundArgs => RoundParams {
        sums: In<Elem>, y: Out<Elem>, n: u64, stride: u64, parts: u32,
    }
}

/// Adds parts in order and rounds once.
#[derive(Clone, Copy, Debug)]
pub(in crate::recurrent) struct Round {
    pub(in crate::recurrent) dtype: DType,
}

impl AccumulateKernel for Round {
    type Args = RoundArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(format!("recurrent_round_{}", self.dtype), BlockDim::x(THREADS))
            .dtypes(DTypes::all(self.dtype).with("sums", sums_of(self.dtype)))
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, p: RoundParams<'k>) {
        let at = k.global_idx_x();
        k.if_(at.lt(p.n), || {
            let sum = k.fold(k.range(1, p.parts, 1), p.sums.at(at).get::<A>(), |part, sum| {
                sum + p.sums.at(part.to_u64() * p.stride + at).get::<A>()
            });
            p.y.at(at).set(sum);
        });
    }
}

kernel_args! {
    /// Sums of columns over `part` rows for each block along y.
    pub(in crate::recurrent) struct ColumnArgs => ColumnParams {
        /// `[rows][columns]`
        x: In<Elem>,
        /// `[parts][columns]`
        sums: Out<Elem>,
        rows: u32, columns: u32, part: u32,
    }
}

/// Sums columns, a thread each.
#[derive(Clone, Copy, Debug)]
pub(in crate::recurrent) struct Columns {
    pub(in crate::recurrent) dtype: DType,
}

impl AccumulateKernel for Columns {
    type Args = ColumnArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(format!("recurrent_columns_{}", self.dtype), BlockDim::x(THREADS))
            .dtypes(DTypes::all(self.dtype).with("sums", sums_of(self.dtype)))
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, p: ColumnParams<'k>) {
        let column = k.global_idx_x();
        let columns = p.columns.to_u64();
        k.if_(column.lt(columns), || {
            let first = k.block_idx_y() * p.part;
            let end = (first + p.part).min(p.rows);
            let sum = k.fold(k.range(first, end, 1), k.lit::<A>(0.0), |row, sum| {
                sum + p.x.at(row.to_u64() * columns + column).get::<A>()
            });
            p.sums.at(k.block_idx_y().to_u64() * columns + column).set(sum);
        });
    }
}
