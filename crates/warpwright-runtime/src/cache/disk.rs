//! Machine code on disk, so that the next process does not compile again.
//!
//! One file per kernel, named by the hash of everything that the code depends on. A file is a header (magic, key, length,
//! checksum) and the cubin. What does not match in every part is ignored, and written anew by whoever compiles next; no
//! failure of the file system is ever an error of a load.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest, Sha256};

use crate::discover::DriverVersion;

const MAGIC: &[u8; 8] = b"WWCUBIN\x01";
const HEADER: usize = MAGIC.len() + 32 + 8 + 32;
/// Files in the directory above which the oldest quarter is removed.
const MAX_FILES: usize = 8192;
/// Distinguishes the temporary files of one process.
static NEXT_TEMPORARY: AtomicU64 = AtomicU64::new(0);

/// Everything that machine code depends on, hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CubinKey([u8; 32]);

impl CubinKey {
    /// The key of `text` compiled by `driver` for compute capability `sm`.
    pub(crate) fn new(driver: DriverVersion, sm: u32, text: &str) -> Self {
        let mut hash = Sha256::new();
        hash.update(MAGIC);
        hash.update(driver.major.to_le_bytes());
        hash.update(driver.minor.to_le_bytes());
        hash.update(sm.to_le_bytes());
        hash.update(text);
        Self(hash.finalize().into())
    }

    fn file_name(&self) -> String {
        let mut name = String::with_capacity(70);
        for byte in self.0 {
            // Writing to a String cannot fail.
            let _ = write!(name, "{byte:02x}");
        }
        name + ".cubin"
    }
}

/// A directory of machine code.
#[derive(Clone, Debug)]
pub(crate) struct DiskCache {
    directory: PathBuf,
}

impl DiskCache {
    /// `WARPWRIGHT_CACHE=0` turns the cache off; `WARPWRIGHT_CACHE_DIR` names its directory; otherwise it is in the
    /// user's cache directory.
    pub(crate) fn from_environment() -> Option<Self> {
        let get = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty());
        if get("WARPWRIGHT_CACHE").is_some_and(|v| v == "0") {
            return None;
        }
        let directory = get("WARPWRIGHT_CACHE_DIR").map(PathBuf::from).or_else(|| {
            let base = if cfg!(windows) {
                get("LOCALAPPDATA").map(PathBuf::from)
            } else {
                // A relative XDG_CACHE_HOME is to be ignored, says the XDG specification.
                let xdg = get("XDG_CACHE_HOME").map(PathBuf::from).filter(|p| p.is_absolute());
                let home = || get("HOME").map(PathBuf::from);
                let usual = if cfg!(target_os = "macos") { "Library/Caches" } else { ".cache" };
                xdg.or_else(|| Some(home()?.join(usual)))
            };
            Some(base?.join("warpwright").join("cubin"))
        })?;
        Some(Self::at(directory))
    }

    /// The cache in `directory`, which is made when something is stored.
    pub(crate) fn at(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// The machine code stored under `key`, if it is there and intact.
    pub(crate) fn get(&self, key: &CubinKey) -> Option<Vec<u8>> {
        let mut file = fs::read(self.directory.join(key.file_name())).ok()?;
        if file.len() <= HEADER {
            return None;
        }
        let cubin = file.split_off(HEADER);
        (file == header(key, &cubin)).then_some(cubin)
    }

    /// Stores machine code. A reader sees the whole file or none: it is written under another name and then renamed.
    pub(crate) fn put(&self, key: &CubinKey, cubin: &[u8]) {
        // A cache that cannot be written costs a compilation, no more.
        let _ = self.store(key, cubin);
    }

    fn store(&self, key: &CubinKey, cubin: &[u8]) -> io::Result<()> {
        create_private_directory(&self.directory)?;
        let number = NEXT_TEMPORARY.fetch_add(1, Ordering::Relaxed);
        let temporary = self.directory.join(format!("{}-{number}.tmp", std::process::id()));
        let written = fs::File::create(&temporary).and_then(|mut file| {
            file.write_all(&header(key, cubin))?;
            file.write_all(cubin)
        });
        let stored = written.and_then(|()| fs::rename(&temporary, self.directory.join(key.file_name())));
        if stored.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        self.prune(MAX_FILES);
        stored
    }

    /// Removes the oldest quarter if there are more than `most` files.
    fn prune(&self, most: usize) {
        let Ok(entries) = fs::read_dir(&self.directory) else { return };
        let mut files: Vec<_> = entries
            .flatten()
            .filter_map(|e| Some((e.metadata().ok()?.modified().ok()?, e.path())))
            .filter(|(_, path)| path.extension().is_some_and(|x| x == "cubin" || x == "tmp"))
            .collect();
        if files.len() <= most {
            return;
        }
        files.sort();
        for (_, path) in &files[..files.len().div_ceil(4)] {
            let _ = fs::remove_file(path);
        }
    }
}

