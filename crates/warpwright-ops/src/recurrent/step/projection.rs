//! The ends of a projected step around its product, forward and backward: a thread for an element of a hidden state.

use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;

use super::pointwise::THREADS;
use crate::recurrent::sums_of;
use crate::recurrent::walk::{Flag, Walk, WalkArgs};

/// The kernel `name`, whose sums of products are at the argument `sums`.
fn spec(name: &str, dtype: DType, sums: &'static str) -> KernelSpec {
    KernelSpec::new(format!("{name}_{dtype}"), BlockDim::x(THREADS))
        .dtypes(DTypes::all(dtype).with(sums, sums_of(dtype)))
}

/// An element of a hidden state and its time step.
struct Element<'k> {
    at: U32<'k>,
    element: U32<'k>,
    batch: U32<'k>,
    walk: Walk<'k>,
    length: U32<'k>,
    /// The row of the step.
    row: U64<'k>,
}

/// Records `body` for the thread's element of `n`, at a step of sequences whose rows have `output`.
fn for_element<'k>(
    k: K<'k>,
    [n, output, step]: [U32<'k>; 3],
    walk: Walk<'k>,
    body: impl FnOnce(Element<'k>),
) {
    let at = k.global_idx_x().to_u32();
    k.if_(at.lt(n), || {
        let (batch, element) = (at / output, at % output);
        let length = walk.length(batch, n.gt(at));
        let row = walk.row(step, batch, length);
        body(Element { at, element, batch, walk, length, row });
    });
}

kernel_args! {
    /// The end of a step forward.
    pub(in crate::recurrent) struct ForwardArgs => ForwardParams {
        /// `[batch][output]`
        sums: In<Elem>,
        h0: In<Elem>, lengths: In<i32>,
        /// The hidden state after the step, `[batch][output]`.
        h: Out<Elem>,
        y: Out<Elem>, h_n: Out<Elem>,
        n: u32, output: u32, step: u32, walk: WalkArgs,
    }
}

/// The end of a step forward.
#[derive(Clone, Copy, Debug)]
pub(in crate::recurrent) struct Forward {
    pub(in crate::recurrent) dtype: DType,
}

impl AccumulateKernel for Forward {
    type Args = ForwardArgs;

    fn spec(&self) -> KernelSpec {
        spec("lstm_projection", self.dtype, "sums")
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, p: ForwardParams<'k>) {
        for_element(k, [p.n, p.output, p.step], p.walk.over(p.lengths), |of| {
            let Element { at, element, walk, length, row, .. } = of;
            let there = p.step.lt(length);
            let h = p.sums.at(at).get::<A>();
            p.h.at(at).set(h);
            p.y.at(walk.in_y(row, element)).set(there.select(h, 0.0));
            k.if_(there & (p.step + 1).eq(length), || p.h_n.at(at).set(h));
            k.if_(p.step.eq(0) & length.eq(0), || {
                let given = walk.has(Flag::H0);
                p.h_n.at(at).set(p.h0.at(at).only_where(given, Fill::Zero).get::<A>());
            });
        });
    }
}

kernel_args! {
    /// The beginning of a step backward.
    pub(in crate::recurrent) struct BackwardArgs => BackwardParams {
        y: In<Elem>, h0: In<Elem>, lengths: In<i32>, dy: In<Elem>, dh_n: In<Elem>,
        /// The gradient that came back through the recurrent weights, `[batch][output]`.
        recurrent: In<Elem>,
        /// The gradient of the step's hidden state, `[row][output]` and `[batch][output]`.
        dh: Out<Elem>, now: Out<Elem>,
        /// The hidden state before the step, `[row][output]`.
        before: Out<Elem>,
        n: u32, output: u32, step: u32, walk: WalkArgs,
    }
}

/// The beginning of a step backward.
#[derive(Clone, Copy, Debug)]
pub(in crate::recurrent) struct Backward {
    pub(in crate::recurrent) dtype: DType,
}

impl AccumulateKernel for Backward {
    type Args = BackwardArgs;

    fn spec(&self) -> KernelSpec {
        spec("lstm_projection_backward", self.dtype, "recurrent")
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, p: BackwardParams<'k>) {
        for_element(k, [p.n, p.output, p.step], p.walk.over(p.lengths), |of| {
            let Element { at, element, batch, walk, length, row } = of;
            let previous = walk.row(p.step.max(1) - 1, batch, length);
            let there = p.step.lt(length);
            let (first, last) = (there & p.step.eq(0), there & (p.step + 1).eq(length));
            let read = |from: Ptr<'k, Read, Elem>, at: U64<'k>, where_: Pred<'k>| {
                from.at(at).only_where(where_, Fill::Zero).get::<A>()
            };
            let here = at.to_u64();
            let before = read(p.h0, here, first & walk.has(Flag::H0))
                + read(p.y, walk.in_y(previous, element), there & !first);
            let dh = read(p.dy, walk.in_y(row, element), there & walk.has(Flag::Dy))
                + read(p.dh_n, here, last & walk.has(Flag::DhN))
                + read(p.recurrent, here, there & !last);
            let place = row * p.output.to_u64() + element.to_u64();
            p.before.at(place).set(before);
            p.dh.at(place).set(dh);
            p.now.at(here).set(dh);
        });
    }
}
