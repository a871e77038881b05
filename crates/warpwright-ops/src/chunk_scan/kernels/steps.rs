//! The steps of all positions, and the sums of their exponents within chunks.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{WARP, kernel_args, warp_inclusive_sum};

use super::{RowParams, Rows, SizeParams, Sizes, first_step};
use crate::chunk_scan::tuning::CHUNK;

/// Threads of a block.
pub(in crate::chunk_scan) const THREADS: u32 = 256;
/// Neighbouring positions of a lane.
pub(super) const OWN: u32 = CHUNK / WARP;

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

/// A head of a chunk, which a warp has: its lanes have neighbouring positions.
pub(super) struct HeadChunk<'k> {
    pub(super) head: U32<'k>,
    pub(super) sample: U32<'k>,
    pub(super) chunk: U32<'k>,
    /// The lane's first position in the sample.
    pub(super) position: U32<'k>,
    /// Its number among those of all heads.
    pub(super) first: U64<'k>,
}

impl<'k> HeadChunk<'k> {
    pub(super) fn new(k: K<'k>, sizes: SizeParams<'k>) -> Self {
        let index = k.block_idx_x().mul_add(THREADS, k.thread_idx()) / WARP;
        let (rest, head) = (index / sizes.heads, index % sizes.heads);
        let (sample, chunk) = (rest / sizes.chunks, rest % sizes.chunks);
        let own = k.lane_idx() * OWN;
        let first = first_step(sizes, sample, head, chunk) + own.to_u64();
        Self { head, sample, chunk, position: chunk.mul_add(CHUNK, own), first }
    }

    /// Whether the sample has the lane's `i`-th position, and its number among those of all samples.
    pub(super) fn at(&self, sizes: SizeParams<'k>, i: u32) -> (Pred<'k>, U64<'k>) {
        let position = self.position + i;
        (position.lt(sizes.len), self.sample.mul_wide(sizes.len) + position.to_u64())
    }
}

/// A warp for each head of each chunk.
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
        let place = HeadChunk::new(k, sizes);
        k.if_(place.sample.lt(p.samples), || {
            let rate = p.time.a.at(place.head).get::<f32>() * std::f64::consts::LOG2_E;
            let bias = p.time.bias_of(place.head);
            let step = |i: u32| {
                let (there, at) = place.at(sizes, i);
                let raw = p.time.raw(at, place.head, bias, there);
                let step = k.if_else(p.time.softplus.ne(0), || raw.softplus(), || raw);
                there.select(step, 0.0)
            };
            let steps: Lanes<'k, f32> = (0..OWN).map(step).collect();
            let exponents = steps.map(|step| step * rate);
            let before = sums_before(k, &exponents);
            p.step.at(place.first).store(steps);
            p.sum.at(place.first).store(before + exponents);
        });
    }
}

/// The sum of the values before each position of the chunk.
pub(super) fn sums_before<'k>(k: K<'k>, values: &Lanes<'k, f32>) -> Lanes<'k, f32> {
    let total = values.iter().reduce(|a, b| a + b).unwrap_or(k.lit(0.0));
    let through = warp_inclusive_sum(k, total);
    let before = through.shfl_up(1u32);
    let mut sum = k.lane_idx().gt(0).select(before, 0.0);
    values.map(|value| {
        let before = sum;
        sum = sum + value;
        before
    })
}
