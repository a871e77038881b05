//! The encoder of Devlin et al. 2018 (arXiv:1810.04805), with the names of weights that transformers' `BertModel` has.

use serde::Deserialize;
use warpwright::activation::Activation;
use warpwright::attention::Scores;
use warpwright::elementwise::{Expr, map};
use warpwright::layer_norm::RowNormOptions;
use warpwright::{DType, Stream, Tensor, attention, embedding, layer_norm};

use super::common::Result;
use super::common::checkpoint::Checkpoint;
use super::common::linear::Linear;

/// The entries of `config.json` that matter here.
#[derive(Clone, Deserialize)]
pub(crate) struct BertConfig {
    pub(crate) num_hidden_layers: usize,
    pub(crate) num_attention_heads: usize,
    pub(crate) max_position_embeddings: usize,
    pub(crate) hidden_act: String,
    pub(crate) layer_norm_eps: f64,
}

/// A layer norm of a sum.
struct Norm {
    weight: Tensor,
    bias: Tensor,
    eps: f64,
}

impl Norm {
    fn load(checkpoint: &mut Checkpoint, stream: &Stream, name: &str, eps: f64) -> Result<Self> {
        let mut part =
            |part: &str| checkpoint.tensor(stream, &format!("{name}.LayerNorm.{part}"), DType::F32);
        Ok(Self { weight: part("weight")?, bias: part("bias")?, eps })
    }

    fn forward(&self, stream: &Stream, x: &Tensor, residual: Option<&Tensor>) -> Result<Tensor> {
        let (weight, bias, eps) = (Some(&self.weight), Some(&self.bias), Some(self.eps));
        let options = RowNormOptions { residual, weight, bias, eps, inference: true, ..Default::default() };
        Ok(layer_norm(stream, x, options)?.y)
    }
}

/// Attention and two linear layers, each with a residual and a norm behind.
struct Layer {
    query: Linear,
    key: Linear,
    value: Linear,
    attention_output: Linear,
    attention_norm: Norm,
    intermediate: Linear,
    output: Linear,
    output_norm: Norm,
}

impl Layer {
    fn load(checkpoint: &mut Checkpoint, stream: &Stream, number: usize, eps: f64) -> Result<Self> {
        let name = |part: &str| format!("encoder.layer.{number}.{part}");
        let mut linear = |part| Linear::load(checkpoint, stream, &name(part), DType::F32);
        Ok(Self {
            query: linear("attention.self.query")?,
            key: linear("attention.self.key")?,
            value: linear("attention.self.value")?,
            attention_output: linear("attention.output.dense")?,
            intermediate: linear("intermediate.dense")?,
            output: linear("output.dense")?,
            attention_norm: Norm::load(checkpoint, stream, &name("attention.output"), eps)?,
            output_norm: Norm::load(checkpoint, stream, &name("output"), eps)?,
        })
    }

    /// `x` is `[batch, steps, hidden_size]`.
    fn forward(&self, stream: &Stream, x: &Tensor, heads: usize, lengths: &Tensor) -> Result<Tensor> {
        let &[batch, steps, hidden] = x.shape() else { unreachable!("hidden states have three dimensions") };
        let by_heads = |linear: &Linear| -> Result<Tensor> {
            Ok(linear.forward(stream, x)?.reshape(&[batch, steps, heads, hidden / heads])?)
        };
        let [q, k, v] = [by_heads(&self.query)?, by_heads(&self.key)?, by_heads(&self.value)?];
        // Keys behind the end of a sentence are padding.
        let scores = Scores { key_lengths: Some(lengths.as_ref()), ..Scores::default() };
        let seen = attention(stream, &q, &k, &v, scores)?.o.reshape(x.shape())?;
        let x =
            self.attention_norm.forward(stream, &self.attention_output.forward(stream, &seen)?, Some(x))?;

        let wide = self.intermediate.activated(stream, &x, Some(Activation::GeluErf))?;
        self.output_norm.forward(stream, &self.output.forward(stream, &wide)?, Some(&x))
    }
}

/// Token ids to hidden states.
pub(crate) struct Bert {
    config: BertConfig,
    /// `[vocab_size, hidden_size]`
    words: Tensor,
    /// `[max_position_embeddings, hidden_size]`
    positions: Tensor,
    /// `[types of tokens, hidden_size]`, of which all tokens here have the first.
    types: Tensor,
    norm: Norm,
    layers: Vec<Layer>,
}

impl Bert {
    pub(crate) fn load(checkpoint: &mut Checkpoint, stream: &Stream, config: BertConfig) -> Result<Self> {
        if config.hidden_act != "gelu" {
            return Err(format!("hidden_act is {}; this example has gelu", config.hidden_act).into());
        }
        let eps = config.layer_norm_eps;
        let mut table = |name: &str| {
            checkpoint.tensor(stream, &format!("embeddings.{name}_embeddings.weight"), DType::F32)
        };
        let (words, positions, types) = (table("word")?, table("position")?, table("token_type")?);
        let layers = 0..config.num_hidden_layers;
        let layers =
            layers.map(|number| Layer::load(checkpoint, stream, number, eps)).collect::<Result<_>>()?;
        let norm = Norm::load(checkpoint, stream, "embeddings", eps)?;
        Ok(Self { config, words, positions, types, norm, layers })
    }

    pub(crate) fn max_tokens(&self) -> usize {
        self.config.max_position_embeddings
    }

    /// The last hidden states `[batch, steps, hidden_size]` of tokens `[batch, steps]` in i64, of which each sentence has as many as
    /// `lengths`, `[batch]` in i32, says; what stands behind its end means nothing.
    pub(crate) fn forward(&self, stream: &Stream, tokens: &Tensor, lengths: &Tensor) -> Result<Tensor> {
        let steps = tokens.shape().last().copied().unwrap_or(0);
        let places: Vec<i64> = (0..steps as i64).collect();
        let places = embedding(stream, &self.positions, &Tensor::from_slice_on(stream, &places, &[steps])?)?;
        let kind = embedding(stream, &self.types, &Tensor::zeros_on(stream, DType::I64, &[1])?)?;
        let [word, place, of_type] = Expr::inputs();
        let words = embedding(stream, &self.words, tokens)?;
        let x = map(stream, &[&words, &places, &kind], &(word + of_type + place), &[], DType::F32)?;
        let mut x = self.norm.forward(stream, &x, None)?;
        for layer in &self.layers {
            x = layer.forward(stream, &x, self.config.num_attention_heads, lengths)?;
        }
        Ok(x)
    }
}
