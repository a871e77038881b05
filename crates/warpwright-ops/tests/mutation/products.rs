//! Products of matrices on tensor cores and on the ordinary units, and sequences of recurrent nets in one launch.

use warpwright_ops::Operation;
use warpwright_ops::activation::Activation;
use warpwright_ops::gemm::tuning::{self, Config, Tiled, Tiles, WarpgroupConfig};
use warpwright_ops::gemm::{GemmDesc, Precision};
use warpwright_ops::plan::{Real, TensorSpec};
use warpwright_ops::recurrent::tuning::{Exchange, PersistentConfig, Schedule};
use warpwright_ops::recurrent::{Biases, Cell, RecurrentBackwardDesc, RecurrentDesc};
use warpwright_ptx::DType;

use crate::harness::{Survivor, Sweep, TARGET, plain, plans};

/// Rows, columns and common dimension: whole tiles, one element less and more, several slices, one element. Those of more
/// than 512 are shared by blocks along the common dimension.
const SHAPES: [[usize; 3]; 10] = [
    [65, 66, 33],
    [63, 63, 200],
    [64, 64, 64],
    [1, 1, 1],
    [72, 136, 16],
    [8, 8, 24],
    [8, 13, 1000],
    [5, 3, 515],
    [9, 20, 1032],
    [65, 8, 128],
];
const ACTIVATIONS: [Option<Activation>; 7] = [
    Some(Activation::Silu),
    None,
    Some(Activation::GeluTanh),
    Some(Activation::Relu),
    Some(Activation::Sigmoid),
    Some(Activation::Tanh),
    Some(Activation::GeluErf),
];

/// A product; the rows of those that are not `narrow` begin at multiples of 16 bytes.
fn product(dtype: DType, transposed: bool, i: usize, narrow: bool) -> GemmDesc {
    // Each function of the sums, with the smallest product that has one.
    let [m, n, k] = SHAPES.get(i).copied().unwrap_or([8, 8, 24]);
    let desc = GemmDesc::new(dtype, [m, n, k], transposed, !transposed);
    let pad = |elements: usize| if narrow { elements } else { elements.next_multiple_of(8) };
    let (lda, ldb, ldy) = (pad(desc.lda), pad(desc.ldb), pad(n));
    let (stride_a, stride_b, stride_y) = (lda * m.max(k), ldb * n.max(k), ldy * m);
    let batch = if k < 64 { 2 } else { 1 };
    let (beta, bias) = (Real::new([0.5, 0.0, -1.0][i % 3]), i % 4 < 2);
    let activation = ACTIVATIONS[i % ACTIVATIONS.len()];
    GemmDesc { lda, ldb, ldy, stride_a, stride_b, stride_y, batch, beta, bias, activation, ..desc }
}

/// Shapes, then functions.
const CASES: [usize; 17] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];

const EMPTY_GROUPS: &str = "elements of two bytes are not copied asynchronously: groups are empty";

const ONE_PLACE: &str = "the only place of a sequence is its first from either end";

/// Why nothing is copied behind the first stages.
const AT_ONCE: &str =
    "the state of a few sequences of a few units is in the first stages, all copied at once";

const ONE_BLOCK: &str = "each lane of a warp has waited itself for the only block that the warp reads from";

const SURVIVORS: [Survivor; 13] = [
    Survivor::equivalent("_blocks", "} k.@commit_copies();", AT_ONCE),
    Survivor::equivalent("_blocks", "read = stages.@after(read);", AT_ONCE),
    Survivor::equivalent("_h32_b5_u8_blocks", "fn meet(k: K<'_>)", ONE_BLOCK),
    Survivor::equivalent("_sweep_tf32_h64_b18_u16_blocks", "fn meet(k: K<'_>)", ONE_BLOCK),
    Survivor::missed(
        "_cluster",
        "@publish_mbarriers()",
        "the barrier of the cluster behind it shows the counts to all threads; that remote stores need a fence to see them is not modelled",
    ),
    Survivor::missed(
        "_wg_",
        "@publish_mbarriers()",
        "the barrier of the block behind it shows the counts to its threads; that tensor copies need a fence to see them is not modelled",
    ),
    Survivor::equivalent("_once_", "step.@lt(length);", ONE_PLACE),
    Survivor::equivalent("_few_", "step.@lt(length);", ONE_PLACE),
    Survivor::equivalent("_p2_", "copies(", EMPTY_GROUPS),
    Survivor::equivalent("_p2_", "pipeline_ahead(", EMPTY_GROUPS),
    Survivor::equivalent(
        "gemm",
        "* size - 1)).@eq(0)",
        "either shift leaves vectors to the path of single elements",
    ),
    Survivor::equivalent(
        "_split",
        "(to_col + (width - 1)).@lt(n)",
        "parts have no gaps between their rows: where these are aligned, all vectors are whole",
    ),
    Survivor::equivalent("_split", "self.activation.@eq(first)", "parts are stored without a function"),
];

