//! Products of 8-bit matrices through their functions, what has no plan, and what results do not depend on.

use warpwright_ops::quantize8::{Format, Quantized8, Scaling, quantize8};
use warpwright_ops::scaled_gemm::{
    Accumulation, ScaledGemmArgs, ScaledGemmDesc, ScaledMatmulOptions, int8_matmul, scaled_matmul, tuning,
};
use warpwright_ops::{Error, Operation, PlanError};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::{Device, EmulatorConfig, Error as RuntimeError, Tensor};

const TARGET: Target = Target::sm(90);

fn device(sm: u32) -> Device {
    Device::emulator_with(EmulatorConfig { target: Target::sm(sm), ..EmulatorConfig::default() })
}

/// Numbers of both signs, without a pattern that a transposed index keeps.
fn matrix(device: &Device, shape: &[usize]) -> Tensor {
    let len: usize = shape.iter().product();
    let values: Vec<f32> = (0..len).map(|i| ((i * 37 + i / 7) % 101) as f32 - 50.0).collect();
    Tensor::from_slice(device, &values, shape).expect("memory")
}

#[test]
fn what_has_no_plan() {
    let good = ScaledGemmDesc::new(Format::E4M3, DType::BF16, [8, 16, 32], Scaling::RowWise);
    assert_eq!(good.plan(TARGET).expect("plan").steps().len(), 1);
    let parameter = |desc: ScaledGemmDesc, name| match desc.plan(TARGET) {
        Err(PlanError::Parameter { op: "scaled_gemm_e4m3" | "scaled_gemm_int8", parameter, .. }) => {
            assert_eq!(parameter, name);
        }
        other => panic!("{name}: {other:?}"),
    };
    parameter(ScaledGemmDesc { b: Format::Int8, ..good.clone() }, "b");
    parameter(ScaledGemmDesc { lda: 31, ..good.clone() }, "lda");
    parameter(ScaledGemmDesc { ldb: 31, ..good.clone() }, "ldb");
    parameter(ScaledGemmDesc { ldy: 15, ..good.clone() }, "ldy");
    parameter(ScaledGemmDesc { lda: usize::MAX / 2, ..good.clone() }, "lda");
    parameter(ScaledGemmDesc { m: 1 << 31, ..good.clone() }, "m");
    let slope = warpwright_ops::plan::Real::new(0.1);
    let leaky = warpwright_ops::activation::Activation::LeakyRelu { negative_slope: slope };
    parameter(ScaledGemmDesc { activation: Some(leaky), ..good.clone() }, "activation");
    let integers = ScaledGemmDesc::new(Format::Int8, DType::I32, [8, 16, 32], Scaling::RowWise);
    parameter(integers.clone(), "y");
    let exact = ScaledGemmDesc { scaling_a: None, scaling_b: None, ..integers };
    assert_eq!(exact.plan(Target::sm(75)).expect("plan").steps().len(), 1);
    parameter(ScaledGemmDesc { k: 1 << 17, lda: 1 << 17, ldb: 1 << 17, ..exact }, "k");
    for y in [DType::F64, DType::I32, DType::F8E4M3] {
        let e = ScaledGemmDesc { y, ..good.clone() }.plan(TARGET).expect_err("a type");
        assert!(matches!(e, PlanError::DType { tensor: "y", .. }), "{e}");
    }
    let e = good.plan(Target::sm(86)).expect_err("no 8-bit floats");
    assert!(matches!(e, PlanError::Target { op: "scaled_gemm_e4m3", needs: 89, .. }), "{e}");
    let whole = ScaledGemmDesc { accumulation: Accumulation::Fast, ..good.clone() };
    let wide = tuning::configs(whole.scales()).into_iter().find(|config| config.cols == 256);
    let wide = wide.expect("a tile of 128 x 256");
    assert!(whole.plan_with(TARGET, wide).is_ok());
    let e = good.plan_with(TARGET, wide).expect_err("registers");
    assert!(matches!(e, PlanError::Parameter { parameter: "config", .. }), "{e}");
    let e = ScaledGemmDesc { lda: 40, ..whole }.plan_with(TARGET, wide).expect_err("rows anywhere");
    assert!(matches!(e, PlanError::Parameter { parameter: "lda", .. }), "{e}");
}

