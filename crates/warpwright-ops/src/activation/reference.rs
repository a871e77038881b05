//! The activations in plain f64 Rust: the oracle that kernels are held against.
//!
//! Everything here follows from the definitions, none of it from the kernels. The error function is summed from its
//! series (Abramowitz and Stegun, *Handbook of Mathematical Functions*, 7.1.6) and its complement from the continued
//! fraction 7.1.14, so that neither tail is the difference of two nearly equal numbers.
//!
//! Every `*_scale` function is the natural scale of one result: the sum of the magnitudes of the terms that make it
//! up, each enlarged by its condition number, so that `eps * scale` is the error of an implementation that rounds its
//! arguments and its result once. Elementwise budgets are stated in that unit.

use super::{Activation, GatedActivation};

/// `1 / sqrt(2 pi)`
const INV_SQRT_2PI: f64 = 0.398_942_280_401_432_7;
/// `2 / sqrt(pi)`
const TWO_OVER_SQRT_PI: f64 = std::f64::consts::FRAC_2_SQRT_PI;
/// `sqrt(2 / pi)`, the factor of the argument of the tanh form of GELU.
const SQRT_2_OVER_PI: f64 = 0.797_884_560_802_865_4;
/// The cubic coefficient of the tanh form of GELU.
const GELU_CUBIC: f64 = 0.044_715;

/// `y = f(x)`. NaN gives NaN.
///
/// The sigmoid-weighted functions are evaluated as `x * probability(x)`, so at `-inf` they are `-inf * 0`, which is
/// NaN: what PyTorch returns.
pub fn forward(f: Activation, x: f64) -> f64 {
    match f {
        Activation::Relu => {
            if x <= 0.0 {
                0.0
            } else {
                x
            }
        }
        Activation::LeakyRelu { negative_slope } => {
            if x > 0.0 {
                x
            } else {
                x * negative_slope.get()
            }
        }
        Activation::GeluTanh => x * Logistic::at(gelu_tanh_argument(x)).value,
        Activation::GeluErf => x * normal_cdf(x),
        Activation::Silu => x * Logistic::at(x).value,
        Activation::Sigmoid => Logistic::at(x).value,
        Activation::Tanh => x.tanh(),
        Activation::Softplus { beta } => {
            let z = beta.get() * x;
            // Not `f64::max`, which drops NaN.
            let positive = if z < 0.0 { 0.0 } else { z };
            (positive + (-z.abs()).exp().ln_1p()) / beta.get()
        }
    }
}

/// `f'(x)`. At NaN [`Activation::Relu`] has 1 and [`Activation::LeakyRelu`] its slope, the others NaN; at an infinity the
/// sigmoid-weighted functions give NaN. All of it as PyTorch does.
pub fn derivative(f: Activation, x: f64) -> f64 {
    match f {
        Activation::Relu => f64::from(u8::from(x > 0.0 || x.is_nan())),
        Activation::LeakyRelu { negative_slope } => {
            if x > 0.0 {
                1.0
            } else {
                negative_slope.get()
            }
        }
        Activation::GeluTanh => {
            let s = Logistic::at(gelu_tanh_argument(x));
            s.value + x * s.slope * gelu_tanh_argument_slope(x)
        }
        Activation::GeluErf => normal_cdf(x) + x * normal_density(x),
        Activation::Silu => {
            let s = Logistic::at(x);
            s.value + x * s.slope
        }
        Activation::Sigmoid => Logistic::at(x).slope,
        Activation::Tanh => 4.0 * Logistic::at(2.0 * x).slope,
        Activation::Softplus { beta } => Logistic::at(beta.get() * x).value,
    }
}

/// `dx = dy * f'(x)`. Where [`Activation::Relu`] is flat the result is 0 whatever `dy` is.
pub fn backward(f: Activation, x: f64, dy: f64) -> f64 {
    if f == Activation::Relu && x <= 0.0 {
        return 0.0;
    }
    dy * derivative(f, x)
}

/// `y = f(gate) * up`
pub fn gated_forward(f: GatedActivation, gate: f64, up: f64) -> f64 {
    forward(f.activation(), gate) * up
}

/// `(dgate, dup)` of [`gated_forward`].
pub fn gated_backward(f: GatedActivation, gate: f64, up: f64, dy: f64) -> (f64, f64) {
    let f = f.activation();
    (dy * derivative(f, gate) * up, dy * forward(f, gate))
}

