//! Bulk copies, tensor copies and remote stores: what they move, and moving it.

use std::sync::Arc;

use warpwright_ptx::tensor_map::{TensorElement, TensorFill, TensorInterleave, TensorMap};
use warpwright_ptx::{AtomOp, BinaryOp, BulkOp, Modifiers, ScalarType, StateSpace};

use super::copy::index_of;
use super::queue::{Family, Pending, Segment, Transfer, Where, Work, Written};
use super::reach::{Need, Spot};
use super::{Issuer, Remark, tile};
use crate::code::asynchronous::{Bulk, Direction, End, Place, Reduction, Remote, Tensor};
use crate::code::layout::Slot;
use crate::context::Context;
use crate::counters;
use crate::events::AccessKind;
use crate::events::asynchronous::Part;
use crate::events::problem::{self, Problem};
use crate::events::view::View;
use crate::exec::access::Lanes;
use crate::exec::atom;
use crate::exec::global::{alike, lane_value, lanes_of};
use crate::float;
use crate::flow::Flow;
use crate::launch::Fault;
use crate::memory::Allocation;
use crate::report::{Space, Tool, coordinates};
use crate::warp::Warp;

/// Alignment of tensor boxes in shared memory.
const BOX_ALIGN: u64 = 128;

/// The unit of bulk copies in bytes.
pub(super) const GRAIN: u64 = 16;

fn atom_op(op: BulkOp) -> AtomOp {
    match op {
        BulkOp::Add => AtomOp::Add,
        BulkOp::Min => AtomOp::Min,
        BulkOp::Max => AtomOp::Max,
        BulkOp::Inc => AtomOp::Inc,
        BulkOp::Dec => AtomOp::Dec,
        BulkOp::And => AtomOp::And,
        BulkOp::Or => AtomOp::Or,
        BulkOp::Xor => AtomOp::Xor,
    }
}

/// The type in which a reduction combines the elements of a tensor.
fn scalar_of(element: TensorElement) -> ScalarType {
    match element {
        TensorElement::U8 => ScalarType::U8,
        TensorElement::U16 => ScalarType::U16,
        TensorElement::U32 => ScalarType::U32,
        TensorElement::S32 => ScalarType::S32,
        TensorElement::U64 => ScalarType::U64,
        TensorElement::S64 => ScalarType::S64,
        TensorElement::F16 => ScalarType::F16,
        TensorElement::BF16 => ScalarType::BF16,
        TensorElement::F64 => ScalarType::F64,
        TensorElement::F32 | TensorElement::F32Ftz | TensorElement::TF32 | TensorElement::TF32Ftz => {
            ScalarType::F32
        }
    }
}

/// The value that a reduction leaves in memory.
fn combine(op: AtomOp, ty: ScalarType, old: u64, new: u64) -> u64 {
    let float = |op| float::binary(op, ty, &Modifiers::NONE, old, new);
    match op {
        AtomOp::Min if ty.is_float() => float(BinaryOp::Min),
        AtomOp::Max if ty.is_float() => float(BinaryOp::Max),
        _ => atom::result(op, ty, old, new, 0),
    }
}

/// The word that a copy leaves where its map says `tf32`: the nearest of 11 bits, half way to even, as an H200 does it. (The
/// instruction `cvt.rna.tf32` goes away from zero.)
fn round_to_tf32(word: &mut [u8; 4]) {
    let bits = u32::from_le_bytes(*word);
    if f32::from_bits(bits).is_finite() {
        *word = ((bits + 0x0fff + (bits >> 13 & 1)) & !0x1fff).to_le_bytes();
    }
}

fn element(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |v, b| v << 8 | u64::from(*b))
}

/// Combines elements of `new` with those in `old`.
fn reduce(op: AtomOp, ty: ScalarType, old: &mut [u8], new: &[u8]) {
    let size = ty.bytes() as usize;
    for (old, new) in old.chunks_exact_mut(size).zip(new.chunks_exact(size)) {
        let value = combine(op, ty, element(old), element(new));
        old.copy_from_slice(&value.to_le_bytes()[..size]);
    }
}

