//! The results of normalizations, in one form for all families.

use warpwright_runtime::Tensor;

use crate::PlanError;

/// The result of a normalization, and the statistics that its backward function takes.
#[derive(Debug)]
pub struct NormOutput {
    /// The result, of the shape and element type of `x`.
    pub y: Tensor,
    /// `x + residual`, of the shape and element type of `x`: what row norms normalize if they are given a residual.
    pub z: Option<Tensor>,
    /// The mean of each row (`[rows]`), group (`[batch, groups]`) or channel (`[channels]`), f32, or f64 for f64. `None` after
    /// inference, and of `rms_norm`.
    pub mean: Option<Tensor>,
    /// `1 / sqrt(variance + eps)`, as `mean`. `None` after inference.
    pub rstd: Option<Tensor>,
}

impl NormOutput {
    /// The saved `rstd`, which a backward pass cannot do without.
    pub(crate) fn saved_rstd(&self, op: &'static str) -> Result<&Tensor, PlanError> {
        self.rstd.as_ref().ok_or_else(|| missing(op, "rstd"))
    }

    /// The saved `mean`.
    pub(crate) fn saved_mean(&self, op: &'static str) -> Result<&Tensor, PlanError> {
        self.mean.as_ref().ok_or_else(|| missing(op, "mean"))
    }
}

fn missing(op: &'static str, parameter: &'static str) -> PlanError {
    let (got, expected) = ("absent".to_owned(), "saved by a forward pass without `inference`");
    PlanError::Parameter { op, parameter, got, expected }
}

/// The gradients of a normalization.
#[derive(Debug)]
pub struct NormGradients {
    /// Of `x`, like `x`. Of row norms it is that of the residual, too.
    pub dx: Tensor,
    /// Of the weight, of its shape, if there is one.
    pub dweight: Option<Tensor>,
    /// Of the bias, of its shape, if there is one.
    pub dbias: Option<Tensor>,
    /// Of the residual of a batch norm with a ReLU, like `x`. Without a ReLU it is `dy` itself.
    pub dresidual: Option<Tensor>,
}
