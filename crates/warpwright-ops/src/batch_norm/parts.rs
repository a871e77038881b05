//! The parts of batch norm, for whoever puts the statistics of several batches together in between: the moments of a batch, the result from the moments
//! of all, sums of the backward pass, and the gradient from sums of all.
//!
//! They are steps of the plans of training, with the same kernels but between two walks.

use warpwright_dsl::channels::CHANNELS_OF_BLOCK;
use warpwright_ptx::Target;
use warpwright_runtime::{Stream, Tensor};

use super::channel::{self, FOLD_CHANNELS, present};
use super::planner::{Planner, Walked};
use super::plans::lower;
use super::{BatchNorm, BatchNormOptions, Momentum, RunningStatistics, kernel};
use crate::catalogue::Direction;
use crate::plan::{self, Operation, Plan, PlanCache};
use crate::tensors::{OutSlot, tensors};
use crate::{Error, PlanError};

const MOMENTS: &str = "batch_moments";
const MERGED: &str = "batch_norm_merged";
const SUMS: &str = "batch_norm_sums";
const GRADIENT: &str = "batch_norm_gradient";
/// Numbers of each channel of which a walk makes the gradient.
const COEFFICIENTS: usize = 4;

/// The same normalisation with parameters in the type of statistics, all of which are there.
fn in_full(norm: &BatchNorm) -> BatchNorm {
    BatchNorm { parameter_dtype: norm.dtype.accumulator(), weight: true, bias: true, ..*norm }
}

/// The moments of a batch, as [`BatchNormMergedDesc`] merges them, in one read of `x`: `[2 channels + 1]` numbers, the mean of each channel, the sum
/// of squared distances from it, and how many values a channel has; zeros without values.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BatchMomentsDesc {
    /// The normalisation; weight, bias, their type, the ReLU and eps do not matter.
    pub norm: BatchNorm,
}

tensors! {
    /// Tensors of [`BatchMomentsDesc`].
    pub struct BatchMomentsArgs<'a> {
        /// The tensor.
        x: In,
        /// `[2 channels + 1]`, f32 (f64 for f64).
        moments: Out,
        /// Scratch memory: [`Plan::workspace`].
        workspace: Option<Out>,
    }
}

impl Operation for BatchMomentsDesc {
    type Args<'a> = BatchMomentsArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        type Args<'a> = BatchMomentsArgs<'a>;
        let norm = in_full(&self.norm);
        let p = Planner::new(MOMENTS, &norm, target)?;
        let walks = p.walks(1)?;
        let numbers = p.moments()?;
        let tensors = Args::specs([
            p.full(Args::x),
            Args::moments.holds(p.accumulate, numbers),
            Args::workspace.scratch(p.accumulate, p.workspace_len(&walks, 3, 0, 1)),
        ]);
        let steps = |w: &Walked| {
            let args = channel::MomentsArgs {
                partial: Args::workspace.written(),
                moments: Args::moments.arg(),
                channels: p.channels(),
                parts: w.split.parts,
                part_elements: w.split.part * w.split.per_step,
                elements: norm.values() as u64,
            };
            let grid = p.channel_grid(CHANNELS_OF_BLOCK)?;
            let moments = p.step(&channel::Moments(p.types), args, grid)?;
            Ok(vec![p.partial_statistics(w, Args::x, Args::workspace)?, moments])
        };
        let empty = || {
            let (dweight, dbias) = (Args::moments.arg(), Args::moments.arg());
            let gradients = channel::GradientsArgs { dweight, dbias };
            let args = channel::ZeroArgs { gradients, channels: numbers as u64, present: present::WEIGHT };
            let grid = plan::cover(MOMENTS, numbers, FOLD_CHANNELS)?.unwrap_or([1; 3]);
            Ok(vec![p.step(&channel::Zero(p.types), args, grid)?])
        };
        p.finish(Direction::Forward, tensors, None, walks, steps, empty)
    }
}

/// `y` from the statistics of several batches of which `x` is one, as [`super::BatchNormDesc`] has it for one: their moments merged exactly (Chan, Golub and
/// LeVeque 1979), in an order that depends on their number alone. Running statistics stay where all batches have one value of a channel or none.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BatchNormMergedDesc {
    /// The normalisation of this batch.
    pub norm: BatchNorm,
    /// How many batches there are.
    pub batches: usize,
    /// Whether a tensor like `x` is added to the result, before the ReLU.
    pub residual: bool,
    /// How the running statistics are updated; `None` if there are none.
    pub momentum: Option<Momentum>,
}

