//! Counters by instruction while a launch runs, and by line when it has ended.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};

use super::Counters;
use crate::code::Code;
use crate::context::Runs;
use crate::report::Position;

/// Counters of the instructions of one line of the PTX text. Lines whose instructions were never reached have zeros.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LineCounters {
    /// Line of the text, from 1.
    pub line: u32,
    /// Column at which the opcode of the line's first instruction begins, from 1.
    pub column: u32,
    /// Its counters; [`Counters::blocks`] and [`Counters::warps`] belong to the launch and are zero here.
    pub counters: Counters,
}

/// The counters of one worker. It stands at an instruction, and what is counted is counted there.
#[derive(Debug)]
pub(crate) struct Tally {
    /// One per instruction; a single one that nobody reads if nothing is counted.
    rows: Vec<Counters>,
    at: usize,
    pub(crate) blocks: u64,
    pub(crate) warps: u64,
}

impl Tally {
    pub(crate) fn new(counting: bool, instructions: usize) -> Self {
        let rows = if counting { instructions.max(1) } else { 1 };
        Self { rows: vec![Counters::new(); rows], at: 0, blocks: 0, warps: 0 }
    }

    /// Stands at an instruction from here on. Only for launches that count.
    #[inline(always)]
    pub(crate) fn at(&mut self, pc: usize) {
        debug_assert!(pc < self.rows.len());
        self.at = pc;
    }

    /// The totals, and the counters of each line.
    pub(crate) fn finish(self, runs: &Runs, code: &Code) -> (Counters, Lines) {
        let mut lines = Lines::default();
        runs.count(code, |position, class, warps, lanes| {
            lines.entry(position).instructions(class, warps, lanes);
        });
        for (row, origin) in self.rows.iter().zip(&code.origins) {
            *lines.entry(origin.position) += row;
        }
        let mut total = Counters { blocks: self.blocks, warps: self.warps, ..Counters::default() };
        for line in lines.0.values() {
            total += &line.counters;
        }
        (total, lines)
    }
}

impl Deref for Tally {
    type Target = Counters;

    fn deref(&self) -> &Counters {
        &self.rows[self.at]
    }
}

impl DerefMut for Tally {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Counters {
        &mut self.rows[self.at]
    }
}

/// Counters by line.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lines(BTreeMap<u32, LineCounters>);

impl Lines {
    fn entry(&mut self, Position { line, column }: Position) -> &mut Counters {
        let new = LineCounters { line, column, ..LineCounters::default() };
        let entry = self.0.entry(line).or_insert(new);
        entry.column = entry.column.min(column);
        &mut entry.counters
    }

    /// Adds the counters of another worker.
    pub(crate) fn merge(&mut self, other: &Self) {
        for theirs in other.0.values() {
            *self.entry(Position { line: theirs.line, column: theirs.column }) += &theirs.counters;
        }
    }

    /// The lines in order. What has no place in the text is left out.
    pub(crate) fn into_rows(self) -> Vec<LineCounters> {
        self.0.into_values().filter(|row| row.line != 0).collect()
    }
}
