//! The parts of batch norm against its definition in f64, and what they refuse.

use warpwright_ops::batch_norm::{
    BatchNorm, BatchNormGradientDesc, BatchNormOptions, BatchNormSumsDesc, BatchStatisticsDesc, Layout, Real,
    batch_norm_gradient, batch_norm_sums, batch_statistics, reference,
};
use warpwright_ops::cast::cast;
use warpwright_ops::{Error, Operation, PlanError};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::{Device, Error as RuntimeError, Stream, Tensor};
use warpwright_testkit::inputs::Input;

/// Of sums and of what is computed from them; of results the rounding of their type on top.
const BOUND: f64 = 2e-6;

fn tensor(stream: &Stream, values: &[f64], shape: &[usize], dtype: DType) -> Tensor {
    let wide = Tensor::from_slice(stream.device(), values, shape).expect("memory");
    cast(stream, &wide, dtype).expect("launch")
}

fn values(stream: &Stream, t: &Tensor) -> Vec<f64> {
    cast(stream, t, DType::F64).expect("launch").to_vec_on::<f64>(stream).expect("copy")
}

/// The norm of the error as a part of that of the expected.
fn error(got: &[f64], expected: &[f64]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    assert_eq!(got.len(), expected.len());
    norm(&mut got.iter().zip(expected).map(|(a, b)| a - b)) / norm(&mut expected.iter().copied()).max(1e-30)
}

fn check(stream: &Stream, layout: Layout, dtype: DType, relu: bool, shape: &[usize], offset: f64) {
    let [batch, first, spatial] = *shape else { panic!("three dimensions") };
    let (channels, spatial) =
        if layout == Layout::ChannelsFirst { (first, spatial) } else { (spatial, first) };
    let norm =
        BatchNorm { relu, eps: Real::new(0.25), ..BatchNorm::new(dtype, layout, batch, channels, spatial) };
    let about = format!("{layout:?} {dtype} {relu} {shape:?}");
    let numbers = |seed, offset: f64| -> Vec<f64> {
        let made = Input::Normal.values(shape.iter().product(), seed);
        made.into_iter().map(|v| v + offset).collect()
    };
    let x = tensor(stream, &numbers(1, offset), shape, dtype);
    let dy = tensor(stream, &numbers(2, 0.0), shape, dtype);
    let y = tensor(stream, &numbers(3, 0.0), shape, dtype);
    let [x_, dy_, y_] = [&x, &dy, &y].map(|t| values(stream, t));
    let options = BatchNormOptions { layout, eps: 0.25, ..Default::default() };
    let rounding = if dtype == DType::F16 { 5e-4 } else { 0.0 };

    let exact = reference::statistics(&norm, &x_);
    let exact_rstd = reference::rstd(&norm, &exact.var);
    let [mean, rstd] = batch_statistics(stream, &x, options).expect("launch");
    assert!(error(&values(stream, &mean), &exact.mean) < BOUND, "{about}");
    assert!(error(&values(stream, &rstd), &exact_rstd) < BOUND, "{about}");

    // The reference takes the statistics that the kernels take.
    let (mean_, rstd_) = (values(stream, &mean), values(stream, &rstd));
    let n = norm.values() as f64;
    let of = |i: usize| match layout {
        Layout::ChannelsFirst => i / spatial % channels,
        Layout::ChannelsLast => i % channels,
    };
    let g: Vec<f64> = dy_.iter().zip(&y_).map(|(dy, y)| if relu && *y <= 0.0 { 0.0 } else { *dy }).collect();
    let (mut dweight, mut dbias) = (vec![0.0; channels], vec![0.0; channels]);
    for (i, g) in g.iter().enumerate() {
        let c = of(i);
        dbias[c] += g;
        dweight[c] += g * (x_[i] - mean_[c]) * rstd_[c];
    }
    let sums = batch_norm_sums(stream, &x, relu.then_some(&y), &dy, [&mean, &rstd], options).expect("launch");
    let scale = n.sqrt() * (channels as f64).sqrt();
    for (got, expected) in [(&sums.dweight, &dweight), (&sums.dbias, &dbias)] {
        let got = values(stream, got);
        let off: f64 = got.iter().zip(expected).map(|(a, b)| (a - b).powi(2)).sum();
        // Sums may be near 0: their error is a part of what is summed.
        assert!(off.sqrt() < BOUND * scale, "{about}: {off}");
    }
    assert_eq!(sums.g.is_some(), relu);
    if let Some(got) = &sums.g {
        assert_eq!(values(stream, got), g, "{about}");
    }

    // With the coefficients of training this is its gradient, which the reference has, too.
    let mut rows = mean_.clone();
    rows.extend(&rstd_);
    rows.extend((0..channels).map(|c| -rstd_[c] * rstd_[c] * dweight[c] / n));
    rows.extend((0..channels).map(|c| -rstd_[c] * dbias[c] / n));
    let coefficients = tensor(stream, &rows, &[4, channels], dtype.accumulator());
    let given = sums.g.as_ref().unwrap_or(&dy);
    let dx = batch_norm_gradient(stream, &x, given, &coefficients, options).expect("launch");
    let expected: Vec<f64> = (0..g.len())
        .map(|i| {
            let c = of(i);
            let normal = (x_[i] - mean_[c]) * rstd_[c];
            rstd_[c] * (g[i] - dbias[c] / n - normal * dweight[c] / n)
        })
        .collect();
    assert!(error(&values(stream, &dx), &expected) < BOUND + rounding, "{about}");
}

