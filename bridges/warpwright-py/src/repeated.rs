//! Direct calls of PyTorch that are repeated: a function of tensors and parameters whose calls that are like one before only make the
//! results, and enqueue what that one did.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use warpwright::DType;
use warpwright_runtime::record_launches;

use crate::calls::{Call, Described, Known, Place, Recorded, Seen, bytes_of, repeats_first_calls};
use crate::dlpack::Vec8;
use crate::error;
use crate::indices;
use crate::library::Object;
use crate::recording::{self, Allocation};
use crate::torch::{Hooks, Ways};

/// The arguments of a new tensor, and how the results hang together.
struct Made {
    layout: Py<PyTuple>,
    /// Of the first one alone, unless it is memory for the time between: for each result, whether it is a tensor; `None` if there is no
    /// tuple.
    results: Option<Option<Box<[bool]>>>,
}

/// A function whose calls on GPUs are repeated. Its results are tensors, or None; arguments that it changes must not require gradients
/// where they are recorded.
#[pyclass(frozen, module = "warpwright._native")]
pub(crate) struct Repeated {
    native: Py<PyAny>,
    /// Whether it changes arguments. Calls are then recorded when there was one of their kind.
    in_place: bool,
    calls: Known<Made>,
}

/// Arguments as they come from Python.
#[derive(Clone, Copy)]
struct Given<'a, 'py> {
    inputs: &'a Bound<'py, PyTuple>,
    keywords: Option<&'a Bound<'py, PyDict>>,
}

impl<'py> Given<'_, 'py> {
    fn to(self, function: &Object<'py>) -> PyResult<Object<'py>> {
        function.call(self.inputs, self.keywords)
    }
}

#[pymethods]
impl Repeated {
    #[new]
    #[pyo3(signature = (native, *, in_place=false))]
    fn new(native: Py<PyAny>, in_place: bool) -> Self {
        Self { native, in_place, calls: Known::default() }
    }

    #[pyo3(signature = (*inputs, **keywords))]
    fn __call__<'py>(
        &self,
        inputs: &Bound<'py, PyTuple>,
        keywords: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Object<'py>> {
        let (native, given) = (self.native.bind(inputs.py()), Given { inputs, keywords });
        let Some(hooks) = Hooks::known(inputs.py()) else { return given.to(native) };
        let Some(ways) = hooks.ways.as_ref().filter(|_| !indices::validates()) else {
            return given.to(native);
        };
        Call::with(|call| self.called(native, given, (hooks, ways), call))
    }

    /// How many kinds of calls are repeated, and how many are not.
    fn counts(&self) -> (usize, usize) {
        self.calls.counts()
    }
}

impl Repeated {
    fn called<'py>(
        &self,
        native: &Object<'py>,
        given: Given<'_, 'py>,
        (hooks, ways): (&Hooks, &Ways),
        call: &mut Call,
    ) -> PyResult<Object<'py>> {
        let py = native.py();
        if !describe_given(given, (hooks, ways), call)? {
            return given.to(native);
        }
        let Some(gpu) = call.gpu() else { return given.to(native) };
        if !ways.is_current(py, gpu)? {
            return given.to(native);
        }
        match self.calls.get(call) {
            Some(Seen::Repeated(recorded)) => repeat(py, &recorded, ways, call, gpu),
            Some(Seen::Single) => given.to(native),
            // Schedules give every step numbers of its own.
            None if self.in_place => {
                self.calls.add(call, Seen::Once);
                given.to(native)
            }
            None | Some(Seen::Once) => {
                let observe = || observed(py)?.call1((native, given.inputs, given.keywords));
                let ((found, launches), _) = recording::record(|| record_launches(observe));
                let (found, seen): (Object<'py>, Option<Vec<Allocation>>) = found?.extract()?;
                let made = made(&found, (hooks, ways), gpu)?;
                let bytes = hooks.dtype(DType::U8);
                let memory = |count: i64| {
                    let layout = ((count,), (1,), bytes?.bind(py)).into_pyobject(py).ok()?.unbind();
                    Some(Made { layout, results: None })
                };
                let recorded = Recorded::new(call, made, launches, seen, memory);
                let again = recorded.as_ref().filter(|_| repeats_first_calls() && !self.in_place);
                let found = again.map_or(Ok(found), |recorded| repeat(py, recorded, ways, call, gpu));
                self.calls.add(call, Seen::of(recorded));
                found
            }
        }
    }
}

