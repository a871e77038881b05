//! The values of a kernel as polynomials over unknowns, and facts about the unknowns.

use std::cell::Cell;
use std::collections::HashMap;

use super::poly::{Atom, Monomial, Poly};
use super::simplex::Bounds;
use crate::inst::Axis;

/// A statement about unknowns.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Formula {
    /// The polynomial is at least 0.
    AtLeast(Poly),
    /// All hold; without any it is true.
    All(Vec<Formula>),
    /// One holds; without any it is false.
    Any(Vec<Formula>),
}

impl Formula {
    pub(super) const TRUE: Self = Self::All(Vec::new());

    pub(super) fn not(&self) -> Self {
        match self {
            Self::AtLeast(p) => Self::AtLeast(p.complement()),
            Self::All(all) => Self::Any(all.iter().map(Self::not).collect()),
            Self::Any(any) => Self::All(any.iter().map(Self::not).collect()),
        }
    }

    pub(super) fn equal(difference: &Poly) -> Self {
        Self::All(vec![Self::AtLeast(difference.clone()), Self::AtLeast(difference.negated())])
    }

    /// How many statements it consists of.
    pub(super) fn size(&self) -> usize {
        match self {
            Self::AtLeast(_) => 1,
            Self::All(several) | Self::Any(several) => 1 + several.iter().map(Self::size).sum::<usize>(),
        }
    }

    /// Calls `f` for every statement that has to hold by itself.
    pub(super) fn each(&self, f: &mut impl FnMut(&Self)) {
        match self {
            Self::All(all) => all.iter().for_each(|one| one.each(f)),
            one => f(one),
        }
    }

    pub(super) fn atoms(&self, f: &mut impl FnMut(Atom)) {
        match self {
            Self::AtLeast(p) => p.atoms().for_each(f),
            Self::All(several) | Self::Any(several) => several.iter().for_each(|one| one.atoms(f)),
        }
    }
}

/// Memory that is one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Array {
    /// Behind a parameter, by its position.
    Param(u32),
    /// A variable of the module, by its position.
    Module(u32),
    /// A variable of the function, by its position.
    Function(u32),
    /// The dynamic shared memory of the launch.
    Dynamic,
}

/// Where an instruction or a merge stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Site {
    pub(super) block: u32,
    /// The instruction; `u32::MAX` where paths come together at the start of the block.
    pub(super) index: u32,
    /// Which of several results, or the register.
    pub(super) slot: u32,
}

/// One of two threads that are held against each other; a thread alone is the first.
pub(super) type Thread = u8;

/// An unknown.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Tid(Axis, Thread),
    Ctaid(Axis, Thread),
    Ntid(Axis),
    Nctaid(Axis),
    /// A scalar parameter by its position.
    Param(u32),
    /// A parameter divided by a number that it is known to be a multiple of.
    Quotient(u32, i128),
    /// A part of a parameter: position, offset, bits.
    Piece(u32, i64, u32),
    /// The address of an array.
    Base(Array),
    /// How often the loop of this header has gone round.
    Counter {
        header: u32,
        thread: Thread,
    },
    /// A register at the head of a loop, where nothing simpler is known.
    Carried {
        header: u32,
        register: u32,
        thread: Thread,
        bits: u32,
    },
    /// A result that is not followed, below `2^bits`.
    Opaque {
        site: Site,
        thread: Thread,
        bits: u32,
    },
    /// The quotient of the two, rounded down; the second is positive.
    Floor(Poly, Poly),
    /// The bits in which two numbers below `2^bits` differ, which are multiples of `2^low`: divided by that.
    Xor {
        a: Poly,
        b: Poly,
        low: u32,
        bits: u32,
    },
    /// The value of the alternative whose conditions hold. With a site the conditions need not say which one that is.
    Choice {
        site: Option<(Site, Thread)>,
        alternatives: Vec<(Vec<Formula>, Poly)>,
    },
}

/// How many steps a replacement may take.
const REPLACEMENTS: usize = 20_000;
/// How deep unknowns may be inside of each other.
const NESTED: u32 = 100;

/// All unknowns, and what is assumed.
#[derive(Debug)]
pub(super) struct Terms {
    kinds: Vec<Kind>,
    index: HashMap<Kind, Atom>,
    ranges: Vec<Bounds>,
    /// Unknowns of launches that are known to be something else.
    known: HashMap<Kind, Poly>,
    /// Ranges of unknowns of launches that somebody has given.
    given: HashMap<Kind, Bounds>,
    /// Facts that hold in every launch.
    pub(super) assumed: Vec<Formula>,
    /// Steps that may still be spent on questions.
    pub(super) work: Cell<u64>,
}

