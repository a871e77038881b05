//! One step of every unit of every sequence, forward and backward, around the products of a step.

use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;

use super::epilogue::{BiasArgs, Epilogue, NextArgs, StateArgs};
use super::saved::{SavedArgs, SavedState, Unit};
use crate::recurrent::gates::Cell;
use crate::recurrent::sums_of;
use crate::recurrent::walk::{Flag, Flags, WalkArgs, length_of};

/// Threads of a block.
pub(in crate::recurrent) const THREADS: u32 = 128;

kernel_args! {
    /// A step forward.
    pub(in crate::recurrent) struct ForwardArgs => ForwardParams {
        /// `[row][gates][hidden]`; activated in place if they are kept.
        products: InOut<Elem>,
        /// `[batch][gates][hidden]`
        recurrent: In<Elem>,
        biases: BiasArgs, state: StateArgs, next: NextArgs,
        n: u32, hidden: u32, step: u32, walk: WalkArgs,
    }
}

/// A step forward.
#[derive(Clone, Copy, Debug)]
pub(in crate::recurrent) struct Forward {
    pub(in crate::recurrent) cell: Cell,
    pub(in crate::recurrent) dtype: DType,
    /// Whether it is the first: what passes from step to step has the element type then.
    pub(in crate::recurrent) first: bool,
    /// Whether the hidden state is projected, which is another kernel's: it goes nowhere but to `h` then.
    pub(in crate::recurrent) projected: bool,
}

impl AccumulateKernel for Forward {
    type Args = ForwardArgs;

    fn spec(&self) -> KernelSpec {
        let first = if self.first { "_first" } else { "" };
        let projected = if self.projected { "_projected" } else { "" };
        let sums = sums_of(self.dtype);
        let before = if self.first { self.dtype } else { sums };
        let dtypes = DTypes::all(self.dtype).with("products", sums).with("recurrent", sums);
        KernelSpec::new(
            format!("{}{projected}_step_{}{first}", self.cell.name(), self.dtype),
            BlockDim::x(THREADS),
        )
        .dtypes(dtypes.with("state.before", before).with("next.after", sums).with("next.results.extra", sums))
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, p: ForwardParams<'k>) {
        let Self { cell, dtype, first, projected } = *self;
        let gates = cell.gates();
        let at = k.global_idx_x().to_u32();
        k.if_(at.lt(p.n), || {
            let (batch, unit) = (at / p.hidden, at % p.hidden);
            let walk = p.walk.over(p.state.lengths);
            let length = walk.length(batch, p.n.gt(at));
            let row = walk.row(p.step, batch, length);
            let given = |pointer: Ptr<'k, Read, Elem>, at, flag| {
                pointer.at(at).only_where(walk.has(flag), Fill::Zero).get::<A>()
            };
            let width = p.hidden.to_u64() * gates as u64;
            let sums = |gate: usize| {
                let place = p.hidden * gate as u32 + unit;
                let x = p.products.at(row * width + place.to_u64()).get::<A>()
                    + given(p.biases.b_ih, place.to_u64(), Flag::BIh);
                let h = given(p.recurrent, batch.to_u64() * width + place.to_u64(), Flag::Recurrent)
                    + given(p.biases.b_hh, place.to_u64(), Flag::BHh);
                (x, h)
            };
            let sums: Vec<_> = (0..gates).map(sums).collect();
            let inside = at.lt(p.n);
            let epilogue = Epilogue {
                cell,
                dtype,
                first,
                projected,
                walk,
                hidden: p.hidden,
                step: p.step,
                products: p.products,
                state: p.state,
                next: p.next,
            };
            let who = Unit { inside, batch, unit, length };
            epilogue.finish(k, who, &sums, epilogue.before(k, who));
        });
    }
}

kernel_args! {
    /// A step backward.
    pub(in crate::recurrent) struct BackwardArgs => BackwardParams {
        /// Its `gates` are `[row][gates][hidden]`, its `extra` `[row][hidden]`.
        saved: SavedArgs,
        /// The gradient that came back through the recurrent weights, and the values that pass from step to step, `[batch][hidden]`.
        recurrent: In<Elem>, carry: InOut<Elem>,
        /// Gradients of the sums on the sides of input and state, `[row][gates][hidden]`; those of this step on the side of
        /// the state, `[batch][gates][hidden]`.
        dx: Out<Elem>, dh: Out<Elem>, now: Out<Elem>,
        /// The hidden state before the step, or that of the step before its projection, `[row][hidden]`.
        states: Out<Elem>,
        n: u32, hidden: u32, step: u32, walk: WalkArgs,
    }
}

