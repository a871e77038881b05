//! How PyTorch takes a call: whether it records gradients, and whether a mode, transform or tracer is active. And
//! its shortest ways to a stream and to memory, which a call of microseconds feels.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyTuple, PyType};

use warpwright::DType;

use crate::dlpack::Exchange;
pub(crate) use crate::ffi::{called, number};
use crate::ffi::{included_keys, records_gradients};
use crate::layouts::Layouts;
use crate::library::{dtype_name, extents, interop};
use crate::recording::recording_wanted;

/// The element types of results.
const DTYPES: [DType; 6] = [DType::F32, DType::F64, DType::F16, DType::BF16, DType::U8, DType::I64];

/// Functions and types of PyTorch, looked up once.
pub(crate) struct Hooks {
    /// The type objects of [`DTYPES`]; `None` for one that this PyTorch does not have.
    dtypes: Vec<Option<Py<PyAny>>>,
    is_grad_enabled: Py<PyAny>,
    /// Each is true while something watches calls; empty if this PyTorch does not tell.
    watchers: Vec<Py<PyAny>>,
    /// How many of the first of them are false wherever [`is_quiet`].
    told_by_keys: usize,
    /// The types whose calls nothing intercepts.
    plain: Vec<Py<PyType>>,
    /// `torch.autograd.forward_ad`.
    forward_ad: Py<PyAny>,
    /// The ways past the dispatcher; `None` if this PyTorch lacks one of them.
    pub(crate) ways: Option<Ways>,
}

/// The shortest ways to describe, to find a stream and to allocate.
pub(crate) struct Ways {
    pub(crate) exchange: Exchange,
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

    /// The arguments of `empty_strided` for tensors of this shape, strides and type.
    pub(crate) fn layout<'py>(
        &self,
        shape: &[i64],
        strides: &[i64],
        dtype: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        self.layouts.get(shape, strides, dtype)
    }
}

/// The objects behind [`Ways`], in the order of `torch_hooks`.
type Found = (Py<PyAny>, Option<Py<PyAny>>, Py<PyAny>);

static HOOKS: PyOnceLock<Hooks> = PyOnceLock::new();

impl Hooks {
    /// Those that a call before this one has looked up.
    pub(crate) fn known(py: Python<'_>) -> Option<&Self> {
        HOOKS.get(py)
    }

    fn get(py: Python<'_>) -> PyResult<&Self> {
        HOOKS.get_or_try_init(py, || {
            let names = DTYPES.map(dtype_name).to_vec();
            let found = interop(py)?
                .getattr(intern!(py, "torch_hooks"))?
                .call1((names, wrap_pyfunction!(torch_is_quiet, py)?))?;
            let (dtypes, is_grad_enabled, watchers, told_by_keys, plain, forward_ad, ways) =
                found.extract()?;
            let ways: Option<Found> = ways;
            let ways = ways.and_then(|(table, current_device, empty_strided)| {
                let exchange = Exchange::from_capsule(table.bind(py))?;
                Some(Ways { exchange, current_device, empty_strided, layouts: Layouts::new() })
            });
            Ok(Self { dtypes, is_grad_enabled, watchers, told_by_keys, plain, forward_ad, ways })
        })
    }

    /// Whether nothing intercepts calls on a tensor.
    pub(crate) fn is_plain(&self, object: &Bound<'_, PyAny>) -> bool {
        let ty = object.get_type_ptr();
        self.plain.iter().any(|plain| std::ptr::eq(plain.as_ptr().cast(), ty))
    }

    /// Which of the element types of results an object is.
    pub(crate) fn dtype_number(&self, object: &Bound<'_, PyAny>) -> Option<usize> {
        self.dtypes.iter().position(|dtype| dtype.as_ref().is_some_and(|dtype| dtype.is(object)))
    }

    /// The object for an element type of results.
    pub(crate) fn dtype(&self, dtype: DType) -> Option<&Py<PyAny>> {
        self.dtypes.get(DTYPES.iter().position(|d| *d == dtype)?)?.as_ref()
    }
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
    if !hooks.is_plain(like) || recording_wanted() || !ways.is_current(py, ordinal)? {
        return Ok(None);
    }
    let (shape, strides) = (extents(py, shape)?, PyTuple::new(py, strides)?);
    called(&ways.empty_strided, py, [shape.as_any(), strides.as_any(), dtype.bind(py)]).map(Some)
}

