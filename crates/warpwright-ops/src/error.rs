//! Why an operation cannot be planned. What can go wrong in a launch is an [`Error`](warpwright_runtime::Error) of the
//! runtime, which names the operation and the argument.

use warpwright_dsl::BuildError;
use warpwright_ptx::{DType, Target};

use crate::elementwise::ExprError;
use crate::plan::Real;

/// A descriptor that has no plan.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The operation does not exist for this element type.
    #[error("{op}: {tensor} cannot be {got}; supported are {}", names(expected))]
    DType {
        /// The operation.
        op: &'static str,
        /// The tensor.
        tensor: &'static str,
        /// The type that was asked for.
        got: DType,
        /// The types that there are.
        expected: &'static [DType],
    },
    /// A size or scalar that the operation has no meaning for.
    #[error("{op}: {parameter} is {got}, must be {expected}")]
    Parameter {
        /// The operation.
        op: &'static str,
        /// The field of the descriptor.
        parameter: &'static str,
        /// Its value, as written in the descriptor.
        got: String,
        /// The values that are allowed.
        expected: &'static str,
    },
    /// An expression that cannot be computed.
    #[error("{op}: {source}")]
    Expression {
        /// The operation.
        op: &'static str,
        /// The fault in it.
        source: ExprError,
    },
    /// More work than one launch can address.
    #[error("{op}: {blocks} blocks are needed, a grid has at most {limit}")]
    TooLarge {
        /// The operation.
        op: &'static str,
        /// Blocks that the shape needs.
        blocks: u64,
        /// Blocks that a grid has.
        limit: u64,
    },
    /// A launch with more shared memory than a block has on any device of the target.
    #[error("{op}: `{kernel}` needs {bytes} bytes of shared memory, a block of {target} has {limit}")]
    SharedMemory {
        /// The operation.
        op: &'static str,
        /// The kernel.
        kernel: String,
        /// The target that was asked for.
        target: Target,
        /// Bytes that a block needs, static and dynamic.
        bytes: u64,
        /// Bytes that a block has.
        limit: u32,
    },
    /// The target is older than what the operation needs.
    #[error("{op} needs sm_{needs} or later, the target is {target}")]
    Target {
        /// The operation.
        op: &'static str,
        /// The lowest architecture.
        needs: u32,
        /// The target that was asked for.
        target: Target,
    },
    /// No operation has this name.
    #[error("there is no operation called `{name}`")]
    UnknownOperation {
        /// The name.
        name: String,
    },
    /// A kernel did not record: a defect of this library.
    #[error("kernel of {op} cannot be built")]
    Build {
        /// The operation.
        op: &'static str,
        /// The objection of the recorder or the verifier.
        #[source]
        source: BuildError,
    },
}

impl PlanError {
    /// A size or scalar that the operation has no meaning for.
    pub(crate) fn refused(
        op: &'static str,
        parameter: &'static str,
        got: impl ToString,
        expected: &'static str,
    ) -> Self {
        Self::Parameter { op, parameter, got: got.to_string(), expected }
    }

    /// A tensor of floating-point elements.
    pub(crate) fn check_floats(op: &'static str, tensor: &'static str, got: DType) -> Result<(), Self> {
        let expected = &DType::FLOATS;
        if expected.contains(&got) { Ok(()) } else { Err(Self::DType { op, tensor, got, expected }) }
    }

    /// A tensor of the type of elements of `dtype`, or of the one that these are summed in.
    pub(crate) fn check_own_or_wide(
        op: &'static str,
        tensor: &'static str,
        got: DType,
        dtype: DType,
    ) -> Result<(), Self> {
        let expected: &'static [DType] = match dtype {
            DType::F64 => &[DType::F64],
            DType::F32 => &[DType::F32],
            DType::F16 => &[DType::F16, DType::F32],
            _ => &[DType::BF16, DType::F32],
        };
        if expected.contains(&got) { Ok(()) } else { Err(Self::DType { op, tensor, got, expected }) }
    }

    /// A number that is added to a variance.
    pub(crate) fn check_eps(op: &'static str, eps: Real) -> Result<(), Self> {
        if eps.get() >= 0.0 && eps.get().is_finite() {
            return Ok(());
        }
        Err(Self::refused(op, "eps", format!("{eps:?}"), "finite and at least 0"))
    }
}

/// The error of a free function: planning, allocating or launching failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operation has no plan for these tensors.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The plan does not take these tensors, memory for the result could not be had, or the device failed.
    #[error(transparent)]
    Runtime(#[from] warpwright_runtime::Error),
}

fn names(dtypes: &[DType]) -> String {
    dtypes.iter().map(|d| d.name()).collect::<Vec<_>>().join(", ")
}
