//! Kernels that read a channel once: it lies in the shared memory of a cluster until its statistics are known.

use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;

use super::Layout;
use super::channel::{
    AffineArgs, ChannelGradients, GradientsArgs, ResultsArgs, RunningArgs, SavedArgs, SettingsArgs,
    Statistics, Training, Types, add_all, combine_moments, has, present,
};
use super::kernel::zeros;
use super::tuning::Config;
use super::walk::{SizesArgs, Walk};

kernel_args! {
    /// All of training.
    pub(super) struct ForwardArgs => ForwardParams {
        x: In<Elem>, affine: AffineArgs, residual: In<Elem>, running: RunningArgs, y: Out<Elem>,
        results: ResultsArgs, settings: SettingsArgs, lower: f64, sizes: SizesArgs,
    }
}

kernel_args! {
    /// All of its backward pass.
    pub(super) struct BackwardArgs => BackwardParams {
        x: In<Elem>, dy: In<Elem>, y: In<Elem>, saved: SavedArgs, dx: Out<Elem>, gradients: GradientsArgs,
        dresidual: Out<Elem>, present: u32, elements: u64, hold: u32, sizes: SizesArgs,
    }
}

/// What both kernels are made of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Common {
    pub(super) dtype: DType,
    /// Type of weight, bias and running statistics.
    pub(super) parameters: DType,
    pub(super) config: Config,
    /// Blocks that share a channel.
    pub(super) cluster: u32,
}

impl Common {
    const fn types(self) -> Types {
        Types { dtype: self.dtype, parameters: self.parameters }
    }

    fn name(self, what: &str) -> String {
        let Self { dtype, parameters, config: Config { width, threads, unroll }, cluster } = self;
        format!("batch_norm_{what}_nchw_{dtype}_{parameters}_x{width}_{threads}x{unroll}_cluster{cluster}")
    }

    /// Whether this thread writes what there is one of for a channel.
    fn leads(self, k: K<'_>) -> Pred<'_> {
        let thread = k.thread_idx();
        // The number of the thread in the cluster.
        (k.cluster_rank() * self.config.threads + thread).eq(0)
    }
}

fn sum<'k, A: Float>(k: K<'k>, lanes: &Lanes<'k, A>) -> Reg<'k, A> {
    lanes.sum().unwrap_or_else(|| k.lit(0.0))
}

/// Training.
#[derive(Clone, Copy, Debug)]
pub(super) struct Forward {
    pub(super) common: Common,
    pub(super) residual: bool,
}

impl AccumulateKernel for Forward {
    type Args = ForwardArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(
            self.common.name(if self.residual { "add" } else { "training" }),
            BlockDim::x(self.common.config.threads),
        )
        .dtypes(self.common.types().forward())
        .cluster(self.common.cluster)
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: ForwardParams<'k>) {
        let Common { dtype, config, .. } = self.common;
        let Config { width, threads, unroll } = config;
        let gather = k.all_gather();
        let walk = Walk::new(k, Layout::ChannelsFirst, config, a.sizes, false);
        let held = k.dynamic_shared_elem(dtype);
        let slot = |first: U32<'k>, i: usize| held.at((first + i as u32 * threads) * width);
        let thread = k.thread_idx();
        let start = (thread, k.lit::<A>(f64::NAN), zeros::<A>(k, width), zeros::<A>(k, width));
        // Sums of distances from the thread's first value: a large mean cancels nothing.
        let (_, shift, distances, squares) =
            walk.fold(unroll, start, |(first, shift, mut distances, mut squares), offsets| {
                let vectors: Vec<_> = offsets.iter().map(|&at| a.x.at(at).load_packed::<A>(width)).collect();
                let values: Vec<Lanes<'k, A>> = vectors.iter().map(Packed::lanes).collect();
                let shift = shift.is_nan().select(values[0][0], shift);
                for (i, (vector, x)) in vectors.iter().zip(values).enumerate() {
                    slot(first, i).store_packed(vector);
                    let d = x.map(|x| x - shift);
                    distances = distances.zip(d.clone(), |sum, d| sum + d);
                    squares = squares.zip3(d.clone(), d, |squares, d, e| d.mul_add(e, squares));
                }
                (first + offsets.len() as u32 * threads, shift, distances, squares)
            });
        let count = (walk.count() * width).convert::<A>();
        let shift = count.gt(0.0).select(shift, 0.0);
        let (distances, squares) = (sum(k, &distances), sum(k, &squares));
        let mean = distances / count.maximum(1.0);
        let squares = (squares - distances * mean).maximum(0.0);
        let moments = Lanes::from(vec![count, shift, mean, squares]);
        let total = gather.combine(moments, combine_moments);

