//! Rows to and from consecutive memory: what a full warp loads or stores lane after lane.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::global::{extend, lane_value, set_lane};
use crate::code::layout::Slot;
use crate::code::memory::Access;
use crate::code::rows::{LANES, Registers};

/// A word of memory: of global memory, which others may touch at the same time, or of the block's own.
pub(super) trait Word {
    fn get(&self) -> u32;
    fn set(&self, value: u32);
    /// Replaces the bits `mask`.
    fn merge(&self, mask: u32, value: u32);
}

impl Word for AtomicU32 {
    #[inline(always)]
    fn get(&self) -> u32 {
        self.load(Relaxed)
    }

    #[inline(always)]
    fn set(&self, value: u32) {
        self.store(value, Relaxed);
    }

    #[inline(always)]
    fn merge(&self, mask: u32, value: u32) {
        // The closure never refuses, so the result says nothing.
        let _ = self.fetch_update(Relaxed, Relaxed, |old| Some(old & !mask | value & mask));
    }
}

impl Word for Cell<u32> {
    #[inline(always)]
    fn get(&self) -> u32 {
        self.get()
    }

    #[inline(always)]
    fn set(&self, value: u32) {
        self.set(value);
    }

    #[inline(always)]
    fn merge(&self, mask: u32, value: u32) {
        self.set(self.get() & !mask | value & mask);
    }
}

/// The words that hold all lanes of a contiguous access at byte `offset` of a memory.
#[inline(always)]
pub(super) fn span(offset: u64, access: &Access) -> (usize, usize) {
    let start = (offset / 4) as usize;
    let end = (offset + LANES as u64 * u64::from(access.total())).div_ceil(4) as usize;
    (start, end - start)
}

/// One 64-bit element.
#[inline(always)]
fn wide<W: Word>(pair: &[W]) -> u64 {
    u64::from(pair[0].get()) | u64::from(pair[1].get()) << 32
}

/// Loads what all lanes ask for, lane after lane. The first element lies at byte `offset % 4` of `words`.
#[inline(always)]
pub(super) fn read_rows<W: Word>(regs: &mut Registers, words: &[W], offset: u64, access: &Access) {
    let count = access.regs.len();
    match (access.bytes, access.regs.as_slice()) {
        (4, [Some(Slot::W(d))]) => {
            for (to, from) in regs.r32[*d as usize].0.iter_mut().zip(words) {
                *to = from.get();
            }
        }
        (4, slots) if slots.iter().all(|s| matches!(s, Some(Slot::W(_)) | None)) => {
            for (j, slot) in slots.iter().enumerate() {
                let Some(Slot::W(d)) = slot else { continue };
                let row = &mut regs.r32[*d as usize].0;
                for (to, from) in row.iter_mut().zip(words.chunks_exact(count)) {
                    *to = from[j].get();
                }
            }
        }
        (8, slots) if slots.iter().all(|s| matches!(s, Some(Slot::L(_)) | None)) => {
            for (j, slot) in slots.iter().enumerate() {
                let Some(Slot::L(d)) = slot else { continue };
                let row = &mut regs.r64[*d as usize].0;
                for (to, from) in row.iter_mut().zip(words.chunks_exact(2 * count)) {
                    *to = wide(&from[2 * j..2 * j + 2]);
                }
            }
        }
        (2, [Some(Slot::W(d))]) if offset.is_multiple_of(4) && !access.sign => {
            for (to, from) in regs.r32[*d as usize].0.chunks_exact_mut(2).zip(words) {
                let word = from.get();
                to[0] = word & 0xFFFF;
                to[1] = word >> 16;
            }
        }
        (1, [Some(Slot::W(d))]) if offset.is_multiple_of(4) && !access.sign => {
            for (to, from) in regs.r32[*d as usize].0.chunks_exact_mut(4).zip(words) {
                let word = from.get();
                for (k, to) in to.iter_mut().enumerate() {
                    *to = (word >> (8 * k)) & 0xFF;
                }
            }
        }
        (bytes, slots) => {
            for (j, slot) in slots.iter().enumerate() {
                let Some(slot) = *slot else { continue };
                for lane in 0..LANES {
                    let at = offset as usize % 4 + (lane * count + j) * bytes as usize;
                    let value = match bytes {
                        8 => words.get(at / 4..at / 4 + 2).map_or(0, wide),
                        _ => words.get(at / 4).map_or(0, |w| u64::from(w.get() >> (8 * (at % 4)))),
                    };
                    let value = value & (u64::MAX >> (64 - 8 * bytes));
                    set_lane(regs, slot, lane, extend(access, slot, value));
                }
            }
        }
    }
}

/// Stores what all lanes have, lane after lane; see [`read_rows`].
#[inline(always)]
pub(super) fn write_rows<W: Word>(regs: &Registers, words: &[W], offset: u64, access: &Access) {
    let count = access.regs.len();
    match (access.bytes, access.regs.as_slice()) {
        (4, [Some(Slot::W(s))]) => {
            for (to, from) in words.iter().zip(&regs.r32[*s as usize].0) {
                to.set(*from);
            }
        }
        (4, slots) if slots.iter().all(|s| matches!(s, Some(Slot::W(_)))) => {
            for (j, slot) in slots.iter().enumerate() {
                let Some(Slot::W(s)) = slot else { continue };
                for (to, from) in words.chunks_exact(count).zip(&regs.r32[*s as usize].0) {
                    to[j].set(*from);
                }
            }
        }
        (8, slots) if slots.iter().all(|s| matches!(s, Some(Slot::L(_)))) => {
            for (j, slot) in slots.iter().enumerate() {
                let Some(Slot::L(s)) = slot else { continue };
                for (to, from) in words.chunks_exact(2 * count).zip(&regs.r64[*s as usize].0) {
                    to[2 * j].set(*from as u32);
                    to[2 * j + 1].set((*from >> 32) as u32);
                }
            }
        }
        (2, [Some(Slot::W(s))]) if offset.is_multiple_of(4) => {
            for (to, from) in words.iter().zip(regs.r32[*s as usize].0.chunks_exact(2)) {
                to.set(from[0] & 0xFFFF | from[1] << 16);
            }
        }
        (1, [Some(Slot::W(s))]) if offset.is_multiple_of(4) => {
            for (to, from) in words.iter().zip(regs.r32[*s as usize].0.chunks_exact(4)) {
                let [a, b, c, d] = [from[0], from[1], from[2], from[3]].map(|b| b & 0xFF);
                to.set(a | b << 8 | c << 16 | d << 24);
            }
        }
        (bytes, slots) => {
            for (j, slot) in slots.iter().enumerate() {
                let Some(slot) = *slot else { continue };
                for lane in 0..LANES {
                    let at = offset as usize % 4 + (lane * count + j) * bytes as usize;
                    let value = lane_value(regs, slot, lane);
                    let Some(word) = words.get(at / 4) else { continue };
                    if bytes < 4 {
                        let shift = 8 * (at % 4);
                        word.merge((((1u64 << (8 * bytes)) - 1) << shift) as u32, (value as u32) << shift);
                        continue;
                    }
                    word.set(value as u32);
                    if let (8, Some(high)) = (bytes, words.get(at / 4 + 1)) {
                        high.set((value >> 32) as u32);
                    }
                }
            }
        }
    }
}
