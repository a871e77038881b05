//! The steps of a sequence backward in one launch: every block keeps the columns of the recurrent weights of its units in
//! registers, and the blocks hand each other the gradients of the gates of each step through an
//! [`Exchange`](super::exchange::Exchange).

use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;

use super::exchange::{Reads, Vector};
use super::gemm::{StepGemm, Sums, THREADS};
use super::weights::Matrix;
use super::{PassKind, Sequence};
use crate::recurrent::gates::Cell;
use crate::recurrent::step::saved::{SavedArgs, SavedState, Unit};
use crate::recurrent::tuning::PersistentConfig;
use crate::recurrent::walk::{Flag, Walk, WalkArgs};
use crate::recurrent::{RecurrentDesc, small};

kernel_args! {
    /// A sequence of `steps`, from the last to the first; see `step::pointwise` for the shapes.
    pub(in crate::recurrent) struct SequenceBackwardArgs => SequenceBackwardParams {
        w_hh: In<Elem>, saved: SavedArgs,
        dx: Out<Elem>, dh: Out<Elem>, before: Out<Elem>, dh0: Out<Elem>, dc0: Out<Elem>,
        /// Two buffers of a step's words, zero before the launch.
        exchange: InOut<u64>,
        walk: WalkArgs,
    }
}

/// From the last step to the first: a block has the columns of its units, and the gradients of all gates go round.
#[derive(Debug)]
pub(in crate::recurrent) enum BackwardPass {}

impl PassKind for BackwardPass {
    const NAME: &'static str = "persistent_backward";
    const SUMS: &'static [&'static str] = &["saved.gates", "saved.extra"];

    fn gemm(desc: &RecurrentDesc, config: PersistentConfig) -> StepGemm {
        StepGemm::of(desc, config, [config.units, small(desc.wide())])
    }
}

/// A unit of the block in a batch.
struct Item<'k> {
    inside: Pred<'k>,
    batch: U32<'k>,
    vector: Vector<'k>,
    row: U32<'k>,
    unit: U32<'k>,
}

/// The values that pass from step to step, and the saved state of the next that was read ahead.
type Carried<'k> = (Vec<F32<'k>>, Vec<Vec<F32<'k>>>);

impl Sequence<BackwardPass> {
    /// The units of the thread: the same in several batches.
    fn items<'k>(&self, k: K<'k>) -> Vec<Item<'k>> {
        let first_unit = self.exchange.first_unit(k);
        let units = self.config.units;
        let (first, row) = (k.thread_idx() / units, k.thread_idx() % units);
        let item = |i: u32| {
            let vector = self.exchange.vector(first + i * (THREADS / units), self.batch);
            Item { inside: vector.there, batch: vector.batch, vector, row, unit: first_unit + row }
        };
        (0..(units * self.exchange.gemm().batch).div_ceil(THREADS)).map(item).collect()
    }

    /// The gradients of the first state of a unit.
    fn start<'k>(
        &self,
        k: K<'k>,
        p: &SequenceBackwardParams<'k>,
        walk: &Walk<'k>,
        item: &Item<'k>,
        sums: &Sums<'k>,
        carry: F32<'k>,
    ) {
        // A sequence without time steps ends as it begins.
        let any = walk.length(item.batch, item.inside).ne(0);
        let at = item.batch * self.hidden + item.unit;
        let end = |from: Ptr<'k, Read, Elem>, flag| {
            from.at(at).only_where(item.inside & !any & walk.has(flag), Fill::Zero).get::<f32>()
        };
        k.if_(item.inside & walk.has(Flag::H0), || {
            let back = sums.of(item.vector.at, item.row, any);
            let back = if self.cell == Cell::Gru { back + carry } else { back };
            p.dh0.at(at).set(any.select(back, end(p.saved.dh_n, Flag::DhN)));
        });
        if self.cell.has_c() {
            k.if_(item.inside & walk.has(Flag::C0), || {
                p.dc0.at(at).set(any.select(carry, end(p.saved.dc_n, Flag::DcN)));
            });
        }
    }
}

impl KernelDef for Sequence<BackwardPass> {
    type Args = SequenceBackwardArgs;

    fn spec(&self) -> KernelSpec {
        self.kernel_spec()
    }

