//! The exchange through distributed shared memory: the blocks of a cluster keep all recurrent weights, and take a few sequences
//! through all steps.
//!
//! A block sends what a step gives it to the shared memory of every block of the cluster, where an mbarrier counts the bytes:
//! when those of all units are there, the next step begins. That is one trip between multiprocessors, and waits for nothing
//! that goes to memory meanwhile, as a barrier of the cluster would. Clusters have nothing to do with each other, so there may be
//! any number of them. On tensor cores a warp has 16 rows, or a part of the common dimension of theirs if the block has few.

use warpwright_dsl::Mbarriers;
use warpwright_dsl::prelude::*;
use warpwright_ptx::Target;
use warpwright_ptx::isa::DeviceLimits;
use warpwright_runtime::LaunchStep;

use super::{Exchange, Memory, Publishers, Reads, Slot, Vector, Weights, interleaved};
use crate::PlanError;
use crate::recurrent::persistent::gemm::{
    ATOM, Collector, OCTET, Partial, QUAD, SLICES, Shape, StepGemm, SumLayout, Sums, THREADS, WARPS,
    multiply_quads,
};
use crate::recurrent::persistent::weights::{MOST_WEIGHTS, Matrix};
use crate::recurrent::plan::Place;

/// Bytes that the banks of shared memory have together.
const BANKS: u32 = 128;
/// Most blocks of a cluster on the chips with full multiprocessors.
const MOST_BLOCKS: u32 = DeviceLimits::CLUSTER_BLOCKS;

/// The units that multiply.
#[derive(Clone, Copy, Debug)]
enum Math {
    /// Tensor cores, in 16 bits.
    Mma(MmaAtom),
    /// The ordinary units, in `f32`.
    Fma(Shape),
}

/// The exchange through distributed shared memory.
#[derive(Clone, Copy, Debug)]
pub(in crate::recurrent) struct Dsmem {
    gemm: StepGemm,
    math: Math,
}

impl Dsmem {
    /// That of a product, of which factors are never rounded, if its sizes allow it.
    pub(in crate::recurrent) fn of(gemm: StepGemm) -> Option<Self> {
        let blocks = gemm.hidden / gemm.units;
        let sizes = blocks.is_power_of_two() && blocks <= MOST_BLOCKS && gemm.batch.is_power_of_two();
        if !sizes || !gemm.depth.is_multiple_of(WARPS) {
            return None;
        }
        let math = match gemm.atom() {
            Some(atom) => Math::Mma(atom),
            None => Math::Fma(gemm.shape()?),
        };
        let dsmem = Self { gemm, math };
        let whole = match math {
            Math::Mma(_) => gemm.depth.is_multiple_of(SLICES * dsmem.parts()) && gemm.tiles() <= WARPS,
            Math::Fma(_) => true,
        };
        whole.then_some(dsmem)
    }

    /// Whether a cluster of `target` takes it.
    pub(in crate::recurrent) fn fits(&self, target: Target) -> bool {
        // Clusters of later chips have fewer blocks.
        let large = matches!(target.sm, 90..=100);
        let room = DeviceLimits::of(target).shared_per_block;
        large && self.weights() <= MOST_WEIGHTS && self.memory().shared_bytes <= room
    }

    /// Registers of a thread that weights take.
    pub(in crate::recurrent) fn weights(&self) -> u32 {
        match self.math {
            Math::Mma(_) => 4 * self.slices_of_part(),
            Math::Fma(_) => self.gemm.fma_weights(),
        }
    }

    /// Batches in whole products, or in whole groups.
    const fn columns(&self) -> u32 {
        self.gemm.batch.next_multiple_of(match self.math {
            Math::Mma(_) => ATOM.2,
            Math::Fma(shape) => shape.together,
        })
    }

    /// Warps that have the rows of a tile, or all rows in `f32`: each has a part of the common dimension.
    fn parts(&self) -> u32 {
        match self.math {
            Math::Mma(_) => (WARPS / self.gemm.tiles().next_power_of_two()).max(1),
            Math::Fma(_) => WARPS,
        }
    }

