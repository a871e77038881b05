//! The epilogue of a forward step: the cell on the sums of its gates, and the stores of its results.

use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;

use super::saved::Unit;
use crate::recurrent::gates::{Cell, Gate};
use crate::recurrent::walk::{Flag, Walk};

kernel_args! {
    /// The biases of a layer and direction, `[gates][hidden]`.
    pub(in crate::recurrent) struct BiasArgs => BiasParams { b_ih: In<Elem>, b_hh: In<Elem> }
}

kernel_args! {
    /// The state that a step starts from.
    pub(in crate::recurrent) struct StateArgs => StateParams {
        /// The unit's value before the step: the state at first.
        before: In<Elem>,
        h0: In<Elem>, lengths: In<i32>,
    }
}

kernel_args! {
    /// The results of a pass.
    pub(in crate::recurrent) struct ResultArgs => ResultParams {
        y: Out<Elem>, h_n: Out<Elem>, c_n: Out<Elem>,
        /// `[row][hidden]`, saved for the backward pass.
        extra: Out<Elem>,
    }
}

kernel_args! {
    /// The state after a step and the results of the pass.
    pub(in crate::recurrent) struct NextArgs => NextParams {
        /// The unit's value after the step.
        after: Out<Elem>,
        /// The hidden state after the step, `[batch][hidden]`.
        h: Out<Elem>,
        results: ResultArgs,
    }
}

/// The end of a step of a unit; see [`pointwise`](super::pointwise) for the shapes.
pub(in crate::recurrent) struct Epilogue<'k> {
    pub(in crate::recurrent) cell: Cell,
    pub(in crate::recurrent) dtype: DType,
    /// Whether the step is the first.
    pub(in crate::recurrent) first: bool,
    /// Whether the hidden state goes nowhere but to `h`.
    pub(in crate::recurrent) projected: bool,
    pub(in crate::recurrent) walk: Walk<'k>,
    pub(in crate::recurrent) hidden: U32<'k>,
    pub(in crate::recurrent) step: U32<'k>,
    /// The activated gates are saved there.
    pub(in crate::recurrent) products: Ptr<'k, ReadWrite, Elem>,
    pub(in crate::recurrent) state: StateParams<'k>,
    pub(in crate::recurrent) next: NextParams<'k>,
}

impl<'k> Epilogue<'k> {
    /// The unit's value before the step.
    pub(in crate::recurrent) fn before<A: Accumulate>(&self, k: K<'k>, who: Unit<'k>) -> Reg<'k, A> {
        let start = if self.cell.has_c() { Flag::C0 } else { Flag::H0 };
        let given = if self.first { who.inside & self.walk.has(start) } else { who.inside };
        if !self.cell.carries() {
            return k.lit(0.0);
        }
        self.state.before.at(who.batch * self.hidden + who.unit).only_where(given, Fill::Zero).get()
    }

    /// Ends the step of a unit, from the sums of its gates on the sides of input and state, and its value before.
    pub(in crate::recurrent) fn finish<A: Accumulate>(
        &self,
        k: K<'k>,
        who: Unit<'k>,
        sums: &[(Reg<'k, A>, Reg<'k, A>)],
        before: Reg<'k, A>,
    ) {
        let Self { cell, dtype, walk, next: NextParams { after, h, results }, .. } = *self;
        let Unit { batch, unit, length, .. } = who;
        let at = batch * self.hidden + unit;
        let row = walk.row(self.step, batch, length);
        let there = self.step.lt(length);
        let alone =
            |(gate, &(x, h)): (usize, &(Reg<'k, A>, Reg<'k, A>))| cell.alone(Gate::Known(gate), x, h, dtype);
        let alone: Vec<_> = sums.iter().enumerate().map(alone).collect();
        let step = cell.together(&alone, sums[sums.len() - 1].1, before, dtype);
        let value = step.own;
        if cell.carries() {
            after.at(at).set(value);
        }
        h.at(at).set(step.h);
        if !self.projected {
            k.if_(walk.has(Flag::Y), || {
                results.y.at(walk.in_y(row, unit)).set(there.select(step.h, 0.0));
            });
        }
        k.if_(there & (self.step + 1).eq(length), || {
            if !self.projected {
                results.h_n.at(at).set(step.h);
            }
            if cell.has_c() {
                results.c_n.at(at).set(value);
            }
        });
        if self.first {
            k.if_(length.eq(0), || {
                if !self.projected {
                    let given = || walk.has(Flag::H0);
                    results.h_n.at(at).set(self.state.h0.at(at).only_where(given(), Fill::Zero).get::<A>());
                }
                if cell.has_c() {
                    results.c_n.at(at).set(before);
                }
            });
        }
        k.if_(walk.has(Flag::Training), || {
            let hidden = self.hidden.to_u64();
            for (gate, value) in (0..).zip(&step.gates) {
                let place = row * (hidden * cell.gates() as u64) + (self.hidden * gate + unit).to_u64();
                self.products.at(place).set(*value);
            }
            if let Some(extra) = step.extra {
                results.extra.at(row * hidden + unit.to_u64()).set(extra);
            }
        });
    }
}
