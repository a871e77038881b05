//! Products of `f32` on tensor cores: of operands rounded to `tf32`, or of sums of two numbers of `tf32` each, where three products
//! make one of `f32`.
//!
//! For these, tensor cores add a few places of the common dimension, small products first, and the ordinary units go on from there: what
//! tensor cores cut off does not add up. Elements are multiplied by a power of two before they are split, so that the rest of a
//! small one is not lost; what that takes beyond the largest numbers, infinities and NaN make sums that are not finite, and a
//! block that has such a sum computes those sums once more on the ordinary units.

use warpwright_dsl::prelude::*;

use super::epilogue::SumTile;
use super::kernel::{Factors, Problem};
use super::simt;
use super::tuning::{SplitConfig, TensorConfig, Tiles};

const ATOM: MmaAtom = MmaAtom::Tf32;
/// Rows or columns that an operand has in one register.
const UNIT: u32 = 8;
/// Units that a vector along rows or columns has elements of.
const VECTOR: u32 = 4;
/// Tiles whose products alternate, so that none waits for its own last one.
const TOGETHER: usize = 8;
/// Places of the common dimension that tensor cores add.
const PART: u32 = 16;
/// The scale of elements.
const SCALE: f64 = 16_384.0;

/// One side of the product as a warp reads it: eight rows or columns are a unit.
#[derive(Clone, Copy)]
struct Side<'k> {
    units: u32,
    /// The warp's first row or column.
    origin: U32<'k>,
    reader: Reader<'k>,
}