    fn build<'k>(&self, k: K<'k>, p: SequenceBackwardParams<'k>) {
        let (cell, exchange) = (self.cell, self.exchange.as_ref());
        let gates = cell.gates();
        let reads_ahead = exchange.reads() == Reads::Ahead;
        let first_unit = exchange.first_unit(k);
        let walk = p.walk.over(p.saved.lengths);
        let (dtype, hidden) = (self.dtype, k.lit(self.hidden));
        let saved = SavedState { cell, dtype, projected: false, hidden, walk, tensors: p.saved };
        let all = self.items(k);
        let zero = k.lit(0.0f32);
        let memory = exchange.own(k, p.exchange);
        let publish = |turn: U32<'k>, item: &Item<'k>, values: &[F32<'k>]| {
            let there = item.vector.held;
            exchange.publish(exchange.slot(memory, turn), (item.vector.at, item.unit), values, (there, 1));
        };
        exchange.begin(k);
        // Behind the last step there is nothing.
        let first = all.iter().filter(|_| exchange.publishes_first());
        first.for_each(|item| publish(k.lit(0u32), item, &vec![zero; gates]));
        exchange.commit(k, memory, k.lit(0u32));
        let element = |row: U32<'k>, depth: U32<'k>| {
            exchange.row_of(depth).to_u64() * u64::from(self.hidden) + (first_unit + row).to_u64()
        };
        let weights = exchange.load(k, &Matrix { elements: p.w_hh, at: &element, dense: false });
        let lengths = all.iter().map(|item| walk.length(item.batch, item.inside));
        let lengths: Option<Vec<_>> = reads_ahead.then(|| lengths.collect());
        let who = |(i, item): (usize, &Item<'k>)| {
            let Item { inside, batch, unit, .. } = *item;
            let length = match &lengths {
                Some(lengths) => lengths[i],
                None => walk.length(batch, inside),
            };
            Unit { inside, batch, unit, length }
        };
        let ahead = |step: U32<'k>| -> Vec<Vec<F32<'k>>> {
            let items = all.iter().enumerate().filter(|_| reads_ahead);
            items.map(|item| saved.known::<f32>(k, step, who(item)).values()).collect()
        };
        let carried = if cell.carries() { vec![zero; all.len()] } else { Vec::new() };
        let start = (carried, ahead(p.walk.steps - 1));
        let (carried, _) =
            k.fold(k.range(0, p.walk.steps, 1), start, |turn, (carried, read): Carried<'k>| {
                let step = p.walk.steps - 1 - turn;
                let early = ahead(step - 1);
                let known = |item: (usize, &Item<'k>)| match read.get(item.0) {
                    Some(values) => saved.place_of(step, who(item)).known(cell, values),
                    None => saved.known::<f32>(k, step, who(item)),
                };
                let known: Vec<_> = all.iter().enumerate().map(known).collect();
                let sums = weights.multiply(memory, turn);
                let (mut next, mut done) = (Vec::new(), Vec::new());
                for (i, (item, known)) in all.iter().zip(&known).enumerate() {
                    let recurrent = sums.of(item.vector.at, item.row, known.later);
                    let carry = if cell.carries() { known.later.select(carried[i], 0.0) } else { zero };
                    let gradient = saved.gradient(known, recurrent, carry);
                    let values: Vec<_> = known.sides(&gradient).collect();
                    publish(turn + 1, item, &values.iter().map(|(_, inner)| *inner).collect::<Vec<_>>());
                    done.push(values);
                    if cell.carries() {
                        next.push(gradient.carry);
                    }
                }
                exchange.commit(k, memory, turn + 1);
                for ((item, known), values) in all.iter().zip(&known).zip(&done) {
                    k.if_(item.inside, || {
                        for (gate, (value, inner)) in values.iter().enumerate() {
                            p.dx.at(saved.gate(known.row, gate, item.unit)).set(*value);
                            if cell.splits() {
                                p.dh.at(saved.gate(known.row, gate, item.unit)).set(*inner);
                            }
                        }
                        p.before.at(saved.place(known.row, item.unit)).set(known.h_before);
                    });
                }
                (next, early)
            });
        let sums = weights.multiply(memory, p.walk.steps);
        for (i, item) in all.iter().enumerate() {
            let carry = if cell.carries() { carried[i] } else { zero };
            self.start(k, &p, &walk, item, &sums, carry);
        }
    }
}
