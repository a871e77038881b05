//! Kernels that are loaded, launches as data, and what is checked before a launch.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering as AtomicOrdering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard};

use tracing::debug;
use warpwright_ptx::isa::DeviceLimits;
use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::{ArgError, ArgValue, Function, Inst, StateSpace, TensorMap, pack_args};

use crate::backend::{Backend, FunctionHandle, LoadedFunction, RawLaunch};
use crate::buffer::Memory;
use crate::device::{Device, DeviceId, Properties};
use crate::error::{Error, LaunchLimit, Result};
use crate::stream::Stream;

/// The parameter buffer that every device and driver accepts.
const MAX_PARAMETER_BYTES: usize = 4096;
/// Parameter buffers up to this size live on the stack of the launch.
const INLINE_PARAMETER_BYTES: usize = 512;

/// Resources of a compiled kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KernelInfo {
    /// Registers of a thread; `None` on the emulator, which has no register file.
    pub registers: Option<u32>,
    /// Bytes of local memory of a thread: spills, and arrays that are indexed at run time. `None` on the emulator.
    pub local_bytes: Option<u32>,
    /// Static shared memory of a block in bytes.
    pub shared_bytes: u32,
    /// Bytes of constant memory; `None` on the emulator.
    pub const_bytes: Option<u32>,
    /// The largest block that the kernel can have, in threads.
    pub max_threads: u32,
    /// Architecture of the machine code, 90 for `sm_90`; `None` on the emulator.
    pub binary_sm: Option<u32>,
}

/// A kernel in executable form on one device. Clones are the same kernel.
#[derive(Clone)]
pub struct LoadedKernel(Arc<Loaded>);

struct Loaded {
    backend: Arc<dyn Backend>,
    kernel: Kernel,
    name: Arc<str>,
    info: KernelInfo,
    from_disk: bool,
    /// Dynamic shared memory that launches may use so far.
    allowed_dynamic: AtomicU32,
    /// Taken by the destructor.
    handle: Option<FunctionHandle>,
}

impl Drop for Loaded {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take() {
            self.backend.unload(handle);
        }
    }
}

impl LoadedKernel {
    pub(crate) fn new(backend: &Arc<dyn Backend>, kernel: &Kernel, function: LoadedFunction) -> Self {
        let allowed = DeviceLimits::SHARED_WITHOUT_ASKING.saturating_sub(function.info.shared_bytes);
        Self(Arc::new(Loaded {
            backend: backend.clone(),
            kernel: kernel.clone(),
            name: kernel.name().into(),
            info: function.info,
            from_disk: function.from_disk,
            allowed_dynamic: AtomicU32::new(allowed),
            handle: Some(function.handle),
        }))
    }

    /// The kernel.
    pub fn kernel(&self) -> &Kernel {
        &self.0.kernel
    }

    /// Where it is loaded.
    pub fn device_id(&self) -> DeviceId {
        self.0.backend.properties().id
    }

    /// Its resources.
    pub fn info(&self) -> KernelInfo {
        self.0.info
    }

    /// Whether its machine code came from the cubin cache on disk.
    pub fn from_disk_cache(&self) -> bool {
        self.0.from_disk
    }

    pub(crate) fn handle(&self) -> &FunctionHandle {
        match &self.0.handle {
            Some(handle) => handle,
            None => unreachable!("only the destructor takes the handle"),
        }
    }

    pub(crate) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    fn refuse(&self, limit: LaunchLimit) -> Error {
        Error::Launch { kernel: self.0.name.to_string(), limit }
    }

    /// Checks a launch and lays out everything about it that does not depend on addresses.
    pub(crate) fn prepare(
        &self,
        device: &Device,
        grid: [u32; 3],
        block: Option<[u32; 3]>,
        dynamic_shared: u32,
        cooperative: bool,
        args: &[ArgValue],
    ) -> Result<Prepared> {
        if self.device_id() != device.id() {
            return Err(Error::WrongDevice {
                op: "launch",
                argument: "kernel",
                expected: device.id(),
                got: self.device_id(),
            });
        }
        let properties = device.properties();
        let function = self.0.kernel.function();
        let block = self.check_block(properties, function, block)?;
        let cluster = function.directives.cluster.unwrap_or([1; 3]);
        self.check_grid(properties, grid, cluster)?;
        self.opt_in(properties, dynamic_shared)?;
        // One block for each multiprocessor is resident whatever else the kernel needs.
        let most = if cooperative { properties.multiprocessors.max(1) } else { u32::MAX };
        let grid = [grid[0].min(most), grid[1], grid[2]];
        let parameters = lay_out(function, args, cooperative)?;
        let bytes = parameters.template.len();
        if bytes > MAX_PARAMETER_BYTES {
            return Err(self.refuse(LaunchLimit::Parameters { bytes, limit: MAX_PARAMETER_BYTES }));
        }
        Ok(Prepared {
            kernel: self.clone(),
            device: device.index(),
            grid,
            block,
            cluster,
            dynamic_shared,
            cooperative,
            overlaps: !cooperative && waits_for_the_launch_before(function),
            parameters,
        })
    }

