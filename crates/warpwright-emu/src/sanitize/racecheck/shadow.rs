//! Shadow memory: who wrote and who read each byte range last.
//!
//! Memory is watched in *sectors* of 32 bytes. As long as every access to a sector covers it whole and its lanes stand
//! in a regular pattern (lane `l + k` holds element `k`), one [`Record`] describes all 32 bytes: a contiguous
//! access of a warp costs one comparison per sector. The first access that does not fit splits the sector into eight
//! words with a record each; an access that covers the sector again when nothing else matters joins them.
//!
//! A record names accesses by [`Id`] (block, time in the block, warp, strength) and [`Lanes`] (lanes, bytes, instruction).
//! Blocks are numbered through all launches of a [`RaceClock`](super::RaceClock), so records of earlier
//! launches and of blocks that used this shared memory before are recognised by one comparison and nothing is cleared.
//!
//! All fields are relaxed atomics. Workers that share a page hold its lock; a launch with one worker skips the lock.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::report::Space;

/// Bytes of a sector.
pub(super) const SECTOR: u64 = 32;
/// Sectors of a line.
const LINE_SECTORS: usize = 4;
/// Bytes of a line.
pub(super) const LINE: u64 = SECTOR * LINE_SECTORS as u64;
/// Sectors of a page.
const PAGE_SECTORS: usize = 64;
/// Bytes that a page watches.
pub(super) const PAGE: u64 = SECTOR * PAGE_SECTORS as u64;
/// Sectors that a group of word records serves.
const GROUP: usize = 8;

/// An access's identity: block 32 bits, time in the block 24, warp 5, strength 2, atomic 1, so that ids of one block
/// compare by time. 0 is no access.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Id(pub(super) u64);

impl Id {
    pub(super) const NONE: Self = Self(0);
    /// The writer of an open line, or of a sector that is split into words: matches nothing and is never long ago.
    const SPLIT: Self = Self(u64::MAX);
    pub(super) const TICK_BITS: u32 = 24;

    #[inline(always)]
    pub(super) const fn new(block: u32, tick: u32, warp: u32) -> Self {
        Self((block as u64) << 32 | (tick as u64) << 8 | (warp as u64) << 3)
    }

    /// The same access with a strength (0 weak, 1 block, 2 cluster, 3 device) and whether it is atomic.
    #[inline(always)]
    pub(super) const fn with(self, strength: u32, atomic: bool) -> Self {
        Self(self.0 | (strength as u64) << 1 | atomic as u64)
    }

    #[inline(always)]
    pub(super) const fn block(self) -> u32 {
        (self.0 >> 32) as u32
    }

    #[inline(always)]
    pub(super) const fn tick(self) -> u32 {
        (self.0 >> 8) as u32 & 0xff_ffff
    }

    #[inline(always)]
    pub(super) const fn warp(self) -> u32 {
        (self.0 >> 3) as u32 & 31
    }

    #[inline(always)]
    pub(super) const fn strength(self) -> u32 {
        (self.0 >> 1) as u32 & 3
    }

    #[inline(always)]
    pub(super) const fn is_atomic(self) -> bool {
        self.0 & 1 == 1
    }

    /// Block and warp, in an order that does not depend on time.
    #[inline(always)]
    pub(super) const fn actor(self) -> (u32, u32) {
        (self.block(), self.warp())
    }

    #[inline(always)]
    pub(super) const fn same_warp(self, other: Self) -> bool {
        let difference = self.0 ^ other.0;
        difference >> 32 == 0 && (difference >> 3) & 31 == 0
    }
}

/// Which lanes touch which bytes, and in which instruction: first lane 5 bits, log2 of the bytes per lane 3, byte mask
/// of a word 4, several lanes 1, instruction 19.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Lanes(pub(super) u32);

impl Lanes {
    const PATTERN: u32 = 0x10ff;
    const SEVERAL: u32 = 1 << 12;
    /// Instructions from here on are not told apart.
    const PC_UNKNOWN: u32 = (1 << 19) - 1;

