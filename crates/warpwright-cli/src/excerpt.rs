//! A message with the line that it is about.

use std::fmt;

use crate::palette::Palette;
use crate::paths::{Harmless, is_harmless};

/// A message about a place in a text, with the line quoted and the place underlined.
#[derive(Clone, Copy, Debug)]
pub struct Excerpt<'a> {
    /// `error` or `warning`.
    pub is_error: bool,
    /// The name in brackets behind it.
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
    /// A remedy.
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