/// A box full of what lies outside the tensor.
fn filled(map: &TensorMap) -> Vec<u8> {
    let len = map.box_bytes() as usize;
    if map.fill == TensorFill::Zero {
        return vec![0; len];
    }
    // A quiet NaN of every type.
    [0xF7, 0x7F].into_iter().cycle().take(len).collect()
}

impl Context<'_> {
    /// `cp.async.bulk` and `cp.reduce.async.bulk`
    pub(super) fn bulk(&mut self, warp: &Warp, issuer: Issuer, bulk: &Bulk) {
        let (to, from) = (self.places(warp, bulk.dst), self.places(warp, bulk.src));
        for lane in lanes_of(issuer.lanes) {
            let one = Issuer { lanes: 1 << lane, ..issuer };
            let bytes = u64::from(warp.regs.r32[bulk.bytes as usize].0[lane]);
            if !bytes.is_multiple_of(GRAIN) {
                self.wrong_size(warp, issuer, lane, bytes);
                continue;
            }
            let mut transfer = Transfer { image: vec![0; bytes as usize], ..Transfer::default() };
            let read = Need { bytes, align: GRAIN, write: false };
            let write = Need { write: true, ..read };
            let source = self.end_of(warp, issuer, lane, bulk.src.space, from[lane], read, &mut transfer);
            let target = self.end_of(warp, issuer, lane, bulk.dst.space, to[lane], write, &mut transfer);
            if let (Some(source), Some(target)) = (source, target) {
                let whole = |place| Segment { at: 0, bytes: bytes as usize, place };
                transfer.gather.push(whole(source));
                for place in self.everywhere(warp, lane, target, bulk.multicast) {
                    let reached = match place {
                        Where::Shared(spot) => self.reaches(warp, issuer, lane, spot, true),
                        Where::Global(..) => true,
                    };
                    if reached {
                        transfer.scatter.push(whole(place));
                    }
                }
            }
            let reduced = |r: Reduction| Some((atom_op(r.op), r.ty?));
            transfer.reduction = bulk.reduction.and_then(reduced);
            if let End::Mbarrier(at) = bulk.end {
                let target = match target {
                    Some(Where::Shared(spot)) => Some(spot.rank),
                    _ => None,
                };
                self.signal(warp, one, lane, at, (bulk.multicast, target), &mut transfer);
            }
            let name = if transfer.reduction.is_some() { "bulk reduction" } else { "bulk copy" };
            self.issue_transfer(one, name, transfer, bytes as u32, matches!(bulk.end, End::Group));
        }
    }

    /// Where one end of a bulk copy lies.
    #[allow(clippy::too_many_arguments, reason = "the facts of an operand")]
    fn end_of(
        &mut self,
        warp: &Warp,
        issuer: Issuer,
        lane: usize,
        space: StateSpace,
        raw: u64,
        need: Need,
        transfer: &mut Transfer,
    ) -> Option<Where> {
        if need.bytes == 0 {
            return None;
        }
        if space == StateSpace::Global {
            let (allocation, offset) = self.global_range(warp, issuer, lane, raw, need)?;
            return Some(Where::Global(index_of(&mut transfer.allocations, allocation), offset));
        }
        self.shared_spot(warp, issuer, lane, (space, raw), need).map(Where::Shared)
    }

    /// The places that a copy to `target` writes: with a mask the same address in every block that it names.
    fn everywhere(&self, warp: &Warp, lane: usize, target: Where, mask: Option<Slot>) -> Vec<Where> {
        let (Where::Shared(spot), Some(_)) = (target, mask) else { return vec![target] };
        self.ranks(warp, lane, mask, spot.rank)
            .into_iter()
            .map(|rank| Where::Shared(Spot { rank, ..spot }))
            .collect()
    }

    /// The blocks that a mask names; `own` without one.
    pub(super) fn ranks(&self, warp: &Warp, lane: usize, mask: Option<Slot>, own: u32) -> Vec<u32> {
        let Some(mask) = mask else { return vec![own] };
        let mask = lane_value(&warp.regs, mask, lane);
        (0..self.shared.shape.size().min(16)).filter(|rank| mask >> rank & 1 == 1).collect()
    }

    /// Enters the mbarriers that count the bytes of a transfer.
    fn signal(
        &mut self,
        warp: &Warp,
        issuer: Issuer,
        lane: usize,
        at: Place,
        (mask, target): (Option<Slot>, Option<u32>),
        transfer: &mut Transfer,
    ) {
        let raw = self.places(warp, at)[lane];
        let Some(spot) = self.object_spot(warp, issuer, lane, (at.space, raw)) else { return };
        if mask.is_none() && target.is_some_and(|rank| rank != spot.rank) {
            let help = "map both addresses to the same block with mapa";
            let message = "the mbarrier is not in the block that receives the bytes";
            let remark = Remark::new(message, help, Self::shown(spot));
            self.report_of(issuer, Tool::Synccheck, "mbarrier-other-block", remark);
        }
        for rank in self.ranks(warp, lane, mask, spot.rank) {
            let spot = Spot { rank, ..spot };
            if self.object(issuer, spot) {
                transfer.signals.push(spot);
            }
        }
    }

    fn wrong_size(&mut self, warp: &Warp, issuer: Issuer, lane: usize, bytes: u64) {
        let problem = Problem {
            kind: "copy-size",
            message: format!("a bulk copy of {bytes} bytes, which is no multiple of 16"),
            help: "copy whole pieces of 16 bytes, and the rest with ordinary loads and stores",
            address: (Space::Generic, 0),
        };
        self.bad_access(warp, issuer.pc, lane, &problem);
    }

    /// Checks, records and queues a transfer of one lane.
    fn issue_transfer(
        &mut self,
        issuer: Issuer,
        name: &'static str,
        transfer: Transfer,
        bytes: u32,
        group: bool,
    ) {
        let id = self.begin_transfer(issuer, name, &transfer);
        let (mut view, mut written) = (View::default(), Vec::new());
        if self.races.is_some() {
            for (segments, write) in [(&transfer.gather, false), (&transfer.scatter, true)] {
                for run in runs(segments) {
                    match run.place {
                        Where::Shared(Spot { rank, address }) => {
                            self.issue_shared(issuer, id, (rank, address, run.bytes as u64), write, true);
                        }
                        Where::Global(which, offset) => {
                            let allocation = transfer.allocations[usize::from(which)].clone();
                            let kind = match write {
                                true if transfer.reduction.is_some() => AccessKind::Atomic,
                                true => AccessKind::Write,
                                false => AccessKind::Read,
                            };
                            let range = (offset, run.bytes as u64);
                            self.issue_global(issuer, &allocation, range, kind, true);
                            if write {
                                written.push(Written { allocation, range, kind });
                            }
                        }
                    }
                }
            }
            if let Some(races) = &mut self.races {
                view = races.ending(issuer.warp, issuer.lanes, races.tick(issuer.warp), &both_parts(id));
                races.issue(issuer.warp);
            }
        }
        if group {
            self.join_group(Family::Bulk, issuer, id, written);
        }
        self.queue_transfer(issuer, id, view, Transfer { counted: bytes, ..transfer });
    }

    /// Gives a transfer its number.
    fn begin_transfer(&mut self, issuer: Issuer, name: &'static str, transfer: &Transfer) -> u32 {
        let id = self.cluster.asynchronous.number();
        self.note_operation(id, issuer, name);
        if self.checks.counters {
            self.count_transfer(transfer);
        }
        id
    }

    fn queue_transfer(&mut self, issuer: Issuer, id: u32, view: View, transfer: Transfer) {
        self.enqueue(Pending { id, issuer, view, work: Work::Transfer(Box::new(transfer)) });
    }

    fn count_transfer(&mut self, transfer: &Transfer) {
        let sides =
            [(&transfer.gather, counters::Direction::Load), (&transfer.scatter, counters::Direction::Store)];
        for (segments, direction) in sides {
            let (mut shared, mut first) = (0, true);
            for run in runs(segments) {
                match run.place {
                    Where::Shared(_) => shared += run.bytes as u64,
                    Where::Global(which, offset) => {
                        let address = transfer.allocations[usize::from(which)].base + offset;
                        self.counters.global_run(direction, address, run.bytes as u64, first);
                        first = false;
                    }
                }
            }
            if shared > 0 {
                self.counters.shared_copy(direction, shared);
            }
        }
    }

    /// `cp.async.bulk.prefetch`: nothing moves, but the range has to be there.
    pub(super) fn bulk_prefetch(&mut self, warp: &Warp, issuer: Issuer, at: Place, bytes: u32) {
        let places = self.places(warp, at);
        for lane in lanes_of(issuer.lanes) {
            let bytes = u64::from(warp.regs.r32[bytes as usize].0[lane]);
            if !bytes.is_multiple_of(GRAIN) {
                self.wrong_size(warp, issuer, lane, bytes);
            } else if bytes > 0 {
                let need = Need { bytes, align: GRAIN, write: false };
                let _there = self.global_range(warp, issuer, lane, places[lane], need);
            }
        }
    }

    /// `cp.async.bulk.commit_group`
    pub(super) fn bulk_commit(&mut self, issuer: Issuer) {
        self.close_group(Family::Bulk, issuer);
    }

    /// `cp.async.bulk.wait_group`
    pub(super) fn bulk_wait(&mut self, issuer: Issuer, read: bool, pending: u32) {
        self.wait_groups(Family::Bulk, issuer, pending, read);
    }

    /// `cp.async.bulk.tensor` and its family
    pub(super) fn tensor(&mut self, warp: &Warp, issuer: Issuer, tensor: &Tensor) {
        let maps = self.places(warp, tensor.map);
        for lane in lanes_of(issuer.lanes) {
            let one = Issuer { lanes: 1 << lane, ..issuer };
            let kind = (tensor.dims, tensor.offsets.is_some());
            let Some(map) = self.tensor_map(warp, one, lane, maps[lane], kind) else { continue };
            if map.interleave != TensorInterleave::None {
                self.not_executed(one, "tensor copies with an interleaved layout");
                return;
            }
            let coords: Vec<i32> =
                tensor.coords.iter().map(|row| warp.regs.r32[*row as usize].0[lane] as i32).collect();
            let offset = |slot: &Slot| lane_value(&warp.regs, *slot, lane) as u32;
            let offsets: Vec<u32> = tensor.offsets.iter().flatten().map(offset).collect();
            if self.check_coordinates(warp, one, lane, tensor.direction, &map, &coords) == Flow::Stop
                || self.check_pixels(warp, one, lane, &map, &coords, &offsets) == Flow::Stop
            {
                return;
            }
            self.tensor_lane(warp, one, lane, tensor.direction, &map, (&coords, &offsets));
        }
    }

    fn tensor_lane(
        &mut self,
        warp: &Warp,
        issuer: Issuer,
        lane: usize,
        direction: Direction,
        map: &TensorMap,
        (coords, offsets): (&[i32], &[u32]),
    ) {
        let rows = tile::rows(map, coords, offsets);
        let (width, pitch) = (tile::row_bytes(map), tile::row_pitch(map));
        let mut transfer = Transfer::default();
        let (place, write) = match direction {
            Direction::Load { dst, .. } => (dst, true),
            Direction::Store { src, .. } => (src, false),
            Direction::Prefetch => return,
        };
        let raw = self.places(warp, place)[lane];
        let need = Need { bytes: rows.len() as u64 * pitch, align: BOX_ALIGN, write };
        let spot = self.shared_spot(warp, issuer, lane, (place.space, raw), need);
        if let Some(spot) = spot {
            transfer.image = filled(map);
            transfer.tf32 = write && matches!(map.element, TensorElement::TF32 | TensorElement::TF32Ftz);
            let global = self.global_rows(warp, issuer, lane, map, &rows, !write, &mut transfer.allocations);
            let mut ranks = match direction {
                Direction::Load { multicast, .. } => self.ranks(warp, lane, multicast, spot.rank),
                _ => vec![spot.rank],
            };
            ranks.retain(|rank| self.reaches(warp, issuer, lane, Spot { rank: *rank, ..spot }, true));
            for row in &rows {
                for (at, address, bytes) in tile::pieces(map.swizzle, spot.address, row, width) {
                    // Stores leave out what lies outside the tensor.
                    if !write
                        && (row.inside == 0 || at + bytes <= row.before || at >= row.before + row.inside)
                    {
                        continue;
                    }
                    for rank in &ranks {
                        let place = Where::Shared(Spot { rank: *rank, address });
                        let at = (row.dense + at) as usize;
                        let list = if write { &mut transfer.scatter } else { &mut transfer.gather };
                        list.push(Segment { at, bytes: bytes as usize, place });
                    }
                }
            }
            if write {
                transfer.gather = global;
            } else {
                transfer.scatter = global;
            }
        }
        let name = match direction {
            Direction::Load { barrier, multicast, .. } => {
                let target = spot.map(|s| s.rank);
                self.signal(warp, issuer, lane, barrier, (multicast, target), &mut transfer);
                "tensor copy"
            }
            Direction::Store { reduction: Some(r), .. } => {
                transfer.reduction = Some((atom_op(r.op), scalar_of(map.element)));
                "tensor reduction"
            }
            Direction::Store { .. } | Direction::Prefetch => "tensor copy",
        };
        let counted = u32::try_from(map.box_bytes()).unwrap_or(u32::MAX);
        self.issue_transfer(issuer, name, transfer, counted, !write);
    }

    /// The parts of rows that lie in the tensor. What lies outside the allocation is reported once and left out.
    #[allow(clippy::too_many_arguments, reason = "the facts of a box")]
    fn global_rows(
        &mut self,
        warp: &Warp,
        issuer: Issuer,
        lane: usize,
        map: &TensorMap,
        rows: &[tile::Row],
        write: bool,
        allocations: &mut Vec<Arc<Allocation>>,
    ) -> Vec<Segment> {
        let mut segments = Vec::with_capacity(rows.len());
        let mut reported = false;
        let allocation = self.allocation_at(map.base);
        for row in rows.iter().filter(|r| r.inside > 0) {
            let found = allocation.as_ref().and_then(|a| {
                let offset = row.address.wrapping_sub(a.base);
                (offset <= a.len && row.inside <= a.len - offset).then(|| (a.clone(), offset))
            });
            let Some((allocation, offset)) = found else {
                if !reported {
                    reported = true;
                    let mut problem = problem::range(self.shared.memory, row.address, row.inside, write);
                    problem.help = "encode the tensor map with the extents and strides of the buffer";
                    self.bad_access(warp, issuer.pc, lane, &problem);
                }
                continue;
            };
            let place = Where::Global(index_of(allocations, allocation), offset);
            let at = (row.dense + row.before) as usize;
            segments.push(Segment { at, bytes: row.inside as usize, place });
        }
        segments
    }

    /// `st.async` and `red.async`
    pub(super) fn remote(&mut self, warp: &Warp, issuer: Issuer, remote: &Remote) {
        let barriers = self.places(warp, remote.barrier);
        // Lanes whose bytes one mbarrier counts send them together.
        for (_, same) in alike(issuer.lanes, barriers) {
            self.send_together(warp, Issuer { lanes: same, ..issuer }, remote);
        }
    }

    fn send_together(&mut self, warp: &Warp, issuer: Issuer, remote: &Remote) {
        let to = self.places(warp, remote.dst);
        let size = remote.ty.bytes() as usize;
        let bytes = size * remote.srcs.len();
        let need = Need { bytes: bytes as u64, align: bytes as u64, write: true };
        let reduction = remote.op.map(|op| (op, remote.ty));
        let mut transfer = Transfer { gathered: true, reduction, ..Transfer::default() };
        let mut writes = Vec::new();
        for lane in lanes_of(issuer.lanes) {
            let one = Issuer { lanes: 1 << lane, ..issuer };
            let spot = self.shared_spot(warp, one, lane, (remote.dst.space, to[lane]), need);
            if let Some(spot) = spot {
                let at = transfer.image.len();
                transfer.scatter.push(Segment { at, bytes, place: Where::Shared(spot) });
                writes.push((one, spot));
            }
            for src in &remote.srcs {
                let value = lane_value(&warp.regs, *src, lane);
                transfer.image.extend(&value.to_le_bytes()[..size.min(8)]);
            }
            self.signal(warp, one, lane, remote.barrier, (None, spot.map(|s| s.rank)), &mut transfer);
            transfer.counted += bytes as u32;
        }
        transfer.signals.truncate(1);
        let id = self.begin_transfer(issuer, "remote store", &transfer);
        let mut view = View::default();
        if self.races.is_some() {
            for (one, spot) in writes {
                self.issue_shared(one, id, (spot.rank, spot.address, bytes as u64), true, false);
            }
            if let Some(races) = &mut self.races {
                // Its bytes are counted with the semantics of a release, behind all that the lanes knew.
                view = races.sending(issuer.warp, issuer.lanes, &both_parts(id));
                races.issue(issuer.warp);
            }
        }
        self.queue_transfer(issuer, id, view, transfer);
    }

    /// `st.bulk`: zeros, at once.
    pub(super) fn zero(&mut self, warp: &Warp, issuer: Issuer, at: Place, bytes: Slot) {
        let places = self.places(warp, at);
        for lane in lanes_of(issuer.lanes) {
            let bytes = lane_value(&warp.regs, bytes, lane);
            let need = Need { bytes, align: 8, write: true };
            let Some(spot) = self.shared_spot(warp, issuer, lane, (at.space, places[lane]), need) else {
                continue;
            };
            let addresses = [spot.address; 32];
            self.on_rank(spot.rank, |cx| {
                cx.block.shared.write(spot.address, &vec![0; bytes as usize]);
                cx.block.shared.define(spot.address, bytes);
                let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
                let written = Lanes { pc: issuer.pc, exec: 1 << lane, addresses: &addresses };
                cx.watch_shared(warp, written, bytes, true);
            });
        }
        self.progressed();
    }

    /// Reads what a transfer moves.
    pub(super) fn gather(&mut self, issuer: Issuer, transfer: &mut Transfer) {
        if std::mem::replace(&mut transfer.gathered, true) {
            return;
        }
        let check = self.checks.initcheck;
        let mut undefined = None;
        let Transfer { image, gather, allocations, .. } = transfer;
        for Segment { at, bytes, place } in gather.iter().copied() {
            let Some(part) = image.get_mut(at..at + bytes) else { continue };
            match place {
                Where::Global(which, offset) => {
                    let allocation = &allocations[usize::from(which)];
                    allocation.read(offset, part);
                    if check && undefined.is_none() && !allocation.is_defined(offset, bytes as u32) {
                        undefined = Some((Space::Global, allocation.base + offset));
                    }
                }
                Where::Shared(Spot { rank, address }) => self.on_rank(rank, |cx| {
                    let shared = &cx.block.shared;
                    shared.read(address, part);
                    if check && undefined.is_none() && !shared.is_defined(address, bytes as u64) {
                        undefined = Some((Space::Shared, address));
                    }
                }),
            }
        }
        if transfer.tf32 {
            transfer.image.as_chunks_mut::<4>().0.iter_mut().for_each(round_to_tf32);
        }
        if let Some((space, address)) = undefined {
            self.undefined_source(issuer, space, address);
        }
    }

    /// Writes what a transfer moves.
    pub(super) fn scatter(&mut self, issuer: Issuer, transfer: &Transfer) {
        let mut old = Vec::new();
        for Segment { at, bytes, place } in transfer.scatter.iter().copied() {
            let Some(new) = transfer.image.get(at..at + bytes) else { continue };
            match place {
                Where::Global(which, offset) => {
                    let allocation = &transfer.allocations[usize::from(which)];
                    let Some((op, ty)) = transfer.reduction else {
                        allocation.write(offset, new);
                        continue;
                    };
                    if self.checks.initcheck && !allocation.is_defined(offset, bytes as u32) {
                        self.undefined_source(issuer, Space::Global, allocation.base + offset);
                    }
                    let size = ty.bytes();
                    for (i, new) in (0u64..).zip(new.chunks_exact(size as usize)) {
                        let to = offset + i * u64::from(size);
                        let _old =
                            atom::update(allocation, to, size, |old| combine(op, ty, old, element(new)));
                    }
                }
                Where::Shared(Spot { rank, address }) => self.on_rank(rank, |cx| {
                    let shared = &mut cx.block.shared;
                    if let Some((op, ty)) = transfer.reduction {
                        old.resize(bytes, 0);
                        shared.read(address, &mut old);
                        reduce(op, ty, &mut old, new);
                        shared.write(address, &old);
                    } else {
                        shared.write(address, new);
                    }
                    shared.define(address, bytes as u64);
                }),
            }
        }
    }

    /// Ends the launch at something that is not executed.
    pub(super) fn not_executed(&mut self, issuer: Issuer, what: &str) {
        let thread = 32 * issuer.warp + issuer.lane();
        self.fault.get_or_insert(Fault::Unsupported {
            line: self.code.position(issuer.pc).line,
            block: self.block.coordinates,
            thread: coordinates(thread, self.shared.config.block),
            message: format!("the emulator does not execute {what}"),
        });
    }
}

