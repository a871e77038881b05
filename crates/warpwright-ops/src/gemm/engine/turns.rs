//! Warpgroups that take turns: while one multiplies the slices of its tile, the others finish theirs.
//!
//! A group waits for the first slice of its tile when the group before has waited for the last one of its own: a stage has then been filled as
//! often as the group thinks, and cannot be filled again before the group has used it.

use warpwright_dsl::prelude::*;

use super::{GROUP, MEETING, Place};

/// The turns of a block's warpgroups, as one of them sees them.
#[derive(Clone, Copy)]
pub(super) struct Turns<'k> {
    pub(super) k: K<'k>,
    pub(super) group: U32<'k>,
    pub(super) groups: u32,
}

impl<'k> Turns<'k> {
    /// Threads that meet where a group waits for its turn.
    const PAIR: u32 = 2 * GROUP;

    /// The named barrier of a group, behind those at which groups meet on their own.
    fn barrier(self, group: U32<'k>) -> U32<'k> {
        group + (MEETING + self.groups)
    }

    /// The group whose turn it is behind so many tiles.
    fn of(self, tiles: U32<'k>) -> U32<'k> {
        tiles % self.groups
    }

    /// Lets the first group begin.
    pub(super) fn begin(self) {
        let k = self.k;
        k.if_(self.group.eq(self.groups - 1), || k.barrier_arrive(self.barrier(k.lit(0u32)), Self::PAIR));
    }

    /// Whether a tile is the group's.
    pub(super) fn is_mine(self, place: Place<'k>) -> Pred<'k> {
        let k = self.k;
        self.of((place.tile - k.cluster_idx_x()) / k.grid_dim_x()).eq(self.group)
    }

    /// Waits until the group before has all of its slices.
    pub(super) fn wait(self) {
        self.k.barrier_of(self.barrier(self.group), Self::PAIR);
    }

    /// Lets the next group begin.
    pub(super) fn pass(self) {
        let next = self.group + 1;
        let next = next.eq(self.groups).select(0, next);
        self.k.barrier_arrive(self.barrier(next), Self::PAIR);
    }

    /// The group that was let begin last, of which there is no tile any more, takes its turn.
    pub(super) fn end(self, tiles: U32<'k>) {
        let (k, blocks) = (self.k, self.k.grid_dim_x());
        let of_block = (tiles - k.cluster_idx_x() + (blocks - 1)) / blocks;
        k.if_(self.of(of_block).eq(self.group), || self.wait());
    }
}
