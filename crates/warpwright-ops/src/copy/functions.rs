//! The free functions: they allocate the results, take the plan from a cache, and launch.

use warpwright_runtime::{Stream, Tensor};

use super::{CAT, CatArgs, CatDesc, PERMUTE, PermuteArgs, PermuteDesc, SPLIT, SplitArgs, SplitDesc};
use crate::plan::{self, PlanCache, View};
use crate::{Error, PlanError};

/// `x` with its dimensions in the order of `axes`, as `x.permute(axes).contiguous()` in PyTorch.
///
/// `x` is of any type (f32, f16, i64, u8 and all others) and shape of up to 8 dimensions; `axes` has every dimension of it once, and the result has the extents `x.shape()[axis]`
/// in that order. Dimensions that stay beside each other count as one; at most 5 may be left.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::{Device, Tensor, permute};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3])?;
/// let y = permute(&stream, &x, &[1, 0])?;
/// assert_eq!(y.shape(), [3, 2]);
/// assert_eq!(y.to_vec_on::<f32>(&stream)?, [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if `axes` are no permutation of the dimensions of `x` or more than 5 dimensions are left; [`Error::Runtime`] if memory
/// runs out.
pub fn permute(stream: &Stream, x: &Tensor, axes: &[usize]) -> Result<Tensor, Error> {
    static PLANS: PlanCache<PermuteDesc> = PlanCache::new();
    let view = View::of(&x.as_ref()).ok_or_else(|| {
        let got = format!("{} dimensions", x.shape().len());
        PlanError::refused(PERMUTE, "shape", got, "of at most 8 dimensions")
    })?;
    let desc = PermuteDesc { dtype: x.dtype(), x: view, axes: axes.to_vec() };
    let plan = PLANS.get(&desc, stream.device().target())?;
    // The plan has refused axes that are none.
    let shape: Vec<_> = axes.iter().filter_map(|axis| x.shape().get(*axis).copied()).collect();
    let mut y = Tensor::empty_on(stream, x.dtype(), &shape)?;
    plan.launch(stream, PermuteArgs { x: x.as_ref(), y: y.as_mut() })?;
    Ok(y)
}

/// The rows of a shape, and the elements of each, of rows that begin at dimension `axis`.
fn rows(op: &'static str, shape: &[usize], axis: usize) -> Result<[usize; 2], PlanError> {
    let [outer, n, inner] = plan::around(shape, axis).ok_or_else(|| {
        PlanError::refused(op, "axis", format!("{axis} of {shape:?}"), "a dimension of every tensor")
    })?;
    Ok([outer, n.saturating_mul(inner)])
}

/// The tensors `parts` behind each other along the dimension `axis`, as `torch.cat` has them.
///
/// From 1 to [`MAX_PARTS`](super::MAX_PARTS) tensors of one type (f32, f16, i64, u8 or any other) and of one shape except along `axis`; the result has the sum of their
/// extents there.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::{Device, Tensor, cat, split};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let a = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
/// let b = Tensor::from_slice(&device, &[5.0f32, 6.0], &[2, 1])?;
/// let y = cat(&stream, &[&a, &b], 1)?;
/// assert_eq!(y.shape(), [2, 3]);
/// assert_eq!(y.to_vec_on::<f32>(&stream)?, [1.0, 2.0, 5.0, 3.0, 4.0, 6.0]);
/// let parts = split(&stream, &y, &[2, 1], 1)?;
/// assert_eq!(parts[1].to_vec_on::<f32>(&stream)?, [5.0, 6.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if there are no parts or too many, one of them differs in type or in another dimension, or `axis` is no dimension;
/// [`Error::Runtime`] if memory runs out.
pub fn cat(stream: &Stream, parts: &[&Tensor], axis: usize) -> Result<Tensor, Error> {
    static PLANS: PlanCache<CatDesc> = PlanCache::new();
    let Some(first) = parts.first() else {
        return Err(PlanError::refused(CAT, "parts", "none", "at least one tensor").into());
    };
    let mut shape = first.shape().to_vec();
    let [outer, _] = rows(CAT, &shape, axis)?;
    let mut lens = Vec::new();
    let mut extent = 0usize;
    for (number, part) in parts.iter().enumerate() {
        let alike = part.shape().len() == shape.len()
            && part.shape().iter().zip(&shape).enumerate().all(|(i, (own, of))| i == axis || own == of);
        if !alike || part.dtype() != first.dtype() {
            let got = format!("{} {:?} as number {number}", part.dtype(), part.shape());
            let expected = "tensors of the type and shape of the first, but along the axis";
            return Err(PlanError::refused(CAT, "parts", got, expected).into());
        }
        lens.push(rows(CAT, part.shape(), axis)?[1]);
        let more = || PlanError::refused(CAT, "parts", "too long", "a sum of extents that can be addressed");
        extent = extent.checked_add(part.shape()[axis]).ok_or_else(more)?;
    }
    let plan = PLANS.get(&CatDesc { dtype: first.dtype(), outer, lens }, stream.device().target())?;
    shape[axis] = extent;
    let mut y = Tensor::empty_on(stream, first.dtype(), &shape)?;
    let inputs = parts.iter().map(|part| part.as_ref()).collect();
    plan.launch(stream, CatArgs { inputs, y: y.as_mut() })?;
    Ok(y)
}

/// `x` in parts of so many indices of the dimension `axis` each, every part a tensor of its own; the inverse of [`cat`].
///
/// `x` is of any type (f32, f16, i64, u8 and all others) and shape; `extents` are from 1 to [`MAX_PARTS`](super::MAX_PARTS) numbers whose sum is the extent of `axis`.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::{Device, Tensor, split};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1i64, 2, 3, 4, 5, 6], &[2, 3])?;
/// let parts = split(&stream, &x, &[1, 2], 1)?;
/// assert_eq!(parts[0].to_vec_on::<i64>(&stream)?, [1, 4]);
/// assert_eq!(parts[1].to_vec_on::<i64>(&stream)?, [2, 3, 5, 6]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if `axis` is no dimension of `x`, or `extents` are none, too many, or of another sum; [`Error::Runtime`] if memory runs
/// out.
pub fn split(stream: &Stream, x: &Tensor, extents: &[usize], axis: usize) -> Result<Vec<Tensor>, Error> {
    static PLANS: PlanCache<SplitDesc> = PlanCache::new();
    let mut shape = x.shape().to_vec();
    let [outer, _] = rows(SPLIT, &shape, axis)?;
    let sum = extents.iter().try_fold(0usize, |sum, extent| sum.checked_add(*extent));
    if sum != Some(shape[axis]) {
        let got = format!("{extents:?} of {}", shape[axis]);
        return Err(PlanError::refused(SPLIT, "extents", got, "numbers whose sum is the extent").into());
    }
    let mut lens = Vec::new();
    let mut outputs = Vec::new();
    for &extent in extents {
        shape[axis] = extent;
        lens.push(rows(SPLIT, &shape, axis)?[1]);
    }
    let cat = CatDesc { dtype: x.dtype(), outer, lens };
    let plan = PLANS.get(&SplitDesc { cat }, stream.device().target())?;
    for &extent in extents {
        shape[axis] = extent;
        outputs.push(Tensor::empty_on(stream, x.dtype(), &shape)?);
    }
    let parts = outputs.iter_mut().map(Tensor::as_mut).collect();
    plan.launch(stream, SplitArgs { x: x.as_ref(), outputs: parts })?;
    Ok(outputs)
}
