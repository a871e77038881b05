//! The suite must fail on a device that accepts every launch and does nothing.

use warpwright_runtime::Device;
use warpwright_testkit::{Filter, Launches, cases, run_case_with};

#[test]
fn nothing_passes_on_a_device_that_does_nothing() {
    let device = Device::emulator();
    let passed: Vec<String> = cases(&Filter::default())
        .iter()
        .filter(|case| !case.shape.contains(&0))
        .filter(|case| run_case_with(&device, case, Launches::Skipped).ok)
        .map(ToString::to_string)
        .collect();
    assert!(passed.is_empty(), "{} cases pass without a launch:\n{}", passed.len(), passed.join("\n"));
}
