//! The sweeps for the gradients on the tensor cores of sm_90a.
//!
//! A block has rows of its own, of two tensors, and walks over tiles of columns of the two others: queries and gradients of the
//! result over keys and values, or the other way round. Scores of a tile are products of the first tensors, their gradients those
//! of the second; both stay in the registers in which the products leave them, and are the left operands of the products that are
//! summed.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{
    Mbarrier, PanelTile, Part, Pipeline, PipelineState, TensorMapArg, WARP, WarpgroupSums, kernel_args,
};

use super::super::dropout::Keys;
use super::super::engine::{Destination, Walk};
use super::super::forward::Masked;
use super::layouts::WgmmaSweep;
use super::{GROUP, GROUP_ROWS};
use crate::attention::layout::BlockLayout;
use crate::attention::score::{
    BlockMaskArgs, BlockMaskParams, MaskTile, MaskTiles, Problem, ProblemArgs, ScoreKind, Scorer, Span, View,
};
use crate::attention::tuning::Work;

kernel_args! {
    /// Gradients from `do` and what is known of queries: of queries in `first`, or of keys in `first` and of values in `second`.
    pub(in crate::attention) struct WgmmaBackwardArgs => WgmmaBackwardParams {
        problem: ProblemArgs,
        stationary_first: TensorMapArg, stationary_second: TensorMapArg, columns_first: TensorMapArg, columns_second: TensorMapArg,
        statistics: In<Elem>, of_queries: TensorMapArg, pitch: u32,
        first: Strided<Out<Elem>, 3>, second: Strided<Out<Elem>, 3>,
    }
}

kernel_args! {
    /// The same of the pairs that a mask lists.
    pub(in crate::attention) struct MaskedWgmmaBackwardArgs => MaskedWgmmaBackwardParams {
        sweep: WgmmaBackwardArgs, mask: BlockMaskArgs,
    }
}

/// The named barrier of the warps that multiply.
const CUT: u32 = 1;

#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct WgmmaBackward {
    /// Any but the forward kernel.
    pub(in crate::attention) work: Work,
    pub(in crate::attention) dtype: DType,
    pub(in crate::attention) kind: ScoreKind,
    pub(in crate::attention) config: WgmmaSweep,
}

/// The columns that a block visits.
#[derive(Clone, Copy, Debug)]
enum Columns<'k> {
    Walked(Walk<'k>),
    /// Those that a mask lists for each head.
    Listed(BlockMaskParams<'k>),
}

/// Which pairs of a tile see each other.
#[derive(Clone, Copy)]
enum Pairs<'k> {
    /// All, or those whose positions say so at the ends of the walk.
    Positioned(Walk<'k>),
    Listed(MaskTiles<'k>, MaskTile<'k>),
}

/// The problem of a block, and its shared memory.
#[derive(Clone, Copy, Debug)]
struct SweepBlock<'k> {
    span: Span<'k>,
    head: U32<'k>,
    key_head: U32<'k>,
    batch: U32<'k>,
    /// The first of its rows.
    first: I32<'k>,
    columns: Columns<'k>,
    base: U32<'k>,
    stationary_ready: Mbarrier<'k>,
    pipeline: Pipeline<'k>,
}

/// Rows of a group as what tiles are multiplied with.
#[derive(Clone, Debug)]
enum Own<'k> {
    Shared(Part<'k>),
    Held(Vec<U32<'k>>),
}

/// Where a thread's sums lie: the row of the first of them, and their first column.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lane<'k> {
    pub(super) row: I32<'k>,
    pub(super) column: U32<'k>,
}

impl<'k> Lane<'k> {
    /// The numbers of a thread's columns, of as many in shared memory from `first` on: two of each eight.
    pub(super) fn of_columns(self, k: K<'k>, first: U32<'k>, columns: u32) -> Vec<F32<'k>> {
        let from = k.shared_at::<f32>(first).at(self.column);
        let pair = |eight: u32| from.at(u64::from(8 * eight)).load::<f32>(2);
        (0..columns / 8).map(pair).flat_map(|pair| [pair[0], pair[1]]).collect()
    }
}

/// Which of the two rows of a thread sum `i` is in, and how far its column is from the first.
pub(super) const fn place(i: u32) -> (u32, u32) {
    (i / 2 % 2, i / 4 * 8 + i % 2)
}

impl KernelDef for WgmmaBackward {
    type Args = WgmmaBackwardArgs;

