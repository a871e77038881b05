//! Depthwise convolutions, in which each channel has a filter of its own, of images with channels last: memory is their limit. A thread has
//! a vector of channels, whose taps it keeps in registers, and goes down a strip of the image a few pixels wide.

use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;

use super::Pass;
use crate::gemm::epilogue::{EpilogueArgs, Outputs, Program, ResultArgs, sums_dtype};

kernel_args! {
    /// A dimension.
    pub(super) struct AxisArgs => AxisParams {
        /// Pixels of `x`, and of `y`.
        input: u32, output: u32,
        /// Before the first pixel; of the gradient of `x` without what is left of a division by the stride, and divided.
        padding: u32,
    }
}

kernel_args! {
    /// A pass of a depthwise convolution.
    pub(super) struct DepthwiseArgs => DepthwiseParams {
        /// `x`, or `dy` for the gradient of `x`.
        image: In<Elem>,
        /// The weight, or `dy` for the gradient of the weight.
        other: In<Elem>,
        to: ResultArgs,
        h: AxisArgs, w: AxisArgs,
        channels: u32,
        /// Vectors of channels, strips of an image, parts of a strip, and images.
        vectors: u32, strips: u32, parts: u32, images: u32,
        /// Rows of a part.
        rows: u32,
        epilogue: EpilogueArgs,
    }
}

/// Threads of a block.
pub(super) const THREADS: u32 = 256;
/// Threads of a block side by side along the channels, for the gradient of a weight.
pub(super) const LANES: u32 = 16;
/// Strides that there are kernels for.
pub(super) const STRIDES: [u32; 2] = [1, 2];

/// A pass of a depthwise convolution.
#[derive(Clone, Copy, Debug)]
pub(super) struct Depthwise {
    pub(super) dtype: DType,
    pub(super) pass: Pass,
    /// Taps down and across, and the stride along both.
    pub(super) taps: (u32, u32),
    pub(super) stride: u32,
    /// The remainders of the padding down and across after a division by the stride, for the gradient of `x`.
    pub(super) left: (u32, u32),
    /// Channels of a thread.
    pub(super) width: u32,
    /// Whether there is anything but sums.
    pub(super) finishes: bool,
    /// Whether channels have factors.
    pub(super) scale: bool,
}

/// A column of an image that a strip meets: its number from the strip's first on, the pointer to its pixel in the first row, and whether it
/// is one.
struct Column<'k> {
    number: i32,
    at: Ptr<'k, Read, Elem>,
    there: Pred<'k>,
}

impl Depthwise {
    /// Pixels of a strip from one side to the other: more where a pixel meets many taps, as then products and not loads are the limit.
    pub(super) const fn strip(&self) -> u32 {
        if self.taps.1 >= 7 && self.stride == 1 && self.dtype.bytes() < 8 { 8 } else { 4 }
    }

    /// Taps at most, and registers of 32 bits for those of all channels of a thread: sums of two words take as many more.
    const fn limits(dtype: DType) -> (u32, u32) {
        if matches!(dtype, DType::F64) { (25, 50) } else { (49, 100) }
    }

    /// Whether there are kernels with so many taps.
    pub(super) const fn has(dtype: DType, (down, across): (u32, u32)) -> bool {
        down.saturating_mul(across) <= Self::limits(dtype).0
    }

    /// Channels of a thread, of `channels`, where tensors are aligned if `wide`.
    pub(super) fn width(dtype: DType, (down, across): (u32, u32), channels: usize, wide: bool) -> u32 {
        let words = sums_dtype(dtype).bytes() as u32 / 4;
        let fits = |width: &u32| {
            width * words * down * across <= Self::limits(dtype).1 && channels.is_multiple_of(*width as usize)
        };
        if wide { [4, 2].into_iter().find(fits).unwrap_or(1) } else { 1 }
    }

    fn load<'k, A: Accumulate>(&self, at: Ptr<'k, Read, Elem>, there: Pred<'k>) -> Vec<Reg<'k, A>> {
        at.only_where(there, Fill::Zero).load::<A>(self.width).iter().collect()
    }

