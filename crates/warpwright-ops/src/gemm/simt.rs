//! Products on the ordinary units, in the precision of their registers: a thread keeps 8 x 8 or 8 x 16 sums, and reads the
//! operands as vectors from tiles in shared memory.

use std::cell::{Cell, RefCell};

use warpwright_dsl::prelude::*;

use super::epilogue::SumTile;
use super::kernel::{Factors, Problem, Turning};
use super::tuning::{SimtConfig, Tiles};

/// Elements that are read together along rows or columns.
const VECTOR: u32 = 4;
/// Sums of `f64` fill the registers: one place of the common dimension at a time, and nothing ahead of its use.
const DOUBLE_VECTOR: u32 = 1;

/// One side of the product as a thread reads it.
#[derive(Clone, Copy)]
struct Side<'k> {
    major: Major,
    /// The thread's number among the lanes of this side, of `lanes`.
    lane: U32<'k>,
    lanes: u32,
    /// Sums of the thread along this side.
    own: u32,
    /// Where the warp's rows, or columns, begin.
    origin: U32<'k>,
    at: TilePoint<'k>,
}

impl<'k> Side<'k> {
    fn new(
        tile: SharedTile<'k>,
        major: Major,
        (lane, lanes): (U32<'k>, u32),
        own: u32,
        origin: U32<'k>,
    ) -> Self {
        let zero = lane.k().lit(0u32);
        let at = match major {
            // Neighbouring lanes read neighbouring rows, which lie in different banks.
            Major::K => tile.point(origin + lane, zero),
            Major::Mn => tile.point(zero, origin + lane * VECTOR),
        };
        Self { major, lane, lanes, own, origin, at }
    }

    /// Offset of the thread's element `i` from the origin and the lane.
    fn step(&self, i: u32) -> u32 {
        match self.major {
            Major::K => i * self.lanes,
            Major::Mn => i / VECTOR * VECTOR * self.lanes + i % VECTOR,
        }
    }

    /// The row, or column, of the thread's sum `i`.
    fn place(&self, i: u32) -> U32<'k> {
        let lane = if self.major == Major::K { self.lane } else { self.lane * VECTOR };
        self.origin + lane + self.step(i)
    }

    /// The thread's elements at `depths` places of the common dimension from `depth` on: by place, then by `i`.
    fn load<A: Accumulate>(&self, stage: U32<'k>, depth: u32, depths: u32) -> Vec<Vec<Reg<'k, A>>> {
        let at = self.at.moved(stage);
        match self.major {
            Major::K => {
                let rows: Vec<Lanes<'k, A>> =
                    (0..self.own).map(|i| at.at(self.step(i), depth).load(depths)).collect();
                (0..depths as usize).map(|d| rows.iter().map(|row| row[d]).collect()).collect()
            }
            Major::Mn => {
                let place = |d| -> Vec<_> {
                    let vectors = (0..self.own).step_by(VECTOR as usize);
                    vectors.flat_map(|i| at.at(depth + d, self.step(i)).load(VECTOR)).collect()
                };
                (0..depths).map(place).collect()
            }
        }
    }
}

/// Records the product of a block: its sums, when all threads are here.
pub(super) fn sums<'k, A: Accumulate>(
    factors: &Factors,
    config: SimtConfig,
    problem: &Problem<'k>,
) -> SumTile<'k> {
    let k = problem.k;
    let Tiles { rows, cols, teams, .. } = config.tiles;
    let sums = Sums::<A>::new(factors, config, problem);
    k.barrier();
    let tile = SumTile::new::<A>(k, rows, cols, teams);
    sums.store(tile.of_team(problem.team));
    k.barrier();
    tile
}

/// The sums of a thread.
pub(super) struct Sums<'k, A: Accumulate> {
    left: Side<'k>,
    right: Side<'k>,
    sums: RegTile<'k, A>,
}

impl<'k, A: Accumulate> Sums<'k, A> {
    /// Goes through the slices of a block.
    pub(super) fn new(factors: &Factors, config: SimtConfig, problem: &Problem<'k>) -> Self {
        let (left, right) = sides(config, problem);
        let sums = multiply(factors, config, problem, (&left, &right));
        Self { left, right, sums }
    }

