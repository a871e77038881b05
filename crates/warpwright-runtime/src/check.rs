//! The checks that every operation makes before it launches, with errors that name operation and argument.

use warpwright_ptx::DType;

use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::launch::Binding;
use crate::layout::element_count;
use crate::stream::Stream;
use crate::tensor::{TensorMut, TensorRef};

/// Checks the arguments of one operation on one stream. None of its methods allocates unless it fails.
#[derive(Clone, Copy, Debug)]
pub struct Checker<'a> {
    op: &'static str,
    stream: &'a Stream,
}

impl<'a> Checker<'a> {
    /// A checker for `op`, whose name stands in the errors.
    pub fn new(op: &'static str, stream: &'a Stream) -> Self {
        Self { op, stream }
    }

    /// Device, element type, shape and contiguity of an input; its binding.
    ///
    /// # Errors
    /// [`Error::WrongDevice`], [`Error::DType`], [`Error::Shape`], [`Error::NotContiguous`].
    pub fn input(
        &self,
        argument: &'static str,
        x: &TensorRef<'_>,
        dtype: DType,
        shape: &[usize],
    ) -> Result<Binding> {
        self.stream.same_device(self.op, argument, x.device())?;
        self.dtype(argument, x, dtype)?;
        self.shape(argument, x, shape)?;
        self.contiguous(argument, x)?;
        Ok(x.binding())
    }

    /// The same of an output.
    ///
    /// # Errors
    /// As [`Checker::input`].
    pub fn output(
        &self,
        argument: &'static str,
        y: &TensorMut<'_>,
        dtype: DType,
        shape: &[usize],
    ) -> Result<Binding> {
        self.input(argument, &y.as_ref(), dtype, shape)
    }

    /// The same of an input that is there if and only if `wanted`; [`Binding::NULL`] if it is not.
    ///
    /// # Errors
    /// [`Error::Presence`]; as [`Checker::input`].
    pub fn optional_input(
        &self,
        argument: &'static str,
        x: Option<&TensorRef<'_>>,
        wanted: bool,
        dtype: DType,
        shape: &[usize],
    ) -> Result<Binding> {
        match x {
            Some(x) if wanted => self.input(argument, x, dtype, shape),
            None if !wanted => Ok(Binding::NULL),
            _ => Err(Error::Presence { op: self.op, argument, given: x.is_some() }),
        }
    }

    /// The same of an output that is there if and only if `wanted`; [`Binding::NULL`] if it is not.
    ///
    /// # Errors
    /// [`Error::Presence`]; as [`Checker::input`].
    pub fn optional_output(
        &self,
        argument: &'static str,
        y: Option<&TensorMut<'_>>,
        wanted: bool,
        dtype: DType,
        shape: &[usize],
    ) -> Result<Binding> {
        self.optional_input(argument, y.map(TensorMut::as_ref).as_ref(), wanted, dtype, shape)
    }

    /// A workspace of at least `bytes`; [`Binding::NULL`] if none is needed and none given.
    ///
    /// # Errors
    /// [`Error::WrongDevice`], [`Error::Bounds`], [`Error::Presence`].
    pub fn workspace(&self, workspace: Option<&Buffer>, bytes: u64) -> Result<Binding> {
        let Some(buffer) = workspace else {
            let missing = Error::Presence { op: self.op, argument: "workspace", given: false };
            return if bytes == 0 { Ok(Binding::NULL) } else { Err(missing) };
        };
        self.stream.same_device(self.op, "workspace", buffer.device())?;
        if buffer.bytes() < bytes {
            let available = buffer.bytes();
            return Err(Error::Bounds { op: self.op, argument: "workspace", needed: bytes, available });
        }
        Ok(buffer.binding())
    }

    /// The element type.
    ///
    /// # Errors
    /// [`Error::DType`].
    pub fn dtype(&self, argument: &'static str, x: &TensorRef<'_>, expected: DType) -> Result<()> {
        if x.dtype() == expected {
            return Ok(());
        }
        Err(Error::DType { op: self.op, argument, expected, got: x.dtype() })
    }

    /// The shape.
    ///
    /// # Errors
    /// [`Error::Shape`].
    pub fn shape(&self, argument: &'static str, x: &TensorRef<'_>, expected: &[usize]) -> Result<()> {
        if x.shape() == expected {
            return Ok(());
        }
        Err(Error::Shape { op: self.op, argument, expected: expected.into(), got: x.shape().into() })
    }

    /// The number of elements, for operations that do not look at the shape.
    ///
    /// # Errors
    /// [`Error::Elements`].
    pub fn elements(&self, argument: &'static str, x: &TensorRef<'_>, expected: usize) -> Result<()> {
        let got = element_count(self.op, argument, x.shape())?;
        if got == expected {
            return Ok(());
        }
        Err(Error::Elements { op: self.op, argument, shape: x.shape().into(), expected, got })
    }

    /// Row-major order without gaps.
    ///
    /// # Errors
    /// [`Error::NotContiguous`].
    pub fn contiguous(&self, argument: &'static str, x: &TensorRef<'_>) -> Result<()> {
        if x.is_contiguous() {
            return Ok(());
        }
        let (shape, strides) = (x.shape().into(), x.strides().into());
        Err(Error::NotContiguous { op: self.op, argument, shape, strides })
    }

    /// Alignment of the first element.
    ///
    /// # Errors
    /// [`Error::Alignment`].
    pub fn aligned(&self, argument: &'static str, x: &TensorRef<'_>, bytes: u64) -> Result<()> {
        if x.is_aligned(bytes) {
            return Ok(());
        }
        Err(Error::Alignment { op: self.op, argument, required: bytes, address: x.address() })
    }

    /// An output shares no memory with another argument.
    ///
    /// # Errors
    /// [`Error::Overlap`].
    pub fn disjoint(
        &self,
        first: &'static str,
        y: &TensorMut<'_>,
        second: &'static str,
        x: &TensorRef<'_>,
    ) -> Result<()> {
        if y.overlaps(x) { Err(Error::Overlap { op: self.op, first, second }) } else { Ok(()) }
    }

    /// An output is the very memory of an input, or shares none with it: for operations that may run in place.
    ///
    /// # Errors
    /// [`Error::Overlap`].
    pub fn same_or_disjoint(
        &self,
        first: &'static str,
        y: &TensorMut<'_>,
        second: &'static str,
        x: &TensorRef<'_>,
    ) -> Result<()> {
        let same = y.address() == x.address()
            && y.dtype() == x.dtype()
            && y.shape() == x.shape()
            && y.strides() == x.strides();
        if same { Ok(()) } else { self.disjoint(first, y, second, x) }
    }
}
