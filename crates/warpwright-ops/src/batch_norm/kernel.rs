//! The kernels that walk over tensors: statistics of a part of each channel, and what follows from the whole channel's.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{Readable, kernel_args};

use super::Layout;
use super::tuning::{COLUMNS_PER_THREAD, Config};
use super::walk::{SizesArgs, Tile, Walk};

kernel_args! {
    /// Shift, mean and sum of squares of the parts of each channel: `partial[part, 3, channels]`.
    pub(super) struct StatisticsArgs => StatisticsParams {
        x: In<Elem>, partial: Out<Elem>, sizes: SizesArgs,
    }
}

kernel_args! {
    /// `y = max((x - mean) scale + shift + residual, lower)`, `coefficients[3, channels]`.
    pub(super) struct NormalizeArgs => NormalizeParams {
        x: In<Elem>, residual: In<Elem>, coefficients: In<Elem>, y: Out<Elem>, lower: f64,
        sizes: SizesArgs,
    }
}

kernel_args! {
    /// `g = dy` where `y > 0`; sums of `g` and of `g (x - mean)` over the parts of each channel: `partial[part, 2, channels]`.
    pub(super) struct GradientSumsArgs => GradientSumsParams {
        x: In<Elem>, dy: In<Elem>, y: In<Elem>, mean: In<Elem>, g: Out<Elem>, partial: Out<Elem>,
        sizes: SizesArgs,
    }
}

kernel_args! {
    /// `dx = a g + (b (x - mean) + c)`, `coefficients[4, channels]` = `mean, a, b, c`.
    pub(super) struct GradientArgs => GradientParams {
        x: In<Elem>, g: In<Elem>, coefficients: In<Elem>, dx: Out<Elem>,
        sizes: SizesArgs,
    }
}

/// What all kernels of this file are made of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Common {
    pub(super) dtype: DType,
    pub(super) layout: Layout,
    pub(super) config: Config,
}

impl Common {
    fn name(self, what: &str) -> String {
        let Config { width, threads, unroll } = self.config;
        let layout = self.layout.name();
        format!("batch_norm_{what}_{layout}_{}_x{width}_{threads}x{unroll}", self.dtype)
    }

    fn spec<const N: usize>(self, what: &str, statistics: [&'static str; N]) -> KernelSpec {
        KernelSpec::new(self.name(what), BlockDim::x(self.config.threads))
            .dtypes(DTypes::all(self.dtype).accumulated(statistics))
    }

    /// Values of a thread's channels from row `row` of a `[rows, channels]` array: one, or with channels last a vector.
    pub(super) fn of_channels<'k, A: Float, S: Readable>(
        self,
        values: Ptr<'k, S, Elem>,
        walk: &Walk<'k>,
        channels: U64<'k>,
        row: u64,
    ) -> Lanes<'k, A> {
        let at = values.at(channels * row + walk.channel);
        match self.layout {
            Layout::ChannelsFirst => {
                let one = at.get::<A>();
                (0..self.config.width).map(|_| one).collect()
            }
            // Channels of a thread start at a multiple of the width, but a row of the array need not.
            Layout::ChannelsLast => (0..self.config.width).map(|i| at.at(u64::from(i)).get::<A>()).collect(),
        }
    }
}

pub(super) fn zeros<'k, A: Float>(k: K<'k>, width: u32) -> Lanes<'k, A> {
    (0..width).map(|_| k.lit::<A>(0.0)).collect()
}

