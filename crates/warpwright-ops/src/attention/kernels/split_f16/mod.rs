//! `f32` on the tensor cores for `f16`: each operand is the sum of two `f16` times a power of two.
//!
//! Two `f16` have the 22 bits that two `tf32` have, and their products take half as long, but they lack the range: so one kernel writes
//! [a copy](split) of each tensor whose numbers are brought into that range tile by tile, and weights, which are computed, are brought there
//! row by row. Powers of two are exact, and tile by tile sums are multiplied by what brings them back. Where numbers of one tile differ too
//! much in size, or are no numbers, another kernel computes from the tensors themselves instead, as [`mma`](super::mma) does.

pub(in crate::attention) mod kernels;
pub(in crate::attention) mod split;

use warpwright_dsl::prelude::*;
use warpwright_dsl::{Major, MmaAtom, Split, SplitTile};

use super::dropout::{DrawLanes, Keys};
use super::engine::{Engine, Next, Place, Source};
use super::mma::{LANES, Mma, MmaEngine, Operand, PART, SLAB, TOGETHER};
use crate::attention::layout::{BlockLayout, BlockShape};
pub(in crate::attention) use split::Copied;

/// Rows of a tile of a copy.
pub(in crate::attention) const TILE: u32 = 64;
/// Most of them in the rows of a block.
pub(in crate::attention) const TILES_OF_A_BLOCK: u32 = 2;
/// Exponent of the power of two that the largest number of a tile, and of a row of weights, comes to; `f16` ends at 2^16.
const TOP: u32 = 14;
/// The exponent of `f32` is what is above these bits, and this much more than that of the number.
const EXPONENT: u32 = 23;
const BIAS: u32 = 127;
/// Most slots of a thread.
const SLOTS: usize = 4;

/// How a block is laid out that multiplies pairs of `f16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SplitF16 {
    /// Warps of a block.
    pub warps: u32,
    /// Times 16 rows of a warp.
    pub slabs: u32,
    /// Columns of a tile: a multiple of 16 and a power of two up to 64.
    pub columns: u32,
    /// Elements of a head: 64 or 128.
    pub width: u32,
}

impl SplitF16 {
    /// Its tiles of `f16`, whose rows begin with the upper parts; the lower ones follow.
    pub(in crate::attention) const fn halves(self) -> Mma {
        let Self { warps, slabs, columns, width } = self;
        Mma { warps, slabs, columns, width: 2 * width, vector: 8 }
    }
}

impl BlockLayout for SplitF16 {
    fn name(&self) -> String {
        let Self { warps, slabs, columns, width } = self;
        format!("pairs_w{warps}s{slabs}c{columns}d{width}")
    }

    fn shape(&self) -> BlockShape {
        BlockShape { width: self.width, ..self.halves().shape() }
    }

    fn shared_bytes(&self, _: DType, stationary: u32) -> u32 {
        self.halves().shared_bytes(DType::F16, stationary)
    }
}

/// A layout with its registers.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct SplitF16Engine<'k> {
    tiles: MmaEngine<'k>,
    config: SplitF16,
}

/// A tile, and what sums of its numbers are multiplied by: of a tile of stationary rows, for each slot.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct Tile<'k> {
    operand: Operand<'k>,
    factors: [F32<'k>; SLOTS],
}

impl<'k> SplitF16Engine<'k> {
    pub(in crate::attention) fn new(k: K<'k>, config: SplitF16, stationary: u32) -> Self {
        Self { tiles: MmaEngine::new(k, config.halves(), MmaAtom::F16, stationary), config }
    }

    /// The factor of row `row`.
    fn factor(k: K<'k>, source: Source<'k>, row: I32<'k>) -> F32<'k> {
        match source.factors {
            Some(factors) => factors.at(row.to_u32() / TILE).get(),
            None => k.lit(1.0),
        }
    }

    /// A tile of columns from `at` on.
    fn columns(k: K<'k>, operand: Operand<'k>, source: Source<'k>, at: I32<'k>) -> Tile<'k> {
        Tile { operand, factors: [Self::factor(k, source, at); SLOTS] }
    }
}

/// Weights of each row times the power of two that brings the largest of them near 2^15, and what brings sums with them back.
fn normalized<'k>(k: K<'k>, weights: &RegTile<'k, f32>) -> (RegTile<'k, f32>, RowVector<'k, f32>) {
    // Below this exponent the power would not be a number.
    const LEAST: u32 = TOP + 1;
    let of_row = |row: &[F32<'k>]| {
        let max = Lanes::from(row.to_vec()).map(F32::abs).reduce(|a, b| a.max(b)).unwrap_or(k.lit(0.0));
        let max = k.warp_combine(LANES, max, |a, b| a.max(b));
        let exponent = (max.to_bits() >> EXPONENT).max(LEAST);
        powers_of_two(exponent)
    };
    let (up, down): (Vec<_>, Vec<_>) = weights.rows().map(of_row).unzip();
    (weights * &up.into(), down.into())
}

/// The power of two that brings a number whose exponent has these bits to [`TOP`], and the one that brings it back.
fn powers_of_two(exponent: U32<'_>) -> (F32<'_>, F32<'_>) {
    let up = exponent.k().lit(2 * BIAS + TOP) - exponent;
    let down = exponent - TOP;
    (F32::from_bits(up << EXPONENT), F32::from_bits(down << EXPONENT))
}

