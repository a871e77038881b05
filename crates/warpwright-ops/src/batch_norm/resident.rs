//! Kernels that read a channel once: it lies in the shared memory of a cluster until its statistics are known.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{ChannelSizesArgs, ChannelWalk, kernel_args};

use super::channel::{
    AffineArgs, ChannelGradients, FusedTraining, GradientsArgs, ResultsArgs, RunningArgs, SavedArgs,
    SettingsArgs, Statistics, Training, Types, add_all, combine_moments, has, present,
};
use super::kernel::{add_distances, behind_relu};
use super::tuning::Config;

kernel_args! {
    /// All of training.
    pub(super) struct ForwardArgs => ForwardParams {
        x: In<Elem>, affine: AffineArgs, residual: In<Elem>, running: RunningArgs, y: Out<Elem>,
        results: ResultsArgs, settings: SettingsArgs, lower: f64, sizes: ChannelSizesArgs,
    }
}

kernel_args! {
    /// All of its backward pass.
    pub(super) struct BackwardArgs => BackwardParams {
        x: In<Elem>, dy: In<Elem>, y: In<Elem>, saved: SavedArgs, dx: Out<Elem>, gradients: GradientsArgs,
        dresidual: Out<Elem>, present: u32, elements: u64, hold: u32, sizes: ChannelSizesArgs,
    }
}

/// The parts that both kernels share.
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

    fn spec(self, what: &str, dtypes: DTypes) -> KernelSpec {
        let Self { dtype, parameters, config: Config { width, threads, unroll }, cluster } = self;
        let name = format!(
            "batch_norm_{what}_nchw_{dtype}_{parameters}_x{width}_{threads}x{unroll}_cluster{cluster}"
        );
        KernelSpec::new(name, BlockDim::x(threads)).dtypes(dtypes).cluster(cluster)
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
pub(super) type Forward = FusedTraining<Common>;

impl AccumulateKernel for Forward {
    type Args = ForwardArgs;

    fn spec(&self) -> KernelSpec {
        self.common.spec(self.step(), self.common.types().forward())
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: ForwardParams<'k>) {
        let Common { dtype, config: Config { width, threads, unroll }, .. } = self.common;
        let gather = k.all_gather();
        let walk = ChannelWalk::planes(k, width, a.sizes, false);
        let held = k.dynamic_shared_elem(dtype);
        let slot = |first: U32<'k>, i: usize| held.at((first + i as u32 * threads) * width);
        let thread = k.thread_idx();
        let zeros = || Lanes::constant(k, 0.0, width);
        let start = (thread, k.lit::<A>(f64::NAN), [zeros(), zeros()]);
        // Sums of distances from the thread's first value: a large mean cancels nothing.
        let (_, shift, sums) = walk.fold(unroll, start, |(first, shift, mut sums), places| {
            let vectors = a.x.load_each::<A>(places, width);
            let values: Vec<Lanes<'k, A>> = vectors.iter().map(Packed::lanes).collect();
            let shift = shift.is_nan().select(values[0][0], shift);
            for (i, (vector, x)) in vectors.iter().zip(&values).enumerate() {
                slot(first, i).store_packed(vector);
                sums = add_distances(sums, x, shift);
            }
            (first + places.len() as u32 * threads, shift, sums)
        });
        let count = (walk.count() * width).convert::<A>();
        let shift = count.gt(0.0).select(shift, 0.0);
        let [distances, squares] = sums.map(|lanes| sum(k, &lanes));
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
        let what = if self.relu { "backward_relu" } else { "backward" };
        self.common.spec(what, self.common.types().backward())
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: BackwardParams<'k>) {
        let Common { dtype, config: Config { width, threads, unroll }, .. } = self.common;
        let gather = k.all_gather();
        let walk = ChannelWalk::planes(k, width, a.sizes, false);
        let held = k.dynamic_shared_elem(dtype);
        let held_g = held.at(a.hold * width);
        let slot =
            |of: Ptr<'k, Shared, Elem>, first: U32<'k>, i: usize| of.at((first + i as u32 * threads) * width);
        let mean = a.saved.mean.at(walk.channel).get::<A>();
        let thread = k.thread_idx();
        let start = (thread, [(); 2].map(|()| Lanes::constant(k, 0.0, width)));
        let (_, sums) = walk.fold(unroll, start, |(first, mut sums), places| {
            let (x, mut g) = (a.x.load_each::<A>(places, width), a.dy.load_each::<A>(places, width));
            if self.relu {
                let y = a.y.load_each(places, width);
                g = g.iter().zip(&y).map(|(dy, y)| behind_relu(k, dtype, dy, y)).collect();
                k.if_(has(a.present, present::DRESIDUAL), || {
                    g.iter().zip(places).for_each(|(g, &at)| a.dresidual.at(at).store_packed(g));
                });
            }
            for (i, (x, g)) in x.iter().zip(&g).enumerate() {
                slot(held, first, i).store_packed(x);
                slot(held_g, first, i).store_packed(g);
                let (x, g, [sum, products]) = (x.lanes(), g.lanes(), sums);
                let sum = sum + &g;
                sums = [sum, products.zip3(g, x, |products, g, x| g.mul_add(x - mean, products))];
            }
            (first + x.len() as u32 * threads, sums)
        });
        let mine = Lanes::from(sums.map(|lanes| sum(k, &lanes)).to_vec());
        let total = gather.combine(mine, add_all);
        let gradients = ChannelGradients::new(a.saved, a.present, walk.channel, &total);
        k.if_(self.common.leads(k), || gradients.store(a.gradients, a.present, walk.channel));
        let of_g = gradients.of_dy();
        let [of_x, shift] = gradients.through_statistics(of_g, a.elements.convert::<A>());
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
