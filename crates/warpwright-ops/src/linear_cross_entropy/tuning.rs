//! How many rows of logits are in memory at a time.

/// Rows from which on a product with the weight is bound by its operations, not by the bytes of the weight.
const LEAST: usize = 1024;
/// Rows from which on adding to the sums of the weight's gradient, 8 bytes for each element, takes an eighth of the products at most.
const LEAST_WITH_GRADIENTS: usize = 2048;

/// Rows of a chunk: such that its logits take about as much memory as `x`, rounded up to a power of two, and no fewer than keep products
/// fast.
///
/// Source of the first part: Hsu et al. 2024, Liger Kernel, arXiv:2410.10989, section 3.2.
pub fn chunk_rows(rows: usize, features: usize, classes: usize, gradients: bool) -> usize {
    let least = if gradients { LEAST_WITH_GRADIENTS } else { LEAST };
    let of_size = rows.div_ceil(classes.div_ceil(features.max(1)).max(1));
    // Beyond the last power of two there are no rows.
    let chunk = of_size.checked_next_power_of_two().unwrap_or(rows);
    chunk.max(least).min(rows).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_as_large_as_x_and_keep_products_fast() {
        // 65,536 rows of 4096 features and 32,768 classes: logits of 8192 rows take as much memory as x.
        assert_eq!(chunk_rows(65_536, 4096, 32_768, true), 8192);
        assert_eq!(chunk_rows(8192, 4096, 128_256, true), 2048);
        assert_eq!(chunk_rows(8192, 4096, 128_256, false), 1024);
        assert_eq!(chunk_rows(100, 4096, 128_256, true), 100);
        assert_eq!(chunk_rows(0, 0, 5, true), 1);
        assert_eq!(chunk_rows(usize::MAX, usize::MAX, 1, false), usize::MAX);
    }
}
