//! The interpreter loop.
//!
//! There is one body, `interpret`, compiled twice: for any machine, and with AVX2 and FMA, where rows are processed
//! eight lanes at a time. Which one runs is decided once per process.

use std::sync::LazyLock;

use super::global::lanes_of;
use super::lanes;
use super::rows::{self, put_pred, select32, select64};
use crate::code::Code;
use crate::code::op::{Op, hot_ops};
use crate::code::rows::{R1, R2};
use crate::context::Context;
use crate::flow::{Flow, Outcome};
use crate::warp::{Group, Wait, Warp};

type Runner = fn(&mut Context<'_>, &mut Warp) -> Outcome;

static RUNNER: LazyLock<Runner> = LazyLock::new(|| {
    #[cfg(target_arch = "x86_64")]
    if has_vectors() {
        return avx2::run;
    }
    portable
});

/// Whether this machine runs what is compiled with AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
pub(super) fn has_vectors() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
        && is_x86_feature_detected!("popcnt")
}

/// Runs a warp until it blocks, ends or has spun for long.
pub(crate) fn run(cx: &mut Context<'_>, warp: &mut Warp) -> Outcome {
    (RUNNER)(cx, warp)
}

fn portable(cx: &mut Context<'_>, warp: &mut Warp) -> Outcome {
    interpret(cx, warp)
}

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code, reason = "calling a function with target features")]
mod avx2 {
    use super::{Context, Outcome, Warp, interpret};

    #[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    fn with_features(cx: &mut Context<'_>, warp: &mut Warp) -> Outcome {
        interpret(cx, warp)
    }

    pub(super) fn run(cx: &mut Context<'_>, warp: &mut Warp) -> Outcome {
        // SAFETY: `RUNNER` selects this function only where all of these features were detected.
        unsafe { with_features(cx, warp) }
    }
}

macro_rules! dispatch {
    (
        [$op:expr, $regs:expr, $exec:expr, $pc:expr, { $($other:tt)* }]
        $($kind:ident $shape:ident { $($name:ident($($x:ident),*) = $value:expr;)* })*
    ) => {
        match $op {
            $($(Op::$name(o) => {
                rows::$shape($regs, $exec, o, |$($x),*| $value);
                // At once: looking at a flow adds a tenth to the instructions of such an operation.
                *$pc += 1;
                continue;
            })*)*
            $($other)*
        }
    };
}

