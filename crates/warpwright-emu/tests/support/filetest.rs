//! The format of the kernels in `tests/filetests/run`: what they are given and what they say they compute. Emulator and
//! device read the same files.

#![allow(dead_code, reason = "every harness uses a part")]

use std::path::{Path, PathBuf};

use warpwright_ptx::float16::{bf16_bits, f16_bits};

/// Contents of results before the launch.
pub(crate) const POISON: u8 = 0xA5;

/// A value as bits, and how far a result may be from it.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) inputs: Vec<Vec<u64>>,
    pub(crate) results: Vec<u64>,
    pub(crate) ulp: u64,
}

pub(crate) struct File {
    pub(crate) args: Vec<String>,
    pub(crate) result: String,
    pub(crate) cases: Vec<Case>,
    /// Threads of a case.
    pub(crate) lanes: usize,
    pub(crate) launch: Geometry,
}

impl File {
    /// All cases run in one launch, except where one case fills a grid.
    pub(crate) fn threads(&self) -> usize {
        self.cases.len() * self.lanes
    }
}

/// How a file is launched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) cluster: [u32; 3],
    /// Dynamic shared memory in bytes.
    pub(crate) shared: u32,
}

impl Geometry {
    fn block_of(threads: usize) -> Self {
        Self { grid: [1; 3], block: [threads as u32, 1, 1], cluster: [1; 3], shared: 0 }
    }
}

/// `launch: grid=4 block=64 cluster=2,1,1 shared=1024`
fn parse_launch(text: &str) -> Geometry {
    let mut config = Geometry::block_of(32);
    for word in text.split_whitespace() {
        let (key, value) = word.split_once('=').expect("key=value");
        let mut triple = [1; 3];
        for (slot, part) in triple.iter_mut().zip(value.split(',')) {
            *slot = part.parse().expect("a number");
        }
        match key {
            "grid" => config.grid = triple,
            "block" => config.block = triple,
            "cluster" => config.cluster = triple,
            "shared" => config.shared = triple[0],
            other => panic!("unknown launch key {other}"),
        }
    }
    config
}

/// The values of a column: `v`, `v*n` for n times v, `a..b` for the integers from a to before b.
fn column(ty: &str, text: &str) -> Vec<u64> {
    text.split_whitespace()
        .flat_map(|word| {
            if let Some((from, to)) = word.split_once("..") {
                (value(ty, from)..value(ty, to)).collect()
            } else if let Some((v, n)) = word.split_once('*') {
                vec![value(ty, v); n.parse().expect("a count")]
            } else {
                vec![value(ty, word)]
            }
        })
        .collect()
}

pub(crate) fn bytes(ty: &str) -> usize {
    match ty {
        "u8" | "s8" => 1,
        "u16" | "s16" | "f16" | "bf16" => 2,
        "u32" | "s32" | "f32" => 4,
        "u64" | "s64" | "f64" => 8,
        other => panic!("unknown type {other}"),
    }
}

/// Decimal, `0x1.8p1` and the words of the README, as an f64, which holds every value of the narrower types.
fn float(text: &str) -> f64 {
    let (sign, magnitude) = text.strip_prefix('-').map_or((1.0, text), |rest| (-1.0, rest));
    let value = if magnitude == "inf" {
        f64::INFINITY
    } else if let Some(hex) = magnitude.strip_prefix("0x") {
        let (mantissa, exponent) = hex.split_once('p').expect("a binary exponent");
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = u64::from_str_radix(&format!("{whole}{fraction}"), 16).expect("hexadecimal digits");
        let exponent: i32 = exponent.parse().expect("an exponent");
        // Two steps, because the scale alone may be below the smallest f64.
        let shift = exponent - 4 * fraction.len() as i32;
        digits as f64 * 2f64.powi(shift / 2) * 2f64.powi(shift - shift / 2)
    } else {
        magnitude.parse().expect("a number")
    };
    sign * value
}

fn value(ty: &str, text: &str) -> u64 {
    let text = text.trim();
    if let Some(bits) = text.strip_prefix("bits:0x") {
        return u64::from_str_radix(bits, 16).expect("bits");
    }
    match (ty, text) {
        ("f32", "nan") => 0x7FFF_FFFF,
        ("f16" | "bf16", "nan") => 0x7FFF,
        ("f64", "nan") => f64::NAN.to_bits(),
        ("f32", _) => u64::from((float(text) as f32).to_bits()),
        ("f64", _) => float(text).to_bits(),
        ("f16", _) => u64::from(f16_bits(float(text))),
        ("bf16", _) => u64::from(bf16_bits(float(text))),
        _ => {
            let (sign, magnitude) = text.strip_prefix('-').map_or((1, text), |rest| (-1, rest));
            let parsed = match magnitude.strip_prefix("0x") {
                Some(hex) => u64::from_str_radix(hex, 16),
                None => magnitude.parse(),
            };
            let bits = parsed.expect("an integer").wrapping_mul(sign as u64);
            bits & (u64::MAX >> (64 - 8 * bytes(ty)))
        }
    }
}

