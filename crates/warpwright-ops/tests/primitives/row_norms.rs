//! Refusals of plans and launches of the norms of rows and across channels, and the free functions.

use warpwright_ops::layer_norm::{
    MAX_LEN, RowNorm, RowNormArgs, RowNormBackwardDesc, RowNormDesc, RowNormOptions, layer_norm,
    layer_norm_backward, rms_norm, rms_norm_backward, row_norm, row_norm_backward,
};
use warpwright_ops::local_response_norm::{
    Coefficients, LocalResponseNormBackwardDesc, LocalResponseNormDesc, local_response_norm,
    local_response_norm_backward,
};
use warpwright_ops::plan::Real;
use warpwright_ops::{Error, Operation, PlanError};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::{Device, Error as RuntimeError, Tensor};

const TARGET: Target = Target::sm(90);

fn desc(rows: usize, len: usize) -> RowNormDesc {
    RowNormDesc {
        norm: RowNorm::Layer,
        dtype: DType::F32,
        rows,
        len,
        eps: Real::new(1e-5),
        weight: true,
        bias: false,
        residual: false,
        statistics: false,
    }
}

fn floats(device: &Device, values: &[f32], shape: &[usize]) -> Tensor {
    Tensor::from_slice(device, values, shape).expect("memory")
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.to_vec::<f32>().expect("copy")
}

#[test]
fn the_number_of_rows_does_not_change_the_kernel() {
    let text = |rows| desc(rows, 512).plan(TARGET).expect("plan").steps()[0].kernel().text().as_ptr();
    assert_eq!(text(1), text(50_000_000), "one recorded kernel serves every number of rows");
    let long = desc(6_000_000, 1000).plan(TARGET).expect("beyond 2^31 elements");
    assert_eq!(long.steps()[0].grid(), [6_000_000, 1, 1]);
}

#[test]
fn descriptors_without_a_plan() {
    let parameter = |e: PlanError, name: &str| {
        assert!(matches!(&e, PlanError::Parameter { parameter, .. } if *parameter == name), "{e}");
    };
    parameter(desc(2, 0).plan(TARGET).expect_err("no elements"), "len");
    parameter(desc(2, MAX_LEN + 1).plan(TARGET).expect_err("too long"), "len");
    parameter(desc(usize::MAX / 2, 8).plan(TARGET).expect_err("too many"), "rows");
    for eps in [-1.0, f64::NAN, f64::INFINITY] {
        let desc = RowNormDesc { eps: Real::new(eps), ..desc(2, 8) };
        parameter(desc.plan(TARGET).expect_err("eps"), "eps");
    }
    let rms = RowNormDesc { norm: RowNorm::Rms, bias: true, ..desc(2, 8) };
    parameter(rms.plan(TARGET).expect_err("no bias"), "bias");
    let e = RowNormDesc { dtype: DType::I32, ..desc(2, 8) }.plan(TARGET).expect_err("no integers");
    assert!(matches!(e, PlanError::DType { op: "layer_norm", tensor: "x", got: DType::I32, .. }), "{e}");
}

#[test]
fn tensors_are_there_as_described() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let (x, w) = (floats(&device, &[1.0; 16], &[2, 8]), floats(&device, &[1.0; 8], &[8]));
    let mut y = floats(&device, &[0.0; 16], &[2, 8]);
    let plan = desc(2, 8).plan(device.target()).expect("plan");
    let launch = |weight: Option<&Tensor>, bias: Option<&Tensor>, y: &mut Tensor| {
        let args = RowNormArgs {
            x: x.as_ref(),
            residual: None,
            weight: weight.map(Tensor::as_ref),
            bias: bias.map(Tensor::as_ref),
            y: y.as_mut(),
            z: None,
            mean: None,
            rstd: None,
        };
        plan.launch(&stream, args)
    };
    launch(Some(&w), None, &mut y).expect("as described");
    let e = launch(None, None, &mut y).expect_err("no weight");
    assert!(matches!(e, RuntimeError::Presence { argument: "weight", given: false, .. }), "{e}");
    let e = launch(Some(&w), Some(&w), &mut y).expect_err("a bias");
    assert!(matches!(e, RuntimeError::Presence { argument: "bias", given: true, .. }), "{e}");
    let e = launch(Some(&x), None, &mut y).expect_err("weight too long");
    assert!(matches!(e, RuntimeError::Elements { argument: "weight", expected: 8, got: 16, .. }), "{e}");
    let e = launch(Some(&w), None, &mut floats(&device, &[0.0; 16], &[4, 4])).expect_err("shape of y");
    assert!(matches!(e, RuntimeError::Shape { argument: "y", .. }), "{e}");
}

