//! Products whose vectors stay within a cluster: its blocks keep all recurrent weights, and take a few sequences through all
//! steps.
//!
//! A block sends what a step gives it to the shared memory of every block of the cluster, where an mbarrier counts the bytes:
//! when those of all units are there, the next step begins. That is one trip between multiprocessors, and waits for nothing
//! that goes to memory meanwhile, as a barrier of the cluster would. Two buffers take turns: a block sends for step `t + 1` when
//! all of its warps have read step `t`, and overwrites `t` when it has all of `t + 1`. Clusters have nothing to do with each
//! other, so there may be any number of them. On tensor cores a warp has 16 rows, or a part of the common dimension of theirs
//! if the block has few.

use warpwright_dsl::Mbarriers;
use warpwright_dsl::prelude::*;
use warpwright_ptx::Target;

use super::exchange::{ATOM, Matrix, OCTET, Partial, Product, SLICES, Slot, THREADS, WARPS, Weights};
use super::staged;
use super::tuning::Exchange;

/// Bytes that the banks of shared memory have together.
const BANKS: u32 = 128;
/// Most registers of weights of a thread.
const MOST_WEIGHTS: u32 = 128;
/// Most blocks of a cluster on the chips with full multiprocessors.
const MOST_BLOCKS: u32 = 16;
const MOST_SHARED: u32 = 227 << 10;

/// One of the vectors of a block.
#[derive(Clone, Copy)]
pub(super) struct Vector<'k> {
    /// Its number in the block, and whether the block has so many.
    pub(super) at: U32<'k>,
    pub(super) held: Pred<'k>,
    /// The sequence, and whether the net has so many.
    pub(super) batch: U32<'k>,
    pub(super) there: Pred<'k>,
}

impl Product {
    /// Blocks of a cluster.
    pub(super) fn cluster(&self) -> u32 {
        match self.exchange {
            Exchange::Cluster(_) => self.hidden / self.units,
            _ => 1,
        }
    }

    /// Blocks that `batch` sequences take.
    pub(super) fn blocks(&self, batch: u32) -> u32 {
        match self.exchange {
            Exchange::Cluster(of_cluster) => self.cluster() * batch.div_ceil(of_cluster),
            _ => self.hidden / self.units,
        }
    }

