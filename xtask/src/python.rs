//! The Python package: built, installed into an environment of its own, and tested.

use std::path::Path;

use crate::shell::{output, root, run, target_dir};

const PACKAGE: &str = "bridges/warpwright-py";
pub(crate) const MANIFEST: &str = "bridges/warpwright-py/Cargo.toml";
/// Packages from PyPI that building and testing need.
const REQUIREMENTS: [&str; 4] = ["maturin>=1.9,<2", "numpy", "ml_dtypes", "pytest"];

/// Packages from PyPI that checking types needs beside PyTorch. basedpyright is pyright with all that it runs on in its package.
const CHECKERS: [&str; 3] = ["mypy>=2,<3", "basedpyright>=1.40,<2", "jax"];

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
    let python = interpreter(&environment, &REQUIREMENTS)?;
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

/// Has two type checkers find the right uses of `tests/types` right and the wrong ones wrong. Nothing is compiled or imported: they read the
/// package's own files.
pub(crate) fn check_types() -> Result<(), String> {
    let environment = target_dir().join("types");
    let python = interpreter(&environment, &CHECKERS)?;
    let packages = output(&python, &["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"])?;
    let packages = Path::new(packages.trim());
    if !packages.join("torch").exists() {
        // Its sources are those of every wheel, of which that for macOS is the least.
        let from = ["--no-deps", "--only-binary", ":all:", "--platform", "macosx_26_0_arm64"];
        let install = [&["-m", "pip", "install", "--quiet"][..], &from, &["--target"]].concat();
        run(&python, &[&install[..], &[&packages.to_string_lossy(), "torch"]].concat(), &[])?;
    }
    // As if it were installed, so that the marker `py.typed` counts.
    let link = packages.join("warpwright.pth");
    let sources = root().join(PACKAGE).join("python");
    std::fs::write(&link, format!("{}\n", sources.display()))
        .map_err(|e| format!("{}: {e}", link.display()))?;
    let uses = format!("{PACKAGE}/tests/types");
    let cache = environment.join("mypy-cache");
    run(&python, &["-m", "mypy", "--strict", "--cache-dir", &cache.to_string_lossy(), &uses], &[])?;
    run(&python, &["-m", "basedpyright", "--project", &uses, "--pythonpath", &python], &[])
}

/// The environment's interpreter, with these packages installed.
fn interpreter(environment: &Path, requirements: &[&str]) -> Result<String, String> {
    let python = environment.join("bin").join("python");
    let installed = environment.join("installed");
    let wanted = requirements.join("\n");
    let python_name = python.to_string_lossy().into_owned();
    if std::fs::read_to_string(&installed).is_ok_and(|found| found == wanted) {
        return Ok(python_name);
    }
    run("python3", &["-m", "venv", &environment.to_string_lossy()], &[])?;
    run(&python_name, &[&["-m", "pip", "install", "--quiet"][..], requirements].concat(), &[])?;
    std::fs::write(&installed, wanted).map_err(|e| format!("{}: {e}", installed.display()))?;
    Ok(python_name)
}

/// Turns the measurements into pages.
pub(crate) fn bench_report() -> Result<(), String> {
    run("python3", &["bench/report.py"], &[])
}
