//! Sums of the rows of `op(a)` by a warp that neither copies nor multiplies: it reads the slices of `a` that are there for the product.
//!
//! All tiles of the same rows bring the same slices, so each adds up a share of the rows: blocks take equally long, and no sum is made by two.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{PanelTile, TileLayout, WARP};

use super::{Blocks, Context, GROUP};

/// Rows whose elements of one depth are a vector.
pub(crate) const PIECE: u32 = 8;

/// Where the sums of the rows of `op(a)` go, for `a` of 16-bit elements that lie along the rows.
#[derive(Clone, Copy)]
pub(crate) struct RowSums<'k> {
    pub(crate) to: Ptr<'k, Write, Elem>,
    /// Pieces of [`PIECE`] rows of a tile: a power of two up to 32, at least those of all rows over the tiles along the columns.
    pub(crate) pieces: U32<'k>,
}

/// The pieces that each of `across` tiles along the columns adds up, of tiles of `rows` rows.
pub(crate) fn pieces(rows: u32, across: u32) -> u32 {
    (rows / PIECE).div_ceil(across.max(1)).next_power_of_two()
}

impl Blocks {
    /// Whether this warp adds up rows: the one behind that of the thread that copies.
    pub(super) fn sums_rows<'k>(&self, k: K<'k>) -> Pred<'k> {
        k.warp_idx().eq(self.groups() * (GROUP / WARP) + 1)
    }

    /// Adds up the rows of all tiles. For one warp.
    pub(super) fn sum_rows<'k>(&self, cx: &Context<'k>, RowSums { to, pieces }: RowSums<'k>) {
        let (k, a, lane) = (cx.k, cx.a, cx.k.lane_idx());
        // Neighbouring lanes have every so many-th depth of a piece.
        let own = (lane * pieces) >> WARP.trailing_zeros();
        let lanes = k.lit(WARP) / pieces;
        let depth = lane & (lanes - 1);
        cx.for_each_tile(self.config, |place, state| {
            let piece = (place.col / self.config.cols).mul_add(pieces, own);
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
