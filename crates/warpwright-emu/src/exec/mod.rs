//! Executing decoded code, one warp at a time.

mod access;
pub(crate) mod asynchronous;
mod atom;
mod call;
mod cluster;
mod collective;
mod definedness;
mod format;
mod global;
pub(crate) mod lanes;
pub(crate) mod matrix;
mod private;
pub(crate) mod rows;
mod run;
mod runtime;
mod scalar;
mod shared;
mod special;
mod sync;
mod transfer;

pub(crate) use call::{MAX_LOCAL, Paths};
pub(crate) use definedness::Definedness;
pub(crate) use private::read_image;
pub(crate) use run::run;
pub(crate) use special::special_value;

#[cfg(test)]
mod tests;
