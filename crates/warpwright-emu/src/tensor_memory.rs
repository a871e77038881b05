//! Tensor memory: 128 lanes of 512 columns of 32 bits, of which a block allocates columns.
//!
//! An address has the lane in its upper and the column in its lower half (PTX ISA, "Tensor Memory Addressing"). A warp
//! reaches the quarter of the lanes that its rank in its warpgroup names.

use crate::events::asynchronous::Generic;
use crate::memory::POISON;

/// Lanes.
pub(crate) const LANES: u32 = 128;
/// Columns.
pub(crate) const COLUMNS: u32 = 512;
/// Lanes whose accesses are told apart: a product of 64 rows uses half of each quarter.
pub(crate) const GROUP: u32 = 16;
const GROUPS: u32 = LANES / GROUP;

/// A place in tensor memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) lane: u32,
    pub(crate) column: u32,
}

impl Cell {
    /// The place that an address names.
    pub(crate) const fn at(address: u32) -> Self {
        Self { lane: address >> 16, column: address & 0xFFFF }
    }

    /// Its address.
    pub(crate) const fn address(self) -> u32 {
        self.lane << 16 | self.column
    }
}

/// A rectangle of tensor memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Area {
    pub(crate) start: Cell,
    pub(crate) lanes: u32,
    pub(crate) columns: u32,
}

impl Area {
    /// One past its last column.
    const fn end(&self) -> u32 {
        self.start.column.saturating_add(self.columns)
    }

    fn groups(&self) -> impl Iterator<Item = usize> + use<> {
        let (first, last) = (self.start.lane / GROUP, (self.start.lane + self.lanes).div_ceil(GROUP));
        let columns = self.start.column..self.end();
        columns.flat_map(move |column| {
            (first..last.min(GROUPS)).map(move |group| (column * GROUPS + group) as usize)
        })
    }
}

/// Columns that were allocated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allocation {
    pub(crate) column: u32,
    pub(crate) columns: u32,
    /// Warp and instruction that allocated it.
    pub(crate) warp: u32,
    pub(crate) pc: u32,
}

/// Who uses columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum User {
    /// `tcgen05.ld` or `tcgen05.st`, and whether its warp has waited for it since.
    Warp { waited: bool },
    /// An asynchronous operation with its number.
    Operation(u32),
}

/// The last write or read of a group of lanes of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Touch {
    pub(crate) by: Generic,
    pub(crate) user: User,
}

/// Accesses of a group of lanes of a column.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Touched {
    pub(crate) writer: Option<Touch>,
    pub(crate) reader: Option<Touch>,
}

/// Why a rectangle may not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Defect {
    /// Beyond the lanes or columns that there are.
    Outside,
    /// A column was never allocated.
    NotAllocated { column: u32 },
    /// A column was freed.
    Freed { column: u32 },
}

/// The tensor memory of a block.
#[derive(Debug, Default)]
pub(crate) struct TensorMemory {
    /// By column, then lane; none until something is allocated.
    words: Vec<u32>,
    /// Lanes with a value, by column.
    defined: Vec<u128>,
    /// Columns that were allocated at some time.
    used: Vec<bool>,
    touched: Vec<Touched>,
    pub(crate) allocations: Vec<Allocation>,
    /// The instruction that gave up the right to allocate.
    pub(crate) relinquished: Option<u32>,
}

impl TensorMemory {
    /// Makes everything as it is when a block begins.
    pub(crate) fn reset(&mut self) {
        if !self.words.is_empty() || self.relinquished.is_some() {
            *self = Self::default();
        }
    }

    /// Allocates the first columns that are free; `None` if so many are not.
    pub(crate) fn allocate(&mut self, columns: u32, warp: u32, pc: u32) -> Option<u32> {
        let mut column = 0;
        for taken in &self.allocations {
            if taken.column - column >= columns {
                break;
            }
            column = taken.column + taken.columns;
        }
        if COLUMNS - column < columns {
            return None;
        }
        if self.words.is_empty() {
            let words = (LANES * COLUMNS) as usize;
            self.words = vec![u32::from_ne_bytes([POISON; 4]); words];
            self.defined = vec![0; COLUMNS as usize];
            self.used = vec![false; COLUMNS as usize];
            self.touched = vec![Touched::default(); (COLUMNS * GROUPS) as usize];
        }
        for at in column..column + columns {
            self.used[at as usize] = true;
            self.defined[at as usize] = 0;
            let first = (at * LANES) as usize;
            self.words[first..first + LANES as usize].fill(u32::from_ne_bytes([POISON; 4]));
        }
        self.allocations.push(Allocation { column, columns, warp, pc });
        self.allocations.sort_by_key(|a| a.column);
        Some(column)
    }

    /// Frees an allocation; whether there is just this one.
    pub(crate) fn free(&mut self, column: u32, columns: u32) -> bool {
        let at = self.allocations.iter().position(|a| (a.column, a.columns) == (column, columns));
        at.map(|at| self.allocations.remove(at)).is_some()
    }

    /// Whether a column was ever allocated.
    pub(crate) fn was_allocated(&self, column: u32) -> bool {
        self.used.get(column as usize).copied().unwrap_or(false)
    }

