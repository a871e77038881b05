//! The forward kernel: while the exponentials of one tile of keys are computed, the products of the tile before with its values run.
//!
//! Tiles are visited from the last one down, so that those with masked pairs at the end of the sequence or of a causal mask come
//! first. A warpgroup starts the products of its queries with the keys of a tile, then those of the weights of the tile before
//! with its values, waits for the former, and computes weights from them while the latter run. Where groups alternate, each starts
//! its products when another one has, so that the exponentials of one run beside the products of the other.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{
    Mbarrier, Packed, Pipeline, PipelineState, TensorMapArg, TensorMapParam, WARP, WarpgroupSums, kernel_args,
};

use super::super::engine::Place;
use super::super::forward::{Masked, ResultArgs};
use super::super::softmax::{LseRows, OnlineSoftmax};
use super::layouts::{SharedTiles, Wgmma};
use super::lists::KeyLists;
use super::order::{KeyTiles, PingPong, TileOrder};
use super::{GROUP, GROUP_ROWS, HeadBoxes, LANES};
use crate::attention::layout::BlockLayout;
use crate::attention::score::{
    BlockMaskArgs, BlockMaskParams, MaskTile, Origin, Problem, ProblemArgs, QueryBlock, ScoreKind, Sink, View,
};
use crate::attention::statistics_type;

kernel_args! {
    /// `o = softmax(score(q k)) v` and `lse`, the logarithms of the sums.
    pub(in crate::attention) struct WgmmaForwardArgs => WgmmaForwardParams {
        problem: ProblemArgs, results: ResultArgs,
        q_boxes: TensorMapArg, k_boxes: TensorMapArg, v_boxes: TensorMapArg,
        tiles: u32, all_tiles: u32,
    }
}

kernel_args! {
    /// The same of the pairs that a mask lists.
    pub(in crate::attention) struct MaskedWgmmaForwardArgs => MaskedWgmmaForwardParams {
        forward: WgmmaForwardArgs, mask: BlockMaskArgs,
    }
}

/// Columns that four lanes hold two of each.
const BLOCK: u32 = 8;
/// The named barrier at which all that multiply meet.
const MEETING: u32 = 1;

#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct WgmmaForward {
    pub(in crate::attention) dtype: DType,
    pub(in crate::attention) kind: ScoreKind,
    pub(in crate::attention) config: Wgmma,
}

/// The tile of queries that a block is at, as all its threads know it.
struct TileContext<'k> {
    k: K<'k>,
    kernel: WgmmaForward,
    tiles: SharedTiles,
    /// Where the tiles begin.
    q_at: U32<'k>,
    keys_at: U32<'k>,
    values_at: U32<'k>,
    queries: QueryBarrier<'k>,
    keys: Pipeline<'k>,
    values: Pipeline<'k>,
    key_tiles: KeyOrder<'k>,
    block: QueryBlock<'k, f32>,
}

/// The tiles of keys that a block visits.
#[derive(Clone, Copy)]
enum KeyOrder<'k> {
    /// From the last one down.
    Down(KeyTiles<'k>),
    Listed(BlockMaskParams<'k>),
}

/// Which pairs of a tile see each other.
#[derive(Clone, Copy)]
enum Pairs<'k> {
    /// All, or those whose positions say so.
    Positioned { masked: bool },
    /// Those of the first tile of a list.
    First(KeyLists<'k>, MaskTile<'k>),
    /// Those of another.
    Listed(KeyLists<'k>, MaskTile<'k>),
}

/// When the queries are there, and their place is free.
#[derive(Clone, Copy)]
enum QueryBarrier<'k> {
    /// Those of the only tile: counts their bytes.
    Single(Mbarrier<'k>),
    /// Those of one tile behind another.
    Pipelined(Pipeline<'k>),
}

/// The pipeline states of a block.
#[derive(Clone, Copy)]
struct PipelineStates<'k> {
    queries: PipelineState<'k>,
    /// Of keys, and of the values of the same tile.
    keys: PipelineState<'k>,
}

warpwright_dsl::carry!(PipelineStates { queries, keys });

/// The state of a warpgroup between two tiles.
struct ConsumerState<'k> {
    softmax: OnlineSoftmax<'k, f32>,
    /// The weights of the tile, rounded, that have not met its values yet.
    weights: Vec<U32<'k>>,
    values: WarpgroupSums<'k>,
    pipe: PipelineState<'k>,
}

warpwright_dsl::carry!(ConsumerState { softmax, weights, values, pipe });

impl KernelDef for WgmmaForward {
    type Args = WgmmaForwardArgs;

