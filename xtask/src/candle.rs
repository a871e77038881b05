//! The bridge to candle: formatted, and tested on the CPU. It is a workspace of its own, whose builds go where the others are.

use crate::shell::{cargo, target_dir};

pub(crate) const MANIFEST: &str = "bridges/warpwright-candle/Cargo.toml";

/// Its tests, and the code of its documentation and of the guide's chapter.
pub(crate) fn test() -> Result<(), String> {
    build(&["test", "--manifest-path", MANIFEST], &[])
}

/// Its lints. What candle is made of has to be checked for them once more, so this is not for every change.
pub(crate) fn lint() -> Result<(), String> {
    build(&["clippy", "--manifest-path", MANIFEST, "--all-targets", "--", "-D", "warnings"], &[])?;
    build(&["doc", "--manifest-path", MANIFEST, "--no-deps"], &[("RUSTDOCFLAGS", "-D warnings")])
}

fn build(args: &[&str], env: &[(&str, &str)]) -> Result<(), String> {
    let target = target_dir().to_string_lossy().into_owned();
    cargo(args, &[env, &[("CARGO_TARGET_DIR", &*target)]].concat())
}
