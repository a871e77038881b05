//! Instructions that are kept as text.

use super::operand::{Reg, SymbolId};

/// An instruction whose meaning is not known here: its words, with the names of registers and symbols resolved.
///
/// The parser makes one of what it cannot read, so that a module survives unknown instructions: they print as they were
/// written, `lint` names them, and the emulator stops when it reaches one. Registers count as written, because what the
/// instruction does to them is unknown.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Opaque {
    /// Opcode with all its modifiers.
    pub opcode: String,
    /// The operands.
    pub operands: Vec<Piece>,
}

/// A piece of the operands of an [`Opaque`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Piece {
    /// Text between names.
    Text(String),
    /// A register.
    Reg(Reg),
    /// A variable or parameter.
    Symbol(SymbolId),
}
