//! The lanes of a warp together: shuffles, votes, matches, reductions, elections and the warp barrier.
//!
//! A `.sync` instruction is a rendezvous. When all lanes of its mask that have not exited are there it runs for all of
//! them at once; until then those that are there wait in a group of their own.

use warpwright_ptx::{ReduxOp, ScalarType, ShflMode, VoteMode};

use super::definedness;
use super::global::{lane_value, lanes_of, set_lane};
use super::rows::{self, put_pred, put32};
use crate::code::collective::{Collective, CollectiveKind, Pattern, shuffle_source};
use crate::code::layout::Slot;
use crate::code::rows::{FULL, LANES, Registers};
use crate::context::Context;
use crate::flow::Flow;
use crate::report::Tool;
use crate::warp::{Group, Wait, Warp};

impl Context<'_> {
    /// Runs a collective, or makes its lanes wait for the others.
    #[inline(always)]
    pub(super) fn collective(&mut self, warp: &mut Warp, here: Group, exec: u32, op: &Collective) -> Flow {
        let mask = warp.regs.r32[op.mask as usize].0[exec.trailing_zeros() as usize & 31];
        // Everyone is here, and everyone is meant: no other case matters for speed.
        if exec == FULL && mask == FULL {
            self.run_collective(warp, here.pc, exec, op, mask);
            return Flow::Next;
        }
        self.rendezvous(warp, here, exec, op)
    }

    /// The same for an instruction that may end the launch.
    #[inline(always)]
    pub(super) fn matrix_collective(
        &mut self,
        warp: &mut Warp,
        here: Group,
        exec: u32,
        op: &Collective,
    ) -> Flow {
        let flow = self.collective(warp, here, exec, op);
        if self.fault.is_some() { Flow::Stop } else { flow }
    }

    #[inline(never)]
    fn rendezvous(&mut self, warp: &mut Warp, here: Group, exec: u32, op: &Collective) -> Flow {
        if let CollectiveKind::Activemask { .. } = op.kind {
            self.run_collective(warp, here.pc, exec, op, exec);
            return Flow::Next;
        }
        let masks = warp.regs.r32[op.mask as usize].0;
        let mask = masks[exec.trailing_zeros() as usize & 31];
        if lanes_of(exec).all(|l| masks[l] == mask) && mask & warp.live & !exec == 0 {
            self.check_members(warp, here.pc, exec, mask);
            self.run_collective(warp, here.pc, exec, op, mask);
            return Flow::Next;
        }
        // Lanes may name different masks: each mask is a rendezvous of its own.
        self.runs.uncount_guarded(here.pc as usize, exec);
        // Lanes whose guard is false, or that wait elsewhere for these, do not come to an aligned instruction.
        let aligned = matches!(op.kind, CollectiveKind::Matrix(_));
        let nobody_comes = aligned && (here.mask & !exec != 0 || warp.go_alone(exec) || warp.nobody_comes());
        let wait_for = |mask| if aligned { Wait::Aligned } else { Wait::Collective { mask } };
        let mut go_on = here.mask & !exec;
        let mut rest = exec;
        while rest != 0 {
            let mask = masks[rest.trailing_zeros() as usize];
            let mut here_now = lanes_of(rest).filter(|l| masks[*l] == mask).fold(0u32, |m, l| m | 1 << l);
            rest &= !here_now;
            self.check_members(warp, here.pc, here_now, mask);
            // Those that arrived before join.
            warp.groups.retain(|g| {
                let joins = g.pc == here.pc && g.wait == wait_for(mask);
                here_now |= if joins { g.mask } else { 0 };
                !joins
            });
            if mask & warp.live & !here_now == 0 || nobody_comes {
                self.runs.again(here.pc as usize, here_now, self.code);
                self.run_collective(warp, here.pc, here_now, op, mask);
                go_on |= here_now;
            } else {
                let wait = wait_for(mask);
                warp.groups.push(Group { pc: here.pc, mask: here_now, wait, turn: here.turn });
            }
        }
        warp.push(here.pc + 1, go_on, here.turn);
        Flow::Gather
    }

    /// Reports lanes that execute a collective without being in its mask.
    fn check_members(&mut self, warp: &Warp, pc: u32, exec: u32, mask: u32) {
        let outside = exec & !mask;
        if outside != 0 && self.checks.synccheck {
            self.finding(warp, pc, outside, Tool::Synccheck, "lane-not-in-mask", None, || {
                (
                    format!("executes a warp collective whose member mask {mask:#010x} does not name it"),
                    "every lane that executes a .sync instruction has to be in its mask".to_owned(),
                )
            });
        }
    }

    #[inline(always)]
    fn run_collective(&mut self, warp: &mut Warp, pc: u32, exec: u32, op: &Collective, mask: u32) {
        match &op.kind {
            CollectiveKind::Shuffle { mode, dst, pred, a, b, c, fixed } => {
                // Before the destination, which may be one of the operands, is written.
                if exec != FULL && self.checks.synccheck {
                    self.check_sources(warp, pc, exec, (*mode, *b, *c));
                }
                if let (Some(shuffled), true) = (&op.shuffled, self.checks.initcheck) {
                    let from = |regs: &_| sources(regs, *mode, (*b, *c), fixed.as_deref());
                    definedness::shuffle(warp, pc, exec, shuffled, from);
                }
                let inside = match fixed {
                    Some(pattern) => permute(warp, exec, *dst, *a, pattern),
                    None => shuffle(warp, exec, *mode, *dst, (*a, *b, *c)),
                };
                if let Some(pred) = pred {
                    put_pred(&mut warp.regs.pred[*pred as usize], inside, exec);
                }
            }
            CollectiveKind::Lookup { dst, a, b, c } => {
                if exec != FULL && self.checks.synccheck {
                    self.check_sources(warp, pc, exec, (ShflMode::Idx, *b, *c));
                }
                if let (Some(shuffled), true) = (&op.shuffled, self.checks.initcheck) {
                    let from = |regs: &_| sources(regs, ShflMode::Idx, (*b, *c), None);
                    definedness::shuffle(warp, pc, exec, shuffled, from);
                }
                rows::w2_gather(&mut warp.regs, exec, *dst, *a, *b);
            }
            CollectiveKind::Barrier => {
                if let Some(races) = &mut self.races {
                    races.warp_barrier(warp.index, mask, warp.live);
                }
            }
            CollectiveKind::Matrix(at) => self.matrix(warp, pc, exec, *at),
            other => slow_collective(warp, exec, other, mask),
        }
    }

    /// Reports lanes that read from a lane that does not take part.
    #[cold]
    fn check_sources(&mut self, warp: &Warp, pc: u32, exec: u32, (mode, b, c): (ShflMode, u32, u32)) {
        let (b, c) = (&warp.regs.r32[b as usize].0, &warp.regs.r32[c as usize].0);
        let mut inactive = 0;
        for lane in lanes_of(exec) {
            let (source, _) = shuffle_source(mode, lane as u32, b[lane], c[lane]);
            inactive |= u32::from(exec >> source & 1 == 0) << lane;
        }
        if inactive != 0 {
            self.finding(warp, pc, inactive, Tool::Synccheck, "inactive-source-lane", None, || {
                (
                    "reads the register of a lane that does not take part in the shuffle".to_owned(),
                    "let all lanes that are read from execute the shuffle, or use the value only where the source \
                     lane is known to be active"
                        .to_owned(),
                )
            });
        }
    }
}

