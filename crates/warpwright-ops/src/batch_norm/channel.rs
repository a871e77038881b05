//! The kernels that work on channels: from the parts of their statistics to coefficients, gradients and running values.

use warpwright_dsl::channels::combine_parts;
use warpwright_dsl::prelude::*;
use warpwright_dsl::{Writable, kernel_args};

kernel_args! {
    /// Weight and bias, `[channels]`, each if `present` says so.
    pub(super) struct AffineArgs => Affine { weight: In<Elem>, bias: In<Elem> }
}

kernel_args! {
    /// The running statistics, `[channels]`.
    pub(super) struct RunningArgs => Running { mean: In<Elem>, var: In<Elem> }
}

kernel_args! {
    /// The statistics of each channel that training writes.
    pub(super) struct ResultsArgs => Results {
        mean: Out<Elem>, rstd: Out<Elem>, running_mean: Out<Elem>, running_var: Out<Elem>,
    }
}

kernel_args! {
    /// Numbers of training: `factor` is the weight of the new value in the running statistics.
    pub(super) struct SettingsArgs => Settings { present: u32, eps: f64, factor: f64 }
}

kernel_args! {
    /// The numbers of each channel that a backward pass reads.
    pub(super) struct SavedArgs => Saved { mean: In<Elem>, rstd: In<Elem>, weight: In<Elem> }
}

kernel_args! {
    /// The gradients of weight and bias, each if `present` says so.
    pub(super) struct GradientsArgs => Gradients { dweight: Out<Elem>, dbias: Out<Elem> }
}

kernel_args! {
    /// Mean, `rstd`, running statistics and coefficients from the statistics of parts.
    pub(super) struct CombineArgs => CombineParams {
        partial: In<Elem>, affine: AffineArgs, running: RunningArgs, results: ResultsArgs,
        coefficients: Out<Elem>, channels: u64, parts: u64, part_elements: u64, elements: u64,
        settings: SettingsArgs,
    }
}

kernel_args! {
    /// `[2 channels + 1]`: means, sums of squared distances from them, and the count, from the statistics of parts.
    pub(super) struct MomentsArgs => MomentsParams {
        partial: In<Elem>, moments: Out<Elem>, channels: u64, parts: u64, part_elements: u64, elements: u64,
    }
}

kernel_args! {
    /// As [`CombineArgs`], from what [`Moments`] has written for each of several batches; and how many values all of them have.
    pub(super) struct MergeArgs => MergeParams {
        moments: In<Elem>, affine: AffineArgs, running: RunningArgs, results: ResultsArgs, count: Out<Elem>,
        coefficients: Out<Elem>, channels: u64, batches: u64, settings: SettingsArgs,
    }
}

kernel_args! {
    /// The coefficients of the gradient of training from `dweight` and `dbias` of so many values.
    pub(super) struct CoefficientsArgs => CoefficientsParams {
        saved: SavedArgs, dweight: In<Elem>, dbias: In<Elem>, count: In<Elem>, coefficients: Out<Elem>, channels: u64, present: u32,
    }
}

kernel_args! {
    /// Coefficients from the running statistics, and `rstd` as a fourth row.
    pub(super) struct FoldArgs => FoldParams {
        affine: AffineArgs, running: RunningArgs, coefficients: Out<Elem>, channels: u64, present: u32, eps: f64,
    }
}

kernel_args! {
    /// `dweight`, `dbias` and coefficients from the sums of parts.
    pub(super) struct CombineGradientsArgs => CombineGradientsParams {
        partial: In<Elem>, saved: SavedArgs, gradients: GradientsArgs, coefficients: Out<Elem>,
        channels: u64, parts: u64, elements: u64, present: u32,
    }
}

