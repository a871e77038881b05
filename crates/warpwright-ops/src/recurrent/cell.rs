//! The cell: what becomes of the sums of the gates.

use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;

use super::persistent::{Item, SequenceParams};
use crate::activation::{Activation, evaluate};

/// `b_ih` and `b_hh` are there.
pub(super) const HAS_BIAS: u32 = 1;
/// `h0` is there.
pub(super) const HAS_H0: u32 = 2;
/// `c0` is there.
pub(super) const HAS_C0: u32 = 4;

/// Both biases of a gate of a unit.
pub(super) fn biases<'k>(k: K<'k>, p: &SequenceParams<'k>, item: &Item<'k>, hidden: u32) -> F32<'k> {
    let at = item.gate * hidden + item.unit;
    k.if_else(
        item.there & (p.flags & HAS_BIAS).ne(0),
        || p.b_ih.at(at).get::<f32>() + p.b_hh.at(at).get(),
        || k.lit(0.0),
    )
}

/// The hyperbolic tangent for results of type `dtype`.
pub(super) fn squash<'k, A: Float>(x: Reg<'k, A>, dtype: DType) -> Reg<'k, A> {
    evaluate(Activation::Tanh, x, dtype)
}

/// Gate number `gate` of input, forget, cell and output: the logistic function, or the hyperbolic tangent of the cell's.
pub(super) fn gate<'k>(gate: U32<'k>, x: F32<'k>, dtype: DType) -> F32<'k> {
    let (plain, squashed) = (evaluate(Activation::Sigmoid, x, dtype), squash(x, dtype));
    gate.eq(2).select(squashed, plain)
}

kernel_args! {
    /// One step, for every unit of every batch.
    pub(super) struct CellArgs => CellParams {
        /// `[batch][4][hidden]`, of the input and of the state.
        products: In<Elem>, recurrent: In<Elem>,
        b_ih: In<Elem>, b_hh: In<Elem>,
        /// The cells before and after.
        before: In<Elem>, after: Out<Elem>,
        h: Out<Elem>, h_n: Out<Elem>, c_n: Out<Elem>,
        n: u32, hidden: u32, flags: u32,
    }
}

/// The cells before are those of the step before; else `c0` or zero.
pub(super) const HAS_BEFORE: u32 = 8;
/// There is a state, and what it was multiplied with.
pub(super) const HAS_RECURRENT: u32 = 16;
/// The last step.
pub(super) const IS_LAST: u32 = 32;

/// Threads of a block.
pub(super) const THREADS: u32 = 128;

/// The elements of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    pub(super) dtype: DType,
    /// Type of `before`: that of `c0`, or that of sums.
    pub(super) before: DType,
}

impl Cell {
    fn body<'k, A: Float>(&self, k: K<'k>, p: CellParams<'k>)
    where
        Elem: Access<A>,
    {
        let at = k.global_idx_x().to_u32();
        k.if_(at.lt(p.n), || {
            let (batch, unit) = (at / p.hidden, at % p.hidden);
            let gates = [0, 1, 2, 3].map(|gate| {
                let of_bias = p.hidden * gate + unit;
                let place = batch.to_u64() * (p.hidden.to_u64() * 4) + of_bias.to_u64();
                let sum = p.products.at(place).get::<A>();
                let sum = k.if_else(
                    (p.flags & HAS_RECURRENT).ne(0),
                    || sum + p.recurrent.at(place).get::<A>(),
                    || sum,
                );
                k.if_else(
                    (p.flags & HAS_BIAS).ne(0),
                    || sum + (p.b_ih.at(of_bias).get::<A>() + p.b_hh.at(of_bias).get()),
                    || sum,
                )
            });
            let logistic = |x| evaluate(Activation::Sigmoid, x, self.dtype);
            let [input, forget, output] = [gates[0], gates[1], gates[3]].map(logistic);
            let before =
                k.if_else((p.flags & HAS_BEFORE).ne(0), || p.before.at(at).get::<A>(), || k.lit::<A>(0.0));
            let c = forget.mul_add(before, input * squash(gates[2], self.dtype));
            let h = output * squash(c, self.dtype);
            p.after.at(at).set(c);
            p.h.at(at).set(h);
            k.if_((p.flags & IS_LAST).ne(0), || {
                p.h_n.at(at).set(h);
                p.c_n.at(at).set(c);
            });
        });
    }
}

impl KernelDef for Cell {
    type Args = CellArgs;

    fn name(&self) -> String {
        format!("lstm_cell_{}_{}", self.dtype, self.before)
    }

    fn block(&self) -> BlockDim {
        BlockDim::x(THREADS)
    }

    fn dtypes(&self) -> DTypes {
        let sums = if self.dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let dtypes = DTypes::all(self.dtype).with("products", sums).with("recurrent", sums);
        dtypes.with("before", self.before).with("after", sums)
    }

    fn build<'k>(&self, k: K<'k>, p: CellParams<'k>) {
        match self.dtype {
            DType::F64 => self.body::<f64>(k, p),
            _ => self.body::<f32>(k, p),
        }
    }
}