/// The natural scale of [`forward`].
pub fn forward_scale(f: Activation, x: f64) -> f64 {
    match f {
        Activation::Relu | Activation::LeakyRelu { .. } => forward(f, x).abs(),
        Activation::GeluTanh => x.abs() * Logistic::at(gelu_tanh_argument(x)).scale(),
        Activation::GeluErf => x.abs() * (normal_cdf(x) + x.abs() * normal_density(x)),
        Activation::Silu => x.abs() * Logistic::at(x).scale(),
        Activation::Sigmoid => Logistic::at(x).scale(),
        Activation::Tanh => x.tanh().abs(),
        Activation::Softplus { beta } => {
            let slope = Logistic::at(beta.get() * x);
            forward(f, x).abs() + x.abs().min(f64::MAX) * slope.value
        }
    }
}

/// The natural scale of [`derivative`]; that of [`backward`] is `|dy|` times this.
pub fn derivative_scale(f: Activation, x: f64) -> f64 {
    match f {
        Activation::Relu | Activation::LeakyRelu { .. } => derivative(f, x).abs(),
        Activation::GeluTanh => {
            let s = Logistic::at(gelu_tanh_argument(x));
            s.scale() + x.abs() * s.slope_scale() * gelu_tanh_argument_slope(x)
        }
        Activation::GeluErf => normal_cdf(x) + x.abs() * normal_density(x) * (2.0 + (x * x).min(f64::MAX)),
        Activation::Silu => {
            let s = Logistic::at(x);
            s.scale() + x.abs() * s.slope_scale()
        }
        Activation::Sigmoid => Logistic::at(x).slope_scale(),
        Activation::Tanh => 4.0 * Logistic::at(2.0 * x).slope_scale(),
        Activation::Softplus { beta } => Logistic::at(beta.get() * x).scale(),
    }
}

/// `1 / (1 + exp(-z))` with its complement and slope, none of them a difference.
struct Logistic {
    argument: f64,
    value: f64,
    complement: f64,
    slope: f64,
}

impl Logistic {
    fn at(z: f64) -> Self {
        let small = (-z.abs()).exp();
        let large = 1.0 / (1.0 + small);
        let (value, complement) = if z < 0.0 { (small * large, large) } else { (large, small * large) };
        Self { argument: z, value, complement, slope: small * large * large }
    }

    /// An argument that may be infinite contributes nothing where the function is flat.
    fn argument(&self) -> f64 {
        self.argument.abs().min(f64::MAX)
    }

    fn scale(&self) -> f64 {
        self.value * (1.0 + self.argument() * self.complement)
    }

    fn slope_scale(&self) -> f64 {
        self.slope * (1.0 + self.argument())
    }
}

/// `2 sqrt(2/pi) (x + 0.044715 x^3)`: `0.5 (1 + tanh(u)) = logistic(2u)`.
fn gelu_tanh_argument(x: f64) -> f64 {
    2.0 * SQRT_2_OVER_PI * (x + GELU_CUBIC * x * x * x)
}

/// Its derivative; finite, so that a vanishing slope times it vanishes.
fn gelu_tanh_argument_slope(x: f64) -> f64 {
    (2.0 * SQRT_2_OVER_PI * (1.0 + 3.0 * GELU_CUBIC * x * x)).min(f64::MAX)
}

/// The distribution function of the standard normal distribution, to full relative accuracy in both tails.
pub fn normal_cdf(x: f64) -> f64 {
    let t = x * std::f64::consts::FRAC_1_SQRT_2;
    if t.abs() <= SERIES_LIMIT || x.is_nan() {
        return 0.5 + 0.5 * erf_series(t);
    }
    // The exponential takes x itself: the rounding of t would be enlarged by t^2.
    let tail = 0.5 * exp_minus_square(x, 0.5) * erfc_fraction(t.abs());
    if x < 0.0 { tail } else { 1.0 - tail }
}

/// Its density.
pub fn normal_density(x: f64) -> f64 {
    INV_SQRT_2PI * exp_minus_square(x, 0.5)
}

/// The error function.
pub fn erf(x: f64) -> f64 {
    if x.abs() <= SERIES_LIMIT { erf_series(x) } else { (1.0 - erfc(x.abs())).copysign(x) }
}

