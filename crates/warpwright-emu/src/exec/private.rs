//! Local, constant and parameter memory, and questions about address spaces.

use warpwright_ptx::StateSpace;

use super::access::Lanes;
use super::call::MAX_LOCAL;
use super::definedness::Origin;
use super::global::{addresses, extend, lane_value, lanes_of, set_lane};
use super::rows::put_pred;
use crate::block::in_words;
use crate::code::layout::Slot;
use crate::code::memory::{Access, Stack};
use crate::code::rows::LANES;
use crate::context::Context;
use crate::events::AccessKind;
use crate::events::problem;
use crate::flow::Flow;
use crate::report::{Space, Tool};
use crate::space::{CONST_BASE, LOCAL_BASE, classify, split_cluster};
use crate::warp::{Local, Warp};

impl Local {
    pub(super) fn load(&self, lane: usize, address: u64, bytes: u32) -> u64 {
        read_lane(&self.words, lane, address, bytes)
    }

    pub(super) fn store(&mut self, lane: usize, address: u64, bytes: u32, value: u64) {
        write_lane(&mut self.words, lane, address, bytes, value);
    }

    /// The undefined bits of 1, 2, 4 or 8 bytes.
    pub(super) fn undefined(&self, lane: usize, address: u64, bytes: u32) -> u64 {
        read_lane(&self.undefined, lane, address, bytes)
    }

    pub(super) fn set_undefined(&mut self, lane: usize, address: u64, bytes: u32, undefined: u64) {
        write_lane(&mut self.undefined, lane, address, bytes, undefined);
    }
}

/// 1, 2, 4 or 8 bytes of a lane in words that lie as those of [`Local`].
fn read_lane(words: &[u32], lane: usize, address: u64, bytes: u32) -> u64 {
    let word = |at: u64| words.get(at as usize * LANES + lane).copied().map_or(0, u64::from);
    let (at, shift) = (address / 4, address % 4 * 8);
    match bytes {
        8 => word(at) | word(at + 1) << 32,
        4 => word(at),
        _ => (word(at) >> shift) & (u64::MAX >> (64 - 8 * bytes)),
    }
}

fn write_lane(words: &mut [u32], lane: usize, address: u64, bytes: u32, value: u64) {
    in_words(address, bytes, value, |at, mask, value| {
        if let Some(word) = words.get_mut(at as usize * LANES + lane) {
            *word = *word & !mask | value & mask;
        }
    });
}

impl Context<'_> {
    /// Loads from local, constant or parameter memory.
    #[inline(never)]
    pub(super) fn load_private(
        &mut self,
        warp: &mut Warp,
        lanes: Lanes<'_>,
        access: &Access,
        space: Space,
    ) -> Flow {
        let Lanes { pc, exec, addresses } = lanes;
        let total = access.total();
        let range = match space {
            Space::Local => (LOCAL_BASE, 0),
            Space::Const => (CONST_BASE, self.shared.constants.len() as u64),
            _ => (0, self.shared.params.len() as u64),
        };
        for lane in lanes_of(exec) {
            let address = addresses[lane];
            let range = if space == Space::Local { (LOCAL_BASE, warp.paths.tops[lane]) } else { range };
            if !inside(range, address, total) {
                let problem = problem::window(space, address, total, range, false);
                self.zero_lanes(warp, 1 << lane, access, AccessKind::Read);
                if self.bad_access(warp, pc, lane, &problem) == Flow::Stop {
                    return Flow::Stop;
                }
                continue;
            }
            let image = match space {
                Space::Const => &self.shared.constants[..],
                _ => self.shared.params,
            };
            for (at, slot) in access.elements() {
                let at = address + at;
                let value = if space == Space::Local {
                    warp.local.load(lane, at, access.bytes)
                } else {
                    read_image(image, at, access.bytes)
                };
                set_lane(&mut warp.regs, slot, lane, extend(access, slot, value));
            }
            if space != Space::Local || !self.checks.initcheck {
                continue;
            }
            let elements = (address..).step_by(access.bytes as usize).take(access.regs.len());
            let undefined = |at: u64| warp.local.undefined(lane, at, access.bytes);
            if elements.clone().all(|at| undefined(at) == 0) {
                continue;
            }
            if let Some(tracked) = &access.tracked {
                for (slot, at) in tracked.iter().zip(elements) {
                    if let Some(slot) = *slot {
                        let undefined = warp.local.undefined(lane, at, access.bytes);
                        let extended = if access.sign { signed(undefined, access.bytes) } else { undefined };
                        warp.definedness.set(slot, lane, extended, Some(Origin::Local { pc, address: at }));
                    }
                }
            } else {
                let at = Some((Space::Local, address));
                self.finding(warp, pc, 1 << lane, Tool::Initcheck, "uninitialised-local", at, || {
                    (
                        format!("loads {total} bytes of local memory that this thread never wrote"),
                        "write the variable on every path that leads here".to_owned(),
                    )
                });
            }
        }
        if self.checks.counters {
            let bytes = u64::from(exec.count_ones() * total);
            match space {
                Space::Local => self.counters.local_bytes += bytes,
                Space::Const => self.counters.constant_bytes += bytes,
                _ => {}
            }
        }
        Flow::Next
    }

    #[inline(never)]
    pub(super) fn store_local(&mut self, warp: &mut Warp, lanes: Lanes<'_>, access: &Access) -> Flow {
        let Lanes { pc, exec, addresses } = lanes;
        let total = access.total();
        for lane in lanes_of(exec) {
            let address = addresses[lane];
            let range = (LOCAL_BASE, warp.paths.tops[lane]);
            if !inside(range, address, total) {
                let problem = problem::window(Space::Local, address, total, range, true);
                if self.bad_access(warp, pc, lane, &problem) == Flow::Stop {
                    return Flow::Stop;
                }
                continue;
            }
            for (at, slot) in access.elements() {
                let value = lane_value(&warp.regs, slot, lane);
                warp.local.store(lane, address + at, access.bytes, value);
            }
            if self.checks.initcheck {
                for j in 0..access.regs.len() {
                    let tracked = access.tracked.as_ref().and_then(|tracked| tracked[j]);
                    let undefined = tracked.map_or(0, |tracked| warp.definedness.bits(tracked, lane));
                    let at = address + j as u64 * u64::from(access.bytes);
                    warp.local.set_undefined(lane, at, access.bytes, undefined);
                }
            }
        }
        if self.checks.counters {
            self.counters.local_bytes += u64::from(exec.count_ones() * total);
        }
        Flow::Next
    }
}

