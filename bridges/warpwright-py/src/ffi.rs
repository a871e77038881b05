//! The few calls of the interpreter that its safe wrapper makes at length.
#![allow(unsafe_code, reason = "functions of the interpreter and of the loader are C")]

use std::cell::Cell;
use std::ffi::{CStr, c_void};
#[cfg(target_os = "linux")]
use std::ffi::{c_char, c_int};
use std::sync::OnceLock;
use std::{mem, ptr};

use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;

/// Calls a function with up to three arguments, without a tuple of them.
pub(crate) fn called<'py, const N: usize>(
    function: &Py<PyAny>,
    py: Python<'py>,
    arguments: [&Bound<'py, PyAny>; N],
) -> PyResult<Bound<'py, PyAny>> {
    const { assert!(N <= 3) };
    let mut list = [ptr::null_mut(); 3];
    for (to, argument) in list.iter_mut().zip(arguments) {
        *to = argument.as_ptr();
    }
    let end = ptr::null_mut::<ffi::PyObject>();
    let [a, b, c] = list;
    // SAFETY: function and arguments are live objects and the interpreter is attached; the first null ends the list. The
    // result is a new reference, or null with an error set.
    unsafe {
        let result = ffi::PyObject_CallFunctionObjArgs(function.as_ptr(), a, b, c, end);
        Bound::from_owned_ptr_or_err(py, result)
    }
}

/// The value of an integer that is not negative.
pub(crate) fn number(object: &Bound<'_, PyAny>) -> PyResult<u64> {
    // SAFETY: the object is live; the check says that it is an integer, of which the call takes the value or sets an error.
    let value = unsafe {
        if ffi::PyLong_Check(object.as_ptr()) == 0 {
            return Err(PyTypeError::new_err("expected an integer"));
        }
        ffi::PyLong_AsUnsignedLongLong(object.as_ptr())
    };
    match (value, value == u64::MAX) {
        (_, true) => PyErr::take(object.py()).map_or(Ok(value), Err),
        _ => Ok(value),
    }
}

#[cfg(target_os = "linux")]
unsafe extern "C" {
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// The keys that PyTorch's dispatcher takes on this thread beside its usual ones: zero while no mode, transform or tracer is
/// active. `None` if this PyTorch does not tell.
pub(crate) fn included_keys() -> Option<u64> {
    thread_local! {
        static KEYS: Cell<Option<*const u64>> = const { Cell::new(None) };
    }
    let keys = KEYS.get().unwrap_or_else(|| {
        // `PODLocalDispatchKeySet`, whose first number is `included_`.
        let found = symbol(c"libc10.so", c"_ZN3c104impl26raw_local_dispatch_key_setE").cast();
        KEYS.set(Some(found));
        found
    });
    // SAFETY: the variable begins with a 64-bit number, and is this thread's, in a library that is never unloaded; only this
    // thread writes it.
    (!keys.is_null()).then(|| unsafe { keys.read() })
}

/// Whether PyTorch records gradients on this thread, by the C interface that it keeps for compiled models. `None` if this
/// PyTorch has none.
pub(crate) fn records_gradients() -> Option<bool> {
    type IsEnabled = unsafe extern "C" fn() -> bool;
    static FUNCTION: OnceLock<Option<IsEnabled>> = OnceLock::new();
    let function = (*FUNCTION.get_or_init(|| {
        let found = symbol(c"libtorch_cpu.so", c"aoti_torch_grad_mode_is_enabled");
        // SAFETY: null is `None`, and anything else a function of this type, whose library is never unloaded.
        unsafe { mem::transmute::<*const c_void, Option<IsEnabled>>(found) }
    }))?;
    // SAFETY: it reads a flag of this thread.
    Some(unsafe { function() })
}

/// A symbol of a library that is loaded, a variable of threads as this thread's copy; null without it.
#[cfg(target_os = "linux")]
pub(crate) fn symbol(library: &CStr, name: &CStr) -> *const c_void {
    const LAZY: c_int = 1;
    /// Finds what is loaded, and loads nothing.
    const NO_LOAD: c_int = 4;
    // SAFETY: the names end in zeros. The handle is not closed, so that the library stays.
    unsafe {
        let library = dlopen(library.as_ptr(), LAZY | NO_LOAD);
        if library.is_null() { ptr::null() } else { dlsym(library, name.as_ptr()) }
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn symbol(_: &CStr, _: &CStr) -> *const c_void {
    ptr::null()
}
