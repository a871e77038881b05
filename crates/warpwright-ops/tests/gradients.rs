//! The derivatives of the references against central differences of the references.

use warpwright_ops::activation::{Activation, GatedActivation, Slope, reference};
use warpwright_testkit::measure::gradient_error;

/// The bound of the design: 1e-5 relative.
const BOUND: f64 = 1e-5;

/// Points on both sides of zero, off the kink of the piecewise functions by more than the step of the differences.
fn points() -> Vec<f64> {
    (-4000..4000).map(|i| (f64::from(i) + 0.5) / 400.0).filter(|x| x.abs() > 0.05).collect()
}

#[test]
fn derivatives_agree_with_central_differences() {
    let leaky = Activation::LeakyRelu { negative_slope: Slope::new(-0.3) };
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
