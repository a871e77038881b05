//! Moves that need not run: the destination can share the row of the source.
//!
//! A destination that is written once, by an unguarded move that dominates every use of it, can share its row with the
//! source if that never changes (a literal, a parameter, a special register), or is a register that is written once
//! too, before the move. Then the source is not written again between the move and a use: a path from the write to the
//! use that avoids the move would contradict that the move dominates the use. Lanes follow paths of their own, so the
//! argument holds for each of them.

use std::collections::{HashMap, HashSet};

use warpwright_ptx::cfg::Cfg;
use warpwright_ptx::{
    AddressBase, BlockId, Function, FunctionKind, Inst, Operand, Reg, Role, ScalarType, StateSpace, Symbol,
};

use crate::code::layout::{SpecialTime, special_time};

/// Where an instruction stands: block and index.
pub(crate) type Place = (u32, usize);

/// The only write of a register, if there is just one.
#[derive(Clone, Copy)]
enum Def {
    Once(Place),
    Often,
}

/// The moves that can be left out, in an order in which sources come before destinations.
pub(crate) fn find(function: &Function, tracked: &[Reg]) -> Vec<Place> {
    let cfg = Cfg::new(function);
    let mut defs: HashMap<Reg, Def> = HashMap::new();
    let mut uses: HashMap<Reg, Vec<Place>> = HashMap::new();
    for (block, b) in (0u32..).zip(&function.blocks) {
        for (index, instruction) in b.instructions.iter().enumerate() {
            if let Some(guard) = instruction.guard {
                uses.entry(guard.reg).or_default().push((block, index));
            }
            let guarded = instruction.guard.is_some();
            instruction.inst.visit(|role, r| match role {
                Role::Use => uses.entry(r).or_default().push((block, index)),
                Role::Def => {
                    let def = if guarded { Def::Often } else { Def::Once((block, index)) };
                    defs.entry(r).and_modify(|d| *d = Def::Often).or_insert(def);
                }
            });
        }
        if let Some(decides) = b.terminator.condition() {
            uses.entry(decides).or_default().push((block, b.instructions.len()));
        }
    }
    let tracked: HashSet<Reg> = tracked.iter().copied().collect();
    let before = |a: Place, b: Place| match a.0 == b.0 {
        true => a.1 < b.1,
        false => cfg.dominates(BlockId(a.0), BlockId(b.0)),
    };
    let once = |r: Reg| match defs.get(&r) {
        Some(Def::Once(place)) if !tracked.contains(&r) => Some(*place),
        _ => None,
    };
    let width = |r: Reg| function.reg_type(r).map(ScalarType::bits);
    let mut found = Vec::new();
    for block in cfg.reverse_postorder() {
        let Some(b) = function.blocks.get(block.0 as usize) else { continue };
        for (index, instruction) in b.instructions.iter().enumerate() {
            let here = (block.0, index);
            let Some((dst, source)) = copy(function, &instruction.inst) else { continue };
            let fixed = match source {
                Source::Fixed => true,
                Source::Register(r) => width(r) == width(dst) && once(r).is_some_and(|def| before(def, here)),
            };
            let dominated =
                once(dst) == Some(here) && uses.get(&dst).is_none_or(|u| u.iter().all(|u| before(here, *u)));
            if fixed && dominated {
                found.push(here);
            }
        }
    }
    found
}

/// The destination and, if it is a register, the source of a move that was found.
pub(crate) fn parts(function: &Function, (block, index): Place) -> Option<(Reg, Option<Reg>)> {
    let instruction = function.blocks.get(block as usize)?.instructions.get(index)?;
    let (dst, source) = copy(function, &instruction.inst)?;
    Some(match source {
        Source::Fixed => (dst, None),
        Source::Register(r) => (dst, Some(r)),
    })
}

enum Source {
    /// Something that does not change while a block runs.
    Fixed,
    Register(Reg),
}