#[derive(Clone, Copy)]
enum Reader<'k> {
    /// Units are eight neighbours.
    AlongK(TileReader<'k, MatrixB>),
    /// Four units are 32 neighbours, of which each has one in four: a vector has one element of every unit.
    Outer(TilePoint<'k>),
}

/// The number of the vector from which place `at` of a unit comes: lanes that read together read from different banks.
fn vector(at: U32<'_>) -> U32<'_> {
    (at >> 1) + ((at & 1) << 2)
}

impl<'k> Side<'k> {
    fn new(k: K<'k>, tile: SharedTile<'k>, major: Major, origin: U32<'k>, len: u32) -> Self {
        let reader = match major {
            Major::K => Reader::AlongK(tile.reader_b(ATOM, Major::K, origin)),
            Major::Mn => {
                let lane = k.lane_idx();
                Reader::Outer(tile.point(lane & 3, origin + vector(lane >> 2) * VECTOR))
            }
        };
        Self { units: len / UNIT, origin, reader }
    }

    /// The lane's two elements of each unit.
    fn load(&self, stage: U32<'k>, depth: u32) -> Vec<[U32<'k>; 2]> {
        match self.reader {
            Reader::AlongK(reader) => {
                let pairs = (0..self.units).step_by(2);
                let words = |b: Fragment<'k, MatrixB>| [b.words()[0], b.words()[1]];
                pairs.flat_map(|u| reader.moved(stage).load_pair(u * UNIT, depth).map(words)).collect()
            }
            Reader::Outer(point) => {
                let vectors = (0..self.units).step_by(VECTOR as usize);
                let at = |depth, unit| point.moved(stage).at(depth, unit * UNIT).load::<f32>(VECTOR);
                let both = |unit| at(depth, unit).iter().zip(at(depth + 4, unit).iter()).collect::<Vec<_>>();
                vectors.flat_map(both).map(|(a, b)| [a.to_bits(), b.to_bits()]).collect()
            }
        }
    }

    /// The row or column of place `at` of the first unit.
    fn place(&self, at: U32<'k>) -> U32<'k> {
        match self.reader {
            Reader::AlongK(_) => self.origin + at,
            Reader::Outer(_) => self.origin + vector(at) * VECTOR,
        }
    }

    /// How far `unit` is from the first.
    fn step(&self, unit: u32) -> u32 {
        match self.reader {
            Reader::AlongK(_) => unit * UNIT,
            Reader::Outer(_) => unit / VECTOR * VECTOR * UNIT + unit % VECTOR,
        }
    }
}

/// The lanes' elements of both sides.
type Operands<'k> = (Vec<[U32<'k>; 2]>, Vec<[U32<'k>; 2]>);
/// By tiles of rows, then of columns.
type Accumulators<'k> = Vec<Vec<Accumulator<'k, f32>>>;

/// Goes through the slices of a block.
fn multiply<'k>(
    factors: &Factors,
    (tiles, exact): (Tiles, bool),
    problem: &Problem<'k>,
    (left, right): (&Side<'k>, &Side<'k>),
) -> Accumulators<'k> {
    let k = problem.k;
    let Factors { dtype, major, .. } = *factors;
    let zero = Accumulator::<f32>::zero(k, ATOM);
    let zeros = vec![vec![zero; right.units as usize]; left.units as usize / 2];
    let load = |stage, depth| (left.load(stage, depth), right.load(stage, depth));
    k.pipeline_ahead(
        tiles.pipeline(dtype, major.0, major.1),
        problem.steps,
        |step, stage, there| drop(problem.start(step, stage, there)),
        |stage| load(stage, 0),
        zeros.clone(),
        |stage, ahead, turn, mut sums| {
            let mut now = ahead;
            let mut parts = zeros.clone();
            for depth in (0..tiles.slice).step_by(ATOM.k() as usize) {
                let next = depth + ATOM.k();
                let later = if next < tiles.slice {
                    Some(load(stage, next))
                } else {
                    turn();
                    None
                };
                if exact {
                    add_exact_products(k, &now, &mut parts);
                    if next.is_multiple_of(PART) {
                        add(&mut sums, &parts);
                        parts = zeros.clone();
                    }
                } else {
                    add_products(k, &now, &mut sums);
                }
                if let Some(later) = later {
                    now = later;
                }
            }
            sums
        },
    )
}

/// Two units of rows as an operand.
fn rows<'k>(k: K<'k>, units: &[[U32<'k>; 2]]) -> Fragment<'k, MatrixA> {
    let (upper, lower) = (units[0], units[1]);
    Fragment::a(k, ATOM, &[upper[0], lower[0], upper[1], lower[1]])
}

/// Adds the products of eight places of the common dimension, of operands that are rounded.
fn add_products<'k>(k: K<'k>, (a, b): &Operands<'k>, sums: &mut Accumulators<'k>) {
    let b: Vec<_> = b.iter().map(|unit| Fragment::b(k, ATOM, unit).rounded()).collect();
    for (sums, units) in sums.iter_mut().zip(a.chunks(2)) {
        let a = rows(k, units).rounded();
        for (sum, b) in sums.iter_mut().zip(&b) {
            *sum = sum.mma(&a, b);
        }
    }
}

/// The same of operands that are split.
fn add_exact_products<'k>(k: K<'k>, (a, b): &Operands<'k>, sums: &mut Accumulators<'k>) {
    let a: Vec<_> = a.chunks(2).map(|units| rows(k, units).split_times(SCALE)).collect();
    let group = TOGETHER / a.len();
    for (number, units) in b.chunks(group).enumerate() {
        let b: Vec<_> = units.iter().map(|unit| Fragment::b(k, ATOM, unit).split_times(SCALE)).collect();
        for which in 0..3 {
            for (sums, a) in sums.iter_mut().zip(&a) {
                for (sum, b) in sums[group * number..].iter_mut().zip(&b) {
                    let (a, b) = a.products(b)[which];
                    *sum = sum.mma(a, b);
                }
            }
        }
    }
}

/// Adds parts to sums.
fn add<'k>(sums: &mut Accumulators<'k>, parts: &Accumulators<'k>) {
    for (sum, part) in sums.iter_mut().flatten().zip(parts.iter().flatten()) {
        *sum = sum.like(sum.lanes().zip(part.lanes().clone(), |a, b| a + b));
    }
}

