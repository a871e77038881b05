//! The definition in f64.

use std::cmp::Ordering;

/// How elements of a row follow each other: the largest first, or the least; NaN is larger than every number, and of equal
/// elements the first is first.
fn order(x: &[f64], largest: bool, a: usize, b: usize) -> Ordering {
    let ascending = match (x[a].is_nan(), x[b].is_nan()) {
        (false, false) => x[a].partial_cmp(&x[b]).unwrap_or(Ordering::Equal),
        (a_is, b_is) => a_is.cmp(&b_is),
    };
    let by_value = if largest { ascending.reverse() } else { ascending };
    by_value.then(a.cmp(&b))
}

/// The positions of the first `k` elements of each row of `n`, in order.
pub fn topk(x: &[f64], n: usize, k: usize, largest: bool) -> Vec<usize> {
    let of_row = |row: &[f64]| {
        let mut all: Vec<usize> = (0..n).collect();
        all.sort_by(|a, b| order(row, largest, *a, *b));
        all.truncate(k);
        all
    };
    x.chunks(n.max(1)).flat_map(of_row).collect()
}

/// The gradient of `[rows, n]` elements from that of the `k` values of each row.
pub fn backward(dvalues: &[f64], index: &[usize], [rows, n, k]: [usize; 3]) -> Vec<f64> {
    let mut dx = vec![0.0; rows * n];
    for (at, (dy, index)) in dvalues.iter().zip(index).enumerate() {
        dx[at / k * n + index] = *dy;
    }
    dx
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_and_nan_have_their_places() {
        let x = [1.0, f64::NAN, 3.0, 3.0, -0.0, 0.0, f64::NEG_INFINITY, f64::NAN];
        assert_eq!(topk(&x, 8, 8, true), [1, 7, 2, 3, 0, 4, 5, 6]);
        assert_eq!(topk(&x, 8, 8, false), [6, 4, 5, 0, 2, 3, 1, 7]);
        assert_eq!(topk(&x, 4, 1, true), [1, 3]);
        assert_eq!(topk(&x, 4, 0, true), []);
    }

    #[test]
    fn gradients_go_where_values_are_from() {
        assert_eq!(
            backward(&[1.0, 2.0, 3.0], &[2, 0, 1], [3, 3, 1]),
            [0.0, 0.0, 1.0, 2.0, 0.0, 0.0, 0.0, 3.0, 0.0]
        );
    }
}
