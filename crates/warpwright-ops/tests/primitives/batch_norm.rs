//! Batch normalisation: gradients of the reference, the free functions, and what plans and launches refuse.

use std::collections::BTreeMap;

use warpwright_ops::batch_norm::{
    BatchNorm, BatchNormArgs, BatchNormBackwardDesc, BatchNormDesc, BatchNormInferenceDesc, BatchNormOptions,
    Layout, Momentum, Real, RunningStatistics, batch_norm, batch_norm_backward, batch_norm_inference,
    batch_norm_inference_backward,
    reference::{self, Channels},
};
use warpwright_ops::plan::{Access, TensorSpec};
use warpwright_ops::{Operation, Plan, PlanError};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::{Binding, Device, Error as RuntimeError, Tensor};
use warpwright_testkit::inputs::Input;
use warpwright_testkit::storage;

const TARGET: Target = Target::sm(90);

/// The bound of the design: 1e-5 relative.
const BOUND: f64 = 1e-5;

/// A loss of everything: the sum of `y` times fixed weights.
struct Problem {
    norm: BatchNorm,
    training: bool,
    running: [Vec<f64>; 2],
    dy: Vec<f64>,
}

impl Problem {
    fn output(&self, x: &[f64], weight: &[f64], bias: &[f64], residual: &[f64]) -> Vec<f64> {
        let [mean, var] = if self.training {
            let s = reference::statistics(&self.norm, x);
            [s.mean, s.var]
        } else {
            self.running.clone()
        };
        let rstd = reference::rstd(&self.norm, &var);
        let channels =
            Channels { mean: &mean, rest: None, rstd: &rstd, weight: Some(weight), bias: Some(bias) };
        reference::forward(&self.norm, x, channels, Some(residual)).0
    }

    fn loss(&self, x: &[f64], weight: &[f64], bias: &[f64], residual: &[f64]) -> f64 {
        self.output(x, weight, bias, residual).iter().zip(&self.dy).map(|(y, dy)| y * dy).sum()
    }
}

/// The largest distance of a gradient from central differences, in units of the larger of 1 and the gradient.
fn distance(at: &[f64], gradient: &[f64], loss: impl Fn(&[f64]) -> f64) -> f64 {
    let mut worst: f64 = 0.0;
    for (i, exact) in gradient.iter().enumerate() {
        let moved = |by: f64| {
            let mut moved = at.to_vec();
            moved[i] += by;
            loss(&moved)
        };
        let h = 1e-4;
        let slope = (8.0 * (moved(h) - moved(-h)) - (moved(2.0 * h) - moved(-2.0 * h))) / (12.0 * h);
        worst = worst.max((slope - exact).abs() / exact.abs().max(1.0));
    }
    worst
}

#[test]
fn gradients_agree_with_central_differences() {
    for (layout, training, relu, eps) in [
        (Layout::ChannelsFirst, true, false, 1e-5),
        (Layout::ChannelsLast, true, true, 0.0),
        (Layout::ChannelsFirst, false, true, 0.3),
        (Layout::ChannelsLast, false, false, 1e-5),
    ] {
        let norm = BatchNorm { relu, eps: Real::new(eps), ..BatchNorm::new(DType::F64, layout, 3, 2, 4) };
        let values = |seed| Input::Normal.values(24, seed);
        let problem = Problem { norm, training, running: [vec![0.2, -0.4], vec![0.7, 2.0]], dy: values(3) };
        let (x, residual) = (values(1), values(2));
        let (weight, bias) = (vec![1.5, -0.5], vec![0.25, 0.1]);
        let y = problem.output(&x, &weight, &bias, &residual);
        assert!(y.iter().all(|y| *y == 0.0 || y.abs() > 1e-3), "off the kink");
        let [mean, var] = if training {
            let s = reference::statistics(&norm, &x);
            [s.mean, s.var]
        } else {
            problem.running.clone()
        };
        let rstd = reference::rstd(&norm, &var);
        let channels =
            Channels { mean: &mean, rest: None, rstd: &rstd, weight: Some(&weight), bias: Some(&bias) };
        let g = reference::backward(&norm, &x, &y, &problem.dy, channels, training);
        let errors = [
            distance(&x, &g.dx, |x| problem.loss(x, &weight, &bias, &residual)),
            distance(&weight, &g.dweight, |w| problem.loss(&x, w, &bias, &residual)),
            distance(&bias, &g.dbias, |b| problem.loss(&x, &weight, b, &residual)),
            distance(&residual, &g.dresidual, |r| problem.loss(&x, &weight, &bias, r)),
        ];
        assert!(errors.iter().all(|e| *e < BOUND), "{layout:?} {training} {relu}: {errors:?}");
    }
}

