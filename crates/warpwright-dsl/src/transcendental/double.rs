//! `f64` functions: range reduction, a polynomial and exact scaling; divisions are correctly rounded. Precision is always
//! full.

use super::{Functions, Normal};
use crate::float::Precision;
use crate::reg::{F64, I32, U64};

const LOG2_E: f64 = std::f64::consts::LOG2_E;

/// `ln 2` in two parts; the first ends in 21 zero bits, so a product with an exponent is exact.
const LN_2_HIGH: f64 = f64::from_bits(0x3fe6_2e42_fee0_0000);
const LN_2_LOW: f64 = f64::from_bits(0x3dea_39ef_3579_3c76);

/// Adding it leaves the nearest integer in the low word.
const ROUND: f64 = 6_755_399_441_055_744.0;

/// `(exp(f) - 1 - f) / f^2` for `|f| <= ln(2) / 2`: 2^-61.
const EXPM1: [f64; 11] = [
    0.5,
    0.16666666666666677,
    0.041666666666666706,
    0.008333333333321149,
    0.0013888888888865835,
    0.00019841269887497,
    2.4801587362493084e-05,
    2.7557242697306807e-06,
    2.755724112075419e-07,
    2.5109605546493605e-08,
    2.092494734815001e-09,
];

/// `erf(x) / x` in `x^2` for `|x| <= 1`: 2^-62.
const ERF_SMALL: [f64; 13] = [
    std::f64::consts::FRAC_2_SQRT_PI,
    -0.3761263890318375,
    0.11283791670954857,
    -0.026866170645072893,
    0.005223977624780843,
    -0.0008548326978740998,
    0.0001205533103685957,
    -1.4925593505968366e-05,
    1.6460972802128258e-06,
    -1.6350025057560472e-07,
    1.4657878655718597e-08,
    -1.1365661012451599e-09,
    5.945252694283175e-11,
];

/// `(log((1 + s) / (1 - s)) / s - 2) / s^2` in `s^2` for `(1 + s) / (1 - s)` between `sqrt(1/2)` and `sqrt(2)`: 2^-65.
const LOG: [f64; 8] = [
    0.6666666666666666,
    0.400000000000067,
    0.28571428568940394,
    0.222222226687354,
    0.18181773908422133,
    0.15387167641280616,
    0.13248383477145484,
    0.13267110726703965,
];

/// `(exp(f) - 1 - f) / f^2` for `|f| <= ln(2) / 2`: 2^-57 relative to `exp(f)`.
const EXP_OF_SQUARE: [f64; 10] = [
    0.500000000000001,
    0.16666666666666421,
    0.04166666666653486,
    0.008333333333491061,
    0.0013888888942534517,
    0.00019841269510914033,
    2.480149413043374e-05,
    2.7557584494203184e-06,
    2.762990854653199e-07,
    2.5000171016398393e-08,
];

/// `P(X > t) exp(t^2 / 2) (t + 5)` in `u = (t - 5) / (t + 5)` for `0 <= t <= 39`: 2^-51, and such that `P(X > 0)` is 1/2.
const TAIL: [f64; 21] = [
    0.7691930497500629,
    -0.6653825028900554,
    0.4953056159700089,
    -0.313533156671447,
    0.16502036616883678,
    -0.06911863870208522,
    0.020795066828903523,
    -0.002993376824920466,
    -0.0007978696796491128,
    0.0005448994276897772,
    -5.937413231834745e-05,
    -4.976415395287986e-05,
    1.667559106971508e-05,
    3.983572209547577e-06,
    -2.756768928256299e-06,
    -3.388304361128925e-07,
    4.160329092768619e-07,
    4.119007105524425e-08,
    -5.2679955845475473e-08,
    -5.9683343263197025e-09,
    3.0677996e-09,
];
const TAIL_CENTRE: f64 = 5.0;

/// `1 / sqrt(2 pi)`
const DENSITY: f64 = 0.398_942_280_401_432_7;