    /// Why a rectangle may not be used, if it may not.
    pub(crate) fn defect(&self, area: &Area) -> Option<Defect> {
        if area.start.lane >= LANES || area.lanes > LANES - area.start.lane || area.end() > COLUMNS {
            return Some(Defect::Outside);
        }
        let mut column = area.start.column;
        while column < area.end() {
            let inside = |a: &&Allocation| (a.column..a.column + a.columns).contains(&column);
            match self.allocations.iter().find(inside) {
                Some(allocation) => column = allocation.column + allocation.columns,
                None if self.was_allocated(column) => return Some(Defect::Freed { column }),
                None => return Some(Defect::NotAllocated { column }),
            }
        }
        None
    }

    /// The word of a cell; 0 outside.
    #[inline]
    pub(crate) fn load(&self, lane: u32, column: u32) -> u32 {
        self.words.get((column * LANES + lane) as usize).copied().unwrap_or(0)
    }

    /// Sets the word of a cell.
    #[inline]
    pub(crate) fn store(&mut self, lane: u32, column: u32, value: u32) {
        if let Some(word) = self.words.get_mut((column * LANES + lane) as usize) {
            *word = value;
        }
    }

    /// The lanes of a rectangle as bits.
    fn mask(area: &Area) -> u128 {
        if area.lanes >= LANES { u128::MAX } else { ((1 << area.lanes) - 1) << area.start.lane }
    }

    /// A cell of a rectangle that has no value, if there is one.
    pub(crate) fn undefined(&self, area: &Area) -> Option<Cell> {
        let mask = Self::mask(area);
        (area.start.column..area.end()).find_map(|column| {
            let missing = mask & !self.defined.get(column as usize).copied().unwrap_or(0);
            (missing != 0).then(|| Cell { lane: missing.trailing_zeros(), column })
        })
    }

    /// A rectangle has values.
    pub(crate) fn define(&mut self, area: &Area) {
        let mask = Self::mask(area);
        for column in area.start.column..area.end() {
            if let Some(defined) = self.defined.get_mut(column as usize) {
                *defined |= mask;
            }
        }
    }

    /// The accesses of a rectangle.
    pub(crate) fn touched(&mut self, area: &Area) -> impl Iterator<Item = (Cell, &mut Touched)> {
        let touched = &mut self.touched;
        let mut groups: Vec<usize> = area.groups().collect();
        groups.sort_unstable();
        let mut next = groups.into_iter().peekable();
        touched.iter_mut().enumerate().filter_map(move |(at, cell)| {
            next.next_if_eq(&at)?;
            let (column, group) = (at as u32 / GROUPS, at as u32 % GROUPS);
            Some((Cell { lane: group * GROUP, column }, cell))
        })
    }

    /// All accesses.
    pub(crate) fn all_touched(&mut self) -> &mut [Touched] {
        &mut self.touched
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn area(lane: u32, lanes: u32, column: u32, columns: u32) -> Area {
        Area { start: Cell { lane, column }, lanes, columns }
    }

    #[test]
    fn columns_are_found_freed_and_found_again() {
        let mut memory = TensorMemory::default();
        assert_eq!(memory.allocate(256, 0, 1), Some(0));
        assert_eq!(memory.allocate(64, 0, 2), Some(256));
        assert_eq!(memory.allocate(256, 0, 3), None);
        assert!(!memory.free(0, 128), "another number of columns");
        assert!(memory.free(0, 256));
        assert!(!memory.free(0, 256), "twice");
        assert_eq!(memory.allocate(32, 0, 4), Some(0));
        assert_eq!(memory.allocate(256, 0, 5), None);
        assert_eq!(memory.allocate(128, 0, 5), Some(32));
    }

    #[test]
    fn defects_are_told_apart() {
        let mut memory = TensorMemory::default();
        assert_eq!(memory.defect(&area(0, 1, 0, 1)), Some(Defect::NotAllocated { column: 0 }));
        memory.allocate(32, 0, 1);
        memory.allocate(32, 0, 1);
        assert_eq!(memory.defect(&area(0, 128, 0, 64)), None);
        assert_eq!(memory.defect(&area(96, 32, 16, 64)), Some(Defect::NotAllocated { column: 64 }));
        assert_eq!(memory.defect(&area(97, 32, 0, 1)), Some(Defect::Outside));
        assert_eq!(memory.defect(&area(0, 1, 511, 2)), Some(Defect::Outside));
        memory.free(32, 32);
        assert_eq!(memory.defect(&area(0, 128, 0, 64)), Some(Defect::Freed { column: 32 }));
    }

    #[test]
    fn values_are_those_of_lanes_and_columns() {
        let mut memory = TensorMemory::default();
        memory.allocate(32, 0, 1);
        memory.define(&area(32, 16, 3, 2));
        assert_eq!(memory.undefined(&area(32, 16, 3, 2)), None);
        assert_eq!(memory.undefined(&area(32, 17, 3, 2)), Some(Cell { lane: 48, column: 3 }));
        assert_eq!(memory.undefined(&area(0, 128, 4, 1)), Some(Cell { lane: 0, column: 4 }));
        memory.store(33, 4, 7);
        assert_eq!((memory.load(33, 4), Cell::at(33 << 16 | 4).address()), (7, 33 << 16 | 4));
        let groups: Vec<Cell> = memory.touched(&area(20, 20, 1, 2)).map(|(cell, _)| cell).collect();
        let lanes_and_columns = [(16, 1), (32, 1), (16, 2), (32, 2)];
        assert_eq!(groups, lanes_and_columns.map(|(lane, column)| Cell { lane, column }));
    }
}
