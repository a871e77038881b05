//! Host memory that a device copies from and to at the full speed of its link.

use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::backend::HostMemory;
use crate::device::Device;
use crate::error::Result;

/// Host memory of a fixed size: page-locked for a GPU, which copies it without a detour through the driver's own
/// staging memory; ordinary memory for the emulator.
///
/// It is a slice of bytes, zero at first. Page-locked memory cannot be swapped out and takes long to allocate: keep few
/// buffers and use them again.
pub struct HostBuffer(HostMemory);

impl HostBuffer {
    pub(crate) fn allocate(device: &Device, bytes: usize) -> Result<Self> {
        device.backend().allocate_host(bytes).map(Self)
    }

    /// Ordinary memory, for code that also runs without a device.
    pub fn pageable(bytes: usize) -> Self {
        Self(HostMemory::Pageable(vec![0; bytes].into_boxed_slice()))
    }

    /// Whether a GPU copies it without a detour.
    pub const fn is_pinned(&self) -> bool {
        matches!(self.0, HostMemory::Pinned(_))
    }
}

impl Deref for HostBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            HostMemory::Pageable(bytes) => bytes,
            HostMemory::Pinned(memory) => memory.bytes(),
        }
    }
}

impl DerefMut for HostBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            HostMemory::Pageable(bytes) => bytes,
            HostMemory::Pinned(memory) => memory.bytes_mut(),
        }
    }
}

impl fmt::Debug for HostBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_pinned() { "pinned" } else { "pageable" };
        write!(f, "HostBuffer({} bytes, {kind})", self.len())
    }
}
