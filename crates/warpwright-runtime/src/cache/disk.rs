//! Machine code on disk, so that the next process does not compile again.
//!
//! One file per kernel, named by the hash of everything that the code depends on. A file is a header (magic, key, length,
//! checksum) and the cubin. What does not match in every part is ignored, and written anew by whoever compiles next; no
//! failure of the file system is ever an error of a load.
//!
//! Whoever can write here decides what runs on the user's GPU. So nothing is read from or written to a folder that is another
//! user's or that others may write, nor is a file read of which that is true.

use std::fmt::{self, Write as _};
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::discover::DriverVersion;

const MAGIC: &[u8; 8] = b"WWCUBIN\x01";
const HEADER: usize = MAGIC.len() + 32 + 8 + 32;
/// Files in the directory above which the oldest quarter is removed.
const MAX_FILES: usize = 8192;

/// Where a process keeps machine code between runs, or why it does not.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DiskCacheStatus {
    /// In this folder, which is made when something is stored.
    On {
        /// The folder.
        directory: PathBuf,
    },
    /// `WARPWRIGHT_CACHE=0`, or a device of [`Device::cuda_compiling`](crate::Device::cuda_compiling).
    Disabled,
    /// The device compiles nothing: it is an emulator.
    NotNeeded,
    /// Neither `WARPWRIGHT_CACHE_DIR` nor the environment's usual variables name a folder.
    NoDirectory,
    /// The folder cannot be trusted, and is left alone.
    Refused {
        /// The folder.
        directory: PathBuf,
        /// Why.
        why: DiskCacheRefusal,
    },
}

impl DiskCacheStatus {
    /// The status that CUDA devices opened now would have.
    pub fn from_environment() -> Self {
        match DiskCache::from_environment() {
            Ok(cache) => cache.status(),
            Err(status) => status,
        }
    }
}

impl fmt::Display for DiskCacheStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::On { directory } => write!(f, "{}", directory.display()),
            Self::Disabled => f.write_str("off: WARPWRIGHT_CACHE is 0"),
            Self::NotNeeded => f.write_str("none: an emulator compiles nothing"),
            Self::NoDirectory => f.write_str("off: no folder is known; WARPWRIGHT_CACHE_DIR names one"),
            Self::Refused { directory, why } => write!(f, "off: {} {why}", directory.display()),
        }
    }
}

/// Why a folder is not used for machine code.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DiskCacheRefusal {
    /// It is something else.
    NotADirectory,
    /// It belongs to another user.
    ForeignOwner {
        /// The number of the user who owns it.
        owner: u32,
        /// The number of the user whom the process runs as.
        user: u32,
    },
    /// Others may write to it.
    OthersMayWrite {
        /// Its permissions.
        mode: u32,
    },
    /// The system does not tell.
    Unknown {
        /// Its content.
        kind: io::ErrorKind,
    },
}

impl fmt::Display for DiskCacheRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotADirectory => f.write_str("is not a directory"),
            Self::ForeignOwner { owner, user } => {
                write!(f, "belongs to user {owner}, not to {user}; WARPWRIGHT_CACHE_DIR names another")
            }
            Self::OthersMayWrite { mode } => {
                write!(
                    f,
                    "can be written by others (mode {mode:03o}): chmod go-w, or name another with WARPWRIGHT_CACHE_DIR"
                )
            }
            Self::Unknown { kind } => write!(f, "cannot be examined: {kind}"),
        }
    }
}

/// Whether nobody but the user may change what this describes.
#[cfg(unix)]
fn examine(facts: &fs::Metadata) -> Result<(), DiskCacheRefusal> {
    use std::os::unix::fs::MetadataExt;
    let (owner, user) = (facts.uid(), rustix::process::geteuid().as_raw());
    if owner != user {
        return Err(DiskCacheRefusal::ForeignOwner { owner, user });
    }
    let mode = facts.mode() & 0o7777;
    if mode & 0o022 != 0 {
        return Err(DiskCacheRefusal::OthersMayWrite { mode });
    }
    Ok(())
}

/// Elsewhere folders of a user are the user's by the system's own rules.
#[cfg(not(unix))]
fn examine(_: &fs::Metadata) -> Result<(), DiskCacheRefusal> {
    Ok(())
}

/// Everything that machine code depends on, hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CubinKey([u8; 32]);

