//! The gradients: a sum for each query, then one sweep for the gradients of queries and one for those of keys and values.
//!
//! With probabilities `p` and the gradient `do` of the result, `delta_i = sum_d do_id o_id` and
//! `ds_ij = p_ij ((do v^T)_ij - delta_i)`; then `dv = p^T do`, `dq = ds k`, `dk = ds^T q`, the latter two times the factor
//! of the softmax (Dao et al. 2022, appendix B.4). Each sweep computes the probabilities again from `lse`; nothing is added
//! up by more than one block, so results do not depend on the order in which blocks run.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{StridedPtr, WARP, accumulate, kernel_args};

use super::dropout::Keys;
use super::engine::{Engine, Place};
use super::forward::Masked;
use super::mma::MmaEngine;
use super::simt::SimtEngine;
use crate::attention::options::Common;
use crate::attention::score::{
    BlockMaskArgs, BlockMaskParams, MaskTiles, Problem, ProblemArgs, QueryBlock, ScoreKind, Scorer, Span,
    Tiles, View,
};
use crate::attention::tuning::{Config, Work};

kernel_args! {
    /// Writes [`Statistics`]: `delta = sum_d do o` of each query, and its `lse`.
    pub(in crate::attention) struct DeltaArgs => DeltaParams {
        o: Strided<In<Elem>, 3>, dy: Strided<In<Elem>, 3>,
        lse: In<Elem>, statistics: Out<Elem>, queries: u32, heads: u32, width: u32,
        places: PlaceArgs,
    }
}

kernel_args! {
    /// Where the two numbers of a query are in [`Statistics`]: numbers from one head to the next, half of them, from one
    /// query to the next, and from the first number of a query to the second.
    pub(in crate::attention) struct PlaceArgs => PlaceParams { pitch: u32, step: u64, apart: u64 }
}

impl PlaceArgs {
    /// Side by side.
    pub(in crate::attention) const fn interleaved(c: &Common) -> Self {
        Self { pitch: c.queries, step: 2, apart: 1 }
    }

    /// The first ones of all queries of a head, then the second ones.
    pub(in crate::attention) const fn apart(pitch: u32) -> Self {
        Self { pitch, step: 1, apart: pitch as u64 }
    }
}

/// Lanes share a row, as many as its accesses; all accesses of a thread are on their way together.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct Delta {
    pub(in crate::attention) dtype: DType,
    /// Elements of an access.
    pub(in crate::attention) vector: u32,
    /// Most elements of a row, a power of two.
    pub(in crate::attention) width: u32,
}

impl Delta {
    pub(super) const THREADS: u32 = 256;
    /// Accesses of a thread to each tensor at once, about.
    const IN_FLIGHT: u32 = 4;

    fn lanes(self) -> u32 {
        (self.width / self.vector).min(WARP)
    }

    /// Accesses of a thread to a row.
    fn pieces(self) -> u32 {
        self.width / self.lanes() / self.vector
    }

    /// Rows of a thread.
    fn turns(self) -> u32 {
        (Self::IN_FLIGHT / self.pieces()).max(1)
    }

    /// Rows of a block.
    pub(in crate::attention) fn rows(self) -> u32 {
        Self::THREADS / self.lanes() * self.turns()
    }
}

impl AccumulateKernel for Delta {
    type Args = DeltaArgs;

