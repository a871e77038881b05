//! Tensors: memory with an element type and a shape, owned and contiguous.

use std::fmt;

use warpwright_ptx::DType;

use crate::backend::Pattern;
use crate::buffer::Buffer;
use crate::device::Device;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::launch::Binding;
use crate::layout::{Dims, byte_count, element_count, row_major};
use crate::stream::Stream;
use crate::view::{TensorMut, TensorRef, View, dims};

/// Device memory with an element type and a shape, contiguous in row-major order.
pub struct Tensor {
    buffer: Buffer,
    dtype: DType,
    shape: Dims,
}

impl Tensor {
    /// An uninitialized tensor.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::Overflow`], [`Error::Rank`].
    pub fn empty(device: &Device, dtype: DType, shape: &[usize]) -> Result<Self> {
        const OP: &str = "Tensor::empty";
        let bytes = byte_count(OP, "shape", shape, dtype.bytes())?;
        Ok(Self { shape: dims(OP, "shape", shape)?, buffer: device.alloc_named(bytes, "tensor")?, dtype })
    }

    /// An uninitialized tensor whose memory is allocated and freed in the order of `stream`, which costs little.
    ///
    /// # Errors
    /// As [`Tensor::empty`], and [`Error::Capturing`].
    pub fn empty_on(stream: &Stream, dtype: DType, shape: &[usize]) -> Result<Self> {
        const OP: &str = "Tensor::empty_on";
        let bytes = byte_count(OP, "shape", shape, dtype.bytes())?;
        Ok(Self { shape: dims(OP, "shape", shape)?, buffer: stream.alloc(bytes)?, dtype })
    }

    /// A tensor of zeros, whatever the element type, that any stream may use.
    ///
    /// # Errors
    /// As [`Tensor::empty`].
    pub fn zeros(device: &Device, dtype: DType, shape: &[usize]) -> Result<Self> {
        let tensor = Self::empty(device, dtype, shape)?;
        let stream = device.stream()?;
        stream.fill_raw(tensor.buffer.address(), Pattern::Byte(0), tensor.buffer.bytes())?;
        stream.synchronize()?;
        Ok(tensor)
    }

    /// A tensor of zeros, whatever the element type, allocated and filled in the order of `stream`.
    ///
    /// ```
    /// # fn main() -> Result<(), warpwright_runtime::Error> {
    /// use warpwright_runtime::{DType, Device, Tensor};
    ///
    /// let stream = Device::best().stream()?;
    /// let sums = Tensor::zeros_on(&stream, DType::F32, &[2, 2])?;
    /// assert_eq!(sums.to_vec_on::<f32>(&stream)?, [0.0; 4]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Tensor::empty_on`].
    pub fn zeros_on(stream: &Stream, dtype: DType, shape: &[usize]) -> Result<Self> {
        let tensor = Self::empty_on(stream, dtype, shape)?;
        stream.fill_raw(tensor.buffer.address(), Pattern::Byte(0), tensor.buffer.bytes())?;
        Ok(tensor)
    }

    /// A tensor of ones, whatever the element type, allocated and filled in the order of `stream`.
    ///
    /// ```
    /// # fn main() -> Result<(), warpwright_runtime::Error> {
    /// use warpwright_runtime::{DType, Device, Tensor};
    ///
    /// let stream = Device::best().stream()?;
    /// let weight = Tensor::ones_on(&stream, DType::F64, &[3])?;
    /// assert_eq!(weight.to_vec_on::<f64>(&stream)?, [1.0; 3]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Tensor::empty_on`].
    pub fn ones_on(stream: &Stream, dtype: DType, shape: &[usize]) -> Result<Self> {
        match dtype {
            DType::F32 => Self::full_on(stream, 1.0f32, shape),
            DType::F64 => Self::full_on(stream, 1.0f64, shape),
            DType::F16 => Self::full_on(stream, half::f16::ONE, shape),
            DType::BF16 => Self::full_on(stream, half::bf16::ONE, shape),
            DType::F8E4M3 => Self::full_on(stream, crate::F8E4M3::ONE, shape),
            DType::F8E5M2 => Self::full_on(stream, crate::F8E5M2::ONE, shape),
            DType::U8 => Self::full_on(stream, 1u8, shape),
            DType::I8 => Self::full_on(stream, 1i8, shape),
            DType::U16 => Self::full_on(stream, 1u16, shape),
            DType::I16 => Self::full_on(stream, 1i16, shape),
            DType::U32 => Self::full_on(stream, 1u32, shape),
            DType::I32 => Self::full_on(stream, 1i32, shape),
            DType::U64 => Self::full_on(stream, 1u64, shape),
            DType::I64 => Self::full_on(stream, 1i64, shape),
        }
    }

