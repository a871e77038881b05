//! Floating-point numbers as exact integers times powers of two, and the one place where results are rounded.
//!
//! An operation decodes its operands, computes the exact result (or enough of its bits that a last *sticky* bit can
//! stand for the rest), and [`Format::encode`] rounds once, in any direction, to any format. This serves directed
//! rounding, the 16-bit types and the conversions.

use warpwright_ptx::Rounding;

/// A binary floating-point format of up to 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// Explicit mantissa bits.
    mantissa: u32,
    /// Exponent bits.
    exponent: u32,
    /// Unused bits below the mantissa.
    padding: u32,
    /// The NaN that arithmetic returns.
    nan: u64,
    /// Whether the largest exponent holds finite numbers, all but the last of them (e4m3).
    no_infinity: bool,
}

impl Format {
    /// IEEE half precision.
    pub const F16: Self = Self::ieee(10, 5, 0x7fff);
    /// bfloat16.
    pub const BF16: Self = Self::ieee(7, 8, 0x7fff);
    /// IEEE single precision.
    pub const F32: Self = Self::ieee(23, 8, 0x7fff_ffff);
    /// IEEE double precision.
    pub const F64: Self = Self::ieee(52, 11, 0xfff8_0000_0000_0000);
    /// TensorFloat-32, in the upper 19 bits of 32.
    pub const TF32: Self = Self { padding: 13, ..Self::ieee(10, 8, 0x7fff_ffff) };
    /// Four exponent and three mantissa bits, without infinities.
    pub const E4M3: Self = Self { no_infinity: true, ..Self::ieee(3, 4, 0x7f) };
    /// Five exponent and two mantissa bits.
    pub const E5M2: Self = Self::ieee(2, 5, 0x7f);

    const fn ieee(mantissa: u32, exponent: u32, nan: u64) -> Self {
        Self { mantissa, exponent, padding: 0, nan, no_infinity: false }
    }

    const fn bias(self) -> i32 {
        (1 << (self.exponent - 1)) - 1
    }

    const fn exponent_mask(self) -> u64 {
        (1 << self.exponent) - 1
    }

    const fn sign(self) -> u64 {
        1 << (self.mantissa + self.exponent + self.padding)
    }

    /// The canonical NaN.
    pub const fn nan(self) -> u64 {
        self.nan
    }

    /// A NaN of another type, quiet and with as much of its payload as fits.
    pub(super) const fn nan_of(self, source: Self, bits: u64) -> u64 {
        let payload = bits & ((1 << source.mantissa) - 1);
        let payload = match self.mantissa.checked_sub(source.mantissa) {
            Some(more) => payload << more,
            None => payload >> (source.mantissa - self.mantissa),
        };
        self.signed(source.is_negative(bits), self.infinity() | payload | 1 << (self.mantissa - 1))
    }

    /// Positive infinity; the largest number of a format without one.
    const fn infinity(self) -> u64 {
        if self.no_infinity {
            self.largest()
        } else {
            (self.exponent_mask() << self.mantissa) << self.padding
        }
    }

    /// The largest finite number.
    const fn largest(self) -> u64 {
        let infinity = self.exponent_mask() << self.mantissa;
        let largest = if self.no_infinity { infinity + (1 << self.mantissa) - 2 } else { infinity - 1 };
        largest << self.padding
    }

    /// Whether the bits are a NaN.
    pub const fn is_nan(self, bits: u64) -> bool {
        let magnitude = bits & (self.sign() - 1);
        if self.no_infinity {
            magnitude == self.nan
        } else {
            magnitude > (self.exponent_mask() << self.mantissa) << self.padding
        }
    }

    /// Whether the bits are a subnormal number.
    pub const fn is_subnormal(self, bits: u64) -> bool {
        let magnitude = (bits & (self.sign() - 1)) >> self.padding;
        magnitude != 0 && magnitude >> self.mantissa == 0
    }

    /// Subnormals become zeros of their sign.
    pub const fn flush(self, bits: u64) -> u64 {
        if self.is_subnormal(bits) { bits & self.sign() } else { bits }
    }

    /// The number that the bits stand for.
    pub fn decode(self, bits: u64) -> Exact {
        let negative = bits & self.sign() != 0;
        let magnitude = (bits & (self.sign() - 1)) >> self.padding;
        let fraction = magnitude & ((1 << self.mantissa) - 1);
        let exponent = magnitude >> self.mantissa;
        if self.is_nan(bits) {
            return Exact::Nan;
        }
        if exponent == self.exponent_mask() && !self.no_infinity {
            return Exact::Infinite { negative };
        }
        let (mantissa, biased) = match exponent {
            0 => (fraction, 1),
            _ => (fraction | 1 << self.mantissa, exponent as i32),
        };
        Exact::finite(negative, u128::from(mantissa), biased - self.bias() - self.mantissa as i32)
    }

