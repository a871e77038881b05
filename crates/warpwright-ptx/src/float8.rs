//! The 8-bit floating-point types: their numbers, and the one conversion to them that references and tests share.
//!
//! E4M3 has four exponent bits, no infinities, and one NaN of either sign (`0x7f`, `0xff`); its largest number is 448. E5M2 is the
//! upper half of an f16, with 57344 as its largest number. Conversion saturates, as `cvt.rn.satfinite` does: what is beyond the largest
//! number becomes it, infinities too, and NaN stays NaN.
//!
//! Source: OCP 8-bit Floating Point Specification (OFP8), revision 1.0, tables 1 and 2; PTX ISA, `cvt`.

use crate::DType;
use crate::float_format::FloatFormat;

const E4M3: FloatFormat = FloatFormat::finite(4, 3);
const E5M2: FloatFormat = FloatFormat::ieee(5, 2);
const SIGN: u8 = 0x80;
const NAN: u8 = 0x7f;

/// The largest E4M3 number.
pub const E4M3_MAX: f64 = 448.0;
/// The largest E5M2 number.
pub const E5M2_MAX: f64 = 57344.0;

/// The bits of the E4M3 number nearest to `value`, ties to even, saturating.
pub const fn e4m3_bits(value: f64) -> u8 {
    saturating(E4M3, value)
}

/// The bits of the E5M2 number nearest to `value`, ties to even, saturating.
pub const fn e5m2_bits(value: f64) -> u8 {
    saturating(E5M2, value)
}

/// The number that the bits of an E4M3 number stand for.
pub fn e4m3_value(bits: u8) -> f64 {
    value(E4M3, bits, f64::NAN)
}

/// The number that the bits of an E5M2 number stand for.
pub fn e5m2_value(bits: u8) -> f64 {
    value(E5M2, bits, f64::INFINITY)
}

/// The bits of the number of an 8-bit type nearest to `value`; `None` for any other type.
pub const fn bits(dtype: DType, value: f64) -> Option<u8> {
    match dtype {
        DType::F8E4M3 => Some(e4m3_bits(value)),
        DType::F8E5M2 => Some(e5m2_bits(value)),
        _ => None,
    }
}

/// The largest number of an 8-bit type; `None` for any other type.
pub const fn largest(dtype: DType) -> Option<f64> {
    match dtype {
        DType::F8E4M3 => Some(E4M3_MAX),
        DType::F8E5M2 => Some(E5M2_MAX),
        _ => None,
    }
}

const fn saturating(format: FloatFormat, value: f64) -> u8 {
    if value.is_nan() {
        return NAN;
    }
    let sign = if value.is_sign_negative() { SIGN } else { 0 };
    let (magnitude, largest) = (format.nearest(value), format.first_beyond() - 1);
    sign | if magnitude < largest { magnitude as u8 } else { largest as u8 }
}

fn value(format: FloatFormat, bits: u8, first_beyond: f64) -> f64 {
    let magnitude = u64::from(bits & !SIGN);
    let absolute = match magnitude.cmp(&format.first_beyond()) {
        std::cmp::Ordering::Less => format.value(magnitude),
        std::cmp::Ordering::Equal => first_beyond,
        std::cmp::Ordering::Greater => f64::NAN,
    };
    if bits & SIGN == 0 { absolute } else { -absolute }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::float16::f16_bits;

    type Type = (fn(f64) -> u8, fn(u8) -> f64, u8);
    const TYPES: [Type; 2] = [(e4m3_bits, e4m3_value, 0x7e), (e5m2_bits, e5m2_value, 0x7b)];

    /// Numbers that the specification names.
    #[test]
    fn numbers_are_those_of_the_specification() {
        let e4m3 = [(0x00, 0.0), (0x01, 2f64.powi(-9)), (0x07, 0.875 * 2f64.powi(-6)), (0x08, 2f64.powi(-6))];
        for (bits, x) in e4m3.into_iter().chain([(0x38, 1.0), (0x39, 1.125), (0x7e, 448.0), (0xfe, -448.0)]) {
            assert_eq!(e4m3_value(bits), x, "{bits:#x}");
        }
        let e5m2 =
            [(0x00, 0.0), (0x01, 2f64.powi(-16)), (0x03, 0.75 * 2f64.powi(-14)), (0x04, 2f64.powi(-14))];
        for (bits, x) in e5m2.into_iter().chain([(0x3c, 1.0), (0x7b, 57344.0), (0xfc, f64::NEG_INFINITY)]) {
            assert_eq!(e5m2_value(bits), x, "{bits:#x}");
        }
        assert!(e4m3_value(0x7f).is_nan() && e4m3_value(0xff).is_nan());
        assert!((0x7d..=0x7f).all(|bits| e5m2_value(bits).is_nan()));
    }

    /// An E5M2 number is the upper byte of an f16, whose conversion is tested by itself.
    #[test]
    fn e5m2_is_the_upper_half_of_f16() {
        for bits in 0..=u8::MAX {
            let x = e5m2_value(bits);
            assert!(x.is_nan() || f16_bits(x) == u16::from(bits) << 8, "{bits:#x}");
        }
    }

    /// Every number, every middle between neighbours, and the f64 numbers on either side of it.
    #[test]
    fn every_boundary_is_rounded_once() {
        for (round, value, largest) in TYPES {
            for bits in 0..=largest {
                let x = value(bits);
                assert_eq!((round(x), round(-x)), (bits, bits | SIGN));
                if bits == largest {
                    continue;
                }
                let middle = (x + value(bits + 1)) / 2.0;
                for sign in [1.0, -1.0] {
                    let signed = |bits| if sign > 0.0 { bits } else { bits | SIGN };
                    assert_eq!(round(sign * middle), signed(bits + bits % 2), "the middle above {x}");
                    assert_eq!(round(sign * middle.next_down()), signed(bits), "below the middle above {x}");
                    assert_eq!(round(sign * middle.next_up()), signed(bits + 1), "past the middle above {x}");
                }
            }
        }
    }

    #[test]
    fn what_is_beyond_the_largest_number_saturates() {
        for (round, value, largest) in TYPES {
            let max = value(largest);
            for x in [max * 1.01, max * 1.1, max * 2.0, 1e300, f64::MAX, f64::INFINITY] {
                assert_eq!((round(x), round(-x)), (largest, largest | SIGN), "{x}");
            }
            assert!(value(round(f64::NAN)).is_nan() && value(round(-f64::NAN)).is_nan());
            assert_eq!((round(f64::from_bits(1)), round(-f64::MIN_POSITIVE)), (0, SIGN));
        }
        let max = DType::FLOATS8.map(largest);
        assert_eq!(max, [Some(e4m3_value(0x7e)), Some(e5m2_value(0x7b))]);
    }
}
