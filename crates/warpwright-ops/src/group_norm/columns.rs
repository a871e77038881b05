//! Forward kernels for channels-last tensors, in which the channels of a pixel are neighbours and those of a group lie
//! in as many pieces as there are pixels.
//!
//! A block takes some pixels of one sample and a tile of channels; a thread keeps to its vector of channels.

use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;

use super::common::{Affine, Options, Statistics, store_result};
use super::spread::Spread;

/// Threads of a block.
pub(super) const THREADS: u32 = 256;
/// Most vectors of a tile, a power of two.
pub(super) const MAX_TILE: u32 = 64;
/// Pixels that a thread loads at once.
const ROUND: u32 = 8;
/// The same where it loads from two tensors.
pub(super) const PAIR_ROUND: u32 = 4;

/// Where a thread works: `tile` is the binary logarithm of the vectors of a tile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column<'k> {
    /// The sample.
    pub(super) sample: U32<'k>,
    /// The part of the sample, counted over all samples.
    pub(super) part: U32<'k>,
    /// The thread's vector of channels.
    pub(super) vector: U32<'k>,
    /// Whether the tensor has that vector.
    pub(super) exists: Pred<'k>,
    /// The thread's first pixel in the sample, and the end of its part.
    pub(super) first: U64<'k>,
    pub(super) end: U64<'k>,
    /// Pixels between those of a thread.
    pub(super) stride: U64<'k>,
    /// Vectors of the sample in front of it.
    row_vectors: U32<'k>,
    base: U64<'k>,
    /// Pixels of the part.
    pub(super) length: U64<'k>,
}

kernel_args! {
    /// How the blocks lie over a tensor: `tile` is the binary logarithm of the vectors of a tile, `per_split` the pixels
    /// of one of `splits` parts of a sample.
    pub(super) struct ShapeArgs => Shape {
        pixels: u64, row_vectors: u32, tiles: u32, tile: u32, splits: u32, per_split: u64,
    }
}

impl<'k> Column<'k> {
    pub(super) fn of(k: K<'k>, block: U32<'k>, shape: Shape<'k>) -> Self {
        let (part, tile_number) = (block / shape.tiles, block % shape.tiles);
        let (sample, split) = (part / shape.splits, part % shape.splits);
        let thread = k.thread_idx();
        let one = k.lit(1u32) << shape.tile;
        let vector = (tile_number << shape.tile) + (thread & (one - 1));
        let start = split.to_u64() * shape.per_split;
        let end = (start + shape.per_split).min(shape.pixels);
        Self {
            sample,
            part,
            vector,
            exists: vector.lt(shape.row_vectors),
            first: start + (thread >> shape.tile).to_u64(),
            end,
            stride: (k.lit(THREADS) >> shape.tile).to_u64(),
            row_vectors: shape.row_vectors,
            base: sample.to_u64() * shape.pixels,
            length: end - start,
        }
    }

    /// The first element of the thread's vector of pixel `pixel`.
    pub(super) fn element(self, pixel: U64<'k>, width: u32) -> U64<'k> {
        ((self.base + pixel) * self.row_vectors.to_u64() + self.vector.to_u64()) * u64::from(width)
    }

    /// Elements between the thread's vectors of successive pixels.
    pub(super) fn pitch(self, width: u32) -> U64<'k> {
        self.stride * self.row_vectors.to_u64() * u64::from(width)
    }

