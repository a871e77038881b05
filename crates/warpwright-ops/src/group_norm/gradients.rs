//! Backward kernels. `dy` is the gradient of the result; behind `silu` its slope is applied wherever `dy` is read.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{COLUMN_SUM_LANES, WARP, column_sums, kernel_args};

use super::common::{Affine, Options, load_vectors, quotient, silu_slope};
use super::contiguous::Part;
use super::tuning::{Resident, STREAM_THREADS, STREAM_VECTORS};

/// Vectors of a thread that writes `dx`, from each of two tensors.
const PAIR_VECTORS: u32 = STREAM_VECTORS;

/// A channel of a group, for the elements of it that a thread has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Channel<'k, A: Float> {
    pub(super) mean: Reg<'k, A>,
    pub(super) rstd: Reg<'k, A>,
    pub(super) weight: Reg<'k, A>,
    pub(super) bias: Reg<'k, A>,
}

impl<'k, A: Float> Channel<'k, A> {
    /// The distances of `x` from the mean, and the gradients in front of `silu`, if there is one.
    pub(super) fn pair(
        self,
        silu: Option<Precision>,
        x: &Packed<'k, A>,
        dy: &Packed<'k, A>,
    ) -> (Lanes<'k, A>, Lanes<'k, A>) {
        let distances = x.lanes().map(|x| x - self.mean);
        let gradients = match silu {
            Some(precision) => {
                let scale = self.rstd * self.weight;
                dy.lanes()
                    .zip(distances.clone(), |dy, d| dy * silu_slope(d.mul_add(scale, self.bias), precision))
            }
            None => dy.lanes(),
        };
        (distances, gradients)
    }

    /// The sums of the gradients of a vector, and of the gradients times the distances.
    pub(super) fn sums(
        self,
        k: K<'k>,
        options: Options<'k>,
        x: &Packed<'k, A>,
        dy: &Packed<'k, A>,
        precision: Precision,
    ) -> (Reg<'k, A>, Reg<'k, A>) {
        with_or_without_silu(k, options, precision, |silu| sums_of(k, self.pair(silu, x, dy)))
    }
}

/// Records `f` for both cases of `silu` and runs the one that applies: the branch is around a vector's work, where few
/// values leave it.
pub(super) fn with_or_without_silu<'k, C: Carry<'k>>(
    k: K<'k>,
    options: Options<'k>,
    precision: Precision,
    f: impl Fn(Option<Precision>) -> C,
) -> C {
    k.if_else(options.silu, || f(Some(precision)), || f(None))
}

/// `dx` as a sum: `factor * gradient + distance * slope + constant`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line<'k, A: Float> {
    factor: Reg<'k, A>,
    slope: Reg<'k, A>,
    constant: Reg<'k, A>,
}

impl<'k, A: Float> Line<'k, A> {
    /// From the means over the group of `g = dy weight` and of `g xhat`.
    pub(super) fn of(channel: Channel<'k, A>, mean_g: Reg<'k, A>, mean_g_xhat: Reg<'k, A>) -> Self {
        let rstd = channel.rstd;
        Self {
            factor: rstd * channel.weight,
            slope: -(rstd * (rstd * mean_g_xhat)),
            constant: -(rstd * mean_g),
        }
    }

    pub(super) fn dx(self, distance: Reg<'k, A>, gradient: Reg<'k, A>) -> Reg<'k, A> {
        distance.mul_add(self.slope, gradient.mul_add(self.factor, self.constant))
    }
}

/// Sums of gradients, and of gradients times distances.
fn sums_of<'k, A: Float>(
    k: K<'k>,
    (distances, gradients): (Lanes<'k, A>, Lanes<'k, A>),
) -> (Reg<'k, A>, Reg<'k, A>) {
    let zero = || k.lit::<A>(0.0);
    let sum = gradients.sum().unwrap_or_else(zero);
    // Two chains of fused operations.
    let mut products = [zero(), zero()];
    for (i, (g, d)) in gradients.iter().zip(distances.iter()).enumerate() {
        products[i % 2] = g.mul_add(d, products[i % 2]);
    }
    (sum, products[0] + products[1])
}

