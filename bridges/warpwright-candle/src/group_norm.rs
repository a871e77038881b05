//! The layer [`GroupNorm`], with the names and constructors of `candle_nn::group_norm`.

use candle_core::{Module, Result, Tensor};
use candle_nn::VarBuilder;

use crate::error::Error;
use crate::ops;

/// Group normalization of `[batch, channels, ..]`, as [`candle_nn::GroupNorm`], which takes a dozen kernels for it.
#[derive(Clone, Debug)]
pub struct GroupNorm {
    weight: Tensor,
    bias: Tensor,
    eps: f64,
    num_channels: usize,
    num_groups: usize,
}

impl GroupNorm {
    /// A layer with a factor and a summand of each channel.
    ///
    /// # Errors
    /// If `num_groups` does not divide `num_channels`.
    pub fn new(
        weight: Tensor,
        bias: Tensor,
        num_channels: usize,
        num_groups: usize,
        eps: f64,
    ) -> Result<Self> {
        // Only to hold the numbers to its own rule.
        candle_nn::GroupNorm::new(weight.clone(), bias.clone(), num_channels, num_groups, eps)?;
        Ok(Self { weight, bias, eps, num_channels, num_groups })
    }
}

impl Module for GroupNorm {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        if xs.dims().get(1) != Some(&self.num_channels) {
            let (op, argument, got) = ("group_norm", "xs", xs.dims().to_vec());
            let expected = format!("[batch, {}, ..]", self.num_channels);
            return Err(Error::Shape { op, argument, expected, got }.into());
        }
        ops::group_norm(xs, self.num_groups, Some(&self.weight), Some(&self.bias), self.eps)
    }
}

/// A layer with the parameters `weight` and `bias`, as [`candle_nn::group_norm()`].
///
/// # Errors
/// Those of the builder, and if `num_groups` does not divide `num_channels`.
pub fn group_norm(num_groups: usize, num_channels: usize, eps: f64, vb: VarBuilder<'_>) -> Result<GroupNorm> {
    let weight = vb.get_with_hints(num_channels, "weight", candle_nn::Init::Const(1.))?;
    let bias = vb.get_with_hints(num_channels, "bias", candle_nn::Init::Const(0.))?;
    GroupNorm::new(weight, bias, num_channels, num_groups, eps)
}
