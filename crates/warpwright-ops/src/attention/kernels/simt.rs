//! The engine of ordinary arithmetic: every element type, every target.
//!
//! Eight neighbouring lanes share the rows of a slot. Tiles hold elements of the accumulate type in chunks of 16 bytes; the
//! chunk's number is combined with the row's by exclusive-or, so that eight lanes that read one chunk of eight
//! neighbouring rows, or eight chunks of one row, meet different banks. A thread's columns of a tile are eight apart for
//! that reason.

use warpwright_dsl::prelude::*;

use super::dropout::{DrawLanes, Keys};
use super::engine::{Engine, Form, Next, Place, Source, opaque_zero};
use crate::attention::layout::{BlockLayout, BlockShape, DecodeLayout};
use crate::attention::statistics_type;

/// Lanes that share a slot.
pub(in crate::attention) const LANES: u32 = 8;
/// Bytes of a chunk.
const CHUNK: u32 = 16;
/// Loads of a thread that are in flight together.
const BATCH: u32 = 8;

/// How a block is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Simt {
    /// Threads of a block.
    pub threads: u32,
    /// Slots of a thread.
    pub slots: u32,
    /// Columns of a thread.
    pub columns: u32,
    /// Elements of a row of a tile: a power of two from 32.
    pub width: u32,
    /// Elements of an access to global memory.
    pub vector: u32,
    /// Whether both tiles of columns take turns in one place.
    pub shared_place: bool,
}

impl Simt {
    /// Elements of shared memory, with `stationary` tiles of the block's rows.
    const fn shared_elements(self, stationary: u32) -> u32 {
        let places = if self.shared_place { 1 } else { 2 };
        let (rows, columns) = (self.threads / LANES * self.slots, LANES * self.columns);
        (stationary * rows + places * columns) * self.width + rows * columns
    }
}

impl BlockLayout for Simt {
    fn name(&self) -> String {
        let place = if self.shared_place { "s" } else { "" };
        let Self { threads, slots, columns, width, vector, .. } = self;
        format!("simt_t{threads}r{slots}c{columns}d{width}x{vector}{place}")
    }

    fn shape(&self) -> BlockShape {
        let Self { threads, slots, columns, width, vector, .. } = *self;
        BlockShape { threads, rows: threads / LANES * slots, columns: LANES * columns, width, vector }
    }

    fn shared_bytes(&self, dtype: DType, stationary: u32) -> u32 {
        self.shared_elements(stationary) * statistics_type(dtype).bytes() as u32
    }

    /// Left to itself the assembler makes room for more blocks than shared memory does, and keeps in memory what then lacks registers.
    fn min_blocks_per_sm(&self, dtype: DType) -> Option<u32> {
        (self.slots == 1 || dtype == DType::F64).then_some(1)
    }
}

/// All threads walk together.
impl DecodeLayout for Simt {
    fn teams(&self) -> u32 {
        1
    }

    fn result_vector(&self) -> u32 {
        self.vector
    }
}

/// A layout with its registers.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct SimtEngine<'k> {
    config: Simt,
    /// The accumulate type.
    dtype: DType,
    memory: Ptr<'k, Shared, Elem>,
    /// Tiles of stationary rows.
    stationary: u32,
    thread: U32<'k>,
    /// The lane among those of its slots.
    lane: U32<'k>,
    /// The first row of the thread.
    row: U32<'k>,
}

/// Rows of chunks.
#[derive(Clone, Copy, Debug)]
pub(in crate::attention) struct SimtTile<'k> {
    data: Ptr<'k, Shared, Elem>,
    rows: u32,
}

impl<'k> SimtEngine<'k> {
    pub(in crate::attention) fn new(k: K<'k>, config: Simt, dtype: DType, stationary: u32) -> Self {
        let dtype = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let memory = k.dynamic_shared_elem(dtype);
        let thread = k.thread_idx();
        let (lane, row) = (thread & (LANES - 1), thread / LANES);
        Self { config, dtype, memory, stationary, thread, lane, row }
    }

    fn chunk(&self) -> u32 {
        CHUNK / self.dtype.bytes() as u32
    }

    /// Rows between the slots of a thread.
    fn step(&self) -> u32 {
        self.config.threads / LANES
    }

