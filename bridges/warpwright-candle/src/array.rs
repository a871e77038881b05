//! Memory that kernels read and write: tensors of candle, and what stays in the emulator.
#![allow(unsafe_code, reason = "memory of candle comes as an address")]

use std::sync::Arc;

use candle_core::op::BackpropOp;
use candle_core::{CpuStorage, DType as HostDType, Result, Shape, Storage, Tensor as HostTensor};
use warpwright::{DType, Device, Stream, Tensor, TensorMut};

use crate::error::{Error, operation};

/// Memory with a type, a shape and strides, to be read.
#[derive(Clone)]
pub(crate) struct Array {
    pub(crate) memory: Memory,
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    pub(crate) strides: Vec<i64>,
}

/// Where the elements of an array are.
#[derive(Clone)]
pub(crate) enum Memory {
    /// That of a tensor of candle, without its place in a graph.
    Host(HostTensor),
    /// Memory of the emulator that one operation wrote for another. It holds the elements in row-major order.
    Emulated(Arc<Tensor>),
}

/// A result to be written: in row-major order, or so in the order of dimensions that is given.
#[derive(Clone)]
pub(crate) struct Spec {
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    /// Which dimension of `shape` each dimension is that kernels see.
    order: Option<Vec<usize>>,
}

/// A result that was written.
pub(crate) struct Made {
    pub(crate) written: Written,
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
}

/// Where a result is.
pub(crate) enum Written {
    Emulated(Tensor, Stream),
    Host(Storage),
}

/// The element type of the same name; candle has further ones that are for storage alone.
pub(crate) fn dtype_of(op: &'static str, argument: &'static str, dtype: HostDType) -> Result<DType> {
    Ok(match dtype {
        HostDType::F32 => DType::F32,
        HostDType::F64 => DType::F64,
        HostDType::F16 => DType::F16,
        HostDType::BF16 => DType::BF16,
        HostDType::U8 => DType::U8,
        HostDType::U32 => DType::U32,
        HostDType::I16 => DType::I16,
        HostDType::I32 => DType::I32,
        HostDType::I64 => DType::I64,
        got => return Err(Error::DType { op, argument, expected: FLOATS.to_vec(), got }.into()),
    })
}

/// The types that operations have.
pub(crate) const FLOATS: [HostDType; 4] = [HostDType::F32, HostDType::F64, HostDType::F16, HostDType::BF16];

impl Array {
    /// A tensor of candle.
    pub(crate) fn of(x: HostTensor, dtype: DType) -> Result<Self> {
        let strides = x.stride().iter().map(|&stride| i64::try_from(stride).unwrap_or(i64::MAX)).collect();
        Ok(Self { dtype, shape: x.dims().to_vec(), strides, memory: Memory::Host(x) })
    }

    /// The dimensions in another order: dimension `i` is what dimension `order[i]` was.
    pub(crate) fn permuted(mut self, order: &[usize]) -> Self {
        self.shape = order.iter().map(|&dim| self.shape[dim]).collect();
        self.strides = order.iter().map(|&dim| self.strides[dim]).collect();
        self
    }

    /// The same elements; the array is in row-major order, and the shape has as many.
    pub(crate) fn in_shape(mut self, shape: &[usize]) -> Self {
        self.shape = shape.to_vec();
        self.strides = row_major(shape);
        self
    }

    /// `len` elements from `start` of an array in row-major order, whose type is f32 or f64, as a tensor of candle.
    pub(crate) fn part(&self, start: usize, len: usize) -> Result<HostTensor> {
        match &self.memory {
            Memory::Host(tensor) => tensor.flatten_all()?.narrow(0, start, len),
            Memory::Emulated(tensor) => {
                let size = self.dtype.bytes();
                let mut bytes = vec![0; len * size];
                tensor.buffer().read((start * size) as u64, &mut bytes).map_err(operation)?;
                let dtype = if self.dtype == DType::F64 { HostDType::F64 } else { HostDType::F32 };
                HostTensor::from_raw_buffer(&bytes, dtype, &[len], &candle_core::Device::Cpu)
            }
        }
    }

    /// Elements from one index of each dimension to the next.
    pub(crate) fn strides(&self) -> &[i64] {
        &self.strides
    }
}

fn row_major(shape: &[usize]) -> Vec<i64> {
    let mut strides = vec![1i64; shape.len()];
    for dim in (1..shape.len()).rev() {
        strides[dim - 1] = strides[dim].saturating_mul(i64::try_from(shape[dim]).unwrap_or(i64::MAX));
    }
    strides
}

impl Spec {
    pub(crate) fn new(dtype: DType, shape: &[usize]) -> Self {
        Self { dtype, shape: shape.to_vec(), order: None }
    }

    /// Of the type and the shape of an array.
    pub(crate) fn like(array: &Array) -> Self {
        Self::new(array.dtype, &array.shape)
    }

