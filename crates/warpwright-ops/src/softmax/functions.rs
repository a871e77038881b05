//! Free functions: allocate the results, take the plan from a cache, launch.

use warpwright_ptx::DType;
use warpwright_runtime::{Stream, Tensor};

use super::{Softmax, SoftmaxArgs, SoftmaxBackwardArgs, SoftmaxBackwardDesc, SoftmaxDesc};
use crate::plan::{PlanCache, Real};
use crate::{Error, PlanError};

/// `[outer, n, inner]` of a shape around dimension `dim`.
fn around(op: &'static str, shape: &[usize], dim: usize) -> Result<[usize; 3], PlanError> {
    let Some(&n) = shape.get(dim) else {
        let got = format!("{dim} of {} dimensions", shape.len());
        return Err(PlanError::Parameter {
            op,
            parameter: "dim",
            got,
            expected: "a dimension of the tensor",
        });
    };
    Ok([shape[..dim].iter().product(), n, shape[dim + 1..].iter().product()])
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
    let desc = SoftmaxBackwardDesc { function, dtype: y.dtype(), outer, n, inner, scale: Real::new(1.0) };
    let plan = PLANS.get(&desc, stream.device().target())?;
    let mut dx = Tensor::empty_on(stream, y.dtype(), y.shape())?;
    plan.launch(stream, SoftmaxBackwardArgs { y: y.as_ref(), dy: Some(dy.as_ref()), dx: dx.as_mut() })?;
    Ok(dx)
}

/// The probabilities `exp(x) / sum exp(x)` along dimension `dim`.
///
/// # Errors
/// There is no such dimension, the element type is not supported, or memory runs out.
pub fn softmax(stream: &Stream, x: &Tensor, dim: usize) -> Result<Tensor, Error> {
    forward(stream, Softmax::Plain, x, dim)
}

/// The gradient of [`softmax`] from its result `y` and the gradient `dy` of that.
///
/// # Errors
/// The tensors do not fit each other, there is no such dimension, the element type is not supported, or memory runs out.
pub fn softmax_backward(stream: &Stream, y: &Tensor, dy: &Tensor, dim: usize) -> Result<Tensor, Error> {
    backward(stream, Softmax::Plain, y, dy, dim)
}

/// The logarithms `x - log(sum exp(x))` of the probabilities along dimension `dim`.
///
/// # Errors
/// There is no such dimension, the element type is not supported, or memory runs out.
pub fn log_softmax(stream: &Stream, x: &Tensor, dim: usize) -> Result<Tensor, Error> {
    forward(stream, Softmax::Log, x, dim)
}

/// The gradient of [`log_softmax`] from its result `y` and the gradient `dy` of that.
///
/// # Errors
/// The tensors do not fit each other, there is no such dimension, the element type is not supported, or memory runs out.
pub fn log_softmax_backward(stream: &Stream, y: &Tensor, dy: &Tensor, dim: usize) -> Result<Tensor, Error> {
    backward(stream, Softmax::Log, y, dy, dim)
}
