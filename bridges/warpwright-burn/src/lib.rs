#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod call;
mod error;
mod graph;
pub mod loss;
mod memory;
pub mod modules;
pub mod ops;
pub mod rnn;

pub use error::Error;
pub use memory::set_device;
pub use modules::{BatchNorm, GroupNorm, Gru, LayerNorm, Linear, Lstm, RmsNorm};
/// Where kernels run, for [`set_device`].
pub use warpwright::Device;
/// Which elements of a head [`ops::rotary`] turns together.
pub use warpwright::rotary::Pairing;

/// The code of the guide's chapter, which `cargo test --doc` compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/src/burn.md")]
mod guide {}
