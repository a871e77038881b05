//! The parts of batch norm against its definition in f64, and what they refuse.

use warpwright_ops::batch_norm::{
    BatchMomentsDesc, BatchNorm, BatchNormGradientDesc, BatchNormMergedDesc, BatchNormOptions,
    BatchNormSumsDesc, Layout, MergedStatistics, Momentum, Real, RunningStatistics, batch_moments,
    batch_norm_gradient, batch_norm_merged, batch_norm_sums, reference,
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
    let n = norm.values() as f64;
    let moments = batch_moments(stream, &x, options).expect("launch");
    let found = values(stream, &moments);
    let squares: Vec<f64> = exact.var.iter().map(|var| var * n).collect();
    assert!(error(&found[..channels], &exact.mean) < BOUND, "{about}");
    assert!(error(&found[channels..2 * channels], &squares) < BOUND, "{about}");
    assert_eq!(found[2 * channels..], [n], "{about}");

    // This batch, and one of 7 values of each channel that are all 0.5: as if the tensor had them, too.
    let mut both = found;
    both.extend(vec![0.5; channels]);
    both.extend(vec![0.0; channels]);
    both.push(7.0);
    let both = tensor(stream, &both, &[2, 2 * channels + 1], dtype.accumulator());
    let all_mean: Vec<f64> = exact.mean.iter().map(|mean| (mean * n + 0.5 * 7.0) / (n + 7.0)).collect();
    let all_var: Vec<f64> = all_mean
        .iter()
        .zip(exact.mean.iter().zip(&squares))
        .map(|(all, (mean, squares))| {
            (squares + n * (mean - all).powi(2) + 7.0 * (0.5 - all).powi(2)) / (n + 7.0)
        })
        .collect();
    let parameters = |seed| -> Vec<f64> { Input::Normal.values(channels, seed) };
    let [weight, bias, old_mean, old_var] =
        [4, 5, 6, 7].map(|seed| tensor(stream, &parameters(seed), &[channels], dtype));
    let [w, b, old_mean_, old_var_] = [&weight, &bias, &old_mean, &old_var].map(|t| values(stream, t));
    let [mut mean, mut var] = [old_mean, old_var];
    let momentum = Momentum::Exponential(Real::new(0.25));
    let running = RunningStatistics { mean: &mut mean, var: &mut var, momentum };
    let affine =
        BatchNormOptions { weight: Some(&weight), bias: Some(&bias), residual: Some(&dy), relu, ..options };
    let (got, all) = batch_norm_merged(stream, &x, &both, Some(running), affine).expect("launch");
    let all_rstd = reference::rstd(&norm, &all_var);
    assert!(error(&values(stream, &all.mean), &all_mean) < BOUND, "{about}");
    assert!(error(&values(stream, &all.rstd), &all_rstd) < BOUND, "{about}");
    assert_eq!(values(stream, &all.count), [n + 7.0], "{about}");
    let of = |i: usize| match layout {
        Layout::ChannelsFirst => i / spatial % channels,
        Layout::ChannelsLast => i % channels,
    };
    let expected: Vec<f64> = (0..x_.len())
        .map(|i| {
            let y = (x_[i] - all_mean[of(i)]) * all_rstd[of(i)] * w[of(i)] + b[of(i)] + dy_[i];
            if relu { y.max(0.0) } else { y }
        })
        .collect();
    assert!(error(&values(stream, &got), &expected) < BOUND + rounding, "{about}");
    let unbiased = (n + 7.0) / (n + 6.0);
    let moved = |old: &[f64], new: &[f64], scale: f64| -> Vec<f64> {
        old.iter().zip(new).map(|(old, new)| 0.75 * old + 0.25 * scale * new).collect()
    };
    assert!(error(&values(stream, &mean), &moved(&old_mean_, &all_mean, 1.0)) < BOUND + rounding, "{about}");
    assert!(
        error(&values(stream, &var), &moved(&old_var_, &all_var, unbiased)) < BOUND + rounding,
        "{about}"
    );

    // The reference takes the statistics that the kernels take.
    let MergedStatistics { mean, rstd, count } = &all;
    let (mean_, rstd_, n) = (values(stream, mean), values(stream, rstd), values(stream, count)[0]);
    let g: Vec<f64> = dy_.iter().zip(&y_).map(|(dy, y)| if relu && *y <= 0.0 { 0.0 } else { *dy }).collect();
    let (mut dweight, mut dbias) = (vec![0.0; channels], vec![0.0; channels]);
    for (i, g) in g.iter().enumerate() {
        let c = of(i);
        dbias[c] += g;
        dweight[c] += g * (x_[i] - mean_[c]) * rstd_[c];
    }
    let sums = batch_norm_sums(stream, &x, relu.then_some(&y), &dy, [mean, rstd], options).expect("launch");
    let scale = n.sqrt() * (channels as f64).sqrt();
    let found = values(stream, &sums.sums);
    for (got, expected) in found.chunks(channels).zip([&dweight, &dbias]) {
        let off: f64 = got.iter().zip(expected).map(|(a, b)| (a - b).powi(2)).sum();
        // Sums may be near 0: their error is a part of what is summed.
        assert!(off.sqrt() < BOUND * scale, "{about}: {off}");
    }
    assert_eq!(sums.g.is_some(), relu);
    if let Some(got) = &sums.g {
        assert_eq!(values(stream, got), g, "{about}");
    }

    // Of both batches: the other one's gradients are such that these are the sums of all.
    let given = sums.g.as_ref().unwrap_or(&dy);
    let total: Vec<f64> = dweight.iter().chain(&dbias).map(|sum| sum * 3.0 - 1.0).collect();
    let total = tensor(stream, &total, &[2, channels], dtype.accumulator());
    let total_ = values(stream, &total);
    let (dweight, dbias) = total_.split_at(channels);
    let dx = batch_norm_gradient(stream, &x, given, &all, &total, affine).expect("launch");
    let expected: Vec<f64> = (0..g.len())
        .map(|i| {
            let c = of(i);
            let normal = (x_[i] - mean_[c]) * rstd_[c];
            w[c] * rstd_[c] * (g[i] - dbias[c] / n - normal * dweight[c] / n)
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
    let numbers =
        |values: &[f32], shape: &[usize]| Tensor::from_slice(&device, values, shape).expect("memory");
    let x = numbers(&[2.5, -1.0], &[1, 2]);
    let moments = batch_moments(&stream, &x, options).expect("launch");
    assert_eq!(moments.to_vec::<f32>().expect("copy"), [2.5, -1.0, 0.0, 0.0, 1.0]);
    let none = Tensor::zeros(&device, DType::F32, &[0, 2, 3]).expect("memory");
    let nothing = batch_moments(&stream, &none, options).expect("launch");
    assert_eq!(nothing.to_vec::<f32>().expect("copy"), [0.0; 5]);

    // Without values, beside one value and beside two that are apart: running statistics follow the latter only.
    let options = BatchNormOptions { eps: 1.0, ..Default::default() };
    for (others, count, mean, rstd, running) in [
        ([2.5, -1.0, 0.0, 0.0, 1.0], 1.0, [2.5f32, -1.0], [1.0, 1.0], [[9.0f32, 9.0], [4.0, 4.0]]),
        ([2.0, -1.0, 6.0, 0.0, 2.0], 2.0, [2.0, -1.0], [0.5, 1.0], [[5.5, 4.0], [5.0, 2.0]]),
    ] {
        let rows = numbers(&[&[0.0; 5][..], &others].concat(), &[2, 5]);
        let (mut running_mean, mut running_var) = (numbers(&[9.0, 9.0], &[2]), numbers(&[4.0, 4.0], &[2]));
        let momentum = Momentum::Exponential(Real::new(0.5));
        let moved = RunningStatistics { mean: &mut running_mean, var: &mut running_var, momentum };
        let (y, all) = batch_norm_merged(&stream, &none, &rows, Some(moved), options).expect("launch");
        assert_eq!(y.shape(), [0, 2, 3]);
        assert_eq!(all.count.to_vec::<f32>().expect("copy"), [count]);
        assert_eq!(all.mean.to_vec::<f32>().expect("copy"), mean);
        assert_eq!(all.rstd.to_vec::<f32>().expect("copy"), rstd);
        assert_eq!(running_mean.to_vec::<f32>().expect("copy"), running[0]);
        assert_eq!(running_var.to_vec::<f32>().expect("copy"), running[1]);
        let of_all = [&all.mean, &all.rstd];
        let sums = batch_norm_sums(&stream, &none, None, &none, of_all, options).expect("launch").sums;
        assert_eq!(sums.to_vec::<f32>().expect("copy"), [0.0; 4]);
        let dx = batch_norm_gradient(&stream, &none, &none, &all, &sums, options).expect("launch");
        assert_eq!(dx.shape(), [0, 2, 3]);
    }
}

#[test]
fn parts_without_a_plan_and_tensors_that_do_not_fit() {
    let target = Target::sm(90);
    let norm = BatchNorm::new(DType::I32, Layout::ChannelsFirst, 2, 3, 4);
    let e = BatchMomentsDesc { norm }.plan(target).expect_err("no float");
    assert!(matches!(e, PlanError::DType { op: "batch_moments", tensor: "x", .. }), "{e}");
    let e = BatchNormSumsDesc { norm }.plan(target).expect_err("no float");
    assert!(matches!(e, PlanError::DType { op: "batch_norm_sums", .. }), "{e}");
    let e = BatchNormGradientDesc { norm }.plan(target).expect_err("no float");
    assert!(matches!(e, PlanError::DType { op: "batch_norm_gradient", .. }), "{e}");
    let norm = BatchNorm::new(DType::F32, Layout::ChannelsFirst, 2, 3, 4);
    let merged = BatchNormMergedDesc { norm, batches: 2, residual: false, momentum: None };
    let negative = BatchNorm { eps: Real::new(-1.0), ..norm };
    let e = BatchNormMergedDesc { norm: negative, ..merged.clone() }.plan(target).expect_err("negative");
    assert!(matches!(e, PlanError::Parameter { parameter: "eps", .. }), "{e}");
    for batches in [0, usize::MAX / 4] {
        let e = BatchNormMergedDesc { batches, ..merged.clone() }.plan(target).expect_err("none, too many");
        assert!(
            matches!(e, PlanError::Parameter { op: "batch_norm_merged", parameter: "batches", .. }),
            "{e}"
        );
    }
    let momentum = Some(Momentum::Cumulative { batches: 0 });
    let e = BatchNormMergedDesc { momentum, ..merged }.plan(target).expect_err("1 / 0");
    assert!(matches!(e, PlanError::Parameter { parameter: "momentum", .. }), "{e}");

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
    match batch_norm_merged(&stream, &x, &of_channels(6), None, options)
        .expect_err("6 rows of one of 7 numbers")
    {
        Error::Runtime(RuntimeError::Elements { argument: "moments", got: 6, .. }) => {}
        e => panic!("{e}"),
    }
    let all = MergedStatistics { mean: of_channels(3), rstd: of_channels(3), count: of_channels(1) };
    match batch_norm_gradient(&stream, &x, &x, &all, &of_channels(3), options).expect_err("one row of two") {
        Error::Runtime(RuntimeError::Elements { argument: "sums", got: 3, .. }) => {}
        e => panic!("{e}"),
    }
}
