//! `demo`: a synthetic checkpoint that is shaped like a small transformer.

use std::path::Path;

use warpwright_ptx::DType;

use crate::args::DemoArgs;
use crate::checkpoint::floats;
use crate::checkpoint::{AtomicFile, Layout, StoredType, TensorSpec, Writer};
use crate::console::Console;
use crate::error::{Error, Outcome};
use crate::interrupt;
use crate::paths::Shown;
use crate::units::human_bytes;

const WIDTH: u64 = 256;
const INNER: u64 = 1024;
const TOKENS: u64 = 2000;
const LAYERS: u64 = 2;
/// One channel in so many is an outlier, as far as real models have them.
const OUTLIER_EVERY: u64 = 97;

/// Runs the command.
///
/// # Errors
/// The output cannot be written.
pub fn run(args: &DemoArgs, console: &mut Console) -> Result<Outcome, Error> {
    let (count, length) = write(&args.output, args.force, args.dtype, args.seed)?;
    if args.json.json {
        let path = args.output.display().to_string();
        console.json(&serde_json::json!({"output": path, "tensors": count, "bytes": length}))?;
        return Ok(Outcome::Clean);
    }
    console.line(format_args!("{}: {count} tensors, {}", Shown(&args.output), human_bytes(length)))?;
    Ok(Outcome::Clean)
}

/// Writes the checkpoint to `path`; the number of tensors and bytes.
///
/// # Errors
/// There are no such weights, or the output cannot be written.
pub(crate) fn write(path: &Path, force: bool, dtype: DType, seed: u64) -> Result<(usize, u64), Error> {
    let stored = StoredType::from_float(dtype).filter(|_| dtype != DType::F64).ok_or_else(|| {
        Error::usage("--dtype f64: checkpoints hold f32, f16 or bf16 weights", "try --dtype f32")
    })?;
    let specs = tensors(stored);
    let metadata = [("format".to_owned(), "pt".to_owned())];
    let layout = Layout::new(path, &metadata, &specs)?;
    let length = layout.length();
    let mut writer: Writer<AtomicFile> = Writer::create(path, force, layout)?;
    for (at, spec) in specs.iter().enumerate() {
        interrupt::check()?;
        writer.append(at, &values(spec, dtype, seed.wrapping_add(at as u64)))?;
    }
    writer.commit()?;
    Ok((specs.len(), length))
}

fn tensors(dtype: StoredType) -> Vec<TensorSpec> {
    let spec = |name: String, shape: &[u64]| TensorSpec { name, dtype, shape: shape.to_vec() };
    let mut specs = vec![spec("model.embed_tokens.weight".to_owned(), &[TOKENS, WIDTH])];
    for layer in 0..LAYERS {
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        for part in ["q_proj", "k_proj", "v_proj", "o_proj"] {
            specs.push(spec(name(&format!("self_attn.{part}.weight")), &[WIDTH, WIDTH]));
        }
        specs.push(spec(name("mlp.up_proj.weight"), &[INNER, WIDTH]));
        specs.push(spec(name("mlp.up_proj.bias"), &[INNER]));
        specs.push(spec(name("mlp.down_proj.weight"), &[WIDTH, INNER]));
        specs.push(spec(name("input_layernorm.weight"), &[WIDTH]));
    }
    specs.push(spec("model.norm.weight".to_owned(), &[WIDTH]));
    specs
}

/// Weights around 0 whose spread falls with the width, norms around 1.
fn values(spec: &TensorSpec, dtype: DType, seed: u64) -> Vec<u8> {
    let elements: u64 = spec.shape.iter().product();
    let columns = spec.shape.last().copied().unwrap_or(1).max(1);
    let (centre, spread) = if spec.shape.len() == 2 {
        (0.0, 1.0 / (columns as f64).sqrt())
    } else if spec.name.ends_with("bias") {
        (0.0, 0.01)
    } else {
        (1.0, 0.1)
    };
    let mut random = Random(seed);
    let mut bytes = Vec::with_capacity(usize::try_from(elements).unwrap_or(0) * dtype.bytes());
    for i in 0..elements {
        let outlier = spec.shape.len() == 2 && (i % columns) % OUTLIER_EVERY == OUTLIER_EVERY / 2;
        let factor = if outlier { 8.0 } else { 1.0 };
        floats::push(&mut bytes, centre + factor * spread * random.normal(), dtype);
    }
    bytes
}

/// SplitMix64 (Steele, Lea and Flood 2014).
struct Random(u64);

impl Random {
    const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Nearly normal, by sums and products alone: twelve uniform numbers, so that every machine gets the same bytes.
    fn normal(&mut self) -> f64 {
        let sum: u64 = (0..12).map(|_| self.next() >> 32).sum();
        sum as f64 / 4_294_967_296.0 - 6.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_nearly_normal_and_repeat() {
        let mut random = Random(7);
        let drawn: Vec<f64> = (0..20_000).map(|_| random.normal()).collect();
        let mean = drawn.iter().sum::<f64>() / 20_000.0;
        let variance = drawn.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 20_000.0;
        assert!(mean.abs() < 0.03 && (variance - 1.0).abs() < 0.03, "{mean} {variance}");
        let spec = TensorSpec { name: "w".to_owned(), dtype: StoredType::F32, shape: vec![2, 200] };
        assert_eq!(values(&spec, DType::F32, 1), values(&spec, DType::F32, 1));
        assert_ne!(values(&spec, DType::F32, 1), values(&spec, DType::F32, 2));
        assert_eq!(values(&spec, DType::BF16, 1).len(), 800);
    }
}
