//! Rows by their indices by the free functions: shapes, gradients that fit each other, the same results from run to run, and what is refused.

use warpwright_ops::gather_scatter::{
    GatherRowsDesc, IndexedRows, RowDotsDesc, ScatterOptions, ScatterRowsDesc, check_index, gather_rows,
    row_dots, scatter_rows,
};
use warpwright_ops::{Error, Operation, PlanError};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::{Device, Tensor};

const TARGET: Target = Target::sm(90);

fn rows() -> IndexedRows {
    IndexedRows { dtype: DType::BF16, index: DType::I32, rows: 10, dim: 8, count: 5 }
}

#[test]
fn indices_and_rows_of_any_shape() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let x: Vec<f32> = (0..24).map(|i| i as f32).collect();
    let x = Tensor::from_slice(&device, &x, &[4, 3, 2]).expect("memory");
    let index = Tensor::from_slice(&device, &[3i32, 0, 4, 3], &[2, 2]).expect("memory");
    let factors = Tensor::from_slice(&device, &[1.0f32, -1.0, 1.0, 0.5], &[2, 2]).expect("memory");
    let y = gather_rows(&stream, &x, &index, Some(&factors)).expect("launch");
    assert_eq!(y.shape(), [2, 2, 3, 2]);
    let got = y.to_vec::<f32>().expect("read");
    assert_eq!(got[..8], [18.0, 19.0, 20.0, 21.0, 22.0, 23.0, 0.0, -1.0]);
    assert!(got[12..18].iter().all(|y| y.is_nan()));
    assert_eq!(got[18], 9.0);
    // What comes back from a stray index goes nowhere.
    let ones = Tensor::from_slice(&device, &[1.0f32; 24], &[2, 2, 3, 2]).expect("memory");
    let options = ScatterOptions { factors: Some(&factors), base: Some(&x) };
    let sums = scatter_rows(&stream, &ones, &index, 4, options).expect("launch");
    assert_eq!(sums.shape(), [4, 3, 2]);
    let sums = sums.to_vec::<f32>().expect("read");
    assert_eq!([sums[0], sums[6], sums[18], sums[23]], [-1.0, 6.0, 19.5, 24.5]);
    let products = row_dots(&stream, &ones, &x, &index, DType::F32).expect("launch");
    assert_eq!(products.shape(), [2, 2]);
    let products = products.to_vec::<f32>().expect("read");
    assert_eq!([products[0], products[1], products[3]], [123.0, 15.0, 123.0]);
    assert!(products[2].is_nan());
    let error =
        scatter_rows(&stream, &ones, &index, 4, ScatterOptions { base: Some(&ones), ..Default::default() });
    assert!(error.is_ok(), "as many elements: {error:?}");
    let few = Tensor::from_slice(&device, &[1.0f32], &[1]).expect("memory");
    let error = gather_rows(&stream, &x, &index, Some(&few));
    assert!(matches!(error, Err(Error::Runtime(_))), "{error:?}");
    let single = Tensor::from_slice(&device, &[1.0f32], &[]).expect("memory");
    let error = gather_rows(&stream, &single, &index, None);
    assert!(matches!(error, Err(Error::Plan(PlanError::Parameter { parameter: "x", .. }))), "{error:?}");
}

#[test]
fn sums_are_the_same_in_every_run() {
    let values: Vec<f32> = (0..4000).map(|i| ((i * 7919) % 1009) as f32 * 1e-3 - 0.5).collect();
    let index: Vec<i64> = (0..1000).map(|i| if i % 3 == 0 { 1 } else { i * 31 % 17 }).collect();
    let run = || {
        let device = Device::emulator();
        let stream = device.stream().expect("stream");
        let x = Tensor::from_slice(&device, &values, &[1000, 4]).expect("memory");
        let index = Tensor::from_slice(&device, &index, &[1000]).expect("memory");
        let y = scatter_rows(&stream, &x, &index, 17, ScatterOptions::default()).expect("launch");
        y.to_vec::<f32>().expect("read").into_iter().map(f32::to_bits).collect::<Vec<_>>()
    };
    assert_eq!(run(), run());
}

#[test]
fn descriptors_without_meaning_are_refused() {
    let every = |of: IndexedRows| {
        [
            GatherRowsDesc { of: of.clone(), factors: None }.plan(TARGET).map(drop),
            ScatterRowsDesc { of: of.clone(), factors: None, base: true }.plan(TARGET).map(drop),
            RowDotsDesc { y_dtype: of.dtype, of }.plan(TARGET).map(drop),
        ]
    };
    for (name, of) in [
        ("rows", IndexedRows { rows: 1 << 30, ..rows() }),
        ("dim", IndexedRows { dim: 1 << 30, ..rows() }),
        ("count", IndexedRows { count: 1 << 30, ..rows() }),
    ] {
        for e in every(of) {
            assert!(matches!(&e, Err(PlanError::Parameter { parameter, .. }) if *parameter == name), "{e:?}");
        }
    }
    for e in every(IndexedRows { index: DType::U8, ..rows() }) {
        assert!(matches!(&e, Err(PlanError::DType { tensor: "index", .. })), "{e:?}");
    }
    for e in every(IndexedRows { dtype: DType::I32, ..rows() }) {
        assert!(matches!(&e, Err(PlanError::DType { got: DType::I32, .. })), "{e:?}");
    }
    let e = GatherRowsDesc { of: rows(), factors: Some(DType::F16) }.plan(TARGET);
    assert!(matches!(&e, Err(PlanError::DType { op: "gather_rows", tensor: "factors", .. })), "{e:?}");
    let e = ScatterRowsDesc { of: rows(), factors: Some(DType::F64), base: false }.plan(TARGET);
    assert!(matches!(&e, Err(PlanError::DType { op: "scatter_rows", tensor: "factors", .. })), "{e:?}");
    let e = RowDotsDesc { of: rows(), y_dtype: DType::F64 }.plan(TARGET);
    assert!(matches!(&e, Err(PlanError::DType { op: "row_dots", tensor: "y", .. })), "{e:?}");
    assert!(check_index("scatter_rows", &[0, 9], 10).is_ok());
    let e = check_index("scatter_rows", &[0, 10], 10);
    assert!(
        matches!(&e, Err(PlanError::Parameter { op: "scatter_rows", got, .. }) if got == "10 at 1"),
        "{e:?}"
    );
}
