//! Which registers decide what a loop does: a slice of the part of a kernel that a warp went through.
//!
//! A warp that goes round in a part of the code leaves it, or changes what others see, only by what its *decisions* say:
//! the branches with an edge out of that part, and the branches that decide whether something runs that matters. What
//! matters are instructions with an effect (stores, atomics, arrivals, exchanges between lanes, calls) and those that
//! compute a value which a decision or an effect depends on. Loads and waits matter for their values, sleeps and fences not
//! at all, so the time that a loop sleeps and the counters and clocks that this is computed from are left out.
//!
//! This is the classical backward slice over data and control dependence, within the blocks that ran. It gives for each
//! place the registers whose values can still reach a decision or an effect (strong liveness): if they, the memory and
//! the places of the lanes are those of an earlier moment, and no other code ran in between, then the same happens again.
//! Inner loops whose own branches decide nothing else are taken to end; if one does not, the outer loop is not left either.
//!
//! Detours that did not run are followed too if they only lead back and have no effect, such as a longer sleep: the branch to
//! one does not leave the part.

use std::collections::{BTreeMap, BTreeSet};

use warpwright_ptx::{
    BarrierKind, Function, Inst, Instruction, Module, Operand, Ordering, Reg, Role, StateSpace, Terminator,
};

use crate::code::layout::Slot;
use crate::code::op::Op;
use crate::code::{Code, Place};

/// Instructions that were run, as intervals that do not touch each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Region(Vec<(u32, u32)>);

impl Region {
    /// Adds the instructions from `start` to before `end`.
    pub(crate) fn add(&mut self, start: u32, end: u32) {
        if start >= end || self.0.iter().any(|(a, b)| *a <= start && end <= *b) {
            return;
        }
        let mut new = (start, end);
        self.0.retain(|(a, b)| {
            let apart = *b < new.0 || new.1 < *a;
            if !apart {
                new = (new.0.min(*a), new.1.max(*b));
            }
            apart
        });
        let at = self.0.partition_point(|(a, _)| *a < new.0);
        self.0.insert(at, new);
    }

    pub(crate) fn join(&mut self, other: &Self) {
        other.0.iter().for_each(|(start, end)| self.add(*start, *end));
    }

    pub(crate) fn contains(&self, other: &Self) -> bool {
        other.0.iter().all(|(start, end)| self.0.iter().any(|(a, b)| a <= start && end <= b))
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    fn instructions(&self) -> impl Iterator<Item = u32> {
        self.0.iter().flat_map(|(start, end)| *start..*end)
    }
}

/// The registers that decide, for the places of a region.
#[derive(Debug, Default)]
pub(crate) struct Relevance {
    parts: BTreeMap<u32, Part>,
    /// The instructions that are followed: those that ran, and detours.
    pub(crate) covers: Region,
    /// Everything may decide: functions were called or left, which is not followed, or nothing is waited for, time included.
    pub(crate) opaque: bool,
    /// A value of a clock decides.
    pub(crate) timed: bool,
    /// Memory is read, or other threads are waited for: what runs is more than arithmetic.
    waits: bool,
    /// Values come from other warps through `bar.red`.
    pub(crate) reduces: bool,
    /// Memory is read that other clusters may write.
    pub(crate) outside: bool,
    /// An mbarrier is waited for so that the warp is parked.
    pub(crate) suspends: bool,
    /// Local memory is read.
    pub(crate) local: bool,
    /// The first instruction that polls.
    pub(crate) poll: Option<u32>,
    known: BTreeMap<u32, Option<Vec<Slot>>>,
}

/// The blocks of one function that ran.
#[derive(Debug, Default)]
struct Part {
    blocks: BTreeMap<u32, Node>,
    /// Blocks whose branch decides.
    decides: BTreeSet<u32>,
    /// Registers that hold what clocks say, or something computed from it.
    tainted: BTreeSet<Reg>,
}

#[derive(Debug, Default)]
struct Node {
    /// Blocks of the part that follow.
    next: Vec<u32>,
    /// Whether something else may follow.
    leaves: bool,
    live_in: BTreeSet<Reg>,
    /// Whether it has something that matters.
    matters: bool,
}

/// Whether an instruction matters whatever becomes of its results.
fn has_effect(inst: &Inst) -> bool {
    match inst {
        Inst::Ld { .. }
        | Inst::MbarrierWait { .. }
        | Inst::Nanosleep { .. }
        | Inst::Fence { .. }
        | Inst::FenceRestricted { .. }
        | Inst::ProxyFence(_)
        | Inst::MbarrierInitFence
        | Inst::Prefetch { .. }
        | Inst::PmEvent { .. }
        | Inst::Brkpt => false,
        // The carry flag is no register, so it is not followed.
        other => other.has_side_effects() || other.uses_carry(),
    }
}

/// The registers that an instruction reads, times of sleep aside, and those that it writes.
fn operands(instruction: &Instruction) -> (Vec<Reg>, Vec<Reg>) {
    let (mut uses, mut defs) = (Vec::new(), Vec::new());
    instruction.inst.visit(|role, r| match role {
        Role::Use => uses.push(r),
        Role::Def => defs.push(r),
    });
    if let Inst::MbarrierWait { nanoseconds: Some(Operand::Reg(_)), .. } = &instruction.inst {
        // The last one that is read.
        uses.pop();
    }
    uses.extend(instruction.guard.map(|g| g.reg));
    (uses, defs)
}

/// Whether an instruction reads what others may change, in a way that polling loops do.
fn polls(inst: &Inst) -> bool {
    match inst {
        Inst::Ld { ordering, .. } => *ordering != Ordering::WEAK,
        Inst::Atom { .. } | Inst::AtomVector { .. } | Inst::MbarrierWait { .. } => true,
        _ => false,
    }
}

/// Whether what an instruction does may depend on other threads.
fn waits(inst: &Inst) -> bool {
    match inst {
        Inst::Barrier { .. } | Inst::ClusterBarrier { .. } | Inst::MbarrierWait { .. } => true,
        _ => space(inst)
            .is_some_and(|s| !matches!(s, StateSpace::Param | StateSpace::Const | StateSpace::Local)),
    }
}

/// The spaces that an instruction reads.
fn space(inst: &Inst) -> Option<StateSpace> {
    match inst {
        Inst::Ld { space, .. }
        | Inst::Ldu { space, .. }
        | Inst::Atom { space, .. }
        | Inst::AtomVector { space, .. } => Some(*space),
        _ => None,
    }
}

fn function<'a>(code: &Code, module: &'a Module, at: u32) -> Option<&'a Function> {
    module.functions.get(code.functions.get(at as usize)?.index as usize)
}

