//! Gaps of candle: functions that it does not differentiate, silently, or has wrong. The day one of these fails, candle has mended it.

use candle_core::{DType, Device, Module, Result, Tensor, Var};
use warpwright_candle::{LayerNorm, RmsNorm, ops, rotary_emb};

use crate::common::{close, distance, normalised, vector};

/// On the CPU: on a GPU candle may have other gaps.
fn numbers(shape: &[usize], seed: u64) -> Tensor {
    crate::common::numbers(shape, seed).to_device(&Device::Cpu).unwrap()
}

/// Whether a function of a variable has a gradient.
fn has_gradient(shape: &[usize], f: impl Fn(&Tensor) -> Result<Tensor>) -> bool {
    let x = Var::from_tensor(&numbers(shape, 1).to_dtype(DType::F32).unwrap()).unwrap();
    let y = f(&x).unwrap();
    y.sum_all().unwrap().backward().unwrap().get(&x).is_some()
}

fn parameter(n: usize) -> Tensor {
    Tensor::ones(n, DType::F32, &Device::Cpu).unwrap()
}

#[test]
fn softmax_of_the_last_dimension() {
    assert!(!has_gradient(&[2, 8], candle_nn::ops::softmax_last_dim));
    assert!(has_gradient(&[2, 8], ops::softmax_last_dim));
}

#[test]
fn norms_of_rows() {
    let (weight, bias) = (parameter(8), parameter(8));
    assert!(!has_gradient(&[2, 8], |x| candle_nn::ops::rms_norm(x, &weight, 1e-5)));
    assert!(has_gradient(&[2, 8], |x| ops::rms_norm(x, &weight, 1e-5)));
    assert!(!has_gradient(&[2, 8], |x| candle_nn::ops::layer_norm(x, &weight, &bias, 1e-5)));
    assert!(has_gradient(&[2, 8], |x| ops::layer_norm(x, &weight, &bias, 1e-5)));
}

#[test]
fn layers_that_reach_them() {
    let (weight, bias) = (parameter(8), parameter(8));
    let theirs = candle_nn::LayerNorm::new(weight.clone(), bias.clone(), 1e-5);
    assert!(!has_gradient(&[2, 8], |x| theirs.forward(x)));
    let layer = LayerNorm::from(theirs);
    assert!(has_gradient(&[2, 8], |x| layer.forward(x)));
    let theirs = candle_nn::RmsNorm::new(weight, 1e-5);
    assert!(!has_gradient(&[2, 8], |x| theirs.forward(x)));
    let layer = RmsNorm::from(theirs);
    assert!(has_gradient(&[2, 8], |x| layer.forward(x)));
}

#[test]
fn rotary_embeddings() {
    let table = Tensor::ones((3, 4), DType::F32, &Device::Cpu).unwrap();
    type Rotate = fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>;
    let pairs: [(Rotate, Rotate); 3] = [
        (candle_nn::rotary_emb::rope, rotary_emb::rope),
        (candle_nn::rotary_emb::rope_i, rotary_emb::rope_i),
        (candle_nn::rotary_emb::rope_thd, rotary_emb::rope_thd),
    ];
    for (theirs, ours) in pairs {
        assert!(!has_gradient(&[1, 3, 3, 8], |x| theirs(x, &table, &table)));
        assert!(has_gradient(&[1, 3, 3, 8], |x| ours(x, &table, &table)));
    }
}

/// On the CPU there is none, and on a GPU either.
#[test]
fn attention() {
    let x = numbers(&[1, 2, 3, 8], 2).to_dtype(DType::F32).unwrap();
    assert!(candle_nn::ops::sdpa(&x, &x, &x, None, false, 1.0, 1.0).is_err());
    assert!(ops::sdpa(&x, &x, &x, None, false, 1.0, 1.0).is_ok());
}

