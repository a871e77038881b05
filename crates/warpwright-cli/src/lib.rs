//! The parts of the `warpwright` command.
//!
//! This library exists so that the command's tests, examples and fuzz targets can reach its readers. Its API follows
//! the command's needs and carries no promise; programs use the `warpwright` crate.

#![forbid(unsafe_code)]

pub mod checkpoint;