/// `1 - erf(x)`, without cancellation for positive `x`.
pub fn erfc(x: f64) -> f64 {
    if x.is_nan() {
        x
    } else if x.abs() <= SERIES_LIMIT {
        1.0 - erf_series(x)
    } else {
        let tail = exp_minus_square(x, 1.0) * erfc_fraction(x.abs());
        if x < 0.0 { 2.0 - tail } else { tail }
    }
}

/// Up to here `erf` is below 0.53, so that `1 - erf` loses less than one bit.
const SERIES_LIMIT: f64 = 0.5;

/// `exp(-factor x^2)` for a power of two `factor`; the rounding error of the square is carried along, since the
/// exponential would enlarge it.
fn exp_minus_square(x: f64, factor: f64) -> f64 {
    let square = x * x;
    let value = (-square * factor).exp();
    // Beyond this the value is zero and the square may be infinite.
    if square > 2000.0 { value } else { value * (1.0 - x.mul_add(x, -square) * factor) }
}

/// `2/sqrt(pi) exp(-x^2) sum 2^n x^(2n+1) / (1 3 5 .. (2n+1))`: all terms have the same sign.
fn erf_series(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..64 {
        term *= 2.0 * x * x / f64::from(2 * n + 1);
        sum += term;
        if term.abs() <= sum.abs() * 1e-18 {
            break;
        }
    }
    TWO_OVER_SQRT_PI * exp_minus_square(x, 1.0) * sum
}

/// `exp(x^2) erfc(x)` for `x` above [`SERIES_LIMIT`].
fn erfc_fraction(x: f64) -> f64 {
    // The levels needed for 1e-17 grow as 1/x^2; twice as many change nothing.
    let levels = (180.0 / (x * x)).ceil().clamp(8.0, 720.0) as u32 + 12;
    erfc_fraction_to(x, levels)
}

