//! Copies that have been issued and not completed, and the groups in which threads wait for them.

use std::sync::Arc;

use warpwright_ptx::{AtomOp, ScalarType};

use super::reach::Spot;
use super::tensor::TensorWork;
use super::{Issuer, Remark};
use crate::context::Context;
use crate::events::AccessKind;
use crate::events::asynchronous::Part;
use crate::events::view::View;
use crate::exec::global::{alike, lanes_of};
use crate::launch::Completion;
use crate::memory::Allocation;
use crate::report::{Key, Space, Tool};

/// Copies that are handed to mbarriers and still remembered for `cp.async.wait_group`.
const MAX_HANDED: usize = 256;

/// An operation that has been issued.
pub(super) struct Pending {
    pub(super) id: u32,
    /// `lanes` are those whose part is not done.
    pub(super) issuer: Issuer,
    /// Knowledge of those who see its end.
    pub(super) view: View,
    pub(super) work: Work,
}

pub(super) enum Work {
    /// `cp.async` of a warp.
    Copies(Box<Copies>),
    /// `cp.async.mbarrier.arrive`
    Arrive(Box<[Option<Spot>; 32]>),
    /// One thread's bulk or remote operation.
    Transfer(Box<Transfer>),
    /// One thread's operation on tensor memory.
    Tensor(TensorWork),
}

/// One `cp.async` of each lane.
pub(super) struct Copies {
    pub(super) bytes: u32,
    pub(super) dst: [u64; 32],
    /// Index in `allocations`, offset in it, and bytes to read.
    pub(super) src: [(u8, u64, u32); 32],
    pub(super) allocations: Vec<Arc<Allocation>>,
}

/// Where a piece of a transfer lies.
#[derive(Clone, Copy, Debug)]
pub(super) enum Where {
    Shared(Spot),
    /// Index of the allocation, and the offset in it.
    Global(u8, u64),
}

/// A piece of a transfer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    /// Where it lies in the bytes that are moved.
    pub(super) at: usize,
    pub(super) bytes: usize,
    pub(super) place: Where,
}

/// A bulk operation: pieces are gathered, and then written elsewhere.
#[derive(Default)]
pub(super) struct Transfer {
    /// The bytes that are moved; until they were gathered, those that fill the gaps.
    pub(super) image: Vec<u8>,
    pub(super) gather: Vec<Segment>,
    pub(super) scatter: Vec<Segment>,
    pub(super) allocations: Vec<Arc<Allocation>>,
    pub(super) gathered: bool,
    pub(super) reduction: Option<(AtomOp, ScalarType)>,
    /// Whether words are rounded to `tf32` on their way.
    pub(super) tf32: bool,
    /// mbarriers that count the bytes.
    pub(super) signals: Vec<Spot>,
    pub(super) counted: u32,
}

/// An operation of a warp that some lanes have not waited for.
pub(super) struct Outstanding {
    id: u32,
    pc: u32,
    lanes: u32,
    /// The group that it belongs to, in the count of its lanes.
    group: u32,
    /// Lanes that have handed the waiting to an mbarrier.
    handed: u32,
    /// Whether the end of its reads was waited for.
    read: bool,
    /// Its writes to global memory. A release does not cover that before its end was waited for.
    written: Vec<Written>,
}

/// A range of global memory that an operation writes.
#[derive(Clone)]
pub(super) struct Written {
    pub(super) allocation: Arc<Allocation>,
    pub(super) range: (u64, u64),
    pub(super) kind: AccessKind,
}

/// The groups of a warp.
#[derive(Default)]
pub(super) struct Groups {
    /// Groups that each lane has closed.
    closed: [u32; 32],
    outstanding: Vec<Outstanding>,
}

/// Which groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// `cp.async`
    Copy,
    /// Bulk copies.
    Bulk,
}