    fn tile(&self, index: u32) -> SimtTile<'k> {
        let Simt { width, .. } = self.config;
        let (rows, columns) = (self.config.rows(), self.config.tile_columns());
        let data = |rows_before: u32| self.memory.at(u64::from(rows_before * width));
        if index < self.stationary {
            return SimtTile { data: data(index * rows), rows };
        }
        let place = if self.config.shared_place { 0 } else { index - self.stationary };
        SimtTile { data: data(self.stationary * rows + place * columns), rows: columns }
    }

    /// Where weights are exchanged between the lanes of a slot.
    fn exchange(&self) -> Ptr<'k, Shared, Elem> {
        let places = if self.config.shared_place { 1 } else { 2 };
        let rows = self.stationary * self.config.rows() + places * self.config.tile_columns();
        self.memory.at(u64::from(rows * self.config.width))
    }

    /// Loads the rows of a tile, all threads together; the caller waits.
    fn load<A: Accumulate>(&self, k: K<'k>, source: Source<'k>, first: I32<'k>, tile: SimtTile<'k>) {
        let Simt { threads, slots, width, vector, .. } = self.config;
        let chunk = self.chunk();
        let per_row = width / chunk;
        let total = tile.rows * per_row;
        let data = source.data.at(first.to_u64() * source.stride);
        // Places that are looked up row by row take registers of their own.
        let batch = if matches!(source.form, Form::Even) { BATCH } else { BATCH / 4 };
        let some = |thread: U32<'k>, rounds: std::ops::Range<u32>| {
            let loaded: Vec<_> = rounds
                .map(|round| {
                    let index = thread + round * threads;
                    let (row, at) = (index / per_row, index & (per_row - 1));
                    let column = at * chunk;
                    let exists = (first + row.to_i32()).lt(source.rows) & row.lt(tile.rows);
                    let from = match source.form {
                        Form::Even => data.at(row.to_u64() * source.stride + column.to_u64()),
                        _ => source.data.at(source.offset(first + row.to_i32(), exists) + column.to_u64()),
                    };
                    let pieces = (0..chunk / vector).map(|piece| {
                        let inside = exists & (column + piece * vector).lt(source.width);
                        from.at(u64::from(piece * vector)).only_where(inside, Fill::Zero).load::<A>(vector)
                    });
                    (row, at, Lanes::concat(pieces))
                })
                .collect();
            for (row, at, lanes) in loaded {
                let place = tile.data.at(row * width + (at ^ (row & (LANES - 1))) * chunk);
                if total.is_multiple_of(threads) {
                    place.store(lanes);
                } else {
                    place.only_where(row.lt(tile.rows), Fill::Zero).store(lanes);
                }
            }
        };
        let rounds = total.div_ceil(threads);
        // Where rounds are many the assembler kept their places in memory from tile to tile.
        let thread = match width {
            256 => self.thread + opaque_zero(first),
            _ => self.thread,
        };
        // In a loop it has no more than one batch's to keep. Where it has registers for all, that is slower.
        let spare = width == 256 && slots > 1 && !A::DOUBLE;
        if !spare && batch == BATCH && rounds > batch && rounds.is_multiple_of(batch) {
            k.for_each(k.range(thread, k.lit(total), threads * batch), |thread| some(thread, 0..batch));
            return;
        }
        for from in (0..rounds).step_by(batch as usize) {
            some(thread, from..rounds.min(from + batch));
        }
    }
}

