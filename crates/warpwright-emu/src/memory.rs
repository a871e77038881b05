//! Device memory of the emulator: allocations that several launches and threads may touch at once.
//!
//! Every allocation gets a slot of 64 GiB of the address space of its own, and a slot is used again only after all
//! others, so an overrun, however far, does not silently land in a neighbour and a freed address stays recognisable; see
//! [`slots`](crate::slots). What lies in a slot outside its allocation is redzone.
//!
//! Contents are relaxed atomics: a racy kernel is a finding, not undefined behaviour of the emulator. Accesses narrower
//! than a word are read-modify-write of the word that holds them.

use std::collections::HashMap;
use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockWriteGuard};

use crate::heap::Heap;
use crate::room;
use crate::sanitize::racecheck::{RaceClock, Shadow};
use crate::slots::{Slot, Slots};

/// Bits of an address below the slot number.
pub(crate) const SLOT_BITS: u32 = 36;
/// Where an allocation starts inside its slot; what lies before it is the lower redzone. The lower half is not zero, so
/// that a pointer cut to 32 bits does not look like a null pointer.
const SLOT_START: u64 = 0x1_2000_0000;
/// Bytes that one allocation may have.
const MAX_BYTES: u64 = (1 << SLOT_BITS) - (2 << 32);
/// Addresses with this bit are generic windows (shared, local, ...) and never global.
pub(crate) const WINDOW_BIT: u64 = 1 << 63;
/// Pattern of memory that nothing was written to: NaN in every floating-point type.
pub(crate) const POISON: u8 = 0xFF;
const POISON_WORD: u32 = u32::from_ne_bytes([POISON; 4]);

/// Why a host access or an allocation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// More than the machine or one slot has.
    #[error("cannot allocate {bytes} bytes for `{label}`")]
    OutOfMemory {
        /// The request.
        bytes: u64,
        /// For whom.
        label: String,
    },
    /// No allocation was ever made there.
    #[error("0x{address:x} is not inside any allocation")]
    NotAllocated {
        /// The address.
        address: u64,
    },
    /// The allocation is gone.
    #[error("0x{address:x} is inside `{label}`, which was freed")]
    Freed {
        /// The address.
        address: u64,
        /// The allocation that lay there.
        label: String,
    },
    /// The allocation is gone, and so long that its name is forgotten.
    #[error("0x{address:x} was freed, and many others after it")]
    FreedEarlier {
        /// The address.
        address: u64,
    },
    /// The allocation ends before the access does.
    #[error("{bytes} bytes at offset {offset} do not fit in `{label}` of {size} bytes")]
    OutOfBounds {
        /// Bytes from the start of the allocation; negative before it.
        offset: i64,
        /// Size of the access.
        bytes: u64,
        /// The allocation.
        label: String,
        /// Its size.
        size: u64,
    },
    /// `free` wants the address that `alloc` returned.
    #[error("0x{address:x} is inside `{label}` but not its start")]
    NotTheStart {
        /// The address.
        address: u64,
        /// The allocation.
        label: String,
    },
}

/// One allocation: words, one definedness bit per byte, and the name for reports.
#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) slot: u32,
    pub(crate) base: u64,
    pub(crate) len: u64,
    pub(crate) label: Arc<str>,
    /// Little-endian words; the last may pass the end.
    words: Box<[AtomicU32]>,
    /// Bit `i & 63` of element `i >> 6` tells whether byte `i` was ever written.
    defined: Box<[AtomicU64]>,
    freed: AtomicBool,
    /// Who accessed it, for racecheck.
    pub(crate) races: Shadow,
    /// Held by accesses that must be single-copy atomic beyond one word.
    wide: Mutex<()>,
}

impl Allocation {
    pub(crate) fn new(slot: u32, len: u64, label: &str) -> Option<Self> {
        let words = usize::try_from(len.div_ceil(4)).ok()?;
        let bits = usize::try_from(len.div_ceil(64)).ok()?;
        let mut storage = Vec::new();
        storage.try_reserve_exact(words).ok()?;
        storage.extend((0..words).map(|_| AtomicU32::new(POISON_WORD)));
        let mut defined = Vec::new();
        defined.try_reserve_exact(bits).ok()?;
        defined.extend((0..bits).map(|_| AtomicU64::new(0)));
        let base = (u64::from(slot) << SLOT_BITS) + SLOT_START;
        Some(Self {
            slot,
            base,
            len,
            label: label.into(),
            words: storage.into_boxed_slice(),
            defined: defined.into_boxed_slice(),
            freed: AtomicBool::new(false),
            races: Shadow::global(base, len),
            wide: Mutex::new(()),
        })
    }