pub(super) fn add<'k, A: Float>(
    a: (Reg<'k, A>, Reg<'k, A>),
    b: (Reg<'k, A>, Reg<'k, A>),
) -> (Reg<'k, A>, Reg<'k, A>) {
    (a.0 + b.0, a.1 + b.1)
}

kernel_args! {
    /// What all kernels that go over the tensors read: gradients, statistics of groups, weight and bias of channels.
    pub(super) struct InputsArgs => Inputs {
        x: In<Elem>, dy: In<Elem>, mean: In<Elem>, rstd: In<Elem>, weight: In<Elem>, bias: In<Elem>,
    }
}

impl<'k> Inputs<'k> {
    /// Weight and bias with the options that `flags` holds.
    pub(super) fn affine(self, flags: U32<'k>) -> Affine<'k> {
        Affine { options: Options::of(flags), weight: self.weight, bias: self.bias }
    }
}

kernel_args! {
    /// How channels that lie in one piece are cut into parts.
    pub(super) struct CutArgs => Cut {
        channels: u32, of_group: u32, channel_vectors: u64, splits: u32, per_split: u64,
    }
}

kernel_args! {
    /// `partials` are two planes of [sample, split, channel]: sums of `dy` and of `dy xhat`; there are `parts` of them.
    pub(super) struct SumsArgs => SumsParams {
        inputs: InputsArgs,
        partials: Out<Elem>, cut: CutArgs, parts: u32, plane: u64, flags: u32,
    }
}

/// The sums of channels that lie in one piece: a warp for each part of one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sums {
    pub(super) dtype: DType,
    pub(super) width: u32,
}

impl AccumulateKernel for Sums {
    type Args = SumsArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(
            format!("group_norm_backward_sums_{}_x{}", self.dtype, self.width),
            BlockDim::x(STREAM_THREADS),
        )
        .dtypes(DTypes::all(self.dtype).accumulated(["inputs.mean", "inputs.rstd", "partials"]))
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: SumsParams<'k>) {
        k.start_next_grid();
        let (width, precision) = (self.width, Precision::of(self.dtype));
        let number = warp_of_grid(k);
        k.if_(number.lt(a.parts), || {
            let affine = a.inputs.affine(a.flags);
            let options = affine.options;
            let place = a.cut.place(number);
            let channel_data = place.channel::<A>(k, affine, a.inputs);
            let ChannelPart { sample, channel, split, base, part: range, .. } = place;
            let rounds =
                k.range(range.start + k.lane_idx().to_u64(), range.end, u64::from(WARP * STREAM_VECTORS));
            let zero = || k.lit::<A>(0.0);
            let mine = k.fold(rounds, (zero(), zero()), |at, sums| {
                let inside: Vec<_> =
                    (0..STREAM_VECTORS).map(|v| (at + u64::from(v * WARP)).lt(range.end)).collect();
                let start = (base + at) * u64::from(width);
                let x = load_vectors::<A>(k, a.inputs.x.at(start), WARP, width, &inside);
                let dy = load_vectors::<A>(k, a.inputs.dy.at(start), WARP, width, &inside);
                // Where there is no vector, `dy` is zero.
                x.iter()
                    .zip(&dy)
                    .fold(sums, |sums, (x, dy)| add(sums, channel_data.sums(k, options, x, dy, precision)))
            });
            let (sum, product) = k.warp_combine(WARP, mine, add);
            k.if_(k.lane_idx().eq(0), || {
                let part = (sample * a.cut.splits + split).to_u64();
                let to = a.partials.at(part * a.cut.channels.to_u64() + channel.to_u64());
                to.set(sum);
                to.at(a.plane).set(product * channel_data.rstd);
            });
        });
    }
}

/// The number of the warp in a grid of the streaming kernels.
fn warp_of_grid(k: K<'_>) -> U32<'_> {
    k.block_idx_x() * (STREAM_THREADS / WARP) + k.warp_idx()
}

/// One of the parts.
#[derive(Clone, Copy, Debug)]
struct ChannelPart<'k> {
    sample: U32<'k>,
    channel: U32<'k>,
    split: U32<'k>,
    group: U32<'k>,
    /// The first vector of the channel.
    base: U64<'k>,
    part: Part<'k>,
}

