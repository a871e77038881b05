//! Shapes and strides of fixed capacity, so that views are `Copy` and a launch allocates nothing.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

use crate::error::{Error, Result};

/// The most dimensions that a tensor can have.
pub const MAX_RANK: usize = 8;

macro_rules! inline_list {
    ($(#[$meta:meta])* $name:ident, $item:ty) => {
        $(#[$meta])*
        #[derive(Clone, Copy)]
        pub struct $name {
            len: u8,
            items: [$item; MAX_RANK],
        }

        impl $name {
            /// The empty list, of a scalar.
            pub const EMPTY: Self = Self { len: 0, items: [0; MAX_RANK] };

            /// A copy of `items`; `None` past [`MAX_RANK`].
            pub fn new(items: &[$item]) -> Option<Self> {
                let mut list = Self::EMPTY;
                list.items.get_mut(..items.len())?.copy_from_slice(items);
                // At most MAX_RANK, by the line above.
                list.len = items.len() as u8;
                Some(list)
            }
        }

        impl Deref for $name {
            type Target = [$item];

            fn deref(&self) -> &[$item] {
                &self.items[..usize::from(self.len)]
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                (**self).fmt(f)
            }
        }

        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                **self == **other
            }
        }

        impl Eq for $name {}

        impl Hash for $name {
            fn hash<H: Hasher>(&self, state: &mut H) {
                (**self).hash(state);
            }
        }
    };
}

inline_list! {
    /// The extents of a tensor, at most [`MAX_RANK`]; derefs to a slice.
    Dims, usize
}

inline_list! {
    /// The strides of a tensor in elements, at most [`MAX_RANK`]; derefs to a slice.
    Strides, i64
}

/// Elements of `shape`; an error if they pass 2^63, so that byte offsets stay in 64 bits where checked again.
pub(crate) fn element_count(op: &'static str, argument: &'static str, shape: &[usize]) -> Result<usize> {
    if shape.contains(&0) {
        return Ok(0);
    }
    shape
        .iter()
        .try_fold(1usize, |n, d| n.checked_mul(*d))
        .filter(|n| i64::try_from(*n).is_ok())
        .ok_or_else(|| Error::Overflow { op, argument, shape: shape.into() })
}

/// Bytes of a contiguous tensor.
pub(crate) fn byte_count(
    op: &'static str,
    argument: &'static str,
    shape: &[usize],
    element: usize,
) -> Result<u64> {
    let bytes =
        element_count(op, argument, shape)?.checked_mul(element).filter(|n| i64::try_from(*n).is_ok());
    bytes.map(|n| n as u64).ok_or_else(|| Error::Overflow { op, argument, shape: shape.into() })
}

/// Row-major strides of `shape`. The shape's element count has been checked, so the products fit; extents of 0 count as
/// 1, so that an empty tensor has strides too.
pub(crate) fn row_major(shape: &Dims) -> Strides {
    let mut strides = Strides::EMPTY;
    strides.len = shape.len;
    let mut step = 1i64;
    for axis in (0..shape.len()).rev() {
        strides.items[axis] = step;
        step = step.saturating_mul(i64::try_from(shape[axis].max(1)).unwrap_or(i64::MAX));
    }
    strides
}

/// Whether the elements lie in row-major order without gaps. Strides of extents 0 and 1 do not matter.
pub(crate) fn is_contiguous(shape: &[usize], strides: &[i64]) -> bool {
    if shape.contains(&0) {
        return true;
    }
    let mut step = 1i64;
    for (&extent, &stride) in shape.iter().zip(strides).rev() {
        if extent != 1 && stride != step {
            return false;
        }
        step = step.saturating_mul(i64::try_from(extent).unwrap_or(i64::MAX));
    }
    true
}

/// The lowest and the highest element offset that a view reaches, relative to its first element; `None` if it is empty.
pub(crate) fn element_range(
    op: &'static str,
    argument: &'static str,
    shape: &[usize],
    strides: &[i64],
) -> Result<Option<(i64, i64)>> {
    if shape.contains(&0) {
        return Ok(None);
    }
    let overflow = || Error::Overflow { op, argument, shape: shape.into() };
    let (mut low, mut high) = (0i64, 0i64);
    for (&extent, &stride) in shape.iter().zip(strides) {
        let last = i64::try_from(extent - 1).ok().and_then(|n| n.checked_mul(stride)).ok_or_else(overflow)?;
        let bound = if last < 0 { &mut low } else { &mut high };
        *bound = bound.checked_add(last).ok_or_else(overflow)?;
    }
    Ok(Some((low, high)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dims(shape: &[usize]) -> Dims {
        Dims::new(shape).expect("rank")
    }

    #[test]
    fn rank_is_limited() {
        assert_eq!(&*dims(&[2, 3]), &[2, 3]);
        assert!(Dims::new(&[1; MAX_RANK]).is_some());
        assert!(Dims::new(&[1; MAX_RANK + 1]).is_none());
    }

    #[test]
    fn counts_are_checked() {
        assert_eq!(element_count("op", "x", &[]).expect("scalar"), 1);
        assert_eq!(element_count("op", "x", &[usize::MAX, 0]).expect("empty"), 0);
        assert_eq!(element_count("op", "x", &[1 << 20, 1 << 20]).expect("2^40"), 1 << 40);
        assert!(matches!(
            element_count("op", "x", &[1 << 32, 1 << 31]),
            Err(Error::Overflow { argument: "x", .. })
        ));
        assert_eq!(byte_count("op", "x", &[1 << 60], 4).expect("2^62"), 1 << 62);
        assert!(matches!(byte_count("op", "x", &[1 << 61], 4), Err(Error::Overflow { .. })));
    }

    #[test]
    fn strides_are_row_major() {
        assert_eq!(&*row_major(&dims(&[2, 3, 4])), &[12, 4, 1]);
        assert_eq!(&*row_major(&dims(&[2, 0, 4])), &[4, 4, 1]);
        assert_eq!(&*row_major(&dims(&[])), &[] as &[i64]);
    }

    #[test]
    fn contiguity_ignores_strides_of_extent_one() {
        assert!(is_contiguous(&[2, 3], &[3, 1]));
        assert!(is_contiguous(&[2, 1, 3], &[3, 77, 1]));
        assert!(is_contiguous(&[0, 3], &[9, 9]));
        assert!(!is_contiguous(&[2, 3], &[1, 2]));
        assert!(!is_contiguous(&[2, 3], &[4, 1]));
    }

    #[test]
    fn ranges_count_negative_and_zero_strides() {
        assert_eq!(element_range("op", "x", &[2, 3], &[3, 1]).expect("range"), Some((0, 5)));
        assert_eq!(element_range("op", "x", &[2, 3], &[-3, 1]).expect("range"), Some((-3, 2)));
        assert_eq!(element_range("op", "x", &[5, 3], &[0, 1]).expect("range"), Some((0, 2)));
        assert_eq!(element_range("op", "x", &[0, 3], &[3, 1]).expect("range"), None);
        assert!(element_range("op", "x", &[3, 3], &[i64::MAX, 1]).is_err());
    }
}
