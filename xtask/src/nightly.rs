//! Sweeps that are too slow for every change, in parts, and what each of them proves.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::time::Instant;

use crate::shell::{cargo, output, root};
use crate::{bridges, corpus, package, ptxas, python};

/// Where the command records what ran green, one line a part and run.
const RECORD: &str = "bench/data/nightly/parts.jsonl";

/// One sweep.
struct Part {
    name: &'static str,
    proves: &'static str,
    step: Step,
}

/// The work of a part.
enum Step {
    /// The tests of one binary that say `#[ignore = "nightly: .."]` and whose paths begin with this.
    Ignored { package: &'static str, binary: &'static str, modules: &'static [&'static str] },
    /// `cargo` with these arguments, where a test may use the assembler.
    Cargo { args: &'static [&'static str], env: &'static [(&'static str, &'static str)] },
    /// The Python package as it is released, and its tests.
    Python,
    /// The types of the Python package.
    PythonTypes,
    /// The lints of a bridge.
    Bridge(bridges::Bridge),
    /// The packages as they would be published.
    Packages,
    /// The oldest Rust that is promised.
    OldestRust,
    /// Systems other than this one.
    Platforms,
    /// Other compilers' PTX.
    Corpus,
}

const OPS: &str = "warpwright-ops";

const fn mutation(modules: &'static [&'static str]) -> Step {
    Step::Ignored { package: OPS, binary: "mutation", modules }
}

const fn primitives(modules: &'static [&'static str]) -> Step {
    Step::Ignored { package: OPS, binary: "primitives", modules }
}

const PARTS: &[Part] = &[
    Part {
        name: "suite",
        proves: "the default suite compiled with optimisation, its random tests with 4,096 inputs each",
        step: Step::Cargo {
            args: &["test", "--release", "--workspace"],
            env: &[("PROPTEST_CASES", "4096"), ("WARPWRIGHT_SEEDS", "0..4000")],
        },
    },
    Part {
        name: "cases",
        proves: "every length, input and placement of every primitive is within its budget in the emulator, under four sanitizers, and fails if nothing is launched",
        step: primitives(&["emulator::", "null_device::"]),
    },
    Part {
        name: "check",
        proves: "`warpwright check` of all primitives, as a user runs it",
        step: Step::Cargo { args: &["run", "--release", "--", "check", "--device", "emulator"], env: &[] },
    },
    Part {
        name: "ptxas",
        proves: "every kernel assembles for every target that it claims, without spills",
        step: Step::Cargo {
            args: &["test", "--release", "-p", OPS, "--test", "primitives", "ptxas::"],
            env: &[("WARPWRIGHT_ALL_TARGETS", "1")],
        },
    },
    Part {
        name: "recurrent",
        proves: "sequences of every number of units that has a layout of its own agree with the reference",
        step: primitives(&["recurrent::"]),
    },
    Part {
        name: "kernels",
        proves: "every kernel records for every target, under a name that no other has",
        step: primitives(&["plans::"]),
    },
    Part {
        name: "mutation-attention",
        proves: "every removed barrier and shifted bound of attention's kernels is noticed, in all layouts and with all options",
        step: mutation(&["attention::", "attention_blocks::"]),
    },
    Part {
        name: "mutation-gradients",
        proves: "the same of attention's gradients on warpgroups",
        step: mutation(&["gradients::"]),
    },
    Part {
        name: "mutation-products",
        proves: "the same of products of matrices, for all types and layouts, and of images",
        step: mutation(&["products::", "grouped_products::", "shared_products::", "conv::"]),
    },
    Part {
        name: "mutation-recurrent",
        proves: "the same of recurrent nets in one launch, for all types, cells and exchanges between blocks",
        step: mutation(&["recurrent::"]),
    },
    Part {
        name: "mutation-scans",
        proves: "the same of the scans of Mamba, in both orders, and of Mamba 2, for all tiles of heads and states",
        step: mutation(&["chunk_scan::", "selective_scan::"]),
    },
    Part {
        name: "mutation-norms",
        proves: "the same of norms, cross entropy, reductions, sums, searches, indexed rows and optimizers in the shapes that take longest",
        step: mutation(&[
            "norms::",
            "rows::",
            "reduce::",
            "cumsum::",
            "topk::",
            "gather_scatter::",
            "optimizer::",
        ]),
    },
    Part {
        name: "fuzz-ptx",
        proves: "ten minutes of damaged PTX: parser, printer and verifier neither panic nor disagree",
        step: Step::Cargo {
            args: &[
                "run",
                "--release",
                "-p",
                "warpwright-ptx",
                "--example",
                "fuzz_parse",
                "--",
                "--seconds",
                "600",
            ],
            env: &[],
        },
    },
    Part {
        name: "fuzz-safetensors",
        proves: "ten minutes of damaged checkpoints: each is refused, or read within its bounds",
        step: Step::Cargo {
            args: &[
                "run",
                "--release",
                "-p",
                "warpwright-cli",
                "--example",
                "fuzz_safetensors",
                "--",
                "--seconds",
                "600",
            ],
            env: &[],
        },
    },
    Part {
        name: "python",
        proves: "the Python package as it is released, compiled as one, passes its tests",
        step: Step::Python,
    },
    Part {
        name: "python-types",
        proves: "mypy and pyright accept right uses of the Python package, with PyTorch and JAX, and refuse wrong ones",
        step: Step::PythonTypes,
    },
    Part {
        name: "candle",
        proves: "clippy and rustdoc have nothing to say about the bridge to candle, and its public interface is that of the list",
        step: Step::Bridge(bridges::CANDLE),
    },
    Part {
        name: "burn",
        proves: "clippy and rustdoc have nothing to say about the bridge to burn, and its public interface is that of the list",
        step: Step::Bridge(bridges::BURN),
    },
    Part {
        name: "package",
        proves: "each package, of the bridges to candle and burn too, compiles from nothing but what is published",
        step: Step::Packages,
    },
    Part {
        name: "oldest-rust",
        proves: "the workspace and the Python package compile with the oldest Rust that they promise",
        step: Step::OldestRust,
    },
    Part {
        name: "platforms",
        proves: "the libraries, the command and the Python package compile without a warning for Linux on aarch64, Windows and macOS",
        step: Step::Platforms,
    },
    Part {
        name: "corpus",
        proves: "PTX of nvcc, Triton and Numba parses, verifies as ptxas does, and runs right",
        step: Step::Corpus,
    },
];

