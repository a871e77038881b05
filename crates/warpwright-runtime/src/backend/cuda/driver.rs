//! The functions of the driver that this crate calls, one checked wrapper each.
//!
//! Every function here needs what the driver's manual asks of its arguments; callers inside [`super`] pass handles that
//! the driver made and that are still alive. Handles are kept as integers so that they are `Send`; the driver allows
//! them on every thread. Only functions are called that the oldest supported driver exports
//! ([`DriverVersion::MINIMUM`](crate::DriverVersion::MINIMUM)): the loader of the binding panics on a missing one.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;

use cudarc::driver::{result, sys};
use warpwright_ptx::tensor_map::{
    Im2col, TENSOR_MAP_BYTES, TensorElement, TensorFill, TensorInterleave, TensorMap, TensorMode,
    TensorSwizzle,
};

/// A call that failed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failure {
    pub(super) call: &'static str,
    pub(super) code: sys::CUresult,
}

pub(super) type Outcome<T = ()> = Result<T, Failure>;

fn check(call: &'static str, code: sys::CUresult) -> Outcome {
    if code == sys::CUresult::CUDA_SUCCESS { Ok(()) } else { Err(Failure { call, code }) }
}

/// A text that the driver has for a code; `get` stores a pointer to a static string, or null and an error.
fn text(get: impl FnOnce(*mut *const c_char) -> sys::CUresult) -> String {
    let mut text = ptr::null();
    if get(&raw mut text) != sys::CUresult::CUDA_SUCCESS || text.is_null() {
        return "unknown error".to_owned();
    }
    // SAFETY: the driver stored a pointer to a static string.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

impl Failure {
    pub(super) fn name(self) -> String {
        // SAFETY: the pointer is to a place for a pointer.
        text(|to| unsafe { sys::cuGetErrorName(self.code, to) })
    }

    pub(super) fn description(self) -> String {
        // SAFETY: the pointer is to a place for a pointer.
        text(|to| unsafe { sys::cuGetErrorString(self.code, to) })
    }
}

/// The answer of [`library_is_present`] if the binding has no function of this name: it has one only where it loads the
/// driver at run time. A program that is linked to the driver does not start without it.
#[allow(dead_code, reason = "hidden by the binding's function, unless another crate has the driver linked")]
unsafe fn is_culib_present() -> bool {
    true
}

/// Whether the driver's library can be loaded. To be asked before anything else: without a library every other call
/// panics in the binding's loader.
pub(super) fn library_is_present() -> bool {
    // A glob import of an inner scope goes before the names of the outer one.
    #[allow(unused_imports, reason = "empty of what is needed if the driver is linked")]
    use cudarc::driver::sys::*;
    // SAFETY: loads a library and drops it; loading the driver has no effect that a later load would not have.
    unsafe { is_culib_present() }
}

macro_rules! wrappers {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) $(-> ($out:ident: $ret:ty = $init:expr))? =>
        $call:ident($($pass:expr),*);)*) => {
        $(pub(super) fn $name($($arg: $ty),*) -> Outcome$(<$ret>)? {
            $(let mut $out: $ret = $init;)?
            // SAFETY: the pointers are to locals and slices that outlive the call, which keeps none of them; handles and
            // device addresses are alive by the rule of this module.
            check(stringify!($call), unsafe { sys::$call($($pass),*) })$(.map(|()| $out))?
        })*
    };
}