    /// `lane` holds the first byte; lanes follow every `1 << size` bytes.
    #[inline(always)]
    pub(super) const fn new(lane: u32, size: u32, mask: u32, pc: u32) -> Self {
        let pc = if pc < Self::PC_UNKNOWN { pc } else { Self::PC_UNKNOWN };
        Self((lane & 31) | size << 5 | mask << 8 | pc << 13)
    }

    /// The pattern `lanes` lanes further on.
    #[inline(always)]
    pub(super) const fn after(self, lanes: u32) -> Self {
        Self((self.0 & !31) | ((self.0 + lanes) & 31))
    }

    /// The pattern of sector `sector` of a line with this pattern.
    #[inline(always)]
    const fn sector(self, sector: u32) -> Self {
        self.after((sector * SECTOR as u32) >> self.size())
    }

    /// Several lanes touch the same bytes.
    #[inline(always)]
    pub(super) const fn several(self) -> Self {
        Self(self.0 | Self::SEVERAL)
    }

    #[inline(always)]
    pub(super) const fn is_several(self) -> bool {
        self.0 & Self::SEVERAL != 0
    }

    #[inline(always)]
    pub(super) const fn lane(self) -> u32 {
        self.0 & 31
    }

    #[inline(always)]
    const fn size(self) -> u32 {
        self.0 >> 5 & 7
    }

    #[inline(always)]
    pub(super) const fn mask(self) -> u32 {
        self.0 >> 8 & 15
    }

    #[inline(always)]
    pub(super) const fn pc(self) -> Option<u32> {
        let pc = self.0 >> 13;
        if pc == Self::PC_UNKNOWN { None } else { Some(pc) }
    }

    /// Whether the same single lanes touch the same bytes in both (masks aside).
    #[inline(always)]
    pub(super) const fn same_lanes(self, other: Self) -> bool {
        (self.0 ^ other.0) & Self::PATTERN == 0 && self.0 & Self::SEVERAL == 0
    }

    /// The lanes that touch the bytes of `mask` in a word record.
    pub(super) fn of_bytes(self, mask: u32) -> u32 {
        if self.is_several() {
            return u32::MAX;
        }
        (0..4)
            .filter(|byte| mask >> byte & 1 == 1)
            .fold(0, |lanes, byte| lanes | 1 << ((self.lane() + (byte >> self.size().min(2))) & 31))
    }

    /// The lanes that touch a whole sector.
    pub(super) fn of_sector(self) -> u32 {
        if self.is_several() {
            return u32::MAX;
        }
        let count = 32u32 >> self.size();
        let run = if count >= 32 { u32::MAX } else { (1 << count) - 1 };
        run.rotate_left(self.lane())
    }

    /// The pattern of word `word` of a sector with this pattern.
    pub(super) fn word(self, word: u32) -> Self {
        let lane = self.lane() + ((4 * word) >> self.size());
        let moved = Self::new(lane, self.size().min(2), 15, self.0 >> 13);
        if self.is_several() { moved.several() } else { moved }
    }
}

/// The last write to a sector or word, and up to two reads since. Of more than two readers that nothing orders, those
/// with the lowest and the highest (block, warp) are kept: which ones these are does not depend on the order of
/// arrival, and a later write can be ordered after both without being ordered after the others only in odd cases.
#[derive(Debug, Default)]
pub(super) struct Record {
    write: AtomicU64,
    reads: [AtomicU64; 2],
    write_at: AtomicU32,
    reads_at: [AtomicU32; 2],
    /// Of a sector: 1 + index of its word records if it was ever split.
    words: AtomicU32,
}

impl Record {
    #[inline(always)]
    pub(super) fn write(&self) -> (Id, Lanes) {
        (Id(self.write.load(Ordering::Relaxed)), Lanes(self.write_at.load(Ordering::Relaxed)))
    }

    #[inline(always)]
    pub(super) fn write_id(&self) -> Id {
        Id(self.write.load(Ordering::Relaxed))
    }

