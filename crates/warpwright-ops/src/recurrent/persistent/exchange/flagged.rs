//! The flagged exchange, for vectors that do not fit the registers of a block: they pass through shared memory, a few at a time.
//!
//! The blocks leave the elements of a step as they are in device memory and then raise a flag, the number of the step; a warp waits
//! for the flags of the blocks whose units are in its part of the common dimension, and copies that part, a group of vectors
//! after the other, to shared memory that only it uses. That is a trip through the L2 cache more than LL takes, and half the bytes.

mod copies;

use warpwright_dsl::prelude::*;
use warpwright_ptx::isa::DeviceLimits;
use warpwright_ptx::{Address, Ordering, ScalarType, Scope, Semantics};

use self::copies::{Copies, Destination};
use super::{Exchange, Memory, Publishers, Reads, Slot, Weights, alternating, load_global, store_global};
use crate::recurrent::persistent::gemm::{
    ATOM, Collector, Partial, QUAD, Shape, StepGemm, SumLayout, Sums, WARPS, multiply_quads,
};
use crate::recurrent::persistent::weights::{MOST_WEIGHTS, Matrix, Residence, Tiles};

/// Words of flags in front of the buffers: room for 256.
const FLAGS: u32 = 128;
/// Bytes of a copy.
const PIECE: u32 = 16;
/// Bytes of shared memory of a stage of all warps, and of all stages.
const STAGE_BYTES: u32 = 32 << 10;
const STAGES_BYTES: u32 = 128 << 10;
/// Vectors of a stage at most; those for tensor cores have so many, or twice as many if each reads weights again.
const MOST_ROWS: u32 = 16;

/// The units that multiply.
#[derive(Clone, Copy, Debug)]
enum Math {
    /// Tensor cores, with weights in fragments.
    Mma(MmaAtom, Residence),
    /// The ordinary units, in `f32`.
    Fma(Shape),
}

/// The piece of vectors that a warp copies to shared memory at once: some vectors, and the columns of its part or some of them.
#[derive(Clone, Copy, Debug)]
struct Staging {
    /// Vectors.
    rows: u32,
    columns: u32,
    /// Parts of the columns of a warp.
    chunks: u32,
    /// Whether the sums of a warp lie where its stages are: it has all of them when the last stage has been read.
    shares: bool,
    /// Stages of a warp.
    stages: Stages,
}

/// The flagged exchange.
#[derive(Clone, Copy, Debug)]
pub(in crate::recurrent) struct Flagged {
    gemm: StepGemm,
    math: Math,
    staging: Staging,
}

impl Math {
    fn of(gemm: &StepGemm) -> Option<Self> {
        let of_warp = |atom: MmaAtom| (gemm.depth / atom.k()).div_ceil(WARPS);
        match gemm.atom() {
            Some(atom) => Some(Self::Mma(atom, Residence::of(gemm, of_warp(atom)))),
            None => gemm.shape().map(Self::Fma),
        }
    }

    const fn stored_bytes(&self) -> u32 {
        match self {
            Self::Mma(_, residence) => residence.bytes(),
            Self::Fma(_) => 0,
        }
    }
}

impl Staging {
    /// That of a product, if the sizes allow it.
    fn of(gemm: &StepGemm, math: &Math) -> Option<Self> {
        let columns = gemm.columns_of_warp();
        let (rows, of_stage, bytes) = match math {
            Math::Mma(atom, residence) => {
                let slice = atom.k();
                if !columns.is_multiple_of(slice) {
                    return None;
                }
                let rows =
                    if residence.stores() && gemm.batch > MOST_ROWS { 2 * MOST_ROWS } else { MOST_ROWS };
                let most = STAGE_BYTES / (WARPS * rows * slice * gemm.element_bytes());
                let slices = columns / slice;
                let of_stage = (1..=most).rev().find(|n| slices.is_multiple_of(*n))? * slice;
                (rows, of_stage, TileLayout::new(gemm.dtype, rows, of_stage).bytes())
            }
            Math::Fma(shape) => {
                let most = STAGE_BYTES / (WARPS * columns * 4);
                let all = gemm.batch.next_power_of_two().min(MOST_ROWS);
                let rows = all.min(1 << most.max(1).ilog2()).max(shape.together);
                (rows, columns, rows * columns * 4)
            }
        };
        let (groups, chunks) = (gemm.batch.div_ceil(rows), columns / of_stage);
        let stored = math.stored_bytes();
        let shares = stored > 0 && groups == 1;
        let sums = if shares { 0 } else { WARPS * groups * rows * gemm.pitch() * 4 };
        // A kernel is laid out for the largest device; tuning asks whether the target's has the room.
        let room = DeviceLimits::GREATEST_SHARED_PER_BLOCK.checked_sub(stored)?.checked_sub(sums)?;
        let count = (room.min(STAGES_BYTES) / (WARPS * bytes)).clamp(1, groups * chunks);
        Some(Self { rows, columns: of_stage, chunks, shares, stages: Stages { count, bytes } })
    }
}

