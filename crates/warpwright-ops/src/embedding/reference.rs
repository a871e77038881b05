//! Rows of a table and the gradient of the table in plain f64 Rust: the oracle that kernels are held against.

/// The row that an index names, if it names one.
pub fn row(index: i64, num_embeddings: usize) -> Option<usize> {
    usize::try_from(index).ok().filter(|row| *row < num_embeddings)
}

/// The rows of a table of rows of `dim` elements; NaN where an index is no row.
pub fn forward(weight: &[f64], indices: &[i64], [num_embeddings, dim]: [usize; 2]) -> Vec<f64> {
    let of = |index: &i64| match row(*index, num_embeddings) {
        Some(row) => weight[row * dim..][..dim].to_vec(),
        None => vec![f64::NAN; dim],
    };
    indices.iter().flat_map(of).collect()
}

/// The gradient of the table from that of its rows, and the sums of the magnitudes of its terms.
pub fn backward(
    dy: &[f64],
    indices: &[i64],
    [num_embeddings, dim]: [usize; 2],
    padding_idx: Option<usize>,
    scale_grad_by_freq: bool,
) -> Vec<(f64, f64)> {
    let mut sums = vec![(0.0, 0.0); num_embeddings * dim];
    let mut terms = vec![0usize; num_embeddings];
    for (place, index) in indices.iter().enumerate() {
        let Some(row) = row(*index, num_embeddings).filter(|row| Some(*row) != padding_idx) else { continue };
        terms[row] += 1;
        for (sum, dy) in sums[row * dim..][..dim].iter_mut().zip(&dy[place * dim..]) {
            *sum = (sum.0 + dy, sum.1 + dy.abs());
        }
    }
    if scale_grad_by_freq {
        for (at, sum) in sums.iter_mut().enumerate() {
            let terms = terms[at / dim].max(1) as f64;
            *sum = (sum.0 / terms, sum.1 / terms);
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_taken_and_gradients_added() {
        let weight = [1.0, 2.0, 3.0, 4.0];
        let y = forward(&weight, &[1, 2, 0], [2, 2]);
        assert_eq!([y[0], y[1], y[4], y[5]], [3.0, 4.0, 1.0, 2.0]);
        assert!(y[2].is_nan() && y[3].is_nan());
        let dy = [1.0, 1.0, 7.0, 7.0, -3.0, 1.0, 5.0, 5.0];
        let indices = [1, 2, 1, 0];
        assert_eq!(
            backward(&dy, &indices, [2, 2], None, false),
            [(5.0, 5.0), (5.0, 5.0), (-2.0, 4.0), (2.0, 2.0)]
        );
        assert_eq!(
            backward(&dy, &indices, [2, 2], Some(0), true),
            [(0.0, 0.0), (0.0, 0.0), (-1.0, 2.0), (1.0, 1.0)]
        );
    }
}