/// Bits of the argument `present`.
pub(super) mod present {
    pub(in super::super) const WEIGHT: u32 = 1;
    pub(in super::super) const BIAS: u32 = 2;
    /// Running statistics to update.
    pub(in super::super) const RUNNING: u32 = 4;
    /// The statistics are those of the batch: the gradient goes through them.
    pub(in super::super) const TRAINING: u32 = 8;
    /// The gradient of the residual is written.
    pub(in super::super) const DRESIDUAL: u32 = 16;
}

/// The types of these kernels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Types {
    /// Of the tensors that are normalized.
    pub(super) dtype: DType,
    /// Of weight, bias and running statistics.
    pub(super) parameters: DType,
}

impl Types {
    fn name(self, what: &str) -> String {
        format!("batch_norm_{what}_{}_{}", self.dtype.accumulator(), self.parameters)
    }

    /// A kernel between two walks, or before one.
    fn spec<const N: usize>(self, what: &str, threads: u32, statistics: [&'static str; N]) -> KernelSpec {
        KernelSpec::new(self.name(what), BlockDim::x(threads))
            .dtypes(DTypes::all(self.parameters).accumulated(statistics))
    }

    /// Of a kernel that does all of one direction: the arguments that are parameters, and those of them that are statistics.
    fn dtypes<const N: usize>(self, parameters: [&'static str; N], statistics: [&'static str; 2]) -> DTypes {
        let all = DTypes::all(self.dtype);
        let all = parameters.into_iter().fold(all, |all, name| all.with(name, self.parameters));
        all.accumulated(statistics)
    }

    /// All of training.
    pub(super) fn forward(self) -> DTypes {
        self.dtypes(["affine", "running", "results"], ["results.mean", "results.rstd"])
    }

    /// All of its backward pass.
    pub(super) fn backward(self) -> DTypes {
        self.dtypes(["saved", "gradients"], ["saved.mean", "saved.rstd"])
    }
}

const THREADS: u32 = 256;

/// Count, mean, what the mean lost in rounding, sum of squares of distances from the mean: two parts as one (Chan, Golub and LeVeque
/// 1979), whichever comes first. The mean stays a sum of two, so that a mean that is large beside the deviation is not
/// rounded to its type.
pub(super) fn combine_moments<'k, A: Float>(a: Lanes<'k, A>, b: Lanes<'k, A>) -> Lanes<'k, A> {
    let more = a[0].gt(b[0]) | (a[0].eq(b[0]) & a[1].ge(b[1]));
    let (near, far) = (more.select_all(&a, &b), more.select_all(&b, &a));
    let count = near[0] + far[0];
    let share = far[0] / count.maximum(1.0);
    let distance = (far[1] - near[1]) + (far[2] - near[2]);
    let moved = distance.mul_add(share, near[2]);
    let squares = (near[3] + far[3]) + distance * distance * (near[0] * share);
    // The sum and what it loses (Knuth): a part far from the others leaves nothing of itself in the larger term.
    let mean = near[1] + moved;
    let added = mean - near[1];
    let rest = (near[1] - (mean - added)) + (moved - added);
    Lanes::from(vec![count, mean, rest, squares])
}

/// Statistics of a whole channel.
#[derive(Clone, Copy)]
pub(super) struct Statistics<'k, A: Float> {
    pub(super) mean: Reg<'k, A>,
    pub(super) rstd: Reg<'k, A>,
    unbiased: Reg<'k, A>,
    /// The rounding error of the mean.
    lost: Reg<'k, A>,
}

impl<'k, A: Float> Statistics<'k, A> {
    /// From what [`combine_moments`] gives.
    pub(super) fn new(total: &Lanes<'k, A>, eps: F64<'k>) -> Self {
        let variance = total[3] / total[0];
        let rstd = (variance + eps.convert::<A>()).sqrt().rcp();
        // An infinity in the channel leaves no number; say so in the mean, too.
        let mean = variance.is_nan().select(variance, total[1] + total[2]);
        let lost = (total[1] - mean) + total[2];
        Self { mean, rstd, unbiased: total[3] / (total[0] - 1.0), lost }
    }