/// Runs the parts with these names, or all of them; `--list` prints them, `--record` notes each that is green.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let (flags, names): (Vec<&str>, Vec<&str>) =
        args.iter().map(String::as_str).partition(|arg| arg.starts_with("--"));
    if let Some(flag) = flags.iter().find(|flag| !["--list", "--record"].contains(flag)) {
        return Err(format!("there is no `{flag}`: say `[--list] [--record] [PART...]`"));
    }
    if let Some(name) = names.iter().find(|name| !PARTS.iter().any(|part| part.name == **name)) {
        return Err(format!("there is no part `{name}`: `cargo xtask nightly --list` has them"));
    }
    let chosen = PARTS.iter().filter(|part| names.is_empty() || names.contains(&part.name));
    if flags.contains(&"--list") {
        return list(chosen);
    }
    let record = flags.contains(&"--record");
    if record {
        commit()?;
    }
    let ptxas = ptxas::fetch()?.to_string_lossy().into_owned();
    let mut failed = Vec::new();
    for part in chosen {
        println!("== {}: {}", part.name, part.proves);
        let start = Instant::now();
        match part.run(&ptxas) {
            Ok(()) if record => note(part, start.elapsed().as_secs())?,
            Ok(()) => {}
            Err(e) => failed.push(format!("  {}: {e}", part.name)),
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("parts that failed:\n{}", failed.join("\n"))) }
}

impl Part {
    fn run(&self, ptxas: &str) -> Result<(), String> {
        let assembler = [("WARPWRIGHT_PTXAS", ptxas), ("WARPWRIGHT_REQUIRE_PTXAS", "1")];
        match self.step {
            Step::Ignored { package, binary, modules } => {
                let binary = ["test", "--release", "-p", package, "--test", binary, "--", "--ignored"];
                cargo(&[&binary[..], modules].concat(), &assembler)
            }
            Step::Cargo { args, env } => cargo(args, &[&assembler[..], env].concat()),
            Step::Python => python::test(python::Build::Released),
            Step::PythonTypes => python::check_types(),
            Step::Bridge(bridge) => bridge.lint(),
            Step::OldestRust => package::oldest_rust(),
            Step::Platforms => package::platforms(),
            Step::Packages => package::check(package::Trial::Compiled),
            Step::Corpus => corpus::check(&[]),
        }
    }
}

