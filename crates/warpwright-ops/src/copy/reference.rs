//! The definitions on the host, of any elements.

/// The elements of `x`, row-major of `shape`, with its dimensions in the order of `axes`.
pub fn permute<T: Copy>(x: &[T], shape: &[usize], axes: &[usize]) -> Vec<T> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    let mut places = vec![0];
    for &axis in axes {
        places = places
            .into_iter()
            .flat_map(|place| (0..shape[axis]).map(move |i| (place, i)))
            .map(|(place, i)| place + i * strides[axis])
            .collect();
    }
    // Without elements along one dimension the others have no place.
    if shape.contains(&0) { Vec::new() } else { places.into_iter().map(|place| x[place]).collect() }
}

/// Rows of every part behind each other: parts of `outer` rows, of so many elements each.
pub fn cat<T: Copy>(parts: &[&[T]], outer: usize) -> Vec<T> {
    let row = |part: &[T], i: usize| {
        let len = part.len() / outer;
        part[i * len..(i + 1) * len].to_vec()
    };
    (0..outer).flat_map(|i| parts.iter().flat_map(move |part| row(part, i))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permutation_and_its_inverse_are_nothing() {
        let x: Vec<u32> = (0..2 * 3 * 5 * 7).collect();
        let y = permute(&x, &[2, 3, 5, 7], &[2, 0, 3, 1]);
        // [2, 3, 5, 7] at [1, 2, 4, 6] is [5, 2, 7, 3] at [4, 1, 6, 2].
        assert_eq!(y[((4 * 2 + 1) * 7 + 6) * 3 + 2], x[((3 + 2) * 5 + 4) * 7 + 6]);
        assert_eq!(permute(&y, &[5, 2, 7, 3], &[1, 3, 0, 2]), x);
        assert_eq!(permute(&[1, 2, 3, 4, 5, 6], &[2, 3], &[1, 0]), [1, 4, 2, 5, 3, 6]);
        assert_eq!(permute::<u8>(&[], &[2, 0], &[1, 0]), []);
    }

    #[test]
    fn rows_follow_each_other() {
        assert_eq!(cat(&[&[1, 2, 3, 4], &[5, 6]], 2), [1, 2, 5, 3, 4, 6]);
        assert_eq!(cat(&[&[1], &[], &[2]], 1), [1, 2]);
    }
}
