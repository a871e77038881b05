//! Where the elements of the inputs are: broadcasting, and dimensions that are walked as one.

use warpwright_dsl::divide::DivisorArgs;
use warpwright_runtime::MAX_RANK;

use super::OP;
use crate::PlanError;
use crate::plan::{View, small};

/// Dimensions outside of the innermost one that kernels walk.
pub(crate) const MAX_OUTER: usize = 4;

/// How a thread finds the elements of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Reading {
    /// Where those of the outputs are.
    Contiguous,
    /// There is one element.
    Uniform,
    /// Side by side along the innermost dimension.
    Row,
    /// One along the innermost dimension.
    Column,
    /// Apart from each other.
    Gather,
}

impl Reading {
    /// Its letter in the name of a kernel.
    pub(super) const fn letter(self) -> char {
        match self {
            Self::Contiguous => 'c',
            Self::Uniform => 'u',
            Self::Row => 'r',
            Self::Column => 'b',
            Self::Gather => 'g',
        }
    }
}

/// The shape of tensors that are broadcast together, as PyTorch defines it.
///
/// ```
/// use warpwright::elementwise::broadcast_shape;
///
/// assert_eq!(broadcast_shape([&[4, 1][..], &[3]]).ok(), Some(vec![4, 3]));
/// assert!(broadcast_shape([&[4][..], &[3]]).is_err());
/// ```
///
/// # Errors
/// Names the first shape that is not broadcast together with those before it.
pub fn broadcast_shape<'s>(shapes: impl IntoIterator<Item = &'s [usize]>) -> Result<Vec<usize>, PlanError> {
    let mut all: Vec<usize> = Vec::new();
    for shape in shapes {
        if all.len() < shape.len() {
            all.splice(0..0, vec![1; shape.len() - all.len()]);
        }
        let before = all.clone();
        for (own, &extent) in all.iter_mut().rev().zip(shape.iter().rev()) {
            match (*own, extent) {
                (1, _) => *own = extent,
                (own, extent) if own == extent || extent == 1 => {}
                _ => {
                    let got = format!("{shape:?} beside {before:?}");
                    return Err(PlanError::refused(OP, "shape", got, BROADCASTABLE));
                }
            }
        }
    }
    Ok(all)
}

const BROADCASTABLE: &str = "the same from the last dimension on, or 1, or absent";

/// Strides of an input along the dimensions of the outputs.
fn broadcast_strides(
    op: &'static str,
    name: &'static str,
    view: &View,
    shape: &[usize],
) -> Result<Vec<i64>, PlanError> {
    let refused = || {
        let got = format!("{:?} for outputs of {shape:?}", view.shape());
        PlanError::refused(op, name, got, BROADCASTABLE)
    };
    let missing = shape.len().checked_sub(view.shape().len()).ok_or_else(refused)?;
    let mut strides = vec![0; missing];
    for ((&extent, &stride), &of_outputs) in view.shape().iter().zip(view.strides()).zip(&shape[missing..]) {
        match extent {
            _ if extent == of_outputs => strides.push(if extent == 1 { 0 } else { stride }),
            1 => strides.push(0),
            _ => return Err(refused()),
        }
    }
    Ok(strides)
}

/// The dimensions that a launch walks, outermost first, and the strides of each input along them. Dimensions that lie behind each
/// other in every tensor are one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Walk {
    pub(crate) extents: Vec<usize>,
    pub(crate) strides: Vec<Vec<i64>>,
}

