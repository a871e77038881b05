//! All gradients on the tensor cores of sm_90a in one sweep, with five products.
//!
//! A block has 128 keys, half of them for each of two warpgroups, and walks over tiles of queries. With `s = q k^T` and `dp = do v^T`,
//! transposed, `dv += p^T do` and `dk += ds^T q` take their left operands from registers, as the sweep for keys and values does. `ds^T` goes
//! to shared memory too, where both groups read it: each has a part of `dq^T = k^T ds^T`, the product over the block's keys. Warps
//! beside the one that fetches add these to a sum of `f32` in global memory, which [`FinishQueries`](super::finish::FinishQueries) rounds.
//!
//! Blocks add to a tile of queries in one order, so that results are the same from run to run: that of the tiles of keys. A counter for each
//! tile of queries and each half of it says whose [turn](Turn) it is. The first one stores, and nothing need be cleared but the counters.
//!
//! Every turn comes, however many blocks run at once and in whatever order they begin: a block's tile of keys and its head are those of the
//! ticket that it takes when it begins, from the counter of the heads that stand side by side. It waits only for lower tiles of the same
//! key head, whose tickets are lower: those blocks have begun. So of all blocks that have begun and not ended, the one with the lowest ticket
//! of its heads waits for nobody.
//!
//! All blocks of a key head walk from the last queries that see their keys to the first ones. Once a block lags one tile of queries behind the one
//! of the tile of keys before, nobody waits (a shift schedule, as in "DASH: Deterministic Attention Scheduling for High-throughput
//! Reproducible LLM Training"); with a causal mask the blocks that have the most to do begin first. As many heads as
//! [`heads_at_once`](crate::attention::tuning::heads_at_once) says are side by side in the order of the tickets, so that few blocks of one
//! head begin at once.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{
    Mbarrier, Part, Pipeline, PipelineState, TensorMapArg, Turn, WARP, WarpgroupSums, kernel_args,
};

use super::super::engine::Walk;
use super::backward::{Lane, place, store};
use super::layouts::WgmmaFused;
use super::{GROUP, GROUP_ROWS};
use crate::attention::layout::BlockLayout;
use crate::attention::score::{Problem, ProblemArgs, ScoreKind, Scorer, Span, View};

kernel_args! {
    /// Gradients of keys and of values, and sums for those of queries, from `do` and what is known of queries.
    pub(in crate::attention) struct WgmmaFusedArgs => WgmmaFusedParams {
        problem: ProblemArgs,
        queries: TensorMapArg, dy: TensorMapArg, keys: TensorMapArg, values: TensorMapArg,
        statistics: TensorMapArg,
        /// The number of heads side by side in the order of the tickets, as a power of two.
        heads_at_once: u32,
        sums: SumsArgs,
        dk: Strided<Out<Elem>, 3>, dv: Strided<Out<Elem>, 3>,
    }
}

kernel_args! {
    /// Sums of tiles of queries, `tiles` of each head, in the order in which threads hold them; and counters: of each head one that gives out
    /// tickets, and two for each tile, that of a group's part behind that of the other's.
    pub(in crate::attention) struct SumsArgs => SumsParams {
        dq: InOut<f32>, counters: InOut<u32>, tiles: u32,
    }
}

impl<'k> SumsParams<'k> {
    /// Counters of a head of all heads of the batch.
    pub(in crate::attention) const fn counters_of_head(tiles: u32) -> u32 {
        tiles * WgmmaFused::GROUPS + 1
    }

    /// The counter that gives out the tickets of the heads from `head` of all heads of the batch on.
    fn tickets(&self, head: U32<'k>) -> Ptr<'k, ReadWrite, u32> {
        self.counters.at(head.mad_wide(self.tiles * WgmmaFused::GROUPS, head.to_u64()))
    }

    /// The counter of part `number`, counted over all heads, which is one of head `head` of all heads of the batch.
    pub(super) fn counter(&self, head: U32<'k>, number: U64<'k>) -> Ptr<'k, ReadWrite, u32> {
        self.counters.at(number + head.to_u64()).at(1u64)
    }
}

/// The named barrier at which the weights of all keys are in shared memory.
const WRITTEN: u32 = 1;

#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct WgmmaFusedBackward {
    pub(in crate::attention) dtype: DType,
    pub(in crate::attention) kind: ScoreKind,
    pub(in crate::attention) config: WgmmaFused,
}

