#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod array;
mod call;
pub mod conv;
#[cfg(feature = "cuda")]
mod cuda;
mod device;
mod error;
mod graph;
pub mod group_norm;
mod heads;
pub mod layer_norm;
pub mod linear;
pub mod loss;
pub mod ops;
pub mod rnn;
pub mod rotary_emb;

pub use conv::{Conv1d, Conv1dConfig, Conv2d, Conv2dConfig, conv1d, conv1d_no_bias, conv2d, conv2d_no_bias};
pub use error::Error;
pub use group_norm::{GroupNorm, group_norm};
pub use layer_norm::{LayerNorm, LayerNormConfig, RmsNorm, layer_norm, layer_norm_no_bias, rms_norm};
pub use linear::{Linear, linear, linear_b, linear_no_bias};
pub use rnn::{GRU, GRUConfig, LSTM, LSTMConfig, RNN, gru, lstm};

/// The code of the guide's chapter, which `cargo test --doc` compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/src/candle.md")]
mod guide {}
