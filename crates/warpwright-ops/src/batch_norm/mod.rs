//! Batch normalisation (Ioffe and Szegedy 2015, arXiv:1502.03167): each channel over the batch and all positions.
//!
//! Training, with `n` the number of values of a channel:
//!
//! - `mean = sum(x) / n`, `var = sum((x - mean)^2) / n`, `rstd = 1 / sqrt(var + eps)`
//! - `y = (x - mean) rstd weight + bias`, then `+ residual`, then `max(., 0)` with ReLU
//! - `running_mean = (1 - factor) running_mean + factor mean`, and `running_var` likewise from `sum((x - mean)^2) / (n - 1)`
//! - backward: `g = dy`, with ReLU only where `y > 0`; `dresidual = g`, `dbias = sum(g)`,
//!   `dweight = sum(g (x - mean) rstd)`, `dx = weight rstd (g - dbias / n - (x - mean) rstd dweight / n)`
//!
//! Inference takes `mean` and `var` from the running statistics, which are constants: `dx = weight rstd g`.
//!
//! Statistics, the result from those of several batches, sums of the backward pass, and the gradient from sums of several batches are operations
//! of their own, too ([`BatchMomentsDesc`], [`BatchNormMergedDesc`], [`BatchNormSumsDesc`], [`BatchNormGradientDesc`]).
//!
//! Results are those of `torch.nn.functional.batch_norm`. Differences: statistics of a channel that holds an infinity
//! or a NaN are NaN, and so is its output; residual and ReLU are added before the result is rounded, not after; an empty
//! batch has a mean of 0 and an `rstd` of NaN, as an empty group has, and leaves running statistics as they are. The gradient
//! of ReLU passes where `y` is NaN.
//!
//! Tensors are contiguous: `[batch, channels, spatial...]` or `[batch, spatial..., channels]`. 16-bit types are computed
//! in f32 and rounded once; `mean` and `rstd` are f32 (f64 for f64). Weight, bias, their gradients and the running
//! statistics have one type of their own: that of `x`, or f32 beside 16-bit tensors, as PyTorch's mixed precision.

mod channel;
mod functions;
mod kernel;
mod parts;
mod persistent;
mod planner;
mod plans;
pub mod reference;
mod resident;
pub(crate) mod samples;
pub mod tuning;

use warpwright_ptx::{DType, Target};

use crate::PlanError;
pub use crate::plan::Real;
use crate::plan::{Operation, Plan};
use crate::tensors::tensors;

pub use functions::*;
pub use parts::*;

pub(super) const TRAINING: &str = "batch_norm";
pub(super) const INFERENCE: &str = "batch_norm_inference";

/// Where the channels are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Layout {
    /// `[batch, channels, spatial...]`, PyTorch's contiguous format.
    #[default]
    ChannelsFirst,
    /// `[batch, spatial..., channels]`, the memory of PyTorch's `channels_last`.
    ChannelsLast,
}

impl Layout {
    /// A short word for the names of kernels.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ChannelsFirst => "nchw",
            Self::ChannelsLast => "nhwc",
        }
    }
}

/// The properties that all operations have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BatchNorm {
    /// Type of `x`, `y`, `residual` and their gradients.
    pub dtype: DType,
    /// Type of weight, bias, their gradients and the running statistics: `dtype`, or f32 if that has 16 bits.
    pub parameter_dtype: DType,
    /// Where the channels are.
    pub layout: Layout,
    /// Samples.
    pub batch: usize,
    /// Channels.
    pub channels: usize,
    /// Product of the other sizes; 1 for `[batch, channels]`.
    pub spatial: usize,
    /// Whether there is a weight; without, it is 1.
    pub weight: bool,
    /// Whether there is a bias; without, it is 0.
    pub bias: bool,
    /// Whether the result passes a ReLU.
    pub relu: bool,
    /// Added to the variance, at least 0. Backward passes of training do not look at it.
    pub eps: Real,
}

impl BatchNorm {
    /// Values of a channel.
    pub const fn values(&self) -> usize {
        self.batch.saturating_mul(self.spatial)
    }

    /// PyTorch's customary choice: weight and bias of the tensor's own type, no ReLU, `eps = 1e-5`.
    pub const fn new(dtype: DType, layout: Layout, batch: usize, channels: usize, spatial: usize) -> Self {
        Self {
            dtype,
            parameter_dtype: dtype,
            layout,
            batch,
            channels,
            spatial,
            weight: true,
            bias: true,
            relu: false,
            eps: Real::new(1e-5),
        }
    }
}

/// How running statistics follow those of the batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Momentum {
    /// `running = (1 - factor) running + factor batch`; PyTorch's `momentum`.
    Exponential(Real),
    /// The mean over all batches; PyTorch's `momentum=None`.
    Cumulative {
        /// How many batches there were, this one included.
        batches: u64,
    },
}

