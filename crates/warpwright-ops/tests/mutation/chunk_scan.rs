//! The scan of Mamba 2.

use warpwright_ops::Operation;
use warpwright_ops::chunk_scan::{ChunkScan, ChunkScanBackwardDesc, ChunkScanDesc};
use warpwright_ops::plan::TensorSpec;
use warpwright_ptx::DType;
use warpwright_testkit::inputs::Input;

use crate::harness::{Sweep, TARGET, plans};

/// Numbers of either sign, those of `a` negative and steps small.
fn fill(specs: &[TensorSpec], slot: usize) -> Vec<f64> {
    let spec = &specs[slot];
    let mut values = Input::Normal.values(spec.len, slot as u64);
    match spec.name {
        "a" => values.iter_mut().for_each(|a| *a = -a.abs() - 0.1),
        "dt" => values.iter_mut().for_each(|step| *step = 0.2 * step.abs()),
        _ => {}
    }
    values
}

/// Samples `[batch, len, heads, head_dim]` with groups and numbers of state: all of the arguments, or none of them.
fn desc((shape, sizes): ([usize; 4], [usize; 2])) -> ChunkScanDesc {
    let all = !shape[2].is_multiple_of(3);
    let scan =
        ChunkScan { d: all, dt_bias: all, dt_softplus: all, ..ChunkScan::new(DType::F16, shape, sizes) };
    ChunkScanDesc { scan, initial_state: all, last_state: all, training: true }
}

/// Samples of more chunks than there are stages, that end within a chunk and at its end; heads of one block and of two; heads and states that
/// fill their tiles, and not; rows that begin anywhere.
const SHAPES: [([usize; 4], [usize; 2]); 7] = [
    ([1, 200, 2, 32], [1, 32]),
    ([2, 64, 9, 8], [1, 16]),
    ([1, 130, 2, 24], [2, 8]),
    ([1, 200, 4, 40], [1, 72]),
    ([1, 200, 3, 5], [1, 7]),
    ([1, 200, 4, 33], [1, 35]),
    ([1, 200, 4, 37], [1, 67]),
];

const SWEEP: Sweep = Sweep { by_line: true, ..Sweep::new(fill) };

fn forward(shapes: &[([usize; 4], [usize; 2])]) {
    SWEEP.check(&plans(shapes, |shape| desc(shape).plan(TARGET).expect("plan")));
}

fn backward(shapes: &[([usize; 4], [usize; 2])]) {
    SWEEP.check(&plans(shapes, |shape| {
        ChunkScanBackwardDesc { forward: desc(shape) }.plan(TARGET).expect("plan")
    }));
}

/// A kernel of every kind; those for other tiles of heads and states are the same code.
const SOME: [([usize; 4], [usize; 2]); 2] = [SHAPES[0], SHAPES[1]];

#[test]
fn defects_of_scans_of_chunks_are_noticed() {
    forward(&SOME);
}

#[test]
fn defects_of_gradients_of_scans_of_chunks_are_noticed() {
    backward(&SOME);
}

#[test]
#[ignore = "nightly: mutation-scans"]
fn defects_of_scans_of_chunks_of_all_tiles_are_noticed() {
    forward(&SHAPES);
}

#[test]
#[ignore = "nightly: mutation-scans"]
fn defects_of_gradients_of_scans_of_chunks_of_all_tiles_are_noticed() {
    backward(&SHAPES);
}
