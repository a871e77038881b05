//! V-CONV: barriers, warp-wide operations and aligned tensor instructions meet all their lanes.
//!
//! The analysis asks which registers may differ between the lanes of a warp. Lane numbers, most loads and the results of
//! atomics differ; arithmetic passes that on; a branch on such a register splits the warp until the paths meet again,
//! and what is assigned meanwhile differs too. A branch whose one side runs to the end of the kernel without meeting
//! another barrier or warp-wide operation splits nothing that matters: barriers do not wait for lanes that have left.

use super::defs::Facts;
use super::{Breach, Checker, Note, NoteKind, Rule, WholeWarp};
use crate::inst::*;
use crate::isa::DeviceLimits;
use crate::module::{RegKind, SourceLoc};
use crate::types::StateSpace;

/// Named barriers of a block.
const BARRIERS: i64 = DeviceLimits::BLOCK_BARRIERS as i64;
/// Threads of a warp.
const WARP: i64 = 32;
/// The lane mask that names every lane.
const FULL_MASK: u32 = u32::MAX;

pub(super) fn check(cx: &mut Checker<'_>, facts: &Facts) {
    cx.each(|cx, instruction| constants(cx, facts, &instruction.inst));
    let function = cx.function;
    let meets =
        function.blocks.iter().any(|b| b.instructions.iter().any(|i| waits(cx, facts, &i.inst).is_some()));
    if !meets {
        return;
    }
    let analysis = Divergence::new(cx, facts);
    cx.each(|cx, instruction| {
        let Some(wait) = waits(cx, facts, &instruction.inst) else { return };
        let guard = instruction.guard.filter(|g| analysis.differs_in(g.reg));
        let split = analysis.block[cx.block.0 as usize];
        let decides = match (guard, split) {
            (Some(g), _) => Some(g.reg),
            (None, Some(by)) => function.blocks[by.0 as usize].terminator.condition(),
            (None, None) => return,
        };
        let (rule, whole) = match wait {
            Wait::Barrier => (Rule::Conv1, WholeWarp::Barrier),
            Wait::Lanes => (Rule::Conv2, WholeWarp::Lanes),
            Wait::Aligned => (Rule::Conv5, WholeWarp::Aligned),
            Wait::SomeLanes => return,
        };
        let mut notes = Vec::new();
        if let (None, Some(by)) = (guard, split) {
            let block = &function.blocks[by.0 as usize];
            let location = block.location(block.instructions.len());
            notes.push(Note { location, kind: NoteKind::SplitsWarp });
        }
        let origin = decides.and_then(|r| analysis.origin(cx, r));
        let depends_on = origin.as_ref().map(|o| o.what.clone());
        if let Some(Origin { location, what }) = origin {
            notes.push(Note { location, kind: NoteKind::Differs(what) });
        }
        let help = match wait {
            Wait::Barrier => {
                "let all lanes reach it, or use `barrier.sync`, which lanes may reach one by one"
            }
            Wait::Lanes => "let all lanes reach it, or name the lanes that do in the mask",
            Wait::Aligned | Wait::SomeLanes => "let all lanes reach it; guard what uses the result instead",
        };
        let breach = Breach::Divergent { wait: whole, guarded: guard.is_some(), depends_on };
        cx.report_with(rule, breach, notes, Some(help));
    });
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
#[derive(Clone, Copy)]
enum Wait {
    /// All lanes of the warp, and with it the other warps.
    Barrier,
    /// All lanes of the warp.
    Lanes,
    /// All lanes of the warp, which run it as one.
    Aligned,
    /// The lanes of a mask that is not full, or not constant.
    SomeLanes,
}

fn waits(cx: &Checker<'_>, facts: &Facts, inst: &Inst) -> Option<Wait> {
    if let Inst::Barrier { aligned, .. } = inst {
        return Some(if *aligned { Wait::Barrier } else { Wait::SomeLanes });
    }
    match inst {
        Inst::ClusterBarrier { aligned, .. } => {
            return Some(if *aligned { Wait::Barrier } else { Wait::SomeLanes });
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
    let full = |m| constant_mask(cx, facts, m) == Some(FULL_MASK);
    mask(inst).map(|m| if full(m) { Wait::Lanes } else { Wait::SomeLanes })
}

/// Registers and blocks that may differ between the lanes of a warp.
struct Divergence {
    /// Why registers may hold different values.
    register: Vec<Option<Cause>>,
    /// Blocks that only some lanes may run at a time, by the block whose end splits the warp.
    block: Vec<Option<BlockId>>,
}

/// Why a register differs between lanes.
#[derive(Clone, Copy)]
enum Cause {
    /// The instruction at this place makes it so.
    Source(BlockId, u32),
    /// It is computed from a register that differs.
    Through(Reg),
    /// It was assigned while the warp was split at the end of this block.
    Split(BlockId),
}

/// Where lanes begin to differ.
struct Origin {
    location: SourceLoc,
    what: String,
}

/// How far the chain from a condition to its origin is followed.
const CHAIN: u32 = 1000;

/// The walk from one successor of a branch up to where its sides meet.
struct Arm {
    blocks: Vec<BlockId>,
    waits: bool,
}

impl Divergence {
    fn new(cx: &Checker<'_>, facts: &Facts) -> Self {
        let function = cx.function;
        let n = function.blocks.len();
        let mut this = Self { register: vec![None; function.registers.len()], block: vec![None; n] };
        let waiting: Vec<bool> = function
            .blocks
            .iter()
            .map(|b| b.instructions.iter().any(|i| waits(cx, facts, &i.inst).is_some()))
            .collect();
        let reaches = reaches(cx, &waiting);
        let sources = Sources::new(cx);
        let mut split = vec![false; n];
        let mut seen = vec![0u32; n];
        let mut epoch = 0;
        let mut changed = true;
        while changed {
            changed = false;
            for b in cx.cfg.reverse_postorder() {
                changed |= this.flow(cx, *b, &sources);
                let at = b.0 as usize;
                if let Some(decides) = function.blocks[at].terminator.condition()
                    && this.differs_in(decides)
                    && !split[at]
                {
                    split[at] = true;
                    this.split(cx, facts, *b, &waiting, &reaches, &mut seen, &mut epoch);
                    changed = true;
                }
            }
        }
        this
    }

    /// Passes divergence through the instructions of a block; whether anything is new.
    fn flow(&mut self, cx: &Checker<'_>, b: BlockId, sources: &Sources) -> bool {
        let mut changed = false;
        for (index, instruction) in (0u32..).zip(&cx.function.blocks[b.0 as usize].instructions) {
            let guard = instruction.guard.map(|g| g.reg).filter(|g| self.differs_in(*g));
            let cause = match guard {
                Some(g) => Some(Cause::Through(g)),
                None => self.differs(&instruction.inst, sources, Cause::Source(b, index)),
            };
            if cause.is_some() {
                instruction.inst.visit(|role, r| {
                    let place = &mut self.register[r.0 as usize];
                    if role == Role::Def && place.is_none() {
                        *place = cause;
                        changed = true;
                    }
                });
            }
        }
        changed
    }

    fn differs_in(&self, r: Reg) -> bool {
        self.register[r.0 as usize].is_some()
    }

    /// Why the results of an instruction may differ although all lanes run it; `here` if it is the instruction itself.
    fn differs(&self, inst: &Inst, sources: &Sources, here: Cause) -> Option<Cause> {
        let is = |r: Reg| self.differs_in(r);
        match inst {
            Inst::Mov { src: Operand::Special(s), .. } | Inst::Cvt { a: Operand::Special(s), .. } => {
                sources.special(*s).then_some(here)
            }
            // The number of a warp: lanes of a warp agree on it.
            Inst::Binary {
                op: BinaryOp::Shr, a: Operand::Reg(r), b: Operand::Imm(Imm::Int(5..)), ..
            } => (is(*r) && !sources.lane_number[r.0 as usize]).then_some(Cause::Through(*r)),
            // Whole warps on either side of the bound.
            Inst::Setp { cmp, combine: None, a: Operand::Reg(r), b: Operand::Imm(Imm::Int(n)), .. }
                if sources.lane_number[r.0 as usize] && splits_at_warps(*cmp, *n) =>
            {
                None
            }
            // The number of the first lane of a warp.
            Inst::Binary { op: BinaryOp::And, a: Operand::Reg(r), b: Operand::Imm(Imm::Int(n)), .. }
                if sources.lane_number[r.0 as usize] && n % WARP == 0 =>
            {
                None
            }
            Inst::Vote { .. }
            | Inst::Redux { .. }
            | Inst::Activemask { .. }
            | Inst::Match { all: true, .. }
            | Inst::Barrier { .. } => None,
            Inst::Shfl { mode: ShflMode::Idx, a, b, .. } => match (a, b) {
                (Operand::Reg(a), Operand::Reg(b)) if is(*a) && is(*b) => Some(Cause::Through(*b)),
                _ => None,
            },
            Inst::Elect { .. } | Inst::Atom { .. } | Inst::AtomVector { .. } | Inst::Opaque(_) => Some(here),
            Inst::Mma(_)
            | Inst::Wgmma(_)
            | Inst::Wmma(_)
            | Inst::WmmaLoad { .. }
            | Inst::LdMatrix { .. }
            | Inst::MovMatrix { .. } => Some(here),
            // Lanes that poll a barrier see it complete together or go round again together.
            Inst::MbarrierWait { .. } => None,
            Inst::MbarrierArrive { .. } => Some(here),
            Inst::Ld { space, addr, .. } => match addr.base {
                AddressBase::Reg(r) if is(r) => Some(Cause::Through(r)),
                _ => (*space == StateSpace::Local).then_some(here),
            },
            _ => {
                let mut any = None;
                inst.visit(|role, r| {
                    if role == Role::Use && any.is_none() && is(r) {
                        any = Some(Cause::Through(r));
                    }
                });
                any
            }
        }
    }

    /// Follows a register that differs back to where that begins.
    fn origin(&self, cx: &Checker<'_>, mut r: Reg) -> Option<Origin> {
        for _ in 0..CHAIN {
            match self.register[r.0 as usize]? {
                Cause::Through(from) => r = from,
                Cause::Split(b) => r = cx.function.blocks[b.0 as usize].terminator.condition()?,
                Cause::Source(b, index) => {
                    let block = &cx.function.blocks[b.0 as usize];
                    let location = block.location(index as usize);
                    let what = match &block.instructions.get(index as usize)?.inst {
                        Inst::Mov { src: Operand::Special(s), .. }
                        | Inst::Cvt { a: Operand::Special(s), .. } => special_name(*s),
                        Inst::Ld { .. } => "local memory".to_owned(),
                        other => format!("the result of `{}`", crate::text::mnemonic(other)),
                    };
                    return Some(Origin { location, what });
                }
            }
        }
        None
    }

    /// Marks what a divergent branch at the end of `b` splits.
    #[allow(clippy::too_many_arguments, reason = "scratch space of one caller")]
    fn split(
        &mut self,
        cx: &Checker<'_>,
        facts: &Facts,
        b: BlockId,
        waiting: &[bool],
        reaches: &[bool],
        seen: &mut [u32],
        epoch: &mut u32,
    ) {
        let meet = cx.cfg.immediate_post_dominator(b);
        let arms: Vec<Arm> = cx
            .cfg
            .successors(b)
            .iter()
            .map(|s| {
                *epoch += 1;
                arm(cx, *s, meet, waiting, seen, *epoch)
            })
            .collect();
        let after = meet.is_some_and(|m| waiting[m.0 as usize] || reaches[m.0 as usize]);
        let loops = arms.iter().any(|a| a.blocks.contains(&b));
        let waiting_arms = arms.iter().filter(|a| a.waits).count();
        // One side leaves for good without a further wait: the other one goes on alone.
        if !after && !loops && waiting_arms < 2 {
            return;
        }
        for arm in &arms {
            for block in &arm.blocks {
                self.block[block.0 as usize].get_or_insert(b);
                for instruction in &cx.function.blocks[block.0 as usize].instructions {
                    instruction.inst.visit(|role, r| {
                        // Of several assignments different lanes have seen different ones; out of a loop that lanes
                        // leave at different times even a single one differs.
                        let merges = cx.function.registers[r.0 as usize].kind == RegKind::Variable
                            && facts.of(r).len() > 1;
                        if role == Role::Def && (merges || loops) {
                            self.register[r.0 as usize].get_or_insert(Cause::Split(b));
                        }
                    });
                }
            }
        }
    }
}

/// The name of a special register that differs between lanes.
fn special_name(s: SpecialReg) -> String {
    match s {
        SpecialReg::Tid(axis) => format!("`%tid.{}`", ["x", "y", "z"][axis as usize]),
        SpecialReg::Plain(p) => format!("`%{p}`"),
        _ => "a special register".to_owned(),
    }
}

/// Whether all thread numbers of a warp compare alike with `n`.
const fn splits_at_warps(cmp: CmpOp, n: i64) -> bool {
    match cmp {
        CmpOp::Lt | CmpOp::Lo | CmpOp::Ge | CmpOp::Hs => n % WARP == 0,
        CmpOp::Le | CmpOp::Ls | CmpOp::Gt | CmpOp::Hi => n % WARP == WARP - 1,
        _ => false,
    }
}

/// The blocks from `start` up to `meet`.
fn arm(
    cx: &Checker<'_>,
    start: BlockId,
    meet: Option<BlockId>,
    waiting: &[bool],
    seen: &mut [u32],
    epoch: u32,
) -> Arm {
    let mut arm = Arm { blocks: Vec::new(), waits: false };
    let mut todo = vec![start];
    while let Some(b) = todo.pop() {
        if Some(b) == meet || std::mem::replace(&mut seen[b.0 as usize], epoch) == epoch {
            continue;
        }
        arm.blocks.push(b);
        arm.waits |= waiting[b.0 as usize];
        todo.extend(cx.cfg.successors(b));
    }
    arm
}

/// The blocks after which some wait may follow.
fn reaches(cx: &Checker<'_>, waiting: &[bool]) -> Vec<bool> {
    let mut reaches = vec![false; waiting.len()];
    let mut todo: Vec<BlockId> =
        (0u32..).zip(waiting).filter(|(_, w)| **w).map(|(b, _)| BlockId(b)).collect();
    while let Some(b) = todo.pop() {
        for p in cx.cfg.predecessors(b) {
            if !std::mem::replace(&mut reaches[p.0 as usize], true) {
                todo.push(*p);
            }
        }
    }
    reaches
}

/// Thread numbers by the launch directives.
struct Sources {
    /// Rows of threads are whole warps, so that only `%tid.x` differs in a warp.
    whole_rows: bool,
    /// Registers that hold `%tid.x` itself, of which `>> 5` is the number of the warp.
    lane_number: Vec<bool>,
}

impl Sources {
    fn new(cx: &Checker<'_>) -> Self {
        let function = cx.function;
        let dims = function.directives.required_threads;
        let whole_rows = dims.is_some_and(|[x, y, z]| i64::from(x) % WARP == 0 || (y == 1 && z == 1));
        let mut lane_number = vec![false; function.registers.len()];
        // Without a declared shape the row is taken to be whole: kernels that divide %tid.x by 32 assume it.
        if whole_rows || dims.is_none() {
            for i in function.blocks.iter().flat_map(|b| &b.instructions) {
                if let Inst::Mov { dst, src: Operand::Special(SpecialReg::Tid(Axis::X)), .. } = i.inst {
                    lane_number[dst.0 as usize] = true;
                }
            }
        }
        Self { whole_rows, lane_number }
    }

    fn special(&self, register: SpecialReg) -> bool {
        use PlainSpecial::*;
        match register {
            SpecialReg::Tid(Axis::X) => true,
            SpecialReg::Tid(_) => !self.whole_rows,
            SpecialReg::Plain(
                LaneId | LanemaskEq | LanemaskLe | LanemaskLt | LanemaskGe | LanemaskGt | Clock | ClockHi
                | Clock64 | GlobalTimer | GlobalTimerLo | GlobalTimerHi,
            ) => true,
            SpecialReg::Ntid(_)
            | SpecialReg::Ctaid(_)
            | SpecialReg::Nctaid(_)
            | SpecialReg::ClusterCtaid(_)
            | SpecialReg::ClusterNctaid(_)
            | SpecialReg::ClusterId(_)
            | SpecialReg::NclusterId(_)
            | SpecialReg::Plain(_) => false,
        }
    }
}
