//! Products whose vectors do not fit the registers of a block: they pass through shared memory, a few at a time.
//!
//! The blocks leave the elements of a step as they are and then raise a flag, the number of the step; a warp waits for the
//! flags of the blocks whose units are in its part of the common dimension, and copies that part, a group of vectors after
//! the other, to shared memory that only it uses. That is a trip through the L2 cache more than words that carry their own
//! numbers take, and half the bytes. Two buffers take turns as those of words do.

use warpwright_dsl::WARP;
use warpwright_dsl::prelude::*;
use warpwright_ptx::{
    CacheHints, CacheOp, Inst, L2Prefetch, Ordering, ScalarType, Scope, Semantics, SourceLimit, StateSpace,
};

use super::exchange::{ATOM, Matrix, Partial, Product, Slot, WARPS, Weights, share};
use super::packed::MOST_PACKED;

/// Words of flags in front of the buffers: room for 256.
pub(super) const FLAGS: u32 = 128;
/// Bytes of a copy, and the elements of `f32` that are read from shared memory at once.
const PIECE: u32 = 16;
pub(super) const QUAD: u32 = 4;
/// Bytes of shared memory of a stage of all warps, and of all stages.
const STAGE_BYTES: u32 = 32 << 10;
const STAGES_BYTES: u32 = 128 << 10;
/// Vectors of a stage at most; those for tensor cores have so many, or twice as many if each reads weights again.
const MOST_ROWS: u32 = 16;
/// Registers of weights of a thread; more for tensor cores stay in shared memory, which has so much room.
pub(super) const MOST_WEIGHTS: u32 = 128;
const MOST_SHARED: u32 = 227 << 10;
/// Bytes of a fragment of a warp.
pub(super) const FRAGMENT_BYTES: u32 = WARP * PIECE;
/// Rows of a lane in `f32` at most: as many products are made with each element read.
const MOST_LANE_ROWS: u32 = 8;
/// Weights of a thread from which on it has that many rows if the block has many, and how many it has otherwise.
const MANY_WEIGHTS: u32 = 64;
const FEW_LANE_ROWS: u32 = 4;

/// What a warp copies to shared memory at once: some vectors, and the columns of its part or some of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Staging {
    /// Vectors.
    pub(super) rows: u32,
    columns: u32,
    /// Parts of the columns of a warp.
    chunks: u32,
    /// Whether the sums of a warp lie where its stages are: it has all of them when the last stage has been read.
    shares: bool,
    /// Stages of a warp.
    stages: Stages,
}

/// How the lanes of a warp share rows and columns in `f32`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Rows of a lane.
    rows: u32,
    /// Lanes that share the columns of the same rows.
    pub(super) parts: u32,
    /// Vectors that are multiplied together.
    pub(super) together: u32,
}

impl Product {
    /// Columns of a warp.
    pub(super) fn columns_of_warp(&self) -> u32 {
        self.depth / WARPS
    }

    /// How the lanes share their work, if they can.
    pub(super) fn shape(&self) -> Option<Shape> {
        let (padded, columns) = (self.padded(), self.columns_of_warp());
        let weights = padded * columns / WARP;
        let many = weights >= MANY_WEIGHTS && padded >= WARP;
        let most = if many { MOST_LANE_ROWS } else { FEW_LANE_ROWS };
        let shape = |rows: u32| Shape { rows, parts: WARP * rows / padded, together: (WARP / padded).max(1) };
        let fits = |s: &Shape| s.rows <= padded && s.parts > 0 && columns.is_multiple_of(QUAD * s.parts);
        [8, 4, 2, 1].into_iter().filter(|rows| *rows <= most).map(shape).find(fits)
    }

