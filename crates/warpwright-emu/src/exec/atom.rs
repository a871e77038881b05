//! `atom` and `red` on global and shared memory. Lanes act one after the other, lowest first.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use warpwright_ptx::{AtomOp, BinaryOp, Modifiers, ScalarType, StateSpace};

use super::access::Lanes;
use super::global::{addresses, lane_value, lanes_of, set_lane};
use crate::code::layout::Slot;
use crate::code::memory::Atomic;
use crate::code::rows::Registers;
use crate::context::Context;
use crate::counters::Direction;
use crate::events::problem;
use crate::events::{self, AccessKind, Strength, StrongAccess};
use crate::float;
use crate::flow::Flow;
use crate::memory::Allocation;
use crate::report::{Space, Tool};
use crate::space::classify;
use crate::warp::Warp;

/// The value that an atomic operation leaves in memory.
pub(super) fn result(op: AtomOp, ty: ScalarType, old: u64, b: u64, c: u64) -> u64 {
    let bits = ty.bits();
    let mask = u64::MAX >> (64 - bits.clamp(1, 64));
    let signed = |v: u64| ((v << (64 - bits)) as i64) >> (64 - bits);
    let is_signed = matches!(ty, ScalarType::S32 | ScalarType::S64);
    let value = match op {
        AtomOp::Add if ty.is_float() => float::binary(BinaryOp::Add, ty, &Modifiers::NONE, old, b),
        AtomOp::Min | AtomOp::Max if ty.is_float() => {
            let op = if op == AtomOp::Min { BinaryOp::Min } else { BinaryOp::Max };
            float::binary(op, ty, &Modifiers::NONE, old, b)
        }
        AtomOp::Add => old.wrapping_add(b),
        AtomOp::Min if is_signed => signed(old).min(signed(b)) as u64,
        AtomOp::Max if is_signed => signed(old).max(signed(b)) as u64,
        AtomOp::Min => old.min(b),
        AtomOp::Max => old.max(b),
        AtomOp::Inc => {
            if old >= b {
                0
            } else {
                old + 1
            }
        }
        AtomOp::Dec => {
            if old == 0 || old > b {
                b
            } else {
                old - 1
            }
        }
        AtomOp::And => old & b,
        AtomOp::Or => old | b,
        AtomOp::Xor => old ^ b,
        AtomOp::Exch => b,
        AtomOp::Cas => {
            if old == b {
                c
            } else {
                old
            }
        }
    };
    value & mask
}

/// The 128 bits of a lane.
fn wide_value(regs: &Registers, slot: Slot, lane: usize) -> u128 {
    let Slot::Q(row) = slot else { return u128::from(lane_value(regs, slot, lane)) };
    let half = |row: u32| u128::from(regs.r64[row as usize].0[lane]);
    half(row) | half(row + 1) << 64
}

/// `exch` and `cas` of 128 bits: what stays in memory.
fn wide_result(op: &Atomic, regs: &Registers, lane: usize, old: u128) -> u128 {
    let b = wide_value(regs, op.b, lane);
    match (op.op, op.c) {
        (AtomOp::Cas, Some(c)) if old == b => wide_value(regs, c, lane),
        (AtomOp::Cas, _) => old,
        _ => b,
    }
}

/// Writes what a 128-bit atomic found.
fn set_wide(regs: &mut Registers, slot: Slot, lane: usize, value: u128) {
    if let Slot::Q(row) = slot {
        regs.r64[row as usize].0[lane] = value as u64;
        regs.r64[row as usize + 1].0[lane] = (value >> 64) as u64;
    }
}

/// Applies `change` to an element in global memory, returning what was there.
pub(super) fn update(allocation: &Allocation, offset: u64, bytes: u32, change: impl Fn(u64) -> u64) -> u64 {
    if bytes == 8 {
        let _whole = allocation.lock_wide();
        let old = allocation.load(offset, 8);
        allocation.store(offset, 8, change(old));
        return old;
    }
    let Some([word]) = allocation.words(offset, 1) else { return 0 };
    let shift = (offset % 4) as u32 * 8;
    let mask = (u64::MAX >> (64 - 8 * bytes)) as u32;
    let apply = |word: u32| {
        let new = change(u64::from(word >> shift & mask)) as u32;
        Some(word & !(mask << shift) | (new & mask) << shift)
    };
    let old = AtomicU32::fetch_update(word, Relaxed, Relaxed, apply).unwrap_or(0);
    u64::from(old >> shift & mask)
}

/// The elements of an atomic with their offsets: one, or those of a vector.
fn elements(op: &Atomic) -> impl Iterator<Item = (u64, Option<Slot>, Slot)> {
    let all = [(op.dst, op.b)].into_iter().chain(op.more.iter().copied());
    all.zip(0u64..).map(|((dst, b), i)| (i * u64::from(op.ty.bytes()), dst, b))
}

