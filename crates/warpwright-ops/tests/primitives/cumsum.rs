//! Cumulative sums by the free function: long rows, results that are the same from run to run, and what is refused.

use warpwright_ops::cumsum::tuning::{Config, Layout};
use warpwright_ops::cumsum::{CumsumArgs, CumsumDesc, CumsumOptions, cumsum, reference};
use warpwright_ops::{Error, Operation, PlanError};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::{Device, EmulatorConfig, Tensor};
use warpwright_testkit::inputs::Input;

const FORWARD: CumsumOptions = CumsumOptions { exclusive: false, reverse: false };

/// A sum of a million positive numbers of f32 in one thread has an error of 1e-5 and more.
#[test]
fn long_rows_keep_their_digits_and_are_the_same_on_any_number_of_workers() {
    let values: Vec<f32> = Input::Uniform.values(1 << 20, 1).into_iter().map(|x| x.abs() as f32).collect();
    let exact: Vec<f64> = values.iter().map(|x| f64::from(*x)).collect();
    let exact = reference::cumsum(&exact, [1, 1 << 20, 1], false, false);
    let mut all: Vec<Vec<u32>> = Vec::new();
    for threads in [1, 3, 3] {
        let device = Device::emulator_with(EmulatorConfig { threads, ..EmulatorConfig::default() });
        let stream = device.stream().expect("stream");
        let x = Tensor::from_slice(&device, &values, &[1 << 20]).expect("memory");
        let y = cumsum(&stream, &x, 0, FORWARD).expect("launch").to_vec_on::<f32>(&stream).expect("copy");
        let worst = y.iter().zip(&exact).map(|(y, (sum, _))| (f64::from(*y) - sum).abs() / sum);
        let worst = worst.fold(0.0, f64::max);
        assert!(worst < 4e-7, "{worst:e}");
        assert!(device.findings().is_empty());
        all.push(y.into_iter().map(f32::to_bits).collect());
    }
    assert!(all[0] == all[1] && all[1] == all[2]);
}

/// More tiles than a block has threads: sums go from span to span.
#[test]
fn rows_of_several_spans_of_tiles() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let (outer, n) = (2, 600 * 256 + 7);
    let values: Vec<i64> = (0..outer * n).map(|i| (i as i64 * 7919) % 1000 - 499).collect();
    for reverse in [false, true] {
        let desc = CumsumDesc { dtype: DType::I64, outer, n, inner: 1, exclusive: true, reverse };
        let config = Config { layout: Layout::Tiles { vectors: 1 }, width: 1, threads: 256 };
        let plan = desc.plan_with(device.target(), config).expect("plan");
        let x = Tensor::from_slice(&device, &values, &[outer, n]).expect("memory");
        let mut y = Tensor::empty(&device, DType::I64, &[outer, n]).expect("memory");
        let mut workspace = plan.workspace(&stream).expect("memory");
        let workspace = workspace.as_mut().map(Tensor::as_mut);
        plan.launch(&stream, CumsumArgs { x: x.as_ref(), y: y.as_mut(), workspace }).expect("launch");
        let y = y.to_vec_on::<i64>(&stream).expect("copy");
        for (x, y) in values.chunks(n).zip(y.chunks(n)) {
            let mut sum = 0;
            let mut check = |(x, y): (&i64, &i64)| {
                assert_eq!(*y, sum);
                sum += x;
            };
            match reverse {
                false => x.iter().zip(y).for_each(&mut check),
                true => x.iter().zip(y).rev().for_each(&mut check),
            }
        }
    }
    assert!(device.findings().is_empty());
}

#[test]
fn sums_go_along_each_dimension() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let values = Input::Normal.values(3 * 4 * 5, 7);
    let x = Tensor::from_slice(&device, &values, &[3, 4, 5]).expect("memory");
    for (dim, sizes) in [(0, [1, 3, 20]), (1, [3, 4, 5]), (2, [12, 5, 1])] {
        for (exclusive, reverse) in [(false, false), (true, false), (false, true), (true, true)] {
            let y = cumsum(&stream, &x, dim, CumsumOptions { exclusive, reverse }).expect("launch");
            assert_eq!(y.shape(), [3, 4, 5]);
            let y = y.to_vec_on::<f64>(&stream).expect("copy");
            let want = reference::cumsum(&values, sizes, exclusive, reverse);
            assert!(y.iter().zip(&want).all(|(y, (sum, scale))| (y - sum).abs() <= 1e-15 * scale));
            assert_eq!(y.len(), want.len());
        }
    }
    let error = cumsum(&stream, &x, 3, FORWARD).expect_err("three dimensions");
    assert!(matches!(error, Error::Plan(PlanError::Parameter { op: "cumsum", parameter: "dim", .. })));
}

#[test]
fn what_cannot_be_summed_is_refused() {
    let desc = |dtype, outer, n| CumsumDesc { dtype, outer, n, inner: 1, exclusive: false, reverse: false };
    let refused = |desc: CumsumDesc| desc.plan(Target::sm(90)).expect_err("no plan");
    let error = refused(desc(DType::U8, 1, 1));
    assert!(matches!(error, PlanError::DType { tensor: "x", got: DType::U8, .. }));
    let error = refused(desc(DType::F32, 1 << 40, 1 << 30));
    assert!(matches!(error, PlanError::Parameter { parameter: "shape", .. }));
    let error = refused(desc(DType::F32, 0, usize::MAX));
    assert!(matches!(error, PlanError::Parameter { parameter: "shape", .. }));
    let error = refused(desc(DType::F32, 1 << 45, 8));
    assert!(matches!(error, PlanError::TooLarge { .. }), "{error}");
}
