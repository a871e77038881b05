//! Forward kernels for groups that lie in one piece: NCHW and its like.

use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;

use super::common::{Affine, Elements, Options, Statistics, quotient};
use super::spread::Spread;
use super::tuning::{STREAM_THREADS, STREAM_VECTORS};

kernel_args! {
    /// The tensors of an operation.
    pub(super) struct TensorsArgs => Tensors {
        x: In<Elem>, weight: In<Elem>, bias: In<Elem>, y: Out<Elem>, mean: Out<Elem>, rstd: Out<Elem>,
    }
}

impl<'k> Tensors<'k> {
    /// Weight and bias of the channels.
    pub(super) fn affine(self, options: Options<'k>) -> Affine<'k> {
        Affine { options, weight: self.weight, bias: self.bias }
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
pub(super) struct Moments(pub(super) Elements);

impl AccumulateKernel for Moments {
    type Args = MomentsArgs;

    fn spec(&self) -> KernelSpec {
        self.0.spec("moments", STREAM_THREADS, ["partials"])
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: MomentsParams<'k>) {
        k.start_next_grid();
        let width = self.0.width;
        let block = k.block_idx_x();
        let (group, split) = (block / a.splits, block % a.splits);
        let part = Part::of(split, a.per_split, a.vectors, STREAM_THREADS);
        let base = group.to_u64() * a.vectors;
        let rounds = part.rounds(k, k.thread_idx());
        let spread = k.fold(rounds, Spread::<A>::empty(k), |at, spread| {
            let held = part.vectors(k, base, at, width);
            spread.merge(Spread::of(k, &held.load_or_zero(a.x, None), held.inside(), width))
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

/// The vectors of a block, or of a warp, that goes over its part in a loop.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part<'k> {
    start: U64<'k>,
    end: U64<'k>,
    /// Threads that share it.
    threads: u32,
}

impl<'k> Part<'k> {
    /// Part `split` of `vectors` vectors, `per_split` each.
    pub(super) fn of(split: U32<'k>, per_split: U64<'k>, vectors: U64<'k>, threads: u32) -> Self {
        let start = split.to_u64() * per_split;
        Self { start, end: (start + per_split).min(vectors), threads }
    }

    /// Vectors of a round.
    fn round(self) -> u64 {
        u64::from(self.threads * STREAM_VECTORS)
    }

    /// The first vectors of the rounds of this thread, `lane` among those that share the part.
    pub(super) fn rounds(self, k: K<'k>, lane: U32<'k>) -> warpwright_dsl::Range<'k, u64> {
        k.range(self.start + lane.to_u64(), self.end, self.round())
    }

    /// The starts of the rounds, the same for all threads.
    pub(super) fn starts(self, k: K<'k>) -> warpwright_dsl::Range<'k, u64> {
        k.range(self.start, self.end, self.round())
    }

    /// The start of the round that lies as far from the last one as the round that starts at `at` lies from the first.
    pub(super) fn mirrored(self, at: U64<'k>) -> U64<'k> {
        let round = self.round();
        let rounds = (self.end - self.start + (round - 1)) / round;
        self.start + (rounds - 1) * round - (at - self.start)
    }

    /// The thread's vectors of the round whose first one for it is `at`, of a piece that begins at vector `base`.
    pub(super) fn vectors(self, k: K<'k>, base: U64<'k>, at: U64<'k>, width: u32) -> HeldVectors<'k> {
        let threads = self.threads;
        let inside = (0..STREAM_VECTORS).map(|v| (at + u64::from(v * threads)).lt(self.end)).collect();
        HeldVectors::new(k, (base + at) * u64::from(width), threads * width, width, inside)
    }
}

kernel_args! {
    /// As [`MomentsArgs`]; a channel has `channel_vectors` vectors.
    pub(super) struct ApplyArgs => ApplyParams {
        tensors: TensorsArgs,
        partials: In<Elem>, groups: u32, channels: u32, vectors: u64, splits: u32, per_split: u64,
        channel_vectors: u64, magic: u32, shift: u32, limit: u64, flags: u32, eps: f64,
    }
}

/// The second pass over groups that no cluster holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Apply(pub(super) Elements);

impl AccumulateKernel for Apply {
    type Args = ApplyArgs;

    fn spec(&self) -> KernelSpec {
        self.0.spec("apply", STREAM_THREADS, ["tensors.mean", "tensors.rstd", "partials"])
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: ApplyParams<'k>) {
        k.after_previous_grid();
        let width = self.0.width;
        let block = k.block_idx_x();
        let (group, split) = (block / a.splits, block % a.splits);

        let of_part = |number: U32<'k>| {
            let part = Part::of(number, a.per_split, a.vectors, STREAM_THREADS);
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
        let part = Part::of(split, a.per_split, a.vectors, STREAM_THREADS);
        let channels = ChannelsOfPart::of(part, a.channel_vectors, a.magic, a.shift, a.limit);
        let first = (group % a.groups) * a.channels;
        let base = group.to_u64() * a.vectors;
        // Backwards: what the first pass read last is still in the L2 cache.
        k.for_each(part.starts(k), |at| {
            let at = part.mirrored(at) + k.thread_idx().to_u64();
            let held = part.vectors(k, base, at, width);
            let vectors = held.load_or_zero::<A>(a.tensors.x, None);
            let y = held.first(a.tensors.y);
            held.each(None, |v, offset| {
                let channel = first + channels.at(at + v as u64 * u64::from(STREAM_THREADS));
                affine.store(k, statistics, channel, &vectors[v], y.at(offset));
            });
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
