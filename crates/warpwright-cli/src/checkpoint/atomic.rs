//! Files that appear whole or not at all.
//!
//! An [`AtomicFile`] is a temporary file in the folder of its target. Committing makes its bytes durable and renames
//! it; dropping it, for whatever reason, removes it and leaves the target as it was.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use super::error::{CheckpointError, Defect};
use super::safetensors::read_exact_at;
use crate::interrupt::{self, Leftover};

/// Where the writer puts its bytes.
///
/// A trait, so that tests can stand in a disk that fills up.
pub trait Storage: Sync {
    /// Writes all of `bytes` at `offset`, growing the file where needed. Several threads may do so at a time, each in its place.
    ///
    /// # Errors
    /// The system's reason.
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Reads back what was written.
    ///
    /// # Errors
    /// The system's reason.
    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()>;
}

/// A file that takes its name when it is committed.
#[derive(Debug)]
pub struct AtomicFile {
    target: PathBuf,
    temporary: NamedTempFile,
    /// Dropped after the file.
    leftover: Leftover,
    replace: bool,
}

impl AtomicFile {
    /// Begins a file that will be called `target`; an existing one is refused unless `replace`.
    ///
    /// # Errors
    /// The target exists, or its folder cannot be written.
    pub fn create(target: &Path, replace: bool) -> Result<Self, CheckpointError> {
        check_free(target, replace)?;
        let name = target.file_name().ok_or_else(|| CheckpointError::file(target, Defect::NotAFile))?;
        let mut prefix = std::ffi::OsString::from(".");
        prefix.push(name);
        prefix.push(".");
        let mut builder = tempfile::Builder::new();
        builder.prefix(&prefix).suffix(".tmp");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            // What an ordinary new file gets: the umask takes its share off.
            builder.permissions(std::fs::Permissions::from_mode(0o666));
        }
        let busy = interrupt::busy();
        let temporary = builder.tempfile_in(folder_of(target)).map_err(|source| {
            CheckpointError::file(target, Defect::Io { action: "create the file", source })
        })?;
        let leftover = Leftover::new(temporary.path(), &busy);
        Ok(Self { target: target.to_owned(), temporary, leftover, replace })
    }

    /// The name that the file will have.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Makes the bytes durable, which may take long.
    ///
    /// # Errors
    /// The system's reason.
    pub fn sync(&self) -> Result<(), CheckpointError> {
        let failed = |source| CheckpointError::file(&self.target, Defect::Io { action: "write", source });
        self.temporary.as_file().sync_all().map_err(failed)
    }

    /// Makes the bytes durable and gives the file its name.
    ///
    /// # Errors
    /// The system's reason, or that the target has come into being meanwhile. The temporary file is gone then.
    pub fn commit(self) -> Result<(), CheckpointError> {
        self.sync()?;
        let _busy = interrupt::busy();
        let renamed = if self.replace {
            self.temporary.persist(&self.target)
        } else {
            self.temporary.persist_noclobber(&self.target)
        };
        drop(self.leftover);
        renamed.map_err(|failure| {
            let defect = match failure.error.kind() {
                io::ErrorKind::AlreadyExists => Defect::OutputExists,
                _ => Defect::Io { action: "rename the finished file", source: failure.error },
            };
            CheckpointError::file(&self.target, defect)
        })?;
        sync_folder(folder_of(&self.target));
        Ok(())
    }
}

impl Storage for AtomicFile {
    #[cfg(unix)]
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::write_all_at(self.temporary.as_file(), bytes, offset)?;
        start_writeback(self.temporary.as_file(), bytes.len(), offset);
        Ok(())
    }

    #[cfg(windows)]
    fn write_all_at(&self, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            let written = std::os::windows::fs::FileExt::seek_write(self.temporary.as_file(), bytes, offset)?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            bytes = &bytes[written..];
            offset += written as u64;
        }
        Ok(())
    }

    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        read_exact_at(self.temporary.as_file(), bytes, offset)
    }
}

