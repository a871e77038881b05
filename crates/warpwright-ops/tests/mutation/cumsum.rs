//! Cumulative sums.

use warpwright_ops::cumsum::CumsumDesc;
use warpwright_ops::cumsum::tuning::{Config, Layout};
use warpwright_ops::plan::TensorSpec;
use warpwright_ptx::DType;
use warpwright_testkit::inputs::Input;

use crate::harness::{Sweep, TARGET, plans};

fn normal(specs: &[TensorSpec], slot: usize) -> Vec<f64> {
    Input::Normal.values(specs[slot].len, slot as u64)
}

/// Shapes that end at, before and behind each vector, tile and round of a layout.
fn shapes(config: Config) -> Vec<[usize; 3]> {
    let (width, threads) = (config.width as usize, config.threads as usize);
    match config.layout {
        Layout::Rows { team, vectors } => {
            let (step, per_block) = (team as usize * width, threads / team as usize);
            let lengths = (0..vectors as usize).flat_map(|v| [v * step + width, v * step + 5 * width]);
            let full = [per_block, per_block + 1].map(|outer| [outer, step * vectors as usize, 1]);
            lengths.map(|n| [3, n, 1]).chain(full).collect()
        }
        Layout::Tiles { vectors } => {
            let room = threads * width * vectors as usize;
            let tiles = [1, 2, threads - 1, threads, threads + 1, threads + 2, 2 * threads + 1];
            let whole =
                tiles.into_iter().flat_map(|tiles| [[2, tiles * room, 1], [1, tiles * room + width, 1]]);
            let vectors = (0..vectors as usize).map(|v| [2, room + threads * width * v + width, 1]);
            whole.chain(vectors).collect()
        }
        Layout::Columns { lanes } => {
            let (teams, lanes) = (threads / lanes as usize, lanes as usize);
            let rows = [1, 2, 3, 4, 5, 4 * teams - 1, 4 * teams, 4 * teams + 1, 8 * teams + 3];
            rows.into_iter().map(|n| [2, n, (lanes + 1) * width]).collect()
        }
        Layout::Flat => {
            let rows = (1..=9).map(|n| [3, n, 5 * width]);
            rows.chain([threads - 1, threads, threads + 1].map(|outer| [outer, 2, width])).collect()
        }
    }
}

fn checks(configs: &[(Layout, u32)]) {
    for &(layout, width) in configs {
        let config = Config { layout, width, threads: 64 };
        for reverse in [false, true] {
            Sweep::new(normal).check(&plans(&shapes(config), |[outer, n, inner]: [usize; 3]| {
                let desc = CumsumDesc { dtype: DType::F32, outer, n, inner, exclusive: reverse, reverse };
                desc.plan_with(TARGET, config).expect("plan")
            }));
        }
    }
}

#[test]
fn defects_of_rows_are_noticed() {
    checks(&[(Layout::Rows { team: 8, vectors: 2 }, 4), (Layout::Rows { team: 64, vectors: 2 }, 1)]);
}

#[test]
#[ignore = "nightly: mutation-norms"]
fn defects_of_every_cumulative_sum_are_noticed() {
    checks(&[
        (Layout::Rows { team: 32, vectors: 4 }, 4),
        (Layout::Rows { team: 64, vectors: 20 }, 1),
        (Layout::Tiles { vectors: 1 }, 1),
        (Layout::Tiles { vectors: 2 }, 4),
        (Layout::Columns { lanes: 8 }, 4),
        (Layout::Columns { lanes: 2 }, 4),
        (Layout::Columns { lanes: 32 }, 1),
        (Layout::Columns { lanes: 4 }, 1),
        (Layout::Flat, 4),
        (Layout::Flat, 1),
    ]);
}
