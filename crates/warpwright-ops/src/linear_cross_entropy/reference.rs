//! The definition in plain f64 Rust.

use super::LinearCrossEntropyDesc;
use crate::cross_entropy::Reduction;
use crate::cross_entropy::reference::{self as rows, Options};
use crate::gemm::reference::{Scaled, dot};

/// The tensors, row after row.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// `[rows, features]`
    pub x: &'a [f64],
    /// `[classes, features]`
    pub weight: &'a [f64],
    /// `[classes]`
    pub bias: Option<&'a [f64]>,
    /// `[rows]`
    pub target: &'a [i64],
}

/// Losses of the rows, or one that is reduced, and the gradients of a reduced one; each value with the scale of its rounding errors.
#[derive(Clone, Debug, Default)]
pub struct Results {
    /// `[rows]`, or one.
    pub loss: Vec<Scaled>,
    /// `[rows, features]`
    pub dx: Vec<Scaled>,
    /// `[classes, features]`
    pub dweight: Vec<Scaled>,
    /// `[classes]`
    pub dbias: Vec<Scaled>,
}

/// All results for a gradient 1 of the loss.
pub fn results(desc: &LinearCrossEntropyDesc, inputs: &Inputs<'_>) -> Results {
    let LinearCrossEntropyDesc { rows: count, features, classes, reduction, .. } = *desc;
    let options = Options { ignore_index: desc.ignore_index, label_smoothing: desc.label_smoothing.get() };
    let counted = inputs.target.iter().filter(|t| **t != desc.ignore_index).count() as f64;
    let divisor = if reduction == Reduction::Mean { counted } else { 1.0 };
    let zeros = |len: usize| vec![(0.0, 0.0); len];
    let mut all = Results {
        loss: Vec::new(),
        dx: zeros(count * features),
        dweight: zeros(classes * features),
        dbias: zeros(classes),
    };
    let add = |to: &mut Scaled, value: f64, scale: f64| *to = (to.0 + value, to.1 + scale);
    for (row, &target) in inputs.target.iter().enumerate() {
        let x = &inputs.x[row * features..][..features];
        let logit = |class: usize| {
            let weight = &inputs.weight[class * features..][..features];
            let bias = inputs.bias.map_or(0.0, |bias| bias[class]);
            dot(x, weight).0 + bias
        };
        let logits: Vec<f64> = (0..classes).map(logit).collect();
        all.loss.push((rows::forward(&logits, target, options).0, rows::forward_scale(&logits, target)));
        let dlogits = rows::backward(&logits, target, 1.0 / divisor, options);
        let scales = rows::backward_scale(&logits, target, 1.0 / divisor, options);
        for (class, (d, scale)) in dlogits.into_iter().zip(scales).enumerate() {
            let weight = &inputs.weight[class * features..][..features];
            for (feature, (x, w)) in x.iter().zip(weight).enumerate() {
                add(&mut all.dx[row * features + feature], d * w, scale * w.abs());
                add(&mut all.dweight[class * features + feature], d * x, scale * x.abs());
            }
            add(&mut all.dbias[class], d, scale);
        }
    }
    if reduction != Reduction::None {
        let (sum, scale) = all.loss.iter().fold((0.0, 0.0), |(a, b), (value, s)| (a + value, b + s));
        all.loss = vec![(sum / divisor, scale / divisor)];
    }
    all
}

#[cfg(test)]
mod tests {
    use warpwright_ptx::DType;

    use super::*;

    #[test]
    fn gradients_are_differences() {
        let desc = LinearCrossEntropyDesc {
            bias: true,
            label_smoothing: 0.1.into(),
            ..LinearCrossEntropyDesc::new(DType::F64, DType::I64, [3, 2, 4])
        };
        let wave =
            |len: usize, step: f64| -> Vec<f64> { (0..len).map(|i| (i as f64 * step).sin()).collect() };
        let (x, weight, bias) = (wave(6, 0.7), wave(8, 1.3), wave(4, 0.4));
        let target = [1, -100, 3];
        let at = |x: &[f64], weight: &[f64], bias: &[f64]| {
            results(&desc, &Inputs { x, weight, bias: Some(bias), target: &target })
        };
        let all = at(&x, &weight, &bias);
        let moved = |values: &[f64], i: usize, by: f64| {
            let mut values = values.to_vec();
            values[i] += by;
            values
        };
        let check = |gradient: &[Scaled], loss: &dyn Fn(usize, f64) -> f64| {
            for (i, (value, _)) in gradient.iter().enumerate() {
                let difference = (loss(i, 1e-5) - loss(i, -1e-5)) / 2e-5;
                assert!((value - difference).abs() < 1e-9, "{i}: {value} against {difference}");
            }
        };
        check(&all.dx, &|i, by| at(&moved(&x, i, by), &weight, &bias).loss[0].0);
        check(&all.dweight, &|i, by| at(&x, &moved(&weight, i, by), &bias).loss[0].0);
        check(&all.dbias, &|i, by| at(&x, &weight, &moved(&bias, i, by)).loss[0].0);
    }
}
