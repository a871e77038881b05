//! Norms that are cut into parts for a whole device, in fewer parts than their plans have, so that the threads go round
//! their loops in small tensors.

use warpwright_ops::Operation;
use warpwright_ops::batch_norm::{BatchNorm, BatchNormBackwardDesc, BatchNormDesc, Layout, Momentum, Real};
use warpwright_ops::group_norm::tuning::Path;
use warpwright_ptx::DType;
use warpwright_ptx::abi::ArgValue;
use warpwright_runtime::LaunchStep;

use crate::harness::{Survivor, Sweep, TARGET, grouped, plans};
use crate::norms::group_norm_shapes;

/// The place of an argument, by its name.
fn place(step: &LaunchStep, name: &str) -> Option<usize> {
    let entry = step.kernel().module().functions.first()?;
    entry.params.iter().position(|param| param.name == name)
}

/// Vectors of a tensor that a thread keeps: more than it has under way.
const HELD: u32 = 6;

/// Cooperative grids of at most two blocks.
fn two_blocks(step: &LaunchStep) -> LaunchStep {
    if !step.is_cooperative() {
        return step.clone();
    }
    let mut args = step.args().to_vec();
    if let Some(hold) = place(step, "hold") {
        args[hold] = ArgValue::U32(HELD);
    }
    // Two tensors, 512 threads, vectors of 16 bytes.
    step.clone()
        .with_grid([step.grid()[0].min(2), 1, 1])
        .with_args(args)
        .with_dynamic_shared(HELD * 2 * 512 * 16)
}

const GRIDS: [Survivor; 1] = [Survivor::equivalent(
    "_grid",
    "32 * TOGETHER, blocks",
    "a grid has at most 132 blocks, and 160 are read ahead",
)];

#[test]
fn defects_of_batch_normalisation_in_grids_are_noticed() {
    // Rows, channels: a thread has what it keeps, less and more; threads without a column; rows of a block.
    let shapes = [
        (3, 64),
        (64, 64),
        (65, 64),
        (255, 64),
        (384, 64),
        (386, 64),
        (600, 64),
        (901, 64),
        (2100, 24),
        (9, 2048),
        (27, 2048),
    ];
    let norm = |(rows, channels)| BatchNorm::new(DType::F32, Layout::ChannelsLast, 1, channels, rows);
    let sweep = Sweep {
        launched: two_blocks,
        skipped: |name| !name.ends_with("_grid"),
        by_line: true,
        survivors: &GRIDS,
        ..Sweep::new(grouped)
    };
    let momentum = Some(Momentum::Exponential(Real::new(0.1)));
    sweep.check(&plans(&shapes, |shape| {
        let (norm, residual) = (norm(shape), shape.0 % 2 == 0);
        BatchNormDesc { norm, residual, momentum }.plan(TARGET).expect("plan")
    }));
    sweep.check(&plans(&shapes, |shape| {
        BatchNormBackwardDesc { norm: norm(shape), dresidual: false }.plan(TARGET).expect("plan")
    }));
}

/// Ranges in one part.
fn one_part(step: &LaunchStep) -> LaunchStep {
    let mut args = step.args().to_vec();
    let parts = match place(step, "splits") {
        Some(at) => std::mem::replace(&mut args[at], ArgValue::U32(1)),
        None => return step.clone(),
    };
    let ArgValue::U32(parts) = parts else { unreachable!("a count of parts") };
    if let Some(ArgValue::U64(per)) = place(step, "per_split").map(|at| &mut args[at]) {
        *per *= u64::from(parts);
    }
    let [mut blocks, y, z] = step.grid();
    match place(step, "parts").map(|at| &mut args[at]) {
        // A warp takes a part.
        Some(ArgValue::U32(all)) => {
            *all /= parts;
            blocks = all.div_ceil(8);
        }
        _ if place(step, "per_split").is_some() && !step.kernel().name().contains("finish") => {
            blocks /= parts;
        }
        _ => {}
    }
    step.clone().with_grid([blocks, y, z]).with_args(args)
}

const LAST: &str =
    "the barrier behind the result keeps shared memory for nobody: there is no further exchange";

const STREAMS: [Survivor; 4] = [
    Survivor::equivalent("moments", "@block_combine(", LAST).at_most(1),
    Survivor::equivalent("finish", "@block_combine(", LAST).at_most(1),
    Survivor::equivalent(
        "backward_finish",
        "); k.@barrier()",
        "there is another round only where a thread reads no slot but its own",
    )
    .at_most(1),
    Survivor::equivalent(
        "_x1",
        "(of_group & (width - 1)).@eq(0)",
        "every element is a vector; the way for others gives the same",
    ),
];

const STREAMED: Sweep =
    Sweep { launched: one_part, by_line: true, survivors: &STREAMS, ..Sweep::new(grouped) };

#[test]
fn defects_of_streamed_group_normalisation_are_noticed() {
    // Rounds are of 1024 vectors of a group, or of 128 of a channel; four elements make a vector, or one.
    let vectors = [30, 32, 33, 96, 127, 128, 129, 260, 513, 1023, 1024, 1025, 1300, 2100].map(|n| 4 * n);
    let elements = [31, 33, 95, 97, 127, 129, 257, 385, 513, 769, 1023, 1025, 1281, 2049];
    let mut shapes: Vec<[usize; 4]> = vectors.into_iter().chain(elements).map(|n| [1, 2, n, 2]).collect();
    shapes.extend([
        [2, 6, 84, 2],
        [1, 6, 169, 2],
        [2, 64, 5, 2],
        [3, 4, 700, 1],
        [40, 2, 4, 2],
        [9, 2, 7, 1],
    ]);
    group_norm_shapes(STREAMED, Layout::ChannelsFirst, &shapes, Some(Path::Streamed));
}

#[test]
fn defects_of_group_normalisation_with_channels_last_are_noticed() {
    let shapes = [
        [2, 16, 300, 4],
        [1, 24, 129, 3],
        [2, 520, 40, 5],
        [1, 2056, 9, 2],
        [3, 6, 77, 2],
        [1, 3, 1000, 1],
        [2, 8, 1, 2],
        [2, 64, 517, 8],
        [1, 12, 2049, 3],
        [4, 36, 64, 36],
        // The last pixel of a round is the last one of all, for some thread.
        [2, 16, 240, 4],
        [1, 16, 496, 4],
        [1, 24, 112, 3],
        [1, 24, 240, 3],
        [2, 64, 56, 8],
    ];
    group_norm_shapes(STREAMED, Layout::ChannelsLast, &shapes, None);
}
