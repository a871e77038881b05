//! Streams and events.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering as AtomicOrdering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use warpwright_emu::Interrupt;
use warpwright_ptx::ArgValue;

use crate::backend::{Backend, EventHandle, Pattern, StreamHandle};
use crate::buffer::{Buffer, Memory};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::graph::Graph;
use crate::launch::{Binding, LaunchStep, LoadedKernel};
use crate::operation::OperationName;
use crate::recording;

/// The stream itself, without its device, so that a device can hold its own.
pub(crate) struct StreamShared {
    backend: Arc<dyn Backend>,
    /// Taken by the destructor.
    handle: Option<StreamHandle>,
    /// Whether the destructor destroys the stream; not if it was made elsewhere.
    owned: bool,
    /// Unique in the process, unlike handles, which the driver uses again.
    id: u64,
    capturing: AtomicBool,
    captured: Mutex<Captured>,
}

/// Kernels and memory that the work of a capture uses, and its graph keeps.
#[derive(Default)]
pub(crate) struct Captured {
    pub(crate) kernels: Vec<LoadedKernel>,
    pub(crate) memories: Vec<Arc<Memory>>,
    /// Memory that the work has allocated; it is in no other list.
    pub(crate) allocated: Vec<Arc<Memory>>,
}

impl StreamShared {
    pub(crate) fn create(backend: &Arc<dyn Backend>) -> Result<Self> {
        Ok(Self::new(backend, backend.create_stream()?, true))
    }

    pub(crate) fn new(backend: &Arc<dyn Backend>, handle: StreamHandle, owned: bool) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            backend: backend.clone(),
            handle: Some(handle),
            owned,
            id: NEXT.fetch_add(1, AtomicOrdering::Relaxed),
            capturing: AtomicBool::new(false),
            captured: Mutex::default(),
        }
    }
}

impl Drop for StreamShared {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take().filter(|_| self.owned) {
            self.backend.destroy_stream(handle);
        }
    }
}

/// An ordered queue of work on a device. Clones are the same stream; streams do not wait for one another.
#[derive(Clone)]
pub struct Stream {
    device: Device,
    shared: Arc<StreamShared>,
}

impl Stream {
    pub(crate) fn over(device: Device, shared: Arc<StreamShared>) -> Self {
        Self { device, shared }
    }

    pub(crate) fn handle(&self) -> &StreamHandle {
        match &self.shared.handle {
            Some(handle) => handle,
            None => unreachable!("only the destructor takes the handle"),
        }
    }

    /// Where it runs.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Lets another thread end the launches on this stream of an emulator: once `interrupt` is raised, a launch that runs
    /// ends within a fraction of a second, and later ones end at once, with [`Error::Emulator`]. `None` leaves the stream with
    /// that of [`EmulatorConfig::interrupt`](crate::EmulatorConfig::interrupt). Kernels on a GPU cannot be interrupted, and
    /// there this does nothing.
    pub fn set_interrupt(&self, interrupt: Option<Interrupt>) {
        self.device.backend().set_interrupt(self.handle(), interrupt);
    }

    /// Waits for everything that was enqueued.
    ///
    /// # Errors
    /// [`Error::Fault`] if a kernel failed on the GPU.
    pub fn synchronize(&self) -> Result<()> {
        self.forbid_capture("Stream::synchronize")?;
        self.device.backend().synchronize(self.handle())
    }

    /// Whether everything that was enqueued has finished, without waiting.
    ///
    /// # Errors
    /// [`Error::Fault`] if a kernel failed on the GPU.
    pub fn is_idle(&self) -> Result<bool> {
        self.forbid_capture("Stream::is_idle")?;
        self.device.backend().is_idle(self.handle())
    }

    /// Whether a capture is in progress.
    pub fn is_capturing(&self) -> bool {
        self.shared.capturing.load(AtomicOrdering::Acquire)
    }

    pub(crate) fn forbid_capture(&self, call: &'static str) -> Result<()> {
        if self.is_capturing() { Err(Error::Capturing { call }) } else { Ok(()) }
    }