tensors! {
    /// Tensors of [`BatchNormMergedDesc`].
    pub struct BatchNormMergedArgs<'a> {
        /// The tensor to be normalized.
        x: In,
        /// `[batches, 2 channels + 1]`, f32 (f64 for f64): of each batch what [`BatchMomentsDesc`] gives.
        moments: In,
        /// `[channels]`
        weight: Option<In>,
        /// `[channels]`
        bias: Option<In>,
        /// Like `x`.
        residual: Option<In>,
        /// Like `x`; may be `x` or `residual` itself.
        y: Out,
        /// `[channels]`, f32 (f64 for f64), for the backward pass.
        mean: Out,
        /// `[channels]`, f32 (f64 for f64), for the backward pass.
        rstd: Out,
        /// `[1]`, as the mean: how many values of a channel all batches have, for the backward pass.
        count: Out,
        /// `[channels]`, moved towards the mean of all batches.
        running_mean: Option<InOut>,
        /// `[channels]`, moved towards the variance of all batches.
        running_var: Option<InOut>,
        /// Scratch memory: [`Plan::workspace`].
        workspace: Option<Out>,
    }
}

impl Operation for BatchNormMergedDesc {
    type Args<'a> = BatchNormMergedArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        type Args<'a> = BatchNormMergedArgs<'a>;
        let (norm, batches, running) = (&self.norm, self.batches, self.momentum.is_some());
        let p = Planner::new(MERGED, norm, target)?;
        p.check_momentum(self.momentum)?;
        let walks = p.walks(1)?;
        let moments = p.moments()?.checked_mul(batches).filter(|_| batches > 0);
        let moments = moments.ok_or_else(|| {
            PlanError::refused(MERGED, "batches", batches, "at least one, and less than 2^63 moments")
        })?;
        let statistics = |slot: OutSlot| slot.holds(p.accumulate, norm.channels);
        let tensors = Args::specs([
            p.full(Args::x),
            Args::moments.holds(p.accumulate, moments),
            p.parameter(Args::weight).optional(norm.weight),
            p.parameter(Args::bias).optional(norm.bias),
            p.full(Args::residual).like(Args::x).optional(self.residual),
            p.full_result(Args::y).like(Args::x).in_place(),
            statistics(Args::mean),
            statistics(Args::rstd),
            Args::count.holds(p.accumulate, 1),
            Args::running_mean.holds(norm.parameter_dtype, norm.channels).optional(running),
            Args::running_var.holds(norm.parameter_dtype, norm.channels).optional(running),
            Args::workspace.scratch(p.accumulate, 3 * norm.channels),
        ]);
        let merge = || {
            let args = channel::MergeArgs {
                moments: Args::moments.arg(),
                affine: channel::AffineArgs { weight: Args::weight.arg(), bias: Args::bias.arg() },
                running: channel::RunningArgs {
                    mean: Args::running_mean.before().arg(),
                    var: Args::running_var.before().arg(),
                },
                results: channel::ResultsArgs {
                    mean: Args::mean.arg(),
                    rstd: Args::rstd.arg(),
                    running_mean: Args::running_mean.after().arg(),
                    running_var: Args::running_var.after().arg(),
                },
                count: Args::count.arg(),
                coefficients: Args::workspace.arg(),
                channels: p.channels(),
                batches: batches as u64,
                settings: channel::SettingsArgs {
                    present: p.present(if running { present::RUNNING } else { 0 }),
                    eps: norm.eps.get(),
                    factor: self.momentum.map_or(0.0, Momentum::factor),
                },
            };
            p.step(&channel::Merge(p.types), args, p.channel_grid(CHANNELS_OF_BLOCK)?)
        };
        let steps = |w: &Walked| {
            let (read, coefficients) = ([Args::x.arg(), Args::residual.arg()], Args::workspace.written());
            let normalize = p.normalize(w, read, Args::y, self.residual, lower(norm.relu), coefficients)?;
            Ok(vec![merge()?, normalize])
        };
        let empty = || if norm.channels == 0 { Ok(Vec::new()) } else { Ok(vec![merge()?]) };
        p.finish(Direction::Forward, tensors, None, walks, steps, empty)
    }
}

