//! Searches for the largest elements of rows by the free functions: shapes, the bits of values, gradients and what is refused.

use warpwright_ops::topk::{TopkBackwardDesc, TopkDesc, topk, topk_backward};
use warpwright_ops::{Error, Operation, PlanError};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::{Device, Tensor};

const TARGET: Target = Target::sm(90);

#[test]
fn rows_of_any_shape_and_their_gradients() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let x: Vec<f32> = (0..24).map(|i| (i * 7 % 24) as f32).collect();
    let tensor = Tensor::from_slice(&device, &x, &[2, 2, 6]).expect("memory");
    let top = topk(&stream, &tensor, 2, true).expect("launch");
    assert_eq!((top.values.shape(), top.index.shape()), (&[2, 2, 2][..], &[2, 2, 2][..]));
    assert_eq!(top.values.to_vec::<f32>().expect("read"), [21.0, 14.0, 22.0, 18.0, 23.0, 19.0, 20.0, 17.0]);
    assert_eq!(top.index.to_vec::<i64>().expect("read"), [3, 2, 4, 0, 5, 1, 2, 5]);
    let dx = topk_backward(&stream, &top.values, &top.index, 6).expect("launch");
    assert_eq!(dx.shape(), [2, 2, 6]);
    let kept: Vec<f32> = x
        .chunks(6)
        .flat_map(|row| {
            let mut sorted = row.to_vec();
            sorted.sort_by(f32::total_cmp);
            row.iter().map(move |x| if *x >= sorted[4] { *x } else { 0.0 }).collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(dx.to_vec::<f32>().expect("read"), kept);
    assert!(device.findings().is_empty());
}

/// Zeros of both signs are equal, and NaN with another payload is NaN: values have their bits all the same.
#[test]
fn values_are_copied_bit_by_bit() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    for n in [5, 300] {
        let mut x = vec![-1.0f32; n];
        let bits = [0x8000_0000, 0, 0xffc0_1234, 0x7fc0_0001];
        x.iter_mut().zip(bits).for_each(|(x, bits)| *x = f32::from_bits(bits));
        let x = Tensor::from_slice(&device, &x, &[n]).expect("memory");
        let top = topk(&stream, &x, 4, true).expect("launch");
        let got: Vec<u32> = top.values.to_vec::<f32>().expect("read").into_iter().map(f32::to_bits).collect();
        assert_eq!(got, [bits[2], bits[3], bits[0], bits[1]]);
        assert_eq!(top.index.to_vec::<i64>().expect("read"), [2, 3, 0, 1]);
    }
}

#[test]
fn what_cannot_be_found_is_refused() {
    let desc = |dtype, n, k| TopkDesc { dtype, rows: 2, n, k, largest: true };
    let refused = |desc: TopkDesc| desc.plan(TARGET).expect_err("no plan");
    let error = refused(desc(DType::I32, 8, 1));
    assert!(matches!(error, PlanError::DType { tensor: "x", got: DType::I32, .. }));
    for (n, k) in [(8, 9), (1025, 129), (1 << 20, 1000)] {
        let error = refused(desc(DType::F32, n, k));
        assert!(matches!(error, PlanError::Parameter { op: "topk", parameter: "k", .. }), "{error}");
    }
    let error = refused(desc(DType::F32, 1 << 31, 1));
    assert!(matches!(error, PlanError::Parameter { parameter: "n", .. }));
    let error = refused(TopkDesc { rows: 1 << 60, ..desc(DType::F32, 8, 1) });
    assert!(matches!(error, PlanError::Parameter { parameter: "rows", .. }));
    let error =
        TopkBackwardDesc { dtype: DType::F16, rows: 1, n: 3, k: 4 }.plan(TARGET).expect_err("no plan");
    assert!(matches!(error, PlanError::Parameter { parameter: "k", .. }));
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let single = Tensor::from_slice(&device, &[1.0f32], &[]).expect("memory");
    let error = topk(&stream, &single, 1, true).expect_err("no dimension");
    assert!(matches!(error, Error::Plan(PlanError::Parameter { parameter: "x", .. })));
}

/// An index that is no element of its row has no gradient anywhere.
#[test]
fn stray_indices_are_passed_over() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let index = Tensor::from_slice(&device, &[-1i64, 3, 1 << 32, 1], &[2, 2]).expect("memory");
    let dvalues = Tensor::from_slice(&device, &[1.0f64, 2.0, 3.0, 4.0], &[2, 2]).expect("memory");
    let dx = topk_backward(&stream, &dvalues, &index, 3).expect("launch");
    assert_eq!(dx.to_vec::<f64>().expect("read"), [0.0, 0.0, 0.0, 0.0, 4.0, 0.0]);
    assert!(device.findings().is_empty());
}
