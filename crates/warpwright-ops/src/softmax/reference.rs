//! Softmax in plain f64 Rust: the oracle that kernels are held against.
//!
//! A row is a slice. Natural scales are the sums of the magnitudes that make up a result, each enlarged by its condition
//! number, so that `eps * scale` is the error of an implementation that rounds its arguments and its result once.

use super::Softmax;

/// The sum, compensated (Neumaier 1974): long rows would otherwise cost the oracle digits.
pub fn sum(terms: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut lost) = (0.0f64, 0.0);
    for term in terms {
        let next = sum + term;
        lost += if sum.abs() >= term.abs() { (sum - next) + term } else { (term - next) + sum };
        sum = next;
    }
    // Of infinite sums, what was lost is NaN.
    if sum.is_finite() { sum + lost } else { sum }
}

/// `y` for one row of scores, already multiplied by their factor. NaN anywhere, `+inf` anywhere, and `-inf` everywhere give
/// NaN, as in PyTorch.
pub fn forward(f: Softmax, x: &[f64]) -> Vec<f64> {
    let top = x
        .iter()
        .fold(f64::NEG_INFINITY, |top, &v| if v.is_nan() || top.is_nan() { f64::NAN } else { top.max(v) });
    let sum = sum(x.iter().map(|v| (v - top).exp()));
    let one = |v: &f64| match f {
        Softmax::Plain => (v - top).exp() / sum,
        Softmax::Log => v - top - sum.ln(),
    };
    x.iter().map(one).collect()
}

/// `dx` for one row from its result and the gradient of that, without the factor of the scores.
pub fn backward(f: Softmax, y: &[f64], dy: &[f64]) -> Vec<f64> {
    let terms = y.iter().zip(dy);
    match f {
        Softmax::Plain => {
            let sum = sum(terms.clone().map(|(y, dy)| y * dy));
            terms.map(|(y, dy)| y * (dy - sum)).collect()
        }
        Softmax::Log => {
            let sum = sum(dy.iter().copied());
            terms.map(|(y, dy)| dy - y.exp() * sum).collect()
        }
    }
}

/// The natural scales of [`forward`].
pub fn forward_scale(f: Softmax, x: &[f64]) -> Vec<f64> {
    let top = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let y = forward(f, x);
    let one = |(v, y): (&f64, &f64)| match f {
        // The exponential magnifies the error of its argument.
        Softmax::Plain => y * (1.0 + (top - v).abs()),
        // The absolute error of the logarithm is the relative one of the sum.
        Softmax::Log => 1.0 + (v - top).abs() + (y - (v - top)).abs(),
    };
    x.iter().zip(&y).map(one).collect()
}

/// The natural scales of [`backward`].
pub fn backward_scale(f: Softmax, y: &[f64], dy: &[f64]) -> Vec<f64> {
    let terms = y.iter().zip(dy);
    match f {
        Softmax::Plain => {
            let sum: f64 = terms.clone().map(|(y, dy)| (y * dy).abs()).sum();
            terms.map(|(y, dy)| y.abs() * (dy.abs() + sum)).collect()
        }
        Softmax::Log => {
            let sum: f64 = dy.iter().map(|v| v.abs()).sum();
            terms.map(|(y, dy)| dy.abs() + y.exp() * (1.0 + y.abs()) * sum).collect()
        }
    }
}
