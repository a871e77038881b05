//! Failures, as data.

use warpwright_ptx::kernel::KernelError;
use warpwright_ptx::{ArgError, DType, PtxVersion, Target};

use crate::comm::CommError;
use crate::device::DeviceId;
use crate::discover::{CudaUnavailable, DriverVersion};

/// The result of everything in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failure. Every variant carries what was expected and what was found.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// CUDA was asked for and cannot be used.
    #[error("CUDA cannot be used: {0}")]
    NoDriver(CudaUnavailable),
    /// There is no CUDA device of that number.
    #[error("there is no CUDA device {ordinal}: the driver reports {count}")]
    NoSuchDevice {
        /// The number asked for.
        ordinal: u32,
        /// How many there are.
        count: u32,
    },
    /// A device name is none of `auto`, `cuda`, `cuda:N`, `emulator`, `emulator:sm_XX`.
    #[error("`{name}` names no device: expected `auto`, `cuda`, `cuda:N`, `emulator` or `emulator:sm_XX`")]
    DeviceName {
        /// The value given.
        name: String,
    },
    /// A call of the CUDA driver failed, and the device is still usable.
    #[error("{call} failed: {name} ({code}): {description}")]
    Driver {
        /// The number of the error.
        code: u32,
        /// Its name, such as `CUDA_ERROR_INVALID_VALUE`.
        name: String,
        /// The driver's sentence about it.
        description: String,
        /// The function that returned it.
        call: &'static str,
    },
    /// The driver refused to compile or link a kernel.
    #[error("the driver could not compile kernel `{kernel}` ({name}):\n{log}")]
    Jit {
        /// The kernel.
        kernel: String,
        /// Name of the driver's error.
        name: String,
        /// The compiler's log.
        log: String,
    },
    /// The kernel's PTX is newer than the driver.
    #[error("kernel `{kernel}` is PTX {needs}; the driver ({driver}) reads PTX up to {}", .supported.map_or_else(|| "an older version".to_owned(), |v| v.to_string()))]
    PtxTooNew {
        /// The kernel.
        kernel: String,
        /// Its `.version`.
        needs: PtxVersion,
        /// The newest version that the driver reads, where known.
        supported: Option<PtxVersion>,
        /// The CUDA version of the driver.
        driver: DriverVersion,
    },
    /// The kernel is built for another architecture.
    #[error("kernel `{kernel}` is built for {needs} and does not run on {device} (sm_{sm})")]
    Target {
        /// The kernel.
        kernel: String,
        /// Its `.target`.
        needs: Target,
        /// The device.
        device: DeviceId,
        /// Its compute capability.
        sm: u32,
    },
    /// The emulator could not load a kernel.
    #[error("the emulator could not load kernel `{kernel}`: {source}")]
    Load {
        /// The kernel.
        kernel: String,
        /// Its objection.
        source: Box<warpwright_emu::LoadError>,
    },
    /// A module is no kernel.
    #[error(transparent)]
    Kernel(Box<KernelError>),
    /// A kernel failed on the GPU in a way that costs the process this device.
    #[error("{0}")]
    Fault(Box<Fault>),
    /// The emulator found a defect while a kernel ran.
    #[error("{0}")]
    Sanitizer(Box<SanitizerFailure>),
    /// The emulator ended a kernel before its threads were done (trap, deadlock, step limit), or could not start it.
    #[error(transparent)]
    Emulator(Box<warpwright_emu::LaunchError>),
    /// The host accessed memory of the emulator that is not allocated: an address through one of the raw doors.
    #[error("{call} on {device}: {source}")]
    HostAccess {
        /// The call.
        call: &'static str,
        /// The device.
        device: DeviceId,
        /// The reason, from the emulator.
        source: warpwright_emu::MemoryError,
    },
    /// Device memory is used up.
    #[error("out of memory on {device}: {requested} bytes requested, {free} of {total} free")]
    OutOfMemory {
        /// The device.
        device: DeviceId,
        /// Bytes asked for.
        requested: u64,
        /// Bytes free.
        free: u64,
        /// Bytes in all.
        total: u64,
    },
    /// Memory of the host is used up, or too little of it can be page-locked.
    #[error("out of host memory: {requested} bytes requested")]
    OutOfHostMemory {
        /// Bytes asked for.
        requested: u64,
    },
    /// Memory, stream, graph or kernel of one device used with another.
    #[error("{op}: {argument} is on {got}, the stream is on {expected}")]
    WrongDevice {
        /// The operation.
        op: &'static str,
        /// The argument.
        argument: &'static str,
        /// The stream's device.
        expected: DeviceId,
        /// The argument's device.
        got: DeviceId,
    },
    /// A tensor has the wrong shape.
    #[error("{op}: {argument} has shape {got:?}, expected {expected:?}")]
    Shape {
        /// The operation.
        op: &'static str,
        /// The argument.
        argument: &'static str,
        /// The expected one.
        expected: Box<[usize]>,
        /// The one found.
        got: Box<[usize]>,
    },
    /// A tensor has the wrong number of elements for its shape.
    #[error("{op}: {argument} has {got} elements, its shape {shape:?} has {expected}")]
    Elements {
        /// The operation.
        op: &'static str,
        /// The argument.
        argument: &'static str,
        /// The shape.
        shape: Box<[usize]>,
        /// Elements of the shape.
        expected: usize,
        /// Elements given.
        got: usize,
    },
    /// A tensor has more dimensions than [`MAX_RANK`](crate::MAX_RANK), or an index is past its rank.
    #[error("{op}: {argument} has rank {got}, the limit is {limit}")]
    Rank {
        /// The operation.
        op: &'static str,
        /// The argument.
        argument: &'static str,
        /// The largest allowed.
        limit: usize,
        /// The value given.
        got: usize,
    },
    /// A tensor has the wrong element type.
    #[error("{op}: {argument} is {got}, expected {expected}")]
    DType {
        /// The operation.
        op: &'static str,
        /// The argument.
        argument: &'static str,
        /// The expected one.
        expected: DType,
        /// The one found.
        got: DType,
    },
    /// A tensor must be contiguous in row-major order.
    #[error("{op}: {argument} must be contiguous, its shape is {shape:?} with strides {strides:?}")]
    NotContiguous {
        /// The operation.
        op: &'static str,
        /// The argument.
        argument: &'static str,
        /// Its shape.
        shape: Box<[usize]>,
        /// Its strides in elements.
        strides: Box<[i64]>,
    },
    /// A tensor must have the strides that the operation was planned for.
    #[error("{op}: {argument} must have strides {expected:?}, it has {got:?}")]
    Strides {
        /// The operation.
        op: &'static str,
        /// The argument.
        argument: &'static str,
        /// Strides in elements that were planned for.
        expected: Box<[i64]>,
        /// Its strides in elements.
        got: Box<[i64]>,
    },
    /// An address is not aligned as the kernel needs.
    #[error("{op}: {argument} at {address:#x} must be aligned to {required} bytes")]
    Alignment {
        /// The operation.
        op: &'static str,
        /// The argument.
        argument: &'static str,
        /// Bytes.
        required: u64,
        /// The address.
        address: u64,
    },
    /// An output shares memory with another argument.
    #[error("{op}: {first} and {second} overlap in memory")]
    Overlap {
        /// The operation.
        op: &'static str,
        /// One argument.
        first: &'static str,
        /// The other.
        second: &'static str,
    },
    /// Memory is too small, or a range reaches past its end.
    #[error("{op}: {argument} needs {needed} bytes, {available} are available")]
    Bounds {
        /// The operation.
        op: &'static str,
        /// The argument.
        argument: &'static str,
        /// Bytes needed.
        needed: u64,
        /// Bytes there.
        available: u64,
    },
    /// An argument that this configuration needs was not given, or one was given that it does not take.
    #[error("{op}: {argument} {}", if *.given { "was given, but this configuration takes none" } else { "is required" })]
    Presence {
        /// The operation.
        op: &'static str,
        /// The argument.
        argument: &'static str,
        /// Whether it was given.
        given: bool,
    },
    /// A size does not fit in 64 bits.
    #[error("{op}: the size of {argument} does not fit in 64 bits: {shape:?}")]
    Overflow {
        /// The operation.
        op: &'static str,
        /// The argument.
        argument: &'static str,
        /// Its shape.
        shape: Box<[usize]>,
    },
    /// A launch does not fit the kernel or the device.
    #[error("kernel `{kernel}` cannot be launched: {limit}")]
    Launch {
        /// The kernel.
        kernel: String,
        /// The limit that is exceeded.
        limit: LaunchLimit,
    },
    /// The arguments of a launch do not fit the kernel's parameters.
    #[error(transparent)]
    Arguments(#[from] ArgError),
    /// Something that cannot be done while a stream is being captured, or a capture that went wrong.
    #[error("{call} cannot be used while the stream is being captured into a graph")]
    Capturing {
        /// The call.
        call: &'static str,
    },
    /// Ranks could not work together.
    #[error(transparent)]
    Comm(Box<CommError>),
    /// The backend cannot do this.
    #[error("{what} is not available on {device}")]
    NotSupported {
        /// The feature asked for.
        what: &'static str,
        /// The device.
        device: DeviceId,
    },
}

