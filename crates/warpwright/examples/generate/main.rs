//! A language model of the shape of Llama with this library alone: it reads a text and continues it.
//!
//! `cargo run --release -p warpwright --example generate -- [FOLDER] [--prompt TEXT] [--tokens N] [--temperature T] [--top-p P] [--seed N]
//! [--kv-cache e4m3]`:
//! the folder has `config.json`, safetensors files in f32 or 16 bits, or as `warpwright quantize` writes them in the formats bnb-nf4,
//! compressed-tensors-int4, nvfp4 and mxfp4 (`warpwright convert` makes these of GPTQ and AWQ), and `tokenizer.json`; without that file
//! tokens are bytes. `--kv-cache e4m3` keeps keys and values of models of 16 bits in 8, on GPUs from sm_89 on. Without a folder the weights are random, on a GPU of the sizes of Llama 3.2 1B. A
//! temperature of 0, the default, takes the likeliest token.
//!
//! The prompt is read in one pass. Then a step a token is one launch of a CUDA graph; in the emulator, which is used where there is no GPU,
//! the graph is the list of its launches. Where the likeliest token is taken the graph chooses it, and the next step begins before the host
//! has seen it.

mod cache;
#[path = "../common/mod.rs"]
#[allow(dead_code, reason = "each example of a model takes a part of it")]
mod common;
mod config;
mod decoder;
mod llama;
mod sampler;
#[cfg(test)]
mod stored;
#[cfg(test)]
mod tests;
mod text;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use safetensors::Dtype;
use serde_json::json;
use warpwright::{DType, Device, Event, Stream, Tensor};

use common::checkpoint::{Checkpoint, read_json};
use common::random;
use common::{Result, exit};
use config::LlamaConfig;
use decoder::Decoder;
use llama::Llama;
use sampler::Sampler;
use text::Text;

const USAGE: &str = "usage: generate [FOLDER] [--prompt TEXT] [--tokens N] [--temperature T] [--top-p P] [--seed N] [--kv-cache e4m3]";

/// The command line.
struct Arguments {
    folder: Option<PathBuf>,
    prompt: String,
    tokens: usize,
    temperature: f64,
    top_p: f64,
    seed: u64,
    /// Whether keys and values are kept in e4m3.
    float8: bool,
}

impl Arguments {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self> {
        let mut arguments = Self {
            folder: None,
            prompt: "The quick brown fox".to_owned(),
            tokens: 32,
            temperature: 0.0,
            top_p: 1.0,
            seed: 0,
            float8: false,
        };
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} without a value; {USAGE}"));
            match word.as_str() {
                "--prompt" => arguments.prompt = value()?,
                "--tokens" => arguments.tokens = value()?.parse()?,
                "--temperature" => arguments.temperature = value()?.parse()?,
                "--top-p" => arguments.top_p = value()?.parse()?,
                "--seed" => arguments.seed = value()?.parse()?,
                "--kv-cache" => match value()?.as_str() {
                    "e4m3" => arguments.float8 = true,
                    other => return Err(format!("--kv-cache {other}: there is e4m3; {USAGE}").into()),
                },
                _ if word.starts_with('-') || arguments.folder.is_some() => {
                    return Err(format!("`{word}`; {USAGE}").into());
                }
                _ => arguments.folder = Some(word.into()),
            }
        }
        Ok(arguments)
    }
}

/// A model with random weights and its configuration: for a GPU one of the sizes of Llama 3.2 1B, else a tiny one.
fn random_model(emulated: bool, seed: u64) -> Result<(LlamaConfig, Checkpoint)> {
    let (sizes, dtype) = if emulated {
        let sizes = json!({
            "vocab_size": 256, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "model_type": "llama",
        });
        (sizes, Dtype::F32)
    } else {
        let sizes = json!({
            "vocab_size": 128_256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
            "num_attention_heads": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "model_type": "llama",
            "rope_theta": 500_000.0, "tie_word_embeddings": true,
        });
        (sizes, Dtype::BF16)
    };
    let config: LlamaConfig = serde_json::from_value(sizes)?;
    let bytes = random::checkpoint(&config.weights(), dtype, seed)?;
    Ok((config, Checkpoint::from_bytes(bytes)?))
}

/// Bytes that the memory of a GPU delivers in a second, by a copy; none for an emulator.
fn bandwidth(stream: &Stream) -> Result<Option<f64>> {
    if stream.device().is_emulator() {
        return Ok(None);
    }
    let x = Tensor::zeros_on(stream, DType::U8, &[1 << 29])?;
    let mut y = x.clone_on(stream)?;
    let (start, end) = (Event::new(stream.device())?, Event::new(stream.device())?);
    start.record(stream)?;
    y.copy_from(stream, &x)?;
    end.record(stream)?;
    end.synchronize()?;
    Ok(start.elapsed_us(&end)?.map(|us| 2.0 * x.len() as f64 / us * 1e6))
}

fn main() -> ExitCode {
    exit(run())
}

fn run() -> Result<()> {
    let arguments = Arguments::parse(std::env::args().skip(1))?;
    let stream = Device::best().new_stream()?;
    let (config, mut checkpoint) = match &arguments.folder {
        Some(folder) => (read_json(folder, "config.json")?, Checkpoint::open(folder)?),
        None => random_model(stream.device().is_emulator(), arguments.seed)?,
    };
    let text = Text::open(arguments.folder.as_deref(), config.vocab_size)?;
    let prompt = text.tokens(&arguments.prompt)?;
    let mut sampler = Sampler::new(arguments.temperature, arguments.top_p, arguments.seed)?;
    let model = Llama::load(&mut checkpoint, &stream, config, prompt.len() + arguments.tokens)?;
    let mut decoder = Decoder::new(&stream, &model, arguments.float8)?;
    if !stream.device().is_emulator() {
        // Kernels are loaded before time is taken.
        Decoder::new(&stream, &model, arguments.float8)?.prefill(&prompt)?;
        stream.synchronize()?;
    }

    let start = Instant::now();
    let mut token = sampler.choose(&stream, &decoder.prefill(&prompt)?)?;
    let prefill = start.elapsed();
    let (mut tokens, mut times) = (prompt.clone(), Vec::new());
    let mut take = |token| {
        tokens.push(token);
        times.push(Instant::now());
        !model.config().ends(token)
    };
    let count = if take(token) { arguments.tokens.saturating_sub(1) } else { 0 };
    if sampler.is_greedy() {
        decoder.follow(token, count, take)?;
    } else {
        for _ in 0..count {
            token = sampler.choose(&stream, decoder.step(token)?)?;
            if !take(token) {
                break;
            }
        }
    }
    println!("{}", text.of(&tokens)?);

    let count = prompt.len();
    println!("\n{}: {count} tokens read in {:.1} ms", stream.device().name(), prefill.as_secs_f64() * 1e3);
    // The first step captures the graph.
    if let [_, first, .., last] = times[..] {
        let rate = (times.len() - 2) as f64 / (last - first).as_secs_f64();
        let bytes = model.weight_bytes() as f64;
        print!("{rate:.1} tokens a second; a step reads {:.1} MB of weights", bytes / 1e6);
        match bandwidth(&stream)? {
            Some(bandwidth) => println!(
                ", which {:.2} TB/s deliver {:.1} times a second: {:.0} % of that",
                bandwidth / 1e12,
                bandwidth / bytes,
                100.0 * rate * bytes / bandwidth
            ),
            None => println!(),
        }
    }
    Ok(())
}