    /// `mean`, `scale` and `shift` of `y = (x - mean) scale + shift`.
    pub(super) fn coefficients(&self, [weight, bias]: [Reg<'k, A>; 2]) -> [Reg<'k, A>; 3] {
        let scale = self.rstd * weight;
        [self.mean, scale, bias - self.lost * scale]
    }
}

pub(super) fn add_all<'k, A: Float>(a: Lanes<'k, A>, b: Lanes<'k, A>) -> Lanes<'k, A> {
    a.zip(b, |a, b| a + b)
}

/// Whether a bit of `present` is set.
pub(super) fn has<'k>(given: U32<'k>, bit: u32) -> Pred<'k> {
    given.bit_field(bit.trailing_zeros(), 1).ne(0)
}

/// `parameter[channel]` if it is there, else `otherwise`.
fn parameter<'k, A: Float>(
    from: Ptr<'k, Read, Elem>,
    channel: U64<'k>,
    given: U32<'k>,
    bit: u32,
    otherwise: f64,
) -> Reg<'k, A> {
    let k = given.k();
    k.if_else(has(given, bit), || from.at(channel).get(), || k.lit::<A>(otherwise))
}

impl<'k> Affine<'k> {
    /// Weight and bias of a channel, 1 and 0 where there are none.
    pub(super) fn of<A: Float>(self, channel: U64<'k>, present: U32<'k>) -> [Reg<'k, A>; 2] {
        let weight = parameter::<A>(self.weight, channel, present, present::WEIGHT, 1.0);
        [weight, parameter::<A>(self.bias, channel, present, present::BIAS, 0.0)]
    }
}

/// One value of each channel a row, in a `[rows, channels]` array.
pub(super) fn set_rows<'k, A: Float, S: Writable>(
    to: Ptr<'k, S, Elem>,
    channels: U64<'k>,
    channel: U64<'k>,
    rows: impl IntoIterator<Item = Reg<'k, A>>,
) {
    for (row, value) in rows.into_iter().enumerate() {
        to.at(channels * row as u64 + channel).set(value);
    }
}

/// Training in one launch, which holds what it has read in shared memory; `common` is shared with the backward pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct FusedTraining<C> {
    pub(super) common: C,
    pub(super) residual: bool,
}

impl<C> FusedTraining<C> {
    /// The part of the kernel's name.
    pub(super) const fn step(&self) -> &'static str {
        if self.residual { "add" } else { "training" }
    }
}

/// The arguments of training that belong to channels.
#[derive(Clone, Copy)]
pub(super) struct Training<'k> {
    pub(super) affine: Affine<'k>,
    pub(super) running: Running<'k>,
    pub(super) results: Results<'k>,
    pub(super) settings: Settings<'k>,
}

impl<'k> Training<'k> {
    /// Stores mean and `rstd` of a channel.
    pub(super) fn save<A: Float>(self, channel: U64<'k>, s: &Statistics<'k, A>) {
        self.results.mean.at(channel).set(s.mean);
        self.results.rstd.at(channel).set(s.rstd);
    }

    /// Moves the running mean and variance, if there are any.
    pub(super) fn update_running<A: Float>(self, channel: U64<'k>, s: &Statistics<'k, A>) {
        let Self { running, results, settings, .. } = self;
        settings.present.k().if_(has(settings.present, present::RUNNING), || {
            let factor = settings.factor.convert::<A>();
            let moved = |old: Ptr<'k, Read, Elem>, new: Reg<'k, A>| {
                old.at(channel).get::<A>() * (1.0 - factor) + new * factor
            };
            let (mean, var) = (moved(running.mean, s.mean), moved(running.var, s.unbiased));
            results.running_mean.at(channel).set(mean);
            results.running_var.at(channel).set(var);
        });
    }

