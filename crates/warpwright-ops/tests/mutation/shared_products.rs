//! Defects of products whose tiles blocks share.

use warpwright_ops::activation::Activation;
use warpwright_ops::gemm::GemmDesc;
use warpwright_ops::gemm::tuning::{Config, PersistentConfig};
use warpwright_ops::plan::Real;
use warpwright_ptx::DType;

use crate::harness::{Sweep, TARGET, plans};
use crate::products::SWEEP;

/// Only blocks that share all tiles, and what adds their sums, in small tiles: blocks that end a tile and begin the next, that have several tiles,
/// and that are the last of a line; lines down and right, sums of rows beside parts, and results of any alignment.
fn sharing(dtype: DType, transposed: bool, cols: u32) {
    let sweep = Sweep { skipped: |name| !name.contains("_shared_") && !name.ends_with("_shared"), ..SWEEP };
    let layout = PersistentConfig { rows: 128, cols, groups: 2, stages: 2, cluster: 1, height: 2 };
    let cols = cols as usize;
    let shapes = [
        [136, 2 * cols - 8, 1160],
        [72, 3 * cols, 1100],
        [264, cols + 2, 200],
        [648, 3 * cols, 136],
        [8, 20 * cols, 1032],
        [40, 13, 600],
    ];
    let functions = [None, Some(Activation::Relu), Some(Activation::Silu), Some(Activation::Tanh)];
    let cases: Vec<usize> = (0..4 * shapes.len()).collect();
    sweep.check(&plans(&cases, |i| {
        let [m, n, k] = shapes[i % shapes.len()];
        let of_all = i / shapes.len();
        let desc = GemmDesc::new(dtype, [m, n, k], transposed, transposed);
        let (lda, ldb) = (desc.lda.next_multiple_of(8), desc.ldb.next_multiple_of(8));
        let ends = of_all.is_multiple_of(2);
        let desc = GemmDesc {
            bias_gradient: transposed && of_all < 2,
            alpha: Real::new(if ends { 0.5 } else { 1.0 }),
            beta: Real::new(if ends { -1.5 } else { 0.0 }),
            bias: ends && !i.is_multiple_of(3),
            activation: functions[i % functions.len()],
            lda,
            ldb,
            ldy: if ends { n } else { n + 3 },
            ..desc
        };
        desc.plan_with(TARGET, Config::Shared(layout)).expect("plan")
    }));
}

#[test]
#[ignore = "nightly: mutation-products"]
fn defects_of_products_whose_tiles_blocks_share_are_noticed() {
    sharing(DType::BF16, true, 64);
    sharing(DType::F16, false, 128);
}