    /// Rounds a number to the format. With `saturate`, what is too large becomes the largest finite number.
    pub fn encode(self, value: Exact, rounding: Round, saturate: bool) -> u64 {
        let (negative, mantissa, exponent) = match value {
            Exact::Nan => return self.nan,
            Exact::Infinite { negative } => {
                let magnitude = if saturate { self.largest() } else { self.infinity() };
                return self.signed(negative, magnitude);
            }
            Exact::Finite { negative, mantissa: 0, .. } => return self.signed(negative, 0),
            Exact::Finite { negative, mantissa, exponent } => (negative, mantissa, exponent),
        };
        let smallest = 1 - self.bias() - self.mantissa as i32;
        let leading = exponent + (127 - mantissa.leading_zeros() as i32);
        let mut quantum = (leading - self.mantissa as i32).max(smallest);
        let mut rounded = round_shift(mantissa, quantum - exponent, rounding, negative) as u64;
        if rounded >> (self.mantissa + 1) != 0 {
            rounded >>= 1;
            quantum += 1;
        }
        // A leading bit of 1 raises the exponent field from 0, so subnormals need no case of their own.
        let field = (quantum - smallest) as u64;
        let magnitude =
            if field > self.exponent_mask() { u64::MAX } else { (field << self.mantissa) + rounded };
        if magnitude > self.largest() >> self.padding {
            return self.signed(negative, self.overflow(rounding, negative, saturate));
        }
        self.signed(negative, magnitude << self.padding)
    }

    /// Whether a number is below the smallest normal one when it is rounded as if exponents had no end. This is what
    /// `.ftz` makes zero of results: one that only subnormals' coarser steps would round up to a normal number is flushed.
    pub fn is_tiny(self, value: Exact, rounding: Round) -> bool {
        let Exact::Finite { negative, mantissa: mantissa @ 1.., exponent } = value else { return false };
        let leading = exponent + (127 - mantissa.leading_zeros() as i32);
        let normal = 1 - self.bias();
        if leading != normal - 1 {
            return leading < normal;
        }
        let shift = leading - self.mantissa as i32 - exponent;
        round_shift(mantissa, shift, rounding, negative) >> (self.mantissa + 1) == 0
    }

    const fn overflow(self, rounding: Round, negative: bool, saturate: bool) -> u64 {
        let to_largest = match rounding {
            Round::NearestEven | Round::NearestAway => false,
            Round::Zero => true,
            Round::Down => !negative,
            Round::Up => negative,
        };
        if saturate || to_largest { self.largest() } else { self.infinity() }
    }

    pub(super) const fn signed(self, negative: bool, magnitude: u64) -> u64 {
        if negative { magnitude | self.sign() } else { magnitude }
    }

    /// `x` with the sign bit flipped.
    pub(super) const fn negate(self, bits: u64) -> u64 {
        bits ^ self.sign()
    }

    /// `x` with the sign bit cleared.
    pub(super) const fn magnitude(self, bits: u64) -> u64 {
        bits & (self.sign() - 1)
    }

    pub(super) const fn is_negative(self, bits: u64) -> bool {
        bits & self.sign() != 0
    }

    /// The bits of 1.
    pub(super) const fn one(self) -> u64 {
        ((self.bias() as u64) << self.mantissa) << self.padding
    }
}

/// A rounding direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// To nearest, ties to even.
    NearestEven,
    /// To nearest, ties away from zero.
    NearestAway,
    /// Towards zero.
    Zero,
    /// Towards minus infinity.
    Down,
    /// Towards plus infinity.
    Up,
}

impl Round {
    /// The direction of a PTX modifier, nearest-even if there is none; the integer forms round the same way.
    pub const fn of(rounding: Option<Rounding>) -> Self {
        match rounding {
            None | Some(Rounding::Rn | Rounding::Rni) => Self::NearestEven,
            Some(Rounding::Rna) => Self::NearestAway,
            Some(Rounding::Rz | Rounding::Rzi) => Self::Zero,
            Some(Rounding::Rm | Rounding::Rmi) => Self::Down,
            Some(Rounding::Rp | Rounding::Rpi) => Self::Up,
        }
    }
}

