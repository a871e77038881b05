//! Errors of the library as Python exceptions with the same data.

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};
use warpwright::{DType, PlanError, RuntimeError};

use crate::dlpack::Malformed;

/// The classes of `warpwright._errors`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Class {
    Base,
    Shape,
    Dtype,
    Device,
    Layout,
    Parameter,
    Argument,
    OutOfMemory,
    Kernel,
    Ptx,
}

impl Class {
    const NAMES: [&'static str; 10] = [
        "Error",
        "ShapeError",
        "DtypeError",
        "DeviceError",
        "LayoutError",
        "ParameterError",
        "ArgumentError",
        "OutOfMemoryError",
        "KernelError",
        "PtxError",
    ];

    fn get(self, py: Python<'_>) -> PyResult<Bound<'_, PyType>> {
        static CLASSES: PyOnceLock<Vec<Py<PyType>>> = PyOnceLock::new();
        let classes = CLASSES.get_or_try_init(py, || {
            let module = py.import("warpwright._errors")?;
            let class = |name| Ok(module.getattr(name)?.cast_into::<PyType>()?.unbind());
            Self::NAMES.into_iter().map(class).collect::<PyResult<_>>()
        })?;
        Ok(classes[self as usize].bind(py).clone())
    }
}

/// An exception in the making.
pub(crate) struct Problem<'py> {
    class: Class,
    message: String,
    data: Bound<'py, PyDict>,
    py: Python<'py>,
}

impl<'py> Problem<'py> {
    pub(crate) fn new(py: Python<'py>, class: Class, message: impl Into<String>) -> Self {
        Self { class, message: message.into(), data: PyDict::new(py), py }
    }

    /// The operation and the argument.
    pub(crate) fn at(self, op: &str, argument: &str) -> Self {
        self.with("op", op).with("argument", argument)
    }

    /// The expected value and the one found.
    pub(crate) fn mismatch(self, expected: impl IntoPyObject<'py>, got: impl IntoPyObject<'py>) -> Self {
        self.with("expected", expected).with("got", got)
    }

    pub(crate) fn with(self, key: &str, value: impl IntoPyObject<'py>) -> Self {
        // A value that cannot be converted stays out; the message has it.
        if let Ok(value) = value.into_py_any(self.py) {
            let _ = self.data.set_item(key, value);
        }
        self
    }

    pub(crate) fn into_err(self) -> PyErr {
        let made = self.class.get(self.py).and_then(|class| class.call((self.message,), Some(&self.data)));
        made.map_or_else(|e| e, PyErr::from_value)
    }
}

impl From<Problem<'_>> for PyErr {
    fn from(problem: Problem<'_>) -> Self {
        problem.into_err()
    }
}

fn tuple<'py>(py: Python<'py>, shape: &[usize]) -> Option<Bound<'py, PyTuple>> {
    PyTuple::new(py, shape).ok()
}

pub(crate) fn shape<'py>(
    py: Python<'py>,
    op: &str,
    argument: &str,
    expected: &[usize],
    got: &[usize],
) -> PyErr {
    let message = format!("{op}: {argument} has shape {got:?}, expected {expected:?}");
    Problem::new(py, Class::Shape, message)
        .at(op, argument)
        .mismatch(tuple(py, expected), tuple(py, got))
        .into_err()
}

pub(crate) fn dtype(py: Python<'_>, op: &str, argument: &str, expected: &[DType], got: &str) -> PyErr {
    let names: Vec<&str> = expected.iter().map(|d| d.name()).collect();
    let message = format!("{op}: {argument} is {got}, expected {}", names.join(", "));
    let problem = Problem::new(py, Class::Dtype, message).at(op, argument);
    match names.as_slice() {
        [one] => problem.mismatch(*one, got),
        _ => problem.mismatch(PyTuple::new(py, &names).ok(), got),
    }
    .into_err()
}

/// An argument of primitive `op` that names nothing.
pub(crate) fn unknown(py: Python<'_>, op: &str, (parameter, name): (&str, &str), expected: &str) -> PyErr {
    let message = format!("{op}: {parameter} is '{name}', expected {expected}");
    Problem::new(py, Class::Parameter, message).at(op, parameter).mismatch(expected, name).into_err()
}

pub(crate) fn device(py: Python<'_>, op: &str, argument: &str, expected: &str, got: &str) -> PyErr {
    let message = format!("{op}: {argument} is on {got}, expected {expected}");
    Problem::new(py, Class::Device, message).at(op, argument).mismatch(expected, got).into_err()
}

/// The exception for an array that describes itself as what cannot be.
pub(crate) fn malformed(py: Python<'_>, op: &str, argument: &str, why: Malformed) -> PyErr {
    let problem =
        |class, what: String| Problem::new(py, class, format!("{op}: {argument} {what}")).at(op, argument);
    match why {
        Malformed::TooManyDimensions(got) => {
            let limit = warpwright_runtime::MAX_RANK;
            let what = format!("has {got} dimensions, the limit is {limit}");
            problem(Class::Shape, what).mismatch(limit, got)
        }
        Malformed::Dimensions(got) => {
            problem(Class::Shape, format!("has {got} dimensions")).mismatch("no negative number", got)
        }
        Malformed::NoExtents(rank) => {
            problem(Class::Shape, format!("has {rank} dimensions and no extents")).with("expected", rank)
        }
        Malformed::Strides { extents, strides } => {
            let what = format!("has {strides} strides, expected {extents}");
            problem(Class::Layout, what).mismatch(extents, strides)
        }
        Malformed::Extent { axis, extent } => {
            let what = format!("has extent {extent} in dimension {axis}, expected one that is not negative");
            problem(Class::Shape, what).mismatch("no negative number", extent)
        }
        Malformed::TooLarge => {
            problem(Class::Shape, "has elements past the last address that there is".to_owned())
        }
        Malformed::NoMemory { elements } => {
            let what = format!("has {elements} elements at address 0");
            problem(Class::Layout, what).mismatch("an address", 0)
        }
    }
    .into_err()
}

