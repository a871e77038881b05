//! Block barriers: arriving and opening.

use warpwright_ptx::BarRedOp;

use super::global::lanes_of;
use super::rows::{put_pred, put32};
use crate::code::barrier::{BarrierDecoded, BarrierOp};
use crate::code::layout::Slot;
use crate::code::op::Op;
use crate::code::rows::LANES;
use crate::context::Context;
use crate::events::barrier::{Arrival, Arrived, BarrierCall, Opened};
use crate::flow::Flow;
use crate::warp::{Group, Wait, Warp};

impl Context<'_> {
    /// Brings the lanes of a warp together at an aligned instruction, as compilers and devices do before it: they wait until
    /// the others are there, have ended, or wait for lanes elsewhere. So it is the same whether a lane has ended before, or
    /// ends without another wait. Gives the group with those that waited here, `None` if it waits itself.
    #[inline(always)]
    pub(super) fn converge(
        &mut self,
        warp: &mut Warp,
        here: Group,
        exec: u32,
        aligned: bool,
    ) -> Option<(Group, u32)> {
        if !aligned || warp.live & !exec == 0 { Some((here, exec)) } else { self.hold(warp, here, exec) }
    }

    #[inline(never)]
    fn hold(&mut self, warp: &mut Warp, here: Group, exec: u32) -> Option<(Group, u32)> {
        let held = warp.join_held(here.pc);
        let (all, here_now) = (Group { mask: here.mask | held, ..here }, exec | held);
        let passed = all.mask & !here_now;
        let alone = warp.go_alone(here_now) || passed == 0 && warp.nobody_comes();
        if alone || warp.live & !here_now == 0 {
            return Some((all, here_now));
        }
        self.runs.uncount_guarded(here.pc as usize, exec);
        warp.push(all.pc + 1, passed, all.turn);
        warp.groups.push(Group { mask: here_now, wait: Wait::Aligned, ..all });
        None
    }

    /// Lanes execute a barrier instruction: the group `here` is put back, waiting or past it.
    pub(super) fn barrier(&mut self, warp: &mut Warp, here: Group, exec: u32, op: &BarrierOp) -> Flow {
        let Some((here, exec)) = self.converge(warp, here, exec, op.aligned) else { return Flow::Gather };
        let ids = warp.regs.r32[op.id as usize].0;
        let counts = op.count.map(|c| warp.regs.r32[c as usize].0);
        self.counters.barriers += 1;
        let mut passed = here.mask & !exec;
        let mut rest = exec;
        while rest != 0 {
            // Lanes may name different barriers.
            let first = rest.trailing_zeros() as usize;
            let (id, count) = (ids[first], counts.map(|c| c[first]));
            let lanes = lanes_of(rest)
                .filter(|l| ids[*l] == id && counts.map(|c| c[*l]) == count)
                .fold(0u32, |m, l| m | 1 << l);
            rest &= !lanes;
            let arrival = match &op.kind {
                BarrierDecoded::Sync => Arrival::Sync,
                BarrierDecoded::Arrive => Arrival::Arrive,
                BarrierDecoded::Reduce { src, negated, .. } => {
                    Arrival::Reduce(warp.regs.pred[*src as usize] ^ if *negated { u32::MAX } else { 0 })
                }
            };
            let call = BarrierCall {
                id,
                count,
                arrival,
                aligned: op.aligned,
                pc: here.pc,
                block: self.block.linear as u32,
                warp: warp.index,
                lanes,
                live: warp.live,
                live_threads: self.block.live_threads,
            };
            if let Some(races) = &mut self.races {
                races.barrier_arrive(id, warp.index, lanes);
            }
            let findings = self.checks.synccheck.then_some(&mut self.findings);
            let arrived = self.block.barriers.arrive(&call, findings);
            let waits = arrival != Arrival::Arrive && arrived != Arrived::Passed;
            self.counters.barrier_waits += u64::from(waits);
            if waits {
                let wait = Wait::Barrier { id };
                warp.groups.push(Group { pc: here.pc, mask: lanes, wait, turn: 0 });
            } else {
                passed |= lanes;
            }
            if let Arrived::Opened(opened) = arrived {
                self.opened.push(opened);
            }
        }
        warp.push(here.pc + 1, passed, here.turn);
        Flow::Repick
    }

    /// Lets the waiters of the barriers that have opened go on.
    pub(crate) fn open_barriers(&mut self, warps: &mut [Warp]) {
        while let Some(opened) = self.opened.pop() {
            if let Some(races) = &mut self.races {
                races.barrier_complete(opened.id, &opened.participants(), opened.everyone);
            }
            for waiter in &opened.waiters {
                let Some(warp) = warps.get_mut(waiter.warp as usize) else { continue };
                self.reduce(warp, waiter.pc, waiter.lanes, &opened);
                for group in &mut warp.groups {
                    if group.wait == (Wait::Barrier { id: opened.id }) && group.pc == waiter.pc {
                        *group = Group { pc: group.pc + 1, mask: group.mask, wait: Wait::Ready, turn: 0 };
                    }
                }
            }
        }
    }

    /// Writes the result of a `bar.red`.
    fn reduce(&self, warp: &mut Warp, pc: u32, lanes: u32, opened: &Opened) {
        let Some(Op::Barrier(at)) = self.code.ins.get(pc as usize).map(|i| i.op) else { return };
        let BarrierDecoded::Reduce { op, dst, .. } = self.code.barriers[at as usize].kind else { return };
        let (all, any) = (opened.reduction.all(), opened.reduction.any());
        match (op, dst) {
            (BarRedOp::Popc, Slot::W(row)) => {
                put32(&mut warp.regs.r32[row as usize], [opened.reduction.popc; LANES], lanes);
            }
            (BarRedOp::And, Slot::P(p)) => {
                put_pred(&mut warp.regs.pred[p as usize], if all { u32::MAX } else { 0 }, lanes);
            }
            (BarRedOp::Or, Slot::P(p)) => {
                put_pred(&mut warp.regs.pred[p as usize], if any { u32::MAX } else { 0 }, lanes);
            }
            // The verifier refuses other destinations.
            _ => {}
        }
    }

    /// Threads have exited: barriers for which the remaining ones are all there open.
    pub(crate) fn lanes_exited(&mut self, warp: u32, lanes: u32) {
        self.block.live_threads -= lanes.count_ones();
        let rank = self.rank();
        self.cluster.barrier.exit(rank, warp, lanes);
        while let Some(opened) = self.block.barriers.open_after_exit(self.block.live_threads) {
            self.opened.push(opened);
        }
    }

    /// Lets groups look again that something outside of the block may have released.
    #[inline]
    pub(crate) fn wake(&mut self, warps: &mut [Warp]) {
        if self.block.phase != self.cluster.barrier.phase {
            self.open_cluster_barrier(warps);
        }
        if std::mem::take(&mut self.block.woken) {
            for group in warps.iter_mut().flat_map(|warp| &mut warp.groups) {
                if matches!(group.wait, Wait::Mbarrier { .. }) {
                    group.wait = Wait::Ready;
                }
            }
        }
    }
}
