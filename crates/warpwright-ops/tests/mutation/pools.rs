//! Kernels of images: pooling and resizing.

use warpwright_ops::Direction;
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

/// The same with infinities, of which a weight of 0 makes NaN, in `x`.
fn fill_with_infinities(specs: &[TensorSpec], slot: usize) -> Vec<f64> {
    let mut values = fill(specs, slot);
    if specs[slot].name == "x" {
        values.iter_mut().skip(13).step_by(13).for_each(|value| *value = f64::INFINITY);
    }
    values
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
        let of = tuning::backward(pool.dtype, pool.layout, [pool.batch, CHANNELS], &axes);
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
        let of = tuning::backward(forward.pool.dtype, forward.pool.layout, [shape.0, CHANNELS], &axes);
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
fn defects_of_runs_of_windows_side_by_side_are_noticed() {
    let side_by_side = |kernel| Windows::Sliding(SlidingWindows::tiling(kernel));
    // Runs of one window and of two, of several chunks; and windows of whole planes.
    let shapes = [
        (1, [1, 6, 12], side_by_side([1, 3, 6]), WHOLE),
        (3, [2, 4, 20], side_by_side([1, 2, 5]), 60),
        (1, [1, 5, 7], Windows::Adaptive { output: [1; 3] }, WHOLE),
        (3, [2, 3, 3], Windows::Adaptive { output: [1; 3] }, 40),
    ];
    let pool = |shape| Pool { layout: Layout::ChannelsFirst, ..pool(shape) };
    let config = |pool: &Pool, shape| {
        let axes = pool.windows_of_axes().expect("windows");
        config(tuning::backward(pool.dtype, pool.layout, [pool.batch, CHANNELS], &axes), shape)
    };
    let means = |shape: Shape| {
        let (pool, divisor) = (pool(shape), Divisor::Cells);
        let config = config(&pool, shape);
        AvgPoolBackwardDesc { forward: AvgPoolDesc { pool, divisor } }
            .plan_with(TARGET, config)
            .expect("plan")
    };
    Sweep::new(fill).check(&plans(&shapes, means));
    for (argmax, shapes) in [(Argmax::Index, &shapes[..]), (Argmax::Tap, &shapes[..2])] {
        let maxima = |shape: Shape| {
            let pool = pool(shape);
            let config = config(&pool, shape);
            let forward = MaxPoolDesc { pool, argmax };
            MaxPoolBackwardDesc { forward }.plan_with(TARGET, config).expect("plan")
        };
        Sweep::new(fill).check(&plans(shapes, maxima));
    }
}

#[test]
fn defects_of_runs_of_windows_are_noticed() {
    let of = |kernel, stride, padding| {
        let windows = Windows::Sliding(square(kernel, stride, padding));
        // Runs of every length, odd numbers of rows, several chunks.
        [
            (1, [1, 5, 8], windows, WHOLE),
            (3, [2, 4, 12], windows, 20),
            (1, [1, 3, 6], windows, WHOLE),
            (1, [1, 6, 10], windows, WHOLE),
        ]
    };
    let pool = |shape| Pool { layout: Layout::ChannelsFirst, ..pool(shape) };
    let sweep = || Sweep { skipped: |name| !name.contains("_runs_"), ..Sweep::new(fill) };
    for [kernel, stride, padding] in tuning::RUNS.map(|of| of.map(|n| n as usize)) {
        let shapes = of(kernel, stride, padding);
        let configs = |shape: Shape| {
            let (pool, channels) = (pool(shape), CHANNELS);
            let axes = pool.windows_of_axes().expect("windows");
            let forward = tuning::forward(pool.dtype, pool.layout, channels, &axes);
            let backward = tuning::backward(pool.dtype, pool.layout, [pool.batch, channels], &axes);
            [config(forward, shape), config(backward, shape)]
        };
        for argmax in [Argmax::None, Argmax::Index, Argmax::Tap] {
            let desc = |shape| MaxPoolDesc { pool: pool(shape), argmax };
            let forward = |shape| desc(shape).plan_with(TARGET, configs(shape)[0]).expect("plan");
            sweep().check(&plans(&shapes, forward));
            if argmax != Argmax::None {
                let backward = |shape| {
                    let forward = desc(shape);
                    MaxPoolBackwardDesc { forward }.plan_with(TARGET, configs(shape)[1]).expect("plan")
                };
                sweep().check(&plans(&shapes, backward));
            }
        }
        let desc = |shape| AvgPoolDesc { pool: pool(shape), divisor: Divisor::PaddedCells };
        let forward = |shape| desc(shape).plan_with(TARGET, configs(shape)[0]).expect("plan");
        sweep().check(&plans(&shapes, forward));
        let backward = |shape| {
            let forward = desc(shape);
            AvgPoolBackwardDesc { forward }.plan_with(TARGET, configs(shape)[1]).expect("plan")
        };
        sweep().check(&plans(&shapes, backward));
    }
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
    let all: [(Mode, &[Resized]); 6] = [
        (Mode::Nearest, &shapes),
        (Mode::Nearest, &deep),
        (Mode::Linear, &shapes),
        (Mode::Linear, &deep),
        (Mode::Linear, &row),
        (Mode::Cubic, &shapes),
    ];
    for (mode, shapes) in all {
        resizing(mode, Layout::ChannelsLast, shapes, usize::MAX);
    }
}

#[test]
fn defects_of_doubling_are_noticed() {
    // Rows of whole runs of two and of one, an odd number of rows, and several chunks.
    let shapes = [
        (1, [1, 5, 6], [1, 10, 12], WHOLE),
        (1, [1, 2, 3], [1, 4, 6], WHOLE),
        (3, [1, 4, 8], [1, 8, 16], 40),
        (1, [1, 3, 2], [1, 6, 4], WHOLE),
        (3, [1, 7, 5], [1, 14, 10], 20),
    ];
    for mode in [Mode::Nearest, Mode::Linear, Mode::Cubic] {
        for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] {
            resizing(mode, layout, &shapes, 1);
        }
    }
    let deep = [(1, [3, 2, 4], [3, 4, 8], WHOLE)];
    resizing(Mode::Nearest, Layout::ChannelsFirst, &deep, 1);
}

