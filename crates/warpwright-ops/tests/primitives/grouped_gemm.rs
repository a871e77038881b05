//! Products of groups through their functions, what has no plan, and what results do not depend on.

use warpwright_ops::cast::cast;
use warpwright_ops::grouped_gemm::{
    GroupedGemmDesc, Grouping, check_ends, grouped_matmul, grouped_matmul_k, tuning,
};
use warpwright_ops::{Error, Operation, PlanError};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::{Device, EmulatorConfig, Error as RuntimeError, Tensor};

const TARGET: Target = Target::sm(90);

fn device(sm: u32) -> Device {
    Device::emulator_with(EmulatorConfig { target: Target::sm(sm), ..EmulatorConfig::default() })
}

/// Small integers of both signs, whose sums are exact, without a pattern that a transposed index keeps.
fn numbers(len: usize, salt: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 37 + i / 7 + salt) % 11) as f32 - 5.0).collect()
}

fn matrix(device: &Device, shape: &[usize], salt: usize) -> Tensor {
    Tensor::from_slice(device, &numbers(shape.iter().product(), salt), shape).expect("memory")
}

fn ends_of(device: &Device, ends: &[i32]) -> Tensor {
    Tensor::from_slice(device, ends, &[ends.len()]).expect("memory")
}

#[test]
fn what_has_no_plan() {
    let good = GroupedGemmDesc::new(DType::BF16, 4, [64, 16, 32], true);
    let by_k = GroupedGemmDesc::new_k(DType::BF16, 4, [16, 32, 64]);
    assert_eq!(good.plan(TARGET).expect("plan").steps().len(), 1);
    let parameter = |desc: &GroupedGemmDesc, name| match desc.plan(TARGET) {
        Err(PlanError::Parameter { op, parameter, .. }) => {
            let of = if desc.grouping == Grouping::M { "grouped_gemm" } else { "k_grouped_gemm" };
            assert_eq!((op, parameter), (of, name));
        }
        other => panic!("{name}: {other:?}"),
    };
    for good in [&good, &by_k] {
        parameter(&GroupedGemmDesc { lda: good.lda - 1, ..good.clone() }, "lda");
        parameter(&GroupedGemmDesc { ldb: good.ldb - 1, ..good.clone() }, "ldb");
        parameter(&GroupedGemmDesc { ldy: good.ldy - 1, ..good.clone() }, "ldy");
        parameter(&GroupedGemmDesc { lda: usize::MAX / 2, ..good.clone() }, "lda");
        parameter(&GroupedGemmDesc { ldb: usize::MAX / 2, ..good.clone() }, "ldb");
        parameter(&GroupedGemmDesc { groups: 1 << 31, ..good.clone() }, "groups");
        parameter(&GroupedGemmDesc { m: 1 << 31, ..good.clone() }, "m");
        for dtype in [DType::F64, DType::I32, DType::F8E4M3] {
            let e = GroupedGemmDesc { dtype, ..good.clone() }.plan(TARGET).expect_err("a type");
            assert!(matches!(e, PlanError::DType { tensor: "a", .. }), "{e}");
        }
    }
    parameter(&GroupedGemmDesc { transpose_b: true, ldb: 64, ..by_k }, "transpose_b");
    let config = tuning::configs()[0];
    assert!(good.plan_with(TARGET, config).is_ok());
    let f32s = GroupedGemmDesc { dtype: DType::F32, ..good.clone() };
    let anywhere = GroupedGemmDesc { lda: 33, ..good.clone() };
    for (desc, target) in [(&f32s, TARGET), (&anywhere, TARGET), (&good, Target::sm(80))] {
        let e = desc.plan_with(target, config).expect_err("no tensor copies");
        assert!(matches!(e, PlanError::Parameter { parameter: "dtype", .. }), "{e}");
    }
    let clusters = tuning::PersistentConfig { cluster: 2, ..config };
    let e = good.plan_with(TARGET, clusters).expect_err("clusters");
    assert!(matches!(e, PlanError::Parameter { parameter: "config", .. }), "{e}");
}

#[test]
fn ends_are_checked_on_the_host() {
    assert!(check_ends("ends", &[0, 5, 5, 70], 70).is_ok());
    assert!(check_ends("ends", &[], 0).is_ok());
    for (ends, got) in [
        (&[-1, 5][..], "-1 at 0"),
        (&[5, 4, 70], "4 at 1"),
        (&[5, 71], "71 at 1"),
        (&[i32::MAX], "2147483647 at 0"),
    ] {
        match check_ends("offs", ends, 70) {
            Err(PlanError::Parameter { parameter: "offs", got: named, .. }) => assert_eq!(named, got),
            other => panic!("{ends:?}: {other:?}"),
        }
    }
}

