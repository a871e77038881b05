//! Runs the kernels of `tests/filetests/TOOL` under all sanitizers and compares what is found with what the files say.
//!
//! Comments in a file describe the launch and the defects:
//!
//! ```text
//! // launch: grid=2 block=64 shared=1024      also cluster=2; each may be x,y,z; several launches run in order
//! // arg: buffer x 1024 zero                  or `undefined`, `iota` (words 0, 1, 2, ...); in parameter order
//! // arg: freed x 1024                       a buffer that was freed
//! // arg: u32 5
//! // arg: map 0 f32 16x8 64 8x4 none        a tensor map over buffer 0; see `support/maps.rs`
//! st.shared.u32 [%r1], %r2;                   // finding: racecheck read-write other=+2
//! ```
//!
//! A finding names tool and kind; `other=+2` says that the other party's instruction stands two lines below. The set of
//! findings has to match exactly for several schedules and with one and two workers, so a file without
//! `finding` comments is a clean twin of a bad one. What depends on the schedule stands in `// may: TOOL KIND`, and in
//! `// either: TOOL KIND` if every schedule has at least one of these findings.

#[path = "support/maps.rs"]
mod maps;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use warpwright_emu::report::Severity;
use warpwright_emu::{Completion, LaunchConfig, Memory, Options, Program, launch};
use warpwright_ptx::verify::barrier_safety;

/// The tools, each with a folder under `tests/filetests`.
const TOOLS: [&str; 4] = ["memcheck", "initcheck", "racecheck", "synccheck"];
/// All folders that hold sanitizer tests: `asynchronous` has protocols of barriers and copies, for several tools.
const FOLDERS: [&str; 5] = ["memcheck", "initcheck", "racecheck", "synccheck", "asynchronous"];

/// Line, tool, kind and line of the other party, as far as the file says.
type Expected = (u32, String, String, Option<u32>);

struct Case {
    launches: Vec<LaunchConfig>,
    args: Vec<Arg>,
    expected: BTreeSet<Expected>,
    /// Found or not, depending on the schedule.
    allowed: BTreeSet<Expected>,
    /// Of these at least one is found.
    either: BTreeSet<Expected>,
}

enum Arg {
    Buffer { name: String, bytes: usize, fill: Fill },
    Scalar(Vec<u8>),
    Map(String),
}

#[derive(Clone, Copy)]
enum Fill {
    Zero,
    Undefined,
    Iota,
    /// Not there any more.
    Freed,
}

fn triple(text: &str) -> [u32; 3] {
    let mut out = [1; 3];
    for (slot, part) in out.iter_mut().zip(text.split(',')) {
        *slot = part.parse().expect("a number");
    }
    out
}

fn parse_launch(text: &str) -> LaunchConfig {
    let mut config = LaunchConfig::linear(1, 32);
    for word in text.split_whitespace() {
        match word.split_once('=').expect("key=value") {
            ("grid", v) => config.grid = triple(v),
            ("block", v) => config.block = triple(v),
            ("cluster", v) => config.cluster = triple(v),
            ("shared", v) => config.dynamic_shared = v.parse().expect("bytes"),
            (key, _) => panic!("unknown launch key {key}"),
        }
    }
    config
}

fn parse_arg(text: &str) -> Arg {
    let words: Vec<&str> = text.split_whitespace().collect();
    match words[..] {
        ["buffer", name, bytes, fill] => Arg::Buffer {
            name: name.to_owned(),
            bytes: bytes.parse().expect("bytes"),
            fill: match fill {
                "zero" => Fill::Zero,
                "undefined" => Fill::Undefined,
                "iota" => Fill::Iota,
                other => panic!("unknown fill {other}"),
            },
        },
        ["freed", name, bytes] => {
            Arg::Buffer { name: name.to_owned(), bytes: bytes.parse().expect("bytes"), fill: Fill::Freed }
        }
        ["u32", v] => Arg::Scalar(v.parse::<u32>().expect("u32").to_le_bytes().to_vec()),
        ["u64", v] => Arg::Scalar(v.parse::<u64>().expect("u64").to_le_bytes().to_vec()),
        ["map", ..] => Arg::Map(text.trim_start_matches("map ").to_owned()),
        _ => panic!("unknown argument {text}"),
    }
}

