//! Operations as functions, with the names and arguments of `candle_nn::ops` where candle has them.
//!
//! Each takes f32, f64, f16 and bf16, and has gradients for everything that candle tracks. Tensors may have any strides: attention and rotary
//! embeddings read them where they lie if the last stride is 1; the others copy what is not contiguous first.

mod activation;
mod attention;
mod conv;
mod linear;
mod norm;
mod softmax;

pub use activation::{
    activate, gate, geglu, geglu_tanh, gelu, gelu_erf, leaky_relu, relu, sigmoid, silu, softplus, swiglu,
    tanh,
};
pub use attention::{AttentionOptions, attention, flash_attn, sdpa};
pub use conv::{ConvOptions, conv, conv1d, conv2d};
pub use linear::linear;
pub use norm::{add_layer_norm, add_rms_norm, group_norm, layer_norm, layer_norm_no_bias, rms_norm};
pub(crate) use norm::{layer_norm_with, rms_norm_with};
pub use softmax::{log_softmax, log_softmax_last_dim, softmax, softmax_last_dim};
pub use warpwright::activation::{Activation, GatedActivation};
pub use warpwright::attention::{Alignment, Window};
