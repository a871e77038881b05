//! The walk over a kernel that gives registers their values and accesses their conditions.
//!
//! Blocks are visited so that each comes behind its predecessors; loops are visited until what is said of their registers holds
//! from round to round. A register that grows by the same amount in every round is its first value plus a multiple of the loop's
//! counter. Conditions at the head of a loop are guessed from those at its end, and kept if they follow from each other
//! (Flanagan and Leino, *Houdini, an Annotation Assistant for ESC/Java*).

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use super::decide::{implies, within};
use super::lower::Launches;
use super::poly::Poly;
use super::terms::{Array, Formula, Kind, Replacement, Site, Terms};
use super::{Gap, Reason};
use crate::cfg::Cfg;
use crate::inst::*;
use crate::module::{Function, Module};
use crate::types::{ScalarType, Scope, StateSpace};

/// The value of a register.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    /// The register has these bits, modulo its width.
    Int(Rc<Poly>),
    /// A predicate.
    Bool(Rc<Formula>),
}

/// The state at a point of the program.
#[derive(Clone, Debug)]
pub(super) struct State {
    /// By register; `None` is anything.
    pub(super) values: Vec<Option<Value>>,
    /// Facts that hold there.
    pub(super) conditions: Vec<Formula>,
}

/// The kind of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Load,
    Store,
    /// With the scope that it is atomic in.
    Atomic(Scope),
}

/// How long an access goes on behind its instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// The instruction has done it.
    Done,
    /// Its thread waits for the group of its `cp.async`.
    CopyGroup,
    /// Its thread waits for the group of its bulk copy; if it reads, a wait for sources is enough.
    BulkGroup,
    /// The phase of this mbarrier completes; nothing ends it if the mbarrier is not known.
    Phase(Option<Place>),
}

/// A fixed place in an array: its bytes behind the start.
pub(super) type Place = (Array, i128);

/// The effect of an access on an mbarrier. Numbers that differ between launches or threads are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Object {
    /// Expects so many arrivals in a phase.
    Init { count: Option<i128> },
    /// One arrival that expects so many bytes.
    Expect { bytes: Option<i128> },
    /// A copy counts its bytes.
    Complete { bytes: Option<i128> },
    /// Waits for the phase of a parity, or asks for it.
    Wait { parity: Option<i128> },
    /// Any other arrival, or its end.
    Other,
}

/// An access to memory.
#[derive(Clone, Debug)]
pub(super) struct Access {
    pub(super) block: BlockId,
    pub(super) index: usize,
    pub(super) action: Action,
    pub(super) bytes: Poly,
    /// A number that its address is a multiple of.
    pub(super) align: i128,
    pub(super) array: Array,
    pub(super) space: StateSpace,
    pub(super) offset: Poly,
    pub(super) conditions: Vec<Formula>,
    pub(super) until: Until,
    /// Whether it goes through the asynchronous proxy.
    pub(super) is_proxied: bool,
    /// Whether other lanes of the warp make parts of it, at an address that this thread gives.
    pub(super) is_of_warp: bool,
    pub(super) object: Option<Object>,
}

impl Access {
    /// Where it is, if that is fixed.
    pub(super) fn place(&self) -> Option<Place> {
        Some((self.array, self.offset.as_constant()?))
    }
}

/// A natural loop.
#[derive(Clone, Debug)]
pub(super) struct Loop {
    pub(super) header: BlockId,
    /// In the order of the walk, the header first.
    pub(super) members: Vec<BlockId>,
    /// Where it goes back to the header.
    pub(super) latches: Vec<BlockId>,
}

/// Guesses about the head of a loop.
const GUESSES: usize = 24;
/// How often guesses about a loop are tried.
const ROUNDS: u32 = 5;
/// Loops of a function, and how deep they may be nested.
const LOOPS: usize = 200;
const NESTED: u32 = 8;
/// Instructions that a walk visits.
const VISITS: u64 = 150_000;