    fn spec(&self) -> KernelSpec {
        let statistics = crate::attention::statistics_type(self.dtype);
        KernelSpec::new(
            format!("attention_backward_delta_{}_d{}x{}", self.dtype, self.width, self.vector),
            BlockDim::x(Self::THREADS),
        )
        .dtypes(DTypes::all(self.dtype).with("lse", statistics).with("statistics", statistics))
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: DeltaParams<'k>) {
        let lanes = self.lanes();
        let (head, batch) = (k.block_idx_y(), k.block_idx_z());
        let (lane, row) = (k.thread_idx() & (lanes - 1), k.thread_idx() >> lanes.trailing_zeros());
        let of_head = |tensor: StridedPtr<'k, Ptr<'k, Read, Elem>, 3>| {
            let [of_batch, _, of_head] = tensor.strides;
            tensor.data.at(batch.to_u64() * of_batch + head.to_u64() * of_head).at(lane * self.vector)
        };
        let (o, dy) = (of_head(a.o), of_head(a.dy));
        let first = k.block_idx_x() * self.rows() + row;
        let rows: Vec<_> = (0..self.turns()).map(|turn| first + turn * (Self::THREADS / lanes)).collect();
        let load = |data: Ptr<'k, Read, Elem>, row: U32<'k>, step: U64<'k>| {
            let data = data.at(row.to_u64() * step);
            let of = |piece: u32| {
                let column = piece * lanes * self.vector;
                let there = row.lt(a.queries) & (lane * self.vector + column).lt(a.width);
                data.at(u64::from(column)).only_where(there, Fill::Zero).load::<A>(self.vector)
            };
            Lanes::concat((0..self.pieces()).map(of))
        };
        let loaded: Vec<_> =
            rows.iter().map(|row| (load(o, *row, a.o.strides[1]), load(dy, *row, a.dy.strides[1]))).collect();
        let of_head = batch * a.heads + head;
        let to = a.statistics.at(of_head.mul_wide(a.places.pitch) * 2u64);
        let lse = a.lse.at(of_head.mul_wide(a.queries));
        for (row, (o, dy)) in rows.into_iter().zip(loaded) {
            let sum = o.iter().zip(dy.iter()).fold(k.lit::<A>(0.0), |sum, (o, dy)| o.mul_add(dy, sum));
            let sum = k.warp_combine(lanes, sum, |a, b| a + b);
            let writes = lane.eq(0) & row.lt(a.queries);
            let lse = lse.at(row).only_where(writes, Fill::Zero).get::<A>();
            let prepared = Scorer::prepared(Precision::of(self.dtype), lse);
            let to = to.at(row.to_u64() * a.places.step);
            to.only_where(writes, Fill::Zero).set(prepared);
            to.at(a.places.apart).only_where(writes, Fill::Zero).set(sum);
        }
    }
}

kernel_args! {
    /// Gradients from `do` and [`Statistics`]: of queries in `first`, or of keys in `first` and of values in `second`.
    pub(in crate::attention) struct SweepArgs => SweepParams {
        problem: ProblemArgs, dy: Strided<In<Elem>, 3>, statistics: In<Elem>,
        first: Strided<Out<Elem>, 3>, second: Strided<Out<Elem>, 3>,
    }
}

kernel_args! {
    /// The same of the pairs that a mask lists.
    pub(in crate::attention) struct MaskedSweepArgs => MaskedSweepParams {
        sweep: SweepArgs, mask: BlockMaskArgs,
    }
}

#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct Sweep {
    /// Which gradients.
    pub(in crate::attention) work: Work,
    pub(in crate::attention) dtype: DType,
    pub(in crate::attention) kind: ScoreKind,
    pub(in crate::attention) config: Config,
}

impl KernelDef for Sweep {
    type Args = SweepArgs;

    fn spec(&self) -> KernelSpec {
        let Self { work, dtype, kind, config } = self;
        let (gradients, layout) = (work.gradients(), config.layout().name());
        let name = format!("attention_backward_{gradients}_{dtype}_{layout}{}", kind.name());
        config.spec(name, *dtype, "statistics")
    }

    fn build<'k>(&self, k: K<'k>, a: SweepParams<'k>) {
        self.with_engine(k, a, None);
    }
}

impl KernelDef for Masked<Sweep> {
    type Args = MaskedSweepArgs;

    fn spec(&self) -> KernelSpec {
        let statistics = crate::attention::statistics_type(self.0.dtype);
        let spec = self.0.spec();
        spec.dtypes(DTypes::all(self.0.dtype).with("sweep.statistics", statistics))
    }

    fn build<'k>(&self, k: K<'k>, a: MaskedSweepParams<'k>) {
        self.0.with_engine(k, a.sweep, Some(a.mask));
    }
}

/// The gradients that a sweep reads and writes, and [`Statistics`].
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct Gradients<'k> {
    pub(super) dy: View<'k, Read>,
    pub(super) first: View<'k, Write>,
    pub(super) second: View<'k, Write>,
    pub(super) statistics: Ptr<'k, Read, Elem>,
}

impl<'k> Gradients<'k> {
    pub(in crate::attention) fn of(a: SweepParams<'k>) -> Self {
        let [first, second] = [a.first, a.second].map(View::of);
        Self { dy: View::of(a.dy), first, second, statistics: a.statistics }
    }
}

/// The tensors of a backward kernel, and the mask if one lists the pairs.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct SweepTensors<'k> {
    pub(in crate::attention) p: Problem<'k>,
    pub(in crate::attention) gradients: Gradients<'k>,
    pub(in crate::attention) mask: Option<BlockMaskParams<'k>>,
}

