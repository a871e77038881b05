//! Sizes of the kernels.

use warpwright_ptx::DType;

pub use crate::embedding::tuning::{alignment, all_widths, widths};

/// Threads of a block that multiplies rows; each warp has one.
pub(super) const DOT_THREADS: u32 = 256;
/// Vectors of a thread that are in flight together, from each of two rows.
pub(super) const UNROLL: u32 = 4;

/// Types of factors of rows of `dtype`: its own, and the one that it is summed in.
pub fn factors(dtype: DType) -> Vec<DType> {
    let mut all = vec![dtype, dtype.accumulator()];
    all.dedup();
    all
}
