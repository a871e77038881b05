//! Numbers that look random, and checkpoints of them.

use safetensors::tensor::TensorView;
use safetensors::{Dtype, serialize};

use super::Result;

/// A generator (Steele, Lea and Flood 2014, SplitMix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ x >> 31
    }

    /// From 0 to 1, without 1.
    pub(crate) fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// A checkpoint in f32 or bf16, as the bytes of a safetensors file: norms near 1, biases small, rows of weights of a length of about 1.
pub(crate) fn checkpoint(shapes: &[(String, Vec<usize>)], dtype: Dtype, seed: u64) -> Result<Vec<u8>> {
    let mut random = Random(seed);
    // bf16 is the upper half of f32.
    let skipped = if dtype == Dtype::BF16 { 2 } else { 0 };
    let mut data = Vec::new();
    for (name, shape) in shapes {
        let around = if name.contains("orm") && name.ends_with("weight") { 1.0 } else { 0.0 };
        let bound = (3.0 / *shape.last().unwrap_or(&1) as f64).sqrt().min(0.5);
        let mut bytes = Vec::new();
        for _ in 0..shape.iter().product() {
            let value = around + bound * (2.0 * random.uniform() - 1.0);
            bytes.extend_from_slice(&(value as f32).to_le_bytes()[skipped..]);
        }
        data.push(bytes);
    }
    let mut views = Vec::new();
    for ((name, shape), data) in shapes.iter().zip(&data) {
        views.push((name, TensorView::new(dtype, shape.clone(), data)?));
    }
    Ok(serialize(views, None)?)
}
