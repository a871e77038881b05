//! The emulator's file tests on a GPU: the same kernels, inputs and expectations. Without a GPU the test says that it is
//! skipped, and fails if `WARPWRIGHT_REQUIRE_GPU=1`.

#[path = "../../warpwright-emu/tests/support/filetest.rs"]
mod filetest;
#[path = "../../warpwright-emu/tests/support/maps.rs"]
mod maps;

use std::process::Command;

use filetest::{File, POISON, files, parse};
use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::text;
use warpwright_runtime::{ArgValue, Device, Error, LaunchStep};

/// The environment variable with the number of the first file to run.
const FIRST: &str = "WARPWRIGHT_FIRST_FILE";

fn run(device: &Device, source: &str, file: &File) -> Result<Vec<u8>, String> {
    let mut module = text::parse(source).module;
    let filetest::Geometry { grid, block, cluster, shared } = file.launch;
    if cluster != [1; 3] {
        module.functions.iter_mut().for_each(|function| function.directives.cluster = Some(cluster));
    }
    let kernel = Kernel::new(module).map_err(|e| e.to_string())?;
    let text = |e: Error| e.to_string();
    let stream = device.stream().map_err(text)?;
    let mut buffers = Vec::new();
    for i in 0..file.args.len() {
        let data = file.argument(i);
        let mut buffer = device.alloc(data.len() as u64).map_err(text)?;
        buffer.write(0, &data).map_err(text)?;
        buffers.push(buffer);
    }
    let mut data = vec![POISON; file.result_bytes()];
    let mut out = device.alloc(data.len() as u64).map_err(text)?;
    out.write(0, &data).map_err(text)?;
    buffers.push(out);
    let addresses: Vec<u64> = buffers.iter().map(warpwright_runtime::Buffer::address).collect();
    let mut args: Vec<ArgValue> = addresses.iter().map(|address| ArgValue::U64(*address)).collect();
    for map in source.lines().filter_map(|line| line.strip_prefix("// map: ")) {
        args.push(ArgValue::TensorMap { map: Box::new(maps::parse_map(map, &addresses)), slot: None });
    }
    let step = LaunchStep::new(kernel, grid, args).with_block(block).with_dynamic_shared(shared);
    stream.launch(&step, &[]).and_then(|()| stream.synchronize()).map_err(text)?;
    if let Some(out) = buffers.last() {
        out.read(0, &mut data).map_err(text)?;
    }
    Ok(data)
}

#[test]
fn instructions_compute_on_the_device_what_the_files_say() {
    let device = match Device::cuda(0) {
        Ok(device) => device,
        Err(why) => {
            let required = std::env::var_os("WARPWRIGHT_REQUIRE_GPU").is_some_and(|v| v == "1");
            assert!(!required, "a GPU is required: {why}");
            println!("skipped: no CUDA device ({why})");
            return;
        }
    };
    // A fault costs a process its device: another one goes on behind the file.
    let first = std::env::var(FIRST).ok().and_then(|n| n.parse().ok()).unwrap_or(0);
    let (mut ran, mut other, mut wrong) = (0, Vec::new(), Vec::new());
    for (number, path) in files().into_iter().enumerate().skip(first) {
        let source = std::fs::read_to_string(&path).expect("a readable file");
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let file = parse(&source);
        if !text::parse(&source).module.target.runs_on(device.sm()) {
            other.push(name);
            continue;
        }
        ran += 1;
        match run(&device, &source, &file) {
            Ok(results) => wrong.extend(file.differences(&results).iter().map(|d| format!("{name}: {d}"))),
            Err(error) => wrong.push(format!("{name}: {error}")),
        }
        if device.synchronize().is_err() {
            let mut rest = Command::new(std::env::current_exe().expect("this test"));
            rest.arg("--nocapture").env(FIRST, (number + 1).to_string());
            if !rest.status().is_ok_and(|status| status.success()) {
                wrong.push("differences in the files behind it".to_owned());
            }
            break;
        }
    }
    println!("{ran} files ran on {}; for other devices: {other:?}", device.name());
    wrong.dedup_by_key(|line| line.split(": ").next().map(str::to_owned));
    println!("{} files differ:\n{}", wrong.len(), wrong.join("\n"));
    assert!(wrong.is_empty(), "{} files differ", wrong.len());
}
