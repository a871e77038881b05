//! The state that the threads of a block share.

use std::collections::BTreeSet;

use crate::events::asynchronous::Cells;
use crate::exec::matrix::Warpgroups;
use crate::memory::POISON;
use crate::sanitize::racecheck::Shadow;
use crate::sanitize::synccheck::Barriers;
use crate::space::SHARED_BASE;
use crate::tensor_memory::TensorMemory;

/// Shared memory: words from address 0 of the window, of which the first [`SHARED_BASE`] bytes belong to nobody.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    pub(crate) words: Vec<u32>,
    /// First address past the end.
    pub(crate) end: u64,
    /// Added to addresses in reports to tell whose memory it is: 0 without clusters.
    pub(crate) base: u64,
    /// One bit per byte.
    defined: Vec<u64>,
    pub(crate) races: Shadow,
    /// Which asynchronous operations touch which words, for racecheck.
    pub(crate) cells: Cells,
    /// Where mbarriers are.
    pub(crate) mbarriers: BTreeSet<u64>,
    /// The block's tensor memory.
    pub(crate) tensor: TensorMemory,
}

impl SharedMemory {
    pub(crate) fn new(end: u64) -> Self {
        Self::of_block(end, 0)
    }

    /// The shared memory of a block of a cluster.
    pub(crate) fn of_block(end: u64, base: u64) -> Self {
        let words = end.div_ceil(4) as usize;
        Self {
            words: vec![0; words],
            end,
            base,
            defined: vec![0; end.div_ceil(64) as usize],
            races: Shadow::shared_at(base, end),
            cells: Cells::default(),
            mbarriers: BTreeSet::new(),
            tensor: TensorMemory::default(),
        }
    }

    /// Makes the contents those of a block that has just begun.
    pub(crate) fn reset(&mut self) {
        if self.end > SHARED_BASE {
            self.words.fill(u32::from_ne_bytes([POISON; 4]));
            self.defined.fill(0);
        }
        self.cells.clear();
        self.mbarriers.clear();
        self.tensor.reset();
    }

    /// Copies bytes out; bounds were checked by the caller.
    pub(crate) fn read(&self, address: u64, out: &mut [u8]) {
        for (byte, at) in out.iter_mut().zip(address..) {
            *byte = (self.words.get((at / 4) as usize).copied().unwrap_or(0) >> (at % 4 * 8)) as u8;
        }
    }

    /// Copies bytes in; bounds were checked by the caller.
    pub(crate) fn write(&mut self, address: u64, bytes: &[u8]) {
        let mut at = address;
        let (words, tail) = bytes.as_chunks::<4>();
        if !address.is_multiple_of(4) {
            return bytes.iter().zip(address..).for_each(|(byte, at)| self.store(at, 1, u64::from(*byte)));
        }
        for word in words {
            if let Some(slot) = self.words.get_mut((at / 4) as usize) {
                *slot = u32::from_le_bytes(*word);
            }
            at += 4;
        }
        for byte in tail {
            self.store(at, 1, u64::from(*byte));
            at += 1;
        }
    }

    #[inline(always)]
    pub(crate) fn covers(&self, address: u64, bytes: u64) -> bool {
        // One comparison: addresses below the base wrap to large numbers.
        let offset = address.wrapping_sub(SHARED_BASE);
        let size = self.end - SHARED_BASE;
        bytes <= size && offset <= size - bytes
    }

    #[inline(always)]
    pub(crate) fn load(&self, address: u64, bytes: u32) -> u64 {
        let word = |at: u64| self.words.get(at as usize).copied().map_or(0, u64::from);
        let (at, shift) = (address / 4, address % 4 * 8);
        match bytes {
            8 => word(at) | word(at + 1) << 32,
            4 => word(at),
            _ => (word(at) >> shift) & (u64::MAX >> (64 - 8 * bytes)),
        }
    }

    #[inline(always)]
    pub(crate) fn store(&mut self, address: u64, bytes: u32, value: u64) {
        in_words(address, bytes, value, |at, mask, value| {
            if let Some(word) = self.words.get_mut(at as usize) {
                *word = *word & !mask | value & mask;
            }
        });
    }

    #[inline(always)]
    pub(crate) fn is_defined(&self, address: u64, bytes: u64) -> bool {
        bits(address, bytes).all(|(at, mask)| self.defined.get(at).is_some_and(|d| d & mask == mask))
    }

