//! Whether two threads access the same bytes, one of them writing, with nothing that orders them.

use std::collections::HashSet;

use super::barriers::{self, Divergence, Round, Rounds, Stops};
use super::decide::contradicts;
use super::lasting::{self, Before, Lasting, Past, Towards};
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
    let stops = Stops::new(walk, &divergence);
    let places = barriers::places(walk);
    let intervals = stops.intervals(walk, &places);
    let complete = lasting::single_phases(walk, |walk, at| {
        Pairs::new(walk, &divergence, &Lasting::default()).is_single(at)
    });
    let lasting = Lasting::new(walk, &stops, &places, complete);
    let mut pairs = Pairs::new(walk, &divergence, &lasting);
    for (barrier, interval) in &intervals {
        let all: Vec<_> = interval.iter().collect();
        for (at, (a, of_a)) in all.iter().enumerate() {
            for (b, of_b) in &all[at..] {
                pairs.block(*a, *b, of_a, of_b);
            }
        }
        let pending = barrier.and_then(|at| lasting.pending.get(&at));
        let pending: Vec<_> = pending.into_iter().flatten().collect();
        for (at, (a, of_a, towards)) in pending.iter().enumerate() {
            for (b, of_b) in &all {
                pairs.pending(*a, *b, of_a, of_b, *towards);
            }
            for (b, of_b, others) in &pending[at..] {
                pairs.both_pending((*a, of_a, *towards), (*b, of_b, *others));
            }
        }
    }
    for (a, b, rounds, towards) in &lasting.own {
        pairs.own(*a, *b, rounds, *towards);
    }
    for a in 0..pairs.walk.accesses.len() {
        for b in a..pairs.walk.accesses.len() {
            pairs.grid(a, b);
        }
    }
    if lasting.is_cut {
        pairs.gaps.push(Gap::at(pairs.walk.function, BlockId(0), 0, Reason::TooLarge));
    }
    let Pairs { done: obligations, mut gaps, .. } = pairs;
    if let (Some((block, index)), false) = (stops.divergent, gaps.is_empty()) {
        gaps.push(Gap::at(walk.function, block, index, Reason::DivergentBarrier));
    }
    Decision::of(obligations, gaps)
}

struct Pairs<'a, 'm> {
    walk: &'a mut Walk<'m>,
    divergence: &'a Divergence,
    lasting: &'a Lasting,
    gaps: Vec<Gap>,
    done: usize,
    /// Pairs of accesses of which one goes on, and that are apart.
    seen: HashSet<(usize, usize, bool, Counters)>,
}

/// How the second thread's counters of loops depend on those of the first, by headers.
type Counters = Vec<(u32, Counter)>;

/// Which threads are held against each other: the unknowns of the first that the second shares, and what makes them two.
#[derive(Clone)]
struct Case {
    same_block: bool,
    /// Axes on which they agree.
    equal: Vec<Axis>,
    /// The axis on which they do not, and whether the first comes first; without one they are one thread.
    apart: Option<(Axis, bool)>,
    counters: Counters,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Counter {
    /// So many rounds later than the first thread's.
    Later(i128),
    /// At least so many rounds later.
    AtLeast(i128),
    /// Those that are known.
    Fixed(Option<i128>, Option<i128>),
    /// The same number, of loops that need not have been entered together.
    Equal,
}

impl<'a, 'm> Pairs<'a, 'm> {
    fn new(walk: &'a mut Walk<'m>, divergence: &'a Divergence, lasting: &'a Lasting) -> Self {
        let gaps = walk.gaps.clone();
        Self { walk, divergence, lasting, gaps, done: 0, seen: HashSet::new() }
    }

    fn may_conflict(&self, a: usize, b: usize, same_block: bool) -> bool {
        let [a, b] = [a, b].map(|at| &self.walk.accesses[at]);
        let exclusive = matches!(a.space, StateSpace::Local | StateSpace::Const | StateSpace::Param);
        let reads = a.action == Action::Load && b.action == Action::Load;
        !(a.array != b.array || exclusive || reads || are_atomic(a, b, same_block))
    }

