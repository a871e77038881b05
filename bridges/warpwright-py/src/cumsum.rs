//! `cumsum` as a Python function.

use pyo3::prelude::*;
use warpwright::cumsum::{CumsumArgs, CumsumDesc};
use warpwright::plan::PlanCache;

use crate::call::{Call, Form, present};
use crate::library::{Maybe, Object};
use crate::softmax::around;

/// The sums of the elements of x along dimension `dim` up to each of them, in a fixed order.
///
/// x: float32, float64, float16, bfloat16, int32 or int64, any shape. exclusive: each sum is without its own element; reverse: sums go from
/// the last element to the first. The result has the shape and dtype of x; `out` may be `x`. The gradient of x is the same function of that
/// of the result, with the other `reverse`.
#[pyfunction]
#[pyo3(signature = (x, dim=-1, *, exclusive=false, reverse=false, out=None, stream=None))]
pub(crate) fn cumsum<'py>(
    x: &Object<'py>,
    dim: isize,
    exclusive: bool,
    reverse: bool,
    out: Maybe<'_, 'py>,
    stream: Maybe<'_, 'py>,
) -> PyResult<Object<'py>> {
    static PLANS: PlanCache<CumsumDesc> = PlanCache::new();
    const OP: &str = "cumsum";
    let (call, x) = Call::new(OP, ("x", x), stream)?;
    let x = call.dense(x)?;
    let [outer, n, inner] = around(OP, &x, dim)?;
    let plan = call.plan(&PLANS, &CumsumDesc { dtype: x.dtype, outer, n, inner, exclusive, reverse })?;
    let y = call.output(("out", out), &x, Form::Like)?;
    let outputs = [Some(y), call.workspace(&plan, &x)?];
    let [y, _] = call.run_some([Some(&x)], outputs, move |stream, [x], [y, workspace]| {
        Ok(plan.launch(stream, CumsumArgs { x: present(x), y: present(y), workspace })?)
    })?;
    Ok(present(y))
}
