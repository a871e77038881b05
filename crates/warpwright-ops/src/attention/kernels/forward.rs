//! The forward kernel: one pass over keys and values with a running maximum and sum for each query.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{accumulate, kernel_args};

use super::dropout::Keys;
use super::engine::Engine;
use super::mma::MmaEngine;
use super::simt::SimtEngine;
use super::softmax::{LseRows, OnlineSoftmax};
use crate::attention::score::{
    BlockMaskArgs, BlockMaskParams, MaskTiles, Problem, ProblemArgs, QueryBlock, ScoreKind, Sink, Tiles, View,
};
use crate::attention::tuning::Config;

kernel_args! {
    /// The results of a forward kernel, and the sinks.
    pub(in crate::attention) struct ResultArgs => ResultParams {
        o: Strided<Out<Elem>, 3>, lse: Out<Elem>, sinks: Optional<In<f32>>,
    }
}

kernel_args! {
    /// `o = softmax(score(q k)) v` and `lse`, the logarithms of the sums.
    pub(in crate::attention) struct ForwardArgs => ForwardParams { problem: ProblemArgs, results: ResultArgs }
}

kernel_args! {
    /// The same of the pairs that a mask lists.
    pub(in crate::attention) struct MaskedForwardArgs => MaskedForwardParams {
        problem: ProblemArgs, results: ResultArgs, mask: BlockMaskArgs,
    }
}

/// A kernel that takes a mask besides.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct Masked<D>(pub(in crate::attention) D);

#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct Forward {
    pub(in crate::attention) dtype: DType,
    pub(in crate::attention) kind: ScoreKind,
    pub(in crate::attention) config: Config,
}

impl KernelDef for Forward {
    type Args = ForwardArgs;

    fn spec(&self) -> KernelSpec {
        let name = format!("attention_{}_{}{}", self.dtype, self.config.layout().name(), self.kind.name());
        self.config.spec(name, self.dtype, "results.lse")
    }

    fn build<'k>(&self, k: K<'k>, a: ForwardParams<'k>) {
        self.with_engine(k, Problem::of(a.problem), Results::of(a.results), None);
    }
}

impl KernelDef for Masked<Forward> {
    type Args = MaskedForwardArgs;

    fn spec(&self) -> KernelSpec {
        self.0.spec()
    }

    fn build<'k>(&self, k: K<'k>, a: MaskedForwardParams<'k>) {
        self.0.with_engine(k, Problem::of(a.problem), Results::of(a.results), Some(a.mask));
    }
}

/// [`ResultArgs`] in a kernel.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct Results<'k> {
    pub(in crate::attention) o: View<'k, Write>,
    pub(in crate::attention) lse: Ptr<'k, Write, Elem>,
    pub(in crate::attention) sink: Sink<'k>,
}

impl<'k> Results<'k> {
    pub(in crate::attention) fn of(a: ResultParams<'k>) -> Self {
        Self { o: View::of(a.o), lse: a.lse, sink: Sink::of(a.sinks) }
    }
}

impl Forward {
    fn with_engine<'k>(
        &self,
        k: K<'k>,
        p: Problem<'k>,
        results: Results<'k>,
        mask: Option<BlockMaskParams<'k>>,
    ) {
        match self.config {
            Config::Simt(simt) => accumulate!(self.dtype, |A| {
                let engine = SimtEngine::new(k, simt, self.dtype, 1);
                self.body::<A, _>(k, p, results, mask, engine);
            }),
            Config::Mma(tensor) => {
                let engine = MmaEngine::new(k, tensor, k.mma_atom(self.dtype), 1);
                self.body(k, p, results, mask, engine);
            }
        }
    }

    pub(in crate::attention) fn body<'k, A: Accumulate, E: Engine<'k, A>>(
        &self,
        k: K<'k>,
        p: Problem<'k>,
        results: Results<'k>,
        mask: Option<BlockMaskParams<'k>>,
        engine: E,
    ) {
        let (rows, columns) = (self.config.layout().rows(), self.config.layout().tile_columns());
        let QueryBlock { head, batch, first, span, scorer, q, sources } =
            QueryBlock::<A>::new(k, self.kind, self.dtype, &p, rows);
        let q = engine.load_stationary(k, q, first, 0);

        let place = engine.product_place(k);
        let tiles = match mask {
            None => {
                let walk = span.walk_keys(first, first + rows.cast_signed(), columns);
                Tiles::Walked(if engine.register_bound() { walk.in_shared_memory(k) } else { walk })
            }
            Some(mask) => Tiles::Listed(MaskTiles::new(mask, Keys::Columns, [head, batch], first, columns)),
        };
        let (from, begin) = tiles.first();
        engine.start(k, sources, from, begin);
        let state = (OnlineSoftmax::new(k, place.rows.len()), engine.zero(k));
        let (softmax, o) = tiles.fold(k, columns, state, |visit, (softmax, o)| {
            let at = visit.at;
            let keys = engine.wait_k(k, sources, at, visit.next());
            let s = scorer.base(k, engine.product(k, q, keys));
            let pair = |row, column| (first + row, at + column);
            let masked = (Keys::Columns, visit.by_position(), engine.register_bound());
            let s = visit.masked(k, scorer.tile(&s, &place, masked, pair), &place);
            let (p, softmax, o) = softmax.update(k, &scorer, &s, o, engine.lazy_rescale());
            // The sum is of all probabilities: dropout leaves out values alone.
            let p = match scorer.kept(k, &engine, &place, Keys::Columns, pair) {
                Some(kept) => kept.of(&p),
                None => p,
            };
            let values = engine.wait_v(k, sources, at);
            (softmax, engine.accumulate(k, &p, values, o))
        });
        engine.finish(k);
        let rows = LseRows {
            queries: place.rows.iter().map(|row| first + row.to_i32()).collect(),
            writes: place.first.eq(0),
            head,
            lse: results.lse.at(p.first_row(span.of_queries, head)),
            sink: results.sink,
        };
        let factors = softmax.finalize(k, &scorer, engine.lanes(), &rows);
        let to = results.o.destination(span.of_queries, head, span.queries, p.value_width);
        engine.store(k, &(&o * &factors), to, first);
    }
}
