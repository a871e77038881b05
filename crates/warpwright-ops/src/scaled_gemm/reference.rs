//! The definition in plain f64 Rust.

use super::ScaledGemmDesc;
use crate::activation::reference as activation;
use crate::gemm::reference::Scaled;
use crate::quantize8::Scaling;
use crate::quantize8::reference::scale_index;

/// Codes as the numbers that they stand for, and their scales.
#[derive(Clone, Copy, Debug)]
pub struct Operand<'a> {
    /// Elements from the first to the last.
    pub q: &'a [f64],
    /// In the order in which they lie.
    pub scales: &'a [f64],
}

impl Operand<'_> {
    /// The number that an element stands for.
    fn at(self, scaling: Option<Scaling>, shape: [usize; 2], leading: usize, [row, col]: [usize; 2]) -> f64 {
        let scale = scaling.map_or(1.0, |scaling| self.scales[scale_index(scaling, shape, row, col)]);
        self.q[row * leading + col] * scale
    }
}

/// `activation(scale_a scale_b a b^T + bias)` at (`row`, `col`).
pub fn element(
    desc: &ScaledGemmDesc,
    (a, b): (Operand<'_>, Operand<'_>),
    bias: Option<&[f64]>,
    (row, col): (usize, usize),
) -> Scaled {
    let products = (0..desc.k).map(|depth| {
        let a = a.at(desc.scaling_a, [desc.m, desc.k], desc.lda, [row, depth]);
        a * b.at(desc.scaling_b, [desc.n, desc.k], desc.ldb, [col, depth])
    });
    let (mut sum, mut scale) = products.fold((0.0, 0.0), |(sum, scale), p: f64| (sum + p, scale + p.abs()));
    if let Some(bias) = bias {
        sum += bias[col];
        scale += bias[col].abs();
    }
    let value = desc.activation.map_or(sum, |f| activation::forward(f, sum));
    // A sigmoid of small sums is larger than they are.
    (value, scale.max(value.abs()))
}
