//! Elements of burn's tensors in memory that kernels read, and back.

use std::sync::OnceLock;

use burn::tensor::{DType as HostDType, TensorData};
use warpwright::{DType, Device, Tensor};

use crate::error::Error;

/// The element types that operations have.
pub(crate) const FLOATS: [HostDType; 4] = [HostDType::F32, HostDType::F64, HostDType::F16, HostDType::BF16];

/// The integers that numbers of classes and lengths may be.
pub(crate) const INTEGERS: [HostDType; 2] = [HostDType::I32, HostDType::I64];

static DEVICE: OnceLock<Device> = OnceLock::new();

/// Where kernels run: the emulator, if nothing else was said before the first call. Made once: its kernels stay loaded.
pub(crate) fn device() -> &'static Device {
    DEVICE.get_or_init(Device::emulator)
}

/// Says where kernels run from now on, once, before the first operation: elements go there and results come back. Without it kernels run
/// in the emulator.
///
/// ```
/// # fn main() -> Result<(), warpwright_burn::Error> {
/// // The first GPU if there is one, else the emulator.
/// warpwright_burn::set_device(warpwright_burn::Device::best())?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::DeviceInUse`] if there was an operation before, or a device was set.
pub fn set_device(device: Device) -> Result<(), Error> {
    DEVICE.set(device).map_err(|refused| Error::DeviceInUse { refused: refused.name().to_owned() })
}

/// The element type of the same name.
pub(crate) fn dtype_of(host: HostDType) -> Option<DType> {
    Some(match host {
        HostDType::F32 => DType::F32,
        HostDType::F64 => DType::F64,
        HostDType::F16 => DType::F16,
        HostDType::BF16 => DType::BF16,
        HostDType::I32 => DType::I32,
        HostDType::I64 => DType::I64,
        _ => return None,
    })
}

/// The elements of a tensor of burn in memory of a device. The shape has as many elements.
pub(crate) fn upload(
    device: &Device,
    (op, argument): (&'static str, &'static str),
    data: &TensorData,
    shape: &[usize],
) -> Result<Tensor, Error> {
    let got = data.dtype();
    let dtype = dtype_of(got).ok_or(Error::DType { op, argument, expected: &FLOATS, got })?;
    Ok(Tensor::from_bytes(device, dtype, data.as_bytes(), shape)?)
}

/// The elements of a result as burn takes them: what has no dimensions has one, of one element.
pub(crate) fn download(op: &'static str, tensor: &Tensor) -> Result<TensorData, Error> {
    let argument = "the result";
    let host = FLOATS.into_iter().chain(INTEGERS).find(|&host| dtype_of(host) == Some(tensor.dtype()));
    let read = |message: String| Error::Read { op, argument, message };
    let host = host.ok_or_else(|| read(format!("burn has no {}", tensor.dtype())))?;
    let shape = if tensor.shape().is_empty() { vec![1] } else { tensor.shape().to_vec() };
    let data = TensorData::try_from_bytes_vec(tensor.to_bytes()?, shape, host);
    data.map_err(|error| read(error.to_string()))
}
