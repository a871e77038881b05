//! One file per subcommand: options to engine to output.

pub mod bench;
pub mod check;
pub mod convert;
pub mod demo;
pub mod dequantize;
pub mod devices;
pub mod emit;
pub mod fuzz;
pub mod inspect;
pub mod lint;
pub mod ops;
pub mod prove;
pub mod quantize;
pub mod ranks;
pub mod run;

use warpwright_runtime::{CudaUnavailable, Device, EmulatorConfig, Error as DeviceError, Sanitizers, Target};

use crate::args::Command;
use crate::checkpoint::error::Quoted;
use crate::console::{Console, Progress};
use crate::error::{Error, Outcome};
use crate::interrupt;

/// Runs a command.
///
/// # Errors
/// Why it could not do its work.
pub fn dispatch(command: &Command, console: &mut Console) -> Result<Outcome, Error> {
    match command {
        Command::Devices(args) => devices::run(args, console),
        Command::Ops(args) => ops::run(args, console),
        Command::Emit(args) => emit::run(args, console),
        Command::Check(args) => check::run(args, console),
        Command::Quantize(args) => quantize::run(args, console),
        Command::Dequantize(args) => dequantize::run(args, console),
        Command::Convert(args) => convert::run(args, console),
        Command::Inspect(args) => inspect::run(args, console),
        Command::Demo(args) => demo::run(args, console),
        Command::Run(args) => run::run(args, console),
        Command::Lint(args) => lint::run(args, console),
        Command::Prove(args) => prove::run(args, console),
        Command::Fuzz(args) => fuzz::run(args, console),
        Command::Bench(args) => bench::run(args, console),
    }
}

/// A device for work on real data: the emulator without sanitizers, since the kernels are this project's own, are
/// checked by `warpwright check`, and run several times faster so.
pub(crate) fn open_quiet(name: &str, console: &Console) -> Result<Device, Error> {
    let config = EmulatorConfig { sanitizers: Sanitizers::empty(), ..EmulatorConfig::default() };
    open_with(name, config, console)
}

/// The first GPU. That it cannot be used is said where there is a driver: who has one expects that it is used.
pub(crate) fn first_gpu(console: &Console) -> Option<Device> {
    match Device::cuda(0) {
        Ok(device) => return Some(device),
        Err(DeviceError::NoDriver(CudaUnavailable::NoLibrary)) => {}
        Err(why) => console.note(format_args!("no GPU is used: {why}")),
    }
    None
}

/// The GPU of a name; `None` for the emulator, also where nothing else is there for `auto`.
pub(crate) fn open_gpu(name: &str, console: &Console) -> Result<Option<Device>, Error> {
    match name {
        "auto" => Ok(first_gpu(console)),
        "emulator" => Ok(None),
        _ => Ok(Some(Device::open(name)?).filter(|device| !device.is_emulator())),
    }
}

/// A device by name; if it is an emulator, one that is set up like this and ends its launches when a signal comes.
pub(crate) fn open_with(name: &str, config: EmulatorConfig, console: &Console) -> Result<Device, Error> {
    let config = EmulatorConfig { interrupt: Some(interrupt::token()), ..config };
    let emulated = match name.split_once(':') {
        None if name == "auto" => {
            return Ok(first_gpu(console).unwrap_or_else(|| Device::emulator_with(config)));
        }
        None if name == "emulator" => Some(config.target),
        Some(("emulator", target)) => Target::from_name(target),
        _ => None,
    };
    match emulated {
        Some(target) => Ok(Device::emulator_with(EmulatorConfig { target, ..config })),
        None => Ok(Device::open(name)?),
    }
}

/// A name from a file with nothing in it that a terminal would act on.
pub(crate) fn printable(name: &str) -> String {
    let quoted = Quoted(name).to_string();
    quoted.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\'')).unwrap_or(&quoted).to_owned()
}

impl crate::convert::quantize::Observer for Progress {
    fn begin(&self, tensor: &str) {
        self.describe(&printable(tensor));
    }

    fn advance(&self, bytes: u64) {
        self.step(bytes);
    }
}
