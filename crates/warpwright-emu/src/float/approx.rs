//! The approximate functions, computed in f64 and rounded once.
//!
//! The hardware's bits are not specified; the value nearest to the truth is within every documented bound. `exp2` and
//! `log2` are polynomials of our own without branches or calls, so that a loop over lanes vectorises and every host
//! gives the same bits; the others use the host's f64 functions.

/// 2^x to about 1e-15, for |x| <= 1022; larger arguments are clamped there, where every narrower format has long
/// overflowed or vanished. NaN stays NaN.
#[inline(always)]
pub fn exp2(x: f64) -> f64 {
    // Adding and subtracting 1.5 * 2^52 rounds to an integer, which then stands in the low bits of the sum.
    const MAGIC: f64 = 6_755_399_441_055_744.0;
    // ln(2)^k / k!
    const C: [f64; 14] = [
        1.0,
        std::f64::consts::LN_2,
        2.402_265_069_591_007e-1,
        5.550_410_866_482_157_6e-2,
        9.618_129_107_628_477e-3,
        1.333_355_814_642_844_1e-3,
        1.540_353_039_338_160_6e-4,
        1.525_273_380_405_983_8e-5,
        1.321_548_679_014_430_5e-6,
        1.017_808_600_923_969_6e-7,
        7.054_911_620_801_121e-9,
        4.445_538_271_870_81e-10,
        2.567_843_599_348_819_6e-11,
        1.369_148_885_390_412_4e-12,
    ];
    let clamped = if x > 1022.0 { 1022.0 } else { x };
    let clamped = if clamped < -1022.0 { -1022.0 } else { clamped };
    let shifted = clamped + MAGIC;
    let r = clamped - (shifted - MAGIC);
    let mut p = C[13];
    for c in C[..13].iter().rev() {
        p = p * r + c;
    }
    let scale = f64::from_bits((shifted.to_bits() << 52).wrapping_add(1023 << 52));
    p * scale
}

/// log2(x) to about 1e-15 relative, for normal f64 arguments above 0; zero gives -inf, negatives and NaN give NaN.
#[inline(always)]
pub fn log2(x: f64) -> f64 {
    // With s = (m - 1) / (m + 1): log2(m) = 2 / ln 2 * (s + s^3 / 3 + s^5 / 5 + ...)
    const SCALE: f64 = 2.0 * std::f64::consts::LOG2_E;
    let bits = x.to_bits();
    // The mantissa in [sqrt(1/2), sqrt(2)).
    let shifted = bits.wrapping_sub(0x3fe6_a09e_667f_3bcd);
    let exponent = (shifted as i64) >> 52;
    let m = f64::from_bits(bits.wrapping_sub((exponent << 52) as u64));
    let s = (m - 1.0) / (m + 1.0);
    let z = s * s;
    let mut p = 1.0 / 23.0;
    for k in [21.0, 19.0, 17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0] {
        p = p * z + 1.0 / k;
    }
    let result = SCALE * (s * p) + exponent as f64;
    let result = if x == f64::INFINITY { x } else { result };
    let result = if x == 0.0 { f64::NEG_INFINITY } else { result };
    if x >= 0.0 { result } else { f64::NAN }
}

/// 1 / sqrt(x); zeros give infinities of their sign, negatives NaN.
#[inline(always)]
pub fn rsqrt(x: f64) -> f64 {
    if x == 0.0 { 1.0 / x } else { 1.0 / x.sqrt() }
}

/// sin(x); infinities give NaN and -0 stays.
pub fn sin(x: f64) -> f64 {
    x.sin()
}

/// cos(x); infinities give NaN.
pub fn cos(x: f64) -> f64 {
    x.cos()
}

/// tanh(x).
pub fn tanh(x: f64) -> f64 {
    x.tanh()
}

/// `div.approx.f32`: the quotient, except that a divisor beyond 2^126 gives zero, or NaN under an infinity.
pub fn div_f32(a: f32, b: f32) -> f32 {
    const LIMIT: f32 = f32::from_bits(0x7e80_0000); // 2^126
    if b.abs() > LIMIT && b.is_finite() {
        if a.is_infinite() || a.is_nan() {
            return f32::NAN;
        }
        return if a.is_sign_negative() != b.is_sign_negative() { -0.0 } else { 0.0 };
    }
    a / b
}

#[cfg(test)]
mod tests {
    use super::*;

    /// f32s over the whole range, denser where functions bend.
    fn samples() -> impl Iterator<Item = f32> {
        let all = (0..=u32::MAX).step_by(104_729).map(f32::from_bits);
        let near_one = (-4000i32..4000).map(|i| 1.0 + i as f32 * 6e-8);
        let small = (-3000i32..3000).map(|i| i as f32 / 20.0 + 1e-3);
        all.chain(near_one).chain(small)
    }

    fn close(ours: f64, host: f64, x: f32) {
        if host.is_nan() {
            assert!(ours.is_nan(), "{x:e}: {ours:e}");
        } else {
            assert!(
                ours == host || (ours - host).abs() <= 4e-15 * host.abs(),
                "{x:e}: {ours:e} against {host:e}"
            );
        }
    }

    #[test]
    fn exp2_and_log2_agree_with_the_host() {
        for x in samples() {
            let wide = f64::from(x);
            close(exp2(wide), wide.clamp(-1022.0, 1022.0).exp2(), x);
            close(log2(wide), wide.log2(), x);
        }
    }

    #[test]
    fn integers_are_exact() {
        for n in -149..128 {
            assert_eq!(exp2(f64::from(n)), f64::from(n).exp2());
            assert_eq!(log2(f64::from(n).exp2()), f64::from(n));
        }
        assert_eq!(log2(1.0).to_bits(), 0);
    }

    #[test]
    fn special_values() {
        assert_eq!(exp2(f64::NEG_INFINITY) as f32, 0.0);
        assert_eq!(exp2(f64::INFINITY) as f32, f32::INFINITY);
        assert!(exp2(f64::NAN).is_nan() && log2(f64::NAN).is_nan() && log2(-1.0).is_nan());
        assert_eq!((log2(0.0), log2(-0.0)), (f64::NEG_INFINITY, f64::NEG_INFINITY));
        assert_eq!(log2(f64::INFINITY), f64::INFINITY);
        assert_eq!((rsqrt(0.0), rsqrt(-0.0)), (f64::INFINITY, f64::NEG_INFINITY));
        assert!(rsqrt(-1.0).is_nan());
        assert_eq!(rsqrt(f64::INFINITY), 0.0);
        assert_eq!(sin(-0.0).to_bits(), (-0.0f64).to_bits());
    }

    #[test]
    fn division_by_huge_numbers_follows_the_hardware() {
        let huge = 2f32.powi(127);
        assert_eq!(div_f32(huge, huge), 0.0);
        assert!(div_f32(f32::INFINITY, huge).is_nan());
        assert_eq!(div_f32(-1.0, huge).to_bits(), (-0.0f32).to_bits());
        assert_eq!(div_f32(3.0, 2f32.powi(126)), 3.0 / 2f32.powi(126));
        assert_eq!(div_f32(1.0, f32::INFINITY), 0.0);
    }
}