/// The sums that the gradient of training depends on: `dweight = sum(g (x - mean) rstd)` and `dbias = sum(g)` over each channel, in one read of
/// `x` and `dy`; `g = dy`, with a ReLU only where `y > 0`. Zeros without values.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BatchNormSumsDesc {
    /// The normalisation; weight, bias, their type and eps do not matter.
    pub norm: BatchNorm,
}

tensors! {
    /// Tensors of [`BatchNormSumsDesc`].
    pub struct BatchNormSumsArgs<'a> {
        /// The tensor that was normalized.
        x: In,
        /// With a ReLU: the result.
        y: Option<In>,
        /// Gradient of the result.
        dy: In,
        /// `[channels]`, f32 (f64 for f64), of all batches.
        mean: In,
        /// `[channels]`, as the mean.
        rstd: In,
        /// `dweight` and `dbias`: `[2, channels]`, as the mean.
        sums: Out,
        /// With a ReLU: the gradient before it, which is that of a residual, like `x`.
        g: Option<Out>,
        /// Scratch memory: [`Plan::workspace`].
        workspace: Option<Out>,
    }
}

impl Operation for BatchNormSumsDesc {
    type Args<'a> = BatchNormSumsArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        type Args<'a> = BatchNormSumsArgs<'a>;
        let norm = in_full(&self.norm);
        let p = Planner::new(SUMS, &norm, target)?;
        let walks = p.walks(if norm.relu { 3 } else { 2 })?;
        let of_channels = [Args::mean, Args::rstd].map(|slot| slot.holds(p.accumulate, norm.channels));
        let tensors = Args::specs(
            [
                p.full(Args::x),
                p.full(Args::y).like(Args::x).optional(norm.relu),
                p.full(Args::dy).like(Args::x),
                p.full_result(Args::g).like(Args::x).optional(norm.relu),
                Args::sums.holds(p.accumulate, p.numbers(2)?),
                Args::workspace.scratch(p.accumulate, p.workspace_len(&walks, 2, COEFFICIENTS, 2)),
            ]
            .into_iter()
            .chain(of_channels),
        );
        let gradients =
            || channel::GradientsArgs { dweight: Args::sums.arg(), dbias: Args::sums.arg_at(p.row(1)) };
        let steps = |w: &Walked| {
            let def = kernel::GradientSums { common: w.common, relu: norm.relu };
            let args = kernel::GradientSumsArgs {
                x: Args::x.arg(),
                dy: Args::dy.arg(),
                y: Args::y.arg(),
                mean: Args::mean.arg(),
                g: Args::g.arg(),
                partial: Args::workspace.arg(),
                sizes: p.sizes(&w.split),
            };
            let sums = p.step(&def, args, w.grid)?;
            // The weight counts for coefficients alone, which nobody reads.
            let (mean, rstd, weight) = (Args::mean.arg(), Args::rstd.arg(), Args::rstd.arg());
            let saved = channel::SavedArgs { mean, rstd, weight };
            Ok(vec![sums, p.combine_gradients(w, saved, gradients(), Args::workspace, 0)?])
        };
        let empty = || p.zero(gradients());
        p.finish(Direction::Backward, tensors, None, walks, steps, empty)
    }
}

/// The gradient from given sums: `dx = weight rstd (g - dbias / n - (x - mean) rstd dweight / n)`, with the sums and the number of values `n` of all batches that
/// the statistics are of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BatchNormGradientDesc {
    /// The normalisation of this batch; bias, ReLU and eps do not matter.
    pub norm: BatchNorm,
}

tensors! {
    /// Tensors of [`BatchNormGradientDesc`].
    pub struct BatchNormGradientArgs<'a> {
        /// The tensor that was normalized.
        x: In,
        /// Gradient of the result, before a ReLU.
        g: In,
        /// `[channels]`
        weight: Option<In>,
        /// `[channels]`, f32 (f64 for f64), of all batches.
        mean: In,
        /// `[channels]`, as the mean.
        rstd: In,
        /// `[1]`, as the mean: how many values of a channel all batches have.
        count: In,
        /// `dweight` and `dbias` of all batches: `[2, channels]`, as the mean.
        sums: In,
        /// Gradient of `x`.
        dx: Out,
        /// Scratch memory: [`Plan::workspace`].
        workspace: Option<Out>,
    }
}

