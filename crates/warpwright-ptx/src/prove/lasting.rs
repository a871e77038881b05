//! Accesses that go on behind their instruction: asynchronous copies until they are waited for, and what was written generically
//! until the asynchronous proxy knows of it.
//!
//! From each such access all ways are followed to where it has ended. What its own thread accesses on the way is beside it, and
//! where the way passes a barrier it goes on in the next interval. A wait ends what its own thread has issued; for other
//! threads that shows behind a barrier. The phase of an mbarrier that completes only once, and with all bytes, ends its copies for
//! whoever waits for it.

use std::collections::{BTreeMap, BTreeSet};

use super::barriers::{Places, Round, Rounds, Stops};
use super::decide::implies;
use super::walk::{Access, Action, Object, Place, Until, Walk};
use crate::inst::*;
use crate::types::StateSpace;

/// Rounds of a loop that are told apart behind an access.
const ROUNDS: u8 = 7;
/// Groups behind an access that are counted.
const GROUPS: u32 = 16;
/// Steps on all ways from all accesses.
const STEPS: usize = 400_000;

/// When an access began that a barrier does not end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Before {
    /// So many rounds of the loop before.
    Rounds(u8),
    /// At least so many rounds of the loop before.
    Beyond(u8),
    /// Before the loop was entered, of which this is the round from 0.
    Loop(u8),
}

/// Loops by their headers; those that are left out say nothing.
pub(super) type Past = BTreeMap<BlockId, Before>;

/// Accesses that go on, by their numbers.
pub(super) type Pending = BTreeSet<(usize, Past, Towards)>;

/// Whether an access matters to all others, or to those of the asynchronous proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Towards {
    All,
    Proxy,
}

/// Accesses that go on, and where.
#[derive(Debug, Default)]
pub(super) struct Lasting {
    /// By barrier: the accesses that go on behind it.
    pub(super) pending: BTreeMap<(BlockId, usize), Pending>,
    /// Accesses of one thread, the second while the first goes on.
    pub(super) own: BTreeSet<(usize, usize, Rounds, Towards)>,
    /// By mbarrier whose only phase ends its copies: where it has completed.
    complete: BTreeMap<Place, Vec<BlockId>>,
    /// Whether there was too much to follow.
    pub(super) is_cut: bool,
}

impl Lasting {
    pub(super) fn new(
        walk: &Walk<'_>,
        stops: &Stops,
        places: &Places,
        complete: BTreeMap<Place, Vec<BlockId>>,
    ) -> Self {
        let mut this = Self { complete, ..Self::default() };
        let mut steps = STEPS;
        for at in 0..walk.accesses.len() {
            let access = &walk.accesses[at];
            let is_read_by_proxy = || walk.accesses.iter().any(|a| a.is_proxied && a.array == access.array);
            let needs_fence = !access.is_proxied && access.action != Action::Load && is_read_by_proxy();
            if access.until != Until::Done || needs_fence {
                this.follow(walk, stops, places, at, needs_fence, &mut steps);
            }
        }
        this.is_cut = steps == 0;
        this
    }

    /// Whether the copy `a` has ended wherever `b` is reached.
    pub(super) fn ends_before(&self, walk: &Walk<'_>, a: &Access, b: &Access) -> bool {
        let Until::Phase(Some(place)) = a.until else { return false };
        self.complete.get(&place).is_some_and(|all| all.iter().any(|at| walk.cfg.dominates(*at, b.block)))
    }

    fn follow(
        &mut self,
        walk: &Walk<'_>,
        stops: &Stops,
        places: &Places,
        number: usize,
        needs_fence: bool,
        steps: &mut usize,
    ) {
        let access = &walk.accesses[number];
        let way = Way {
            walk,
            access,
            guard: walk.function.blocks[access.block.0 as usize].instructions[access.index].guard,
        };
        let around = walk.loops.iter().filter(|l| l.members.contains(&access.block));
        let rounds: Rounds = around.map(|l| (l.header, Round::After(0))).collect();
        let is_done = access.until == Until::Done;
        let start = Point {
            block: access.block,
            index: access.index + 1,
            rounds,
            on_way: OnWay { groups: 0, is_done, is_known: !needs_fence, has_guard: true },
        };
        let mut seen = BTreeSet::new();
        let mut todo = vec![start];
        while let Some(mut point) = todo.pop() {
            if !seen.insert(point.clone()) {
                continue;
            }
            *steps = steps.saturating_sub(1);
            if *steps == 0 {
                return;
            }
            if self.block(&way, stops, places, number, &mut point) {
                continue;
            }
            for to in walk.cfg.successors(point.block) {
                let rounds = stops.across(walk, point.block, *to, &point.rounds, ROUNDS);
                todo.push(Point { block: *to, index: 0, rounds, on_way: point.on_way });
            }
        }
    }