wrappers! {
    fn init() => cuInit(0);

    fn driver_version() -> (out: c_int = 0) => cuDriverGetVersion(&raw mut out);

    fn device_count() -> (out: c_int = 0) => cuDeviceGetCount(&raw mut out);

    fn device(ordinal: c_int) -> (out: sys::CUdevice = 0) => cuDeviceGet(&raw mut out, ordinal);

    fn total_memory(device: sys::CUdevice) -> (out: usize = 0) => cuDeviceTotalMem_v2(&raw mut out, device);

    fn attribute(device: sys::CUdevice, which: sys::CUdevice_attribute) -> (out: c_int = 0) =>
        cuDeviceGetAttribute(&raw mut out, which, device);

    fn peer_attribute(which: sys::CUdevice_P2PAttribute, from: sys::CUdevice, to: sys::CUdevice) -> (out: c_int = 0) =>
        cuDeviceGetP2PAttribute(&raw mut out, which, from, to);

    fn retain_primary_context(device: sys::CUdevice) -> (out: sys::CUcontext = ptr::null_mut()) =>
        cuDevicePrimaryCtxRetain(&raw mut out, device);

    fn release_primary_context(device: sys::CUdevice) => cuDevicePrimaryCtxRelease_v2(device);

    fn current_context() -> (out: sys::CUcontext = ptr::null_mut()) => cuCtxGetCurrent(&raw mut out);

    fn set_current_context(context: sys::CUcontext) => cuCtxSetCurrent(context);

    fn synchronize_context() => cuCtxSynchronize();

    fn allocate(bytes: usize) -> (out: u64 = 0) => cuMemAlloc_v2(&raw mut out, bytes);

    fn allocate_host(bytes: usize) -> (out: *mut c_void = ptr::null_mut()) =>
        cuMemHostAlloc(&raw mut out, bytes, sys::CU_MEMHOSTALLOC_PORTABLE);

    fn free_host(address: *mut c_void) => cuMemFreeHost(address);

    fn free(address: u64) => cuMemFree_v2(address);

    fn set_pool_attribute(pool: sys::CUmemoryPool, which: sys::CUmemPool_attribute, value: &mut u64) =>
        cuMemPoolSetAttribute(pool, which, ptr::from_mut(value).cast());

    fn destroy_pool(pool: sys::CUmemoryPool) => cuMemPoolDestroy(pool);

    fn trim_pool(pool: sys::CUmemoryPool, keep: usize) => cuMemPoolTrimTo(pool, keep);

    fn allocate_from_pool(bytes: usize, pool: sys::CUmemoryPool, stream: sys::CUstream) -> (out: u64 = 0) =>
        cuMemAllocFromPoolAsync(&raw mut out, bytes, pool, stream);

    fn free_async(address: u64, stream: sys::CUstream) => cuMemFreeAsync(address, stream);

    fn load_module(image: &[u8]) -> (out: sys::CUmodule = ptr::null_mut()) =>
        cuModuleLoadData(&raw mut out, image.as_ptr().cast());

    fn unload_module(module: sys::CUmodule) => cuModuleUnload(module);

    fn function(module: sys::CUmodule, name: &CStr) -> (out: sys::CUfunction = ptr::null_mut()) =>
        cuModuleGetFunction(&raw mut out, module, name.as_ptr());

    fn function_attribute(function: sys::CUfunction, which: sys::CUfunction_attribute) -> (out: c_int = 0) =>
        cuFuncGetAttribute(&raw mut out, which, function);

    fn set_function_attribute(function: sys::CUfunction, which: sys::CUfunction_attribute, value: c_int) =>
        cuFuncSetAttribute(function, which, value);

    fn create_stream(flags: c_uint) -> (out: sys::CUstream = ptr::null_mut()) => cuStreamCreate(&raw mut out, flags);

    fn destroy_stream(stream: sys::CUstream) => cuStreamDestroy_v2(stream);

    fn synchronize_stream(stream: sys::CUstream) => cuStreamSynchronize(stream);

    fn stream_context(stream: sys::CUstream) -> (out: sys::CUcontext = ptr::null_mut()) =>
        cuStreamGetCtx(stream, &raw mut out);

    fn current_device() -> (out: sys::CUdevice = 0) => cuCtxGetDevice(&raw mut out);

    fn device_of_address(address: u64) -> (out: c_int = 0) => cuPointerGetAttribute(
        (&raw mut out).cast(),
        sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        address
    );

    fn query_stream(stream: sys::CUstream) => cuStreamQuery(stream);

    fn wait_event(stream: sys::CUstream, event: sys::CUevent) => cuStreamWaitEvent(stream, event, 0);

    fn create_event(flags: c_uint) -> (out: sys::CUevent = ptr::null_mut()) => cuEventCreate(&raw mut out, flags);

    fn destroy_event(event: sys::CUevent) => cuEventDestroy_v2(event);

    fn record_event(event: sys::CUevent, stream: sys::CUstream) => cuEventRecord(event, stream);

    fn synchronize_event(event: sys::CUevent) => cuEventSynchronize(event);

    fn copy_to_device(target: u64, source: &[u8], stream: sys::CUstream) =>
        cuMemcpyHtoDAsync_v2(target, source.as_ptr().cast(), source.len(), stream);

    fn copy_to_host(target: &mut [u8], source: u64, stream: sys::CUstream) =>
        cuMemcpyDtoHAsync_v2(target.as_mut_ptr().cast(), source, target.len(), stream);

    fn copy_on_device(target: u64, source: u64, bytes: usize, stream: sys::CUstream) =>
        cuMemcpyDtoDAsync_v2(target, source, bytes, stream);

    fn fill_bytes(target: u64, value: u8, count: usize, stream: sys::CUstream) =>
        cuMemsetD8Async(target, value, count, stream);

    fn fill_halves(target: u64, value: u16, count: usize, stream: sys::CUstream) =>
        cuMemsetD16Async(target, value, count, stream);

    fn fill_words(target: u64, value: u32, count: usize, stream: sys::CUstream) =>
        cuMemsetD32Async(target, value, count, stream);

    fn begin_capture(stream: sys::CUstream) =>
        cuStreamBeginCapture_v2(stream, sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);

    fn end_capture(stream: sys::CUstream) -> (out: sys::CUgraph = ptr::null_mut()) =>
        cuStreamEndCapture(stream, &raw mut out);

    fn graph_node_count(graph: sys::CUgraph) -> (out: usize = 0) =>
        cuGraphGetNodes(graph, ptr::null_mut(), &raw mut out);

    fn instantiate(graph: sys::CUgraph) -> (out: sys::CUgraphExec = ptr::null_mut()) =>
        cuGraphInstantiateWithFlags(&raw mut out, graph, 0);

    fn destroy_graph(graph: sys::CUgraph) => cuGraphDestroy(graph);

    fn destroy_executable(graph: sys::CUgraphExec) => cuGraphExecDestroy(graph);

    fn launch_graph(graph: sys::CUgraphExec, stream: sys::CUstream) => cuGraphLaunch(graph, stream);
}