    /// The thread's vectors of `round` pixels from the one at `at` on.
    pub(super) fn load<A: Float>(
        self,
        x: Ptr<'k, Read, Elem>,
        at: U64<'k>,
        round: u32,
        width: u32,
    ) -> Vec<Packed<'k, A>> {
        let (from, pitch) = (x.at(self.element(at, width)), self.pitch(width));
        from.pitched(pitch, round).map(|from| from.load_packed(width)).collect()
    }

    /// The groups of the thread's channels, of `of_group` channels each, counted over all samples.
    pub(super) fn groups(self, k: K<'k>, groups: U32<'k>, of_group: U32<'k>, width: u32) -> Lanes<'k, u32> {
        let first = self.vector * width;
        let of = |channel: U32<'k>| self.sample * groups + channel / of_group;
        k.if_else(
            whole(of_group, width),
            || Lanes::splat(of(first), width),
            || (0..width).map(|lane| of(first + lane)).collect(),
        )
    }

    /// What `f` gives for the group of each of the thread's channels: once where they are all of one.
    pub(super) fn of_groups<C: Carry<'k> + Clone>(
        self,
        k: K<'k>,
        of_group: U32<'k>,
        width: u32,
        groups: &Lanes<'k, u32>,
        f: impl Fn(U32<'k>) -> C,
    ) -> Vec<C> {
        k.if_else(
            whole(of_group, width),
            || {
                let of_all = f(groups[0]);
                (0..width).map(|_| of_all.clone()).collect()
            },
            || -> Vec<C> { groups.iter().map(&f).collect() },
        )
    }

    /// Goes over the thread's pixels, `round` at a time while there are as many, then one by one. `body` receives the
    /// first pixel and how many there are.
    pub(super) fn rounds<C: Carry<'k>>(
        self,
        k: K<'k>,
        round: u32,
        init: C,
        body: impl Fn(U64<'k>, u32, C) -> C,
    ) -> C {
        let last = self.stride * u64::from(round - 1);
        let (at, state) = k.while_(
            (self.first, init),
            |(at, _)| (*at + last).lt(self.end),
            |(at, state)| (at + self.stride * u64::from(round), body(at, round, state)),
        );
        let one = |(at, state): (U64<'k>, C)| (at + self.stride, body(at, 1, state));
        k.while_((at, state), |(at, _)| at.lt(self.end), one).1
    }
}

/// Whether groups consist of whole vectors.
fn whole(of_group: U32<'_>, width: u32) -> Pred<'_> {
    (of_group & (width - 1)).eq(0)
}

/// `N` values of all threads of a block in shared memory, each in one plane for each of `width` channels; reads in the order
/// of the channels and writes in that of the threads are both free of bank conflicts.
pub(super) struct Strips<'k, A: Accumulate, const N: usize> {
    k: K<'k>,
    column: Column<'k>,
    width: u32,
    /// The binary logarithm of the vectors of a tile.
    tile: U32<'k>,
    /// Threads of each vector of the tile.
    pub(super) count: U32<'k>,
    slots: [Ptr<'k, Shared, A>; N],
    stride: u32,
}

/// A channel of a tile.
#[derive(Clone, Copy)]
pub(super) struct TileChannel<'k> {
    vector: U32<'k>,
    lane: U32<'k>,
}

impl<'k, A: Accumulate, const N: usize> Strips<'k, A, N> {
    /// Puts the values of each thread, `values[i]` for its channels, where all find them.
    pub(super) fn new(
        k: K<'k>,
        column: Column<'k>,
        shape: Shape<'k>,
        width: u32,
        values: [Lanes<'k, A>; N],
    ) -> Self {
        let thread = k.thread_idx();
        let banks = if A::DOUBLE { 16 } else { 32 };
        let stride = THREADS + banks / width;
        let slots = [(); N].map(|()| k.shared::<A>(stride * width));
        for (slots, values) in slots.iter().zip(values) {
            for (plane, value) in (0u32..).zip(values.iter()) {
                slots.at(thread + plane * stride).set(value);
            }
        }
        k.barrier();
        Self { k, column, width, tile: shape.tile, count: k.lit(THREADS) >> shape.tile, slots, stride }
    }

    /// Runs `body` for the channels of the tile, spread over the threads, with the place of each in `partials`, planes of
    /// [part, channel].
    pub(super) fn each_channel(
        &self,
        partials: Ptr<'k, Write, Elem>,
        body: impl FnOnce(TileChannel<'k>) -> [Reg<'k, A>; N],
        plane: U64<'k>,
    ) {
        let Self { k, column, width, .. } = *self;
        let thread = k.thread_idx();
        let first = (column.vector - (thread & ((k.lit(1u32) << self.tile) - 1))) * width;
        let left = column.row_vectors * width - first;
        let count = (k.lit(width) << self.tile).min(left);
        k.for_each(k.range(thread, count, THREADS), |number| {
            let vector = number >> width.trailing_zeros();
            let (lane, channel) = (number & (width - 1), first + number);
            let results = body(TileChannel { vector, lane });
            let channels = (column.row_vectors * width).to_u64();
            let partial = partials.at(column.part.to_u64() * channels + channel.to_u64());
            for (i, result) in (0u64..).zip(results) {
                let to = match i {
                    0 => partial,
                    1 => partial.at(plane),
                    i => partial.at(plane * i),
                };
                to.set(result);
            }
        });
    }

    /// Folds `body` over the threads of the channel's vector; it receives the number of one among them, and its thread.
    pub(super) fn fold<C: Carry<'k>>(
        &self,
        channel: TileChannel<'k>,
        init: impl FnOnce() -> C,
        body: impl FnOnce(U32<'k>, U32<'k>, C) -> C,
    ) -> C {
        let range = self.k.range(0u32, self.count, 1u32);
        self.k.fold(range, init(), |strip, state| {
            let thread = (strip << self.tile) + channel.vector;
            body(strip, thread, state)
        })
    }

    /// Value `i` of `thread` for the channel.
    pub(super) fn value(&self, i: usize, channel: TileChannel<'k>, thread: U32<'k>) -> Reg<'k, A> {
        self.slots[i].at(channel.lane * self.stride + thread).get()
    }
}