    #[inline(always)]
    pub(super) fn read_id(&self, slot: usize) -> Id {
        Id(self.reads[slot].load(Ordering::Relaxed))
    }

    #[inline(always)]
    pub(super) fn read(&self, slot: usize) -> (Id, Lanes) {
        (Id(self.reads[slot].load(Ordering::Relaxed)), Lanes(self.reads_at[slot].load(Ordering::Relaxed)))
    }

    #[inline(always)]
    pub(super) fn set_write(&self, id: Id, at: Lanes) {
        self.write.store(id.0, Ordering::Relaxed);
        self.write_at.store(at.0, Ordering::Relaxed);
    }

    #[inline(always)]
    pub(super) fn set_read(&self, slot: usize, id: Id, at: Lanes) {
        self.reads[slot].store(id.0, Ordering::Relaxed);
        self.reads_at[slot].store(at.0, Ordering::Relaxed);
    }

    #[inline(always)]
    pub(super) fn clear_reads(&self) {
        for read in &self.reads {
            if read.load(Ordering::Relaxed) != 0 {
                read.store(0, Ordering::Relaxed);
            }
        }
    }

    #[inline(always)]
    pub(super) fn is_split(&self) -> bool {
        // An open line is split into its sectors.
        self.write.load(Ordering::Relaxed) == Id::SPLIT.0
    }

    /// Forgets everything; a split sector is whole again.
    pub(super) fn clear(&self) {
        self.set_write(Id::NONE, Lanes(0));
        self.clear_reads();
    }
}

type WordGroup = [[Record; 8]; GROUP];

/// Shadow of 2 KiB.
#[derive(Debug)]
pub(super) struct Page {
    locked: AtomicBool,
    lines: [Record; PAGE_SECTORS / LINE_SECTORS],
    /// They count only where their line is open.
    sectors: [Record; PAGE_SECTORS],
    words_used: AtomicU32,
    words: [OnceLock<Box<WordGroup>>; PAGE_SECTORS / GROUP],
}

impl Page {
    fn new() -> Self {
        Self {
            locked: AtomicBool::new(false),
            lines: std::array::from_fn(|_| Record::default()),
            sectors: std::array::from_fn(|_| Record::default()),
            words_used: AtomicU32::new(0),
            words: Default::default(),
        }
    }

    /// The lines of `bytes` bytes from `offset` on, whole lines that end in the page.
    #[inline(always)]
    pub(super) fn lines(&self, offset: u64, bytes: u64) -> &[Record] {
        let first = (offset % PAGE / LINE) as usize;
        self.lines.get(first..first + (bytes / LINE) as usize).unwrap_or_default()
    }

    /// The sector that holds byte `offset` of the shadow; opens its line.
    #[inline(always)]
    pub(super) fn sector(&self, offset: u64) -> &Record {
        let index = (offset / SECTOR) as usize % PAGE_SECTORS;
        if !self.lines[index / LINE_SECTORS].is_split() {
            self.open(index / LINE_SECTORS);
        }
        &self.sectors[index]
    }

    /// The sectors of `bytes` bytes from `offset` on, whole sectors that end in the page; opens their lines.
    #[inline(always)]
    pub(super) fn sectors(&self, offset: u64, bytes: u64) -> &[Record] {
        let first = (offset / SECTOR) as usize % PAGE_SECTORS;
        let end = first + (bytes / SECTOR) as usize;
        for line in first / LINE_SECTORS..end.div_ceil(LINE_SECTORS) {
            if self.lines.get(line).is_some_and(|line| !line.is_split()) {
                self.open(line);
            }
        }
        self.sectors.get(first..end).unwrap_or_default()
    }

