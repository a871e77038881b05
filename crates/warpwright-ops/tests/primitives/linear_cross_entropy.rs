//! Cross entropy of linear layers: memory, chunks, refusals and free functions.

use warpwright_ops::cross_entropy::{CrossEntropyOptions, Reduction, cross_entropy};
use warpwright_ops::gemm::{MatmulOptions, matmul};
use warpwright_ops::linear_cross_entropy::{
    LinearCrossEntropyDesc, LinearCrossEntropyOptions, LinearCrossEntropyOutput, linear_cross_entropy,
    linear_cross_entropy_with_gradients,
};
use warpwright_ops::{Direction, Error, Operation, PlanError};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::{Device, Error as RuntimeError, Stream, Tensor};
use warpwright_testkit::inputs::Input;
use warpwright_testkit::storage;

const TARGET: Target = Target::sm(90);
const SIDES: [usize; 3] = [13, 24, 40];

/// The layer and its input: `x`, `weight`, `bias`, `target`.
fn tensors(device: &Device, dtype: DType) -> [Tensor; 4] {
    let [rows, features, classes] = SIDES;
    let normal = |shape: &[usize], seed: u64| {
        let values = Input::Normal.values(shape.iter().product(), seed);
        Tensor::from_bytes(device, dtype, &storage::encode(dtype, &values), shape).expect("memory")
    };
    let targets: Vec<i32> = (0..rows as i32).map(|row| if row == 3 { -100 } else { row * 3 }).collect();
    let target = Tensor::from_slice(device, &targets, &[rows]).expect("memory");
    [normal(&[rows, features], 1), normal(&[classes, features], 2), normal(&[classes], 3), target]
}

fn gradients(
    stream: &Stream,
    [x, weight, bias, target]: &[Tensor; 4],
    chunk_rows: Option<usize>,
) -> LinearCrossEntropyOutput {
    let options = LinearCrossEntropyOptions { chunk_rows, ..Default::default() };
    linear_cross_entropy_with_gradients(stream, x, weight, Some(bias), target, options).expect("launch")
}

fn bytes(out: &LinearCrossEntropyOutput) -> Vec<Vec<u8>> {
    let dbias = out.dbias.as_ref().expect("a bias");
    [&out.loss, &out.dx, &out.dweight, dbias].map(|tensor| tensor.to_bytes().expect("copy")).to_vec()
}

#[test]
fn chunks_are_added_in_f32_and_in_order() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let tensors = tensors(&device, DType::BF16);
    let whole = gradients(&stream, &tensors, None);
    let chunks = gradients(&stream, &tensors, Some(4));
    assert_eq!(bytes(&chunks), bytes(&gradients(&stream, &tensors, Some(4))), "the same from run to run");
    let values = |tensor: &Tensor| storage::decode(tensor.dtype(), &tensor.to_bytes().expect("copy"));
    // Sums in f32 differ by a rounding of the result at most; those that were rounded after each chunk would differ by more.
    let pairs = [(&whole.dweight, &chunks.dweight), (&whole.loss, &chunks.loss), (&whole.dx, &chunks.dx)];
    for (whole, chunks) in pairs {
        for (whole, chunks) in values(whole).into_iter().zip(values(chunks)) {
            assert!((whole - chunks).abs() <= 0.008 * whole.abs() + 1e-6, "{whole} and {chunks}");
        }
    }
    let differ = values(&whole.dweight).iter().zip(values(&chunks.dweight)).filter(|(a, b)| *a != b).count();
    assert!(differ < 10, "{differ} elements");
}

#[test]
fn losses_are_those_of_a_product_and_a_cross_entropy() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let [x, weight, bias, target] = tensors(&device, DType::F32);
    let product = MatmulOptions { transpose_b: true, bias: Some(&bias), ..Default::default() };
    let logits = matmul(&stream, &x, &weight, product).expect("launch");
    let reduction = Reduction::None;
    let apart =
        cross_entropy(&stream, &logits, &target, CrossEntropyOptions { reduction, ..Default::default() });
    let apart = apart.expect("launch").loss.to_vec::<f32>().expect("copy");
    let options = LinearCrossEntropyOptions { reduction, chunk_rows: Some(5), ..Default::default() };
    let fused = linear_cross_entropy(&stream, &x, &weight, Some(&bias), &target, options).expect("launch");
    assert_eq!(fused.shape(), [SIDES[0]]);
    for (fused, apart) in fused.to_vec::<f32>().expect("copy").into_iter().zip(apart) {
        assert!((fused - apart).abs() <= 1e-5 * apart.abs(), "{fused} and {apart}");
    }
}

