//! Free functions: allocate the results, take the plan from a cache, launch.

use warpwright_ptx::DType;
use warpwright_runtime::{Stream, Tensor};

use super::{Softmax, SoftmaxArgs, SoftmaxBackwardArgs, SoftmaxBackwardDesc, SoftmaxDesc};
use crate::plan::{self, PlanCache, Real};
use crate::{Error, PlanError};

/// `[outer, n, inner]` of a shape around dimension `dim`.
fn around(op: &'static str, shape: &[usize], dim: usize) -> Result<[usize; 3], PlanError> {
    plan::around(shape, dim).ok_or_else(|| {
        let got = format!("{dim} of {} dimensions", shape.len());
        PlanError::refused(op, "dim", got, "a dimension of the tensor")
    })
}

fn forward(stream: &Stream, function: Softmax, x: &Tensor, dim: usize) -> Result<Tensor, Error> {
    static PLANS: PlanCache<SoftmaxDesc> = PlanCache::new();
    let [outer, n, inner] = around(function.name(), x.shape(), dim)?;
    let dtype: DType = x.dtype();
    let desc = SoftmaxDesc { function, dtype, outer, n, inner, scale: Real::new(1.0) };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let mut y = Tensor::empty_on(stream, dtype, x.shape())?;
    plan.launch(stream, SoftmaxArgs { x: Some(x.as_ref()), y: y.as_mut() })?;
    Ok(y)
}

fn backward(
    stream: &Stream,
    function: Softmax,
    y: &Tensor,
    dy: &Tensor,
    dim: usize,
) -> Result<Tensor, Error> {
    static PLANS: PlanCache<SoftmaxBackwardDesc> = PlanCache::new();
    let [outer, n, inner] = around(function.name(), y.shape(), dim)?;
    let desc = SoftmaxBackwardDesc {
        forward: SoftmaxDesc { function, dtype: y.dtype(), outer, n, inner, scale: Real::new(1.0) },
    };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let mut dx = Tensor::empty_on(stream, y.dtype(), y.shape())?;
    plan.launch(stream, SoftmaxBackwardArgs { y: y.as_ref(), dy: Some(dy.as_ref()), dx: dx.as_mut() })?;
    Ok(dx)
}

/// The probabilities `y = exp(x) / sum(exp(x))` along dimension `dim`; see the [module](crate::softmax).
///
/// `x` has any shape, of f32, f64, f16 or bf16; `y` is like `x`.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::{Device, Tensor, softmax};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[0.0f32, 3.0f32.ln()], &[1, 2])?;
/// let y = softmax(&stream, &x, 1)?.to_vec_on::<f32>(&stream)?;
/// assert!((y[0] - 0.25).abs() < 1e-6 && (y[1] - 0.75).abs() < 1e-6);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if there is no such dimension or the element type is none of those. [`Error::Runtime`] if memory runs out.
pub fn softmax(stream: &Stream, x: &Tensor, dim: usize) -> Result<Tensor, Error> {
    forward(stream, Softmax::Plain, x, dim)
}

/// The gradient `dx = y (dy - sum(y dy))` of [`softmax`] from its result `y` and the gradient `dy` of that.
///
/// `y`, `dy` and `dx` have one shape and type, f32, f64, f16 or bf16.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::{Device, Tensor, softmax_backward};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let y = Tensor::from_slice(&device, &[0.25f32, 0.75], &[1, 2])?;
/// let dy = Tensor::from_slice(&device, &[1.0f32, 0.0], &[1, 2])?;
/// let dx = softmax_backward(&stream, &y, &dy, 1)?;
/// assert_eq!(dx.to_vec_on::<f32>(&stream)?, [0.1875, -0.1875]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if there is no such dimension or the element type is none of those. [`Error::Runtime`] if `dy` is not like `y`, or memory runs out.
pub fn softmax_backward(stream: &Stream, y: &Tensor, dy: &Tensor, dim: usize) -> Result<Tensor, Error> {
    backward(stream, Softmax::Plain, y, dy, dim)
}

/// The logarithms `y = x - log(sum(exp(x)))` of the probabilities along dimension `dim`; see the [module](crate::softmax).
///
/// `x` has any shape, of f32, f64, f16 or bf16; `y` is like `x`.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::{Device, Tensor, log_softmax};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let x = Tensor::from_slice(&device, &[5.0f32, 5.0], &[1, 2])?;
/// let y = log_softmax(&stream, &x, 1)?.to_vec_on::<f32>(&stream)?;
/// assert!(y.iter().all(|y| (y + 2.0f32.ln()).abs() < 1e-6));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if there is no such dimension or the element type is none of those. [`Error::Runtime`] if memory runs out.
pub fn log_softmax(stream: &Stream, x: &Tensor, dim: usize) -> Result<Tensor, Error> {
    forward(stream, Softmax::Log, x, dim)
}

/// The gradient `dx = dy - exp(y) sum(dy)` of [`log_softmax`] from its result `y` and the gradient `dy` of that.
///
/// `y`, `dy` and `dx` have one shape and type, f32, f64, f16 or bf16.
///
/// ```
/// # fn main() -> Result<(), warpwright::Error> {
/// use warpwright::{Device, Tensor, log_softmax_backward};
///
/// let device = Device::best();
/// let stream = device.stream()?;
/// let y = Tensor::from_slice(&device, &[0.5f32.ln(), 0.5f32.ln()], &[1, 2])?;
/// let dy = Tensor::from_slice(&device, &[-1.0f32, 0.0], &[1, 2])?;
/// let dx = log_softmax_backward(&stream, &y, &dy, 1)?.to_vec_on::<f32>(&stream)?;
/// assert!((dx[0] + 0.5).abs() < 1e-6 && (dx[1] - 0.5).abs() < 1e-6);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Plan`] if there is no such dimension or the element type is none of those. [`Error::Runtime`] if `dy` is not like `y`, or memory runs out.
pub fn log_softmax_backward(stream: &Stream, y: &Tensor, dy: &Tensor, dim: usize) -> Result<Tensor, Error> {
    backward(stream, Softmax::Log, y, dy, dim)
}
