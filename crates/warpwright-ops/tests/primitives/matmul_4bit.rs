//! Products with 4-bit weights through their functions, what has no plan, and which kernels shapes have.

use warpwright_ops::matmul_4bit::{
    Matmul4bitBackwardDesc, Matmul4bitDesc, ScaleFormat, Weight4bit, Weight4bitDesc, WeightFormat,
    matmul_4bit, matmul_4bit_backward, tuning,
};
use warpwright_ops::quantize::{NibbleOrder, Scheme, dequantize, quantize, quantize_nested};
use warpwright_ops::{Error, Operation, PlanError};
use warpwright_ptx::float8::e4m3_value;
use warpwright_ptx::{DType, Target};
use warpwright_runtime::{Device, EmulatorConfig, Tensor};

const TARGET: Target = Target::sm(90);

fn device() -> Device {
    Device::emulator_with(EmulatorConfig { target: TARGET, ..EmulatorConfig::default() })
}

fn desc(m: usize, [n, k]: [usize; 2], group_size: usize) -> Matmul4bitDesc {
    let weight = Weight4bitDesc::new(WeightFormat::Nf4, [n, k], group_size);
    Matmul4bitDesc { dtype: DType::BF16, m, weight, bias: false }
}

/// The names of the launches for aligned tensors.
fn launches(desc: &Matmul4bitDesc, target: Target) -> Vec<String> {
    let plan = desc.plan(target).expect("plan");
    plan.variants()[0].steps.iter().map(|step| step.kernel().name().to_owned()).collect()
}

#[test]
fn what_has_no_plan() {
    let good = desc(8, [16, 64], 64);
    let parameter = |desc: Matmul4bitDesc, name| match desc.plan(TARGET) {
        Err(PlanError::Parameter { op, parameter, .. }) if op.starts_with("matmul_4bit_") => {
            assert_eq!(parameter, name);
        }
        other => panic!("{name}: {other:?}"),
    };
    let of = |weight: Weight4bitDesc| Matmul4bitDesc { weight, ..good.clone() };
    parameter(Matmul4bitDesc { m: 1 << 31, ..good.clone() }, "m");
    parameter(desc((1 << 31) - 1, [1, (1 << 31) - 1], 64), "m");
    parameter(desc(1, [1 << 29, 64], 1), "group_size");
    parameter(desc(1, [1 << 30, 1 << 30], 64), "n");
    parameter(desc(1, [1, 1 << 31], 64), "k");
    parameter(desc(1, [1, 64], 0), "group_size");
    parameter(of(Weight4bitDesc { scale: ScaleFormat::E8m0, ..good.weight }), "scale");
    parameter(of(Weight4bitDesc { scale: ScaleFormat::Float(DType::F64), ..good.weight }), "scale");
    parameter(of(Weight4bitDesc { group_index: true, ..good.weight }), "group_index");
    parameter(of(Weight4bitDesc { scale: ScaleFormat::E4m3, ..good.weight }), "scale");
    parameter(of(Weight4bitDesc::new(WeightFormat::Mxfp4, [16, 64], 64)), "group_size");
    parameter(of(Weight4bitDesc::new(WeightFormat::Nvfp4, [16, 64], 32)), "group_size");
    let scale = ScaleFormat::E8m0;
    parameter(
        of(Weight4bitDesc { scale, ..Weight4bitDesc::new(WeightFormat::Nvfp4, [16, 64], 16) }),
        "scale",
    );
    let e = Matmul4bitDesc { dtype: DType::F64, ..good.clone() }.plan(TARGET).expect_err("a type");
    assert!(matches!(e, PlanError::DType { tensor: "x", .. }), "{e}");
    let wide = tuning::configs().into_iter().find(|config| config.cols() == 16).expect("a configuration");
    let e = good.plan_with(TARGET, tuning::Config::Stream(wide)).expect_err("too few rows");
    assert!(matches!(e, PlanError::Parameter { parameter: "config", .. }), "{e}");
    let weight = good.weight;
    assert!(Matmul4bitBackwardDesc { dtype: DType::F64, m: 1, weight }.plan(TARGET).is_err());
}

