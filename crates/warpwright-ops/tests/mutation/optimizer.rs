//! Optimizers over lists of parameters.

use warpwright_ops::Operation;
use warpwright_ops::optimizer::{Adam, ClipGradNormDesc, GradNormDesc, Norm, OptimizerDesc, Rule, Sgd};
use warpwright_ops::plan::TensorSpec;
use warpwright_ptx::DType;
use warpwright_testkit::inputs::Input;

use crate::harness::{Survivor, Sweep, TARGET, plans};

/// Normal numbers; gradients that have not overflowed, a scale, and no step made.
fn gradients(specs: &[TensorSpec], slot: usize) -> Vec<f64> {
    let spec = &specs[slot];
    match spec.name {
        "found_inf" => vec![0.0; spec.len],
        "grad_scale" => vec![2.0; spec.len],
        _ if spec.dtype == DType::U8 => (0..spec.len).map(|i| (i * 37 % 256) as f64).collect(),
        name if name.ends_with("absmax") => (0..spec.len).map(|i| 0.5 + i as f64).collect(),
        _ => Input::Normal.values(spec.len, slot as u64),
    }
}

/// Lists of tensors of one block and of several, ending within one and with one, in every place of a launch and in another launch.
fn lists(number: usize) -> Vec<usize> {
    match number {
        0 => (0..48).map(|i| 1 + i % 5).collect(),
        1 => vec![2048, 3, 4100, 2304],
        2 => (0..50).map(|i| 1 + i % 3).collect(),
        _ => vec![256, 257, 2047],
    }
}

/// A step of `f32`, to which a scale and a sign of overflow may be `given`.
fn step(rule: Rule, given: bool, lens: Vec<usize>) -> OptimizerDesc {
    let dtype = DType::F32;
    OptimizerDesc {
        rule,
        maximize: false,
        dtype,
        grad_dtype: dtype,
        master: false,
        grad_scale: given,
        found_inf: given,
        lens,
        eight_bit: Vec::new(),
    }
}

/// Tensors that are not taken for aligned ones go the way of single elements.
const SURVIVORS: &[Survivor] = &[
    Survivor::equivalent("", "(together & 15).@eq(0)", "single elements give the same").at_most(1),
    Survivor::equivalent("", "(address & 15).@eq(0)", "single elements give the same").at_most(1),
];

const SWEEP: Sweep = Sweep { survivors: SURVIVORS, ..Sweep::new(gradients) };

#[test]
#[ignore = "nightly: mutation-norms"]
fn defects_of_optimizers_are_noticed() {
    let momentum = Sgd { momentum: 0.5.into(), ..Sgd::PLAIN };
    for rule in [Rule::Adam(Adam::ADAMW), Rule::Sgd(momentum)] {
        SWEEP.check(&plans(&[0, 1, 2, 3, 4], |number: usize| {
            step(rule, number < 2, lists(number)).plan(TARGET).expect("plan")
        }));
    }
}

/// The same where moments are in 8 bits.
const EIGHT_BIT: &[Survivor] = &[
    Survivor::equivalent("", "& 15).@eq(0)", "single elements give the same").at_most(1),
    Survivor::equivalent("", "aligned & (at", "single elements give the same"),
];

/// Blocks of elements that end with each element of a lane, several of a warp and of a thread block, and tensors in every place of a launch.
#[test]
#[ignore = "nightly: mutation-norms"]
fn defects_of_moments_in_8_bits_are_noticed() {
    let lists: [Vec<usize>; 6] = [
        (0..48).map(|i| 1 + i % 5).collect(),
        vec![256, 257, 4100],
        (0..50).map(|i| 250 + i % 9).collect(),
        (0..8).map(|i| 32 * i + 1).collect(),
        (1..9).map(|i| 32 * i).collect(),
        vec![2048, 2304],
    ];
    let skipped = |name: &str| !name.contains("8bit");
    let sweep = Sweep { survivors: EIGHT_BIT, skipped, ..Sweep::new(gradients) };
    sweep.check(&plans(&[0, 1, 2, 3, 4, 5], |number: usize| {
        let step = step(Rule::Adam(Adam::ADAMW), number < 2, lists[number].clone());
        let eight_bit = vec![true; step.lens.len()];
        OptimizerDesc { eight_bit, ..step }.plan(TARGET).expect("plan")
    }));
}

#[test]
#[ignore = "nightly: mutation-norms"]
fn defects_of_clipping_are_noticed() {
    let sweep = Sweep { skipped: |name| name.starts_with("grad_norm_finish"), ..SWEEP };
    sweep.check(&plans(&[0, 1, 2, 3], |number: usize| {
        let grads = GradNormDesc { norm: Norm::L2, dtype: DType::F32, lens: lists(number) };
        ClipGradNormDesc { grads, max_norm: 1.0.into() }.plan(TARGET).expect("plan")
    }));
}

/// As many partial results as end with each that a thread has in flight, and behind it.
#[test]
#[ignore = "nightly: mutation-norms"]
fn defects_of_sums_of_partial_norms_are_noticed() {
    let sweep = Sweep { skipped: |name| !name.starts_with("grad_norm_finish"), ..SWEEP };
    let counts: Vec<usize> = (0..=8).map(|round| 1024 * round + 1).collect();
    sweep.check(&plans(&counts, |count: usize| {
        GradNormDesc { norm: Norm::L2, dtype: DType::F32, lens: vec![1; count] }.plan(TARGET).expect("plan")
    }));
}
