//! Group normalisation: what plans and launches refuse, gradients, accuracy, and its free functions.

use std::collections::BTreeMap;

use warpwright_ops::group_norm::tuning::Path;
use warpwright_ops::group_norm::{
    GroupNormArgs, GroupNormBackwardDesc, GroupNormDesc, GroupNormOptions, GroupShape, Layout, group_norm,
    group_norm_backward, instance_norm, instance_norm_backward, reference,
};
use warpwright_ops::plan::{Access, TensorSpec};
use warpwright_ops::{Direction, Error, Operation, Plan, PlanError};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::{Binding, Device, Error as RuntimeError, Tensor};
use warpwright_testkit::inputs::Input;
use warpwright_testkit::{Filter, cases, run_case, storage};

const TARGET: Target = Target::sm(90);

const fn shape(batch: usize, channels: usize, spatial: usize, groups: usize) -> GroupShape {
    GroupShape { batch, channels, spatial, groups, layout: Layout::ChannelsFirst }
}

fn desc(dtype: DType, shape: GroupShape) -> GroupNormDesc {
    let (weight, bias, silu, statistics) = (true, true, false, true);
    GroupNormDesc { dtype, shape, weight, bias, silu, statistics, eps: 1e-5.into() }
}

fn backward(dtype: DType, shape: GroupShape) -> GroupNormBackwardDesc {
    let (weight, bias, silu, dweight, dbias) = (true, true, true, true, true);
    GroupNormBackwardDesc { dtype, shape, weight, bias, silu, dweight, dbias }
}

#[test]
fn descriptors_without_a_plan() {
    for groups in [0, 3, 16] {
        let e = desc(DType::F32, shape(1, 8, 4, groups)).plan(TARGET).expect_err("no divisor");
        assert!(matches!(e, PlanError::Parameter { op: "group_norm", parameter: "groups", .. }), "{e}");
        let e = backward(DType::F32, shape(1, 8, 4, groups)).plan(TARGET).expect_err("no divisor");
        assert!(matches!(e, PlanError::Parameter { parameter: "groups", .. }), "{e}");
    }
    let e = desc(DType::I32, shape(1, 8, 4, 2)).plan(TARGET).expect_err("no integers");
    assert!(matches!(e, PlanError::DType { tensor: "x", got: DType::I32, .. }), "{e}");
    for eps in [-1e-5, f64::NAN, f64::INFINITY] {
        let wrong = GroupNormDesc { eps: eps.into(), ..desc(DType::F32, shape(1, 8, 4, 2)) };
        let e = wrong.plan(TARGET).expect_err("no such eps");
        assert!(matches!(e, PlanError::Parameter { parameter: "eps", .. }), "{e}");
    }
    for wide in [shape(usize::MAX, 8, 4, 2), shape(1 << 40, 8, 1, 8), shape(1, 8, usize::MAX / 4, 2)] {
        let e = desc(DType::F32, wide).plan(TARGET).expect_err("too large");
        assert!(matches!(e, PlanError::TooLarge { op: "group_norm", .. }), "{e}");
    }
}

#[test]
fn sizes_beyond_32_bits_have_plans() {
    for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] {
        for spatial in [3 << 30, (3 << 30) + 1] {
            let large = GroupShape { layout, ..shape(2, 4, spatial, 2) };
            assert!(!desc(DType::BF16, large).plan(TARGET).expect("plan").steps().is_empty());
            assert!(!backward(DType::BF16, large).plan(TARGET).expect("plan").steps().is_empty());
        }
    }
}

#[test]
fn older_targets_get_kernels_without_clusters() {
    let large = shape(1, 32, 16_384, 2);
    let clusters = |target| {
        let plan = desc(DType::BF16, large).plan(target).expect("plan");
        plan.steps().iter().any(|step| step.cluster().is_some())
    };
    assert!(clusters(Target::sm(90)));
    assert!(!clusters(Target::sm(89)));
}

