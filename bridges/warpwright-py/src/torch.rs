//! What PyTorch does with a call: whether it records gradients, and whether a mode, transform or tracer is active. And
//! its shortest ways to a stream and to memory, which a call of microseconds feels.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyTuple, PyType};

use warpwright::DType;

use crate::array::{dtype_name, extents, interop};
use crate::dlpack::Exchange;
pub(crate) use crate::ffi::{called, number};
use crate::quick::Layouts;

/// The element types of results.
const DTYPES: [DType; 5] = [DType::F32, DType::F64, DType::F16, DType::BF16, DType::U8];

/// Functions and types of PyTorch, looked up once.
pub(crate) struct Hooks {
    /// The type objects of [`DTYPES`]; `None` for one that this PyTorch does not have.
    dtypes: Vec<Option<Py<PyAny>>>,
    is_grad_enabled: Py<PyAny>,
    /// Each is true while something watches calls; empty if this PyTorch does not tell.
    watchers: Vec<Py<PyAny>>,
    /// The types whose calls nothing intercepts.
    plain: Vec<Py<PyType>>,
    /// The ways past the dispatcher; `None` if this PyTorch lacks one of them.
    pub(crate) ways: Option<Ways>,
}

/// The shortest ways to describe, to find a stream and to allocate.
pub(crate) struct Ways {
    pub(crate) exchange: Exchange,
    /// The handle of the current stream of a device by its number.
    pub(crate) raw_stream: Py<PyAny>,
    /// The number of the current device; `None` where there is one device only.
    current_device: Option<Py<PyAny>>,
    /// A new tensor there, of sizes, strides and type.
    pub(crate) empty_strided: Py<PyAny>,
    layouts: Layouts,
}

impl Ways {
    /// Whether GPU `ordinal`, on which a tensor lies, is the current one.
    pub(crate) fn is_current(&self, py: Python<'_>, ordinal: u32) -> PyResult<bool> {
        let Some(current_device) = &self.current_device else { return Ok(true) };
        Ok(number(&called(current_device, py, [])?)? == u64::from(ordinal))
    }

    /// Tuples of a shape and of strides.
    pub(crate) fn layout(
        &self,
        py: Python<'_>,
        shape: &[i64],
        strides: &[i64],
    ) -> PyResult<Option<[Py<PyAny>; 2]>> {
        self.layouts.get(py, shape, strides)
    }
}

/// The objects behind [`Ways`], in the order of `torch_hooks`.
type Found = (Py<PyAny>, Py<PyAny>, Option<Py<PyAny>>, Py<PyAny>);

static HOOKS: PyOnceLock<Hooks> = PyOnceLock::new();

impl Hooks {
    /// Those that a call before this one has looked up.
    pub(crate) fn known(py: Python<'_>) -> Option<&Self> {
        HOOKS.get(py)
    }

    fn get(py: Python<'_>) -> PyResult<&Self> {
        HOOKS.get_or_try_init(py, || {
            let names = DTYPES.map(dtype_name).to_vec();
            let found = interop(py)?.getattr(intern!(py, "torch_hooks"))?.call1((names,))?;
            let (dtypes, is_grad_enabled, watchers, plain, ways) = found.extract()?;
            let ways: Option<Found> = ways;
            let ways = ways.and_then(|(table, raw_stream, current_device, empty_strided)| {
                let exchange = Exchange::from_capsule(table.bind(py))?;
                Some(Ways { exchange, raw_stream, current_device, empty_strided, layouts: Layouts::new() })
            });
            Ok(Self { dtypes, is_grad_enabled, watchers, plain, ways })
        })
    }

    /// Whether nothing intercepts calls on a tensor.
    pub(crate) fn is_plain(&self, object: &Bound<'_, PyAny>) -> bool {
        let ty = object.get_type_ptr();
        self.plain.iter().any(|plain| std::ptr::eq(plain.as_ptr().cast(), ty))
    }

    /// The object for an element type of results.
    pub(crate) fn dtype(&self, dtype: DType) -> Option<&Py<PyAny>> {
        self.dtypes.get(DTYPES.iter().position(|d| *d == dtype)?)?.as_ref()
    }
}

/// The stream that PyTorch enqueues on at present, if there is a shorter way to it than the exchange table's.
pub(crate) fn current_stream(py: Python<'_>, ordinal: u32) -> PyResult<Option<u64>> {
    let Some(ways) = &Hooks::get(py)?.ways else { return Ok(None) };
    number(&called(&ways.raw_stream, py, [ordinal.into_pyobject(py)?.as_any()])?).map(Some)
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
    let (Some(ways), Some(dtype)) = (&hooks.ways, hooks.dtype(dtype)) else { return Ok(None) };
    if !hooks.is_plain(like) || !ways.is_current(py, ordinal)? {
        return Ok(None);
    }
    let (shape, strides) = (extents(py, shape)?, PyTuple::new(py, strides)?);
    called(&ways.empty_strided, py, [shape.as_any(), strides.as_any(), dtype.bind(py)]).map(Some)
}

/// Whether gradients are being recorded.
pub(crate) fn records(py: Python<'_>) -> PyResult<bool> {
    called(&Hooks::get(py)?.is_grad_enabled, py, [])?.is_truthy()
}

/// Whether a tensor has `requires_grad`.
pub(crate) fn requires_grad(tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
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
        if !hooks.is_plain(&argument) {
            return Ok(0);
        }
        differentiable = differentiable || requires_grad(&argument)?;
    }
    if hooks.watchers.is_empty() {
        return Ok(0);
    }
    for watcher in &hooks.watchers {
        if called(watcher, py, [])?.is_truthy()? {
            return Ok(0);
        }
    }
    Ok(if differentiable && records(py)? { 2 } else { 1 })
}