    /// What is copied at once, if the sizes allow it.
    pub(super) fn staging(&self) -> Option<Staging> {
        let columns = self.columns_of_warp();
        if !self.depth.is_multiple_of(WARPS) || !self.hidden.is_multiple_of(WARPS) || columns == 0 {
            return None;
        }
        let (rows, of_stage, bytes) = if self.is_tensor() {
            let slice = self.atom().k();
            if !columns.is_multiple_of(slice) {
                return None;
            }
            let rows = if self.stored() > 0 && self.batch > MOST_ROWS { 2 * MOST_ROWS } else { MOST_ROWS };
            let most = STAGE_BYTES / (WARPS * rows * slice * self.dtype.bytes() as u32);
            let slices = columns / slice;
            let of_stage = (1..=most).rev().find(|n| slices.is_multiple_of(*n))? * slice;
            (rows, of_stage, TileLayout::new(self.dtype, rows, of_stage).bytes())
        } else {
            let together = self.shape()?.together;
            let most = STAGE_BYTES / (WARPS * columns * 4);
            let all = self.batch.next_power_of_two().min(MOST_ROWS);
            let rows = all.min(1 << most.max(1).ilog2()).max(together);
            (rows, columns, rows * columns * 4)
        };
        let (groups, chunks) = (self.batch.div_ceil(rows), columns / of_stage);
        let shares = self.stored() > 0 && groups == 1;
        let sums = if shares { 0 } else { WARPS * groups * rows * self.pitch() * 4 };
        let room = MOST_SHARED.checked_sub(self.stored_bytes())?.checked_sub(sums)?;
        let count = (room.min(STAGES_BYTES) / (WARPS * bytes)).clamp(1, groups * chunks);
        Some(Staging { rows, columns: of_stage, chunks, shares, stages: Stages { count, bytes } })
    }

    /// Bytes of dynamic shared memory.
    pub(super) fn staged_bytes(&self) -> u32 {
        let Some(Staging { shares, stages, .. }) = self.staging() else { return u32::MAX };
        self.stored_bytes() + self.sums() * 4 + if shares { 0 } else { WARPS * stages.total_bytes() }
    }

    /// Floats between the sums of warps, and those between the stages if they share their memory.
    pub(super) fn staged_of_warp(&self) -> u32 {
        let sums = self.columns() * self.pitch();
        match self.staging() {
            Some(Staging { shares: true, stages, .. }) => sums.max(stages.total_bytes() / 4),
            _ => sums,
        }
    }

    /// Fragments of weights of a tile that a warp has: one for each slice, or for two.
    pub(super) fn fragments(&self) -> u32 {
        if self.packs() { self.slices() / 2 } else { self.slices() }
    }

    /// How many of them stay in shared memory.
    pub(super) fn stored(&self) -> u32 {
        if !self.is_tensor() {
            return 0;
        }
        let most = if self.packs() { MOST_PACKED } else { MOST_WEIGHTS };
        self.fragments().saturating_sub(most / (4 * self.padded() / ATOM.0))
    }

    /// Bytes of these.
    pub(super) fn stored_bytes(&self) -> u32 {
        WARPS * self.padded() / ATOM.0 * self.stored() * FRAGMENT_BYTES
    }

