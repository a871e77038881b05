//! Runs the kernels of `tests/filetests/run` and compares what they compute with what they say; see the README there.
//!
//! The harness runs every file once more with its launch left out: then every file must fail, or its expectations say
//! nothing.

#[path = "support/maps.rs"]
mod maps;

use std::path::{Path, PathBuf};

use warpwright_emu::{Completion, LaunchConfig, Memory, Options, Program, launch};

/// What results hold before the launch.
const POISON: u8 = 0xA5;

/// A value as bits, and how far a result may be from it.
#[derive(Clone, Debug)]
struct Case {
    inputs: Vec<Vec<u64>>,
    results: Vec<u64>,
    ulp: u64,
}

struct File {
    args: Vec<String>,
    result: String,
    cases: Vec<Case>,
    /// Threads of a case.
    lanes: usize,
    config: LaunchConfig,
}

impl File {
    /// All cases run in one launch, except where one case fills a grid.
    fn threads(&self) -> usize {
        self.cases.len() * self.lanes
    }
}

/// `launch: grid=4 block=64 cluster=2,1,1 shared=1024`
fn parse_launch(text: &str) -> LaunchConfig {
    let mut config = LaunchConfig::linear(1, 32);
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
            "shared" => config.dynamic_shared = triple[0],
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

fn bytes(ty: &str) -> usize {
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
        ("f16", _) => u64::from(half::f16::from_f64(float(text)).to_bits()),
        ("bf16", _) => u64::from(half::bf16::from_f64(float(text)).to_bits()),
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

fn parse(text: &str) -> File {
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
    let config = launch.unwrap_or_else(|| LaunchConfig::linear(1, (cases.len() * lanes) as u32));
    File { args, result: result.to_owned(), cases, lanes, config }
}

/// Runs all cases in one launch; gives the results, case after case.
fn run(text: &str, file: &File, schedule: Option<(Completion, u64)>) -> Result<Vec<u64>, String> {
    let program = Program::load(text).map_err(|e| e.to_string())?;
    let entry = program.entries()[0].name().to_owned();
    let memory = Memory::new();
    let threads = file.threads();
    let (mut params, mut addresses) = (Vec::new(), Vec::new());
    for (i, ty) in file.args.iter().enumerate() {
        let size = bytes(ty);
        let address =
            memory.alloc((threads * size) as u64, &format!("argument {i}")).map_err(|e| e.to_string())?;
        let values = file.cases.iter().flat_map(|c| &c.inputs[i]);
        let data: Vec<u8> = values.flat_map(|v| v.to_le_bytes()[..size].to_vec()).collect();
        memory.write(address, &data).map_err(|e| e.to_string())?;
        params.extend(address.to_le_bytes());
        addresses.push(address);
    }
    let size = bytes(&file.result);
    let out = memory.alloc((threads * size) as u64, "results").map_err(|e| e.to_string())?;
    memory.fill(out, POISON, (threads * size) as u64).map_err(|e| e.to_string())?;
    params.extend(out.to_le_bytes());
    addresses.push(out);
    for map in text.lines().filter_map(|l| l.strip_prefix("// map: ")) {
        maps::push_map(&mut params, &maps::parse_map(map, &addresses));
    }
    if let Some((completion, seed)) = schedule {
        let options = Options { max_steps: 1 << 20, completion, seed, ..Options::default() };
        let report =
            launch(&program, &entry, &file.config, &params, &memory, &options).map_err(|e| e.to_string())?;
        if !report.is_clean() {
            return Err(report.findings.iter().map(|f| f.render(None, text)).collect());
        }
    }
    let mut data = vec![0; threads * size];
    memory.read(out, &mut data).map_err(|e| e.to_string())?;
    let results = data.chunks_exact(size).map(|chunk| {
        let mut word = [0; 8];
        word[..size].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    Ok(results.collect())
}

/// Whether a result is the expected one.
fn agrees(ty: &str, got: u64, want: u64, ulp: u64) -> bool {
    if ty == "f64" && f64::from_bits(want).is_nan() {
        return f64::from_bits(got).is_nan();
    }
    // Neighbouring floats of one sign have neighbouring bits.
    got == want || (ulp > 0 && got.abs_diff(want) <= ulp)
}

/// Runs a file; one with asynchronous operations several times, as their completion differs.
fn failures(path: &Path, really: bool) -> Vec<String> {
    let text = std::fs::read_to_string(path).expect("a readable file");
    if !really {
        return failures_with(path, &text, None);
    }
    let more = if text.contains("async") || text.contains("mbarrier") { 3 } else { 1 };
    let all = [Completion::Latest, Completion::Eager, Completion::Random];
    all[..more].iter().flat_map(|completion| failures_with(path, &text, Some((*completion, 0)))).collect()
}

fn failures_with(path: &Path, text: &str, schedule: Option<(Completion, u64)>) -> Vec<String> {
    let file = parse(text);
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let results = match run(text, &file, schedule) {
        Ok(results) => results,
        Err(error) => return vec![format!("{name} ({schedule:?}): {error}")],
    };
    let expected = file.cases.iter().flat_map(|c| c.results.iter().map(|r| (*r, c.ulp)));
    results
        .iter()
        .zip(expected)
        .enumerate()
        .filter(|(_, (got, (want, ulp)))| !agrees(&file.result, **got, *want, *ulp))
        .map(|(i, (got, (want, _)))| {
            let case = &file.cases[i / file.lanes];
            let inputs: Vec<String> =
                case.inputs.iter().map(|c| format!("{:#x}", c[i % file.lanes])).collect();
            format!("{name}: thread {i}, f({}): got {got:#x}, want {want:#x}", inputs.join(", "))
        })
        .collect()
}

fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/filetests/run");
    let entries = std::fs::read_dir(folder).expect("the folder of file tests");
    let mut files: Vec<PathBuf> = entries
        .map(|e| e.expect("an entry").path())
        .filter(|p| p.extension().is_some_and(|e| e == "ptx"))
        .collect();
    files.sort();
    assert!(files.len() > 500, "only {} files", files.len());
    files
}

#[test]
fn instructions_compute_what_the_files_say() {
    let all: Vec<String> = files().iter().flat_map(|f| failures(f, true)).collect();
    assert!(all.is_empty(), "{} wrong results:\n{}", all.len(), all[..all.len().min(60)].join("\n"));
}

#[test]
fn every_file_fails_where_nothing_runs() {
    let silent: Vec<_> = files().into_iter().filter(|f| failures(f, false).is_empty()).collect();
    assert!(silent.is_empty(), "these say nothing: {silent:?}");
}

/// Lines that end in `// remove` are needed: a kernel without one of them fails under some schedule.
#[test]
fn what_a_pipeline_needs_is_missed() {
    let schedules = [
        (Completion::Latest, 0),
        (Completion::Eager, 0),
        (Completion::Random, 1),
        (Completion::Latest, 2),
        (Completion::Random, 3),
    ];
    let (mut removed, mut survivors) = (0, Vec::new());
    for path in files() {
        let text = std::fs::read_to_string(&path).expect("a readable file");
        let lines: Vec<&str> = text.lines().collect();
        for (at, line) in lines.iter().enumerate().filter(|(_, line)| line.ends_with("// remove")) {
            removed += 1;
            let mutant: String =
                lines.iter().enumerate().filter(|(i, _)| *i != at).flat_map(|(_, l)| [*l, "\n"]).collect();
            assert!(Program::load(&mutant).is_ok(), "{} without line {}", path.display(), at + 1);
            if schedules.iter().all(|s| failures_with(&path, &mutant, Some(*s)).is_empty()) {
                survivors.push(format!("{}, line {}: {line}", path.display(), at + 1));
            }
        }
    }
    assert!(removed > 35, "only {removed} lines to remove");
    assert!(survivors.is_empty(), "not noticed:\n{}", survivors.join("\n"));
}
