//! Colours of text on a terminal.

use std::fmt;

use anstyle::{AnsiColor, Style};

const ERROR: Style = AnsiColor::Red.on_default().bold();
const WARNING: Style = AnsiColor::Yellow.on_default().bold();
const NOTE: Style = AnsiColor::Cyan.on_default().bold();
const FRAME: Style = AnsiColor::Blue.on_default().bold();
const STRONG: Style = Style::new().bold();
const GOOD: Style = AnsiColor::Green.on_default();

/// Colours, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Palette {
    pub(crate) on: bool,
}

impl Palette {
    /// No colours.
    pub const PLAIN: Self = Self { on: false };

    const fn paint(self, style: Style, text: &str) -> Paint<'_> {
        Paint { style: if self.on { style } else { Style::new() }, text }
    }

    /// For errors.
    pub const fn error(self, text: &str) -> Paint<'_> {
        self.paint(ERROR, text)
    }

    /// For warnings.
    pub const fn warning(self, text: &str) -> Paint<'_> {
        self.paint(WARNING, text)
    }

    /// For remarks.
    pub const fn note(self, text: &str) -> Paint<'_> {
        self.paint(NOTE, text)
    }

    /// For frames around quoted source.
    pub const fn frame(self, text: &str) -> Paint<'_> {
        self.paint(FRAME, text)
    }

    /// For what must be seen.
    pub const fn strong(self, text: &str) -> Paint<'_> {
        self.paint(STRONG, text)
    }

    /// For success.
    pub const fn good(self, text: &str) -> Paint<'_> {
        self.paint(GOOD, text)
    }
}

/// Text in a style.
#[derive(Clone, Copy, Debug)]
pub struct Paint<'a> {
    style: Style,
    text: &'a str,
}

impl fmt::Display for Paint<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { style, text } = self;
        write!(f, "{style}{text}{style:#}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_palette_means_no_escapes() {
        assert_eq!(Palette::PLAIN.error("x").to_string(), "x");
        assert_eq!(Palette { on: true }.good("x").to_string(), "\u{1b}[32mx\u{1b}[0m");
    }
}