    /// Where the lane keeps its part of weights in shared memory: it reads only what it has written.
    pub(super) fn stored_at<'k>(&self, k: K<'k>, tile: u32, slice: u32) -> Ptr<'k, Shared, u32> {
        let tiles = self.padded() / ATOM.0;
        let first = k.thread_idx() + k.warp_idx() * (WARP * (tiles * self.stored() - 1));
        let fragment = tile * self.stored() + slice;
        k.dynamic_shared::<u32>().at(first * QUAD).at(u64::from(fragment * FRAGMENT_BYTES / 4))
    }

    /// Puts the last fragments of a warp to shared memory.
    pub(super) fn store<'k>(&self, k: K<'k>, of_slice: impl Fn(u32, u32) -> Fragment<'k, MatrixA>) {
        for tile in 0..self.padded() / ATOM.0 {
            for slice in 0..self.stored() {
                let fragment = of_slice(tile, self.fragments() - self.stored() + slice);
                self.stored_at(k, tile, slice).store(fragment.words());
            }
        }
    }

    /// Words of a buffer.
    pub(super) fn staged_words(&self) -> u32 {
        (self.batch * self.depth * self.dtype.bytes() as u32).div_ceil(8)
    }

    /// Registers of a thread that weights take.
    pub(super) fn staged_weights(&self) -> u32 {
        if self.is_tensor() {
            return 4 * self.padded() / ATOM.0 * (self.slices() - self.stored());
        }
        self.padded() * self.columns_of_warp() / WARP
    }

    /// Leaves the values of a unit where the other blocks find them.
    pub(super) fn leave<'k>(
        &self,
        slot: Slot<'k>,
        batch: U32<'k>,
        unit: U32<'k>,
        values: &[F32<'k>],
        (there, neighbour): (Pred<'k>, u32),
    ) {
        let k = batch.k();
        let at = batch * self.depth + unit * values.len() as u32;
        let words = slot.words.cast::<u32>();
        if !self.is_half() {
            let to = slot.words.cast::<f32>().at(at.to_u64());
            // Rounded once, and not by all who read them.
            let left = |value: &F32<'k>| if self.rounds { F32::from_bits(value.to_tf32()) } else { *value };
            let values: Vec<_> = values.iter().map(left).collect();
            if values.len() == QUAD as usize {
                k.if_(there, || to.store(values));
            } else {
                k.if_(there, || values.iter().enumerate().for_each(|(i, v)| to.at(i as u64).set(*v)));
            }
            return;
        }
        let half = at.to_u64() >> 1;
        match values {
            // Both elements of a word go together from the even place.
            [value] => {
                let word = value.pack_with(value.shfl_down(neighbour), self.dtype);
                k.if_(there & (unit & 1).eq(0), || words.at(half).set(word));
            }
            [a, b, c, d] => {
                let both = Lanes::from(vec![a.pack_with(*b, self.dtype), c.pack_with(*d, self.dtype)]);
                k.if_(there, || words.at(half).store(both));
            }
            _ => k.if_(there, || {
                let to = slot.words.cast::<u16>().at(at.to_u64());
                let bits = values.iter().map(|value| value.pack_with(*value, self.dtype) & 0xffff);
                bits.enumerate().for_each(|(i, bits)| to.at(i as u64).set(bits));
            }),
        }
    }

    /// Tells the other blocks that everything of step `step` is there. All threads are here.
    pub(super) fn raise<'k>(&self, k: K<'k>, exchange: Ptr<'k, ReadWrite, u64>, step: U32<'k>) {
        k.barrier();
        k.if_(k.thread_idx().eq(0), || {
            k.raw(Inst::St {
                space: StateSpace::Global,
                ty: ScalarType::U32,
                ordering: Ordering::new(Semantics::Release, Scope::Gpu),
                hints: CacheHints::NONE,
                srcs: vec![(step + 1).as_operand()],
                addr: exchange.cast::<u32>().at(k.block_idx_x()).operand(),
            });
        });
    }

    /// Waits until the blocks that have the units of the warp's columns have raised their flags for `slot`.
    fn wait_for_blocks<'k>(&self, k: K<'k>, exchange: Ptr<'k, ReadWrite, u64>, slot: Slot<'k>) {
        let of_warp = self.hidden / WARPS;
        let first = k.warp_idx() * of_warp / self.units;
        let last = (k.warp_idx() * of_warp + (of_warp - 1)) / self.units;
        let flag = exchange.cast::<u32>().at((first + k.lane_idx()).min(last));
        k.until(|| {
            let now = k.raw_reg::<u32>();
            k.raw(Inst::Ld {
                space: StateSpace::Global,
                ty: ScalarType::U32,
                ordering: Ordering::new(Semantics::Acquire, Scope::Gpu),
                hints: CacheHints::NONE,
                non_coherent: false,
                dsts: vec![Some(now.id())],
                addr: flag.operand(),
            });
            // A block may be a step ahead.
            !(now - slot.mark).to_i32().lt(0).vote_any()
        });
        meet(k);
    }

    /// The columns of a lane: four neighbours each time, of its rows.
    pub(super) fn staged_singles<'k, F>(&self, k: K<'k>, matrix: &Matrix<'k, F>) -> Weights<'k>
    where
        F: Fn(U32<'k>, U32<'k>) -> U64<'k>,
    {
        let Some(shape) = self.shape() else { return Weights::Single(Vec::new()) };
        let (part, group) = (k.lane_idx() % shape.parts, k.lane_idx() / shape.parts);
        let of_quad = |quad: u32| {
            let depth = k.warp_idx() * self.columns_of_warp() + part * QUAD + quad * QUAD * shape.parts;
            let row = |i: u32| -> Lanes<'k, f32> {
                let row = group * shape.rows + i;
                let from = |right: u32| {
                    let from = matrix.elements.at((matrix.at)(row, depth + right));
                    if self.padded() == self.rows {
                        from
                    } else {
                        from.only_where(row.lt(self.rows), Fill::Zero)
                    }
                };
                if matrix.dense {
                    return from(0).load(QUAD);
                }
                (0..QUAD).map(|right| from(right).get()).collect()
            };
            (0..shape.rows).map(row).collect()
        };
        let quads = self.columns_of_warp() / (QUAD * shape.parts);
        Weights::Single((0..quads).map(of_quad).collect())
    }

    /// Waits for the vectors of step `step` and multiplies them, a group after the other.
    pub(super) fn multiply_staged<'k>(
        &self,
        k: K<'k>,
        (exchange, slot): (Ptr<'k, ReadWrite, u64>, Slot<'k>),
        weights: &Weights<'k>,
        mut emit: impl FnMut(Partial<'k>),
    ) {
        let Some(staging) = self.staging() else { return };
        let Staging { rows, chunks, stages, shares, .. } = staging;
        let copies = Copies::new(k, self, staging, slot);
        self.wait_for_blocks(k, exchange, slot);
        for i in 0..stages.count {
            copies.start(k.lit(i / chunks), i % chunks, k.lit(i * stages.bytes), None);
            k.commit_copies();
        }
        let groups = self.columns() / rows;
        let refill = groups * chunks > stages.count;
        let _ = k.fold(k.range(0, groups, 1), k.lit(0u32), |group, mut read| {
            let mut sums = Vec::new();
            for chunk in 0..chunks {
                k.wait_copies(stages.count - 1);
                meet(k);
                match weights {
                    Weights::Tensor(tiles) => copies.multiply_tiles(read, chunk, tiles, &mut sums),
                    Weights::Single(quads) => copies.multiply_quads(read, group, quads, &mut emit),
                    Weights::Packed(..) => {}
                }
                if refill {
                    let ahead = chunk + stages.count;
                    let next = group + ahead / chunks;
                    meet(k);
                    copies.start(next, ahead % chunks, read, Some(next.lt(groups)));
                }
                k.commit_copies();
                read = stages.after(read);
            }
            if shares {
                meet(k);
            }
            let (row, quad) = (k.lane_idx() >> 2, k.lane_idx() & 3);
            let across = rows / ATOM.2;
            for (i, sum) in (0..).zip(&sums) {
                for ((down, right), value) in sum.offsets().zip(sum.lanes().iter()) {
                    let batch = group * rows + quad * 2 + (i % across * ATOM.2 + right);
                    let row = row + (i / across * ATOM.0 + down);
                    emit(Partial { batch, row, sum: value, there: None });
                }
            }
            read
        });
    }
}

