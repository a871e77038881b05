//! The kernel that any target, layout and alignment has: products on the ordinary units of an image that is gathered element by element
//! and another operand.

use std::array;

use warpwright_dsl::divide::ExactDivisorArgs;
use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;

use super::Pass;
use crate::batch_norm::Layout;
use crate::gemm::epilogue::{EpilogueArgs, Outputs, Program, ResultArgs, sums_dtype};
use crate::gemm::plain::{Operand, SIDE, Slice, THREADS, Tile};

pub(super) use crate::gemm::plain::SLICE;

kernel_args! {
    /// A spatial dimension.
    pub(super) struct AxisArgs => AxisParams {
        /// Of the image that is gathered, and of the pixels that there are products for.
        extent: u32, pixels: u32,
        kernel: u32, stride: u32, padding: u32, dilation: u32, by_stride: ExactDivisorArgs,
        /// Pixels so far apart have the same taps, in the gradient of `x`; 1 where that is not made use of. And how many they are at most.
        phases: u32, of_phase: u32,
        /// Elements from one pixel of the image to the next.
        step: u64,
    }
}

kernel_args! {
    /// Elements from one image, channel and pixel to the next.
    pub(super) struct StrideArgs => StrideParams { image: u64, channel: u64, pixel: u64 }
}

kernel_args! {
    /// A pass of a convolution.
    pub(super) struct GatherArgs => GatherParams {
        /// The image that is gathered, the other operand, and the result.
        image: In<Elem>, other: In<Elem>, to: ResultArgs,
        d: AxisArgs, h: AxisArgs, w: AxisArgs,
        /// Sides of the product of a group.
        m: u32, n: u32, depth: u32,
        /// How much of the common dimension a block along y of the grid takes, and the sums of one.
        part: u32, sums: u64,
        /// Channels of a group of the image, and its strides.
        channels: u32, of_image: StrideArgs,
        /// Strides of the result, or of the gradient that is the other operand of the gradient of the weight.
        of_pixels: StrideArgs,
        /// Elements of a filter.
        filter: u32,
        epilogue: EpilogueArgs,
    }
}

/// A pass of a convolution on the ordinary units.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gather {
    pub(super) dtype: DType,
    pub(super) pass: Pass,
    /// Of images, and of the weight.
    pub(super) layout: Layout,
    pub(super) weight: Layout,
    /// Whether sums of parts are stored as they are, one result after the other.
    pub(super) split: bool,
    /// Whether filters have factors.
    pub(super) scale: bool,
}

/// A pixel of the grid that products are for: where its image begins, and its place in the image that is gathered.
#[derive(Clone, Copy)]
struct Pixel<'k> {
    first: U64<'k>,
    at: [U32<'k>; 3],
}

/// A channel of a place of the kernel.
#[derive(Clone, Copy)]
struct Tap<'k> {
    /// How far the place is from the first.
    by: [U32<'k>; 3],
    place: U32<'k>,
    channel: U32<'k>,
}

/// The rows of an operand that a thread brings, and how an element is found.
struct Gathered<'k, O, D> {
    major: Major,
    /// The thread's rows, and whether they are there.
    outer: Vec<(O, Pred<'k>)>,
    depth: Box<dyn Fn(U32<'k>) -> D + 'k>,
    element: Finder<'k, O, D>,
}

/// How the element of a row and a place of the common dimension is found.
type Finder<'k, O, D> = Box<dyn Fn(&O, &D) -> Found<'k> + 'k>;

/// An element, and a condition for that it is there, if there is one.
type Found<'k> = (Ptr<'k, Read, Elem>, Option<Pred<'k>>);

/// Where in a slice each element of a thread is, by its neighbours in memory: row, and place of the common dimension.
fn own<'k>(k: K<'k>, major: Major) -> (Vec<U32<'k>>, Vec<U32<'k>>) {
    let thread = k.thread_idx();
    let (along, across) = if major == Major::K { (SLICE, SIDE) } else { (SIDE, SLICE) };
    let lines = THREADS / along;
    let across = (0..across / lines).map(|i| thread / along + i * lines).collect();
    if major == Major::K { (across, vec![thread % along]) } else { (vec![thread % along], across) }
}

