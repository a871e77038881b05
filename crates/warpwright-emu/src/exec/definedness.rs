//! Definedness of registers while a kernel runs. Values that were never written are no error as long as nothing depends on them:
//! bits are followed through moves, selections, shuffles and arithmetic until one decides something (a branch, an address, a result
//! in memory, an operand of a barrier), as MemorySanitizer does (Stepanov and Serebryany, CGO 2015).

use warpwright_ptx::{BoolOp, CmpOp, ScalarType};

use super::global::{lane_value, lanes_of};
use super::rows::{put_pred, put64};
use super::scalar;
use crate::code::definedness::{Checked, DEFINED, FIRST, Passing, Rule, Shuffled, Source};
use crate::code::layout::Slot;
use crate::code::rows::{LANES, Registers, Row64};
use crate::context::Context;
use crate::report::{Space, Tool};
use crate::warp::Warp;

/// Where an undefined value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The load from local memory, and its address.
    Local { pc: u32, address: u64 },
    /// The instruction that read a register which the thread had not written.
    Register { pc: u32, ty: Option<ScalarType> },
}

/// The undefined bits of the tracked registers of a warp.
#[derive(Clone, Debug, Default)]
pub(crate) struct Definedness {
    /// Lanes of which every bit is defined.
    lanes: Vec<u32>,
    /// The undefined bits of the others.
    undefined: Vec<Row64>,
    origins: Vec<Option<Origin>>,
}

impl Definedness {
    /// Of tracked registers, none of which is written.
    pub(crate) fn new(registers: usize) -> Self {
        let mut new = Self::default();
        new.resize(FIRST as usize + registers);
        new.reset();
        new
    }

    /// Nothing is written.
    pub(crate) fn reset(&mut self) {
        self.lanes.fill(0);
        self.undefined.fill(Row64([u64::MAX; LANES]));
        self.origins.fill(None);
        self.lanes[DEFINED as usize] = u32::MAX;
    }

    /// Lanes have not written the register.
    pub(super) fn forget(&mut self, tracked: usize, lanes: u32) {
        self.lanes[tracked] &= !lanes;
        self.origins[tracked] = None;
        lanes_of(lanes).for_each(|lane| self.undefined[tracked].0[lane] = u64::MAX);
    }

    #[inline(always)]
    pub(super) fn define(&mut self, tracked: u32, lanes: u32) {
        self.lanes[tracked as usize] |= lanes;
    }

    /// Whether lanes of these three registers are defined; then those of the fourth are.
    #[inline(always)]
    pub(super) fn passes(&mut self, [a, b, c]: [u32; 3], to: u32, lanes: u32) -> bool {
        let of = &mut self.lanes;
        let all = of[a as usize] & of[b as usize] & of[c as usize];
        let whole = lanes & !all == 0;
        if whole {
            of[to as usize] |= lanes;
        }
        whole
    }

    /// The undefined bits of a lane.
    pub(super) fn bits(&self, tracked: u32, lane: usize) -> u64 {
        if self.lanes[tracked as usize] >> lane & 1 != 0 {
            0
        } else {
            self.undefined[tracked as usize].0[lane]
        }
    }

    /// Says which bits of a lane are undefined.
    pub(super) fn set(&mut self, tracked: u32, lane: usize, bits: u64, origin: Option<Origin>) {
        let at = tracked as usize;
        put_pred(&mut self.lanes[at], if bits == 0 { u32::MAX } else { 0 }, 1 << lane);
        self.undefined[at].0[lane] = bits;
        if bits != 0 {
            self.origins[at] = origin;
        }
    }

    /// Lanes with undefined bits.
    pub(super) fn missing(&self, tracked: u32, lanes: u32) -> u32 {
        lanes & !self.lanes[tracked as usize]
    }

    pub(super) fn origin(&self, tracked: u32) -> Option<Origin> {
        self.origins[tracked as usize]
    }

    /// Takes over what another set says of lanes, register for register.
    pub(super) fn copy(
        &mut self,
        registers: impl Iterator<Item = usize>,
        other: &Self,
        from: impl Iterator<Item = usize>,
        lanes: u32,
    ) {
        for (to, from) in registers.zip(from) {
            put_pred(&mut self.lanes[to], other.lanes[from], lanes);
            put64(&mut self.undefined[to], other.undefined[from].0, lanes);
            self.origins[to] = other.origins[from];
        }
    }

    /// Makes room for so many registers.
    pub(super) fn resize(&mut self, registers: usize) {
        self.lanes.resize(registers, 0);
        self.undefined.resize(registers, Row64([u64::MAX; LANES]));
        self.origins.resize(registers, None);
    }
}

