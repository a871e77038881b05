//! Recurrent layers over sequences, against candle's, which take the steps one by one.

use candle_core::{DType, Tensor, Var};
use candle_nn::{VarBuilder, VarMap};
use warpwright_candle::rnn::{
    Cell, GRUConfig, LSTMConfig, LSTMState, RNN, RecurrentOptions, Weights, recurrent,
};
use warpwright_candle::{Error, GRU, LSTM};

use crate::common::{close, device, normalised, numbers, same, vector};

/// Holds the states of all steps of both layers to each other, and the gradients of what `read` takes of them.
fn same_layers<A: RNN, B: RNN<State = A::State>>(
    ours: impl Fn(VarBuilder<'_>) -> A,
    theirs: impl Fn(VarBuilder<'_>) -> B,
    read: impl Fn(&[A::State]) -> Tensor,
) {
    let map = VarMap::new();
    let builder = || VarBuilder::from_varmap(&map, DType::F64, &device());
    let ours = ours(builder());
    let mut names: Vec<String> = map.data().lock().unwrap().keys().cloned().collect();
    names.sort();
    let theirs = theirs(builder());
    for (i, name) in names.iter().enumerate() {
        let variable = map.data().lock().unwrap()[name].clone();
        variable.set(&numbers(variable.dims(), 60 + i as u64)).unwrap();
    }
    let x = Var::from_tensor(&numbers(&[3, 5, 4], 59)).unwrap();
    let differentiate = |y: Tensor| {
        let gradients = y.sqr().unwrap().sum_all().unwrap().backward().unwrap();
        let of = |v: &Var| gradients.get(v).expect("a gradient").clone();
        let variables = map.data().lock().unwrap();
        (y, names.iter().map(|name| of(&variables[name])).chain([of(&x)]).collect::<Vec<_>>())
    };
    let (y, got) = differentiate(read(&ours.seq(&x).unwrap()));
    let (expected, wanted) = differentiate(read(&theirs.seq(&x).unwrap()));
    close("states", &y, &expected, normalised(DType::F64));
    for (name, (got, expected)) in names.iter().zip(got.iter().zip(&wanted)) {
        close(&format!("gradient of {name}"), got, expected, normalised(DType::F64));
    }
    close("gradient of x", &got[names.len()], &wanted[names.len()], normalised(DType::F64));
    // Step by step, as a decoder goes.
    let mut state = ours.zero_state(3).unwrap();
    for step in 0..2 {
        state = ours.step(&x.narrow(1, step, 1).unwrap().squeeze(1).unwrap(), &state).unwrap();
    }
    let states = ours.seq(&x.narrow(1, 0, 2).unwrap()).unwrap();
    close("two steps", &read(&[state]), &read(&states[1..]), normalised(DType::F64));
}

#[test]
fn lstm_layers() {
    for config in [LSTMConfig::default(), LSTMConfig::default_no_bias()] {
        same_layers(
            |vb| LSTM::new(4, 6, config, vb).unwrap(),
            |vb| candle_nn::LSTM::new(4, 6, config, vb).unwrap(),
            |states| {
                let last = states.last().unwrap();
                let all: Vec<_> = states.iter().map(LSTMState::h).chain([last.c()]).collect();
                Tensor::cat(&all, 0).unwrap()
            },
        );
    }
    // One of the biases alone.
    let config = LSTMConfig { b_ih_init: None, layer_idx: 1, ..LSTMConfig::default() };
    same_layers(
        |vb| LSTM::new(4, 6, config, vb).unwrap(),
        |vb| candle_nn::LSTM::new(4, 6, config, vb).unwrap(),
        |states| states.last().unwrap().h().clone(),
    );
}

#[test]
fn gru_layers() {
    for config in [GRUConfig::default(), GRUConfig::default_no_bias()] {
        same_layers(
            |vb| GRU::new(4, 6, config, vb).unwrap(),
            |vb| candle_nn::GRU::new(4, 6, config, vb).unwrap(),
            |states| Tensor::cat(&states.iter().map(|s| s.h().clone()).collect::<Vec<_>>(), 0).unwrap(),
        );
    }
}

/// The cells of every step are there; their gradient is there for the last step alone, and an error otherwise.
#[test]
fn cells_of_all_steps() {
    let map = VarMap::new();
    let builder = || VarBuilder::from_varmap(&map, DType::F64, &device());
    let ours = LSTM::new(4, 6, LSTMConfig::default(), builder()).unwrap();
    let theirs = candle_nn::LSTM::new(4, 6, LSTMConfig::default(), builder()).unwrap();
    let x = numbers(&[2, 5, 4], 70);
    let (got, expected) = (ours.seq(&x).unwrap(), theirs.seq(&x).unwrap());
    assert_eq!(got.len(), 5);
    for (got, expected) in got.iter().zip(&expected) {
        close("c", got.c(), expected.c(), normalised(DType::F64));
    }
    close(
        "h",
        &ours.states_to_tensor(&got).unwrap(),
        &theirs.states_to_tensor(&expected).unwrap(),
        normalised(DType::F64),
    );
    let error = got[2].c().sum_all().unwrap().backward().unwrap_err();
    assert!(matches!(Error::of(&error), Some(Error::NoGradient { op: "lstm", .. })), "{error}");
    assert!(got[4].c().sum_all().unwrap().backward().is_ok());
    assert!(ours.seq(&x.narrow(1, 0, 0).unwrap()).unwrap().is_empty());
}

#[test]
fn sequences_in_every_type() {
    let inputs = [numbers(&[2, 4, 8], 71), numbers(&[24, 8], 72), numbers(&[24, 8], 73), numbers(&[24], 74)];
    let ours = |x: &[Tensor]| {
        let weights = [Weights { b_ih: Some(&x[3]), ..Weights::new(&x[1], &x[2]) }];
        Ok(recurrent(Cell::Gru, &x[0], &weights, RecurrentOptions::default())?.y)
    };
    let theirs = |x: &[Tensor]| {
        let mut h = Tensor::zeros((2, 8), DType::F64, &device())?;
        let mut all = Vec::new();
        for step in 0..4 {
            // candle's products take no rows with gaps on a GPU.
            let of_x = x[0].narrow(1, step, 1)?.squeeze(1)?.contiguous()?.matmul(&x[1].t()?)?;
            let gates = of_x.broadcast_add(&x[3])?.chunk(3, 1)?;
            let of_h = h.matmul(&x[2].t()?)?.chunk(3, 1)?;
            let r = candle_nn::ops::sigmoid(&(&gates[0] + &of_h[0])?)?;
            let z = candle_nn::ops::sigmoid(&(&gates[1] + &of_h[1])?)?;
            let n = (&gates[2] + (r * &of_h[2])?)?.tanh()?;
            h = ((&z * &h)? + ((z.affine(-1.0, 1.0)?) * n)?)?;
            all.push(h.clone());
        }
        Tensor::stack(&all, 1)
    };
    // The hidden state is rounded at each step.
    let budget = |dtype| warpwright_testkit::budget::attention(crate::common::ours(dtype), 4.0);
    same(&inputs, budget, ours, theirs);
}

/// Steps beyond the length of a sequence count for nothing.
#[test]
fn sequences_of_different_lengths() {
    let x = numbers(&[2, 5, 4], 75);
    let (w_ih, w_hh) = (numbers(&[24, 4], 76), numbers(&[24, 6], 77));
    let lengths = Tensor::new(&[5i64, 2], &device()).unwrap();
    let net = [Weights::new(&w_ih, &w_hh)];
    let all = recurrent(Cell::Lstm, &x, &net, RecurrentOptions::default()).unwrap();
    let cut =
        recurrent(Cell::Lstm, &x, &net, RecurrentOptions { lengths: Some(&lengths), ..Default::default() })
            .unwrap();
    let of = |y: &Tensor, sequence: usize, steps: usize| {
        vector(&y.narrow(0, sequence, 1).unwrap().narrow(1, 0, steps).unwrap())
    };
    assert_eq!(of(&cut.y, 0, 5), of(&all.y, 0, 5));
    assert_eq!(of(&cut.y, 1, 2), of(&all.y, 1, 2));
    assert!(vector(&cut.y.narrow(0, 1, 1).unwrap().narrow(1, 2, 3).unwrap()).iter().all(|y| *y == 0.0));
    assert_eq!(vector(&cut.h_n.narrow(1, 1, 1).unwrap()), of(&all.y.narrow(1, 1, 1).unwrap(), 1, 1));
}
