//! The backends, behind one object-safe trait in the shape of a driver API.
//!
//! Objects of a backend (streams, events, functions, graphs) are opaque numbers that only the backend makes. The public
//! types own one each beside their [`Device`](crate::Device), use it with that device only, and give it back once.

pub(crate) mod cuda;
pub(crate) mod emulator;

use std::fmt;
use std::sync::Arc;

use warpwright_emu::{Counters, Finding, Interrupt};
use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::tensor_map::{TENSOR_MAP_BYTES, TensorMap};

use crate::cache::DiskCache;
use crate::device::{DeviceId, MemoryInfo, Properties};
use crate::element::Element;
use crate::error::{Error, Result};
use crate::launch::KernelInfo;

macro_rules! handles {
    ($($(#[$meta:meta])* $name:ident),* $(,)?) => {
        $(
            $(#[$meta])*
            #[derive(Debug, PartialEq, Eq, Hash)]
            pub(crate) struct $name(pub(in crate::backend) u64);
        )*
    };
}

handles! {
    /// A queue of work.
    StreamHandle,
    /// A point in a queue.
    EventHandle,
    /// A loaded kernel.
    FunctionHandle,
    /// An instantiated graph.
    GraphHandle,
}

/// A loaded kernel and what is known about it.
#[derive(Debug)]
pub(crate) struct LoadedFunction {
    pub(crate) handle: FunctionHandle,
    pub(crate) info: KernelInfo,
    /// Whether the code came from the cubin cache on disk.
    pub(crate) from_disk: bool,
}

/// A launch with everything checked and laid out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawLaunch<'a> {
    pub(crate) name: &'a Arc<str>,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) cluster: [u32; 3],
    pub(crate) dynamic_shared: u32,
    /// Whether all blocks must be resident together.
    pub(crate) cooperative: bool,
    /// Whether it may begin before the launch in front of it has ended: its kernel waits for that itself.
    pub(crate) overlaps: bool,
    /// The parameter buffer, 16-byte aligned.
    pub(crate) params: &'a [u8],
    /// Where each parameter begins in the buffer, for cooperative launches, and for kernels that take tensor maps: their
    /// alignment of 64 bytes is more than the CUDA driver takes in one buffer.
    pub(crate) offsets: Option<&'a [u64]>,
}

/// Host memory of a backend.
#[derive(Debug)]
pub(crate) enum HostMemory {
    /// Of this process alone.
    Pageable(Box<[u8]>),
    /// Page-locked by the CUDA driver.
    Pinned(cuda::PinnedMemory),
}

/// An element that memory is filled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    Byte(u8),
    Half(u16),
    Word(u32),
    Double(u64),
}

impl Pattern {
    /// The bytes of one element, of 1, 2, 4 or 8.
    pub(crate) fn of<T: Element>(value: &T) -> Self {
        match *bytemuck::bytes_of(value) {
            [a, b] => Self::Half(u16::from_ne_bytes([a, b])),
            [a, b, c, d] => Self::Word(u32::from_ne_bytes([a, b, c, d])),
            [a, b, c, d, e, f, g, h] => Self::Double(u64::from_ne_bytes([a, b, c, d, e, f, g, h])),
            ref bytes => Self::Byte(bytes.first().copied().unwrap_or(0)),
        }
    }
}

/// How memory is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ordering<'a> {
    /// At once, after everything that runs on the device.
    Device,
    /// After what has been enqueued on this stream.
    Stream(&'a StreamHandle),
}

/// A driver. Addresses are device addresses; callers have checked ranges against the allocations they own.
pub(crate) trait Backend: Send + Sync + fmt::Debug {
    fn properties(&self) -> &Properties;
    fn memory_info(&self) -> Result<MemoryInfo>;

    fn allocate(&self, bytes: u64, label: &str, order: Ordering<'_>) -> Result<u64>;
    /// Errors are dropped: the caller is a destructor.
    fn free(&self, address: u64, order: Ordering<'_>);

    /// Host memory of zeros that copies of this device go through fastest.
    fn allocate_host(&self, bytes: usize) -> Result<HostMemory> {
        let mut memory = Vec::new();
        memory.try_reserve_exact(bytes).map_err(|_| Error::OutOfHostMemory { requested: bytes as u64 })?;
        memory.resize(bytes, 0);
        Ok(HostMemory::Pageable(memory.into_boxed_slice()))
    }

    fn load(&self, kernel: &Kernel, disk: Option<&DiskCache>) -> Result<LoadedFunction>;
    fn unload(&self, function: FunctionHandle);
    /// Lets the function use this much dynamic shared memory.
    fn allow_dynamic_shared(&self, function: &FunctionHandle, bytes: u32) -> Result<()>;

    fn create_stream(&self) -> Result<StreamHandle>;
    fn destroy_stream(&self, stream: StreamHandle);
    /// Sets the interrupt that ends launches on this stream which run on the host.
    fn set_interrupt(&self, _stream: &StreamHandle, _interrupt: Option<Interrupt>) {}
    fn synchronize(&self, stream: &StreamHandle) -> Result<()>;
    fn synchronize_device(&self) -> Result<()>;
    /// Whether everything enqueued has finished.
    fn is_idle(&self, stream: &StreamHandle) -> Result<bool>;
    fn launch(&self, stream: &StreamHandle, function: &FunctionHandle, launch: RawLaunch<'_>) -> Result<()>;

    /// The bytes of a tensor map as kernels of this device take it. The map follows the rules.
    fn encode_tensor_map(&self, map: &TensorMap) -> Result<[u8; TENSOR_MAP_BYTES]>;

    /// Returns when `source` may be reused.
    fn copy_to_device(&self, stream: &StreamHandle, target: u64, source: &[u8]) -> Result<()>;
    /// Returns when `target` is filled.
    fn copy_to_host(&self, stream: &StreamHandle, target: &mut [u8], source: u64) -> Result<()>;
    /// Enqueues.
    fn copy_on_device(&self, stream: &StreamHandle, target: u64, source: u64, bytes: u64) -> Result<()>;
    /// Enqueues writing `count` times `pattern`.
    fn fill(&self, stream: &StreamHandle, target: u64, pattern: Pattern, count: u64) -> Result<()>;

    fn create_event(&self) -> Result<EventHandle>;
    fn destroy_event(&self, event: EventHandle);
    fn record_event(&self, event: &EventHandle, stream: &StreamHandle) -> Result<()>;
    fn synchronize_event(&self, event: &EventHandle) -> Result<()>;
    /// Makes later work on `stream` wait for `event`.
    fn wait_event(&self, stream: &StreamHandle, event: &EventHandle) -> Result<()>;
    /// Microseconds of device time; `None` where there is no such clock.
    fn elapsed_us(&self, start: &EventHandle, end: &EventHandle) -> Result<Option<f64>>;

    fn begin_capture(&self, stream: &StreamHandle) -> Result<()>;
    /// Ends the capture, and drops what was captured if `keep` is false.
    fn end_capture(&self, stream: &StreamHandle, keep: bool) -> Result<Option<GraphHandle>>;
    fn launch_graph(&self, graph: &GraphHandle, stream: &StreamHandle) -> Result<()>;
    fn graph_nodes(&self, graph: &GraphHandle) -> usize;
    fn destroy_graph(&self, graph: GraphHandle);

    /// Findings of the sanitizers since the last call.
    fn take_findings(&self) -> Vec<Finding> {
        Vec::new()
    }

    /// Counters summed over all launches since the last call.
    fn take_counters(&self) -> Option<Counters> {
        None
    }

    /// The raw stream, context and device of the CUDA driver.
    fn raw_stream(&self, _stream: &StreamHandle) -> Option<u64> {
        None
    }

    /// Takes over a stream made elsewhere, without owning it.
    fn adopt_stream(&self, _raw: u64) -> Option<StreamHandle> {
        None
    }

    /// The device whose context a stream made elsewhere belongs to.
    fn device_of_stream(&self, _raw: u64) -> Result<DeviceId> {
        Err(Error::NotSupported { what: "a raw CUDA stream", device: self.properties().id })
    }

    /// The raw function of the CUDA driver.
    fn raw_function(&self, _function: &FunctionHandle) -> Option<u64> {
        None
    }

    /// The raw context of the CUDA driver.
    fn raw_context(&self) -> Option<u64> {
        None
    }
}
