//! Softmax and its logarithm along a dimension.

use candle_core::shape::Dim;
use candle_core::{D, Result, Tensor};
use warpwright::plan::{PlanCache, Real};
use warpwright::softmax::{Softmax, SoftmaxArgs, SoftmaxBackwardArgs, SoftmaxBackwardDesc, SoftmaxDesc};

use crate::array::Spec;
use crate::call::{Call, only, present};
use crate::graph::record;

fn along<I: Dim>(function: Softmax, xs: &Tensor, dim: I) -> Result<Tensor> {
    static PLANS: PlanCache<SoftmaxDesc> = PlanCache::new();
    let op = function.name();
    let dim = dim.to_index(xs.shape(), op)?;
    let call = Call::new(op, ("xs", xs))?;
    let x = call.row_major(("xs", xs))?;
    let around = |dims: &[usize]| dims.iter().product();
    let (outer, n, inner) = (around(&x.shape[..dim]), x.shape[dim], around(&x.shape[dim + 1..]));
    let desc = SoftmaxDesc { function, dtype: x.dtype, outer, n, inner, scale: Real::new(1.0) };
    let plan = call.plan(&PLANS, &desc)?;
    let y = call.run([Some(&x)], [Some(Spec::like(&x))], |stream, [x], [y]| {
        Ok(plan.launch(stream, SoftmaxArgs { x, y: present(y) })?)
    })?;
    record(op, &[("xs", xs)], only(y), move |y, dy| Ok(vec![Some(backward(&desc, y, dy)?)]))
}

fn backward(forward: &SoftmaxDesc, y: &Tensor, dy: &Tensor) -> Result<Tensor> {
    static PLANS: PlanCache<SoftmaxBackwardDesc> = PlanCache::new();
    let call = Call::new(forward.function.name(), ("y", y))?;
    let plan = call.plan(&PLANS, &SoftmaxBackwardDesc { forward: forward.clone() })?;
    let (y, dy) = (call.row_major(("y", y))?, call.row_major(("dy", dy))?);
    let dx = call.run([Some(&y), Some(&dy)], [Some(Spec::like(&y))], |stream, [y, dy], [dx]| {
        Ok(plan.launch(stream, SoftmaxBackwardArgs { y: present(y), dy, dx: present(dx) })?)
    })?;
    only(dx).into_tensor()
}

/// `exp(x) / sum(exp(x))` along dimension `dim`, as [`candle_nn::ops::softmax`], which takes five kernels for it.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use warpwright_candle::ops;
///
/// # fn main() -> candle_core::Result<()> {
/// let x = Tensor::new(&[[0f32, 2.0], [0.0, 2.0]], &Device::Cpu)?;
/// assert_eq!(ops::softmax(&x, 0)?.to_vec2::<f32>()?, [[0.5, 0.5], [0.5, 0.5]]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// If there is no such dimension, or the element type is none of f32, f64, f16 and bf16.
pub fn softmax<I: Dim>(xs: &Tensor, dim: I) -> Result<Tensor> {
    along(Softmax::Plain, xs, dim)
}

/// [`softmax()`] of the last dimension. [`candle_nn::ops::softmax_last_dim`] has no gradient.
///
/// # Errors
/// As [`softmax()`].
pub fn softmax_last_dim(xs: &Tensor) -> Result<Tensor> {
    softmax(xs, D::Minus1)
}

/// The logarithm of [`softmax()`], `x - log(sum(exp(x)))`, as [`candle_nn::ops::log_softmax`].
///
/// # Errors
/// As [`softmax()`].
pub fn log_softmax<I: Dim>(xs: &Tensor, dim: I) -> Result<Tensor> {
    along(Softmax::Log, xs, dim)
}

/// [`log_softmax()`] of the last dimension.
///
/// # Errors
/// As [`softmax()`].
pub fn log_softmax_last_dim(xs: &Tensor) -> Result<Tensor> {
    log_softmax(xs, D::Minus1)
}
