//! Refusals of plans and launches of pooling, and the free functions.

use warpwright_ops::pool::{
    Argmax, AvgPoolDesc, AvgPoolOptions, Divisor, Layout, MaxPoolArgs, MaxPoolBackwardDesc, MaxPoolDesc,
    MaxPoolOptions, Pool, SlidingWindows, Windows, adaptive_avg_pool, adaptive_avg_pool_backward,
    adaptive_max_pool, adaptive_max_pool_backward, avg_pool, avg_pool_backward, max_pool, max_pool_backward,
    tuning,
};
use warpwright_ops::{Error, Operation, PlanError};
use warpwright_ptx::{DType, Target};
use warpwright_runtime::{Device, Error as RuntimeError, Stream, Tensor};

const TARGET: Target = Target::sm(90);

fn windows(kernel: usize, stride: usize, padding: usize) -> SlidingWindows {
    SlidingWindows {
        kernel: [1, kernel, kernel],
        stride: [1, stride, stride],
        padding: [0, padding, padding],
        ..SlidingWindows::tiling([1; 3])
    }
}

fn pool(input: [usize; 3], windows: SlidingWindows) -> Pool {
    let (dtype, layout) = (DType::BF16, Layout::ChannelsLast);
    Pool { dtype, layout, batch: 2, channels: 64, input, windows: Windows::Sliding(windows) }
}

fn max(pool: Pool) -> MaxPoolDesc {
    MaxPoolDesc { pool, argmax: Argmax::Index }
}

fn parameter(e: &PlanError, name: &str) {
    assert!(matches!(e, PlanError::Parameter { parameter, .. } if *parameter == name), "{e}");
}

#[test]
fn shapes_do_not_change_the_kernel() {
    let text = |input, windows| {
        max(pool(input, windows)).plan(TARGET).expect("plan").steps()[0].kernel().text().as_ptr()
    };
    let first = text([1, 112, 112], windows(3, 2, 1));
    assert_eq!(first, text([1, 7, 1000], windows(3, 1, 0)));
    assert_eq!(first, text([9, 30, 31], SlidingWindows { kernel: [5, 3, 3], ..windows(3, 2, 1) }));
    assert_ne!(first, text([1, 112, 112], windows(2, 2, 0)), "windows of 2 are visited at once, too");
    assert_eq!(text([1, 50, 50], windows(5, 3, 2)), text([1, 80, 20], windows(9, 1, 4)));
}

#[test]
fn descriptors_without_a_plan() {
    let refused = |pool: Pool, name| {
        parameter(&max(pool.clone()).plan(TARGET).expect_err(name), name);
        let forward = max(pool);
        parameter(&MaxPoolBackwardDesc { forward }.plan(TARGET).expect_err(name), name);
    };
    let image = [1, 10, 10];
    refused(pool([1, 0, 10], windows(2, 2, 0)), "input");
    refused(pool([1 << 11, 1 << 10, 1 << 10], windows(2, 2, 0)), "input");
    refused(pool(image, windows(0, 2, 0)), "kernel");
    refused(pool(image, windows(11, 2, 0)), "kernel");
    refused(pool(image, windows(2, 0, 0)), "stride");
    refused(pool(image, windows(3, 2, 2)), "padding");
    refused(pool(image, SlidingWindows { dilation: [1, 0, 1], ..windows(2, 2, 0) }), "dilation");
    refused(pool(image, SlidingWindows { dilation: [1, usize::MAX, 1], ..windows(2, 2, 0) }), "dilation");
    refused(Pool { batch: usize::MAX / 4, ..pool(image, windows(2, 2, 0)) }, "batch");
    refused(Pool { batch: 1 << 44, channels: 1 << 15, ..pool(image, windows(1, 1, 0)) }, "batch");
    refused(Pool { channels: 1 << 31, ..pool(image, windows(2, 2, 0)) }, "channels");
    let adaptive = Windows::Adaptive { output: [1, 0, 3] };
    refused(Pool { windows: adaptive, ..pool(image, windows(2, 2, 0)) }, "output");

    let bytes = Pool { dtype: DType::U8, ..pool(image, windows(2, 2, 0)) };
    let e = max(bytes).plan(TARGET).expect_err("no integers");
    assert!(matches!(e, PlanError::DType { op: "max_pool", tensor: "x", got: DType::U8, .. }), "{e}");

    let tap = |pool| MaxPoolDesc { pool, argmax: Argmax::Tap }.plan(TARGET);
    tap(pool([1, 20, 20], windows(16, 16, 0))).expect("256 taps");
    parameter(&tap(pool([1, 20, 20], windows(17, 16, 0))).expect_err("289 taps"), "argmax");
    let spread = SlidingWindows { dilation: [1, 2, 1], ..windows(2, 2, 0) };
    parameter(&tap(pool(image, spread)).expect_err("dilation"), "argmax");
    let adaptive = Pool { windows: Windows::Adaptive { output: [1; 3] }, ..pool(image, windows(2, 2, 0)) };
    parameter(&tap(adaptive).expect_err("adaptive"), "argmax");
    let forward = MaxPoolDesc { pool: pool(image, windows(2, 2, 0)), argmax: Argmax::None };
    parameter(&MaxPoolBackwardDesc { forward }.plan(TARGET).expect_err("nothing kept"), "argmax");

    let mean = |windows, divisor| AvgPoolDesc { pool: pool(image, windows), divisor }.plan(TARGET);
    parameter(&mean(windows(2, 2, 0), Divisor::Override(0)).expect_err("0"), "divisor");
    parameter(&mean(spread, Divisor::Cells).expect_err("dilation"), "dilation");
}

