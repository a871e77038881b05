//! Loads and stores: the choice of the state space, and global memory.

use std::hint::black_box;

use warpwright_ptx::{Ordering, Semantics, StateSpace};

use super::access::{Lanes, same_value};
use super::transfer::{read_rows, span, write_rows};
use crate::code::definedness::Checked;
use crate::code::layout::Slot;
use crate::code::memory::Access;
use crate::code::rows::{FULL, LANES, Registers};
use crate::context::Context;
use crate::counters::Direction;
use crate::events::problem;
use crate::events::{self, AccessKind, Strength};
use crate::flow::Flow;
use crate::report::{Space, Tool};
use crate::space::classify;
use crate::warp::Warp;

/// One value per lane, whatever the width of the register.
#[inline(always)]
pub(super) fn lane_value(regs: &Registers, slot: Slot, lane: usize) -> u64 {
    match slot {
        Slot::W(row) => u64::from(regs.r32[row as usize].0[lane]),
        Slot::L(row) | Slot::Q(row) => regs.r64[row as usize].0[lane],
        Slot::P(p) => u64::from(regs.pred[p as usize] >> lane & 1),
    }
}

#[inline(always)]
pub(super) fn set_lane(regs: &mut Registers, slot: Slot, lane: usize, value: u64) {
    match slot {
        Slot::W(row) => regs.r32[row as usize].0[lane] = value as u32,
        Slot::L(row) | Slot::Q(row) => regs.r64[row as usize].0[lane] = value,
        Slot::P(p) => {
            let p = &mut regs.pred[p as usize];
            *p = *p & !(1 << lane) | (value as u32 & 1) << lane;
        }
    }
}

/// Gives all lanes one value.
#[inline(always)]
pub(super) fn broadcast(regs: &mut Registers, slot: Slot, value: u64) {
    match slot {
        Slot::W(row) => regs.r32[row as usize].0 = [value as u32; LANES],
        Slot::L(row) | Slot::Q(row) => regs.r64[row as usize].0 = [value; LANES],
        Slot::P(p) => regs.pred[p as usize] = 0u32.wrapping_sub(value as u32 & 1),
    }
}

/// The addresses of all lanes.
#[inline(always)]
pub(super) fn addresses(regs: &Registers, slot: Slot, offset: i64) -> [u64; LANES] {
    let mut out = [0; LANES];
    match slot {
        Slot::W(row) => {
            // 32-bit addresses wrap in 32 bits.
            for (out, a) in out.iter_mut().zip(&regs.r32[row as usize].0) {
                *out = u64::from(a.wrapping_add(offset as u32));
            }
        }
        Slot::L(row) | Slot::Q(row) => {
            for (out, a) in out.iter_mut().zip(&regs.r64[row as usize].0) {
                *out = a.wrapping_add(offset as u64);
            }
        }
        Slot::P(_) => {}
    }
    out
}

/// Whether each lane's address follows the previous lane's at `bytes`, a power of two.
#[inline(always)]
pub(super) fn contiguous(a: &[u64; LANES], bytes: u32) -> bool {
    let shift = bytes.trailing_zeros() & 63;
    let first = a[0];
    let mut differs = 0;
    for (i, a) in a.iter().enumerate() {
        differs |= a ^ first.wrapping_add((i as u64) << shift);
    }
    // Opaque, or the optimiser turns the reduction into a chain of comparisons.
    black_box(differs) == 0
}

/// Whether all lanes have the same address.
#[inline(always)]
pub(super) fn uniform(a: &[u64; LANES]) -> bool {
    let differs = a.iter().fold(0, |d, x| d | (x ^ a[0]));
    black_box(differs) == 0
}

/// Extends what was loaded to a register.
#[inline(always)]
pub(super) fn extend(access: &Access, slot: Slot, value: u64) -> u64 {
    let shift = 64 - 8 * access.bytes;
    let value = if access.sign { ((value << shift) as i64 >> shift) as u64 } else { value };
    match slot {
        Slot::W(_) => value & u64::from(access.keep),
        _ => value,
    }
}