/// The walk and its results.
pub(super) struct Walk<'m> {
    pub(super) module: &'m Module,
    pub(super) function: &'m Function,
    pub(super) cfg: &'m Cfg,
    pub(super) loops: Vec<Loop>,
    pub(super) terms: Terms,
    pub(super) extents: HashMap<Array, Poly>,
    pub(super) accesses: Vec<Access>,
    pub(super) gaps: Vec<Gap>,
    /// The condition that the end of each block branches on.
    pub(super) branches: Vec<Option<Formula>>,
    /// Values of registers at the head of a loop, in the first and in later rounds, where they stay unknowns.
    pub(super) carried: HashMap<(BlockId, u32), Vec<Option<Poly>>>,
    exits: Vec<Option<State>>,
    records: bool,
    depth: u32,
    visits: u64,
    pub(super) here: (BlockId, usize),
}

/// The natural loops of a function; `None` if it has others, or too many.
pub(super) fn natural_loops(cfg: &Cfg) -> Option<Vec<Loop>> {
    let mut loops: Vec<Loop> = Vec::new();
    for from in cfg.reverse_postorder() {
        for to in cfg.successors(*from) {
            if cfg.position(*to) > cfg.position(*from) {
                continue;
            }
            if !cfg.dominates(*to, *from) || loops.len() > LOOPS {
                return None;
            }
            let mut members = BTreeSet::from([*to]);
            let mut todo = vec![*from];
            while let Some(b) = todo.pop() {
                if members.insert(b) {
                    todo.extend(cfg.predecessors(b).iter().filter(|p| cfg.is_reachable(**p)));
                }
            }
            match loops.iter_mut().find(|l| l.header == *to) {
                Some(known) => {
                    members.extend(known.members.iter().copied());
                    known.members = members.into_iter().collect();
                    known.latches.push(*from);
                }
                None => {
                    let members = members.into_iter().collect();
                    loops.push(Loop { header: *to, members, latches: vec![*from] });
                }
            }
        }
    }
    for l in &mut loops {
        l.members.sort_by_key(|b| cfg.position(*b));
    }
    Some(loops)
}

impl<'m> Walk<'m> {
    /// Visits the whole function; an error if it is too large or has loops of an unknown shape.
    pub(super) fn new(
        module: &'m Module,
        function: &'m Function,
        cfg: &'m Cfg,
        launches: Launches,
    ) -> Result<Self, Reason> {
        let n = function.blocks.len();
        let mut walk = Self {
            module,
            function,
            cfg,
            loops: natural_loops(cfg).ok_or(Reason::Irreducible)?,
            terms: launches.terms,
            extents: launches.extents,
            accesses: Vec::new(),
            gaps: Vec::new(),
            branches: vec![None; n],
            carried: HashMap::new(),
            exits: vec![None; n],
            records: true,
            depth: 0,
            visits: 0,
            here: (BlockId(0), 0),
        };
        let order = cfg.reverse_postorder().to_vec();
        walk.run(&order, None)?;
        Ok(walk)
    }

    pub(super) fn width(&self, register: Reg) -> Option<u32> {
        let ty = self.function.reg_type(register)?;
        (!ty.is_float() && ty != ScalarType::Pred && ty.bits() <= 64).then(|| ty.bits())
    }

    fn run(&mut self, blocks: &[BlockId], inside: Option<(BlockId, State)>) -> Result<(), Reason> {
        let (head, mut start) = inside.map_or((None, None), |(head, state)| (Some(head), Some(state)));
        let mut done = BTreeSet::new();
        for b in blocks {
            if done.contains(b) {
                continue;
            }
            let found = self.loops.iter().position(|l| l.header == *b).filter(|_| head != Some(*b));
            if let Some(at) = found {
                done.extend(self.loops[at].members.iter().copied());
                self.depth += 1;
                if self.depth > NESTED {
                    return Err(Reason::TooLarge);
                }
                self.run_loop(at)?;
                self.depth -= 1;
            } else {
                let state = match start.take().filter(|_| head == Some(*b)) {
                    Some(state) => state,
                    None => self.enter(*b),
                };
                self.visit(*b, state)?;
            }
        }
        Ok(())
    }

