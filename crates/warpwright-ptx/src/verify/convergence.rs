//! V-CONV: barriers, warp-wide operations and aligned tensor instructions meet all their lanes.
//!
//! Who is waited for, and what splits a warp, is written in [`divergence`](super::divergence).

use super::defs::Facts;
use super::divergence::{Divergence, Origin};
use super::lanes::WARP;
use super::reaching::{Definition, Reaching};
use super::{Breach, Checker, Note, NoteKind, Rule, WholeWarp};
use crate::inst::*;
use crate::isa::DeviceLimits;
use crate::module::SourceLoc;

/// Named barriers of a block.
const BARRIERS: i64 = DeviceLimits::BLOCK_BARRIERS as i64;
/// The lane mask that names every lane.
const FULL_MASK: u32 = u32::MAX;

pub(super) fn check(cx: &mut Checker<'_>, facts: &Facts) {
    cx.each(|cx, instruction| constants(cx, facts, &instruction.inst));
    for violation in violations(cx, facts) {
        let (rule, help) = match violation.wait {
            WholeWarp::Barrier => (
                Rule::Conv1,
                "let all lanes reach it, or use `barrier.sync`, which lanes may reach one by one",
            ),
            WholeWarp::Lanes => {
                (Rule::Conv2, "let all lanes reach it, or name the lanes that do in the mask")
            }
            WholeWarp::Aligned => (Rule::Conv5, "let all lanes reach it; guard what uses the result instead"),
        };
        let mut notes = Vec::new();
        if let Some(branch) = violation.branch {
            let block = &cx.function.blocks[branch.0 as usize];
            let location = block.location(block.instructions.len());
            notes.push(Note { location, kind: NoteKind::SplitsWarp });
        }
        if let Some((what, location)) = &violation.origin {
            notes.push(Note { location: *location, kind: NoteKind::Differs(what.clone()) });
        }
        let breach = Breach::Divergent {
            wait: violation.wait,
            guarded: violation.guard.is_some(),
            depends_on: violation.origin.map(|(what, _)| what),
        };
        (cx.block, cx.index) = (violation.block, violation.index);
        cx.report_with(rule, breach, notes, Some(help));
    }
}

/// A barrier or another instruction for a whole warp that only some of its lanes may reach.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BarrierViolation {
    /// Whom the instruction waits for.
    pub wait: WholeWarp,
    /// The block.
    pub block: BlockId,
    /// The instruction in the block.
    pub index: usize,
    /// Where the instruction came from.
    pub location: SourceLoc,
    /// The guard, if it is what keeps lanes away.
    pub guard: Option<PredUse>,
    /// The block whose end keeps lanes away, if it is that.
    pub branch: Option<BlockId>,
    /// The value by which lanes begin to differ, and where it comes from.
    pub origin: Option<(String, SourceLoc)>,
}

/// The violations of a function whose references exist.
pub(super) fn violations(cx: &Checker<'_>, facts: &Facts) -> Vec<BarrierViolation> {
    let function = cx.function;
    let wait = |i: &Instruction| waits(cx, facts, &i.inst).filter(|w| *w != Wait::NamedLanes);
    let waiting: Vec<bool> =
        function.blocks.iter().map(|b| b.instructions.iter().any(|i| wait(i).is_some())).collect();
    let mut found = Vec::new();
    if !waiting.contains(&true) {
        return found;
    }
    let reaching = Reaching::new(cx, facts);
    let analysis = Divergence::new(cx, &reaching, &waiting);
    for (b, block) in (0u32..).map(BlockId).zip(&function.blocks).filter(|(b, _)| waiting[b.0 as usize]) {
        let mut later = cx.cfg.successors(b).iter().any(|s| analysis.stays(*s));
        let first = found.len();
        for (index, instruction) in block.instructions.iter().enumerate().rev() {
            let Some(wait) = wait(instruction) else { continue };
            let whole = match wait {
                Wait::Barrier => WholeWarp::Barrier,
                Wait::Lanes => WholeWarp::Lanes,
                Wait::Aligned => WholeWarp::Aligned,
                Wait::SomeLanes | Wait::NamedLanes => {
                    later = true;
                    continue;
                }
            };
            // Lanes whose guard is false are waited for elsewhere, or have left.
            let missed = std::mem::replace(&mut later, true) || wait == Wait::Aligned;
            let guard = instruction.guard.filter(|_| missed && analysis.differs(reaching.guard(b, index), b));
            let left = if wait == Wait::Aligned { analysis.left(b) } else { None };
            let branch = analysis.split(b).or(left).filter(|_| guard.is_none());
            let decides: Definition = match (guard, branch) {
                (Some(_), _) => reaching.guard(b, index),
                (None, Some(by)) => reaching.condition(by),
                (None, None) => continue,
            };
            let origin = analysis.origin(cx, decides).map(|Origin { location, what }| (what, location));
            let location = block.location(index);
            found.push(BarrierViolation { wait: whole, block: b, index, location, guard, branch, origin });
        }
        found[first..].reverse();
    }
    found
}

