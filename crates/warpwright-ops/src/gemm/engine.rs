//! Products on the tensor cores of sm_90a by blocks that stay: each takes one tile of the result after the other. One thread brings
//! slices of the operands to shared memory, across the end of a tile too, so that those of the next tile arrive while warpgroups
//! finish the sums of the last, whose results tensor copies store from shared memory while the next tile is multiplied.
//!
//! The blocks of a cluster have neighbouring rows and the same columns: each brings a part of the slices of `b`, to all of them.
//!
//! Kernels differ in what becomes of the sums, which is their [`Epilogue`], and in what slices are of: of matrices, or of what a [`Loader`]
//! takes for them.

mod ending;
mod finish;
mod row_sums;
mod shares;
mod turned;
mod turns;

use std::rc::Rc;

use warpwright_dsl::prelude::*;
use warpwright_dsl::{
    Mbarrier, OutputPanel, PanelTile, Pipeline, PipelineState, TensorMapArg, WARP, WarpgroupSums, kernel_args,
};
use warpwright_ptx::ArgValue;
use warpwright_runtime::LaunchStep;

use super::WIDE;
use super::epilogue::ResultArgs;
use super::groups::{GroupParams, Grouping, Walk};
use super::tuning::PersistentConfig;
use crate::PlanError;
use crate::plan;

pub(crate) use ending::{Epilogue, Factors, Joined, Pair, ResultPanel};
use row_sums::SUMMING_WARPS;
pub(crate) use row_sums::{MOST_PIECES, RowSums, pieces, tile_of_sums};
pub(crate) use shares::{ShareArgs, ShareParams};
pub(crate) use turned::TURNING_WARPS;
use turns::Turns;

kernel_args! {
    /// Which tiles there are, and in which order blocks take them.
    pub(crate) struct OrderArgs => OrderParams {
        /// Tiles of a cluster along the rows and along the columns of a result.
        down: u32, across: u32,
        /// Tiles of all results.
        tiles: u32,
        /// Tiles along the rows whose tiles along the columns run together, so that they share what the L2 cache holds.
        height: u32,
    }
}

kernel_args! {
    /// The operands of `op(a) op(b)`, and where results go.
    pub(crate) struct WorkArgs => WorkParams {
        a: TensorMapArg, b: TensorMapArg, y_boxes: TensorMapArg, to: ResultArgs,
        m: u32, n: u32,
        /// Slices of the common dimension.
        steps: u32,
        order: OrderArgs,
        ldy: u64, stride_y: u64,
        /// 1, or 0 where all products have the same matrix.
        batch_a: u32, batch_b: u32,
    }
}

kernel_args! {
    /// Where results beside `y` go, which lie as it does.
    pub(crate) struct BesideArgs => BesideParams { boxes: TensorMapArg, to: Out<Elem> }
}

/// Threads of a warpgroup.
const GROUP: u32 = 128;
/// Rows of a warpgroup's product.
const SLAB: u32 = 64;
/// Panels of results of a warpgroup in shared memory: one is stored while the next is written.
pub(crate) const PANELS: u32 = 2;
/// The first of the named barriers at which warpgroups meet on their own.
const MEETING: u32 = 1;
/// Registers of a thread that copies, and of one that multiplies.
const REGISTERS: (u32, u32) = (40, 232);
/// The same where threads that copy keep the places of many panels, and others turn slices.
const REGISTERS_TURNING: (u32, u32) = (80, 216);

/// The type that results of `dtype` have in registers and shared memory: integers of 32 bits are copied as they are.
pub(crate) fn stored(dtype: DType) -> DType {
    if dtype == DType::I32 { DType::F32 } else { dtype }
}

/// Whether tensor copies leave what follows `n` results of a row: they store whole pieces of 16 bytes, on an H200 past the end of a row
/// of an odd number of 16-bit elements.
pub(crate) fn ends_whole(n: usize, dtype: DType) -> bool {
    n.saturating_mul(dtype.bytes()).is_multiple_of(WIDE as usize)
}

