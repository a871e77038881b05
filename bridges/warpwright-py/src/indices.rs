//! Numbers in arrays that say where something is: lengths, offsets, pages, classes. What lies on the host is checked in every
//! call; what lies on a GPU is read only if the caller has asked for it, because reading waits.

use std::sync::atomic::{AtomicBool, Ordering as Atomic};

use pyo3::intern;
use pyo3::prelude::*;
use warpwright::DType;

use crate::array::{Argument, Array, Ordering};
use crate::device::{self, Place};
use crate::error;
use crate::library::{Library, interop};
use crate::memory;

static VALIDATES: AtomicBool = AtomicBool::new(false);

/// Whether every call checks numbers on a GPU that say where something is, as it checks those on the host: lengths, offsets of packed
/// sequences, block tables, classes. Without, kernels cut or leave out those that lead outside. Returns what was in force.
///
/// Each call copies such arrays to the host and waits for them, which is for the search for a mistake, and cannot be captured in a
/// CUDA graph. The environment variable WARPWRIGHT_VALIDATE_INDICES=1 has the same effect from the start.
#[pyfunction]
#[pyo3(signature = (enabled=true))]
pub(crate) fn validate_indices(enabled: bool) -> bool {
    VALIDATES.swap(enabled, Atomic::Relaxed)
}

/// Whether numbers on a GPU are checked.
pub(crate) fn validates() -> bool {
    VALIDATES.load(Atomic::Relaxed)
}

/// Takes the wish from the environment.
pub(crate) fn read_environment() {
    let wanted = std::env::var_os("WARPWRIGHT_VALIDATE_INDICES").is_some_and(|value| value == "1");
    VALIDATES.store(wanted, Atomic::Relaxed);
}

/// The numbers of an array in row-major order, of 32 or 64 bits; `None` if they are not to be looked at. What has been enqueued on
/// `stream` may still write them.
pub(crate) fn known(array: &Array<'_>, stream: u64) -> PyResult<Option<Vec<i64>>> {
    if array.library == Library::Placeholder {
        return Ok(None);
    }
    if array.place == Place::Host {
        return Ok(Some(numbers(array)));
    }
    if !VALIDATES.load(Atomic::Relaxed) {
        return Ok(None);
    }
    let py = array.object.py();
    py.detach(|| device::synchronize(array.place, stream)).map_err(|e| error::raise(py, array.site.op, e))?;
    let copied = interop(py)?.getattr(intern!(py, "on_host"))?;
    let copied = copied.call1((array.library.name(), &array.object))?;
    Ok(Some(numbers(&Argument::read_made(&copied, array.site, Ordering::Current)?)))
}

fn numbers(array: &Array<'_>) -> Vec<i64> {
    let bytes = memory::read_host(array);
    match array.dtype {
        DType::I64 => bytes.as_chunks().0.iter().map(|n| i64::from_ne_bytes(*n)).collect(),
        _ => bytes.as_chunks().0.iter().map(|n| i32::from_ne_bytes(*n).into()).collect(),
    }
}

/// The same of an array of 32 bits.
pub(crate) fn known_i32(array: &Array<'_>, stream: u64) -> PyResult<Option<Vec<i32>>> {
    let narrow = |numbers: Vec<i64>| numbers.into_iter().map(|n| n as i32).collect();
    Ok(known(array, stream)?.map(narrow))
}