impl Context<'_> {
    /// `discard` and `applypriority`: only the address matters.
    #[inline(never)]
    pub(super) fn line(&mut self, warp: &Warp, pc: u32, exec: u32, at: u32) -> Flow {
        let access = &self.code.lines[at as usize];
        let places = addresses(&warp.regs, access.addr, access.offset);
        let lanes = Lanes { pc, exec, addresses: &places };
        let found = self.locate(warp, lanes, (access.site, access.total()), true);
        if found.is_none() { Flow::Stop } else { Flow::Next }
    }

    /// `alloca`, `stacksave` and `stackrestore`: the end of a thread's local memory moves.
    #[inline(never)]
    pub(super) fn stack(&mut self, warp: &mut Warp, exec: u32, at: u32) {
        let op = self.code.stack[at as usize];
        for lane in lanes_of(exec) {
            let top = warp.paths.tops[lane];
            match op {
                Stack::Alloca { dst, bytes, align } => {
                    let bytes = lane_value(&warp.regs, bytes, lane);
                    let start = top.next_multiple_of(u64::from(align.max(1)));
                    // Beyond the limit nothing is reserved, and accesses are out of bounds.
                    if let Some(end) = start.checked_add(bytes).filter(|end| *end <= MAX_LOCAL) {
                        warp.local.extend(end);
                        warp.paths.tops[lane] = end;
                    }
                    set_lane(&mut warp.regs, dst, lane, start);
                }
                Stack::Save { dst } => set_lane(&mut warp.regs, dst, lane, top),
                Stack::Restore { src } => {
                    let saved = lane_value(&warp.regs, src, lane);
                    warp.paths.tops[lane] = saved.min(top);
                }
            }
        }
    }
}

/// The bits of so many bytes, with the highest in all those above.
fn signed(bits: u64, bytes: u32) -> u64 {
    let shift = 64 - 8 * bytes.clamp(1, 8);
    (((bits << shift) as i64) >> shift) as u64
}

fn inside((start, end): (u64, u64), address: u64, bytes: u32) -> bool {
    address >= start
        && address <= end
        && u64::from(bytes) <= end - address
        && address.is_multiple_of(u64::from(bytes))
}

/// Up to 8 bytes of an image, zero beyond its end.
pub(crate) fn read_image(image: &[u8], at: u64, bytes: u32) -> u64 {
    let mut value = [0; 8];
    for (i, to) in value.iter_mut().take(bytes as usize).enumerate() {
        let at = usize::try_from(at).ok().and_then(|at| at.checked_add(i));
        *to = at.and_then(|at| image.get(at)).copied().unwrap_or(0);
    }
    u64::from_le_bytes(value)
}

/// `isspacep`, asked by a thread of the block of rank `rank`.
pub(super) fn isspacep(warp: &mut Warp, exec: u32, (space, dst, src): (StateSpace, u32, Slot), rank: u32) {
    let wanted = match space {
        StateSpace::Global => Space::Global,
        StateSpace::Shared | StateSpace::SharedCluster => Space::Shared,
        StateSpace::Local => Space::Local,
        StateSpace::Const => Space::Const,
        StateSpace::Param => Space::Param,
        StateSpace::Generic => Space::Generic,
    };
    let mut out = 0;
    for lane in lanes_of(exec) {
        let (found, address) = classify(lane_value(&warp.regs, src, lane));
        // The shared memory of other blocks is in the window of the cluster alone.
        let own = space != StateSpace::Shared || split_cluster(address).0.is_none_or(|owner| owner == rank);
        out |= u32::from(found == wanted && own) << lane;
    }
    put_pred(&mut warp.regs.pred[dst as usize], out, exec);
}