impl<'k, A: Accumulate> Engine<'k, A> for SimtEngine<'k> {
    type Tile = SimtTile<'k>;

    fn lanes(&self) -> u32 {
        LANES
    }

    fn product_place(&self, _: K<'k>) -> Place<'k> {
        let rows = (0..self.config.slots).map(|slot| self.row + slot * self.step()).collect();
        let columns = (0..self.config.columns).map(|c| c * LANES).collect();
        Place { rows, first: self.lane, columns }
    }

    fn row_by_row(&self) -> bool {
        self.config.slots > 1
    }

    fn draw_lanes(&self, keys: Keys) -> DrawLanes {
        match keys {
            Keys::Columns => DrawLanes { lanes: 4, step: 1 },
            Keys::Rows => DrawLanes { lanes: 4, step: LANES },
        }
    }

    fn load_stationary(&self, k: K<'k>, source: Source<'k>, first: I32<'k>, index: u32) -> SimtTile<'k> {
        let tile = self.tile(index);
        self.load::<A>(k, source, first, tile);
        tile
    }

    fn start(&self, _: K<'k>, _: [Source<'k>; 2], _: I32<'k>, _: Next<'k>) {}

    fn wait_k(&self, k: K<'k>, sources: [Source<'k>; 2], at: I32<'k>, _: Next<'k>) -> SimtTile<'k> {
        let tile = self.tile(self.stationary);
        k.barrier();
        self.load::<A>(k, sources[0], at, tile);
        if !self.config.shared_place {
            self.load::<A>(k, sources[1], at, self.tile(self.stationary + 1));
        }
        k.barrier();
        tile
    }

    fn wait_v(&self, k: K<'k>, sources: [Source<'k>; 2], at: I32<'k>) -> SimtTile<'k> {
        let tile = self.tile(self.stationary + 1);
        if self.config.shared_place {
            k.barrier();
            self.load::<A>(k, sources[1], at, tile);
            k.barrier();
        }
        tile
    }

    fn reuse_k(&self, k: K<'k>, sources: [Source<'k>; 2], at: I32<'k>) -> SimtTile<'k> {
        let tile = self.tile(self.stationary);
        if self.config.shared_place {
            k.barrier();
            self.load::<A>(k, sources[0], at, tile);
            k.barrier();
        }
        tile
    }

    fn product(&self, k: K<'k>, stationary: SimtTile<'k>, tile: SimtTile<'k>) -> RegTile<'k, A> {
        let Simt { slots, columns, width, .. } = self.config;
        let chunk = self.chunk();
        let stationary_row = stationary.data.at(self.row * width);
        let tile_row = tile.data.at(self.lane * width);
        let stationary_turn = self.row & (LANES - 1);
        let zero = RegTile::zero(k, LANES, slots, columns);
        k.fold(k.range(0u32, width / chunk, 1u32), zero, |at, mut sum| {
            let stationary_place = stationary_row.at((at ^ stationary_turn) * chunk);
            let tile_place = tile_row.at((at ^ self.lane) * chunk);
            let stationary: Vec<Lanes<'k, A>> = (0..slots)
                .map(|slot| stationary_place.at(u64::from(slot * self.step() * width)).load(chunk))
                .collect();
            for column in 0..columns {
                let other = tile_place.at(u64::from(column * LANES * width)).load::<A>(chunk);
                for (slot, stationary) in stationary.iter().enumerate() {
                    let sum = &mut sum.row_mut(slot)[column as usize];
                    *sum = stationary.iter().zip(other.iter()).fold(*sum, |sum, (a, b)| a.mul_add(b, sum));
                }
            }
            sum
        })
    }

    fn zero(&self, k: K<'k>) -> RegTile<'k, A> {
        let Simt { slots, width, .. } = self.config;
        RegTile::zero(k, LANES, slots, width / LANES)
    }

    /// Column `lane + 8 c` of the weights lies at place `(c / chunk) 8 chunk + lane chunk + c % chunk` of the exchange.
    fn accumulate(
        &self,
        k: K<'k>,
        weights: &RegTile<'k, A>,
        tile: SimtTile<'k>,
        sum: RegTile<'k, A>,
    ) -> RegTile<'k, A> {
        let Simt { columns, width, .. } = self.config;
        let (chunk, pitch) = (self.chunk(), self.config.tile_columns());
        let row = self.exchange().at(self.row * pitch);
        let slot_at = |slot: usize| u64::from(slot as u32 * self.step() * pitch);
        // What went before may still be read.
        k.warp_barrier();
        for (slot, weights) in weights.rows().enumerate() {
            for (part, lanes) in weights.chunks(chunk as usize).enumerate() {
                let place =
                    row.at(self.lane * chunk).at(slot_at(slot) + u64::from(part as u32 * LANES * chunk));
                place.store(Lanes::from(lanes.to_vec()));
            }
        }
        k.warp_barrier();
        // Summed tile by tile, so that the errors of long sums grow with the tiles and not with the columns. Double precision has
        // digits to spare, but no registers.
        let before = if A::DOUBLE { sum.clone() } else { self.zero(k) };
        let of_tile = k.fold(k.range(0u32, LANES, 1u32), before, |turn, mut sum| {
            let row = row.at(turn * chunk);
            let tile_row = tile.data.at(turn * width + (self.lane ^ turn) * chunk);
            for part in 0..columns / chunk {
                let weights: Vec<Lanes<'k, A>> = (0..sum.len())
                    .map(|slot| row.at(slot_at(slot) + u64::from(part * LANES * chunk)).load(chunk))
                    .collect();
                for element in 0..chunk {
                    let down = (part * chunk + element) * LANES * width;
                    for group in 0..width / (LANES * chunk) {
                        let values = tile_row.at(u64::from(down + group * LANES * chunk)).load::<A>(chunk);
                        for (slot, weights) in weights.iter().enumerate() {
                            let weight = weights[element as usize];
                            for (i, value) in values.iter().enumerate() {
                                let sum = &mut sum.row_mut(slot)[group as usize * chunk as usize + i];
                                *sum = weight.mul_add(value, *sum);
                            }
                        }
                    }
                }
            }
            sum
        });
        if A::DOUBLE {
            return of_tile;
        }
        &sum + &of_tile
    }

    fn finish(&self, _: K<'k>) {}

    fn sum_parts(&self) -> (u32, Vec<u32>) {
        let (chunk, Simt { vector, width, .. }) = (self.chunk(), self.config);
        let pieces =
            |group: u32| (0..chunk / vector).map(move |piece| group * LANES * chunk + piece * vector);
        (vector, (0..width / LANES / chunk).flat_map(pieces).collect())
    }

    fn sum_column(&self, _: K<'k>) -> U32<'k> {
        self.lane * self.chunk()
    }
}
