//! The PTX cases on devices: a few in the emulator, all of them on a GPU. Without one that part is skipped in so many
//! words, and fails under `WARPWRIGHT_REQUIRE_GPU=1`.

use warpwright_runtime::Device;
use warpwright_testkit::ptx_cases::{PtxCase, mma, moves, wgmma, wmma};
use warpwright_testkit::run_ptx_case;

fn check(device: &Device, cases: impl Iterator<Item = PtxCase>) {
    let mut failed = Vec::new();
    for case in cases {
        match run_ptx_case(device, &case) {
            Ok(differences) => failed.extend(differences),
            Err(error) => failed.push(format!("{}: {error}", case.name)),
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

fn cases() -> impl Iterator<Item = PtxCase> {
    mma::cases().into_iter().chain(moves::cases()).chain(wgmma::cases()).chain(wmma::cases())
}

#[test]
fn some_cases_in_the_emulator() {
    check(&Device::emulator(), cases().step_by(40));
}

#[test]
fn every_case_on_the_gpu() {
    match Device::cuda(0) {
        Ok(device) => check(&device, cases()),
        Err(e) => {
            let required = std::env::var_os("WARPWRIGHT_REQUIRE_GPU").is_some_and(|v| v == "1");
            assert!(!required, "WARPWRIGHT_REQUIRE_GPU=1, but there is no usable GPU: {e}");
            eprintln!("skipped: no usable GPU ({e})");
        }
    }
}
