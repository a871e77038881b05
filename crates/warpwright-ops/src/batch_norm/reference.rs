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

/// Sums of `f(index, channel)` over each channel, with what rounding lost (Neumaier 1974).
fn sums(norm: &BatchNorm, f: impl Fn(usize, usize) -> f64) -> Vec<f64> {
    let mut sums = vec![(0.0f64, 0.0f64); norm.channels];
    elements(norm, |i, c| {
        let ((sum, lost), value) = (sums[c], f(i, c));
        let total = sum + value;
        let rounded = if sum.abs() >= value.abs() { (sum - total) + value } else { (value - total) + sum };
        sums[c] = (total, lost + rounded);
    });
    // Past an infinity nothing is lost but the difference of infinities.
    sums.into_iter().map(|(sum, lost)| if sum.is_finite() { sum + lost } else { sum }).collect()
}

/// Statistics of each channel.
#[derive(Clone, Debug)]
pub struct Statistics {
    /// Mean.
    pub mean: Vec<f64>,
    /// The error of the mean's rounding to f64.
    pub rest: Vec<f64>,
    /// Biased variance.
    pub var: Vec<f64>,
}

/// Statistics of each channel.
pub fn statistics(norm: &BatchNorm, x: &[f64]) -> Statistics {
    let n = norm.values() as f64;
    let per_value = |sums: Vec<f64>| -> Vec<f64> { sums.into_iter().map(|sum| sum / n).collect() };
    let mean = per_value(sums(norm, |i, _| x[i]));
    let rest = per_value(sums(norm, |i, c| x[i] - mean[c]));
    let var = per_value(sums(norm, |i, c| ((x[i] - mean[c]) - rest[c]).powi(2)));
    Statistics { mean, rest, var }
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
    /// The mean that is subtracted.
    pub mean: &'a [f64],
    /// The rest of the mean, subtracted next: a mean that is large beside the deviation does not fit one number.
    pub rest: Option<&'a [f64]>,
    /// The factor of the distance.
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

    fn distance(&self, x: f64, c: usize) -> f64 {
        (x - self.mean[c]) - self.rest.map_or(0.0, |rest| rest[c])
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
        let distance = channels.distance(x[i], c);
        let value = distance * factor + channels.bias(c) + added;
        y[i] = if norm.relu && value <= 0.0 { 0.0 } else { value };
        // A rounding of the mean counts as one of a deviation.
        let moved = distance.abs() + if channels.rest.is_some() { 1.0 / channels.rstd[c] } else { 0.0 };
        scale[i] = moved * factor.abs() + channels.bias(c).abs() + added.abs();
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
    let g = &out.dresidual;
    let normalized = |i: usize, c: usize| channels.distance(x[i], c) * channels.rstd[c];
    out.dbias = sums(norm, |i, _| g[i]);
    out.dweight = sums(norm, |i, c| g[i] * normalized(i, c));
    let root = |sums: Vec<f64>| -> Vec<f64> { sums.into_iter().map(f64::sqrt).collect() };
    out.dbias_scale = root(sums(norm, |i, _| g[i] * g[i]));
    out.dweight_scale = root(sums(norm, |i, c| (g[i] * normalized(i, c)).powi(2)));
    elements(norm, |i, c| {
        let (g, normalized) = (g[i], normalized(i, c));
        let factor = channels.weight(c) * channels.rstd[c];
        if !training {
            (out.dx[i], out.dx_scale[i]) = (factor * g, (factor * g).abs());
            return;
        }
        let (of_mean, of_rstd) = (out.dbias[c] / n, normalized * out.dweight[c] / n);
        out.dx[i] = factor * (g - of_mean - of_rstd);
        let rounded = (out.dbias_scale[c] + normalized.abs() * out.dweight_scale[c]) / n;
        out.dx_scale[i] = factor.abs() * (g.abs() + of_mean.abs() + of_rstd.abs() + rounded);
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
        let Statistics { mean, var, .. } = statistics(&n, &x);
        assert_eq!((mean.as_slice(), var.as_slice()), (&[0.0, 3.0][..], &[1.0, 5.0][..]));
        let rstd = rstd(&n, &var);
        let channels = Channels {
            mean: &mean,
            rest: None,
            rstd: &rstd,
            weight: Some(&[2.0, 1.0]),
            bias: Some(&[0.5, 0.0]),
        };
        let (y, _) = forward(&n, &x, channels, None);
        assert_eq!(y[0], -1.5);
        assert!((y[7] - 3.0 / 5f64.sqrt()).abs() < 1e-15);
        assert!((running(1.0, 3.0, 0.1) - 1.2).abs() < 1e-15);
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
        assert!(close(statistics(&first, &x).mean, statistics(&last, &moved).mean));
        assert!(close(statistics(&first, &x).var, statistics(&last, &moved).var));
    }
}