impl<'k, O, D> Gathered<'k, O, D> {
    fn new(
        k: K<'k>,
        major: Major,
        (first, end): (U32<'k>, U32<'k>),
        outer: impl Fn(U32<'k>) -> O,
        depth: impl Fn(U32<'k>) -> D + 'k,
        element: impl Fn(&O, &D) -> Found<'k> + 'k,
    ) -> Self {
        let rows = own(k, major).0.into_iter().map(|row| first + row);
        let outer = rows.map(|row| (outer(row), row.lt(end))).collect();
        Self { major, outer, depth: Box::new(depth), element: Box::new(element) }
    }
}

impl<'k, T: Accumulate, O, D> Operand<'k, T> for Gathered<'k, O, D> {
    fn bring(&self, to: Slice<'k, T>, (first, end): (U32<'k>, U32<'k>)) {
        let (rows, depths) = own(first.k(), self.major);
        for depth in depths {
            let along = first + depth;
            let (known, inside) = ((self.depth)(along), along.lt(end));
            for (row, (outer, there)) in rows.iter().zip(&self.outer) {
                let (element, exists) = (self.element)(outer, &known);
                let there = exists.map_or(inside & *there, |exists| exists & inside & *there);
                to.at((*row, depth)).set(element.only_where(there, Fill::Zero).get::<T>());
            }
        }
    }
}

/// A dimension in a phase of the gradient of `x`: its pixels are a number of phases apart, and so are their taps.
#[derive(Clone, Copy)]
struct Phase<'k> {
    /// The first pixel, and the first tap.
    pixel: U32<'k>,
    tap: U32<'k>,
    /// Taps.
    taps: U32<'k>,
}

/// The offsets of the operands of a group's product.
#[derive(Clone, Copy)]
struct Problem<'k> {
    pass: Pass,
    weight: Layout,
    p: GatherParams<'k>,
    group: U32<'k>,
    phase: [Phase<'k>; 3],
}

/// A row of a result that has pixels for rows.
#[derive(Clone, Copy)]
struct Place<'k> {
    image: U32<'k>,
    /// Its number among the pixels of the image, and whether it is one.
    within: U32<'k>,
    there: Pred<'k>,
}

/// `index` by digits, of which the last two go up to `extents`.
fn digits<'k>(index: U32<'k>, [middle, inner]: [U32<'k>; 2]) -> [U32<'k>; 3] {
    let row = index / inner;
    let slab = row / middle;
    [slab, row - slab * middle, index - row * inner]
}

impl<'k> Problem<'k> {
    fn axes(&self) -> [AxisParams<'k>; 3] {
        [self.p.d, self.p.h, self.p.w]
    }

    /// Image, and number among its pixels.
    fn image_of(&self, pixel: U32<'k>) -> (U32<'k>, U32<'k>) {
        let [d, h, w] = self.axes();
        let pixels = d.pixels * h.pixels * w.pixels;
        let image = pixel / pixels;
        (image, pixel - image * pixels)
    }

    /// Phase `number` of the gradient of `x`; of another pass there is one.
    fn of_phase(self, number: U32<'k>) -> Self {
        let axes @ [_, h, w] = self.axes();
        let pixels = digits(number, [h.phases, w.phases]);
        let phase = array::from_fn(|i| {
            let (axis, pixel) = (axes[i], pixels[i]);
            // Without phases every tap takes part.
            let tap = (pixel + axis.padding) % axis.phases;
            let taps = (axis.kernel.max(tap) - tap + (axis.phases - 1)) / axis.phases;
            Phase { pixel, tap, taps }
        });
        Self { phase, ..self }
    }