/// The lanes of a warp meet: what one has written, or what was copied for it, is there for all.
fn meet(k: K<'_>) {
    k.warp_barrier();
}

/// The copies of a warp, and how it reads what they bring.
struct Copies<'k> {
    k: K<'k>,
    product: Product,
    staging: Staging,
    /// Bytes of a row that the lane copies, its first row, and whether it copies any.
    row: U32<'k>,
    inside: Option<Pred<'k>>,
    /// Whether the lane has a part in the last instruction for a row, if that is not for all.
    last: Option<Pred<'k>>,
    /// Instructions for a row, or rows between those of an instruction.
    pieces: u32,
    apart: u32,
    from: Ptr<'k, ReadWrite, u32>,
    to: Target<'k>,
}

/// Where a warp's stages are.
#[derive(Clone, Copy)]
enum Target<'k> {
    /// For tensor cores: where the lane copies to, and the fragments that it reads.
    Tile(TilePoint<'k>, TileReader<'k, MatrixB>),
    /// For the ordinary units: the same.
    Rows(Ptr<'k, Shared, f32>, Ptr<'k, Shared, f32>),
}

impl<'k> Copies<'k> {
    fn new(k: K<'k>, product: &Product, staging: Staging, slot: Slot<'k>) -> Self {
        let Staging { rows, columns, stages, .. } = staging;
        let size = product.dtype.bytes() as u32;
        let of_piece = PIECE / size;
        let pieces_of_row = columns / of_piece;
        // Lanes of a row; several rows, equally far apart, if there are few.
        let lanes = pieces_of_row.next_power_of_two().min(WARP);
        let apart = (rows / (WARP / lanes)).max(1);
        let (piece, row) = (k.lane_idx() % lanes, k.lane_idx() / lanes * apart);
        let uneven = lanes != pieces_of_row && pieces_of_row < WARP;
        let too_many = (WARP / lanes) > rows;
        let mut inside = uneven.then(|| piece.lt(pieces_of_row));
        if too_many {
            let there = row.lt(rows);
            inside = Some(inside.map_or(there, |inside| inside & there));
        }
        let first = k.warp_idx() * product.columns_of_warp() + piece * of_piece;
        let from = slot.words.cast::<u32>();
        let from = from.at(((row * product.depth + first).to_u64() * u64::from(size)) >> 2);
        let (sums, between) = match staging.shares {
            true => (0, product.staged_of_warp() * 4),
            false => (product.sums() * 4, stages.total_bytes()),
        };
        let start = (product.stored_bytes() + sums) / size + k.warp_idx() * (between / size);
        let to = if product.is_tensor() {
            let layout = TileLayout::new(product.dtype, rows, columns);
            let tile = k.tile_at(k.dynamic_shared_elem(product.dtype).at(start), layout);
            let reader = tile.reader_b(product.atom(), Along::K, k.lit(0u32));
            Target::Tile(tile.point(row, piece * of_piece), reader)
        } else {
            let all = k.dynamic_shared::<f32>().at(start);
            let parts = product.shape().map_or(1, |shape| shape.parts);
            Target::Rows(all.at(row * columns + piece * of_piece), all.at(k.lane_idx() % parts * QUAD))
        };
        let (pieces, rest) = (pieces_of_row.div_ceil(WARP), pieces_of_row % WARP);
        let last = (pieces > 1 && rest > 0).then(|| k.lane_idx().lt(rest));
        Self { k, product: *product, staging, row, inside, last, pieces, apart, from, to }
    }

