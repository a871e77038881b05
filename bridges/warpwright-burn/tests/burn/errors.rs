//! Errors name the operation, the argument, what was expected and what came, also as data.

use burn::module::Param;
use burn::nn::gru::GruConfig;
use burn::nn::{BatchNormConfig, LstmConfig, activation::ActivationConfig};
use burn::tensor::ops::ConvOptions;
use burn::tensor::{DType, Device, Int, Tensor};
use warpwright_burn::loss::{CrossEntropyOptions, cross_entropy};
use warpwright_burn::ops::{self, AttentionOptions};
use warpwright_burn::rnn::{Cell, RecurrentOptions, Weights, recurrent};
use warpwright_burn::{BatchNorm, Error, Gru, Lstm, Pairing};

use crate::common::tensor;

fn f32s<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    tensor(shape, 3, DType::F32, &Device::flex())
}

#[track_caller]
fn said<T>(result: Result<T, Error>, message: &str) -> Error {
    let Err(error) = result else { panic!("no error, should be: {message}") };
    assert_eq!(error.to_string(), message);
    error
}

#[test]
fn shapes() {
    let error = said(ops::linear(f32s([2, 4]), f32s([3, 5]), None), "linear: x is [2, 4], must be [.., 3]");
    let Error::Shape { op, argument, got, .. } = error else { panic!("{error}") };
    assert_eq!((op, argument, &got[..]), ("linear", "x", &[2, 4][..]));
    said(ops::linear(f32s([2, 3]), f32s([3, 5]), Some(f32s([4]))), "linear: bias is [4], must be [5]");
    said(
        ops::group_norm(f32s([4]), None, None, 1, 1e-5),
        "group_norm: x is [4], must be [batch, channels, ..]",
    );
    let target = Tensor::<1, Int>::from_data([1], &Device::flex());
    said(
        cross_entropy(f32s([2, 4]), target, CrossEntropyOptions::default()),
        "cross_entropy: targets is [1], must be [2]",
    );
    let weights = || Weights { w_ih: f32s([8, 3]), w_hh: f32s([8, 2]), b_ih: None, b_hh: Some(f32s([8])) };
    said(
        recurrent(Cell::Lstm, f32s([1, 5, 3]), weights(), RecurrentOptions::default()),
        "lstm: b_hh is [8], must be given with b_ih alone",
    );
    let options = RecurrentOptions { h0: Some(f32s([2, 2])), ..Default::default() };
    said(recurrent(Cell::Lstm, f32s([1, 5, 3]), weights(), options), "lstm: h0 is [2, 2], must be [1, 2]");
}

/// Errors of kernels and plans arrive as they are.
#[test]
fn operations() {
    for failed in [
        ops::rms_norm(f32s([2, 4]), f32s([3]), 1e-5).unwrap_err(),
        ops::layer_norm(f32s([2, 4]), f32s([4]), Some(f32s([3])), 1e-5).unwrap_err(),
        ops::swiglu(f32s([2, 4]), f32s([2, 3])).unwrap_err(),
        recurrent(
            Cell::Lstm,
            f32s([1, 5, 4]),
            Weights { w_ih: f32s([8, 3]), w_hh: f32s([8, 2]), b_ih: None, b_hh: None },
            RecurrentOptions::default(),
        )
        .unwrap_err(),
    ] {
        assert!(matches!(failed, Error::Operation(_)), "{failed}");
    }
    let error = ops::layer_norm(f32s([1, 4]), f32s([4]), None, -1.0).unwrap_err();
    assert!(error.to_string().starts_with("layer_norm: eps is"), "{error}");
    let error = ops::group_norm(f32s([1, 4, 2]), None, None, 3, 1e-5).unwrap_err();
    assert!(error.to_string().starts_with("group_norm: groups is 3"), "{error}");
    let error = ops::softmax(f32s([1, 4]), 2).unwrap_err();
    assert!(error.to_string().starts_with("softmax: dim is 2"), "{error}");
    let q = f32s([1, 2, 3, 8]);
    let options = AttentionOptions { softcap: Some(-1.0), ..Default::default() };
    let error = ops::attention(q.clone(), q.clone(), q, options).unwrap_err();
    assert!(error.to_string().starts_with("attention: softcap is"), "{error}");
    // Refused inside of burn's graph, too.
    let x: Tensor<2> = tensor([2, 4], 3, DType::F32, &Device::flex().autodiff()).require_grad();
    assert!(matches!(ops::rms_norm(x, f32s([3]), 1e-5), Err(Error::Operation(_))));
}