/// The problem of a block, and its shared memory.
#[derive(Clone, Copy, Debug)]
struct FusedBlock<'k> {
    span: Span<'k>,
    key_head: U32<'k>,
    batch: U32<'k>,
    /// The tile of keys, and the first of them.
    tile: U32<'k>,
    first: I32<'k>,
    walk: Walk<'k>,
    /// The first queries of the tiles at both ends of the walk, added up.
    ends: I32<'k>,
    base: U32<'k>,
    own_ready: Mbarrier<'k>,
    pipeline: Pipeline<'k>,
    /// The groups' partial sums of dQ, one after the other.
    gradients: Pipeline<'k>,
}

impl KernelDef for WgmmaFusedBackward {
    type Args = WgmmaFusedArgs;

    fn spec(&self) -> KernelSpec {
        let Self { dtype, kind, config } = self;
        let name = format!("attention_backward_{dtype}_{}{}", config.name(), kind.name());
        KernelSpec::new(name, BlockDim::x(WgmmaFused::THREADS))
            .dtypes(DTypes::all(self.dtype))
            .min_blocks_per_sm(1)
    }

    fn build<'k>(&self, k: K<'k>, a: WgmmaFusedParams<'k>) {
        let block = self.block_of(k, &a);
        let warp = k.from_lane(0, &k.warp_idx());
        k.if_else(
            warp.lt(WgmmaFused::WARPS),
            || self.multiply(k, &a, &block, warp),
            || {
                k.release_registers(WgmmaFused::REGISTERS.1);
                let leads = k.lane_idx().eq(0);
                k.if_(leads & warp.eq(WgmmaFused::WARPS), || self.fetch(k, &a, &block));
                let adds = warp.gt(WgmmaFused::WARPS) & warp.le(WgmmaFused::WARPS + WgmmaFused::GROUPS);
                k.if_(leads & adds, || self.add_up(k, &a, &block, warp - (WgmmaFused::WARPS + 1)));
            },
        );
    }
}

impl WgmmaFusedBackward {
    fn block_of<'k>(&self, k: K<'k>, a: &WgmmaFusedParams<'k>) -> FusedBlock<'k> {
        let WgmmaFused { tiles, columns, .. } = self.config;
        let p = Problem::of(a.problem);
        let base = k.dynamic_shared_tiles();
        let own_ready = k.mbarriers(1).at(0);
        let pipeline = k.mbarrier_pipeline(tiles);
        let gradients = k.mbarrier_pipeline(WgmmaFused::GROUPS);
        let ticket = k.shared::<u32>(1);
        let (shift, batch) = (a.heads_at_once, k.block_idx_z());
        let first_head = k.block_idx_y() << shift;
        k.if_(k.thread_idx().eq(0), || {
            let number = a.sums.tickets(batch * a.problem.heads + first_head * a.problem.group).take_ticket();
            own_ready.init(1);
            pipeline.init(WgmmaFused::WARPS);
            gradients.init_for(GROUP / WARP, 1);
            ticket.set(number);
            k.publish_mbarriers();
        });
        k.barrier();
        let ticket = k.from_lane(0, &ticket.get::<u32>());
        let key_head = first_head + (ticket & ((k.lit(1u32) << shift) - 1));
        let tile = ticket >> shift;
        let span = Span::new(self.kind, &p, batch);
        let first = (tile * WgmmaFused::ROWS).to_i32();
        let walk = span.walk_queries(first, first + WgmmaFused::ROWS.cast_signed(), columns);
        let last = walk.end - 1i32;
        let ends = walk.from + last - (last - walk.from) % columns.cast_signed();
        FusedBlock { span, key_head, batch, tile, first, walk, ends, base, own_ready, pipeline, gradients }
    }

    /// Where a tile of the pipeline begins.
    fn tile<'k>(&self, block: &FusedBlock<'k>, pipe: PipelineState<'k>) -> U32<'k> {
        let places = self.config.places(self.dtype);
        pipe.stage().mul_add(self.config.of_products(self.dtype).bytes(), block.base + places.tiles)
    }

    /// Where the statistics of its queries begin.
    fn statistics<'k>(&self, block: &FusedBlock<'k>, pipe: PipelineState<'k>) -> U32<'k> {
        let places = self.config.places(self.dtype);
        pipe.stage().mul_add(self.config.statistics_bytes(), block.base + places.statistics)
    }

