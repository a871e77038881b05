//! Gradients of weights in `f32` on the tensor cores of sm_90a, as three products of `tf32`: the warps that turn slices split their elements,
//! and threads add the sums of tensor cores.
//!
//! Numbers that rounding makes infinite, infinities and NaN make sums that are not finite: a warp computes those again in `f32` from the tensors.

use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;

use super::implicit::{ImageArgs, Images, Implicit};
use crate::gemm::engine::{Blocks, Epilogue, Joined, ResultPanel, WorkArgs};
use crate::gemm::epilogue::ResultParams;

kernel_args! {
    /// A gradient of a weight.
    pub(super) struct ExactArgs => ExactParams {
        work: WorkArgs, image: ImageArgs,
        x: In<Elem>, dy: In<Elem>,
        /// Pixels of an image of `x` along each dimension, and those of all of `dy`.
        d: u32, h: u32, w: u32, pixels: u32,
    }
}

/// The factor of the rest of an element beside its `tf32`, which is not lost among the least numbers so.
const LOW: f64 = 4096.0;

/// A gradient of a weight whose products are exact.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exact(pub(super) Implicit);

impl Exact {
    pub(super) fn blocks(&self) -> Blocks {
        Blocks { planes: Some(LOW.recip()), ..self.0.blocks() }
    }
}

impl KernelDef for Exact {
    type Args = ExactArgs;

    fn spec(&self) -> KernelSpec {
        let Implicit { dtype, .. } = self.0;
        KernelSpec::new(format!("{}_exact", self.0.name()), BlockDim::x(self.blocks().threads()))
            .dtypes(DTypes::all(dtype))
            .min_blocks_per_sm(1)
    }

    fn build<'k>(&self, k: K<'k>, p: ExactParams<'k>) {
        let images = Images::new(&self.0, &p.work, p.image);
        self.blocks().record_loading(k, p.work, images, &Finish { images, p });
    }
}

/// The epilogue: sums as they are, and again from the tensors where they are not finite.
struct Finish<'k> {
    images: Images<'k>,
    p: ExactParams<'k>,
}

impl<'k> Finish<'k> {
    /// The product at a row and a column in `f32`, for a warp.
    fn product(&self, batch: U32<'k>, (row, col): (U32<'k>, U32<'k>)) -> F32<'k> {
        let k = row.k();
        let ExactParams { work, image, x, dy, d, h, w, pixels } = self.p;
        let (channel, offsets) = self.images.column(batch, col);
        let (begin, end) = self.images.pixels_of(batch);
        let lanes = k.range(begin + k.lane_idx(), end.min(pixels), warpwright_dsl::WARP);
        let mine = k.fold(lanes, k.lit(0.0f32), |pixel, sum| {
            let at = self.images.places(pixel);
            let extents = [w, h, d];
            let (mut inside, mut element) = (k.lit(0u32).eq(0), at[offsets.len()]);
            for (axis, offset) in offsets.iter().enumerate().rev() {
                let place = at[axis] + *offset;
                inside = inside & place.lt(extents[axis]);
                element = element * extents[axis] + place;
            }
            let x = x.at(element.mad_wide(image.channels, channel.to_u64()));
            let x = x.only_where(inside, Fill::Zero).get::<f32>();
            x.mul_add(dy.at(pixel.mad_wide(work.m, row.to_u64())).get::<f32>(), sum)
        });
        k.warp_combine(warpwright_dsl::WARP, mine, |a, b| a + b)
    }
}

impl<'k> Epilogue<'k> for Finish<'k> {
    type Rows = ();

    fn rows(&self, _: U32<'k>, _: &dyn Fn(u32) -> U32<'k>) {}

    fn mend(&self, _: &ResultParams<'k>, (): &(), panel: &ResultPanel<'k>, sums: &[Joined<'k>]) {
        let k = panel.row.k();
        let zero = k.lit(0.0f32);
        let all = sums.iter().flat_map(|(.., sums)| sums[0]);
        // What is not finite times 0 is not a number.
        let finite = all.fold(zero, |all, sum| sum.mul_add(zero, all)).eq(0.0);
        k.if_((!finite).vote_any(), || {
            let (down, right) = k.accumulator_origin();
            let first_row = panel.row + (k.warp_idx() & 3) * 16 + down;
            let mut doubtful = k.lit(0u32);
            for (pair, (down, at, sums)) in (0..).zip(sums) {
                for (i, sum) in (0..).zip(sums[0]) {
                    let col = panel.col + right + (at - panel.right + i);
                    let there = (first_row + *down).lt(self.p.work.m) & col.lt(self.p.work.n);
                    let lacks = there & !(sum * 0.0).eq(0.0);
                    doubtful = lacks.select(doubtful | (1u32 << (2 * pair + i)), doubtful);
                }
            }
            panel.mend((k.lane_idx(), down, right), doubtful, |at| [self.product(panel.batch, at); 2]);
        });
    }
}
