//! The forward kernel: one pass over keys and values with a running maximum and sum for each query.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{accumulate, kernel_args};

use super::dropout::Keys;
use super::engine::Engine;
use super::mma::MmaEngine;
use super::simt::SimtEngine;
use super::softmax::{LseRows, OnlineSoftmax};
use crate::attention::score::{Problem, ProblemArgs, QueryBlock, ScoreKind, Sink, View};
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

#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct Forward {
    pub(in crate::attention) dtype: DType,
    pub(in crate::attention) kind: ScoreKind,
    pub(in crate::attention) config: Config,
}

impl KernelDef for Forward {
    type Args = ForwardArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(
            format!("attention_{}_{}{}", self.dtype, self.config.layout().name(), self.kind.name()),
            BlockDim::x(self.config.layout().threads()),
        )
        .dtypes(DTypes::all(self.dtype).with("results.lse", crate::attention::statistics_type(self.dtype)))
        .min_blocks_per_sm(self.config.layout().min_blocks_per_sm(self.dtype))
    }

    fn build<'k>(&self, k: K<'k>, a: ForwardParams<'k>) {
        let results = Results::of(a.results);
        match self.config {
            Config::Simt(simt) => accumulate!(self.dtype, |A| {
                let engine = SimtEngine::new(k, simt, self.dtype, 1);
                self.body::<A, _>(k, Problem::of(a.problem), results, engine);
            }),
            Config::Mma(tensor) => {
                let engine = MmaEngine::new(k, tensor, k.mma_atom(self.dtype), 1);
                self.body(k, Problem::of(a.problem), results, engine);
            }
        }
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
    pub(in crate::attention) fn body<'k, A: Accumulate, E: Engine<'k, A>>(
        &self,
        k: K<'k>,
        p: Problem<'k>,
        results: Results<'k>,
        engine: E,
    ) {
        let (rows, columns) = (self.config.layout().rows(), self.config.layout().tile_columns());
        let QueryBlock { head, first, span, scorer, q, sources } =
            QueryBlock::<A>::new(k, self.kind, self.dtype, &p, rows);
        let q = engine.load_stationary(k, q, first, 0);

        let place = engine.product_place(k);
        let walk = span.walk_keys(first, first + rows.cast_signed(), columns);
        let walk = if engine.register_bound() { walk.in_shared_memory(k) } else { walk };
        engine.start(k, sources, walk.from, walk.end);
        let state = (OnlineSoftmax::new(k, place.rows.len()), engine.zero(k));
        let (softmax, o) = walk.fold(k, columns, state, |at, masked, (softmax, o)| {
            let keys = engine.wait_k(k, sources, at, walk.end());
            let s = scorer.base(k, engine.product(k, q, keys));
            let pair = |row, column| (first + row, at + column);
            let s = scorer.tile(&s, &place, (Keys::Columns, masked, engine.register_bound()), pair);
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
