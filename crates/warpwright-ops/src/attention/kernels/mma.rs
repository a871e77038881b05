//! The engine of tensor cores, from sm_80 on: `f16`, `bf16`, and `f32` as sums of two `tf32`.
//!
//! A warp owns `slabs` times 16 rows. Its products stay in registers: accumulators of the scores, rounded, are the left
//! operand of the product with the values, since both have their elements in the same lanes. Tiles of columns arrive in two
//! stages, the next one while the present one is used.

use warpwright_dsl::prelude::*;
use warpwright_dsl::{Bounds, Fragment, Major, MmaAtom, SharedTile, SplitTile, TileLayout, WARP};

use super::dropout::{DrawLanes, Keys};
use super::engine::{Engine, Form, Next, Place, Source, opaque_zero};
use super::float8::{GROUP, NEIGHBOURS, PAIR, Queries, in_order, of_keys, of_values, pairs};
use crate::attention::layout::{BlockLayout, BlockShape, DecodeLayout};

/// Lanes that share a slot.
pub(in crate::attention) const LANES: u32 = 4;
/// Rows of a slab.
pub(in crate::attention) const SLAB: u32 = 16;
/// Elements of half types of an access of 16 bytes.
pub(in crate::attention) const VECTOR: u32 = 8;
/// Elements of the common dimension that are summed by tensor cores alone where operands are split.
pub(in crate::attention) const PART: u32 = 64;
/// Columns of a sum that products of `f32` are added to together.
pub(in crate::attention) const TOGETHER: u32 = 16;
/// Stages of the tiles of columns of a block.
const STAGES: u32 = 2;

/// How a block is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mma {
    /// Warps of a block.
    pub warps: u32,
    /// Times 16 rows of a warp.
    pub slabs: u32,
    /// Columns of a tile, a multiple of 16 and a power of two.
    pub columns: u32,
    /// Elements of a row of a tile: a power of two from 64.
    pub width: u32,
    /// Elements of 16 bytes: of an access to rows in global memory.
    pub vector: u32,
}

impl BlockLayout for Mma {
    fn name(&self) -> String {
        let Self { warps, slabs, columns, width, .. } = self;
        format!("mma_w{warps}s{slabs}c{columns}d{width}")
    }

    fn shape(&self) -> BlockShape {
        let Self { warps, slabs, columns, width, vector } = *self;
        BlockShape { threads: warps * WARP, rows: warps * slabs * SLAB, columns, width, vector }
    }

    fn shared_bytes(&self, dtype: DType, stationary: u32) -> u32 {
        (stationary * self.rows() + 2 * STAGES * self.columns) * self.width * dtype.bytes() as u32
    }
}

/// How a block is laid out whose warps share one slab of rows and walk over columns of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DecodeMma {
    /// Warps of a block.
    pub warps: u32,
    /// Tiles of a warp in shared memory: the one that is used and those on their way; a power of two.
    pub stages: u32,
    /// Elements of a row of a tile: a power of two from 64.
    pub width: u32,
}

impl DecodeMma {
    /// Columns of a tile: what fits the smallest page of a cache.
    pub const COLUMNS: u32 = 16;

    /// Elements of the tiles of a warp.
    const fn elements(self) -> u32 {
        2 * self.stages * Self::COLUMNS * self.width
    }

    /// Bytes of the rows of queries beside keys and values of `dtype`.
    const fn row_bytes(self, dtype: DType) -> u32 {
        let size = if dtype.is_float8() { DType::F16.bytes() } else { dtype.bytes() };
        SLAB * self.width * size as u32
    }
}

impl BlockLayout for DecodeMma {
    fn name(&self) -> String {
        let Self { warps, stages, width } = self;
        format!("mma_w{warps}p{stages}d{width}")
    }

    fn shape(&self) -> BlockShape {
        let (threads, columns) = (self.warps * WARP, Self::COLUMNS);
        BlockShape { threads, rows: SLAB, columns, width: self.width, vector: VECTOR }
    }

