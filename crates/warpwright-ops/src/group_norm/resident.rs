//! Kernels for groups that lie in one piece and fit the registers of a cluster, which read them once.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{AllGather, WARP, kernel_args};

use super::common::{Options, Statistics, quotient};
use super::contiguous::TensorsArgs;
use super::gradients::{Channel, InputsArgs, Line, add};
use super::spread::Spread;
use super::tuning::Resident;

/// The part of a group that a block holds.
struct BlockPart<'k> {
    gather: AllGather<'k>,
    group: U32<'k>,
    thread: U32<'k>,
    rank: U32<'k>,
    /// The block's vectors of the group, and those of the thread.
    first: U32<'k>,
    end: U32<'k>,
    numbers: Vec<U32<'k>>,
    held: HeldVectors<'k>,
}

impl<'k> BlockPart<'k> {
    /// Of groups of `vectors` vectors, `per_block` of them for each block of a cluster.
    fn new(k: K<'k>, config: Resident, per_block: U32<'k>, vectors: U32<'k>) -> Self {
        let Resident { width, threads, vectors: of_thread, .. } = config;
        let gather = k.all_gather();
        let (group, thread, rank) = (k.cluster_idx_x(), k.thread_idx(), k.cluster_rank());
        let first = rank * per_block;
        let end = (first + per_block).min(vectors);
        let number = first + thread;
        let start = group.mad_wide(vectors, number.to_u64()) * u64::from(width);
        let numbers: Vec<_> = (0..of_thread).map(|v| number + v * threads).collect();
        let inside = numbers.iter().map(|n| n.lt(end)).collect();
        let held = HeldVectors::new(k, start, threads * width, width, inside);
        Self { gather, group, thread, rank, first, end, numbers, held }
    }
}

kernel_args! {
    /// Of each group, `channels` channels, `vectors` vectors; a block takes `per_block` of them. `magic` and `shift`
    /// divide a vector's number by the vectors of a channel.
    pub(super) struct ForwardArgs => ForwardParams {
        tensors: TensorsArgs,
        groups: u32, channels: u32, vectors: u32, per_block: u32, magic: u32, shift: u32, flags: u32, eps: f64,
    }
}

/// Statistics and result of a group that stays in the registers of a cluster between them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Forward {
    pub(super) dtype: DType,
    pub(super) config: Resident,
}

impl AccumulateKernel for Forward {
    type Args = ForwardArgs;

    fn spec(&self) -> KernelSpec {
        let Resident { width, threads, vectors, cluster } = self.config;
        // 64 registers a thread for the vectors and what is done with them, twice as many in double precision.
        let wide = self.dtype == DType::F64;
        let of_multiprocessor = if wide { 512 } else { 1024 };
        // Left alone, the assembler gives these fewer registers than they need.
        let few = (wide && threads == 128).then_some(8);
        KernelSpec::new(
            format!("group_norm_{}_x{width}_t{threads}_v{vectors}_c{cluster}", self.dtype),
            BlockDim::x(threads),
        )
        .dtypes(DTypes::all(self.dtype).accumulated(["tensors.mean", "tensors.rstd"]))
        .min_blocks_per_sm(if threads >= 512 { Some(of_multiprocessor / threads) } else { few })
        .cluster(cluster)
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: ForwardParams<'k>) {
        let part = BlockPart::new(k, self.config, a.per_block, a.vectors);
        let xs = part.held.load_or_zero::<A>(a.tensors.x, None);
        let mine = Spread::of(k, &xs, part.held.inside(), self.config.width);
        let spread = part.gather.combine(mine, Spread::merge);
        let statistics = Statistics::of(spread, a.eps);
        let options = Options::of(a.flags);
        k.if_(options.saves & (part.rank + part.thread).eq(0), || {
            statistics.save(a.tensors.mean, a.tensors.rstd, part.group);
        });

        let affine = a.tensors.affine(options);
        let channel = (part.group % a.groups) * a.channels;
        let y = part.held.first(a.tensors.y);
        part.held.each(None, |v, at| {
            let channel = channel + quotient(part.numbers[v], a.magic, a.shift);
            affine.store(k, statistics, channel, &xs[v], y.at(at));
        });
    }
}

kernel_args! {
    /// `sums` are two planes of [sample, part, channel], of which a channel that several blocks share fills `splits`.
    pub(super) struct BackwardArgs => BackwardParams {
        inputs: InputsArgs,
        dx: Out<Elem>, sums: Out<Elem>, groups: u32, of_group: u32, vectors: u32, per_block: u32,
        channel_vectors: u32, magic: u32, shift: u32, splits: u32, sums_plane: u64, reciprocal: f64, flags: u32,
    }
}

/// The sample that a group belongs to, and its number there. One quotient for both, which is all that a kernel keeps of them until
/// its end: of a division and a remainder the assembler keeps what they have in common, in three registers.
fn sample_of<'k>(group: U32<'k>, groups: U32<'k>) -> (U32<'k>, U32<'k>) {
    let sample = group / groups;
    (sample, group - sample * groups)
}

/// `dx` and the sums of the channels of a group that stays in the registers of a cluster.
#[derive(Clone, Copy, Debug)]
pub(super) struct Backward {
    pub(super) dtype: DType,
    pub(super) config: Resident,
}

