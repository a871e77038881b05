//! The definition in plain f64 Rust.

use super::ScaledGemmDesc;
use crate::activation::reference as activation;
use crate::gemm::reference::{Scaled, dot};
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
    /// The numbers that the elements of a matrix of this shape stand for, without gaps between the rows, which begin `leading` elements
    /// apart.
    pub fn numbers(
        self,
        scaling: Option<Scaling>,
        shape @ [rows, cols]: [usize; 2],
        leading: usize,
    ) -> Vec<f64> {
        let number = |i: usize| {
            let [row, col] = [i / cols, i % cols];
            let scale = scaling.map_or(1.0, |scaling| self.scales[scale_index(scaling, shape, row, col)]);
            self.q[row * leading + col] * scale
        };
        (0..rows * cols).map(number).collect()
    }
}

/// `activation(a b^T + bias)` at (`row`, `col`), of the [numbers](Operand::numbers) of `a` and `b`.
pub fn element(
    desc: &ScaledGemmDesc,
    (a, b): (&[f64], &[f64]),
    bias: Option<&[f64]>,
    (row, col): (usize, usize),
) -> Scaled {
    let [a, b] = [(a, row), (b, col)].map(|(x, outer)| &x[outer * desc.k..][..desc.k]);
    let (mut sum, mut scale) = dot(a, b);
    if let Some(bias) = bias {
        sum += bias[col];
        scale += bias[col].abs();
    }
    let value = desc.activation.map_or(sum, |f| activation::forward(f, sum));
    // A sigmoid of small sums is larger than they are.
    (value, scale.max(value.abs()))
}
