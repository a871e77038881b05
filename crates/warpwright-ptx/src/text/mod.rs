//! PTX text in both directions.
//!
//! [`print`] writes a module in one canonical form; [`parse`] reads that form and what other compilers and people
//! write. `print(parse(print(m))) == print(m)` holds for every module whose instructions the verifier accepts.

mod print;

pub use print::{Printed, print, print_with_lines};
