//! 8-bit quantization through its functions: layouts of scales, saturation, and what has no plan.

use warpwright_ops::quantize8::reference::{self, scale_index};
use warpwright_ops::quantize8::{
    Dequantize8Desc, Format, Problem, Quantize8Args, Quantize8Desc, Quantized8, Scaling, dequantize8,
    quantize8, quantize8_static,
};
use warpwright_ops::{Error, Operation, PlanError};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::{Device, EmulatorConfig, Error as RuntimeError, F8E4M3, F8E5M2, Tensor};

fn device(sm: u32) -> Device {
    Device::emulator_with(EmulatorConfig { target: Target::sm(sm), ..EmulatorConfig::default() })
}

/// The definition once more, from the shapes that the documentation gives.
#[test]
fn scales_have_the_documented_shapes_and_places() {
    let (device, [rows, cols]) = (device(90), [131usize, 260usize]);
    let stream = device.stream().expect("stream");
    let value = |row: usize, col: usize| ((row * 37 + col * 11) % 101) as f32 - 50.0 + row as f32 / 4.0;
    let values: Vec<f32> = (0..rows * cols).map(|i| value(i / cols, i % cols)).collect();
    let x = Tensor::from_slice(&device, &values, &[rows, cols]).expect("memory");
    let of_part = |row: usize, col: usize| -> [Scaled; 4] {
        let [first_row, first_col] = [row / 128 * 128, col / 128 * 128];
        let (rows_of_block, cols_of_block) =
            (first_row..rows.min(first_row + 128), first_col..cols.min(first_col + 128));
        [
            (Scaling::TensorWise, vec![1], 0, 0..rows, 0..cols),
            (Scaling::RowWise, vec![rows], row, row..row + 1, 0..cols),
            (
                Scaling::BlockWise1x128,
                vec![3, rows],
                col / 128 * rows + row,
                row..row + 1,
                cols_of_block.clone(),
            ),
            (Scaling::BlockWise128x128, vec![2, 3], row / 128 * 3 + col / 128, rows_of_block, cols_of_block),
        ]
    };
    for part in 0..4 {
        let scaling = of_part(0, 0)[part].0;
        let q = quantize8(&stream, &x, Format::E4M3, scaling).expect("launch");
        let codes = q.q.to_vec_on::<F8E4M3>(&stream).expect("codes");
        let scales = q.scales.to_vec_on::<f32>(&stream).expect("scales");
        for (row, col) in [(0, 0), (0, 259), (127, 127), (128, 128), (130, 259), (77, 200)] {
            let (_, shape, at, part_rows, part_cols) = of_part(row, col)[part].clone();
            assert_eq!(q.scales.shape(), shape, "{scaling:?}");
            let all = part_rows.flat_map(|row| part_cols.clone().map(move |col| value(row, col).abs()));
            let scale = all.fold(0.0, f32::max) / 448.0;
            assert_eq!(scales[at], scale, "{scaling:?} {row} {col}");
            let code = F8E4M3::from_f32(value(row, col) * (1.0 / scale));
            assert_eq!(codes[row * cols + col], code, "{scaling:?} {row} {col}");
        }
        let back =
            dequantize8(&stream, &q, DType::F32).expect("launch").to_vec_on::<f32>(&stream).expect("copy");
        for (i, y) in back.iter().enumerate() {
            let scale = scales[scale_index(scaling, [rows, cols], i / cols, i % cols)];
            assert_eq!(*y, codes[i].to_f32() * scale, "{scaling:?} {i}");
        }
    }
    assert!(device.findings().is_empty());
}

type Scaled = (Scaling, Vec<usize>, usize, std::ops::Range<usize>, std::ops::Range<usize>);

#[test]
fn a_given_scale_saturates() {
    let device = device(89);
    let stream = device.stream().expect("stream");
    let values = [1e9f32, -1e9, f32::INFINITY, 0.25, -0.0, f32::NAN];
    let x = Tensor::from_slice(&device, &values, &[2, 3]).expect("memory");
    let scale = Tensor::from_slice(&device, &[0.5f32], &[1]).expect("memory");
    let q = quantize8_static(&stream, &x, Format::E5M2, &scale).expect("launch");
    let q = q.to_vec_on::<F8E5M2>(&stream).expect("copy").into_iter().map(F8E5M2::to_f32).collect::<Vec<_>>();
    assert_eq!(q[..5], [57344.0, -57344.0, 57344.0, 0.5, 0.0]);
    assert!(q[5].is_nan());
    let q = quantize8_static(&stream, &x, Format::Int8, &scale).expect("launch");
    assert_eq!(q.to_vec_on::<i8>(&stream).expect("copy"), [127, -128, 127, 0, 0, 0]);
}