    /// The words from byte `offset`, a multiple of 4, on.
    #[inline(always)]
    pub(crate) fn words(&self, offset: u64, count: usize) -> Option<&[AtomicU32]> {
        let at = (offset / 4) as usize;
        self.words.get(at..at + count)
    }

    /// Reads up to 8 bytes that do not cross a word unless they start at one. Bounds were checked by the caller.
    #[inline(always)]
    pub(crate) fn load(&self, offset: u64, bytes: u32) -> u64 {
        let at = (offset / 4) as usize;
        let word = |i: usize| self.words.get(i).map_or(0, |w| w.load(Relaxed));
        let shift = (offset % 4) * 8;
        match bytes {
            8 => u64::from(word(at)) | u64::from(word(at + 1)) << 32,
            4 if shift == 0 => u64::from(word(at)),
            _ => {
                let pair = u64::from(word(at)) | u64::from(word(at + 1)) << 32;
                (pair >> shift) & (u64::MAX >> (64 - 8 * bytes.clamp(1, 4)))
            }
        }
    }

    /// Writes up to 8 bytes; see [`load`](Self::load).
    #[inline(always)]
    pub(crate) fn store(&self, offset: u64, bytes: u32, value: u64) {
        let at = (offset / 4) as usize;
        if bytes >= 4 && offset.is_multiple_of(4) {
            if let Some(w) = self.words.get(at) {
                w.store(value as u32, Relaxed);
            }
            if bytes == 8
                && let Some(w) = self.words.get(at + 1)
            {
                w.store((value >> 32) as u32, Relaxed);
            }
            return;
        }
        let shift = ((offset % 4) * 8) as u32;
        let keep = (u64::MAX >> (64 - 8 * bytes.clamp(1, 4))) << shift;
        let value = value << shift;
        self.merge(at, keep as u32, value as u32);
        if keep >> 32 != 0 {
            self.merge(at + 1, (keep >> 32) as u32, (value >> 32) as u32);
        }
    }

    /// Replaces the bits `mask` of a word.
    #[inline(always)]
    pub(crate) fn merge(&self, word: usize, mask: u32, value: u32) {
        if let Some(w) = self.words.get(word) {
            // The closure never refuses, so the result says nothing.
            let _ = w.fetch_update(Relaxed, Relaxed, |old| Some(old & !mask | value & mask));
        }
    }

    /// Serialises accesses that are wider than a word and must not tear.
    pub(crate) fn lock_wide(&self) -> MutexGuard<'_, ()> {
        self.wide.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether every byte of a range was written; at most 128 bytes.
    #[inline(always)]
    pub(crate) fn is_defined(&self, offset: u64, bytes: u32) -> bool {
        let (first, shift) = ((offset / 64) as usize, (offset % 64) as u32);
        let mut left = bytes;
        let mut shift = shift;
        let mut at = first;
        while left > 0 {
            let here = left.min(64 - shift);
            let mask = (u64::MAX >> (64 - here)) << shift;
            match self.defined.get(at) {
                Some(d) if d.load(Relaxed) & mask == mask => {}
                _ => return false,
            }
            left -= here;
            shift = 0;
            at += 1;
        }
        true
    }

