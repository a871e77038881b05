//! Ranges of NVTX, by which profilers such as Nsight Systems show operations by name.
//!
//! Off unless the environment variable `WARPWRIGHT_NVTX` asks for them: `1` looks for NVTX's library, anything else but `0` names its file
//! or the folder that it is in. Declarations follow `nvToolsExt.h`.

use std::ffi::{OsStr, c_char, c_int};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::Library;
use tracing::{debug, warn};

use super::libraries::{LibraryFile, loaded_libraries, loader_words};

/// NVTX 3 as a library, and the one of CUDA 12 and before.
const FILES: [LibraryFile; 2] = [
    LibraryFile { name: "libnvtx3interop.so.1", in_python: &["nvidia/cu13/lib", "nvidia/nvtx/lib"] },
    LibraryFile { name: "libnvToolsExt.so.1", in_python: &["nvidia/nvtx/lib"] },
];

/// Bytes of a range's name with the 0 behind it; longer ones are cut.
const NAME_BYTES: usize = 64;

type Push = unsafe extern "C" fn(*const c_char) -> c_int;
type Pop = unsafe extern "C" fn() -> c_int;

struct Api {
    push: Push,
    pop: Pop,
    /// Keeps the functions where they are; `None` for those of the process itself.
    _loaded: Option<Library>,
}

/// A range of NVTX on this thread, from [`enter`](Range::enter) until it is dropped.
#[must_use = "a range ends where it is dropped"]
pub(crate) struct Range<'a> {
    api: Option<&'a Api>,
    /// It ends on the thread on which it began.
    thread: PhantomData<*const ()>,
}

impl Range<'static> {
    /// Begins the range `op direction`, if ranges are asked for and NVTX's library is there. Nothing is allocated, and nothing else is done
    /// where they are not.
    pub(crate) fn enter(op: &str, direction: &str) -> Self {
        static API: OnceLock<Option<Api>> = OnceLock::new();
        let api = API.get_or_init(|| from_environment(std::env::var_os("WARPWRIGHT_NVTX").as_deref()));
        Self::over(api.as_ref(), op, direction)
    }
}

impl<'a> Range<'a> {
    fn over(api: Option<&'a Api>, op: &str, direction: &str) -> Self {
        if let Some(api) = api {
            let name = name_of(op, direction);
            // SAFETY: the name ends in 0, and NVTX copies it before it returns.
            let _ = unsafe { (api.push)(name.as_ptr().cast()) };
        }
        Self { api, thread: PhantomData }
    }
}

impl Drop for Range<'_> {
    fn drop(&mut self) {
        if let Some(api) = self.api {
            // SAFETY: the function takes nothing, and ranges of a thread end in the reverse of the order in which they began.
            let _ = unsafe { (api.pop)() };
        }
    }
}

/// `op direction`, a 0, and more of them.
fn name_of(op: &str, direction: &str) -> [u8; NAME_BYTES] {
    let mut name = [0; NAME_BYTES];
    let bytes = op.bytes().chain([b' ']).chain(direction.bytes());
    name[..NAME_BYTES - 1].iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
    name
}

fn from_environment(value: Option<&OsStr>) -> Option<Api> {
    let value = value.filter(|value| !value.is_empty() && *value != "0")?;
    let named = (value != "1").then(|| PathBuf::from(value));
    let loaded = loaded_libraries();
    load(FILES.iter().flat_map(|file| file.candidates(named.clone(), &loaded)).collect())
}

fn load(candidates: Vec<PathBuf>) -> Option<Api> {
    let mut tried: Vec<(PathBuf, String)> = Vec::new();
    for path in candidates {
        if tried.iter().any(|(known, _)| *known == path) {
            continue;
        }
        match open(&path) {
            Ok(api) => {
                debug!(target: "warpwright::nvtx", library = %path.display(), "ranges are on");
                return Some(api);
            }
            Err(error) => tried.push((path, loader_words(&error))),
        }
    }
    warn!(
        target: "warpwright::nvtx",
        ?tried,
        "WARPWRIGHT_NVTX asks for ranges, but there is no library of NVTX: go on without; WARPWRIGHT_NVTX=FILE names it"
    );
    None
}

fn open(path: &Path) -> Result<Api, libloading::Error> {
    // SAFETY: initializers of NVTX's library ask nothing of the process; a file in its place is as trusted as the program that the user
    // runs, whose loader would take it from the same places.
    let loaded = unsafe { Library::new(path) }?;
    // SAFETY: the types are those of `nvToolsExt.h`, and the library stays loaded as long as the functions.
    let (push, pop) = unsafe {
        (
            *loaded.get::<Push>(c"nvtxRangePushA".to_bytes_with_nul())?,
            *loaded.get::<Pop>(c"nvtxRangePop".to_bytes_with_nul())?,
        )
    };
    Ok(Api { push, pop, _loaded: Some(loaded) })
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::ffi::CStr;

    use super::*;

    thread_local! {
        static CALLS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    }

    unsafe extern "C" fn push(name: *const c_char) -> c_int {
        // SAFETY: it is called by `Range::over` alone, with a name that ends in 0.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        CALLS.with_borrow_mut(|calls| calls.push(name));
        0
    }

    unsafe extern "C" fn pop() -> c_int {
        CALLS.with_borrow_mut(|calls| calls.push("pop".to_owned()));
        0
    }

    #[test]
    fn ranges_nest_under_their_names() {
        let api = Api { push, pop, _loaded: None };
        let long = "x".repeat(100);
        {
            let _outer = Range::over(Some(&api), "softmax", "forward");
            let _inner = Range::over(Some(&api), &long, "backward");
            let _none = Range::over(None, "gemm", "forward");
        }
        let cut = "x".repeat(NAME_BYTES - 1);
        assert_eq!(CALLS.take(), ["softmax forward", &cut, "pop", "pop"]);
    }

    #[test]
    fn only_a_wish_is_looked_for() {
        for off in [None, Some(""), Some("0")] {
            assert!(from_environment(off.map(OsStr::new)).is_none(), "{off:?}");
        }
        assert!(from_environment(Some(OsStr::new("/nowhere/libnvtx3interop.so.1"))).is_none());
    }
}
