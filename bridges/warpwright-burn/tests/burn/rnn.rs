//! Recurrent layers against burn's loops over time steps.

use burn::module::Module;
use burn::nn::gru::GruConfig;
use burn::nn::{LstmConfig, LstmState};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use warpwright_burn::ops::{AttentionOptions, attention};
use warpwright_burn::rnn::{Cell, RecurrentOptions, Weights, recurrent};
use warpwright_burn::{Gru, Lstm};

use crate::common::{close, differences, flat, normalised, tensor, vector};

/// The results and the gradients of the input, the states and all weights.
fn lstm(
    forward: impl Fn(Tensor<3>, Option<LstmState<2>>) -> (Tensor<3>, LstmState<2>),
    shape: [usize; 3],
    first: bool,
    weights: &[Tensor<2>],
) -> Vec<Vec<f64>> {
    let device = Device::flex().autodiff();
    let leaf = |seed| tensor::<2>([2, 5], seed, DType::F32, &device).require_grad();
    let x: Tensor<3> = tensor(shape, 1, DType::F32, &device).require_grad();
    let (c0, h0) = (leaf(2), leaf(3));
    let (y, state) = forward(x.clone(), first.then(|| LstmState::new(c0.clone(), h0.clone())));
    let (c_n, h_n) = state.unpack();
    let mut all = vec![vector(&y), vector(&c_n), vector(&h_n)];
    let weigh = |seed| tensor::<2>([2, 5], seed, DType::F32, &device);
    let loss = (y.clone() * tensor(y.dims(), 7, DType::F32, &device)).sum()
        + (c_n * weigh(8)).sum()
        + (h_n * weigh(9)).sum();
    let gradients = loss.backward();
    all.push(vector(&x.grad(&gradients).unwrap()));
    if first {
        all.extend([c0, h0].map(|state| vector(&state.grad(&gradients).unwrap())));
    }
    all.extend(weights.iter().map(|weight| vector(&weight.grad(&gradients).expect("a gradient"))));
    all
}

#[track_caller]
fn near(got: &[Vec<f64>], expected: &[Vec<f64>]) {
    assert_eq!(got.len(), expected.len());
    for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
        close(&format!("result and gradients, {index}"), got, expected, normalised(DType::F32));
    }
}

#[test]
fn lstm_of_burn() {
    let device = Device::flex().autodiff();
    for (bias, batch_first, reverse, first) in
        [(true, true, false, true), (false, true, true, false), (true, false, true, true)]
    {
        let config = LstmConfig::new(4, 5, bias).with_batch_first(batch_first).with_reverse(reverse);
        let theirs = config.init(&device);
        let ours = Lstm::try_from(config.init(&device)).unwrap().load_record(theirs.clone().into_record());
        let shape = if batch_first { [2, 7, 4] } else { [7, 2, 4] };
        let gates = [&ours.input_gate, &ours.forget_gate, &ours.cell_gate, &ours.output_gate];
        let weights =
            gates.map(|gate| [gate.input_transform.weight.val(), gate.hidden_transform.weight.val()]);
        let got = lstm(|x, state| ours.forward(x, state).unwrap(), shape, first, weights.as_flattened());
        let forget = theirs.forget_gate.as_ref().unwrap();
        let gates = [&theirs.input_gate, forget, &theirs.cell_gate, &theirs.output_gate];
        let weights =
            gates.map(|gate| [gate.input_transform.weight.val(), gate.hidden_transform.weight.val()]);
        let expected = lstm(|x, state| theirs.forward(x, state), shape, first, weights.as_flattened());
        near(&got, &expected);
    }
}

