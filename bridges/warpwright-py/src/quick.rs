//! The shortest way through an elementwise call: plain tensors of PyTorch on the current GPU, in row-major order, of one
//! shape and type, whose gradient nobody records. A call that is not of this kind takes the general way, with its copies and its
//! errors.

use pyo3::prelude::*;
use warpwright::plan::PlanCache;
use warpwright::{DType, Operation};

use crate::device;
use crate::dlpack::Borrowed;
use crate::error;
use crate::many::try_map;
use crate::memory;
use crate::recording::recording_wanted;
use crate::torch::{self, Hooks};

/// Type and number of the elements of an elementwise operation.
#[derive(Clone, Copy)]
pub(crate) struct Elements {
    pub(crate) dtype: DType,
    pub(crate) len: usize,
}

/// An operation whose plan takes the inputs, then the outputs, which are new or all given; `None` if the call must go the
/// general way.
pub(crate) fn elementwise<'py, D: Operation, const I: usize, const O: usize>(
    op: &'static str,
    plans: &PlanCache<D>,
    inputs: [&Bound<'py, PyAny>; I],
    given: Option<[&Bound<'py, PyAny>; O]>,
    describe: impl FnOnce(Elements) -> D,
) -> PyResult<Option<[Bound<'py, PyAny>; O]>> {
    let py = inputs[0].py();
    let Some(hooks) = Hooks::known(py) else { return Ok(None) };
    let Some(ways) = &hooks.ways else { return Ok(None) };
    let records = torch::records(py)?;
    if recording_wanted() || torch::has_tangents(py)? {
        return Ok(None);
    }
    for tensor in inputs.iter().chain(given.iter().flatten()) {
        if !hooks.is_plain(tensor) || (records && torch::requires_grad(tensor)?) {
            return Ok(None);
        }
    }
    // What PyTorch cannot lend has an error of its own on the general way.
    let Ok(first) = ways.exchange.borrow(inputs[0]) else { return Ok(None) };
    let Some((elements, ordinal)) = simple(&first) else { return Ok(None) };
    let (mut read, mut written) = ([first.address(); I], [0; O]);
    let others = inputs[1..].iter().zip(&mut read[1..]);
    for (tensor, address) in others.chain(given.iter().flatten().zip(&mut written)) {
        let other = ways.exchange.borrow(tensor)?;
        if !other.is_twin_of(&first) {
            return Ok(None);
        }
        *address = other.address();
    }
    if !ways.is_current(py, ordinal)? || (given.is_some() && overlap(&read, &written, elements)) {
        return Ok(None);
    }
    let gpu = device::gpu(ordinal).map_err(|e| error::runtime(py, &e))?;
    let plan = plans.get(&describe(elements), gpu.target());
    let plan = plan.map_err(|e| error::raise(py, op, e))?;
    let stream = ways.exchange.current_stream(py, ordinal)?;
    let results = match given {
        Some(given) => given.map(Bound::clone),
        None => {
            let Some(type_object) = hooks.dtype(elements.dtype) else { return Ok(None) };
            let layout = ways.layout(first.shape(), first.strides(), type_object.bind(py))?;
            let Some(layout) = layout else { return Ok(None) };
            try_map(written.each_mut(), |address| -> PyResult<_> {
                let made = ways.empty_strided.bind(py).call1(&layout)?;
                *address = ways.exchange.borrow(&made)?.address();
                Ok(made)
            })?
        }
    };
    let done = py.detach(|| memory::launch_at(ordinal, stream, &plan, &read, &written));
    done.map_err(|e| error::raise(py, op, e))?;
    Ok(Some(results))
}

/// Whether the memory of a result is shared with that of another result, or in part with that of an argument.
fn overlap(read: &[u64], written: &[u64], Elements { dtype, len }: Elements) -> bool {
    let bytes = (len as u64).saturating_mul(dtype.bytes() as u64);
    let shared = |a: u64, b: u64| a.abs_diff(b) < bytes;
    written.iter().enumerate().any(|(i, y)| {
        read.iter().any(|x| x != y && shared(*x, *y)) || written[..i].iter().any(|z| shared(*y, *z))
    })
}

/// Element type, number of elements and GPU of a tensor that is neither empty nor out of order.
fn simple(tensor: &Borrowed<'_>) -> Option<(Elements, u32)> {
    let (ordinal, dtype) = (tensor.cuda()?, tensor.dtype()?);
    let mut step = 1i64;
    for (&extent, &stride) in tensor.shape().iter().zip(tensor.strides()).rev() {
        if extent < 1 || (extent != 1 && stride != step) {
            return None;
        }
        step = step.checked_mul(extent)?;
    }
    Some((Elements { dtype, len: usize::try_from(step).ok()? }, ordinal))
}
