//! Whether two threads access the same bytes, one of them writing, with nothing that orders them.

use super::barriers::{Divergence, Intervals, Round, Rounds};
use super::decide::contradicts;
use super::lower::AXES;
use super::poly::Poly;
use super::terms::{Formula, Kind, Terms};
use super::walk::{Access, Action, Walk};
use super::{Decision, Gap, Reason};
use crate::inst::{Axis, BlockId};
use crate::types::{Scope, StateSpace};

/// Pairs of accesses that are held against each other.
const PAIRS: usize = 4000;
/// Pairs that are listed.
const LISTED: usize = 8;

/// Decides the races of a kernel.
pub(super) fn decide(walk: &mut Walk<'_>) -> Decision {
    let divergence = Divergence::new(walk);
    let intervals = Intervals::new(walk, &divergence);
    let mut gaps = walk.gaps.clone();
    let mut pairs = Pairs { walk, divergence: &divergence, gaps: &mut gaps, done: 0 };
    for interval in &intervals.intervals {
        let all: Vec<_> = interval.iter().collect();
        for (at, (a, of_a)) in all.iter().enumerate() {
            for (b, of_b) in &all[at..] {
                pairs.block(*a, *b, of_a, of_b);
            }
        }
    }
    for a in 0..pairs.walk.accesses.len() {
        for b in a..pairs.walk.accesses.len() {
            pairs.grid(a, b);
        }
    }
    let obligations = pairs.done;
    if let (Some((block, index)), false) = (intervals.divergent, gaps.is_empty()) {
        gaps.push(Gap::at(walk.function, block, index, Reason::DivergentBarrier));
    }
    Decision::of(obligations, gaps)
}

struct Pairs<'a, 'm> {
    walk: &'a mut Walk<'m>,
    divergence: &'a Divergence,
    gaps: &'a mut Vec<Gap>,
    done: usize,
}

/// Which threads are held against each other: the unknowns of the first that the second shares, and what makes them two.
#[derive(Clone)]
struct Case {
    same_block: bool,
    /// Axes on which they agree.
    equal: Vec<Axis>,
    /// The axis on which they do not, and whether the first comes first.
    apart: (Axis, bool),
    /// How the second thread's counters depend on those of the first.
    counters: Vec<(u32, Counter)>,
}

#[derive(Clone, Copy)]
enum Counter {
    /// So many rounds later than the first thread's.
    Later(i128),
    /// Both are known.
    Fixed(i128, i128),
    /// The same number, of loops that need not have been entered together.
    Equal,
}

impl Pairs<'_, '_> {
    fn may_conflict(&self, a: usize, b: usize, same_block: bool) -> bool {
        let [a, b] = [a, b].map(|at| &self.walk.accesses[at]);
        let exclusive = matches!(a.space, StateSpace::Local | StateSpace::Const | StateSpace::Param);
        let reads = a.action == Action::Load && b.action == Action::Load;
        !(a.array != b.array || exclusive || reads || are_atomic(a, b, same_block))
    }

    /// Two accesses of a block between the same barriers.
    fn block(&mut self, a: usize, b: usize, of_a: &Rounds, of_b: &Rounds) {
        if !self.may_conflict(a, b, true) {
            return;
        }
        let mut counters = Vec::new();
        for (header, round) in of_a {
            match (round, of_b.get(header)) {
                (Round::After(x), Some(Round::After(y))) => {
                    counters.push((header.0, Counter::Later(i128::from(*y) - i128::from(*x))));
                }
                (Round::Since(x), Some(Round::Since(y))) => {
                    counters.push((header.0, Counter::Fixed(i128::from(*x), i128::from(*y))));
                }
                _ => {}
            }
        }
        let symmetric = a == b && of_a == of_b;
        let axes = self.axes(Kind::Ntid);
        self.pair(a, b, true, &axes, symmetric, &counters);
    }

    /// Two accesses of different blocks.
    fn grid(&mut self, a: usize, b: usize) {
        if self.walk.accesses[a].space == StateSpace::Shared || !self.may_conflict(a, b, false) {
            return;
        }
        let axes = self.axes(Kind::Nctaid);
        self.pair(a, b, false, &axes, a == b, &[]);
    }

