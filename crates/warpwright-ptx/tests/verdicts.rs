//! The verdicts of ptxas on one-defect kernels, and ours.
//!
//! `filetests/verdicts/cases.tsv` has a case a line: name, target, version, what ptxas says (`ok` or `error`), directives
//! behind the signature, and the statements that go into `template.ptx`. Cases that do not fit the template are whole
//! files named `NAME.ok.ptx` or `NAME.error.ptx`. Deliberate differences stand in the table of the README there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use warpwright_ptx::text::parse;
use warpwright_ptx::verify::{has_errors, verify};

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/filetests/verdicts")
}

struct Case {
    name: String,
    accepted: bool,
    text: String,
}

fn read(path: &Path) -> String {
    // One case holds bytes that are not ASCII on purpose.
    String::from_utf8_lossy(&std::fs::read(path).expect("a file of cases")).into_owned()
}

fn verdict(text: &str) -> bool {
    match text {
        "ok" => true,
        "error" => false,
        other => panic!("`{other}` is no verdict"),
    }
}

fn cases() -> Vec<Case> {
    let template = read(&directory().join("template.ptx"));
    let mut cases = Vec::new();
    for line in read(&directory().join("cases.tsv")).lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [name, target, version, said, directives, statements] = fields.as_slice() else {
            panic!("{} fields: {line}", fields.len());
        };
        let text = template
            .replace("VERSION", version)
            .replace("TARGET", target)
            .replace("DIRECTIVES", directives)
            .replace("STATEMENTS", statements);
        cases.push(Case { name: (*name).to_owned(), accepted: verdict(said), text });
    }
    for entry in std::fs::read_dir(directory()).expect("the directory of cases") {
        let path = entry.expect("a directory entry").path();
        let file = path.file_name().expect("a name").to_string_lossy().into_owned();
        if let [name, said, "ptx"] = file.split('.').collect::<Vec<_>>().as_slice() {
            cases.push(Case { name: (*name).to_owned(), accepted: verdict(said), text: read(&path) });
        }
    }
    cases
}

/// The names in the table of the README: `| name | reason |`.
fn deliberate() -> Vec<String> {
    let readme = read(&directory().join("README.md"));
    let rows = readme.lines().filter_map(|l| l.strip_prefix("| `")?.split_once("` | "));
    rows.filter(|(_, reason)| reason.len() > 20).map(|(name, _)| name.to_owned()).collect()
}

#[test]
fn parser_and_verifier_agree_with_the_assembler() {
    let cases = cases();
    let mut differing = BTreeMap::new();
    for Case { name, accepted, text } in &cases {
        let parsed = parse(text);
        let findings = verify(&parsed.module);
        let ours = !parsed.has_errors() && !has_errors(&findings);
        if ours != *accepted {
            let mut said: Vec<String> = parsed.errors().map(ToString::to_string).collect();
            said.extend(findings.iter().map(ToString::to_string));
            differing.insert(name.clone(), format!("ptxas accepts: {accepted}; we say {said:?}"));
        }
    }
    let listed = deliberate();
    let unlisted: Vec<_> = differing.iter().filter(|(name, _)| !listed.contains(*name)).collect();
    assert!(unlisted.is_empty(), "{} differ:\n{unlisted:#?}", unlisted.len());
    let stale: Vec<_> = listed.iter().filter(|name| !differing.contains_key(*name)).collect();
    assert!(stale.is_empty(), "these agree now: {stale:?}");
    println!("{} of {} verdicts agree", cases.len() - differing.len(), cases.len());
    assert_eq!(cases.len(), 155);
}
