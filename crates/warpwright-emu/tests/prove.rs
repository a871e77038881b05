//! Verdicts about kernels: those of `filetests/prove`, of random kernels against launches of them, and of planted defects.

#[path = "support/affine.rs"]
mod affine;

use std::path::{Path, PathBuf};

use warpwright_emu::refute::{Answer, Passed, Refutation, verdict};
use warpwright_emu::{LaunchConfig, LaunchError, Memory, Options, Program, Sanitizers, Tool, launch};
use warpwright_ptx::prove::{Contract, Expression, parse_range, prove};
use warpwright_ptx::{ArgValue, pack_args};

/// The contract that the comments of a file write down.
fn contract(text: &str) -> Result<Contract, Box<dyn std::error::Error>> {
    let mut contract = Contract::default();
    for line in text.lines().filter_map(|line| line.strip_prefix("// ")) {
        let Some((word, rest)) = line.split_once(": ") else { continue };
        match word {
            "array" => {
                let (name, extent) = rest.split_once('=').ok_or("no extent")?;
                contract = contract.array(name, extent)?;
            }
            "range" => {
                let (name, range) = rest.split_once('=').ok_or("no range")?;
                contract.ranges.insert(name.to_owned(), parse_range(range)?);
            }
            "assume" => contract = contract.assume(rest)?,
            "shared" => contract.shared = Some(Expression::parse(rest)?),
            "block" => contract.block = Some([rest.parse()?, 1, 1]),
            _ => {}
        }
    }
    Ok(contract)
}

/// An answer as files write it.
fn word(answer: &Answer<'_>) -> String {
    match answer {
        Answer::Proved(_) => "proved".to_owned(),
        Answer::Refuted(_) => "refuted".to_owned(),
        Answer::NotDecided(gaps) => {
            gaps.first().map_or("not decided".to_owned(), |gap| format!("not decided {}", gap.line()))
        }
    }
}

/// Whether the launch of a refutation shows its finding again.
fn shows_again(program: &Program, entry: &str, refutation: &Refutation) -> bool {
    let function = program.entry(entry).expect("the kernel").function();
    let memory = Memory::new();
    let values: Vec<ArgValue> = refutation
        .arguments
        .iter()
        .map(|passed| match passed {
            Passed::Array(bytes) => ArgValue::Address(memory.alloc(*bytes, "array").expect("memory")),
            Passed::Number(value) => value.clone(),
        })
        .collect();
    let params = pack_args(function, &values).expect("arguments that fit");
    let options = Options { sanitizers: Sanitizers::MEMCHECK | Sanitizers::RACECHECK, ..Options::default() };
    let report = match launch(program, entry, &refutation.config, &params, &memory, &options) {
        Ok(report) => report,
        Err(LaunchError::Fault { report, .. }) => *report,
        Err(error) => panic!("{error}"),
    };
    let finding = &refutation.finding;
    report.findings.iter().any(|f| (f.tool, f.kind, f.line) == (finding.tool, finding.kind, finding.line))
}

fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/filetests/prove");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).expect("the folder").map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    files
}

