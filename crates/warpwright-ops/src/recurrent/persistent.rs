//! The steps of a sequence in one launch: every block keeps the recurrent weights of its units in registers, and the blocks
//! hand each other the hidden state of each step as [`Product`] says.

use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;

use super::cell::{Cell, Gate};
use super::exchange::{Matrix, Product, THREADS, WARP};
use super::tuning::PersistentConfig;
use super::walk::{self, Walk, has, walk};

kernel_args! {
    /// A sequence of `steps`, from the products of its inputs.
    pub(super) struct SequenceArgs => SequenceParams {
        /// `[row][gates][hidden]`; activated in place if they are kept.
        products: InOut<f32>,
        w_hh: In<Elem>, b_ih: In<Elem>, b_hh: In<Elem>, h0: In<Elem>, c0: In<Elem>, lengths: In<i32>,
        y: Out<Elem>, h_n: Out<Elem>, c_n: Out<Elem>,
        /// `[row][hidden]`
        extra: Out<f32>,
        /// Two buffers of a step's words, zero before the launch.
        exchange: InOut<u64>,
        steps: u32, row_step: u32, row_batch: u32, y_row: u32, flags: u32,
    }
}

/// Gates of a thread whose places it keeps during a product.
const MOST_KEPT: usize = 4;

/// A sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sequence {
    pub(super) cell: Cell,
    pub(super) dtype: DType,
    pub(super) hidden: u32,
    pub(super) batch: u32,
    pub(super) config: PersistentConfig,
}

/// A gate of a unit in a batch.
struct Item<'k> {
    there: Pred<'k>,
    batch: U32<'k>,
    /// The row of the block, where there is such a gate.
    row: U32<'k>,
    unit: U32<'k>,
    gate: U32<'k>,
}

impl Sequence {
    /// The product of a step.
    pub(super) fn product(&self) -> Product {
        let rows = self.config.units * self.cell.gates() as u32;
        let PersistentConfig { units, exchange } = self.config;
        let (hidden, batch) = (self.hidden, self.batch);
        Product { dtype: self.dtype, rows, depth: hidden, batch, hidden, units, exchange }
    }

    /// The gates of the thread, the same gate of the same unit in several batches. Those of a unit are neighbouring lanes, which
    /// all keep its value.
    fn items<'k>(&self, k: K<'k>, first_unit: U32<'k>) -> Vec<Item<'k>> {
        let (lanes, gates) = (self.cell.lanes(), self.cell.gates() as u32);
        let of_batch = self.config.units * lanes;
        let (first, within) = (k.thread_idx() / of_batch, k.thread_idx() % of_batch);
        let (unit, gate) = (within / lanes, within % lanes);
        let (row, unit) = (unit * gates + gate, first_unit + unit);
        let item = |i: u32| {
            let batch = first + i * (THREADS / of_batch);
            Item { there: batch.lt(self.batch), batch, row, unit, gate }
        };
        (0..(of_batch * self.batch).div_ceil(THREADS)).map(item).collect()
    }

