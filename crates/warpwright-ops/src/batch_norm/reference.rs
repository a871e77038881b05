//! The definition in f64, with natural scales: what the kernels are held against.
//!
//! Batch normalisation: Ioffe and Szegedy 2015, arXiv:1502.03167, algorithm 1 and the gradients after it. A natural
//! scale is the sum of the magnitudes that a result is the sum of, so that a rounding of any of them is a few `eps`
//! times the scale.

use super::{BatchNorm, Layout};

/// Calls `f` with the index of every element and its channel.
fn elements(norm: &BatchNorm, mut f: impl FnMut(usize, usize)) {
    let BatchNorm { batch, channels, spatial, layout, .. } = *norm;
    for i in 0..batch * channels * spatial {
        f(
            i,
            match layout {
                Layout::ChannelsFirst => i / spatial % channels,
                Layout::ChannelsLast => i % channels,
            },
        );
    }
}

/// Mean and biased variance of each channel.
pub fn statistics(norm: &BatchNorm, x: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let n = norm.values() as f64;
    let (mut mean, mut var) = (vec![0.0; norm.channels], vec![0.0; norm.channels]);
    elements(norm, |i, c| mean[c] += x[i] / n);
    // What the first sum lost to rounding.
    let mut rest = vec![0.0; norm.channels];
    elements(norm, |i, c| rest[c] += (x[i] - mean[c]) / n);
    mean.iter_mut().zip(rest).for_each(|(mean, rest)| *mean += rest);
    elements(norm, |i, c| var[c] += (x[i] - mean[c]).powi(2) / n);
    (mean, var)
}

/// `1 / sqrt(var + eps)`
pub fn rstd(norm: &BatchNorm, var: &[f64]) -> Vec<f64> {
    var.iter().map(|v| 1.0 / (v + norm.eps.get()).sqrt()).collect()
}

/// The running value that follows `old` when a batch has the value `new`.
pub fn running(old: f64, new: f64, factor: f64) -> f64 {
    (1.0 - factor) * old + factor * new
}

/// Parameters of each channel.
#[derive(Clone, Copy, Debug)]
pub struct Channels<'a> {
    /// What is subtracted.
    pub mean: &'a [f64],
    /// What the distance is multiplied with.
    pub rstd: &'a [f64],
    /// 1 if there is none.
    pub weight: Option<&'a [f64]>,
    /// 0 if there is none.
    pub bias: Option<&'a [f64]>,
}

impl Channels<'_> {
    fn weight(&self, c: usize) -> f64 {
        self.weight.map_or(1.0, |w| w[c])
    }

    fn bias(&self, c: usize) -> f64 {
        self.bias.map_or(0.0, |b| b[c])
    }
}

/// `y` and the natural scale of each element.
pub fn forward(
    norm: &BatchNorm,
    x: &[f64],
    channels: Channels<'_>,
    residual: Option<&[f64]>,
) -> (Vec<f64>, Vec<f64>) {
    let (mut y, mut scale) = (vec![0.0; x.len()], vec![0.0; x.len()]);
    elements(norm, |i, c| {
        let factor = channels.rstd[c] * channels.weight(c);
        let added = residual.map_or(0.0, |r| r[i]);
        let value = (x[i] - channels.mean[c]) * factor + channels.bias(c) + added;
        y[i] = if norm.relu && value <= 0.0 { 0.0 } else { value };
        scale[i] = ((x[i] - channels.mean[c]) * factor).abs() + channels.bias(c).abs() + added.abs();
    });
    (y, scale)
}

/// Gradients, and the natural scale of each element.
#[derive(Clone, Debug, Default)]
pub struct Gradients {
    /// `[x]`
    pub dx: Vec<f64>,
    /// `[channels]`
    pub dweight: Vec<f64>,
    /// `[channels]`
    pub dbias: Vec<f64>,
    /// `[x]`: `dy` behind the ReLU.
    pub dresidual: Vec<f64>,
    /// Scales of `dx`.
    pub dx_scale: Vec<f64>,
    /// Scales of `dweight`: the root of the sum of the squares of what is summed.
    pub dweight_scale: Vec<f64>,
    /// Scales of `dbias`.
    pub dbias_scale: Vec<f64>,
}

