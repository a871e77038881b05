//! Communicators over NCCL.
//!
//! All calls are nonblocking: they return at once, and the state of the communicator is looked at until it has taken them, up to a
//! deadline. A communicator that fails or is too late is aborted, which ends its kernels.

mod library;

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use warpwright_ptx::DType;

use self::library::{Api, Config, RawComm, RawId, api};
use super::{driver_error, make_current};
use crate::comm::{Call, CommFailure, Kind, Reduction, Transport, Trouble};
use crate::device::Device;
use crate::error::Result;
use crate::interop::{raw_context, raw_stream};
use crate::stream::Stream;

pub use self::library::NcclLibrary;

const SUCCESS: c_int = 0;
const IN_PROGRESS: c_int = 7;
/// Between two looks at a communicator that takes long.
const PAUSE: Duration = Duration::from_micros(50);

/// The identity of a new communicator, which all its ranks need.
pub(crate) fn unique_id() -> Result<[u8; 128], Trouble> {
    let api = api()?;
    let mut id = RawId([0; 128]);
    // SAFETY: the function writes one identity.
    let code = unsafe { (api.get_unique_id)(&raw mut id) };
    check(api, "ncclGetUniqueId", code, ptr::null_mut())?;
    Ok(id.0)
}

/// One rank, after all others have come.
pub(crate) fn connect(
    device: &Device,
    id: &[u8; 128],
    rank: usize,
    size: usize,
    timeout: Duration,
) -> Result<Box<dyn Transport>, Trouble> {
    let comm = Nccl::begin(device, id, rank, size, timeout)?;
    comm.settle("ncclCommInitRankConfig", &mut comm.lock())?;
    Ok(Box::new(comm))
}

/// All ranks, from one thread: each begins before one is waited for.
pub(crate) fn local(
    devices: &[Device],
    timeout: Duration,
) -> Result<Vec<Box<dyn Transport>>, (usize, Trouble)> {
    let id = unique_id().map_err(|trouble| (0, trouble))?;
    let mut comms = Vec::new();
    for (rank, device) in devices.iter().enumerate() {
        comms
            .push(Nccl::begin(device, &id, rank, devices.len(), timeout).map_err(|trouble| (rank, trouble))?);
    }
    for (rank, comm) in comms.iter().enumerate() {
        comm.settle("ncclCommInitRankConfig", &mut comm.lock()).map_err(|failure| (rank, failure.into()))?;
    }
    Ok(comms.into_iter().map(|comm| Box::new(comm) as _).collect())
}

fn check(api: &Api, call: &'static str, code: c_int, comm: RawComm) -> Result<(), CommFailure> {
    if code == SUCCESS || code == IN_PROGRESS {
        return Ok(());
    }
    let (text, detail) = api.texts(code, comm);
    Err(CommFailure::Nccl { call, code, text, detail })
}

/// A communicator of the library; null once it is gone.
struct Handle(RawComm);

// SAFETY: NCCL takes a communicator from any thread, one at a time; the lock around it sees to that.
unsafe impl Send for Handle {}

/// One rank.
pub(crate) struct Nccl {
    api: &'static Api,
    comm: Mutex<Handle>,
    /// `CUcontext` of the rank's GPU.
    context: u64,
    rank: usize,
    size: usize,
    timeout: Duration,
    /// Asks the thread that waits to end the communicator.
    stop: AtomicBool,
}

impl std::fmt::Debug for Nccl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Nccl({} of {}, {})", self.rank, self.size, self.api.library.version)
    }
}

impl Nccl {
    /// A rank that has begun to look for the others.
    fn begin(
        device: &Device,
        id: &[u8; 128],
        rank: usize,
        size: usize,
        timeout: Duration,
    ) -> Result<Self, Trouble> {
        let api = api()?;
        let context = raw_context(device)?;
        let _current = make_current(context).map_err(driver_error)?;
        let (mut comm, mut config): (RawComm, _) = (ptr::null_mut(), Config::nonblocking());
        let number = |n: usize| c_int::try_from(n).unwrap_or(c_int::MAX);
        // SAFETY: the device's context is current; the function writes one handle and reads the configuration, whose size it is told.
        let code =
            unsafe { (api.init)(&raw mut comm, number(size), RawId(*id), number(rank), &raw mut config) };
        check(api, "ncclCommInitRankConfig", code, ptr::null_mut())?;
        let stop = AtomicBool::new(false);
        Ok(Self { api, comm: Mutex::new(Handle(comm)), context, rank, size, timeout, stop })
    }

