//! Kernels of images: pooling and resizing.

use warpwright_ops::plan::TensorSpec;
use warpwright_ops::pool::tuning::Config;
use warpwright_ops::pool::{
    Argmax, AvgPoolBackwardDesc, AvgPoolDesc, Divisor, Layout, MaxPoolBackwardDesc, MaxPoolDesc, Pool,
    SlidingWindows, Windows, tuning,
};
use warpwright_ops::resize::{self, Mode, ResizeBackwardDesc, ResizeDesc};
use warpwright_ptx::DType;
use warpwright_testkit::inputs::{Input, Random};

use crate::harness::{Sweep, TARGET, plans};

/// Channels of all cases, in one or several samples.
const CHANNELS: usize = 8;

/// Normal numbers; indices of all cells of a plane, whose window has some of them, and of all taps of a window of 9.
fn fill(specs: &[TensorSpec], slot: usize) -> Vec<f64> {
    let spec = &specs[slot];
    if spec.name != "indices" {
        return Input::Normal.values(spec.len, slot as u64);
    }
    let dx = specs.iter().find(|spec| spec.name == "dx").map_or(1, |spec| spec.len);
    let of = if spec.dtype == DType::U8 { 9 } else { (dx / CHANNELS) as u64 };
    let mut random = Random::new(7);
    (0..spec.len).map(|_| (random.bits() % of) as f64).collect()
}

/// A case: samples, extents, windows, and how many cells a chunk has at most.
type Shape = (usize, [usize; 3], Windows, u64);

fn pool((batch, input, windows, _): Shape) -> Pool {
    let layout = Layout::ChannelsLast;
    Pool { dtype: DType::F32, layout, batch, channels: CHANNELS, input, windows }
}

fn config(of: Config, (.., chunk): Shape) -> Config {
    Config { chunk, ..of }
}

fn square(kernel: usize, stride: usize, padding: usize) -> SlidingWindows {
    SlidingWindows {
        kernel: [1, kernel, kernel],
        stride: [1, stride, stride],
        padding: [0, padding, padding],
        ..SlidingWindows::tiling([1; 3])
    }
}

fn maxima(shapes: &[Shape], kept: &[Argmax]) {
    for &argmax in kept {
        let forward = |shape: Shape| {
            let pool = pool(shape);
            let axes = pool.windows_of_axes().expect("windows");
            let of = tuning::forward(pool.dtype, pool.layout, CHANNELS, &axes);
            MaxPoolDesc { pool, argmax }.plan_with(TARGET, config(of, shape)).expect("plan")
        };
        Sweep::new(fill).check(&plans(shapes, forward));
        if argmax != Argmax::None {
            maxima_backward(shapes, argmax);
        }
    }
}

fn maxima_backward(shapes: &[Shape], argmax: Argmax) {
    let backward = |shape: Shape| {
        let pool = pool(shape);
        let axes = pool.windows_of_axes().expect("windows");
        let of = tuning::backward(pool.dtype, pool.layout, CHANNELS, &axes);
        let forward = MaxPoolDesc { pool, argmax };
        MaxPoolBackwardDesc { forward }.plan_with(TARGET, config(of, shape)).expect("plan")
    };
    Sweep::new(fill).check(&plans(shapes, backward));
}

fn means(shapes: &[Shape]) {
    let desc = |shape| AvgPoolDesc { pool: pool(shape), divisor: Divisor::Cells };
    let forward = |shape: Shape| {
        let desc = desc(shape);
        let axes = desc.pool.windows_of_axes().expect("windows");
        let of = tuning::forward(desc.pool.dtype, desc.pool.layout, CHANNELS, &axes);
        desc.plan_with(TARGET, config(of, shape)).expect("plan")
    };
    Sweep::new(fill).check(&plans(shapes, forward));
    means_backward(shapes);
}

fn means_backward(shapes: &[Shape]) {
    let backward = |shape: Shape| {
        let forward = AvgPoolDesc { pool: pool(shape), divisor: Divisor::Cells };
        let axes = forward.pool.windows_of_axes().expect("windows");
        let of = tuning::backward(forward.pool.dtype, forward.pool.layout, CHANNELS, &axes);
        AvgPoolBackwardDesc { forward }.plan_with(TARGET, config(of, shape)).expect("plan")
    };
    Sweep::new(fill).check(&plans(shapes, backward));
}

const WHOLE: u64 = u64::MAX;

#[test]
fn defects_of_small_windows_are_noticed() {
    let sliding = |of| Windows::Sliding(of);
    let pairs = [
        (1, [1, 5, 4], sliding(square(2, 2, 0)), WHOLE),
        (3, [3, 6, 7], sliding(SlidingWindows { ceil_mode: true, ..square(2, 2, 0) }), 300),
        (
            1,
            [3, 5, 4],
            sliding(SlidingWindows { kernel: [2; 3], stride: [1, 2, 2], ..square(2, 2, 0) }),
            WHOLE,
        ),
    ];
    maxima(&pairs, &[Argmax::None, Argmax::Tap]);
    let threes = [
        (1, [1, 5, 6], sliding(square(3, 2, 1)), WHOLE),
        (3, [1, 8, 7], sliding(square(3, 2, 1)), 150),
        (1, [4, 4, 3], sliding(SlidingWindows { kernel: [3; 3], padding: [1; 3], ..square(3, 2, 1) }), WHOLE),
    ];
    maxima(&threes, &[Argmax::Index, Argmax::Tap]);
    means(&pairs);
    means(&threes);
}