/// The commit that is checked out; an error if files differ from it.
fn commit() -> Result<String, String> {
    let changed = output("git", &["status", "--porcelain", "--", ".", ":!bench/data/nightly"])?;
    if !changed.is_empty() {
        return Err(format!("only a commit can be recorded, and these files differ from it:\n{changed}"));
    }
    Ok(output("git", &["rev-parse", "HEAD"])?.trim().to_owned())
}

/// Appends what ran green.
fn note(part: &Part, seconds: u64) -> Result<(), String> {
    let line =
        format!("{{\"part\": \"{}\", \"commit\": \"{}\", \"seconds\": {seconds}}}\n", part.name, commit()?);
    let path = root().join(RECORD);
    let folder = path.parent().unwrap_or(&path);
    let written = std::fs::create_dir_all(folder).and_then(|()| {
        std::fs::OpenOptions::new().create(true).append(true).open(&path)?.write_all(line.as_bytes())
    });
    written.map_err(|e| format!("{}: {e}", path.display()))
}

/// The last commit that each part ran green on, by the record's text.
fn green(record: &str) -> BTreeMap<&str, &str> {
    let field = |line: &'_ str, name: &str| -> Option<(usize, usize)> {
        let key = format!("\"{name}\": \"");
        let from = line.find(&key)? + key.len();
        Some((from, from + line[from..].find('"')?))
    };
    let row = |line| {
        let ((a, b), (c, d)) = (field(line, "part")?, field(line, "commit")?);
        Some((line.get(a..b)?, line.get(c..d)?))
    };
    record.lines().filter_map(row).collect()
}

fn list(parts: impl Iterator<Item = &'static Part>) -> Result<(), String> {
    let path = root().join(RECORD);
    let record = if path.exists() {
        std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?
    } else {
        String::new()
    };
    let green = green(&record);
    for Part { name, proves, .. } in parts {
        println!("{name:<20} {proves}");
        println!("{:<20} last green on {}", "", green.get(name).unwrap_or(&"no recorded commit"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn parts_have_names_of_their_own() {
        let names: std::collections::HashSet<_> = PARTS.iter().map(|part| part.name).collect();
        assert_eq!(names.len(), PARTS.len());
    }

    #[test]
    fn the_last_green_commit_counts() {
        let record = "{\"part\": \"a\", \"commit\": \"1\", \"seconds\": 2}\n{\"part\": \"a\", \"commit\": \"3\", \"seconds\": 2}\n";
        assert_eq!(green(record), BTreeMap::from([("a", "3")]));
    }

    /// Files of tests below a folder.
    fn files(folder: &Path, found: &mut Vec<std::path::PathBuf>) {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                files(&path, found);
            } else if path.extension().is_some_and(|e| e == "rs") {
                found.push(path);
            }
        }
    }

    /// Every test that is left to a part by its name runs in that part, and says so.
    #[test]
    fn no_sweep_is_forgotten() {
        let mut seen = std::collections::HashSet::new();
        for package in std::fs::read_dir(root().join("crates")).unwrap().flatten() {
            let mut found = Vec::new();
            files(&package.path().join("tests"), &mut found);
            for file in found {
                let text = std::fs::read_to_string(&file).unwrap();
                for (at, _) in text.match_indices("#[ignore = \"nightly: ") {
                    let reason = &text[at + "#[ignore = \"nightly: ".len()..];
                    let (name, rest) = reason.split_once('"').unwrap();
                    let function = rest.split_once("fn ").unwrap().1.split_once('(').unwrap().0;
                    let inside = file.strip_prefix(package.path().join("tests")).unwrap().with_extension("");
                    let mut path: Vec<_> = inside.iter().map(|p| p.to_string_lossy().into_owned()).collect();
                    let binary_of_file = path.remove(0);
                    path.retain(|p| p != "main");
                    path.push(function.to_owned());
                    let path = path.join("::");
                    let part = PARTS.iter().find(|part| part.name == name);
                    let Some(Part { step: Step::Ignored { package: of, binary, modules }, .. }) = part else {
                        panic!("{}: no part `{name}` runs ignored tests", file.display());
                    };
                    let crate_name = package.file_name();
                    assert_eq!((crate_name.to_str().unwrap(), binary_of_file.as_str()), (*of, *binary));
                    assert!(
                        modules.iter().any(|module| path.starts_with(module)),
                        "{name} does not run {path}"
                    );
                    seen.insert(name.to_owned());
                }
            }
        }
        let of_tests = PARTS.iter().filter(|part| matches!(part.step, Step::Ignored { .. }));
        for part in of_tests {
            assert!(seen.contains(part.name), "no test is left to {}", part.name);
        }
    }
}
