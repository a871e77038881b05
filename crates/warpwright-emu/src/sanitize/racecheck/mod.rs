//! Finds accesses to shared and global memory that conflict and that nothing orders.
//!
//! # What counts as a race
//!
//! Two accesses to overlapping bytes by different threads, at least one of them a write, neither ordered before the
//! other, and not both *strong* (atomic, volatile, relaxed, acquire, release) with scopes that include each other.
//! Order comes from:
//!
//! - program order of a thread; lanes of a warp are threads of their own, so one lane's write and another's later read
//!   need `bar.warp.sync` or a block barrier between them. Shuffles and votes order nothing.
//! - block barriers, named ones with their participants; `bar.arrive` orders before, not after.
//! - releases and acquires: `.release`, `.acquire`, `.acq_rel`, and a fence before a strong write or after a strong
//!   read. Read-modify-writes continue the release sequence of a variable, a plain strong store begins a new one.
//! - mbarriers: what arrived before a phase completed is ordered before whoever saw it complete; so is the end of
//!   copies whose bytes the phase counts.
//! - the cluster barrier, and `fence.mbarrier_init` for the initialisation of mbarriers.
//! - the end of a kernel.
//!
//! Asynchronous copies and `wgmma` are ordered after their issue, and before others only by their completion; the rules
//! for them and for `fence.proxy.async` are in [`asynchronous`].
//!
//! Two writes of the same value are a warning (`write-write-same-value`) if they come from different instructions, and
//! nothing if they come from one instruction of one warp, as compilers store redundantly in that way on purpose.
//!
//! # Leniency
//!
//! Habits of compilers and libraries are accepted even where the letter of the memory model asks for more:
//! a barrier after a relaxed atomic counts as the acquiring fence; a fence before a barrier serves every thread of the
//! barrier; `.cluster` scope reaches as far as `.gpu`; threads that exited before a barrier are ordered before it.
//!
//! # What is remembered
//!
//! The last write and two reads per 128-byte line, or per sector or word once accesses stop being regular (see
//! `shadow`). So a race can be missed if another access of the same word comes between its parties, never invented.
//!
//! # Determinism
//!
//! With one worker everything is deterministic. With several, blocks meet in the shadow in varying order; whether two
//! unordered accesses are found does not depend on it, since either order is a race, and a finding's
//! key names the write first whichever came first. Which of several racing pairs stands for a word, and the counts, may
//! vary when different instructions race for the same word.

pub mod asynchronous;
mod explain;
mod shadow;
mod slow;
mod sync;
mod tensor;

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering as Atomic};

pub use crate::events::view::View;
use crate::events::view::{Variables, lock};
pub use crate::events::{Access, AccessKind, Participant, SameValue, Strength};
use crate::report::Findings;
use crate::resident::Shape;
pub use shadow::Shadow;
use shadow::{Id, LINE, Lanes, PAGE, Record, SECTOR};
use slow::Slow;
use sync::Clocks;

/// Numbers the blocks of all launches on one memory.
#[derive(Debug)]
pub struct RaceClock {
    state: Mutex<(u32, u32)>,
}

impl Default for RaceClock {
    fn default() -> Self {
        Self { state: Mutex::new((1, 1)) }
    }
}

impl RaceClock {
    /// A clock for a new memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// The first block number of a launch, and the generation that its shadows must have.
    fn reserve(&self, blocks: u32) -> (u32, u32) {
        let mut state = lock(&self.state);
        let (next, generation) = &mut *state;
        if next.checked_add(blocks).is_none() {
            (*next, *generation) = (1, generation.wrapping_add(1));
        }
        let first = *next;
        *next = next.saturating_add(blocks);
        (first, *generation)
    }
}

/// State that the workers of a launch share.
#[derive(Debug)]
pub struct LaunchRaces {
    first: u32,
    /// First block number of later launches.
    end: u32,
    generation: u32,
    exclusive: bool,
    /// Blocks are numbered cluster by cluster, in this grid.
    shape: Option<Shape>,
    /// Whether any thread has released anything through global memory.
    published: AtomicBool,
    /// Sharded by address.
    variables: [Mutex<Variables>; 16],
    /// Findings so far; racing kernels are told only so much.
    reported: AtomicU32,
}

impl LaunchRaces {
    /// Races that are looked at closely before the detector only counts what is cheap.
    const MAX_REPORTED: u32 = 1 << 20;

