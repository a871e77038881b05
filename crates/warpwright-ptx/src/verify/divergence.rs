//! Divergence between the lanes of a warp: values that differ, by definition, and the blocks that only some lanes run at a time.
//!
//! Lane numbers, results of atomics and local memory differ; arithmetic passes that on, and so do merges behind a branch on
//! such a value (Coutinho and others, *Divergence Analysis and Optimizations*). How far a value differs is followed by bits of the lane's number
//! ([`LaneBits`]), so that a sum over a butterfly of shuffles is known to be the same in all lanes. What is loaded from one
//! address is taken to be the same.
//!
//! # Who is waited for
//!
//! A lane that has ended, or ends without coming to another wait, has left. Barriers and warp-wide operations wait for
//! lanes that have not left; `.aligned` instructions other than barriers are run by all 32 lanes, so that none may have
//! left. So a branch splits a warp only as far as both sides lead to a wait, and only until all ways to further waits come
//! together again.

use std::collections::BinaryHeap;

use super::Checker;
use super::lanes::{LaneBits, Sources, special_name};
use super::reaching::{Definition, Reaching};
use crate::inst::*;
use crate::module::{FunctionKind, SourceLoc};
use crate::types::StateSpace;

/// Why a value differs between lanes.
#[derive(Clone, Copy, Debug)]
enum Cause {
    /// The instruction at this place makes it so.
    Source(BlockId, u32),
    /// It is computed from a value that differs.
    Through(Definition),
    /// It was merged where the sides of the branch at the end of this block came together.
    Split(BlockId),
}

/// Where lanes begin to differ.
pub(super) struct Origin {
    pub(super) location: SourceLoc,
    pub(super) what: String,
}

/// How far the chain from a condition to its origin is followed.
const CHAIN: u32 = 1000;
/// How many copies of a value are followed.
const COPIES: u32 = 8;

/// The effect of a branch that lanes take differently.
struct Split {
    /// Blocks that the lanes run until they come together; sorted.
    region: Vec<BlockId>,
    /// Where they come together.
    joins: Vec<BlockId>,
    /// Whether lanes come to the branch again while others have gone on.
    repeats: bool,
}

/// Values and blocks that differ between the lanes of a warp.
pub(super) struct Divergence<'a> {
    reaching: &'a Reaching,
    sources: Sources,
    lanes: Vec<LaneBits>,
    cause: Vec<Option<Cause>>,
    /// Blocks from which lanes come to a wait.
    stays: Vec<bool>,
    /// Blocks that only some of the lanes that stay run at a time, by the block whose end splits the warp.
    split: Vec<Option<BlockId>>,
    /// Blocks before which lanes may have left, likewise.
    left: Vec<Option<BlockId>>,
    /// How far the branches at the ends of blocks divide lanes.
    branches: Vec<LaneBits>,
    splits: Vec<Option<Split>>,
    /// How far merges depend on branches, with the first of these.
    joins: Vec<(LaneBits, Option<BlockId>)>,
    /// The branches out of loops that lanes take at different times, by blocks of the loops.
    leaving: Vec<Vec<BlockId>>,
    meets: Vec<Option<BlockId>>,
}

impl<'a> Divergence<'a> {
    /// `waits` says of each block whether lanes wait for each other in it.
    pub(super) fn new(cx: &Checker<'_>, reaching: &'a Reaching, waits: &[bool]) -> Self {
        let n = cx.function.blocks.len();
        let stays = stays(cx, waits);
        let mut this = Self {
            reaching,
            sources: Sources::new(cx, reaching),
            lanes: vec![LaneBits::NONE; reaching.len()],
            cause: vec![None; reaching.len()],
            meets: cx.cfg.post_dominators_among(&stays),
            stays,
            split: vec![None; n],
            left: vec![None; n],
            branches: vec![LaneBits::NONE; n],
            splits: std::iter::repeat_with(|| None).take(n).collect(),
            joins: vec![(LaneBits::NONE, None); n],
            leaving: vec![Vec::new(); n],
        };
        let mut changed = true;
        while changed {
            changed = false;
            for b in cx.cfg.reverse_postorder() {
                changed |= this.flow(cx, *b);
                let condition = cx.function.blocks[b.0 as usize].terminator.condition();
                if condition.is_some() {
                    let bits = this.read(reaching.condition(*b), *b);
                    if this.branches[b.0 as usize] != bits {
                        this.branches[b.0 as usize] = bits;
                        this.divide(cx, *b, bits);
                        changed = true;
                    }
                }
            }
        }
        this
    }