impl Relevance {
    /// Slices the part of a kernel that ran.
    pub(crate) fn new(code: &Code, module: &Module, region: &Region) -> Self {
        let mut new = Self { covers: region.clone(), ..Self::default() };
        for pc in region.instructions() {
            let Some(place) = code.places.get(pc as usize) else { continue };
            new.parts.entry(place.function).or_default().blocks.entry(place.block).or_default();
            if new.poll.is_none() && instruction(code, module, *place).is_some_and(|i| polls(&i.inst)) {
                new.poll = Some(pc);
            }
        }
        let mut parts = std::mem::take(&mut new.parts);
        for (at, part) in &mut parts {
            let Some(f) = function(code, module, *at) else { continue };
            let detours = part.detours(f);
            for block in &detours {
                let pcs =
                    code.functions.get(*at as usize).map(|f| f.instructions(*block)).unwrap_or_default();
                new.covers.add(pcs.start, pcs.end);
                part.blocks.entry(*block).or_default();
            }
            part.connect(code, *at, f);
            new.look(f, part);
            part.taint(code, *at, f);
            part.slice(f);
            let clock = |r: &Reg| part.tainted.contains(r);
            new.timed |= part.blocks.values().any(|n| n.live_in.iter().any(clock))
                || part.decides.iter().any(|b| {
                    f.blocks
                        .get(*b as usize)
                        .and_then(|b| b.terminator.condition())
                        .is_some_and(|r| clock(&r))
                })
                || part.reads_clocks(f);
        }
        new.opaque |= !new.waits && !new.timed;
        new.parts = parts;
        new
    }

    /// Looks for what cannot be followed.
    fn look(&mut self, f: &Function, part: &Part) {
        for block in part.blocks.keys().filter_map(|b| f.blocks.get(*b as usize)) {
            self.opaque |=
                f.kind != warpwright_ptx::FunctionKind::Entry && matches!(block.terminator, Terminator::Ret);
            for instruction in &block.instructions {
                self.opaque |= matches!(instruction.inst, Inst::Call { .. });
                self.reduces |=
                    matches!(instruction.inst, Inst::Barrier { kind: BarrierKind::Reduce { .. }, .. });
                self.waits |= waits(&instruction.inst);
                self.suspends |= matches!(instruction.inst, Inst::MbarrierWait { try_wait: true, .. });
                let space = space(&instruction.inst);
                self.local |= matches!(space, Some(StateSpace::Local | StateSpace::Generic));
                self.outside |= matches!(space, Some(StateSpace::Global | StateSpace::Generic));
            }
        }
    }

