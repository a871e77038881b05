//! What continuous integration runs, in the order in which mistakes are cheapest to find.

use crate::shell::{cargo, target_dir};
use crate::{lengths, ptxas, python};

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
    cargo(&["run", "--release", "--", "check", "--device", "emulator"], &[])?;
    python::test()
}

/// The checks that read the code without running it.
pub(crate) fn lint() -> Result<(), String> {
    lengths::run()?;
    cargo(&["fmt", "--all", "--check"], &[])?;
    cargo(&["fmt", "--manifest-path", python::MANIFEST, "--check"], &[])?;
    cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"], &[])?;
    // Beside the workspace's own, in one folder of builds.
    let target = target_dir().to_string_lossy().into_owned();
    cargo(
        &["clippy", "--manifest-path", python::MANIFEST, "--", "-D", "warnings"],
        &[("CARGO_TARGET_DIR", &*target)],
    )?;
    cargo(&["doc", "--workspace", "--no-deps"], &[("RUSTDOCFLAGS", "-D warnings")])
}

/// The README's first command, on the checkpoint that it makes itself.
fn main_job() -> Result<(), String> {
    let folder = target_dir().join("main-job");
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let output = folder.join("demo-nf4.safetensors").to_string_lossy().into_owned();
    let quantize = ["run", "--release", "--", "quantize", "-o", &output, "--format", "bnb-nf4"];
    cargo(&[&quantize[..], &["--double-quant", "--verify", "--force"]].concat(), &[])
}

/// Sweeps that are too slow for every change.
pub(crate) fn nightly() -> Result<(), String> {
    let ptxas = ptxas::fetch()?;
    let ptxas = ptxas.to_string_lossy();
    let all = [
        ("PROPTEST_CASES", "4096"),
        ("WARPWRIGHT_PTXAS", ptxas.as_ref()),
        ("WARPWRIGHT_REQUIRE_PTXAS", "1"),
        ("WARPWRIGHT_ALL_TARGETS", "1"),
    ];
    cargo(&["test", "--release", "--workspace", "--", "--include-ignored"], &all)?;
    for (package, example) in [("warpwright-ptx", "fuzz_parse"), ("warpwright-cli", "fuzz_safetensors")] {
        cargo(&["run", "--release", "-p", package, "--example", example, "--", "--seconds", "600"], &[])?;
    }
    Ok(())
}
