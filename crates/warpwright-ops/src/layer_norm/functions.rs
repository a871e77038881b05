//! Free functions: allocate the results, take the plan from a cache, launch.

use warpwright_runtime::{Stream, Tensor};

use super::{RowNorm, RowNormArgs, RowNormBackwardArgs, RowNormBackwardDesc, RowNormDesc, statistics_dtype};
use crate::plan::{PlanCache, Real};
use crate::{Error, PlanError};

/// What a row norm is applied with, besides `x`.
#[derive(Clone, Copy, Debug, Default)]
pub struct RowNormOptions<'a> {
    /// Added to `x` first.
    pub residual: Option<&'a Tensor>,
    /// Factor of each normalised element, of the normalised size.
    pub weight: Option<&'a Tensor>,
    /// Summand of each normalised element, of the normalised size; for `layer_norm`.
    pub bias: Option<&'a Tensor>,
    /// Added to the variance; `None` for [`RowNorm::default_eps`].
    pub eps: Option<f64>,
    /// Whether the statistics are saved for the backward pass.
    pub statistics: bool,
}

/// What a row norm gives.
#[derive(Debug)]
pub struct Normalised {
    /// The result, of the shape of `x`.
    pub y: Tensor,
    /// `x + residual`, if there was one.
    pub z: Option<Tensor>,
    /// Mean of each row, if it was asked for and has a meaning.
    pub mean: Option<Tensor>,
    /// `1 / sqrt(variance + eps)` of each row, if it was asked for.
    pub rstd: Option<Tensor>,
}

/// Gradients of a row norm.
#[derive(Debug)]
pub struct RowNormGradients {
    /// Gradient of `x`, and of the residual.
    pub dx: Tensor,
    /// Gradient of the weight, if there is one.
    pub dweight: Option<Tensor>,
    /// Gradient of the bias, if there is one.
    pub dbias: Option<Tensor>,
}

/// Rows and their length if the last `dimensions` dimensions of `shape` are normalised over.
fn rows_of(norm: RowNorm, shape: &[usize], dimensions: usize) -> Result<(usize, usize), PlanError> {
    let at = shape.len().checked_sub(dimensions).filter(|_| dimensions > 0);
    let at = at.ok_or_else(|| PlanError::Parameter {
        op: norm.name(),
        parameter: "dimensions",
        got: dimensions.to_string(),
        expected: "at least 1, and no more than x has",
    })?;
    let product = |part: &[usize]| part.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
    match (product(&shape[..at]), product(&shape[at..])) {
        (Some(rows), Some(len)) => Ok((rows, len)),
        _ => Err(super::too_long(norm.name(), usize::MAX)),
    }
}

/// Normalises the last `dimensions` dimensions of `x`.
///
/// # Errors
/// The tensors do not fit each other, the element type is not supported, or memory runs out.
pub fn row_norm(
    stream: &Stream,
    norm: RowNorm,
    x: &Tensor,
    dimensions: usize,
    options: &RowNormOptions<'_>,
) -> Result<Normalised, Error> {
    static PLANS: PlanCache<RowNormDesc> = PlanCache::new();
    let RowNormOptions { residual, weight, bias, eps, statistics } = *options;
    let dtype = x.dtype();
    let (rows, len) = rows_of(norm, x.shape(), dimensions)?;
    let desc = RowNormDesc {
        norm,
        dtype,
        rows,
        len,
        eps: Real::new(eps.unwrap_or_else(|| norm.default_eps(dtype))),
        weight: weight.is_some(),
        bias: bias.is_some(),
        residual: residual.is_some(),
        statistics,
    };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let like = || Tensor::empty_on(stream, dtype, x.shape());
    let per_row = || Tensor::empty_on(stream, statistics_dtype(dtype), &[rows]);
    let mut y = like()?;
    let mut z = residual.is_some().then(like).transpose()?;
    let mut mean = (statistics && norm == RowNorm::Layer).then(per_row).transpose()?;
    let mut rstd = statistics.then(per_row).transpose()?;
    plan.launch(
        stream,
        RowNormArgs {
            x: x.as_ref(),
            residual: residual.map(Tensor::as_ref),
            weight: weight.map(Tensor::as_ref),
            bias: bias.map(Tensor::as_ref),
            y: y.as_mut(),
            z: z.as_mut().map(Tensor::as_mut),
            mean: mean.as_mut().map(Tensor::as_mut),
            rstd: rstd.as_mut().map(Tensor::as_mut),
        },
    )?;
    Ok(Normalised { y, z, mean, rstd })
}

