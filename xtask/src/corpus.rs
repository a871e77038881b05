//! Other compilers' PTX: made, linted, run and counted.

use crate::shell::{cargo, run, target_dir};

/// Builds the command and runs the corpus with it; `args` go to `corpus/run.py`. The compilers come from PyPI on the
/// first run.
pub(crate) fn check(args: &[String]) -> Result<(), String> {
    cargo(&["build", "--release", "-p", "warpwright-cli"], &[])?;
    let (command, scratch) = (target_dir().join("release/warpwright"), target_dir().join("corpus"));
    let table = scratch.join("table.md");
    let (command, scratch) = (command.to_string_lossy(), scratch.to_string_lossy());
    let table = table.to_string_lossy();
    let mut all = vec!["corpus/run.py", "--cli", &command, "--scratch", &scratch, "--table", &table];
    all.extend(args.iter().map(String::as_str));
    run("python3", &all, &[])
}