    /// All of a channel from what [`combine_moments`] gives of it.
    pub(super) fn finish<A: Float, S: Writable>(
        self,
        channel: U64<'k>,
        total: &Lanes<'k, A>,
        coefficients: Ptr<'k, S, Elem>,
        channels: U64<'k>,
    ) {
        let s = Statistics::new(total, self.settings.eps);
        self.save(channel, &s);
        let affine = self.affine.of(channel, self.settings.present);
        set_rows(coefficients, channels, channel, s.coefficients(affine));
        self.update_running(channel, &s);
    }
}

/// The gradients of the parameters of a channel, and `dx = of_dy dy + of_x (x - mean) + shift`.
pub(super) struct ChannelGradients<'k, A: Float> {
    rstd: Reg<'k, A>,
    dweight: Reg<'k, A>,
    dbias: Reg<'k, A>,
    weight: Reg<'k, A>,
}

impl<'k, A: Float> ChannelGradients<'k, A> {
    /// From the sums of `dy` and of `dy (x - mean)`.
    pub(super) fn new(saved: Saved<'k>, present: U32<'k>, channel: U64<'k>, sums: &Lanes<'k, A>) -> Self {
        let rstd = saved.rstd.at(channel).get::<A>();
        let weight = parameter::<A>(saved.weight, channel, present, present::WEIGHT, 1.0);
        Self { rstd, dweight: sums[1] * rstd, dbias: sums[0], weight }
    }

    /// From given sums.
    fn of_sums(a: &CoefficientsParams<'k>, channel: U64<'k>) -> Self {
        let [rstd, dweight, dbias] =
            [a.saved.rstd, a.dweight, a.dbias].map(|from| from.at(channel).get::<A>());
        let weight = parameter::<A>(a.saved.weight, channel, a.present, present::WEIGHT, 1.0);
        Self { rstd, dweight, dbias, weight }
    }

    /// Stores those of weight and bias that are wanted.
    pub(super) fn store(&self, to: Gradients<'k>, present: U32<'k>, channel: U64<'k>) {
        let k = present.k();
        k.if_(has(present, present::WEIGHT), || to.dweight.at(channel).set(self.dweight));
        k.if_(has(present, present::BIAS), || to.dbias.at(channel).set(self.dbias));
    }

    pub(super) fn of_dy(&self) -> Reg<'k, A> {
        self.weight * self.rstd
    }

    /// `of_x` and `shift` where the gradient goes through the statistics of `elements` values.
    pub(super) fn through_statistics(&self, of_dy: Reg<'k, A>, elements: Reg<'k, A>) -> [Reg<'k, A>; 2] {
        let of_x = -(of_dy * self.rstd * (self.dweight / elements));
        [of_x, -(of_dy * (self.dbias / elements))]
    }
}