/// Has the system begin to bring what was just written to the disk, so that the commit waits for the rest alone.
///
/// On Linux the advice that pages are not needed any more starts that without waiting, and drops only pages that are on the disk
/// already; those of large writes would otherwise stay in memory until the end. It is advice: where it fails, nothing is lost.
#[cfg(unix)]
fn start_writeback(file: &File, length: usize, offset: u64) {
    #[cfg(target_os = "linux")]
    {
        /// Below this the call costs more than it brings.
        const LEAST: usize = 256 << 10;
        if let Some(length) = std::num::NonZeroU64::new(length as u64).filter(|_| length >= LEAST) {
            let _ = rustix::fs::fadvise(file, offset, Some(length), rustix::fs::Advice::DontNeed);
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (file, length, offset);
}

/// Writes a small file as a whole, atomically.
///
/// # Errors
/// As [`AtomicFile::create`] and [`AtomicFile::commit`].
pub fn write_whole(target: &Path, bytes: &[u8], replace: bool) -> Result<(), CheckpointError> {
    let mut file = AtomicFile::create(target, replace)?;
    file.temporary
        .write_all(bytes)
        .map_err(|source| CheckpointError::file(target, Defect::Io { action: "write", source }))?;
    file.commit()
}

/// Refuses a target that exists (unless `replace`) and one that is not a file (always).
///
/// # Errors
/// That it exists, or what it is.
pub fn check_free(target: &Path, replace: bool) -> Result<(), CheckpointError> {
    match std::fs::symlink_metadata(target) {
        Ok(_) if !replace => Err(CheckpointError::file(target, Defect::OutputExists)),
        Ok(facts) if !facts.is_file() => Err(CheckpointError::file(target, Defect::NotAFile)),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(CheckpointError::file(target, Defect::Io { action: "create the file", source })),
    }
}

/// The folder that a path lies in; `.` for a bare name.
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
}

/// Makes a rename durable. Not every system lets a folder be opened or synchronised; the bytes are safe either way.
pub(crate) fn sync_folder(folder: &Path) {
    if let Ok(folder) = File::open(folder) {
        let _ = folder.sync_all();
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The names in a folder, hidden ones included.
    pub(crate) fn names_in(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_dropped_file_leaves_nothing_and_a_committed_one_everything() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("out");
        let file = AtomicFile::create(&target, false).unwrap();
        file.write_all_at(b"half", 0).unwrap();
        assert_eq!(names_in(folder.path()).len(), 1);
        drop(file);
        assert!(names_in(folder.path()).is_empty());

        let file = AtomicFile::create(&target, false).unwrap();
        file.write_all_at(b"world", 6).unwrap();
        file.write_all_at(b"hello ", 0).unwrap();
        let mut back = [0; 3];
        file.read_exact_at(&mut back, 4).unwrap();
        assert_eq!(&back, b"o w");
        assert!(!target.exists());
        file.commit().unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), b"hello world");
        assert_eq!(names_in(folder.path()), ["out"]);
    }

    #[test]
    fn an_existing_target_is_refused_early_and_late() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("out");
        let late = AtomicFile::create(&target, false).unwrap();
        std::fs::write(&target, b"theirs").unwrap();
        let exists = |error: CheckpointError| matches!(*error.defect, Defect::OutputExists);
        assert!(exists(late.commit().unwrap_err()));
        assert!(exists(AtomicFile::create(&target, false).unwrap_err()));
        assert_eq!(std::fs::read(&target).unwrap(), b"theirs");
        write_whole(&target, b"ours", true).unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), b"ours");
        assert_eq!(names_in(folder.path()), ["out"]);
    }

    #[test]
    fn a_folder_is_never_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let error = AtomicFile::create(folder.path(), true).unwrap_err();
        assert!(matches!(*error.defect, Defect::NotAFile));
    }

    #[cfg(unix)]
    #[test]
    fn a_new_file_has_ordinary_permissions() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let (ours, plain) = (folder.path().join("ours"), folder.path().join("plain"));
        write_whole(&ours, b"x", false).unwrap();
        std::fs::write(&plain, b"x").unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&ours), mode(&plain));
    }
}
