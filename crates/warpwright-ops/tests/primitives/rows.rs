//! Refusals of softmax and cross entropy, and effects that they must not have.

use warpwright_ops::cross_entropy::{
    CrossEntropyBackwardDesc, CrossEntropyDesc, CrossEntropyOptions, Reduction, check_targets, cross_entropy,
    cross_entropy_backward,
};
use warpwright_ops::plan::Real;
use warpwright_ops::softmax::{
    MaskKind, MaskedSoftmaxDesc, Softmax, SoftmaxArgs, SoftmaxDesc, log_softmax, log_softmax_backward,
    softmax, softmax_backward, tuning,
};
use warpwright_ops::{Error, Operation, PlanError};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::{Device, Error as RuntimeError, Stream, Tensor};

const TARGET: Target = Target::sm(90);

fn desc(outer: usize, n: usize, inner: usize) -> SoftmaxDesc {
    SoftmaxDesc { function: Softmax::Plain, dtype: DType::F32, outer, n, inner, scale: Real::new(1.0) }
}

fn device() -> (Device, Stream) {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    (device, stream)
}

fn floats(device: &Device, values: &[f32], shape: &[usize]) -> Tensor {
    Tensor::from_slice(device, values, shape).expect("memory")
}

#[test]
fn empty_tensors_launch_nothing() {
    for [outer, n, inner] in [[0, 4, 1], [4, 0, 1], [4, 4, 0], [0, 0, 0]] {
        assert!(desc(outer, n, inner).plan(TARGET).expect("plan").steps().is_empty());
    }
    let (device, stream) = device();
    let y = softmax(&stream, &floats(&device, &[], &[3, 0, 2]), 1).expect("launch");
    assert_eq!(y.shape(), [3, 0, 2]);
}

#[test]
fn long_tensors_have_grids_or_say_so() {
    let plan = desc(3_000_000_000, 4, 1).plan(TARGET).expect("more than 2^31 elements");
    assert_eq!(plan.steps()[0].grid(), [187_500_000, 1, 1]);
    let plan = desc(2, 1 << 33, 1).plan(TARGET).expect("rows of more than 2^31 elements");
    assert_eq!(plan.steps()[0].grid(), [2, 1, 1]);
    let e = desc(1 << 40, 8192, 1).plan(TARGET).expect_err("no grid is that large");
    assert!(matches!(e, PlanError::TooLarge { op: "softmax", .. }), "{e}");
    let e = desc(1 << 40, 1 << 40, 1).plan(TARGET).expect_err("no memory is that large");
    assert!(matches!(e, PlanError::Parameter { op: "softmax", .. }), "{e}");
}

#[test]
fn descriptors_without_a_plan() {
    let e = SoftmaxDesc { dtype: DType::I32, ..desc(1, 4, 1) }.plan(TARGET).expect_err("no integers");
    assert!(matches!(e, PlanError::DType { op: "softmax", tensor: "x", got: DType::I32, .. }), "{e}");
    for scale in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let e = SoftmaxDesc { scale: Real::new(scale), ..desc(1, 4, 1) }.plan(TARGET).expect_err("scale");
        assert!(matches!(e, PlanError::Parameter { parameter: "scale", .. }), "{e}");
    }
    let masked = |repeat, period| {
        let (softmax, mask) = (desc(12, 4, 1), MaskKind::Boolean);
        MaskedSoftmaxDesc { softmax, mask, repeat, period }.plan(TARGET)
    };
    assert_eq!(masked(2, 3).expect("plan").tensors()[1].len, 24);
    for (repeat, period) in [(0, 1), (5, 1), (2, 7), (usize::MAX, 2)] {
        let e = masked(repeat, period).expect_err("rows of the mask");
        assert!(matches!(e, PlanError::Parameter { parameter: "repeat x period", .. }), "{e}");
    }
    let rows = tuning::configs(DType::F32, warpwright_ops::Direction::Forward, TARGET, 4, 1)[0];
    let e = desc(2, 4096, 1).plan_with(TARGET, rows).expect_err("too long for that layout");
    assert!(matches!(e, PlanError::Parameter { parameter: "config", .. }), "{e}");
}

