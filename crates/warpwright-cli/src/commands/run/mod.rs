//! `run`: anyone's kernel on anyone's arrays.

mod argument;
mod cuda;
mod emulated;

use std::path::PathBuf;

use serde_json::{Value, json};
use warpwright_emu::report::Severity;
use warpwright_emu::{Counters, Finding, HeapBlock, Printed, Sanitizers};
use warpwright_ptx::text;
use warpwright_ptx::{ArgValue, TensorMap};
use warpwright_runtime::Device;

use self::argument::Argument;
use super::lint::{examine, read_ptx};
use crate::args::RunArgs;
use crate::checkpoint::atomic::{check_free, write_whole};
use crate::error::{Error, Outcome};
use crate::npy::Array;
use crate::style::{Align, Console};

/// Runs the command.
///
/// # Errors
/// A file cannot be read or written, the arguments do not fit the kernel, or the device fails.
pub fn run(args: &RunArgs, console: &mut Console) -> Result<Outcome, Error> {
    let source = read_ptx(&args.file)?;
    let remarks = examine(&source, None);
    let errors: Vec<_> = remarks.iter().filter(|remark| remark.is_error).collect();
    if !errors.is_empty() {
        let file = args.file.display().to_string();
        for remark in &errors {
            eprint_excerpt(console, remark.excerpt(&file, &source, console.error_palette()));
        }
        let message = format!("{file}: is not valid PTX ({} errors)", errors.len());
        return Err(Error::usage(message, "`warpwright lint` shows warnings too"));
    }
    let entry = entry_name(args, &source)?;
    let arguments = args.args.iter().map(|text| Argument::parse(text)).collect::<Result<Vec<_>, _>>()?;
    Argument::check_maps(&arguments)?;
    for output in arguments.iter().filter_map(Argument::output) {
        check_free(output, args.force)?;
    }
    let launch = Launch { args, source: &source, entry: &entry, arguments };
    let outcome = match device_of(args)? {
        Some(device) => cuda::run(&launch, &device)?,
        None => emulated::run(&launch)?,
    };
    for (path, array) in &outcome.outputs {
        write_whole(path, &array.to_bytes(), args.force)?;
    }
    report(args, &source, &outcome, console)
}

/// What is to be launched.
struct Launch<'a> {
    args: &'a RunArgs,
    source: &'a str,
    entry: &'a str,
    arguments: Vec<Argument>,
}

impl Launch<'_> {
    /// Names file and kernel in front of a message.
    fn context(&self) -> String {
        format!("{}: kernel `{}`", self.args.file.display(), self.entry)
    }

    /// The values of all parameters, given the addresses of the arrays in order.
    fn values(&self, arrays: &[u64]) -> Vec<ArgValue> {
        let mut addresses = arrays.iter();
        self.arguments
            .iter()
            .map(|argument| match argument {
                Argument::Number(value) => value.clone(),
                Argument::Array(_) => ArgValue::Address(addresses.next().copied().unwrap_or(0)),
                Argument::Map { array, map } => {
                    let base = arrays.get(*array).copied().unwrap_or(0);
                    ArgValue::TensorMap { map: Box::new(TensorMap { base, ..map.clone() }), slot: None }
                }
            })
            .collect()
    }
}

/// What a launch left behind.
#[derive(Default)]
struct Aftermath {
    outputs: Vec<(PathBuf, Array)>,
    findings: Vec<Finding>,
    /// `None` on a GPU.
    counters: Option<Counters>,
    /// What the kernel printed, and what it got from `malloc` and did not free; in the emulator.
    printed: Vec<Printed>,
    unfreed: Vec<HeapBlock>,
    /// Why the kernel was ended, if it was.
    fault: Option<String>,
}

/// The GPU to run on; `None` for the emulator.
fn device_of(args: &RunArgs) -> Result<Option<Device>, Error> {
    let name = args.device.device.as_str();
    if name == "emulator" {
        return Ok(None);
    }
    if name == "auto" {
        return Ok(Device::cuda(0).ok());
    }
    let device = Device::open(name)?;
    Ok((!device.is_emulator()).then_some(device))
}

fn entry_name(args: &RunArgs, source: &str) -> Result<String, Error> {
    let names: Vec<String> =
        text::parse(source).module.entries().map(|function| function.name.clone()).collect();
    let file = args.file.display();
    match (&args.entry, names.as_slice()) {
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

fn report(
    args: &RunArgs,
    source: &str,
    outcome: &Aftermath,
    console: &mut Console,
) -> Result<Outcome, Error> {
    let wrong =
        outcome.fault.is_some() || outcome.findings.iter().any(|finding| finding.severity == Severity::Error);
    if args.json.json {
        let findings: Vec<Value> = outcome
            .findings
            .iter()
            .map(|finding| {
                json!({
                    "tool": finding.tool.name(),
                    "line": finding.line,
                    "message": finding.message,
                    "severity": finding.severity.name(),
                    "kind": finding.kind,
                    "column": finding.column,
                    "block": finding.block,
                    "thread": finding.thread,
                    "count": finding.count,
                })
            })
            .collect();
        let printed = outcome.printed.iter();
        let printed: Vec<Value> =
            printed.map(|p| json!({"block": p.block, "thread": p.thread, "text": p.text})).collect();
        let mut value = json!({
            "findings": findings,
            "counters": outcome.counters.as_ref().map(counters_json),
            "printed": printed,
            "unfreed_bytes": outcome.unfreed.iter().map(|block| block.bytes).sum::<u64>(),
        });
        if let Some(fault) = &outcome.fault {
            value["fault"] = fault.as_str().into();
        }
        console.json(&value)?;
    } else {
        for printed in &outcome.printed {
            console.raw(&printed.text)?;
        }
        if let Some(first) = outcome.unfreed.first() {
            let bytes: u64 = outcome.unfreed.iter().map(|block| block.bytes).sum();
            let (count, line) = (outcome.unfreed.len(), first.line);
            console.note(format_args!(
                "{count} allocations of `malloc` with {bytes} bytes were not freed, the first of line {line}"
            ));
        }
        for finding in &outcome.findings {
            console.line(finding.render(None, source))?;
        }
        if let Some(fault) = &outcome.fault {
            console.line(format_args!("{}: {fault}", console.palette().error("error")))?;
        }
        for (path, array) in &outcome.outputs {
            console.line(format_args!("{}: {} {:?}", path.display(), array.dtype, array.shape))?;
        }
        if args.counters {
            match &outcome.counters {
                Some(counters) => print_counters(counters, console)?,
                None => console.note("counters are kept by the emulator alone: --device emulator"),
            }
        }
    }
    Ok(if wrong { Outcome::Findings } else { Outcome::Clean })
}

fn print_counters(counters: &Counters, console: &mut Console) -> Result<(), Error> {
    let mut table = console.table(&[("counter", Align::Left), ("", Align::Right)]);
    for (name, value) in counter_rows(counters) {
        table.row([name, value.to_string()]);
    }
    console.line(table)
}

/// Every counter by name; the names are those of the JSON.
pub(crate) fn counter_rows(counters: &Counters) -> Vec<(String, u64)> {
    counters.rows()
}

pub(crate) fn counters_json(counters: &Counters) -> Value {
    counter_rows(counters).into_iter().map(|(name, value)| (name, Value::from(value))).collect()
}

/// An excerpt on standard error.
fn eprint_excerpt(console: &Console, excerpt: crate::style::Excerpt<'_>) {
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
