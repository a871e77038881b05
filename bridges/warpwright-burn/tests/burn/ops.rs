//! Operations and their gradients.

use burn::tensor::activation as theirs;
use burn::tensor::ops::{AttentionModuleOptions, ConvOptions};
use burn::tensor::{DType, Device, Int, Tensor, module};
use warpwright_burn::loss::{CrossEntropyOptions, Reduction, cross_entropy};
use warpwright_burn::ops::{self, AttentionOptions, GatedActivation, Window};
use warpwright_burn::{Error, Pairing};

use crate::common::{attention, differences, elementwise, flat, normalised, same, same_in};

const EXACT: [DType; 2] = [DType::F64, DType::F32];

type One = fn(Tensor<2>) -> Result<Tensor<2>, Error>;
type Their = fn(Tensor<2>) -> Tensor<2>;

#[test]
fn activations() {
    let cases: [(One, Their); 6] = [
        (ops::silu, theirs::silu),
        (ops::sigmoid, theirs::sigmoid),
        (ops::tanh, theirs::tanh),
        (ops::relu, theirs::relu),
        (ops::gelu_approximate, theirs::gelu_approximate),
        (|x| ops::softplus(x, 2.0), |x| theirs::softplus(x, 2.0)),
    ];
    for (ours, theirs) in cases {
        same(&[&[3, 37]], elementwise, |x| Ok(flat(ours(x.at(0))?)), |x| flat(theirs(x.at(0))));
    }
    // No element is zero: there the slope of burn's is 1.
    let moved = |x: Tensor<2>| x + 1.0 / 512.0;
    same_in(
        &EXACT,
        &[&[3, 37]],
        elementwise,
        |x| Ok(flat(ops::leaky_relu(moved(x.at(0)), 0.1)?)),
        |x| flat(theirs::leaky_relu(moved(x.at(0)), 0.1)),
    );
    let gelu = |x: Tensor<2>| {
        let half = x.clone() * 0.5;
        half * ((x / 2f64.sqrt()).erf() + 1.0)
    };
    same_in(
        &[DType::F32],
        &[&[3, 37]],
        elementwise,
        |x| Ok(flat(ops::gelu::<2>(x.at(0))?)),
        |x| flat(gelu(x.at(0))),
    );
    differences(&[&[2, 5]], |x| Ok(flat(ops::gelu::<2>(x.at(0))?)));
}

#[test]
fn gates() {
    let two: [&[usize]; 2] = [&[3, 37], &[3, 37]];
    let silu = |x: Tensor<2>, up: Tensor<2>| theirs::silu(x) * up;
    let tanh = |x: Tensor<2>, up: Tensor<2>| theirs::gelu_approximate(x) * up;
    same(
        &two,
        elementwise,
        |x| Ok(flat(ops::swiglu::<2>(x.at(0), x.at(1))?)),
        |x| flat(silu(x.at(0), x.at(1))),
    );
    let geglu = |x: &crate::common::Given<'_>| ops::gate::<2>(GatedActivation::GegluTanh, x.at(0), x.at(1));
    same(&two, elementwise, |x| Ok(flat(geglu(x)?)), |x| flat(tanh(x.at(0), x.at(1))));
}

#[test]
fn softmax_along_any_dimension() {
    for dim in 0..3 {
        let shape: [&[usize]; 1] = [&[2, 5, 7]];
        let ours = |x: Tensor<3>| ops::softmax(x * 4.0, dim);
        same_in(
            &EXACT,
            &shape,
            normalised,
            |x| Ok(flat(ours(x.at(0))?)),
            |x| flat(theirs::softmax(x.at::<3>(0) * 4.0, dim)),
        );
        let ours = |x: Tensor<3>| ops::log_softmax(x * 4.0, dim);
        same_in(
            &EXACT,
            &shape,
            normalised,
            |x| Ok(flat(ours(x.at(0))?)),
            |x| flat(theirs::log_softmax(x.at::<3>(0) * 4.0, dim)),
        );
    }
    differences(&[&[2, 5]], |x| Ok(flat(ops::softmax::<2>(x.at(0), 1)?)));
}

