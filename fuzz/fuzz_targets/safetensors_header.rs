//! Any bytes: the safetensors reader does not panic, and a header that it accepts is sound.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/warpwright-cli/examples/fuzz_safetensors/property.rs"]
mod property;

fuzz_target!(|data: &[u8]| {
    if let Err(problem) = property::check(data) {
        panic!("{problem}");
    }
});