    fn spec(&self) -> KernelSpec {
        KernelSpec::new(
            format!("attention_{}_{}{}", self.dtype, self.config.name(), self.kind.name()),
            BlockDim::x(self.config.threads()),
        )
        .dtypes(DTypes::all(self.dtype).with("results.lse", statistics_type(self.dtype)))
        .min_blocks_per_sm(1)
    }

    fn build<'k>(&self, k: K<'k>, a: WgmmaForwardParams<'k>) {
        self.of_pairs(k, &a, None);
    }
}

impl KernelDef for Masked<WgmmaForward> {
    type Args = MaskedWgmmaForwardArgs;

    fn spec(&self) -> KernelSpec {
        let dtype = self.0.dtype;
        self.0.spec().dtypes(DTypes::all(dtype).with("forward.results.lse", statistics_type(dtype)))
    }

    fn build<'k>(&self, k: K<'k>, a: MaskedWgmmaForwardParams<'k>) {
        self.0.of_pairs(k, &a.forward, Some(a.mask));
    }
}

impl WgmmaForward {
    fn of_pairs<'k>(&self, k: K<'k>, a: &WgmmaForwardParams<'k>, mask: Option<BlockMaskParams<'k>>) {
        let Wgmma { groups, columns, stages, persistent, .. } = self.config;
        let p = Problem::of(a.problem);
        let tiles = self.config.tiles(self.dtype);
        let q_at = k.dynamic_shared_tiles();
        let keys_at = q_at + tiles.q.bytes();
        let queries = if persistent {
            QueryBarrier::Pipelined(k.mbarrier_pipeline(1))
        } else {
            QueryBarrier::Single(k.mbarriers(1).at(0u32))
        };
        let (keys, values) = (k.mbarrier_pipeline(stages), k.mbarrier_pipeline(stages));
        let warps = groups * (GROUP / WARP);
        k.if_(k.thread_idx().eq(0), || {
            match queries {
                QueryBarrier::Single(ready) => ready.init(1),
                QueryBarrier::Pipelined(pipeline) => pipeline.init(warps),
            }
            keys.init(warps);
            values.init(warps);
            k.publish_mbarriers();
        });
        k.barrier();

        let rows = self.config.rows();
        let of = |place| {
            let block = QueryBlock::<f32>::at(self.kind, self.dtype, &p, rows, place);
            let key_tiles = match mask {
                None => {
                    let walk = block.span.walk_keys(block.first, block.first + rows.cast_signed(), columns);
                    KeyOrder::Down(KeyTiles::new(&walk, &block.span, columns))
                }
                Some(mask) => KeyOrder::Listed(mask),
            };
            let values_at = keys_at + stages * tiles.keys.bytes();
            TileContext {
                k,
                kernel: *self,
                tiles,
                q_at,
                keys_at,
                values_at,
                queries,
                keys,
                values,
                key_tiles,
                block,
            }
        };
        let only = (!persistent).then(|| of(p.place(k, self.kind.is_uneven())));
        let each = |body: &dyn Fn(&TileContext<'k>, PipelineStates<'k>) -> PipelineStates<'k>| {
            let start = PipelineStates { queries: keys.start(k), keys: keys.start(k) };
            match &only {
                Some(shared) => body(shared, start),
                None => {
                    let order = TileOrder::new(a.tiles, a.all_tiles, p.heads);
                    k.fold(order.rounds(), start, |round, pipes| {
                        body(&of(order.place(round, self.kind.is_uneven())), pipes)
                    })
                }
            }
        };
        let copying = k.thread_idx().ge(self.config.multiplying());
        let (fewer, more) = self.config.registers();
        k.if_else(
            copying,
            || {
                k.release_registers(fewer);
                let first = k.thread_idx().eq(self.config.multiplying());
                k.if_(first, || {
                    each(&|shared, pipes| shared.produce(a, p.key_head(shared.block.head), pipes));
                });
            },
            || {
                k.claim_registers(more);
                let group = k.thread_idx() / GROUP;
                let order = PingPong { k, group, config: self.config };
                order.begin();
                each(&|shared, pipes| shared.consume(a, order, pipes));
                if persistent {
                    order.end();
                }
            },
        );
    }
}