#[test]
fn parts_are_those_of_the_definition() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] {
        for (dtype, relu) in
            [(DType::F32, false), (DType::F32, true), (DType::F16, true), (DType::F64, false)]
        {
            for shape in [[3, 5, 7], [2, 16, 64], [9, 4, 1]] {
                let shape =
                    if layout == Layout::ChannelsFirst { shape } else { [shape[0], shape[2], shape[1]] };
                check(&stream, layout, dtype, relu, &shape, 0.0);
            }
        }
        check(&stream, layout, DType::F32, false, &[4, 8, 8], 30.0);
    }
}

#[test]
fn one_value_and_none() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let options = BatchNormOptions { eps: 0.0, ..Default::default() };
    let x = Tensor::from_slice(&device, &[2.5f32, -1.0], &[1, 2]).expect("memory");
    let [mean, rstd] = batch_statistics(&stream, &x, options).expect("launch");
    assert_eq!(mean.to_vec::<f32>().expect("copy"), [2.5, -1.0]);
    assert_eq!(rstd.to_vec::<f32>().expect("copy"), [f32::INFINITY; 2], "a variance of 0");
    let none = Tensor::zeros(&device, DType::F32, &[0, 2, 3]).expect("memory");
    let [mean, rstd] = batch_statistics(&stream, &none, options).expect("launch");
    assert_eq!(mean.to_vec::<f32>().expect("copy"), [0.0; 2]);
    assert!(rstd.to_vec::<f32>().expect("copy").iter().all(|r| r.is_nan()));
    let sums = batch_norm_sums(&stream, &none, None, &none, [&mean, &mean], options).expect("launch");
    assert_eq!(sums.dweight.to_vec::<f32>().expect("copy"), [0.0; 2]);
    assert_eq!(sums.dbias.to_vec::<f32>().expect("copy"), [0.0; 2]);
    let coefficients = Tensor::zeros(&device, DType::F32, &[4, 2]).expect("memory");
    let dx = batch_norm_gradient(&stream, &none, &none, &coefficients, options).expect("launch");
    assert_eq!(dx.shape(), [0, 2, 3]);
}

#[test]
fn parts_without_a_plan_and_tensors_that_do_not_fit() {
    let target = Target::sm(90);
    let norm = BatchNorm::new(DType::I32, Layout::ChannelsFirst, 2, 3, 4);
    let e = BatchStatisticsDesc { norm }.plan(target).expect_err("no float");
    assert!(matches!(e, PlanError::DType { op: "batch_norm_statistics", tensor: "x", .. }), "{e}");
    let e = BatchNormSumsDesc { norm }.plan(target).expect_err("no float");
    assert!(matches!(e, PlanError::DType { op: "batch_norm_sums", .. }), "{e}");
    let e = BatchNormGradientDesc { norm }.plan(target).expect_err("no float");
    assert!(matches!(e, PlanError::DType { op: "batch_norm_gradient", .. }), "{e}");
    let norm =
        BatchNorm { eps: Real::new(-1.0), ..BatchNorm::new(DType::F32, Layout::ChannelsFirst, 2, 3, 4) };
    let e = BatchStatisticsDesc { norm }.plan(target).expect_err("negative");
    assert!(matches!(e, PlanError::Parameter { parameter: "eps", .. }), "{e}");

    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let x = Tensor::zeros(&device, DType::F32, &[2, 3, 4]).expect("memory");
    let of_channels = |n: usize| Tensor::zeros(&device, DType::F32, &[n]).expect("memory");
    let options = BatchNormOptions::default();
    let e = batch_norm_sums(&stream, &x, None, &x, [&of_channels(3), &of_channels(2)], options);
    match e.expect_err("two of three channels") {
        Error::Runtime(RuntimeError::Elements { argument: "rstd", got: 2, .. }) => {}
        e => panic!("{e}"),
    }
    match batch_norm_gradient(&stream, &x, &x, &of_channels(3), options).expect_err("one row of four") {
        Error::Runtime(RuntimeError::Elements { argument: "coefficients", got: 3, .. }) => {}
        e => panic!("{e}"),
    }
}