const SWEEP: Sweep = Sweep { survivors: &SURVIVORS, by_line: true, ..Sweep::new(plain) };

/// Kernels whose warps share the common dimension: their stages go round only in parts that are longer than those here.
fn in_teams(name: &str) -> bool {
    ["_t2", "_t4"].into_iter().any(|teams| name.ends_with(teams) || name.contains(&format!("{teams}_")))
}

/// Tiles of 64 x 64, whatever tuning takes for products of such sizes.
fn small_tiles(dtype: DType) -> Config {
    let small = |config: &Config| match config {
        Config::Tiled(tiled) => {
            let Tiles { rows, cols, teams, .. } = *tiled.tiles();
            (rows, cols, teams) == (64, 64, 1) && !matches!(tiled, Tiled::Split(_))
        }
        Config::Warpgroup(_) => false,
    };
    tuning::configs(dtype, TARGET).into_iter().find(small).expect("a kernel with small tiles")
}

fn products(dtype: DType, transposed: bool) {
    // Kernels of warpgroups and those that split their operands have sweeps of their own, whose products are long enough for their stages.
    let elsewhere = |name: &str| in_teams(name) || name.contains("_tf32x3_") || name.contains("_wg_");
    Sweep { skipped: elsewhere, ..SWEEP }.check(&plans(&CASES, |i| {
        let narrow = i.is_multiple_of(2);
        let desc = product(dtype, transposed, i, narrow);
        let plan = if narrow { desc.plan(TARGET) } else { desc.plan_with(TARGET, small_tiles(dtype)) };
        plan.expect("plan")
    }));
}

/// Only what multiplies with `wgmma`, in small tiles: the ring of stages goes round in short products.
fn warpgroups(dtype: DType, transposed: bool, [rows, cols, stages]: [u32; 3]) {
    let sweep = Sweep { skipped: |name| !name.contains("_wg_"), ..SWEEP };
    let config = Config::Warpgroup(WarpgroupConfig { rows, cols, stages });
    sweep.check(&plans(&CASES, |i| {
        product(dtype, transposed, i, false).plan_with(TARGET, config).expect("plan")
    }));
}

/// Only what splits its operands; sums of products with a bias are too large for that.
fn splitting(transposed: bool) {
    let large = |specs: &[TensorSpec], slot: usize| {
        let factor = if slot < 2 && specs[3].present { 1e17 } else { 1.0 };
        plain(specs, slot).into_iter().map(|value| value * factor).collect()
    };
    let sweep = Sweep { fill: large, skipped: |name| !name.contains("_tf32x3_"), ..SWEEP };
    let small = |config: &Config| matches!(config, Config::Tiled(Tiled::Split(c)) if c.tiles.rows == 64);
    let config =
        tuning::configs(DType::F32, TARGET).into_iter().find(small).expect("a kernel with small tiles");
    let cases: Vec<usize> = (0..2 * CASES.len()).collect();
    sweep.check(&plans(&cases, |i| {
        let desc = product(DType::F32, transposed, i % CASES.len(), false);
        let desc = GemmDesc { bias: i >= CASES.len(), ..desc };
        desc.plan_with(TARGET, config).expect("plan")
    }));
}

#[test]
fn defects_of_products_of_split_operands_are_noticed() {
    splitting(true);
}