    /// Whether lanes run from a block to a wait.
    pub(super) fn stays(&self, block: BlockId) -> bool {
        self.stays[block.0 as usize]
    }

    /// The block at whose end the lanes that run a block part from others that stay.
    pub(super) fn split(&self, block: BlockId) -> Option<BlockId> {
        self.split[block.0 as usize]
    }

    /// The block at whose end others may have left before lanes run a block.
    pub(super) fn left(&self, block: BlockId) -> Option<BlockId> {
        self.left[block.0 as usize]
    }

    /// Whether a definition differs between the lanes that read it in a block.
    pub(super) fn differs(&self, definition: Definition, block: BlockId) -> bool {
        self.read(definition, block).any()
    }

    fn read(&self, definition: Definition, block: BlockId) -> LaneBits {
        let at = self.reaching.origin(definition).block;
        let mut bits = self.lanes[definition.index()];
        if at != block {
            // Lanes leave a loop with the values of different rounds.
            for branch in &self.leaving[at.0 as usize] {
                if self.is_outside(*branch, block) {
                    bits = bits.or(self.branches[branch.0 as usize]);
                }
            }
        }
        bits
    }

    fn is_outside(&self, branch: BlockId, block: BlockId) -> bool {
        let split = self.splits[branch.0 as usize].as_ref();
        split.is_some_and(|split| split.region.binary_search(&block).is_err())
    }

    fn raise(&mut self, definition: Definition, bits: LaneBits, cause: Option<Cause>) -> bool {
        let at = definition.index();
        let new = self.lanes[at].or(bits);
        if new == self.lanes[at] {
            return false;
        }
        self.lanes[at] = new;
        self.cause[at] = self.cause[at].or(cause);
        true
    }

    /// Passes differences through a block; whether anything is new.
    fn flow(&mut self, cx: &Checker<'_>, b: BlockId) -> bool {
        let mut changed = false;
        let reaching = self.reaching;
        for merge in reaching.merges(b) {
            let mut bits = LaneBits::NONE;
            let mut cause = None;
            for of in merge.of.iter().filter(|of| **of != merge.definition) {
                let more = self.read(*of, b);
                cause = cause.or(more.any().then_some(Cause::Through(*of)));
                bits = bits.or(more);
            }
            let mut different = merge.of.iter().filter(|of| **of != merge.definition);
            let first = different.next();
            if different.any(|of| Some(of) != first)
                && let (more, Some(branch)) = self.joins[b.0 as usize]
            {
                cause = cause.or(Some(Cause::Split(branch)));
                bits = bits.or(more);
            }
            changed |= self.raise(merge.definition, bits, cause);
        }
        for (index, instruction) in cx.function.blocks[b.0 as usize].instructions.iter().enumerate() {
            let inst = &instruction.inst;
            let (mut bits, mut cause) = self.result(cx, (b, index), inst);
            if instruction.guard.is_some() {
                let guard = reaching.guard(b, index);
                let more = self.read(guard, b);
                cause = more.any().then_some(Cause::Through(guard)).or(cause);
                bits = bits.or(more);
            }
            let mut operands = reaching.operands(b, index).iter();
            inst.visit(|role, _| {
                if let (Role::Def, Some(definition)) = (role, operands.next()) {
                    let (mut bits, mut cause) = (bits, cause);
                    if let Some(before) = reaching.before(*definition) {
                        let more = self.read(before, b);
                        cause = cause.or(more.any().then_some(Cause::Through(before)));
                        bits = bits.or(more);
                    }
                    changed |= self.raise(*definition, bits, cause);
                }
            });
        }
        changed
    }

