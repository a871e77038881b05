//! Convolutions along time.

use warpwright_ops::Operation;
use warpwright_ops::causal_conv1d::{
    CausalConv1d, CausalConv1dBackwardDesc, CausalConv1dDesc, CausalConv1dUpdateDesc, Layout,
};
use warpwright_ops::plan::TensorSpec;
use warpwright_ptx::DType;

use crate::harness::{Survivor, Sweep, TARGET, plain, plans};

/// Sequences of a few positions, some of none. The last element is infinite: taps that do not have it must not become NaN.
fn fill(specs: &[TensorSpec], slot: usize) -> Vec<f64> {
    let spec = &specs[slot];
    if spec.name == "seq_idx" {
        return (0..spec.len).map(|l| [0.0, 0.0, 3.0, 3.0, 3.0, -1.0, 4.0][l % 7]).collect();
    }
    let mut values = plain(specs, slot);
    if spec.name == "x" {
        values.last_mut().into_iter().for_each(|x| *x = f64::INFINITY);
    }
    values
}

/// Samples `[batch, channels, len]`.
fn desc(
    layout: Layout,
    [batch, channels, len]: [usize; 3],
    (width, silu): (usize, bool),
    sequences: bool,
) -> CausalConv1dDesc {
    let conv = CausalConv1d {
        dtype: DType::F32,
        layout,
        batch,
        channels,
        len,
        width,
        bias: !len.is_multiple_of(3),
        silu,
    };
    let (initial_states, final_states) =
        (!sequences && ![3, 12].contains(&channels), !sequences && channels != 6);
    CausalConv1dDesc { conv, initial_states, final_states, sequences, position_stride: None }
}

/// Runs that end within a batch of positions, at its end, and behind it; samples that are shorter than a window; one block and more.
const LAST: [[usize; 3]; 9] = [
    [1, 4, 8],
    [2, 4, 17],
    [1, 8, 2],
    [1, 516, 3],
    [2, 5, 19],
    [1, 3, 1],
    [1, 6, 16],
    [1, 12, 1],
    [1, 4, 15],
];

/// The same for lanes with vectors: rows that end within a vector, a warp, and a run.
const FIRST: [[usize; 3]; 9] = [
    [1, 2, 4],
    [2, 3, 132],
    [1, 1, 2],
    [1, 1, 1],
    [1, 4, 512],
    [2, 1, 131],
    [1, 2, 260],
    [1, 1, 261],
    [1, 1, 127],
];

fn shapes(layout: Layout) -> &'static [[usize; 3]] {
    match layout {
        Layout::ChannelsFirst => &FIRST,
        Layout::ChannelsLast => &LAST,
    }
}

const SWEEP: Sweep = Sweep { by_line: true, survivors: &SURVIVORS, ..Sweep::new(fill) };

const SURVIVORS: [Survivor; 6] = [
    Survivor::equivalent(
        "backward_f32_first_w3",
        "bias.@is_given()",
        "no gradient depends on the bias without silu",
    ),
    Survivor::equivalent(
        "backward_f32_last_w3",
        "bias.@is_given()",
        "no gradient depends on the bias without silu",
    ),
    Survivor::equivalent(
        "backward_f32_first_w3$",
        ".@le(end)",
        "what a part of a chunk lacks is a vector at least",
    ),
    Survivor::equivalent(
        "backward_f32_first_w3_seq$",
        ".@le(end)",
        "what a part of a chunk lacks is a vector at least",
    ),
    Survivor::equivalent(
        "backward_f32_first_w3$",
        "dlast.@is_given()",
        "rows of vectors are longer than states",
    )
    .at_most(1),
    Survivor::equivalent(
        "causal_conv1d_f32_first_w3_silu$",
        "at.@ge(history)",
        "rows of vectors are longer than states",
    ),
];

const LAYOUTS: [Layout; 2] = [Layout::ChannelsFirst, Layout::ChannelsLast];

#[test]
fn defects_of_causal_convolutions_are_noticed() {
    for layout in LAYOUTS {
        for sequences in [false, true] {
            let of = |shape| desc(layout, shape, (3, true), sequences).plan(TARGET).expect("plan");
            SWEEP.check(&plans(shapes(layout), of));
        }
    }
}

#[test]
fn defects_of_gradients_of_causal_convolutions_are_noticed() {
    for layout in LAYOUTS {
        for sequences in [false, true] {
            let of = |shape| {
                let forward = desc(layout, shape, (3, false), sequences);
                CausalConv1dBackwardDesc { forward }.plan(TARGET).expect("plan")
            };
            SWEEP.check(&plans(shapes(layout), of));
        }
    }
}

#[test]
fn defects_of_steps_of_causal_convolutions_are_noticed() {
    for layout in LAYOUTS {
        let shapes = [[1, 4, 1], [2, 5, 1], [1, 131, 3], [1, 516, 5], [2, 8, 9]];
        let of = |shape| CausalConv1dUpdateDesc { conv: desc(layout, shape, (4, true), false).conv };
        SWEEP.check(&plans(&shapes, |shape| of(shape).plan(TARGET).expect("plan")));
    }
}