    /// `body` of each query head of the block, one after the other.
    fn heads<'k, C: Carry<'k>>(
        &self,
        k: K<'k>,
        a: &WgmmaFusedParams<'k>,
        block: &FusedBlock<'k>,
        init: C,
        body: impl FnOnce(U32<'k>, C) -> C,
    ) -> C {
        let first = block.key_head * a.problem.group;
        k.fold(k.range(first, first + a.problem.group, 1u32), init, body)
    }

    /// The first queries of the tiles of a head, counted from the other end: a block takes them from the last to the first.
    fn steps<'k>(&self, k: K<'k>, block: &FusedBlock<'k>) -> warpwright_dsl::Range<'k, i32> {
        k.range(block.walk.from, block.walk.end, self.config.columns.cast_signed())
    }

    /// Copies the tiles of all steps, as places in the pipeline become free: that of the queries, then that of `do`.
    fn fetch<'k>(&self, k: K<'k>, a: &WgmmaFusedParams<'k>, block: &FusedBlock<'k>) {
        let own = self.config.own(self.dtype);
        let zero = k.lit(0u32);
        let row = block.first.to_u32();
        let of_own = [block.key_head, block.batch];
        block.own_ready.arrive_expecting(2 * own.bytes());
        own.fetch(a.keys, block.base, (row, zero), &of_own, block.own_ready);
        own.fetch(a.values, block.base + own.bytes(), (row, zero), &of_own, block.own_ready);
        let (tile, pipeline) = (self.config.of_products(self.dtype), block.pipeline);
        let _ = self.heads(k, a, block, pipeline.start(k), |head, pipe| {
            let of_head = [head, block.batch];
            let kinds = (block.batch * a.problem.heads + head) * 2;
            k.fold(self.steps(k, block), pipe, |step, pipe| {
                let row = (block.ends - step).to_u32();
                let more = self.config.statistics_bytes();
                let ready = pipeline.producer_acquire(pipe, tile.bytes() + more);
                tile.fetch(a.queries, self.tile(block, pipe), (row, zero), &of_head, ready);
                a.statistics.copy(self.statistics(block, pipe), &[row, kinds], ready);
                let pipe = pipeline.next(pipe);
                let ready = pipeline.producer_acquire(pipe, tile.bytes());
                tile.fetch(a.dy, self.tile(block, pipe), (row, zero), &of_head, ready);
                pipeline.next(pipe)
            })
        });
    }