    /// A tensor whose elements are all `value`, allocated and filled in the order of `stream`.
    ///
    /// ```
    /// # fn main() -> Result<(), warpwright_runtime::Error> {
    /// use warpwright_runtime::{Device, Tensor};
    ///
    /// let stream = Device::best().stream()?;
    /// let half = Tensor::full_on(&stream, 0.5f32, &[2])?;
    /// assert_eq!(half.to_vec_on::<f32>(&stream)?, [0.5, 0.5]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Tensor::empty_on`].
    pub fn full_on<T: Element>(stream: &Stream, value: T, shape: &[usize]) -> Result<Self> {
        let mut tensor = Self::empty_on(stream, T::DTYPE, shape)?;
        tensor.fill(stream, value)?;
        Ok(tensor)
    }

    /// A tensor with the given elements, allocated and written in the order of `stream`. Returns when `data` may be reused.
    ///
    /// ```
    /// # fn main() -> Result<(), warpwright_runtime::Error> {
    /// use warpwright_runtime::{Device, Tensor};
    ///
    /// let stream = Device::best().stream()?;
    /// let x = Tensor::from_slice_on(&stream, &[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
    /// assert_eq!(x.shape(), [2, 2]);
    /// assert_eq!(x.to_vec_on::<f32>(&stream)?, [1.0, 2.0, 3.0, 4.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Elements`] if `data` does not fill the shape; as [`Tensor::empty_on`].
    pub fn from_slice_on<T: Element>(stream: &Stream, data: &[T], shape: &[usize]) -> Result<Self> {
        const OP: &str = "Tensor::from_slice_on";
        let expected = element_count(OP, "data", shape)?;
        if data.len() != expected {
            let (shape, got) = (shape.into(), data.len());
            return Err(Error::Elements { op: OP, argument: "data", shape, expected, got });
        }
        let mut tensor = Self::empty_on(stream, T::DTYPE, shape)?;
        stream.copy_to_device(&mut tensor.buffer, 0, bytemuck::cast_slice(data))?;
        Ok(tensor)
    }

    /// A copy of the tensor, allocated and written in the order of `stream`.
    ///
    /// ```
    /// # fn main() -> Result<(), warpwright_runtime::Error> {
    /// use warpwright_runtime::{Device, Tensor};
    ///
    /// let device = Device::best();
    /// let stream = device.stream()?;
    /// let mut x = Tensor::from_slice(&device, &[1i32, 2, 3], &[3])?;
    /// let before = x.clone_on(&stream)?;
    /// x.fill(&stream, 7)?;
    /// assert_eq!(before.to_vec_on::<i32>(&stream)?, [1, 2, 3]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::WrongDevice`]; as [`Tensor::empty_on`].
    pub fn clone_on(&self, stream: &Stream) -> Result<Self> {
        let mut copy = Self::empty_on(stream, self.dtype, &self.shape)?;
        copy.copy_from(stream, self)?;
        Ok(copy)
    }

