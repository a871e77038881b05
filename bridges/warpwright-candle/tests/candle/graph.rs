//! Operations with more inputs and results than candle's custom operations have places for.

use std::sync::Arc;

use candle_core::{DType, Tensor, Var};
use warpwright_candle::ops::{AttentionOptions, attention};
use warpwright_candle::rnn::{Cell, RecurrentOptions, RecurrentOutput, Weights, recurrent};

use crate::common::{numbers, vector};

fn variable(shape: &[usize], seed: u64) -> Var {
    Var::from_tensor(&numbers(shape, seed).to_dtype(DType::F64).unwrap()).unwrap()
}

/// An LSTM of two layers and both directions: twenty inputs, three results.
fn net() -> (Var, Vec<Var>, RecurrentOutput) {
    let x = variable(&[2, 3, 4], 1);
    let mut parameters = Vec::new();
    for layer in 0..2 {
        for direction in 0..2 {
            let (input, seed) = (if layer == 0 { 4 } else { 6 }, 10 * layer + 5 * direction);
            parameters.push(variable(&[12, input], seed + 2));
            parameters.push(variable(&[12, 3], seed + 3));
            parameters.push(variable(&[12], seed + 4));
            parameters.push(variable(&[12], seed + 5));
        }
    }
    let weights: Vec<_> = parameters
        .chunks(4)
        .map(|p| Weights { w_ih: &p[0], w_hh: &p[1], w_hr: None, b_ih: Some(&p[2]), b_hh: Some(&p[3]) })
        .collect();
    let options = RecurrentOptions { bidirectional: true, ..RecurrentOptions::default() };
    let out = recurrent(Cell::Lstm, &x, &weights, options).unwrap();
    (x, parameters, out)
}

fn gradients(of: &Tensor, x: &Var, parameters: &[Var]) -> Vec<Vec<f64>> {
    let gradients = of.backward().unwrap();
    std::iter::once(x).chain(parameters).map(|v| vector(gradients.get(v).expect("a gradient"))).collect()
}

/// The gradient of a sum of results is the sum of theirs, whichever of them are in it.
#[test]
fn any_of_the_results() {
    let (x, parameters, out) = net();
    let sums = [out.y, out.h_n, out.c_n.unwrap()].map(|y| y.sum_all().unwrap());
    let apart = sums.each_ref().map(|sum| gradients(sum, &x, &parameters));
    let together = gradients(&((&sums[0] + &sums[1]).unwrap() + &sums[2]).unwrap(), &x, &parameters);
    for (i, all) in together.iter().enumerate() {
        for (j, all) in all.iter().enumerate() {
            let sum: f64 = apart.iter().map(|of| of[i][j]).sum();
            assert!(
                (all - sum).abs() <= 1e-12 * (1.0 + all.abs()),
                "gradient {i}, element {j}: {all} and {sum}"
            );
        }
    }
}

/// A graph is differentiated again, and on several threads at once, with the same gradients.
#[test]
fn again_and_at_once() {
    let (x, parameters, out) = net();
    let sum = Arc::new((out.y.sum_all().unwrap() + out.h_n.sqr().unwrap().sum_all().unwrap()).unwrap());
    let first = gradients(&sum, &x, &parameters);
    assert_eq!(gradients(&sum, &x, &parameters), first);
    std::thread::scope(|scope| {
        let again = [(); 3].map(|()| scope.spawn(|| gradients(&sum, &x, &parameters)));
        for thread in again {
            assert_eq!(thread.join().unwrap(), first);
        }
    });
}

/// Only what candle tracks is differentiated.
#[test]
fn some_of_the_inputs() {
    let [q, k, v] = [1, 2, 3].map(|seed| numbers(&[1, 4, 2, 8], seed));
    let bias = variable(&[1, 2, 4, 4], 4);
    let options = AttentionOptions { bias: Some(&bias), ..AttentionOptions::default() };
    let o = attention(&q, &k, &v, options).unwrap();
    let gradients = o.sqr().unwrap().sum_all().unwrap().backward().unwrap();
    assert!(vector(gradients.get(&bias).unwrap()).iter().any(|g| *g != 0.0));
    assert_eq!(gradients.get_ids().count(), 1);
    let o = attention(&q, &k, &v, AttentionOptions::default()).unwrap();
    assert!(!o.track_op());
}