/// Steps spent on the questions of a kernel: some seconds.
const WORK: u64 = 200_000_000;

impl Default for Terms {
    fn default() -> Self {
        Self {
            kinds: Vec::new(),
            index: HashMap::new(),
            ranges: Vec::new(),
            known: HashMap::new(),
            given: HashMap::new(),
            assumed: Vec::new(),
            work: Cell::new(WORK),
        }
    }
}

impl Terms {
    pub(super) fn kind(&self, atom: Atom) -> &Kind {
        &self.kinds[atom.0 as usize]
    }

    pub(super) fn range(&self, atom: Atom) -> Bounds {
        self.ranges[atom.0 as usize]
    }

    /// Whether too little is left for further questions, which then stay open.
    pub(super) fn is_spent(&self) -> bool {
        self.work.get() < WORK / 100
    }

    /// Takes from what may be spent; whether there was so much.
    pub(super) fn spend(&self, work: u64) -> bool {
        let left = self.work.get().checked_sub(work);
        self.work.set(left.unwrap_or(0));
        left.is_some()
    }

    /// The unknown of a kind.
    pub(super) fn atom(&mut self, kind: Kind) -> Atom {
        if let Some(atom) = self.index.get(&kind) {
            return *atom;
        }
        let range = self.range_of(&kind);
        let atom = Atom(u32::try_from(self.kinds.len()).unwrap_or(u32::MAX));
        self.index.insert(kind.clone(), atom);
        self.kinds.push(kind);
        self.ranges.push(range);
        atom
    }

    /// The value of a kind of unknown.
    pub(super) fn value(&mut self, kind: Kind) -> Poly {
        if let Some(known) = self.known.get(&kind) {
            return known.clone();
        }
        match kind {
            Kind::Tid(axis, _) if self.extent(Kind::Ntid(axis)) == Some(1) => Poly::default(),
            Kind::Ctaid(axis, _) if self.extent(Kind::Nctaid(axis)) == Some(1) => Poly::default(),
            kind => self.atom(kind).into(),
        }
    }

    /// The number that an extent is known to be.
    pub(super) fn extent(&self, kind: Kind) -> Option<i128> {
        self.known.get(&kind)?.as_constant()
    }

    /// Says that an unknown of launches is always this. Its own range stays a fact about `value`.
    pub(super) fn define(&mut self, kind: Kind, value: Poly) {
        let (low, high) = self.range_of(&kind);
        let least = low.and_then(|low| value.plus_constant(-low));
        let most = high.and_then(|high| value.negated().plus_constant(high));
        self.assumed.extend(least.into_iter().chain(most).map(Formula::AtLeast));
        self.known.insert(kind, value);
    }

    /// Says in what range an unknown of launches is, before it is used.
    pub(super) fn limit(&mut self, kind: Kind, range: Bounds) {
        self.given.insert(kind, range);
    }

    fn range_of(&self, kind: &Kind) -> Bounds {
        let range = self.natural_range(kind);
        self.given.get(kind).map_or(range, |given| both(range, *given))
    }

    fn natural_range(&self, kind: &Kind) -> Bounds {
        let below_extent = |extent: Kind| {
            let known = self.known.get(&extent).map(|p| self.interval(p).1);
            let most = known.unwrap_or_else(|| self.range_of(&extent).1);
            (Some(0), most.map(|most| most - 1))
        };
        match kind {
            Kind::Tid(axis, _) => below_extent(Kind::Ntid(*axis)),
            Kind::Ctaid(axis, _) => below_extent(Kind::Nctaid(*axis)),
            Kind::Ntid(Axis::Z) => (Some(1), Some(64)),
            Kind::Ntid(_) => (Some(1), Some(1024)),
            Kind::Nctaid(Axis::X) => (Some(1), Some((1 << 31) - 1)),
            Kind::Nctaid(_) => (Some(1), Some(65535)),
            // Callers give the range of the parameter's type.
            Kind::Param(_) | Kind::Base(_) => (None, None),
            Kind::Quotient(position, by) => {
                let (low, high) = self.range_of(&Kind::Param(*position));
                (low.map(|low| -(-low).div_euclid(*by)), high.map(|high| high.div_euclid(*by)))
            }
            Kind::Counter { .. } => (Some(0), None),
            Kind::Piece(_, _, bits) | Kind::Carried { bits, .. } | Kind::Opaque { bits, .. } => {
                (Some(0), Some((1i128 << bits) - 1))
            }
            Kind::Xor { low, bits, .. } => (Some(0), Some((1i128 << (bits - low)) - 1)),
            Kind::Floor(dividend, divisor) => self.quotient_range(dividend, divisor),
            Kind::Choice { alternatives, .. } => {
                let mut ranges =
                    alternatives.iter().map(|(conditions, value)| self.range_if(conditions, value));
                let first = ranges.next().unwrap_or((None, None));
                ranges.fold(first, |a, b| {
                    (a.0.zip(b.0).map(|(a, b)| a.min(b)), a.1.zip(b.1).map(|(a, b)| a.max(b)))
                })
            }
        }
    }

