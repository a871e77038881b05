//! Products on the tensor cores of sm_90a: one warp brings tiles of the operands to shared memory by tensor copies, groups of four
//! warps multiply them from there.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{PanelTile, Pipeline, TensorMapArg, WARP, WarpgroupSums, kernel_args};

use super::epilogue::{self, EpilogueArgs, Outputs, ResultArgs, SumTile};
use super::kernel::tile_of_block;
use super::tuning::WarpgroupConfig;

kernel_args! {
    /// `y = activation(alpha op(a) op(b) + beta c + bias)`, or the sums of a part of the common dimension
    pub(super) struct WarpgroupArgs => WarpgroupParams {
        a: TensorMapArg, b: TensorMapArg, to: ResultArgs,
        m: u32, n: u32, depth: u32,
        /// How much of the common dimension a block along y of the grid takes.
        part: u32,
        ldy: u64, stride_y: u64,
        /// 1, or 0 where all products have the same matrix.
        batch_a: u32, batch_b: u32,
        epilogue: EpilogueArgs,
    }
}

/// Threads of a warpgroup.
const GROUP: u32 = 128;
/// Rows of a warpgroup, and of a warp.
const GROUP_ROWS: u32 = 64;
const ROWS_OF_WARP: u32 = 16;
/// The named barrier at which the warps that multiply meet.
const MULTIPLIED: u32 = 1;

/// A product of matrices whose operands have 16 bits.
#[derive(Clone, Copy, Debug)]
pub(super) struct WarpgroupGemm {
    pub(super) dtype: DType,
    /// How `op(a)` and `op(b)` are stored.
    pub(super) a: Major,
    pub(super) b: Major,
    pub(super) config: WarpgroupConfig,
    /// Whether sums of parts are stored as they are, one matrix after the other.
    pub(super) split: bool,
    /// Whether results are in the type of the sums, and may be added to what is there.
    pub(super) onto: bool,
}

/// The tiles of both operands in shared memory, and the barriers of their pipeline.
struct Tiles<'k> {
    a: PanelTile,
    b: PanelTile,
    base: U32<'k>,
    pipeline: Pipeline<'k>,
}

impl<'k> Tiles<'k> {
    fn bytes(&self) -> u32 {
        self.a.bytes() + self.b.bytes()
    }

    /// Where the tiles of a stage begin.
    fn stage(&self, stage: U32<'k>) -> (U32<'k>, U32<'k>) {
        let a = stage.mul_add(self.bytes(), self.base);
        (a, a + self.a.bytes())
    }
}

impl WarpgroupGemm {
    /// Warps that multiply.
    fn multiplying(&self) -> u32 {
        self.config.rows / GROUP_ROWS * (GROUP / WARP)
    }

    fn body<'k>(&self, k: K<'k>, p: WarpgroupParams<'k>) {
        let WarpgroupConfig { rows, cols, stages } = self.config;
        let (a, b) = self.config.tiles(self.dtype, self.a, self.b);
        let tiles = Tiles { a, b, base: k.dynamic_shared_tiles(), pipeline: k.mbarrier_pipeline(stages) };
        let warp = k.warp_idx();
        k.if_(k.thread_idx().eq(0), || {
            tiles.pipeline.init(self.multiplying());
            k.publish_mbarriers();
        });
        k.barrier();

