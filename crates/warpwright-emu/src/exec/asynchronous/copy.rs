//! `cp.async`: copies of 4, 8 or 16 bytes by every thread, in groups.

use std::sync::Arc;

use super::Issuer;
use super::queue::{Copies, Family, Pending, Work};
use super::reach::Need;
use crate::code::asynchronous::{Limit, Place};
use crate::context::Context;
use crate::counters::Direction;
use crate::events::AccessKind;
use crate::events::asynchronous::Part;
use crate::events::view::View;
use crate::exec::global::lanes_of;
use crate::memory::Allocation;
use crate::report::Space;
use crate::warp::Warp;

impl Context<'_> {
    /// Issues one copy of each lane.
    pub(super) fn copy(
        &mut self,
        warp: &Warp,
        issuer: Issuer,
        (dst, src): (Place, Place),
        bytes: u32,
        limit: Limit,
    ) {
        let (to, from) = (self.places(warp, dst), self.places(warp, src));
        let id = self.cluster.asynchronous.number();
        let mut copies = Copies { bytes, dst: to, src: [(0, 0, 0); 32], allocations: Vec::new() };
        let mut good = 0;
        for lane in lanes_of(issuer.lanes) {
            let wanted = match limit {
                Limit::Full => bytes,
                Limit::Bytes(row) => warp.regs.r32[row as usize].0[lane],
                Limit::Ignore(p) if warp.regs.pred[p as usize] >> lane & 1 == 1 => 0,
                Limit::Ignore(_) => bytes,
            };
            if wanted > bytes {
                self.source_too_long(warp, issuer, lane, wanted, bytes);
            }
            let wanted = wanted.min(bytes);
            let whole = u64::from(bytes);
            let need = Need { bytes: whole, align: whole, write: true };
            let Some(spot) = self.shared_spot(warp, issuer, lane, (dst.space, to[lane]), need) else {
                continue;
            };
            let mut source = (0, 0, 0);
            if wanted > 0 {
                let need = Need { bytes: u64::from(wanted), align: whole, write: false };
                let Some((allocation, offset)) = self.global_range(warp, issuer, lane, from[lane], need)
                else {
                    continue;
                };
                let one = Issuer { lanes: 1 << lane, ..issuer };
                self.issue_global(one, &allocation, (offset, u64::from(wanted)), AccessKind::Read, false);
                source = (index_of(&mut copies.allocations, allocation), offset, wanted);
            }
            copies.dst[lane] = spot.address;
            copies.src[lane] = source;
            good |= 1 << lane;
        }
        if good == 0 {
            return;
        }
        let issuer = Issuer { lanes: good, ..issuer };
        self.note_operation(id, issuer, "cp.async");
        if self.checks.counters {
            self.count_copies(&copies, good);
        }
        for lane in lanes_of(good) {
            let one = Issuer { lanes: 1 << lane, ..issuer };
            self.issue_shared(one, id, (issuer.rank, copies.dst[lane], u64::from(bytes)), true, false);
        }
        if let Some(races) = &mut self.races {
            races.issue(issuer.warp);
        }
        self.join_group(Family::Copy, issuer, id, Vec::new());
        self.enqueue(Pending { id, issuer, view: View::default(), work: Work::Copies(Box::new(copies)) });
    }

    /// Whole sources are one access; shorter ones, which end where they end, are counted lane by lane.
    fn count_copies(&mut self, copies: &Copies, good: u32) {
        let address = |lane: usize| {
            let (which, offset, bytes) = copies.src[lane];
            let allocation = copies.allocations.get(usize::from(which)).filter(|_| bytes > 0);
            allocation.map(|a| (a.base + offset, bytes))
        };
        let (mut sources, mut whole) = ([0; 32], 0);
        for lane in lanes_of(good) {
            match address(lane) {
                Some((at, bytes)) if bytes == copies.bytes => {
                    sources[lane] = at;
                    whole |= 1 << lane;
                }
                Some((at, bytes)) => self.counters.global_run(Direction::Load, at, u64::from(bytes), true),
                None => {}
            }
        }
        self.counters.global_scattered(Direction::Load, &sources, whole, copies.bytes);
        self.counters.shared_scattered(Direction::Store, &copies.dst, good, copies.bytes);
    }

    fn source_too_long(&mut self, warp: &Warp, issuer: Issuer, lane: usize, wanted: u32, bytes: u32) {
        let problem = crate::events::problem::Problem {
            kind: "copy-size",
            message: format!("the source of a cp.async of {bytes} bytes has {wanted}"),
            help: "the size of the source is at most that of the copy; what it leaves is filled with zeros",
            address: (Space::Shared, 0),
        };
        self.bad_access(warp, issuer.pc, lane, &problem);
    }

    /// Moves the bytes of lanes.
    pub(super) fn perform_copies(&mut self, issuer: Issuer, copies: &Copies) {
        let mut undefined = None;
        let check = self.checks.initcheck;
        self.on_rank(issuer.rank, |cx| {
            for lane in lanes_of(issuer.lanes) {
                let mut data = [0u8; 16];
                let (which, offset, bytes) = copies.src[lane];
                if bytes > 0
                    && let Some(allocation) = copies.allocations.get(usize::from(which))
                {
                    allocation.read(offset, &mut data[..bytes as usize]);
                    if check && !allocation.is_defined(offset, bytes) {
                        undefined.get_or_insert((lane, allocation.base + offset));
                    }
                }
                let shared = &mut cx.block.shared;
                shared.write(copies.dst[lane], &data[..copies.bytes as usize]);
                shared.define(copies.dst[lane], u64::from(copies.bytes));
            }
        });
        if let Some((lane, address)) = undefined {
            self.undefined_source(Issuer { lanes: 1 << lane, ..issuer }, Space::Global, address);
        }
    }

    /// `cp.async.commit_group`
    pub(super) fn copy_commit(&mut self, issuer: Issuer) {
        self.close_group(Family::Copy, issuer);
    }

    /// `cp.async.wait_group` and `cp.async.wait_all`
    pub(super) fn copy_wait(&mut self, issuer: Issuer, pending: Option<u32>) {
        if pending.is_none() {
            self.close_group(Family::Copy, issuer);
        }
        self.wait_groups(Family::Copy, issuer, pending.unwrap_or(0), false);
    }

    /// `cp.async.mbarrier.arrive`: arrives once all copies that the thread has issued are done.
    pub(super) fn copy_arrive(&mut self, warp: &Warp, issuer: Issuer, noinc: bool, at: Place) {
        let places = self.places(warp, at);
        let mut spots = [None; 32];
        let mut good = 0;
        for lane in lanes_of(issuer.lanes) {
            let Some(spot) = self.object_spot(warp, issuer, lane, (at.space, places[lane])) else { continue };
            let one = Issuer { lanes: 1 << lane, ..issuer };
            if self.object(one, spot) {
                if !noinc {
                    self.expect_arrival(one, spot);
                }
                spots[lane] = Some(spot);
                good |= 1 << lane;
            }
        }
        if good == 0 {
            return;
        }
        let issuer = Issuer { lanes: good, ..issuer };
        let ids = self.hand_over(issuer);
        let mut view = View::default();
        if let Some(races) = &mut self.races {
            let parts: Vec<u32> =
                ids.iter().flat_map(|id| [Part::Reads.of(*id), Part::Writes.of(*id)]).collect();
            view = races.ending(issuer.warp, good, races.tick(issuer.warp), &parts);
            races.issue(issuer.warp);
        }
        let id = self.cluster.asynchronous.number();
        self.enqueue(Pending { id, issuer, view, work: Work::Arrive(Box::new(spots)) });
    }
}

/// The index of an allocation in a short list, entered if it is not there.
pub(super) fn index_of(list: &mut Vec<Arc<Allocation>>, allocation: Arc<Allocation>) -> u8 {
    let at = list.iter().position(|a| a.slot == allocation.slot).unwrap_or_else(|| {
        list.push(allocation);
        list.len() - 1
    });
    at as u8
}
