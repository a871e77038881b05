//! XLA's foreign function interface: what a custom call takes and calls.
//!
//! The layouts are those of `xla/ffi/api/c_api.h`, of which nothing newer than version 0.1 is used. One function per platform serves every
//! call: an attribute says which.
#![allow(unsafe_code, reason = "the interface is C")]

use std::ffi::{CString, c_char, c_void};
use std::mem::size_of;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::{ptr, slice};

use pyo3::prelude::*;
use warpwright::{DType, Error, RuntimeError};
use warpwright_runtime::interop;

use crate::device::{self, Place};
use crate::planned::{ArrayType, Kind, PlannedCall};

/// The version of the interface that this is written for: it is the least that a runtime must have.
const VERSION: (i32, i32) = (0, 1);
/// The attribute that says which call it is.
const ATTRIBUTE: &[u8] = b"call";
/// Alignment of memory for the time of a call: the most that XLA lets a call ask for.
const ALIGNMENT: usize = 16;

const METADATA: i32 = 1;
const BUFFER: i32 = 1;
const STRING: i32 = 4;
const EXECUTE: i32 = 3;

const INVALID_ARGUMENT: i32 = 3;
const RESOURCE_EXHAUSTED: i32 = 8;
const FAILED_PRECONDITION: i32 = 9;
const INTERNAL: i32 = 13;

#[repr(C)]
struct Extension {
    struct_size: usize,
    kind: i32,
    next: *mut Extension,
}

#[repr(C)]
struct ApiVersion {
    struct_size: usize,
    extension: *mut Extension,
    major: i32,
    minor: i32,
}

#[repr(C)]
struct Metadata {
    struct_size: usize,
    version: ApiVersion,
    traits: u32,
}

#[repr(C)]
struct MetadataExtension {
    base: Extension,
    metadata: *mut Metadata,
}

/// An error of XLA's.
type Failure = *mut c_void;
type Context = *mut c_void;

#[repr(C)]
struct ErrorArgs {
    struct_size: usize,
    extension: *mut Extension,
    message: *const c_char,
    code: i32,
}

#[repr(C)]
struct MessageArgs {
    struct_size: usize,
    extension: *mut Extension,
    error: Failure,
    message: *const c_char,
}

#[repr(C)]
struct DestroyArgs {
    struct_size: usize,
    extension: *mut Extension,
    error: Failure,
}

#[repr(C)]
struct StreamArgs {
    struct_size: usize,
    extension: *mut Extension,
    context: Context,
    stream: *mut c_void,
}

#[repr(C)]
struct AllocateArgs {
    struct_size: usize,
    extension: *mut Extension,
    context: Context,
    size: usize,
    alignment: usize,
    data: *mut c_void,
}

#[repr(C)]
struct FreeArgs {
    struct_size: usize,
    extension: *mut Extension,
    context: Context,
    size: usize,
    data: *mut c_void,
}

/// The functions of the interface, up to the last that is called.
#[repr(C)]
struct Api {
    struct_size: usize,
    extension: *mut Extension,
    version: ApiVersion,
    internal: *const c_void,
    error_create: unsafe extern "C" fn(*mut ErrorArgs) -> Failure,
    error_message: unsafe extern "C" fn(*mut MessageArgs),
    error_destroy: unsafe extern "C" fn(*mut DestroyArgs),
    handler_register: *const c_void,
    stream_get: unsafe extern "C" fn(*mut StreamArgs) -> Failure,
    type_register: *const c_void,
    context_get: *const c_void,
    state_set: *const c_void,
    state_get: *const c_void,
    memory_allocate: unsafe extern "C" fn(*mut AllocateArgs) -> Failure,
    memory_free: unsafe extern "C" fn(*mut FreeArgs) -> Failure,
}

#[repr(C)]
struct Buffer {
    struct_size: usize,
    extension: *mut Extension,
    dtype: i32,
    data: *mut c_void,
    rank: i64,
    dims: *const i64,
}

#[repr(C)]
struct Span {
    data: *const u8,
    len: usize,
}

/// Arguments, or results.
#[repr(C)]
struct Buffers {
    struct_size: usize,
    extension: *mut Extension,
    size: i64,
    kinds: *const i32,
    items: *const *const Buffer,
}

#[repr(C)]
struct Attributes {
    struct_size: usize,
    extension: *mut Extension,
    size: i64,
    kinds: *const i32,
    names: *const *const Span,
    items: *const *const c_void,
}

/// A call.
#[repr(C)]
pub(crate) struct CallFrame {
    struct_size: usize,
    extension: *mut Extension,
    api: *const Api,
    context: Context,
    stage: i32,
    arguments: Buffers,
    results: Buffers,
    attributes: Attributes,
}

