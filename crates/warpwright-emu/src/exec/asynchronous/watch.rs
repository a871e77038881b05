//! Asynchronous operations and the generic accesses beside them as racecheck sees them; the rules are in
//! `sanitize::racecheck::asynchronous`.

use std::collections::{HashMap, HashSet};

use super::reach::Spot;
use super::{Issuer, Remark, State};
use crate::code::asynchronous::Proxied;
use crate::code::op::Op;
use crate::context::Context;
use crate::events::asynchronous::{Cell, Ends, Generic, Part};
use crate::events::{self, AccessKind, Strength};
use crate::exec::access::Lanes;
use crate::exec::global::lanes_of;
use crate::memory::Allocation;
use crate::report::{Other, Site, Space, Tool};
use crate::tensor_memory::User;
use crate::warp::Warp;

/// An operation as findings name it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operation {
    pc: u32,
    site: Site,
    pub(super) name: &'static str,
    /// When it was issued.
    issued: Option<Generic>,
}

impl Operation {
    /// Whether a lane is ordered after the issue. What is not is an ordinary race, and told as one. `exact` is the lane's
    /// part of an operation of several.
    fn is_issued(&self, races: &impl Ends, (warp, lane): (u32, u32), exact: Option<Generic>) -> bool {
        exact.or(self.issued).is_none_or(|issued| races.knows(warp, lane, issued))
    }
}

/// Operations after which it is first asked which of them memory still names, and how many of the newest are kept unasked.
const PRUNE: usize = 2048;
const NEWEST: u32 = 512;

/// Conflicts of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clash {
    /// An operation that writes these bytes, and whose end is not known.
    Written(u32),
    /// An operation that reads them.
    Read(u32),
    /// A generic write of which the asynchronous proxy does not know.
    Unfenced(Generic),
}

/// Collects what an access meets, each once.
#[derive(Default)]
struct Clashes {
    found: Vec<(Clash, u64)>,
    /// An operation and a write that are known to be fine.
    writer: u32,
    reader: u32,
    generic: Option<Generic>,
}

impl Clashes {
    fn add(&mut self, clash: Clash, address: u64) {
        if self.found.len() < 8 && self.found.iter().all(|(c, _)| *c != clash) {
            self.found.push((clash, address));
        }
    }

    /// A lane touches a word that an operation uses, behind a `generic` access of its own.
    #[inline]
    fn meet(
        &mut self,
        (races, operations): (&impl Ends, &HashMap<u32, Operation>),
        me: (u32, u32),
        (part, id): (Part, u32),
        generic: Option<Generic>,
        at: u64,
    ) {
        let (known, clash) = match part {
            Part::Writes => (&mut self.writer, Clash::Written(id)),
            Part::Reads => (&mut self.reader, Clash::Read(id)),
        };
        if id == 0 || id == *known {
            return;
        }
        if races.knows_end(me.0, me.1, part.of(id)) {
            *known = id;
        } else if operations.get(&id).is_some_and(|o| o.is_issued(races, me, generic)) {
            self.add(clash, at);
        }
    }

    /// A lane touches a word through the asynchronous proxy.
    #[inline]
    fn meet_generic(&mut self, races: &impl Ends, (warp, lane): (u32, u32), cell: Cell, at: u64) {
        let Some(write) = cell.generic().filter(|write| self.generic != Some(*write)) else { return };
        // What is not even ordered is a race already.
        if races.is_fenced(Proxied::Shared, warp, lane, write) || !races.knows(warp, lane, write) {
            self.generic = Some(write);
        } else {
            self.add(Clash::Unfenced(write), at);
        }
    }
}

