//! The kernels of nested statistics.

use warpwright_dsl::prelude::*;

use super::nested::{BLOCK, PARTIALS};
use super::reference::MIN_ABSMAX;
use super::tables::{dynamic_map, midpoints};
use super::tuning::THREADS;

kernel_args! {
    /// Sums of parts of a vector.
    pub(super) struct PartialSumsArgs => PartialSumsParams { x: In<f32>, partial: Out<f64>, n: u64 }
}

/// One sum in f64 per block, each block striding over the whole vector.
pub(super) struct PartialSums;

impl KernelDef for PartialSums {
    type Args = PartialSumsArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new("partial_sums_f32".to_owned(), BlockDim::x(THREADS))
    }

    fn build<'k>(&self, k: K<'k>, a: PartialSumsParams<'k>) {
        let first = Index::affine(k, (k.block_idx_x(), THREADS), (k.thread_idx(), 1)).to_u64();
        let mine = k.fold(k.range(first, a.n, u64::from(THREADS * PARTIALS)), k.lit::<f64>(0.0), |i, sum| {
            sum + a.x.at(i).get().to_f64()
        });
        let total = block_reduce(k, Sum, mine);
        k.if_(k.thread_idx().eq(0), || a.partial.at(k.block_idx_x()).set(total));
    }
}

kernel_args! {
    /// The mean from its partial sums.
    pub(super) struct MeanArgs => MeanParams { partial: In<f64>, mean: Out<f32>, n: u64 }
}

/// Adds the partial sums and divides.
pub(super) struct MeanOfPartials;

impl KernelDef for MeanOfPartials {
    type Args = MeanArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new("mean_of_partials_f32".to_owned(), BlockDim::x(PARTIALS))
    }

    fn build<'k>(&self, k: K<'k>, a: MeanParams<'k>) {
        let total = block_reduce(k, Sum, a.partial.at(k.thread_idx()).get());
        let mean = total / a.n.convert::<f64>();
        k.if_(k.thread_idx().eq(0), || a.mean.set(mean.to_f32()));
    }
}

kernel_args! {
    /// Shifted values to 8-bit codes.
    pub(super) struct QuantizeNestedArgs => QuantizeNestedParams {
        x: In<f32>, offset: In<f32>, codes: Out<u8>, absmax: Out<f32>, n: u64
    }
}

/// One warp per block of 256 values.
pub(super) struct QuantizeNested;

impl KernelDef for QuantizeNested {
    type Args = QuantizeNestedArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new("quantize_nested_f32".to_owned(), BlockDim::x(THREADS))
    }

    fn build<'k>(&self, k: K<'k>, a: QuantizeNestedParams<'k>) {
        let bounds = k.constant_table::<f32>(&midpoints(&dynamic_map()).map(f32::to_bits));
        let offset = a.offset.get();
        let block = Index::affine(k, (k.block_idx_x(), THREADS / 32), (k.warp_idx(), 1)).to_u64();
        let first = block * BLOCK as u64;
        let len = first.lt(a.n).select((a.n - first).min(BLOCK as u64), 0u64).to_u32();
        let lane = k.lane_idx();
        // Constants become immediate offsets of one address.
        let start = (first + lane.to_u64()).into_index(k);
        let values: Vec<(u32, F32<'k>)> = (0..BLOCK as u32 / 32)
            .map(|j| {
                let inside = (lane + 32 * j).lt(len);
                let at = start.plus(u64::from(32 * j));
                (32 * j, k.if_else(inside, || a.x.at(at).get() - offset, || k.lit(0.0)))
            })
            .collect();
        let zero = k.lit::<f32>(0.0);
        let most = values.iter().fold(zero, |most, (_, v)| most.max(v.abs()));
        let most = warp_reduce(k, Max, most);
        k.if_(lane.eq(0) & lane.lt(len), || a.absmax.at(block).set(most));
        let r = most.max(f64::from(MIN_ABSMAX)).rcp();
        for (step, v) in values {
            let t = v * r;
            // How many of the 255 ascending midpoints t exceeds, a bit of the answer at a time.
            let code = (0..8).rev().fold(k.lit(0u32), |code, bit| {
                let next = code + (1u32 << bit);
                t.gt(bounds.at(next - 1).get()).select(next, code)
            });
            k.if_((lane + step).lt(len), || a.codes.at(start.plus(u64::from(step))).set(code));
        }
    }
}

kernel_args! {
    /// 8-bit codes to values.
    pub(super) struct DequantizeNestedArgs => DequantizeNestedParams {
        codes: In<u8>, absmax: In<f32>, offset: In<f32>, y: Out<f32>, n: u64
    }
}

/// One value per thread.
pub(super) struct DequantizeNested;

impl KernelDef for DequantizeNested {
    type Args = DequantizeNestedArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new("dequantize_nested_f32".to_owned(), BlockDim::x(THREADS))
    }

    fn build<'k>(&self, k: K<'k>, a: DequantizeNestedParams<'k>) {
        let map = k.constant_table::<f32>(&dynamic_map().map(f32::to_bits));
        elementwise(k, a.n, 1, |i, _| {
            let value = map.at(a.codes.at(i).get()).get();
            let group = i.to_u64() / BLOCK as u64;
            // Two roundings, as the format has it.
            a.y.at(i).set(value * a.absmax.at(group).get() + a.offset.get());
        });
    }
}
