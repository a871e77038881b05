//! `devices`: what was found to run on, and why.

use serde_json::json;
use warpwright_runtime::{Device, DiskCacheStatus, DriverVersion, discover};

use crate::args::DevicesArgs;
use crate::console::Console;
use crate::error::{Error, Outcome};
use crate::paths::Harmless;
use crate::table::Align;
use crate::units::human_bytes;

/// Runs the command.
///
/// # Errors
/// Standard output is gone.
pub fn run(args: &DevicesArgs, console: &mut Console) -> Result<Outcome, Error> {
    let found = discover();
    // Opening the device is the proof that it can be used; finding it is not.
    let opened = Device::cuda(0);
    let why_not = match (&opened, &found.unavailable) {
        (Ok(_), _) => None,
        (Err(_), Some(why)) => Some(why.to_string()),
        (Err(error), None) => Some(error.to_string()),
    };
    let chosen = opened.unwrap_or_else(|_| Device::emulator());
    let cache = DiskCacheStatus::from_environment();
    let ptx = found.driver.and_then(DriverVersion::ptx_version);
    if args.json.json {
        let mut devices: Vec<_> = found
            .devices
            .iter()
            .map(|device| {
                json!({
                    "id": format!("cuda:{}", device.ordinal),
                    "kind": "cuda",
                    "name": device.name,
                    "sm": device.sm,
                    "multiprocessors": device.multiprocessors,
                    "memory": device.memory,
                })
            })
            .collect();
        let emulator = Device::emulator();
        devices.push(
            json!({"id": "emulator", "kind": "emulator", "name": emulator.name(), "sm": emulator.sm()}),
        );
        console.json(&json!({
            "driver": found.driver.map(|driver| driver.to_string()),
            "ptx": ptx.map(|version| version.to_string()),
            "cuda_unavailable": why_not,
            "devices": devices,
            "auto": chosen.id().to_string(),
            "cubin_cache": cache.to_string(),
        }))?;
        return Ok(Outcome::Clean);
    }
    let driver = match (found.driver, ptx) {
        (Some(driver), Some(ptx)) => format!("{driver}, reads PTX up to {ptx}"),
        (Some(driver), None) => driver.to_string(),
        (None, _) => "none".to_owned(),
    };
    console.line(format_args!("driver    {driver}"))?;
    if let Some(why) = &why_not {
        console.line(format_args!("CUDA      not used: {why}"))?;
    }
    console.line(format_args!("cubins    {}", Harmless(&cache.to_string())))?;
    let columns =
        [("device", Align::Left), ("name", Align::Left), ("sm", Align::Right), ("memory", Align::Right)];
    let mut table = console.table(&columns);
    for device in &found.devices {
        table.row([
            format!("cuda:{}", device.ordinal),
            device.name.clone(),
            device.sm.to_string(),
            human_bytes(device.memory),
        ]);
    }
    table.row([
        "emulator".to_owned(),
        "PTX in software, with sanitizers".to_owned(),
        "any".to_owned(),
        "host".to_owned(),
    ]);
    console.line(format_args!("\n{table}\n"))?;
    let reason =
        if chosen.is_emulator() { "there is no GPU that can be used" } else { "it is the first GPU" };
    console.line(format_args!(
        "--device auto runs on {} ({reason}). `run` and `check` have the emulator's sanitizers on; `quantize` and \
         `dequantize` run there without them.",
        chosen.id()
    ))?;
    Ok(Outcome::Clean)
}
