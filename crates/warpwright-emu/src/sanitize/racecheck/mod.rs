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
//! What compilers and libraries rely on is accepted even where the letter of the memory model asks for more:
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
mod clock;
mod explain;
mod shadow;
mod sync;

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering as Atomic};

use warpwright_ptx::{Ordering, Scope, Semantics};

use crate::report::Findings;
use crate::resident::Shape;
pub use asynchronous::View;
use clock::Variables;
use explain::Conflict;
pub use shadow::Shadow;
use shadow::{Id, LINE, Lanes, PAGE, Page, Record, SECTOR};
use sync::Clocks;
pub use sync::Participant;

/// Direction of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessKind {
    /// A load.
    Read,
    /// A store.
    Write,
    /// A read-modify-write.
    Atomic,
}

/// Whether an access is strong, and for whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Strength {
    /// An ordinary load or store.
    Weak,
    /// Strong in the block.
    Cta,
    /// Strong in the cluster.
    Cluster,
    /// Strong on the device and beyond.
    Gpu,
}

impl Strength {
    /// The strength of a load or store with this ordering. Volatile accesses are relaxed at system scope; strong ones
    /// without a scope have the device's.
    pub const fn of(ordering: Ordering) -> Self {
        match (ordering.semantics, ordering.scope) {
            (Semantics::Weak, _) => Self::Weak,
            (Semantics::Volatile | Semantics::Mmio, _) => Self::Gpu,
            (_, Some(Scope::Cta)) => Self::Cta,
            (_, Some(Scope::Cluster)) => Self::Cluster,
            (_, Some(Scope::Gpu | Scope::Sys) | None) => Self::Gpu,
        }
    }

    /// The strength of an atomic or a reduction, which is relaxed at device scope unless it says otherwise.
    pub const fn of_atomic(ordering: Ordering) -> Self {
        match ordering.scope {
            Some(Scope::Cta) => Self::Cta,
            Some(Scope::Cluster) => Self::Cluster,
            Some(Scope::Gpu | Scope::Sys) | None => Self::Gpu,
        }
    }
}

/// One memory instruction of a warp.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// Warp in the block, below 32.
    pub warp: u32,
    /// Decoded instruction.
    pub pc: u32,
    /// Bytes per lane, the whole vector; 1, 2, 4, 8, 16 or 32, and addresses are multiples of it.
    pub bytes: u32,
    /// Direction.
    pub kind: AccessKind,
    /// Strength.
    pub strength: Strength,
}

/// Answers, when two threads wrote to one place, whether they wrote the same: `(lane, None)` whether memory already
/// holds what `lane` is about to write, `(lane, Some(other))` whether both lanes write the same bytes.
pub type SameValue<'a> = &'a dyn Fn(u32, Option<u32>) -> bool;

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
        let mut state = clock::lock(&self.state);
        let (next, generation) = &mut *state;
        if next.checked_add(blocks).is_none() {
            (*next, *generation) = (1, generation.wrapping_add(1));
        }
        let first = *next;
        *next = next.saturating_add(blocks);
        (first, *generation)
    }
}

/// What the workers of a launch share.
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

/// What happened at a record.
enum Outcome {
    Done,
    /// The record describes several lanes that have to be told apart.
    Split,
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

/// The closer look at one access.
struct Slow<'s, 'a> {
    races: &'s BlockRaces<'a>,
    shadow: &'s Shadow,
    page: &'s Page,
    access: Access,
    id: Id,
    findings: &'s mut Findings,
    same: SameValue<'s>,
    /// All offsets of a scattered access.
    offsets: Option<&'s [u64; 32]>,
    /// The executing lanes.
    mask: u32,
}

impl Slow<'_, '_> {
    /// An access that covers a sector in a pattern.
    fn whole_sector(&mut self, sector: &Record, offset: u64, at: Lanes) {
        if sector.is_split() && self.may_join(sector) {
            sector.clear();
        }
        if !sector.is_split()
            && let Outcome::Done = self.record(sector, at, None)
        {
            return;
        }
        let Some(words) = self.page.split(sector) else { return };
        for (index, word) in (0u32..).zip(words) {
            self.word(word, at.word(index), offset + 4 * u64::from(index));
        }
    }

