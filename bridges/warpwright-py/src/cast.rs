//! `cast` as a Python function.

use pyo3::prelude::*;
use warpwright::cast::{CastArgs, CastDesc};
use warpwright::plan::PlanCache;

use crate::array::{Site, dtype_given};
use crate::call::{Call, Form};
use crate::library::{Maybe, Object};

/// The elements of x in another type, each rounded to nearest even.
///
/// x: float32, float64, float16 or bfloat16, any shape; dtype: one of those, by name or as a library has it. Returns an array
/// of the shape of x.
#[pyfunction]
#[pyo3(signature = (x, dtype, *, out=None, stream=None))]
pub(crate) fn cast<'py>(
    x: &Object<'py>,
    dtype: &Object<'py>,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<CastDesc> = PlanCache::new();
    const OP: &str = "cast";
    let to = dtype_given(dtype, Site { op: OP, argument: "dtype" })?;
    let (call, x) = Call::new(OP, ("x", x), stream)?;
    let x = call.row_major(x)?;
    let plan = call.plan(&PLANS, &CastDesc { from: x.dtype, to, len: x.len() })?;
    let shape = x.shape.to_vec();
    let y = call.output(("out", out), &x, Form::RowMajor(to, &shape))?;
    let [y] = call.run(&[x], [y], move |stream, [x], [y]| Ok(plan.launch(stream, CastArgs { x, y })?))?;
    Ok(y)
}
