//! The end of a product whose common dimension is shared by several blocks: the sums of its parts are added in order.

use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;

use super::epilogue::{self, EpilogueArgs, Outputs, ResultArgs};

kernel_args! {
    /// `y = activation(alpha sum of partials + beta c + bias)`
    pub(super) struct SumArgs => SumParams {
        partials: In<Elem>, to: ResultArgs,
        m: u32, n: u32, parts: u32,
        ldy: u64, stride_y: u64,
        epilogue: EpilogueArgs,
    }
}

/// Threads of a block.
pub(super) const THREADS: u32 = 128;

/// Sums parts, `[part][batch][m][n]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct SumParts {
    pub(super) dtype: DType,
}

impl AccumulateKernel for SumParts {
    type Args = SumArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(format!("gemm_sum_parts_{}", self.dtype), BlockDim::x(THREADS))
            .dtypes(DTypes::all(self.dtype).with("partials", epilogue::sums_dtype(self.dtype)))
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, p: SumParams<'k>) {
        let (batch, batches) = (k.block_idx_z().to_u64(), k.grid_dim_z().to_u64());
        let outputs = Outputs::new(p.to, p.epilogue, (p.ldy, p.stride_y), (batch, batch));
        let len = p.m.mul_wide(p.n);
        let at = k.global_idx_x();
        k.if_(at.lt(len), || {
            let (row, col) = ((at / p.n.to_u64()).to_u32(), (at % p.n.to_u64()).to_u32());
            let zero = k.lit::<A>(0.0);
            let sum = k.fold(k.range(0, p.parts, 1), zero, |part, sum| {
                sum + p.partials.at((part.to_u64() * batches + batch) * len + at).get::<A>()
            });
            outputs.finish(row, col, &Lanes::from(sum));
        });
    }
}