    fn spec(&self) -> KernelSpec {
        let Self { work, dtype, kind, config } = self;
        KernelSpec::new(
            format!("attention_backward_{}_{dtype}_{}{}", work.gradients(), config.name(), kind.name()),
            BlockDim::x(self.config.threads()),
        )
        .dtypes(DTypes::all(self.dtype).with("statistics", DType::F32))
        .min_blocks_per_sm(1)
    }

    fn build<'k>(&self, k: K<'k>, a: WgmmaBackwardParams<'k>) {
        self.of_pairs(k, &a, None);
    }
}

impl KernelDef for Masked<WgmmaBackward> {
    type Args = MaskedWgmmaBackwardArgs;

    fn spec(&self) -> KernelSpec {
        self.0.spec().dtypes(DTypes::all(self.0.dtype).with("sweep.statistics", DType::F32))
    }

    fn build<'k>(&self, k: K<'k>, a: MaskedWgmmaBackwardParams<'k>) {
        self.0.of_pairs(k, &a.sweep, Some(a.mask));
    }
}

impl WgmmaBackward {
    fn of_pairs<'k>(&self, k: K<'k>, a: &WgmmaBackwardParams<'k>, mask: Option<BlockMaskParams<'k>>) {
        let block = self.block_of(k, a, mask);
        let multiplies = k.warp_idx().lt(self.warps());
        k.if_else(multiplies, || self.multiply(k, a, &block), || self.fetch(k, a, &block));
    }

    /// Warps that multiply.
    const fn warps(&self) -> u32 {
        self.config.groups * (GROUP / WARP)
    }

    fn of_queries(&self) -> bool {
        self.work == Work::Queries
    }

    fn block_of<'k>(
        &self,
        k: K<'k>,
        a: &WgmmaBackwardParams<'k>,
        mask: Option<BlockMaskParams<'k>>,
    ) -> SweepBlock<'k> {
        let p = Problem::of(a.problem);
        let (rows, columns) = (self.config.rows(), self.config.columns);
        let base = k.dynamic_shared_tiles();
        let (stationary_ready, pipeline) = (k.mbarriers(1).at(0), k.mbarrier_pipeline(self.config.tiles));
        k.if_(k.thread_idx().eq(0), || {
            stationary_ready.init(1);
            pipeline.init(self.warps());
            k.publish_mbarriers();
        });
        k.barrier();
        let [tile, head, batch] = p.place(k, self.of_queries() && self.kind.is_uneven());
        let span = Span::new(self.kind, &p, batch);
        let first = (tile * rows).to_i32();
        let end = first + rows.cast_signed();
        let key_head = if self.of_queries() { p.key_head(head) } else { head };
        let columns = match (mask, self.of_queries()) {
            (Some(mask), _) => Columns::Listed(mask),
            (None, true) => Columns::Walked(span.walk_keys(first, end, columns)),
            (None, false) => Columns::Walked(span.walk_queries(first, end, columns)),
        };
        SweepBlock { span, head, key_head, batch, first, columns, base, stationary_ready, pipeline }
    }

    /// The list of a mask for a query head.
    fn list<'k>(&self, block: &SweepBlock<'k>, mask: BlockMaskParams<'k>, head: U32<'k>) -> MaskTiles<'k> {
        let keys = if self.of_queries() { Keys::Columns } else { Keys::Rows };
        MaskTiles::new(mask, keys, [head, block.batch], block.first, self.config.columns)
    }

    /// Where a tile of the pipeline begins.
    fn tile<'k>(&self, block: &SweepBlock<'k>, pipe: PipelineState<'k>) -> U32<'k> {
        let stationary = self.config.stationary_bytes(self.dtype, self.work.stationary());
        pipe.stage().mul_add(self.config.tile_bytes(self.dtype), block.base + stationary)
    }

    /// Where the statistics of its columns begin.
    fn statistics<'k>(&self, block: &SweepBlock<'k>, pipe: PipelineState<'k>) -> U32<'k> {
        let stationary = self.config.stationary_bytes(self.dtype, self.work.stationary());
        let tiles = self.config.tiles * self.config.tile_bytes(self.dtype);
        pipe.stage().mul_add(self.config.statistics_bytes(), block.base + (stationary + tiles))
    }

    /// `body` of each query head of the block, one after the other.
    fn heads<'k, C: Carry<'k>>(
        &self,
        k: K<'k>,
        a: &WgmmaBackwardParams<'k>,
        block: &SweepBlock<'k>,
        init: C,
        body: impl FnOnce(U32<'k>, C) -> C,
    ) -> C {
        if self.of_queries() {
            return body(block.head, init);
        }
        let first = block.key_head * a.problem.group;
        k.fold(k.range(first, first + a.problem.group, 1u32), init, body)
    }

    /// Copies the tiles of all steps, as places in the pipeline become free: that of the second tensor, then that of the first.
    fn fetch<'k>(&self, k: K<'k>, a: &WgmmaBackwardParams<'k>, block: &SweepBlock<'k>) {
        k.release_registers(self.config.registers().1);
        k.if_(k.thread_idx().eq(self.warps() * WARP), || {
            let [own, own_second] = self.config.stationary(self.dtype);
            let zero = k.lit(0u32);
            let row = block.first.to_u32();
            let of_own = [if self.of_queries() { block.head } else { block.key_head }, block.batch];
            let bytes = self.config.stationary_bytes(self.dtype, self.work.stationary());
            block.stationary_ready.arrive_expecting(bytes);
            own.fetch(a.stationary_first, block.base, (row, zero), &of_own, block.stationary_ready);
            if self.work != Work::Values {
                let to = block.base + own.bytes();
                own_second.fetch(a.stationary_second, to, (row, zero), &of_own, block.stationary_ready);
            }
            let ([first, second], pipeline) = (self.config.of_products(self.dtype), block.pipeline);
            let _ = self.heads(k, a, block, pipeline.start(k), |head, pipe| {
                let of_columns = [if self.of_queries() { block.key_head } else { head }, block.batch];
                let kinds = (block.batch * a.problem.heads + head) * 2;
                let copy = |at: I32<'k>, pipe: PipelineState<'k>| {
                    let row = at.to_u32();
                    let ready = pipeline.producer_acquire(pipe, second.bytes());
                    second.fetch(a.columns_second, self.tile(block, pipe), (row, zero), &of_columns, ready);
                    let pipe = pipeline.next(pipe);
                    let more = if self.of_queries() { 0 } else { self.config.statistics_bytes() };
                    let ready = pipeline.producer_acquire(pipe, first.bytes() + more);
                    first.fetch(a.columns_first, self.tile(block, pipe), (row, zero), &of_columns, ready);
                    if more > 0 {
                        a.of_queries.copy(self.statistics(block, pipe), &[row, kinds], ready);
                    }
                    pipeline.next(pipe)
                };
                match block.columns {
                    Columns::Walked(walk) => {
                        k.fold(k.range(walk.from, walk.end, self.config.columns.cast_signed()), pipe, copy)
                    }
                    Columns::Listed(mask) => {
                        let list = self.list(block, mask, head);
                        let all = k.range(0u32, list.count, 1u32);
                        k.fold(all, pipe, |number, pipe| copy(list.get(number).at, pipe))
                    }
                }
            });
        });
    }

    /// Rows from `left` on are in the tensors, but no keys: weights of 0 would not leave out what is no number.
    fn cut<'k>(&self, k: K<'k>, left: I32<'k>, tiles: [U32<'k>; 2]) {
        let threads = self.warps() * WARP;
        k.if_(left.lt(self.config.columns.cast_signed()), || {
            for (tile, at) in self.config.of_sums(self.dtype).into_iter().zip(tiles) {
                let rows = left.max(0i32).to_u32();
                tile.clear_from(at, rows, (k.thread_idx(), threads));
            }
            k.fence_shared_copies();
            k.barrier_of(CUT, threads);
        });
    }

    /// Computes the gradients of a group's rows.
    fn multiply<'k>(&self, k: K<'k>, a: &WgmmaBackwardParams<'k>, block: &SweepBlock<'k>) {
        k.claim_registers(self.config.registers().0);
        // The same for the warp, and the assembler sees that.
        let warp = k.from_lane(0, &k.warp_idx());
        let group = warp / (GROUP / WARP);
        let stationary = self.config.stationary(self.dtype);
        let operand = |index: usize| {
            let own = stationary[index];
            let tile = block.base + self.config.stationary_bytes(self.dtype, index as u32);
            if self.config.held {
                return Own::Held(own.rows_of(tile, warp * 16));
            }
            let of_group = group.mul_add(own.part(GROUP_ROWS), tile);
            Own::Shared((own, own.descriptor(of_group)))
        };
        let lane = k.lane_idx();
        let row = block.first + (warp * 16 + lane / 4).to_i32();
        block.stationary_ready.wait(k.lit(0u32));
        let zero = |width: u32, wanted: bool| wanted.then(|| WarpgroupSums::zero(k, width));
        let group = Group {
            sweep: self,
            block,
            lane: Lane { row, column: lane % 4 * 2 },
            stationary: (operand(0), (self.work != Work::Values).then(|| operand(1))),
            sums: (
                zero(self.config.width, self.work != Work::Values),
                zero(self.config.value_width, matches!(self.work, Work::KeysAndValues | Work::Values)),
            ),
        };
        let known = if self.of_queries() {
            QueryStatistics::Rows(group.of_rows(a))
        } else {
            QueryStatistics::Columns
        };
        let p = Problem::of(a.problem);
        let _ = self.heads(k, a, block, block.pipeline.start(k), |head, pipe| {
            let scorer = Scorer::new(self.kind, Precision::Storage, &p, block.span, head, block.batch);
            group.walk(k, &scorer, &known, head, pipe)
        });
        group.store(a);
    }
}

