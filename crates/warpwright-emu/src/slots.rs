//! Which slots of the address space hold what: live allocations, and the names of those that were freed last.
//!
//! Slots are numbered in the order of allocation, and a number is given again only after all others, of which there are
//! 2^27: an address that was freed is recognised as such for as long. What is kept of a freed allocation, so that a report
//! can name it, waits in a quarantine of fixed length, which keeps the books as small after a million allocations as
//! after the first thousand.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::memory::{Allocation, SLOT_BITS};

/// Freed allocations whose name and extent are remembered.
pub(crate) const QUARANTINE: usize = 1024;
/// Slot numbers are below this; 0 is none.
const NUMBERS: u32 = 1 << (63 - SLOT_BITS);

/// Contents of a slot of the address space.
#[derive(Clone, Debug)]
pub(crate) enum Slot {
    Live(Arc<Allocation>),
    /// Freed: only its name and extent are left.
    Freed {
        base: u64,
        len: u64,
        label: Arc<str>,
    },
    /// Freed, and [`QUARANTINE`] others after it.
    FreedEarlier,
}

#[derive(Debug, Default)]
pub(crate) struct Slots {
    live: HashMap<u32, Arc<Allocation>>,
    freed: HashMap<u32, (u64, u64, Arc<str>)>,
    /// The numbers of `freed`, in the order in which they were freed.
    order: VecDeque<u32>,
    /// The number that was given last.
    last: u32,
    /// Whether every number was given once.
    all_given: bool,
}

impl Slots {
    /// The number for the next allocation; `None` if all are in use.
    pub(crate) fn number(&mut self) -> Option<u32> {
        // Of so many numbers one is free, if any is.
        for _ in 0..=self.live.len() + self.freed.len() {
            self.last += 1;
            if self.last == NUMBERS {
                (self.last, self.all_given) = (1, true);
            }
            if !self.live.contains_key(&self.last) && !self.freed.contains_key(&self.last) {
                return Some(self.last);
            }
        }
        None
    }

    pub(crate) fn insert(&mut self, allocation: Allocation) {
        self.live.insert(allocation.slot, Arc::new(allocation));
    }

    /// Puts an allocation into the quarantine; `false` if it is not there.
    pub(crate) fn free(&mut self, number: u32) -> bool {
        let Some(allocation) = self.live.remove(&number) else { return false };
        if self.order.len() == QUARANTINE
            && let Some(oldest) = self.order.pop_front()
        {
            self.freed.remove(&oldest);
        }
        self.freed.insert(number, (allocation.base, allocation.len, allocation.label.clone()));
        self.order.push_back(number);
        true
    }

    /// Contents of the slot of an address; `None` if it was never given.
    pub(crate) fn at(&self, address: u64) -> Option<Slot> {
        let number = u32::try_from(address >> SLOT_BITS).ok().filter(|n| (1..NUMBERS).contains(n))?;
        if let Some(allocation) = self.live.get(&number) {
            return Some(Slot::Live(allocation.clone()));
        }
        if let Some((base, len, label)) = self.freed.get(&number) {
            return Some(Slot::Freed { base: *base, len: *len, label: label.clone() });
        }
        (number <= self.last || self.all_given).then_some(Slot::FreedEarlier)
    }

    /// Entries in the books.
    #[cfg(test)]
    fn entries(&self) -> usize {
        self.live.len() + self.freed.len() + self.order.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocate(slots: &mut Slots) -> Option<u32> {
        let number = slots.number()?;
        slots.insert(Allocation::new(number, 8, "x")?);
        Some(number)
    }

    fn address(number: u32) -> u64 {
        u64::from(number) << SLOT_BITS
    }

    #[test]
    fn the_books_do_not_grow() {
        let mut slots = Slots::default();
        let first = allocate(&mut slots).unwrap();
        for _ in 0..100_000 {
            let number = allocate(&mut slots).unwrap();
            assert!(slots.free(number));
            assert!(!slots.free(number));
        }
        assert!(slots.entries() <= 1 + 2 * QUARANTINE, "{}", slots.entries());
        assert!(slots.freed.capacity() <= 4 * QUARANTINE && slots.live.capacity() <= 64);
        assert!(matches!(slots.at(address(first)), Some(Slot::Live(_))));
        let last = slots.last;
        let oldest = last + 1 - QUARANTINE as u32;
        assert!(matches!(slots.at(address(last)), Some(Slot::Freed { .. })));
        assert!(matches!(slots.at(address(oldest)), Some(Slot::Freed { .. })));
        assert!(matches!(slots.at(address(oldest - 1)), Some(Slot::FreedEarlier)));
        assert!(slots.at(address(last + 1)).is_none());
        assert!(slots.at(0).is_none() && slots.at(1 << 63).is_none());
    }

    #[test]
    fn numbers_come_again_after_all_others() {
        let mut slots = Slots::default();
        let (kept, freed) = (allocate(&mut slots).unwrap(), allocate(&mut slots).unwrap());
        assert!(slots.free(freed));
        assert_eq!((kept, freed), (1, 2));
        slots.last = NUMBERS - 2;
        assert_eq!(allocate(&mut slots), Some(NUMBERS - 1));
        // 1 is in use, and 2 in quarantine.
        assert_eq!(allocate(&mut slots), Some(3));
        assert!(matches!(slots.at(address(1)), Some(Slot::Live(_))));
        assert!(matches!(slots.at(address(2)), Some(Slot::Freed { .. })));
        assert!(matches!(slots.at(address(77)), Some(Slot::FreedEarlier)));
    }
}
