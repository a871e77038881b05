//! The project's pages are right about its files and crates, and its functions are documented.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The words between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The crates of the workspace that a manifest names, by the names that ARCHITECTURE.md has for them.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let text = read(manifest);
    let section = text.split("\n[").find(|part| part.starts_with("dependencies]")).unwrap_or_default();
    let names = section.lines().filter_map(|line| line.split(['.', ' ', '=']).next());
    names.filter(|name| name.starts_with("warpwright")).map(short).collect()
}

fn short(name: &str) -> String {
    match name.strip_prefix("warpwright-") {
        None => "facade".to_owned(),
        Some("py") => "bridges".to_owned(),
        Some(rest) => rest.to_owned(),
    }
}

#[test]
fn crates_depend_as_architecture_says() {
    let page = read("ARCHITECTURE.md");
    let stated = page.split("Dependencies point one way:").nth(1).expect("the statement");
    let mut below: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for chain in quoted(stated.split("\n\n").next().expect("a paragraph")) {
        let steps: Vec<Vec<&str>> =
            chain.split("<-").map(|names| names.split(',').map(str::trim).collect()).collect();
        for pair in steps.windows(2) {
            pair[1].iter().for_each(|upper| below.entry(upper).or_default().extend(&pair[0]));
        }
    }
    let mut manifests = vec!["bridges/warpwright-py/Cargo.toml".to_owned()];
    for entry in std::fs::read_dir(root().join("crates")).expect("crates") {
        let name = entry.expect("an entry").file_name().into_string().expect("a plain name");
        manifests.push(format!("crates/{name}/Cargo.toml"));
    }
    for manifest in manifests {
        let folder = manifest.split('/').nth(1).expect("a folder");
        let (name, actual) = (short(folder), dependencies(&manifest));
        let direct = below.get(name.as_str()).cloned().unwrap_or_default();
        for lower in &direct {
            assert!(actual.contains(*lower), "{name} is said to depend on {lower}");
        }
        let mut allowed = BTreeSet::new();
        let mut pending: Vec<_> = direct.into_iter().collect();
        while let Some(lower) = pending.pop() {
            if allowed.insert(lower) {
                pending.extend(below.get(lower).into_iter().flatten());
            }
        }
        for lower in &actual {
            assert!(allowed.contains(lower.as_str()), "{name} depends on {lower}, which is not said");
        }
    }
}