/// Why a call failed: XLA's code, and what there is to say.
struct Refusal(i32, String);

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let code = match error {
            Error::Runtime(RuntimeError::OutOfMemory { .. }) => RESOURCE_EXHAUSTED,
            _ => INTERNAL,
        };
        Self(code, format!("warpwright: {error}"))
    }
}

impl From<RuntimeError> for Refusal {
    fn from(error: RuntimeError) -> Self {
        Error::from(error).into()
    }
}

fn invalid(message: impl Into<String>) -> Refusal {
    Refusal(INVALID_ARGUMENT, format!("warpwright: {}", message.into()))
}

/// A list of a call; empty if it has no items.
///
/// # Safety
/// `first` points to `len` items that live as long as the result, unless there are none.
unsafe fn list<'a, T>(first: *const T, len: i64) -> &'a [T] {
    match usize::try_from(len) {
        // SAFETY: the caller's promise.
        Ok(len @ 1..) if !first.is_null() => unsafe { slice::from_raw_parts(first, len) },
        _ => &[],
    }
}

/// The element type of a buffer.
fn dtype(code: i32) -> Result<DType, Refusal> {
    Ok(match code {
        2 => DType::I8,
        3 => DType::I16,
        4 => DType::I32,
        5 => DType::I64,
        6 => DType::U8,
        7 => DType::U16,
        8 => DType::U32,
        9 => DType::U64,
        10 => DType::F16,
        11 => DType::F32,
        12 => DType::F64,
        16 => DType::BF16,
        19 => DType::F8E5M2,
        20 => DType::F8E4M3,
        other => return Err(invalid(format!("a buffer has the element type {other} of XLA"))),
    })
}

/// Buffers as arrays, and where they lie.
///
/// # Safety
/// They are those of a call in progress.
unsafe fn arrays(buffers: &Buffers) -> Result<(Vec<ArrayType>, Vec<u64>), Refusal> {
    // SAFETY: XLA gives as many kinds and items as it says.
    let (kinds, items) = unsafe { (list(buffers.kinds, buffers.size), list(buffers.items, buffers.size)) };
    let mut found = (Vec::with_capacity(items.len()), Vec::with_capacity(items.len()));
    for (kind, item) in kinds.iter().zip(items) {
        if *kind != BUFFER {
            return Err(invalid(format!(
                "an argument or result is of kind {kind} of XLA, expected a buffer"
            )));
        }
        // SAFETY: an item of this kind is a buffer, whose extents live as long as the call.
        let buffer = unsafe { &**item };
        // SAFETY: as above.
        let extents = unsafe { list(buffer.dims, buffer.rank) };
        let extent = |n: &i64| usize::try_from(*n).map_err(|_| invalid(format!("a buffer has extent {n}")));
        let shape = extents.iter().map(extent).collect::<Result<_, _>>()?;
        found.0.push(ArrayType { dtype: dtype(buffer.dtype)?, shape });
        found.1.push(buffer.data.expose_provenance() as u64);
    }
    Ok(found)
}

impl Api {
    /// The message of an error of XLA's, which is then freed.
    fn explained(&self, error: Failure) -> String {
        let mut args = MessageArgs {
            struct_size: size_of::<MessageArgs>(),
            extension: ptr::null_mut(),
            error,
            message: ptr::null(),
        };
        // SAFETY: the error is ours; its message ends in a zero and lives as long as it.
        let message = unsafe {
            (self.error_message)(&raw mut args);
            if args.message.is_null() {
                String::new()
            } else {
                std::ffi::CStr::from_ptr(args.message).to_string_lossy().into_owned()
            }
        };
        let mut args =
            DestroyArgs { struct_size: size_of::<DestroyArgs>(), extension: ptr::null_mut(), error };
        // SAFETY: the error is ours, and nothing of it is used after.
        unsafe { (self.error_destroy)(&raw mut args) };
        message
    }

    /// An error of XLA's, who owns it from then on.
    fn failure(&self, Refusal(code, message): Refusal) -> Failure {
        let message = CString::new(message.replace('\0', " ")).unwrap_or_default();
        let mut args = ErrorArgs {
            struct_size: size_of::<ErrorArgs>(),
            extension: ptr::null_mut(),
            message: message.as_ptr(),
            code,
        };
        // SAFETY: the message ends in a zero, and is copied.
        unsafe { (self.error_create)(&raw mut args) }
    }

