//! Kernels that append to the cache of keys and values.

use warpwright_ops::Operation;
use warpwright_ops::attention::{CacheScale, Float8Cache, Paged};
use warpwright_ops::kv_cache::{AppendKvCacheDesc, CacheRotation};
use warpwright_ops::plan::{Layout, TensorSpec};
use warpwright_ops::rotary::{Pairing, RotaryTables};
use warpwright_ptx::DType;
use warpwright_testkit::inputs::Input;

use crate::harness::{Survivor, Sweep, TARGET, plans};

/// Rows of the tables.
const ROWS: usize = 30;
/// Keys of a sequence that have a place, and rows of a page.
const CAPACITY: usize = 32;
const PAGE: usize = 16;
const BATCH: usize = 4;

/// Normal numbers; lengths around the first and the last place, pages around the first and the last one.
fn fill(specs: &[TensorSpec], slot: usize) -> Vec<f64> {
    let spec = &specs[slot];
    let count = specs.iter().find(|spec| spec.name == "k_cache").and_then(|spec| spec.layout);
    let count = count.map_or(0, |layout| layout.shape[0]) as f64;
    match spec.name {
        "key_lengths" => (0..spec.len).map(|b| [2.0, 32.0, 17.0, 33.0][b % 4]).collect(),
        "block_table" => {
            (0..spec.len).map(|at| [3.0, count - 1.0, -1.0, 0.0, 2.0, 1.0, 4.0, count][at % 8]).collect()
        }
        _ => Input::Normal.values(spec.len, slot as u64),
    }
}

const SURVIVORS: [Survivor; 1] =
    [Survivor::equivalent("append", "elsewhere", "what is copied in place is there already")];

/// Steps, heads of queries and keys, elements of a head of keys and of values, and how many are rotated.
type Shape = (usize, [usize; 2], [usize; 2], usize);

/// Heads that end in each place of a round, whole and in part; last threads of a block and of the launch.
const SHAPES: [Shape; 16] = [
    (3, [1, 2], [16, 16], 16),
    (1, [3, 5], [24, 8], 16),
    (3, [7, 4], [28, 20], 16),
    (2, [2, 3], [20, 4], 16),
    (3, [6, 9], [64, 64], 32),
    (3, [1, 1], [22, 6], 16),
    // The same for queries and for keys, which have loops of their own beside caches of 8-bit floats.
    (2, [5, 1], [64, 64], 32),
    (2, [1, 5], [64, 48], 32),
    (2, [2, 3], [64, 64], 32),
    (2, [5, 1], [28, 20], 16),
    (2, [1, 5], [28, 20], 16),
    (2, [5, 3], [22, 6], 16),
    (2, [3, 5], [22, 6], 16),
    (1, [4, 4], [64, 64], 32),
    (1, [4, 4], [28, 20], 16),
    (1, [4, 4], [22, 6], 16),
];

fn desc(
    (steps, heads, [width, value_width], rotary_dim): Shape,
    kind: (Pairing, bool),
    i: usize,
    dtype: DType,
) -> AppendKvCacheDesc {
    let (pages, paged) = (CAPACITY / PAGE, i.is_multiple_of(2));
    let of_cache = if paged { [BATCH * pages + 1, PAGE] } else { [BATCH, CAPACITY] };
    let of = |[batch, rows]: [usize; 2], heads, width| Layout::contiguous([batch, rows, heads, width]);
    let (q, (pairing, repeated)) = (of([BATCH, steps], heads[0], width), kind);
    AppendKvCacheDesc {
        dtype,
        q: Some([q; 2]),
        k: of([BATCH, steps], heads[1], width),
        v: of([BATCH, steps], heads[1], value_width),
        k_cache: of(of_cache, heads[1], width),
        v_cache: of(of_cache, heads[1], value_width),
        rotation: Some(CacheRotation {
            pairing,
            rotary_dim,
            tables: RotaryTables { dtype, batch: 1, rows: ROWS, repeated },
        }),
        key_lengths: i != 1,
        paged: paged.then_some(Paged { pages }),
        float8: (dtype != DType::F32)
            .then_some(Float8Cache { k_scale: CacheScale::PerHead, v_scale: CacheScale::PerTensor }),
    }
}

#[test]
fn defects_are_noticed() {
    let kinds = [(Pairing::Half, false), (Pairing::Interleaved, false), (Pairing::Interleaved, true)];
    for kind in kinds {
        let all: Vec<usize> = (0..SHAPES.len()).collect();
        // With caches of their type, and of e4m3.
        for dtype in [DType::F32, DType::F16] {
            let plan = |i: usize| desc(SHAPES[i], kind, i, dtype).plan(TARGET).expect("plan");
            let survivors = &SURVIVORS;
            Sweep { survivors, ..Sweep::new(fill) }.check(&plans(&all, plan));
        }
    }
}
