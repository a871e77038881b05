//! Mutates the file tests for a while and holds parser and printer against [`property::check`]. Needs no nightly
//! compiler:
//!
//! ```text
//! cargo run --release -p warpwright-ptx --example fuzz_parse -- --seconds 60 [--seed 1] [FOLDER...]
//! ```
//!
//! A failing input is written to `fuzz-failure.ptx` in the temporary folder, and the process exits with 1.

mod property;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The slowest that a text of at most [`LONGEST`] bytes may be, with much room for a busy machine.
const SLOWEST: Duration = Duration::from_secs(2);
/// Mutated texts are cut to this many bytes.
const LONGEST: usize = 1 << 16;

/// SplitMix64: small, and good enough to choose mutations.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n.max(1) as u64).unwrap_or(0)
    }
}

struct Corpus {
    texts: Vec<String>,
    /// Lines and words of all texts, to splice in.
    lines: Vec<String>,
    words: Vec<String>,
}

impl Corpus {
    fn read(folders: &[PathBuf]) -> std::io::Result<Self> {
        let mut texts = Vec::new();
        for folder in folders {
            for entry in std::fs::read_dir(folder)? {
                let path = entry?.path();
                if path.extension().is_some_and(|e| e == "ptx" || e == "canonical") {
                    texts.push(String::from_utf8_lossy(&std::fs::read(&path)?).into_owned());
                }
            }
        }
        texts.sort();
        let lines: Vec<String> = texts.iter().flat_map(|t| t.lines()).map(str::to_owned).collect();
        let extra =
            ["0x7FFFFFFFFFFFFFFF", "18446744073709551615", "-", "{", "}", "%r<4294967295>", "_", "::", "%"];
        let mut words: Vec<String> = (texts.iter())
            .flat_map(|t| t.split(|c: char| !(c.is_ascii_alphanumeric() || "%._$:".contains(c))))
            .filter(|w| !w.is_empty())
            .map(str::to_owned)
            .chain(extra.map(str::to_owned))
            .collect();
        words.sort();
        words.dedup();
        Ok(Self { texts, lines, words })
    }

    fn mutate(&self, random: &mut Random) -> String {
        let mut bytes = self.texts[random.below(self.texts.len())].clone().into_bytes();
        for _ in 0..1 + random.below(6) {
            let at = random.below(bytes.len() + 1);
            let end = (at + 1 + random.below(12)).min(bytes.len());
            match random.below(9) {
                0 => drop(bytes.splice(at..end, std::iter::empty())),
                1 => drop(bytes.splice(at..at, [(random.next() & 0x7F) as u8])),
                2 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
                3 => {
                    let copy = bytes[at..end].to_vec();
                    drop(bytes.splice(at..at, copy));
                }
                4 | 5 => {
                    // One word for another: stays close to the grammar.
                    let is_word = |b: &u8| b.is_ascii_alphanumeric() || b"%._$".contains(b);
                    let from = bytes[..at].iter().rposition(|b| !is_word(b)).map_or(0, |n| n + 1);
                    let to = bytes[at..].iter().position(|b| !is_word(b)).map_or(bytes.len(), |n| at + n);
                    let word = &self.words[random.below(self.words.len())];
                    drop(bytes.splice(from..to, word.bytes()));
                }
                6 | 7 => {
                    // A line from anywhere, in place of one or before it.
                    let from = bytes[..at].iter().rposition(|b| *b == b'\n').map_or(0, |n| n + 1);
                    let to = bytes[at..].iter().position(|b| *b == b'\n').map_or(bytes.len(), |n| at + n);
                    let mut line = self.lines[random.below(self.lines.len())].clone();
                    line.push('\n');
                    drop(bytes.splice(from..if random.below(2) == 0 { to } else { from }, line.into_bytes()));
                }
                _ => {
                    // Two lines change places.
                    let mut lines: Vec<&[u8]> = bytes.split(|b| *b == b'\n').collect();
                    let (a, b) = (random.below(lines.len()), random.below(lines.len()));
                    lines.swap(a, b);
                    bytes = lines.join(&b'\n');
                }
            }
            bytes.truncate(LONGEST);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

fn run(seconds: u64, seed: u64, corpus: &Corpus) -> Result<(), (String, String)> {
    let (mut random, start) = (Random(seed), Instant::now());
    let (mut executions, mut accepted, mut bytes) = (0u64, 0u64, 0u64);
    while start.elapsed() < Duration::from_secs(seconds) {
        let text = corpus.mutate(&mut random);
        let before = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| property::check(&text)));
        let took = before.elapsed();
        let problem = match outcome {
            Err(_) => "panic".to_owned(),
            Ok(Err(problem)) => problem,
            Ok(Ok(_)) if took > SLOWEST => format!("{took:?} for {} bytes", text.len()),
            Ok(Ok(fine)) => {
                executions += 1;
                accepted += u64::from(fine);
                bytes += text.len() as u64;
                continue;
            }
        };
        return Err((text, problem));
    }
    let rate = executions / start.elapsed().as_secs().max(1);
    println!(
        "{executions} texts ({rate}/s, {} MB), {accepted} accepted, none at fault, seed {seed}",
        bytes >> 20
    );
    Ok(())
}

fn main() -> ExitCode {
    let (mut seconds, mut seed, mut folders) = (10, 1, Vec::new());
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = || args.next().and_then(|n| n.parse().ok());
        match arg.as_str() {
            "--seconds" => seconds = number().unwrap_or(seconds),
            "--seed" => seed = number().unwrap_or(seed),
            _ => folders.push(PathBuf::from(arg)),
        }
    }
    if folders.is_empty() {
        let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/filetests");
        folders = vec![files.join("parse"), files.join("roundtrip")];
    }
    let corpus = match Corpus::read(&folders) {
        Ok(corpus) if !corpus.texts.is_empty() => corpus,
        Ok(_) => {
            eprintln!("no .ptx files in {folders:?}");
            return ExitCode::FAILURE;
        }
        Err(error) => {
            eprintln!("cannot read {folders:?}: {error}");
            return ExitCode::FAILURE;
        }
    };
    match run(seconds, seed, &corpus) {
        Ok(()) => ExitCode::SUCCESS,
        Err((text, problem)) => {
            let path = std::env::temp_dir().join("fuzz-failure.ptx");
            eprintln!("{problem}\nseed {seed}; the text is in {}", path.display());
            if let Err(error) = std::fs::write(&path, &text) {
                eprintln!("which could not be written: {error}\n{text}");
            }
            ExitCode::FAILURE
        }
    }
}