/// `mantissa / 2^shift`, rounded to an integer.
fn round_shift(mantissa: u128, shift: i32, rounding: Round, negative: bool) -> u128 {
    if shift <= 0 {
        return mantissa << -shift;
    }
    // Beyond 127 bits only "less than a half" remains of the number.
    let (whole, rest, half) = if shift > 127 {
        (0, u128::from(mantissa != 0), 2)
    } else {
        (mantissa >> shift, mantissa & ((1 << shift) - 1), 1u128 << (shift - 1))
    };
    let up = match rounding {
        Round::NearestEven => rest > half || (rest == half && whole & 1 == 1),
        Round::NearestAway => rest >= half,
        Round::Zero => false,
        Round::Down => negative && rest != 0,
        Round::Up => !negative && rest != 0,
    };
    whole + u128::from(up)
}

/// A number: `(-1)^negative * mantissa * 2^exponent`, an infinity, or NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exact {
    /// Not a number.
    Nan,
    /// Plus or minus infinity.
    Infinite {
        /// The sign.
        negative: bool,
    },
    /// A number; zeros have a sign.
    Finite {
        /// The sign.
        negative: bool,
        /// At most 126 bits; the last may stand for bits beyond it.
        mantissa: u128,
        /// Power of two.
        exponent: i32,
    },
}

/// Leading bit of operands that are brought into line; leaves room for a carry.
const TOP: u32 = 125;

impl Exact {
    pub(super) const fn finite(negative: bool, mantissa: u128, exponent: i32) -> Self {
        Self::Finite { negative, mantissa, exponent }
    }

    /// The integer `magnitude` with a sign.
    pub fn integer(negative: bool, magnitude: u64) -> Self {
        Self::finite(negative, u128::from(magnitude), 0)
    }

    fn is_negative(self) -> bool {
        match self {
            Self::Nan => false,
            Self::Infinite { negative } | Self::Finite { negative, .. } => negative,
        }
    }

    pub(super) fn negated(self) -> Self {
        match self {
            Self::Nan => Self::Nan,
            Self::Infinite { negative } => Self::Infinite { negative: !negative },
            Self::Finite { negative, mantissa, exponent } => Self::finite(!negative, mantissa, exponent),
        }
    }

    /// The product of two numbers of at most 53 bits each.
    pub(super) fn times(self, other: Self) -> Self {
        let negative = self.is_negative() != other.is_negative();
        match (self, other) {
            (Self::Nan, _) | (_, Self::Nan) => Self::Nan,
            (Self::Infinite { .. }, Self::Finite { mantissa: 0, .. })
            | (Self::Finite { mantissa: 0, .. }, Self::Infinite { .. }) => Self::Nan,
            (Self::Infinite { .. }, _) | (_, Self::Infinite { .. }) => Self::Infinite { negative },
            (
                Self::Finite { mantissa: a, exponent: x, .. },
                Self::Finite { mantissa: b, exponent: y, .. },
            ) => Self::finite(negative, a * b, x + y),
        }
    }

    /// The sum, exact up to a sticky bit; one operand has at most 53 bits and the other at most 106. An exact zero of
    /// operands of different signs is negative only when rounding down.
    pub(super) fn plus(self, other: Self, rounding: Round) -> Self {
        match (self, other) {
            (Self::Nan, _) | (_, Self::Nan) => Self::Nan,
            (Self::Infinite { negative: a }, Self::Infinite { negative: b }) if a != b => Self::Nan,
            (Self::Infinite { .. }, _) => self,
            (_, Self::Infinite { .. }) => other,
            (
                Self::Finite { negative: a, mantissa: m, exponent: x },
                Self::Finite { negative: b, mantissa: n, exponent: y },
            ) => {
                if m == 0 || n == 0 {
                    return match (m, n) {
                        (0, 0) => Self::finite(if a == b { a } else { rounding == Round::Down }, 0, 0),
                        (0, _) => other,
                        _ => self,
                    };
                }
                add_aligned((a, m, x), (b, n, y), rounding)
            }
        }
    }

    /// The quotient of two numbers of at most 53 bits each, with a sticky bit.
    pub(super) fn divided_by(self, other: Self) -> Self {
        let negative = self.is_negative() != other.is_negative();
        match (self, other) {
            (Self::Nan, _) | (_, Self::Nan) | (Self::Infinite { .. }, Self::Infinite { .. }) => Self::Nan,
            (Self::Finite { mantissa: 0, .. }, Self::Finite { mantissa: 0, .. }) => Self::Nan,
            (Self::Infinite { .. }, _) | (_, Self::Finite { mantissa: 0, .. }) => Self::Infinite { negative },
            (_, Self::Infinite { .. }) | (Self::Finite { mantissa: 0, .. }, _) => {
                Self::finite(negative, 0, 0)
            }
            (
                Self::Finite { mantissa: a, exponent: x, .. },
                Self::Finite { mantissa: b, exponent: y, .. },
            ) => {
                let (a, x) = lead_at(a, x, TOP);
                let (b, y) = lead_at(b, y, 52);
                let sticky = u128::from(a % b != 0);
                Self::finite(negative, (a / b) << 1 | sticky, x - y - 1)
            }
        }
    }

