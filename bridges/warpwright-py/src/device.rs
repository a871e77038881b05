//! The devices that arrays lie on, and streams of other libraries as streams of them.
#![allow(unsafe_code, reason = "streams of other libraries come as numbers")]

use std::borrow::Cow;
use std::fmt;
use std::sync::OnceLock;

use pyo3::prelude::*;
use warpwright::{Device, Error, RuntimeError, Stream, Target};
use warpwright_runtime::interop;

use crate::error;

/// Where an array lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In memory of the host, for the emulator.
    Host,
    /// On a GPU.
    Cuda(u32),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("cpu"),
            Self::Cuda(n) => write!(f, "cuda:{n}"),
        }
    }
}

/// The emulator that runs what lies on the host. Made once: its kernels stay loaded.
pub(crate) fn emulator() -> &'static Device {
    static EMULATOR: OnceLock<Device> = OnceLock::new();
    EMULATOR.get_or_init(Device::emulator)
}

/// A GPU with its default stream.
pub(crate) struct Gpu {
    pub(crate) device: Device,
    default_stream: Stream,
}

impl Gpu {
    /// A stream by its handle.
    pub(crate) fn stream(&self, raw: u64) -> Result<Cow<'_, Stream>, RuntimeError> {
        if raw == 0 {
            return Ok(Cow::Borrowed(&self.default_stream));
        }
        // SAFETY: the stream is the current one of the arrays' library, or was checked to be one of the device; both live
        // longer than the call that asks, and nothing of it outlives that.
        Ok(Cow::Owned(unsafe { interop::stream_from_raw(&self.device, raw)? }))
    }
}

/// A GPU, opened on first use and never closed.
pub(crate) fn opened(ordinal: u32) -> Result<&'static Gpu, RuntimeError> {
    const MOST: usize = 64;
    static OPEN: [OnceLock<Gpu>; MOST] = [const { OnceLock::new() }; MOST];
    let Some(place) = OPEN.get(ordinal as usize) else {
        let device = Device::cuda(ordinal)?;
        return Err(RuntimeError::NotSupported { what: "a GPU with a number above 63", device: device.id() });
    };
    if let Some(gpu) = place.get() {
        return Ok(gpu);
    }
    let device = Device::cuda(ordinal)?;
    let default_stream = raw_stream(&device, 0)?;
    Ok(place.get_or_init(|| Gpu { device, default_stream }))
}

/// A GPU, opened on first use.
pub(crate) fn gpu(ordinal: u32) -> Result<&'static Device, RuntimeError> {
    Ok(&opened(ordinal)?.device)
}

/// The target that kernels for arrays in `place` are compiled for.
pub(crate) fn target(place: Place) -> Result<Target, RuntimeError> {
    match place {
        Place::Host => Ok(emulator().target()),
        Place::Cuda(ordinal) => Ok(gpu(ordinal)?.target()),
    }
}

/// The GPU that an address belongs to.
pub(crate) fn ordinal_of(py: Python<'_>, address: u64) -> PyResult<u32> {
    // An empty array has no address; the first device is as good as any.
    if address == 0 {
        return Ok(0);
    }
    interop::device_of_address(address).map_err(|e| error::runtime(py, &e))
}

/// That a stream of the caller belongs to the device.
pub(crate) fn check_stream(place: Place, raw: u64) -> Result<(), RuntimeError> {
    match place {
        Place::Host => Err(RuntimeError::NotSupported { what: "a CUDA stream", device: emulator().id() }),
        Place::Cuda(ordinal) => interop::check_stream(gpu(ordinal)?, raw),
    }
}

/// A stream that is known to live: a default stream, or one that its library has just named.
pub(crate) fn raw_stream(device: &Device, raw: u64) -> Result<Stream, RuntimeError> {
    // SAFETY: see above.
    unsafe { interop::stream_from_raw(device, raw) }
}

/// Waits for what has been enqueued on a stream of a GPU.
pub(crate) fn synchronize(place: Place, stream: u64) -> Result<(), Error> {
    match place {
        Place::Host => Ok(()),
        Place::Cuda(ordinal) => Ok(raw_stream(gpu(ordinal)?, stream)?.synchronize()?),
    }
}
