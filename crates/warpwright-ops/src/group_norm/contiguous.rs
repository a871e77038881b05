//! Forward kernels for groups that lie in one piece: NCHW and its like.

use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;

use super::common::{Affine, Options, Statistics, load_vectors, quotient, store_result};
use super::spread::Spread;
use super::tuning::{Resident, STREAM_THREADS, STREAM_VECTORS};

kernel_args! {
    /// What an operation reads and writes.
    pub(super) struct TensorsArgs => Tensors {
        x: In<Elem>, weight: In<Elem>, bias: In<Elem>, y: Out<Elem>, mean: Out<Elem>, rstd: Out<Elem>,
    }
}

impl<'k> Tensors<'k> {
    /// Weight and bias of the channels.
    fn affine(self, options: Options<'k>) -> Affine<'k> {
        Affine { options, weight: self.weight, bias: self.bias }
    }
}

kernel_args! {
    /// Of each group, `channels` channels, `vectors` vectors; a block takes `per_block` of them. `magic` and `shift`
    /// divide a vector's number by the vectors of a channel.
    pub(super) struct ResidentArgs => ResidentParams {
        tensors: TensorsArgs,
        groups: u32, channels: u32, vectors: u32, per_block: u32, magic: u32, shift: u32, flags: u32, eps: f64,
    }
}

/// Statistics and result of a group that stays in the registers of a cluster between them.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResidentForward {
    pub(super) dtype: DType,
    pub(super) config: Resident,
}

impl AccumulateKernel for ResidentForward {
    type Args = ResidentArgs;

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

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: ResidentParams<'k>) {
        let Resident { width, threads, vectors, .. } = self.config;
        let gather = k.all_gather();
        let (group, thread) = (k.cluster_idx_x(), k.thread_idx());
        let rank = k.cluster_rank();
        let first = rank * a.per_block;
        let end = (first + a.per_block).min(a.vectors);
        let number = first + thread;
        let start = (group.mad_wide(a.vectors, number.to_u64())) * u64::from(width);
        let numbers: Vec<_> = (0..vectors).map(|v| number + v * threads).collect();
        let inside: Vec<_> = numbers.iter().map(|n| n.lt(end)).collect();
        let held = load_vectors::<A>(k, a.tensors.x.at(start), threads, width, &inside);

        let mine = Spread::of(k, &held, &inside, width);
        let spread = gather.combine(mine, Spread::merge);
        let statistics = Statistics::of(spread, a.eps);
        let options = Options::of(a.flags);
        k.if_(options.saves & (rank + thread).eq(0), || {
            statistics.save(a.tensors.mean, a.tensors.rstd, group);
        });

        let affine = a.tensors.affine(options);
        let channel = (group % a.groups) * a.channels;
        let y = a.tensors.y.at(start);
        for (v, ((number, inside), held)) in (0u64..).zip(numbers.iter().zip(&inside).zip(&held)) {
            k.if_(*inside, || {
                let channel = channel + quotient(*number, a.magic, a.shift);
                let (scale, shift) = statistics.line(affine.weight(k, channel), affine.bias(k, channel));
                let results = held.lanes().map(|x| (x - statistics.mean).mul_add(scale, shift));
                store_result(k, options, y.at(v * u64::from(threads * width)), &results);
            });
        }
    }
}

kernel_args! {
    /// Of each group, `splits` parts of `per_split` vectors; each leaves mean, low and m2.
    pub(super) struct MomentsArgs => MomentsParams {
        x: In<Elem>, partials: Out<Elem>, vectors: u64, splits: u32, per_split: u64,
    }
}

/// The first pass over groups that no cluster holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moments {
    pub(super) dtype: DType,
    pub(super) width: u32,
}

impl AccumulateKernel for Moments {
    type Args = MomentsArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(
            format!("group_norm_moments_{}_x{}", self.dtype, self.width),
            BlockDim::x(STREAM_THREADS),
        )
        .dtypes(DTypes::all(self.dtype).accumulated(["partials"]))
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: MomentsParams<'k>) {
        k.start_next_grid();
        let width = self.width;
        let block = k.block_idx_x();
        let (group, split) = (block / a.splits, block % a.splits);
        let part = Part::of(split, a.per_split, a.vectors);
        let base = group.to_u64() * a.vectors;
        let spread = k.fold(part.rounds(k), Spread::<A>::empty(k), |at, spread| {
            let inside = part.inside(at);
            let x = a.x.at((base + at) * u64::from(width));
            let vectors = load_vectors::<A>(k, x, STREAM_THREADS, width, &inside);
            spread.merge(Spread::of(k, &vectors, &inside, width))
        });
        let spread = k.block_combine(spread, Spread::merge);
        k.if_(k.thread_idx().eq(0), || {
            let partial = a.partials.at((group * a.splits + split).mul_wide(3));
            partial.set(spread.mean);
            partial.at(1u64).set(spread.low);
            partial.at(2u64).set(spread.m2);
        });
    }
}

/// The vectors of a block that goes over its part in a loop.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part<'k> {
    pub(super) start: U64<'k>,
    pub(super) end: U64<'k>,
}

impl<'k> Part<'k> {
    /// Part `split` of `vectors` vectors, `per_split` each.
    pub(super) fn of(split: U32<'k>, per_split: U64<'k>, vectors: U64<'k>) -> Self {
        let start = split.to_u64() * per_split;
        Self { start, end: (start + per_split).min(vectors) }
    }