#[test]
fn shapes_have_the_kernels_that_the_module_says() {
    let first = |desc: &Matmul4bitDesc, target| launches(desc, target)[0].clone();
    for m in [1, 8, 16, 32, 64] {
        let name = first(&desc(m, [64, 4096 + 64], 64), TARGET);
        assert!(name.starts_with("matmul_4bit_nf4_f32_bf16_s64"), "{name}");
    }
    // A block of scales that goes on in the next row; slices of 32.
    assert!(first(&desc(1, [64, 320], 128), TARGET).contains("_s64_"));
    assert!(first(&desc(1, [64, 160], 32), TARGET).contains("_s32_"));
    assert!(first(&desc(1, [64, 160], 64), TARGET).contains("_s32_"));
    assert!(first(&desc(1, [64, 96], 64), TARGET).contains("_simt_"));
    assert!(first(&desc(1, [64, 80], 64), TARGET).contains("_simt_"));
    assert!(first(&desc(1, [64, 63], 64), TARGET).contains("_simt_"));
    assert!(first(&desc(1, [64, 4096], 64), Target::sm(75)).contains("_simt_"));
    // Up to eight rows: codes by way of shared memory, where runs are whole and x leaves room, of MXFP4 in slices of two groups beside bf16.
    assert!(first(&desc(1, [64, 4096], 64), TARGET).contains("_s64_n16_m8_w16_c3"));
    assert!(first(&desc(1, [64, 4096], 32), TARGET).contains("_s32_n16_m8_w16_c3"));
    assert!(first(&desc(1, [64, 4096 + 64], 64), TARGET).contains("_w8_r2"));
    assert!(first(&desc(8, [64, 8192], 64), TARGET).ends_with("_c3_parts"));
    assert!(first(&desc(8, [64, 20_480], 64), TARGET).contains("_w16_r2"));
    for (dtype, slice) in [(DType::BF16, "_s64_"), (DType::F16, "_s32_")] {
        let weight = Weight4bitDesc::new(WeightFormat::Mxfp4, [64, 4096], 32);
        let name = first(&Matmul4bitDesc { dtype, weight, ..desc(1, [64, 4096], 32) }, TARGET);
        assert!(name.contains(slice) && name.contains("_c3"), "{name}");
    }
    // Warpgroups: chunks of 256, of large weights from 9 rows on, up to those for which the weight is expanded.
    let large = |m| first(&desc(m, [8192, 8192], 64), TARGET);
    for (m, cols) in [(9, "m32"), (32, "m32"), (64, "m64"), (128, "m128"), (256, "m256"), (3072, "m256")] {
        let name = large(m);
        assert!(name.contains("_wg_s64_") && name.contains(cols), "{m}: {name}");
    }
    assert!(!large(8).contains("_wg_") && !first(&desc(16, [4096, 4096], 64), TARGET).contains("_wg_"));
    assert!(first(&desc(40, [64, 256], 32), TARGET).contains("_wg_s32_"));
    assert!(!first(&desc(40, [64, 320], 64), TARGET).contains("_wg_"));
    assert!(!first(&desc(40, [64, 256], 64), Target::sm(80)).contains("_wg_"));
    for desc in [desc(3073, [64, 256], 64), desc(65, [64, 320], 64)] {
        let many = launches(&desc, TARGET);
        assert!(many[0].contains("_expand_") && many[1].starts_with("gemm_"), "{many:?}");
    }
    // Several scales a slice.
    let of_16 = |m, k| {
        let weight = Weight4bitDesc::new(WeightFormat::Nvfp4, [64, k], 16);
        first(&Matmul4bitDesc { weight, ..desc(m, [64, k], 64) }, TARGET)
    };
    for (m, k, part) in [(1, 320, "_s64_"), (1, 352, "_s32_"), (40, 256, "_wg_s64_"), (1, 96, "_simt_")] {
        let name = of_16(m, k);
        assert!(name.contains("nvfp4_e4m3_bf16") && name.contains(part), "{m} {k}: {name}");
    }
    // Groups of columns in any order.
    let indexed = |m| {
        let weight = Weight4bitDesc::new(WeightFormat::Int4, [64, 256], 64);
        let weight = Weight4bitDesc { group_index: true, ..weight };
        launches(&Matmul4bitDesc { weight, ..desc(m, [64, 256], 64) }, TARGET)
    };
    assert_eq!(indexed(4), ["matmul_4bit_simt_int4_f32_indexed_bf16_shift"]);
    assert_eq!(indexed(5)[0], "matmul_4bit_expand_int4_f32_indexed_bf16_shift_x8");
    // Of few tiles a cluster shares out the common dimension. Of warps, what x takes of shared memory decides how many parts there are.
    let cluster = launches(&desc(32, [64, 8192], 64), TARGET);
    assert!(cluster.len() == 1 && cluster[0].contains("_wg_") && cluster[0].contains("_p4"), "{cluster:?}");
    let parts = launches(&desc(32, [64, 8128], 64), TARGET);
    assert!(parts[0].ends_with("_parts") && parts[0].contains("_w8_"), "{parts:?}");
    assert_eq!(parts[1], "matmul_4bit_sum_bf16");
    assert_eq!(launches(&desc(1, [8192, 8192], 64), TARGET).len(), 1);
}

