//! Products on the tensor cores of sm_90a by blocks that stay: each takes one tile of the result after the other. One thread brings
//! slices of the operands to shared memory, across the end of a tile too, so that those of the next tile arrive while warpgroups
//! finish the sums of the last, whose results tensor copies store from shared memory while the next tile is multiplied.
//!
//! The blocks of a cluster have neighbouring rows and the same columns: each brings a part of the slices of `b`, to all of them.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{
    OutputPanel, PanelTile, Pipeline, PipelineState, TensorMapArg, WARP, WarpgroupSums, kernel_args,
};
use warpwright_ptx::isa::DeviceLimits;
use warpwright_runtime::LaunchStep;

use super::epilogue::{Program, ResultArgs, ResultParams};
use super::tuning::{Config, PersistentConfig};
use super::{GemmDesc, MAX_BOX_STRIDE, OP, Product, WIDE};
use crate::PlanError;
use crate::plan;

kernel_args! {
    /// Which tiles there are, and in which order blocks take them.
    pub(super) struct OrderArgs => OrderParams {
        /// Tiles of a cluster along the rows and along the columns of a result.
        down: u32, across: u32,
        /// Tiles of all results.
        tiles: u32,
        /// Tiles along the rows whose tiles along the columns run together, so that they share what the L2 cache holds.
        height: u32,
    }
}

kernel_args! {
    /// `y = activation(alpha op(a) op(b) + beta c + bias)`
    pub(super) struct PersistentArgs => PersistentParams {
        a: TensorMapArg, b: TensorMapArg, y_boxes: TensorMapArg, to: ResultArgs,
        m: u32, n: u32,
        /// Slices of the common dimension.
        steps: u32,
        order: OrderArgs,
        ldy: u64, stride_y: u64,
        /// 1, or 0 where all products have the same matrix.
        batch_a: u32, batch_b: u32,
        alpha: f32, beta: f32,
    }
}

/// Threads of a warpgroup.
const GROUP: u32 = 128;
/// Rows of a warpgroup's product.
const SLAB: u32 = 64;
/// Panels of results of a warpgroup in shared memory: one is stored while the next is written.
pub(super) const PANELS: u32 = 2;
/// The first of the named barriers at which warpgroups meet on their own.
const MEETING: u32 = 1;
/// Registers of a thread that copies, and of one that multiplies.
const REGISTERS: (u32, u32) = (40, 232);

/// How results go to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Store {
    /// Tensor copies of whole panels: rows begin at multiples of 16 bytes.
    Panels,
    /// Warps, row by row.
    Rows,
}

/// A product of matrices whose tiles persistent blocks compute.
#[derive(Clone, Copy, Debug)]
pub(super) struct PersistentGemm {
    pub(super) dtype: DType,
    /// How `op(a)` and `op(b)` are stored.
    pub(super) a: Major,
    pub(super) b: Major,
    pub(super) config: PersistentConfig,
    pub(super) program: Program,
    pub(super) store: Store,
}

/// A tile of the result.
#[derive(Clone, Copy)]
struct Place<'k> {
    row: U32<'k>,
    col: U32<'k>,
    batch: U32<'k>,
}

/// The arguments, tiles and pipeline of a block, the same for all of its threads.
struct Context<'k> {
    k: K<'k>,
    p: PersistentParams<'k>,
    a: PanelTile,
    b: PanelTile,
    /// Where the slices begin, and the panels of results.
    slices: U32<'k>,
    panels: U32<'k>,
    pipeline: Pipeline<'k>,
}

impl<'k> Context<'k> {
    /// Where the slices of a stage begin.
    fn stage(&self, stage: U32<'k>) -> (U32<'k>, U32<'k>) {
        let a = stage.mul_add(self.a.bytes() + self.b.bytes(), self.slices);
        (a, a + self.a.bytes())
    }

    /// Runs `body` for each tile of the block, and hands on the state of the pipeline.
    fn for_each_tile(
        &self,
        config: PersistentConfig,
        body: impl FnOnce(Place<'k>, PipelineState<'k>) -> PipelineState<'k>,
    ) {
        let (k, order) = (self.k, self.p.order);
        let clusters = k.grid_dim_x() / config.cluster;
        let tiles = k.range(k.cluster_idx_x(), order.tiles, clusters);
        let _ = k.fold(tiles, self.pipeline.start(k), |tile, state| {
            let of_batch = order.down * order.across;
            let batch = tile / of_batch;
            let local = tile - batch * of_batch;
            let group = local / (order.across * order.height);
            let first = group * order.height;
            let height = (order.down - first).min(order.height);
            let local = local - first * order.across;
            let (down, across) = (first + local % height, local / height);
            let row = (down * config.cluster + k.cluster_rank()) * config.rows;
            body(Place { row, col: across * config.cols, batch }, state)
        });
    }
}

