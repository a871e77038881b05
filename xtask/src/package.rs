//! The packages as they would be published.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::metadata::{Workspace, text};
use crate::shell::{cargo, root, run, target_dir};
use crate::{bridges, python};

/// Members that are not for users. They say `publish = false`.
const UNPUBLISHED: [&str; 2] = ["warpwright-timing", "xtask"];

/// How far a package is tried.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trial {
    /// It can be put together, and nothing is missing in it.
    Contents,
    /// It also compiles from nothing but what is in it and in the other packages.
    Compiled,
}

/// Puts the packages of the workspace and of the bridges to candle and burn together in `target/published/package`.
pub(crate) fn check(trial: Trial) -> Result<(), String> {
    let workspace = Workspace::read("Cargo.toml")?;
    let version = text(workspace.package("warpwright")?, "version");
    let mut missing = Vec::new();
    for package in workspace.members() {
        let unpublished = package["publish"].as_array().is_some_and(Vec::is_empty);
        if unpublished != UNPUBLISHED.contains(&text(package, "name")) {
            missing.push(format!("{}: is it to be published?", text(package, "name")));
        } else if !unpublished {
            missing.extend(missing_in(package, version)?);
        }
    }
    // Published from a workspace of their own.
    let frameworks = Workspace::read(bridges::MANIFEST)?;
    for bridge in bridges::ALL {
        missing.extend(missing_in(frameworks.package(bridge.package)?, version)?);
    }
    let bridge = Workspace::read(python::MANIFEST)?;
    let bridge = text(bridge.package("warpwright-py")?, "version").to_owned();
    if bridge != version {
        missing.push(format!("warpwright-py: its version is {bridge}, that of the library {version}"));
    }
    if !missing.is_empty() {
        return Err(format!("packages that cannot be published:\n  {}", missing.join("\n  ")));
    }
    if trial == Trial::Compiled {
        forget_versions()?;
    }
    package(trial, &UNPUBLISHED.map(|name| ["--exclude", name]).concat())?;
    // They resolve only where the library is, which has just been found to be whole: in no registry before it is published.
    let library = root().join("crates/warpwright");
    let library = format!("patch.crates-io.warpwright.path={:?}", library.to_string_lossy());
    package(trial, &["--manifest-path", bridges::MANIFEST, "--config", &library])
}

/// Forgets what cargo has unpacked and compiled from the registry that it makes of our packages: it takes a version to be what it was when it was first seen.
fn forget_versions() -> Result<(), String> {
    let cargo_home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let sources = cargo_home
        .or_else(|| Some(std::env::home_dir()?.join(".cargo")))
        .unwrap_or_default()
        .join("registry/src");
    // The folder of such a registry is named by a hash alone, those of others by their host.
    let registries = entries(&sources).filter(|registry| starts_with(registry, "-"));
    let unpacked = registries.flat_map(|registry| entries(&registry));
    let compiled = entries(&folder().join("debug/.fingerprint"));
    for ours in unpacked.chain(compiled).filter(|entry| starts_with(entry, "warpwright")) {
        std::fs::remove_dir_all(&ours).map_err(|e| format!("{}: {e}", ours.display()))?;
    }
    Ok(())
}

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}

fn starts_with(path: &Path, start: &str) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(start))
}

/// Where packages are put together, in `package`, and compiled: apart from the other builds, so that nothing else is forgotten.
fn folder() -> PathBuf {
    target_dir().join("published")
}

/// Has cargo put the packages of a workspace together.
fn package(trial: Trial, of: &[&str]) -> Result<(), String> {
    // Quiet, or each test that is left out is a warning.
    let mut args = [&["package", "--quiet", "--workspace", "--allow-dirty"], of].concat();
    if trial == Trial::Contents {
        args.push("--no-verify");
    }
    let folder = folder();
    // Nobody runs what is compiled here.
    cargo(&args, &[("CARGO_TARGET_DIR", &*folder.to_string_lossy()), ("CARGO_PROFILE_DEV_DEBUG", "false")])
}

/// Compiles the workspace and the Python package with the oldest Rust that they promise, which rustup installs. candle and burn
/// ask for newer ones than ours.
pub(crate) fn oldest_rust() -> Result<(), String> {
    let workspace = Workspace::read("Cargo.toml")?;
    let oldest = text(workspace.package("warpwright")?, "rust_version");
    run("rustup", &["toolchain", "install", oldest, "--profile", "minimal"], &[])?;
    // Apart from what this Rust has built, which it would replace.
    let target = target_dir().join("oldest-rust");
    for manifest in ["Cargo.toml", python::MANIFEST] {
        let check =
            ["run", oldest, "cargo", "check", "--quiet", "--locked", "--workspace", "--manifest-path"];
        let env = [("CARGO_TARGET_DIR", &*target.to_string_lossy())];
        run("rustup", &[&check[..], &[manifest]].concat(), &env)?;
    }
    Ok(())
}

