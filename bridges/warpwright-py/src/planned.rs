//! Calls that are planned once, from what is known of their arrays, and run any number of times without Python.
//!
//! A call is a text: the function, and its arguments with numbers in place of arrays (`warpwright._planned`). With the types and shapes
//! of the arrays and the target it says all that there is to plan. Whoever runs it finds what was planned by these; if it has been
//! forgotten, or was planned in another process, it is planned again.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use warpwright::{DType, Error, Target};

use crate::device::{self, Place};
use crate::error::{self, Class, Problem};
use crate::library::{dtype_name, dtype_named, extents};
use crate::placeholder::{Addresses, Placeholder, Planning, Step};

/// Calls that are remembered; when there are more, all are forgotten.
const MOST_CALLS: usize = 4096;

/// Type and shape of an array of a call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ArrayType {
    pub(crate) dtype: DType,
    pub(crate) shape: Box<[usize]>,
}

/// All that a plan follows from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Kind {
    pub(crate) text: Box<str>,
    pub(crate) arguments: Box<[ArrayType]>,
    pub(crate) target: Target,
}

/// A call that can be run.
pub(crate) struct PlannedCall {
    steps: Vec<Step>,
    arguments: usize,
    /// The numbers of their placeholders come first.
    results: Vec<(usize, ArrayType)>,
    /// Numbers of placeholders, and the bytes behind them, that are neither arguments nor results.
    scratch: Vec<(usize, u64)>,
}

static KNOWN: LazyLock<RwLock<HashMap<Kind, Arc<PlannedCall>>>> = LazyLock::new(RwLock::default);

impl PlannedCall {
    /// A call that has been planned.
    pub(crate) fn known(kind: &Kind) -> Option<Arc<Self>> {
        KNOWN.read().unwrap_or_else(PoisonError::into_inner).get(kind).map(Arc::clone)
    }

    /// Plans a call for where it runs.
    pub(crate) fn plan(py: Python<'_>, kind: &Kind, place: Place) -> PyResult<Arc<Self>> {
        let planning = Arc::default();
        let arrays = kind.arguments.iter().map(|a| Placeholder::new(&planning, place, Ok(a.dtype), &a.shape));
        let (found, _) = evaluate(py, &kind.text, arrays)?;
        Self::remembered(py, kind.clone(), &planning, found)
    }

    fn remembered(
        py: Python<'_>,
        kind: Kind,
        planning: &Planning,
        found: Vec<Bound<'_, Placeholder>>,
    ) -> PyResult<Arc<Self>> {
        let planned = planning.take();
        let arguments = kind.arguments.len();
        let mut results = Vec::new();
        for result in found {
            let result = result.get();
            let (Ok(dtype), shape) = result.kind() else { continue };
            let is_new = results.iter().all(|(number, _)| *number != result.number);
            if result.number < arguments || !is_new {
                let message = format!("{}: a result is an argument, or another result", kind.text);
                return Err(Problem::new(py, Class::Base, message).into_err());
            }
            results.push((result.number, ArrayType { dtype, shape: shape.into() }));
        }
        let is_result = |number: usize| results.iter().any(|(result, _)| *result == number);
        let scratch = planned.bytes.iter().copied().enumerate().skip(arguments);
        let scratch = scratch.filter(|(number, _)| !is_result(*number)).collect();
        let call = Arc::new(Self { steps: planned.steps, arguments, results, scratch });
        let mut known = KNOWN.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST_CALLS {
            known.clear();
        }
        known.insert(kind, Arc::clone(&call));
        Ok(call)
    }

    /// Types and shapes of the results.
    pub(crate) fn results(&self) -> impl ExactSizeIterator<Item = &ArrayType> {
        self.results.iter().map(|(_, array)| array)
    }

    /// Bytes of memory that a run needs, each piece for its time alone.
    pub(crate) fn scratch(&self) -> impl ExactSizeIterator<Item = u64> {
        self.scratch.iter().map(|(_, bytes)| *bytes)
    }

