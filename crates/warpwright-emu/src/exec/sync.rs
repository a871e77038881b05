//! Block barriers: arriving, opening, and what to do when nobody can go on.

use warpwright_ptx::BarRedOp;

use super::global::lanes_of;
use super::ops::Op;
use super::rows::{LANES, put_pred, put32};
use crate::context::Context;
use crate::decode::registers::Slot;
use crate::decode::{BarrierDecoded, BarrierOp};
use crate::launch::Fault;
use crate::sanitize::synccheck::{self, Arrival, Arrived, BarrierCall, Opened, Stuck, StuckAt};
use crate::warp::{Group, Wait, Warp};

impl Context<'_> {
    /// Lanes execute a barrier instruction: the group `here` is put back, waiting or past it.
    pub(super) fn barrier(&mut self, warp: &mut Warp, here: Group, exec: u32, op: &BarrierOp) {
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

    /// After threads have exited: barriers for which the remaining ones are all there open.
    pub(crate) fn lanes_exited(&mut self) {
        while let Some(opened) = self.block.barriers.open_after_exit(self.block.live_threads) {
            self.opened.push(opened);
        }
    }

    /// Nobody in the block can go on: says why and ends the block.
    #[cold]
    pub(crate) fn stuck(&mut self, warps: &mut [Warp]) {
        let mut stuck = Vec::new();
        for warp in warps.iter() {
            for group in &warp.groups {
                let at = match group.wait {
                    Wait::Barrier { id } => StuckAt::Barrier { id },
                    Wait::Collective { mask } => StuckAt::Collective { mask: mask & warp.live },
                    Wait::Aligned => StuckAt::Collective { mask: warp.live },
                    Wait::Ready => continue,
                };
                stuck.push(Stuck { warp: warp.index, lanes: group.mask, pc: group.pc, at });
            }
        }
        let threads: u32 = self.shared.config.block.iter().product();
        let live = self.block.live_threads;
        let line = |pc: u32| self.code.position(pc).line;
        let text = synccheck::describe_deadlock(&self.block.barriers, &stuck, live, threads - live, &line);
        if self.checks.synccheck {
            synccheck::report_deadlock(&mut self.findings, self.block.linear as u32, &stuck, &text);
        } else {
            let block = self.block.coordinates;
            self.fault.get_or_insert(Fault::Deadlock { block, message: text });
        }
        for warp in warps {
            warp.kill();
        }
    }
}
