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

/// The values that a node saves for its gradients: tensors of the arguments, or what a function takes of arguments and results.
enum Saved {
    /// Of each tensor the gradients that are computed from it. None is saved in place of one that no wanted gradient is computed from, and
    /// nothing for one that no gradient is; behind them, what a function takes.
    Read {
        read_by: Vec<Vec<usize>>,
        keep: Option<Py<PyAny>>,
    },
    All,
    Chosen(Py<PyAny>),
}

/// Counts that both halves of a node share: how many arguments are tensors, how many results have gradients, how many are given, and whether
/// there is a tuple of them.
#[derive(Clone, Copy)]
struct Shape {
    tensors: usize,
    results: usize,
    given: usize,
    has_tuple: bool,
}

/// `forward(ctx, *inputs)` of a `torch.autograd.Function` whose inputs are tensors, then parameters.
#[pyclass(frozen, module = "warpwright._native")]
pub(crate) struct Forward {
    native: Py<PyAny>,
    saved: Saved,
    shape: Shape,
    /// Of the inputs, the parameters of the backward direction; without it they are those of this one.
    noted: Option<Py<PyAny>>,
}

#[pymethods]
impl Forward {
    #[new]
    #[pyo3(signature = (native, shape, save=None, read_by=None, keep=None, noted=None))]
    fn new(
        native: Py<PyAny>,
        shape: (usize, usize, usize, bool),
        save: Option<Py<PyAny>>,
        read_by: Option<Vec<Vec<usize>>>,
        keep: Option<Py<PyAny>>,
        noted: Option<Py<PyAny>>,
    ) -> Self {
        let saved = match (save, read_by) {
            (Some(save), _) => Saved::Chosen(save),
            (None, Some(read_by)) => Saved::Read { read_by, keep },
            (None, None) => Saved::All,
        };
        let (tensors, results, given, has_tuple) = shape;
        Self { native, saved, shape: Shape { tensors, results, given, has_tuple }, noted }
    }

    #[pyo3(signature = (*arguments))]
    fn __call__<'py>(&self, arguments: &Bound<'py, PyTuple>) -> PyResult<Object<'py>> {
        let py = arguments.py();
        let Shape { tensors, results, given, has_tuple } = self.shape;
        let inputs = arguments.get_slice(1, arguments.len());
        let context = context(arguments)?;
        let found = self.native.bind(py).call1(&inputs)?;
        // What the methods of a context come down to: `save_for_backward`, `mark_non_differentiable`, `set_materialize_grads`.
        context.setattr(intern!(py, "to_save"), self.saved(&context, &inputs, &found)?)?;
        if inputs.len() > tensors {
            let parameters = match &self.noted {
                Some(noted) => noted.bind(py).call1((&inputs,))?,
                None => inputs.get_slice(tensors, inputs.len()).into_any(),
            };
            context.setattr(intern!(py, "parameters"), parameters)?;
        }
        if !has_tuple {
            return Ok(found);
        }
        let found = found.cast_into::<PyTuple>()?;
        if given > results {
            context.setattr(intern!(py, "non_differentiable"), found.get_slice(results, given))?;
            // No zeros for gradients that nobody takes.
            context.setattr(intern!(py, "materialize_grads"), false)?;
        }
        if given == 1 { found.get_item(0) } else { Ok(found.get_slice(0, given).into_any()) }
    }
}

impl Forward {
    fn saved<'py>(
        &self,
        context: &Object<'py>,
        inputs: &Bound<'py, PyTuple>,
        found: &Object<'py>,
    ) -> PyResult<Object<'py>> {
        let py = inputs.py();
        let results = || -> PyResult<Object<'py>> {
            if self.shape.has_tuple { Ok(found.clone()) } else { Ok(PyTuple::new(py, [found])?.into_any()) }
        };
        match &self.saved {
            Saved::Chosen(save) => save.bind(py).call1((inputs, results()?)),
            Saved::All => Ok(inputs.get_slice(0, self.shape.tensors).into_any()),
            Saved::Read { read_by, keep } => {
                let mut saved = read_inputs(inputs, read_by, &wanted(context)?)?;
                if let Some(keep) = keep {
                    let kept = keep.bind(py).call1((inputs, results()?))?;
                    for one in kept.cast_into::<PyTuple>()? {
                        saved.push((!one.is_none()).then_some(one));
                    }
                }
                Ok(PyTuple::new(py, saved)?.into_any())
            }
        }
    }
}

