//! The sums of the parts of the common dimension, added in order.

use warpwright_dsl::prelude::*;

use super::tuning::SUM_THREADS;

kernel_args! {
    /// `y = sum of parts + bias`
    pub(super) struct SumArgs => SumParams {
        parts: In<f32>, bias: In<Elem>, y: Out<Elem>, m: u32, n: u32, count: u32
    }
}

/// Sums parts, `[part][m][n]`: columns along x of the grid, rows along y.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sum {
    pub(super) dtype: DType,
    pub(super) bias: bool,
}

impl KernelDef for Sum {
    type Args = SumArgs;

    fn spec(&self) -> KernelSpec {
        let bias = if self.bias { "_bias" } else { "" };
        KernelSpec::new(format!("matmul_4bit_sum_{}{bias}", self.dtype), BlockDim::x(SUM_THREADS))
            .dtypes(DTypes::all(self.dtype))
    }

    fn build<'k>(&self, k: K<'k>, p: SumParams<'k>) {
        k.after_previous_grid();
        let column = k.global_idx_x();
        k.if_(column.lt(p.n.to_u64()), || {
            let at = k.block_idx_y().mul_wide(p.n) + column;
            let matrix = p.m.mul_wide(p.n);
            let sum = k.fold(k.range(0, p.count, 1), k.lit::<f32>(0.0), |part, sum| {
                sum + p.parts.at(part.to_u64() * matrix + at).get::<f32>()
            });
            let sum = if self.bias { sum + p.bias.at(column).get::<f32>() } else { sum };
            p.y.at(at).set(sum);
        });
    }
}