/// `lse` and delta of queries: those of a thread's rows, or in shared memory.
enum QueryStatistics<'k> {
    Rows([[F32<'k>; 2]; 2]),
    Columns,
}

/// A group of four warps: its rows and what it sums.
struct Group<'k, 'a> {
    sweep: &'a WgmmaBackward,
    block: &'a SweepBlock<'k>,
    lane: Lane<'k>,
    stationary: (Own<'k>, Option<Own<'k>>),
    /// Over the columns of the first tensor and over those of the second.
    sums: (Option<WarpgroupSums<'k>>, Option<WarpgroupSums<'k>>),
}

/// The left operands of the products with a tile's columns, for each of the sums.
type Weights<'k> = (Vec<U32<'k>>, Vec<U32<'k>>);

impl<'k> Group<'k, '_> {
    fn of_rows(&self, a: &WgmmaBackwardParams<'k>) -> [[F32<'k>; 2]; 2] {
        let SweepBlock { span, head, batch, .. } = *self.block;
        let of_head = (batch * a.problem.heads + head).mul_wide(a.pitch) * 2u64;
        [0, 8].map(|down| {
            let row = self.lane.row + down;
            let at = a.statistics.at(of_head + row.to_u64());
            [0u64, 1].map(|kind| {
                let at = at.at(a.pitch.to_u64() * kind);
                at.only_where(row.lt(span.queries), Fill::Zero).get::<f32>()
            })
        })
    }

    /// Numbers of kind `kind` of the columns of a tile, two of each eight.
    fn of_columns(&self, k: K<'k>, pipe: PipelineState<'k>, kind: u32) -> Vec<F32<'k>> {
        let columns = self.sweep.config.columns;
        self.lane.of_columns(k, self.sweep.statistics(self.block, pipe) + kind * (columns * 4), columns)
    }

    /// All tiles of a head, from the turn `turn` on; the turn after them. While the weights of a tile are computed, those of the
    /// one before are multiplied.
    fn walk(
        &self,
        k: K<'k>,
        scorer: &Scorer<'k, f32>,
        known: &QueryStatistics<'k>,
        head: U32<'k>,
        pipe: PipelineState<'k>,
    ) -> PipelineState<'k> {
        let SweepBlock { columns, pipeline, .. } = *self.block;
        let last = |weights: &Weights<'k>, pipe| {
            self.add(weights, pipe);
            self.finished(k, pipe);
            pipeline.next(pipeline.next(pipe))
        };
        let walk = match columns {
            Columns::Walked(walk) => walk,
            Columns::Listed(mask) => {
                let list = self.sweep.list(self.block, mask, head);
                let all = || {
                    let of = |tile: MaskTile<'k>, pipe, before| {
                        self.tile(k, scorer, known, (tile.at, Pairs::Listed(list, tile)), pipe, before)
                    };
                    let first = ((of(list.get(k.lit(0u32)), pipe, None), pipe), list.get(k.lit(1u32)));
                    let later = k.range(1u32, list.count, 1u32);
                    let ((weights, pipe), _) = k.fold(later, first, |number, ((weights, before), tile)| {
                        // Looked up ahead.
                        let next = list.get(number + 1);
                        let pipe = pipeline.next(pipeline.next(before));
                        ((of(tile, pipe, Some((weights, before))), pipe), next)
                    });
                    last(&weights, pipe)
                };
                return k.if_else(list.count.gt(0), all, || pipe);
            }
        };
        let columns = self.sweep.config.columns.cast_signed();
        let all = || {
            let pairs = Pairs::Positioned(walk);
            let first = (self.tile(k, scorer, known, (walk.from, pairs), pipe, None), pipe);
            let later = k.range(walk.from + columns, walk.end, columns);
            let (weights, pipe) = k.fold(later, first, |at, (weights, before)| {
                let pipe = pipeline.next(pipeline.next(before));
                (self.tile(k, scorer, known, (at, pairs), pipe, Some((weights, before))), pipe)
            });
            last(&weights, pipe)
        };
        k.if_else(walk.from.lt(walk.end), all, || pipe)
    }

    /// Starts the products with the weights of a tile; how many groups of them.
    fn add(&self, (first, second): &Weights<'k>, pipe: PipelineState<'k>) -> u32 {
        let [of_first, of_second] = self.sweep.config.of_sums(self.sweep.dtype);
        let at = |tile: PanelTile, pipe| (tile, tile.descriptor(self.sweep.tile(self.block, pipe)));
        if let Some(sums) = &self.sums.1 {
            sums.add_products_of(second, at(of_second, pipe));
        }
        if let Some(sums) = &self.sums.0 {
            sums.add_products_of(first, at(of_first, self.block.pipeline.next(pipe)));
        }
        u32::from(self.sums.0.is_some()) + u32::from(self.sums.1.is_some())
    }

    /// Waits for the products of a tile, and gives back what they have read.
    fn finished(&self, k: K<'k>, pipe: PipelineState<'k>) {
        for sums in [&self.sums.0, &self.sums.1].into_iter().flatten().take(1) {
            sums.wait(0);
        }
        if self.sums.1.is_some() {
            self.release(k, pipe);
        }
        if self.sums.0.is_some() {
            self.release(k, self.block.pipeline.next(pipe));
        }
    }

    /// All lanes of the warp are done with a tile.
    fn release(&self, k: K<'k>, pipe: PipelineState<'k>) {
        k.if_(k.lane_idx().eq(0), || self.block.pipeline.consumer_release(pipe));
    }

    /// Starts the products of the block's rows with a tile of the same tensor's kind.
    fn products(
        &self,
        k: K<'k>,
        stationary: &Own<'k>,
        tile: PanelTile,
        pipe: PipelineState<'k>,
    ) -> WarpgroupSums<'k> {
        let config = self.sweep.config;
        let tile = (tile, tile.descriptor(self.sweep.tile(self.block, pipe)));
        match stationary {
            Own::Shared(stationary) => WarpgroupSums::products(k, config.columns, *stationary, tile),
            Own::Held(stationary) => WarpgroupSums::products_of(k, config.columns, stationary, tile),
        }
    }

    /// The weights of the tile whose first column is `at`: probabilities for the second sum, gradients of the scores for the
    /// first. Meanwhile those of the tile `before` are multiplied.
    fn tile(
        &self,
        k: K<'k>,
        scorer: &Scorer<'k, f32>,
        known: &QueryStatistics<'k>,
        (at, pairs): (I32<'k>, Pairs<'k>),
        second: PipelineState<'k>,
        before: Option<(Weights<'k>, PipelineState<'k>)>,
    ) -> Weights<'k> {
        let SweepBlock { span, pipeline, .. } = *self.block;
        let WgmmaBackward { config, dtype, kind, .. } = *self.sweep;
        let first = pipeline.next(second);
        pipeline.consumer_wait(second);
        pipeline.consumer_wait(first);
        if kind.lengths && self.sweep.of_queries() {
            let tiles = [first, second].map(|pipe| self.sweep.tile(self.block, pipe));
            self.sweep.cut(k, span.keys - at, tiles);
        }
        let [of_first, of_second] = config.of_products(dtype);
        let products = self.products(k, &self.stationary.0, of_first, first);
        let gradients =
            self.stationary.1.as_ref().map(|stationary| self.products(k, stationary, of_second, second));
        let adding = before.as_ref().map_or(0, |(weights, pipe)| self.add(weights, *pipe));
        products.wait(adding + u32::from(gradients.is_some()));
        let of_columns = |kind| match known {
            QueryStatistics::Columns => self.of_columns(k, first, kind),
            QueryStatistics::Rows(_) => Vec::new(),
        };
        let of = |of_columns: &[F32<'k>], i: u32, kind: usize| match known {
            QueryStatistics::Columns => of_columns[(i / 4 * 2 + i % 2) as usize],
            QueryStatistics::Rows(rows) => rows[place(i).0 as usize][kind],
        };
        let logarithms = of_columns(0);
        let (row, column) = (self.lane.row, at + self.lane.column.to_i32());
        let score = |i: u32, masked: bool| {
            let (slot, across) = place(i);
            let (row, column) = (row + slot.cast_signed() * 8, column + across.cast_signed());
            let (query, key) = if self.sweep.of_queries() { (row, column) } else { (column, row) };
            scorer.score(products.at(i), query, key, masked.then(|| span.sees(query, key)))
        };
        let probability = |i, score| scorer.probability(score, of(&logarithms, i, 0));
        let all = |masked: bool| {
            (0..config.columns / 2).map(|i| probability(i, score(i, masked))).collect::<Vec<_>>()
        };
        let ps = match pairs {
            Pairs::Positioned(walk) => {
                let masked = at.ge(walk.whole_end);
                let masked = walk.whole_from.map_or(masked, |from| masked | at.lt(from));
                k.if_else(masked, || all(true), || all(false))
            }
            Pairs::Listed(list, tile) => {
                let some = || {
                    let row = (self.lane.row - self.block.first).to_u32();
                    let bits = [0, 8].map(|down| list.row(tile, row + down, self.lane.column));
                    let seen = |i: u32| {
                        let (slot, across) = place(i);
                        bits[slot as usize].sees(across).select(score(i, false), f64::NEG_INFINITY)
                    };
                    (0..config.columns / 2).map(|i| probability(i, seen(i))).collect::<Vec<_>>()
                };
                k.if_else(list.is_partial(tile), some, || all(false))
            }
        };
        let mut ds = Vec::new();
        if let Some(gradients) = &gradients {
            let deltas = of_columns(1);
            gradients.wait(adding);
            ds = (0..).zip(&ps).map(|(i, p)| *p * (gradients.at(i) - of(&deltas, i, 1))).collect();
        }
        // The statistics of the columns have been read.
        if matches!(known, QueryStatistics::Columns) {
            k.warp_barrier();
        }
        if self.sums.1.is_none() {
            self.release(k, second);
        }
        if self.sums.0.is_none() {
            self.release(k, first);
        }
        if let Some((_, pipe)) = before {
            self.finished(k, pipe);
        }
        let packed = |values: &[F32<'k>], sums: &Option<WarpgroupSums<'k>>| {
            if sums.is_some() { WarpgroupSums::packed(dtype, values) } else { Vec::new() }
        };
        (packed(&ds, &self.sums.0), packed(&ps, &self.sums.1))
    }

    /// Writes the gradients.
    fn store(&self, a: &WgmmaBackwardParams<'k>) {
        let (p, span) = (Problem::of(a.problem), self.block.span);
        let (first, second) = (View::of(a.first), View::of(a.second));
        let (of, head, rows, below) = match self.sweep.of_queries() {
            true => (span.of_queries, self.block.head, span.queries, None),
            // Keys that a sequence does not have get gradients of 0.
            false => {
                let below = self.sweep.kind.lengths.then_some(span.keys);
                (span.of_keys, self.block.key_head, p.keys.to_i32(), below)
            }
        };
        if let Some(sums) = &self.sums.0 {
            let to = first.destination(of, head, rows, p.width);
            store(sums, to, self.lane, Some(Scorer::<f32>::factor(&p)), below);
        }
        if let Some(sums) = &self.sums.1 {
            store(sums, second.destination(of, head, rows, p.value_width), self.lane, None, below);
        }
    }
}

/// Writes sums times a factor; rows from `below` on get zeros.
pub(super) fn store<'k>(
    sums: &WarpgroupSums<'k>,
    to: Destination<'k>,
    lane: Lane<'k>,
    factor: Option<F32<'k>>,
    below: Option<I32<'k>>,
) {
    let rows = [0, 8].map(|down| {
        let row = lane.row + down;
        let data = to.data.at(row.to_u64() * to.stride).at(lane.column);
        (data, row.lt(to.rows), below.map(|below| row.lt(below)))
    });
    for (down, across, pair) in sums.pairs() {
        let (data, there, counts) = rows[(down / 8) as usize];
        let value = |x: F32<'k>| {
            let x = factor.map_or(x, |factor| x * factor);
            counts.map_or(x, |counts| counts.select(x, 0.0))
        };
        let inside = there & (lane.column + across).lt(to.width);
        let pair = Lanes::from(pair.map(value).to_vec());
        data.at(u64::from(across)).only_where(inside, Fill::Zero).store(pair);
    }
}