    /// Enqueues a copy of the elements of `source`, which has the same element type and shape.
    ///
    /// ```
    /// # fn main() -> Result<(), warpwright_runtime::Error> {
    /// use warpwright_runtime::{Device, Tensor};
    ///
    /// let stream = Device::best().stream()?;
    /// let x = Tensor::from_slice_on(&stream, &[1.0f32, 2.0], &[2])?;
    /// let mut y = Tensor::zeros_on(&stream, x.dtype(), x.shape())?;
    /// y.copy_from(&stream, &x)?;
    /// assert_eq!(y.to_vec_on::<f32>(&stream)?, [1.0, 2.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::DType`], [`Error::Shape`], [`Error::WrongDevice`].
    pub fn copy_from(&mut self, stream: &Stream, source: &Self) -> Result<()> {
        const OP: &str = "Tensor::copy_from";
        if source.dtype != self.dtype {
            let (expected, got) = (self.dtype, source.dtype);
            return Err(Error::DType { op: OP, argument: "source", expected, got });
        }
        if *source.shape != *self.shape {
            let (expected, got) = ((*self.shape).into(), (*source.shape).into());
            return Err(Error::Shape { op: OP, argument: "source", expected, got });
        }
        stream.copy(&mut self.buffer, 0, &source.buffer, 0, source.buffer.bytes())
    }

    /// Enqueues setting every element to `value`, also while the stream is captured.
    ///
    /// # Errors
    /// [`Error::DType`] if the tensor has another element type; [`Error::WrongDevice`].
    pub fn fill<T: Element>(&mut self, stream: &Stream, value: T) -> Result<()> {
        const OP: &str = "Tensor::fill";
        if self.dtype != T::DTYPE {
            return Err(Error::DType { op: OP, argument: "value", expected: self.dtype, got: T::DTYPE });
        }
        stream.same_device(OP, "self", self.device())?;
        stream.fill_raw(self.buffer.address(), Pattern::of(&value), self.len() as u64)?;
        self.buffer.memory().used_on(stream);
        Ok(())
    }

    /// A tensor with the given elements.
    ///
    /// # Errors
    /// [`Error::Elements`] if `data` does not fill the shape; as [`Tensor::empty`].
    pub fn from_slice<T: Element>(device: &Device, data: &[T], shape: &[usize]) -> Result<Self> {
        Self::from_bytes(device, T::DTYPE, bytemuck::cast_slice(data), shape)
    }

    /// A tensor with the given element bytes in row-major order.
    ///
    /// # Errors
    /// [`Error::Elements`] if `data` does not fill the shape; as [`Tensor::empty`].
    pub fn from_bytes(device: &Device, dtype: DType, data: &[u8], shape: &[usize]) -> Result<Self> {
        const OP: &str = "Tensor::from_bytes";
        let expected = element_count(OP, "data", shape)?;
        if data.len() as u64 != byte_count(OP, "data", shape, dtype.bytes())? {
            return Err(Error::Elements {
                op: OP,
                argument: "data",
                shape: shape.into(),
                expected,
                got: data.len() / dtype.bytes(),
            });
        }
        let mut tensor = Self::empty(device, dtype, shape)?;
        tensor.buffer.write(0, data)?;
        Ok(tensor)
    }