#[test]
fn element_types() {
    let half = f32s([4]).cast(DType::F16);
    let error = ops::rms_norm(f32s([2, 4]), half, 1e-5).unwrap_err();
    assert!(matches!(error, Error::Operation(_)), "{error}");
    assert!(error.to_string().contains("weight"), "{error}");
    let targets = Tensor::<1, Int>::from_data([1, 2], &Device::flex()).cast(burn::tensor::IntDType::I8);
    said(
        cross_entropy(f32s([2, 4]), targets, CrossEntropyOptions::default()),
        "cross_entropy: targets is I8, must be I32 or I64",
    );
}

#[test]
fn configurations() {
    let device = Device::flex();
    let lstm = |config: LstmConfig| Lstm::try_from(config.init(&device)).map(|_| ());
    let plain = || LstmConfig::new(2, 3, true);
    said(lstm(plain().with_clip(Some(1.0))), "lstm: clip is another value, must be none");
    said(lstm(plain().with_input_forget(true)), "lstm: input_forget is true, must be false");
    said(
        lstm(plain().with_cell_activation(ActivationConfig::Relu)),
        "lstm: cell_activation is another value, must be tanh",
    );
    let gru = |config: GruConfig| Gru::try_from(config.init(&device)).map(|_| ());
    said(
        gru(GruConfig::new(2, 3, true).with_reset_after(false)),
        "gru: reset_after is another value, must be true",
    );
    said(
        ops::conv1d(
            f32s([1, 1, 4]),
            f32s([1, 1, 2]),
            None,
            ConvOptions { padding: [(0, 1)], ..ConvOptions::new([1], [0], [1], 1) },
        ),
        "conv: padding is [(0, 1)], must be the same at both ends",
    );
}

#[test]
fn gradients_that_do_not_exist() {
    let device = Device::flex().autodiff();
    let x: Tensor<4> = tensor([1, 3, 2, 8], 3, DType::F32, &device).require_grad();
    let cos: Tensor<2> = tensor([3, 4], 4, DType::F32, &device).require_grad();
    let error = ops::rotary(x.clone(), cos.clone(), cos.clone().inner(), Pairing::Half).unwrap_err();
    assert_eq!(error.to_string(), "rotary_embedding: cos has no gradient; take `inner()` of it");
    let y = ops::rotary(x.clone(), cos.clone().inner(), cos.inner(), Pairing::Half).unwrap();
    assert!(x.grad(&y.sum().backward()).is_some());
}

#[test]
fn strategies_of_checkpointing() {
    let x: Tensor<2> = tensor([2, 4], 3, DType::F32, &Device::flex().autodiff());
    let gamma: Tensor<1> = tensor([4], 3, DType::F32, &Device::flex().autodiff().gradient_checkpointing());
    let error = ops::rms_norm(x, gamma, 1e-5).unwrap_err();
    assert!(matches!(error, Error::Checkpointing { op: "rms_norm", argument: "gamma", .. }), "{error}");
}