impl CubinKey {
    /// The key of `text` compiled for compute capability `sm` by the `build` of a driver that implements `driver`: what
    /// implements one version of CUDA may still compile otherwise.
    pub(crate) fn new(driver: DriverVersion, build: &str, sm: u32, text: &str) -> Self {
        let mut hash = Sha256::new();
        hash.update(MAGIC);
        hash.update(driver.major.to_le_bytes());
        hash.update(driver.minor.to_le_bytes());
        hash.update((build.len() as u64).to_le_bytes());
        hash.update(build);
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
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) fn from_environment() -> Result<Self, DiskCacheStatus> {
        let get = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty());
        if get("WARPWRIGHT_CACHE").is_some_and(|v| v == "0") {
            return Err(DiskCacheStatus::Disabled);
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
        });
        directory.map(Self::at).ok_or(DiskCacheStatus::NoDirectory)
    }

    /// The cache in `directory`, which is made when something is stored.
    pub(crate) fn at(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// Whether the folder can be used as it is now.
    pub(crate) fn status(&self) -> DiskCacheStatus {
        let directory = self.directory.clone();
        match self.check() {
            Ok(_) => DiskCacheStatus::On { directory },
            Err(why) => DiskCacheStatus::Refused { directory, why },
        }
    }

    /// Whether the folder is there; that it cannot be trusted is an error. It may change between two calls, so every one
    /// asks anew.
    fn check(&self) -> Result<bool, DiskCacheRefusal> {
        match fs::metadata(&self.directory) {
            Ok(facts) if !facts.is_dir() => Err(DiskCacheRefusal::NotADirectory),
            Ok(facts) => examine(&facts).map(|()| true),
            Err(error) => match error.kind() {
                io::ErrorKind::NotFound => Ok(false),
                io::ErrorKind::NotADirectory => Err(DiskCacheRefusal::NotADirectory),
                kind => Err(DiskCacheRefusal::Unknown { kind }),
            },
        }
    }

    /// The machine code stored under `key`, if it is there, intact, and the user's own.
    pub(crate) fn get(&self, key: &CubinKey) -> Option<Vec<u8>> {
        if !self.check().ok()? {
            return None;
        }
        let mut file = fs::File::open(self.directory.join(key.file_name())).ok()?;
        // Of what was opened, whatever has its name by now.
        let facts = file.metadata().ok()?;
        if !facts.is_file() || examine(&facts).is_err() {
            return None;
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).ok()?;
        if bytes.len() <= HEADER {
            return None;
        }
        let cubin = bytes.split_off(HEADER);
        (bytes == header(key, &cubin)).then_some(cubin)
    }

    /// Stores machine code. A reader sees the whole file or none: it is written under another name and then renamed.
    pub(crate) fn put(&self, key: &CubinKey, cubin: &[u8]) {
        // A cache that cannot be written costs a compilation, no more.
        let _ = self.store(key, cubin);
    }

    fn store(&self, key: &CubinKey, cubin: &[u8]) -> io::Result<()> {
        create_private_directory(&self.directory)?;
        if !self.check().unwrap_or(false) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        // A new file under a name that nobody can know, for the user alone; removed unless it gets its name.
        let mut file = tempfile::Builder::new().suffix(".tmp").tempfile_in(&self.directory)?;
        file.write_all(&header(key, cubin))?;
        file.write_all(cubin)?;
        file.persist(self.directory.join(key.file_name()))?;
        self.prune(MAX_FILES);
        Ok(())
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
    const BUILD: &str = "libcuda.so.580.65.06";

    fn stored() -> (tempfile::TempDir, DiskCache, CubinKey) {
        let directory = tempfile::tempdir().expect("temporary directory");
        let cache = DiskCache::at(directory.path().join("deep").join("cubin"));
        let key = CubinKey::new(DRIVER, BUILD, 90, ".version 7.0");
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
            CubinKey::new(DRIVER, BUILD, 89, ".version 7.0"),
            CubinKey::new(DRIVER, BUILD, 90, ".version 7.1"),
            CubinKey::new(DriverVersion { major: 12, minor: 8 }, BUILD, 90, ".version 7.0"),
            CubinKey::new(DRIVER, "libcuda.so.580.95.05", 90, ".version 7.0"),
            // Which part a byte belongs to counts.
            CubinKey::new(DRIVER, &BUILD[..5], 90, &format!("{}.version 7.0", &BUILD[5..])),
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
        let other = CubinKey::new(DRIVER, BUILD, 90, "other text");
        fs::copy(cache.directory.join(key.file_name()), cache.directory.join(other.file_name()))
            .expect("copy");
        assert_eq!(cache.get(&other), None);
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_no_error() {
        let file = tempfile::NamedTempFile::new().expect("temporary file");
        let cache = DiskCache::at(file.path().join("cubin"));
        let key = CubinKey::new(DRIVER, BUILD, 90, "text");
        cache.put(&key, b"machine code");
        assert_eq!(cache.get(&key), None);
    }

    #[test]
    fn old_files_are_pruned() {
        let (_directory, cache, _) = stored();
        for i in 0..7 {
            cache.put(&CubinKey::new(DRIVER, BUILD, 90, &i.to_string()), b"code");
        }
        cache.prune(8);
        assert_eq!(fs::read_dir(&cache.directory).expect("list").count(), 8);
        cache.prune(7);
        assert_eq!(fs::read_dir(&cache.directory).expect("list").count(), 6);
    }

    #[cfg(unix)]
    fn set_mode(path: &Path, mode: u32) {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("the owner may");
    }

    #[cfg(unix)]
    #[test]
    fn what_others_may_have_planted_is_not_loaded() {
        let (_directory, cache, key) = stored();
        let path = cache.directory.join(key.file_name());
        let code = || cache.get(&key);
        let directory = || cache.directory.clone();
        assert_eq!(cache.status(), DiskCacheStatus::On { directory: directory() });
        for mode in [0o777, 0o1777, 0o770, 0o720, 0o702] {
            // The file is sound, and the user's own; yet anyone may have put it there.
            set_mode(&cache.directory, mode);
            assert_eq!(code(), None, "{mode:o}");
            let why = DiskCacheRefusal::OthersMayWrite { mode };
            assert_eq!(cache.status(), DiskCacheStatus::Refused { directory: directory(), why }, "{mode:o}");
            let other = CubinKey::new(DRIVER, BUILD, 90, "another");
            cache.put(&other, b"code");
            assert_eq!(fs::read_dir(&cache.directory).expect("list").count(), 1, "nothing is written there");
        }
        assert!(cache.status().to_string().contains("mode 702"), "{}", cache.status());
        set_mode(&cache.directory, 0o755);
        assert!(code().is_some(), "others may look");
        for mode in [0o666, 0o660, 0o602] {
            set_mode(&path, mode);
            assert_eq!(code(), None, "{mode:o}");
        }
        cache.put(&key, b"new code");
        assert_eq!(code().as_deref(), Some(&b"new code"[..]), "a file that is not trusted is replaced");
        fs::remove_file(&path).expect("ours");
        fs::create_dir(&path).expect("no file");
        assert_eq!(code(), None);
    }

    #[cfg(unix)]
    #[test]
    fn what_belongs_to_others_is_not_loaded() {
        let (_directory, cache, key) = stored();
        let user = rustix::process::geteuid().as_raw();
        if user != 0 {
            // Nobody but root can give a folder away; the root folder is root's.
            let why = DiskCacheRefusal::ForeignOwner { owner: 0, user };
            let status = DiskCache::at("/".into()).status();
            assert_eq!(status, DiskCacheStatus::Refused { directory: "/".into(), why });
            return;
        }
        let path = cache.directory.join(key.file_name());
        let give = |path: &Path, owner| std::os::unix::fs::chown(path, Some(owner), None).expect("root may");
        give(&path, 12345);
        assert_eq!(cache.get(&key), None);
        give(&path, 0);
        assert!(cache.get(&key).is_some());
        give(&cache.directory, 12345);
        assert_eq!(cache.get(&key), None);
        let why = DiskCacheRefusal::ForeignOwner { owner: 12345, user };
        assert_eq!(cache.status(), DiskCacheStatus::Refused { directory: cache.directory.clone(), why });
    }

    #[cfg(unix)]
    #[test]
    fn files_are_for_the_user_alone() {
        use std::os::unix::fs::MetadataExt;
        let (_directory, cache, key) = stored();
        let mode = |path: &Path| fs::metadata(path).expect("there").mode() & 0o777;
        assert_eq!(mode(&cache.directory), 0o700);
        assert_eq!(mode(&cache.directory.join(key.file_name())), 0o600);
    }

    #[test]
    fn what_is_no_folder_is_said() {
        let file = tempfile::NamedTempFile::new().expect("temporary file");
        for path in [file.path().to_owned(), file.path().join("cubin")] {
            let status = DiskCache::at(path.clone()).status();
            let why = DiskCacheRefusal::NotADirectory;
            assert_eq!(status, DiskCacheStatus::Refused { directory: path, why });
        }
    }
}
