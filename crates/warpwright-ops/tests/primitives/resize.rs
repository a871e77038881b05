//! Refusals of plans of images at other extents, and the free functions.

use warpwright_ops::plan::Real;
use warpwright_ops::resize::{
    Layout, Mode, ResizeBackwardDesc, ResizeDesc, ResizeOptions, ResizeTo, resize, resize_backward,
};
use warpwright_ops::{Error, Operation, PlanError};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::{Device, Tensor};

const TARGET: Target = Target::sm(90);

fn desc(mode: Mode, input: [usize; 3], output: [usize; 3]) -> ResizeDesc {
    let (dtype, layout, align_corners, scale) = (DType::BF16, Layout::ChannelsLast, false, [None; 3]);
    ResizeDesc { dtype, layout, batch: 2, channels: 64, input, output, mode, align_corners, scale }
}

fn parameter(e: &PlanError, name: &str) {
    assert!(matches!(e, PlanError::Parameter { op: "resize", parameter, .. } if *parameter == name), "{e}");
}

#[test]
fn extents_do_not_change_the_kernel() {
    let text = |mode, input, output| {
        desc(mode, input, output).plan(TARGET).expect("plan").steps()[0].kernel().text().as_ptr()
    };
    let linear = text(Mode::Linear, [1, 16, 16], [1, 31, 33]);
    assert_eq!(linear, text(Mode::Linear, [1, 100, 3], [1, 7, 999]));
    assert_ne!(linear, text(Mode::Linear, [2, 16, 16], [4, 31, 33]), "three axes");
    let nearest = text(Mode::Nearest, [1, 16, 16], [1, 31, 33]);
    assert_eq!(nearest, text(Mode::NearestExact, [4, 16, 16], [5, 7, 8]));
    let doubled = text(Mode::Nearest, [1, 16, 16], [1, 32, 32]);
    assert_ne!(doubled, nearest, "twice the height and width");
    assert_eq!(doubled, text(Mode::NearestExact, [5, 7, 100], [5, 14, 200]));
}

#[test]
fn linear_at_half_the_extents_is_a_mean() {
    let name = |align_corners, output| {
        let desc = ResizeDesc { align_corners, ..desc(Mode::Linear, [1, 8, 16], output) };
        let backward = ResizeBackwardDesc { forward: desc.clone() }.plan(TARGET).expect("plan");
        let forward = desc.plan(TARGET).expect("plan");
        [forward.steps()[0].kernel().name().to_owned(), backward.steps()[0].kernel().name().to_owned()]
    };
    assert!(name(false, [1, 4, 8]).iter().all(|name| name.starts_with("avg_pool_")));
    for (align_corners, output) in [(true, [1, 4, 8]), (false, [1, 4, 16]), (false, [1, 4, 7])] {
        assert!(name(align_corners, output).iter().all(|name| name.starts_with("resize_")), "{output:?}");
    }
}

#[test]
fn descriptors_without_a_plan() {
    let refused = |desc: ResizeDesc, name| {
        parameter(&desc.plan(TARGET).expect_err(name), name);
        parameter(&ResizeBackwardDesc { forward: desc }.plan(TARGET).expect_err(name), name);
    };
    let (from, to) = ([1, 8, 8], [1, 16, 16]);
    refused(desc(Mode::Linear, [1, 0, 8], to), "input");
    refused(desc(Mode::Linear, from, [1, 16, 0]), "output");
    refused(desc(Mode::Linear, from, [1 << 11, 1 << 10, 1 << 10]), "output");
    refused(desc(Mode::Cubic, [2, 8, 8], [4, 16, 16]), "mode");
    refused(desc(Mode::Area, from, to), "mode");
    refused(ResizeDesc { align_corners: true, ..desc(Mode::Nearest, from, to) }, "align_corners");
    for scale in [0.0, -2.0, f64::NAN, f64::INFINITY, 3.0] {
        let scale = [None, Some(Real::new(scale)), None];
        refused(ResizeDesc { scale, ..desc(Mode::Linear, from, to) }, "scale");
    }
    refused(ResizeDesc { batch: usize::MAX / 4, ..desc(Mode::Linear, from, to) }, "batch");
    refused(ResizeDesc { channels: 1 << 30, ..desc(Mode::Linear, from, to) }, "channels");
    let e = ResizeDesc { dtype: DType::U8, ..desc(Mode::Linear, from, to) }.plan(TARGET).expect_err("u8");
    assert!(matches!(e, PlanError::DType { op: "resize", .. }), "{e}");
}

