//! Free functions: allocate the results, take the plan from a cache, launch.

use warpwright_runtime::{Stream, Tensor};

use super::{
    Coefficients, LocalResponseNormArgs, LocalResponseNormBackwardArgs, LocalResponseNormBackwardDesc,
    LocalResponseNormDesc, OP,
};
use crate::plan::PlanCache;
use crate::{Error, PlanError};

/// `x` as images, channels and places.
fn describe(x: &Tensor, size: usize, coefficients: Coefficients) -> Result<LocalResponseNormDesc, PlanError> {
    let &[images, channels, ref spatial @ ..] = x.shape() else {
        let (got, expected) = (x.shape().len(), "at least 2: images and channels");
        return Err(PlanError::refused(OP, "dimensions", got, expected));
    };
    // A tensor with a dimension of 0 has no elements, whatever the others are.
    let spatial = spatial.iter().fold(1usize, |n, d| n.saturating_mul(*d));
    Ok(LocalResponseNormDesc { dtype: x.dtype(), images, channels, spatial, size, coefficients })
}

/// `y = x / (k + alpha / size sum(x_j^2))^beta` over the `size` channels `j` around each (Krizhevsky et al. 2012), as
/// `torch.nn.functional.local_response_norm`; see the [module](crate::local_response_norm).
///
/// `x` is `[images, channels, ..]`, of f32, f64, f16 or bf16; `y` is like `x`.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::local_response_norm::Coefficients;
/// use warpwright::{Device, Tensor, local_response_norm};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[3.0f32, 0.0, 4.0], &[1, 3, 1])?;
/// let coefficients = Coefficients { alpha: 1.0.into(), beta: 1.0.into(), k: 1.0.into() };
/// // The windows of size 3 hold the squares 9, 25 and 16, a third of each is added to 1.
/// let y = local_response_norm(&stream, &x, 3, coefficients)?.to_vec_on::<f32>(&stream)?;
/// assert!((y[0] - 3.0 / 4.0).abs() < 1e-6 && y[1] == 0.0 && (y[2] - 12.0 / 19.0).abs() < 1e-6);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if `x` has less than two dimensions, `size` is 0, a coefficient is not finite, or the element type is none of
/// those. [`Error::Runtime`] if memory runs out.
pub fn local_response_norm(
    stream: &Stream,
    x: &Tensor,
    size: usize,
    coefficients: Coefficients,
) -> Result<Tensor, Error> {
    static PLANS: PlanCache<LocalResponseNormDesc> = PlanCache::new();
    let plan = PLANS.get(&describe(x, size, coefficients)?, stream.device().target())?;
    let mut y = Tensor::empty_on(stream, x.dtype(), x.shape())?;
    plan.launch(stream, LocalResponseNormArgs { x: x.as_ref(), y: y.as_mut() })?;
    Ok(y)
}

/// The gradient of [`local_response_norm`] from its `x` and the gradient `dy` of its result.
///
/// `x`, `dy` and `dx` are `[images, channels, ..]`, of f32, f64, f16 or bf16.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::local_response_norm::Coefficients;
/// use warpwright::{Device, Tensor, local_response_norm_backward};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[3.0f32, 1.0], &[1, 2])?;
/// let dy = Tensor::ones_on(&stream, x.dtype(), x.shape())?;
/// // Without alpha the result is x / k^beta.
/// let coefficients = Coefficients { alpha: 0.0.into(), beta: 1.0.into(), k: 2.0.into() };
/// let dx = local_response_norm_backward(&stream, &x, &dy, 3, coefficients)?;
/// assert!(dx.to_vec_on::<f32>(&stream)?.iter().all(|d| (d - 0.5).abs() < 1e-6));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`local_response_norm`]; [`Error::Runtime`] if `dy` is not like `x`.
pub fn local_response_norm_backward(
    stream: &Stream,
    x: &Tensor,
    dy: &Tensor,
    size: usize,
    coefficients: Coefficients,
) -> Result<Tensor, Error> {
    static PLANS: PlanCache<LocalResponseNormBackwardDesc> = PlanCache::new();
    let desc = LocalResponseNormBackwardDesc { forward: describe(x, size, coefficients)? };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let mut dx = Tensor::empty_on(stream, x.dtype(), x.shape())?;
    let mut workspace = plan.workspace(stream)?;
    let args = LocalResponseNormBackwardArgs {
        x: x.as_ref(),
        dy: dy.as_ref(),
        dx: dx.as_mut(),
        workspace: workspace.as_mut().map(Tensor::as_mut),
    };
    plan.launch(stream, args)?;
    Ok(dx)
}
