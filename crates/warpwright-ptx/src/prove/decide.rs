//! Whether statements about unknowns contradict each other.
//!
//! Monomials become variables of a linear system. What a product has to do with its factors comes from products of the
//! constraints with unknowns that are not negative (Sherali and Adams, *A Reformulation-Linearization Technique*), as far as they
//! are about monomials that are there. Statements of which one of several holds are split one after the other.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::poly::{Atom, Monomial, Poly, gcd};
use super::simplex::{Bounds, Effort, Simplex};
use super::terms::{Formula, Terms};

/// Constraints of one system.
const CONSTRAINTS: usize = 260;
/// Systems that one question may lead to, over all splits.
const SYSTEMS: u32 = 60;
/// Systems that branching on fractions in one split may lead to.
const BRANCHES: u32 = 24;
/// How many statements are split one below the other.
const DEPTH: u32 = 5;

/// Whether `facts` and what is assumed of all launches imply a statement.
pub(super) fn implies(terms: &mut Terms, facts: &[Formula], goal: &Formula) -> bool {
    if let Formula::All(all) = goal {
        return all.iter().all(|one| implies(terms, facts, one));
    }
    if let Formula::AtLeast(p) = goal
        && terms.interval(p).0.is_some_and(|low| low >= 0)
    {
        return true;
    }
    facts.contains(goal) || contradicts(terms, facts, &[goal.not()])
}

/// Whether a polynomial is in a range whenever the facts hold.
pub(super) fn within(terms: &mut Terms, facts: &[Formula], poly: &Poly, low: i128, high: i128) -> bool {
    let (Some(above), Some(below)) = (poly.plus_constant(-low), poly.negated().plus_constant(high)) else {
        return false;
    };
    implies(terms, facts, &Formula::AtLeast(above)) && implies(terms, facts, &Formula::AtLeast(below))
}

/// Whether no unknowns satisfy `facts`, `more` and what is assumed of all launches.
pub(super) fn contradicts(terms: &mut Terms, facts: &[Formula], more: &[Formula]) -> bool {
    let mut system = System::default();
    // Splits are tried in this order: the question first.
    more.iter().chain(facts).for_each(|one| system.add(one));
    // Most questions need nothing of what is assumed, and small systems have small numbers.
    if system.clone().is_contradictory(terms, DEPTH, &mut { SYSTEMS }) {
        return true;
    }
    let assumed = std::mem::take(&mut terms.assumed);
    assumed.iter().for_each(|one| system.add(one));
    terms.assumed = assumed;
    !terms.assumed.is_empty() && system.is_contradictory(terms, DEPTH, &mut { SYSTEMS })
}

#[derive(Clone, Debug, Default)]
struct System {
    constraints: BTreeSet<Poly>,
    /// Statements of which one holds.
    clauses: Vec<Vec<Formula>>,
    /// Unknowns whose facts are in.
    seen: BTreeSet<Atom>,
    impossible: bool,
}

impl System {
    fn add(&mut self, formula: &Formula) {
        formula.each(&mut |one| match one {
            Formula::AtLeast(p) => {
                let p = p.tightened();
                match p.as_constant() {
                    Some(value) => self.impossible |= value < 0,
                    None => {
                        self.constraints.insert(p);
                    }
                }
            }
            Formula::Any(any) if any.len() == 1 => self.add(&any[0]),
            Formula::Any(any) if any.is_empty() => self.impossible = true,
            Formula::Any(any) if self.clauses.iter().all(|c| c != any) => self.clauses.push(any.clone()),
            _ => {}
        });
    }

    /// Adds what is known of the unknowns, until there are no further ones.
    fn close(&mut self, terms: &mut Terms) {
        loop {
            let mut atoms: BTreeSet<_> = self.constraints.iter().flat_map(Poly::atoms).collect();
            for clause in self.clauses.iter().flatten() {
                clause.atoms(&mut |atom| {
                    atoms.insert(atom);
                });
            }
            let new: Vec<_> = atoms.difference(&self.seen).copied().collect();
            if new.is_empty() {
                return;
            }
            for atom in new {
                for other in self.seen.iter().copied().collect::<Vec<_>>() {
                    terms.facts_of_both(atom, other).iter().for_each(|fact| self.add(fact));
                }
                self.seen.insert(atom);
                terms.facts(atom).iter().for_each(|fact| self.add(fact));
            }
        }
    }

