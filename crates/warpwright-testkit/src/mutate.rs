//! Wrong kernels made from right ones: what a test suite must notice.
//!
//! Each mutant differs in one place: a barrier, fence or wait is gone, or a bound is off by one in either direction. A tightened
//! bound of a vector path may be harmless (the scalar path takes over), so what must hold is that of the two
//! perturbations of every bound at least one is noticed, by a sanitizer or by a wrong number.

use warpwright_ptx::inst::{BinaryOp, Inst, Instruction, Modifiers, Operand, ProxyFence};
use warpwright_ptx::module::{Module, RegKind, SourceLoc};

/// A mutation: one change of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mutation {
    /// A barrier of a warp, a block or a cluster (one half of it) was removed.
    BarrierRemoved,
    /// A fence, a wait for asynchronous operations, or the end of a group of them was removed.
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

/// One defect of a module.
#[derive(Clone, Copy, Debug)]
pub struct Mutant {
    /// The defect.
    pub mutation: Mutation,
    /// Where it is; mutants of one site belong together.
    pub site: Site,
    /// The line that recorded the instruction.
    pub location: SourceLoc,
}

impl Mutant {
    /// `module`, of which this is a mutant, with the defect.
    pub fn of(&self, module: &Module) -> Module {
        all_of(module, std::slice::from_ref(self))
    }
}

/// `module` with all of these mutants' defects, which are in the order of their sites: what a mistake in a line gives that
/// is recorded more than once.
pub fn all_of(module: &Module, mutants: &[Mutant]) -> Module {
    let mut module = module.clone();
    // From the end on, so that the sites stay where they are.
    for mutant in mutants.iter().rev() {
        match mutant.mutation {
            Mutation::BoundShifted { by } => shift(&mut module, mutant.site, by),
            _ => remove(&mut module, mutant.site),
        }
    }
    module
}

/// Every mutant of `module`, in order of their sites. The two instructions of dependent launches are not among them: a
/// kernel that does not wait for the grid in front of it is launched after that grid, and one that does not announce the
/// next only delays it.
pub fn mutants(module: &Module) -> Vec<Mutant> {
    let mut out = Vec::new();
    for (function, f) in module.functions.iter().enumerate() {
        for (block, b) in f.blocks.iter().enumerate() {
            for (index, instruction) in b.instructions.iter().enumerate() {
                let site = Site { function, block, index };
                let location = b.location(index);
                let mut push = |mutation| out.push(Mutant { mutation, site, location });
                match &instruction.inst {
                    Inst::Barrier { .. } | Inst::WarpBarrier { .. } | Inst::ClusterBarrier { .. } => {
                        push(Mutation::BarrierRemoved);
                    }
                    inst if orders(inst) => push(Mutation::OrderRemoved),
                    Inst::Setp { ty, .. } if ty.is_integer() => {
                        [-1, 1].into_iter().for_each(|by| push(Mutation::BoundShifted { by }));
                    }
                    _ => {}
                }
            }
        }
    }
    out
}

/// Whether an instruction does nothing but order others.
fn orders(inst: &Inst) -> bool {
    matches!(
        inst,
        Inst::Fence { .. }
            | Inst::FenceRestricted { .. }
            | Inst::ProxyFence(ProxyFence::Async(_))
            | Inst::MbarrierInitFence
            | Inst::CpAsyncCommit
            | Inst::CpAsyncWait { .. }
            | Inst::BulkCommit
            | Inst::BulkWait { .. }
            | Inst::WgmmaFence
            | Inst::WgmmaCommit
            | Inst::WgmmaWait { .. }
            | Inst::MbarrierWait { .. }
    )
}

fn remove(module: &mut Module, site: Site) {
    let block = &mut module.functions[site.function].blocks[site.block];
    let inst = &mut block.instructions[site.index].inst;
    if let Inst::MbarrierWait { dst, .. } = *inst {
        // Code behind it asks whether the phase is over.
        *inst = Inst::PredMov { dst, a: Operand::int(1) };
        return;
    }
    block.instructions.remove(site.index);
    if site.index < block.locations.len() {
        block.locations.remove(site.index);
    }
}

/// Inserts `shifted = a + by` in front of a comparison of `a` and compares that.
fn shift(module: &mut Module, site: Site, by: i64) {
    let function = &mut module.functions[site.function];
    let Inst::Setp { ty, a, .. } = function.blocks[site.block].instructions[site.index].inst else {
        return;
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
}