    /// The same of two accesses of a block, of which one may always have ended before the other.
    fn may_meet(&self, a: usize, b: usize) -> bool {
        let [one, other] = [a, b].map(|at| &self.walk.accesses[at]);
        self.may_conflict(a, b, true)
            && !self.lasting.ends_before(self.walk, one, other)
            && !self.lasting.ends_before(self.walk, other, one)
    }

    /// Two accesses of a block between the same barriers.
    fn block(&mut self, a: usize, b: usize, of_a: &Rounds, of_b: &Rounds) {
        if !self.may_meet(a, b) {
            return;
        }
        let mut counters = Vec::new();
        for (header, round) in of_a {
            match (round, of_b.get(header)) {
                (Round::After(x), Some(Round::After(y))) => {
                    counters.push((header.0, Counter::Later(i128::from(*y) - i128::from(*x))));
                }
                (Round::Since(x), Some(Round::Since(y))) => {
                    counters.push((header.0, fixed(*x, *y)));
                }
                _ => {}
            }
        }
        let symmetric = a == b && of_a == of_b;
        let axes = self.axes(Kind::Ntid);
        self.pair(a, b, true, &axes, symmetric, &counters);
        // Lanes that do parts of an access have accesses of their own.
        if a != b && [a, b].iter().any(|at| self.walk.accesses[*at].is_of_warp) {
            self.one_thread(a, b, counters);
        }
    }

    /// An access that goes on behind a barrier, and one behind it.
    fn pending(&mut self, a: usize, b: usize, of_a: &Past, of_b: &Rounds, towards: Towards) {
        if !self.is_meant(b, towards) || !self.may_meet(a, b) {
            return;
        }
        let mut counters = Vec::new();
        for (header, round) in of_b {
            let counter = match (of_a.get(header), round) {
                (Some(Before::Rounds(x)), Round::After(y)) => Counter::Later(i128::from(*x) + i128::from(*y)),
                (Some(Before::Beyond(x)), Round::After(y)) => {
                    Counter::AtLeast(i128::from(*x) + i128::from(*y))
                }
                (Some(Before::Loop(x)), Round::After(y)) => {
                    Counter::Fixed(None, Some(i128::from(*x) + i128::from(*y)))
                }
                (None, Round::Since(y)) => Counter::Fixed(None, Some(i128::from(*y))),
                _ => continue,
            };
            counters.push((header.0, counter));
        }
        self.two_threads(a, b, false, counters);
    }

    /// Two accesses that go on behind a barrier.
    fn both_pending(&mut self, a: (usize, &Past, Towards), b: (usize, &Past, Towards)) {
        let is_meant = self.is_meant(b.0, a.2) && self.is_meant(a.0, b.2);
        if !is_meant || !self.may_meet(a.0, b.0) {
            return;
        }
        let mut counters = Vec::new();
        for (header, of_a) in a.1 {
            let counter = match (of_a, b.1.get(header)) {
                (Before::Rounds(x), Some(Before::Rounds(y))) => {
                    Counter::Later(i128::from(*x) - i128::from(*y))
                }
                (Before::Rounds(x), Some(Before::Loop(y))) => {
                    Counter::Fixed(Some(i128::from(*y) - i128::from(*x)), None)
                }
                (Before::Loop(x), Some(Before::Rounds(y))) => {
                    Counter::Fixed(None, Some(i128::from(*x) - i128::from(*y)))
                }
                _ => continue,
            };
            counters.push((header.0, counter));
        }
        self.two_threads(a.0, b.0, a == b, counters);
    }

    /// An access of a thread while another one of its own goes on.
    fn own(&mut self, a: usize, b: usize, of_b: &Rounds, towards: Towards) {
        if !self.is_meant(b, towards) || !self.may_meet(a, b) {
            return;
        }
        let counter = |round: &Round| match round {
            Round::After(y) => Some(Counter::Later(i128::from(*y))),
            Round::Since(y) => Some(Counter::Fixed(None, Some(i128::from(*y)))),
            Round::Beyond(y) => Some(Counter::AtLeast(i128::from(*y))),
            Round::Free => None,
        };
        let counters = of_b.iter().filter_map(|(header, round)| Some((header.0, counter(round)?))).collect();
        self.one_thread(a, b, counters);
    }