impl Operation for BatchNormGradientDesc {
    type Args<'a> = BatchNormGradientArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        type Args<'a> = BatchNormGradientArgs<'a>;
        let norm = &self.norm;
        let p = Planner::new(GRADIENT, norm, target)?;
        let walks = p.walks(2)?;
        let coefficients = if walks.is_empty() { 0 } else { p.numbers(COEFFICIENTS)? };
        let tensors = Args::specs([
            p.full(Args::x),
            p.full(Args::g).like(Args::x),
            p.parameter(Args::weight).optional(norm.weight),
            Args::mean.holds(p.accumulate, norm.channels),
            Args::rstd.holds(p.accumulate, norm.channels),
            Args::count.holds(p.accumulate, 1),
            Args::sums.holds(p.accumulate, p.numbers(2)?),
            p.full_result(Args::dx).like(Args::x),
            Args::workspace.scratch(p.accumulate, coefficients),
        ]);
        let steps = |w: &Walked| {
            let (mean, rstd, weight) = (Args::mean.arg(), Args::rstd.arg(), Args::weight.arg());
            let args = channel::CoefficientsArgs {
                saved: channel::SavedArgs { mean, rstd, weight },
                dweight: Args::sums.arg(),
                dbias: Args::sums.arg_at(p.row(1)),
                count: Args::count.arg(),
                coefficients: Args::workspace.arg(),
                channels: p.channels(),
                present: p.present(0),
            };
            let grid = p.channel_grid(FOLD_CHANNELS)?;
            let coefficients = p.step(&channel::Coefficients(p.types), args, grid)?;
            let read = [Args::x.arg(), Args::g.arg(), Args::workspace.written()];
            Ok(vec![coefficients, p.gradient(w, read, Args::dx.arg())?])
        };
        p.finish(Direction::Backward, tensors, None, walks, steps, || Ok(Vec::new()))
    }
}

fn numbers(stream: &Stream, x: &Tensor, shape: &[usize]) -> Result<Tensor, Error> {
    Ok(Tensor::empty_on(stream, x.dtype().accumulator(), shape)?)
}

/// The moments of a batch, `[2 channels + 1]` in f32 (f64 for f64), in one read of `x`: the mean of each channel, the sum of squared distances from
/// it, and how many values a channel has, for [`batch_norm_merged`]. `x` is as for [`batch_norm`](super::batch_norm()), without values too; of options the layout counts.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::batch_norm::{BatchNormOptions, batch_moments};
/// use warpwright::{Device, Tensor};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 5.0], &[2, 1])?;
/// let moments = batch_moments(&stream, &x, BatchNormOptions::default())?;
/// assert_eq!(moments.to_vec_on::<f32>(&stream)?, [3.0, 8.0, 2.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if the element type is none of those of `batch_norm`. [`Error::Runtime`] if memory runs out.
pub fn batch_moments(stream: &Stream, x: &Tensor, options: BatchNormOptions<'_>) -> Result<Tensor, Error> {
    static PLANS: PlanCache<BatchMomentsDesc> = PlanCache::new();
    let norm = options.norm(x, None);
    let plan = PLANS.get(&BatchMomentsDesc { norm }, stream.device().target())?;
    let mut moments = numbers(stream, x, &[norm.channels.saturating_mul(2).saturating_add(1)])?;
    let mut workspace = plan.workspace(stream)?;
    let workspace = workspace.as_mut().map(Tensor::as_mut);
    plan.launch(stream, BatchMomentsArgs { x: x.as_ref(), moments: moments.as_mut(), workspace })?;
    Ok(moments)
}

/// The statistics of several batches that a backward pass takes.
#[derive(Debug)]
pub struct MergedStatistics {
    /// The mean of each channel, `[channels]` in f32 (f64 for f64).
    pub mean: Tensor,
    /// `1 / sqrt(var + eps)`, as the mean.
    pub rstd: Tensor,
    /// How many values of a channel all batches have, `[1]`, as the mean.
    pub count: Tensor,
}

