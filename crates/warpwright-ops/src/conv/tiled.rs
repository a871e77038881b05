//! Passes in tiles of [`gemm`](crate::gemm) to which ordinary asynchronous copies bring an image as the matrix that it is taken for, some
//! neighbouring channels at a time: on tensor cores of any target, groups, and `f32`.
//!
//! Forward, rows are outputs, columns the filters of a group, and the common dimension goes through the channels of a tap before the next
//! tap; the gradient of `x` is the same of `dy`, with the taps in reverse, of pixels a stride apart. The gradient of the weight has filters
//! for rows and the channels of all taps for columns, and goes through outputs.

use warpwright_dsl::divide::{Divisor, DivisorArgs};
use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;
use warpwright_dsl::{Bounds, SharedTile, TileCopy};

use super::Pass;
use super::tuning::PIECES;
use crate::gemm::epilogue::{self, EpilogueArgs, Outputs, Program, ResultArgs, ResultParams};
use crate::gemm::kernel::{Factors, Problem, tile_of_block};
use crate::gemm::tuning::Tiled;

kernel_args! {
    /// A spatial dimension.
    pub(super) struct AxisArgs => AxisParams {
        /// Pixels that there are products for, and taps.
        pixels: DivisorArgs, taps: DivisorArgs,
        /// Of the image that is gathered; from one of the pixels to the next there, and where the first tap of the first is: the bits of
        /// an i32.
        extent: u32, step: u32, first: u32,
        dilation: u32,
        /// Elements from one pixel of the image to the next, and from one tap of the weight to the next that takes part.
        of_image: u32, of_weight: u32,
        /// Elements from one of the pixels to the next in the result.
        of_result: u64,
    }
}

kernel_args! {
    /// A pass of a convolution.
    pub(super) struct TiledArgs => TiledParams {
        /// The image that is gathered, the other operand, and the result.
        image: In<Elem>, other: In<Elem>, to: ResultArgs,
        d: AxisArgs, h: AxisArgs, w: AxisArgs,
        /// Groups, each with a product of its own.
        groups: DivisorArgs,
        /// Sides of the product of a group.
        m: u32, n: u32, depth: u32,
        /// How much of the common dimension a block along y of the grid takes, and the sums of one.
        part: u32, sums: u64,
        /// Channels of a group of the image.
        channels: DivisorArgs,
        /// Elements from one image to the next, of what is gathered and of the result, and from one group to the next of what is gathered.
        of_images: u64, of_results: u64, of_group_image: u64,
        /// Rows of the other operand: elements from one to the next, and from one group to the next.
        leading: u64, of_group: u64,
        /// The same of the result.
        leading_y: u64, of_group_y: u64,
        /// Elements of a filter, and of the taps before the first that takes part.
        filter: u32, first_tap: u32,
        epilogue: EpilogueArgs,
    }
}

/// Columns of a narrow tile, and blocks of it that a multiprocessor has registers for.
const NARROW: u32 = 16;
const BLOCKS_OF_NARROW: u32 = 7;

/// A pass of a convolution in tiles.
#[derive(Clone, Copy, Debug)]
pub(super) struct TiledConv {
    pub(super) dtype: DType,
    pub(super) pass: Pass,
    /// Spatial dimensions, the same for one as for two.
    pub(super) dims: usize,
    pub(super) config: Tiled,
    /// Whether sums are stored as they are: those of parts of the common dimension.
    pub(super) split: bool,
    /// Whether filters have factors, and whether a tensor is added.
    pub(super) scale: bool,
    pub(super) residual: bool,
}

/// A row of a matrix that an image is taken for: where its first tap is in the image, and in memory.
struct Pixel<'k> {
    at: Vec<U32<'k>>,
    element: I64<'k>,
}

/// A column: how far from the first tap it is.
struct Tap<'k> {
    by: Vec<U32<'k>>,
    elements: U64<'k>,
}

/// The image, its group, and the arguments by which elements are found.
#[derive(Clone, Copy)]
struct Images<'k> {
    pass: Pass,
    dims: usize,
    p: TiledParams<'k>,
    group: U32<'k>,
}

/// `index` by digits of these extents, the innermost first.
fn digits<'k>(index: U32<'k>, extents: impl IntoIterator<Item = Divisor<'k>>) -> Vec<U32<'k>> {
    super::digits(index, extents, |left, extent| extent.divide(left))
}

