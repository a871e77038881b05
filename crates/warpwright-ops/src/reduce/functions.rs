//! Free functions: allocate the results, take the plan from a cache, launch.

use warpwright_ptx::DType;
use warpwright_runtime::{Stream, Tensor};

use super::{ArgReduceArgs, ArgReduceDesc, ArgReduceFunction, ReduceArgs, ReduceDesc, ReduceFunction};
use crate::plan::PlanCache;
use crate::{Error, PlanError};

/// The reduction of `x` over `dims` as a tensor of `shape`.
fn launch(
    stream: &Stream,
    function: ReduceFunction,
    x: &Tensor,
    dims: Vec<usize>,
    shape: &[usize],
) -> Result<Tensor, Error> {
    static PLANS: PlanCache<ReduceDesc> = PlanCache::new();
    let (dtype, y_dtype) = (x.dtype(), x.dtype());
    let desc = ReduceDesc { function, dtype, y_dtype, shape: x.shape().to_vec(), dims };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let mut y = Tensor::empty_on(stream, y_dtype, shape)?;
    let mut workspace = plan.workspace(stream)?;
    let workspace = workspace.as_mut().map(Tensor::as_mut);
    plan.launch(stream, ReduceArgs { x: x.as_ref(), y: y.as_mut(), workspace })?;
    Ok(y)
}

/// `shape` without `dims`, or with extents of 1 in their place.
fn shape_without(shape: &[usize], dims: &[usize], keepdim: bool) -> Vec<usize> {
    let kept = |(dim, &extent): (usize, &usize)| match dims.contains(&dim) {
        false => Some(extent),
        true => keepdim.then_some(1),
    };
    shape.iter().enumerate().filter_map(kept).collect()
}

fn reduce(
    stream: &Stream,
    function: ReduceFunction,
    x: &Tensor,
    dims: &[usize],
    keepdim: bool,
) -> Result<Tensor, Error> {
    let dims = if dims.is_empty() { (0..x.shape().len()).collect() } else { dims.to_vec() };
    let shape = shape_without(x.shape(), &dims, keepdim);
    launch(stream, function, x, dims, &shape)
}

/// The sums of the elements of `x` over `dims`, as `torch.sum`; see the [module](crate::reduce).
///
/// `x` has any shape, of f32, f64, f16 or bf16; the result has its type, and its shape without `dims`, or with extents of 1 there if
/// `keepdim`. No `dims` stand for all.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::{Device, Tensor, sum};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3])?;
/// let columns = sum(&stream, &x, &[0], false)?;
/// assert_eq!(columns.to_vec_on::<f32>(&stream)?, [5.0, 7.0, 9.0]);
/// let rows = sum(&stream, &x, &[1], true)?;
/// assert_eq!((rows.shape(), rows.to_vec_on::<f32>(&stream)?), (&[2, 1][..], vec![6.0, 15.0]));
/// assert_eq!(sum(&stream, &x, &[], false)?.to_vec_on::<f32>(&stream)?, [21.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if `dims` are not dimensions of `x`, each once, or the element type is none of those. [`Error::Runtime`] if memory runs
/// out.
pub fn sum(stream: &Stream, x: &Tensor, dims: &[usize], keepdim: bool) -> Result<Tensor, Error> {
    reduce(stream, ReduceFunction::Sum, x, dims, keepdim)
}

/// The means of the elements of `x` over `dims`, as `torch.mean`; NaN of no elements. Arguments and result as for [`sum`].
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::{Device, Tensor, mean};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0, 6.0], &[2, 2])?;
/// assert_eq!(mean(&stream, &x, &[1], false)?.to_vec_on::<f32>(&stream)?, [1.5, 4.5]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`sum`].
pub fn mean(stream: &Stream, x: &Tensor, dims: &[usize], keepdim: bool) -> Result<Tensor, Error> {
    reduce(stream, ReduceFunction::Mean, x, dims, keepdim)
}

/// The largest elements of `x` over `dims`, NaN where one is NaN, as `torch.amax`. Arguments and result as for [`sum`].
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::{Device, Tensor, amax};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, -2.0, 3.0, f32::NAN], &[2, 2])?;
/// let y = amax(&stream, &x, &[0], false)?.to_vec_on::<f32>(&stream)?;
/// assert!(y[0] == 3.0 && y[1].is_nan());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`sum`]; [`Error::Plan`] if there are no elements to choose from.
pub fn amax(stream: &Stream, x: &Tensor, dims: &[usize], keepdim: bool) -> Result<Tensor, Error> {
    reduce(stream, ReduceFunction::Amax, x, dims, keepdim)
}

/// The least elements of `x` over `dims`, NaN where one is NaN, as `torch.amin`. Arguments and result as for [`sum`].
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::{Device, Tensor, amin};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, -2.0, 3.0, 4.0], &[2, 2])?;
/// assert_eq!(amin(&stream, &x, &[1], false)?.to_vec_on::<f32>(&stream)?, [-2.0, 3.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`amax`].
pub fn amin(stream: &Stream, x: &Tensor, dims: &[usize], keepdim: bool) -> Result<Tensor, Error> {
    reduce(stream, ReduceFunction::Amin, x, dims, keepdim)
}

