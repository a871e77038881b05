//! Optimizers by the free functions: steps that follow one another, norms of gradients, and what is refused.

use warpwright_ops::optimizer::{
    self, Adam, Adam8bitParameter, AdamParameter, Norm, OptimizerDesc, Rule, Sgd, StepOptions, reference,
};
use warpwright_ops::{Error, Operation, PlanError};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::{Device, Tensor};
use warpwright_testkit::inputs::Input;

fn desc(rule: Rule, dtype: DType) -> OptimizerDesc {
    let (maximize, master, grad_scale, found_inf) = (false, false, false, false);
    let (lens, eight_bit) = (vec![3], Vec::new());
    OptimizerDesc { rule, maximize, dtype, grad_dtype: dtype, master, grad_scale, found_inf, lens, eight_bit }
}

/// The state is on the device: each step counts itself.
#[test]
fn steps_follow_one_another() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let len = 2500;
    let rule = Adam { amsgrad: true, weight_decay: 0.1.into(), ..Adam::ADAMW };
    let values = Input::Normal.values(len, 1);
    let zero = || vec![0.0; len];
    let mut state =
        reference::Parameter { param: values.clone(), first: zero(), second: zero(), largest: zero() };
    let tensor = |values: &[f64]| Tensor::from_slice(&device, values, &[len]).expect("memory");
    let (mut param, mut exp_avg) = (tensor(&values), tensor(&zero()));
    let (mut exp_avg_sq, mut largest) = (tensor(&zero()), tensor(&zero()));
    let mut step = Tensor::zeros(&device, DType::F32, &[1]).expect("memory");
    let lr = Tensor::from_slice(&device, &[0.05f64], &[1]).expect("memory");
    for number in 1..=4 {
        let values = Input::Normal.values(len, 10 + number as u64);
        let grad = tensor(&values);
        let parameter = AdamParameter {
            param: &mut param,
            grad: &grad,
            exp_avg: &mut exp_avg,
            exp_avg_sq: &mut exp_avg_sq,
            max_exp_avg_sq: Some(&mut largest),
            master: None,
        };
        optimizer::adamw(&stream, rule, vec![parameter], &mut step, &lr, StepOptions::default())
            .expect("launch");
        reference::step(&desc(Rule::Adam(rule), DType::F64), &mut state, &values, number, 0.05, 1.0);
    }
    let got = param.to_vec_on::<f64>(&stream).expect("copy");
    assert!(got.iter().zip(&state.param).all(|(got, want)| (got - want).abs() < 1e-12 * want.abs().max(0.1)));
    assert_eq!(step.to_vec_on::<f32>(&stream).expect("copy"), [4.0]);
    assert!(device.findings().is_empty());
}

/// So many elements with moments in 8 bits that thread blocks take several rounds: all periods of a pattern move alike, as one period does that is
/// a parameter by itself.
#[test]
fn thread_blocks_take_several_rounds_of_moments_in_8_bits() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let (period, long) = (2048, (1 << 23) + 300);
    let pattern =
        |salt| -> Vec<f32> { Input::Normal.values(period, salt).iter().map(|x| *x as f32).collect() };
    let lr = Tensor::from_slice(&device, &[0.05f32], &[1]).expect("memory");
    let run = |len: usize| {
        let tensor = |values: &[f32]| {
            let all: Vec<f32> = values.iter().copied().cycle().take(len).collect();
            Tensor::from_slice(&device, &all, &[len]).expect("memory")
        };
        let zeros = |dtype, len: usize| Tensor::zeros(&device, dtype, &[len]).expect("memory");
        let (mut param, mut step) = (tensor(&pattern(1)), zeros(DType::F32, 1));
        let [mut state1, mut state2] = [zeros(DType::U8, len), zeros(DType::U8, len)];
        let blocks = len.div_ceil(optimizer::BLOCK);
        let [mut absmax1, mut absmax2] = [zeros(DType::F32, blocks), zeros(DType::F32, blocks)];
        let grad = tensor(&pattern(2));
        let parameter = Adam8bitParameter {
            param: &mut param,
            grad: &grad,
            state1: &mut state1,
            state2: &mut state2,
            absmax: Some([&mut absmax1, &mut absmax2]),
            master: None,
        };
        let options = StepOptions::default();
        optimizer::adamw8bit(&stream, Adam::ADAMW, vec![parameter], &mut step, &lr, options).expect("launch");
        let codes = [state1, state2].map(|state| state.to_vec_on::<u8>(&stream).expect("copy"));
        let absmax = [absmax1, absmax2].map(|absmax| absmax.to_vec_on::<f32>(&stream).expect("copy"));
        (param.to_vec_on::<f32>(&stream).expect("copy"), codes, absmax)
    };
    let (param, codes, absmax) = run(period);
    let (all_params, all_codes, all_absmax) = run(long);
    assert!(all_params.chunks(period).all(|found| found == &param[..found.len()]));
    let whole = long / period * period;
    for moment in 0..2 {
        assert!(all_codes[moment][..whole].chunks(period).all(|found| found == codes[moment]));
        let blocks = whole / optimizer::BLOCK;
        assert!(
            all_absmax[moment][..blocks]
                .chunks(period / optimizer::BLOCK)
                .all(|found| found == absmax[moment])
        );
    }
    assert!(device.findings().is_empty());
}

