//! Products on tensor cores: the warps of a block compute parts of its tile from fragments.

use warpwright_dsl::prelude::*;

use super::epilogue::SumTile;
use super::kernel::{Factors, Problem};
use super::tuning::{TensorConfig, Tiles};

/// Records the product of a block: its sums, when all warps are here.
pub(super) fn sums<'k, A: Accumulate>(
    factors: &Factors,
    config: TensorConfig,
    problem: &Problem<'k>,
) -> SumTile<'k> {
    let k = problem.k;
    let TensorConfig { tiles, warps_down, warps_across } = config;
    let Tiles { rows, cols, slice, .. } = tiles;
    let Factors { dtype, major, .. } = *factors;
    let atom = k.mma_atom(dtype);
    let (warp_rows, warp_cols) = (rows / warps_down, cols / warps_across);
    let warp = problem.warp;
    let (warp_row, warp_col) = ((warp / warps_across) * warp_rows, (warp % warps_across) * warp_cols);
    let read_a = problem.tile_a.reader_a(atom, major.0, warp_row);
    let read_b = problem.tile_b.reader_b(atom, major.1, warp_col);
    let (down, across) = (warp_rows / atom.m(), warp_cols / atom.n());
    // The operands of one step of the atom along the common dimension.
    let operands = |stage: U32<'k>, depth: u32| {
        let (read_a, read_b) = (read_a.moved(stage), read_b.moved(stage));
        let a: Vec<_> = (0..down).map(|i| read_a.load(i * atom.m(), depth)).collect();
        let b: Vec<_> = (0..across / 2).map(|j| read_b.load_pair(j * 16, depth)).collect();
        (a, b)
    };
    let zero = Accumulator::<A>::zero(k, atom);
    let init: Vec<Vec<_>> = (0..down).map(|_| (0..across).map(|_| zero.clone()).collect()).collect();
    let sums = k.pipeline_ahead(
        tiles.pipeline(dtype, major.0, major.1),
        problem.steps,
        |step, stage, there| drop(problem.start(step, stage, there)),
        |stage| operands(stage, 0),
        init,
        |stage, ahead, turn, mut sums| {
            let mut now = ahead;
            for depth in (0..slice).step_by(atom.k() as usize) {
                let next = depth + atom.k();
                let later = if next < slice {
                    Some(operands(stage, next))
                } else {
                    turn();
                    None
                };
                let (a, b) = &now;
                for (i, a) in a.iter().enumerate() {
                    for (j, b) in b.iter().flatten().enumerate() {
                        sums[i][j] = sums[i][j].mma(a, b);
                    }
                }
                if let Some(later) = later {
                    now = later;
                }
            }
            sums
        },
    );

    // The stages are free when all warps are here.
    k.barrier();
    let tile = SumTile::new::<A>(k, rows, cols, tiles.teams);
    let own = tile.of_team(problem.team);
    let (lane_row, lane_col) = k.accumulator_origin();
    for (i, sums) in (0..).zip(&sums) {
        for (j, sum) in (0..).zip(sums) {
            for half in 0..sum.lanes().len() as u32 / 2 {
                let row = warp_row + lane_row + (i * atom.m() + half * 8);
                let col = warp_col + lane_col + j * atom.n();
                let pair = [0, 1].map(|c| sum.lanes()[(2 * half + c) as usize]);
                own.at(row, col).store(Lanes::from(pair.to_vec()));
            }
        }
    }
    k.barrier();
    tile
}
