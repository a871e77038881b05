//! Operations as functions, with the names and arguments of burn's where burn has them.
//!
//! Each takes f32, f64, f16 and bf16, of any strides, on burn's device Flex, with or without autodiff, and has gradients for everything
//! that burn tracks.

mod activation;
mod attention;
mod conv;
mod linear;
mod linear_4bit;
mod norm;
mod rotary;
mod softmax;

pub use activation::{
    activate, gate, gelu, gelu_approximate, leaky_relu, relu, sigmoid, silu, softplus, swiglu, tanh,
};
pub use attention::{AttentionOptions, attention};
pub use conv::{conv1d, conv2d};
pub use linear::linear;
pub use linear_4bit::{Weight4bit, linear_4bit};
pub use norm::{BatchNormTrain, batch_norm, batch_norm_train, group_norm, layer_norm, rms_norm};
pub use rotary::rotary;
pub use softmax::{log_softmax, softmax};
pub use warpwright::activation::{Activation, GatedActivation};
pub use warpwright::attention::{Alignment, Window};
pub use warpwright::quantize::Scheme;
