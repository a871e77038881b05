//! The saved state of a step of a unit, and its gradient.

use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;

use crate::recurrent::gates::{Cell, Gradient, Saved};
use crate::recurrent::walk::{Flag, Walk};

kernel_args! {
    /// The saved state and the results of a forward pass for training, and the gradients of its results; see [`pointwise`](super::pointwise)
    /// for the shapes.
    pub(in crate::recurrent) struct SavedArgs => SavedParams {
        gates: In<Elem>, extra: In<Elem>,
        y: In<Elem>, h0: In<Elem>, c0: In<Elem>, lengths: In<i32>,
        dy: In<Elem>, dh_n: In<Elem>, dc_n: In<Elem>,
    }
}

/// The saved state that the gradients of a pass start from.
pub(in crate::recurrent) struct SavedState<'k> {
    pub(in crate::recurrent) cell: Cell,
    pub(in crate::recurrent) dtype: DType,
    /// Whether hidden states are projected: neither they nor their gradients are known here.
    pub(in crate::recurrent) projected: bool,
    pub(in crate::recurrent) hidden: U32<'k>,
    pub(in crate::recurrent) walk: Walk<'k>,
    pub(in crate::recurrent) tensors: SavedParams<'k>,
}

/// A unit of a sequence.
#[derive(Clone, Copy)]
pub(in crate::recurrent) struct Unit<'k> {
    /// Whether there is one.
    pub(in crate::recurrent) inside: Pred<'k>,
    pub(in crate::recurrent) batch: U32<'k>,
    pub(in crate::recurrent) unit: U32<'k>,
    pub(in crate::recurrent) length: U32<'k>,
}

/// A step of a unit, but for what later steps give back.
pub(in crate::recurrent) struct Known<'k, A: Accumulate> {
    pub(in crate::recurrent) row: U64<'k>,
    /// Whether the sequence has the step.
    pub(in crate::recurrent) there: Pred<'k>,
    /// Whether it has later ones.
    pub(in crate::recurrent) later: Pred<'k>,
    /// The hidden state before the step.
    pub(in crate::recurrent) h_before: Reg<'k, A>,
    pub(in crate::recurrent) saved: Saved<'k, A>,
    /// The gradients of the results.
    dh: Reg<'k, A>,
    dc: Reg<'k, A>,
}

/// The rows of a step of a unit.
pub(in crate::recurrent) struct When<'k> {
    row: U64<'k>,
    previous: U64<'k>,
    there: Pred<'k>,
    first: Pred<'k>,
    last: Pred<'k>,
}

impl<'k> When<'k> {
    /// The step, from what [`Known::values`] gave.
    pub(in crate::recurrent) fn known<A: Accumulate>(
        &self,
        cell: Cell,
        values: &[Reg<'k, A>],
    ) -> Known<'k, A> {
        let (fixed, gates) = values.split_at(values.len() - cell.gates());
        let saved = Saved { gates: gates.to_vec(), extra: fixed[1], before: fixed[2] };
        let later = self.there & !self.last;
        Known {
            row: self.row,
            there: self.there,
            later,
            h_before: fixed[0],
            saved,
            dh: fixed[3],
            dc: fixed[4],
        }
    }
}

impl<'k, A: Accumulate> Known<'k, A> {
    /// The values that were read.
    pub(in crate::recurrent) fn values(self) -> Vec<Reg<'k, A>> {
        let Saved { gates, extra, before } = self.saved;
        [self.h_before, extra, before, self.dh, self.dc].into_iter().chain(gates).collect()
    }

    /// The gradients of each gate's sums on the sides of input and state; zeros in a step that the sequence does not have.
    pub(in crate::recurrent) fn sides(
        &self,
        gradient: &Gradient<'k, A>,
    ) -> impl Iterator<Item = (Reg<'k, A>, Reg<'k, A>)> {
        let last = gradient.gates.len() - 1;
        gradient.gates.iter().enumerate().map(move |(gate, value)| {
            let inner = if gate == last { gradient.inner } else { *value };
            (self.there.select(*value, 0.0), self.there.select(inner, 0.0))
        })
    }
}

impl<'k> SavedState<'k> {
    /// The place of gate `gate` of a unit in `[row][gates][hidden]`.
    pub(in crate::recurrent) fn gate(&self, row: U64<'k>, gate: usize, unit: U32<'k>) -> U64<'k> {
        let width = self.hidden.to_u64() * self.cell.gates() as u64;
        row * width + (self.hidden * gate as u32 + unit).to_u64()
    }

    /// The place of a unit in `[row][hidden]`.
    pub(in crate::recurrent) fn place(&self, row: U64<'k>, unit: U32<'k>) -> U64<'k> {
        row * self.hidden.to_u64() + unit.to_u64()
    }

    /// The rows of step `step` of a unit.
    pub(in crate::recurrent) fn place_of(&self, step: U32<'k>, who: Unit<'k>) -> When<'k> {
        let Unit { inside, batch, length, .. } = who;
        let row = self.walk.row(step, batch, length);
        let previous = self.walk.row(step.max(1) - 1, batch, length);
        let there = inside & step.lt(length);
        let (first, last) = (there & step.eq(0), there & (step + 1).eq(length));
        When { row, previous, there, first, last }
    }

    /// Reads step `step` of a unit.
    pub(in crate::recurrent) fn known<A: Accumulate>(
        &self,
        k: K<'k>,
        step: U32<'k>,
        who: Unit<'k>,
    ) -> Known<'k, A> {
        let Unit { batch, unit, .. } = who;
        let Self { cell, projected, walk, tensors, .. } = *self;
        let When { row, previous, there, first, last } = self.place_of(step, who);
        let later = there & !last;
        let behind = there & !first;
        let of_state = (batch * self.hidden + unit).to_u64();
        let read = |from: Ptr<'k, Read, Elem>, at: U64<'k>, p: Pred<'k>| {
            from.at(at).only_where(p, Fill::Zero).get::<A>()
        };
        let start = |from, flag| read(from, of_state, first & walk.has(flag));
        let zero = k.lit::<A>(0.0);
        let h_before = if projected {
            zero
        } else {
            start(tensors.h0, Flag::H0) + read(tensors.y, walk.in_y(previous, unit), behind)
        };
        let before = if cell.has_c() {
            start(tensors.c0, Flag::C0) + read(tensors.extra, self.place(previous, unit), behind)
        } else {
            h_before
        };
        let gates = (0..cell.gates()).map(|gate| read(tensors.gates, self.gate(row, gate, unit), there));
        let saved = Saved {
            gates: gates.collect(),
            extra: if cell.carries() { read(tensors.extra, self.place(row, unit), there) } else { zero },
            before,
        };
        let dh = if projected {
            zero
        } else {
            read(tensors.dy, walk.in_y(row, unit), there & walk.has(Flag::Dy))
                + read(tensors.dh_n, of_state, last & walk.has(Flag::DhN))
        };
        let of_c = last & walk.has(Flag::DcN);
        let dc = if cell.has_c() { read(tensors.dc_n, of_state, of_c) } else { zero };
        Known { row, there, later, h_before, saved, dh, dc }
    }

    /// The gradient of a step from the gradient that came back through the recurrent weights and the value that passes from step to step, both of
    /// which are zero behind the last.
    pub(in crate::recurrent) fn gradient<A: Accumulate>(
        &self,
        known: &Known<'k, A>,
        recurrent: Reg<'k, A>,
        carry: Reg<'k, A>,
    ) -> Gradient<'k, A> {
        self.cell.back(&known.saved, known.dh + recurrent, carry + known.dc, self.dtype)
    }
}