#[test]
fn launches_check_their_tensors() {
    let (device, stream) = device();
    let plan = desc(2, 3, 1).plan(device.target()).expect("plan");
    let x = floats(&device, &[0.0; 6], &[2, 3]);
    let e = plan
        .launch(&stream, SoftmaxArgs { x: Some(x.as_ref()), y: floats(&device, &[0.0; 6], &[6]).as_mut() })
        .expect_err("shape");
    assert!(matches!(e, RuntimeError::Shape { op: "softmax", argument: "y", .. }), "{e}");
    let e = softmax(&stream, &x, 2).expect_err("no such dimension");
    assert!(matches!(e, Error::Plan(PlanError::Parameter { parameter: "dim", .. })), "{e}");
    let e = softmax_backward(&stream, &x, &floats(&device, &[0.0; 6], &[3, 2]), 1).expect_err("shape of dy");
    assert!(matches!(e, Error::Runtime(RuntimeError::Shape { argument: "dy", .. })), "{e}");
}

#[test]
fn free_functions() {
    let (device, stream) = device();
    let values = |t: &Tensor| t.to_vec::<f32>().expect("copy");
    let x = floats(&device, &[0.0, 3f32.ln(), 1.0, 1.0], &[2, 2]);
    let y = softmax(&stream, &x, 1).expect("launch");
    for (got, want) in values(&y).iter().zip([0.25f32, 0.75, 0.5, 0.5]) {
        assert!((got - want).abs() < 1e-6, "{got} {want}");
    }
    let logs = log_softmax(&stream, &x, 0).expect("launch");
    assert!((values(&logs)[0] + (1.0 + 1f32.exp()).ln()).abs() < 1e-6);
    let dy = floats(&device, &[1.0, 0.0, 0.0, 2.0], &[2, 2]);
    let dx = values(&softmax_backward(&stream, &y, &dy, 1).expect("launch"));
    assert!((dx[0] - 0.1875).abs() < 1e-6 && (dx[3] - 0.5).abs() < 1e-6, "{dx:?}");
    let dx = values(&log_softmax_backward(&stream, &logs, &dy, 0).expect("launch"));
    assert!((dx.iter().sum::<f32>()).abs() < 1e-6, "gradients of a logarithm sum to 0: {dx:?}");
}

#[test]
fn cross_entropy_of_two_classes() {
    let (device, stream) = device();
    let logits = floats(&device, &[0.0, 0.0, 5.0, 5.0, 1.0, 2.0], &[3, 2]);
    let target = Tensor::from_slice(&device, &[1i64, -100, 0], &[3]).expect("memory");
    let options = CrossEntropyOptions::default();
    let saved = cross_entropy(&stream, &logits, &target, options).expect("launch");
    let want = (2f32.ln() + (1.0 + 1f32.exp()).ln()) / 2.0;
    assert!((saved.loss.to_vec::<f32>().expect("copy")[0] - want).abs() < 1e-6);
    assert_eq!(saved.count.as_ref().expect("of a mean").to_vec::<f32>().expect("copy"), [2.0]);
    let dloss = floats(&device, &[1.0], &[]);
    let dx = cross_entropy_backward(&stream, &logits, &target, &saved, &dloss, options).expect("launch");
    let dx = dx.to_vec::<f32>().expect("copy");
    assert!((dx[0] - 0.25).abs() < 1e-6 && (dx[1] + 0.25).abs() < 1e-6 && dx[2..4] == [0.0, 0.0], "{dx:?}");
}

#[test]
fn the_gradient_of_a_likely_class_keeps_its_digits() {
    let (device, stream) = device();
    let options = CrossEntropyOptions { reduction: Reduction::None, ..Default::default() };
    let (rows, classes) = (60, 12);
    // The first class is ahead by up to 15, far from zero.
    let logit = |i: usize| {
        let (row, class) = (i / classes, i % classes);
        let ahead = if class == 0 { row as f32 / 4.0 } else { 0.0 };
        25.0 + ahead + 0.37 * ((class * 7 + row * 5) % 11) as f32 / 11.0
    };
    let xs: Vec<f32> = (0..rows * classes).map(logit).collect();
    let logits = floats(&device, &xs, &[rows, classes]);
    let target = Tensor::from_slice(&device, &vec![0i64; rows], &[rows]).expect("memory");
    let saved = cross_entropy(&stream, &logits, &target, options).expect("launch");
    let dloss = floats(&device, &vec![1.0; rows], &[rows]);
    let dx = cross_entropy_backward(&stream, &logits, &target, &saved, &dloss, options).expect("launch");
    let dx = dx.to_vec::<f32>().expect("copy");
    let (mut ours, mut logarithms) = (0.0, 0.0);
    for (x, dx) in xs.chunks(classes).zip(dx.chunks(classes)) {
        let others: f64 = x[1..].iter().map(|v| f64::from(v - x[0]).exp()).sum();
        let exact = -others / (1.0 + others);
        ours += (f64::from(dx[0]) / exact - 1.0).powi(2);
        // From the logarithm of the probability, which is what PyTorch saves.
        let top = x.iter().copied().fold(f32::MIN, f32::max);
        let log = (x[0] - top) - x.iter().map(|v| (v - top).exp()).sum::<f32>().ln();
        logarithms += (f64::from(log.exp() - 1.0) / exact - 1.0).powi(2);
    }
    let [ours, logarithms] = [ours, logarithms].map(|sum: f64| (sum / rows as f64).sqrt());
    assert!(ours <= 1.5 * logarithms, "{ours:e}, by logarithms {logarithms:e}");
}

