//! Tensor-core instructions.

use warpwright_ptx::{BitProduct, Rounding, StateSpace};

use super::layout::Slot;
use super::rows::{LANES, Registers};
use super::tensor::WarpOp;

/// Type of the elements of A or B.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    F16,
    Bf16,
    /// The top 19 bits of a word; the others are ignored.
    Tf32,
    E4m3,
    E5m2,
    S8,
    U8,
    S4,
    U4,
}

impl Element {
    pub(crate) const fn bits(self) -> u32 {
        match self {
            Self::Tf32 => 32,
            Self::F16 | Self::Bf16 => 16,
            Self::E4m3 | Self::E5m2 | Self::S8 | Self::U8 => 8,
            Self::S4 | Self::U4 => 4,
        }
    }

    /// The exponent field, as that of an f32, of the smallest normal number; `None` for integers.
    pub(crate) const fn least_exponent(self) -> Option<u32> {
        match self {
            Self::F16 | Self::E5m2 => Some(127 - 14),
            Self::E4m3 => Some(127 - 6),
            Self::Bf16 | Self::Tf32 => Some(1),
            Self::S8 | Self::U8 | Self::S4 | Self::U4 => None,
        }
    }
}

/// Type of C and D.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accumulator {
    F32,
    /// Pairs in words.
    F16,
    S32 {
        saturate: bool,
    },
}

impl Accumulator {
    /// Registers of a tile of 16 rows.
    pub(crate) const fn registers(self) -> usize {
        match self {
            Self::F32 | Self::S32 { .. } => 4,
            Self::F16 => 2,
        }
    }
}

/// The words of one fragment register.
pub(crate) type Words = [u32; LANES];

/// Registers of an operand that has at most four of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rows {
    rows: [u32; 4],
    len: u8,
}

impl Rows {
    /// `None` if there are more than four.
    pub(crate) fn new(rows: &[u32]) -> Option<Self> {
        let mut out = Self { rows: [0; 4], len: u8::try_from(rows.len()).ok()? };
        out.rows.get_mut(..rows.len())?.copy_from_slice(rows);
        Some(out)
    }

    pub(crate) fn as_slice(&self) -> &[u32] {
        &self.rows[..usize::from(self.len)]
    }

    /// The words of the registers; unused entries repeat the first.
    #[inline(always)]
    pub(crate) fn words<'a>(&self, regs: &'a Registers) -> ([&'a Words; 4], usize) {
        (self.rows.map(|row| &regs.r32[row as usize].0), usize::from(self.len))
    }
}

/// A product with sums in f32 or s32.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mma {
    pub(crate) a_element: Element,
    pub(crate) b_element: Element,
    pub(crate) accumulator: Accumulator,
    /// Rows of A and D: 8 or 16.
    pub(crate) rows: usize,
    /// The common dimension.
    pub(crate) k: usize,
    pub(crate) a: Rows,
    pub(crate) b: Rows,
    pub(crate) c: Rows,
    pub(crate) d: Rows,
}

/// A product of bits with sums in s32.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MmaBits {
    pub(crate) product: BitProduct,
    pub(crate) rows: usize,
    pub(crate) a: Rows,
    pub(crate) b: Rows,
    pub(crate) c: Rows,
    pub(crate) d: Rows,
}

/// A product in f64.
#[derive(Clone, Debug)]
pub(crate) struct MmaF64 {
    pub(crate) rounding: Rounding,
    pub(crate) rows: usize,
    /// Rows of 64 bits.
    pub(crate) a: Vec<u32>,
    pub(crate) b: Vec<u32>,
    pub(crate) c: Vec<u32>,
    pub(crate) d: Vec<u32>,
}

/// Matrices to load or store.
#[derive(Debug)]
pub(crate) struct Tiles {
    pub(crate) space: StateSpace,
    pub(crate) transposed: bool,
    pub(crate) addr: Slot,
    pub(crate) offset: i64,
    /// One for each matrix.
    pub(crate) regs: Vec<u32>,
}

/// Which axis of an operand is contiguous in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Major {
    K,
    Mn,
}

/// Where A comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source {
    /// Row of 64 bits with a descriptor.
    Descriptor(u32, Major),
    Registers(Rows),
}

/// The factors of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Product {
    Numbers {
        a: Element,
        b: Element,
    },
    /// One bit each, combined by `and` and counted.
    Bits,
}

/// Whether D is added to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Accumulate {
    Always(bool),
    /// Where the predicate holds.
    If(u32),
}

/// A decoded instruction.
#[derive(Clone, Debug)]
pub(crate) struct Wgmma {
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) product: Product,
    pub(crate) accumulator: Accumulator,
    /// Whether the sign of the products is exchanged.
    pub(crate) negate: bool,
    pub(crate) accumulate: Accumulate,
    pub(crate) a: Source,
    /// Row of 64 bits with the descriptor of B.
    pub(crate) b: u32,
    pub(crate) b_major: Major,
    pub(crate) d: Vec<u32>,
    /// Slots in which the state of the registers is kept.
    pub(crate) d_slots: Vec<u32>,
    pub(crate) a_slots: Vec<u32>,
    /// Instructions with the same number have the same shape and types.
    pub(crate) shape: u32,
}

/// A decoded instruction.
#[derive(Debug)]
pub(crate) enum MatrixOp {
    Mma(Mma),
    MmaBits(MmaBits),
    MmaF64(MmaF64),
    /// `movmatrix`
    Transpose {
        d: u32,
        a: u32,
    },
    /// Nothing, by the whole warp.
    Converge,
    Load(Tiles),
    Store(Tiles),
    Wgmma(Box<Wgmma>),
    WgmmaFence,
    WgmmaCommit,
    /// Until at most this many groups are pending.
    WgmmaWait(u32),
    /// Of tensor memory.
    Tensor(WarpOp),
}

impl MatrixOp {
    /// Multiply-adds of one warp.
    pub(crate) fn multiply_adds(&self) -> u64 {
        // Rows x columns x the common dimension; a warp holds 32 lanes of A.
        let (m, n, k) = match self {
            Self::Mma(op) => (op.rows, 8, op.k),
            Self::MmaBits(op) => (op.rows, 8, 32 * 32 * op.a.as_slice().len() / op.rows),
            Self::MmaF64(op) => (op.rows, 8, 32 * op.a.len() / op.rows),
            Self::Wgmma(op) => (16, op.n, op.k),
            _ => return 0,
        };
        (m * n * k) as u64
    }
}

/// An instruction that touches registers that some `wgmma` uses.
#[derive(Debug, Default)]
pub(crate) struct Touch {
    /// Slots.
    pub(crate) reads: Vec<u32>,
    pub(crate) writes: Vec<u32>,
    /// A move: the slots of source, if it has one, and destination.
    pub(crate) copy: Option<(Option<u32>, u32)>,
}

impl Touch {
    pub(crate) fn is_empty(&self) -> bool {
        self.reads.is_empty() && self.writes.is_empty() && self.copy.is_none()
    }
}