    fn is_meant(&self, b: usize, towards: Towards) -> bool {
        towards == Towards::All || self.walk.accesses[b].is_proxied
    }

    fn two_threads(&mut self, a: usize, b: usize, symmetric: bool, counters: Counters) {
        if self.seen.insert((a, b, true, counters.clone())) {
            let axes = self.axes(Kind::Ntid);
            self.pair(a, b, true, &axes, symmetric, &counters);
        }
    }

    fn one_thread(&mut self, a: usize, b: usize, counters: Counters) {
        if self.seen.insert((a, b, false, counters.clone())) {
            let equal = AXES.map(|(axis, _)| axis).to_vec();
            self.cases(a, b, true, &[Case { same_block: true, equal, apart: None, counters }]);
        }
    }

    /// Whether no two threads of a block make an access.
    fn is_single(&mut self, at: usize) -> bool {
        let axes = self.axes(Kind::Ntid);
        (0..axes.len()).all(|a| {
            let (equal, apart) = (axes[..a].to_vec(), Some((axes[a], true)));
            let case = Case { same_block: true, equal, apart, counters: Vec::new() };
            let system = self.system(at, at, &case, &[], false);
            system.is_some_and(|system| contradicts(&mut self.walk.terms, &[], &system))
        })
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
        let mut all = Vec::new();
        for (at, axis) in axes.iter().enumerate() {
            for first in [true, false] {
                if first || !symmetric {
                    let (equal, apart) = (axes[..at].to_vec(), Some((*axis, first)));
                    all.push(Case { same_block, equal, apart, counters: counters.to_vec() });
                }
            }
        }
        self.cases(a, b, same_block, &all);
    }

    fn cases(&mut self, a: usize, b: usize, same_block: bool, cases: &[Case]) {
        // No loop has rounds before the first.
        let is_before = |(_, counter): &(u32, Counter)| match counter {
            Counter::Fixed(x, y) => [x, y].into_iter().flatten().any(|round| *round < 0),
            _ => false,
        };
        if cases.iter().any(|case| case.counters.iter().any(is_before)) {
            return;
        }
        self.done += 1;
        if self.gaps.len() >= LISTED {
            return;
        }
        let too_many = self.done > PAIRS || self.walk.terms.is_spent();
        let apart = !too_many && cases.iter().all(|case| self.are_apart(a, b, case, 2));
        if !apart {
            let [one, other] = [a, b].map(|at| &self.walk.accesses[at]);
            let is_one_thread = cases.iter().any(|case| case.apart.is_none());
            let reason = match (too_many, is_one_thread && !one.is_of_warp && !other.is_of_warp) {
                (true, _) => Reason::TooLarge,
                (false, true) => Reason::NotWaited,
                (false, false) => Reason::Race { same_block },
            };
            let mut gap = Gap::at(self.walk.function, one.block, one.index, reason);
            gap.other = Some(self.walk.function.blocks[other.block.0 as usize].location(other.index));
            if !self.gaps.contains(&gap) {
                self.gaps.push(gap);
            }
        }
    }