    fn check_block(&self, p: &Properties, function: &Function, given: Option<[u32; 3]>) -> Result<[u32; 3]> {
        let block = match (function.directives.required_threads, given) {
            (Some(expected), Some(got)) if expected != got => {
                return Err(self.refuse(LaunchLimit::Block { expected, got }));
            }
            (Some(block), _) | (None, Some(block)) => block,
            (None, None) => return Err(self.refuse(LaunchLimit::BlockMissing)),
        };
        let product = |b: [u32; 3]| b.iter().map(|n| u64::from(*n)).product::<u64>();
        let mut threads = p.max_threads.min(self.0.info.max_threads);
        if let Some(max) = function.directives.max_threads {
            threads = threads.min(u32::try_from(product(max)).unwrap_or(u32::MAX));
        }
        let fits = block.iter().zip(p.max_block).all(|(n, limit)| (1..=limit).contains(n));
        if !fits || product(block) > u64::from(threads) {
            return Err(self.refuse(LaunchLimit::Threads { limit: p.max_block, threads, got: block }));
        }
        Ok(block)
    }

    fn check_grid(&self, p: &Properties, grid: [u32; 3], cluster: [u32; 3]) -> Result<()> {
        if grid.iter().zip(p.max_grid).any(|(n, limit)| *n > limit) {
            return Err(self.refuse(LaunchLimit::Grid { limit: p.max_grid, got: grid }));
        }
        if grid.iter().zip(cluster).any(|(n, c)| c == 0 || n % c != 0) {
            return Err(self.refuse(LaunchLimit::Cluster { cluster, grid }));
        }
        Ok(())
    }

    /// Raises the kernel's limit of dynamic shared memory where a launch needs more.
    fn opt_in(&self, p: &Properties, dynamic: u32) -> Result<()> {
        let fixed = self.0.info.shared_bytes;
        if fixed.saturating_add(dynamic) > p.max_shared {
            return Err(self.refuse(LaunchLimit::SharedMemory { fixed, dynamic, limit: p.max_shared }));
        }
        if dynamic > self.0.allowed_dynamic.load(AtomicOrdering::Acquire) {
            // All that the device allows, so that steps with different needs never lower each other's limit.
            let most = p.max_shared.saturating_sub(fixed);
            self.0.backend.allow_dynamic_shared(self.handle(), most)?;
            self.0.allowed_dynamic.store(most, AtomicOrdering::Release);
        }
        Ok(())
    }
}

impl fmt::Debug for LoadedKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LoadedKernel({} on {})", self.0.name, self.device_id())
    }
}

/// Whether a kernel waits for the grid in front of it (`griddepcontrol.wait`) before it touches any memory, so that it may
/// be launched while that grid still runs.
fn waits_for_the_launch_before(function: &Function) -> bool {
    let harmless = |inst: &Inst| {
        matches!(
            inst,
            Inst::Ld { space: StateSpace::Param, .. }
                | Inst::Mov { .. }
                | Inst::Cvta { .. }
                | Inst::GridDepControl { wait: false }
        )
    };
    let begin = function.blocks.first().map_or(&[][..], |block| &block.instructions);
    let first = begin.iter().find(|i| !harmless(&i.inst));
    first.is_some_and(|i| i.guard.is_none() && i.inst == Inst::GridDepControl { wait: true })
}

/// Where the address of a slot goes in the parameter buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Patch {
    at: u32,
    slot: u32,
    argument: u32,
    offset: u64,
}

/// Where a tensor map goes in the parameter buffer.
#[derive(Clone, Debug)]
struct MapPatch {
    at: usize,
    argument: usize,
    slot: Option<u32>,
    map: TensorMap,
}

/// The parameters of a launch before its addresses are known.
struct Parameters {
    /// The parameter buffer with zeros in place of the slots.
    template: Box<[u8]>,
    patches: Box<[Patch]>,
    maps: Box<[MapPatch]>,
    /// Where each parameter begins, if there are maps or the launch is cooperative.
    offsets: Option<Box<[u64]>>,
}

