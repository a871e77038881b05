//! The layer of a product with a matrix of weights.

use burn::module::{Module, Param};
use burn::tensor::Tensor;

use crate::error::Error;
use crate::ops;

/// [`ops::linear`] with the parameters of [`burn::nn::Linear`], which it is made from: `burn::nn::LinearConfig::new(4,
/// 8).init(&device).into()`.
#[derive(Module, Debug)]
pub struct Linear {
    /// `[d_input, d_output]`
    pub weight: Param<Tensor<2>>,
    /// `[d_output]`
    pub bias: Option<Param<Tensor<1>>>,
}

impl From<burn::nn::Linear> for Linear {
    fn from(layer: burn::nn::Linear) -> Self {
        Self { weight: layer.weight, bias: layer.bias }
    }
}

impl Linear {
    /// The product and sum of `input`, `[.., d_input]`.
    ///
    /// # Errors
    /// As [`ops::linear`].
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Result<Tensor<D>, Error> {
        ops::linear(input, self.weight.val(), self.bias.as_ref().map(Param::val))
    }
}