/// The statistics and gradients that the backward pass of a row norm starts from.
#[derive(Clone, Copy, Debug)]
pub struct Saved<'a> {
    /// What was normalised: `x`, or `z` if there was a residual.
    pub x: &'a Tensor,
    /// Of the forward pass; for `layer_norm`.
    pub mean: Option<&'a Tensor>,
    /// Of the forward pass.
    pub rstd: &'a Tensor,
    /// Of the forward pass.
    pub weight: Option<&'a Tensor>,
    /// Whether the forward pass had a bias.
    pub bias: bool,
}

/// The gradients of [`row_norm`] over the last `dimensions` dimensions; `dz` is what reaches `z` from elsewhere.
///
/// # Errors
/// The tensors do not fit each other, the element type is not supported, or memory runs out.
pub fn row_norm_backward(
    stream: &Stream,
    norm: RowNorm,
    dy: &Tensor,
    dz: Option<&Tensor>,
    dimensions: usize,
    saved: &Saved<'_>,
) -> Result<RowNormGradients, Error> {
    static PLANS: PlanCache<RowNormBackwardDesc> = PlanCache::new();
    let Saved { x, mean, rstd, weight, bias } = *saved;
    let dtype = x.dtype();
    let (rows, len) = rows_of(norm, x.shape(), dimensions)?;
    let desc =
        RowNormBackwardDesc { norm, dtype, rows, len, weight: weight.is_some(), bias, dz: dz.is_some() };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let normalised = &x.shape()[x.shape().len() - dimensions..];
    let parameter = || Tensor::empty_on(stream, dtype, normalised);
    let mut dx = Tensor::empty_on(stream, dtype, x.shape())?;
    let mut dweight = weight.is_some().then(parameter).transpose()?;
    let mut dbias = bias.then(parameter).transpose()?;
    let mut workspace = plan.workspace(stream)?;
    plan.launch(
        stream,
        RowNormBackwardArgs {
            x: x.as_ref(),
            dy: dy.as_ref(),
            dz: dz.map(Tensor::as_ref),
            weight: weight.map(Tensor::as_ref),
            mean: mean.map(Tensor::as_ref),
            rstd: rstd.as_ref(),
            dx: dx.as_mut(),
            dweight: dweight.as_mut().map(Tensor::as_mut),
            dbias: dbias.as_mut().map(Tensor::as_mut),
            workspace: workspace.as_mut().map(Tensor::as_mut),
        },
    )?;
    Ok(RowNormGradients { dx, dweight, dbias })
}

/// `torch.nn.functional.layer_norm` over the last dimension.
///
/// # Errors
/// The tensors do not fit each other, the element type is not supported, or memory runs out.
pub fn layer_norm(
    stream: &Stream,
    x: &Tensor,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f64,
) -> Result<Tensor, Error> {
    let options = RowNormOptions { weight, bias, eps: Some(eps), ..RowNormOptions::default() };
    Ok(row_norm(stream, RowNorm::Layer, x, 1, &options)?.y)
}

/// The gradients of [`layer_norm`].
///
/// # Errors
/// The tensors do not fit each other, the element type is not supported, or memory runs out.
pub fn layer_norm_backward(
    stream: &Stream,
    dy: &Tensor,
    saved: &Saved<'_>,
) -> Result<RowNormGradients, Error> {
    row_norm_backward(stream, RowNorm::Layer, dy, None, 1, saved)
}

/// `torch.nn.functional.rms_norm` over the last dimension; without an eps, the machine epsilon of the type of `x`.
///
/// # Errors
/// The tensors do not fit each other, the element type is not supported, or memory runs out.
pub fn rms_norm(
    stream: &Stream,
    x: &Tensor,
    weight: Option<&Tensor>,
    eps: Option<f64>,
) -> Result<Tensor, Error> {
    let options = RowNormOptions { weight, eps, ..RowNormOptions::default() };
    Ok(row_norm(stream, RowNorm::Rms, x, 1, &options)?.y)
}

/// The gradients of [`rms_norm`].
///
/// # Errors
/// The tensors do not fit each other, the element type is not supported, or memory runs out.
pub fn rms_norm_backward(stream: &Stream, dy: &Tensor, saved: &Saved<'_>) -> Result<RowNormGradients, Error> {
    row_norm_backward(stream, RowNorm::Rms, dy, None, 1, saved)
}
