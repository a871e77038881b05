//! Free functions: allocate the results, take the plan from a cache, launch.

use warpwright_ptx::DType;
use warpwright_runtime::{Stream, Tensor};

use super::kernel::accumulate_type;
use super::{
    BatchNorm, BatchNormArgs, BatchNormBackwardArgs, BatchNormBackwardDesc, BatchNormDesc,
    BatchNormEvaluationArgs, BatchNormEvaluationBackwardArgs, BatchNormEvaluationBackwardDesc,
    BatchNormEvaluationDesc, Layout, Momentum, Real,
};
use crate::Error;
use crate::plan::PlanCache;

/// What the free functions take beside the tensor: `BatchNormOptions { weight, bias, ..Default::default() }`.
#[derive(Clone, Copy, Debug)]
pub struct BatchNormOptions<'a> {
    /// `[channels]`; 1 without.
    pub weight: Option<&'a Tensor>,
    /// `[channels]`; 0 without.
    pub bias: Option<&'a Tensor>,
    /// Added to the result, before the ReLU; like `x`. Backward functions only look whether there is one.
    pub residual: Option<&'a Tensor>,
    /// Whether the result passes a ReLU.
    pub relu: bool,
    /// What is added to the variance.
    pub eps: f64,
    /// Where the channels are.
    pub layout: Layout,
}

impl Default for BatchNormOptions<'_> {
    fn default() -> Self {
        Self {
            weight: None,
            bias: None,
            residual: None,
            relu: false,
            eps: 1e-5,
            layout: Layout::ChannelsFirst,
        }
    }
}

impl BatchNormOptions<'_> {
    fn norm(&self, x: &Tensor, running: Option<DType>) -> BatchNorm {
        let shape = x.shape();
        let batch = shape.first().copied().unwrap_or(1);
        let channels = match self.layout {
            Layout::ChannelsFirst => shape.get(1),
            Layout::ChannelsLast => shape.get(1..).and_then(<[usize]>::last),
        };
        let channels = channels.copied().unwrap_or(1);
        let spatial = match (self.layout, shape) {
            (Layout::ChannelsFirst, [_, _, spatial @ ..]) => spatial.iter().product(),
            (Layout::ChannelsLast, [_, spatial @ .., _]) => spatial.iter().product(),
            _ => 1,
        };
        let parameters = self.weight.or(self.bias).map(Tensor::dtype).or(running);
        BatchNorm {
            parameter_dtype: parameters.unwrap_or_else(|| x.dtype()),
            weight: self.weight.is_some(),
            bias: self.bias.is_some(),
            relu: self.relu,
            eps: Real::new(self.eps),
            ..BatchNorm::new(x.dtype(), self.layout, batch, channels, spatial)
        }
    }
}

fn empty_like(stream: &Stream, x: &Tensor) -> Result<Tensor, Error> {
    Ok(Tensor::empty_on(stream, x.dtype(), x.shape())?)
}

/// A tensor for each channel if `wanted`.
fn per_channel(
    stream: &Stream,
    dtype: DType,
    norm: &BatchNorm,
    wanted: bool,
) -> Result<Option<Tensor>, Error> {
    Ok(wanted.then(|| Tensor::empty_on(stream, dtype, &[norm.channels])).transpose()?)
}

/// The result of [`batch_norm`] and what its gradient needs.
#[derive(Debug)]
pub struct BatchNormResult {
    /// Like `x`.
    pub y: Tensor,
    /// `[channels]`
    pub mean: Tensor,
    /// `[channels]`
    pub rstd: Tensor,
}

/// Normalises each channel of `x` (`[batch, channels, ...]`, or `[batch, ..., channels]`) by the statistics of the batch,
/// and moves the running mean and variance towards them if they are given.
///
/// # Errors
/// A channel has one value only, the tensors do not fit each other, the element type is not supported, or memory runs
/// out.
pub fn batch_norm(
    stream: &Stream,
    x: &Tensor,
    options: &BatchNormOptions<'_>,
    running: Option<(&mut Tensor, &mut Tensor, Momentum)>,
) -> Result<BatchNormResult, Error> {
    static PLANS: PlanCache<BatchNormDesc> = PlanCache::new();
    let norm = options.norm(x, running.as_ref().map(|(mean, ..)| mean.dtype()));
    let momentum = running.as_ref().map(|(.., momentum)| *momentum);
    let desc = BatchNormDesc { norm, residual: options.residual.is_some(), momentum };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let statistics = || Tensor::empty_on(stream, accumulate_type(x.dtype()), &[norm.channels]);
    let (mut y, mut mean, mut rstd) = (empty_like(stream, x)?, statistics()?, statistics()?);
    let mut workspace = plan.workspace(stream)?;
    let (running_mean, running_var) = running.map(|(mean, var, _)| (mean.as_mut(), var.as_mut())).unzip();
    let args = BatchNormArgs {
        x: x.as_ref(),
        weight: options.weight.map(Tensor::as_ref),
        bias: options.bias.map(Tensor::as_ref),
        residual: options.residual.map(Tensor::as_ref),
        y: y.as_mut(),
        mean: mean.as_mut(),
        rstd: rstd.as_mut(),
        running_mean,
        running_var,
        workspace: workspace.as_mut().map(Tensor::as_mut),
    };
    plan.launch(stream, args)?;
    Ok(BatchNormResult { y, mean, rstd })
}

