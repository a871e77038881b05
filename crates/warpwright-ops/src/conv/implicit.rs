//! Passes on the tensor cores of sm_90a: products in the persistent blocks of [`gemm`](crate::gemm), to which tensor copies bring an image as
//! the matrix that it is taken for (implicit GEMM), a tap after the other.
//!
//! Forward, rows are outputs, columns filters, and a slice has 64 channels of a tap; the gradient of `x` is the same of `dy`, with the taps
//! in reverse and the weight's other side outermost; it needs a stride of 1. The gradient of the weight has filters for rows and the channels
//! of a tap for columns, taps are products of their own, and a slice has 64 outputs; of `tf32` 32, and warps turn it before it is multiplied.

use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;
use warpwright_dsl::{PanelTile, TensorMapParam};

use super::Pass;
use crate::gemm::engine::{Arriving, Blocks, Loader, Place, Store, WorkArgs, WorkParams};
use crate::gemm::epilogue::Program;
use crate::gemm::persistent::Finish;
use crate::gemm::tuning::PersistentConfig;

kernel_args! {
    /// A spatial dimension of the image that is gathered.
    pub(super) struct AxisArgs => AxisParams {
        /// Pixels that there are products for.
        pixels: u32,
        /// From one of them to the next in the image, and where the first is: the bits of an i32.
        step: u32, first: u32,
        kernel: u32, dilation: u32,
        /// A slice of pixels on.
        advance: u32,
        /// Elements from one of the pixels to the next in a result that has others between them.
        result: u64,
    }
}

kernel_args! {
    /// The gathered operand.
    pub(super) struct ImageArgs => ImageParams {
        d: AxisArgs, h: AxisArgs, w: AxisArgs,
        /// Images that a slice of pixels is on.
        advance: u32,
        /// Elements from one image to the next in such a result.
        image: u64,
        /// Channels of a tap, and taps.
        channels: u32, taps: u32,
        /// Slices of all parts of a product.
        slices: u32,
    }
}

kernel_args! {
    /// A pass of a convolution.
    pub(super) struct ImplicitArgs => ImplicitParams { work: WorkArgs, image: ImageArgs, alpha: f32, beta: f32 }
}

/// A pass of a convolution in persistent blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Implicit {
    pub(super) dtype: DType,
    pub(super) pass: Pass,
    /// Spatial dimensions, the same for one as for two.
    pub(super) dims: usize,
    pub(super) config: PersistentConfig,
    pub(super) program: Program,
    pub(super) store: Store,
    /// Whether sums are stored as they are: those of parts of the common dimension.
    pub(super) split: bool,
    /// Whether the columns of a gradient of the weight are those of all taps.
    pub(super) joined: bool,
    /// Whether there are other pixels between those of the result: stored by rows.
    pub(super) scattered: bool,
    /// Whether each row of the kernel is a product of its own, of a gradient of `x` whose rows have one tap each.
    pub(super) apart: bool,
}

impl Implicit {
    /// The slices of both operands as copies bring them.
    pub(super) fn copied(&self) -> (PanelTile, PanelTile) {
        let (a, b) = match self.pass {
            Pass::Forward => (Major::K, Major::K),
            // Of a weight that is turned before.
            Pass::BackwardX if self.dtype == DType::F32 => (Major::K, Major::K),
            Pass::BackwardX => (Major::K, Major::Mn),
            Pass::BackwardWeight => (Major::Mn, Major::Mn),
        };
        self.config.tiles(self.dtype, a, b)
    }

    pub(super) fn blocks(&self) -> Blocks {
        let Self { dtype, config, store, split, .. } = *self;
        // Products of `tf32` take both along the common dimension.
        let slices = match dtype {
            DType::F32 => config.tiles(dtype, Major::K, Major::K),
            _ => self.copied(),
        };
        let y = if split { DType::F32 } else { dtype };
        Blocks { slices, part_of_b: slices.1, y, config, store, planes: None, turns: false }
    }
}

/// Brings slices of the image and of the other operand.
#[derive(Clone, Copy)]
pub(super) struct Images<'k> {
    pass: Pass,
    dims: usize,
    joined: bool,
    scattered: bool,
    apart: bool,
    slices: (PanelTile, PanelTile),
    a: TensorMapParam<'k>,
    b: TensorMapParam<'k>,
    /// Slices of a part.
    steps: U32<'k>,
    p: ImageParams<'k>,
}

impl<'k> Images<'k> {
    /// Those of a kernel.
    pub(super) fn new(kernel: &Implicit, work: &WorkParams<'k>, p: ImageParams<'k>) -> Self {
        Self {
            pass: kernel.pass,
            dims: kernel.dims,
            joined: kernel.joined,
            scattered: kernel.scattered,
            apart: kernel.apart,
            slices: kernel.copied(),
            a: work.a,
            b: work.b,
            steps: work.steps,
            p,
        }
    }

