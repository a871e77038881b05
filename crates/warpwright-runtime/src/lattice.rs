//! Which elements strided arrays share.

/// The bytes of a strided array: where each element may begin, and how long it is.
#[derive(Clone, Debug)]
pub struct Lattice {
    /// Of the element with the lowest address.
    start: i128,
    /// Extents above 1 with positive distances in bytes.
    axes: Vec<(i128, i128)>,
    size: i128,
}

impl Lattice {
    /// That of elements of `size` bytes, of which the one whose indices are all 0 lies at `address`; strides are in elements. `None` if
    /// there are no elements.
    pub fn of(address: u64, size: usize, shape: &[usize], strides: &[i64]) -> Option<Self> {
        let size = size as i128;
        let mut start = i128::from(address);
        let mut axes = Vec::new();
        for (extent, stride) in shape.iter().zip(strides) {
            let (extent, step) = (*extent as i128, i128::from(*stride) * size);
            match extent {
                0 => return None,
                1 => continue,
                _ => axes.push((extent, step.abs())),
            }
            if step < 0 {
                start += (extent - 1) * step;
            }
        }
        Some(Self { start, axes, size })
    }

    /// Bytes from the lowest to past the highest of the elements along the axes that `keep` admits.
    fn span(&self, keep: impl Fn(i128) -> bool) -> i128 {
        self.axes.iter().filter(|(_, step)| keep(*step)).map(|(n, step)| (n - 1) * step).sum::<i128>()
            + self.size
    }

    /// Whether no byte is in both. `false` may also mean that it is not known, for steps that do not nest.
    pub fn is_disjoint(&self, other: &Self) -> bool {
        let all = |_| true;
        if self.start + self.span(all) <= other.start || other.start + other.span(all) <= self.start {
            return true;
        }
        // Modulo a period, an axis whose step is a multiple of it stands still: where the rest of both arrays falls into
        // separate parts of the period, the arrays are apart.
        let mut periods =
            self.axes.iter().chain(&other.axes).map(|(_, step)| *step).filter(|step| *step != 0);
        periods.any(|period| {
            let moves = |step: i128| step % period != 0;
            let apart = (other.start - self.start).rem_euclid(period);
            apart >= self.span(moves) && period - apart >= other.span(moves)
        })
    }

    /// Whether no two elements share a byte. `false` may also mean that it is not known.
    pub fn is_injective(&self) -> bool {
        let mut axes = self.axes.clone();
        axes.sort_unstable_by_key(|(_, step)| *step);
        let mut span = self.size;
        axes.iter().all(|(extent, step)| {
            let fits = *step >= span;
            span += (extent - 1) * step;
            fits
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lattice(address: u64, shape: &[usize], strides: &[i64]) -> Lattice {
        Lattice::of(address, 2, shape, strides).expect("elements")
    }

    /// Against all pairs of elements, for arrays whose steps nest.
    #[test]
    fn parts_of_a_tensor_are_apart() {
        let elements = |address: u64, shape: [usize; 3], strides: [i64; 3]| {
            let [a, b, c] = shape;
            let of = move |i: usize, j: usize, k: usize| {
                address as i64 + 2 * (i as i64 * strides[0] + j as i64 * strides[1] + k as i64 * strides[2])
            };
            (0..a)
                .flat_map(move |i| (0..b).flat_map(move |j| (0..c).map(move |k| of(i, j, k))))
                .collect::<Vec<_>>()
        };
        let (mut apart, mut shared) = (0, 0);
        for offset in 0..24 {
            for (other, strides) in
                [([2, 3, 4], [36, 12, 1]), ([2, 3, 2], [36, 12, 1]), ([2, 3, 4], [-36, 12, 1])]
            {
                let (shape, first) = ([2, 3, 4], [36, 12, 1]);
                let (a, b) = (lattice(1000, &shape, &first), lattice(1000 + 2 * offset, &other, &strides));
                let (found, all) =
                    (elements(1000, shape, first), elements(1000 + 2 * offset, other, strides));
                let expected = found.iter().all(|x| !all.contains(x));
                assert_eq!(a.is_disjoint(&b), expected, "{offset} {other:?} {strides:?}");
                assert_eq!(b.is_disjoint(&a), expected);
                if expected { apart += 1 } else { shared += 1 }
            }
        }
        assert!(apart > 10 && shared > 10);
    }

    #[test]
    fn elements_that_share_bytes_are_found() {
        assert!(lattice(0, &[4, 3], &[3, 1]).is_injective());
        assert!(lattice(0, &[3, 4], &[1, -3]).is_injective());
        assert!(!lattice(0, &[4, 3], &[2, 1]).is_injective());
        assert!(!lattice(0, &[2], &[0]).is_injective());
        assert!(Lattice::of(0, 2, &[3, 0], &[1, 1]).is_none());
    }
}
