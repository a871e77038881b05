//! The suite must fail on a device that accepts every launch and does nothing.

use warpwright_runtime::Device;
use warpwright_testkit::{Filter, Launches, cases, run_case_with};

use crate::suite::Sample;

fn nothing_passes(sample: Sample) {
    let device = Device::emulator();
    let all = sample.of(cases(&Filter::default()));
    assert!(all.len() > 1000, "{} cases", all.len());
    let passed: Vec<String> = all
        .iter()
        .filter(|case| !case.shape.contains(&0))
        .filter(|case| run_case_with(&device, case, Launches::Skipped).ok)
        .map(ToString::to_string)
        .collect();
    assert!(passed.is_empty(), "{} cases pass without a launch:\n{}", passed.len(), passed.join("\n"));
}

/// References take their time, launches or not.
#[test]
fn nothing_of_a_sample_passes_on_a_device_that_does_nothing() {
    nothing_passes(Sample::OfEach(12));
}

#[test]
#[ignore = "nightly: cases"]
fn nothing_passes_on_a_device_that_does_nothing() {
    nothing_passes(Sample::All);
}