    fn visit(&mut self, b: BlockId, mut state: State) -> Result<(), Reason> {
        let block = &self.function.blocks[b.0 as usize];
        self.visits += block.instructions.len() as u64 + 1;
        if self.visits > VISITS {
            return Err(Reason::TooLarge);
        }
        for (index, instruction) in block.instructions.iter().enumerate() {
            self.here = (b, index);
            self.execute(&mut state, instruction);
        }
        self.here = (b, block.instructions.len());
        self.branches[b.0 as usize] = match &block.terminator {
            Terminator::Branch { pred, .. } => Some(self.predicate(&state, *pred)),
            _ => None,
        };
        self.exits[b.0 as usize] = Some(state);
        Ok(())
    }

    /// The unknown that stands for what the current instruction does not say.
    pub(super) fn opaque(&mut self, slot: u32, bits: u32) -> Poly {
        let (block, index) = self.here;
        let site = Site { block: block.0, index: u32::try_from(index).unwrap_or(u32::MAX - 1), slot };
        self.terms.atom(Kind::Opaque { site, thread: 0, bits }).into()
    }

    /// The value of a register that nothing has written.
    fn unwritten(&mut self, register: Reg, bits: u32) -> Poly {
        let site = Site { block: u32::MAX, index: 0, slot: register.0 };
        self.terms.atom(Kind::Opaque { site, thread: 0, bits }).into()
    }

    pub(super) fn predicate(&mut self, state: &State, pred: PredUse) -> Formula {
        let formula = match &state.values[pred.reg.0 as usize] {
            Some(Value::Bool(formula)) => Formula::clone(formula),
            _ => is_set(&self.unwritten(pred.reg, 1)),
        };
        if pred.negated { formula.not() } else { formula }
    }

    /// The bits of a register; `None` if they are not followed.
    pub(super) fn integer(&self, state: &State, register: Reg) -> Option<Poly> {
        match state.values.get(register.0 as usize)? {
            Some(Value::Int(p)) => Some(Poly::clone(p)),
            _ => None,
        }
    }

    pub(super) fn record(&mut self, access: Access) {
        if self.records {
            self.accesses.push(access);
        }
    }

    pub(super) fn gap(&mut self, reason: Reason) {
        if self.records {
            let (block, index) = self.here;
            self.gaps.push(Gap::at(self.function, block, index, reason));
        }
    }

    /// The condition of an edge.
    fn edge(&self, from: BlockId, to: BlockId) -> Formula {
        let (Terminator::Branch { then, otherwise, .. }, Some(condition)) =
            (&self.function.blocks[from.0 as usize].terminator, &self.branches[from.0 as usize])
        else {
            return Formula::TRUE;
        };
        match (*then == to, *otherwise == to) {
            (true, false) => condition.clone(),
            (false, true) => condition.not(),
            _ => Formula::TRUE,
        }
    }

    /// The state behind an edge.
    fn along(&self, from: BlockId, to: BlockId) -> Option<State> {
        let mut state = self.exits[from.0 as usize].clone()?;
        self.edge(from, to).each(&mut |one| {
            if !state.conditions.contains(one) {
                state.conditions.push(one.clone());
            }
        });
        Some(state)
    }

    /// The state at the start of a block, from predecessors that come before it.
    fn enter(&mut self, b: BlockId) -> State {
        let before =
            self.cfg.predecessors(b).iter().filter(|p| self.cfg.position(**p) < self.cfg.position(b));
        let mut states: Vec<State> = before.filter_map(|p| self.along(*p, b)).collect();
        match states.len() {
            0 => State { values: vec![None; self.function.registers.len()], conditions: Vec::new() },
            1 => states.remove(0),
            _ => self.merge(b, &states),
        }
    }

