//! Launches in the emulator, of the very text that was given.

use warpwright_emu::{
    Completion, Finding, LaunchConfig, LaunchError, Memory, Options, Program, Report, launch,
};
use warpwright_ptx::pack_args;

use super::argument::{ArrayArgument, Contents};
use super::outputs::{CHUNK, Output};
use super::{Aftermath, Difference, Launch, sanitizers};
use crate::args::ReportFormat;
use crate::error::Error;
use crate::interrupt;

/// A launch that was made: what it left, where, and why it was ended if it was.
struct Launched<'a> {
    memory: Memory,
    placed: Vec<(u64, &'a ArrayArgument)>,
    report: Report,
    fault: Option<String>,
}

pub(super) fn run(what: &Launch<'_>) -> Result<Aftermath, Error> {
    let program = Program::load(what.source).map_err(|error| {
        failed(what, &error.to_string(), "the emulator runs what its documentation lists")
    })?;
    let (completion, seed) = what.args.completion;
    let counts =
        what.args.counters || what.args.html.is_some() || what.args.format.get() == ReportFormat::Json;
    let options = Options {
        sanitizers: sanitizers(what.args.sanitize.as_deref())?,
        completion,
        seed,
        max_resident_blocks: what.args.resident,
        max_steps: what.args.limits.max_steps.unwrap_or(0),
        interrupt: Some(interrupt::token()),
        counters: counts,
        ..Options::default()
    };
    let first = once(what, &program, &options)?;
    let mut findings = first.report.findings.clone();
    let (mut fault, mut differences) = (first.fault.clone(), Vec::<Difference>::new());
    for number in 1..u64::from(what.args.schedules) {
        // A kernel that was ended has no results to compare with.
        if fault.is_some() {
            break;
        }
        let seed = seed.wrapping_add(number);
        let options = Options { completion: Completion::Random, seed, counters: false, ..options.clone() };
        let next = once(what, &program, &options)?;
        add_new(&mut findings, next.report.findings.iter(), seed);
        fault = next.fault.as_ref().map(|fault| format!("{fault}, with --completion random:{seed}"));
        if fault.is_none() {
            add_differences(what, [&first, &next], seed, &mut differences)?;
        }
    }
    let mut outputs = Vec::new();
    // A kernel that was ended has not written what it was to write.
    for (address, array) in first.placed.iter().filter(|_| first.fault.is_none()) {
        if let Some(path) = &array.output {
            let read = |at, chunk: &mut [u8]| {
                first.memory.read(address + at, chunk).map_err(|error| out_of_memory(what, &error))
            };
            let (layout, bytes) = (array.contents.layout(), array.contents.len());
            outputs.push(Output::write(path, what.args.force, layout, bytes, read)?);
        }
    }
    let report = first.report;
    let counters = counts.then_some(report.counters);
    Ok(Aftermath {
        outputs,
        findings,
        counters,
        lines: report.lines,
        printed: report.printed,
        unfreed: report.unfreed,
        fault,
        differences,
    })
}

/// One launch, with arrays of its own.
fn once<'a>(what: &'a Launch<'_>, program: &Program, options: &Options) -> Result<Launched<'a>, Error> {
    let memory = Memory::new();
    let mut placed = Vec::new();
    for array in what.arguments.arrays() {
        let allocated = memory.alloc(array.contents.len(), &array.label);
        let address = allocated.map_err(|error| out_of_memory(what, &error))?;
        if let Contents::Given(file) = &array.contents {
            file.for_each_chunk(|at, chunk| {
                interrupt::check()?;
                memory.write(address + at, chunk).map_err(|error| out_of_memory(what, &error))
            })?;
        }
        placed.push((address, array));
    }
    let addresses: Vec<u64> = placed.iter().map(|(address, _)| *address).collect();
    let function = program
        .entry(what.entry)
        .ok_or_else(|| failed(what, "was not loaded", "see `warpwright lint`"))?
        .function();
    let params = pack_args(function, &what.arguments.values(&addresses))
        .map_err(|error| failed(what, &error.to_string(), "--arg in the order of the kernel's parameters"))?;
    let config = LaunchConfig {
        grid: what.args.grid,
        block: what.args.block,
        dynamic_shared: what.args.shared,
        cluster: what.args.cluster.or(function.directives.cluster).unwrap_or([1; 3]),
    };
    let options = Options { deadline: what.deadline(), ..options.clone() };
    let launched = launch(program, what.entry, &config, &params, &memory, &options);
    // The fault of an interrupted launch is no finding.
    interrupt::check()?;
    let (report, fault) = match launched {
        Ok(report) => (report, None),
        Err(LaunchError::Fault { fault, report, .. }) => (*report, Some(fault.to_string())),
        Err(error) => {
            let help = "check --grid, --block, --cluster and --shared";
            return Err(failed(what, &error.to_string(), help));
        }
    };
    Ok(Launched { memory, placed, report, fault })
}

fn failed(what: &Launch<'_>, message: &str, help: &str) -> Error {
    Error::usage(format!("{}: {message}", what.context()), help)
}

fn out_of_memory(what: &Launch<'_>, error: &warpwright_emu::MemoryError) -> Error {
    failed(what, &error.to_string(), "smaller arrays")
}

/// Adds defects that no schedule before has shown, and what shows them.
fn add_new<'a>(all: &mut Vec<Finding>, more: impl Iterator<Item = &'a Finding>, seed: u64) {
    let same = |a: &Finding, b: &Finding| {
        let line = |finding: &Finding| finding.other.as_ref().map(|other| other.line);
        (a.tool, a.kind, a.line, a.column, line(a)) == (b.tool, b.kind, b.line, b.column, line(b))
    };
    for finding in more {
        if !all.iter().any(|known| same(known, finding)) {
            let mut finding = finding.clone();
            let shown = format!("shown by --completion random:{seed}");
            finding.help = if finding.help.is_empty() { shown } else { format!("{}; {shown}", finding.help) };
            all.push(finding);
        }
    }
}

/// Adds arrays that two launches have left different, each once.
fn add_differences(
    what: &Launch<'_>,
    launches: [&Launched<'_>; 2],
    seed: u64,
    differences: &mut Vec<Difference>,
) -> Result<(), Error> {
    let placed = launches[0].placed.iter().zip(&launches[1].placed);
    for ((here, array), (there, _)) in placed {
        if differences.iter().any(|known| known.array == array.label) {
            continue;
        }
        let (bytes, (dtype, _)) = (array.contents.len(), array.contents.layout());
        let mut at = 0;
        while at < bytes {
            interrupt::check()?;
            let len = (bytes - at).min(CHUNK as u64) as usize;
            let read = |launched: &Launched<'_>, address: u64| {
                let mut chunk = vec![0; len];
                launched.memory.read(address + at, &mut chunk).map_err(|e| out_of_memory(what, &e))?;
                Ok::<_, Error>(chunk)
            };
            let (ours, theirs) = (read(launches[0], *here)?, read(launches[1], *there)?);
            if let Some(first) = ours.iter().zip(&theirs).position(|(a, b)| a != b) {
                let element = (at + first as u64) / dtype.bytes() as u64;
                differences.push(Difference { array: array.label.clone(), element, seed });
                break;
            }
            at += len as u64;
        }
    }
    Ok(())
}