#[test]
fn nothing_is_launched_for_nothing() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    for empty in [[0, 4, 8], [2, 4, 0], [2, 0, 8]] {
        let x = Tensor::zeros(&device, DType::F32, &empty).expect("memory");
        let y = group_norm(&stream, &x, plain(2)).expect("launch").y;
        assert_eq!((y.shape(), y.len()), (&empty[..], 0));
    }
    let plan = GroupNormDesc { statistics: false, ..desc(DType::F32, shape(0, 4, 8, 2)) };
    assert!(plan.plan(TARGET).expect("plan").steps().is_empty());
    // The sums over nothing are zero.
    let x = Tensor::zeros(&device, DType::F32, &[0, 4, 8]).expect("memory");
    let ones = Tensor::from_slice(&device, &[1.0f32; 4], &[4]).expect("memory");
    let options = GroupNormOptions { weight: Some(&ones), bias: Some(&ones), ..plain(2) };
    let out = group_norm(&stream, &x, options).expect("launch");
    let g = group_norm_backward(&stream, &x, &out, &x, options).expect("launch");
    assert_eq!(g.dweight.expect("asked for").to_vec::<f32>().expect("copy"), [0.0; 4]);
    assert_eq!(g.dbias.expect("asked for").to_vec::<f32>().expect("copy"), [0.0; 4]);
}

fn plain<'a>(groups: usize) -> GroupNormOptions<'a> {
    GroupNormOptions { groups, ..GroupNormOptions::default() }
}

#[test]
fn launches_check_their_tensors() {
    let (device, other) = (Device::emulator(), Device::emulator());
    let stream = device.stream().expect("stream");
    let x = Tensor::from_slice(&device, &[1.0f32; 64], &[2, 4, 8]).expect("memory");
    let four = Tensor::from_slice(&device, &[1.0f32; 4], &[4]).expect("memory");
    let run = |x: &Tensor, weight: &Tensor| {
        group_norm(&stream, x, GroupNormOptions { weight: Some(weight), bias: Some(&four), ..plain(2) })
    };
    run(&x, &four).expect("right arguments");
    let five = Tensor::from_slice(&device, &[1.0f32; 5], &[5]).expect("memory");
    let e = run(&x, &five).expect_err("length");
    assert!(
        matches!(
            e,
            Error::Runtime(RuntimeError::Elements { op: "group_norm", argument: "weight", got: 5, .. })
        ),
        "{e}"
    );
    let halves = Tensor::zeros(&device, DType::F16, &[4]).expect("memory");
    let e = run(&x, &halves).expect_err("dtype");
    assert!(matches!(e, Error::Runtime(RuntimeError::DType { argument: "weight", .. })), "{e}");
    let foreign = Tensor::from_slice(&other, &[1.0f32; 4], &[4]).expect("memory");
    let e = run(&x, &foreign).expect_err("device");
    assert!(matches!(e, Error::Runtime(RuntimeError::WrongDevice { argument: "weight", .. })), "{e}");
    let odd = Tensor::zeros(&device, DType::F32, &[2, 5, 8]).expect("memory");
    assert!(matches!(run(&odd, &five), Err(Error::Plan(PlanError::Parameter { parameter: "groups", .. }))));

    // What the descriptor does not name must not come, what it names must.
    let plan = desc(DType::F32, shape(2, 4, 8, 2)).plan(TARGET).expect("plan");
    let mut y = Tensor::zeros(&device, DType::F32, &[2, 4, 8]).expect("memory");
    let args = GroupNormArgs {
        x: x.as_ref(),
        weight: Some(four.as_ref()),
        bias: None,
        y: y.as_mut(),
        mean: None,
        rstd: None,
        workspace: None,
    };
    let e = plan.launch(&stream, args).expect_err("no bias");
    assert!(matches!(e, RuntimeError::Presence { argument: "bias", given: false, .. }), "{e}");
    let dy = Tensor::zeros(&device, DType::F32, &[2, 4, 4]).expect("memory");
    let out = group_norm(&stream, &x, plain(2)).expect("launch");
    let e = group_norm_backward(&stream, &x, &out, &dy, plain(2)).expect_err("shape of dy");
    assert!(matches!(e, Error::Runtime(RuntimeError::Shape { argument: "dy", .. })), "{e}");
}

