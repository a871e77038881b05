//! Any text: whatever the parser makes of it, the verifier answers and does not panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use warpwright_ptx::text::parse;
use warpwright_ptx::verify::{register_pressure, verify};

fuzz_target!(|data: &[u8]| {
    let module = parse(&String::from_utf8_lossy(data)).module;
    let messages = || verify(&module).iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(messages(), messages(), "the verifier's answer is not stable");
    for function in &module.functions {
        register_pressure(function);
    }
});
