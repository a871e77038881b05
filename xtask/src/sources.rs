//! Rules for source files that no other tool knows: a file holds one noun and has at most 800 lines, and a doc comment names its item
//! instead of opening with "What".

use std::path::Path;

use crate::shell::root;

const MAX_LINES: usize = 800;

/// Checks every Rust file of the workspace and of the bridges.
pub(crate) fn run() -> Result<(), String> {
    let mut found = Vec::new();
    for folder in ["bench", "crates", "xtask", "bridges", "fuzz"] {
        visit(&root().join(folder), &mut found)?;
    }
    if found.is_empty() { Ok(()) } else { Err(found.join("\n")) }
}

fn visit(folder: &Path, found: &mut Vec<String>) -> Result<(), String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(()) };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            if path.file_name().is_some_and(|n| n != "target") {
                visit(&path, found)?;
            }
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
            found.extend(violations(&text).map(|violation| format!("{}:{violation}", path.display())));
        }
    }
    Ok(())
}

/// Violations in the text of a file, each with its line.
fn violations(text: &str) -> impl Iterator<Item = String> + '_ {
    let lines = text.lines().count();
    let long = (lines > MAX_LINES).then(|| format!("{lines}: {lines} lines; at most {MAX_LINES}"));
    let mut in_comment = false;
    let openings = text.lines().enumerate().filter_map(move |(at, line)| {
        let line = line.trim_start();
        let prose = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
        let opens = !in_comment && prose.is_some_and(|p| p.trim_start().starts_with("What "));
        in_comment = prose.is_some();
        opens.then(|| format!("{}: a doc comment opens with \"What\"; name the thing", at + 1))
    });
    long.into_iter().chain(openings)
}

#[cfg(test)]
mod tests {
    use super::{MAX_LINES, violations};

    fn lines(text: &str) -> Vec<String> {
        violations(text).map(|v| v.split(':').next().unwrap_or_default().to_owned()).collect()
    }

    #[test]
    fn long_files_are_found() {
        assert_eq!(lines(&"x\n".repeat(MAX_LINES)), [""; 0]);
        assert_eq!(lines(&"x\n".repeat(MAX_LINES + 1)), [(MAX_LINES + 1).to_string()]);
    }

    #[test]
    fn only_openings_of_doc_comments_are_found() {
        assert_eq!(lines("//! What it is.\nstruct A;\n    /// What it has.\nfield"), ["1", "3"]);
        assert_eq!(
            lines("/// The width.\n/// What is left is zero.\n// What a test sees.\n\"What \""),
            [""; 0]
        );
    }
}
