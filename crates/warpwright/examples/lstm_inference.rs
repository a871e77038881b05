//! LSTM inference: a batch of sequences of different lengths through one layer, held against the formulas in plain Rust.

use warpwright::recurrent::{RecurrentInput, RecurrentOptions, Weights, check_lengths};
use warpwright::{Device, Error, Tensor, lstm};

const STEPS: usize = 5;
const BATCH: usize = 3;
const INPUT: usize = 4;
const HIDDEN: usize = 8;

/// Numbers between -0.5 and 0.5 that look random.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / 16_777_216.0 - 0.5
    };
    (0..count).map(|_| next()).collect()
}

/// The last hidden state of sequence `b`, step by step: gates in the order i, f, g, o.
fn reference(x: &[f32], w_ih: &[f32], w_hh: &[f32], bias: &[f32], b: usize, length: usize) -> Vec<f32> {
    let sigmoid = |x: f32| 1.0 / (1.0 + (-x).exp());
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let (mut h, mut c) = (vec![0.0f32; HIDDEN], vec![0.0f32; HIDDEN]);
    for step in 0..length {
        let x = &x[(step * BATCH + b) * INPUT..][..INPUT];
        let sum = |row: usize| {
            dot(&w_ih[row * INPUT..][..INPUT], x) + dot(&w_hh[row * HIDDEN..][..HIDDEN], &h) + bias[row]
        };
        let gates: Vec<f32> = (0..4 * HIDDEN).map(sum).collect();
        for unit in 0..HIDDEN {
            let gate = |n: usize| gates[n * HIDDEN + unit];
            c[unit] = sigmoid(gate(1)) * c[unit] + sigmoid(gate(0)) * gate(2).tanh();
            h[unit] = sigmoid(gate(3)) * c[unit].tanh();
        }
    }
    h
}

pub(crate) fn main() -> Result<(), Error> {
    let device = Device::best();
    let stream = device.stream()?;
    let x = numbers(STEPS * BATCH * INPUT, 1);
    let (w_ih, w_hh) = (numbers(4 * HIDDEN * INPUT, 2), numbers(4 * HIDDEN * HIDDEN, 3));
    let bias = numbers(4 * HIDDEN, 4);
    let lengths = [5, 2, 4];
    check_lengths("lstm", &lengths, STEPS)?;

    let on_device = |data: &[f32], shape: &[usize]| Tensor::from_slice_on(&stream, data, shape);
    let of_x = on_device(&x, &[STEPS, BATCH, INPUT])?;
    let of_w_ih = on_device(&w_ih, &[4 * HIDDEN, INPUT])?;
    let of_w_hh = on_device(&w_hh, &[4 * HIDDEN, HIDDEN])?;
    let of_bias = on_device(&bias, &[4 * HIDDEN])?;
    let of_lengths = Tensor::from_slice_on(&stream, &lengths, &[BATCH])?;

    let weights = [Weights { b_ih: Some(&of_bias), ..Weights::new(&of_w_ih, &of_w_hh) }];
    let lengths_on_device = Some(of_lengths.as_ref());
    let options =
        RecurrentOptions { lengths: lengths_on_device, inference: true, ..RecurrentOptions::default() };
    let input = RecurrentInput { options, ..RecurrentInput::new(&of_x, &weights) };
    let out = lstm(&stream, &input)?;

    let h_n = out.h_n.to_vec_on::<f32>(&stream)?;
    for (b, length) in lengths.into_iter().enumerate() {
        let want = reference(&x, &w_ih, &w_hh, &bias, b, length as usize);
        for (got, want) in h_n[b * HIDDEN..].iter().zip(&want) {
            assert!((got - want).abs() < 1e-5, "sequence {b}: {got} for {want}");
        }
        println!("{}: sequence {b}, {length} steps: h_n = {:.4?}", device.name(), &want[..4]);
    }
    Ok(())
}
