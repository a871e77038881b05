//! Which accesses happen between the same two barriers.
//!
//! A barrier orders the accesses of a block if all threads come to the same barriers in the same order: no branch around one depends
//! on the thread. What lies between is found from each barrier, and from the start, over all ways that meet no
//! further one. A way tells how the counters of loops differ from those at its start.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::poly::Poly;
use super::terms::{Formula, Kind};
use super::walk::Walk;
use crate::inst::*;

/// A counter of a loop at an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Round {
    /// So many rounds after that of the barrier at the start.
    After(u8),
    /// At least so many rounds after it.
    Beyond(u8),
    /// The loop was entered since, and this is the round from 0.
    Since(u8),
    /// Any.
    Free,
}

/// Counters of loops by their headers; those that are left out are free.
pub(super) type Rounds = BTreeMap<BlockId, Round>;

/// Values and branches that differ between the threads of a block.
#[derive(Debug, Default)]
pub(super) struct Divergence {
    /// Headers of loops that threads leave after different numbers of rounds.
    loops: HashSet<BlockId>,
    carried: HashSet<(BlockId, u32)>,
    /// Blocks that only some of the threads run at a time.
    blocks: HashSet<BlockId>,
}

impl Divergence {
    pub(super) fn new(walk: &Walk<'_>) -> Self {
        let mut this = Self::default();
        loop {
            let before = (this.loops.len(), this.carried.len(), this.blocks.len());
            for ((header, register), inputs) in &walk.carried {
                let latches = walk.loops.iter().find(|l| l.header == *header).map_or(0, |l| l.latches.len());
                let uniform = |input: &Option<Poly>| input.as_ref().is_some_and(|p| this.is_uniform(walk, p));
                if latches != 1 || !inputs.iter().all(uniform) {
                    this.carried.insert((*header, *register));
                }
            }
            for b in walk.cfg.reverse_postorder() {
                let divides = match &walk.function.blocks[b.0 as usize].terminator {
                    Terminator::Branch { .. } => {
                        let condition = walk.branches[b.0 as usize].as_ref();
                        !condition.is_some_and(|one| this.agrees(walk, one))
                    }
                    Terminator::BranchIndexed { .. } => true,
                    _ => false,
                };
                if divides {
                    this.divide(walk, *b);
                }
            }
            if before == (this.loops.len(), this.carried.len(), this.blocks.len()) {
                return this;
            }
        }
    }

    /// Marks what the threads that part at the end of a block run until they come together.
    fn divide(&mut self, walk: &Walk<'_>, b: BlockId) {
        let meet = walk.cfg.immediate_post_dominator(b);
        let mut region = HashSet::new();
        let mut todo: Vec<BlockId> = walk.cfg.successors(b).to_vec();
        while let Some(at) = todo.pop() {
            if Some(at) != meet && region.insert(at) {
                todo.extend(walk.cfg.successors(at));
            }
        }
        for l in walk.loops.iter().filter(|l| l.members.contains(&b)) {
            let leaves = |at: &BlockId| !l.members.contains(at);
            if meet.is_none_or(|meet| leaves(&meet)) || region.iter().any(leaves) {
                self.loops.insert(l.header);
            }
        }
        self.blocks.extend(region);
    }

    /// Whether all threads of a block have the same value, in the same round of all loops.
    pub(super) fn is_uniform(&self, walk: &Walk<'_>, poly: &Poly) -> bool {
        !walk.terms.depends(poly, &|_, kind| match kind {
            Kind::Tid(..) | Kind::Opaque { .. } | Kind::Choice { site: Some(_), .. } => true,
            Kind::Counter { header, .. } => self.loops.contains(&BlockId(*header)),
            Kind::Carried { header, register, .. } => {
                self.loops.contains(&BlockId(*header)) || !self.is_carried_uniformly(walk, *header, *register)
            }
            _ => false,
        })
    }

    /// Whether a register at the head of a loop is the same in all threads of a block that are in the same round.
    pub(super) fn is_carried_uniformly(&self, walk: &Walk<'_>, header: u32, register: u32) -> bool {
        let key = (BlockId(header), register);
        walk.carried.contains_key(&key) && !self.carried.contains(&key)
    }

    fn agrees(&self, walk: &Walk<'_>, formula: &Formula) -> bool {
        match formula {
            Formula::AtLeast(p) => self.is_uniform(walk, p),
            Formula::All(several) | Formula::Any(several) => several.iter().all(|one| self.agrees(walk, one)),
        }
    }
}

/// The accesses between two barriers: their numbers and rounds.
pub(super) type Interval = BTreeSet<(usize, Rounds)>;

/// Accesses by block, in order: instructions and their numbers.
pub(super) type Places = BTreeMap<BlockId, Vec<(usize, usize)>>;

