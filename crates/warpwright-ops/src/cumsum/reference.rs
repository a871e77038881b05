//! The definition in f64.

/// The sums of the elements of `[outer, n, inner]` up to each along `n`, without it if `exclusive`, from the end on if `reverse`; by
/// Neumaier's compensated summation. With each the sum of the magnitudes.
pub fn cumsum(x: &[f64], [outer, n, inner]: [usize; 3], exclusive: bool, reverse: bool) -> Vec<(f64, f64)> {
    let mut out = vec![(0.0, 0.0); x.len()];
    for line in 0..outer * inner {
        let (mut sum, mut lost, mut magnitudes) = (0.0f64, 0.0f64, 0.0f64);
        for step in 0..n {
            let row = if reverse { n - 1 - step } else { step };
            let at = (line / inner * n + row) * inner + line % inner;
            let before = (sum, lost, magnitudes);
            let next = sum + x[at];
            lost += if sum.abs() >= x[at].abs() { (sum - next) + x[at] } else { (x[at] - next) + sum };
            sum = next;
            magnitudes += x[at].abs();
            let (sum, lost, magnitudes) = if exclusive { before } else { (sum, lost, magnitudes) };
            // Of infinities nothing is lost, and their difference is no number.
            out[at] = (if sum.is_finite() { sum + lost } else { sum }, magnitudes);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(x: &[f64], sizes: [usize; 3], exclusive: bool, reverse: bool) -> Vec<f64> {
        cumsum(x, sizes, exclusive, reverse).into_iter().map(|(sum, _)| sum).collect()
    }

    #[test]
    fn sums_go_along_the_middle() {
        let x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        assert_eq!(of(&x, [2, 3, 1], false, false), [1.0, 3.0, 6.0, 4.0, 9.0, 15.0]);
        assert_eq!(of(&x, [1, 3, 2], false, false), [1.0, 2.0, 4.0, 6.0, 9.0, 12.0]);
        assert_eq!(of(&x, [2, 3, 1], true, false), [0.0, 1.0, 3.0, 0.0, 4.0, 9.0]);
        assert_eq!(of(&x, [2, 3, 1], false, true), [6.0, 5.0, 3.0, 15.0, 11.0, 6.0]);
        assert_eq!(of(&x, [1, 3, 2], true, true), [8.0, 10.0, 5.0, 6.0, 0.0, 0.0]);
        assert_eq!(of(&[], [2, 0, 3], false, false), []);
    }

    #[test]
    fn nothing_is_lost() {
        assert_eq!(of(&[1.0, 1e100, 1.0, -1e100], [1, 4, 1], false, false)[3], 2.0);
        let special = of(&[1.0, f64::INFINITY, f64::NEG_INFINITY], [1, 3, 1], false, false);
        assert!(special[0] == 1.0 && special[1] == f64::INFINITY && special[2].is_nan());
        assert_eq!(cumsum(&[-1.0, 2.0], [1, 2, 1], false, false)[1], (1.0, 3.0));
    }
}