    /// The axes along which there may be more than one.
    fn axes(&mut self, extent: fn(Axis) -> Kind) -> Vec<Axis> {
        let terms = &mut self.walk.terms;
        AXES.into_iter()
            .map(|(axis, _)| axis)
            .filter(|axis| terms.value(extent(*axis)).as_constant() != Some(1))
            .collect()
    }

    fn pair(
        &mut self,
        a: usize,
        b: usize,
        same_block: bool,
        axes: &[Axis],
        symmetric: bool,
        counters: &[(u32, Counter)],
    ) {
        self.done += 1;
        if self.gaps.len() >= LISTED {
            return;
        }
        let too_many = self.done > PAIRS || self.walk.terms.is_spent();
        let mut apart = !too_many;
        for (at, axis) in axes.iter().enumerate() {
            for first in [true, false] {
                if apart && (first || !symmetric) {
                    let equal = axes[..at].to_vec();
                    let case = Case { same_block, equal, apart: (*axis, first), counters: counters.to_vec() };
                    apart = self.are_apart(a, b, &case, 2);
                }
            }
        }
        if !apart {
            let [one, other] = [a, b].map(|at| &self.walk.accesses[at]);
            let reason = if too_many { Reason::TooLarge } else { Reason::Race { same_block } };
            let mut gap = Gap::at(self.walk.function, one.block, one.index, reason);
            gap.other = Some(self.walk.function.blocks[other.block.0 as usize].location(other.index));
            if !self.gaps.contains(&gap) {
                self.gaps.push(gap);
            }
        }
    }

    /// Whether two accesses never meet in a case. Counters of loops that nothing ties together are compared, `splits` of them.
    fn are_apart(&mut self, a: usize, b: usize, case: &Case, splits: u32) -> bool {
        let Some(system) = self.system(a, b, case, &[]) else { return false };
        if contradicts(&mut self.walk.terms, &[], &system) {
            return true;
        }
        let Some(header) = self.free_loop(a, b, case).filter(|_| splits > 0) else { return false };
        let mut equal = case.clone();
        equal.counters.push((header, Counter::Equal));
        if !self.are_apart(a, b, &equal, splits - 1) {
            return false;
        }
        let [one, other] =
            [0, 1].map(|thread| Poly::from(self.walk.terms.atom(Kind::Counter { header, thread })));
        [(&one, &other), (&other, &one)].into_iter().all(|(less, more)| {
            let earlier = more.minus(less).and_then(|p| p.plus_constant(-1));
            let Some(earlier) = earlier.map(Formula::AtLeast) else { return false };
            let Some(system) = self.system(a, b, case, &[earlier]) else { return false };
            contradicts(&mut self.walk.terms, &[], &system)
        })
    }

    /// A loop whose counters the two threads have each for itself.
    fn free_loop(&self, a: usize, b: usize, case: &Case) -> Option<u32> {
        let walk = &*self.walk;
        let headers = walk.loops.iter().map(|l| l.header.0);
        let depends = |at: usize, header: u32| {
            let offset = &walk.accesses[at].offset;
            walk.terms.depends(offset, &|_, kind| *kind == Kind::Counter { header, thread: 0 })
        };
        headers
            .filter(|header| case.counters.iter().all(|(other, _)| other != header))
            .find(|header| depends(a, *header) && depends(b, *header))
    }

    /// Registers at the heads of loops that both threads have in common: they are in the same round of it and of all loops around it.
    fn shared(&self, case: &Case) -> Vec<(u32, u32)> {
        let walk = &*self.walk;
        let together = |header: BlockId| {
            let counter = case.counters.iter().find(|(h, _)| *h == header.0);
            counter.is_some_and(|(_, counter)| match counter {
                Counter::Later(by) => *by == 0,
                Counter::Fixed(x, y) => x == y,
                Counter::Equal => false,
            })
        };
        let carried = walk.carried.keys().map(|(header, register)| (*header, *register));
        let shared = carried.filter(|(header, register)| {
            let mut around = walk.loops.iter().filter(|l| l.members.contains(header));
            case.same_block
                && around.all(|l| together(l.header))
                && self.divergence.is_carried_uniformly(walk, header.0, *register)
        });
        shared.map(|(header, register)| (header.0, register)).collect()
    }

