//! V-USE: what is computed is used.

use super::{Breach, Checker, Rule};
use crate::inst::*;
use crate::types::StateSpace;

/// V-USE-1. Compilers leave copies, parameters and debug code behind, so those are not worth a remark.
pub(super) fn check(cx: &mut Checker<'_>) {
    if cx.module.debug {
        return;
    }
    let function = cx.function;
    let mut read = vec![false; function.registers.len()];
    let mut own = Vec::new();
    for block in &function.blocks {
        for instruction in &block.instructions {
            own.clear();
            instruction.inst.visit(|role, r| {
                if role == Role::Def {
                    own.push(r);
                }
            });
            if let Some(guard) = instruction.guard {
                read[guard.reg.0 as usize] = true;
            }
            instruction.inst.visit(|role, r| {
                // A counter that only counts is not used.
                if role == Role::Use && !own.contains(&r) {
                    read[r.0 as usize] = true;
                }
            });
            if instruction.inst.has_side_effects() {
                instruction.inst.visit(|role, r| read[r.0 as usize] |= role == Role::Use);
            }
        }
        if let Some(r) = block.terminator.condition() {
            read[r.0 as usize] = true;
        }
    }
    for result in function.returns.iter().filter_map(|p| p.register) {
        read[result.0 as usize] = true;
    }
    cx.each(|cx, instruction| {
        let inst = &instruction.inst;
        if inst.has_side_effects() || !is_work(inst) || !cx.cfg.is_reachable(cx.block) {
            return;
        }
        let (mut results, mut used) = (0, false);
        inst.visit(|role, r| {
            if role == Role::Def {
                results += 1;
                used |= read[r.0 as usize];
            }
        });
        if results > 0 && !used {
            cx.report_with(
                Rule::Use1,
                Breach::Unused,
                Vec::new(),
                Some("remove the instruction, or use what it computes"),
            );
        }
    });
}

/// Whether an instruction computes or loads something, so that it is there for its result.
fn is_work(inst: &Inst) -> bool {
    match inst {
        Inst::Unary { .. }
        | Inst::Ternary { .. }
        | Inst::Bfi { .. }
        | Inst::Lop3 { .. }
        | Inst::Dp4a { .. }
        | Inst::Setp { .. }
        | Inst::Set { .. }
        | Inst::Selp { .. }
        | Inst::Mma(_) => true,
        // The carry of an addition may be all that is wanted of it.
        Inst::Binary { op, .. } => {
            !matches!(op, BinaryOp::AddCc | BinaryOp::AddcCc | BinaryOp::SubCc | BinaryOp::SubcCc)
        }
        Inst::Ld { space, .. } => !matches!(space, StateSpace::Param | StateSpace::Local),
        _ => false,
    }
}
