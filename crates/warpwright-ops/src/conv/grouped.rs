//! Groups of 4 to 32 channels of 16 bits, channels last: an image is brought to shared memory once, and taps are read shifted from there.
//!
//! A block has a slice of 64 channels, whole groups of them, and goes over boxes of at most 128 results. The pixels that a box meets, its
//! halo, have 128 bytes each, of which chunks of 16 are placed by exclusive-or with the pixel's number, so that eight neighbouring results
//! have a tap's chunk in different banks. Products of a warp are within a group: of up to 8 channels they have two taps for the common
//! dimension, of 16 one, of 32 half of one. Groups of 4 have a product each of the same 8 channels, those of the other group being zero: a
//! number that is not finite stays in its group.
//!
//! Forward, warps keep the weight of their filters in registers; the gradient of `x` is the same of `dy` with the taps in reverse. The
//! gradient of the weight sums over results: channels of taps by filters, which warps keep over all boxes of the block.

use warpwright_dsl::divide::DivisorArgs;
use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;
use warpwright_dsl::{Halves, Params};

use super::Pass;
use crate::activation::evaluate;
use crate::gemm::epilogue::{self, Program, ResultArgs, ResultParams};

kernel_args! {
    /// A spatial dimension.
    pub(super) struct AxisArgs => AxisParams {
        /// Results, and pixels of the image.
        results: u32, extent: u32,
        /// Pixels of the image from one result to the next, as a power of two; where the first tap of the first result is: the bits of an
        /// i32; and pixels from one tap to the next.
        shift: u32, first: u32, dilation: u32,
        /// Results and pixels of a box, boxes, and taps.
        of_box: DivisorArgs, halo: DivisorArgs, boxes: DivisorArgs, taps: DivisorArgs,
    }
}

kernel_args! {
    /// A pass over groups.
    pub(super) struct GroupedArgs => GroupedParams {
        /// The image that is gathered, the weight or `dy`, and the result.
        image: In<Elem>, other: In<Elem>, to: ResultArgs,
        h: AxisArgs, w: AxisArgs,
        /// Images, those of a box, and channels of all groups.
        images: u32, of_box: u32, channels: u32,
        /// Slices of channels, and blocks of one; boxes.
        slices: DivisorArgs, parts: u32, boxes: u32,
        /// Pixels of a halo, and bytes of a stage.
        halo: u32, stage: u32,
        /// Sums of a gradient of the weight.
        sums: u64,
    }
}

/// Threads of a block.
pub(super) const THREADS: u32 = 256;
/// Results of a box at most.
pub(super) const RESULTS: u32 = 128;
/// Channels of a slice, the bytes of a pixel of it, and those of a chunk, as powers of two.
pub(super) const SLICE: u32 = 64;
pub(super) const LINE: u32 = 128;
const LINE_SHIFT: u32 = LINE.trailing_zeros();
const CHUNK_SHIFT: u32 = 4;
/// Chunks of a pixel, and channels of a chunk.
const CHUNKS: u32 = 8;
const OF_CHUNK: u32 = 8;
/// Pixels that the threads of a block copy at once.
const AT_ONCE: u32 = THREADS / CHUNKS;
/// Results of a product, or channels of taps of the gradient of a weight.
const ROWS: u32 = 16;
/// Places of results are three numbers of 7 bits, each with a bit above it.
const FIELD: u32 = 8;
const MASK: u32 = 0x7f;
const GUARDS: u32 = 0x80_8080;
/// The place of a result that a box does not have, which is beyond every limit.
const NOWHERE: u32 = 0x7f_7f7f;
/// The largest extent of a box, and the largest limit.
pub(super) const MAX_EXTENT: u32 = MASK;

/// Bytes of a block's static shared memory at most, with what the device keeps of it.
pub(super) const STATIC: u32 = 2 * RESULTS * 4 + LINE + 1024;