impl Flagged {
    /// That of a product, if the sizes allow it.
    pub(in crate::recurrent) fn of(gemm: StepGemm) -> Option<Self> {
        let whole = gemm.depth.is_multiple_of(WARPS) && gemm.hidden.is_multiple_of(WARPS);
        if !whole || gemm.columns_of_warp() == 0 {
            return None;
        }
        let math = Math::of(&gemm)?;
        let staging = Staging::of(&gemm, &math)?;
        Some(Self { gemm, math, staging })
    }

    /// Whether the weights fit the registers.
    pub(in crate::recurrent) fn fits_registers(&self) -> bool {
        let registers = match self.math {
            Math::Mma(_, residence) => residence.registers(),
            Math::Fma(_) => self.gemm.fma_weights(),
        };
        registers <= MOST_WEIGHTS
    }

    /// Whether tensor cores multiply.
    pub(in crate::recurrent) const fn is_mma(&self) -> bool {
        matches!(self.math, Math::Mma(..))
    }

    /// Batches in whole groups.
    fn columns(&self) -> u32 {
        self.gemm.batch.next_multiple_of(self.staging.rows)
    }

    /// The layout of the sums; parts lie apart as the stages do if they share their memory.
    fn sums(&self) -> SumLayout {
        let layout = SumLayout::by_warps(&self.gemm, self.columns());
        let least = if self.staging.shares { self.staging.stages.total_bytes() / 4 } else { 0 };
        SumLayout { of_part: layout.of_part.max(least), ..layout }
    }

    /// Words of a buffer.
    const fn buffer(&self) -> u32 {
        (self.gemm.batch * self.gemm.depth * self.gemm.element_bytes()).div_ceil(8)
    }

    /// Waits until the blocks that have the units of the warp's columns have raised their flags for `slot`.
    fn wait_for_blocks<'k>(&self, k: K<'k>, memory: Ptr<'k, ReadWrite, u64>, slot: Slot<'k>) {
        let of_warp = self.gemm.hidden / WARPS;
        let first = k.warp_idx() * of_warp / self.gemm.units;
        let last = (k.warp_idx() * of_warp + (of_warp - 1)) / self.gemm.units;
        let flag = memory.cast::<u32>().at((first + k.lane_idx()).min(last));
        k.until(|| {
            let acquire = Ordering::new(Semantics::Acquire, Scope::Gpu);
            let now = load_global::<u32>(k, acquire, flag.operand(), 1)[0];
            // A block may be a step ahead.
            !(now - slot.mark).to_i32().lt(0).vote_any()
        });
        meet(k);
    }

    /// Waits for the vectors of step `step` and copies them to shared memory, a group after the other: `multiply` takes each stage and
    /// keeps the sums of a group, with which `finish` ends it.
    fn for_groups<'k, D: Destination<'k>, S: Default>(
        &self,
        (memory, step): (Ptr<'k, ReadWrite, u64>, U32<'k>),
        destination: impl FnOnce(U32<'k>, [U32<'k>; 2]) -> D,
        multiply: impl Fn(&D, Stage<'k>, &mut S, &Collector<'k>),
        finish: impl Fn(U32<'k>, S, &Collector<'k>),
    ) -> Sums<'k> {
        let (k, Staging { rows, chunks, stages, shares, .. }) = (step.k(), self.staging);
        let slot = self.slot(memory, step);
        let to = k.dynamic_shared::<f32>().at(u64::from(self.math.stored_bytes() / 4));
        let collector = Collector::new(self.sums(), to, k.warp_idx());
        let copies = Copies::new(k, self, slot, destination);
        self.wait_for_blocks(k, memory, slot);
        for i in 0..stages.count {
            copies.start(k.lit(i / chunks), i % chunks, k.lit(i * stages.bytes), None);
            k.commit_copies();
        }
        let groups = self.columns() / rows;
        let refill = groups * chunks > stages.count;
        let _ = k.fold(k.range(0, groups, 1), k.lit(0u32), |group, mut read| {
            let mut sums = S::default();
            for chunk in 0..chunks {
                k.wait_copies(stages.count - 1);
                meet(k);
                multiply(&copies.to, Stage { at: read, group, chunk }, &mut sums, &collector);
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
            finish(group, sums, &collector);
            read
        });
        collector.total(None)
    }
}