    fn is_contradictory(&mut self, terms: &mut Terms, depth: u32, systems: &mut u32) -> bool {
        let Some(left) = systems.checked_sub(1).filter(|_| terms.spend(10_000)) else { return false };
        *systems = left;
        self.close(terms);
        if self.impossible || self.is_infeasible(terms) {
            return true;
        }
        if self.separate(terms) && self.is_infeasible(terms) {
            return true;
        }
        if depth == 0 {
            return false;
        }
        // Alternatives that are no longer possible need no split.
        self.clauses.retain_mut(|clause| {
            clause.retain(|one| !is_excluded(terms, one));
            true
        });
        let Some(at) = (0..self.clauses.len()).min_by_key(|at| self.clauses[*at].len()) else {
            return false;
        };
        let clause = self.clauses.remove(at);
        clause.iter().all(|alternative| {
            let mut with = self.clone();
            with.add(alternative);
            with.is_contradictory(terms, depth - 1, systems)
        })
    }

    /// Divides equations into parts that are 0 each: where `X v + Y = 0` and `Y` lies between `-v` and `v`, both are (Maslov,
    /// *Delinearization: an Efficient Way to Break Multiloop Dependence Equations*). Whether there are any.
    fn separate(&mut self, terms: &Terms) -> bool {
        let mut todo: Vec<Poly> =
            self.constraints.iter().filter(|p| self.constraints.contains(&p.negated())).cloned().collect();
        let mut separated = false;
        for _ in 0..SEPARATIONS {
            let Some(equation) = todo.pop() else { break };
            for modulus in moduli(&equation) {
                let Some((quotient, rest)) = divided(&equation, &modulus) else { continue };
                let Some(room) = modulus.poly().and_then(|p| p.plus_constant(-1)) else { continue };
                let inside = [room.minus(&rest), room.plus(&rest)].into_iter().all(|p| {
                    p.is_some_and(|p| {
                        terms.interval(&p).0.is_some_and(|low| low >= 0) || {
                            let mut outside = self.clone();
                            outside.add(&Formula::AtLeast(p.complement()));
                            outside.impossible || outside.is_infeasible(terms)
                        }
                    })
                });
                if inside {
                    for part in [quotient, rest] {
                        self.add(&Formula::equal(&part));
                        todo.push(part.tightened());
                    }
                    separated = true;
                    break;
                }
            }
        }
        separated
    }

    /// The linear system, with the products that tie monomials together.
    fn is_infeasible(&self, terms: &Terms) -> bool {
        if self.constraints.iter().any(|p| terms.interval(p).1.is_some_and(|high| high < 0)) {
            return true;
        }
        let mut constraints = self.constraints.clone();
        let mut new: Vec<Poly> = constraints.iter().cloned().collect();
        // Most questions need no products, and small systems have small numbers.
        for _ in 0..=PRODUCTS {
            let mut effort = Effort::new(BRANCHES, terms.work.get());
            let infeasible = linear_system(terms, &constraints).refute(&mut effort);
            terms.work.set(effort.work);
            if infeasible {
                return true;
            }
            if !terms.spend(constraints.len() as u64 * 500) {
                return false;
            }
            let products = products(terms, &constraints, &new);
            new = products.into_iter().filter(|p| !constraints.contains(p)).collect();
            let room = CONSTRAINTS.saturating_sub(constraints.len());
            new.truncate(room);
            if new.is_empty() {
                return false;
            }
            constraints.extend(new.iter().cloned());
        }
        false
    }
}

/// Equations that are looked at to divide them.
const SEPARATIONS: u32 = 8;

/// The divisor of an equation: a number, or a number times an unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Modulus {
    number: i128,
    atom: Option<Atom>,
}

impl Modulus {
    fn poly(self) -> Option<Poly> {
        let unit = self.atom.map_or_else(|| Poly::small(1), Poly::from);
        unit.scaled(self.number)
    }
}

/// Divisors of an equation: its coefficients, and unknowns that are part of products.
fn moduli(equation: &Poly) -> Vec<Modulus> {
    let mut numbers: BTreeSet<i128> = BTreeSet::new();
    let mut atoms: BTreeMap<Atom, i128> = BTreeMap::new();
    for (monomial, coefficient) in equation.terms().filter(|(m, _)| !m.is_empty()) {
        numbers.insert(coefficient.abs());
        for atom in monomial.iter().filter(|_| monomial.len() > 1) {
            let common = atoms.entry(*atom).or_insert(0);
            *common = gcd(*common, coefficient.abs());
        }
    }
    let numbers = numbers.into_iter().rev().filter(|n| *n > 1).map(|number| Modulus { number, atom: None });
    let of_atoms = atoms.into_iter().map(|(atom, number)| Modulus { number, atom: Some(atom) });
    of_atoms.chain(numbers).take(MODULI).collect()
}

