//! How many registers a function needs at once.

use crate::cfg::Cfg;
use crate::inst::{BlockId, Reg, Role};
use crate::module::{Function, SourceLoc};
use crate::types::ScalarType;

/// The place at which most registers are alive.
///
/// An estimate of what the assembler will allocate: it reorders and recomputes, keeps addresses and constants elsewhere,
/// and adds a few registers of its own.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Pressure {
    /// 32-bit registers that are alive at once; wider ones count as two or four.
    pub registers: u32,
    /// Predicates that are alive at once.
    pub predicates: u32,
    /// The block in which most 32-bit registers are alive.
    pub block: BlockId,
    /// The instruction after which they are.
    pub index: usize,
    /// Where that instruction came from.
    pub location: SourceLoc,
}

/// A set of registers.
#[derive(Clone, PartialEq, Eq)]
struct Set(Vec<u64>);

impl Set {
    fn new(registers: usize) -> Self {
        Self(vec![0; registers.div_ceil(64)])
    }

    fn insert(&mut self, r: Reg) -> bool {
        let Some(word) = self.0.get_mut(r.0 as usize / 64) else { return false };
        let before = *word;
        *word |= 1 << (r.0 % 64);
        before != *word
    }

    fn remove(&mut self, r: Reg) -> bool {
        let Some(word) = self.0.get_mut(r.0 as usize / 64) else { return false };
        let before = *word;
        *word &= !(1 << (r.0 % 64));
        before != *word
    }

    /// Whether the union is larger than this.
    fn join(&mut self, other: &Self) -> bool {
        let mut changed = false;
        for (a, b) in self.0.iter_mut().zip(&other.0) {
            changed |= *b & !*a != 0;
            *a |= b;
        }
        changed
    }

    fn iter(&self) -> impl Iterator<Item = Reg> {
        (0u32..).zip(&self.0).flat_map(|(i, word)| {
            let mut word = *word;
            std::iter::from_fn(move || {
                (word != 0).then(|| {
                    let bit = word.trailing_zeros();
                    word &= word - 1;
                    Reg(i * 64 + bit)
                })
            })
        })
    }
}

/// The registers and predicates that are alive, counted.
struct Alive<'f> {
    function: &'f Function,
    set: Set,
    registers: u32,
    predicates: u32,
}

impl Alive<'_> {
    fn count(&mut self, r: Reg, add: bool) {
        let Some(ty) = self.function.reg_type(r) else { return };
        let (place, n) = match ty {
            ScalarType::Pred => (&mut self.predicates, 1),
            _ => (&mut self.registers, ty.bits().div_ceil(32)),
        };
        *place = if add { *place + n } else { place.saturating_sub(n) };
    }

    fn begin(&mut self, r: Reg) {
        if self.set.insert(r) {
            self.count(r, true);
        }
    }

    fn end(&mut self, r: Reg) {
        if self.set.remove(r) {
            self.count(r, false);
        }
    }
}

/// The most words of bit sets that the analysis takes: 256 MiB.
const MAX_WORDS: usize = 1 << 25;

/// Counts the registers that are alive at each point of a function; `None` if it has no body, or if it is too large for
/// an analysis with three bits per register and block.
pub fn register_pressure(function: &Function) -> Option<Pressure> {
    let words = function.registers.len().div_ceil(64).saturating_mul(3 * function.blocks.len());
    if words > MAX_WORDS {
        return None;
    }
    let cfg = Cfg::new(function);
    let live_in = live_in(function, &cfg);
    let mut most: Option<Pressure> = None;
    let mut predicates = 0;
    for (b, block) in (0u32..).zip(&function.blocks) {
        if !cfg.is_reachable(BlockId(b)) {
            continue;
        }
        let set = Set::new(function.registers.len());
        let mut alive = Alive { function, set, registers: 0, predicates: 0 };
        for next in cfg.successors(BlockId(b)) {
            for r in live_in[next.0 as usize].iter() {
                alive.begin(r);
            }
        }
        if let Some(r) = block.terminator.condition() {
            alive.begin(r);
        }
        let mut look = |alive: &Alive<'_>, index: usize| {
            predicates = predicates.max(alive.predicates);
            if most.is_none_or(|m| alive.registers > m.registers) {
                let location = block.location(index);
                let registers = alive.registers;
                most = Some(Pressure { registers, predicates: 0, block: BlockId(b), index, location });
            }
        };
        look(&alive, block.instructions.len());
        for (index, instruction) in block.instructions.iter().enumerate().rev() {
            // Results and operands of one instruction may share registers, but a result needs one of its own kind.
            instruction.inst.visit(|role, r| {
                if role == Role::Def {
                    alive.begin(r);
                }
            });
            look(&alive, index);
            instruction.inst.visit(|role, r| {
                if role == Role::Def && instruction.guard.is_none() {
                    alive.end(r);
                }
            });
            instruction.inst.visit(|role, r| {
                if role == Role::Use {
                    alive.begin(r);
                }
            });
            if let Some(guard) = instruction.guard {
                alive.begin(guard.reg);
            }
        }
        look(&alive, 0);
    }
    most.map(|m| Pressure { predicates, ..m })
}

