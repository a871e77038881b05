//! Operations by name, as logs and profilers show what their launches belong to.

use tracing::debug_span;
use tracing::span::EnteredSpan;

use crate::backend::cuda::nvtx::Range;

/// The name of an operation, for [`Stream::launch_operation`](crate::Stream::launch_operation).
///
/// Its launches are in a span `operation` of `tracing` with the fields `op` and `direction` (target `warpwright::launch`, level debug) and,
/// if the environment variable `WARPWRIGHT_NVTX` asks for it, in a range `op direction` of NVTX, by which Nsight Systems and other profilers
/// show them. Neither is made, formatted or allocated where nobody asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationName {
    /// The operation.
    pub op: &'static str,
    /// `forward` or `backward`
    pub direction: &'static str,
}

impl OperationName {
    /// Begins the span and the range, which end with what is returned.
    pub(crate) fn enter(self) -> (EnteredSpan, Range<'static>) {
        let Self { op, direction } = self;
        let span = debug_span!(target: "warpwright::launch", "operation", op, direction).entered();
        (span, Range::enter(op, direction))
    }
}
