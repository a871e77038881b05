//! The product of a step: the rows of the recurrent weights that a block keeps, times the vectors that the blocks exchange.
//!
//! The products of 16-bit elements are those of tensor cores, rows of the block by batches; the common dimension is shared
//! by the warps, whose sums meet in shared memory. Those of `f32` are made by threads that hold a few elements of the vectors
//! each, and sums are added by shuffles first.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{WARP, tree_of};

use crate::recurrent::tuning::PersistentConfig;
use crate::recurrent::{RecurrentDesc, small};

/// Threads of a block.
pub(in crate::recurrent) const THREADS: u32 = 256;
pub(in crate::recurrent) const WARPS: u32 = THREADS / WARP;
/// Rows and common dimension of a product on tensor cores, and its columns.
pub(in crate::recurrent) const ATOM: (u32, u32, u32) = (16, 16, 8);
/// Elements of 16 bits that a lane reads at once, which are of two slices.
pub(in crate::recurrent) const OCTET: u32 = 8;
/// Elements of two slices.
pub(in crate::recurrent) const SLICES: u32 = 2 * ATOM.1;
/// Elements of `f32` that are read from shared memory at once, and registers of a fragment of weights.
pub(super) const QUAD: u32 = 4;
/// Rows of a lane in `f32` at most: as many products are made with each element read.
const MOST_LANE_ROWS: u32 = 8;
/// Weights of a thread from which on it has that many rows if the block has many, and how many it has otherwise.
const MANY_WEIGHTS: u32 = 64;
const FEW_LANE_ROWS: u32 = 4;

/// The product of a step.
#[derive(Clone, Copy, Debug)]
pub(in crate::recurrent) struct StepGemm {
    pub(in crate::recurrent) dtype: DType,
    /// Rows of a block.
    pub(in crate::recurrent) rows: u32,
    /// The common dimension: elements of a vector, an even number of them, of 16 bits a multiple of 16.
    pub(in crate::recurrent) depth: u32,
    /// Vectors of a block.
    pub(in crate::recurrent) batch: u32,
    /// Units of the net, which have equal parts of the common dimension, and of a block.
    pub(in crate::recurrent) hidden: u32,
    pub(in crate::recurrent) units: u32,
    /// Groups of blocks with as many vectors each, which exchange nothing with one another.
    pub(in crate::recurrent) groups: u32,
    /// Whether factors of `f32` are rounded to `tf32`.
    pub(in crate::recurrent) rounds: bool,
}

/// How the lanes of a warp share rows and columns in `f32`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Rows of a lane.
    pub(super) rows: u32,
    /// Lanes that share the columns of the same rows.
    pub(super) parts: u32,
    /// Vectors that are multiplied together.
    pub(super) together: u32,
}

impl StepGemm {
    /// That of blocks with so many rows of the weights of a net, by vectors of so many elements.
    pub(super) fn of(net: &RecurrentDesc, config: PersistentConfig, [rows, depth]: [u32; 2]) -> Self {
        let PersistentConfig { units, groups, exchange } = config;
        let (hidden, batch) = (small(net.hidden), exchange.batch(small(net.batch) / groups));
        let rounds = exchange.rounds(net.precision);
        Self { dtype: net.dtype, rows, depth, batch, hidden, units, groups, rounds }
    }

    pub(super) fn is_half(&self) -> bool {
        self.dtype != DType::F32
    }

    /// The type of the factors, as names of kernels say it.
    pub(super) fn factors(&self) -> String {
        if self.rounds { "tf32".to_owned() } else { self.dtype.to_string() }
    }

    pub(super) const fn element_bytes(&self) -> u32 {
        self.dtype.bytes() as u32
    }

    /// Elements of a register.
    pub(super) fn of_register(&self) -> u32 {
        4 / self.element_bytes()
    }

    /// The instruction of tensor cores that multiplies, if they do.
    pub(super) fn atom(&self) -> Option<MmaAtom> {
        MmaAtom::of(self.dtype).filter(|_| self.is_half() || self.rounds)
    }

    /// Rows in whole tiles, or a power of two.
    pub(super) fn padded(&self) -> u32 {
        if self.atom().is_some() { self.rows.next_multiple_of(ATOM.0) } else { self.rows.next_power_of_two() }
    }

    /// Tiles of rows.
    pub(super) fn tiles(&self) -> u32 {
        self.padded() / ATOM.0
    }