    /// The filters of the thread's channels: by taps.
    fn filters<'k, A: Accumulate>(&self, p: DepthwiseParams<'k>, channel: U32<'k>) -> Vec<Vec<Reg<'k, A>>> {
        let taps = self.taps.0 * self.taps.1;
        let filter = |i: u32| p.other.at((channel + i).mul_wide(taps));
        let filters: Vec<_> = (0..self.width).map(filter).collect();
        (0..taps)
            .map(|tap| filters.iter().map(|filter| filter.at(u64::from(tap)).get::<A>()).collect())
            .collect()
    }

    /// Images or gradients of images: sums of neighbours of a pixel.
    fn images<'k, A: Accumulate>(&self, k: K<'k>, p: DepthwiseParams<'k>) {
        let backward = self.pass == Pass::BackwardX;
        let (from_h, to_h) = if backward { (p.h.output, p.h.input) } else { (p.h.input, p.h.output) };
        let (from_w, to_w) = if backward { (p.w.output, p.w.input) } else { (p.w.input, p.w.output) };
        let thread = k.block_idx_x() * THREADS + k.thread_idx();
        let strip = thread / p.vectors;
        let channel = (thread - strip * p.vectors) * self.width;
        let part = strip / p.strips;
        let first_col = (strip - part * p.strips) * self.strip();
        let image = part / p.parts;
        let first_row = (part - image * p.parts) * p.rows;
        k.if_(image.lt(p.images), || {
            let filters = self.filters::<A>(p, channel);
            let channels = p.channels.to_u64();
            let from = p.image.at(image.mul_wide(from_h) * from_w.to_u64() * channels + channel.to_u64());
            let columns = self.met(from, (first_col, p.w.padding), (from_w, channels));
            let line = from_w.to_u64() * channels;
            let to = image.mul_wide(to_h) * to_w.to_u64() * channels + channel.to_u64();
            let outputs = Outputs::new(p.to, p.epilogue, (channels, channels), (k.lit(0u64), k.lit(0u64)));
            // Rows of the result that have the same taps as those a stride on: as many at once.
            let at_once = if backward { self.stride } else { 1 };
            let end = (first_row + p.rows).min(to_h);
            k.for_each(k.range(first_row, end, at_once), |row| {
                for phase in 0..at_once {
                    let row_of = if phase > 0 { row + phase } else { row };
                    let sums = self.row(k, p, &filters, (&columns, from_h, line), (row, phase));
                    for (i, sums) in (0..).zip(sums) {
                        let col = if i > 0 { first_col + i } else { first_col };
                        let there = if phase > 0 { col.lt(to_w) & row_of.lt(end) } else { col.lt(to_w) };
                        k.if_(there, || {
                            let at = to + (row_of.mul_wide(to_w) + col.to_u64()) * channels;
                            let sums = Lanes::from(sums);
                            if self.finishes {
                                outputs.finish_at(at, channel, &sums);
                            } else {
                                p.to.y.at(at).store(sums);
                            }
                        });
                    }
                }
            });
        });
    }

    /// The sums of a strip's pixels in a row: `phase` rows behind `row`, which is a multiple of the stride for the gradient of `x`.
    fn row<'k, A: Accumulate>(
        &self,
        k: K<'k>,
        p: DepthwiseParams<'k>,
        filters: &[Vec<Reg<'k, A>>],
        (columns, height, line): (&[Column<'k>], U32<'k>, U64<'k>),
        (row, phase): (U32<'k>, u32),
    ) -> Vec<Vec<Reg<'k, A>>> {
        let (down, across) = self.taps;
        let zero: Vec<_> = (0..self.width).map(|_| k.lit::<A>(0.0)).collect();
        let mut sums = vec![zero; self.strip() as usize];
        for r in 0..down {
            // Which row of the image this tap has, if any.
            let Some(begin) = self.place(row, p.h.padding, self.left.0, phase, r) else { continue };
            let (there, begin) = (begin.lt(height), begin.to_u64() * line);
            for column in columns {
                let x = self.load::<A>(column.at.at(begin), there & column.there);
                for (j, s) in self.meets(column.number) {
                    let filter = &filters[(r * across + s) as usize];
                    let sum = &mut sums[j as usize];
                    *sum = (0..x.len()).map(|c| x[c].mul_add(filter[c], sum[c])).collect();
                }
            }
        }
        sums
    }

    /// The columns that a strip from `col` on meets of images `width` wide, `channels` elements apart, the first pixel of which is at `from`.
    fn met<'k>(
        &self,
        from: Ptr<'k, Read, Elem>,
        (col, padding): (U32<'k>, U32<'k>),
        (width, channels): (U32<'k>, U64<'k>),
    ) -> Vec<Column<'k>> {
        let first = self.first_column(col, padding);
        let numbers = self.columns().filter(|number| !self.meets(*number).is_empty());
        let column = |number| {
            let place = moved(first, number);
            // Numbers before the first wrap: what is there is not loaded.
            Column { number, at: from.at(place.to_u64() * channels), there: place.lt(width) }
        };
        numbers.map(column).collect()
    }

    /// The pixels of a strip and taps across that meet at column `number`.
    fn meets(&self, number: i32) -> Vec<(u32, u32)> {
        let all = (0..self.strip()).flat_map(|j| (0..self.taps.1).map(move |s| (j, s)));
        all.filter(|&(j, s)| self.column(j, s) == Some(number)).collect()
    }

    /// The row of the image that tap `tap` of the row `phase` behind `row` is at: numbers before the first wrap.
    fn place<'k>(&self, row: U32<'k>, padding: U32<'k>, left: u32, phase: u32, tap: u32) -> Option<U32<'k>> {
        if self.pass != Pass::BackwardX {
            return Some(moved(row * self.stride - padding, tap as i32));
        }
        let from = (phase + left) as i32 - tap as i32;
        let whole = from.rem_euclid(self.stride as i32) == 0;
        whole.then(|| moved(row / self.stride + padding, from / self.stride as i32))
    }

    /// Columns of the image, from [`first_column`](Self::first_column) on, that a strip meets.
    fn columns(&self) -> std::ops::RangeInclusive<i32> {
        let (across, stride) = (self.taps.1 as i32, self.stride as i32);
        let last = self.strip() as i32 - 1;
        if self.pass == Pass::BackwardX {
            let left = self.left.1 as i32;
            return (left - across + 1).div_euclid(stride)..=(last + left).div_euclid(stride);
        }
        0..=last * stride + across - 1
    }

    /// Which of these pixel `pixel` of a strip meets at tap `tap`.
    fn column(&self, pixel: u32, tap: u32) -> Option<i32> {
        let (pixel, tap, stride) = (pixel as i32, tap as i32, self.stride as i32);
        if self.pass != Pass::BackwardX {
            return Some(pixel * stride + tap);
        }
        let from = pixel + self.left.1 as i32 - tap;
        (from.rem_euclid(stride) == 0).then(|| from.div_euclid(stride))
    }

    fn first_column<'k>(&self, col: U32<'k>, padding: U32<'k>) -> U32<'k> {
        if self.pass == Pass::BackwardX { col / self.stride + padding } else { col * self.stride - padding }
    }

    /// The gradient of the weight: sums of each block's strips, `[block along y][channel][tap]`.
    fn weight<'k, A: Accumulate>(&self, k: K<'k>, p: DepthwiseParams<'k>) {
        let (down, across) = self.taps;
        let (lane, team) = (k.thread_idx() % LANES, k.thread_idx() / LANES);
        let teams = THREADS / LANES;
        let vector = k.block_idx_x() * LANES + lane;
        let channel = vector * self.width;
        let inside = vector.lt(p.vectors);
        let channels = p.channels.to_u64();
        let zero: Vec<_> = (0..self.width).map(|_| k.lit::<A>(0.0)).collect();
        let zero = vec![zero; (down * across) as usize];
        let strips = p.images * p.parts * p.strips;
        let mine = k.range(k.block_idx_y() * teams + team, strips, k.grid_dim_y() * teams);
        let sums = k.fold(mine, zero, |strip, sums| {
            let part = strip / p.strips;
            let first_col = (strip - part * p.strips) * self.strip();
            let image = part / p.parts;
            let first_row = (part - image * p.parts) * p.rows;
            let end = (first_row + p.rows).min(p.h.output);
            let pixels = |height: U32<'k>, width: U32<'k>| image.mul_wide(height) * width.to_u64();
            let x = p.image.at(pixels(p.h.input, p.w.input) * channels + channel.to_u64());
            let dy = p.other.at(pixels(p.h.output, p.w.output) * channels + channel.to_u64());
            let columns = self.met(x, (first_col, p.w.padding), (p.w.input, channels));
            let line = p.w.input.to_u64() * channels;
            let mine = |i: u32| {
                let col = if i > 0 { first_col + i } else { first_col };
                (dy.at(col.to_u64() * channels), inside & col.lt(p.w.output))
            };
            let mine: Vec<_> = (0..self.strip()).map(mine).collect();
            k.fold(k.range(first_row, end, 1), sums, |row, mut sums| {
                let begin = row.mul_wide(p.w.output) * channels;
                let dy: Vec<_> =
                    mine.iter().map(|(dy, there)| self.load::<A>(dy.at(begin), *there)).collect();
                for r in 0..down {
                    let begin = moved(row * self.stride - p.h.padding, r as i32);
                    let (there, begin) = (inside & begin.lt(p.h.input), begin.to_u64() * line);
                    for column in &columns {
                        let x = self.load::<A>(column.at.at(begin), there & column.there);
                        for (j, s) in self.meets(column.number) {
                            let (dy, sum) = (&dy[j as usize], &mut sums[(r * across + s) as usize]);
                            *sum = (0..x.len()).map(|c| x[c].mul_add(dy[c], sum[c])).collect();
                        }
                    }
                }
                sums
            })
        });
        let taps = down * across;
        let to = p.to.y.at(k.block_idx_y().to_u64() * channels * u64::from(taps));
        // The teams' sums of a row of taps, added in their order.
        let of_team = across * self.width * LANES;
        let slots = k.shared::<A>(teams * of_team);
        for r in 0..down {
            if r > 0 {
                k.barrier();
            }
            for s in 0..across {
                for (c, sum) in (0..).zip(&sums[(r * across + s) as usize]) {
                    slots.at(team * of_team + lane + (s * self.width + c) * LANES).set(*sum);
                }
            }
            k.barrier();
            k.for_each(k.range(k.thread_idx(), of_team, THREADS), |slot| {
                let first = slots.at(slot).get();
                let sum = (1..teams).fold(first, |sum, team| sum + slots.at(slot + team * of_team).get());
                let (lane, of_lane) = (slot % LANES, slot / LANES);
                let vector = k.block_idx_x() * LANES + lane;
                let channel = vector * self.width + of_lane % self.width;
                let tap = of_lane / self.width + r * across;
                k.if_(vector.lt(p.vectors), || to.at(channel.mul_wide(taps) + tap.to_u64()).set(sum));
            });
        }
    }
}