/// Whether an access orders or is ordered.
#[inline(always)]
pub(super) fn strong(ordering: Ordering) -> bool {
    ordering.semantics != Semantics::Weak
}

impl Context<'_> {
    #[inline(always)]
    pub(super) fn load(&mut self, warp: &mut Warp, pc: u32, exec: u32, at: u32) -> Flow {
        let code = self.code;
        let access = &code.loads[at as usize];
        match access.space {
            StateSpace::Global => self.load_global(warp, pc, exec, access),
            StateSpace::Shared => self.load_shared(warp, pc, exec, access),
            StateSpace::SharedCluster => {
                let addresses = addresses(&warp.regs, access.addr, access.offset);
                self.access_cluster(warp, Lanes { pc, exec, addresses: &addresses }, access, AccessKind::Read)
            }
            StateSpace::Local | StateSpace::Const | StateSpace::Param => {
                let addresses = addresses(&warp.regs, access.addr, access.offset);
                let space = match access.space {
                    StateSpace::Local => Space::Local,
                    StateSpace::Const => Space::Const,
                    _ => Space::Param,
                };
                self.load_private(warp, Lanes { pc, exec, addresses: &addresses }, access, space)
            }
            StateSpace::Generic => self.generic(warp, pc, exec, access, AccessKind::Read),
        }
    }

    #[inline(always)]
    pub(super) fn store(&mut self, warp: &mut Warp, pc: u32, exec: u32, at: u32) -> Flow {
        let code = self.code;
        let access = &code.stores[at as usize];
        match access.space {
            StateSpace::Global => self.store_global(warp, pc, exec, access),
            StateSpace::Shared => {
                let flow = self.store_shared(warp, pc, exec, access);
                if self.checks.initcheck && access.tracked.is_some() {
                    self.undefine_shared(warp, exec, access);
                }
                flow
            }
            StateSpace::SharedCluster => {
                self.note_change();
                let addresses = addresses(&warp.regs, access.addr, access.offset);
                self.access_cluster(
                    warp,
                    Lanes { pc, exec, addresses: &addresses },
                    access,
                    AccessKind::Write,
                )
            }
            StateSpace::Local => {
                let addresses = addresses(&warp.regs, access.addr, access.offset);
                self.store_local(warp, Lanes { pc, exec, addresses: &addresses }, access)
            }
            // The verifier refuses stores to read-only spaces.
            StateSpace::Const | StateSpace::Param => Flow::Next,
            StateSpace::Generic => self.generic(warp, pc, exec, access, AccessKind::Write),
        }
    }

    /// Splits a generic access by the spaces that its lanes' addresses lie in.
    #[inline(never)]
    fn generic(&mut self, warp: &mut Warp, pc: u32, exec: u32, access: &Access, kind: AccessKind) -> Flow {
        let generic = addresses(&warp.regs, access.addr, access.offset);
        let mut spaces = [Space::Generic; LANES];
        let mut local = [0; LANES];
        for lane in 0..LANES {
            (spaces[lane], local[lane]) = classify(generic[lane]);
        }
        for (space, exec) in alike(exec, spaces) {
            let write = kind != AccessKind::Read;
            if write && space != Space::Local {
                self.note_change();
                let bits = u64::MAX >> (64 - 8 * access.bytes);
                for tracked in access.tracked.iter().flatten().flatten() {
                    self.check_register(warp, pc, exec, Checked { tracked: *tracked, ty: None, bits });
                }
            }
            let lanes = Lanes { pc, exec, addresses: &local };
            let flow = match space {
                Space::Global if write => self.store_global_lanes(warp, lanes, access),
                Space::Global => self.load_global_lanes(warp, lanes, access),
                Space::Shared => self.access_cluster(warp, lanes, access, kind),
                Space::Local if write => self.store_local(warp, lanes, access),
                Space::Local | Space::Const | Space::Param if !write => {
                    self.load_private(warp, lanes, access, space)
                }
                _ => {
                    let mut flow = Flow::Next;
                    for lane in lanes_of(exec) {
                        let problem = problem::no_space(generic[lane], write);
                        flow = self.bad_access(warp, pc, lane, &problem);
                    }
                    self.zero_lanes(warp, exec, access, kind);
                    flow
                }
            };
            if flow == Flow::Stop {
                return flow;
            }
        }
        Flow::Next
    }

    /// The allocation and offset of an access of a full warp to consecutive elements, if nothing is wrong with it and
    /// nothing has to be done lane by lane.
    #[inline(always)]
    fn contiguous_global(&mut self, regs: &Registers, exec: u32, access: &Access) -> Option<(usize, u64)> {
        let Slot::L(row) = access.addr else { return None };
        if exec != FULL || strong(access.ordering) {
            return None;
        }
        let lanes = &regs.r64[row as usize].0;
        if !contiguous(lanes, access.total()) {
            return None;
        }
        self.place(access, lanes[0], LANES as u64 * u64::from(access.total()))
    }

    /// The allocation that holds `bytes` bytes from lane address `base` on, and the offset in it.
    #[inline(always)]
    fn place(&mut self, access: &Access, base: u64, bytes: u64) -> Option<(usize, u64)> {
        let address = base.wrapping_add(access.offset as u64);
        let at = self.allocations.find(self.shared.memory, access.site, address)?;
        let allocation = &self.allocations.list[at];
        let offset = address.wrapping_sub(allocation.base);
        let fits = offset < allocation.len && bytes <= allocation.len - offset;
        let aligned = address & u64::from(access.total() - 1) == 0;
        (fits && aligned).then_some((at, offset))
    }

    #[inline(always)]
    fn load_global(&mut self, warp: &mut Warp, pc: u32, exec: u32, access: &Access) -> Flow {
        if let Some((at, offset)) = self.contiguous_global(&warp.regs, exec, access) {
            let allocation = &*self.allocations.list[at];
            let total = access.total();
            if !self.checks.initcheck || allocation.is_defined(offset, LANES as u32 * total) {
                if let Some(races) = &mut self.races {
                    let race = race(warp.index, pc, access, AccessKind::Read);
                    let findings = &mut self.findings;
                    races.contiguous(&allocation.races, offset, 0, LANES as u32, race, findings, &|_, _| {
                        false
                    });
                }
                if self.checks.counters {
                    let address = allocation.base + offset;
                    self.counters.global_contiguous(Direction::Load, address, 0, LANES as u32, total);
                }
                let (start, count) = span(offset, access);
                if let Some(words) = allocation.words(4 * start as u64, count) {
                    read_rows(&mut warp.regs, words, offset, access);
                }
                return Flow::Next;
            }
        }
        if self.load_global_uniform(warp, pc, exec, access) {
            return Flow::Next;
        }
        let addresses = addresses(&warp.regs, access.addr, access.offset);
        self.load_global_lanes(warp, Lanes { pc, exec, addresses: &addresses }, access)
    }

    /// A full warp that loads one element or vector; `false` if it is something else.
    #[inline(never)]
    fn load_global_uniform(&mut self, warp: &mut Warp, pc: u32, exec: u32, access: &Access) -> bool {
        let Slot::L(row) = access.addr else { return false };
        let lanes = &warp.regs.r64[row as usize].0;
        if exec != FULL || strong(access.ordering) || !uniform(lanes) {
            return false;
        }
        let total = access.total();
        let Some((at, offset)) = self.place(access, lanes[0], u64::from(total)) else { return false };
        let allocation = &*self.allocations.list[at];
        if self.checks.initcheck && !allocation.is_defined(offset, total) {
            return false;
        }
        if let Some(races) = &mut self.races {
            let race = race(warp.index, pc, access, AccessKind::Read);
            races.uniform(&allocation.races, offset, FULL, race, &mut self.findings, &|_, _| false);
        }
        if self.checks.counters {
            let addresses = [allocation.base + offset; LANES];
            self.counters.global_scattered(Direction::Load, &addresses, FULL, total);
        }
        for (at, slot) in access.elements() {
            let value = allocation.load(offset + at, access.bytes);
            broadcast(&mut warp.regs, slot, extend(access, slot, value));
        }
        true
    }

    #[inline(always)]
    fn store_global(&mut self, warp: &mut Warp, pc: u32, exec: u32, access: &Access) -> Flow {
        self.note_change();
        if let Some((at, offset)) = self.contiguous_global(&warp.regs, exec, access) {
            let allocation = &*self.allocations.list[at];
            let (total, regs) = (access.total(), &warp.regs);
            if let Some(races) = &mut self.races {
                let same = |lane: u32, other: Option<u32>| {
                    let mine = offset + u64::from(lane) * u64::from(total);
                    same_value(regs, access, lane, other, |at| allocation.load(mine + at, access.bytes))
                };
                let race = race(warp.index, pc, access, AccessKind::Write);
                let findings = &mut self.findings;
                races.contiguous(&allocation.races, offset, 0, LANES as u32, race, findings, &same);
            }
            if self.checks.counters {
                let address = allocation.base + offset;
                self.counters.global_contiguous(Direction::Store, address, 0, LANES as u32, total);
            }
            let (start, count) = span(offset, access);
            if let Some(words) = allocation.words(4 * start as u64, count) {
                write_rows(regs, words, offset, access);
            }
            if self.checks.initcheck {
                allocation.define(offset, LANES as u64 * u64::from(total));
            }
            return Flow::Next;
        }
        let addresses = addresses(&warp.regs, access.addr, access.offset);
        self.store_global_lanes(warp, Lanes { pc, exec, addresses: &addresses }, access)
    }

    /// Checks the lanes of a global access one by one. Gives the allocation and offset of each good lane; bad lanes are
    /// reported and left out of the mask. `None` if the launch ends, as it does after a bad access without memcheck.
    #[inline(never)]
    pub(super) fn locate(
        &mut self,
        warp: &Warp,
        lanes: Lanes<'_>,
        (site, total): (u32, u32),
        write: bool,
    ) -> Option<Located> {
        let mut found = Located { good: 0, which: [0; LANES], offsets: [0; LANES] };
        let mut stop = false;
        for lane in lanes_of(lanes.exec) {
            let address = lanes.addresses[lane];
            let at = self.allocations.find(self.shared.memory, site, address);
            if let Some(at) = at {
                let allocation = &self.allocations.list[at];
                let offset = address.wrapping_sub(allocation.base);
                if offset < allocation.len
                    && u64::from(total) <= allocation.len - offset
                    && address.is_multiple_of(u64::from(total))
                {
                    found.good |= 1 << lane;
                    found.which[lane] = at as u32;
                    found.offsets[lane] = offset;
                    continue;
                }
            }
            let problem = problem::global(self.shared.memory, address, total, write);
            stop |= self.bad_access(warp, lanes.pc, lane, &problem) == Flow::Stop;
        }
        (!stop).then_some(found)
    }

    #[inline(never)]
    fn load_global_lanes(&mut self, warp: &mut Warp, lanes: Lanes<'_>, access: &Access) -> Flow {
        let total = access.total();
        let Some(found) = self.locate(warp, lanes, (access.site, total), false) else { return Flow::Stop };
        let good = lanes.only(found.good);
        self.zero_lanes(warp, lanes.exec & !found.good, access, AccessKind::Read);
        self.race_lanes(warp, lanes.pc, &found, access, AccessKind::Read);
        if self.checks.counters {
            self.counters.global_scattered(Direction::Load, lanes.addresses, found.good, total);
        }
        let mut undefined = 0;
        for lane in lanes_of(found.good) {
            let allocation = &*self.allocations.list[found.which[lane] as usize];
            let offset = found.offsets[lane];
            if self.checks.initcheck && !allocation.is_defined(offset, total) {
                undefined |= 1 << lane;
            }
            let _whole = (strong(access.ordering) && total > 4).then(|| allocation.lock_wide());
            for (at, slot) in access.elements() {
                let value = allocation.load(offset + at, access.bytes);
                set_lane(&mut warp.regs, slot, lane, extend(access, slot, value));
            }
        }
        self.acquire_lanes(warp, good, access, Space::Global);
        for lane in lanes_of(undefined) {
            let address = Some((Space::Global, lanes.addresses[lane]));
            self.finding(warp, lanes.pc, 1 << lane, Tool::Initcheck, "uninitialised-global", address, || {
                (
                    format!("loads {total} bytes of global memory that nothing wrote"),
                    "write or zero the buffer before the launch, or guard the load".to_owned(),
                )
            });
        }
        Flow::Next
    }

    #[inline(never)]
    fn store_global_lanes(&mut self, warp: &Warp, lanes: Lanes<'_>, access: &Access) -> Flow {
        let total = access.total();
        let Some(found) = self.locate(warp, lanes, (access.site, total), true) else { return Flow::Stop };
        self.race_lanes(warp, lanes.pc, &found, access, AccessKind::Write);
        self.release_lanes(warp, lanes.only(found.good), access, Space::Global);
        if self.checks.counters {
            self.counters.global_scattered(Direction::Store, lanes.addresses, found.good, total);
        }
        for lane in lanes_of(found.good) {
            let allocation = &*self.allocations.list[found.which[lane] as usize];
            let offset = found.offsets[lane];
            let _whole = (strong(access.ordering) && total > 4).then(|| allocation.lock_wide());
            for (at, slot) in access.elements() {
                allocation.store(offset + at, access.bytes, lane_value(&warp.regs, slot, lane));
            }
            if self.checks.initcheck {
                allocation.define(offset, u64::from(total));
            }
        }
        Flow::Next
    }

    /// Tells racecheck about the good lanes, one allocation at a time.
    fn race_lanes(&mut self, warp: &Warp, pc: u32, found: &Located, access: &Access, kind: AccessKind) {
        let Some(races) = &mut self.races else { return };
        for (which, lanes) in alike(found.good, found.which) {
            let allocation = &*self.allocations.list[which as usize];
            let same = |lane: u32, other: Option<u32>| {
                let offset = found.offsets[lane as usize];
                let held = |at| allocation.load(offset + at, access.bytes);
                kind == AccessKind::Write && same_value(&warp.regs, access, lane, other, held)
            };
            let race = race(warp.index, pc, access, kind);
            let first = found.offsets[lanes.trailing_zeros() as usize];
            let uniform = lanes_of(lanes).all(|l| found.offsets[l] == first);
            if uniform && lanes.count_ones() > 1 {
                races.uniform(&allocation.races, first, lanes, race, &mut self.findings, &same);
            } else {
                races.scattered(&allocation.races, &found.offsets, lanes, race, &mut self.findings, &same);
            }
        }
    }
}

