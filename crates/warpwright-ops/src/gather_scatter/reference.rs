//! Rows by their indices in plain f64 Rust: the oracle that kernels are held against.

use crate::embedding::reference::row;

fn factor(factors: Option<&[f64]>, place: usize) -> f64 {
    factors.map_or(1.0, |factors| factors[place])
}

/// The rows of `x`, of `dim` elements each, that indices name, times their factors; NaN where an index is no row.
pub fn gather(x: &[f64], index: &[i64], factors: Option<&[f64]>, [rows, dim]: [usize; 2]) -> Vec<f64> {
    let of = |(place, index): (usize, &i64)| match row(*index, rows) {
        Some(row) => x[row * dim..][..dim].iter().map(|x| x * factor(factors, place)).collect(),
        None => vec![f64::NAN; dim],
    };
    index.iter().enumerate().flat_map(of).collect()
}

/// `base`, or zeros, with the rows of `x` times their factors added where indices say, and the sums of the magnitudes of the terms.
pub fn scatter(
    x: &[f64],
    index: &[i64],
    factors: Option<&[f64]>,
    base: Option<&[f64]>,
    [rows, dim]: [usize; 2],
) -> Vec<(f64, f64)> {
    let mut sums = match base {
        Some(base) => base.iter().map(|b| (*b, b.abs())).collect(),
        None => vec![(0.0, 0.0); rows * dim],
    };
    for (place, index) in index.iter().enumerate() {
        let Some(row) = row(*index, rows) else { continue };
        for (sum, x) in sums[row * dim..][..dim].iter_mut().zip(&x[place * dim..]) {
            let term = x * factor(factors, place);
            *sum = (sum.0 + term, sum.1 + term.abs());
        }
    }
    sums
}

/// Of each row of `a` the product with the row of `b` that its index names, and the sum of the magnitudes of its terms; NaN where an index is
/// no row.
pub fn dots(a: &[f64], b: &[f64], index: &[i64], [rows, dim]: [usize; 2]) -> Vec<(f64, f64)> {
    let of = |(place, index): (usize, &i64)| match row(*index, rows) {
        Some(row) => {
            let terms = a[place * dim..][..dim].iter().zip(&b[row * dim..]).map(|(a, b)| a * b);
            terms.fold((0.0, 0.0), |(sum, scale), term| (sum + term, scale + term.abs()))
        }
        None => (f64::NAN, 0.0),
    };
    index.iter().enumerate().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_go_back_and_forth() {
        let x = [1.0, 2.0, 3.0, 4.0];
        let y = gather(&x, &[1, 2, 0], Some(&[2.0, 1.0, -1.0]), [2, 2]);
        assert_eq!([y[0], y[1], y[4], y[5]], [6.0, 8.0, -1.0, -2.0]);
        assert!(y[2].is_nan() && y[3].is_nan());
        let sums = scatter(&x, &[1, 1], Some(&[1.0, -1.0]), Some(&[5.0; 4]), [2, 2]);
        assert_eq!(sums, [(5.0, 5.0), (5.0, 5.0), (3.0, 9.0), (3.0, 11.0)]);
        assert_eq!(scatter(&x, &[-1, 0], None, None, [1, 2]), [(3.0, 3.0), (4.0, 4.0)]);
        let dots = dots(&x, &[1.0, -1.0, 2.0, 3.0], &[1, 0], [2, 2]);
        assert_eq!(dots, [(8.0, 8.0), (-1.0, 7.0)]);
    }

    /// A sum of products of what goes one way with what comes the other.
    #[test]
    fn scattering_is_the_transpose_of_gathering() {
        let (index, factors) = ([2, 0, 2, 1], [0.5, 2.0, -1.0, 3.0]);
        let x: Vec<f64> = (0..6).map(|i| f64::from(i * i) - 7.0).collect();
        let dy: Vec<f64> = (0..8).map(|i| f64::from(i * 3 % 5) - 1.5).collect();
        let inner = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let there = inner(&gather(&x, &index, Some(&factors), [3, 2]), &dy);
        let back: Vec<f64> = scatter(&dy, &index, Some(&factors), None, [3, 2]).iter().map(|s| s.0).collect();
        assert!((there - inner(&x, &back)).abs() < 1e-12);
        let of_factors: Vec<f64> = dots(&dy, &x, &index, [3, 2]).iter().map(|s| s.0).collect();
        assert!((there - inner(&factors, &of_factors)).abs() < 1e-12);
    }
}
