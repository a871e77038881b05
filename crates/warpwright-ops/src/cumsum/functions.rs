//! The free function: allocates the result, takes the plan from a cache, launches.

use warpwright_runtime::{Stream, Tensor};

use super::{CumsumArgs, CumsumDesc, OP};
use crate::plan::{self, PlanCache};
use crate::{Error, PlanError};

/// Which elements [`cumsum`] adds up; by default those up to each, and itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CumsumOptions {
    /// Without the element itself: the first sum is 0.
    pub exclusive: bool,
    /// From the last element to each.
    pub reverse: bool,
}

/// The sums of the elements of `x` along dimension `dim` up to each of them, as `torch.cumsum`; see the [module](crate::cumsum).
///
/// `x` has any shape of at least one dimension, of f32, f64, f16, bf16, i32 or i64; the result has its type and shape. With the options
/// the gradient of `x` is the same function of the gradient of the result, in the other direction.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::cumsum::CumsumOptions;
/// use warpwright::{Device, Tensor, cumsum};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3])?;
/// let y = cumsum(&stream, &x, 1, CumsumOptions::default())?;
/// assert_eq!(y.to_vec_on::<f32>(&stream)?, [1.0, 3.0, 6.0, 4.0, 9.0, 15.0]);
/// // Where sequences of these lengths begin.
/// let lengths = Tensor::from_slice(&device, &[3i32, 0, 2], &[3])?;
/// let starts = cumsum(&stream, &lengths, 0, CumsumOptions { exclusive: true, ..Default::default() })?;
/// assert_eq!(starts.to_vec_on::<i32>(&stream)?, [0, 3, 3]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if there is no such dimension, or the element type is none of those. [`Error::Runtime`] if memory runs out.
pub fn cumsum(stream: &Stream, x: &Tensor, dim: usize, options: CumsumOptions) -> Result<Tensor, Error> {
    static PLANS: PlanCache<CumsumDesc> = PlanCache::new();
    let [outer, n, inner] = plan::around(x.shape(), dim).ok_or_else(|| {
        let got = format!("{dim} of {} dimensions", x.shape().len());
        PlanError::refused(OP, "dim", got, "a dimension of the tensor")
    })?;
    let CumsumOptions { exclusive, reverse } = options;
    let desc = CumsumDesc { dtype: x.dtype(), outer, n, inner, exclusive, reverse };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let mut y = Tensor::empty_on(stream, x.dtype(), x.shape())?;
    let mut workspace = plan.workspace(stream)?;
    let workspace = workspace.as_mut().map(Tensor::as_mut);
    plan.launch(stream, CumsumArgs { x: x.as_ref(), y: y.as_mut(), workspace })?;
    Ok(y)
}