impl<'k> Cut<'k> {
    fn place(self, number: U32<'k>) -> ChannelPart<'k> {
        let (row, split) = (number / self.splits, number % self.splits);
        let (sample, channel) = (row / self.channels, row % self.channels);
        ChannelPart {
            sample,
            channel,
            split,
            group: sample * (self.channels / self.of_group) + channel / self.of_group,
            base: sample.mad_wide(self.channels, channel.to_u64()) * self.channel_vectors,
            part: Part::of(split, self.per_split, self.channel_vectors),
        }
    }
}

impl<'k> ChannelPart<'k> {
    fn channel<A: Float>(self, k: K<'k>, affine: Affine<'k>, inputs: Inputs<'k>) -> Channel<'k, A> {
        Channel {
            mean: inputs.mean.at(self.group).get::<A>(),
            rstd: inputs.rstd.at(self.group).get::<A>(),
            weight: affine.weight(k, self.channel),
            bias: affine.bias(k, self.channel),
        }
    }
}

/// Threads of [`Finish`].
pub(super) const FINISH_THREADS: u32 = 512;

kernel_args! {
    /// From the partial sums: `sums`, two planes of [sample, channel], and `means`, two planes of [sample, group]:
    /// the means over the group of `dy weight` and of `dy weight xhat`. `log` is the binary logarithm of the channels
    /// that a block takes at once.
    pub(super) struct FinishArgs => FinishParams {
        partials: In<Elem>, weight: In<Elem>, sums: Out<Elem>, means: Out<Elem>, groups: u32, of_group: u32, log: u32,
        splits: u32, plane: u64, sums_plane: u64, means_plane: u64, reciprocal: f64, flags: u32,
    }
}

/// The sums of whole channels and the means of a group: one block for each group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Finish {
    pub(super) dtype: DType,
}

impl AccumulateKernel for Finish {
    type Args = FinishArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(format!("group_norm_backward_finish_{}", self.dtype), BlockDim::x(FINISH_THREADS))
            .dtypes(DTypes::all(self.dtype).accumulated(["partials", "sums", "means"]))
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: FinishParams<'k>) {
        k.start_next_grid();
        k.after_previous_grid();
        let number = k.block_idx_x();
        let (sample, group) = (number / a.groups, number % a.groups);
        let channels = a.groups * a.of_group;
        let thread = k.thread_idx();
        let at_once = k.lit(1u32) << a.log;
        let (lane, strip) = (thread & (at_once - 1), thread >> a.log);
        let options = Options::of(a.flags);
        let affine = Affine { options, weight: a.weight, bias: a.weight };
        let (first, second) = (k.shared::<A>(FINISH_THREADS), k.shared::<A>(FINISH_THREADS));
        let zero = || k.lit::<A>(0.0);
        let totals = k.fold(k.range(0u32, a.of_group, at_once), (zero(), zero()), |start, totals| {
            let of_group = start + lane;
            let inside = of_group.lt(a.of_group);
            let channel = group * a.of_group + of_group;
            let mine = k.if_else(
                inside,
                || {
                    let splits = k.range(strip, a.splits, k.lit(FINISH_THREADS) >> a.log);
                    k.fold(splits, (zero(), zero()), |split, sums| {
                        let row = (sample * a.splits + split).to_u64();
                        let from = a.partials.at(row * channels.to_u64() + channel.to_u64());
                        add(sums, (from.get(), from.at(a.plane).get()))
                    })
                },
                || (zero(), zero()),
            );
            first.at(thread).set(mine.0);
            second.at(thread).set(mine.1);
            k.barrier();
            let half = k.lit(FINISH_THREADS / 2);
            let _done = k.while_(
                half,
                |half| half.ge(at_once),
                |half| {
                    k.if_(thread.lt(half), || {
                        first
                            .at(thread)
                            .set(first.at(thread).get::<A>() + first.at(thread + half).get::<A>());
                        second
                            .at(thread)
                            .set(second.at(thread).get::<A>() + second.at(thread + half).get::<A>());
                    });
                    k.barrier();
                    half >> 1
                },
            );
            let totals = k.if_else(
                thread.lt(at_once) & inside,
                || {
                    let sums = (first.at(thread).get::<A>(), second.at(thread).get::<A>());
                    let to = a.sums.at(sample.mad_wide(channels, channel.to_u64()));
                    to.set(sums.0);
                    to.at(a.sums_plane).set(sums.1);
                    let weight = affine.weight::<A>(k, channel);
                    (sums.0.mul_add(weight, totals.0), sums.1.mul_add(weight, totals.1))
                },
                || totals,
            );
            k.barrier();
            totals
        });
        let totals = k.block_combine(totals, add);
        k.if_(thread.eq(0), || {
            let reciprocal = a.reciprocal.convert::<A>();
            let to = a.means.at(number);
            to.set(totals.0 * reciprocal);
            to.at(a.means_plane).set(totals.1 * reciprocal);
        });
    }
}

