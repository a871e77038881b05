//! The suite in the emulator, with every sanitizer.

mod suite;

use warpwright_ptx::Target;
use warpwright_runtime::{Device, EmulatorConfig, Sanitizers};
use warpwright_testkit::Scope;

#[test]
fn every_case_on_the_emulator() {
    let config = EmulatorConfig::default();
    assert_eq!(config.sanitizers, Sanitizers::all());
    suite::run(&Device::emulator_with(config), Scope::Full);
}

/// Code for the oldest target takes other paths: no `.NaN` on `min` and `max`, no bf16 conversions.
#[test]
fn every_kind_of_case_for_turing() {
    let config = EmulatorConfig { target: Target::sm(75), ..EmulatorConfig::default() };
    suite::run(&Device::emulator_with(config), Scope::Quick);
}
