//! `devices`: what was found to run on, and why.

use serde_json::json;
use warpwright_runtime::comm::{NcclLibrary, peer_links};
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
    let nccl = NcclLibrary::find();
    let links = peer_links()?;
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
            "nccl": nccl.as_ref().ok().map(|library| json!({
                "version": library.version.to_string(),
                "path": library.path.display().to_string(),
            })),
            "nccl_unavailable": nccl.as_ref().err().map(ToString::to_string),
            "links": links.iter().map(|link| json!({
                "devices": link.devices,
                "access": link.access,
                "atomics": link.atomics,
                "performance_rank": link.performance_rank,
            })).collect::<Vec<_>>(),
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
    match &nccl {
        Ok(library) => {
            let path = library.path.display().to_string();
            console.line(format_args!("NCCL      {} at {}", library.version, Harmless(&path)))?;
        }
        Err(why) => console.line(format_args!("NCCL      not found: {}", Harmless(&why.to_string())))?,
    }
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
    for link in links.iter().filter(|link| link.devices[0] < link.devices[1]) {
        let [from, to] = link.devices;
        let kind = match (link.access, link.atomics) {
            (true, true) => "direct access with atomics, as over NVLink",
            (true, false) => "direct access, as over PCIe",
            (false, _) => "no direct access: copies go through the host",
        };
        console.line(format_args!("cuda:{from} - cuda:{to}: {kind}"))?;
    }
    let reason =
        if chosen.is_emulator() { "there is no GPU that can be used" } else { "it is the first GPU" };
    console.line(format_args!(
        "--device auto runs on {} ({reason}). `run` and `check` have the emulator's sanitizers on; `quantize` and \
         `dequantize` run there without them.",
        chosen.id()
    ))?;
    Ok(Outcome::Clean)
}