#[test]
fn tensors_with_strides_and_offsets() {
    let view = |x: Tensor<3>| x.swap_dims(0, 2).narrow(1, 1, 3);
    let shape: [&[usize]; 1] = [&[6, 5, 4]];
    same_in(
        &EXACT,
        &shape,
        normalised,
        |x| Ok(flat(ops::softmax(view(x.at(0)), 2)?)),
        |x| flat(theirs::softmax(view(x.at(0)), 2)),
    );
    let wide = |x: Tensor<3>| x.narrow(0, 0, 1).expand([3, 5, 4]);
    same(&shape, elementwise, |x| Ok(flat(ops::silu(wide(x.at(0)))?)), |x| flat(theirs::silu(wide(x.at(0)))));
}

/// Over the last dimension, in the type of `x`; burn's layer goes over f32.
pub(crate) fn rms_norm<const D: usize>(x: Tensor<D>, gamma: Tensor<1>, epsilon: f64) -> Tensor<D> {
    let rms = (x.clone().square().mean_dim(D - 1) + epsilon).sqrt();
    x / rms * gamma.unsqueeze()
}

#[test]
fn layer_norm_and_rms_norm() {
    let shapes: [&[usize]; 3] = [&[3, 4, 24], &[24], &[24]];
    let ours = |x: &crate::common::Given<'_>| ops::layer_norm::<3>(x.at(0), x.at(1), Some(x.at(2)), 1e-5);
    same(
        &shapes,
        normalised,
        |x| Ok(flat(ours(x)?)),
        |x| flat(module::layer_norm::<3>(x.at(0), x.at(1), Some(x.at(2)), 1e-5)),
    );
    same(
        &shapes[..2],
        normalised,
        |x| Ok(flat(ops::layer_norm::<3>(x.at(0), x.at(1), None, 1e-5)?)),
        |x| flat(module::layer_norm::<3>(x.at(0), x.at(1), None, 1e-5)),
    );
    same(
        &shapes[..2],
        normalised,
        |x| Ok(flat(ops::rms_norm::<3>(x.at(0), x.at(1), 1e-5)?)),
        |x| flat(rms_norm::<3>(x.at(0), x.at(1), 1e-5)),
    );
    let small: [&[usize]; 3] = [&[2, 6], &[6], &[6]];
    differences(&small, |x| Ok(flat(ops::layer_norm::<2>(x.at(0), x.at(1), Some(x.at(2)), 1e-5)?)));
}

#[test]
fn group_norm() {
    let shapes: [&[usize]; 3] = [&[2, 6, 5, 3], &[6], &[6]];
    let reference = |x: Tensor<4>, gamma: Tensor<1>, beta: Tensor<1>| {
        let rows = x.reshape([2, 3, 30]);
        let centred = rows.clone() - rows.mean_dim(2);
        let deviation = (centred.clone().square().mean_dim(2) + 1e-5).sqrt();
        let of_channel = |x: Tensor<1>| x.reshape([1, 6, 1, 1]);
        (centred / deviation).reshape([2, 6, 5, 3]) * of_channel(gamma) + of_channel(beta)
    };
    let ours =
        |x: &crate::common::Given<'_>| ops::group_norm::<4>(x.at(0), Some(x.at(1)), Some(x.at(2)), 3, 1e-5);
    same(&shapes, normalised, |x| Ok(flat(ours(x)?)), |x| flat(reference(x.at(0), x.at(1), x.at(2))));
    differences(&[&[1, 4, 2]], |x| Ok(flat(ops::group_norm::<3>(x.at(0), None, None, 2, 1e-5)?)));
}

