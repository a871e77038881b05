//! Loads, stores, atomics and the stack.

use warpwright_ptx::{AtomOp, Ordering, ScalarType, StateSpace};

use super::layout::Slot;

/// A load or store.
#[derive(Debug)]
pub(crate) struct Access {
    pub(crate) space: StateSpace,
    /// Bytes of one element: 1, 2, 4 or 8.
    pub(crate) bytes: u32,
    /// Whether loads sign-extend.
    pub(crate) sign: bool,
    /// Destinations (`None`: `_`) or sources, one per element.
    pub(crate) regs: Vec<Option<Slot>>,
    /// The bits that the 32-bit rows of destinations hold.
    pub(crate) keep: u32,
    /// Row of addresses.
    pub(crate) addr: Slot,
    pub(crate) offset: i64,
    pub(crate) ordering: Ordering,
    /// Number of the memory instruction.
    pub(crate) site: u32,
    /// Where it may be one to local memory whose values are followed: the tracked registers among `regs`.
    pub(crate) tracked: Option<Vec<Option<u32>>>,
}

impl Access {
    /// Bytes of all elements, which is also the alignment.
    pub(crate) fn total(&self) -> u32 {
        self.bytes * self.regs.len() as u32
    }

    /// The registers of the elements, each with its offset in bytes.
    #[inline(always)]
    pub(crate) fn elements(&self) -> Elements<'_> {
        Elements { regs: self.regs.iter(), at: 0, bytes: u64::from(self.bytes) }
    }
}

/// [`Access::elements`]; adapters of the standard library are not inlined into every loop over it.
pub(crate) struct Elements<'a> {
    regs: std::slice::Iter<'a, Option<Slot>>,
    at: u64,
    bytes: u64,
}

impl Iterator for Elements<'_> {
    type Item = (u64, Slot);

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let slot = *self.regs.next()?;
            let at = self.at;
            self.at += self.bytes;
            if let Some(slot) = slot {
                return Some((at, slot));
            }
        }
    }
}

/// An `atom` or `red`.
#[derive(Debug)]
pub(crate) struct Atomic {
    pub(crate) op: AtomOp,
    pub(crate) space: StateSpace,
    pub(crate) ty: ScalarType,
    pub(crate) ordering: Ordering,
    pub(crate) dst: Option<Slot>,
    pub(crate) addr: Slot,
    pub(crate) offset: i64,
    pub(crate) b: Slot,
    pub(crate) c: Option<Slot>,
    /// Destinations and sources of the elements of a vector behind the first, one after the other in memory.
    pub(crate) more: Vec<(Option<Slot>, Slot)>,
    pub(crate) site: u32,
}

impl Atomic {
    /// Bytes of all elements, which is also the alignment.
    pub(crate) fn total(&self) -> u32 {
        self.ty.bytes() * (1 + self.more.len() as u32)
    }
}

/// An instruction that moves the end of a thread's stack.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stack {
    Alloca { dst: Slot, bytes: Slot, align: u32 },
    Save { dst: Slot },
    Restore { src: Slot },
}
