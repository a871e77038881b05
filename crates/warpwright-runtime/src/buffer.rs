//! Untyped device memory.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::backend::Ordering;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::launch::Binding;
use crate::recording;
use crate::stream::{Event, Stream};

/// Device memory, freed when it is dropped and nothing uses it any more.
///
/// Memory from [`Device::alloc`] waits for the device before it is freed, so that work that is still running may use
/// it. Memory from [`Stream::alloc`] is freed in the order of that stream, after what other streams were given that uses it. A
/// [`Graph`](crate::Graph) keeps the memory that its work uses.
pub struct Buffer(Arc<Memory>);

/// The memory that a buffer owns. Launches look at it to keep it until they have run.
pub(crate) struct Memory {
    device: Device,
    address: u64,
    bytes: u64,
    /// The stream in whose order it is freed; `None` waits for all.
    stream: Option<Stream>,
    /// Other streams that have used it, by [`Stream::id`], and their last use.
    others: Mutex<Vec<(u64, Event)>>,
}

impl Memory {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Notes work on `stream` that was just enqueued and uses this: a graph that is being captured keeps it, and it is not
    /// freed before other streams have done that work.
    pub(crate) fn used_on(self: &Arc<Self>, stream: &Stream) {
        if stream.is_capturing() {
            stream.keep(self);
        } else {
            self.run_on(stream);
        }
    }

    /// Notes work on `stream` that runs.
    pub(crate) fn run_on(&self, stream: &Stream) {
        let Some(own) = &self.stream else { return };
        if own.id() == stream.id() || self.device.is_emulator() {
            return;
        }
        let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        let recorded = match others.iter().find(|(id, _)| *id == stream.id()) {
            Some((_, last)) => last.record(stream),
            None => stream.record().map(|event| others.push((stream.id(), event))),
        };
        // Without an event there is no later point to wait for: this is one.
        if recorded.is_err() {
            let _ = stream.synchronize();
        }
    }
}

impl Buffer {
    pub(crate) fn allocate(device: Device, bytes: u64, label: &str, stream: Option<Stream>) -> Result<Self> {
        recording::not_recorded();
        // No backend has empty allocations; address 0 is never read because there is nothing to read.
        let address = match (bytes, &stream) {
            (0, _) => 0,
            (_, None) => device.allocate_raw(bytes, label, Ordering::Device)?,
            (_, Some(s)) => device.allocate_raw(bytes, label, Ordering::Stream(s.handle()))?,
        };
        Ok(Self(Arc::new(Memory { device, address, bytes, stream, others: Mutex::default() })))
    }

    /// A further owner of memory.
    pub(crate) fn over(memory: Arc<Memory>) -> Self {
        Self(memory)
    }

    /// Where it is.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// Its device address; 0 if it is empty.
    pub fn address(&self) -> u64 {
        self.0.address
    }

    /// The argument of a launch for it.
    pub fn binding(&self) -> Binding<'_> {
        Binding::new(&self.0.device, self.0.address, Some(&self.0))
    }

    /// The part that a launch keeps.
    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.0
    }

    /// The address of `bytes` bytes from `offset`.
    pub(crate) fn range(&self, op: &'static str, offset: u64, bytes: u64) -> Result<u64> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes() => Ok(self.address() + offset),
            end => Err(Error::Bounds {
                op,
                argument: "buffer",
                needed: end.unwrap_or(u64::MAX),
                available: self.bytes(),
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
        self.device().backend().copy_to_device(stream.handle(), target, source)
    }

    /// Waits for everything on the device, then copies the bytes from `offset` to `target`.
    ///
    /// # Errors
    /// [`Error::Bounds`] past the end; [`Error::Fault`] if a kernel failed.
    pub fn read(&self, offset: u64, target: &mut [u8]) -> Result<()> {
        let source = self.range("Buffer::read", offset, target.len() as u64)?;
        self.device().synchronize()?;
        if target.is_empty() {
            return Ok(());
        }
        let stream = self.own_stream()?;
        stream.forbid_capture("Buffer::read")?;
        self.device().backend().copy_to_host(stream.handle(), target, source)
    }

    /// The stream whose order the memory follows, else the device's.
    fn own_stream(&self) -> Result<Stream> {
        self.0.stream.as_ref().map_or_else(|| self.device().stream(), |s| Ok(s.clone()))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.address != 0 {
            let others = self.others.get_mut().unwrap_or_else(PoisonError::into_inner);
            if let Some(own) = &self.stream {
                for (_, last) in others.iter() {
                    if own.wait(last).is_err() {
                        let _ = last.synchronize();
                    }
                }
            }
            let order = self.stream.as_ref().map_or(Ordering::Device, |s| Ordering::Stream(s.handle()));
            self.device.backend().free(self.address, order);
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes at {:#x} on {})", self.bytes(), self.address(), self.device().id())
    }
}
