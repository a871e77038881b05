//! Devices: one handle over the CUDA driver or the emulator.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering as AtomicOrdering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use warpwright_emu::{Counters, Finding, Interrupt, Sanitizers};
use warpwright_ptx::Target;
use warpwright_ptx::kernel::Kernel;

use crate::backend::cuda::CudaBackend;
use crate::backend::emulator::EmulatorBackend;
use crate::backend::{Backend, Ordering};
use crate::buffer::Buffer;
use crate::cache::{CacheStatistics, DiskCache, DiskCacheStatus, KernelCache};
use crate::discover::{DriverVersion, discover};
use crate::error::{Error, Result};
use crate::host::HostBuffer;
use crate::launch::LoadedKernel;
use crate::stream::{Stream, StreamShared};

/// Which device: what [`Device::open`] takes and messages show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceId {
    /// A GPU by its number.
    Cuda(u32),
    /// An emulator; every one made in this process has its own number and its own memory.
    Emulator(u32),
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cuda(n) => write!(f, "cuda:{n}"),
            Self::Emulator(0) => f.write_str("emulator"),
            Self::Emulator(n) => write!(f, "emulator#{n}"),
        }
    }
}

/// Properties and limits of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Properties {
    /// Which device.
    pub id: DeviceId,
    /// Its name, such as `NVIDIA H200` or `emulator (sm_90)`.
    pub name: String,
    /// The most specific target that it runs: `sm_90a` on compute capability 9.0, `sm_86` on 8.6.
    pub target: Target,
    /// Streaming multiprocessors; those of the largest chip of the architecture on the emulator.
    pub multiprocessors: u32,
    /// Largest number of threads in a block.
    pub max_threads: u32,
    /// Largest block per dimension.
    pub max_block: [u32; 3],
    /// Largest grid per dimension.
    pub max_grid: [u32; 3],
    /// Shared memory that a block can have after opting in, static and dynamic together.
    pub max_shared: u32,
    /// Registers of a multiprocessor.
    pub registers: u32,
    /// Bytes of L2 cache.
    pub l2_bytes: u64,
    /// Bytes of memory.
    pub memory: u64,
    /// The driver, on CUDA.
    pub driver: Option<DriverVersion>,
}

/// Memory of a device at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Bytes free.
    pub free: u64,
    /// Bytes in all.
    pub total: u64,
}

/// Whether a launch fails if a sanitizer of the emulator finds a defect in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFinding {
    /// The launch returns [`Error::Sanitizer`]; the findings are in [`Device::findings`] as well.
    #[default]
    Fail,
    /// The launch succeeds; the findings are in [`Device::findings`].
    Collect,
}

/// How an emulated device behaves.
#[derive(Clone, Debug)]
pub struct EmulatorConfig {
    /// The architecture that it poses as.
    pub target: Target,
    /// The sanitizers that are on.
    pub sanitizers: Sanitizers,
    /// Whether to count instructions and memory traffic, for [`Device::counters`].
    pub counters: bool,
    /// Worker threads; 0 is one per core.
    pub threads: usize,
    /// Selects the order in which warps run.
    pub seed: u64,
    /// Findings after which a launch stops looking.
    pub max_findings: usize,
    /// Instructions of warps after which a launch is stopped; 0 is no limit.
    pub max_steps: u64,
    /// When launches have to be over.
    pub deadline: Option<Instant>,
    /// Ends launches from another thread, on streams that have no interrupt of their own; see
    /// [`Stream::set_interrupt`].
    pub interrupt: Option<Interrupt>,
    /// Bytes of device memory.
    pub memory: u64,
    /// Whether a defect fails the launch.
    pub on_finding: OnFinding,
}

impl Default for EmulatorConfig {
    fn default() -> Self {
        Self {
            target: Target::sm(90),
            sanitizers: Sanitizers::all(),
            counters: false,
            threads: 0,
            seed: 0,
            max_findings: 100,
            max_steps: 0,
            deadline: None,
            interrupt: None,
            memory: 16 << 30,
            on_finding: OnFinding::Fail,
        }
    }
}

/// A GPU or an emulator. Clones are the same device.
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    backend: Arc<dyn Backend>,
    /// Unique in the process; 0 is never used.
    index: u32,
    kernels: KernelCache,
    stream: OnceLock<Arc<StreamShared>>,
}

/// CUDA devices stay open for the life of the process: a context is expensive to make, and statics are never dropped, so
/// no call reaches the driver after it has shut down.
static CUDA_DEVICES: Mutex<Option<HashMap<(u32, u32), Device>>> = Mutex::new(None);
/// The level of optimization that the driver has by itself, and its highest.
const HIGHEST_LEVEL: u32 = 4;
static NEXT_INDEX: AtomicU32 = AtomicU32::new(1);
static NEXT_EMULATOR: AtomicU32 = AtomicU32::new(0);

