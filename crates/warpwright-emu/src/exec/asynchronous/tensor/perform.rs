//! Products and copies as they are performed.

use warpwright_ptx::{Tcgen05CopyShape, Tcgen05Multicast};

use super::super::queue::Work;
use super::super::reach::Spot;
use super::super::{Issuer, State};
use super::instruction::{Instruction, Stored};
use super::scaled::{self, Scaling};
use crate::block::SharedMemory;
use crate::code::matrix::{Accumulator, Major};
use crate::context::Context;
use crate::exec::matrix::{Descriptor, Factor, Factors, Sums, multiply};
use crate::tensor_memory::{Area, Cell, LANES, TensorMemory};

/// An operation of `tcgen05` that was issued.
pub(in crate::exec::asynchronous) enum TensorWork {
    Product(Box<Multiplying>),
    Copy(Copying),
    /// Arrivals at mbarriers.
    Commit(Vec<Spot>),
}

/// A of a product.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    Shared(Descriptor),
    Tensor(Cell),
}

/// A product.
pub(in crate::exec::asynchronous) struct Multiplying {
    pub(super) instruction: Instruction,
    pub(super) d: Cell,
    pub(super) a: Source,
    pub(super) b: Descriptor,
    pub(super) accumulate: bool,
    /// Lanes that are not written, of each block.
    pub(super) disabled: [u128; 2],
    pub(super) scale_d: u8,
    pub(super) scaling: Option<Scaling>,
}

/// A copy from shared to tensor memory.
pub(in crate::exec::asynchronous) struct Copying {
    pub(super) pair: bool,
    pub(super) shape: Tcgen05CopyShape,
    pub(super) multicast: Option<Tcgen05Multicast>,
    pub(super) to: Cell,
    pub(super) from: Descriptor,
}

/// Chunks of a factor in shared memory: where each lies, with its row or first row and its place along k.
pub(super) fn chunks(
    descriptor: Descriptor,
    major: Major,
    stored: Stored,
    rows: u32,
) -> impl Iterator<Item = (u64, usize, usize)> {
    let per_chunk = u64::from(128 / stored.bits());
    let (outer, inner) = match major {
        Major::K => (u64::from(rows), 2),
        Major::Mn => (u64::from(rows).div_ceil(per_chunk), u64::from(256 / stored.bits())),
    };
    (0..outer).flat_map(move |o| {
        (0..inner).map(move |i| match major {
            Major::K => (descriptor.k_major(o, i), o as usize, i as usize),
            Major::Mn => (descriptor.mn_major(o, i), (o * per_chunk) as usize, i as usize),
        })
    })
}

/// A factor as shared memory holds it now; what lies outside reads as zero.
fn read_shared(
    shared: &SharedMemory,
    (descriptor, major, stored, rows): (Descriptor, Major, Stored, u32),
) -> Vec<Factor> {
    let mut out = vec![[0u8; 32]; rows as usize];
    for (address, row, i) in chunks(descriptor, major, stored, rows) {
        let mut chunk = [0; 16];
        shared.read(address, &mut chunk);
        match major {
            Major::K => out[row][16 * i..16 * i + 16].copy_from_slice(&stored.widened(chunk)),
            Major::Mn => {
                let bytes = stored.bits() as usize / 8;
                for (row, element) in out[row..].iter_mut().zip(chunk.chunks(bytes)) {
                    row[bytes * i..bytes * (i + 1)].copy_from_slice(element);
                }
            }
        }
    }
    out
}

/// How the rows of A and D of a block lie in its lanes (PTX ISA, "Data Path Layout Organization").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// 128 rows fill the lanes: layouts D and A.
    Full,
    /// Of 64 rows every 16 fill half of a quarter: layout F.
    Half,
    /// 64 rows fill lanes 0 to 63 with the first half of the columns of D, and the others with the second: layout B.
    Split,
}

impl Layout {
    /// The layout of a product.
    pub(super) const fn of(instruction: &Instruction) -> Self {
        match (instruction.pair, instruction.rows()) {
            (_, 128) => Self::Full,
            (true, _) => Self::Split,
            (false, _) => Self::Half,
        }
    }

