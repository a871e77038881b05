//! Standard streams: results on standard output, everything else on standard error, colours and live progress only where a
//! person looks at them.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use anstream::{AutoStream, ColorChoice};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::error::Error;
use crate::palette::Palette;
use crate::paths::Harmless;
use crate::table::{Align, Table};

/// The two streams and what they can show.
pub struct Console {
    out: Box<dyn Write>,
    out_is_terminal: bool,
    err_is_terminal: bool,
    /// Of standard output and of standard error.
    palettes: [Palette; 2],
}

impl fmt::Debug for Console {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Console")
            .field("out_is_terminal", &self.out_is_terminal)
            .field("err_is_terminal", &self.err_is_terminal)
            .field("palettes", &self.palettes)
            .finish_non_exhaustive()
    }
}

impl Console {
    /// The process's streams. Colours are off where clap has them off: away from a terminal, with `NO_COLOR` or `TERM=dumb`.
    pub fn new() -> Self {
        let colours = |choice| Palette { on: choice != ColorChoice::Never };
        Self {
            out: Box::new(io::BufWriter::new(io::stdout())),
            out_is_terminal: io::stdout().is_terminal(),
            err_is_terminal: io::stderr().is_terminal(),
            palettes: [
                colours(AutoStream::choice(&io::stdout())),
                colours(AutoStream::choice(&io::stderr())),
            ],
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
        let word = self.error_palette().note("note");
        // Nobody is left to tell if standard error is closed.
        let _ = writeln!(io::stderr(), "{word}: {}", Harmless(&text.to_string()));
    }

    /// An error and its remedy on standard error.
    pub fn error(&self, text: impl fmt::Display, help: Option<&str>) {
        let (palette, mut err) = (self.error_palette(), io::stderr());
        let _ = writeln!(err, "{}: {}", palette.error("error"), Harmless(&text.to_string()));
        if let Some(help) = help {
            let _ = writeln!(err, "{}: {}", palette.note("help"), Harmless(help));
        }
    }

    /// Text on standard error as it is.
    pub fn plain_error(&self, text: impl fmt::Display) {
        let _ = writeln!(io::stderr(), "{text}");
    }

    /// Colours for text on standard error.
    pub const fn error_palette(&self) -> Palette {
        self.palettes[1]
    }

    /// Colours for text on standard output.
    pub const fn palette(&self) -> Palette {
        self.palettes[0]
    }

    /// A table for standard output: wrapped to a terminal's width, one line a row elsewhere.
    pub fn table(&self, columns: &[(&str, Align)]) -> Table {
        Table::new(columns, self.out_is_terminal, self.palette().on)
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
            let colour = if self.error_palette().on { "{bar:32.cyan}" } else { "{bar:32}" };
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