    /// The elements, after everything on the device has finished.
    ///
    /// # Errors
    /// [`Error::DType`] for another type; [`Error::Fault`] if a kernel failed.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.read_with("Tensor::to_vec", |buffer, bytes| buffer.read(0, bytes))
    }

    /// The elements, after everything that was enqueued on `stream`.
    ///
    /// # Errors
    /// As [`Tensor::to_vec`]; [`Error::WrongDevice`].
    pub fn to_vec_on<T: Element>(&self, stream: &Stream) -> Result<Vec<T>> {
        self.read_with("Tensor::to_vec_on", |buffer, bytes| stream.copy_to_host(bytes, buffer, 0))
    }

    fn read_with<T: Element>(
        &self,
        op: &'static str,
        read: impl FnOnce(&Buffer, &mut [u8]) -> Result<()>,
    ) -> Result<Vec<T>> {
        if self.dtype != T::DTYPE {
            return Err(Error::DType { op, argument: "self", expected: T::DTYPE, got: self.dtype });
        }
        let mut data = vec![T::zeroed(); self.len()];
        read(&self.buffer, bytemuck::cast_slice_mut(&mut data))?;
        Ok(data)
    }

    /// The bytes of the elements, after everything on the device has finished.
    ///
    /// # Errors
    /// [`Error::Fault`] if a kernel failed.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut data = vec![0; self.len() * self.dtype.bytes()];
        self.buffer.read(0, &mut data)?;
        Ok(data)
    }

    /// Overwrites the elements. The caller sees to it that no work in flight uses them.
    ///
    /// # Errors
    /// [`Error::DType`], [`Error::Elements`].
    pub fn write<T: Element>(&mut self, data: &[T]) -> Result<()> {
        const OP: &str = "Tensor::write";
        if self.dtype != T::DTYPE {
            return Err(Error::DType { op: OP, argument: "data", expected: self.dtype, got: T::DTYPE });
        }
        if data.len() != self.len() {
            let (shape, expected) = ((*self.shape).into(), self.len());
            return Err(Error::Elements { op: OP, argument: "data", shape, expected, got: data.len() });
        }
        self.buffer.write(0, bytemuck::cast_slice(data))
    }

    /// The same elements under another shape.
    ///
    /// # Errors
    /// [`Error::Elements`] if the shapes have different numbers of elements.
    pub fn reshape(mut self, shape: &[usize]) -> Result<Self> {
        const OP: &str = "Tensor::reshape";
        let expected = element_count(OP, "shape", shape)?;
        if expected != self.len() {
            let got = self.len();
            return Err(Error::Elements { op: OP, argument: "shape", shape: shape.into(), expected, got });
        }
        self.shape = dims(OP, "shape", shape)?;
        Ok(self)
    }

    /// The same bytes as elements of another type of the same size, as `torch.Tensor.view(dtype)`.
    ///
    /// # Errors
    /// [`Error::DType`] if an element of `dtype` has another size.
    pub fn reinterpret(mut self, dtype: DType) -> Result<Self> {
        if dtype.bytes() != self.dtype.bytes() {
            let (expected, got) = (self.dtype, dtype);
            return Err(Error::DType { op: "Tensor::reinterpret", argument: "dtype", expected, got });
        }
        self.dtype = dtype;
        Ok(self)
    }

    /// Where it is.
    pub fn device(&self) -> &Device {
        self.buffer.device()
    }

    /// Its element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Its extents.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.shape.contains(&0)
    }

    /// Its memory.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Its memory, to copy into.
    pub fn buffer_mut(&mut self) -> &mut Buffer {
        &mut self.buffer
    }

    /// The argument of a launch for it.
    pub fn binding(&self) -> Binding<'_> {
        self.buffer.binding()
    }

    fn view(&self) -> View<'_> {
        View {
            device: self.buffer.device(),
            memory: Some(self.buffer.memory()),
            address: self.buffer.address(),
            dtype: self.dtype,
            shape: self.shape,
            strides: row_major(&self.shape),
        }
    }

    /// A view to read.
    #[allow(
        clippy::should_implement_trait,
        reason = "`AsRef` returns a reference, this a view with a lifetime"
    )]
    pub fn as_ref(&self) -> TensorRef<'_> {
        TensorRef::over(self.view())
    }

    /// A view to write.
    #[allow(
        clippy::should_implement_trait,
        reason = "`AsMut` returns a reference, this a view with a lifetime"
    )]
    pub fn as_mut(&mut self) -> TensorMut<'_> {
        TensorMut::over(self.view())
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} {:?} on {})", self.dtype, self.shape, self.device().id())
    }
}