    /// Follows an access through the rest of a block; whether it ends there.
    fn block(
        &mut self,
        way: &Way<'_, '_>,
        stops: &Stops,
        places: &Places,
        number: usize,
        point: &mut Point,
    ) -> bool {
        let (walk, access) = (way.walk, way.access);
        let phase = match access.until {
            Until::Phase(Some(place)) => self.complete.get(&place),
            _ => None,
        };
        if point.index == 0 && phase.is_some_and(|all| all.contains(&point.block)) {
            return true;
        }
        let inside = places.get(&point.block).map_or(&[][..], Vec::as_slice);
        let instructions = &walk.function.blocks[point.block.0 as usize].instructions;
        for (index, instruction) in instructions.iter().enumerate().skip(point.index) {
            let towards = if point.on_way.is_done { Towards::Proxy } else { Towards::All };
            for (_, other) in inside.iter().filter(|(at, _)| *at == index) {
                let met = (number, *other, point.rounds.clone(), towards);
                if towards == Towards::All || walk.accesses[*other].is_proxied {
                    self.own.insert(met);
                }
            }
            way.pass(instruction, &mut point.on_way);
            if point.on_way.is_done && point.on_way.is_known {
                return true;
            }
            if stops.is_barrier(point.block, index) {
                let towards = if point.on_way.is_done { Towards::Proxy } else { Towards::All };
                let past = past(walk, point.block, &point.rounds, access.block);
                self.pending.entry((point.block, index)).or_default().insert((number, past, towards));
            }
        }
        false
    }
}

/// When the access began, seen from a barrier on its way.
fn past(walk: &Walk<'_>, barrier: BlockId, rounds: &Rounds, began: BlockId) -> Past {
    let around = walk.loops.iter().filter(|l| l.members.contains(&barrier));
    let of = |header: BlockId, has_begun: bool| match rounds.get(&header)? {
        Round::After(n) if has_begun => Some(Before::Rounds(*n)),
        Round::Beyond(n) if has_begun => Some(Before::Beyond(*n)),
        Round::Since(n) => Some(Before::Loop(*n)),
        _ => None,
    };
    around.filter_map(|l| Some((l.header, of(l.header, l.members.contains(&began))?))).collect()
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Point {
    block: BlockId,
    index: usize,
    rounds: Rounds,
    on_way: OnWay,
}

/// The deeds of a thread since it began an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct OnWay {
    /// Groups that it closed: the first has the access.
    groups: u32,
    /// Whether the access has ended.
    is_done: bool,
    /// Whether the asynchronous proxy knows of it.
    is_known: bool,
    /// Whether the predicate that guarded the access has its value still.
    has_guard: bool,
}

/// An access whose ways are followed.
struct Way<'a, 'm> {
    walk: &'a Walk<'m>,
    access: &'a Access,
    guard: Option<PredUse>,
}

impl Way<'_, '_> {
    fn pass(&self, instruction: &Instruction, on_way: &mut OnWay) {
        if instruction.guard.is_none() || (instruction.guard == self.guard && on_way.has_guard) {
            self.run(&instruction.inst, on_way);
        }
        if let Some(guard) = self.guard {
            instruction.inst.visit(|role, r| on_way.has_guard &= role != Role::Def || r != guard.reg);
        }
    }

    fn run(&self, inst: &Inst, on_way: &mut OnWay) {
        let bulk = self.access.until == Until::BulkGroup;
        let copies = self.access.until == Until::CopyGroup;
        let ends = |pending: u32| on_way.groups > pending;
        match inst {
            Inst::CpAsyncCommit if copies => on_way.groups = (on_way.groups + 1).min(GROUPS),
            Inst::BulkCommit if bulk => on_way.groups = (on_way.groups + 1).min(GROUPS),
            Inst::CpAsyncWait { pending } if copies => on_way.is_done |= pending.is_none_or(ends),
            Inst::BulkWait { read, pending } if bulk => {
                on_way.is_done |= (!read || self.access.action == Action::Load) && ends(*pending);
            }
            Inst::ProxyFence(ProxyFence::Async(space)) if on_way.is_done => {
                let covers = match space {
                    StateSpace::Generic => true,
                    StateSpace::SharedCluster => self.access.space == StateSpace::Shared,
                    space => *space == self.access.space,
                };
                on_way.is_known |= covers;
            }
            Inst::MbarrierInitFence => {
                on_way.is_known |= matches!(self.access.object, Some(Object::Init { .. }));
            }
            _ => {}
        }
    }
}