/// Gradients for statistics of the batch (`training`) or constant ones. `y` decides what passes a ReLU.
pub fn backward(
    norm: &BatchNorm,
    x: &[f64],
    y: &[f64],
    dy: &[f64],
    channels: Channels<'_>,
    training: bool,
) -> Gradients {
    let n = norm.values() as f64;
    let zeros = || vec![0.0; norm.channels];
    let mut out = Gradients {
        dx: vec![0.0; x.len()],
        dweight: zeros(),
        dbias: zeros(),
        dresidual: dy.to_vec(),
        dx_scale: vec![0.0; x.len()],
        dweight_scale: zeros(),
        dbias_scale: zeros(),
    };
    if norm.relu {
        out.dresidual.iter_mut().zip(y).for_each(|(g, y)| *g = if *y <= 0.0 { 0.0 } else { *g });
    }
    elements(norm, |i, c| {
        let (g, normalised) = (out.dresidual[i], (x[i] - channels.mean[c]) * channels.rstd[c]);
        out.dbias[c] += g;
        out.dweight[c] += g * normalised;
        out.dbias_scale[c] += g * g;
        out.dweight_scale[c] += (g * normalised).powi(2);
    });
    for scale in out.dbias_scale.iter_mut().chain(&mut out.dweight_scale) {
        *scale = scale.sqrt();
    }
    elements(norm, |i, c| {
        let (g, normalised) = (out.dresidual[i], (x[i] - channels.mean[c]) * channels.rstd[c]);
        let factor = channels.weight(c) * channels.rstd[c];
        let (of_mean, of_rstd) =
            if training { (out.dbias[c] / n, normalised * out.dweight[c] / n) } else { (0.0, 0.0) };
        out.dx[i] = factor * (g - of_mean - of_rstd);
        out.dx_scale[i] = factor.abs() * (g.abs() + of_mean.abs() + of_rstd.abs());
    });
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch_norm::Real;
    use warpwright_ptx::DType;

    fn norm(layout: Layout, relu: bool) -> BatchNorm {
        let norm = BatchNorm::new(DType::F64, layout, 3, 2, 4);
        BatchNorm { relu, eps: Real::new(0.1), ..norm }
    }

    #[test]
    fn closed_forms() {
        let n =
            BatchNorm { eps: Real::new(0.0), ..BatchNorm::new(DType::F64, Layout::ChannelsLast, 4, 2, 1) };
        // Channel 0: -1, 1, -1, 1; channel 1: 0, 2, 4, 6.
        let x = [-1.0, 0.0, 1.0, 2.0, -1.0, 4.0, 1.0, 6.0];
        let (mean, var) = statistics(&n, &x);
        assert_eq!((mean.as_slice(), var.as_slice()), (&[0.0, 3.0][..], &[1.0, 5.0][..]));
        let rstd = rstd(&n, &var);
        let channels =
            Channels { mean: &mean, rstd: &rstd, weight: Some(&[2.0, 1.0]), bias: Some(&[0.5, 0.0]) };
        let (y, _) = forward(&n, &x, channels, None);
        assert_eq!(y[0], -1.5);
        assert!((y[7] - 3.0 / 5f64.sqrt()).abs() < 1e-15);
        assert_eq!(running(1.0, 3.0, 0.1), 0.9 + 0.3);
    }

    #[test]
    fn both_layouts_are_one_function() {
        let (first, last) = (norm(Layout::ChannelsFirst, false), norm(Layout::ChannelsLast, false));
        let x: Vec<f64> = (0..24).map(|i| f64::from(i * i % 17)).collect();
        let mut moved = vec![0.0; 24];
        for n in 0..3 {
            for c in 0..2 {
                for s in 0..4 {
                    moved[(n * 4 + s) * 2 + c] = x[(n * 2 + c) * 4 + s];
                }
            }
        }
        let close = |a: Vec<f64>, b: Vec<f64>| a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-12);
        assert!(close(statistics(&first, &x).0, statistics(&last, &moved).0));
        assert!(close(statistics(&first, &x).1, statistics(&last, &moved).1));
    }
}
