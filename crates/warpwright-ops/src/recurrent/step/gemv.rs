//! The gemv step, a single one of up to four sequences in one launch: a warp reads the rows of one of the weights that belong to a unit, and multiplies
//! them with the inputs or the states of all sequences.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{WARP, kernel_args};
use warpwright_ptx::{Inst, PrefetchLevel, StateSpace};

use super::epilogue::{BiasArgs, Epilogue, NextArgs, StateArgs};
use super::saved::Unit;
use crate::recurrent::gates::Cell;
use crate::recurrent::walk::{Flag, Walk, WalkArgs};
use crate::recurrent::{WIDE, sums_of};

/// Most sequences.
pub(in crate::recurrent) const MOST_BATCH: usize = 4;
/// Units of a block, which have a warp for the inputs and one for the states.
const UNITS: u32 = 4;

kernel_args! {
    /// A step of up to four sequences.
    pub(in crate::recurrent) struct GemvArgs => GemvParams {
        /// `[batch][input]`
        x: In<Elem>,
        /// `[gates][hidden][input]` and `[gates][hidden][hidden]`
        w_ih: In<Elem>, w_hh: In<Elem>,
        biases: BiasArgs, state: StateArgs,
        /// The activated gates, `[row][gates][hidden]`, if they are saved.
        products: InOut<Elem>,
        next: NextArgs,
        /// Of the sequences; the kernels that know their number do not ask.
        batch: u32, input: u32, hidden: u32, step: u32, walk: WalkArgs,
    }
}

impl<'k> GemvParams<'k> {
    /// The pass, which is a single step.
    pub(in crate::recurrent) const fn walk(&self) -> Walk<'k> {
        self.walk.over(self.state.lengths)
    }

    /// The end of the step.
    pub(in crate::recurrent) const fn epilogue(&self, cell: Cell, dtype: DType) -> Epilogue<'k> {
        Epilogue {
            cell,
            dtype,
            first: true,
            projected: false,
            walk: self.walk(),
            hidden: self.hidden,
            step: self.step,
            products: self.products,
            state: self.state,
            next: self.next,
        }
    }

    /// Starts to bring what ends the step of a unit to the L1 cache: loads in front of the products would be waited for there.
    pub(in crate::recurrent) fn fetch(&self, k: K<'k>, cell: Cell, who: Unit<'k>) {
        let walk = self.walk();
        let fetch = |there: Pred<'k>, from: Ptr<'k, Read, Elem>| {
            let addr = from.operand();
            k.if_(there, || {
                k.raw(Inst::Prefetch { space: StateSpace::Global, level: PrefetchLevel::L1, addr });
            });
        };
        let carried = if cell.has_c() { Flag::C0 } else { Flag::H0 };
        if cell.carries() {
            fetch(who.inside & walk.has(carried), self.state.before.at(who.batch * self.hidden + who.unit));
        }
        for (bias, flag) in [(self.biases.b_ih, Flag::BIh), (self.biases.b_hh, Flag::BHh)] {
            for gate in 0..cell.gates() as u32 {
                fetch(who.inside & walk.has(flag), bias.at(self.hidden * gate + who.unit));
            }
        }
    }

    /// The sums of a gate on the sides of input and state with their biases.
    pub(in crate::recurrent) fn sides<A: Accumulate>(
        &self,
        gate: u32,
        unit: U32<'k>,
        [x, h]: [Reg<'k, A>; 2],
    ) -> (Reg<'k, A>, Reg<'k, A>) {
        let walk = self.walk();
        let bias = |from: Ptr<'k, Read, Elem>, flag| {
            from.at(self.hidden * gate + unit).only_where(walk.has(flag), Fill::Zero).get::<A>()
        };
        (x + bias(self.biases.b_ih, Flag::BIh), h + bias(self.biases.b_hh, Flag::BHh))
    }
}

/// A step of up to four sequences.
#[derive(Clone, Copy, Debug)]
pub(in crate::recurrent) struct Gemv {
    pub(in crate::recurrent) cell: Cell,
    pub(in crate::recurrent) dtype: DType,
    /// Sequences, at most [`MOST_BATCH`].
    pub(in crate::recurrent) batch: u32,
}

impl Gemv {
    /// Blocks for `hidden` units.
    pub(in crate::recurrent) const fn blocks(hidden: u32) -> u32 {
        hidden.div_ceil(UNITS)
    }

    /// Elements of a load.
    pub(in crate::recurrent) const fn width(dtype: DType) -> usize {
        WIDE as usize / dtype.bytes()
    }

