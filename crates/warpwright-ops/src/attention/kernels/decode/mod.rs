//! Few queries and many keys: the keys of a head are shared out to blocks and to teams in them, and what these found is put
//! together in a fixed order.
//!
//! The query heads that read one key head, with all queries, are rows of one tile, so that its keys and values are read once. On tensor
//! cores each warp is a team, or as many as the rows have slabs of 16: a team walks over tiles of 16 or 32 keys of its own, with copies of
//! several on their way, and meets the others at the end. Keys and values may lie in pages.

pub(in crate::attention) mod combine;
pub(in crate::attention) mod float8;
mod tma;

use warpwright_dsl::prelude::*;
use warpwright_dsl::{StridedPtr, TensorMapArg, kernel_args};

use super::engine::{Engine, Form, Next, Pages, Place, Source};
use super::forward::{ResultArgs, ResultParams};
use super::mma::MmaEngine;
use super::simt::SimtEngine;
use super::softmax::OnlineSoftmax;
use crate::attention::layout::DecodeLayout;
use crate::attention::score::{Origin, Problem, ProblemArgs, ScoreKind, Scorer, Sink, Span};
use crate::attention::tuning::{DecodeMma, Simt};
use float8::ScaleParams;
pub use tma::DecodeTma;
use tma::TmaEngine;

kernel_args! {
    /// The parts of the result where several blocks share the keys of a head: `splits` times `rows` rows.
    pub(in crate::attention) struct PartArgs => PartParams { o: Out<Elem>, lse: Out<Elem>, splits: u32, rows: u64 }
}

kernel_args! {
    /// Where keys and values lie in pages: numbers of the pages of each sequence, how many of them there are for one, rows of
    /// a page as a power of two, and pages that exist.
    pub(in crate::attention) struct PageArgs => PageParams { table: Optional<In<i32>>, step: u64, shift: u32, count: u32 }
}

kernel_args! {
    /// `o` and `lse` where one block has all keys of a head, and its part of both in `parts` elsewhere.
    pub(in crate::attention) struct DecodeArgs => DecodeParams {
        problem: ProblemArgs, results: ResultArgs, parts: PartArgs, pages: PageArgs,
    }
}

kernel_args! {
    /// The same with keys and values as tensor copies reach them.
    pub(in crate::attention) struct TmaDecodeArgs => TmaDecodeParams { of: DecodeArgs, k_boxes: TensorMapArg, v_boxes: TensorMapArg }
}

/// [`DecodeArgs`] in a kernel.
#[derive(Clone, Copy)]
struct Task<'k> {
    problem: Problem<'k>,
    o: StridedPtr<'k, Ptr<'k, Write, Elem>, 3>,
    lse: Ptr<'k, Write, Elem>,
    sink: Sink<'k>,
    parts: PartParams<'k>,
    pages: PageParams<'k>,
    /// The scales of keys and values of 8-bit floats.
    scales: Option<ScaleParams<'k>>,
}

impl<'k> Task<'k> {
    fn of(a: DecodeParams<'k>) -> Self {
        let ResultParams { o, lse, sinks } = a.results;
        let (problem, sink) = (Problem::of(a.problem), Sink::of(sinks));
        Self { problem, o, lse, sink, parts: a.parts, pages: a.pages, scales: None }
    }
}

/// The kernel of a layout.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct Decode<L> {
    /// Of queries and results.
    pub(in crate::attention) dtype: DType,
    /// Of keys and values.
    pub(in crate::attention) cache: DType,
    pub(in crate::attention) kind: ScoreKind,
    pub(in crate::attention) layout: L,
}

impl AccumulateKernel for Decode<Simt> {
    type Args = DecodeArgs;

    fn spec(&self) -> KernelSpec {
        self.body().spec(["results.lse", "parts"], &[])
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: DecodeParams<'k>) {
        k.start_next_grid();
        let grid = [k.block_idx_x(), k.block_idx_y(), k.block_idx_z()];
        let engine = SimtEngine::new(k, self.layout, self.dtype, 1);
        self.body().build::<A, _>(k, Task::of(a), &engine, k.lit(0u32), grid);
    }
}