impl<'k> Images<'k> {
    /// The dimensions that there are, the innermost first.
    fn axes(&self) -> Vec<AxisParams<'k>> {
        [self.p.w, self.p.h, self.p.d].into_iter().take(self.dims).collect()
    }

    /// The place of pixel `index` along each dimension, and its image.
    fn place(&self, index: U32<'k>) -> Vec<U32<'k>> {
        digits(index, self.axes().into_iter().map(|axis| axis.pixels))
    }

    fn pixel(&self, index: U32<'k>) -> Pixel<'k> {
        let place = self.place(index);
        let axes = self.axes();
        let of_group = self.group.to_u64() * self.p.of_group_image;
        let mut element = (place[axes.len()].to_u64() * self.p.of_images + of_group).to_i64();
        let mut at = Vec::new();
        for (axis, place) in axes.iter().zip(place) {
            let from = place * axis.step + axis.first;
            element = from.to_i32().mad_wide(axis.of_image.to_i32(), element);
            at.push(from);
        }
        Pixel { at, element }
    }

    /// The digits of a tap that takes part, the innermost first.
    fn taps(&self, tap: U32<'k>) -> Vec<U32<'k>> {
        let axes = self.axes();
        digits(tap, axes[..axes.len() - 1].iter().map(|axis| axis.taps))
    }

    /// The tap and channel at `index` of a filter, or of the common dimension of a gradient of `x`: that goes through taps against the image.
    fn tap(&self, index: U32<'k>) -> Tap<'k> {
        let (tap, channel) = self.p.channels.divide(index);
        let mut elements = channel.to_u64();
        let mut by = Vec::new();
        for (axis, at) in self.axes().iter().zip(self.taps(tap)) {
            let at = if self.pass == Pass::BackwardX { axis.taps.divisor - 1 - at } else { at };
            let offset = at * axis.dilation;
            elements = offset.mad_wide(axis.of_image, elements);
            by.push(offset);
        }
        Tap { by, elements }
    }

    /// Where the channels that a pixel and a tap meet at begin, and whether that is outside of the image.
    fn meet(&self, pixel: &Pixel<'k>, tap: &Tap<'k>, none: Pred<'k>) -> (U64<'k>, Pred<'k>) {
        let element = (pixel.element + tap.elements.to_i64()).to_u64();
        // Numbers before the first wrap, and no extent is greater.
        let outside = self
            .axes()
            .iter()
            .zip(&pixel.at)
            .zip(&tap.by)
            .fold(none, |outside, ((axis, at), by)| outside | (*at + *by).ge(axis.extent));
        (self.p.image.at(element).address(), outside)
    }

    /// The copies of rows of pixels: slices go through taps and channels.
    fn rows(
        self,
        copy: TileCopy<'k>,
        (row, end): (U32<'k>, U32<'k>),
    ) -> impl Fn(Span<'k>, U32<'k>, Pred<'k>) + use<'k> {
        let pixels: Vec<_> = (0..copy.count())
            .map(|i| {
                let index = row + copy.row(i);
                let beyond = index.ge(end);
                // Of rows beyond the last nothing is read.
                (self.pixel(beyond.select(row, index)), beyond)
            })
            .collect();
        move |span, stage, there| {
            let index = span.first + copy.col();
            let (tap, none) = (self.tap(index), index.ge(span.end));
            copy.start_from(stage, Some(there), |i| {
                let (pixel, beyond) = &pixels[i as usize];
                self.meet(pixel, &tap, none | *beyond)
            });
        }
    }

    /// The copies of columns of taps and channels: slices go through pixels.
    fn columns(
        self,
        copy: TileCopy<'k>,
        (col, end): (U32<'k>, U32<'k>),
    ) -> impl Fn(Span<'k>, U32<'k>, Pred<'k>) + use<'k> {
        let index = col + copy.col();
        let (tap, beyond) = (self.tap(index), index.ge(end));
        move |span, stage, there| {
            copy.start_from(stage, Some(there), |i| {
                let index = span.first + copy.row(i);
                self.meet(&self.pixel(index), &tap, beyond | index.ge(span.end))
            });
        }
    }

    /// The copies of the weight for the gradient of `x`: slices go through taps and filters.
    fn weight(
        self,
        copy: TileCopy<'k>,
        (col, end): (U32<'k>, U32<'k>),
    ) -> impl Fn(Span<'k>, U32<'k>, Pred<'k>) + use<'k> {
        let channel = col + copy.col();
        let beyond = channel.ge(end);
        let first = self.group.to_u64() * self.p.of_group + (channel + self.p.first_tap).to_u64();
        move |span, stage, there| {
            copy.start_from(stage, Some(there), |i| {
                let index = span.first + copy.row(i);
                let (tap, filter) = self.p.channels.divide(index);
                let of_filter = filter.mad_wide(self.p.filter, first);
                let axes = self.axes();
                let taps = axes.iter().zip(self.taps(tap));
                let element =
                    taps.fold(of_filter, |element, (axis, at)| at.mad_wide(axis.of_weight, element));
                (self.p.other.at(element).address(), beyond | index.ge(span.end))
            });
        }
    }
}

/// A slice of the common dimension, and where all of it ends.
#[derive(Clone, Copy)]
struct Span<'k> {
    first: U32<'k>,
    end: U32<'k>,
}

impl TiledConv {
    pub(super) const fn factors(&self) -> Factors {
        let Self { dtype, pass, config, .. } = *self;
        let major = match pass {
            Pass::Forward => (Major::K, Major::K),
            Pass::BackwardX => (Major::K, Major::Mn),
            Pass::BackwardWeight => (Major::Mn, Major::Mn),
        };
        Factors { dtype, major, config }
    }
}

impl AccumulateKernel for TiledConv {
    type Args = TiledArgs;

    fn spec(&self) -> KernelSpec {
        let Self { dtype, pass, dims, config, split, scale, residual } = *self;
        let program = Program { scale, residual, ..Program::default() };
        let split = if split { "_split" } else { "" };
        let name = format!("conv_{dtype}_{}_{dims}d_{}{split}{}", pass.name(), config.name(), program.name());
        // Few sums wait for their copies together: other blocks work meanwhile.
        let tiles = config.tiles();
        let narrow = dims == 2 && tiles.cols <= NARROW && tiles.piece == PIECES[0];
        KernelSpec::new(name, BlockDim::x(config.threads()))
            .dtypes(program.dtypes(epilogue::dtypes(dtype, self.split), dtype))
            .min_blocks_per_sm(if narrow { BLOCKS_OF_NARROW } else { 1 })
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, p: TiledParams<'k>) {
        let tiles = *self.config.tiles();
        let (block, group) = p.groups.divide(k.block_idx_x());
        let images = Images { pass: self.pass, dims: self.dims, p, group };
        let (down, across) = tile_of_block(block, (p.m, p.n), (tiles.rows, tiles.cols));
        let (row, col) = (down * tiles.rows, across * tiles.cols);
        let begin = k.block_idx_y() * p.part;
        let end = (begin + p.part).min(p.depth);
        let steps = (end.max(begin) - begin + (tiles.slice - 1)) / tiles.slice;
        let factors = self.factors();
        let copying = (k.thread_idx(), k.block_threads());
        let copy = |tile: SharedTile<'k>, from: Ptr<'k, Read, Elem>, leading| {
            let copy = k.tile_copy(tile, from, leading, tiles.piece, copying);
            // Taps of neighbouring pixels are copies of the same elements: it takes less time where few sums wait for many of them.
            if matches!(self.config, Tiled::Split(_)) { copy.cached() } else { copy }
        };
        let other = p.other.at(group.to_u64() * p.of_group);
        let span = move |step: U32<'k>| Span { first: begin + step * tiles.slice, end };
        let none = k.lit(0u64);
        let problem = Problem::brought(k, &factors, (row, col), steps, |tile_a, tile_b| {
            type Start<'k> = Box<dyn Fn(U32<'k>, U32<'k>, Pred<'k>) + 'k>;
            let start: Start<'k> = match self.pass {
                Pass::Forward => {
                    let rows = images.rows(copy(tile_a, p.image, none), (row, p.m));
                    let from = other.at(col.to_u64() * p.leading + begin.to_u64());
                    let weight = copy(tile_b, from, p.leading).in_whole_pieces();
                    Box::new(move |step, stage, there| {
                        let span = span(step);
                        rows(span, stage, there);
                        let bounds = Bounds { rows: Some(p.n - col), cols: Some(end - span.first) };
                        let begun = (step * tiles.slice).to_u64();
                        weight.advanced(begun).start(stage, bounds, Some(there));
                    })
                }
                Pass::BackwardX => {
                    let rows = images.rows(copy(tile_a, p.image, none), (row, p.m));
                    let weight = images.weight(copy(tile_b, p.other, none), (col, p.n));
                    Box::new(move |step, stage, there| {
                        let span = span(step);
                        rows(span, stage, there);
                        weight(span, stage, there);
                    })
                }
                Pass::BackwardWeight => {
                    let from = other.at(begin.to_u64() * p.leading + row.to_u64());
                    let dy = copy(tile_a, from, p.leading).in_whole_pieces();
                    let columns = images.columns(copy(tile_b, p.image, none), (col, p.n));
                    Box::new(move |step, stage, there| {
                        let span = span(step);
                        let bounds = Bounds { rows: Some(end - span.first), cols: Some(p.m - row) };
                        let begun = (step * tiles.slice).to_u64();
                        dy.advanced(begun * p.leading).start(stage, bounds, Some(there));
                        columns(span, stage, there);
                    })
                }
            };
            start
        });
        let sums = factors.sums::<A>(&problem);
        let part = k.block_idx_y().to_u64() * p.sums + group.to_u64() * p.of_group_y;
        let (bias, y) = (p.to.bias.at(group * p.n), p.to.y.at(part));
        let c = if self.residual { p.to.c.at(part) } else { p.to.c };
        let to = ResultParams { c, bias, y, scale: p.to.scale.map(|scale| scale.at(group * p.n)) };
        let outputs = Outputs::new(to, p.epilogue, (p.leading_y, none), (none, none));
        let place = |row: U32<'k>| {
            if self.pass != Pass::BackwardX || self.split {
                return row.to_u64() * p.leading_y;
            }
            let axes = images.axes();
            let place = images.place(row);
            let image = place[axes.len()].to_u64() * p.of_results;
            axes.iter().zip(&place).fold(image, |at, (axis, place)| at + place.to_u64() * axis.of_result)
        };
        epilogue::finish_tile_at::<A>(k, outputs, sums, (row, col), (p.m, p.n), place);
    }
}