    /// The range of a value where conditions hold that compare it with a number.
    fn range_if(&self, conditions: &[Formula], value: &Poly) -> Bounds {
        let (mut low, mut high) = self.interval(value);
        for condition in conditions {
            let Formula::AtLeast(room) = condition else { continue };
            if let Some(most) = value.plus(room).and_then(|p| p.as_constant()) {
                high = Some(high.map_or(most, |high| high.min(most)));
            }
            if let Some(least) = value.minus(room).and_then(|p| p.as_constant()) {
                low = Some(low.map_or(least, |low| low.max(least)));
            }
        }
        (low, high)
    }

    fn quotient_range(&self, dividend: &Poly, divisor: &Poly) -> Bounds {
        let (low, high) = self.interval(dividend);
        match divisor.as_constant() {
            Some(divisor) => {
                (low.map(|low| low.div_euclid(divisor)), high.map(|high| high.div_euclid(divisor)))
            }
            // The divisor is at least 1.
            None => (low.filter(|low| *low >= 0).map(|_| 0), low.filter(|low| *low >= 0).and(high)),
        }
    }

    /// The range of a polynomial, each monomial by itself.
    pub(super) fn interval(&self, poly: &Poly) -> Bounds {
        let mut sum = (Some(0), Some(0));
        for (monomial, coefficient) in poly.terms() {
            let (low, high) = scale(self.monomial_range(monomial), coefficient);
            sum = (add(sum.0, low), add(sum.1, high));
        }
        sum
    }

    pub(super) fn monomial_range(&self, monomial: &Monomial) -> Bounds {
        let mut product: Bounds = (Some(1), Some(1));
        for atom in monomial {
            let range = self.range(*atom);
            product = match (product, range) {
                ((Some(a), b), (Some(c), d)) if a >= 0 && c >= 0 => {
                    (a.checked_mul(c), b.zip(d).and_then(|(b, d)| b.checked_mul(d)))
                }
                ((Some(a), Some(b)), (Some(c), Some(d))) => {
                    let corners = [a.checked_mul(c), a.checked_mul(d), b.checked_mul(c), b.checked_mul(d)];
                    match corners {
                        [Some(p), Some(q), Some(r), Some(s)] => {
                            (Some(p.min(q).min(r).min(s)), Some(p.max(q).max(r).max(s)))
                        }
                        _ => (None, None),
                    }
                }
                _ => (None, None),
            };
        }
        product
    }

    pub(super) fn is_nonnegative(&self, monomial: &[Atom]) -> bool {
        monomial.iter().all(|atom| self.range(*atom).0.is_some_and(|low| low >= 0))
    }

    /// Facts about an unknown beyond its range.
    pub(super) fn facts(&mut self, atom: Atom) -> Vec<Formula> {
        let below = |terms: &mut Self, extent: Kind| {
            let extent = terms.value(extent);
            let room = extent.plus_constant(-1).and_then(|last| last.minus(&atom.into()));
            room.map(Formula::AtLeast).into_iter().collect()
        };
        match self.kind(atom).clone() {
            Kind::Tid(axis, _) => below(self, Kind::Ntid(axis)),
            Kind::Ctaid(axis, _) => below(self, Kind::Nctaid(axis)),
            Kind::Floor(dividend, divisor) => {
                let rest = divisor.times(&atom.into()).and_then(|product| dividend.minus(&product));
                let Some(rest) = rest else { return Vec::new() };
                let room = divisor.plus_constant(-1).and_then(|most| most.minus(&rest));
                std::iter::once(rest).chain(room).map(Formula::AtLeast).collect()
            }
            Kind::Choice { alternatives, .. } => {
                let mut any = Vec::new();
                for (conditions, value) in alternatives {
                    let Some(difference) = value.minus(&atom.into()) else { return Vec::new() };
                    let mut all = conditions;
                    all.push(Formula::equal(&difference));
                    any.push(Formula::All(all));
                }
                vec![Formula::Any(any)]
            }
            _ => Vec::new(),
        }
    }

