//! Register rows: one value per lane of a warp, the register file that they make, and operands as row numbers.

/// Lanes of a warp.
pub(crate) const LANES: usize = 32;

/// Every lane.
pub(crate) const FULL: u32 = u32::MAX;

/// A register of up to 32 bits; narrower values are kept zero-extended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(align(64))]
pub(crate) struct Row32(pub(crate) [u32; LANES]);

/// A 64-bit register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(align(64))]
pub(crate) struct Row64(pub(crate) [u64; LANES]);

impl Row32 {
    pub(crate) const ZERO: Self = Self([0; LANES]);
}

impl Row64 {
    pub(crate) const ZERO: Self = Self([0; LANES]);
}

/// The registers of one warp. Literals, special registers and launch constants occupy rows of their own, so that every
/// operand is a row number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Registers {
    pub(crate) r32: Vec<Row32>,
    pub(crate) r64: Vec<Row64>,
    /// One bit per lane; entry 0 is always all ones, the guard of unguarded instructions.
    pub(crate) pred: Vec<u32>,
}

/// One destination, one source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct R1 {
    pub(crate) d: u32,
    pub(crate) a: u32,
}

/// One destination, two sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct R2 {
    pub(crate) d: u32,
    pub(crate) a: u32,
    pub(crate) b: u32,
}

/// One destination, three sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct R3 {
    pub(crate) d: u32,
    pub(crate) a: u32,
    pub(crate) b: u32,
    pub(crate) c: u32,
}
