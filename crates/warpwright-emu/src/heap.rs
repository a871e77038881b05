//! Memory that kernels got from `malloc`: it lives until it is freed, by any launch.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Memory that a kernel allocated and did not free.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct HeapBlock {
    /// Linear index of the block of threads.
    pub block: u64,
    /// Linear index of the thread that called `malloc`.
    pub thread: u32,
    /// Line of the PTX text.
    pub line: u32,
    /// Its size.
    pub bytes: u64,
}

/// The live allocations of all launches.
#[derive(Debug, Default)]
pub(crate) struct Heap {
    /// By address, with the launch.
    live: Mutex<BTreeMap<u64, (u64, HeapBlock)>>,
    launches: AtomicU64,
}

impl Heap {
    fn live(&self) -> MutexGuard<'_, BTreeMap<u64, (u64, HeapBlock)>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number for a launch.
    pub(crate) fn begin(&self) -> u64 {
        self.launches.fetch_add(1, Relaxed)
    }

    pub(crate) fn allocated(&self, address: u64, launch: u64, block: HeapBlock) {
        self.live().insert(address, (launch, block));
    }

    /// Whether `address` was live until now.
    pub(crate) fn freed(&self, address: u64) -> bool {
        self.live().remove(&address).is_some()
    }

    /// Blocks that a launch allocated and nobody freed.
    pub(crate) fn unfreed(&self, launch: u64) -> Vec<HeapBlock> {
        let live = self.live();
        let mut blocks: Vec<HeapBlock> =
            live.values().filter(|(l, _)| *l == launch).map(|(_, b)| b.clone()).collect();
        blocks.sort();
        blocks
    }
}
