//! Rows by their indices: what these kernels have beside those of embeddings.

use warpwright_ops::Operation;
use warpwright_ops::gather_scatter::{GatherRowsDesc, IndexedRows, RowDotsDesc, ScatterRowsDesc};
use warpwright_ops::plan::TensorSpec;
use warpwright_ptx::DType;
use warpwright_testkit::inputs::Input;

use crate::embedding::{ADDED, Shape, TAKEN, indices};
use crate::harness::{Survivor, Sweep, TARGET, plans};

const SURVIVORS: &[Survivor] =
    &[Survivor::equivalent("scatter_rows_parts", "@fold", "a part is made of whole rounds")];

/// Normal numbers; indices of all rows and of none.
fn fill(specs: &[TensorSpec], slot: usize) -> Vec<f64> {
    let spec = &specs[slot];
    if spec.name != "index" {
        return Input::Normal.values(spec.len, slot as u64);
    }
    let of = |name: &str| specs.iter().find(|spec| spec.name == name).map_or(0, |spec| spec.len);
    let [x, y] = [of("x"), of("y")];
    let (table, rows) = match (of("a"), specs.iter().any(|spec| spec.name == "base")) {
        (0, false) => (x, y),
        (0, true) => (y, x),
        (a, _) => (of("b"), a),
    };
    indices(spec, table, rows)
}

fn rows((rows, dim, count): Shape) -> IndexedRows {
    IndexedRows { dtype: DType::F32, index: DType::I64, rows, dim, count }
}

#[test]
#[ignore = "nightly: mutation-norms"]
fn defects_of_rows_by_indices_are_noticed() {
    let sweep = Sweep { by_line: true, survivors: SURVIVORS, ..Sweep::new(fill) };
    let factors = Some(DType::F32);
    sweep.check(&plans(&TAKEN, |shape| {
        GatherRowsDesc { of: rows(shape), factors }.plan(TARGET).expect("plan")
    }));
    // Sorting is swept with the gradient of embeddings.
    let skipped = |name: &str| name.starts_with("embedding");
    let sweep = Sweep { skipped, ..sweep };
    sweep.check(&plans(&ADDED, |shape| {
        ScatterRowsDesc { of: rows(shape), factors, base: true }.plan(TARGET).expect("plan")
    }));
    let dim = |dim| (5, dim, 17);
    let multiplied = [1, 2, 3, 32, 33, 65, 97, 129, 4, 132, 260, 388, 516, 1028].map(dim);
    sweep.check(&plans(&multiplied, |shape| {
        RowDotsDesc { of: rows(shape), y_dtype: DType::F32 }.plan(TARGET).expect("plan")
    }));
}
