//! The steps of continuous integration, in the order in which mistakes are cheapest to find.

use crate::shell::{self, cargo, target_dir};
use crate::{api, bridges, package, ptxas, python, sources, third_party};

/// Everything.
pub(crate) fn run() -> Result<(), String> {
    lint()?;
    // The README's test command. ptxas is installed first, so that no test that needs it is skipped.
    let ptxas = ptxas::fetch()?;
    let ptxas = ptxas.to_string_lossy();
    cargo(
        &["test", "--workspace"],
        &[("WARPWRIGHT_PTXAS", ptxas.as_ref()), ("WARPWRIGHT_REQUIRE_PTXAS", "1")],
    )?;
    main_job()?;
    command(&[&["check", "--device", "emulator"], &CHECKED[..]].concat())?;
    bridges::test()?;
    python::test(python::Build::Quick)
}

/// One primitive of each family that takes the emulator no minutes: the tests have run the same cases of all of them.
const CHECKED: [&str; 8] = [
    "silu",
    "batch_norm",
    "cross_entropy",
    "group_norm",
    "layer_norm",
    "lstm_cell",
    "quantize_nf4",
    "softmax",
];

/// The checks that read the code without running it.
pub(crate) fn lint() -> Result<(), String> {
    sources::run()?;
    third_party::check()?;
    package::check(package::Trial::Contents)?;
    cargo(&["fmt", "--all", "--check"], &[])?;
    cargo(&["fmt", "--manifest-path", python::MANIFEST, "--check"], &[])?;
    cargo(&["fmt", "--all", "--manifest-path", bridges::MANIFEST, "--check"], &[])?;
    cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"], &[])?;
    // Beside the workspace's own, in one folder of builds.
    let target = target_dir().to_string_lossy().into_owned();
    cargo(
        &["clippy", "--manifest-path", python::MANIFEST, "--", "-D", "warnings"],
        &[("CARGO_TARGET_DIR", &*target)],
    )?;
    cargo(&["doc", "--workspace", "--no-deps"], &[("RUSTDOCFLAGS", "-D warnings")])?;
    api::FACADE.check()
}

/// The work of the README's first command, on the checkpoint that it makes itself.
fn main_job() -> Result<(), String> {
    let folder = target_dir().join("main-job");
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let output = folder.join("demo-nf4.safetensors").to_string_lossy().into_owned();
    command(&["quantize", "-o", &output, "--format", "bnb-nf4", "--double-quant", "--verify", "--force"])
}

/// The command line as the tests have compiled it: with optimisation everything would be compiled once more, which is left to nightly.
fn command(args: &[&str]) -> Result<(), String> {
    let binary = target_dir().join("debug").join(format!("warpwright{}", std::env::consts::EXE_SUFFIX));
    shell::run(&binary.to_string_lossy(), args, &[])
}