    /// The same; kernels see its dimensions in another order, `i` in the place of `order[i]`.
    pub(crate) fn seen(self, order: &[usize]) -> Self {
        Self { order: Some(order.to_vec()), ..self }
    }

    /// The strides that kernels see.
    pub(crate) fn strides(&self) -> Vec<i64> {
        let strides = row_major(&self.shape);
        match &self.order {
            Some(order) => order.iter().map(|&dim| strides[dim]).collect(),
            None => strides,
        }
    }
}

impl Made {
    /// A placeholder between nodes of a graph: one element.
    pub(crate) fn relay(device: &candle_core::Device) -> Result<Self> {
        use candle_core::backend::BackendDevice;
        let (dtype, shape) = (DType::F32, vec![1]);
        let storage = match device {
            #[cfg(feature = "cuda")]
            candle_core::Device::Cuda(device) => {
                Storage::Cuda(device.zeros_impl(&Shape::from(1), HostDType::F32)?)
            }
            _ => {
                Storage::Cpu(candle_core::cpu_backend::CpuDevice.zeros_impl(&Shape::from(1), HostDType::F32)?)
            }
        };
        Ok(Self { written: Written::Host(storage), dtype, shape })
    }

    /// A copy of a tensor of candle in an element type.
    pub(crate) fn of(x: HostTensor, dtype: DType) -> Result<Self> {
        let host = FLOATS.into_iter().find(|&host| dtype_of("cast", "x", host).ok() == Some(dtype));
        // A tensor that is a part of another keeps all of its storage, and the offset, even as a copy.
        let x = x.to_dtype(host.unwrap_or(x.dtype()))?.force_contiguous()?;
        let (storage, layout) = x.storage_and_layout();
        let written = Written::Host(storage.try_clone(layout)?);
        Ok(Self { written, dtype, shape: x.dims().to_vec() })
    }

    /// As storage of candle.
    pub(crate) fn into_storage(self) -> Result<(Storage, Shape)> {
        let storage = match self.written {
            Written::Host(storage) => storage,
            Written::Emulated(tensor, stream) => Storage::Cpu(download(&tensor, &stream)?),
        };
        Ok((storage, Shape::from(self.shape)))
    }

    /// As a tensor of candle, without a place in a graph.
    pub(crate) fn into_tensor(self) -> Result<HostTensor> {
        let (storage, shape) = self.into_storage()?;
        Ok(HostTensor::from_storage(storage, shape, BackpropOp::none(), false))
    }

    /// As an argument of another operation.
    pub(crate) fn into_array(self) -> Result<Array> {
        match self.written {
            Written::Emulated(tensor, _) => {
                let memory = Memory::Emulated(Arc::new(tensor));
                Ok(Array { memory, dtype: self.dtype, strides: row_major(&self.shape), shape: self.shape })
            }
            Written::Host(_) => {
                let dtype = self.dtype;
                Array::of(self.into_tensor()?, dtype)
            }
        }
    }

    /// The result as kernels see it.
    pub(crate) fn as_mut<'a>(
        &'a mut self,
        device: &'a Device,
        stream: &Stream,
        spec: &Spec,
    ) -> Result<TensorMut<'a>> {
        let view = match &mut self.written {
            Written::Emulated(tensor, _) => tensor.as_mut(),
            #[cfg(feature = "cuda")]
            Written::Host(Storage::Cuda(storage)) => {
                let address = crate::cuda::address_mut(storage)?;
                // SAFETY: the memory was allocated for this result, nothing else knows of it yet, and candle frees it in the order of
                // the stream that the launch is enqueued on.
                unsafe { TensorMut::from_raw(device, address, self.dtype, &self.shape, None) }
                    .map_err(operation)?
            }
            Written::Host(_) => {
                let _ = (device, stream);
                return Err(Error::Order { op: "launch" }.into());
            }
        };
        match &spec.order {
            Some(order) => view.permute(order).map_err(operation),
            None => Ok(view),
        }
    }
}

fn download(tensor: &Tensor, stream: &Stream) -> Result<CpuStorage> {
    let storage = match tensor.dtype() {
        DType::F32 => tensor.to_vec_on(stream).map(CpuStorage::F32),
        DType::F64 => tensor.to_vec_on(stream).map(CpuStorage::F64),
        DType::F16 => tensor.to_vec_on(stream).map(CpuStorage::F16),
        DType::BF16 => tensor.to_vec_on(stream).map(CpuStorage::BF16),
        DType::U32 => tensor.to_vec_on(stream).map(CpuStorage::U32),
        DType::I32 => tensor.to_vec_on(stream).map(CpuStorage::I32),
        DType::I64 => tensor.to_vec_on(stream).map(CpuStorage::I64),
        _ => tensor.to_vec_on(stream).map(CpuStorage::U8),
    };
    storage.map_err(operation)
}