/// `1/sqrt(pi) / (x + (1/2)/(x + 1/(x + (3/2)/(x + ...))))`, from the inside out.
fn erfc_fraction_to(x: f64, levels: u32) -> f64 {
    let tail = (1..=levels).rev().fold(x, |tail, level| x + 0.5 * f64::from(level) / tail);
    0.5 * TWO_OVER_SQRT_PI / tail
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Real;

    fn close(got: f64, want: f64, relative: f64) {
        assert!((got - want).abs() <= relative * want.abs(), "{got:e} is not {want:e}");
    }

    /// log(1 + e^x) in decimal, from x = -40, where it is e^x, to x = 700, where it is x.
    #[test]
    fn softplus_keeps_its_tail_and_its_limits() {
        let at = |beta, x| forward(Activation::Softplus { beta: Real::new(beta) }, x);
        close(at(1.0, 0.0), std::f64::consts::LN_2, 1e-16);
        close(at(1.0, -40.0), (-40f64).exp(), 1e-16);
        close(at(1.0, 2.0), 2.126_928_011_042_972_5, 2e-16);
        assert_eq!((at(1.0, 700.0), at(1.0, f64::INFINITY)), (700.0, f64::INFINITY));
        assert_eq!(at(1.0, f64::NEG_INFINITY), 0.0);
        assert!(at(1.0, f64::NAN).is_nan());
        // softplus(beta x) / beta; a negative beta turns it around.
        close(at(4.0, 0.5), at(1.0, 2.0) / 4.0, 2e-16);
        close(at(-1.0, 0.5), -at(1.0, -0.5), 2e-16);
    }

    /// Decimal values computed with 40 digits.
    #[test]
    fn error_function_has_full_precision() {
        let table = [
            (1e-300, 1.1283791670955126e-300, 1.0),
            (1e-9, 1.1283791670955127e-09, 0.9999999988716208),
            (0.001, 0.0011283787909692365, 0.9988716212090307),
            (0.125, 0.1403162048013338, 0.8596837951986662),
            (0.4375, 0.463898135749933, 0.536101864250067),
            (0.5, 0.5204998778130465, 0.4795001221869535),
            (0.53125, 0.5475284453995446, 0.45247155460045535),
            (0.75, 0.7111556336535151, 0.28884436634648486),
            (1.0, 0.8427007929497149, 0.15729920705028513),
            (1.5, 0.9661051464753108, 0.033894853524689274),
            (2.0, 0.9953222650189527, 0.004677734981047266),
            (3.25, 0.9999956972205363, 4.302779463675122e-06),
            (5.0, 0.9999999999984626, 1.537459794428035e-12),
            (5.875, 0.9999999999999999, 9.691555645277176e-17),
        ];
        for (x, erf_x, erfc_x) in table {
            close(erf(x), erf_x, 4e-16);
            close(erf(-x), -erf_x, 4e-16);
            close(erfc(x), erfc_x, 8e-16);
            close(erfc(-x), 1.0 + erf_x, 4e-16);
        }
        close(erfc(8.0), 1.1224297172982926e-29, 1e-15);
        close(erfc(12.0), 1.3562611692059042e-64, 1e-15);
        close(erfc(20.0), 5.395865611607901e-176, 1e-15);
        close(erfc(26.0), 5.663192408856143e-296, 1e-15);
        close(normal_cdf(-10.0), 7.619853024160525e-24, 2e-15);
        close(normal_cdf(-37.0), 5.725571222524577e-300, 2e-15);
    }

    #[test]
    fn the_fraction_has_enough_levels() {
        for i in 0..400 {
            let x = SERIES_LIMIT + f64::from(i) / 40.0;
            close(erfc_fraction(x), erfc_fraction_to(x, 2000), 4e-16);
        }
    }

    #[test]
    fn both_branches_meet() {
        for x in [SERIES_LIMIT, -SERIES_LIMIT] {
            close(erf(x), erf(x * (1.0 + 1e-12)), 2e-12);
            close(erfc(x), erfc(x * (1.0 + 1e-12)), 2e-12);
        }
    }

    #[test]
    fn error_function_at_the_ends() {
        assert_eq!(erf(f64::INFINITY), 1.0);
        assert_eq!(erf(f64::NEG_INFINITY), -1.0);
        assert_eq!(erf(-0.0).to_bits(), (-0.0f64).to_bits());
        assert_eq!(erfc(f64::NEG_INFINITY), 2.0);
        assert_eq!(erfc(f64::INFINITY), 0.0);
        assert_eq!(erfc(30.0), 0.0);
        assert!(erfc(f64::NAN).is_nan() && erf(f64::NAN).is_nan());
        close(erf(5e-324), 5e-324, 0.5);
    }

    const ALL: [Activation; 7] = [
        Activation::Relu,
        Activation::LeakyRelu { negative_slope: Real::new(0.01) },
        Activation::GeluTanh,
        Activation::GeluErf,
        Activation::Silu,
        Activation::Sigmoid,
        Activation::Tanh,
    ];

    #[test]
    fn huge_arguments_give_the_limits() {
        for x in [60.0, 1e4, 1e20, 1e200, f64::MAX] {
            for f in [Activation::GeluTanh, Activation::GeluErf, Activation::Silu, Activation::Relu] {
                assert_eq!(forward(f, x), x, "{f:?}");
                assert!(forward(f, -x).abs() < 1e-20, "{f:?}");
                close(derivative(f, x), 1.0, 1e-15);
                assert!(derivative(f, -x).abs() < 1e-20, "{f:?}");
                assert!(forward_scale(f, x).is_finite() && derivative_scale(f, x).is_finite(), "{f:?} {x}");
            }
            assert_eq!(derivative(Activation::Tanh, x), if x < 100.0 { 4.0 * (-2.0 * x).exp() } else { 0.0 });
        }
    }

    #[test]
    fn nan_propagates() {
        for f in ALL {
            assert!(forward(f, f64::NAN).is_nan(), "{f:?}");
            match f {
                Activation::Relu => assert_eq!(backward(f, f64::NAN, 3.0), 3.0),
                Activation::LeakyRelu { negative_slope } => {
                    assert_eq!(backward(f, f64::NAN, 3.0), 3.0 * negative_slope.get());
                }
                _ => {
                    assert!(derivative(f, f64::NAN).is_nan(), "{f:?}");
                    assert!(backward(f, f64::NAN, 1.0).is_nan(), "{f:?}");
                }
            }
        }
    }

    #[test]
    fn scales_bound_the_values() {
        for f in ALL {
            for i in -400..=400 {
                let x = f64::from(i) / 20.0;
                assert!(forward_scale(f, x) >= forward(f, x).abs() * (1.0 - 1e-14), "{f:?} {x}");
                assert!(derivative_scale(f, x) >= derivative(f, x).abs() * (1.0 - 1e-14), "{f:?} {x}");
            }
        }
    }
}
