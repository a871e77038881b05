//! The parts of batch norm, for whoever puts the statistics of several batches together in between: statistics alone, sums of the backward
//! pass alone, and the gradient from given sums. [`super::BatchNormInferenceDesc`] normalises by given statistics.
//!
//! They are steps of the plans of training, with the same kernels.

use warpwright_ptx::Target;
use warpwright_runtime::{Stream, Tensor};

use super::planner::{CombineChannels, Planner, Walked};
use super::{BatchNorm, BatchNormOptions, channel, kernel};
use crate::catalogue::Direction;
use crate::plan::{Operation, Plan, PlanCache};
use crate::tensors::tensors;
use crate::{Error, PlanError};

const STATISTICS: &str = "batch_norm_statistics";
const SUMS: &str = "batch_norm_sums";
const GRADIENT: &str = "batch_norm_gradient";
/// Rows of the coefficients of [`BatchNormGradientDesc`].
const COEFFICIENTS: usize = 4;

/// The same normalisation with parameters in the type of statistics, all of which are there.
fn in_full(norm: &BatchNorm) -> BatchNorm {
    BatchNorm { parameter_dtype: norm.dtype.accumulator(), weight: true, bias: true, ..*norm }
}

/// The statistics of each channel: `mean` and `rstd = 1 / sqrt(var + eps)`, in one read of `x`. With an `eps` of 0 the sum of squared
/// distances from the mean is `n / rstd^2` for `n` values of a channel. A channel of one value has a variance of 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BatchStatisticsDesc {
    /// The normalisation; weight, bias, their type and the ReLU do not matter.
    pub norm: BatchNorm,
}

tensors! {
    /// Tensors of [`BatchStatisticsDesc`].
    pub struct BatchStatisticsArgs<'a> {
        /// The tensor.
        x: In,
        /// `[channels]`, f32 (f64 for f64).
        mean: Out,
        /// `[channels]`, f32 (f64 for f64).
        rstd: Out,
        /// Scratch memory: [`Plan::workspace`].
        workspace: Option<Out>,
    }
}

impl Operation for BatchStatisticsDesc {
    type Args<'a> = BatchStatisticsArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        type Args<'a> = BatchStatisticsArgs<'a>;
        let norm = in_full(&self.norm);
        let p = Planner::new(STATISTICS, &norm, target)?;
        let walks = p.walks(1)?;
        let tensors = Args::specs([
            p.full(Args::x),
            Args::mean.holds(p.accumulate, norm.channels),
            Args::rstd.holds(p.accumulate, norm.channels),
            Args::workspace.scratch(p.accumulate, p.workspace_len(&walks, 3, 3, 1)),
        ]);
        // Nothing is present: these are not read or written.
        let (unread, unwritten) = (Args::x, Args::mean);
        let channels = CombineChannels {
            affine: channel::AffineArgs { weight: unread.arg(), bias: unread.arg() },
            running: channel::RunningArgs { mean: unread.arg(), var: unread.arg() },
            results: channel::ResultsArgs {
                mean: Args::mean.arg(),
                rstd: Args::rstd.arg(),
                running_mean: unwritten.arg(),
                running_var: unwritten.arg(),
            },
            settings: channel::SettingsArgs { present: 0, eps: norm.eps.get(), factor: 0.0 },
        };
        let steps = |w: &Walked| p.statistics(w, Args::x, Args::workspace, &channels).map(Vec::from);
        let empty = || p.undefined(Args::mean.arg(), Args::rstd.arg());
        p.finish(Direction::Forward, tensors, None, walks, steps, empty)
    }
}

/// The sums that the gradient of training depends on: `dbias = sum(g)` and `dweight = sum(g (x - mean) rstd)` over each channel, in one read of
/// `x` and `dy`; `g = dy`, with a ReLU only where `y > 0`.
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
        /// `[channels]`, as the mean.
        dweight: Out,
        /// `[channels]`, as the mean.
        dbias: Out,
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
        let sums = [Args::dweight, Args::dbias].map(|slot| slot.holds(p.accumulate, norm.channels));
        let tensors = Args::specs(
            [
                p.full(Args::x),
                p.full(Args::y).like(Args::x).optional(norm.relu),
                p.full(Args::dy).like(Args::x),
                p.full_result(Args::g).like(Args::x).optional(norm.relu),
                Args::workspace.scratch(p.accumulate, p.workspace_len(&walks, 2, COEFFICIENTS, 2)),
            ]
            .into_iter()
            .chain(of_channels)
            .chain(sums),
        );
        let gradients = || channel::GradientsArgs { dweight: Args::dweight.arg(), dbias: Args::dbias.arg() };
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

/// The gradient from given sums: `dx = a g + b (x - mean) + c` with numbers of each channel. Training with `n` values, of one batch or of
/// several, has `a = weight rstd`, `b = -a rstd dweight / n`, `c = -a dbias / n`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BatchNormGradientDesc {
    /// The normalisation; weight, bias, their type, the ReLU and eps do not matter.
    pub norm: BatchNorm,
}

tensors! {
    /// Tensors of [`BatchNormGradientDesc`].
    pub struct BatchNormGradientArgs<'a> {
        /// The tensor that was normalized.
        x: In,
        /// Gradient of the result, before a ReLU.
        g: In,
        /// `mean`, `a`, `b`, `c`: `[4, channels]`, f32 (f64 for f64).
        coefficients: In,
        /// Gradient of `x`.
        dx: Out,
    }
}

