//! A small transformer that learns to count, of layers of this crate and burn's optimizer, beside the same model of burn's own layers.
//!
//! `cargo run --example transformer`: seconds, in the emulator.

use burn::module::{Module, Param};
use burn::nn::{Embedding, EmbeddingConfig, LinearConfig, RmsNormConfig};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Device, Int, Tensor, TensorData, activation, module};
use warpwright_burn::loss::{CrossEntropyOptions, cross_entropy};
use warpwright_burn::ops::{self, AttentionOptions};
use warpwright_burn::{Error, Linear, RmsNorm};

const VOCABULARY: usize = 12;
const WIDTH: usize = 32;
const HEADS: usize = 4;
const STEPS: usize = 16;

/// Whose operations compute a model.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Layers {
    /// This crate's.
    Ours,
    /// burn's own.
    Burns,
}

impl Layers {
    fn linear<const D: usize>(self, layer: &Linear, x: Tensor<D>) -> Result<Tensor<D>, Error> {
        match self {
            Self::Ours => layer.forward(x),
            Self::Burns => Ok(module::linear(x, layer.weight.val(), layer.bias.as_ref().map(Param::val))),
        }
    }

    fn norm<const D: usize>(self, layer: &RmsNorm, x: Tensor<D>) -> Result<Tensor<D>, Error> {
        match self {
            Self::Ours => layer.forward(x),
            Self::Burns => {
                let mut theirs = RmsNormConfig::new(WIDTH).init(&x.device());
                theirs.gamma = layer.gamma.clone();
                Ok(theirs.forward(x))
            }
        }
    }

    fn attention(self, [q, k, v]: [Tensor<4>; 3]) -> Result<Tensor<4>, Error> {
        match self {
            Self::Ours => ops::attention(q, k, v, AttentionOptions { causal: true, ..Default::default() }),
            Self::Burns => {
                let options = AttentionModuleOptions { is_causal: true, scale: None, softcap: None };
                Ok(module::attention(q, k, v, None, None, options))
            }
        }
    }

    fn swiglu<const D: usize>(self, gate: Tensor<D>, up: Tensor<D>) -> Result<Tensor<D>, Error> {
        match self {
            Self::Ours => ops::swiglu(gate, up),
            Self::Burns => Ok(activation::silu(gate) * up),
        }
    }

    fn loss(self, logits: Tensor<2>, targets: Tensor<1, Int>) -> Result<Tensor<1>, Error> {
        match self {
            Self::Ours => cross_entropy(logits, targets, CrossEntropyOptions::default()),
            Self::Burns => {
                let layer = burn::nn::loss::CrossEntropyLossConfig::new().init(&logits.device());
                Ok(layer.forward(logits, targets))
            }
        }
    }
}

/// Attention and a gated unit, each behind a norm.
#[derive(Module, Debug)]
struct Block {
    attention_norm: RmsNorm,
    qkv: Linear,
    out: Linear,
    mlp_norm: RmsNorm,
    gate: Linear,
    up: Linear,
    down: Linear,
}

impl Block {
    fn new(device: &Device) -> Self {
        let norm = || RmsNorm::new(&RmsNormConfig::new(WIDTH), device);
        let linear = |k, n| LinearConfig::new(k, n).with_bias(false).init(device).into();
        Self {
            attention_norm: norm(),
            qkv: linear(WIDTH, 3 * WIDTH),
            out: linear(WIDTH, WIDTH),
            mlp_norm: norm(),
            gate: linear(WIDTH, 2 * WIDTH),
            up: linear(WIDTH, 2 * WIDTH),
            down: linear(2 * WIDTH, WIDTH),
        }
    }

