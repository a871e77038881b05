//! How the command speaks: results on standard output, everything else on standard error, colours and live progress
//! only where a person looks at them.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use comfy_table::{Attribute, Cell, CellAlignment, ContentArrangement, Table as Grid, presets};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::error::Error;
use crate::paths::{Harmless, is_harmless};

/// The two streams and what they can show.
pub struct Console {
    out: Box<dyn Write>,
    out_is_terminal: bool,
    err_is_terminal: bool,
    colour: bool,
}

impl fmt::Debug for Console {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Console")
            .field("out_is_terminal", &self.out_is_terminal)
            .field("err_is_terminal", &self.err_is_terminal)
            .field("colour", &self.colour)
            .finish_non_exhaustive()
    }
}

impl Console {
    /// The process's streams. `NO_COLOR` with any value but the empty one turns colours off, as does `TERM=dumb`.
    pub fn new() -> Self {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        Self {
            out: Box::new(io::BufWriter::new(io::stdout())),
            out_is_terminal: io::stdout().is_terminal(),
            err_is_terminal: io::stderr().is_terminal(),
            colour: set("NO_COLOR").is_none() && set("TERM").is_none_or(|term| term != "dumb"),
        }
    }

    /// A line of result.
    ///
    /// # Errors
    /// Standard output is gone.
    pub fn line(&mut self, text: impl fmt::Display) -> Result<(), Error> {
        writeln!(self.out, "{text}").map_err(Error::Stdout)
    }

    /// A JSON result.
    ///
    /// # Errors
    /// Standard output is gone.
    pub fn json(&mut self, value: &serde_json::Value) -> Result<(), Error> {
        self.line(format_args!("{value:#}"))
    }

    /// Text as it is, without a newline of its own.
    ///
    /// # Errors
    /// Standard output is gone.
    pub fn raw(&mut self, text: &str) -> Result<(), Error> {
        self.out.write_all(text.as_bytes()).map_err(Error::Stdout)
    }

    /// Hands everything to the system.
    ///
    /// # Errors
    /// Standard output is gone.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.out.flush().map_err(Error::Stdout)
    }

    /// A remark on standard error.
    pub fn note(&self, text: impl fmt::Display) {
        let word = Paint { on: self.colour && self.err_is_terminal, code: BOLD_CYAN, text: "note" };
        // Nobody is left to tell if standard error is closed.
        let _ = writeln!(io::stderr(), "{word}: {}", Harmless(&text.to_string()));
    }

    /// An error and its remedy on standard error.
    pub fn error(&self, text: impl fmt::Display, help: Option<&str>) {
        let on = self.colour && self.err_is_terminal;
        let mut err = io::stderr();
        let text = text.to_string();
        let _ = writeln!(err, "{}: {}", Paint { on, code: BOLD_RED, text: "error" }, Harmless(&text));
        if let Some(help) = help {
            let _ = writeln!(err, "{}: {}", Paint { on, code: BOLD_CYAN, text: "help" }, Harmless(help));
        }
    }

    /// Text on standard error as it is.
    pub fn plain_error(&self, text: impl fmt::Display) {
        let _ = writeln!(io::stderr(), "{text}");
    }

    /// Colours for text on standard error.
    pub const fn error_palette(&self) -> Palette {
        Palette { on: self.colour && self.err_is_terminal }
    }

    /// Colours for text on standard output.
    pub const fn palette(&self) -> Palette {
        Palette { on: self.colour && self.out_is_terminal }
    }

    /// A table for standard output: wrapped to a terminal's width, one line a row elsewhere.
    pub fn table(&self, columns: &[(&str, Align)]) -> Table {
        let mut grid = Grid::new();
        grid.load_style(presets::NOTHING);
        let arrangement =
            if self.out_is_terminal { ContentArrangement::Dynamic } else { ContentArrangement::Disabled };
        grid.set_content_arrangement(arrangement);
        let bold = self.palette().on;
        grid.set_header(columns.iter().map(|(title, align)| {
            let cell = Cell::new(title).set_alignment(align.cell());
            if bold { cell.add_attribute(Attribute::Bold) } else { cell }
        }));
        Table { grid, align: columns.iter().map(|(_, align)| *align).collect(), bold }
    }

    /// A progress bar over `total` bytes on standard error; hidden off a terminal.
    pub fn progress(&self, total: u64) -> Progress {
        self.bar(total, "{decimal_bytes:>10} of {decimal_total_bytes}  {decimal_bytes_per_sec}  {wide_msg}")
    }

    /// A progress bar over `total` steps.
    pub fn steps(&self, total: u64) -> Progress {
        self.bar(total, "{pos:>6} of {len}  {wide_msg}")
    }

    fn bar(&self, total: u64, facts: &str) -> Progress {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
        if self.err_is_terminal {
            bar.set_draw_target(ProgressDrawTarget::stderr());
            let colour = if self.colour { "{bar:32.cyan}" } else { "{bar:32}" };
            if let Ok(style) = ProgressStyle::with_template(&format!("{colour} {facts}")) {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(200));
        }
        Progress(bar)
    }
}