#[test]
fn norms_of_lists_and_clipping() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let lens: Vec<usize> = (0..60).map(|i| i * i * 3 % 5000).collect();
    let values: Vec<Vec<f64>> = lens.iter().map(|len| Input::Normal.values(*len, *len as u64)).collect();
    let all = || values.iter().flatten().copied();
    let l2 = all().map(|x| x * x).sum::<f64>().sqrt();
    let largest = all().fold(0.0, |a: f64, x| a.max(x.abs()));
    for (norm, want) in [(Norm::L2, l2), (Norm::Infinity, largest)] {
        for max_norm in [2.5, 1e9] {
            let mut grads: Vec<Tensor> =
                values.iter().map(|x| Tensor::from_slice(&device, x, &[x.len()]).expect("memory")).collect();
            let total =
                optimizer::grad_norm(&stream, &grads.iter().collect::<Vec<_>>(), norm).expect("launch");
            let mut list: Vec<&mut Tensor> = grads.iter_mut().collect();
            let before = optimizer::clip_grad_norm(&stream, &mut list, max_norm, norm).expect("launch");
            for got in [total, before] {
                let got = got.to_vec_on::<f64>(&stream).expect("copy");
                assert!((got[0] - want).abs() < 1e-13 * want, "{norm:?}: {got:?}, not {want}");
            }
            let coefficient = (max_norm / (want + 1e-6)).min(1.0);
            for (grad, values) in grads.iter().zip(&values) {
                let got = grad.to_vec_on::<f64>(&stream).expect("copy");
                let near = |(got, x): (&f64, &f64)| (got - x * coefficient).abs() <= 1e-12 * x.abs();
                assert!(got.iter().zip(values).all(near));
            }
        }
    }
    assert!(device.findings().is_empty());
}

#[test]
fn what_an_optimizer_cannot_do_is_refused() {
    let target = Target::sm(90);
    let refused = |desc: OptimizerDesc| desc.plan(target).expect_err("no plan");
    let adam = |betas: [f64; 2]| Rule::Adam(Adam { betas: betas.map(Into::into), ..Adam::ADAMW });
    for betas in [[1.0, 0.9], [0.9, -0.1], [f64::NAN, 0.9]] {
        let error = refused(desc(adam(betas), DType::F32));
        assert!(matches!(error, PlanError::Parameter { op: "adamw", parameter: "betas", .. }), "{error}");
    }
    let error = refused(desc(Rule::Sgd(Sgd { nesterov: true, ..Sgd::PLAIN }), DType::F32));
    assert!(matches!(error, PlanError::Parameter { op: "sgd", parameter: "nesterov", .. }));
    let error = refused(OptimizerDesc { master: true, ..desc(adam([0.9, 0.9]), DType::F32) });
    assert!(matches!(error, PlanError::Parameter { parameter: "master", .. }));
    let error = refused(OptimizerDesc { grad_dtype: DType::F16, ..desc(adam([0.9, 0.9]), DType::BF16) });
    assert!(matches!(error, PlanError::DType { tensor: "grad", got: DType::F16, .. }));
    let eight_bit = |desc: OptimizerDesc| refused(OptimizerDesc { eight_bit: vec![true], ..desc });
    let error = eight_bit(desc(adam([0.9, 0.9]), DType::F64));
    assert!(
        matches!(error, PlanError::DType { op: "adamw8bit", tensor: "param", got: DType::F64, .. }),
        "{error}"
    );
    let amsgrad = Rule::Adam(Adam { amsgrad: true, ..Adam::ADAM });
    let error = eight_bit(desc(amsgrad, DType::F32));
    assert!(matches!(error, PlanError::Parameter { op: "adam8bit", parameter: "amsgrad", .. }), "{error}");
    let error = eight_bit(desc(Rule::Sgd(Sgd::PLAIN), DType::F32));
    assert!(matches!(error, PlanError::Parameter { parameter: "eight_bit", .. }), "{error}");
    let error = eight_bit(OptimizerDesc { lens: vec![3, 4], ..desc(adam([0.9, 0.9]), DType::F32) });
    assert!(matches!(error, PlanError::Parameter { parameter: "eight_bit", .. }), "{error}");
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let mut grad = Tensor::zeros(&device, DType::F32, &[2]).expect("memory");
    let error = optimizer::clip_grad_norm(&stream, &mut [&mut grad], -1.0, Norm::L2).expect_err("negative");
    assert!(matches!(error, Error::Plan(PlanError::Parameter { parameter: "max_norm", .. })));
}
