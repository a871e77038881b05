//! Kernels of embeddings.

use warpwright_ops::Operation;
use warpwright_ops::embedding::{EmbeddingBackwardDesc, EmbeddingDesc};
use warpwright_ops::plan::TensorSpec;
use warpwright_ptx::DType;
use warpwright_testkit::inputs::{Input, Random};

use crate::harness::{Survivor, Sweep, TARGET, plans};

const SURVIVORS: &[Survivor] =
    &[Survivor::equivalent("embedding_backward_parts", "@fold", "a part is made of whole rounds")];

/// Normal numbers; indices of all rows, those beside the first and the last, and such as have a row in their lower word.
fn fill(specs: &[TensorSpec], slot: usize) -> Vec<f64> {
    let spec = &specs[slot];
    if spec.name != "indices" {
        return Input::Normal.values(spec.len, slot as u64);
    }
    let of = |name: &str| specs.iter().find(|spec| spec.name == name).map_or(0, |spec| spec.len);
    let (table, rows) = (of("weight").max(of("dweight")), of("y").max(of("dy")));
    indices(spec, table, rows)
}

/// Indices of rows of a table, where those that are taken have `rows` elements.
pub(crate) fn indices(spec: &TensorSpec, table: usize, rows: usize) -> Vec<f64> {
    // `dim` is the rows' elements over the indices.
    let num_embeddings = table / (rows / spec.len.max(1)).max(1);
    let high = if spec.dtype == DType::I64 { (1u64 << 32) as f64 } else { -1e9 };
    let mut random = Random::new(9);
    let one = |i: usize| match i % 16 {
        3 => -1.0,
        6 => num_embeddings as f64,
        9 => high + 1.0,
        12 | 13 => (num_embeddings - 1) as f64,
        14 | 15 => 0.0,
        _ => (random.bits() % num_embeddings as u64) as f64,
    };
    (0..spec.len).map(one).collect()
}

/// Rows of the table, elements of a row, indices.
pub(crate) type Shape = (usize, usize, usize);

/// The last vectors of a launch are in each of a thread's places; rows end inside and at the end of a block's. Of blocks, the last one lacks a
/// vector.
pub(crate) const TAKEN: [Shape; 8] = [
    (9, 4, 100),
    (9, 8, 256),
    (9, 12, 300),
    (9, 4, 1024),
    (9, 4, 1030),
    (9, 2, 129),
    (9, 4, 1023),
    (9, 1, 1023),
];
/// The last has digits of several warps in the second pass.
pub(crate) const ADDED: [Shape; 6] =
    [(7, 4, 300), (600, 4, 2500), (3, 132, 64), (33, 6, 200), (2, 1, 4200), (17_000, 1, 300)];

fn desc((num_embeddings, dim, count): Shape, index: DType) -> EmbeddingDesc {
    EmbeddingDesc { dtype: DType::F32, index, num_embeddings, dim, count }
}

#[test]
fn defects_of_taking_rows_are_noticed() {
    for index in [DType::I64, DType::I32] {
        let plan = |shape: Shape| desc(shape, index).plan(TARGET).expect("plan");
        Sweep { by_line: true, survivors: SURVIVORS, ..Sweep::new(fill) }.check(&plans(&TAKEN, plan));
    }
}

#[test]
fn defects_of_the_gradient_are_noticed() {
    for index in [DType::I64, DType::I32] {
        let plan = |shape: Shape| {
            let padding_idx = Some(shape.0 / 2).filter(|row| *row > 1);
            let scale_grad_by_freq = shape.0.is_multiple_of(2);
            let desc = EmbeddingBackwardDesc { forward: desc(shape, index), padding_idx, scale_grad_by_freq };
            desc.plan(TARGET).expect("plan")
        };
        Sweep { by_line: true, survivors: SURVIVORS, ..Sweep::new(fill) }.check(&plans(&ADDED, plan));
    }
}
