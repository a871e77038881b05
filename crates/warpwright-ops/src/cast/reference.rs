//! The definition in f64.

use warpwright_ptx::DType;

/// A binary floating-point format.
struct Format {
    /// Bits of the significand, the leading one among them.
    precision: i32,
    /// Exponents of the smallest and of the largest normal number.
    exponents: [i32; 2],
}

/// `x` rounded to the nearest number of a floating-point type, of two that are equally near to the one with an even significand: the
/// multiple of the spacing at `x`. Another type gives `x` itself.
pub fn cast(to: DType, x: f64) -> f64 {
    let Format { precision, exponents: [least, largest] } = match to {
        DType::F32 => Format { precision: 24, exponents: [-126, 127] },
        DType::F16 => Format { precision: 11, exponents: [-14, 15] },
        DType::BF16 => Format { precision: 8, exponents: [-126, 127] },
        _ => return x,
    };
    if !x.is_finite() {
        return x;
    }
    // A number that is subnormal in f64 has a biased exponent of 0, which is below every other type's too.
    let exponent = ((x.to_bits() >> 52 & 0x7ff) as i32 - 1023).max(least);
    let spacing = 2f64.powi(exponent + 1 - precision);
    let rounded = (x / spacing).round_ties_even() * spacing;
    if rounded.abs() < 2f64.powi(largest + 1) { rounded } else { f64::INFINITY.copysign(x) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_go_to_even() {
        let [ulp, half] = [2f64.powi(-7), 2f64.powi(-8)];
        assert_eq!(cast(DType::BF16, 1.0 + half), 1.0);
        assert_eq!(cast(DType::BF16, 1.0 + ulp + half), 1.0 + 2.0 * ulp);
        assert_eq!(cast(DType::BF16, 1.0 + half + 1e-12), 1.0 + ulp);
        assert_eq!(cast(DType::F16, 65519.9), 65504.0);
        assert_eq!(cast(DType::F16, -65520.0), f64::NEG_INFINITY);
        assert_eq!(cast(DType::F16, 2f64.powi(-25)), 0.0);
        assert_eq!(cast(DType::F16, 2f64.powi(-25) * 1.000_001), 2f64.powi(-24));
        assert_eq!(cast(DType::F32, -5e-324).to_bits(), (-0.0f64).to_bits());
        assert_eq!(cast(DType::F64, 5e-324), 5e-324);
        assert!(cast(DType::F32, f64::NAN).is_nan() && cast(DType::F16, f64::INFINITY).is_infinite());
    }

    /// Rust's own conversion rounds so.
    #[test]
    fn f32_is_as_rust_has_it() {
        let mut x = 1e-50f64;
        while x < 1e42 {
            for x in [x, -x] {
                assert_eq!(cast(DType::F32, x).to_bits(), f64::from(x as f32).to_bits(), "{x:e}");
            }
            x *= 1.000_37;
        }
    }

    /// Every number of a type is its own nearest one.
    #[test]
    fn numbers_of_the_type_stay() {
        for bits in 0..=u16::MAX {
            let (half, brain) = (half::f16::from_bits(bits), half::bf16::from_bits(bits));
            for (dtype, x) in [(DType::F16, f64::from(half)), (DType::BF16, f64::from(brain))] {
                let y = cast(dtype, x);
                assert!(y.to_bits() == x.to_bits() || x.is_nan() && y.is_nan(), "{dtype} {x:e}");
            }
        }
    }
}