kernel_args! {
    /// As [`SumsArgs`] and [`FinishArgs`].
    pub(super) struct ApplyArgs => ApplyParams {
        inputs: InputsArgs, means: In<Elem>,
        dx: Out<Elem>, cut: CutArgs, parts: u32,
        means_plane: u64, flags: u32,
    }
}

/// `dx` of channels that lie in one piece: a warp for each part of one, as in [`Sums`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Apply {
    pub(super) dtype: DType,
    pub(super) width: u32,
}

impl AccumulateKernel for Apply {
    type Args = ApplyArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(
            format!("group_norm_backward_apply_{}_x{}", self.dtype, self.width),
            BlockDim::x(STREAM_THREADS),
        )
        .dtypes(DTypes::all(self.dtype).accumulated(["inputs.mean", "inputs.rstd", "means"]))
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: ApplyParams<'k>) {
        k.start_next_grid();
        k.after_previous_grid();
        let (width, precision) = (self.width, Precision::of(self.dtype));
        let number = warp_of_grid(k);
        k.if_(number.lt(a.parts), || {
            let affine = a.inputs.affine(a.flags);
            let options = affine.options;
            let place = a.cut.place(number);
            let channel = place.channel::<A>(k, affine, a.inputs);
            let means = a.means.at(place.group);
            let line = Line::of(channel, means.get::<A>(), means.at(a.means_plane).get::<A>());
            let (part, lane) = (place.part, k.lane_idx());
            let round = u64::from(WARP * PAIR_VECTORS);
            // Backwards: what the first pass read last is still in the L2 cache.
            k.for_each(part.starts(k, round), |at| {
                let at = part.mirrored(at, round) + lane.to_u64();
                let inside: Vec<_> =
                    (0..PAIR_VECTORS).map(|v| (at + u64::from(v * WARP)).lt(part.end)).collect();
                let start = (place.base + at) * u64::from(width);
                let x = load_vectors::<A>(k, a.inputs.x.at(start), WARP, width, &inside);
                let dy = load_vectors::<A>(k, a.inputs.dy.at(start), WARP, width, &inside);
                let dx = a.dx.at(start);
                for (v, (inside, (x, dy))) in (0u64..).zip(inside.iter().zip(x.iter().zip(&dy))) {
                    k.if_(*inside, || {
                        let to = dx.at(v * u64::from(WARP * width));
                        with_or_without_silu(k, options, precision, |silu| {
                            let (distances, gradients) = channel.pair(silu, x, dy);
                            to.store(distances.zip(gradients, |d, g| line.dx(d, g)));
                        });
                    });
                }
            });
        });
    }
}