    /// The biases of a gate: what is added to the products of the input, and to those of the state.
    fn biases<'k>(&self, k: K<'k>, p: &SequenceParams<'k>, item: &Item<'k>) -> [F32<'k>; 2] {
        let at = item.gate * self.hidden + item.unit;
        let there = self.is_gate(item);
        let read = |from: Ptr<'k, Read, Elem>, bit| {
            from.at(at).only_where(there & has(p.flags, bit), Fill::Zero).get::<f32>()
        };
        let (x, h) = (read(p.b_ih, walk::HAS_B_IH), read(p.b_hh, walk::HAS_B_HH));
        if !self.cell.splits() {
            return [x + h, k.lit(0.0)];
        }
        let inner = item.gate.eq(self.cell.gates() as u32 - 1);
        [inner.select(x, x + h), inner.select(h, 0.0)]
    }

    /// Whether the lane has a gate at all.
    fn is_gate<'k>(&self, item: &Item<'k>) -> Pred<'k> {
        let gates = self.cell.gates() as u32;
        if gates == self.cell.lanes() { item.there } else { item.there & item.gate.lt(gates) }
    }

    /// What goes from lane to lane of a unit.
    fn exchanged<'k>(&self, k: K<'k>, value: F32<'k>, gate: u32) -> F32<'k> {
        if self.cell.lanes() == 1 {
            return value;
        }
        value.shfl_idx((k.lane_idx() & (WARP - self.cell.lanes())) + gate)
    }

    fn body<'k>(&self, k: K<'k>, p: SequenceParams<'k>) {
        let (cell, product) = (self.cell, self.product());
        let gates = cell.gates() as u32;
        let first_unit = k.block_idx_x() * self.config.units;
        let walk = walk!(p);
        let all = self.items(k, first_unit);
        let zero = k.lit(0.0f32);
        let state_at = |item: &Item<'k>| item.batch * self.hidden + item.unit;
        let bias = self.biases(k, &p, &all[0]);
        let start = |from: Ptr<'k, Read, Elem>, bit| -> Vec<F32<'k>> {
            let one = |item: &Item<'k>| {
                from.at(state_at(item)).only_where(item.there & has(p.flags, bit), Fill::Zero).get()
            };
            all.iter().map(one).collect()
        };
        let h0 = start(p.h0, walk::HAS_H0);
        let own = match cell {
            Cell::Lstm => start(p.c0, walk::HAS_C0),
            _ => h0.clone(),
        };
        let hand = |step: U32<'k>, item: &Item<'k>, h: F32<'k>| {
            let slot = product.slot(p.exchange, step);
            let who = (item.there & item.gate.eq(0), cell.lanes());
            product.hand(slot, item.batch, item.unit, &[h], who);
        };
        for (item, h) in all.iter().zip(&h0) {
            hand(k.lit(0u32), item, *h);
        }
        product.handed(k, p.exchange, k.lit(0u32));
        for ((item, h), own) in all.iter().zip(&h0).zip(&own) {
            let length = walk.length(item.batch, item.there);
            k.if_(item.there & item.gate.eq(0) & length.eq(0), || {
                p.h_n.at(state_at(item)).set(*h);
                if cell.has_c() {
                    p.c_n.at(state_at(item)).set(*own);
                }
            });
        }
        let element = |row: U32<'k>, depth: U32<'k>| {
            let (unit, gate) = (row / gates, row % gates);
            let row = gate * self.hidden + first_unit + unit;
            row.to_u64() * u64::from(self.hidden) + depth.to_u64()
        };
        let weights = product.weights(k, &Matrix { elements: p.w_hh, at: element, dense: true });
        // Where a step of a gate is: the length of its sequence, the row, and the products of the input.
        let place = |step: U32<'k>, item: &Item<'k>| {
            let length = walk.length(item.batch, item.there);
            let row = walk.row(step, item.batch, length);
            let at = (row * u64::from(gates) + item.gate.to_u64()) * u64::from(self.hidden);
            (length, row, p.products.at(at + item.unit.to_u64()))
        };
        // Few places are kept while the block waits; of many it is less work to find them again.
        let keeps = all.len() <= MOST_KEPT;
        // Beside weights that take all they can there is no room even for the products of the input.
        let reads_early = keeps || product.stored() == 0;
        let carried = if cell.carries() { own } else { Vec::new() };
        k.fold(k.range(0, p.steps, 1), carried, |step, before: Vec<F32<'k>>| {
            let read = || -> Vec<_> {
                let read = |item: &Item<'k>| {
                    let place = place(step, item);
                    (place, place.2.only_where(self.is_gate(item), Fill::Zero).get::<f32>())
                };
                all.iter().map(read).collect()
            };
            let early = reads_early.then(read);
            let sums = product.multiply(k, p.exchange, step, &weights);
            let inputs = early.unwrap_or_else(read);
            let mut done = Vec::new();
            for (i, (item, &(_, x))) in all.iter().zip(&inputs).enumerate() {
                let sum = sums.of(item.batch, item.row, self.is_gate(item)) + bias[1];
                let alone = cell.alone(Gate::Lane(item.gate), x + bias[0], sum, self.dtype);
                let gathered: Vec<F32<'k>> = (0..gates).map(|gate| self.exchanged(k, alone, gate)).collect();
                let inner = if cell.splits() { self.exchanged(k, sum, gates - 1) } else { zero };
                let before = before.get(i).copied().unwrap_or(zero);
                let after = cell.together(&gathered, inner, before, self.dtype);
                hand(step + 1, item, after.h);
                let last = after.gates.last().copied().unwrap_or(alone);
                let gate = if cell.splits() { item.gate.eq(gates - 1).select(last, alone) } else { alone };
                done.push(Done { h: after.h, extra: after.extra, gate });
            }
            product.handed(k, p.exchange, step + 1);
            for ((item, (kept, _)), done) in all.iter().zip(inputs).zip(&done) {
                let (length, row, gates) = if keeps { kept } else { place(step, item) };
                let there = step.lt(length);
                k.if_(item.there & item.gate.eq(0), || {
                    let at = row * p.y_row.to_u64() + item.unit.to_u64();
                    p.y.at(at).set(there.select(done.h, 0.0));
                    k.if_((step + 1).eq(length), || {
                        p.h_n.at(state_at(item)).set(done.h);
                        if cell.has_c() {
                            p.c_n.at(state_at(item)).set(done.own(cell));
                        }
                    });
                });
                k.if_(self.is_gate(item) & has(p.flags, walk::TRAINING), || {
                    gates.set(done.gate);
                    if let Some(extra) = done.extra {
                        let at = row * u64::from(self.hidden) + item.unit.to_u64();
                        k.if_(item.gate.eq(0), || p.extra.at(at).set(extra));
                    }
                });
            }
            let own = done.iter().filter(|_| cell.carries()).map(|done| done.own(cell));
            own.collect::<Vec<_>>()
        });
    }
}

/// What a lane has of a unit after a step: its gate is that of the lane.
struct Done<'k> {
    h: F32<'k>,
    extra: Option<F32<'k>>,
    gate: F32<'k>,
}

impl<'k> Done<'k> {
    /// What passes to the next step.
    fn own(&self, cell: Cell) -> F32<'k> {
        self.extra.filter(|_| cell.has_c()).unwrap_or(self.h)
    }
}

impl KernelDef for Sequence {
    type Args = SequenceArgs;

    fn name(&self) -> String {
        let Self { cell, dtype, hidden, batch, config } = self;
        format!("{}_sequence_{dtype}_h{hidden}_b{batch}_{config}", cell.name())
    }

    fn block(&self) -> BlockDim {
        BlockDim::x(THREADS)
    }

    fn dtypes(&self) -> DTypes {
        DTypes::all(self.dtype)
    }

    fn min_blocks_per_sm(&self) -> Option<u32> {
        Some(1)
    }

    fn build<'k>(&self, k: K<'k>, p: SequenceParams<'k>) {
        self.body(k, p);
    }
}