/// [`batch_norm`](super::batch_norm()) of `x` with the statistics of several batches, of which it is one: the result, and those statistics.
///
/// `moments` has a row for each batch, `[batches, 2 channels + 1]` in f32 (f64 for f64), as [`batch_moments`] gives it; rows are merged exactly (Chan, Golub and LeVeque
/// 1979) in an order that depends on their number alone. `x` and options are as for `batch_norm`; it may be without values, and then
/// the result is, too. Running statistics move towards those of all batches, and stay where these have one value of a channel or none.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::batch_norm::{BatchNormOptions, batch_norm_merged};
/// use warpwright::{Device, Tensor};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 5.0], &[2, 1])?;
/// // Of this batch, and of one of 2 values that are 7.
/// let moments = Tensor::from_slice(&device, &[3.0f32, 8.0, 2.0, 7.0, 0.0, 2.0], &[2, 3])?;
/// let options = BatchNormOptions { eps: 3.0, ..Default::default() };
/// let (y, all) = batch_norm_merged(&stream, &x, &moments, None, options)?;
/// assert_eq!(all.mean.to_vec_on::<f32>(&stream)?, [5.0]);
/// assert_eq!(all.count.to_vec_on::<f32>(&stream)?, [4.0]);
/// assert!((y.to_vec_on::<f32>(&stream)?[0] - -4.0 / 9f32.sqrt()).abs() < 1e-6);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if there is no row, `eps` is negative or the element type is none of those of `batch_norm`. [`Error::Runtime`] if the tensors do not fit
/// each other, or memory runs out.
pub fn batch_norm_merged(
    stream: &Stream,
    x: &Tensor,
    moments: &Tensor,
    running: Option<RunningStatistics<'_>>,
    options: BatchNormOptions<'_>,
) -> Result<(Tensor, MergedStatistics), Error> {
    static PLANS: PlanCache<BatchNormMergedDesc> = PlanCache::new();
    let norm = options.norm(x, running.as_ref().map(|running| running.mean.dtype()));
    let momentum = running.as_ref().map(|running| running.momentum);
    let batches = moments.shape().first().copied().unwrap_or(0);
    let desc = BatchNormMergedDesc { norm, batches, residual: options.residual.is_some(), momentum };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let mut y = Tensor::empty_on(stream, x.dtype(), x.shape())?;
    let of_channels = || numbers(stream, x, &[norm.channels]);
    let (mut mean, mut rstd, mut count) = (of_channels()?, of_channels()?, numbers(stream, x, &[1])?);
    let mut workspace = plan.workspace(stream)?;
    let (running_mean, running_var) = running.map(|r| (r.mean.as_mut(), r.var.as_mut())).unzip();
    let args = BatchNormMergedArgs {
        x: x.as_ref(),
        moments: moments.as_ref(),
        weight: options.weight.map(Tensor::as_ref),
        bias: options.bias.map(Tensor::as_ref),
        residual: options.residual.map(Tensor::as_ref),
        y: y.as_mut(),
        mean: mean.as_mut(),
        rstd: rstd.as_mut(),
        count: count.as_mut(),
        running_mean,
        running_var,
        workspace: workspace.as_mut().map(Tensor::as_mut),
    };
    plan.launch(stream, args)?;
    Ok((y, MergedStatistics { mean, rstd, count }))
}

/// The sums of a backward pass, see [`BatchNormSumsDesc`].
#[derive(Debug)]
pub struct BatchNormSums {
    /// `sum(g (x - mean) rstd)` and `sum(g)`, which are `dweight` and `dbias` of this batch: `[2, channels]` in f32 (f64 for f64).
    pub sums: Tensor,
    /// With a ReLU: the gradient before it, like `x`.
    pub g: Option<Tensor>,
}

