//! Runs the kernels of `tests/filetests/run` and compares what they compute with what they say; see the README there.
//!
//! The harness runs every file once more with its launch left out: then every file must fail, or its expectations say
//! nothing.

#[path = "support/filetest.rs"]
mod filetest;
#[path = "support/maps.rs"]
mod maps;

use std::path::Path;

use filetest::{File, POISON, files, parse};
use warpwright_emu::{Completion, LaunchConfig, Memory, Options, Program, launch};

/// Runs all cases in one launch; gives the results, case after case.
fn run(text: &str, file: &File, schedule: Option<(Completion, u64)>) -> Result<Vec<u8>, String> {
    let program = Program::load(text).map_err(|e| e.to_string())?;
    let entry = program.entries()[0].name().to_owned();
    let memory = Memory::new();
    let (mut params, mut addresses) = (Vec::new(), Vec::new());
    for i in 0..file.args.len() {
        let data = file.argument(i);
        let label = format!("argument {i}");
        let address = memory.alloc(data.len() as u64, &label).map_err(|e| e.to_string())?;
        memory.write(address, &data).map_err(|e| e.to_string())?;
        params.extend(address.to_le_bytes());
        addresses.push(address);
    }
    let size = file.result_bytes();
    let out = memory.alloc(size as u64, "results").map_err(|e| e.to_string())?;
    memory.fill(out, POISON, size as u64).map_err(|e| e.to_string())?;
    params.extend(out.to_le_bytes());
    addresses.push(out);
    for map in text.lines().filter_map(|l| l.strip_prefix("// map: ")) {
        maps::push_map(&mut params, &maps::parse_map(map, &addresses));
    }
    if let Some((completion, seed)) = schedule {
        let options = Options { max_steps: 1 << 20, completion, seed, ..Options::default() };
        let filetest::Geometry { grid, block, cluster, shared } = file.launch;
        let config = LaunchConfig { grid, block, cluster, dynamic_shared: shared };
        let report =
            launch(&program, &entry, &config, &params, &memory, &options).map_err(|e| e.to_string())?;
        if !report.is_clean() {
            return Err(report.findings.iter().map(|f| f.render(None, text)).collect());
        }
    }
    let mut data = vec![0; size];
    memory.read(out, &mut data).map_err(|e| e.to_string())?;
    Ok(data)
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
    match run(text, &file, schedule) {
        Ok(results) => file.differences(&results).iter().map(|d| format!("{name}: {d}")).collect(),
        Err(error) => vec![format!("{name} ({schedule:?}): {error}")],
    }
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
