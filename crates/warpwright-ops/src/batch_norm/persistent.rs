//! Kernels for channels last that read as much of a tensor once as fits the shared memory of the whole device: one
//! cooperative grid, whose blocks meet twice.

use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;

use super::Layout;
use super::channel::{
    AffineArgs, ChannelGradients, GradientsArgs, ResultsArgs, RunningArgs, SavedArgs, SettingsArgs, Training,
    Types, add_all, combine_moments, set_rows,
};
use super::kernel::{self, part_sums, shift, zeros};
use super::tuning::Config;
use super::walk::{Sizes, Walk};

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

/// What both kernels are made of.
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

    fn name(self, what: &str) -> String {
        let Self { dtype, parameters, config: Config { width, threads, unroll } } = self;
        format!("batch_norm_{what}_nhwc_{dtype}_{parameters}_x{width}_{threads}x{unroll}_grid")
    }

    /// The walk of a thread over its block's share of the rows.
    fn walk<'k>(self, k: K<'k>, rows: Rows<'k>) -> Walk<'k> {
        let Rows { extent, row, channels, split } = rows;
        let blocks = k.grid_dim_x().to_u64();
        let part = (extent + (blocks - 1)) / blocks;
        let (reciprocal, shift) = (k.lit(0u64), k.lit(0u32));
        let sizes = Sizes { extent, part, row, channels, split, reciprocal, shift };
        Walk::new(k, Layout::ChannelsLast, self.config, sizes, false)
    }

    fn coefficients<'k, A: Float>(
        self,
        from: Ptr<'k, ReadWrite, Elem>,
        walk: &Walk<'k>,
        channels: U64<'k>,
        row: u64,
    ) -> Lanes<'k, A> {
        let Self { dtype, config, .. } = self;
        let common = kernel::Common { dtype, layout: Layout::ChannelsLast, config };
        common.of_channels::<A, _>(from, walk, channels, row)
    }
}

/// Parts that a lane reads at once.
const TOGETHER: u32 = 5;

