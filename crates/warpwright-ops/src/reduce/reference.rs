//! The definitions in f64.

/// The place of each element of `shape` among the results of a reduction over `dims`, in the order of the elements.
fn places(shape: &[usize], dims: &[usize]) -> impl Iterator<Item = usize> {
    let len: usize = shape.iter().product();
    let shape = shape.to_vec();
    let kept: Vec<bool> = (0..shape.len()).map(|dim| !dims.contains(&dim)).collect();
    (0..len).map(move |element| {
        let (mut rest, mut place, mut pitch) = (element, 0, 1);
        for (&extent, &kept) in shape.iter().zip(&kept).rev() {
            if kept {
                place += rest % extent * pitch;
                pitch *= extent;
            }
            rest /= extent;
        }
        place
    })
}

/// The number of results.
fn results(shape: &[usize], dims: &[usize]) -> usize {
    shape.iter().enumerate().filter(|(dim, _)| !dims.contains(dim)).map(|(_, extent)| extent).product()
}

/// Of each result the sum of the elements over `dims`, by Neumaier's compensated summation, and the sum of their magnitudes.
pub fn sums(x: &[f64], shape: &[usize], dims: &[usize]) -> Vec<(f64, f64)> {
    // Sum, what was lost of it, magnitudes.
    let mut all = vec![(0.0f64, 0.0f64, 0.0f64); results(shape, dims)];
    for (place, &x) in places(shape, dims).zip(x) {
        let (sum, lost, magnitudes) = &mut all[place];
        let next = *sum + x;
        *lost += if sum.abs() >= x.abs() { (*sum - next) + x } else { (x - next) + *sum };
        *sum = next;
        *magnitudes += x.abs();
    }
    let total = |(sum, lost, magnitudes): (f64, f64, f64)| {
        // Of infinities nothing is lost, and their difference is no number.
        (if sum.is_finite() { sum + lost } else { sum }, magnitudes)
    };
    all.into_iter().map(total).collect()
}

/// Of each result the element that is largest over `dims`, or least, and its number among those of the result: the first of
/// several, and the first NaN before any number.
pub fn extremes(x: &[f64], shape: &[usize], dims: &[usize], least: bool) -> Vec<Option<(f64, usize)>> {
    let mut all: Vec<(Option<(f64, usize)>, usize)> = vec![(None, 0); results(shape, dims)];
    for (place, &x) in places(shape, dims).zip(x) {
        let (best, seen) = &mut all[place];
        let better =
            best.is_none_or(|(b, _)| !b.is_nan() && (x.is_nan() || if least { x < b } else { x > b }));
        if better {
            *best = Some((x, *seen));
        }
        *seen += 1;
    }
    all.into_iter().map(|(best, _)| best).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_over_each_set_of_dimensions() {
        let x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, -8.0];
        let of = |dims: &[usize]| sums(&x, &[2, 2, 2], dims).into_iter().map(|s| s.0).collect::<Vec<_>>();
        assert_eq!(of(&[]), x);
        assert_eq!(of(&[0]), [6.0, 8.0, 10.0, -4.0]);
        assert_eq!(of(&[1]), [4.0, 6.0, 12.0, -2.0]);
        assert_eq!(of(&[2]), [3.0, 7.0, 11.0, -1.0]);
        assert_eq!(of(&[0, 2]), [14.0, 6.0]);
        assert_eq!(of(&[2, 1, 0]), [20.0]);
        assert_eq!(sums(&x, &[2, 4], &[0, 1]), [(20.0, 36.0)]);
        assert_eq!(sums(&[], &[2, 0], &[1]), [(0.0, 0.0); 2]);
        assert_eq!(sums(&[], &[2, 0], &[0]), []);
    }

    #[test]
    fn sums_lose_nothing() {
        assert_eq!(sums(&[1.0, 1e100, 1.0, -1e100], &[4], &[0])[0].0, 2.0);
        assert!(sums(&[f64::INFINITY, f64::NEG_INFINITY], &[2], &[0])[0].0.is_nan());
        assert_eq!(sums(&[f64::INFINITY, 1.0], &[2], &[0])[0].0, f64::INFINITY);
    }

    #[test]
    fn extremes_are_those_of_pytorch() {
        let nan = f64::NAN;
        let of = |x: &[f64], least| extremes(x, &[x.len()], &[0], least)[0].map(|(_, at)| at);
        assert_eq!(of(&[1.0, 3.0, 3.0, 2.0], false), Some(1));
        assert_eq!(of(&[1.0, 3.0, 1.0], true), Some(0));
        assert_eq!(of(&[1.0, nan, 9.0, nan], false), Some(1));
        assert_eq!(of(&[1.0, nan, 9.0, nan], true), Some(1));
        assert_eq!(of(&[f64::NEG_INFINITY; 3], false), Some(0));
        let columns = extremes(&[1.0, 4.0, 3.0, 2.0], &[2, 2], &[0], false);
        assert_eq!(columns, [Some((3.0, 1)), Some((4.0, 0))]);
        assert_eq!(extremes(&[], &[0], &[0], false), [None]);
    }
}