/// A pass over groups of some channels with so many taps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grouped {
    pub(super) dtype: DType,
    pub(super) pass: Pass,
    /// Channels of a group, in the image and in the result.
    pub(super) channels: u32,
    pub(super) taps: u32,
    pub(super) program: Program,
}

/// The part of a slice that a warp has: the first chunk of the image, and of the results or of `dy`; which share of the results; and what of
/// a product's rows a lane names.
#[derive(Clone, Copy)]
struct Warp<'k> {
    from: U32<'k>,
    to: U32<'k>,
    share: U32<'k>,
    row: U32<'k>,
    half: U32<'k>,
    /// Row and column of the lane's first sum.
    origin: (U32<'k>, U32<'k>),
}

/// The factor of a column's sums, and what is added to them.
struct Ends<'k> {
    scale: Option<F32<'k>>,
    bias: Option<F32<'k>>,
}

/// The first result of a box: image, row, column.
#[derive(Clone, Copy)]
struct Corner<'k> {
    image: U32<'k>,
    row: U32<'k>,
    col: U32<'k>,
}

/// A block: its arguments and its part of the work, and the chunk of a thread.
#[derive(Clone, Copy)]
struct Block<'k> {
    k: K<'k>,
    p: GroupedParams<'k>,
    /// The first channel of the slice, and the number of the block among those of it.
    first: U32<'k>,
    part: U32<'k>,
    /// The thread's chunk where pixels are copied, its first channel, and whether there are such channels.
    chunk: U32<'k>,
    channel: U32<'k>,
    there: Pred<'k>,
    /// For each result of a box where its first tap is in a stage, and its place.
    results: Ptr<'k, Shared, u32>,
    stages: U32<'k>,
}

impl<'k> Block<'k> {
    fn new(k: K<'k>, p: GroupedParams<'k>) -> Self {
        let (part, slice) = p.slices.divide(k.block_idx_x());
        let first = slice * SLICE;
        let chunk = k.thread_idx() % CHUNKS;
        let channel = first + chunk * OF_CHUNK;
        let results = k.shared::<u32>(2 * RESULTS);
        let stages = k.dynamic_shared::<u32>().shared_address();
        let block =
            Self { k, p, first, part, chunk, channel, there: channel.lt(p.channels), results, stages };
        k.if_(k.thread_idx().lt(RESULTS), || block.list(k.thread_idx()));
        block
    }

    /// Writes where result `number` of a box is.
    fn list(&self, number: U32<'k>) {
        let p = self.p;
        let (row, x) = p.w.of_box.divide(number);
        let (image, y) = p.h.of_box.divide(row);
        let there = image.lt(p.of_box);
        let pixel = image * p.h.halo.divisor + (y << p.h.shift);
        let pixel = pixel * p.w.halo.divisor + (x << p.w.shift);
        let place = image | (y << FIELD) | (x << (2 * FIELD));
        let listed = vec![there.select(pixel << LINE_SHIFT, 0), there.select(place, NOWHERE)];
        self.results.at(number * 2).store(Lanes::from(listed));
    }

    fn corner(&self, number: U32<'k>) -> Corner<'k> {
        let p = self.p;
        let (rest, x) = p.w.boxes.divide(number);
        let (image, y) = p.h.boxes.divide(rest);
        Corner { image: image * p.of_box, row: y * p.h.of_box.divisor, col: x * p.w.of_box.divisor }
    }

    /// The last place of a box that has a result, with a bit above each number.
    fn limits(&self, corner: &Corner<'k>) -> U32<'k> {
        let last = |extent: U32<'k>, first: U32<'k>| (extent - first - 1).min(MAX_EXTENT - 1);
        let image = last(self.p.images, corner.image);
        let row = last(self.p.h.results, corner.row);
        let col = last(self.p.w.results, corner.col);
        image | (row << FIELD) | (col << (2 * FIELD)) | GUARDS
    }

    /// Whether a place has a result: no number is greater than its limit, and takes the bit above it.
    fn has(&self, limits: U32<'k>, place: U32<'k>) -> Pred<'k> {
        ((limits - place) & GUARDS).eq(GUARDS)
    }

    /// Where the thread's channels of the result at a place are.
    fn element(&self, corner: &Corner<'k>, place: U32<'k>) -> U64<'k> {
        let p = self.p;
        let row = corner.row + ((place >> FIELD) & MASK);
        let col = corner.col + (place >> (2 * FIELD));
        let pixel = ((corner.image + (place & MASK)) * p.h.results + row) * p.w.results + col;
        pixel.mad_wide(p.channels, self.channel.to_u64())
    }