    /// The stream of a call on a GPU.
    fn stream(&self, context: Context) -> Result<u64, Refusal> {
        let mut args = StreamArgs {
            struct_size: size_of::<StreamArgs>(),
            extension: ptr::null_mut(),
            context,
            stream: ptr::null_mut(),
        };
        // SAFETY: the context is that of the call in progress.
        let failed = unsafe { (self.stream_get)(&raw mut args) };
        if failed.is_null() {
            return Ok(args.stream.expose_provenance() as u64);
        }
        Err(Refusal(INTERNAL, format!("warpwright: no stream: {}", self.explained(failed))))
    }
}

/// Memory for the time of a call.
enum Scratch<'a> {
    Host(Vec<Vec<u64>>),
    Device { api: &'a Api, context: Context, pieces: Vec<(*mut c_void, usize)> },
}

impl<'a> Scratch<'a> {
    fn host(wanted: impl Iterator<Item = u64>) -> Result<Self, Refusal> {
        let piece = |bytes: u64| {
            let words = usize::try_from(bytes.div_ceil(8)).map_err(|_| too_much(bytes))?;
            let mut piece = Vec::new();
            piece.try_reserve_exact(words).map_err(|_| too_much(bytes))?;
            piece.resize(words, 0);
            Ok(piece)
        };
        wanted.map(piece).collect::<Result<_, _>>().map(Self::Host)
    }

    /// Memory of XLA's, which it gives to others in the order of the stream.
    fn device(api: &'a Api, context: Context, wanted: impl Iterator<Item = u64>) -> Result<Self, Refusal> {
        let mut all = Self::Device { api, context, pieces: Vec::new() };
        for bytes in wanted {
            let size = usize::try_from(bytes).map_err(|_| too_much(bytes))?;
            let mut args = AllocateArgs {
                struct_size: size_of::<AllocateArgs>(),
                extension: ptr::null_mut(),
                context,
                size,
                alignment: ALIGNMENT,
                data: ptr::null_mut(),
            };
            if size > 0 {
                // SAFETY: the context is that of the call in progress.
                let failed = unsafe { (api.memory_allocate)(&raw mut args) };
                if !failed.is_null() {
                    let message = format!("warpwright: {bytes} bytes: {}", api.explained(failed));
                    return Err(Refusal(RESOURCE_EXHAUSTED, message));
                }
            }
            if let Self::Device { pieces, .. } = &mut all {
                pieces.push((args.data, size));
            }
        }
        Ok(all)
    }

    fn addresses(&mut self) -> Vec<u64> {
        match self {
            Self::Host(pieces) => {
                pieces.iter_mut().map(|piece| piece.as_mut_ptr().expose_provenance() as u64).collect()
            }
            Self::Device { pieces, .. } => {
                pieces.iter().map(|(data, _)| data.expose_provenance() as u64).collect()
            }
        }
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        let Self::Device { api, context, pieces } = self else { return };
        for (data, size) in pieces.iter().filter(|(data, _)| !data.is_null()) {
            let mut args = FreeArgs {
                struct_size: size_of::<FreeArgs>(),
                extension: ptr::null_mut(),
                context: *context,
                size: *size,
                data: *data,
            };
            // SAFETY: the memory was allocated in this call, which still is in progress. What was enqueued on it comes on the stream of the
            // call before whatever XLA uses it for next.
            let failed = unsafe { (api.memory_free)(&raw mut args) };
            if !failed.is_null() {
                api.explained(failed);
            }
        }
    }
}

fn too_much(bytes: u64) -> Refusal {
    Refusal(RESOURCE_EXHAUSTED, format!("warpwright: no memory for {bytes} bytes"))
}

/// The text of the call.
///
/// # Safety
/// The attributes are those of a call in progress.
unsafe fn text(attributes: &Attributes) -> Result<&str, Refusal> {
    // SAFETY: XLA gives as many kinds, names and items as it says.
    let (kinds, names, items) = unsafe {
        let size = attributes.size;
        (list(attributes.kinds, size), list(attributes.names, size), list(attributes.items, size))
    };
    for ((kind, name), item) in kinds.iter().zip(names).zip(items) {
        // SAFETY: names are spans of bytes that live as long as the call.
        let name = unsafe { span(*name) };
        if *kind == STRING && name == ATTRIBUTE {
            // SAFETY: an attribute of this kind is a span of bytes, which live as long as the call.
            let text = unsafe { span(item.cast()) };
            return std::str::from_utf8(text).map_err(|_| invalid("the attribute `call` is no text"));
        }
    }
    Err(invalid("there is no attribute `call`"))
}

/// # Safety
/// A span of bytes that live as long as the result.
unsafe fn span<'a>(span: *const Span) -> &'a [u8] {
    // SAFETY: the caller's promise.
    unsafe { list((*span).data, (*span).len as i64) }
}