    fn shared_bytes(&self, dtype: DType, stationary: u32) -> u32 {
        stationary * self.row_bytes(dtype) + self.warps * self.elements() * dtype.bytes() as u32
    }
}

/// Each warp walks alone.
impl DecodeLayout for DecodeMma {
    fn teams(&self) -> u32 {
        self.warps
    }

    fn result_vector(&self) -> u32 {
        VECTOR / 2
    }
}

/// The lanes of an accumulator that hold four neighbouring keys.
pub(in crate::attention) fn draw_lanes(keys: Keys) -> DrawLanes {
    match keys {
        Keys::Columns => DrawLanes { lanes: 2, step: 1 },
        Keys::Rows => DrawLanes { lanes: 4, step: LANES },
    }
}

/// Where the elements of a sum of `width` columns lie in a row: how many beside each other, and how far from the first column.
pub(in crate::attention) fn sum_parts(width: u32, float8: bool) -> (u32, Vec<u32>) {
    let (count, step) = if float8 { (NEIGHBOURS, GROUP) } else { (2, 8) };
    (count, (0..width).step_by(step as usize).collect())
}

/// The column of a lane's first element of a sum.
pub(in crate::attention) fn sum_column(k: K<'_>, float8: bool) -> U32<'_> {
    let (_, column) = k.accumulator_origin();
    if float8 { column << 1 } else { column }
}

/// A layout with its registers.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct MmaEngine<'k> {
    config: Mma,
    atom: MmaAtom,
    memory: Ptr<'k, Shared, Elem>,
    /// Tiles of stationary rows.
    pub(in crate::attention) stationary: u32,
    /// The thread, and how many there are, that load stationary rows.
    thread: U32<'k>,
    threads: u32,
    /// The warp's first row.
    pub(in crate::attention) row: U32<'k>,
    stages: u32,
    /// The columns of a warp that walks alone: elements to its tiles.
    alone: Option<U32<'k>>,
    /// The rows of queries, if columns are of 8-bit floats.
    queries: Option<Queries<'k>>,
}

/// A tile, and where the warp begins to read it.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct Operand<'k> {
    pub(in crate::attention) tile: SharedTile<'k>,
    /// 0, but for all that the assembler knows another number for each tile: places in the tile are computed again
    /// instead of being kept in two dozen registers.
    pub(in crate::attention) zero: U32<'k>,
}

impl<'k> MmaEngine<'k> {
    pub(in crate::attention) fn new(k: K<'k>, config: Mma, atom: MmaAtom, stationary: u32) -> Self {
        let memory = k.dynamic_shared_elem(atom.dtype());
        let thread = k.thread_idx();
        let row = (thread >> 5) * (config.slabs * SLAB);
        let (threads, stages) = (config.threads(), STAGES);
        let (alone, queries) = (None, None);
        Self { config, atom, memory, stationary, thread, threads, row, stages, alone, queries }
    }

    /// One of the warps that share the rows of a block, for queries, and for keys and values, of these types.
    pub(in crate::attention) fn alone(k: K<'k>, config: DecodeMma, [dtype, cache]: [DType; 2]) -> Self {
        let float8 = cache.is_float8();
        let atom = k.mma_atom(if float8 { DType::F16 } else { dtype });
        // In elements of the atom.
        let elements = config.elements() * cache.bytes() as u32 / atom.dtype().bytes() as u32;
        let alone = Some(k.warp_idx() * elements);
        let DecodeMma { warps, stages, width } = config;
        let one = Mma { warps: 1, slabs: 1, columns: DecodeMma::COLUMNS, width, vector: VECTOR };
        let threads = warps * WARP;
        let queries = float8.then(|| Queries::new(k, dtype, SLAB, width));
        Self { threads, row: k.lit(0u32), stages, alone, queries, ..Self::new(k, one, atom, 1) }
    }

    /// The threads that copy columns.
    fn copiers(&self, k: K<'k>) -> (U32<'k>, u32) {
        if self.alone.is_some() { (k.lane_idx(), WARP) } else { (self.thread, self.threads) }
    }

    /// Those who copy columns meet.
    fn meet(&self, k: K<'k>) {
        if self.alone.is_some() {
            k.warp_barrier();
        } else {
            k.barrier();
        }
    }