/// How results go to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Store {
    /// Tensor copies of whole panels: rows begin at multiples of 16 bytes.
    Panels,
    /// Warps, row by row.
    Rows,
    /// Tensor copies of panels whose rows are all of one group, and warps the others.
    Whole,
}

/// How blocks that stay are laid out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocks {
    /// Slices of the operands.
    pub(crate) slices: (PanelTile, PanelTile),
    /// The part of the slice of `b` that a block of a cluster brings.
    pub(crate) part_of_b: PanelTile,
    /// Type of the results; sums of integers as they are if it is one.
    pub(crate) y: DType,
    pub(crate) config: PersistentConfig,
    pub(crate) store: Store,
    /// The factor of an operand's second plane, its matrix behind each of the first, where there are two: elements are the
    /// sums of both. Products of two second planes are left out, and threads add the sums.
    pub(crate) planes: Option<f64>,
    /// Whether warpgroups take turns: each multiplies a tile of its own, all of its rows, while the others finish theirs. For tiles without
    /// groups in blocks without clusters.
    pub(crate) turns: bool,
}

/// A tile of the result.
#[derive(Clone, Copy)]
pub(crate) struct Place<'k> {
    pub(crate) row: U32<'k>,
    pub(crate) col: U32<'k>,
    /// The row behind the last that is stored.
    end: U32<'k>,
    /// The matrices of the operands, where these have several, and that of the result.
    pub(crate) batch: U32<'k>,
    matrix: U32<'k>,
    /// Slices of the common dimension, and the first of them where that is not the first of all.
    pub(crate) steps: U32<'k>,
    first: Option<U32<'k>>,
    /// Of a group's, the first and the one behind its last.
    common: Option<(U32<'k>, U32<'k>)>,
    /// The number of the tile.
    tile: U32<'k>,
}

/// A slice of both operands on its way: where it goes, and what counts its bytes.
#[derive(Clone, Copy)]
pub(crate) struct Arriving<'k> {
    pub(crate) a: U32<'k>,
    pub(crate) b: U32<'k>,
    pub(crate) done: Mbarrier<'k>,
}