impl<'k> TileContext<'k> {
    /// Copies the queries, and keys and values of all tiles as their places become free.
    fn produce(
        &self,
        a: &WgmmaForwardParams<'k>,
        key_head: U32<'k>,
        pipes: PipelineStates<'k>,
    ) -> PipelineStates<'k> {
        let (k, key_tiles, span) = (self.k, self.key_tiles, self.block.span);
        let of = |from: TensorMapParam<'k>, origin: Origin<'k>, head| HeadBoxes::new(from, origin, head);
        let q = of(a.q_boxes, span.of_queries, self.block.head);
        let [keys, values] = [a.k_boxes, a.v_boxes].map(|from| of(from, span.of_keys, key_head));
        let bytes = self.tiles.q.bytes();
        let ready = match self.queries {
            QueryBarrier::Single(ready) => {
                ready.arrive_expecting(bytes);
                ready
            }
            QueryBarrier::Pipelined(pipeline) => pipeline.producer_acquire(pipes.queries, bytes),
        };
        q.fetch(self.tiles.q, self.q_at, self.block.first, ready);
        let tile = self.tiles.keys;
        let keys_of = |pipe: PipelineState<'k>, key| {
            let ready = self.keys.producer_acquire(pipe, tile.bytes());
            keys.fetch(tile, pipe.stage().mul_add(tile.bytes(), self.keys_at), key, ready);
        };
        let tile = self.tiles.values;
        let values_of = |pipe: PipelineState<'k>, key| {
            let ready = self.values.producer_acquire(pipe, tile.bytes());
            values.fetch(tile, self.values_tile(pipe), key, ready);
        };
        let first = pipes.keys;
        let key_tiles = match key_tiles {
            KeyOrder::Down(key_tiles) => key_tiles,
            KeyOrder::Listed(mask) => {
                let lists = KeyLists::new(mask, &self.block, self.kernel.config, k.lit(0u32));
                let (tile, cursor) = lists.first(span.keys);
                let key = tile.at;
                keys_of(first, key);
                let (next, cursor) = lists.next(cursor);
                let begin = ((first, key), (next.at, cursor));
                let ((last, key), _) = k.while_(
                    begin,
                    |(_, (key, _))| key.ge(0),
                    |((pipe, before), (key, cursor))| {
                        let next = self.keys.next(pipe);
                        keys_of(next, key);
                        values_of(pipe, before);
                        let (later, cursor) = lists.next(cursor);
                        ((next, key), (later.at, cursor))
                    },
                );
                values_of(last, key);
                return self.next(pipes, last);
            }
        };
        keys_of(first, key_tiles.last);
        let step = self.kernel.config.columns.cast_signed();
        let last = k.fold(k.range(step, key_tiles.all, step), first, |down, pipe| {
            let next = self.keys.next(pipe);
            keys_of(next, key_tiles.last - down);
            values_of(pipe, key_tiles.last - down + step);
            next
        });
        values_of(last, key_tiles.last - key_tiles.all + step);
        self.next(pipes, last)
    }

    /// The turns of the next tile of queries, if `last` was the last one of keys.
    fn next(&self, pipes: PipelineStates<'k>, last: PipelineState<'k>) -> PipelineStates<'k> {
        match self.queries {
            QueryBarrier::Single(_) => pipes,
            QueryBarrier::Pipelined(pipeline) => {
                PipelineStates { queries: pipeline.next(pipes.queries), keys: self.keys.next(last) }
            }
        }
    }

    fn values_tile(&self, pipe: PipelineState<'k>) -> U32<'k> {
        pipe.stage().mul_add(self.tiles.values.bytes(), self.values_at)
    }

    /// The queries of a warpgroup.
    fn consume(
        &self,
        a: &WgmmaForwardParams<'k>,
        order: PingPong<'k>,
        pipes: PipelineStates<'k>,
    ) -> PipelineStates<'k> {
        let (k, kernel, key_tiles) = (self.k, self.kernel, self.key_tiles);
        let Wgmma { columns, value_width, .. } = kernel.config;
        let group = order.group;
        let queries = self.tiles.q.descriptor(self.q_at + group * self.tiles.q.part(GROUP_ROWS));
        let place = super::place(k, group * GROUP_ROWS, columns);
        let consumer = Consumer {
            shared: self,
            order,
            queries,
            place_in_group: match key_tiles {
                KeyOrder::Down(_) => place.clone(),
                KeyOrder::Listed(_) => super::place(k, k.lit(0u32), columns),
            },
            place,
        };
        match self.queries {
            QueryBarrier::Single(ready) => ready.wait(k.lit(0u32)),
            QueryBarrier::Pipelined(pipeline) => pipeline.consumer_wait(pipes.queries),
        }
        let zero = WarpgroupSums::zero(k, value_width);
        let state = match key_tiles {
            KeyOrder::Down(key_tiles) => {
                let masked = Pairs::Positioned { masked: true };
                let first = consumer.first_tile(pipes.keys, zero, key_tiles.last, masked);
                let step = columns.cast_signed();
                let part = |from, end, masked, state| {
                    k.fold(k.range(from, end, step), state, |down, state| {
                        consumer.tile(key_tiles.last - down, Pairs::Positioned { masked }, state)
                    })
                };
                // Without a band only the first tile has masked pairs, or with a bias all, if queries do not exist.
                let ScoreKind { band, bias, .. } = kernel.kind;
                let state =
                    if band || bias { part(k.lit(step), key_tiles.whole_from, true, first) } else { first };
                let state = part(key_tiles.whole_from, key_tiles.whole_end, false, state);
                if band { part(key_tiles.whole_end, key_tiles.all, true, state) } else { state }
            }
            KeyOrder::Listed(mask) => {
                let lists = KeyLists::new(mask, &self.block, kernel.config, group);
                let (tile, cursor) = lists.first(self.block.span.keys);
                let first = consumer.first_tile(pipes.keys, zero, tile.at, Pairs::First(lists, tile));
                let (state, _) = k.while_(
                    (first, lists.next(cursor)),
                    |(_, (tile, _))| tile.at.ge(0),
                    |(state, (tile, cursor))| {
                        // Looked up ahead.
                        let later = lists.next(cursor);
                        (consumer.tile(tile.at, Pairs::Listed(lists, tile), state), later)
                    },
                );
                state
            }
        };
        if let QueryBarrier::Pipelined(pipeline) = self.queries {
            consumer.release(pipeline, pipes.queries);
        }

        self.values.consumer_wait(state.pipe);
        if !kernel.config.persistent {
            order.end();
        }
        consumer.add_values(&state);
        state.values.wait(0);
        let next = self.next(pipes, state.pipe);
        if kernel.config.persistent {
            consumer.release(self.values, state.pipe);
        }
        consumer.store(a, state);
        next
    }
}