/// Whether gradients are being recorded.
pub(crate) fn records(py: Python<'_>) -> PyResult<bool> {
    match records_gradients() {
        Some(records) => Ok(records),
        None => called(&Hooks::get(py)?.is_grad_enabled, py, [])?.is_truthy(),
    }
}

/// Whether a tensor has `requires_grad`.
pub(crate) fn requires_grad(tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
    tensor.getattr(intern!(tensor.py(), "requires_grad"))?.is_truthy()
}

/// Whether tensors may carry tangents: a level of forward-mode differentiation has been entered. Those of a call that is being
/// recorded were refused before: it is below what tangents are told by.
pub(crate) fn has_tangents(py: Python<'_>) -> PyResult<bool> {
    if recording_wanted() {
        return Ok(false);
    }
    let level = Hooks::get(py)?.forward_ad.bind(py).getattr(intern!(py, "_current_level"))?;
    Ok(level.extract::<i64>()? >= 0)
}

/// Whether a tensor carries a tangent.
pub(crate) fn has_tangent(tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = tensor.py();
    if !has_tangents(py)? {
        return Ok(false);
    }
    let unpacked = Hooks::get(py)?.forward_ad.bind(py).call_method1(intern!(py, "unpack_dual"), (tensor,))?;
    Ok(!unpacked.getattr(intern!(py, "tangent"))?.is_none())
}

/// Whether a tensor has a shape and no memory. What is no tensor has not.
pub(crate) fn is_meta(object: &Bound<'_, PyAny>) -> bool {
    object.getattr(intern!(object.py(), "is_meta")).is_ok_and(|is_meta| is_meta.is_truthy().unwrap_or(false))
}

/// Whether the gradient of a tensor is being recorded.
pub(crate) fn is_recorded(tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
    // The first call on a tensor of PyTorch comes by here, and finds what later ones use.
    Hooks::get(tensor.py())?;
    Ok(records(tensor.py())? && requires_grad(tensor)?)
}

/// How a call must be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// Through the dispatcher, because something watches.
    Dispatched,
    Direct,
    /// Directly, and recorded for the gradient.
    Recorded,
}

/// How a call on these arguments must be made. What is no tensor does not matter, if it is None.
pub(crate) fn route<'a, 'py: 'a>(
    py: Python<'py>,
    arguments: impl IntoIterator<Item = Borrowed<'a, 'py, PyAny>>,
) -> PyResult<Route> {
    let hooks = Hooks::get(py)?;
    let records = records(py)?;
    let mut differentiable = false;
    for argument in arguments {
        if argument.is_none() {
            continue;
        }
        if !hooks.is_plain(&argument) {
            return Ok(Route::Dispatched);
        }
        differentiable = differentiable || (records && requires_grad(&argument)?);
    }
    if hooks.watchers.is_empty() || has_tangents(py)? {
        return Ok(Route::Dispatched);
    }
    let told = if is_quiet() { hooks.told_by_keys } else { 0 };
    for watcher in &hooks.watchers[told..] {
        if called(watcher, py, [])?.is_truthy()? {
            return Ok(Route::Dispatched);
        }
    }
    Ok(if differentiable { Route::Recorded } else { Route::Direct })
}

/// Whether no mode, transform or tracer is known to be active on this thread.
fn is_quiet() -> bool {
    included_keys() == Some(0)
}

/// The same for `torch_hooks`, which tries whether it is true.
#[pyfunction]
fn torch_is_quiet() -> bool {
    is_quiet()
}

/// How a call on these arguments must be made: 0 through the dispatcher, 1 directly, 2 directly, and recorded.
#[pyfunction]
#[pyo3(signature = (*arguments))]
pub(crate) fn torch_route(arguments: &Bound<'_, PyTuple>) -> PyResult<u8> {
    Ok(match route(arguments.py(), arguments.iter_borrowed())? {
        Route::Dispatched => 0,
        Route::Direct => 1,
        Route::Recorded => 2,
    })
}
