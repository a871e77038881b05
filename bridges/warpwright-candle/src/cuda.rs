//! candle's memory and stream of a GPU, as they are.
//!
//! candle and this library both use the primary context of a device, so that addresses and streams of the one are those of the other.
#![allow(unsafe_code, reason = "memory and streams of candle come as addresses and handles")]

use candle_core::backend::BackendDevice;
use candle_core::cuda::CudaStorageSlice;
use candle_core::cuda::cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut};
use candle_core::{
    CudaDevice, CudaStorage, DType as HostDType, DeviceLocation, Layout, Result, Shape, Storage, Tensor,
};
use warpwright::{DType, Device, Stream, interop};

use crate::error::operation;

/// The device of that number, and candle's stream of it.
pub(crate) fn device_and_stream(host: &CudaDevice) -> Result<(Device, Stream)> {
    let DeviceLocation::Cuda { gpu_id } = host.location() else {
        candle_core::bail!("a CUDA device without a number")
    };
    let device = Device::cuda(u32::try_from(gpu_id).unwrap_or(u32::MAX)).map_err(operation)?;
    let raw = host.cuda_stream().cu_stream() as u64;
    // SAFETY: candle's stream is one of the primary context, and lives as long as the tensors of its device, one of which the call
    // holds. It may be the default stream of each thread, and is used on the thread that asked for it alone.
    let stream = unsafe { interop::stream_from_raw(&device, raw) }.map_err(operation)?;
    Ok((device, stream))
}

/// Evaluates an expression for the slice of a storage, whatever its type.
macro_rules! for_slice {
    ($slice:expr, $name:ident => $value:expr) => {
        match $slice {
            CudaStorageSlice::U8($name) => $value,
            CudaStorageSlice::U32($name) => $value,
            CudaStorageSlice::I16($name) => $value,
            CudaStorageSlice::I32($name) => $value,
            CudaStorageSlice::I64($name) => $value,
            CudaStorageSlice::BF16($name) => $value,
            CudaStorageSlice::F16($name) => $value,
            CudaStorageSlice::F32($name) => $value,
            CudaStorageSlice::F64($name) => $value,
            CudaStorageSlice::F8E4M3($name) => $value,
            CudaStorageSlice::F6E2M3($name) => $value,
            CudaStorageSlice::F6E3M2($name) => $value,
            CudaStorageSlice::F4($name) => $value,
            CudaStorageSlice::F8E8M0($name) => $value,
        }
    };
}

/// The address; the stream waits for what others write there, and after this is called what they write waits for it.
fn read_on(storage: &CudaStorage, stream: &CudaStream) -> u64 {
    for_slice!(&storage.slice, slice => slice.device_ptr(stream).0)
}

/// The address of the first element of a layout.
pub(crate) fn address(storage: &CudaStorage, layout: &Layout, host: &candle_core::Device) -> Result<u64> {
    let stream = host.as_cuda_device()?.cuda_stream();
    let offset = layout.start_offset() * candle_core::backend::BackendStorage::dtype(storage).size_in_bytes();
    Ok(read_on(storage, &stream) + offset as u64)
}

/// Notes that what was just enqueued on the device's stream reads a tensor, for streams that write to it later.
pub(crate) fn note_read(tensor: &Tensor, host: &candle_core::Device) -> Result<()> {
    let (storage, _) = tensor.storage_and_layout();
    if let Storage::Cuda(storage) = &*storage {
        let _ = read_on(storage, &host.as_cuda_device()?.cuda_stream());
    }
    Ok(())
}

/// The address of memory that the stream of its device writes; what other streams read after this is called waits for what is enqueued.
pub(crate) fn address_mut(storage: &mut CudaStorage) -> Result<u64> {
    let stream = storage.device.cuda_stream();
    Ok(for_slice!(&mut storage.slice, slice => slice.device_ptr_mut(&stream).0))
}

/// Memory for a result, from candle.
pub(crate) fn empty(host: &CudaDevice, dtype: DType, shape: &[usize]) -> Result<Storage> {
    let len: usize = shape.iter().product();
    let (dtype, len) = match dtype {
        DType::F32 => (HostDType::F32, len),
        DType::F64 => (HostDType::F64, len),
        DType::F16 => (HostDType::F16, len),
        DType::BF16 => (HostDType::BF16, len),
        DType::U32 => (HostDType::U32, len),
        DType::I32 => (HostDType::I32, len),
        DType::I64 => (HostDType::I64, len),
        other => (HostDType::U8, len * other.bytes()),
    };
    // SAFETY: kernels write what is read of it. CUDA has no allocations of no bytes.
    Ok(Storage::Cuda(unsafe { host.alloc_uninit(&Shape::from(len.max(1)), dtype)? }))
}
