//! Recurrent nets in one launch: sequences, their gradients, single steps.

use warpwright_ops::Operation;
use warpwright_ops::gemm::Precision;
use warpwright_ops::recurrent::tuning::{ExchangeKind, PersistentConfig, Schedule};
use warpwright_ops::recurrent::{Biases, Cell, RecurrentBackwardDesc, RecurrentDesc};
use warpwright_ptx::DType;

use crate::harness::{Survivor, Sweep, TARGET, plain, plans};

const ONE_PLACE: &str = "the only place of a sequence is its first from either end";

/// Why nothing is copied behind the first stages.
const AT_ONCE: &str =
    "the state of a few sequences of a few units is in the first stages, all copied at once";

const ONE_BLOCK: &str = "each lane of a warp has waited itself for the only block that the warp reads from";

const SURVIVORS: [Survivor; 7] = [
    Survivor::equivalent("_flagged", "} k.@commit_copies();", AT_ONCE),
    Survivor::equivalent("_flagged", "read = stages.@after(read);", AT_ONCE),
    Survivor::equivalent("_h32_b5_u8_flagged", "fn meet(k: K<'_>)", ONE_BLOCK),
    Survivor::equivalent("_persistent_backward_tf32_h64_b18_u16_flagged", "fn meet(k: K<'_>)", ONE_BLOCK),
    Survivor::missed(
        "_dsmem",
        "@publish_mbarriers()",
        "the barrier of the cluster behind it shows the counts to all threads; that remote stores need a fence to see them is not modelled",
    ),
    Survivor::equivalent("_fused_mma_", "step.@lt(length);", ONE_PLACE),
    Survivor::equivalent("_gemv_", "step.@lt(length);", ONE_PLACE),
];

const SWEEP: Sweep = Sweep { survivors: &SURVIVORS, by_line: true, ..Sweep::new(plain) };

/// Sequences in one launch, of several steps and of one; what may be absent is, in some.
fn sequence(cell: Cell, dtype: DType, [steps, batch, input, hidden]: [usize; 4], i: usize) -> RecurrentDesc {
    let biases = [Biases::Two, Biases::Absent, Biases::One][i % 3];
    let (h0, c0) = (i % 3 != 1, cell == Cell::Lstm && i % 3 != 2);
    let (lengths, directions, training) = (i > 2, 1 + i / 4, i.is_multiple_of(2));
    RecurrentDesc {
        directions,
        biases,
        h0,
        c0,
        lengths,
        training,
        ..RecurrentDesc::new(cell, dtype, [steps, batch, input, hidden])
    }
}

/// The kernels of the products of inputs are those above; what is left is elementwise.
fn not_of_sequences(kernel: &str) -> bool {
    !kernel.contains("_persistent_")
}

const SEQUENCES: Sweep = Sweep { skipped: not_of_sequences, ..SWEEP };

fn sequences(cell: Cell, dtype: DType, sizes: [usize; 2]) {
    sequences_with((None, Precision::Full), cell, dtype, sizes);
}

/// With a layout of its own instead of the one that tuning gives, and with rounded factors.
fn sequences_with(
    (layout, precision): (Option<PersistentConfig>, Precision),
    cell: Cell,
    dtype: DType,
    [batch, hidden]: [usize; 2],
) {
    let cases = [(4, 0), (3, 1), (1, 2), (3, 3), (3, 4), (2, 3)];
    SEQUENCES.check(&plans(&cases, |(steps, i)| {
        let desc = sequence(cell, dtype, [steps, batch, 8, hidden], i);
        let desc = RecurrentDesc { precision, ..desc };
        let schedule = match (desc.schedule(TARGET), layout) {
            (Schedule::Persistent(_), Some(layout)) => Schedule::Persistent(layout),
            (tuned, _) => tuned,
        };
        desc.plan_with(TARGET, schedule).expect("plan")
    }));
}

/// The same backward: the kernel that goes from the last step to the first.
fn sequences_backward(cell: Cell, dtype: DType, sizes: [usize; 2]) {
    sequences_backward_with((None, Precision::Full), cell, dtype, sizes);
}