    /// Hands what a line knows to its sectors.
    #[inline(never)]
    fn open(&self, line: usize) {
        let record = &self.lines[line];
        let (write, write_at) = record.write();
        let reads = [record.read(0), record.read(1)];
        for (index, sector) in (0u32..).zip(&self.sectors[line * LINE_SECTORS..][..LINE_SECTORS]) {
            sector.set_write(write, write_at.sector(index));
            for (slot, (id, at)) in reads.into_iter().enumerate() {
                sector.set_read(slot, id, at.sector(index));
            }
        }
        record.write.store(Id::SPLIT.0, Ordering::Relaxed);
    }

    /// Closes the open line at `offset` if its sectors agree.
    pub(super) fn close(&self, offset: u64) {
        let line = (offset % PAGE / LINE) as usize;
        let (Some(record), Some(sectors)) =
            (self.lines.get(line), self.sectors.get(line * LINE_SECTORS..(line + 1) * LINE_SECTORS))
        else {
            return;
        };
        let first = &sectors[0];
        let agrees = |one: (Id, Lanes), other: (Id, Lanes), index: u32| {
            // Nobody asks for the lanes of no access.
            one.0 == other.0 && (one.0 == Id::NONE || one.1.sector(index) == other.1)
        };
        let whole = !first.is_split()
            && (1u32..).zip(&sectors[1..]).all(|(index, sector)| {
                agrees(first.write(), sector.write(), index)
                    && agrees(first.read(0), sector.read(0), index)
                    && agrees(first.read(1), sector.read(1), index)
            });
        if !whole || !record.is_split() {
            return;
        }
        let (write, at) = first.write();
        record.set_write(write, at);
        for slot in 0..2 {
            let (read, at) = first.read(slot);
            record.set_read(slot, read, at);
        }
    }

    /// The word records of a sector that is or was split.
    #[inline(always)]
    pub(super) fn words(&self, sector: &Record) -> Option<&[Record; 8]> {
        let index = sector.words.load(Ordering::Relaxed).checked_sub(1)? as usize;
        Some(&self.words.get(index / GROUP)?.get()?[index % GROUP])
    }

    /// Splits a sector into words that start with what the sector knows.
    pub(super) fn split(&self, sector: &Record) -> Option<&[Record; 8]> {
        if sector.is_split() {
            return self.words(sector);
        }
        if sector.words.load(Ordering::Relaxed) == 0 {
            let number = self.words_used.load(Ordering::Relaxed) + 1;
            self.words_used.store(number, Ordering::Relaxed);
            let group = (number as usize - 1) / GROUP;
            self.words.get(group)?.get_or_init(|| {
                Box::new(std::array::from_fn(|_| std::array::from_fn(|_| Record::default())))
            });
            sector.words.store(number, Ordering::Relaxed);
        }
        let words = self.words(sector)?;
        let (write, write_at) = sector.write();
        let reads = [sector.read(0), sector.read(1)];
        for (index, word) in (0u32..).zip(words) {
            word.set_write(write, write_at.word(index));
            for (slot, (id, at)) in reads.into_iter().enumerate() {
                word.set_read(slot, id, at.word(index));
            }
        }
        sector.write.store(Id::SPLIT.0, Ordering::Relaxed);
        Some(words)
    }
}

/// A locked page; unlocks when dropped.
pub(super) struct PageGuard<'a> {
    page: &'a Page,
    locked: bool,
}

impl std::ops::Deref for PageGuard<'_> {
    type Target = Page;

    #[inline(always)]
    fn deref(&self) -> &Page {
        self.page
    }
}

impl Drop for PageGuard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.locked {
            self.page.locked.store(false, Ordering::Release);
        }
    }
}

/// Shadow of one allocation of global memory, or of a block's shared memory.
///
/// Pages appear when they are first touched; until then a shadow costs 16 bytes per 2 KiB watched.
#[derive(Debug)]
pub struct Shadow {
    base: u64,
    space: Space,
    /// The [`RaceClock`](super::RaceClock)'s; another one makes everything here meaningless.
    generation: AtomicU32,
    renewing: Mutex<()>,
    pages: Box<[OnceLock<Box<Page>>]>,
}

