//! The engine of tensor cores: `f16` and `bf16` from sm_80 on.
//!
//! A warp owns `slabs` times 16 rows. Its products stay in registers: accumulators of the scores, rounded, are the left
//! operand of the product with the values, since both have their elements in the same lanes. Tiles of columns arrive in two
//! stages, the next one while the present one is used.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{Accumulator, Along, Bounds, Fragment, MmaAtom, SharedTile, TileLayout, WARP};

use super::engine::{Destination, Engine, Matrix, Place, Source};

/// Lanes that share a slot.
const LANES: u32 = 4;
/// Rows of a slab.
const SLAB: u32 = 16;
/// Stages of the tiles of columns.
const STAGES: u32 = 2;

/// How a block is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TensorCore {
    /// Warps of a block.
    pub warps: u32,
    /// Times 16 rows of a warp.
    pub slabs: u32,
    /// Columns of a tile, a multiple of 16 and a power of two.
    pub columns: u32,
    /// Elements of a row of a tile: a power of two from 64.
    pub width: u32,
}

impl TensorCore {
    /// Threads of a block.
    pub const fn threads(self) -> u32 {
        self.warps * WARP
    }

    /// Rows of a block.
    pub const fn rows(self) -> u32 {
        self.warps * self.slabs * SLAB
    }

    /// Elements of shared memory, with one tile of own rows or two.
    pub const fn shared_elements(self, own: u32) -> u32 {
        (own * self.rows() + 2 * STAGES * self.columns) * self.width
    }

    pub(super) fn name(self) -> String {
        let Self { warps, slabs, columns, width } = self;
        format!("mma_w{warps}s{slabs}c{columns}d{width}")
    }
}

/// A layout with its registers.
#[derive(Clone, Copy, Debug)]
pub(super) struct TensorCoreEngine<'k> {
    config: TensorCore,
    atom: MmaAtom,
    memory: Ptr<'k, Shared, Elem>,
    /// Tiles of own rows.
    own: u32,
    thread: U32<'k>,
    /// The warp's first row.
    row: U32<'k>,
}

/// A tile, and where the warp begins to read it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operand<'k> {
    tile: SharedTile<'k>,
    /// 0, but for all that the assembler knows another number for each tile: places in the tile are computed again
    /// instead of being kept in two dozen registers.
    zero: U32<'k>,
}

impl<'k> TensorCoreEngine<'k> {
    pub(super) fn new(k: K<'k>, config: TensorCore, atom: MmaAtom, own: u32) -> Self {
        let memory = k.dynamic_shared_elem(atom.dtype());
        let thread = k.thread_idx();
        Self { config, atom, memory, own, thread, row: (thread >> 5) * (config.slabs * SLAB) }
    }

    fn layout(&self, rows: u32) -> TileLayout {
        TileLayout::new(self.atom.dtype(), rows, self.config.width)
    }

    fn own_tile(&self, k: K<'k>, index: u32) -> SharedTile<'k> {
        let layout = self.layout(self.config.rows());
        k.tile_at(self.memory, layout).moved(index * layout.bytes())
    }

    /// The first stage of the tile of a source.
    fn columns_tile(&self, k: K<'k>, index: u32) -> SharedTile<'k> {
        let layout = self.layout(self.config.columns);
        let before = self.own * self.layout(self.config.rows()).bytes() + index * STAGES * layout.bytes();
        k.tile_at(self.memory, layout).moved(before)
    }

    /// Bytes from the first stage to that of the columns from `at` on.
    fn stage(&self, at: I32<'k>) -> U32<'k> {
        let shift = self.config.columns.trailing_zeros();
        (at.to_u32() >> shift & (STAGES - 1)) * self.layout(self.config.columns).bytes()
    }

    fn copy(
        &self,
        k: K<'k>,
        source: Source<'k>,
        at: I32<'k>,
        tile: SharedTile<'k>,
        stage: U32<'k>,
        there: Option<Pred<'k>>,
    ) {
        let threads = (self.thread, self.config.threads());
        let copy = k.tile_copy(tile, source.data, source.stride, 16, threads);
        let bounds = Bounds { rows: Some((source.rows - at).max(0i32).to_u32()), cols: Some(source.width) };
        copy.advanced(at.to_u64() * source.stride).start(stage, bounds, there);
    }

    fn copy_columns(&self, k: K<'k>, sources: [Source<'k>; 2], at: I32<'k>, there: Pred<'k>) {
        let stage = self.stage(at);
        for (index, source) in sources.into_iter().enumerate() {
            self.copy(k, source, at, self.columns_tile(k, index as u32), stage, Some(there));
        }
        k.commit_copies();
    }

    /// The tile of the columns from `at` on.
    fn operand(&self, k: K<'k>, index: u32, at: I32<'k>) -> Operand<'k> {
        // No column has a negative number.
        Operand { tile: self.columns_tile(k, index).moved(self.stage(at)), zero: at.to_u32() >> 31 }
    }

    fn zeros(&self, k: K<'k>, columns: u32) -> Vec<Vec<Accumulator<'k, f32>>> {
        let row = || (0..columns / 8).map(|_| Accumulator::zero(k, self.atom)).collect();
        (0..self.config.slabs).map(|_| row()).collect()
    }
}

/// `[slot][column]` of accumulators `[slab][eight columns]`; slots are the upper and the lower rows of each slab.
fn to_matrix<'k>(accumulators: &[Vec<Accumulator<'k, f32>>]) -> Matrix<'k, f32> {
    let half = |slab: &[Accumulator<'k, f32>], half: usize| {
        slab.iter().flat_map(|a| [a.lanes()[2 * half], a.lanes()[2 * half + 1]]).collect()
    };
    accumulators.iter().flat_map(|slab| [half(slab, 0), half(slab, 1)]).collect()
}

