//! Kernels for channels last that read as much of a tensor once as fits the shared memory of the whole device: one
//! cooperative grid, whose blocks meet twice.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{ChannelSizes, ChannelWalk, kernel_args};

use super::Layout;
use super::channel::{
    AffineArgs, ChannelGradients, FusedTraining, GradientsArgs, ResultsArgs, RunningArgs, SavedArgs,
    SettingsArgs, Training, Types, add_all, combine_moments, set_rows,
};
use super::kernel::{self, ChannelRows, add_distances, shift};
use super::tuning::Config;

kernel_args! {
    /// The sizes of a walk over rows of which every block takes a share.
    pub(super) struct RowsArgs => Rows { extent: u64, row: u64, channels: u64, split: u32 }
}

kernel_args! {
    /// All of training.
    pub(super) struct ForwardArgs => ForwardParams {
        x: In<Elem>, affine: AffineArgs, residual: In<Elem>, running: RunningArgs, y: Out<Elem>,
        results: ResultsArgs, partial: InOut<Elem>, coefficients: InOut<Elem>,
        settings: SettingsArgs, lower: f64, hold: u32, rows: RowsArgs,
    }
}

kernel_args! {
    /// All of its backward pass.
    pub(super) struct BackwardArgs => BackwardParams {
        x: In<Elem>, dy: In<Elem>, saved: SavedArgs, dx: Out<Elem>, gradients: GradientsArgs,
        partial: InOut<Elem>, coefficients: InOut<Elem>, present: u32, elements: u64, hold: u32, rows: RowsArgs,
    }
}

/// The parts that both kernels share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Common {
    pub(super) dtype: DType,
    /// Type of weight, bias and running statistics.
    pub(super) parameters: DType,
    pub(super) config: Config,
}

impl Common {
    const fn types(self) -> Types {
        Types { dtype: self.dtype, parameters: self.parameters }
    }

    fn spec(self, what: &str, dtypes: DTypes) -> KernelSpec {
        let Self { dtype, parameters, config: Config { width, threads, unroll } } = self;
        let name = format!("batch_norm_{what}_nhwc_{dtype}_{parameters}_x{width}_{threads}x{unroll}_grid");
        KernelSpec::new(name, BlockDim::x(threads)).dtypes(dtypes.accumulated(["partial", "coefficients"]))
    }

    /// The walk of a thread over its block's share of the rows.
    fn walk<'k>(self, k: K<'k>, rows: Rows<'k>) -> ChannelWalk<'k> {
        let Rows { extent, row, channels, split } = rows;
        let blocks = k.grid_dim_x().to_u64();
        let part = (extent + (blocks - 1)) / blocks;
        let (reciprocal, shift) = (k.lit(0u64), k.lit(0u32));
        let sizes = ChannelSizes { extent, part, row, channels, split, reciprocal, shift };
        ChannelWalk::rows(k, self.config.width, sizes, false)
    }

    /// Three rows of the coefficients of the thread's channels.
    fn coefficients<'k, A: Float>(
        self,
        from: Ptr<'k, ReadWrite, Elem>,
        walk: &ChannelWalk<'k>,
        channels: U64<'k>,
    ) -> [Lanes<'k, A>; 3] {
        let Self { dtype, config, .. } = self;
        let common = kernel::Common { dtype, layout: Layout::ChannelsLast, config };
        [0, 1, 2].map(|row| common.of_channels::<A, _>(from, walk, channels, row))
    }
}

/// Training.
pub(super) type Forward = FusedTraining<Common>;

impl AccumulateKernel for Forward {
    type Args = ForwardArgs;

    fn spec(&self) -> KernelSpec {
        self.common.spec(self.step(), self.common.types().forward())
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: ForwardParams<'k>) {
        let Common { dtype, config: Config { width, threads, unroll }, .. } = self.common;
        let walk = self.common.walk(k, a.rows);
        let channels = a.rows.channels;
        let held = k.dynamic_shared_elem(dtype);
        let slot = |first: U32<'k>, i: usize| held.at((first + i as u32 * threads) * width);
        let thread = k.thread_idx();
        let kept = walk.count().min(a.hold);
        let (near, far) =
            (walk.slice(k.lit(0u32), kept, false), walk.slice(kept, walk.count() - kept, false));

        let shift = shift::<A>(a.x, &walk, width);
        let load = |at: &[U64<'k>]| a.x.load_each::<A>(at, width);
        let add = |sums, x: &Packed<'k, A>| add_distances(sums, &x.lanes(), &shift);
        let start = (thread, [(); 2].map(|()| Lanes::constant(k, 0.0, width)));
        let (_, sums) = near.fold_ahead(unroll, start, load, |(first, sums), vectors| {
            vectors.iter().enumerate().for_each(|(i, vector)| slot(first, i).store_packed(vector));
            (first + vectors.len() as u32 * threads, vectors.iter().fold(sums, add))
        });
        let sums = far.fold_ahead(unroll, sums, load, |sums, vectors| vectors.iter().fold(sums, add));
        let first = k.block_idx_x().to_u64() * 3;
        let count = walk.len.convert::<A>().maximum(1.0);
        ChannelRows { of: a.partial, first, channels }.write_moments(&walk, &shift, sums, count);
        k.grid_barrier();
        let part = |channel: U64<'k>, block: U64<'k>, count: Reg<'k, A>| {
            let row = |i: u64| a.partial.at((block * 3 + i) * channels + channel).get::<A>();
            let squares = count.gt(0.0).select(row(2), 0.0);
            Lanes::from(vec![count, row(0), row(1), squares])
        };
        let ForwardParams { affine, running, results, settings, .. } = a;
        let training = Training { affine, running, results, settings };
        walk.combine_parts_of_grid(part, combine_moments, |channel, total| {
            training.finish(channel, &total, a.coefficients, channels);
        });
        k.grid_barrier();

        let [mean, scale, shift] = self.common.coefficients::<A>(a.coefficients, &walk, channels);
        let lower = a.lower.convert::<A>();
        let write = |at: U64<'k>, x: &Packed<'k, A>, added: Option<Lanes<'k, A>>| {
            let y = (x.lanes() - &mean).mul_add(&scale, &shift);
            let y = added.map_or_else(|| y.clone(), |added| &y + added);
            a.y.at(at).store(y.map(|y| y.maximum(lower)));
        };
        let added = |offsets: &[U64<'k>]| -> Vec<Option<Lanes<'k, A>>> {
            offsets.iter().map(|&at| self.residual.then(|| a.residual.at(at).load(width))).collect()
        };
        // What was read last is still in the cache.
        walk.slice(kept, walk.count() - kept, true).fold(unroll, (), |(), places| {
            let vectors = load(places);
            for ((x, added), &at) in vectors.iter().zip(added(places)).zip(places) {
                write(at, x, added);
            }
        });
        let _ = near.fold(unroll, thread, |first, places| {
            for (i, (added, &at)) in added(places).into_iter().zip(places).enumerate() {
                write(at, &slot(first, i).load_packed(width), added);
            }
            first + places.len() as u32 * threads
        });
    }
}

