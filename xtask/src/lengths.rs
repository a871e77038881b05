//! A source file holds one noun: none may pass 1,000 lines.

use std::path::Path;

use crate::shell::root;

const MAX_LINES: usize = 1000;

/// Checks every Rust file of the workspace.
pub(crate) fn run() -> Result<(), String> {
    let mut long = Vec::new();
    for folder in ["bench", "crates", "xtask", "bridges", "fuzz"] {
        visit(&root().join(folder), &mut long)?;
    }
    if long.is_empty() { Ok(()) } else { Err(format!("files over {MAX_LINES} lines:\n{}", long.join("\n"))) }
}

fn visit(folder: &Path, long: &mut Vec<String>) -> Result<(), String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(()) };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            if path.file_name().is_some_and(|n| n != "target") {
                visit(&path, long)?;
            }
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
            let lines = text.lines().count();
            if lines > MAX_LINES {
                long.push(format!("  {} ({lines} lines)", path.display()));
            }
        }
    }
    Ok(())
}
