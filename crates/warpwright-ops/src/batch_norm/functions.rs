//! Free functions: allocate the results, take the plan from a cache, launch.

use warpwright_ptx::DType;
use warpwright_runtime::{Stream, Tensor};

use super::{
    BatchNorm, BatchNormArgs, BatchNormBackwardArgs, BatchNormBackwardDesc, BatchNormDesc,
    BatchNormInferenceArgs, BatchNormInferenceBackwardArgs, BatchNormInferenceBackwardDesc,
    BatchNormInferenceDesc, Layout, Momentum, Real, TRAINING,
};
use crate::Error;
use crate::norm::{NormGradients, NormOutput};
use crate::plan::PlanCache;

/// Everything that a batch norm takes beside `x` and the running statistics; the default is that of PyTorch without weight and
/// bias.
#[derive(Clone, Copy, Debug)]
pub struct BatchNormOptions<'a> {
    /// Factor of each channel, `[channels]`, of the element type of `x`, or f32 where that has 16 bits.
    pub weight: Option<&'a Tensor>,
    /// Summand of each channel, as `weight`.
    pub bias: Option<&'a Tensor>,
    /// Added to the result, before the ReLU; like `x`. Backward functions only look whether there is one.
    pub residual: Option<&'a Tensor>,
    /// Whether the result passes a ReLU.
    pub relu: bool,
    /// Added to the variance.
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
    /// Whether the gradient of the residual differs from `dy`.
    fn dresidual(&self) -> bool {
        self.residual.is_some() && self.relu
    }

    pub(super) fn norm(&self, x: &Tensor, running: Option<DType>) -> BatchNorm {
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

/// Statistics that follow those of the batches, and are what inference normalizes by.
#[derive(Debug)]
pub struct RunningStatistics<'a> {
    /// `[channels]`, of the type of the weight.
    pub mean: &'a mut Tensor,
    /// The unbiased variance, as `mean`.
    pub var: &'a mut Tensor,
    /// How far they go towards the statistics of this batch.
    pub momentum: Momentum,
}

/// `y = (x - mean) rstd weight + bias` with the statistics of the batch in each channel (Ioffe and Szegedy 2015, arXiv:1502.03167),
/// as `torch.nn.functional.batch_norm` for training, with a residual and a ReLU behind it if they are asked for; moves the running
/// statistics if they are given. See the [module](crate::batch_norm).
///
/// `x` is `[batch, channels, ..]`, or `[batch, .., channels]` for channels last, of f32, f64, f16 or bf16; `y` is like `x`, `mean` and
/// `rstd` are `[channels]`.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::batch_norm::{BatchNormOptions, Momentum, RunningStatistics};
/// use warpwright::{DType, Device, Tensor, batch_norm};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 3.0], &[2, 1])?;
/// let mut mean = Tensor::zeros_on(&stream, DType::F32, &[1])?;
/// let mut var = Tensor::ones_on(&stream, DType::F32, &[1])?;
/// let momentum = Momentum::Exponential(0.5.into());
/// let running = RunningStatistics { mean: &mut mean, var: &mut var, momentum };
/// let options = BatchNormOptions { eps: 0.0, ..Default::default() };
/// let out = batch_norm(&stream, &x, Some(running), options)?;
/// assert_eq!(out.y.to_vec_on::<f32>(&stream)?, [-1.0, 1.0]);
/// assert_eq!(mean.to_vec_on::<f32>(&stream)?, [1.0]);
/// assert_eq!(var.to_vec_on::<f32>(&stream)?, [1.5]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if a channel has one value only, `eps` is negative, or the element type is none of those. [`Error::Runtime`] if
/// the tensors do not fit each other, or memory runs out.
pub fn batch_norm(
    stream: &Stream,
    x: &Tensor,
    running: Option<RunningStatistics<'_>>,
    options: BatchNormOptions<'_>,
) -> Result<NormOutput, Error> {
    static PLANS: PlanCache<BatchNormDesc> = PlanCache::new();
    let norm = options.norm(x, running.as_ref().map(|running| running.mean.dtype()));
    let momentum = running.as_ref().map(|running| running.momentum);
    let desc = BatchNormDesc { norm, residual: options.residual.is_some(), momentum };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let statistics = || Tensor::empty_on(stream, x.dtype().accumulator(), &[norm.channels]);
    let (mut y, mut mean, mut rstd) = (empty_like(stream, x)?, statistics()?, statistics()?);
    let mut workspace = plan.workspace(stream)?;
    let (running_mean, running_var) =
        running.map(|running| (running.mean.as_mut(), running.var.as_mut())).unzip();
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
    Ok(NormOutput { y, z: None, mean: Some(mean), rstd: Some(rstd) })
}

