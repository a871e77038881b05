//! The gradients of what is not a row of a matrix: of the bias, summed over what it is broadcast over, and of the sinks.
//!
//! A block owns a tile of the bias' gradient, whole where a dimension of it is 1, and goes over every tile of scores that it
//! was added to, in order, so that nothing is added up by more than one block.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{accumulate, kernel_args};

use super::backward::{PlaceArgs, Statistics, gradient_of_score};
use super::dropout::Keys;
use super::engine::{Engine, Next, opaque_zero};
use super::mma::MmaEngine;
use super::simt::SimtEngine;
use crate::attention::score::{Origin, Problem, ProblemArgs, ScoreKind, Scorer, Span, View};
use crate::attention::tuning::Config;

kernel_args! {
    /// The gradient of a bias from `do` and [`Statistics`].
    pub(in crate::attention) struct BiasArgs => BiasParams {
        problem: ProblemArgs, dy: Strided<In<Elem>, 3>, statistics: In<Elem>,
        dbias: Strided<Out<Elem>, 4>,
        /// 1 for each of batch, head, row and column that is broadcast.
        one: [u32; 4],
        batches: u32,
        /// Queries and keys.
        longest: [u32; 2],
    }
}

#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct BiasGradient {
    pub(in crate::attention) dtype: DType,
    pub(in crate::attention) kind: ScoreKind,
    pub(in crate::attention) config: Config,
}

impl KernelDef for BiasGradient {
    type Args = BiasArgs;

    fn spec(&self) -> KernelSpec {
        let min_blocks_per_sm = match self.config {
            // The assembler would aim at more blocks than the loops leave registers for.
            Config::Mma(_) if self.dtype == DType::F32 => Some(1),
            config => config.layout().min_blocks_per_sm(self.dtype),
        };
        let (dtype, layout) = (self.dtype, self.config.layout().name());
        let name = format!("attention_backward_bias_{dtype}_{layout}{}", self.kind.name());
        self.config.spec(name, dtype, "statistics").min_blocks_per_sm(min_blocks_per_sm)
    }

    fn build<'k>(&self, k: K<'k>, a: BiasParams<'k>) {
        match self.config {
            Config::Simt(simt) => accumulate!(self.dtype, |A| {
                self.body::<A, _>(k, a, &SimtEngine::new(k, simt, self.dtype, 2));
            }),
            Config::Mma(tensor) => {
                self.body(k, a, &MmaEngine::new(k, tensor, k.mma_atom(self.dtype), 2));
            }
        }
    }
}

/// One dimension of the bias: the part that the block owns, and the parts of the scores that add to it.
#[derive(Clone, Copy)]
struct Dimension<'k> {
    index: U32<'k>,
    /// Parts of the scores: all that there are where the bias has one.
    count: U32<'k>,
    /// Whether the bias has one.
    one: Pred<'k>,
}

impl<'k> Dimension<'k> {
    /// `number` counts parts of the bias, `all` are those of the scores.
    fn new(index: U32<'k>, all: U32<'k>, one: U32<'k>) -> Self {
        let one = one.ne(0);
        Self { index, count: one.select(all, 1), one }
    }