#[test]
fn verdicts_are_those_of_the_files() {
    let mut wrong = String::new();
    let mut count = 0;
    for file in files() {
        let name = file.file_name().expect("a name").to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&file).expect("a text");
        let contract = contract(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let program = Program::load(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let entry = program.entries()[0].name();
        let verdict = verdict(&program, entry, &contract).unwrap_or_else(|error| panic!("{name}: {error}"));
        for (kind, answer) in [("bounds", verdict.bounds()), ("races", verdict.races())] {
            let expected = text.lines().find_map(|line| line.strip_prefix(&format!("// {kind}: ")));
            let expected = expected.unwrap_or_else(|| panic!("{name}: says nothing of {kind}"));
            let said = word(&answer);
            if !said.starts_with(expected) {
                wrong += &format!("{name}: {kind}: expected {expected}, got {said}\n");
                if let Answer::NotDecided(gaps) = answer {
                    gaps.iter().for_each(|gap| wrong += &format!("    {gap}\n"));
                }
            }
            if let Answer::Refuted(refutation) = answer {
                // What a launch shows outranks the proof, which must not be there all the same.
                let proof = if kind == "bounds" { &verdict.proof.bounds } else { &verdict.proof.races };
                assert!(!proof.is_proved(), "{name}: {kind} are proved, and refuted");
                assert!(shows_again(&program, entry, refutation), "{name}: {refutation:?}");
            }
        }
        count += 1;
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(count >= 25, "{count} files");
}

/// Findings of launches of a random kernel: whether any access was bad, and whether any two threads raced, warnings included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    access: bool,
    race: bool,
    launches: u32,
}

/// Runs a kernel of [`affine`] in many small launches that its contract admits.
fn run_small(program: &Program, kernel: &affine::Kernel, shape: [[Option<u32>; 3]; 2], seed: u64) -> Seen {
    let mut seen = Seen::default();
    let mut choices = affine::Choices::new(seed ^ 0x5eed);
    let blocks: Vec<[u32; 3]> =
        kernel.block.map_or(vec![[1, 1, 1], [33, 1, 1], [64, 1, 1], [96, 1, 1]], |b| vec![b]);
    for block in &blocks {
        for grid in [1u32, 2, 3] {
            let mut sizes = vec![0u32, 1, 2, 3, 31, 32, 33, 63, 64, 65, 100, 128, 129, 200];
            sizes.retain(|_| choices.below(2) == 0);
            for n in sizes {
                let m = choices.below(5) as u32;
                let block = [0, 1, 2].map(|at| shape[0][at].unwrap_or(block[at]));
                let grid = shape[1][0].unwrap_or(grid);
                let names = |name: &str| match name {
                    "n" => Some(i128::from(n)),
                    "m" => Some(i128::from(m)),
                    "ntid.x" => Some(i128::from(block[0])),
                    "nctaid.x" => Some(i128::from(grid)),
                    _ => None,
                };
                let memory = Memory::new();
                let mut values: Vec<ArgValue> = [0, 1]
                    .map(|at| {
                        let count =
                            Expression::parse(kernel.extents[at]).expect("an extent").evaluate(&names);
                        let bytes = count.expect("a count") as u64 * u64::from(kernel.elements[at]);
                        ArgValue::Address(memory.alloc(bytes, ["x", "y"][at]).expect("memory"))
                    })
                    .to_vec();
                values.extend([ArgValue::U32(n), ArgValue::U32(m)]);
                let function = program.entry("k").expect("the kernel").function();
                let params = pack_args(function, &values).expect("arguments that fit");
                let options = Options {
                    sanitizers: Sanitizers::MEMCHECK | Sanitizers::RACECHECK,
                    threads: 1,
                    max_steps: 20_000,
                    seed: u64::from(n),
                    ..Options::default()
                };
                let config = LaunchConfig { grid: [grid, 1, 1], block, ..LaunchConfig::linear(1, 1) };
                let report = match launch(program, "k", &config, &params, &memory, &options) {
                    Ok(report) => report,
                    Err(LaunchError::Fault { report, .. }) => *report,
                    Err(error) => panic!("{error}"),
                };
                seen.launches += 1;
                seen.access |= report.findings.iter().any(|f| f.tool == Tool::Memcheck);
                seen.race |= report.findings.iter().any(|f| f.tool == Tool::Racecheck);
            }
        }
    }
    seen
}

/// Whatever is proved of a random kernel holds in all launches that are tried, and what launches show to be wrong is not proved.
#[test]
fn nothing_is_proved_that_a_launch_refutes() {
    let seeds = std::env::var("WARPWRIGHT_PROVE_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(80u64);
    let (mut bounds, mut races, mut bad, mut raced) = (0, 0, 0, 0);
    for seed in 0..seeds {
        let kernel = affine::kernel(seed);
        let program = match Program::load(&kernel.text) {
            Ok(program) => program,
            Err(error) => panic!("seed {seed}: {error}\n{}", kernel.text),
        };
        let [x, y] = [0, 1].map(|at| match kernel.elements[at] {
            1 => format!("{}:u8", kernel.extents[at]),
            8 => format!("{}:u64", kernel.extents[at]),
            _ => format!("{}:u32", kernel.extents[at]),
        });
        let contract = Contract {
            ranges: [("n", (0, 1000)), ("m", (0, 5))].map(|(name, range)| (name.to_owned(), range)).into(),
            ..Contract::default()
        };
        let contract = contract.array("x", &x).and_then(|c| c.array("y", &y)).expect("a contract");
        let contract = contract.assume("nctaid.x <= 1000").expect("a contract");
        let proof = prove(program.module(), "k", &contract).expect("a proof");
        let seen = run_small(&program, &kernel, [proof.block, proof.grid], seed);
        assert!(
            !(proof.bounds.is_proved() && seen.access),
            "seed {seed}: bounds are proved, but not so\n{}",
            kernel.text
        );
        // Accesses outside of arrays are for the bounds.
        assert!(
            !(proof.is_proved() && seen.race),
            "seed {seed}: races are excluded, but not so\n{}",
            kernel.text
        );
        bounds += u32::from(proof.bounds.is_proved());
        races += u32::from(proof.races.is_proved());
        bad += u32::from(seen.access);
        raced += u32::from(seen.race);
    }
    println!(
        "{seeds} kernels: {bounds} with bounds and {races} with races proved, {bad} and {raced} shown to be wrong"
    );
    // Without these the test would say nothing.
    let share = |n: u32| u64::from(n) * 20 >= seeds;
    assert!(share(bounds) && share(races) && share(bad) && share(raced), "{bounds} {races} {bad} {raced}");
}
