//! Few queries and many keys: the keys of a head are shared out to blocks and to teams in them, and what these found is put
//! together in a fixed order.
//!
//! The query heads that read one key head are rows of one tile, so that its keys and values are read once. On tensor cores
//! each warp is a team: it walks over tiles of 16 keys of its own, with copies of several on their way, and meets the
//! others at the end. Keys and values may lie in pages.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{WARP, accumulate, kernel_args};

use super::engine::{Engine, Form, Pages, Place, Source};
use super::forward::{Running, all_lanes, soften};
use super::score::{Origin, ScoreKind, Scorer, Sink, Span, attention_args};
use super::simt::SimtEngine;
use super::tensor_core::TensorCoreEngine;
use super::tuning::DecodeConfig;

attention_args! {
    /// `o` and `lse` where one block has all keys of a head, and its part of both in `parts` and `part_lse` elsewhere.
    DecodeArgs => DecodeParams {
        o: Out<Elem>, o_batch: u64, o_row: u64, o_head: u64, lse: Out<Elem>,
        sinks: In<f32>, has_sinks: u32,
        parts: Out<Elem>, part_lse: Out<Elem>, splits: u32, rows: u64,
        table: In<i32>, has_table: u32, table_step: u64, page_shift: u32, pages: u32,
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Decode {
    pub(super) dtype: DType,
    pub(super) kind: ScoreKind,
    pub(super) config: DecodeConfig,
}

impl KernelDef for Decode {
    type Args = DecodeArgs;

    fn name(&self) -> String {
        format!("attention_decode_{}_{}{}", self.dtype, self.config.name(), self.kind.name())
    }

    fn block(&self) -> BlockDim {
        BlockDim::x(self.config.threads())
    }

    fn dtypes(&self) -> DTypes {
        let wide = super::statistics_type(self.dtype);
        DTypes::all(self.dtype).with("lse", wide).with("parts", wide).with("part_lse", wide)
    }

    fn build<'k>(&self, k: K<'k>, a: DecodeParams<'k>) {
        k.start_next_grid();
        match self.config {
            DecodeConfig::Simt(simt) => accumulate!(self.dtype, |A| {
                self.body::<A, _>(k, a, &SimtEngine::new(k, simt, self.dtype, 1), k.lit(0u32));
            }),
            DecodeConfig::TensorCore(teams) => {
                let engine = TensorCoreEngine::alone(k, teams, super::tensor_core::atom(self.dtype));
                self.body(k, a, &engine, k.warp_idx());
            }
        }
    }
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

impl Decode {
    fn body<'k, A: Float, E: Engine<'k, A>>(&self, k: K<'k>, a: DecodeParams<'k>, engine: &E, team: U32<'k>)
    where
        Elem: Access<A>,
    {
        let p = a.problem();
        let (key_head, batch) = (k.block_idx_y(), k.block_idx_z());
        let tile = k.block_idx_x() / a.splits;
        let split = k.block_idx_x() - tile * a.splits;
        let span = Span::new(self.kind, &p, batch);
        let of = Rows { group: p.group, count: p.queries * p.group, head: key_head * p.group };
        let first = tile * self.config.rows();
        let q = p.q.source(span.of_queries, of.head, of.count.to_i32(), p.width);
        let q = Source { form: Form::Heads { members: p.group, step: p.q.strides[2] }, ..q };
        let own = engine.own(k, q, first.to_i32(), 0);
        let sources = self.sources(&a, &span, key_head, batch);

        let place = engine.product_place(k);
        let rows: Vec<_> = place.rows.iter().map(|row| of.place(first + *row)).collect();
        let scorer = |head| Scorer::<A>::new(self.kind, Precision::of(self.dtype), &p, span, head, batch);
        let scorers: Vec<_> = rows.iter().map(|(_, head)| scorer(*head)).collect();
        let columns = self.config.tile_columns().cast_signed();
        let last = (first + (self.config.rows() - 1)).min(of.count - 1) / p.group;
        let [from, end] = span.keys_of((first / p.group).to_i32(), last.to_i32() + 1);
        let from = from & -columns;
        let share = {
            let parts = (a.splits * self.config.teams()).to_i32();
            let tiles = ((end - from).max(0) + (columns - 1)) / columns;
            (tiles + parts - 1) / parts * columns
        };
        let number = split * self.config.teams() + team;
        let from = from + number.to_i32() * share;
        let end = end.min(from + share);
        engine.start(k, sources, from, end);
        let tiles = k.range(from, end, columns);
        let state = k.fold(tiles, Running::<A>::new(k, engine), |at, state| {
            let keys = engine.first(k, sources, at, end);
            let products = engine.product(k, own, keys);
            let of_slot = |slot: usize| {
                let query = rows[slot].0.to_i32();
                scorers[slot].row(&products[slot], &place, true, |column| (query, at + column))
            };
            let scores = (0..products.len()).map(of_slot).collect();
            let (weights, state) = soften(k, engine, &scorers[0], scores, state);
            let values = engine.second(k, sources, at);
            Running { values: engine.accumulate(k, &weights, values, state.values), ..state }
        });
        engine.finish(k);
        let found = self.put_together(k, engine, &place, team, &state);
        self.write(k, &a, &Block { rows: of, first, batch, split }, &scorers[0], &found);
    }

    /// Keys and values, which may lie in pages: then the table says what their batch is.
    fn sources<'k>(
        &self,
        a: &DecodeParams<'k>,
        span: &Span<'k>,
        key_head: U32<'k>,
        batch: U32<'k>,
    ) -> [Source<'k>; 2] {
        let p = a.problem();
        let any = a.has_table.ne(0);
        let table = a.table.at(batch.to_u64() * a.table_step);
        let origin = Origin::Batch(any.select(0u32, batch));
        [(p.k, p.width), (p.v, p.value_width)].map(|(view, width)| {
            let (shift, count) = (a.page_shift, a.pages.to_i32());
            let pages = Pages { table, any, shift, step: view.strides[0], count };
            Source { form: Form::Pages(pages), ..view.source(origin, key_head, span.keys, width) }
        })
    }

    /// Leaves what the teams found in shared memory, in the place of their tiles, and returns how to read it.
    fn put_together<'k, A: Float, E: Engine<'k, A>>(
        &self,
        k: K<'k>,
        engine: &E,
        place: &Place<'k>,
        team: U32<'k>,
        state: &Running<'k, A>,
    ) -> Found<'k>
    where
        Elem: Access<A>,
    {
        let (rows, teams) = (self.config.rows(), self.config.teams());
        let wide = super::statistics_type(self.dtype);
        let pitch = self.config.width() + PADDING;
        let values = k.dynamic_shared_elem(wide);
        let [tops, sums] = [(); 2].map(|()| k.shared_elem(wide, rows * teams));
        let sum = state.sum.iter().map(|sum| all_lanes(k, engine, *sum));
        let (count, parts) = engine.sum_parts();
        let column = engine.sum_column(k);
        // The tiles of all teams have been read.
        k.barrier();
        for ((slot, row), sum) in place.rows.iter().enumerate().zip(sum) {
            let at = team * rows + *row;
            let one = place.first.eq(0);
            tops.at(at).only_where(one, Fill::Zero).set(state.top[slot]);
            sums.at(at).only_where(one, Fill::Zero).set(sum);
            let to = values.at(at * pitch + column);
            for (part, lanes) in parts.iter().zip(state.values[slot].chunks(count as usize)) {
                to.at(u64::from(*part)).store(Lanes::from(lanes.to_vec()));
            }
        }
        k.barrier();
        Found { values, tops, sums }
    }

    /// Writes result and logarithms, or the block's part of them.
    fn write<'k, A: Float>(
        &self,
        k: K<'k>,
        a: &DecodeParams<'k>,
        at: &Block<'k>,
        scorer: &Scorer<'k, A>,
        found: &Found<'k>,
    ) where
        Elem: Access<A>,
    {
        let p = a.problem();
        let (rows, vector) = (self.config.rows(), self.config.result_vector());
        let per_row = self.config.width() / vector;
        let units = k.range(k.thread_idx(), rows * per_row, self.config.threads());
        k.for_each(units, |unit| {
            let (row, column) = (unit / per_row, (unit & (per_row - 1)) * vector);
            let exists = (at.first + row).lt(at.rows.count) & column.lt(p.value_width);
            let (query, head) = at.rows.place(at.first + row);
            let (lse, values) = self.of_teams(k, scorer, found, row, column);
            let first_column = exists & column.eq(0);
            let whole = a.splits.eq(1);
            let with = Sink { sinks: a.sinks, there: a.has_sinks.ne(0) & whole };
            let (lse, values) = with.applied(head, lse, values);
            let number = (at.batch * p.heads + head).mad_wide(p.queries, query.to_u64());
            let to =
                a.o.at(at.batch.to_u64() * a.o_batch + query.to_u64() * a.o_row + head.to_u64() * a.o_head);
            to.at(column).only_where(exists & whole, Fill::Zero).store(values.clone());
            a.lse.at(number).only_where(first_column & whole, Fill::Zero).set(lse);
            let part = at.split.to_u64() * a.rows + number;
            let to = a.parts.at(part * p.value_width.to_u64()).at(column);
            to.only_where(exists & a.splits.ne(1), Fill::Zero).store(values);
            a.part_lse.at(part).only_where(first_column & a.splits.ne(1), Fill::Zero).set(lse);
        });
    }

    /// Logarithm and normalised values of all teams, in the order of the teams.
    fn of_teams<'k, A: Float>(
        &self,
        k: K<'k>,
        scorer: &Scorer<'k, A>,
        found: &Found<'k>,
        row: U32<'k>,
        column: U32<'k>,
    ) -> (Reg<'k, A>, Lanes<'k, A>)
    where
        Elem: Access<A>,
    {
        let (rows, pitch) = (self.config.rows(), self.config.width() + PADDING);
        let place = |team: u32| row + team * rows;
        let tops: Vec<Reg<'k, A>> = (0..self.config.teams()).map(|t| found.tops.at(place(t)).get()).collect();
        let top = Lanes::from(tops.clone()).reduce(|a, b| a.max(b)).unwrap_or_else(|| k.lit(0.0));
        let reference = top.eq(f64::NEG_INFINITY).select(0.0, top);
        let vector = self.config.result_vector();
        let mut total = (k.lit::<A>(0.0), (0..vector).map(|_| k.lit::<A>(0.0)).collect::<Lanes<'k, A>>());
        for (team, top) in tops.into_iter().enumerate() {
            let factor = scorer.power(top, reference);
            let at = place(team as u32);
            let values = found.values.at(at * pitch + column).load::<A>(vector);
            let sum = found.sums.at(at).get::<A>();
            total = (sum.mul_add(factor, total.0), values.zip(total.1, |v, t| v.mul_add(factor, t)));
        }
        let (sum, values) = total;
        let inverse = sum.eq(0.0).select(0.0, 1.0 / sum);
        let lse = sum.eq(0.0).select(f64::NEG_INFINITY, scorer.log_sum(top, sum));
        (lse, values.map(|v| v * inverse))
    }
}

/// Elements between the rows of values in shared memory, so that rows begin in different banks.
const PADDING: u32 = 8;

/// What the teams found: `[team][row]` of the greatest score, the sum and the values.
struct Found<'k> {
    values: Ptr<'k, Shared, Elem>,
    tops: Ptr<'k, Shared, Elem>,
    sums: Ptr<'k, Shared, Elem>,
}