/// V-CONV-3 and V-CONV-4.
fn constants(cx: &mut Checker<'_>, facts: &Facts, inst: &Inst) {
    if let Inst::Barrier { id, count, .. } = inst {
        if let Operand::Imm(Imm::Int(n)) = *id
            && !(0..BARRIERS).contains(&n)
        {
            cx.report(Rule::Conv3, Breach::NoSuchBarrier { barrier: n, last: BARRIERS - 1 });
        }
        if let Some(Operand::Imm(Imm::Int(n))) = *count
            && (n <= 0 || n % WARP != 0)
        {
            cx.report(Rule::Conv3, Breach::BarrierThreads { threads: n, warp: WARP });
        }
    }
    if mask(inst).and_then(|m| constant_mask(cx, facts, m)) == Some(0) {
        cx.report(Rule::Conv4, Breach::EmptyMask);
    }
}

/// A mask that is written out, here or in the one `mov` that sets its register.
fn constant_mask(cx: &Checker<'_>, facts: &Facts, mask: Operand) -> Option<u32> {
    let value = match mask {
        Operand::Reg(r) => match facts.single(cx, r)? {
            Inst::Mov { src, .. } => *src,
            _ => return None,
        },
        other => other,
    };
    match value {
        // Masks are written signed or unsigned; the low 32 bits count.
        Operand::Imm(Imm::Int(n)) => u32::try_from(n & i64::from(u32::MAX)).ok(),
        _ => None,
    }
}

fn mask(inst: &Inst) -> Option<Operand> {
    match inst {
        Inst::Shfl { mask, .. }
        | Inst::Vote { mask, .. }
        | Inst::Match { mask, .. }
        | Inst::Redux { mask, .. }
        | Inst::Elect { mask, .. }
        | Inst::WarpBarrier { mask } => Some(*mask),
        _ => None,
    }
}

/// Whom an instruction waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wait {
    /// All lanes of the warp, and with it the other warps.
    Barrier,
    /// All lanes of the warp.
    Lanes,
    /// All lanes of the warp, which run it as one.
    Aligned,
    /// Lanes that come one by one, or those of a mask that is not constant.
    SomeLanes,
    /// The lanes of a constant mask that is not full, and nobody else.
    NamedLanes,
}

fn waits(cx: &Checker<'_>, facts: &Facts, inst: &Inst) -> Option<Wait> {
    if let Inst::Barrier { aligned, .. } = inst {
        return Some(if *aligned { Wait::Barrier } else { Wait::SomeLanes });
    }
    match inst {
        Inst::ClusterBarrier { aligned, .. } => {
            return Some(if *aligned { Wait::Barrier } else { Wait::SomeLanes });
        }
        Inst::Tcgen05(t)
            if !matches!(
                **t,
                Tcgen05::Mma(_)
                    | Tcgen05::Copy { .. }
                    | Tcgen05::Shift { .. }
                    | Tcgen05::Commit { .. }
                    | Tcgen05::Fence { .. }
            ) =>
        {
            return Some(Wait::Aligned);
        }
        Inst::Mma(_)
        | Inst::LdMatrix { .. }
        | Inst::StMatrix { .. }
        | Inst::MovMatrix { .. }
        | Inst::Wgmma(_)
        | Inst::Wmma(_)
        | Inst::WmmaLoad { .. }
        | Inst::WmmaStore { .. }
        | Inst::WgmmaFence
        | Inst::WgmmaCommit
        | Inst::WgmmaWait { .. }
        | Inst::SetMaxNreg { .. }
        | Inst::TensormapCopyFence { .. } => return Some(Wait::Aligned),
        _ => {}
    }
    mask(inst).map(|m| match constant_mask(cx, facts, m) {
        Some(FULL_MASK) => Wait::Lanes,
        Some(_) => Wait::NamedLanes,
        None => Wait::SomeLanes,
    })
}
