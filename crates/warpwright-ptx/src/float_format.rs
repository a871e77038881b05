//! A binary floating-point format of at most 16 bits, and the one rounding to it.

/// Exponents of a bias above a significand with an implicit leading bit, subnormal numbers at the low end. Magnitudes are the bits
/// without the sign.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FloatFormat {
    bias: i32,
    mantissa: u32,
    first_beyond: u64,
}

const F64_MANTISSA: u32 = f64::MANTISSA_DIGITS - 1;

impl FloatFormat {
    /// A format whose largest exponent is that of infinity and NaN.
    pub(crate) const fn ieee(exponent: u32, mantissa: u32) -> Self {
        Self { first_beyond: ((1 << exponent) - 1) << mantissa, ..Self::finite(exponent, mantissa) }
    }

    /// A format in which all numbers are finite but the last, which is NaN.
    pub(crate) const fn finite(exponent: u32, mantissa: u32) -> Self {
        let first_beyond = (1 << (exponent + mantissa)) - 1;
        Self { bias: (1 << (exponent - 1)) - 1, mantissa, first_beyond }
    }

    /// The magnitude after that of the largest finite number.
    pub(crate) const fn first_beyond(self) -> u64 {
        self.first_beyond
    }

    /// The magnitude nearest to that of a number, ties to even, as though exponents had no end: from
    /// [`first_beyond`](Self::first_beyond) on the number is beyond the largest.
    pub(crate) const fn nearest(self, value: f64) -> u64 {
        let bits = value.to_bits();
        let fraction = bits & ((1 << F64_MANTISSA) - 1);
        let from = ((bits >> F64_MANTISSA) & 0x7ff) as i32;
        // Subnormal f64 numbers are far below half of the smallest number of any of these formats.
        if from == 0 {
            return 0;
        }
        let to = from - 1023 + self.bias;
        // A subnormal result has the exponent 1 of the smallest normal one, and drops that many more bits.
        let (base, below) = if to >= 1 { ((to - 1) as u64, 0) } else { (0, 1 - to) };
        let drop = F64_MANTISSA - self.mantissa + below as u32;
        if drop > 63 {
            return 0;
        }
        let significand = fraction | 1 << F64_MANTISSA;
        let (kept, rest, half) = (significand >> drop, significand & ((1 << drop) - 1), 1u64 << (drop - 1));
        let up = rest > half || (rest == half && kept % 2 == 1);
        // The leading bit of `kept` adds 1 to the exponent, and so does a carry.
        (base << self.mantissa) + kept + up as u64
    }

    /// The leading bits of the payload of a NaN, with that of a quiet one set.
    pub(crate) const fn quiet_payload(self, nan: f64) -> u64 {
        let fraction = nan.to_bits() & ((1 << F64_MANTISSA) - 1);
        1 << (self.mantissa - 1) | fraction >> (F64_MANTISSA - self.mantissa)
    }

    /// The number that a magnitude stands for, below [`first_beyond`](Self::first_beyond) or as though exponents had no end.
    pub(crate) fn value(self, magnitude: u64) -> f64 {
        let (field, fraction) = (magnitude >> self.mantissa, magnitude & ((1 << self.mantissa) - 1));
        let (significand, exponent) =
            if field == 0 { (fraction, 1) } else { (fraction | 1 << self.mantissa, field) };
        significand as f64 * 2f64.powi(exponent as i32 - self.bias - self.mantissa as i32)
    }
}
