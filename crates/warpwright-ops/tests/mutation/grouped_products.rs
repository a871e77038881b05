//! Defects of products of groups.

use warpwright_ops::Operation;
use warpwright_ops::gemm::tuning::PersistentConfig;
use warpwright_ops::grouped_gemm::{GroupedGemmDesc, Grouping};
use warpwright_ops::plan::TensorSpec;
use warpwright_ptx::DType;

use crate::harness::{Sweep, TARGET, plain, plans};
use crate::products::SWEEP;

/// Products of groups, in persistent blocks with small tiles and on the ordinary units.
fn groups(grouping: Grouping, dtype: DType, transpose_b: bool) {
    // By the number of groups: empty ones first, last and between, ends within tiles and slices, one element before a
    // slice is full, and rows behind them.
    let fill = |specs: &[TensorSpec], slot: usize| {
        let ends: &[i32] = match (specs[slot].dtype, specs[slot].len) {
            (DType::I32, 1) => &[130],
            (DType::I32, 3) => &[33, 65, 130],
            (DType::I32, _) => &[0, 5, 5, 69, 132, 132],
            _ => return plain(specs, slot),
        };
        ends.iter().map(|end| f64::from(*end)).collect()
    };
    let config = PersistentConfig { rows: 128, cols: 64, groups: 2, stages: 2, cluster: 1, height: 2 };
    // The groups, the rows of all, and the two other sides; of the last, blocks have three tiles.
    let shapes = [[6, 150, 72, 80], [3, 130, 136, 16], [1, 130, 8, 200], [6, 140, 16, 8712]];
    let cases: Vec<usize> = (0..3 * shapes.len()).collect();
    Sweep { fill, ..SWEEP }.check(&plans(&cases, |i| {
        let [groups, rows, first, second]: [usize; 4] = shapes[i % shapes.len()];
        let desc = match grouping {
            Grouping::M if i % shapes.len() == 3 => {
                GroupedGemmDesc::new(dtype, groups, [rows, second, first], transpose_b)
            }
            Grouping::M => GroupedGemmDesc::new(dtype, groups, [rows, first, second], transpose_b),
            Grouping::K => GroupedGemmDesc::new_k(dtype, groups, [first, second, rows]),
        };
        // With copies of results, with results that begin anywhere, and with operands that do.
        let kind = i / shapes.len();
        let pad = |side: usize| if kind < 2 { side.next_multiple_of(8) } else { side + 1 };
        let ldy = if kind == 0 { pad(desc.n) } else { desc.n + 3 };
        let desc = GroupedGemmDesc { lda: pad(desc.lda), ldb: pad(desc.ldb), ldy, ..desc };
        let plan = if kind < 2 { desc.plan_with(TARGET, config) } else { desc.plan(TARGET) };
        plan.expect("plan")
    }));
}

#[test]
#[ignore = "nightly: mutation-products"]
fn defects_of_products_of_groups_are_noticed() {
    groups(Grouping::M, DType::BF16, true);
}

#[test]
#[ignore = "nightly: mutation-products"]
fn defects_of_products_of_groups_of_the_common_dimension_are_noticed() {
    groups(Grouping::K, DType::F16, false);
}