/// Combines the parts that the blocks have left of each channel, a channel to a warp of the grid. `load` gives the part
/// of a block with the number of values that it stands for, 0 if there is no such block.
fn combine_parts<'k, A: Float>(
    k: K<'k>,
    walk: &Walk<'k>,
    channels: U64<'k>,
    load: impl Fn(U64<'k>, U64<'k>, Reg<'k, A>) -> Lanes<'k, A>,
    combine: impl Fn(Lanes<'k, A>, Lanes<'k, A>) -> Lanes<'k, A>,
    finish: impl FnOnce(U64<'k>, Lanes<'k, A>),
) {
    let warps = k.block_threads() / 32;
    let blocks = k.grid_dim_x();
    let first = (k.block_idx_x() * warps + k.warp_idx()).to_u64();
    let lane = k.lane_idx();
    k.for_each(k.range(first, channels, (blocks * warps).to_u64()), |channel| {
        let part = |number: U32<'k>| {
            let count = walk.rows_of(number).convert::<A>();
            load(channel, number.min(blocks - 1).to_u64(), count)
        };
        let parts: Vec<_> = (0..TOGETHER).map(|i| part(lane + 32 * i)).collect();
        let total = parts.into_iter().reduce(&combine);
        let Some(total) = total else { return };
        let rest = k.range(lane + 32 * TOGETHER, blocks, 32u32);
        let total = k.fold(rest, total, |number, total| combine(total, part(number)));
        let total = k.warp_combine(32, total, &combine);
        k.if_(lane.eq(0), || finish(channel, total));
    });
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
        .dtypes(self.common.types().forward().accumulated(["partial", "coefficients"]))
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: ForwardParams<'k>) {
        let Common { dtype, config, .. } = self.common;
        let Config { width, threads, unroll } = config;
        let walk = self.common.walk(k, a.rows);
        let channels = a.rows.channels;
        let held = k.dynamic_shared_elem(dtype);
        let slot = |first: U32<'k>, i: usize| held.at((first + i as u32 * threads) * width);
        let thread = k.thread_idx();
        let kept = walk.count().min(a.hold);
        let (near, far) = (walk.part(k.lit(0u32), kept, false), walk.part(kept, walk.count() - kept, false));

        let shift = shift::<A>(a.x, &walk, width);
        let load = |offsets: &[U64<'k>]| -> Vec<Packed<'k, A>> {
            offsets.iter().map(|&at| a.x.at(at).load_packed(width)).collect()
        };
        let add = |(sum, squares): (Lanes<'k, A>, Lanes<'k, A>), x: &Packed<'k, A>| {
            let d = x.lanes().zip(shift.clone(), |x, shift| x - shift);
            (
                sum.zip(d.clone(), |sum, d| sum + d),
                squares.zip3(d.clone(), d, |squares, d, e| d.mul_add(e, squares)),
            )
        };
        let start = (thread, (zeros::<A>(k, width), zeros::<A>(k, width)));
        let (_, sums) = near.fold_ahead(unroll, start, load, |(first, sums), vectors| {
            vectors.iter().enumerate().for_each(|(i, vector)| slot(first, i).store_packed(vector));
            (first + vectors.len() as u32 * threads, vectors.iter().fold(sums, add))
        });
        let (sum, squares) =
            far.fold_ahead(unroll, sums, load, |sums, vectors| vectors.iter().fold(sums, add));

        let block = k.block_idx_x().to_u64() * 3;
        let to = |row: u64, channel: U64<'k>| a.partial.at((block + row) * channels + channel);
        let count = walk.len.convert::<A>().maximum(1.0);
        let Some(tile) = walk.tile else { return };
        k.if_(tile.active & tile.row.eq(0), || {
            for (i, lane) in shift.iter().enumerate() {
                to(0, walk.channel).at(i as u64).set(lane);
            }
        });
        part_sums(k, config, &walk, channels, [sum, squares], |channel, [sum, squares]| {
            let mean = sum / count;
            to(1, channel).set(mean);
            to(2, channel).set((squares - sum * mean).maximum(0.0));
        });
        k.grid_barrier();
        let part = |channel: U64<'k>, block: U64<'k>, count: Reg<'k, A>| {
            let row = |i: u64| a.partial.at((block * 3 + i) * channels + channel).get::<A>();
            let squares = count.gt(0.0).select(row(2), 0.0);
            Lanes::from(vec![count, row(0), row(1), squares])
        };
        let ForwardParams { affine, running, results, settings, .. } = a;
        let training = Training { affine, running, results, settings };
        combine_parts(k, &walk, channels, part, combine_moments, |channel, total| {
            training.finish(channel, &total, a.coefficients, channels);
        });
        k.grid_barrier();

        let of = |row| self.common.coefficients::<A>(a.coefficients, &walk, channels, row);
        let (mean, scale, shift) = (of(0), of(1), of(2));
        let lower = a.lower.convert::<A>();
        let write = |at: U64<'k>, x: Lanes<'k, A>, added: Option<Lanes<'k, A>>| {
            let centred = x.zip(mean.clone(), |x, mean| x - mean);
            let mut y = centred.zip3(scale.clone(), shift.clone(), |x, s, t| x.mul_add(s, t));
            if let Some(added) = added {
                y = y.zip(added, |y, r| y + r);
            }
            a.y.at(at).store(y.map(|y| y.maximum(lower)));
        };
        let added = |offsets: &[U64<'k>]| -> Vec<Option<Lanes<'k, A>>> {
            offsets.iter().map(|&at| self.residual.then(|| a.residual.at(at).load(width))).collect()
        };
        // What was read last is still in the cache.
        walk.part(kept, walk.count() - kept, true).fold(unroll, (), |(), offsets| {
            let vectors: Vec<_> = offsets.iter().map(|&at| a.x.at(at).load_packed::<A>(width)).collect();
            let added = added(offsets);
            for ((vector, added), &at) in vectors.into_iter().zip(added).zip(offsets) {
                write(at, vector.lanes(), added);
            }
        });
        let _ = near.fold(unroll, thread, |first, offsets| {
            let added = added(offsets);
            for (i, (added, &at)) in added.into_iter().zip(offsets).enumerate() {
                write(at, slot(first, i).load_packed::<A>(width).lanes(), added);
            }
            first + offsets.len() as u32 * threads
        });
    }
}

/// The backward pass of training, without a ReLU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Backward(pub(super) Common);