    fn lock(&self) -> MutexGuard<'_, Handle> {
        self.comm.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn alive(&self, handle: &Handle) -> Result<RawComm, CommFailure> {
        if handle.0.is_null() || self.stop.load(Ordering::Acquire) {
            return Err(CommFailure::Unusable { reason: "it has failed or was aborted".to_owned() });
        }
        Ok(handle.0)
    }

    /// The state of the communicator: whether it is at rest.
    fn state(&self, call: &'static str, comm: RawComm) -> Result<bool, CommFailure> {
        let mut state = SUCCESS;
        // SAFETY: the communicator is alive, and the function writes one number.
        let code = unsafe { (self.api.async_error)(comm, &raw mut state) };
        check(self.api, "ncclCommGetAsyncError", code, comm)?;
        check(self.api, call, state, comm)?;
        Ok(state == SUCCESS)
    }

    /// Waits until the communicator has taken `call`; ends it if that fails.
    fn settle(&self, call: &'static str, handle: &mut Handle) -> Result<(), CommFailure> {
        let began = Instant::now();
        loop {
            let outcome = self.alive(handle).and_then(|comm| self.state(call, comm));
            match outcome {
                Ok(true) => return Ok(()),
                Ok(false) if began.elapsed() < self.timeout => self.pause(began),
                Ok(false) => {
                    self.end(handle);
                    return Err(CommFailure::TimedOut { after: self.timeout, missing: Vec::new() });
                }
                Err(failure) => {
                    self.end(handle);
                    return Err(failure);
                }
            }
        }
    }

    /// Gives the processor away, and sleeps once it takes long.
    fn pause(&self, began: Instant) {
        if began.elapsed() < Duration::from_millis(1) {
            std::thread::yield_now();
        } else {
            std::thread::sleep(PAUSE);
        }
    }

    /// Aborts the communicator: its kernels end, and its memory is given back.
    fn end(&self, handle: &mut Handle) {
        if !handle.0.is_null() {
            let _current = make_current(self.context);
            // SAFETY: the communicator is alive, and nobody sees it afterwards. There is nobody to tell of an error.
            let _ = unsafe { (self.api.abort)(handle.0) };
            handle.0 = ptr::null_mut();
        }
    }

    /// Hands one call to the library; the state of the communicator tells what becomes of it.
    fn submit(&self, comm: RawComm, stream: *mut c_void, call: &Call) -> Result<(), CommFailure> {
        let api = self.api;
        let (source, target) = (call.source.0 as *const c_void, call.target.0 as *mut c_void);
        let count = call.count as usize;
        let bytes = count * call.dtype.bytes();
        let check = |name, code| check(api, name, code, comm);
        let rank = |rank: usize| c_int::try_from(rank).unwrap_or(c_int::MAX);
        // SAFETY: of all calls below. The communicator is alive and its device's context current; the stream is one of that device.
        // The tensors were checked: they are memory of that device, contiguous, with as many elements as the call has for these
        // ranks; outputs are borrowed exclusively. Their memory is kept until the stream has done the work. Data that is only moved
        // goes as bytes, whatever its type.
        unsafe {
            match call.kind {
                Kind::AllReduce(reduction) | Kind::ReduceScatter(reduction) => {
                    let (name, reduce) = match call.kind {
                        Kind::AllReduce(_) => ("ncclAllReduce", api.all_reduce),
                        _ => ("ncclReduceScatter", api.reduce_scatter),
                    };
                    let (dtype, operation) = (code_of(call.dtype), operation(reduction));
                    check(name, reduce(source, target, count, dtype, operation, comm, stream))
                }
                Kind::AllGather => {
                    check("ncclAllGather", (api.all_gather)(source, target, bytes, BYTES, comm, stream))
                }
                Kind::Broadcast { root } => check(
                    "ncclBroadcast",
                    (api.broadcast)(source, target, bytes, BYTES, rank(root), comm, stream),
                ),
                Kind::Send { to } => {
                    check("ncclSend", (api.send)(source, bytes, BYTES, rank(to), comm, stream))
                }
                Kind::Receive { from } => {
                    check("ncclRecv", (api.receive)(target, bytes, BYTES, rank(from), comm, stream))
                }
                Kind::AllToAll => {
                    for other in 0..self.size {
                        let (from, to) = (
                            source.wrapping_byte_add(other * bytes),
                            target.wrapping_byte_add(other * bytes),
                        );
                        check("ncclSend", (api.send)(from, bytes, BYTES, rank(other), comm, stream))?;
                        check("ncclRecv", (api.receive)(to, bytes, BYTES, rank(other), comm, stream))?;
                    }
                    Ok(())
                }
                Kind::Barrier => Ok(()),
            }
        }
    }