fn norm(batch: usize, channels: usize, spatial: usize) -> BatchNorm {
    BatchNorm::new(DType::F32, Layout::ChannelsFirst, batch, channels, spatial)
}

fn desc(norm: BatchNorm) -> BatchNormDesc {
    BatchNormDesc { norm, residual: false, momentum: None }
}

#[test]
fn descriptors_without_a_plan() {
    let e = desc(norm(1, 3, 1)).plan(TARGET).expect_err("no variance");
    assert!(matches!(e, PlanError::Parameter { parameter: "batch * spatial", .. }), "{e}");
    let e = BatchNormBackwardDesc { norm: norm(1, 3, 1), dresidual: false }.plan(TARGET).expect_err("either");
    assert!(matches!(e, PlanError::Parameter { parameter: "batch * spatial", .. }), "{e}");
    let one = BatchNormInferenceDesc { norm: norm(1, 3, 1), residual: false };
    assert!(one.plan(TARGET).is_ok(), "inference needs no variance");
    let e = desc(BatchNorm { dtype: DType::I32, ..norm(4, 3, 1) }).plan(TARGET).expect_err("no integers");
    assert!(matches!(e, PlanError::DType { tensor: "x", got: DType::I32, .. }), "{e}");
    let e = desc(BatchNorm { parameter_dtype: DType::BF16, ..norm(4, 3, 1) }).plan(TARGET);
    let e = e.expect_err("parameters narrower than the tensor");
    assert!(matches!(e, PlanError::DType { tensor: "weight", got: DType::BF16, .. }), "{e}");
    for eps in [-1e-5, f64::NAN, f64::INFINITY] {
        let e = desc(BatchNorm { eps: Real::new(eps), ..norm(4, 3, 1) }).plan(TARGET).expect_err("eps");
        assert!(matches!(e, PlanError::Parameter { parameter: "eps", .. }), "{e}");
    }
    let momentum = Some(Momentum::Cumulative { batches: 0 });
    let e = BatchNormDesc { momentum, ..desc(norm(4, 3, 1)) }.plan(TARGET).expect_err("no batch");
    assert!(matches!(e, PlanError::Parameter { parameter: "momentum", .. }), "{e}");
    let e =
        BatchNormBackwardDesc { norm: norm(4, 3, 1), dresidual: true }.plan(TARGET).expect_err("it is dy");
    assert!(matches!(e, PlanError::Parameter { parameter: "dresidual", .. }), "{e}");
    let e = desc(norm(usize::MAX, 2, 3)).plan(TARGET).expect_err("no memory is that large");
    assert!(matches!(e, PlanError::Parameter { parameter: "batch * channels * spatial", .. }), "{e}");
}

#[test]
fn long_tensors_have_plans() {
    for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] {
        for (n, c, s) in [(1 << 20, 64, 112 * 112), (1, 1, 1 << 36), (2, 1 << 20, 1 << 12)] {
            let norm = BatchNorm::new(DType::BF16, layout, n, c, s);
            let plan = desc(norm).plan(TARGET).expect("plan");
            assert!(plan.variants().iter().any(|v| v.steps.len() == 3), "{layout:?} {n} {c} {s}");
        }
    }
}

fn tensor(device: &Device, shape: &[usize], seed: u64) -> Tensor {
    let values: Vec<f32> =
        Input::Normal.values(shape.iter().product(), seed).into_iter().map(|v| v as f32).collect();
    Tensor::from_slice(device, &values, shape).expect("memory")
}

fn values(t: &Tensor) -> Vec<f32> {
    t.to_vec::<f32>().expect("copy")
}

#[test]
fn launches_check_their_tensors() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let plan = desc(norm(4, 3, 2)).plan(device.target()).expect("plan");
    let x = tensor(&device, &[4, 3, 2], 1);
    let (w, b) = (tensor(&device, &[3], 2), tensor(&device, &[3], 3));
    let launch = |x: &Tensor, weight: Option<&Tensor>, y: &mut Tensor| {
        let (mut mean, mut rstd) = (tensor(&device, &[3], 4), tensor(&device, &[3], 5));
        let mut workspace = plan.workspace(&stream).expect("memory");
        let args = BatchNormArgs {
            x: x.as_ref(),
            weight: weight.map(Tensor::as_ref),
            bias: Some(b.as_ref()),
            residual: None,
            y: y.as_mut(),
            mean: mean.as_mut(),
            rstd: rstd.as_mut(),
            running_mean: None,
            running_var: None,
            workspace: workspace.as_mut().map(Tensor::as_mut),
        };
        plan.launch(&stream, args)
    };
    let mut y = tensor(&device, &[4, 3, 2], 6);
    launch(&x, Some(&w), &mut y).expect("right arguments");
    let e = launch(&x, None, &mut y).expect_err("no weight");
    assert!(matches!(e, RuntimeError::Presence { argument: "weight", given: false, .. }), "{e}");
    let e = launch(&x, Some(&x), &mut y).expect_err("length");
    assert!(matches!(e, RuntimeError::Elements { argument: "weight", got: 24, .. }), "{e}");
    let e = launch(&tensor(&device, &[4, 3, 3], 1), Some(&w), &mut y).expect_err("length");
    assert!(matches!(e, RuntimeError::Elements { argument: "x", .. }), "{e}");
    let e = launch(&x, Some(&w), &mut tensor(&device, &[24], 1)).expect_err("shape");
    assert!(matches!(e, RuntimeError::Shape { argument: "y", .. }), "{e}");
    let halves = Tensor::zeros(&device, DType::F16, &[4, 3, 2]).expect("memory");
    let e = launch(&halves, Some(&w), &mut y).expect_err("dtype");
    assert!(matches!(e, RuntimeError::DType { argument: "x", got: DType::F16, .. }), "{e}");
}

