//! Which arrays share memory: ranges of addresses for what lies without gaps, elements for what is strided.

use std::ops::Range;

use warpwright_runtime::Lattice;

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

/// That of an array.
fn lattice(array: &Argument<'_>) -> Option<Lattice> {
    Lattice::of(array.address, array.dtype.bytes(), &array.shape, &array.strides)
}

/// Whether two arrays share no element. Arrays whose strides do not nest count as sharing one where their ranges do.
pub(crate) fn are_disjoint(a: &Argument<'_>, b: &Argument<'_>) -> bool {
    if a.place != b.place {
        return true;
    }
    match (lattice(a), lattice(b)) {
        (Some(a), Some(b)) => a.is_disjoint(&b),
        _ => true,
    }
}

/// Whether each element of an array has a place of its own.
pub(crate) fn has_distinct_elements(array: &Argument<'_>) -> bool {
    lattice(array).is_none_or(|lattice| lattice.is_injective())
}