        let ForwardParams { affine, running, results, settings, .. } = a;
        let training = Training { affine, running, results, settings };
        let s = Statistics::new(&total, settings.eps);
        let [mean, scale, shift] = s.coefficients(affine.of(walk.channel, settings.present));
        k.if_(self.common.leads(k), || {
            training.save(walk.channel, &s);
            training.update_running(walk.channel, &s);
        });

        let lower = a.lower.convert::<A>();
        let _ = walk.fold(unroll, thread, |first, offsets| {
            let added: Vec<Option<Lanes<'k, A>>> =
                offsets.iter().map(|&at| self.residual.then(|| a.residual.at(at).load(width))).collect();
            for (i, (added, &at)) in added.into_iter().zip(offsets).enumerate() {
                let x = slot(first, i).load_packed::<A>(width).lanes();
                let mut y = x.map(|x| (x - mean).mul_add(scale, shift));
                if let Some(added) = added {
                    y = y.zip(added, |y, r| y + r);
                }
                a.y.at(at).store(y.map(|y| y.maximum(lower)));
            }
            first + offsets.len() as u32 * threads
        });
    }
}

/// The backward pass of training.
#[derive(Clone, Copy, Debug)]
pub(super) struct Backward {
    pub(super) common: Common,
    /// Whether the gradient passes a ReLU first.
    pub(super) relu: bool,
}

impl AccumulateKernel for Backward {
    type Args = BackwardArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(
            self.common.name(if self.relu { "backward_relu" } else { "backward" }),
            BlockDim::x(self.common.config.threads),
        )
        .dtypes(self.common.types().backward())
        .cluster(self.common.cluster)
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: BackwardParams<'k>) {
        let Common { dtype, config, .. } = self.common;
        let Config { width, threads, unroll } = config;
        let gather = k.all_gather();
        let walk = Walk::new(k, Layout::ChannelsFirst, config, a.sizes, false);
        let held = k.dynamic_shared_elem(dtype);
        let held_g = held.at(a.hold * width);
        let slot =
            |of: Ptr<'k, Shared, Elem>, first: U32<'k>, i: usize| of.at((first + i as u32 * threads) * width);
        let mean = a.saved.mean.at(walk.channel).get::<A>();
        let thread = k.thread_idx();
        let start = (thread, zeros::<A>(k, width), zeros::<A>(k, width));
        let (_, sums, products) = walk.fold(unroll, start, |(first, mut sums, mut products), offsets| {
            let load = |from: Ptr<'k, _, Elem>| -> Vec<Packed<'k, A>> {
                offsets.iter().map(|&at| from.at(at).load_packed(width)).collect()
            };
            let (x, mut g) = (load(a.x), load(a.dy));
            if self.relu {
                let masked = g.into_iter().zip(load(a.y)).map(|(dy, y)| {
                    let g = dy.lanes().zip(y.lanes(), |dy, y| y.le(0.0).select(0.0, dy));
                    Packed::round(k, dtype, g)
                });
                g = masked.collect();
                k.if_(has(a.present, present::DRESIDUAL), || {
                    g.iter().zip(offsets).for_each(|(g, &at)| a.dresidual.at(at).store_packed(g));
                });
            }
            for (i, (x, g)) in x.iter().zip(&g).enumerate() {
                slot(held, first, i).store_packed(x);
                slot(held_g, first, i).store_packed(g);
                let (x, g) = (x.lanes(), g.lanes());
                sums = sums.zip(g.clone(), |sum, g| sum + g);
                products = products.zip3(g, x, |products, g, x| g.mul_add(x - mean, products));
            }
            (first + offsets.len() as u32 * threads, sums, products)
        });
        let mine = Lanes::from(vec![sum(k, &sums), sum(k, &products)]);
        let total = gather.combine(mine, add_all);
        let gradients = ChannelGradients::new(a.saved, a.present, walk.channel, &total);
        k.if_(self.common.leads(k), || gradients.store(a.gradients, a.present, walk.channel));
        let of_g = gradients.of_dy();
        let [of_x, shift] = gradients.through_statistics(of_g, a.elements);
        let _ = walk.fold(unroll, thread, |first, offsets| {
            for (i, &at) in offsets.iter().enumerate() {
                let x = slot(held, first, i).load_packed::<A>(width).lanes();
                let g = slot(held_g, first, i).load_packed::<A>(width).lanes();
                a.dx.at(at).store(g.zip(x, |g, x| g.mul_add(of_g, (x - mean).mul_add(of_x, shift))));
            }
            first + offsets.len() as u32 * threads
        });
    }
}
