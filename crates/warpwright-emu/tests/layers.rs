//! Which parts of the crate may name which, as ARCHITECTURE.md has it.

use std::path::Path;

/// Every `.rs` file below `folder`, tests inside of the crate aside, with its path.
fn sources(folder: &Path, found: &mut Vec<(String, String)>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            sources(&path, found)?;
        } else if path.extension().is_some_and(|e| e == "rs")
            && path.file_stem().is_some_and(|n| n != "tests")
        {
            found.push((path.display().to_string(), std::fs::read_to_string(&path)?));
        }
    }
    Ok(())
}

#[test]
fn decoding_executing_and_judging_are_apart() -> std::io::Result<()> {
    let forbidden = [
        ("code", &["decode", "events", "exec", "sanitize"][..]),
        ("decode", &["events", "exec", "sanitize"]),
        ("events", &["decode", "exec", "sanitize"]),
        ("exec", &["decode", "sanitize"]),
        ("sanitize", &["decode", "exec"]),
    ];
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for (part, others) in forbidden {
        let mut files = Vec::new();
        sources(&source.join(part), &mut files)?;
        assert!(!files.is_empty(), "{part} has moved");
        for (path, text) in files {
            for other in others {
                assert!(!text.contains(&format!("crate::{other}::")), "{path} takes from {other}");
            }
        }
    }
    Ok(())
}
