//! The steps of all positions, and the sums of their exponents within chunks.

use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;

use super::{RowParams, Rows, SizeParams, Sizes, first_step};
use crate::chunk_scan::tuning::CHUNK;

/// Threads of a block.
pub(in crate::chunk_scan) const THREADS: u32 = 64;
/// Positions of a thread that are loaded at once.
const AT_ONCE: u32 = 8;

kernel_args! {
    /// The time steps as they come.
    pub(in crate::chunk_scan) struct TimeArgs => TimeParams {
        dt: Rows, a: In<f32>, bias: Optional<In<f32>>, softplus: u32,
    }
}

kernel_args! {
    /// Steps and sums of `samples` samples.
    pub(in crate::chunk_scan) struct PrepareArgs => PrepareParams {
        time: TimeArgs, sizes: Sizes, samples: u32, step: Out<f32>, sum: Out<f32>,
    }
}

impl<'k> TimeParams<'k> {
    /// The argument of `softplus` of a position, that of 0 where it is not `there`.
    pub(super) fn raw(&self, position: U64<'k>, head: U32<'k>, bias: F32<'k>, there: Pred<'k>) -> F32<'k> {
        let RowParams { data, row } = self.dt;
        data.at(position * row + head.to_u64()).only_where(there, Fill::Zero).get::<f32>() + bias
    }

    /// The bias of a head.
    pub(super) fn bias_of(&self, head: U32<'k>) -> F32<'k> {
        self.bias.value.at(head).only_where(self.bias.is_given(), Fill::Zero).get()
    }
}

/// A thread for each head of each chunk.
#[derive(Clone, Copy, Debug)]
pub(in crate::chunk_scan) struct Prepare {
    pub(in crate::chunk_scan) dtype: DType,
}

impl KernelDef for Prepare {
    type Args = PrepareArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(format!("chunk_scan_steps_{}", self.dtype), BlockDim::x(THREADS))
            .dtypes(DTypes::all(self.dtype))
    }

    fn build<'k>(&self, k: K<'k>, p: PrepareParams<'k>) {
        let sizes: SizeParams<'k> = p.sizes;
        let index = k.block_idx_x().mul_add(THREADS, k.thread_idx());
        let (rest, head) = (index / sizes.heads, index % sizes.heads);
        let (sample, chunk) = (rest / sizes.chunks, rest % sizes.chunks);
        k.if_(sample.lt(p.samples), || {
            let rate = p.time.a.at(head).get::<f32>() * std::f64::consts::LOG2_E;
            let bias = p.time.bias_of(head);
            let (start, to) = (chunk * CHUNK, first_step(sizes, sample, head, chunk));
            let zero = k.lit(0.0f32);
            let _ = k.fold(k.range(0u32, CHUNK, AT_ONCE), zero, |from, sum| {
                let step = |i: u32| {
                    let position = start + from + i;
                    let there = position.lt(sizes.len);
                    let raw = p.time.raw(sample.mul_wide(sizes.len) + position.to_u64(), head, bias, there);
                    let step = k.if_else(p.time.softplus.ne(0), || raw.softplus(), || raw);
                    there.select(step, 0.0)
                };
                let steps: Vec<F32<'k>> = (0..AT_ONCE).map(step).collect();
                let mut sum = sum;
                let sums: Vec<F32<'k>> = steps
                    .iter()
                    .map(|step| {
                        sum = step.mul_add(rate, sum);
                        sum
                    })
                    .collect();
                let at = to + from.to_u64();
                p.step.at(at).store(Lanes::from(steps));
                p.sum.at(at).store(Lanes::from(sums));
                sum
            });
        });
    }
}