/// Where the lanes of a global access go.
pub(super) struct Located {
    /// Lanes that may access.
    pub(super) good: u32,
    /// Index of the allocation in the worker's list.
    pub(super) which: [u32; LANES],
    /// Bytes from its start.
    pub(super) offsets: [u64; LANES],
}

/// The lanes of a mask, in order.
pub(super) fn lanes_of(mask: u32) -> impl Iterator<Item = usize> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        if rest == 0 {
            return None;
        }
        let lane = rest.trailing_zeros();
        rest &= rest - 1;
        Some(lane as usize)
    })
}

/// Lanes with equal values together, as masks, with their value; those of the lowest lane first.
pub(super) fn alike<T: Copy + PartialEq>(lanes: u32, values: [T; 32]) -> impl Iterator<Item = (T, u32)> {
    let mut rest = lanes;
    std::iter::from_fn(move || {
        let value = values[lanes_of(rest).next()?];
        let same = lanes_of(rest).filter(|l| values[*l] == value).fold(0u32, |m, l| m | 1 << l);
        rest &= !same;
        Some((value, same))
    })
}

/// An access as racecheck wants it.
#[inline(always)]
pub(super) fn race(warp: u32, pc: u32, access: &Access, kind: AccessKind) -> events::Access {
    let strength = Strength::of(access.ordering);
    events::Access { warp, pc, bytes: access.total(), kind, strength }
}