/// The registers that are alive where each block begins.
fn live_in(function: &Function, cfg: &Cfg) -> Vec<Set> {
    let n = function.registers.len();
    // What a block reads before it assigns it, and what it assigns whatever its guards say.
    let summaries: Vec<(Set, Set)> = (function.blocks.iter())
        .map(|block| {
            let (mut read, mut assigned) = (Set::new(n), Set::new(n));
            if let Some(r) = block.terminator.condition() {
                read.insert(r);
            }
            for instruction in block.instructions.iter().rev() {
                instruction.inst.visit(|role, r| {
                    if role == Role::Def && instruction.guard.is_none() {
                        assigned.insert(r);
                        read.remove(r);
                    }
                });
                instruction.inst.visit(|role, r| {
                    if role == Role::Use {
                        read.insert(r);
                    }
                });
                if let Some(guard) = instruction.guard {
                    read.insert(guard.reg);
                }
            }
            (read, assigned)
        })
        .collect();
    let mut live: Vec<Set> = summaries.iter().map(|(read, _)| read.clone()).collect();
    let mut changed = true;
    while changed {
        changed = false;
        for b in cfg.reverse_postorder().iter().rev() {
            let at = b.0 as usize;
            for next in cfg.successors(*b) {
                let mut through = live[next.0 as usize].clone();
                for (word, assigned) in through.0.iter_mut().zip(&summaries[at].1.0) {
                    *word &= !assigned;
                }
                changed |= live[at].join(&through);
            }
        }
    }
    live
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::parse;

    fn pressure(body: &str) -> (u32, u32, u32) {
        let head = ".version 7.0\n.target sm_80\n.entry k(.param .u64 p) { .reg .b32 r<9>; .reg .b64 d<9>; .reg .pred q<4>;\n";
        let parsed = parse(&format!("{head}{body}\nret; }}"));
        assert!(parsed.diagnostics.is_empty(), "{:?}", parsed.diagnostics);
        let found = register_pressure(&parsed.module.functions[0]).expect("a body");
        let SourceLoc::Ptx { line, .. } = found.location else { panic!("a line") };
        (found.registers, found.predicates, line)
    }

    #[test]
    fn wide_registers_count_twice_and_the_peak_is_found() {
        assert_eq!(pressure("mov.b32 r0, 1;").0, 1);
        // d0 is two, r0 to r2 are three.
        let straight = "ld.param.u64 d0, [p];\nmov.b32 r0, 1;\nmov.b32 r1, 2;\nmov.b32 r2, 3;\n\
                        add.u32 r0, r0, r1;\nadd.u32 r0, r0, r2;\nst.global.u32 [d0], r0;";
        assert_eq!(pressure(straight), (5, 0, 7));
    }

    #[test]
    fn what_a_loop_carries_stays_alive_in_it() {
        let body = "ld.param.u64 d0, [p]; mov.b32 r0, 0; mov.b32 r1, 9;\nL: mov.b32 r2, 1; mov.b32 r3, 2;\n\
                    add.u32 r2, r2, r3; add.u32 r0, r0, r2;\nsetp.lt.u32 q0, r0, r1; @q0 bra L;\nst.global.u32 [d0], r0;";
        // d0, r0, r1 around the loop and r2, r3 inside.
        let (registers, predicates, line) = pressure(body);
        assert_eq!((registers, predicates), (6, 1));
        assert!((4..=5).contains(&line), "{line}");
    }

    #[test]
    fn a_guarded_assignment_keeps_the_old_value_alive() {
        let body = "mov.b32 r0, 1; mov.b32 r1, 5; setp.lt.u32 q0, r1, 3; mov.b32 r2, 7;\n\
                    @q0 mov.b32 r0, r2; ld.param.u64 d0, [p]; st.global.u32 [d0], r0;";
        assert_eq!(pressure(body).0, 3);
        assert!(register_pressure(&Function::device("f")).is_none());
    }
}