/// A warpgroup that multiplies.
struct Consumer<'s, 'k> {
    shared: &'s TileContext<'k>,
    order: PingPong<'k>,
    /// The descriptor of its queries.
    queries: U64<'k>,
    /// Where a thread's products lie in the block.
    place: Place<'k>,
    /// And where in its group, if there is a mask.
    place_in_group: Place<'k>,
}

impl<'k> Consumer<'_, 'k> {
    fn config(&self) -> Wgmma {
        self.shared.kernel.config
    }

    fn k(&self) -> K<'k> {
        self.shared.k
    }

    /// Starts the products with the keys of a turn, when they are there.
    fn products(&self, pipe: PipelineState<'k>) -> WarpgroupSums<'k> {
        let TileContext { tiles, keys, keys_at, .. } = self.shared;
        keys.consumer_wait(pipe);
        self.order.wait();
        let at = tiles.keys.descriptor(pipe.stage().mul_add(tiles.keys.bytes(), *keys_at));
        WarpgroupSums::products(self.k(), self.config().columns, (tiles.q, self.queries), (tiles.keys, at))
    }

    /// Starts the products of the weights of a tile with its values, which are there.
    fn add_values(&self, state: &ConsumerState<'k>) {
        let tile = self.shared.tiles.values;
        let at = tile.descriptor(self.shared.values_tile(state.pipe));
        state.values.add_products_of(&state.weights, (tile, at));
    }

    /// Gives a place of a pipeline back, which the group's products do not read any more.
    fn release(&self, pipeline: Pipeline<'k>, pipe: PipelineState<'k>) {
        self.k().if_(self.k().lane_idx().eq(0), || pipeline.consumer_release(pipe));
    }

    /// The weights of the first tile, and what they are relative to.
    fn first_tile(
        &self,
        pipe: PipelineState<'k>,
        values: WarpgroupSums<'k>,
        key: I32<'k>,
        pairs: Pairs<'k>,
    ) -> ConsumerState<'k> {
        let shared = self.shared;
        let products = self.products(pipe);
        self.order.pass();
        products.wait(0);
        self.release(shared.keys, pipe);
        let scores = self.scores(&products, key, pairs);
        let (p, softmax) = OnlineSoftmax::first(&shared.block.scorer, &scores);
        if shared.kernel.kind.lengths || shared.kernel.kind.packed {
            self.clear_values(pipe, key);
        }
        ConsumerState { softmax, weights: p.packed(shared.kernel.dtype), values, pipe }
    }

    /// Values behind the last key are in the tensor where sequences have lengths of their own: weights of 0 do not leave out what
    /// is no number.
    fn clear_values(&self, pipe: PipelineState<'k>, key: I32<'k>) {
        let (k, shared) = (self.k(), self.shared);
        shared.values.consumer_wait(pipe);
        let left = (shared.block.span.keys - key).max(0i32).to_u32();
        let threads = self.config().multiplying();
        shared.tiles.values.clear_from(shared.values_tile(pipe), left, (k.thread_idx(), threads));
        k.fence_shared_copies();
        k.barrier_of(MEETING, threads);
    }

    /// The next tile, whose first key is `key`: its weights, while the values of the one before are added.
    fn tile(&self, key: I32<'k>, pairs: Pairs<'k>, state: ConsumerState<'k>) -> ConsumerState<'k> {
        let (k, shared) = (self.k(), self.shared);
        let scorer = &shared.block.scorer;
        let pipe = shared.keys.next(state.pipe);
        let products = self.products(pipe);
        shared.values.consumer_wait(state.pipe);
        self.add_values(&state);
        self.order.pass();
        products.wait(1);
        self.release(shared.keys, pipe);
        let scores = self.scores(&products, key, pairs);
        let row_max = scores.row_max();
        let rescale = || state.softmax.rescaled(scorer, &row_max);
        let far = self.config().lazy_rescale.then(|| state.softmax.is_far_below(scorer, &row_max));
        let (softmax, factors) = match far {
            None => rescale(),
            Some(far) => k.if_else(far, rescale, || {
                let one = |_| k.lit::<f32>(1.0);
                (state.softmax.clone(), (0..2).map(one).collect())
            }),
        };
        let (p, softmax) = softmax.exp(scorer, &scores);
        state.values.wait(0);
        self.release(shared.values, state.pipe);
        let rescale = || state.values.scale_rows(&factors);
        match far {
            None => rescale(),
            Some(far) => k.if_(far, rescale),
        }
        ConsumerState { softmax, weights: p.packed(shared.kernel.dtype), values: state.values, pipe }
    }

    /// The scores of products with the keys from `key` on.
    fn scores(&self, products: &WarpgroupSums<'k>, key: I32<'k>, pairs: Pairs<'k>) -> RegTile<'k, f32> {
        let (block, place) = (&self.shared.block, &self.place);
        let first = key + place.first.to_i32();
        let masked = matches!(pairs, Pairs::Positioned { masked: true });
        let scores = products.tile().map_rows(|row, products| {
            let query = block.first + place.rows[row].to_i32();
            block.scorer.query_row(products, query, (first, &place.columns), masked)
        });
        match pairs {
            Pairs::Positioned { .. } => scores,
            Pairs::First(lists, tile) => lists.masked_first(tile, &scores, &self.place_in_group),
            Pairs::Listed(lists, tile) => lists.masked(self.k(), tile, scores, &self.place_in_group),
        }
    }

    /// Writes the normalised values and the logarithms.
    fn store(&self, a: &WgmmaForwardParams<'k>, state: ConsumerState<'k>) {
        let (k, block) = (self.k(), &self.shared.block);
        let p = Problem::of(a.problem);
        let queries: Vec<_> = self.place.rows.iter().map(|row| block.first + row.to_i32()).collect();
        let rows = LseRows {
            queries: queries.clone(),
            writes: self.place.first.eq(0),
            head: block.head,
            lse: a.results.lse.at(p.first_row(block.span.of_queries, block.head)),
            sink: Sink::of(a.results.sinks),
        };
        let factors = state.softmax.finalize(k, &block.scorer, LANES, &rows);
        let o = View::of(a.results.o);
        let to = o.destination(block.span.of_queries, block.head, block.span.queries, p.value_width);
        let quad = k.lane_idx() & 3;
        for (slot, query) in queries.iter().enumerate() {
            let exists = query.lt(to.rows);
            let data = to.data.at(query.to_u64() * to.stride).at(quad * BLOCK);
            let of_slot = state.values.pairs().filter(|(row, ..)| usize::from(*row > 0) == slot);
            let mut words: Vec<_> = of_slot
                .map(|(_, _, pair)| {
                    let [low, high] = pair.map(|value| value * factors[slot]);
                    low.pack_with(high, self.shared.kernel.dtype)
                })
                .collect();
            // Lanes exchange four blocks at a time, and write none beyond the row.
            while !words.len().is_multiple_of(LANES as usize) {
                words.push(k.lit(0u32));
            }
            for (first, words) in (0..).step_by(4 * BLOCK as usize).zip(words.chunks_exact(4)) {
                let words = super::gathered(quad, std::array::from_fn(|i| words[i]));
                let inside = exists & to.width.gt(quad * BLOCK + first);
                let block = Packed::of_words(self.shared.kernel.dtype, &words);
                data.at(u64::from(first)).only_where(inside, Fill::Zero).store_packed::<f32>(&block);
            }
        }
    }
}
