//! The kernels that walk over tensors: statistics of a part of each channel, and what follows from the whole channel's.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{
    ChannelSizes, ChannelSizesArgs, ChannelWalk, LaneSource, Readable, Writable, kernel_args,
};

use super::Layout;
use super::tuning::Config;

kernel_args! {
    /// Shift, mean and sum of squares of the parts of each channel: `partial[part, 3, channels]`.
    pub(super) struct StatisticsArgs => StatisticsParams {
        x: In<Elem>, partial: Out<Elem>, sizes: ChannelSizesArgs,
    }
}

kernel_args! {
    /// `y = max((x - mean) scale + shift + residual, lower)`, `coefficients[3, channels]`.
    pub(super) struct NormalizeArgs => NormalizeParams {
        x: In<Elem>, residual: In<Elem>, coefficients: In<Elem>, y: Out<Elem>, lower: f64,
        sizes: ChannelSizesArgs,
    }
}

kernel_args! {
    /// `g = dy` where `y > 0`; sums of `g` and of `g (x - mean)` over the parts of each channel: `partial[part, 2, channels]`.
    pub(super) struct GradientSumsArgs => GradientSumsParams {
        x: In<Elem>, dy: In<Elem>, y: In<Elem>, mean: In<Elem>, g: Out<Elem>, partial: Out<Elem>,
        sizes: ChannelSizesArgs,
    }
}

kernel_args! {
    /// `dx = a g + (b (x - mean) + c)`, `coefficients[4, channels]` = `mean, a, b, c`.
    pub(super) struct GradientArgs => GradientParams {
        x: In<Elem>, g: In<Elem>, coefficients: In<Elem>, dx: Out<Elem>,
        sizes: ChannelSizesArgs,
    }
}

/// The parts that all kernels of this file share.
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

    /// How a thread goes over its part of a tensor. `reverse` goes backwards, and the blocks with channels last too.
    fn walk<'k>(self, k: K<'k>, sizes: ChannelSizes<'k>, reverse: bool) -> ChannelWalk<'k> {
        match self.layout {
            Layout::ChannelsFirst => ChannelWalk::planes(k, self.config.width, sizes, reverse),
            Layout::ChannelsLast => ChannelWalk::rows(k, self.config.width, sizes, reverse),
        }
    }

    /// Values of a thread's channels from row `row` of a `[rows, channels]` array: one, or with channels last a vector.
    pub(super) fn of_channels<'k, A: Float, S: Readable>(
        self,
        values: Ptr<'k, S, Elem>,
        walk: &ChannelWalk<'k>,
        channels: U64<'k>,
        row: u64,
    ) -> Lanes<'k, A> {
        let at = values.at(channels * row + walk.channel);
        match self.layout {
            Layout::ChannelsFirst => Lanes::splat(at.get::<A>(), self.config.width),
            // Channels of a thread start at a multiple of the width, but a row of the array need not.
            Layout::ChannelsLast => (0..self.config.width).map(|i| at.at(u64::from(i)).get::<A>()).collect(),
        }
    }
}

/// Rows that have one value of each channel, of an array of several of them.
#[derive(Clone, Copy)]
pub(super) struct ChannelRows<'k, S> {
    pub(super) of: Ptr<'k, S, Elem>,
    /// The number of the first row.
    pub(super) first: U64<'k>,
    pub(super) channels: U64<'k>,
}

impl<'k, S: Writable> ChannelRows<'k, S> {
    fn at(&self, row: u64, channel: U64<'k>) -> Ptr<'k, S, Elem> {
        self.of.at((self.first + row) * self.channels + channel)
    }

    /// Shift, mean and sum of squares of a part of each channel, from the sums of `count` distances from the shift and of
    /// their squares.
    pub(super) fn write_moments<A: Accumulate>(
        self,
        walk: &ChannelWalk<'k>,
        shift: &Lanes<'k, A>,
        sums: [Lanes<'k, A>; 2],
        count: Reg<'k, A>,
    ) {
        let k = count.k();
        // The shift is the same in all rows of threads.
        let first = walk.tile.map_or_else(|| k.thread_idx().eq(0), |tile| tile.active & tile.row.eq(0));
        k.if_(first, || {
            let lanes = if walk.tile.is_some() { shift.len() } else { 1 };
            for (i, lane) in shift.iter().take(lanes).enumerate() {
                self.at(0, walk.channel).at(i as u64).set(lane);
            }
        });
        walk.sums(sums, |channel, [sum, squares]| {
            let mean = sum / count;
            self.at(1, channel).set(mean);
            self.at(2, channel).set((squares - sum * mean).maximum(0.0));
        });
    }

    /// The sums of a part of each channel.
    pub(super) fn write_sums<A: Accumulate>(self, walk: &ChannelWalk<'k>, sums: [Lanes<'k, A>; 2]) {
        walk.sums(sums, |channel, sums| {
            for (row, sum) in sums.into_iter().enumerate() {
                self.at(row as u64, channel).set(sum);
            }
        });
    }
}

/// The sums of distances from `shift` and of their squares with those of a vector more.
pub(super) fn add_distances<'k, A: Float>(
    [sum, squares]: [Lanes<'k, A>; 2],
    x: &Lanes<'k, A>,
    shift: impl LaneSource<'k, A>,
) -> [Lanes<'k, A>; 2] {
    let d = x - shift;
    [sum + &d, d.mul_add(&d, squares)]
}

/// `g = dy` where `y > 0`, rounded as it is stored.
pub(super) fn behind_relu<'k, A: Float>(
    k: K<'k>,
    dtype: DType,
    dy: &Packed<'k, A>,
    y: &Packed<'k, A>,
) -> Packed<'k, A> {
    Packed::round(k, dtype, dy.lanes().zip(y.lanes(), |dy, y| y.le(0.0).select(0.0, dy)))
}

