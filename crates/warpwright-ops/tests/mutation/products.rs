//! Products of matrices on tensor cores and on the ordinary units, and sequences of recurrent nets in one launch.

use warpwright_ops::Operation;
use warpwright_ops::activation::Activation;
use warpwright_ops::gemm::GemmDesc;
use warpwright_ops::plan::{Plan, Real};
use warpwright_ops::recurrent::{Biases, Cell, RecurrentDesc};
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

/// A product; the rows of every other one begin at multiples of 16 bytes.
fn product(dtype: DType, transposed: bool, i: usize) -> Plan<GemmDesc> {
    // Each function of the sums, with the smallest product that has one.
    let [m, n, k] = SHAPES.get(i).copied().unwrap_or([8, 8, 24]);
    let desc = GemmDesc::new(dtype, [m, n, k], transposed, !transposed);
    let pad = |elements: usize| if i.is_multiple_of(2) { elements } else { elements.next_multiple_of(8) };
    let (lda, ldb, ldy) = (pad(desc.lda), pad(desc.ldb), pad(n));
    let (stride_a, stride_b, stride_y) = (lda * m.max(k), ldb * n.max(k), ldy * m);
    let batch = if k < 64 { 2 } else { 1 };
    let (beta, bias) = (Real::new([0.5, 0.0, -1.0][i % 3]), i % 4 < 2);
    let activation = ACTIVATIONS[i % ACTIVATIONS.len()];
    let desc =
        GemmDesc { lda, ldb, ldy, stride_a, stride_b, stride_y, batch, beta, bias, activation, ..desc };
    desc.plan(TARGET).expect("plan")
}

/// Shapes, then functions.
const CASES: [usize; 17] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];

const EMPTY_GROUPS: &str = "elements of two bytes are not copied asynchronously: groups are empty";

const SURVIVORS: [Survivor; 5] = [
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

fn products(dtype: DType, transposed: bool) {
    SWEEP.check(&plans(&CASES, |i| product(dtype, transposed, i)));
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
}

/// Sequences in one launch, of several steps and of one; what may be absent is, in some.
fn sequence(
    cell: Cell,
    dtype: DType,
    [steps, batch, input, hidden]: [usize; 4],
    i: usize,
) -> Plan<RecurrentDesc> {
    let biases = [Biases::Two, Biases::Absent, Biases::One][i % 3];
    let (h0, c0) = (i % 3 != 1, cell == Cell::Lstm && i % 3 != 2);
    let (lengths, directions, training) = (i > 2, 1 + i / 4, i.is_multiple_of(2));
    let desc = RecurrentDesc {
        directions,
        biases,
        h0,
        c0,
        lengths,
        training,
        ..RecurrentDesc::new(cell, dtype, [steps, batch, input, hidden])
    };
    desc.plan(TARGET).expect("plan")
}

/// The kernels of the products of inputs are those above; what is left is elementwise.
fn not_of_sequences(kernel: &str) -> bool {
    !kernel.contains("_sequence_")
}

const SEQUENCES: Sweep = Sweep { skipped: not_of_sequences, ..SWEEP };

fn sequences(cell: Cell, dtype: DType, [batch, hidden]: [usize; 2]) {
    let cases = [(4, 0), (3, 1), (1, 2), (3, 3), (3, 4)];
    SEQUENCES.check(&plans(&cases, |(steps, i)| sequence(cell, dtype, [steps, batch, 8, hidden], i)));
}

#[test]
fn defects_of_sequences_are_noticed() {
    sequences(Cell::Lstm, DType::BF16, [9, 48]);
    sequences(Cell::Lstm, DType::F32, [2, 16]);
}

#[test]
#[ignore = "the other types, sizes and cells: nightly"]
fn defects_of_more_sequences_are_noticed() {
    for (cell, dtype, sizes) in [
        (Cell::Lstm, DType::BF16, [1, 32]),
        (Cell::Lstm, DType::F16, [3, 160]),
        (Cell::Lstm, DType::F32, [3, 516]),
        (Cell::Gru, DType::BF16, [9, 48]),
        (Cell::Gru, DType::F32, [2, 16]),
        (Cell::RnnTanh, DType::BF16, [9, 48]),
    ] {
        sequences(cell, dtype, sizes);
    }
}