/// One lane's atomic of elements of up to 64 bits in global memory; whether it changed anything.
fn global_lane(regs: &mut Registers, op: &Atomic, lane: usize, allocation: &Allocation, offset: u64) -> bool {
    let c = op.c.map_or(0, |c| lane_value(regs, c, lane));
    // Single-precision additions in global memory flush subnormals.
    let flushes = op.op == AtomOp::Add && op.ty == ScalarType::F32;
    let flush = |x: u64| if flushes && x & 0x7F80_0000 == 0 { x & 0x8000_0000 } else { x };
    let changed = Cell::new(false);
    for (at, dst, b) in elements(op) {
        let b = flush(lane_value(regs, b, lane));
        let old = update(allocation, offset + at, op.ty.bytes(), |old| {
            let new = flush(result(op.op, op.ty, flush(old), b, c));
            changed.set(changed.get() | (new != old));
            new
        });
        if let Some(dst) = dst {
            set_lane(regs, dst, lane, old);
        }
    }
    changed.get()
}

/// An atomic as racecheck wants it.
fn race_of(warp: &Warp, pc: u32, op: &Atomic) -> events::Access {
    let strength = Strength::of_atomic(op.ordering);
    events::Access { warp: warp.index, pc, bytes: op.total(), kind: AccessKind::Atomic, strength }
}

/// One lane of an atomic, as an access that orders.
fn strong_access(warp: &Warp, lanes: Lanes<'_>, op: &Atomic, space: Space, lane: usize) -> StrongAccess {
    let (kind, ordering) = (AccessKind::Atomic, op.ordering);
    StrongAccess { space, address: lanes.addresses[lane], warp: warp.index, lane, kind, ordering }
}