#[test]
fn free_functions_in_both_layouts() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    // Channels 0 and 1 of [2, 2, 2]: 1, 3, 5, 7 and 2, 2, 2, 2.
    let first = Tensor::from_slice(&device, &[1.0f32, 3.0, 2.0, 2.0, 5.0, 7.0, 2.0, 2.0], &[2, 2, 2]);
    let last = Tensor::from_slice(&device, &[1.0f32, 2.0, 3.0, 2.0, 5.0, 2.0, 7.0, 2.0], &[2, 2, 2]);
    let bias = Tensor::from_slice(&device, &[0.0f32, 9.0], &[2]).expect("memory");
    for (layout, x) in [(Layout::ChannelsFirst, first), (Layout::ChannelsLast, last)] {
        let x = x.expect("memory");
        let options = BatchNormOptions { bias: Some(&bias), layout, eps: 0.5, ..Default::default() };
        let mut mean = Tensor::from_slice(&device, &[0.0f32, 0.0], &[2]).expect("memory");
        let mut var = Tensor::from_slice(&device, &[1.0f32, 1.0], &[2]).expect("memory");
        let momentum = Momentum::Exponential(Real::new(0.5));
        let running = RunningStatistics { mean: &mut mean, var: &mut var, momentum };
        let out = batch_norm(&stream, &x, Some(running), options).expect("launch");
        assert_eq!(values(out.mean.as_ref().expect("saved")), [4.0, 2.0]);
        assert_eq!(values(&mean), [2.0, 1.0]);
        let near = |a: f32, b: f64| (f64::from(a) - b).abs() < 1e-6;
        assert!(near(values(&var)[0], 0.5 + 10.0 / 3.0) && values(&var)[1] == 0.5);
        let y = values(&out.y);
        assert!(near(y[0], -3.0 / 5.5f64.sqrt()), "{y:?}");
        let constant = if layout == Layout::ChannelsFirst { y[2] } else { y[1] };
        assert_eq!(constant, 9.0);
        let dy = tensor(&device, &[2, 2, 2], 5);
        let g = batch_norm_backward(&stream, &x, &out, &dy, options).expect("launch");
        assert!(g.dweight.is_none() && g.dresidual.is_none());
        let sum: f32 = values(&dy).iter().sum();
        let dbias: f32 = values(&g.dbias.expect("there is a bias")).iter().sum();
        assert!((sum - dbias).abs() < 1e-5);
        assert!(values(&g.dx).iter().sum::<f32>().abs() < 1e-5, "the mean has no gradient");

        let out = batch_norm_inference(&stream, &x, &mean, &var, options).expect("launch");
        assert!(near(values(&out.y)[0], -1.0 / (1.0 + 10.0 / 3.0f64).sqrt()));
        let e = batch_norm_inference_backward(&stream, &x, &mean, &var, &out, &dy, options);
        let dx = values(&e.expect("launch").dx);
        assert!(near(dx[0], f64::from(values(&dy)[0]) / (1.0 + 10.0 / 3.0f64).sqrt()));
    }
}

#[test]
fn empty_batches() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let (x, w) = (Tensor::zeros(&device, DType::F32, &[0, 3, 4]).expect("memory"), tensor(&device, &[3], 1));
    let options = BatchNormOptions { weight: Some(&w), ..Default::default() };
    let mut running = (tensor(&device, &[3], 2), tensor(&device, &[3], 3));
    let before = values(&running.0);
    let momentum = Momentum::Exponential(Real::new(0.5));
    let statistics = RunningStatistics { mean: &mut running.0, var: &mut running.1, momentum };
    let out = batch_norm(&stream, &x, Some(statistics), options).expect("launch");
    assert_eq!(out.y.shape(), [0, 3, 4]);
    assert_eq!(values(&running.0), before, "nothing was seen");
    let (mean, rstd) = (out.mean.as_ref().expect("saved"), out.rstd.as_ref().expect("saved"));
    assert_eq!(values(mean), [0.0; 3]);
    assert!(values(rstd).iter().all(|rstd| rstd.is_nan()) && rstd.len() == 3);
    let g = batch_norm_backward(&stream, &x, &out, &x, options).expect("launch");
    assert_eq!(values(&g.dweight.expect("there is a weight")), [0.0; 3]);
}

