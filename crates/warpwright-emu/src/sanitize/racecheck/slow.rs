//! The closer look at an access that a comparison of records does not settle: word by word, lane by lane.

use super::explain::Conflict;
use super::shadow::{Id, Lanes, Page, Record, Shadow};
use super::{Access, AccessKind, BlockRaces, SameValue};
use crate::report::Findings;

/// The outcome at a record.
enum Outcome {
    Done,
    /// The record describes several lanes that have to be told apart.
    Split,
}

/// The closer look at one access.
pub(super) struct Slow<'s, 'a> {
    pub(super) races: &'s BlockRaces<'a>,
    pub(super) shadow: &'s Shadow,
    pub(super) page: &'s Page,
    pub(super) access: Access,
    pub(super) id: Id,
    pub(super) findings: &'s mut Findings,
    pub(super) same: SameValue<'s>,
    /// All offsets of a scattered access.
    pub(super) offsets: Option<&'s [u64; 32]>,
    /// The executing lanes.
    pub(super) mask: u32,
}

impl Slow<'_, '_> {
    /// An access that covers a sector in a pattern.
    pub(super) fn whole_sector(&mut self, sector: &Record, offset: u64, at: Lanes) {
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
    pub(super) fn part(
        &mut self,
        sector: &Record,
        from: u64,
        to: u64,
        size: u32,
        lane_of: impl Fn(u64) -> u32,
    ) {
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
    pub(super) fn element(&mut self, sector: &Record, offset: u64, lane: u32, several: bool) {
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
    pub(super) fn one_instruction(&mut self, offset: u64, mask: u32) {
        let first = mask.trailing_zeros();
        let differs = (first + 1..32).find(|&lane| mask >> lane & 1 == 1 && !(self.same)(lane, Some(first)));
        if let Some(lane) = differs {
            self.report(Conflict::OneInstruction { lane, other: first }, offset);
        }
    }

    pub(super) fn writes(&self) -> bool {
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
pub(super) struct Clash {
    pub(super) prev: Id,
    pub(super) prev_at: Lanes,
    pub(super) prev_writes: bool,
    /// Its lanes that race.
    pub(super) lanes: u32,
    /// The lanes that it races with.
    pub(super) mine: u32,
}
