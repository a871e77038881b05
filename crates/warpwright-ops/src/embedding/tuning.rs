//! Sizes of the kernels.

use warpwright_ptx::DType;

use crate::PlanError;

/// Threads of a block that takes rows.
pub const GATHER_THREADS: u32 = 256;
/// Vectors of a thread that takes rows: as many rows may be in flight.
pub const UNROLL: u32 = 4;
/// Bits of a digit of the radix sort: a table of 2^17 rows takes two passes.
pub const DIGIT_BITS: u32 = 9;
/// Digits, and threads of a block that sorts: each has one digit.
pub const DIGITS: u32 = 1 << DIGIT_BITS;
/// Fewest indices of a tile, which a block sorts: four rounds of its warps.
const LEAST_TILE: usize = 4 * DIGITS as usize;
/// Most tiles, whose counts every block reads.
const MOST_TILES: usize = 256;
/// Threads of a block that looks for where rows begin.
pub const STARTS_THREADS: u32 = 256;
/// Places of a part: longer runs of one row are added up in parts.
pub const PART: u32 = 32;
/// Warps of a block that adds up; each has as many vectors of a row as lanes.
pub const SUM_WARPS: u32 = 8;
/// Lanes of a warp.
pub const LANES: u32 = 32;
/// Rows that a thread has in flight.
pub const SUM_UNROLL: u32 = 8;

/// Tiles of `count` indices, and indices of each.
pub fn tiles(count: usize) -> (usize, u32) {
    let tile = LEAST_TILE * count.div_ceil(LEAST_TILE * MOST_TILES).max(1);
    // Counts are below 2^31.
    (count.div_ceil(tile), tile as u32)
}

/// Passes of the sort: digits of the rows, and of the number behind the last row.
pub fn passes(num_embeddings: usize) -> u32 {
    (usize::BITS - num_embeddings.leading_zeros()).div_ceil(DIGIT_BITS).max(1)
}

/// Elements of a vector, best first; the last one takes any alignment.
pub fn widths(dtype: DType, dim: usize) -> Vec<u32> {
    all_widths(dtype).into_iter().filter(|width| dim.is_multiple_of(*width as usize)).collect()
}

/// Every number of elements of a vector.
pub const fn all_widths(dtype: DType) -> [u32; 2] {
    [16 / dtype.bytes() as u32, 1]
}

/// Alignment of all tensors in bytes; single elements are where they are.
pub const fn alignment(dtype: DType, width: u32) -> u64 {
    if width == 1 { 1 } else { width as u64 * dtype.bytes() as u64 }
}

/// Warps are counted in 31 bits.
pub(super) fn check_warps(op: &'static str, warps: usize) -> Result<(), PlanError> {
    let (blocks, limit) = (warps.div_ceil(SUM_WARPS as usize) as u64, (1 << 31) / u64::from(SUM_WARPS) - 1);
    if blocks > limit { Err(PlanError::TooLarge { op, blocks, limit }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_all_indices_and_are_few() {
        for count in [0, 1, 2047, 2048, 2049, 16384, 1 << 19, (1 << 19) + 1, 1 << 30, i32::MAX as usize] {
            let (tiles, tile) = tiles(count);
            assert!(tiles <= MOST_TILES && tiles * tile as usize >= count, "{count}");
            assert!(tiles * (tile as usize) < count + tile as usize, "{count}");
            assert!(tile.is_multiple_of(DIGITS), "{count}");
        }
    }

    #[test]
    fn the_number_behind_the_last_row_has_digits() {
        assert_eq!([0, 1, 511, 512, (1 << 18) - 1, 1 << 18].map(passes), [1, 1, 1, 2, 2, 3]);
    }
}