/// Systems that the packages are to compile for beside Linux on x86-64.
const PLATFORMS: [&str; 3] = ["aarch64-unknown-linux-gnu", "x86_64-pc-windows-msvc", "aarch64-apple-darwin"];

/// Checks the workspace, its tests apart, and the Python package for other systems. Nothing is linked, so that only the standard library of each
/// is needed, which rustup installs.
pub(crate) fn platforms() -> Result<(), String> {
    run("rustup", &[&["target", "add"][..], &PLATFORMS].concat(), &[])?;
    // Beside what is built for this system, so that flags do not have that built again.
    let target = target_dir().join("platforms");
    let env = [("CARGO_TARGET_DIR", &*target.to_string_lossy()), ("RUSTFLAGS", "-D warnings")];
    for platform in PLATFORMS {
        for manifest in ["Cargo.toml", python::MANIFEST] {
            let check = ["check", "--quiet", "--locked", "--workspace", "--exclude", "xtask"];
            let check = if manifest == python::MANIFEST { &check[..4] } else { &check };
            cargo(&[check, &["--target", platform, "--manifest-path", manifest]].concat(), &env)?;
        }
    }
    Ok(())
}

/// Everything that a package lacks of what each of ours has.
fn missing_in(package: &Value, version: &str) -> Result<Vec<String>, String> {
    let mut missing = lacks(package, version);
    let folder = Path::new(text(package, "manifest_path")).with_file_name("");
    for name in ["LICENSE-MIT", "LICENSE-APACHE"] {
        let ours = std::fs::read(root().join(name)).map_err(|e| format!("{name}: {e}"))?;
        if std::fs::read(folder.join(name)).ok() != Some(ours) {
            missing.push(format!("{name} is not that of the repository"));
        }
    }
    Ok(missing.into_iter().map(|what| format!("{}: {what}", text(package, "name"))).collect())
}

/// Everything that the manifest lacks.
fn lacks(package: &Value, version: &str) -> Vec<String> {
    let mut missing = Vec::new();
    for field in ["description", "license", "readme", "repository", "rust_version"] {
        if text(package, field).is_empty() {
            missing.push(format!("no {field}"));
        }
    }
    for field in ["keywords", "categories"] {
        if package[field].as_array().is_none_or(Vec::is_empty) {
            missing.push(format!("no {field}"));
        }
    }
    if package.pointer("/metadata/docs/rs/targets").is_none() {
        missing.push("no targets for its documentation".to_owned());
    }
    if text(package, "version") != version {
        missing.push(format!("its version is {}, that of the library {version}", text(package, "version")));
    }
    for dependency in package["dependencies"].as_array().into_iter().flatten() {
        let (name, asked) = (text(dependency, "name"), text(dependency, "req"));
        // A dependency of tests without a version is left out of what is published.
        let left_out = dependency["kind"] == "dev" && asked == "*";
        if dependency.get("path").is_some() && !left_out && asked != format!("={version}") {
            missing.push(format!("needs {name} {asked}, not ={version}"));
        }
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_a_manifest_lacks_is_named() {
        let good = json!({
            "name": "a", "version": "1.2.3", "description": "d", "license": "MIT", "readme": "README.md",
            "repository": "r", "rust_version": "1.89", "keywords": ["k"], "categories": ["c"],
            "metadata": {"docs": {"rs": {"targets": ["t"]}}},
            "dependencies": [
                {"name": "other", "req": "^1", "kind": null},
                {"name": "ours", "req": "=1.2.3", "kind": null, "path": "/ours"},
                {"name": "tests", "req": "*", "kind": "dev", "path": "/tests"},
            ],
        });
        assert_eq!(lacks(&good, "1.2.3"), Vec::<String>::new());
        let with = |field: &str, value: Value| {
            let mut package = good.clone();
            package[field] = value;
            lacks(&package, "1.2.3")
        };
        assert_eq!(with("readme", Value::Null), ["no readme"]);
        assert_eq!(with("keywords", json!([])), ["no keywords"]);
        assert_eq!(with("metadata", Value::Null), ["no targets for its documentation"]);
        assert_eq!(with("version", json!("1.2.4")), ["its version is 1.2.4, that of the library 1.2.3"]);
        for (asked, kind) in [("^1.2.3", Value::Null), ("*", Value::Null), ("^1.2.3", json!("dev"))] {
            let ours = json!([{"name": "ours", "req": asked, "kind": kind, "path": "/ours"}]);
            assert_eq!(with("dependencies", ours), [format!("needs ours {asked}, not =1.2.3")]);
        }
    }
}
