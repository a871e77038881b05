//! The few calls of the interpreter that its safe wrapper makes at length.
#![allow(unsafe_code, reason = "functions of the interpreter are C")]

use std::ptr;

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
