//! Layer, RMS, group and batch normalization.

use burn::tensor::Tensor;
use warpwright::batch_norm::{BatchNormOptions, Momentum, RunningStatistics};
use warpwright::group_norm::GroupNormOptions;
use warpwright::layer_norm::{RowNorm, RowNormOptions, row_norm, row_norm_backward};
use warpwright::{NormGradients, Tensor as Array};

use crate::call::Call;
use crate::error::Error;
use crate::graph::{Inputs, Named, Written};

fn named(gradients: NormGradients) -> Named {
    let NormGradients { dx, dweight, dbias, .. } = gradients;
    [("x", Some(dx)), ("gamma", dweight), ("beta", dbias)]
        .into_iter()
        .filter_map(|(name, gradient)| Some((name, gradient?)))
        .collect()
}

fn rows<const D: usize>(
    norm: RowNorm,
    x: Tensor<D>,
    gamma: Option<Tensor<1>>,
    beta: Option<Tensor<1>>,
    epsilon: f64,
) -> Result<Tensor<D>, Error> {
    fn options(inputs: &Inputs, epsilon: f64) -> RowNormOptions<'_> {
        let (weight, bias) = (inputs.get("gamma"), inputs.get("beta"));
        let inference = !inputs.training();
        RowNormOptions { weight, bias, eps: Some(epsilon), inference, ..RowNormOptions::default() }
    }
    let op = norm.name();
    let call = Call::new(op).float("x", x)?.optional("gamma", gamma)?.optional("beta", beta)?;
    let mut results = call.run(move |stream, inputs| {
        let output = row_norm(stream, norm, inputs.of("x"), options(inputs, epsilon))?;
        Ok(Written::of(op, &[&output.y])?.with(move |stream, inputs, dy| {
            let options = options(inputs, epsilon);
            Ok(named(row_norm_backward(stream, norm, inputs.of("x"), &output, dy, None, options)?))
        }))
    })?;
    Ok(results.next())
}

/// `(x - mean) / sqrt(variance + epsilon) gamma + beta` over the last dimension, as [`burn::tensor::module::layer_norm`].
///
/// `gamma` and `beta` are `[n]`, of the element type of `x`.
///
/// # Errors
/// If shapes or element types do not fit, `epsilon` is negative, the element type is none of f32, f64, f16 and bf16, or the device is
/// not Flex.
pub fn layer_norm<const D: usize>(
    x: Tensor<D>,
    gamma: Tensor<1>,
    beta: Option<Tensor<1>>,
    epsilon: f64,
) -> Result<Tensor<D>, Error> {
    rows(RowNorm::Layer, x, Some(gamma), beta, epsilon)
}

/// `x / sqrt(mean(x^2) + epsilon) gamma` over the last dimension, as [`burn::nn::RmsNorm`].
///
/// `gamma` is `[n]`, of the element type of `x`.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use warpwright_burn::ops::rms_norm;
///
/// # fn main() -> Result<(), warpwright_burn::Error> {
/// let device = Device::flex().autodiff();
/// let x = Tensor::<2>::from_data([[3f32, 4.0]], &device).require_grad();
/// let y = rms_norm(x.clone(), Tensor::from_data([1f32, 2.0], &device), 0.0)?;
/// assert!((y.to_data().as_slice::<f32>().unwrap()[1] - 8.0 / 12.5f32.sqrt()).abs() < 1e-6);
/// assert!(x.grad(&y.sum().backward()).is_some());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`layer_norm`].
pub fn rms_norm<const D: usize>(x: Tensor<D>, gamma: Tensor<1>, epsilon: f64) -> Result<Tensor<D>, Error> {
    rows(RowNorm::Rms, x, Some(gamma), None, epsilon)
}

/// The normalization of the groups of channels of each sample, as [`burn::nn::GroupNorm`]: `x` is `[batch, channels, ..]`, `gamma` and
/// `beta` are `[channels]`, of its element type.
///
/// # Errors
/// As [`layer_norm`], and if `num_groups` does not divide the channels.
pub fn group_norm<const D: usize>(
    x: Tensor<D>,
    gamma: Option<Tensor<1>>,
    beta: Option<Tensor<1>>,
    num_groups: usize,
    epsilon: f64,
) -> Result<Tensor<D>, Error> {
    const OP: &str = "group_norm";
    fn options(inputs: &Inputs, groups: usize, eps: f64) -> GroupNormOptions<'_> {
        let (weight, bias) = (inputs.get("gamma"), inputs.get("beta"));
        GroupNormOptions { groups, weight, bias, eps, inference: !inputs.training(), ..Default::default() }
    }
    check_channels(OP, &x)?;
    let call = Call::new(OP).float("x", x)?.optional("gamma", gamma)?.optional("beta", beta)?;
    let mut results = call.run(move |stream, inputs| {
        let of_forward = options(inputs, num_groups, epsilon);
        let output = warpwright::group_norm(stream, inputs.of("x"), of_forward)?;
        Ok(Written::of(OP, &[&output.y])?.with(move |stream, inputs, dy| {
            let options = options(inputs, num_groups, epsilon);
            Ok(named(warpwright::group_norm_backward(stream, inputs.of("x"), &output, dy, options)?))
        }))
    })?;
    Ok(results.next())
}

