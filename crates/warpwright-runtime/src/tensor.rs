//! Tensors: owning and contiguous, or borrowed with strides.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use warpwright_ptx::DType;

use crate::backend::Pattern;
use crate::buffer::{Buffer, Memory};
use crate::device::Device;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::launch::Binding;
use crate::layout::{
    Dims, MAX_RANK, Strides, byte_count, element_count, element_range, is_contiguous, row_major,
};
use crate::stream::Stream;

fn dims(op: &'static str, argument: &'static str, shape: &[usize]) -> Result<Dims> {
    Dims::new(shape).ok_or(Error::Rank { op, argument, limit: MAX_RANK, got: shape.len() })
}

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
        TensorRef(self.view())
    }

    /// A view to write.
    #[allow(
        clippy::should_implement_trait,
        reason = "`AsMut` returns a reference, this a view with a lifetime"
    )]
    pub fn as_mut(&mut self) -> TensorMut<'_> {
        TensorMut(TensorRef(self.view()), PhantomData)
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} {:?} on {})", self.dtype, self.shape, self.device().id())
    }
}

/// The fields of both views.
#[derive(Clone, Copy)]
struct View<'a> {
    device: &'a Device,
    /// The memory that it is a view of; `None` for memory from elsewhere.
    memory: Option<&'a Arc<Memory>>,
    address: u64,
    dtype: DType,
    shape: Dims,
    strides: Strides,
}

impl<'a> View<'a> {
    fn new(
        device: &'a Device,
        address: u64,
        dtype: DType,
        shape: &[usize],
        strides: Option<&[i64]>,
    ) -> Result<Self> {
        const OP: &str = "TensorRef::from_raw";
        byte_count(OP, "shape", shape, dtype.bytes())?;
        let extents = dims(OP, "shape", shape)?;
        let strides = match strides {
            None => row_major(&extents),
            Some(s) if s.len() == shape.len() => Strides::new(s).ok_or(Error::Rank {
                op: OP,
                argument: "strides",
                limit: MAX_RANK,
                got: s.len(),
            })?,
            Some(s) => {
                return Err(Error::Rank { op: OP, argument: "strides", limit: shape.len(), got: s.len() });
            }
        };
        let view = Self { device, memory: None, address, dtype, shape: extents, strides };
        // An address range that wraps is refused here, so `byte_range` need not fail.
        let overflow = || Error::Overflow { op: OP, argument: "strides", shape: shape.into() };
        if let Some((low, high)) = element_range(OP, "strides", shape, &strides)? {
            let size = dtype.bytes() as i64;
            let low = low.checked_mul(size).ok_or_else(overflow)?;
            let high = high.checked_add(1).and_then(|n| n.checked_mul(size)).ok_or_else(overflow)?;
            address.checked_add_signed(low).ok_or_else(overflow)?;
            address.checked_add_signed(high).ok_or_else(overflow)?;
        }
        Ok(view)
    }

    fn byte_range(&self) -> Option<Range<u64>> {
        let (low, high) = element_range("byte_range", "self", &self.shape, &self.strides).ok()??;
        let size = self.dtype.bytes() as i64;
        // Both were checked when the view was made.
        let start = self.address.wrapping_add_signed(low.wrapping_mul(size));
        let end = self.address.wrapping_add_signed(high.wrapping_add(1).wrapping_mul(size));
        Some(start..end)
    }

    fn axis(&self, op: &'static str, axis: usize) -> Result<usize> {
        let rank = self.shape.len();
        if axis < rank { Ok(axis) } else { Err(Error::Rank { op, argument: "axis", limit: rank, got: axis }) }
    }
}

impl fmt::Debug for View<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {:?} strides {:?} at {:#x} on {}",
            self.dtype,
            self.shape,
            self.strides,
            self.address,
            self.device.id()
        )
    }
}