    /// The first vectors of this thread's rounds.
    pub(super) fn rounds(self, k: K<'k>) -> warpwright_dsl::Range<'k, u64> {
        let round = u64::from(STREAM_THREADS * STREAM_VECTORS);
        k.range(self.start + k.thread_idx().to_u64(), self.end, round)
    }

    /// The starts of the rounds of `round` vectors, the same for all threads.
    pub(super) fn starts(self, k: K<'k>, round: u64) -> warpwright_dsl::Range<'k, u64> {
        k.range(self.start, self.end, round)
    }

    /// The start of the round that lies as far from the last one as the round that starts at `at` lies from the first.
    pub(super) fn mirrored(self, at: U64<'k>, round: u64) -> U64<'k> {
        let rounds = (self.end - self.start + (round - 1)) / round;
        self.start + (rounds - 1) * round - (at - self.start)
    }

    /// Which vectors of the round that begins at `at` lie in the part.
    pub(super) fn inside(self, at: U64<'k>) -> Vec<Pred<'k>> {
        (0..STREAM_VECTORS).map(|v| (at + u64::from(v * STREAM_THREADS)).lt(self.end)).collect()
    }
}

kernel_args! {
    /// As [`MomentsArgs`] and [`ResidentArgs`]; a channel has `channel_vectors` vectors.
    pub(super) struct ApplyArgs => ApplyParams {
        tensors: TensorsArgs,
        partials: In<Elem>, groups: u32, channels: u32, vectors: u64, splits: u32, per_split: u64,
        channel_vectors: u64, magic: u32, shift: u32, limit: u64, flags: u32, eps: f64,
    }
}

/// The second pass over groups that no cluster holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Apply {
    pub(super) dtype: DType,
    pub(super) width: u32,
}

impl AccumulateKernel for Apply {
    type Args = ApplyArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(
            format!("group_norm_apply_{}_x{}", self.dtype, self.width),
            BlockDim::x(STREAM_THREADS),
        )
        .dtypes(DTypes::all(self.dtype).accumulated(["tensors.mean", "tensors.rstd", "partials"]))
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: ApplyParams<'k>) {
        k.after_previous_grid();
        let width = self.width;
        let block = k.block_idx_x();
        let (group, split) = (block / a.splits, block % a.splits);

        let of_part = |number: U32<'k>| {
            let part = Part::of(number, a.per_split, a.vectors);
            let partial = a.partials.at((group * a.splits + number).mul_wide(3));
            let count = ((part.end - part.start) * u64::from(width)).convert::<A>();
            let [mean, low, m2] = [0u64, 1, 2].map(|i| partial.at(i).get());
            Spread { count, mean, low, m2 }
        };
        let parts = k.range(k.lane_idx(), a.splits, 32u32);
        let mine = k.fold(parts, Spread::<A>::empty(k), |number, spread| spread.merge(of_part(number)));
        let spread = k.warp_combine(32, mine, Spread::merge);
        let statistics = Statistics::of(spread, a.eps);
        let options = Options::of(a.flags);
        k.if_(options.saves & (split + k.thread_idx()).eq(0), || {
            statistics.save(a.tensors.mean, a.tensors.rstd, group);
        });

        let affine = a.tensors.affine(options);
        let part = Part::of(split, a.per_split, a.vectors);
        let channels = ChannelsOfPart::of(part, a.channel_vectors, a.magic, a.shift, a.limit);
        let first = (group % a.groups) * a.channels;
        let base = group.to_u64() * a.vectors;
        // Backwards: what the first pass read last is still in the L2 cache.
        let round = u64::from(STREAM_THREADS * STREAM_VECTORS);
        k.for_each(part.starts(k, round), |at| {
            let at = part.mirrored(at, round) + k.thread_idx().to_u64();
            let inside = part.inside(at);
            let start = (base + at) * u64::from(width);
            let vectors = load_vectors::<A>(k, a.tensors.x.at(start), STREAM_THREADS, width, &inside);
            let y = a.tensors.y.at(start);
            for (v, (inside, vector)) in (0u64..).zip(inside.iter().zip(&vectors)) {
                k.if_(*inside, || {
                    let channel = first + channels.at(at + v * u64::from(STREAM_THREADS));
                    let (scale, shift) = statistics.line(affine.weight(k, channel), affine.bias(k, channel));
                    let results = vector.lanes().map(|x| (x - statistics.mean).mul_add(scale, shift));
                    store_result(k, options, y.at(v * u64::from(STREAM_THREADS * width)), &results);
                });
            }
        });
    }
}

/// The channels of the vectors of a part, relative to the group: one long division for the part, a short one for a
/// vector.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChannelsOfPart<'k> {
    channel: U32<'k>,
    origin: U64<'k>,
    magic: U32<'k>,
    shift: U32<'k>,
    limit: U64<'k>,
}

impl<'k> ChannelsOfPart<'k> {
    pub(super) fn of(
        part: Part<'k>,
        channel_vectors: U64<'k>,
        magic: U32<'k>,
        shift: U32<'k>,
        limit: U64<'k>,
    ) -> Self {
        let channel = part.start / channel_vectors;
        let origin = channel * channel_vectors;
        Self { channel: channel.to_u32(), origin, magic, shift, limit }
    }

    /// The channel of the vector `at` of the group.
    pub(super) fn at(self, at: U64<'k>) -> U32<'k> {
        let beyond = at - self.origin;
        let next = beyond.ge(self.limit).to_u32();
        self.channel + quotient(beyond.to_u32(), self.magic, self.shift) + next
    }
}