    /// The rows that decide what lanes at an instruction do, clocks aside; `None` if it is not in the region.
    pub(crate) fn at(&mut self, code: &Code, module: &Module, pc: u32) -> Option<&[Slot]> {
        let parts = &self.parts;
        let slots = self.known.entry(pc).or_insert_with(|| {
            let place = code.places.get(pc as usize)?;
            let part = parts.get(&place.function)?;
            let f = function(code, module, place.function)?;
            let live = part.live_before(f, place.block, place.instruction as usize)?;
            let slots = &code.functions.get(place.function as usize)?.slots;
            let slot = |r: &Reg| slots.get(r.0 as usize).copied().flatten();
            Some(live.iter().filter(|r| !part.tainted.contains(r)).filter_map(slot).collect())
        });
        slots.as_deref()
    }
}

fn instruction<'a>(code: &Code, module: &'a Module, place: Place) -> Option<&'a Instruction> {
    let f = function(code, module, place.function)?;
    f.blocks.get(place.block as usize)?.instructions.get(place.instruction as usize)
}

/// Blocks that a detour may have.
const MAX_DETOUR: usize = 32;

impl Part {
    /// The blocks of detours: from where every way leads back, and nothing with an effect lies on it.
    fn detours(&self, f: &Function) -> BTreeSet<u32> {
        let mut detours = BTreeSet::new();
        let known = |b: u32, detours: &BTreeSet<u32>| self.blocks.contains_key(&b) || detours.contains(&b);
        let blocks = self.blocks.keys().filter_map(|b| f.blocks.get(*b as usize));
        for first in blocks.flat_map(|b| b.terminator.successors()).map(|b| b.0) {
            let (mut seen, mut todo) = (BTreeSet::new(), vec![first]);
            while let Some(b) = todo.pop().filter(|_| seen.len() < MAX_DETOUR) {
                let Some(block) = f.blocks.get(b as usize) else { break };
                if known(b, &detours) || seen.contains(&b) {
                    continue;
                }
                let ends = block.terminator.successors().next().is_none();
                if ends || block.instructions.iter().any(|i| has_effect(&i.inst)) {
                    // What is left says that it is none.
                    todo.push(b);
                    break;
                }
                seen.insert(b);
                todo.extend(block.terminator.successors().map(|b| b.0));
            }
            if todo.is_empty() {
                detours.extend(seen);
            }
        }
        detours
    }

    /// Finds the edges between the blocks.
    fn connect(&mut self, code: &Code, at: u32, f: &Function) {
        let Some(function) = code.functions.get(at as usize) else { return };
        // Blocks without an instruction are never seen to run.
        let resolve = |mut b: u32| {
            for _ in 0..f.blocks.len() {
                match f.blocks.get(b as usize).map(|block| &block.terminator) {
                    Some(Terminator::Jump { to, .. }) if function.instructions(b).is_empty() => b = to.0,
                    _ => break,
                }
            }
            b
        };
        let here: BTreeSet<u32> = self.blocks.keys().copied().collect();
        for (b, node) in &mut self.blocks {
            let Some(block) = f.blocks.get(*b as usize) else { continue };
            node.leaves = matches!(block.terminator, Terminator::Ret | Terminator::Exit);
            for next in block.terminator.successors() {
                let next = resolve(next.0);
                if here.contains(&next) {
                    node.next.push(next);
                } else {
                    node.leaves = true;
                }
            }
        }
    }

    /// Finds the registers that follow clocks.
    fn taint(&mut self, code: &Code, at: u32, f: &Function) {
        let Some(function) = code.functions.get(at as usize) else { return };
        for b in self.blocks.keys() {
            for pc in function.instructions(*b) {
                if matches!(code.ins.get(pc as usize).map(|i| i.op), Some(Op::Special(_)))
                    && let Some(place) = code.places.get(pc as usize)
                    && let Some(i) =
                        f.blocks.get(*b as usize).and_then(|x| x.instructions.get(place.instruction as usize))
                {
                    self.tainted.extend(operands(i).1);
                }
            }
        }
        let mut before = usize::MAX;
        while !self.tainted.is_empty() && before != self.tainted.len() {
            before = self.tainted.len();
            for block in self.blocks.keys().filter_map(|b| f.blocks.get(*b as usize)) {
                for i in &block.instructions {
                    let (uses, defs) = operands(i);
                    if uses.iter().any(|r| self.tainted.contains(r)) {
                        self.tainted.extend(defs);
                    }
                }
            }
        }
    }