impl Source {
    /// The undefined bits of a lane.
    fn undefined(&self, definedness: &Definedness, lane: usize) -> u64 {
        self.tracked.map_or(0, |tracked| definedness.bits(tracked, lane) & self.bits)
    }

    fn value(&self, regs: &Registers, lane: usize) -> u64 {
        self.value.map_or(0, |slot| lane_value(regs, slot, lane))
    }
}

impl Context<'_> {
    /// Reports lanes in which undefined values decide something.
    pub(super) fn check_defined(&mut self, warp: &mut Warp, pc: u32, exec: u32, at: u32) {
        let check = &self.code.checks[at as usize];
        for register in &check.registers {
            self.check_register(warp, pc, exec, *register);
        }
    }

    /// Reports lanes that use a tracked register whose value they never had.
    pub(super) fn check_register(&mut self, warp: &mut Warp, pc: u32, exec: u32, register: Checked) {
        let Checked { tracked, ty, bits } = register;
        let undefined = |lane: &usize| warp.definedness.bits(tracked, *lane) & bits != 0;
        let missing = lanes_of(warp.definedness.missing(tracked, exec)).filter(undefined);
        let missing = missing.fold(0u32, |lanes, lane| lanes | 1 << lane);
        if missing == 0 || !self.checks.initcheck {
            return;
        }
        match warp.definedness.origin(tracked) {
            Some(Origin::Local { pc: load, address }) => {
                let at = Some((Space::Local, address));
                self.finding(warp, load, missing, Tool::Initcheck, "uninitialised-local", at, || {
                    (
                        "uses what it loads from local memory that this thread never wrote".to_owned(),
                        "write the variable on every path that leads here".to_owned(),
                    )
                });
            }
            origin => {
                let (read, ty) = match origin {
                    Some(Origin::Register { pc, ty }) => (pc, ty),
                    _ => (pc, ty),
                };
                let line = self.code.position(pc).line;
                self.finding(warp, read, missing, Tool::Initcheck, "uninitialised-register", None, || {
                    let ty = ty.map_or_else(String::new, |t| format!(".{t} "));
                    let used = if read == pc || line == 0 {
                        String::new()
                    } else {
                        format!(", and line {line} uses what comes of it")
                    };
                    (
                        format!("reads a {ty}register that this thread never wrote{used}"),
                        "write the register on every path that leads here, or guard this instruction with the same \
                         predicate"
                            .to_owned(),
                    )
                });
            }
        }
        // Once is enough: what follows from it would only repeat the finding.
        warp.definedness.define(tracked, missing);
    }

    /// Passes definedness from the operands of the instruction that follows to its results.
    #[cold]
    pub(super) fn pass_definedness(&mut self, warp: &mut Warp, pc: u32, exec: u32) {
        let passings = &self.code.passings;
        if let Ok(at) = passings.binary_search_by_key(&pc, |passing| passing.pc) {
            pass(warp, pc, exec, &passings[at]);
        }
    }
}

fn pass(warp: &mut Warp, pc: u32, exec: u32, passing: &Passing) {
    let missing = |s: &&Source| s.tracked.is_some_and(|t| warp.definedness.missing(t, exec) != 0);
    let origin = passing.sources.iter().find(missing).and_then(|source| {
        let before = source.tracked.and_then(|tracked| warp.definedness.origin(tracked));
        before.or((!passing.copies).then_some(Origin::Register { pc, ty: source.ty }))
    });
    for lane in lanes_of(exec) {
        // All before any: a source may be a target.
        let of_lane = Lane { regs: &warp.regs, definedness: &warp.definedness, lane };
        let results = of_lane.results(passing);
        for (target, bits) in passing.targets.iter().zip(results) {
            if let Some(target) = target {
                warp.definedness.set(target.tracked, lane, bits & target.bits, origin);
            }
        }
    }
}

/// The operands of a lane.
struct Lane<'a> {
    regs: &'a Registers,
    definedness: &'a Definedness,
    lane: usize,
}

/// The most targets that an instruction has.
const MOST: usize = 4;

