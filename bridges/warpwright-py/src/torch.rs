//! What PyTorch does with a call: whether it records gradients, and whether a mode, transform or tracer is active.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyTuple, PyType};

use crate::array::interop;

/// Functions and types of PyTorch, looked up once.
struct Hooks {
    is_grad_enabled: Py<PyAny>,
    /// Each is true while something watches calls; empty if this PyTorch does not tell.
    watchers: Vec<Py<PyAny>>,
    /// The types whose calls nothing intercepts.
    plain: Vec<Py<PyType>>,
}

impl Hooks {
    fn get(py: Python<'_>) -> PyResult<&Self> {
        static HOOKS: PyOnceLock<Hooks> = PyOnceLock::new();
        HOOKS.get_or_try_init(py, || {
            let found = interop(py)?.getattr(intern!(py, "torch_hooks"))?.call0()?;
            let (is_grad_enabled, watchers, plain) = found.extract()?;
            Ok(Self { is_grad_enabled, watchers, plain })
        })
    }
}

/// Whether gradients are being recorded.
pub(crate) fn records(py: Python<'_>) -> PyResult<bool> {
    Hooks::get(py)?.is_grad_enabled.bind(py).call0()?.is_truthy()
}

fn requires_grad(tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
    tensor.getattr(intern!(tensor.py(), "requires_grad"))?.is_truthy()
}

/// Whether the gradient of a tensor is being recorded.
pub(crate) fn is_recorded(tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(requires_grad(tensor)? && records(tensor.py())?)
}

/// How a call on these arguments must be made: 0 through the dispatcher, because something watches; 1 directly; 2
/// directly, and recorded. What is no tensor does not matter.
#[pyfunction]
#[pyo3(signature = (*arguments))]
pub(crate) fn torch_route(arguments: &Bound<'_, PyTuple>) -> PyResult<u8> {
    let py = arguments.py();
    let hooks = Hooks::get(py)?;
    let mut differentiable = false;
    for argument in arguments.iter_borrowed() {
        if argument.is_none() {
            continue;
        }
        let ty = argument.get_type();
        if !hooks.plain.iter().any(|plain| plain.is(&ty)) {
            return Ok(0);
        }
        differentiable = differentiable || requires_grad(&argument)?;
    }
    if hooks.watchers.is_empty() {
        return Ok(0);
    }
    for watcher in &hooks.watchers {
        if watcher.bind(py).call0()?.is_truthy()? {
            return Ok(0);
        }
    }
    Ok(if differentiable && records(py)? { 2 } else { 1 })
}
