//! The CUDA driver as a backend.
//!
//! A device is the primary context of a GPU. Every call makes that context current on the calling thread and puts back
//! another library's context if there was one. No call waits except those that say so in [`Backend`].

#![allow(unsafe_code, reason = "the only module that calls the driver; every block says why it is sound")]

mod build;
mod driver;
mod libraries;
pub(crate) mod nccl;
pub(crate) mod nvtx;
mod pinned;

use std::collections::HashMap;
use std::ffi::{CString, c_int};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cudarc::driver::sys::{
    self, CUdevice_attribute as Attribute, CUfunction_attribute as FunctionAttribute, CUresult,
};
use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::tensor_map::{TENSOR_MAP_BYTES, TensorMap};
use warpwright_ptx::{BinaryOp, Inst, Target, TargetVariant, UnaryOp};

pub(crate) use self::pinned::PinnedMemory;

use self::build::driver_build;
use self::driver::{Failure, LaunchKind, Outcome};
use super::{
    Backend, EventHandle, FunctionHandle, GraphHandle, HostMemory, LoadedFunction, Ordering, Pattern,
    RawLaunch, StreamHandle,
};
use crate::cache::{CubinKey, DiskCache};
use crate::comm::PeerLink;
use crate::device::{DeviceId, MemoryInfo, Properties};
use crate::discover::{CudaDeviceInfo, CudaUnavailable, DriverVersion};
use crate::error::{Error, Fault, Result};
use crate::launch::KernelInfo;

/// The first driver that records launches which overlap in a graph; the launches themselves came before.
const OVERLAPS_SINCE: DriverVersion = DriverVersion { major: 12, minor: 3 };

/// Blocks of a cluster that every GPU with clusters runs; larger ones need an opt-in.
const PORTABLE_CLUSTER: u64 = 8;

/// Loads and starts the driver, once in the process.
pub(crate) fn start_driver() -> Result<DriverVersion, CudaUnavailable> {
    static STARTED: OnceLock<Result<DriverVersion, CudaUnavailable>> = OnceLock::new();
    STARTED
        .get_or_init(|| {
            if !driver::library_is_present() {
                return Err(CudaUnavailable::NoLibrary);
            }
            let version = DriverVersion::from_number(driver::driver_version().map_err(unavailable)?);
            if version < DriverVersion::MINIMUM {
                return Err(CudaUnavailable::DriverTooOld { found: version });
            }
            match driver::init() {
                Ok(()) => Ok(version),
                Err(f) if f.code == CUresult::CUDA_ERROR_NO_DEVICE => {
                    Err(CudaUnavailable::NoDevice { driver: version })
                }
                Err(f) => Err(unavailable(f)),
            }
        })
        .clone()
}

fn unavailable(f: Failure) -> CudaUnavailable {
    CudaUnavailable::Init { call: f.call, code: f.code as u32, name: f.name(), description: f.description() }
}

/// The devices that the driver sees.
pub(crate) fn list_devices() -> Result<Vec<CudaDeviceInfo>, CudaUnavailable> {
    let describe = |ordinal: c_int| -> Outcome<CudaDeviceInfo> {
        let device = driver::device(ordinal)?;
        Ok(CudaDeviceInfo {
            ordinal: ordinal.unsigned_abs(),
            name: driver::device_name(device)?,
            sm: compute_capability(device)?,
            multiprocessors: attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            memory: driver::total_memory(device)? as u64,
        })
    };
    let count = driver::device_count().map_err(unavailable)?;
    (0..count).map(describe).collect::<Outcome<_>>().map_err(unavailable)
}

/// The number of the device whose memory an address is.
pub(crate) fn device_of_address(address: u64) -> Result<u32> {
    Ok(driver::device_of_address(address).map_err(driver_error)?.unsigned_abs())
}

/// The links between the devices that the driver sees, for each pair in both directions; nothing without a driver.
///
/// # Errors
/// [`Error::Driver`].
pub fn peer_links() -> Result<Vec<PeerLink>> {
    use sys::CUdevice_P2PAttribute as Link;
    if start_driver().is_err() {
        return Ok(Vec::new());
    }
    let count = driver::device_count().map_err(driver_error)?;
    let link = |from: c_int, to: c_int| -> Outcome<PeerLink> {
        let (first, second) = (driver::device(from)?, driver::device(to)?);
        let get = |which| driver::peer_attribute(which, first, second);
        Ok(PeerLink {
            devices: [from.unsigned_abs(), to.unsigned_abs()],
            access: get(Link::CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED)? != 0,
            atomics: get(Link::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED)? != 0,
            performance_rank: get(Link::CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK)?,
        })
    };
    let pairs =
        (0..count).flat_map(|from| (0..count).filter(move |to| *to != from).map(move |to| (from, to)));
    pairs.map(|(from, to)| link(from, to)).collect::<Outcome<_>>().map_err(driver_error)
}