/// The sum of two values a lane over all vectors of a part of a channel. `write` receives the channel and the two sums,
/// in one thread for each channel.
pub(super) fn part_sums<'k, A>(
    k: K<'k>,
    config: Config,
    walk: &Walk<'k>,
    channels: U64<'k>,
    sums: [Lanes<'k, A>; 2],
    write: impl FnOnce(U64<'k>, [Reg<'k, A>; 2]),
) where
    A: Accumulate,
{
    match walk.tile {
        None => {
            let mine = sums.map(|lanes| lanes.sum().unwrap_or_else(|| k.lit::<A>(0.0)));
            let sums = k.group_combine_once(config.threads, mine, |a, b| [a[0] + b[0], a[1] + b[1]]);
            k.if_(k.thread_idx().eq(0), || write(walk.channel, sums));
        }
        Some(tile) => column_sums(k, config, &tile, channels, sums, write),
    }
}

/// [`part_sums`] with channels last: over the rows of the block's threads.
fn column_sums<'k, A>(
    k: K<'k>,
    config: Config,
    tile: &Tile<'k>,
    channels: U64<'k>,
    sums: [Lanes<'k, A>; 2],
    write: impl FnOnce(U64<'k>, [Reg<'k, A>; 2]),
) where
    A: Accumulate,
{
    let Config { width, threads, .. } = config;
    let thread = k.thread_idx();
    let columns = tile.across * width;
    let all = [(); 2].map(|()| k.shared::<A>(threads * width));
    for (slots, sums) in all.iter().zip(sums) {
        slots.at(thread * width).store(sums);
    }
    k.barrier();
    // With vectors there are fewer rows to add up than threads for it: groups of rows first.
    let (grouped, groups) = if width == 1 {
        (all, tile.rows)
    } else {
        // As many as `tuning` lets a tile have.
        let grouped = [(); 2].map(|()| k.shared::<A>(threads * COLUMNS_PER_THREAD));
        let side = columns.min(threads);
        let groups = k.lit(threads) / side;
        let (group, first) = (thread / side, thread % side);
        k.if_(group.lt(groups), || {
            k.for_each(k.range(first, columns, side), |column| {
                let start = [(); 2].map(|()| k.lit::<A>(0.0));
                let total = k.fold(k.range(group, tile.rows, groups), start, |row, total| {
                    let at = row * columns + column;
                    [total[0] + all[0].at(at).get::<A>(), total[1] + all[1].at(at).get::<A>()]
                });
                for (slots, total) in grouped.iter().zip(total) {
                    slots.at(group * columns + column).set(total);
                }
            });
        });
        k.barrier();
        (grouped, groups)
    };
    let left = channels - tile.first_channel;
    let end = left.min(columns.to_u64()).to_u32();
    k.for_each(k.range(thread, end, threads), |column| {
        let start = [(); 2].map(|()| k.lit::<A>(0.0));
        let total = k.fold(k.range(0u32, groups, 1u32), start, |group, total| {
            let at = group * columns + column;
            [total[0] + grouped[0].at(at).get::<A>(), total[1] + grouped[1].at(at).get::<A>()]
        });
        write(tile.first_channel + column.to_u64(), total);
    });
}

/// A value near those of the part, for each of a thread's channels: what is summed are distances from it, so that a
/// large mean cancels nothing.
pub(super) fn shift<'k, A: Float>(x: Ptr<'k, Read, Elem>, walk: &Walk<'k>, width: u32) -> Lanes<'k, A> {
    // The median of three: rarely far from the mean, and exact if all values are the same.
    let [a, b, c] = [1, 2, 3].map(|quarters| {
        let at = x.at(walk.sample(quarters));
        if walk.tile.is_some() {
            return at.load::<A>(width);
        }
        let one = at.get::<A>();
        (0..width).map(|_| one).collect()
    });
    let (low, high) = (a.zip(b.clone(), |a, b| a.min(b)), a.zip(b, |a, b| a.max(b)));
    low.zip3(high, c, |low, high, c| low.max(high.min(c)))
}

/// Statistics of parts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Statistics(pub(super) Common);

impl AccumulateKernel for Statistics {
    type Args = StatisticsArgs;