    /// Whether something with an effect reads what clocks say.
    fn reads_clocks(&self, f: &Function) -> bool {
        let blocks = self.blocks.keys().filter_map(|b| f.blocks.get(*b as usize));
        let effects = blocks.flat_map(|b| &b.instructions).filter(|i| has_effect(&i.inst));
        effects.flat_map(|i| operands(i).0).any(|r| self.tainted.contains(&r))
    }

    /// Adds decisions until none is missing.
    fn slice(&mut self, f: &Function) {
        let conditional =
            |b: &u32| f.blocks.get(*b as usize).and_then(|b| b.terminator.condition()).is_some();
        let branches: Vec<u32> = self.blocks.keys().copied().filter(conditional).collect();
        let behind = self.post_dominators();
        let closed = self.blocks.keys().any(|b| behind.get(b).is_none_or(Option::is_none));
        self.decides = branches.iter().copied().filter(|b| closed || self.blocks[b].leaves).collect();
        loop {
            self.flow(f);
            let matters: Vec<u32> = self
                .blocks
                .iter()
                .filter(|(b, n)| n.matters || self.decides.contains(b))
                .map(|(b, _)| *b)
                .collect();
            let passes =
                |from: u32, x: u32| behind.get(&from).and_then(Option::as_ref).is_none_or(|p| p.contains(&x));
            let depends = |b: u32| {
                // One way leads there in any case, and the branch itself does not.
                let next = &self.blocks[&b].next;
                matters.iter().any(|x| next.iter().any(|s| passes(*s, *x)) && !(b != *x && passes(b, *x)))
            };
            let new: Vec<u32> =
                branches.iter().copied().filter(|b| !self.decides.contains(b) && depends(*b)).collect();
            if new.is_empty() {
                return;
            }
            self.decides.extend(new);
        }
    }

    /// For each block those that every way out of the region passes; `None` where no way leads out.
    fn post_dominators(&self) -> BTreeMap<u32, Option<BTreeSet<u32>>> {
        let mut behind: BTreeMap<u32, Option<BTreeSet<u32>>> =
            self.blocks.keys().map(|b| (*b, None)).collect();
        let mut changed = true;
        while changed {
            changed = false;
            for (b, node) in self.blocks.iter().rev() {
                let mut all = node.leaves.then(BTreeSet::new);
                for next in &node.next {
                    if let Some(Some(next)) = behind.get(next) {
                        all = Some(match all {
                            Some(all) => all.intersection(next).copied().collect(),
                            None => next.clone(),
                        });
                    }
                }
                if let Some(all) = &mut all {
                    all.insert(*b);
                }
                if behind.get(b) != Some(&all) {
                    behind.insert(*b, all);
                    changed = true;
                }
            }
        }
        behind
    }

    /// Computes what is alive with the present decisions.
    fn flow(&mut self, f: &Function) {
        let mut changed = true;
        while changed {
            changed = false;
            let blocks: Vec<u32> = self.blocks.keys().rev().copied().collect();
            for b in blocks {
                let Some((live, matters)) = self.walk(f, b, 0) else { continue };
                if let Some(node) = self.blocks.get_mut(&b)
                    && (node.live_in != live || node.matters != matters)
                {
                    (node.live_in, node.matters) = (live, matters);
                    changed = true;
                }
            }
        }
    }

    fn live_before(&self, f: &Function, block: u32, instruction: usize) -> Option<BTreeSet<Reg>> {
        Some(self.walk(f, block, instruction)?.0)
    }