impl Operation for BatchNormGradientDesc {
    type Args<'a> = BatchNormGradientArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        type Args<'a> = BatchNormGradientArgs<'a>;
        let norm = in_full(&self.norm);
        let p = Planner::new(GRADIENT, &norm, target)?;
        let walks = p.walks(2)?;
        let tensors = Args::specs([
            p.full(Args::x),
            p.full(Args::g).like(Args::x),
            Args::coefficients.holds(p.accumulate, COEFFICIENTS * norm.channels),
            p.full_result(Args::dx).like(Args::x),
        ]);
        let steps = |w: &Walked| {
            let (x, g, coefficients) = (Args::x.arg(), Args::g.arg(), Args::coefficients.arg());
            Ok(vec![p.gradient(w, [x, g, coefficients], Args::dx.arg())?])
        };
        p.finish(Direction::Backward, tensors, None, walks, steps, || Ok(Vec::new()))
    }
}

fn of_channels(stream: &Stream, norm: &BatchNorm) -> Result<Tensor, Error> {
    Ok(Tensor::empty_on(stream, norm.dtype.accumulator(), &[norm.channels])?)
}

/// Mean and `rstd = 1 / sqrt(var + eps)` of each channel, `[channels]` in f32 (f64 for f64), in one read of `x`; `x` is as for
/// [`batch_norm`](super::batch_norm()), of options eps and layout count. A channel of one value has a variance of 0; without values the mean is 0 and
/// `rstd` NaN.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::batch_norm::{BatchNormOptions, batch_statistics};
/// use warpwright::{Device, Tensor};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 5.0], &[2, 1])?;
/// let [mean, rstd] = batch_statistics(&stream, &x, BatchNormOptions { eps: 0.0, ..Default::default() })?;
/// assert_eq!(mean.to_vec_on::<f32>(&stream)?, [3.0]);
/// assert_eq!(rstd.to_vec_on::<f32>(&stream)?, [0.5]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if `eps` is negative or the element type is none of those of `batch_norm`. [`Error::Runtime`] if memory runs out.
pub fn batch_statistics(
    stream: &Stream,
    x: &Tensor,
    options: BatchNormOptions<'_>,
) -> Result<[Tensor; 2], Error> {
    static PLANS: PlanCache<BatchStatisticsDesc> = PlanCache::new();
    let norm = options.norm(x, None);
    let plan = PLANS.get(&BatchStatisticsDesc { norm }, stream.device().target())?;
    let (mut mean, mut rstd) = (of_channels(stream, &norm)?, of_channels(stream, &norm)?);
    let mut workspace = plan.workspace(stream)?;
    let args = BatchStatisticsArgs {
        x: x.as_ref(),
        mean: mean.as_mut(),
        rstd: rstd.as_mut(),
        workspace: workspace.as_mut().map(Tensor::as_mut),
    };
    plan.launch(stream, args)?;
    Ok([mean, rstd])
}

/// The sums of a backward pass, see [`BatchNormSumsDesc`].
#[derive(Debug)]
pub struct BatchNormSums {
    /// `sum(g (x - mean) rstd)`, `[channels]` in f32 (f64 for f64).
    pub dweight: Tensor,
    /// `sum(g)`, as `dweight`.
    pub dbias: Tensor,
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
/// let sums = batch_norm_sums(&stream, &x, None, &dy, [&mean, &rstd], BatchNormOptions::default())?;
/// assert_eq!(sums.dbias.to_vec_on::<f32>(&stream)?, [3.0]);
/// assert_eq!(sums.dweight.to_vec_on::<f32>(&stream)?, [1.0]);
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
    let (mut dweight, mut dbias) = (of_channels(stream, &norm)?, of_channels(stream, &norm)?);
    let mut g = y.map(|_| Tensor::empty_on(stream, x.dtype(), x.shape())).transpose()?;
    let mut workspace = plan.workspace(stream)?;
    let args = BatchNormSumsArgs {
        x: x.as_ref(),
        y: y.map(Tensor::as_ref),
        dy: dy.as_ref(),
        mean: mean.as_ref(),
        rstd: rstd.as_ref(),
        dweight: dweight.as_mut(),
        dbias: dbias.as_mut(),
        g: g.as_mut().map(Tensor::as_mut),
        workspace: workspace.as_mut().map(Tensor::as_mut),
    };
    plan.launch(stream, args)?;
    Ok(BatchNormSums { dweight, dbias, g })
}

/// `dx = a g + b (x - mean) + c`, see [`BatchNormGradientDesc`]: `coefficients` are `mean`, `a`, `b` and `c`, `[4, channels]` in f32 (f64 for f64); `g` is
/// like `x`, and so is the result. Of options the layout counts.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::batch_norm::{BatchNormOptions, batch_norm_gradient};
/// use warpwright::{Device, Tensor};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 5.0], &[2, 1])?;
/// let dy = Tensor::from_slice(&device, &[1.0f32, 2.0], &[2, 1])?;
/// let coefficients = Tensor::from_slice(&device, &[3.0f32, 2.0, 0.5, 4.0], &[4, 1])?;
/// let dx = batch_norm_gradient(&stream, &x, &dy, &coefficients, BatchNormOptions::default())?;
/// assert_eq!(dx.to_vec_on::<f32>(&stream)?, [5.0, 9.0]);
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
    coefficients: &Tensor,
    options: BatchNormOptions<'_>,
) -> Result<Tensor, Error> {
    static PLANS: PlanCache<BatchNormGradientDesc> = PlanCache::new();
    let norm = BatchNorm { relu: false, ..options.norm(x, None) };
    let plan = PLANS.get(&BatchNormGradientDesc { norm }, stream.device().target())?;
    let mut dx = Tensor::empty_on(stream, x.dtype(), x.shape())?;
    let (x, g, coefficients) = (x.as_ref(), g.as_ref(), coefficients.as_ref());
    plan.launch(stream, BatchNormGradientArgs { x, g, coefficients, dx: dx.as_mut() })?;
    Ok(dx)
}
