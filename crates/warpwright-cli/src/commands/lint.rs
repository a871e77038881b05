//! `lint`: what the parser and the verifier say about a PTX file.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde_json::{Value, json};
use warpwright_ptx::text::{self, Severity};
use warpwright_ptx::verify::{self, Note, Pressure, Rule, VerifyError};
use warpwright_ptx::{SourceLoc, Target};

use crate::args::{LintArgs, ReportFormat};
use crate::console::Console;
use crate::error::{Error, Outcome};
use crate::excerpt::Excerpt;
use crate::palette::Palette;
use crate::paths::Shown;
use crate::sarif::{self, Finding, Log, Region, Related};

/// Runs the command.
///
/// # Errors
/// The file cannot be read.
pub fn run(args: &LintArgs, console: &mut Console) -> Result<Outcome, Error> {
    let source = read_ptx(&args.file)?;
    let remarks = examine(&source, args.target);
    let errors = remarks.iter().filter(|remark| remark.is_error).count();
    let outcome = if errors == 0 { Outcome::Clean } else { Outcome::Findings };
    match args.format.get() {
        ReportFormat::Human => print(&args.file, &source, &remarks, errors, console)?,
        ReportFormat::Json => {
            let list = |wanted: bool| -> Value {
                remarks.iter().filter(|remark| remark.is_error == wanted).map(Remark::json).collect()
            };
            let functions = pressures(&source);
            let functions: Value = functions.iter().map(|(name, found)| pressure_json(name, found)).collect();
            console.json(&json!({"errors": list(true), "warnings": list(false), "functions": functions}))?;
        }
        ReportFormat::Sarif => {
            let mut log = Log::new(&args.file);
            remarks.iter().for_each(|remark| log.add(&remark.sarif()));
            console.json(&log.finish())?;
        }
    }
    Ok(outcome)
}

fn print(
    file: &Path,
    source: &str,
    remarks: &[Remark],
    errors: usize,
    console: &mut Console,
) -> Result<(), Error> {
    let file = Shown(file).to_string();
    for remark in remarks {
        console.line(remark.excerpt(&file, source, console.palette()))?;
        console.line("")?;
    }
    for (name, found) in pressures(source) {
        let line = line_of(&found);
        let registers = found.registers;
        console.line(format_args!(
            "{file}:{line}: note: `{name}` keeps up to {registers} 32-bit registers alive"
        ))?;
    }
    let warnings = remarks.len() - errors;
    console.line(format_args!("{file}: {}", counted(errors, warnings)))
}

/// The estimated register pressure of each function that could be read.
fn pressures(source: &str) -> Vec<(String, Pressure)> {
    let module = text::parse(source).module;
    let found = module.functions.iter().filter_map(|f| Some((f.name.clone(), verify::register_pressure(f)?)));
    found.collect()
}

fn pressure_json(name: &str, found: &Pressure) -> Value {
    json!({"name": name, "registers": found.registers, "predicates": found.predicates, "line": line_of(found)})
}

fn line_of(found: &Pressure) -> u32 {
    match found.location {
        SourceLoc::Ptx { line, .. } => line,
        _ => 0,
    }
}

fn counted(errors: usize, warnings: usize) -> String {
    let word = |n: usize, what: &str| match n {
        1 => format!("1 {what}"),
        n => format!("{n} {what}s"),
    };
    match (errors, warnings) {
        (0, 0) => "nothing to complain about".to_owned(),
        (n, 0) => word(n, "error"),
        (0, n) => word(n, "warning"),
        (e, w) => format!("{}, {}", word(e, "error"), word(w, "warning")),
    }
}

/// The most that is read of a PTX text.
const MAX_TEXT: u64 = 1 << 28;

/// The text of a PTX file, which may be a pipe. Bytes that are no UTF-8 become characters that the parser objects to, at their place.
pub(super) fn read_ptx(path: &Path) -> Result<String, Error> {
    let file = File::open(path).map_err(Error::file(path, "open"))?;
    let mut bytes = Vec::new();
    // A device may never end.
    file.take(MAX_TEXT + 1).read_to_end(&mut bytes).map_err(Error::file(path, "read"))?;
    if bytes.len() as u64 > MAX_TEXT {
        return Err(Error::TooLong { path: path.to_owned(), limit: MAX_TEXT });
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A remark on a PTX text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Remark {
    pub(super) is_error: bool,
    pub(super) rule: &'static str,
    /// From 1; 0 for the module as a whole.
    pub(super) line: u32,
    /// In characters, from 1; 0 for the line as a whole.
    pub(super) column: u32,
    length: u32,
    pub(super) message: String,
    /// Other places that explain it: line, 0 for none, and message.
    notes: Vec<(u32, String)>,
    help: Option<&'static str>,
}

impl Remark {
    pub(super) fn excerpt<'a>(&'a self, file: &'a str, source: &'a str, palette: Palette) -> Excerpt<'a> {
        Excerpt {
            is_error: self.is_error,
            code: self.rule,
            message: &self.message,
            file,
            source,
            line: self.line,
            column: self.column,
            length: self.length,
            notes: &self.notes,
            help: self.help,
            palette,
        }
    }

    fn json(&self) -> Value {
        json!({
            "rule": self.rule,
            "line": self.line,
            "column": self.column,
            "message": self.message,
            "notes": self.notes.iter().map(|(line, message)| json!({"line": line, "message": message})).collect::<Value>(),
            "help": self.help,
        })
    }

    pub(super) fn sarif(&self) -> Finding<'_> {
        let of_verifier =
            Rule::ALL.iter().find(|rule| rule.name() == self.rule).map(|rule| rule.description());
        let summary = of_verifier.or_else(|| text::rules::description(self.rule)).unwrap_or(self.rule);
        let (placed, general): (Vec<_>, Vec<_>) = self.notes.iter().partition(|(line, _)| *line != 0);
        let mut message = self.message.clone();
        for (_, note) in general {
            message += &format!(". {note}");
        }
        Finding {
            rule: sarif::Rule { id: self.rule, summary, help: self.help.unwrap_or_default() },
            is_error: self.is_error,
            message,
            region: Region { line: self.line, column: self.column, length: self.length },
            kernel: None,
            related: placed
                .into_iter()
                .map(|(line, note)| Related {
                    region: Region { line: *line, ..Region::default() },
                    message: note.clone(),
                })
                .collect(),
            properties: Value::Null,
        }
    }
}

