//! Rounding to the 16-bit floating-point types: the one conversion that references, tests and the emulator's literals
//! share.
//!
//! Going through f32 rounds twice, and `half::f16::from_f64` drops the low half of the mantissa before it looks at it:
//! both give another neighbour for numbers that lie just off the middle between two.

/// The bits of the IEEE binary16 number nearest to `value`, ties to even. Numbers from 65520 on become infinite; a NaN
/// stays one, with the leading bits of its payload.
pub const fn f16_bits(value: f64) -> u16 {
    nearest(value, 5, 10)
}

/// The bits of the bfloat16 number nearest to `value`, ties to even. Numbers that round beyond the largest become infinite;
/// a NaN stays one, with the leading bits of its payload.
pub const fn bf16_bits(value: f64) -> u16 {
    nearest(value, 8, 7)
}

/// Rounds to a sign, `exponent` bits of exponent and `mantissa` bits of mantissa, 16 in all.
const fn nearest(value: f64, exponent: u32, mantissa: u32) -> u16 {
    const F64_MANTISSA: u32 = f64::MANTISSA_DIGITS - 1;
    let bits = value.to_bits();
    let sign = ((bits >> 63) as u16) << 15;
    let fraction = bits & ((1 << F64_MANTISSA) - 1);
    let from = ((bits >> F64_MANTISSA) & 0x7ff) as i32;
    let infinity = ((1u64 << exponent) - 1) << mantissa;
    if value.is_nan() {
        let quiet = 1 << (mantissa - 1);
        return sign | (infinity | quiet | (fraction >> (F64_MANTISSA - mantissa))) as u16;
    }
    // Subnormal f64 numbers are far below half of the smallest number of either type.
    if from == 0 {
        return sign;
    }
    let to = from - 1023 + ((1 << (exponent - 1)) - 1);
    if to >= (1 << exponent) - 1 {
        return sign | infinity as u16;
    }
    // A subnormal result has the exponent 1 of the smallest normal one, and drops that many more bits.
    let (base, below) = if to >= 1 { ((to - 1) as u64, 0) } else { (0, 1 - to) };
    let drop = F64_MANTISSA - mantissa + below as u32;
    if drop > 63 {
        return sign;
    }
    let significand = fraction | 1 << F64_MANTISSA;
    let (kept, rest, half) = (significand >> drop, significand & ((1 << drop) - 1), 1u64 << (drop - 1));
    let up = rest > half || (rest == half && kept % 2 == 1);
    // The leading bit of `kept` adds 1 to the exponent, and so does a carry, up to infinity.
    sign | ((base << mantissa) + kept + up as u64) as u16
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