/// The lanes that lanes read.
#[cold]
fn sources(regs: &Registers, mode: ShflMode, (b, c): (u32, u32), fixed: Option<&Pattern>) -> [u8; LANES] {
    let (b, c) = (&regs.r32[b as usize].0, &regs.r32[c as usize].0);
    let read = |lane: usize| shuffle_source(mode, lane as u32, b[lane], c[lane]).0 as u8;
    fixed.map_or_else(|| std::array::from_fn(read), |pattern| pattern.source)
}

/// A shuffle whose operands are registers.
#[inline(never)]
fn shuffle(warp: &mut Warp, exec: u32, mode: ShflMode, dst: u32, (a, b, c): (u32, u32, u32)) -> u32 {
    let regs = &mut warp.regs;
    let (a, b, c) = (&regs.r32[a as usize].0, &regs.r32[b as usize].0, &regs.r32[c as usize].0);
    let mut out = [0; LANES];
    let mut all = 0;
    for lane in 0..LANES {
        let (source, inside) = shuffle_source(mode, lane as u32, b[lane], c[lane]);
        out[lane] = a[source as usize & 31];
        all |= u32::from(inside) << lane;
    }
    put32(&mut regs.r32[dst as usize], out, exec);
    all
}

/// A shuffle with a pattern that is known. Exchanges over a power of two are what reductions are made of.
#[inline(always)]
fn permute(warp: &mut Warp, exec: u32, dst: u32, a: u32, pattern: &Pattern) -> u32 {
    let regs = &mut warp.regs;
    let a = &regs.r32[a as usize].0;
    let out = match pattern.exchange {
        Some(1) => exchange::<1>(a),
        Some(2) => exchange::<2>(a),
        Some(4) => exchange::<4>(a),
        Some(8) => exchange::<8>(a),
        Some(16) => exchange::<16>(a),
        _ => std::array::from_fn(|i| a[pattern.source[i] as usize % LANES]),
    };
    put32(&mut regs.r32[dst as usize], out, exec);
    pattern.inside
}

