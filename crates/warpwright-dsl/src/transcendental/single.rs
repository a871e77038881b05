//! `f32` functions.
//!
//! The exponential unit computes `2^t` of an f32 `t`. What is lost when `x log2(e)` is rounded to `t` would cost up to 64
//! ulp, so the rest `r` of the product is kept and multiplied in as `2^r = 1 + r ln 2`. For infinite `x` the rest is NaN;
//! `min` and `max` replace it by a bound and leave the special value to the exponential itself.

use warpwright_ptx::{Modifiers, ScalarType, UnaryOp};

use super::approx::APPROX_FTZ;
use super::{Functions, Normal};
use crate::float::Precision;
use crate::reg::F32;

const LOG2_E: f64 = 1.442_695_021_629_333_5;
/// `log2(e) - LOG2_E`
const LOG2_E_LOW: f64 = 1.925_962_991_126_617_5e-8;
const LN_2: f64 = std::f64::consts::LN_2;

/// `ln 2` in two parts; the first has nine zero bits at its end, so a product with a small integer is exact.
const LN_2_HIGH: f64 = 0.693_145_751_953_125;
const LN_2_LOW: f64 = 1.428_606_820_309_417_2e-6;

/// Adding it leaves the nearest integer in the low bits.
const ROUND: f64 = 12_582_912.0;

/// `(exp(f) - 1 - f) / f^2` for `|f| <= 0.35`: 2^-31 relative to `exp(f) - 1`.
const EXPM1: [f64; 6] = [
    0.5,
    0.166_666_656_732_559_2,
    0.041_666_347_533_464_43,
    0.008_333_391_509_950_161,
    0.001_394_165_330_566_466,
    0.000_198_459_747_480_228_2,
];

/// `tanh(x) / x` in `x^2` for `|x| <= 0.35`: 2^-18.
const TANH_SMALL: [f64; 3] = [0.999_997_138_977_050_8, -0.332_909_524_440_765_4, 0.123_950_280_249_118_8];

/// `erf(x) / x` in `x^2` for `|x| <= 1`: 2^-29.
const ERF_SMALL: [f64; 7] = [
    1.128_379_106_521_606_4,
    -0.376_126_259_565_353_4,
    0.112_835_854_291_915_9,
    -0.026_853_812_858_462_334,
    0.005_188_328_679_651_022,
    -0.000_801_010_201_962_6,
    7.853_879_651_520_401e-5,
];

/// `log2(erfc(t))` for `1 <= t <= 4`: 2^-29 relative to `erf(t)`.
const ERF_LARGE: [f64; 7] = [
    -0.000_492_760_753_376_239_5,
    -1.626_045_823_097_229,
    -0.920_648_753_643_035_9,
    -0.148_751_288_652_420_04,
    0.031_505_513_936_281_204,
    -0.004_252_532_497_048_378,
    0.000_268_884_235_993_027_7,
];

/// `(log(1 + f) - f + f^2 / 2) / f^3` for `|f| <= 1/3`: 2^-27 relative to the logarithm.
const LOG1P: [f64; 8] = [
    0.333_332_121_372_222_9,
    -0.249_997_928_738_594_06,
    0.200_106_099_247_932_43,
    -0.166_807_591_915_130_6,
    0.140_021_204_948_425_3,
    -0.121_800_042_688_846_59,
    0.140_046_492_218_971_25,
    -0.129_122_599_959_373_47,
];

/// `P(X > t) exp(t^2 / 2) / w` in `w = 1 / (1 + 0.3 t)` for `0 <= t <= 14.2`: 2^-28.
const TAIL: [f64; 10] = [
    0.119_686_655_700_206_76,
    0.119_572_386_145_591_74,
    0.110_230_907_797_813_42,
    0.078_409_850_597_381_59,
    0.096_100_755_035_877_23,
    -0.079_322_986_304_759_98,
    0.191_667_988_896_369_93,
    -0.228_129_088_878_631_6,
    0.112_400_777_637_958_53,
    -0.020_617_235_451_936_722,
];
const TAIL_SCALE: f64 = 0.3;

/// `log2(P(X > t))` for `0 <= t <= 6`: 2^-18 relative to the tail. Beyond, the tail is below 2^-30 and goes on falling.
const TAIL_STORAGE: [f64; 8] = [
    -0.999_995_291_233_062_7,
    -1.151_251_077_651_977_5,
    -0.458_464_443_683_624_27,
    -0.053_960_047_662_258_15,
    0.008_507_885_970_175_266,
    -0.000_930_524_838_622_659_4,
    6.159_838_812_891_394e-5,
    -1.834_819_727_264_403e-6,
];

/// `1 / sqrt(2 pi)`
const DENSITY: f64 = 0.398_942_280_401_432_7;

