//! Division by numbers that a launch knows: a product and a shift instead of the twenty instructions of a division.
//!
//! Source: T. Granlund and P. Montgomery, Division by Invariant Integers using Multiplication, PLDI 1994.

use crate::kernel_args;
use crate::reg::{Pred, U32, U64};

kernel_args! {
    /// A divisor of numbers below 2^31.
    pub struct DivisorArgs => Divisor { divisor: u32, multiplier: u32, shift: u32 }
}

kernel_args! {
    /// A divisor of numbers below 2^63.
    pub struct WideDivisorArgs => WideDivisor { multiplier: u64, shift: u32 }
}

kernel_args! {
    /// A divisor of numbers that are known to be multiples of it, or told from others by their quotient.
    pub struct ExactDivisorArgs => ExactDivisor { inverse: u32, shift: u32 }
}

/// The bits of `divisor - 1`: the shift that follows the product.
const fn shift_of(divisor: u64) -> u32 {
    u64::BITS - (divisor - 1).leading_zeros()
}

impl DivisorArgs {
    /// Divides by `divisor`, from 1 to 2^31; 0 counts as 1.
    pub const fn new(divisor: u32) -> Self {
        let divisor = if divisor == 0 { 1 } else { divisor };
        let shift = shift_of(divisor as u64);
        let multiplier = (((1u64 << shift) - divisor as u64) << 32) / divisor as u64 + 1;
        Self { divisor, multiplier: multiplier as u32, shift }
    }
}

impl WideDivisorArgs {
    /// Divides by `divisor`, from 1 to 2^63; 0 counts as 1.
    pub const fn new(divisor: u64) -> Self {
        let divisor = if divisor == 0 { 1 } else { divisor };
        let shift = shift_of(divisor);
        let multiplier = (((1u128 << shift) - divisor as u128) << 64) / divisor as u128 + 1;
        Self { multiplier: multiplier as u64, shift }
    }
}

impl ExactDivisorArgs {
    /// Divides by `divisor`; 0 counts as 1.
    pub const fn new(divisor: u32) -> Self {
        let divisor = if divisor == 0 { 1 } else { divisor };
        let shift = divisor.trailing_zeros();
        let odd = divisor >> shift;
        // Each step doubles the bits that are right, of which an odd number has three of its own inverse.
        let mut inverse = odd;
        let mut bits = 3;
        while bits < u32::BITS {
            inverse = inverse.wrapping_mul(2u32.wrapping_sub(odd.wrapping_mul(inverse)));
            bits *= 2;
        }
        Self { inverse, shift }
    }
}

impl<'k> ExactDivisor<'k> {
    /// `n / divisor` of a multiple; of any other number what is greater than every quotient, `(2^32 - 1) / divisor`.
    #[track_caller]
    pub fn quotient(self, n: U32<'k>) -> U32<'k> {
        n.k().on_behalf(|| {
            let product = n * self.inverse;
            product.funnel_shr(product, self.shift)
        })
    }
}

impl<'k> Divisor<'k> {
    /// This one where `p`, `other` elsewhere.
    #[track_caller]
    #[must_use]
    pub fn or(self, p: Pred<'k>, other: Self) -> Self {
        let fields = |d: Self| [d.divisor, d.multiplier, d.shift];
        let [divisor, multiplier, shift] = p.select_all(&fields(self), &fields(other));
        Self { divisor, multiplier, shift }
    }

