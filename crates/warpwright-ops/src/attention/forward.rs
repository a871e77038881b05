//! The forward kernel: one pass over keys and values with a running maximum and sum for each query.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{accumulate, kernel_args};

use super::dropout::Keys;
use super::engine::{Engine, Matrix, each};
use super::score::{Problem, ProblemArgs, QueryBlock, ScoreKind, Scorer, Sink, View};
use super::simt::SimtEngine;
use super::tensor_core::{self, TensorCoreEngine};
use super::tuning::Config;

kernel_args! {
    /// What a forward kernel writes, and the sinks.
    pub(super) struct ResultArgs => ResultParams {
        o: Strided<Out<Elem>, 3>, lse: Out<Elem>, sinks: Optional<In<f32>>,
    }
}

kernel_args! {
    /// `o = softmax(score(q k)) v` and `lse`, the logarithms of the sums.
    pub(super) struct ForwardArgs => ForwardParams { problem: ProblemArgs, results: ResultArgs }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Forward {
    pub(super) dtype: DType,
    pub(super) kind: ScoreKind,
    pub(super) config: Config,
}

/// The running softmax of each slot, and the weighted sum of values so far.
#[derive(Clone)]
pub(super) struct Running<'k, A: Float> {
    /// What powers are relative to: the greatest score, or one not far below it.
    pub(super) top: Vec<Reg<'k, A>>,
    /// The lane's part of the sum of powers relative to it.
    pub(super) sum: Vec<Reg<'k, A>>,
    pub(super) values: Matrix<'k, A>,
}

impl<'k, A: Float> Running<'k, A> {
    /// Before the first key.
    pub(super) fn new<E: Engine<'k, A>>(k: K<'k>, engine: &E) -> Self {
        let slots = engine.product_place(k).rows.len();
        Self {
            top: (0..slots).map(|_| k.lit::<A>(f64::NEG_INFINITY)).collect(),
            sum: (0..slots).map(|_| k.lit::<A>(0.0)).collect(),
            values: engine.zero(k),
        }
    }
}

impl<'k, A: Float> Carry<'k> for Running<'k, A> {
    fn collect(&self, regs: &mut Vec<warpwright_dsl::flow::RawReg>) {
        self.top.collect(regs);
        self.sum.collect(regs);
        self.values.collect(regs);
    }

    fn rebuild(&self, regs: &mut warpwright_dsl::flow::RawRegs) -> Self {
        let (top, sum) = (self.top.rebuild(regs), self.sum.rebuild(regs));
        Self { top, sum, values: self.values.rebuild(regs) }
    }
}

impl KernelDef for Forward {
    type Args = ForwardArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(
            format!("attention_{}_{}{}", self.dtype, self.config.name(), self.kind.name()),
            BlockDim::x(self.config.threads()),
        )
        .dtypes(DTypes::all(self.dtype).with("results.lse", super::statistics_type(self.dtype)))
        .min_blocks_per_sm(self.config.min_blocks_per_sm(self.dtype))
    }

    fn build<'k>(&self, k: K<'k>, a: ForwardParams<'k>) {
        let results = Results::of(a.results);
        match self.config {
            Config::Simt(simt) => accumulate!(self.dtype, |A| {
                let engine = SimtEngine::new(k, simt, self.dtype, 1);
                self.body::<A, _>(k, Problem::of(a.problem), results, engine);
            }),
            Config::TensorCore(tensor) => {
                let engine = TensorCoreEngine::new(k, tensor, tensor_core::atom(self.dtype), 1);
                self.body(k, Problem::of(a.problem), results, engine);
            }
        }
    }
}

/// What the kernel writes, and the sinks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Results<'k> {
    pub(super) o: View<'k, Write>,
    pub(super) lse: Ptr<'k, Write, Elem>,
    pub(super) sink: Sink<'k>,
}

impl<'k> Results<'k> {
    pub(super) fn of(a: ResultParams<'k>) -> Self {
        Self { o: View::of(a.o), lse: a.lse, sink: Sink::of(a.sinks) }
    }
}

