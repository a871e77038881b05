//! Free functions: allocate the results, take the plan from a cache, launch.

use warpwright_runtime::{Stream, Tensor};

use super::{RowNorm, RowNormArgs, RowNormBackwardArgs, RowNormBackwardDesc, RowNormDesc};
use crate::norm::{NormGradients, NormOutput};
use crate::plan::{PlanCache, Real};
use crate::{Error, PlanError};

/// Everything that a row norm takes beside `x`; the default is the last dimension without weight, bias and residual.
#[derive(Clone, Copy, Debug)]
pub struct RowNormOptions<'a> {
    /// Added to `x` first, like `x`.
    pub residual: Option<&'a Tensor>,
    /// Factor of each normalized element: the normalized dimensions of `x`, of its element type.
    pub weight: Option<&'a Tensor>,
    /// Summand of each normalized element, as `weight`; for `layer_norm`.
    pub bias: Option<&'a Tensor>,
    /// Added to the variance; `None` for [`RowNorm::default_eps`].
    pub eps: Option<f64>,
    /// How many of the last dimensions are normalized over, at least 1.
    pub dimensions: usize,
    /// Whether no statistics are saved: then there is no backward pass.
    pub inference: bool,
}

impl Default for RowNormOptions<'_> {
    fn default() -> Self {
        Self { residual: None, weight: None, bias: None, eps: None, dimensions: 1, inference: false }
    }
}

/// Rows and their length if the last `dimensions` dimensions of `shape` are normalized over.
fn rows_of(norm: RowNorm, shape: &[usize], dimensions: usize) -> Result<(usize, usize), PlanError> {
    let at = shape.len().checked_sub(dimensions).filter(|_| dimensions > 0);
    let expected = "at least 1, and no more than x has";
    let at = at.ok_or_else(|| PlanError::refused(norm.name(), "dimensions", dimensions, expected))?;
    let product = |part: &[usize]| part.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
    match (product(&shape[..at]), product(&shape[at..])) {
        (Some(rows), Some(len)) => Ok((rows, len)),
        _ => Err(super::too_long(norm.name(), usize::MAX)),
    }
}

/// The norm that is named at run time, of the last dimensions of `x`: see the [module](crate::layer_norm).
///
/// `x` has any shape, of f32, f64, f16 or bf16. `y` is like `x`, as is `z` if there is a residual; `mean` and `rstd` are `[rows]`.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::layer_norm::{RowNorm, RowNormOptions};
/// use warpwright::{Device, Tensor, row_norm};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0, 4.0], &[1, 2, 2])?;
/// let options = RowNormOptions { residual: Some(&x), dimensions: 2, eps: Some(0.0), ..Default::default() };
/// let out = row_norm(&stream, RowNorm::Layer, &x, options)?;
/// assert_eq!(out.z.expect("x + residual").to_vec_on::<f32>(&stream)?, [2.0, 4.0, 6.0, 8.0]);
/// assert_eq!(out.mean.expect("saved").to_vec_on::<f32>(&stream)?, [5.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if the element type is none of those, `x` has fewer dimensions, a row has no or more than
/// [`MAX_LEN`](super::MAX_LEN) elements, `eps` is negative, or an `rms_norm` is given a bias. [`Error::Runtime`] if weight, bias or
/// residual do not fit `x`, or memory runs out.
pub fn row_norm(
    stream: &Stream,
    norm: RowNorm,
    x: &Tensor,
    options: RowNormOptions<'_>,
) -> Result<NormOutput, Error> {
    static PLANS: PlanCache<RowNormDesc> = PlanCache::new();
    let RowNormOptions { residual, weight, bias, eps, dimensions, inference } = options;
    let (dtype, statistics) = (x.dtype(), !inference);
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
    let per_row = || Tensor::empty_on(stream, dtype.accumulator(), &[rows]);
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
    Ok(NormOutput { y, z, mean, rstd })
}

