//! Where operands point to: shared memory of some block of the cluster, or global memory.

use std::sync::Arc;

use warpwright_ptx::StateSpace;

use super::Issuer;
use crate::code::asynchronous::Place;
use crate::context::Context;
use crate::events::problem::{self, Problem};
use crate::exec::global::addresses;
use crate::memory::{Allocation, SLOT_BITS};
use crate::report::{Site, Space};
use crate::slots::Slot;
use crate::space::{SHARED_BASE, classify, split_cluster};
use crate::warp::Warp;

/// A place in the shared memory of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Spot {
    pub(super) rank: u32,
    pub(super) address: u64,
}

/// Requirements on an operand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Need {
    pub(super) bytes: u64,
    pub(super) align: u64,
    pub(super) write: bool,
}

impl Context<'_> {
    /// The addresses of an operand, one per lane.
    pub(super) fn places(&self, warp: &Warp, place: Place) -> [u64; 32] {
        addresses(&warp.regs, place.slot, place.offset)
    }

    /// A thread of the cluster that runs.
    pub(super) fn site_of(&mut self, rank: u32, warp: u32, lane: u32) -> Site {
        let block = self.block_of(rank).map_or(0, |b| b.linear as u32);
        Site { block, thread: 32 * warp + lane.min(31) }
    }

    /// Runs `f` with the shared memory of a block of the cluster in the place of the executing block's.
    pub(super) fn on_rank<T>(&mut self, rank: u32, f: impl FnOnce(&mut Self) -> T) -> T {
        if rank == self.rank() { f(self) } else { self.with_shared_of(rank, f) }
    }

    /// Where in shared memory an operand of a lane points, if it may point there.
    pub(super) fn shared_spot(
        &mut self,
        warp: &Warp,
        issuer: Issuer,
        lane: usize,
        (space, raw): (StateSpace, u64),
        need: Need,
    ) -> Option<Spot> {
        match self.find_spot(space, raw, need) {
            Ok(spot) => self.reaches(warp, issuer, lane, spot, need.write).then_some(spot),
            Err(problem) => {
                self.bad_access(warp, issuer.pc, lane, &problem);
                None
            }
        }
    }

    /// Whether the shared memory of the block in which a spot lies can be accessed now.
    pub(super) fn reaches(
        &mut self,
        warp: &Warp,
        issuer: Issuer,
        lane: usize,
        spot: Spot,
        write: bool,
    ) -> bool {
        if spot.rank == issuer.rank {
            return true;
        }
        let Some(problem) = self.unreachable(spot.rank, write) else { return true };
        let problem = Problem { address: (Space::Shared, spot.address), ..problem };
        self.bad_access(warp, issuer.pc, lane, &problem);
        false
    }

    fn find_spot(&self, space: StateSpace, raw: u64, need: Need) -> Result<Spot, Problem> {
        let range = (SHARED_BASE, self.block.shared.end);
        let bytes = u32::try_from(need.bytes).unwrap_or(u32::MAX);
        let outside = |address| problem::window(Space::Shared, address, bytes, range, need.write);
        let address = match space {
            StateSpace::Generic => match classify(raw) {
                (Space::Shared, address) => address,
                _ => {
                    return Err(Problem {
                        kind: "wrong-space",
                        message: format!("generic address {raw:#x} is not in shared memory"),
                        help: "make the address with cvta.shared",
                        address: (Space::Generic, raw),
                    });
                }
            },
            _ => raw,
        };
        if address >> SLOT_BITS != 0 {
            return Err(outside(address));
        }
        let (rank, address) = match space {
            StateSpace::Shared => (None, address),
            _ => split_cluster(address),
        };
        let rank = rank.unwrap_or_else(|| self.rank());
        if !self.block.shared.covers(address, need.bytes) || rank >= self.shared.shape.size() {
            return Err(outside(address));
        }
        if !address.is_multiple_of(need.align) {
            return Err(misaligned(Space::Shared, address, need));
        }
        Ok(Spot { rank, address })
    }

    /// The allocation that holds a range of global memory, and the offset in it, if there is one.
    pub(super) fn global_range(
        &mut self,
        warp: &Warp,
        issuer: Issuer,
        lane: usize,
        address: u64,
        need: Need,
    ) -> Option<(Arc<Allocation>, u64)> {
        match self.find_global(address, need) {
            Ok(found) => Some(found),
            Err(problem) => {
                self.bad_access(warp, issuer.pc, lane, &problem);
                None
            }
        }
    }

    fn find_global(&mut self, address: u64, need: Need) -> Result<(Arc<Allocation>, u64), Problem> {
        if !address.is_multiple_of(need.align) {
            return Err(misaligned(Space::Global, address, need));
        }
        let found = self.allocation_at(address);
        let Some(allocation) = found else {
            return Err(problem::range(self.shared.memory, address, need.bytes, need.write));
        };
        let offset = address.wrapping_sub(allocation.base);
        if offset > allocation.len || need.bytes > allocation.len - offset {
            return Err(problem::range(self.shared.memory, address, need.bytes, need.write));
        }
        Ok((allocation, offset))
    }

    /// The live allocation in whose slot an address lies.
    pub(super) fn allocation_at(&mut self, address: u64) -> Option<Arc<Allocation>> {
        let slot = address >> SLOT_BITS;
        if let Some(last) = self.cluster.asynchronous.last.as_ref().filter(|a| u64::from(a.slot) == slot) {
            return Some(last.clone());
        }
        let Some(Slot::Live(found)) = self.shared.memory.slot(address) else { return None };
        self.cluster.asynchronous.last = Some(found.clone());
        Some(found)
    }
}

fn misaligned(space: Space, address: u64, need: Need) -> Problem {
    let verb = if need.write { "writes to" } else { "reads from" };
    let align = need.align;
    Problem {
        kind: "misaligned",
        message: format!("{verb} an address of {} memory that is no multiple of {align}", space.name()),
        help: "align the variable, and step by whole pieces",
        address: (space, address),
    }
}