kernel_args! {
    /// `sums` are two planes of [sample, part, channel], of which a channel that several blocks share fills `splits`.
    pub(super) struct ResidentArgs => ResidentParams {
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
pub(super) struct ResidentBackward {
    pub(super) dtype: DType,
    pub(super) config: Resident,
}

impl AccumulateKernel for ResidentBackward {
    type Args = ResidentArgs;

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

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: ResidentParams<'k>) {
        k.start_next_grid();
        let Resident { width, threads, vectors, .. } = self.config;
        let precision = Precision::of(self.dtype);
        let gather = k.all_gather();
        let (group, thread, rank) = (k.cluster_idx_x(), k.thread_idx(), k.cluster_rank());
        let first = rank * a.per_block;
        let end = (first + a.per_block).min(a.vectors);
        let number = first + thread;
        let start = group.mad_wide(a.vectors, number.to_u64()) * u64::from(width);
        let numbers: Vec<_> = (0..vectors).map(|v| number + v * threads).collect();
        let inside: Vec<_> = numbers.iter().map(|n| n.lt(end)).collect();
        let xs = load_vectors::<A>(k, a.inputs.x.at(start), threads, width, &inside);
        let dys = load_vectors::<A>(k, a.inputs.dy.at(start), threads, width, &inside);

        let (mean, rstd) = (a.inputs.mean.at(group).get::<A>(), a.inputs.rstd.at(group).get::<A>());
        let affine = a.inputs.affine(a.flags);
        let options = affine.options;
        let (_, of_sample) = sample_of(group, a.groups);
        let first_channel = of_sample * a.of_group;
        let channel_of = |number: U32<'k>| {
            let channel = first_channel + quotient(number, a.magic, a.shift);
            Channel { mean, rstd, weight: affine.weight(k, channel), bias: affine.bias(k, channel) }
        };
        let slots = threads * vectors;
        let (of_dy, of_product) = (k.shared::<A>(slots), k.shared::<A>(slots));
        let mut totals = (k.lit::<A>(0.0), k.lit::<A>(0.0));
        for v in 0..vectors as usize {
            totals = k.if_else(
                inside[v],
                || {
                    let channel = channel_of(numbers[v]);
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
        let totals = gather.combine(totals, add);
        let reciprocal = a.reciprocal.convert::<A>();
        let (mean_g, mean_g_xhat) = (totals.0 * reciprocal, totals.1 * reciprocal);

        let dx = a.dx.at(start);
        for v in 0..vectors as usize {
            k.if_(inside[v], || {
                let channel = channel_of(numbers[v]);
                let line = Line::of(channel, mean_g, mean_g_xhat);
                let to = dx.at(v as u64 * u64::from(threads * width));
                with_or_without_silu(k, options, precision, |silu| {
                    let (distances, gradients) = channel.pair(silu, &xs[v], &dys[v]);
                    to.store(distances.zip(gradients, |d, g| line.dx(d, g)));
                });
            });
        }
        k.if_(options.saves & first.lt(end), || {
            self.channel_sums::<A>(k, a, (first, end), (of_dy, of_product));
        });
    }
}

impl ResidentBackward {
    /// Adds up the vectors of each channel of the block: a warp for each channel.
    fn channel_sums<'k, A: Accumulate>(
        &self,
        k: K<'k>,
        a: ResidentParams<'k>,
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

/// Threads along y of [`Parameters`].
const PARAMETER_STRIPS: u32 = 8;

/// `dbias` is wanted.
pub(super) const WANTS_DBIAS: u32 = 16;
/// `dweight` is wanted.
pub(super) const WANTS_DWEIGHT: u32 = 32;

kernel_args! {
    /// `sums` are two planes of `rows` x `channels`.
    pub(super) struct ParameterArgs => ParameterParams {
        sums: In<Elem>, dweight: Out<Elem>, dbias: Out<Elem>, rows: u32, channels: u64, sums_plane: u64, flags: u32,
    }
}

/// `dweight` and `dbias` from the sums of the samples; along y of the grid, first `dbias`, then `dweight`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parameters {
    pub(super) dtype: DType,
}

impl Parameters {
    /// Channels of a block.
    pub(super) const LANES: u32 = COLUMN_SUM_LANES;
}

impl AccumulateKernel for Parameters {
    type Args = ParameterArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(
            format!("group_norm_backward_parameters_{}", self.dtype),
            BlockDim::xy(COLUMN_SUM_LANES, PARAMETER_STRIPS),
        )
        .dtypes(DTypes::all(self.dtype).accumulated(["sums"]))
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: ParameterParams<'k>) {
        k.after_previous_grid();
        let plane = k.block_idx_y();
        column_sums::<A, _, _>(
            k,
            a.sums.at(plane.to_u64() * a.sums_plane),
            a.rows,
            a.channels,
            |column, sum| {
                let wanted = |flag: u32| (a.flags & flag).ne(0);
                k.if_(plane.eq(0) & wanted(WANTS_DBIAS), || a.dbias.at(column).set(sum));
                k.if_(plane.ne(0) & wanted(WANTS_DWEIGHT), || a.dweight.at(column).set(sum));
            },
        );
    }
}
