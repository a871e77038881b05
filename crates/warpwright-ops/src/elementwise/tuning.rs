//! Vectors and blocks.
//!
//! A launch is bound by the bytes it moves. A thread takes as many elements as the widest of the types that are read or written side
//! by side has in 16 bytes, and no loop over the grid, as for [activations](crate::activation::tuning). Where the innermost dimension
//! or the steps of a tensor are no multiple of that, vectors are narrower.

use warpwright_dsl::VECTOR_BYTES;
use warpwright_ptx::DType;

pub use crate::activation::tuning::Config;

/// More elements of bytes would be held in more registers than leave a multiprocessor full.
const MAX_WIDTH: u32 = 8;
const THREADS: u32 = 256;
/// Vectors of a launch that finds the places of elements by division: numbers below 2^31.
pub(super) const MAX_VECTORS: u64 = 1 << 30;
/// Elements of a launch: of shapes beyond it no device has the memory.
pub(super) const MAX_ELEMENTS: u64 = 1 << 44;

/// Elements of the widest of these types in a vector.
pub fn width(dtypes: impl IntoIterator<Item = DType>) -> u32 {
    let widest = dtypes.into_iter().map(DType::bytes).max().unwrap_or(1);
    MAX_WIDTH.min((VECTOR_BYTES as usize / widest) as u32)
}

/// The layouts, best first: vectors of `width` elements for tensors that start at a vector boundary, single elements for the
/// others.
pub fn configs(width: u32) -> Vec<Config> {
    let mut widths = vec![width, 1];
    widths.dedup();
    widths.into_iter().map(|width| Config { width, threads: THREADS }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_widest_type_fills_a_vector() {
        assert_eq!(width([DType::BF16, DType::F32]), 4);
        assert_eq!(width([DType::BF16, DType::U8]), 8);
        assert_eq!(width([DType::F64, DType::U8]), 2);
        assert_eq!(width([DType::U8]), 8);
        assert_eq!(configs(4).iter().map(|c| c.width).collect::<Vec<_>>(), [4, 1]);
        assert_eq!(configs(1).len(), 1);
    }
}