impl Context<'_> {
    fn groups(&mut self, family: Family, issuer: Issuer) -> &mut Groups {
        let key = (issuer.rank, issuer.warp);
        match family {
            Family::Copy => self.cluster.asynchronous.copies.entry(key).or_default(),
            Family::Bulk => self.cluster.asynchronous.bulks.entry(key).or_default(),
        }
    }

    /// Enters an operation into the open groups of its lanes.
    pub(super) fn join_group(&mut self, family: Family, issuer: Issuer, id: u32, written: Vec<Written>) {
        let groups = self.groups(family, issuer);
        for (group, same) in alike(issuer.lanes, groups.closed) {
            groups.outstanding.push(Outstanding {
                id,
                pc: issuer.pc,
                lanes: same,
                group,
                handed: 0,
                read: false,
                written: written.clone(),
            });
        }
    }

    /// Closes the open groups of lanes.
    pub(super) fn close_group(&mut self, family: Family, issuer: Issuer) {
        let groups = self.groups(family, issuer);
        for lane in lanes_of(issuer.lanes) {
            groups.closed[lane] += 1;
        }
    }

    /// Operations that lanes have issued and not waited for; from now on an mbarrier stands for them.
    pub(super) fn hand_over(&mut self, issuer: Issuer) -> Vec<u32> {
        let groups = self.groups(Family::Copy, issuer);
        let mut ids = Vec::new();
        for o in groups.outstanding.iter_mut().filter(|o| o.lanes & issuer.lanes != 0) {
            o.handed |= issuer.lanes;
            ids.push(o.id);
        }
        // A kernel that only ever waits for mbarriers would collect all of its copies here.
        if groups.outstanding.len() > 2 * MAX_HANDED {
            let mut left = MAX_HANDED;
            groups.outstanding.retain(|o| {
                let old = left > 0 && o.lanes & !o.handed == 0;
                left -= usize::from(old);
                !old
            });
        }
        ids
    }

    /// Waits until at most `pending` groups of the lanes are left: what belongs to older ones completes now.
    pub(super) fn wait_groups(&mut self, family: Family, issuer: Issuer, pending: u32, read_only: bool) {
        let groups = self.groups(family, issuer);
        let mut covered: Vec<(u32, u32)> = Vec::new();
        let mut written = Vec::new();
        for o in &mut groups.outstanding {
            let older = |l: &usize| o.group + pending < groups.closed[*l];
            let lanes = lanes_of(o.lanes & issuer.lanes).filter(older).fold(0u32, |m, l| m | 1 << l);
            if lanes == 0 || (read_only && o.read) {
                continue;
            }
            covered.push((o.id, lanes));
            if read_only {
                o.read = true;
            } else {
                o.lanes &= !lanes;
                written.extend(o.written.drain(..).map(|range| (o.pc, lanes, range)));
            }
        }
        groups.outstanding.retain(|o| o.lanes != 0);
        for &(id, lanes) in &covered {
            self.force(id, lanes, read_only);
        }
        for (pc, lanes, range) in written {
            self.enter_written(Issuer { pc, lanes, ..issuer }, &range);
        }
        let Some(races) = &mut self.races else { return };
        while let Some(&(_, lanes)) = covered.first() {
            let (same, others): (Vec<_>, Vec<_>) = covered.into_iter().partition(|c| c.1 == lanes);
            covered = others;
            let mut parts = Vec::with_capacity(2 * same.len());
            for (id, _) in same {
                parts.push(Part::Reads.of(id));
                if !read_only {
                    parts.push(Part::Writes.of(id));
                }
            }
            races.accept_ends(issuer.warp, lanes, issuer.live, &parts);
        }
    }

    /// Enters once more what an operation has written to global memory, now that it is known to have.
    fn enter_written(&mut self, issuer: Issuer, written: &Written) {
        self.on_rank(issuer.rank, |cx| {
            cx.issue_global(issuer, &written.allocation, written.range, written.kind, true);
        });
    }

    /// Puts an operation into the queue, or completes it if that is the policy.
    pub(super) fn enqueue(&mut self, pending: Pending) {
        self.cluster.asynchronous.queue.push_back(pending);
        let now = match self.shared.options.completion {
            Completion::Latest => false,
            Completion::Eager => true,
            Completion::Random => self.cluster.asynchronous.draw(4) == 0,
        };
        if now {
            let last = self.cluster.asynchronous.queue.len() - 1;
            self.complete_at(last);
        }
    }

    /// Completes an operation of the queue.
    pub(super) fn complete_at(&mut self, at: usize) {
        let Some(pending) = self.cluster.asynchronous.queue.get(at) else { return };
        if let Work::Arrive(_) = pending.work {
            // It comes after the copies that it stands for.
            let Issuer { rank, warp, lanes, .. } = pending.issuer;
            let (id, mut earlier) = (pending.id, Vec::new());
            for p in self.cluster.asynchronous.queue.iter().take_while(|p| p.id != id) {
                let copies = matches!(p.work, Work::Copies(_));
                if copies && (p.issuer.rank, p.issuer.warp) == (rank, warp) && p.issuer.lanes & lanes != 0 {
                    earlier.push(p.id);
                }
            }
            for id in earlier {
                self.force(id, lanes, false);
            }
            let at = self.cluster.asynchronous.queue.iter().position(|p| p.id == id);
            if let Some(pending) = at.and_then(|at| self.cluster.asynchronous.queue.remove(at)) {
                self.perform(pending);
            }
        } else if matches!(pending.work, Work::Tensor(_)) {
            // A block's operations on tensor memory end in the order of their issue.
            let id = pending.id;
            let mut at = Some(at);
            while let Some(last) = at {
                let first = self.cluster.asynchronous.tensor_before(last).unwrap_or(last);
                if let Some(pending) = self.cluster.asynchronous.queue.remove(first) {
                    self.perform(pending);
                }
                at = self.cluster.asynchronous.queue.iter().position(|p| p.id == id);
            }
        } else if let Some(pending) = self.cluster.asynchronous.queue.remove(at) {
            self.perform(pending);
        }
    }

    /// Completes the part of some lanes of an operation, or only its reads.
    fn force(&mut self, id: u32, lanes: u32, read_only: bool) {
        let Some(at) = self.cluster.asynchronous.queue.iter().position(|p| p.id == id) else { return };
        let Some(mut pending) = self.cluster.asynchronous.queue.remove(at) else { return };
        let Pending { issuer, work, .. } = &mut pending;
        match work {
            Work::Copies(copies) => {
                let now = Issuer { lanes: issuer.lanes & lanes, ..*issuer };
                issuer.lanes &= !lanes;
                let left = issuer.lanes != 0;
                self.perform_copies(now, copies);
                if left {
                    self.cluster.asynchronous.queue.insert(at, pending);
                }
            }
            Work::Transfer(transfer) if read_only => {
                self.gather(*issuer, transfer);
                self.cluster.asynchronous.queue.insert(at, pending);
            }
            Work::Transfer(_) | Work::Arrive(_) | Work::Tensor(_) => self.perform(pending),
        }
    }

    fn perform(&mut self, pending: Pending) {
        let Pending { issuer, view, work, .. } = pending;
        match work {
            Work::Copies(copies) => self.perform_copies(issuer, &copies),
            Work::Arrive(spots) => {
                for lane in lanes_of(issuer.lanes) {
                    if let Some(spot) = spots[lane] {
                        self.arrive_later(Issuer { lanes: 1 << lane, ..issuer }, spot, &view);
                    }
                }
            }
            Work::Tensor(TensorWork::Commit(spots)) => {
                for spot in spots {
                    self.arrive_later(issuer, spot, &view);
                }
            }
            Work::Tensor(work) => self.perform_tensor(issuer, &work),
            Work::Transfer(mut transfer) => {
                self.gather(issuer, &mut transfer);
                self.scatter(issuer, &transfer);
                for spot in &transfer.signals {
                    self.complete_tx(issuer, *spot, transfer.counted, &view);
                }
            }
        }
        self.progressed();
    }

    /// Says what threads that have exited did not wait for.
    pub(super) fn report_pending(&mut self) {
        self.report_unseen_objects();
        let (mut left, mut written) = (Vec::new(), Vec::new());
        for (family, groups) in [
            (Family::Copy, &self.cluster.asynchronous.copies),
            (Family::Bulk, &self.cluster.asynchronous.bulks),
        ] {
            let mut warps: Vec<_> = groups.iter().collect();
            warps.sort_by_key(|(key, _)| **key);
            for (&(rank, warp), groups) in warps {
                for o in &groups.outstanding {
                    let issuer = Issuer { rank, warp, lanes: o.lanes, live: 0, pc: o.pc };
                    written.extend(o.written.iter().map(|range| (issuer, range.clone())));
                    let lanes = o.lanes & !o.handed;
                    if lanes != 0 && !o.read {
                        left.push((family, rank, warp, lanes, o.pc));
                    }
                }
            }
        }
        for (issuer, range) in written {
            self.enter_written(issuer, &range);
        }
        for (family, rank, warp, lanes, pc) in left {
            let (kind, message, help) = match family {
                Family::Copy => (
                    "pending-cp-async",
                    "the thread exits without waiting for this copy",
                    "cp.async.wait_all, or commit and wait for the group, before the thread ends",
                ),
                Family::Bulk => (
                    "pending-bulk-group",
                    "the thread exits while this copy may still read shared memory",
                    "cp.async.bulk.commit_group, then cp.async.bulk.wait_group.read 0, before the block ends",
                ),
            };
            let site = self.site_of(rank, warp, lanes.trailing_zeros());
            let key = Key { tool: Tool::Synccheck, kind, pc, other_pc: None };
            self.report(key, site, Remark::new(message, help, None));
        }
    }

    /// Reports that an operation moves bytes which nothing wrote.
    pub(super) fn undefined_source(&mut self, issuer: Issuer, space: Space, address: u64) {
        let kind = if space == Space::Global { "uninitialised-global" } else { "uninitialised-shared" };
        let message = format!("copies bytes of {} memory that nothing wrote", space.name());
        let help = "write all of the source first";
        self.report_of(issuer, Tool::Initcheck, kind, Remark::new(message, help, Some((space, address))));
    }
}
