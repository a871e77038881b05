//! Whether a call on this thread is being recorded, and what PyTorch allocated for it.

use std::cell::{Cell, RefCell};

use pyo3::prelude::*;

/// Memory that PyTorch allocated: its address, and its bytes.
pub(crate) type Allocation = (u64, u64);

thread_local! {
    static WANTED: Cell<bool> = const { Cell::new(false) };
    /// `None` where more was done than to allocate.
    static ALLOCATED: RefCell<Option<Vec<Allocation>>> = const { RefCell::new(None) };
    static FAILED: RefCell<Option<(PyErr, String)>> = const { RefCell::new(None) };
    /// Whether it is of the call in progress. The exception itself is let go by those alone who hold the interpreter: a function behind
    /// an operator runs without it, and below functions that hold it.
    static HAS_FAILED: Cell<bool> = const { Cell::new(false) };
}

/// Whether a call on this thread is being recorded: every allocation must then pass through the dispatcher, where it is seen.
#[pyfunction]
pub(crate) fn recording_wanted() -> bool {
    WANTED.get()
}

/// Allocations of the call that is being recorded; None if PyTorch did anything else for it.
#[pyfunction]
pub(crate) fn recorded(allocations: Option<Vec<Allocation>>) {
    WANTED.set(false);
    ALLOCATED.set(allocations);
}

/// Keeps the exception of a call that must not raise it, because functions of C are between it and the caller.
#[pyfunction]
pub(crate) fn operator_failed(py: Python<'_>, error: Bound<'_, PyAny>) {
    let error = PyErr::from_value(error);
    let message = error.value(py).to_string();
    FAILED.set(Some((error, message)));
    HAS_FAILED.set(true);
}

/// Runs a call that is to be recorded; what was allocated for it.
pub(crate) fn record<T>(call: impl FnOnce() -> T) -> (T, Option<Vec<Allocation>>) {
    WANTED.set(true);
    ALLOCATED.set(None);
    let result = call();
    WANTED.set(false);
    (result, ALLOCATED.take())
}

/// Forgets the exception of a call before.
pub(crate) fn forget() {
    HAS_FAILED.set(false);
}

/// The message of the exception that was kept.
pub(crate) fn failure() -> Option<String> {
    if !HAS_FAILED.get() {
        return None;
    }
    FAILED.with_borrow(|failed| failed.as_ref().map(|(_, message)| message.clone()))
}

/// The exception that was kept, if that which came to the caller tells of it; otherwise the latter.
pub(crate) fn explained(py: Python<'_>, error: PyErr) -> PyErr {
    let is_known = HAS_FAILED.replace(false);
    match FAILED.take() {
        Some((kept, message)) if is_known && error.value(py).to_string().contains(&message) => kept,
        _ => error,
    }
}

/// The same for callers in Python.
#[pyfunction]
pub(crate) fn operator_error<'py>(py: Python<'py>, error: Bound<'py, PyAny>) -> Bound<'py, PyAny> {
    explained(py, PyErr::from_value(error)).into_value(py).into_bound(py).into_any()
}