impl Shadow {
    /// The shadow of `bytes` bytes of global memory at device address `base`. Keep one beside each allocation.
    pub fn global(base: u64, bytes: u64) -> Self {
        Self::new(base, Space::Global, bytes)
    }

    /// The shadow of a block's shared memory. One per worker is enough: it need not be cleared between blocks.
    pub fn shared(bytes: u64) -> Self {
        Self::new(0, Space::Shared, bytes)
    }

    /// The same for a block of a cluster, whose addresses begin at `base` for the others.
    pub fn shared_at(base: u64, bytes: u64) -> Self {
        Self::new(base, Space::Shared, bytes)
    }

    fn new(base: u64, space: Space, bytes: u64) -> Self {
        let pages = usize::try_from(bytes.div_ceil(PAGE)).unwrap_or(usize::MAX / 64);
        Self {
            base,
            space,
            generation: AtomicU32::new(0),
            renewing: Mutex::new(()),
            pages: (0..pages).map(|_| OnceLock::new()).collect(),
        }
    }

    /// Which memory it watches.
    pub fn space(&self) -> Space {
        self.space
    }

    #[inline(always)]
    pub(super) fn is_shared(&self) -> bool {
        self.space == Space::Shared
    }

    /// The address as a report shows it.
    pub(super) fn address(&self, offset: u64) -> u64 {
        self.base.wrapping_add(offset)
    }

    /// The page that holds `offset`; `None` past the end, which memcheck reports.
    #[inline(always)]
    pub(super) fn page(&self, offset: u64, generation: u32, exclusive: bool) -> Option<PageGuard<'_>> {
        if self.generation.load(Ordering::Acquire) != generation {
            self.renew(generation);
        }
        let cell = self.pages.get(usize::try_from(offset / PAGE).ok()?)?;
        let page: &Page = match cell.get() {
            Some(page) => page,
            None => new_page(cell),
        };
        if !exclusive {
            while page.locked.swap(true, Ordering::Acquire) {
                while page.locked.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            }
        }
        Some(PageGuard { page, locked: !exclusive })
    }

    /// Forgets everything, once per generation; other workers wait.
    #[cold]
    fn renew(&self, generation: u32) {
        let _renewing = self.renewing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.generation.load(Ordering::Acquire) == generation {
            return;
        }
        for page in self.pages.iter().filter_map(OnceLock::get) {
            page.lines.iter().chain(&page.sectors).for_each(Record::clear);
        }
        self.generation.store(generation, Ordering::Release);
    }
}