#[test]
fn batch_norm() {
    let shapes: [&[usize]; 3] = [&[4, 6, 5], &[6], &[6]];
    let ours = |x: &crate::common::Given<'_>| ops::batch_norm_train::<3>(x.at(0), x.at(1), x.at(2), 1e-5);
    let burns = |x: &crate::common::Given<'_>| module::batch_norm_train::<3>(x.at(0), x.at(1), x.at(2), 1e-5);
    same(&shapes, normalised, |x| Ok(flat(ours(x)?.output)), |x| flat(burns(x).output));
    // The statistics, beside a result that has a gradient.
    same_in(
        &EXACT,
        &shapes,
        normalised,
        |x| ours(x).map(|all| Tensor::cat(vec![flat(all.output) * 0.1, all.mean * 3.0, all.variance], 0)),
        |x| {
            let all = burns(x);
            Tensor::cat(vec![flat(all.output) * 0.1, all.mean.detach() * 3.0, all.variance.detach()], 0)
        },
    );
    let fixed = |x: Tensor<1>| (x.clone().detach() * 0.25, x.detach().square() + 0.5);
    same_in(
        &EXACT,
        &shapes,
        normalised,
        |x| {
            let (mean, variance) = fixed(x.at(1));
            Ok(flat(ops::batch_norm::<3>(x.at(0), x.at(1), x.at(2), mean, variance, 1e-5)?))
        },
        |x| {
            let (mean, variance) = fixed(x.at(1));
            flat(module::batch_norm::<3>(x.at(0), x.at(1), x.at(2), mean, variance, 1e-5))
        },
    );
}

#[test]
fn attention_of_burn() {
    let shapes: [&[usize]; 4] = [&[2, 4, 6, 8], &[2, 4, 6, 8], &[2, 4, 6, 16], &[2, 4, 6, 6]];
    for (is_causal, scale, softcap) in [(false, None, None), (true, Some(0.7), None), (true, None, Some(2.0))]
    {
        let ours = |x: &crate::common::Given<'_>, bias: bool| {
            let bias = bias.then(|| x.at(3));
            let options = AttentionOptions { scale, causal: is_causal, softcap, bias, ..Default::default() };
            Ok(flat(ops::attention(x.at(0), x.at(1), x.at(2), options)?))
        };
        let theirs = |x: &crate::common::Given<'_>, bias: bool| {
            let options = AttentionModuleOptions { scale, softcap, is_causal };
            let bias = bias.then(|| x.at(3));
            flat(module::attention_fallback(x.at(0), x.at(1), x.at(2), None, bias, options))
        };
        same(&shapes[..3], attention, |x| ours(x, false), |x| theirs(x, false));
        same_in(&EXACT, &shapes, attention, |x| ours(x, true), |x| theirs(x, true));
    }
}

#[test]
fn attention_beyond_burn() {
    // Two heads of queries for each of keys.
    let shapes: [&[usize]; 3] = [&[1, 4, 5, 8], &[1, 2, 5, 8], &[1, 2, 5, 8]];
    let wide = |x: Tensor<4>| x.unsqueeze_dim::<5>(2).expand([1, 2, 2, 5, 8]).reshape([1, 4, 5, 8]);
    let masked = |mask: Option<Tensor<4, burn::tensor::Bool>>, x: &crate::common::Given<'_>| {
        let options = AttentionModuleOptions { scale: None, softcap: None, is_causal: false };
        flat(module::attention_fallback(x.at(0), wide(x.at(1)), wide(x.at(2)), mask, None, options))
    };
    let ours = |options: AttentionOptions, x: &crate::common::Given<'_>| {
        Ok(flat(ops::attention(x.at(0), x.at(1), x.at(2), options)?))
    };
    same_in(&EXACT, &shapes, attention, |x| ours(AttentionOptions::default(), x), |x| masked(None, x));
    let device = Device::flex().autodiff();
    let distance = Tensor::<1, Int>::arange(0..5, &device).reshape([5, 1])
        - Tensor::arange(0..5, &device).reshape([1, 5]);
    let seen = |mask: Tensor<2, burn::tensor::Bool>| Some(mask.reshape([1, 1, 5, 5]).expand([1, 4, 5, 5]));
    let window = Window { left: Some(1), right: Some(0) };
    let outside = distance.clone().lower_elem(0).bool_or(distance.greater_elem(1));
    same_in(
        &EXACT,
        &shapes,
        attention,
        |x| ours(AttentionOptions { window, ..Default::default() }, x),
        |x| masked(seen(outside.clone()), x),
    );
    let beyond = Tensor::<1, Int>::arange(0..5, &device).reshape([1, 5]).greater_elem(2).expand([5, 5]);
    let lengths = Tensor::<1, Int>::from_data([3], &device);
    same_in(
        &EXACT,
        &shapes,
        attention,
        |x| ours(AttentionOptions { key_lengths: Some(lengths.clone()), ..Default::default() }, x),
        |x| masked(seen(beyond.clone()), x),
    );
    let with_sinks: [&[usize]; 4] = [&[1, 2, 3, 4], &[1, 2, 3, 4], &[1, 2, 3, 4], &[2]];
    let sinks = |x: &crate::common::Given<'_>| {
        let options = AttentionOptions { sinks: Some(x.at(3)), ..Default::default() };
        Ok(flat(ops::attention(x.at(0), x.at(1), x.at(2), options)?))
    };
    // A sink is a key whose value is zero.
    let key = |x: &crate::common::Given<'_>| {
        let scores = x.at::<4>(0).matmul(x.at::<4>(1).transpose()) * 0.5;
        let sink = x.at::<1>(3).reshape([1, 2, 1, 1]).expand([1, 2, 3, 1]);
        let weights = theirs::softmax(Tensor::cat(vec![scores, sink], 3), 3);
        flat(weights.narrow(3, 0, 3).matmul(x.at::<4>(2)))
    };
    same_in(&[DType::F32], &with_sinks, attention, sinks, key);
}

