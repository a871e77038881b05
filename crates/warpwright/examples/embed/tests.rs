//! The numbers are right: the embeddings of a tiny model are those of the formulas in f64, and those of MiniLM transformers'.

use std::collections::HashMap;
use std::f64::consts::PI;
use std::path::PathBuf;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, serialize};
use serde_json::json;
use warpwright::activation::Activation;
use warpwright::quantize::{NibbleOrder, QuantizedNested, Scheme};
use warpwright::{DType, Device, Stream, Tensor, dequantize, dequantize_nested, quantize, quantize_nested};

use super::bert::{Bert, BertConfig};
use super::common::Result;
use super::common::checkpoint::{Checkpoint, read_json};
use super::common::linear::Linear;
use super::common::random;
use super::common::reference::{self, dot};
use super::{Words, embed};

const WORDS: usize = 30;
const HIDDEN: usize = 24;
const INTERMEDIATE: usize = 40;

fn tiny() -> BertConfig {
    let config = json!({
        "num_hidden_layers": 2, "num_attention_heads": 3, "max_position_embeddings": 9, "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
    });
    serde_json::from_value(config).expect("a configuration")
}

/// The weights by name, with their shapes.
fn weights(config: &BertConfig) -> Vec<(String, Vec<usize>)> {
    let (hidden, wide) = (HIDDEN, INTERMEDIATE);
    let table = |name: &str, rows| (format!("embeddings.{name}_embeddings.weight"), vec![rows, hidden]);
    let mut all =
        vec![table("word", WORDS), table("position", config.max_position_embeddings), table("token_type", 2)];
    let mut layer = |name: &str, weight: Vec<usize>| {
        all.push((format!("{name}.bias"), vec![weight[0]]));
        all.push((format!("{name}.weight"), weight));
    };
    layer("embeddings.LayerNorm", vec![hidden]);
    for number in 0..config.num_hidden_layers {
        let name = |part: &str| format!("encoder.layer.{number}.{part}");
        for part in
            ["attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"]
        {
            layer(&name(part), vec![hidden, hidden]);
        }
        layer(&name("intermediate.dense"), vec![wide, hidden]);
        layer(&name("output.dense"), vec![hidden, wide]);
        layer(&name("attention.output.LayerNorm"), vec![hidden]);
        layer(&name("output.LayerNorm"), vec![hidden]);
    }
    all
}

/// The model in plain Rust.
struct Reference {
    config: BertConfig,
    weights: HashMap<String, Vec<f64>>,
}

impl Reference {
    fn new(config: BertConfig, file: &[u8]) -> Self {
        Self { config, weights: reference::weights(file) }
    }

    fn row(&self, table: &str, row: usize) -> &[f64] {
        &self.weights[&format!("embeddings.{table}_embeddings.weight")][row * HIDDEN..][..HIDDEN]
    }

    /// `weight x + bias`
    fn linear(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let (weight, bias) =
            (&self.weights[&format!("{name}.weight")], &self.weights[&format!("{name}.bias")]);
        weight.chunks(x.len()).zip(bias).map(|(row, bias)| dot(row, x) + bias).collect()
    }

    /// The norm of `x + residual`.
    fn norm(&self, name: &str, x: &[f64], residual: &[f64]) -> Vec<f64> {
        let (weight, bias) = (
            &self.weights[&format!("{name}.LayerNorm.weight")],
            &self.weights[&format!("{name}.LayerNorm.bias")],
        );
        let x: Vec<f64> = x.iter().zip(residual).map(|(x, residual)| x + residual).collect();
        let mean = x.iter().sum::<f64>() / x.len() as f64;
        let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len() as f64;
        let rstd = (variance + self.config.layer_norm_eps).sqrt().recip();
        x.iter()
            .zip(weight.iter().zip(bias))
            .map(|(x, (weight, bias))| (x - mean) * rstd * weight + bias)
            .collect()
    }