    /// How far the results of an instruction differ if all lanes run it, and why.
    fn result(&self, cx: &Checker<'_>, at: (BlockId, usize), inst: &Inst) -> (LaneBits, Option<Cause>) {
        let here = Cause::Source(at.0, u32::try_from(at.1).unwrap_or(u32::MAX));
        let source = |differs: bool| {
            if differs { (LaneBits::ALL, Some(here)) } else { (LaneBits::NONE, None) }
        };
        let read = |r: Reg| self.reaching.read(at, inst, r);
        let of = |o: &Operand| match o {
            Operand::Reg(r) => self.read(read(*r), at.0),
            _ => LaneBits::NONE,
        };
        let through = |bits: LaneBits, r: Reg| (bits, bits.any().then(|| Cause::Through(read(r))));
        match inst {
            Inst::Mov { src: Operand::Special(s), .. } | Inst::Cvt { a: Operand::Special(s), .. } => {
                source(self.sources.special(*s))
            }
            Inst::Vote { .. }
            | Inst::Redux { .. }
            | Inst::Activemask { .. }
            | Inst::Match { all: true, .. }
            | Inst::Barrier { .. } => source(false),
            // Lanes that poll a barrier see it complete together or go round again together.
            Inst::MbarrierWait { .. } => source(false),
            // The lane that is read from is of the same segment.
            Inst::Shfl { mode: ShflMode::Idx, a: Operand::Reg(a), b, c, .. } => {
                let segment = match c {
                    Operand::Imm(Imm::Int(c)) => LaneBits::of(c >> 8),
                    _ => LaneBits::NONE,
                };
                let differs = of(&Operand::Reg(*a)).any();
                through(if differs { of(b).or(segment) } else { LaneBits::NONE }, *a)
            }
            Inst::Shfl { mode: ShflMode::Bfly, a: Operand::Reg(a), b: Operand::Imm(_), .. } => {
                through(of(&Operand::Reg(*a)), *a)
            }
            Inst::Shfl { pred, a: Operand::Reg(a), .. } => {
                if pred.is_some() {
                    source(true)
                } else {
                    through(if of(&Operand::Reg(*a)).any() { LaneBits::ALL } else { LaneBits::NONE }, *a)
                }
            }
            Inst::Elect { .. }
            | Inst::Atom { .. }
            | Inst::AtomVector { .. }
            | Inst::Opaque(_)
            | Inst::Mma(_)
            | Inst::Wgmma(_)
            | Inst::Tcgen05(_)
            | Inst::Wmma(_)
            | Inst::WmmaLoad { .. }
            | Inst::LdMatrix { .. }
            | Inst::MovMatrix { .. }
            | Inst::MbarrierArrive { .. } => source(true),
            Inst::Ld { space, addr, .. } => match addr.base {
                AddressBase::Reg(r) if self.read(read(r), at.0).any() => through(self.read(read(r), at.0), r),
                _ => source(*space == StateSpace::Local),
            },
            _ => {
                let mut bits = LaneBits::NONE;
                let mut cause = None;
                let mut operands = self.reaching.operands(at.0, at.1).iter();
                inst.visit(|role, _| {
                    if let (Role::Use, Some(operand)) = (role, operands.next()) {
                        let more = self.read(*operand, at.0);
                        cause = cause.or(more.any().then_some(Cause::Through(*operand)));
                        bits = bits.or(more);
                    }
                });
                if let Some(masked) = self.sources.masked(inst, &read) {
                    bits = bits.within(masked);
                }
                if let Some(bit) = self.butterfly(cx, at, inst) {
                    bits = bits.within(bit);
                }
                (bits, bits.any().then_some(cause).flatten())
            }
        }
    }

