//! PTX text in both directions.
//!
//! [`print()`] writes a module in one canonical form; [`parse`] reads that form and what other compilers and people
//! write. `print(parse(print(m))) == print(m)` holds for every module whose instructions the verifier accepts.
//!
//! An opcode that cannot be read (an unknown mnemonic or modifier, or one of the families in
//! [`Foreign`](crate::inst::Foreign)) costs nothing but itself: it is reported with line and column, and the statement
//! stays in the module as [`Inst::Opaque`](crate::inst::Inst::Opaque). [`Parsed::complete`] tells whether more than
//! that was lost.

mod diagnostic;
mod lex;
mod parse;
mod print;
mod sources;

pub use diagnostic::{Diagnostic, Parsed, Severity, rules};
pub use parse::{MAX_DIAGNOSTICS, MAX_NESTING, MAX_REGISTERS, MAX_TEXT, MAX_VARIABLE, parse};
pub use print::{Printed, mnemonic, print, print_with_lines};
pub use sources::{SourceLine, Sources};
