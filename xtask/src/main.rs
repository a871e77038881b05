//! The project's task runner: `cargo xtask <task>`.

mod ci;
mod corpus;
mod lengths;
mod ptxas;
mod python;
mod shell;

use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask <task>

  ci             everything that continuous integration runs
  lint           formatting, clippy, documentation and file lengths
  fetch-ptxas    install NVIDIA's assembler into target/tools and print its path
  ptxas [PART...]
                 assemble every kernel variant for every target with the real ptxas; or those alone whose names have one of the parts,
                 for the targets of the nightly tests too
  python         install the Python package into target/python and run its tests
  bench-report   bench/data to docs/performance and the README's table
  corpus [--only TEXT] [--jobs N]
                 compile kernels with nvcc, Triton and Numba and say how many parse, verify as ptxas does, and run right
  nightly        the slow sweeps: long property tests and fuzzing
  lengths        the file-length check alone
";

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let (task, rest): (Option<String>, Vec<String>) = (args.next(), args.collect());
    let result = match (task.as_deref(), rest.as_slice()) {
        (Some("ci"), []) => ci::run(),
        (Some("lint"), []) => ci::lint(),
        (Some("fetch-ptxas"), []) => ptxas::fetch().map(|path| println!("{}", path.display())),
        (Some("ptxas"), parts) => ptxas::run(parts),
        (Some("python"), []) => python::test(),
        (Some("bench-report"), []) => python::bench_report(),
        (Some("corpus"), args) => corpus::check(args),
        (Some("nightly"), []) => ci::nightly(),
        (Some("lengths"), []) => lengths::run(),
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