    /// The thread's results of a box, and where it has the chunk of each, from the first pixel on.
    fn mine(&self) -> impl Iterator<Item = (U32<'k>, U32<'k>)> + use<'k> {
        let Self { k, results, chunk, .. } = *self;
        let first = k.thread_idx() / CHUNKS;
        let at = (first << LINE_SHIFT) + placed(chunk, first);
        (0..RESULTS / AT_ONCE).map(move |i| {
            let place = results.at(first * 2 + 1).at(u64::from(2 * i * AT_ONCE)).get();
            (place, if i > 0 { at + i * AT_ONCE * LINE } else { at })
        })
    }

    /// Starts the copies of a box's halo.
    fn bring(&self, corner: &Corner<'k>, stage: U32<'k>) {
        let Self { k, p, .. } = *self;
        let row = (corner.row << p.h.shift) + p.h.first;
        let col = (corner.col << p.w.shift) + p.w.first;
        k.for_each(k.range(k.thread_idx() / CHUNKS, p.halo, AT_ONCE), |pixel| {
            let (line, x) = p.w.halo.divide(pixel);
            let (image, y) = p.h.halo.divide(line);
            let (of_image, at_row, at_col) = (corner.image + image, row + y, col + x);
            // Numbers before the first wrap, and no extent is greater.
            let outside = at_row.ge(p.h.extent) | at_col.ge(p.w.extent) | of_image.ge(p.images) | !self.there;
            let from = (of_image * p.h.extent + at_row) * p.w.extent + at_col;
            let from = p.image.at(from.mad_wide(p.channels, self.channel.to_u64()));
            let pattern = (image * p.h.of_box.divisor + (y >> p.h.shift)) * p.w.of_box.divisor;
            let pattern = pattern + (x >> p.w.shift);
            let to = stage + (pixel << LINE_SHIFT) + placed(self.chunk, pattern);
            k.shared_at::<u32>(to).copy_16_or_zero(from, outside);
        });
    }

    /// Starts the copies of a box of a tensor that lies as results do.
    fn bring_results(&self, of: Ptr<'k, Read, Elem>, corner: &Corner<'k>, to: U32<'k>) {
        let limits = self.limits(corner);
        for (place, at) in self.mine() {
            let outside = !(self.has(limits, place) & self.there);
            let from = of.at(self.element(corner, place));
            self.k.shared_at::<u32>(to + at).copy_16_or_zero(from, outside);
        }
    }

    /// Starts the copies of the block's first box.
    fn begin(&self, bring: impl Fn(&Corner<'k>, U32<'k>)) {
        bring(&self.corner(self.part), self.stages);
        self.k.commit_copies();
    }

    /// Runs `body` for each box of the block behind [`begin`](Self::begin), while the copies of the next one are on their way, and before
    /// those what `first` starts for this one, by its number.
    fn boxes(
        &self,
        bring: impl Fn(&Corner<'k>, U32<'k>),
        first: impl Fn(U32<'k>),
        sums: Vec<Accumulator<'k, f32>>,
        body: impl FnOnce(&Corner<'k>, U32<'k>, Vec<Accumulator<'k, f32>>) -> Vec<Accumulator<'k, f32>>,
    ) -> Vec<Accumulator<'k, f32>> {
        let Self { k, p, .. } = *self;
        let init = (self.stages, self.stages + p.stage, sums);
        let (_, _, sums) =
            k.fold(k.range(self.part, p.boxes, p.parts), init, |number, (read, write, sums)| {
                k.wait_copies(0);
                // What others have copied is visible, and the stage of the box before this one has been used.
                k.barrier();
                first(number);
                let next = number + p.parts;
                k.if_(next.lt(p.boxes), || bring(&self.corner(next), write));
                k.commit_copies();
                (write, read, body(&self.corner(number), read, sums))
            });
        sums
    }
}