#[test]
fn functions_check_their_tensors() {
    let device = device(90);
    let stream = device.stream().expect("stream");
    let tensor = |shape: &[usize]| matrix(&device, shape, 0);
    let (a, b, ends) = (tensor(&[6, 8]), tensor(&[2, 5, 8]), ends_of(&device, &[2, 6]));
    let y = grouped_matmul(&stream, &a, &b, &ends, true).expect("y");
    assert_eq!((y.shape(), y.dtype()), (&[6, 5][..], DType::F32));
    let refused = |result: Result<Tensor, Error>, name: &str| match result {
        Err(Error::Plan(PlanError::Parameter { parameter, .. })) => assert_eq!(parameter, name),
        other => panic!("{name}: {other:?}"),
    };
    refused(grouped_matmul(&stream, &tensor(&[6, 8, 1]), &b, &ends, true), "a");
    refused(grouped_matmul(&stream, &a, &tensor(&[5, 8]), &ends, true), "b");
    refused(grouped_matmul(&stream, &a, &b, &ends, false), "b");
    refused(grouped_matmul(&stream, &a, &b, &ends_of(&device, &[2, 4, 6]), true), "ends");
    refused(grouped_matmul_k(&stream, &tensor(&[6]), &a, &ends), "a");
    refused(grouped_matmul_k(&stream, &a, &tensor(&[5, 8]), &ends), "b");
    let two = Tensor::from_slice(&device, &[2, 6], &[1, 2]).expect("memory");
    refused(grouped_matmul_k(&stream, &a, &a, &two), "ends");
    let floats = Tensor::from_slice(&device, &[2.0f32, 6.0], &[2]).expect("memory");
    let e = grouped_matmul(&stream, &a, &b, &floats, true).expect_err("ends of f32");
    assert!(matches!(e, Error::Runtime(RuntimeError::DType { argument: "ends", .. })), "{e}");
    let narrow = cast(&stream, &b, DType::F16).expect("cast");
    let e = grouped_matmul(&stream, &a, &narrow, &ends, true).expect_err("f32 by f16");
    assert!(matches!(e, Error::Runtime(RuntimeError::DType { argument: "b", .. })), "{e}");
}

/// The same numbers through tensor copies and on the ordinary units: sums of these integers are exact.
#[test]
fn every_target_computes_the_same() {
    let (rows, n, k, ends) = (90, 40, 72, [0i32, 33, 33, 81]);
    let [a, b] = [(rows * k, 1), (ends.len() * n * k, 2)].map(|(len, salt)| numbers(len, salt));
    let mut want = vec![0.0f32; rows * n];
    for row in 0..rows {
        let Some(group) = ends.iter().position(|end| row < *end as usize) else { continue };
        for col in 0..n {
            let of_b = &b[(group * n + col) * k..][..k];
            want[row * n + col] = a[row * k..][..k].iter().zip(of_b).map(|(a, b)| a * b).sum();
        }
    }
    for sm in [75, 80, 90, 120] {
        let device = device(sm);
        let stream = device.stream().expect("stream");
        let narrow = |shape: &[usize], values: &[f32]| {
            let wide = Tensor::from_slice(&device, values, shape).expect("memory");
            cast(&stream, &wide, DType::F16).expect("cast")
        };
        let (a, b) = (narrow(&[rows, k], &a), narrow(&[ends.len(), n, k], &b));
        let y = grouped_matmul(&stream, &a, &b, &ends_of(&device, &ends), true).expect("launch");
        let y = cast(&stream, &y, DType::F32).expect("cast");
        assert_eq!(y.to_vec_on::<f32>(&stream).expect("copy"), want, "sm_{sm}");
    }
}

/// With one matrix for all groups, results are the same bits wherever groups end.
#[test]
fn results_do_not_depend_on_where_groups_end() {
    let device = device(90);
    let stream = device.stream().expect("stream");
    let (rows, n, k) = (150, 40, 136);
    let random = |len: usize| {
        let values = warpwright_testkit::inputs::Input::Normal.values(len, 7);
        values.into_iter().map(|value| value as f32).collect::<Vec<f32>>()
    };
    let narrow = |shape: &[usize], values: &[f32]| {
        let wide = Tensor::from_slice(&device, values, shape).expect("memory");
        cast(&stream, &wide, DType::BF16).expect("cast")
    };
    let a = narrow(&[rows, k], &random(rows * k));
    let same = narrow(&[3, n, k], &random(n * k).repeat(3));
    let product = |ends: &[i32]| {
        let y = grouped_matmul(&stream, &a, &same, &ends_of(&device, ends), true).expect("launch");
        y.to_bytes().expect("bytes")
    };
    let all = product(&[0, 0, 150]);
    for ends in [[150, 150, 150], [1, 2, 150], [64, 128, 150], [37, 101, 150]] {
        assert_eq!(product(&ends), all, "{ends:?}");
    }
}