    /// Adds the products of a unit's rows with the vectors of all sequences, of `depth` elements each, to what the lane has of
    /// them, `[gate][batch]`, if they are `given`.
    fn products<'k, A: Accumulate>(
        &self,
        k: K<'k>,
        (weights, vectors): (Ptr<'k, Read, Elem>, Ptr<'k, Read, Elem>),
        (unit, hidden): (U32<'k>, U32<'k>),
        (depth, given): (U32<'k>, Pred<'k>),
        sums: Vec<Reg<'k, A>>,
    ) -> Vec<Reg<'k, A>> {
        let width = Self::width(self.dtype) as u32;
        // Loads of weights that are on their way together, for each gate.
        let together = if self.batch <= 2 { 4 } else { 1 };
        let own = k.lane_idx() * width;
        let end = given.select(depth, 0u32);
        k.fold(k.range(0, end, WARP * width * together), sums, |start, sums| {
            let parts: Vec<U32<'k>> = (0..together).map(|part| start + own + part * WARP * width).collect();
            let rows = (0..self.cell.gates() as u32).map(|gate| {
                let row = (hidden * gate + unit).to_u64() * depth.to_u64();
                let part = |at: &U32<'k>| {
                    let from = weights.at(row + at.to_u64());
                    from.only_where(at.lt(depth), Fill::Zero).load::<A>(width)
                };
                parts.iter().map(part).collect::<Vec<_>>()
            });
            let rows: Vec<_> = rows.collect();
            let mut sums = sums;
            for batch in 0..self.batch {
                for (part, at) in parts.iter().enumerate() {
                    let from = vectors.at((depth * batch + *at).to_u64());
                    let vector = from.only_where(at.lt(depth), Fill::Zero).load::<A>(width);
                    for (gate, row) in rows.iter().enumerate() {
                        let sum = &mut sums[gate * self.batch as usize + batch as usize];
                        let pairs = row[part].iter().zip(vector.iter());
                        *sum = pairs.fold(*sum, |sum, (weight, element)| weight.mul_add(element, sum));
                    }
                }
            }
            sums
        })
    }
}

impl AccumulateKernel for Gemv {
    type Args = GemvArgs;

    fn spec(&self) -> KernelSpec {
        // So many registers that all loads of a round may be on their way, which the assembler does not see to by itself.
        let sums = sums_of(self.dtype);
        KernelSpec::new(
            format!("{}_gemv_{}_b{}", self.cell.name(), self.dtype, self.batch),
            BlockDim::x(2 * UNITS * WARP),
        )
        .dtypes(
            DTypes::all(self.dtype)
                .with("products", sums)
                .with("next.after", sums)
                .with("next.results.extra", sums),
        )
        .min_blocks_per_sm(2)
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, p: GemvParams<'k>) {
        let Self { cell, dtype, batch: batches } = *self;
        let (gates, thread) = (cell.gates() as u32, k.thread_idx_x());
        let first = k.block_idx_x() * UNITS;
        // What a thread needs to end a step is on its way while the products are computed.
        let (batch, unit) = (thread % batches, first + thread / batches);
        let inside = thread.lt(UNITS * batches) & unit.lt(p.hidden);
        let walk = p.walk();
        p.fetch(k, cell, Unit { inside, batch, unit, length: k.lit(1u32) });

        // [side][unit][gate][batch]
        let slots = k.shared::<A>(2 * UNITS * gates * batches);
        let place = |side: U32<'k>, unit: U32<'k>, gate: u32| {
            (unit + side * UNITS) * (gates * batches) + gate * batches
        };
        let own = k.warp_idx() % UNITS;
        // A warp without a unit reads what another one reads.
        let row = ((first + own).min(p.hidden - 1), p.hidden);
        let side = k.warp_idx() / UNITS;
        let (of_input, of_state) = (side.eq(0), side.ne(0) & walk.has(Flag::H0));
        let sums = vec![k.lit::<A>(0.0); (gates * batches) as usize];
        let sums = self.products::<A>(k, (p.w_ih, p.x), row, (p.input, of_input), sums);
        let sums = self.products::<A>(k, (p.w_hh, p.state.h0), row, (p.hidden, of_state), sums);
        let add = |a: Vec<_>, b: Vec<_>| a.into_iter().zip(b).map(|(a, b)| a + b).collect();
        let sums = k.warp_combine(WARP, sums, add);
        k.if_(k.lane_idx().eq(0), || {
            for (number, sum) in (0..).zip(sums) {
                slots.at(place(side, own, 0) + number).set(sum);
            }
        });
        k.barrier();
        k.if_(inside, || {
            let who = Unit { inside, batch, unit, length: walk.length(batch, inside) };
            let epilogue = p.epilogue(cell, dtype);
            let before = epilogue.before::<A>(k, who);
            let sum = |side: u32, gate| slots.at(place(k.lit(side), unit - first, gate) + batch).get::<A>();
            let sides = |gate| p.sides(gate, unit, [sum(0, gate), sum(1, gate)]);
            let sums: Vec<_> = (0..gates).map(sides).collect();
            epilogue.finish(k, who, &sums, before);
        });
    }
}
