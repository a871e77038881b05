//! A launch in the emulator, of the very text that was given.

use warpwright_emu::{LaunchConfig, LaunchError, Memory, Options, Program, launch};
use warpwright_ptx::pack_args;

use super::argument::Contents;
use super::outputs::Output;
use super::{Aftermath, Launch, sanitizers};
use crate::args::ReportFormat;
use crate::error::Error;
use crate::interrupt;

pub(super) fn run(what: &Launch<'_>) -> Result<Aftermath, Error> {
    let failed = |message: String, help: &str| Error::usage(format!("{}: {message}", what.context()), help);
    let program = Program::load(what.source)
        .map_err(|error| failed(error.to_string(), "the emulator runs what its documentation lists"))?;
    let memory = Memory::new();
    let out_of_memory = |error: warpwright_emu::MemoryError| failed(error.to_string(), "smaller arrays");
    let mut placed = Vec::new();
    for array in what.arguments.arrays() {
        let address = memory.alloc(array.contents.len(), &array.label).map_err(out_of_memory)?;
        if let Contents::Given(file) = &array.contents {
            file.for_each_chunk(|at, chunk| {
                interrupt::check()?;
                memory.write(address + at, chunk).map_err(out_of_memory)
            })?;
        }
        placed.push((address, array));
    }
    let addresses: Vec<u64> = placed.iter().map(|(address, _)| *address).collect();
    let function = program
        .entry(what.entry)
        .ok_or_else(|| failed("was not loaded".to_owned(), "see `warpwright lint`"))?
        .function();
    let params = pack_args(function, &what.arguments.values(&addresses))
        .map_err(|error| failed(error.to_string(), "--arg in the order of the kernel's parameters"))?;
    let config = LaunchConfig {
        grid: what.args.grid,
        block: what.args.block,
        dynamic_shared: what.args.shared,
        cluster: what.args.cluster.or(function.directives.cluster).unwrap_or([1; 3]),
    };
    let options = Options {
        sanitizers: sanitizers(what.args.sanitize.as_deref())?,
        completion: what.args.completion.0,
        seed: what.args.completion.1,
        max_resident_blocks: what.args.resident,
        max_steps: what.args.limits.max_steps.unwrap_or(0),
        deadline: what.deadline(),
        interrupt: Some(interrupt::token()),
        counters: what.args.counters
            || what.args.html.is_some()
            || what.args.format.get() == ReportFormat::Json,
        ..Options::default()
    };
    let launched = launch(&program, what.entry, &config, &params, &memory, &options);
    // The fault of an interrupted launch is no finding.
    interrupt::check()?;
    let (report, fault) = match launched {
        Ok(report) => (report, None),
        Err(LaunchError::Fault { fault, report, .. }) => (*report, Some(fault.to_string())),
        Err(error) => return Err(failed(error.to_string(), "check --grid, --block, --cluster and --shared")),
    };
    let mut outputs = Vec::new();
    // A kernel that was ended has not written what it was to write.
    for (address, array) in placed.iter().filter(|_| fault.is_none()) {
        if let Some(path) = &array.output {
            let read = |at, chunk: &mut [u8]| memory.read(address + at, chunk).map_err(out_of_memory);
            let (layout, bytes) = (array.contents.layout(), array.contents.len());
            outputs.push(Output::write(path, what.args.force, layout, bytes, read)?);
        }
    }
    let counters = options.counters.then_some(report.counters);
    Ok(Aftermath {
        outputs,
        findings: report.findings,
        counters,
        lines: report.lines,
        printed: report.printed,
        unfreed: report.unfreed,
        fault,
    })
}
