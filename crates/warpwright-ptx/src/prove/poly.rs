//! Polynomials with integer coefficients over [`Atom`]s, the unknowns of a kernel.

use std::collections::BTreeMap;

/// An unknown: an index of [`Terms`](super::terms::Terms).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Atom(pub(super) u32);

/// A product of atoms in ascending order; without any it is 1.
pub(super) type Monomial = Vec<Atom>;

/// Coefficients stay below this, so that a sum of two never overflows.
const LIMIT: i128 = 1 << 96;
/// The most terms that a polynomial has.
const TERMS: usize = 48;
/// The most factors of a monomial.
const DEGREE: usize = 4;

/// A sum of monomials with coefficients that are not zero. Operations give `None` where a result would be too large.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Poly {
    terms: BTreeMap<Monomial, i128>,
}

impl From<Atom> for Poly {
    fn from(atom: Atom) -> Self {
        Self { terms: BTreeMap::from([(vec![atom], 1)]) }
    }
}

impl Poly {
    /// A number; `None` if it is too large.
    pub(super) fn constant(value: i128) -> Option<Self> {
        Self::default().plus_constant(value)
    }

    /// A number of at most 64 bits.
    pub(super) fn small(value: i64) -> Self {
        let mut terms = BTreeMap::new();
        if value != 0 {
            terms.insert(Monomial::new(), i128::from(value));
        }
        Self { terms }
    }

    pub(super) fn terms(&self) -> impl Iterator<Item = (&Monomial, i128)> {
        self.terms.iter().map(|(monomial, coefficient)| (monomial, *coefficient))
    }

    /// The number that it is, if it is one.
    pub(super) fn as_constant(&self) -> Option<i128> {
        match self.terms.len() {
            0 => Some(0),
            1 => self.terms.get(&Monomial::new()).copied(),
            _ => None,
        }
    }

    /// The atom that it is, if it is one.
    pub(super) fn as_atom(&self) -> Option<Atom> {
        match self.terms.first_key_value() {
            Some((monomial, 1)) if self.terms.len() == 1 && monomial.len() == 1 => Some(monomial[0]),
            _ => None,
        }
    }

    /// The term without atoms.
    pub(super) fn constant_term(&self) -> i128 {
        self.terms.get(&Monomial::new()).copied().unwrap_or(0)
    }

    pub(super) fn atoms(&self) -> impl Iterator<Item = Atom> {
        self.terms.keys().flatten().copied()
    }

    /// The largest number of factors of a monomial.
    pub(super) fn degree(&self) -> usize {
        self.terms.keys().map(Vec::len).max().unwrap_or(0)
    }

    fn checked(self) -> Option<Self> {
        let fits = self.terms.len() <= TERMS
            && self.terms.iter().all(|(m, c)| m.len() <= DEGREE && (-LIMIT..=LIMIT).contains(c));
        fits.then_some(self)
    }

    fn add_term(&mut self, monomial: &[Atom], coefficient: i128) {
        if coefficient == 0 {
            return;
        }
        if let Some(sum) = self.terms.get_mut(monomial) {
            *sum += coefficient;
            if *sum == 0 {
                self.terms.remove(monomial);
            }
        } else {
            self.terms.insert(monomial.to_vec(), coefficient);
        }
    }

    pub(super) fn plus(&self, other: &Self) -> Option<Self> {
        let mut sum = self.clone();
        other.terms.iter().for_each(|(m, c)| sum.add_term(m, *c));
        sum.checked()
    }

    pub(super) fn minus(&self, other: &Self) -> Option<Self> {
        self.plus(&other.negated())
    }

    pub(super) fn plus_constant(&self, value: i128) -> Option<Self> {
        if !(-LIMIT..=LIMIT).contains(&value) {
            return None;
        }
        let mut sum = self.clone();
        sum.add_term(&[], value);
        sum.checked()
    }

    pub(super) fn negated(&self) -> Self {
        Self { terms: self.terms.iter().map(|(m, c)| (m.clone(), -c)).collect() }
    }

    pub(super) fn scaled(&self, by: i128) -> Option<Self> {
        let mut terms = BTreeMap::new();
        for (monomial, coefficient) in self.terms.iter().filter(|_| by != 0) {
            terms.insert(monomial.clone(), coefficient.checked_mul(by)?);
        }
        Self { terms }.checked()
    }