kernel_args! {
    /// `partials` are three planes of [sample, split, channel]: mean, low and m2.
    pub(super) struct MomentsArgs => MomentsParams {
        x: In<Elem>, partials: Out<Elem>, shape: ShapeArgs, plane: u64,
    }
}

/// The moments of each channel over some pixels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moments {
    pub(super) dtype: DType,
    pub(super) width: u32,
}

impl AccumulateKernel for Moments {
    type Args = MomentsArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(
            format!("group_norm_last_moments_{}_x{}", self.dtype, self.width),
            BlockDim::x(THREADS),
        )
        .dtypes(DTypes::all(self.dtype).accumulated(["partials"]))
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: MomentsParams<'k>) {
        k.start_next_grid();
        let width = self.width;
        let column = Column::of(k, k.block_idx_x(), a.shape);
        let zeros = || Lanes::constant(k, 0.0, width);
        let empty = || -> Spreads<'k, A> { (k.lit(0.0), zeros(), zeros(), zeros()) };
        let (_, mean, low, m2) = k.if_else(
            column.exists,
            || {
                column.rounds(k, ROUND, empty(), |at, round, state| {
                    grown(k, state, &column.load(a.x, at, round, width), width)
                })
            },
            empty,
        );

        let strips = Strips::new(k, column, a.shape, width, [mean, low, m2]);
        let of_channel = |channel| {
            let merge = |strip, thread, spread: Spread<'k, A>| {
                // Pixels `strip`, `strip + strips`, ... of the part.
                let pixels = (column.length + (strips.count - 1 - strip).to_u64()) / strips.count.to_u64();
                let count = pixels.convert();
                let [mean, low, m2] = [0, 1, 2].map(|i| strips.value(i, channel, thread));
                spread.merge(Spread { count, mean, low, m2 })
            };
            let spread = strips.fold(channel, || Spread::empty(k), merge);
            [spread.mean, spread.low, spread.m2]
        };
        strips.each_channel(a.partials, of_channel, a.plane);
    }
}

/// Mean, low and m2 of each channel of a thread, which have their count in common.
type Spreads<'k, A> = (Reg<'k, A>, Lanes<'k, A>, Lanes<'k, A>, Lanes<'k, A>);

/// The moments with some pixels more.
fn grown<'k, A: Float>(
    k: K<'k>,
    (count, mean, low, m2): Spreads<'k, A>,
    rows: &[Packed<'k, A>],
    width: u32,
) -> Spreads<'k, A> {
    let rows: Vec<Lanes<'k, A>> = rows.iter().map(Packed::lanes).collect();
    let of_rows = rows.len() as f64;
    let sum = |values: Lanes<'k, A>| values.sum().unwrap_or_else(|| k.lit(0.0));
    let total = count + of_rows;
    let reciprocal = total.rcp_approx();
    let (before, after) = (count * reciprocal, reciprocal * of_rows);
    let between = count * after;
    let (mut means, mut lows, mut squares) = (Vec::new(), Vec::new(), Vec::new());
    for lane in 0..width as usize {
        let values: Lanes<'k, A> = rows.iter().map(|row| row[lane]).collect();
        let (batch, rest, m2_of_rows) = if rows.len() == 1 {
            (values[0], k.lit(0.0), k.lit(0.0))
        } else {
            let batch = sum(values.clone()) * (1.0 / of_rows);
            let distances = values.map(|x| x - batch);
            let total = sum(distances.clone());
            let rest = total * (1.0 / of_rows);
            let squares = distances.fold((-rest) * total, |sum, d| d.mul_add(d, sum));
            (batch, rest, squares)
        };
        let new = mean[lane] * before + batch * after;
        let old_part = ((mean[lane] - new) + low[lane]) * before;
        let new_part = ((batch - new) + rest) * after;
        let distance = (batch - mean[lane]) + (rest - low[lane]);
        means.push(new);
        lows.push(old_part + new_part);
        squares.push((distance * between).mul_add(distance, m2[lane] + m2_of_rows));
    }
    (total, means.into(), lows.into(), squares.into())
}

kernel_args! {
    /// `statistics` are three planes of [sample, group]: mean, low and rstd.
    pub(super) struct FinishArgs => FinishParams {
        partials: In<Elem>, statistics: Out<Elem>, mean: Out<Elem>, rstd: Out<Elem>, groups: u32, channels: u32,
        pixels: u64, splits: u32, per_split: u64, plane: u64, statistics_plane: u64, flags: u32, eps: f64,
    }
}

