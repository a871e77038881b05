//! Random kernels: the same results in the emulator whatever the order of warps and the sanitizers, no findings, and the
//! same on a GPU, bit for bit. `WARPWRIGHT_SEEDS=FIRST..LAST` chooses which; with `WARPWRIGHT_REDUCE=FOLDER` what differs
//! on the GPU is cut down to the instructions that matter and written there.

#[allow(unreachable_pub, reason = "the module is public where it belongs")]
#[path = "../../warpwright-testkit/src/random.rs"]
mod random;

use random::{Program, program};
use warpwright_emu::Sanitizers;
use warpwright_ptx::kernel::Kernel;
use warpwright_ptx::text;
use warpwright_runtime::{ArgValue, Device, EmulatorConfig, LaunchStep};

fn seeds() -> std::ops::Range<u64> {
    let Ok(range) = std::env::var("WARPWRIGHT_SEEDS") else { return 0..150 };
    let (first, last) = range.split_once("..").expect("FIRST..LAST");
    first.parse().expect("a number")..last.parse().expect("a number")
}

/// The words that the kernel stored, and those that it added up.
fn run(device: &Device, program: &Program) -> Result<Vec<u8>, String> {
    let parsed = text::parse(&program.ptx);
    if parsed.has_errors() {
        return Err(format!("{:?}", parsed.diagnostics));
    }
    let kernel = Kernel::new(parsed.module).map_err(|e| e.to_string())?;
    let go = || {
        let mut buffers = Vec::new();
        for data in [program.input.clone(), vec![0; 4 * program.counters], vec![0xA5; program.output_bytes]] {
            let mut buffer = device.alloc(data.len() as u64)?;
            buffer.write(0, &data)?;
            buffers.push(buffer);
        }
        let args = buffers.iter().map(|b| ArgValue::U64(b.address())).collect();
        let step = LaunchStep::new(kernel, [program.grid, 1, 1], args).with_block([program.block, 1, 1]);
        let stream = device.stream()?;
        stream.launch(&step, &[])?;
        stream.synchronize()?;
        let mut out = Vec::new();
        for buffer in &buffers[1..] {
            let mut data = vec![0; buffer.bytes() as usize];
            buffer.read(0, &mut data)?;
            out.extend(data);
        }
        Ok(out)
    };
    go().map_err(|e: warpwright_runtime::Error| e.to_string())
}

/// Whether what takes a carry follows what gives one; nothing else says what the carry is.
fn carries(ptx: &str) -> bool {
    let takes = |line: &str| ["addc.", "subc."].iter().any(|op| line.trim_start().starts_with(op));
    let lines: Vec<&str> = ptx.lines().collect();
    lines.windows(2).all(|pair| !takes(pair[1]) || pair[0].contains(".cc."))
}

/// Leaves out as many lines as can be while the emulator finds nothing wrong and the GPU still disagrees.
fn reduce(emulator: &Device, gpu: &Device, program: &Program) -> Program {
    let mut smallest = program.clone();
    let mut size = program.ptx.lines().count() / 4;
    while size > 0 {
        let mut first = 0;
        let mut smaller = false;
        loop {
            let lines: Vec<&str> = smallest.ptx.lines().collect();
            if first >= lines.len() {
                break;
            }
            let rest = lines[..first].iter().chain(lines.iter().skip(first + size));
            let ptx: String = rest.map(|line| format!("{line}\n")).collect();
            let candidate = Program { ptx, ..smallest.clone() };
            let differs = carries(&candidate.ptx)
                && run(emulator, &candidate).is_ok_and(|want| run(gpu, &candidate) != Ok(want));
            if differs {
                smallest = candidate;
                smaller = true;
            } else {
                first += size;
            }
        }
        if !smaller {
            size /= 2;
        }
    }
    smallest
}

/// Writes a program, its input and what the emulator computes.
fn keep(folder: &str, seed: u64, emulator: &Device, program: &Program) -> std::io::Result<()> {
    let write = |kind: &str, data: &[u8]| std::fs::write(format!("{folder}/{seed}.{kind}"), data);
    std::fs::create_dir_all(folder)?;
    write("ptx", program.ptx.as_bytes())?;
    write("input", &program.input)?;
    write("want", &run(emulator, program).unwrap_or_default())
}

#[test]
fn every_device_computes_the_same() {
    // What a reduction makes may never end.
    let emulator = Device::emulator_with(EmulatorConfig { max_steps: 1 << 20, ..EmulatorConfig::default() });
    let plain = Device::emulator_with(EmulatorConfig {
        sanitizers: Sanitizers::empty(),
        seed: 11,
        ..EmulatorConfig::default()
    });
    let gpu = match Device::cuda(0) {
        Ok(device) if device.sm() >= 80 => Some(device),
        _ => {
            let required = std::env::var_os("WARPWRIGHT_REQUIRE_GPU").is_some_and(|v| v == "1");
            assert!(!required, "a GPU of compute capability 8.0 is required");
            println!("in the emulator only: no GPU");
            None
        }
    };
    let mut wrong = Vec::new();
    for seed in seeds() {
        let program = program(seed);
        let want = match run(&emulator, &program) {
            Ok(want) => want,
            Err(error) => {
                wrong.push(format!("seed {seed}: {error}"));
                continue;
            }
        };
        for (name, device) in [("without sanitizers", Some(&plain)), ("on the GPU", gpu.as_ref())] {
            let Some(device) = device else { continue };
            match run(device, &program) {
                Ok(got) if got == want => {}
                Ok(got) => {
                    let at = got.iter().zip(&want).position(|(a, b)| a != b).unwrap_or(0) / 4;
                    let word = |x: &[u8]| {
                        u32::from_le_bytes([x[4 * at], x[4 * at + 1], x[4 * at + 2], x[4 * at + 3]])
                    };
                    wrong.push(format!(
                        "seed {seed} ({} x {}): word {at} {name} is {:#x}, not {:#x}",
                        program.grid,
                        program.block,
                        word(&got),
                        word(&want)
                    ));
                    if let (Ok(folder), Some(gpu)) = (std::env::var("WARPWRIGHT_REDUCE"), gpu.as_ref()) {
                        let smallest = reduce(&emulator, gpu, &program);
                        keep(&folder, seed, &emulator, &smallest).expect("the folder can be written");
                    }
                }
                Err(error) => wrong.push(format!("seed {seed} {name}: {error}")),
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {:?}:\n{}",
        wrong.len(),
        seeds(),
        wrong[..wrong.len().min(20)].join("\n")
    );
}