    /// Whether the words of a split sector know nothing that still matters.
    fn may_join(&self, sector: &Record) -> bool {
        let Some(words) = self.page.words(sector) else { return true };
        let shared = self.shadow.is_shared();
        let writes = self.writes();
        let old = |id: Id| self.races.long_ago(id, shared);
        // Barriers of this block order its own writes for itself; in global memory another block may still read them.
        let forgotten = |id: Id| old(id) && (shared || writes || id.block() != self.races.block);
        words.iter().all(|word| forgotten(word.write_id()) && old(word.read_id(0)) && old(word.read_id(1)))
    }

    /// One word: the common cases at once, everything else with a closer look.
    #[inline]
    fn word(&mut self, word: &Record, at: Lanes, offset: u64) {
        let lo = if self.shadow.is_shared() { self.races.shared_lo } else { self.races.launch_lo };
        let whole = at.mask() == 15 && !at.is_several();
        let quick = whole
            && if self.writes() {
                self.races.quick_write(word, lo, self.id, at)
            } else {
                self.races.quick_read(word, lo, self.id, at)
            };
        if !quick {
            self.record(word, at, Some(offset));
        }
    }

    /// Neighbouring lanes that touch a part of a sector.
    fn part(&mut self, sector: &Record, from: u64, to: u64, size: u32, lane_of: impl Fn(u64) -> u32) {
        let Some(words) = self.page.split(sector) else { return };
        let mut at = from;
        while at < to {
            let start = at & !3;
            let end = (start + 4).min(to);
            let mask = (15 << (at - start)) & (15 >> (start + 4 - end));
            let lanes = Lanes::new(lane_of(start), size.min(2), mask, self.access.pc);
            self.word(&words[(start / 4 % 8) as usize], lanes, start);
            at = end;
        }
    }

    /// One element of one lane, or of several if they all access it.
    fn element(&mut self, sector: &Record, offset: u64, lane: u32, several: bool) {
        let bytes = u64::from(self.access.bytes);
        let to = offset + bytes;
        let Some(words) = self.page.split(sector) else { return };
        let mut at = offset;
        // Elements are aligned, so they end in the sector in which they begin.
        while at < to {
            let start = at & !3;
            let end = (start + 4).min(to);
            let mask = (15 << (at - start)) & (15 >> (start + 4 - end));
            let lanes = Lanes::new(lane, 2, mask, self.access.pc);
            let lanes = if several { lanes.several() } else { lanes };
            self.word(&words[(start / 4 % 8) as usize], lanes, start);
            at = end;
        }
    }

    /// A store of several lanes to one element: only their values can differ.
    fn one_instruction(&mut self, offset: u64, mask: u32) {
        let first = mask.trailing_zeros();
        let differs = (first + 1..32).find(|&lane| mask >> lane & 1 == 1 && !(self.same)(lane, Some(first)));
        if let Some(lane) = differs {
            self.report(Conflict::OneInstruction { lane, other: first }, offset);
        }
    }

    fn writes(&self) -> bool {
        self.access.kind != AccessKind::Read
    }

    /// Checks an access against a record and enters it. `word` is the offset of a word record, `None` for a sector.
    fn record(&mut self, record: &Record, at: Lanes, word: Option<u64>) -> Outcome {
        let shared = self.shadow.is_shared();
        let (prev, prev_at) = record.write();
        if let Some(clash) = self.conflict(prev, prev_at, true, at, word) {
            let Some(offset) = word else { return Outcome::Split };
            self.report(Conflict::Pair(clash), offset);
        }
        if self.writes() {
            for slot in 0..2 {
                let (prev, prev_at) = record.read(slot);
                if let Some(clash) = self.conflict(prev, prev_at, false, at, word) {
                    let Some(offset) = word else { return Outcome::Split };
                    self.report(Conflict::Pair(clash), offset);
                }
            }
            record.set_write(self.id, at);
            record.clear_reads();
            return Outcome::Done;
        }
        // Enter the read: in the place of one that it makes superfluous, else in a free place, else keep the extremes.
        let reads = [record.read(0), record.read(1)];
        for (slot, &(prev, prev_at)) in reads.iter().enumerate() {
            let subsumed = self.races.long_ago(prev, shared)
                || prev.same_warp(self.id) && prev_at.same_lanes(at) && prev_at.mask() & !at.mask() == 0;
            if subsumed {
                record.set_read(slot, self.id, at);
                return Outcome::Done;
            }
        }
        if reads
            .iter()
            .any(|(prev, at_)| *prev == self.id && at_.is_several() && at.mask() & !at_.mask() == 0)
        {
            return Outcome::Done;
        }
        for (slot, &(prev, prev_at)) in reads.iter().enumerate() {
            if prev.same_warp(self.id) {
                if word.is_none() {
                    return Outcome::Split;
                }
                let at = if prev_at.mask() == at.mask() && !self.ordered(prev, prev_at, at, word) {
                    at.several()
                } else {
                    at
                };
                record.set_read(slot, self.id, at);
                return Outcome::Done;
            }
            if self.ordered(prev, prev_at, at, word) {
                record.set_read(slot, self.id, at);
                return Outcome::Done;
            }
        }
        let [low, high] = if reads[0].0.actor() <= reads[1].0.actor() { [0, 1] } else { [1, 0] };
        if self.id.actor() < reads[low].0.actor() {
            record.set_read(low, self.id, at);
        } else if self.id.actor() > reads[high].0.actor() {
            record.set_read(high, self.id, at);
        }
        Outcome::Done
    }

