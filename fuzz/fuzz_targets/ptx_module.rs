//! Any module: its text is accepted and prints to itself, and the verifier does not panic on it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use warpwright_ptx::text::print;
use warpwright_ptx::verify::verify;

#[path = "../../crates/warpwright-ptx/tests/support/generate.rs"]
mod generate;
#[path = "../../crates/warpwright-ptx/examples/fuzz_parse/property.rs"]
mod property;

fuzz_target!(|data: &[u8]| {
    let mut words = data.chunks_exact(4).map(|c| u64::from(u32::from_le_bytes([c[0], c[1], c[2], c[3]])));
    let module = generate::Choices(|| words.next().unwrap_or(0)).module(16);
    verify(&module);
    match property::check(&print(&module)) {
        Ok(accepted) => assert!(accepted, "refused:\n{}", print(&module)),
        Err(problem) => panic!("{problem}"),
    }
});
