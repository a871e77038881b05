//! Products of groups: rows that follow one another share a matrix, or are the common dimension of a product. Where groups end is a
//! tensor, so that what has just chosen the rows of each need not come to the host.

use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;

/// The dimension that is split into groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Grouping {
    /// Rows of the left factor and of the result: each group has a right factor of its own.
    M,
    /// The common dimension: each group has a result of its own.
    K,
}

kernel_args! {
    /// Where groups end.
    pub(crate) struct GroupArgs => GroupParams {
        /// For each group the row behind its last.
        ends: In<i32>,
        groups: u32,
        /// Rows of all groups, and those behind the last.
        rows: u32,
    }
}

impl<'k> GroupParams<'k> {
    /// The row behind those of `group`, and behind all for the one that follows the last: never more than there are.
    pub(crate) fn end(&self, group: U32<'k>) -> U32<'k> {
        let there = group.lt(self.groups);
        let end = self.ends.at(group).only_where(there, Fill::Zero).get::<i32>();
        there.select(end.max(0).to_u32().min(self.rows), self.rows)
    }

    /// The first row of `group`, and the row behind its last, no less.
    pub(crate) fn rows_of(&self, group: U32<'k>) -> (U32<'k>, U32<'k>) {
        let k = group.k();
        let before = k.if_else(group.gt(0), || self.end(group - 1), || k.lit(0u32));
        (before, self.end(group).max(before))
    }

    /// The group that has tile `tile`, where each `rows` rows of a group have `across` tiles: `at` or one that follows it. The rows behind
    /// the last group are one more, and what follows that has the tiles that there are not.
    pub(crate) fn find(&self, tile: U32<'k>, at: Walk<'k>, (rows, across): (u32, U32<'k>)) -> Walk<'k> {
        let k = tile.k();
        let tiles = |at: &Walk<'k>| (at.end - at.begin + (rows - 1)) / rows * across;
        k.while_(
            at,
            |at| at.group.le(self.groups) & tile.ge(at.before + tiles(at)),
            |at| Walk {
                group: at.group + 1,
                begin: at.end,
                end: self.end(at.group + 1).max(at.end),
                before: at.before + tiles(&at),
            },
        )
    }

    /// Where a walk begins.
    pub(crate) fn first(&self) -> Walk<'k> {
        let k = self.rows.k();
        let zero = k.lit(0u32);
        Walk { group: zero, begin: zero, end: self.end(zero), before: zero }
    }
}

/// A group, its first row and the one behind its last, and the tiles of the groups before it.
#[derive(Clone, Copy)]
pub(crate) struct Walk<'k> {
    pub(crate) group: U32<'k>,
    pub(crate) begin: U32<'k>,
    pub(crate) end: U32<'k>,
    pub(crate) before: U32<'k>,
}

carry!(Walk { group, begin, end, before });