#[inline(always)]
fn exchange<const BITS: usize>(a: &[u32; LANES]) -> [u32; LANES] {
    let mut out = [0; LANES];
    for i in 0..LANES {
        out[i] = a[i ^ BITS];
    }
    out
}

fn slow_collective(warp: &mut Warp, exec: u32, kind: &CollectiveKind, mask: u32) {
    let regs = &mut warp.regs;
    match kind {
        CollectiveKind::Vote { mode, dst, src, negated } => {
            let votes = (regs.pred[*src as usize] ^ if *negated { FULL } else { 0 }) & exec;
            let all = votes == exec;
            match (mode, *dst) {
                (VoteMode::Ballot, Slot::W(row)) => put32(&mut regs.r32[row as usize], [votes; LANES], exec),
                (_, Slot::P(p)) => {
                    let result = match mode {
                        VoteMode::All => all,
                        VoteMode::Any => votes != 0,
                        VoteMode::Uni => all || votes == 0,
                        VoteMode::Ballot => false,
                    };
                    put_pred(&mut regs.pred[p as usize], if result { FULL } else { 0 }, exec);
                }
                // The verifier refuses other destinations.
                _ => {}
            }
        }
        CollectiveKind::Match { all, dst, pred, a } => {
            let mut out = [0; LANES];
            for lane in lanes_of(exec) {
                let mine = lane_value(regs, *a, lane);
                out[lane] =
                    lanes_of(exec).filter(|l| lane_value(regs, *a, *l) == mine).fold(0u32, |m, l| m | 1 << l);
            }
            if *all {
                let equal = out[exec.trailing_zeros() as usize & 31] == exec;
                out = [if equal { exec } else { 0 }; LANES];
                if let Some(pred) = pred {
                    put_pred(&mut regs.pred[*pred as usize], if equal { FULL } else { 0 }, exec);
                }
            }
            put32(&mut regs.r32[*dst as usize], out, exec);
        }
        CollectiveKind::Redux { op, ty, dst, a } => {
            let a = regs.r32[*a as usize].0;
            let values = lanes_of(exec).map(|l| a[l]);
            let signed = *ty == ScalarType::S32;
            let result = values.reduce(|x, y| match op {
                ReduxOp::Add => x.wrapping_add(y),
                ReduxOp::Min if signed => (x as i32).min(y as i32) as u32,
                ReduxOp::Max if signed => (x as i32).max(y as i32) as u32,
                ReduxOp::Min => x.min(y),
                ReduxOp::Max => x.max(y),
                ReduxOp::And => x & y,
                ReduxOp::Or => x | y,
                ReduxOp::Xor => x ^ y,
            });
            put32(&mut regs.r32[*dst as usize], [result.unwrap_or(0); LANES], exec);
        }
        CollectiveKind::Elect { dst, pred } => {
            // The hardware takes the lowest lane of the mask.
            let leader = (mask & exec).trailing_zeros();
            let elected = 1u32.checked_shl(leader).unwrap_or(0);
            put_pred(&mut regs.pred[*pred as usize], elected, exec);
            if let Some(dst) = dst {
                for lane in lanes_of(exec) {
                    set_lane(regs, Slot::W(*dst), lane, u64::from(leader));
                }
            }
        }
        CollectiveKind::Activemask { dst } => put32(&mut regs.r32[*dst as usize], [exec; LANES], exec),
        // Handled before.
        CollectiveKind::Shuffle { .. }
        | CollectiveKind::Lookup { .. }
        | CollectiveKind::Barrier
        | CollectiveKind::Matrix(_) => {}
    }
}
