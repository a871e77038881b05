//! `run`: anyone's kernel on anyone's arrays.

mod argument;
mod arguments;
mod costs;
mod cuda;
mod emulated;
pub(super) mod findings;
mod list;
mod outputs;
mod page;
mod structure;

use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};
use warpwright_emu::counters::LineCounters;
use warpwright_emu::report::Severity;
use warpwright_emu::{Counters, Finding, HeapBlock, Printed, Sanitizers};
use warpwright_ptx::text;

use self::arguments::Arguments;
use self::outputs::Output;
use super::lint::{examine, read_ptx};
use super::open_gpu;
use crate::args::{ReportFormat, RunArgs};
use crate::console::Console;
use crate::error::{Error, Outcome};
use crate::paths::Shown;
use crate::sarif::Log;
use crate::table::Align;

/// Runs the command.
///
/// # Errors
/// A file cannot be read or written, the arguments do not fit the kernel, or the device fails.
pub fn run(args: &RunArgs, console: &mut Console) -> Result<Outcome, Error> {
    let source = read_valid(&args.file, args.format.get(), console)?;
    let entry = entry_name(&args.file, args.entry.as_ref(), &source)?;
    let arguments = match &args.args_json {
        Some(path) => {
            let (mut texts, mut arrays) = list::read(path)?;
            texts.extend_from_slice(&args.args);
            arrays.extend_from_slice(&args.arrays);
            Arguments::read(&texts, &arrays)?
        }
        None => Arguments::read(&args.args, &args.arrays)?,
    };
    outputs::check(args, &arguments)?;
    let launch = Launch { args, source: &source, entry: &entry, arguments };
    let mut outcome = match open_gpu(&args.device.device, console)? {
        Some(device) => {
            if args.schedules > 1 {
                console.note("schedules are the emulator's: --device emulator");
            }
            cuda::run(&launch, &device)?
        }
        None => emulated::run(&launch)?,
    };
    let page = args.html.as_deref().filter(|_| outcome.counters.is_some());
    let page = page.map(|path| (path, page::html(&launch, &outcome)));
    let page = page.as_ref().map(|(path, text)| (*path, text.as_str()));
    outputs::commit(&mut outcome.outputs, page, args.force)?;
    report(&launch, &outcome, console)
}

/// A launch that is to be made.
struct Launch<'a> {
    args: &'a RunArgs,
    source: &'a str,
    entry: &'a str,
    arguments: Arguments,
}

impl Launch<'_> {
    /// Names file and kernel in front of a message.
    fn context(&self) -> String {
        format!("{}: kernel `{}`", Shown(&self.args.file), self.entry)
    }

    /// When the launch has to be over, if it begins now. A limit beyond the clock is none.
    fn deadline(&self) -> Option<Instant> {
        self.args.limits.time_limit.and_then(|limit| Instant::now().checked_add(limit))
    }
}

/// The results of a launch.
#[derive(Default)]
struct Aftermath {
    outputs: Vec<Output>,
    findings: Vec<Finding>,
    /// `None` on a GPU.
    counters: Option<Counters>,
    /// Texts that the kernel printed, and blocks that it got from `malloc` and did not free; in the emulator.
    printed: Vec<Printed>,
    unfreed: Vec<HeapBlock>,
    /// The counters by line.
    lines: Vec<LineCounters>,
    /// Why the kernel was ended, if it was.
    fault: Option<String>,
    /// Arrays that are not what they are in the first schedule.
    differences: Vec<Difference>,
}

/// An array that is another one in a further schedule.
struct Difference {
    /// Its name in findings.
    array: String,
    /// The first element that differs.
    element: u64,
    /// The seed of `--completion random:SEED` that shows it.
    seed: u64,
}

impl Difference {
    fn message(&self) -> String {
        let Self { array, element, seed } = self;
        format!(
            "`{array}` depends on the schedule: element {element} is another one with --completion random:{seed}"
        )
    }
}

