//! Facts of a workspace from `cargo metadata`.

use std::collections::HashSet;
use std::path::PathBuf;

use serde_json::Value;

use crate::shell::{cargo_output, root};

/// A workspace with everything that it depends on, as its `Cargo.lock` has it.
pub(crate) struct Workspace {
    /// The folder of its `Cargo.lock`.
    pub(crate) folder: PathBuf,
    /// Cargo's own words, format 1.
    pub(crate) packages: Vec<Value>,
    nodes: Vec<Value>,
    members: Vec<Value>,
    /// Packages that are compiled for some platform, but not for tests alone: name and version. Metadata has more, optional packages that a feature of the
    /// form `name?/feature` mentions.
    compiled: HashSet<(String, String)>,
}

impl Workspace {
    /// The workspace of a manifest, named from the root of the repository; default features.
    pub(crate) fn read(manifest: &str) -> Result<Workspace, String> {
        Self::compiled(manifest, &["--workspace"])
    }

    /// The same, with the dependencies of one member and the features that it asks of them.
    pub(crate) fn of(manifest: &str, member: &str) -> Result<Workspace, String> {
        Self::compiled(manifest, &["--package", member])
    }

    fn compiled(manifest: &str, selection: &[&str]) -> Result<Workspace, String> {
        let args = ["metadata", "--format-version", "1", "--locked", "--manifest-path", manifest];
        let mut found: Value =
            serde_json::from_str(&cargo_output(&args)?).map_err(|e| format!("cargo metadata: {e}"))?;
        let mut list = |pointer: &str| match found.pointer_mut(pointer).map(Value::take) {
            Some(Value::Array(list)) => Ok(list),
            _ => Err(format!("cargo metadata of {manifest}: no list at {pointer}")),
        };
        let (packages, nodes) = (list("/packages")?, list("/resolve/nodes")?);
        let members = list("/workspace_members")?;
        let folder = root().join(manifest).parent().map_or_else(root, PathBuf::from);
        let tree = ["tree", "--locked", "--target", "all", "--edges", "normal,build"];
        let format = ["--prefix", "none", "--format", "{p}", "--manifest-path", manifest];
        let tree = cargo_output(&[&tree[..], selection, &format].concat())
            .map_err(|e| format!("cargo tree: {e}"))?;
        let compiled = tree.lines().filter_map(|line| {
            let mut words = line.split(' ');
            Some((words.next()?.to_owned(), words.next()?.strip_prefix('v')?.to_owned()))
        });
        Ok(Workspace { folder, packages, nodes, members, compiled: compiled.collect() })
    }

    /// The packages that are developed in the workspace.
    pub(crate) fn members(&self) -> impl Iterator<Item = &Value> {
        self.packages.iter().filter(|package| self.members.contains(&package["id"]))
    }

    /// The package of this id or name; of the members if several have the name.
    pub(crate) fn package(&self, name: &str) -> Result<&Value, String> {
        let found = self.members().chain(&self.packages).find(|p| p["id"] == name || p["name"] == name);
        found.ok_or_else(|| format!("{}: there is no package `{name}`", self.folder.display()))
    }

    /// The ids of what a package needs to be compiled for any platform: no dependencies of tests.
    pub(crate) fn needs(&self, id: &Value) -> Vec<&str> {
        let node = self.nodes.iter().find(|node| node["id"] == *id);
        let deps = node.and_then(|node| node["deps"].as_array()).into_iter().flatten();
        let compiled = deps.filter(|dep| {
            let kinds = dep["dep_kinds"].as_array();
            kinds.into_iter().flatten().any(|kind| kind["kind"] != "dev")
        });
        compiled.filter_map(|dep| dep["pkg"].as_str()).filter(|id| self.is_compiled(id)).collect()
    }

    fn is_compiled(&self, id: &str) -> bool {
        let package = self.packages.iter().find(|package| package["id"] == id);
        package.is_some_and(|package| {
            self.compiled.contains(&(text(package, "name").to_owned(), text(package, "version").to_owned()))
        })
    }
}

/// The text of a field, or nothing.
pub(crate) fn text<'a>(package: &'a Value, field: &str) -> &'a str {
    package[field].as_str().unwrap_or_default()
}
