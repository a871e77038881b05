//! The emulator's file tests on a GPU: the same kernels, inputs and expectations. Without a GPU the test says that it is
//! skipped, and fails if `WARPWRIGHT_REQUIRE_GPU=1`.

#[path = "../../warpwright-emu/tests/support/filetest.rs"]
mod filetest;
#[path = "../../warpwright-emu/tests/support/maps.rs"]
mod maps;

use filetest::{File, POISON, files, parse};
use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::text;
use warpwright_runtime::{ArgValue, Device, LaunchStep};

fn run(device: &Device, source: &str, file: &File) -> Result<Vec<u8>, String> {
    let parsed = text::parse(source);
    let kernel = Kernel::new(parsed.module).map_err(|e| e.to_string())?;
    let text = |e: warpwright_runtime::Error| e.to_string();
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
    let filetest::Geometry { grid, block, shared, .. } = file.launch;
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
    let (mut ran, mut other, mut wrong) = (0, Vec::new(), Vec::new());
    for path in files() {
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
    }
    println!("{ran} files ran on {}; for other devices: {other:?}", device.name());
    println!("{} differences\n{}", wrong.len(), wrong.join("\n"));
    assert!(wrong.is_empty(), "{} differences", wrong.len());
}
