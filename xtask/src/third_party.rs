//! Whose code is in what we give away, and under which licence: a page, a bill of materials and the texts of the licences.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::bridges::{self, Bridge};
use crate::metadata::{Workspace, text};
use crate::shell::{root, target_dir};
use crate::{licence, python};

/// The list for readers, which is kept in the repository.
const PAGE: &str = "THIRD-PARTY.md";

/// The packages that users get.
struct Product {
    package: &'static str,
    manifest: &'static str,
    /// By CycloneDX: `application` or `library`.
    kind: &'static str,
}

const fn of_bridge(bridge: Bridge) -> Product {
    Product { package: bridge.package, manifest: bridges::MANIFEST, kind: "library" }
}

const PRODUCTS: [Product; 5] = [
    Product { package: "warpwright", manifest: "Cargo.toml", kind: "library" },
    Product { package: "warpwright-cli", manifest: "Cargo.toml", kind: "application" },
    Product { package: "warpwright-py", manifest: python::MANIFEST, kind: "library" },
    of_bridge(bridges::CANDLE),
    of_bridge(bridges::BURN),
];

/// Writes the page, and for each product `target/third-party/PRODUCT.cdx.json` and `PRODUCT.licences.txt`.
pub(crate) fn write() -> Result<(), String> {
    let workspaces = workspaces()?;
    let page = page(&workspaces)?;
    let folder = target_dir().join("third-party");
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    for (product, workspace) in &workspaces {
        let parts = parts(workspace, product.package)?;
        let lock = read(&workspace.folder.join("Cargo.lock"))?;
        let bill = bill(product, workspace, &parts, &checksums(&lock))?;
        replace(&folder.join(format!("{}.cdx.json", product.package)), &format!("{bill:#}\n"))?;
        replace(&folder.join(format!("{}.licences.txt", product.package)), &texts(&parts)?)?;
    }
    replace(&root().join(PAGE), &page)?;
    println!("{PAGE}, {}", folder.display());
    Ok(())
}

/// Fails unless the page is up to date.
pub(crate) fn check() -> Result<(), String> {
    let same = read(&root().join(PAGE))? == page(&workspaces()?)?;
    if same { Ok(()) } else { Err(format!("{PAGE} is old: run `cargo xtask third-party`")) }
}

fn workspaces() -> Result<Vec<(&'static Product, Workspace)>, String> {
    PRODUCTS.iter().map(|product| Ok((product, Workspace::of(product.manifest, product.package)?))).collect()
}

/// Whether a package comes from a registry.
fn of_others(package: &Value) -> bool {
    !package["source"].is_null()
}

/// A package and everything that it needs to be compiled for any platform, by name and version.
fn parts<'a>(workspace: &'a Workspace, package: &str) -> Result<Vec<&'a Value>, String> {
    let mut pending = vec![workspace.package(package)?];
    let mut seen = BTreeMap::new();
    while let Some(part) = pending.pop() {
        if seen.insert((text(part, "name"), text(part, "version")), part).is_none() {
            for id in workspace.needs(&part["id"]) {
                pending.push(workspace.package(id)?);
            }
        }
    }
    Ok(seen.into_values().collect())
}

/// The page; an error if a licence on it is not allowed.
fn page(workspaces: &[(&Product, Workspace)]) -> Result<String, String> {
    let mut rows = BTreeMap::new();
    let mut refused = BTreeSet::new();
    for (product, workspace) in workspaces {
        for part in parts(workspace, product.package)?.into_iter().filter(|part| of_others(part)) {
            let (name, version) = (text(part, "name"), text(part, "version"));
            let licence = licence::spelled(text(part, "license"));
            if !licence::is_allowed(&licence) {
                refused.insert(format!("{name} {version}: {licence:?}"));
            }
            rows.entry((name, version, licence)).or_insert_with(Vec::new).push(product.package);
        }
    }
    if !refused.is_empty() {
        let refused: Vec<_> = refused.into_iter().collect();
        return Err(format!("licences that `licence.rs` does not allow:\n  {}", refused.join("\n  ")));
    }
    let mut page = String::from(
        "# Code of others

Packages that are compiled into what users get, or that compile it, on any platform, with the versions of the `Cargo.lock` files. NVIDIA's
driver is looked up at run time and comes with none of it. Made by `cargo xtask third-party`, which fails for a licence that is not on
its list, and also writes bills of materials (CycloneDX) and the texts of the licences to `target/third-party`.

| package | version | licence | in |
|---|---|---|---|
",
    );
    for ((name, version, licence), products) in rows {
        let _ = writeln!(page, "| {name} | {version} | {licence} | {} |", products.join(", "));
    }
    Ok(page)
}