impl PersistentGemm {
    fn groups(&self) -> u32 {
        self.config.groups
    }

    /// Slabs of 64 rows of a warpgroup.
    fn slabs(&self) -> u32 {
        self.config.rows / SLAB / self.groups()
    }

    fn panel(&self) -> OutputPanel {
        OutputPanel { dtype: self.dtype }
    }

    /// Copies the slices of all tiles, as places in the pipeline become free. For one thread.
    fn produce(&self, cx: &Context<'_>) {
        let (k, p, config) = (cx.k, cx.p, self.config);
        let part = config.part_of_b(self.dtype, self.b);
        let blocks = (1 << config.cluster) - 1;
        let rank = k.cluster_rank();
        cx.for_each_tile(config, |place, state| {
            let (batch_a, batch_b) = (place.batch * p.batch_a, place.batch * p.batch_b);
            k.fold(k.range(0, p.steps, 1), state, |step, state| {
                let ready = cx.pipeline.producer_acquire(state, cx.a.bytes() + cx.b.bytes());
                let (to_a, to_b) = cx.stage(state.stage());
                let along = step * cx.a.depth;
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
    fn consume<'k>(&self, cx: &Context<'k>) {
        let (k, p, config) = (cx.k, cx.p, self.config);
        let lane = k.lane_idx();
        let group = k.thread_idx() / GROUP;
        let release = |state: PipelineState<'k>| {
            if config.cluster == 1 {
                k.if_(lane.eq(0), || cx.pipeline.consumer_release(state));
            } else {
                k.if_(lane.lt(config.cluster), || cx.pipeline.consumer_release_at(lane, state));
            }
        };
        cx.for_each_tile(config, |place, state| {
            let zero: Vec<_> = (0..self.slabs()).map(|_| WarpgroupSums::zero(k, config.cols)).collect();
            let first = (state, state, zero);
            let (state, last, sums) = k.fold(k.range(0, p.steps, 1), first, |step, (state, before, sums)| {
                cx.pipeline.consumer_wait(state);
                let (at_a, at_b) = cx.stage(state.stage());
                let of_group = at_a + group * cx.a.part(SLAB * self.slabs());
                for (slab, sums) in (0..).zip(&sums) {
                    let a = of_group + cx.a.part(SLAB * slab);
                    sums.add_products((cx.a, cx.a.descriptor(a)), (cx.b, cx.b.descriptor(at_b)));
                }
                sums[0].wait(self.slabs());
                // The products of the step before have been added.
                k.if_(step.gt(0), || release(before));
                (cx.pipeline.next(state), state, sums)
            });
            sums[0].wait(0);
            release(last);
            for (slab, sums) in (0..).zip(&sums) {
                let row = place.row + (group * self.slabs() + slab) * SLAB;
                self.finish(cx, sums, Place { row, ..place });
            }
            state
        });
        if self.store == Store::Panels {
            k.wait_stores(0);
        }
    }

    /// Stores the results of 64 rows, whose sums a warpgroup has.
    fn finish<'k>(&self, cx: &Context<'k>, sums: &WarpgroupSums<'k>, place: Place<'k>) {
        let (k, p, panel) = (cx.k, cx.p, self.panel());
        let matrix = place.batch.to_u64() * p.stride_y;
        let to = ResultParams { c: p.to.c.at(matrix), y: p.to.y.at(matrix), ..p.to };
        let group = k.thread_idx() / GROUP;
        let leader = (k.thread_idx() % GROUP).eq(0);
        let pairs: Vec<_> = sums.pairs().collect();
        let (down, right) = k.accumulator_origin();
        let down = down + (k.warp_idx() & 3) * 16;
        for (chunk, pairs) in (0..).zip(pairs.chunks((panel.cols() / 4) as usize)) {
            let at =
                cx.panels + group.mul_add(PANELS * OutputPanel::BYTES, chunk % PANELS * OutputPanel::BYTES);
            let col = place.col + chunk * panel.cols();
            let values: Vec<F32<'k>> = pairs
                .iter()
                .flat_map(|&(row, col, pair)| {
                    let (row, col) = (place.row + down + row, place.col + right + col);
                    let (sizes, factors) = ((p.m, p.n, p.ldy), (p.alpha, p.beta));
                    self.program.pair(&to, sizes, factors, (row, col), pair, self.store == Store::Panels)
                })
                .collect();
            match self.store {
                Store::Panels => {
                    // The panel may still be on its way to memory; panels alternate unless a tile ends with the one that the next
                    // begins with.
                    let alternate = (self.config.cols / panel.cols()).is_multiple_of(PANELS);
                    k.if_(leader, || k.wait_stores(if alternate { PANELS - 1 } else { 0 }));
                    k.barrier_of(group + MEETING, GROUP);
                    panel.put(at, &values);
                    k.fence_shared_copies();
                    k.barrier_of(group + MEETING, GROUP);
                    k.if_(leader, || {
                        p.y_boxes.store(at, &[col, place.row, place.batch]);
                        k.commit_stores();
                    });
                }
                Store::Rows => {
                    // A warp stores the rows that it has written.
                    k.warp_barrier();
                    panel.put(at, &values);
                    k.warp_barrier();
                    self.store_rows(k, panel, at, to.y, (p.m, p.n, p.ldy), (place.row, col));
                }
            }
        }
    }

    /// Stores a panel row by row, each warp its 16, in words of 32 bits wherever rows begin.
    fn store_rows<'k>(
        &self,
        k: K<'k>,
        panel: OutputPanel,
        at: U32<'k>,
        y: Ptr<'k, Write, Elem>,
        (m, n, ldy): (U32<'k>, U32<'k>, U64<'k>),
        (row, col): (U32<'k>, U32<'k>),
    ) {
        let tile = panel.tile(at);
        let lane = k.lane_idx();
        let first = (k.warp_idx() & 3) * 16;
        let rows = (row + first + 16).min(m).max(row + first) - (row + first);
        k.for_each(k.range(0, rows, 1), |i| {
            let from = first + i;
            let of_row = y.at((row + from).to_u64() * ldy + col.to_u64());
            if self.dtype.bytes() == 4 {
                let value = tile.at(from, lane).get::<f32>();
                of_row.at(lane.to_u64()).only_where((col + lane).lt(n), Fill::Zero).set(value);
                return;
            }
            let mine = lane * 2;
            let [low, high] = [0u64, 1].map(|i| tile.at(from, mine).at(i).get::<f32>());
            let odd = (of_row.address() & 2).ne(0);
            // Pairs begin at multiples of 4 bytes: with the lane's second element where the row does not.
            let next = low.shfl_down(1u32);
            let pair = [odd.select(high, low), odd.select(next, high)];
            let begins = col + mine + odd.select(1, 0);
            let of_pair = of_row.at(mine.to_u64()).at(odd.select(k.lit(1u32), 0).to_u64());
            let last = lane.eq(WARP - 1) & odd;
            let both = (begins + 1).lt(n) & !last;
            of_pair.only_where(both, Fill::Zero).store(Lanes::from(pair.to_vec()));
            of_pair.only_where(begins.lt(n) & !both, Fill::Zero).set(pair[0]);
            let first = lane.eq(0) & odd & col.lt(n);
            of_row.only_where(first, Fill::Zero).set(low);
        });
    }
}

impl KernelDef for PersistentGemm {
    type Args = PersistentArgs;

    fn spec(&self) -> KernelSpec {
        let rows = if self.store == Store::Rows { "_rows" } else { "" };
        let name = format!("{}{rows}{}", self.config.name(), self.program.name());
        KernelSpec::new(
            super::kernel::name(self.dtype, (self.a, self.b), &name, false),
            BlockDim::x((self.groups() + 1) * GROUP),
        )
        .dtypes(DTypes::all(self.dtype))
        .cluster(self.config.cluster)
        .min_blocks_per_sm(1)
    }

    fn build<'k>(&self, k: K<'k>, p: PersistentParams<'k>) {
        let (a, b) = self.config.tiles(self.dtype, self.a, self.b);
        let slices = k.dynamic_shared_tiles();
        let panels = slices + self.config.stages * (a.bytes() + b.bytes());
        let pipeline = k.mbarrier_pipeline(self.config.stages);
        let cx = Context { k, p, a, b, slices, panels, pipeline };
        k.if_(k.thread_idx().eq(0), || {
            pipeline.init_in_cluster(k, self.groups() * (GROUP / WARP));
            k.publish_mbarriers();
        });
        let meet = || if self.config.cluster > 1 { k.cluster_barrier() } else { k.barrier() };
        meet();
        let multiplying = self.groups() * GROUP;
        let (fewer, more) = REGISTERS;
        k.if_else(
            k.thread_idx().ge(multiplying),
            || {
                k.release_registers(fewer);
                k.if_(k.thread_idx().eq(multiplying), || self.produce(&cx));
            },
            || {
                k.claim_registers(more);
                self.consume(&cx);
            },
        );
        // Copies of other blocks may still be on their way here, and arrivals.
        if self.config.cluster > 1 {
            k.cluster_barrier();
        }
    }
}

impl GemmDesc {
    /// The launch of products from a kernel whose blocks stay.
    pub(super) fn launch_persistent(
        &self,
        target: Target,
        config: PersistentConfig,
        product: Product,
    ) -> Result<LaunchStep, PlanError> {
        let Product { a, b, to, count, .. } = product;
        let (major_a, major_b) = self.major();
        let store = if self.has_boxes_of_results() { Store::Panels } else { Store::Rows };
        let kernel = PersistentGemm {
            dtype: self.dtype,
            a: major_a,
            b: major_b,
            config,
            program: self.program(),
            store,
        };
        let (tile_a, _) = config.tiles(self.dtype, major_a, major_b);
        let small = |x: usize| u32::try_from(x).unwrap_or(u32::MAX);
        let order = self.order(config, count)?;
        let blocks = order.tiles.saturating_mul(config.cluster);
        let grid = blocks.min(DeviceLimits::of(target).multiprocessors / config.cluster * config.cluster);
        // Rows that do not begin at multiples of 16 bytes are stored without the map, which must be one all the same.
        let sizes = (self.m as u64, self.n as u64);
        let (matrices, stride) = self.matrices(count, self.stride_y);
        let further = (matrices, stride.next_multiple_of(WIDE));
        let leading = self.bytes(self.ldy).next_multiple_of(WIDE);
        let map = OutputPanel { dtype: self.dtype }.map(sizes, leading, &[further]);
        let values = PersistentArgs {
            a: self.boxes(&a, tile_a, (self.m, self.lda), (count, self.stride_a)),
            b: self.boxes(
                &b,
                config.part_of_b(self.dtype, major_b),
                (self.n, self.ldb),
                (count, self.stride_b),
            ),
            y_boxes: TensorMapArg::over_output(&to.y, map),
            to,
            m: small(self.m),
            n: small(self.n),
            steps: small(self.k).div_ceil(tile_a.depth),
            order,
            ldy: self.ldy as u64,
            stride_y: self.stride_y as u64,
            batch_a: u32::from(self.stride_a > 0),
            batch_b: u32::from(self.stride_b > 0),
            alpha: self.alpha.get() as f32,
            beta: self.beta.get() as f32,
        }
        .values();
        let shared = Config::Persistent(config).shared_bytes(self.dtype, major_a, major_b);
        let kernel = plan::recorded(OP, &kernel, Target::specific(target.sm))?;
        plan::launch_step(OP, kernel, [grid, 1, 1], values, shared)
    }