    /// The dimensions that there are, the innermost first.
    fn axes(&self) -> Vec<AxisParams<'k>> {
        [self.p.w, self.p.h, self.p.d].into_iter().take(self.dims).collect()
    }

    /// `index` by digits, of which the last is what is left.
    fn digits(index: U32<'k>, extents: &[U32<'k>]) -> Vec<U32<'k>> {
        super::digits(index, extents, |left, extent| {
            let next = left / *extent;
            (next, left - next * *extent)
        })
    }

    /// Digits after `by` has been added, digit by digit.
    fn advanced(digits: &[U32<'k>], by: &[U32<'k>], extents: &[U32<'k>]) -> Vec<U32<'k>> {
        let k = digits[0].k();
        let mut carry = k.lit(0u32);
        let mut sums = Vec::new();
        for (i, (digit, by)) in digits.iter().zip(by).enumerate() {
            let sum = *digit + *by + carry;
            let Some(extent) = extents.get(i) else {
                sums.push(sum);
                continue;
            };
            let over = sum.ge(*extent);
            sums.push(over.select(sum - *extent, sum));
            carry = over.select(k.lit(1u32), 0);
        }
        sums
    }

    fn pixels(&self) -> Vec<U32<'k>> {
        self.axes().iter().map(|axis| axis.pixels).collect()
    }

    /// Where pixel and image are for a copy.
    fn coordinates(&self, pixel: &[U32<'k>]) -> Vec<U32<'k>> {
        let axes = self.axes();
        let image = pixel[axes.len()];
        let places = axes.iter().zip(pixel).map(|(axis, at)| *at * axis.step + axis.first);
        places.chain([image]).collect()
    }

    /// How far the tap with these digits is from the first that the copy's box begins at.
    fn offsets(&self, tap: &[U32<'k>]) -> Vec<U32<'k>> {
        let offset = |(axis, at): (&AxisParams<'k>, &U32<'k>)| {
            // The gradient of `x` goes through taps against the image.
            let at = if self.pass == Pass::BackwardX { axis.kernel - 1 - *at } else { *at };
            at * axis.dilation
        };
        self.axes().iter().zip(tap).map(offset).collect()
    }

    /// The extents of taps but for the outermost.
    fn kernel(&self) -> Vec<U32<'k>> {
        let axes = self.axes();
        axes[..axes.len() - 1].iter().map(|axis| axis.kernel).collect()
    }

    /// The panels of a slice of the image for the gradient of the weight: the first channel of each, and the offsets of its tap.
    fn panels(&self, place: &Place<'k>) -> Vec<Vec<U32<'k>>> {
        let b = self.slices.1;
        let last = self.p.taps - 1;
        let of_panel = |right: u32| {
            let col = if right > 0 { place.col + right } else { place.col };
            let (tap, channel) = match self.part(place.batch).1 {
                Some(tap) => (tap, col),
                None => {
                    let tap = col / self.p.channels;
                    // What is to the right of the last tap is not stored.
                    (tap.min(last), col - tap * self.p.channels)
                }
            };
            let offsets = self.offsets(&Self::digits(tap, &self.kernel()));
            [channel].into_iter().chain(offsets).collect()
        };
        (0..b.outer).step_by(b.width() as usize).map(of_panel).collect()
    }

    /// The channel of a column of the gradient of the weight of product `batch`, and the offsets of its tap.
    pub(super) fn column(&self, batch: U32<'k>, col: U32<'k>) -> (U32<'k>, Vec<U32<'k>>) {
        let (tap, channel) = match self.part(batch).1 {
            Some(tap) => (tap, col),
            None => {
                let tap = col / self.p.channels;
                // What is to the right of the last tap is not stored.
                (tap.min(self.p.taps - 1), col - tap * self.p.channels)
            }
        };
        (channel, self.offsets(&Self::digits(tap, &self.kernel())))
    }

    /// The pixels of `y` that product `batch` of a gradient of the weight goes through, or some behind the last.
    pub(super) fn pixels_of(&self, batch: U32<'k>) -> (U32<'k>, U32<'k>) {
        let first = self.part(batch).0 * self.steps;
        let end = (first + self.steps).min(self.p.slices);
        (first * self.slices.0.depth, end * self.slices.0.depth)
    }

    /// Where the pixels that the first tap of a pixel of `y` meets are in an image, and its number.
    pub(super) fn places(&self, pixel: U32<'k>) -> Vec<U32<'k>> {
        self.coordinates(&Self::digits(pixel, &self.pixels()))
    }

    /// The part of the common dimension, and the tap, of which product `batch` is.
    fn part(&self, batch: U32<'k>) -> (U32<'k>, Option<U32<'k>>) {
        if self.apart {
            return (batch.k().lit(0u32), None);
        }
        if self.pass != Pass::BackwardWeight || self.joined {
            return (batch, None);
        }
        let part = batch / self.p.taps;
        (part, Some(batch - part * self.p.taps))
    }
}

impl<'k> Loader<'k> for Images<'k> {
    fn steps(&self, place: &Place<'k>) -> U32<'k> {
        let first = self.part(place.batch).0 * self.steps;
        (self.p.slices - first).min(self.steps)
    }

    fn begin(&self, place: &Place<'k>) -> (Vec<U32<'k>>, Vec<U32<'k>>) {
        let first = self.part(place.batch).0 * self.steps;
        if self.pass == Pass::BackwardWeight {
            let pixel = first * self.slices.0.depth;
            let mut at = Self::digits(pixel, &self.pixels());
            at.push(pixel);
            return (self.panels(place).concat(), at);
        }
        let fixed = self.coordinates(&Self::digits(place.row, &self.pixels()));
        let width = self.slices.0.depth;
        let of_tap = (self.p.channels + (width - 1)) / width;
        let tap = first / of_tap;
        let channel = (first - tap * of_tap) * width;
        (fixed, [channel].into_iter().chain(Self::digits(tap, &self.kernel())).collect())
    }

    fn fetch(&self, place: &Place<'k>, fixed: &[U32<'k>], at: &[U32<'k>], to: Arriving<'k>) {
        let (a, b) = self.slices;
        match self.pass {
            Pass::Forward | Pass::BackwardX => {
                let (channel, tap) = (at[0], &at[1..]);
                a.fetch_im2col(self.a, to.a, channel, fixed, &self.offsets(tap), to.done);
                let mut of_weight = tap.to_vec();
                if self.apart {
                    of_weight[1] = place.batch;
                }
                b.fetch(self.b, to.b, (place.col, channel), &of_weight, to.done);
            }
            Pass::BackwardWeight => {
                let (pixel, digits) = (at[at.len() - 1], &at[..at.len() - 1]);
                a.fetch(self.a, to.a, (place.row, pixel), &[], to.done);
                let pixel = self.coordinates(digits);
                let panel = PanelTile { outer: b.width(), ..b };
                for (i, of_panel) in (0..).zip(fixed.chunks(1 + self.dims)) {
                    let at = if i > 0 { to.b + i * panel.bytes() } else { to.b };
                    panel.fetch_im2col(self.b, at, of_panel[0], &pixel, &of_panel[1..], to.done);
                }
            }
        }
    }

    fn advance(&self, at: &[U32<'k>]) -> Vec<U32<'k>> {
        let width = self.slices.0.depth;
        if self.pass == Pass::BackwardWeight {
            let (pixel, digits) = (at[at.len() - 1], &at[..at.len() - 1]);
            let by: Vec<_> = self.axes().iter().map(|axis| axis.advance).chain([self.p.advance]).collect();
            let mut next = Self::advanced(digits, &by, &self.pixels());
            next.push(pixel + width);
            return next;
        }
        let (channel, k) = (at[0] + width, at[0].k());
        let over = channel.ge(self.p.channels);
        let one = over.select(k.lit(1u32), 0);
        let digits = &at[1..];
        let by: Vec<_> =
            digits.iter().enumerate().map(|(i, _)| if i == 0 { one } else { k.lit(0u32) }).collect();
        let tap = Self::advanced(digits, &by, &self.kernel());
        [over.select(k.lit(0u32), channel)].into_iter().chain(tap).collect()
    }

    fn arrives_across(&self) -> bool {
        self.slices.0.dtype == DType::F32 && self.slices.0.major == Major::Mn
    }

    fn row(&self, row: U32<'k>) -> Option<U64<'k>> {
        self.scattered.then(|| {
            let pixel = Self::digits(row, &self.pixels());
            let axes = self.axes();
            let image = pixel[axes.len()].to_u64() * self.p.image;
            axes.iter().zip(&pixel).fold(image, |at, (axis, place)| at + place.to_u64() * axis.result)
        })
    }
}

impl Implicit {
    /// The kernel's name.
    pub(super) fn name(&self) -> String {
        let Self { dtype, pass, dims, config, program, store, split, joined, scattered, apart } = *self;
        let parts = [
            (store == Store::Rows, "_rows"),
            (split, "_split"),
            (joined, "_joined"),
            (scattered, "_scattered"),
            (apart, "_apart"),
        ];
        let parts: String = parts.into_iter().filter_map(|(there, name)| there.then_some(name)).collect();
        format!("conv_{dtype}_{}_{dims}d_{}{parts}{}", pass.name(), config.name(), program.name())
    }
}

impl KernelDef for Implicit {
    type Args = ImplicitArgs;

    fn spec(&self) -> KernelSpec {
        let Self { dtype, program, .. } = *self;
        let y = self.blocks().y;
        let dtypes = DTypes::all(dtype).with("work.to", y);
        KernelSpec::new(self.name(), BlockDim::x(self.blocks().threads()))
            .dtypes(if program.scale {
                dtypes.with("work.to.scale", DType::F32).with("work.to.bias", DType::F32)
            } else {
                dtypes
            })
            .min_blocks_per_sm(1)
    }

    fn build<'k>(&self, k: K<'k>, p: ImplicitParams<'k>) {
        let blocks = self.blocks();
        let images = Images::new(self, &p.work, p.image);
        let ImplicitParams { work, alpha, beta, .. } = p;
        let finish =
            Finish { program: self.program, sizes: (work.m, work.n, work.ldy), factors: (alpha, beta) };
        blocks.record_loading(k, work, images, &finish);
    }
}