    /// The lane of a row of A, of a matrix that begins at lane `start`.
    pub(super) const fn lane_of(self, start: u32, row: u32) -> u32 {
        match self {
            Self::Full | Self::Split => start + row,
            Self::Half => start + row / 16 * 32 + row % 16,
        }
    }

    /// The cell of D, of `n` columns, with a row and column.
    const fn cell(self, start: Cell, n: u32, row: u32, column: u32) -> Cell {
        let (down, column) = match self {
            Self::Split => (64 * (column / (n / 2)), column % (n / 2)),
            Self::Full | Self::Half => (0, column),
        };
        Cell { lane: self.lane_of(start.lane, row) + down, column: start.column + column }
    }

    /// The rectangles of so many columns that the rows of A or D fill.
    pub(super) fn areas(self, start: Cell, columns: u32) -> Vec<Area> {
        let quarter =
            |q: u32| Area { start: Cell { lane: start.lane + 32 * q, ..start }, lanes: 16, columns };
        match self {
            Self::Full => vec![Area { start, lanes: 128, columns }],
            Self::Split => vec![Area { start, lanes: 128, columns: columns / 2 }],
            Self::Half => (0..4).map(quarter).collect(),
        }
    }
}

/// D of a product in tensor memory.
pub(super) struct InMemory<'a> {
    pub(super) tensor: &'a mut TensorMemory,
    pub(super) work: &'a Multiplying,
    /// Which block of a pair it is.
    pub(super) block: usize,
}

impl InMemory<'_> {
    fn cell(&self, row: usize, column: usize) -> Cell {
        let Multiplying { d, instruction, .. } = self.work;
        Layout::of(instruction).cell(*d, instruction.n, row as u32, column as u32)
    }
}

impl Sums for InMemory<'_> {
    fn c(&self, row: usize, column: usize) -> u32 {
        let Multiplying { instruction, accumulate, scale_d, .. } = self.work;
        if !accumulate {
            return 0;
        }
        let Cell { lane, column } = self.cell(row, column);
        let word = self.tensor.load(lane, column);
        let scale = f32::from_bits((127 - u32::from(*scale_d)) << 23);
        match instruction.accumulator {
            Accumulator::F32 if *scale_d != 0 => (f32::from_bits(word) * scale).to_bits(),
            Accumulator::F16 if *scale_d != 0 => {
                use crate::exec::lanes::{f16_to_f32, f32_to_f16};
                f32_to_f16((f32::from_bits(f16_to_f32(word & 0xFFFF)) * scale).to_bits())
            }
            _ => word,
        }
    }

    fn d(&mut self, row: usize, column: usize, word: u32) {
        let Cell { lane, column } = self.cell(row, column);
        if self.work.disabled[self.block] >> lane & 1 == 0 {
            self.tensor.store(lane, column, word);
        }
    }
}

/// Rows that a copy reads, and chunks of each.
pub(super) const fn copy_size(shape: Tcgen05CopyShape) -> (u32, u32) {
    match shape {
        Tcgen05CopyShape::R128B256 => (128, 2),
        Tcgen05CopyShape::R4B256 => (4, 2),
        Tcgen05CopyShape::R128B128 => (128, 1),
        Tcgen05CopyShape::R64B128 => (64, 1),
        Tcgen05CopyShape::R32B128 => (32, 1),
    }
}

/// The lanes that get a row of a copy, from the lane of the address on, as CuTe's `copy_traits_sm100.hpp` has them: four rows
/// go to one lane of each quarter, and what is sent to pairs of quarters is the first 32 rows to one pair and the others to
/// the other.
pub(super) fn copy_lanes(copy: &Copying, row: u32) -> Vec<u32> {
    match (copy.shape, copy.multicast) {
        (Tcgen05CopyShape::R4B256, _) => vec![32 * row],
        (Tcgen05CopyShape::R32B128, _) => (0..4).map(|q| 32 * q + row).collect(),
        (Tcgen05CopyShape::R64B128, Some(Tcgen05Multicast::Pairs02And13)) => {
            vec![row, row + 64]
        }
        (Tcgen05CopyShape::R64B128, _) => {
            let first = row / 32 * 64 + row % 32;
            vec![first, first + 32]
        }
        _ => vec![row],
    }
}

