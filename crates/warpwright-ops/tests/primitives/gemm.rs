//! Products of matrices: every case on targets with other kernels, what is refused, and what must not change.

use warpwright::dsl::Major;
use warpwright_ops::activation::{Activation, GatedActivation};
use warpwright_ops::gemm::tuning::{Access, PersistentConfig};
use warpwright_ops::gemm::{
    ActivationLinearBackwardDesc, Addend, GatedActivationLinearBackwardDesc, GatedLinearDesc,
    GatedLinearOptions, GemmArgs, GemmDesc, LinearActivationDesc, MatmulOptions, Precision,
    activation_linear_backward, gated_activation_linear_backward, gated_linear, linear_activation, matmul,
    reference, tuning,
};
use warpwright_ops::plan::Real;
use warpwright_ops::{Error, Operation, PlanError};
use warpwright_ptx::isa::DeviceLimits;
use warpwright_ptx::{DType, Target};
use warpwright_runtime::{Device, EmulatorConfig, Error as RuntimeError, LaunchStep, Tensor};
use warpwright_testkit::storage;

fn device() -> Device {
    Device::emulator()
}

#[test]
fn descriptors_without_a_plan() {
    const TARGET: Target = Target::sm(90);
    let good = GemmDesc::new(DType::BF16, [8, 16, 24], false, false);
    assert_eq!(good.plan(TARGET).expect("plan").steps().len(), 1);
    let e = GemmDesc { dtype: DType::I32, ..good.clone() }.plan(TARGET).expect_err("no integers");
    assert!(matches!(e, PlanError::DType { op: "gemm", .. }), "{e}");
    let parameter = |desc: GemmDesc, name| match desc.plan(TARGET) {
        Err(PlanError::Parameter { parameter, .. }) => assert_eq!(parameter, name),
        other => panic!("{name}: {other:?}"),
    };
    parameter(GemmDesc { lda: 23, ..good.clone() }, "lda");
    parameter(GemmDesc { ldb: 15, ..good.clone() }, "ldb");
    parameter(GemmDesc { ldy: 15, ..good.clone() }, "ldy");
    parameter(GemmDesc { batch: 2, stride_y: 127, ..good.clone() }, "stride_y");
    parameter(GemmDesc { batch: 3, stride_a: usize::MAX / 4, ..good.clone() }, "lda");
    parameter(GemmDesc { alpha: Real::new(f64::NAN), ..good.clone() }, "alpha");
    parameter(GemmDesc { m: 1 << 31, ..good.clone() }, "m");
    parameter(GemmDesc { precision: Precision::Tf32, ..good.clone() }, "precision");
    let rounded = GemmDesc { precision: Precision::Tf32, dtype: DType::F32, ..good.clone() };
    assert_eq!(rounded.plan(TARGET).expect("plan").steps().len(), 1);
    let e = rounded.plan(Target::sm(75)).expect_err("no tf32");
    assert!(matches!(e, PlanError::Target { op: "gemm", needs: 80, .. }), "{e}");
    let exact = tuning::configs(DType::F32, TARGET)[0];
    let e = rounded.plan_with(TARGET, exact).expect_err("a kernel of another precision");
    assert!(matches!(e, PlanError::Parameter { parameter: "precision", .. }), "{e}");
    let slope = Real::new(0.1);
    let leaky = Activation::LeakyRelu { negative_slope: slope };
    parameter(GemmDesc { activation: Some(leaky), ..good }, "activation");
}

#[test]
fn kernels_that_no_device_of_the_target_has_room_for_are_refused() {
    const SMALL: Target = Target::sm(86);
    let limit = DeviceLimits::of(SMALL).shared_per_block;
    let mut refused = 0;
    for dtype in DType::FLOATS {
        let desc = GemmDesc::new(dtype, [256, 256, 256], false, true);
        let tiled = tuning::configs(dtype, Target::sm(80)).into_iter();
        for config in tiled.filter(|config| config.shared_bytes(dtype, Major::K, Major::K) > limit) {
            let e = desc.plan_with(SMALL, config).map(|plan| plan.steps()[0].dynamic_shared());
            if matches!(e, Err(PlanError::Parameter { parameter: "precision", .. })) {
                continue;
            }
            assert!(
                matches!(&e, Err(PlanError::SharedMemory { op: "gemm", target: SMALL, bytes, limit: room, .. })
                    if *bytes > u64::from(limit) && *room == limit),
                "{config:?}: {e:?}"
            );
            refused += 1;
        }
    }
    assert!(refused > 0, "no kernel for sm_80 is larger than a block of sm_86");
}