/// Mbarriers of whose phases only one completes, once all copies that they count have ended, and the blocks that are only
/// reached behind it. `is_single` says whether no two threads make an access.
pub(super) fn single_phases(
    walk: &mut Walk<'_>,
    mut is_single: impl FnMut(&mut Walk<'_>, usize) -> bool,
) -> BTreeMap<Place, Vec<BlockId>> {
    let inits = walk.accesses.iter().filter(|access| matches!(access.object, Some(Object::Init { .. })));
    let known: BTreeSet<Place> = inits.filter_map(Access::place).collect();
    let mut complete = BTreeMap::new();
    for place in known {
        // Whatever may be done to it.
        let touches = |access: &Access| {
            access.array == place.0
                && (access.object.is_some() || access.action != Action::Load)
                && access.place().is_none_or(|other| other == place || access.object.is_none())
        };
        let here: Vec<usize> = (0..walk.accesses.len()).filter(|at| touches(&walk.accesses[*at])).collect();
        if let Some(blocks) = single_phase(walk, &here, &mut is_single) {
            complete.insert(place, blocks);
        }
    }
    complete
}

fn single_phase(
    walk: &mut Walk<'_>,
    here: &[usize],
    is_single: &mut impl FnMut(&mut Walk<'_>, usize) -> bool,
) -> Option<Vec<BlockId>> {
    let is_init = |at: &&usize| matches!(walk.accesses[**at].object, Some(Object::Init { count: Some(1) }));
    let init = walk.accesses[*here.iter().find(is_init)?].clone();
    let happens_once = |walk: &Walk<'_>, b: BlockId| !walk.loops.iter().any(|l| l.members.contains(&b));
    let (mut inits, mut expected, mut counted) = (0, Vec::new(), 0i128);
    let mut blocks = Vec::new();
    for at in here {
        let access = walk.accesses[*at].clone();
        access.place()?;
        let is_behind = walk.cfg.dominates(init.block, access.block)
            && (init.block != access.block || init.index <= access.index);
        if !is_behind {
            return None;
        }
        match access.object? {
            Object::Init { .. } if happens_once(walk, access.block) => inits += 1,
            Object::Expect { bytes } if happens_once(walk, access.block) && is_single(walk, *at) => {
                expected.push(bytes?);
            }
            Object::Complete { bytes } if happens_once(walk, access.block) && is_single(walk, *at) => {
                // Who copies has initialised it.
                let holds = |one| implies(&mut walk.terms, &access.conditions, one);
                if !init.conditions.iter().all(holds) {
                    return None;
                }
                counted = counted.checked_add(bytes?)?;
            }
            Object::Wait { parity: Some(0) } => blocks.extend(behind(walk, *at)),
            Object::Wait { .. } => {}
            _ => return None,
        }
    }
    (inits == 1 && expected == [counted]).then_some(blocks)
}

/// The block that is reached where the phase that an instruction asks for has completed, and from nowhere else.
fn behind(walk: &Walk<'_>, at: usize) -> Option<BlockId> {
    let access = &walk.accesses[at];
    let block = &walk.function.blocks[access.block.0 as usize];
    let instruction = &block.instructions[access.index];
    let (Inst::MbarrierWait { dst, .. }, None) = (&instruction.inst, instruction.guard) else { return None };
    let Terminator::Branch { pred, then, otherwise, .. } = &block.terminator else { return None };
    let mut is_kept = pred.reg == *dst;
    for later in &block.instructions[access.index + 1..] {
        later.inst.visit(|role, r| is_kept &= role != Role::Def || r != *dst);
    }
    let to = if pred.negated { *otherwise } else { *then };
    let is_only_way = then != otherwise && walk.cfg.predecessors(to) == [access.block];
    (is_kept && is_only_way).then_some(to)
}
