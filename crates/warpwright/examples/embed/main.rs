//! Embeddings of sentences by a BERT such as all-MiniLM-L6-v2 with this library alone, and how similar the sentences are.
//!
//! `cargo run --release -p warpwright --example embed -- FOLDER [SENTENCE..]`: the folder has `config.json`, `tokenizer.json` and
//! safetensors files, in f32 or 16 bits, or as `warpwright quantize --format bnb-nf4` writes them. Without a GPU it runs in the emulator,
//! some seconds for a few short sentences. The embeddings are those of the package sentence-transformers: the mean over the tokens of a
//! sentence, of length 1.

mod bert;
#[path = "../common/mod.rs"]
#[allow(dead_code, reason = "each example of a model takes a part of it")]
mod common;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use serde::Deserialize;
use tokenizers::{Tokenizer, TruncationParams};
use warpwright::layer_norm::RowNormOptions;
use warpwright::matmul::MatmulOptions;
use warpwright::{Device, Stream, Tensor, matmul, rms_norm};

use bert::{Bert, BertConfig};
use common::checkpoint::{Checkpoint, read_json};
use common::{Result, exit};

const USAGE: &str = "usage: embed FOLDER [SENTENCE..]";

/// Where none are given.
const SENTENCES: [&str; 3] =
    ["A cat sits on the mat.", "A kitten is resting on a rug.", "The stock market fell sharply today."];

/// Sentences as rows of one length.
struct Batch {
    /// `[batch, steps]` in i64, with padding behind the end of a sentence.
    tokens: Tensor,
    /// `[batch]` in i32: the tokens of each.
    lengths: Tensor,
    /// `[batch, 1, steps]`: 1 / length for the tokens of a sentence, 0 for padding.
    mean: Tensor,
}

impl Batch {
    /// Of sentences that have a token at least.
    fn new(stream: &Stream, sentences: &[Vec<i64>]) -> Result<Self> {
        let (batch, steps) = (sentences.len(), sentences.iter().map(Vec::len).max().unwrap_or(0));
        let (mut tokens, mut mean) = (vec![0; batch * steps], vec![0.0f32; batch * steps]);
        for (row, sentence) in sentences.iter().enumerate() {
            let (begin, end) = (row * steps, row * steps + sentence.len());
            tokens[begin..end].copy_from_slice(sentence);
            mean[begin..end].fill(1.0 / sentence.len() as f32);
        }
        let lengths: Vec<i32> = sentences.iter().map(|sentence| sentence.len() as i32).collect();
        Ok(Self {
            tokens: Tensor::from_slice_on(stream, &tokens, &[batch, steps])?,
            lengths: Tensor::from_slice_on(stream, &lengths, &[batch])?,
            mean: Tensor::from_slice_on(stream, &mean, &[batch, 1, steps])?,
        })
    }
}

/// The embeddings `[batch, hidden_size]` of sentences, each of length 1.
fn embed(stream: &Stream, bert: &Bert, sentences: &[Vec<i64>]) -> Result<Tensor> {
    let batch = Batch::new(stream, sentences)?;
    let hidden = bert.forward(stream, &batch.tokens, &batch.lengths)?;
    let (count, size) = (hidden.shape()[0], hidden.shape()[2]);
    let mean = matmul(stream, &batch.mean, &hidden, MatmulOptions::default())?.reshape(&[count, size])?;
    // x / rms(x) has a length of sqrt(size).
    let weight = Tensor::full_on(stream, 1.0 / (size as f32).sqrt(), &[size])?;
    let options =
        RowNormOptions { weight: Some(&weight), eps: Some(0.0), inference: true, ..Default::default() };
    Ok(rms_norm(stream, &mean, options)?.y)
}

/// Settings that the package sentence-transformers stores beside a model.
#[derive(Deserialize)]
struct SentenceConfig {
    max_seq_length: usize,
}

/// Tokens of texts, of which each has at most as many as the model takes.
struct Words(Tokenizer);

impl Words {
    fn load(folder: &Path, max_length: usize) -> Result<Self> {
        let path = folder.join("tokenizer.json");
        let mut tokenizer = Tokenizer::from_file(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        // Batches are padded here, to the longest of their sentences.
        tokenizer.with_padding(None);
        let truncation = TruncationParams { max_length, ..Default::default() };
        tokenizer.with_truncation(Some(truncation)).map_err(|e| e.to_string())?;
        Ok(Self(tokenizer))
    }

    fn tokens(&self, text: &str) -> Result<Vec<i64>> {
        let encoding = self.0.encode(text, true).map_err(|error| error.to_string())?;
        Ok(encoding.get_ids().iter().copied().map(i64::from).collect())
    }
}

fn main() -> ExitCode {
    exit(run())
}

fn run() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().filter(|word| !word.starts_with('-')).ok_or(USAGE)?);
    let mut texts: Vec<String> = arguments.collect();
    if texts.is_empty() {
        texts.extend(SENTENCES.map(str::to_owned));
    }

    let device = Device::best();
    let stream = device.new_stream()?;
    let config: BertConfig = read_json(&folder, "config.json")?;
    let bert = Bert::load(&mut Checkpoint::open(&folder)?, &stream, config)?;
    // Sentences are cut where the model's training had them cut.
    let longest = read_json::<SentenceConfig>(&folder, "sentence_bert_config.json");
    let words = Words::load(&folder, longest.map_or(bert.max_tokens(), |config| config.max_seq_length))?;
    let sentences = texts.iter().map(|text| words.tokens(text)).collect::<Result<Vec<_>>>()?;

    // The first pass loads the kernels.
    let passes = if device.is_emulator() { 1 } else { 2 };
    let mut similarities = Vec::new();
    for pass in 1..=passes {
        let start = Instant::now();
        let embeddings = embed(&stream, &bert, &sentences)?;
        let options = MatmulOptions { transpose_b: true, ..Default::default() };
        similarities = matmul(&stream, &embeddings, &embeddings, options)?.to_vec_on::<f32>(&stream)?;
        let milliseconds = start.elapsed().as_secs_f64() * 1e3;
        println!("{}: pass {pass}, {} sentences, {milliseconds:.1} ms", device.name(), sentences.len());
    }
    for (row, text) in similarities.chunks(texts.len()).zip(&texts) {
        let row: Vec<String> = row.iter().map(|similarity| format!("{similarity:7.4}")).collect();
        println!("{}  {text}", row.join(" "));
    }
    Ok(())
}