        let (tile_row, tile_col) = tile_of_block(k.block_idx_x(), (p.m, p.n), (rows, cols));
        let (row, col) = (tile_row * rows, tile_col * cols);
        let first = k.block_idx_y() * p.part;
        let depth = (first + p.part).min(p.depth) - first;
        let steps = (depth + (PanelTile::WIDTH - 1)) / PanelTile::WIDTH;
        let batch = k.block_idx_z().to_u64();
        let matrix = k.block_idx_y().to_u64() * k.grid_dim_z().to_u64() + batch;
        let fetch = || self.fetch(k, p, &tiles, (row, col, first), steps);
        let of_fetching = warp.eq(self.multiplying());
        if self.split {
            let y = p.to.y.at(matrix * p.stride_y);
            k.if_else(of_fetching, fetch, || {
                let sums = self.multiply(k, &tiles, steps);
                leave(k, &sums, y, (row, col), (p.m, p.n));
            });
            return;
        }
        let sums = SumTile::new::<f32>(k, rows, cols, 1);
        k.if_else(of_fetching, fetch, || {
            let of_group = self.multiply(k, &tiles, steps);
            k.barrier_of(MULTIPLIED, self.multiplying() * WARP);
            let (row, col) = first_sum(k);
            for (rows, cols, pair) in of_group.pairs() {
                sums.at(row + rows, col + cols).store(Lanes::from(pair.to_vec()));
            }
        });
        k.barrier();
        let outputs = Outputs::new(p.to, p.epilogue, (p.ldy, p.stride_y), (batch, matrix));
        epilogue::finish_tile::<f32>(k, outputs, sums, (row, col), (p.m, p.n));
    }

    /// Copies the tiles of all steps, as places in the pipeline become free.
    fn fetch<'k>(
        &self,
        k: K<'k>,
        p: WarpgroupParams<'k>,
        tiles: &Tiles<'k>,
        (row, col, first): (U32<'k>, U32<'k>, U32<'k>),
        steps: U32<'k>,
    ) {
        let batch = k.block_idx_z();
        k.if_(k.lane_idx().eq(0), || {
            let pipeline = tiles.pipeline;
            let _ = k.fold(k.range(0, steps, 1), pipeline.start(k), |step, turn| {
                let ready = pipeline.producer_acquire(turn, tiles.bytes());
                let (to_a, to_b) = tiles.stage(turn.stage());
                let along = first + step * PanelTile::WIDTH;
                tiles.a.fetch(p.a, to_a, (row, along), &[batch * p.batch_a], ready);
                tiles.b.fetch(p.b, to_b, (col, along), &[batch * p.batch_b], ready);
                pipeline.next(turn)
            });
        });
    }

    /// Multiplies the tiles of all steps.
    fn multiply<'k>(&self, k: K<'k>, tiles: &Tiles<'k>, steps: U32<'k>) -> WarpgroupSums<'k> {
        let cols = self.config.cols;
        let Tiles { a, b, pipeline, .. } = *tiles;
        let lane = k.lane_idx();
        let group = k.thread_idx() / GROUP;
        let start = pipeline.start(k);
        let first = (start, start, WarpgroupSums::zero(k, cols));
        let (_, _, sums) = k.fold(k.range(0, steps, 1), first, |step, (turn, before, sums)| {
            pipeline.consumer_wait(turn);
            let (at_a, at_b) = tiles.stage(turn.stage());
            let of_group = a.descriptor(at_a + group * a.part(GROUP_ROWS));
            sums.add_products((a, of_group), (b, b.descriptor(at_b)));
            sums.wait(1);
            // The products of the step before have been added.
            k.if_(step.gt(0) & lane.eq(0), || pipeline.consumer_release(before));
            (pipeline.next(turn), turn, sums)
        });
        sums.wait(0);
        sums
    }
}

/// Row and column of the lane's first sum in the tile of the block.
fn first_sum(k: K<'_>) -> (U32<'_>, U32<'_>) {
    let (row, col) = k.accumulator_origin();
    (row + k.warp_idx() * ROWS_OF_WARP, col)
}

/// Stores sums as they are in the matrix of `m` rows and `n` columns at `y`, from the registers that they are in: nothing waits for
/// that, and four lanes write 32 bytes of a row.
fn leave<'k>(
    k: K<'k>,
    sums: &WarpgroupSums<'k>,
    y: Ptr<'k, Write, Elem>,
    (row, col): (U32<'k>, U32<'k>),
    (m, n): (U32<'k>, U32<'k>),
) {
    let (down, right) = first_sum(k);
    let (row, col) = (row + down, col + right);
    let rows = [0u32, 8].map(|down| {
        let row = row + down;
        (row.lt(m), y.at(row.to_u64() * n.to_u64() + col.to_u64()))
    });
    let place = |down: u32, right: u32| {
        let (inside, first) = rows[(down / 8) as usize];
        (inside & (col + right).lt(n), first.at(u64::from(right)))
    };
    k.if_else(
        (n & 1).eq(0),
        || {
            for (down, right, pair) in sums.pairs() {
                let (there, at) = place(down, right);
                at.only_where(there, Fill::Zero).store(Lanes::from(pair.to_vec()));
            }
        },
        || {
            for (down, right, pair) in sums.pairs() {
                for (i, sum) in (0..).zip(pair) {
                    let (there, at) = place(down, right + i);
                    at.only_where(there, Fill::Zero).set(sum);
                }
            }
        },
    );
}

impl KernelDef for WarpgroupGemm {
    type Args = WarpgroupArgs;

    fn spec(&self) -> KernelSpec {
        let config = format!("{}{}", self.config.name(), if self.onto { "_onto" } else { "" });
        KernelSpec::new(
            super::kernel::name(self.dtype, (self.a, self.b), &config, self.split),
            BlockDim::x((self.multiplying() + 1) * WARP),
        )
        .dtypes(epilogue::dtypes(self.dtype, self.split || self.onto))
        .min_blocks_per_sm(1)
    }

    fn build<'k>(&self, k: K<'k>, p: WarpgroupParams<'k>) {
        self.body(k, p);
    }
}