/// The text of a PTX file without errors; what is wrong with another is printed.
pub(super) fn read_valid(file: &Path, format: ReportFormat, console: &mut Console) -> Result<String, Error> {
    let source = read_ptx(file)?;
    let remarks = examine(&source, None);
    let errors: Vec<_> = remarks.iter().filter(|remark| remark.is_error).collect();
    if errors.is_empty() {
        return Ok(source);
    }
    if format == ReportFormat::Sarif {
        let mut log = Log::new(file);
        errors.iter().for_each(|remark| log.add(&remark.sarif()));
        console.json(&log.finish())?;
    }
    let file = Shown(file).to_string();
    for remark in &errors {
        eprint_excerpt(console, remark.excerpt(&file, &source, console.error_palette()));
    }
    let message = format!("{file}: is not valid PTX ({} errors)", errors.len());
    Err(Error::usage(message, "`warpwright lint` shows warnings too"))
}

/// The kernel that is asked for, or the only one of a file.
pub(super) fn entry_name(file: &Path, entry: Option<&String>, source: &str) -> Result<String, Error> {
    let names: Vec<String> =
        text::parse(source).module.entries().map(|function| function.name.clone()).collect();
    let file = Shown(file);
    match (entry, names.as_slice()) {
        (_, []) => Err(Error::usage(format!("{file}: holds no kernel"), "a kernel is declared with .entry")),
        (Some(name), all) if all.contains(name) => Ok(name.clone()),
        (Some(name), all) => Err(Error::usage(
            format!("{file}: holds no kernel `{name}`"),
            format!("it holds {}", all.join(", ")),
        )),
        (None, [only]) => Ok(only.clone()),
        (None, all) => Err(Error::usage(
            format!("{file}: holds several kernels"),
            format!("--entry with one of {}", all.join(", ")),
        )),
    }
}

/// The sanitizers by name.
fn sanitizers(list: Option<&str>) -> Result<Sanitizers, Error> {
    let mut chosen = Sanitizers::empty();
    for name in list.unwrap_or("all").split(',').map(str::trim) {
        chosen |= match name {
            "memcheck" => Sanitizers::MEMCHECK,
            "initcheck" => Sanitizers::INITCHECK,
            "racecheck" => Sanitizers::RACECHECK,
            "synccheck" => Sanitizers::SYNCCHECK,
            "all" => Sanitizers::all(),
            "none" => Sanitizers::empty(),
            other => {
                return Err(Error::usage(
                    format!("--sanitize: there is no '{other}'"),
                    "memcheck, initcheck, racecheck and synccheck, separated by commas; all; none",
                ));
            }
        };
    }
    Ok(chosen)
}

fn report(launch: &Launch<'_>, outcome: &Aftermath, console: &mut Console) -> Result<Outcome, Error> {
    let (args, source) = (launch.args, launch.source);
    match args.format.get() {
        ReportFormat::Human => print(launch, outcome, console)?,
        ReportFormat::Json => {
            let all = outcome.findings.iter().map(|finding| findings::to_json(finding, source));
            let mut value = json!({
                "findings": all.collect::<Value>(),
                "counters": outcome.counters.as_ref().map(counters_json),
                "lines": outcome.lines.iter().map(line_json).collect::<Value>(),
                "printed": outcome.printed.iter().map(printed_json).collect::<Value>(),
                "unfreed_bytes": unfreed_bytes(outcome),
                "differences": outcome.differences.iter().map(difference_json).collect::<Value>(),
            });
            if let Some(fault) = &outcome.fault {
                value["fault"] = fault.as_str().into();
            }
            console.json(&value)?;
        }
        ReportFormat::Sarif => {
            let mut log = Log::new(&args.file);
            outcome.findings.iter().for_each(|finding| findings::to_sarif(finding, source, &mut log));
            if let Some(fault) = &outcome.fault {
                findings::fault_to_sarif(fault, launch.entry, &mut log);
            }
            for difference in &outcome.differences {
                findings::difference_to_sarif(difference.message(), launch.entry, &mut log);
            }
            console.json(&log.finish())?;
        }
    }
    if outcome.counters.is_none() && (args.counters || args.html.is_some()) {
        console.note("counters are kept by the emulator alone: --device emulator");
    }
    let wrong =
        outcome.fault.is_some() || outcome.findings.iter().any(|finding| finding.severity == Severity::Error);
    Ok(if wrong { Outcome::Findings } else { Outcome::Clean })
}

