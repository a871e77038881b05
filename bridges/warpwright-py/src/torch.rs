//! What PyTorch does with a call: whether it records gradients, and whether a mode, transform or tracer is active. And
//! its shortest ways to a stream and to memory, which a call of microseconds feels.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyTuple, PyType};

use warpwright::DType;

use crate::array::{dtype_name, extents, interop};

/// Functions and types of PyTorch, looked up once.
struct Hooks {
    torch: Py<PyAny>,
    is_grad_enabled: Py<PyAny>,
    /// Each is true while something watches calls; empty if this PyTorch does not tell.
    watchers: Vec<Py<PyAny>>,
    /// The types whose calls nothing intercepts.
    plain: Vec<Py<PyType>>,
    /// The handle of the current stream of a device by its number; `None` if this PyTorch has no such function.
    raw_stream: Option<Py<PyAny>>,
    /// The number of the current device, and a new tensor there, of sizes, strides and type, past the dispatcher; `None` as
    /// above.
    on_current_device: Option<(Py<PyAny>, Py<PyAny>)>,
}

impl Hooks {
    fn get(py: Python<'_>) -> PyResult<&Self> {
        static HOOKS: PyOnceLock<Hooks> = PyOnceLock::new();
        HOOKS.get_or_try_init(py, || {
            let found = interop(py)?.getattr(intern!(py, "torch_hooks"))?.call0()?;
            let (torch, is_grad_enabled, watchers, plain, raw_stream, on_current_device) = found.extract()?;
            Ok(Self { torch, is_grad_enabled, watchers, plain, raw_stream, on_current_device })
        })
    }

    /// Whether nothing intercepts calls on tensors of this type.
    fn is_plain(&self, ty: &Bound<'_, PyType>) -> bool {
        self.plain.iter().any(|plain| plain.is(ty))
    }
}

/// The stream that PyTorch enqueues on at present, if there is a shorter way to it than the exchange table's.
pub(crate) fn current_stream(py: Python<'_>, ordinal: u32) -> PyResult<Option<u64>> {
    let Some(raw_stream) = &Hooks::get(py)?.raw_stream else { return Ok(None) };
    raw_stream.bind(py).call1((ordinal,))?.extract().map(Some)
}

/// An uninitialised tensor of a shape and strides without gaps, beside one that lies on GPU `ordinal`; `None` where that is
/// not the current device, or where this PyTorch or the type of the tensor needs its own functions.
pub(crate) fn empty_strided<'py>(
    like: &Bound<'py, PyAny>,
    ordinal: u32,
    dtype: DType,
    shape: &[usize],
    strides: &[i64],
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = like.py();
    let hooks = Hooks::get(py)?;
    let Some((current_device, empty)) = &hooks.on_current_device else { return Ok(None) };
    if !hooks.is_plain(&like.get_type()) || current_device.bind(py).call0()?.extract::<u32>()? != ordinal {
        return Ok(None);
    }
    let dtype = hooks.torch.bind(py).getattr(dtype_name(dtype))?;
    empty.bind(py).call1((extents(py, shape)?, PyTuple::new(py, strides)?, dtype)).map(Some)
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
        if !hooks.is_plain(&ty) {
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