#[test]
fn gradients_agree_with_central_differences() {
    for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] {
        for (silu, affine) in [(false, false), (false, true), (true, false), (true, true)] {
            let shape = GroupShape { layout, ..shape(2, 4, 6, 2) };
            let (x, dy) = (Input::Normal.values(48, 1), Input::Normal.values(48, 2));
            let (weight, bias) = (Input::Normal.values(4, 3), Input::Normal.values(4, 4));
            let loss = |x: &[f64], weight: &[f64], bias: &[f64]| -> f64 {
                let (weight, bias) = (affine.then_some(weight), affine.then_some(bias));
                let y = reference::forward(shape, x, weight, bias, silu, 1e-3);
                y.iter().zip(&dy).map(|(y, dy)| y * dy).sum()
            };
            let statistics = reference::statistics(shape, &x, 1e-3);
            let (w, b) = (affine.then_some(&weight[..]), affine.then_some(&bias[..]));
            let g = reference::backward(shape, &x, &dy, &statistics, w, b, silu);
            let check = |what: &str, exact: &[f64], at: &dyn Fn(usize, f64) -> f64| {
                for (i, exact) in exact.iter().enumerate() {
                    let h = 1e-3;
                    let slope =
                        (8.0 * (at(i, h) - at(i, -h)) - (at(i, 2.0 * h) - at(i, -2.0 * h))) / (12.0 * h);
                    let error = (slope - exact).abs() / exact.abs().max(1.0);
                    assert!(
                        error < 1e-5,
                        "{layout:?} silu {silu} affine {affine} {what} {i}: {slope} {exact}"
                    );
                }
            };
            let moved = |values: &[f64], i: usize, by: f64| {
                let mut values = values.to_vec();
                values[i] += by;
                values
            };
            check("dx", &g.dx, &|i, by| loss(&moved(&x, i, by), &weight, &bias));
            if affine {
                check("dweight", &g.dweight, &|i, by| loss(&x, &moved(&weight, i, by), &bias));
                check("dbias", &g.dbias, &|i, by| loss(&x, &weight, &moved(&bias, i, by)));
            }
        }
    }
}

/// PyTorch's own errors in f32 on standard normal input; ours stay below 1.5 times that.
#[test]
fn f32_is_as_exact_as_pytorch() {
    let filter = Filter { ops: vec!["group_norm".to_owned()], dtypes: vec![DType::F32], ..Filter::default() };
    let device = Device::emulator();
    let many: Vec<_> = cases(&filter).into_iter().filter(|c| c.shape[0] * c.shape[3] >= 128).collect();
    assert_eq!(many.len(), 2);
    for case in many {
        let pytorch = match case.direction {
            Direction::Forward => 5.0e-8,
            Direction::Backward => 6.5e-8,
        };
        let result = run_case(&device, &case);
        println!("{case}: {:.2e}, PyTorch {pytorch:.1e}", result.error);
        assert!(result.error <= 1.5 * pytorch, "{case}: {:.2e}", result.error);
    }
}

#[test]
fn free_functions() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let x = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0, 6.0], &[1, 2, 2]).expect("memory");
    let values = |t: &Tensor| t.to_vec::<f32>().expect("copy");
    let exact = GroupNormOptions { eps: 0.0, ..plain(1) };
    let out = group_norm(&stream, &x, exact).expect("launch");
    let (mean, rstd) = (out.mean.expect("saved"), out.rstd.expect("saved"));
    assert_eq!((values(&mean), mean.shape()), (vec![3.0], &[1usize, 1][..]));
    assert!((values(&rstd)[0] - 1.0 / 3.5f32.sqrt()).abs() < 1e-7);
    let out = instance_norm(&stream, &x, GroupNormOptions { inference: true, ..exact }).expect("launch");
    assert_eq!(values(&out.y), [-1.0, 1.0, -1.0, 1.0]);
    assert!(out.mean.is_none() && out.rstd.is_none());
    let e = instance_norm_backward(&stream, &x, &out, &x, exact);
    assert!(matches!(e, Err(Error::Plan(PlanError::Parameter { op: "group_norm", parameter: "mean", .. }))));
    // Two pixels are -1 and 1 whatever x is: its gradient is 0.
    let ones = Tensor::from_slice(&device, &[1.0f32, 1.0], &[2]).expect("memory");
    let options = GroupNormOptions { weight: Some(&ones), bias: Some(&ones), ..exact };
    let saved = instance_norm(&stream, &x, options).expect("launch");
    let near = |t: &Tensor, expected: [f32; 4]| {
        let got = values(t);
        assert!(got.iter().zip(expected).all(|(x, expected)| (x - expected).abs() < 1e-6), "{got:?}");
    };
    near(&saved.y, [0.0, 2.0, 0.0, 2.0]);
    assert_eq!(values(saved.mean.as_ref().expect("saved")), [1.5, 4.5]);
    let dy = Tensor::from_slice(&device, &[1.0f32, 4.0, 2.0, 7.0], &[1, 2, 2]).expect("memory");
    let gradients = instance_norm_backward(&stream, &x, &saved, &dy, options).expect("launch");
    near(&gradients.dx, [0.0; 4]);
    let parameters =
        [&gradients.dweight, &gradients.dbias].map(|of| of.as_ref().map(values).unwrap_or_default());
    near(&Tensor::from_slice(&device, &parameters.concat(), &[4]).expect("memory"), [3.0, 5.0, 5.0, 9.0]);
    let last = Tensor::from_slice(&device, &[1.0f32, 3.0, 2.0, 6.0], &[1, 2, 2]).expect("memory");
    let silu = GroupNormOptions { silu: true, ..plain(1) };
    let a = values(&group_norm(&stream, &x, silu).expect("launch").y);
    let silu_last = GroupNormOptions { layout: Layout::ChannelsLast, ..silu };
    let b = values(&group_norm(&stream, &last, silu_last).expect("launch").y);
    for (a, b) in a.iter().zip([b[0], b[2], b[1], b[3]]) {
        assert!((a - b).abs() < 1e-6);
    }
}