    /// Tells streams apart; clones have the same number.
    pub(crate) fn id(&self) -> u64 {
        self.shared.id
    }

    fn captured(&self) -> MutexGuard<'_, Captured> {
        self.shared.captured.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn remember(&self, kernel: &LoadedKernel) {
        if self.is_capturing() {
            self.captured().kernels.push(kernel.clone());
        }
    }

    /// Keeps memory for the graph of the capture in progress.
    pub(crate) fn keep(&self, memory: &Arc<Memory>) {
        let mut captured = self.captured();
        if !captured.allocated.iter().any(|own| Arc::ptr_eq(own, memory)) {
            captured.memories.push(memory.clone());
        }
    }

    /// Enqueues one step of a plan; slot `i` of its arguments is `bindings[i]`.
    ///
    /// The first launch of a step on a device loads its kernel and checks grid, block, shared memory and argument types;
    /// later ones fill in the addresses and enqueue. On the emulator the launch has run when this returns. A grid with a
    /// dimension of 0 launches nothing.
    ///
    /// # Errors
    /// [`Error::Launch`], [`Error::Arguments`], [`Error::WrongDevice`]; those of [`Device::load`]; on the emulator also
    /// [`Error::Sanitizer`] and [`Error::Emulator`].
    pub fn launch(&self, step: &LaunchStep, bindings: &[Binding<'_>]) -> Result<()> {
        step.on(&self.device, |prepared| prepared.enqueue(self, bindings))?;
        recording::launched(step, bindings, None);
        Ok(())
    }

    /// Enqueues the steps of one operation in order, under its name in logs and profiles.
    ///
    /// # Errors
    /// As [`launch`](Self::launch); the steps before the one that failed have been enqueued.
    pub fn launch_operation(
        &self,
        name: OperationName,
        steps: &[LaunchStep],
        bindings: &[Binding<'_>],
    ) -> Result<()> {
        let _shown = name.enter();
        for step in steps {
            step.on(&self.device, |prepared| prepared.enqueue(self, bindings))?;
            recording::launched(step, bindings, Some(name));
        }
        Ok(())
    }

    /// Enqueues a kernel with arguments made on the spot. [`ArgValue::Slot`] refers to `bindings`.
    ///
    /// # Errors
    /// As [`Stream::launch`].
    pub fn launch_kernel(
        &self,
        kernel: &LoadedKernel,
        grid: [u32; 3],
        dynamic_shared: u32,
        args: &[ArgValue],
        bindings: &[Binding<'_>],
    ) -> Result<()> {
        recording::not_recorded();
        kernel.prepare(&self.device, grid, None, dynamic_shared, false, args)?.enqueue(self, bindings)
    }

    /// `bytes` of uninitialized memory whose allocation and release are ordered on this stream; both cost little. While the stream is
    /// captured the memory is the graph's: see [`Stream::capture`].
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn alloc(&self, bytes: u64) -> Result<Buffer> {
        if self.is_capturing() {
            return self.alloc_captured(bytes);
        }
        Buffer::allocate(self.device.clone(), bytes, "buffer", Some(self.clone()))
    }

    /// Memory that the graph of the capture in progress keeps. What was dropped since is given out again: the work of a graph on one
    /// stream runs in order.
    fn alloc_captured(&self, bytes: u64) -> Result<Buffer> {
        recording::not_recorded();
        let dropped = |memory: &&Arc<Memory>| Arc::strong_count(memory) == 1 && memory.bytes() == bytes;
        if let Some(memory) = self.captured().allocated.iter().find(dropped) {
            return Ok(Buffer::over(memory.clone()));
        }
        let buffer = Buffer::allocate(self.device.clone(), bytes, "buffer of a graph", None)?;
        self.captured().allocated.push(buffer.memory().clone());
        Ok(buffer)
    }

    /// Copies `source` to the buffer's bytes from `offset`, in stream order, and returns when `source` may be reused.
    ///
    /// # Errors
    /// [`Error::Bounds`], [`Error::WrongDevice`], [`Error::Capturing`].
    pub fn copy_to_device(&self, target: &mut Buffer, offset: u64, source: &[u8]) -> Result<()> {
        recording::not_recorded();
        self.forbid_capture("Stream::copy_to_device")?;
        self.same_device("Stream::copy_to_device", "target", target.device())?;
        let address = target.range("Stream::copy_to_device", offset, source.len() as u64)?;
        if source.is_empty() {
            return Ok(());
        }
        self.device.backend().copy_to_device(self.handle(), address, source)?;
        target.memory().used_on(self);
        Ok(())
    }

    /// Copies the buffer's bytes from `offset` to `target`, in stream order, and returns when they are there.
    ///
    /// # Errors
    /// [`Error::Bounds`], [`Error::WrongDevice`], [`Error::Capturing`], [`Error::Fault`].
    pub fn copy_to_host(&self, target: &mut [u8], source: &Buffer, offset: u64) -> Result<()> {
        recording::not_recorded();
        self.forbid_capture("Stream::copy_to_host")?;
        self.same_device("Stream::copy_to_host", "source", source.device())?;
        let address = source.range("Stream::copy_to_host", offset, target.len() as u64)?;
        if target.is_empty() {
            return Ok(());
        }
        self.device.backend().copy_to_host(self.handle(), target, address)
    }

    /// Enqueues a copy of `bytes` bytes between buffers of this device.
    ///
    /// # Errors
    /// [`Error::Bounds`], [`Error::WrongDevice`].
    pub fn copy(
        &self,
        target: &mut Buffer,
        target_offset: u64,
        source: &Buffer,
        source_offset: u64,
        bytes: u64,
    ) -> Result<()> {
        const OP: &str = "Stream::copy";
        recording::not_recorded();
        self.same_device(OP, "target", target.device())?;
        self.same_device(OP, "source", source.device())?;
        let to = target.range(OP, target_offset, bytes)?;
        let from = source.range(OP, source_offset, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        self.device.backend().copy_on_device(self.handle(), to, from, bytes)?;
        target.memory().used_on(self);
        source.memory().used_on(self);
        Ok(())
    }

    /// Enqueues setting `bytes` bytes from `offset` to `value`.
    ///
    /// # Errors
    /// [`Error::Bounds`], [`Error::WrongDevice`].
    pub fn fill(&self, target: &mut Buffer, offset: u64, value: u8, bytes: u64) -> Result<()> {
        self.same_device("Stream::fill", "target", target.device())?;
        let address = target.range("Stream::fill", offset, bytes)?;
        self.fill_raw(address, Pattern::Byte(value), bytes)?;
        target.memory().used_on(self);
        Ok(())
    }

    /// Enqueues writing `count` times `pattern`.
    pub(crate) fn fill_raw(&self, address: u64, pattern: Pattern, count: u64) -> Result<()> {
        recording::not_recorded();
        if count == 0 {
            return Ok(());
        }
        self.device.backend().fill(self.handle(), address, pattern, count)
    }

    /// Records an event after everything enqueued so far.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn record(&self) -> Result<Event> {
        let event = Event::new(&self.device)?;
        event.record(self)?;
        Ok(event)
    }

    /// Makes later work on this stream wait for `event`, which may be of another stream of this device.
    ///
    /// # Errors
    /// [`Error::WrongDevice`].
    pub fn wait(&self, event: &Event) -> Result<()> {
        recording::not_recorded();
        self.same_device("Stream::wait", "event", &event.device)?;
        self.device.backend().wait_event(self.handle(), event.handle())
    }

    /// Records what `work` enqueues on this stream as a graph, without running it.
    ///
    /// `work` must only enqueue on this stream: a host copy or a wait inside it is an error. Load the
    /// kernels beforehand ([`LaunchStep::warm_up`]) unless the time of the first capture does not matter. The graph keeps
    /// the kernels loaded and the memory of tensors and buffers allocated, so that they may be dropped; what was written
    /// to them before a launch of the graph is what it reads.
    ///
    /// Memory that `work` allocates on this stream belongs to the graph, which has the same addresses in every launch: a tensor that is
    /// still there after the capture holds what the last launch has written, and the memory of one that was dropped serves later
    /// allocations of the same size in `work`.
    ///
    /// `work` returns any error that an [`Error`] can become, such as that of a library on top of this one.
    ///
    /// # Errors
    /// The error of `work`, after the capture was abandoned; [`Error::Capturing`] if one is in progress.
    pub fn capture<E: From<Error>>(
        &self,
        work: impl FnOnce(&Self) -> std::result::Result<(), E>,
    ) -> std::result::Result<Graph, E> {
        if self.shared.capturing.swap(true, AtomicOrdering::AcqRel) {
            return Err(Error::Capturing { call: "Stream::capture" }.into());
        }
        // Ends the capture also if `work` panics.
        let mut capture = Capture { stream: self, active: false };
        self.device.backend().begin_capture(self.handle())?;
        capture.active = true;
        work(self)?;
        capture.active = false;
        let handle = self.device.backend().end_capture(self.handle(), true)?;
        match handle {
            Some(handle) => {
                let captured = std::mem::take(&mut *self.captured());
                Ok(Graph::new(self.device.clone(), handle, captured))
            }
            None => Err(Error::Capturing { call: "Stream::capture" }.into()),
        }
    }

    pub(crate) fn same_device(&self, op: &'static str, argument: &'static str, got: &Device) -> Result<()> {
        if *got == self.device {
            return Ok(());
        }
        Err(Error::WrongDevice { op, argument, expected: self.device.id(), got: got.id() })
    }
}

struct Capture<'a> {
    stream: &'a Stream,
    active: bool,
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        if self.active {
            // The error of `work` is the one to report.
            let _ = self.stream.device.backend().end_capture(self.stream.handle(), false);
        }
        // Dropped when the lock is free: the end of memory may be work of this stream.
        let captured = std::mem::take(&mut *self.stream.captured());
        self.stream.shared.capturing.store(false, AtomicOrdering::Release);
        drop(captured);
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({:?} on {})", self.handle(), self.device.id())
    }
}

/// A point in a stream.
pub struct Event {
    device: Device,
    /// Taken by the destructor.
    handle: Option<EventHandle>,
}

impl Event {
    /// An event that is not recorded yet.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn new(device: &Device) -> Result<Self> {
        Ok(Self { device: device.clone(), handle: Some(device.backend().create_event()?) })
    }