pub(crate) fn parse(text: &str) -> File {
    let header = |key: &str| {
        let prefix = format!("// {key}: f(");
        text.lines().filter_map(move |l| l.strip_prefix(&prefix).map(str::to_owned)).collect::<Vec<_>>()
    };
    let signature = header("sig").pop().expect("a signature");
    let (args, result) = signature.split_once(") -> ").expect("an arrow");
    let args: Vec<String> = args.split(", ").filter(|a| !a.is_empty()).map(str::to_owned).collect();
    let (run, warp, grid) = (header("run"), header("warp"), header("grid"));
    let kinds = [&run, &warp, &grid].iter().filter(|lines| !lines.is_empty()).count();
    assert!(kinds == 1, "lines of one kind");
    let launch = text.lines().find_map(|l| l.strip_prefix("// launch: ")).map(parse_launch);
    assert!(launch.is_some() != grid.is_empty() && grid.len() < 2, "one `grid` line and its launch");
    let product = |n: [u32; 3]| n.iter().map(|n| *n as usize).product::<usize>();
    let lanes = match launch {
        Some(launch) => product(launch.grid) * product(launch.block),
        None if run.is_empty() => 32,
        None => 1,
    };
    let cases: Vec<Case> = run
        .iter()
        .chain(&warp)
        .chain(&grid)
        .map(|line| {
            let (inputs, results) = line.split_once(") == ").expect("==");
            let (results, ulp) = match results.split_once(" within ") {
                Some((r, w)) => (r, w.trim_end_matches(" ulp").parse().expect("a number of ulp")),
                None => (results, 0),
            };
            let inputs: Vec<Vec<u64>> = inputs.split(", ").zip(&args).map(|(t, ty)| column(ty, t)).collect();
            let case = Case { inputs, results: column(result, results), ulp };
            assert!(case.inputs.len() == args.len(), "a value for every argument");
            assert!(case.inputs.iter().chain([&case.results]).all(|c| c.len() == lanes), "{lanes} lanes");
            case
        })
        .collect();
    // Collectives need whole warps, and every warp of `bar.red` is a block.
    let launch = launch.unwrap_or_else(|| Geometry::block_of(cases.len() * lanes));
    File { args, result: result.to_owned(), cases, lanes, launch }
}

/// Whether a result is the expected one.
pub(crate) fn agrees(ty: &str, got: u64, want: u64, ulp: u64) -> bool {
    if ty == "f64" && f64::from_bits(want).is_nan() {
        return f64::from_bits(got).is_nan();
    }
    // Neighbouring floats of one sign have neighbouring bits.
    got == want || (ulp > 0 && got.abs_diff(want) <= ulp)
}

pub(crate) fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../warpwright-emu/tests/filetests/run");
    let entries = std::fs::read_dir(folder).expect("the folder of file tests");
    let mut files: Vec<PathBuf> = entries
        .map(|e| e.expect("an entry").path())
        .filter(|p| p.extension().is_some_and(|e| e == "ptx"))
        .collect();
    files.sort();
    assert!(files.len() > 500, "only {} files", files.len());
    files
}

impl File {
    /// The bytes of argument `i`, an element per thread.
    pub(crate) fn argument(&self, i: usize) -> Vec<u8> {
        let size = bytes(&self.args[i]);
        let values = self.cases.iter().flat_map(|case| &case.inputs[i]);
        values.flat_map(|v| v.to_le_bytes()[..size].to_vec()).collect()
    }

    /// Bytes of the results.
    pub(crate) fn result_bytes(&self) -> usize {
        self.threads() * bytes(&self.result)
    }

    /// Differences of the results that came back, as bytes.
    pub(crate) fn differences(&self, data: &[u8]) -> Vec<String> {
        let results = data.chunks_exact(bytes(&self.result)).map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(word)
        });
        let expected = self.cases.iter().flat_map(|c| c.results.iter().map(|r| (*r, c.ulp)));
        results
            .zip(expected)
            .enumerate()
            .filter(|(_, (got, (want, ulp)))| !agrees(&self.result, *got, *want, *ulp))
            .map(|(i, (got, (want, _)))| {
                let case = &self.cases[i / self.lanes];
                let inputs: Vec<String> =
                    case.inputs.iter().map(|c| format!("{:#x}", c[i % self.lanes])).collect();
                format!("thread {i}, f({}): got {got:#x}, want {want:#x}", inputs.join(", "))
            })
            .collect()
    }
}