#[test]
fn cross_entropy_and_its_options() {
    let device = Device::flex().autodiff();
    let targets = Tensor::<1, Int>::from_data([3, 0, -100, 8], &device);
    let kept = Tensor::<1, Int>::from_data([3, 0, 8], &device);
    let reference = |x: Tensor<2>, smoothing: f64, reduction: Reduction| {
        let rows = Tensor::cat(vec![x.clone().narrow(0, 0, 2), x.narrow(0, 3, 1)], 0);
        let logs = theirs::log_softmax(rows, 1);
        let of_target = logs.clone().gather(1, kept.clone().unsqueeze_dim(1)).squeeze_dim::<1>(1);
        let losses = of_target * (smoothing - 1.0) - logs.mean_dim(1).squeeze_dim::<1>(1) * smoothing;
        match reduction {
            Reduction::Mean => losses.mean(),
            Reduction::Sum => losses.sum(),
            Reduction::None => {
                let zero = losses.clone().narrow(0, 0, 1) * 0.0;
                Tensor::cat(vec![losses.clone().narrow(0, 0, 2), zero, losses.narrow(0, 2, 1)], 0)
            }
        }
    };
    for reduction in [Reduction::Mean, Reduction::Sum, Reduction::None] {
        for label_smoothing in [0.0, 0.3] {
            let options = CrossEntropyOptions { reduction, label_smoothing, ..Default::default() };
            same(
                &[&[4, 9]],
                normalised,
                |x| cross_entropy(x.at(0), targets.clone(), options),
                |x| reference(x.at(0), label_smoothing, reduction),
            );
        }
    }
    let all = Tensor::<1, Int>::from_data([3, 0, 1, 8], &device);
    differences(&[&[4, 9]], |x| cross_entropy(x.at(0), all.clone(), CrossEntropyOptions::default()));
    let layer = burn::nn::loss::CrossEntropyLossConfig::new().init(&device);
    same_in(
        &EXACT,
        &[&[4, 9]],
        normalised,
        |x| cross_entropy(x.at(0), all.clone(), CrossEntropyOptions::default()),
        |x| layer.forward(x.at(0), all.clone()),
    );
}

#[test]
fn linear() {
    let shapes: [&[usize]; 3] = [&[2, 3, 8], &[8, 5], &[5]];
    let ours = |x: &crate::common::Given<'_>| ops::linear::<3>(x.at(0), x.at(1), Some(x.at(2)));
    same(
        &shapes,
        normalised,
        |x| Ok(flat(ours(x)?)),
        |x| flat(module::linear::<3>(x.at(0), x.at(1), Some(x.at(2)))),
    );
    same_in(
        &EXACT,
        &shapes[..2],
        normalised,
        |x| Ok(flat(ops::linear::<3>(x.at(0), x.at(1), None)?)),
        |x| flat(module::linear::<3>(x.at(0), x.at(1), None)),
    );
}

