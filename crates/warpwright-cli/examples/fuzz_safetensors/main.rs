//! Feeds damaged and random headers to the safetensors reader for a while.
//!
//! ```text
//! cargo run --release -p warpwright-cli --example fuzz_safetensors -- --seconds 600 [--seed N]
//! ```
//!
//! The property of every input: no panic, an error or a header whose tensors lie in the file one behind the other.
//! The input that breaks it is written to `fuzz-failure.bin` in the current folder.

mod property;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use property::check;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

const PIECES: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "\\",
    "\\u0000",
    "\\ud800",
    "\"dtype\"",
    "\"shape\"",
    "\"data_offsets\"",
    "\"__metadata__\"",
    "\"F32\"",
    "\"BF16\"",
    "\"F4\"",
    "\"U8\"",
    "\"I64\"",
    "\"w\"",
    "\"w.absmax\"",
    "0",
    "1",
    "4",
    "8",
    "64",
    "-1",
    "1e9",
    "0.5",
    "4294967296",
    "18446744073709551615",
    "18446744073709551616",
    "null",
    "true",
    " ",
    "\n",
    "{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}",
    "[0,0]",
    "[[[[[[[[",
    "\u{feff}",
    "é",
];

/// A header that is right, as a start for damage.
fn valid(random: &mut Random) -> (String, usize) {
    let mut text = String::from("{\"__metadata__\":{\"format\":\"pt\"}");
    let mut end = 0;
    for tensor in 0..random.below(6) {
        let (rows, columns) = (random.below(5), random.below(9));
        let (dtype, size) = [("F32", 4), ("BF16", 2), ("U8", 1), ("F64", 8)][random.below(4)];
        let start = end;
        end += rows * columns * size;
        text.push_str(&format!(
            ",\"t{tensor}.weight\":{{\"dtype\":\"{dtype}\",\"shape\":[{rows},{columns}],\"data_offsets\":[{start},{end}]}}"
        ));
    }
    text.push('}');
    (text, end)
}

fn input(random: &mut Random) -> Vec<u8> {
    let (mut text, mut data) = valid(random);
    match random.below(4) {
        0 => {}
        1 => {
            // Pieces of JSON in any order.
            text.clear();
            for _ in 0..random.below(40) {
                text.push_str(PIECES[random.below(PIECES.len())]);
            }
        }
        _ => {
            // A piece put in, or a stretch taken out, at a few places.
            for _ in 0..1 + random.below(4) {
                let at = random.below(text.len() + 1);
                if !text.is_char_boundary(at) {
                    continue;
                }
                if random.below(2) == 0 {
                    text.insert_str(at, PIECES[random.below(PIECES.len())]);
                } else {
                    let end = (at + random.below(12)).min(text.len());
                    if text.is_char_boundary(end) {
                        text.replace_range(at..end, "");
                    }
                }
            }
        }
    }
    let mut length = text.len() as u64;
    match random.below(12) {
        0 => length = random.next(),
        1 => length = length.wrapping_add(random.below(9) as u64).wrapping_sub(4),
        2 => data = data.wrapping_add(random.below(9)).saturating_sub(4),
        _ => {}
    }
    let mut bytes = length.to_le_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    for _ in 0..[0, 0, 0, 1, 3][random.below(5)] {
        let at = random.below(bytes.len());
        bytes[at] = random.next() as u8;
    }
    if random.below(10) == 0 {
        bytes.truncate(random.below(bytes.len() + 1));
    }
    bytes
}

fn argument(name: &str, default: u64) -> u64 {
    let mut args = std::env::args().skip_while(|arg| arg != name).skip(1);
    args.next().and_then(|value| value.parse().ok()).unwrap_or(default)
}

fn main() -> ExitCode {
    let (seconds, seed) = (argument("--seconds", 10), argument("--seed", 0));
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let mut random = Random(seed);
    let (mut runs, mut accepted) = (0u64, 0u64);
    while Instant::now() < deadline {
        for _ in 0..1000 {
            let bytes = input(&mut random);
            let outcome =
                std::panic::catch_unwind(|| check(&bytes)).unwrap_or_else(|_| Err("panic".to_owned()));
            match outcome {
                Ok(fine) => accepted += u64::from(fine),
                Err(why) => {
                    let saved = std::fs::write("fuzz-failure.bin", &bytes);
                    eprintln!("after {runs} inputs: {why} (input in fuzz-failure.bin: {saved:?})");
                    return ExitCode::FAILURE;
                }
            }
            runs += 1;
        }
    }
    println!("{runs} inputs in {seconds} s, {accepted} accepted, none broke the reader");
    // A generator whose inputs are all refused, or all accepted, tests little.
    if accepted == 0 || accepted == runs { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