/// Part `part` of a channel as [`combine_moments`] takes it, from the three rows that a walk leaves of each part.
fn moments_of_parts<'k, A: Float>(
    partial: Ptr<'k, Read, Elem>,
    channels: U64<'k>,
    elements: U64<'k>,
    part_elements: U64<'k>,
) -> impl Fn(U64<'k>, U64<'k>, Pred<'k>) -> Lanes<'k, A> {
    move |channel, part, there| {
        let row = |i: u64| partial.at((part * 3 + i) * channels + channel).get::<A>();
        let count = (elements - part * part_elements).min(part_elements).convert::<A>();
        let squares = there.select(row(2), 0.0);
        Lanes::from(vec![there.select(count, 0.0), row(0), row(1), squares])
    }
}

/// The step between the two walks of training.
#[derive(Clone, Copy, Debug)]
pub(super) struct Combine(pub(super) Types);

impl AccumulateKernel for Combine {
    type Args = CombineArgs;

    fn spec(&self) -> KernelSpec {
        let statistics = ["partial", "results.mean", "results.rstd", "coefficients"];
        self.0.spec("combine", THREADS, statistics)
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: CombineParams<'k>) {
        k.overlap_grids();
        let load = moments_of_parts::<A>(a.partial, a.channels, a.elements, a.part_elements);
        let training =
            Training { affine: a.affine, running: a.running, results: a.results, settings: a.settings };
        let finish = |channel: U64<'k>, total: Lanes<'k, A>| {
            training.finish(channel, &total, a.coefficients, a.channels);
        };
        combine_parts(k, a.channels, a.parts, load, combine_moments, finish);
    }
}

/// The statistics of a batch as others merge them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moments(pub(super) Types);

impl AccumulateKernel for Moments {
    type Args = MomentsArgs;

    fn spec(&self) -> KernelSpec {
        self.0.spec("moments", THREADS, ["partial", "moments"])
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: MomentsParams<'k>) {
        k.overlap_grids();
        let load = moments_of_parts::<A>(a.partial, a.channels, a.elements, a.part_elements);
        let finish = |channel: U64<'k>, total: Lanes<'k, A>| {
            set_rows(a.moments, a.channels, channel, [total[1] + total[2], total[3]]);
            k.if_(channel.eq(0), || a.moments.at(a.channels * 2u64).set(total[0]));
        };
        combine_parts(k, a.channels, a.parts, load, combine_moments, finish);
    }
}

/// The step between the statistics of several batches and the walk that normalizes one of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Merge(pub(super) Types);

impl AccumulateKernel for Merge {
    type Args = MergeArgs;

    fn spec(&self) -> KernelSpec {
        let statistics = ["moments", "results.mean", "results.rstd", "count", "coefficients"];
        self.0.spec("merge", THREADS, statistics)
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: MergeParams<'k>) {
        k.overlap_grids();
        let load = |channel: U64<'k>, batch: U64<'k>, there: Pred<'k>| {
            let first = batch * (a.channels * 2u64 + 1u64);
            let number = |at: U64<'k>| there.select(a.moments.at(first + at).get::<A>(), 0.0);
            let [mean, squares] = [channel, a.channels + channel].map(number);
            Lanes::from(vec![number(a.channels * 2u64), mean, k.lit::<A>(0.0), squares])
        };
        let finish = |channel: U64<'k>, total: Lanes<'k, A>| {
            k.if_(channel.eq(0), || a.count.at(0u64).set(total[0]));
            // One value has no unbiased variance, none not even a mean: the running statistics stay.
            let mut settings = a.settings;
            let several = total[0].gt(1.0);
            settings.present = several.select(settings.present, settings.present & !present::RUNNING);
            let training = Training { affine: a.affine, running: a.running, results: a.results, settings };
            training.finish(channel, &total, a.coefficients, a.channels);
        };
        combine_parts(k, a.channels, a.batches, load, combine_moments, finish);
    }
}

/// The coefficients of inference.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fold(pub(super) Types);

/// Channels of a block.
pub(super) const FOLD_CHANNELS: u32 = 128;

impl AccumulateKernel for Fold {
    type Args = FoldArgs;

    fn spec(&self) -> KernelSpec {
        self.0.spec("fold", FOLD_CHANNELS, ["coefficients"])
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: FoldParams<'k>) {
        k.start_next_grid();
        let channel = k.global_idx_x();
        k.if_(channel.lt(a.channels), || {
            let variance = a.running.var.at(channel).get::<A>();
            let rstd = (variance + a.eps.convert::<A>()).sqrt().rcp();
            let mean = a.running.mean.at(channel).get::<A>();
            let [weight, bias] = a.affine.of::<A>(channel, a.present);
            set_rows(a.coefficients, a.channels, channel, [mean, rstd * weight, bias, rstd]);
        });
    }
}

/// The step between the two walks of a backward pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct CombineGradients(pub(super) Types);

impl AccumulateKernel for CombineGradients {
    type Args = CombineGradientsArgs;