    /// `n / divisor` of an `n` below 2^31.
    #[track_caller]
    pub fn quotient(self, n: U32<'k>) -> U32<'k> {
        n.k().on_behalf(|| (n.mul_hi(self.multiplier) + n) >> self.shift)
    }

    /// Quotient and remainder of an `n` below 2^31.
    #[track_caller]
    pub fn divide(self, n: U32<'k>) -> (U32<'k>, U32<'k>) {
        n.k().on_behalf(|| {
            let quotient = self.quotient(n);
            (quotient, n - quotient * self.divisor)
        })
    }
}

/// The indices of `number` along dimensions with these extents, from the innermost one outwards; the last one is what is left.
#[track_caller]
pub fn indices<'k>(number: U32<'k>, extents: &[Divisor<'k>]) -> Vec<U32<'k>> {
    let mut rest = number;
    let mut all = Vec::with_capacity(extents.len() + 1);
    for extent in extents {
        let (quotient, index) = extent.divide(rest);
        all.push(index);
        rest = quotient;
    }
    all.push(rest);
    all
}

impl<'k> WideDivisor<'k> {
    /// `n / divisor` of an `n` below 2^63.
    #[track_caller]
    pub fn quotient(self, n: U64<'k>) -> U64<'k> {
        n.k().on_behalf(|| (n.mul_hi(self.multiplier) + n) >> self.shift)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn around(divisor: u64, end: u64) -> Vec<u64> {
        let largest = end - 1;
        let multiples = [0, 1, 2, 3, 1000, largest / divisor].map(|q| q.saturating_mul(divisor));
        let near = multiples.into_iter().flat_map(|n| [n.saturating_sub(1), n, n.saturating_add(1)]);
        near.chain([largest, largest / 2]).filter(|n| *n < end).collect()
    }

    #[test]
    fn quotients_of_multiples_are_exact_and_others_are_greater() {
        for divisor in [1, 2, 3, 4, 5, 6, 7, 12, 16, 96, 1000, 65_535, 65_536, (1 << 31) - 1, 1 << 31] {
            let ExactDivisorArgs { inverse, shift } = ExactDivisorArgs::new(divisor);
            let last = u32::MAX / divisor;
            for n in around(divisor.into(), 1 << 32).into_iter().map(|n| n as u32) {
                let quotient = n.wrapping_mul(inverse).rotate_right(shift);
                if n.is_multiple_of(divisor) {
                    assert_eq!(quotient, n / divisor, "{n} / {divisor}");
                } else {
                    assert!(quotient > last, "{n} / {divisor}");
                }
            }
        }
    }

    #[test]
    fn quotients_are_exact_below_their_bounds() {
        let some = (1..2000).chain((0..=31).flat_map(|bit| {
            let power = 1u64 << bit;
            [power.saturating_sub(1), power, power + 1]
        }));
        for divisor in some.filter(|d| (1..=1 << 31).contains(d)) {
            let DivisorArgs { multiplier, shift, .. } = DivisorArgs::new(divisor as u32);
            for n in around(divisor, 1 << 31) {
                let sum = ((n * u64::from(multiplier)) >> 32) + n;
                assert!(sum < 1 << 32, "{n} / {divisor} overflows");
                assert_eq!(sum >> shift, n / divisor, "{n} / {divisor}");
            }
        }
    }

    #[test]
    fn wide_quotients_are_exact_below_their_bounds() {
        let some = (1..300u64).chain((0..=63).flat_map(|bit| {
            let power = 1u64 << bit;
            [power.saturating_sub(1), power, power.saturating_add(1)]
        }));
        for divisor in some.filter(|d| (1..=1 << 63).contains(d)) {
            let WideDivisorArgs { multiplier, shift } = WideDivisorArgs::new(divisor);
            for n in around(divisor, 1 << 63) {
                let high = (u128::from(n) * u128::from(multiplier)) >> 64;
                let sum = high + u128::from(n);
                assert!(sum < 1 << 64, "{n} / {divisor} overflows");
                assert_eq!((sum >> shift) as u64, n / divisor, "{n} / {divisor}");
            }
        }
    }

    #[test]
    fn a_divisor_of_nothing_is_one() {
        assert_eq!(DivisorArgs::new(0), DivisorArgs::new(1));
        assert_eq!(WideDivisorArgs::new(0), WideDivisorArgs::new(1));
    }
}