/// Everything that parser and verifier have to say, by place. A module with parts that could not be read is verified as
/// far as it was read, but only for what is certain: definitions may be among the missing parts.
pub(super) fn examine(source: &str, target: Option<Target>) -> Vec<Remark> {
    let parsed = text::parse(source);
    let lines: Vec<&str> = source.lines().collect();
    let mut remarks: Vec<Remark> = parsed
        .diagnostics
        .iter()
        .map(|diagnostic| {
            let line = lines.get((diagnostic.line as usize).wrapping_sub(1)).copied().unwrap_or("");
            Remark {
                is_error: diagnostic.severity == Severity::Error,
                rule: diagnostic.rule,
                line: diagnostic.line,
                column: characters(line, diagnostic.column),
                length: diagnostic.len,
                message: diagnostic.message.clone(),
                notes: Vec::new(),
                help: None,
            }
        })
        .collect();
    let incomplete = parsed.has_errors();
    let mut module = parsed.module;
    if let Some(target) = target.filter(|target| !module.target.builds_for(*target)) {
        remarks.push(Remark {
            is_error: true,
            rule: Rule::Target1.name(),
            line: 0,
            column: 0,
            length: 0,
            message: format!("a module for {} cannot be assembled for {target}", module.target),
            notes: Vec::new(),
            help: None,
        });
        // What stands in the way, if anything does.
        module.target = target;
    }
    if !incomplete {
        remarks.extend(verify::verify(&module).iter().map(|found| verified(found, &lines)));
    }
    remarks.sort_by_key(|remark| (remark.line, remark.column));
    remarks
}

fn verified(found: &VerifyError, lines: &[&str]) -> Remark {
    let (line, column) = match found.location {
        SourceLoc::Ptx { line, column } => (line, column),
        _ => (0, 0),
    };
    let text = lines.get((line as usize).wrapping_sub(1)).copied().unwrap_or("");
    let from = (column as usize).saturating_sub(1).min(text.len());
    let statement = text.get(from..).unwrap_or("");
    let length = statement.find(';').map_or_else(|| statement.trim_end().len(), |at| at + 1);
    let message = if found.function.is_empty() || line != 0 {
        found.breach.to_string()
    } else {
        format!("{} (kernel `{}`)", found.breach, found.function)
    };
    Remark {
        is_error: found.severity == Severity::Error,
        rule: found.rule.name(),
        line,
        column: characters(text, column),
        length: u32::try_from(length).unwrap_or(1),
        message,
        notes: found.notes.iter().map(note).collect(),
        help: found.help,
    }
}

fn note(note: &Note) -> (u32, String) {
    let line = match note.location {
        SourceLoc::Ptx { line, .. } => line,
        _ => 0,
    };
    (line, note.kind.to_string())
}

/// A column in characters from one in bytes, both from 1.
pub(super) fn characters(line: &str, column: u32) -> u32 {
    let bytes = (column as usize).saturating_sub(1);
    let before = line.char_indices().take_while(|(at, _)| *at < bytes).count();
    if column == 0 { 0 } else { u32::try_from(before + 1).unwrap_or(u32::MAX) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_counted_in_characters() {
        assert_eq!(characters("abc", 3), 3);
        assert_eq!(characters("äbc", 3), 2);
        assert_eq!(characters("", 1), 1);
        assert_eq!(characters("abc", 0), 0);
        assert_eq!(characters("abc", 99), 4);
    }

    #[test]
    fn counts_read_as_english() {
        assert_eq!(counted(0, 0), "nothing to complain about");
        assert_eq!(counted(1, 0), "1 error");
        assert_eq!(counted(2, 1), "2 errors, 1 warning");
        assert_eq!(counted(0, 3), "3 warnings");
    }
}