/// The gradients of [`row_norm`] from its `x`, `output` and options, the gradient `dy` of `y`, and the gradient `dz` that reaches
/// `z` from elsewhere.
///
/// `dy` and `dz` are like `x`; `dx` is, too, and `dweight` and `dbias` are like weight and bias.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::layer_norm::{RowNorm, RowNormOptions};
/// use warpwright::{Device, Tensor, row_norm, row_norm_backward};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 3.0], &[1, 2])?;
/// let options = RowNormOptions { residual: Some(&x), ..Default::default() };
/// let out = row_norm(&stream, RowNorm::Layer, &x, options)?;
/// let dy = Tensor::zeros_on(&stream, x.dtype(), x.shape())?;
/// let dz = Tensor::ones_on(&stream, x.dtype(), x.shape())?;
/// let gradients = row_norm_backward(&stream, RowNorm::Layer, &x, &out, &dy, Some(&dz), options)?;
/// assert_eq!(gradients.dx.to_vec_on::<f32>(&stream)?, [1.0, 1.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] as [`row_norm`], and if the output was for inference. [`Error::Runtime`] if the tensors do not fit each other, or
/// memory runs out.
pub fn row_norm_backward(
    stream: &Stream,
    norm: RowNorm,
    x: &Tensor,
    output: &NormOutput,
    dy: &Tensor,
    dz: Option<&Tensor>,
    options: RowNormOptions<'_>,
) -> Result<NormGradients, Error> {
    static PLANS: PlanCache<RowNormBackwardDesc> = PlanCache::new();
    let RowNormOptions { weight, bias, dimensions, .. } = options;
    let (dtype, bias) = (x.dtype(), bias.is_some());
    let rstd = output.saved_rstd(norm.name())?;
    let mean = (norm == RowNorm::Layer).then(|| output.saved_mean(norm.name())).transpose()?;
    let (rows, len) = rows_of(norm, x.shape(), dimensions)?;
    let desc =
        RowNormBackwardDesc { norm, dtype, rows, len, weight: weight.is_some(), bias, dz: dz.is_some() };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let normalized = &x.shape()[x.shape().len() - dimensions..];
    let parameter = || Tensor::empty_on(stream, dtype, normalized);
    let mut dx = Tensor::empty_on(stream, dtype, x.shape())?;
    let mut dweight = weight.is_some().then(parameter).transpose()?;
    let mut dbias = bias.then(parameter).transpose()?;
    let mut workspace = plan.workspace(stream)?;
    plan.launch(
        stream,
        RowNormBackwardArgs {
            x: output.z.as_ref().unwrap_or(x).as_ref(),
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
    Ok(NormGradients { dx, dweight, dbias, dresidual: None })
}

/// `y = (x - mean) rstd weight + bias` over the last dimensions of `x` (Ba et al. 2016, arXiv:1607.06450), as
/// `torch.nn.functional.layer_norm`; see the [module](crate::layer_norm).
///
/// `x` has any shape, of f32, f64, f16 or bf16; `y` is like `x`, `mean` and `rstd` are `[rows]`.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::layer_norm::RowNormOptions;
/// use warpwright::{Device, Tensor, layer_norm};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 3.0], &[1, 2])?;
/// let weight = Tensor::from_slice(&device, &[2.0f32, 4.0], &[2])?;
/// let options = RowNormOptions { weight: Some(&weight), eps: Some(0.0), ..Default::default() };
/// assert_eq!(layer_norm(&stream, &x, options)?.y.to_vec_on::<f32>(&stream)?, [-2.0, 4.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`row_norm`].
pub fn layer_norm(stream: &Stream, x: &Tensor, options: RowNormOptions<'_>) -> Result<NormOutput, Error> {
    row_norm(stream, RowNorm::Layer, x, options)
}

/// The gradients of [`layer_norm`] from its `x`, `output` and options, and the gradient `dy` of `y`.
///
/// `dy` and `dx` are like `x`, f32, f64, f16 or bf16; `dweight` and `dbias` are like weight and bias.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::layer_norm::RowNormOptions;
/// use warpwright::{Device, Tensor, layer_norm, layer_norm_backward};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 3.0, 0.0, 8.0], &[2, 2])?;
/// let bias = Tensor::zeros_on(&stream, x.dtype(), &[2])?;
/// let options = RowNormOptions { bias: Some(&bias), ..Default::default() };
/// let out = layer_norm(&stream, &x, options)?;
/// let dy = Tensor::ones_on(&stream, x.dtype(), x.shape())?;
/// let gradients = layer_norm_backward(&stream, &x, &out, &dy, options)?;
/// assert_eq!(gradients.dx.to_vec_on::<f32>(&stream)?, [0.0; 4]);
/// assert_eq!(gradients.dbias.expect("there is a bias").to_vec_on::<f32>(&stream)?, [2.0, 2.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`row_norm_backward`].
pub fn layer_norm_backward(
    stream: &Stream,
    x: &Tensor,
    output: &NormOutput,
    dy: &Tensor,
    options: RowNormOptions<'_>,
) -> Result<NormGradients, Error> {
    row_norm_backward(stream, RowNorm::Layer, x, output, dy, None, options)
}

/// `y = x rstd weight` with `rstd = 1 / sqrt(mean(x^2) + eps)` over the last dimensions of `x` (Zhang and Sennrich 2019,
/// arXiv:1910.07467), as `torch.nn.functional.rms_norm`; see the [module](crate::layer_norm).
///
/// `x` has any shape, of f32, f64, f16 or bf16; `y` is like `x`, `rstd` is `[rows]`. Without an eps it is the machine epsilon of
/// the type of `x`.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::layer_norm::RowNormOptions;
/// use warpwright::{Device, Tensor, rms_norm};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 7.0], &[1, 2])?;
/// let options = RowNormOptions { eps: Some(0.0), inference: true, ..Default::default() };
/// let y = rms_norm(&stream, &x, options)?.y.to_vec_on::<f32>(&stream)?;
/// assert!((y[0] - 0.2).abs() < 1e-6 && (y[1] - 1.4).abs() < 1e-6);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`row_norm`].
pub fn rms_norm(stream: &Stream, x: &Tensor, options: RowNormOptions<'_>) -> Result<NormOutput, Error> {
    row_norm(stream, RowNorm::Rms, x, options)
}

/// The gradients of [`rms_norm`] from its `x`, `output` and options, and the gradient `dy` of `y`.
///
/// `dy` and `dx` are like `x`, f32, f64, f16 or bf16; `dweight` is like the weight.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::layer_norm::RowNormOptions;
/// use warpwright::{Device, Tensor, rms_norm, rms_norm_backward};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[3.0f32, 3.0], &[1, 2])?;
/// let options = RowNormOptions { eps: Some(0.0), ..Default::default() };
/// let out = rms_norm(&stream, &x, options)?;
/// let dy = Tensor::ones_on(&stream, x.dtype(), x.shape())?;
/// let dx = rms_norm_backward(&stream, &x, &out, &dy, options)?.dx.to_vec_on::<f32>(&stream)?;
/// assert!(dx.iter().all(|d| d.abs() < 1e-6), "a longer row gives the same result: {dx:?}");
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`row_norm_backward`].
pub fn rms_norm_backward(
    stream: &Stream,
    x: &Tensor,
    output: &NormOutput,
    dy: &Tensor,
    options: RowNormOptions<'_>,
) -> Result<NormGradients, Error> {
    row_norm_backward(stream, RowNorm::Rms, x, output, dy, None, options)
}