    fn layout(&self, rows: u32) -> TileLayout {
        TileLayout::new(self.atom.dtype(), rows, self.config.width)
    }

    /// That of a tile of columns.
    fn columns_layout(&self) -> TileLayout {
        let layout = self.layout(self.config.columns);
        if self.queries.is_some() { TileLayout { dtype: DType::F8E4M3, ..layout } } else { layout }
    }

    fn stationary_tile(&self, k: K<'k>, index: u32) -> SharedTile<'k> {
        let layout = self.layout(self.config.rows());
        k.tile_at(self.memory, layout).moved(index * layout.bytes())
    }

    /// The first stage of the tile of a source.
    fn columns_tile(&self, k: K<'k>, index: u32) -> SharedTile<'k> {
        let layout = self.columns_layout();
        let before =
            self.stationary * self.layout(self.config.rows()).bytes() + index * self.stages * layout.bytes();
        let memory = self.alone.map_or(self.memory, |elements| self.memory.at(elements));
        k.tile_at(memory, layout).moved(before)
    }

    /// Bytes from the first stage to that of the columns from `at` on.
    fn stage(&self, at: I32<'k>) -> U32<'k> {
        let shift = self.config.columns.trailing_zeros();
        (at.to_u32() >> shift & (self.stages - 1)) * self.columns_layout().bytes()
    }

    fn copy(
        &self,
        k: K<'k>,
        source: Source<'k>,
        at: I32<'k>,
        tile: SharedTile<'k>,
        (stage, there): (U32<'k>, Option<Pred<'k>>),
        threads: (U32<'k>, u32),
    ) {
        // Rows and accesses to them have 16 bytes, or multiples.
        let copy = k.tile_copy(tile, source.data, source.stride, 16, threads).in_whole_pieces();
        let bounds = Bounds { rows: Some((source.rows - at).max(0i32).to_u32()), cols: Some(source.width) };
        let first = source.offset(at, there.unwrap_or_else(|| k.lit(true)));
        copy.advanced(first).start(stage, bounds, there);
    }

    /// Loads rows that do not lie at even distances, all threads together.
    fn load_rows(&self, k: K<'k>, source: Source<'k>, first: I32<'k>, tile: SharedTile<'k>) {
        let piece = self.config.vector;
        let per_row = self.config.width / piece;
        let total = self.config.rows() * per_row;
        k.for_each(k.range(self.thread, total, self.threads), |index| {
            let (row, column) = (index / per_row, (index & (per_row - 1)) * piece);
            let at = first + row.to_i32();
            let there = at.lt(source.rows) & column.lt(source.width);
            let from = source.data.at(source.offset(at, there)).at(column);
            tile.at(row, column).store(from.only_where(there, Fill::Zero).load::<f32>(piece));
        });
    }

    fn copy_columns(&self, k: K<'k>, sources: [Source<'k>; 2], at: I32<'k>, there: Pred<'k>) {
        let stage = self.stage(at);
        for (index, source) in sources.into_iter().enumerate() {
            let tile = self.columns_tile(k, index as u32);
            let (thread, threads) = self.copiers(k);
            // Places are computed again for each tile instead of being kept in registers.
            let thread = thread + opaque_zero(at);
            self.copy(k, source, at, tile, (stage, Some(there)), (thread, threads));
        }
        k.commit_copies();
    }

    /// The tile of the columns from `at` on.
    fn operand(&self, k: K<'k>, index: u32, at: I32<'k>) -> Operand<'k> {
        let tile = self.columns_tile(k, index).moved(self.stage(at));
        let tile = if self.queries.is_some() { pairs(tile) } else { tile };
        // Backward kernels of f32 with one slab lack the registers for what places in both tiles have in common; two slabs need them for
        // themselves.
        let apart = self.atom == MmaAtom::Tf32 && self.stationary == 2 && self.config.slabs == 1;
        Operand { tile, zero: opaque_zero(if apart { at + index.cast_signed() } else { at }) }
    }

    /// Products of operands that are split. They are summed in parts, so that the errors of long sums, which tensor cores cut off,
    /// grow with the parts and not with the width.
    fn product_split(
        &self,
        k: K<'k>,
        left: &TileReader<'k, MatrixA>,
        right: &TileReader<'k, MatrixB>,
    ) -> RegTile<'k, f32> {
        let Mma { slabs, columns, width, .. } = self.config;
        let of_part = |part: u32| {
            let mut sum = SplitTile::zero(k, slabs, columns);
            for depth in (part..part + PART).step_by(self.atom.k() as usize) {
                let a: Vec<_> = (0..slabs).map(|slab| left.load(slab * SLAB, depth).split()).collect();
                for column in (0..columns).step_by(16) {
                    for (at, b) in (column..).step_by(8).zip(right.load_pair(column, depth)) {
                        sum.mma(at, &a, &b.split());
                    }
                }
            }
            sum.total()
        };
        let later = (PART..width).step_by(PART as usize);
        later.fold(of_part(0), |sum, part| &sum + &of_part(part))
    }

    /// Weights times the rows of a tile. Weights stay in their lanes, so the common index runs through eight of them as
    /// [`Fragment::interleaved`] says. Summed tile by tile for the same reason.
    fn accumulate_split(
        &self,
        k: K<'k>,
        weights: &RegTile<'k, f32>,
        Operand { tile, zero }: Operand<'k>,
        sum: RegTile<'k, f32>,
    ) -> RegTile<'k, f32> {
        let Mma { columns, width, slabs, .. } = self.config;
        let (mut sum, lane) = (sum, k.lane_idx());
        let point = tile.point((lane & 3) * 2 + zero, lane >> 2);
        let a = weights.interleaved_fragments();
        for first in (0..width).step_by(TOGETHER as usize) {
            let mut part = SplitTile::zero(k, slabs, TOGETHER);
            for depth in (0..columns).step_by(8) {
                for column in (0..TOGETHER).step_by(8) {
                    let element = |row| point.at(row, first + column).get::<f32>().to_bits();
                    let b = Fragment::b(k, self.atom, &[element(depth), element(depth + 1)]).split();
                    part.mma(column, a.iter().map(|slab| &slab[depth as usize / 8]), &b);
                }
            }
            sum.add_split(first, &part);
        }
        sum
    }
}

