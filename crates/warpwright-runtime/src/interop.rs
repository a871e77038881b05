//! Doors to other libraries in the process: raw streams, contexts and functions of the CUDA driver, as numbers.
//!
//! A GPU's device here is its primary context, which is what PyTorch, candle and the CUDA runtime use too. So memory and
//! streams of theirs work here and the other way round: wrap a stream with [`stream_from_raw`], memory with
//! [`TensorRef::from_raw`](crate::TensorRef::from_raw). Handles are passed as integers, which every language and every
//! version of a binding can express.

use std::sync::Arc;

use crate::backend::cuda;
use crate::device::Device;
use crate::discover::discover;
use crate::error::{Error, Result};
use crate::launch::LoadedKernel;
use crate::stream::{Stream, StreamShared};

/// A stream made elsewhere (a `CUstream` or `cudaStream_t`; 0 is the legacy default stream). It is not destroyed when the
/// last clone is dropped.
///
/// # Errors
/// [`Error::NotSupported`] on the emulator.
///
/// # Safety
/// `raw` must be a stream of the device's primary context, and must stay valid as long as any clone of the result, and
/// any memory allocated from it, lives.
#[allow(unsafe_code, reason = "the door for streams that this crate did not make")]
pub unsafe fn stream_from_raw(device: &Device, raw: u64) -> Result<Stream> {
    let handle = device
        .backend()
        .adopt_stream(raw)
        .ok_or_else(|| Error::NotSupported { what: "a raw CUDA stream", device: device.id() })?;
    Ok(Stream::over(device.clone(), Arc::new(StreamShared::new(device.backend(), handle, false))))
}

/// That a stream made elsewhere belongs to the device's primary context.
///
/// # Errors
/// [`Error::WrongDevice`] if it is one of another device; [`Error::NotSupported`] on the emulator.
pub fn check_stream(device: &Device, raw: u64) -> Result<()> {
    let got = device.backend().device_of_stream(raw)?;
    if got == device.id() {
        return Ok(());
    }
    Err(Error::WrongDevice { op: "check_stream", argument: "stream", expected: device.id(), got })
}

/// The number of the GPU whose memory an address is.
///
/// # Errors
/// [`Error::NoDriver`]; [`Error::Driver`] for an address that CUDA does not know.
pub fn device_of_address(address: u64) -> Result<u32> {
    if let Some(why) = discover().unavailable {
        return Err(Error::NoDriver(why));
    }
    cuda::device_of_address(address)
}

/// The `CUstream` of a stream.
///
/// # Errors
/// [`Error::NotSupported`] on the emulator.
pub fn raw_stream(stream: &Stream) -> Result<u64> {
    let device = stream.device();
    let missing = || Error::NotSupported { what: "a raw CUDA stream", device: device.id() };
    device.backend().raw_stream(stream.handle()).ok_or_else(missing)
}

/// The `CUcontext` of a device: its primary context.
///
/// # Errors
/// [`Error::NotSupported`] on the emulator.
pub fn raw_context(device: &Device) -> Result<u64> {
    let missing = || Error::NotSupported { what: "a raw CUDA context", device: device.id() };
    device.backend().raw_context().ok_or_else(missing)
}

/// The `CUfunction` of a loaded kernel, valid as long as the kernel is.
///
/// # Errors
/// [`Error::NotSupported`] on the emulator.
pub fn raw_function(device: &Device, kernel: &LoadedKernel) -> Result<u64> {
    let missing = || Error::NotSupported { what: "a raw CUDA function", device: device.id() };
    if kernel.device_id() != device.id() {
        return Err(Error::WrongDevice {
            op: "raw_function",
            argument: "kernel",
            expected: device.id(),
            got: kernel.device_id(),
        });
    }
    device.backend().raw_function(kernel.handle()).ok_or_else(missing)
}