impl Context<'_> {
    /// The blocks that take part in an operation of a block, which may be one of a pair.
    pub(super) fn taking_part(rank: u32, pair: bool) -> Vec<u32> {
        if pair { vec![rank & !1, rank | 1] } else { vec![rank] }
    }

    /// Performs an operation; what an earlier one of the block writes is there.
    pub(in crate::exec::asynchronous) fn perform_tensor(&mut self, issuer: Issuer, work: &TensorWork) {
        match work {
            TensorWork::Product(work) => {
                let Instruction { b, b_major, pair, .. } = work.instruction;
                let ranks = Self::taking_part(issuer.rank, pair);
                let mut b_rows = Vec::new();
                for rank in &ranks {
                    let part = (work.b, b_major, b, work.instruction.columns());
                    b_rows.extend(self.on_rank(*rank, |cx| read_shared(&cx.block.shared, part)));
                }
                for (block, rank) in ranks.into_iter().enumerate() {
                    self.on_rank(rank, |cx| cx.perform_product(work, block, &b_rows));
                }
            }
            TensorWork::Copy(copy) => {
                for rank in Self::taking_part(issuer.rank, copy.pair) {
                    self.on_rank(rank, |cx| cx.perform_copy(copy));
                }
            }
            TensorWork::Commit(_) => {}
        }
    }

    /// Computes the rows of a product that a block has.
    fn perform_product(&mut self, work: &Multiplying, block: usize, b_rows: &[Factor]) {
        let Instruction { a, b, accumulator, a_major, negate, .. } = work.instruction;
        let (rows, layout) = (work.instruction.rows(), Layout::of(&work.instruction));
        let shared = &self.block.shared;
        let a_rows = match work.a {
            Source::Shared(descriptor) => read_shared(shared, (descriptor, a_major, a, rows)),
            Source::Tensor(at) => (0..rows)
                .map(|row| {
                    let lane = layout.lane_of(at.lane, row);
                    let mut bytes = [0; 32];
                    for (column, word) in (at.column..).zip(bytes.chunks_mut(4)) {
                        word.copy_from_slice(&shared.tensor.load(lane, column).to_le_bytes());
                    }
                    bytes
                })
                .collect(),
        };
        if let Some(scaling) = &work.scaling {
            let mut sums = InMemory { tensor: &mut self.block.shared.tensor, work, block };
            return scaled::multiply(&mut sums, scaling, (&a_rows, b_rows));
        }
        let factors = Factors {
            a: &a_rows,
            b: b_rows,
            a_element: a.element(),
            b_element: b.element(),
            accumulator,
            negate,
        };
        let mut scratch = std::mem::take(&mut self.matrix);
        let tensor = &mut self.block.shared.tensor;
        multiply(&mut scratch.tile, &factors, &mut InMemory { tensor, work, block });
        self.matrix = scratch;
    }

    fn perform_copy(&mut self, copy: &Copying) {
        let (rows, chunks) = copy_size(copy.shape);
        for row in 0..rows {
            for chunk in 0..chunks {
                let mut bytes = [0; 16];
                self.block.shared.read(copy.from.k_major(u64::from(row), u64::from(chunk)), &mut bytes);
                let (words, _) = bytes.as_chunks::<4>();
                for lane in copy_lanes(copy, row) {
                    let lane = (copy.to.lane + lane) % LANES;
                    for (column, word) in (copy.to.column + 4 * chunk..).zip(words) {
                        self.block.shared.tensor.store(lane, column, u32::from_le_bytes(*word));
                    }
                }
            }
        }
    }
}

impl TensorWork {
    const fn is_pair(&self) -> bool {
        match self {
            Self::Product(work) => work.instruction.pair,
            Self::Copy(copy) => copy.pair,
            Self::Commit(_) => false,
        }
    }
}

impl State {
    /// The first operation of `tcgen05` that was issued before one, shares a block with it, and has not been performed.
    pub(in crate::exec::asynchronous) fn tensor_before(&self, at: usize) -> Option<usize> {
        let of = |at: usize| {
            let pending = self.queue.get(at)?;
            let Work::Tensor(work) = &pending.work else { return None };
            Some((pending.issuer.rank, work.is_pair()))
        };
        let (rank, pair) = of(at)?;
        (0..at).find(|earlier| {
            of(*earlier).is_some_and(|(other, other_pair)| {
                other == rank || (pair || other_pair) && other / 2 == rank / 2
            })
        })
    }
}