/// The number `by` further, or before if that is negative, as bits.
fn moved(at: U32<'_>, by: i32) -> U32<'_> {
    if by == 0 { at } else { at + by.cast_unsigned() }
}

impl AccumulateKernel for Depthwise {
    type Args = DepthwiseArgs;

    fn spec(&self) -> KernelSpec {
        let Self { dtype, pass, taps: (down, across), stride, left, width, finishes, scale } = *self;
        let program = Program { scale, ..Program::default() };
        let left = if pass == Pass::BackwardX && stride > 1 {
            format!("_p{}{}", left.0, left.1)
        } else {
            String::new()
        };
        let finishes = if finishes { "_finish" } else { "" };
        let name = format!(
            "conv_depthwise_{dtype}_{}_{down}x{across}_s{stride}{left}_v{width}{finishes}{}",
            pass.name(),
            program.name()
        );
        let dtypes = program.dtypes(DTypes::all(dtype), dtype);
        let sums = pass == Pass::BackwardWeight;
        let dtypes = if sums { dtypes.with("to", sums_dtype(dtype)) } else { dtypes };
        KernelSpec::new(name, BlockDim::x(THREADS)).dtypes(dtypes)
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, p: DepthwiseParams<'k>) {
        match self.pass {
            Pass::BackwardWeight => self.weight::<A>(k, p),
            _ => self.images::<A>(k, p),
        }
    }
}