fn attribute(device: sys::CUdevice, which: Attribute) -> Outcome<u32> {
    Ok(u32::try_from(driver::attribute(device, which)?).unwrap_or(0))
}

fn compute_capability(device: sys::CUdevice) -> Outcome<u32> {
    let major = attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    Ok(major * 10 + minor)
}

fn read_properties(ordinal: u32, device: sys::CUdevice, version: DriverVersion) -> Outcome<Properties> {
    let get = |which| attribute(device, which);
    let sm = compute_capability(device)?;
    Ok(Properties {
        id: DeviceId::Cuda(ordinal),
        name: driver::device_name(device)?,
        // Architecture-specific targets begin with 9.0.
        target: if sm >= 90 { Target::specific(sm) } else { Target::sm(sm) },
        multiprocessors: get(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        max_threads: get(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
        max_block: [
            get(Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X)?,
            get(Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y)?,
            get(Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z)?,
        ],
        max_grid: [
            get(Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X)?,
            get(Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y)?,
            get(Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z)?,
        ],
        max_shared: get(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        registers: get(Attribute::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR)?,
        l2_bytes: u64::from(get(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?),
        memory: driver::total_memory(device)? as u64,
        driver: Some(version),
    })
}

/// Facts about a handle that the driver does not say itself.
#[derive(Debug, Default)]
struct Objects {
    /// The module of each function.
    modules: HashMap<u64, u64>,
    /// Nodes of each executable graph.
    graph_nodes: HashMap<u64, usize>,
}

/// `CU_STREAM_PER_THREAD`, the largest handle with a fixed meaning.
const PER_THREAD_STREAM: u64 = 2;

/// One GPU.
#[derive(Debug)]
pub(crate) struct CudaBackend {
    properties: Properties,
    version: DriverVersion,
    device: sys::CUdevice,
    /// `CUcontext`, retained.
    context: u64,
    /// `CU_JIT_OPTIMIZATION_LEVEL` of kernels.
    level: u32,
    /// `CUmemoryPool` of stream-ordered allocations; `None` where the device has no pools.
    pool: Option<u64>,
    objects: Mutex<Objects>,
    /// Name of the kernel launched last, for the report of a fault.
    last_kernel: Mutex<Option<Arc<str>>>,
    /// The fault that cost this process the context.
    fault: OnceLock<Fault>,
}

/// Puts back the context of another library.
struct Current(Option<u64>);

impl Drop for Current {
    fn drop(&mut self) {
        if let Some(previous) = self.0 {
            // The context was current before; if its owner has destroyed it meanwhile there is nothing to put back.
            let _ = driver::set_current_context(previous as sys::CUcontext);
        }
    }
}

/// Makes a context current on this thread, and remembers one of another library to put back.
fn make_current(context: u64) -> Outcome<Current> {
    let current = driver::current_context()? as u64;
    if current == context {
        return Ok(Current(None));
    }
    driver::set_current_context(context as sys::CUcontext)?;
    Ok(Current((current != 0).then_some(current)))
}

/// Lets this thread load code and allocate memory while one of its streams is captured: what the driver does for that on the device is
/// no part of the work that is recorded.
struct Relaxed(Option<sys::CUstreamCaptureMode>);

impl Relaxed {
    fn new() -> Self {
        let relaxed = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // Without it a load inside a capture fails and says so.
        Self(driver::exchange_capture_mode(relaxed).ok())
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        if let Some(previous) = self.0 {
            let _ = driver::exchange_capture_mode(previous);
        }
    }
}

impl CudaBackend {
    /// The primary context of a device that [`list_devices`] has shown, with kernels compiled at a level from 0 to 4.
    pub(crate) fn open(ordinal: u32, level: u32) -> Result<Self> {
        let version = start_driver().map_err(Error::NoDriver)?;
        let plain = |f: Failure| driver_error(f);
        let device = c_int::try_from(ordinal)
            .map_err(|_| Error::NoSuchDevice { ordinal, count: 0 })
            .and_then(|n| driver::device(n).map_err(plain))?;
        let properties = read_properties(ordinal, device, version).map_err(plain)?;
        let context = driver::retain_primary_context(device).map_err(plain)? as u64;
        let mut backend = Self {
            properties,
            version,
            device,
            context,
            level,
            pool: None,
            objects: Mutex::default(),
            last_kernel: Mutex::default(),
            fault: OnceLock::new(),
        };
        backend.pool = backend.create_pool()?;
        Ok(backend)
    }

    fn create_pool(&self) -> Result<Option<u64>> {
        let pools = attribute(self.device, Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED);
        if self.check(pools)? == 0 {
            return Ok(None);
        }
        let _current = self.enter()?;
        let pool = self.check(driver::create_pool(self.device))?;
        // Freed memory stays in the pool, for the next allocation of the same size to be free of cost.
        let threshold = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        self.check(driver::set_pool_attribute(pool, threshold, &mut { u64::MAX }))?;
        Ok(Some(pool as u64))
    }

    /// Makes the context current, and remembers one of another library to put back.
    fn enter(&self) -> Result<Current> {
        if let Some(fault) = self.fault.get() {
            return Err(Error::Fault(Box::new(fault.clone())));
        }
        self.check(make_current(self.context))
    }

    fn check<T>(&self, outcome: Outcome<T>) -> Result<T> {
        outcome.map_err(|f| self.error(f))
    }

    fn error(&self, f: Failure) -> Error {
        if !is_fault(f.code) {
            return driver_error(f);
        }
        let fault = self.fault.get_or_init(|| {
            let last = self.last_kernel.lock().unwrap_or_else(PoisonError::into_inner);
            Fault {
                device: self.properties.id,
                code: f.code as u32,
                name: f.name(),
                call: f.call,
                last_kernel: last.as_ref().map(ToString::to_string),
            }
        });
        Error::Fault(Box::new(fault.clone()))
    }

    fn allocation_error(&self, f: Failure, requested: u64) -> Error {
        if f.code == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            self.out_of_memory(requested)
        } else {
            self.error(f)
        }
    }

    fn out_of_memory(&self, requested: u64) -> Error {
        let (free, total) = driver::memory_info().unwrap_or((0, 0));
        Error::OutOfMemory { device: self.properties.id, requested, free: free as u64, total: total as u64 }
    }

    fn allocate_now(&self, bytes: usize, order: Ordering<'_>) -> Outcome<u64> {
        match (order, self.pool) {
            (Ordering::Stream(stream), Some(pool)) => {
                driver::allocate_from_pool(bytes, pool as sys::CUmemoryPool, stream.raw())
            }
            _ => {
                let _relaxed = Relaxed::new();
                driver::allocate(bytes)
            }
        }
    }

    /// The kernel as a module: machine code from disk if it loads, else compiled and stored.
    ///
    /// Only the linker hands out machine code, and it compiles for linking: around a call of one of the assembler's
    /// subroutines, such code takes up to half as long again as that of a plain load, and warps do not give each other
    /// registers there. Kernels with either are loaded as text, which the driver keeps in a disk cache of its own. A text that
    /// the driver refuses goes to the linker all the same, whose log says why.
    fn module(&self, kernel: &Kernel, disk: Option<&DiskCache>) -> Result<(sys::CUmodule, bool)> {
        if (calls_subroutines(kernel) || gives_registers(kernel))
            && let Ok(text) = CString::new(kernel.text())
            && let Ok(module) = driver::load_module(text.as_bytes_with_nul())
        {
            return Ok((module, false));
        }
        let cache = disk.map(|d| {
            (d, CubinKey::new(self.version, driver_build(), self.properties.target.sm, kernel.text()))
        });
        if let Some((disk, key)) = &cache {
            // Machine code that is intact and that the driver refuses all the same is compiled anew.
            if let Some(module) = disk.get(key).and_then(|cubin| driver::load_module(&cubin).ok()) {
                return Ok((module, true));
            }
        }
        let cubin = self.compile(kernel)?;
        let module = self.check(driver::load_module(&cubin))?;
        if let Some((disk, key)) = &cache {
            disk.put(key, &cubin);
        }
        Ok((module, false))
    }

    fn compile(&self, kernel: &Kernel) -> Result<Vec<u8>> {
        let needs = kernel.module().version;
        let supported = self.version.ptx_version();
        let too_new =
            || Error::PtxTooNew { kernel: kernel.name().to_owned(), needs, supported, driver: self.version };
        if supported.is_some_and(|newest| needs > newest) {
            return Err(too_new());
        }
        let jit = |name: String, log: String| Error::Jit { kernel: kernel.name().to_owned(), name, log };
        let nul = || jit("CUDA_ERROR_INVALID_PTX".to_owned(), "the text contains a NUL character".to_owned());
        let text = CString::new(kernel.text()).map_err(|_| nul())?;
        let name = CString::new(kernel.name()).map_err(|_| nul())?;
        let compiled = driver::compile(&text, &name, None, self.level).or_else(|first| {
            // A driver may take the context for the plain architecture; then the target must be named.
            match kernel.target().variant {
                TargetVariant::Specific if !is_fault(first.0.code) => {
                    let target = driver::specific_target(kernel.target().sm);
                    driver::compile(&text, &name, Some(target), self.level).map_err(|_| first)
                }
                _ => Err(first),
            }
        });
        compiled.map_err(|(f, log)| match f.code {
            CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => too_new(),
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => self.out_of_memory(0),
            code if is_fault(code) => self.error(f),
            _ => jit(f.name(), if log.is_empty() { f.description() } else { log }),
        })
    }

    fn prepare_function(
        &self,
        module: sys::CUmodule,
        kernel: &Kernel,
    ) -> Result<(sys::CUfunction, KernelInfo)> {
        let name = CString::new(kernel.name()).unwrap_or_default();
        let function = self.check(driver::function(module, &name))?;
        let get = |which| -> Result<u32> {
            Ok(u32::try_from(self.check(driver::function_attribute(function, which))?).unwrap_or(0))
        };
        let cluster = kernel.function().directives.cluster.unwrap_or([1; 3]);
        if cluster.iter().map(|n| u64::from(*n)).product::<u64>() > PORTABLE_CLUSTER {
            let allowed = FunctionAttribute::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED;
            self.check(driver::set_function_attribute(function, allowed, 1))?;
        }
        let info = KernelInfo {
            registers: Some(get(FunctionAttribute::CU_FUNC_ATTRIBUTE_NUM_REGS)?),
            local_bytes: Some(get(FunctionAttribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?),
            shared_bytes: get(FunctionAttribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
            const_bytes: Some(get(FunctionAttribute::CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES)?),
            max_threads: get(FunctionAttribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
            binary_sm: Some(get(FunctionAttribute::CU_FUNC_ATTRIBUTE_BINARY_VERSION)?),
        };
        Ok((function, info))
    }

    fn objects(&self) -> std::sync::MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for CudaBackend {
    fn drop(&mut self) {
        if let Some(pool) = self.pool {
            let _ = driver::destroy_pool(pool as sys::CUmemoryPool);
        }
        let _ = driver::release_primary_context(self.device);
    }
}

impl StreamHandle {
    fn raw(&self) -> sys::CUstream {
        self.0 as sys::CUstream
    }
}

impl EventHandle {
    fn raw(&self) -> sys::CUevent {
        self.0 as sys::CUevent
    }
}

impl FunctionHandle {
    fn raw(&self) -> sys::CUfunction {
        self.0 as sys::CUfunction
    }
}

impl GraphHandle {
    fn raw(&self) -> sys::CUgraphExec {
        self.0 as sys::CUgraphExec
    }
}

fn driver_error(f: Failure) -> Error {
    Error::Driver { code: f.code as u32, name: f.name(), description: f.description(), call: f.call }
}

/// Errors after which the driver refuses everything in the context.
const fn is_fault(code: CUresult) -> bool {
    matches!(
        code,
        CUresult::CUDA_ERROR_ECC_UNCORRECTABLE
            | CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
            | CUresult::CUDA_ERROR_LAUNCH_TIMEOUT
            | CUresult::CUDA_ERROR_ASSERT
            | CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
            | CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUresult::CUDA_ERROR_INVALID_PC
            | CUresult::CUDA_ERROR_LAUNCH_FAILED
    )
}

fn size(bytes: u64) -> usize {
    // 64-bit hosts only: the driver exists on no other.
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

impl Backend for CudaBackend {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn memory_info(&self) -> Result<MemoryInfo> {
        let _current = self.enter()?;
        let (free, total) = self.check(driver::memory_info())?;
        Ok(MemoryInfo { free: free as u64, total: total as u64 })
    }

    fn allocate(&self, bytes: u64, _label: &str, order: Ordering<'_>) -> Result<u64> {
        let _current = self.enter()?;
        // The driver has different words for sizes beyond reason.
        if bytes > self.properties.memory {
            return Err(self.out_of_memory(bytes));
        }
        let bytes_here = size(bytes);
        let first = self.allocate_now(bytes_here, order);
        let again = match (first, self.pool) {
            // The pool may keep the freed memory that is missing.
            (Err(f), Some(pool)) if f.code == CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                let _ = driver::synchronize_context();
                let _ = driver::trim_pool(pool as sys::CUmemoryPool, 0);
                self.allocate_now(bytes_here, order)
            }
            (first, _) => first,
        };
        again.map_err(|f| self.allocation_error(f, bytes))
    }

    fn free(&self, address: u64, order: Ordering<'_>) {
        let Ok(_current) = self.enter() else { return };
        let outcome = match (order, self.pool) {
            (Ordering::Stream(stream), Some(_)) => driver::free_async(address, stream.raw()),
            _ => driver::free(address),
        };
        // A fault of earlier work may show here first.
        let _ = self.check(outcome);
    }

    fn allocate_host(&self, bytes: usize) -> Result<HostMemory> {
        let _current = self.enter()?;
        if bytes == 0 {
            return Ok(HostMemory::Pageable(Box::default()));
        }
        let used_up = || Error::OutOfHostMemory { requested: bytes as u64 };
        match PinnedMemory::allocate(self.context, bytes) {
            Ok(memory) => memory.map(HostMemory::Pinned).ok_or_else(used_up),
            Err(f) if f.code == CUresult::CUDA_ERROR_OUT_OF_MEMORY => Err(used_up()),
            Err(f) => Err(self.error(f)),
        }
    }

    fn load(&self, kernel: &Kernel, disk: Option<&DiskCache>) -> Result<LoadedFunction> {
        let _current = self.enter()?;
        let _relaxed = Relaxed::new();
        let (module, from_disk) = self.module(kernel, disk)?;
        match self.prepare_function(module, kernel) {
            Ok((function, info)) => {
                let handle = FunctionHandle(function as u64);
                self.objects().modules.insert(handle.0, module as u64);
                Ok(LoadedFunction { handle, info, from_disk })
            }
            Err(error) => {
                let _ = driver::unload_module(module);
                Err(error)
            }
        }
    }

    fn unload(&self, function: FunctionHandle) {
        let module = self.objects().modules.remove(&function.0);
        let Ok(_current) = self.enter() else { return };
        let _relaxed = Relaxed::new();
        if let Some(module) = module {
            // Waits for work that still runs the code.
            let _ = self.check(driver::unload_module(module as sys::CUmodule));
        }
    }

    fn allow_dynamic_shared(&self, function: &FunctionHandle, bytes: u32) -> Result<()> {
        let _current = self.enter()?;
        let _relaxed = Relaxed::new();
        let which = FunctionAttribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
        self.check(driver::set_function_attribute(function.raw(), which, bytes))
    }

    fn create_stream(&self) -> Result<StreamHandle> {
        let _current = self.enter()?;
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        Ok(StreamHandle(self.check(driver::create_stream(flags))? as u64))
    }

    fn destroy_stream(&self, stream: StreamHandle) {
        let Ok(_current) = self.enter() else { return };
        let _ = self.check(driver::destroy_stream(stream.raw()));
    }

    fn synchronize(&self, stream: &StreamHandle) -> Result<()> {
        let _current = self.enter()?;
        self.check(driver::synchronize_stream(stream.raw()))
    }

    fn synchronize_device(&self) -> Result<()> {
        let _current = self.enter()?;
        self.check(driver::synchronize_context())
    }

    fn is_idle(&self, stream: &StreamHandle) -> Result<bool> {
        let _current = self.enter()?;
        match driver::query_stream(stream.raw()) {
            Err(f) if f.code == CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            outcome => self.check(outcome).map(|()| true),
        }
    }

    fn launch(&self, stream: &StreamHandle, function: &FunctionHandle, launch: RawLaunch<'_>) -> Result<()> {
        let _current = self.enter()?;
        let RawLaunch { name, grid, block, dynamic_shared, cooperative, overlaps, params, offsets, .. } =
            launch;
        let kind = match (cooperative, overlaps && self.version >= OVERLAPS_SINCE) {
            (true, _) => LaunchKind::Cooperative,
            (false, true) => LaunchKind::Overlapping,
            (false, false) => LaunchKind::Plain,
        };
        self.check(driver::launch(
            function.raw(),
            grid,
            block,
            dynamic_shared,
            stream.raw(),
            params,
            offsets,
            kind,
        ))?;
        let mut last = self.last_kernel.lock().unwrap_or_else(PoisonError::into_inner);
        if last.as_ref().is_none_or(|known| !Arc::ptr_eq(known, name)) {
            *last = Some(name.clone());
        }
        Ok(())
    }

    fn encode_tensor_map(&self, map: &TensorMap) -> Result<[u8; TENSOR_MAP_BYTES]> {
        // The driver has the function from CUDA 12 on; the binding's loader panics where it is missing.
        let first = DriverVersion { major: 12, minor: 0 };
        if driver::driver_version().map_or(true, |v| DriverVersion::from_number(v) < first) {
            return Err(Error::NotSupported { what: "tensor maps", device: self.properties.id });
        }
        let _current = self.enter()?;
        self.check(driver::encode_tensor_map(map))
    }

    fn copy_to_device(&self, stream: &StreamHandle, target: u64, source: &[u8]) -> Result<()> {
        let _current = self.enter()?;
        self.check(driver::copy_to_device(target, source, stream.raw()))?;
        // The driver copies pageable memory before it returns, but not memory that the caller has pinned.
        self.check(driver::synchronize_stream(stream.raw()))
    }

    fn copy_to_host(&self, stream: &StreamHandle, target: &mut [u8], source: u64) -> Result<()> {
        let _current = self.enter()?;
        self.check(driver::copy_to_host(target, source, stream.raw()))?;
        self.check(driver::synchronize_stream(stream.raw()))
    }

    fn copy_on_device(&self, stream: &StreamHandle, target: u64, source: u64, bytes: u64) -> Result<()> {
        let _current = self.enter()?;
        self.check(driver::copy_on_device(target, source, size(bytes), stream.raw()))
    }

    fn fill(&self, stream: &StreamHandle, target: u64, pattern: Pattern, count: u64) -> Result<()> {
        let _current = self.enter()?;
        let (n, stream) = (size(count), stream.raw());
        match pattern {
            Pattern::Byte(value) => self.check(driver::fill_bytes(target, value, n, stream)),
            Pattern::Half(value) => self.check(driver::fill_halves(target, value, n, stream)),
            Pattern::Word(value) => self.check(driver::fill_words(target, value, n, stream)),
            Pattern::Double(value) => {
                // The driver has no memset of 8 bytes: one element, then copies of twice as many each time.
                let bytes = value.to_ne_bytes();
                let [a, b, c, d, e, f, g, h] = bytes;
                for (at, word) in [(target, [a, b, c, d]), (target + 4, [e, f, g, h])] {
                    self.check(driver::fill_words(at, u32::from_ne_bytes(word), 1, stream))?;
                }
                let (bytes, mut done) = (size(count * 8), 8);
                while done < bytes {
                    let more = done.min(bytes - done);
                    self.check(driver::copy_on_device(target + done as u64, target, more, stream))?;
                    done += more;
                }
                Ok(())
            }
        }
    }

    fn create_event(&self) -> Result<EventHandle> {
        let _current = self.enter()?;
        let flags = sys::CUevent_flags::CU_EVENT_DEFAULT as u32;
        Ok(EventHandle(self.check(driver::create_event(flags))? as u64))
    }

    fn destroy_event(&self, event: EventHandle) {
        let Ok(_current) = self.enter() else { return };
        let _ = self.check(driver::destroy_event(event.raw()));
    }

    fn record_event(&self, event: &EventHandle, stream: &StreamHandle) -> Result<()> {
        let _current = self.enter()?;
        self.check(driver::record_event(event.raw(), stream.raw()))
    }

    fn synchronize_event(&self, event: &EventHandle) -> Result<()> {
        let _current = self.enter()?;
        self.check(driver::synchronize_event(event.raw()))
    }

    fn wait_event(&self, stream: &StreamHandle, event: &EventHandle) -> Result<()> {
        let _current = self.enter()?;
        self.check(driver::wait_event(stream.raw(), event.raw()))
    }

    fn elapsed_us(&self, start: &EventHandle, end: &EventHandle) -> Result<Option<f64>> {
        let _current = self.enter()?;
        // Bindings from CUDA 13 on call a function that drivers before 12.8 do not have.
        if driver::BINDING_VERSION >= 13_000 && self.version < (DriverVersion { major: 12, minor: 8 }) {
            return Err(Error::NotSupported {
                what: "timing with a driver before CUDA 12.8",
                device: self.properties.id,
            });
        }
        Ok(Some(f64::from(self.check(driver::elapsed_ms(start.raw(), end.raw()))?) * 1e3))
    }

    fn begin_capture(&self, stream: &StreamHandle) -> Result<()> {
        let _current = self.enter()?;
        self.check(driver::begin_capture(stream.raw()))
    }

    fn end_capture(&self, stream: &StreamHandle, keep: bool) -> Result<Option<GraphHandle>> {
        let _current = self.enter()?;
        let graph = self.check(driver::end_capture(stream.raw()))?;
        if graph.is_null() {
            return Ok(None);
        }
        let made = keep
            .then(|| -> Outcome<_> { Ok((driver::instantiate(graph)?, driver::graph_node_count(graph)?)) });
        // The executable graph does not refer to the one that it was made from.
        let destroyed = driver::destroy_graph(graph);
        let Some(made) = made else { return Ok(None) };
        let (executable, nodes) = self.check(made)?;
        self.check(destroyed)?;
        self.objects().graph_nodes.insert(executable as u64, nodes);
        Ok(Some(GraphHandle(executable as u64)))
    }

    fn launch_graph(&self, graph: &GraphHandle, stream: &StreamHandle) -> Result<()> {
        let _current = self.enter()?;
        self.check(driver::launch_graph(graph.raw(), stream.raw()))
    }

    fn graph_nodes(&self, graph: &GraphHandle) -> usize {
        self.objects().graph_nodes.get(&graph.0).copied().unwrap_or(0)
    }

    fn destroy_graph(&self, graph: GraphHandle) {
        self.objects().graph_nodes.remove(&graph.0);
        let Ok(_current) = self.enter() else { return };
        let _ = self.check(driver::destroy_executable(graph.raw()));
    }

    fn raw_stream(&self, stream: &StreamHandle) -> Option<u64> {
        Some(stream.0)
    }

    fn adopt_stream(&self, raw: u64) -> Option<StreamHandle> {
        Some(StreamHandle(raw))
    }

    fn device_of_stream(&self, raw: u64) -> Result<DeviceId> {
        // The default streams are those of whatever context is current, which is this one in every call.
        if raw <= PER_THREAD_STREAM {
            return Ok(self.properties.id);
        }
        let _current = self.enter()?;
        let context = self.check(driver::stream_context(raw as sys::CUstream))?;
        if context as u64 == self.context {
            return Ok(self.properties.id);
        }
        self.check(driver::set_current_context(context))?;
        let device = driver::current_device();
        self.check(driver::set_current_context(self.context as sys::CUcontext))?;
        Ok(DeviceId::Cuda(self.check(device)?.unsigned_abs()))
    }

    fn raw_function(&self, function: &FunctionHandle) -> Option<u64> {
        Some(function.0)
    }

    fn raw_context(&self) -> Option<u64> {
        Some(self.context)
    }
}

/// Whether warps give each other registers, which the linker ignores: all have as many as if there were no such thing.
fn gives_registers(kernel: &Kernel) -> bool {
    let mut instructions = kernel.function().blocks.iter().flat_map(|block| &block.instructions);
    instructions.any(|instruction| matches!(instruction.inst, Inst::SetMaxNreg { .. }))
}

/// Whether the assembler may call subroutines of its own: for exact division, reciprocals and roots, whose rare cases it
/// keeps out of line, and for 64-bit integer division.
fn calls_subroutines(kernel: &Kernel) -> bool {
    let blocks = kernel.function().blocks.iter();
    blocks.flat_map(|block| &block.instructions).any(|instruction| match &instruction.inst {
        Inst::Unary { op: UnaryOp::Rcp | UnaryOp::Sqrt, mods, .. } => mods.rounding.is_some(),
        Inst::Binary { op: BinaryOp::Div, ty, mods, .. } if ty.is_float() => mods.rounding.is_some(),
        Inst::Binary { op: BinaryOp::Div | BinaryOp::Rem, ty, .. } => ty.bits() == 64,
        _ => false,
    })
}