/// The byte of chunk `chunk` in a pixel that is placed by `pattern`.
fn placed<'k>(chunk: U32<'k>, pattern: U32<'k>) -> U32<'k> {
    (chunk ^ (pattern & (CHUNKS - 1))) << CHUNK_SHIFT
}

impl Grouped {
    /// Channels of a group that there are kernels for.
    pub(super) const CHANNELS: [u32; 4] = [4, 8, 16, 32];
    /// Registers of a thread at most for the weight and where it is read, and for sums of its gradient.
    const OF_IMAGES: u32 = 81;
    const OF_GRADIENT: u32 = 125;
    /// Reads of an image at most: addresses and words of a turned weight are in registers together before the first product.
    const READS_OF_IMAGES: u32 = 18;
    /// Those for whatever else, about.
    const OTHERS_OF_IMAGES: u32 = 42;
    const OTHERS_OF_GRADIENT: u32 = 46;
    /// Blocks of a multiprocessor at most: gradients of a weight have the boxes of two images in shared memory.
    const MOST_OF_IMAGES: u32 = 3;
    const MOST_OF_GRADIENT: u32 = 2;

    /// Whether products have two taps.
    const fn pairs(&self) -> bool {
        self.channels <= OF_CHUNK
    }

    const fn backward_weight(&self) -> bool {
        matches!(self.pass, Pass::BackwardWeight)
    }

    /// Places in a halo that a result reads: one for a tap, or two.
    const fn reads(&self) -> u32 {
        if self.pairs() { self.taps.div_ceil(2) } else { self.taps }
    }

    /// Products of 16 along the common dimension for a read, where that goes through channels.
    const fn depth(&self) -> u32 {
        if self.channels > ROWS && !self.backward_weight() { self.channels / ROWS } else { 1 }
    }

    /// Products side by side, of 8 columns each.
    const fn cols(&self) -> u32 {
        let narrow = if self.backward_weight() { ROWS } else { OF_CHUNK };
        if self.channels <= narrow { 1 } else { 2 }
    }

    /// Groups of a product.
    const fn groups(&self) -> u32 {
        if self.channels < OF_CHUNK && !self.backward_weight() { OF_CHUNK / self.channels } else { 1 }
    }

    /// Warps that share the results of the same filters.
    const fn shares(&self) -> u32 {
        if self.pairs() || self.backward_weight() { 1 } else { 2 }
    }

    /// Registers for the weight, or for sums of its gradient.
    const fn held(&self) -> u32 {
        let of_product = if self.backward_weight() { 4 } else { 2 };
        self.reads().saturating_mul(self.depth() * self.cols() * of_product)
    }

    /// Whether there is a kernel.
    pub(super) fn exists(&self) -> bool {
        let Self { dtype, channels, .. } = *self;
        let (most, reads) = match self.backward_weight() {
            true => (Self::OF_GRADIENT, u32::MAX),
            false => (Self::OF_IMAGES, Self::READS_OF_IMAGES),
        };
        dtype.bytes() == 2
            && Self::CHANNELS.contains(&channels)
            && self.reads() <= reads
            && self.held().saturating_add(self.reads()) <= most
    }