impl Forward {
    pub(super) fn body<'k, A: Float, E: Engine<'k, A>>(
        &self,
        k: K<'k>,
        p: Problem<'k>,
        results: Results<'k>,
        engine: E,
    ) where
        Elem: Access<A>,
    {
        let (rows, columns) = (self.config.rows(), self.config.tile_columns());
        let QueryBlock { head, first, span, scorer, q, sources } =
            QueryBlock::<A>::new(k, self.kind, self.dtype, &p, rows);
        let own = engine.own(k, q, first, 0);

        let place = engine.product_place(k);
        let walk = span.walk_keys(first, first + rows.cast_signed(), columns);
        let walk = if engine.scarce() { walk.in_shared_memory(k) } else { walk };
        engine.start(k, sources, walk.from, walk.end);
        let last = walk.fold(k, columns, Running::new(k, &engine), |at, masked, state| {
            let keys = engine.first(k, sources, at, walk.end());
            let base = scorer.base(k, engine.product(k, own, keys));
            let pair = |row, column| (first + row, at + column);
            let scores = scorer.tile(&base, &place, (Keys::Columns, masked, engine.scarce()), pair);
            let (weights, state) = soften(k, &engine, &scorer, scores, state);
            // The sum is of all probabilities: what is dropped is dropped from the values alone.
            let kept = scorer.kept(k, &engine, &place, Keys::Columns, pair);
            let weights = match kept {
                Some(kept) => kept.of(&weights),
                None => weights,
            };
            let values = engine.second(k, sources, at);
            Running { values: engine.accumulate(k, &weights, values, state.values), ..state }
        });
        engine.finish(k);
        let factors = close(
            k,
            engine.lanes(),
            &scorer,
            (&last.top, &last.sum),
            &Rows {
                rows: place.rows.iter().map(|row| first + row.to_i32()).collect(),
                writes: place.first.eq(0),
                head,
                lse: results.lse.at(p.first_row(span.of_queries, head)),
                sink: results.sink,
            },
        );
        let normalised = last.values.iter().zip(&factors);
        let normalised = normalised.map(|(values, factor)| values.iter().map(|v| *v * *factor).collect());
        let to = results.o.destination(span.of_queries, head, span.queries, p.value_width);
        engine.store(k, &normalised.collect(), to, first);
    }
}

/// The queries of a thread's slots, and where their logarithms go.
pub(super) struct Rows<'k> {
    pub(super) rows: Vec<I32<'k>>,
    /// Whether this lane writes.
    pub(super) writes: Pred<'k>,
    pub(super) head: U32<'k>,
    pub(super) lse: Ptr<'k, Write, Elem>,
    pub(super) sink: Sink<'k>,
}

/// Writes the logarithms of sums of powers relative to `top`, and gives what the weighted sums of values are multiplied by.
pub(super) fn close<'k, A: Float>(
    k: K<'k>,
    lanes: u32,
    scorer: &Scorer<'k, A>,
    (top, sum): (&[Reg<'k, A>], &[Reg<'k, A>]),
    rows: &Rows<'k>,
) -> Vec<Reg<'k, A>>
where
    Elem: Access<A>,
{
    let sum: Vec<_> = sum.iter().map(|sum| k.warp_combine(lanes, *sum, |a, b| a + b)).collect();
    let nothing = k.lit::<A>(f64::NEG_INFINITY);
    let logarithms = top.iter().zip(&sum);
    let logarithms: Vec<_> =
        logarithms.map(|(top, sum)| sum.eq(0.0).select(nothing, scorer.log_sum(*top, *sum))).collect();
    let weighed = k.if_else(
        rows.sink.there,
        || logarithms.iter().map(|lse| rows.sink.weighed(rows.head, *lse)).collect(),
        || logarithms.iter().map(|lse| (*lse, k.lit(1.0))).collect::<Vec<_>>(),
    );
    let mut factors = Vec::new();
    for ((query, sum), (lse, share)) in rows.rows.iter().zip(&sum).zip(weighed) {
        let share = scorer.keeping().map_or(share, |keeping| share * keeping);
        factors.push(sum.eq(0.0).select(0.0, share / *sum));
        let writes = query.lt(scorer.queries()) & rows.writes;
        rows.lse.at(query.to_u32().to_u64()).only_where(writes, Fill::Zero).set(lse);
    }
    factors
}

/// Powers of a tile's scores relative to the greatest so far, or to one from which no score is [far above](Scorer::above), and the state
/// with what went before brought to the same reference.
pub(super) fn soften<'k, A: Float, E: Engine<'k, A>>(
    k: K<'k>,
    engine: &E,
    scorer: &Scorer<'k, A>,
    scores: Matrix<'k, A>,
    state: Running<'k, A>,
) -> (Matrix<'k, A>, Running<'k, A>)
where
    Elem: Access<A>,
{
    let greatest = greatest(k, engine.lanes(), &scores, &state.top);
    let state = if engine.may_wait() {
        let far = far_above(k, scorer, &greatest, &state.top);
        k.if_else(far, || raised(scorer, &greatest, state.clone()), || state.clone())
    } else {
        raised(scorer, &greatest, state)
    };
    let (weights, sum) = powers(scorer, &scores, &state.top, &state.sum);
    (weights, Running { sum, ..state })
}

