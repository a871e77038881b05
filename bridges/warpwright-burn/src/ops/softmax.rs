//! Softmax and its logarithm along a dimension.

use burn::tensor::Tensor;
use warpwright::Stream;
use warpwright::Tensor as Array;

use crate::call::Call;
use crate::error::Error;
use crate::graph::Written;

type Forward = fn(&Stream, &Array, usize) -> Result<Array, warpwright::Error>;
type Backward = fn(&Stream, &Array, &Array, usize) -> Result<Array, warpwright::Error>;

fn along<const D: usize>(
    op: &'static str,
    x: Tensor<D>,
    dim: usize,
    (forward, backward): (Forward, Backward),
) -> Result<Tensor<D>, Error> {
    let mut results = Call::new(op).float("x", x)?.run(move |stream, inputs| {
        let y = forward(stream, inputs.of("x"), dim)?;
        Ok(Written::of(op, &[&y])?.with(move |stream, _, dy| Ok(vec![("x", backward(stream, &y, dy, dim)?)])))
    })?;
    Ok(results.next())
}

/// `exp(x) / sum(exp(x))` along dimension `dim`, as [`burn::tensor::activation::softmax`].
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use warpwright_burn::ops::softmax;
///
/// # fn main() -> Result<(), warpwright_burn::Error> {
/// let x = Tensor::<2>::from_data([[0f32, 2.0], [0.0, 2.0]], &Device::flex());
/// assert_eq!(softmax(x, 0)?.into_data().as_slice::<f32>().unwrap(), [0.5; 4]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// If there is no such dimension, the element type is none of f32, f64, f16 and bf16, or the device is not Flex.
pub fn softmax<const D: usize>(x: Tensor<D>, dim: usize) -> Result<Tensor<D>, Error> {
    along("softmax", x, dim, (warpwright::softmax, warpwright::softmax_backward))
}

/// The logarithm of [`softmax()`], `x - log(sum(exp(x)))`, as [`burn::tensor::activation::log_softmax`].
///
/// # Errors
/// As [`softmax()`].
pub fn log_softmax<const D: usize>(x: Tensor<D>, dim: usize) -> Result<Tensor<D>, Error> {
    along("log_softmax", x, dim, (warpwright::log_softmax, warpwright::log_softmax_backward))
}