#[test]
fn defects_of_other_windows_are_noticed() {
    // Rows of windows that end at each of the columns that are visited at once, and behind them.
    let rows = [1, 2, 3, 4, 5, 6, 7, 8].map(|width| {
        let of = SlidingWindows { kernel: [1, 1, width], stride: [1; 3], ..SlidingWindows::tiling([1; 3]) };
        (1, [1, 2, 9], Windows::Sliding(of), WHOLE)
    });
    let large = [
        (1, [1, 9, 8], Windows::Sliding(square(5, 2, 2)), WHOLE),
        (3, [2, 8, 9], Windows::Sliding(square(4, 1, 1)), 200),
    ];
    let shapes: Vec<Shape> = rows.into_iter().chain(large).collect();
    maxima(&shapes, &[Argmax::None, Argmax::Index, Argmax::Tap]);
    means(&shapes);
}

#[test]
fn defects_of_windows_that_share_no_cells_are_noticed() {
    // Without gaps, with gaps, and with cells beyond the last window.
    let shapes = [
        (1, [1, 6, 8], Windows::Sliding(square(3, 3, 0)), WHOLE),
        (3, [2, 7, 9], Windows::Sliding(square(2, 3, 1)), 200),
        (
            1,
            [3, 5, 4],
            Windows::Sliding(SlidingWindows { kernel: [2, 1, 4], stride: [1, 1, 4], ..square(1, 1, 0) }),
            WHOLE,
        ),
    ];
    means_backward(&shapes);
    maxima_backward(&shapes, Argmax::Index);
    maxima_backward(&shapes, Argmax::Tap);
}

#[test]
fn defects_of_adaptive_windows_are_noticed() {
    // Extents that do not divide the image's: others have windows of one size.
    let adaptive = |output| Windows::Adaptive { output };
    let shapes = [
        (1, [1, 9, 8], adaptive([1, 2, 3]), WHOLE),
        (3, [2, 5, 9], adaptive([1, 3, 1]), 50),
        (1, [3, 4, 5], adaptive([4, 9, 11]), WHOLE),
        (1, [1, 5, 7], adaptive([1, 2, 2]), WHOLE),
        // Cells with more windows than are visited at once.
        (1, [1, 2, 3], adaptive([1, 5, 23]), WHOLE),
    ];
    maxima(&shapes, &[Argmax::None, Argmax::Index]);
    means(&shapes);
}

#[test]
fn defects_of_resizing_are_noticed() {
    // Extents, and how many cells a chunk has at most.
    let shapes = [
        (1, [1, 5, 6], [1, 9, 13], WHOLE),
        (3, [1, 7, 8], [1, 5, 3], 100),
        (1, [1, 2, 3], [1, 11, 31], WHOLE),
        (1, [1, 3, 3], [1, 4, 13], WHOLE),
        (1, [1, 9, 3], [1, 2, 4], WHOLE),
        (1, [1, 3, 1], [1, 4, 2], WHOLE),
    ];
    let deep = [
        (1, [3, 3, 4], [5, 2, 9], WHOLE),
        (3, [2, 4, 3], [4, 9, 4], 100),
        (1, [2, 2, 2], [9, 9, 17], WHOLE),
        (1, [5, 3, 9], [2, 4, 4], WHOLE),
        (1, [3, 3, 3], [4, 5, 7], WHOLE),
    ];
    let row = [
        (1, [1, 1, 9], [1, 1, 17], WHOLE),
        (3, [1, 1, 3], [1, 1, 31], 20),
        (1, [1, 1, 20], [1, 1, 7], WHOLE),
    ];
    let all: [(Mode, &[_]); 6] = [
        (Mode::Nearest, &shapes),
        (Mode::Nearest, &deep),
        (Mode::Linear, &shapes),
        (Mode::Linear, &deep),
        (Mode::Linear, &row),
        (Mode::Cubic, &shapes),
    ];
    for (mode, shapes) in all {
        let forward = |(batch, input, output, _): (usize, [usize; 3], [usize; 3], u64)| ResizeDesc {
            dtype: DType::F32,
            layout: Layout::ChannelsLast,
            batch,
            channels: CHANNELS,
            input,
            output,
            mode,
            align_corners: false,
            scale: [None; 3],
        };
        let configs = |chunk| {
            let all = resize::tuning::configs(DType::F32, Layout::ChannelsLast, CHANNELS);
            all.into_iter().map(|of| resize::tuning::Config { chunk, ..of }).collect::<Vec<_>>()
        };
        let plan = |shape: (usize, [usize; 3], [usize; 3], u64)| {
            forward(shape).plan_with(TARGET, &configs(shape.3)).expect("plan")
        };
        Sweep::new(fill).check(&plans(shapes, plan));
        let plan = |shape: (usize, [usize; 3], [usize; 3], u64)| {
            let forward = forward(shape);
            ResizeBackwardDesc { forward }.plan_with(TARGET, &configs(shape.3)).expect("plan")
        };
        Sweep::new(fill).check(&plans(shapes, plan));
    }
}