    /// Hands calls to the library as one group.
    fn enqueue(&self, comm: RawComm, stream: *mut c_void, calls: &[Call]) -> Result<(), CommFailure> {
        // SAFETY: groups belong to the thread; each is ended below, also if a call fails.
        check(self.api, "ncclGroupStart", unsafe { (self.api.group_start)() }, comm)?;
        let submitted = calls.iter().try_for_each(|call| self.submit(comm, stream, call));
        // SAFETY: as above.
        let ended = check(self.api, "ncclGroupEnd", unsafe { (self.api.group_end)() }, comm);
        submitted.and(ended)
    }
}

/// `ncclUint8`
const BYTES: c_int = 1;

/// `ncclDataType_t` of the types that are reduced.
const fn code_of(dtype: DType) -> c_int {
    match dtype {
        DType::I8 => 0,
        DType::I32 => 2,
        DType::U32 => 3,
        DType::I64 => 4,
        DType::U64 => 5,
        DType::F16 => 6,
        DType::F32 => 7,
        DType::F64 => 8,
        DType::BF16 => 9,
        // The others are not reduced: see `Reduction::takes`.
        DType::U8 | DType::F8E4M3 | DType::F8E5M2 | DType::U16 | DType::I16 => BYTES,
    }
}

/// `ncclRedOp_t`
const fn operation(reduction: Reduction) -> c_int {
    match reduction {
        Reduction::Sum => 0,
        Reduction::Product => 1,
        Reduction::Max => 2,
        Reduction::Min => 3,
        Reduction::Mean => 4,
    }
}

impl Transport for Nccl {
    fn run(&self, stream: &Stream, calls: &[Call]) -> Result<(), Trouble> {
        let mut handle = self.lock();
        let comm = self.alive(&handle)?;
        let _current = make_current(self.context).map_err(driver_error)?;
        let raw = raw_stream(stream)? as *mut c_void;
        // All ranks add up a number. Its memory goes back in the order of the stream, once the library has taken the call.
        let mut scratch = None;
        let barrier = if let [Call { kind: Kind::Barrier, .. }] = calls {
            let memory = scratch.insert(stream.alloc(4)?);
            stream.fill(memory, 0, 0, 4)?;
            let (kind, place) = (Kind::AllReduce(Reduction::Sum), (memory.address(), 1));
            Some([Call { kind, dtype: DType::U32, count: 1, source: place, target: place }])
        } else {
            None
        };
        if let Err(failure) = self.enqueue(comm, raw, barrier.as_ref().map_or(calls, <[Call; 1]>::as_slice)) {
            self.end(&mut handle);
            return Err(failure.into());
        }
        self.settle("ncclGroupEnd", &mut handle)?;
        drop(scratch);
        Ok(())
    }

    fn synchronize(&self, stream: &Stream) -> Result<(), Trouble> {
        let began = Instant::now();
        loop {
            // Before the state is looked at: the kernels of a communicator that was aborted have ended, too.
            let idle = stream.is_idle()?;
            let mut handle = self.lock();
            let state = self.alive(&handle).and_then(|comm| self.state("a call on the GPU", comm));
            let failure = match state {
                Ok(_) if idle => return Ok(()),
                Ok(_) if began.elapsed() < self.timeout => None,
                Ok(_) => Some(CommFailure::TimedOut { after: self.timeout, missing: Vec::new() }),
                Err(failure) => Some(failure),
            };
            if let Some(failure) = failure {
                self.end(&mut handle);
                return Err(failure.into());
            }
            drop(handle);
            self.pause(began);
        }
    }

    fn abort(&self, _reason: &str) {
        // A thread that waits with the lock sees this and lets go.
        self.stop.store(true, Ordering::Release);
        self.end(&mut self.lock());
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        let mut handle = self.lock();
        if handle.0.is_null() {
            return;
        }
        if std::thread::panicking() || self.stop.load(Ordering::Acquire) {
            return self.end(&mut handle);
        }
        let current = make_current(self.context);
        // SAFETY: the communicator is alive.
        let code = unsafe { (self.api.finalize)(handle.0) };
        let began = Instant::now();
        let mut state = check(self.api, "ncclCommFinalize", code, handle.0).map(|()| false);
        // Work that is still on streams is not cut off before its time.
        while matches!(state, Ok(false)) && began.elapsed() < self.timeout {
            state = self.state("ncclCommFinalize", handle.0);
            self.pause(began);
        }
        if matches!(state, Ok(true)) && current.is_ok() {
            // SAFETY: the communicator has no work left, and nobody sees it afterwards.
            let _ = unsafe { (self.api.destroy)(handle.0) };
            handle.0 = ptr::null_mut();
        }
        self.end(&mut handle);
    }
}