    /// Begins a launch of `blocks` blocks on the memory of `clock`, run by `workers` threads.
    pub fn new(clock: &RaceClock, blocks: u32, workers: usize) -> Self {
        let (first, generation) = clock.reserve(blocks.max(1));
        Self {
            first,
            end: first.saturating_add(blocks.max(1)),
            generation,
            exclusive: workers <= 1,
            shape: None,
            published: AtomicBool::new(false),
            variables: Default::default(),
            reported: AtomicU32::new(0),
        }
    }

    /// The same for a grid with clusters.
    #[must_use]
    pub(crate) fn with_shape(self, shape: Shape) -> Self {
        Self { shape: Some(shape), ..self }
    }

    /// Linear index in the grid of the block that has a number here.
    fn linear(&self, number: u32) -> u32 {
        let index = number.wrapping_sub(self.first);
        let Some(shape) = self.shape else { return index };
        let size = shape.size().max(1);
        shape.linear(shape.coordinates(u64::from(index / size), index % size)) as u32
    }

    fn may_report(&self) -> bool {
        self.reported.load(Atomic::Relaxed) < Self::MAX_REPORTED && {
            self.reported.fetch_add(1, Atomic::Relaxed);
            true
        }
    }

    fn variables(&self, address: u64) -> &Mutex<Variables> {
        &self.variables[(address >> 2) as usize % self.variables.len()]
    }
}

/// The race detector of one block; a worker has one and begins each of its blocks with it.
#[derive(Debug)]
pub struct BlockRaces<'a> {
    launch: &'a LaunchRaces,
    block: u32,
    clocks: Clocks,
    /// Ids below are of earlier launches.
    launch_lo: u64,
    /// Ids of the blocks that share this memory with the block, those of its cluster, begin here.
    shared_lo: u64,
    /// Ids of this block begin here...
    block_lo: u64,
    /// ...and those below `block_lo + ordered` are ordered by a block barrier.
    ordered: u64,
}

impl<'a> BlockRaces<'a> {
    /// A detector for the blocks that one worker runs.
    pub fn new(launch: &'a LaunchRaces) -> Self {
        Self {
            launch,
            block: launch.first,
            clocks: Clocks::default(),
            launch_lo: u64::from(launch.first) << 32,
            shared_lo: 0,
            block_lo: 0,
            ordered: 0,
        }
    }

    /// Begins block `number` of the grid with `warps` warps; blocks of a cluster are numbered consecutively.
    pub fn begin(&mut self, number: u32, warps: u32) {
        let size = self.launch.shape.map_or(1, Shape::size).max(1);
        self.block = self.launch.first.saturating_add(number);
        self.block_lo = u64::from(self.block) << 32;
        let first = self.block - number % size;
        self.shared_lo = u64::from(first) << 32;
        self.clocks.begin(self.block, first..first.saturating_add(size), warps.min(32));
        self.moved();
    }

    /// Brings the comparison bounds up to date after the floor moved.
    fn moved(&mut self) {
        self.ordered = u64::from(self.clocks.floor() + 1) << 8;
    }

    /// `lanes` neighbouring lanes from `first_lane` on access consecutive elements from `offset` on.
    #[inline]
    #[allow(clippy::too_many_arguments, reason = "the facts of one warp access")]
    pub fn contiguous(
        &mut self,
        shadow: &Shadow,
        offset: u64,
        first_lane: u32,
        lanes: u32,
        access: Access,
        findings: &mut Findings,
        same: SameValue<'_>,
    ) {
        let size = access.bytes.trailing_zeros();
        let bytes = u64::from(lanes) << size;
        let mut done = 0;
        if (offset | bytes).is_multiple_of(LINE) && offset % PAGE + bytes <= PAGE {
            let Some(page) = shadow.page(offset, self.launch.generation, self.launch.exclusive) else {
                return;
            };
            done = self.quick(page.lines(offset, bytes), shadow, first_lane, LINE, access);
            if done == bytes {
                return;
            }
        }
        let first_lane = first_lane + (done >> size) as u32;
        self.by_sectors(shadow, offset + done..offset + bytes, first_lane, access, findings, same);
    }