/// A product's bill of materials by CycloneDX 1.5. It has no date and no serial number: the same sources give the same bill.
fn bill(
    product: &Product,
    workspace: &Workspace,
    parts: &[&Value],
    sums: &BTreeMap<(&str, &str), &str>,
) -> Result<Value, String> {
    let component = |kind: &str, package: &Value| {
        let mut component = json!({
            "type": kind,
            "bom-ref": purl(package),
            "name": package["name"],
            "version": package["version"],
            "purl": purl(package),
            "licenses": [{"expression": licence::spelled(text(package, "license"))}],
        });
        if let Some(sum) = sums.get(&(text(package, "name"), text(package, "version"))) {
            component["hashes"] = json!([{"alg": "SHA-256", "content": sum}]);
        }
        component
    };
    let mut dependencies = Vec::new();
    for part in parts {
        let needs: Result<BTreeSet<_>, String> =
            workspace.needs(&part["id"]).into_iter().map(|id| Ok(purl(workspace.package(id)?))).collect();
        dependencies.push(json!({"ref": purl(part), "dependsOn": needs?}));
    }
    let rest = parts.iter().filter(|part| part["name"] != product.package);
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": component(product.kind, workspace.package(product.package)?)},
        "components": rest.map(|part| component("library", part)).collect::<Vec<_>>(),
        "dependencies": dependencies,
    }))
}

/// The name of a package in the form that tools share.
fn purl(package: &Value) -> String {
    format!("pkg:cargo/{}@{}", text(package, "name"), text(package, "version"))
}

/// The checksums of a `Cargo.lock`, by name and version.
fn checksums(lock: &str) -> BTreeMap<(&str, &str), &str> {
    fn field<'a>(block: &'a str, key: &str) -> Option<&'a str> {
        block.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \"")?.strip_suffix('"'))
    }
    let row = |block| Some(((field(block, "name")?, field(block, "version")?), field(block, "checksum")?));
    lock.split("[[package]]").filter_map(row).collect()
}

/// The texts of the licences of everything of others, each once, under the names of those that have it.
fn texts(parts: &[&Value]) -> Result<String, String> {
    let mut owners: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut without = Vec::new();
    for part in parts.iter().filter(|part| of_others(part)) {
        let said = format!("{} {} ({})", text(part, "name"), text(part, "version"), text(part, "license"));
        let files = licence_files(Path::new(text(part, "manifest_path")).parent().unwrap_or(Path::new("")))?;
        if files.is_empty() {
            without.push(format!("{said}: {}", text(part, "repository")));
        }
        for file in files {
            let content = read(&file)?.replace("\r\n", "\n");
            owners.entry(content.trim_end().to_owned()).or_default().push(said.clone());
        }
    }
    let rule = "-".repeat(100);
    let mut out = String::new();
    for (content, names) in owners {
        let _ = writeln!(out, "{}\n\n{content}\n\n{rule}", names.join("\n"));
    }
    if !without.is_empty() {
        let _ =
            writeln!(out, "Packages that come without the text of their licence:\n{}", without.join("\n"));
    }
    Ok(out)
}

/// Files of a package's own folder that are about its licence.
fn licence_files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let about = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        path.is_file()
            && ["LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE"].iter().any(|b| name.starts_with(b))
    };
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).filter(about).collect();
    files.sort();
    Ok(files)
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

/// Writes a file beside its place, and puts it there whole.
fn replace(path: &Path, content: &str) -> Result<(), String> {
    let beside = path.with_extension("new");
    let written = fs::write(&beside, content).and_then(|()| fs::rename(&beside, path));
    written.map_err(|e| format!("{}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_their_packages() {
        let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nsource = \"s\"\nchecksum = \"11\"\n\n\
                    [[package]]\nname = \"ours\"\nversion = \"0.1.0\"\ndependencies = [\n \"a\",\n]\n\n\
                    [[package]]\nname = \"a\"\nversion = \"2.0.0\"\nchecksum = \"22\"\n";
        assert_eq!(checksums(lock), BTreeMap::from([(("a", "1.0.0"), "11"), (("a", "2.0.0"), "22")]));
    }

    /// The command's list has what it is known to need, nothing that only tests need, and every reference of the bill stands for a
    /// component.
    #[test]
    fn the_bill_is_that_of_the_lock() {
        let workspace = Workspace::read("Cargo.toml").unwrap();
        let product = &PRODUCTS[1];
        let parts = parts(&workspace, product.package).unwrap();
        let names: BTreeSet<_> = parts.iter().map(|part| text(part, "name")).collect();
        assert!(names.contains("clap") && names.contains("warpwright-ptx") && names.contains("half"));
        assert!(!names.contains("proptest") && !names.contains("criterion") && !names.contains("tokenizers"));
        let lock = read(&root().join("Cargo.lock")).unwrap();
        let bill = bill(product, &workspace, &parts, &checksums(&lock)).unwrap();
        let components = bill["components"].as_array().unwrap();
        assert_eq!(components.len() + 1, parts.len());
        let references: BTreeSet<_> =
            components.iter().map(|c| &c["bom-ref"]).map(Value::to_string).collect();
        assert_eq!(references.len(), components.len());
        for row in bill["dependencies"].as_array().unwrap() {
            for needed in row["dependsOn"].as_array().unwrap() {
                assert!(references.contains(&needed.to_string()), "{needed}");
            }
        }
        for component in components {
            let ours = text(component, "name").starts_with("warpwright");
            assert_eq!(component.get("hashes").is_none(), ours, "{component}");
        }
    }
}
