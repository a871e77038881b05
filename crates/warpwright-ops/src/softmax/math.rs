//! What the kernels share: exponentials of scores, and their greatest value and sum over the threads of a row.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{AllGather, WARP, tree, warp_reduce_lanes};

/// `exp(scale x - top)` as exact as the result is worth.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exponential<'k, A: Float> {
    pub(crate) scale: Reg<'k, A>,
    pub(crate) precision: Precision,
}

impl<'k, A: Accumulate> Exponential<'k, A> {
    /// `scale x - top`, rounded once.
    pub(crate) fn below(&self, x: Reg<'k, A>, minus_top: Reg<'k, A>) -> Reg<'k, A> {
        x.mul_add(self.scale, minus_top)
    }

    /// `exp(scale x - top)`
    pub(crate) fn power(&self, x: Reg<'k, A>, minus_top: Reg<'k, A>) -> Reg<'k, A> {
        self.below(x, minus_top).exp_nonpositive_for(self.precision)
    }

    /// `exp(difference)` of a difference that is at most 0.
    pub(crate) fn of(&self, difference: Reg<'k, A>) -> Reg<'k, A> {
        difference.exp_nonpositive_for(self.precision)
    }

    /// The greatest of the elements, not scaled; NaN if one is NaN.
    pub(crate) fn greatest(&self, vectors: &[Packed<'k, A>]) -> Reg<'k, A> {
        let halves: Option<Vec<_>> = vectors.iter().map(Packed::halves).collect();
        let pairs = halves.and_then(|h| tree(h.into_iter().flatten(), |a, b| a.maximum(b)));
        let lanes: Vec<Reg<'k, A>> = match pairs {
            Some(pair) => pair.widen().into_iter().map(Reg::convert).collect(),
            None => vectors.iter().flat_map(|v| v.lanes()).collect(),
        };
        self.scale.k().tree("the greatest score", lanes, |a, b| a.maximum(b))
    }

    /// The sum of `exp(scale x - top)` over the elements.
    pub(crate) fn sum(&self, vectors: &[Packed<'k, A>], minus_top: Reg<'k, A>) -> Reg<'k, A> {
        let sums = vectors.iter().filter_map(|v| v.lanes().map(|x| self.power(x, minus_top)).sum());
        minus_top.k().tree("a sum of exponentials", sums, |a, b| a + b)
    }
}

/// The sum over teams of `lanes` neighbouring lanes.
pub(crate) fn warp_sum<'k, A: Accumulate>(k: K<'k>, lanes: u32, value: Reg<'k, A>) -> Reg<'k, A> {
    k.warp_combine(lanes, value, |a, b| a + b)
}

/// The greatest scaled score of some elements, and the sum of `exp(score - top)` over them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mass<'k, A: Float> {
    pub(crate) top: Reg<'k, A>,
    pub(crate) sum: Reg<'k, A>,
}

impl<'k, A: Accumulate> Mass<'k, A> {
    /// `-top`, or 0 where nothing is greater than minus infinity, so that the exponentials there are 0 and not NaN.
    pub(crate) fn minus_reference(top: Reg<'k, A>) -> Reg<'k, A> {
        top.eq(f64::NEG_INFINITY).select(0.0, -top)
    }

    /// Of parts that were summed apart.
    pub(crate) fn of_parts(tops: &[Reg<'k, A>], sums: &[Reg<'k, A>], exp: Exponential<'k, A>) -> Self {
        let k = exp.scale.k();
        let top = k.tree("the greatest score", tops.iter().copied(), |a, b| a.maximum(b));
        let minus = Self::minus_reference(top);
        let scaled = tops.iter().zip(sums).map(|(top, sum)| *sum * exp.of(*top + minus));
        Self { top, sum: k.tree("a sum of exponentials", scaled, |a, b| a + b) }
    }

    /// Of a team of `lanes` neighbouring lanes, from what each of them has: all receive the same.
    pub(crate) fn of_lanes(self, k: K<'k>, lanes: u32, exp: Exponential<'k, A>) -> Self {
        let top = warp_reduce_lanes(k, Maximum, lanes, self.top);
        let scaled = self.sum * exp.of(self.top + Self::minus_reference(top));
        Self { top, sum: warp_sum(k, lanes, scaled) }
    }

    /// Of the block, from what each warp has. The sum is NaN if every score is minus infinity.
    pub(crate) fn of_warps(self, k: K<'k>, exp: Exponential<'k, A>) -> Self {
        let warps = k.block_threads() / WARP;
        let tops = k.shared::<A>(warps);
        let sums = k.shared::<A>(warps);
        k.if_(k.lane_idx().eq(0), || {
            tops.at(k.warp_idx()).set(self.top);
            sums.at(k.warp_idx()).set(self.sum);
        });
        k.barrier();
        let slot = k.lane_idx() & (warps - 1);
        Mass { top: tops.at(slot).get(), sum: sums.at(slot).get() }.of_slots(k, warps, exp)
    }

    /// Of the cluster, from what each block has.
    pub(crate) fn of_blocks(self, gather: AllGather<'k>, exp: Exponential<'k, A>) -> Self {
        let k = self.sum.k();
        if k.cluster_blocks() == 1 {
            return self;
        }
        let (top, sum) = gather.values((self.top, self.sum));
        Mass { top, sum }.of_slots(k, k.cluster_blocks(), exp)
    }

    /// Of `count` neighbouring lanes, each of which has one part.
    fn of_slots(self, k: K<'k>, count: u32, exp: Exponential<'k, A>) -> Self {
        let top = warp_reduce_lanes(k, Maximum, count, self.top);
        // Where nothing is greater than minus infinity, a part is not a number, but weighs nothing among others.
        let weight = self.top.eq(f64::NEG_INFINITY).select(0.0, self.sum) * exp.of(self.top - top);
        Self { top, sum: warp_sum(k, count, weight) }
    }
}

impl<'k, A: Accumulate> Exponential<'k, A> {
    /// Of each element of a vector, the greatest among all vectors, not scaled.
    pub(crate) fn greatest_each(&self, vectors: &[Packed<'k, A>], width: usize) -> Lanes<'k, A> {
        let halves: Option<Vec<_>> = vectors.iter().map(Packed::halves).collect();
        match halves {
            Some(halves) => (0..width / 2)
                .filter_map(|word| tree(halves.iter().map(|h| h[word]), |a, b| a.maximum(b)))
                .flat_map(|pair| pair.widen())
                .map(Reg::convert)
                .collect(),
            None => {
                let wide: Vec<Lanes<'k, A>> = vectors.iter().map(Packed::lanes).collect();
                (0..width)
                    .filter_map(|lane| tree(wide.iter().map(|v| v[lane]), |a, b| a.maximum(b)))
                    .collect()
            }
        }
    }
}