    /// Taps of the phase.
    fn taps(&self) -> U32<'k> {
        let [d, h, w] = self.phase;
        d.taps * h.taps * w.taps
    }

    /// Image and coordinates of row `index` of the gradient of `x`, of the rows of the phase.
    fn pixel_of_phase(&self, index: U32<'k>) -> (U32<'k>, [U32<'k>; 3]) {
        let axes @ [d, h, w] = self.axes();
        let [slab, at_h, at_w] = digits(index, [h.of_phase, w.of_phase]);
        let image = slab / d.of_phase;
        let at = [slab - image * d.of_phase, at_h, at_w];
        (image, array::from_fn(|i| at[i] * axes[i].phases + self.phase[i].pixel))
    }

    fn pixel(&self, index: U32<'k>) -> Pixel<'k> {
        let axes @ [_, h, w] = self.axes();
        let channel = self.group * self.p.channels;
        let of_image = self.p.of_image;
        let first = |image: U32<'k>| image.to_u64() * of_image.image + channel.to_u64() * of_image.channel;
        if self.pass == Pass::BackwardX {
            let (image, at) = self.pixel_of_phase(index);
            return Pixel { first: first(image), at: array::from_fn(|i| at[i] + axes[i].padding) };
        }
        let (image, within) = self.image_of(index);
        let at = digits(within, [h.pixels, w.pixels]);
        // Before the first are numbers that no extent is greater than.
        let at = array::from_fn(|i| at[i] * axes[i].stride - axes[i].padding);
        Pixel { first: first(image), at }
    }

    /// The tap at `index` of a filter, or of the common dimension of a gradient of `x`: that goes through channels first, and has the taps
    /// of a phase.
    fn tap(&self, index: U32<'k>) -> Tap<'k> {
        let axes @ [d, h, w] = self.axes();
        if self.pass == Pass::BackwardX {
            let place = index / self.p.channels;
            let channel = index - place * self.p.channels;
            let [_, of_h, of_w] = self.phase;
            // A phase without taps has no common dimension, and does not come here.
            let at = digits(place, [of_h.taps, of_w.taps]);
            let at @ [t, r, s] = array::from_fn(|i| at[i] * axes[i].phases + self.phase[i].tap);
            let place = (t * h.kernel + r) * w.kernel + s;
            return Tap { by: array::from_fn(|i| at[i] * axes[i].dilation), place, channel };
        }
        let (place, channel) = if self.weight == Layout::ChannelsLast {
            let place = index / self.p.channels;
            (place, index - place * self.p.channels)
        } else {
            let places = d.kernel * h.kernel * w.kernel;
            let channel = index / places;
            (index - channel * places, channel)
        };
        let at = digits(place, [h.kernel, w.kernel]);
        Tap { by: array::from_fn(|i| at[i] * axes[i].dilation), place, channel }
    }

    /// The element of the image that a pixel and a tap meet at, and whether it is one.
    fn element(&self, pixel: &Pixel<'k>, tap: &Tap<'k>) -> Found<'k> {
        let mut there: Option<Pred<'k>> = None;
        let mut at = pixel.first + tap.channel.to_u64() * self.p.of_image.channel;
        for ((axis, first), by) in self.axes().into_iter().zip(pixel.at).zip(tap.by) {
            // What is not a multiple of the stride, or wraps, has a quotient that no extent is greater than.
            let place = match self.pass {
                Pass::BackwardX => axis.by_stride.quotient(first - by),
                _ => first + by,
            };
            let inside = place.lt(axis.extent);
            at = at + place.to_u64() * axis.step;
            there = Some(there.map_or(inside, |there| there & inside));
        }
        (self.p.image.at(at), there)
    }

    /// The pixel that row `index` of a result is of.
    fn place(&self, index: U32<'k>) -> Place<'k> {
        let axes @ [_, h, w] = self.axes();
        if self.pass != Pass::BackwardX {
            let (image, within) = self.image_of(index);
            return Place { image, within, there: index.lt(self.p.m) };
        }
        let (image, at) = self.pixel_of_phase(index);
        let inside = axes.into_iter().zip(at).map(|(axis, at)| at.lt(axis.pixels));
        let there = inside.fold(index.lt(self.p.m), |there, inside| there & inside);
        Place { image, within: (at[0] * h.pixels + at[1]) * w.pixels + at[2], there }
    }

    /// Where in a result channel `channel` of the group of a pixel is.
    fn place_of(&self, place: &Place<'k>, channel: U32<'k>, channels: U32<'k>) -> U64<'k> {
        let s = self.p.of_pixels;
        let channel = self.group * channels + channel;
        place.image.to_u64() * s.image + place.within.to_u64() * s.pixel + channel.to_u64() * s.channel
    }

    /// The first element of a filter of the group, of `filters`.
    fn filter(&self, filter: U32<'k>, filters: U32<'k>) -> U64<'k> {
        (self.group * filters + filter).mul_wide(self.p.filter)
    }
}

impl Gather {
    /// Which index of the image's operand has neighbours in memory.
    fn image_major(&self) -> Major {
        let outer = (self.layout == Layout::ChannelsLast) == (self.pass == Pass::BackwardWeight);
        if outer { Major::Mn } else { Major::K }
    }

    fn sums<'k, T: Accumulate>(
        &self,
        k: K<'k>,
        problem: Problem<'k>,
        (row, col): (U32<'k>, U32<'k>),
        (begin, end): (U32<'k>, U32<'k>),
    ) -> ((U32<'k>, U32<'k>), Vec<Vec<Reg<'k, T>>>) {
        let p = problem.p;
        let (rows, cols, major) = ((row, p.m), (col, p.n), self.image_major());
        let element = move |pixel: &Pixel<'k>, tap: &Tap<'k>| problem.element(pixel, tap);
        match self.pass {
            Pass::Forward => {
                let image =
                    Gathered::new(k, major, rows, |i| problem.pixel(i), move |i| problem.tap(i), element);
                let weight = Gathered::new(
                    k,
                    Major::K,
                    cols,
                    |filter| problem.filter(filter, p.n),
                    |depth: U32<'k>| depth.to_u64(),
                    move |filter: &U64<'k>, depth: &U64<'k>| (p.other.at(*filter + *depth), None),
                );
                let tile = Tile::new(k, image, weight);
                (tile.mine, tile.sums((begin, end), end))
            }
            Pass::BackwardX => {
                let image =
                    Gathered::new(k, major, rows, |i| problem.pixel(i), move |i| problem.tap(i), element);
                let places = p.d.kernel * p.h.kernel * p.w.kernel;
                let last = self.weight == Layout::ChannelsLast;
                let weight = Gathered::new(
                    k,
                    Major::Mn,
                    cols,
                    |channel| if last { channel } else { channel * places },
                    move |depth| {
                        let Tap { place, channel: filter, .. } = problem.tap(depth);
                        let place = if last { place * p.n } else { place };
                        problem.filter(filter, p.channels) + place.to_u64()
                    },
                    move |channel: &U32<'k>, at: &U64<'k>| (p.other.at(*at + channel.to_u64()), None),
                );
                let tile = Tile::new(k, image, weight);
                (tile.mine, tile.sums((begin, end), end))
            }
            Pass::BackwardWeight => {
                let dy = Gathered::new(
                    k,
                    major,
                    rows,
                    |filter| (problem.group * p.m + filter).to_u64() * p.of_pixels.channel,
                    move |pixel| {
                        let (image, within) = problem.image_of(pixel);
                        image.to_u64() * p.of_pixels.image + within.to_u64() * p.of_pixels.pixel
                    },
                    move |filter: &U64<'k>, pixel: &U64<'k>| (p.other.at(*filter + *pixel), None),
                );
                let image = Gathered::new(
                    k,
                    major,
                    cols,
                    |i| problem.tap(i),
                    move |i| problem.pixel(i),
                    move |tap: &Tap<'k>, pixel: &Pixel<'k>| problem.element(pixel, tap),
                );
                let tile = Tile::new(k, dy, image);
                (tile.mine, tile.sums((begin, end), end))
            }
        }
    }
}

impl AccumulateKernel for Gather {
    type Args = GatherArgs;

    fn spec(&self) -> KernelSpec {
        let Self { dtype, pass, layout, weight, split, scale } = *self;
        let program = Program { scale, ..Program::default() };
        let split = if split { "_split" } else { "" };
        let (layout, weight) = (layout.name(), super::weight_name(weight));
        let name = format!("conv_{dtype}_{}_{layout}_{weight}_gather{split}{}", pass.name(), program.name());
        let dtypes = program.dtypes(DTypes::all(dtype), dtype);
        let dtypes = if self.split { dtypes.with("to", sums_dtype(dtype)) } else { dtypes };
        let spec = KernelSpec::new(name, BlockDim::x(THREADS)).dtypes(dtypes);
        // Sums of two words take the registers that a thread can have.
        if dtype == DType::F64 { spec.min_blocks_per_sm(1) } else { spec }
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, p: GatherParams<'k>) {
        let (down, across) = ((p.m + (SIDE - 1)) / SIDE, (p.n + (SIDE - 1)) / SIDE);
        let block = k.block_idx_x();
        let zero = k.lit(0u32);
        let none = Phase { pixel: zero, tap: zero, taps: zero };
        let of_phase = down * across;
        let (phases, group) = if self.pass == Pass::BackwardX {
            let phases = p.d.phases * p.h.phases * p.w.phases;
            (phases, block / (of_phase * phases))
        } else {
            (k.lit(1u32), block / of_phase)
        };
        let local = block - group * (of_phase * phases);
        let problem = Problem { pass: self.pass, weight: self.weight, p, group, phase: [none; 3] };
        let (problem, local, depth) = if self.pass == Pass::BackwardX {
            let phase = local / of_phase;
            let problem = problem.of_phase(phase);
            (problem, local - phase * of_phase, problem.taps() * p.channels)
        } else {
            (problem, local, p.depth)
        };
        let (row, col) = (local / across * SIDE, local % across * SIDE);
        let begin = k.block_idx_y() * p.part;
        let end = (begin + p.part).min(depth);
        let (mine, sums) = self.sums::<A>(k, problem, (row, col), (begin, end));
        let part = k.block_idx_y().to_u64() * p.sums;
        let outputs = Outputs::new(p.to, p.epilogue, (p.sums, p.sums), (k.lit(0u64), k.lit(0u64)));
        for (i, sums) in (0..).zip(&sums) {
            let row = row + mine.0 + i;
            let of_filter = self.pass == Pass::BackwardWeight;
            let place = (!of_filter).then(|| problem.place(row));
            let there = place.map_or_else(|| row.lt(p.m), |place| place.there);
            for (j, sum) in (0..).zip(sums) {
                let col = col + mine.1 + j;
                k.if_(there & col.lt(p.n), || {
                    let at = match &place {
                        Some(place) => problem.place_of(place, col, p.n),
                        None => problem.filter(row, p.m) + col.to_u64(),
                    };
                    if self.pass == Pass::Forward && !self.split {
                        outputs.finish_at(at, group * p.n + col, &Lanes::from(*sum));
                    } else {
                        p.to.y.at(part + at).set(*sum);
                    }
                });
            }
        }
    }
}