impl Device {
    /// The first CUDA device if it can be used, else a new emulator. [`best_with_reason`](Self::best_with_reason) says why it
    /// is an emulator.
    pub fn best() -> Self {
        Self::best_with_reason().0
    }

    /// The first CUDA device if it can be used; else a new emulator, and what [`Device::cuda`] failed with. Without a
    /// driver that is [`Error::NoDriver`] with [`CudaUnavailable::NoLibrary`](crate::CudaUnavailable::NoLibrary); anything else is worth a word to the user, who has
    /// a driver and may expect that the GPU is used.
    pub fn best_with_reason() -> (Self, Option<Error>) {
        match Self::cuda(0) {
            Ok(device) => (device, None),
            Err(why) => (Self::emulator(), Some(why)),
        }
    }

    /// Opens a device by name: `auto`, `cuda`, `cuda:N`, `emulator` or `emulator:sm_XX`.
    ///
    /// # Errors
    /// [`Error::DeviceName`] for another name, and those of [`Device::cuda`].
    pub fn open(name: &str) -> Result<Self> {
        let unknown = || Error::DeviceName { name: name.to_owned() };
        match name.split_once(':') {
            None if name == "auto" => Ok(Self::best()),
            None if name == "cuda" => Self::cuda(0),
            None if name == "emulator" => Ok(Self::emulator()),
            Some(("cuda", ordinal)) => Self::cuda(ordinal.parse().map_err(|_| unknown())?),
            Some(("emulator", target)) => {
                let target = Target::from_name(target).ok_or_else(unknown)?;
                Ok(Self::emulator_with(EmulatorConfig { target, ..EmulatorConfig::default() }))
            }
            _ => Err(unknown()),
        }
    }

    /// GPU number `ordinal`, through its primary context, which other libraries in the process share.
    ///
    /// # Errors
    /// [`Error::NoDriver`] says why CUDA cannot be used, [`Error::NoSuchDevice`] how many devices there are.
    pub fn cuda(ordinal: u32) -> Result<Self> {
        Self::cuda_compiling(ordinal, HIGHEST_LEVEL)
    }

    /// The same GPU with kernels that the driver compiles at a level of optimization from 0 to 4, as its option
    /// `CU_JIT_OPTIMIZATION_LEVEL` counts them; above, at 4, which is what [`Device::cuda`] has. Below, nothing is kept on disk. This is
    /// for comparing what the driver's compiler makes of a kernel.
    ///
    /// # Errors
    /// Those of [`Device::cuda`].
    pub fn cuda_compiling(ordinal: u32, level: u32) -> Result<Self> {
        let level = level.min(HIGHEST_LEVEL);
        let mut devices = CUDA_DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
        let devices = devices.get_or_insert_default();
        if let Some(device) = devices.get(&(ordinal, level)) {
            return Ok(device.clone());
        }
        let found = discover();
        if let Some(why) = found.unavailable {
            return Err(Error::NoDriver(why));
        }
        if !found.devices.iter().any(|d| d.ordinal == ordinal) {
            let count = u32::try_from(found.devices.len()).unwrap_or(u32::MAX);
            return Err(Error::NoSuchDevice { ordinal, count });
        }
        let highest = level == HIGHEST_LEVEL;
        let disk = if highest { DiskCache::from_environment() } else { Err(DiskCacheStatus::Disabled) };
        let device = Self::over(Arc::new(CudaBackend::open(ordinal, level)?), disk);
        devices.insert((ordinal, level), device.clone());
        Ok(device)
    }

    /// A new emulator with every sanitizer on, which fails a launch that has a defect.
    pub fn emulator() -> Self {
        Self::emulator_with(EmulatorConfig::default())
    }

    /// A new emulator. It has its own memory: tensors of one emulator are not those of another.
    pub fn emulator_with(config: EmulatorConfig) -> Self {
        let number = NEXT_EMULATOR.fetch_add(1, AtomicOrdering::Relaxed);
        Self::over(Arc::new(EmulatorBackend::new(number, config)), Err(DiskCacheStatus::NotNeeded))
    }

    fn over(backend: Arc<dyn Backend>, disk: Result<DiskCache, DiskCacheStatus>) -> Self {
        let index = NEXT_INDEX.fetch_add(1, AtomicOrdering::Relaxed);
        Self(Arc::new(Inner { backend, index, kernels: KernelCache::new(disk), stream: OnceLock::new() }))
    }

    pub(crate) fn backend(&self) -> &Arc<dyn Backend> {
        &self.0.backend
    }

    pub(crate) fn index(&self) -> u32 {
        self.0.index
    }

