//! Views of tensors: borrowed memory with an element type, a shape and strides.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use warpwright_ptx::DType;

use crate::buffer::Memory;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::lattice::Lattice;
use crate::launch::Binding;
use crate::layout::{
    Dims, MAX_RANK, Strides, byte_count, element_count, element_range, is_contiguous, row_major,
};
use crate::stream::Stream;
use crate::tensor::Tensor;

pub(crate) fn dims(op: &'static str, argument: &'static str, shape: &[usize]) -> Result<Dims> {
    Dims::new(shape).ok_or(Error::Rank { op, argument, limit: MAX_RANK, got: shape.len() })
}

/// The fields of both views.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) device: &'a Device,
    /// The memory that it is a view of; `None` for memory from elsewhere.
    pub(crate) memory: Option<&'a Arc<Memory>>,
    pub(crate) address: u64,
    pub(crate) dtype: DType,
    pub(crate) shape: Dims,
    pub(crate) strides: Strides,
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

    /// Whether strided elements lie between those of the other.
    fn is_apart_from(&self, other: &View<'_>) -> bool {
        let lattice =
            |view: &View<'_>| Lattice::of(view.address, view.dtype.bytes(), &view.shape, &view.strides);
        lattice(self).zip(lattice(other)).is_none_or(|(a, b)| a.is_disjoint(&b))
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

        /// Whether both have an element at one address. Strided views whose strides do not nest count as everything between
        /// their ends.
        pub fn overlaps(&self, other: &TensorRef<'_>) -> bool {
            match (self.byte_range(), other.byte_range()) {
                (Some(a), Some(b)) => {
                    let meet =
                        self.view().device == other.view().device && a.start < b.end && b.start < a.end;
                    meet && !self.view().is_apart_from(other.view())
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
    pub(crate) const fn over(view: View<'a>) -> Self {
        Self(view)
    }

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

    /// Notes work on `stream` that was just enqueued and uses this.
    pub(crate) fn used_on(&self, stream: &Stream) {
        if let Some(memory) = self.0.memory {
            memory.used_on(stream);
        }
    }

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
    /// The caller holds the memory exclusively.
    pub(crate) const fn over(view: View<'a>) -> Self {
        Self(TensorRef(view), PhantomData)
    }

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

    /// The view to read, for as long as the exclusive borrow lasts: whoever takes it says what writes there.
    pub(crate) const fn into_reading(self) -> TensorRef<'a> {
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