/// A value near those of the part, for each of a thread's channels: what is summed are distances from it, so that a
/// large mean cancels nothing.
pub(super) fn shift<'k, A: Float>(
    x: Ptr<'k, Read, Elem>,
    walk: &ChannelWalk<'k>,
    width: u32,
) -> Lanes<'k, A> {
    // The median of three: rarely far from the mean, and exact if all values are the same.
    let [a, b, c] = [1, 2, 3].map(|quarters| {
        let at = x.at(walk.sample(quarters));
        if walk.tile.is_some() { at.load::<A>(width) } else { Lanes::splat(at.get(), width) }
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
        let Common { layout, config: Config { width, unroll, .. }, .. } = self.0;
        let walk = self.0.walk(k, a.sizes, false);
        let shift = shift::<A>(a.x, &walk, width);
        let zeros = [(); 2].map(|()| Lanes::constant(k, 0.0, width));
        let load = |at: &[U64<'k>]| a.x.load_each::<A>(at, width);
        let sums = walk.fold_ahead(unroll, zeros, load, |sums, vectors| {
            vectors.into_iter().fold(sums, |sums, x| add_distances(sums, &x.lanes(), &shift))
        });
        let per_vector = if layout == Layout::ChannelsFirst { width } else { 1 };
        let count = (walk.len * per_vector).convert::<A>();
        let first = walk.part.to_u64() * 3;
        let rows = ChannelRows { of: a.partial, first, channels: a.sizes.channels };
        rows.write_moments(&walk, &shift, sums, count);
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
        let Config { width, unroll, .. } = self.common.config;
        let walk = self.common.walk(k, a.sizes, true);
        let of = |row| self.common.of_channels::<A, _>(a.coefficients, &walk, a.sizes.channels, row);
        let [mean, scale, shift] = [0, 1, 2].map(of);
        let lower = a.lower.convert::<A>();
        walk.fold(unroll, (), |(), places| {
            let load = |from: Ptr<'k, _, Elem>| -> Vec<Lanes<'k, A>> {
                places.iter().map(|&at| from.at(at).load(width)).collect()
            };
            let x = load(a.x);
            let residual = self.residual.then(|| load(a.residual));
            for (i, (x, &at)) in x.iter().zip(places).enumerate() {
                let y = (x - &mean).mul_add(&scale, &shift);
                let y = residual.as_ref().map_or_else(|| y.clone(), |residual| &y + &residual[i]);
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
        let Common { dtype, config: Config { width, unroll, .. }, .. } = self.common;
        let walk = self.common.walk(k, a.sizes, false);
        let mean = self.common.of_channels::<A, _>(a.mean, &walk, a.sizes.channels, 0);
        let load = |at: &[U64<'k>]| {
            let (y, places) =
                if self.relu { (a.y.load_each(at, width), at.to_vec()) } else { (Vec::new(), Vec::new()) };
            (a.x.load_each(at, width), a.dy.load_each(at, width), y, places)
        };
        type Loaded<'k, A> = (Vec<Packed<'k, A>>, Vec<Packed<'k, A>>, Vec<Packed<'k, A>>, Vec<U64<'k>>);
        let body = |sums, (x, mut g, y, places): Loaded<'k, A>| {
            if self.relu {
                g = g.iter().zip(&y).map(|(dy, y)| behind_relu(k, dtype, dy, y)).collect();
                g.iter().zip(places).for_each(|(g, at)| a.g.at(at).store_packed(g));
            }
            x.iter().zip(&g).fold(sums, |[sum, products]: [Lanes<'k, A>; 2], (x, g)| {
                let (x, g) = (x.lanes(), g.lanes());
                let centered = x - &mean;
                [sum + &g, g.mul_add(centered, products)]
            })
        };
        let zeros = [(); 2].map(|()| Lanes::constant(k, 0.0, width));
        let sums = walk.fold_ahead(unroll, zeros, load, body);
        let first = walk.part.to_u64() * 2;
        ChannelRows { of: a.partial, first, channels: a.sizes.channels }.write_sums(&walk, sums);
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
        let Config { width, unroll, .. } = self.0.config;
        let walk = self.0.walk(k, a.sizes, true);
        let of = |row| self.0.of_channels::<A, _>(a.coefficients, &walk, a.sizes.channels, row);
        let [mean, of_g, of_x, shift] = [0, 1, 2, 3].map(of);
        walk.fold(unroll, (), |(), places| {
            let load = |from: Ptr<'k, _, Elem>| -> Vec<Lanes<'k, A>> {
                places.iter().map(|&at| from.at(at).load(width)).collect()
            };
            let (x, g) = (load(a.x), load(a.g));
            for ((x, g), &at) in x.iter().zip(&g).zip(places) {
                let through = (x - &mean).mul_add(&of_x, &shift);
                a.dx.at(at).store(g.mul_add(&of_g, through));
            }
        });
    }
}
