//! Which place of a sequence a step has to do with.

use warpwright_dsl::prelude::*;

/// There is a `b_ih`.
pub(super) const HAS_B_IH: u32 = 1;
/// There is a `b_hh`.
pub(super) const HAS_B_HH: u32 = 2;
/// There is an `h0`.
pub(super) const HAS_H0: u32 = 4;
/// There is a `c0`.
pub(super) const HAS_C0: u32 = 8;
/// There are `lengths`.
pub(super) const HAS_LENGTHS: u32 = 16;
/// Sequences are read from their ends.
pub(super) const REVERSE: u32 = 32;
/// Activated gates and what else the gradients need are kept.
pub(super) const TRAINING: u32 = 64;
/// There is a `y`.
pub(super) const HAS_Y: u32 = 128;
/// There is a state that was multiplied with the recurrent weights.
pub(super) const HAS_RECURRENT: u32 = 256;
/// There is a `dy`.
pub(super) const HAS_DY: u32 = 512;
/// There is a `dh_n`.
pub(super) const HAS_DH_N: u32 = 1024;
/// There is a `dc_n`.
pub(super) const HAS_DC_N: u32 = 2048;

/// Whether a bit is among `flags`.
pub(super) fn has<'k>(flags: U32<'k>, bit: u32) -> Pred<'k> {
    (flags & bit).ne(0)
}

/// A pass over sequences: step `s` of a sequence of `length` places has to do with place `s`, or with `length - 1 - s` where
/// they are read from their ends. Places from `length` on are those of the steps that a sequence does not have.
#[derive(Clone, Copy)]
pub(super) struct Walk<'k> {
    pub(super) lengths: Ptr<'k, Read, i32>,
    pub(super) steps: U32<'k>,
    /// Rows from a place to the next, and from a sequence to the next.
    pub(super) row_step: U32<'k>,
    pub(super) row_batch: U32<'k>,
    pub(super) flags: U32<'k>,
}

/// The walk that a kernel is launched with.
macro_rules! walk {
    ($p:expr) => {
        Walk {
            lengths: $p.lengths,
            steps: $p.steps,
            row_step: $p.row_step,
            row_batch: $p.row_batch,
            flags: $p.flags,
        }
    };
}
pub(super) use walk;

impl<'k> Walk<'k> {
    /// Places of sequence `batch`, which is one of them if `there`.
    pub(super) fn length(&self, batch: U32<'k>, there: Pred<'k>) -> U32<'k> {
        let given = has(self.flags, HAS_LENGTHS);
        let length = self.lengths.at(batch).only_where(there & given, Fill::Zero).get::<i32>();
        given.select(length.max(0).to_u32().min(self.steps), self.steps)
    }

    /// The row of step `step` of sequence `batch`.
    pub(super) fn row(&self, step: U32<'k>, batch: U32<'k>, length: U32<'k>) -> U64<'k> {
        let turned = has(self.flags, REVERSE) & step.lt(length);
        let place = turned.select(length - 1 - step, step);
        (place * self.row_step + batch * self.row_batch).to_u64()
    }
}