    /// The first unit of the block.
    pub(super) fn first_unit<'k>(&self, k: K<'k>) -> U32<'k> {
        let block = if self.cluster() > 1 { k.cluster_rank() } else { self.block_of_all(k) };
        block * self.units
    }

    /// The number of the block among those that exchange what they have, where that is no cluster of several.
    fn block_of_all<'k>(&self, k: K<'k>) -> U32<'k> {
        match self.exchange {
            Exchange::Cluster(_) => k.lit(0u32),
            _ => k.block_idx_x(),
        }
    }

    /// Vector `at` of the block, of a net of `batch` sequences.
    pub(super) fn vector<'k>(&self, at: U32<'k>, batch: u32) -> Vector<'k> {
        let held = at.lt(self.batch);
        let Exchange::Cluster(of_cluster) = self.exchange else {
            let of_all = self.first(at.k()).map_or(at, |first| first + at);
            return Vector { at, held, batch: of_all, there: held };
        };
        let of_all = at.k().cluster_idx_x() * of_cluster + at;
        Vector { at, held, batch: of_all, there: held & of_all.lt(batch) }
    }

    /// Whether a cluster of `target` takes the product.
    pub(super) fn fits_cluster(&self, target: Target) -> bool {
        let blocks = self.cluster();
        let sizes = blocks.is_power_of_two() && blocks <= MOST_BLOCKS && self.batch.is_power_of_two();
        // Later chips have less shared memory.
        if !matches!(target.sm, 90..=100) || !sizes || !self.depth.is_multiple_of(WARPS) {
            return false;
        }
        let shares = match self.is_half() {
            true => self.depth.is_multiple_of(SLICES * self.parts()) && self.tiles() <= WARPS,
            false => self.shape().is_some(),
        };
        shares && self.cluster_weights() <= MOST_WEIGHTS && self.cluster_bytes() <= MOST_SHARED
    }

    /// Registers of a thread that weights take.
    pub(super) fn cluster_weights(&self) -> u32 {
        if self.is_half() { 4 * self.slices_of_part() } else { self.staged_weights() }
    }

    /// Tiles of rows.
    fn tiles(&self) -> u32 {
        self.padded() / ATOM.0
    }

    /// Warps that have the rows of a tile, or all rows in `f32`: each has a part of the common dimension.
    pub(super) fn parts(&self) -> u32 {
        match self.exchange {
            Exchange::Cluster(_) if self.is_half() => (WARPS / self.tiles().next_power_of_two()).max(1),
            _ => WARPS,
        }
    }

    /// The part of the common dimension that the warp has, and its tile.
    pub(super) fn part<'k>(&self, k: K<'k>) -> (U32<'k>, U32<'k>) {
        match self.exchange {
            Exchange::Cluster(_) if self.is_half() => {
                let tiles = WARPS / self.parts();
                (k.warp_idx() / tiles, k.warp_idx() % tiles)
            }
            _ => (k.warp_idx(), k.lit(0u32)),
        }
    }

    /// Slices of 16 elements of a part.
    fn slices_of_part(&self) -> u32 {
        self.depth / (ATOM.1 * self.parts())
    }

    /// Elements between vectors: lanes that read eight elements of 16 bits of two vectors meet no bank twice.
    fn vector_pitch(&self) -> u32 {
        if !self.is_half() {
            return self.depth;
        }
        let half = BANKS / 2;
        if (self.depth * 2).is_multiple_of(BANKS) { self.depth + half / 2 } else { self.depth }
    }

    /// Bytes of one of the two buffers.
    fn buffer_bytes(&self) -> u32 {
        self.columns() * self.vector_pitch() * self.dtype.bytes() as u32
    }

    /// Bytes of both.
    pub(super) fn buffers_bytes(&self) -> u32 {
        2 * self.buffer_bytes()
    }

    /// Bytes of dynamic shared memory: the buffers, the sums of two steps, and the barriers of the buffers.
    pub(super) fn cluster_bytes(&self) -> u32 {
        self.buffers_bytes() + 2 * self.sums() * 4 + 2 * 8
    }

    /// The barriers of the buffers.
    fn arrivals<'k>(&self, k: K<'k>) -> Mbarriers<'k> {
        let first = (self.buffers_bytes() + 2 * self.sums() * 4) / 8;
        k.mbarriers_at(k.dynamic_shared::<u64>().at(u64::from(first)))
    }

    /// Makes the vectors that no sequence has zero, and waits until all blocks of the cluster have begun.
    pub(super) fn begin(&self, k: K<'_>) {
        let Exchange::Cluster(_) = self.exchange else { return };
        let word = self.vector_pitch() * self.dtype.bytes() as u32 / 4;
        let (first, words) = (self.batch * word, (self.columns() - self.batch) * word);
        if words > 0 {
            for buffer in 0..2 {
                let from = k.dynamic_shared::<u32>().at(u64::from(buffer * self.buffer_bytes() / 4 + first));
                k.for_each(k.range(k.thread_idx(), words, THREADS), |at| from.at(at).set(0u32));
            }
        }
        if self.cluster() > 1 {
            k.if_(k.thread_idx().eq(0), || {
                (0..2u32).for_each(|buffer| self.arrivals(k).at(buffer).init(1));
                k.publish_mbarriers();
            });
            k.cluster_barrier();
        }
    }

    /// Everything that the block has of a step has been sent. In a block that is alone, it is there now.
    pub(super) fn sent(&self, k: K<'_>) {
        if self.cluster() == 1 {
            k.barrier();
        }
    }

    /// Waits for what all have of the step.
    fn wait<'k>(&self, k: K<'k>, slot: Slot<'k>) {
        if self.cluster() == 1 {
            return;
        }
        let all = self.arrivals(k).at(slot.turn);
        let bytes = self.batch * self.depth * self.dtype.bytes() as u32;
        k.if_(k.thread_idx().eq(0), || all.arrive_expecting(bytes));
        // Each of the two is waited for in every other step.
        all.wait((slot.mark >> 1) & 1);
    }

    /// Waits for what is sent to a block of a cluster behind the last step: until then it must not end.
    pub(super) fn end<'k>(&self, k: K<'k>, slot: Slot<'k>) {
        if let Exchange::Cluster(_) = self.exchange {
            self.wait(k, slot);
        }
    }

    /// Whether the parts of a vector, which are those of all units each, lie one behind the other: elements of 16 bits of a unit
    /// that fill no words.
    fn is_apart(&self) -> bool {
        self.is_half() && !(self.depth / self.hidden).is_multiple_of(2)
    }

    /// The row of the weights that element `depth` of a vector multiplies.
    pub(super) fn origin_in_cluster<'k>(&self, depth: U32<'k>) -> U32<'k> {
        let parts = self.depth / self.hidden;
        if self.is_apart() { depth } else { depth % parts * self.hidden + depth / parts }
    }

    /// Sends the values of a unit to all blocks. `lanes` neighbouring lanes have a unit, and those behind them the next; all of
    /// them have the values, and share the blocks out.
    pub(super) fn spread<'k>(
        &self,
        slot: Slot<'k>,
        (batch, unit): (U32<'k>, U32<'k>),
        values: &[F32<'k>],
        (there, lanes): (Pred<'k>, u32),
    ) {
        let k = batch.k();
        let vector = (slot.turn * self.columns() + batch) * self.vector_pitch();
        if !self.is_apart() {
            let words: Lanes<'k, u32> = if self.is_half() {
                values.chunks(2).map(|pair| pair[0].pack_with(pair[1], self.dtype)).collect()
            } else {
                values.iter().map(|value| value.to_bits()).collect()
            };
            self.send(k, slot, vector + unit * values.len() as u32, &words, (there, lanes));
            return;
        }
        // Both elements of a word are known to all lanes of two units.
        let even = (k.lane_idx() & lanes).eq(0);
        for (part, value) in (0..).zip(values) {
            let other = value.shfl_xor(lanes);
            let word = even.select(*value, other).pack_with(even.select(other, *value), self.dtype);
            let at = vector + (unit & !1) + part * self.hidden;
            self.send(k, slot, at, &word.into(), (there, 2 * lanes));
        }
    }

    /// Sends words to element `at` of all blocks; `lanes` neighbouring lanes have the same.
    fn send<'k>(
        &self,
        k: K<'k>,
        slot: Slot<'k>,
        at: U32<'k>,
        words: &Lanes<'k, u32>,
        (there, lanes): (Pred<'k>, u32),
    ) {
        let to = k.dynamic_shared::<u8>().at(at * self.dtype.bytes() as u32).cast::<u32>();
        let first = k.lane_idx() & (lanes - 1);
        let blocks = self.cluster();
        for i in 0..blocks.div_ceil(lanes) {
            let rank = first + i * lanes;
            let mine = if blocks < lanes { there & rank.lt(blocks) } else { there };
            k.if_(mine, || {
                // What no instruction stores at once goes word by word.
                let all_at_once = words.len().is_power_of_two();
                let (parts, width) = if all_at_once { (1, words.len()) } else { (words.len(), 1) };
                for part in 0..parts {
                    let words = words.iter().skip(part * width).take(width).collect();
                    let to = to.at(part as u64);
                    if blocks == 1 {
                        to.store(words);
                    } else {
                        to.send(rank, &words, self.arrivals(k).at(slot.turn));
                    }
                }
            });
        }
    }

    /// The tile of the warp: slices whose elements lie as a lane reads them, eight of two slices at once.
    pub(super) fn cluster_tile<'k, F>(&self, k: K<'k>, matrix: &Matrix<'k, F>) -> Weights<'k>
    where
        F: Fn(U32<'k>, U32<'k>) -> U64<'k>,
    {
        let (group, quad) = (k.lane_idx() >> 2, k.lane_idx() & 3);
        let (part, tile) = self.part(k);
        let first = part * (self.slices_of_part() * ATOM.1) + quad * OCTET;
        let of_slice = |slice: u32| {
            let word = |down: u32, right: u32| -> U32<'k> {
                let row = tile * ATOM.0 + group + down;
                let there = row.lt(self.rows);
                let depth = first + (slice / 2 * SLICES + slice % 2 * 4 + right);
                matrix.word(row, depth, there)
            };
            let registers = [word(0, 0), word(8, 0), word(0, 2), word(8, 2)];
            Fragment::a(k, self.atom(), &registers)
        };
        Weights::Tensor(vec![(0..self.slices_of_part()).map(of_slice).collect()])
    }

    /// Waits for the vectors and multiplies them.
    pub(super) fn multiply_cluster<'k>(
        &self,
        k: K<'k>,
        slot: Slot<'k>,
        weights: &Weights<'k>,
        mut emit: impl FnMut(Partial<'k>),
    ) {
        self.wait(k, slot);
        let memory = k.dynamic_shared::<u8>().at(slot.turn * self.buffer_bytes());
        match weights {
            Weights::Tensor(tiles) => self.multiply_tile(k, memory, &tiles[0], emit),
            Weights::Packed(..) => {}
            Weights::Single(quads) => {
                let Some(shape) = self.shape() else { return };
                let columns = self.columns_of_warp();
                let first = k.warp_idx() * columns + k.lane_idx() % shape.parts * staged::QUAD;
                let from = memory.cast::<f32>().at(first);
                staged::multiply_quads(k, from, shape, [self.columns(), self.depth], quads, &mut emit);
            }
        }
    }

    fn multiply_tile<'k>(
        &self,
        k: K<'k>,
        memory: Ptr<'k, Shared, u8>,
        slices: &[Fragment<'k, MatrixA>],
        mut emit: impl FnMut(Partial<'k>),
    ) {
        let (group, quad) = (k.lane_idx() >> 2, k.lane_idx() & 3);
        let (part, tile) = self.part(k);
        let first = group * self.vector_pitch() + part * (self.slices_of_part() * ATOM.1) + quad * OCTET;
        let from = memory.at(first * 2);
        let there = (self.tiles() < WARPS / self.parts()).then(|| tile.lt(self.tiles()));
        for column in (0..self.columns()).step_by(ATOM.2 as usize) {
            // Two sums, so that a product need not wait for the one before.
            let mut sums = [(); 2].map(|()| Accumulator::<f32>::zero(k, self.atom()));
            for (pair, slices) in (0..).zip(slices.chunks(2)) {
                let at = (column * self.vector_pitch() + pair * SLICES) * 2;
                let state = from.at(u64::from(at)).cast::<u32>().load::<u32>(4);
                for (i, (sum, slice)) in sums.iter_mut().zip(slices).enumerate() {
                    let state = Fragment::b(k, self.atom(), &[state[2 * i], state[2 * i + 1]]);
                    *sum = sum.mma(slice, &state);
                }
            }
            let [even, odd] = &sums;
            for (((down, right), a), b) in even.offsets().zip(even.lanes().iter()).zip(odd.lanes().iter()) {
                let batch = quad * 2 + (column + right);
                emit(Partial { batch, row: tile * ATOM.0 + group + down, sum: a + b, there });
            }
        }
    }
}