    fn handle(&self) -> &EventHandle {
        match &self.handle {
            Some(handle) => handle,
            None => unreachable!("only the destructor takes the handle"),
        }
    }

    /// Moves the event to after everything enqueued on `stream` so far.
    ///
    /// # Errors
    /// [`Error::WrongDevice`]; those of the driver.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        recording::not_recorded();
        stream.same_device("Event::record", "event", &self.device)?;
        self.device.backend().record_event(self.handle(), stream.handle())
    }

    /// Waits until the event is reached.
    ///
    /// # Errors
    /// [`Error::Fault`] if a kernel failed.
    pub fn synchronize(&self) -> Result<()> {
        self.device.backend().synchronize_event(self.handle())
    }

    /// Microseconds of device time from this event to `end`, waiting for both. `None` on the emulator, whose time says
    /// nothing about a GPU.
    ///
    /// # Errors
    /// [`Error::WrongDevice`]; [`Error::Fault`]; a driver error if one of them was never recorded.
    pub fn elapsed_us(&self, end: &Self) -> Result<Option<f64>> {
        if end.device != self.device {
            return Err(Error::WrongDevice {
                op: "Event::elapsed_us",
                argument: "end",
                expected: self.device.id(),
                got: end.device.id(),
            });
        }
        self.synchronize()?;
        end.synchronize()?;
        self.device.backend().elapsed_us(self.handle(), end.handle())
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take() {
            self.device.backend().destroy_event(handle);
        }
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event({:?} on {})", self.handle(), self.device.id())
    }
}
