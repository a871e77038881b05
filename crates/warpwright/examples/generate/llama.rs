//! The decoder of Touvron et al. 2023 (arXiv:2302.13971) with grouped heads, with the names of weights that transformers'
//! `LlamaForCausalLM` has.

use std::rc::Rc;

use warpwright::elementwise::{Expr, map_into};
use warpwright::embedding::check_indices;
use warpwright::kv_cache::CacheRotary;
use warpwright::layer_norm::RowNormOptions;
use warpwright::{DType, Stream, Tensor, TensorRef, embedding, rms_norm};

use super::cache::Cache;
use super::common::Result;
use super::common::checkpoint::Checkpoint;
use super::common::linear::{Linear, Linears};
use super::config::LlamaConfig;

/// Attention and a gated pair of linear layers, each with a norm before and a residual around it.
struct Layer {
    input_norm: Tensor,
    /// Queries, keys and values.
    qkv: Linears,
    o: Linear,
    post_attention_norm: Tensor,
    gate_up: Linears,
    down: Linear,
}

impl Layer {
    fn load(checkpoint: &mut Checkpoint, stream: &Stream, number: usize, dtype: DType) -> Result<Self> {
        let name = |part: &str| format!("model.layers.{number}.{part}");
        let mut norm = |part| checkpoint.tensor(stream, &name(part), dtype);
        let (input_norm, post_attention_norm) =
            (norm("input_layernorm.weight")?, norm("post_attention_layernorm.weight")?);
        let qkv = ["q", "k", "v"].map(|part| name(&format!("self_attn.{part}_proj")));
        let gate_up = ["gate", "up"].map(|part| name(&format!("mlp.{part}_proj")));
        Ok(Self {
            input_norm,
            qkv: Linears::load(checkpoint, stream, &qkv, dtype)?,
            o: Linear::load(checkpoint, stream, &name("self_attn.o_proj"), dtype)?,
            post_attention_norm,
            gate_up: Linears::load(checkpoint, stream, &gate_up, dtype)?,
            down: Linear::load(checkpoint, stream, &name("mlp.down_proj"), dtype)?,
        })
    }

    /// Bytes of the weights that a step reads.
    fn weight_bytes(&self) -> u64 {
        self.qkv.bytes() + self.o.bytes() + self.gate_up.bytes() + self.down.bytes()
    }
}

/// Token ids to logits.
pub(crate) struct Llama {
    config: LlamaConfig,
    /// `[vocab_size, hidden_size]`
    words: Rc<Tensor>,
    layers: Vec<Layer>,
    norm: Tensor,
    lm_head: Linear,
    /// `[capacity, head_dim / 2]` in f32: the angles of each position.
    cos: Tensor,
    sin: Tensor,
}

impl Llama {
    /// In the element type of the checkpoint's norms, for texts of up to `capacity` tokens.
    pub(crate) fn load(
        checkpoint: &mut Checkpoint,
        stream: &Stream,
        config: LlamaConfig,
        capacity: usize,
    ) -> Result<Self> {
        if !["llama", "qwen2"].contains(&config.model_type.as_str()) {
            return Err(
                format!("model_type is {}; this example has llama and qwen2", config.model_type).into()
            );
        }
        let dtype = checkpoint.dtype("model.norm.weight").unwrap_or(DType::F32);
        let layers = 0..config.num_hidden_layers;
        let layers =
            layers.map(|number| Layer::load(checkpoint, stream, number, dtype)).collect::<Result<_>>()?;
        let words = Rc::new(checkpoint.tensor(stream, "model.embed_tokens.weight", dtype)?);
        let lm_head = match checkpoint.contains("lm_head.weight") {
            true => Linear::load(checkpoint, stream, "lm_head", dtype)?,
            false => Linear::new(words.clone()),
        };
        let frequencies = config.frequencies()?;
        let table = |f: fn(f64) -> f64| {
            let angles =
                (0..capacity).flat_map(|at| frequencies.iter().map(move |turn| f(at as f64 * turn) as f32));
            Tensor::from_slice_on(stream, &angles.collect::<Vec<f32>>(), &[capacity, frequencies.len()])
        };
        Ok(Self {
            norm: checkpoint.tensor(stream, "model.norm.weight", dtype)?,
            words,
            layers,
            lm_head,
            cos: table(f64::cos)?,
            sin: table(f64::sin)?,
            config,
        })
    }

    pub(crate) fn config(&self) -> &LlamaConfig {
        &self.config
    }