/// The statistics of a group from the moments of its channels: one block for each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Finish {
    pub(super) dtype: DType,
}

impl AccumulateKernel for Finish {
    type Args = FinishArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(format!("group_norm_last_finish_{}", self.dtype.accumulator()), BlockDim::x(THREADS))
            .dtypes(DTypes::all(self.dtype.accumulator()))
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: FinishParams<'k>) {
        k.start_next_grid();
        k.after_previous_grid();
        let number = k.block_idx_x();
        let (sample, group) = (number / a.groups, number % a.groups);
        let row = (a.groups * a.channels).to_u64();
        let items = a.splits.mul_wide(a.channels);
        let first = k.thread_idx().to_u64();
        let spread =
            k.fold(k.range(first, items, u64::from(THREADS)), Spread::<A>::empty(k), |item, spread| {
                let item = item.to_u32();
                let (split, channel) = (item / a.channels, item % a.channels);
                let start = split.to_u64() * a.per_split;
                let pixels = (start + a.per_split).min(a.pixels) - start;
                let part = (sample * a.splits + split).to_u64();
                let partial = a.partials.at(part * row + (group * a.channels + channel).to_u64());
                let [mean, low, m2] =
                    [partial, partial.at(a.plane), partial.at(a.plane * 2u64)].map(|p| p.get::<A>());
                spread.merge(Spread { count: pixels.convert(), mean, low, m2 })
            });
        let spread = k.block_combine(spread, Spread::merge);
        let statistics = Statistics::of(spread, a.eps);
        k.if_(k.thread_idx().eq(0), || {
            let to = a.statistics.at(number);
            to.set(statistics.mean);
            to.at(a.statistics_plane).set(statistics.low);
            to.at(a.statistics_plane * 2u64).set(statistics.rstd);
            let saves = Options::of(a.flags).saves;
            k.if_(saves, || statistics.save(a.mean, a.rstd, number));
        });
    }
}

kernel_args! {
    /// As [`MomentsArgs`] and [`FinishArgs`].
    pub(super) struct ApplyArgs => ApplyParams {
        x: In<Elem>, weight: In<Elem>, bias: In<Elem>, statistics: In<Elem>, y: Out<Elem>, groups: u32,
        channels: u32, shape: ShapeArgs,
        statistics_plane: u64, flags: u32,
    }
}

/// The result from the statistics.
#[derive(Clone, Copy, Debug)]
pub(super) struct Apply {
    pub(super) dtype: DType,
    pub(super) width: u32,
}

impl AccumulateKernel for Apply {
    type Args = ApplyArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(format!("group_norm_last_apply_{}_x{}", self.dtype, self.width), BlockDim::x(THREADS))
            .dtypes(DTypes::all(self.dtype).accumulated(["statistics"]))
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: ApplyParams<'k>) {
        k.after_previous_grid();
        let width = self.width;
        // Backwards: what the first pass read last is still in the L2 cache.
        let column = Column::of(k, (k.grid_dim_x() - 1) - k.block_idx_x(), a.shape);
        let options = Options::of(a.flags);
        let affine = Affine { options, weight: a.weight, bias: a.bias };
        k.if_(column.exists, || {
            let groups = column.groups(k, a.groups, a.channels, width);
            let statistics = column.of_groups(k, a.channels, width, &groups, |group| {
                let from = a.statistics.at(group);
                [from, from.at(a.statistics_plane), from.at(a.statistics_plane * 2u64)].map(|p| p.get::<A>())
            });
            let weights = affine.weights::<A>(k, column.vector, width);
            let biases = affine.biases::<A>(k, column.vector, width);
            let (mut means, mut scales, mut shifts) = (Vec::new(), Vec::new(), Vec::new());
            for ([mean, low, rstd], (weight, bias)) in
                statistics.into_iter().zip(weights.iter().zip(biases.iter()))
            {
                let (scale, shift) = Statistics { mean, low, rstd }.line(weight, bias);
                means.push(mean);
                scales.push(scale);
                shifts.push(shift);
            }
            let pitch = column.pitch(width);
            column.rounds(k, PAIR_ROUND, (), |at, round, ()| {
                let element = column.element(at, width);
                let (x, y) = (a.x.at(element), a.y.at(element));
                let rows: Vec<_> = x.pitched(pitch, round).map(|x| x.load_packed::<A>(width)).collect();
                for (row, y) in rows.iter().zip(y.pitched(pitch, round)) {
                    let lanes = row.lanes();
                    let results: Lanes<'k, A> = (0..width as usize)
                        .map(|lane| (lanes[lane] - means[lane]).mul_add(scales[lane], shifts[lane]))
                        .collect();
                    store_result(k, options, y, &results);
                }
            });
        });
    }
}