/// The greatest score of each slot, whose rows `lanes` lanes share; any if there are none. A NaN shows in the sum; the maximum may
/// pass over it.
pub(super) fn greatest<'k, A: Float>(
    k: K<'k>,
    lanes: u32,
    scores: &Matrix<'k, A>,
    top: &[Reg<'k, A>],
) -> Vec<Reg<'k, A>> {
    let of_slot = |(scores, top): (&Vec<Reg<'k, A>>, &Reg<'k, A>)| {
        let greatest = Lanes::from(scores.clone()).reduce(|a, b| a.max(b)).unwrap_or(*top);
        k.warp_combine(lanes, greatest, |a, b| a.max(b))
    };
    scores.iter().zip(top).map(of_slot).collect()
}

/// Powers of scores relative to `top`, and the lane's sums with them.
pub(super) fn powers<'k, A: Float>(
    scorer: &Scorer<'k, A>,
    scores: &Matrix<'k, A>,
    top: &[Reg<'k, A>],
    sum: &[Reg<'k, A>],
) -> (Matrix<'k, A>, Vec<Reg<'k, A>>)
where
    Elem: Access<A>,
{
    let (mut sums, mut weights) = (Vec::new(), Vec::new());
    for (slot, scores) in scores.iter().enumerate() {
        let reference = finite(top[slot]);
        let powers: Vec<_> = scores.iter().map(|score| scorer.power(*score, reference)).collect();
        let mine = Lanes::from(powers.clone()).reduce(|a, b| a + b);
        sums.push(mine.map_or(sum[slot], |mine| sum[slot] + mine));
        weights.push(powers);
    }
    (weights, sums)
}

/// Where nothing has been seen yet, any finite reference gives powers of 0.
fn finite<A: Float>(top: Reg<'_, A>) -> Reg<'_, A> {
    top.eq(f64::NEG_INFINITY).select(0.0, top)
}

/// The greater of each score and reference, and what goes from the old references to these.
pub(super) fn risen<'k, A: Float>(
    scorer: &Scorer<'k, A>,
    greatest: &[Reg<'k, A>],
    top: &[Reg<'k, A>],
) -> (Vec<Reg<'k, A>>, Vec<Reg<'k, A>>)
where
    Elem: Access<A>,
{
    let new: Vec<_> = top.iter().zip(greatest).map(|(top, greatest)| top.max(*greatest)).collect();
    let factors = top.iter().zip(&new).map(|(old, top)| scorer.power(*old, finite(*top))).collect();
    (new, factors)
}

/// The state relative to the greatest of its scores and these.
fn raised<'k, A: Float>(
    scorer: &Scorer<'k, A>,
    greatest: &[Reg<'k, A>],
    state: Running<'k, A>,
) -> Running<'k, A>
where
    Elem: Access<A>,
{
    let (top, factors) = risen(scorer, greatest, &state.top);
    let sum = state.sum.iter().zip(&factors).map(|(sum, factor)| *sum * *factor).collect();
    let values = each(&state.values, |slot, _, value| value * factors[slot]);
    Running { top, sum, values }
}

/// Whether a score of any lane of the warp lies so far above its reference that sums must be brought to another.
pub(super) fn far_above<'k, A: Float>(
    k: K<'k>,
    scorer: &Scorer<'k, A>,
    greatest: &[Reg<'k, A>],
    top: &[Reg<'k, A>],
) -> Pred<'k>
where
    Elem: Access<A>,
{
    let far = greatest.iter().zip(top).map(|(greatest, top)| scorer.above(*greatest, *top));
    far.reduce(|a, b| a | b).unwrap_or_else(|| k.lit(true)).vote_any()
}

/// The sum over the lanes of a slot.
pub(super) fn all_lanes<'k, A: Float, E: Engine<'k, A>>(
    k: K<'k>,
    engine: &E,
    value: Reg<'k, A>,
) -> Reg<'k, A> {
    k.warp_combine(engine.lanes(), value, |a, b| a + b)
}
