//! Calls of differentiable functions under PyTorch without a frame of Python: the choice of the way, and the two halves of
//! a node of the graph.

use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::library::Object;
use crate::recording::explained;
use crate::torch::{self, Route, route};

/// A function of tensors and then of parameters that is one of three: `direct` where nothing watches the call, `recorded`
/// where nothing does but PyTorch records the gradient, else `dispatched`.
#[pyclass(frozen, module = "warpwright._native")]
pub(crate) struct Entry {
    tensors: usize,
    direct: Py<PyAny>,
    recorded: Py<PyAny>,
    dispatched: Py<PyAny>,
}

#[pymethods]
impl Entry {
    #[new]
    fn new(tensors: usize, direct: Py<PyAny>, recorded: Py<PyAny>, dispatched: Py<PyAny>) -> Self {
        Self { tensors, direct, recorded, dispatched }
    }

    #[pyo3(signature = (*inputs))]
    fn __call__<'py>(&self, inputs: &Bound<'py, PyTuple>) -> PyResult<Object<'py>> {
        let py = inputs.py();
        let function = match route(py, inputs.iter_borrowed().take(self.tensors))? {
            Route::Dispatched => &self.dispatched,
            Route::Direct => &self.direct,
            Route::Recorded => &self.recorded,
        };
        let found = function.bind(py).call1(inputs);
        // What follows is asked after a failure only: calls that succeed feel every look at a tensor.
        let found = found.map_err(|error| explained(py, error));
        if found.is_err() && inputs.iter_borrowed().take(self.tensors).any(|t| torch::is_meta(&t)) {
            return self.dispatched.bind(py).call1(inputs);
        }
        found
    }
}

/// `forward(ctx, *inputs)` of a `torch.autograd.Function` that saves inputs: all, or those that a wanted gradient reads.
#[pyclass(frozen, module = "warpwright._native")]
pub(crate) struct Forward {
    native: Py<PyAny>,
    /// Of each input the gradients that are computed from it.
    read_by: Option<Vec<Vec<usize>>>,
}

#[pymethods]
impl Forward {
    #[new]
    #[pyo3(signature = (native, read_by=None))]
    fn new(native: Py<PyAny>, read_by: Option<Vec<Vec<usize>>>) -> Self {
        Self { native, read_by }
    }

    #[pyo3(signature = (*arguments))]
    fn __call__<'py>(&self, arguments: &Bound<'py, PyTuple>) -> PyResult<Object<'py>> {
        let py = arguments.py();
        let inputs = arguments.get_slice(1, arguments.len());
        let context = context(arguments)?;
        let saved = match &self.read_by {
            None => &inputs,
            Some(read_by) => &read_inputs(&inputs, read_by, &wanted(&context)?)?,
        };
        // What `ctx.save_for_backward(*saved)` comes down to.
        context.setattr(intern!(py, "to_save"), saved)?;
        self.native.bind(py).call1(inputs)
    }
}

/// The inputs that gradients are computed from; `None` for one that no wanted gradient is computed from.
fn read_inputs<'py>(
    inputs: &Bound<'py, PyTuple>,
    read_by: &[Vec<usize>],
    wanted: &Bound<'py, PyTuple>,
) -> PyResult<Bound<'py, PyTuple>> {
    let mut saved = Vec::with_capacity(read_by.len());
    for (input, readers) in inputs.iter().zip(read_by).filter(|(_, readers)| !readers.is_empty()) {
        let mut is_read = false;
        for reader in readers {
            is_read = is_read || wanted.get_borrowed_item(*reader)?.is_truthy()?;
        }
        saved.push(is_read.then_some(input));
    }
    PyTuple::new(inputs.py(), saved)
}

/// Of each input of a node, whether its gradient is wanted.
fn wanted<'py>(context: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyTuple>> {
    Ok(context.getattr(intern!(context.py(), "needs_input_grad"))?.cast_into::<PyTuple>()?)
}

fn context<'a, 'py>(arguments: &'a Bound<'py, PyTuple>) -> PyResult<Borrowed<'a, 'py, PyAny>> {
    arguments.get_borrowed_item(0).map_err(|_| PyTypeError::new_err("expected the context of a node"))
}

/// The method `apply(dy)` of the nodes of such a function: `native(*saved, dy)`, with a mask of the gradients that are wanted
/// behind if it takes one, where nothing watches, else `dispatched(ctx, dy)`.
#[pyclass(frozen, module = "warpwright._native")]
pub(crate) struct Backward {
    native: Py<PyAny>,
    dispatched: Py<PyAny>,
    has_mask: bool,
}

#[pymethods]
impl Backward {
    #[new]
    fn new(native: Py<PyAny>, dispatched: Py<PyAny>, has_mask: bool) -> Self {
        Self { native, dispatched, has_mask }
    }

    fn __get__<'py>(
        slf: Bound<'py, Self>,
        context: Option<Py<PyAny>>,
        _class: &Object<'py>,
    ) -> PyResult<Object<'py>> {
        let py = slf.py();
        match context {
            None => Ok(slf.into_any()),
            Some(context) => Ok(Bound::new(py, BoundBackward { method: slf.unbind(), context })?.into_any()),
        }
    }
}

/// The method of one node.
#[pyclass(frozen, module = "warpwright._native")]
pub(crate) struct BoundBackward {
    method: Py<Backward>,
    context: Py<PyAny>,
}

#[pymethods]
impl BoundBackward {
    fn __call__<'py>(&self, py: Python<'py>, dy: &Object<'py>) -> PyResult<Object<'py>> {
        let (method, context) = (self.method.get(), self.context.bind(py));
        let saved = context.getattr(intern!(py, "saved_tensors"))?.cast_into::<PyTuple>()?;
        let tensors = saved.len() + 1;
        let mut all: Vec<_> = saved.iter().chain([dy.clone()]).collect();
        if method.has_mask {
            all.push(wanted(context)?.into_any());
        }
        let arguments = PyTuple::new(py, all)?;
        match route(py, arguments.iter_borrowed().take(tensors))? {
            Route::Direct => method.native.bind(py).call1(arguments),
            Route::Dispatched | Route::Recorded => method.dispatched.bind(py).call1((context, dy)),
        }
    }
}