    fn spec(&self) -> KernelSpec {
        let statistics = ["partial", "saved.mean", "saved.rstd", "coefficients"];
        self.0.spec("combine_gradients", THREADS, statistics)
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: CombineGradientsParams<'k>) {
        k.overlap_grids();
        let load = |channel: U64<'k>, part: U64<'k>, there: Pred<'k>| {
            let row = |i: u64| a.partial.at((part * 2 + i) * a.channels + channel).get::<A>();
            Lanes::from(vec![there.select(row(0), 0.0), there.select(row(1), 0.0)])
        };
        let finish = |channel: U64<'k>, total: Lanes<'k, A>| {
            let gradients = ChannelGradients::new(a.saved, a.present, channel, &total);
            gradients.store(a.gradients, a.present, channel);
            let of_dy = gradients.of_dy();
            let training = has(a.present, present::TRAINING);
            let zero = k.lit::<A>(0.0);
            // In inference these are the coefficients of y = (x - mean) scale + shift for x = dy.
            let [of_x, shift] = gradients.through_statistics(of_dy, a.elements.convert::<A>());
            let mean = training.select(a.saved.mean.at(channel).get::<A>(), zero);
            let rows = [mean, of_dy, training.select(of_x, zero), training.select(shift, zero)];
            set_rows(a.coefficients, a.channels, channel, rows);
        };
        combine_parts(k, a.channels, a.parts, load, add_all, finish);
    }
}

/// The step between sums of several batches and the walk that writes the gradient of one of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Coefficients(pub(super) Types);

impl AccumulateKernel for Coefficients {
    type Args = CoefficientsArgs;

    fn spec(&self) -> KernelSpec {
        let statistics = ["saved.mean", "saved.rstd", "dweight", "dbias", "count", "coefficients"];
        self.0.spec("coefficients", FOLD_CHANNELS, statistics)
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: CoefficientsParams<'k>) {
        k.start_next_grid();
        let channel = k.global_idx_x();
        k.if_(channel.lt(a.channels), || {
            let gradients = ChannelGradients::<A>::of_sums(&a, channel);
            let of_dy = gradients.of_dy();
            let [of_x, shift] = gradients.through_statistics(of_dy, a.count.at(0u64).get::<A>());
            let mean = a.saved.mean.at(channel).get::<A>();
            set_rows(a.coefficients, a.channels, channel, [mean, of_dy, of_x, shift]);
        });
    }
}

kernel_args! {
    /// Gradients of an empty batch.
    pub(super) struct ZeroArgs => ZeroParams { gradients: GradientsArgs, channels: u64, present: u32 }
}

/// The gradients of weight and bias that an empty batch has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Zero(pub(super) Types);

impl AccumulateKernel for Zero {
    type Args = ZeroArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(format!("batch_norm_zero_{}", self.0.parameters), BlockDim::x(FOLD_CHANNELS))
            .dtypes(DTypes::all(self.0.parameters))
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: ZeroParams<'k>) {
        let channel = k.global_idx_x();
        k.if_(channel.lt(a.channels), || {
            let zero = k.lit::<A>(0.0);
            k.if_(has(a.present, present::WEIGHT), || a.gradients.dweight.at(channel).set(zero));
            k.if_(has(a.present, present::BIAS), || a.gradients.dbias.at(channel).set(zero));
        });
    }
}

kernel_args! {
    /// Statistics of an empty batch.
    pub(super) struct UndefinedArgs => UndefinedParams { mean: Out<Elem>, rstd: Out<Elem>, channels: u64 }
}

/// The statistics that an empty batch has, in their type: a mean of 0 and an `rstd` of NaN, as those of an empty group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Undefined(pub(super) DType);

impl AccumulateKernel for Undefined {
    type Args = UndefinedArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(format!("batch_norm_undefined_{}", self.0), BlockDim::x(FOLD_CHANNELS))
            .dtypes(DTypes::all(self.0))
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: UndefinedParams<'k>) {
        let channel = k.global_idx_x();
        k.if_(channel.lt(a.channels), || {
            a.mean.at(channel).set(k.lit::<A>(0.0));
            a.rstd.at(channel).set(k.lit::<A>(f64::NAN));
        });
    }
}
