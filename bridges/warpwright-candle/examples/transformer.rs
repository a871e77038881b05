//! A small transformer that learns to count, of layers of this crate and candle's optimizer.
//!
//! `cargo run --example transformer`: seconds on the CPU, in the emulator. On a GPU put `Device::new_cuda(0)?` in the place of `Device::Cpu`.

use candle_core::{D, DType, Device, Module, Result, Tensor};
use candle_nn::{AdamW, Embedding, Optimizer, ParamsAdamW, VarBuilder, VarMap, embedding};
use warpwright_candle::ops::{AttentionOptions, attention, swiglu};
use warpwright_candle::rotary_emb::rope_thd;
use warpwright_candle::{Linear, RmsNorm, linear_no_bias, loss, rms_norm};

const VOCABULARY: usize = 12;
const WIDTH: usize = 32;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = WIDTH / HEADS;
const STEPS: usize = 16;

/// Attention of grouped heads and a gated unit, each behind a norm, as in Llama.
struct Block {
    attention_norm: RmsNorm,
    qkv: Linear,
    out: Linear,
    mlp_norm: RmsNorm,
    gate_up: Linear,
    down: Linear,
}

impl Block {
    fn new(vb: VarBuilder<'_>) -> Result<Self> {
        Ok(Self {
            attention_norm: rms_norm(WIDTH, 1e-6, vb.pp("attention_norm"))?,
            qkv: linear_no_bias(WIDTH, (HEADS + 2 * KV_HEADS) * HEAD_DIM, vb.pp("qkv"))?,
            out: linear_no_bias(WIDTH, WIDTH, vb.pp("out"))?,
            mlp_norm: rms_norm(WIDTH, 1e-6, vb.pp("mlp_norm"))?,
            gate_up: linear_no_bias(WIDTH, 4 * WIDTH, vb.pp("gate_up"))?,
            down: linear_no_bias(2 * WIDTH, WIDTH, vb.pp("down"))?,
        })
    }

    fn forward(&self, xs: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
        let (batch, steps, _) = xs.dims3()?;
        let qkv = self.qkv.forward(&self.attention_norm.forward(xs)?)?;
        // Parts of one tensor: read where they lie.
        let qkv = qkv.reshape((batch, steps, HEADS + 2 * KV_HEADS, HEAD_DIM))?;
        let q = rope_thd(&qkv.narrow(2, 0, HEADS)?, cos, sin)?;
        let k = rope_thd(&qkv.narrow(2, HEADS, KV_HEADS)?, cos, sin)?;
        let v = qkv.narrow(2, HEADS + KV_HEADS, KV_HEADS)?;
        let o = attention(&q, &k, &v, AttentionOptions { causal: true, ..Default::default() })?;
        let xs = (xs + self.out.forward(&o.reshape((batch, steps, WIDTH))?)?)?;
        let hidden = swiglu(&self.gate_up.forward(&self.mlp_norm.forward(&xs)?)?)?;
        &xs + self.down.forward(&hidden)?
    }
}

/// A language model.
struct Model {
    embedding: Embedding,
    blocks: Vec<Block>,
    norm: RmsNorm,
    head: Linear,
    cos: Tensor,
    sin: Tensor,
}

impl Model {
    fn new(vb: VarBuilder<'_>) -> Result<Self> {
        let pairs = HEAD_DIM / 2;
        let frequencies: Vec<f32> = (0..pairs).map(|i| 1e4f32.powf(-(i as f32) / pairs as f32)).collect();
        let steps = Tensor::arange(0, STEPS as u32, vb.device())?.to_dtype(DType::F32)?.unsqueeze(1)?;
        let angles = steps.matmul(&Tensor::from_vec(frequencies, (1, pairs), vb.device())?)?;
        Ok(Self {
            embedding: embedding(VOCABULARY, WIDTH, vb.pp("embedding"))?,
            blocks: (0..2).map(|i| Block::new(vb.pp(format!("block{i}")))).collect::<Result<_>>()?,
            norm: rms_norm(WIDTH, 1e-6, vb.pp("norm"))?,
            head: linear_no_bias(WIDTH, VOCABULARY, vb.pp("head"))?,
            cos: angles.cos()?,
            sin: angles.sin()?,
        })
    }

    /// The logits of the token after each of `tokens`, `[batch, steps]`.
    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        let mut xs = self.embedding.forward(tokens)?;
        for block in &self.blocks {
            xs = block.forward(&xs, &self.cos, &self.sin)?;
        }
        self.head.forward(&self.norm.forward(&xs)?)
    }
}

/// Sequences that count from different tokens with different strides, with one token more than a model reads.
fn sequences(device: &Device) -> Result<Tensor> {
    let token = |(start, stride, step): (usize, usize, usize)| ((start + stride * step) % VOCABULARY) as u32;
    let all = [(0, 1), (5, 2), (7, 3), (3, 5)];
    let tokens = all.iter().flat_map(|&(a, b)| (0..=STEPS).map(move |step| token((a, b, step))));
    Tensor::from_vec(tokens.collect::<Vec<_>>(), (all.len(), STEPS + 1), device)
}

/// The losses of that many training steps.
pub(crate) fn train(device: &Device, steps: usize) -> Result<Vec<f32>> {
    let variables = VarMap::new();
    let model = Model::new(VarBuilder::from_varmap(&variables, DType::F32, device))?;
    let mut optimizer = AdamW::new(variables.all_vars(), ParamsAdamW { lr: 1e-2, ..Default::default() })?;
    let tokens = sequences(device)?;
    let (inputs, targets) = (tokens.narrow(1, 0, STEPS)?, tokens.narrow(1, 1, STEPS)?.flatten_all()?);
    let step = |_| {
        let logits = model.forward(&inputs)?.flatten_to(D::Minus2)?;
        let loss = loss::cross_entropy(&logits, &targets)?;
        optimizer.backward_step(&loss)?;
        loss.to_scalar::<f32>()
    };
    (0..steps).map(step).collect()
}

fn main() -> Result<()> {
    for (step, loss) in train(&Device::Cpu, 20)?.iter().enumerate() {
        println!("step {step:2}: loss {loss:.4}");
    }
    Ok(())
}
