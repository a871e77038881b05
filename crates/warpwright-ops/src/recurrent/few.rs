//! A single step of few sequences in one launch: a warp reads the rows of the weights that belong to a unit, and multiplies
//! them with the inputs and states of all sequences.

use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;

use super::cell::Cell;
use super::landing::{Landing, landing};
use super::trail::Unit;
use super::walk::{self, Walk, has, walk};
use super::{WIDE, sums_of};

/// Most sequences.
pub(super) const MOST_BATCH: usize = 8;
/// Units of a block, a warp each.
const UNITS: u32 = 4;
const WARP: u32 = 32;

kernel_args! {
    /// A step of few sequences.
    pub(super) struct FewArgs => FewParams {
        /// `[batch][input]`
        x: In<Elem>,
        /// `[gates][hidden][input]` and `[gates][hidden][hidden]`
        w_ih: In<Elem>, w_hh: In<Elem>,
        b_ih: In<Elem>, b_hh: In<Elem>,
        /// As those of [`ForwardArgs`](super::pointwise::ForwardArgs).
        before: In<Elem>, h0: In<Elem>, lengths: In<i32>,
        products: InOut<Elem>, after: Out<Elem>, h: Out<Elem>,
        y: Out<Elem>, h_n: Out<Elem>, c_n: Out<Elem>, extra: Out<Elem>,
        input: u32, hidden: u32, step: u32, steps: u32, row_step: u32, row_batch: u32, y_row: u32, flags: u32,
    }
}

/// A step of few sequences.
#[derive(Clone, Copy, Debug)]
pub(super) struct Few {
    pub(super) cell: Cell,
    pub(super) dtype: DType,
    /// Sequences, at most [`MOST_BATCH`].
    pub(super) batch: u32,
}

impl Few {
    /// Blocks for `hidden` units.
    pub(super) const fn blocks(hidden: u32) -> u32 {
        hidden.div_ceil(UNITS)
    }

    /// Elements of a load.
    pub(super) const fn width(dtype: DType) -> usize {
        WIDE as usize / dtype.bytes()
    }

    /// The products of a unit's rows with the vectors of all sequences, `[gate][batch]`: what the lane has of them. What is
    /// loaded together is `depth` elements a vector.
    fn products<'k, A: Float>(
        &self,
        k: K<'k>,
        (weights, vectors): (Ptr<'k, Read, Elem>, Ptr<'k, Read, Elem>),
        (unit, hidden): (U32<'k>, U32<'k>),
        (depth, given): (U32<'k>, Pred<'k>),
    ) -> Vec<Reg<'k, A>>
    where
        Elem: Access<A>,
    {
        let width = Self::width(self.dtype) as u32;
        // Loads of weights that are on their way together, for each gate.
        let together = if self.batch <= 2 { 4 } else { 2 };
        let zeros = vec![k.lit::<A>(0.0); self.cell.gates() * self.batch as usize];
        let own = k.lane_idx() * width;
        let end = given.select(depth, 0u32);
        k.fold(k.range(0, end, WARP * width * together), zeros, |start, sums| {
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

    fn body<'k, A: Float>(&self, k: K<'k>, p: FewParams<'k>)
    where
        Elem: Access<A>,
    {
        let Self { cell, dtype, batch: batches } = *self;
        let own = k.block_idx_x() * UNITS + k.warp_idx();
        // A warp without a unit reads what another one reads.
        let unit = own.min(p.hidden - 1);
        let always = p.hidden.ne(0);
        let rows = (unit, p.hidden);
        let of_x = self.products::<A>(k, (p.w_ih, p.x), rows, (p.input, always));
        let of_h = self.products::<A>(k, (p.w_hh, p.h0), rows, (p.hidden, has(p.flags, walk::HAS_H0)));
        let all: Vec<_> = of_x.into_iter().chain(of_h).collect();
        let all = k.warp_combine(WARP, all, |a, b| a.into_iter().zip(b).map(|(a, b)| a + b).collect());
        let (of_x, of_h) = all.split_at(cell.gates() * batches as usize);
        let batch = k.lane_idx();
        let inside = own.lt(p.hidden) & batch.lt(batches);
        k.if_(inside, || {
            let bias = |pointer: Ptr<'k, Read, Elem>, gate: usize, bit| {
                let from = pointer.at(p.hidden * gate as u32 + unit);
                from.only_where(has(p.flags, bit), Fill::Zero).get::<A>()
            };
            // A lane takes the sums of its sequence.
            let chosen = |sums: &[Reg<'k, A>]| {
                let others = (1u32..).zip(&sums[1..]);
                others.fold(sums[0], |sum, (number, other)| batch.eq(number).select(*other, sum))
            };
            let sums = of_x.chunks(batches as usize).zip(of_h.chunks(batches as usize)).enumerate();
            let sums = sums.map(|(gate, (x, h))| {
                let x = chosen(x) + bias(p.b_ih, gate, walk::HAS_B_IH);
                (x, chosen(h) + bias(p.b_hh, gate, walk::HAS_B_HH))
            });
            let sums: Vec<_> = sums.collect();
            let walk = walk!(p);
            let length = walk.length(batch, inside);
            landing!(p, cell, dtype, true, walk).finish(k, Unit { inside, batch, unit, length }, &sums);
        });
    }
}

impl KernelDef for Few {
    type Args = FewArgs;

    fn name(&self) -> String {
        format!("{}_few_{}_b{}", self.cell.name(), self.dtype, self.batch)
    }

    fn block(&self) -> BlockDim {
        BlockDim::x(UNITS * WARP)
    }

    fn dtypes(&self) -> DTypes {
        let sums = sums_of(self.dtype);
        DTypes::all(self.dtype).with("products", sums).with("after", sums).with("extra", sums)
    }

    fn build<'k>(&self, k: K<'k>, p: FewParams<'k>) {
        accumulate!(self.dtype, |A| self.body::<A>(k, p));
    }
}
