//! The mathematics that the kernels share: exponentials of scores, and the maximum and the sum that the online softmax carries along a row.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{AllGather, WARP, warp_reduce_lanes};

/// `exp(scale x - row_max)` as exact as the result is worth.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exponential<'k, A: Float> {
    pub(crate) scale: Reg<'k, A>,
    pub(crate) precision: Precision,
}

impl<'k, A: Accumulate> Exponential<'k, A> {
    /// `scale x - row_max`, rounded once.
    pub(crate) fn shifted(&self, x: Reg<'k, A>, minus_max: Reg<'k, A>) -> Reg<'k, A> {
        x.mul_add(self.scale, minus_max)
    }

    /// `exp(scale x - row_max)`
    pub(crate) fn exp(&self, x: Reg<'k, A>, minus_max: Reg<'k, A>) -> Reg<'k, A> {
        self.rescale(self.shifted(x, minus_max))
    }

    /// `exp(difference)` of a difference that is at most 0.
    pub(crate) fn rescale(&self, difference: Reg<'k, A>) -> Reg<'k, A> {
        difference.exp_nonpositive_for(self.precision)
    }

    /// The sum of `exp(scale x - row_max)` over the elements.
    pub(crate) fn sum(&self, vectors: &[Packed<'k, A>], minus_max: Reg<'k, A>) -> Reg<'k, A> {
        let sums = vectors.iter().filter_map(|v| v.lanes().map(|x| self.exp(x, minus_max)).sum());
        minus_max.k().tree("a sum of exponentials", sums, |a, b| a + b)
    }
}

/// The sum over teams of `lanes` neighbouring lanes.
pub(crate) fn warp_sum<'k, A: Accumulate>(k: K<'k>, lanes: u32, value: Reg<'k, A>) -> Reg<'k, A> {
    k.warp_combine(lanes, value, |a, b| a + b)
}

/// `-row_max`, or 0 where nothing is greater than minus infinity, so that the exponentials there are 0 and not NaN.
pub(crate) fn minus_max<A: Accumulate>(row_max: Reg<'_, A>) -> Reg<'_, A> {
    row_max.eq(f64::NEG_INFINITY).select(0.0, -row_max)
}

/// The largest scaled score of some elements, and the sum of `exp(score - row_max)` over them (Milakov and Gimelshein 2018,
/// arXiv:1805.02867).
#[derive(Clone, Copy, Debug)]
pub(crate) struct OnlineSoftmax<'k, A: Float> {
    pub(crate) row_max: Reg<'k, A>,
    pub(crate) row_sum: Reg<'k, A>,
}

impl<'k, A: Accumulate> OnlineSoftmax<'k, A> {
    /// Of parts that were summed apart.
    pub(crate) fn of_parts(maxima: &[Reg<'k, A>], sums: &[Reg<'k, A>], exp: Exponential<'k, A>) -> Self {
        let k = exp.scale.k();
        let row_max = k.tree("the largest score", maxima.iter().copied(), |a, b| a.maximum(b));
        let minus = minus_max(row_max);
        let scaled = maxima.iter().zip(sums).map(|(max, sum)| *sum * exp.rescale(*max + minus));
        Self { row_max, row_sum: k.tree("a sum of exponentials", scaled, |a, b| a + b) }
    }

    /// Of a team of `lanes` neighbouring lanes, from what each of them has: all receive the same.
    pub(crate) fn of_lanes(self, k: K<'k>, lanes: u32, exp: Exponential<'k, A>) -> Self {
        let row_max = warp_reduce_lanes(k, Maximum, lanes, self.row_max);
        let scaled = self.row_sum * exp.rescale(self.row_max + minus_max(row_max));
        Self { row_max, row_sum: warp_sum(k, lanes, scaled) }
    }

    /// Of the block, from what each warp has. The sum is NaN if every score is minus infinity.
    pub(crate) fn of_warps(self, k: K<'k>, exp: Exponential<'k, A>) -> Self {
        let warps = k.block_threads() / WARP;
        let (maxima, sums) = (k.shared::<A>(warps), k.shared::<A>(warps));
        k.if_(k.lane_idx().eq(0), || {
            maxima.at(k.warp_idx()).set(self.row_max);
            sums.at(k.warp_idx()).set(self.row_sum);
        });
        k.barrier();
        let slot = k.lane_idx() & (warps - 1);
        Self { row_max: maxima.at(slot).get(), row_sum: sums.at(slot).get() }.of_slots(k, warps, exp)
    }

    /// Of the cluster, from what each block has.
    pub(crate) fn of_blocks(self, gather: AllGather<'k>, exp: Exponential<'k, A>) -> Self {
        let k = self.row_sum.k();
        if k.cluster_blocks() == 1 {
            return self;
        }
        let (row_max, row_sum) = gather.values((self.row_max, self.row_sum));
        Self { row_max, row_sum }.of_slots(k, k.cluster_blocks(), exp)
    }

    /// Of `count` neighbouring lanes, each of which has one part.
    fn of_slots(self, k: K<'k>, count: u32, exp: Exponential<'k, A>) -> Self {
        let row_max = warp_reduce_lanes(k, Maximum, count, self.row_max);
        // Where nothing is greater than minus infinity, a part is not a number, but weighs nothing among others.
        let there = self.row_max.eq(f64::NEG_INFINITY).select(0.0, self.row_sum);
        let weight = there * exp.rescale(self.row_max - row_max);
        Self { row_max, row_sum: warp_sum(k, count, weight) }
    }
}
