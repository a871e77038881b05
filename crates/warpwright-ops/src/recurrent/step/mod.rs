//! Kernels of one step, and those of what surrounds the steps.

pub(super) mod dropout;
pub(super) mod epilogue;
pub(super) mod fused_mma;
pub(super) mod gemv;
pub(super) mod pointwise;
pub(super) mod projection;
pub(super) mod saved;
pub(super) mod sums;