    /// Whether two accesses never meet in a case. Counters of loops that nothing ties together are compared, `splits` of them.
    fn are_apart(&mut self, a: usize, b: usize, case: &Case, splits: u32) -> bool {
        let Some(system) = self.system(a, b, case, &[], true) else { return false };
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
            let Some(system) = self.system(a, b, case, &[earlier], true) else { return false };
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
                Counter::Fixed(x, y) => x.is_some() && x == y,
                Counter::AtLeast(_) | Counter::Equal => false,
            })
        };
        let carried = walk.carried.keys().map(|(header, register)| (*header, *register));
        let shared = carried.filter(|(header, register)| {
            let mut around = walk.loops.iter().filter(|l| l.members.contains(header));
            case.same_block
                && around.all(|l| together(l.header))
                && (case.apart.is_none() || self.divergence.is_carried_uniformly(walk, header.0, *register))
        });
        shared.map(|(header, register)| (header.0, register)).collect()
    }

    /// Facts that hold if the accesses of two threads meet, or if both are made.
    fn system(
        &mut self,
        a: usize,
        b: usize,
        case: &Case,
        more: &[Formula],
        meet: bool,
    ) -> Option<Vec<Formula>> {
        let [one, other] = [a, b].map(|at| self.walk.accesses[at].clone());
        let shared = self.shared(case);
        let terms = &mut self.walk.terms;
        let first = |_: &mut Terms, kind: &Kind| match kind {
            Kind::Counter { header, .. } => match case.counters.iter().find(|(h, _)| h == header)?.1 {
                Counter::Fixed(round, _) => Poly::constant(round?),
                Counter::Later(_) | Counter::AtLeast(_) | Counter::Equal => None,
            },
            _ => None,
        };
        let second = |terms: &mut Terms, kind: &Kind| rename(terms, kind, case, &shared);
        let mut system = Vec::new();
        if meet {
            let mut at_first = |p| terms.replace(p, &first);
            let (offset, bytes) = (at_first(&one.offset)?, at_first(&one.bytes)?);
            let mut at_second = |p| terms.replace_for(1, p, &second);
            system = meeting(&offset, &bytes, &at_second(&other.offset)?, &at_second(&other.bytes)?)?;
        }
        if let Some((axis, is_first)) = case.apart {
            let index = |terms: &mut Terms, thread| {
                let kind = if case.same_block { Kind::Tid(axis, thread) } else { Kind::Ctaid(axis, thread) };
                terms.value(kind)
            };
            let (x, y) = (index(terms, 0), index(terms, 1));
            let (less, greater) = if is_first { (x, y) } else { (y, x) };
            system.push(Formula::AtLeast(greater.minus(&less)?.plus_constant(-1)?));
        }
        for (header, counter) in &case.counters {
            let mut of = |thread| Poly::from(terms.atom(Kind::Counter { header: *header, thread }));
            match counter {
                Counter::Later(by) => system.push(Formula::AtLeast(of(0).plus_constant(*by)?)),
                Counter::AtLeast(by) => {
                    system.push(Formula::AtLeast(of(1).minus(&of(0))?.plus_constant(-by)?));
                }
                Counter::Fixed(..) | Counter::Equal => {}
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
            Some((_, Counter::Fixed(_, Some(round)))) => return Poly::constant(*round),
            Some((_, Counter::Fixed(_, None) | Counter::AtLeast(_))) => {
                Kind::Counter { header: *header, thread: 1 }
            }
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
fn meeting(a: &Poly, a_bytes: &Poly, b: &Poly, b_bytes: &Poly) -> Option<Vec<Formula>> {
    let difference = a.minus(b)?;
    if let Some(bytes) = a_bytes.as_constant()
        && a_bytes == b_bytes
        && a.is_multiple_of(bytes)
        && b.is_multiple_of(bytes)
    {
        return Some(vec![Formula::equal(&difference)]);
    }
    let before_end = b_bytes.minus(&difference)?.plus_constant(-1)?;
    let behind_start = a_bytes.plus(&difference)?.plus_constant(-1)?;
    Some(vec![Formula::AtLeast(before_end), Formula::AtLeast(behind_start)])
}

/// Counters of loops of which both are known.
fn fixed(x: u8, y: u8) -> Counter {
    Counter::Fixed(Some(i128::from(x)), Some(i128::from(y)))
}

/// Whether both are atomic for each other: two atomic operations, or two on an mbarrier.
fn are_atomic(a: &Access, b: &Access, same_block: bool) -> bool {
    let wide = |access: &Access| match access.action {
        Action::Atomic(scope) => same_block || matches!(scope, Scope::Gpu | Scope::Sys),
        _ => false,
    };
    let is_aligned = |x: &Access| x.bytes.as_constant().is_some_and(|bytes| x.offset.is_multiple_of(bytes));
    let are_alike = a.bytes == b.bytes && a.object.is_some() == b.object.is_some();
    wide(a) && wide(b) && are_alike && is_aligned(a) && is_aligned(b)
}