    /// Which device this is.
    pub fn id(&self) -> DeviceId {
        self.properties().id
    }

    /// Its properties and limits.
    pub fn properties(&self) -> &Properties {
        self.0.backend.properties()
    }

    /// Its name, such as `NVIDIA H200` or `emulator (sm_90)`.
    pub fn name(&self) -> &str {
        &self.properties().name
    }

    /// Compute capability, 90 for 9.0.
    pub fn sm(&self) -> u32 {
        self.properties().target.sm
    }

    /// The most specific target that it runs; what plans are made for.
    pub fn target(&self) -> Target {
        self.properties().target
    }

    /// Whether it is an emulator.
    pub fn is_emulator(&self) -> bool {
        matches!(self.id(), DeviceId::Emulator(_))
    }

    /// Free and total memory.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn memory_info(&self) -> Result<MemoryInfo> {
        self.0.backend.memory_info()
    }

    /// The device's own stream: the same one on every call.
    ///
    /// # Errors
    /// Those of the driver, on the first call.
    pub fn stream(&self) -> Result<Stream> {
        if let Some(shared) = self.0.stream.get() {
            return Ok(Stream::over(self.clone(), shared.clone()));
        }
        let made = Arc::new(StreamShared::create(&self.0.backend)?);
        // Of two threads that come here at once, one drops the stream that it made.
        let shared = self.0.stream.get_or_init(|| made).clone();
        Ok(Stream::over(self.clone(), shared))
    }

    /// A new stream, which does not wait for any other, the legacy default stream included.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn new_stream(&self) -> Result<Stream> {
        Ok(Stream::over(self.clone(), Arc::new(StreamShared::create(&self.0.backend)?)))
    }

    /// Waits for everything on the device.
    ///
    /// # Errors
    /// [`Error::Fault`] if a kernel failed.
    pub fn synchronize(&self) -> Result<()> {
        self.0.backend.synchronize_device()
    }

    /// `bytes` of uninitialized memory, aligned to 256 bytes. Freeing it waits for the device; see
    /// [`Stream::alloc`] for memory whose allocation and release are ordered on a stream and cost little.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn alloc(&self, bytes: u64) -> Result<Buffer> {
        Buffer::allocate(self.clone(), bytes, "buffer", None)
    }

    /// The same with a name that emulator findings show.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn alloc_named(&self, bytes: u64, label: &str) -> Result<Buffer> {
        Buffer::allocate(self.clone(), bytes, label, None)
    }

    /// `bytes` of host memory, zero at first, that this device copies from and to fastest.
    ///
    /// # Errors
    /// [`Error::OutOfHostMemory`]; those of the driver.
    pub fn alloc_host(&self, bytes: usize) -> Result<HostBuffer> {
        HostBuffer::allocate(self, bytes)
    }

    pub(crate) fn allocate_raw(&self, bytes: u64, label: &str, order: Ordering<'_>) -> Result<u64> {
        self.0.backend.allocate(bytes, label, order)
    }

    /// The kernel in executable form: from the memory of this device's earlier loads, else from the cubin cache on
    /// disk, else compiled now.
    ///
    /// # Errors
    /// [`Error::Target`], [`Error::PtxTooNew`], [`Error::Jit`], [`Error::Load`].
    pub fn load(&self, kernel: &Kernel) -> Result<LoadedKernel> {
        if !kernel.target().runs_on(self.sm()) {
            return Err(Error::Target {
                kernel: kernel.name().to_owned(),
                needs: kernel.target(),
                device: self.id(),
                sm: self.sm(),
            });
        }
        self.0.kernels.load(&self.0.backend, kernel)
    }

    /// How often the kernel cache helped.
    pub fn cache_statistics(&self) -> CacheStatistics {
        self.0.kernels.statistics()
    }

    /// Where the device keeps machine code between runs of the program, or why it does not.
    pub fn disk_cache(&self) -> DiskCacheStatus {
        self.0.kernels.disk_status()
    }

    /// Forgets the loaded kernels that nothing else holds; the cubins on disk stay.
    pub fn clear_kernel_cache(&self) {
        self.0.kernels.clear();
    }

    /// Findings of the sanitizers since the last call, which it forgets. Always empty on CUDA.
    pub fn findings(&self) -> Vec<Finding> {
        self.0.backend.take_findings()
    }

    /// Counters summed over the launches since the last call, and resets them. `None` on CUDA, and on an emulator
    /// that does not count.
    pub fn counters(&self) -> Option<Counters> {
        self.0.backend.take_counters()
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Device {}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({}: {})", self.id(), self.name())
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.id() {
            DeviceId::Cuda(_) => write!(f, "{}: {} (sm_{})", self.id(), self.name(), self.sm()),
            DeviceId::Emulator(_) => f.write_str(self.name()),
        }
    }
}
