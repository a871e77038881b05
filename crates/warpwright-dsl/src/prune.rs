//! Leaves out what a kernel computes and does not use.
//!
//! A routine of the language records all that it may give, such as both halves of a product or every word of a fragment, and
//! kernels take what they need. The assembler removes the rest; without it the text is shorter and the verifier has nothing
//! to remark.

use warpwright_ptx::{BinaryOp, Function, Inst, Instruction, Reg, Role, Terminator, TernaryOp};

/// Removes instructions that are there for results which nothing needs, and their registers. Needed is what an instruction
/// with effects or a branch reads, and what instructions with needed results read.
pub(crate) fn drop_unused(function: &mut Function) {
    let needed = needed(function);
    let is_needed = |instruction: &Instruction| {
        let mut any = stays(&instruction.inst);
        instruction.inst.visit(|role, r| any |= role == Role::Def && needed[index(r)]);
        any
    };
    let mut kept_before = Vec::new();
    for block in &mut function.blocks {
        let keep: Vec<bool> = block.instructions.iter().map(is_needed).collect();
        // The terminator's location stands behind those of the instructions.
        let kept = |at: usize| keep.get(at).copied().unwrap_or(true);
        retain(&mut block.instructions, kept);
        retain(&mut block.locations, kept);
        kept_before.push(keep);
    }
    for pragma in &mut function.pragmas {
        let keep = &kept_before[pragma.block.0 as usize];
        let before = keep.iter().take(pragma.index as usize).filter(|kept| **kept).count();
        pragma.index = u32::try_from(before).unwrap_or(u32::MAX);
    }
    drop_unused_registers(function);
}

fn index(r: Reg) -> usize {
    r.0 as usize
}

fn retain<T>(list: &mut Vec<T>, kept: impl Fn(usize) -> bool) {
    let mut at = 0..;
    list.retain(|_| at.next().is_some_and(&kept));
}

/// Whether the instruction is there for more than its results. A carry is one that no register holds.
fn stays(inst: &Inst) -> bool {
    let carries = match inst {
        Inst::Binary { op, .. } => {
            matches!(op, BinaryOp::AddCc | BinaryOp::AddcCc | BinaryOp::SubCc | BinaryOp::SubcCc)
        }
        Inst::Ternary { op, .. } => {
            matches!(op, TernaryOp::MadLoCc | TernaryOp::MadHiCc | TernaryOp::MadcLoCc | TernaryOp::MadcHiCc)
        }
        _ => false,
    };
    let mut results = false;
    inst.visit(|role, _| results |= role == Role::Def);
    carries || !results || inst.has_side_effects()
}

/// Registers that are needed, and those of them whose definitions were not looked at yet.
struct Needed {
    flags: Vec<bool>,
    pending: Vec<Reg>,
}

impl Needed {
    fn add(&mut self, r: Reg) {
        if !std::mem::replace(&mut self.flags[index(r)], true) {
            self.pending.push(r);
        }
    }

    fn add_read_by(&mut self, instruction: &Instruction) {
        instruction.guard.iter().for_each(|guard| self.add(guard.reg));
        instruction.inst.visit(|role, r| {
            if role == Role::Use {
                self.add(r);
            }
        });
    }
}

/// Which registers are needed.
fn needed(function: &Function) -> Vec<bool> {
    let all = || function.blocks.iter().flat_map(|block| &block.instructions);
    // Where each register gets its values: at one place, or at several for a variable.
    let mut definitions: Vec<Vec<&Instruction>> = vec![Vec::new(); function.registers.len()];
    for instruction in all() {
        instruction.inst.visit(|role, r| {
            if role == Role::Def {
                definitions[index(r)].push(instruction);
            }
        });
    }
    let mut needed = Needed { flags: vec![false; function.registers.len()], pending: Vec::new() };
    function.blocks.iter().filter_map(|block| block.terminator.condition()).for_each(|r| needed.add(r));
    all().filter(|instruction| stays(&instruction.inst)).for_each(|i| needed.add_read_by(i));
    while let Some(r) = needed.pending.pop() {
        definitions[index(r)].iter().for_each(|instruction| needed.add_read_by(instruction));
    }
    needed.flags
}