/// Only kernels whose warps share the common dimension. In the last two products, one shared by blocks as well and one not, every
/// team has so much that the stages go round.
fn teams(dtype: DType, transposed: bool) {
    for config in tuning::configs(dtype, TARGET) {
        let Config::Tiled(tiled) = config else { continue };
        let Tiles { teams, slice, stages, .. } = *tiled.tiles();
        if teams == 1 {
            continue;
        }
        let long = |batch: usize, parts: usize| {
            let k = (teams * slice * (stages + 2)) as usize * parts;
            let (stride_a, stride_b, stride_y) = (8 * k, 8 * k, 24);
            let lda = if transposed { 8 } else { k };
            let desc = GemmDesc::new(dtype, [3, 8, k], transposed, !transposed);
            GemmDesc { batch, lda, ldb: lda, stride_a, stride_b, stride_y, ..desc }
        };
        let sweep = Sweep { skipped: |name| !in_teams(name), ..SWEEP };
        let cases: Vec<usize> = (0..CASES.len() + 2).collect();
        sweep.check(&plans(&cases, |i| {
            let desc = match i - i.min(CASES.len()) {
                _ if i < CASES.len() => product(dtype, transposed, i, false),
                0 => long(70, 1),
                _ => long(44, 3),
            };
            let desc = GemmDesc { precision: config.precision(dtype), ..desc };
            desc.plan_with(TARGET, config).expect("plan")
        }));
    }
}

#[test]
fn defects_of_products_of_teams_are_noticed() {
    teams(DType::F32, true);
}

#[test]
fn defects_of_products_of_warpgroups_are_noticed() {
    warpgroups(DType::BF16, false, [64, 64, 2]);
    warpgroups(DType::F16, true, [128, 64, 3]);
}

#[test]
fn defects_of_products_are_noticed() {
    products(DType::BF16, false);
    products(DType::F32, true);
}

#[test]
#[ignore = "the other types and layouts: nightly"]
fn defects_of_more_products_are_noticed() {
    for (dtype, transposed) in
        [(DType::BF16, true), (DType::F32, false), (DType::F64, false), (DType::F64, true)]
    {
        products(dtype, transposed);
    }
    teams(DType::BF16, false);
    splitting(false);
}

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
    !kernel.contains("_sequence_")
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
    let sweep = Sweep { skipped: |kernel| !kernel.contains("_sweep_"), ..SWEEP };
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
    sequences(Cell::Lstm, DType::BF16, [9, 48]);
    sequences(Cell::Lstm, DType::F32, [2, 24]);
}

#[test]
fn defects_of_sequences_through_shared_memory_are_noticed() {
    let layout = PersistentConfig { units: 8, groups: 1, exchange: Exchange::Blocks };
    sequences_with((Some(layout), Precision::Full), Cell::Lstm, DType::F32, [5, 32]);
}

#[test]
fn defects_of_sequences_of_rounded_factors_are_noticed() {
    let layout = PersistentConfig { units: 16, groups: 1, exchange: Exchange::Blocks };
    sequences_backward_with((Some(layout), Precision::Tf32), Cell::Lstm, DType::F32, [18, 64]);
    let layout = PersistentConfig { exchange: Exchange::Tags, ..layout };
    sequences_with((Some(layout), Precision::Tf32), Cell::Lstm, DType::F32, [3, 32]);
    sequences_backward_with((Some(layout), Precision::Tf32), Cell::Gru, DType::F32, [9, 32]);
}

#[test]
fn defects_of_tagged_sequences_are_noticed() {
    let layout = PersistentConfig { units: 16, groups: 1, exchange: Exchange::Tags };
    sequences_with((Some(layout), Precision::Full), Cell::Lstm, DType::BF16, [3, 64]);
    sequences_with((Some(layout), Precision::Full), Cell::RnnTanh, DType::F16, [19, 64]);
}

/// Single steps in one launch: loops over the inputs go round more than once in some.
fn single_steps(cell: Cell, dtype: DType, batch: usize) {
    let sweep = Sweep { skipped: |kernel| !kernel.contains("_once_") && !kernel.contains("_few_"), ..SWEEP };
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
#[ignore = "the other types, sizes and cells: nightly"]
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
