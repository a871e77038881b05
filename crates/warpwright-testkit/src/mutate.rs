//! Wrong kernels made from right ones: what a test suite must notice.
//!
//! Each mutant differs in one place: a barrier, fence or wait is gone, or a bound is off by one in either direction. A tightened
//! bound of a vector path may be harmless (the scalar path takes over), so what must hold is that of the two
//! perturbations of every bound at least one is noticed, by a sanitizer or by a wrong number.

use warpwright_ptx::inst::{BinaryOp, Inst, Instruction, Modifiers, Operand, ProxyFence};
use warpwright_ptx::module::{Module, RegKind, SourceLoc};

/// What was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mutation {
    /// A block or warp barrier was removed.
    BarrierRemoved,
    /// A fence, or a wait for asynchronous operations, was removed.
    OrderRemoved,
    /// The left side of an integer comparison was shifted.
    BoundShifted {
        /// By how much.
        by: i64,
    },
}

/// Where it was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Site {
    /// Index of the function.
    pub function: usize,
    /// Index of the basic block.
    pub block: usize,
    /// Index of the instruction in the block.
    pub index: usize,
}

/// A module with one defect.
#[derive(Clone, Debug)]
pub struct Mutant {
    /// The defect.
    pub mutation: Mutation,
    /// Where it is; mutants of one site belong together.
    pub site: Site,
    /// The line that recorded the instruction.
    pub location: SourceLoc,
    /// The defective module.
    pub module: Module,
}

/// Every mutant of `module`, in order of their sites.
pub fn mutants(module: &Module) -> Vec<Mutant> {
    let mut out = Vec::new();
    for (function, f) in module.functions.iter().enumerate() {
        for (block, b) in f.blocks.iter().enumerate() {
            for (index, instruction) in b.instructions.iter().enumerate() {
                let site = Site { function, block, index };
                let location = b.location(index);
                let mut push = |mutation, module| out.push(Mutant { mutation, site, location, module });
                match &instruction.inst {
                    Inst::Barrier { .. } | Inst::WarpBarrier { .. } => {
                        push(Mutation::BarrierRemoved, without(module, site));
                    }
                    Inst::Fence { .. }
                    | Inst::ProxyFence(ProxyFence::Async(_))
                    | Inst::MbarrierInitFence
                    | Inst::CpAsyncWait { .. }
                    | Inst::BulkWait { .. }
                    | Inst::WgmmaFence
                    | Inst::WgmmaWait { .. } => push(Mutation::OrderRemoved, without(module, site)),
                    Inst::Setp { ty, .. } if ty.is_integer() => {
                        for by in [-1, 1] {
                            push(Mutation::BoundShifted { by }, shifted(module, site, by));
                        }
                    }
                    _ => {}
                }
            }
        }
    }
    out
}

fn without(module: &Module, site: Site) -> Module {
    let mut module = module.clone();
    let block = &mut module.functions[site.function].blocks[site.block];
    block.instructions.remove(site.index);
    if site.index < block.locations.len() {
        block.locations.remove(site.index);
    }
    module
}

/// Inserts `shifted = a + by` in front of a comparison of `a` and compares that.
fn shifted(module: &Module, site: Site, by: i64) -> Module {
    let mut module = module.clone();
    let function = &mut module.functions[site.function];
    let Inst::Setp { ty, a, .. } = function.blocks[site.block].instructions[site.index].inst else {
        return module;
    };
    let dst = function.new_reg(ty, RegKind::Value);
    let block = &mut function.blocks[site.block];
    if let Inst::Setp { a, .. } = &mut block.instructions[site.index].inst {
        *a = Operand::Reg(dst);
    }
    let add = Inst::Binary { op: BinaryOp::Add, ty, mods: Modifiers::NONE, dst, a, b: Operand::int(by) };
    block.instructions.insert(site.index, Instruction::from(add));
    if site.index < block.locations.len() {
        let location = block.locations[site.index];
        block.locations.insert(site.index, location);
    }
    module
}
