//! Tables on standard output.

use std::fmt;

use comfy_table::{Attribute, Cell, CellAlignment, ContentArrangement, Table as Grid, presets};

/// Where the text of a column goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// To the left.
    Left,
    /// To the right; for numbers.
    Right,
}

impl Align {
    const fn cell(self) -> CellAlignment {
        match self {
            Self::Left => CellAlignment::Left,
            Self::Right => CellAlignment::Right,
        }
    }
}

/// Rows under a header.
#[derive(Debug)]
pub struct Table {
    grid: Grid,
    align: Vec<Align>,
    /// Whether bold type can be shown.
    bold: bool,
}

impl Table {
    /// No rows. `wraps` fits the lines into the width of the terminal.
    pub(crate) fn new(columns: &[(&str, Align)], wraps: bool, bold: bool) -> Self {
        let mut grid = Grid::new();
        grid.load_style(presets::NOTHING);
        let arrangement = if wraps { ContentArrangement::Dynamic } else { ContentArrangement::Disabled };
        grid.set_content_arrangement(arrangement);
        grid.set_header(columns.iter().map(|(title, align)| cell(*title, *align, bold)));
        Self { grid, align: columns.iter().map(|(_, align)| *align).collect(), bold }
    }

    /// Adds a row.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.add(cells, false);
    }

    /// Adds a row that stands out where there are colours.
    pub fn strong_row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.add(cells, self.bold);
    }

    fn add<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>, bold: bool) {
        let cells = cells.into_iter().zip(&self.align).map(|(text, align)| cell(text, *align, bold));
        self.grid.add_row(cells.collect::<Vec<_>>());
    }
}

fn cell(text: impl Into<String>, align: Align, bold: bool) -> Cell {
    let cell = Cell::new(text.into()).set_alignment(align.cell());
    if bold { cell.add_attribute(Attribute::Bold) } else { cell }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.grid.to_string();
        let lines: Vec<_> =
            text.lines().map(|line| line.trim_end().strip_prefix(' ').unwrap_or(line)).collect();
        f.write_str(&lines.join("\n"))
    }
}