    pub(super) fn store(&self, tile: SumTile<'k>) {
        self.each(tile, |to, sum| to.set(sum));
    }

    /// Replaces the sums of the tile that are not finite.
    pub(super) fn replace(&self, tile: SumTile<'k>) {
        self.each(tile, |to, sum| {
            let there = to.get::<A>();
            to.set(there.abs().lt(f64::INFINITY).select(there, sum));
        });
    }

    fn each(&self, tile: SumTile<'k>, f: impl Fn(Ptr<'k, Shared, Elem>, Reg<'k, A>)) {
        for (i, sums) in (0..).zip(self.sums.rows()) {
            for (j, sum) in (0..).zip(sums) {
                f(tile.at(self.left.place(i), self.right.place(j)), *sum);
            }
        }
    }
}

/// Rows and columns of the thread.
fn sides<'k>(config: SimtConfig, problem: &Problem<'k>) -> (Side<'k>, Side<'k>) {
    let k = problem.k;
    let own = (SimtConfig::DOWN, config.across);
    let (lanes_down, lanes_across) = config.lanes();
    let warps_across = config.tiles.cols / (lanes_across * own.1);
    let (warp, lane) = (problem.warp, k.lane_idx());
    // Lanes 0 and 1 take two rows, so that the quarters of a warp read few vectors of either side.
    let lane_row = ((lane >> (1 + lanes_across.trailing_zeros())) << 1) + (lane & 1);
    let lane_col = (lane >> 1) & (lanes_across - 1);
    let warp_row = (warp / warps_across) * (lanes_down * own.0);
    let warp_col = (warp % warps_across) * (lanes_across * own.1);
    let (a, b) = problem.placed;
    let left = Side::new(problem.tile_a, a, (lane_row, lanes_down), own.0, warp_row);
    let right = Side::new(problem.tile_b, b, (lane_col, lanes_across), own.1, warp_col);
    (left, right)
}

fn multiply<'k, A: Accumulate>(
    factors: &Factors,
    config: SimtConfig,
    problem: &Problem<'k>,
    (left, right): (&Side<'k>, &Side<'k>),
) -> RegTile<'k, A> {
    let (k, tiles) = (problem.k, config.tiles);
    let Factors { dtype, major, .. } = *factors;
    let slice = tiles.slice;
    let depths = if A::DOUBLE { DOUBLE_VECTOR } else { config.depths() };
    let operands =
        |stage, depth| (left.load::<A>(stage, depth, depths), right.load::<A>(stage, depth, depths));
    let zero = k.lit::<A>(0.0);
    // The elements of one thread, which no other has a part of.
    let init = RegTile::new(k, 1, vec![vec![zero; config.across as usize]; SimtConfig::DOWN as usize]);
    // What was fetched first is put to shared memory at once, the rest between the products of a step.
    let (ahead, begun, turning) = (tiles.stages - 1, Cell::new(0), RefCell::new(Turning::default()));
    k.pipeline_ahead(
        tiles.pipeline(dtype, major.0, major.1),
        problem.steps,
        |step, stage, there| {
            let mut fetched = problem.start(step, stage, there);
            if begun.replace(begun.get() + 1) < ahead {
                fetched.put(1);
            } else {
                turning.replace(fetched);
            }
        },
        |stage| if A::DOUBLE { (Vec::new(), Vec::new()) } else { operands(stage, 0) },
        init,
        |stage, ahead, turn, mut sums| {
            let mut now = ahead;
            for depth in (0..slice).step_by(depths as usize) {
                if A::DOUBLE {
                    now = operands(stage, depth);
                }
                let next = depth + depths;
                let later = (next < slice && !A::DOUBLE).then(|| operands(stage, next));
                // By then what was fetched is there; store by store, while products keep the units busy.
                if 2 * depth >= slice {
                    turning.borrow_mut().put((slice - depth) / depths);
                }
                if next == slice {
                    turn();
                }
                for (a, b) in now.0.iter().zip(&now.1) {
                    sums.add_outer(a, b);
                }
                if let Some(later) = later {
                    now = later;
                }
            }
            sums
        },
    )
}