impl Default for Console {
    fn default() -> Self {
        Self::new()
    }
}

/// A progress bar that goes away when it is dropped.
#[derive(Debug)]
pub struct Progress(ProgressBar);

impl Progress {
    /// Says what is being worked on.
    pub fn describe(&self, what: &str) {
        self.0.set_message(what.to_owned());
    }

    /// Advances.
    pub fn step(&self, bytes: u64) {
        self.0.inc(bytes);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

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
    /// Adds a row.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.add(cells, false);
    }

    /// Adds a row that stands out where there are colours.
    pub fn strong_row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.add(cells, self.bold);
    }

    fn add<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>, bold: bool) {
        let cells = cells.into_iter().zip(&self.align).map(|(text, align)| {
            let cell = Cell::new(text.into()).set_alignment(align.cell());
            if bold { cell.add_attribute(Attribute::Bold) } else { cell }
        });
        self.grid.add_row(cells.collect::<Vec<_>>());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.grid.to_string();
        let lines: Vec<_> =
            text.lines().map(|line| line.trim_end().strip_prefix(' ').unwrap_or(line)).collect();
        f.write_str(&lines.join("\n"))
    }
}

const BOLD_RED: &str = "1;31";
const BOLD_YELLOW: &str = "1;33";
const BOLD_CYAN: &str = "1;36";
const BOLD_BLUE: &str = "1;34";
const BOLD: &str = "1";
const GREEN: &str = "32";

/// Colours, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Palette {
    on: bool,
}

impl Palette {
    /// No colours.
    pub const PLAIN: Self = Self { on: false };

    const fn paint<'a>(self, code: &'static str, text: &'a str) -> Paint<'a> {
        Paint { on: self.on, code, text }
    }

    /// For errors.
    pub const fn error(self, text: &str) -> Paint<'_> {
        self.paint(BOLD_RED, text)
    }

    /// For warnings.
    pub const fn warning(self, text: &str) -> Paint<'_> {
        self.paint(BOLD_YELLOW, text)
    }

    /// For frames around quoted source.
    pub const fn frame(self, text: &str) -> Paint<'_> {
        self.paint(BOLD_BLUE, text)
    }

    /// For what must be seen.
    pub const fn strong(self, text: &str) -> Paint<'_> {
        self.paint(BOLD, text)
    }

    /// For success.
    pub const fn good(self, text: &str) -> Paint<'_> {
        self.paint(GREEN, text)
    }
}

/// Text in a colour.
#[derive(Clone, Copy, Debug)]
pub struct Paint<'a> {
    on: bool,
    code: &'static str,
    text: &'a str,
}

impl fmt::Display for Paint<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.on { write!(f, "\x1b[{}m{}\x1b[0m", self.code, self.text) } else { f.write_str(self.text) }
    }
}

/// A message about a place in a text, with the line quoted and the place underlined.
#[derive(Clone, Copy, Debug)]
pub struct Excerpt<'a> {
    /// `error` or `warning`.
    pub is_error: bool,
    /// What follows it in brackets.
    pub code: &'a str,
    /// The message.
    pub message: &'a str,
    /// The file's name.
    pub file: &'a str,
    /// The whole text.
    pub source: &'a str,
    /// Line from 1; 0 if the message is about the whole.
    pub line: u32,
    /// Column from 1, in characters; 0 to underline the whole line.
    pub column: u32,
    /// Characters to underline.
    pub length: u32,
    /// Other places that explain it: line, 0 for none, and message.
    pub notes: &'a [(u32, String)],
    /// What would help.
    pub help: Option<&'a str>,
    /// The colours.
    pub palette: Palette,
}

impl fmt::Display for Excerpt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let palette = self.palette;
        let kind = if self.is_error { "error" } else { "warning" };
        let head = format!("{kind}[{}]", self.code);
        let head = if self.is_error { palette.error(&head) } else { palette.warning(&head) };
        write!(f, "{head}: {}", palette.strong(&Harmless(self.message).to_string()))?;
        let number = self.line.to_string();
        let margin = " ".repeat(number.len());
        let place = if self.line == 0 {
            self.file.to_owned()
        } else {
            format!("{}:{}:{}", self.file, self.line, self.column.max(1))
        };
        write!(f, "\n{margin}{} {place}", palette.frame("-->"))?;
        let quoted = (self.line as usize).checked_sub(1).and_then(|at| self.source.lines().nth(at));
        if let Some(line) = quoted {
            let (shown, start, length) = self.underline(line);
            let bar = palette.frame("|");
            write!(f, "\n{margin} {bar}\n{} {bar} {shown}", palette.frame(&number))?;
            let carets = "^".repeat(length);
            let carets = if self.is_error { palette.error(&carets) } else { palette.warning(&carets) };
            write!(f, "\n{margin} {bar} {}{carets}", " ".repeat(start))?;
        }
        for (line, note) in self.notes {
            let place = if *line == 0 { String::new() } else { format!(" (line {line})") };
            write!(
                f,
                "\n{margin} {} {}: {}{place}",
                palette.frame("="),
                palette.strong("note"),
                Harmless(note)
            )?;
        }
        if let Some(help) = self.help {
            write!(f, "\n{margin} {} {}: {help}", palette.frame("="), palette.strong("help"))?;
        }
        Ok(())
    }
}