    fn forward(&self, layers: Layers, x: Tensor<3>) -> Result<Tensor<3>, Error> {
        let [batch, steps, _] = x.dims();
        let qkv = layers.linear(&self.qkv, layers.norm(&self.attention_norm, x.clone())?)?;
        let heads = |part: Tensor<3>| part.reshape([batch, steps, HEADS, WIDTH / HEADS]).swap_dims(1, 2);
        let part = |index| heads(qkv.clone().narrow(2, index * WIDTH, WIDTH));
        let o = layers.attention([part(0), part(1), part(2)])?;
        let o = o.swap_dims(1, 2).reshape([batch, steps, WIDTH]);
        let x = x + layers.linear(&self.out, o)?;
        let hidden = layers.norm(&self.mlp_norm, x.clone())?;
        let (gate, up) = (layers.linear(&self.gate, hidden.clone())?, layers.linear(&self.up, hidden)?);
        Ok(x + layers.linear(&self.down, layers.swiglu(gate, up)?)?)
    }
}

/// A language model.
#[derive(Module, Debug)]
pub(crate) struct Model {
    tokens: Embedding,
    positions: Embedding,
    blocks: Vec<Block>,
    norm: RmsNorm,
    head: Linear,
}

impl Model {
    pub(crate) fn new(device: &Device) -> Self {
        Self {
            tokens: EmbeddingConfig::new(VOCABULARY, WIDTH).init(device),
            positions: EmbeddingConfig::new(STEPS, WIDTH).init(device),
            blocks: (0..2).map(|_| Block::new(device)).collect(),
            norm: RmsNorm::new(&RmsNormConfig::new(WIDTH), device),
            head: LinearConfig::new(WIDTH, VOCABULARY).with_bias(false).init(device).into(),
        }
    }

    /// The logits of the token after each of `tokens`, `[batch, steps]`.
    fn forward(&self, layers: Layers, tokens: Tensor<2, Int>) -> Result<Tensor<3>, Error> {
        let positions = Tensor::<1, Int>::arange(0..STEPS as i64, &tokens.device()).unsqueeze_dim(0);
        let mut x = self.tokens.forward(tokens) + self.positions.forward(positions);
        for block in &self.blocks {
            x = block.forward(layers, x)?;
        }
        layers.linear(&self.head, layers.norm(&self.norm, x)?)
    }
}

/// Sequences that count from different tokens with different strides, with one token more than a model reads.
fn sequences(device: &Device) -> Tensor<2, Int> {
    let token = |(start, stride, step): (usize, usize, usize)| ((start + stride * step) % VOCABULARY) as i64;
    let all = [(0, 1), (5, 2), (7, 3), (3, 5)];
    let tokens: Vec<i64> =
        all.iter().flat_map(|&(a, b)| (0..=STEPS).map(move |step| token((a, b, step)))).collect();
    Tensor::from_data(TensorData::new(tokens, [all.len(), STEPS + 1]), device)
}

/// The losses of that many training steps.
pub(crate) fn train(
    mut model: Model,
    layers: Layers,
    device: &Device,
    steps: usize,
) -> Result<Vec<f32>, Error> {
    let mut optimizer = AdamWConfig::new().init();
    let tokens = sequences(device);
    let (inputs, targets) =
        (tokens.clone().narrow(1, 0, STEPS), tokens.narrow(1, 1, STEPS).flatten::<1>(0, 1));
    let mut losses = Vec::new();
    for _ in 0..steps {
        let logits = model.forward(layers, inputs.clone())?.flatten::<2>(0, 1);
        let loss = layers.loss(logits, targets.clone())?;
        losses.push(loss.clone().into_scalar::<f32>());
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(1e-2, model, gradients);
    }
    Ok(losses)
}

fn main() -> Result<(), Error> {
    let device = Device::flex().autodiff();
    let model = Model::new(&device);
    let ours = train(model.clone(), Layers::Ours, &device, 20)?;
    let burns = train(model, Layers::Burns, &device, 20)?;
    for (step, (ours, burns)) in ours.iter().zip(burns).enumerate() {
        println!("step {step:2}: loss {ours:.5}, of burn's layers {burns:.5}");
    }
    Ok(())
}
