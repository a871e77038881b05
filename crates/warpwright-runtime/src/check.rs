//! The checks that every operation makes before it launches, with errors that name operation and argument.

use warpwright_ptx::DType;

use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::launch::Binding;
use crate::layout::element_count;
use crate::stream::Stream;
use crate::view::{TensorMut, TensorRef};

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
    pub fn input<'x>(
        &self,
        argument: &'static str,
        x: &TensorRef<'x>,
        dtype: DType,
        shape: &[usize],
    ) -> Result<Binding<'x>> {
        self.stream.same_device(self.op, argument, x.device())?;
        self.dtype(argument, x, dtype)?;
        self.shape(argument, x, shape)?;
        self.contiguous(argument, x)?;
        Ok(x.binding())
    }

    /// Device, element type, shape and strides of an input; strides of extents below 2 do not matter.
    ///
    /// # Errors
    /// [`Error::WrongDevice`], [`Error::DType`], [`Error::Shape`], [`Error::Strides`].
    pub fn strided<'x>(
        &self,
        argument: &'static str,
        x: &TensorRef<'x>,
        dtype: DType,
        shape: &[usize],
        strides: &[i64],
    ) -> Result<Binding<'x>> {
        self.stream.same_device(self.op, argument, x.device())?;
        self.dtype(argument, x, dtype)?;
        self.shape(argument, x, shape)?;
        let mut axes = shape.iter().zip(strides).zip(x.strides());
        if x.is_empty() || axes.all(|((extent, own), given)| *extent < 2 || own == given) {
            return Ok(x.binding());
        }
        let (expected, got) = (strides.into(), x.strides().into());
        Err(Error::Strides { op: self.op, argument, expected, got })
    }

    /// The same of an output.
    ///
    /// # Errors
    /// As [`Checker::input`].
    pub fn output<'y>(
        &self,
        argument: &'static str,
        y: &'y TensorMut<'_>,
        dtype: DType,
        shape: &[usize],
    ) -> Result<Binding<'y>> {
        self.input(argument, &y.as_ref(), dtype, shape)
    }

    /// The same of an input that is there if and only if `wanted`; [`Binding::NULL`] if it is not.
    ///
    /// # Errors
    /// [`Error::Presence`]; as [`Checker::input`].
    pub fn optional_input<'x>(
        &self,
        argument: &'static str,
        x: Option<&TensorRef<'x>>,
        wanted: bool,
        dtype: DType,
        shape: &[usize],
    ) -> Result<Binding<'x>> {
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
    pub fn optional_output<'y>(
        &self,
        argument: &'static str,
        y: Option<&'y TensorMut<'_>>,
        wanted: bool,
        dtype: DType,
        shape: &[usize],
    ) -> Result<Binding<'y>> {
        self.optional_input(argument, y.map(TensorMut::as_ref).as_ref(), wanted, dtype, shape)
    }

    /// A workspace of at least `bytes`; [`Binding::NULL`] if none is needed and none given.
    ///
    /// # Errors
    /// [`Error::WrongDevice`], [`Error::Bounds`], [`Error::Presence`].
    pub fn workspace<'b>(&self, workspace: Option<&'b Buffer>, bytes: u64) -> Result<Binding<'b>> {
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
        // Along a dimension of one element the stride says nothing.
        let mut steps = y.shape().iter().zip(y.strides().iter().zip(x.strides()));
        let same = y.address() == x.address()
            && y.dtype() == x.dtype()
            && y.shape() == x.shape()
            && steps.all(|(&extent, (a, b))| extent <= 1 || a == b);
        if same { Ok(()) } else { self.disjoint(first, y, second, x) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, Tensor};

    fn tensor(device: &Device, shape: &[usize]) -> Tensor {
        Tensor::zeros(device, DType::F32, shape).expect("tensor")
    }

    #[test]
    fn inputs_are_checked_and_bound() {
        let device = Device::emulator();
        let stream = device.stream().expect("stream");
        let check = Checker::new("op", &stream);
        let x = tensor(&device, &[2, 3]);
        let bound = check.input("x", &x.as_ref(), DType::F32, &[2, 3]).expect("fits");
        assert_eq!(bound, x.binding());

        let dtype = check.input("x", &x.as_ref(), DType::BF16, &[2, 3]);
        let (expected, got) = (DType::BF16, DType::F32);
        assert!(
            matches!(dtype, Err(Error::DType { op: "op", argument: "x", expected: e, got: g }) if (e, g) == (expected, got))
        );
        match check.input("x", &x.as_ref(), DType::F32, &[3, 2]) {
            Err(Error::Shape { op: "op", argument: "x", expected, got }) => {
                assert_eq!((&*expected, &*got), (&[3, 2][..], &[2, 3][..]));
            }
            other => panic!("{other:?}"),
        }
        let turned = x.as_ref().permute(&[1, 0]).expect("permute");
        match check.input("x", &turned, DType::F32, &[3, 2]) {
            Err(Error::NotContiguous { strides, .. }) => assert_eq!(*strides, [1, 3]),
            other => panic!("{other:?}"),
        }
        let elsewhere = Device::emulator();
        let of_another = tensor(&elsewhere, &[2, 3]);
        let foreign = check.input("x", &of_another.as_ref(), DType::F32, &[2, 3]);
        assert!(matches!(foreign, Err(Error::WrongDevice { got, .. }) if got == elsewhere.id()));
        assert!(matches!(
            check.elements("x", &x.as_ref(), 5),
            Err(Error::Elements { expected: 5, got: 6, .. })
        ));
    }

    #[test]
    fn optional_arguments_are_there_when_wanted() {
        let device = Device::emulator();
        let stream = device.stream().expect("stream");
        let check = Checker::new("op", &stream);
        let x = tensor(&device, &[4]);
        let view = x.as_ref();
        let optional = |x: Option<&TensorRef<'_>>, wanted| {
            check.optional_input("w", x, wanted, DType::F32, &[4]).map(Binding::address)
        };
        assert_eq!(optional(Some(&view), true).expect("wanted"), x.binding().address());
        assert_eq!(optional(None, false).expect("not wanted"), 0);
        assert!(matches!(optional(None, true), Err(Error::Presence { given: false, .. })));
        assert!(matches!(optional(Some(&view), false), Err(Error::Presence { given: true, .. })));
    }

    #[test]
    fn a_workspace_is_large_enough() {
        let device = Device::emulator();
        let stream = device.stream().expect("stream");
        let check = Checker::new("op", &stream);
        let buffer = device.alloc(100).expect("buffer");
        assert_eq!(check.workspace(Some(&buffer), 100).expect("fits"), buffer.binding());
        assert!(matches!(
            check.workspace(Some(&buffer), 101),
            Err(Error::Bounds { argument: "workspace", needed: 101, available: 100, .. })
        ));
        assert_eq!(check.workspace(None, 0).expect("none needed"), Binding::NULL);
        assert!(matches!(check.workspace(None, 1), Err(Error::Presence { given: false, .. })));
    }

    #[test]
    #[allow(unsafe_code, reason = "two views of one tensor need the raw door")]
    fn overlap_and_alignment_are_found() {
        let device = Device::emulator();
        let stream = device.stream().expect("stream");
        let check = Checker::new("op", &stream);
        let (mut y, x) = (tensor(&device, &[4, 4]), tensor(&device, &[4, 4]));
        let address = y.buffer().address();
        // SAFETY: the views stand for the same memory and are only compared.
        let (whole, shifted) = unsafe {
            let whole = TensorRef::from_raw(&device, address, DType::F32, &[4, 4], None).expect("view");
            (whole, TensorRef::from_raw(&device, address + 4, DType::F32, &[2, 4], None).expect("view"))
        };
        let y = y.as_mut();
        check.disjoint("y", &y, "x", &x.as_ref()).expect("two tensors");
        let shared = check.disjoint("y", &y, "x", &shifted);
        assert!(matches!(shared, Err(Error::Overlap { first: "y", second: "x", .. })), "{shared:?}");
        assert!(check.disjoint("y", &y, "x", &whole).is_err());
        check.same_or_disjoint("y", &y, "x", &whole).expect("in place");
        check.same_or_disjoint("y", &y, "x", &x.as_ref()).expect("two tensors");
        assert!(matches!(check.same_or_disjoint("y", &y, "x", &shifted), Err(Error::Overlap { .. })));
        // SAFETY: as above.
        let (part, wide) = unsafe {
            let part = TensorMut::from_raw(&device, address, DType::F32, &[1, 2, 4], None).expect("view");
            let strides = [16, 4, 1];
            (
                part,
                TensorRef::from_raw(&device, address, DType::F32, &[1, 2, 4], Some(&strides)).expect("view"),
            )
        };
        check.same_or_disjoint("y", &part, "x", &wide).expect("one batch of a part of the rows");

        check.aligned("x", &whole, 16).expect("aligned");
        let odd = check.aligned("x", &shifted, 16);
        assert!(
            matches!(odd, Err(Error::Alignment { required: 16, address: a, .. }) if a == address + 4),
            "{odd:?}"
        );
    }
}
