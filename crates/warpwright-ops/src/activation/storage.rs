//! Short forms for results that are rounded to 16 bits: each instruction saved is bandwidth there.
//!
//! Exponentials and reciprocals are the hardware's (2^-22). Relative errors stay below 2^-11 for bf16 and 2^-14 for f16,
//! in the tails too, down to 2^-126.

use std::f64::consts::{LOG2_E, TAU};

use warpwright_dsl::prelude::*;

use super::math::{FLAT_SQUARE, GELU_CUBIC, GELU_LINEAR, Jet, Weighted};

/// `f(x)`
pub(super) fn weighted(f: Weighted, x: F32<'_>, dtype: DType) -> F32<'_> {
    match f {
        Weighted::GeluTanh => x * logistic2(gelu_tanh_argument(x).value),
        Weighted::GeluErf => x * Normal::at(x, dtype).cdf,
        Weighted::Silu => x * sigmoid(x),
    }
}

/// `f(x)` and `f'(x)`.
pub(super) fn weighted_jet(f: Weighted, x: F32<'_>, dtype: DType) -> Jet<'_, f32> {
    match f {
        Weighted::GeluTanh => {
            let z = gelu_tanh_argument(x);
            let s = logistic2(z.value);
            // Next to `s`, the error of the difference `s - s^2` of nearly equal numbers does not count.
            let slope = (-s).mul_add(s, s);
            Jet { value: x * s, derivative: x.mul_add(slope * z.derivative, s) }
        }
        Weighted::GeluErf => {
            let normal = Normal::at(x, dtype);
            Jet { value: x * normal.cdf, derivative: x.mul_add(normal.density, normal.cdf) }
        }
        Weighted::Silu => {
            let s = sigmoid(x);
            let slope = (-s).mul_add(s, s);
            Jet { value: x * s, derivative: x.mul_add(slope, s) }
        }
    }
}

/// `1 / (1 + exp(-x))`
pub(super) fn sigmoid(x: F32<'_>) -> F32<'_> {
    logistic2(x * LOG2_E)
}

/// Slope of the logistic function at `factor * x`, from the side where the function is small.
pub(super) fn logistic_slope(x: F32<'_>, factor: f64) -> F32<'_> {
    let small = logistic2(-(x.abs() * (factor * LOG2_E)));
    (-small).mul_add(small, small)
}

/// The hyperbolic tangent.
pub(super) fn tanh(x: F32<'_>, dtype: DType) -> F32<'_> {
    // The relative error of the hardware's, 2^-11, is what bf16 allows.
    if dtype == DType::BF16 { x.tanh_approx() } else { x.tanh_for(Precision::Storage) }
}

/// `1 / (1 + 2^-z)`
fn logistic2(z: F32<'_>) -> F32<'_> {
    ((-z).exp2_approx() + 1.0).rcp_approx()
}

/// `z = 2 sqrt(2/pi) (x + 0.044715 x^3) log2(e)`, and the derivative of `z ln 2`, which is finite for every `x`.
fn gelu_tanh_argument(x: F32<'_>) -> Jet<'_, f32> {
    let square = (x * x).min(FLAT_SQUARE);
    Jet {
        value: x * square.mul_add(GELU_CUBIC * LOG2_E, GELU_LINEAR * LOG2_E),
        derivative: square.mul_add(3.0 * GELU_CUBIC, GELU_LINEAR),
    }
}

/// The lower tail of the normal distribution as `exp(-t^2/2) w P(w)` with `w = 1 / (t + a)`; `P` is our own fit with the
/// least relative error over `0 <= t <= 13.2`. Unlike a fit of the tail as a whole, it leaves the exponential to be
/// shared with the density.
struct TailFit {
    a: f64,
    coefficients: &'static [f64],
}

/// Relative error 2.2e-4.
const TAIL_BF16: TailFit =
    TailFit { a: 3.375, coefficients: &[0.391_336_4, 1.621_398_99, 0.677_916_409, 29.073_300_1] };

/// Relative error 3.2e-5.
const TAIL_F16: TailFit = TailFit {
    a: 2.6875,
    coefficients: &[0.397_241_097, 1.138_125_02, 1.535_043_77, 10.753_993_2, -12.702_921_5],
};

/// Distribution function and density of the standard normal distribution.
struct Normal<'k> {
    cdf: F32<'k>,
    density: F32<'k>,
}

impl<'k> Normal<'k> {
    fn at(x: F32<'k>, dtype: DType) -> Self {
        let fit = if dtype == DType::BF16 { &TAIL_BF16 } else { &TAIL_F16 };
        // exp(-x^2 / 2) = 2^-y^2; a square that overflows gives 0.
        let y = x * (0.5 * LOG2_E).sqrt();
        let exponential = (-(y * y)).exp2_approx();
        let w = (x.abs() + fit.a).rcp_approx();
        let tail = exponential * (w * w.polynomial(fit.coefficients));
        Self { cdf: x.lt(0.0).select(tail, 1.0 - tail), density: exponential * (1.0 / TAU.sqrt()) }
    }
}
