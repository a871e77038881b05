//! Rotary position embedding.

use burn::tensor::Tensor;
use warpwright::rotary::{Pairing, RotaryOptions};

use crate::call::Call;
use crate::error::Error;
use crate::graph::Written;

const OP: &str = "rotary_embedding";

/// Each pair of elements of a head turned by the angle of its position: `x` is `[batch, steps, heads, head_dim]`, `cos` and `sin` are
/// `[rows, head_dim / 2]`, a row for each position from 0 on, of its element type or f32, and without gradients. Pairs are neighbours, as in
/// [`burn::nn::RotaryEncoding`], or elements of both halves.
///
/// # Errors
/// If shapes or element types do not fit, the element type is none of f32, f64, f16 and bf16, or the device is not Flex.
pub fn rotary(x: Tensor<4>, cos: Tensor<2>, sin: Tensor<2>, pairing: Pairing) -> Result<Tensor<4>, Error> {
    let call = Call::new(OP).float("x", x)?.constant("cos", cos)?.constant("sin", sin)?;
    let mut results = call.run(move |stream, inputs| {
        let options = move || RotaryOptions { pairing, ..Default::default() };
        let [x, cos, sin] = ["x", "cos", "sin"].map(|name| inputs.of(name));
        let output = warpwright::rotary_embedding(stream, x, None, cos, sin, options())?;
        Ok(Written::of(OP, &[&output.q])?.with(move |stream, inputs, dy| {
            let [cos, sin] = ["cos", "sin"].map(|name| inputs.of(name));
            let back = warpwright::rotary_embedding_backward(stream, dy, None, cos, sin, options())?;
            Ok(vec![("x", back.dq)])
        }))
    })?;
    Ok(results.next())
}
