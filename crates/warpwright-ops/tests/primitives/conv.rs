//! Refusals of convolution plans, and the kernels they hold.

use warpwright_ops::activation::Activation;
use warpwright_ops::conv::{self, Axis, Conv, ConvBackwardDesc, ConvDesc, ConvOptions, Layout};
use warpwright_ops::gemm::Precision;
use warpwright_ops::{Error, Operation, Plan, PlanError};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::{Device, Tensor};

const TARGET: Target = Target::sm(90);

fn square(dtype: DType, sizes: [usize; 3], side: usize, kernel: usize) -> Conv {
    let axis = Axis::new(side, kernel).with(1, kernel / 2, 1);
    Conv::new(dtype, sizes, axis, axis)
}

/// The field that a plan refuses, and what was there.
fn refused(conv: Conv) -> (&'static str, String) {
    match ConvDesc::new(conv).plan(TARGET) {
        Err(PlanError::Parameter { parameter, got, .. }) => (parameter, got),
        other => panic!("{conv:?}: {other:?}"),
    }
}

fn kernels<O: Operation>(plan: &Plan<O>) -> Vec<String> {
    plan.steps().iter().map(|step| step.kernel().name().to_owned()).collect()
}

#[test]
fn sizes_that_have_no_meaning_are_refused() {
    let conv = square(DType::F32, [2, 6, 8], 9, 3);
    let with = |change: fn(&mut Conv)| {
        let mut conv = conv;
        change(&mut conv);
        refused(conv)
    };
    assert_eq!(with(|conv| conv.channels = 0), ("channels", "0".into()));
    assert_eq!(with(|conv| conv.filters = 0), ("filters", "0".into()));
    assert_eq!(with(|conv| conv.groups = 0), ("groups", "0".into()));
    assert_eq!(with(|conv| conv.groups = 4), ("channels", "6".into()));
    assert_eq!(with(|conv| conv.groups = 3), ("filters", "8".into()));
    assert_eq!(with(|conv| conv.axes[1].kernel = 0), ("kernel", "0".into()));
    assert_eq!(with(|conv| conv.axes[2].stride = 0), ("stride", "0".into()));
    assert_eq!(with(|conv| conv.axes[2].dilation = 0), ("dilation", "0".into()));
    assert_eq!(with(|conv| conv.axes[2].kernel = 12), ("kernel", "12".into()));
    assert_eq!(with(|conv| conv.axes[2].dilation = 6).0, "kernel");
    assert_eq!(with(|conv| conv.axes[2].padding = [usize::MAX, 1]).0, "padding");
    assert_eq!(with(|conv| conv.axes[1].input = usize::MAX).0, "padding");
    assert_eq!(with(|conv| conv.batch = 1 << 31).0, "batch");
    assert_eq!(with(|conv| (conv.channels, conv.groups) = (1 << 30, 2)).0, "channels");
    let leaky = ConvDesc {
        activation: Some(Activation::LeakyRelu { negative_slope: 0.1.into() }),
        ..ConvDesc::new(conv)
    };
    assert!(matches!(leaky.plan(TARGET), Err(PlanError::Parameter { parameter: "activation", .. })));
    let integers = ConvDesc::new(Conv { dtype: DType::I32, ..conv });
    assert!(matches!(integers.plan(TARGET), Err(PlanError::DType { tensor: "x", got: DType::I32, .. })));
}

#[test]
fn tensors_may_have_more_than_2_31_elements() {
    let conv = square(DType::BF16, [1 << 12, 64, 64], 256, 3);
    let plan = ConvDesc::new(conv).plan(TARGET).expect("plan");
    assert_eq!(plan.tensor("x").expect("an input").len, 1 << 34);
    let first = Conv { layout: Layout::ChannelsFirst, weight_layout: Layout::ChannelsFirst, ..conv };
    let plan = ConvDesc::new(first).plan(TARGET).expect("plan");
    assert!(plan.workspace_bytes() >= 2 << 35);
}

/// Shapes are arguments: kernels are recorded for configurations.
#[test]
fn shapes_of_a_kind_have_one_kernel() {
    for (dtype, groups) in [(DType::BF16, 1), (DType::F32, 1), (DType::F32, 64), (DType::BF16, 8)] {
        let of = |batch: usize, side: usize| {
            let conv = Conv { groups, ..square(dtype, [batch, 64, 64], side, 3) };
            let backward = ConvBackwardDesc { conv, dx: true, dweight: true, dbias: true };
            let forward = ConvDesc::new(conv).plan(TARGET).expect("plan");
            (kernels(&forward), kernels(&backward.plan(TARGET).expect("plan")))
        };
        assert_eq!(of(32, 40), of(33, 41), "{dtype}, {groups} groups");
    }
}

