//! How many rows of logits are in memory at a time.

use warpwright_ptx::DType;

/// Rows from which on a product with the weight is bound by its operations, not by the bytes of the weight.
const LEAST: usize = 1024;
/// Rows from which on adding to the sums of the weight's gradient, 8 bytes for each element, takes an eighth of the products at most.
const LEAST_WITH_GRADIENTS: usize = 2048;

/// Rows of a chunk: such that its logits take about as much memory as `x`, rounded up to a power of two, and no fewer than keep products
/// fast.
///
/// The sums of the weight's gradient, where half types need them apart, are memory too, as much as two rows of logits for each feature:
/// beside them logits may take half as much, and rows whose logits take no more than a chunk and the sums are one chunk, which needs no
/// sums.
///
/// Source of the first part: Hsu et al. 2024, Liger Kernel, arXiv:2410.10989, section 3.2.
pub fn chunk_rows([rows, features, classes]: [usize; 3], dtype: DType, gradients: bool) -> usize {
    let of_size = rows.div_ceil(classes.div_ceil(features.max(1)).max(1));
    // Beyond the last power of two there are no rows.
    let of_size = of_size.checked_next_power_of_two().unwrap_or(rows);
    let wide = dtype.accumulator();
    let chunk = match gradients {
        false => of_size.max(LEAST),
        true if dtype == wide => of_size.max(LEAST_WITH_GRADIENTS),
        true => {
            let chunk = of_size.max(LEAST_WITH_GRADIENTS).max(features);
            let of_sums = features.saturating_mul(wide.bytes() / dtype.bytes());
            if rows <= chunk.saturating_add(of_sums) { rows } else { chunk }
        }
    };
    chunk.min(rows).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_as_large_as_x_and_keep_products_fast() {
        let chunk = |sides, gradients| chunk_rows(sides, DType::BF16, gradients);
        // 65,536 rows of 4096 features and 32,768 classes: logits of 8192 rows take as much memory as x.
        assert_eq!(chunk([65_536, 4096, 32_768], true), 8192);
        assert_eq!(chunk([65_536, 4096, 128_256], true), 4096);
        assert_eq!(chunk([65_536, 768, 50_257], true), 2048);
        assert_eq!(chunk([8192, 4096, 128_256], false), 1024);
        assert_eq!(chunk([100, 4096, 128_256], true), 100);
        assert_eq!(chunk([0, 0, 5], true), 1);
        assert_eq!(chunk([usize::MAX, usize::MAX, 1], false), usize::MAX);
    }

    #[test]
    fn one_chunk_spares_sums_that_would_take_more_memory() {
        let [features, classes] = [4096, 128_256];
        // Logits of 12,288 rows in 2 bytes, or of 4096 and sums in 4 bytes.
        assert_eq!(12_288 * classes * 2, 4096 * classes * 2 + classes * features * 4);
        assert_eq!(chunk_rows([12_288, features, classes], DType::BF16, true), 12_288);
        assert_eq!(chunk_rows([12_289, features, classes], DType::BF16, true), 4096);
        // Sums of f32 are the gradient itself.
        assert_eq!(chunk_rows([12_288, features, classes], DType::F32, true), 2048);
    }
}