    /// Adds what group `group` has of each step to the sums in global memory, in turn.
    fn add_up<'k>(&self, k: K<'k>, a: &WgmmaFusedParams<'k>, block: &FusedBlock<'k>, group: U32<'k>) {
        let parts = self.config.part_bytes();
        // From one part to the next in the mean; where they are uneven, the second one begins later.
        let half = (parts[0] + parts[1]) / WgmmaFused::GROUPS;
        let pipeline = block.gradients.part(group, 1);
        let from = group.mul_add(parts[0], block.base + self.config.places(self.dtype).dq);
        let last = (block.ends - block.walk.from).to_u32() / self.config.columns;
        let _ = self.heads(k, a, block, pipeline.start(k), |head, pipe| {
            let of_all = block.batch * a.problem.heads + head;
            let tile = of_all.mad_wide(a.sums.tiles, last.to_u64());
            let number = tile * u64::from(WgmmaFused::GROUPS) + group.to_u64();
            let (pipe, _) = k.fold(self.steps(k, block), (pipe, number), |step, (pipe, number)| {
                let turns = Turn::new(a.sums.counter(of_all, number));
                let mut sums = a.sums.dq.at(number * u64::from(half / 4));
                if self.config.is_uneven() {
                    sums = sums.at(group * ((parts[0] - half) / 4));
                }
                let turn = block.tile - block.span.first_tile_at(block.ends - step, WgmmaFused::ROWS);
                turns.wait(turn);
                pipeline.consumer_wait(pipe);
                let send = |bytes| {
                    k.if_else(turn.eq(0), || sums.store_bulk(from, bytes), || sums.add_bulk(from, bytes));
                };
                if self.config.is_uneven() {
                    k.if_else(group.eq(0), || send(parts[0]), || send(parts[1]));
                } else {
                    send(half);
                }
                k.commit_stores();
                k.wait_stores(0);
                pipeline.consumer_release(pipe);
                k.wait_stored(0);
                turns.pass();
                (pipeline.next(pipe), number - u64::from(WgmmaFused::GROUPS))
            });
            pipe
        });
    }

    /// Keys from `left` on are in the tensors, but not in the sequence: weights of 0 would not leave out what is no number.
    fn cut<'k>(&self, k: K<'k>, block: &FusedBlock<'k>) {
        let threads = WgmmaFused::WARPS * WARP;
        let left = block.span.keys - block.first;
        k.if_(left.lt(WgmmaFused::ROWS.cast_signed()), || {
            let rows = left.max(0i32).to_u32();
            let own = self.config.own(self.dtype);
            for tile in [block.base, block.base + own.bytes()] {
                self.config.own_of_sums(self.dtype).clear_from(tile, rows, (k.thread_idx(), threads));
            }
            k.fence_shared_copies();
            k.barrier_of(WRITTEN, threads);
        });
    }

    /// Computes the gradients of a group's keys, and its part of those of all queries.
    fn multiply<'k>(&self, k: K<'k>, a: &WgmmaFusedParams<'k>, block: &FusedBlock<'k>, warp: U32<'k>) {
        k.claim_registers(WgmmaFused::REGISTERS.0);
        let WgmmaFused { width, columns, .. } = self.config;
        let places = self.config.places(self.dtype);
        let group = warp / (GROUP / WARP);
        let own = self.config.own(self.dtype);
        let operand = |index: u32| {
            let of_group = group.mul_add(own.part(GROUP_ROWS), block.base + index * own.bytes());
            (own, own.descriptor(of_group))
        };
        let lane = k.lane_idx();
        let row = block.first + (warp * 16 + lane / 4).to_i32();
        block.own_ready.wait(k.lit(0u32));
        if self.kind.lengths {
            self.cut(k, block);
        }
        let (keys, ds) = (self.config.keys_transposed(self.dtype), self.config.ds(self.dtype));
        let (of_keys, of_ds) = self.config.dq_parts(self.dtype);
        let ds_part = group.mul_add(of_ds, block.base + places.ds);
        // Eight of the group's queries have 16 bytes for each thread: those of all threads of a group lie behind each other, or, where parts
        // are uneven, those of all threads of a warp.
        let uneven = self.config.is_uneven();
        let dq = if uneven {
            warp.mul_add(self.config.dq_columns() / 8 * (WARP * 16), block.base + places.dq)
        } else {
            group.mul_add(self.config.part_bytes()[0], block.base + places.dq)
        };
        let group = Group {
            fused: self,
            block,
            lane: Lane { row, column: lane % 4 * 2 },
            keys: operand(0),
            values: operand(1),
            keys_transposed: (keys, keys.descriptor(group.mul_add(of_keys, block.base))),
            ds_place: ds.transposed_place(block.base + places.ds, group),
            ds_part: (ds, ds.descriptor(ds_part)),
            dq: if uneven { lane } else { k.thread_idx() & (GROUP - 1) }.mul_add(16, dq),
            warp,
            gradients: block.gradients.part(group, 1),
            scores: self.config.ahead.then(|| WarpgroupSums::zero(k, columns)),
            sums: [(); 2].map(|()| WarpgroupSums::zero(k, width)),
        };
        let p = Problem::of(a.problem);
        let start =
            Turns { pipe: block.pipeline.start(k), gradients: group.gradients.start(k), ds: k.lit(0u32) };
        let _ = self.heads(k, a, block, start, |head, turns| {
            let scorer = Scorer::new(self.kind, Precision::Storage, &p, block.span, head, block.batch);
            group.walk(k, &scorer, turns)
        });
        let below = self.kind.lengths.then_some(block.span.keys);
        let of = |view: View<'k, Write>, width| {
            view.destination(block.span.of_keys, block.key_head, p.keys.to_i32(), width)
        };
        let [dk, dv] = &group.sums;
        store(dk, of(View::of(a.dk), p.width), group.lane, Some(Scorer::<f32>::factor(&p)), below);
        store(dv, of(View::of(a.dv), p.value_width), group.lane, None, below);
    }
}

/// The next turns of what goes round: tiles that come, parts of the gradients of queries that go, and bytes from the first of the
/// places of `ds^T` to the next one.
#[derive(Clone, Copy, Debug)]
struct Turns<'k> {
    pipe: PipelineState<'k>,
    gradients: PipelineState<'k>,
    ds: U32<'k>,
}