    /// Floats between the batches of a warp's sums, four more than rows so that lanes meet no bank twice.
    pub(super) fn pitch(&self) -> u32 {
        self.padded() + 4
    }

    /// Columns of a warp that has an equal part of the common dimension.
    pub(super) const fn columns_of_warp(&self) -> u32 {
        self.depth / WARPS
    }

    /// Vectors whose elements lie together: those of a product on tensor cores, or fewer if there are no more.
    pub(super) fn together(&self) -> u32 {
        self.batch.min(ATOM.2)
    }

    /// How the lanes share their work in `f32`, if they can.
    pub(super) fn shape(&self) -> Option<Shape> {
        let (padded, columns) = (self.padded(), self.columns_of_warp());
        let weights = padded * columns / WARP;
        let many = weights >= MANY_WEIGHTS && padded >= WARP;
        let most = if many { MOST_LANE_ROWS } else { FEW_LANE_ROWS };
        let shape = |rows: u32| Shape { rows, parts: WARP * rows / padded, together: (WARP / padded).max(1) };
        let fits = |s: &Shape| s.rows <= padded && s.parts > 0 && columns.is_multiple_of(QUAD * s.parts);
        [8, 4, 2, 1].into_iter().filter(|rows| *rows <= most).map(shape).find(fits)
    }

    /// Registers of a thread that weights in `f32` take where the warps have equal parts.
    pub(super) fn fma_weights(&self) -> u32 {
        self.padded() * self.columns_of_warp() / WARP
    }
}

/// Sums of the block's rows over the part of the common dimension that a warp, or after shuffles a lane, has.
pub(super) struct Partial<'k> {
    pub(super) batch: U32<'k>,
    pub(super) row: U32<'k>,
    pub(super) sum: F32<'k>,
    /// Whether this thread has it.
    pub(super) there: Option<Pred<'k>>,
}

/// The partial sums of a step in shared memory: `[part][batch][row]`, where parts of the common dimension are those of warps.
#[derive(Clone, Copy, Debug)]
pub(super) struct SumLayout {
    pub(super) parts: u32,
    /// Floats between parts, and between batches.
    pub(super) of_part: u32,
    pub(super) pitch: u32,
}

impl SumLayout {
    /// Those of `columns` batches, a part for each warp.
    pub(super) fn by_warps(gemm: &StepGemm, columns: u32) -> Self {
        Self { parts: WARPS, of_part: columns * gemm.pitch(), pitch: gemm.pitch() }
    }

    /// Floats of all.
    pub(super) const fn floats(&self) -> u32 {
        self.parts * self.of_part
    }
}

/// The place of a warp's partial sums.
#[derive(Clone, Copy)]
pub(super) struct Collector<'k> {
    layout: SumLayout,
    to: Ptr<'k, Shared, f32>,
    part: U32<'k>,
}

impl<'k> Collector<'k> {
    /// The sums of part `part`, which are among those at `to`.
    pub(super) const fn new(layout: SumLayout, to: Ptr<'k, Shared, f32>, part: U32<'k>) -> Self {
        Self { layout, to, part }
    }

    pub(super) fn put(&self, partial: Partial<'k>) {
        let Self { layout, to, part } = *self;
        let place = part * layout.of_part + partial.batch * layout.pitch + partial.row;
        match partial.there {
            Some(there) => part.k().if_(there, || to.at(place).set(partial.sum)),
            None => to.at(place).set(partial.sum),
        }
    }

    /// Leaves the sums of a fragment, of which `at` says the batch and the row of an element so many rows and columns further on.
    pub(super) fn put_tile(&self, sum: &Accumulator<'k, f32>, at: impl Fn(u32, u32) -> (U32<'k>, U32<'k>)) {
        for ((down, right), sum) in sum.offsets().zip(sum.lanes().iter()) {
            let (batch, row) = at(down, right);
            self.put(Partial { batch, row, sum, there: None });
        }
    }

    /// The sums of all parts, after the barrier that all threads meet at here; they are `factor` times too small if there is one.
    pub(super) fn total(self, factor: Option<F32<'k>>) -> Sums<'k> {
        self.part.k().barrier();
        Sums { layout: self.layout, sums: self.to, factor }
    }
}

/// The sums of a step, by parts, in shared memory.
pub(in crate::recurrent) struct Sums<'k> {
    layout: SumLayout,
    sums: Ptr<'k, Shared, f32>,
    factor: Option<F32<'k>>,
}

