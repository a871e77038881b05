//! Why a call failed, as data.

use burn::tensor::{DType, Device};

/// Why a function of this crate failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A tensor lies on a device that there are no kernels for.
    #[error("{op}: {argument} is on {got:?}, must be on the device Flex")]
    Device {
        /// The function.
        op: &'static str,
        /// The tensor.
        argument: &'static str,
        /// Where it lies.
        got: Box<Device>,
    },
    /// Tensors of one call are to be differentiated with different strategies of checkpointing.
    #[error("{op}: {argument} is on {got:?}, must be on {expected:?}")]
    Checkpointing {
        /// The function.
        op: &'static str,
        /// The tensor.
        argument: &'static str,
        /// Where the first tensor lies that is differentiated.
        expected: Box<Device>,
        /// Where it lies.
        got: Box<Device>,
    },
    /// A tensor has elements of another type.
    #[error("{op}: {argument} is {got:?}, must be {}", any_of(expected))]
    DType {
        /// The function.
        op: &'static str,
        /// The tensor.
        argument: &'static str,
        /// The types that it may have.
        expected: &'static [DType],
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
    /// A parameter or a field of a configuration has a value that there are no kernels for.
    #[error("{op}: {parameter} is {got}, must be {expected}")]
    Parameter {
        /// The function or layer.
        op: &'static str,
        /// The parameter or field.
        parameter: &'static str,
        /// The values that it may have.
        expected: &'static str,
        /// The value that it has.
        got: String,
    },
    /// A tensor is differentiated that the operation has no gradient for.
    #[error("{op}: {argument} has no gradient; take `inner()` of it")]
    NoGradient {
        /// The function.
        op: &'static str,
        /// The tensor.
        argument: &'static str,
    },
    /// Another device was to run the kernels after one had run some, or had been chosen.
    #[error("set_device: the device of the kernels is chosen already, {refused} cannot take its place")]
    DeviceInUse {
        /// The name of the device that was to run them.
        refused: String,
    },
    /// burn did not give the elements of a tensor.
    #[error("{op}: {argument} cannot be read: {message}")]
    Read {
        /// The function.
        op: &'static str,
        /// The tensor.
        argument: &'static str,
        /// Burn's own words.
        message: String,
    },
    /// The operation could not be planned or launched.
    #[error(transparent)]
    Operation(#[from] warpwright::Error),
}

impl From<warpwright::RuntimeError> for Error {
    fn from(error: warpwright::RuntimeError) -> Self {
        Self::Operation(error.into())
    }
}

impl Error {
    /// That a tensor has another shape than `expected`.
    pub(crate) fn shape(
        op: &'static str,
        argument: &'static str,
        expected: impl Into<String>,
        got: &[usize],
    ) -> Self {
        Self::Shape { op, argument, expected: expected.into(), got: got.to_vec() }
    }
}

fn any_of(dtypes: &[DType]) -> String {
    dtypes.iter().map(|dtype| format!("{dtype:?}")).collect::<Vec<_>>().join(" or ")
}
