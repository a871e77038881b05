//! Linear layers, whose weights are of floats or of 4-bit codes.

use std::rc::Rc;

use warpwright::activation::{Activation, activate_in_place};
use warpwright::matmul::MatmulOptions;
use warpwright::{DType, Error, Stream, Tensor, matmul, matmul_4bit};

use super::Result;
use super::checkpoint::Checkpoint;
use super::codes::Codes;

/// A matrix `[outputs, inputs]`.
pub(crate) enum Weight {
    /// The last layer of a language model may share the table of its tokens.
    Floats(Rc<Tensor>),
    /// As the checkpoint stores them.
    Codes(Box<Codes>),
}

/// `y = x weight^T + bias`: `[.., inputs]` to `[.., outputs]`.
pub(crate) struct Linear {
    weight: Weight,
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
        let weight = checkpoint.weight(stream, &format!("{name}.weight"), dtype)?;
        let bias = format!("{name}.bias");
        let biased = checkpoint.contains(&bias);
        Ok(Self { weight, bias: biased.then(|| checkpoint.tensor(stream, &bias, dtype)).transpose()? })
    }

    /// Without a bias.
    pub(crate) fn new(weight: Rc<Tensor>) -> Self {
        Self { weight: Weight::Floats(weight), bias: None }
    }

    pub(crate) fn forward(&self, stream: &Stream, x: &Tensor) -> std::result::Result<Tensor, Error> {
        self.activated(stream, x, None)
    }

    /// A function of the results.
    pub(crate) fn activated(
        &self,
        stream: &Stream,
        x: &Tensor,
        activation: Option<Activation>,
    ) -> std::result::Result<Tensor, Error> {
        let bias = self.bias.as_ref();
        match &self.weight {
            Weight::Floats(weight) => {
                let options = MatmulOptions { transpose_b: true, bias, activation, ..Default::default() };
                matmul(stream, x, weight, options)
            }
            Weight::Codes(codes) => {
                let mut y = matmul_4bit(stream, x, codes.weight(), bias)?;
                if let Some(f) = activation {
                    activate_in_place(stream, f, &mut y)?;
                }
                Ok(y)
            }
        }
    }

    /// Bytes of the weights, all of which a product of a few rows reads.
    pub(crate) fn bytes(&self) -> u64 {
        let bytes = |x: &Tensor| x.buffer().bytes();
        let weight = match &self.weight {
            Weight::Floats(weight) => bytes(weight),
            Weight::Codes(codes) => codes.bytes(),
        };
        weight + self.bias.as_ref().map_or(0, bytes)
    }
}
