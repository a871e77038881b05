//! Backward kernels. `dy` is the gradient of the result; behind `silu` its slope is applied wherever `dy` is read.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{COLUMN_SUM_LANES, WARP, column_sums, kernel_args};

use super::common::{Affine, Elements, Options};
use super::contiguous::Part;
use super::tuning::STREAM_THREADS;

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
                dy.lanes().zip(distances.clone(), |dy, d| {
                    dy * d.mul_add(scale, self.bias).silu_slope_for(precision)
                })
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

    /// Stores `dx` of a vector of `x` and `dy`.
    pub(super) fn store_dx(
        self,
        k: K<'k>,
        options: Options<'k>,
        line: Line<'k, A>,
        [x, dy]: [&Packed<'k, A>; 2],
        to: Ptr<'k, Write, Elem>,
    ) {
        with_or_without_silu(k, options, Precision::of(to.dtype()), |silu| {
            let (distances, gradients) = self.pair(silu, x, dy);
            to.store(distances.zip(gradients, |d, g| line.dx(d, g)));
        });
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
    /// The arguments of all kernels that go over the tensors: gradients, statistics of groups, weight and bias of channels.
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
pub(super) struct Sums(pub(super) Elements);

impl AccumulateKernel for Sums {
    type Args = SumsArgs;

    fn spec(&self) -> KernelSpec {
        self.0.spec("backward_sums", STREAM_THREADS, ["inputs.mean", "inputs.rstd", "partials"])
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: SumsParams<'k>) {
        k.start_next_grid();
        let Elements { dtype, width } = self.0;
        let precision = Precision::of(dtype);
        let number = warp_of_grid(k);
        k.if_(number.lt(a.parts), || {
            let affine = a.inputs.affine(a.flags);
            let options = affine.options;
            let place = a.cut.place(number);
            let channel_data = place.channel::<A>(k, affine, a.inputs);
            let ChannelPart { sample, channel, split, base, part, .. } = place;
            let rounds = part.rounds(k, k.lane_idx());
            let zero = || k.lit::<A>(0.0);
            let mine = k.fold(rounds, (zero(), zero()), |at, sums| {
                let held = part.vectors(k, base, at, width);
                let x = held.load_or_zero::<A>(a.inputs.x, None);
                let dy = held.load_or_zero::<A>(a.inputs.dy, None);
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
            part: Part::of(split, self.per_split, self.channel_vectors, WARP),
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
        k.overlap_grids();
        let number = k.block_idx_x();
        let (sample, group) = (number / a.groups, number % a.groups);
        let channels = a.groups * a.of_group;
        let thread = k.thread_idx();
        let at_once = k.lit(1u32) << a.log;
        let (lane, strip) = (thread & (at_once - 1), thread >> a.log);
        let options = Options::of(a.flags);
        let affine = Affine { options, weight: a.weight, bias: a.weight };
        let slots = [(); 2].map(|()| k.shared::<A>(FINISH_THREADS));
        let mine = || slots.map(|slots| slots.at(thread).get::<A>());
        let zero = || k.lit::<A>(0.0);
        let totals = k.fold(k.range(0u32, a.of_group, at_once), (zero(), zero()), |start, totals| {
            let of_group = start + lane;
            let inside = of_group.lt(a.of_group);
            let channel = group * a.of_group + of_group;
            let sums = k.if_else(
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
            slots.iter().zip([sums.0, sums.1]).for_each(|(slots, sum)| slots.at(thread).set(sum));
            k.barrier();
            let half = k.lit(FINISH_THREADS / 2);
            let _done = k.while_(
                half,
                |half| half.ge(at_once),
                |half| {
                    k.if_(thread.lt(half), || {
                        for slots in slots {
                            let to = slots.at(thread);
                            to.set(slots.at(thread).get::<A>() + slots.at(thread + half).get::<A>());
                        }
                    });
                    k.barrier();
                    half >> 1
                },
            );
            let totals = k.if_else(
                thread.lt(at_once) & inside,
                || {
                    let [sum, product] = mine();
                    let to = a.sums.at(sample.mad_wide(channels, channel.to_u64()));
                    to.set(sum);
                    to.at(a.sums_plane).set(product);
                    let weight = affine.weight::<A>(k, channel);
                    (sum.mul_add(weight, totals.0), product.mul_add(weight, totals.1))
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
pub(super) struct Apply(pub(super) Elements);

impl AccumulateKernel for Apply {
    type Args = ApplyArgs;

    fn spec(&self) -> KernelSpec {
        self.0.spec("backward_apply", STREAM_THREADS, ["inputs.mean", "inputs.rstd", "means"])
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: ApplyParams<'k>) {
        k.overlap_grids();
        let width = self.0.width;
        let number = warp_of_grid(k);
        k.if_(number.lt(a.parts), || {
            let affine = a.inputs.affine(a.flags);
            let options = affine.options;
            let place = a.cut.place(number);
            let channel = place.channel::<A>(k, affine, a.inputs);
            let means = a.means.at(place.group);
            let line = Line::of(channel, means.get::<A>(), means.at(a.means_plane).get::<A>());
            let (part, lane) = (place.part, k.lane_idx());
            // Backwards: what the first pass read last is still in the L2 cache.
            k.for_each(part.starts(k), |at| {
                let at = part.mirrored(at) + lane.to_u64();
                let held = part.vectors(k, place.base, at, width);
                let x = held.load_or_zero::<A>(a.inputs.x, None);
                let dy = held.load_or_zero::<A>(a.inputs.dy, None);
                let dx = held.first(a.dx);
                held.each(None, |v, at| {
                    channel.store_dx(k, options, line, [&x[v], &dy[v]], dx.at(at));
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