    /// Blocks that a multiprocessor has registers for.
    pub(super) const fn blocks(&self) -> u32 {
        let (others, most) = match self.backward_weight() {
            true => (self.reads() + Self::OTHERS_OF_GRADIENT, Self::MOST_OF_GRADIENT),
            // Sums, and for each read its place and words of the weight before they are packed.
            false => {
                let sums = 8 * self.cols() * self.groups();
                (3 * self.reads() + sums + Self::OTHERS_OF_IMAGES, Self::MOST_OF_IMAGES)
            }
        };
        let blocks = (1 << 16) / (THREADS * (self.held() + others));
        if blocks > most {
            most
        } else if blocks == 0 {
            1
        } else {
            blocks
        }
    }

    /// Bytes of a stage with a halo of so many pixels, and of what a block has of dynamic shared memory.
    pub(super) const fn bytes(&self, halo: u64) -> (u64, u64) {
        let results = (RESULTS * LINE) as u64;
        let halo = halo.saturating_mul(LINE as u64);
        if self.backward_weight() {
            let stage = halo.saturating_add(results);
            (stage, stage.saturating_mul(2))
        } else {
            (halo, halo.saturating_mul(2).saturating_add(results))
        }
    }

    fn warp<'k>(&self, k: K<'k>) -> Warp<'k> {
        let (warp, lane) = (k.warp_idx(), k.lane_idx());
        let units = CHUNKS / self.shares();
        let unit = if self.shares() > 1 { warp % units } else { warp };
        let (from, to) = match (self.channels, self.backward_weight()) {
            (..=OF_CHUNK, _) => (unit, unit),
            (..=ROWS, false) => (unit * 2, unit * 2),
            (_, false) => ((unit >> 1) * 4, unit * 2),
            (..=ROWS, true) => ((unit >> 1) * 2, unit),
            (_, true) => ((unit >> 1) * 2, ((unit >> 2) * 2 + (unit & 1)) * 2),
        };
        Warp {
            from,
            to,
            share: warp / units,
            row: lane % ROWS,
            half: lane / ROWS,
            origin: k.accumulator_origin(),
        }
    }

    /// For each read how far it is from where a result's first tap is.
    fn places<'k>(&self, block: &Block<'k>, warp: &Warp<'k>) -> Vec<U32<'k>> {
        let p = block.p;
        let place = |i: u32| {
            let (tap, chunk) = if self.pairs() {
                (warp.half + 2 * i, warp.from)
            } else {
                (block.k.lit(i), warp.from + warp.half)
            };
            let (down, across) = p.w.taps.divide(tap);
            let (y, x) = (down * p.h.dilation, across * p.w.dilation);
            // Results and their taps go round the patterns together.
            let pattern = (y >> p.h.shift) * p.w.of_box.divisor + (x >> p.w.shift) + warp.row;
            ((y * p.w.halo.divisor + x) << LINE_SHIFT) + placed(chunk, pattern)
        };
        (0..self.reads()).map(place).collect()
    }

    /// Whether read `i` has one tap where others have two.
    const fn is_alone(&self, i: u32) -> bool {
        self.pairs() && 2 * i + 1 == self.taps
    }

    /// The matrices of read `i` at an address: results 0 to 7 and 8 to 15 of one tap or chunk, and then of the next; zeros for a tap that there
    /// is not.
    fn read<'k>(&self, k: K<'k>, i: u32, at: U32<'k>, transposed: bool) -> [U32<'k>; 4] {
        if self.is_alone(i) {
            let [low, high] = k.matrices_at(at, transposed);
            let zero = k.lit(0u32);
            return [low, high, zero, zero];
        }
        k.matrices_at(at, transposed)
    }

    /// The weight of a warp's filters, or turned: by read, depth and column.
    fn weight<'k>(&self, block: &Block<'k>, warp: &Warp<'k>, atom: MmaAtom) -> Vec<Fragment<'k, MatrixB>> {
        let Block { k, first, .. } = *block;
        let (col, depth) = warp.origin;
        let mut all = Vec::new();
        for i in 0..self.reads() {
            for d in 0..self.depth() {
                for n in 0..self.cols() {
                    let to = first + (warp.to + n) * OF_CHUNK + col;
                    let from = first + (warp.from + 2 * d) * OF_CHUNK + depth;
                    let word = |half: u32| {
                        let (tap, from) =
                            if self.pairs() { (2 * i + half, from) } else { (i, from + half * OF_CHUNK) };
                        if tap < self.taps { self.pair(block, tap, from, to) } else { k.lit(0u32) }
                    };
                    all.push(Fragment::b(k, atom, &[word(0), word(1)]));
                }
            }
        }
        all
    }

    /// The weight of a tap between result channel `to` and channels `from` and the next one of the image.
    fn pair<'k>(&self, block: &Block<'k>, tap: u32, from: U32<'k>, to: U32<'k>) -> U32<'k> {
        let Block { p, .. } = *block;
        let (channels, filter) = (self.channels, self.taps * self.channels);
        let mut there = to.lt(p.channels);
        if self.groups() > 1 {
            there = there & (from / channels).eq(to / channels);
        }
        if self.pass == Pass::Forward {
            let at = to.mul_wide(filter) + (from % channels + tap * channels).to_u64();
            return p.other.at(at).cast::<u32>().only_where(there, Fill::Zero).get();
        }
        // Taps in reverse.
        let at = from.mul_wide(filter) + (to % channels + (self.taps - 1 - tap) * channels).to_u64();
        let [low, high] = [0, filter].map(|by| {
            p.other.at(at + u64::from(by)).cast::<u16>().only_where(there, Fill::Zero).get::<u32>()
        });
        low | (high << 16)
    }

    /// Images or gradients of images.
    fn images<'k>(&self, block: &Block<'k>) {
        let Block { k, p, .. } = *block;
        let (warp, atom) = (self.warp(k), k.mma_atom(self.dtype));
        let bring = |corner: &Corner<'k>, stage| block.bring(corner, stage);
        block.begin(bring);
        let places = self.places(block, &warp);
        let weight = self.weight(block, &warp, atom);
        let (row, col) = warp.origin;
        let ends: Vec<_> = (0..2 * self.cols()).map(|i| self.ends(block, warp.to, col, i)).collect();
        // Of the two groups of a product the lanes of half of the channels.
        let first = (k.lane_idx() & 3).lt(2);
        let masks = [first, !first].map(|mine| mine.select(u32::MAX, 0));
        let panel = block.stages + p.stage + p.stage;
        let at = panel + (row << LINE_SHIFT) + (col << 1);
        let to: Vec<_> = (0..self.cols()).map(|n| at + placed(warp.to + n, row)).collect();
        // What is added is where results of the same places will be.
        let first = |number: U32<'k>| {
            if self.program.residual {
                block.bring_results(p.to.c, &block.corner(number), panel);
                k.commit_copies();
            }
        };
        block.boxes(bring, first, Vec::new(), |corner, stage, none| {
            if self.program.residual {
                k.wait_copies(1);
                k.barrier();
            }
            let tiles = RESULTS / ROWS / self.shares();
            k.for_each(k.range(0, tiles, 2), |pair| {
                let tile = warp.share * tiles + pair;
                for i in 0..2 {
                    let first = (tile + i) * ROWS;
                    let from = block.results.at((first + warp.row) * 2).get() + stage;
                    let sums = self.sums(k, from, (&places, &weight), masks);
                    let down = first << LINE_SHIFT;
                    for (n, sums) in sums.iter().enumerate() {
                        for (half, pair) in sums.lanes().as_slice().chunks(2).enumerate() {
                            let place = || k.shared_at::<u32>(to[n] + down + half as u32 * OF_CHUNK * LINE);
                            let brought = self.program.residual.then(place);
                            let residual =
                                brought.map(|place| Halves::from_word(place.get(), self.dtype).widen());
                            let value = |j: usize| {
                                let residual = residual.map(|residual| residual[j]);
                                self.finished(pair[j], &ends[2 * n + j], residual)
                            };
                            let word = value(0).pack_with(value(1), self.dtype);
                            brought.unwrap_or_else(place).set(word);
                        }
                    }
                }
            });
            k.barrier();
            let limits = block.limits(corner);
            for (place, at) in block.mine() {
                let words = k.shared_at::<u32>(panel + at).load::<u32>(4);
                let to = p.to.y.at(block.element(corner, place)).cast::<u32>();
                to.only_where(block.has(limits, place) & block.there, Fill::Zero).store(words);
            }
            none
        });
    }

    /// The products of 16 results whose first taps are at an address of shared memory, which each lane has of one.
    fn sums<'k>(
        &self,
        k: K<'k>,
        from: U32<'k>,
        (places, weight): (&[U32<'k>], &[Fragment<'k, MatrixB>]),
        masks: [U32<'k>; 2],
    ) -> Vec<Accumulator<'k, f32>> {
        let atom = k.mma_atom(self.dtype);
        let (cols, groups) = (self.cols() as usize, self.groups() as usize);
        let mut sums = vec![Accumulator::zero(k, atom); cols * groups];
        let mut weight = weight.chunks(cols);
        for (i, place) in (0..).zip(places) {
            for d in 0..self.depth() {
                // The next chunks of a group, which begin at a multiple of its channels.
                let place = if d > 0 { *place ^ (d << (CHUNK_SHIFT + 1)) } else { *place };
                let words = self.read(k, i, from + place, false);
                let Some(weight) = weight.next() else { return sums };
                for (n, sum) in sums.iter_mut().enumerate() {
                    let masked = |word: U32<'k>| if groups > 1 { word & masks[n / cols] } else { word };
                    *sum = sum.mma(&Fragment::a(k, atom, &words.map(masked)), &weight[n % cols]);
                }
            }
        }
        if groups == 1 {
            return sums;
        }
        let mine = masks[0].ne(0);
        let (low, high) = (sums[0].lanes(), sums[1].lanes());
        vec![sums[0].like(low.zip(high.clone(), |low, high| mine.select(low, high)))]
    }

    /// The factor and the bias of a lane's column `i`, if there are such.
    fn ends<'k>(&self, block: &Block<'k>, chunk: U32<'k>, col: U32<'k>, i: u32) -> Ends<'k> {
        let channel = block.first + (chunk + i / 2) * OF_CHUNK + col + i % 2;
        let there = channel.lt(block.p.channels);
        let of = |from: Ptr<'k, Read, Elem>| from.at(channel).only_where(there, Fill::Zero).get::<f32>();
        let ResultParams { scale, bias, .. } = block.p.to;
        Ends { scale: scale.map(of), bias: self.program.bias.then(|| of(bias)) }
    }

    fn finished<'k>(&self, sum: F32<'k>, ends: &Ends<'k>, residual: Option<F32<'k>>) -> F32<'k> {
        let sum = ends.scale.map_or(sum, |scale| sum * scale);
        let sum = ends.bias.map_or(sum, |bias| sum + bias);
        let sum = residual.map_or(sum, |residual| sum + residual);
        self.program.activation.map_or(sum, |activation| evaluate(activation, sum, self.dtype))
    }

    /// The gradient of the weight: sums over each block's boxes, `[part][filter][tap][channel]`.
    fn gradient<'k>(&self, block: &Block<'k>) {
        let Block { k, p, .. } = *block;
        let (warp, atom) = (self.warp(k), k.mma_atom(self.dtype));
        let bring = |corner: &Corner<'k>, stage: U32<'k>| {
            block.bring(corner, stage);
            block.bring_results(p.other, corner, stage + (p.halo << LINE_SHIFT));
        };
        // The list of results is there.
        k.barrier();
        block.begin(bring);
        let places = self.places(block, &warp);
        let cols = self.cols() as usize;
        let dy = warp.to + if cols > 1 { warp.half } else { k.lit(0u32) };
        let dy = (warp.row << LINE_SHIFT) + placed(dy, warp.row) + (p.halo << LINE_SHIFT);
        // What results that there are not read: a number that is not finite times their zeros were none.
        let zeros = k.shared::<u32>(LINE / 4);
        k.if_(k.thread_idx().lt(LINE / 4), || zeros.at(k.thread_idx()).set(0));
        let zeros = zeros.shared_address();
        let none = vec![Accumulator::zero(k, atom); places.len() * cols];
        let sums = block.boxes(
            bring,
            |_| (),
            none,
            |corner, stage, sums| {
                let limits = block.limits(corner);
                k.fold(k.range(0, RESULTS, ROWS), sums, |first, mut sums| {
                    let listed = block.results.at((first + warp.row) * 2).load::<u32>(2);
                    let there = block.has(limits, listed[1]);
                    let from = there.select(listed[0] + stage, zeros);
                    let mask = there.select(u32::MAX, LINE - 1);
                    let dy = stage + dy + (first << LINE_SHIFT);
                    let dy: Vec<[U32<'k>; 2]> = match cols {
                        1 => vec![k.matrices_at(dy, true)],
                        _ => k.matrices_at::<4>(dy, true).chunks(2).map(|pair| [pair[0], pair[1]]).collect(),
                    };
                    for (i, place) in (0..).zip(&places) {
                        let [a, c, b, d] = self.read(k, i, from + (*place & mask), true);
                        let x = Fragment::a(k, atom, &[a, b, c, d]);
                        for (n, dy) in dy.iter().enumerate() {
                            let sum = &mut sums[i as usize * cols + n];
                            *sum = sum.mma(&x, &Fragment::b(k, atom, dy));
                        }
                    }
                    sums
                })
            },
        );
        self.store_gradient(block, &warp, &sums);
    }

    fn store_gradient<'k>(&self, block: &Block<'k>, warp: &Warp<'k>, sums: &[Accumulator<'k, f32>]) {
        let Block { k, p, first, part, .. } = *block;
        let channels = self.channels;
        let to = p.to.y.at(part.to_u64() * p.sums);
        let (row, col) = warp.origin;
        let cols = self.cols() as usize;
        for n in 0..self.cols() {
            let filter = first + (warp.to + n) * OF_CHUNK + col;
            let channel = first + warp.from * OF_CHUNK + row;
            let mut there = filter.lt(p.channels);
            if channels < OF_CHUNK {
                there = there & (filter / channels).eq(channel / channels);
            }
            k.if_(there, || {
                let at = filter.mul_wide(self.taps * channels) + (channel % channels).to_u64();
                for i in 0..self.reads() {
                    let sums = &sums[i as usize * cols + n as usize];
                    for ((down, right), sum) in sums.offsets().zip(sums.lanes().iter()) {
                        let (tap, further) =
                            if self.pairs() { (2 * i + down / OF_CHUNK, 0) } else { (i, down) };
                        if tap < self.taps {
                            let by = right * self.taps * channels + tap * channels + further;
                            to.at(at + u64::from(by)).set(sum);
                        }
                    }
                }
            });
        }
    }
}

impl KernelDef for Grouped {
    type Args = GroupedArgs;

    fn spec(&self) -> KernelSpec {
        let Self { dtype, pass, channels, taps, program } = *self;
        let name = format!("conv_grouped_{dtype}_{}_c{channels}_t{taps}{}", pass.name(), program.name());
        KernelSpec::new(name, BlockDim::x(THREADS))
            .dtypes(program.dtypes(epilogue::dtypes(dtype, self.backward_weight()), dtype))
            .min_blocks_per_sm(self.blocks())
    }

    fn build<'k>(&self, k: K<'k>, p: Params<'k, Self>) {
        let block = Block::new(k, p);
        if self.backward_weight() { self.gradient(&block) } else { self.images(&block) }
    }
}