    /// Enters an access into records of `bytes` bytes, one after the other, as far as that is simple. Returns the bytes
    /// that were entered.
    #[inline(always)]
    fn quick(&self, records: &[Record], shadow: &Shadow, first_lane: u32, bytes: u64, access: Access) -> u64 {
        let (id, size) = (self.id(access), access.bytes.trailing_zeros());
        let lo = if shadow.is_shared() { self.shared_lo } else { self.launch_lo };
        let mut at = Lanes::new(first_lane, size, 15, access.pc);
        let mut done = 0;
        for record in records {
            let quick = if access.kind == AccessKind::Read {
                self.quick_read(record, lo, id, at)
            } else {
                self.quick_write(record, lo, id, at)
            };
            if !quick {
                break;
            }
            at = at.after((bytes >> size) as u32);
            done += bytes;
        }
        done
    }

    /// The part of a contiguous access that is not whole lines, or that met something.
    #[inline(never)]
    fn by_sectors(
        &mut self,
        shadow: &Shadow,
        range: Range<u64>,
        first_lane: u32,
        access: Access,
        findings: &mut Findings,
        same: SameValue<'_>,
    ) {
        let bytes = range.end - range.start;
        let mut done = 0;
        if (range.start | bytes).is_multiple_of(SECTOR) && range.start % PAGE + bytes <= PAGE {
            let Some(page) = shadow.page(range.start, self.launch.generation, self.launch.exclusive) else {
                return;
            };
            done = self.quick(page.sectors(range.start, bytes), shadow, first_lane, SECTOR, access);
            if done == bytes {
                if (range.start | bytes).is_multiple_of(LINE) {
                    range.step_by(LINE as usize).for_each(|line| page.close(line));
                }
                return;
            }
        }
        let first_lane = first_lane + (done >> access.bytes.trailing_zeros()) as u32;
        self.sector_by_sector(shadow, range.start + done..range.end, first_lane, access, findings, same);
    }

    /// The part of a contiguous access that is not whole sectors, or that met something.
    #[inline(never)]
    fn sector_by_sector(
        &mut self,
        shadow: &Shadow,
        range: Range<u64>,
        first_lane: u32,
        access: Access,
        findings: &mut Findings,
        same: SameValue<'_>,
    ) {
        let (id, size) = (self.id(access), access.bytes.trailing_zeros());
        let lane_of =
            |byte: u64| first_lane.wrapping_add(((byte.wrapping_sub(range.start) as i64) >> size) as u32);
        let mut at = range.start;
        while at < range.end {
            let Some(page) = shadow.page(at, self.launch.generation, self.launch.exclusive) else { return };
            let stop = range.end.min((at / PAGE + 1) * PAGE);
            let mut slow = Slow {
                races: self,
                shadow,
                page: &page,
                access,
                id,
                findings,
                same,
                offsets: None,
                mask: u32::MAX,
            };
            while at < stop {
                let sector = page.sector(at);
                let next = ((at / SECTOR + 1) * SECTOR).min(stop);
                if next - at == SECTOR {
                    slow.whole_sector(sector, at, Lanes::new(lane_of(at), size, 15, access.pc));
                } else {
                    slow.part(sector, at, next, size, lane_of);
                }
                at = next;
            }
        }
    }

    /// The lanes of `mask` all access the same element at `offset`.
    #[inline]
    pub fn uniform(
        &mut self,
        shadow: &Shadow,
        offset: u64,
        mask: u32,
        access: Access,
        findings: &mut Findings,
        same: SameValue<'_>,
    ) {
        let Some(page) = shadow.page(offset, self.launch.generation, self.launch.exclusive) else { return };
        let id = self.id(access);
        let lane = mask.trailing_zeros();
        let mut slow =
            Slow { races: self, shadow, page: &page, access, id, findings, same, offsets: None, mask };
        if access.kind == AccessKind::Write && mask.count_ones() > 1 {
            slow.one_instruction(offset, mask);
        }
        slow.element(page.sector(offset), offset, lane, mask.count_ones() > 1);
    }