    /// The tiles of `count` products, and their order.
    fn order(&self, config: PersistentConfig, count: usize) -> Result<OrderArgs, PlanError> {
        let rows = (config.rows * config.cluster) as usize;
        let (down, across) = (self.m.div_ceil(rows), self.n.div_ceil(config.cols as usize));
        let tiles = down.saturating_mul(across).saturating_mul(count);
        let tiles = plan::cover(OP, tiles, 1)?.map_or(0, |grid| grid[0]);
        let down = u32::try_from(down).unwrap_or(u32::MAX);
        let height = config.height.clamp(1, down);
        Ok(OrderArgs { down, across: u32::try_from(across).unwrap_or(u32::MAX), tiles, height })
    }

    /// Whether tensor copies can store `y` where it begins at a multiple of 16 bytes.
    fn has_boxes_of_results(&self) -> bool {
        let near = |elements: usize| elements.saturating_mul(self.dtype.bytes()) < MAX_BOX_STRIDE;
        let matrices = self.batch <= 1 || near(self.stride_y);
        self.is_aligned(self.ldy, self.stride_y) && near(self.ldy) && matrices
    }

    /// The epilogue of whole products, as kernels record it.
    fn program(&self) -> Program {
        Program {
            scaled: self.alpha.get() != 1.0,
            addend: self.beta.get() != 0.0,
            bias: self.bias,
            activation: self.activation,
        }
    }
}