#[test]
fn free_functions() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    let numbers: Vec<f32> = (0..16).map(|i| i as f32).collect();
    let x = Tensor::from_slice(&device, &numbers, &[1, 1, 4, 4]).expect("memory");
    let values = |t: &Tensor| t.to_vec::<f32>().expect("copy");
    let with = |mode| ResizeOptions { mode, ..ResizeOptions::default() };

    let y = resize(&stream, &x, ResizeTo::Extents(&[2]), with(Mode::Area)).expect("area");
    assert_eq!((y.shape(), values(&y)), (&[1, 1, 2, 2][..], vec![2.5, 4.5, 10.5, 12.5]));
    let dy = Tensor::ones_on(&stream, DType::F32, &[1, 1, 2, 2]).expect("memory");
    let dx = resize_backward(&stream, &x, ResizeTo::Extents(&[2, 2]), &dy, with(Mode::Area)).expect("area");
    assert_eq!(values(&dx), [0.25; 16]);
    let y = resize(&stream, &x, ResizeTo::Scale(&[0.5]), with(Mode::NearestExact)).expect("nearest");
    assert_eq!(values(&y), [5.0, 7.0, 13.0, 15.0]);
    // By the factor a step is 1 / 0.6, by the extents 2.
    let down = |recompute_scale| {
        let options = ResizeOptions { recompute_scale, ..with(Mode::Nearest) };
        values(&resize(&stream, &x, ResizeTo::Scale(&[0.6]), options).expect("nearest"))
    };
    assert_eq!((down(false), down(true)), (vec![0.0, 1.0, 4.0, 5.0], vec![0.0, 2.0, 8.0, 10.0]));
    let last = ResizeOptions { layout: Layout::ChannelsLast, ..with(Mode::Linear) };
    let pair = Tensor::from_slice(&device, &[0.0f32, 8.0, 4.0, 0.0], &[1, 2, 2]).expect("memory");
    let y = resize(&stream, &pair, ResizeTo::Extents(&[4]), last).expect("linear");
    assert_eq!(values(&y), [0.0, 8.0, 1.0, 6.0, 3.0, 2.0, 4.0, 0.0]);

    let refused = |e: Error, name: &str| match e {
        Error::Plan(e) => parameter(&e, name),
        other => panic!("{other}"),
    };
    refused(resize(&stream, &x, ResizeTo::Scale(&[0.1]), last).expect_err("nothing is left"), "output");
    refused(
        resize(&stream, &x, ResizeTo::Scale(&[f64::NAN]), with(Mode::Linear)).expect_err("NaN"),
        "output",
    );
    refused(
        resize(&stream, &x, ResizeTo::Extents(&[1, 2, 3]), with(Mode::Linear)).expect_err("three"),
        "output",
    );
    let e = resize_backward(&stream, &x, ResizeTo::Extents(&[3]), &dy, with(Mode::Linear));
    refused(e.expect_err("shape of dy"), "dy");
    let none = Tensor::from_slice::<f32>(&device, &[], &[0, 1, 4, 4]).expect("memory");
    let y = resize(&stream, &none, ResizeTo::Extents(&[3]), with(Mode::Linear)).expect("no samples");
    assert_eq!(y.shape(), [0, 1, 3, 3]);
}