/// The exception for an error of the library in a call of the Python function `op`.
pub(crate) fn raise(py: Python<'_>, op: &'static str, error: impl Into<warpwright::Error>) -> PyErr {
    let mut error = error.into();
    if let Some(name) = named(&mut error) {
        *name = op;
    }
    match error {
        warpwright::Error::Plan(e) => plan(py, &e),
        warpwright::Error::Runtime(e) => runtime(py, &e),
        other => Problem::new(py, Class::Base, other.to_string()).into_err(),
    }
}

/// The operation that an error names: the primitive behind the function that was called.
fn named(error: &mut warpwright::Error) -> Option<&mut &'static str> {
    match error {
        warpwright::Error::Plan(
            PlanError::DType { op, .. }
            | PlanError::Parameter { op, .. }
            | PlanError::TooLarge { op, .. }
            | PlanError::Expression { op, .. }
            | PlanError::SharedMemory { op, .. }
            | PlanError::Target { op, .. }
            | PlanError::Build { op, .. },
        )
        | warpwright::Error::Runtime(
            RuntimeError::WrongDevice { op, .. }
            | RuntimeError::Shape { op, .. }
            | RuntimeError::Elements { op, .. }
            | RuntimeError::Rank { op, .. }
            | RuntimeError::DType { op, .. }
            | RuntimeError::NotContiguous { op, .. }
            | RuntimeError::Strides { op, .. }
            | RuntimeError::Alignment { op, .. }
            | RuntimeError::Overlap { op, .. }
            | RuntimeError::Bounds { op, .. }
            | RuntimeError::Presence { op, .. }
            | RuntimeError::Overflow { op, .. },
        ) => Some(op),
        _ => None,
    }
}

fn plan(py: Python<'_>, error: &PlanError) -> PyErr {
    match error {
        PlanError::DType { op, tensor, got, expected } => dtype(py, op, tensor, expected, got.name()),
        PlanError::Parameter { op, parameter, got, expected } => {
            let problem = Problem::new(py, Class::Parameter, error.to_string()).at(op, parameter);
            problem.mismatch(*expected, got.as_str()).into_err()
        }
        PlanError::Expression { op, .. } => {
            Problem::new(py, Class::Parameter, error.to_string()).at(op, "expr").into_err()
        }
        PlanError::TooLarge { op, blocks, limit } => {
            let problem = Problem::new(py, Class::Shape, error.to_string()).with("op", *op);
            problem.mismatch(*limit, *blocks).into_err()
        }
        PlanError::Target { op, needs, target } => {
            let problem = Problem::new(py, Class::Device, error.to_string()).with("op", *op);
            problem.mismatch(format!("sm_{needs}"), target.to_string()).into_err()
        }
        _ => Problem::new(py, Class::Base, error.to_string()).into_err(),
    }
}

pub(crate) fn runtime(py: Python<'_>, error: &RuntimeError) -> PyErr {
    let problem = |class| Problem::new(py, class, error.to_string());
    match error {
        RuntimeError::Shape { op, argument, expected, got } => shape(py, op, argument, expected, got),
        RuntimeError::Elements { op, argument, expected, got, .. } => {
            problem(Class::Shape).at(op, argument).mismatch(*expected, *got).into_err()
        }
        RuntimeError::Rank { op, argument, limit, got } => {
            problem(Class::Shape).at(op, argument).mismatch(*limit, *got).into_err()
        }
        RuntimeError::Overflow { op, argument, shape } => {
            problem(Class::Shape).at(op, argument).with("got", tuple(py, shape)).into_err()
        }
        RuntimeError::DType { op, argument, expected, got } => {
            dtype(py, op, argument, &[*expected], got.name())
        }
        RuntimeError::WrongDevice { op, argument, expected, got } => {
            problem(Class::Device).at(op, argument).mismatch(expected.to_string(), got.to_string()).into_err()
        }
        RuntimeError::NoDriver(_)
        | RuntimeError::NoSuchDevice { .. }
        | RuntimeError::DeviceName { .. }
        | RuntimeError::Target { .. }
        | RuntimeError::PtxTooNew { .. }
        | RuntimeError::NotSupported { .. } => problem(Class::Device).into_err(),
        RuntimeError::NotContiguous { op, argument, .. } => {
            problem(Class::Layout).at(op, argument).into_err()
        }
        RuntimeError::Alignment { op, argument, required, address } => {
            problem(Class::Layout).at(op, argument).mismatch(*required, *address).into_err()
        }
        RuntimeError::Overlap { op, first, second } => {
            problem(Class::Layout).at(op, first).with("got", *second).into_err()
        }
        RuntimeError::Bounds { op, argument, needed, available } => {
            problem(Class::Shape).at(op, argument).mismatch(*needed, *available).into_err()
        }
        RuntimeError::Presence { op, argument, .. } => problem(Class::Argument).at(op, argument).into_err(),
        RuntimeError::OutOfMemory { requested, free, .. } => {
            problem(Class::OutOfMemory).mismatch(*requested, *free).into_err()
        }
        RuntimeError::Fault(_)
        | RuntimeError::Sanitizer(_)
        | RuntimeError::Emulator(_)
        | RuntimeError::Jit { .. }
        | RuntimeError::Launch { .. } => problem(Class::Kernel).into_err(),
        _ => problem(Class::Base).into_err(),
    }
}