/// The backward pass of training, without a ReLU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Backward(pub(super) Common);

impl AccumulateKernel for Backward {
    type Args = BackwardArgs;

    fn spec(&self) -> KernelSpec {
        self.0.spec("backward", self.0.types().backward())
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: BackwardParams<'k>) {
        let Common { dtype, config: Config { width, threads, unroll }, .. } = self.0;
        let walk = self.0.walk(k, a.rows);
        let channels = a.rows.channels;
        let held = k.dynamic_shared_elem(dtype);
        let held_g = held.at(a.hold * (threads * width));
        let slot =
            |of: Ptr<'k, Shared, Elem>, first: U32<'k>, i: usize| of.at((first + i as u32 * threads) * width);
        let thread = k.thread_idx();
        let kept = walk.count().min(a.hold);
        let (near, far) =
            (walk.slice(k.lit(0u32), kept, false), walk.slice(kept, walk.count() - kept, false));

        let mean: Lanes<'k, A> =
            (0..width).map(|i| a.saved.mean.at(walk.channel).at(u64::from(i)).get::<A>()).collect();
        let load = |at: &[U64<'k>]| (a.x.load_each::<A>(at, width), a.dy.load_each::<A>(at, width));
        let add = |[sum, products]: [Lanes<'k, A>; 2], (x, g): (&Packed<'k, A>, &Packed<'k, A>)| {
            let centered = x.lanes() - &mean;
            [sum + g.lanes(), g.lanes().mul_add(centered, products)]
        };
        let start = (thread, [(); 2].map(|()| Lanes::constant(k, 0.0, width)));
        let (_, sums) = near.fold_ahead(unroll, start, load, |(first, sums), (x, g)| {
            for (i, (x, g)) in x.iter().zip(&g).enumerate() {
                slot(held, first, i).store_packed(x);
                slot(held_g, first, i).store_packed(g);
            }
            (first + x.len() as u32 * threads, x.iter().zip(&g).fold(sums, add))
        });
        let sums = far.fold_ahead(unroll, sums, load, |sums, (x, g)| x.iter().zip(&g).fold(sums, add));
        let first = k.block_idx_x().to_u64() * 2;
        ChannelRows { of: a.partial, first, channels }.write_sums(&walk, sums);
        k.grid_barrier();
        let part = |channel: U64<'k>, block: U64<'k>, count: Reg<'k, A>| {
            let row = |i: u64| a.partial.at((block * 2 + i) * channels + channel).get::<A>();
            let there = count.gt(0.0);
            Lanes::from(vec![there.select(row(0), 0.0), there.select(row(1), 0.0)])
        };
        walk.combine_parts_of_grid(part, add_all, |channel, total| {
            let gradients = ChannelGradients::new(a.saved, a.present, channel, &total);
            gradients.store(a.gradients, a.present, channel);
            let of_g = gradients.of_dy();
            let [of_x, shift] = gradients.through_statistics(of_g, a.elements.convert::<A>());
            set_rows(a.coefficients, channels, channel, [of_g, of_x, shift]);
        });
        k.grid_barrier();

        let [of_g, of_x, shift] = self.0.coefficients::<A>(a.coefficients, &walk, channels);
        let write = |at: U64<'k>, x: Lanes<'k, A>, g: Lanes<'k, A>| {
            let through = (x - &mean).mul_add(&of_x, &shift);
            a.dx.at(at).store(g.mul_add(&of_g, through));
        };
        // What was read last is still in the cache.
        walk.slice(kept, walk.count() - kept, true).fold(unroll, (), |(), places| {
            let (x, g) = load(places);
            for ((x, g), &at) in x.iter().zip(&g).zip(places) {
                write(at, x.lanes(), g.lanes());
            }
        });
        let _ = near.fold(unroll, thread, |first, places| {
            for (i, &at) in places.iter().enumerate() {
                let x = slot(held, first, i).load_packed(width).lanes();
                write(at, x, slot(held_g, first, i).load_packed(width).lanes());
            }
            first + places.len() as u32 * threads
        });
    }
}