    /// Runs the call, or enqueues it on a stream of a GPU, on arrays in row-major order at these addresses. There are as many as the kind,
    /// [`PlannedCall::results`] and [`PlannedCall::scratch`] say, of these types and shapes, and they live until the work is done.
    pub(crate) fn run(
        &self,
        (place, stream): (Place, u64),
        arguments: &[u64],
        results: &[u64],
        scratch: &[u64],
    ) -> Result<(), Error> {
        let mut addresses = vec![0; self.arguments + self.results.len() + self.scratch.len()];
        addresses[..self.arguments].copy_from_slice(arguments);
        for ((number, _), address) in self.results.iter().zip(results) {
            addresses[*number] = *address;
        }
        for ((number, _), address) in self.scratch.iter().zip(scratch) {
            addresses[*number] = *address;
        }
        self.steps.iter().try_for_each(|step| step(place, stream, &Addresses(&addresses)))
    }
}

/// The results of a call, and how they hang together.
type Found<'py> = (Vec<Bound<'py, Placeholder>>, Bound<'py, PyAny>);

/// Calls the function that a text names on placeholders.
fn evaluate<'py>(
    py: Python<'py>,
    text: &str,
    arrays: impl Iterator<Item = Placeholder>,
) -> PyResult<Found<'py>> {
    let arrays = arrays.map(|array| Bound::new(py, array)).collect::<PyResult<Vec<_>>>()?;
    let evaluate = py.import(intern!(py, "warpwright._planned"))?.getattr(intern!(py, "evaluate"))?;
    evaluate.call1((text, PyList::new(py, arrays)?))?.extract()
}

/// Plans a call on arrays of these types and shapes, on the host or on GPU `device`: types and shapes of the results, and how they hang
/// together, with their numbers in their places.
#[pyfunction]
#[pyo3(signature = (text, arrays, device=None))]
pub(crate) fn plan_call<'py>(
    py: Python<'py>,
    text: &str,
    arrays: Vec<(String, Vec<usize>)>,
    device: Option<u32>,
) -> PyResult<(Bound<'py, PyList>, Bound<'py, PyAny>)> {
    let place = device.map_or(Place::Host, Place::Cuda);
    let target = device::target(place).map_err(|e| error::runtime(py, &e))?;
    let planning = Arc::default();
    let named = |name: &String| dtype_named(name).ok_or_else(|| name.clone());
    let placeholders =
        arrays.iter().map(|(name, shape)| Placeholder::new(&planning, place, named(name), shape));
    let (found, structure) = evaluate(py, text, placeholders)?;
    let known = |(name, shape): &(String, Vec<usize>)| {
        let refused = |name: String| error::dtype(py, "plan_call", "arrays", &DType::FLOATS, &name);
        Ok(ArrayType { dtype: named(name).map_err(refused)?, shape: shape.as_slice().into() })
    };
    let arguments = arrays.iter().map(known).collect::<PyResult<_>>()?;
    let call = PlannedCall::remembered(py, Kind { text: text.into(), arguments, target }, &planning, found)?;
    let described = |array: &ArrayType| -> PyResult<Bound<'py, PyTuple>> {
        (dtype_name(array.dtype), extents(py, &array.shape)?).into_pyobject(py)
    };
    let results = call.results().map(described).collect::<PyResult<Vec<_>>>()?;
    Ok((PyList::new(py, results)?, structure))
}

/// Forgets every call that has been planned, for tests of what another process has to do.
#[pyfunction]
pub(crate) fn forget_planned_calls() {
    KNOWN.write().unwrap_or_else(PoisonError::into_inner).clear();
}

/// How many calls are remembered.
#[pyfunction]
pub(crate) fn planned_calls() -> usize {
    KNOWN.read().unwrap_or_else(PoisonError::into_inner).len()
}