/// Runs the groups of a warp. Instructions say how it goes on ([`Flow`]), and what follows from that is at the end of the loop.
#[inline(always)]
fn interpret(cx: &mut Context<'_>, warp: &mut Warp) -> Outcome {
    let code: &Code = cx.code;
    let counting = cx.checks.counters;
    'pick: loop {
        let Some(Group { pc, mask: active, turn, .. }) = warp.pick() else {
            return if warp.live == 0 { Outcome::Exited } else { Outcome::Parked };
        };
        if cx.runs.steps >= cx.slice.end && cx.slice_over() {
            warp.push(pc, active, turn);
            return Outcome::Stopped;
        }
        let limit = warp.limit(pc) as usize;
        let alone = !warp.has_ready();
        let mut pc = pc as usize;
        let slice = pc + (cx.slice.end - cx.runs.steps) as usize;
        // One comparison finds the end of the code, the next group and the end of the slice.
        let window = code.ins.get(..limit.min(slice).min(code.ins.len())).unwrap_or_default();
        // The straight line that is being run began here.
        let mut start = pc;
        loop {
            let Some(ins) = window.get(pc) else {
                if pc < code.ins.len() {
                    cx.runs.line(start, pc, active);
                    warp.push(pc as u32, active, turn);
                } else {
                    // Every block ends with a terminator, so this is the end of an empty kernel.
                    end_lanes(warp, active);
                }
                continue 'pick;
            };
            if counting {
                cx.counters.at(pc);
            }
            let mut exec = active;
            if ins.guard != 0 {
                exec &= warp.regs.pred[ins.guard as usize] ^ ins.invert;
                if counting {
                    cx.runs.guarded(pc, exec);
                }
                if exec == 0 {
                    pc += 1;
                    continue;
                }
            }
            let here = || Group { pc: pc as u32, mask: active, wait: Wait::Ready, turn };
            let regs = &mut warp.regs;
            let flow = hot_ops!(dispatch [ins.op, regs, exec, &mut pc, {
                Op::Lop3(o, table) => {
                    rows::w3(regs, exec, o, |a, b, c| lanes::lop3(a, b, c, table));
                    Flow::Next
                }
                Op::SelectW(o) => {
                    select32(regs, exec, o);
                    Flow::Next
                }
                Op::SelectL(o) => {
                    select64(regs, exec, o);
                    Flow::Next
                }
                Op::PredAnd(R2 { d, a, b }) => {
                    let value = regs.pred[a as usize] & regs.pred[b as usize];
                    put_pred(&mut regs.pred[d as usize], value, exec);
                    Flow::Next
                }
                Op::PredOr(R2 { d, a, b }) => {
                    let value = regs.pred[a as usize] | regs.pred[b as usize];
                    put_pred(&mut regs.pred[d as usize], value, exec);
                    Flow::Next
                }
                Op::PredXor(R2 { d, a, b }) => {
                    let value = regs.pred[a as usize] ^ regs.pred[b as usize];
                    put_pred(&mut regs.pred[d as usize], value, exec);
                    Flow::Next
                }
                Op::PredNot(R1 { d, a }) => {
                    let value = !regs.pred[a as usize];
                    put_pred(&mut regs.pred[d as usize], value, exec);
                    Flow::Next
                }
                Op::PredMov(R1 { d, a }) => {
                    let value = regs.pred[a as usize];
                    put_pred(&mut regs.pred[d as usize], value, exec);
                    Flow::Next
                }
                Op::Scalar(at) => {
                    super::scalar::run(warp, exec, &code.scalars[at as usize]);
                    Flow::Next
                }
                Op::Load(at) => cx.load(warp, pc as u32, exec, at),
                Op::Store(at) => cx.store(warp, pc as u32, exec, at),
                Op::Atomic(at) => cx.atomic(warp, pc as u32, exec, at),
                Op::Line(at) => cx.line(warp, pc as u32, exec, at),
                Op::Stack(at) => {
                    cx.stack(warp, exec, at);
                    Flow::Next
                }
                Op::Nothing => Flow::Next,
                Op::Collective(at) => cx.collective(warp, here(), exec, &code.collectives[at as usize]),
                Op::Matrix(at) => cx.matrix_collective(warp, here(), exec, &code.collectives[at as usize]),
                Op::Touch(at) => {
                    cx.touch(warp, pc as u32, exec, at);
                    Flow::Next
                }
                Op::Barrier(at) => cx.barrier(warp, here(), exec, &code.barriers[at as usize]),
                Op::Cluster(at) => cx.cluster_op(warp, here(), exec, &code.clusters[at as usize]),
                Op::Asynchronous(at) => cx.asynchronous(warp, here(), exec, at),
                Op::Special(at) => {
                    cx.read_special(warp, exec, code.specials[at as usize]);
                    Flow::Next
                }
                Op::Isspacep(at) => {
                    super::private::isspacep(warp, exec, code.isspacep[at as usize], cx.rank());
                    Flow::Next
                }
                Op::Fence(at) => {
                    cx.fence(warp, exec, code.fences[at as usize]);
                    Flow::Next
                }
                Op::Yield { nanoseconds } => {
                    let row = &regs.r32[nanoseconds as usize].0;
                    let longest = lanes_of(exec).map(|lane| u64::from(row[lane])).max();
                    cx.sleep = cx.sleep.max(longest.unwrap_or(0));
                    cx.note_poll(warp);
                    warp.push(pc as u32 + 1, active, turn + u32::from(warp.has_ready()));
                    Flow::Leave(Outcome::Yielded)
                }
                Op::Trap => {
                    cx.trap(warp, pc as u32, exec);
                    Flow::Leave(Outcome::Stopped)
                }
                Op::Unsupported(at) => {
                    cx.unsupported(warp, pc as u32, exec, at);
                    Flow::Leave(Outcome::Stopped)
                }
                Op::CheckDefined(at) => {
                    cx.check_defined(warp, pc as u32, exec, at);
                    Flow::Next
                }
                Op::MarkDefined(at) => {
                    let tracked = code.marks[at as usize].tracked.iter();
                    tracked.for_each(|tracked| warp.definedness.define(*tracked, exec));
                    Flow::Next
                }
                Op::PassDefined { from, to } => {
                    if cx.checks.initcheck && !warp.definedness.passes(from, to, exec) {
                        cx.pass_definedness(warp, pc as u32, exec);
                    }
                    // At once here, too.
                    pc += 1;
                    continue;
                }
                Op::Jump { to } => Flow::Jump(to),
                Op::Branch { pred, invert, then, otherwise } => {
                    let taken = active & (regs.pred[pred as usize] ^ invert);
                    if counting {
                        cx.counters.branch(taken != 0 && taken != active);
                    }
                    if taken == active {
                        Flow::Jump(then)
                    } else if taken == 0 {
                        Flow::Jump(otherwise)
                    } else {
                        warp.push(then, taken, turn);
                        warp.push(otherwise, active & !taken, turn);
                        Flow::Repick
                    }
                }
                Op::BranchIndexed { index, table } => cx.branch_indexed(warp, here(), index, table),
                Op::Call(at) => cx.call(warp, here(), exec, at),
                Op::Return => {
                    cx.leave_function(warp, active, turn);
                    Flow::Repick
                }
                Op::Exit => {
                    end_lanes(warp, exec);
                    if warp.live == 0 {
                        cx.check_exit(warp);
                    }
                    warp.push(pc as u32 + 1, active & !exec, turn);
                    Flow::Repick
                }
            }]);
            match flow {
                Flow::Next => pc += 1,
                Flow::Jump(to) => {
                    cx.runs.line(start, pc + 1, active);
                    let back = to as usize <= pc;
                    pc = to as usize;
                    start = pc;
                    if back && (!alone || warp.spin()) {
                        if warp.pass_turn(to, active, turn, alone) {
                            return cx.turn_over();
                        }
                        continue 'pick;
                    }
                    if !alone || (back && cx.runs.steps >= cx.slice.branch) {
                        warp.push(to, active, turn);
                        continue 'pick;
                    }
                }
                Flow::Repick => {
                    cx.runs.line(start, pc + 1, active);
                    continue 'pick;
                }
                Flow::Gather => {
                    cx.runs.line(start, pc, active);
                    continue 'pick;
                }
                Flow::Leave(outcome) => {
                    cx.runs.line(start, pc + 1, active);
                    return outcome;
                }
                Flow::Stop => {
                    cx.runs.line(start, pc, active);
                    return Outcome::Stopped;
                }
            }
        }
    }
}

/// Ends lanes; collectives that wait for them look again.
fn end_lanes(warp: &mut Warp, lanes: u32) {
    warp.live &= !lanes;
    warp.paths.end(lanes);
    warp.wake_collectives();
}