    /// Tokens of the longest text.
    pub(crate) fn capacity(&self) -> usize {
        self.cos.shape()[0]
    }

    /// Whether the model has all of `tokens`, and room for a text of `length` tokens.
    pub(crate) fn check(&self, tokens: &[i64], length: usize) -> Result<()> {
        check_indices(tokens, self.config.vocab_size)?;
        let capacity = self.capacity();
        if length > capacity {
            return Err(format!("a text of {length} tokens; the caches have room for {capacity}").into());
        }
        Ok(())
    }

    /// An empty cache of each layer, of e4m3 or of the type of the model.
    pub(crate) fn caches(&self, stream: &Stream, float8: bool) -> Result<Vec<Cache>> {
        let shape = [self.capacity(), self.config.kv_heads(), self.config.head_dim()];
        let dtype = if float8 { DType::F8E4M3 } else { self.words.dtype() };
        self.layers.iter().map(|_| Ok(Cache::new(stream, dtype, shape)?)).collect()
    }

    /// Bytes of the weights that a step reads.
    pub(crate) fn weight_bytes(&self) -> u64 {
        self.layers.iter().map(Layer::weight_bytes).sum::<u64>() + self.lm_head.bytes()
    }

    /// `x`, and the sum of `x` and `residual`, from whose norm it is.
    fn norm(
        &self,
        stream: &Stream,
        x: Tensor,
        residual: Option<&Tensor>,
        weight: &Tensor,
    ) -> Result<(Tensor, Tensor)> {
        let (weight, eps) = (Some(weight), Some(self.config.rms_norm_eps));
        let options = RowNormOptions { residual, weight, eps, inference: true, ..Default::default() };
        let out = rms_norm(stream, &x, options)?;
        Ok((out.y, out.z.unwrap_or(x)))
    }

    /// The logits `[1, vocab_size]` of the token behind the last of `tokens`, `[tokens]` in i64, whose keys and values are added
    /// to the caches. The text with these tokens has as many as `length`, `[1]` in i32, says.
    pub(crate) fn forward(
        &self,
        stream: &Stream,
        tokens: &Tensor,
        length: &Tensor,
        caches: &mut [Cache],
    ) -> Result<Tensor> {
        let (count, dim) = (tokens.len(), self.config.head_dim());
        let mut sum = None;
        let mut y = embedding(stream, &self.words, tokens)?;
        for (layer, cache) in self.layers.iter().zip(caches) {
            let (x, residual) = self.norm(stream, y, sum.as_ref(), &layer.input_norm)?;
            let qkv = layer.qkv.forward(stream, &x)?;
            let qkv = [qkv.by_heads(0, dim)?, qkv.by_heads(1, dim)?, qkv.by_heads(2, dim)?];
            let rotary = CacheRotary::new(&self.cos, &self.sin);
            let seen = cache.attend(stream, qkv, rotary, length.as_ref())?;
            let seen = seen.reshape(&[count, self.config.num_attention_heads * dim])?;

            let seen = layer.o.forward(stream, &seen)?;
            let (x, residual) = self.norm(stream, seen, Some(&residual), &layer.post_attention_norm)?;
            let gate_up = layer.gate_up.forward(stream, &x)?;
            let wide = swiglu(stream, gate_up.of(0)?, gate_up.of(1)?)?;
            y = layer.down.forward(stream, &wide)?;
            sum = Some(residual);
        }
        let (x, _) = self.norm(stream, y, sum.as_ref(), &self.norm)?;
        Ok(self.lm_head.forward(stream, &last_row(stream, x)?)?)
    }
}

/// `silu(gate) up`, of rows that may lie apart.
fn swiglu(stream: &Stream, gate: TensorRef<'_>, up: TensorRef<'_>) -> Result<Tensor> {
    let mut y = Tensor::empty_on(stream, gate.dtype(), gate.shape())?;
    let [x, factor] = Expr::inputs();
    map_into(stream, vec![gate.into(), up.into()], &[x.silu() * factor], &[], vec![y.as_mut()])?;
    Ok(y)
}

/// `[1, width]` of `[rows, width]`.
fn last_row(stream: &Stream, x: Tensor) -> Result<Tensor> {
    let &[rows, width] = x.shape() else { unreachable!("rows have two dimensions") };
    if rows == 1 {
        return Ok(x);
    }
    let mut last = Tensor::empty_on(stream, x.dtype(), &[1, width])?;
    let row = last.buffer().bytes();
    stream.copy(last.buffer_mut(), 0, x.buffer(), x.buffer().bytes() - row, row)?;
    Ok(last)
}