impl Functions for f32 {
    fn exp<'k>(x: F32<'k>, p: Precision) -> F32<'k> {
        let t = x * LOG2_E;
        if p == Precision::Storage {
            return t.exp2_approx();
        }
        let rest = x.mul_add(LOG2_E_LOW, x.mul_add(LOG2_E, -t));
        exp2_hardware(t) * correction(rest)
    }

    fn exp2<'k>(x: F32<'k>, p: Precision) -> F32<'k> {
        match p {
            Precision::Full => exp2_hardware(x),
            Precision::Storage => x.exp2_approx(),
        }
    }

    fn log<'k>(x: F32<'k>) -> F32<'k> {
        let subnormal = x.lt(f64::from(f32::MIN_POSITIVE));
        let scaled = subnormal.select(x * 8_388_608.0, x);
        let bits = scaled.to_bits();
        // The exponent that leaves a mantissa between 2/3 and 4/3.
        let exponent = (bits - 0x3f2a_aaab) & 0xff80_0000;
        let f = F32::from_bits(bits - exponent) - 1.0;
        let e = exponent.to_i32().to_f32().mul_add(1.0 / 8_388_608.0, subnormal.select(-23.0, 0.0));
        let q = f.polynomial(&LOG1P).mul_add(f, -0.5);
        let value = e.mul_add(LN_2, (f * f).mul_add(q, f));
        let special = x.gt(0.0).select(x, x.eq(0.0).select(f64::NEG_INFINITY, f64::NAN));
        (x.gt(0.0) & x.lt(f64::INFINITY)).select(value, special)
    }

    fn sigmoid<'k>(x: F32<'k>, p: Precision) -> F32<'k> {
        if p == Precision::Storage {
            return ((x * -LOG2_E).exp2_approx() + 1.0).rcp_approx();
        }
        let e = Functions::exp(-x.abs(), Precision::Full);
        divide_by_one_to_two(x.ge(0.0).select(1.0, e), e + 1.0)
    }

    fn tanh<'k>(x: F32<'k>, p: Precision) -> F32<'k> {
        if p == Precision::Storage {
            let e = (x * (2.0 * LOG2_E)).exp2_approx();
            let large = (e + 1.0).rcp_approx().mul_add(-2.0, 1.0);
            return x.abs().lt(0.35).select(x * (x * x).polynomial(&TANH_SMALL), large);
        }
        // tanh(a) = -e / (2 + e) with e = exp(-2 a) - 1, which is 1 in f32 from 9.02 on.
        let y = x.abs().minimum(9.5) * -2.0;
        let shifted = y.mul_add(LOG2_E, ROUND);
        let n = shifted - ROUND;
        let f = n.mul_add(-LN_2_LOW, n.mul_add(-LN_2_HIGH, y));
        let expm1 = (f * f).mul_add(f.polynomial(&EXPM1), f);
        let power = F32::from_bits(shifted.to_bits().mul_add(1 << 23, 0x3f80_0000));
        let e = power.mul_add(expm1, power - 1.0);
        divide_by_one_to_two(-e, e + 2.0).copysign(x)
    }

    fn erf<'k>(x: F32<'k>) -> F32<'k> {
        let small = x * (x * x).polynomial(&ERF_SMALL);
        let a = x.abs();
        let large = 1.0 - a.minimum(4.0).polynomial(&ERF_LARGE).exp2_approx();
        a.lt(1.0).select(small, large.copysign(x))
    }

    fn rsqrt<'k>(x: F32<'k>, p: Precision) -> F32<'k> {
        if p == Precision::Storage {
            return hardware(UnaryOp::Rsqrt, APPROX_FTZ, x);
        }
        let y = hardware(UnaryOp::Rsqrt, Modifiers::APPROX, x);
        // One Newton step; of 0 and infinity its residual is NaN and is replaced, so that y stands.
        let residual = bounded((-(x * y)).mul_add(y, 1.0));
        y * residual.mul_add(0.5, 1.0)
    }

    fn exp2_approx<'k>(x: F32<'k>) -> F32<'k> {
        hardware(UnaryOp::Ex2, APPROX_FTZ, x)
    }

    fn rcp_approx<'k>(x: F32<'k>) -> F32<'k> {
        hardware(UnaryOp::Rcp, APPROX_FTZ, x)
    }

    fn tanh_approx<'k>(x: F32<'k>) -> F32<'k> {
        hardware(UnaryOp::Tanh, Modifiers::APPROX, x)
    }

    fn normal<'k>(x: F32<'k>, p: Precision) -> Normal<'k, Self> {
        let a = x.abs();
        if p == Precision::Storage {
            let tail = a.polynomial(&TAIL_STORAGE).exp2_approx();
            // exp(-x^2 / 2) = 2^-(x sqrt(log2(e) / 2))^2
            let scaled = a * (LOG2_E / 2.0).sqrt();
            let density = (-scaled * scaled).exp2_approx() * DENSITY;
            return Normal { x, tail, density };
        }
        let square = a * a;
        let square_low = a.mul_add(a, -square);
        let t = square * (-LOG2_E / 2.0);
        let rest = square.mul_add(-LOG2_E / 2.0, -t);
        let rest = square.mul_add(-LOG2_E_LOW / 2.0, rest);
        let rest = square_low.mul_add(-LOG2_E / 2.0, rest);
        let e = t.exp2_approx() * correction(rest);
        let w = a.mul_add(TAIL_SCALE, 1.0).rcp_approx();
        Normal { x, tail: w * w.polynomial(&TAIL) * e, density: e * DENSITY }
    }
}

fn hardware<'k>(op: UnaryOp, mods: Modifiers, x: F32<'k>) -> F32<'k> {
    x.k().unary(op, ScalarType::F32, mods, x.as_operand())
}

/// `2^t` with subnormal results: four instructions instead of one.
fn exp2_hardware(t: F32<'_>) -> F32<'_> {
    hardware(UnaryOp::Ex2, Modifiers::APPROX, t)
}

/// `2^rest` for a rest of rounding.
fn correction(rest: F32<'_>) -> F32<'_> {
    bounded(rest).mul_add(LN_2, 1.0)
}

/// The value between -1 and 1; a NaN becomes a bound.
fn bounded(value: F32<'_>) -> F32<'_> {
    value.max(-1.0).min(1.0)
}

/// `n / d` for `1 <= d <= 2`, rounded to nearest but for rare cases: an approximate quotient and its residual.
fn divide_by_one_to_two<'k>(n: F32<'k>, d: F32<'k>) -> F32<'k> {
    let inverse = d.rcp_approx();
    let quotient = n * inverse;
    (-quotient).mul_add(d, n).mul_add(inverse, quotient)
}