/// Which part of the result a block has.
struct Block<'k> {
    rows: Rows<'k>,
    /// The first of its rows.
    first: U32<'k>,
    batch: U32<'k>,
    split: U32<'k>,
}

kernel_args! {
    /// `o` and `lse` from parts of them: `splits` times `rows` rows.
    pub(super) struct CombineArgs => CombineParams {
        parts: In<Elem>, part_lse: In<Elem>, splits: u32, rows: u64,
        sinks: In<f32>, has_sinks: u32,
        o: Out<Elem>, o_batch: u64, o_row: u64, o_head: u64, lse: Out<Elem>,
        queries: u32, heads: u32, width: u32,
    }
}

/// A block for each row: its warps share the parts, and their sums are added in order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Combine {
    pub(super) dtype: DType,
    /// Elements of an access.
    pub(super) vector: u32,
}

impl Combine {
    const WARPS: u32 = 8;
}

impl KernelDef for Combine {
    type Args = CombineArgs;

    fn name(&self) -> String {
        format!("attention_combine_{}_x{}", self.dtype, self.vector)
    }

    fn block(&self) -> BlockDim {
        BlockDim::x(Self::WARPS * WARP)
    }

    fn dtypes(&self) -> DTypes {
        DTypes::all(super::statistics_type(self.dtype)).with("o", self.dtype)
    }