fn header(key: &CubinKey, cubin: &[u8]) -> Vec<u8> {
    let mut header = Vec::with_capacity(HEADER);
    header.extend_from_slice(MAGIC);
    header.extend_from_slice(&key.0);
    header.extend_from_slice(&(cubin.len() as u64).to_le_bytes());
    header.extend_from_slice(&Sha256::digest(cubin));
    header
}

/// Only the user may write here: the files are executed on the GPU.
fn create_private_directory(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRIVER: DriverVersion = DriverVersion { major: 13, minor: 0 };

    fn stored() -> (tempfile::TempDir, DiskCache, CubinKey) {
        let directory = tempfile::tempdir().expect("temporary directory");
        let cache = DiskCache::at(directory.path().join("deep").join("cubin"));
        let key = CubinKey::new(DRIVER, 90, ".version 7.0");
        cache.put(&key, b"machine code");
        (directory, cache, key)
    }

    #[test]
    fn what_is_stored_comes_back() {
        let (_directory, cache, key) = stored();
        assert_eq!(cache.get(&key).as_deref(), Some(&b"machine code"[..]));
        cache.put(&key, b"other code");
        assert_eq!(cache.get(&key).as_deref(), Some(&b"other code"[..]));
        let names: Vec<_> =
            fs::read_dir(&cache.directory).expect("list").flatten().map(|e| e.file_name()).collect();
        assert_eq!(names.len(), 1, "no temporary file stays: {names:?}");
    }

    #[test]
    fn keys_depend_on_everything() {
        let (_directory, cache, key) = stored();
        let others = [
            CubinKey::new(DRIVER, 89, ".version 7.0"),
            CubinKey::new(DRIVER, 90, ".version 7.1"),
            CubinKey::new(DriverVersion { major: 12, minor: 8 }, 90, ".version 7.0"),
        ];
        for other in others {
            assert_ne!(key, other);
            assert_eq!(cache.get(&other), None);
        }
    }

    #[test]
    fn every_damaged_file_is_ignored_and_replaced() {
        let (_directory, cache, key) = stored();
        let path = cache.directory.join(key.file_name());
        let good = fs::read(&path).expect("stored file");
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            fs::write(&path, bad).expect("write");
            assert_eq!(cache.get(&key), None, "a flipped bit in byte {at}");
        }
        for length in 0..good.len() {
            fs::write(&path, &good[..length]).expect("write");
            assert_eq!(cache.get(&key), None, "cut to {length} bytes");
        }
        fs::write(&path, [good.as_slice(), b"x"].concat()).expect("write");
        assert_eq!(cache.get(&key), None, "a byte too many");
        cache.put(&key, b"machine code");
        assert_eq!(fs::read(&path).expect("replaced"), good);
    }

    #[test]
    fn a_file_under_another_name_is_foreign() {
        let (_directory, cache, key) = stored();
        let other = CubinKey::new(DRIVER, 90, "other text");
        fs::copy(cache.directory.join(key.file_name()), cache.directory.join(other.file_name()))
            .expect("copy");
        assert_eq!(cache.get(&other), None);
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_no_error() {
        let file = tempfile::NamedTempFile::new().expect("temporary file");
        let cache = DiskCache::at(file.path().join("cubin"));
        let key = CubinKey::new(DRIVER, 90, "text");
        cache.put(&key, b"machine code");
        assert_eq!(cache.get(&key), None);
    }

    #[test]
    fn old_files_are_pruned() {
        let (_directory, cache, _) = stored();
        for i in 0..7 {
            cache.put(&CubinKey::new(DRIVER, 90, &i.to_string()), b"code");
        }
        cache.prune(8);
        assert_eq!(fs::read_dir(&cache.directory).expect("list").count(), 8);
        cache.prune(7);
        assert_eq!(fs::read_dir(&cache.directory).expect("list").count(), 6);
    }
}