#[test]
fn many_batches_and_shared_sums_have_their_launches() {
    const TARGET: Target = Target::sm(90);
    let desc = GemmDesc { batch: 70_000, ..GemmDesc::new(DType::F32, [4, 4, 4], false, false) };
    let plan = desc.plan(TARGET).expect("plan");
    assert_eq!(plan.steps().iter().map(|s| s.grid()[2]).collect::<Vec<_>>(), [65_535, 4_465]);
    let plan = GemmDesc::new(DType::BF16, [16, 512, 8192], false, true).plan(TARGET).expect("plan");
    assert_eq!(plan.steps().len(), 2, "few tiles: blocks share the common dimension");
    assert!(plan.workspace_bytes() > 0);
    assert!(
        GemmDesc::new(DType::F64, [0, 4, 4], false, false).plan(TARGET).expect("plan").steps().is_empty()
    );
    for dtype in DType::FLOATS {
        for sm in [75, 80, 86, 89, 90, 100, 120] {
            let configs = tuning::configs(dtype, Target::sm(sm));
            for shape in [[1, 1, 1], [64, 64, 4096], [4096, 4096, 4096], [1, 10_000, 512]] {
                let [m, n, k] = shape;
                for access in [Access::TensorMap, Access::Wide, Access::Elements] {
                    let shape = tuning::Shape { m, n, k, batch: 1 };
                    let choose = |precision| tuning::choose(dtype, precision, Target::sm(sm), shape, access);
                    let choice = choose(Precision::Full).expect("a choice");
                    assert!(configs.contains(&choice.config), "{dtype} sm_{sm} {:?}", choice.config);
                    if let (DType::F32, Some(choice)) = (dtype, choose(Precision::Tf32)) {
                        let precision = choice.config.precision(dtype);
                        assert!(
                            configs.contains(&choice.config) && (precision == Precision::Tf32) == (sm >= 80)
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn operands_whose_rows_begin_anywhere_are_packed_for_large_products() {
    const TARGET: Target = Target::sm(90);
    let entries = |sizes| {
        let plan = GemmDesc::new(DType::BF16, sizes, false, true).plan(TARGET).expect("plan");
        let names = plan.steps().iter().map(|step| step.kernel().name().to_owned());
        (names.collect::<Vec<_>>(), plan.workspace_bytes())
    };
    let (names, workspace) = entries([4096, 4096, 4095]);
    assert_eq!(names.len(), 3, "{names:?}");
    assert!(names[..2].iter().all(|name| name == "gemm_pack_bf16"), "{names:?}");
    assert_eq!(workspace, 2 * 4096 * 4096 * 2);
    // Neither where nothing need be packed, nor where a second launch takes longer than the product.
    for sizes in [[4096, 4096, 4096], [64, 64, 63]] {
        let (names, workspace) = entries(sizes);
        assert_eq!((names.len(), workspace), (1, 0), "{sizes:?}: {names:?}");
    }
    // Those of a batch that is one matrix are packed once.
    let shared =
        GemmDesc { batch: 3, stride_b: 0, ..GemmDesc::new(DType::F16, [2048, 2048, 2047], false, true) };
    let plan = shared.plan(TARGET).expect("plan");
    let grids: Vec<_> = plan.steps().iter().map(|step| step.grid()[2]).collect();
    assert_eq!(grids, [3, 1, 1]);
    assert_eq!(plan.workspace_bytes(), 4 * 2048 * 2048 * 2);
}

/// Rows that begin at multiples of 16 bytes and end within one: where no asynchronous copy drops the rest, too.
#[test]
fn rows_may_end_within_a_vector() {
    for (sm, dtype) in [75, 80, 90].into_iter().flat_map(|sm| DType::FLOATS.map(|dtype| (sm, dtype))) {
        let config = EmulatorConfig { target: Target::sm(sm), ..EmulatorConfig::default() };
        let device = Device::emulator_with(config);
        for (ta, tb) in [(false, false), (true, false), (false, true)] {
            let [m, n, k] = [20, 67, 29];
            let packed = GemmDesc::new(dtype, [m, n, k], ta, tb);
            let [lda, ldb] = [packed.lda, packed.ldb].map(|leading| leading.next_multiple_of(8));
            let desc = GemmDesc { lda, ldb, ..packed };
            let plan = desc.plan(device.target()).expect("plan");
            // Whole numbers, whose sums any type holds.
            let value = |i: usize| ((i * 7 + i / 5) % 5) as f64 - 2.0;
            let [a, b] =
                [0, 1].map(|slot: usize| (0..plan.tensors()[slot].len).map(value).collect::<Vec<_>>());
            let [of_a, of_b] = [&a, &b].map(|values| {
                let bytes = storage::encode(dtype, values);
                Tensor::from_bytes(&device, dtype, &bytes, &[values.len()]).expect("memory")
            });
            let mut y = Tensor::empty(&device, dtype, &[m * n]).expect("memory");
            let (c, bias, workspace) = (Addend::Absent, None, None);
            let (left, right, dbias) = (of_a.as_ref(), of_b.as_ref(), None);
            let args = GemmArgs { a: left, b: right, c, bias, y: y.as_mut(), dbias, workspace };
            plan.launch(&device.stream().expect("stream"), args).expect("launch");
            let got = storage::decode(dtype, &y.to_bytes().expect("bytes"));
            for (at, got) in got.into_iter().enumerate() {
                let (want, _) = reference::element(&desc, (&a, &b), None, None, (0, at / n, at % n));
                assert_eq!(got, want, "sm_{sm} {dtype} {ta} {tb} at {at}");
            }
        }
    }
}

#[test]
fn launches_check_their_tensors() {
    let device = device();
    let stream = device.stream().expect("stream");
    let floats =
        |values: &[f32], shape: &[usize]| Tensor::from_slice(&device, values, shape).expect("memory");
    let plan = GemmDesc::new(DType::F32, [2, 2, 2], false, false).plan(device.target()).expect("plan");
    let (a, b) = (floats(&[1.0, 2.0, 3.0, 4.0], &[2, 2]), floats(&[1.0; 3], &[3]));
    let mut y = floats(&[0.0; 4], &[2, 2]);
    fn args<'t>(a: &'t Tensor, b: &'t Tensor, y: &'t mut Tensor) -> GemmArgs<'t> {
        let (a, b, y) = (a.as_ref(), b.as_ref(), y.as_mut());
        GemmArgs { a, b, c: Addend::Absent, bias: None, y, dbias: None, workspace: None }
    }
    let e = plan.launch(&stream, args(&a, &b, &mut y)).expect_err("b is too short");
    assert!(matches!(e, RuntimeError::Elements { argument: "b", .. }), "{e}");
    let e = plan.launch(&stream, GemmArgs { bias: Some(b.as_ref()), ..args(&a, &a, &mut y) });
    assert!(matches!(e, Err(RuntimeError::Presence { argument: "bias", given: true, .. })));
}

#[test]
fn free_function() {
    let device = device();
    let stream = device.stream().expect("stream");
    let floats =
        |values: &[f32], shape: &[usize]| Tensor::from_slice(&device, values, shape).expect("memory");
    let a = floats(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3]);
    let b = floats(&[1.0, 0.0, 2.0, -1.0, 1.0, 0.0], &[2, 3]);
    let bias = floats(&[10.0, -20.0], &[2]);
    let relu = Some(Activation::Relu);
    let linear =
        MatmulOptions { transpose_b: true, bias: Some(&bias), activation: relu, ..Default::default() };
    let y = matmul(&stream, &a, &b, linear).expect("launch");
    assert_eq!((y.shape(), y.to_vec::<f32>().expect("copy")), (&[2, 2][..], vec![17.0, 0.0, 26.0, 0.0]));
    // A batch against one matrix, and against its own.
    let a = floats(&[1.0, 2.0, 3.0, 4.0], &[2, 1, 2]);
    let y = matmul(&stream, &a, &floats(&[1.0, 1.0], &[2, 1]), MatmulOptions::default()).expect("launch");
    assert_eq!((y.shape(), y.to_vec::<f32>().expect("copy")), (&[2, 1, 1][..], vec![3.0, 7.0]));
    let y =
        matmul(&stream, &a, &a, MatmulOptions { transpose_a: true, ..Default::default() }).expect("launch");
    let want = vec![1.0, 2.0, 2.0, 4.0, 9.0, 12.0, 12.0, 16.0];
    assert_eq!((y.shape(), y.to_vec::<f32>().expect("copy")), (&[2, 2, 2][..], want));
    let e = matmul(&stream, &a, &bias, MatmulOptions::default()).expect_err("a vector");
    assert!(matches!(e, Error::Plan(PlanError::Parameter { parameter: "b", .. })), "{e}");
    let e = matmul(&stream, &a, &a, MatmulOptions::default()).expect_err("inner dimensions");
    assert!(matches!(e, Error::Plan(PlanError::Parameter { parameter: "b", .. })), "{e}");
}

/// The result does not depend on the order in which blocks and warps run, nor on the run.
#[test]
fn every_schedule_gives_the_same_bits() {
    let mut results = Vec::new();
    for seed in 0..3 {
        let config = EmulatorConfig { seed, ..EmulatorConfig::default() };
        let device = Device::emulator_with(config);
        let stream = device.stream().expect("stream");
        let values = |len: usize| (0..len).map(|i| ((i * 37 % 101) as f32).sin()).collect::<Vec<f32>>();
        let a = Tensor::from_slice(&device, &values(8 * 1200), &[8, 1200]).expect("memory");
        let b = Tensor::from_slice(&device, &values(40 * 1200), &[40, 1200]).expect("memory");
        let y = matmul(&stream, &a, &b, MatmulOptions { transpose_b: true, ..Default::default() })
            .expect("launch");
        results.push(y.to_vec::<f32>().expect("copy"));
        assert!(device.findings().is_empty());
    }
    assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
}

/// The gradients of a linear layer's weight and bias come together where persistent blocks multiply, in one launch or, of few tiles, in one and
/// another that adds parts. Elsewhere one more reads `dy`.
#[test]
fn sums_of_rows_come_with_large_products() {
    let names = |dtype, sizes, sm| {
        let desc = GemmDesc { bias_gradient: true, ..GemmDesc::new(dtype, sizes, true, false) };
        let plan = desc.plan(Target::sm(sm)).expect("plan");
        plan.steps().iter().map(|step| step.kernel().name().to_owned()).collect::<Vec<_>>()
    };
    for sizes in [[3072, 768, 12608], [768, 3072, 12608]] {
        let shared = names(DType::BF16, sizes, 90);
        let [product, add] = &shared[..] else { panic!("{sizes:?}: {shared:?}") };
        assert!(product.ends_with("_shared_dbias") && add.starts_with("gemm_add_shared_"), "{shared:?}");
    }
    for sizes in [[4096, 4096, 16384], [1024, 4096, 8192]] {
        let fused = names(DType::BF16, sizes, 90);
        assert!(matches!(&fused[..], [one] if one.ends_with("_dbias")), "{sizes:?}: {fused:?}");
    }
    for (dtype, sm) in [(DType::BF16, 80), (DType::F32, 90), (DType::F64, 90)] {
        let apart = names(dtype, [1024, 1024, 1024], sm);
        assert!(apart.len() >= 2 && apart.iter().any(|name| name.starts_with("reduce_sum")), "{apart:?}");
    }
    // Beside a product of nothing, too.
    assert!(!names(DType::F16, [8, 0, 8], 90).is_empty());
    let whole = GemmDesc { bias_gradient: true, ..GemmDesc::new(DType::F16, [8, 8, 8], true, false) };
    let refused = [
        GemmDesc { transpose_a: false, ..whole.clone() },
        GemmDesc { lda: 16, ..whole.clone() },
        GemmDesc { batch: 2, ..whole },
    ];
    for desc in refused {
        let e = desc.plan(Target::sm(90)).expect_err("sums of rows");
        assert!(matches!(e, PlanError::Parameter { parameter: "bias_gradient", .. }), "{e}");
    }
}

/// Both results are the same whatever order blocks and warps run in, and tiles share the rows as they do in any other.
#[test]
fn sums_of_rows_do_not_depend_on_schedules() {
    const SIZES: [usize; 3] = [200, 300, 1200];
    let [m, n, k] = SIZES;
    let values = |len: usize| (0..len).map(|i| f64::from((i as f32 * 0.37).sin())).collect::<Vec<_>>();
    for config in tuning::configs(DType::BF16, Target::sm(90)) {
        if !matches!(config, tuning::Config::Persistent(_) | tuning::Config::Shared(_)) {
            continue;
        }
        let desc = GemmDesc { bias_gradient: true, ..GemmDesc::new(DType::BF16, SIZES, true, false) };
        let plan = desc.plan_with(Target::sm(90), config).expect("plan");
        let mut results = Vec::new();
        for seed in 0..3 {
            let device = Device::emulator_with(EmulatorConfig { seed, ..EmulatorConfig::default() });
            let stream = device.stream().expect("stream");
            let tensor = |len: usize| {
                let bytes = storage::encode(DType::BF16, &values(len));
                Tensor::from_bytes(&device, DType::BF16, &bytes, &[len]).expect("memory")
            };
            let (a, b) = (tensor(m * k), tensor(k * n));
            let [mut y, mut dbias] =
                [m * n, m].map(|len| Tensor::empty(&device, DType::BF16, &[len]).expect("memory"));
            // For tensors of any alignment.
            let mut workspace = plan.workspace(&stream).expect("memory");
            let args = GemmArgs {
                a: a.as_ref(),
                b: b.as_ref(),
                c: Addend::Absent,
                bias: None,
                y: y.as_mut(),
                dbias: Some(dbias.as_mut()),
                workspace: workspace.as_mut().map(Tensor::as_mut),
            };
            plan.launch(&stream, args).expect("launch");
            results.push([y, dbias].map(|x| x.to_bytes().expect("bytes")));
            assert!(device.findings().is_empty());
        }
        assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "{config:?}");
    }
}

/// Gated units are one launch where persistent blocks multiply, and two products and the unit elsewhere and where few tiles are shared.
#[test]
fn gated_units_are_one_launch_of_large_products() {
    let unit = |dtype, [rows, out_features, in_features]: [usize; 3]| {
        let activation = GatedActivation::Swiglu;
        GatedLinearDesc { dtype, rows, in_features, out_features, activation, bias: false, saved: false }
    };
    let launches = |desc: &GatedLinearDesc, sm| {
        let plan = desc.plan(Target::sm(sm)).expect("plan");
        (plan.steps().len(), plan.steps()[0].kernel().name().starts_with("gated_linear_"))
    };
    for sizes in [[8192, 8192, 2048], [4096, 14_336, 4096], [64, 14_336, 4096], [300, 1001, 1024]] {
        assert_eq!(launches(&unit(DType::BF16, sizes), 90), (1, true), "{sizes:?}");
        assert!(!launches(&unit(DType::BF16, sizes), 80).1, "{sizes:?}");
        assert!(!launches(&unit(DType::F32, sizes), 90).1, "{sizes:?}");
    }
    // Rows that begin anywhere, and a common dimension that many blocks share.
    for sizes in [[256, 512, 1023], [16, 128, 65_536]] {
        let (count, fused) = launches(&unit(DType::F16, sizes), 90);
        assert!(count >= 3 && !fused, "{sizes:?}");
    }
    let layouts =
        tuning::configs(DType::BF16, Target::sm(90)).into_iter().filter_map(|config| match config {
            tuning::Config::Persistent(layout) => Some(layout),
            _ => None,
        });
    let small = unit(DType::BF16, [64, 64, 64]);
    for layout in layouts {
        let refused = [
            (layout.cols < 128, small.plan_with(Target::sm(90), layout)),
            (true, small.plan_with(Target::sm(80), layout)),
            (true, GatedLinearDesc { in_features: 63, ..small.clone() }.plan_with(Target::sm(90), layout)),
            (true, GatedLinearDesc { dtype: DType::F32, ..small.clone() }.plan_with(Target::sm(90), layout)),
        ];
        for (refused, plan) in refused {
            let is =
                matches!(plan, Err(PlanError::Parameter { op: "gated_linear", parameter: "config", .. }));
            assert_eq!(is, refused, "{layout:?}");
        }
    }
    let e = unit(DType::BF16, [1 << 31, 8, 8]).plan(Target::sm(90)).expect_err("too many rows");
    assert!(matches!(e, PlanError::Parameter { op: "gated_linear", parameter: "rows", .. }), "{e}");
    let e = unit(DType::I32, [8; 3]).plan(Target::sm(90)).expect_err("integers");
    assert!(matches!(e, PlanError::DType { op: "gated_linear", tensor: "x", .. }), "{e}");
}

/// Activations and their derivatives are part of large products, and launches of their own elsewhere.
#[test]
fn activations_are_part_of_the_products_beside_them() {
    let names =
        |plan: &[LaunchStep]| plan.iter().map(|step| step.kernel().name().to_owned()).collect::<Vec<_>>();
    let activation = Activation::GeluErf;
    let forward = |dtype, [rows, out_features, in_features]: [usize; 3]| {
        let (transpose_b, bias) = (true, true);
        LinearActivationDesc { dtype, rows, in_features, out_features, transpose_b, bias, activation }
    };
    let backward = |dtype, [rows, in_features, out_features]: [usize; 3]| {
        let transpose_b = false;
        ActivationLinearBackwardDesc { dtype, rows, in_features, out_features, transpose_b, activation }
    };
    let of_unit = |dtype, [rows, in_features, out_features]: [usize; 3]| {
        let (transpose_b, activation) = (false, GatedActivation::Swiglu);
        GatedActivationLinearBackwardDesc { dtype, rows, in_features, out_features, transpose_b, activation }
    };
    let launches = |dtype, sizes, sm| {
        let target = Target::sm(sm);
        [
            names(forward(dtype, sizes).plan(target).expect("plan").steps()),
            names(backward(dtype, sizes).plan(target).expect("plan").steps()),
            names(of_unit(dtype, sizes).plan(target).expect("plan").steps()),
        ]
    };
    for sizes in [[12_608, 3072, 768], [8192, 4096, 1024], [4096, 14_336, 4096], [300, 1000, 1024]] {
        let [z, dz, factors] = launches(DType::BF16, sizes, 90);
        assert!(matches!(&z[..], [one] if one.ends_with("_bias_z_gelu_erf")), "{sizes:?}: {z:?}");
        // Warpgroups take turns, in tiles of their own, where the product is not what takes longest.
        let many = sizes[0] * sizes[1] >= 264 * 128 * 128 && sizes[2] <= 2048;
        assert!(!many || dz[0].contains("_128x128_g2_"), "{sizes:?}: {dz:?}");
        assert!(matches!(&dz[..], [one] if one.ends_with("_d_gelu_erf")), "{sizes:?}: {dz:?}");
        assert!(matches!(&factors[..], [one] if one.ends_with("_d_swiglu")), "{sizes:?}: {factors:?}");
        for apart in launches(DType::BF16, sizes, 80).into_iter().chain(launches(DType::F32, sizes, 90)) {
            assert!(apart.len() >= 2, "{sizes:?}: {apart:?}");
        }
    }
    // Rows that begin anywhere, and a common dimension that many blocks share.
    for sizes in [[256, 512, 1023], [16, 128, 65_536]] {
        for apart in launches(DType::F16, sizes, 90) {
            assert!(apart.len() >= 2, "{sizes:?}: {apart:?}");
        }
    }
    let leaky = Activation::from_name("leaky_relu").expect("a name");
    let e = LinearActivationDesc { activation: leaky, ..forward(DType::F16, [8; 3]) }.plan(Target::sm(90));
    let e = e.expect_err("a parameter");
    assert!(
        matches!(e, PlanError::Parameter { op: "linear_activation", parameter: "activation", .. }),
        "{e}"
    );
    let e = backward(DType::I32, [8; 3]).plan(Target::sm(90)).expect_err("integers");
    assert!(matches!(e, PlanError::DType { op: "activation_linear", tensor: "dy", .. }), "{e}");
    let e = of_unit(DType::F16, [8, 1 << 31, 8]).plan(Target::sm(90)).expect_err("columns");
    assert!(
        matches!(e, PlanError::Parameter { op: "gated_activation_linear", parameter: "in_features", .. }),
        "{e}"
    );
    let layout = PersistentConfig { rows: 128, cols: 128, groups: 2, stages: 6, cluster: 1, height: 8 };
    let high = PersistentConfig { rows: 256, stages: 4, ..layout };
    for (sm, dtype, depth, layout) in [
        (80, DType::F16, 64, layout),
        (90, DType::F32, 64, layout),
        (90, DType::F16, 63, layout),
        (90, DType::F16, 64, high),
    ] {
        let e =
            forward(dtype, [64, 64, depth]).plan_with(Target::sm(sm), layout).expect_err("no such kernel");
        assert!(
            matches!(e, PlanError::Parameter { op: "linear_activation", parameter: "config", .. }),
            "{e}"
        );
    }
}

#[test]
fn layers_beside_activations_refuse_other_shapes() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let tensor = |shape: &[usize]| {
        let len: usize = shape.iter().product();
        Tensor::from_slice(&device, &vec![1.0f32; len], shape).expect("memory")
    };
    let parameter = |e: Error| match e {
        Error::Plan(PlanError::Parameter { op, parameter, .. }) => (op, parameter),
        other => panic!("{other}"),
    };
    let (x, weight) = (tensor(&[2, 3, 4]), tensor(&[5, 4]));
    let relu = Activation::Relu;
    let (y, z) = linear_activation(&stream, &x, &weight, None, relu).expect("launch");
    assert_eq!((y.shape(), z.shape()), (&[2, 3, 5][..], &[2, 3, 5][..]));
    for (weight, of) in [(tensor(&[5, 3]), "weight"), (tensor(&[4]), "weight")] {
        let e = linear_activation(&stream, &x, &weight, None, relu).expect_err("a shape");
        assert_eq!(parameter(e), ("linear_activation", of));
    }
    let (dy, h) = (tensor(&[2, 3, 5]), tensor(&[2, 3, 4]));
    let dz = activation_linear_backward(&stream, &dy, &weight, &h, relu).expect("launch");
    assert_eq!((dz.shape(), dz.to_vec::<f32>().expect("copy")), (&[2, 3, 4][..], vec![5.0; 24]));
    let e = activation_linear_backward(&stream, &h, &weight, &h, relu).expect_err("columns");
    assert_eq!(parameter(e), ("activation_linear", "weight"));
    let e = activation_linear_backward(&stream, &dy, &weight, &dy, relu).expect_err("a shape");
    assert_eq!(parameter(e), ("activation_linear", "z"));
    let unit = GatedActivation::Swiglu;
    let e = gated_activation_linear_backward(&stream, &dy, &weight, [&h, &dy], unit).expect_err("a shape");
    assert_eq!(parameter(e), ("gated_activation_linear", "up"));
    let biases = Some([&weight, &weight]);
    let options = GatedLinearOptions { biases, saved: true };
    let e = gated_linear(&stream, &x, &weight, &weight, unit, options).expect_err("a bias");
    assert!(matches!(e, Error::Runtime(_)), "{e}");
}

#[test]
fn gated_units_refuse_other_shapes_and_do_not_depend_on_schedules() {
    let mut results = Vec::new();
    for seed in 0..3 {
        let device = Device::emulator_with(EmulatorConfig { seed, ..EmulatorConfig::default() });
        let stream = device.stream().expect("stream");
        let tensor = |shape: &[usize]| {
            let len = shape.iter().product();
            let values: Vec<_> = (0..len).map(|i| f64::from((i as f32 * 0.37).sin())).collect();
            let bytes = storage::encode(DType::F16, &values);
            Tensor::from_bytes(&device, DType::F16, &bytes, shape).expect("memory")
        };
        let (x, gate, up) = (tensor(&[2, 75, 136]), tensor(&[200, 136]), tensor(&[200, 136]));
        let unit = |x: &Tensor, gate: &Tensor, up: &Tensor| {
            gated_linear(&stream, x, gate, up, GatedActivation::GegluTanh, GatedLinearOptions::default())
        };
        let y = unit(&x, &gate, &up).expect("launch").y;
        assert_eq!(y.shape(), [2, 75, 200]);
        results.push(y.to_bytes().expect("bytes"));
        assert!(device.findings().is_empty());
        for (gate, up, name) in [
            (tensor(&[200, 135]), tensor(&[200, 135]), "gate"),
            (tensor(&[136]), tensor(&[136]), "gate"),
            (tensor(&[200, 136]), tensor(&[199, 136]), "up"),
        ] {
            let e = unit(&x, &gate, &up).expect_err("a shape");
            assert!(
                matches!(e, Error::Plan(PlanError::Parameter { op: "gated_linear", parameter, .. }) if parameter == name),
                "{e}"
            );
        }
    }
    assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
}
