//! Sums of the rows of `op(a)` by warps that neither copy nor multiply: they read the slices of `a` that are there for the product.
//!
//! All tiles of the same rows bring the same slices, so each warp of each adds up a share of the rows: blocks take equally long, and no sum is
//! made by two.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{PanelTile, TileLayout, WARP};

use super::{Blocks, Context, GROUP};

/// Rows whose elements of one depth are a vector.
pub(crate) const PIECE: u32 = 8;

/// Warps of a block that add up rows: those behind that of the thread that copies.
pub(super) const SUMMING_WARPS: u32 = 3;
/// Pieces of a warp up to which it is about as fast as the tensor cores.
pub(crate) const MOST_PIECES: u32 = 4;

/// Where the sums of the rows of `op(a)` go, for `a` of 16-bit elements that lie along the rows.
#[derive(Clone, Copy)]
pub(crate) struct RowSums<'k> {
    pub(crate) to: Ptr<'k, Write, Elem>,
    /// Pieces of [`PIECE`] rows of a warp: a power of two up to 16, at least those of all rows over the warps of the tiles along the columns.
    pub(crate) pieces: U32<'k>,
    /// Elements from the sums of one part of the common dimension to those of the next, where blocks share it.
    pub(crate) part: Option<U64<'k>>,
}

/// The pieces that each warp of `across` tiles along the columns adds up, of tiles of `rows` rows.
pub(crate) fn pieces(rows: u32, across: u32) -> u32 {
    (rows / PIECE).div_ceil(across.saturating_mul(SUMMING_WARPS).max(1)).next_power_of_two()
}

/// The tile along the columns that adds up row `row` where warps have so many pieces, of tiles of `rows` rows.
pub(crate) fn tile_of_sums<'k>(row: U32<'k>, rows: u32, pieces: U32<'k>) -> U32<'k> {
    (row % rows) / PIECE / pieces / SUMMING_WARPS
}

impl Blocks {
    /// The first of the warps that add up rows.
    fn first_of_sums(&self) -> u32 {
        self.groups() * (GROUP / WARP) + 1
    }

    /// Whether this warp adds up rows.
    pub(super) fn sums_rows<'k>(&self, k: K<'k>) -> Pred<'k> {
        k.warp_idx().ge(self.first_of_sums())
    }

    /// Adds up the rows of all tiles. For the warps that do so.
    pub(super) fn sum_rows<'k>(&self, cx: &Context<'k>, RowSums { to, pieces, part }: RowSums<'k>) {
        let (k, a, lane) = (cx.k, cx.a, cx.k.lane_idx());
        // Neighbouring lanes have every so many-th depth of a piece.
        let own = (lane * pieces) >> WARP.trailing_zeros();
        let lanes = k.lit(WARP) / pieces;
        let depth = lane & (lanes - 1);
        cx.for_each_tile(self.config, |place, state| {
            let sharing =
                (place.col / self.config.cols).mul_add(SUMMING_WARPS, k.warp_idx() - self.first_of_sums());
            let piece = sharing.mul_add(pieces, own);
            let to = part.map_or(to, |part| to.at(place.matrix.to_u64() * part));
            let there = piece.lt(self.config.rows / PIECE);
            let none: Vec<_> = (0..PIECE).map(|_| k.lit(0.0f32)).collect();
            let slices = k.range(0, place.steps, 1);
            let (state, sums) = k.fold(slices, (state, none), |_, (state, sums)| {
                cx.pipeline.consumer_wait(state);
                let (at, _) = cx.stage(state.stage());
                let sums = k.if_else(
                    there,
                    || {
                        let at = at + (piece >> 3) * a.part(PanelTile::WIDTH);
                        let panel = k.tile_from(at, TileLayout::new(a.dtype, a.depth, PanelTile::WIDTH));
                        let load = |depth| panel.at(depth, (piece & 7) * PIECE).load::<f32>(PIECE);
                        k.fold(k.range(0, pieces, 1), sums.clone(), |i, sums| {
                            let depth = (i * 2).mul_add(lanes, depth);
                            let both = load(depth) + load(depth + lanes);
                            sums.iter().zip(both.iter()).map(|(sum, value)| *sum + value).collect()
                        })
                    },
                    || sums.clone(),
                );
                k.warp_barrier();
                self.release(cx, lane, state);
                (cx.pipeline.next(state), sums)
            });
            let row = place.row + piece * PIECE;
            for (i, sum) in (0..).zip(sums) {
                // Of the lanes that share a piece alone.
                let sum = [1u32, 2, 4, 8, 16].into_iter().fold(sum, |sum, mask| {
                    let other = sum.shfl_xor(mask);
                    lanes.gt(mask).select(sum + other, sum)
                });
                let mine = there & depth.eq(0) & (row + i).lt(place.end);
                to.at(row + i).only_where(mine, Fill::Zero).set(sum);
            }
            state
        });
    }
}
