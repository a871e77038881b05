//! The layers [`LayerNorm`] and [`RmsNorm`], with the names and constructors of `candle_nn::layer_norm`.

use candle_core::{Module, Result, Tensor};
pub use candle_nn::LayerNormConfig;
use candle_nn::VarBuilder;

use crate::ops;

/// Layer normalization over the last dimension, as [`candle_nn::LayerNorm`], whose gradient is lost where `xs` is contiguous.
#[derive(Clone, Debug)]
pub struct LayerNorm(candle_nn::LayerNorm);

impl LayerNorm {
    /// A layer with a factor and a summand, both `[n]`.
    pub fn new(weight: Tensor, bias: Tensor, eps: f64) -> Self {
        Self(candle_nn::LayerNorm::new(weight, bias, eps))
    }

    /// A layer with a factor alone.
    pub fn new_no_bias(weight: Tensor, eps: f64) -> Self {
        Self(candle_nn::LayerNorm::new_no_bias(weight, eps))
    }

    /// A layer that does not subtract the mean.
    pub fn rms_norm(weight: Tensor, eps: f64) -> Self {
        Self(candle_nn::LayerNorm::rms_norm(weight, eps))
    }

    /// The factor.
    pub fn weight(&self) -> &Tensor {
        self.0.weight()
    }

    /// The summand.
    pub fn bias(&self) -> Option<&Tensor> {
        self.0.bias()
    }

    /// Added to the variance.
    pub fn eps(&self) -> f64 {
        self.0.eps()
    }

    /// Whether the mean is subtracted.
    pub fn remove_mean(&self) -> bool {
        self.0.remove_mean()
    }
}

impl From<candle_nn::LayerNorm> for LayerNorm {
    fn from(layer: candle_nn::LayerNorm) -> Self {
        Self(layer)
    }
}

impl Module for LayerNorm {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let (weight, bias, eps) = (self.weight(), self.bias(), self.eps());
        if self.remove_mean() {
            return ops::layer_norm_with(xs, weight, bias, eps);
        }
        let y = ops::rms_norm_with(xs, weight, eps)?;
        bias.map_or_else(|| Ok(y.clone()), |bias| y.broadcast_add(bias))
    }
}

/// A layer of `size` elements with the parameters `weight` and `bias`, as [`candle_nn::layer_norm()`].
///
/// # Errors
/// Those of the builder.
pub fn layer_norm<C: Into<LayerNormConfig>>(size: usize, config: C, vb: VarBuilder<'_>) -> Result<LayerNorm> {
    candle_nn::layer_norm(size, config, vb).map(LayerNorm)
}

/// [`layer_norm`] without a summand, as [`candle_nn::layer_norm_no_bias`].
///
/// # Errors
/// Those of the builder.
pub fn layer_norm_no_bias(size: usize, eps: f64, vb: VarBuilder<'_>) -> Result<LayerNorm> {
    candle_nn::layer_norm_no_bias(size, eps, vb).map(LayerNorm)
}

/// RMS normalization over the last dimension, as [`candle_nn::RmsNorm`], whose gradient is lost where `xs` is contiguous.
#[derive(Clone, Debug)]
pub struct RmsNorm(LayerNorm);

impl RmsNorm {
    /// A layer with a factor, `[n]`.
    pub fn new(weight: Tensor, eps: f64) -> Self {
        Self(LayerNorm::rms_norm(weight, eps))
    }

    /// The same as a layer normalization that does not subtract the mean.
    pub fn into_inner(self) -> LayerNorm {
        self.0
    }

    /// The factor.
    pub fn weight(&self) -> &Tensor {
        self.0.weight()
    }

    /// Added to the mean of the squares.
    pub fn eps(&self) -> f64 {
        self.0.eps()
    }

    /// The same as `forward`, which is differentiable here.
    ///
    /// # Errors
    /// As [`ops::rms_norm`].
    pub fn forward_diff(&self, xs: &Tensor) -> Result<Tensor> {
        self.forward(xs)
    }
}

impl From<candle_nn::RmsNorm> for RmsNorm {
    fn from(layer: candle_nn::RmsNorm) -> Self {
        Self(layer.into_inner().into())
    }
}

impl Module for RmsNorm {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.0.forward(xs)
    }
}

/// A layer of `size` elements with the parameter `weight`, as [`candle_nn::rms_norm`].
///
/// # Errors
/// Those of the builder.
pub fn rms_norm(size: usize, eps: f64, vb: VarBuilder<'_>) -> Result<RmsNorm> {
    candle_nn::rms_norm(size, eps, vb).map(RmsNorm::from)
}