    /// The lanes of this access that touch the bytes of `mask` in a word.
    fn mine(&self, at: Lanes, mask: u32) -> u32 {
        if at.is_several() { self.mask } else { at.of_bytes(mask) }
    }

    /// Whether an earlier access is ordered before this one.
    fn ordered(&self, prev: Id, prev_at: Lanes, at: Lanes, word: Option<u64>) -> bool {
        let (theirs, mine) = match word {
            Some(_) => (prev_at.of_bytes(prev_at.mask()), self.mine(at, at.mask())),
            None => (prev_at.of_sector(), at.of_sector()),
        };
        self.races.unordered(prev, theirs, self.access.warp, mine) == 0
    }

    /// The lanes of an earlier access that race with this one, if any.
    fn conflict(
        &self,
        prev: Id,
        prev_at: Lanes,
        prev_writes: bool,
        at: Lanes,
        word: Option<u64>,
    ) -> Option<Clash> {
        // What orders launches that overlap in time is the host's business.
        let other_launch = prev.block() >= self.races.launch.end;
        if self.races.long_ago(prev, self.shadow.is_shared())
            || other_launch
            || self.races.morally_strong(prev, self.id)
        {
            return None;
        }
        let same_warp = prev.same_warp(self.id);
        if same_warp && prev_at.same_lanes(at) {
            return None;
        }
        let (theirs, mine) = match word {
            Some(_) => {
                let bytes = prev_at.mask() & at.mask();
                let bytes = if same_warp { self.other_lanes(prev_at, prev_writes, at, bytes) } else { bytes };
                if bytes == 0 {
                    return None;
                }
                (prev_at.of_bytes(bytes), self.mine(at, bytes))
            }
            None => (prev_at.of_sector(), at.of_sector()),
        };
        let theirs = if same_warp && mine.count_ones() == 1 { theirs & !mine } else { theirs };
        let lanes = if theirs == 0 { 0 } else { self.races.unordered(prev, theirs, self.access.warp, mine) };
        (lanes != 0).then_some(Clash { prev, prev_at, prev_writes, lanes, mine })
    }

    /// Of the bytes that both touch, those that another lane of the same warp touched.
    fn other_lanes(&self, prev_at: Lanes, prev_writes: bool, at: Lanes, bytes: u32) -> u32 {
        match (prev_at.is_several(), at.is_several()) {
            // Lanes that took part in both know what they stored themselves, and all stored the same.
            (true, true) => 0,
            (true, false) if prev_writes => 0,
            (false, false) => (0..4)
                .filter(|byte| {
                    bytes >> byte & 1 == 1 && prev_at.of_bytes(1 << byte) != at.of_bytes(1 << byte)
                })
                .fold(0, |mask, byte| mask | 1 << byte),
            _ => bytes,
        }
    }
}

/// An earlier access that races with this one.
#[derive(Clone, Copy, Debug)]
struct Clash {
    prev: Id,
    prev_at: Lanes,
    prev_writes: bool,
    /// Its lanes that race.
    lanes: u32,
    /// The lanes that it races with.
    mine: u32,
}

#[cfg(test)]
mod tests;

// The rest of the type's interface, synchronisation, is in `sync`; what a race looks like in words is in `report`.
impl LaunchRaces {
    fn may_report(&self) -> bool {
        self.reported.load(Atomic::Relaxed) < Self::MAX_REPORTED && {
            self.reported.fetch_add(1, Atomic::Relaxed);
            true
        }
    }
}
