//! `f32` functions.
//!
//! The hardware's `2^t` has an error of 2^-22.7, which is more than 2 ulp, so full precision takes a polynomial after range
//! reduction; there are instructions to spare while memory is the limit. Where `2^t` is good enough but its argument is
//! large, what the rounding of the argument lost is kept and multiplied in.

use warpwright_ptx::{Modifiers, ScalarType, UnaryOp};

use super::approx::APPROX_FTZ;
use super::{Functions, Normal};
use crate::float::Precision;
use crate::reg::{F32, I32};

const LOG2_E: f64 = 1.442_695_021_629_333_5;
/// `log2(e) - LOG2_E`
const LOG2_E_LOW: f64 = 1.925_962_991_126_617_5e-8;
const LN_2: f64 = std::f64::consts::LN_2;

/// `ln 2` in two parts; the first has nine zero bits at its end, so a product with a small integer is exact.
const LN_2_HIGH: f64 = 0.693_145_751_953_125;
const LN_2_LOW: f64 = 1.428_606_820_309_417_2e-6;

/// Adding it leaves the nearest integer in the low bits.
const ROUND: f64 = 12_582_912.0;
const ROUND_BITS: u32 = 0x4b40_0000;
const ONE_BITS: u32 = 0x3f80_0000;

/// `(exp(f) - 1 - f) / f^2` for `|f| <= 0.35`: 2^-31 relative to `exp(f) - 1`.
const EXPM1: [f64; 6] = [
    0.5,
    0.1666666716337204,
    0.04166634753346443,
    0.00833327230066061,
    0.0013941521756350994,
    0.0001991485623875633,
];

/// `(exp(f) - 1 - f) / f^2` for `|f| <= 0.35`: 2^-27 relative to `exp(f)`.
const EXP: [f64; 5] =
    [0.4999999403953552, 0.166665181517601, 0.041668422520160675, 0.008369063027203083, 0.001381388632580638];

/// `tanh(x) / x` in `x^2` for `|x| <= 0.35`: 2^-18.
const TANH_SMALL: [f64; 3] = [0.9999971389770508, -0.33290955424308777, 0.12395031005144119];

/// `erf(x) / x - 1` in `x^2` for `|x| <= 1`: 2^-29.
const ERF_SMALL: [f64; 7] = [
    0.12837916612625122,
    -0.3761262595653534,
    0.1128358542919159,
    -0.026853810995817184,
    0.00518832728266716,
    -0.000801019137725234,
    7.85385345807299e-05,
];

/// `log2(erfc(t))` for `1 <= t <= 4`: 2^-29 relative to `erf(t)`.
const ERF_LARGE: [f64; 7] = [
    -0.0004927138797938824,
    -1.6260459423065186,
    -0.920648455619812,
    -0.14875152707099915,
    0.03150561451911926,
    -0.004252554848790169,
    0.00026888615684583783,
];

/// `(log(1 + f) - f + f^2 / 2) / f^3` for `|f| <= 1/3`: 2^-27 relative to the logarithm.
const LOG1P: [f64; 8] = [
    0.33333221077919006,
    -0.24999681115150452,
    0.20010238885879517,
    -0.16685834527015686,
    0.14007282257080078,
    -0.12109945714473724,
    0.13982294499874115,
    -0.1321442425251007,
];

/// `log(1 + e) / e` for `0 <= e <= 1`: minimax in relative error, 2^-27.6.
const LOG1P_UNIT: [f64; 10] = [
    0.999_999_995_287_219_2,
    -0.499_999_024_227_744_6,
    0.333_299_624_165_582_07,
    -0.249_541_336_552_957_27,
    0.196_759_392_545_395_73,
    -0.153_055_925_642_345_52,
    0.106_036_548_741_907_86,
    -0.056_959_534_179_128_64,
    0.019_851_462_325_288_38,
    -0.003_244_025_169_922_661,
];
/// The same, 2^-16.8.
const LOG1P_UNIT_STORAGE: [f64; 6] = [
    0.999_991_598_166_794_5,
    -0.499_361_364_703_323_04,
    0.325_206_680_213_240_34,
    -0.210_048_689_895_161_32,
    0.101_222_284_767_732_11,
    -0.023_869_151_696_335_227,
];

/// `P(X > t) exp(t^2 / 2) / w` in `w = 1 / (1 + 0.3 t)` for `0 <= t <= 14.2`: 2^-28.
const TAIL: [f64; 10] = [
    0.11968666315078735,
    0.11957235634326935,
    0.11023116111755371,
    0.0784086138010025,
    0.0961044654250145,
    -0.07933009415864944,
    0.19167667627334595,
    -0.22813571989536285,
    0.11240362375974655,
    -0.020617764443159103,
];
const TAIL_SCALE: f64 = 0.3;

/// `log2(P(X > t))` for `0 <= t <= 6`: 2^-17 relative to the tail. Beyond, the tail is below 2^-30 and goes on falling.
const TAIL_STORAGE: [f64; 8] = [
    -0.9999952912330627,
    -1.1512510776519775,
    -0.45846444368362427,
    -0.05396004766225815,
    0.008507885970175266,
    -0.0009305248386226594,
    6.159838812891394e-05,
    -1.834819727264403e-06,
];

/// `1 / sqrt(2 pi)`
const DENSITY: f64 = 0.398_942_280_401_432_7;

