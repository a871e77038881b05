//! Slices that arrive across the common dimension, of elements that products take along it alone: the warps behind that of the thread that
//! copies turn them where they are, between the copies and the products. Of products of two planes they split elements, too: what is left of
//! them goes to the stage behind.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{PanelTile, WARP};

use super::{Blocks, Context, GROUP};

/// Warps of a block that turn slices: those behind that of the thread that copies.
pub(crate) const TURNING_WARPS: u32 = 3;

impl Blocks {
    /// The first of the warps that turn slices.
    fn first_turning(&self) -> u32 {
        self.groups() * (GROUP / WARP) + 1
    }

    /// Whether this warp turns slices.
    pub(super) fn turns_slices<'k>(&self, k: K<'k>) -> Pred<'k> {
        k.warp_idx().ge(self.first_turning())
    }

    /// Turns the slices of all tiles. For the warps that do so.
    pub(super) fn turn_slices<'k>(&self, cx: &Context<'k>) {
        let (k, lane) = (cx.k, cx.k.lane_idx());
        let warp = k.warp_idx() - self.first_turning();
        // Panels of both operands follow one another.
        let slice = PanelTile { outer: cx.a.outer + cx.b.outer, ..cx.a };
        cx.for_each_tile(self.config, |place, state| {
            k.fold(k.range(0, place.steps, 1), state, |_, state| {
                let share = (warp, TURNING_WARPS);
                cx.copied.consumer_wait(state);
                let at = cx.stage(state.stage()).0;
                let next = cx.pipeline.next(state);
                if let Some(factor) = self.planes {
                    // It was given back with the one before: there is an even number of them.
                    slice.turn_split(at, (cx.stage(next.stage()).0, factor.recip()), share);
                } else {
                    slice.turn(at, share);
                }
                k.fence_shared_copies();
                k.warp_barrier();
                k.if_(lane.eq(0), || {
                    cx.pipeline.producer_commit(state);
                    if self.planes.is_some() {
                        cx.pipeline.producer_commit(next);
                    }
                });
                if self.planes.is_some() { cx.pipeline.next(next) } else { next }
            })
        });
    }
}
