//! The cases in the emulator, with every sanitizer.

use warpwright_ptx::Target;
use warpwright_runtime::{Device, EmulatorConfig, Sanitizers};
use warpwright_testkit::Scope;

use crate::suite::{self, Sample};

/// Targets whose kernels differ from those of the newest data-center GPU: no `.NaN` on `min` and `max` and no bf16
/// conversions on the oldest, no warpgroups and no clusters on any.
const OTHERS: [u32; 3] = [75, 80, 120];

fn device(sm: u32) -> Device {
    let config = EmulatorConfig { target: Target::sm(sm), ..EmulatorConfig::default() };
    assert_eq!(config.sanitizers, Sanitizers::all());
    Device::emulator_with(config)
}

/// Each eighth reaches every configuration of `gemm`: there are nine cases of each that is asked for by name.
#[test]
fn a_sample_of_cases() {
    suite::run(&device(90), Scope::Quick, Sample::OfLong(8));
}

#[test]
fn a_sample_of_cases_for_other_targets() {
    for sm in OTHERS {
        suite::run(&device(sm), Scope::Quick, Sample::OfEach(16));
    }
}

#[test]
#[ignore = "nightly: cases"]
fn every_case() {
    suite::run(&device(90), Scope::Full, Sample::All);
}

#[test]
#[ignore = "nightly: cases"]
fn every_kind_of_case_for_other_targets() {
    for sm in OTHERS {
        suite::run(&device(sm), Scope::Quick, Sample::All);
    }
}
