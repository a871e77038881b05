//! Arguments of PyTorch's function for new tensors, kept from call to call.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::dlpack::Vec8;

/// The arguments of a new tensor: the tuple of shape, strides and type, if there are no more dimensions than operations
/// take. The last one is kept, because calls of one shape follow each other.
pub(crate) struct Layouts(Mutex<Option<Known>>);

struct Known {
    shape: Vec8<i64>,
    strides: Vec8<i64>,
    dtype: Py<PyAny>,
    tuple: Py<PyTuple>,
}

impl Layouts {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(None))
    }

    pub(crate) fn get<'py>(
        &self,
        shape: &[i64],
        strides: &[i64],
        dtype: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let py = dtype.py();
        {
            let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let fits = |k: &&Known| *k.shape == *shape && *k.strides == *strides && k.dtype.is(dtype);
            if let Some(known) = known.as_ref().filter(fits) {
                return Ok(Some(known.tuple.bind(py).clone()));
            }
        }
        // Copied first: whatever runs when Python allocates may change the tensor that the lists belong to.
        let list = |items: &[i64]| Vec8::collect(items.iter().copied());
        let (Some(shape), Some(strides)) = (list(shape), list(strides)) else { return Ok(None) };
        let lists = [PyTuple::new(py, &*shape)?, PyTuple::new(py, &*strides)?];
        let [sizes, steps] = lists.each_ref().map(|list| list.as_any());
        let tuple = PyTuple::new(py, [sizes, steps, dtype])?;
        let new = Known { shape, strides, dtype: dtype.clone().unbind(), tuple: tuple.clone().unbind() };
        // What is forgotten is freed after the lock is: freeing may run any code.
        let old = self.0.lock().unwrap_or_else(PoisonError::into_inner).replace(new);
        drop(old);
        Ok(Some(tuple))
    }
}
