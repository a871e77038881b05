//! Tensor maps as arguments of `run`.

use pyo3::prelude::*;
use warpwright::ptx::{TensorElement, TensorFill, TensorMap as Map, TensorSwizzle};

use crate::array::Array;
use crate::error::{Class, Problem};

/// A tensor map over an array, as an argument of `run`: what `cuTensorMapEncodeTiled` makes.
///
/// array: contiguous, of one to five dimensions. box: extents of the box that a copy moves, in the order of the array's
/// dimensions. swizzle: "none", "32B", "64B" or "128B". element: the type if it is not that of the array, such as "tf32".
/// fill: "zeros" or "nan", what loads put outside the array.
#[pyclass(frozen, module = "warpwright")]
pub(crate) struct TensorMap {
    array: Py<PyAny>,
    extents: Vec<u32>,
    swizzle: TensorSwizzle,
    element: Option<TensorElement>,
    fill: TensorFill,
}

fn unknown(py: Python<'_>, argument: &'static str, got: &str, expected: &str) -> PyErr {
    let message = format!("TensorMap: {argument} is '{got}', expected {expected}");
    let problem = Problem::new(py, Class::Parameter, message).at("TensorMap", argument);
    problem.mismatch(expected, got).into_err()
}

#[pymethods]
impl TensorMap {
    #[new]
    #[pyo3(signature = (array, r#box, *, swizzle="none", element=None, fill="zeros"))]
    fn new(
        array: &Bound<'_, PyAny>,
        r#box: Vec<u32>,
        swizzle: &str,
        element: Option<&str>,
        fill: &str,
    ) -> PyResult<Self> {
        let py = array.py();
        let swizzle = TensorSwizzle::from_name(swizzle)
            .ok_or_else(|| unknown(py, "swizzle", swizzle, "none, 32B, 64B or 128B"))?;
        let element = element
            .map(|name| {
                let names: Vec<&str> = TensorElement::ALL.iter().map(|e| e.name()).collect();
                TensorElement::from_name(name).ok_or_else(|| unknown(py, "element", name, &names.join(", ")))
            })
            .transpose()?;
        let fill = match fill {
            "zeros" => TensorFill::Zero,
            "nan" => TensorFill::Nan,
            other => return Err(unknown(py, "fill", other, "zeros or nan")),
        };
        Ok(Self { array: array.clone().unbind(), extents: r#box, swizzle, element, fill })
    }

    /// The array.
    #[getter]
    fn array(&self, py: Python<'_>) -> Py<PyAny> {
        self.array.clone_ref(py)
    }
}

impl TensorMap {
    /// The array, whoever holds the map.
    pub(crate) fn over<'py>(&self, py: Python<'py>) -> &Bound<'py, PyAny> {
        self.array.bind(py)
    }

    /// The map of the array once it has an address.
    pub(crate) fn at(&self, array: &Array<'_>, base: u64) -> PyResult<Map> {
        let py = array.object.py();
        let element = match self.element {
            Some(element) => element,
            None => {
                let name = array.dtype.name();
                TensorElement::from_name(name)
                    .ok_or_else(|| unknown(py, "array", name, "an element type of tensor maps"))?
            }
        };
        // Dimensions go from the innermost outwards.
        let dims: Vec<u64> = array.shape.iter().rev().map(|n| *n as u64).collect();
        let extents: Vec<u32> = self.extents.iter().rev().copied().collect();
        let map = Map { fill: self.fill, ..Map::dense(base, element, &dims, &extents, self.swizzle) };
        let refused = |why: String| {
            let problem = Problem::new(py, Class::Parameter, format!("TensorMap: {why}"));
            problem.at("TensorMap", "box").into_err()
        };
        if element.bytes() != array.dtype.bytes() as u64 {
            return Err(refused(format!(
                "{} does not fit elements of {}",
                element.name(),
                array.dtype.name()
            )));
        }
        map.check().map_err(|why| refused(why.to_string()))?;
        Ok(map)
    }
}
