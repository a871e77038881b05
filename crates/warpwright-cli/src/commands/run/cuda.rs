//! A launch on a GPU.

use std::time::{Duration, Instant};

use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::text;
use warpwright_runtime::{Device, Error as DeviceError, LaunchStep, Stream};

use super::super::check::refuse_max_steps;
use super::argument::Contents;
use super::outputs::Output;
use super::{Aftermath, Launch, sanitizers};
use crate::error::Error;
use crate::interrupt;

/// The bytes of an output before the run: NaN in every floating-point type.
const POISON: u8 = 0xff;

/// How long the host sleeps between two looks at a kernel that runs for long.
const NAP: Duration = Duration::from_millis(1);

/// How waiting for a kernel went.
enum Waited {
    Done,
    /// A signal came, or the time was up, after so long; the kernel runs on.
    TooLong(Duration),
}

/// Waits for a stream, and looks for signals and at the clock meanwhile, which the driver's own waiting does not.
fn wait(stream: &Stream, deadline: Option<Instant>) -> Result<Waited, DeviceError> {
    let begun = Instant::now();
    while !stream.is_idle()? {
        let over = deadline.is_some_and(|deadline| Instant::now() >= deadline);
        if over || interrupt::signal().is_some() {
            return Ok(Waited::TooLong(begun.elapsed()));
        }
        if begun.elapsed() > NAP {
            std::thread::sleep(NAP);
        }
    }
    stream.synchronize().map(|()| Waited::Done)
}

pub(super) fn run(what: &Launch<'_>, device: &Device) -> Result<Aftermath, Error> {
    if what.args.sanitize.is_some() && !sanitizers(what.args.sanitize.as_deref())?.is_empty() {
        return Err(Error::usage("--sanitize: the sanitizers run in the emulator", "--device emulator"));
    }
    if what.args.limits.max_steps.is_some() {
        return Err(refuse_max_steps());
    }
    let mut module = text::parse(what.source).module;
    module.retain_entry(what.entry);
    let entry = module.functions.iter_mut().find(|function| function.name == what.entry);
    if let (Some(cluster), Some(function)) = (what.args.cluster, entry) {
        let fixed = *function.directives.cluster.get_or_insert(cluster);
        if fixed != cluster {
            let message = format!("{}: requires clusters of {fixed:?}, got {cluster:?}", what.context());
            return Err(Error::usage(message, "leave out --cluster"));
        }
    }
    let kernel = Kernel::new(module)
        .map_err(|error| Error::usage(format!("{}: {error}", what.context()), "see `warpwright lint`"))?;
    let stream = device.stream()?;
    let mut placed = Vec::new();
    for array in what.arguments.arrays() {
        let mut buffer = device.alloc_named(array.contents.len(), &array.label)?;
        match &array.contents {
            Contents::Given(file) => file.for_each_chunk(|at, chunk| -> Result<(), Error> {
                interrupt::check()?;
                Ok(buffer.write(at, chunk)?)
            })?,
            Contents::Fresh { bytes, .. } => stream.fill(&mut buffer, 0, POISON, *bytes)?,
        }
        placed.push((buffer, array));
    }
    let addresses: Vec<u64> = placed.iter().map(|(buffer, _)| buffer.address()).collect();
    let on = |error| Error::on(what.context())(error);
    let step = LaunchStep::new(kernel, what.args.grid, what.arguments.values(&addresses))
        .with_block(what.args.block)
        .with_dynamic_shared(what.args.shared);
    let deadline = what.deadline();
    let launched = stream.launch(&step, &[]).and_then(|()| wait(&stream, deadline));
    let fault = match launched {
        Ok(Waited::Done) => None,
        Ok(Waited::TooLong(elapsed)) => {
            // Freeing memory that a kernel uses waits for the kernel.
            interrupt::abandon();
            std::mem::forget(placed);
            interrupt::check()?;
            let fault = format!("was not over at the time limit, after {:.3} s", elapsed.as_secs_f64());
            return Ok(Aftermath { fault: Some(fault), ..Aftermath::default() });
        }
        Err(DeviceError::Fault(fault)) => Some(fault.to_string()),
        Err(error) => return Err(on(error)),
    };
    let mut outputs = Vec::new();
    for (buffer, array) in placed.iter().filter(|_| fault.is_none()) {
        if let Some(path) = &array.output {
            let read = |at, chunk: &mut [u8]| Ok(buffer.read(at, chunk)?);
            let (layout, bytes) = (array.contents.layout(), array.contents.len());
            outputs.push(Output::write(path, what.args.force, layout, bytes, read)?);
        }
    }
    Ok(Aftermath { outputs, fault, ..Aftermath::default() })
}