fn check_channels<const D: usize>(op: &'static str, x: &Tensor<D>) -> Result<(), Error> {
    if D >= 2 { Ok(()) } else { Err(Error::shape(op, "x", "[batch, channels, ..]", &x.dims())) }
}

fn batch_options(inputs: &Inputs, eps: f64) -> BatchNormOptions<'_> {
    BatchNormOptions { weight: inputs.get("gamma"), bias: inputs.get("beta"), eps, ..Default::default() }
}

const BATCH_NORM: &str = "batch_norm";

/// The results of [`batch_norm_train`].
#[derive(Debug)]
pub struct BatchNormTrain<const D: usize> {
    /// The normalized tensor, like `x`.
    pub output: Tensor<D>,
    /// The mean of each channel, `[channels]`, without a gradient.
    pub mean: Tensor<1>,
    /// The variance of each channel, `[channels]`, of as many values as there are and without a gradient.
    pub variance: Tensor<1>,
}

/// The normalization of each channel by the statistics of the batch, as [`burn::tensor::module::batch_norm_train`]: `x` is `[batch,
/// channels, ..]`, `gamma` and `beta` are `[channels]`, of its element type or of f32.
///
/// # Errors
/// As [`layer_norm`], and if a channel has one value alone.
pub fn batch_norm_train<const D: usize>(
    x: Tensor<D>,
    gamma: Tensor<1>,
    beta: Tensor<1>,
    epsilon: f64,
) -> Result<BatchNormTrain<D>, Error> {
    check_channels(BATCH_NORM, &x)?;
    let of_channel =
        x.dims().iter().enumerate().filter(|(dim, _)| *dim != 1).map(|(_, n)| *n as f64).product::<f64>();
    let call = Call::new(BATCH_NORM).float("x", x)?.float("gamma", gamma)?.float("beta", beta)?;
    let mut results = call.run(move |stream, inputs| {
        let (x, gamma) = (inputs.of("x"), inputs.of("gamma"));
        let like_gamma = || Array::zeros_on(stream, gamma.dtype(), gamma.shape());
        let [mut mean, mut var] = [like_gamma()?, like_gamma()?];
        let momentum = Momentum::Exponential(1.0.into());
        let running = RunningStatistics { mean: &mut mean, var: &mut var, momentum };
        let output = warpwright::batch_norm(stream, x, Some(running), batch_options(inputs, epsilon))?;
        Ok(Written::of(BATCH_NORM, &[&output.y, &mean, &var])?.with(move |stream, inputs, dy| {
            let options = batch_options(inputs, epsilon);
            Ok(named(warpwright::batch_norm_backward(stream, inputs.of("x"), &output, dy, options)?))
        }))
    })?;
    let (output, mean, unbiased) = (results.next(), results.next::<1>(), results.next::<1>());
    let variance = unbiased.mul_scalar((of_channel - 1.0) / of_channel);
    Ok(BatchNormTrain { output, mean, variance })
}

/// The normalization of each channel by statistics that are given, as [`burn::tensor::module::batch_norm`]: `x` is `[batch, channels,
/// ..]`, the others are `[channels]`, of its element type or of f32. `mean` and `variance` have no gradients.
///
/// # Errors
/// As [`layer_norm`].
pub fn batch_norm<const D: usize>(
    x: Tensor<D>,
    gamma: Tensor<1>,
    beta: Tensor<1>,
    mean: Tensor<1>,
    variance: Tensor<1>,
    epsilon: f64,
) -> Result<Tensor<D>, Error> {
    check_channels(BATCH_NORM, &x)?;
    let call = Call::new(BATCH_NORM).float("x", x)?.float("gamma", gamma)?.float("beta", beta)?;
    let call = call.constant("mean", mean)?.constant("variance", variance)?;
    let mut results = call.run(move |stream, inputs| {
        let options = batch_options(inputs, epsilon);
        let [x, mean, var] = ["x", "mean", "variance"].map(|name| inputs.of(name));
        let output = warpwright::batch_norm_inference(stream, x, mean, var, options)?;
        Ok(Written::of(BATCH_NORM, &[&output.y])?.with(move |stream, inputs, dy| {
            let options = batch_options(inputs, epsilon);
            let [x, mean, var] = ["x", "mean", "variance"].map(|name| inputs.of(name));
            let back = warpwright::batch_norm_inference_backward(stream, x, mean, var, &output, dy, options)?;
            Ok(named(back))
        }))
    })?;
    Ok(results.next())
}
