//! Instructions that are kept as text.

use super::operand::{Reg, SymbolId};
use crate::types::spelled;

spelled! {
    /// Opcodes of PTX that have no typed form here: textures and surfaces, scalar video arithmetic, multimem, and what
    /// the fifth generation of tensor cores has besides [`Tcgen05`](super::Tcgen05).
    pub enum Foreign {
        ClusterLaunchControl = "clusterlaunchcontrol", Istypep = "istypep", Multimem = "multimem",
        Suld = "suld", Suq = "suq", Sured = "sured", Sust = "sust", Tex = "tex", Tld4 = "tld4", Txq = "txq",
        Tcgen05 = "tcgen05",
        Vabsdiff = "vabsdiff", Vadd = "vadd", Vmad = "vmad", Vmax = "vmax", Vmin = "vmin", Vset = "vset",
        Vset2 = "vset2", Vset4 = "vset4", Vshl = "vshl", Vshr = "vshr", Vsub = "vsub",
    }
}

/// An instruction whose meaning is not known here: its words, with the names of registers and symbols resolved.
///
/// The parser makes one of an opcode that it cannot read, so that a module survives unknown instructions: they print as
/// they were written, `lint` names them, and the emulator stops when it reaches one. Registers count as written, because
/// what the instruction does to them is unknown.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Opaque {
    /// The opcode, if PTX has it.
    pub family: Option<Foreign>,
    /// The opcode with all its modifiers.
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