    /// Registers alive before an instruction of a block, and whether something from there on matters.
    fn walk(&self, f: &Function, block: u32, first: usize) -> Option<(BTreeSet<Reg>, bool)> {
        let node = self.blocks.get(&block)?;
        let text = f.blocks.get(block as usize)?;
        let mut live = BTreeSet::new();
        for next in node.next.iter().filter_map(|n| self.blocks.get(n)) {
            live.extend(next.live_in.iter().copied());
        }
        let mut matters = self.decides.contains(&block);
        live.extend(text.terminator.condition().filter(|_| matters));
        for instruction in text.instructions.iter().skip(first).rev() {
            let (uses, defs) = operands(instruction);
            if has_effect(&instruction.inst) || defs.iter().any(|d| live.contains(d)) {
                if instruction.guard.is_none() {
                    defs.iter().for_each(|d| {
                        live.remove(d);
                    });
                }
                live.extend(uses);
                matters = true;
            }
        }
        Some((live, matters))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Program;

    #[test]
    fn intervals_that_touch_become_one() {
        let mut region = Region::default();
        for (start, end) in [(9, 12), (2, 4), (5, 5), (12, 14), (4, 5)] {
            region.add(start, end);
        }
        assert_eq!(region.0, [(2, 5), (9, 14)]);
        let mut other = Region::default();
        other.add(10, 14);
        assert!(region.contains(&other));
        other.add(1, 2);
        assert!(!region.contains(&other));
        region.join(&other);
        assert_eq!(region.0, [(1, 5), (9, 14)]);
    }

    /// Deciding registers at the head `L` of a loop that polls, of `%r1` to `%r5`; and whether a clock decides.
    fn deciding(body: &str) -> (Vec<u32>, bool) {
        let text = format!(
            ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 p)\n{{\n.reg .pred %p<4>;\n\
             .reg .b32 %r<6>;\n.reg .b64 %rd<4>;\nld.param.u64 %rd0, [p];\nmov.u32 %r1, 1;\nmov.u32 %r2, 2;\n\
             mov.u32 %r3, 3;\nmov.u32 %r4, %clock;\nmov.u32 %r5, 5;\nL:\nld.relaxed.gpu.global.u32 %r0, [%rd0];\n\
             setp.eq.u32 %p0, %r0, 7;\n@%p0 bra END;\n{body}\nbra L;\nEND:\nst.global.u32 [%rd0], %r1;\nret;\n}}\n"
        );
        let program = Program::load(&text).unwrap_or_else(|e| panic!("{e}"));
        let (code, module) = (&program.entries()[0].code, program.module());
        let function = &module.functions[0];
        // Everything but the blocks before the loop and behind it.
        let last = function.blocks.len() as u32 - 1;
        let mut region = Region::default();
        for block in 1..last {
            let pcs = code.functions[0].instructions(block);
            region.add(pcs.start, pcs.end);
        }
        let mut relevance = Relevance::new(code, module, &region);
        let head = code.functions[0].instructions(1).start;
        let slots: BTreeSet<String> =
            relevance.at(code, module, head).expect("a place").iter().map(|s| format!("{s:?}")).collect();
        let named = |n: u32| {
            // Registers are numbered by their first mention, and `%rd0` is 0.
            code.functions[0].slots[n as usize].is_some_and(|slot| slots.contains(&format!("{slot:?}")))
        };
        ((1..6).filter(|n| named(*n)).collect(), relevance.timed)
    }

    #[test]
    fn counters_and_clocks_decide_if_a_way_out_depends_on_them() {
        assert_eq!(deciding(""), (vec![], false));
        // A count that only the code behind the loop takes.
        assert_eq!(deciding("add.u32 %r1, %r1, 1;"), (vec![], false));
        // Counts that end the loop, at once or by way of another register.
        let ends = "add.u32 %r1, %r1, %r2;\nsetp.eq.u32 %p1, %r1, 9;\n@%p1 bra END;";
        assert_eq!(deciding(ends), (vec![1, 2], false));
        assert_eq!(deciding(&format!("mul.lo.u32 %r2, %r3, 5;\n{ends}")), (vec![1, 3], false));
        // Counts that say how long to sleep, and whether.
        let sleeps = "add.u32 %r1, %r1, 1;\nsetp.lt.u32 %p1, %r1, 9;\n@%p1 bra L;\nnanosleep.u32 %r1;";
        assert_eq!(deciding(sleeps), (vec![], false));
        // A count that decides whether what decides is written.
        let guards = "add.u32 %r1, %r1, 1;\nsetp.lt.u32 %p1, %r1, 9;\n@%p1 bra L;\nmov.u32 %r3, 4;\n\
                      setp.eq.u32 %p2, %r3, %r5;\n@%p2 bra END;";
        assert_eq!(deciding(guards), (vec![1, 5], false));
        // Clocks: read for a sleep, and for a deadline.
        let clock = "mov.u32 %r2, %clock;\nsub.u32 %r2, %r2, %r4;";
        assert_eq!(deciding(&format!("{clock}\nnanosleep.u32 %r2;")), (vec![], false));
        assert_eq!(
            deciding(&format!("{clock}\nsetp.gt.u32 %p1, %r2, %r3;\n@%p1 bra END;")),
            (vec![3, 4], true)
        );
        // What is stored decides.
        assert_eq!(deciding("st.global.u32 [%rd0], %r5;"), (vec![5], false));
    }
}