    /// Facts about two unknowns beyond those of each: where `a ^ b` is `c ^ d`, `a` is `c` exactly if `b` is `d`.
    pub(super) fn facts_of_both(&self, one: Atom, other: Atom) -> Vec<Formula> {
        let (Kind::Xor { a, b, low, bits }, Kind::Xor { a: c, b: d, low: other_low, bits: other_bits }) =
            (self.kind(one), self.kind(other))
        else {
            return Vec::new();
        };
        let differences = [Poly::from(one).minus(&other.into()), a.minus(c), b.minus(d)];
        let ([Some(result), Some(first), Some(second)], true) =
            (differences, (low, bits) == (other_low, other_bits))
        else {
            return Vec::new();
        };
        let follows = |known: &Poly, equal: &Poly| {
            let mut any = vec![Formula::equal(equal)];
            for p in [&result, known] {
                any.extend([p.plus_constant(-1)?, p.complement()].map(Formula::AtLeast));
            }
            Some(Formula::Any(any))
        };
        follows(&second, &first).into_iter().chain(follows(&first, &second)).collect()
    }

    /// `dividend / divisor`, rounded down, where the divisor is known to be positive.
    pub(super) fn floor(&mut self, dividend: &Poly, divisor: &Poly) -> Option<Poly> {
        let Some(number) = divisor.as_constant() else {
            return Some(self.atom(Kind::Floor(dividend.clone(), divisor.clone())).into());
        };
        // Multiples of the divisor come out of the quotient.
        let (mut whole, mut rest) = (Poly::default(), Poly::default());
        for (monomial, coefficient) in dividend.terms() {
            let term = Poly::constant(1)?.times_monomial(monomial)?;
            whole = whole.plus(&term.scaled(coefficient.div_euclid(number))?)?;
            rest = rest.plus(&term.scaled(coefficient.rem_euclid(number))?)?;
        }
        let constant = rest.constant_term();
        // A rest that is a multiple of a number needs only multiples of it.
        let common =
            rest.terms().filter(|(m, _)| !m.is_empty()).fold(number, |g, (_, c)| super::poly::gcd(g, c));
        if common > 1 && common < number {
            rest = rest.plus_constant(-constant.rem_euclid(common))?;
            let mut reduced = Poly::default();
            for (monomial, coefficient) in rest.terms() {
                let term = Poly::constant(coefficient / common)?.times_monomial(monomial)?;
                reduced = reduced.plus(&term)?;
            }
            let quotient = self.floor(&reduced, &Poly::constant(number / common)?)?;
            return whole.plus(&quotient);
        }
        if let (Some(low), Some(high)) = self.interval(&rest)
            && low.div_euclid(number) == high.div_euclid(number)
        {
            return whole.plus_constant(low.div_euclid(number));
        }
        let quotient = self.atom(Kind::Floor(rest, Poly::constant(number)?));
        whole.plus(&quotient.into())
    }

    /// The polynomial with unknowns replaced where `with` says so, inside of other unknowns too; `None` if it gets too large.
    pub(super) fn replace(&mut self, poly: &Poly, with: &Replacement<'_>) -> Option<Poly> {
        self.replace_for(0, poly, with)
    }

    /// The same for a thread: which of several ways the second thread has come is another question than that of the first.
    pub(super) fn replace_for(
        &mut self,
        thread: Thread,
        poly: &Poly,
        with: &Replacement<'_>,
    ) -> Option<Poly> {
        Replacing { terms: self, thread, with, done: HashMap::new(), steps: REPLACEMENTS, depth: NESTED }
            .poly(poly)
    }

    /// The same in formulas.
    pub(super) fn replace_all(
        &mut self,
        thread: Thread,
        formulas: &[Formula],
        with: &Replacement<'_>,
    ) -> Option<Vec<Formula>> {
        let mut replacing =
            Replacing { terms: self, thread, with, done: HashMap::new(), steps: REPLACEMENTS, depth: NESTED };
        formulas.iter().map(|one| replacing.formula(one)).collect()
    }