    fn merge(&mut self, b: BlockId, states: &[State]) -> State {
        let (first, others) = states.split_at(1);
        let shared = |one: &&Formula| others.iter().all(|s| s.conditions.contains(one));
        let conditions: Vec<Formula> = first[0].conditions.iter().filter(shared).cloned().collect();
        let own: Vec<Vec<Formula>> = states
            .iter()
            .map(|s| s.conditions.iter().filter(|one| !conditions.contains(one)).cloned().collect())
            .collect();
        let mut values = Vec::with_capacity(first[0].values.len());
        for r in 0..first[0].values.len() {
            let value = &first[0].values[r];
            let same = others.iter().all(|s| s.values[r] == *value);
            values.push(if same { value.clone() } else { self.merged(b, r, states, &own) });
        }
        State { values, conditions }
    }

    /// A register that is different on the ways to a block.
    fn merged(&mut self, b: BlockId, r: usize, states: &[State], own: &[Vec<Formula>]) -> Option<Value> {
        let register = Reg(u32::try_from(r).ok()?);
        let site = Site { block: b.0, index: u32::MAX, slot: register.0 };
        if self.function.reg_type(register) == Some(ScalarType::Pred) {
            let bit = self.terms.atom(Kind::Opaque { site, thread: 0, bits: 1 });
            return Some(Value::Bool(Rc::new(is_set(&bit.into()))));
        }
        let bits = self.width(register)?;
        let values: Option<Vec<Poly>> = states.iter().map(|s| self.integer(s, register)).collect();
        let atom = match values.filter(|values| values.len() <= 4) {
            Some(values) => {
                let alternatives = own.iter().cloned().zip(values).collect();
                self.terms.atom(Kind::Choice { site: Some((site, 0)), alternatives })
            }
            None => self.terms.atom(Kind::Opaque { site, thread: 0, bits }),
        };
        Some(Value::Int(Rc::new(atom.into())))
    }

    /// Visits a loop until what is said of it holds.
    fn run_loop(&mut self, at: usize) -> Result<(), Reason> {
        let Loop { header, members, latches } = self.loops[at].clone();
        let entry = self.enter(header);
        let records = std::mem::replace(&mut self.records, false);
        let mut assigned = BTreeSet::new();
        for b in &members {
            for instruction in &self.function.blocks[b.0 as usize].instructions {
                instruction.inst.visit(|role, r| {
                    if role == Role::Def {
                        assigned.insert(r);
                    }
                });
            }
        }
        // Every register that the loop assigns is an unknown at first.
        let mut start = entry.clone();
        for r in &assigned {
            start.values[r.0 as usize] = self.carry(header, *r);
        }
        self.run(&members, Some((header, start.clone())))?;
        let counter = self.terms.atom(Kind::Counter { header: header.0, thread: 0 });
        for r in &assigned {
            if let Some(value) = self.affine(&members, &latches, header, *r, &entry, &start) {
                let bits = self.width(*r).unwrap_or(64);
                let (first, step) = value;
                let grown = step.times(&counter.into()).and_then(|more| first.plus(&more));
                if let Some(grown) = grown {
                    start.values[r.0 as usize] = Some(Value::Int(Rc::new(grown.wrapped(bits))));
                }
            }
        }
        self.run(&members, Some((header, start.clone())))?;
        let mut guesses = self.guesses(&members, &latches, header, &assigned, &entry, &start);
        self.records = records;
        let (accesses, gaps) = (self.accesses.len(), self.gaps.len());
        for round in 0..=ROUNDS {
            if round == ROUNDS {
                guesses.clear();
            }
            self.accesses.truncate(accesses);
            self.gaps.truncate(gaps);
            let mut guessed = start.clone();
            guessed.conditions.extend(guesses.iter().cloned());
            self.run(&members, Some((header, guessed)))?;
            let before = guesses.len();
            let all = std::mem::take(&mut guesses);
            for guess in all {
                if latches.iter().all(|latch| self.stays(header, *latch, &assigned, &guess)) {
                    guesses.push(guess);
                }
            }
            if guesses.len() == before {
                break;
            }
        }
        for r in &assigned {
            if start.values[r.0 as usize] == self.carry(header, *r) {
                let first = self.integer(&entry, *r);
                let later =
                    latches.iter().map(|latch| self.integer(self.exits[latch.0 as usize].as_ref()?, *r));
                let all = std::iter::once(first).chain(later).collect();
                self.carried.insert((header, r.0), all);
            }
        }
        Ok(())
    }