    /// The square root, with a sticky bit.
    pub(super) fn square_root(self) -> Self {
        match self {
            Self::Infinite { negative: false } | Self::Finite { mantissa: 0, .. } => self,
            Self::Nan | Self::Infinite { .. } | Self::Finite { negative: true, .. } => Self::Nan,
            Self::Finite { mantissa, exponent, .. } => {
                let (mantissa, exponent) = lead_at(mantissa, exponent, TOP);
                // An even exponent halves exactly.
                let (mantissa, exponent) =
                    if exponent % 2 == 0 { (mantissa, exponent) } else { (mantissa >> 1, exponent + 1) };
                let root = mantissa.isqrt();
                let sticky = u128::from(root * root != mantissa);
                Self::finite(false, root << 1 | sticky, exponent / 2 - 1)
            }
        }
    }

    /// The nearest integer in a direction, with the sign of the number.
    pub(super) fn integral(self, rounding: Round) -> Self {
        match self {
            Self::Finite { negative, mantissa, exponent } if exponent < 0 => {
                Self::finite(negative, round_shift(mantissa, -exponent, rounding, negative), 0)
            }
            other => other,
        }
    }

    /// The integral number as an integer, clamped to `low..=high`; NaN gives `nan`.
    pub(super) fn clamped(self, low: i128, high: i128, nan: i128) -> i128 {
        match self {
            Self::Nan => nan,
            Self::Infinite { negative } => {
                if negative {
                    low
                } else {
                    high
                }
            }
            Self::Finite { negative, mantissa, exponent } => {
                let fits = mantissa == 0 || exponent + (128 - mantissa.leading_zeros() as i32) <= 100;
                let magnitude = if mantissa == 0 {
                    0
                } else if fits {
                    (mantissa << exponent.max(0)) as i128
                } else {
                    i128::MAX
                };
                (if negative { -magnitude } else { magnitude }).clamp(low, high)
            }
        }
    }
}

/// Shifts a mantissa so that its leading bit stands at `at`, which is not below where it is.
fn lead_at(mantissa: u128, exponent: i32, at: u32) -> (u128, i32) {
    let up = (at + mantissa.leading_zeros()).saturating_sub(127);
    (mantissa << up, exponent - up as i32)
}