/// `observed` of `warpwright.torch._allocations`.
fn observed(py: Python<'_>) -> PyResult<&Object<'_>> {
    static FUNCTION: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let find = || py.import("warpwright.torch._allocations")?.getattr("observed").map(Bound::unbind);
    Ok(FUNCTION.get_or_try_init(py, find)?.bind(py))
}

/// Adds the arguments to the kind of a call; false if there is no saying what one is.
fn describe_given(given: Given<'_, '_>, known: (&Hooks, &Ways), call: &mut Call) -> PyResult<bool> {
    let mut is_known = describe_all(given.inputs.iter(), known, call)?;
    for (name, value) in given.keywords.into_iter().flatten() {
        is_known = is_known && describe(&name, known, call)? && describe(&value, known, call)?;
    }
    Ok(is_known)
}

/// Adds how many arguments there are, and each, to the kind of a call; false if there is no saying what one is.
fn describe_all<'py>(
    objects: impl ExactSizeIterator<Item = Object<'py>>,
    known: (&Hooks, &Ways),
    call: &mut Call,
) -> PyResult<bool> {
    call.number(objects.len() as u64);
    for object in objects {
        if !describe(&object, known, call)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Adds an argument to the kind of a call; false if there is no saying what it is.
fn describe(object: &Object<'_>, (hooks, ways): (&Hooks, &Ways), call: &mut Call) -> PyResult<bool> {
    if object.is_none() {
        call.number(0);
    } else if hooks.is_plain(object) {
        let Ok(tensor) = ways.exchange.borrow(object) else { return Ok(false) };
        let (shape, strides) = (tensor.shape(), tensor.strides());
        if shape.len() != strides.len() || shape.len() > Vec8::<i64>::ROOM {
            return Ok(false);
        }
        let (dtype, element) = tensor.element();
        let (address, gpu) = (tensor.address(), tensor.cuda());
        let bytes = bytes_of(shape, strides, element);
        call.number(1);
        call.tensor(Described { address, dtype, gpu, sizes: shape, strides, bytes });
    } else if object.is_exact_instance_of::<PyBool>() {
        call.number(2 + u64::from(object.is_truthy()?));
    } else if object.is_exact_instance_of::<PyInt>() {
        let Ok(value) = object.extract::<i64>() else { return Ok(false) };
        call.number(4);
        call.number(value.cast_unsigned());
    } else if let Ok(value) = object.cast_exact::<PyFloat>() {
        call.number(5);
        call.number(value.extract::<f64>()?.to_bits());
    } else if let Ok(text) = object.cast_exact::<PyString>() {
        call.number(6);
        call.text(text.to_string_lossy().as_bytes());
    } else if let Ok(list) = object.cast_exact::<PyList>() {
        call.number(7);
        return describe_all(list.iter(), (hooks, ways), call);
    } else if let Ok(tuple) = object.cast_exact::<PyTuple>() {
        call.number(8);
        return describe_all(tuple.iter(), (hooks, ways), call);
    } else if let Some(dtype) = hooks.dtype_number(object) {
        call.number(9);
        call.number(dtype as u64);
    } else {
        return Ok(false);
    }
    Ok(true)
}

/// The results of a call on a GPU as they are made again; `None` if one of them is none that could be.
fn made(
    found: &Object<'_>,
    (hooks, ways): (&Hooks, &Ways),
    gpu: u32,
) -> PyResult<Option<Vec<(Place, Made)>>> {
    let py = found.py();
    if found.is_none() {
        return Ok(Some(Vec::new()));
    }
    let (tensors, results): (Vec<Object<'_>>, _) = match found.cast::<PyTuple>() {
        Ok(tuple) => {
            let is_tensor = tuple.iter().map(|one| !one.is_none()).collect();
            (tuple.iter().filter(|one| !one.is_none()).collect(), Some(is_tensor))
        }
        Err(_) => (vec![found.clone()], None),
    };
    let mut all = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        if !hooks.is_plain(&tensor) {
            return Ok(None);
        }
        let shape = tensor.getattr(intern!(py, "shape"))?.extract::<Vec<i64>>()?;
        let strides = tensor.call_method0(intern!(py, "stride"))?.extract::<Vec<i64>>()?;
        let dtype = tensor.getattr(intern!(py, "dtype"))?;
        let Ok(borrowed) = ways.exchange.borrow(&tensor) else { return Ok(None) };
        if borrowed.cuda() != Some(gpu) {
            return Ok(None);
        }
        let bytes = bytes_of(&shape, &strides, borrowed.element().1);
        let place = Place { address: borrowed.address(), bytes };
        let layout =
            (PyTuple::new(py, shape)?, PyTuple::new(py, strides)?, dtype).into_pyobject(py)?.unbind();
        all.push((place, Made { layout, results: None }));
    }
    let Some((_, first)) = all.first_mut() else { return Ok(None) };
    first.results = Some(results);
    Ok(Some(all))
}

/// The call again.
fn repeat<'py>(
    py: Python<'py>,
    recorded: &Recorded<Made>,
    ways: &Ways,
    call: &Call,
    gpu: u32,
) -> PyResult<Object<'py>> {
    let mut tensors = Vec::with_capacity(recorded.made.len());
    let mut addresses = Vec::with_capacity(recorded.made.len());
    for made in &recorded.made {
        let tensor = ways.empty_strided.bind(py).call1(made.layout.bind(py))?;
        addresses.push(ways.exchange.borrow(&tensor)?.address());
        tensors.push(tensor);
    }
    let stream = ways.exchange.current_stream(py, gpu)?;
    let done = py.detach(|| recorded.enqueue(call, &addresses, gpu, stream));
    done.map_err(|e| error::runtime(py, &e))?;
    let mut tensors = tensors.into_iter();
    let results = recorded.made.first().and_then(|first| first.results.as_ref());
    match results {
        Some(Some(are_tensors)) => {
            let all = are_tensors.iter().map(|is_tensor| if *is_tensor { tensors.next() } else { None });
            Ok(PyTuple::new(py, all.collect::<Vec<_>>())?.into_any())
        }
        Some(None) => Ok(tensors.next().unwrap_or_else(|| py.None().into_bound(py))),
        None => Ok(py.None().into_bound(py)),
    }
}