impl Momentum {
    /// Weight of the new value.
    pub fn factor(self) -> f64 {
        match self {
            Self::Exponential(factor) => factor.get(),
            Self::Cumulative { batches } => 1.0 / batches as f64,
        }
    }
}

/// `y` from the statistics of the batch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BatchNormDesc {
    /// The normalisation.
    pub norm: BatchNorm,
    /// Whether a tensor like `x` is added to the result, before the ReLU.
    pub residual: bool,
    /// How the running statistics are updated; `None` if there are none.
    pub momentum: Option<Momentum>,
}

tensors! {
    /// Tensors of [`BatchNormDesc`].
    pub struct BatchNormArgs<'a> {
        /// The tensor to be normalized.
        x: In,
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
        /// `[channels]`, moved towards the mean of the batch.
        running_mean: Option<InOut>,
        /// `[channels]`, moved towards the variance of the batch.
        running_var: Option<InOut>,
        /// Scratch memory: [`Plan::workspace`].
        workspace: Option<Out>,
    }
}

impl Operation for BatchNormDesc {
    type Args<'a> = BatchNormArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        plans::training(self, target)
    }
}

/// Gradients of [`BatchNormDesc`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BatchNormBackwardDesc {
    /// The normalisation.
    pub norm: BatchNorm,
    /// Whether the gradient of the residual is wanted. Only with a ReLU: without one it is `dy` itself.
    pub dresidual: bool,
}

tensors! {
    /// Tensors of [`BatchNormBackwardDesc`].
    pub struct BatchNormBackwardArgs<'a> {
        /// The tensor that was normalized.
        x: In,
        /// With a ReLU: the result.
        y: Option<In>,
        /// Gradient of the result.
        dy: In,
        /// `[channels]`
        weight: Option<In>,
        /// `[channels]`, from the forward pass.
        mean: In,
        /// `[channels]`, from the forward pass.
        rstd: In,
        /// Gradient of `x`.
        dx: Out,
        /// Gradient of the weight, if there is one.
        dweight: Option<Out>,
        /// Gradient of the bias, if there is one.
        dbias: Option<Out>,
        /// Gradient of the residual, if wanted.
        dresidual: Option<Out>,
        /// Scratch memory: [`Plan::workspace`].
        workspace: Option<Out>,
    }
}

impl Operation for BatchNormBackwardDesc {
    type Args<'a> = BatchNormBackwardArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        plans::training_backward(self, target)
    }
}

/// `y` from running statistics.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BatchNormInferenceDesc {
    /// The normalisation.
    pub norm: BatchNorm,
    /// Whether a tensor like `x` is added to the result, before the ReLU.
    pub residual: bool,
}

tensors! {
    /// Tensors of [`BatchNormInferenceDesc`].
    pub struct BatchNormInferenceArgs<'a> {
        /// The tensor to be normalized.
        x: In,
        /// `[channels]`
        weight: Option<In>,
        /// `[channels]`
        bias: Option<In>,
        /// Like `x`.
        residual: Option<In>,
        /// `[channels]`
        running_mean: In,
        /// `[channels]`
        running_var: In,
        /// Like `x`; may be `x` or `residual` itself.
        y: Out,
        /// Scratch memory: [`Plan::workspace`].
        workspace: Option<Out>,
    }
}

impl Operation for BatchNormInferenceDesc {
    type Args<'a> = BatchNormInferenceArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        plans::inference(self, target)
    }
}

/// Gradients of [`BatchNormInferenceDesc`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BatchNormInferenceBackwardDesc {
    /// The normalisation.
    pub norm: BatchNorm,
    /// Whether the gradient of the residual is wanted. Only with a ReLU: without one it is `dy` itself.
    pub dresidual: bool,
}

tensors! {
    /// Tensors of [`BatchNormInferenceBackwardDesc`].
    pub struct BatchNormInferenceBackwardArgs<'a> {
        /// The tensor that was normalized.
        x: In,
        /// With a ReLU: the result.
        y: Option<In>,
        /// Gradient of the result.
        dy: In,
        /// `[channels]`
        weight: Option<In>,
        /// `[channels]`
        running_mean: In,
        /// `[channels]`
        running_var: In,
        /// Gradient of `x`.
        dx: Out,
        /// Gradient of the weight, if there is one.
        dweight: Option<Out>,
        /// Gradient of the bias, if there is one.
        dbias: Option<Out>,
        /// Gradient of the residual, if wanted.
        dresidual: Option<Out>,
        /// Scratch memory: [`Plan::workspace`].
        workspace: Option<Out>,
    }
}

impl Operation for BatchNormInferenceBackwardDesc {
    type Args<'a> = BatchNormInferenceBackwardArgs<'a>;

    fn plan(&self, target: Target) -> Result<Plan<Self>, PlanError> {
        plans::inference_backward(self, target)
    }
}
