//! The definition in f64, row by row.

use super::RowNorm;

/// Mean and reciprocal standard deviation of a row; the mean is 0 for the root mean square.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Statistics {
    /// Mean of the row, rounded.
    pub mean: f64,
    /// The rounding error of the mean.
    pub rest: f64,
    /// `1 / sqrt(variance + eps)`.
    pub rstd: f64,
}

impl Statistics {
    /// `v` less the mean.
    pub fn distance(self, v: f64) -> f64 {
        (v - self.mean) - self.rest
    }
}

/// The sum with what each addition rounds away (Neumaier 1974), so that the definition is exact where f64 kernels are
/// held against it.
fn sum(values: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut lost) = (0.0f64, 0.0f64);
    for v in values {
        let next = sum + v;
        lost += if sum.abs() >= v.abs() { (sum - next) + v } else { (v - next) + sum };
        sum = next;
    }
    // Of an infinity nothing is lost.
    if sum.is_finite() { sum + lost } else { sum }
}

/// The statistics of `x`.
pub fn statistics(norm: RowNorm, x: &[f64], eps: f64) -> Statistics {
    let n = x.len() as f64;
    let (mean, rest) = match norm {
        RowNorm::Layer => {
            let mean = sum(x.iter().copied()) / n;
            // A row with an infinity has no mean that means anything.
            let mean = if mean.is_finite() { mean } else { f64::NAN };
            (mean, sum(x.iter().map(|v| v - mean)) / n)
        }
        RowNorm::Rms => (0.0, 0.0),
    };
    let s = Statistics { mean, rest, rstd: 0.0 };
    let variance = sum(x.iter().map(|&v| s.distance(v) * s.distance(v))) / n;
    Statistics { rstd: 1.0 / (variance + eps).sqrt(), ..s }
}

/// `y = (x - mean) rstd weight + bias` of one row; an absent weight is 1, an absent bias 0.
pub fn forward(x: &[f64], s: Statistics, weight: Option<&[f64]>, bias: Option<&[f64]>) -> Vec<f64> {
    let of = |(i, &v): (usize, &f64)| {
        let scaled = s.distance(v) * s.rstd * weight.map_or(1.0, |w| w[i]);
        scaled + bias.map_or(0.0, |b| b[i])
    };
    x.iter().enumerate().map(of).collect()
}

/// `dx` of one row, and what it adds to `dweight` and `dbias`.
pub fn backward(
    norm: RowNorm,
    x: &[f64],
    dy: &[f64],
    s: Statistics,
    weight: Option<&[f64]>,
) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let n = x.len() as f64;
    let xhat: Vec<f64> = x.iter().map(|&v| s.distance(v) * s.rstd).collect();
    let g: Vec<f64> = dy.iter().enumerate().map(|(i, d)| d * weight.map_or(1.0, |w| w[i])).collect();
    let along = sum(g.iter().zip(&xhat).map(|(g, h)| g * h)) / n;
    let level = match norm {
        RowNorm::Layer => sum(g.iter().copied()) / n,
        RowNorm::Rms => 0.0,
    };
    let dx = g.iter().zip(&xhat).map(|(g, h)| (g - level - h * along) * s.rstd).collect();
    let dweight = dy.iter().zip(&xhat).map(|(d, h)| d * h).collect();
    (dx, dweight, dy.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_forms() {
        let x = [1.0, 3.0];
        let s = statistics(RowNorm::Layer, &x, 0.0);
        assert_eq!((s.mean, s.rstd), (2.0, 1.0));
        assert_eq!(forward(&x, s, Some(&[2.0, 4.0]), Some(&[0.5, 0.0])), [-1.5, 4.0]);
        let s = statistics(RowNorm::Rms, &[3.0, 4.0], 0.0);
        assert_eq!((s.mean, s.rstd), (0.0, 1.0 / 12.5f64.sqrt()));
    }

    #[test]
    fn a_large_mean_leaves_the_variance() {
        let x: Vec<f64> = (0..1000).map(|i| 1e8 + f64::from(i % 2)).collect();
        let s = statistics(RowNorm::Layer, &x, 0.0);
        assert!((s.rstd - 2.0).abs() < 1e-12, "{s:?}");
    }

    /// The gradient of `sum(dy y)` by central differences.
    #[test]
    fn gradients_agree_with_central_differences() {
        let x = [0.3, -1.2, 2.5, 0.7, -0.1];
        let dy = [1.0, -0.5, 0.25, 2.0, -1.5];
        let (w, b) = ([0.5, 1.5, -1.0, 2.0, 1.0], [0.1, 0.2, 0.3, 0.4, 0.5]);
        let eps = 1e-3;
        for norm in [RowNorm::Layer, RowNorm::Rms] {
            let loss = |x: &[f64], w: &[f64], b: &[f64]| -> f64 {
                let y = forward(x, statistics(norm, x, eps), Some(w), Some(b));
                y.iter().zip(&dy).map(|(y, d)| y * d).sum()
            };
            let (dx, dw, db) = backward(norm, &x, &dy, statistics(norm, &x, eps), Some(&w));
            for i in 0..x.len() {
                let slope = |f: &dyn Fn(f64) -> f64| {
                    let h = 1e-3;
                    (8.0 * (f(h) - f(-h)) - (f(2.0 * h) - f(-2.0 * h))) / (12.0 * h)
                };
                let moved = |v: &[f64; 5], h: f64| {
                    let mut v = *v;
                    v[i] += h;
                    v
                };
                for (name, exact, numeric) in [
                    ("dx", dx[i], slope(&|h| loss(&moved(&x, h), &w, &b))),
                    ("dweight", dw[i], slope(&|h| loss(&x, &moved(&w, h), &b))),
                    ("dbias", db[i], slope(&|h| loss(&x, &w, &moved(&b, h)))),
                ] {
                    let error = (exact - numeric).abs() / exact.abs().max(1.0);
                    assert!(error < 1e-8, "{norm:?} {name}[{i}]: {exact} and {numeric}");
                }
            }
        }
    }
}
