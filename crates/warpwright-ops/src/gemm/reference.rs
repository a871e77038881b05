//! The definition in plain f64 Rust.

use super::{GatedLinearDesc, GemmDesc};
use crate::activation::reference as activation;

/// A value, and the sum of the magnitudes that make it: the scale of its rounding errors.
pub type Scaled = (f64, f64);

/// The sum of the products of two vectors, and that of their magnitudes.
pub(crate) fn dot(a: &[f64], b: &[f64]) -> Scaled {
    let (mut sum, mut scale) = (0.0, 0.0);
    for (a, b) in a.iter().zip(b) {
        let product = a * b;
        sum += product;
        scale += product.abs();
    }
    (sum, scale)
}

/// `activation(x gate^T) * (x up^T)` of a row of `x` and rows of both weights.
pub fn gated_linear(desc: &GatedLinearDesc, x: &[f64], gate: &[f64], up: &[f64]) -> Scaled {
    let ((gate, of_gate), (up, of_up)) = (dot(x, gate), dot(x, up));
    let f = activation::forward(desc.activation.activation(), gate);
    // No slope is above 1.13.
    (f * up, (f * up).abs() + f.abs() * of_up + 1.13 * up.abs() * of_gate)
}

/// `activation(alpha op(a) op(b) + beta c + bias)` of matrix `batch` at (`row`, `col`).
pub fn element(
    desc: &GemmDesc,
    (a, b): (&[f64], &[f64]),
    c: Option<&[f64]>,
    bias: Option<&[f64]>,
    (batch, row, col): (usize, usize, usize),
) -> Scaled {
    let at_a = |d| {
        let (r, c) = if desc.transpose_a { (d, row) } else { (row, d) };
        a[batch * desc.stride_a + r * desc.lda + c]
    };
    let at_b = |d| {
        let (r, c) = if desc.transpose_b { (col, d) } else { (d, col) };
        b[batch * desc.stride_b + r * desc.ldb + c]
    };
    let alpha = desc.alpha.get();
    let products = (0..desc.k).map(|d| alpha * at_a(d) * at_b(d));
    let (mut sum, mut scale) = products.fold((0.0, 0.0), |(sum, scale), p: f64| (sum + p, scale + p.abs()));
    let mut add = |x: f64| {
        sum += x;
        scale += x.abs();
    };
    if let Some(c) = c {
        add(desc.beta.get() * c[batch * desc.stride_y + row * desc.ldy + col]);
    }
    if let Some(bias) = bias {
        add(bias[col]);
    }
    (desc.activation.map_or(sum, |f| activation::forward(f, sum)), scale)
}

/// The sum of row `row` of `op(a)`, of one matrix, and that of the magnitudes.
pub fn row_sum(desc: &GemmDesc, a: &[f64], row: usize) -> Scaled {
    let at = |d: usize| if desc.transpose_a { a[d * desc.lda + row] } else { a[row * desc.lda + d] };
    (0..desc.k).map(at).fold((0.0, 0.0), |(sum, scale), x| (sum + x, scale + x.abs()))
}
