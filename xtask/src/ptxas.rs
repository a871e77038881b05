//! NVIDIA's assembler, from the PyPI package `nvidia-cuda-nvcc`: the judge of every kernel that we print.

use std::path::{Path, PathBuf};

use crate::shell::{cargo, run as command, target_dir};

/// The release whose verdicts the tests were written against; it knows sm_75 to sm_121.
const VERSION: &str = "13.0.88";

/// The test that assembles kernels.
const KERNELS: [&str; 6] = ["test", "-p", "warpwright-ops", "--test", "primitives", "ptxas::"];

/// Finds or installs ptxas and returns its path: `WARPWRIGHT_PTXAS`, then `target/tools`.
pub(crate) fn fetch() -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os("WARPWRIGHT_PTXAS") {
        return Ok(PathBuf::from(path));
    }
    let folder = target_dir().join("tools").join(format!("nvcc-{VERSION}"));
    if let Some(found) = find(&folder) {
        return Ok(found);
    }
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let at = folder.to_string_lossy().into_owned();
    let package = format!("nvidia-cuda-nvcc=={VERSION}");
    command("python3", &["-m", "pip", "download", "--quiet", "--no-deps", "-d", &at, &package], &[])?;
    let unpack = "import glob, os, sys, zipfile
for wheel in glob.glob(os.path.join(sys.argv[1], '*.whl')):
    with zipfile.ZipFile(wheel) as z:
        for name in z.namelist():
            if name.endswith('bin/ptxas'):
                os.chmod(z.extract(name, sys.argv[1]), 0o755)
    os.remove(wheel)";
    command("python3", &["-c", unpack, &at], &[])?;
    find(&folder).ok_or_else(|| format!("{package} holds no bin/ptxas"))
}

/// Runs the tests that assemble kernels; with parts of names, for the kernels that have one of these and for all targets.
pub(crate) fn run(parts: &[String]) -> Result<(), String> {
    let ptxas = fetch()?;
    let ptxas = ptxas.to_string_lossy();
    let mut env = vec![("WARPWRIGHT_PTXAS", ptxas.as_ref()), ("WARPWRIGHT_REQUIRE_PTXAS", "1")];
    if parts.is_empty() {
        cargo(&["test", "-p", "warpwright-ptx", "--test", "ptxas"], &env)?;
        return cargo(&KERNELS, &env);
    }
    let parts = parts.join(",");
    env.extend([("WARPWRIGHT_KERNELS", parts.as_str()), ("WARPWRIGHT_ALL_TARGETS", "1")]);
    cargo(&KERNELS, &env)
}

fn find(folder: &Path) -> Option<PathBuf> {
    std::fs::read_dir(folder).ok()?.flatten().find_map(|entry| {
        let path = entry.path();
        if path.is_dir() {
            find(&path)
        } else if path.file_name().is_some_and(|n| n == "ptxas") {
            Some(path)
        } else {
            None
        }
    })
}