impl Excerpt<'_> {
    /// Widest quoted line.
    const WIDTH: usize = 160;

    /// The line as it is shown (tabs and what a terminal would act on as blanks, cut to a window around the place), and where
    /// and how long to underline.
    fn underline(&self, line: &str) -> (String, usize, usize) {
        let characters: Vec<char> = line.chars().map(|c| if is_harmless(c) { c } else { ' ' }).collect();
        let blanks = characters.iter().take_while(|c| c.is_whitespace()).count();
        let (start, length) = if self.column == 0 {
            (blanks, characters.len() - blanks)
        } else {
            ((self.column as usize - 1).min(characters.len()), self.length as usize)
        };
        let first = if start < Self::WIDTH { 0 } else { start - Self::WIDTH / 2 };
        let shown: String = characters.iter().skip(first).take(Self::WIDTH).collect();
        let room = shown.chars().count().saturating_sub(start - first);
        (shown.trim_end().to_owned(), start - first, length.min(room).max(1))
    }
}

/// A byte count as people read it, with decimal units.
pub fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["kB", "MB", "GB", "TB", "PB", "EB"];
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1000.0;
    let mut unit = 0;
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// Bytes in so many seconds as a rate, `1.5 GB/s`.
pub fn human_rate(bytes: u64, seconds: f64) -> String {
    format!("{:.2} GB/s", bytes as f64 / 1e9 / seconds.max(1e-9))
}

/// A shape as `[2, 3]`.
pub fn shape_text(shape: &[u64]) -> String {
    format!("{shape:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_counts_have_fitting_units() {
        let cases =
            [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (999_949, "999.9 kB"), (999_951, "1.0 MB")];
        for (bytes, text) in cases {
            assert_eq!(human_bytes(bytes), text);
        }
        assert_eq!(human_bytes(u64::MAX), "18.4 EB");
    }

    fn excerpt(source: &str, line: u32, column: u32, length: u32) -> String {
        let excerpt = Excerpt {
            is_error: true,
            code: "P-SYNTAX",
            message: "expected a register",
            file: "k.ptx",
            source,
            line,
            column,
            length,
            notes: &[(3, "declared here".to_owned())],
            help: Some("write %r1"),
            palette: Palette::PLAIN,
        };
        excerpt.to_string()
    }

    #[test]
    fn an_excerpt_points_at_its_place() {
        let text = excerpt("one\n\tadd.u32 4, %r1, %r2;\n", 2, 10, 1);
        let expected = "error[P-SYNTAX]: expected a register\n --> k.ptx:2:10\n  |\n2 |  add.u32 4, %r1, %r2;\n  \
                        |          ^\n  = note: declared here (line 3)\n  = help: write %r1";
        assert_eq!(text, expected);
    }

    #[test]
    fn an_excerpt_of_nowhere_quotes_nothing() {
        for (line, column) in [(0, 0), (7, 3)] {
            assert!(!excerpt("one\n", line, column, 1).contains('|'));
        }
        // A column past the end and an underline past the end stay on the line.
        assert!(excerpt("ab", 1, 9, 5).contains("| ab\n  |   ^\n"));
        assert!(excerpt("ab", 1, 2, 5).contains("| ab\n  |  ^\n"));
        assert!(excerpt("  ab", 1, 0, 0).contains("|   ^^\n"));
    }

    #[test]
    fn a_very_long_line_is_cut_around_the_place() {
        let long = format!("{}Q{}", " ".repeat(5000), "y".repeat(5000));
        let text = excerpt(&long, 1, 5001, 1);
        assert!(text.len() < 600, "{}", text.len());
        let caret = text.lines().find(|line| line.contains('^')).unwrap().find('^');
        assert_eq!(text.lines().find(|line| line.contains('Q')).unwrap().find('Q'), caret);
    }

    #[test]
    fn no_palette_means_no_escapes() {
        assert_eq!(Palette::PLAIN.error("x").to_string(), "x");
        assert_eq!(Palette { on: true }.good("x").to_string(), "\u{1b}[32mx\u{1b}[0m");
    }
}
