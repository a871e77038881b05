//! Why a call failed, as data. candle's functions return candle's [`Error`](candle_core::Error), and so do those of this crate: ours
//! travels inside of it, and [`Error::of`] finds it there.

use std::fmt;

use candle_core::{DType, DeviceLocation};

/// Why a function of this crate failed.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A tensor lies on another device than the first one.
    #[error("{op}: {argument} is on {got:?}, must be on {expected:?}")]
    Device {
        /// The function.
        op: &'static str,
        /// The tensor.
        argument: &'static str,
        /// Where the first tensor lies.
        expected: DeviceLocation,
        /// Where it lies.
        got: DeviceLocation,
    },
    /// A device that there are no kernels for.
    #[error("{op}: {argument} is on {got:?}, must be on the CPU or on a CUDA device")]
    NoKernels {
        /// The function.
        op: &'static str,
        /// The tensor.
        argument: &'static str,
        /// Where it lies.
        got: DeviceLocation,
    },
    /// A tensor has elements of another type.
    #[error("{op}: {argument} is {got:?}, must be {}", any_of(expected))]
    DType {
        /// The function.
        op: &'static str,
        /// The tensor.
        argument: &'static str,
        /// The types that it may have.
        expected: Vec<DType>,
        /// The type that it has.
        got: DType,
    },
    /// A tensor has another shape.
    #[error("{op}: {argument} is {got:?}, must be {expected}")]
    Shape {
        /// The function.
        op: &'static str,
        /// The tensor.
        argument: &'static str,
        /// The shape that it must have.
        expected: String,
        /// The shape that it has.
        got: Vec<usize>,
    },
    /// A gradient was asked for that does not exist.
    #[error("{op}: {argument} has no gradient; detach it, or do without it in what is differentiated")]
    NoGradient {
        /// The function.
        op: &'static str,
        /// The tensor.
        argument: &'static str,
    },
    /// The gradients of a result met no others: candle called the functions of a graph in another order than a backward pass does.
    #[error("{op}: the backward pass of a result did not come before that of what it was computed from")]
    Order {
        /// The function.
        op: &'static str,
    },
    /// The operation could not be planned or launched.
    #[error(transparent)]
    Operation(#[from] warpwright::Error),
}

impl Error {
    /// The error of this crate in one of candle's, if there is one.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use warpwright_candle::{Error, ops};
    ///
    /// # fn main() -> candle_core::Result<()> {
    /// let (x, weight) = (Tensor::ones((2, 3), candle_core::DType::F32, &Device::Cpu)?, Tensor::new(&[1f32; 4], &Device::Cpu)?);
    /// let failed = ops::rms_norm(&x, &weight, 1e-5).unwrap_err();
    /// let Some(Error::Shape { argument, got, .. }) = Error::of(&failed) else { panic!("{failed}") };
    /// assert_eq!((*argument, &got[..]), ("alpha", &[4][..]));
    /// # Ok(())
    /// # }
    /// ```
    pub fn of(error: &candle_core::Error) -> Option<&Self> {
        match error {
            candle_core::Error::WrappedContext { wrapped, .. } => wrapped
                .downcast_ref::<Self>()
                .or_else(|| Self::of(wrapped.downcast_ref::<candle_core::Error>()?)),
            candle_core::Error::Context { inner, .. }
            | candle_core::Error::WithPath { inner, .. }
            | candle_core::Error::WithBacktrace { inner, .. } => Self::of(inner),
            _ => None,
        }
    }
}

/// Its message: candle shows wrapped errors by this.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<Error> for candle_core::Error {
    fn from(error: Error) -> Self {
        // The one variant whose content can be had back as what it was.
        let context = env!("CARGO_PKG_NAME").to_owned();
        Self::WrappedContext { wrapped: Box::new(error), context }.bt()
    }
}

fn any_of(dtypes: &[DType]) -> String {
    dtypes.iter().map(|dtype| format!("{dtype:?}")).collect::<Vec<_>>().join(" or ")
}

/// That the operation cannot be, or a launch failed.
pub(crate) fn operation(error: impl Into<warpwright::Error>) -> candle_core::Error {
    Error::Operation(error.into()).into()
}