macro_rules! view_getters {
    () => {
        /// Where it is.
        pub fn device(&self) -> &'a Device {
            self.view().device
        }

        /// Its element type.
        pub fn dtype(&self) -> DType {
            self.view().dtype
        }

        /// Its extents.
        pub fn shape(&self) -> &[usize] {
            &self.view().shape
        }

        /// Its strides in elements.
        pub fn strides(&self) -> &[i64] {
            &self.view().strides
        }

        /// Address of the element whose indices are all 0.
        pub fn address(&self) -> u64 {
            self.view().address
        }

        /// The argument of a launch for it.
        pub fn binding(&self) -> Binding<'a> {
            Binding::new(self.view().device, self.view().address, self.view().memory)
        }

        /// Number of elements.
        pub fn len(&self) -> usize {
            self.view().shape.iter().product()
        }

        /// Whether it has no elements.
        pub fn is_empty(&self) -> bool {
            self.view().shape.contains(&0)
        }

        /// Whether the elements lie in row-major order without gaps.
        pub fn is_contiguous(&self) -> bool {
            is_contiguous(&self.view().shape, &self.view().strides)
        }

        /// The addresses from the lowest to past the highest byte of an element; `None` if it is empty.
        pub fn byte_range(&self) -> Option<Range<u64>> {
            self.view().byte_range()
        }

        /// Whether the byte ranges share an address. A strided view counts as everything between its ends.
        pub fn overlaps(&self, other: &TensorRef<'_>) -> bool {
            match (self.byte_range(), other.byte_range()) {
                (Some(a), Some(b)) => {
                    self.view().device == other.view().device && a.start < b.end && b.start < a.end
                }
                _ => false,
            }
        }

        /// Whether the first element is aligned to `bytes`.
        pub fn is_aligned(&self, bytes: u64) -> bool {
            self.view().address.is_multiple_of(bytes.max(1))
        }
    };
}

/// A tensor to read: borrowed device memory with an element type, shape and strides.
#[derive(Clone, Copy)]
pub struct TensorRef<'a>(View<'a>);

impl<'a> TensorRef<'a> {
    fn view(&self) -> &View<'a> {
        &self.0
    }

    /// A view of memory from elsewhere; row-major strides if none are given. `address` is that of the element whose
    /// indices are all 0.
    ///
    /// # Errors
    /// [`Error::Overflow`], [`Error::Rank`].
    ///
    /// # Safety
    /// Every element must lie in memory of `device` that stays allocated until the work that uses the view has finished.
    #[allow(unsafe_code, reason = "the door for memory that this crate did not allocate")]
    pub unsafe fn from_raw(
        device: &'a Device,
        address: u64,
        dtype: DType,
        shape: &[usize],
        strides: Option<&[i64]>,
    ) -> Result<Self> {
        View::new(device, address, dtype, shape, strides).map(Self)
    }

    view_getters!();

    /// The same elements under another shape.
    ///
    /// # Errors
    /// [`Error::NotContiguous`]; [`Error::Elements`] if the shapes have different numbers of elements.
    pub fn reshape(self, shape: &[usize]) -> Result<Self> {
        const OP: &str = "TensorRef::reshape";
        let expected = element_count(OP, "shape", shape)?;
        if !self.is_contiguous() {
            let (shape, strides) = (self.shape().into(), self.strides().into());
            return Err(Error::NotContiguous { op: OP, argument: "self", shape, strides });
        }
        if expected != self.len() {
            let got = self.len();
            return Err(Error::Elements { op: OP, argument: "shape", shape: shape.into(), expected, got });
        }
        let shape = dims(OP, "shape", shape)?;
        Ok(Self(View { shape, strides: row_major(&shape), ..self.0 }))
    }

    /// Indices `start..start + len` of one axis.
    ///
    /// # Errors
    /// [`Error::Bounds`], in elements of the axis; [`Error::Rank`].
    pub fn narrow(self, axis: usize, start: usize, len: usize) -> Result<Self> {
        const OP: &str = "TensorRef::narrow";
        let axis = self.0.axis(OP, axis)?;
        let (mut shape, extent) = (self.0.shape.to_vec(), self.0.shape[axis]);
        if start.checked_add(len).is_none_or(|end| end > extent) {
            let needed = (start as u64).saturating_add(len as u64);
            return Err(Error::Bounds { op: OP, argument: "self", needed, available: extent as u64 });
        }
        shape[axis] = len;
        let shape = dims(OP, "self", &shape)?;
        // Within the range that was checked when the view was made; an empty view keeps its address.
        let skip = if self.is_empty() || len == 0 { 0 } else { start as i64 };
        let offset = skip.wrapping_mul(self.0.strides[axis]).wrapping_mul(self.0.dtype.bytes() as i64);
        Ok(Self(View { shape, address: self.0.address.wrapping_add_signed(offset), ..self.0 }))
    }

    /// The axes in another order: axis `i` of the result is axis `order[i]`.
    ///
    /// # Errors
    /// [`Error::Rank`] if `order` is no permutation of the axes.
    pub fn permute(self, order: &[usize]) -> Result<Self> {
        const OP: &str = "TensorRef::permute";
        let rank = self.0.shape.len();
        let complete = order.len() == rank && (0..rank).all(|axis| order.contains(&axis));
        if !complete {
            let got = order.iter().copied().max().map_or(0, |m| m + 1).max(order.len());
            return Err(Error::Rank { op: OP, argument: "order", limit: rank, got });
        }
        let shape: Vec<usize> = order.iter().map(|a| self.0.shape[*a]).collect();
        let strides: Vec<i64> = order.iter().map(|a| self.0.strides[*a]).collect();
        let rank_error = || Error::Rank { op: OP, argument: "order", limit: MAX_RANK, got: rank };
        Ok(Self(View {
            shape: dims(OP, "order", &shape)?,
            strides: Strides::new(&strides).ok_or_else(rank_error)?,
            ..self.0
        }))
    }
}