    /// The lanes of `mask` access elements at any offsets.
    pub fn scattered(
        &mut self,
        shadow: &Shadow,
        offsets: &[u64; 32],
        mask: u32,
        access: Access,
        findings: &mut Findings,
        same: SameValue<'_>,
    ) {
        let id = self.id(access);
        let mut rest = mask;
        while rest != 0 {
            let number = offsets[rest.trailing_zeros() as usize] / PAGE;
            let page = shadow.page(number * PAGE, self.launch.generation, self.launch.exclusive);
            let Some(page) = page else {
                rest &= rest - 1;
                continue;
            };
            let races = &*self;
            let offsets = Some(offsets);
            let mut slow = Slow { races, shadow, page: &page, access, id, findings, same, offsets, mask };
            // As many lanes as follow each other in one page.
            while rest != 0 {
                let lane = rest.trailing_zeros();
                let offset = offsets.map_or(0, |o| o[lane as usize]);
                if offset / PAGE != number {
                    break;
                }
                rest &= rest - 1;
                slow.element(page.sector(offset), offset, lane, false);
            }
        }
    }

    #[inline(always)]
    fn id(&self, access: Access) -> Id {
        let id = Id::new(self.block, self.clocks.tick(access.warp), access.warp);
        id.with(access.strength as u32, access.kind == AccessKind::Atomic)
    }

    /// Whether an access is ordered before everything that this block does now, by a kernel boundary or block barrier.
    #[inline(always)]
    fn long_ago(&self, id: Id, shared: bool) -> bool {
        // In shared memory, blocks before those of the cluster are those that used this memory before.
        let lo = if shared { self.shared_lo } else { self.launch_lo };
        id.0 < lo || id.0.wrapping_sub(self.block_lo) < self.ordered
    }

    /// Whether an access that is not of an earlier launch or block is ordered, or of the very lanes that access now.
    #[inline(always)]
    fn no_conflict(&self, (prev, prev_at): (Id, Lanes), id: Id, at: Lanes) -> bool {
        prev.0.wrapping_sub(self.block_lo) < self.ordered || (prev.same_warp(id) && prev_at.same_lanes(at))
    }

    /// Reads a sector or word in a pattern; `false` if that takes a closer look, and then nothing has changed. Ids below
    /// `lo` are long ago.
    #[inline(always)]
    fn quick_read(&self, record: &Record, lo: u64, id: Id, at: Lanes) -> bool {
        let write = record.write_id();
        if write.0 >= lo && !self.no_conflict(record.write(), id, at) {
            return false;
        }
        let read = record.read_id(0);
        if read.0 >= lo {
            if read == id && record.read(0).1 == at {
                return true;
            }
            if !self.no_conflict(record.read(0), id, at) {
                let second = record.read(1);
                let free = second.0.0 < lo || self.no_conflict(second, id, at);
                if free && second != (id, at) {
                    record.set_read(1, id, at);
                }
                return free;
            }
        }
        record.set_read(0, id, at);
        true
    }

    /// The same for a write.
    #[inline(always)]
    fn quick_write(&self, record: &Record, lo: u64, id: Id, at: Lanes) -> bool {
        let newest = record.write_id().max(record.read_id(0)).max(record.read_id(1));
        if newest.0 >= lo
            && !(self.quiet(record.write(), lo, id, at)
                && self.quiet(record.read(0), lo, id, at)
                && self.quiet(record.read(1), lo, id, at))
        {
            return false;
        }
        record.set_write(id, at);
        record.clear_reads();
        true
    }

    #[inline(always)]
    fn quiet(&self, earlier: (Id, Lanes), lo: u64, id: Id, at: Lanes) -> bool {
        earlier.0.0 < lo || self.no_conflict(earlier, id, at)
    }

    /// Which lanes of an earlier access are not ordered before lanes `mine` of `warp`.
    fn unordered(&self, prev: Id, lanes: u32, warp: u32, mine: u32) -> u32 {
        if prev.block() == self.block {
            self.clocks.unordered(prev.warp(), lanes, prev.tick(), warp, mine)
        } else {
            self.clocks.unordered_remote(prev.block(), prev.warp(), lanes, prev.tick(), warp, mine)
        }
    }

    /// The number of the first block of this block's cluster.
    fn first_of_cluster(&self) -> u32 {
        (self.shared_lo >> 32) as u32
    }

    /// Whether an access is by a block of this block's cluster.
    fn is_in_cluster(&self, id: Id) -> bool {
        let size = self.launch.shape.map_or(1, Shape::size);
        id.block().wrapping_sub(self.first_of_cluster()) < size
    }

    /// Whether two strong accesses may meet.
    fn morally_strong(&self, prev: Id, id: Id) -> bool {
        let weaker = prev.strength().min(id.strength());
        weaker >= if prev.block() == self.block { 1 } else { 2 }
    }
}

#[cfg(test)]
mod tests;
