//! The layer [`Linear`], with the names and constructors of `candle_nn::linear`.

use candle_core::{Module, Result, Tensor};
use candle_nn::VarBuilder;

use crate::ops;

/// `x weight^T + bias`, as [`candle_nn::Linear`], the summand added where the product is computed.
#[derive(Clone, Debug)]
pub struct Linear(candle_nn::Linear);

impl Linear {
    /// A layer of `[out, in]`, with a summand `[out]` or without.
    pub fn new(weight: Tensor, bias: Option<Tensor>) -> Self {
        Self(candle_nn::Linear::new(weight, bias))
    }

    /// The factors.
    pub fn weight(&self) -> &Tensor {
        self.0.weight()
    }

    /// The summand.
    pub fn bias(&self) -> Option<&Tensor> {
        self.0.bias()
    }
}

impl From<candle_nn::Linear> for Linear {
    fn from(layer: candle_nn::Linear) -> Self {
        Self(layer)
    }
}

impl Module for Linear {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        ops::linear(xs, self.weight(), self.bias())
    }
}

/// A layer with the parameters `weight` and `bias`, as [`candle_nn::linear()`].
///
/// # Errors
/// Those of the builder.
pub fn linear(in_dim: usize, out_dim: usize, vb: VarBuilder<'_>) -> Result<Linear> {
    linear_b(in_dim, out_dim, true, vb)
}

/// A layer with the parameter `weight`, as [`candle_nn::linear_no_bias`].
///
/// # Errors
/// Those of the builder.
pub fn linear_no_bias(in_dim: usize, out_dim: usize, vb: VarBuilder<'_>) -> Result<Linear> {
    linear_b(in_dim, out_dim, false, vb)
}

/// [`linear`] or [`linear_no_bias`], as [`candle_nn::linear_b`].
///
/// # Errors
/// Those of the builder.
pub fn linear_b(in_dim: usize, out_dim: usize, bias: bool, vb: VarBuilder<'_>) -> Result<Linear> {
    candle_nn::linear_b(in_dim, out_dim, bias, vb).map(Linear)
}