impl<'k> Engine<'k, f32> for SplitF16Engine<'k> {
    type Tile = Tile<'k>;

    fn lanes(&self) -> u32 {
        LANES
    }

    fn product_place(&self, k: K<'k>) -> Place<'k> {
        self.tiles.product_place(k)
    }

    fn register_bound(&self) -> bool {
        true
    }

    fn row_by_row(&self) -> bool {
        // Gradients have two products of a tile.
        self.tiles.stationary == 2
    }

    fn draw_lanes(&self, keys: Keys) -> DrawLanes {
        self.tiles.draw_lanes(keys)
    }

    fn load_stationary(&self, k: K<'k>, source: Source<'k>, first: I32<'k>, index: u32) -> Tile<'k> {
        let operand = self.tiles.load_stationary(k, source, first, index);
        let rows = self.product_place(k).rows;
        let last = rows.len() - 1;
        let factors =
            std::array::from_fn(|slot| Self::factor(k, source, first + rows[slot.min(last)].to_i32()));
        Tile { operand, factors }
    }

    fn start(&self, k: K<'k>, sources: [Source<'k>; 2], at: I32<'k>, first: Next<'k>) {
        self.tiles.start(k, sources, at, first);
    }

    fn wait_k(&self, k: K<'k>, sources: [Source<'k>; 2], at: I32<'k>, next: Next<'k>) -> Tile<'k> {
        Self::columns(k, self.tiles.wait_k(k, sources, at, next), sources[0], at)
    }

    fn wait_v(&self, k: K<'k>, sources: [Source<'k>; 2], at: I32<'k>) -> Tile<'k> {
        Self::columns(k, self.tiles.wait_v(k, sources, at), sources[1], at)
    }

    fn reuse_k(&self, k: K<'k>, sources: [Source<'k>; 2], at: I32<'k>) -> Tile<'k> {
        Self::columns(k, self.tiles.reuse_k(k, sources, at), sources[0], at)
    }

    fn product(&self, k: K<'k>, stationary: Tile<'k>, tile: Tile<'k>) -> RegTile<'k, f32> {
        let SplitF16 { slabs, columns, width, .. } = self.config;
        let Operand { tile: right, zero } = tile.operand;
        let left = stationary.operand.tile.reader_a(MmaAtom::F16, Major::K, self.tiles.row + zero);
        let right = right.reader_b(MmaAtom::F16, Major::K, zero);
        let of_part = |part: u32| {
            let mut sum = SplitTile::zero(k, slabs, columns);
            for depth in (part..part + PART).step_by(MmaAtom::F16.k() as usize) {
                let load = |row: u32| Split::of(left.load(row, depth), left.load(row, width + depth));
                let a: Vec<_> = (0..slabs).map(|slab| load(slab * SLAB)).collect();
                for column in (0..columns).step_by(16) {
                    let [high, low] = [depth, width + depth].map(|depth| right.load_pair(column, depth));
                    for (at, (high, low)) in (column..).step_by(8).zip(high.into_iter().zip(low)) {
                        sum.mma(at, &a, &Split::of(high, low));
                    }
                }
            }
            sum.finite_total()
        };
        let later = (PART..width).step_by(PART as usize);
        let sum = later.fold(of_part(0), |sum, part| &sum + &of_part(part));
        let factors = stationary.factors.iter().map(|factor| *factor * tile.factors[0]).collect();
        &sum * &factors
    }

    fn zero(&self, k: K<'k>) -> RegTile<'k, f32> {
        RegTile::zero(k, LANES, 2 * self.config.slabs, self.config.width / 4)
    }

    fn accumulate(
        &self,
        k: K<'k>,
        weights: &RegTile<'k, f32>,
        tile: Tile<'k>,
        mut sum: RegTile<'k, f32>,
    ) -> RegTile<'k, f32> {
        let SplitF16 { slabs, columns, width, .. } = self.config;
        let Operand { tile: right, zero } = tile.operand;
        let (weights, down) = normalized(k, weights);
        let down = down.iter().zip(tile.factors).map(|(down, factor)| down * factor).collect::<Vec<_>>();
        let a = weights.split_fragments();
        let right = right.reader_b(MmaAtom::F16, Major::Mn, zero);
        for first in (0..width).step_by(TOGETHER as usize) {
            let mut part = SplitTile::zero(k, slabs, TOGETHER);
            for depth in (0..columns).step_by(16) {
                let [high, low] = [first, width + first].map(|column| right.load_pair(column, depth));
                for (column, (high, low)) in (0..).step_by(8).zip(high.into_iter().zip(low)) {
                    let a = a.iter().map(|slab| &slab[depth as usize / 16]);
                    part.mma(column, a, &Split::of(high, low));
                }
            }
            let begin = first as usize / 4;
            for (slot, part) in part.finite_total().rows().enumerate() {
                for (sum, part) in sum.row_mut(slot)[begin..].iter_mut().zip(part) {
                    *sum = part.mul_add(down[slot], *sum);
                }
            }
        }
        sum
    }

    fn finish(&self, k: K<'k>) {
        self.tiles.finish(k);
    }

    fn sum_parts(&self) -> (u32, Vec<u32>) {
        (2, (0..self.config.width).step_by(8).collect())
    }

    fn sum_column(&self, k: K<'k>) -> U32<'k> {
        self.tiles.sum_column(k)
    }
}
