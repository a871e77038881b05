//! The library of NCCL: where it is, and the functions of it that are called.
//!
//! Declarations follow `nccl.h` of NCCL 2.18, the first version with everything here; later ones read the same structures.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::Library;

use super::super::libraries::{LibraryFile, loaded_libraries, loader_words};
use crate::comm::{CommFailure, NcclVersion};

pub(super) const OLDEST: NcclVersion = NcclVersion { major: 2, minor: 18, patch: 0 };
const NCCL: LibraryFile = LibraryFile { name: "libnccl.so.2", in_python: &["nvidia/nccl/lib"] };

/// `ncclComm_t`
pub(super) type RawComm = *mut c_void;

/// `ncclUniqueId`
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct RawId(pub(super) [u8; 128]);

/// The first fields of `ncclConfig_t`; the library takes those that it does not find from its defaults.
#[repr(C)]
pub(super) struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
    traffic_class: c_int,
}

impl Config {
    /// Calls return at once, and the state of the communicator tells when they are done.
    pub(super) const fn nonblocking() -> Self {
        const UNDEFINED: c_int = c_int::MIN;
        Self {
            size: size_of::<Self>(),
            magic: 0xcafe_beef,
            version: 21_800,
            blocking: 0,
            cga_cluster_size: UNDEFINED,
            min_ctas: UNDEFINED,
            max_ctas: UNDEFINED,
            net_name: std::ptr::null(),
            split_share: UNDEFINED,
            traffic_class: UNDEFINED,
        }
    }
}

type Collective<Extra> =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, Extra, RawComm, *mut c_void) -> c_int;

macro_rules! functions {
    ($($name:ident: $symbol:literal as $t:ty,)*) => {
        /// The functions.
        pub(super) struct Api {
            $(pub(super) $name: $t,)*
            pub(super) library: NcclLibrary,
            /// Keeps the functions where they are.
            _loaded: Library,
        }

        impl Api {
            fn bind(loaded: Library, path: &Path, version: NcclVersion) -> Result<Self, libloading::Error> {
                Ok(Self {
                    // SAFETY: the types are those of `nccl.h`, and the library stays loaded as long as they do.
                    $($name: unsafe { *loaded.get::<$t>($symbol)? },)*
                    library: NcclLibrary { path: path.to_owned(), version },
                    _loaded: loaded,
                })
            }
        }
    };
}

functions! {
    get_unique_id: b"ncclGetUniqueId\0" as unsafe extern "C" fn(*mut RawId) -> c_int,
    init: b"ncclCommInitRankConfig\0" as unsafe extern "C" fn(*mut RawComm, c_int, RawId, c_int, *mut Config) -> c_int,
    async_error: b"ncclCommGetAsyncError\0" as unsafe extern "C" fn(RawComm, *mut c_int) -> c_int,
    finalize: b"ncclCommFinalize\0" as unsafe extern "C" fn(RawComm) -> c_int,
    destroy: b"ncclCommDestroy\0" as unsafe extern "C" fn(RawComm) -> c_int,
    abort: b"ncclCommAbort\0" as unsafe extern "C" fn(RawComm) -> c_int,
    error_text: b"ncclGetErrorString\0" as unsafe extern "C" fn(c_int) -> *const c_char,
    last_error: b"ncclGetLastError\0" as unsafe extern "C" fn(RawComm) -> *const c_char,
    group_start: b"ncclGroupStart\0" as unsafe extern "C" fn() -> c_int,
    group_end: b"ncclGroupEnd\0" as unsafe extern "C" fn() -> c_int,
    all_reduce: b"ncclAllReduce\0" as Collective<c_int>,
    reduce_scatter: b"ncclReduceScatter\0" as Collective<c_int>,
    broadcast: b"ncclBroadcast\0" as Collective<c_int>,
    all_gather: b"ncclAllGather\0" as unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, RawComm, *mut c_void) -> c_int,
    send: b"ncclSend\0" as unsafe extern "C" fn(*const c_void, usize, c_int, c_int, RawComm, *mut c_void) -> c_int,
    receive: b"ncclRecv\0" as unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, RawComm, *mut c_void) -> c_int,
}

/// The library of NCCL that this process uses.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NcclLibrary {
    /// The file, or the name that the system's loader found it by.
    pub path: PathBuf,
    /// Its version. All ranks of a communicator must have the same.
    pub version: NcclVersion,
}

impl NcclLibrary {
    /// Looks for the library and loads it, once in the process.
    ///
    /// # Errors
    /// [`CommFailure::NoLibrary`] with every file that was tried; [`CommFailure::LibraryTooOld`].
    pub fn find() -> Result<Self, CommFailure> {
        Ok(api()?.library.clone())
    }
}

impl Api {
    /// NCCL's sentence about an error, and the last message of its log.
    pub(super) fn texts(&self, code: c_int, comm: RawComm) -> (String, String) {
        let text = |pointer: *const c_char| {
            if pointer.is_null() {
                return String::new();
            }
            // SAFETY: the library returns strings that end in 0 and that stay where they are until its next call on this thread.
            unsafe { CStr::from_ptr(pointer) }.to_string_lossy().trim().to_owned()
        };
        // SAFETY: both take any number, and a communicator that is alive or null.
        unsafe { (text((self.error_text)(code)), text((self.last_error)(comm))) }
    }
}

/// The functions of the library, which is loaded by the first call.
pub(super) fn api() -> Result<&'static Api, CommFailure> {
    static API: OnceLock<Result<Api, CommFailure>> = OnceLock::new();
    API.get_or_init(|| {
        load(NCCL.candidates(std::env::var_os("WARPWRIGHT_NCCL").map(PathBuf::from), &loaded_libraries()))
    })
    .as_ref()
    .map_err(Clone::clone)
}

fn load(candidates: Vec<PathBuf>) -> Result<Api, CommFailure> {
    let mut tried = Vec::new();
    for path in candidates {
        match open(&path) {
            Ok((loaded, version)) if version >= OLDEST => match Api::bind(loaded, &path, version) {
                Ok(api) => return Ok(api),
                Err(error) => tried.push((path, loader_words(&error))),
            },
            Ok((_, found)) => return Err(CommFailure::LibraryTooOld { path, found, needed: OLDEST }),
            Err(error) => tried.push((path, error)),
        }
    }
    Err(CommFailure::NoLibrary { tried })
}

fn open(path: &Path) -> Result<(Library, NcclVersion), String> {
    // SAFETY: initializers of NCCL's library ask nothing of the process; a file in its place is as trusted as the program that the
    // user runs, whose loader would take it from the same places.
    let loaded = unsafe { Library::new(path) }.map_err(|error| loader_words(&error))?;
    let mut number: c_int = 0;
    // SAFETY: `ncclGetVersion` of every version has this type and writes one number.
    let code = unsafe {
        let version = loaded.get::<unsafe extern "C" fn(*mut c_int) -> c_int>(b"ncclGetVersion\0");
        version.map_err(|error| loader_words(&error))?(&raw mut number)
    };
    if code == 0 {
        Ok((loaded, NcclVersion::from_number(number)))
    } else {
        Err(format!("ncclGetVersion returned {code}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_says_where_it_was_looked_for() {
        let error = load(vec!["/nowhere/libnccl.so.2".into()]).err().expect("no such file").to_string();
        assert!(error.contains("/nowhere/libnccl.so.2"), "{error}");
        assert_eq!(NcclVersion::from_number(23_007).to_string(), "2.30.7");
        assert_eq!(NcclVersion::from_number(2804).to_string(), "2.8.4");
    }
}