#[test]
fn functions_multiply_what_quantize_makes() {
    let device = device();
    let stream = device.stream().expect("stream");
    let values = |len: usize, step: usize| -> Vec<f32> {
        (0..len).map(|i| ((i * step + i / 7) % 101) as f32 / 50.0 - 1.0).collect()
    };
    let weight = Tensor::from_slice(&device, &values(12 * 64, 37), &[12, 64]).expect("memory");
    let x = Tensor::from_slice(&device, &values(6 * 64, 29), &[2, 3, 64]).expect("memory");
    let dy = Tensor::from_slice(&device, &values(6 * 12, 31), &[2, 3, 12]).expect("memory");
    for scheme in Scheme::ALL {
        let order = match scheme {
            Scheme::Nf4 | Scheme::Fp4 => NibbleOrder::HighFirst,
            _ => NibbleOrder::LowFirst,
        };
        let q = quantize(&stream, &weight, scheme, 32, order).expect("codes");
        let numbers = dequantize(&stream, &q, DType::F32).and_then(|w| Ok(w.to_vec_on::<f32>(&stream)?));
        let numbers = numbers.expect("numbers");
        let of_weight = Weight4bit::from_quantized(&q).expect("a weight");
        let y = matmul_4bit(&stream, &x, of_weight, None).expect("y");
        assert_eq!(y.shape(), [2, 3, 12]);
        let product = |a: &[f32], of: &dyn Fn(usize) -> f32| -> f32 {
            a.iter().enumerate().map(|(i, a)| a * of(i)).sum()
        };
        let xs = values(6 * 64, 29);
        for (i, y) in y.to_vec_on::<f32>(&stream).expect("values").into_iter().enumerate() {
            let want = product(&xs[i / 12 * 64..][..64], &|k| numbers[i % 12 * 64 + k]);
            assert!((y - want).abs() < 1e-4, "{scheme:?} {i}: {y} {want}");
        }
        let dx = matmul_4bit_backward(&stream, &dy, of_weight).expect("dx");
        assert_eq!(dx.shape(), [2, 3, 64]);
        let dys = values(6 * 12, 31);
        for (i, dx) in dx.to_vec_on::<f32>(&stream).expect("values").into_iter().enumerate() {
            let want = product(&dys[i / 64 * 12..][..12], &|n| numbers[n * 64 + i % 64]);
            assert!((dx - want).abs() < 1e-4, "{scheme:?} {i}: {dx} {want}");
        }
    }
}

#[test]
fn functions_check_their_tensors() {
    let device = device();
    let stream = device.stream().expect("stream");
    let weight = Tensor::from_slice(&device, &[0.5f32; 4 * 64], &[4, 64]).expect("memory");
    let q = quantize(&stream, &weight, Scheme::Nf4, 64, NibbleOrder::HighFirst).expect("codes");
    let nested = quantize_nested(&stream, &q.scales).expect("scales");
    let of_weight = Weight4bit::from_quantized(&q).expect("a weight");
    let x = Tensor::from_slice(&device, &[1.0f32; 63], &[1, 63]).expect("memory");
    let e = matmul_4bit(&stream, &x, of_weight, None).expect_err("a shape");
    assert!(matches!(e, Error::Plan(PlanError::Parameter { parameter: "x", .. })), "{e}");
    let x = Tensor::from_slice(&device, &[1.0f32; 64], &[64]).expect("memory");
    let y = matmul_4bit(&stream, &x, of_weight.with_nested(&nested), None).expect("y");
    assert_eq!(y.shape(), [4]);
    for y in y.to_vec_on::<f32>(&stream).expect("values") {
        assert!((y - 32.0).abs() < 1e-3, "{y}");
    }
    // Scales in the place of nested ones, and the other way around.
    let wrong = Weight4bit { scales: &q.scales, ..of_weight.with_nested(&nested) };
    assert!(matmul_4bit(&stream, &x, wrong, None).is_err());
    let wrong = Weight4bit { scales: &nested.codes, ..of_weight };
    assert!(matmul_4bit(&stream, &x, wrong, None).is_err());
    let bias = Tensor::from_slice(&device, &[1.0f32; 3], &[3]).expect("memory");
    assert!(matmul_4bit(&stream, &x, of_weight, Some(&bias)).is_err());
    let low = quantize(&stream, &weight, Scheme::Nf4, 64, NibbleOrder::LowFirst).expect("codes");
    let e = Weight4bit::from_quantized(&low).expect_err("an order");
    assert!(matches!(e, PlanError::Parameter { parameter: "order", .. }), "{e}");
}

