//! Linear layers.

use std::rc::Rc;

use warpwright::activation::Activation;
use warpwright::matmul::MatmulOptions;
use warpwright::{DType, Error, Stream, Tensor, matmul};

use super::Result;
use super::checkpoint::Checkpoint;

/// `y = x weight^T + bias`: `[.., inputs]` to `[.., outputs]`.
pub(crate) struct Linear {
    /// `[outputs, inputs]`; the last layer of a language model may share the table of its tokens.
    weight: Rc<Tensor>,
    /// `[outputs]`
    bias: Option<Tensor>,
}

impl Linear {
    /// `NAME.weight`, and `NAME.bias` if there is one, computed in `dtype`.
    pub(crate) fn load(
        checkpoint: &mut Checkpoint,
        stream: &Stream,
        name: &str,
        dtype: DType,
    ) -> Result<Self> {
        let weight = Rc::new(checkpoint.tensor(stream, &format!("{name}.weight"), dtype)?);
        let bias = format!("{name}.bias");
        let biased = checkpoint.contains(&bias);
        Ok(Self { weight, bias: biased.then(|| checkpoint.tensor(stream, &bias, dtype)).transpose()? })
    }

    /// Without a bias.
    pub(crate) fn new(weight: Rc<Tensor>) -> Self {
        Self { weight, bias: None }
    }

    pub(crate) fn forward(&self, stream: &Stream, x: &Tensor) -> std::result::Result<Tensor, Error> {
        self.activated(stream, x, None)
    }

    /// The function of the results, in the launch of the product.
    pub(crate) fn activated(
        &self,
        stream: &Stream,
        x: &Tensor,
        activation: Option<Activation>,
    ) -> std::result::Result<Tensor, Error> {
        let bias = self.bias.as_ref();
        matmul(
            stream,
            x,
            &self.weight,
            MatmulOptions { transpose_b: true, bias, activation, ..Default::default() },
        )
    }

    /// Bytes of the weights, all of which a product reads.
    pub(crate) fn bytes(&self) -> u64 {
        self.weight.buffer().bytes() + self.bias.as_ref().map_or(0, |bias| bias.buffer().bytes())
    }
}
