//! The definition in plain f64 Rust.

use super::{
    ActivationLinearBackwardDesc, GatedActivationLinearBackwardDesc, GatedLinearDesc, GemmDesc,
    LinearActivationDesc,
};
use crate::activation::reference as activation;

/// A value, and the sum of the magnitudes that make it: the scale of its rounding errors.
pub type Scaled = (f64, f64);

/// No slope of an activation is above this.
const STEEPEST: f64 = 1.13;

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

/// `x gate^T`, `x up^T` and `activation(x gate^T) * (x up^T)` of a row of `x` and rows of both weights, with what is added to either product.
pub fn gated_linear(
    desc: &GatedLinearDesc,
    x: &[f64],
    (gate, up): (&[f64], &[f64]),
    biases: [f64; 2],
) -> [Scaled; 3] {
    let with = |weight: &[f64], bias: f64| {
        let (sum, scale) = dot(x, weight);
        (sum + bias, scale + bias.abs())
    };
    let [(gate, of_gate), (up, of_up)] = [with(gate, biases[0]), with(up, biases[1])];
    let f = activation::forward(desc.activation.activation(), gate);
    let scale = (f * up).abs() + f.abs() * of_up + STEEPEST * up.abs() * of_gate;
    [(gate, of_gate), (up, of_up), (f * up, scale)]
}

/// The gradients of `gate` and `up`, whose elements at (`row`, `col`) these are, in turn.
pub fn gated_activation_linear_backward(
    desc: &GatedActivationLinearBackwardDesc,
    (dy, weight): (&[f64], &[f64]),
    (gate, up): (f64, f64),
    (row, col): (usize, usize),
) -> [Scaled; 2] {
    let (sum, scale) = element(&desc.layer().product, (dy, weight), None, None, (0, row, col));
    let (dgate, dup) = activation::gated_backward(desc.activation, gate, up, sum);
    let f = desc.activation.activation();
    let [slope, value] = [activation::derivative_scale(f, gate), activation::forward_scale(f, gate)];
    [(dgate, slope * up.abs() * scale), (dup, value * scale)]
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

/// `z = x op(weight) + bias` and `activation(z)` at (`row`, `col`).
pub fn linear_activation(
    desc: &LinearActivationDesc,
    (x, weight): (&[f64], &[f64]),
    bias: Option<&[f64]>,
    (row, col): (usize, usize),
) -> [Scaled; 2] {
    let (z, scale) = element(&desc.layer().product, (x, weight), None, bias, (0, row, col));
    let y = activation::forward(desc.activation, z);
    [(z, scale), (y, y.abs() + STEEPEST * scale)]
}

/// `(dy op(weight)) * activation'(z)` at (`row`, `col`), where `z` is that element.
pub fn activation_linear_backward(
    desc: &ActivationLinearBackwardDesc,
    (dy, weight): (&[f64], &[f64]),
    z: f64,
    (row, col): (usize, usize),
) -> Scaled {
    let (sum, scale) = element(&desc.layer().product, (dy, weight), None, None, (0, row, col));
    let slope = activation::derivative_scale(desc.activation, z);
    (activation::backward(desc.activation, z, sum), slope * scale)
}

/// The sum of row `row` of `op(a)`, of one matrix, and that of the magnitudes.
pub fn row_sum(desc: &GemmDesc, a: &[f64], row: usize) -> Scaled {
    let at = |d: usize| if desc.transpose_a { a[d * desc.lda + row] } else { a[row * desc.lda + d] };
    (0..desc.k).map(at).fold((0.0, 0.0), |(sum, scale), x| (sum + x, scale + x.abs()))
}