    /// On tensor cores, the part of the common dimension that the warp has, and its tile.
    fn part<'k>(&self, k: K<'k>) -> [U32<'k>; 2] {
        let tiles = WARPS / self.parts();
        [k.warp_idx() / tiles, k.warp_idx() % tiles]
    }

    /// Slices of 16 elements of a part.
    fn slices_of_part(&self) -> u32 {
        self.gemm.depth / (ATOM.1 * self.parts())
    }

    fn sums(&self) -> SumLayout {
        SumLayout { parts: self.parts(), ..SumLayout::by_warps(&self.gemm, self.columns()) }
    }

    /// Elements between vectors: lanes that read eight elements of 16 bits of two vectors meet no bank twice.
    const fn vector_pitch(&self) -> u32 {
        let depth = self.gemm.depth;
        match self.math {
            Math::Mma(_) if (depth * 2).is_multiple_of(BANKS) => depth + BANKS / 4,
            _ => depth,
        }
    }

    /// Bytes of one of the two buffers.
    const fn buffer_bytes(&self) -> u32 {
        self.columns() * self.vector_pitch() * self.gemm.element_bytes()
    }

    /// Bytes of both.
    const fn buffers_bytes(&self) -> u32 {
        2 * self.buffer_bytes()
    }

    /// The barriers of the buffers.
    fn arrivals<'k>(&self, k: K<'k>) -> Mbarriers<'k> {
        let first = (self.buffers_bytes() + 2 * self.sums().floats() * 4) / 8;
        k.mbarriers_at(k.dynamic_shared::<u64>().at(u64::from(first)))
    }

    /// Waits for what all have of the step.
    fn wait<'k>(&self, k: K<'k>, slot: Slot<'k>) {
        if self.cluster() == 1 {
            return;
        }
        let all = self.arrivals(k).at(slot.turn);
        let bytes = self.gemm.batch * self.gemm.depth * self.gemm.element_bytes();
        k.if_(k.thread_idx().eq(0), || all.arrive_expecting(bytes));
        // Each of the two is waited for in every other step.
        all.wait((slot.mark >> 1) & 1);
    }

    /// Whether the parts of a vector, which are those of all units each, lie one behind the other: elements of 16 bits of a unit
    /// that fill no words.
    fn is_apart(&self) -> bool {
        self.gemm.is_half() && !(self.gemm.depth / self.gemm.hidden).is_multiple_of(2)
    }

    /// Sends words to element `at` of all blocks; `lanes` neighbouring lanes have the same.
    fn send<'k>(
        &self,
        k: K<'k>,
        slot: Slot<'k>,
        at: U32<'k>,
        words: &Lanes<'k, u32>,
        (there, lanes): Publishers<'k>,
    ) {
        let to = k.dynamic_shared::<u8>().at(at * self.gemm.element_bytes()).cast::<u32>();
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

    /// Waits for the vectors of step `step`, multiplies those in shared memory with `multiply` and adds what the warps have.
    fn collect<'k>(
        &self,
        (memory, step): (Ptr<'k, ReadWrite, u64>, U32<'k>),
        part: impl FnOnce(K<'k>) -> U32<'k>,
        multiply: impl FnOnce(K<'k>, Ptr<'k, Shared, u8>, &Collector<'k>),
    ) -> Sums<'k> {
        let k = step.k();
        let slot = self.slot(memory, step);
        let to = k.dynamic_shared::<f32>().at(slot.turn * self.sums().floats());
        let to = to.at(u64::from(self.buffers_bytes() / 4));
        let collector = Collector::new(self.sums(), to, part(k));
        self.wait(k, slot);
        multiply(k, k.dynamic_shared::<u8>().at(slot.turn * self.buffer_bytes()), &collector);
        collector.total(None)
    }
}

impl Exchange for Dsmem {
    fn gemm(&self) -> &StepGemm {
        &self.gemm
    }

    /// The buffers, the sums of two steps, and the barriers of the buffers.
    fn memory(&self) -> Memory {
        let shared_bytes = self.buffers_bytes() + 2 * self.sums().floats() * 4 + 2 * 8;
        Memory { words: 0, zeroed: 0, shared_bytes }
    }