/// [`batch_norm`] with the running statistics in place of those of the batch, for inference.
///
/// `x` and `y` are as there, `running_mean` and `running_var` are `[channels]` of the type of the weight; the output has no
/// statistics.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::batch_norm::BatchNormOptions;
/// use warpwright::{Device, Tensor, batch_norm_inference};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 3.0], &[2, 1])?;
/// let mean = Tensor::from_slice(&device, &[1.0f32], &[1])?;
/// let var = Tensor::from_slice(&device, &[4.0f32], &[1])?;
/// let options = BatchNormOptions { eps: 0.0, ..Default::default() };
/// let out = batch_norm_inference(&stream, &x, &mean, &var, options)?;
/// assert_eq!(out.y.to_vec_on::<f32>(&stream)?, [0.0, 1.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if `eps` is negative or the element type is none of those. [`Error::Runtime`] if the tensors do not fit each other,
/// or memory runs out.
pub fn batch_norm_inference(
    stream: &Stream,
    x: &Tensor,
    running_mean: &Tensor,
    running_var: &Tensor,
    options: BatchNormOptions<'_>,
) -> Result<NormOutput, Error> {
    static PLANS: PlanCache<BatchNormInferenceDesc> = PlanCache::new();
    let norm = options.norm(x, Some(running_mean.dtype()));
    let desc = BatchNormInferenceDesc { norm, residual: options.residual.is_some() };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let mut y = empty_like(stream, x)?;
    let mut workspace = plan.workspace(stream)?;
    let args = BatchNormInferenceArgs {
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
    Ok(NormOutput { y, z: None, mean: None, rstd: None })
}

/// Room for the gradients.
fn gradients(stream: &Stream, x: &Tensor, norm: &BatchNorm, dresidual: bool) -> Result<NormGradients, Error> {
    Ok(NormGradients {
        dx: empty_like(stream, x)?,
        dweight: per_channel(stream, norm.parameter_dtype, norm, norm.weight)?,
        dbias: per_channel(stream, norm.parameter_dtype, norm, norm.bias)?,
        dresidual: dresidual.then(|| empty_like(stream, x)).transpose()?,
    })
}

/// The gradients of [`batch_norm`] from its `x`, `output` and options, and the gradient `dy` of `y`.
///
/// `dy` and `dx` are like `x`, f32, f64, f16 or bf16; `dweight` and `dbias` are `[channels]`. With a ReLU and a residual there is
/// `dresidual`, like `x`; without a ReLU it is `dy` itself.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::batch_norm::BatchNormOptions;
/// use warpwright::{Device, Tensor, batch_norm, batch_norm_backward};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 3.0], &[2, 1])?;
/// let bias = Tensor::from_slice(&device, &[0.5f32], &[1])?;
/// let options = BatchNormOptions { bias: Some(&bias), relu: true, eps: 0.0, ..Default::default() };
/// let out = batch_norm(&stream, &x, None, options)?;
/// assert_eq!(out.y.to_vec_on::<f32>(&stream)?, [0.0, 1.5]);
/// let dy = Tensor::ones_on(&stream, x.dtype(), x.shape())?;
/// let gradients = batch_norm_backward(&stream, &x, &out, &dy, options)?;
/// assert_eq!(gradients.dbias.expect("there is a bias").to_vec_on::<f32>(&stream)?, [1.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] as [`batch_norm`], and if the output has no statistics. [`Error::Runtime`] if the tensors do not fit each other, or
/// memory runs out.
pub fn batch_norm_backward(
    stream: &Stream,
    x: &Tensor,
    output: &NormOutput,
    dy: &Tensor,
    options: BatchNormOptions<'_>,
) -> Result<NormGradients, Error> {
    static PLANS: PlanCache<BatchNormBackwardDesc> = PlanCache::new();
    let norm = options.norm(x, None);
    let (mean, rstd) = (output.saved_mean(TRAINING)?, output.saved_rstd(TRAINING)?);
    let dresidual = options.dresidual();
    let plan = PLANS.get(&BatchNormBackwardDesc { norm, dresidual }, stream.device().target())?;
    let mut out = gradients(stream, x, &norm, dresidual)?;
    let mut workspace = plan.workspace(stream)?;
    let args = BatchNormBackwardArgs {
        x: x.as_ref(),
        y: options.relu.then(|| output.y.as_ref()),
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

/// The gradients of [`batch_norm_inference`] from what it took and its `output`, and the gradient `dy` of `y`.
///
/// Shapes and element types are those of [`batch_norm_backward`] and [`batch_norm_inference`].
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::batch_norm::BatchNormOptions;
/// use warpwright::{Device, Tensor, batch_norm_inference, batch_norm_inference_backward};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 3.0], &[2, 1])?;
/// let mean = Tensor::from_slice(&device, &[1.0f32], &[1])?;
/// let var = Tensor::from_slice(&device, &[4.0f32], &[1])?;
/// let options = BatchNormOptions { eps: 0.0, ..Default::default() };
/// let out = batch_norm_inference(&stream, &x, &mean, &var, options)?;
/// let dy = Tensor::ones_on(&stream, x.dtype(), x.shape())?;
/// let gradients = batch_norm_inference_backward(&stream, &x, &mean, &var, &out, &dy, options)?;
/// assert_eq!(gradients.dx.to_vec_on::<f32>(&stream)?, [0.5, 0.5]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] and [`Error::Runtime`] as [`batch_norm_inference`].
pub fn batch_norm_inference_backward(
    stream: &Stream,
    x: &Tensor,
    running_mean: &Tensor,
    running_var: &Tensor,
    output: &NormOutput,
    dy: &Tensor,
    options: BatchNormOptions<'_>,
) -> Result<NormGradients, Error> {
    static PLANS: PlanCache<BatchNormInferenceBackwardDesc> = PlanCache::new();
    let norm = options.norm(x, Some(running_mean.dtype()));
    let dresidual = options.dresidual();
    let plan = PLANS.get(&BatchNormInferenceBackwardDesc { norm, dresidual }, stream.device().target())?;
    let mut out = gradients(stream, x, &norm, dresidual)?;
    let mut workspace = plan.workspace(stream)?;
    let args = BatchNormInferenceBackwardArgs {
        x: x.as_ref(),
        y: options.relu.then(|| output.y.as_ref()),
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