impl Lane<'_> {
    fn value(&self, source: &Source) -> u64 {
        source.value(self.regs, self.lane)
    }

    fn undefined(&self, source: &Source) -> u64 {
        source.undefined(self.definedness, self.lane)
    }

    /// The undefined bits of the targets.
    fn results(&self, passing: &Passing) -> [u64; MOST] {
        let sources = &passing.sources;
        let any = sources.iter().fold(0, |bits, source| bits | self.undefined(source));
        let all = if any == 0 { 0 } else { u64::MAX };
        match &passing.rule {
            Rule::Any => [all; MOST],
            Rule::Carry => [all & u64::MAX.checked_shl(any.trailing_zeros()).unwrap_or(0); MOST],
            Rule::Logic { table } => [self.logic(sources, *table); MOST],
            Rule::Move { inst, moved } => {
                let (moved, places) = sources.split_at_checked(*moved).unwrap_or((sources, &[]));
                if places.iter().any(|source| self.undefined(source) != 0) {
                    return [u64::MAX; MOST];
                }
                let mut operands = [0; MOST];
                let of_places = places.iter().map(|source| self.value(source));
                let values = moved.iter().map(|source| self.undefined(source)).chain(of_places);
                operands.iter_mut().zip(values).for_each(|(operand, value)| *operand = value);
                [scalar::moved(inst, operands); MOST]
            }
            Rule::Compare { cmp, ty, combine } => self.compare(sources, (*cmp, *ty), *combine),
            Rule::Pack { bits } => {
                let parts = sources.iter().rev();
                let whole = parts.fold(0u64, |whole, source| {
                    whole.checked_shl(*bits).unwrap_or(0) | self.undefined(source)
                });
                [whole; MOST]
            }
            Rule::Unpack { bits } => {
                std::array::from_fn(|part| any.checked_shr(*bits * part as u32).unwrap_or(0))
            }
        }
    }

    /// The bits that differ for some values of the undefined ones.
    fn logic(&self, sources: &[Source], table: u8) -> u64 {
        let operand = |i: usize| {
            let Some(source) = sources.get(i) else { return (0, 0) };
            let (value, undefined) = (self.value(source), self.undefined(source));
            if matches!(source.value, Some(Slot::P(_))) {
                (0u64.wrapping_sub(value & 1), if undefined & 1 != 0 { u64::MAX } else { 0 })
            } else {
                (value, undefined)
            }
        };
        let operands = [operand(0), operand(1), operand(2)];
        let result = |flips: u32| {
            let [a, b, c] = std::array::from_fn(|i| {
                let (value, undefined) = operands[i];
                if flips >> i & 1 != 0 { value ^ undefined } else { value }
            });
            let minterm = |i: u32| {
                let pick = |x: u64, bit: u32| if i >> bit & 1 != 0 { x } else { !x };
                if table >> i & 1 != 0 { pick(a, 2) & pick(b, 1) & pick(c, 0) } else { 0 }
            };
            (0..8).fold(0, |bits, i| bits | minterm(i))
        };
        let first = result(0);
        (1..8).fold(0, |bits, flips| bits | (result(flips) ^ first))
    }

    /// Whether a comparison, and its complement, can turn out one way or the other.
    fn compare(
        &self,
        sources: &[Source],
        (cmp, ty): (CmpOp, ScalarType),
        combine: Option<(BoolOp, bool)>,
    ) -> [u64; MOST] {
        let [a, b, third @ ..] = sources else { return [u64::MAX; MOST] };
        let (values, undefined) = ([a, b].map(|s| self.value(s)), [a, b].map(|s| self.undefined(s)));
        let outcomes = scalar::outcomes(cmp, ty, values, undefined);
        let thirds: [bool; 2] = match (third.first(), combine) {
            (Some(p), Some((_, negated))) => {
                let value = (self.value(p) & 1 != 0) != negated;
                [value, value != (self.undefined(p) & 1 != 0)]
            }
            _ => [false; 2],
        };
        let varies = |complement: bool| {
            let results = outcomes.iter().flat_map(|outcome| {
                thirds.iter().map(move |third| {
                    scalar::combine(*outcome != complement, combine.map(|(op, _)| (op, *third)))
                })
            });
            let mut results = results;
            let first = results.next();
            u64::from(results.any(|result| Some(result) != first))
        };
        [varies(false), varies(true), 0, 0]
    }
}

/// A shuffle of a tracked register: lanes take over the definedness of those that they read.
#[inline(always)]
pub(super) fn shuffle(
    warp: &mut Warp,
    pc: u32,
    exec: u32,
    passing: &Shuffled,
    from: impl FnOnce(&Registers) -> [u8; LANES],
) {
    if passing.source.tracked.is_none_or(|tracked| warp.definedness.missing(tracked, u32::MAX) == 0) {
        warp.definedness.define(passing.target, exec);
        return;
    }
    let from = from(&warp.regs);
    shuffle_undefined(warp, pc, exec, *passing, &from);
}

#[cold]
fn shuffle_undefined(warp: &mut Warp, pc: u32, exec: u32, passing: Shuffled, from: &[u8; LANES]) {
    let Shuffled { source, target } = passing;
    let bits = from.map(|lane| source.undefined(&warp.definedness, usize::from(lane) % LANES));
    let before = source.tracked.and_then(|tracked| warp.definedness.origin(tracked));
    let origin = before.or(Some(Origin::Register { pc, ty: source.ty }));
    for lane in lanes_of(exec) {
        warp.definedness.set(target, lane, bits[lane], origin);
    }
}

#[cfg(test)]
mod tests;