/// Takes out the registers that no instruction mentions, and closes the gaps.
fn drop_unused_registers(function: &mut Function) {
    let mut mentioned = vec![false; function.registers.len()];
    for block in &function.blocks {
        for instruction in &block.instructions {
            instruction.guard.iter().for_each(|guard| mentioned[index(guard.reg)] = true);
            instruction.inst.visit(|_, r| mentioned[index(r)] = true);
        }
        block.terminator.condition().into_iter().for_each(|r| mentioned[index(r)] = true);
    }
    let mut new = Vec::with_capacity(mentioned.len());
    let mut next = 0;
    for &kept in &mentioned {
        new.push(Reg(next));
        next += u32::from(kept);
    }
    let rename = |r: &mut Reg| *r = new[index(*r)];
    retain(&mut function.registers, |at| mentioned[at]);
    for block in &mut function.blocks {
        for Instruction { guard, inst } in &mut block.instructions {
            guard.iter_mut().for_each(|guard| rename(&mut guard.reg));
            inst.visit_mut(|_, r| rename(r));
        }
        match &mut block.terminator {
            Terminator::Branch { pred, .. } => rename(&mut pred.reg),
            Terminator::BranchIndexed { index, .. } => rename(index),
            Terminator::Jump { .. } | Terminator::Ret | Terminator::Exit => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use warpwright_ptx::{Pragma, text, verify};

    use super::*;

    /// The function with this body and what nothing needs left out; how many instructions that were.
    fn pruned(body: &str) -> (Function, usize) {
        let source = format!(
            ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 x) {{
                .reg .pred %p<9>; .reg .b32 %r<99>; .reg .b64 %rd<9>;\n{body}\n}}\n"
        );
        let parsed = text::parse(&source);
        assert!(!parsed.has_errors(), "{:?}", parsed.diagnostics);
        let mut module = parsed.module;
        let count = |function: &Function| function.blocks.iter().map(|b| b.instructions.len()).sum::<usize>();
        let before = count(&module.functions[0]);
        drop_unused(&mut module.functions[0]);
        let findings = verify::verify(&module);
        assert!(findings.is_empty(), "{findings:?}");
        let function = module.functions.remove(0);
        let dropped = before - count(&function);
        (function, dropped)
    }

    /// Of `body`, `remaining` must remain.
    fn check(body: &str, remaining: &str) {
        let ((pruned, _), (expected, dropped)) = (pruned(body), pruned(remaining));
        assert_eq!(dropped, 0, "all of it is needed");
        assert_eq!((pruned.blocks, pruned.registers), (expected.blocks, expected.registers));
    }

    #[test]
    fn chains_of_unused_results_go_and_effects_stay() {
        check(
            "ld.param.u64 %rd1, [x];
             mov.u32 %r1, %tid.x;
             add.u32 %r2, %r1, 1;
             mul.lo.u32 %r3, %r2, %r2;
             ld.global.u32 %r4, [%rd1];
             ld.volatile.global.u32 %r5, [%rd1];
             ld.global.v2.u32 {%r6, %r7}, [%rd1];
             setp.eq.u32 %p1, %r1, 3;
             setp.eq.u32 %p2, %r1, 4;
             @%p1 add.u32 %r8, %r1, 2;
             atom.global.add.u32 %r9, [%rd1], 1;
             @%p2 st.global.u32 [%rd1], %r7;
             ret;",
            "ld.param.u64 %rd1, [x];
             mov.u32 %r1, %tid.x;
             ld.volatile.global.u32 %r5, [%rd1];
             ld.global.v2.u32 {%r6, %r7}, [%rd1];
             setp.eq.u32 %p2, %r1, 4;
             atom.global.add.u32 %r9, [%rd1], 1;
             @%p2 st.global.u32 [%rd1], %r7;
             ret;",
        );
    }

    #[test]
    fn a_sum_that_only_a_loop_reads_goes_and_its_counter_stays() {
        check(
            "ld.param.u64 %rd1, [x];
             mov.u32 %r1, 0;
             mov.u32 %r2, 0;
             LOOP:
             add.u32 %r1, %r1, 1;
             add.u32 %r2, %r2, %r1;
             setp.lt.u32 %p1, %r1, 9;
             @%p1 bra LOOP;
             st.global.u32 [%rd1], 5;
             ret;",
            "ld.param.u64 %rd1, [x];
             mov.u32 %r1, 0;
             LOOP:
             add.u32 %r1, %r1, 1;
             setp.lt.u32 %p1, %r1, 9;
             @%p1 bra LOOP;
             st.global.u32 [%rd1], 5;
             ret;",
        );
    }

    #[test]
    fn carries_are_results_without_a_register() {
        let (_, dropped) = pruned(
            "ld.param.u64 %rd1, [x];
             add.cc.u32 %r1, 4294967295, 1;
             addc.u32 %r2, 0, 0;
             st.global.u32 [%rd1], %r2;
             ret;",
        );
        assert_eq!(dropped, 0);
    }

    #[test]
    fn pragmas_stay_before_their_instruction() {
        let mut module = text::parse(
            ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 x) {
                .reg .b32 %r<9>; .reg .b64 %rd<9>;
                mov.u32 %r1, 1; ld.param.u64 %rd1, [x]; mov.u32 %r2, 2; st.global.u32 [%rd1], 5; ret;\n}\n",
        )
        .module;
        let function = &mut module.functions[0];
        let pragma = |index| Pragma { block: warpwright_ptx::BlockId(0), index, text: "nounroll".to_owned() };
        function.pragmas = vec![pragma(0), pragma(3), pragma(4)];
        drop_unused(function);
        let places: Vec<_> = function.pragmas.iter().map(|pragma| pragma.index).collect();
        assert_eq!((places, function.blocks[0].instructions.len()), (vec![0, 1, 2], 2));
        assert_eq!(function.registers.len(), 1);
    }
}
