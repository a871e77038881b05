//! Running commands from the workspace root.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// The workspace root: that of the tree in which `cargo xtask` was called, even if the program was built in another one, whose
/// outputs were copied.
pub(crate) fn root() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&package).parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// The directory of build outputs.
pub(crate) fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// Runs a command in the workspace root, echoes it, and says how long it took; an error if it fails.
pub(crate) fn run(program: &str, args: &[&str], env: &[(&str, &str)]) -> Result<(), String> {
    let settings: String = env.iter().map(|(k, v)| format!("{k}={v} ")).collect();
    println!("$ {settings}{program} {}", args.join(" "));
    let start = Instant::now();
    let status = Command::new(program)
        .args(args)
        .envs(env.iter().copied())
        .current_dir(root())
        .status()
        .map_err(|e| format!("cannot start `{program}`: {e}"))?;
    println!("# {:.1} s", start.elapsed().as_secs_f64());
    if status.success() { Ok(()) } else { Err(format!("`{program} {}` failed: {status}", args.join(" "))) }
}

/// `cargo` with the given arguments.
pub(crate) fn cargo(args: &[&str], env: &[(&str, &str)]) -> Result<(), String> {
    run(&cargo_program(), args, env)
}

/// The output of a command; an error if it fails. Its standard error is passed on.
pub(crate) fn output(program: &str, args: &[&str]) -> Result<String, String> {
    let said = format!("{program} {}", args.join(" "));
    let output = Command::new(program)
        .args(args)
        .current_dir(root())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| format!("cannot start `{program}`: {e}"))?;
    if !output.status.success() {
        return Err(format!("`{said}` failed: {}", output.status));
    }
    String::from_utf8(output.stdout).map_err(|e| format!("`{said}`: {e}"))
}

/// The `cargo` that runs this.
fn cargo_program() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned())
}

/// [`output`] of `cargo` with the given arguments.
pub(crate) fn cargo_output(args: &[&str]) -> Result<String, String> {
    output(&cargo_program(), args)
}