impl KernelDef for Decode<DecodeMma> {
    type Args = DecodeArgs;

    fn spec(&self) -> KernelSpec {
        self.body().spec(["results.lse", "parts"], &[])
    }

    fn build<'k>(&self, k: K<'k>, a: DecodeParams<'k>) {
        k.start_next_grid();
        let grid = [k.block_idx_x(), k.block_idx_y(), k.block_idx_z()];
        let engine = MmaEngine::alone(k, self.layout, [self.dtype; 2]);
        self.body().build(k, Task::of(a), &engine, k.warp_idx(), grid);
    }
}

/// Tensor copies bring keys and values.
impl KernelDef for Decode<DecodeTma> {
    type Args = TmaDecodeArgs;

    fn spec(&self) -> KernelSpec {
        self.body().spec(["of.results.lse", "of.parts"], &[])
    }

    fn build<'k>(&self, k: K<'k>, a: TmaDecodeParams<'k>) {
        k.start_next_grid();
        let (task, team) = (Task::of(a.of), self.layout.team(k));
        let boxes = [a.k_boxes, a.v_boxes];
        let grid = [k.block_idx_x(), k.block_idx_y(), k.block_idx_z()];
        let of = [grid[1], grid[2]];
        let engine = TmaEngine::new(k, self.layout, [self.dtype; 2], boxes, of, self.kind.lengths);
        self.body().build(k, task, &engine, team, grid);
    }
}

impl<L: DecodeLayout> Decode<L> {
    fn body(&self) -> DecodeBody<'_> {
        DecodeBody { dtype: self.dtype, cache: self.cache, kind: self.kind, layout: &self.layout }
    }
}

/// The part of a kernel that all layouts share.
#[derive(Clone, Copy)]
struct DecodeBody<'l> {
    dtype: DType,
    cache: DType,
    kind: ScoreKind,
    layout: &'l dyn DecodeLayout,
}

/// The rows of a tile: query `row / group` of query head `row % group` of the key head.
#[derive(Clone, Copy)]
struct Rows<'k> {
    group: U32<'k>,
    /// Rows that exist.
    count: U32<'k>,
    /// The first query head.
    head: U32<'k>,
}

impl<'k> Rows<'k> {
    /// Query and query head of a row; beyond the last, those of the last.
    fn place(&self, row: U32<'k>) -> (U32<'k>, U32<'k>) {
        let row = row.min(self.count - 1);
        let query = row / self.group;
        (query, self.head + (row - query * self.group))
    }
}