    fn slot<'k>(&self, memory: Ptr<'k, ReadWrite, u64>, step: U32<'k>) -> Slot<'k> {
        Slot { words: memory, mark: step, turn: step & 1 }
    }

    fn row_of<'k>(&self, depth: U32<'k>) -> U32<'k> {
        if self.is_apart() { depth } else { interleaved(&self.gemm, depth) }
    }

    /// Neighbouring lanes have a unit, and those behind them the next; all of them have the values, and share the blocks out.
    fn publish<'k>(
        &self,
        slot: Slot<'k>,
        (batch, unit): (U32<'k>, U32<'k>),
        values: &[F32<'k>],
        (there, lanes): Publishers<'k>,
    ) {
        let (k, dtype) = (batch.k(), self.gemm.dtype);
        let vector = (slot.turn * self.columns() + batch) * self.vector_pitch();
        if !self.is_apart() {
            let words: Lanes<'k, u32> = if self.gemm.is_half() {
                values.chunks(2).map(|pair| pair[0].pack_with(pair[1], dtype)).collect()
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
            let word = even.select(*value, other).pack_with(even.select(other, *value), dtype);
            let at = vector + (unit & !1) + part * self.gemm.hidden;
            self.send(k, slot, at, &word.into(), (there, 2 * lanes));
        }
    }

    /// Everything that the block has has been sent. In a block that is alone, it is there now.
    fn commit<'k>(&self, k: K<'k>, _: Ptr<'k, ReadWrite, u64>, _: U32<'k>) {
        if self.cluster() == 1 {
            k.barrier();
        }
    }

    fn load<'k>(&self, k: K<'k>, matrix: &Matrix<'k, '_>) -> Box<dyn Weights<'k> + 'k> {
        match self.math {
            Math::Mma(atom) => Box::new(Slices::load(*self, atom, k, matrix)),
            Math::Fma(shape) => {
                Box::new(Quads { dsmem: *self, shape, quads: matrix.quads(k, &self.gemm, shape) })
            }
        }
    }

    /// Makes the vectors that no sequence has zero, and waits until all blocks of the cluster have begun.
    fn begin(&self, k: K<'_>) {
        let word = self.vector_pitch() * self.gemm.element_bytes() / 4;
        let (first, words) = (self.gemm.batch * word, (self.columns() - self.gemm.batch) * word);
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

    /// Waits for what is sent to a block behind the last step: until then it must not end.
    fn end<'k>(&self, k: K<'k>, memory: Ptr<'k, ReadWrite, u64>, step: U32<'k>) {
        self.wait(k, self.slot(memory, step));
    }

    fn reads(&self) -> Reads {
        Reads::Ahead
    }

    fn shares_publishing(&self) -> bool {
        true
    }

    fn cluster(&self) -> u32 {
        self.gemm.hidden / self.gemm.units
    }

    fn is_cooperative(&self) -> bool {
        false
    }

    fn blocks(&self, batch: u32) -> u32 {
        self.cluster() * batch.div_ceil(self.gemm.batch)
    }

    fn first_unit<'k>(&self, k: K<'k>) -> U32<'k> {
        k.cluster_rank() * self.gemm.units
    }

    fn vector<'k>(&self, at: U32<'k>, batch: u32) -> Vector<'k> {
        let held = at.lt(self.gemm.batch);
        let of_all = at.k().cluster_idx_x() * self.gemm.batch + at;
        Vector { at, held, batch: of_all, there: held & of_all.lt(batch) }
    }

    fn prepare(
        &self,
        _: &'static str,
        _: Target,
        _: Place,
        _: (Place, bool),
    ) -> Result<Option<LaunchStep>, PlanError> {
        Ok(None)
    }
}

/// The slices of the warp's part of its tile.
struct Slices<'k> {
    dsmem: Dsmem,
    atom: MmaAtom,
    slices: Vec<Fragment<'k, MatrixA>>,
}

