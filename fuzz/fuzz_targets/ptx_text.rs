//! Any text: the parser does not panic, and what it accepts prints and parses to the same again.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/warpwright-ptx/examples/fuzz_parse/property.rs"]
mod property;

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    if let Err(problem) = property::check(&text) {
        panic!("{problem}");
    }
});
