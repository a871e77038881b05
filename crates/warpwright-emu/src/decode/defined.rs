//! Which registers may be read before they are written: only those are tracked while a kernel runs.

use std::collections::HashMap;

use warpwright_ptx::{Function, FunctionKind, Inst, Reg, Role, StateSpace};

use super::passing;

/// Whether an access may be one to local memory. What a load takes from there is not used yet, and what a store puts
/// there neither: compilers copy objects of which only parts were written.
pub(crate) fn is_local(inst: &Inst) -> bool {
    let space = match inst {
        Inst::Ld { space, .. } | Inst::St { space, .. } => *space,
        _ => return false,
    };
    matches!(space, StateSpace::Local | StateSpace::Param | StateSpace::Generic)
}

/// Whether a function can reach local memory.
fn has_frame(function: &Function) -> bool {
    let framed = |space| matches!(space, StateSpace::Local | StateSpace::Param);
    function.kind != FunctionKind::Entry || function.variables.iter().any(|v| framed(v.space))
}

/// Blocks times registers beyond which every register is tracked: the analysis takes a bit for each.
const MAX_ANALYSIS: usize = 1 << 28;

#[derive(Clone, PartialEq)]
struct Bits(Vec<u64>);

impl Bits {
    fn new(len: usize, value: bool) -> Self {
        Self(vec![if value { u64::MAX } else { 0 }; len.div_ceil(64)])
    }

    fn get(&self, i: usize) -> bool {
        self.0.get(i / 64).is_some_and(|w| w >> (i % 64) & 1 != 0)
    }

    fn set(&mut self, i: usize, value: bool) {
        if let Some(w) = self.0.get_mut(i / 64) {
            *w = *w & !(1 << (i % 64)) | u64::from(value) << (i % 64);
        }
    }

    /// Union; whether anything was added.
    fn join(&mut self, other: &Self) -> bool {
        let mut changed = false;
        for (a, b) in self.0.iter_mut().zip(&other.0) {
            changed |= *b & !*a != 0;
            *a |= *b;
        }
        changed
    }
}

/// The tracked registers of a function.
pub(crate) struct Analysis {
    pub(crate) tracked: Vec<Reg>,
    slots: HashMap<Reg, u32>,
    /// Whether values of local memory are followed until they are used.
    pub(crate) follows: bool,
}

impl Analysis {
    /// Looks at a function; its first tracked register has number `first`.
    pub(crate) fn new(function: &Function, first: u32) -> Self {
        let (count, follows) = (function.registers.len(), has_frame(function));
        if count.saturating_mul(function.blocks.len()) > MAX_ANALYSIS {
            let tracked: Vec<Reg> = (0..count).filter_map(|i| u32::try_from(i).ok()).map(Reg).collect();
            let slots = tracked.iter().zip(first..).map(|(r, i)| (*r, i)).collect();
            return Self { tracked, slots, follows };
        }
        let mut maybe = vec![Bits::new(count, false); function.blocks.len()];
        let mut used = Bits::new(count, false);
        if let Some(entry) = maybe.first_mut() {
            *entry = Bits::new(count, true);
            // The caller writes the parameters.
            function.params.iter().filter_map(|p| p.register).for_each(|r| entry.set(r.0 as usize, false));
        }
        let mut work: Vec<usize> = if function.blocks.is_empty() { Vec::new() } else { vec![0] };
        let mut seen = vec![false; function.blocks.len()];
        while let Some(at) = work.pop() {
            let Some(block) = function.blocks.get(at) else { continue };
            seen[at] = true;
            let mut state = maybe[at].clone();
            for instruction in &block.instructions {
                if let Some(guard) = instruction.guard {
                    note(&state, &mut used, guard.reg);
                }
                let load = matches!(instruction.inst, Inst::Ld { .. });
                let mut undefined = follows && load && is_local(&instruction.inst);
                // Where operands are passed on, results of maybe undefined ones are maybe undefined.
                passing::passed(&instruction.inst, |r| undefined |= state.get(r.0 as usize));
                instruction.inst.visit(|role, r| match role {
                    Role::Use => note(&state, &mut used, r),
                    Role::Def if instruction.guard.is_none() => state.set(r.0 as usize, undefined),
                    Role::Def => {
                        if undefined {
                            state.set(r.0 as usize, true);
                        }
                    }
                });
            }
            if let Some(decides) = block.terminator.condition() {
                note(&state, &mut used, decides);
            }
            for next in block.terminator.successors() {
                let next = next.0 as usize;
                if maybe.get_mut(next).is_some_and(|m| m.join(&state)) || seen.get(next) == Some(&false) {
                    work.push(next);
                }
            }
        }
        let tracked: Vec<Reg> =
            (0..count).filter(|i| used.get(*i)).filter_map(|i| u32::try_from(i).ok()).map(Reg).collect();
        let slots = tracked.iter().zip(first..).map(|(r, i)| (*r, i)).collect();
        Self { tracked, slots, follows }
    }

    pub(crate) fn slot(&self, r: Reg) -> Option<u32> {
        self.slots.get(&r).copied()
    }
}

fn note(state: &Bits, used: &mut Bits, r: Reg) {
    if state.get(r.0 as usize) {
        used.set(r.0 as usize, true);
    }
}