fn parse_finding(line: u32, text: &str) -> Expected {
    let words: Vec<&str> = text.split_whitespace().collect();
    let other = words.get(2).map(|w| {
        let distance: i32 = w.strip_prefix("other=").expect("other=").parse().expect("lines");
        line.checked_add_signed(distance).expect("a line")
    });
    (line, words[0].to_owned(), words[1].to_owned(), other)
}

fn parse(text: &str) -> Case {
    let (expected, allowed, either) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let mut case = Case { launches: vec![], args: vec![], expected, allowed, either };
    for (line, source) in (1u32..).zip(text.lines()) {
        for comment in source.split("// ").skip(1) {
            match comment.trim().split_once(": ") {
                Some(("launch", rest)) => case.launches.push(parse_launch(rest)),
                Some(("arg", rest)) => case.args.push(parse_arg(rest)),
                Some(("finding", rest)) => {
                    case.expected.extend(rest.split(';').map(|f| parse_finding(line, f)));
                }
                Some(("may", rest)) => case.allowed.extend(rest.split(';').map(|f| parse_finding(line, f))),
                Some(("either", rest)) => case.either.extend(rest.split(';').map(|f| parse_finding(line, f))),
                _ => {}
            }
        }
    }
    if case.launches.is_empty() {
        case.launches.push(LaunchConfig::linear(1, 32));
    }
    case
}

/// The parameter buffer: every argument at its natural alignment.
fn parameters(args: &[Arg], memory: &Memory) -> Vec<u8> {
    let (mut params, mut addresses) = (Vec::new(), Vec::new());
    for arg in args {
        let bytes = match arg {
            Arg::Map(map) => {
                maps::push_map(&mut params, &maps::parse_map(map, &addresses));
                continue;
            }
            Arg::Scalar(bytes) => bytes.clone(),
            Arg::Buffer { name, bytes, fill } => {
                let address = memory.alloc(*bytes as u64, name).expect("memory");
                let words = || (0..bytes.div_ceil(4) as u32).flat_map(u32::to_le_bytes).take(*bytes);
                match fill {
                    Fill::Zero => memory.fill(address, 0, *bytes as u64).expect("fill"),
                    Fill::Iota => memory.write(address, &words().collect::<Vec<_>>()).expect("write"),
                    Fill::Undefined => {}
                    Fill::Freed => memory.free(address).expect("a live buffer"),
                }
                addresses.push(address);
                address.to_le_bytes().to_vec()
            }
        };
        params.resize(params.len().next_multiple_of(bytes.len()), 0);
        params.extend(bytes);
    }
    params
}

fn check(path: &Path, failures: &mut Vec<String>) {
    let text = std::fs::read_to_string(path).expect("a readable file");
    let case = parse(&text);
    let program = match Program::load(&text) {
        Ok(program) => program,
        Err(error) => {
            failures.push(format!("{}: {error}", path.display()));
            return;
        }
    };
    let entry = program.module().functions[0].name.clone();
    for threads in [1, 2] {
        for seed in 0..4 {
            let memory = Memory::new();
            let params = parameters(&case.args, &memory);
            let completion = match seed {
                0 => Completion::Latest,
                1 => Completion::Eager,
                _ => Completion::Random,
            };
            let options = Options { threads, seed, completion, max_steps: 1 << 22, ..Options::default() };
            let mut found = Vec::new();
            for config in &case.launches {
                match launch(&program, &entry, config, &params, &memory, &options) {
                    Ok(report) => found.extend(report.findings),
                    Err(error) => {
                        failures
                            .push(format!("{} (threads {threads}, seed {seed}): {error}", path.display()));
                    }
                }
            }
            let mut missing = case.expected.clone();
            let mut rendered = String::new();
            let mut one = case.either.is_empty();
            for f in &found {
                let other = f.other.as_ref().and_then(|o| o.line);
                let key = |o| (f.line, f.tool.name().to_owned(), f.kind.to_owned(), o);
                let keys = [key(None), key(other)];
                if let Some(k) = keys.iter().find(|k| case.expected.contains(k)) {
                    missing.remove(k);
                } else if keys.iter().any(|k| case.either.contains(k)) {
                    one = true;
                } else if !keys.iter().any(|k| case.allowed.contains(k)) {
                    rendered += &f.render(None, &text);
                }
                let warning = f.severity == Severity::Warning;
                let weak = ["write-write-same-value", "tensor-missing-fence", "tensor-load-in-flight"];
                let weak = weak.contains(&f.kind);
                assert_eq!(warning, weak, "severity of {}", f.kind);
            }
            if !one {
                missing.extend(case.either.clone());
            }
            if !missing.is_empty() || !rendered.is_empty() {
                failures.push(format!(
                    "{} (threads {threads}, seed {seed}): not found {missing:?}; not expected:\n{rendered}",
                    path.display()
                ));
                return;
            }
        }
    }
}