    /// The part of the scores of turn `turn`.
    fn part(&self, turn: U32<'k>) -> U32<'k> {
        self.one.select(turn, self.index)
    }
}

impl BiasGradient {
    fn body<'k, A: Accumulate, E: Engine<'k, A>>(&self, k: K<'k>, a: BiasParams<'k>, engine: &E) {
        let p = Problem::of(a.problem);
        let (rows, columns) = (self.config.layout().rows(), self.config.layout().tile_columns());
        let tiles = |extent: U32<'k>, size: u32| (extent + (size - 1)) / size;
        let (row_tiles, column_tiles) = (tiles(a.longest[0], rows), tiles(a.longest[1], columns));
        // The bias' tiles along x: columns first, one where the dimension is broadcast.
        let [one_batch, one_head, one_row, one_column] = a.one;
        let across = one_column.ne(0).select(1u32, column_tiles);
        let down = k.block_idx_x() / across;
        let of_column = Dimension::new(k.block_idx_x() - down * across, column_tiles, one_column);
        let of_row = Dimension::new(down, row_tiles, one_row);
        let of_head = Dimension::new(k.block_idx_y(), p.heads, one_head);
        let of_batch = Dimension::new(k.block_idx_z(), a.batches, one_batch);

        let place = engine.product_place(k);
        let zeros = RegTile::zero(k, engine.lanes(), place.rows.len() as u32, place.columns.len() as u32);
        let turns = |dimension: Dimension<'k>| k.range(0u32, dimension.count, 1u32);
        let sum = k.fold(turns(of_batch), zeros, |batch, sum| {
            let batch = of_batch.part(batch);
            let span = Span::new(self.kind, &p, batch);
            k.fold(turns(of_head), sum, |head, sum| {
                let head = of_head.part(head);
                k.fold(turns(of_row), sum, |tile, sum| {
                    let first = (of_row.part(tile) * rows).to_i32();
                    k.fold(turns(of_column), sum, |tile, sum| {
                        let at = (of_column.part(tile) * columns).to_i32();
                        let ds = self.tile::<A, E>(k, &a, engine, span, [batch, head], [first, at]);
                        &sum + &ds
                    })
                })
            })
        });
        self.store::<A, E>(k, &a, engine, [of_row, of_column], &sum);
    }

    /// The gradients of one tile of scores, 0 where there is no pair.
    fn tile<'k, A: Accumulate, E: Engine<'k, A>>(
        &self,
        k: K<'k>,
        a: &BiasParams<'k>,
        engine: &E,
        span: Span<'k>,
        [batch, head]: [U32<'k>; 2],
        [first, at]: [I32<'k>; 2],
    ) -> RegTile<'k, A> {
        let p = Problem::of(a.problem);
        let scorer = Scorer::<A>::new(self.kind, Precision::of(self.dtype), &p, span, head, batch);
        let sources = p.columns(&span, p.key_head(head));
        let dy = View::of(a.dy);
        // Of keys that do not exist zeros are loaded.
        let end = at + self.config.layout().tile_columns().cast_signed();
        // The rows of the turn before have been read. Addresses are computed again for each tile instead of being kept.
        k.barrier();
        let again = if engine.register_bound() { first + opaque_zero(at).to_i32() } else { first };
        let q_tile =
            engine.load_stationary(k, p.q.source(span.of_queries, head, span.queries, p.width), again, 0);
        let dy_tile = engine.load_stationary(
            k,
            dy.source(span.of_queries, head, span.queries, p.value_width),
            again,
            1,
        );
        engine.start(k, sources, at, Next::Below(end));
        let keys = engine.wait_k(k, sources, at, Next::Below(end));
        let base = scorer.base(k, engine.product(k, q_tile, keys));
        let place = engine.product_place(k);
        let pair = |row, column| (again + row, at + column);
        let scores = scorer.tile(&base, &place, (Keys::Columns, true, false), pair);
        let values = engine.wait_v(k, sources, at);
        let kept = scorer.kept(k, engine, &place, Keys::Columns, pair);
        let dps = scorer.dropped(engine.product(k, dy_tile, values), kept.as_ref());
        engine.finish(k);
        let statistics = Statistics::new(a.statistics, p.first_row(span.of_queries, head), self.config);
        let (lse, delta) = statistics.of_rows::<A>(first, &place, span.queries);
        scores.map(|slot, column, score| {
            let p = scorer.probability(score, lse[slot]);
            gradient_of_score(p, dps.row(slot)[column], delta[slot])
        })
    }

    /// Adds up rows and columns that the bias has one of, through shared memory, and writes the result.
    fn store<'k, A: Accumulate, E: Engine<'k, A>>(
        &self,
        k: K<'k>,
        a: &BiasParams<'k>,
        engine: &E,
        [of_row, of_column]: [Dimension<'k>; 2],
        sum: &RegTile<'k, A>,
    ) {
        let (rows, columns) = (self.config.layout().rows(), self.config.layout().tile_columns());
        let pitch = columns + 1;
        let memory = k.dynamic_shared_elem(crate::attention::statistics_type(self.dtype));
        let place = engine.product_place(k);
        k.barrier();
        for (row, sums) in place.rows.iter().zip(sum.rows()) {
            let at = memory.at(*row * pitch + place.first);
            for (column, sum) in place.columns.iter().zip(sums) {
                at.at(u64::from(*column)).set(*sum);
            }
        }
        k.barrier();
        let (kept_rows, kept_columns) = (of_row.one.select(1u32, rows), of_column.one.select(1u32, columns));
        let (more_rows, more_columns) = (of_row.one.select(rows, 1u32), of_column.one.select(columns, 1u32));
        let extent = |dimension: Dimension<'k>, all: U32<'k>| dimension.one.select(1u32, all);
        let extents = [extent(of_row, a.longest[0]), extent(of_column, a.longest[1])];
        let [of_batch, of_head, along_row, along_column] = a.dbias.strides;
        let to = a.dbias.data.at(k.block_idx_z().to_u64() * of_batch + k.block_idx_y().to_u64() * of_head);
        k.for_each(
            k.range(k.thread_idx(), kept_rows * kept_columns, self.config.layout().threads()),
            |unit| {
                let row = unit / kept_columns;
                let column = unit - row * kept_columns;
                let total = k.fold(k.range(0u32, more_rows, 1u32), k.lit::<A>(0.0), |down, total| {
                    let from = memory.at((row + down) * pitch + column);
                    k.fold(k.range(0u32, more_columns, 1u32), total, |across, total| {
                        total + from.at(across).get::<A>()
                    })
                });
                let (row, column) = (of_row.index * rows + row, of_column.index * columns + column);
                let there = row.lt(extents[0]) & column.lt(extents[1]);
                let to = to.at(row.to_u64() * along_row + column.to_u64() * along_column);
                to.only_where(there, Fill::Zero).set(total);
            },
        );
    }
}

kernel_args! {
    /// The gradients of the sinks from `lse` and [`Statistics`].
    pub(in crate::attention) struct SinkArgs => SinkParams {
        problem: ProblemArgs,
        sinks: In<f32>, lse: In<Elem>, statistics: In<Elem>, dsinks: Out<f32>, batches: u32,
        places: PlaceArgs,
    }
}

/// A block for each head: `dsink = -sum_i e^(sink - lse_i) delta_i`, since the sink has no value.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct SinkGradient {
    pub(in crate::attention) dtype: DType,
    pub(in crate::attention) kind: ScoreKind,
}

impl SinkGradient {
    const THREADS: u32 = 256;
}

impl AccumulateKernel for SinkGradient {
    type Args = SinkArgs;