impl Exchange for Flagged {
    fn gemm(&self) -> &StepGemm {
        &self.gemm
    }

    fn memory(&self) -> Memory {
        let Staging { shares, stages, .. } = self.staging;
        let of_stages = if shares { 0 } else { WARPS * stages.total_bytes() };
        let shared_bytes = self.math.stored_bytes() + self.sums().floats() * 4 + of_stages;
        Memory { words: FLAGS + 2 * self.buffer(), zeroed: FLAGS, shared_bytes }
    }

    fn slot<'k>(&self, memory: Ptr<'k, ReadWrite, u64>, step: U32<'k>) -> Slot<'k> {
        alternating(memory, step, (FLAGS, self.buffer()))
    }

    fn publish<'k>(
        &self,
        slot: Slot<'k>,
        (batch, unit): (U32<'k>, U32<'k>),
        values: &[F32<'k>],
        (there, neighbour): Publishers<'k>,
    ) {
        let (k, gemm) = (batch.k(), &self.gemm);
        let at = batch * gemm.depth + unit * values.len() as u32;
        let words = slot.words.cast::<u32>();
        if !gemm.is_half() {
            let to = slot.words.cast::<f32>().at(at.to_u64());
            // Rounded once, and not by all who read them.
            let left = |value: &F32<'k>| if gemm.rounds { F32::from_bits(value.to_tf32()) } else { *value };
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
                let word = value.pack_with(value.shfl_down(neighbour), gemm.dtype);
                k.if_(there & (unit & 1).eq(0), || words.at(half).set(word));
            }
            [a, b, c, d] => {
                let both = Lanes::from(vec![a.pack_with(*b, gemm.dtype), c.pack_with(*d, gemm.dtype)]);
                k.if_(there, || words.at(half).store(both));
            }
            _ => k.if_(there, || {
                let to = slot.words.cast::<u16>().at(at.to_u64());
                let bits = values.iter().map(|value| value.pack_with(*value, gemm.dtype) & 0xffff);
                bits.enumerate().for_each(|(i, bits)| to.at(i as u64).set(bits));
            }),
        }
    }

    /// Raises the flag of the block.
    fn commit<'k>(&self, k: K<'k>, memory: Ptr<'k, ReadWrite, u64>, step: U32<'k>) {
        k.barrier();
        k.if_(k.thread_idx().eq(0), || {
            let flag = (step + 1).as_operand();
            let to = memory.cast::<u32>().at(k.block_idx_x()).operand();
            let release = Ordering::new(Semantics::Release, Scope::Gpu);
            store_global(k, ScalarType::U32, release, to, vec![flag]);
        });
    }

    fn load<'k>(&self, k: K<'k>, matrix: &Matrix<'k, '_>) -> Box<dyn Weights<'k> + 'k> {
        let (flagged, gemm) = (*self, &self.gemm);
        match self.math {
            Math::Mma(atom, residence) => {
                let of_warp = residence.fragments();
                let group = k.lane_idx() >> 2;
                let of_slice = |tile: u32, slice: u32| {
                    let (first, quad) = (k.warp_idx() * of_warp, k.lane_idx() & 3);
                    let depth = (first + slice) * atom.k() + quad * gemm.of_register();
                    matrix.fragment(k, (gemm, atom), (group, tile), (depth, atom.k() / 2))
                };
                let tiles = residence.share_out(k, of_slice);
                Box::new(Fragments { flagged, atom, residence, tiles })
            }
            Math::Fma(shape) => Box::new(Quads { flagged, shape, quads: matrix.quads(k, gemm, shape) }),
        }
    }

    fn reads(&self) -> Reads {
        if self.is_mma() { Reads::Behind } else { Reads::Before }
    }
}

/// The lanes of a warp meet: what one has written, or what was copied for it, is there for all.
fn meet(k: K<'_>) {
    k.warp_barrier();
}

/// A stage that has come: where it is behind the first, and the group of vectors and the chunk of their columns that it holds.
#[derive(Clone, Copy)]
struct Stage<'k> {
    at: U32<'k>,
    group: U32<'k>,
    chunk: u32,
}

/// Stages for tensor cores: where the lane copies to, and the fragments that it reads.
struct TileStages<'k> {
    to: TilePoint<'k>,
    reader: TileReader<'k, MatrixB>,
}

impl<'k> Destination<'k> for TileStages<'k> {
    fn address(&self, stage: U32<'k>, down: u32, right: u32) -> Address {
        self.to.moved(stage).at(down, right).operand()
    }
}

/// Weights in fragments.
struct Fragments<'k> {
    flagged: Flagged,
    atom: MmaAtom,
    residence: Residence,
    tiles: Tiles<'k>,
}