fn search(
    stream: &Stream,
    function: ArgReduceFunction,
    x: &Tensor,
    dim: Option<usize>,
    keepdim: bool,
) -> Result<Tensor, Error> {
    static PLANS: PlanCache<ArgReduceDesc> = PlanCache::new();
    let extents = x.shape();
    let ([outer, n, inner], dims) = match dim {
        None => ([1, x.len(), 1], (0..extents.len()).collect::<Vec<_>>()),
        Some(dim) if dim < extents.len() => {
            let product = |extents: &[usize]| extents.iter().product();
            ([product(&extents[..dim]), extents[dim], product(&extents[dim + 1..])], vec![dim])
        }
        Some(dim) => {
            let got = format!("{dim} of {} dimensions", extents.len());
            return Err(PlanError::refused(function.name(), "dim", got, "a dimension of the tensor").into());
        }
    };
    let desc = ArgReduceDesc { function, dtype: x.dtype(), outer, n, inner };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let mut index = Tensor::empty_on(stream, DType::I64, &shape_without(extents, &dims, keepdim))?;
    let mut workspace = plan.workspace(stream)?;
    let workspace = workspace.as_mut().map(Tensor::as_mut);
    plan.launch(stream, ArgReduceArgs { x: x.as_ref(), index: index.as_mut(), workspace })?;
    Ok(index)
}

/// Where the largest elements of `x` are along dimension `dim`, as `torch.argmax`: the first of several, the first NaN before any number.
///
/// `x` has any shape, of f32, f64, f16 or bf16; the result is of i64, of the shape of `x` without `dim`, or with an extent of 1 there if
/// `keepdim`. Without a `dim` all elements are searched, in the order of memory.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::{Device, Tensor, argmax};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 5.0, 5.0, 9.0, 2.0, 3.0], &[2, 3])?;
/// assert_eq!(argmax(&stream, &x, Some(1), false)?.to_vec_on::<i64>(&stream)?, [1, 0]);
/// assert_eq!(argmax(&stream, &x, None, false)?.to_vec_on::<i64>(&stream)?, [3]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if there is no such dimension, no element along it, or the element type is none of those. [`Error::Runtime`] if memory
/// runs out.
pub fn argmax(stream: &Stream, x: &Tensor, dim: Option<usize>, keepdim: bool) -> Result<Tensor, Error> {
    search(stream, ArgReduceFunction::Argmax, x, dim, keepdim)
}

/// Where the least elements of `x` are along dimension `dim`, as `torch.argmin`. Arguments and result as for [`argmax`].
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::{Device, Tensor, argmin};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[1.0f32, 5.0, 0.0, 9.0], &[2, 2])?;
/// assert_eq!(argmin(&stream, &x, Some(0), true)?.to_vec_on::<i64>(&stream)?, [1, 0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`argmax`].
pub fn argmin(stream: &Stream, x: &Tensor, dim: Option<usize>, keepdim: bool) -> Result<Tensor, Error> {
    search(stream, ArgReduceFunction::Argmin, x, dim, keepdim)
}

/// The sums of the elements of `x` that a broadcast to its shape would make of one element of a tensor of `shape`: the gradient of
/// that broadcast, as `Tensor.sum_to_size`.
///
/// `x` has any shape, of f32, f64, f16 or bf16; the result has its type. Dimensions are compared from the last one on; those that
/// `shape` does not have, and those where its extent is 1, are summed.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::{Device, Tensor, sum_to_shape};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let dy = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3])?;
/// let dbias = sum_to_shape(&stream, &dy, &[3])?;
/// assert_eq!(dbias.to_vec_on::<f32>(&stream)?, [5.0, 7.0, 9.0]);
/// assert_eq!(sum_to_shape(&stream, &dy, &[2, 1])?.to_vec_on::<f32>(&stream)?, [6.0, 15.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if `shape` does not broadcast to the shape of `x`, or the element type is none of those. [`Error::Runtime`] if memory
/// runs out.
pub fn sum_to_shape(stream: &Stream, x: &Tensor, shape: &[usize]) -> Result<Tensor, Error> {
    let extents = x.shape();
    let refuse = || {
        let got = format!("{shape:?} for {extents:?}");
        PlanError::refused("sum_to_shape", "shape", got, "a shape that broadcasts to that of x")
    };
    let leading = extents.len().checked_sub(shape.len()).ok_or_else(refuse)?;
    let mut dims: Vec<usize> = (0..leading).collect();
    for (dim, (&extent, &to)) in (leading..).zip(extents[leading..].iter().zip(shape)) {
        match to {
            _ if to == extent => {}
            1 => dims.push(dim),
            _ => return Err(refuse().into()),
        }
    }
    launch(stream, ReduceFunction::Sum, x, dims, shape)
}
