//! Rounding to the 16-bit floating-point types: the one conversion that references, tests and the emulator's literals
//! share.
//!
//! Going through f32 rounds twice, and `half::f16::from_f64` drops the low half of the mantissa before it looks at it:
//! both give another neighbour for numbers that lie just off the middle between two.

use crate::float_format::FloatFormat;

const F16: FloatFormat = FloatFormat::ieee(5, 10);
const BF16: FloatFormat = FloatFormat::ieee(8, 7);

/// The bits of the IEEE binary16 number nearest to `value`, ties to even. Numbers from 65520 on become infinite; a NaN
/// stays one, with the leading bits of its payload.
pub const fn f16_bits(value: f64) -> u16 {
    to_infinity(F16, value)
}

/// The bits of the bfloat16 number nearest to `value`, ties to even. Numbers that round beyond the largest become infinite;
/// a NaN stays one, with the leading bits of its payload.
pub const fn bf16_bits(value: f64) -> u16 {
    to_infinity(BF16, value)
}

const fn to_infinity(format: FloatFormat, value: f64) -> u16 {
    let sign = ((value.to_bits() >> 63) as u16) << 15;
    let infinity = format.first_beyond();
    let magnitude =
        if value.is_nan() { infinity | format.quiet_payload(value) } else { format.nearest(value) };
    let clamped = if magnitude > infinity && !value.is_nan() { infinity } else { magnitude };
    sign | clamped as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The finite number that `bits`, without a sign, stand for.
    fn value(bits: u16, exponent: u32, mantissa: u32) -> f64 {
        let bias = (1 << (exponent - 1)) - 1;
        let (field, fraction) = (i32::from(bits >> mantissa), f64::from(bits & ((1 << mantissa) - 1)));
        let unit = 2f64.powi(-(mantissa as i32));
        if field == 0 {
            fraction * unit * 2f64.powi(1 - bias)
        } else {
            (1.0 + fraction * unit) * 2f64.powi(field - bias)
        }
    }

    /// Every number, every middle between neighbours, and the f64 numbers on either side of it.
    fn every_boundary(round: fn(f64) -> u16, exponent: u32, mantissa: u32) {
        let infinity = ((1u16 << exponent) - 1) << mantissa;
        for bits in 0..infinity {
            let x = value(bits, exponent, mantissa);
            assert_eq!(round(x), bits);
            assert_eq!(round(-x), bits | 0x8000);
            // Beyond the largest number stands what would be the next one.
            let middle = (x + value(bits + 1, exponent, mantissa)) / 2.0;
            assert_eq!(round(middle), bits + bits % 2, "the middle above {x}");
            assert_eq!(round(f64::from_bits(middle.to_bits() - 1)), bits, "below the middle above {x}");
            assert_eq!(round(f64::from_bits(middle.to_bits() + 1)), bits + 1, "past the middle above {x}");
        }
        assert_eq!(round(f64::INFINITY), infinity);
        assert_eq!(round(f64::MAX), infinity);
        assert_eq!(round(f64::NEG_INFINITY), infinity | 0x8000);
        assert_eq!((round(f64::MIN_POSITIVE), round(-f64::from_bits(1))), (0, 0x8000));
        let nan = round(f64::NAN) & 0x7fff;
        assert!(nan > infinity, "{nan:#x}");
        assert!(
            round(f64::from_bits(0x7ff0_0000_0000_0001)) & 0x7fff > infinity,
            "a NaN does not become infinite"
        );
    }

    #[test]
    fn halves_are_rounded_once_at_every_boundary() {
        every_boundary(f16_bits, 5, 10);
    }

    #[test]
    fn bfloats_are_rounded_once_at_every_boundary() {
        every_boundary(bf16_bits, 8, 7);
    }
}