/// The places of all accesses.
pub(super) fn places(walk: &Walk<'_>) -> Places {
    let mut places = Places::new();
    for (number, access) in walk.accesses.iter().enumerate() {
        places.entry(access.block).or_default().push((access.index, number));
    }
    places
}

/// The barriers that order the accesses of a block.
pub(super) struct Stops {
    barriers: BTreeMap<BlockId, Vec<usize>>,
    /// A barrier that orders nothing, because threads come to it differently.
    pub(super) divergent: Option<(BlockId, usize)>,
}

impl Stops {
    pub(super) fn new(walk: &Walk<'_>, divergence: &Divergence) -> Self {
        let mut barriers: BTreeMap<BlockId, Vec<usize>> = BTreeMap::new();
        let mut divergent = None;
        for b in walk.cfg.reverse_postorder() {
            for (index, instruction) in walk.function.blocks[b.0 as usize].instructions.iter().enumerate() {
                let Inst::Barrier {
                    kind: BarrierKind::Sync | BarrierKind::Reduce { .. },
                    id,
                    count: None,
                    ..
                } = &instruction.inst
                else {
                    continue;
                };
                if instruction.guard.is_none() && matches!(id, Operand::Imm(_)) {
                    barriers.entry(*b).or_default().push(index);
                    if divergence.blocks.contains(b) {
                        divergent.get_or_insert((*b, index));
                    }
                }
            }
        }
        if divergent.is_some() {
            barriers.clear();
        }
        Self { barriers, divergent }
    }

    pub(super) fn is_barrier(&self, block: BlockId, index: usize) -> bool {
        self.barriers.get(&block).is_some_and(|all| all.contains(&index))
    }

    /// The accesses between barriers, from the start and from each of them.
    pub(super) fn intervals(
        &self,
        walk: &Walk<'_>,
        places: &Places,
    ) -> Vec<(Option<(BlockId, usize)>, Interval)> {
        let search = Search { walk, stops: self, places };
        let mut intervals = vec![(None, search.from(BlockId(0), 0))];
        for (b, indices) in &self.barriers {
            let from = |index: &usize| (Some((*b, *index)), search.from(*b, index + 1));
            intervals.extend(indices.iter().map(from));
        }
        intervals
    }

    /// The rounds behind an edge, up to `most` of them.
    pub(super) fn across(
        &self,
        walk: &Walk<'_>,
        from: BlockId,
        to: BlockId,
        rounds: &Rounds,
        most: u8,
    ) -> Rounds {
        let mut rounds = rounds.clone();
        let Some(l) = walk.loops.iter().find(|l| l.header == to) else { return rounds };
        let has_barrier = l.members.iter().any(|b| self.barriers.contains_key(b));
        let next = if l.members.contains(&from) {
            match rounds.get(&to) {
                Some(Round::After(n)) if *n < most => Round::After(n + 1),
                Some(Round::After(n) | Round::Beyond(n)) => Round::Beyond((*n).max(most + 1)),
                Some(Round::Since(n)) if *n < most => Round::Since(n + 1),
                _ => Round::Free,
            }
        } else if has_barrier && !rounds.contains_key(&to) {
            Round::Since(0)
        } else {
            Round::Free
        };
        rounds.insert(to, next);
        rounds
    }
}

struct Search<'a> {
    walk: &'a Walk<'a>,
    stops: &'a Stops,
    places: &'a Places,
}

impl Search<'_> {
    /// Barriers and accesses that are met from instruction `index` of a block on before the next barrier.
    fn from(&self, b: BlockId, index: usize) -> Interval {
        let mut found = Interval::new();
        let around = self.walk.loops.iter().filter(|l| index > 0 && l.members.contains(&b));
        let rounds: Rounds = around.map(|l| (l.header, Round::After(0))).collect();
        let mut seen = BTreeSet::new();
        let mut todo = vec![(b, index, rounds)];
        if index == 0 && self.walk.loops.iter().any(|l| l.header == b) {
            todo[0].2.insert(b, Round::Free);
        }
        while let Some((b, index, rounds)) = todo.pop() {
            if !seen.insert((b, index, rounds.clone())) {
                continue;
            }
            let end =
                self.stops.barriers.get(&b).and_then(|all| all.iter().find(|at| **at >= index)).copied();
            let inside = self.places.get(&b).into_iter().flatten();
            let met = inside.filter(|(at, _)| *at >= index && end.is_none_or(|end| *at < end));
            found.extend(met.map(|(_, number)| (*number, rounds.clone())));
            if end.is_none() {
                for to in self.walk.cfg.successors(b) {
                    todo.push((*to, 0, self.stops.across(self.walk, b, *to, &rounds, 1)));
                }
            }
        }
        found
    }
}