/// Of each query `lse` as [`Scorer::probability`] takes it, and delta, side by side.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct Statistics<'k> {
    data: Ptr<'k, Read, Elem>,
    /// Whether both are read at once.
    pairs: bool,
}

impl<'k> Statistics<'k> {
    /// Of the queries from row `first` on.
    pub(in crate::attention) fn new(data: Ptr<'k, Read, Elem>, first: U64<'k>, config: Config) -> Self {
        Self { data: data.at(first * 2u64), pairs: config.layout().vector() > 1 }
    }

    /// Of the queries `from` and `by` each, which exist where `there` says so.
    pub(in crate::attention) fn of<A: Accumulate>(
        self,
        from: I32<'k>,
        by: &[u32],
        there: impl Fn(I32<'k>) -> Option<Pred<'k>>,
    ) -> (Vec<Reg<'k, A>>, Vec<Reg<'k, A>>) {
        let data = self.data.at(from.to_u64() * 2u64);
        let both = |by: &u32| {
            let at = data.at(u64::from(2 * by));
            let there = there(from + by.cast_signed());
            let load = |at: Ptr<'k, Read, Elem>, count| match there {
                Some(there) => at.only_where(there, Fill::Zero).load::<A>(count),
                None => at.load::<A>(count),
            };
            if self.pairs {
                let pair = load(at, 2);
                return (pair[0], pair[1]);
            }
            (load(at, 1)[0], load(at.at(1u64), 1)[0])
        };
        by.iter().map(both).unzip()
    }

    /// Of the queries that are rows of a block, of which there are `queries`.
    pub(in crate::attention) fn of_rows<A: Accumulate>(
        self,
        first: I32<'k>,
        place: &Place<'k>,
        queries: I32<'k>,
    ) -> (Vec<Reg<'k, A>>, Vec<Reg<'k, A>>) {
        let of = |row: &U32<'k>| {
            let (lse, delta) = self.of(first + row.to_i32(), &[0], |query| Some(query.lt(queries)));
            (lse[0], delta[0])
        };
        place.rows.iter().map(of).unzip()
    }
}

/// [`Statistics`] of the queries that are rows of a block: logarithms and deltas.
#[derive(Clone, Debug)]
enum KnownStatistics<'k, A: Accumulate> {
    Registers((Vec<Reg<'k, A>>, Vec<Reg<'k, A>>)),
    /// Of each row two numbers in shared memory.
    Memory(Ptr<'k, Shared, Elem>),
}

impl<'k, A: Accumulate> KnownStatistics<'k, A> {
    /// The same in shared memory, from the next barrier on.
    fn in_memory(self, k: K<'k>, dtype: DType, place: &Place<'k>, rows: u32) -> Self {
        let (lse, delta) = self.get(place);
        let memory = k.shared_elem(crate::attention::statistics_type(dtype), 2 * rows);
        for (row, (lse, delta)) in place.rows.iter().zip(lse.iter().zip(&delta)) {
            memory.at(*row * 2).only_where(place.first.eq(0), Fill::Zero).store(vec![*lse, *delta]);
        }
        Self::Memory(memory)
    }

    fn get(&self, place: &Place<'k>) -> (Vec<Reg<'k, A>>, Vec<Reg<'k, A>>) {
        match self {
            Self::Registers(known) => known.clone(),
            Self::Memory(memory) => {
                let of_row = |row: &U32<'k>| memory.at(*row * 2).load::<A>(2);
                place.rows.iter().map(of_row).map(|pair| (pair[0], pair[1])).unzip()
            }
        }
    }
}

/// The gradient of a score from its probability and the gradient of that.
pub(in crate::attention) fn gradient_of_score<'k, A: Accumulate>(
    p: Reg<'k, A>,
    dp: Reg<'k, A>,
    delta: Reg<'k, A>,
) -> Reg<'k, A> {
    p * (dp - delta)
}

