//! The derivatives of the references against central differences of the references.

use warpwright_ops::activation::{Activation, GatedActivation, reference};
use warpwright_ops::cross_entropy::reference as loss;
use warpwright_ops::plan::Real;
use warpwright_ops::softmax::{Softmax, reference as rows};
use warpwright_testkit::measure::gradient_error;

/// The bound of the design: 1e-5 relative.
const BOUND: f64 = 1e-5;

/// Points on both sides of zero, off the kink of the piecewise functions by more than the step of the differences.
fn points() -> Vec<f64> {
    (-4000..4000).map(|i| (f64::from(i) + 0.5) / 400.0).filter(|x| x.abs() > 0.05).collect()
}

#[test]
fn derivatives_agree_with_central_differences() {
    let leaky = Activation::LeakyRelu { negative_slope: Real::new(-0.3) };
    for f in Activation::ALL.into_iter().chain([leaky]) {
        let error = gradient_error(|x| reference::forward(f, x), |x| reference::derivative(f, x), &points());
        assert!(error < BOUND, "{f:?}: {error:e}");
        let error =
            gradient_error(|x| 3.0 * reference::forward(f, x), |x| reference::backward(f, x, 3.0), &points());
        assert!(error < BOUND, "{f:?} backward: {error:e}");
    }
}

#[test]
fn smooth_functions_have_their_derivative_at_zero_too() {
    let near_zero: Vec<f64> = (-50..=50).map(|i| f64::from(i) / 1000.0).collect();
    for f in
        [Activation::GeluErf, Activation::GeluTanh, Activation::Silu, Activation::Sigmoid, Activation::Tanh]
    {
        let error = gradient_error(|x| reference::forward(f, x), |x| reference::derivative(f, x), &near_zero);
        assert!(error < BOUND, "{f:?}: {error:e}");
    }
}

#[test]
fn gated_gradients_agree_with_central_differences() {
    for f in GatedActivation::ALL {
        for (fixed, dy) in [(0.7, 1.0), (-2.5, 0.4), (3.0, -1.5)] {
            let error = gradient_error(
                |gate| dy * reference::gated_forward(f, gate, fixed),
                |gate| reference::gated_backward(f, gate, fixed, dy).0,
                &points(),
            );
            assert!(error < BOUND, "{f:?} dgate: {error:e}");
            let error = gradient_error(
                |up| dy * reference::gated_forward(f, fixed, up),
                |up| reference::gated_backward(f, fixed, up, dy).1,
                &points(),
            );
            assert!(error < BOUND, "{f:?} dup: {error:e}");
        }
    }
}

const ROW: [f64; 7] = [0.3, -1.2, 2.5, 0.0, -4.0, 1.1, 2.4];
const DY: [f64; 7] = [0.7, -0.3, 1.9, 0.2, -2.0, 0.0, 1.0];

/// `ROW` with another element `j`.
fn with(j: usize, value: f64) -> Vec<f64> {
    let mut row = ROW.to_vec();
    row[j] = value;
    row
}

#[test]
fn softmax_gradients_agree_with_central_differences() {
    for f in Softmax::ALL {
        for j in 0..ROW.len() {
            let weighted =
                |x: f64| -> f64 { rows::forward(f, &with(j, x)).iter().zip(DY).map(|(y, dy)| y * dy).sum() };
            let slope = |x: f64| rows::backward(f, &rows::forward(f, &with(j, x)), &DY)[j];
            let error = gradient_error(weighted, slope, &[-3.0, -0.5, 0.2, 1.0, 4.0]);
            assert!(error < BOUND, "{f:?} {j}: {error:e}");
        }
    }
}

#[test]
fn cross_entropy_gradients_agree_with_central_differences() {
    for label_smoothing in [0.0, 0.1, 1.0] {
        let options = loss::Options { ignore_index: -100, label_smoothing };
        for target in [0, 2, 6, -100] {
            for j in 0..ROW.len() {
                let value = |x: f64| 1.5 * loss::forward(&with(j, x), target, options).0;
                let slope = |x: f64| loss::backward(&with(j, x), target, 1.5, options)[j];
                let error = gradient_error(value, slope, &[-3.0, -0.5, 0.2, 1.0, 4.0]);
                assert!(error < BOUND, "target {target}, smoothing {label_smoothing}: {error:e}");
            }
        }
    }
}

#[test]
fn rows_have_the_values_of_closed_forms() {
    let y = rows::forward(Softmax::Plain, &[0.0, 3f64.ln()]);
    assert!((y[0] - 0.25).abs() < 1e-15 && (y[1] - 0.75).abs() < 1e-15);
    let none = f64::NEG_INFINITY;
    assert!(rows::forward(Softmax::Log, &[none, none]).iter().all(|y| y.is_nan()), "as in PyTorch");
    assert_eq!(rows::forward(Softmax::Plain, &[none, 7.0]), [0.0, 1.0]);
    let options = loss::Options { ignore_index: 9, label_smoothing: 0.0 };
    let (value, lse) = loss::forward(&[1.0; 4], 3, options);
    assert!((value - 4f64.ln()).abs() < 1e-15 && (lse - 1.0 - 4f64.ln()).abs() < 1e-15);
    assert_eq!(loss::forward(&[1.0; 4], 9, options).0, 0.0);
    assert!(loss::forward(&[1.0; 4], 4, options).0.is_nan());
}