#[test]
fn integers_need_no_8_bit_floats() {
    let device = device(75);
    let stream = device.stream().expect("stream");
    let x = Tensor::from_slice(&device, &[3.0f32, -6.0, 1.0, 0.0, 0.5, 0.25], &[2, 3]).expect("memory");
    let q = quantize8(&stream, &x, Format::Int8, Scaling::RowWise).expect("launch");
    let want =
        reference::quantize(Format::Int8, Scaling::RowWise, &[3.0, -6.0, 1.0, 0.0, 0.5, 0.25], [2, 3], 0.0);
    let got = q.q.to_vec_on::<i8>(&stream).expect("copy").into_iter().map(f64::from).collect::<Vec<_>>();
    assert_eq!((got, q.scales.to_vec_on::<f32>(&stream).expect("copy")), (want.q, want.scales));
    let e = quantize8(&stream, &x, Format::E4M3, Scaling::RowWise).expect_err("8-bit floats");
    let Error::Plan(PlanError::Target { op: "quantize_e4m3", needs: 89, target }) = e else { panic!("{e}") };
    assert_eq!(target, Target::sm(75));
}

#[test]
fn what_has_no_plan() {
    let target = Target::sm(90);
    let problem =
        Problem { format: Format::E4M3, scaling: Scaling::RowWise, dtype: DType::BF16, rows: 4, cols: 8 };
    let plan = |problem| Quantize8Desc { problem }.plan(target);
    for dtype in [DType::F64, DType::I8, DType::F8E4M3] {
        let e = plan(Problem { dtype, ..problem }).expect_err("a type");
        assert!(matches!(e, PlanError::DType { op: "quantize_e4m3", tensor: "x", .. }), "{e}");
    }
    for scaling in Scaling::ALL {
        for (rows, cols) in [(usize::MAX, 2), (2, usize::MAX), (1 << 40, 1 << 40)] {
            let problem = Problem { scaling, rows, cols, ..problem };
            let e = plan(problem).expect_err("elements that cannot be addressed");
            assert!(matches!(e, PlanError::TooLarge { op: "quantize_e4m3", .. }), "{e}");
            let e = Dequantize8Desc { problem }.plan(target).expect_err("elements");
            assert!(matches!(e, PlanError::TooLarge { op: "dequantize_e4m3", .. }), "{e}");
        }
    }
    let device = device(90);
    let stream = device.stream().expect("stream");
    let x = Tensor::from_slice(&device, &[1.0f32; 8], &[2, 4]).expect("memory");
    let e = quantize8(&stream, &x, Format::E4M3, Scaling::Static).expect_err("no scale");
    assert!(matches!(e, Error::Plan(PlanError::Parameter { parameter: "scaling", .. })), "{e}");
    let two = Tensor::from_slice(&device, &[1.0f32; 2], &[2]).expect("memory");
    let e = quantize8_static(&stream, &x, Format::E4M3, &two).expect_err("two scales");
    assert!(matches!(e, Error::Runtime(RuntimeError::Elements { argument: "scale", .. })), "{e}");
    let floats = Quantized8 { scaling: Scaling::RowWise, q: x, scales: two };
    let e = dequantize8(&stream, &floats, DType::F32).expect_err("no codes");
    assert!(matches!(e, Error::Plan(PlanError::DType { tensor: "q", got: DType::F32, .. })), "{e}");
    let x = &floats.q;
    let plan = plan(Problem { dtype: DType::F32, rows: 2, cols: 4, ..problem }).expect("plan");
    let mut q = Tensor::empty(&device, DType::F8E4M3, &[2, 4]).expect("memory");
    let args = Quantize8Args { x: x.as_ref(), scale: None, q: q.as_mut(), scales: None, workspace: None };
    let e = plan.launch(&stream, args).expect_err("scales");
    assert!(matches!(e, RuntimeError::Presence { argument: "scales", given: false, .. }), "{e}");
}

/// The scale of a tensor without elements is written.
#[test]
fn empty_tensors_have_the_least_scale() {
    let device = device(90);
    let stream = device.stream().expect("stream");
    let x = Tensor::empty(&device, DType::F16, &[3, 0]).expect("memory");
    for (scaling, count) in [(Scaling::TensorWise, 1), (Scaling::RowWise, 3), (Scaling::BlockWise1x128, 0)] {
        let q = quantize8(&stream, &x, Format::E4M3, scaling).expect("launch");
        assert_eq!(q.scales.to_vec_on::<f32>(&stream).expect("copy"), vec![f32::MIN_POSITIVE; count]);
        assert_eq!(dequantize8(&stream, &q, DType::F16).expect("nothing to do").shape(), [3, 0]);
    }
}
