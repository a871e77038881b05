//! What a step forward makes of the sums of its gates, and where that goes.

use warpwright_dsl::prelude::*;

use super::cell::{Cell, Gate};
use super::trail::Unit;
use super::walk::{self, Walk, has};

/// The tensors that a step of a unit ends in; see [`pointwise`](super::pointwise) for their shapes.
pub(super) struct Landing<'k> {
    pub(super) cell: Cell,
    pub(super) dtype: DType,
    /// Whether the step is the first.
    pub(super) first: bool,
    /// Whether the hidden state goes nowhere but to `h`.
    pub(super) projected: bool,
    pub(super) walk: Walk<'k>,
    pub(super) hidden: U32<'k>,
    pub(super) step: U32<'k>,
    /// Elements from a place of `y` to the next.
    pub(super) y_row: U32<'k>,
    pub(super) before: Ptr<'k, Read, Elem>,
    pub(super) h0: Ptr<'k, Read, Elem>,
    pub(super) products: Ptr<'k, ReadWrite, Elem>,
    pub(super) after: Ptr<'k, Write, Elem>,
    pub(super) h: Ptr<'k, Write, Elem>,
    pub(super) y: Ptr<'k, Write, Elem>,
    pub(super) h_n: Ptr<'k, Write, Elem>,
    pub(super) c_n: Ptr<'k, Write, Elem>,
    pub(super) extra: Ptr<'k, Write, Elem>,
}

/// The landing of a kernel's arguments.
macro_rules! landing {
    ($p:expr, $cell:expr, $dtype:expr, $first:expr, $walk:expr) => {
        Landing {
            cell: $cell,
            dtype: $dtype,
            first: $first,
            projected: false,
            walk: $walk,
            hidden: $p.hidden,
            step: $p.step,
            y_row: $p.y_row,
            before: $p.before,
            h0: $p.h0,
            products: $p.products,
            after: $p.after,
            h: $p.h,
            y: $p.y,
            h_n: $p.h_n,
            c_n: $p.c_n,
            extra: $p.extra,
        }
    };
}
pub(super) use landing;

impl<'k> Landing<'k> {
    /// The unit's value before the step.
    pub(super) fn before<A: Float>(&self, k: K<'k>, who: Unit<'k>) -> Reg<'k, A>
    where
        Elem: Access<A>,
    {
        let start = if self.cell.has_c() { walk::HAS_C0 } else { walk::HAS_H0 };
        let given = if self.first { who.inside & has(self.walk.flags, start) } else { who.inside };
        if !self.cell.carries() {
            return k.lit(0.0);
        }
        self.before.at(who.batch * self.hidden + who.unit).only_where(given, Fill::Zero).get()
    }

    /// Ends the step of a unit, from the sums of its gates on the sides of input and state, and its value before.
    pub(super) fn finish<A: Float>(
        &self,
        k: K<'k>,
        who: Unit<'k>,
        sums: &[(Reg<'k, A>, Reg<'k, A>)],
        before: Reg<'k, A>,
    ) where
        Elem: Access<A>,
    {
        let Self { cell, dtype, .. } = *self;
        let Unit { batch, unit, length, .. } = who;
        let (flags, at) = (self.walk.flags, batch * self.hidden + unit);
        let row = self.walk.row(self.step, batch, length);
        let there = self.step.lt(length);
        let zero = k.lit::<A>(0.0);
        let given = |pointer: Ptr<'k, Read, Elem>, bit| {
            pointer.at(at).only_where(has(flags, bit), Fill::Zero).get::<A>()
        };
        let alone =
            |(gate, &(x, h)): (usize, &(Reg<'k, A>, Reg<'k, A>))| cell.alone(Gate::Known(gate), x, h, dtype);
        let alone: Vec<_> = sums.iter().enumerate().map(alone).collect();
        let step = cell.together(&alone, sums[sums.len() - 1].1, before, dtype);
        let value = if cell.has_c() { step.extra.unwrap_or(zero) } else { step.h };
        if cell.carries() {
            self.after.at(at).set(value);
        }
        self.h.at(at).set(step.h);
        if !self.projected {
            k.if_(has(flags, walk::HAS_Y), || {
                self.y.at(row * self.y_row.to_u64() + unit.to_u64()).set(there.select(step.h, 0.0));
            });
        }
        k.if_(there & (self.step + 1).eq(length), || {
            if !self.projected {
                self.h_n.at(at).set(step.h);
            }
            if cell.has_c() {
                self.c_n.at(at).set(value);
            }
        });
        if self.first {
            k.if_(length.eq(0), || {
                if !self.projected {
                    self.h_n.at(at).set(given(self.h0, walk::HAS_H0));
                }
                if cell.has_c() {
                    self.c_n.at(at).set(before);
                }
            });
        }
        k.if_(has(flags, walk::TRAINING), || {
            let hidden = self.hidden.to_u64();
            for (gate, value) in (0..).zip(&step.gates) {
                let place = row * (hidden * cell.gates() as u64) + (self.hidden * gate + unit).to_u64();
                self.products.at(place).set(*value);
            }
            if let Some(extra) = step.extra {
                self.extra.at(row * hidden + unit.to_u64()).set(extra);
            }
        });
    }
}
