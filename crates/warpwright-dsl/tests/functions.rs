//! Accuracy and special values of every function, in the emulator.
//!
//! The f32 references are f64 functions of the standard library; the f64 references are a table of correctly rounded
//! values. The bounds are those that the documentation promises; on a device the same kernels were within them for every
//! f32 argument.

mod support;

use support::{Map, reference};
use warpwright_dsl::prelude::*;

const TARGETS: [Target; 2] = [Target::sm(75), Target::sm(90)];

fn single(xs: &[f32], target: Target, f: impl for<'k> Fn(F32<'k>) -> F32<'k>) -> Vec<f32> {
    let map = Map { single: f, double: support::same::<f64>, from: DType::F32, to: DType::F32, width: 4 };
    map.apply(target, xs)
}

fn double(xs: &[f64], target: Target, f: impl for<'k> Fn(F64<'k>) -> F64<'k>) -> Vec<f64> {
    let map = Map { single: support::same::<f32>, double: f, from: DType::F64, to: DType::F64, width: 2 };
    map.apply(target, xs)
}

/// Every exponent and sign with a few mantissas, a fine sweep of [-20, 20], and the edges.
fn sweep() -> Vec<f32> {
    let mut xs: Vec<f32> = (0..=u16::MAX).map(|top| f32::from_bits(u32::from(top) << 16 | 0x5a5a)).collect();
    xs.extend((-20_000..=20_000).map(|i| i as f32 * 1.000_37e-3));
    xs.extend([0.0, -0.0, 1.0, -1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN]);
    xs.extend([
        f32::MIN_POSITIVE,
        1e-45,
        -1e-45,
        88.722_83,
        88.722_84,
        -87.336_54,
        -103.972,
        -103.973,
        9.010_9,
    ]);
    xs.extend([
        0.35,
        -0.35,
        1.0 - f32::EPSILON / 2.0,
        13.2,
        -13.2,
        0.5,
        127.999,
        128.0,
        -149.0,
        -150.0,
        -149.5,
    ]);
    xs
}

/// Distance from `y` to `exact` in units of the last place of the correctly rounded result.
fn ulps(y: f32, exact: f64) -> f64 {
    let rounded = exact as f32;
    if y.is_nan() || exact.is_nan() {
        return if y.is_nan() && exact.is_nan() { 0.0 } else { f64::INFINITY };
    }
    if y.is_infinite() || rounded.is_infinite() {
        // The largest finite value and infinity are neighbours.
        let end = |v: f32| v.is_infinite() || v.abs() == f32::MAX;
        let agree = end(y) && end(rounded) && y.is_sign_negative() == rounded.is_sign_negative();
        return if agree { f64::from(u8::from(y != rounded)) } else { f64::INFINITY };
    }
    let exponent = exact.abs().max(f64::from(f32::MIN_POSITIVE)).log2().floor();
    (f64::from(y) - exact).abs() / (exponent - 23.0).exp2()
}

fn check_single(name: &str, bound: f64, f: impl for<'k> Fn(F32<'k>) -> F32<'k>, exact: impl Fn(f64) -> f64) {
    let xs = sweep();
    for target in TARGETS {
        for (x, y) in xs.iter().zip(single(&xs, target, &f)) {
            let error = ulps(y, exact(f64::from(*x)));
            assert!(error <= bound, "{name}({x:e}) = {y:e}, {error} ulp on {target}");
        }
    }
}

fn sigmoid(x: f64) -> f64 {
    if x >= 0.0 { 1.0 / (1.0 + (-x).exp()) } else { x.exp() / (1.0 + x.exp()) }
}

fn softplus(x: f64) -> f64 {
    if x.is_nan() { x } else { x.max(0.0) + (-x.abs()).exp().ln_1p() }
}