    fn spec(&self) -> KernelSpec {
        self.0.spec("statistics", ["partial"])
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: StatisticsParams<'k>) {
        k.start_next_grid();
        let Common { layout, config, .. } = self.0;
        let width = config.width;
        let walk = Walk::new(k, layout, config, a.sizes, false);
        let shift = shift::<A>(a.x, &walk, width);
        let zero = || zeros::<A>(k, width);
        let load = |offsets: &[U64<'k>]| -> Vec<Packed<'k, A>> {
            offsets.iter().map(|&at| a.x.at(at).load_packed(width)).collect()
        };
        let (sum, squares) = walk.fold_ahead(config.unroll, (zero(), zero()), load, |sums, vectors| {
            vectors.into_iter().fold(sums, |(sum, squares), x| {
                let distance = x.lanes().zip(shift.clone(), |x, shift| x - shift);
                (
                    sum.zip(distance.clone(), |sum, d| sum + d),
                    squares.zip3(distance.clone(), distance, |squares, d, e| d.mul_add(e, squares)),
                )
            })
        });
        let per_vector = if layout == Layout::ChannelsFirst { width } else { 1 };
        let count = (walk.len * per_vector).convert::<A>();
        let part = walk.part.to_u64() * 3;
        let to = |row: u64, channel: U64<'k>| a.partial.at((part + row) * a.sizes.channels + channel);
        // The shift is the same in all rows of threads.
        let first = walk.tile.map_or_else(|| k.thread_idx().eq(0), |tile| tile.active & tile.row.eq(0));
        k.if_(first, || {
            let lanes = if walk.tile.is_some() { shift.len() } else { 1 };
            for (i, lane) in shift.iter().take(lanes).enumerate() {
                to(0, walk.channel).at(i as u64).set(lane);
            }
        });
        part_sums(k, config, &walk, a.sizes.channels, [sum, squares], |channel, [sum, squares]| {
            let mean = sum / count;
            to(1, channel).set(mean);
            to(2, channel).set((squares - sum * mean).maximum(0.0));
        });
    }
}

/// The output from the statistics of whole channels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Normalize {
    pub(super) common: Common,
    pub(super) residual: bool,
}

impl AccumulateKernel for Normalize {
    type Args = NormalizeArgs;

    fn spec(&self) -> KernelSpec {
        self.common.spec(if self.residual { "normalize_add" } else { "normalize" }, ["coefficients"])
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: NormalizeParams<'k>) {
        k.after_previous_grid();
        let Common { layout, config, .. } = self.common;
        let width = config.width;
        let walk = Walk::new(k, layout, config, a.sizes, true);
        let of = |row| self.common.of_channels::<A, _>(a.coefficients, &walk, a.sizes.channels, row);
        let (mean, scale, shift) = (of(0), of(1), of(2));
        let lower = a.lower.convert::<A>();
        walk.fold(config.unroll, (), |(), offsets| {
            let load = |from: Ptr<'k, _, Elem>| -> Vec<Lanes<'k, A>> {
                offsets.iter().map(|&at| from.at(at).load(width)).collect()
            };
            let x = load(a.x);
            let residual = self.residual.then(|| load(a.residual));
            for (i, (x, &at)) in x.into_iter().zip(offsets).enumerate() {
                let centred = x.zip(mean.clone(), |x, mean| x - mean);
                let mut y = centred.zip3(scale.clone(), shift.clone(), |x, s, t| x.mul_add(s, t));
                if let Some(residual) = &residual {
                    y = y.zip(residual[i].clone(), |y, r| y + r);
                }
                a.y.at(at).store(y.map(|y| y.maximum(lower)));
            }
        });
    }
}

/// Sums of parts for the gradients.
#[derive(Clone, Copy, Debug)]
pub(super) struct GradientSums {
    pub(super) common: Common,
    /// Whether the gradient passes a ReLU first.
    pub(super) relu: bool,
}

impl AccumulateKernel for GradientSums {
    type Args = GradientSumsArgs;