/// Sets what this thread may do while one of its streams is captured; the mode until now.
pub(super) fn exchange_capture_mode(mut mode: sys::CUstreamCaptureMode) -> Outcome<sys::CUstreamCaptureMode> {
    // SAFETY: the pointer is to a local.
    check("cuThreadExchangeStreamCaptureMode", unsafe {
        sys::cuThreadExchangeStreamCaptureMode(&raw mut mode)
    })?;
    Ok(mode)
}

/// Free and total bytes.
pub(super) fn memory_info() -> Outcome<(usize, usize)> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: both pointers are to locals.
    check("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) })?;
    Ok((free, total))
}

pub(super) fn device_name(device: sys::CUdevice) -> Outcome<String> {
    let mut name = [0u8; 256];
    // The last byte stays 0.
    let room = c_int::try_from(name.len() - 1).unwrap_or(c_int::MAX);
    // SAFETY: the driver writes at most `room` bytes.
    check("cuDeviceGetName", unsafe { sys::cuDeviceGetName(name.as_mut_ptr().cast(), room, device) })?;
    let end = name.iter().position(|b| *b == 0).unwrap_or(name.len());
    Ok(String::from_utf8_lossy(&name[..end]).into_owned())
}

/// A tensor map as the driver encodes it. The lists of the map have the lengths of its rank, and nothing is longer than
/// the five dimensions that the driver takes.
pub(super) fn encode_tensor_map(map: &TensorMap) -> Outcome<[u8; TENSOR_MAP_BYTES]> {
    use sys::CUtensorMapDataType as Type;
    let element = match map.element {
        TensorElement::U8 => Type::CU_TENSOR_MAP_DATA_TYPE_UINT8,
        TensorElement::U16 => Type::CU_TENSOR_MAP_DATA_TYPE_UINT16,
        TensorElement::U32 => Type::CU_TENSOR_MAP_DATA_TYPE_UINT32,
        TensorElement::S32 => Type::CU_TENSOR_MAP_DATA_TYPE_INT32,
        TensorElement::U64 => Type::CU_TENSOR_MAP_DATA_TYPE_UINT64,
        TensorElement::S64 => Type::CU_TENSOR_MAP_DATA_TYPE_INT64,
        TensorElement::F16 => Type::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        TensorElement::F32 => Type::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
        TensorElement::F64 => Type::CU_TENSOR_MAP_DATA_TYPE_FLOAT64,
        TensorElement::BF16 => Type::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        TensorElement::F32Ftz => Type::CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ,
        TensorElement::TF32 => Type::CU_TENSOR_MAP_DATA_TYPE_TFLOAT32,
        TensorElement::TF32Ftz => Type::CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ,
    };
    let interleave = match map.interleave {
        TensorInterleave::None => sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
        TensorInterleave::B16 => sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_16B,
        TensorInterleave::B32 => sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_32B,
    };
    let swizzle = match map.swizzle {
        TensorSwizzle::None => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
        TensorSwizzle::B32 => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_32B,
        TensorSwizzle::B64 => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_64B,
        TensorSwizzle::B128 => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
    };
    let fill = match map.fill {
        TensorFill::Zero => sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        TensorFill::Nan => sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA,
    };
    let promotion = sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_NONE;
    // The driver reads five entries at most; those past the rank are ignored.
    let (mut dims, mut strides) = ([1u64; 5], [0u64; 5]);
    let mut steps = [1u32; 5];
    dims.iter_mut().zip(&map.dims).for_each(|(to, from)| *to = *from);
    strides.iter_mut().zip(&map.strides).for_each(|(to, from)| *to = *from);
    steps.iter_mut().zip(&map.element_strides).for_each(|(to, from)| *to = *from);
    let rank = c_uint::try_from(map.rank().min(5)).unwrap_or(0);
    let mut encoded = sys::CUtensorMap { opaque: [0; 16] };
    let base = ptr::without_provenance_mut(map.base as usize);
    match &map.mode {
        TensorMode::Tiled { box_dims } => {
            let mut extents = [1u32; 5];
            extents.iter_mut().zip(box_dims).for_each(|(to, from)| *to = *from);
            // SAFETY: all pointers are to locals that outlive the call, aligned as their types demand and at least as
            // long as the driver reads; the address is not accessed.
            check("cuTensorMapEncodeTiled", unsafe {
                sys::cuTensorMapEncodeTiled(
                    &raw mut encoded,
                    element,
                    rank,
                    base,
                    dims.as_ptr(),
                    strides.as_ptr(),
                    extents.as_ptr(),
                    steps.as_ptr(),
                    interleave,
                    swizzle,
                    promotion,
                    fill,
                )
            })?;
        }
        TensorMode::Im2col(Im2col { lower, upper, channels, pixels }) => {
            // Corners begin with W, as the lists of the map do.
            let (mut first, mut last): ([c_int; 3], [c_int; 3]) = ([0; 3], [0; 3]);
            first.iter_mut().zip(lower).for_each(|(to, from)| *to = *from);
            last.iter_mut().zip(upper).for_each(|(to, from)| *to = *from);
            // SAFETY: as above; the corners have an entry for each of the rank - 2 <= 3 spatial dimensions.
            check("cuTensorMapEncodeIm2col", unsafe {
                sys::cuTensorMapEncodeIm2col(
                    &raw mut encoded,
                    element,
                    rank,
                    base,
                    dims.as_ptr(),
                    strides.as_ptr(),
                    first.as_ptr(),
                    last.as_ptr(),
                    *channels,
                    *pixels,
                    steps.as_ptr(),
                    interleave,
                    swizzle,
                    promotion,
                    fill,
                )
            })?;
        }
    }
    let mut bytes = [0; TENSOR_MAP_BYTES];
    for (to, from) in bytes.chunks_exact_mut(8).zip(encoded.opaque) {
        to.copy_from_slice(&from.to_ne_bytes());
    }
    Ok(bytes)
}