impl Context<'_> {
    #[inline(never)]
    pub(super) fn atomic(&mut self, warp: &mut Warp, pc: u32, exec: u32, at: u32) -> Flow {
        let code = self.code;
        let op = &code.atomics[at as usize];
        let mut places = addresses(&warp.regs, op.addr, op.offset);
        let lanes = match op.space {
            StateSpace::Global => [exec, 0],
            StateSpace::Shared | StateSpace::SharedCluster => [0, exec],
            StateSpace::Generic => {
                let mut split = [0, 0];
                for lane in lanes_of(exec) {
                    let (space, local) = classify(places[lane]);
                    match space {
                        Space::Global => split[0] |= 1 << lane,
                        Space::Shared => {
                            split[1] |= 1 << lane;
                            places[lane] = local;
                        }
                        _ => {
                            let problem = problem::no_space(places[lane], true);
                            if self.bad_access(warp, pc, lane, &problem) == Flow::Stop {
                                return Flow::Stop;
                            }
                        }
                    }
                }
                split
            }
            // The verifier refuses atomics in other spaces.
            StateSpace::Local | StateSpace::Param | StateSpace::Const => return Flow::Next,
        };
        let [global, shared] = lanes.map(|exec| Lanes { pc, exec, addresses: &places });
        if global.exec != 0 && self.atomic_global(warp, global, op) == Flow::Stop {
            return Flow::Stop;
        }
        if shared.exec == 0 {
            return Flow::Next;
        }
        if op.space == StateSpace::Shared {
            return self.atomic_shared(warp, shared, op);
        }
        self.each_owner(warp, shared, true, &mut |cx, warp, lanes| cx.atomic_shared(warp, lanes, op))
    }

    fn atomic_global(&mut self, warp: &mut Warp, lanes: Lanes<'_>, op: &Atomic) -> Flow {
        let (bytes, places) = (op.total(), lanes.addresses);
        let Some(found) = self.locate(warp, lanes, (op.site, bytes), true) else { return Flow::Stop };
        if self.checks.counters {
            self.counters.global_scattered(Direction::Store, places, found.good, bytes);
        }
        let race = race_of(warp, lanes.pc, op);
        let (mut undefined, mut changed) = (0, false);
        for lane in lanes_of(found.good) {
            let allocation = &*self.allocations.list[found.which[lane] as usize];
            let offset = found.offsets[lane];
            if let Some(races) = &mut self.races {
                let (shadow, findings) = (&allocation.races, &mut self.findings);
                races.scattered(shadow, &found.offsets, 1 << lane, race, findings, &|_, _| false);
                races.release(&strong_access(warp, lanes, op, Space::Global, lane));
            }
            if self.checks.initcheck && op.op != AtomOp::Exch && !allocation.is_defined(offset, bytes) {
                undefined |= 1 << lane;
            }
            if op.ty.bytes() == 16 {
                let _whole = allocation.lock_wide();
                let half = |at: u64| u128::from(allocation.load(offset + at, 8));
                let old = half(0) | half(8) << 64;
                let new = wide_result(op, &warp.regs, lane, old);
                changed |= new != old;
                allocation.store(offset, 8, new as u64);
                allocation.store(offset + 8, 8, (new >> 64) as u64);
                if let Some(dst) = op.dst {
                    set_wide(&mut warp.regs, dst, lane, old);
                }
            } else {
                changed |= global_lane(&mut warp.regs, op, lane, allocation, offset);
            }
            if self.checks.initcheck {
                allocation.define(offset, u64::from(bytes));
            }
            if let Some(races) = &mut self.races {
                races.acquire(&strong_access(warp, lanes, op, Space::Global, lane));
            }
        }
        self.note_atomic(warp, changed);
        self.atomic_undefined(warp, lanes.only(undefined), Space::Global, bytes);
        Flow::Next
    }

    fn atomic_shared(&mut self, warp: &mut Warp, lanes: Lanes<'_>, op: &Atomic) -> Flow {
        let (bytes, places) = (op.total(), lanes.addresses);
        let Some(good) = self.locate_shared(warp, lanes, bytes, true) else { return Flow::Stop };
        if self.checks.counters {
            self.counters.shared_scattered(Direction::Store, places, good, bytes);
        }
        self.watch_shared(warp, lanes.only(good), bytes, true);
        let race = race_of(warp, lanes.pc, op);
        let (mut undefined, mut changed) = (0, false);
        for lane in lanes_of(good) {
            let place = places[lane];
            if let Some(races) = &mut self.races {
                let (shadow, findings) = (&self.block.shared.races, &mut self.findings);
                races.scattered(shadow, places, 1 << lane, race, findings, &|_, _| false);
                races.release(&strong_access(warp, lanes, op, Space::Shared, lane));
            }
            let shared = &mut self.block.shared;
            if self.checks.initcheck {
                if op.op != AtomOp::Exch && !shared.is_defined(place, u64::from(bytes)) {
                    undefined |= 1 << lane;
                }
                shared.define(place, u64::from(bytes));
            }
            if op.ty.bytes() == 16 {
                let old = u128::from(shared.load(place, 8)) | u128::from(shared.load(place + 8, 8)) << 64;
                let new = wide_result(op, &warp.regs, lane, old);
                changed |= new != old;
                shared.store(place, 8, new as u64);
                shared.store(place + 8, 8, (new >> 64) as u64);
                if let Some(dst) = op.dst {
                    set_wide(&mut warp.regs, dst, lane, old);
                }
            } else {
                let c = op.c.map_or(0, |c| lane_value(&warp.regs, c, lane));
                let size = op.ty.bytes();
                for (at, dst, b) in elements(op) {
                    let b = lane_value(&warp.regs, b, lane);
                    let old = shared.load(place + at, size);
                    let new = result(op.op, op.ty, old, b, c);
                    changed |= new != old;
                    shared.store(place + at, size, new);
                    if let Some(dst) = dst {
                        set_lane(&mut warp.regs, dst, lane, old);
                    }
                }
            }
            if let Some(races) = &mut self.races {
                races.acquire(&strong_access(warp, lanes, op, Space::Shared, lane));
            }
        }
        self.note_atomic(warp, changed);
        self.atomic_undefined(warp, lanes.only(undefined), Space::Shared, bytes);
        Flow::Next
    }

    /// An atomic that changes nothing is a poll: the attempt to take a lock that is taken.
    fn note_atomic(&mut self, warp: &mut Warp, changed: bool) {
        if changed {
            self.note_change();
        } else {
            self.note_poll(warp);
        }
    }

    fn atomic_undefined(&mut self, warp: &Warp, lanes: Lanes<'_>, space: Space, bytes: u32) {
        let kind = if space == Space::Global { "uninitialised-global" } else { "uninitialised-shared" };
        for lane in lanes_of(lanes.exec) {
            let address = Some((space, lanes.addresses[lane]));
            self.finding(warp, lanes.pc, 1 << lane, Tool::Initcheck, kind, address, || {
                (
                    format!("updates {bytes} bytes of {} memory that nothing wrote", space.name()),
                    "set the variable to its first value before the atomic".to_owned(),
                )
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integer_operators() {
        let r =
            |op, ty, old: i64, b: i64| result(op, ty, old as u64 & 0xFFFF_FFFF, b as u64 & 0xFFFF_FFFF, 9);
        use ScalarType::{B32, S32, U32};
        assert_eq!(r(AtomOp::Add, U32, 0xFFFF_FFFF, 2), 1);
        assert_eq!(r(AtomOp::Min, S32, -1, 3), 0xFFFF_FFFF);
        assert_eq!(r(AtomOp::Min, U32, -1, 3), 3);
        assert_eq!(r(AtomOp::Max, S32, -1, 3), 3);
        assert_eq!((r(AtomOp::Inc, U32, 7, 7), r(AtomOp::Inc, U32, 6, 7)), (0, 7));
        assert_eq!(
            (r(AtomOp::Dec, U32, 0, 7), r(AtomOp::Dec, U32, 9, 7), r(AtomOp::Dec, U32, 3, 7)),
            (7, 7, 2)
        );
        assert_eq!((r(AtomOp::Cas, B32, 5, 5), r(AtomOp::Cas, B32, 5, 6)), (9, 5));
        assert_eq!(r(AtomOp::Exch, B32, 5, 6), 6);
    }
}