    fn build<'k>(&self, k: K<'k>, a: CombineParams<'k>) {
        k.after_previous_grid();
        accumulate!(self.dtype, |A| self.body::<A>(k, a));
    }
}

impl Combine {
    fn body<'k, A: Float>(&self, k: K<'k>, a: CombineParams<'k>)
    where
        Elem: Access<A>,
    {
        let row = k.block_idx_x().to_u64();
        let (warp, lane) = (k.warp_idx(), k.lane_idx());
        let lse = |split: U32<'k>| a.part_lse.at(split.to_u64() * a.rows + row).get::<A>();
        let all = k.range(lane, a.splits, WARP);
        let lowest = k.lit::<A>(f64::NEG_INFINITY);
        let top = k.fold(all, lowest, |split, top| top.max(lse(split)));
        let top = k.warp_combine(WARP, top, |a, b| a.max(b));
        let reference = top.eq(f64::NEG_INFINITY).select(0.0, top);
        let sum = k.fold(all, k.lit::<A>(0.0), |split, sum| sum + (lse(split) - reference).exp());
        let sum = k.warp_combine(WARP, sum, |a, b| a + b);
        let nothing = sum.eq(0.0);
        let whole = nothing.select(f64::NEG_INFINITY, reference + sum.log());
        let inverse = nothing.select(0.0, 1.0 / sum);
        let (batch, head, query) = {
            let row = k.block_idx_x();
            let rest = row / a.queries;
            let batch = rest / a.heads;
            (batch, rest - batch * a.heads, row - rest * a.queries)
        };
        let width = a.width.to_u64();
        let to = a.o.at(batch.to_u64() * a.o_batch + query.to_u64() * a.o_row + head.to_u64() * a.o_head);
        let shared = k.shared_elem(super::statistics_type(self.dtype), Self::WARPS * WARP * self.vector);
        let mine = shared.at((warp * WARP + lane) * self.vector);
        let sink = Sink { sinks: a.sinks, there: a.has_sinks.ne(0) };
        k.for_each(k.range(0u32, a.width, WARP * self.vector), |first| {
            let column = first + lane * self.vector;
            let there = column.lt(a.width);
            let zeros: Lanes<'k, A> = (0..self.vector).map(|_| k.lit::<A>(0.0)).collect();
            let values = k.fold(k.range(warp, a.splits, Self::WARPS), zeros, |split, sum| {
                let factor = (lse(split) - reference).exp();
                let from = a.parts.at((split.to_u64() * a.rows + row) * width).at(column);
                let part = from.only_where(there, Fill::Zero).load::<A>(self.vector);
                part.zip(sum, |part, sum| part.mul_add(factor, sum))
            });
            k.barrier();
            mine.store(values);
            k.barrier();
            k.if_(warp.eq(0) & there, || {
                let of_warp =
                    |warp: u32| mine.at(u64::from(warp * WARP * self.vector)).load::<A>(self.vector);
                let total = (1..Self::WARPS).fold(of_warp(0), |sum, w| sum.zip(of_warp(w), |a, b| a + b));
                let (lse, values) = sink.applied(head, whole, total.map(|v| v * inverse));
                to.at(column).store(values);
                a.lse.at(row).only_where(column.eq(0), Fill::Zero).set(lse);
            });
        });
    }
}