impl AccumulateKernel for Backward {
    type Args = BackwardArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(self.0.name("backward"), BlockDim::x(self.0.config.threads))
            .dtypes(self.0.types().backward().accumulated(["partial", "coefficients"]))
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: BackwardParams<'k>) {
        let Common { dtype, config, .. } = self.0;
        let Config { width, threads, unroll } = config;
        let walk = self.0.walk(k, a.rows);
        let channels = a.rows.channels;
        let held = k.dynamic_shared_elem(dtype);
        let held_g = held.at(a.hold * (threads * width));
        let slot =
            |of: Ptr<'k, Shared, Elem>, first: U32<'k>, i: usize| of.at((first + i as u32 * threads) * width);
        let thread = k.thread_idx();
        let kept = walk.count().min(a.hold);
        let (near, far) = (walk.part(k.lit(0u32), kept, false), walk.part(kept, walk.count() - kept, false));

        let mean: Lanes<'k, A> =
            (0..width).map(|i| a.saved.mean.at(walk.channel).at(u64::from(i)).get::<A>()).collect();
        let load = |offsets: &[U64<'k>]| {
            let load = |from: Ptr<'k, _, Elem>| -> Vec<Packed<'k, A>> {
                offsets.iter().map(|&at| from.at(at).load_packed(width)).collect()
            };
            (load(a.x), load(a.dy))
        };
        let add = |(sum, products): (Lanes<'k, A>, Lanes<'k, A>),
                   (x, g): (&Packed<'k, A>, &Packed<'k, A>)| {
            let centred = x.lanes().zip(mean.clone(), |x, mean| x - mean);
            (
                sum.zip(g.lanes(), |sum, g| sum + g),
                products.zip3(g.lanes(), centred, |products, g, x| g.mul_add(x, products)),
            )
        };
        let start = (thread, (zeros::<A>(k, width), zeros::<A>(k, width)));
        let (_, sums) = near.fold_ahead(unroll, start, load, |(first, sums), (x, g)| {
            for (i, (x, g)) in x.iter().zip(&g).enumerate() {
                slot(held, first, i).store_packed(x);
                slot(held_g, first, i).store_packed(g);
            }
            (first + x.len() as u32 * threads, x.iter().zip(&g).fold(sums, add))
        });
        let (sum, products) =
            far.fold_ahead(unroll, sums, load, |sums, (x, g)| x.iter().zip(&g).fold(sums, add));
        let block = k.block_idx_x().to_u64() * 2;
        part_sums(k, config, &walk, channels, [sum, products], |channel, sums| {
            for (row, sum) in sums.into_iter().enumerate() {
                a.partial.at((block + row as u64) * channels + channel).set(sum);
            }
        });
        k.grid_barrier();
        let part = |channel: U64<'k>, block: U64<'k>, count: Reg<'k, A>| {
            let row = |i: u64| a.partial.at((block * 2 + i) * channels + channel).get::<A>();
            let there = count.gt(0.0);
            Lanes::from(vec![there.select(row(0), 0.0), there.select(row(1), 0.0)])
        };
        combine_parts(k, &walk, channels, part, add_all, |channel, total| {
            let gradients = ChannelGradients::new(a.saved, a.present, channel, &total);
            gradients.store(a.gradients, a.present, channel);
            let of_g = gradients.of_dy();
            let [of_x, shift] = gradients.through_statistics(of_g, a.elements);
            set_rows(a.coefficients, channels, channel, [of_g, of_x, shift]);
        });
        k.grid_barrier();

        let of = |row| self.0.coefficients::<A>(a.coefficients, &walk, channels, row);
        let (of_g, of_x, shift) = (of(0), of(1), of(2));
        let write = |at: U64<'k>, x: Lanes<'k, A>, g: Lanes<'k, A>| {
            let centred = x.zip(mean.clone(), |x, mean| x - mean);
            let through = centred.zip3(of_x.clone(), shift.clone(), |x, b, c| x.mul_add(b, c));
            a.dx.at(at).store(g.zip3(of_g.clone(), through, |g, a, t| g.mul_add(a, t)));
        };
        // What was read last is still in the cache.
        walk.part(kept, walk.count() - kept, true).fold(unroll, (), |(), offsets| {
            let (x, g) = load(offsets);
            for ((x, g), &at) in x.into_iter().zip(g).zip(offsets) {
                write(at, x.lanes(), g.lanes());
            }
        });
        let _ = near.fold(unroll, thread, |first, offsets| {
            for (i, &at) in offsets.iter().enumerate() {
                let x = slot(held, first, i).load_packed::<A>(width).lanes();
                write(at, x, slot(held_g, first, i).load_packed::<A>(width).lanes());
            }
            first + offsets.len() as u32 * threads
        });
    }
}