impl<'k> Engine<'k, f32> for MmaEngine<'k> {
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

    fn lazy_rescale(&self) -> bool {
        // 8 % faster; 8 % slower for rows of 64, the same for rows of 256.
        self.config.width == 128 && self.atom != MmaAtom::Tf32
    }

    fn register_bound(&self) -> bool {
        true
    }

    fn draw_lanes(&self, keys: Keys) -> DrawLanes {
        draw_lanes(keys)
    }

    fn load_stationary(&self, k: K<'k>, source: Source<'k>, first: I32<'k>, index: u32) -> Operand<'k> {
        let tile = self.stationary_tile(k, index);
        if let Some(queries) = self.queries {
            let place = |row, column| tile.at(row, column);
            queries.load(k, (source, first), (self.thread, self.threads), place);
            return Operand { tile, zero: k.lit(0u32) };
        }
        match source.form {
            Form::Even => {
                // Where blocks of 16 bits load stationary rows in a loop, places are computed again. Those of `f32` have the registers.
                let halves = self.atom != MmaAtom::Tf32 && source.factors.is_none();
                let thread = if halves { self.thread + opaque_zero(first) } else { self.thread };
                self.copy(k, source, first, tile, (k.lit(0u32), None), (thread, self.threads));
            }
            Form::Heads { .. } | Form::Pages(_) => self.load_rows(k, source, first, tile),
        }
        Operand { tile, zero: k.lit(0u32) }
    }

    fn start(&self, k: K<'k>, sources: [Source<'k>; 2], at: I32<'k>, first: Next<'k>) {
        // Warps that walk alone read rows that all have loaded, and the stage may have been read by what went before.
        k.barrier();
        for stage in 0..self.stages - 1 {
            let (at, there) = first.behind(at, stage * self.config.columns);
            self.copy_columns(k, sources, at, there);
        }
    }

    fn wait_k(&self, k: K<'k>, sources: [Source<'k>; 2], at: I32<'k>, next: Next<'k>) -> Operand<'k> {
        k.wait_copies(self.stages - 2);
        self.meet(k);
        let (next, there) = next.behind(at, (self.stages - 1) * self.config.columns);
        self.copy_columns(k, sources, next, there);
        self.operand(k, 0, at)
    }

    fn wait_v(&self, k: K<'k>, _: [Source<'k>; 2], at: I32<'k>) -> Operand<'k> {
        self.operand(k, 1, at)
    }

    fn reuse_k(&self, k: K<'k>, _: [Source<'k>; 2], at: I32<'k>) -> Operand<'k> {
        self.operand(k, 0, at)
    }

    fn product(
        &self,
        k: K<'k>,
        stationary: Operand<'k>,
        Operand { tile, zero }: Operand<'k>,
    ) -> RegTile<'k, f32> {
        let Mma { slabs, columns, width, .. } = self.config;
        let left = stationary.tile.reader_a(self.atom, Major::K, self.row + zero);
        let right = tile.reader_b(self.atom, Major::K, zero);
        if self.atom == MmaAtom::Tf32 {
            return self.product_split(k, &left, &right);
        }
        let mut sum = RegTile::zero_sums(k, self.atom, slabs * SLAB, columns);
        if let Some(queries) = self.queries {
            let step = self.atom.k();
            for depth in (0..width / PAIR).step_by(step as usize) {
                let both = [0, step].map(|further| left.load(0, PAIR * depth + further));
                for column in (0..columns).step_by(16) {
                    let read = right.load_pair(column, depth);
                    for (a, keys) in both.iter().zip(of_keys(k, &read)) {
                        sum.mma(column, std::slice::from_ref(a), &keys);
                    }
                }
            }
            return queries.restored(sum, &self.product_place(k).rows);
        }
        for depth in (0..width).step_by(self.atom.k() as usize) {
            let a: Vec<_> = (0..slabs).map(|slab| left.load(slab * SLAB, depth)).collect();
            for column in (0..columns).step_by(16) {
                sum.mma(column, &a, &right.load_pair(column, depth));
            }
        }
        sum
    }

    fn zero(&self, k: K<'k>) -> RegTile<'k, f32> {
        RegTile::zero_sums(k, self.atom, self.config.slabs * SLAB, self.config.width)
    }

    fn accumulate(
        &self,
        k: K<'k>,
        weights: &RegTile<'k, f32>,
        Operand { tile, zero }: Operand<'k>,
        mut sum: RegTile<'k, f32>,
    ) -> RegTile<'k, f32> {
        let Mma { columns, width, .. } = self.config;
        if self.atom == MmaAtom::Tf32 {
            return self.accumulate_split(k, weights, Operand { tile, zero }, sum);
        }
        let right = tile.reader_b(self.atom, Major::Mn, zero);
        for depth in (0..columns).step_by(self.atom.k() as usize) {
            let a = weights.fragments(self.atom, depth);
            if self.queries.is_some() {
                for column in (0..width / PAIR).step_by(16) {
                    let read = right.load_pair(column, depth);
                    for (column, values) in (PAIR * column..).step_by(GROUP as usize).zip(&read) {
                        sum.mma(column, &a, &of_values(k, values));
                    }
                }
                continue;
            }
            for column in (0..width).step_by(16) {
                sum.mma(column, &a, &right.load_pair(column, depth));
            }
        }
        sum
    }

    fn finish(&self, k: K<'k>) {
        k.wait_copies(0);
    }

    fn sum_parts(&self) -> (u32, Vec<u32>) {
        sum_parts(self.config.width, self.queries.is_some())
    }

    fn sum_column(&self, k: K<'k>) -> U32<'k> {
        sum_column(k, self.queries.is_some())
    }

    fn in_order(&self, part: &[F32<'k>]) -> Vec<F32<'k>> {
        in_order(part)
    }
}