#[test]
fn tensors_may_have_more_elements_than_32_bits_count() {
    let large = Pool { batch: 1 << 20, ..pool([1, 112, 112], windows(3, 2, 1)) };
    let plan = max(large).plan(TARGET).expect("plan");
    assert_eq!(plan.tensors()[0].len, (1 << 20) * 64 * 112 * 112);
    let [x, y, z] = plan.steps()[0].grid();
    assert!(x < 1 << 23 && y > 10 && z == 1, "{x} {y} {z}");
    let many = Pool { batch: 1 << 43, channels: 8, ..pool([1, 112, 112], windows(3, 2, 1)) };
    assert!(max(many).plan(TARGET).is_err(), "no grid has as many blocks");
}

#[test]
fn chunks_have_the_results_of_one() {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] {
        let pool =
            Pool { dtype: DType::F32, layout, batch: 5, channels: 4, ..pool([1, 9, 7], windows(3, 2, 1)) };
        let axes = pool.windows_of_axes().expect("windows");
        let config = tuning::forward(pool.dtype, layout, pool.channels, &axes);
        let desc = MaxPoolDesc { pool, argmax: Argmax::None };
        let values: Vec<f32> = (0..5 * 4 * 63).map(|i| ((i * 7919) % 1009) as f32).collect();
        let x = Tensor::from_slice(&device, &values, &[values.len()]).expect("memory");
        let results = [u64::MAX, 60, 1].map(|chunk| {
            let plan = desc.plan_with(device.target(), tuning::Config { chunk, ..config }).expect("plan");
            let mut y = Tensor::zeros(&device, DType::F32, &[5 * 4 * 20]).expect("memory");
            plan.launch(&stream, MaxPoolArgs { x: x.as_ref(), y: y.as_mut(), indices: None })
                .expect("launch");
            (plan.steps()[0].grid()[1], y.to_vec::<f32>().expect("copy"))
        });
        assert!(results[0].0 == 1 && results[1].0 > 1 && results[2].0 > results[1].0);
        assert!(results.iter().all(|(_, y)| *y == results[0].1), "{layout:?}");
    }
}

fn device() -> (Device, Stream) {
    let device = Device::emulator();
    let stream = device.stream().expect("stream");
    (device, stream)
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.to_vec::<f32>().expect("copy")
}

