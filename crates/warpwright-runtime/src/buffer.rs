//! Untyped device memory.

use std::fmt;

use crate::backend::Ordering;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::launch::Binding;
use crate::stream::Stream;

/// Device memory, freed when dropped.
///
/// Memory from [`Device::alloc`] waits for the device before it is freed, so that work that is still running may use
/// it. Memory from [`Stream::alloc`] is freed in the order of that stream: work on another stream that uses it must have
/// been ordered before, by an [`Event`](crate::Event).
pub struct Buffer {
    device: Device,
    address: u64,
    bytes: u64,
    stream: Option<Stream>,
}

impl Buffer {
    pub(crate) fn allocate(device: Device, bytes: u64, label: &str, stream: Option<Stream>) -> Result<Self> {
        // No backend has empty allocations; address 0 is never read because there is nothing to read.
        let address = match (bytes, &stream) {
            (0, _) => 0,
            (_, None) => device.allocate_raw(bytes, label, Ordering::Device)?,
            (_, Some(s)) => device.allocate_raw(bytes, label, Ordering::Stream(s.handle()))?,
        };
        Ok(Self { device, address, bytes, stream })
    }

    /// Where it is.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Its device address; 0 if it is empty.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// What a launch takes.
    pub fn binding(&self) -> Binding {
        Binding::new(&self.device, self.address)
    }

    /// The address of `bytes` bytes from `offset`.
    pub(crate) fn range(&self, op: &'static str, offset: u64, bytes: u64) -> Result<u64> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(self.address + offset),
            end => Err(Error::Bounds {
                op,
                argument: "buffer",
                needed: end.unwrap_or(u64::MAX),
                available: self.bytes,
            }),
        }
    }

    /// Copies `source` to the bytes from `offset` and returns when they are there. The caller sees to it that no work in
    /// flight uses those bytes.
    ///
    /// # Errors
    /// [`Error::Bounds`] past the end; those of the driver.
    pub fn write(&mut self, offset: u64, source: &[u8]) -> Result<()> {
        let target = self.range("Buffer::write", offset, source.len() as u64)?;
        if source.is_empty() {
            return Ok(());
        }
        let stream = self.own_stream()?;
        stream.forbid_capture("Buffer::write")?;
        self.device.backend().copy_to_device(stream.handle(), target, source)
    }

    /// Waits for everything on the device, then copies the bytes from `offset` to `target`.
    ///
    /// # Errors
    /// [`Error::Bounds`] past the end; [`Error::Fault`] if a kernel failed.
    pub fn read(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        let source = self.range("Buffer::read", offset, target.len() as u64)?;
        self.device.synchronize()?;
        if target.is_empty() {
            return Ok(());
        }
        let stream = self.own_stream()?;
        stream.forbid_capture("Buffer::read")?;
        self.device.backend().copy_to_host(stream.handle(), target, source)
    }

    /// The stream whose order the memory follows, else the device's.
    fn own_stream(&self) -> Result<Stream> {
        self.stream.as_ref().map_or_else(|| self.device.stream(), |s| Ok(s.clone()))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.address != 0 {
            let order = self.stream.as_ref().map_or(Ordering::Device, |s| Ordering::Stream(s.handle()));
            self.device.backend().free(self.address, order);
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes at {:#x} on {})", self.bytes, self.address, self.device.id())
    }
}
