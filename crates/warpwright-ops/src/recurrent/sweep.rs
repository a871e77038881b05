//! The steps of a sequence backward in one launch: every block keeps the columns of the recurrent weights of its units in
//! registers, and the blocks hand each other the gradients of the gates of each step as [`Product`] says.

use warpwright_dsl::kernel_args;
use warpwright_dsl::prelude::*;

use super::cell::Cell;
use super::cluster::Vector;
use super::exchange::{Matrix, Product, Sums, THREADS};
use super::saved::{SavedArgs, SavedState, Unit};
use super::tuning::{Exchange, PersistentConfig};
use super::walk::{Flag, Walk, WalkArgs};
use crate::gemm::Precision;

kernel_args! {
    /// A sequence of `steps`, from the last to the first; see [`pointwise`](super::pointwise) for the shapes.
    pub(super) struct SweepArgs => SweepParams {
        w_hh: In<Elem>, saved: SavedArgs,
        dx: Out<Elem>, dh: Out<Elem>, before: Out<Elem>, dh0: Out<Elem>, dc0: Out<Elem>,
        /// Two buffers of a step's words, zero before the launch.
        exchange: InOut<u64>,
        walk: WalkArgs,
    }
}

/// A sequence backward.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sweep {
    pub(super) cell: Cell,
    pub(super) dtype: DType,
    pub(super) hidden: u32,
    pub(super) batch: u32,
    pub(super) precision: Precision,
    pub(super) config: PersistentConfig,
}

/// A unit of the block in a batch.
struct Item<'k> {
    inside: Pred<'k>,
    batch: U32<'k>,
    vector: Vector<'k>,
    row: U32<'k>,
    unit: U32<'k>,
}

/// What passes from step to step, and what was read of the next.
type Carried<'k> = (Vec<F32<'k>>, Vec<Vec<F32<'k>>>);

impl Sweep {
    /// The product of a step.
    pub(super) fn product(&self) -> Product {
        let depth = self.hidden * self.cell.gates() as u32;
        let PersistentConfig { units, groups, exchange } = self.config;
        let (hidden, batch) = (self.hidden, exchange.batch(self.batch / groups));
        let rounds = exchange.rounds(self.precision);
        Product { dtype: self.dtype, rows: units, depth, batch, hidden, units, groups, exchange, rounds }
    }

    /// The units of the thread: the same in several batches.
    fn items<'k>(&self, k: K<'k>, product: &Product) -> Vec<Item<'k>> {
        let first_unit = product.first_unit(k);
        let units = self.config.units;
        let (first, row) = (k.thread_idx() / units, k.thread_idx() % units);
        let item = |i: u32| {
            let vector = product.vector(first + i * (THREADS / units), self.batch);
            Item { inside: vector.there, batch: vector.batch, vector, row, unit: first_unit + row }
        };
        (0..(units * product.batch).div_ceil(THREADS)).map(item).collect()
    }

    fn body<'k>(&self, k: K<'k>, p: SweepParams<'k>) {
        let (cell, product) = (self.cell, self.product());
        let gates = cell.gates();
        let in_cluster = matches!(self.config.exchange, Exchange::Cluster(_));
        let first_unit = product.first_unit(k);
        let walk = p.walk.over(p.saved.lengths);
        let (dtype, hidden) = (self.dtype, k.lit(self.hidden));
        let saved = SavedState { cell, dtype, projected: false, hidden, walk, tensors: p.saved };
        let all = self.items(k, &product);
        let zero = k.lit(0.0f32);
        let exchange = product.own(k, p.exchange);
        let hand = |turn: U32<'k>, item: &Item<'k>, values: &[F32<'k>]| {
            let there = item.vector.held;
            product.hand(product.slot(exchange, turn), item.vector.at, item.unit, values, (there, 1));
        };
        product.begin(k);
        // Behind the last step there is nothing; with tags that has been left before.
        let first = all.iter().filter(|_| self.config.exchange != Exchange::Tags);
        first.for_each(|item| hand(k.lit(0u32), item, &vec![zero; gates]));
        product.handed(k, exchange, k.lit(0u32));
        let element = |row: U32<'k>, depth: U32<'k>| {
            product.origin(depth).to_u64() * u64::from(self.hidden) + (first_unit + row).to_u64()
        };
        let weights = product.weights(k, &Matrix { elements: p.w_hh, at: element, dense: false });
        let lengths = all.iter().map(|item| walk.length(item.batch, item.inside));
        let lengths: Option<Vec<_>> = in_cluster.then(|| lengths.collect());
        let who = |(i, item): (usize, &Item<'k>)| {
            let Item { inside, batch, unit, .. } = *item;
            let length = match &lengths {
                Some(lengths) => lengths[i],
                None => walk.length(batch, inside),
            };
            Unit { inside, batch, unit, length }
        };
        // A step within a cluster is shorter than the way from memory: what the forward pass left is read a step ahead.
        let ahead = |step: U32<'k>| -> Vec<Vec<F32<'k>>> {
            let items = all.iter().enumerate().filter(|_| in_cluster);
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
                let sums = product.multiply(k, exchange, turn, &weights);
                let (mut next, mut done) = (Vec::new(), Vec::new());
                for (i, (item, known)) in all.iter().zip(&known).enumerate() {
                    let recurrent = sums.of(item.vector.at, item.row, known.later);
                    let carry = carried.get(i).map_or(zero, |carry| known.later.select(*carry, 0.0));
                    let gradient = saved.gradient(known, recurrent, carry);
                    let values: Vec<_> = known.sides(&gradient).collect();
                    hand(turn + 1, item, &values.iter().map(|(_, inner)| *inner).collect::<Vec<_>>());
                    done.push(values);
                    if cell.carries() {
                        next.push(gradient.carry);
                    }
                }
                product.handed(k, exchange, turn + 1);
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
        let sums = product.multiply(k, exchange, p.walk.steps, &weights);
        for (i, item) in all.iter().enumerate() {
            self.start(k, &p, &walk, item, &sums, carried.get(i).copied().unwrap_or(zero));
        }
    }

    /// The gradients of the first state of a unit.
    fn start<'k>(
        &self,
        k: K<'k>,
        p: &SweepParams<'k>,
        walk: &Walk<'k>,
        item: &Item<'k>,
        sums: &Sums<'k>,
        carry: F32<'k>,
    ) {
        // A sequence without places ends as it begins.
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

impl KernelDef for Sweep {
    type Args = SweepArgs;

    fn spec(&self) -> KernelSpec {
        let Self { cell, hidden, batch, config, .. } = self;
        KernelSpec::new(
            format!("{}_sweep_{}_h{hidden}_b{batch}_{config}", cell.name(), self.product().factors()),
            BlockDim::x(THREADS),
        )
        .dtypes(DTypes::all(self.dtype).with("saved.gates", DType::F32).with("saved.extra", DType::F32))
        .min_blocks_per_sm(1)
        .cluster(self.product().cluster())
    }

    fn build<'k>(&self, k: K<'k>, p: SweepParams<'k>) {
        self.body(k, p);
    }
}