    /// Marks a range as written.
    #[inline(always)]
    pub(crate) fn define(&self, offset: u64, bytes: u64) {
        let mut at = (offset / 64) as usize;
        let mut shift = (offset % 64) as u32;
        let mut left = bytes;
        while left > 0 {
            let here = (left.min(u64::from(64 - shift))) as u32;
            let mask = (u64::MAX >> (64 - here)) << shift;
            if let Some(d) = self.defined.get(at) {
                if mask == u64::MAX {
                    d.store(mask, Relaxed);
                } else if d.load(Relaxed) & mask != mask {
                    d.fetch_or(mask, Relaxed);
                }
            }
            left -= u64::from(here);
            shift = 0;
            at += 1;
        }
    }

    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) {
        let mut at = offset;
        let mut rest = bytes;
        while !rest.is_empty() && !at.is_multiple_of(4) {
            self.store(at, 1, u64::from(rest[0]));
            (at, rest) = (at + 1, &rest[1..]);
        }
        let (whole, tail) = rest.as_chunks::<4>();
        if let Some(words) = self.words(at, whole.len()) {
            for (word, chunk) in words.iter().zip(whole) {
                word.store(u32::from_le_bytes(*chunk), Relaxed);
            }
        }
        at += 4 * whole.len() as u64;
        for (i, b) in tail.iter().enumerate() {
            self.store(at + i as u64, 1, u64::from(*b));
        }
        self.define(offset, bytes.len() as u64);
    }

    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) {
        let mut at = offset;
        let mut rest = out;
        while !rest.is_empty() && !at.is_multiple_of(4) {
            rest[0] = self.load(at, 1) as u8;
            (at, rest) = (at + 1, &mut rest[1..]);
        }
        let (whole, tail) = rest.as_chunks_mut::<4>();
        if let Some(words) = self.words(at, whole.len()) {
            for (word, chunk) in words.iter().zip(whole.iter_mut()) {
                *chunk = word.load(Relaxed).to_le_bytes();
            }
        }
        at += 4 * whole.len() as u64;
        for (i, b) in tail.iter_mut().enumerate() {
            *b = self.load(at + i as u64, 1) as u8;
        }
    }
}

/// Device memory: allocations, their contents, and which bytes were ever written.
///
/// All methods take `&self`; launches and host copies may run at the same time.
#[derive(Debug, Default)]
pub struct Memory {
    slots: RwLock<Slots>,
    /// Where the `.global` variables of each program that ran here live, by program number.
    globals: Mutex<HashMap<u64, Arc<[u64]>>>,
    pub(crate) races: RaceClock,
    /// Launches that run now.
    launches: AtomicU32,
    /// Launches that have ever begun.
    begun: AtomicU64,
    pub(crate) heap: Heap,
}

/// A launch that runs on a memory.
pub(crate) struct Launching<'a>(&'a Memory);

impl Drop for Launching<'_> {
    fn drop(&mut self) {
        self.0.launches.fetch_sub(1, SeqCst);
    }
}