/// The plan of a call, made now if there is none. Nobody who waits for the call holds the interpreter: JAX lets it go before it
/// runs anything, because functions in Python that it calls back need it as well.
fn planned(kind: &Kind, place: Place) -> Result<Arc<PlannedCall>, Refusal> {
    if let Some(call) = PlannedCall::known(kind) {
        return Ok(call);
    }
    let planned = Python::try_attach(|py| {
        PlannedCall::plan(py, kind, place).map_err(|e| invalid(e.value(py).to_string()))
    });
    let ended = || Refusal(FAILED_PRECONDITION, "warpwright: the interpreter has ended".to_owned());
    planned.ok_or_else(ended)?
}

/// # Safety
/// A call in progress.
unsafe fn execute(frame: &CallFrame, api: &Api, on_gpu: bool) -> Result<(), Refusal> {
    if frame.stage != EXECUTE {
        return Ok(());
    }
    // SAFETY: the parts of a call live as long as it.
    let (text, (arguments, reads), (results, writes)) =
        unsafe { (text(&frame.attributes)?, arrays(&frame.arguments)?, arrays(&frame.results)?) };
    let (place, stream) = if on_gpu {
        // Without any memory there is nothing to compute.
        let Some(address) = reads.iter().chain(&writes).copied().find(|address| *address != 0) else {
            return Ok(());
        };
        (Place::Cuda(interop::device_of_address(address)?), api.stream(frame.context)?)
    } else {
        (Place::Host, 0)
    };
    let kind = Kind { text: text.into(), arguments: arguments.into(), target: device::target(place)? };
    let call = planned(&kind, place)?;
    if !call.results().eq(&results) {
        let expected: Vec<_> = call.results().collect();
        return Err(invalid(format!("{text}: results are {results:?}, expected {expected:?}")));
    }
    let mut scratch = if on_gpu {
        Scratch::device(api, frame.context, call.scratch())?
    } else {
        Scratch::host(call.scratch())?
    };
    Ok(call.run((place, stream), &reads, &writes, &scratch.addresses())?)
}

/// Tells XLA which version of the interface this is.
///
/// # Safety
/// A list of extensions of a call.
unsafe fn answer(mut extension: *mut Extension) -> bool {
    while !extension.is_null() {
        // SAFETY: the list ends in null; an extension of this kind holds a place for the answer.
        unsafe {
            if (*extension).kind == METADATA {
                let metadata = &mut *(*extension.cast::<MetadataExtension>()).metadata;
                metadata.version.struct_size = size_of::<ApiVersion>();
                (metadata.version.major, metadata.version.minor) = VERSION;
                metadata.traits = 0;
                return true;
            }
            extension = (*extension).next;
        }
    }
    false
}

/// # Safety
/// A call of XLA's.
unsafe fn handle(frame: *const CallFrame, on_gpu: bool) -> Failure {
    // SAFETY: a frame of any version holds a list of extensions, which belong to the call.
    if unsafe { answer((*frame).extension) } {
        return ptr::null_mut();
    }
    // SAFETY: the interface lives as long as XLA, and says first which version it is of. Its size says less than it holds in version 0.1.
    let version = unsafe { &raw const (*(*frame).api).version };
    // SAFETY: as above; every structure begins with its size.
    let (major, minor, size) = unsafe { ((*version).major, (*version).minor, (*frame).struct_size) };
    // SAFETY: from this version on the interface holds all functions that are called. Before a handler is called at all XLA has refused
    // it if it is of another version than XLA knows.
    let api = unsafe { &*(*frame).api };
    if (major, minor) < VERSION || size < size_of::<CallFrame>() {
        let message = format!("warpwright: XLA has version {major}.{minor} of its interface, expected 0.1");
        return api.failure(Refusal(FAILED_PRECONDITION, message));
    }
    // SAFETY: the call is in progress, and the frame has all parts.
    let done = catch_unwind(AssertUnwindSafe(|| unsafe { execute(&*frame, api, on_gpu) }));
    let panicked = |_| Err(Refusal(INTERNAL, "warpwright: a call panicked".to_owned()));
    match done.unwrap_or_else(panicked) {
        Ok(()) => ptr::null_mut(),
        Err(refusal) => api.failure(refusal),
    }
}

unsafe extern "C" fn on_host(frame: *mut CallFrame) -> Failure {
    // SAFETY: XLA calls it with a frame.
    unsafe { handle(frame, false) }
}

unsafe extern "C" fn on_cuda(frame: *mut CallFrame) -> Failure {
    // SAFETY: as above.
    unsafe { handle(frame, true) }
}

/// The addresses of the functions behind custom calls: of the host, and of CUDA.
#[pyfunction]
pub(crate) fn xla_handlers() -> (usize, usize) {
    (on_host as *const () as usize, on_cuda as *const () as usize)
}
