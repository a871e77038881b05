//! Which arrays share memory: ranges of addresses for what lies without gaps, elements for what is strided.

use std::ops::Range;

use crate::array::Argument;

/// The addresses of a block of bytes. One that reaches past the last address is cut there.
pub(crate) fn range(address: u64, bytes: usize) -> Range<u64> {
    address..address.saturating_add(bytes as u64)
}

/// Ranges of addresses that hang together because each overlaps another one.
pub(crate) struct Group {
    /// From the lowest address to past the highest.
    pub(crate) range: Range<u64>,
    /// Bytes before the range where it is put at an address of the largest alignment, so that each address keeps the alignment
    /// that it has, up to [`ALIGNMENT`]. 0 where there is one range only, which may as well be aligned better.
    pub(crate) lead: u64,
    /// Which ranges they are, by their position in the list.
    pub(crate) members: Vec<usize>,
}

/// The largest number of bytes that an instruction accesses at once needs.
const ALIGNMENT: u64 = 32;

impl Group {
    /// A range by itself.
    pub(crate) fn single(member: usize, range: Range<u64>) -> Self {
        Self { range, lead: 0, members: vec![member] }
    }

    /// Bytes from the lead to the last address.
    pub(crate) fn bytes(&self) -> u64 {
        (self.range.end - self.range.start).saturating_add(self.lead)
    }

    /// Where an address of the range is in the group.
    pub(crate) fn offset(&self, address: u64) -> u64 {
        address - self.range.start + self.lead
    }
}

/// The groups of a list of ranges. An empty range is in none.
pub(crate) fn groups(ranges: &[Range<u64>]) -> Vec<Group> {
    let mut order: Vec<usize> = (0..ranges.len()).filter(|&i| !ranges[i].is_empty()).collect();
    order.sort_by_key(|&i| ranges[i].start);
    let mut groups: Vec<Group> = Vec::new();
    for i in order {
        let range = &ranges[i];
        match groups.last_mut().filter(|group| range.start < group.range.end) {
            Some(group) => {
                group.range.end = group.range.end.max(range.end);
                group.members.push(i);
            }
            None => groups.push(Group::single(i, range.clone())),
        }
    }
    for group in &mut groups {
        if group.members.iter().any(|&i| ranges[i] != group.range) {
            group.lead = group.range.start % ALIGNMENT;
        }
    }
    groups
}

/// The bytes of a strided array: where each element may begin, and how long it is.
struct Lattice {
    /// Of the element with the lowest address.
    start: i128,
    /// Extents above 1 with positive distances in bytes.
    axes: Vec<(i128, i128)>,
    size: i128,
}

impl Lattice {
    /// `None` if the array has no elements.
    fn of(array: &Argument<'_>) -> Option<Self> {
        let size = array.dtype.bytes() as i128;
        let mut start = i128::from(array.address);
        let mut axes = Vec::new();
        for (extent, stride) in array.shape.iter().zip(array.strides.iter()) {
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
    fn is_disjoint(&self, other: &Self) -> bool {
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
    fn is_injective(&self) -> bool {
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

/// Whether two arrays share no element. Arrays whose strides do not nest count as sharing one where their ranges do.
pub(crate) fn are_disjoint(a: &Argument<'_>, b: &Argument<'_>) -> bool {
    if a.place != b.place {
        return true;
    }
    match (Lattice::of(a), Lattice::of(b)) {
        (Some(a), Some(b)) => a.is_disjoint(&b),
        _ => true,
    }
}

/// Whether each element of an array has a place of its own.
pub(crate) fn has_distinct_elements(array: &Argument<'_>) -> bool {
    Lattice::of(array).is_none_or(|lattice| lattice.is_injective())
}