fn add_aligned(a: (bool, u128, i32), b: (bool, u128, i32), rounding: Round) -> Exact {
    let (m, x) = lead_at(a.1, a.2, TOP);
    let (n, y) = lead_at(b.1, b.2, TOP);
    let (large, small) =
        if (x, m) >= (y, n) { ((a.0, m, x), (b.0, n, y)) } else { ((b.0, n, y), (a.0, m, x)) };
    let shift = large.2.abs_diff(small.2);
    // What falls off the end stays as a sticky bit, far below the last bit of any format.
    let low = if shift > 126 { 1 } else { small.1 >> shift | u128::from(small.1 & ((1 << shift) - 1) != 0) };
    if large.0 == small.0 {
        return Exact::finite(large.0, large.1 + low, large.2);
    }
    match large.1 - low {
        0 => Exact::finite(rounding == Round::Down, 0, 0),
        difference => Exact::finite(large.0, difference, large.2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_16_bit_pattern_survives_and_agrees_with_half() {
        for bits in 0..=u16::MAX {
            for (format, value) in [
                (Format::F16, half::f16::from_bits(bits).to_f64()),
                (Format::BF16, half::bf16::from_bits(bits).to_f64()),
            ] {
                let exact = format.decode(u64::from(bits));
                let wide = f64::from_bits(Format::F64.encode(exact, Round::NearestEven, false));
                if value.is_nan() {
                    assert_eq!(exact, Exact::Nan);
                    continue;
                }
                assert_eq!(wide.to_bits(), value.to_bits());
                for rounding in [Round::NearestEven, Round::Zero, Round::Down, Round::Up, Round::NearestAway]
                {
                    assert_eq!(format.encode(exact, rounding, false), u64::from(bits));
                }
            }
        }
    }

    #[test]
    fn rounding_to_f16_agrees_with_half_around_every_boundary() {
        // Between neighbours: the halfway point and the f32s beside it.
        for bits in 0..0x7c00u16 {
            let low = half::f16::from_bits(bits).to_f32();
            let high = half::f16::from_bits(bits + 1).to_f32();
            let middle = if high.is_infinite() { 65520.0 } else { (low + high) / 2.0 };
            for x in [
                middle,
                middle.next_down(),
                middle.next_up(),
                -middle,
                -middle.next_down(),
                -middle.next_up(),
            ] {
                let exact = Format::F32.decode(u64::from(x.to_bits()));
                let expected = u64::from(half::f16::from_f32(x).to_bits());
                assert_eq!(Format::F16.encode(exact, Round::NearestEven, false), expected, "{x:e}");
                let zero = Format::F16.encode(exact, Round::Zero, false);
                let away = Format::F16.encode(exact, if x < 0.0 { Round::Down } else { Round::Up }, false);
                assert_eq!(Format::F16.magnitude(zero), u64::from(bits));
                assert_eq!(Format::F16.magnitude(away), u64::from(bits) + 1);
            }
        }
    }

    #[test]
    fn rounding_to_bf16_agrees_with_half_around_every_boundary() {
        for bits in 0..0x7f80u16 {
            let base = u32::from(bits) << 16;
            for low in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let x = f32::from_bits(base | low);
                let exact = Format::F32.decode(u64::from(x.to_bits()));
                let expected = u64::from(half::bf16::from_f32(x).to_bits());
                assert_eq!(Format::BF16.encode(exact, Round::NearestEven, false), expected, "{x:e}");
            }
        }
    }

    #[test]
    fn directed_rounding_brackets_the_host_result() {
        let values =
            [1.0f64, 1.0 / 3.0, -7.25e300, 5e-324, 2.5e-310, 1e16, -1.0, 0.1, 4e153, f64::MAX, 1e-200];
        let enc = |e, r| f64::from_bits(Format::F64.encode(e, r, false));
        for a in values {
            for b in values {
                let (x, y) = (Format::F64.decode(a.to_bits()), Format::F64.decode(b.to_bits()));
                let up = Round::Up;
                let cases: [(Exact, f64); 5] = [
                    (x.times(y), a * b),
                    (x.plus(y, up), a + b),
                    (x.divided_by(y), a / b),
                    (x.times(y).plus(Format::F64.decode(0.3f64.to_bits()), up), a.mul_add(b, 0.3)),
                    (Format::F64.decode(a.abs().to_bits()).square_root(), a.abs().sqrt()),
                ];
                for (exact, host) in cases {
                    assert_eq!(enc(exact, Round::NearestEven).to_bits(), host.to_bits(), "{a:e} {b:e}");
                    let (down, up) = (enc(exact, Round::Down), enc(exact, Round::Up));
                    assert!(
                        down <= host && host <= up && (down == up || down.next_up() == up),
                        "{a:e} {b:e}"
                    );
                }
            }
        }
    }

    #[test]
    fn tf32_and_the_8_bit_formats() {
        let f32 = |x: f32| Format::F32.decode(u64::from(x.to_bits()));
        // Half way between two tf32 numbers: away from zero or to even.
        let tie = f32::from_bits(0x3f80_1000);
        assert_eq!(Format::TF32.encode(f32(tie), Round::NearestAway, false), 0x3f80_2000);
        assert_eq!(Format::TF32.encode(f32(tie), Round::NearestEven, false), 0x3f80_0000);
        assert_eq!(Format::TF32.encode(f32(-tie), Round::Zero, false), 0xbf80_0000);
        let e4m3 = |x: f32| Format::E4M3.encode(f32(x), Round::NearestEven, true);
        assert_eq!([e4m3(1.0), e4m3(-448.0), e4m3(1e9), e4m3(f32::NEG_INFINITY)], [0x38, 0xfe, 0x7e, 0xfe]);
        assert_eq!(
            [e4m3(f32::NAN), e4m3(f32::powi(2.0, -9)), e4m3(f32::powi(2.0, -10)), e4m3(464.0)],
            [0x7f, 1, 0, 0x7e]
        );
        let e5m2 = |x: f32| Format::E5M2.encode(f32(x), Round::NearestEven, true);
        assert_eq!([e5m2(1.0), e5m2(57344.0), e5m2(1e9), e5m2(-0.0)], [0x3c, 0x7b, 0x7b, 0x80]);
        for bits in 0..=255u64 {
            for format in [Format::E4M3, Format::E5M2] {
                let back = format.encode(format.decode(bits), Round::NearestEven, false);
                assert!(back == bits || format.is_nan(bits), "{bits:#x}");
            }
        }
        assert_eq!(
            Format::F32.encode(Format::E4M3.decode(0x7e), Round::NearestEven, false),
            448f32.to_bits().into()
        );
    }
}