    fn layer(&self, number: usize, rows: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let name = |part: &str| format!("encoder.layer.{number}.{part}");
        let all = |part: &str| rows.iter().map(|row| self.linear(&name(part), row)).collect::<Vec<_>>();
        let [q, k, v] = ["attention.self.query", "attention.self.key", "attention.self.value"].map(all);
        let dim = HIDDEN / self.config.num_attention_heads;
        let attended = |q: &Vec<f64>| {
            let mut seen = vec![0.0; q.len()];
            for (head, seen) in seen.chunks_mut(dim).enumerate() {
                let of = |x: &[f64]| x[head * dim..][..dim].to_vec();
                let score = |k: &Vec<f64>| (dot(&of(q), &of(k)) / (dim as f64).sqrt()).exp();
                let scores: Vec<f64> = k.iter().map(score).collect();
                let sum: f64 = scores.iter().sum();
                for (score, v) in scores.iter().zip(&v) {
                    seen.iter_mut().zip(of(v)).for_each(|(seen, v)| *seen += score / sum * v);
                }
            }
            seen
        };
        let next = |(row, q): (&Vec<f64>, &Vec<f64>)| {
            let seen = self.linear(&name("attention.output.dense"), &attended(q));
            let x = self.norm(&name("attention.output"), &seen, row);
            let wide: Vec<f64> = self.linear(&name("intermediate.dense"), &x).into_iter().map(gelu).collect();
            self.norm(&name("output"), &self.linear(&name("output.dense"), &wide), &x)
        };
        rows.iter().zip(&q).map(next).collect()
    }

    fn embedding(&self, tokens: &[i64]) -> Vec<f64> {
        let first = |(place, token): (usize, &i64)| {
            let others = self.row("position", place).iter().zip(self.row("token_type", 0));
            let others: Vec<f64> = others.map(|(place, kind)| place + kind).collect();
            self.norm("embeddings", self.row("word", *token as usize), &others)
        };
        let rows: Vec<Vec<f64>> = tokens.iter().enumerate().map(first).collect();
        let rows = (0..self.config.num_hidden_layers).fold(rows, |rows, number| self.layer(number, &rows));
        let sum = (0..HIDDEN).map(|i| rows.iter().map(|row| row[i]).sum::<f64>());
        let sum: Vec<f64> = sum.collect();
        let length = dot(&sum, &sum).sqrt();
        sum.into_iter().map(|x| x / length).collect()
    }
}

/// `x` times the distribution function of the normal distribution, whose series (Marsaglia 2004) converges everywhere.
fn gelu(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= x * x / f64::from(2 * n + 1);
        sum += term;
    }
    x * (0.5 + sum * (-x * x / 2.0).exp() / (2.0 * PI).sqrt())
}

fn rows(stream: &Stream, bert: &Bert, sentences: &[Vec<i64>]) -> Result<Vec<Vec<f32>>> {
    let values = embed(stream, bert, sentences)?.to_vec_on::<f32>(stream)?;
    Ok(values.chunks(values.len() / sentences.len()).map(<[f32]>::to_vec).collect())
}

fn distance(got: &[f32], want: &[f64]) -> f64 {
    got.iter().zip(want).map(|(got, want)| (f64::from(*got) - want).abs()).fold(0.0, f64::max)
}

#[test]
fn embeddings_are_those_of_the_formulas() -> Result<()> {
    let stream = Device::best().new_stream()?;
    let file = random::checkpoint(&weights(&tiny()), Dtype::F32, 5)?;
    let reference = Reference::new(tiny(), &file);
    let bert = Bert::load(&mut Checkpoint::from_bytes(file)?, &stream, tiny())?;
    let sentences = [vec![3, 14, 15], vec![9, 2, 6, 5, 3, 5, 8, 29, 7], vec![27]];
    let got = rows(&stream, &bert, &sentences)?;
    for (got, sentence) in got.iter().zip(&sentences) {
        let error = distance(got, &reference.embedding(sentence));
        assert!(error < 1e-6, "{sentence:?}: {error:e}");
    }
    assert!((gelu(1.0) - 0.841_344_746).abs() < 1e-9 && (gelu(-1.0) + 0.158_655_254).abs() < 1e-9);
    Ok(())
}

/// Where `WARPWRIGHT_MINILM` is the folder of all-MiniLM-L6-v2. The numbers are those of transformers 5.24 in f64: `BertModel`, the mean of
/// `last_hidden_state` over the tokens of a sentence, divided by its length.
#[test]
fn embeddings_of_minilm_are_those_of_transformers() -> Result<()> {
    let Some(folder) = std::env::var_os("WARPWRIGHT_MINILM").map(PathBuf::from) else {
        eprintln!("skipped: WARPWRIGHT_MINILM names no folder");
        return Ok(());
    };
    let stream = Device::best().new_stream()?;
    let bert = Bert::load(&mut Checkpoint::open(&folder)?, &stream, read_json(&folder, "config.json")?)?;
    let words = Words::load(&folder, bert.max_tokens())?;
    let texts = ["A cat sits on the mat.", "A kitten is resting on a rug."];
    let sentences = [words.tokens(texts[0])?, words.tokens(texts[1])?];
    assert_eq!(sentences[0], [101, 1037, 4937, 7719, 2006, 1996, 13523, 1012, 102]);
    let got = rows(&stream, &bert, &sentences)?;
    let want = [
        [
            0.126_535_221_8,
            -0.032_850_734_8,
            -0.029_059_635_0,
            0.044_406_987_7,
            -0.043_445_310_1,
            0.032_096_906_0,
        ],
        [
            0.075_356_768_9,
            0.015_110_401_9,
            0.012_093_724_6,
            0.060_790_445_5,
            -0.004_021_697_2,
            0.056_364_905_3,
        ],
    ];
    for (got, want) in got.iter().zip(&want) {
        let error = distance(got, want);
        assert!(error < 1e-6, "{error:e}");
    }
    let similarity: f32 = got[0].iter().zip(&got[1]).map(|(a, b)| a * b).sum();
    assert!((similarity - 0.655_288_6).abs() < 1e-5, "{similarity}");
    Ok(())
}