impl<'k> Carry<'k> for Turns<'k> {
    fn collect(&self, regs: &mut Vec<warpwright_dsl::flow::RawReg>) {
        (self.pipe, self.gradients, self.ds).collect(regs);
    }

    fn rebuild(&self, regs: &mut warpwright_dsl::flow::RawRegs) -> Self {
        let (pipe, gradients, ds) = (self.pipe, self.gradients, self.ds).rebuild(regs);
        Self { pipe, gradients, ds }
    }
}

/// A group of four warps: its keys and what it sums.
struct Group<'k, 'a> {
    fused: &'a WgmmaFusedBackward,
    block: &'a FusedBlock<'k>,
    lane: Lane<'k>,
    /// Its rows as left operands.
    keys: Part<'k>,
    values: Part<'k>,
    /// Its part of `k^T`, the left operand of `dq^T`, and of `ds^T`, the right one.
    keys_transposed: Part<'k>,
    ds_part: Part<'k>,
    /// Where the lane leaves its weights, and where its share of `dq^T`.
    ds_place: U32<'k>,
    dq: U32<'k>,
    /// Its number in the block.
    warp: U32<'k>,
    gradients: Pipeline<'k>,
    /// The products of the next tile, if they are ahead.
    scores: Option<WarpgroupSums<'k>>,
    /// Gradients of its keys and of its values.
    sums: [WarpgroupSums<'k>; 2],
}

impl<'k> Group<'k, '_> {
    /// Numbers of kind `kind` of the queries of a tile, two of each eight.
    fn of_queries(&self, k: K<'k>, pipe: PipelineState<'k>, kind: u32) -> Vec<F32<'k>> {
        let columns = self.fused.config.columns;
        self.lane.of_columns(k, self.fused.statistics(self.block, pipe) + kind * (columns * 4), columns)
    }

    /// All tiles of a head; the turns after them.
    fn walk(&self, k: K<'k>, scorer: &Scorer<'k, f32>, turns: Turns<'k>) -> Turns<'k> {
        let columns = self.fused.config.columns.cast_signed();
        let Walk { from, end, .. } = self.block.walk;
        let Some(scores) = &self.scores else {
            let steps = self.fused.steps(k, self.block);
            return k.fold(steps, turns, |step, turns| self.step(k, scorer, step, turns, None));
        };
        let all = || {
            self.block.pipeline.consumer_wait(turns.pipe);
            scores.restart(self.keys, self.tile(turns.pipe, false), 0..self.fused.config.width);
            scores.wait(0);
            let last = self.block.ends - from;
            let turns = k.fold(k.range(from, last, columns), turns, |step, turns| {
                self.step(k, scorer, step, turns, Some(true))
            });
            self.step(k, scorer, last, turns, Some(false))
        };
        k.if_else(from.lt(end), all, || turns)
    }

    /// A tile of the pipeline as what keys or values are multiplied with, or as what weights are.
    fn tile(&self, pipe: PipelineState<'k>, of_sums: bool) -> Part<'k> {
        let WgmmaFusedBackward { config, dtype, .. } = *self.fused;
        let tile = if of_sums { config.of_sums(dtype) } else { config.of_products(dtype) };
        (tile, tile.descriptor(self.fused.tile(self.block, pipe)))
    }

    /// The step of the tile of queries that begins so far before the [end](FusedBlock::ends). `ahead` says that its scores are there already,
    /// and whether those of the next tile are to be computed.
    fn step(
        &self,
        k: K<'k>,
        scorer: &Scorer<'k, f32>,
        step: I32<'k>,
        turns: Turns<'k>,
        ahead: Option<bool>,
    ) -> Turns<'k> {
        let at = self.block.ends - step;
        let FusedBlock { pipeline, .. } = *self.block;
        let WgmmaFusedBackward { config, dtype, .. } = *self.fused;
        let (queries, dy) = (turns.pipe, pipeline.next(turns.pipe));
        let next = pipeline.next(dy);
        let products = match &self.scores {
            Some(scores) => scores.clone(),
            None => {
                pipeline.consumer_wait(queries);
                WarpgroupSums::products(k, config.columns, self.keys, self.tile(queries, false))
            }
        };
        pipeline.consumer_wait(dy);
        let gradients = WarpgroupSums::products(k, config.columns, self.values, self.tile(dy, false));
        if ahead.is_none() {
            products.wait(1);
        }
        let ps = self.probabilities(k, scorer, at, &products, &self.of_queries(k, queries, 0));
        let [dk, dv] = &self.sums;
        let deltas = self.of_queries(k, queries, 1);
        gradients.wait(0);
        let ds: Vec<_> = (0..)
            .zip(&ps)
            .map(|(i, p)| *p * (gradients.at(i) - deltas[(i / 4 * 2 + i % 2) as usize]))
            .collect();
        let ds = WarpgroupSums::packed(dtype, &ds);
        dv.add_products_of(&WarpgroupSums::packed(dtype, &ps), self.tile(dy, true));
        let (tile, of_part) = self.ds_part;
        tile.put_transposed(self.ds_place + turns.ds, &ds);
        k.fence_shared_copies();
        dk.add_products_of(&ds, self.tile(queries, true));
        k.barrier_of(WRITTEN, WgmmaFused::WARPS * WARP);
        let ds_part = (tile, of_part + (turns.ds >> 4).to_u64());
        let dq = WarpgroupSums::products(k, config.dq_columns(), self.keys_transposed, ds_part);
        let given_back = || {
            // The statistics of the queries have been read.
            k.warp_barrier();
            k.if_(k.lane_idx().eq(0), || {
                pipeline.consumer_release(queries);
                pipeline.consumer_release(dy);
            });
        };
        dq.wait(1);
        given_back();
        let following = self.scores.as_ref().filter(|_| ahead == Some(true));
        if let Some(scores) = following {
            pipeline.consumer_wait(next);
            scores.restart(self.keys, self.tile(next, false), 0..config.width);
        }
        dq.wait(u32::from(following.is_some()));
        self.hand_on(k, &dq, turns.gradients);
        if let Some(scores) = following {
            // Nothing is under way where the loop begins again: the assembler would wait for each product.
            scores.wait(0);
        }
        let ds = k.lit(tile.bytes()) - turns.ds;
        Turns { pipe: next, gradients: self.gradients.next(turns.gradients), ds }
    }

    /// The probabilities of a tile.
    fn probabilities(
        &self,
        k: K<'k>,
        scorer: &Scorer<'k, f32>,
        at: I32<'k>,
        products: &WarpgroupSums<'k>,
        logarithms: &[F32<'k>],
    ) -> Vec<F32<'k>> {
        let FusedBlock { span, walk, first, .. } = *self.block;
        let (row, column) = (self.lane.row, at + self.lane.column.to_i32());
        let probability = |i: u32, masked: bool| {
            let (slot, across) = place(i);
            let (key, query) = (row + slot.cast_signed() * 8, column + across.cast_signed());
            let score = scorer.score(products.at(i), query, key, masked.then(|| span.sees(query, key)));
            scorer.probability(score, logarithms[(i / 4 * 2 + i % 2) as usize])
        };
        let all = |masked: bool| {
            (0..self.fused.config.columns / 2).map(|i| probability(i, masked)).collect::<Vec<_>>()
        };
        // Keys that do not exist are zeros, whose probabilities may be infinite.
        let masked = at.ge(walk.whole_end) | (first + WgmmaFused::ROWS.cast_signed()).gt(span.keys);
        let masked = walk.whole_from.map_or(masked, |from| masked | at.lt(from));
        k.if_else(masked, || all(true), || all(false))
    }

    /// Leaves the part of a tile's gradients to the warp that adds them up.
    fn hand_on(&self, k: K<'k>, dq: &WarpgroupSums<'k>, state: PipelineState<'k>) {
        self.gradients.producer_wait(state);
        let config = self.fused.config;
        let to = k.shared_at::<f32>(self.dq);
        let put = |threads: u32| {
            for chunk in 0..config.dq_columns() / 8 {
                let values: Vec<_> = (4 * chunk..4 * chunk + 4).map(|i| dq.at(i)).collect();
                to.at(u64::from(chunk * threads * 4)).store(Lanes::from(values));
            }
        };
        if config.is_uneven() {
            k.if_(self.warp.lt(config.dq_warps()), || put(WARP));
        } else {
            put(GROUP);
        }
        k.fence_shared_copies();
        k.warp_barrier();
        k.if_(k.lane_idx().eq(0), || self.gradients.producer_commit(state));
    }
}