#[test]
fn logits_of_all_rows_are_never_in_memory() {
    let [rows, features, classes] = [8192, 4096, 128_256];
    let desc = LinearCrossEntropyDesc::new(DType::BF16, DType::I64, [rows, features, classes]);
    let logits = (rows * classes * 2) as u64;
    let plan = desc.plan(TARGET).expect("plan");
    assert_eq!(plan.direction(), Direction::Forward);
    assert!(plan.workspace_bytes() < logits / 7, "{}", plan.workspace_bytes());
    let plan = LinearCrossEntropyDesc { gradients: true, ..desc }.plan(TARGET).expect("plan");
    assert_eq!(plan.direction(), Direction::Backward);
    let sums = (classes * features * 4) as u64;
    assert!(plan.workspace_bytes() < logits / 3 + sums, "{}", plan.workspace_bytes());
}

#[test]
fn what_has_no_plan() {
    let good = LinearCrossEntropyDesc::new(DType::F32, DType::I64, [4, 3, 2]);
    let refused = |desc: LinearCrossEntropyDesc| match desc.plan(TARGET) {
        Err(PlanError::Parameter { op: "linear_cross_entropy", parameter, .. }) => parameter,
        other => panic!("{other:?}"),
    };
    let gradients = LinearCrossEntropyDesc { gradients: true, ..good.clone() };
    assert_eq!(refused(LinearCrossEntropyDesc { reduction: Reduction::None, ..gradients }), "reduction");
    assert_eq!(refused(LinearCrossEntropyDesc { chunk_rows: Some(0), ..good.clone() }), "chunk_rows");
    assert_eq!(refused(LinearCrossEntropyDesc { classes: 0, ..good.clone() }), "classes");
    let smoothing = LinearCrossEntropyDesc { label_smoothing: 1.5.into(), ..good.clone() };
    assert_eq!(refused(smoothing), "label_smoothing");
    assert_eq!(refused(LinearCrossEntropyDesc { rows: usize::MAX, ..good.clone() }), "[rows, features]");
    let e = LinearCrossEntropyDesc { dtype: DType::I32, ..good.clone() }.plan(TARGET).expect_err("integers");
    assert!(matches!(e, PlanError::DType { op: "linear_cross_entropy", tensor: "x", .. }), "{e}");
    let e = LinearCrossEntropyDesc { target: DType::F32, ..good }.plan(TARGET).expect_err("no classes");
    assert!(matches!(e, PlanError::DType { op: "linear_cross_entropy", tensor: "target", .. }), "{e}");
}

#[test]
fn functions_check_their_tensors() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let [x, weight, bias, target] = tensors(&device, DType::F32);
    let options = LinearCrossEntropyOptions::default();
    let e = linear_cross_entropy(&stream, &x, &bias, None, &target, options).expect_err("a vector");
    assert!(matches!(e, Error::Plan(PlanError::Parameter { parameter: "weight", .. })), "{e}");
    let square = Tensor::zeros(&device, DType::F32, &[40, 40]).expect("memory");
    let e = linear_cross_entropy(&stream, &x, &square, None, &target, options).expect_err("features");
    assert!(matches!(e, Error::Plan(PlanError::Parameter { parameter: "weight", .. })), "{e}");
    let e = linear_cross_entropy(&stream, &x, &weight, Some(&x), &target, options).expect_err("a matrix");
    assert!(matches!(e, Error::Runtime(RuntimeError::Elements { argument: "bias", .. })), "{e}");
    let e = linear_cross_entropy(&stream, &x, &weight, None, &bias, options).expect_err("no targets");
    assert!(matches!(e, Error::Plan(PlanError::DType { tensor: "target", .. })), "{e}");
    let none = Tensor::zeros(&device, DType::F32, &[0, 24]).expect("memory");
    let no_targets = Tensor::zeros(&device, DType::I64, &[0]).expect("memory");
    let out = linear_cross_entropy_with_gradients(&stream, &none, &weight, Some(&bias), &no_targets, options);
    let out = out.expect("launch");
    assert!(out.loss.to_vec::<f32>().expect("copy")[0].is_nan(), "a mean of nothing");
    assert!(out.dweight.to_vec::<f32>().expect("copy").iter().all(|dw| *dw == 0.0));
}