    fn spec(&self) -> KernelSpec {
        let statistics = crate::attention::statistics_type(self.dtype);
        KernelSpec::new(
            format!("attention_backward_sinks_{}{}", self.dtype, self.kind.name()),
            BlockDim::x(Self::THREADS),
        )
        .dtypes(DTypes::all(self.dtype).with("lse", statistics).with("statistics", statistics))
    }

    fn build<'k, A: Accumulate>(&self, k: K<'k>, a: SinkParams<'k>) {
        let (p, head) = (Problem::of(a.problem), k.block_idx_x());
        let sink = a.sinks.at(head).get::<f32>().convert::<A>();
        let of_batch = k.range(0u32, a.batches, 1u32);
        let sum = k.fold(of_batch, k.lit::<A>(0.0), |batch, sum| {
            let span = Span::new(self.kind, &p, batch);
            let first = p.first_row(span.of_queries, head);
            let of_head = match span.of_queries {
                Origin::Batch(batch) => (batch * p.heads + head).mul_wide(a.places.pitch),
                Origin::Row(_) => first,
            };
            let (lse, deltas) = (a.lse.at(first), a.statistics.at(of_head * 2u64).at(a.places.apart));
            let queries = k.range(k.thread_idx(), span.queries.to_u32(), Self::THREADS);
            k.fold(queries, sum, |query, sum| {
                let lse = lse.at(query).get::<A>();
                // A sink of minus infinity takes no part.
                let p = lse.eq(f64::NEG_INFINITY).select(0.0, (sink - lse).exp());
                sum - p * deltas.at(query.to_u64() * a.places.step).get::<A>()
            })
        });
        let sum = k.block_combine(sum, |a, b| a + b);
        k.if_(k.thread_idx().eq(0), || {
            a.dsinks.at(head).set(sum.to_f32());
        });
    }
}
