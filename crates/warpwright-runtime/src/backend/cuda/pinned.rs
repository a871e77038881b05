//! Page-locked host memory.

use std::ptr::NonNull;
use std::slice;

use super::driver::{self, Outcome};
use super::make_current;

/// Page-locked host memory of the driver, freed when dropped.
#[derive(Debug)]
pub(crate) struct PinnedMemory {
    start: NonNull<u8>,
    bytes: usize,
    context: u64,
}

// SAFETY: the memory is owned like that of a `Box<[u8]>`, and the driver frees it from any thread.
unsafe impl Send for PinnedMemory {}
// SAFETY: a shared reference only reads.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    /// Zeroed memory; the context is current. `bytes` is not 0.
    pub(super) fn allocate(context: u64, bytes: usize) -> Outcome<Option<Self>> {
        let address = driver::allocate_host(bytes)?;
        Ok(NonNull::new(address.cast::<u8>()).map(|start| {
            // SAFETY: the driver has just returned `bytes` bytes of memory there, which nobody else knows of.
            unsafe { start.as_ptr().write_bytes(0, bytes) };
            Self { start, bytes, context }
        }))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the allocation has this size, was written when it was made, and lives as long as `self`; copies of the device
        // that read or write it have ended before the call that was given the slice returned.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; the exclusive borrow of `self` is that of the memory.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        // A destructor has nobody to tell of an error; after a fault of the device the memory stays until the process ends.
        if let Ok(_current) = make_current(self.context) {
            let _ = driver::free_host(self.start.as_ptr().cast());
        }
    }
}