/// Brings slices of operands that are no matrices in memory. A place's batch is the number of its product.
pub(crate) trait Loader<'k> {
    /// Slices of the tile at `place`.
    fn steps(&self, place: &Place<'k>) -> U32<'k>;

    /// The offsets that all slices of a tile share, and the first slice.
    fn begin(&self, place: &Place<'k>) -> (Vec<U32<'k>>, Vec<U32<'k>>);

    /// Starts the copies of the slice at `at`, of the tile of which `fixed` is the same for all.
    fn fetch(&self, place: &Place<'k>, fixed: &[U32<'k>], at: &[U32<'k>], to: Arriving<'k>);

    /// Where the slice behind that at `at` is.
    fn advance(&self, at: &[U32<'k>]) -> Vec<U32<'k>>;

    /// Whether slices arrive across the common dimension, of 32-bit elements: warps turn them in shared memory before they are multiplied, and
    /// split elements where products have two planes.
    fn arrives_across(&self) -> bool {
        false
    }

    /// The element of the result that row `row` begins at, where rows do not follow one another: warps store them, whole vectors of 16 bytes.
    fn row(&self, _row: U32<'k>) -> Option<U64<'k>> {
        None
    }
}

/// Parts that not all products have.
#[derive(Default)]
struct Parts<'k> {
    /// Groups whose products these are.
    groups: Option<(Grouping, GroupParams<'k>)>,
    /// The loader that brings the slices.
    loader: Option<Rc<dyn Loader<'k> + 'k>>,
    /// How blocks share all tiles, and whether results are sums of several products.
    share: Option<(ShareParams<'k>, bool)>,
    /// Where sums of rows go.
    sums: Option<RowSums<'k>>,
}

/// The arguments, tiles and pipeline of a block, the same for all of its threads.
struct Context<'k> {
    k: K<'k>,
    p: WorkParams<'k>,
    groups: Option<(Grouping, GroupParams<'k>)>,
    loader: Option<Rc<dyn Loader<'k> + 'k>>,
    share: Option<(ShareParams<'k>, bool)>,
    a: PanelTile,
    b: PanelTile,
    /// Where the slices begin, and the panels of results.
    slices: U32<'k>,
    panels: U32<'k>,
    /// The stages as copies fill them, and as they are multiplied: the same, but where warps turn slices in between.
    copied: Pipeline<'k>,
    pipeline: Pipeline<'k>,
}

impl<'k> Context<'k> {
    /// Where the slices of a stage begin.
    fn stage(&self, stage: U32<'k>) -> (U32<'k>, U32<'k>) {
        let a = stage.mul_add(self.a.bytes() + self.b.bytes(), self.slices);
        (a, a + self.a.bytes())
    }

    /// The state behind the slices of a tile that another warpgroup multiplies.
    fn passed(&self, place: Place<'k>, state: PipelineState<'k>) -> PipelineState<'k> {
        self.k.fold(self.k.range(0, place.steps, 1), state, |_, state| self.pipeline.next(state))
    }

    /// Runs `body` for each tile of the block, and hands on the state of the pipeline.
    fn for_each_tile(
        &self,
        config: PersistentConfig,
        body: impl FnOnce(Place<'k>, PipelineState<'k>) -> PipelineState<'k>,
    ) {
        let (k, p, order) = (self.k, self.p, self.p.order);
        if let Some((share, _)) = self.share {
            return share.for_each(k, p, config, self.pipeline.start(k), body);
        }
        let clusters = k.grid_dim_x() / config.cluster;
        if let Some((Grouping::M, groups)) = self.groups {
            let tiles = (config.rows, order.across);
            let find = |tile: U32<'k>, walk| groups.find(tile, walk, tiles);
            let first = k.cluster_idx_x();
            let first = (first, find(first, groups.first()), self.pipeline.start(k));
            let _ = k.while_(
                first,
                |(_, walk, _)| walk.group.le(groups.groups),
                |(tile, walk, state)| {
                    let Walk { group, begin, end, before } = walk;
                    let down = (end - begin + (config.rows - 1)) / config.rows;
                    let (down, across) = order.place(down, tile - before);
                    // Rows of no group are zeros.
                    let steps = group.lt(groups.groups).select(p.steps, 0);
                    let row = down.mul_add(config.rows, begin);
                    let (col, matrix) = (across * config.cols, k.lit(0u32));
                    let (first, common) = (None, None);
                    let place = Place { row, col, end, batch: group, matrix, steps, first, common, tile };
                    let state = body(place, state);
                    let next = tile + clusters;
                    (next, find(next, walk), state)
                },
            );
            return;
        }
        let tiles = k.range(k.cluster_idx_x(), order.tiles, clusters);
        let _ = k.fold(tiles, self.pipeline.start(k), |tile, state| {
            let of_batch = order.down * order.across;
            let batch = tile / of_batch;
            let (down, across) = order.place(order.down, tile - batch * of_batch);
            let row = (down * config.cluster + k.cluster_rank()) * config.rows;
            let place = Place {
                row,
                col: across * config.cols,
                end: p.m,
                batch,
                matrix: batch,
                steps: p.steps,
                first: None,
                common: None,
                tile,
            };
            if let Some(loader) = &self.loader {
                return body(Place { steps: loader.steps(&place), ..place }, state);
            }
            let Some((_, groups)) = self.groups else { return body(place, state) };
            let (begin, end) = groups.rows_of(batch);
            let steps = (end - begin + (self.a.depth - 1)) / self.a.depth;
            body(Place { steps, common: Some((begin, end)), ..place }, state)
        });
    }
}

impl<'k> OrderParams<'k> {
    /// How far down and across tile `local` is, of `down` along the rows.
    fn place(&self, down: U32<'k>, local: U32<'k>) -> (U32<'k>, U32<'k>) {
        let group = local / (self.across * self.height);
        let first = group * self.height;
        let height = (down - first).min(self.height);
        let local = local - first * self.across;
        (first + local % height, local / height)
    }
}

impl Blocks {
    fn groups(&self) -> u32 {
        self.config.groups
    }

    /// How far down and right of the lane's first sum each pair is.
    fn places(&self) -> impl Iterator<Item = (u32, u32)> + use<> {
        (0..self.config.cols / 4).map(|pair| (pair % 2 * 8, pair / 2 * 8))
    }

    /// Slabs of 64 rows of a warpgroup.
    fn slabs(&self) -> u32 {
        self.config.rows / SLAB / if self.turns { 1 } else { self.groups() }
    }

    fn panel(&self) -> OutputPanel {
        OutputPanel { dtype: stored(self.y) }
    }

    /// Copies the slices of all tiles, as places in the pipeline become free. For one thread.
    fn produce<'k>(&self, cx: &Context<'k>) {
        let (k, p, config) = (cx.k, cx.p, self.config);
        let part = self.part_of_b;
        let blocks = (1 << config.cluster) - 1;
        let rank = k.cluster_rank();
        cx.for_each_tile(config, |place, state| {
            if let Some(loader) = &cx.loader {
                let (fixed, first) = loader.begin(&place);
                let slices = k.range(0, place.steps, 1);
                let (state, _) = k.fold(slices, (state, first), |_, (state, at)| {
                    let done = cx.copied.producer_acquire(state, cx.a.bytes() + cx.b.bytes());
                    let (a, b) = cx.stage(state.stage());
                    loader.fetch(&place, &fixed, &at, Arriving { a, b, done });
                    let next = cx.pipeline.next(state);
                    // Warps that split elements fill the next stage.
                    let next = if self.planes.is_some() { cx.pipeline.next(next) } else { next };
                    (next, loader.advance(&at))
                });
                return state;
            }
            let (batch_a, batch_b) = (place.batch * p.batch_a, place.batch * p.batch_b);
            let planes = self.planes.is_some();
            let slices = if planes { place.steps * 2 } else { place.steps };
            k.fold(k.range(0, slices, 1), state, |step, state| {
                // Those of both planes follow one another.
                let of_plane = |batch: U32<'k>| if planes { batch * 2 + (step & 1) } else { batch };
                let (batch_a, batch_b) = (of_plane(batch_a), of_plane(batch_b));
                let step = if planes { step >> 1 } else { step };
                let ready = cx.copied.producer_acquire(state, cx.a.bytes() + cx.b.bytes());
                let (to_a, to_b) = cx.stage(state.stage());
                let step = place.first.map_or(step, |first| step + first);
                let (batch_a, batch_b, step) = match cx.share {
                    Some((share, true)) => {
                        let (product, step) = share.product(step);
                        (product, product, step)
                    }
                    _ => (batch_a, batch_b, step),
                };
                let along = step * cx.a.depth;
                let along = place.common.map_or(along, |(begin, _)| along + begin);
                cx.a.fetch(p.a, to_a, (place.row, along), &[batch_a], ready);
                if config.cluster == 1 {
                    cx.b.fetch(p.b, to_b, (place.col, along), &[batch_b], ready);
                } else {
                    let to = rank.mul_add(part.bytes(), to_b);
                    let col = rank.mul_add(part.outer, place.col);
                    part.fetch_to_blocks(blocks, p.b, to, (col, along), &[batch_b], ready);
                }
                cx.pipeline.next(state)
            })
        });
    }

    /// Multiplies the slices of all tiles, and stores the results.
    fn consume<'k, E: Epilogue<'k>>(&self, cx: &Context<'k>, epilogue: &E) {
        let (k, config) = (cx.k, self.config);
        let lane = k.lane_idx();
        let group = k.thread_idx() / GROUP;
        let turns = self.turns.then(|| Turns { k, group, groups: self.groups() });
        if let Some(turns) = turns {
            turns.begin();
        }
        cx.for_each_tile(config, |place, state| {
            let added = match self.planes {
                Some(factor) => Some(self.multiply_planes(cx, factor, (group, lane), place, state)),
                None if epilogue.promotes() => {
                    Some(self.multiply_by_slices(cx, epilogue, (group, lane), place, state))
                }
                None => None,
            };
            if let Some((state, sums)) = added {
                self.finish(cx, epilogue, sums, Place { row: place.row + group * SLAB, ..place }, None);
                return state;
            }
            let first = if self.turns { place.row } else { place.row + group * (self.slabs() * SLAB) };
            let whole = || {
                // Products hide how long what the first panels are made of takes to arrive.
                let mut ahead = self.ahead(cx, epilogue, Place { row: first, ..place });
                let (state, sums) = self.multiply(cx, (group, lane), turns, place, state);
                for (slab, sums) in (0..).zip(&sums) {
                    let row = if slab > 0 { first + slab * SLAB } else { first };
                    self.finish(cx, epilogue, self.pairs(sums), Place { row, ..place }, ahead.as_mut());
                }
                state
            };
            match cx.groups {
                // A group may end before the rows of this warpgroup: what the others multiply is not multiplied here.
                Some((Grouping::M, _)) => {
                    k.if_else(first.lt(place.end), whole, || self.skip(cx, lane, place, state))
                }
                _ => match turns {
                    Some(turns) => k.if_else(turns.is_mine(place), whole, || cx.passed(place, state)),
                    None => whole(),
                },
            }
        });
        if let Some(turns) = turns {
            turns.end(cx.p.order.tiles);
        }
        if self.store != Store::Rows {
            k.wait_stores(0);
        }
    }

    /// Gives a stage back, for this warp.
    fn release<'k>(&self, cx: &Context<'k>, lane: U32<'k>, state: PipelineState<'k>) {
        let (k, cluster) = (cx.k, self.config.cluster);
        if cluster == 1 {
            k.if_(lane.eq(0), || cx.pipeline.consumer_release(state));
        } else {
            k.if_(lane.lt(cluster), || cx.pipeline.consumer_release_at(lane, state));
        }
    }

    /// Gives back the slices of a tile unread.
    fn skip<'k>(
        &self,
        cx: &Context<'k>,
        lane: U32<'k>,
        place: Place<'k>,
        state: PipelineState<'k>,
    ) -> PipelineState<'k> {
        cx.k.fold(cx.k.range(0, place.steps, 1), state, |_, state| {
            cx.pipeline.consumer_wait(state);
            self.release(cx, lane, state);
            cx.pipeline.next(state)
        })
    }

    /// The sums of a tile, which stay in the tensor cores' registers: by slabs.
    fn multiply<'k>(
        &self,
        cx: &Context<'k>,
        (group, lane): (U32<'k>, U32<'k>),
        turns: Option<Turns<'k>>,
        place: Place<'k>,
        state: PipelineState<'k>,
    ) -> (PipelineState<'k>, Vec<WarpgroupSums<'k>>) {
        let (k, config) = (cx.k, self.config);
        if let Some(turns) = turns {
            turns.wait();
        }
        let zero = |_| WarpgroupSums::zero_of(k, config.cols, cx.a.dtype);
        let zero: Vec<_> = (0..self.slabs()).map(zero).collect();
        let first = (state, state, zero);
        let (state, last, sums) = k.fold(k.range(0, place.steps, 1), first, |step, (state, before, sums)| {
            cx.pipeline.consumer_wait(state);
            let (at_a, at_b) = cx.stage(state.stage());
            if let Some((begin, end)) = place.common {
                self.clear_others(cx, (at_a, at_b), end - begin - step * cx.a.depth);
            }
            let of_group = if self.turns { at_a } else { at_a + group * cx.a.part(SLAB * self.slabs()) };
            for (slab, sums) in (0..).zip(&sums) {
                let a = of_group + cx.a.part(SLAB * slab);
                sums.add_products((cx.a, cx.a.descriptor(a)), (cx.b, cx.b.descriptor(at_b)));
            }
            sums[0].wait(self.slabs());
            // The products of the step before have been added.
            k.if_(step.gt(0), || self.release(cx, lane, before));
            (cx.pipeline.next(state), state, sums)
        });
        if let Some(turns) = turns {
            turns.pass();
        }
        sums[0].wait(0);
        if cx.groups.is_some() {
            k.if_(place.steps.gt(0), || self.release(cx, lane, last));
        } else {
            self.release(cx, lane, last);
        }
        (state, sums)
    }

    /// Zeroes what a slice has of the next group: of the common dimension `left` are of this one.
    fn clear_others<'k>(&self, cx: &Context<'k>, (at_a, at_b): (U32<'k>, U32<'k>), left: U32<'k>) {
        let k = cx.k;
        k.if_(left.lt(cx.a.depth), || {
            let threads = self.groups() * GROUP;
            cx.a.clear_from(at_a, left, (k.thread_idx(), threads));
            cx.b.clear_from(at_b, left, (k.thread_idx(), threads));
            k.fence_shared_copies();
            k.barrier_of(MEETING + self.groups(), threads);
        });
    }

    /// The sums of a tile of which each warpgroup has one slab, those of each slice times its factors.
    fn multiply_by_slices<'k, E: Epilogue<'k>>(
        &self,
        cx: &Context<'k>,
        epilogue: &E,
        (group, lane): (U32<'k>, U32<'k>),
        place: Place<'k>,
        state: PipelineState<'k>,
    ) -> (PipelineState<'k>, Vec<Pair<'k>>) {
        let (k, p, cols) = (cx.k, cx.p, self.config.cols);
        let (down, right) = k.accumulator_origin();
        let first_row = place.row + group * SLAB + (k.warp_idx() & 3) * 16 + down;
        let row = |down: u32| if down > 0 { first_row + down } else { first_row };
        let places: Vec<_> = self.places().collect();
        let zero: Vec<_> = places.iter().map(|_| [k.lit(0.0f32), k.lit(0.0f32)]).collect();
        let load = |step: U32<'k>| epilogue.load_factors(step, &row, place.col, right);
        let first = (state, load(k.lit(0u32)), zero);
        let (state, _, sums) = k.fold(k.range(0, p.steps, 1), first, |step, (state, loaded, sums)| {
            cx.pipeline.consumer_wait(state);
            let (at_a, at_b) = cx.stage(state.stage());
            let a = at_a + group * cx.a.part(SLAB);
            let (a, b) = ((cx.a, cx.a.descriptor(a)), (cx.b, cx.b.descriptor(at_b)));
            let of_slice = WarpgroupSums::products(k, cols, a, b);
            // While the tensor cores work.
            let factors = epilogue.factors(&loaded);
            let next = load((step + 1).min(p.steps - 1));
            of_slice.wait(0);
            self.release(cx, lane, state);
            let added = of_slice.pairs().zip(&sums).map(|((down, right, pair), sums)| {
                let factors = factors(down, right);
                [0, 1].map(|i| match factors {
                    Some(factors) => pair[i].mul_add(factors[i], sums[i]),
                    None => sums[i] + pair[i],
                })
            });
            (cx.pipeline.next(state), next, added.collect())
        });
        (state, places.into_iter().zip(sums).map(|((down, right), pair)| (down, right, pair)).collect())
    }

    /// The sums of a tile of which each warpgroup has one slab, of operands with two planes.
    ///
    /// Each step of tensor cores cuts 17 numbers off at 2^-25 of the largest, the sum so far being one of them. Of numbers of one sign a sum of
    /// four steps loses 2.7e-7, one of two steps 0.9e-7, so threads add those of half slices of the first planes. Two groups of products take
    /// turns, one on its way while the other is added: warpgroups that wait for the same slices would all leave the tensor cores idle. None is
    /// on its way from one slice to the next: the assembler would have each product wait for the one before.
    fn multiply_planes<'k>(
        &self,
        cx: &Context<'k>,
        factor: f64,
        (group, lane): (U32<'k>, U32<'k>),
        place: Place<'k>,
        state: PipelineState<'k>,
    ) -> (PipelineState<'k>, Vec<Pair<'k>>) {
        let (k, cols) = (cx.k, self.config.cols);
        let (all, half) = (cx.a.depth, cx.a.depth / 2);
        let zero = || WarpgroupSums::zero_of(k, cols, cx.a.dtype);
        let [one, other] = [zero(), zero()];
        let values = |of: &WarpgroupSums<'k>| of.pairs().map(|(.., pair)| pair).collect::<Vec<_>>();
        let add = |to: Vec<[F32<'k>; 2]>, of: &WarpgroupSums<'k>, pending: u32, factor: Option<f64>| {
            of.wait(pending);
            let each = to.into_iter().zip(values(of));
            let sum = |(to, of): (F32<'k>, F32<'k>)| match factor {
                Some(factor) => of.mul_add(factor, to),
                None => of + to,
            };
            each.map(|(to, of)| [0, 1].map(|i| sum((to[i], of[i])))).collect::<Vec<_>>()
        };
        let small = Some(factor);
        let none = self.places().map(|_| [k.lit(0.0f32), k.lit(0.0f32)]).collect::<Vec<_>>();
        let (state, sums) = k.fold(k.range(0, place.steps, 1), (state, none), |_, (high, sums)| {
            let low = cx.pipeline.next(high);
            let [(high_a, high_b), (low_a, low_b)] = [high, low].map(|state| {
                let (at_a, at_b) = cx.stage(state.stage());
                let a = at_a + group * cx.a.part(SLAB);
                ((cx.a, cx.a.descriptor(a)), (cx.b, cx.b.descriptor(at_b)))
            });
            cx.pipeline.consumer_wait(high);
            one.restart(high_a, high_b, 0..half);
            cx.pipeline.consumer_wait(low);
            other.restart(high_a, low_b, 0..all);
            let sums = add(sums, &one, 1, None);
            one.restart(high_a, high_b, half..all);
            let sums = add(sums, &other, 1, small);
            other.restart(low_a, high_b, 0..all);
            let sums = add(sums, &one, 1, None);
            let sums = add(sums, &other, 0, small);
            self.release(cx, lane, high);
            self.release(cx, lane, low);
            (cx.pipeline.next(low), sums)
        });
        (state, self.places().zip(sums).map(|((down, right), pair)| (down, right, pair)).collect())
    }

    /// Sums as they are finished: bits of integers in the place of `f32` where these are the results.
    fn pairs<'k>(&self, sums: &WarpgroupSums<'k>) -> Vec<Pair<'k>> {
        if self.y != DType::I32 {
            return sums.pairs().collect();
        }
        let bits = |i: u32| F32::from_bits(sums.integer(i).to_u32());
        let pair =
            |(pair, (down, right)): (u32, (u32, u32))| (down, right, [bits(2 * pair), bits(2 * pair + 1)]);
        (0..).zip(self.places()).map(pair).collect()
    }

    /// Threads of a block.
    pub(crate) fn threads(&self) -> u32 {
        (self.groups() + 1) * GROUP
    }

    /// Records a block's work. `groups` are those whose products these are, and how; sums of slices are not promoted then.
    pub(crate) fn record<'k, E: Epilogue<'k>>(
        &self,
        k: K<'k>,
        p: WorkParams<'k>,
        groups: Option<(Grouping, GroupParams<'k>)>,
        epilogue: &E,
    ) {
        self.record_from(k, p, Parts { groups, ..Parts::default() }, epilogue);
    }

    /// The same of matrices, and of the sums of the rows of `op(a)`.
    pub(crate) fn record_summing<'k, E: Epilogue<'k>>(
        &self,
        k: K<'k>,
        p: WorkParams<'k>,
        sums: RowSums<'k>,
        epilogue: &E,
    ) {
        self.record_from(k, p, Parts { sums: Some(sums), ..Parts::default() }, epilogue);
    }

    /// The same of matrices whose tiles all blocks share, each the sum of several products if `several`. Results are the sums of parts.
    pub(crate) fn record_sharing<'k, E: Epilogue<'k>>(
        &self,
        k: K<'k>,
        p: WorkParams<'k>,
        share: (ShareParams<'k>, bool),
        sums: Option<RowSums<'k>>,
        epilogue: &E,
    ) {
        self.record_from(k, p, Parts { share: Some(share), sums, ..Parts::default() }, epilogue);
    }

    /// The same of what `loader` brings, to blocks without clusters.
    pub(crate) fn record_loading<'k, E: Epilogue<'k>>(
        &self,
        k: K<'k>,
        p: WorkParams<'k>,
        loader: impl Loader<'k> + 'k,
        epilogue: &E,
    ) {
        self.record_from(k, p, Parts { loader: Some(Rc::new(loader)), ..Parts::default() }, epilogue);
    }

    fn record_from<'k, E: Epilogue<'k>>(
        &self,
        k: K<'k>,
        p: WorkParams<'k>,
        Parts { groups, loader, share, sums }: Parts<'k>,
        epilogue: &E,
    ) {
        let (a, b) = self.slices;
        let slices = k.dynamic_shared_tiles();
        let panels = slices + self.config.stages * (a.bytes() + b.bytes());
        let pipeline = k.mbarrier_pipeline(self.config.stages);
        let across = loader.as_ref().is_some_and(|loader| loader.arrives_across());
        let copied = pipeline;
        let pipeline = if across { copied.behind(k) } else { copied };
        let cx = Context { k, p, groups, loader, share, a, b, slices, panels, copied, pipeline };
        k.if_(k.thread_idx().eq(0), || {
            let reading = if self.turns { 1 } else { self.groups() };
            copied.init_in_cluster(k, reading * (GROUP / WARP) + sums.map_or(0, |_| SUMMING_WARPS));
            if across {
                pipeline.init_behind(TURNING_WARPS);
            }
            k.publish_mbarriers();
        });
        let meet = || if self.config.cluster > 1 { k.cluster_barrier() } else { k.barrier() };
        meet();
        let multiplying = self.groups() * GROUP;
        let (fewer, more) = if across { REGISTERS_TURNING } else { REGISTERS };
        k.if_else(
            k.thread_idx().ge(multiplying),
            || {
                k.release_registers(fewer);
                k.if_(k.thread_idx().eq(multiplying), || self.produce(&cx));
                if let Some(sums) = sums {
                    k.if_(self.sums_rows(k), || self.sum_rows(&cx, sums));
                }
                if across {
                    k.if_(self.turns_slices(k), || self.turn_slices(&cx));
                }
            },
            || {
                k.claim_registers(more);
                self.consume(&cx, epilogue);
            },
        );
        // Copies of other blocks may still be on their way here, and arrivals.
        if self.config.cluster > 1 {
            k.cluster_barrier();
        }
    }

    /// The launch of `grid` of these blocks.
    pub(crate) fn launch<D: KernelDef>(
        &self,
        op: &'static str,
        target: Target,
        def: &D,
        grid: u32,
        values: Vec<ArgValue>,
    ) -> Result<LaunchStep, PlanError> {
        let kernel = plan::recorded(op, def, Target::specific(target.sm))?;
        plan::launch_step(op, kernel, [grid, 1, 1], values, self.shared_bytes())
    }

    /// Bytes of dynamic shared memory.
    const fn shared_bytes(&self) -> u32 {
        self.config.shared_bytes(self.slices.0.bytes() + self.slices.1.bytes())
    }

    /// The map by which results are stored, over `matrices` and the bytes between them; rows are `leading` bytes apart. Where rows do
    /// not begin at multiples of 16 bytes they are stored without, but it must be one all the same.
    pub(crate) fn boxes_of_results(
        &self,
        y: &Out<Elem>,
        sizes: (u64, u64),
        leading: u64,
        (matrices, stride): (u64, u64),
    ) -> TensorMapArg {
        let further = (matrices, stride.next_multiple_of(WIDE));
        TensorMapArg::over_output(y, self.panel().map(sizes, leading.next_multiple_of(WIDE), &[further]))
    }
}