impl Walk {
    /// That of outputs of `shape` and of inputs with names, for the operation `op`.
    pub(crate) fn new(
        op: &'static str,
        shape: &[usize],
        inputs: &[(&'static str, View)],
    ) -> Result<Self, PlanError> {
        if shape.len() > MAX_RANK {
            let got = format!("{} dimensions", shape.len());
            return Err(PlanError::refused(op, "shape", got, "of at most 8 dimensions"));
        }
        let strides = inputs
            .iter()
            .map(|(name, view)| broadcast_strides(op, name, view, shape))
            .collect::<Result<_, _>>()?;
        let walk = Self { extents: shape.to_vec(), strides }.merged();
        let outer = walk.extents.len() - 1;
        if outer > MAX_OUTER {
            let expected = "one that is walked along at most 5 dimensions, neighbors that lie behind each other in every \
                            tensor being one";
            return Err(PlanError::refused(op, "shape", format!("{shape:?}"), expected));
        }
        Ok(walk)
    }

    fn merged(self) -> Self {
        let mut merged = Self { extents: Vec::new(), strides: vec![Vec::new(); self.strides.len()] };
        for (axis, &extent) in self.extents.iter().enumerate().filter(|(_, extent)| **extent != 1) {
            let behind = |(own, all): (&Vec<i64>, &Vec<i64>)| {
                let step = i64::try_from(extent).ok().and_then(|extent| all[axis].checked_mul(extent));
                own.last().copied() == step
            };
            let one = !merged.extents.is_empty() && merged.strides.iter().zip(&self.strides).all(behind);
            let strides = merged.strides.iter_mut().zip(self.strides.iter().map(|all| all[axis]));
            if one {
                strides.for_each(|(own, stride)| own.last_mut().into_iter().for_each(|last| *last = stride));
                merged.extents.last_mut().into_iter().for_each(|outer| *outer = outer.saturating_mul(extent));
            } else {
                strides.for_each(|(own, stride)| own.push(stride));
                merged.extents.push(extent);
            }
        }
        if merged.extents.is_empty() {
            merged.extents.push(1);
            merged.strides.iter_mut().for_each(|own| own.push(1));
        }
        merged
    }

    /// Elements of the innermost dimension.
    pub(crate) fn inner(&self) -> usize {
        self.extents.last().copied().unwrap_or(1)
    }

    /// Whether all tensors lie in memory in one order, or are one element.
    pub(super) fn is_flat(&self) -> bool {
        self.extents.len() == 1 && self.strides.iter().all(|own| matches!(own[..], [0 | 1]))
    }

    pub(super) fn readings(&self) -> Vec<Reading> {
        let mut contiguous = vec![1i64; self.extents.len()];
        for axis in (1..self.extents.len()).rev() {
            let extent = i64::try_from(self.extents[axis]).unwrap_or(i64::MAX);
            contiguous[axis - 1] = contiguous[axis].saturating_mul(extent);
        }
        let reading = |own: &Vec<i64>| match own.last() {
            _ if *own == contiguous => Reading::Contiguous,
            _ if own.iter().all(|stride| *stride == 0) => Reading::Uniform,
            Some(0) => Reading::Column,
            Some(1) => Reading::Row,
            _ => Reading::Gather,
        };
        self.strides.iter().map(reading).collect()
    }

    /// The largest power of two, up to `most`, of elements that lie side by side wherever they are read as a vector.
    pub(super) fn vector(&self, most: u32) -> u32 {
        let rows = self.strides.iter().zip(self.readings()).filter(|(_, reading)| *reading == Reading::Row);
        let steps = rows.flat_map(|(own, _)| &own[..own.len() - 1]).map(|stride| stride.unsigned_abs());
        let common = steps.fold(self.inner() as u64, |bits, step| bits | step).trailing_zeros();
        most.min(1 << common.min(16))
    }

    /// Parts of at most `most` vectors of `width` elements, in order.
    pub(crate) fn parts(&self, width: u32, most: u64) -> Vec<Part> {
        let mut parts = Vec::new();
        let whole = Part { extents: self.extents.clone(), first: 0, offsets: vec![0; self.strides.len()] };
        self.divide(whole, width, most.max(1), &mut parts);
        parts
    }

    /// Halves a part along its outermost dimension until the parts are small enough.
    fn divide(&self, part: Part, width: u32, most: u64, parts: &mut Vec<Part>) {
        let of_extents = |extents: &[usize]| extents.iter().fold(1u64, |n, e| n.saturating_mul(*e as u64));
        let Some(axis) = part.extents.iter().position(|extent| *extent > 1) else {
            return parts.push(part);
        };
        let step = if axis + 1 == part.extents.len() { width as usize } else { 1 };
        if of_extents(&part.extents) / u64::from(width) <= most || part.extents[axis] <= step {
            return parts.push(part);
        }
        let half = part.extents[axis].div_ceil(2).next_multiple_of(step);
        let (mut front, mut back) = (part.clone(), part);
        front.extents[axis] = half;
        back.extents[axis] -= half;
        // What is outside of a dimension that is halved has one element.
        back.first += half as u64 * of_extents(&self.extents[axis + 1..]);
        for (offset, own) in back.offsets.iter_mut().zip(&self.strides) {
            *offset = offset.wrapping_add(own[axis].wrapping_mul(half as i64));
        }
        self.divide(front, width, most, parts);
        self.divide(back, width, most, parts);
    }
}

/// A part of a walk that one launch has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) extents: Vec<usize>,
    /// The number of its first element among those of an output.
    pub(crate) first: u64,
    /// Elements of each input before its first.
    pub(crate) offsets: Vec<i64>,
}

impl Part {
    /// How many vectors of `width` elements it has, and its extents in vectors as kernels divide by them.
    pub(crate) fn vectors(&self, width: u32) -> (usize, [DivisorArgs; MAX_OUTER]) {
        let mut extents = self.extents.clone();
        extents.last_mut().into_iter().for_each(|inner| *inner /= width as usize);
        (extents.iter().product(), divisors(extents.into_iter()))
    }
}

/// Extents as kernels divide by them, from the innermost dimension outwards.
pub(crate) fn divisors<const N: usize>(extents: impl DoubleEndedIterator<Item = usize>) -> [DivisorArgs; N] {
    let mut from_inner = extents.rev();
    std::array::from_fn(|_| DivisorArgs::new(from_inner.next().map_or(1, small)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(shape: &[usize], inputs: &[(&[usize], &[i64])]) -> Walk {
        let views: Vec<_> =
            inputs.iter().map(|(shape, strides)| ("x", View::new(shape, strides).expect("a view"))).collect();
        Walk::new(OP, shape, &views).expect("a walk")
    }

    fn contiguous(shape: &[usize], inputs: &[&[usize]]) -> Walk {
        let views: Vec<_> =
            inputs.iter().map(|shape| ("x", View::contiguous(shape).expect("rank"))).collect();
        Walk::new(OP, shape, &views).expect("a walk")
    }

    #[test]
    fn shapes_are_broadcast_as_pytorch_does() {
        let shape = |shapes: &[&[usize]]| broadcast_shape(shapes.iter().copied());
        assert_eq!(shape(&[&[4, 1], &[3, 1, 5]]).expect("broadcastable"), [3, 4, 5]);
        assert_eq!(shape(&[&[], &[2]]).expect("broadcastable"), [2]);
        assert_eq!(shape(&[&[1], &[0]]).expect("broadcastable"), [0]);
        let error = shape(&[&[2, 3], &[2]]).expect_err("3 and 2").to_string();
        let want = "elementwise: shape is [2] beside [2, 3], must be the same from the last dimension on, or 1, or absent";
        assert_eq!(error, want);
    }

    #[test]
    fn dimensions_that_lie_behind_each_other_are_one() {
        let same = contiguous(&[2, 3, 5], &[&[2, 3, 5], &[1]]);
        assert_eq!((&same.extents[..], &same.strides[..]), (&[30][..], &[vec![1], vec![0]][..]));
        assert!(same.is_flat() && same.readings() == [Reading::Contiguous, Reading::Uniform]);
        let row = contiguous(&[2, 3, 5], &[&[2, 3, 5], &[5]]);
        assert_eq!((&row.extents[..], &row.strides[1][..]), (&[6, 5][..], &[0, 1][..]));
        assert_eq!(row.readings(), [Reading::Contiguous, Reading::Row]);
        let column = contiguous(&[6, 4], &[&[6, 1], &[6, 4]]);
        assert_eq!(column.readings(), [Reading::Column, Reading::Contiguous]);
        let transposed = walk(&[6, 4], &[(&[6, 4], &[1, 6])]);
        assert_eq!(transposed.readings(), [Reading::Gather]);
        assert!(!transposed.is_flat());
        let single = contiguous(&[1, 1], &[&[1, 1], &[]]);
        assert!(single.is_flat() && single.extents == [1]);
    }

    #[test]
    fn vectors_lie_within_rows() {
        assert_eq!(contiguous(&[6, 24], &[&[24]]).vector(8), 8);
        assert_eq!(contiguous(&[6, 20], &[&[20]]).vector(8), 4);
        assert_eq!(contiguous(&[6, 21], &[&[21]]).vector(8), 1);
        // Rows 25 elements apart.
        assert_eq!(walk(&[6, 24], &[(&[6, 24], &[25, 1])]).vector(8), 1);
        assert_eq!(walk(&[6, 24], &[(&[6, 24], &[1, 6])]).vector(8), 8);
    }

    #[test]
    fn too_many_dimensions_have_no_walk() {
        let views = [("x0", View::contiguous(&[2, 1, 2, 1, 2, 1]).expect("rank"))];
        let error = Walk::new(OP, &[2, 3, 2, 3, 2, 3], &views).expect_err("six dimensions").to_string();
        assert!(error.contains("at most 5 dimensions"), "{error}");
        let views = [("x0", View::contiguous(&[2, 1, 2, 1, 2]).expect("rank"))];
        assert_eq!(Walk::new(OP, &[2, 3, 2, 3, 2], &views).expect("five dimensions").extents.len(), 5);
        let error = Walk::new(OP, &[4, 3], &[("x1", View::contiguous(&[2, 3]).expect("rank"))]);
        let error = error.expect_err("2 and 4").to_string();
        assert!(error.starts_with("elementwise: x1 is [2, 3] for outputs of [4, 3]"), "{error}");
    }

    /// Every element is in one part, at the places that the whole walk has for it.
    #[test]
    fn parts_are_the_whole() {
        let walk = contiguous(&[3, 2, 8], &[&[3, 1, 8], &[2, 1]]);
        assert_eq!(walk.extents, [3, 2, 8]);
        for most in [1, 2, 3, 5, 24] {
            let mut next = 0;
            for part in walk.parts(2, most) {
                let elements: usize = part.extents.iter().product();
                assert_eq!(part.first, next);
                assert!(elements as u64 / 2 <= most && part.extents[2].is_multiple_of(2));
                let index = [part.first / 16, part.first / 8 % 2, part.first % 8].map(|i| i as i64);
                for (own, offset) in walk.strides.iter().zip(&part.offsets) {
                    let want: i64 = own.iter().zip(index).map(|(stride, i)| stride * i).sum();
                    assert_eq!(*offset, want);
                }
                next += elements as u64;
            }
            assert_eq!(next, 48, "{most}");
        }
        assert_eq!(walk.parts(2, 24).len(), 1);
    }
}
