//! The functions of the kernels, on registers.
//!
//! None of them subtracts nearly equal numbers: tails come from an exponential of a negative argument, and a slope from
//! the product of a logistic function and its complement. This file has the forms that are exact to a few units in the
//! last place of f32 or f64; 16-bit types take the short forms of [`storage`](super::storage).

use warpwright_dsl::prelude::*;

use super::{Activation, GatedActivation, storage};

/// `2 sqrt(2/pi)`: `gelu_tanh(x) = x logistic(LINEAR x + CUBIC x^3)`.
pub(super) const GELU_LINEAR: f64 = 2.0 * 0.797_884_560_802_865_4;
/// `2 sqrt(2/pi) 0.044715`
pub(super) const GELU_CUBIC: f64 = GELU_LINEAR * 0.044_715;
/// Squares beyond this belong to arguments whose tail is zero in every type; clamping them keeps `0 * x^2` zero.
pub(super) const FLAT_SQUARE: f64 = 1e5;

/// The functions that weigh their argument by a probability: those that gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weighted {
    GeluTanh,
    GeluErf,
    Silu,
}

impl From<GatedActivation> for Weighted {
    fn from(f: GatedActivation) -> Self {
        match f {
            GatedActivation::Swiglu => Self::Silu,
            GatedActivation::Geglu => Self::GeluErf,
            GatedActivation::GegluTanh => Self::GeluTanh,
        }
    }
}

/// A function and its derivative at a point.
#[derive(Clone, Copy, Debug)]
pub(super) struct Jet<'k, A: Float> {
    pub(super) value: Reg<'k, A>,
    pub(super) derivative: Reg<'k, A>,
}

const fn is_storage(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// `f(x)` for a result of type `dtype`; `parameter` is the slope or beta of a function that has one, and its reciprocal.
pub(super) fn forward<'k, A: Float>(
    f: Activation,
    x: Reg<'k, A>,
    [parameter, reciprocal]: [Reg<'k, A>; 2],
    dtype: DType,
) -> Reg<'k, A> {
    match f {
        // The comparison is false for NaN, which passes.
        Activation::Relu => x.le(0.0).select(0.0, x),
        Activation::LeakyRelu { .. } => x.gt(0.0).select(x, x * parameter),
        Activation::GeluTanh => weighted(Weighted::GeluTanh, x, dtype),
        Activation::GeluErf => weighted(Weighted::GeluErf, x, dtype),
        Activation::Silu => weighted(Weighted::Silu, x, dtype),
        Activation::Sigmoid if is_storage(dtype) => storage::sigmoid(x.to_f32()).convert(),
        Activation::Sigmoid => x.sigmoid(),
        Activation::Tanh if is_storage(dtype) => storage::tanh(x.to_f32(), dtype).convert(),
        Activation::Tanh => x.tanh(),
        Activation::Softplus { .. } => (x * parameter).softplus_for(Precision::of(dtype)) * reciprocal,
    }
}

/// `dy f'(x)` for a result of type `dtype`.
pub(super) fn backward<'k, A: Float>(
    f: Activation,
    x: Reg<'k, A>,
    dy: Reg<'k, A>,
    parameter: Reg<'k, A>,
    dtype: DType,
) -> Reg<'k, A> {
    match f {
        // The comparisons are false for NaN, as PyTorch's are.
        Activation::Relu => x.le(0.0).select(0.0, dy),
        Activation::LeakyRelu { .. } => x.gt(0.0).select(dy, dy * parameter),
        Activation::GeluTanh => dy * weighted_jet(Weighted::GeluTanh, x, dtype).derivative,
        Activation::GeluErf => dy * weighted_jet(Weighted::GeluErf, x, dtype).derivative,
        Activation::Silu => dy * weighted_jet(Weighted::Silu, x, dtype).derivative,
        Activation::Sigmoid => dy * logistic_slope(x, 1.0, dtype),
        // tanh(x) = 2 logistic(2x) - 1
        Activation::Tanh => dy * (logistic_slope(x, 2.0, dtype) * 4.0),
        Activation::Softplus { .. } if is_storage(dtype) => {
            dy * storage::sigmoid((x * parameter).to_f32()).convert()
        }
        Activation::Softplus { .. } => dy * (x * parameter).sigmoid(),
    }
}

/// `f(x)`
pub(super) fn weighted<'k, A: Float>(f: Weighted, x: Reg<'k, A>, dtype: DType) -> Reg<'k, A> {
    if is_storage(dtype) {
        return storage::weighted(f, x.to_f32(), dtype).convert();
    }
    match f {
        Weighted::GeluTanh => x * gelu_tanh_argument(x).value.sigmoid(),
        Weighted::GeluErf => x * x.normal(Precision::Full).cdf(),
        Weighted::Silu => x * x.sigmoid(),
    }
}

/// `f(x)` and `f'(x)`.
pub(super) fn weighted_jet<'k, A: Float>(f: Weighted, x: Reg<'k, A>, dtype: DType) -> Jet<'k, A> {
    if is_storage(dtype) {
        let jet = storage::weighted_jet(f, x.to_f32(), dtype);
        return Jet { value: jet.value.convert(), derivative: jet.derivative.convert() };
    }
    match f {
        Weighted::GeluTanh => {
            let z = gelu_tanh_argument(x);
            let s = logistic(z.value);
            Jet { value: x * s.value, derivative: x.mul_add(s.derivative * z.derivative, s.value) }
        }
        Weighted::GeluErf => {
            let normal = x.normal(Precision::Full);
            let cdf = normal.cdf();
            Jet { value: x * cdf, derivative: x.mul_add(normal.density, cdf) }
        }
        Weighted::Silu => {
            let s = logistic(x);
            Jet { value: x * s.value, derivative: x.mul_add(s.derivative, s.value) }
        }
    }
}

/// Slope of the logistic function at `factor * x`.
fn logistic_slope<'k, A: Float>(x: Reg<'k, A>, factor: f64, dtype: DType) -> Reg<'k, A> {
    if is_storage(dtype) {
        return storage::logistic_slope(x.to_f32(), factor).convert();
    }
    logistic(if factor == 1.0 { x } else { x * factor }).derivative
}

/// `1 / (1 + exp(-z))` and its slope, each with a small relative error on both sides.
fn logistic<'k, A: Float>(z: Reg<'k, A>) -> Jet<'k, A> {
    let small = (-z.abs()).sigmoid();
    let large = 1.0 - small;
    Jet { value: z.lt(0.0).select(small, large), derivative: small * large }
}

/// `z = 2 sqrt(2/pi) (x + 0.044715 x^3)` and `dz/dx`, which is finite for every `x`.
fn gelu_tanh_argument<'k, A: Float>(x: Reg<'k, A>) -> Jet<'k, A> {
    let square = (x * x).min(FLAT_SQUARE);
    Jet {
        value: x * square.mul_add(GELU_CUBIC, GELU_LINEAR),
        derivative: square.mul_add(3.0 * GELU_CUBIC, GELU_LINEAR),
    }
}