impl DecodeBody<'_> {
    /// The specification, with the paths of arguments that are as wide as sums, and of those that are keys and values of another type.
    fn spec(&self, wide: [&'static str; 2], cached: &[&'static str]) -> KernelSpec {
        let Self { dtype, cache, kind, layout } = self;
        let of_cache = if cache == dtype { String::new() } else { format!("_{cache}") };
        let name = format!("attention_decode_{dtype}{of_cache}_{}{}", layout.name(), kind.name());
        let sums = crate::attention::statistics_type(*dtype);
        let dtypes = wide.into_iter().fold(DTypes::all(*dtype), |dtypes, path| dtypes.with(path, sums));
        let dtypes = cached.iter().fold(dtypes, |dtypes, path| dtypes.with(path, *cache));
        KernelSpec::new(name, BlockDim::x(layout.threads()))
            .dtypes(dtypes)
            .min_blocks_per_sm(layout.min_blocks_per_sm(*dtype))
    }

    /// One part of the keys of a head for a tile of its rows: `place` has the number of both, key head and batch.
    fn build<'k, A: Accumulate, E: Engine<'k, A>>(
        &self,
        k: K<'k>,
        a: Task<'k>,
        engine: &E,
        team: U32<'k>,
        [number, key_head, batch]: [U32<'k>; 3],
    ) {
        let scales = a.scales.map(|scales| scales.of_head(key_head));
        let p = scales.map_or(a.problem, |[of_keys, _]| a.problem.scaled(of_keys));
        let tile = number / a.parts.splits;
        let split = number - tile * a.parts.splits;
        let span = Span::new(self.kind, &p, batch);
        let of = Rows { group: p.group, count: p.queries * p.group, head: key_head * p.group };
        let first = tile * self.layout.rows();
        let q = p.q.source(span.of_queries, of.head, of.count.to_i32(), p.width);
        let q = Source { form: Form::Heads { members: p.group, step: p.q.strides[2] }, ..q };
        let sources = self.sources(&a, &span, key_head, batch);
        let columns = self.layout.tile_columns().cast_signed();
        let last = (first + (self.layout.rows() - 1)).min(of.count - 1) / p.group;
        let [from, end] = span.keys_of((first / p.group).to_i32(), last.to_i32() + 1);
        let from = from & -columns;
        let teams = self.layout.teams();
        let share = |parts: U32<'k>| {
            let tiles = ((end - from).max(0).to_u32() + (self.layout.tile_columns() - 1))
                >> self.layout.tile_columns().trailing_zeros();
            ((tiles + (parts - 1)) / parts).to_i32() * columns
        };
        let (from, end, step) = if self.layout.takes_turns() {
            let share = share(a.parts.splits);
            let from = from + split.to_i32() * share;
            (from + team.to_i32() * columns, end.min(from + share), teams.cast_signed() * columns)
        } else {
            let share = share(a.parts.splits * teams);
            let from = from + (split * teams + team).to_i32() * share;
            (from, end.min(from + share), columns)
        };
        engine.start(k, sources, from, Next::Below(end));
        // The queries come while the first keys are on their way.
        let q = engine.load_stationary(k, q, first.to_i32(), 0);
        engine.publish_stationary(k);
        let place = engine.product_place(k);
        let rows: Vec<_> = place.rows.iter().map(|row| of.place(first + *row)).collect();
        let scorer = |head| Scorer::<A>::new(self.kind, Precision::of(self.dtype), &p, span, head, batch);
        let scorers: Vec<_> = rows.iter().map(|(_, head)| scorer(*head)).collect();
        let tiles = k.range(from, end, step);
        let begin = (OnlineSoftmax::<A>::new(k, rows.len()), engine.zero(k), engine.pipeline_state());
        let (softmax, o, stage) = k.fold(tiles, begin, |at, (softmax, o, stage)| {
            engine.resume(&stage);
            let keys = engine.wait_k(k, sources, at, Next::Below(end));
            let s = engine.product(k, q, keys).map_rows(|row, products| {
                let first = at + place.first.to_i32();
                scorers[row].query_row(products, rows[row].0.to_i32(), (first, &place.columns), true)
            });
            let (p, softmax, o) = softmax.update(k, &scorers[0], &s, o, engine.lazy_rescale());
            let values = engine.wait_v(k, sources, at);
            (softmax, engine.accumulate(k, &p, values, o), engine.pipeline_state())
        });
        engine.resume(&stage);
        engine.finish(k);
        let block =
            DecodeBlock { rows: of, first, batch, split, scale: scales.map(|[_, of_values]| of_values) };
        let found = self.share_results(k, engine, (&place, of.count - first), team, (&softmax, &o));
        self.write(k, &a, &block, &scorers[0], &found);
    }

    /// Keys and values, which may lie in pages: then the table says what their batch is.
    fn sources<'k>(
        &self,
        a: &Task<'k>,
        span: &Span<'k>,
        key_head: U32<'k>,
        batch: U32<'k>,
    ) -> [Source<'k>; 2] {
        let p = a.problem;
        let any = a.pages.table.is_given();
        let table = a.pages.table.value.at(batch.to_u64() * a.pages.step);
        let origin = Origin::Batch(any.select(0u32, batch));
        [(p.k, p.width), (p.v, p.value_width)].map(|(view, width)| {
            let (shift, count) = (a.pages.shift, a.pages.count.to_i32());
            let pages = Pages { table, any, shift, step: view.strides[0], count };
            Source { form: Form::Pages(pages), ..view.source(origin, key_head, span.keys, width) }
        })
    }

    /// Leaves the results of the teams in shared memory, in the place of their tiles.
    fn share_results<'k, A: Accumulate, E: Engine<'k, A>>(
        &self,
        k: K<'k>,
        engine: &E,
        (place, exist): (&Place<'k>, U32<'k>),
        team: U32<'k>,
        (softmax, o): (&OnlineSoftmax<'k, A>, &RegTile<'k, A>),
    ) -> TeamResults<'k> {
        let (rows, teams) = (self.layout.rows(), self.layout.teams());
        let wide = crate::attention::statistics_type(self.dtype);
        let pitch = self.layout.width() + padding(self.cache);
        let values = k.dynamic_shared_elem(wide);
        let [row_maxima, sums] = [(); 2].map(|()| k.shared_elem(wide, rows * teams));
        let sum = softmax.row_sum.iter().map(|sum| k.warp_combine(engine.lanes(), sum, |a, b| a + b));
        let (count, parts) = engine.sum_parts();
        let column = engine.sum_column(k);
        // The tiles of all teams have been read.
        k.barrier();
        for ((slot, row), sum) in place.rows.iter().enumerate().zip(sum) {
            let at = team * rows + *row;
            let one = place.first.eq(0);
            row_maxima.at(at).only_where(one, Fill::Zero).set(softmax.row_max[slot]);
            sums.at(at).only_where(one, Fill::Zero).set(sum);
            // Most problems have few rows.
            k.if_(row.lt(exist), || {
                let to = values.at(at * pitch + column);
                for (part, lanes) in parts.iter().zip(o.row(slot).chunks(count as usize)) {
                    to.at(u64::from(*part)).store(Lanes::from(engine.in_order(lanes)));
                }
            });
        }
        k.barrier();
        TeamResults { values, row_maxima, sums }
    }

    /// Writes result and logarithms, or the block's part of them.
    fn write<'k, A: Accumulate>(
        &self,
        k: K<'k>,
        a: &Task<'k>,
        at: &DecodeBlock<'k>,
        scorer: &Scorer<'k, A>,
        found: &TeamResults<'k>,
    ) {
        let whole = a.parts.splits.eq(1);
        let units = Units::new(*self, &a.problem, at);
        k.for_each(k.range(k.thread_idx(), units.count, self.layout.threads()), |unit| {
            let Unit { row, column, exists, query, head, number } = units.at(unit);
            let (lse, values) = self.of_teams(k, scorer, found, row, column);
            let values = match at.scale {
                Some(scale) => values * scale.convert::<A>(),
                None => values,
            };
            let first_column = exists & column.eq(0);
            let part = at.split.to_u64() * a.parts.rows + number;
            let to = a.parts.o.at(part * units.width.to_u64()).at(column);
            to.only_where(exists & a.parts.splits.ne(1), Fill::Zero).store(values.clone());
            a.parts.lse.at(part).only_where(first_column & a.parts.splits.ne(1), Fill::Zero).set(lse);
            let with = Sink { there: a.sink.there & whole, ..a.sink };
            let (lse, values) = with.applied(head, lse, values);
            let to = a.o.at([at.batch, query, head]);
            to.at(column).only_where(exists & whole, Fill::Zero).store(values);
            a.lse.at(number).only_where(first_column & whole, Fill::Zero).set(lse);
        });
    }

    /// Logarithm and normalised values of all teams, in the order of the teams.
    fn of_teams<'k, A: Accumulate>(
        &self,
        k: K<'k>,
        scorer: &Scorer<'k, A>,
        found: &TeamResults<'k>,
        row: U32<'k>,
        column: U32<'k>,
    ) -> (Reg<'k, A>, Lanes<'k, A>) {
        let (rows, pitch) = (self.layout.rows(), self.layout.width() + padding(self.cache));
        let place = |team: u32| row + team * rows;
        let row_maxima: Vec<Reg<'k, A>> =
            (0..self.layout.teams()).map(|t| found.row_maxima.at(place(t)).get()).collect();
        let top = Lanes::from(row_maxima.clone()).reduce(|a, b| a.max(b)).unwrap_or_else(|| k.lit(0.0));
        let reference = top.eq(f64::NEG_INFINITY).select(0.0, top);
        let vector = self.layout.result_vector();
        let mut total = (k.lit::<A>(0.0), (0..vector).map(|_| k.lit::<A>(0.0)).collect::<Lanes<'k, A>>());
        for (team, top) in row_maxima.into_iter().enumerate() {
            let factor = scorer.exp(top, reference);
            let at = place(team as u32);
            let values = found.values.at(at * pitch + column).load::<A>(vector);
            let sum = found.sums.at(at).get::<A>();
            total = (sum.mul_add(factor, total.0), values.zip(total.1, |v, t| v.mul_add(factor, t)));
        }
        let (sum, values) = total;
        let inverse = sum.eq(0.0).select(0.0, 1.0 / sum);
        let lse = sum.eq(0.0).select(f64::NEG_INFINITY, scorer.log_sum_exp(top, sum));
        (lse, values.map(|v| v * inverse))
    }
}