/// Normalises each channel of `x` by the running statistics.
///
/// # Errors
/// The tensors do not fit each other, the element type is not supported, or memory runs out.
pub fn batch_norm_evaluation(
    stream: &Stream,
    x: &Tensor,
    options: &BatchNormOptions<'_>,
    running_mean: &Tensor,
    running_var: &Tensor,
) -> Result<Tensor, Error> {
    static PLANS: PlanCache<BatchNormEvaluationDesc> = PlanCache::new();
    let norm = options.norm(x, Some(running_mean.dtype()));
    let desc = BatchNormEvaluationDesc { norm, residual: options.residual.is_some() };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let mut y = empty_like(stream, x)?;
    let mut workspace = plan.workspace(stream)?;
    let args = BatchNormEvaluationArgs {
        x: x.as_ref(),
        weight: options.weight.map(Tensor::as_ref),
        bias: options.bias.map(Tensor::as_ref),
        residual: options.residual.map(Tensor::as_ref),
        running_mean: running_mean.as_ref(),
        running_var: running_var.as_ref(),
        y: y.as_mut(),
        workspace: workspace.as_mut().map(Tensor::as_mut),
    };
    plan.launch(stream, args)?;
    Ok(y)
}

/// Gradients of a batch normalisation.
#[derive(Debug)]
pub struct BatchNormGradients {
    /// Like `x`.
    pub dx: Tensor,
    /// `[channels]`, if there is a weight.
    pub dweight: Option<Tensor>,
    /// `[channels]`, if there is a bias.
    pub dbias: Option<Tensor>,
    /// Like `x`, if there is a residual and a ReLU. Without a ReLU the gradient of the residual is `dy`.
    pub dresidual: Option<Tensor>,
}

impl BatchNormGradients {
    fn allocate(stream: &Stream, x: &Tensor, norm: &BatchNorm, dresidual: bool) -> Result<Self, Error> {
        Ok(Self {
            dx: empty_like(stream, x)?,
            dweight: per_channel(stream, norm.parameter_dtype, norm, norm.weight)?,
            dbias: per_channel(stream, norm.parameter_dtype, norm, norm.bias)?,
            dresidual: dresidual.then(|| empty_like(stream, x)).transpose()?,
        })
    }
}

/// Gradients of [`batch_norm`] for the gradient `dy` of its result; with a ReLU they depend on the result `y`, too.
///
/// # Errors
/// The tensors do not fit each other, `y` is missing or given without a ReLU, the element type is not supported, or
/// memory runs out.
pub fn batch_norm_backward(
    stream: &Stream,
    x: &Tensor,
    y: Option<&Tensor>,
    dy: &Tensor,
    (mean, rstd): (&Tensor, &Tensor),
    options: &BatchNormOptions<'_>,
) -> Result<BatchNormGradients, Error> {
    static PLANS: PlanCache<BatchNormBackwardDesc> = PlanCache::new();
    let norm = options.norm(x, None);
    let dresidual = options.residual.is_some() && options.relu;
    let plan = PLANS.get(&BatchNormBackwardDesc { norm, dresidual }, stream.device().target())?;
    let mut out = BatchNormGradients::allocate(stream, x, &norm, dresidual)?;
    let mut workspace = plan.workspace(stream)?;
    let args = BatchNormBackwardArgs {
        x: x.as_ref(),
        y: y.map(Tensor::as_ref),
        dy: dy.as_ref(),
        weight: options.weight.map(Tensor::as_ref),
        mean: mean.as_ref(),
        rstd: rstd.as_ref(),
        dx: out.dx.as_mut(),
        dweight: out.dweight.as_mut().map(Tensor::as_mut),
        dbias: out.dbias.as_mut().map(Tensor::as_mut),
        dresidual: out.dresidual.as_mut().map(Tensor::as_mut),
        workspace: workspace.as_mut().map(Tensor::as_mut),
    };
    plan.launch(stream, args)?;
    Ok(out)
}

/// Gradients of [`batch_norm_evaluation`] for the gradient `dy` of its result; with a ReLU they depend on the result
/// `y`, too.
///
/// # Errors
/// As for [`batch_norm_backward`].
pub fn batch_norm_evaluation_backward(
    stream: &Stream,
    x: &Tensor,
    y: Option<&Tensor>,
    dy: &Tensor,
    (running_mean, running_var): (&Tensor, &Tensor),
    options: &BatchNormOptions<'_>,
) -> Result<BatchNormGradients, Error> {
    static PLANS: PlanCache<BatchNormEvaluationBackwardDesc> = PlanCache::new();
    let norm = options.norm(x, Some(running_mean.dtype()));
    let dresidual = options.residual.is_some() && options.relu;
    let plan = PLANS.get(&BatchNormEvaluationBackwardDesc { norm, dresidual }, stream.device().target())?;
    let mut out = BatchNormGradients::allocate(stream, x, &norm, dresidual)?;
    let mut workspace = plan.workspace(stream)?;
    let args = BatchNormEvaluationBackwardArgs {
        x: x.as_ref(),
        y: y.map(Tensor::as_ref),
        dy: dy.as_ref(),
        weight: options.weight.map(Tensor::as_ref),
        running_mean: running_mean.as_ref(),
        running_var: running_var.as_ref(),
        dx: out.dx.as_mut(),
        dweight: out.dweight.as_mut().map(Tensor::as_mut),
        dbias: out.dbias.as_mut().map(Tensor::as_mut),
        dresidual: out.dresidual.as_mut().map(Tensor::as_mut),
        workspace: workspace.as_mut().map(Tensor::as_mut),
    };
    plan.launch(stream, args)?;
    Ok(out)
}