/// Fields of layers are public: what does not fit together is an error, too.
#[test]
fn layers_that_do_not_fit_together() {
    let device = Device::flex();
    let mut lstm = Lstm::try_from(LstmConfig::new(2, 3, true).init(&device)).unwrap();
    lstm.cell_gate.input_transform.weight = Param::from_tensor(f32s([4, 3]));
    said(
        lstm.forward(f32s([1, 5, 2]), None).map(|_| ()),
        "lstm: the weight of the input is [3, 4], must be [3, 2] in every gate",
    );
    lstm.cell_gate.input_transform.weight = Param::from_tensor(f32s([2, 3]));
    lstm.cell_gate.input_transform.bias = None;
    said(
        lstm.forward(f32s([1, 5, 2]), None).map(|_| ()),
        "lstm: the bias of the input is [3], must be in every gate, or in none",
    );
    let mut norm = BatchNorm::from(BatchNormConfig::new(3).init(&device));
    norm.gamma = Param::from_tensor(f32s([4]));
    said(norm.forward(f32s([2, 4])), "batch_norm: running_mean is [3], must be [4]");
}

/// No elements, no dimension to spare: results without elements, or errors.
#[test]
fn nothing() {
    let empty = || f32s([0, 4]);
    let all = [
        ops::silu(empty()),
        ops::softmax(empty(), 0),
        ops::softmax(f32s([4, 0]), 1),
        ops::rms_norm(empty(), f32s([4]), 1e-5),
        ops::rms_norm(f32s([4, 0]), f32s([0]), 1e-5),
        ops::linear(empty(), f32s([4, 3]), Some(f32s([3]))),
        ops::linear(f32s([4, 0]), f32s([0, 3]), None),
        ops::group_norm(empty(), None, None, 2, 1e-5),
        ops::batch_norm_train(empty(), f32s([4]), f32s([4]), 1e-5).map(|all| all.output),
    ];
    for result in all.into_iter().flatten() {
        assert!(result.dims().contains(&0) || result.dims() == [4, 3], "{:?}", result.dims());
    }
    let targets = Tensor::<1, Int>::zeros([0], &Device::flex());
    let loss = cross_entropy(empty(), targets, CrossEntropyOptions::default());
    assert!(loss.is_err() || loss.unwrap().into_scalar::<f32>().is_nan());
    let none = f32s([0, 2, 3, 8]);
    let attended = ops::attention(none.clone(), none.clone(), none, AttentionOptions::default());
    assert!(attended.is_err() || attended.unwrap().dims() == [0, 2, 3, 8]);
    let options = ConvOptions::new([1], [0], [1], 1);
    let convolved = ops::conv1d(f32s([0, 1, 4]), f32s([2, 1, 2]), None, options);
    assert!(convolved.is_err() || convolved.unwrap().dims() == [0, 2, 3]);
    for shape in [[1, 0, 3], [0, 5, 3]] {
        let weights = Weights { w_ih: f32s([8, 3]), w_hh: f32s([8, 2]), b_ih: None, b_hh: None };
        let out = recurrent(Cell::Lstm, f32s(shape), weights, RecurrentOptions::default());
        assert!(matches!(out, Err(Error::Shape { argument: "x", .. })));
    }
}

/// Tensors of another backend, alone and beside one that there are kernels for.
#[test]
fn other_backends() {
    let capture = Device::capture();
    let scope = capture.capture_scope(|scope| {
        let x = Tensor::<1>::from_data([1f32, 2.0], &capture);
        let error = ops::silu(x.clone()).unwrap_err();
        assert!(matches!(error, Error::Device { op: "silu", argument: "x", .. }), "{error}");
        let error = ops::swiglu(f32s([2]), x).unwrap_err();
        assert!(matches!(error, Error::Device { op: "swiglu", argument: "up", .. }), "{error}");
        scope.complete([], [])
    });
    scope.unwrap();
}

/// The kernels of this process have run in the emulator by then.
#[test]
fn a_device_after_the_first_call() {
    ops::silu(f32s([4])).unwrap();
    let error = warpwright_burn::set_device(warpwright_burn::Device::emulator()).unwrap_err();
    assert!(matches!(error, Error::DeviceInUse { .. }), "{error}");
}