    /// The unknown that stands for a register at the head of a loop.
    fn carry(&mut self, header: BlockId, r: Reg) -> Option<Value> {
        let kind = |bits| Kind::Carried { header: header.0, register: r.0, thread: 0, bits };
        if self.function.reg_type(r) == Some(ScalarType::Pred) {
            let bit = self.terms.atom(kind(1));
            return Some(Value::Bool(Rc::new(is_set(&bit.into()))));
        }
        let bits = self.width(r)?;
        Some(Value::Int(Rc::new(self.terms.atom(kind(bits)).into())))
    }

    /// The first value of a register of a loop, and by how much it grows in every round.
    fn affine(
        &mut self,
        members: &[BlockId],
        latches: &[BlockId],
        header: BlockId,
        r: Reg,
        entry: &State,
        start: &State,
    ) -> Option<(Poly, Poly)> {
        let bits = self.width(r)?;
        let first = self.integer(entry, r)?;
        let carried = self.integer(start, r)?;
        let mut step: Option<Poly> = None;
        for latch in latches {
            let last = self.integer(self.exits[latch.0 as usize].as_ref()?, r)?;
            let grown = last.minus(&carried)?.wrapped(bits);
            if step.as_ref().is_some_and(|step| *step != grown) || self.varies(&grown, members, header, false)
            {
                return None;
            }
            step = Some(grown);
        }
        Some((first, step?))
    }

    /// Whether a value may be another one in the next round of a loop; that of its counter is set aside if so asked.
    fn varies(&self, poly: &Poly, members: &[BlockId], header: BlockId, but_counter: bool) -> bool {
        let inside = |block: u32| members.contains(&BlockId(block));
        self.terms.depends(poly, &|_, kind| match kind {
            Kind::Counter { header: h, .. } => inside(*h) && !(but_counter && *h == header.0),
            Kind::Carried { header: h, .. } => inside(*h),
            Kind::Opaque { site, .. } => inside(site.block),
            Kind::Choice { site: Some((site, _)), .. } => inside(site.block),
            _ => false,
        })
    }

    /// Statements that may hold whenever the head of a loop is reached.
    fn guesses(
        &mut self,
        members: &[BlockId],
        latches: &[BlockId],
        header: BlockId,
        assigned: &BTreeSet<Reg>,
        entry: &State,
        start: &State,
    ) -> Vec<Formula> {
        let counter: Poly = self.terms.atom(Kind::Counter { header: header.0, thread: 0 }).into();
        let Some(last_round) = counter.plus_constant(-1) else { return Vec::new() };
        let mut guesses = Vec::new();
        for latch in latches {
            let Some(end) = self.along(*latch, header) else { continue };
            for condition in end.conditions.iter().filter(|one| !start.conditions.contains(one)) {
                let Formula::AtLeast(p) = condition else { continue };
                // Guess that nothing wraps.
                let whole = self.terms.replace(p, &|_, kind| match kind {
                    Kind::Floor(_, by) if by.as_constant().is_some_and(|by| by >= 1 << 32) => {
                        Some(Poly::default())
                    }
                    _ => None,
                });
                let Some(whole) = whole.filter(|p| !self.varies(p, members, header, true)) else { continue };
                let shifted = |to: &Poly| {
                    let to = to.clone();
                    move |_: &mut Terms, kind: &Kind| {
                        let is_counter = *kind == Kind::Counter { header: header.0, thread: 0 };
                        is_counter.then(|| to.clone())
                    }
                };
                let Some(before) = self.terms.replace(&whole, &shifted(&last_round)) else { continue };
                let first = self.terms.replace(&before, &shifted(&Poly::default()));
                let held = Formula::AtLeast(before);
                let holds_first =
                    first.is_some_and(|p| implies(&mut self.terms, &entry.conditions, &Formula::AtLeast(p)));
                let no_round = Formula::AtLeast(counter.negated());
                guesses.push(if holds_first { held } else { Formula::Any(vec![no_round, held]) });
            }
        }
        for r in assigned {
            let (Some(bits), Some(carried)) = (self.width(*r), self.integer(start, *r)) else { continue };
            let Some(first) =
                self.integer(entry, *r).filter(|_| self.carry(header, *r) == start.values[r.0 as usize])
            else {
                continue;
            };
            if within(&mut self.terms, &entry.conditions, &first, 0, (1i128 << bits) - 1) {
                let falls = first.minus(&carried).map(Formula::AtLeast);
                let grows = carried.minus(&first).map(Formula::AtLeast);
                guesses.extend(falls.into_iter().chain(grows));
            }
        }
        guesses.dedup();
        guesses.truncate(GUESSES);
        guesses
    }