/// The sums over each channel that the gradient of [`batch_norm`](super::batch_norm()) depends on, from given statistics of f32 (f64 for f64), in one read of
/// `x` and `dy`, the gradient of the result. `y` is the result if it passed a ReLU; of options the layout counts.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::batch_norm::{BatchNormOptions, batch_norm_sums};
/// use warpwright::{Device, Tensor};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 5.0], &[2, 1])?;
/// let dy = Tensor::from_slice(&device, &[1.0f32, 2.0], &[2, 1])?;
/// let mean = Tensor::from_slice(&device, &[3.0f32], &[1])?;
/// let rstd = Tensor::from_slice(&device, &[0.5f32], &[1])?;
/// let found = batch_norm_sums(&stream, &x, None, &dy, [&mean, &rstd], BatchNormOptions::default())?;
/// assert_eq!(found.sums.to_vec_on::<f32>(&stream)?, [1.0, 3.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if the element type is none of those of `batch_norm`. [`Error::Runtime`] if the tensors do not fit each other, or memory
/// runs out.
pub fn batch_norm_sums(
    stream: &Stream,
    x: &Tensor,
    y: Option<&Tensor>,
    dy: &Tensor,
    [mean, rstd]: [&Tensor; 2],
    options: BatchNormOptions<'_>,
) -> Result<BatchNormSums, Error> {
    static PLANS: PlanCache<BatchNormSumsDesc> = PlanCache::new();
    let norm = BatchNorm { relu: y.is_some(), ..options.norm(x, None) };
    let plan = PLANS.get(&BatchNormSumsDesc { norm }, stream.device().target())?;
    let mut sums = numbers(stream, x, &[2, norm.channels])?;
    let mut g = y.map(|_| Tensor::empty_on(stream, x.dtype(), x.shape())).transpose()?;
    let mut workspace = plan.workspace(stream)?;
    let args = BatchNormSumsArgs {
        x: x.as_ref(),
        y: y.map(Tensor::as_ref),
        dy: dy.as_ref(),
        mean: mean.as_ref(),
        rstd: rstd.as_ref(),
        sums: sums.as_mut(),
        g: g.as_mut().map(Tensor::as_mut),
        workspace: workspace.as_mut().map(Tensor::as_mut),
    };
    plan.launch(stream, args)?;
    Ok(BatchNormSums { sums, g })
}

/// `dx = weight rstd (g - dbias / n - (x - mean) rstd dweight / n)`, see [`BatchNormGradientDesc`]: the gradient of [`batch_norm_merged`] in `x` from statistics and from
/// `sums`, `[2, channels]` in f32 (f64 for f64), those of [`batch_norm_sums`] added over all batches. `g` is like `x`, and so is the result; of options weight and layout count.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::batch_norm::{BatchNormOptions, MergedStatistics, batch_norm_gradient};
/// use warpwright::{Device, Tensor};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let numbers = |values: &[f32], shape: &[usize]| Tensor::from_slice(&device, values, shape);
/// let (x, dy) = (numbers(&[1.0, 5.0], &[2, 1])?, numbers(&[1.0, 2.0], &[2, 1])?);
/// let (mean, rstd, count) = (numbers(&[3.0], &[1])?, numbers(&[0.5], &[1])?, numbers(&[2.0], &[1])?);
/// let all = MergedStatistics { mean, rstd, count };
/// let dx = batch_norm_gradient(&stream, &x, &dy, &all, &numbers(&[1.0, 3.0], &[2, 1])?, BatchNormOptions::default())?;
/// assert_eq!(dx.to_vec_on::<f32>(&stream)?, [0.0, 0.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`batch_norm_sums`].
pub fn batch_norm_gradient(
    stream: &Stream,
    x: &Tensor,
    g: &Tensor,
    statistics: &MergedStatistics,
    sums: &Tensor,
    options: BatchNormOptions<'_>,
) -> Result<Tensor, Error> {
    static PLANS: PlanCache<BatchNormGradientDesc> = PlanCache::new();
    let norm = BatchNorm { relu: false, ..options.norm(x, None) };
    let plan = PLANS.get(&BatchNormGradientDesc { norm }, stream.device().target())?;
    let mut dx = Tensor::empty_on(stream, x.dtype(), x.shape())?;
    let mut workspace = plan.workspace(stream)?;
    let args = BatchNormGradientArgs {
        x: x.as_ref(),
        g: g.as_ref(),
        weight: options.weight.map(Tensor::as_ref),
        mean: statistics.mean.as_ref(),
        rstd: statistics.rstd.as_ref(),
        count: statistics.count.as_ref(),
        sums: sums.as_ref(),
        dx: dx.as_mut(),
        workspace: workspace.as_mut().map(Tensor::as_mut),
    };
    plan.launch(stream, args)?;
    Ok(dx)
}
