//! Parts of the models in plain Rust, which tests hold the examples against.

use std::collections::HashMap;

use safetensors::SafeTensors;

/// The tensors of a safetensors file of f32, by name.
pub(crate) fn weights(file: &[u8]) -> HashMap<String, Vec<f64>> {
    let file = SafeTensors::deserialize(file).expect("a safetensors file");
    let value = |bytes: &[u8]| f64::from(f32::from_le_bytes(bytes.try_into().expect("4 bytes")));
    file.iter().map(|(name, view)| (name.to_owned(), view.data().chunks(4).map(value).collect())).collect()
}

/// The sum of the products.
pub(crate) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