/// The sums of a tile of rows with eight vectors each.
type TileSums<'k> = Vec<Accumulator<'k, f32>>;

impl<'k> Weights<'k> for Fragments<'k> {
    fn multiply(&self, memory: Ptr<'k, ReadWrite, u64>, step: U32<'k>) -> Sums<'k> {
        let (k, Flagged { gemm, staging, .. }) = (step.k(), self.flagged);
        let stages = |start: U32<'k>, [row, piece]: [U32<'k>; 2]| {
            let layout = TileLayout::new(gemm.dtype, staging.rows, staging.columns);
            let tile = k.tile_at(k.dynamic_shared_elem(gemm.dtype).at(start), layout);
            let reader = tile.reader_b(self.atom, Major::K, k.lit(0u32));
            TileStages { to: tile.point(row, piece * (PIECE / gemm.element_bytes())), reader }
        };
        let finish = |group: U32<'k>, sums: TileSums<'k>, collector: &Collector<'k>| {
            let (row, quad) = (k.lane_idx() >> 2, k.lane_idx() & 3);
            let across = staging.rows / ATOM.2;
            for (i, sum) in (0..).zip(&sums) {
                collector.put_tile(sum, |down, right| {
                    let batch = group * staging.rows + quad * 2 + (i % across * ATOM.2 + right);
                    (batch, row + (i / across * ATOM.0 + down))
                });
            }
        };
        let multiply = |stages: &TileStages<'k>, stage: Stage<'k>, sums: &mut TileSums<'k>, _: &_| {
            self.multiply_tiles(stages, stage, sums);
        };
        self.flagged.for_groups((memory, step), stages, multiply, finish)
    }
}

impl<'k> Fragments<'k> {
    fn multiply_tiles(&self, stages: &TileStages<'k>, stage: Stage<'k>, sums: &mut TileSums<'k>) {
        let (k, Flagged { gemm, staging, .. }) = (stage.at.k(), self.flagged);
        let reader = stages.reader.moved(stage.at);
        let across = (staging.rows / ATOM.2) as usize;
        if sums.is_empty() {
            *sums = vec![Accumulator::zero(k, self.atom); across * gemm.tiles() as usize];
        }
        let slices = staging.columns / self.atom.k();
        for slice in 0..slices {
            let pairs = (0..staging.rows).step_by(2 * ATOM.2 as usize);
            let state: Vec<_> = pairs.flat_map(|row| reader.load_pair(row, slice * self.atom.k())).collect();
            let at = stage.chunk * slices + slice;
            for ((i, sums), kept) in (0..).zip(sums.chunks_mut(across)).zip(&self.tiles) {
                let weights = self.residence.get(k, self.atom, (i, kept), at);
                for (sum, state) in sums.iter_mut().zip(&state) {
                    *sum = sum.mma(&weights, state);
                }
            }
        }
    }
}

/// Stages in rows: where the lane copies to, and the first of its columns.
struct RowStages<'k> {
    to: Ptr<'k, Shared, f32>,
    from: Ptr<'k, Shared, f32>,
    /// Elements of a row.
    columns: u32,
}

impl<'k> Destination<'k> for RowStages<'k> {
    fn address(&self, stage: U32<'k>, down: u32, right: u32) -> Address {
        self.to.at(stage >> 2).at(u64::from(down * self.columns + right)).operand()
    }
}

/// Weights in `f32`, by neighbours and rows.
struct Quads<'k> {
    flagged: Flagged,
    shape: Shape,
    quads: Vec<Vec<Lanes<'k, f32>>>,
}

impl<'k> Weights<'k> for Quads<'k> {
    fn multiply(&self, memory: Ptr<'k, ReadWrite, u64>, step: U32<'k>) -> Sums<'k> {
        let (k, Staging { rows, columns, .. }) = (step.k(), self.flagged.staging);
        let stages = |start: U32<'k>, [row, piece]: [U32<'k>; 2]| {
            let all = k.dynamic_shared::<f32>().at(start);
            let to = all.at(row * columns + piece * QUAD);
            RowStages { to, from: all.at(k.lane_idx() % self.shape.parts * QUAD), columns }
        };
        let multiply = |stages: &RowStages<'k>, stage: Stage<'k>, _: &mut (), collector: &Collector<'k>| {
            let from = stages.from.at(stage.at >> 2);
            multiply_quads(k, from, self.shape, [rows, columns], &self.quads, |partial| {
                collector.put(Partial { batch: stage.group * rows + partial.batch, ..partial });
            });
        };
        self.flagged.for_groups((memory, step), stages, multiply, |_, (), _| {})
    }
}