/// Runs the one cooperative step of a plan with channels last by a grid of two blocks instead of many: each has more rows
/// than the plan lets it keep in shared memory. Inputs are `given`, by name; the result is the outputs by name.
fn by_two_blocks<O: Operation>(plan: &Plan<O>, given: &[(&str, &[f64])]) -> BTreeMap<&'static str, Vec<f64>> {
    let device = Device::emulator();
    let [step] = plan.steps() else { panic!("one launch") };
    assert!(step.is_cooperative() && step.grid()[0] > 4, "{step:?}");
    let tensors: Vec<_> = plan.tensors().iter().filter(|spec| spec.present).collect();
    let values = |spec: &TensorSpec| match given.iter().find(|(name, _)| *name == spec.name) {
        Some((_, values)) => values.to_vec(),
        None => vec![0.0; spec.len],
    };
    let made = |spec: &&TensorSpec| {
        let bytes = storage::encode(spec.dtype, &values(spec));
        Tensor::from_bytes(&device, spec.dtype, &bytes, &[spec.len]).expect("memory")
    };
    let made: Vec<Tensor> = tensors.iter().map(made).collect();
    let mut left = made.iter();
    let binding = |spec: &TensorSpec| match spec.present {
        true => left.next().map_or(Binding::NULL, Tensor::binding),
        false => Binding::NULL,
    };
    let bindings: Vec<Binding> = plan.tensors().iter().map(binding).collect();
    let stream = device.stream().expect("stream");
    stream.launch(&step.clone().with_grid([2, 1, 1]), &bindings).expect("launch");
    stream.synchronize().expect("nothing found");
    let outputs = tensors.iter().zip(&made).filter(|(spec, _)| spec.access == Access::Write);
    outputs.map(|(spec, t)| (spec.name, storage::decode(spec.dtype, &t.to_bytes().expect("read")))).collect()
}

fn error(out: &[f64], expected: &[f64]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    norm(&mut out.iter().zip(expected).map(|(a, b)| a - b)) / norm(&mut expected.iter().copied())
}

#[test]
fn rows_beyond_the_shared_memory_are_read_again() {
    // Two vectors a row, so that 256 rows are taken at once; the blocks have 2502 and 2501.
    let (rows, channels) = (5003, 8);
    let norm = BatchNorm {
        weight: true,
        bias: true,
        ..BatchNorm::new(DType::F32, Layout::ChannelsLast, 1, channels, rows)
    };
    let drawn = |len: usize, seed: u64| -> Vec<f64> {
        Input::Normal.values(len, seed).into_iter().map(|x| f64::from(x as f32)).collect()
    };
    let [x, dy, residual] = [1, 2, 3].map(|seed| drawn(rows * channels, seed));
    // A mean that is no mere rest of the sum.
    let x: Vec<f64> = x.into_iter().map(|x| f64::from(x as f32 + 1.0)).collect();
    let (weight, bias) = (drawn(channels, 4), drawn(channels, 5));
    let s = reference::statistics(&norm, &x);
    let rstd = reference::rstd(&norm, &s.var);
    let of = Channels { mean: &s.mean, rest: None, rstd: &rstd, weight: Some(&weight), bias: Some(&bias) };

    let plan = BatchNormDesc { norm, residual: true, momentum: None }.plan(TARGET).expect("plan");
    let out =
        by_two_blocks(&plan, &[("x", &x), ("weight", &weight), ("bias", &bias), ("residual", &residual)]);
    let y = reference::forward(&norm, &x, of, Some(&residual)).0;
    for (name, expected) in [("y", &y), ("mean", &s.mean), ("rstd", &rstd)] {
        assert!(error(&out[name], expected) < 1e-6, "{name}: {}", error(&out[name], expected));
    }

    let plan = BatchNormBackwardDesc { norm, dresidual: false }.plan(TARGET).expect("plan");
    let out = by_two_blocks(
        &plan,
        &[("x", &x), ("dy", &dy), ("mean", &s.mean), ("rstd", &rstd), ("weight", &weight)],
    );
    let g = reference::backward(&norm, &x, &y, &dy, of, true);
    for (name, expected) in [("dx", &g.dx), ("dweight", &g.dweight), ("dbias", &g.dbias)] {
        assert!(error(&out[name], expected) < 1e-6, "{name}: {}", error(&out[name], expected));
    }
}
