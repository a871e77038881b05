//! The Python package: built, installed into an environment of its own, and tested.

use std::path::Path;

use crate::shell::{run, target_dir};

const PACKAGE: &str = "bridges/warpwright-py";
pub(crate) const MANIFEST: &str = "bridges/warpwright-py/Cargo.toml";
/// Packages from PyPI that building and testing need.
const REQUIREMENTS: [&str; 4] = ["maturin>=1.9,<2", "numpy", "ml_dtypes", "pytest"];

/// How the package is compiled.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Build {
    /// As users have it: all crates as one, which takes minutes on one core.
    Released,
    /// With the profile `quick`.
    Quick,
}

/// Installs the package, and runs its tests and those of the comparison. Tests of PyTorch and of GPUs are skipped where those
/// are missing, and say so.
pub(crate) fn test(build: Build) -> Result<(), String> {
    let environment = target_dir().join("python");
    let python = interpreter(&environment)?;
    // pip starts maturin by name, which lies beside the interpreter; the build goes where the other builds are.
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", environment.join("bin").display());
    let target = target_dir();
    let target = target.to_string_lossy();
    let mut env = vec![("PATH", path.as_str()), ("CARGO_TARGET_DIR", &*target)];
    if build == Build::Quick {
        env.push(("MATURIN_PEP517_ARGS", "--profile quick"));
    }
    let install =
        ["-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--force-reinstall"];
    run(&python, &[&install[..], &[PACKAGE]].concat(), &env)?;
    // From its own folder: `bridges` must not be where Python looks for packages.
    let tests = format!("{PACKAGE}/tests");
    run(&python, &["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", &tests, "bench"], &[])
}

/// The environment's interpreter, with everything that is needed installed.
fn interpreter(environment: &Path) -> Result<String, String> {
    let python = environment.join("bin").join("python");
    let installed = environment.join("installed");
    let wanted = REQUIREMENTS.join("\n");
    let python_name = python.to_string_lossy().into_owned();
    if std::fs::read_to_string(&installed).is_ok_and(|found| found == wanted) {
        return Ok(python_name);
    }
    run("python3", &["-m", "venv", &environment.to_string_lossy()], &[])?;
    run(&python_name, &[&["-m", "pip", "install", "--quiet"][..], &REQUIREMENTS].concat(), &[])?;
    std::fs::write(&installed, wanted).map_err(|e| format!("{}: {e}", installed.display()))?;
    Ok(python_name)
}

/// Turns the measurements into pages.
pub(crate) fn bench_report() -> Result<(), String> {
    run("python3", &["bench/report.py"], &[])
}
