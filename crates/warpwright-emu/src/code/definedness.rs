//! Definedness of registers that may be read before they are written, as instructions pass it on and use it up.

use warpwright_ptx::{BoolOp, CmpOp, Inst, ScalarType};

use super::layout::Slot;

/// Registers whose values decide something here.
#[derive(Debug)]
pub(crate) struct Check {
    pub(crate) registers: Vec<Checked>,
}

/// A tracked register, its type for the report, and the bits of it that are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Checked {
    pub(crate) tracked: u32,
    pub(crate) ty: Option<ScalarType>,
    pub(crate) bits: u64,
}

/// Tracked registers that are defined now.
#[derive(Debug)]
pub(crate) struct Mark {
    pub(crate) tracked: Vec<u32>,
}

/// An operand of an instruction whose results are as defined as its operands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    /// Where its value is; `None` where no rule looks at it.
    pub(crate) value: Option<Slot>,
    /// `None`: it is always defined.
    pub(crate) tracked: Option<u32>,
    pub(crate) ty: Option<ScalarType>,
    /// The bits that it has.
    pub(crate) bits: u64,
}

/// A result: a tracked register and the bits that it has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) tracked: u32,
    pub(crate) bits: u64,
}

/// Which bits of a result are undefined, given those of the sources. The rules are those of MemorySanitizer and Memcheck.
#[derive(Debug)]
pub(crate) enum Rule {
    /// All if any is.
    Any,
    /// Sums, differences and low products: those from the lowest undefined one upwards.
    Carry,
    /// A function of the bits at each position, as `lop3` has it: those on which an undefined one has an influence. The third source
    /// may be a predicate, which is a bit at every position.
    Logic { table: u8 },
    /// The instruction moves the bits of its first sources; the others say where to and have to be defined.
    Move { inst: Box<Inst>, moved: usize },
    /// A comparison of integers, and what it is combined with: negated or not. Targets are the result and its complement.
    Compare { cmp: CmpOp, ty: ScalarType, combine: Option<(BoolOp, bool)> },
    /// Sources of so many bits one behind the other.
    Pack { bits: u32 },
    /// Targets take so many bits one behind the other; `None` of those that nothing tracks.
    Unpack { bits: u32 },
}

/// Stands for a register that is always defined.
pub(crate) const DEFINED: u32 = 0;
/// Stands for a register that never is.
pub(crate) const UNDEFINED: u32 = 1;
/// The first tracked register.
pub(crate) const FIRST: u32 = 2;

/// An instruction that passes definedness on.
#[derive(Debug)]
pub(crate) struct Passing {
    /// The instruction that does so.
    pub(crate) pc: u32,
    pub(crate) rule: Rule,
    pub(crate) sources: Vec<Source>,
    /// In the order of the instruction; `None` is not tracked.
    pub(crate) targets: Vec<Option<Target>>,
    /// Whether it only copies: then what reads an unwritten register is what uses the copy.
    pub(crate) copies: bool,
}

/// A shuffle whose source or result is tracked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shuffled {
    pub(crate) source: Source,
    pub(crate) target: u32,
}