    /// Facts that hold if the accesses of two threads meet.
    fn system(&mut self, a: usize, b: usize, case: &Case, more: &[Formula]) -> Option<Vec<Formula>> {
        let [one, other] = [a, b].map(|at| self.walk.accesses[at].clone());
        let shared = self.shared(case);
        let terms = &mut self.walk.terms;
        let first = |_: &mut Terms, kind: &Kind| match kind {
            Kind::Counter { header, .. } => match case.counters.iter().find(|(h, _)| h == header)?.1 {
                Counter::Fixed(round, _) => Poly::constant(round),
                Counter::Later(_) | Counter::Equal => None,
            },
            _ => None,
        };
        let second = |terms: &mut Terms, kind: &Kind| rename(terms, kind, case, &shared);
        let one_offset = terms.replace(&one.offset, &first)?;
        let other_offset = terms.replace_for(1, &other.offset, &second)?;
        let mut system = meeting(&one_offset, one.bytes, &other_offset, other.bytes)?;
        let (axis, is_first) = case.apart;
        let index = |terms: &mut Terms, thread| {
            let kind = if case.same_block { Kind::Tid(axis, thread) } else { Kind::Ctaid(axis, thread) };
            terms.value(kind)
        };
        let (x, y) = (index(terms, 0), index(terms, 1));
        let (less, greater) = if is_first { (x, y) } else { (y, x) };
        system.push(Formula::AtLeast(greater.minus(&less)?.plus_constant(-1)?));
        for (header, counter) in &case.counters {
            if let Counter::Later(by) = counter {
                let counter: Poly = terms.atom(Kind::Counter { header: *header, thread: 0 }).into();
                system.push(Formula::AtLeast(counter.plus_constant(*by)?));
            }
        }
        system.extend_from_slice(more);
        system.extend(terms.replace_all(0, &one.conditions, &first)?);
        system.extend(terms.replace_all(1, &other.conditions, &second)?);
        Some(system)
    }
}

/// The unknown of the second thread for one of the first; `None` if it is the same, or made of others.
fn rename(terms: &mut Terms, kind: &Kind, case: &Case, shared: &[(u32, u32)]) -> Option<Poly> {
    let renamed = match kind {
        Kind::Tid(axis, 0) if !(case.same_block && case.equal.contains(axis)) => Kind::Tid(*axis, 1),
        Kind::Ctaid(axis, 0) if !case.same_block && !case.equal.contains(axis) => Kind::Ctaid(*axis, 1),
        Kind::Counter { header, thread: 0 } => match case.counters.iter().find(|(h, _)| h == header) {
            Some((_, Counter::Fixed(_, round))) => return Poly::constant(*round),
            Some((_, Counter::Later(by))) => {
                let counter = terms.atom(Kind::Counter { header: *header, thread: 0 });
                return Poly::from(counter).plus_constant(*by);
            }
            Some((_, Counter::Equal)) => return None,
            None => Kind::Counter { header: *header, thread: 1 },
        },
        Kind::Carried { header, register, thread: 0, bits } if !shared.contains(&(*header, *register)) => {
            Kind::Carried { header: *header, register: *register, thread: 1, bits: *bits }
        }
        Kind::Opaque { site, thread: 0, bits } => Kind::Opaque { site: *site, thread: 1, bits: *bits },
        _ => return None,
    };
    Some(terms.atom(renamed).into())
}

/// Facts that hold if bytes from `a` and bytes from `b` on have one in common.
fn meeting(a: &Poly, a_bytes: i128, b: &Poly, b_bytes: i128) -> Option<Vec<Formula>> {
    let difference = a.minus(b)?;
    if a_bytes == b_bytes && a.is_multiple_of(a_bytes) && b.is_multiple_of(a_bytes) {
        return Some(vec![Formula::equal(&difference)]);
    }
    let before_end = difference.negated().plus_constant(b_bytes - 1)?;
    Some(vec![Formula::AtLeast(before_end), Formula::AtLeast(difference.plus_constant(a_bytes - 1)?)])
}

/// Whether both are atomic for each other.
fn are_atomic(a: &Access, b: &Access, same_block: bool) -> bool {
    let wide = |access: &Access| match access.action {
        Action::Atomic(scope) => same_block || matches!(scope, Scope::Gpu | Scope::Sys),
        _ => false,
    };
    wide(a) && wide(b) && a.bytes == b.bytes && [a, b].iter().all(|x| x.offset.is_multiple_of(x.bytes))
}
