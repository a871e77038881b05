//! Libraries that are loaded when they are needed: which files of the process, of its Python environment and of the system to try.

use std::path::{Path, PathBuf};

/// A library by its file.
#[derive(Clone, Copy, Debug)]
pub(super) struct LibraryFile {
    /// The file's name with the version of its interface, which the system's loader looks for.
    pub(super) name: &'static str,
    /// Where packages for Python have it, below the folder of all packages.
    pub(super) in_python: &'static [&'static str],
}

impl LibraryFile {
    /// Files to try, in order. A file that the user names is the only one.
    pub(super) fn candidates(&self, named: Option<PathBuf>, loaded: &[PathBuf]) -> Vec<PathBuf> {
        if let Some(named) = named {
            return vec![if named.is_dir() { named.join(self.name) } else { named }];
        }
        let mut found: Vec<PathBuf> = loaded.iter().filter(|path| self.is_a_version(path)).cloned().collect();
        let environments = loaded.iter().filter_map(|path| {
            path.ancestors()
                .find(|folder| folder.ends_with("site-packages") || folder.ends_with("dist-packages"))
        });
        for folder in environments.flat_map(|all| self.in_python.iter().map(|folder| all.join(folder))) {
            let path = folder.join(self.name);
            if !found.contains(&path) && path.exists() {
                found.push(path);
            }
        }
        found.push(self.name.into());
        found
    }

    /// Whether the file is this library, of whatever version.
    fn is_a_version(&self, path: &Path) -> bool {
        let stem = self.name.find(".so").map_or(self.name, |end| &self.name[..end + ".so".len()]);
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(stem))
    }
}

/// The loader's own words, which stand behind those of the binding.
pub(super) fn loader_words(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// The files that the process has mapped, each once; none where the system does not tell.
pub(super) fn loaded_libraries() -> Vec<PathBuf> {
    std::fs::read_to_string("/proc/self/maps").map(|maps| mapped(&maps)).unwrap_or_default()
}

pub(super) fn mapped(maps: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = Vec::new();
    for line in maps.lines() {
        // Address, permissions, offset, device and inode have no slash.
        let Some(start) = line.find('/') else { continue };
        let path = line[start..].strip_suffix(" (deleted)").unwrap_or(&line[start..]);
        if files.last().is_none_or(|last| last.as_os_str() != path) {
            files.push(path.into());
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_loaded_comes_before_the_system() {
        const NCCL: LibraryFile = LibraryFile { name: "libnccl.so.2", in_python: &["nvidia/nccl/lib"] };
        let folder = tempfile::tempdir().expect("a folder");
        let environment = folder.path().join("lib/python3.12/site-packages");
        let in_python = environment.join("nvidia/nccl/lib").join(NCCL.name);
        std::fs::create_dir_all(in_python.parent().expect("a folder")).expect("made");
        std::fs::write(&in_python, "").expect("written");
        let torch = environment.join("torch/lib/libtorch.so");
        let loaded = PathBuf::from("/usr/lib/libnccl.so.2.30.7");
        let all = [PathBuf::from("/usr/lib/libc.so.6"), torch, loaded.clone()];
        assert_eq!(NCCL.candidates(None, &all), [loaded, in_python.clone(), NCCL.name.into()]);
        assert_eq!(NCCL.candidates(None, &[]), [PathBuf::from(NCCL.name)]);
        assert_eq!(NCCL.candidates(in_python.parent().map(Into::into), &all), [in_python]);
    }
}
