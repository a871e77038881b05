//! The fields of a checkpoint's `config.json`.

use std::f64::consts::TAU;

use serde::Deserialize;
use serde_json::Value;

use super::common::Result;

/// The entries of `config.json` that matter here.
#[derive(Clone, Deserialize)]
pub(crate) struct LlamaConfig {
    pub(crate) model_type: String,
    pub(crate) vocab_size: usize,
    pub(crate) hidden_size: usize,
    pub(crate) intermediate_size: usize,
    pub(crate) num_hidden_layers: usize,
    pub(crate) num_attention_heads: usize,
    /// As many as `num_attention_heads` if it is missing.
    pub(crate) num_key_value_heads: Option<usize>,
    /// `hidden_size / num_attention_heads` if it is missing.
    pub(crate) head_dim: Option<usize>,
    pub(crate) rms_norm_eps: f64,
    /// Where transformers 4 writes what transformers 5 has in `rope_parameters`.
    pub(crate) rope_theta: Option<f64>,
    #[serde(alias = "rope_scaling")]
    pub(crate) rope_parameters: Option<Rope>,
    /// Whether the table of the tokens is the weight of the last layer, too.
    #[serde(default)]
    pub(crate) tie_word_embeddings: bool,
    /// The token that ends a text, or several.
    #[serde(default)]
    pub(crate) eos_token_id: Value,
}

/// How the angles of the rotary embedding depend on the pair of elements.
#[derive(Clone, Deserialize)]
pub(crate) struct Rope {
    #[serde(alias = "type")]
    rope_type: Option<String>,
    rope_theta: Option<f64>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
}

impl LlamaConfig {
    pub(crate) fn kv_heads(&self) -> usize {
        self.num_key_value_heads.unwrap_or(self.num_attention_heads)
    }

    pub(crate) fn head_dim(&self) -> usize {
        self.head_dim.unwrap_or(self.hidden_size / self.num_attention_heads)
    }

    pub(crate) fn ends(&self, token: i64) -> bool {
        let is = |id: &Value| id.as_i64() == Some(token);
        is(&self.eos_token_id) || self.eos_token_id.as_array().is_some_and(|ids| ids.iter().any(is))
    }

    /// The weights by name, with their shapes.
    pub(crate) fn weights(&self) -> Vec<(String, Vec<usize>)> {
        let (hidden, wide, words) = (self.hidden_size, self.intermediate_size, self.vocab_size);
        let [q, kv] = [self.num_attention_heads, self.kv_heads()].map(|heads| heads * self.head_dim());
        let of_layer = [
            ("input_layernorm", vec![hidden]),
            ("self_attn.q_proj", vec![q, hidden]),
            ("self_attn.k_proj", vec![kv, hidden]),
            ("self_attn.v_proj", vec![kv, hidden]),
            ("self_attn.o_proj", vec![hidden, q]),
            ("post_attention_layernorm", vec![hidden]),
            ("mlp.gate_proj", vec![wide, hidden]),
            ("mlp.up_proj", vec![wide, hidden]),
            ("mlp.down_proj", vec![hidden, wide]),
        ];
        let layers = (0..self.num_hidden_layers).flat_map(|number| {
            let named = |(part, shape): &(&str, Vec<usize>)| {
                (format!("model.layers.{number}.{part}.weight"), shape.clone())
            };
            of_layer.iter().map(named).collect::<Vec<_>>()
        });
        let around = [
            ("model.embed_tokens", vec![words, hidden]),
            ("model.norm", vec![hidden]),
            ("lm_head", vec![words, hidden]),
        ];
        let around = around.into_iter().take(if self.tie_word_embeddings { 2 } else { 3 });
        layers.chain(around.map(|(name, shape)| (format!("{name}.weight"), shape))).collect()
    }

    /// The angle of a position of each pair of elements of a head.
    pub(crate) fn frequencies(&self) -> Result<Vec<f64>> {
        let rope = self.rope_parameters.as_ref();
        let theta = rope.and_then(|rope| rope.rope_theta).or(self.rope_theta).unwrap_or(10_000.0);
        let dim = self.head_dim();
        let plain = (0..dim / 2).map(|pair| theta.powf(-2.0 * pair as f64 / dim as f64));
        let Some(rope) = rope else { return Ok(plain.collect()) };
        match rope.rope_type.as_deref() {
            None | Some("default") => Ok(plain.collect()),
            Some("llama3") => plain.map(|frequency| rope.llama3(frequency)).collect(),
            Some(other) => Err(format!("rope_type is {other}; this example has default and llama3").into()),
        }
    }
}

impl Rope {
    /// Llama 3.1: waves that are long beside the context of the first training are slowed down, short ones not.
    fn llama3(&self, frequency: f64) -> Result<f64> {
        let [factor, low, high, context] = [
            ("factor", self.factor),
            ("low_freq_factor", self.low_freq_factor),
            ("high_freq_factor", self.high_freq_factor),
            ("original_max_position_embeddings", self.original_max_position_embeddings),
        ]
        .map(|(name, value)| value.ok_or_else(|| format!("rope of type llama3 without {name}")));
        let (factor, low, high, waves) = (factor?, low?, high?, context? * frequency / TAU);
        let kept = ((waves - low) / (high - low)).clamp(0.0, 1.0);
        Ok(frequency * (kept + (1.0 - kept) / factor))
    }
}