#[test]
fn a_row_has_the_same_result_whatever_is_in_others() {
    let device = device();
    let stream = device.stream().expect("stream");
    let values: Vec<f32> = (0..40 * 256).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect();
    let weight = Tensor::from_slice(&device, &values, &[40, 256]).expect("memory");
    let q = quantize(&stream, &weight, Scheme::Nf4, 64, NibbleOrder::HighFirst).expect("codes");
    let of_weight = Weight4bit::from_quantized(&q).expect("a weight");
    let row = |other: f32| {
        let x: Vec<half::bf16> = (0..3 * 256)
            .map(|i| half::bf16::from_f32(if i < 256 { (i % 13) as f32 } else { other }))
            .collect();
        let x = Tensor::from_slice(&device, &x, &[3, 256]).expect("memory");
        let y = matmul_4bit(&stream, &x, of_weight, None).expect("y");
        y.to_vec_on::<half::bf16>(&stream).expect("values")[..40].to_vec()
    };
    assert_eq!(row(1.0), row(f32::NAN));
}

/// Columns of an NVFP4 weight, one for each row of `x`: what the product stores is the number times both scales, rounded once, on every path that
/// does not expand.
#[test]
fn numbers_of_nvfp4_are_exact() {
    let device = device();
    let stream = device.stream().expect("stream");
    let tensor_scale = 0.37f32 / 2688.0;
    let of_whole = Tensor::from_slice(&device, &[tensor_scale], &[1]).expect("memory");
    // Slices of 64 and of 32, warpgroups of each width, and any size.
    for (m, n, k) in [
        (7usize, 40usize, 320usize),
        (12, 40, 352),
        (20, 40, 320),
        (32, 70, 256),
        (64, 70, 256),
        (100, 70, 256),
        (200, 70, 256),
        (3, 9, 41),
    ] {
        let (pitch, groups) = (k.div_ceil(2), k.div_ceil(16));
        let codes: Vec<u8> = (0..n * pitch).map(|i| (i * 37 % 251) as u8).collect();
        // Every number but NaN.
        let bytes: Vec<u8> = (0..n * groups).map(|i| (i * 11 % 254 + i * 11 % 254 / 127) as u8).collect();
        let codes_there = Tensor::from_slice(&device, &codes, &[n, pitch]).expect("memory");
        let scales = Tensor::from_bytes(&device, DType::F8E4M3, &bytes, &[n, groups]).expect("memory");
        let weight = Weight4bit {
            format: WeightFormat::Nvfp4,
            shape: [n, k],
            group_size: 16,
            codes: &codes_there,
            scales: &scales,
            zero_points: None,
            nested: None,
            tensor_scale: Some(&of_whole),
            group_index: None,
        };
        let column = |row: usize| (row * 83 + 5) % k;
        let one = |i: usize| half::f16::from_f32(if column(i / k) == i % k { 1.0 } else { 0.0 });
        let x: Vec<half::f16> = (0..m * k).map(one).collect();
        let x = Tensor::from_slice(&device, &x, &[m, k]).expect("memory");
        let y = matmul_4bit(&stream, &x, weight, None).expect("y");
        for (i, y) in y.to_vec_on::<half::f16>(&stream).expect("values").into_iter().enumerate() {
            let (row, at) = (i % n, column(i / n));
            let number =
                WeightFormat::Nvfp4.table()[usize::from(codes[row * pitch + at / 2] >> (4 * (at % 2)) & 15)];
            let scale = e4m3_value(bytes[row * groups + at / 16]) as f32;
            let want = half::f16::from_f32(number * scale * tensor_scale);
            assert_eq!(y, want, "{m} x {n} x {k}: {number} * {scale}");
        }
        let without = Weight4bit { tensor_scale: None, ..weight };
        assert!(matmul_4bit(&stream, &x, without, None).is_err());
        let as_bytes = Tensor::from_slice(&device, &bytes, &[n, groups]).expect("memory");
        assert!(matmul_4bit(&stream, &x, Weight4bit { scales: &as_bytes, ..weight }, None).is_err());
    }
}