fn lay_out(function: &Function, args: &[ArgValue], cooperative: bool) -> Result<Parameters, ArgError> {
    let (offsets, _) = function.param_layout();
    let (mut patches, mut maps) = (Vec::new(), Vec::new());
    let bound: Vec<ArgValue> = args
        .iter()
        .enumerate()
        .map(|(i, arg)| match arg {
            ArgValue::Slot { slot, offset } => {
                // Arguments past the parameters are refused by `pack_args`.
                let at = offsets.get(i).copied().unwrap_or(0);
                patches.push(Patch {
                    at: u32::try_from(at).unwrap_or(u32::MAX),
                    slot: *slot,
                    argument: u32::try_from(i).unwrap_or(u32::MAX),
                    offset: *offset,
                });
                ArgValue::Address(0)
            }
            ArgValue::TensorMap { map, slot } => {
                let at = offsets.get(i).copied().and_then(|at| usize::try_from(at).ok());
                let at = at.unwrap_or(usize::MAX);
                maps.push(MapPatch { at, argument: i, slot: *slot, map: (**map).clone() });
                ArgValue::TensorMap { map: map.clone(), slot: None }
            }
            other => other.clone(),
        })
        .collect();
    let template = pack_args(function, &bound)?.into();
    let offsets = (cooperative || !maps.is_empty()).then(|| offsets.into());
    Ok(Parameters { template, patches: patches.into(), maps: maps.into(), offsets })
}

/// The address of a tensor or buffer, tied to its device: what a launch puts in place of a slot.
///
/// Bindings come from tensors and buffers; [`Binding::from_raw`] is the door for addresses from elsewhere.
#[derive(Clone, Copy)]
pub struct Binding<'a> {
    address: u64,
    /// [`Device::index`], or 0 for an address that belongs to none.
    device: u32,
    /// The memory that a launch keeps until it has run; `None` for memory from elsewhere.
    memory: Option<&'a Arc<Memory>>,
}

impl<'a> Binding<'a> {
    /// The null address, for an optional tensor that a kernel does not touch.
    pub const NULL: Self = Self { address: 0, device: 0, memory: None };

    pub(crate) fn new(device: &Device, address: u64, memory: Option<&'a Arc<Memory>>) -> Self {
        Self { address, device: device.index(), memory }
    }

    /// An address made elsewhere.
    ///
    /// # Safety
    /// `address` must be memory of `device` that stays allocated until the work that uses it has finished, and large
    /// enough for what the kernel does with it.
    #[allow(unsafe_code, reason = "the door for addresses that this crate did not allocate")]
    pub unsafe fn from_raw(device: &Device, address: u64) -> Self {
        Self::new(device, address, None)
    }

    /// The address.
    pub fn address(self) -> u64 {
        self.address
    }
}

impl PartialEq for Binding<'_> {
    /// Whether they are the same address of the same device.
    fn eq(&self, other: &Self) -> bool {
        (self.address, self.device) == (other.address, other.device)
    }
}

impl Eq for Binding<'_> {}

impl fmt::Debug for Binding<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Binding({:#x})", self.address)
    }
}

#[repr(align(64))]
struct InlineParameters([u8; INLINE_PARAMETER_BYTES]);

/// A launch that has been checked for one device.
pub(crate) struct Prepared {
    kernel: LoadedKernel,
    device: u32,
    grid: [u32; 3],
    block: [u32; 3],
    cluster: [u32; 3],
    dynamic_shared: u32,
    cooperative: bool,
    overlaps: bool,
    parameters: Parameters,
}