/// A pool of device memory on `device`.
pub(super) fn create_pool(device: sys::CUdevice) -> Outcome<sys::CUmemoryPool> {
    let mut pool = ptr::null_mut();
    // SAFETY: the struct is plain data for which zero is a value in every field: no handle type, no attributes, no
    // limit. The location is a type followed by an ordinal in every version of the header; it is written as those two
    // integers because the binding spells the second field differently from version to version. Both pointers are to
    // locals.
    let code = unsafe {
        let mut properties = std::mem::MaybeUninit::<sys::CUmemPoolProps>::zeroed();
        let p = properties.as_mut_ptr();
        (&raw mut (*p).allocType).write(sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED);
        let location = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as c_int;
        (&raw mut (*p).location).cast::<[c_int; 2]>().write([location, device]);
        sys::cuMemPoolCreate(&raw mut pool, p)
    };
    check("cuMemPoolCreate", code)?;
    Ok(pool)
}

/// Milliseconds between two events that have been reached.
pub(super) fn elapsed_ms(start: sys::CUevent, end: sys::CUevent) -> Outcome<f32> {
    // SAFETY: both events are alive and have been waited for.
    unsafe { result::event::elapsed(start, end) }
        .map_err(|e| Failure { call: "cuEventElapsedTime", code: e.0 })
}