impl Context<'_> {
    /// Remembers what an operation is.
    pub(super) fn note_operation(&mut self, id: u32, issuer: Issuer, name: &'static str) {
        if self.races.is_none() {
            return;
        }
        let lane = issuer.lane();
        let site = self.site_of(issuer.rank, issuer.warp, lane);
        let issued = self.races.as_ref().map(|races| races.moment(issuer.warp, lane, issuer.pc));
        let operation = Operation { pc: issuer.pc, site, name, issued };
        self.cluster.asynchronous.operations.insert(id, operation);
        let State { operations, kept, .. } = &self.cluster.asynchronous;
        // Each time that twice as many have come together as were left, so that an operation is asked for a few times in all.
        if operations.len() >= PRUNE.max(2 * kept) {
            self.prune();
        }
    }

    /// Forgets operations that no cell names, and with them their ends, about which nobody will ask.
    #[cold]
    fn prune(&mut self) {
        let mut named = HashSet::new();
        for rank in 0..self.shared.shape.size() {
            self.on_rank(rank, |cx| {
                for cell in cx.block.shared.cells.all() {
                    named.extend([cell.writer, cell.reader]);
                }
                let touched = cx.block.shared.tensor.all_touched().iter();
                named.extend(touched.flat_map(|t| [t.writer, t.reader]).flatten().filter_map(
                    |t| match t.user {
                        User::Operation(id) => Some(id),
                        User::Warp { .. } => None,
                    },
                ));
            });
        }
        named.extend(self.cluster.asynchronous.queue.iter().map(|p| p.id));
        // The newest may not have been entered yet.
        let newest = self.cluster.asynchronous.next.saturating_sub(NEWEST);
        let wanted = |id: u32| id >= newest || named.contains(&id);
        self.cluster.asynchronous.operations.retain(|id, _| wanted(*id));
        self.cluster.asynchronous.kept = self.cluster.asynchronous.operations.len();
        let wanted = |part: u32| wanted(part >> 1);
        self.retain_ended(&wanted);
    }

    /// Checks and enters a range of shared memory that an operation of one lane reads or writes. `proxy` says whether it
    /// does so through the asynchronous proxy.
    pub(super) fn issue_shared(
        &mut self,
        issuer: Issuer,
        id: u32,
        (rank, address, bytes): (u32, u64, u64),
        write: bool,
        proxy: bool,
    ) {
        self.on_rank(rank, |cx| {
            if write {
                cx.check_mbarriers(issuer, address, bytes);
            }
            cx.issue_here(issuer, id, address, bytes, write, proxy);
        });
    }

    fn issue_here(&mut self, issuer: Issuer, id: u32, address: u64, bytes: u64, write: bool, proxy: bool) {
        let Some(races) = &mut self.races else { return };
        let (warp, lane) = (issuer.warp, issuer.lane());
        let kind = if write { AccessKind::Write } else { AccessKind::Read };
        let access = events::Access { warp, pc: issuer.pc, bytes: 32, kind, strength: Strength::Weak };
        let shared = &mut self.block.shared;
        if write {
            // What reads it too early is a race, and not besides that a read of what nothing wrote.
            shared.define(address, bytes);
        }
        races.one_lane(&shared.races, address, bytes, lane, access, &mut self.findings);
        let races = &*races;
        let mut clashes = Clashes::default();
        let operations = &self.cluster.asynchronous.operations;
        for (at, cell) in (address..).step_by(4).zip(shared.cells.range(address, bytes)) {
            if cell.writer != id {
                clashes.meet(
                    (races, operations),
                    (warp, lane),
                    (Part::Writes, cell.writer),
                    cell.generic(),
                    at,
                );
            }
            if write {
                if cell.reader != id {
                    clashes.meet((races, operations), (warp, lane), (Part::Reads, cell.reader), None, at);
                }
                if proxy {
                    clashes.meet_generic(races, (warp, lane), *cell, at);
                    *cell = Cell::default();
                } else {
                    races.write_generic(cell, warp, lane, issuer.pc);
                }
                cell.writer = id;
                continue;
            }
            cell.reader = id;
            if proxy {
                clashes.meet_generic(races, (warp, lane), *cell, at);
            }
        }
        self.report_clashes(issuer, clashes, write, Some(id));
    }

    /// Checks and enters a range of global memory that an operation of one lane reads or writes.
    pub(super) fn issue_global(
        &mut self,
        issuer: Issuer,
        allocation: &Allocation,
        (offset, bytes): (u64, u64),
        kind: AccessKind,
        proxy: bool,
    ) {
        let Some(races) = &mut self.races else { return };
        let (warp, lane) = (issuer.warp, issuer.lane());
        // Reductions are atomic element by element, relaxed at device scope.
        let strength = if kind == AccessKind::Atomic { Strength::Gpu } else { Strength::Weak };
        let access = events::Access { warp, pc: issuer.pc, bytes: 32, kind, strength };
        races.one_lane(&allocation.races, offset, bytes, lane, access, &mut self.findings);
        if kind != AccessKind::Read || !proxy {
            return;
        }
        let instructions = &self.code.ins;
        let generic =
            |pc: u32| instructions.get(pc as usize).is_some_and(|i| !matches!(i.op, Op::Asynchronous(_)));
        let unfenced = races.unfenced_write(&allocation.races, (offset, bytes), (warp, lane), &generic);
        if let Some((at, write)) = unfenced {
            self.report_unfenced(issuer, write, (Space::Global, allocation.base + at), "reads");
        }
    }

    /// A generic access of lanes to the shared memory in the context.
    #[inline(always)]
    pub(crate) fn watch_shared(&mut self, warp: &Warp, lanes: Lanes<'_>, bytes: u32, write: bool) {
        if self.cluster.asynchronous.watching() {
            self.clashes_of_shared(warp, lanes, bytes, write);
        }
    }

    #[inline(never)]
    fn clashes_of_shared(&mut self, warp: &Warp, lanes: Lanes<'_>, bytes: u32, write: bool) {
        let Lanes { pc, exec: lanes, addresses } = lanes;
        let rank = self.rank();
        let issuer = Issuer { rank, warp: warp.index, lanes, live: warp.live, pc };
        if !self.block.shared.mbarriers.is_empty() {
            for lane in lanes_of(lanes) {
                let one = Issuer { lanes: 1 << lane, ..issuer };
                self.check_mbarriers(one, addresses[lane], u64::from(bytes));
            }
        }
        let Some(races) = &self.races else { return };
        let shared = &mut self.block.shared;
        if shared.cells.is_empty() && !(write && self.code.proxies) {
            return;
        }
        let operations = &self.cluster.asynchronous.operations;
        let mut found = Vec::new();
        let mut clashes = Clashes::default();
        for lane in lanes_of(lanes) {
            let address = addresses[lane] & !3;
            let end = addresses[lane] + u64::from(bytes);
            // What one lane knows another may not.
            (clashes.writer, clashes.reader) = (0, 0);
            for (at, cell) in (address..).step_by(4).zip(shared.cells.range(address, end - address)) {
                clashes.meet(
                    (races, operations),
                    (warp.index, lane as u32),
                    (Part::Writes, cell.writer),
                    cell.generic(),
                    at,
                );
                if !write {
                    continue;
                }
                clashes.meet(
                    (races, operations),
                    (warp.index, lane as u32),
                    (Part::Reads, cell.reader),
                    None,
                    at,
                );
                races.write_generic(cell, warp.index, lane as u32, pc);
            }
            if !clashes.found.is_empty() {
                found.push((lane, std::mem::take(&mut clashes)));
            }
        }
        for (lane, clashes) in found {
            self.report_clashes(Issuer { lanes: 1 << lane, ..issuer }, clashes, write, None);
        }
    }

    /// Reports accesses other than mbarrier operations to the bytes of mbarriers.
    fn check_mbarriers(&mut self, issuer: Issuer, address: u64, bytes: u64) {
        let hit =
            self.block.shared.mbarriers.range(address.saturating_sub(7)..address + bytes).next().copied();
        let Some(at) = hit else { return };
        let message = "accesses the bytes of an mbarrier, which are opaque";
        let help =
            "use mbarrier operations only; mbarrier.inval it before the memory is used for something else";
        self.report_of(
            issuer,
            Tool::Synccheck,
            "mbarrier-access",
            Remark::new(message, help, Some((Space::Shared, at))),
        );
    }

    #[cold]
    fn report_clash(&mut self, issuer: Issuer, (clash, address): (Clash, u64), write: bool, copy: bool) {
        let (other, kind, message, help) = match clash {
            Clash::Written(id) => {
                let Some(operation) = self.cluster.asynchronous.operations.get(&id).copied() else { return };
                let name = operation.name;
                let (kind, verb) = match (write, copy) {
                    (false, false) => ("read-before-completion", "reads"),
                    (true, false) => ("write-before-completion", "writes"),
                    (false, true) => ("copy-before-completion", "copies"),
                    (true, true) => ("copies-overlap", "overwrites"),
                };
                let message = format!("{verb} shared memory that a {name} may still be writing");
                let help = match name {
                    "cp.async" => {
                        "commit the group and cp.async.wait_group in the thread that issued the copy, then bar.sync before \
                         others touch the bytes"
                    }
                    _ => "wait until the mbarrier that counts the bytes has completed the phase",
                };
                let site = Some(operation.site);
                (Other { site, pc: Some(operation.pc), action: "writes it" }, kind, message, help)
            }
            Clash::Read(id) => {
                let Some(operation) = self.cluster.asynchronous.operations.get(&id).copied() else { return };
                let message =
                    format!("overwrites shared memory that a {} may still be reading", operation.name);
                let help = match operation.name {
                    "tcgen05.mma" | "tcgen05.cp" => {
                        "tcgen05.commit to an mbarrier behind it, and let whoever refills the tile wait for its phase"
                    }
                    "wgmma" => {
                        "wgmma.wait_group before the consumers release the stage, and let whoever refills it wait for that"
                    }
                    _ => {
                        "cp.async.bulk.wait_group.read in the thread that issued the copy, then a barrier, before the bytes \
                         are written again"
                    }
                };
                let site = Some(operation.site);
                let other = Other { site, pc: Some(operation.pc), action: "reads it" };
                (other, "source-overwritten", message, help)
            }
            Clash::Unfenced(wrote) => {
                let verb = if write { "overwrites" } else { "reads" };
                return self.report_unfenced(issuer, wrote, (Space::Shared, address), verb);
            }
        };
        let remark = Remark { message, help, address: Some((Space::Shared, address)), other: Some(other) };
        self.report_of(issuer, Tool::Racecheck, kind, remark);
    }

    #[cold]
    fn report_unfenced(&mut self, issuer: Issuer, write: Generic, address: (Space, u64), verb: &str) {
        let site = self.site_of(write.rank, write.warp, write.lane);
        let (memory, help) = match address.0 {
            Space::Global => {
                ("global", "fence.proxy.async.global in the threads that wrote, then a barrier, then this")
            }
            _ => (
                "shared",
                "fence.proxy.async.shared::cta in the threads that wrote, then a barrier, then this",
            ),
        };
        let message = format!(
            "{verb} {memory} memory through the asynchronous proxy that was written generically, without a proxy fence in \
             between"
        );
        let other = Other { site: Some(site), pc: Some(write.pc), action: "wrote it" };
        let remark = Remark { message, help, address: Some(address), other: Some(other) };
        self.report_of(issuer, Tool::Racecheck, "missing-proxy-fence", remark);
    }

    fn report_clashes(&mut self, issuer: Issuer, clashes: Clashes, write: bool, copy: Option<u32>) {
        for found in clashes.found {
            self.report_clash(issuer, found, write, copy.is_some());
        }
    }

    /// Records that lanes of a warp start to read ranges of the executing block's shared memory through the asynchronous
    /// proxy, until [`end_reads`](Self::end_reads); gives the number of the operation.
    pub(crate) fn issue_reads(
        &mut self,
        warp: &Warp,
        pc: u32,
        lanes: u32,
        ranges: impl IntoIterator<Item = (u64, u64)>,
    ) -> u32 {
        self.cluster.asynchronous.active = true;
        let id = self.cluster.asynchronous.number();
        let rank = self.rank();
        let issuer = Issuer {
            rank,
            warp: warp.index,
            lanes: 1 << lanes.trailing_zeros().min(31),
            live: warp.live,
            pc,
        };
        self.note_operation(id, issuer, "wgmma");
        if let Some(races) = &mut self.races {
            races.issue(warp.index);
        }
        for (address, bytes) in ranges {
            if self.block.shared.covers(address, bytes) {
                self.issue_here(issuer, id, address, bytes, false, true);
            }
        }
        if let Some(races) = &mut self.races {
            races.issue(warp.index);
        }
        id
    }

    /// Lanes of a warp know that the reads of operations have ended. The wait is one of the whole warp, and orders what its
    /// lanes did.
    pub(crate) fn end_reads(&mut self, warp: &Warp, lanes: u32, operations: &[u32]) {
        if let Some(races) = &mut self.races {
            let parts: Vec<u32> = operations.iter().map(|id| Part::Reads.of(*id)).collect();
            races.warp_barrier(warp.index, lanes, warp.live);
            races.accept_ends(warp.index, lanes, warp.live, &parts);
        }
    }

    /// A spot as findings show it.
    pub(super) fn shown(spot: Spot) -> Option<(Space, u64)> {
        Some((Space::Shared, spot.address))
    }
}
