//! Shared memory. A block runs on one worker, so its shared memory is plain words.

use std::cell::Cell;

use super::access::{Lanes, same_value};
use super::global::{
    addresses, broadcast, contiguous, extend, lane_value, lanes_of, race, set_lane, strong, uniform,
};
use super::transfer::{read_rows, span, write_rows};
use crate::code::layout::Slot;
use crate::code::memory::Access;
use crate::code::rows::{FULL, LANES};
use crate::context::Context;
use crate::counters::Direction;
use crate::events::problem;
use crate::events::{self, AccessKind};
use crate::flow::Flow;
use crate::report::{Space, Tool};
use crate::space::SHARED_BASE;
use crate::warp::Warp;

/// How the lanes' addresses lie to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// All lanes, one after the other.
    Contiguous,
    /// All lanes at one address.
    Uniform,
    Scattered,
}

#[inline(always)]
fn shape(a: &[u64; LANES], exec: u32, total: u32) -> Shape {
    if exec != FULL {
        return Shape::Scattered;
    }
    if contiguous(a, total) {
        return Shape::Contiguous;
    }
    if uniform(a) { Shape::Uniform } else { Shape::Scattered }
}

impl Context<'_> {
    #[inline(always)]
    pub(super) fn load_shared(&mut self, warp: &mut Warp, pc: u32, exec: u32, access: &Access) -> Flow {
        let addresses = addresses(&warp.regs, access.addr, access.offset);
        let lanes = Lanes { pc, exec, addresses: &addresses };
        if exec == FULL
            && (self.shared_load_contiguous(warp, pc, access, &addresses)
                || self.shared_load_uniform(warp, pc, access, &addresses))
        {
            self.watch_shared(warp, lanes, access.total(), false);
            return Flow::Next;
        }
        self.load_shared_lanes(warp, lanes, access)
    }

    #[inline(always)]
    pub(super) fn store_shared(&mut self, warp: &mut Warp, pc: u32, exec: u32, access: &Access) -> Flow {
        self.note_change();
        let addresses = addresses(&warp.regs, access.addr, access.offset);
        let lanes = Lanes { pc, exec, addresses: &addresses };
        if exec == FULL && self.shared_store_contiguous(warp, pc, access, &addresses) {
            self.watch_shared(warp, lanes, access.total(), true);
            return Flow::Next;
        }
        self.store_shared_lanes(warp, lanes, access)
    }

    /// Whether all lanes' consecutive elements lie in shared memory and may be accessed at once.
    #[inline(always)]
    fn contiguous_shared(&self, access: &Access, a: &[u64; LANES]) -> bool {
        let total = u64::from(access.total());
        contiguous(a, access.total())
            && !strong(access.ordering)
            && self.block.shared.covers(a[0], LANES as u64 * total)
            && a[0] & (total - 1) == 0
    }

    /// A full warp that loads consecutive elements; `false` if it is something else.
    #[inline(always)]
    fn shared_load_contiguous(
        &mut self,
        warp: &mut Warp,
        pc: u32,
        access: &Access,
        a: &[u64; LANES],
    ) -> bool {
        let (first, bytes) = (a[0], LANES as u64 * u64::from(access.total()));
        if !self.contiguous_shared(access, a)
            || (self.checks.initcheck && !self.block.shared.is_defined(first, bytes))
        {
            return false;
        }
        if let Some(races) = &mut self.races {
            let race = race(warp.index, pc, access, AccessKind::Read);
            let shadow = &self.block.shared.races;
            races.contiguous(shadow, first, 0, LANES as u32, race, &mut self.findings, &|_, _| false);
        }
        if self.checks.counters {
            self.counters.shared_contiguous(Direction::Load, 0, LANES as u32, access.total());
        }
        let (start, count) = span(first, access);
        if let Some(words) = self.block.shared.words.get_mut(start..start + count) {
            read_rows(&mut warp.regs, Cell::from_mut(words).as_slice_of_cells(), first, access);
        }
        true
    }

    /// A full warp that loads one element or vector; `false` if it is something else.
    #[inline(always)]
    fn shared_load_uniform(&mut self, warp: &mut Warp, pc: u32, access: &Access, a: &[u64; LANES]) -> bool {
        let first = a[0];
        let total = u64::from(access.total());
        if !uniform(a)
            || strong(access.ordering)
            || !self.block.shared.covers(first, total)
            || first & (total - 1) != 0
            || (self.checks.initcheck && !self.block.shared.is_defined(first, total))
        {
            return false;
        }
        if let Some(races) = &mut self.races {
            let race = race(warp.index, pc, access, AccessKind::Read);
            let shadow = &self.block.shared.races;
            races.uniform(shadow, first, FULL, race, &mut self.findings, &|_, _| false);
        }
        if self.checks.counters {
            self.counters.shared_scattered(Direction::Load, a, FULL, access.total());
        }
        for (at, slot) in access.elements() {
            let value = self.block.shared.load(first + at, access.bytes);
            broadcast(&mut warp.regs, slot, extend(access, slot, value));
        }
        true
    }

    #[inline(always)]
    fn shared_store_contiguous(
        &mut self,
        warp: &mut Warp,
        pc: u32,
        access: &Access,
        a: &[u64; LANES],
    ) -> bool {
        if !self.contiguous_shared(access, a) {
            return false;
        }
        let (first, bytes) = (a[0], LANES as u64 * u64::from(access.total()));
        if let Some(races) = &mut self.races {
            let race = race(warp.index, pc, access, AccessKind::Write);
            let (shared, regs) = (&self.block.shared, &warp.regs);
            let same = |lane: u32, other: Option<u32>| {
                same_value(regs, access, lane, other, |at| shared.load(a[lane as usize] + at, access.bytes))
            };
            races.contiguous(&shared.races, first, 0, LANES as u32, race, &mut self.findings, &same);
        }
        if self.checks.counters {
            self.counters.shared_contiguous(Direction::Store, 0, LANES as u32, access.total());
        }
        let (start, count) = span(first, access);
        if let Some(words) = self.block.shared.words.get_mut(start..start + count) {
            write_rows(&warp.regs, Cell::from_mut(words).as_slice_of_cells(), first, access);
        }
        if self.checks.initcheck {
            self.block.shared.define(first, bytes);
        }
        true
    }

    /// The lanes whose access is good, after reporting the others. `None` if the launch ends, as it does after a bad
    /// access without memcheck.
    pub(super) fn locate_shared(
        &mut self,
        warp: &Warp,
        lanes: Lanes<'_>,
        total: u32,
        write: bool,
    ) -> Option<u32> {
        let Lanes { pc, exec, addresses } = lanes;
        // First all lanes at once, those that do not execute included: mostly everything is fine.
        let mut any = false;
        for a in addresses {
            any |= !self.block.shared.covers(*a, u64::from(total)) | (a & u64::from(total - 1) != 0);
        }
        if !any {
            return Some(exec);
        }
        let mut bad = 0;
        for (lane, a) in addresses.iter().enumerate() {
            let fine = self.block.shared.covers(*a, u64::from(total)) & (a & u64::from(total - 1) == 0);
            bad |= u32::from(!fine) << lane;
        }
        bad &= exec;
        let mut stop = false;
        for lane in lanes_of(bad) {
            let range = (SHARED_BASE, self.block.shared.end);
            let problem = problem::window(Space::Shared, addresses[lane], total, range, write);
            stop |= self.bad_access(warp, pc, lane, &problem) == Flow::Stop;
        }
        (!stop).then_some(exec & !bad)
    }

    #[inline(never)]
    pub(super) fn load_shared_lanes(&mut self, warp: &mut Warp, lanes: Lanes<'_>, access: &Access) -> Flow {
        let (total, addresses) = (access.total(), lanes.addresses);
        let Some(good) = self.locate_shared(warp, lanes, total, false) else { return Flow::Stop };
        self.zero_lanes(warp, lanes.exec & !good, access, AccessKind::Read);
        if good == 0 {
            return Flow::Next;
        }
        let (lanes, shape) = (lanes.only(good), shape(addresses, good, total));
        self.race_shared(warp, lanes, access, shape, AccessKind::Read);
        self.watch_shared(warp, lanes, total, false);
        self.count_shared(Direction::Load, lanes, total, shape);
        if self.checks.initcheck {
            self.shared_undefined(warp, lanes, total, shape);
        }
        let shared = &self.block.shared;
        for (step, slot) in access.elements() {
            match (shape, slot, access.bytes) {
                (Shape::Uniform, ..) => {
                    let value = extend(access, slot, shared.load(addresses[0] + step, access.bytes));
                    broadcast(&mut warp.regs, slot, value);
                }
                (_, Slot::W(d), 4) if good == FULL => {
                    let row = &mut warp.regs.r32[d as usize].0;
                    for (to, a) in row.iter_mut().zip(addresses) {
                        *to = shared.words.get(((a + step) / 4) as usize).copied().unwrap_or(0);
                    }
                }
                _ => {
                    for lane in lanes_of(good) {
                        let value = shared.load(addresses[lane] + step, access.bytes);
                        set_lane(&mut warp.regs, slot, lane, extend(access, slot, value));
                    }
                }
            }
        }
        self.acquire_lanes(warp, lanes, access, Space::Shared);
        Flow::Next
    }

    #[inline(never)]
    pub(super) fn store_shared_lanes(&mut self, warp: &Warp, lanes: Lanes<'_>, access: &Access) -> Flow {
        let (total, addresses) = (access.total(), lanes.addresses);
        let Some(good) = self.locate_shared(warp, lanes, total, true) else { return Flow::Stop };
        if good == 0 {
            return Flow::Next;
        }
        let (lanes, shape) = (lanes.only(good), shape(addresses, good, total));
        self.race_shared(warp, lanes, access, shape, AccessKind::Write);
        self.watch_shared(warp, lanes, total, true);
        self.release_lanes(warp, lanes, access, Space::Shared);
        self.count_shared(Direction::Store, lanes, total, shape);
        let shared = &mut self.block.shared;
        for (step, slot) in access.elements() {
            for lane in lanes_of(good) {
                shared.store(addresses[lane] + step, access.bytes, lane_value(&warp.regs, slot, lane));
            }
        }
        if self.checks.initcheck {
            if shape == Shape::Contiguous {
                shared.define(addresses[0], LANES as u64 * u64::from(total));
            } else {
                for lane in lanes_of(good) {
                    shared.define(addresses[lane], u64::from(total));
                }
            }
        }
        Flow::Next
    }

    /// Says which bytes are undefined behind a store of registers that may be.
    #[cold]
    pub(super) fn undefine_shared(&mut self, warp: &Warp, exec: u32, access: &Access) {
        let places = addresses(&warp.regs, access.addr, access.offset);
        for (j, tracked) in access.tracked.iter().flatten().enumerate() {
            let Some(tracked) = *tracked else { continue };
            for lane in lanes_of(warp.definedness.missing(tracked, exec)) {
                let bits = warp.definedness.bits(tracked, lane);
                let first = places[lane] + j as u64 * u64::from(access.bytes);
                for byte in 0..access.bytes {
                    if bits >> (8 * byte) & 0xFF != 0 {
                        self.block.shared.undefine(first + u64::from(byte));
                    }
                }
            }
        }
    }

    fn count_shared(&mut self, direction: Direction, lanes: Lanes<'_>, total: u32, shape: Shape) {
        if !self.checks.counters {
            return;
        }
        if shape == Shape::Contiguous {
            self.counters.shared_contiguous(direction, 0, LANES as u32, total);
        } else {
            self.counters.shared_scattered(direction, lanes.addresses, lanes.exec, total);
        }
    }

    fn race_shared(
        &mut self,
        warp: &Warp,
        lanes: Lanes<'_>,
        access: &Access,
        shape: Shape,
        kind: AccessKind,
    ) {
        let Lanes { pc, exec, addresses: a } = lanes;
        let Some(races) = &mut self.races else { return };
        let shared = &self.block.shared;
        let same = |lane: u32, other: Option<u32>| {
            let held = |at| shared.load(a[lane as usize] + at, access.bytes);
            kind == AccessKind::Write && same_value(&warp.regs, access, lane, other, held)
        };
        let race: events::Access = race(warp.index, pc, access, kind);
        let findings = &mut self.findings;
        match shape {
            Shape::Contiguous => {
                races.contiguous(&shared.races, a[0], 0, LANES as u32, race, findings, &same);
            }
            Shape::Uniform => races.uniform(&shared.races, a[0], exec, race, findings, &same),
            Shape::Scattered => races.scattered(&shared.races, a, exec, race, findings, &same),
        }
    }

    pub(super) fn shared_undefined(&mut self, warp: &Warp, lanes: Lanes<'_>, total: u32, shape: Shape) {
        let Lanes { pc, exec, addresses: a } = lanes;
        let shared = &self.block.shared;
        let all = match shape {
            Shape::Contiguous => shared.is_defined(a[0], LANES as u64 * u64::from(total)),
            Shape::Uniform => shared.is_defined(a[0], u64::from(total)),
            Shape::Scattered => false,
        };
        if all {
            return;
        }
        let missing = lanes_of(exec)
            .filter(|l| !shared.is_defined(a[*l], u64::from(total)))
            .fold(0u32, |m, l| m | 1 << l);
        for lane in lanes_of(missing) {
            let address = Some((Space::Shared, self.block.shared.base + a[lane]));
            self.finding(warp, pc, 1 << lane, Tool::Initcheck, "uninitialised-shared", address, || {
                (
                    format!("loads {total} bytes of shared memory that no thread of the block gave a value"),
                    "write it first, and put a barrier between the write and this load".to_owned(),
                )
            });
        }
    }
}
