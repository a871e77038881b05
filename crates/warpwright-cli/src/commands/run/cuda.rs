//! A launch on a GPU.

use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::text;
use warpwright_runtime::{Device, Error as DeviceError, LaunchStep};

use super::argument::{Argument, Contents};
use super::{Aftermath, Launch, sanitizers};
use crate::error::Error;

/// What an output holds before the run: NaN in every floating-point type.
const POISON: u8 = 0xff;

pub(super) fn run(what: &Launch<'_>, device: &Device) -> Result<Aftermath, Error> {
    if what.args.sanitize.is_some() && !sanitizers(what.args.sanitize.as_deref())?.is_empty() {
        return Err(Error::usage("--sanitize: the sanitizers run in the emulator", "--device emulator"));
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
    for argument in &what.arguments {
        if let Argument::Array(array) = argument {
            let mut buffer = device.alloc_named(array.contents.len() as u64, &array.label)?;
            match &array.contents {
                Contents::Given(given) => buffer.write(0, &given.bytes)?,
                Contents::Fresh { bytes, .. } => stream.fill(&mut buffer, 0, POISON, *bytes as u64)?,
            }
            placed.push((buffer, array));
        }
    }
    let addresses: Vec<u64> = placed.iter().map(|(buffer, _)| buffer.address()).collect();
    let on = |error| Error::on(what.context())(error);
    let step = LaunchStep::new(kernel, what.args.grid, what.values(&addresses))
        .with_block(what.args.block)
        .with_dynamic_shared(what.args.shared);
    let launched = stream.launch(&step, &[]).and_then(|()| stream.synchronize());
    let fault = match launched {
        Ok(()) => None,
        Err(DeviceError::Fault(fault)) => Some(fault.to_string()),
        Err(error) => return Err(on(error)),
    };
    let mut outputs = Vec::new();
    for (buffer, array) in placed.iter().filter(|_| fault.is_none()) {
        if let Some(path) = &array.output {
            let mut bytes = vec![0; array.contents.len()];
            buffer.read(0, &mut bytes)?;
            outputs.push((path.clone(), array.contents.with_bytes(bytes)));
        }
    }
    Ok(Aftermath { outputs, fault, ..Aftermath::default() })
}