#[test]
fn the_workspace_is_what_the_plan_says() {
    let desc = RowNormBackwardDesc {
        norm: RowNorm::Layer,
        dtype: DType::BF16,
        rows: 10_000,
        len: 4096,
        weight: true,
        bias: true,
        dz: false,
    };
    let plan = desc.plan(TARGET).expect("plan");
    let spec = plan.tensors().last().expect("a workspace");
    assert_eq!((spec.name, spec.dtype), ("workspace", DType::F32));
    assert_eq!(plan.workspace_bytes(), 4 * spec.len as u64);
    assert!(spec.len.is_multiple_of(2 * 4096), "whole rows of partial sums of both parameters");
    let bare = RowNormBackwardDesc { weight: false, bias: false, ..desc };
    let plan = bare.plan(TARGET).expect("plan");
    assert_eq!((plan.workspace_bytes(), plan.steps().len()), (0, 1));
}

#[test]
fn free_functions_of_rows() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let x = floats(&device, &[1.0, 3.0, -2.0, 2.0], &[2, 2]);
    let (w, b) = (floats(&device, &[2.0, 4.0], &[2]), floats(&device, &[0.5, 0.0], &[2]));
    let plain = RowNormOptions::default();
    let options = RowNormOptions { weight: Some(&w), bias: Some(&b), eps: Some(0.0), ..plain };
    let y = layer_norm(&stream, &x, options).expect("launch").y;
    assert_eq!(values(&y), [-1.5, 4.0, -1.5, 4.0]);
    let y = rms_norm(&stream, &x, plain).expect("launch").y;
    assert!((values(&y)[1] - 3.0 / 5.0f32.sqrt()).abs() < 1e-6);

    let options = RowNormOptions { residual: Some(&x), weight: Some(&w), bias: Some(&b), ..plain };
    let out = row_norm(&stream, RowNorm::Layer, &x, RowNormOptions { dimensions: 2, ..options });
    assert!(out.is_err(), "the weight has the size of the last dimension, not of two");
    let out = row_norm(&stream, RowNorm::Layer, &x, options).expect("launch");
    let (z, mean) = (out.z.as_ref().expect("z"), out.mean.as_ref().expect("mean"));
    assert_eq!((values(z), values(mean)), (vec![2.0, 6.0, -4.0, 4.0], vec![4.0, 0.0]));
    let dy = floats(&device, &[1.0, 0.0, 0.0, 1.0], &[2, 2]);
    let gradients = layer_norm_backward(&stream, &x, &out, &dy, options).expect("launch");
    let dbias = gradients.dbias.expect("dbias");
    assert_eq!(values(&dbias), [1.0, 1.0]);
    assert!(values(&gradients.dx).iter().all(|d| d.abs() < 1e-4), "two elements have no slope");
    let dz = floats(&device, &[7.0; 4], &[2, 2]);
    let with_dz =
        row_norm_backward(&stream, RowNorm::Layer, &x, &out, &dy, Some(&dz), options).expect("launch");
    assert!(values(&with_dz.dx).iter().all(|d| (d - 7.0).abs() < 1e-4));
    let options = RowNormOptions { bias: None, ..options };
    let out = rms_norm(&stream, &x, options).expect("launch");
    let gradients = rms_norm_backward(&stream, &x, &out, &dy, options).expect("launch");
    assert!(gradients.dbias.is_none() && gradients.dweight.is_some());
    let without = RowNormOptions { inference: true, ..plain };
    let out = layer_norm(&stream, &x, without).expect("launch");
    assert!(out.mean.is_none() && out.rstd.is_none());
    let e = layer_norm_backward(&stream, &x, &out, &dy, without);
    assert!(matches!(e, Err(Error::Plan(PlanError::Parameter { op: "layer_norm", parameter: "rstd", .. }))));
    let e = row_norm(&stream, RowNorm::Rms, &x, RowNormOptions { dimensions: 3, ..plain });
    assert!(matches!(e, Err(Error::Plan(PlanError::Parameter { parameter: "dimensions", .. }))));
}