#[test]
fn every_path_gives_the_same_gradients_of_parameters() {
    // Groups that lie in several blocks: five channels of 96 vectors over a cluster of four.
    let shape = shape(2, 10, 96 * 4, 2);
    let plan = backward(DType::F32, shape);
    let streamed = plan.plan_along(TARGET, Path::Streamed).expect("plan");
    assert_eq!(streamed.steps().len(), 4);
}

/// Runs a plan on inputs by name; the outputs by name, which hold NaN before.
fn run<O: Operation>(plan: &Plan<O>, given: &[(&str, &[f64])]) -> BTreeMap<&'static str, Vec<f64>> {
    let device = Device::emulator();
    let made = |spec: &TensorSpec| {
        let found = given.iter().find(|(name, _)| *name == spec.name).map(|(_, values)| values.to_vec());
        let bytes = storage::encode(spec.dtype, &found.unwrap_or_else(|| vec![f64::NAN; spec.len]));
        spec.present.then(|| Tensor::from_bytes(&device, spec.dtype, &bytes, &[spec.len]).expect("memory"))
    };
    let tensors: Vec<_> = plan.tensors().iter().map(made).collect();
    let bindings: Vec<Binding> =
        tensors.iter().map(|t| t.as_ref().map_or(Binding::NULL, Tensor::binding)).collect();
    let stream = device.stream().expect("stream");
    for step in plan.steps() {
        stream.launch(step, &bindings).expect("launch");
    }
    stream.synchronize().expect("nothing found");
    let read = |(spec, t): (&TensorSpec, &Option<Tensor>)| {
        let t = t.as_ref().filter(|_| spec.access == Access::Write)?;
        Some((spec.name, storage::decode(spec.dtype, &t.to_bytes().expect("read"))))
    };
    plan.tensors().iter().zip(&tensors).filter_map(read).collect()
}

#[test]
fn streamed_parts_of_several_rounds_are_whole() {
    // So many groups that each is one part, of 1124 vectors: a round of 1024 and one that only some threads have; of each
    // channel 281: two rounds of 128 and one that only some lanes have.
    let shape = shape(1, 3200, 1124, 800);
    let drawn = |len: usize, seed: u64| -> Vec<f64> {
        Input::Normal.values(len, seed).into_iter().map(|x| f64::from(x as f32)).collect()
    };
    let [x, dy] = [1, 2].map(|seed| drawn(3200 * 1124, seed));
    let [weight, bias] = [3, 4].map(|seed| drawn(3200, seed));
    let near = |name: &str, out: &[f64], expected: &[f64]| {
        let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
        let error =
            norm(&mut out.iter().zip(expected).map(|(a, b)| a - b)) / norm(&mut expected.iter().copied());
        assert!(error < 1e-6, "{name}: {error}");
    };
    let plan = desc(DType::F32, shape).plan_along(TARGET, Path::Streamed).expect("plan");
    let out = run(&plan, &[("x", &x), ("weight", &weight), ("bias", &bias)]);
    let y = reference::forward(shape, &x, Some(&weight), Some(&bias), false, 1e-5);
    near("y", &out["y"], &y);

    let statistics = reference::statistics(shape, &x, 1e-5);
    let plan = GroupNormBackwardDesc { bias: false, ..backward(DType::F32, shape) };
    let plan =
        GroupNormBackwardDesc { silu: false, ..plan }.plan_along(TARGET, Path::Streamed).expect("plan");
    let given: [(&str, &[f64]); 5] =
        [("x", &x), ("dy", &dy), ("mean", &statistics.mean), ("rstd", &statistics.rstd), ("weight", &weight)];
    let out = run(&plan, &given);
    let g = reference::backward(shape, &x, &dy, &statistics, Some(&weight), None, false);
    near("dx", &out["dx"], &g.dx);
    near("dweight", &out["dweight"], &g.dweight);
    near("dbias", &out["dbias"], &g.dbias);
}