impl Functions for f64 {
    fn exp<'k>(x: F64<'k>, _: Precision) -> F64<'k> {
        let x = x.minimum(710.0).maximum(-746.0);
        let (n, f) = reduce(x);
        scale(expm1_reduced(f) + 1.0, n)
    }

    fn exp_nonpositive<'k>(x: F64<'k>, p: Precision) -> F64<'k> {
        Functions::exp(x, p)
    }

    fn exp2<'k>(x: F64<'k>, _: Precision) -> F64<'k> {
        let x = x.minimum(1025.0).maximum(-1077.0);
        let shifted = x + ROUND;
        let f = (x - (shifted - ROUND)) * std::f64::consts::LN_2;
        scale(expm1_reduced(f) + 1.0, low_word(shifted))
    }

    fn log<'k>(x: F64<'k>) -> F64<'k> {
        const SQRT_HALF_HIGH: u32 = 0x3fe6_a09e;
        let subnormal = x.lt(Self::MIN_POSITIVE);
        let scaled = subnormal.select(x * 18_014_398_509_481_984.0, x);
        let (low, high) = scaled.to_bits().words();
        // The exponent that leaves a mantissa between sqrt(1/2) and sqrt(2).
        let exponent = (high - SQRT_HALF_HIGH) & 0xfff0_0000;
        let m = F64::from_bits(U64::from_words(low, high - exponent));
        let e = (exponent.to_i32() >> 20).to_f64() + subnormal.select(-54.0, 0.0);
        let f = m - 1.0;
        let s = f / (f + 2.0);
        let z = s * s;
        let half = f * f * 0.5;
        // log(1 + f) = f - (half - s (half + R)), and the low part of e ln 2 joins the smallest term.
        let small = s.mul_add(z.mul_add(z.polynomial(&LOG), half), e * LN_2_LOW);
        let value = e.mul_add(LN_2_HIGH, f - (half - small));
        let special = x.gt(0.0).select(x, x.eq(0.0).select(Self::NEG_INFINITY, Self::NAN));
        (x.gt(0.0) & x.lt(Self::INFINITY)).select(value, special)
    }

    fn sigmoid<'k>(x: F64<'k>, p: Precision) -> F64<'k> {
        let e = Functions::exp(-x.abs(), p);
        x.ge(0.0).select(1.0, e) / (e + 1.0)
    }

    fn softplus<'k>(x: F64<'k>, p: Precision) -> F64<'k> {
        let e = Functions::exp_nonpositive(-x.abs(), p);
        // What the sum loses when it is rounded is added as the first-order term of the logarithm.
        let sum = 1.0 + e;
        x.max(0.0) + (e - (sum - 1.0)).mul_add(sum.rcp(), sum.log())
    }

    fn tanh<'k>(x: F64<'k>, _: Precision) -> F64<'k> {
        // tanh(a) = -e / (2 + e) with e = exp(-2 a) - 1, which is 1 in f64 from 19.1 on.
        let y = x.abs().minimum(20.0) * -2.0;
        let (n, f) = reduce(y);
        let power = power_of_two(n);
        let e = power.mul_add(expm1_reduced(f), power - 1.0);
        (-e / (e + 2.0)).copysign(x)
    }

    fn erf<'k>(x: F64<'k>) -> F64<'k> {
        let small = x * (x * x).polynomial(&ERF_SMALL);
        let a = x.abs();
        // erfc(6) is below 2^-53.
        let t = a.minimum(6.0);
        let tail = scaled_tail(t * std::f64::consts::SQRT_2);
        let large = (tail * exp_of_square(t, -1.0)).mul_add(-2.0, 1.0);
        a.lt(1.0).select(small, large.copysign(x))
    }

    fn rsqrt<'k>(x: F64<'k>, _: Precision) -> F64<'k> {
        x.sqrt().rcp()
    }

    fn exp2_approx<'k>(x: F64<'k>) -> F64<'k> {
        x.exp2()
    }

    fn rcp_approx<'k>(x: F64<'k>) -> F64<'k> {
        x.rcp()
    }

    fn tanh_approx<'k>(x: F64<'k>) -> F64<'k> {
        x.tanh()
    }

    fn normal<'k>(x: F64<'k>, _: Precision) -> Normal<'k, Self> {
        // exp(-39^2 / 2) is below the least subnormal.
        let t = x.abs().minimum(39.0);
        let e = exp_of_square(t, -0.5);
        Normal { x, tail: scaled_tail(t) * e, density: e * DENSITY }
    }
}

/// The multiple of `ln 2` nearest to `x`, and the rest.
fn reduce<'k>(x: F64<'k>) -> (I32<'k>, F64<'k>) {
    let shifted = x.mul_add(LOG2_E, ROUND);
    let n = shifted - ROUND;
    (low_word(shifted), n.mul_add(-LN_2_LOW, n.mul_add(-LN_2_HIGH, x)))
}

fn low_word(shifted: F64<'_>) -> I32<'_> {
    shifted.to_bits().words().0.to_i32()
}

/// `exp(f) - 1` for `|f| <= ln(2) / 2`.
fn expm1_reduced(f: F64<'_>) -> F64<'_> {
    (f * f).mul_add(f.polynomial(&EXPM1), f)
}

/// `2^n` for a normal result.
fn power_of_two<'k>(n: I32<'k>) -> F64<'k> {
    let k = n.k();
    F64::from_bits(U64::from_words(k.lit(0u32), ((n + 1023) << 20).to_u32()))
}

/// `value * 2^n`, rounded once where it is subnormal.
fn scale<'k>(value: F64<'k>, n: I32<'k>) -> F64<'k> {
    let half = n >> 1;
    value * power_of_two(half) * power_of_two(n - half)
}

/// `exp(factor * t^2)` for a factor of -1 or -1/2 and a square below 760: the square is kept in two parts, whose error the
/// exponential would magnify.
fn exp_of_square(t: F64<'_>, factor: f64) -> F64<'_> {
    let scaled = t * factor;
    let square = t * scaled;
    let low = t.mul_add(scaled, -square);
    let shifted = square.mul_add(LOG2_E, ROUND);
    let n = shifted - ROUND;
    let f = n.mul_add(-LN_2_HIGH, square) + n.mul_add(-LN_2_LOW, low);
    let all: Vec<f64> = [1.0, 1.0].into_iter().chain(EXP_OF_SQUARE).collect();
    scale(f.polynomial(&all), low_word(shifted))
}

/// `P(X > t) exp(t^2 / 2)` for `0 <= t <= 39`.
fn scaled_tail(t: F64<'_>) -> F64<'_> {
    let inverse = reciprocal(t + TAIL_CENTRE);
    // (t - c) / (t + c) = 1 - 2 c / (t + c)
    let u = inverse.mul_add(-2.0 * TAIL_CENTRE, 1.0);
    u.polynomial(&TAIL) * inverse
}

/// `1 / y` to a unit in the last place for a `y` in the range of f32. A division is a call for numbers out of the
/// ordinary, around which the assembler arranges nothing: neither the next element nor the constants of both.
fn reciprocal(y: F64<'_>) -> F64<'_> {
    let about = y.to_f32().rcp_approx().to_f64();
    let error = about.mul_add(-y, 1.0);
    about.mul_add(error.mul_add(error, error), about)
}