    /// Whether a statement about the head of a loop holds in the next round, given the state at the end of this one.
    fn stays(&mut self, header: BlockId, latch: BlockId, assigned: &BTreeSet<Reg>, guess: &Formula) -> bool {
        let Some(end) = self.along(latch, header) else { return false };
        let counter = self.terms.atom(Kind::Counter { header: header.0, thread: 0 });
        let next = Poly::from(counter).plus_constant(1);
        let mut later: HashMap<u32, Option<Poly>> = HashMap::new();
        let mut mentioned = BTreeSet::new();
        guess.atoms(&mut |atom| {
            if let Kind::Carried { header: h, register, .. } = self.terms.kind(atom)
                && *h == header.0
            {
                mentioned.insert(*register);
            }
        });
        for r in assigned.iter().filter(|r| mentioned.contains(&r.0)) {
            let last = self.integer(&end, *r).zip(self.width(*r));
            let value = last.and_then(|(p, bits)| self.unsigned(&end.conditions, &p, bits));
            later.insert(r.0, value);
        }
        if later.values().any(Option::is_none) {
            return false;
        }
        let with: &Replacement<'_> = &|_, kind| match kind {
            Kind::Counter { header: h, thread: 0 } if *h == header.0 => next.clone(),
            Kind::Carried { header: h, register, .. } if *h == header.0 => later.get(register)?.clone(),
            _ => None,
        };
        let Some(goal) = self.terms.replace_all(0, std::slice::from_ref(guess), with) else { return false };
        goal.iter().all(|goal| implies(&mut self.terms, &end.conditions, goal))
    }

    /// The bits read as a number that is not negative.
    pub(super) fn unsigned(&mut self, conditions: &[Formula], p: &Poly, bits: u32) -> Option<Poly> {
        self.read(conditions, p, bits, 0)
    }

    /// The bits read as a number in two's complement.
    pub(super) fn signed(&mut self, conditions: &[Formula], p: &Poly, bits: u32) -> Option<Poly> {
        self.read(conditions, p, bits, 1i128 << (bits - 1))
    }

    /// The one number from `-below` to `2^bits - 1 - below` that has these bits.
    fn read(&mut self, conditions: &[Formula], p: &Poly, bits: u32, below: i128) -> Option<Poly> {
        let p = p.wrapped(bits);
        let modulus = 1i128 << bits;
        if within(&mut self.terms, conditions, &p, -below, modulus - 1 - below) {
            return Some(p);
        }
        let wraps = self.terms.floor(&p.plus_constant(below)?, &Poly::constant(modulus)?)?;
        p.minus(&wraps.scaled(modulus)?)
    }
}

/// Whether a bit is 1.
pub(super) fn is_set(bit: &Poly) -> Formula {
    Formula::AtLeast(bit.plus_constant(-1).unwrap_or_default())
}