#[test]
fn functions_check_their_tensors() {
    let device = device(90);
    let stream = device.stream().expect("stream");
    let quantized =
        |shape: &[usize], format, scaling| quantize8(&stream, &matrix(&device, shape), format, scaling);
    let a = quantized(&[2, 3, 32], Format::E4M3, Scaling::RowWise).expect("a");
    let b = quantized(&[5, 32], Format::E4M3, Scaling::RowWise).expect("b");
    let y = scaled_matmul(&stream, &a, &b, DType::F16, ScaledMatmulOptions::default()).expect("y");
    assert_eq!((y.shape(), y.dtype()), (&[2, 3, 5][..], DType::F16));
    let product = |a: &Quantized8, b: &Quantized8| {
        scaled_matmul(&stream, a, b, DType::F16, ScaledMatmulOptions::default())
    };
    for shape in [&[5, 31][..], &[1, 5, 32]] {
        let b = quantized(shape, Format::E4M3, Scaling::RowWise).expect("b");
        let e = product(&a, &b).expect_err("a shape");
        assert!(matches!(e, Error::Plan(PlanError::Parameter { parameter: "b", .. })), "{e}");
    }
    let integers = quantized(&[5, 32], Format::Int8, Scaling::RowWise).expect("b");
    let e = product(&a, &integers).expect_err("floats by integers");
    assert!(matches!(e, Error::Plan(PlanError::Parameter { parameter: "b", .. })), "{e}");
    let e = int8_matmul(&stream, &integers.q, &b.q).expect_err("floats");
    assert!(matches!(e, Error::Plan(PlanError::DType { tensor: "b", .. })), "{e}");
    let few = Tensor::from_slice(&device, &[1.0f32; 4], &[4]).expect("memory");
    let wrong = Quantized8 { scaling: Scaling::RowWise, q: b.q, scales: few };
    let e = product(&a, &wrong).expect_err("four scales for five rows");
    assert!(matches!(e, Error::Runtime(RuntimeError::Elements { argument: "scale_b", .. })), "{e}");
    let bias = Tensor::from_slice(&device, &[1.0f32; 5], &[5]).expect("memory");
    let options = ScaledMatmulOptions { bias: Some(&bias), ..Default::default() };
    let b = quantized(&[5, 32], Format::E4M3, Scaling::TensorWise).expect("b");
    let e = scaled_matmul(&stream, &a, &b, DType::F16, options).expect_err("a bias of f32");
    assert!(matches!(e, Error::Runtime(RuntimeError::DType { argument: "bias", .. })), "{e}");
}

/// The same numbers through tensor copies and on the ordinary units, whose sums of 128 integers are exact.
#[test]
fn integers_are_exact_on_every_target() {
    let (m, n, k) = (70, 41, 352);
    let code = |i: usize| ((i * 73 + i / 11) % 256) as u8 as i8;
    let [a, b] = [m, n].map(|rows| (0..rows * k).map(code).collect::<Vec<i8>>());
    let want: Vec<i32> = (0..m * n)
        .map(|at| {
            let (row, col) = (&a[at / n * k..][..k], &b[at % n * k..][..k]);
            row.iter().zip(col).map(|(a, b)| i32::from(*a) * i32::from(*b)).sum()
        })
        .collect();
    for sm in [75, 80, 90, 120] {
        let device = device(sm);
        let stream = device.stream().expect("stream");
        let [a, b] = [(&a, m), (&b, n)]
            .map(|(codes, rows)| Tensor::from_slice(&device, codes, &[rows, k]).expect("memory"));
        let y = int8_matmul(&stream, &a, &b).expect("launch");
        assert_eq!(y.to_vec_on::<i32>(&stream).expect("copy"), want, "sm_{sm}");
    }
}

/// A row's results do not depend on how many there are, where the kernel is the same.
#[test]
fn results_of_a_row_do_not_depend_on_others() {
    let device = device(90);
    let stream = device.stream().expect("stream");
    let config =
        tuning::configs(ScaledGemmDesc::new(Format::E4M3, DType::F32, [1, 1, 1], Scaling::RowWise).scales())
            [0];
    let weight = quantize8(&stream, &matrix(&device, &[40, 160]), Format::E4M3, Scaling::RowWise);
    let weight = weight.expect("weight");
    let rows_of = |m: usize| {
        let x = matrix(&device, &[140, 160]);
        let x = quantize8(&stream, &x, Format::E4M3, Scaling::RowWise).expect("x");
        let desc = ScaledGemmDesc::new(Format::E4M3, DType::F32, [m, 40, 160], Scaling::RowWise);
        let plan = desc.plan_with(TARGET, config).expect("plan");
        let codes = x.q.to_bytes().expect("bytes")[..m * 160].to_vec();
        let codes = Tensor::from_bytes(&device, DType::F8E4M3, &codes, &[m, 160]).expect("memory");
        let scales = x.scales.to_vec_on::<f32>(&stream).expect("scales")[..m].to_vec();
        let scales = Tensor::from_slice(&device, &scales, &[m]).expect("memory");
        let mut y = Tensor::empty(&device, DType::F32, &[m, 40]).expect("memory");
        let args = ScaledGemmArgs {
            a: codes.as_ref(),
            b: weight.q.as_ref(),
            scale_a: Some(scales.as_ref()),
            scale_b: Some(weight.scales.as_ref()),
            bias: None,
            y: y.as_mut(),
        };
        plan.launch(&stream, args).expect("launch");
        y.to_vec_on::<f32>(&stream).expect("copy")
    };
    let all = rows_of(140);
    for m in [1, 63, 130] {
        assert_eq!(rows_of(m), all[..m * 40], "{m} rows");
    }
}