fn sequences_backward_with(
    (layout, precision): (Option<PersistentConfig>, Precision),
    cell: Cell,
    dtype: DType,
    [batch, hidden]: [usize; 2],
) {
    let sweep = Sweep { skipped: |kernel| !kernel.contains("_persistent_backward_"), ..SWEEP };
    let cases = [(4, 0), (3, 1), (2, 2), (3, 3), (3, 4)];
    sweep.check(&plans(&cases, |(steps, i)| {
        let forward = sequence(cell, dtype, [steps, batch, 8, hidden], i);
        let forward = RecurrentDesc { training: true, precision, ..forward };
        let (dy, dh_n) = (i % 3 != 2, i != 1);
        let dc_n = forward.cell == Cell::Lstm && i != 1;
        let desc = RecurrentBackwardDesc { forward, dy, dh_n, dc_n, dx: true };
        let schedule = layout.map_or_else(|| desc.schedule(TARGET), Schedule::Persistent);
        desc.plan_with(TARGET, schedule).expect("plan")
    }));
}

#[test]
fn defects_of_sequences_backward_are_noticed() {
    sequences_backward(Cell::Lstm, DType::BF16, [9, 48]);
    sequences_backward(Cell::Gru, DType::F32, [2, 24]);
}

#[test]
fn defects_of_sequences_are_noticed() {
    sequences(Cell::Lstm, DType::F32, [2, 24]);
}

#[test]
#[ignore = "nightly: mutation-recurrent"]
fn defects_of_sequences_on_tensor_cores_are_noticed() {
    sequences(Cell::Lstm, DType::BF16, [9, 48]);
}

#[test]
fn defects_of_sequences_through_shared_memory_are_noticed() {
    let layout = PersistentConfig { units: 8, groups: 1, exchange: ExchangeKind::Flagged };
    sequences_with((Some(layout), Precision::Full), Cell::Lstm, DType::F32, [5, 32]);
}

#[test]
#[ignore = "nightly: mutation-recurrent"]
fn defects_of_sequences_of_rounded_factors_are_noticed() {
    let layout = PersistentConfig { units: 16, groups: 1, exchange: ExchangeKind::Flagged };
    sequences_backward_with((Some(layout), Precision::Tf32), Cell::Lstm, DType::F32, [18, 64]);
    let layout = PersistentConfig { exchange: ExchangeKind::Inband, ..layout };
    sequences_with((Some(layout), Precision::Tf32), Cell::Lstm, DType::F32, [3, 32]);
    sequences_backward_with((Some(layout), Precision::Tf32), Cell::Gru, DType::F32, [9, 32]);
}

const TAGGED: PersistentConfig = PersistentConfig { units: 16, groups: 1, exchange: ExchangeKind::Inband };

#[test]
fn defects_of_tagged_sequences_are_noticed() {
    sequences_with((Some(TAGGED), Precision::Full), Cell::Lstm, DType::BF16, [3, 64]);
}

#[test]
#[ignore = "nightly: mutation-recurrent"]
fn defects_of_tagged_sequences_of_larger_batches_are_noticed() {
    sequences_with((Some(TAGGED), Precision::Full), Cell::RnnTanh, DType::F16, [19, 64]);
}

/// Single steps in one launch: loops over the inputs go round more than once in some.
fn single_steps(cell: Cell, dtype: DType, batch: usize) {
    let sweep =
        Sweep { skipped: |kernel| !kernel.contains("_fused_mma_") && !kernel.contains("_gemv_"), ..SWEEP };
    let cases = [(40, 0), (8, 1), (1544, 2), (16, 3), (24, 4)];
    sweep.check(&plans(&cases, |(input, i)| {
        let desc = sequence(cell, dtype, [1, batch, input, 24], i);
        desc.plan(TARGET).expect("plan")
    }));
}

#[test]
fn defects_of_single_steps_are_noticed() {
    single_steps(Cell::Lstm, DType::BF16, 3);
    single_steps(Cell::Gru, DType::BF16, 21);
    single_steps(Cell::Lstm, DType::F32, 2);
}

/// Two blocks that send each other what they have, and one that is alone.
#[test]
fn defects_of_sequences_in_clusters_are_noticed() {
    sequences(Cell::Lstm, DType::BF16, [3, 64]);
    sequences_backward(Cell::Lstm, DType::F32, [2, 32]);
}

#[test]
#[ignore = "nightly: mutation-recurrent"]
fn defects_of_more_sequences_are_noticed() {
    for (cell, dtype, sizes) in [
        (Cell::Lstm, DType::BF16, [1, 48]),
        (Cell::Lstm, DType::F32, [2, 64]),
        (Cell::Gru, DType::BF16, [3, 64]),
        (Cell::Lstm, DType::F16, [3, 160]),
        (Cell::Lstm, DType::F32, [3, 516]),
        (Cell::Gru, DType::BF16, [9, 48]),
        (Cell::Gru, DType::F32, [2, 24]),
        (Cell::RnnTanh, DType::BF16, [9, 48]),
    ] {
        sequences(cell, dtype, sizes);
    }
}