#[test]
fn defects_of_runs_of_other_extents_are_noticed() {
    let shapes = [
        (1, [1, 5, 6], [1, 9, 12], WHOLE),
        (3, [1, 7, 8], [1, 5, 6], 60),
        (1, [1, 3, 3], [1, 4, 14], WHOLE),
        (1, [1, 2, 9], [1, 5, 4], WHOLE),
    ];
    for mode in [Mode::Nearest, Mode::Linear] {
        resizing(mode, Layout::ChannelsFirst, &shapes, 1);
    }
}

/// A case of resizing: samples, extents, and how many cells a chunk has at most.
type Resized = (usize, [usize; 3], [usize; 3], u64);

/// Whether a kernel has no runs.
fn has_no_runs(kernel: &str) -> bool {
    !["_r1", "_r2", "_r4"].into_iter().any(|run| kernel.ends_with(run))
}

/// Of each shape's configurations at most so many; of one alone those with runs.
fn resizing(mode: Mode, layout: Layout, shapes: &[Resized], most: usize) {
    let dtype = DType::F32;
    let forward = |(batch, input, output, _): Resized| {
        let (channels, align_corners, scale) = (CHANNELS, false, [None; 3]);
        ResizeDesc { dtype, layout, batch, channels, input, output, mode, align_corners, scale }
    };
    let configs = |shape: Resized, direction| {
        let axes = forward(shape).sampling().expect("sampling");
        let all = resize::tuning::configs(dtype, layout, CHANNELS, &axes, direction);
        let chunked = |of| resize::tuning::Config { chunk: shape.3, ..of };
        all.into_iter().take(most).map(chunked).collect::<Vec<_>>()
    };
    let plan =
        |shape: Resized| forward(shape).plan_with(TARGET, &configs(shape, Direction::Forward)).expect("plan");
    let skipped = if most == 1 { has_no_runs } else { |_: &str| false };
    let infinities = mode == Mode::Linear && most == 1;
    let filled = if infinities { fill_with_infinities } else { fill };
    Sweep { skipped, ..Sweep::new(filled) }.check(&plans(shapes, plan));
    let plan = |shape: Resized| {
        let forward = forward(shape);
        let configs = configs(shape, Direction::Backward);
        ResizeBackwardDesc { forward }.plan_with(TARGET, &configs).expect("plan")
    };
    Sweep { skipped, ..Sweep::new(fill) }.check(&plans(shapes, plan));
}