/// An operation's reads and writes.
fn both_parts(id: u32) -> [u32; 2] {
    [Part::Reads.of(id), Part::Writes.of(id)]
}

/// Pieces that follow each other in memory as one.
fn runs(segments: &[Segment]) -> Vec<Segment> {
    let mut sorted = segments.to_vec();
    sorted.sort_by_key(|s| match s.place {
        Where::Shared(spot) => (u64::from(spot.rank), spot.address),
        Where::Global(which, offset) => (1 << 32 | u64::from(which), offset),
    });
    let mut out: Vec<Segment> = Vec::new();
    for segment in sorted {
        if let Some(last) = out.last_mut() {
            let follows = match (last.place, segment.place) {
                (Where::Shared(a), Where::Shared(b)) => {
                    a.rank == b.rank && a.address + last.bytes as u64 == b.address
                }
                (Where::Global(a, x), Where::Global(b, y)) => a == b && x + last.bytes as u64 == y,
                _ => false,
            };
            if follows {
                last.bytes += segment.bytes;
                continue;
            }
        }
        out.push(segment);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_that_follow_each_other_are_one_run() {
        let at =
            |rank, address, bytes| Segment { at: 0, bytes, place: Where::Shared(Spot { rank, address }) };
        let got = runs(&[at(0, 32, 16), at(1, 0, 16), at(0, 16, 16), at(0, 64, 16)]);
        let places: Vec<_> = got.iter().map(|s| (s.place, s.bytes)).collect();
        let spot = |rank, address| Where::Shared(Spot { rank, address });
        assert_eq!(
            format!("{places:?}"),
            format!("{:?}", [(spot(0, 16), 32), (spot(0, 64), 16), (spot(1, 0), 16)])
        );
    }

    #[test]
    fn reductions_go_element_by_element() {
        let mut old = [1u32.to_le_bytes(), u32::MAX.to_le_bytes()].concat();
        reduce(AtomOp::Add, ScalarType::U32, &mut old, &[2u32.to_le_bytes(), 2u32.to_le_bytes()].concat());
        assert_eq!(old, [3u32.to_le_bytes(), 1u32.to_le_bytes()].concat());
        // -2 and 1 in bf16: the smaller one.
        let mut old = 0xC000u16.to_le_bytes();
        reduce(AtomOp::Min, ScalarType::BF16, &mut old, &0x3F80u16.to_le_bytes());
        assert_eq!(old, 0xC000u16.to_le_bytes());
        reduce(AtomOp::Max, ScalarType::BF16, &mut old, &0x3F80u16.to_le_bytes());
        assert_eq!(old, 0x3F80u16.to_le_bytes());
    }

    #[test]
    fn copies_round_to_tf32() {
        let rounded = |bits: u32| {
            let mut word = bits.to_le_bytes();
            round_to_tf32(&mut word);
            u32::from_le_bytes(word)
        };
        let one = 0x3F80_0000;
        for (bits, want) in [
            (one, one),
            (one | 0x0FFF, one),
            (one | 0x1000, one),
            (one | 0x1001, one | 0x2000),
            (one | 0x3000, one | 0x4000),
            (0x8000_0000 | one | 0x3000, 0x8000_0000 | one | 0x4000),
            (0x7F7F_FFFF, f32::INFINITY.to_bits()),
            (f32::NAN.to_bits() | 1, f32::NAN.to_bits() | 1),
        ] {
            assert_eq!(rounded(bits), want, "{bits:#x}");
        }
    }

    #[test]
    fn nan_fills_whole_elements() {
        let mut map = TensorMap::dense(
            0,
            TensorElement::BF16,
            &[8],
            &[8],
            warpwright_ptx::tensor_map::TensorSwizzle::None,
        );
        map.fill = TensorFill::Nan;
        assert_eq!(filled(&map)[..4], [0xF7, 0x7F, 0xF7, 0x7F]);
    }
}