#[test]
fn free_functions_of_all_ranks_and_layouts() {
    let (device, stream) = device();
    let numbers: Vec<f32> = (0..24).map(|i| ((i * 7) % 24) as f32).collect();
    let of = |shape: &[usize]| Tensor::from_slice(&device, &numbers, shape).expect("memory");
    let plain = MaxPoolOptions::default();

    let out = max_pool(&stream, &of(&[2, 3, 4]), &[2], plain).expect("one dimension");
    assert_eq!(out.y.shape(), [2, 3, 2]);
    assert_eq!(values(&out.y)[..3], [7.0, 21.0, 11.0]);
    let out = max_pool(&stream, &of(&[1, 1, 4, 6]), &[4, 3], plain).expect("two dimensions");
    assert_eq!((out.y.shape(), values(&out.y)), (&[1, 1, 1, 2][..], vec![20.0, 23.0]));
    let indices = out.indices.as_ref().expect("kept").to_vec::<i64>().expect("copy");
    assert_eq!(indices, [20, 17]);
    let out = max_pool(&stream, &of(&[1, 1, 2, 3, 4]), &[2, 3, 4], plain).expect("three dimensions");
    assert_eq!(values(&out.y), [23.0]);
    let last = MaxPoolOptions { layout: Layout::ChannelsLast, ..plain };
    let out = max_pool(&stream, &of(&[1, 12, 2]), &[12], last).expect("channels last");
    assert_eq!((out.y.shape(), values(&out.y)), (&[1, 1, 2][..], vec![22.0, 23.0]));

    let x = of(&[1, 2, 3, 4]);
    let y = adaptive_avg_pool(&stream, &x, &[1], Layout::ChannelsFirst).expect("global");
    assert_eq!((y.shape(), values(&y)), (&[1, 2, 1, 1][..], vec![10.5, 12.5]));
    let y = avg_pool(
        &stream,
        &x,
        &[3, 4],
        AvgPoolOptions { divisor: Divisor::Override(2), ..Default::default() },
    );
    assert_eq!(values(&y.expect("sums")), [63.0, 75.0]);
    let out = adaptive_max_pool(&stream, &x, &[2, 1], Layout::ChannelsFirst, Argmax::Index).expect("launch");
    assert_eq!(out.y.shape(), [1, 2, 2, 1]);
    let dy = Tensor::ones_on(&stream, DType::F32, &[1, 2, 2, 1]).expect("memory");
    let dx =
        adaptive_max_pool_backward(&stream, &x, &[2, 1], &out, &dy, Layout::ChannelsFirst).expect("launch");
    assert_eq!(values(&dx).iter().sum::<f32>(), 4.0);
    let dx = adaptive_avg_pool_backward(&stream, &x, &[2, 1], &dy, Layout::ChannelsFirst).expect("launch");
    assert!((values(&dx).iter().sum::<f32>() - 4.0).abs() < 1e-6);
}

#[test]
fn what_free_functions_refuse() {
    let (device, stream) = device();
    let zeros = |shape: &[usize]| Tensor::zeros(&device, DType::F32, shape).expect("memory");
    let x = zeros(&[1, 2, 4, 4]);
    let refused = |e: Error, name: &str| match e {
        Error::Plan(e) => parameter(&e, name),
        other => panic!("{other}"),
    };
    let plain = MaxPoolOptions::default();
    refused(max_pool(&stream, &zeros(&[4, 4]), &[2], plain).expect_err("two dimensions"), "dimensions");
    refused(max_pool(&stream, &zeros(&[1; 6]), &[1], plain).expect_err("six dimensions"), "dimensions");
    refused(
        max_pool(&stream, &x, &[2, 2, 2], plain).expect_err("three numbers for two dimensions"),
        "kernel",
    );
    let options = MaxPoolOptions { padding: &[1, 1, 1], ..plain };
    refused(max_pool(&stream, &x, &[2], options).expect_err("three paddings"), "padding");
    let out = max_pool(&stream, &x, &[2], MaxPoolOptions { argmax: Argmax::None, ..plain }).expect("launch");
    let dy = zeros(&[1, 2, 2, 2]);
    refused(max_pool_backward(&stream, &x, &[2], &out, &dy, plain).expect_err("no indices"), "indices");
    let out = max_pool(&stream, &x, &[2], plain).expect("launch");
    let e =
        max_pool_backward(&stream, &x, &[2], &out, &zeros(&[1, 2, 4, 1]), plain).expect_err("shape of dy");
    assert!(matches!(e, Error::Runtime(RuntimeError::Shape { argument: "dy", .. })), "{e}");
    let tap = MaxPoolOptions { argmax: Argmax::Tap, ..plain };
    let e = max_pool_backward(&stream, &x, &[2], &out, &dy, tap).expect_err("indices are i64");
    assert!(matches!(e, Error::Runtime(RuntimeError::DType { argument: "indices", .. })), "{e}");
    let e = avg_pool_backward(&stream, &x, &[2], &zeros(&[1, 2, 4, 1]), AvgPoolOptions::default());
    refused(e.expect_err("shape of dy"), "dy");
    assert_eq!(
        max_pool(&stream, &zeros(&[0, 2, 4, 4]), &[2], plain).expect("no samples").y.shape(),
        [0, 2, 2, 2]
    );
}
