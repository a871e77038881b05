//! The family's rows of the catalogue, its descriptors from options, and the kernels of each primitive.

use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{DType, Target};

use super::windows::Windows;
use super::{
    ADAPTIVE_AVERAGE, ADAPTIVE_MAX, AVERAGE, Argmax, AvgPoolBackwardDesc, AvgPoolDesc, Divisor, Layout, MAX,
    MaxPoolBackwardDesc, MaxPoolDesc, Pool, SlidingWindows,
};
use crate::Operation;
use crate::PlanError;
use crate::catalogue::{Asked, Direction, Entry, Extents, Family, Planned, distinct};

/// The family.
pub(crate) const FAMILY: Family = Family {
    name: "pool",
    aliases: &[
        (MAX, "max_pool1d"),
        (MAX, "max_pool2d"),
        (MAX, "max_pool3d"),
        (AVERAGE, "avg_pool1d"),
        (AVERAGE, "avg_pool2d"),
        (AVERAGE, "avg_pool3d"),
        (ADAPTIVE_AVERAGE, "global_average_pool"),
    ],
    entries,
    plan,
    kernels,
};

/// Height and width, and channels of an image where nothing is said.
const SIDE: usize = 56;
const CHANNELS: usize = 64;

/// The family's rows of the catalogue.
fn entries() -> Vec<Entry> {
    [MAX, AVERAGE, ADAPTIVE_MAX, ADAPTIVE_AVERAGE].into_iter().flat_map(Entry::both).collect()
}

/// Plans what is asked for.
fn plan(asked: &Asked<'_>) -> Result<Planned, PlanError> {
    let (o, op) = (&asked.options, asked.entry.op);
    let small = asked.len < SIDE * SIDE;
    let side = if small { asked.len.isqrt().max(2) } else { SIDE };
    let image = o.image().unwrap_or(Extents(vec![side, side])).three(1);
    let cells = image.iter().fold(1usize, |n, of| n.saturating_mul(*of)).max(1);
    let channels = o.channels().unwrap_or((asked.len / cells).clamp(1, CHANNELS));
    let batch = o.batch().unwrap_or((asked.len / cells.saturating_mul(channels).max(1)).max(1));
    let adaptive = [ADAPTIVE_MAX, ADAPTIVE_AVERAGE].contains(&op);
    let windows = if adaptive {
        let output = o.output().map_or([1; 3], |output| output.three(1));
        Windows::Adaptive { output }
    } else {
        let kernel = o.window_size().unwrap_or(Extents(vec![2, 2])).three(1);
        let dilation = if op == MAX { o.dilation() } else { None };
        Windows::Sliding(SlidingWindows {
            kernel,
            stride: o.stride().map_or(kernel, |stride| stride.three(1)),
            padding: o.padding().map_or([0; 3], |padding| padding.three(0)),
            dilation: dilation.map_or([1; 3], |dilation| dilation.three(1)),
            ceil_mode: o.ceil_mode().is_some(),
        })
    };
    let pool = Pool { dtype: asked.dtype, layout: asked.layout(), batch, channels, input: image, windows };
    if [MAX, ADAPTIVE_MAX].contains(&op) {
        let argmax = if adaptive { Argmax::Index } else { o.argmax().unwrap_or_default() };
        let forward = MaxPoolDesc { pool, argmax };
        return asked.either(&forward, &MaxPoolBackwardDesc { forward: forward.clone() });
    }
    let forward = AvgPoolDesc { pool, divisor: Divisor::PaddedCells };
    asked.either(&forward, &AvgPoolBackwardDesc { forward: forward.clone() })
}

/// Windows that reach every configuration of both passes.
fn windows(adaptive: bool) -> Vec<Windows> {
    if adaptive {
        // Windows that share cells, and others in loops, in squares and in tiles.
        let output = |outputs| Windows::Adaptive { output: outputs };
        return vec![output([4; 3]), output([1; 3]), output([6, 3, 3]), output([6, 2, 2])];
    }
    let square = |kernel, stride, padding| {
        Windows::Sliding(SlidingWindows {
            kernel: [1, kernel, kernel],
            stride: [1, stride, stride],
            padding: [0, padding, padding],
            ..SlidingWindows::tiling([1; 3])
        })
    };
    vec![square(2, 2, 0), square(3, 2, 0), square(3, 2, 1), square(3, 3, 0), square(5, 1, 2)]
}

/// Every kernel that a plan of `entry` can hold.
fn kernels(entry: &Entry, dtype: DType, target: Target) -> Result<Vec<Kernel>, PlanError> {
    let (op, direction) = (entry.op, entry.direction);
    let adaptive = [ADAPTIVE_MAX, ADAPTIVE_AVERAGE].contains(&op);
    // Plans with vectors have single elements, too.
    let channels = 8;
    let of_windows = windows(adaptive).into_iter().map(|windows| {
        let input = if adaptive { [6; 3] } else { [5; 3] };
        Pool { dtype, layout: Layout::ChannelsLast, batch: 1, channels, input, windows }
    });
    // Runs of every length of cells of windows side by side.
    let runs = [2usize, 4, 8].map(|run| {
        let windows = match adaptive {
            true => Windows::Adaptive { output: [1, 1, 3] },
            false => Windows::Sliding(SlidingWindows::tiling([1, 5, run])),
        };
        let input = [1, 5, 3 * run];
        Pool { dtype, layout: Layout::ChannelsFirst, batch: 1, channels, input, windows }
    });
    let pools = of_windows.chain(runs);
    if [AVERAGE, ADAPTIVE_AVERAGE].contains(&op) {
        return distinct(pools.map(|pool| {
            let forward = AvgPoolDesc { pool, divisor: Divisor::PaddedCells };
            match direction {
                Direction::Forward => forward.plan(target).map(Into::into),
                Direction::Backward => AvgPoolBackwardDesc { forward }.plan(target).map(Into::into),
            }
        }));
    }
    let kept = match (direction, adaptive) {
        (Direction::Forward, true) => vec![Argmax::None, Argmax::Index],
        (Direction::Forward, false) => vec![Argmax::None, Argmax::Index, Argmax::Tap],
        (Direction::Backward, true) => vec![Argmax::Index],
        (Direction::Backward, false) => vec![Argmax::Index, Argmax::Tap],
    };
    let pools: Vec<Pool> = pools.collect();
    distinct(kept.into_iter().flat_map(|argmax| {
        pools.iter().map(move |pool| {
            let forward = MaxPoolDesc { pool: pool.clone(), argmax };
            match direction {
                Direction::Forward => forward.plan(target).map(Into::into),
                Direction::Backward => MaxPoolBackwardDesc { forward }.plan(target).map(Into::into),
            }
        })
    }))
}
