//! The free function: allocates the result, takes the plan from a cache, launches.

use warpwright_ptx::DType;
use warpwright_runtime::{Stream, Tensor};

use super::{CastArgs, CastDesc};
use crate::Error;
use crate::plan::PlanCache;

/// `x` in another type, each element rounded to nearest even; see the [module](crate::cast).
///
/// `x` has any shape, of f32, f64, f16 or bf16; the result has its shape and the type `dtype`, one of those.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::{DType, Device, Tensor, cast};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 3.14159, 1e6], &[3])?;
/// let half = cast(&stream, &x, DType::F16)?;
/// assert_eq!(half.dtype(), DType::F16);
/// let back = cast(&stream, &half, DType::F32)?;
/// assert_eq!(back.to_vec_on::<f32>(&stream)?, [1.0, 3.140625, f32::INFINITY]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if one of the types is none of those; [`Error::Runtime`] if memory runs out.
pub fn cast(stream: &Stream, x: &Tensor, dtype: DType) -> Result<Tensor, Error> {
    static PLANS: PlanCache<CastDesc> = PlanCache::new();
    let desc = CastDesc { from: x.dtype(), to: dtype, len: x.len() };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let mut y = Tensor::empty_on(stream, dtype, x.shape())?;
    plan.launch(stream, CastArgs { x: x.as_ref(), y: y.as_mut() })?;
    Ok(y)
}