#[test]
fn gru_of_burn() {
    let device = Device::flex().autodiff();
    for bias in [true, false] {
        let config = GruConfig::new(4, 5, bias);
        let theirs = config.init(&device);
        let ours = Gru::try_from(config.init(&device)).unwrap().load_record(theirs.clone().into_record());
        let run = |forward: &dyn Fn(Tensor<3>, Option<Tensor<2>>) -> Tensor<3>, weights: [Tensor<2>; 3]| {
            let x: Tensor<3> = tensor([2, 7, 4], 1, DType::F32, &device).require_grad();
            let h0: Tensor<2> = tensor([2, 5], 2, DType::F32, &device).require_grad();
            let y = forward(x.clone(), Some(h0.clone()));
            let gradients = (y.clone() * tensor(y.dims(), 7, DType::F32, &device)).sum().backward();
            let mut all = vec![vector(&y), vector(&x.grad(&gradients).unwrap())];
            all.push(vector(&h0.grad(&gradients).unwrap()));
            all.extend(weights.map(|weight| vector(&weight.grad(&gradients).unwrap())));
            all
        };
        let weights = [&ours.reset_gate, &ours.update_gate, &ours.new_gate]
            .map(|gate| gate.hidden_transform.weight.val());
        let got = run(&|x, h| ours.forward(x, h).unwrap(), weights);
        let weights = [&theirs.reset_gate, &theirs.update_gate, &theirs.new_gate]
            .map(|gate| gate.hidden_transform.weight.val());
        let expected = run(&|x, h| theirs.forward(x, h), weights);
        near(&got, &expected);
    }
}

#[test]
fn gradients_by_differences() {
    let shapes: [&[usize]; 7] = [&[1, 3, 2], &[8, 2], &[8, 2], &[8], &[8], &[1, 2], &[1, 2]];
    for lengths in [None, Some([2])] {
        differences(&shapes, |x| {
            let weights = Weights { w_ih: x.at(1), w_hh: x.at(2), b_ih: Some(x.at(3)), b_hh: Some(x.at(4)) };
            let lengths = lengths.map(|lengths| Tensor::<1, Int>::from_data(lengths, &Device::flex()));
            let options = RecurrentOptions { h0: Some(x.at(5)), c0: Some(x.at(6)), lengths };
            let out = recurrent(Cell::Lstm, x.at(0), weights, options)?;
            Ok(Tensor::cat(vec![flat(out.y), flat(out.h_n), flat(out.c_n.unwrap())], 0))
        });
    }
}

/// A sequence that ends before the others is as one alone.
#[test]
fn lengths() {
    let device = Device::flex();
    let x: Tensor<3> = tensor([2, 4, 3], 1, DType::F32, &device);
    let weights = || Weights {
        w_ih: tensor([6, 3], 2, DType::F32, &device),
        w_hh: tensor([6, 2], 3, DType::F32, &device),
        b_ih: None,
        b_hh: None,
    };
    let lengths = Some(Tensor::<1, Int>::from_data([4, 2], &device));
    let both = recurrent(Cell::Gru, x.clone(), weights(), RecurrentOptions { lengths, ..Default::default() })
        .unwrap();
    let short = x.clone().narrow(0, 1, 1).narrow(1, 0, 2);
    let alone = recurrent(Cell::Gru, short, weights(), RecurrentOptions::default()).unwrap();
    assert_eq!(vector(&both.h_n.narrow(0, 1, 1)), vector(&alone.h_n));
    let y = both.y.narrow(0, 1, 1);
    assert_eq!(vector(&y.clone().narrow(1, 0, 2)), vector(&alone.y));
    assert_eq!(vector(&y.narrow(1, 2, 2)), [0.0; 4]);
    // More than there are count as all of them, in 64 bits, too.
    let all = recurrent(Cell::Gru, x.clone(), weights(), RecurrentOptions::default()).unwrap();
    let long = Tensor::<1, Int>::from_data(TensorData::from([(1i64 << 32) + 1, 9]), (&device, DType::I64));
    let options = RecurrentOptions { lengths: Some(long.clone()), ..Default::default() };
    assert_eq!(vector(&recurrent(Cell::Gru, x.clone(), weights(), options).unwrap().y), vector(&all.y));
    let q = x.reshape([2, 1, 4, 3]);
    let attend = |key_lengths| {
        let options = AttentionOptions { key_lengths, ..Default::default() };
        vector(&attention(q.clone(), q.clone(), q.clone(), options).unwrap())
    };
    assert_eq!(attend(Some(long)), attend(None));
}
