//! Which build of the driver is loaded: its number of CUDA's version stands for many.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::UNIX_EPOCH;

use super::libraries::loaded_libraries;

/// A mark of this build of the driver: name, size and time of the library that the process has loaded. Empty
/// if the system does not tell.
pub(super) fn driver_build() -> &'static str {
    static BUILD: OnceLock<String> = OnceLock::new();
    BUILD.get_or_init(|| library().map(|path| identity(&path)).unwrap_or_default())
}

/// The driver's library. On Linux the maps of the process name the file behind every link, which has the build's number.
fn library() -> Option<PathBuf> {
    if cfg!(windows) {
        return Some(PathBuf::from(std::env::var_os("SystemRoot")?).join("System32").join("nvcuda.dll"));
    }
    loaded_libraries().into_iter().find(|path| is_driver(path))
}

fn is_driver(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libcuda.so"))
}

fn identity(path: &PathBuf) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // A library that was replaced while it runs has its name alone.
    let Ok(facts) = std::fs::metadata(path) else { return name.into_owned() };
    let time = facts.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    format!("{name} {} {}", facts.len(), time.unwrap_or_default().as_nanos())
}

#[cfg(test)]
mod tests {
    use super::super::libraries::mapped;
    use super::*;

    #[test]
    fn the_library_is_found_among_the_maps() {
        let maps = "55d0c1e00000-55d0c1e02000 r--p 00000000 08:01 131  /usr/bin/a libcuda.so/tool\n\
                    7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \n\
                    7f1000000000-7f1000001000 r--p 00000000 08:01 77   /usr/lib/libcudart.so.13\n\
                    7f2000000000-7f2000001000 r--p 00000000 08:01 78   /usr/my lib/libcuda.so.580.65.06 (deleted)\n\
                    7ffc00000000-7ffc00001000 r-xp 00000000 00:00 0    [vdso]\n";
        let files = mapped(maps);
        assert_eq!(files.len(), 3, "{files:?}");
        assert_eq!(
            files.into_iter().find(|path| is_driver(path)),
            Some("/usr/my lib/libcuda.so.580.65.06".into())
        );
        assert!(mapped("7ffc00000000-7ffc00001000 r-xp 00000000 00:00 0    [vdso]\n").is_empty());
    }

    #[test]
    fn another_file_is_another_build() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("libcuda.so.1");
        std::fs::write(&path, "one build").expect("written");
        let first = identity(&path);
        assert!(first.starts_with("libcuda.so.1 9 "), "{first}");
        std::fs::write(&path, "another build").expect("written");
        assert_ne!(identity(&path), first);
        assert_eq!(identity(&folder.path().join("libcuda.so.2")), "libcuda.so.2");
    }
}
