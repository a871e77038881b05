//! Free functions: allocate the results, take the plan from a cache, launch.

use warpwright_ptx::DType;
use warpwright_runtime::{Stream, Tensor};

use super::{OP, TopkArgs, TopkBackwardArgs, TopkBackwardDesc, TopkDesc};
use crate::plan::PlanCache;
use crate::{Error, PlanError};

/// The results of [`topk`].
#[derive(Debug)]
pub struct TopkOutput {
    /// The elements, the largest first or the least.
    pub values: Tensor,
    /// Where each is in its row, of i64.
    pub index: Tensor,
}

/// The extents of `x` before the last, multiplied, and the last.
fn rows(x: &Tensor) -> Result<[usize; 2], PlanError> {
    match x.shape() {
        [outer @ .., n] => Ok([outer.iter().product(), *n]),
        [] => Err(PlanError::refused(OP, "x", "[]", "[.., n]")),
    }
}

fn with_last(x: &Tensor, last: usize) -> Vec<usize> {
    let outer = &x.shape()[..x.shape().len() - 1];
    outer.iter().copied().chain([last]).collect()
}

/// The `k` largest elements of each row of `x`, or the least if not `largest`, and where they are, as `torch.topk` along the last
/// dimension; see the [module](crate::topk).
///
/// `x` is `[.., n]`, of f32, f64, f16 or bf16; values, of its type, and indices, of i64, are `[.., k]`, in order. Of equal elements the
/// first is first. `k` is at most `n`, and at most 128 of rows of more than 1024 elements.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::{Device, Tensor, topk};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 5.0, 3.0, 5.0, 9.0, 0.0, 2.0, 4.0], &[2, 4])?;
/// let top = topk(&stream, &x, 2, true)?;
/// assert_eq!(top.values.to_vec_on::<f32>(&stream)?, [5.0, 5.0, 9.0, 4.0]);
/// assert_eq!(top.index.to_vec_on::<i64>(&stream)?, [1, 3, 0, 3]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if `x` has no dimension, `k` is more than that, or the element type is none of those. [`Error::Runtime`] if memory runs out.
pub fn topk(stream: &Stream, x: &Tensor, k: usize, largest: bool) -> Result<TopkOutput, Error> {
    static PLANS: PlanCache<TopkDesc> = PlanCache::new();
    let [rows, n] = rows(x)?;
    let plan = PLANS.get(&TopkDesc { dtype: x.dtype(), rows, n, k, largest }, stream.device().target())?;
    let shape = with_last(x, k);
    let mut values = Tensor::empty_on(stream, x.dtype(), &shape)?;
    let mut index = Tensor::empty_on(stream, DType::I64, &shape)?;
    let mut workspace = plan.workspace(stream)?;
    let args = TopkArgs {
        x: x.as_ref(),
        values: values.as_mut(),
        index: index.as_mut(),
        workspace: workspace.as_mut().map(Tensor::as_mut),
    };
    plan.launch(stream, args)?;
    Ok(TopkOutput { values, index })
}

/// The gradient of the `x` of [`topk`], `[.., n]`, from the gradient `dvalues` of its values: those where its values are from, zeros
/// elsewhere.
///
/// `dvalues`, of f32, f64, f16 or bf16, and `index`, of i64, are `[.., k]`; an index that is no element of a row is passed over, and those of a
/// row differ from each other.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::{Device, Tensor, topk_backward};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let index = Tensor::from_slice(&device, &[2i64, 0], &[2, 1])?;
/// let dvalues = Tensor::from_slice(&device, &[1.0f32, 2.0], &[2, 1])?;
/// let dx = topk_backward(&stream, &dvalues, &index, 3)?;
/// assert_eq!(dx.to_vec_on::<f32>(&stream)?, [0.0, 0.0, 1.0, 2.0, 0.0, 0.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if `dvalues` has no dimension or the element type is none of those. [`Error::Runtime`] if `index` has not an element for
/// each of `dvalues`, or memory runs out.
pub fn topk_backward(stream: &Stream, dvalues: &Tensor, index: &Tensor, n: usize) -> Result<Tensor, Error> {
    static PLANS: PlanCache<TopkBackwardDesc> = PlanCache::new();
    let [rows, k] = rows(dvalues)?;
    let plan =
        PLANS.get(&TopkBackwardDesc { dtype: dvalues.dtype(), rows, n, k }, stream.device().target())?;
    let mut dx = Tensor::empty_on(stream, dvalues.dtype(), &with_last(dvalues, n))?;
    let args = TopkBackwardArgs { dvalues: dvalues.as_ref(), index: index.as_ref(), dx: dx.as_mut() };
    plan.launch(stream, args)?;
    Ok(dx)
}