/// How many divisors of an equation are tried.
const MODULI: usize = 8;

/// The part of an equation that a divisor divides, divided by it, and the rest; `None` if one of them has no unknowns.
fn divided(equation: &Poly, divisor: &Modulus) -> Option<(Poly, Poly)> {
    let (mut quotient, mut rest) = (Poly::default(), Poly::default());
    let number = divisor.number;
    for (monomial, coefficient) in equation.terms() {
        let mut monomial = monomial.clone();
        let mut coefficient = coefficient;
        let divides = match divisor.atom {
            Some(atom) => match monomial.iter().position(|a| *a == atom) {
                Some(at) => {
                    monomial.remove(at);
                    true
                }
                None => false,
            },
            None if monomial.is_empty() => {
                // The rest of a constant is the nearest to zero.
                let near = (coefficient + number / 2).rem_euclid(number) - number / 2;
                rest = rest.plus_constant(near)?;
                coefficient -= near;
                true
            }
            None => coefficient % number == 0,
        };
        let part = if divides { &mut quotient } else { &mut rest };
        let coefficient = if divides { coefficient / number } else { coefficient };
        *part = part.plus(&Poly::constant(coefficient)?.times_monomial(&monomial)?)?;
    }
    let has_unknowns = |p: &Poly| p.as_constant().is_none();
    (has_unknowns(&quotient) && has_unknowns(&rest)).then_some((quotient, rest))
}

/// How often products of products are taken.
const PRODUCTS: u32 = 2;
/// Bounds beyond this are left out: they decide nothing, and make numbers large.
const LARGE: i128 = 1 << 66;

/// The constraints with monomials as variables.
fn linear_system(terms: &Terms, constraints: &BTreeSet<Poly>) -> Simplex {
    let mut numbers: HashMap<&Monomial, usize> = HashMap::new();
    let mut bounds: Vec<Bounds> = Vec::new();
    let mut rows = Vec::new();
    for p in constraints {
        let mut row = Vec::new();
        for (monomial, coefficient) in p.terms().filter(|(m, _)| !m.is_empty()) {
            let number = *numbers.entry(monomial).or_insert_with(|| {
                let (low, high) = terms.monomial_range(monomial);
                bounds.push((low.filter(|low| *low > -LARGE), high.filter(|high| *high < LARGE)));
                bounds.len() - 1
            });
            row.push((number, coefficient));
        }
        rows.push((row, -p.constant_term()));
    }
    // A constraint on one monomial is a bound.
    rows.retain(|(row, least)| {
        let [(number, coefficient)] = row[..] else { return true };
        let (low, high) = &mut bounds[number];
        if coefficient > 0 {
            // Rounded up.
            let bound = -(-least).div_euclid(coefficient);
            *low = Some(low.map_or(bound, |low| low.max(bound)));
        } else {
            let bound = (-least).div_euclid(-coefficient);
            *high = Some(high.map_or(bound, |high| high.min(bound)));
        }
        false
    });
    Simplex::new(&bounds, &rows)
}

/// Whether the ranges of unknowns alone exclude a statement.
fn is_excluded(terms: &Terms, formula: &Formula) -> bool {
    match formula {
        Formula::AtLeast(p) => terms.interval(p).1.is_some_and(|high| high < 0),
        Formula::All(all) => all.iter().any(|one| is_excluded(terms, one)),
        Formula::Any(any) => any.iter().all(|one| is_excluded(terms, one)),
    }
}

