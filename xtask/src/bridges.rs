//! The bridges to candle and burn: formatted, and tested on the CPU. Each is a workspace of its own, whose builds go where the others are.

use crate::shell::{cargo, target_dir};

/// A crate in a workspace of its own.
#[derive(Clone, Copy)]
pub(crate) struct Bridge {
    pub(crate) package: &'static str,
    pub(crate) manifest: &'static str,
}

pub(crate) const CANDLE: Bridge =
    Bridge { package: "warpwright-candle", manifest: "bridges/warpwright-candle/Cargo.toml" };

pub(crate) const BURN: Bridge =
    Bridge { package: "warpwright-burn", manifest: "bridges/warpwright-burn/Cargo.toml" };

pub(crate) const ALL: [Bridge; 2] = [CANDLE, BURN];

impl Bridge {
    /// Its tests, and the code of its documentation and of the guide's chapter.
    pub(crate) fn test(&self) -> Result<(), String> {
        self.build("test", &[], &[])
    }

    /// Its lints. What it is made of has to be checked for them once more, so this is not for every change.
    pub(crate) fn lint(&self) -> Result<(), String> {
        self.build("clippy", &["--all-targets", "--", "-D", "warnings"], &[])?;
        self.build("doc", &["--no-deps"], &[("RUSTDOCFLAGS", "-D warnings")])
    }

    fn build(&self, task: &str, args: &[&str], env: &[(&str, &str)]) -> Result<(), String> {
        let target = target_dir().to_string_lossy().into_owned();
        let args = [&[task, "--manifest-path", self.manifest], args].concat();
        cargo(&args, &[env, &[("CARGO_TARGET_DIR", &*target)]].concat())
    }
}