    /// Starts to copy chunk `chunk` of the vectors of `group`, where `there` holds, to the stage at `stage`. Vectors beyond
    /// the last become zeros.
    fn start(&self, group: U32<'k>, chunk: u32, stage: U32<'k>, there: Option<Pred<'k>>) {
        let (k, product, staging) = (self.k, &self.product, self.staging);
        let size = product.dtype.bytes() as u32;
        let of_group = u64::from(staging.rows * product.depth * size / 4);
        let from = self.from.at(group.to_u64() * of_group);
        let guard = match (there, self.inside) {
            (Some(there), Some(inside)) => Some(there & inside),
            (there, inside) => there.or(inside),
        };
        let copy_all = || {
            for down in 0..self.apart {
                let limit = if product.batch.is_multiple_of(staging.rows) {
                    SourceLimit::Full
                } else {
                    let row = group * staging.rows + self.row + down;
                    SourceLimit::Bytes(row.lt(product.batch).select(PIECE, 0u32).as_operand())
                };
                for piece in 0..self.pieces {
                    let copy = || self.copy(from, stage, down, (chunk, piece), limit);
                    match self.last.filter(|_| piece + 1 == self.pieces) {
                        Some(last) => k.if_(last, copy),
                        None => copy(),
                    }
                }
            }
        };
        match guard {
            Some(guard) => k.if_(guard, copy_all),
            None => copy_all(),
        }
    }

