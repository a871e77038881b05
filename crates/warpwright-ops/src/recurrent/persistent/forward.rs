//! The steps of a sequence in one launch: every block keeps the recurrent weights of its units in registers, and the blocks
//! hand each other the hidden state of each step through an [`Exchange`](super::exchange::Exchange).

use warpwright_dsl::prelude::*;
use warpwright_dsl::{WARP, kernel_args};
use warpwright_ptx::{Inst, PrefetchLevel, StateSpace};

use super::exchange::{Reads, Vector};
use super::gemm::{StepGemm, THREADS};
use super::weights::Matrix;
use super::{PassKind, Sequence};
use crate::recurrent::gates::{Cell, Gate};
use crate::recurrent::step::epilogue::{BiasArgs, ResultArgs};
use crate::recurrent::tuning::PersistentConfig;
use crate::recurrent::walk::{Flag, Walk, WalkArgs};
use crate::recurrent::{RecurrentDesc, small};

kernel_args! {
    /// A sequence of `steps`, from the products of its inputs.
    pub(in crate::recurrent) struct SequenceArgs => SequenceParams {
        /// `[row][gates][hidden]`; activated in place if they are kept.
        products: InOut<f32>,
        w_hh: In<Elem>, biases: BiasArgs, h0: In<Elem>, c0: In<Elem>, lengths: In<i32>,
        results: ResultArgs,
        /// Two buffers of a step's words, zero before the launch.
        exchange: InOut<u64>,
        walk: WalkArgs,
    }
}

impl<'k> SequenceParams<'k> {
    const fn walk(&self) -> Walk<'k> {
        self.walk.over(self.lengths)
    }
}

/// Gates of a thread whose addresses it keeps during a product.
const MOST_KEPT: usize = 4;
/// Units of a block in all of its batches from which on a lane has all gates of a unit.
const MANY_UNITS: u32 = 128;

/// From the first step to the last: a block has the rows of the gates of its units, and the hidden states go round.
#[derive(Debug)]
pub(in crate::recurrent) enum ForwardPass {}

impl PassKind for ForwardPass {
    const NAME: &'static str = "persistent";
    const SUMS: &'static [&'static str] = &["results.extra"];

    fn gemm(desc: &RecurrentDesc, config: PersistentConfig) -> StepGemm {
        let rows = config.units * desc.cell.gates() as u32;
        StepGemm::of(desc, config, [rows, small(desc.hidden)])
    }
}

/// A gate of a unit in a batch, or all of them.
struct Item<'k> {
    there: Pred<'k>,
    batch: U32<'k>,
    vector: Vector<'k>,
    /// The row of the block, where there is such a gate.
    row: U32<'k>,
    unit: U32<'k>,
    /// The gate, or the first of all.
    gate: U32<'k>,
}

impl Sequence<ForwardPass> {
    /// Lanes of a unit in a batch: one that has all of its gates, or one for each gate where the block has few of them, or
    /// where they share publishing.
    fn lanes(&self) -> u32 {
        let units = self.config.units * (self.batch / self.config.groups);
        if units >= MANY_UNITS && !self.exchange.shares_publishing() { 1 } else { self.cell.lanes() }
    }