/// Against products with the numbers that the codes stand for.
#[test]
fn linear_of_4_bits() {
    use warpwright_burn::ops::{Scheme, Weight4bit};
    let weight = crate::common::tensor([64, 10], 5, DType::F32, &Device::flex());
    for scheme in [Scheme::Nf4, Scheme::Fp4, Scheme::Int4Symmetric, Scheme::Int4Asymmetric] {
        let codes = Weight4bit::quantize(weight.clone(), scheme, 32).unwrap();
        let numbers = codes.dequantize(&Device::flex()).unwrap();
        let largest = (numbers.clone() - weight.clone()).abs().max().into_scalar::<f32>();
        assert!(largest > 0.0 && largest < 0.2, "{largest}");
        let numbers =
            |like: &Tensor<3>| Tensor::<2>::from_data(numbers.to_data(), (&like.device(), like.dtype()));
        same_in(
            &[DType::F32],
            &[&[2, 3, 64], &[10]],
            normalised,
            |x| Ok(flat(ops::linear_4bit::<3>(x.at(0), &codes, Some(x.at(1)))?)),
            |x| flat(module::linear::<3>(x.at(0), numbers(&x.at(0)), Some(x.at(1)))),
        );
    }
    let error = Weight4bit::quantize(weight, Scheme::Int4Symmetric, 48).unwrap_err();
    assert!(error.to_string().contains("group_size is 48"), "{error}");
}

#[test]
fn convolutions() {
    let options = ConvOptions::new([2], [1], [1], 2);
    let shapes: [&[usize]; 3] = [&[2, 4, 9], &[6, 2, 3], &[6]];
    let ours = |x: &crate::common::Given<'_>| ops::conv1d(x.at(0), x.at(1), Some(x.at(2)), options.clone());
    same_in(
        &EXACT,
        &shapes,
        normalised,
        |x| Ok(flat(ours(x)?)),
        |x| flat(module::conv1d(x.at(0), x.at(1), Some(x.at(2)), options.clone())),
    );
    let options = ConvOptions::new([1, 2], [1, 0], [1, 2], 1);
    let shapes: [&[usize]; 2] = [&[2, 3, 5, 8], &[4, 3, 3, 2]];
    let ours = |x: &crate::common::Given<'_>| ops::conv2d(x.at(0), x.at(1), None, options.clone());
    same_in(
        &EXACT,
        &shapes,
        normalised,
        |x| Ok(flat(ours(x)?)),
        |x| flat(module::conv2d(x.at(0), x.at(1), None, options.clone())),
    );
}

#[test]
fn rotary() {
    let shapes: [&[usize]; 1] = [&[2, 3, 2, 8]];
    let angles = |like: &Tensor<4>| {
        let numbers: Vec<f64> = (0..12).map(|i| f64::from(i / 4) * 0.7f64.powi(i % 4)).collect();
        let data = burn::tensor::TensorData::new(numbers, [3, 4]);
        Tensor::<2>::from_data(data, (&like.device(), like.dtype()))
    };
    let ours = |x: Tensor<4>, pairing| {
        let angles = angles(&x);
        ops::rotary(x, angles.clone().cos(), angles.sin(), pairing)
    };
    let theirs = |x: Tensor<4>, pairing| {
        let angles = angles(&x).reshape([1, 3, 1, 4]);
        let (cos, sin) = (angles.clone().cos(), angles.sin());
        let (a, b) = match pairing {
            Pairing::Half => (x.clone().narrow(3, 0, 4), x.narrow(3, 4, 4)),
            Pairing::Interleaved => {
                let pairs = x.reshape([2, 3, 2, 4, 2]);
                let part = |i| pairs.clone().narrow(4, i, 1).reshape([2, 3, 2, 4]);
                (part(0), part(1))
            }
        };
        let (first, second) = (a.clone() * cos.clone() - b.clone() * sin.clone(), b * cos + a * sin);
        match pairing {
            Pairing::Half => Tensor::cat(vec![first, second], 3),
            Pairing::Interleaved => Tensor::stack::<5>(vec![first, second], 4).reshape([2, 3, 2, 8]),
        }
    };
    for pairing in [Pairing::Half, Pairing::Interleaved] {
        same_in(
            &EXACT,
            &shapes,
            elementwise,
            |x| Ok(flat(ours(x.at(0), pairing)?)),
            |x| flat(theirs(x.at(0), pairing)),
        );
    }
}