fn from_matrix<'k>(like: &Accumulator<'k, f32>, matrix: &Matrix<'k, f32>) -> Vec<Vec<Accumulator<'k, f32>>> {
    let slab = |rows: &[Vec<F32<'k>>]| {
        let columns = (0..rows[0].len()).step_by(2);
        columns
            .map(|c| like.like(vec![rows[0][c], rows[0][c + 1], rows[1][c], rows[1][c + 1]].into()))
            .collect()
    };
    matrix.chunks(2).map(slab).collect()
}

impl<'k> Engine<'k, f32> for TensorCoreEngine<'k> {
    type Tile = Operand<'k>;

    fn lanes(&self) -> u32 {
        LANES
    }

    fn product_place(&self, k: K<'k>) -> Place<'k> {
        let (row, first) = k.accumulator_origin();
        let slots = 0..2 * self.config.slabs;
        let rows = slots.map(|slot| self.row + row + slot * 8).collect();
        let columns = (0..self.config.columns / 8).flat_map(|block| [8 * block, 8 * block + 1]).collect();
        Place { rows, first, columns }
    }

    fn own(&self, k: K<'k>, source: Source<'k>, first: I32<'k>, index: u32) -> Operand<'k> {
        let tile = self.own_tile(k, index);
        self.copy(k, source, first, tile, k.lit(0u32), None);
        Operand { tile, zero: k.lit(0u32) }
    }

    fn start(&self, k: K<'k>, sources: [Source<'k>; 2], at: I32<'k>, there: Pred<'k>) {
        // The stage may have been read by what went before.
        k.barrier();
        self.copy_columns(k, sources, at, there);
    }

    fn first(&self, k: K<'k>, sources: [Source<'k>; 2], at: I32<'k>, more: Pred<'k>) -> Operand<'k> {
        k.wait_copies(0);
        k.barrier();
        self.copy_columns(k, sources, at + self.config.columns.cast_signed(), more);
        self.operand(k, 0, at)
    }

    fn second(&self, k: K<'k>, _: [Source<'k>; 2], at: I32<'k>) -> Operand<'k> {
        self.operand(k, 1, at)
    }

    fn again(&self, k: K<'k>, _: [Source<'k>; 2], at: I32<'k>) -> Operand<'k> {
        self.operand(k, 0, at)
    }

    fn product(&self, k: K<'k>, own: Operand<'k>, Operand { tile, zero }: Operand<'k>) -> Matrix<'k, f32> {
        let TensorCore { slabs, columns, width, .. } = self.config;
        let left = own.tile.reader_a(self.atom, Along::K, self.row + zero);
        let right = tile.reader_b(self.atom, Along::K, zero);
        let mut sum = self.zeros(k, columns);
        for depth in (0..width).step_by(self.atom.k() as usize) {
            let a: Vec<_> = (0..slabs).map(|slab| left.load(slab * SLAB, depth)).collect();
            for column in (0..columns).step_by(16) {
                let b = right.load_pair(column, depth);
                for (sum, a) in sum.iter_mut().zip(&a) {
                    for (half, b) in b.iter().enumerate() {
                        let sum = &mut sum[column as usize / 8 + half];
                        *sum = sum.mma(a, b);
                    }
                }
            }
        }
        to_matrix(&sum)
    }

    fn zero(&self, k: K<'k>) -> Matrix<'k, f32> {
        to_matrix(&self.zeros(k, self.config.width))
    }

    fn accumulate(
        &self,
        k: K<'k>,
        weights: &Matrix<'k, f32>,
        Operand { tile, zero }: Operand<'k>,
        sum: Matrix<'k, f32>,
    ) -> Matrix<'k, f32> {
        let TensorCore { columns, width, .. } = self.config;
        let like = Accumulator::zero(k, self.atom);
        let (weights, mut sum) = (from_matrix(&like, weights), from_matrix(&like, &sum));
        let right = tile.reader_b(self.atom, Along::Outer, zero);
        for depth in (0..columns).step_by(self.atom.k() as usize) {
            let pair = depth as usize / 8;
            let a: Vec<_> = weights
                .iter()
                .map(|w| Fragment::from_accumulators(self.atom, &w[pair], &w[pair + 1]))
                .collect();
            for column in (0..width).step_by(16) {
                let b = right.load_pair(column, depth);
                for (sum, a) in sum.iter_mut().zip(&a) {
                    for (half, b) in b.iter().enumerate() {
                        let sum = &mut sum[column as usize / 8 + half];
                        *sum = sum.mma(a, b);
                    }
                }
            }
        }
        to_matrix(&sum)
    }

    fn finish(&self, k: K<'k>) {
        k.wait_copies(0);
    }

    fn store(&self, k: K<'k>, sum: &Matrix<'k, f32>, to: Destination<'k>, first: I32<'k>) {
        let Place { rows, first: column, .. } = self.product_place(k);
        for (row, sums) in rows.into_iter().zip(sum) {
            let row = first + row.to_i32();
            let exists = row.lt(to.rows);
            let data = to.data.at(row.to_u64() * to.stride).at(column);
            for (block, pair) in sums.chunks(2).enumerate() {
                let at = block as u32 * 8;
                let inside = exists & (column + at).lt(to.width);
                data.at(u64::from(at)).only_where(inside, Fill::Zero).store(Lanes::from(pair.to_vec()));
            }
        }
    }
}