/// The CUDA version whose header the binding was made from, such as 13040.
pub(super) const BINDING_VERSION: u32 = sys::CUDA_VERSION;

/// How a kernel is enqueued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LaunchKind {
    /// After everything in front of it.
    Plain,
    /// With all blocks resident together. The driver takes such launches parameter by parameter.
    Cooperative,
    /// As soon as the kernel in front of it lets it: programmatic dependent launch. The driver must have
    /// `cuLaunchKernelEx`.
    Overlapping,
}

/// Enqueues a kernel. `params` is its parameter buffer, which the driver copies; with `offsets`, parameter by parameter.
/// A cooperative launch needs `offsets`.
#[allow(clippy::too_many_arguments, reason = "the arguments of the driver's function")]
pub(super) fn launch(
    function: sys::CUfunction,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    stream: sys::CUstream,
    params: &[u8],
    offsets: Option<&[u64]>,
    kind: LaunchKind,
) -> Outcome {
    let mut pointers: Vec<*mut c_void> = offsets
        .unwrap_or_default()
        .iter()
        .map(|offset| params.as_ptr().wrapping_add(*offset as usize).cast_mut().cast())
        .collect();
    let mut size = params.len();
    // CU_LAUNCH_PARAM_BUFFER_POINTER, the buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, the size, CU_LAUNCH_PARAM_END.
    let mut extra: [*mut c_void; 5] = [
        ptr::without_provenance_mut(sys::CU_LAUNCH_PARAM_BUFFER_POINTER_AS_INT as usize),
        params.as_ptr().cast_mut().cast(),
        ptr::without_provenance_mut(sys::CU_LAUNCH_PARAM_BUFFER_SIZE_AS_INT as usize),
        (&raw mut size).cast(),
        ptr::without_provenance_mut(sys::CU_LAUNCH_PARAM_END_AS_INT as usize),
    ];
    let (pointers, extra) = match offsets {
        Some(_) => (pointers.as_mut_ptr(), ptr::null_mut()),
        None if params.is_empty() => (ptr::null_mut(), ptr::null_mut()),
        None => (ptr::null_mut(), extra.as_mut_ptr()),
    };
    if kind == LaunchKind::Cooperative {
        // SAFETY: as below; the driver takes parameter by parameter only here, and `offsets` is there.
        return check("cuLaunchCooperativeKernel", unsafe {
            sys::cuLaunchCooperativeKernel(
                function, grid[0], grid[1], grid[2], block[0], block[1], block[2], shared, stream, pointers,
            )
        });
    }
    if kind == LaunchKind::Overlapping {
        let mut attribute = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = sys::CUlaunchConfig {
            gridDimX: grid[0],
            gridDimY: grid[1],
            gridDimZ: grid[2],
            blockDimX: block[0],
            blockDimY: block[1],
            blockDimZ: block[2],
            sharedMemBytes: shared,
            hStream: stream,
            attrs: &raw mut attribute,
            numAttrs: 1,
        };
        // SAFETY: as below; configuration and attribute outlive the call, which keeps no pointer to them.
        return check("cuLaunchKernelEx", unsafe {
            sys::cuLaunchKernelEx(&raw const config, function, pointers, extra)
        });
    }
    // SAFETY: function and stream are alive and of the current context. The driver reads `size` bytes from `params`,
    // which is laid out for the function's parameters, or each parameter where `offsets` says that it begins in the same
    // layout, and keeps no pointer. What the kernel does with the addresses
    // in it is the kernel's affair (see the crate's documentation).
    check("cuLaunchKernel", unsafe {
        sys::cuLaunchKernel(
            function, grid[0], grid[1], grid[2], block[0], block[1], block[2], shared, stream, pointers,
            extra,
        )
    })
}