/// Paths of the recipe for an operation exist for a family that followed it.
#[test]
fn the_recipe_names_files_that_exist() {
    let page = read("docs/recipes/add-an-op.md");
    let family = "local_response_norm";
    let tree = ["crates/", "bench/", "bridges/", "docs/"];
    let alone = ["README.md", "CHANGELOG.md"];
    let mut paths: Vec<_> = quoted(&page)
        .filter(|word| tree.iter().any(|folder| word.starts_with(folder)) || alone.contains(word))
        // Its floors stand on the page of the norms.
        .filter(|word| *word != "docs/performance/<family>.md")
        .map(|word| word.replace("<family>", family))
        .collect();
    paths.sort();
    paths.dedup();
    assert!(paths.len() > 20, "{paths:?}");
    for path in &paths {
        assert!(root().join(path).exists(), "{path}");
    }
    let skeleton = read("crates/warpwright-dsl/src/skeleton.rs");
    for name in ["elementwise", "bounded_blocks", "column_sums"] {
        assert!(
            page.contains(&format!("`{name}`")) && skeleton.contains(&format!("pub fn {name}<")),
            "{name}"
        );
    }
    // Files of the tree that name the family, results aside, are on the page.
    for folder in ["crates", "bridges/warpwright-py/src", "bridges/warpwright-py/python", "bench"] {
        let mut pending = vec![root().join(folder)];
        while let Some(path) = pending.pop() {
            if path.is_dir() {
                let entries = std::fs::read_dir(&path).expect("readable");
                let entries = entries.map(|entry| entry.expect("an entry").path());
                pending.extend(entries.filter(|path| !path.ends_with("target") && !path.ends_with("data")));
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let path =
                path.strip_prefix(root()).expect("below the root").to_string_lossy().replace('\\', "/");
            let said = || paths.iter().any(|known| path.starts_with(known.as_str()));
            // Tests of several families name this one among others.
            let own_test = path.ends_with("primitives/row_norms.rs") || path.ends_with("tests/documented.rs");
            assert!(
                !text.contains(family) || said() || own_test || path == "bench/report.py",
                "{path} is not said"
            );
        }
    }
}

/// The facade has what the catalogue lists.
#[test]
fn every_operation_has_its_functions() {
    let facade = read("crates/warpwright/src/lib.rs");
    let words: BTreeSet<&str> = facade.split(|c: char| !(c.is_alphanumeric() || c == '_')).collect();
    for entry in warpwright::catalogue() {
        let name = match (entry.op, entry.direction) {
            ("gemm", _) => "matmul".to_owned(),
            ("grouped_gemm", _) => "grouped_matmul".to_owned(),
            ("k_grouped_gemm", _) => "grouped_matmul_k".to_owned(),
            (op, _) if op.starts_with("scaled_gemm_") => "scaled_matmul".to_owned(),
            // The gradients are made together with the loss.
            ("linear_cross_entropy", warpwright::Direction::Backward) => {
                "linear_cross_entropy_with_gradients".to_owned()
            }
            // One function for all formats.
            (op, direction) if op.starts_with("matmul_4bit_") => match direction {
                warpwright::Direction::Forward => "matmul_4bit".to_owned(),
                warpwright::Direction::Backward => "matmul_4bit_backward".to_owned(),
            },
            // One function for all schemes.
            (op, _) if op.starts_with("quantize_") => "quantize".to_owned(),
            (op, _) if op.starts_with("dequantize_") => "dequantize".to_owned(),
            (op, warpwright::Direction::Forward) => op.to_owned(),
            (op, warpwright::Direction::Backward) => format!("{op}_backward"),
        };
        assert!(words.contains(name.as_str()), "{} {}: no {name}", entry.op, entry.direction);
    }
}

/// The doc comments of the free functions of a source file, by name; `$name` in a macro that defines several.
fn function_docs(text: &str) -> Vec<(String, String)> {
    let lines: Vec<&str> = text.lines().collect();
    let in_macro = |line: &&str| line.trim_start().starts_with("pub fn $");
    let functions =
        lines.iter().enumerate().filter(|(_, line)| line.starts_with("pub fn ") || in_macro(line));
    let doc_of = |at: usize| {
        let of_function = |line: &&&str| {
            let line = line.trim_start();
            line.starts_with("///") || line.starts_with("#[")
        };
        let mut doc: Vec<&str> = lines[..at].iter().rev().take_while(of_function).copied().collect();
        doc.reverse();
        doc.join("\n")
    };
    let name = |line: &str| {
        let rest = line.trim_start().trim_start_matches("pub fn ");
        rest.split(['(', '<']).next().unwrap_or_default().to_owned()
    };
    functions.map(|(at, line)| (name(line), doc_of(at))).collect()
}

/// Every free function of the facade says its shapes, element types and errors, and shows a call that the tests run.
#[test]
fn every_free_function_is_documented() {
    let facade = read("crates/warpwright/src/lib.rs");
    let mut exported = BTreeSet::new();
    for part in facade.split("pub use warpwright_ops::").skip(1) {
        let Some((_, list)) = part.split(';').next().unwrap_or_default().split_once("::") else { continue };
        let names = list.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|name| !name.is_empty());
        exported.extend(names.filter(|name| !["self", "as"].contains(name)).map(str::to_owned));
    }
    assert!(exported.len() > 60 && exported.contains("lstm_cell_backward"), "{exported:?}");
    let (mut documented, mut macros) = (BTreeSet::new(), String::new());
    for family in std::fs::read_dir(root().join("crates/warpwright-ops/src")).expect("families") {
        let family = family.expect("an entry").path();
        for file in ["functions.rs", "cell_functions.rs"] {
            let Ok(text) = std::fs::read_to_string(family.join(file)) else { continue };
            for (name, doc) in function_docs(&text) {
                let place = format!("{name} of {}", family.display());
                assert!(doc.contains("# Errors"), "{place} does not say its errors");
                assert!(doc.contains("```") && doc.contains("let device"), "{place} has no example");
                assert!(
                    doc.contains("f32") || doc.contains("as for ["),
                    "{place} does not say its element types"
                );
                let shapes = ["shape", "`[", "like"].iter().any(|word| doc.contains(word));
                assert!(shapes || doc.contains("as for ["), "{place} does not say its shapes");
                if name.starts_with('$') {
                    macros.push_str(&text);
                }
                documented.insert(name);
            }
        }
    }
    for name in exported {
        assert!(
            documented.contains(&name)
                || macros.contains(&format!("{name} => "))
                || macros.contains(&format!("{name}, ")),
            "{name} has no documentation"
        );
    }
}