/// The kernels of a folder.
fn files(folder: &str) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/filetests");
    let mut files: Vec<PathBuf> = std::fs::read_dir(root.join(folder))
        .expect("the folder")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|e| e == "ptx"))
        .collect();
    files.sort();
    assert!(files.len() >= 10, "{folder} has only {} files", files.len());
    files
}

#[test]
fn the_sanitizers_find_what_the_files_say_and_nothing_else() {
    let mut failures = Vec::new();
    for folder in FOLDERS {
        for path in files(folder) {
            check(&path, &mut failures);
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Kinds of findings that [`barrier_safety`] decides without running the kernel.
const DECIDED: [&str; 2] = ["divergent-barrier", "partial-warp"];
/// Where the launch is at fault.
const OF_THE_LAUNCH: [&str; 1] = ["mma_in_part_of_a_warp.bad.ptx"];

#[test]
fn kernels_are_safe_at_their_barriers_where_synccheck_finds_nothing() {
    let mut decided = 0;
    for folder in FOLDERS {
        for path in files(folder) {
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            let text = std::fs::read_to_string(&path).expect("a text file");
            let case = parse(&text);
            let module = warpwright_ptx::text::parse(&text).module;
            let safe = module.functions.iter().all(|f| barrier_safety(&module, f).is_safe());
            let found = case.expected.union(&case.allowed).any(|(_, _, kind, _)| DECIDED.contains(&&**kind));
            if found && !OF_THE_LAUNCH.contains(&&*name) {
                assert!(!safe, "{name} is said to be safe");
                decided += 1;
            }
            if name.ends_with(".good.ptx") {
                assert!(safe, "{name} is said to be unsafe");
            }
        }
    }
    assert!(decided >= 10, "{decided} files");
}

/// A kernel with a defect in a protocol stands beside one without; several defects may share one, whose name theirs begin with.
#[test]
fn every_broken_protocol_has_a_whole_one_beside_it() {
    let names: Vec<String> = files("asynchronous")
        .iter()
        .map(|path| path.file_name().expect("a name").to_string_lossy().into_owned())
        .collect();
    let whole: Vec<&str> = names.iter().filter_map(|name| name.strip_suffix(".good.ptx")).collect();
    let broken: Vec<&str> = names.iter().filter_map(|name| name.strip_suffix(".bad.ptx")).collect();
    assert!(broken.len() >= 50, "{} files", broken.len());
    for name in broken {
        assert!(whole.iter().any(|whole| name.starts_with(whole)), "{name} has no twin");
    }
}

/// Every kind that a file names has a row in docs/sanitizers.md, under its tool and with a file that names it.
#[test]
fn the_page_lists_what_the_files_say() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("../../docs/sanitizers.md")).expect("the page");
    for tool in TOOLS {
        let section = page.split("\n## ").find_map(|part| part.strip_prefix(&format!("{tool}\n")));
        let section = section.unwrap_or_else(|| panic!("no section {tool}"));
        let mut listed = BTreeSet::new();
        for row in section.lines().filter(|line| line.starts_with("| `")) {
            let kind = row.split('`').nth(1).expect("a kind");
            let file = row.split("[bad](../").nth(1).and_then(|rest| rest.split(')').next()).expect("a file");
            let text = std::fs::read_to_string(root.join("../..").join(file)).expect(file);
            assert!(text.contains(&format!("finding: {tool} {kind}")), "{file} has no {kind}");
            assert!(listed.insert(kind.to_owned()), "{kind} twice");
        }
        for entry in std::fs::read_dir(root.join("tests/filetests").join(tool)).expect("the folder") {
            let text = std::fs::read_to_string(entry.expect("an entry").path()).expect("a file");
            let named = text.split("finding: ").skip(1).filter_map(|rest| {
                let mut words = rest.split_whitespace();
                (words.next() == Some(tool))
                    .then(|| words.next().unwrap_or_default().trim_matches(';').to_owned())
            });
            for kind in named {
                assert!(listed.contains(&kind), "docs/sanitizers.md has no {tool} {kind}");
            }
        }
    }
}