    /// The gates of the thread: of the same unit in several batches, the same one or all. Where they are those of neighbouring
    /// lanes, each keeps the unit's value.
    fn items<'k>(&self, k: K<'k>) -> Vec<Item<'k>> {
        let first_unit = self.exchange.first_unit(k);
        let (lanes, gates) = (self.lanes(), self.cell.gates() as u32);
        let of_batch = self.config.units * lanes;
        let (first, within) = (k.thread_idx() / of_batch, k.thread_idx() % of_batch);
        let (unit, gate) = (within / lanes, within % lanes);
        let (row, unit) = (unit * gates + gate, first_unit + unit);
        let item = |i: u32| {
            let vector = self.exchange.vector(first + i * (THREADS / of_batch), self.batch);
            Item { there: vector.there, batch: vector.batch, vector, row, unit, gate }
        };
        (0..(of_batch * self.vectors()).div_ceil(THREADS)).map(item).collect()
    }

    /// Vectors of a block.
    fn vectors(&self) -> u32 {
        self.exchange.gemm().batch
    }

    /// Gates of a lane.
    fn own_gates(&self) -> u32 {
        if self.lanes() == 1 { self.cell.gates() as u32 } else { 1 }
    }

    /// The biases of gate `own` of a lane: what is added to the products of the input, and to those of the state.
    fn biases<'k>(&self, k: K<'k>, p: &SequenceParams<'k>, item: &Item<'k>, own: u32) -> [F32<'k>; 2] {
        let gate = item.gate + own;
        let at = gate * self.hidden + item.unit;
        let there = self.is_gate(item);
        let read = |from: Ptr<'k, Read, Elem>, flag| {
            from.at(at).only_where(there & p.walk().has(flag), Fill::Zero).get::<f32>()
        };
        let (x, h) = (read(p.biases.b_ih, Flag::BIh), read(p.biases.b_hh, Flag::BHh));
        if !self.cell.splits() {
            return [x + h, k.lit(0.0)];
        }
        let inner = gate.eq(self.cell.gates() as u32 - 1);
        [inner.select(x, x + h), inner.select(h, 0.0)]
    }

    /// Whether the lane has a gate at all.
    fn is_gate<'k>(&self, item: &Item<'k>) -> Pred<'k> {
        let (gates, lanes) = (self.cell.gates() as u32, self.lanes());
        if lanes == 1 || gates == lanes { item.there } else { item.there & item.gate.lt(gates) }
    }

    /// Whether the lane is the one that speaks for its unit.
    fn is_first<'k>(&self, item: &Item<'k>) -> Pred<'k> {
        if self.lanes() == 1 { item.there } else { item.there & item.gate.eq(0) }
    }

    /// Starts to bring the products of the input of step `step` to the L1 cache: those of the block's units, which are
    /// neighbours, for a gate of a vector each.
    fn fetch<'k>(&self, k: K<'k>, p: &SequenceParams<'k>, step: U32<'k>) {
        let (gates, walk) = (self.cell.gates() as u32, p.walk());
        let batch = self.vectors();
        let places = gates * batch;
        for first in (0..places).step_by(THREADS as usize) {
            // Threads that are left bring what the last has to.
            let at = (k.thread_idx() + first).min(places - 1);
            let vector = self.exchange.vector(at % batch, self.batch);
            let row = walk.row(step, vector.batch, walk.length(vector.batch, vector.there));
            let of_gate = row * u64::from(gates) + (at / batch).to_u64();
            let unit = self.exchange.first_unit(k).to_u64();
            let addr = p.products.at(of_gate * u64::from(self.hidden) + unit).operand();
            k.raw(Inst::Prefetch { space: StateSpace::Global, level: PrefetchLevel::L1, addr });
        }
    }

    /// The value of the lane of gate `gate`, for all lanes of its unit.
    fn exchanged<'k>(&self, k: K<'k>, value: F32<'k>, gate: u32) -> F32<'k> {
        if self.lanes() == 1 {
            return value;
        }
        value.shfl_idx((k.lane_idx() & (WARP - self.lanes())) + gate)
    }

    /// A step of a unit from the sums of the lane's gates on the sides of input and state, biases included.
    fn step<'k>(&self, k: K<'k>, item: &Item<'k>, sums: &[(F32<'k>, F32<'k>)], before: F32<'k>) -> Done<'k> {
        let (cell, dtype, gates) = (self.cell, self.dtype, self.cell.gates() as u32);
        if self.lanes() == 1 {
            let alone =
                |(gate, &(x, h)): (usize, &(F32<'k>, F32<'k>))| cell.alone(Gate::Known(gate), x, h, dtype);
            let alone: Vec<_> = sums.iter().enumerate().map(alone).collect();
            let after = cell.together(&alone, sums[sums.len() - 1].1, before, dtype);
            return Done { h: after.h, extra: after.extra, gates: after.gates, own: after.own };
        }
        let (x, sum) = sums[0];
        let alone = cell.alone(Gate::Lane(item.gate), x, sum, dtype);
        let gathered: Vec<F32<'k>> = (0..gates).map(|gate| self.exchanged(k, alone, gate)).collect();
        let inner = if cell.splits() { self.exchanged(k, sum, gates - 1) } else { k.lit(0.0) };
        let after = cell.together(&gathered, inner, before, dtype);
        let gate = match after.gates.last() {
            Some(last) if cell.splits() => item.gate.eq(gates - 1).select(*last, alone),
            _ => alone,
        };
        Done { h: after.h, extra: after.extra, gates: vec![gate], own: after.own }
    }

    /// Stores the results of a step of an item, and the saved state of the backward pass.
    fn settle<'k>(
        &self,
        k: K<'k>,
        p: &SequenceParams<'k>,
        step: U32<'k>,
        (item, (length, row, gates)): (&Item<'k>, At<'k>),
        done: &Done<'k>,
    ) {
        let there = step.lt(length);
        k.if_(self.is_first(item), || {
            let at = p.walk().in_y(row, item.unit);
            p.results.y.at(at).set(there.select(done.h, 0.0));
            k.if_((step + 1).eq(length), || {
                let at = item.batch * self.hidden + item.unit;
                p.results.h_n.at(at).set(done.h);
                if self.cell.has_c() {
                    p.results.c_n.at(at).set(done.own);
                }
            });
        });
        k.if_(self.is_gate(item) & p.walk().has(Flag::Training), || {
            for (gate, value) in (0..).zip(&done.gates) {
                gates.at(gate * u64::from(self.hidden)).set(*value);
            }
            if let Some(extra) = done.extra {
                let at = row * u64::from(self.hidden) + item.unit.to_u64();
                let to = p.results.extra.at(at);
                if self.lanes() == 1 {
                    to.set(extra);
                } else {
                    k.if_(item.gate.eq(0), || to.set(extra));
                }
            }
        });
    }
}