impl AccumulateKernel for Backward {
    type Args = BackwardArgs;

    fn spec(&self) -> KernelSpec {
        let Resident { width, threads, vectors, cluster } = self.config;
        let of_multiprocessor = if self.dtype == DType::F64 { 512 } else { 1024 };
        KernelSpec::new(
            format!("group_norm_backward_{}_x{width}_t{threads}_v{vectors}_c{cluster}", self.dtype),
            BlockDim::x(threads),
        )
        .dtypes(DTypes::all(self.dtype).accumulated(["inputs.mean", "inputs.rstd", "sums"]))
        .min_blocks_per_sm((threads >= 512).then_some(of_multiprocessor / threads))
        .cluster(cluster)
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: BackwardParams<'k>) {
        k.start_next_grid();
        let Resident { threads, vectors, .. } = self.config;
        let precision = Precision::of(self.dtype);
        let part = BlockPart::new(k, self.config, a.per_block, a.vectors);
        let BlockPart { group, thread, .. } = part;
        let xs = part.held.load_or_zero::<A>(a.inputs.x, None);
        let dys = part.held.load_or_zero::<A>(a.inputs.dy, None);

        let (mean, rstd) = (a.inputs.mean.at(group).get::<A>(), a.inputs.rstd.at(group).get::<A>());
        let affine = a.inputs.affine(a.flags);
        let options = affine.options;
        let (_, of_sample) = sample_of(group, a.groups);
        let first_channel = of_sample * a.of_group;
        let channel_of = |number: U32<'k>| {
            let channel = first_channel + quotient(number, a.magic, a.shift);
            Channel { mean, rstd, weight: affine.weight(k, channel), bias: affine.bias(k, channel) }
        };
        let [of_dy, of_product] = [(); 2].map(|()| k.shared::<A>(threads * vectors));
        let mut totals = (k.lit::<A>(0.0), k.lit::<A>(0.0));
        for (v, &inside) in part.held.inside().iter().enumerate() {
            totals = k.if_else(
                inside,
                || {
                    let channel = channel_of(part.numbers[v]);
                    let (sum, product) = channel.sums(k, options, &xs[v], &dys[v], precision);
                    let product = product * rstd;
                    let slot = thread + v as u32 * threads;
                    of_dy.at(slot).set(sum);
                    of_product.at(slot).set(product);
                    (sum.mul_add(channel.weight, totals.0), product.mul_add(channel.weight, totals.1))
                },
                || totals,
            );
        }
        let totals = part.gather.combine(totals, add);
        let reciprocal = a.reciprocal.convert::<A>();
        let (mean_g, mean_g_xhat) = (totals.0 * reciprocal, totals.1 * reciprocal);

        let dx = part.held.first(a.dx);
        part.held.each(None, |v, at| {
            let channel = channel_of(part.numbers[v]);
            let line = Line::of(channel, mean_g, mean_g_xhat);
            channel.store_dx(k, options, line, [&xs[v], &dys[v]], dx.at(at));
        });
        k.if_(options.saves & part.first.lt(part.end), || {
            self.channel_sums::<A>(k, a, (part.first, part.end), (of_dy, of_product));
        });
    }
}

impl Backward {
    /// Adds up the vectors of each channel of the block: a warp for each channel.
    fn channel_sums<'k, A: Accumulate>(
        &self,
        k: K<'k>,
        a: BackwardParams<'k>,
        (first, end): (U32<'k>, U32<'k>),
        slots: (Ptr<'k, Shared, A>, Ptr<'k, Shared, A>),
    ) {
        if self.config.threads == WARP {
            // A lone warp has met no barrier since it wrote the slots.
            k.barrier();
        }
        let (sample, of_sample) = sample_of(k.cluster_idx_x(), a.groups);
        let channels = a.groups * a.of_group;
        let low = quotient(first, a.magic, a.shift);
        let high = quotient(end - 1, a.magic, a.shift);
        let warps = self.config.threads / WARP;
        k.for_each(k.range(low + k.warp_idx(), high + 1, warps), |channel| {
            let begin = channel * a.channel_vectors;
            let stop = begin + a.channel_vectors;
            let range = k.range(begin.max(first) + k.lane_idx(), stop.min(end), WARP);
            let zero = || k.lit::<A>(0.0);
            let mine = k.fold(range, (zero(), zero()), |at, sums| {
                let slot = at - first;
                add(sums, (slots.0.at(slot).get(), slots.1.at(slot).get()))
            });
            let sums = k.warp_combine(WARP, mine, add);
            k.if_(k.lane_idx().eq(0), || {
                let split = k.cluster_rank() - begin / a.per_block;
                let row = (sample * a.splits + split).to_u64();
                let channel = (of_sample * a.of_group + channel).to_u64();
                let to = a.sums.at(row * channels.to_u64() + channel);
                to.set(sums.0);
                to.at(a.sums_plane).set(sums.1);
                // Parts that no block has.
                k.if_(stop.le(end), || {
                    k.for_each(k.range(split + 1, a.splits, 1u32), |split| {
                        let row = (sample * a.splits + split).to_u64();
                        let to = a.sums.at(row * channels.to_u64() + channel);
                        to.set::<A>(0.0);
                        to.at(a.sums_plane).set::<A>(0.0);
                    });
                });
            });
        });
    }
}