    /// Whether an unknown satisfying `is` takes part, inside of others too.
    pub(super) fn depends(&self, poly: &Poly, is: &dyn Fn(Atom, &Kind) -> bool) -> bool {
        let mut seen = vec![false; self.kinds.len()];
        let mut todo: Vec<Atom> = poly.atoms().collect();
        while let Some(atom) = todo.pop() {
            if std::mem::replace(&mut seen[atom.0 as usize], true) {
                continue;
            }
            let kind = self.kind(atom);
            if is(atom, kind) {
                return true;
            }
            match kind {
                Kind::Floor(dividend, divisor) => todo.extend(dividend.atoms().chain(divisor.atoms())),
                Kind::Xor { a, b, .. } => todo.extend(a.atoms().chain(b.atoms())),
                Kind::Choice { alternatives, .. } => {
                    for (conditions, value) in alternatives {
                        todo.extend(value.atoms());
                        conditions.iter().for_each(|one| one.atoms(&mut |atom| todo.push(atom)));
                    }
                }
                _ => {}
            }
        }
        false
    }
}

/// Gives the value of an unknown that is to be replaced.
pub(super) type Replacement<'a> = dyn Fn(&mut Terms, &Kind) -> Option<Poly> + 'a;

struct Replacing<'a> {
    terms: &'a mut Terms,
    thread: Thread,
    with: &'a Replacement<'a>,
    done: HashMap<Atom, Poly>,
    steps: usize,
    depth: u32,
}

impl Replacing<'_> {
    fn poly(&mut self, poly: &Poly) -> Option<Poly> {
        let mut sum = Poly::default();
        for (monomial, coefficient) in poly.terms() {
            let mut product = Poly::constant(coefficient)?;
            for atom in monomial {
                product = product.times(&self.atom(*atom)?)?;
            }
            sum = sum.plus(&product)?;
        }
        Some(sum)
    }

    fn formula(&mut self, formula: &Formula) -> Option<Formula> {
        Some(match formula {
            Formula::AtLeast(p) => Formula::AtLeast(self.poly(p)?),
            Formula::All(all) => {
                Formula::All(all.iter().map(|one| self.formula(one)).collect::<Option<_>>()?)
            }
            Formula::Any(any) => {
                Formula::Any(any.iter().map(|one| self.formula(one)).collect::<Option<_>>()?)
            }
        })
    }

    fn atom(&mut self, atom: Atom) -> Option<Poly> {
        if let Some(done) = self.done.get(&atom) {
            return Some(done.clone());
        }
        self.steps = self.steps.checked_sub(1)?;
        self.depth = self.depth.checked_sub(1)?;
        let kind = self.terms.kind(atom).clone();
        let value = match (self.with)(self.terms, &kind) {
            Some(value) => value,
            None => match kind {
                Kind::Floor(dividend, divisor) => {
                    let (new, by) = (self.poly(&dividend)?, self.poly(&divisor)?);
                    if (&new, &by) == (&dividend, &divisor) {
                        atom.into()
                    } else {
                        self.terms.floor(&new, &by)?
                    }
                }
                Kind::Xor { a, b, low, bits } => {
                    let (a, b) = (self.poly(&a)?, self.poly(&b)?);
                    self.terms.atom(Kind::Xor { a, b, low, bits }).into()
                }
                Kind::Choice { site, alternatives } => {
                    let mut replaced = Vec::new();
                    for (conditions, value) in &alternatives {
                        let conditions = conditions.iter().map(|one| self.formula(one));
                        replaced.push((conditions.collect::<Option<Vec<_>>>()?, self.poly(value)?));
                    }
                    let site = site.map(|(site, thread)| (site, thread.max(self.thread)));
                    self.terms.atom(Kind::Choice { site, alternatives: replaced }).into()
                }
                _ => atom.into(),
            },
        };
        self.depth += 1;
        self.done.insert(atom, value.clone());
        Some(value)
    }
}

/// The numbers in both ranges.
fn both(a: Bounds, b: Bounds) -> Bounds {
    let tighter = |a: Option<i128>, b: Option<i128>, choose: fn(i128, i128) -> i128| match (a, b) {
        (Some(a), Some(b)) => Some(choose(a, b)),
        (one, other) => one.or(other),
    };
    (tighter(a.0, b.0, i128::max), tighter(a.1, b.1, i128::min))
}

fn add(a: Option<i128>, b: Option<i128>) -> Option<i128> {
    a?.checked_add(b?)
}

fn scale((low, high): Bounds, by: i128) -> Bounds {
    let times = |end: Option<i128>| end.and_then(|end| end.checked_mul(by));
    if by >= 0 { (times(low), times(high)) } else { (times(high), times(low)) }
}
