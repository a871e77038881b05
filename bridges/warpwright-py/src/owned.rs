//! GPU memory of this library as a Python object, for callers whose library cannot allocate a result.

use std::sync::Arc;

use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use warpwright::{DType, Event, Stream, Tensor};

use crate::device::{self, Place};
use crate::dlpack::{self, Export};
use crate::error;
use crate::library::{dtype_name, extents};
use crate::memory::Flat;

/// A result on a GPU, for `from_dlpack` of any library: contiguous, in row-major order.
#[pyclass(frozen, module = "warpwright", name = "DeviceArray")]
pub(crate) struct DeviceArray {
    tensor: Arc<Tensor>,
    shape: Box<[usize]>,
    ordinal: u32,
    /// The stream that the result is computed on.
    stream: u64,
    /// Passed once the result is there.
    ready: Option<Event>,
}

impl DeviceArray {
    /// Memory for a result, and how to write it.
    pub(crate) fn empty(
        ordinal: u32,
        stream: u64,
        dtype: DType,
        shape: &[usize],
    ) -> Result<(Tensor, Flat), warpwright::RuntimeError> {
        let gpu = device::gpu(ordinal)?;
        // The default streams are always there, so that memory can be given back in their order.
        let mut tensor = if stream <= 2 {
            Tensor::empty_on(&device::raw_stream(gpu, stream)?, dtype, shape)?
        } else {
            Tensor::empty(gpu, dtype, shape)?
        };
        let flat = Flat::of_tensor(&mut tensor);
        Ok((tensor, flat))
    }

    /// Around a result that has been enqueued on `stream`.
    pub(crate) fn around(
        tensor: Tensor,
        ordinal: u32,
        stream: u64,
    ) -> Result<Self, warpwright::RuntimeError> {
        let ready = device::raw_stream(tensor.device(), stream)?.record()?;
        let shape = tensor.shape().into();
        Ok(Self { tensor: Arc::new(tensor), shape, ordinal, stream, ready: Some(ready) })
    }

    /// Lets `consumer` use the memory once the result is there.
    fn order(&self, py: Python<'_>, consumer: u64) -> PyResult<()> {
        if consumer.max(1) == self.stream.max(1) {
            return Ok(());
        }
        let Some(ready) = &self.ready else { return Ok(()) };
        device::raw_stream(self.tensor.device(), consumer)
            .and_then(|stream: Stream| stream.wait(ready))
            .map_err(|e| error::runtime(py, &e))
    }
}

#[pymethods]
impl DeviceArray {
    /// The extents.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        extents(py, &self.shape)
    }

    /// The element type.
    #[getter]
    fn dtype(&self) -> &'static str {
        dtype_name(self.tensor.dtype())
    }

    /// Where it is.
    #[getter]
    fn device(&self) -> String {
        Place::Cuda(self.ordinal).to_string()
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        (dlpack::CUDA, self.ordinal as i32)
    }

    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__(
        &self,
        py: Python<'_>,
        stream: Option<i64>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Py<PyAny>> {
        if dl_device.is_some_and(|d| d != self.__dlpack_device__()) {
            return Err(PyBufferError::new_err("the array cannot be exported to another device"));
        }
        if copy == Some(true) {
            return Err(PyBufferError::new_err("the array is exported without a copy only"));
        }
        match stream {
            Some(-1) => {}
            // Without a stream the consumer is taken to use the legacy default stream.
            None => self.order(py, 1)?,
            Some(stream) => self.order(py, stream.unsigned_abs())?,
        }
        let strides: Vec<i64> = {
            let mut step = 1i64;
            let back = self.shape.iter().rev().map(|n| {
                let stride = step;
                step = step.saturating_mul(i64::try_from((*n).max(1)).unwrap_or(i64::MAX));
                stride
            });
            let mut strides: Vec<i64> = back.collect();
            strides.reverse();
            strides
        };
        let export = Export {
            address: self.tensor.buffer().address(),
            device: self.__dlpack_device__(),
            dtype: self.tensor.dtype(),
            shape: self.shape.iter().map(|n| *n as i64).collect(),
            strides: strides.into(),
            owner: Box::new(self.tensor.clone()),
        };
        export.into_capsule(py, max_version.is_some_and(|(major, _)| major >= 1))
    }

    #[getter(__cuda_array_interface__)]
    fn cuda_array_interface<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        let typestr = match self.tensor.dtype() {
            DType::F32 => "<f4",
            DType::F64 => "<f8",
            DType::F16 => "<f2",
            DType::BF16 => "<V2",
            DType::F8E4M3 | DType::F8E5M2 => "|V1",
            DType::U8 => "|u1",
            DType::I8 => "|i1",
            DType::U16 => "<u2",
            DType::I16 => "<i2",
            DType::U32 => "<u4",
            DType::I32 => "<i4",
            DType::U64 => "<u8",
            DType::I64 => "<i8",
        };
        interface.set_item("shape", extents(py, &self.shape)?)?;
        interface.set_item("typestr", typestr)?;
        interface.set_item("data", (self.tensor.buffer().address(), false))?;
        interface.set_item("version", 3)?;
        interface.set_item("stream", self.stream.max(1))?;
        Ok(interface)
    }

    fn __repr__(&self) -> String {
        format!("<warpwright.DeviceArray {} {:?} on cuda:{}>", self.dtype(), self.shape, self.ordinal)
    }
}
