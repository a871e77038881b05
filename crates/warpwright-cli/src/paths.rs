//! Paths of the command line: printed so that a terminal does nothing about them, and outputs kept off what is read.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::checkpoint::atomic::{check_free, folder_of};
use crate::checkpoint::sharded::{INDEX, SINGLE, shard_name};
use crate::checkpoint::{Checkpoint, CheckpointError, Defect, Reader};
use crate::convert::config::CONFIG;
use crate::error::{Error, Use};

/// A path as it is safe to print: characters that a terminal would act on are escaped, such as those of ANSI sequences and
/// those that reverse the direction of writing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shown<'a>(pub(crate) &'a Path);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.to_string_lossy().chars().try_for_each(|c| escape(f, c))
    }
}

/// A text that may hold names from outside, as it is safe to print: lines stay lines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Harmless<'a>(pub(crate) &'a str);

impl fmt::Display for Harmless<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '\n' | '\t' => fmt::Write::write_char(f, c),
            c => escape(f, c),
        })
    }
}

fn escape(f: &mut fmt::Formatter<'_>, c: char) -> fmt::Result {
    if is_harmless(c) { fmt::Write::write_char(f, c) } else { write!(f, "{}", c.escape_debug()) }
}

/// Whether a terminal only shows the character.
pub(crate) fn is_harmless(c: char) -> bool {
    // `str::escape_debug` leaves a combining character behind another one as it is, `char::escape_debug` does not.
    matches!(c, '\\' | '\'' | '"') || String::from_iter(['x', c]).escape_debug().nth(1) == Some(c)
}

/// Refuses an output that is one of the inputs or another output, whatever `--force` says: two names of one file count as
/// the same, be it by links or by the way that they are spelled.
///
/// # Errors
/// [`Error::OutputTaken`] names the first.
pub(crate) fn keep_apart(reads: &[&Path], writes: &[&Path]) -> Result<(), Error> {
    for (at, output) in writes.iter().enumerate() {
        let is_it = |other: &&&Path| same_file(output, other);
        let read = reads.iter().find(is_it).map(|other| (other, Use::Input));
        let written = || writes[..at].iter().find(is_it).map(|other| (other, Use::Output));
        if let Some((other, role)) = read.or_else(written) {
            let (output, other) = (output.to_path_buf(), other.to_path_buf());
            return Err(Error::OutputTaken { output, other, role });
        }
    }
    Ok(())
}

/// Refuses, before any work, a conversion whose output or report would take the place of a file that it reads, or of one
/// another, and a report that cannot be written.
///
/// # Errors
/// [`Error::OutputTaken`]; that the report exists and `replace` is not set, or that it cannot be created.
pub(crate) fn check_conversion(
    input: &Path,
    checkpoint: &Checkpoint,
    output: &Path,
    report: Option<&Path>,
    replace: bool,
) -> Result<(), Error> {
    let folder = checkpoint.folder();
    let shards = checkpoint.shards();
    let (index, config) = (folder.join(INDEX), folder.join(CONFIG));
    let beside = [input, &index, &config].into_iter().filter(|path| path.is_file());
    let reads: Vec<_> = shards.iter().map(Reader::path).chain(beside).collect();
    // What a folder would get, if the output is one.
    let target = if output.extension().is_some_and(|x| x == "json") { folder_of(output) } else { output };
    let names = shards.iter().map(shard_name).chain([SINGLE, INDEX, CONFIG].map(str::to_owned));
    let inside: Vec<PathBuf> = names.map(|name| target.join(name)).collect();
    let writes = || [output].into_iter().chain(inside.iter().map(PathBuf::as_path));
    writes().try_for_each(|path| keep_apart(&reads, &[path]))?;
    let Some(report) = report else { return Ok(()) };
    keep_apart(&reads, &[report])?;
    writes().try_for_each(|path| keep_apart(&[], &[path, report]))?;
    // A folder that the conversion makes takes the report afterwards.
    let is_folder = (checkpoint.is_sharded() || input.is_dir()) && !target.exists();
    let made = is_folder && same_file(folder_of(report), target);
    if made { Ok(check_free(report, replace)?) } else { check_new_file(report, replace) }
}