/// Products of constraints and ranges with the other factors of monomials that their unknowns are part of.
fn products(terms: &Terms, constraints: &BTreeSet<Poly>, new: &[Poly]) -> Vec<Poly> {
    // By unknown, what it is multiplied with somewhere.
    let mut cofactors: BTreeSet<(Atom, Monomial)> = BTreeSet::new();
    for (monomial, _) in constraints.iter().flat_map(Poly::terms).filter(|(m, _)| m.len() > 1) {
        for at in 0..monomial.len() {
            let mut rest = monomial.clone();
            let atom = rest.remove(at);
            if terms.is_nonnegative(&rest) {
                cofactors.insert((atom, rest));
            }
        }
    }
    // What the question is about comes before ranges: there is room for so many only.
    let mut products = Vec::new();
    let mut mentions: BTreeMap<Atom, Vec<&Poly>> = BTreeMap::new();
    for p in new.iter().filter(|p| p.degree() <= 2) {
        let atoms: BTreeSet<Atom> = p.atoms().collect();
        atoms.into_iter().for_each(|atom| mentions.entry(atom).or_default().push(p));
    }
    for (atom, rest) in &cofactors {
        for p in mentions.get(atom).into_iter().flatten() {
            products.extend(p.times_monomial(rest));
            if products.len() >= 4 * CONSTRAINTS {
                return products;
            }
        }
    }
    for (atom, rest) in &cofactors {
        let (low, high) = terms.range(*atom);
        let value = Poly::from(*atom);
        let above = low.and_then(|low| value.plus_constant(-low));
        let below = high.and_then(|high| value.negated().plus_constant(high));
        products.extend(above.into_iter().chain(below).filter_map(|p| p.times_monomial(rest)));
    }
    products
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inst::Axis;
    use crate::prove::terms::Kind;

    fn global_index(terms: &mut Terms, thread: u8) -> Poly {
        let block = terms.value(Kind::Ctaid(Axis::X, thread));
        let size = terms.value(Kind::Ntid(Axis::X));
        let tid = terms.value(Kind::Tid(Axis::X, thread));
        block.times(&size).unwrap().plus(&tid).unwrap()
    }

    #[test]
    fn a_block_lies_in_its_grid() {
        let mut terms = Terms::default();
        let index = global_index(&mut terms, 0);
        let total = terms.value(Kind::Nctaid(Axis::X)).times(&terms.value(Kind::Ntid(Axis::X))).unwrap();
        let last = total.plus_constant(-1).unwrap();
        assert!(implies(&mut terms, &[], &Formula::AtLeast(last.minus(&index).unwrap())));
        let before = total.plus_constant(-2).unwrap();
        assert!(!implies(&mut terms, &[], &Formula::AtLeast(before.minus(&index).unwrap())));
    }

    #[test]
    fn threads_of_different_blocks_have_different_indices() {
        let mut terms = Terms::default();
        let (one, other) = (global_index(&mut terms, 0), global_index(&mut terms, 1));
        let blocks = [0, 1].map(|thread| terms.value(Kind::Ctaid(Axis::X, thread)));
        let later = blocks[1].minus(&blocks[0]).unwrap();
        let earlier = Formula::AtLeast(later.plus_constant(-1).unwrap());
        let equal = Formula::equal(&one.minus(&other).unwrap());
        assert!(contradicts(&mut terms, &[earlier], std::slice::from_ref(&equal)));
        assert!(!contradicts(&mut terms, &[Formula::AtLeast(later)], &[equal]));
    }

    #[test]
    fn padded_rows_do_not_meet() {
        let mut terms = Terms::default();
        terms.define(Kind::Ntid(Axis::X), Poly::small(16));
        terms.define(Kind::Ntid(Axis::Y), Poly::small(16));
        let mut at = |axis, thread| terms.value(Kind::Tid(axis, thread));
        let (x, y, other_x, other_y) = (at(Axis::X, 0), at(Axis::Y, 0), at(Axis::X, 1), at(Axis::Y, 1));
        let cell = |x: &Poly, y: &Poly, pitch| y.scaled(pitch).unwrap().plus(x).unwrap();
        let apart = Formula::AtLeast(other_x.minus(&x).unwrap().plus_constant(-1).unwrap());
        let mut meet = |pitch| {
            let equal = cell(&x, &y, pitch).minus(&cell(&other_x, &other_y, pitch)).unwrap();
            !contradicts(&mut terms, std::slice::from_ref(&apart), &[Formula::equal(&equal)])
        };
        assert!(!meet(17) && !meet(16));
        assert!(meet(15));
    }

    #[test]
    fn one_of_several_is_split() {
        let mut terms = Terms::default();
        let x = terms.value(Kind::Tid(Axis::X, 0));
        let above = |n: i128| Formula::AtLeast(x.plus_constant(-n).unwrap());
        let either = Formula::Any(vec![above(10), above(20)]);
        assert!(implies(&mut terms, std::slice::from_ref(&either), &above(10)));
        assert!(!implies(&mut terms, &[either], &above(11)));
    }
}