/// A safetensors file of an NF4 weight `[6, 200]` as bitsandbytes stores it, with plain or with nested statistics, and its values in f32.
fn nf4_file(stream: &Stream, nested: bool) -> Result<(Vec<u8>, Vec<f32>)> {
    let values: Vec<f32> = (0..1200).map(|i| (i as f32 * 0.37).sin()).collect();
    let x = Tensor::from_slice_on(stream, &values, &[6, 200])?;
    let mut q = quantize(stream, &x, Scheme::Nf4, 64, NibbleOrder::HighFirst)?;
    let mut state = json!({ "quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": [6, 200] });
    let mut parts = vec![(".absmax", Dtype::F32, q.scales.to_bytes()?)];
    if nested {
        let QuantizedNested { codes, nested_absmax, offset } = quantize_nested(stream, &q.scales)?;
        state["nested_offset"] = json!(offset.to_vec::<f32>()?[0]);
        state["nested_blocksize"] = json!(256);
        parts = vec![
            (".absmax", Dtype::U8, codes.to_bytes()?),
            (".nested_absmax", Dtype::F32, nested_absmax.to_bytes()?),
        ];
        q.scales = dequantize_nested(stream, &QuantizedNested { codes, nested_absmax, offset })?;
    }
    parts.push(("", Dtype::U8, q.codes.to_bytes()?));
    parts.push((".quant_state.bitsandbytes__nf4", Dtype::U8, state.to_string().into_bytes()));
    let mut views = Vec::new();
    for (key, dtype, bytes) in &parts {
        let count = if *dtype == Dtype::F32 { bytes.len() / 4 } else { bytes.len() };
        let shape = if key.is_empty() { vec![count, 1] } else { vec![count] };
        views.push((format!("w.weight{key}"), TensorView::new(*dtype, shape, bytes)?));
    }
    Ok((serialize(views, None)?, dequantize(stream, &q, DType::F32)?.to_vec_on(stream)?))
}

#[test]
fn codes_are_loaded_as_values() -> Result<()> {
    let stream = Device::best().new_stream()?;
    for nested in [false, true] {
        let (file, want) = nf4_file(&stream, nested)?;
        let mut checkpoint = Checkpoint::from_bytes(file.clone())?;
        let w = checkpoint.tensor(&stream, "w.weight", DType::F32)?;
        assert_eq!((w.shape(), &w.to_vec_on::<f32>(&stream)?), (&[6, 200][..], &want), "nested: {nested}");
        assert_eq!(checkpoint.tensor(&stream, "w.weight", DType::BF16)?.dtype(), DType::BF16);

        // A layer multiplies with the codes as they are.
        let linear = Linear::load(&mut checkpoint, &stream, "w", DType::F32)?;
        assert!(linear.bytes() < 1200, "{} bytes of codes and scales", linear.bytes());
        let x: Vec<f32> = (0..200).map(|i| (i as f32 * 0.11).cos()).collect();
        let y = linear.activated(
            &stream,
            &Tensor::from_slice_on(&stream, &x, &[1, 200])?,
            Some(Activation::GeluErf),
        )?;
        let x: Vec<f64> = x.into_iter().map(f64::from).collect();
        let row = |row: &[f32]| gelu(dot(&x, &row.iter().copied().map(f64::from).collect::<Vec<_>>()));
        let error = distance(&y.to_vec_on(&stream)?, &want.chunks(200).map(row).collect::<Vec<_>>());
        assert!(error < 1e-5, "nested: {nested}: {error:e}");
        let missing = checkpoint.tensor(&stream, "v", DType::F32).expect_err("there is no v").to_string();
        assert!(missing.contains("no v"), "{missing}");
        // A file that was cut short.
        assert!(Checkpoint::from_bytes(file[..file.len() - 1].to_vec()).is_err());
    }
    Ok(())
}