fn printed_json(printed: &Printed) -> Value {
    json!({"block": printed.block, "thread": printed.thread, "text": printed.text})
}

fn difference_json(difference: &Difference) -> Value {
    json!({"array": difference.array, "element": difference.element, "seed": difference.seed})
}

fn unfreed_bytes(outcome: &Aftermath) -> u64 {
    outcome.unfreed.iter().map(|block| block.bytes).sum()
}

fn print(launch: &Launch<'_>, outcome: &Aftermath, console: &mut Console) -> Result<(), Error> {
    for printed in &outcome.printed {
        console.raw(&printed.text)?;
    }
    if let Some(first) = outcome.unfreed.first() {
        let (count, bytes, line) = (outcome.unfreed.len(), unfreed_bytes(outcome), first.line);
        console.note(format_args!(
            "{count} allocations of `malloc` with {bytes} bytes were not freed, the first of line {line}"
        ));
    }
    for finding in &outcome.findings {
        console.line(finding.render(None, launch.source))?;
    }
    if let Some(fault) = &outcome.fault {
        console.line(format_args!("{}: {fault}", console.palette().error("error")))?;
    }
    for difference in &outcome.differences {
        console.line(format_args!("{}: {}", console.palette().warning("warning"), difference.message()))?;
    }
    for output in &outcome.outputs {
        console.line(format_args!("{}: {} {:?}", Shown(&output.path), output.dtype, output.shape))?;
    }
    if let (Some(path), Some(_)) = (&launch.args.html, &outcome.counters) {
        console.line(format_args!("{}: the cost of every line", Shown(path)))?;
    }
    if let (Some(counters), true) = (&outcome.counters, launch.args.counters) {
        costs::print(&outcome.lines, counters, launch.source, console)?;
        print_counters(counters, console)?;
    }
    Ok(())
}

fn print_counters(counters: &Counters, console: &mut Console) -> Result<(), Error> {
    let mut table = console.table(&[("counter", Align::Left), ("", Align::Right)]);
    for (name, value) in counters.rows() {
        table.row([name, value.to_string()]);
    }
    console.line(table)
}

pub(crate) fn counters_json(counters: &Counters) -> Value {
    counters.rows().into_iter().map(|(name, value)| (name, Value::from(value))).collect()
}

/// The counters of a line, zeros left out.
fn line_json(row: &LineCounters) -> Value {
    let mut value =
        json!({"line": row.line, "column": row.column, "active_lanes": row.counters.active_lanes()});
    for (name, count) in row.counters.rows().into_iter().filter(|(_, count)| *count > 0) {
        value[name] = count.into();
    }
    value
}

/// An excerpt on standard error.
fn eprint_excerpt(console: &Console, excerpt: crate::excerpt::Excerpt<'_>) {
    console.plain_error(format_args!("{excerpt}\n"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sanitizers_are_named_as_nvidias() {
        assert_eq!(sanitizers(None).unwrap(), Sanitizers::all());
        assert_eq!(sanitizers(Some("none")).unwrap(), Sanitizers::empty());
        let two = sanitizers(Some("memcheck, racecheck")).unwrap();
        assert_eq!(two, Sanitizers::MEMCHECK | Sanitizers::RACECHECK);
        assert!(sanitizers(Some("leakcheck")).is_err());
        assert!(sanitizers(Some("")).is_err());
    }
}
