//! Forward kernels for channels-last tensors, in which the channels of a pixel are neighbours and those of a group lie
//! in as many pieces as there are pixels.
//!
//! A block takes some pixels of one sample and a tile of channels; a thread keeps to its vector of channels.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{PixelColumn, PixelStrips, PixelTilingArgs, kernel_args};

use super::common::{Affine, Elements, Options, Statistics, store_planes, store_result};
use super::spread::Spread;

/// Threads of a block.
pub(super) const THREADS: u32 = 256;
/// Most vectors of a tile, a power of two.
pub(super) const MAX_TILE: u32 = 64;
/// Pixels that a thread loads at once.
const ROUND: u32 = 8;
/// The same where it loads from two tensors.
pub(super) const PAIR_ROUND: u32 = 4;

/// The groups of the thread's channels, of `of_group` channels each, counted over all samples.
pub(super) fn groups_of<'k>(
    k: K<'k>,
    column: &PixelColumn<'k>,
    groups: U32<'k>,
    of_group: U32<'k>,
    width: u32,
) -> Lanes<'k, u32> {
    let first = column.vector * width;
    let of = |channel: U32<'k>| column.sample * groups + channel / of_group;
    k.if_else(
        whole(of_group, width),
        || Lanes::splat(of(first), width),
        || (0..width).map(|lane| of(first + lane)).collect(),
    )
}

/// `f` of the group of each of the thread's channels: once where they are all of one.
pub(super) fn of_groups<'k, C: Carry<'k> + Clone>(
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

/// Whether groups consist of whole vectors.
fn whole(of_group: U32<'_>, width: u32) -> Pred<'_> {
    (of_group & (width - 1)).eq(0)
}

kernel_args! {
    /// `partials` are three planes of [sample, split, channel]: mean, low and m2.
    pub(super) struct MomentsArgs => MomentsParams {
        x: In<Elem>, partials: Out<Elem>, shape: PixelTilingArgs, plane: u64,
    }
}

/// The moments of each channel over some pixels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moments(pub(super) Elements);

impl AccumulateKernel for Moments {
    type Args = MomentsArgs;

    fn spec(&self) -> KernelSpec {
        self.0.spec("last_moments", THREADS, ["partials"])
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: MomentsParams<'k>) {
        k.start_next_grid();
        let width = self.0.width;
        let column = PixelColumn::of(k, k.block_idx_x(), a.shape, width);
        let zeros = || Lanes::constant(k, 0.0, width);
        let empty = || -> Spreads<'k, A> { (k.lit(0.0), zeros(), zeros(), zeros()) };
        let (_, mean, low, m2) = k.if_else(
            column.exists,
            || {
                column.rounds(ROUND, empty(), |at, round, state| {
                    grown(k, state, &column.load(a.x, at, round), width)
                })
            },
            empty,
        );

        let strips = PixelStrips::new(column, [mean, low, m2]);
        strips.each_channel(|channel| {
            let merge = |strip, thread, spread: Spread<'k, A>| {
                // Pixels `strip`, `strip + strips`, ... of the part.
                let pixels = (column.length + (strips.count - 1 - strip).to_u64()) / strips.count.to_u64();
                let count = pixels.convert();
                let [mean, low, m2] = [0, 1, 2].map(|i| strips.value(i, channel, thread));
                spread.merge(Spread { count, mean, low, m2 })
            };
            let Spread { mean, low, m2, .. } = strips.fold(channel, || Spread::empty(k), merge);
            let place = a.partials.at(column.partial(channel.channel));
            store_planes(place, a.plane, [mean, low, m2]);
        });
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
        k.overlap_grids();
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
            let Statistics { mean, low, rstd } = statistics;
            store_planes(a.statistics.at(number), a.statistics_plane, [mean, low, rstd]);
            let saves = Options::of(a.flags).saves;
            k.if_(saves, || statistics.save(a.mean, a.rstd, number));
        });
    }
}

kernel_args! {
    /// As [`MomentsArgs`] and [`FinishArgs`].
    pub(super) struct ApplyArgs => ApplyParams {
        x: In<Elem>, weight: In<Elem>, bias: In<Elem>, statistics: In<Elem>, y: Out<Elem>, groups: u32,
        channels: u32, shape: PixelTilingArgs,
        statistics_plane: u64, flags: u32,
    }
}

/// The result from the statistics.
#[derive(Clone, Copy, Debug)]
pub(super) struct Apply(pub(super) Elements);

impl AccumulateKernel for Apply {
    type Args = ApplyArgs;

    fn spec(&self) -> KernelSpec {
        self.0.spec("last_apply", THREADS, ["statistics"])
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: ApplyParams<'k>) {
        k.after_previous_grid();
        let width = self.0.width;
        // Backwards: what the first pass read last is still in the L2 cache.
        let column = PixelColumn::of(k, (k.grid_dim_x() - 1) - k.block_idx_x(), a.shape, width);
        let options = Options::of(a.flags);
        let affine = Affine { options, weight: a.weight, bias: a.bias };
        k.if_(column.exists, || {
            let groups = groups_of(k, &column, a.groups, a.channels, width);
            let statistics = of_groups(k, a.channels, width, &groups, |group| {
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
            let pitch = column.pitch();
            column.rounds(PAIR_ROUND, (), |at, round, ()| {
                let element = column.element(at);
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
