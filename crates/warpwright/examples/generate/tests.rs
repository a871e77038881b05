//! The numbers are right: the logits of a tiny model are those of the formulas in f64, in the prompt and in every step behind it.

use std::collections::{HashMap, HashSet};

use safetensors::{Dtype, SafeTensors};
use serde_json::json;
use warpwright::{DType, Device, Stream, Tensor, cast};

use super::common::Result;
use super::common::checkpoint::Checkpoint;
use super::common::random;
use super::common::reference::{self, dot};
use super::config::LlamaConfig;
use super::decoder::Decoder;
use super::llama::Llama;
use super::sampler::Sampler;
use super::stored::{self, Layout};

/// Heads in groups of three, an odd number of layers and angles of Llama 3.1.
fn tiny() -> LlamaConfig {
    let config = json!({
        "model_type": "llama", "vocab_size": 40, "hidden_size": 24, "intermediate_size": 56, "num_hidden_layers": 3,
        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-5,
        "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    });
    serde_json::from_value(config).expect("a configuration")
}

/// The model in plain Rust.
struct Reference {
    config: LlamaConfig,
    weights: HashMap<String, Vec<f64>>,
}

impl Reference {
    fn new(config: LlamaConfig, file: &[u8]) -> Self {
        Self { config, weights: reference::weights(file) }
    }

    /// Every logit of the tokens and of steps behind them is within `bound` of these.
    fn holds(&self, stream: &Stream, model: &Llama, float8: bool, bound: f64) -> Result<()> {
        let tokens = [3, 17, 0, 39, 5, 5, 21, 30];
        let want = self.logits(&tokens);
        let mut decoder = Decoder::new(stream, model, float8)?;
        // A prompt in two parts, then steps, the second of which is a launch of the graph alone.
        for part in [0..3, 3..5] {
            let logits = decoder.prefill(&tokens[part.clone()])?;
            let error = distance(stream, &logits, &want[part.end - 1])?;
            assert!(error < bound, "the prompt up to {part:?}: {error:e}");
        }
        for at in 5..tokens.len() {
            let logits = decoder.step(tokens[at])?;
            let error = distance(stream, logits, &want[at])?;
            assert!(error < bound, "step {at}: {error:e}");
        }
        let full = decoder.step(1).expect_err("the caches are full").to_string();
        assert!(full.contains("a text of 9 tokens"), "{full}");
        Ok(())
    }

    /// `weight x`
    fn linear(&self, name: &str, x: &[f64]) -> Vec<f64> {
        self.weights[&format!("{name}.weight")].chunks(x.len()).map(|row| dot(row, x)).collect()
    }

    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let rstd = (dot(x, x) / x.len() as f64 + self.config.rms_norm_eps).sqrt().recip();
        x.iter().zip(&self.weights[&format!("{name}.weight")]).map(|(x, weight)| x * rstd * weight).collect()
    }

    fn turned(&self, x: &[f64], position: usize) -> Vec<f64> {
        let (dim, frequencies) = (self.config.head_dim(), self.config.frequencies().expect("frequencies"));
        let mut y = x.to_vec();
        for (head, x) in y.chunks_mut(dim).zip(x.chunks(dim)) {
            for (pair, frequency) in frequencies.iter().enumerate() {
                let (sin, cos) = (position as f64 * frequency).sin_cos();
                head[pair] = x[pair] * cos - x[pair + dim / 2] * sin;
                head[pair + dim / 2] = x[pair + dim / 2] * cos + x[pair] * sin;
            }
        }
        y
    }

    /// The logits behind each of the tokens.
    fn logits(&self, tokens: &[i64]) -> Vec<Vec<f64>> {
        let (dim, heads, hidden) =
            (self.config.head_dim(), self.config.num_attention_heads, self.config.hidden_size);
        let group = heads / self.config.kv_heads();
        let table = &self.weights["model.embed_tokens.weight"];
        let row = |token: &i64| table[*token as usize * hidden..][..hidden].to_vec();
        let mut rows: Vec<Vec<f64>> = tokens.iter().map(row).collect();
        for layer in 0..self.config.num_hidden_layers {
            let name = |part: &str| format!("model.layers.{layer}.{part}");
            let (mut keys, mut values) = (Vec::new(), Vec::new());
            for (position, row) in rows.iter_mut().enumerate() {
                let x = self.norm(&name("input_layernorm"), row);
                let q = self.turned(&self.linear(&name("self_attn.q_proj"), &x), position);
                keys.push(self.turned(&self.linear(&name("self_attn.k_proj"), &x), position));
                values.push(self.linear(&name("self_attn.v_proj"), &x));
                let mut seen = vec![0.0; heads * dim];
                for (head, seen) in seen.chunks_mut(dim).enumerate() {
                    let of = |x: &[f64]| x[head / group * dim..][..dim].to_vec();
                    let score =
                        |k: &Vec<f64>| (dot(&q[head * dim..][..dim], &of(k)) / (dim as f64).sqrt()).exp();
                    let scores: Vec<f64> = keys.iter().map(score).collect();
                    let sum: f64 = scores.iter().sum();
                    for (score, value) in scores.iter().zip(&values) {
                        seen.iter_mut().zip(of(value)).for_each(|(seen, value)| *seen += score / sum * value);
                    }
                }
                add(row, &self.linear(&name("self_attn.o_proj"), &seen));
                let x = self.norm(&name("post_attention_layernorm"), row);
                let up = self.linear(&name("mlp.up_proj"), &x);
                let gate = self.linear(&name("mlp.gate_proj"), &x);
                let wide: Vec<f64> = gate.iter().zip(&up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
                add(row, &self.linear(&name("mlp.down_proj"), &wide));
            }
        }
        rows.iter().map(|row| self.linear("lm_head", &self.norm("model.norm", row))).collect()
    }
}

fn add(sum: &mut [f64], x: &[f64]) {
    sum.iter_mut().zip(x).for_each(|(sum, x)| *sum += x);
}

/// The largest difference between logits, in units of the largest logit.
fn distance(stream: &Stream, logits: &Tensor, want: &[f64]) -> Result<f64> {
    let got = cast(stream, logits, DType::F64)?.to_vec_on::<f64>(stream)?;
    let largest = want.iter().fold(0.0f64, |most, x| most.max(x.abs()));
    let differences = got.iter().zip(want).map(|(got, want)| (got - want).abs());
    assert_eq!(got.len(), want.len());
    Ok(differences.fold(0.0f64, f64::max) / largest)
}

#[test]
fn logits_are_those_of_the_formulas() -> Result<()> {
    let stream = Device::best().new_stream()?;
    let file = random::checkpoint(&tiny().weights(), Dtype::F32, 7)?;
    let reference = Reference::new(tiny(), &file);
    let model = Llama::load(&mut Checkpoint::from_bytes(file)?, &stream, tiny(), 8)?;
    reference.holds(&stream, &model, false, 2e-6)
}

#[test]
fn codes_of_every_layout_are_the_numbers_they_stand_for() -> Result<()> {
    let stream = Device::best().new_stream()?;
    let config = LlamaConfig {
        hidden_size: 64,
        intermediate_size: 96,
        num_hidden_layers: 1,
        num_attention_heads: 8,
        ..tiny()
    };
    let file = random::checkpoint(&config.weights(), Dtype::F32, 7)?;
    for layout in [
        Layout::ModelOptNvfp4,
        Layout::Nvfp4,
        Layout::Mxfp4,
        Layout::Int4,
        Layout::Int4Asymmetric,
        Layout::Int4ActOrder,
    ] {
        let (codes, weights) = stored::of_codes(&file, layout);
        let reference = Reference { config: config.clone(), weights };
        let model = Llama::load(&mut Checkpoint::from_bytes(codes)?, &stream, config.clone(), 8)?;
        let held = reference.holds(&stream, &model, false, 4e-6);
        held.map_err(|error| format!("{layout:?}: {error}"))?;
        // Half a byte an element, and the scales; all in f32 would be 4 bytes.
        let all: usize = config.weights().iter().map(|(_, shape)| shape.iter().product::<usize>()).sum();
        let floats = config.vocab_size * config.hidden_size;
        let codes = model.weight_bytes() as usize - 4 * floats;
        assert!(codes < all - floats, "{layout:?}: {codes} bytes");
    }
    Ok(())
}

#[test]
fn caches_of_e4m3_lose_little() -> Result<()> {
    let stream = Device::best().new_stream()?;
    if stream.device().target().sm < 89 {
        eprintln!("skipped: e4m3 is converted from sm_89 on");
        return Ok(());
    }
    let config = LlamaConfig { head_dim: Some(16), ..tiny() };
    let file = random::checkpoint(&config.weights(), Dtype::BF16, 7)?;
    let mut widened = Vec::new();
    for (name, view) in SafeTensors::deserialize(&file)?.iter() {
        let wide = |half: &[u8; 2]| f64::from(f32::from_bits(u32::from(u16::from_le_bytes(*half)) << 16));
        widened.push((name.to_owned(), view.data().as_chunks().0.iter().map(wide).collect()));
    }
    let reference = Reference { config: config.clone(), weights: widened.into_iter().collect() };
    let model = Llama::load(&mut Checkpoint::from_bytes(file)?, &stream, config, 8)?;
    // Roundings to bf16 alone; in each of three layers those of keys and values to four bits, up to 2^-4 and half of that on average.
    reference.holds(&stream, &model, false, 0.02)?;
    reference.holds(&stream, &model, true, 3.0 / 32.0)?;
    let mut halves = Decoder::new(&stream, &model, false)?;
    let mut eighths = Decoder::new(&stream, &model, true)?;
    let numbers = |logits: Tensor| {
        Ok::<_, warpwright::Error>(cast(&stream, &logits, DType::F64)?.to_vec_on::<f64>(&stream)?)
    };
    let [a, b] = [&mut halves, &mut eighths].map(|decoder| decoder.prefill(&[3, 17, 0]));
    assert_ne!(numbers(a?)?, numbers(b?)?, "the caches are of the same type");
    Ok(())
}

#[test]
fn tokens_that_the_model_does_not_have_are_refused() -> Result<()> {
    let stream = Device::best().new_stream()?;
    let mut checkpoint = Checkpoint::from_bytes(random::checkpoint(&tiny().weights(), Dtype::F32, 7)?)?;
    let model = Llama::load(&mut checkpoint, &stream, tiny(), 4)?;
    let mut decoder = Decoder::new(&stream, &model, false)?;
    for token in [-1, 40] {
        assert!(decoder.step(token).is_err() && decoder.prefill(&[token]).is_err());
    }
    let lacking = Llama::load(&mut checkpoint, &stream, LlamaConfig { num_hidden_layers: 4, ..tiny() }, 4);
    let error = lacking.err().expect("three layers are no four").to_string();
    assert!(error.contains("model.layers.3.input_layernorm.weight"), "{error}");
    Ok(())
}

#[test]
fn steps_that_choose_their_successors_take_the_likeliest() -> Result<()> {
    let stream = Device::best().new_stream()?;
    let file = random::checkpoint(&tiny().weights(), Dtype::F32, 7)?;
    let model = Llama::load(&mut Checkpoint::from_bytes(file)?, &stream, tiny(), 16)?;
    let mut sampler = Sampler::new(0.0, 1.0, 0)?;
    let mut decoder = Decoder::new(&stream, &model, false)?;
    decoder.prefill(&[3, 17])?;
    let (mut token, mut want) = (5, Vec::new());
    for _ in 0..14 {
        token = sampler.choose(&stream, decoder.step(token)?)?;
        want.push(token);
    }
    assert!(want.iter().collect::<HashSet<_>>().len() > 2, "few tokens: {want:?}");

    // In parts, of which the second is stopped while a step runs that nobody wants, and the third goes on before that.
    let mut decoder = Decoder::new(&stream, &model, false)?;
    decoder.prefill(&[3, 17])?;
    let mut got = Vec::new();
    for (count, stop) in [(4, 4), (6, 3), (7, 7)] {
        let token = got.last().copied().unwrap_or(5);
        let end = got.len() + stop;
        decoder.follow(token, count, |token| {
            got.push(token);
            got.len() < end
        })?;
    }
    assert_eq!(got, want);
    let full = decoder.follow(1, 1, |_| true).expect_err("the caches are full").to_string();
    assert!(full.contains("a text of 17 tokens"), "{full}");
    Ok(())
}

/// How often each of four tokens with probabilities 0.1, 0.5, 0.25 and 0.15 is drawn.
fn shares(temperature: f64, top_p: f64) -> Result<[f64; 4]> {
    let stream = Device::best().new_stream()?;
    let logits: Vec<f32> = [0.1f32, 0.5, 0.25, 0.15].map(f32::ln).to_vec();
    let logits = Tensor::from_slice_on(&stream, &logits, &[1, 4])?;
    let mut sampler = Sampler::new(temperature, top_p, 3)?;
    let mut counts = [0.0; 4];
    for _ in 0..400 {
        counts[sampler.choose(&stream, &logits)? as usize] += 1.0;
    }
    Ok(counts.map(|count| count / 400.0))
}

#[test]
fn tokens_are_drawn_by_their_probabilities() -> Result<()> {
    let near =
        |got: [f64; 4], want: [f64; 4]| got.iter().zip(&want).all(|(got, want)| (got - want).abs() < 0.08);
    assert_eq!(shares(0.0, 1.0)?, [0.0, 1.0, 0.0, 0.0]);
    let all = shares(1.0, 1.0)?;
    assert!(near(all, [0.1, 0.5, 0.25, 0.15]), "{all:?}");
    // Half and a quarter reach 0.7; drawn at half the temperature they are as their squares.
    let two = shares(1.0, 0.7)?;
    assert!(near(two, [0.0, 0.667, 0.333, 0.0]) && two[0] + two[3] == 0.0, "{two:?}");
    let colder = shares(0.5, 0.7)?;
    assert!(near(colder, [0.0, 1.0, 0.0, 0.0]) && colder[0] + colder[3] == 0.0, "{colder:?}");
    assert!(Sampler::new(-1.0, 1.0, 0).is_err() && Sampler::new(1.0, 1.5, 0).is_err());
    Ok(())
}