    pub(super) fn times(&self, other: &Self) -> Option<Self> {
        let mut product = Self::default();
        for (monomial, coefficient) in other.terms() {
            let scaled = self.scaled(coefficient)?.times_monomial(monomial)?;
            product = product.plus(&scaled)?;
        }
        Some(product)
    }

    pub(super) fn times_monomial(&self, factor: &[Atom]) -> Option<Self> {
        let mut terms = BTreeMap::new();
        for (monomial, coefficient) in &self.terms {
            let mut product = monomial.clone();
            product.extend_from_slice(factor);
            product.sort_unstable();
            terms.insert(product, *coefficient);
        }
        Self { terms }.checked()
    }

    /// `-self - 1`: at least 0 exactly where `self` is below 0.
    pub(super) fn complement(&self) -> Self {
        let mut negated = self.negated();
        // The limit leaves room, and the next operation checks it.
        negated.add_term(&[], -1);
        negated
    }

    /// Whether every coefficient is a multiple of `divisor`.
    pub(super) fn is_multiple_of(&self, divisor: i128) -> bool {
        self.terms.values().all(|c| c % divisor == 0)
    }

    /// The same modulo `2^bits` with the coefficients nearest to zero.
    pub(super) fn wrapped(&self, bits: u32) -> Self {
        let modulus = 1i128 << bits;
        let mut terms = BTreeMap::new();
        for (monomial, coefficient) in &self.terms {
            let mut rest = coefficient.rem_euclid(modulus);
            if rest > modulus / 2 {
                rest -= modulus;
            }
            if rest != 0 {
                terms.insert(monomial.clone(), rest);
            }
        }
        Self { terms }
    }

    /// Divides by the greatest common divisor of the coefficients, rounding the constant down: the same where the
    /// polynomial is at least 0, for integers.
    pub(super) fn tightened(&self) -> Self {
        let divisor = self.terms.iter().filter(|(m, _)| !m.is_empty()).fold(0, |g, (_, c)| gcd(g, c.abs()));
        if divisor <= 1 {
            return self.clone();
        }
        let mut tightened = Self::default();
        for (monomial, coefficient) in &self.terms {
            tightened.add_term(monomial, coefficient.div_euclid(divisor));
        }
        tightened
    }
}

/// The greatest common divisor of two numbers that are not negative.
pub(super) fn gcd(mut a: i128, mut b: i128) -> i128 {
    while b != 0 {
        (a, b) = match (u64::try_from(a), u64::try_from(b)) {
            (Ok(a), Ok(b)) => (i128::from(b), i128::from(a % b)),
            _ => (b, a % b),
        };
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_products_are_in_normal_form() {
        let (x, y) = (Poly::from(Atom(0)), Poly::from(Atom(1)));
        let sum = x.plus(&y).unwrap();
        let difference = x.minus(&y).unwrap();
        let squares = x.times(&x).unwrap().minus(&y.times(&y).unwrap()).unwrap();
        assert_eq!(sum.times(&difference).unwrap(), squares);
        assert_eq!(x.minus(&x).unwrap(), Poly::default());
        assert_eq!(x.complement().complement(), x);
    }

    #[test]
    fn coefficients_wrap_to_the_nearest() {
        let x = Poly::from(Atom(0));
        let all_ones = x.scaled(0xffff_ffff).unwrap().plus_constant(0x8000_0000).unwrap();
        let expected = x.negated().plus_constant(0x8000_0000).unwrap();
        assert_eq!(all_ones.wrapped(32), expected);
    }

    #[test]
    fn tightening_rounds_towards_the_solutions() {
        let x = Poly::from(Atom(0));
        // 4 x - 1 >= 0 is x >= 1 for integers.
        let tight = x.scaled(4).unwrap().plus_constant(-1).unwrap().tightened();
        assert_eq!(tight, x.plus_constant(-1).unwrap());
    }

    #[test]
    fn what_is_too_large_is_none() {
        let mut power = Poly::from(Atom(0));
        assert!((0..4).all(|_| match power.times(&Atom(0).into()) {
            Some(next) => {
                power = next;
                true
            }
            None => power.degree() == DEGREE,
        }));
        assert!(Poly::constant(LIMIT + 1).is_none());
        assert!(Poly::constant(LIMIT).unwrap().scaled(2).is_none());
    }
}
