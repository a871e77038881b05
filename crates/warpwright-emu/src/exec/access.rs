//! Loads, stores and atomics: the common part, whichever memory they go to.

use super::global::{lane_value, lanes_of, set_lane, strong};
use crate::code::memory::Access;
use crate::code::rows::{LANES, Registers};
use crate::context::Context;
use crate::events::{AccessKind, StrongAccess};
use crate::report::Space;
use crate::warp::Warp;

/// Lanes that execute an instruction on memory, and the addresses of all lanes.
#[derive(Clone, Copy)]
pub(crate) struct Lanes<'a> {
    pub(crate) pc: u32,
    /// Those that execute it.
    pub(crate) exec: u32,
    pub(crate) addresses: &'a [u64; LANES],
}

impl Lanes<'_> {
    /// Those of a mask alone.
    #[inline(always)]
    pub(crate) fn only(self, exec: u32) -> Self {
        Self { exec, ..self }
    }
}

impl Context<'_> {
    /// Gives 0 to the lanes of a load that was suppressed.
    pub(super) fn zero_lanes(&self, warp: &mut Warp, lanes: u32, access: &Access, kind: AccessKind) {
        if kind == AccessKind::Read && lanes != 0 {
            for slot in access.regs.iter().flatten() {
                for lane in lanes_of(lanes) {
                    set_lane(&mut warp.regs, *slot, lane, 0);
                }
            }
        }
    }

    /// A store of lanes releases what its warp did before, where it is strong; before it writes.
    pub(super) fn release_lanes(&mut self, warp: &Warp, lanes: Lanes<'_>, access: &Access, space: Space) {
        let (kind, ordering) = (AccessKind::Write, access.ordering);
        let Some(races) = &mut self.races else { return };
        if races.wants_release(kind, ordering) {
            for lane in lanes_of(lanes.exec) {
                let address = lanes.addresses[lane];
                races.release(&StrongAccess { space, address, warp: warp.index, lane, kind, ordering });
            }
        }
    }

    /// A load of lanes acquires what others released, where it is strong; after it has read. It may be a poll.
    pub(super) fn acquire_lanes(&mut self, warp: &mut Warp, lanes: Lanes<'_>, access: &Access, space: Space) {
        let (kind, ordering) = (AccessKind::Read, access.ordering);
        if strong(ordering) {
            self.note_poll(warp);
        }
        let Some(races) = &mut self.races else { return };
        if races.wants_acquire(kind, ordering) {
            for lane in lanes_of(lanes.exec) {
                let address = lanes.addresses[lane];
                races.acquire(&StrongAccess { space, address, warp: warp.index, lane, kind, ordering });
            }
        }
    }
}

/// Whether a lane writes what memory holds (`None`), read by the offset from the lane's address, or what another lane
/// writes.
pub(super) fn same_value(
    regs: &Registers,
    access: &Access,
    lane: u32,
    other: Option<u32>,
    held: impl Fn(u64) -> u64,
) -> bool {
    let mask = u64::MAX >> (64 - 8 * access.bytes);
    access.elements().all(|(at, slot)| {
        let theirs = match other {
            Some(other) => lane_value(regs, slot, other as usize) & mask,
            None => held(at),
        };
        lane_value(regs, slot, lane as usize) & mask == theirs
    })
}