/// Of images whose sides leave different remainders.
#[test]
fn convolutions_with_strides() {
    let weight = numbers(&[2, 1, 3, 3], 3).to_dtype(DType::F32).unwrap();
    let x = Var::from_tensor(&numbers(&[1, 1, 6, 5], 4).to_dtype(DType::F32).unwrap()).unwrap();
    let theirs = x.conv2d(&weight, 1, 2, 1, 1).unwrap();
    assert!(theirs.sum_all().unwrap().backward().is_err());
    let config = candle_nn::Conv2dConfig { padding: 1, stride: 2, ..Default::default() };
    let ours = ops::conv2d(&x, &weight, None, &config).unwrap();
    close("result", &ours, &theirs, normalised(DType::F32));
    assert!(ours.sum_all().unwrap().backward().unwrap().get(&x).is_some());
}

/// Of batches: the gradient of the weight belongs to other elements.
#[test]
fn convolutions_over_one_dimension() {
    let (x, dy) = (numbers(&[2, 1, 4], 7), numbers(&[2, 1, 4], 8));
    let gradient = |conv: &dyn Fn(&Tensor) -> Result<Tensor>| {
        let weight = Var::from_tensor(&numbers(&[1, 1, 1], 9)).unwrap();
        let gradients = (conv(&weight).unwrap() * &dy).unwrap().sum_all().unwrap().backward().unwrap();
        vector(gradients.get(&weight).unwrap())[0]
    };
    let two_filters = |weight: &Tensor| Tensor::cat(&[weight, weight], 0);
    // The one weight multiplies all elements.
    let expected = vector(&(&x * &dy).unwrap()).iter().sum::<f64>();
    let config = candle_nn::Conv1dConfig::default();
    assert!((gradient(&|w| ops::conv1d(&x, w, None, &config)) - expected).abs() < 1e-14);
    let of_both = |w: &Tensor| x.conv1d(&two_filters(w)?, 0, 1, 1, 1)?.narrow(1, 0, 1);
    assert!((gradient(&of_both) - expected).abs() > 1e-3);
}

/// candle's slope of the ReLU at 0 is 1; PyTorch's and ours is 0.
#[test]
fn gradient_of_relu_at_zero() {
    let at_zero = |f: fn(&Tensor) -> Result<Tensor>| {
        let x = Var::from_tensor(&Tensor::new(0f64, &Device::Cpu).unwrap()).unwrap();
        f(&x).unwrap().backward().unwrap().get(&x).unwrap().to_scalar::<f64>().unwrap()
    };
    assert_eq!((at_zero(Tensor::relu), at_zero(ops::relu)), (1.0, 0.0));
}

/// candle reads a transposed view of three dimensions as if it were another one.
#[test]
fn linear_layers_of_views() {
    let (x, weight) = (numbers(&[2, 3, 8], 5), numbers(&[5, 8], 6));
    let view = x.t().unwrap().contiguous().unwrap().t().unwrap();
    assert_eq!(vector(&view), vector(&x));
    let theirs = candle_nn::Linear::new(weight.clone(), None);
    let expected = theirs.forward(&x).unwrap();
    assert!(distance(&theirs.forward(&view).unwrap(), &expected) > 0.1);
    let ours = warpwright_candle::Linear::from(theirs).forward(&view).unwrap();
    close("result", &ours, &expected, normalised(DType::F64));
}

/// candle differentiates both GELUs with constants of six digits.
#[test]
fn gradients_of_gelu() {
    let at = |f: fn(&Tensor) -> Result<Tensor>, x: f64| {
        let x = Var::from_tensor(&Tensor::new(x, &Device::Cpu).unwrap()).unwrap();
        f(&x).unwrap().backward().unwrap().get(&x).unwrap().to_scalar::<f64>().unwrap()
    };
    // The distribution of the normal distribution at 1, and its density.
    let expected = 0.841_344_746_068_542_9 + 0.241_970_724_519_143_37;
    assert!((at(Tensor::gelu_erf, 1.0) - expected).abs() > 1e-7);
    assert!((at(ops::gelu_erf, 1.0) - expected).abs() < 1e-15);
}