/// By its Taylor series near 0 and a continued fraction beyond: about 1e-15 relative.
fn erf(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    if x.abs() < 2.5 {
        let (mut term, mut sum) = (x, x);
        for n in 1..80 {
            term *= -x * x / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        return sum * std::f64::consts::FRAC_2_SQRT_PI;
    }
    (1.0 - erfc_tail(x.abs())).copysign(x)
}

fn erfc_tail(t: f64) -> f64 {
    let mut fraction = t;
    for n in (1..120).rev() {
        fraction = t + f64::from(n) / 2.0 / fraction;
    }
    (-t * t).exp() / (fraction * std::f64::consts::PI.sqrt())
}

fn normal_tail(x: f64) -> f64 {
    let t = x.abs() * std::f64::consts::FRAC_1_SQRT_2;
    if t < 2.0 { (1.0 - erf(t)) / 2.0 } else { erfc_tail(t) / 2.0 }
}

fn density(x: f64) -> f64 {
    (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt()
}

#[test]
fn single_precision_functions_are_within_two_ulp() {
    check_single("exp", 1.0, |x| x.exp(), f64::exp);
    check_single("exp of -|x|", 1.0, |x| (-x.abs()).exp_nonpositive(), |x| (-x.abs()).exp());
    check_single("exp2", 1.0, |x| x.exp2(), f64::exp2);
    check_single("sigmoid", 1.6, |x| x.sigmoid(), sigmoid);
    check_single("softplus", 2.0, |x| x.softplus(), softplus);
    check_single("tanh", 2.0, |x| x.tanh(), f64::tanh);
    check_single("erf", 1.5, |x| x.erf(), erf);
    check_single("log", 1.0, |x| x.log(), |x| if x < 0.0 { f64::NAN } else { x.ln() });
    check_single("rsqrt", 2.0, |x| x.rsqrt(), |x| if x < 0.0 { f64::NAN } else { 1.0 / x.sqrt() });
}

#[test]
fn single_precision_algebra_is_exact() {
    check_single("sqrt", 0.5, |x| x.sqrt(), |x| if x < 0.0 { f64::NAN } else { x.sqrt() });
    check_single("rcp", 0.5, |x| x.rcp(), |x| 1.0 / x);
    check_single("div", 0.5, |x| 3.0 / x, |x| 3.0 / x);
    check_single("floor", 0.0, |x| x.floor(), f64::floor);
    check_single("ceil", 0.0, |x| x.ceil(), f64::ceil);
    check_single("trunc", 0.0, |x| x.trunc(), f64::trunc);
    check_single("round_even", 0.0, |x| x.round_even(), f64::round_ties_even);
    check_single("maximum", 0.0, |x| x.maximum(0.25), |x| if x.is_nan() { x } else { x.max(0.25) });
    check_single("minimum", 0.0, |x| x.minimum(0.25), |x| if x.is_nan() { x } else { x.min(0.25) });
    check_single("max", 0.0, |x| x.max(0.25), |x| x.max(0.25));
    check_single("copysign", 0.0, |x| x.lit(3.0).copysign(x), |x| 3f64.copysign(x));
    check_single("mul_add", 0.5, |x| x.mul_add(0.5, 1.0), |x| x * 0.5 + 1.0);
}

#[test]
fn zeros_keep_their_sign_in_odd_functions() {
    for target in TARGETS {
        let same_sign = |f: &dyn for<'k> Fn(F32<'k>) -> F32<'k>| {
            let y = single(&[0.0, -0.0], target, f);
            assert_eq!([y[0].to_bits(), y[1].to_bits()], [0, 0x8000_0000]);
        };
        same_sign(&|x| x.tanh());
        same_sign(&|x| x.erf());
        same_sign(&|x| x.tanh_for(Precision::Storage));
        let y = double(&[0.0, -0.0], target, |x| x.tanh());
        assert!(y[0].is_sign_positive() && y[1].is_sign_negative());
    }
}

/// Relative error at most `bound` for the arguments that `keep` admits.
fn check_relative(
    name: &str,
    bound: f64,
    keep: impl Fn(f32) -> bool,
    f: impl for<'k> Fn(F32<'k>) -> F32<'k>,
    exact: impl Fn(f64) -> f64,
) {
    let xs: Vec<f32> = sweep().into_iter().filter(|x| keep(*x)).collect();
    assert!(xs.len() > 1000, "{name}: too few arguments");
    for target in TARGETS {
        for (x, y) in xs.iter().zip(single(&xs, target, &f)) {
            let exact = exact(f64::from(*x));
            let error = (f64::from(y) - exact).abs();
            let close = error <= bound * exact.abs() || exact.abs() < f64::from(f32::MIN_POSITIVE);
            assert!(close, "{name}({x:e}) = {y:e}, not {exact:e}, on {target}");
        }
    }
}

const STORAGE_BOUND: f64 = 1.0 / 65536.0;

#[test]
fn storage_precision_is_two_to_the_minus_sixteen() {
    let p = Precision::Storage;
    check_relative("exp", STORAGE_BOUND, |x| x.abs() < 87.0, |x| x.exp_for(p), f64::exp);
    check_relative("sigmoid", STORAGE_BOUND, |x| x.abs() < 87.0, |x| x.sigmoid_for(p), sigmoid);
    check_relative(
        "softplus",
        STORAGE_BOUND,
        |x| x > -87.0 && x.is_finite(),
        |x| x.softplus_for(p),
        softplus,
    );
    check_relative("tanh", STORAGE_BOUND, f32::is_finite, |x| x.tanh_for(p), f64::tanh);
    check_relative("tail", STORAGE_BOUND, |x| x.abs() < 6.0, |x| x.normal(p).tail, normal_tail);
    check_relative("density", STORAGE_BOUND, |x| x.abs() < 12.0, |x| x.normal(p).density, density);
}