/// Elements between the rows of values in shared memory, so that rows begin in different banks: lanes that share one have 32 bytes of it at a
/// time, and beside keys and values of 8-bit floats 64.
const fn padding(cache: DType) -> u32 {
    if cache.is_float8() { 16 } else { 8 }
}

/// The results of the teams: `[team][row]` of the maximum, the sum and the values.
struct TeamResults<'k> {
    values: Ptr<'k, Shared, Elem>,
    row_maxima: Ptr<'k, Shared, Elem>,
    sums: Ptr<'k, Shared, Elem>,
}

/// Which part of the result a block has.
struct DecodeBlock<'k> {
    rows: Rows<'k>,
    /// The first of its rows.
    first: U32<'k>,
    batch: U32<'k>,
    split: U32<'k>,
    /// The scale of its values, if they have one.
    scale: Option<F32<'k>>,
}

/// The accesses to a block's result: so many elements of each row that exists.
struct Units<'s, 'k> {
    kernel: DecodeBody<'s>,
    block: &'s DecodeBlock<'k>,
    count: U32<'k>,
    per_row: u32,
    heads: U32<'k>,
    queries: U32<'k>,
    width: U32<'k>,
}

/// One of them.
struct Unit<'k> {
    row: U32<'k>,
    column: U32<'k>,
    /// Whether the columns do.
    exists: Pred<'k>,
    query: U32<'k>,
    head: U32<'k>,
    /// The number of the row among those of `lse`.
    number: U64<'k>,
}

impl<'s, 'k> Units<'s, 'k> {
    fn new(kernel: DecodeBody<'s>, p: &Problem<'k>, block: &'s DecodeBlock<'k>) -> Self {
        let per_row = kernel.layout.width() / kernel.layout.result_vector();
        let count = (block.rows.count - block.first).min(kernel.layout.rows()) * per_row;
        Self { kernel, block, count, per_row, heads: p.heads, queries: p.queries, width: p.value_width }
    }

    fn at(&self, unit: U32<'k>) -> Unit<'k> {
        let Self { kernel, block, per_row, .. } = self;
        let (row, column) =
            (unit >> per_row.trailing_zeros(), (unit & (per_row - 1)) * kernel.layout.result_vector());
        let (query, head) = block.rows.place(block.first + row);
        let number = (block.batch * self.heads + head).mad_wide(self.queries, query.to_u64());
        Unit { row, column, exists: column.lt(self.width), query, head, number }
    }
}
