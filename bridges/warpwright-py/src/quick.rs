//! The shortest way through an elementwise call: plain tensors of PyTorch on the current GPU, in row-major order, of one
//! shape and type and without a gradient, for results that are new. A call that is not of this kind takes the general way,
//! with its copies and its errors.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use warpwright::plan::PlanCache;
use warpwright::{DType, Operation};

use crate::call::Elements;
use crate::dlpack::{Borrowed, Vec8};
use crate::error;
use crate::memory;
use crate::torch::{self, Hooks};

/// An operation whose plan takes the inputs, then the outputs; `None` if the call must go the general way.
pub(crate) fn elementwise<'py, D: Operation, const I: usize, const O: usize>(
    plans: &PlanCache<D>,
    inputs: [&Bound<'py, PyAny>; I],
    describe: impl FnOnce(Elements) -> D,
) -> PyResult<Option<[Bound<'py, PyAny>; O]>> {
    let py = inputs[0].py();
    let Some(hooks) = Hooks::known(py) else { return Ok(None) };
    let Some(ways) = &hooks.ways else { return Ok(None) };
    for input in inputs {
        if !hooks.is_plain(input) || torch::requires_grad(input)? {
            return Ok(None);
        }
    }
    let mut addresses = [0; I];
    let first = ways.exchange.borrow(inputs[0])?;
    let Some((dtype, len, ordinal)) = simple(&first) else { return Ok(None) };
    addresses[0] = first.address();
    for (input, address) in inputs.into_iter().zip(&mut addresses).skip(1) {
        let other = ways.exchange.borrow(input)?;
        if !other.is_twin_of(&first) {
            return Ok(None);
        }
        *address = other.address();
    }
    if !ways.is_current(py, ordinal)? {
        return Ok(None);
    }
    let device = memory::gpu(ordinal).map_err(|e| error::runtime(py, &e))?;
    let plan = plans.get(&describe(Elements { dtype, len }), device.target());
    let plan = plan.map_err(|e| error::raise(py, e.into()))?;
    let Some(type_object) = hooks.dtype(dtype) else { return Ok(None) };
    let Some(layout) = ways.layout(py, first.shape(), first.strides())? else { return Ok(None) };
    let stream = torch::number(&torch::called(&ways.raw_stream, py, [ordinal.into_pyobject(py)?.as_any()])?)?;
    let mut written = [0; O];
    let mut results = [const { None }; O];
    for (result, address) in results.iter_mut().zip(&mut written) {
        let [shape, strides] = &layout;
        let made =
            torch::called(&ways.empty_strided, py, [shape.bind(py), strides.bind(py), type_object.bind(py)])?;
        *address = ways.exchange.borrow(&made)?.address();
        *result = Some(made);
    }
    let done = py.detach(|| memory::launch_at(ordinal, stream, &plan, &addresses, &written));
    done.map_err(|e| error::raise(py, e))?;
    Ok(Some(results.map(|made| made.unwrap_or_else(|| unreachable!("every result was made")))))
}

/// Element type, number of elements and GPU of a tensor that is neither empty nor out of order.
fn simple(tensor: &Borrowed<'_>) -> Option<(DType, usize, u32)> {
    let (ordinal, dtype) = (tensor.cuda()?, tensor.dtype()?);
    let mut step = 1i64;
    for (&extent, &stride) in tensor.shape().iter().zip(tensor.strides()).rev() {
        if extent < 1 || (extent != 1 && stride != step) {
            return None;
        }
        step = step.checked_mul(extent)?;
    }
    Some((dtype, usize::try_from(step).ok()?, ordinal))
}

/// The tuples of a shape and of its strides, if it has no more dimensions than operations take. The last ones are kept, because
/// calls of one shape follow each other.
pub(crate) struct Layouts(Mutex<Option<Known>>);

struct Known {
    shape: Vec8<i64>,
    strides: Vec8<i64>,
    tuples: [Py<PyAny>; 2],
}

impl Layouts {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(None))
    }

    pub(crate) fn get(
        &self,
        py: Python<'_>,
        shape: &[i64],
        strides: &[i64],
    ) -> PyResult<Option<[Py<PyAny>; 2]>> {
        let clone = |tuples: &[Py<PyAny>; 2]| tuples.each_ref().map(|t| t.clone_ref(py));
        {
            let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(known) = known.as_ref().filter(|k| *k.shape == *shape && *k.strides == *strides) {
                return Ok(Some(clone(&known.tuples)));
            }
        }
        // Copied first: whatever runs when Python allocates may change the tensor that the lists belong to.
        let list = |items: &[i64]| Vec8::collect(items.iter().copied());
        let (Some(shape), Some(strides)) = (list(shape), list(strides)) else { return Ok(None) };
        let tuple = |items: &[i64]| PyTuple::new(py, items).map(|t| t.into_any().unbind());
        let tuples = [tuple(&shape)?, tuple(&strides)?];
        let new = Known { shape, strides, tuples: clone(&tuples) };
        // What is forgotten is freed after the lock is: freeing may run any code.
        let old = self.0.lock().unwrap_or_else(PoisonError::into_inner).replace(new);
        drop(old);
        Ok(Some(tuples))
    }
}