/// The values that pass from step to step, and the inputs of the next that were read ahead.
type Carried<'k> = (Vec<F32<'k>>, Vec<Vec<F32<'k>>>);

/// A step of a gate: the length of its sequence, the row, and the products of the input.
type At<'k> = (U32<'k>, U64<'k>, Ptr<'k, ReadWrite, f32>);

/// A unit after a step, with the gates of the lane.
struct Done<'k> {
    h: F32<'k>,
    extra: Option<F32<'k>>,
    gates: Vec<F32<'k>>,
    /// The value that passes to the next step.
    own: F32<'k>,
}

impl KernelDef for Sequence<ForwardPass> {
    type Args = SequenceArgs;

    fn spec(&self) -> KernelSpec {
        self.kernel_spec()
    }

    fn build<'k>(&self, k: K<'k>, p: SequenceParams<'k>) {
        let (cell, exchange) = (self.cell, self.exchange.as_ref());
        let (gates, reads) = (cell.gates() as u32, exchange.reads());
        let first_unit = exchange.first_unit(k);
        let walk = p.walk();
        let all = self.items(k);
        let zero = k.lit(0.0f32);
        let state_at = |item: &Item<'k>| item.batch * self.hidden + item.unit;
        let own_gates = self.own_gates();
        let bias: Vec<_> = (0..own_gates).map(|gate| self.biases(k, &p, &all[0], gate)).collect();
        let memory = exchange.own(k, p.exchange);
        let start = |from: Ptr<'k, Read, Elem>, flag| -> Vec<F32<'k>> {
            let one = |item: &Item<'k>| {
                from.at(state_at(item)).only_where(item.there & p.walk().has(flag), Fill::Zero).get()
            };
            all.iter().map(one).collect()
        };
        let h0 = start(p.h0, Flag::H0);
        let own = match cell {
            Cell::Lstm => start(p.c0, Flag::C0),
            _ => h0.clone(),
        };
        let publish = |step: U32<'k>, item: &Item<'k>, h: F32<'k>| {
            let slot = exchange.slot(memory, step);
            let there = if exchange.shares_publishing() { item.vector.held } else { self.is_first(item) };
            exchange.publish(slot, (item.vector.at, item.unit), &[h], (there, self.lanes()));
        };
        exchange.begin(k);
        for (item, h) in all.iter().zip(&h0).filter(|_| exchange.publishes_first()) {
            publish(k.lit(0u32), item, *h);
        }
        exchange.commit(k, memory, k.lit(0u32));
        for ((item, h), own) in all.iter().zip(&h0).zip(&own) {
            let length = walk.length(item.batch, item.there);
            k.if_(self.is_first(item) & length.eq(0), || {
                p.results.h_n.at(state_at(item)).set(*h);
                if cell.has_c() {
                    p.results.c_n.at(state_at(item)).set(*own);
                }
            });
        }
        let element = |row: U32<'k>, depth: U32<'k>| {
            let (unit, gate) = (row / gates, row % gates);
            let row = gate * self.hidden + first_unit + unit;
            row.to_u64() * u64::from(self.hidden) + depth.to_u64()
        };
        let weights = exchange.load(k, &Matrix { elements: p.w_hh, at: &element, dense: true });
        let lengths = all.iter().map(|item| walk.length(item.batch, item.there));
        let lengths: Option<Vec<_>> = (reads == Reads::Ahead).then(|| lengths.collect());
        let place = |step: U32<'k>, (i, item): (usize, &Item<'k>)| {
            let length = match &lengths {
                Some(lengths) => lengths[i],
                None => walk.length(item.batch, item.there),
            };
            let row = walk.row(step, item.batch, length);
            let at = (row * u64::from(gates) + item.gate.to_u64()) * u64::from(self.hidden);
            (length, row, p.products.at(at + item.unit.to_u64()))
        };
        // A few addresses are kept while the block waits; many are less work to compute again.
        let keeps = all.len() <= MOST_KEPT;
        let input = |step: U32<'k>, item: (usize, &Item<'k>), there: Option<Pred<'k>>| {
            let place = place(step, item);
            let of_gate = |gate: u32| {
                let from = place.2.at(u64::from(gate * self.hidden));
                let gate = self.is_gate(item.1);
                let there = there.map_or(gate, |there| there & gate);
                from.only_where(there, Fill::Zero).get::<f32>()
            };
            (place, (0..own_gates).map(of_gate).collect::<Vec<_>>())
        };
        let ahead = |step: U32<'k>| -> Vec<Vec<F32<'k>>> {
            if reads != Reads::Ahead {
                return Vec::new();
            }
            let there = step.lt(p.walk.steps);
            all.iter().enumerate().map(|item| input(step, item, Some(there)).1).collect()
        };
        let own = if cell.carries() { own } else { Vec::new() };
        let start = (own, ahead(k.lit(0u32)));
        k.fold(k.range(0, p.walk.steps, 1), start, |step, (before, given): Carried<'k>| {
            let next = ahead(step + 1);
            let read = || -> Vec<_> { all.iter().enumerate().map(|item| input(step, item, None)).collect() };
            let early = (reads == Reads::Before).then(read);
            if reads == Reads::Behind {
                self.fetch(k, &p, (step + 1).min(p.walk.steps - 1));
            }
            let sums = weights.multiply(memory, step);
            let known =
                || all.iter().enumerate().zip(given).map(|(item, x)| (place(step, item), x)).collect();
            let inputs = if reads == Reads::Ahead { known() } else { early.unwrap_or_else(read) };
            let mut done = Vec::new();
            for (i, (item, (_, inputs))) in all.iter().zip(&inputs).enumerate() {
                let products = sums.of_rows(item.vector.at, item.row, own_gates, self.is_gate(item));
                let sides = inputs.iter().zip(products).zip(&bias);
                let sides: Vec<_> = sides.map(|((x, h), bias)| (*x + bias[0], h + bias[1])).collect();
                let after = self.step(k, item, &sides, if cell.carries() { before[i] } else { zero });
                publish(step + 1, item, after.h);
                done.push(after);
            }
            exchange.commit(k, memory, step + 1);
            for ((item, (kept, _)), done) in all.iter().enumerate().zip(inputs).zip(&done) {
                let place = if keeps { kept } else { place(step, item) };
                self.settle(k, &p, step, (item.1, place), done);
            }
            let own = done.iter().filter(|_| cell.carries()).map(|done| done.own);
            (own.collect(), next)
        });
        exchange.end(k, memory, p.walk.steps);
    }
}