    /// Starts to copy piece `piece` of a chunk, `down` rows below the lane's first.
    fn copy(
        &self,
        from: Ptr<'k, ReadWrite, u32>,
        stage: U32<'k>,
        down: u32,
        (chunk, piece): (u32, u32),
        limit: SourceLimit,
    ) {
        let (product, columns) = (&self.product, self.staging.columns);
        let size = product.dtype.bytes() as u32;
        let right = piece * WARP * PIECE / size;
        let dst = match self.to {
            Target::Tile(point, _) => point.moved(stage).at(down, right).operand(),
            Target::Rows(to, _) => to.at(stage >> 2).at(u64::from(down * columns + right)).operand(),
        };
        let place = down * product.depth + chunk * columns + right;
        self.k.raw(Inst::CpAsync {
            cache: CacheOp::Cg,
            l2_prefetch: L2Prefetch::Default,
            dst,
            src: from.at(u64::from(place * size / 4)).operand(),
            bytes: PIECE,
            limit,
            policy: None,
        });
    }

    /// Products on tensor cores with a chunk of the vectors: the sums of a tile of rows with eight of them each.
    fn multiply_tiles(
        &self,
        stage: U32<'k>,
        chunk: u32,
        tiles: &[Vec<Fragment<'k, MatrixA>>],
        sums: &mut Vec<Accumulator<'k, f32>>,
    ) {
        let Target::Tile(_, reader) = self.to else { return };
        let reader = reader.moved(stage);
        let (k, atom, product) = (self.k, self.product.atom(), &self.product);
        let across = (self.staging.rows / ATOM.2) as usize;
        let count = product.padded() / ATOM.0;
        if sums.is_empty() {
            *sums = vec![Accumulator::zero(k, atom); across * count as usize];
        }
        let slices = self.staging.columns / atom.k();
        for slice in 0..slices {
            let pairs = (0..self.staging.rows).step_by(2 * ATOM.2 as usize);
            let state: Vec<_> = pairs.flat_map(|row| reader.load_pair(row, slice * atom.k())).collect();
            let at = chunk * slices + slice;
            for ((i, sums), tile) in (0..).zip(sums.chunks_mut(across)).zip(tiles) {
                let weights = product.weight(k, tile, i, at);
                for (sum, state) in sums.iter_mut().zip(&state) {
                    *sum = sum.mma(&weights, state);
                }
            }
        }
    }

    /// Products in `f32` with the vectors of a stage.
    fn multiply_quads(
        &self,
        stage: U32<'k>,
        group: U32<'k>,
        quads: &[Vec<Lanes<'k, f32>>],
        emit: &mut impl FnMut(Partial<'k>),
    ) {
        let (k, columns) = (self.k, self.staging.columns);
        let (Target::Rows(_, from), Some(shape)) = (self.to, self.product.shape()) else { return };
        let from = from.at(stage >> 2);
        let rows = self.staging.rows;
        multiply_quads(k, from, shape, [rows, columns], quads, &mut |partial: Partial<'k>| {
            emit(Partial { batch: group * rows + partial.batch, ..partial });
        });
    }
}

/// Products in `f32` with `rows` vectors of shared memory, which lie `pitch` elements apart; `from` is the first column of the
/// lane.
pub(super) fn multiply_quads<'k>(
    k: K<'k>,
    from: Ptr<'k, Shared, f32>,
    shape: Shape,
    [rows, pitch]: [u32; 2],
    quads: &[Vec<Lanes<'k, f32>>],
    emit: &mut impl FnMut(Partial<'k>),
) {
    let first_row = k.lane_idx() / shape.parts * shape.rows;
    for first in (0..rows).step_by(shape.together as usize) {
        let mut sums = vec![k.lit(0.0f32); (shape.together * shape.rows) as usize];
        for (quad, rows) in (0..).zip(quads) {
            for (batch, sums) in (first..).zip(sums.chunks_mut(shape.rows as usize)) {
                let at = batch * pitch + quad * QUAD * shape.parts;
                let state = from.at(u64::from(at)).load::<f32>(QUAD);
                for (i, state) in state.iter().enumerate() {
                    for (sum, row) in sums.iter_mut().zip(rows) {
                        *sum = row[i].mul_add(state, *sum);
                    }
                }
            }
        }
        share(k, sums, shape.parts, |index, sum, there| {
            let (batch, row) = (index / shape.rows + first, first_row + index % shape.rows);
            emit(Partial { batch, row, sum, there });
        });
    }
}