/// Number of an architecture-specific target (`sm_90a`) for the linker, as the driver's header computes it.
pub(super) const fn specific_target(sm: u32) -> u32 {
    0x1_0000 + sm
}

/// Compiles PTX to machine code for the current context, or for `target`, at a level of optimization from 0 to 4; the compiler's log
/// if it fails.
pub(super) fn compile(
    ptx: &CStr,
    name: &CStr,
    target: Option<u32>,
    level: u32,
) -> Result<Vec<u8>, (Failure, String)> {
    use sys::CUjit_option_enum::{
        CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, CU_JIT_OPTIMIZATION_LEVEL,
        CU_JIT_TARGET, CU_JIT_TARGET_FROM_CUCONTEXT,
    };
    let mut log = vec![0u8; 16 << 10];
    let which = if target.is_some() { CU_JIT_TARGET } else { CU_JIT_TARGET_FROM_CUCONTEXT };
    let mut options =
        [CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, which, CU_JIT_OPTIMIZATION_LEVEL];
    let mut values: [*mut c_void; 4] = [
        log.as_mut_ptr().cast(),
        ptr::without_provenance_mut(log.len()),
        ptr::without_provenance_mut(target.unwrap_or(0) as usize),
        ptr::without_provenance_mut(level as usize),
    ];
    let mut state: sys::CUlinkState = ptr::null_mut();
    // SAFETY: options and values are arrays of four; the log they point to outlives the link state, and is read only
    // after the state is destroyed.
    let created = check("cuLinkCreate", unsafe {
        sys::cuLinkCreate_v2(4, options.as_mut_ptr(), values.as_mut_ptr(), &raw mut state)
    });
    let linked = created.and_then(|()| {
        let linked = link(state, ptx, name);
        // SAFETY: the state was created above, is destroyed once, and the machine code in it has been copied.
        let destroyed = check("cuLinkDestroy", unsafe { sys::cuLinkDestroy(state) });
        linked.and_then(|cubin| destroyed.map(|()| cubin))
    });
    linked.map_err(|failure| {
        let end = log.iter().position(|b| *b == 0).unwrap_or(log.len());
        (failure, String::from_utf8_lossy(&log[..end]).trim().to_owned())
    })
}

fn link(state: sys::CUlinkState, ptx: &CStr, name: &CStr) -> Outcome<Vec<u8>> {
    let bytes = ptx.to_bytes_with_nul();
    let (mut cubin, mut size) = (ptr::null_mut::<c_void>(), 0usize);
    // SAFETY: the state is alive. The driver copies text and name before it returns; no options are passed.
    check("cuLinkAddData", unsafe {
        sys::cuLinkAddData_v2(
            state,
            sys::CUjitInputType::CU_JIT_INPUT_PTX,
            bytes.as_ptr().cast_mut().cast(),
            bytes.len(),
            name.as_ptr().cast::<c_char>(),
            0,
            ptr::null_mut(),
            ptr::null_mut(),
        )
    })?;
    // SAFETY: the state is alive; both pointers are to locals.
    check("cuLinkComplete", unsafe { sys::cuLinkComplete(state, &raw mut cubin, &raw mut size) })?;
    // SAFETY: the driver returned `size` bytes that belong to the state, which is alive until after the copy.
    Ok(unsafe { std::slice::from_raw_parts(cubin.cast::<u8>(), size) }.to_vec())
}
