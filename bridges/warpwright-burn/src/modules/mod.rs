//! Layers with the names of parameters that burn's have, so that a record of burn's layer is one of ours and the other way round.

mod linear;
mod norm;
mod rnn;

pub use linear::Linear;
pub use norm::{BatchNorm, GroupNorm, LayerNorm, RmsNorm};
pub use rnn::{Gru, Lstm};
