//! The gradients of time steps, from what positions and chunks have left.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{WARP, kernel_args};

use super::steps::{self, HeadChunk, OWN, TimeArgs, TimeParams, sums_before};
use super::{SizeParams, Sizes, Steps, StepsParams};

/// Parameters of a head.
pub(in crate::chunk_scan) const PARAMETERS: u32 = 3;

kernel_args! {
    /// `parameters` has a row for each chunk of each sample: the gradients of `A`, of `D` and of the bias of all heads.
    pub(in crate::chunk_scan) struct StepGradientArgs => StepGradientParams {
        time: TimeArgs, steps: Steps, sizes: Sizes, samples: u32, positions: In<f32>, chunks: In<f32>, ddt: Out<Elem>,
        parameters: Out<f32>, of_positions: u64, of_chunks: u64,
    }
}

/// A warp for each head of each chunk.
#[derive(Clone, Copy, Debug)]
pub(in crate::chunk_scan) struct StepGradients {
    pub(in crate::chunk_scan) dtype: DType,
}

impl KernelDef for StepGradients {
    type Args = StepGradientArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(format!("chunk_scan_backward_steps_{}", self.dtype), BlockDim::x(steps::THREADS))
            .dtypes(DTypes::all(self.dtype))
    }

    fn build<'k>(&self, k: K<'k>, p: StepGradientParams<'k>) {
        let (sizes, time, steps): (SizeParams<'k>, TimeParams<'k>, StepsParams<'k>) =
            (p.sizes, p.time, p.steps);
        let place = HeadChunk::new(k, sizes);
        let HeadChunk { head, sample, chunk, first, .. } = place;
        k.if_(sample.lt(p.samples), || {
            let value = |i: u64| p.positions.at(p.of_positions * i + first).load::<f32>(OWN);
            let [later, earlier, by_state] = [0, 1, 2].map(value);
            let step = steps.step.at(first).load::<f32>(OWN);
            let row = sample.mul_wide(sizes.chunks) + chunk.to_u64();
            let of_chunk = |i: u64| {
                p.chunks.at(p.of_chunks * i + row * sizes.heads.to_u64() + head.to_u64()).get::<f32>()
            };
            let (whole, dd) = (of_chunk(0), of_chunk(1));
            // Pairs whose later position is this one or behind it, and whose earlier one is before it.
            let behind = later - &step * &earlier;
            let before = &step * &by_state;
            let behind = sums_from(k, &behind);
            let before = sums_before(k, &before);
            let exponent = (behind + before).map(|sum| sum + whole);
            let rate = time.a.at(head).get::<f32>();
            let dstep = exponent.mul_add(rate, earlier + by_state);
            let bias = time.bias_of(head);
            let mut of_bias = k.lit(0.0f32);
            for (i, dstep) in (0..).zip(dstep.iter()) {
                let (there, at) = place.at(sizes, i);
                let raw = time.raw(at, head, bias, there);
                let slope = k.if_else(time.softplus.ne(0), || raw.sigmoid(), || k.lit(1.0f32));
                let gradient = there.select(dstep * slope, 0.0);
                p.ddt
                    .at(at * sizes.heads.to_u64() + head.to_u64())
                    .only_where(there, Fill::Zero)
                    .set(gradient);
                of_bias = of_bias + gradient;
            }
            let of_rate = (&step * &exponent).iter().reduce(|a, b| a + b).unwrap_or(of_bias);
            let [of_rate, of_bias] = [of_rate, of_bias].map(|sum| warp_reduce(k, Sum, sum));
            k.if_(k.lane_idx().eq(0), || {
                let to = p.parameters.at(row * (sizes.heads * PARAMETERS).to_u64() + head.to_u64());
                for (i, value) in (0u32..).zip([of_rate, dd, of_bias]) {
                    to.at((sizes.heads * i).to_u64()).set(value);
                }
            });
        });
    }
}

/// The sum of the values from each position of the chunk on.
fn sums_from<'k>(k: K<'k>, values: &Lanes<'k, f32>) -> Lanes<'k, f32> {
    let own = from_the_last(values);
    let total = own[0];
    let of_later = (0..WARP.trailing_zeros()).fold(total, |sum, step| {
        let other = sum.shfl_down(1 << step);
        (k.lane_idx() + (1 << step)).lt(WARP).select(sum + other, sum)
    });
    // Those of the lanes behind: nothing for the last.
    let behind = of_later.shfl_down(1u32);
    let behind = k.lane_idx().lt(WARP - 1).select(behind, 0.0);
    own.map(|sum| sum + behind)
}

/// The sums of a lane's values from each on.
fn from_the_last<'k>(values: &Lanes<'k, f32>) -> Lanes<'k, f32> {
    let mut sums: Vec<F32<'k>> = Vec::new();
    for value in values.iter().collect::<Vec<_>>().into_iter().rev() {
        sums.push(sums.last().map_or(value, |sum| *sum + value));
    }
    sums.reverse();
    Lanes::from(sums)
}
