//! Cross entropy in plain f64 Rust: the oracle that kernels are held against.

use crate::softmax::reference::sum;

/// The options that are the same for all rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// A target that does not count.
    pub ignore_index: i64,
    /// The share of the target distribution that is spread over all classes.
    pub label_smoothing: f64,
}

/// `log(sum exp(x))` of a row, as its largest element and the logarithm of the rest.
fn log_sum_exp(x: &[f64]) -> (f64, f64) {
    let largest = |top: f64, &v: &f64| if v.is_nan() || top.is_nan() { f64::NAN } else { top.max(v) };
    let top = x.iter().fold(f64::NEG_INFINITY, largest);
    (top, sum(x.iter().map(|v| (v - top).exp())).ln())
}

/// The class that a target names, if it names one.
fn class(x: &[f64], target: i64) -> Option<usize> {
    usize::try_from(target).ok().filter(|t| *t < x.len())
}

/// Loss and log-sum-exp of one row. The loss of a target that is not a class is NaN, that of the ignored index 0.
pub fn forward(x: &[f64], target: i64, options: Options) -> (f64, f64) {
    let (top, log_sum) = log_sum_exp(x);
    let e = options.label_smoothing;
    let loss = match class(x, target) {
        _ if target == options.ignore_index => 0.0,
        None => f64::NAN,
        Some(t) => {
            let likely = (top - x[t]) + log_sum;
            let mean = sum(x.iter().copied()) / x.len() as f64;
            if e > 0.0 { (1.0 - e) * likely + e * ((top - mean) + log_sum) } else { likely }
        }
    };
    (loss, top + log_sum)
}

/// The negative log-likelihood of the target; NaN if it is no class.
pub fn nll(x: &[f64], target: i64) -> f64 {
    class(x, target).map_or(f64::NAN, |t| {
        let (top, log_sum) = log_sum_exp(x);
        if x[t] < top || !top.is_finite() {
            return (top - x[t]) + log_sum;
        }
        // The other powers without the 1 of the target, which would hide them.
        let others = x.iter().enumerate().filter(|(j, _)| *j != t).map(|(_, v)| (v - top).exp());
        sum(others).ln_1p()
    })
}

/// The natural scale of a loss: the absolute error of the logarithm is the relative one of the sum.
pub fn forward_scale(x: &[f64], target: i64) -> f64 {
    let (top, log_sum) = log_sum_exp(x);
    let mean = sum(x.iter().map(|v| v.abs())) / x.len() as f64;
    let own = class(x, target).map_or(0.0, |t| x[t].abs());
    1.0 + top.abs() + own + mean + log_sum.abs()
}

/// The gradient of one row for a gradient `dloss` of its own loss.
pub fn backward(x: &[f64], target: i64, dloss: f64, options: Options) -> Vec<f64> {
    let (top, log_sum) = log_sum_exp(x);
    let (e, uniform) = (options.label_smoothing, options.label_smoothing / x.len() as f64);
    let one = |(j, v): (usize, &f64)| match class(x, target) {
        _ if target == options.ignore_index => 0.0,
        None => f64::NAN,
        Some(t) if j == t => ((-nll(x, target)).exp_m1() + (e - uniform)) * dloss,
        Some(_) => (((v - top) - log_sum).exp() - uniform) * dloss,
    };
    x.iter().enumerate().map(one).collect()
}

/// The natural scales of [`backward`].
pub fn backward_scale(x: &[f64], target: i64, dloss: f64, options: Options) -> Vec<f64> {
    let (top, log_sum) = log_sum_exp(x);
    let e = options.label_smoothing;
    let uniform = e / x.len() as f64;
    let one = |(j, v): (usize, &f64)| {
        if class(x, target) == Some(j) {
            // What follows from the negative log-likelihood, which is given.
            let nll = nll(x, target);
            let slope = if nll.is_finite() { nll * (-nll).exp() } else { 0.0 };
            return ((-nll).exp_m1().abs() + slope + e + uniform) * dloss.abs();
        }
        let p = ((v - top) - log_sum).exp();
        (p * (1.0 + v.abs() + (top + log_sum).abs()) + uniform) * dloss.abs()
    };
    x.iter().enumerate().map(one).collect()
}