/// Destination and source of an instruction that only copies 32 or 64 bits.
fn copy(function: &Function, inst: &Inst) -> Option<(Reg, Source)> {
    let bits = |r: &Reg| function.reg_type(*r).map_or(0, ScalarType::bits);
    // What a device function has in memory moves with its frame.
    let in_kernel = function.kind == FunctionKind::Entry;
    let (dst, src) = match inst {
        Inst::Mov { ty, dst, src } if ty.bits() == bits(dst) => (dst, src),
        Inst::Cvta { space: StateSpace::Global, dst, src, .. } => (dst, src),
        Inst::Ld { space: StateSpace::Param, ty, dsts, addr, .. } => {
            let [Some(dst)] = dsts.as_slice() else { return None };
            let AddressBase::Symbol(symbol) = addr.base else { return None };
            let param =
                in_kernel && matches!(function.symbols.get(symbol.0 as usize), Some(Symbol::Param(_)));
            return (param && ty.bits() <= 64 && matches!(bits(dst), 32 | 64))
                .then_some((*dst, Source::Fixed));
        }
        _ => return None,
    };
    if !matches!(bits(dst), 32 | 64) {
        return None;
    }
    let source = match src {
        Operand::Reg(r) => Source::Register(*r),
        Operand::Special(special) if special_time(*special) == SpecialTime::Read => return None,
        Operand::Symbol(symbol, _) if !in_kernel => match function.symbols.get(symbol.0 as usize)? {
            Symbol::ModuleVariable(_) | Symbol::Function(_) => Source::Fixed,
            Symbol::Param(_) | Symbol::LocalVariable(_) | Symbol::Return(_) => return None,
        },
        Operand::Special(_) | Operand::Imm(_) | Operand::Symbol(..) => Source::Fixed,
    };
    Some((*dst, source))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(body: &str) -> usize {
        let text = format!(
            ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u32 n)\n{{\n\
             .reg .pred %p<4>;\n.reg .b32 %r<8>;\n.reg .b64 %rd<4>;\n{body}\nret;\n}}\n"
        );
        let parsed = warpwright_ptx::text::parse(&text);
        assert!(!parsed.has_errors(), "{:?}", parsed.diagnostics);
        find(&parsed.module.functions[0], &[]).len()
    }

    #[test]
    fn literals_parameters_and_single_definitions_are_shared() {
        assert_eq!(
            found("mov.u32 %r0, 5;\nld.param.u32 %r1, [n];\nadd.u32 %r2, %r0, %r1;\nmov.b32 %r3, %r2;"),
            3
        );
        assert_eq!(found("mov.u32 %r0, %tid.x;\nmov.u32 %r1, %r0;\nadd.u32 %r2, %r1, 1;"), 2);
        // The clock is different at every read.
        assert_eq!(found("mov.u32 %r0, %clock;\nadd.u32 %r2, %r0, 1;"), 0);
    }

    #[test]
    fn what_changes_is_copied() {
        // A second definition of the destination, or of the source.
        assert_eq!(found("mov.u32 %r0, 5;\nadd.u32 %r0, %r0, 1;"), 0);
        assert_eq!(
            found("add.u32 %r0, 1, 1;\nmov.u32 %r1, %r0;\nadd.u32 %r0, %r0, 1;\nadd.u32 %r2, %r1, %r0;"),
            0
        );
        // A guarded move, and one that does not dominate the use.
        assert_eq!(found("setp.eq.u32 %p0, 1, 1;\n@%p0 mov.u32 %r0, 5;\nadd.u32 %r1, %r0, 1;"), 0);
        assert_eq!(
            found("setp.eq.u32 %p0, 1, 1;\n@%p0 bra L;\nmov.u32 %r0, 5;\nL:\nadd.u32 %r1, %r0, 1;"),
            0
        );
        // A loop that uses the value of the round before.
        assert_eq!(
            found(
                "add.u32 %r0, 0, 0;\nL:\nadd.u32 %r3, %r2, %r0;\nadd.u32 %r1, %r3, 1;\nmov.u32 %r2, %r1;\n\
                 setp.lt.u32 %p0, %r2, 9;\n@%p0 bra L;"
            ),
            0
        );
    }
}
