//! The project's task runner: `cargo xtask <task>`.

mod api;
mod bridges;
mod ci;
mod corpus;
mod kernels;
mod licence;
mod metadata;
mod nightly;
mod package;
mod ptxas;
mod python;
mod shell;
mod sources;
mod third_party;

use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask <task>

  ci             everything that continuous integration runs
  lint           formatting, clippy, documentation, the rules for sources, and what packages have in them
  fetch-ptxas    install NVIDIA's assembler into target/tools and print its path
  ptxas [PART...]
                 assemble kernels with the real ptxas: all for one target and a sample for the others; or those alone whose names have one
                 of the parts, for all targets
  kernels --hash [PART...]
                 print target, family, name and a hash of the PTX of every kernel, or of those whose names have one of the parts
  kernels --compare BEFORE [AFTER] [--only PART...]
                 compare two such lists, the second made now if it is not named; fails unless they differ in names alone
  python         install the Python package into target/python and run its tests
  candle         test the bridge to candle on the CPU
  burn           test the bridge to burn
  api [--write]  compare the public interfaces of the libraries with the lists in docs/api, or write these
  api --since REV
                 how the lists differ from those of a revision; fails if anything is gone
  package        put the packages together as they would be published, and compile each from what is in it
  third-party [--check]
                 THIRD-PARTY.md, and target/third-party: bills of materials and texts of licences; or whether the page is up to date. Fails if
                 a licence is not on the list of xtask/src/licence.rs
  bench-report   bench/data to docs/performance and the README's table
  corpus [--only TEXT] [--jobs N]
                 compile kernels with nvcc, Triton and Numba and say how many parse, verify as ptxas does, and run right
  nightly [--record] [PART...]
                 the slow sweeps, all of them or some; --record notes in bench/data which commit each ran green on
  nightly --list [PART...]
                 what each of them proves, and the last commit that it ran green on
  sources        the rules for sources alone: lengths of files, openings of doc comments
";

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let (task, rest): (Option<String>, Vec<String>) = (args.next(), args.collect());
    let result = match (task.as_deref(), rest.as_slice()) {
        (Some("ci"), []) => ci::run(),
        (Some("lint"), []) => ci::lint(),
        (Some("fetch-ptxas"), []) => ptxas::fetch().map(|path| println!("{}", path.display())),
        (Some("ptxas"), parts) => ptxas::run(parts),
        (Some("python"), []) => python::test(python::Build::Released),
        (Some("candle"), []) => bridges::CANDLE.test(),
        (Some("burn"), []) => bridges::BURN.test(),
        (Some("api"), args) => api::run(args),
        (Some("package"), []) => package::check(package::Trial::Compiled),
        (Some("third-party"), []) => third_party::write(),
        (Some("third-party"), [flag]) if flag == "--check" => third_party::check(),
        (Some("bench-report"), []) => python::bench_report(),
        (Some("kernels"), args) => kernels::run(args),
        (Some("corpus"), args) => corpus::check(args),
        (Some("nightly"), args) => nightly::run(args),
        (Some("sources"), []) => sources::run(),
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}