#[test]
fn the_normal_distribution_has_relative_accuracy() {
    let p = Precision::Full;
    let bound = 1.0 / f64::from(1 << 20);
    check_relative("tail", bound, |x| x.abs() < 12.9, |x| x.normal(p).tail, normal_tail);
    check_relative("density", bound, |x| x.abs() < 12.9, |x| x.normal(p).density, density);
    let cdf = |x: f64| if x < 0.0 { normal_tail(x) } else { 1.0 - normal_tail(x) };
    check_relative("cdf", bound, |x| x > -12.9, |x| x.normal(p).cdf(), cdf);
}

#[test]
fn the_documented_gelu_keeps_limits_and_nan() {
    for p in [Precision::Full, Precision::Storage] {
        for target in TARGETS {
            let xs = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 0.0, 50.0, -50.0];
            let y = single(&xs, target, |x| x.maximum(0.0) - x.abs().min(40.0) * x.normal(p).tail);
            assert_eq!(y[0], f32::INFINITY);
            assert_eq!(y[1], 0.0);
            assert!(y[2].is_nan());
            assert_eq!(y[3..], [0.0, 50.0, 0.0]);
        }
    }
}

fn check_double(name: &str, bound: f64, table: &[(f64, f64)], f: impl for<'k> Fn(F64<'k>) -> F64<'k>) {
    let xs: Vec<f64> = table.iter().map(|(x, _)| *x).collect();
    for target in TARGETS {
        for ((x, exact), y) in table.iter().zip(double(&xs, target, &f)) {
            let error = (y - exact).abs();
            // One unit of the least subnormal on top, for results that are subnormal.
            let allowed = bound * exact.abs() + f64::from_bits(1);
            assert!(
                error <= allowed,
                "{name}({x:e}) = {y:e}, not {exact:e} ({:e}), on {target}",
                error / exact.abs()
            );
        }
    }
}

#[test]
fn double_precision_functions_are_within_1e_15() {
    check_double("exp", 5e-16, reference::EXP, |x| x.exp());
    check_double("exp2", 5e-16, reference::EXP2, |x| x.exp2());
    check_double("log", 5e-16, reference::LOG, |x| x.log());
    check_double("sigmoid", 1e-15, reference::SIGMOID, |x| x.sigmoid());
    let of_softplus: Vec<_> = reference::SIGMOID.iter().map(|(x, _)| (*x, softplus(*x))).collect();
    check_double("softplus", 1e-15, &of_softplus, |x| x.softplus());
    check_double("tanh", 1e-15, reference::TANH, |x| x.tanh());
    check_double("erf", 1e-15, reference::ERF, |x| x.erf());
    check_double("rsqrt", 5e-16, reference::RSQRT, |x| x.rsqrt());
    let of_normal = |column: usize| -> Vec<_> {
        reference::NORMAL.iter().map(|(x, values)| (*x, values[column])).collect()
    };
    check_double("tail", 4e-15, &of_normal(0), |x| x.normal(Precision::Full).tail);
    check_double("cdf", 4e-15, &of_normal(1), |x| x.normal(Precision::Full).cdf());
    check_double("density", 4e-15, &of_normal(2), |x| x.normal(Precision::Full).density);
}

#[test]
fn double_precision_special_values_are_the_limits() {
    let xs = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1e308, -1e308, 0.0, 5e-324];
    let expect = |name: &str, got: Vec<f64>, want: [f64; 7]| {
        for ((x, y), w) in xs.iter().zip(got).zip(want) {
            assert!(
                y.to_bits() == w.to_bits() || (y.is_nan() && w.is_nan()),
                "{name}({x:e}) = {y:e}, not {w:e}"
            );
        }
    };
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    for target in TARGETS {
        expect("exp", double(&xs, target, |x| x.exp()), [inf, 0.0, nan, inf, 0.0, 1.0, 1.0]);
        expect("exp2", double(&xs, target, |x| x.exp2()), [inf, 0.0, nan, inf, 0.0, 1.0, 1.0]);
        expect("sigmoid", double(&xs, target, |x| x.sigmoid()), [1.0, 0.0, nan, 1.0, 0.0, 0.5, 0.5]);
        expect("tanh", double(&xs, target, |x| x.tanh()), [1.0, -1.0, nan, 1.0, -1.0, 0.0, 5e-324]);
        expect("erf", double(&xs, target, |x| x.erf()), [1.0, -1.0, nan, 1.0, -1.0, 0.0, 5e-324]);
        let (ln_max, ln_min) = (1e308f64.ln(), -744.440_071_921_381_2);
        expect("log", double(&xs, target, |x| x.log()), [inf, nan, nan, ln_max, nan, -inf, ln_min]);
        let tail = double(&xs, target, |x| x.normal(Precision::Full).tail);
        expect("tail", tail, [0.0, 0.0, nan, 0.0, 0.0, 0.5, 0.5]);
    }
}