impl From<KernelError> for Error {
    fn from(error: KernelError) -> Self {
        Self::Kernel(Box::new(error))
    }
}

/// Why a launch was refused before it reached the driver.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchLimit {
    /// The block is not the one that the kernel requires.
    #[error("its block is {expected:?} (.reqntid), got {got:?}")]
    Block {
        /// The block that the kernel requires.
        expected: [u32; 3],
        /// The value given.
        got: [u32; 3],
    },
    /// The kernel fixes no block size and the launch gives none.
    #[error("it fixes no block size (.reqntid) and the launch gives none")]
    BlockMissing,
    /// Too many threads in a block, or none.
    #[error("a block of {got:?} is outside the limit of {limit:?} and {threads} threads in all")]
    Threads {
        /// Per dimension.
        limit: [u32; 3],
        /// In all: of the device, or the kernel's `.maxntid`.
        threads: u32,
        /// The value given.
        got: [u32; 3],
    },
    /// Too many blocks.
    #[error("a grid of {got:?} is outside the limit of {limit:?}")]
    Grid {
        /// Per dimension.
        limit: [u32; 3],
        /// The value given.
        got: [u32; 3],
    },
    /// The blocks of a cooperative grid would not be resident together.
    #[error("its {got} blocks wait for each other, and the device has {limit} multiprocessors")]
    Resident {
        /// Multiprocessors of the device.
        limit: u32,
        /// Blocks of the grid.
        got: u32,
    },
    /// The grid is no whole number of clusters.
    #[error("a grid of {grid:?} is no multiple of the cluster {cluster:?}")]
    Cluster {
        /// Blocks of a cluster.
        cluster: [u32; 3],
        /// Blocks of the grid.
        grid: [u32; 3],
    },
    /// More shared memory than a block can have.
    #[error("{fixed} + {dynamic} bytes of shared memory (static + dynamic), a block has {limit}")]
    SharedMemory {
        /// Static bytes.
        fixed: u32,
        /// Dynamic bytes.
        dynamic: u32,
        /// The device's limit.
        limit: u32,
    },
    /// A tensor map that the driver would refuse.
    #[error("argument {argument}: {error}")]
    TensorMap {
        /// Position of the argument.
        argument: usize,
        /// The rule that it breaks.
        error: warpwright_ptx::TensorMapError,
    },
    /// A step mentions a tensor that the launch does not bind.
    #[error("argument {argument} takes tensor {slot}, only {bound} are bound")]
    Unbound {
        /// Position of the argument.
        argument: usize,
        /// The slot it names.
        slot: u32,
        /// How many bindings were given.
        bound: usize,
    },
    /// A bound tensor is memory of another device.
    #[error("tensor {slot} is not memory of {device}")]
    ForeignTensor {
        /// The slot.
        slot: u32,
        /// The stream's device.
        device: DeviceId,
    },
    /// The parameters are larger than a launch can carry.
    #[error("its parameters take {bytes} bytes, the limit is {limit}")]
    Parameters {
        /// Their size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
}