#[test]
fn no_rows_give_gradients_of_zero() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let (x, w) = (floats(&device, &[], &[0, 3]), floats(&device, &[1.0, 2.0, 3.0], &[3]));
    let options = RowNormOptions { weight: Some(&w), bias: Some(&w), ..Default::default() };
    let out = layer_norm(&stream, &x, options).expect("nothing to do");
    assert_eq!(out.y.shape(), [0, 3]);
    let gradients = layer_norm_backward(&stream, &x, &out, &x, options).expect("launch");
    assert_eq!(values(&gradients.dweight.expect("dweight")), [0.0; 3]);
    assert_eq!(values(&gradients.dbias.expect("dbias")), [0.0; 3]);
}

fn lrn(size: usize) -> LocalResponseNormDesc {
    LocalResponseNormDesc {
        dtype: DType::F32,
        images: 2,
        channels: 8,
        spatial: 20,
        size,
        coefficients: Coefficients::default(),
    }
}

#[test]
fn windows_without_a_plan() {
    let parameter = |e: PlanError, name: &str| {
        assert!(matches!(&e, PlanError::Parameter { parameter, .. } if *parameter == name), "{e}");
    };
    parameter(lrn(0).plan(TARGET).expect_err("an empty window"), "size");
    parameter(
        LocalResponseNormDesc { spatial: 1 << 31, ..lrn(5) }.plan(TARGET).expect_err("too many"),
        "channels",
    );
    parameter(
        LocalResponseNormDesc { images: usize::MAX / 16, ..lrn(5) }.plan(TARGET).expect_err("too many"),
        "images",
    );
    let nan = Coefficients { alpha: Real::new(f64::NAN), ..Coefficients::default() };
    parameter(LocalResponseNormDesc { coefficients: nan, ..lrn(5) }.plan(TARGET).expect_err("NaN"), "alpha");
    let e = LocalResponseNormDesc { dtype: DType::U8, ..lrn(5) }.plan(TARGET).expect_err("no integers");
    assert!(matches!(e, PlanError::DType { .. }), "{e}");
    let sliding = LocalResponseNormBackwardDesc { forward: lrn(5) }.plan(TARGET).expect("plan");
    assert_eq!(sliding.workspace_bytes(), 0);
    let single = LocalResponseNormBackwardDesc { forward: lrn(4) }.plan(TARGET).expect("plan");
    assert_eq!(single.workspace_bytes(), 4 * 2 * 8 * 20);
}

#[test]
fn free_functions_of_windows() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let numbers = Coefficients { alpha: Real::new(3.0), beta: Real::new(1.0), k: Real::new(1.0) };
    let x = floats(&device, &[1.0, 2.0, 0.0], &[1, 3]);
    let y = local_response_norm(&stream, &x, 3, numbers).expect("launch");
    let want = [1.0 / 6.0, 2.0 / 6.0, 0.0];
    assert!(values(&y).iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-6), "{:?}", values(&y));
    let dx = local_response_norm_backward(&stream, &x, &x, 3, numbers).expect("launch");
    assert_eq!(dx.shape(), [1, 3]);
    let e = local_response_norm(&stream, &floats(&device, &[1.0], &[1]), 3, numbers);
    assert!(matches!(e, Err(Error::Plan(PlanError::Parameter { parameter: "dimensions", .. }))));
    let empty = floats(&device, &[], &[2, 0, 5]);
    assert_eq!(local_response_norm(&stream, &empty, 3, numbers).expect("nothing to do").shape(), [2, 0, 5]);
}