impl Memory {
    /// Notes a launch until the result is dropped.
    pub(crate) fn launching(&self) -> Launching<'_> {
        self.begun.fetch_add(1, SeqCst);
        self.launches.fetch_add(1, SeqCst);
        Launching(self)
    }

    /// How many launches have begun, if none but the caller's runs: while it stays the same no other has written anything.
    pub(crate) fn alone(&self) -> Option<u64> {
        // In this order: one that begins and ends in between is counted.
        let alone = self.launches.load(SeqCst) <= 1;
        let begun = self.begun.load(SeqCst);
        alone.then_some(begun)
    }

    /// Memory without allocations.
    pub fn new() -> Self {
        Self::default()
    }

    /// Allocates `bytes` bytes, aligned to at least 4096, and returns the device address. `label` names the allocation
    /// in findings. The contents are poisoned and count as uninitialised.
    ///
    /// # Errors
    /// [`MemoryError::OutOfMemory`].
    pub fn alloc(&self, bytes: u64, label: &str) -> Result<u64, MemoryError> {
        let refuse = || MemoryError::OutOfMemory { bytes, label: label.to_owned() };
        if bytes > MAX_BYTES || !room::fits(bytes) {
            return Err(refuse());
        }
        let number = self.write_slots().number().ok_or_else(refuse)?;
        // Filling it takes long, and others may allocate meanwhile.
        let allocation = Allocation::new(number, bytes, label).ok_or_else(refuse)?;
        let base = allocation.base;
        self.write_slots().insert(allocation);
        Ok(base)
    }

    /// Frees an allocation. Its addresses are used again only after 2^27 others, so later accesses are recognised; the
    /// names of the last thousand that were freed are kept for reports.
    ///
    /// # Errors
    /// If `address` is not the start of a live allocation.
    pub fn free(&self, address: u64) -> Result<(), MemoryError> {
        let allocation = self.find(address)?;
        let label = || allocation.label.to_string();
        if allocation.base != address {
            return Err(MemoryError::NotTheStart { address, label: label() });
        }
        if !self.write_slots().free(allocation.slot) {
            return Err(MemoryError::Freed { address, label: label() });
        }
        allocation.freed.store(true, Relaxed);
        Ok(())
    }

    fn write_slots(&self) -> RwLockWriteGuard<'_, Slots> {
        self.slots.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies bytes to the device; they count as initialised.
    ///
    /// # Errors
    /// If the range is not inside one live allocation.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), MemoryError> {
        let (allocation, offset) = self.range(address, bytes.len() as u64)?;
        allocation.write(offset, bytes);
        Ok(())
    }

    /// Copies bytes from the device.
    ///
    /// # Errors
    /// If the range is not inside one live allocation.
    pub fn read(&self, address: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        let (allocation, offset) = self.range(address, out.len() as u64)?;
        allocation.read(offset, out);
        Ok(())
    }

    /// Sets `len` bytes to `byte`; they count as initialised.
    ///
    /// # Errors
    /// If the range is not inside one live allocation.
    pub fn fill(&self, address: u64, byte: u8, len: u64) -> Result<(), MemoryError> {
        let (allocation, offset) = self.range(address, len)?;
        let block = [byte; 4096];
        let mut at = 0;
        while at < len {
            let here = (len - at).min(block.len() as u64);
            allocation.write(offset + at, &block[..here as usize]);
            at += here;
        }
        Ok(())
    }

    /// Copies between two device ranges; definedness is copied along.
    ///
    /// # Errors
    /// If a range is not inside one live allocation.
    pub fn copy(&self, to: u64, from: u64, len: u64) -> Result<(), MemoryError> {
        let (source, from_offset) = self.range(from, len)?;
        let (target, to_offset) = self.range(to, len)?;
        let mut block = [0u8; 4096];
        let mut at = 0;
        while at < len {
            let here = (len - at).min(block.len() as u64) as usize;
            source.read(from_offset + at, &mut block[..here]);
            let defined: Vec<bool> =
                (0..here as u64).map(|i| source.is_defined(from_offset + at + i, 1)).collect();
            let all = defined.iter().all(|d| *d);
            if all {
                target.write(to_offset + at, &block[..here]);
            } else {
                for (i, byte) in block[..here].iter().enumerate() {
                    let offset = to_offset + at + i as u64;
                    target.store(offset, 1, u64::from(*byte));
                    if defined[i] {
                        target.define(offset, 1);
                    }
                }
            }
            at += here as u64;
        }
        Ok(())
    }

    /// Makes a range count as never written and poisons it, as fresh memory is: for reused pools of memory.
    ///
    /// # Errors
    /// If the range is not inside one live allocation.
    pub fn poison(&self, address: u64, len: u64) -> Result<(), MemoryError> {
        self.fill(address, POISON, len)?;
        let (allocation, offset) = self.range(address, len)?;
        for at in offset..offset + len {
            if let Some(d) = allocation.defined.get((at / 64) as usize) {
                d.fetch_and(!(1 << (at % 64)), Relaxed);
            }
        }
        Ok(())
    }

    /// The label, size and start of the live allocation that holds `address`.
    pub fn describe(&self, address: u64) -> Option<(String, u64, u64)> {
        let a = self.find(address).ok()?;
        Some((a.label.to_string(), a.len, a.base))
    }

    fn range(&self, address: u64, bytes: u64) -> Result<(Arc<Allocation>, u64), MemoryError> {
        let allocation = self.find(address)?;
        let offset = address.wrapping_sub(allocation.base);
        if offset > allocation.len || bytes > allocation.len - offset {
            return Err(MemoryError::OutOfBounds {
                offset: offset as i64,
                bytes,
                label: allocation.label.to_string(),
                size: allocation.len,
            });
        }
        Ok((allocation, offset))
    }

    fn find(&self, address: u64) -> Result<Arc<Allocation>, MemoryError> {
        match self.slot(address) {
            Some(Slot::Live(a)) => Ok(a),
            Some(Slot::Freed { label, .. }) => Err(MemoryError::Freed { address, label: label.to_string() }),
            Some(Slot::FreedEarlier) => Err(MemoryError::FreedEarlier { address }),
            None => Err(MemoryError::NotAllocated { address }),
        }
    }

    /// Contents of the slot of an address.
    pub(crate) fn slot(&self, address: u64) -> Option<Slot> {
        self.slots.read().unwrap_or_else(PoisonError::into_inner).at(address)
    }

    /// The addresses of the module variables of program `id`, made by `create` when it first runs here.
    pub(crate) fn globals(
        &self,
        id: u64,
        create: impl FnOnce() -> Result<Arc<[u64]>, MemoryError>,
    ) -> Result<Arc<[u64]>, MemoryError> {
        let mut globals = self.globals.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = globals.get(&id) {
            return Ok(known.clone());
        }
        let made = create()?;
        globals.insert(id, made.clone());
        Ok(made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_at_every_offset() {
        let memory = Memory::new();
        let a = memory.alloc(37, "a").unwrap();
        let data: Vec<u8> = (0..37).collect();
        for start in 0..8u64 {
            let part = &data[..29];
            memory.write(a + start, part).unwrap();
            let mut back = vec![0; 29];
            memory.read(a + start, &mut back).unwrap();
            assert_eq!(back, part);
        }
    }

    #[test]
    fn host_errors_name_the_allocation() {
        let memory = Memory::new();
        let a = memory.alloc(16, "weights").unwrap();
        let error = memory.write(a + 8, &[0; 9]).unwrap_err();
        assert_eq!(
            error,
            MemoryError::OutOfBounds { offset: 8, bytes: 9, label: "weights".into(), size: 16 }
        );
        assert_eq!(
            memory.read(a - 4, &mut [0; 4]).unwrap_err().to_string(),
            "4 bytes at offset -4 do not fit in `weights` of 16 bytes"
        );
        memory.free(a).unwrap();
        assert_eq!(memory.free(a).unwrap_err(), MemoryError::Freed { address: a, label: "weights".into() });
        assert_ne!(memory.alloc(16, "b").unwrap(), a);
        assert_eq!(memory.read(0, &mut [0]).unwrap_err(), MemoryError::NotAllocated { address: 0 });
        assert!(matches!(memory.alloc(u64::MAX, "c").unwrap_err(), MemoryError::OutOfMemory { .. }));
    }

    #[test]
    fn definedness_is_per_byte() {
        let memory = Memory::new();
        let a = memory.alloc(256, "a").unwrap();
        let alloc = memory.find(a).unwrap();
        assert!(!alloc.is_defined(0, 1));
        memory.write(a + 3, &[7; 130]).unwrap();
        assert!(alloc.is_defined(3, 128));
        assert!(!alloc.is_defined(2, 4));
        assert!(alloc.is_defined(132, 1));
        assert!(!alloc.is_defined(132, 2));
        memory.poison(a + 64, 4).unwrap();
        assert!(alloc.is_defined(3, 61));
        assert!(!alloc.is_defined(67, 1));
        assert!(alloc.is_defined(68, 1));
        memory.copy(a + 200, a + 60, 8).unwrap();
        assert!(alloc.is_defined(200, 4));
        assert!(!alloc.is_defined(204, 1));
        let mut byte = [0];
        memory.read(a + 255, &mut byte).unwrap();
        assert_eq!(byte, [POISON]);
    }

    #[test]
    fn narrow_stores_keep_their_neighbours() {
        let memory = Memory::new();
        let a = memory.alloc(12, "a").unwrap();
        memory.fill(a, 0x11, 12).unwrap();
        let alloc = memory.find(a).unwrap();
        alloc.store(1, 2, 0xABCD);
        alloc.store(7, 1, 0xEE);
        let mut back = [0; 12];
        memory.read(a, &mut back).unwrap();
        assert_eq!(back, [0x11, 0xCD, 0xAB, 0x11, 0x11, 0x11, 0x11, 0xEE, 0x11, 0x11, 0x11, 0x11]);
        assert_eq!(alloc.load(1, 2), 0xABCD);
        assert_eq!(alloc.load(4, 8), 0x1111_1111_EE11_1111);
    }

    #[test]
    fn launches_that_have_ended_are_told_apart() {
        let memory = Memory::new();
        let _own = memory.launching();
        let before = memory.alone();
        assert!(before.is_some());
        let other = memory.launching();
        assert_eq!(memory.alone(), None);
        drop(other);
        assert!(memory.alone().is_some() && memory.alone() != before);
    }
}