/// Refuses, before any work, a file that cannot be written at its end.
///
/// # Errors
/// It exists and `replace` is not set, it is no file, or its folder takes none.
pub(crate) fn check_new_file(path: &Path, replace: bool) -> Result<(), Error> {
    check_free(path, replace)?;
    let cannot = |source| CheckpointError::file(path, Defect::Io { action: "create the file", source });
    // The one way to know is to try.
    tempfile::Builder::new().prefix(".warpwright.").tempfile_in(folder_of(path)).map_err(cannot)?;
    Ok(())
}

/// Whether two paths name one file, or would if it existed.
fn same_file(a: &Path, b: &Path) -> bool {
    match (std::fs::metadata(a), std::fs::metadata(b)) {
        #[cfg(unix)]
        (Ok(a), Ok(b)) => {
            use std::os::unix::fs::MetadataExt;
            (a.dev(), a.ino()) == (b.dev(), b.ino())
        }
        #[cfg(not(unix))]
        (Ok(_), Ok(_)) => matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b),
        (Ok(_), Err(_)) | (Err(_), Ok(_)) => false,
        (Err(_), Err(_)) => matches!((resolved(a), resolved(b)), (Ok(a), Ok(b)) if a == b),
    }
}

/// The path from the root, without links in the part that exists.
fn resolved(path: &Path) -> io::Result<PathBuf> {
    let mut rest = Vec::new();
    let mut known = std::path::absolute(path)?;
    loop {
        match known.canonicalize() {
            Ok(mut found) => {
                found.extend(rest.iter().rev());
                return Ok(found);
            }
            Err(error) => {
                let Some(name) = known.file_name().map(ToOwned::to_owned) else { return Err(error) };
                rest.push(name);
                known.pop();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_do_nothing_to_a_terminal() {
        let shown = |path: &str| Shown(Path::new(path)).to_string();
        assert_eq!(shown("a b/Größe 'x'\\y\"z\".npy"), "a b/Größe 'x'\\y\"z\".npy");
        // A letter and a combining accent, as macOS stores names.
        assert_eq!(shown("e\u{301}t\u{e9}"), "e\u{301}t\u{e9}");
        assert_eq!(shown("\u{1b}[2J\n\u{7}\u{9b}31m"), "\\u{1b}[2J\\n\\u{7}\\u{9b}31m");
        assert_eq!(shown("a\u{202e}gpj.exe\u{2066}\u{feff}"), "a\\u{202e}gpj.exe\\u{2066}\\u{feff}");
        assert_eq!(Harmless("one\n\ttwo\u{1b}[0m\r").to_string(), "one\n\ttwo\\u{1b}[0m\\r");
    }

    #[test]
    fn one_file_has_many_names() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("x"), "x").expect("written");
        std::fs::write(at("y"), "x").expect("written");
        std::fs::create_dir(at("deep")).expect("made");
        assert!(same_file(&at("x"), &at("deep/../x")) && !same_file(&at("x"), &at("y")));
        assert!(same_file(&at("new"), &at("./deep/../new")) && !same_file(&at("new"), &at("newer")));
        assert!(same_file(&at("no/new"), &at("deep/../no/new")) && !same_file(&at("no/new"), &at("new")));
        assert!(!same_file(&at("x"), &at("new")));
        #[cfg(unix)]
        {
            std::fs::hard_link(at("x"), at("hard")).expect("linked");
            std::os::unix::fs::symlink(at("x"), at("soft")).expect("linked");
            std::os::unix::fs::symlink(at("deep"), at("way")).expect("linked");
            assert!(same_file(&at("x"), &at("hard")) && same_file(&at("x"), &at("soft")));
            assert!(same_file(&at("deep/new"), &at("way/new")) && !same_file(&at("hard"), &at("y")));
        }
    }
}