    fn spec(&self) -> KernelSpec {
        self.common.spec(if self.relu { "gradient_sums_relu" } else { "gradient_sums" }, ["mean", "partial"])
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: GradientSumsParams<'k>) {
        k.start_next_grid();
        let Common { dtype, layout, config } = self.common;
        let width = config.width;
        let walk = Walk::new(k, layout, config, a.sizes, false);
        let mean = self.common.of_channels::<A, _>(a.mean, &walk, a.sizes.channels, 0);
        let zero = || zeros::<A>(k, width);
        let load = |offsets: &[U64<'k>]| {
            let load = |from: Ptr<'k, _, Elem>| -> Vec<Packed<'k, A>> {
                offsets.iter().map(|&at| from.at(at).load_packed(width)).collect()
            };
            let (y, places) =
                if self.relu { (load(a.y), offsets.to_vec()) } else { (Vec::new(), Vec::new()) };
            (load(a.x), load(a.dy), y, places)
        };
        let body = |sums, (x, mut g, y, places): (Vec<Packed<'k, A>>, Vec<_>, Vec<_>, Vec<U64<'k>>)| {
            if self.relu {
                let masked = g.into_iter().zip(y).map(|(dy, y): (Packed<'k, A>, Packed<'k, A>)| {
                    let g = dy.lanes().zip(y.lanes(), |dy, y| y.le(0.0).select(0.0, dy));
                    Packed::round(k, dtype, g)
                });
                g = masked.collect();
                g.iter().zip(places).for_each(|(g, at)| a.g.at(at).store_packed(g));
            }
            x.into_iter().zip(g).fold(sums, |(sum, products), (x, g): (_, Packed<'k, A>)| {
                let (x, g): (Lanes<'k, A>, _) = (x.lanes(), g.lanes());
                let centred = x.zip(mean.clone(), |x, mean| x - mean);
                (
                    Lanes::zip(&sum, g.clone(), |sum: Reg<'k, A>, g| sum + g),
                    Lanes::zip3(&products, g, centred, |products: Reg<'k, A>, g, x| g.mul_add(x, products)),
                )
            })
        };
        let (sum, products) = walk.fold_ahead(config.unroll, (zero(), zero()), load, body);
        let part = walk.part.to_u64() * 2;
        part_sums(k, config, &walk, a.sizes.channels, [sum, products], |channel, sums| {
            for (row, sum) in sums.into_iter().enumerate() {
                a.partial.at((part + row as u64) * a.sizes.channels + channel).set(sum);
            }
        });
    }
}

/// `dx` from the sums over whole channels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gradient(pub(super) Common);

impl AccumulateKernel for Gradient {
    type Args = GradientArgs;

    fn spec(&self) -> KernelSpec {
        self.0.spec("gradient", ["coefficients"])
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: GradientParams<'k>) {
        k.after_previous_grid();
        let Common { layout, config, .. } = self.0;
        let width = config.width;
        let walk = Walk::new(k, layout, config, a.sizes, true);
        let of = |row| self.0.of_channels::<A, _>(a.coefficients, &walk, a.sizes.channels, row);
        let (mean, of_g, of_x, shift) = (of(0), of(1), of(2), of(3));
        walk.fold(config.unroll, (), |(), offsets| {
            let load = |from: Ptr<'k, _, Elem>| -> Vec<Lanes<'k, A>> {
                offsets.iter().map(|&at| from.at(at).load(width)).collect()
            };
            let (x, g) = (load(a.x), load(a.g));
            for ((x, g), &at) in x.into_iter().zip(g).zip(offsets) {
                let centred = x.zip(mean.clone(), |x, mean| x - mean);
                let through = centred.zip3(of_x.clone(), shift.clone(), |x, b, c| x.mul_add(b, c));
                a.dx.at(at).store(g.zip3(of_g.clone(), through, |g, a, t| g.mul_add(a, t)));
            }
        });
    }
}