    /// The value that a definition copies, as far back as it is one.
    fn copied(&self, cx: &Checker<'_>, mut definition: Definition) -> Definition {
        for _ in 0..COPIES {
            let Some((at, Inst::Mov { src: Operand::Reg(r), .. })) = self.maker(cx, definition) else {
                break;
            };
            definition = self.reaching.read(at, self.instruction(cx, at), *r);
        }
        definition
    }

    /// The instruction that makes a definition without a guard.
    fn maker<'m>(&self, cx: &Checker<'m>, definition: Definition) -> Option<((BlockId, usize), &'m Inst)> {
        if definition == Definition::START {
            return None;
        }
        let origin = self.reaching.origin(definition);
        let index = origin.instruction? as usize;
        let instruction = &cx.function.blocks[origin.block.0 as usize].instructions[index];
        instruction.guard.is_none().then_some(((origin.block, index), &instruction.inst))
    }

    fn instruction<'m>(&self, cx: &Checker<'m>, (block, index): (BlockId, usize)) -> &'m Inst {
        &cx.function.blocks[block.0 as usize].instructions[index].inst
    }

    /// The bits of the lane's number on which a value combined with itself in the lane of another number may still depend:
    /// both lanes combine the same two.
    fn butterfly(&self, cx: &Checker<'_>, at: (BlockId, usize), inst: &Inst) -> Option<LaneBits> {
        use BinaryOp::*;
        let Inst::Binary { op: Add | Mul | MulLo | MulHi | Min | Max | And | Or | Xor, a, b, .. } = inst
        else {
            return None;
        };
        let (Operand::Reg(a), Operand::Reg(b)) = (a, b) else { return None };
        let [a, b] = [*a, *b].map(|r| self.copied(cx, self.reaching.read(at, inst, r)));
        self.exchanged(cx, a, b).or_else(|| self.exchanged(cx, b, a))
    }

    /// The bits that are left if `other` is `value` of a lane whose number differs in one bit.
    fn exchanged(&self, cx: &Checker<'_>, value: Definition, other: Definition) -> Option<LaneBits> {
        let (at, inst) = self.maker(cx, other)?;
        let Inst::Shfl { mode: ShflMode::Bfly, dst, pred, a, b, c, .. } = inst else { return None };
        let (Operand::Reg(a), Operand::Imm(Imm::Int(bit)), Operand::Imm(Imm::Int(31))) = (a, b, c) else {
            return None;
        };
        let is_value = pred.is_none_or(|p| p != *dst);
        let same = is_value && self.copied(cx, self.reaching.read(at, inst, *a)) == value;
        (same && bit.count_ones() == 1).then(|| LaneBits::without(*bit))
    }

    /// Follows a value that differs back to where that begins.
    pub(super) fn origin(&self, cx: &Checker<'_>, mut definition: Definition) -> Option<Origin> {
        for _ in 0..CHAIN {
            match self.cause[definition.index()]? {
                Cause::Through(from) if self.cause[from.index()].is_some() => definition = from,
                // The value is of different rounds of a loop.
                Cause::Through(from) => {
                    let leaving = &self.leaving[self.reaching.origin(from).block.0 as usize];
                    definition = self.reaching.condition(*leaving.first()?);
                }
                Cause::Split(b) => definition = self.reaching.condition(b),
                Cause::Source(b, index) => {
                    let block = &cx.function.blocks[b.0 as usize];
                    let location = block.location(index as usize);
                    let what = match &block.instructions.get(index as usize)?.inst {
                        Inst::Mov { src: Operand::Special(s), .. }
                        | Inst::Cvt { a: Operand::Special(s), .. } => special_name(*s),
                        Inst::Ld { .. } => "local memory".to_owned(),
                        other => format!("the result of `{}`", crate::text::mnemonic(other)),
                    };
                    return Some(Origin { location, what });
                }
            }
        }
        None
    }

    /// Marks what a branch at the end of `b` that divides lanes splits.
    fn divide(&mut self, cx: &Checker<'_>, b: BlockId, bits: LaneBits) {
        if self.splits[b.0 as usize].is_none() {
            self.part(cx, b);
            let split = self.find(cx, b);
            for block in &split.region {
                self.split[block.0 as usize].get_or_insert(b);
                if split.repeats {
                    self.leaving[block.0 as usize].push(b);
                }
            }
            self.splits[b.0 as usize] = Some(split);
        }
        let Some(split) = &self.splits[b.0 as usize] else { return };
        for join in &split.joins {
            let (known, first) = &mut self.joins[join.0 as usize];
            *known = known.or(bits);
            first.get_or_insert(b);
        }
    }

    /// Marks the blocks that lanes run after others have left at the end of `b`.
    fn part(&mut self, cx: &Checker<'_>, b: BlockId) {
        let leave = |s: &&BlockId| !self.stays[s.0 as usize];
        if !cx.cfg.successors(b).iter().any(|s| leave(&s)) {
            return;
        }
        let mut todo: Vec<BlockId> = cx.cfg.successors(b).iter().filter(|s| !leave(s)).copied().collect();
        while let Some(next) = todo.pop() {
            if self.left[next.0 as usize].is_none() {
                self.left[next.0 as usize] = Some(b);
                todo.extend(cx.cfg.successors(next));
            }
        }
    }

    /// Follows the sides of the branch at the end of `b` to where they come together: each block gets the side from which it is
    /// reached, and one that is reached from two begins a side of its own.
    fn find(&self, cx: &Checker<'_>, b: BlockId) -> Split {
        let mut split = Split { region: Vec::new(), joins: Vec::new(), repeats: false };
        let sides = || cx.cfg.successors(b).iter().filter(|s| self.stays[s.0 as usize]);
        if sides().count() < 2 {
            return split;
        }
        let meet = self.meets[b.0 as usize];
        let place = |block: BlockId| cx.cfg.position(block).unwrap_or(usize::MAX);
        let mut side = std::collections::HashMap::new();
        let mut todo = BinaryHeap::new();
        for s in sides() {
            side.insert(*s, *s);
            todo.push((std::cmp::Reverse(place(*s)), *s));
        }
        while let Some((_, block)) = todo.pop() {
            if block == b {
                split.repeats = true;
                continue;
            }
            if Some(block) == meet {
                continue;
            }
            let from = side[&block];
            for s in cx.cfg.successors(block).iter().filter(|s| self.stays[s.0 as usize]) {
                match side.get(s).copied() {
                    None => {
                        side.insert(*s, from);
                    }
                    Some(known) if known == from => continue,
                    // It is one already; only the side from which it was reached first is new.
                    Some(known) if known == *s && split.joins.contains(s) => continue,
                    Some(known) => {
                        split.joins.push(*s);
                        side.insert(*s, *s);
                        if known == *s {
                            continue;
                        }
                    }
                }
                todo.push((std::cmp::Reverse(place(*s)), *s));
            }
        }
        split.region = side.into_keys().filter(|block| Some(*block) != meet).collect();
        split.region.sort_unstable();
        split
    }
}

/// The blocks from which lanes come to a wait: one of these, or in a function the caller's after the return.
fn stays(cx: &Checker<'_>, waits: &[bool]) -> Vec<bool> {
    let mut stays = vec![false; waits.len()];
    let mut todo = Vec::new();
    for (b, block) in (0u32..).zip(&cx.function.blocks) {
        let returns = cx.function.kind != FunctionKind::Entry && block.terminator == Terminator::Ret;
        if waits[b as usize] || returns {
            stays[b as usize] = true;
            todo.push(BlockId(b));
        }
    }
    while let Some(b) = todo.pop() {
        for p in cx.cfg.predecessors(b) {
            if !std::mem::replace(&mut stays[p.0 as usize], true) {
                todo.push(*p);
            }
        }
    }
    stays
}
