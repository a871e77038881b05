//! Products on the tensor cores of sm_90a: one warp brings tiles of the operands to shared memory by tensor copies, groups of four
//! warps multiply them from there.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{Boxes, PanelTile, Ring, WARP, WarpgroupSums, kernel_args};

use super::epilogue::{self, Outputs, SumTile, outputs};
use super::kernel::tile_of_block;
use super::tuning::WarpgroupConfig;

kernel_args! {
    /// `y = activation(alpha op(a) op(b) + beta c + bias)`, or the sums of a part of the common dimension
    pub(super) struct WarpgroupArgs => WarpgroupParams {
        a: Boxes, b: Boxes, c: In<Elem>, bias: In<Elem>, y: Out<Elem>,
        m: u32, n: u32, depth: u32,
        /// How much of the common dimension a block along y of the grid takes.
        part: u32,
        ldy: u64, stride_y: u64,
        /// 1, or 0 where all products have the same matrix.
        batch_a: u32, batch_b: u32,
        alpha: f64, beta: f64, flags: u32, activation: u32,
    }
}

/// Threads of a warpgroup.
const GROUP: u32 = 128;
/// Rows of a warpgroup.
const GROUP_ROWS: u32 = 64;
/// The named barrier at which the warps that multiply meet.
const MULTIPLIED: u32 = 1;

/// A product of matrices whose operands have 16 bits.
#[derive(Clone, Copy, Debug)]
pub(super) struct WarpgroupGemm {
    pub(super) dtype: DType,
    /// How `op(a)` and `op(b)` are stored.
    pub(super) a: Along,
    pub(super) b: Along,
    pub(super) config: WarpgroupConfig,
    /// Whether sums of parts are stored as they are, one matrix after the other.
    pub(super) split: bool,
}

/// The tiles of both operands in shared memory, and the barriers of their ring.
struct Tiles<'k> {
    a: PanelTile,
    b: PanelTile,
    base: U32<'k>,
    ring: Ring<'k>,
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
        let tiles = Tiles { a, b, base: k.dynamic_shared_tiles(), ring: k.ring(stages) };
        let warp = k.warp_idx();
        k.if_(k.thread_idx().eq(0), || {
            tiles.ring.init(self.multiplying());
            k.publish_mbarriers();
        });
        k.barrier();

        let (tile_row, tile_col) = tile_of_block(k.block_idx_x(), (p.m, p.n), (rows, cols));
        let (row, col) = (tile_row * rows, tile_col * cols);
        let first = k.block_idx_y() * p.part;
        let depth = (first + p.part).min(p.depth) - first;
        let steps = (depth + (PanelTile::WIDTH - 1)) / PanelTile::WIDTH;
        let sums = SumTile::new::<f32>(k, rows, cols, 1);
        k.if_else(
            warp.eq(self.multiplying()),
            || self.fetch(k, p, &tiles, (row, col, first), steps),
            || self.multiply(k, &tiles, steps, sums),
        );
        k.barrier();
        let batch = k.block_idx_z().to_u64();
        let matrix = k.block_idx_y().to_u64() * k.grid_dim_z().to_u64() + batch;
        let outputs = outputs!(p, batch, matrix);
        epilogue::finish_tile::<f32>(k, outputs, sums, (row, col), (p.m, p.n));
    }

    /// Copies the tiles of all steps, as places in the ring become free.
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
            let ring = tiles.ring;
            let _ = k.fold(k.range(0, steps, 1), ring.start(k), |step, turn| {
                let ready = ring.fill(turn, tiles.bytes());
                let (to_a, to_b) = tiles.stage(turn.stage());
                let along = first + step * PanelTile::WIDTH;
                tiles.a.fetch(p.a, to_a, (row, along), &[batch * p.batch_a], ready);
                tiles.b.fetch(p.b, to_b, (col, along), &[batch * p.batch_b], ready);
                ring.after(turn)
            });
        });
    }

    /// Multiplies the tiles of all steps, and puts the sums where the tiles were.
    fn multiply<'k>(&self, k: K<'k>, tiles: &Tiles<'k>, steps: U32<'k>, to: SumTile<'k>) {
        let cols = self.config.cols;
        let Tiles { a, b, ring, .. } = *tiles;
        let (thread, lane) = (k.thread_idx(), k.lane_idx());
        let group = thread / GROUP;
        let start = ring.start(k);
        let first = (start, start, WarpgroupSums::zero(k, cols));
        let (_, _, sums) = k.fold(k.range(0, steps, 1), first, |step, (turn, before, sums)| {
            ring.wait(turn);
            let (at_a, at_b) = tiles.stage(turn.stage());
            let of_group = a.descriptor(at_a + group * a.part(GROUP_ROWS));
            sums.add_products((a, of_group), (b, b.descriptor(at_b)));
            sums.wait(1);
            // The products of the step before have been added.
            k.if_(step.gt(0) & lane.eq(0), || ring.give_back(before));
            (ring.after(turn), turn, sums)
        });
        sums.wait(0);
        k.barrier_of(MULTIPLIED, self.multiplying() * WARP);
        let row = (thread / WARP) * 16 + lane / 4;
        let col = (lane % 4) * 2;
        for (rows, cols, pair) in sums.pairs() {
            to.at(row + rows, col + cols).store(Lanes::from(pair.to_vec()));
        }
    }
}

impl KernelDef for WarpgroupGemm {
    type Args = WarpgroupArgs;

    fn name(&self) -> String {
        super::kernel::name(self.dtype, (self.a, self.b), &self.config.name(), self.split)
    }

    fn block(&self) -> BlockDim {
        BlockDim::x((self.multiplying() + 1) * WARP)
    }

    fn dtypes(&self) -> DTypes {
        epilogue::dtypes(self.dtype, self.split)
    }

    fn min_blocks_per_sm(&self) -> Option<u32> {
        Some(1)
    }

    fn build<'k>(&self, k: K<'k>, p: WarpgroupParams<'k>) {
        self.body(k, p);
    }
}
