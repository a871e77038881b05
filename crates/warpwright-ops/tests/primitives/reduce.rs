//! Reductions by the free functions: shapes, sums of broadcasts, exactness of long sums, and what is refused.

use warpwright_ops::reduce::{self, ReduceDesc, ReduceFunction, reference};
use warpwright_ops::{Error, Operation, PlanError};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::{Device, Stream, Tensor};
use warpwright_testkit::inputs::Input;

fn tensor(device: &Device, shape: &[usize]) -> (Vec<f64>, Tensor) {
    let values = Input::Normal.values(shape.iter().product(), 7);
    let x = Tensor::from_slice(device, &values, shape).expect("memory");
    (values, x)
}

fn stream() -> (Device, Stream) {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    (device, stream)
}

#[test]
fn reduced_dimensions_are_left_out_or_have_an_extent_of_one() {
    let (device, stream) = stream();
    let (values, x) = tensor(&device, &[3, 4, 5]);
    for (dims, kept, without) in
        [(&[1][..], &[3, 1, 5][..], &[3, 5][..]), (&[2, 0], &[1, 4, 1], &[4]), (&[], &[1, 1, 1], &[])]
    {
        let all: Vec<usize> = if dims.is_empty() { vec![0, 1, 2] } else { dims.to_vec() };
        let want = reference::sums(&values, &[3, 4, 5], &all);
        for (keepdim, shape) in [(true, kept), (false, without)] {
            let y = reduce::sum(&stream, &x, dims, keepdim).expect("launch");
            assert_eq!(y.shape(), shape);
            let got = y.to_vec_on::<f64>(&stream).expect("copy");
            assert_eq!(got.len(), want.len());
            assert!(got.iter().zip(&want).all(|(got, want)| (got - want.0).abs() < 1e-13 * want.1));
        }
    }
    let at = reduce::argmax(&stream, &x, Some(1), true).expect("launch");
    assert_eq!((at.shape(), at.dtype()), (&[3, 1, 5][..], DType::I64));
    assert!(device.findings().is_empty());
}

#[test]
fn sums_to_a_shape_are_gradients_of_its_broadcast() {
    let (device, stream) = stream();
    let (values, x) = tensor(&device, &[2, 3, 1, 4]);
    for (shape, dims) in [
        (&[2, 3, 1, 4][..], &[][..]),
        (&[4], &[0, 1, 2]),
        (&[3, 1, 1], &[0, 3]),
        (&[1, 1, 1, 4], &[0, 1]),
        (&[], &[0, 1, 2, 3]),
    ] {
        let y = reduce::sum_to_shape(&stream, &x, shape).expect("launch");
        assert_eq!(y.shape(), shape);
        let want = reference::sums(&values, &[2, 3, 1, 4], dims);
        let got = y.to_vec_on::<f64>(&stream).expect("copy");
        assert!(got.iter().zip(&want).all(|(got, want)| (got - want.0).abs() <= 1e-13 * want.1), "{shape:?}");
        assert_eq!(got.len(), want.len());
    }
    for shape in [&[3][..], &[2, 2, 1, 4], &[1, 2, 3, 1, 4], &[2, 3, 5, 4]] {
        let refused = reduce::sum_to_shape(&stream, &x, shape).expect_err("does not broadcast");
        assert!(matches!(refused, Error::Plan(PlanError::Parameter { parameter: "shape", .. })), "{refused}");
    }
}

/// A sum of a million positive numbers of f32 in one thread has an error of 1e-5 and more; PyTorch's has 1e-7.
#[test]
fn long_sums_keep_their_digits() {
    let (device, stream) = stream();
    let values: Vec<f32> = Input::Uniform.values(1 << 20, 1).into_iter().map(|x| x.abs() as f32).collect();
    let exact: f64 = values.iter().map(|x| f64::from(*x)).sum();
    for (shape, dims) in
        [(&[1 << 20][..], &[0][..]), (&[1 << 18, 4], &[0, 1]), (&[1 << 16, 4, 4], &[0, 2, 1])]
    {
        let x = Tensor::from_slice(&device, &values, shape).expect("memory");
        let once =
            reduce::sum(&stream, &x, dims, false).expect("launch").to_vec_on::<f32>(&stream).expect("copy");
        let again =
            reduce::sum(&stream, &x, dims, false).expect("launch").to_vec_on::<f32>(&stream).expect("copy");
        assert_eq!(once[0].to_bits(), again[0].to_bits());
        let error = (f64::from(once[0]) - exact).abs() / exact;
        assert!(error < 1.5e-7, "{shape:?}: {error:e}");
    }
}

#[test]
fn what_has_no_result_is_refused() {
    let target = Target::sm(90);
    let desc = |function, dtype, shape: &[usize], dims: &[usize]| ReduceDesc {
        function,
        dtype,
        y_dtype: dtype,
        shape: shape.to_vec(),
        dims: dims.to_vec(),
    };
    let sum = ReduceFunction::Sum;
    let refused = |desc: ReduceDesc| desc.plan(target).expect_err("no plan");
    for dims in [&[2][..], &[0, 0], &[1, 0, 1]] {
        let error = refused(desc(sum, DType::F32, &[2, 3], dims));
        assert!(matches!(error, PlanError::Parameter { op: "sum", parameter: "dims", .. }), "{error}");
    }
    let error = refused(desc(sum, DType::I32, &[2], &[0]));
    assert!(matches!(error, PlanError::DType { got: DType::I32, .. }));
    let error = refused(ReduceDesc { y_dtype: DType::F16, ..desc(sum, DType::BF16, &[2], &[0]) });
    assert!(matches!(error, PlanError::DType { tensor: "y", got: DType::F16, .. }));
    let error = refused(desc(ReduceFunction::Amax, DType::F32, &[2, 0], &[1]));
    assert!(matches!(error, PlanError::Parameter { op: "amax", parameter: "shape", .. }));
    assert!(desc(ReduceFunction::Amax, DType::F32, &[2, 0], &[0]).plan(target).is_ok(), "no results");
    let error = refused(desc(sum, DType::F32, &[1 << 40, 1 << 40], &[0]));
    assert!(matches!(error, PlanError::Parameter { parameter: "shape", .. }));
    let (device, stream) = stream();
    let (_, x) = tensor(&device, &[2, 3]);
    let error = reduce::argmin(&stream, &x, Some(2), false).expect_err("two dimensions");
    assert!(matches!(error, Error::Plan(PlanError::Parameter { op: "argmin", parameter: "dim", .. })));
}