/// A kernel failed on the GPU (illegal address, misaligned access, trap, ...).
///
/// The CUDA context of the device is lost with it: every buffer, stream, event and loaded kernel of that device fails
/// from then on with this error, in this process. Host memory, other devices and the emulator are not affected.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Fault {
    /// The device.
    pub device: DeviceId,
    /// The number of the driver's error.
    pub code: u32,
    /// Its name, such as `CUDA_ERROR_ILLEGAL_ADDRESS`.
    pub name: String,
    /// The call that reported it: usually a later one than the launch.
    pub call: &'static str,
    /// The kernel that was launched last on this device, when the fault was first seen; a suspect, not a proof.
    pub last_kernel: Option<String>,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "a kernel failed on {}: {} ({}), reported by {}",
            self.device, self.name, self.code, self.call
        )?;
        if let Some(kernel) = &self.last_kernel {
            write!(f, "; the last kernel launched there was `{kernel}`")?;
        }
        write!(
            f,
            ". Buffers, streams and kernels of {} cannot be used again in this process; host memory, other devices and \
             the emulator can. Run the same launch on the emulator to see which instruction is at fault",
            self.device
        )
    }
}

/// The emulator found a defect, and is configured to fail on it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SanitizerFailure {
    /// The kernel.
    pub kernel: String,
    /// The first finding, rendered.
    pub finding: String,
    /// How many findings of this launch there are.
    pub count: usize,
}

impl std::fmt::Display for SanitizerFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "kernel `{}`: {}", self.kernel, self.finding)?;
        match self.count {
            0 | 1 => Ok(()),
            n => write!(f, "\n(and {} more)", n - 1),
        }
    }
}