impl Functions for f32 {
    fn exp<'k>(x: F32<'k>, p: Precision) -> F32<'k> {
        if p == Precision::Storage {
            return (x * LOG2_E).exp2_approx();
        }
        let (shifted, f) = reduce(x.minimum(89.0).maximum(-104.5));
        scale(exp_reduced(f), shifted)
    }

    fn exp_nonpositive<'k>(x: F32<'k>, p: Precision) -> F32<'k> {
        if p == Precision::Storage { Functions::exp(x, p) } else { exp_negative(x) }
    }

    fn exp2<'k>(x: F32<'k>, p: Precision) -> F32<'k> {
        if p == Precision::Storage {
            return x.exp2_approx();
        }
        let x = x.minimum(129.0).maximum(-151.0);
        let shifted = x + ROUND;
        scale(exp_reduced((x - (shifted - ROUND)) * LN_2), shifted)
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
        let e = exp_negative(-x.abs());
        divide_by_sum(x.ge(0.0).select(1.0, e), e, 1.0)
    }

    fn softplus<'k>(x: F32<'k>, p: Precision) -> F32<'k> {
        // log(1 + exp(x)) = max(x, 0) + log(1 + exp(-|x|))
        let e = Functions::exp_nonpositive(-x.abs(), p);
        let log1p = if p == Precision::Storage { &LOG1P_UNIT_STORAGE[..] } else { &LOG1P_UNIT };
        e.mul_add(e.polynomial(log1p), x.max(0.0))
    }

    fn tanh<'k>(x: F32<'k>, p: Precision) -> F32<'k> {
        if p == Precision::Storage {
            let e = (x * (2.0 * LOG2_E)).exp2_approx();
            let large = (e + 1.0).rcp_approx().mul_add(-2.0, 1.0);
            return x.abs().lt(0.35).select(x * (x * x).polynomial(&TANH_SMALL), large);
        }
        // tanh(a) = -e / (2 + e) with e = exp(-2 a) - 1, which is 1 in f32 from 9.02 on.
        let y = x.abs().minimum(9.5) * -2.0;
        let (shifted, f) = reduce(y);
        let expm1 = (f * f).mul_add(f.polynomial(&EXPM1), f);
        let power = F32::from_bits(shifted.to_bits().mul_add(1 << 23, ONE_BITS));
        let e = power.mul_add(expm1, power - 1.0);
        divide_by_sum(-e, e, 2.0).copysign(x)
    }

    fn erf<'k>(x: F32<'k>) -> F32<'k> {
        let small = (x * x).polynomial(&ERF_SMALL).mul_add(x, x);
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
        // Of infinite x the rest is NaN and is replaced, so that the 0 of the exponential stands.
        let e = t.exp2_approx() * bounded(rest).mul_add(LN_2, 1.0);
        let w = a.mul_add(TAIL_SCALE, 1.0).rcp_approx();
        Normal { x, tail: w * w.polynomial(&TAIL) * e, density: e * DENSITY }
    }
}

fn hardware<'k>(op: UnaryOp, mods: Modifiers, x: F32<'k>) -> F32<'k> {
    x.k().unary(op, ScalarType::F32, mods, x.as_operand())
}

/// The multiple `n` of `ln 2` nearest to `x`, as `n + ROUND`, and the rest.
fn reduce<'k>(x: F32<'k>) -> (F32<'k>, F32<'k>) {
    let shifted = x.mul_add(LOG2_E, ROUND);
    let n = shifted - ROUND;
    (shifted, n.mul_add(-LN_2_LOW, n.mul_add(-LN_2_HIGH, x)))
}

/// `exp(f)` for `|f| <= ln(2) / 2`.
fn exp_reduced(f: F32<'_>) -> F32<'_> {
    f.polynomial(&EXP).mul_add(f, 1.0).mul_add(f, 1.0)
}

/// `exp(x)` for `x <= 0`, where one power of two cannot overflow: cheaper by five instructions.
fn exp_negative(x: F32<'_>) -> F32<'_> {
    const RAISED: u32 = ONE_BITS + (64 << 23);
    const LOWERED: f64 = 1.0 / (1u128 << 64) as f64;
    let (shifted, f) = reduce(x.maximum(-104.5));
    let raised = F32::from_bits(shifted.to_bits().mul_add(1 << 23, RAISED));
    exp_reduced(f) * raised * LOWERED
}

/// `value * 2^n` for `shifted = n + ROUND`, rounded once where it is subnormal.
fn scale<'k>(value: F32<'k>, shifted: F32<'k>) -> F32<'k> {
    let power = |n: I32<'k>| F32::from_bits(n.to_u32().mul_add(1 << 23, ONE_BITS));
    let n = (shifted.to_bits() - ROUND_BITS).to_i32();
    let half = n >> 1;
    value * power(half) * power(n - half)
}

/// The value between -1 and 1; a NaN becomes a bound.
fn bounded(value: F32<'_>) -> F32<'_> {
    value.max(-1.0).min(1.0)
}

/// `n / (e + c)` for a sum between 1 and 2, rounded to nearest but for rare cases: an approximate quotient and its residual,
/// in which the part of `e` counts that rounding the sum lost.
fn divide_by_sum<'k>(n: F32<'k>, e: F32<'k>, c: f64) -> F32<'k> {
    let sum = e + c;
    let lost = e - (sum - c);
    let inverse = sum.rcp_approx();
    let quotient = n * inverse;
    let residual = (-quotient).mul_add(lost, (-quotient).mul_add(sum, n));
    residual.mul_add(inverse, quotient)
}
