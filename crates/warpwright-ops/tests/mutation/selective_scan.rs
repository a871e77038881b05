//! Scans of selective state spaces.

use warpwright_ops::Operation;
use warpwright_ops::plan::TensorSpec;
use warpwright_ops::selective_scan::{
    Layout, SelectiveScan, SelectiveScanBackwardDesc, SelectiveScanDesc, SelectiveScanUpdateDesc,
};
use warpwright_ptx::DType;
use warpwright_testkit::inputs::Input;

use crate::harness::{Sweep, TARGET, plans};

/// Numbers of either sign, those of `a` negative and steps small; the last of `u` is infinite: sums that do not have it must not become
/// NaN.
fn fill(specs: &[TensorSpec], slot: usize) -> Vec<f64> {
    let spec = &specs[slot];
    let mut values = Input::Normal.values(spec.len, slot as u64);
    match spec.name {
        "a" => values.iter_mut().for_each(|a| *a = -a.abs() - 0.1),
        "delta" => values.iter_mut().for_each(|step| *step = 0.2 * step.abs()),
        "u" => values.last_mut().into_iter().for_each(|u| *u = f64::INFINITY),
        _ => {}
    }
    values
}

/// Samples `[batch, channels, len]` with states of `state` numbers: all of the arguments, or none of them.
fn desc(
    layout: Layout,
    ([batch, channels, len], [state, groups]): ([usize; 3], [usize; 2]),
) -> SelectiveScanDesc {
    let all = !channels.is_multiple_of(3);
    let scan = SelectiveScan {
        dtype: DType::F32,
        layout,
        batch,
        channels,
        len,
        state,
        groups,
        d: all,
        gate: all,
        delta_bias: all,
        delta_softplus: all,
    };
    SelectiveScanDesc { scan, initial_state: all, last_state: all, training: true }
}

/// Samples that end within a vector, at its end, and at that of a batch of positions and of a chunk; one block and more, whole and not.
const SHAPES: [([usize; 3], [usize; 2]); 12] = [
    ([1, 4, 4], [16, 1]),
    ([2, 8, 36], [16, 2]),
    ([1, 40, 32], [16, 1]),
    ([1, 36, 40], [16, 1]),
    ([1, 12, 33], [16, 3]),
    ([2, 5, 9], [16, 1]),
    ([1, 4, 8], [5, 1]),
    ([2, 20, 28], [13, 2]),
    ([1, 3, 35], [3, 1]),
    ([1, 7, 13], [15, 1]),
    ([1, 8, 20], [64, 1]),
    ([2, 11, 12], [33, 1]),
];

const SWEEP: Sweep = Sweep { by_line: true, ..Sweep::new(fill) };

#[test]
fn defects_of_scans_are_noticed() {
    for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] {
        SWEEP.check(&plans(&SHAPES, |shape| desc(layout, shape).plan(TARGET).expect("plan")));
    }
}

#[test]
fn defects_of_steps_of_scans_are_noticed() {
    let shapes = [
        ([1, 32, 1], [16, 1]),
        ([2, 40, 1], [16, 1]),
        ([1, 4, 2], [128, 1]),
        ([1, 5, 1], [256, 1]),
        ([2, 6, 3], [5, 3]),
        ([1, 7, 2], [130, 1]),
    ];
    SWEEP.check(&plans(&shapes, |shape| {
        let scan = desc(Layout::ChannelsFirst, shape).scan;
        SelectiveScanUpdateDesc { scan }.plan(TARGET).expect("plan")
    }));
}

fn gradients(layout: Layout) {
    let of = |shape| SelectiveScanBackwardDesc { forward: desc(layout, shape) };
    SWEEP.check(&plans(&SHAPES, |shape| of(shape).plan(TARGET).expect("plan")));
}

#[test]
fn defects_of_gradients_of_scans_are_noticed() {
    gradients(Layout::ChannelsLast);
}

#[test]
#[ignore = "nightly: mutation-scans"]
fn defects_of_gradients_of_scans_with_channels_first_are_noticed() {
    gradients(Layout::ChannelsFirst);
}
