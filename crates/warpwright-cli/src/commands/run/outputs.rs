//! Outputs of `run`: which files it may replace, and arrays that go from the device to the disk a part at a time.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use warpwright_ptx::DType;

use super::arguments::Arguments;
use super::page;
use crate::args::RunArgs;
use crate::checkpoint::atomic::{AtomicFile, Storage};
use crate::checkpoint::{CheckpointError, Defect};
use crate::error::Error;
use crate::interrupt;
use crate::npy::{self, NpyFile};
use crate::paths::{check_new_file, keep_apart};

/// Bytes that are read from a device at once.
pub(super) const CHUNK: usize = 4 << 20;

/// Refuses outputs that the command reads or that are named twice, always; and those that exist and are no earlier output
/// of `run`, unless the user insists.
///
/// # Errors
/// The first such output.
pub(super) fn check(args: &RunArgs, arguments: &Arguments) -> Result<(), Error> {
    let given = [Some(args.file.as_path()), args.args_json.as_deref()];
    let reads: Vec<_> = arguments.inputs().chain(given.into_iter().flatten()).collect();
    let writes: Vec<_> = arguments.outputs().chain(args.html.as_deref()).collect();
    keep_apart(&reads, &writes)?;
    writes.into_iter().try_for_each(|output| check_new_file(output, args.force || is_earlier_output(output)))
}

/// Whether a file may be replaced without being asked: an array as `run` writes them, or a page of costs.
fn is_earlier_output(path: &Path) -> bool {
    let regular = std::fs::symlink_metadata(path).is_ok_and(|facts| facts.is_file());
    regular && (NpyFile::open(path).is_ok() || is_page(path))
}

fn is_page(path: &Path) -> bool {
    let start = page::start();
    let mut found = vec![0; start.len()];
    File::open(path).and_then(|mut file| file.read_exact(&mut found)).is_ok() && found == start.as_bytes()
}

/// An array that was written and has no name yet.
pub(super) struct Output {
    pub(super) path: PathBuf,
    pub(super) dtype: DType,
    pub(super) shape: Vec<u64>,
    file: Option<AtomicFile>,
}

impl Output {
    /// Writes the array of an argument; `read` fills a part of it from the device, given where it begins.
    ///
    /// # Errors
    /// The file cannot be written, the device cannot be read, or the user wants to end.
    pub(super) fn write(
        path: &Path,
        force: bool,
        (dtype, shape): (DType, &[u64]),
        bytes: u64,
        mut read: impl FnMut(u64, &mut [u8]) -> Result<(), Error>,
    ) -> Result<Self, Error> {
        let file = create(path, force)?;
        let failed = |source| CheckpointError::file(path, Defect::Io { action: "write", source });
        let header = npy::header(dtype, shape);
        file.write_all_at(&header, 0).map_err(failed)?;
        let mut chunk = vec![0; CHUNK.min(usize::try_from(bytes).unwrap_or(CHUNK))];
        let mut at = 0;
        while at < bytes {
            interrupt::check()?;
            let chunk = &mut chunk[..(bytes - at).min(CHUNK as u64) as usize];
            read(at, chunk)?;
            file.write_all_at(chunk, header.len() as u64 + at).map_err(failed)?;
            at += chunk.len() as u64;
        }
        Ok(Self { path: path.to_owned(), dtype, shape: shape.to_vec(), file: Some(file) })
    }
}

fn create(path: &Path, force: bool) -> Result<AtomicFile, CheckpointError> {
    AtomicFile::create(path, force || is_earlier_output(path))
}

/// Gives all outputs, and a page if there is one, their names. Nothing has one before all are written.
///
/// # Errors
/// The system's reason.
pub(super) fn commit(outputs: &mut [Output], page: Option<(&Path, &str)>, force: bool) -> Result<(), Error> {
    let page = page.map(|(path, text)| {
        let file = create(path, force)?;
        let failed = |source| CheckpointError::file(path, Defect::Io { action: "write", source });
        file.write_all_at(text.as_bytes(), 0).map_err(failed)?;
        Ok::<_, Error>(file)
    });
    let files: Vec<_> =
        outputs.iter_mut().filter_map(|output| output.file.take()).chain(page.transpose()?).collect();
    for file in &files {
        interrupt::check()?;
        file.sync()?;
    }
    let _busy = interrupt::busy();
    Ok(files.into_iter().try_for_each(AtomicFile::commit)?)
}