impl<'k> Sums<'k> {
    /// The sum of row `row` of the block with vector `batch`; zero where it is not `there`.
    pub(super) fn of(&self, batch: U32<'k>, row: U32<'k>, there: Pred<'k>) -> F32<'k> {
        let of_part = |part: u32| self.at(batch, row, part).only_where(there, Fill::Zero).get::<f32>();
        self.total((0..self.layout.parts).map(of_part).collect())
    }

    fn at(&self, batch: U32<'k>, row: U32<'k>, part: u32) -> Ptr<'k, Shared, f32> {
        self.sums.at(batch * self.layout.pitch + row + part * self.layout.of_part)
    }

    /// The sum of what the parts have.
    fn total(&self, parts: Vec<F32<'k>>) -> F32<'k> {
        let sum = tree_of(parts[0], parts.into_iter().skip(1), |a, b| a + b);
        self.factor.map_or(sum, |factor| sum * factor)
    }

    /// The sums of `count` rows from `row` on, which is a multiple of `count`.
    pub(super) fn of_rows(&self, batch: U32<'k>, row: U32<'k>, count: u32, there: Pred<'k>) -> Vec<F32<'k>> {
        if !count.is_power_of_two() {
            return (0..count).map(|i| self.of(batch, row + i, there)).collect();
        }
        let of_part = |part: u32| self.at(batch, row, part).only_where(there, Fill::Zero).load::<f32>(count);
        let parts: Vec<Lanes<'k, f32>> = (0..self.layout.parts).map(of_part).collect();
        (0..count as usize).map(|i| self.total(parts.iter().map(|rows| rows[i]).collect())).collect()
    }
}

/// Adds sums over `lanes` neighbouring lanes: lanes give away half of theirs until each has one, or several lanes share one.
/// `emit` takes the number of a sum, and which lanes have it.
pub(super) fn share<'k>(
    k: K<'k>,
    mut sums: Vec<F32<'k>>,
    lanes: u32,
    mut emit: impl FnMut(U32<'k>, F32<'k>, Option<Pred<'k>>),
) {
    let lane = k.lane_idx();
    let mut index = k.lit(0u32);
    let mut distance = lanes / 2;
    while sums.len() > 1 && distance > 0 {
        let half = sums.len() / 2;
        let upper = (lane & distance).ne(0);
        index = index + upper.select(k.lit(half as u32), k.lit(0u32));
        sums = (0..half)
            .map(|i| {
                let (kept, given) =
                    (upper.select(sums[i + half], sums[i]), upper.select(sums[i], sums[i + half]));
                kept + given.shfl_xor(distance)
            })
            .collect();
        distance /= 2;
    }
    let mut there = None;
    while distance > 0 {
        sums.iter_mut().for_each(|sum| *sum = *sum + sum.shfl_xor(distance));
        let first = (lane & distance).eq(0);
        there = Some(there.map_or(first, |there: Pred<'k>| there & first));
        distance /= 2;
    }
    for (i, sum) in (0..).zip(sums) {
        emit(index + i, sum, there);
    }
}

/// Multiplies in `f32` with `vectors` of shared memory, which lie `pitch` elements apart and are the block's from `first` on; `from`
/// is the first column of the lane.
pub(super) fn multiply_quads<'k>(
    k: K<'k>,
    from: Ptr<'k, Shared, f32>,
    shape: Shape,
    [vectors, pitch]: [u32; 2],
    quads: &[Vec<Lanes<'k, f32>>],
    emit: impl Fn(Partial<'k>),
) {
    let first_row = k.lane_idx() / shape.parts * shape.rows;
    for first in (0..vectors).step_by(shape.together as usize) {
        let mut sums = vec![k.lit(0.0f32); (shape.together * shape.rows) as usize];
        for (quad, rows) in (0..).zip(quads) {
            for (batch, sums) in (first..).zip(sums.chunks_mut(shape.rows as usize)) {
                let at = batch * pitch + quad * QUAD * shape.parts;
                let state = from.at(u64::from(at)).load::<f32>(QUAD);
                for (i, state) in state.iter().enumerate() {
                    for (sum, row) in sums.iter_mut().zip(rows) {
                        *sum = row[i].mul_add(state, *sum);
                    }
                }
            }
        }
        share(k, sums, shape.parts, |index, sum, there| {
            let (batch, row) = (index / shape.rows + first, first_row + index % shape.rows);
            emit(Partial { batch, row, sum, there });
        });
    }
}
