//! The cases in the emulator, with every sanitizer.

use warpwright_ptx::Target;
use warpwright_runtime::{Device, EmulatorConfig, Sanitizers};
use warpwright_testkit::Scope;

use crate::suite::{self, Sample};

pub(crate) fn device(sm: u32) -> Device {
    let config = EmulatorConfig { target: Target::sm(sm), ..EmulatorConfig::default() };
    assert_eq!(config.sanitizers, Sanitizers::all());
    Device::emulator_with(config)
}

/// Each eighth reaches every configuration of `gemm`: there are nine cases of each that is asked for by name.
#[test]
fn a_sample_of_cases() {
    suite::run(&device(90), Scope::Quick, Sample::OfLong(8));
}

/// Of targets whose kernels differ from those of the newest data-center GPU.
fn a_sample_for(sm: u32) {
    suite::run(&device(sm), Scope::Quick, Sample::OfEach(48));
}

/// No `.NaN` on `min` and `max`, and no bf16 conversions.
#[test]
fn a_sample_of_cases_for_sm_75() {
    a_sample_for(75);
}

/// No warpgroups and no clusters.
#[test]
fn a_sample_of_cases_for_sm_80() {
    a_sample_for(80);
}

/// The same with the newest instructions beside them.
#[test]
fn a_sample_of_cases_for_sm_120() {
    a_sample_for(120);
}

#[test]
#[ignore = "nightly: cases"]
fn every_case() {
    suite::run(&device(90), Scope::Full, Sample::All);
}

#[test]
#[ignore = "nightly: cases"]
fn every_kind_of_case_for_other_targets() {
    for sm in [75, 80, 120] {
        suite::run(&device(sm), Scope::Quick, Sample::All);
    }
}
