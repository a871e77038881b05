//! Random kernels: the same results in the emulator whatever the order of warps and the sanitizers, no findings, and the
//! same on a GPU, bit for bit, with and without the optimizations of the driver's compiler. `WARPWRIGHT_SEEDS=FIRST..LAST` chooses
//! which; `warpwright fuzz` cuts what differs down to the instructions that matter.

#[allow(unreachable_pub, dead_code, reason = "the module is public where it belongs")]
#[path = "../../warpwright-testkit/src/random.rs"]
mod random;

#[allow(unreachable_pub, dead_code, reason = "the module is public where it belongs")]
#[path = "../../warpwright-testkit/src/differential.rs"]
mod differential;

use differential::{check, plain, reference, run};
use random::program;
use warpwright_runtime::Device;

fn seeds() -> std::ops::Range<u64> {
    let Ok(range) = std::env::var("WARPWRIGHT_SEEDS") else { return 0..150 };
    let (first, last) = range.split_once("..").expect("FIRST..LAST");
    first.parse().expect("a number")..last.parse().expect("a number")
}

#[test]
fn every_device_computes_the_same() {
    let emulator = reference();
    let mut devices = vec![("without sanitizers".to_owned(), plain())];
    match Device::cuda(0) {
        Ok(device) if device.sm() >= 80 => {
            devices.push(("on the GPU".to_owned(), device));
            let plain = Device::cuda_compiling(0, 0).expect("the GPU is there");
            devices.push(("on the GPU without optimizations".to_owned(), plain));
        }
        _ => {
            let required = std::env::var_os("WARPWRIGHT_REQUIRE_GPU").is_some_and(|v| v == "1");
            assert!(!required, "a GPU of compute capability 8.0 is required");
            println!("in the emulator only: no GPU");
        }
    }
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
        for (name, device) in &devices {
            if let Some(found) = check(device, &program, &want) {
                wrong.push(format!("seed {seed} ({} x {}) {name}: {found}", program.grid, program.block));
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