impl<'a> From<&'a Tensor> for TensorRef<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        tensor.as_ref()
    }
}

impl fmt::Debug for TensorRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TensorRef({:?})", self.0)
    }
}

/// A tensor to write: exclusively borrowed device memory with an element type, shape and strides.
pub struct TensorMut<'a>(TensorRef<'a>, PhantomData<&'a mut Tensor>);

impl<'a> TensorMut<'a> {
    fn view(&self) -> &View<'a> {
        &self.0.0
    }

    /// The view to read, in place.
    pub fn reading(&self) -> &TensorRef<'_> {
        &self.0
    }

    /// A view of memory from elsewhere; row-major strides if none are given. `address` is that of the element whose
    /// indices are all 0.
    ///
    /// # Errors
    /// [`Error::Overflow`], [`Error::Rank`].
    ///
    /// # Safety
    /// Every element must lie in memory of `device` that stays allocated, and that nothing else reads or writes, until
    /// the work that uses the view has finished.
    #[allow(unsafe_code, reason = "the door for memory that this crate did not allocate")]
    pub unsafe fn from_raw(
        device: &'a Device,
        address: u64,
        dtype: DType,
        shape: &[usize],
        strides: Option<&[i64]>,
    ) -> Result<Self> {
        View::new(device, address, dtype, shape, strides).map(|view| Self(TensorRef(view), PhantomData))
    }

    view_getters!();

    /// The view to read.
    #[allow(
        clippy::should_implement_trait,
        reason = "`AsRef` returns a reference, this a view with a lifetime"
    )]
    pub fn as_ref(&self) -> TensorRef<'_> {
        self.0
    }

    /// A shorter borrow of the same view.
    pub fn reborrow(&mut self) -> TensorMut<'_> {
        TensorMut(self.0, PhantomData)
    }

    /// The same elements under another shape.
    ///
    /// # Errors
    /// As [`TensorRef::reshape`].
    pub fn reshape(self, shape: &[usize]) -> Result<Self> {
        self.0.reshape(shape).map(|view| Self(view, PhantomData))
    }

    /// Indices `start..start + len` of one axis.
    ///
    /// # Errors
    /// As [`TensorRef::narrow`].
    pub fn narrow(self, axis: usize, start: usize, len: usize) -> Result<Self> {
        self.0.narrow(axis, start, len).map(|view| Self(view, PhantomData))
    }

    /// The axes in another order.
    ///
    /// # Errors
    /// As [`TensorRef::permute`].
    pub fn permute(self, order: &[usize]) -> Result<Self> {
        self.0.permute(order).map(|view| Self(view, PhantomData))
    }
}

impl<'a> From<&'a mut Tensor> for TensorMut<'a> {
    fn from(tensor: &'a mut Tensor) -> Self {
        tensor.as_mut()
    }
}

impl fmt::Debug for TensorMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TensorMut({:?})", self.view())
    }
}
