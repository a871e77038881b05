//! Recurrent nets: every case on targets with other kernels, and what is refused.

use warpwright_ops::recurrent::tuning::{PersistentConfig, Schedule, choose};
use warpwright_ops::recurrent::{LstmDesc, LstmWeights, lstm};
use warpwright_ops::{Error, Operation, PlanError};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::{Device, EmulatorConfig, Error as RuntimeError, Tensor};
use warpwright_testkit::{Filter, Scope, cases, run_case};

fn run(config: EmulatorConfig, scope: Scope) {
    let target = config.target;
    let device = Device::emulator_with(config);
    let filter = Filter { ops: vec!["lstm".to_owned()], scope, ..Filter::default() };
    let mut failed = Vec::new();
    for case in cases(&filter) {
        let r = run_case(&device, &case);
        println!("{case}: {:.2e} {:.3}", r.error, r.element_error);
        if !r.ok {
            let findings = r.findings.first().cloned().unwrap_or_default();
            failed.push(format!("{case}: {}\n{findings}", r.reason.unwrap_or_default()));
        }
    }
    assert!(failed.is_empty(), "{} failed for {target}:\n{}", failed.len(), failed.join("\n"));
}

#[test]
fn every_kind_of_sequence() {
    for sm in [75, 80, 90] {
        run(EmulatorConfig { target: Target::sm(sm), ..EmulatorConfig::default() }, Scope::Quick);
    }
}

#[test]
fn sequences_without_a_plan() {
    const TARGET: Target = Target::sm(90);
    let good = LstmDesc {
        dtype: DType::BF16,
        steps: 3,
        batch: 1,
        input: 16,
        hidden: 512,
        bias: true,
        h0: true,
        c0: false,
    };
    let plan = good.plan(TARGET).expect("plan");
    let grids: Vec<_> = plan.steps().iter().map(|step| (step.grid()[0], step.is_cooperative())).collect();
    assert_eq!(grids.last(), Some(&(32, true)), "16 units a block, for one tile of batches");
    let many = LstmDesc { batch: 16, hidden: 256, ..good.clone() }.plan(TARGET).expect("plan");
    assert_eq!(many.steps().last().map(|step| step.grid()[0]), Some(64), "4 units a block");
    assert_eq!(grids.len(), 3, "the inputs, the exchange, the sequence: {grids:?}");
    assert_eq!(good.plan_with(TARGET, Schedule::Stepwise).expect("plan").steps().len(), 1 + 2 * 3);
    let parameter = |desc: LstmDesc, name| match desc.plan(TARGET) {
        Err(PlanError::Parameter { parameter, .. }) => assert_eq!(parameter, name),
        other => panic!("{name}: {other:?}"),
    };
    parameter(LstmDesc { steps: 0, ..good.clone() }, "steps");
    parameter(LstmDesc { input: 0, ..good.clone() }, "input");
    parameter(LstmDesc { hidden: 0, ..good.clone() }, "hidden");
    parameter(LstmDesc { hidden: 1 << 20, ..good.clone() }, "hidden");
    parameter(LstmDesc { steps: 1 << 40, ..good.clone() }, "steps x batch");
    let e = LstmDesc { dtype: DType::I8, ..good.clone() }.plan(TARGET).expect_err("no integers");
    assert!(matches!(e, PlanError::DType { op: "lstm", .. }), "{e}");
    let wrong = Schedule::Persistent(PersistentConfig { units: 3 });
    let e = good.plan_with(TARGET, wrong).expect_err("no such kernel");
    assert!(matches!(e, PlanError::Parameter { parameter: "schedule", .. }), "{e}");
    // Old targets, sizes that do not fit, and double precision go step by step.
    for (dtype, sm, batch, hidden) in [
        (DType::BF16, 75, 1, 512),
        (DType::BF16, 90, 1, 520),
        (DType::BF16, 90, 1, 4096),
        (DType::F64, 90, 1, 512),
        (DType::F32, 90, 64, 512),
    ] {
        assert_eq!(choose(dtype, Target::sm(sm), batch, hidden), Schedule::Stepwise, "{dtype} {hidden}");
    }
}

/// The rows of the sequence that do not depend on how it is run.
#[test]
fn both_schedules_and_every_seed_agree() {
    let values = |len: usize, by: f32| (0..len).map(|i| (i as f32 * by).sin() * 0.3).collect::<Vec<f32>>();
    let mut results = Vec::new();
    for seed in 0..3 {
        let device = Device::emulator_with(EmulatorConfig { seed, ..EmulatorConfig::default() });
        let stream = device.stream().expect("stream");
        let tensor = |len: usize, by, shape: &[usize]| {
            Tensor::from_slice(&device, &values(len, by), shape).expect("memory")
        };
        let x = tensor(7 * 2 * 12, 0.7, &[7, 2, 12]);
        let (w_ih, w_hh) = (tensor(128 * 12, 1.3, &[128, 12]), tensor(128 * 32, 1.9, &[128, 32]));
        let bias = tensor(128, 0.4, &[128]);
        let weights = LstmWeights { w_ih: &w_ih, w_hh: &w_hh, bias: Some((&bias, &bias)) };
        let out = lstm(&stream, &x, weights, None).expect("launch");
        assert!(device.findings().is_empty());
        let last = out.y.to_vec::<f32>().expect("copy")[6 * 64..].to_vec();
        assert_eq!(last, out.h_n.to_vec::<f32>().expect("copy"));
        results.push((out.y.to_vec::<f32>().expect("copy"), out.c_n.to_vec::<f32>().expect("copy")));
    }
    assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "the same bits under every schedule");
}

#[test]
fn tensors_that_do_not_fit() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let zeros = |shape: &[usize]| {
        let len = shape.iter().product();
        Tensor::from_slice(&device, &vec![0.0f32; len], shape).expect("memory")
    };
    let (x, w_ih, w_hh) = (zeros(&[2, 1, 3]), zeros(&[16, 3]), zeros(&[16, 4]));
    let run = |x: &Tensor, w_ih: &Tensor, w_hh: &Tensor| {
        lstm(&stream, x, LstmWeights { w_ih, w_hh, bias: None }, None)
    };
    assert_eq!(run(&x, &w_ih, &w_hh).expect("launch").y.shape(), [2, 1, 4]);
    for (x, w_ih, w_hh, name) in [
        (&w_ih, &w_ih, &w_hh, "x"),
        (&x, &w_hh, &w_hh, "w_ih"),
        (&x, &w_ih, &w_ih, "w_hh"),
        (&x, &w_ih, &x, "w_hh"),
    ] {
        match run(x, w_ih, w_hh) {
            Err(Error::Plan(PlanError::Parameter { parameter, .. })) => assert_eq!(parameter, name),
            other => panic!("{name}: {other:?}"),
        }
    }
    let state = zeros(&[1, 5]);
    let weights = LstmWeights { w_ih: &w_ih, w_hh: &w_hh, bias: None };
    let e = lstm(&stream, &x, weights, Some((&state, &state))).expect_err("a state of five units");
    assert!(matches!(e, Error::Runtime(RuntimeError::Elements { argument: "h0", .. })), "{e}");
}