#[cold]
fn new_page(cell: &OnceLock<Box<Page>>) -> &Page {
    cell.get_or_init(|| Box::new(Page::new()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_keep_their_fields_and_compare_by_block_and_time() {
        let id = Id::new(0xdead_beef, 0xabcdef, 31).with(3, true);
        assert_eq!((id.block(), id.tick(), id.warp(), id.strength()), (0xdead_beef, 0xabcdef, 31, 3));
        assert!(id.is_atomic());
        assert!(Id::new(1, 9, 31) < Id::new(1, 10, 0));
        assert!(Id::new(1, 10, 0) < Id::new(2, 0, 0));
        assert!(Id::new(1, 2, 3).same_warp(Id::new(1, 9, 3).with(1, true)));
        assert!(!Id::new(1, 2, 3).same_warp(Id::new(1, 2, 4)));
    }

    #[test]
    fn lane_patterns_name_the_lanes_of_words_and_bytes() {
        let f32s = Lanes::new(8, 2, 15, 7);
        assert_eq!(f32s.of_sector(), 0xff00);
        assert_eq!(f32s.word(3).of_bytes(15), 1 << 11);
        let halves = Lanes::new(16, 1, 15, 7);
        assert_eq!(halves.of_sector(), 0xffff_0000);
        assert_eq!(halves.word(2).of_bytes(0b1100), 1 << 21);
        assert_eq!(halves.word(2).of_bytes(0b0011), 1 << 20);
        let v4 = Lanes::new(30, 4, 15, 7);
        assert_eq!(v4.of_sector(), 0xc000_0000);
        assert_eq!(v4.word(4).of_bytes(15), 1 << 31);
        let bytes = Lanes::new(0, 0, 15, 7);
        assert_eq!(bytes.of_sector(), u32::MAX);
        assert_eq!(bytes.word(7).of_bytes(0b1000), 1 << 31);
        assert_eq!(v4.word(4).pc(), Some(7));
        assert_eq!(Lanes::new(0, 0, 15, u32::MAX).pc(), None);
    }

    #[test]
    fn splitting_keeps_what_the_sector_knew() {
        let shadow = Shadow::shared(4096);
        let page = shadow.page(2048 + 64, 1, true).expect("inside");
        let sector = page.sector(2048 + 64);
        sector.set_write(Id::new(1, 2, 3), Lanes::new(4, 2, 15, 5));
        sector.set_read(1, Id::new(1, 2, 4), Lanes::new(0, 4, 15, 6));
        let words = page.split(sector).expect("room");
        assert!(sector.is_split());
        assert_eq!(words[3].write(), (Id::new(1, 2, 3), Lanes::new(7, 2, 15, 5)));
        assert_eq!(words[7].read(1), (Id::new(1, 2, 4), Lanes::new(1, 2, 15, 6)));
        assert_eq!(words[7].read(0).0, Id::NONE);
        sector.clear();
        assert!(!sector.is_split());
    }

    #[test]
    fn a_line_opens_into_sectors_that_know_the_same_and_closes_when_they_agree() {
        let shadow = Shadow::shared(4096);
        let page = shadow.page(256, 1, true).expect("inside");
        let line = &page.lines(256, 128)[0];
        let (writer, reader) = (Id::new(1, 2, 3), Id::new(1, 3, 4));
        line.set_write(writer, Lanes::new(0, 2, 15, 5));
        line.set_read(0, reader, Lanes::new(8, 4, 15, 6));
        let sectors = page.sectors(256, 128);
        assert!(line.is_split());
        assert_eq!(sectors[3].write(), (writer, Lanes::new(24, 2, 15, 5)));
        assert_eq!(sectors[3].read(0), (reader, Lanes::new(14, 4, 15, 6)));
        assert_eq!(sectors[3].read(1).0, Id::NONE);
        page.close(256);
        assert_eq!(
            (line.write(), line.read(0)),
            ((writer, Lanes::new(0, 2, 15, 5)), (reader, Lanes::new(8, 4, 15, 6)))
        );

        // Opened again, one sector that differs keeps it open.
        page.sector(256 + 64).set_read(0, reader, Lanes::new(9, 4, 15, 6));
        page.close(256);
        assert!(line.is_split());
        page.sector(256 + 64).set_read(0, reader, Lanes::new(12, 4, 15, 6));
        page.close(256);
        assert!(!line.is_split());
        // So does one that is split into words.
        page.split(page.sector(256 + 32));
        page.close(256);
        assert!(line.is_split());
    }

    #[test]
    fn every_sector_of_a_page_can_split_and_a_new_generation_forgets() {
        let shadow = Shadow::global(0x1000, PAGE);
        {
            let page = shadow.page(0, 1, false).expect("inside");
            for index in 0..PAGE_SECTORS as u64 {
                assert!(page.split(page.sector(index * SECTOR)).is_some());
            }
            page.sector(63 * SECTOR).clear();
            assert!(page.lines(60 * SECTOR, LINE)[0].is_split());
            page.sector(63 * SECTOR).set_write(Id::new(1, 1, 1), Lanes::new(0, 2, 15, 0));
        }
        let page = shadow.page(0, 2, false).expect("inside");
        assert!(!page.sector(62 * SECTOR).is_split());
        assert_eq!(page.sector(63 * SECTOR).write().0, Id::NONE);
        assert!(shadow.page(PAGE, 2, false).is_none());
    }
}