impl Prepared {
    pub(crate) fn enqueue(&self, stream: &Stream, bindings: &[Binding<'_>]) -> Result<()> {
        let size = self.parameters.template.len();
        if size <= INLINE_PARAMETER_BYTES {
            let mut params = InlineParameters([0; INLINE_PARAMETER_BYTES]);
            self.enqueue_with(stream, bindings, &mut params.0[..size])
        } else {
            self.enqueue_with(stream, bindings, &mut vec![0; size])
        }
    }

    /// The address that is bound to a slot.
    fn bound(&self, device: &Device, bindings: &[Binding<'_>], slot: u32, argument: usize) -> Result<u64> {
        let binding = bindings.get(slot as usize).ok_or_else(|| {
            self.kernel.refuse(LaunchLimit::Unbound { argument, slot, bound: bindings.len() })
        })?;
        if binding.device != self.device && binding.device != 0 {
            return Err(self.kernel.refuse(LaunchLimit::ForeignTensor { slot, device: device.id() }));
        }
        Ok(binding.address)
    }

    fn enqueue_with(&self, stream: &Stream, bindings: &[Binding<'_>], params: &mut [u8]) -> Result<()> {
        params.copy_from_slice(&self.parameters.template);
        let device = stream.device();
        for patch in &self.parameters.patches {
            let base = self.bound(device, bindings, patch.slot, patch.argument as usize)?;
            let address = base.wrapping_add(patch.offset).to_le_bytes();
            let at = patch.at as usize;
            params[at..at + address.len()].copy_from_slice(&address);
        }
        for patch in &self.parameters.maps {
            let mut map = patch.map.clone();
            if let Some(slot) = patch.slot {
                map.base = map.base.wrapping_add(self.bound(device, bindings, slot, patch.argument)?);
            }
            map.check().map_err(|error| {
                self.kernel.refuse(LaunchLimit::TensorMap { argument: patch.argument, error })
            })?;
            let bytes = device.backend().encode_tensor_map(&map)?;
            params[patch.at..patch.at + bytes.len()].copy_from_slice(&bytes);
        }
        if self.grid.contains(&0) {
            return Ok(());
        }
        stream.remember(&self.kernel);
        // Before the launch: on the emulator that is the run, and a kernel that fails is the last that was named.
        debug!(
            target: "warpwright::launch",
            kernel = &*self.kernel.0.name,
            device = %device.id(),
            grid = ?self.grid,
            block = ?self.block,
            cluster = ?self.cluster,
            dynamic_shared = self.dynamic_shared,
            "launch"
        );
        device.backend().launch(
            stream.handle(),
            self.kernel.handle(),
            RawLaunch {
                name: &self.kernel.0.name,
                grid: self.grid,
                block: self.block,
                cluster: self.cluster,
                dynamic_shared: self.dynamic_shared,
                cooperative: self.cooperative,
                overlaps: self.overlaps,
                params,
                offsets: self.parameters.offsets.as_deref(),
            },
        )?;
        let slots = self.parameters.patches.iter().map(|patch| patch.slot);
        let slots = slots.chain(self.parameters.maps.iter().filter_map(|patch| patch.slot));
        let memories = slots.filter_map(|slot| bindings.get(slot as usize)?.memory);
        memories.for_each(|memory| memory.used_on(stream));
        Ok(())
    }
}

/// One launch as data: kernel, grid, block, shared memory and arguments, without a device or addresses.
///
/// Tensors stand in the arguments as [`ArgValue::Slot`], numbered in the order of the bindings of
/// [`Stream::launch`]. A step remembers what it prepared for each device, so a plan that is launched again does no work
/// but to fill in the addresses.
pub struct LaunchStep {
    kernel: Kernel,
    grid: [u32; 3],
    block: Option<[u32; 3]>,
    dynamic_shared: u32,
    cooperative: bool,
    /// Whether the kernel needs the grid as it is.
    whole: bool,
    args: Vec<ArgValue>,
    prepared: PreparedFor,
}

impl LaunchStep {
    /// A launch of `kernel` with the block that it requires and no dynamic shared memory.
    pub fn new(kernel: Kernel, grid: [u32; 3], args: Vec<ArgValue>) -> Self {
        let block = kernel.block();
        Self {
            kernel,
            grid,
            block,
            dynamic_shared: 0,
            cooperative: false,
            whole: false,
            args,
            prepared: PreparedFor::default(),
        }
    }

    /// The same with `bytes` of dynamic shared memory.
    #[must_use]
    pub fn with_dynamic_shared(mut self, bytes: u32) -> Self {
        self.dynamic_shared = bytes;
        self.forget()
    }

    /// The same as a cooperative launch: all blocks are resident together and may wait for each other. The grid, along
    /// x alone, is cut to one block for each multiprocessor of the device, so the kernel takes its size from the grid.
    #[must_use]
    pub fn cooperative(mut self) -> Self {
        self.cooperative = true;
        self.forget()
    }

    /// The same as a cooperative launch whose grid, along x alone, is not cut: a device with fewer multiprocessors than it
    /// has blocks refuses it, with [`LaunchLimit::Resident`].
    #[must_use]
    pub fn cooperative_whole(mut self) -> Self {
        self.cooperative = true;
        self.whole = true;
        self.forget()
    }

    /// Whether all blocks are resident together.
    pub fn is_cooperative(&self) -> bool {
        self.cooperative
    }

    /// The same with this block, for kernels that require none.
    #[must_use]
    pub fn with_block(mut self, block: [u32; 3]) -> Self {
        self.block = Some(block);
        self.forget()
    }

    /// The same with another kernel of the same parameters.
    #[must_use]
    pub fn with_kernel(mut self, kernel: Kernel) -> Self {
        self.kernel = kernel;
        self.forget()
    }

    /// The same with this grid.
    #[must_use]
    pub fn with_grid(mut self, grid: [u32; 3]) -> Self {
        self.grid = grid;
        self.forget()
    }

    /// The same with these arguments.
    #[must_use]
    pub fn with_args(mut self, args: Vec<ArgValue>) -> Self {
        self.args = args;
        self.forget()
    }

    fn forget(mut self) -> Self {
        self.prepared = PreparedFor::default();
        self
    }

    /// The kernel: its entry name, PTX text and directives.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Blocks per dimension.
    pub fn grid(&self) -> [u32; 3] {
        self.grid
    }

    /// Threads per dimension of a block, if the kernel or the step fixes them.
    pub fn block(&self) -> Option<[u32; 3]> {
        self.block
    }

    /// Blocks per dimension of a cluster, if the kernel requires clusters.
    pub fn cluster(&self) -> Option<[u32; 3]> {
        self.kernel.function().directives.cluster
    }

    /// Dynamic shared memory in bytes.
    pub fn dynamic_shared(&self) -> u32 {
        self.dynamic_shared
    }

    /// The arguments in the order of the kernel's parameters.
    pub fn args(&self) -> &[ArgValue] {
        &self.args
    }

    /// Loads the kernel and checks the launch, so that the first real launch is as fast as later ones.
    ///
    /// # Errors
    /// As [`Stream::launch`].
    pub fn warm_up(&self, device: &Device) -> Result<LoadedKernel> {
        self.on(device, |prepared| Ok(prepared.kernel.clone()))
    }

    /// Does something with what is prepared for a device.
    pub(crate) fn on<T>(&self, device: &Device, use_it: impl FnOnce(&Prepared) -> Result<T>) -> Result<T> {
        let index = device.index();
        if let Some(first) = self.prepared.first.get().filter(|p| p.device == index) {
            return use_it(first);
        }
        let known = self.prepared.others().iter().find(|p| p.device == index).cloned();
        let prepared = match known {
            Some(known) => known,
            None => self.prepared.add(Arc::new(self.prepare(device)?)),
        };
        use_it(&prepared)
    }

    fn prepare(&self, device: &Device) -> Result<Prepared> {
        let kernel = device.load(&self.kernel)?;
        let limit = device.properties().multiprocessors.max(1);
        if self.whole && self.grid[0] > limit {
            return Err(kernel.refuse(LaunchLimit::Resident { limit, got: self.grid[0] }));
        }
        kernel.prepare(device, self.grid, self.block, self.dynamic_shared, self.cooperative, &self.args)
    }
}

/// The prepared launches of a step, by device. The first device, most often the only one, is found without a lock.
#[derive(Default)]
struct PreparedFor {
    first: OnceLock<Arc<Prepared>>,
    others: RwLock<Vec<Arc<Prepared>>>,
}

impl PreparedFor {
    fn others(&self) -> RwLockReadGuard<'_, Vec<Arc<Prepared>>> {
        self.others.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers it, unless another thread has been faster; what is remembered.
    fn add(&self, made: Arc<Prepared>) -> Arc<Prepared> {
        let first = self.first.get_or_init(|| made.clone());
        if first.device == made.device {
            return first.clone();
        }
        let mut others = self.others.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = others.iter().find(|p| p.device == made.device) {
            return found.clone();
        }
        // Emulators come and go (one per test, say); a plan must not keep all of them alive.
        if others.len() >= MAX_PREPARED_DEVICES {
            others.remove(0);
        }
        others.push(made.clone());
        made
    }
}

impl Clone for PreparedFor {
    fn clone(&self) -> Self {
        Self { first: self.first.clone(), others: RwLock::new(self.others().clone()) }
    }
}

/// Devices beside the first for which a step remembers what it prepared.
const MAX_PREPARED_DEVICES: usize = 8;

impl Clone for LaunchStep {
    fn clone(&self) -> Self {
        Self {
            kernel: self.kernel.clone(),
            grid: self.grid,
            block: self.block,
            dynamic_shared: self.dynamic_shared,
            cooperative: self.cooperative,
            whole: self.whole,
            args: self.args.clone(),
            prepared: self.prepared.clone(),
        }
    }
}

impl fmt::Debug for LaunchStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaunchStep")
            .field("kernel", &self.kernel.name())
            .field("grid", &self.grid)
            .field("block", &self.block)
            .field("dynamic_shared", &self.dynamic_shared)
            .field("args", &self.args)
            .finish()
    }
}
