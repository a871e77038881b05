//! Dropout of a layer's result, and of the gradient that comes back to it.
//!
//! Element `e` of time step `p` of sequence `b` behind layer `l` is the element `2^44 l + (p batch + b) result + e` of
//! [`Dropout`](crate::Dropout), whatever order the tensors have, so that no mask has to be kept.

use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;

use super::sums::THREADS;
use crate::recurrent::sums_of;

/// Base-2 logarithm of the distance from the draws of one layer to those of the next.
const DRAWS: u32 = 42;
/// Elements of a draw.
const GROUP: u64 = 4;

kernel_args! {
    /// `to[i] = 0` or `scale (from[i] + from[stride + i] + ..)`, `parts` of them.
    pub(in crate::recurrent) struct DropoutArgs => DropoutParams {
        from: In<Elem>, to: Out<Elem>, random: In<u64>,
        stride: u64, draws: u64, n: u64, width: u32, batch: u32, row_step: u32, row_batch: u32,
        parts: u32, threshold: u32, scale: f64,
    }
}

/// A thread for each draw.
#[derive(Clone, Copy, Debug)]
pub(in crate::recurrent) struct DropoutKernel {
    pub(in crate::recurrent) dtype: DType,
    /// Whether it reads sums.
    pub(in crate::recurrent) of_sums: bool,
}

/// The draws before those of `layer`.
pub(in crate::recurrent) const fn first_draw(layer: usize) -> u64 {
    (layer as u64) << DRAWS
}

/// Draws of `elements`.
pub(in crate::recurrent) const fn draws(elements: usize) -> usize {
    elements.div_ceil(GROUP as usize)
}

impl AccumulateKernel for DropoutKernel {
    type Args = DropoutArgs;

    fn spec(&self) -> KernelSpec {
        let what = if self.of_sums { "sums_" } else { "" };
        let from = if self.of_sums { sums_of(self.dtype) } else { self.dtype };
        KernelSpec::new(format!("recurrent_drop_{what}{}", self.dtype), BlockDim::x(THREADS))
            .dtypes(DTypes::all(self.dtype).with("from", from))
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, p: DropoutParams<'k>) {
        let group = k.global_idx_x();
        k.if_((group * GROUP).lt(p.n), || {
            let [seed, offset] = [0u64, 1].map(|at| p.random.at(at).get::<u64>());
            let words = Philox::new(k, seed, offset).draw(group + p.draws);
            let scale = p.scale.convert::<A>();
            for (word, number) in words.into_iter().zip(0u64..) {
                let element = group * GROUP + number;
                k.if_(element.lt(p.n), || {
                    let (row, width) = ((element / p.width.to_u64()).to_u32(), p.width.to_u64());
                    let (place, batch) = (row / p.batch, row % p.batch);
                    let row = (place * p.row_step + batch * p.row_batch).to_u64();
                    let at = row * width + element % width;
                    let sum = k.fold(k.range(1, p.parts, 1), p.from.at(at).get::<A>(), |part, sum| {
                        sum + p.from.at(part.to_u64() * p.stride + at).get::<A>()
                    });
                    p.to.at(at).set(word.ge(p.threshold).select(sum * scale, 0.0));
                });
            }
        });
    }
}
