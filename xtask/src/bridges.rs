//! The bridges to candle and burn: formatted, and tested on the CPU. They are a workspace of their own, whose builds go where the others are.

use crate::api;
use crate::shell::{cargo, target_dir};

/// The manifest of their workspace.
pub(crate) const MANIFEST: &str = "bridges/Cargo.toml";

/// A crate of the workspace.
#[derive(Clone, Copy)]
pub(crate) struct Bridge {
    pub(crate) package: &'static str,
}

pub(crate) const CANDLE: Bridge = Bridge { package: "warpwright-candle" };

pub(crate) const BURN: Bridge = Bridge { package: "warpwright-burn" };

pub(crate) const ALL: [Bridge; 2] = [CANDLE, BURN];

/// The tests of all of them, and the code of their documentation and of the guide's chapters. Crates of both are compiled once.
pub(crate) fn test() -> Result<(), String> {
    build("test", &["--workspace"], &[])
}

/// The documentation of all of them.
pub(crate) fn document() -> Result<(), String> {
    build("doc", &["--workspace", "--no-deps"], &[])
}

impl Bridge {
    /// Its tests, and the code of its documentation and of the guide's chapter.
    pub(crate) fn test(&self) -> Result<(), String> {
        build("test", &["--package", self.package], &[])
    }

    /// Its lints and its public interface. Everything that it is made of has to be checked for them once more, so this is not for every change.
    pub(crate) fn lint(&self) -> Result<(), String> {
        build("clippy", &["--package", self.package, "--all-targets", "--", "-D", "warnings"], &[])?;
        build("doc", &["--package", self.package, "--no-deps"], &[("RUSTDOCFLAGS", "-D warnings")])?;
        api::of_bridge(*self).check()
    }
}

fn build(task: &str, args: &[&str], env: &[(&str, &str)]) -> Result<(), String> {
    let target = target_dir().to_string_lossy().into_owned();
    let args = [&[task, "--manifest-path", MANIFEST], args].concat();
    cargo(&args, &[env, &[("CARGO_TARGET_DIR", &*target)]].concat())
}