#[test]
fn targets_are_checked_on_the_host() {
    let refused = |targets: &[i64]| match check_targets(targets, 5, -100) {
        Err(PlanError::Parameter { op: "cross_entropy", parameter: "target", got, .. }) => got,
        other => panic!("{other:?}"),
    };
    assert!(check_targets(&[0, 4, -100], 5, -100).is_ok() && check_targets(&[7], 5, 7).is_ok());
    assert_eq!(refused(&[0, 5]), "5 at 1");
    assert_eq!(refused(&[-1, 5]), "-1 at 0");
    assert_eq!(refused(&[i64::MAX]), format!("{} at 0", i64::MAX));
}

#[test]
fn cross_entropies_without_a_plan() {
    let good = CrossEntropyDesc::new(DType::BF16, DType::I64, [4, 10]);
    assert_eq!(good.plan(TARGET).expect("plan").steps().len(), 2);
    let e = CrossEntropyDesc { dtype: DType::U8, ..good.clone() }.plan(TARGET).expect_err("logits");
    assert!(matches!(e, PlanError::DType { tensor: "logits", .. }), "{e}");
    let e = CrossEntropyDesc { target: DType::F32, ..good.clone() }.plan(TARGET).expect_err("target");
    assert!(matches!(e, PlanError::DType { tensor: "target", .. }), "{e}");
    for (dtype, loss) in [(DType::BF16, DType::F16), (DType::F32, DType::F64), (DType::F64, DType::F32)] {
        let e = CrossEntropyDesc { dtype, loss, ..good.clone() }.plan(TARGET).expect_err("loss");
        assert!(matches!(e, PlanError::DType { tensor: "loss", .. }), "{e}");
    }
    for smoothing in [-0.1, 1.1, f64::NAN] {
        let bad = CrossEntropyDesc { label_smoothing: Real::new(smoothing), ..good.clone() };
        let e = CrossEntropyBackwardDesc { forward: bad }.plan(TARGET).expect_err("smoothing");
        assert!(matches!(e, PlanError::Parameter { parameter: "label_smoothing", .. }), "{e}");
    }
    let e = CrossEntropyDesc { classes: 0, ..good.clone() }.plan(TARGET).expect_err("no classes");
    assert!(matches!(e, PlanError::Parameter { parameter: "classes", .. }), "{e}");
    let e = CrossEntropyDesc { row_stride: 9, ..good.clone() }.plan(TARGET).expect_err("rows overlap");
    assert!(matches!(e, PlanError::Parameter { parameter: "row_stride", .. }), "{e}");
    let far = CrossEntropyDesc { row_stride: usize::MAX / 4, ..good.clone() };
    let e = far.plan(TARGET).expect_err("no such tensor");
    assert!(matches!(e, PlanError::Parameter { parameter: "[rows, classes]", .. }), "{e}");
    let (device, stream) = device();
    let target = Tensor::from_slice(&device, &[1i64, 0], &[2]).expect("memory");
    let e =
        cross_entropy(&stream, &floats(&device, &[0.0; 3], &[3]), &target, CrossEntropyOptions::default());
    assert!(matches!(e, Err(Error::Plan(PlanError::Parameter { parameter: "logits", .. }))));
    let logits = floats(&device, &[0.0; 6], &[3, 2]);
    let e = cross_entropy(&stream, &logits, &target, CrossEntropyOptions::default());
    assert!(matches!(e, Err(Error::Runtime(RuntimeError::Elements { argument: "target", .. }))));
}
