//! Linear layers, whose weights are of floats or of 4-bit codes.

use std::rc::Rc;

use warpwright::activation::{Activation, activate_in_place};
use warpwright::matmul::MatmulOptions;
use warpwright::{DType, Error, Stream, Tensor, TensorRef, cat, matmul, matmul_4bit};

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

impl Weight {
    fn floats(&self) -> Option<&Tensor> {
        match self {
            Self::Floats(weight) => Some(weight),
            Self::Codes(_) => None,
        }
    }

    fn codes(&self) -> Option<&Codes> {
        match self {
            Self::Floats(_) => None,
            Self::Codes(codes) => Some(codes),
        }
    }
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

    fn outputs(&self) -> usize {
        match &self.weight {
            Weight::Floats(weight) => weight.shape()[0],
            Weight::Codes(codes) => codes.outputs(),
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

/// Layers of one input, whose results a single product gives where their weights can be put together.
pub(crate) struct Linears {
    /// All of them as one, or each.
    products: Vec<Linear>,
    /// Outputs of each layer.
    outputs: Vec<usize>,
}

/// The results of [`Linears::forward`]: those of the layers side by side in one tensor, or each in its own.
pub(crate) struct Outputs<'l> {
    products: Vec<Tensor>,
    outputs: &'l [usize],
}

impl Linears {
    /// Layers as [`Linear::load`] loads them.
    pub(crate) fn load(
        checkpoint: &mut Checkpoint,
        stream: &Stream,
        names: &[String],
        dtype: DType,
    ) -> Result<Self> {
        let load = |name: &String| Linear::load(checkpoint, stream, name, dtype);
        let layers = names.iter().map(load).collect::<Result<Vec<_>>>()?;
        let outputs = layers.iter().map(Linear::outputs).collect();
        let products = match joined(stream, &layers)? {
            Some(all) => vec![all],
            None => layers,
        };
        Ok(Self { products, outputs })
    }

    /// The results of every layer for `[rows, inputs]`.
    pub(crate) fn forward(&self, stream: &Stream, x: &Tensor) -> std::result::Result<Outputs<'_>, Error> {
        let products = self
            .products
            .iter()
            .map(|layer| layer.forward(stream, x))
            .collect::<std::result::Result<_, _>>()?;
        Ok(Outputs { products, outputs: &self.outputs })
    }

    /// Bytes of the weights, all of which a product of a few rows reads.
    pub(crate) fn bytes(&self) -> u64 {
        self.products.iter().map(Linear::bytes).sum()
    }
}

impl Outputs<'_> {
    /// The results of layer `layer`, `[1, rows, outputs / dim, dim]`.
    pub(crate) fn by_heads(&self, layer: usize, dim: usize) -> std::result::Result<TensorRef<'_>, Error> {
        let (y, before) = match &self.products[..] {
            [all] => (all, self.outputs[..layer].iter().sum()),
            each => (&each[layer], 0),
        };
        let &[rows, columns] = y.shape() else { unreachable!("rows have two dimensions") };
        let heads = y.as_ref().reshape(&[1, rows, columns / dim, dim])?;
        Ok(heads.narrow(2, before / dim, self.outputs[layer] / dim)?)
    }

    /// The results of layer `layer`, `[rows, outputs]`.
    pub(crate) fn of(&self, layer: usize) -> std::result::Result<TensorRef<'_>, Error> {
        Ok(match &self.products[..] {
            [all] => all.as_ref().narrow(1, self.outputs[..layer].iter().sum(), self.outputs[layer])?,
            each => each[layer].as_ref(),
        })
    }
}

/// One layer with the outputs of all, unless their weights differ in more than that.
fn joined(stream: &Stream, layers: &[Linear]) -> Result<Option<Linear>> {
    let biases: Vec<&Tensor> = layers.iter().filter_map(|layer| layer.bias.as_ref()).collect();
    if ![0, layers.len()].contains(&biases.len()) {
        return Ok(None);
    }
    let floats: Vec<&Tensor> = layers.iter().filter_map(|layer| layer.weight.floats()).collect();
    let codes: Vec<&Codes> = layers.iter().filter_map(|layer| layer.weight.codes()).collect();
    let weight = if floats.len() == layers.len() {
        Some(Weight::Floats(Rc::new(cat(stream, &floats, 0)?)))
    } else if codes.len() == layers.len() {
        Codes::joined(stream, &codes)?.map(|codes| Weight::Codes(Box::new(codes)))
    } else {
        None
    };
    let bias = (!biases.is_empty()).then(|| cat(stream, &biases, 0)).transpose()?;
    Ok(weight.map(|weight| Linear { weight, bias }))
}