/// The inputs that gradients are computed from; `None` for one that no wanted gradient is computed from.
fn read_inputs<'py>(
    inputs: &Bound<'py, PyTuple>,
    read_by: &[Vec<usize>],
    wanted: &Bound<'py, PyTuple>,
) -> PyResult<Vec<Option<Object<'py>>>> {
    let mut saved = Vec::with_capacity(read_by.len());
    for (input, readers) in inputs.iter().zip(read_by).filter(|(_, readers)| !readers.is_empty()) {
        let mut is_read = false;
        for reader in readers {
            is_read = is_read || wanted.get_borrowed_item(*reader)?.is_truthy()?;
        }
        saved.push(is_read.then_some(input));
    }
    Ok(saved)
}

/// Of each input of a node, whether its gradient is wanted.
fn wanted<'py>(context: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyTuple>> {
    Ok(context.getattr(intern!(context.py(), "needs_input_grad"))?.cast_into::<PyTuple>()?)
}

fn context<'a, 'py>(arguments: &'a Bound<'py, PyTuple>) -> PyResult<Borrowed<'a, 'py, PyAny>> {
    arguments.get_borrowed_item(0).map_err(|_| PyTypeError::new_err("expected the context of a node"))
}

/// The method `apply(*dys)` of the nodes of such a function: `native(*saved, *dys, *parameters)`, with a mask of the gradients that are
/// wanted behind if it takes one, where nothing watches, else `dispatched(ctx, *dys)`.
#[pyclass(frozen, module = "warpwright._native")]
pub(crate) struct Backward {
    native: Py<PyAny>,
    dispatched: Py<PyAny>,
    shape: Shape,
    /// How many inputs the forward direction has.
    arguments: usize,
    has_mask: bool,
    /// Gradients that are others of them, or made of those of the results.
    shared: Option<Py<PyAny>>,
}

#[pymethods]
impl Backward {
    #[new]
    #[pyo3(signature = (native, dispatched, shape, arguments, has_mask, shared=None))]
    fn new(
        native: Py<PyAny>,
        dispatched: Py<PyAny>,
        shape: (usize, usize, usize, bool),
        arguments: usize,
        has_mask: bool,
        shared: Option<Py<PyAny>>,
    ) -> Self {
        let (tensors, results, given, has_tuple) = shape;
        let shape = Shape { tensors, results, given, has_tuple };
        Self { native, dispatched, shape, arguments, has_mask, shared }
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
    #[pyo3(signature = (*dys))]
    fn __call__<'py>(&self, dys: &Bound<'py, PyTuple>) -> PyResult<Object<'py>> {
        let py = dys.py();
        let (method, context) = (self.method.get(), self.context.bind(py));
        let Shape { tensors, results, given, has_tuple } = method.shape;
        let of_results = dys.get_slice(0, results);
        if given > results && of_results.iter_borrowed().all(|dy| dy.is_none()) {
            return Ok(PyTuple::new(py, vec![None::<Object<'py>>; method.arguments])?.into_any());
        }
        let saved = context.getattr(intern!(py, "saved_tensors"))?.cast_into::<PyTuple>()?;
        let read = saved.len() + of_results.len();
        let mut all: Vec<_> = saved.iter().chain(of_results.iter()).collect();
        let parameters = if method.arguments > tensors {
            context.getattr(intern!(py, "parameters"))?.cast_into::<PyTuple>()?
        } else {
            PyTuple::empty(py)
        };
        all.extend(parameters.iter());
        let wanted = wanted(context)?;
        if method.has_mask {
            all.push(wanted.get_slice(0, tensors).into_any());
        }
        let arguments = PyTuple::new(py, all)?;
        if route(py, arguments.iter_borrowed().take(read))? != Route::Direct {
            let inputs = std::iter::once(context.clone()).chain(dys.iter()).collect::<Vec<_>>();
            return method.dispatched.bind(py).call1(PyTuple::new(py, inputs)?);
        }
        let mut found = method.native.bind(py).call1(arguments)?;
        if !has_tuple && method.arguments == 1 {
            return Ok(found);
        }
        let mut gradients = Vec::with_capacity(method.arguments);
        if has_tuple {
            if let Some(shared) = &method.shared {
                found = shared.bind(py).call1((found, of_results, parameters, &wanted))?;
            }
            for (gradient, wanted) in found.cast_into::<PyTuple>()?.iter().zip(wanted.iter()) {
                gradients.push(wanted.is_truthy()?.then_some(gradient));
            }
        } else {
            gradients.push(Some(found));
        }
        gradients.resize(method.arguments, None);
        Ok(PyTuple::new(py, gradients)?.into_any())
    }
}
