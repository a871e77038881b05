//! Kernels of rotary position embedding.

use warpwright_ops::Operation;
use warpwright_ops::plan::{Layout, TensorSpec};
use warpwright_ops::rotary::{Pairing, RotaryDesc, RotaryPositions, RotaryTables};
use warpwright_ptx::DType;
use warpwright_testkit::inputs::Input;

use crate::harness::{Survivor, Sweep, TARGET, plans};

/// Rows of the tables.
const ROWS: usize = 7;

/// Normal numbers; positions inside of the tables, and those beside their first and last row.
fn fill(specs: &[TensorSpec], slot: usize) -> Vec<f64> {
    let spec = &specs[slot];
    if spec.name != "positions" {
        return Input::Normal.values(spec.len, slot as u64);
    }
    // A row in the lower word of a position without one.
    let high = if spec.dtype == DType::I64 { (1u64 << 32) as f64 } else { 0.0 };
    (0..spec.len).map(|i| [0.0, 6.0, 7.0, -1.0, 3.0 + high][i % 5]).collect()
}

const IN_PLACE: Survivor =
    Survivor::equivalent("rotary", "elsewhere", "what is copied in place is there already");

/// Heads of queries and keys, elements of a head, and how many are rotated.
type Shape = ([usize; 2], usize, usize);

/// Heads that end in each place of a round, whole and in part; last threads of a block and of the launch.
const SHAPES: [Shape; 7] = [
    ([1, 2], 16, 16),
    ([3, 4], 16, 16),
    ([5, 1], 24, 16),
    ([7, 8], 28, 16),
    ([2, 3], 20, 16),
    ([6, 9], 64, 32),
    ([1, 1], 22, 16),
];

fn desc((heads, head_dim, rotary_dim): Shape, pairing: Pairing, repeated: bool, i: usize) -> RotaryDesc {
    let [q, k] = heads.map(|heads| Layout::contiguous([2, 5, heads, head_dim]));
    let dtype = [DType::I32, DType::I64][i % 2];
    RotaryDesc {
        dtype: DType::F32,
        q,
        k: Some(k),
        q_rotated: q,
        k_rotated: Some(k),
        pairing,
        rotary_dim,
        tables: RotaryTables { dtype: DType::F32, batch: 1 + i % 2, rows: ROWS, repeated },
        positions: (!i.is_multiple_of(3)).then_some(RotaryPositions { dtype, batch: 1 + i / 3 % 2 }),
    }
}

#[test]
fn defects_are_noticed() {
    let kinds = [(Pairing::Half, false), (Pairing::Interleaved, false), (Pairing::Interleaved, true)];
    for (pairing, repeated) in kinds {
        let all: Vec<usize> = (0..SHAPES.len()).collect();
        let plan = |i: usize| desc(SHAPES[i], pairing, repeated, i).plan(TARGET).expect("plan");
        let survivors = &[IN_PLACE];
        Sweep { survivors, ..Sweep::new(fill) }.check(&plans(&all, plan));
    }
}
