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
        return Err(PlanError::Parameter {
            op: OP,
            parameter: "dimensions",
            got: x.shape().len().to_string(),
            expected: "at least 2: images and channels",
        });
    };
    // A tensor with a dimension of 0 has no elements, whatever the others are.
    let spatial = spatial.iter().fold(1usize, |n, d| n.saturating_mul(*d));
    Ok(LocalResponseNormDesc { dtype: x.dtype(), images, channels, spatial, size, coefficients })
}

/// `torch.nn.functional.local_response_norm` of a tensor of images, channels and any number of spatial dimensions.
///
/// # Errors
/// The tensor has less than two dimensions, a number is out of range, the element type is not supported, or memory
/// runs out.
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

/// The gradient of [`local_response_norm`].
///
/// # Errors
/// As for [`local_response_norm`]; `dy` does not fit `x`.
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