/// A step backward.
#[derive(Clone, Copy, Debug)]
pub(in crate::recurrent) struct Backward {
    pub(in crate::recurrent) cell: Cell,
    pub(in crate::recurrent) dtype: DType,
    /// Whether the hidden state is projected: `recurrent` has the whole gradient of the step's, as it was before, then.
    pub(in crate::recurrent) projected: bool,
}

impl AccumulateKernel for Backward {
    type Args = BackwardArgs;

    fn spec(&self) -> KernelSpec {
        let projected = if self.projected { "_projected" } else { "" };
        let sums = sums_of(self.dtype);
        let dtypes = DTypes::all(self.dtype).with("saved.gates", sums).with("saved.extra", sums);
        KernelSpec::new(
            format!("{}{projected}_step_backward_{}", self.cell.name(), self.dtype),
            BlockDim::x(THREADS),
        )
        .dtypes(dtypes.with("recurrent", sums).with("carry", sums))
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, p: BackwardParams<'k>) {
        let Self { cell, dtype, projected } = *self;
        let at = k.global_idx_x().to_u32();
        k.if_(at.lt(p.n), || {
            let (batch, unit) = (at / p.hidden, at % p.hidden);
            let walk = p.walk.over(p.saved.lengths);
            let saved = SavedState { cell, dtype, projected, hidden: p.hidden, walk, tensors: p.saved };
            let inside = at.lt(p.n);
            let who = Unit { inside, batch, unit, length: walk.length(batch, inside) };
            let known = saved.known::<A>(k, p.step, who);
            let given = if projected { known.there } else { known.later };
            let recurrent = p.recurrent.at(at).only_where(given, Fill::Zero).get::<A>();
            let carry = if cell.carries() {
                p.carry.at(at).only_where(known.later, Fill::Zero).get::<A>()
            } else {
                k.lit::<A>(0.0)
            };
            let gradient = saved.gradient(&known, recurrent, carry);
            if cell.carries() {
                p.carry.at(at).set(gradient.carry);
            }
            for (gate, (value, inner)) in known.sides(&gradient).enumerate() {
                p.dx.at(saved.gate(known.row, gate, unit)).set(value);
                if cell.splits() {
                    p.dh.at(saved.gate(known.row, gate, unit)).set(inner);
                }
                p.now.at(saved.gate(batch.to_u64(), gate, unit)).set(inner);
            }
            let state = if projected { cell.unprojected(&known.saved, dtype) } else { known.h_before };
            p.states.at(saved.place(known.row, unit)).set(state);
        });
    }
}

kernel_args! {
    /// The gradients of the first state.
    pub(in crate::recurrent) struct StartArgs => StartParams {
        recurrent: In<Elem>, carry: In<Elem>, dh_n: In<Elem>, dc_n: In<Elem>, lengths: In<i32>,
        dh0: Out<Elem>, dc0: Out<Elem>,
        n: u32, hidden: u32, steps: u32, flags: Flags,
    }
}

/// The gradients of the first state: `HAS_H0` and `HAS_C0` say which of them are wanted.
#[derive(Clone, Copy, Debug)]
pub(in crate::recurrent) struct Start {
    pub(in crate::recurrent) cell: Cell,
    pub(in crate::recurrent) dtype: DType,
}

impl AccumulateKernel for Start {
    type Args = StartArgs;

    fn spec(&self) -> KernelSpec {
        let sums = sums_of(self.dtype);
        KernelSpec::new(format!("{}_start_backward_{}", self.cell.name(), self.dtype), BlockDim::x(THREADS))
            .dtypes(DTypes::all(self.dtype).with("recurrent", sums).with("carry", sums))
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, p: StartParams<'k>) {
        let at = k.global_idx_x().to_u32();
        k.if_(at.lt(p.n), || {
            // A sequence without time steps ends as it begins.
            let any = length_of(p.lengths, (p.steps, p.flags), at / p.hidden, p.n.gt(at)).ne(0);
            let read = |from: Ptr<'k, Read, Elem>, where_: Pred<'k>| {
                from.at(at).only_where(where_, Fill::Zero).get::<A>()
            };
            k.if_(p.flags.has(Flag::H0), || {
                let back = read(p.recurrent, any);
                let back = if self.cell == Cell::Gru { back + read(p.carry, any) } else { back };
                let end = read(p.dh_n, !any & p.flags.has(Flag::DhN));
                p.dh0.at(at).set(any.select(back, end));
            });
            if self.cell.has_c() {
                k.if_(p.flags.has(Flag::C0), || {
                    let end = read(p.dc_n, !any & p.flags.has(Flag::DcN));
                    p.dc0.at(at).set(any.select(read(p.carry, any), end));
                });
            }
        });
    }
}