impl Sweep {
    fn with_engine<'k>(&self, k: K<'k>, a: SweepParams<'k>, mask: Option<BlockMaskParams<'k>>) {
        let of = SweepTensors { p: Problem::of(a.problem), gradients: Gradients::of(a), mask };
        match self.config {
            Config::Simt(simt) => accumulate!(self.dtype, |A| {
                let engine = SimtEngine::new(k, simt, self.dtype, self.work.stationary());
                self.body::<A, _>(k, of, &engine);
            }),
            Config::Mma(tensor) => {
                let atom = k.mma_atom(self.dtype);
                let engine = MmaEngine::new(k, tensor, atom, self.work.stationary());
                self.body(k, of, &engine);
            }
        }
    }

    pub(in crate::attention) fn body<'k, A: Accumulate, E: Engine<'k, A>>(
        &self,
        k: K<'k>,
        of: SweepTensors<'k>,
        engine: &E,
    ) {
        let shares = self.full(engine) && self.kind.dropout;
        let of = if shares { SweepTensors { p: of.p.with_shared_random(k), ..of } } else { of };
        match self.work {
            Work::Forward | Work::Queries | Work::Bias => self.queries(k, of, engine),
            Work::KeysAndValues | Work::Keys | Work::Values => self.keys_and_values(k, of, engine),
        }
    }

    /// Whether each register that a modification takes is one too many: tiles of half precision are as large as registers allow.
    fn full<'k, A: Accumulate, E: Engine<'k, A>>(&self, engine: &E) -> bool {
        engine.register_bound() && self.dtype.bytes() == 2
    }

    fn queries<'k, A: Accumulate, E: Engine<'k, A>>(&self, k: K<'k>, of: SweepTensors<'k>, engine: &E) {
        let SweepTensors { p, gradients: to, mask } = of;
        let (rows, columns) = (self.config.layout().rows(), self.config.layout().tile_columns());
        let block = QueryBlock::<A>::new(k, self.kind, self.dtype, &p, rows);
        let QueryBlock { head, batch, first, span, scorer, q, sources } = block;
        let q = engine.load_stationary(k, q, first, 0);
        let dy = engine.load_stationary(
            k,
            to.dy.source(span.of_queries, head, span.queries, p.value_width),
            first,
            1,
        );
        let place = engine.product_place(k);
        let statistics = Statistics::new(to.statistics, p.first_row(span.of_queries, head), self.config);
        let known = KnownStatistics::Registers(statistics.of_rows::<A>(first, &place, span.queries));
        // Masks, and sequences with limits of their own, take the registers that are left.
        let full = self.full(engine);
        let known = if full && self.kind.band { known.in_memory(k, self.dtype, &place, rows) } else { known };
        let shared = (full && self.kind.packed).then(|| block.in_shared_memory(k, &p));
        let tiles = match mask {
            None => {
                let walk = span.walk_keys(first, first + rows.cast_signed(), columns);
                Tiles::Walked(if engine.register_bound() { walk.in_shared_memory(k) } else { walk })
            }
            Some(mask) => Tiles::Listed(MaskTiles::new(mask, Keys::Columns, [head, batch], first, columns)),
        };
        let (from, begin) = tiles.first();
        engine.start(k, sources, from, begin);
        let sum = tiles.fold(k, columns, engine.zero(k), |visit, sum| {
            let at = visit.at;
            let (scorer, sources) =
                shared.map_or((scorer, sources), |shared| shared.get(&p, scorer, sources));
            let keys = engine.wait_k(k, sources, at, visit.next());
            let base = scorer.base(k, engine.product(k, q, keys));
            let pair = |row, column| (first + row, at + column);
            let masked = (Keys::Columns, visit.by_position(), engine.register_bound());
            let scores = visit.masked(k, scorer.tile(&base, &place, masked, pair), &place);
            let values = engine.wait_v(k, sources, at);
            let kept = scorer.kept(k, engine, &place, Keys::Columns, pair);
            let dps = scorer.dropped(engine.product(k, dy, values), kept.as_ref());
            let (lse, delta) = known.get(&place);
            let ds = scores.map(|slot, column, score| {
                let p = scorer.probability(score, lse[slot]);
                let ds = gradient_of_score(p, dps.row(slot)[column], delta[slot]);
                scorer.derivative(&base, slot, column).map_or(ds, |d| ds * d)
            });
            let keys = engine.reuse_k(k, sources, at);
            engine.accumulate(k, &ds, keys, sum)
        });
        engine.finish(k);
        let to = to.first.destination(span.of_queries, head, span.queries, p.width);
        engine.store(k, &(&sum * scorer.scale()), to, first);
    }

    fn keys_and_values<'k, A: Accumulate, E: Engine<'k, A>>(
        &self,
        k: K<'k>,
        of: SweepTensors<'k>,
        engine: &E,
    ) {
        let SweepTensors { p, gradients: to, mask } = of;
        let (rows, columns) = (self.config.layout().rows(), self.config.layout().tile_columns());
        let [tile, key_head, batch] = p.place(k, false);
        let span = Span::new(self.kind, &p, batch);
        let first = (tile * rows).to_i32();
        let k_tile =
            engine.load_stationary(k, p.k.source(span.of_keys, key_head, span.keys, p.width), first, 0);
        let (of_keys, of_values) = (self.work != Work::Values, self.work != Work::Keys);
        let v_tile = of_keys.then(|| {
            engine.load_stationary(k, p.v.source(span.of_keys, key_head, span.keys, p.value_width), first, 1)
        });
        let place = engine.product_place(k);
        // In shorter rows it costs more registers than it saves.
        let wide = engine.register_bound() && self.config.layout().width() * self.dtype.bytes() as u32 >= 256;
        let walked = mask.is_none().then(|| {
            let walk = span.walk_queries(first, first + rows.cast_signed(), columns);
            Tiles::Walked(if wide { walk.in_shared_memory(k) } else { walk })
        });
        let zero = |wanted: bool| if wanted { engine.zero(k) } else { RegTile::empty(k) };
        let zeros = (zero(of_keys), zero(of_values));
        let heads = k.range(0u32, p.group, 1u32);
        let (dk, dv) = k.fold(heads, zeros, |member, sums| {
            let head = key_head * p.group + member;
            let scorer = Scorer::<A>::new(self.kind, Precision::of(self.dtype), &p, span, head, batch);
            let sources = [
                p.q.source(span.of_queries, head, span.queries, p.width),
                to.dy.source(span.of_queries, head, span.queries, p.value_width),
            ];
            let first_row = p.first_row(span.of_queries, head);
            let statistics = Statistics::new(to.statistics, first_row, self.config);
            let listed =
                |mask| Tiles::Listed(MaskTiles::new(mask, Keys::Rows, [head, batch], first, columns));
            let Some(tiles) = walked.or_else(|| mask.map(listed)) else { return sums };
            let (from, begin) = tiles.first();
            engine.start(k, sources, from, begin);
            tiles.fold(k, columns, sums, |visit, (dk, dv)| {
                let at = visit.at;
                let queries = engine.wait_k(k, sources, at, visit.next());
                let there = |query: I32<'k>| (!visit.is_whole()).then(|| query.lt(span.queries));
                let (lse, delta) = statistics.of::<A>(at + place.first.to_i32(), &place.columns, there);
                let base = scorer.base(k, engine.product(k, k_tile, queries));
                let pair = |row, column| (at + column, first + row);
                let masked = (Keys::Rows, visit.by_position(), engine.register_bound());
                let scores = visit.masked(k, scorer.tile(&base, &place, masked, pair), &place);
                let dys = engine.wait_v(k, sources, at);
                let kept = scorer.kept(k, engine, &place, Keys::Rows, pair);
                // Before the probabilities, so that their exponentials run beside this product.
                let dps = v_tile.map(|v_tile| scorer.dropped(engine.product(k, v_tile, dys), kept.as_ref()));
                let ps = scores.map(|_, column, score| scorer.probability(score, lse[column]));
                let weights = kept.map(|kept| kept.of(&ps));
                let dv = if of_values {
                    engine.accumulate(k, weights.as_ref().unwrap_or(&ps), dys, dv)
                } else {
                    dv
                };
                let Some(dps) = dps else { return (dk, dv) };
                let ds = ps.map(|slot, column, p| {
                    let ds = gradient_of_score(p, dps.row(slot)[column], delta[column]);
                    scorer.derivative(&base, slot, column).map_or(ds, |d| ds * d)
                });
                let queries = engine.reuse_k(k, sources, at);
                (engine.accumulate(k, &ds, queries, dk), dv)
            })
        });
        engine.finish(k);
        let scale: Reg<'k, A> = Scorer::<A>::factor(&p);
        // Keys that a sequence does not have get gradients of 0; packed sequences have all that are theirs.
        let all = if self.kind.packed { span.keys } else { p.keys.to_i32() };
        let theirs = |sums: RegTile<'k, A>| {
            if !self.kind.lengths {
                return sums;
            }
            let there: Vec<_> = place.rows.iter().map(|row| (first + row.to_i32()).lt(span.keys)).collect();
            sums.map(|slot, _, value| there[slot].select(value, 0.0))
        };
        if of_keys {
            engine.store(
                k,
                &theirs(&dk * scale),
                to.first.destination(span.of_keys, key_head, all, p.width),
                first,
            );
        }
        if of_values {
            let dv = if self.kind.dropout { &dv * p.keeping.convert() } else { dv };
            engine.store(
                k,
                &theirs(dv),
                to.second.destination(span.of_keys, key_head, all, p.value_width),
                first,
            );
        }
    }
}