/// Puts the sums where they belong.
fn store<'k>(
    k: K<'k>,
    tile: SumTile<'k>,
    (left, right): (&Side<'k>, &Side<'k>),
    sums: &Accumulators<'k>,
    scale: Option<f64>,
) {
    let (lane_row, lane_col) = k.accumulator_origin();
    let row = left.place(lane_row);
    let element = |sum: &Accumulator<'k, f32>, at: u32| {
        let sum = sum.lanes()[at as usize];
        scale.map_or(sum, |scale| sum * scale)
    };
    for (i, sums) in (0..).zip(sums) {
        for half in 0..2 {
            let row = row + left.step(2 * i + half);
            match right.reader {
                Reader::AlongK(_) => {
                    for (j, sum) in (0..).zip(sums) {
                        let pair = [0, 1].map(|col| element(sum, 2 * half + col));
                        tile.at(row, right.place(lane_col) + right.step(j)).store(Lanes::from(pair.to_vec()));
                    }
                }
                Reader::Outer(_) => {
                    for col in 0..2 {
                        let place = right.place(lane_col + col);
                        for (j, sums) in (0..).step_by(VECTOR as usize).zip(sums.chunks(VECTOR as usize)) {
                            let all: Vec<_> = sums.iter().map(|sum| element(sum, 2 * half + col)).collect();
                            tile.at(row, place + right.step(j)).store(Lanes::from(all));
                        }
                    }
                }
            }
        }
    }
}

/// Whether the sums of all threads of the block are finite; all are here.
fn all_finite<'k>(k: K<'k>, sums: &Accumulators<'k>) -> Pred<'k> {
    let zero = k.lit::<f32>(0.0);
    let of_row = |sums: &Vec<Accumulator<'k, f32>>| {
        let lanes = sums.iter().flat_map(|sum| sum.lanes().iter());
        lanes.fold(zero, |all, lane| lane.mul_add(zero, all))
    };
    let rows: Lanes<'k, f32> = sums.iter().map(of_row).collect();
    // What is not finite times 0 is not a number.
    k.group_combine_once(k.block_threads(), rows.sum().unwrap_or(zero), |a, b| a + b).eq(0.0)
}

/// The parts of a warp in both sides of a product.
fn sides<'k>(factors: &Factors, warps: (u32, u32), problem: &Problem<'k>) -> (Side<'k>, Side<'k>) {
    let Tiles { rows, cols, .. } = *factors.config.tiles();
    let (rows, cols) = (rows / warps.0, cols / warps.1);
    let (down, across) = (problem.warp / warps.1, problem.warp % warps.1);
    let left = Side::new(problem.k, problem.tile_a, factors.major.0, down * rows, rows);
    let right = Side::new(problem.k, problem.tile_b, factors.major.1, across * cols, cols);
    (left, right)
}

/// Records the product of a block, of operands that are rounded: its sums, when all warps are here.
pub(super) fn sums<'k>(factors: &Factors, config: TensorConfig, problem: &Problem<'k>) -> SumTile<'k> {
    let k = problem.k;
    let TensorConfig { tiles, warps_down, warps_across } = config;
    let (left, right) = sides(factors, (warps_down, warps_across), problem);
    let sides = (&left, &right);
    let sums = multiply(factors, (tiles, false), problem, sides);
    // The stages are free when all warps are here.
    k.barrier();
    let tile = SumTile::new::<f32>(k, tiles.rows, tiles.cols, tiles.teams);
    store(k, tile.of_team(problem.team), sides, &sums, None);
    k.barrier();
    tile
}

/// The same of operands that are split.
pub(super) fn exact_sums<'k>(factors: &Factors, config: SplitConfig, problem: &Problem<'k>) -> SumTile<'k> {
    let k = problem.k;
    let SplitConfig { tiles, warps_down, warps_across } = config;
    let (left, right) = sides(factors, (warps_down, warps_across), problem);
    let sides = (&left, &right);
    let sums = multiply(factors, (tiles, true), problem, sides);
    // Behind the stages, which may be needed again.
    let stages = tiles.pipeline(factors.dtype, factors.major.0, factors.major.1).total_bytes();
    let tile = SumTile::new::<f32>(k, tiles.rows, tiles.cols, 1).moved(stages);
    store(k, tile, sides, &sums, Some((SCALE * SCALE).recip()));
    k.if_(!all_finite(k, &sums), || {
        simt::Sums::<f32>::new(factors, config.simt(), problem).replace(tile);
    });
    k.barrier();
    tile
}