    /// A byte has no value.
    pub(crate) fn undefine(&mut self, address: u64) {
        for (at, mask) in bits(address, 1) {
            if let Some(d) = self.defined.get_mut(at) {
                *d &= !mask;
            }
        }
    }

    #[inline(always)]
    pub(crate) fn define(&mut self, address: u64, bytes: u64) {
        for (at, mask) in bits(address, bytes) {
            if let Some(d) = self.defined.get_mut(at) {
                *d |= mask;
            }
        }
    }
}

/// Hands out the words that a store of 1, 2, 4 or 8 bytes changes: which, the bits of it, and their values in place.
#[inline(always)]
pub(crate) fn in_words(address: u64, bytes: u32, value: u64, mut set: impl FnMut(u64, u32, u32)) {
    let (at, shift) = (address / 4, address % 4 * 8);
    match bytes {
        8 => {
            set(at, u32::MAX, value as u32);
            set(at + 1, u32::MAX, (value >> 32) as u32);
        }
        4 => set(at, u32::MAX, value as u32),
        _ => set(at, (((1u64 << (8 * bytes)) - 1) << shift) as u32, (value << shift) as u32),
    }
}

/// The words and masks of a range of bits.
#[inline(always)]
fn bits(from: u64, count: u64) -> impl Iterator<Item = (usize, u64)> {
    let (mut at, mut shift, mut left) = ((from / 64) as usize, from % 64, count);
    std::iter::from_fn(move || {
        if left == 0 {
            return None;
        }
        let here = left.min(64 - shift);
        let item = (at, (u64::MAX >> (64 - here)) << shift);
        left -= here;
        shift = 0;
        at += 1;
        Some(item)
    })
}

/// A block that has begun.
#[derive(Debug)]
pub(crate) struct Block {
    /// Index in the grid, x fastest.
    pub(crate) linear: u64,
    pub(crate) coordinates: [u32; 3],
    pub(crate) shared: SharedMemory,
    pub(crate) barriers: Barriers,
    /// Threads that exist and have not exited.
    pub(crate) live_threads: u32,
    pub(crate) warpgroups: Warpgroups,
    /// Warps with such threads.
    pub(crate) live_warps: usize,
    /// Whether a warp has run.
    pub(crate) started: bool,
    /// Whether groups that wait for a change of memory have to look again.
    pub(crate) woken: bool,
    /// The phase of the cluster barrier that the waiting groups know of.
    pub(crate) phase: u32,
}

impl Block {
    pub(crate) fn new(shared: SharedMemory) -> Self {
        Self {
            linear: 0,
            coordinates: [0; 3],
            shared,
            barriers: Barriers::new(),
            live_threads: 0,
            warpgroups: Warpgroups::default(),
            live_warps: 0,
            started: false,
            woken: false,
            phase: 0,
        }
    }

    /// Makes everything as it is when a block begins.
    pub(crate) fn begin(&mut self, linear: u64, coordinates: [u32; 3], threads: u32, warps: usize) {
        self.linear = linear;
        self.coordinates = coordinates;
        self.shared.reset();
        self.barriers.reset();
        self.warpgroups.reset();
        self.live_threads = threads;
        self.live_warps = warps;
        self.started = false;
        self.woken = false;
        self.phase = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_knows_its_bounds_and_what_was_written() {
        let mut s = SharedMemory::new(SHARED_BASE + 200);
        s.reset();
        assert!(s.covers(SHARED_BASE, 200));
        assert!(!s.covers(SHARED_BASE, 201));
        assert!(!s.covers(SHARED_BASE - 4, 4));
        assert!(!s.covers(0, 4));
        s.store(SHARED_BASE + 6, 2, 0xABCD);
        assert_eq!(s.load(SHARED_BASE + 4, 4), 0xABCD_FFFF);
        s.define(SHARED_BASE + 60, 70);
        assert!(s.is_defined(SHARED_BASE + 60, 70));
        assert!(!s.is_defined(SHARED_BASE + 59, 2));
        assert!(!s.is_defined(SHARED_BASE + 129, 2));
        s.reset();
        assert!(!s.is_defined(SHARED_BASE + 60, 1));
        assert!(!SharedMemory::new(SHARED_BASE).covers(SHARED_BASE, 1));
    }
}
