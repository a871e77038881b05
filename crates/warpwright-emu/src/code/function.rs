//! Device functions as calls see them, and calls.

use std::ops::Range;

use super::layout::Slot;
use crate::space::FUNCTION_WINDOW;

/// A piece of a frame, or a register.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// Bytes from an offset in the frame on.
    Memory { offset: u64, bytes: u64 },
    /// `None` if nothing mentions the register.
    Register { slot: Option<Slot>, bits: u32 },
}

/// A function as calls see it.
#[derive(Debug)]
pub(crate) struct FunctionCode {
    pub(crate) name: String,
    /// Index into the functions of the module.
    pub(crate) index: u32,
    /// First instruction of each block, and the end of the last one.
    pub(crate) starts: Vec<u32>,
    /// Where the registers live.
    pub(crate) slots: Vec<Option<Slot>>,
    /// First instruction; `None` for a function without a body.
    pub(crate) start: Option<u32>,
    pub(crate) params: Vec<Place>,
    pub(crate) returns: Vec<Place>,
    /// Bytes of the frame.
    pub(crate) frame: u64,
    /// The row that holds where the frame begins.
    pub(crate) frame_row: u32,
    /// Rows that belong to the function alone.
    pub(crate) rows32: Range<u32>,
    pub(crate) rows64: Range<u32>,
    pub(crate) preds: Range<u32>,
    /// Its part of `Code::tracked`.
    pub(crate) tracked: Range<usize>,
}

impl FunctionCode {
    /// The instructions of a block.
    pub(crate) fn instructions(&self, block: u32) -> Range<u32> {
        let at = |b: usize| self.starts.get(b).copied().unwrap_or_default();
        at(block as usize)..at(block as usize + 1)
    }
}

/// A function that the runtime of a device provides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Builtin {
    Vprintf,
    AssertFail,
    Malloc,
    Free,
}

impl Builtin {
    pub(crate) fn of(name: &str) -> Option<Self> {
        Some(match name {
            "vprintf" => Self::Vprintf,
            "__assertfail" => Self::AssertFail,
            "malloc" => Self::Malloc,
            "free" => Self::Free,
            _ => return None,
        })
    }
}

/// Whom a call calls.
#[derive(Debug)]
pub(crate) enum Target {
    /// Index into `Code::functions`.
    Function(u32),
    /// The address of a function.
    Address(Slot),
    Builtin(Builtin),
    /// A function that is only declared.
    Missing(String),
}

/// A `call`.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) target: Target,
    /// The function that calls: index into `Code::functions`.
    pub(crate) caller: u32,
    pub(crate) args: Vec<Place>,
    pub(crate) returns: Vec<Place>,
    /// Whether the callee may come back to the caller, so that its rows have to be saved.
    pub(crate) saves: bool,
}

/// The address of function `index` of a module. Functions have no bytes, so addresses only tell them apart.
pub(crate) const fn function_address(index: u32) -> u64 {
    FUNCTION_WINDOW + ((index as u64 + 1) << 4)
}