impl<'k> Slices<'k> {
    /// Slices whose elements lie as a lane reads them, eight of two slices at once.
    fn load(dsmem: Dsmem, atom: MmaAtom, k: K<'k>, matrix: &Matrix<'k, '_>) -> Self {
        let (group, quad) = (k.lane_idx() >> 2, k.lane_idx() & 3);
        let [part, tile] = dsmem.part(k);
        let first = part * (dsmem.slices_of_part() * ATOM.1) + quad * OCTET;
        let of_slice = |slice: u32| {
            let word = |down: u32, right: u32| -> U32<'k> {
                let row = tile * ATOM.0 + group + down;
                let there = row.lt(dsmem.gemm.rows);
                let depth = first + (slice / 2 * SLICES + slice % 2 * 4 + right);
                matrix.word(row, depth, there)
            };
            let registers = [word(0, 0), word(8, 0), word(0, 2), word(8, 2)];
            Fragment::a(k, atom, &registers)
        };
        Self { dsmem, atom, slices: (0..dsmem.slices_of_part()).map(of_slice).collect() }
    }

    fn multiply_tile(&self, k: K<'k>, vectors: Ptr<'k, Shared, u8>, collector: &Collector<'k>) {
        let dsmem = &self.dsmem;
        let (pitch, tiles) = (dsmem.vector_pitch(), dsmem.gemm.tiles());
        let (group, quad) = (k.lane_idx() >> 2, k.lane_idx() & 3);
        let [part, tile] = dsmem.part(k);
        let first = group * pitch + part * (dsmem.slices_of_part() * ATOM.1) + quad * OCTET;
        let from = vectors.at(first * 2);
        let there = (tiles < WARPS / dsmem.parts()).then(|| tile.lt(tiles));
        for column in (0..dsmem.columns()).step_by(ATOM.2 as usize) {
            // Two sums, so that a product need not wait for the one before.
            let mut sums = [(); 2].map(|()| Accumulator::<f32>::zero(k, self.atom));
            for (pair, slices) in (0..).zip(self.slices.chunks(2)) {
                let at = (column * pitch + pair * SLICES) * 2;
                let state = from.at(u64::from(at)).cast::<u32>().load::<u32>(4);
                for (i, (sum, slice)) in sums.iter_mut().zip(slices).enumerate() {
                    let state = Fragment::b(k, self.atom, &[state[2 * i], state[2 * i + 1]]);
                    *sum = sum.mma(slice, &state);
                }
            }
            let [even, odd] = &sums;
            for (((down, right), a), b) in even.offsets().zip(even.lanes().iter()).zip(odd.lanes().iter()) {
                let batch = quad * 2 + (column + right);
                collector.put(Partial { batch, row: tile * ATOM.0 + group + down, sum: a + b, there });
            }
        }
    }
}

impl<'k> Weights<'k> for Slices<'k> {
    fn multiply(&self, memory: Ptr<'k, ReadWrite, u64>, step: U32<'k>) -> Sums<'k> {
        let part = |k| self.dsmem.part(k)[0];
        self.dsmem.collect((memory, step), part, |k, vectors, collector| {
            self.multiply_tile(k, vectors, collector);
        })
    }
}

/// Weights in `f32`, by neighbours and rows.
struct Quads<'k> {
    dsmem: Dsmem,
    shape: Shape,
    quads: Vec<Vec<Lanes<'k, f32>>>,
}

impl<'k> Weights<'k> for Quads<'k> {
    fn multiply(&self, memory: Ptr<'k, ReadWrite, u64>, step: U32<'k>) -> Sums<'k> {
        let Self { dsmem, shape, quads } = self;
        dsmem.collect(
            (memory, step),
            |k| k.warp_idx(),
            |k, vectors, collector| {
                let columns = dsmem.gemm.columns_of_warp();
                let first = k.warp_idx() * columns + k.lane_idx() % shape.parts * QUAD;
                let from = vectors.cast::<f32>().at(first);
                let sizes = [dsmem.columns(), dsmem.gemm.depth];
                multiply_quads(k, from, *shape, sizes, quads, |partial| collector.put(partial));
            },
        )
    }
}