/// Groups of several channels, `f32`, and targets without copies of images are multiplied on tensor cores too.
#[test]
fn products_are_on_tensor_cores_wherever_copies_reach() {
    let grouped = |dtype, groups| Conv { groups, ..square(dtype, [4, 64, 64], 28, 3) };
    for (conv, target) in [
        (grouped(DType::BF16, 8), TARGET),
        (grouped(DType::BF16, 16), TARGET),
        (grouped(DType::F32, 1), TARGET),
        (grouped(DType::F32, 32), TARGET),
        (grouped(DType::F16, 1), Target::sm(80)),
        (grouped(DType::BF16, 1), Target::sm(120)),
    ] {
        for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] {
            let conv = Conv { layout, weight_layout: layout, ..conv };
            let backward = ConvBackwardDesc { conv, dx: true, dweight: true, dbias: false };
            let (forward, backward) = (ConvDesc::new(conv).plan(target), backward.plan(target));
            let all = [kernels(&forward.expect("plan")), kernels(&backward.expect("plan"))].concat();
            assert!(all.iter().all(|name| !name.contains("_gather")), "{all:?}");
        }
    }
}

/// Groups whose halos have kernels, by what is known before a launch.
#[test]
fn groups_are_read_from_halos_where_there_are_kernels() {
    let of = |conv: Conv, target: u32| {
        let backward = ConvBackwardDesc { conv, dx: true, dweight: true, dbias: false };
        let target = Target::sm(target);
        let forward = kernels(&ConvDesc::new(conv).plan(target).expect("plan"));
        let backward = kernels(&backward.plan(target).expect("plan"));
        let all = [forward, backward].concat().into_iter().filter(|name| name.contains("_grouped_"));
        all.map(|name| name.split('_').nth(3).unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    let conv = |groups, kernel| Conv { groups, ..square(DType::BF16, [4, 64, 64], 28, kernel) };
    let all = ["forward", "dx", "dweight"];
    for groups in [2, 4, 8, 16] {
        for target in [80, 86, 90, 120] {
            assert_eq!(of(conv(groups, 3), target), all, "{groups} groups, sm_{target}");
        }
        let f16 = Conv { dtype: DType::F16, ..conv(groups, 3) };
        assert_eq!(of(f16, 75), [""; 0], "{groups} groups");
    }
    let first = Conv { layout: Layout::ChannelsFirst, weight_layout: Layout::ChannelsFirst, ..conv(8, 3) };
    assert_eq!(of(first, 90), all);
    // Phases of strides, registers for the weight, and groups of two sizes are for tiles.
    let strided = conv(8, 3).axes.map(|axis| Axis { stride: if axis.kernel > 1 { 2 } else { 1 }, ..axis });
    assert_eq!(of(Conv { axes: strided, ..conv(8, 3) }, 90), ["forward", "dweight"]);
    assert_eq!(of(conv(8, 7), 90), ["dweight"]);
    assert_eq!(of(conv(2, 5), 90), [""; 0]);
    assert_eq!(of(Conv { filters: 128, ..conv(8, 3) }, 90), [""; 0]);
    assert_eq!(of(Conv { dtype: DType::F32, ..conv(8, 3) }, 90), [""; 0]);
    // A halo that no block has room for.
    let far = conv(8, 3).axes.map(|axis| match axis.kernel {
        3 => Axis::new(2000, 3).with(1, 700, 700),
        _ => axis,
    });
    assert_eq!(of(Conv { axes: far, ..conv(8, 3) }, 90), [""; 0]);
}

#[test]
fn precisions_that_there_are_not_are_refused() {
    let rounded = |dtype| Conv { precision: Precision::Tf32, ..square(dtype, [2, 16, 16], 9, 3) };
    assert_eq!(refused(rounded(DType::F16)), ("precision", "tf32".into()));
    let plan = ConvDesc::new(rounded(DType::F32)).plan(Target::sm(75));
    assert!(matches!(plan, Err(PlanError::Target { op: "conv", needs: 80, .. })), "{plan:?}");
    assert!(ConvDesc::new(rounded(DType::F32)).plan(Target::sm(80)).is_ok());
}

/// A gradient that is not asked for is neither computed nor an argument.
#[test]
fn only_the_gradients_that_are_wanted_are_computed() {
    let conv = square(DType::BF16, [2, 64, 64], 14, 3);
    let launches = |dx, dweight, dbias| {
        let plan = ConvBackwardDesc { conv, dx, dweight, dbias }.plan(TARGET).expect("plan");
        let present = |name: &str| plan.tensor(name).is_some();
        assert_eq!(["dx", "dweight", "dbias"].map(present), [dx, dweight, dbias]);
        assert_eq!(["x", "weight"].map(present), [dweight, dx]);
        kernels(&plan)
    };
    let all = launches(true, true, true);
    let each = [launches(true, false, false), launches(false, true, false), launches(false, false, true)];
    assert_eq!(all, each.concat());
    assert!(launches(false, false, false).is_empty());
}

/// Patches that do not overlap are read as larger pixels: no tap is a slice that is mostly zeros.
#[test]
fn patches_are_for_tensor_cores() {
    let axis = Axis::new(224, 16).with(16, 0, 1);
    let conv = Conv::new(DType::BF16, [8, 3, 768], axis, axis);
    let backward = ConvBackwardDesc { conv, dx: true, dweight: true, dbias: false };
    let (forward, backward) = (ConvDesc::new(conv).plan(TARGET), backward.plan(TARGET));
    let all = [kernels(&forward.expect("plan")), kernels(&backward.expect("plan"))].concat();
    assert_eq!(all.iter().filter(|name| name.contains("_wgp_")).count(), 3, "{all:?}");
    assert!(all.iter().all(|name| !name.contains("_gather")), "{all:?}");
}

/// A scale, a bias, a residual and an activation behind, as inference of a block of a residual network has them.
fn with_ends(conv: Conv) -> ConvDesc {
    let activation = Some(Activation::Relu);
    ConvDesc { scale: true, bias: true, residual: true, activation, ..ConvDesc::new(conv) }
}

/// Factors, biases, residuals and activations are in the launch that makes the sums.
#[test]
fn ends_of_sums_take_no_launch_of_their_own() {
    let grouped = Conv { groups: 8, ..square(DType::BF16, [4, 64, 64], 28, 3) };
    for conv in [
        square(DType::BF16, [64, 64, 64], 56, 3),
        square(DType::F16, [64, 64, 256], 56, 1),
        square(DType::F32, [8, 64, 256], 56, 1),
        square(DType::F64, [2, 8, 8], 9, 3),
        Conv { groups: 64, ..square(DType::BF16, [4, 64, 64], 28, 3) },
        Conv { filters: 128, ..grouped },
        grouped,
    ] {
        let names = kernels(&with_ends(conv).plan(TARGET).expect("plan"));
        assert!(names.len() == 1 && names[0].contains("_scale"), "{conv:?}: {names:?}");
    }
    // Blocks share the common dimension: the launch that adds their sums ends them.
    let names = kernels(&with_ends(square(DType::BF16, [1, 2048, 64], 4, 3)).plan(TARGET).expect("plan"));
    assert!(names.len() == 2 && !names[0].contains("_scale") && names[1].contains("_scale"), "{names:?}");
}

#[test]
fn factors_have_the_type_of_sums() {
    for (dtype, sums) in [(DType::BF16, DType::F32), (DType::F32, DType::F32), (DType::F64, DType::F64)] {
        let conv = square(dtype, [2, 16, 24], 9, 3);
        let plan = with_ends(conv).plan(TARGET).expect("plan");
        let of = |name: &str| plan.tensor(name).map(|tensor| (tensor.dtype, tensor.len));
        assert_eq!((of("scale"), of("bias")), (Some((sums, 24)), Some((sums, 24))));
        assert_eq!(of("residual"), Some((dtype, 2 * 81 * 24)));
        let plan = ConvDesc { bias: true, ..ConvDesc::new(conv) }.plan(TARGET).expect("plan");
        let of = |name: &str| plan.tensor(name).map(|tensor| (tensor.dtype, tensor.len));
        assert_eq!((of("bias"), of("scale"), of("residual")), (Some((dtype, 24)), None, None));
    }
}

#[test]
fn ends_that_do_not_fit_are_refused() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let tensor = |shape: &[usize]| {
        Tensor::from_slice(&device, &vec![1.0f32; shape.iter().product()], shape).expect("a tensor")
    };
    let (x, weight) = (tensor(&[1, 2, 3, 3]), tensor(&[4, 2, 1, 1]));
    let small = tensor(&[1, 4, 3, 2]);
    let options = ConvOptions { residual: Some(&small), ..Default::default() };
    let refused = conv::conv(&stream, &x, &weight, options);
    let got = "[1, 4, 3, 2]";
    assert!(
        matches!(&refused, Err(Error::Plan(PlanError::Parameter { parameter: "residual", got: g, .. })) if g == got),
        "{refused:?}"
    );
    let short = tensor(&[3]);
    let options = ConvOptions { scale: Some(&short), ..Default::default() };
    assert!(matches!(conv::conv(&stream, &x, &weight, options), Err(Error::Runtime(_))));
    let wide = Tensor::from_slice(&device, &[1.0f64; 4], &[4]).expect("a tensor");
    let options = ConvOptions { scale: Some(&wide), ..Default::default() };
    assert!(matches!(conv::conv(&stream, &x, &weight, options), Err(Error::Runtime(_))));
    let (scale, like) = (tensor(&[4]), tensor(&[1, 4, 3, 3]));
    for (name, options) in [
        ("scale", ConvOptions { scale: Some(&scale), ..Default::default() }),
        ("residual", ConvOptions { residual: Some(&like), ..Default::default() }),
    ] {
        let refused = conv::conv_backward(&stream, &x, &weight, &like, options);
        assert!(
            matches!(&refused, Err(Error::Plan(PlanError::Parameter { parameter, .. })) if *parameter == name),
            "{refused:?}"
        );
    }
    let options =
        ConvOptions { scale: Some(&scale), bias: Some(&scale), residual: Some(&like), ..Default::default() };
    let y = conv::conv(&stream, &x, &weight, options).expect("a result");
    assert_eq!(y.to_vec_on::<f32>(&stream).expect("numbers"), [4.0; 36]);
}
